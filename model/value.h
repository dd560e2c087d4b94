/* value.h - scalar heads on hidden rows: what a state is worth. Level 3.
 *
 *     V = hidden W^T + b          W (heads, c), b (heads): a gr_weights with config.value_heads
 *     loss = coef sum over value rows of weight e,   e = (V - target)^2 or, clipped,
 *            e = max((V - target)^2, (old + clip(V - old, -clip, clip) - target)^2)
 *
 * (Schulman et al. 2017, arXiv:1707.06347, sec. 5; the clip as in its reference code.) Rows are few
 * and every product runs through the ops of matrix products, so the errors are worked out on the
 * host in fp64: one more wait for the device per micro-batch. Values are stored as `real`. */
#pragma once
#include "model/batch.h"
#include "model/weights.h"

typedef struct gr_value_params {
    double coef; /* of the loss */
    double clip; /* 0: none */
} gr_value_params;

/* Sums over value rows, weighted. */
typedef struct gr_value_sums {
    double loss; /* without coef */
    double weight, target, target_sq, error_sq;
} gr_value_sums;

typedef struct gr_value {
    const gr_weights* w; /* borrowed; its packed_head and value_bias */
    void *out, *dout;    /* (max_tokens, heads) real: V and dL/dV of every token */
    void* dhidden;       /* (max_tokens, c) real; not its own beside a trunk of its own */
    void* scratch;
    double *host, *slope; /* (max_tokens, heads): V, dL/dV */
    int64_t max_tokens;
} gr_value;

/* Heads without a trunk read another model's rows, whose gradient they keep apart; the others'
 * dhidden is the objective's (model/objective.h). */
void gr_value_layout(gr_value* v, const gr_weights* w, int64_t max_tokens, gr_arena* host,
                     gr_arena* device);
/* Values of the batch's value rows at n hidden rows into batch->value_old. */
GR_MUST_CHECK gr_status gr_value_read(gr_value* v, const void* hidden, int64_t n,
                                      const gr_batch* batch);
/* The loss of the batch's value rows, added to *sums: dL/dhidden into v->dhidden (written), the
 * heads' gradient added to grad (w->n_params, acc). */
GR_MUST_CHECK gr_status gr_value_loss(gr_value* v, const void* hidden, int64_t n,
                                      const gr_batch* batch, const gr_value_params* params,
                                      void* grad, gr_value_sums* sums);
