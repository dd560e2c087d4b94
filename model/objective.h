/* objective.h - the loss of one packed batch and its gradient. Level 3. */
#pragma once
#include "model/transformer.h"

/* Device buffers for one micro-batch, reused by every one. */
typedef struct gr_objective {
    const gr_weights* w; /* borrowed */
    gr_acts acts;
    int32_t *token, *position, *src, *target;
    void *old_logp, *ref_logp, *a_pos, *a_neg, *weight; /* (max_rows) acc */
    void *logp, *entropy;
    gr_loss_sums* sums;
    gr_sampling* sampling; /* (max_rows): temperature of measured rows */
    void* scratch;
    double* host_logp; /* (max_rows) log-probs of the last batch */
    int64_t max_tokens;
} gr_objective;

/* max_tokens bounds tokens and predicted rows of a micro-batch. train = false: gr_objective_logp only. */
void gr_objective_layout(gr_objective* o, const gr_weights* w, int64_t max_tokens, int max_path,
                         bool train, bool recompute, gr_arena* host, gr_arena* device);

/* Forward, loss, backward of one micro-batch: gradients are added to grad (n_params, acc), sums are
 * added to *sums (host). Leaves the batch's log-probs in o->host_logp. */
GR_MUST_CHECK gr_status gr_objective_step(gr_objective* o, const gr_batch* batch,
                                          const gr_loss_params* params, void* grad,
                                          gr_loss_sums* sums);
/* Forward only: log-probs of the batch's targets at `temperature` into out (n_rows). Used for the
 * reference model. */
GR_MUST_CHECK gr_status gr_objective_logp(gr_objective* o, const gr_batch* batch, float temperature,
                                          double* out);
