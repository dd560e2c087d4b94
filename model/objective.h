/* objective.h - the loss of one packed batch and its gradient. Level 3. */
#pragma once
#include "model/transformer.h"
#include "model/value.h"

/* The value loss of a batch, beside the policy's or alone. */
typedef struct gr_value_pass {
    gr_value* value; /* borrowed */
    gr_value_params params;
    void* grad; /* of the heads and, if they have one, their trunk */
    gr_value_sums sums;
} gr_value_pass;

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
    double* host_logp;     /* (max_rows) log-probs of the last batch */
    gr_value_pass* values; /* NULL: no value loss */
    int64_t max_tokens;
} gr_objective;

/* max_tokens bounds tokens and predicted rows of a micro-batch. train = false: gr_objective_logp only.
 * A model with scalar heads instead of an LM head predicts nothing: its objective is the value loss. */
void gr_objective_layout(gr_objective* o, const gr_weights* w, int64_t max_tokens, int max_path,
                         bool train, bool recompute, gr_arena* host, gr_arena* device);

/* From here on a step has the value loss, too, and a read answers values: `pass` (kept by the caller)
 * belongs to the objective's own model or to heads that share its trunk. */
void gr_objective_set_values(gr_objective* o, gr_value_pass* pass);

/* Forward, loss, backward of one micro-batch: gradients are added to grad (n_params, acc), sums are
 * added to *sums (host) and the pass's. Leaves the batch's log-probs in o->host_logp. */
GR_MUST_CHECK gr_status gr_objective_step(gr_objective* o, const gr_batch* batch,
                                          const gr_loss_params* params, void* grad,
                                          gr_loss_sums* sums);
/* Forward only: answers the batch's value rows (into value_old) and its predicted rows, measured at
 * `temperature` (into old_logp). */
GR_MUST_CHECK gr_status gr_objective_read(gr_objective* o, const gr_batch* batch,
                                          float temperature);
/* Forward only: log-probs of the batch's targets at `temperature` into out (n_rows). Used for the
 * reference model. */
GR_MUST_CHECK gr_status gr_objective_logp(gr_objective* o, const gr_batch* batch, float temperature,
                                          double* out);
