/* critic.h - the value model of a run: answers what credit asks, learns from its targets. Level 6.
 *
 * Scalar heads on the policy's hidden rows (value.backbone = shared), or a model of its own that
 * begins as a copy of the policy (separate). Either has parameters, moments and a learning rate of
 * its own; a shared trunk also learns from value.coef times the value loss, at the policy's rate. */
#pragma once
#include "host/config.h"
#include "host/pack.h"
#include "model/objective.h"
#include "model/optimizer.h"

enum { GR_BACKBONE_SEPARATE, GR_BACKBONE_SHARED };
typedef struct gr_critic_settings {
    int backbone;
    double lr, coef, clip;
} gr_critic_settings;
extern const gr_block gr_critic_block; /* "value" */

typedef struct gr_critic {
    int n_heads; /* 0: the run has no value model */
    const gr_critic_settings* s;
    gr_weights w;
    gr_optimizer optimizer;
    gr_value value;
    gr_objective objective; /* of a trunk of its own */
    gr_value_pass pass;
    gr_objective* reader; /* whose hidden rows the heads read: its own, or the policy's */
} gr_critic;

/* Parameters, moments and values; `policy` has been laid out. Two passes (arena.h). */
void gr_critic_layout(gr_critic* c, int n_heads, const gr_critic_settings* s,
                      const gr_weights* policy, int64_t max_tokens, gr_arena* host,
                      gr_arena* device);
/* The policy's objective and, for a trunk of its own, the critic's in the same device memory: a
 * micro-batch goes through one after the other, and neither reads what it left before. */
void gr_critic_layout_objectives(gr_critic* c, gr_objective* policy, const gr_weights* weights,
                                 int64_t max_tokens, bool recompute, gr_arena* host,
                                 gr_arena* device);
/* Initial values; a trunk of its own becomes the policy's, whose weights are final. */
void gr_critic_start(gr_critic* c, const gr_weights* policy, uint64_t seed);
/* Answers the reads and probes of a pack made by gr_pack_ask. */
GR_MUST_CHECK gr_status gr_critic_answer(gr_critic* c, gr_objective* policy, const gr_pack* pack,
                                         float temperature);
void gr_critic_begin(gr_critic* c); /* a minibatch: gradient and sums to 0 */
/* The value loss of a piece; of heads that share the policy's trunk it was part of the policy's. */
GR_MUST_CHECK gr_status gr_critic_step(gr_critic* c, const gr_batch* piece);
