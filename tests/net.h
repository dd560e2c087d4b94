/* net.h - a small network with everything that trains it, and random forests for it to read.
 * Shared by the tests of model/. */
#pragma once
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/objective.h"
#include "model/optimizer.h"

#define ASSERT_OK(call)                                                \
    do {                                                               \
        gr_status got_ = (call);                                       \
        if (got_ != GR_OK) fail_msg("%s: %s", #call, gr_last_error()); \
    } while (0)

/* ---- randomness ------------------------------------------------------------------------------ */

typedef struct rng {
    uint64_t key, at;
} rng;
static inline double uniform(rng* r) { return gr_uniform(r->key, r->at++); }
static inline double between(rng* r, double a, double b) { return a + (b - a) * uniform(r); }
static inline int below(rng* r, int n) { return (int)(uniform(r) * n); }

/* ---- network --------------------------------------------------------------------------------- */

typedef struct net_options {
    gr_model_config config;
    gr_dtype dtype;
    int threads;
    bool recompute, eval; /* eval: gr_objective_logp instead of training */
    int max_tokens;
} net_options;

typedef struct net {
    gr_dev dev;
    gr_arena host, device, work; /* work: the objective's device memory */
    gr_weights w;
    gr_optimizer opt;
    gr_objective o;
} net;

static inline void net_layout(net* t, const net_options* s)
{
    gr_weights_layout(&t->w, &t->dev, &s->config, !s->eval, &t->host, &t->device);
    if (!s->eval) gr_optimizer_layout(&t->opt, &t->w, &t->device);
    gr_objective_layout(&t->o, &t->w, s->max_tokens, s->config.max_context, !s->eval, s->recompute,
                        &t->host, &t->work);
}

static inline void net_take(net* t, gr_arena* a, bool host)
{
    void* block = NULL;
    a->cap = a->used;
    a->used = a->peak = 0;
    if (host) {
        block = calloc(1, a->cap);
    } else {
        ASSERT_OK(gr_dev_alloc(&t->dev, &block, a->cap));
    }
    a->base = block;
}

static inline void net_open(net* t, const net_options* s)
{
    memset(t, 0, sizeof *t);
    gr_dev_options dev = {.name = "cpu", .dtype = s->dtype, .threads = s->threads};
    ASSERT_OK(gr_dev_open(&t->dev, &dev));
    net_layout(t, s);
    net_take(t, &t->host, true);
    net_take(t, &t->device, false);
    net_take(t, &t->work, false);
    net_layout(t, s);
    gr_weights_init(&t->w, 7);
}

static inline void net_close(net* t)
{
    free(t->host.base);
    gr_dev_free(&t->dev, t->device.base);
    gr_dev_free(&t->dev, t->work.base);
    gr_dev_close(&t->dev);
}

static inline gr_model_config small_config(void)
{
    return (gr_model_config){
        .layers = 2,
        .width = 24,
        .heads = 4,
        .kv_heads = 2,
        .head_dim = 8,
        .mlp = 40,
        .vocab = 37,
        .max_context = 128,
        .rope_theta = 10000,
        .norm_eps = 1e-6f,
        .tied = true,
    };
}

/* Initial weights make near-uniform predictions; larger ones exercise every curve. */
static inline void net_randomise(net* t, uint64_t key, double scale)
{
    rng r = {.key = key};
    for (int i = 0; i < t->w.n_tensors; i++) {
        const gr_tensor* x = &t->w.tensor[i];
        for (int64_t k = 0; k < (int64_t)x->rows * x->cols; k++) {
            double centre = x->rows == 1 && strstr(x->name, "norm") != NULL ? 1 : 0;
            double v = centre + scale * between(&r, -1, 1);
            gr_dev_write_acc(&t->dev, gr_acc_at(&t->dev, t->w.master, x->offset + k), &v, 1);
        }
    }
    gr_weights_publish(&t->w);
}

static inline double* net_read(net* t, const void* flat)
{
    double* x = malloc((size_t)t->w.n_params * sizeof *x);
    gr_dev_read_acc(&t->dev, x, flat, t->w.n_params);
    return x;
}

/* ---- forests --------------------------------------------------------------------------------- */

#define MAX_TOKENS 2048
typedef struct forest {
    gr_batch b;
    int32_t token[MAX_TOKENS], position[MAX_TOKENS], subtree_end[MAX_TOKENS];
    int32_t src[MAX_TOKENS], target[MAX_TOKENS];
    double old_logp[MAX_TOKENS], ref_logp[MAX_TOKENS];
    double a_pos[MAX_TOKENS], a_neg[MAX_TOKENS], w[MAX_TOKENS];
    int32_t parent[MAX_TOKENS]; /* token before on its path; -1 at a root */
    int32_t row[MAX_TOKENS];    /* that predicts the token; -1: not trained */
    struct {
        int end; /* last token */
        double advantage, weight;
    } leaf[MAX_TOKENS];
    int n_leaves;
} forest;

static inline forest* forest_new(void)
{
    forest* f = calloc(1, sizeof *f);
    f->b = (gr_batch){
        .token = f->token,
        .position = f->position,
        .subtree_end = f->subtree_end,
        .src = f->src,
        .target = f->target,
        .old_logp = f->old_logp,
        .ref_logp = f->ref_logp,
        .a_pos = f->a_pos,
        .a_neg = f->a_neg,
        .w = f->w,
    };
    return f;
}

/* Appends a token after `parent`; trained: with a row of coefficients 0. Returns its index. */
static inline int forest_add(forest* f, int parent, int token, bool trained)
{
    int i = f->b.n_tokens++;
    GR_ASSERT(i < MAX_TOKENS);
    f->token[i] = token;
    f->parent[i] = parent;
    f->position[i] = parent < 0 ? 0 : f->position[parent] + 1;
    f->b.max_path = GR_MAX(f->b.max_path, f->position[i] + 1);
    for (int j = i; j >= 0; j = f->parent[j]) f->subtree_end[j] = i + 1;
    f->row[i] = -1;
    if (parent < 0 || !trained) return i;
    int u = f->row[i] = f->b.n_rows++;
    f->src[u] = parent;
    f->target[u] = token;
    f->a_pos[u] = f->a_neg[u] = f->w[u] = 0;
    return i;
}

/* Some trained and some observed tokens after `parent`. */
static inline int forest_grow(forest* f, rng* r, int parent, int vocab, int max_span)
{
    int n_action = 1 + below(r, max_span), n_obs = below(r, max_span);
    for (int i = 0; i < n_action; i++) parent = forest_add(f, parent, below(r, vocab), true);
    for (int i = 0; i < n_obs; i++) parent = forest_add(f, parent, below(r, vocab), false);
    return parent;
}

/* A leaf's loss reaches every row of its path. */
static inline void forest_credit(forest* f, int end, double advantage, double weight)
{
    int l = f->n_leaves++;
    f->leaf[l].end = end;
    f->leaf[l].advantage = advantage;
    f->leaf[l].weight = weight;
    for (int i = end; i >= 0; i = f->parent[i]) {
        if (f->row[i] < 0) continue;
        f->a_pos[f->row[i]] += weight * fmax(advantage, 0);
        f->a_neg[f->row[i]] += weight * fmin(advantage, 0);
        f->w[f->row[i]] += weight;
    }
}

static inline void forest_branch(forest* f, rng* r, int parent, int vocab, int depth, int max_span)
{
    int end = forest_grow(f, r, parent, vocab, max_span);
    int n_children = depth == 0 ? 0 : below(r, 4);
    for (int i = 0; i < n_children; i++) forest_branch(f, r, end, vocab, depth - 1, max_span);
    if (n_children == 0) forest_credit(f, end, between(r, -1, 1), between(r, 0.01, 0.1));
}

static inline forest* forest_random(rng* r, int vocab, int n_trees, int depth, int max_span)
{
    forest* f = forest_new();
    for (int t = 0; t < n_trees; t++) {
        int root = forest_add(f, -1, below(r, vocab), false);
        int n_prompt = below(r, max_span);
        for (int i = 0; i < n_prompt; i++) root = forest_add(f, root, below(r, vocab), false);
        for (int i = 0; i < 3; i++) forest_branch(f, r, root, vocab, depth, max_span);
    }
    return f;
}

/* The same leaves as rows of their own: every path is a tree without forks. */
static inline forest* forest_flatten(const forest* f)
{
    forest* flat = forest_new();
    for (int l = 0; l < f->n_leaves; l++) {
        int path[MAX_TOKENS], n = 0, last = -1;
        for (int i = f->leaf[l].end; i >= 0; i = f->parent[i]) path[n++] = i;
        while (n-- > 0) {
            int from = path[n], u = f->row[from];
            last = forest_add(flat, last, f->token[from], u >= 0);
            if (u < 0) continue;
            flat->old_logp[flat->row[last]] = f->old_logp[u];
            flat->ref_logp[flat->row[last]] = f->ref_logp[u];
        }
        forest_credit(flat, last, f->leaf[l].advantage, f->leaf[l].weight);
    }
    return flat;
}

/* Old log-probs that put ratios on every piece of the loss, away from its kinks (clip 0.2 and 0.3,
 * dual clip 3), and reference log-probs nearby. */
static inline void forest_set_policies(forest* f, net* t, rng* r)
{
    static const double ratio[] = {0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 2.5, 3.5};
    const gr_loss_params p = {.kind = GR_LOSS_NLL, .temperature = 1};
    gr_loss_sums sums = {0};
    gr_optimizer_zero_grad(&t->opt);
    ASSERT_OK(gr_objective_step(&t->o, &f->b, &p, t->opt.grad, &sums));
    for (int u = 0; u < f->b.n_rows; u++) {
        f->old_logp[u] = t->o.host_logp[u] - log(ratio[below(r, GR_COUNT(ratio))]);
        f->ref_logp[u] = t->o.host_logp[u] + between(r, -0.5, 0.5);
    }
}
