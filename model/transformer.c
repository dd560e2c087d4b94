/* transformer.c - the only forward and backward: a pre-norm decoder as in Llama and Qwen.
 *
 *     x ── norm1 ── qkv ── heads, rotary ── attention ── out ──(+ x)── mid
 *     mid ── norm2 ── gate|up ── SwiGLU ── down ──(+ mid)── next x
 *
 * Every addition to the residual stream is fused with the norm that follows it, so a layer begins
 * with its `x` and `norm1` in place and leaves `delta`, which the next layer's first norm adds.
 * The backward of each part stands beside its forward and reads in the opposite order.
 *
 * Shapes: n rows, c width, h heads, hk KV heads, d head size, f MLP width; all activations are
 * `real` except the statistics rstd* and stat, which are `acc`. Nothing here allocates. */
#include "model/transformer.h"

#include <math.h>

/* ---- memory ---------------------------------------------------------------------------------- */

typedef struct space {
    gr_arena* arena;
    const gr_dev* dev;
    int64_t n;
} space;

static void* real(const space* s, int64_t cols)
{
    return gr_arena_push(s->arena, (size_t)(s->n * cols), s->dev->real_bytes);
}

static void* acc(const space* s, int64_t cols)
{
    return gr_arena_push(s->arena, (size_t)(s->n * cols), s->dev->acc_bytes);
}

/* All of a layer's activations but its input x. Sampling keeps nothing for a backward: the residual
 * stream is updated in place and the two norms share a buffer. */
static void layout_layer(gr_layer_acts* A, const space* s, const gr_model_config* c, bool train)
{
    int64_t q = (int64_t)c->heads * c->head_dim, kv = (int64_t)c->kv_heads * c->head_dim;
    A->norm1 = real(s, c->width);
    A->rstd1 = acc(s, train);
    A->qkv = real(s, gr_qkv_width(c)); /* (n, (h + 2 hk) d) */
    A->q = real(s, q);                 /* (n, h, d) */
    A->k = real(s, kv);                /* (n, hk, d) */
    A->v = real(s, kv);
    A->rstd_qk = acc(s, c->qk_norm ? c->heads + c->kv_heads : 0);
    A->stat = acc(s, 2 * c->heads); /* (n, h, 2) */
    A->attn = real(s, q);
    A->mid = train ? real(s, c->width) : A->x;
    A->norm2 = train ? real(s, c->width) : A->norm1;
    A->rstd2 = acc(s, train);
    A->gate_up = real(s, 2 * (int64_t)c->mlp); /* (n, 2 f) */
    A->mlp = real(s, c->mlp);                  /* (n, f) */
}

static void layout_backward(gr_acts* a, const space* s, const gr_model_config* c)
{
    int64_t q = (int64_t)c->heads * c->head_dim, kv = (int64_t)c->kv_heads * c->head_dim;
    a->dx = real(s, c->width);
    a->dnorm = real(s, c->width);
    a->dqkv = real(s, gr_qkv_width(c));
    a->dq = real(s, q);
    a->dk = real(s, kv);
    a->dv = real(s, kv);
    a->dattn = real(s, q);
    a->dmlp = real(s, c->mlp);
    a->dgate_up = real(s, 2 * (int64_t)c->mlp);
    a->dhidden = real(s, c->width);
}

/* Bytes that the hungriest op wants; one buffer serves all, because ops run one after another. */
static size_t scratch_bytes(const gr_acts* a, gr_dev* dev, const gr_model_config* c)
{
    const gr_ops* op = dev->ops;
    int h = c->heads, hk = c->kv_heads, d = c->head_dim;
    int64_t n = a->max_rows;
    size_t bytes = op->attention_tree_scratch(dev, n, h, hk, d, a->max_keys);
    if (!a->train) {
        bytes = GR_MAX(bytes, op->attention_paged_scratch(dev, h, hk, d, a->max_keys));
        return bytes;
    }
    bytes = GR_MAX(bytes, op->matmul_dw_scratch(dev, n, gr_qkv_width(c), c->width));
    bytes = GR_MAX(bytes, op->matmul_dw_scratch(dev, n, c->width, h * d));
    bytes = GR_MAX(bytes, op->matmul_dw_scratch(dev, n, 2 * c->mlp, c->width));
    bytes = GR_MAX(bytes, op->matmul_dw_scratch(dev, n, c->width, c->mlp));
    return bytes;
}

void gr_acts_layout(gr_acts* a, const gr_weights* w, int64_t max_rows, int max_keys, bool train,
                    bool recompute, gr_arena* host, gr_arena* device)
{
    const gr_model_config* c = &w->config;
    space s = {.arena = device, .dev = w->dev, .n = max_rows};
    *a = (gr_acts){.train = train,
                   .recompute = train && recompute,
                   .max_rows = max_rows,
                   .max_keys = max_keys};
    a->layer = GR_PUSH(host, gr_layer_acts, c->layers);
    gr_layer_acts own = {0}; /* carried over: layers share what is not laid out anew */
    for (int l = 0; l < c->layers; l++) {
        if (l == 0 || train) own.x = real(&s, c->width);
        if (l == 0 || (train && !recompute)) layout_layer(&own, &s, c, train);
        if (a->layer != NULL) a->layer[l] = own;
    }
    a->delta = real(&s, c->width);
    a->x_last = train ? real(&s, c->width) : own.x;
    a->rstd_last = acc(&s, train);
    a->hidden = real(&s, c->width);
    if (train) layout_backward(a, &s, c);
    a->scratch = gr_arena_push(device, scratch_bytes(a, w->dev, c), 1);
}

/* ---- one layer ------------------------------------------------------------------------------- */

/* What the parts below share. */
typedef struct pass {
    gr_dev* dev;
    const gr_ops* op;
    const gr_model_config* c;
    const gr_weights* w;
    const gr_rows* rows;
    gr_acts* a;
    void* grad; /* backward only */
    gr_heads heads;
    float scale; /* of attention scores */
} pass;

static pass begin_pass(const gr_weights* w, const gr_rows* rows, gr_acts* a, void* grad)
{
    const gr_model_config* c = &w->config;
    GR_ASSERT(rows->n <= a->max_rows, "%lld rows, room for %lld", (long long)rows->n,
              (long long)a->max_rows);
    GR_ASSERT((rows->pages != NULL) != (rows->subtree_end != NULL));
    GR_ASSERT(rows->max_path <= a->max_keys, "path of %d, room for %d", rows->max_path,
              a->max_keys);
    return (pass){
        .dev = w->dev,
        .op = w->dev->ops,
        .c = c,
        .w = w,
        .rows = rows,
        .a = a,
        .grad = grad,
        .heads = {.h = c->heads,
                  .hk = c->kv_heads,
                  .d = c->head_dim,
                  .theta = c->rope_theta,
                  .eps = c->norm_eps,
                  .scaling = c->rope_scaling},
        .scale = (float)(1 / sqrt((double)c->head_dim)),
    };
}

/* The tensor at `offset` of the values or of the gradient; NULL where the model has none. */
static const void* value(const pass* p, int64_t offset)
{
    return offset < 0 ? NULL : gr_real_at(p->dev, p->w->value, offset);
}
static void* gradient(const pass* p, int64_t offset)
{
    return offset < 0 ? NULL : gr_acc_at(p->dev, p->grad, offset);
}

/* y = x w^T + bias */
static void project(const pass* p, void* y, const void* x, const gr_packed* w, const void* bias,
                    int m, int k)
{
    p->op->matmul(p->dev, y, x, w->fwd, bias, p->rows->n, m, k);
}

/* dx = dy w;  dw += dy^T x;  db += column sums of dy */
static void project_bwd(const pass* p, void* dx, int64_t dw, int64_t db, const void* dy,
                        const void* x, const gr_packed* w, int m, int k)
{
    p->op->matmul(p->dev, dx, dy, w->bwd, NULL, p->rows->n, k, m);
    p->op->matmul_dw(p->dev, gradient(p, dw), gradient(p, db), dy, x, p->rows->n, m, k,
                     p->a->scratch);
}

/* Rows see the keys of their path: in the pages of layer l, where their own go first, or in the
 * packed tree. */
static void attend(const pass* p, const gr_layer_acts* A, int l)
{
    const gr_rows* r = p->rows;
    int h = p->c->heads, hk = p->c->kv_heads, d = p->c->head_dim;
    if (r->subtree_end != NULL) {
        p->op->attention_tree(p->dev, A->attn, A->stat, A->q, A->k, A->v, r->subtree_end, r->n, h,
                              hk, d, p->scale, r->max_path, p->a->scratch);
        return;
    }
    size_t layer_bytes = (size_t)r->pool_pages * p->op->kv_page_bytes(p->dev, hk, d);
    void* pool = (char*)r->pool + (size_t)l * layer_bytes;
    p->op->kv_append(p->dev, pool, A->k, A->v, r->slot, r->n, hk, d);
    p->op->attention_paged(p->dev, A->attn, A->q, pool, r->pages, h, hk, d, p->scale,
                           p->a->scratch);
}

/* x, norm1 -> attn, delta */
static void attention_fwd(const pass* p, const gr_layer_acts* A, int l)
{
    const gr_layer_offsets* at = &p->w->layer[l];
    const gr_packed_layer* w = &p->w->packed[l];
    int c = p->c->width, hd = p->c->heads * p->c->head_dim;
    project(p, A->qkv, A->norm1, &w->qkv, value(p, at->qkv_bias), gr_qkv_width(p->c), c);
    p->op->qkv_rope_fwd(p->dev, A->q, A->k, A->v, A->rstd_qk, A->qkv, value(p, at->q_norm),
                        value(p, at->k_norm), p->rows->position, p->rows->n, &p->heads);
    attend(p, A, l);
    project(p, p->a->delta, A->attn, &w->attn_out, NULL, c, hd);
}

/* dx (gradient of delta) -> dnorm (gradient of norm1) */
static void attention_bwd(const pass* p, const gr_layer_acts* A, int l)
{
    const gr_layer_offsets* at = &p->w->layer[l];
    const gr_packed_layer* w = &p->w->packed[l];
    const gr_rows* r = p->rows;
    gr_acts* a = p->a;
    int c = p->c->width, h = p->c->heads, hk = p->c->kv_heads, d = p->c->head_dim;
    project_bwd(p, a->dattn, at->attn_out, -1, a->dx, A->attn, &w->attn_out, c, h * d);
    p->op->attention_tree_bwd(p->dev, a->dq, a->dk, a->dv, a->dattn, A->attn, A->stat, A->q, A->k,
                              A->v, r->subtree_end, r->n, h, hk, d, p->scale, r->max_path,
                              a->scratch);
    p->op->qkv_rope_bwd(p->dev, a->dqkv, gradient(p, at->q_norm), gradient(p, at->k_norm), a->dq,
                        a->dk, a->dv, A->qkv, value(p, at->q_norm), value(p, at->k_norm),
                        A->rstd_qk, r->position, r->n, &p->heads);
    project_bwd(p, a->dnorm, at->qkv, at->qkv_bias, a->dqkv, A->norm1, &w->qkv, gr_qkv_width(p->c),
                c);
}

/* norm2 -> mlp. The down projection is not part of it: a recomputed layer does not need it. */
static void mlp_fwd(const pass* p, const gr_layer_acts* A, int l)
{
    int c = p->c->width, f = p->c->mlp;
    project(p, A->gate_up, A->norm2, &p->w->packed[l].gate_up, NULL, 2 * f, c);
    p->op->swiglu_fwd(p->dev, A->mlp, A->gate_up, p->rows->n, f);
}

/* dx (gradient of delta) -> dnorm (gradient of norm2) */
static void mlp_bwd(const pass* p, const gr_layer_acts* A, int l)
{
    const gr_layer_offsets* at = &p->w->layer[l];
    const gr_packed_layer* w = &p->w->packed[l];
    gr_acts* a = p->a;
    int c = p->c->width, f = p->c->mlp;
    project_bwd(p, a->dmlp, at->down, -1, a->dx, A->mlp, &w->down, c, f);
    p->op->swiglu_bwd(p->dev, a->dgate_up, a->dmlp, A->gate_up, p->rows->n, f);
    project_bwd(p, a->dnorm, at->gate_up, -1, a->dgate_up, A->norm2, &w->gate_up, 2 * f, c);
}

/* y = norm(x + delta) with the weights at offset `w`, the sum kept in `sum`; delta NULL: norm(x) */
static void norm(const pass* p, void* y, void* sum, void* rstd, const void* x, const void* delta,
                 int64_t w)
{
    p->op->rmsnorm_fwd(p->dev, y, sum, rstd, x, delta, value(p, w), p->rows->n, p->c->width,
                       p->c->norm_eps);
}

/* Adds the gradient of what was normalised, x, to the residual stream's dx. */
static void norm_bwd(const pass* p, const void* dy, const void* x, const void* rstd, int64_t w)
{
    void* dx = p->a->dx;
    p->op->rmsnorm_bwd(p->dev, dx, gradient(p, w), dy, x, value(p, w), rstd, dx, p->rows->n,
                       p->c->width);
}

/* x, norm1 -> everything up to mlp */
static void layer_fwd(const pass* p, int l)
{
    const gr_layer_acts* A = &p->a->layer[l];
    attention_fwd(p, A, l);
    norm(p, A->norm2, A->mid, A->rstd2, A->x, p->a->delta, p->w->layer[l].mlp_norm);
    mlp_fwd(p, A, l);
}

/* dx by the next layer's x -> dx by this layer's x. The residual stream passes dx on unchanged;
 * each branch adds its own part through its norm. */
static void layer_bwd(const pass* p, int l)
{
    const gr_layer_acts* A = &p->a->layer[l];
    const gr_layer_offsets* at = &p->w->layer[l];
    mlp_bwd(p, A, l);
    norm_bwd(p, p->a->dnorm, A->mid, A->rstd2, at->mlp_norm);
    attention_bwd(p, A, l);
    norm_bwd(p, p->a->dnorm, A->x, A->rstd1, at->attn_norm);
}

/* ---- the whole network ----------------------------------------------------------------------- */

void gr_transformer_forward(const gr_weights* w, const gr_rows* rows, gr_acts* a)
{
    pass p = begin_pass(w, rows, a, NULL);
    int c = w->config.width, f = w->config.mlp, layers = w->config.layers;
    gr_layer_acts* A = a->layer;
    p.op->embed_fwd(p.dev, A->x, value(&p, w->embed), rows->token, rows->n, c);
    norm(&p, A->norm1, NULL, A->rstd1, A->x, NULL, w->layer[0].attn_norm);
    for (int l = 0; l < layers; l++, A++) {
        layer_fwd(&p, l);
        project(&p, a->delta, A->mlp, &w->packed[l].down, NULL, c, f);
        if (l + 1 < layers) {
            norm(&p, A[1].norm1, A[1].x, A[1].rstd1, A->mid, a->delta, w->layer[l + 1].attn_norm);
        } else {
            norm(&p, a->hidden, a->x_last, a->rstd_last, A->mid, a->delta, w->final_norm);
        }
    }
}

void gr_transformer_backward(const gr_weights* w, const gr_rows* rows, gr_acts* a, void* grad)
{
    GR_ASSERT(a->train && rows->subtree_end != NULL);
    pass p = begin_pass(w, rows, a, grad);
    int c = w->config.width, layers = w->config.layers;
    p.op->rmsnorm_bwd(p.dev, a->dx, gradient(&p, w->final_norm), a->dhidden, a->x_last,
                      value(&p, w->final_norm), a->rstd_last, NULL, rows->n, c);
    if (a->dhidden_more !=
        NULL) { /* the norm's backward is linear: one reader's after the other's */
        p.op->rmsnorm_bwd(p.dev, a->dx, gradient(&p, w->final_norm), a->dhidden_more, a->x_last,
                          value(&p, w->final_norm), a->rstd_last, a->dx, rows->n, c);
    }
    for (int l = layers - 1; l >= 0; l--) {
        if (a->recompute && l + 1 < layers) { /* the last layer's are still there */
            const gr_layer_acts* A = &a->layer[l];
            norm(&p, A->norm1, NULL, A->rstd1, A->x, NULL, w->layer[l].attn_norm);
            layer_fwd(&p, l);
        }
        layer_bwd(&p, l);
    }
    p.op->embed_bwd(p.dev, gradient(&p, w->embed), a->dx, rows->token, rows->n, c);
}
