/* advantage.c - from a finished tree to credit: leaves, returns, multiplicities, one estimator. */
#include "host/advantage/advantage.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const gr_estimator* const gr_estimators[] = {
    &gr_estimator_grpo,      &gr_estimator_dr_grpo, &gr_estimator_rloo,
    &gr_estimator_tree_grpo, &gr_estimator_sibling, &gr_estimator_gigpo,
    &gr_estimator_gae,       &gr_estimator_hae,     NULL,
};

const gr_estimator* gr_estimator_find(const char* name)
{
    for (int i = 0; gr_estimators[i] != NULL; i++) {
        if (strcmp(gr_estimators[i]->name, name) == 0) return gr_estimators[i];
    }
    return NULL;
}

static void reserve(gr_credit* c, int64_t n_leaves, int64_t n_nodes)
{
    int64_t cap = c->leaf_cap;
    c->path_begin = gr_array_reserve(c->path_begin, &cap, n_leaves + 1, sizeof *c->path_begin);
    cap = c->leaf_cap;
    c->leaf = gr_array_reserve(c->leaf, &cap, n_leaves + 1, sizeof *c->leaf);
    cap = c->leaf_cap;
    c->ret = gr_array_reserve(c->ret, &cap, n_leaves + 1, sizeof *c->ret);
    cap = c->leaf_cap;
    c->split = gr_array_reserve(c->split, &cap, n_leaves + 1, sizeof *c->split);
    cap = c->leaf_cap;
    c->adv = gr_array_reserve(c->adv, &cap, n_leaves + 1, sizeof *c->adv);
    c->leaf_cap = cap;
    GR_RESERVE(c->node_adv, c->node_cap, n_nodes);
}

static bool all_zero(const double* x, int n)
{
    for (int i = 0; i < n; i++) {
        if (x[i] != 0) return false;
    }
    return true;
}

/* Where each leaf's turns begin in path_adv, all of them 0. */
static void lay_out_paths(gr_credit* c)
{
    c->path_begin[0] = 0;
    for (int l = 0; l < c->n_leaves; l++) {
        c->path_begin[l + 1] = c->path_begin[l] + c->tree->turn[c->leaf[l]];
    }
    int64_t n = c->path_begin[c->n_leaves] * c->n_kinds;
    GR_RESERVE(c->path_adv, c->path_cap, n);
    for (int64_t i = 0; i < n; i++) c->path_adv[i] = 0;
    if (c->n_kinds == 1) return;
    GR_RESERVE(c->kinds, c->kinds_cap, c->tree->n_tokens);
    memset(c->kinds, 0, (size_t)c->tree->n_tokens);
}

static void begin_values(gr_credit* c, const gr_estimator* e, const void* settings)
{
    c->n_heads = e->n_heads != NULL ? e->n_heads(settings) : 0;
    c->n_reads = c->n_probes = 0;
    c->n_targets = 0;
    if (c->n_heads == 0) return;
    GR_ASSERT(c->n_heads <= GR_HEADS_MAX);
    int64_t n = c->tree->n_tokens * c->n_heads;
    GR_RESERVE(c->read_of, c->read_of_cap, n);
    for (int64_t i = 0; i < n; i++) c->read_of[i] = -1;
    e->ask(settings, c);
}

void gr_credit_begin(gr_credit* c, const gr_tree* t, const gr_estimator* e, const void* settings)
{
    c->tree = t;
    c->n_leaves = gr_tree_leaves(t, NULL, 0);
    c->n_kinds = GR_MAX(e->n_kinds, 1);
    reserve(c, c->n_leaves, t->n_nodes);
    gr_tree_leaves(t, c->leaf, c->n_leaves);
    gr_tree_split(t, c->leaf, c->n_leaves, c->split);
    for (int l = 0; l < c->n_leaves; l++) {
        c->ret[l] = gr_tree_return(t, c->leaf[l]);
        c->adv[l] = 0;
    }
    for (int i = 0; i < t->n_nodes; i++) c->node_adv[i] = 0;
    lay_out_paths(c);
    c->per_node = c->per_path = c->per_token = c->normalise = false;
    begin_values(c, e, settings);
}

/* Every leaf weighs the same in the value loss, however long its path. */
static void weigh_targets(gr_credit* c)
{
    double* n = calloc((size_t)(c->n_leaves * c->n_heads) + 1, sizeof *n);
    GR_ASSERT(n != NULL, "out of memory");
    for (int pass = 0; pass < 2; pass++) {
        for (int64_t i = 0; i < c->n_targets; i++) {
            gr_target* g = &c->target[i];
            double* count = &n[g->leaf * c->n_heads + c->read[g->read].head];
            if (pass == 0)
                *count += 1;
            else
                g->weight = 1 / *count;
        }
    }
    free(n);
}

void gr_credit_finish(gr_credit* c, const gr_estimator* e, const void* settings, double eps)
{
    e->fill(settings, c, eps);
    if (c->n_heads > 0) {
        weigh_targets(c);
        c->idle = c->n_leaves == 0;
        return;
    }
    c->idle = all_zero(c->node_adv, c->tree->n_nodes) && all_zero(c->adv, c->n_leaves) &&
              all_zero(c->path_adv, (int)c->path_begin[c->n_leaves]);
}

void gr_credit_fill(gr_credit* c, const gr_tree* t, const gr_estimator* e, const void* settings,
                    double eps)
{
    gr_credit_begin(c, t, e, settings);
    gr_credit_finish(c, e, settings, eps);
}

void gr_credit_free(gr_credit* c)
{
    free(c->leaf);
    free(c->ret);
    free(c->split);
    free(c->adv);
    free(c->node_adv);
    free(c->path_adv);
    free(c->path_begin);
    free(c->kinds);
    free(c->token_adv);
    free(c->token_at);
    free(c->read);
    free(c->target);
    free(c->probe);
    free(c->read_of);
    memset(c, 0, sizeof *c);
}
