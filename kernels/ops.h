/* ops.h - every operation a device can do, as one table of functions.
 *
 * Level 2. kernels/cpu/ is the specification, compiled for several dtypes and instruction sets.
 *
 * Argument order: device, outputs, inputs, shape from outer to inner, scalars, scratch.
 * `void*` tensors are `real` (the device's storage dtype) or `acc` (fp32, or fp64 on an F64
 * device), as each contract says. Tensors are dense and 64-byte aligned at their base.
 * Shape letters: n rows (tokens), c channels, m outputs, h query heads, hk KV heads, d head size,
 * f MLP width, v vocabulary, r predicted tokens. `dx` is the gradient of the loss by x. Gradients of
 * weights are added (+=); gradients of activations are written (=). n = 0 does nothing.
 *
 * Contract shared by all forward ops: a row's result depends on that row (and, in attention, on the
 * keys of its path in path order) alone; same bits in any batch, place or thread count. */
#pragma once
#include "kernels/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Every op, once. Struct fields, prototypes and tables come from these lists, so a device that
 * lacks an op does not link. */
#define GR_OP_LIST(X)     \
    X(embed_fwd)          \
    X(embed_bwd)          \
    X(rmsnorm_fwd)        \
    X(rmsnorm_bwd)        \
    X(qkv_rope_fwd)       \
    X(qkv_rope_bwd)       \
    X(swiglu_fwd)         \
    X(swiglu_bwd)         \
    X(matmul_pack)        \
    X(matmul)             \
    X(matmul_dw)          \
    X(kv_append)          \
    X(kv_copy)            \
    X(attention_paged)    \
    X(attention_tree)     \
    X(attention_tree_bwd) \
    X(head)               \
    X(policy_loss)        \
    X(head_loss)          \
    X(sumsq)              \
    X(adamw_f32)

/* Sizes in bytes that the host must know to plan memory. */
#define GR_SIZE_LIST(X)        \
    X(matmul_packed_bytes)     \
    X(matmul_dw_scratch)       \
    X(kv_page_bytes)           \
    X(attention_paged_scratch) \
    X(attention_tree_scratch)  \
    X(head_scratch)            \
    X(head_loss_scratch)

/* ---- pointwise ------------------------------------------------------------------------------- */

/* y[i] = table[token[i]].  y (n, c) real, table (v, c) real, token (n) int32. */
typedef void gr_embed_fwd_fn(gr_dev* dev, void* y, const void* table, const int32_t* token,
                             int64_t n, int c);
/* dtable[token[i]] += dy[i], in token order.  dtable (v, c) acc, dy (n, c) real. */
typedef void gr_embed_bwd_fn(gr_dev* dev, void* dtable, const void* dy, const int32_t* token,
                             int64_t n, int c);

/* sum = x + delta, rounded to real; y = sum / sqrt(mean(sum^2) + eps) * w.
 *   y (n, c) real; sum (n, c) real, may alias x; rstd (n) acc, kept for the backward, may be NULL
 *   x, delta (n, c) real; delta NULL: sum is not written and x is normalised; w (c) real
 * Zhang & Sennrich 2019, arXiv:1910.07467, eq. 4. */
typedef void gr_rmsnorm_fwd_fn(gr_dev* dev, void* y, void* sum, void* rstd, const void* x,
                               const void* delta, const void* w, int64_t n, int c, float eps);
/* dx = gradient through the norm + dsum (the residual's own gradient; NULL: none).
 *   dx (n, c) real, may alias dsum; dw (c) acc +=; dy, x (n, c) real (x: what was normalised) */
typedef void gr_rmsnorm_bwd_fn(gr_dev* dev, void* dx, void* dw, const void* dy, const void* x,
                               const void* w, const void* rstd, const void* dsum, int64_t n, int c);

/* Splits rows of qkv, normalises q and k per head if weights are given (Qwen3), rotates them
 * (Su et al. 2021, arXiv:2104.09864; pairs are (i, i + d/2), angle position *
 * gr_rope_scaled(theta^(-2i/d)), computed in double and rounded once).
 *   q (n, h, d), k, v (n, hk, d) real; rstd (n, h + hk) acc, NULL without norm weights
 *   qkv (n, (h + 2 hk) d) real; q_norm, k_norm (d) real or NULL; position (n) int32 */
/* Llama 3's longer contexts: wavelengths above original / low are stretched by `factor`, those below
 * original / high stay, and the inverse wavelengths between are mixed linearly. */
typedef struct gr_rope_scaling {
    double factor;    /* 0: none */
    double low, high; /* low < high: turns within the original context */
    int original;     /* tokens the model was first trained on */
} gr_rope_scaling;
typedef struct gr_heads {
    int h, hk, d;
    double theta;
    float eps; /* of the q/k norm */
    gr_rope_scaling scaling;
} gr_heads;
/* Radians per position of a pair whose unscaled value is `speed`. */
static inline double gr_rope_scaled(const gr_rope_scaling* s, double speed)
{
    if (s->factor == 0) return speed;
    const double turns = s->original * speed / 6.283185307179586;
    double mix = (turns - s->low) / (s->high - s->low);
    mix = mix < 0 ? 0 : mix > 1 ? 1 : mix;
    return speed * (mix + (1 - mix) / s->factor);
}
typedef void gr_qkv_rope_fwd_fn(gr_dev* dev, void* q, void* k, void* v, void* rstd, const void* qkv,
                                const void* q_norm, const void* k_norm, const int32_t* position,
                                int64_t n, const gr_heads* heads);
/* dqkv (n, (h + 2 hk) d) real written; dq_norm, dk_norm (d) acc += (NULL without norm). */
typedef void gr_qkv_rope_bwd_fn(gr_dev* dev, void* dqkv, void* dq_norm, void* dk_norm,
                                const void* dq, const void* dk, const void* dv, const void* qkv,
                                const void* q_norm, const void* k_norm, const void* rstd,
                                const int32_t* position, int64_t n, const gr_heads* heads);

/* y = silu(g) * u with [g | u] the halves of each row.  y (n, f) real, gu (n, 2 f) real. */
typedef void gr_swiglu_fwd_fn(gr_dev* dev, void* y, const void* gu, int64_t n, int f);
typedef void gr_swiglu_bwd_fn(gr_dev* dev, void* dgu, const void* dy, const void* gu, int64_t n,
                              int f);

/* ---- matrix products --------------------------------------------------------------------------
 * Weights are packed once per optimizer step into the layout the kernel reads; every output is one
 * fma chain over k, so a row has the same bits in any batch. Any m and k >= 1. In bf16 mode the
 * product goes through the library (oneDNN) and gives no such promise. */

/* Packs w (m, k) real row-major for y = x w^T; with `transpose` for y = x w, that is as the
 * (k, m) matrix w^T (the dgrad product). */
typedef void gr_matmul_pack_fn(gr_dev* dev, void* packed, const void* w, int m, int k,
                               bool transpose);
typedef size_t gr_matmul_packed_bytes_fn(const gr_dev* dev, int m, int k, bool transpose);
/* y = x w^T + bias.  y (n, m) real, x (n, k) real, packed from w (m, k), bias (m) real or NULL.
 * After matmul_pack(transpose) of w (m0, k0) call it with m = k0, k = m0. */
typedef void gr_matmul_fn(gr_dev* dev, void* y, const void* x, const void* packed, const void* bias,
                          int64_t n, int m, int k);
/* dw[j][i] += sum over rows, in order, of dy[row][j] x[row][i]; db[j] += sum of dy[row][j].
 *   dw (m, k) acc, db (m) acc or NULL, dy (n, m) real, x (n, k) real */
typedef void gr_matmul_dw_fn(gr_dev* dev, void* dw, void* db, const void* dy, const void* x,
                             int64_t n, int m, int k, void* scratch);
typedef size_t gr_matmul_dw_scratch_fn(const gr_dev* dev, int64_t n, int m, int k);

/* ---- attention --------------------------------------------------------------------------------
 * Exact rule, the same in both ops: scores of all keys of the path; their maximum; exponentials;
 * their sum; one fma chain per output over the keys in path order; one division. A GPU starts the
 * chain anew at fixed places of the path and adds the pieces in order. A row is therefore the same
 * bits whether its keys lie in pages or in a packed tree. */

#define GR_PAGE 16 /* tokens of a KV page */

/* The pool of one layer: `pages` pages of kv_page_bytes(h_k, d); the layout inside a page belongs to
 * the device (cpu: per head, K as [d][16], then V as [16][d]). */
typedef size_t gr_kv_page_bytes_fn(const gr_dev* dev, int hk, int d);
/* Writes rows of k and v (n, hk, d) real at slot[i] = page * GR_PAGE + offset. */
typedef void gr_kv_append_fn(gr_dev* dev, void* pool, const void* k, const void* v,
                             const int32_t* slot, int64_t n, int hk, int d);
/* Copies whole pages pair[2i] -> pair[2i+1] in every layer. */
typedef void gr_kv_copy_fn(gr_dev* dev, void* pool, const int32_t* pair, int64_t n, int layers,
                           int64_t pages, int hk, int d);

/* What a batch of queries reads, planned on the host (model/kv.h), where its arrays stay: plan rows
 * are query rows sorted so that rows sharing pages are neighbours. A unit is one page and the run of
 * plan rows that see it; a task is a run of at most GR_TASK_ROWS plan rows with its units in
 * ascending first_key. */
#define GR_TASK_ROWS 64
typedef struct gr_page_unit {
    int32_t page, first_key; /* path index of the page's first key */
    int32_t row_begin, row_end;
} gr_page_unit;
typedef struct gr_page_task {
    int32_t row_begin, row_end, unit_begin, unit_end, max_keys;
} gr_page_task;
typedef struct gr_page_plan {
    const int32_t* row;    /* plan row -> query row */
    const int32_t* n_keys; /* plan row -> keys it sees, itself included */
    const gr_page_unit* unit;
    const gr_page_task* task;
    int n_rows, n_units, n_tasks;
} gr_page_plan;
/* o, q (n, h, d) real; pool of this layer. scale is usually 1/sqrt(d). */
typedef void gr_attention_paged_fn(gr_dev* dev, void* o, const void* q, const void* pool,
                                   const gr_page_plan* plan, int h, int hk, int d, float scale,
                                   void* scratch);
typedef size_t gr_attention_paged_scratch_fn(const gr_dev* dev, int h, int hk, int d, int max_keys);

/* Packed tree in depth-first order: key j is visible to query i iff j <= i < subtree_end[j].
 *   o, q (n, h, d) real; k, v (n, hk, d) real; subtree_end (n) on the host
 *   stat (n, h, 2) acc: maximum and sum, for the backward of the same device
 *   max_path: most keys any query sees */
typedef void gr_attention_tree_fn(gr_dev* dev, void* o, void* stat, const void* q, const void* k,
                                  const void* v, const int32_t* subtree_end, int64_t n, int h,
                                  int hk, int d, float scale, int max_path, void* scratch);
typedef void gr_attention_tree_bwd_fn(gr_dev* dev, void* dq, void* dk, void* dv, const void* do_,
                                      const void* o, const void* stat, const void* q, const void* k,
                                      const void* v, const int32_t* subtree_end, int64_t n, int h,
                                      int hk, int d, float scale, int max_path, void* scratch);
typedef size_t gr_attention_tree_scratch_fn(const gr_dev* dev, int64_t n, int h, int hk, int d,
                                            int max_path);

/* ---- LM head, sampling, loss ------------------------------------------------------------------
 * Rows are *predicted tokens*: row i reads hidden[src[i]], so the children of a branch point share
 * one hidden row. Logits are acc and exist for a block of rows only. z = logits / temperature. */

typedef struct gr_sampling {
    float temperature; /* > 0; log-probs and entropy are those of z */
    float top_p;       /* 1: off */
    float min_p;       /* 0: off */
    int32_t top_k;     /* 0: off */
    bool greedy;       /* argmax of z, lowest id on ties */
} gr_sampling;

/* Either measures target[i] or samples token[i].
 *   logp, entropy (r) acc written (entropy may be NULL); log-prob under the full distribution
 *   token (r) int32 written when target == NULL, else NULL
 *   hidden (n, c) real; packed from the head weights (v, c)
 *   sampling (r): read per row. uid, index (r): Gumbel noise of vocabulary id x is Philox word x % 4
 *   of counter (index[i], x / 4) under key uid[i]; argmax of z - log(-log(u)), lowest id on ties. */
typedef void gr_head_fn(gr_dev* dev, void* logp, void* entropy, int32_t* token, const void* hidden,
                        const void* packed, const int32_t* src, const int32_t* target,
                        const gr_sampling* sampling, const uint64_t* uid, const int32_t* index,
                        int64_t r, int c, int v, void* scratch);
typedef size_t gr_head_scratch_fn(const gr_dev* dev, int64_t r, int c, int v);

typedef enum gr_loss_kind { GR_LOSS_POLICY, GR_LOSS_NLL } gr_loss_kind;
typedef enum gr_kl { GR_KL_NONE, GR_KL_K1, GR_KL_K2, GR_KL_K3 } gr_kl;
typedef struct gr_loss_params {
    gr_loss_kind kind;
    double clip_low, clip_high; /* ratio kept in [1 - clip_low, 1 + clip_high] */
    double dual_clip;           /* bound c on the ratio where A < 0; 0: off */
    gr_kl kl;
    double kl_coef, entropy_coef;
    float temperature;
} gr_loss_params;

/* Sums over rows in row order, as doubles on the device. Weighted sums carry w. */
typedef struct gr_loss_sums {
    double loss, weight, rows;           /* loss; sum of w; rows with w > 0 */
    double entropy, kl_old, kl_ref;      /* weighted; kl_old = k3 estimate against old_logp */
    double clip_low, clip_high;          /* weighted share whose gradient is cut on that side */
    double max_abs_dlogp, sum_abs_dlogp; /* |logp - old_logp| over all rows */
} gr_loss_sums;

/* The policy loss folded over a tree, per predicted token u with ratio q = exp(logp - old_logp):
 *   L = sum_u -[A+ min(q, 1 + clip_high) + A- max(q, 1 - clip_low)] + kl_coef W KL - entropy_coef W H
 * with A- max(...) replaced by A- min(max(...), dual_clip) if dual_clip > 0; KL on D = ref - logp is
 * k1 = -D, k2 = D^2/2, k3 = e^D - D - 1. Equals the flattened rows' PPO loss (Schulman et al. 2017,
 * arXiv:1707.06347, eq. 7; dual clip: Ye et al. 2020, arXiv:1912.09729, eq. 5) because it is linear
 * in the advantage on each sign. Ties at a bound keep the gradient. GR_LOSS_NLL: L = -A+ logp.
 *   dlogp, dentropy (r) acc: dL/dlogp, dL/dH.  sums: added to.
 *   logp, entropy, old_logp, ref_logp, a_pos, a_neg, w (r) acc; ref_logp may be NULL without KL */
typedef void gr_policy_loss_fn(gr_dev* dev, void* dlogp, void* dentropy, gr_loss_sums* sums,
                               const void* logp, const void* entropy, const void* old_logp,
                               const void* ref_logp, const void* a_pos, const void* a_neg,
                               const void* w, int64_t r, const gr_loss_params* params);

/* LM head, policy loss and their gradient in one pass over blocks of rows: logits are computed once.
 *   dhidden (n, c) real written, 0 where no row reads it; dw (v, c) acc +=
 *   logp, entropy (r) acc written; sums added to; the rest as in head and policy_loss
 *   packed, packed_t: head weights packed plain and with transpose */
typedef struct gr_loss_rows {
    const int32_t *src, *target;                         /* (r) */
    const void *old_logp, *ref_logp, *a_pos, *a_neg, *w; /* (r) acc */
} gr_loss_rows;
typedef void gr_head_loss_fn(gr_dev* dev, void* dhidden, void* dw, void* logp, void* entropy,
                             gr_loss_sums* sums, const void* hidden, const void* packed,
                             const void* packed_t, const gr_loss_rows* rows, int64_t r, int64_t n,
                             int c, int v, const gr_loss_params* params, void* scratch);
typedef size_t gr_head_loss_scratch_fn(const gr_dev* dev, int64_t r, int c, int v);

/* ---- optimizer -------------------------------------------------------------------------------- */

/* *out = sum of x^2 over fixed blocks of 4096, added in order.  out: one double on the device. */
typedef void gr_sumsq_fn(gr_dev* dev, double* out, const void* x, int64_t n);

/* One AdamW step with fp32 (acc) state on n values; gradients are multiplied by grad_scale first.
 *   master, m, v, grad (n) acc; weight (n) real: rounded copy of master, may equal master (F32, F64)
 *   step counts from 1. Loshchilov & Hutter 2019, arXiv:1711.05101, alg. 2. */
typedef struct gr_adamw {
    double lr, beta1, beta2, eps, weight_decay, grad_scale;
    int64_t step;
} gr_adamw;
typedef void gr_adamw_f32_fn(gr_dev* dev, void* master, void* weight, void* m, void* v,
                             const void* grad, int64_t n, const gr_adamw* params);

struct gr_ops {
#define X(op) gr_##op##_fn* op;
    GR_OP_LIST(X)
    GR_SIZE_LIST(X)
#undef X
};

#ifdef __cplusplus
}
#endif
