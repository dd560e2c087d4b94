/* woods.h - some trees with credit whose tokens are all different, so that what a pack holds can be
 * traced to its tree. Shared by the tests of packing and of values. */
#pragma once
#include "host/pack.h"
#include "tests/grow.h"
#include "tests/net.h"

static const toy lively = {.p_up = 0.5,
                           .goal = 2,
                           .horizon = 8,
                           .p_end = 0.06,
                           .p_error = 0.05,
                           .p_cut = 0.03,
                           .reward_step = 0.1,
                           .max_action = 4,
                           .max_obs = 3};

static const char* const strategies[][2] = {{"flat", ""},
                                            {"patr", "interval=2 alpha=0.1"},
                                            {"patr_retro", "restarts=3"},
                                            {"tree_grpo", "n=3 l=2"}};

#define TREES  3
#define TOKENS 16384
typedef struct woods {
    gr_tree tree[TREES];
    gr_credit credit[TREES];
    const gr_credit* member[TREES];
    int n_tokens;
    /* per token */
    int16_t tree_of[TOKENS], node_of[TOKENS], index_of[TOKENS];
    double old_logp[TOKENS], logp[TOKENS], ref_logp[TOKENS], entropy[TOKENS];
} woods;

/* Gives every token its own number, so that a row is known by its target. */
static inline void number_tokens(woods* f, dice* d)
{
    static const double ratio[] = {0.4, 0.7, 0.9, 1.0, 1.1, 1.25, 1.4, 2.5, 3.5, 5};
    f->n_tokens = 0;
    for (int k = 0; k < TREES; k++) {
        gr_tree* t = &f->tree[k];
        for (int i = 0; i < t->n_nodes; i++) {
            for (int j = 0; j < gr_node_tokens(t, i); j++) {
                int u = f->n_tokens++;
                assert_true(u < TOKENS);
                t->token[t->token_begin[i] + j] = u;
                f->tree_of[u] = (int16_t)k, f->node_of[u] = (int16_t)i, f->index_of[u] = (int16_t)j;
                f->old_logp[u] = t->logp[t->token_begin[i] + j];
                f->logp[u] = f->old_logp[u] + log(ratio[choose(d, GR_COUNT(ratio))]);
                f->ref_logp[u] = f->logp[u] + chance(d) - 0.5;
                f->entropy[u] = 2 * chance(d);
            }
        }
    }
}

static const struct {
    const gr_estimator* estimator;
    const char* settings;
} credits[] = {{&gr_estimator_grpo, ""},
               {&gr_estimator_dr_grpo, ""},
               {&gr_estimator_rloo, ""},
               {&gr_estimator_tree_grpo, ""},
               {&gr_estimator_sibling, ""},
               {&gr_estimator_gigpo, ""},
               {&gr_estimator_gae, ""},
               {&gr_estimator_gae, "level=token bootstrap=true"},
               {&gr_estimator_gae, "level=bi_level"}};

/* Credit of any kind; what is read is answered with any values. */
static inline void credit_all(woods* f, uint64_t key)
{
    const gr_estimator* e = credits[key % GR_COUNT(credits)].estimator;
    void* settings = settings_of(e->block, credits[key % GR_COUNT(credits)].settings);
    for (int k = 0; k < TREES; k++) {
        gr_credit* c = &f->credit[k];
        gr_credit_begin(c, &f->tree[k], e, settings);
        for (int i = 0; i < c->n_reads; i++) c->read[i].value = gr_uniform(key + k, (uint64_t)i);
        gr_credit_finish(c, e, settings, 1e-6);
        f->member[k] = c;
    }
    gr_credit_normalise(f->credit, TREES);
    free(settings);
}

static inline void grow_woods(woods* f, const toy* world, uint64_t key)
{
    dice d = {.key = key};
    for (int k = 0; k < TREES; k++) {
        const char* const* s = strategies[choose(&d, GR_COUNT(strategies))];
        grow_named(&f->tree[k], world, s[0], s[1], "random", 1 + choose(&d, 5), 0, 1000 * key + k);
    }
    number_tokens(f, &d);
    credit_all(f, key);
}

static inline void free_woods(woods* f)
{
    for (int k = 0; k < TREES; k++) {
        gr_tree_free(&f->tree[k]);
        gr_credit_free(&f->credit[k]);
    }
}

/* Tokens that predict token u, from the tree. */
static inline int context_of(const woods* f, int u, int32_t* out)
{
    const gr_tree* t = &f->tree[f->tree_of[u]];
    int node = f->node_of[u];
    int n = gr_tree_path_tokens(t, t->context[node], out, 1024);
    for (int j = 0; j < f->index_of[u]; j++) out[n++] = t->token[t->token_begin[node] + j];
    return n;
}

static const gr_config_loss losses[] = {
    {.weighting = GR_WEIGHT_PER_LEAF, .aggregation = GR_AGG_SEQ_MEAN_TOKEN_MEAN},
    {.weighting = GR_WEIGHT_PER_LEAF, .aggregation = GR_AGG_TOKEN_MEAN},
    {.weighting = GR_WEIGHT_PER_LEAF, .aggregation = GR_AGG_CONSTANT, .length = 50},
    {.weighting = GR_WEIGHT_SPLIT, .aggregation = GR_AGG_SEQ_MEAN_TOKEN_MEAN},
    {.weighting = GR_WEIGHT_SPLIT, .aggregation = GR_AGG_TOKEN_MEAN},
    {.weighting = GR_WEIGHT_SPLIT, .aggregation = GR_AGG_CONSTANT, .length = 50},
    {.weighting = GR_WEIGHT_INV_SQRT, .aggregation = GR_AGG_SEQ_MEAN_TOKEN_MEAN},
    {.weighting = GR_WEIGHT_INV_SQRT, .aggregation = GR_AGG_TOKEN_MEAN},
    {.weighting = GR_WEIGHT_INV_SQRT, .aggregation = GR_AGG_CONSTANT, .length = 50},
    {.weighting = GR_WEIGHT_ONCE_MEAN, .aggregation = GR_AGG_TOKEN_MEAN},
};
