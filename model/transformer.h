/* transformer.h - the only forward and backward. Level 3.
 *
 * Sampling and training run the same layers on rows of tokens; they differ in where keys come from:
 * pages (sampling) or the packed tree itself (training). A row's hidden state has the same bits in
 * both (kernels/ops.h, attention). */
#pragma once
#include "model/batch.h"
#include "model/weights.h"

/* Rows in; exactly one of `pages` and `subtree_end` is set. These two are on the host, where attention
 * is planned from them; all other arrays are on the device. */
typedef struct gr_rows {
    const int32_t* token;
    const int32_t* position;
    int64_t n;
    /* sampling */
    const gr_page_plan* pages;
    void* pool; /* all layers, each pool_pages pages */
    int64_t pool_pages;
    const int32_t* slot; /* where each row's key and value go: page * GR_PAGE + offset */
    /* training */
    const int32_t* subtree_end;
    int max_path;
} gr_rows;

/* Activations. For sampling one layer's worth; for training one per layer, or, with `recompute`,
 * only each layer's input, the rest being computed again in the backward. */
typedef struct gr_layer_acts {
    void *x, *norm1, *rstd1, *qkv, *q, *k, *v, *rstd_qk, *stat, *attn, *mid, *norm2, *rstd2,
        *gate_up, *mlp;
} gr_layer_acts;
typedef struct gr_acts {
    gr_layer_acts* layer; /* (layers); sampling: all point to the same buffers */
    void *delta, *x_last, *rstd_last;
    void* hidden; /* (n, c) real: after the final norm, what the head reads */
    /* backward */
    void *dx, *dnorm, *dqkv, *dq, *dk, *dv, *dattn, *dmlp, *dgate_up;
    void* dhidden; /* (n, c) real: written by the objective */
    /* The same from a second reader of `hidden`, added behind the final norm; NULL: none. Its
     * owner's memory. */
    const void* dhidden_more;
    void* scratch;
    bool train, recompute;
    int64_t max_rows;
    int max_keys;
} gr_acts;

/* max_rows: most rows of one call; max_keys: most keys a row may see. Two passes (arena.h). */
void gr_acts_layout(gr_acts* a, const gr_weights* w, int64_t max_rows, int max_keys, bool train,
                    bool recompute, gr_arena* host, gr_arena* device);

/* Fills a->hidden for all rows. Needs a->train when a backward follows. */
void gr_transformer_forward(const gr_weights* w, const gr_rows* rows, gr_acts* a);
/* From a->dhidden to grad (n_params, acc, +=); the head's own gradient was added by the objective. */
void gr_transformer_backward(const gr_weights* w, const gr_rows* rows, gr_acts* a, void* grad);
