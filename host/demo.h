/* demo.h - what demonstrations weigh in the loss. Level 6.
 *
 * A demonstration is a step that was not sampled from the policy in its own context (kind demo in
 * the tree). Its tokens are trained in the clean context of their path, so their log-probabilities
 * there have to be measured, and how much they count is a choice of the method: ProCeedRL's
 * (arXiv:2604.02006), whose settings are in host/strategy/proceed.h. */
#pragma once
#include "host/pack.h"
#include "host/strategy/proceed.h"
#include "model/objective.h"

typedef struct gr_demos {
    const gr_proceed_settings* s; /* NULL: the run has no demonstrations */
    double* logp;                 /* of the piece in hand */
    int64_t logp_cap;
} gr_demos;

/* Between gr_credit_begin and the answers: asks for the log-probs of all demonstrated tokens. */
void gr_demos_ask(const gr_demos* d, gr_credit* c);
/* The answers become the tokens' log-probs in the tree. */
void gr_demos_hear(const gr_demos* d, const gr_credit* c, gr_tree* t);
/* After gr_credit_finish: which demonstrations are left out; a group that has some to learn by
 * likelihood is not idle. */
void gr_demos_credit(const gr_demos* d, gr_credit* c);
/* Weighs the rows of a packed piece. `untouched`: the weights are still those that old_logp was
 * measured with; otherwise one more forward measures the demonstrations. */
GR_MUST_CHECK gr_status gr_demos_weigh(gr_demos* d, gr_objective* o, gr_batch* piece,
                                       float temperature, bool untouched);
/* The same, given log-probs of the rows under the present weights; for tests. */
void gr_demos_apply(const gr_proceed_settings* s, gr_batch* piece, const double* logp);
