/* advantage.c - from a finished tree to credit: leaves, returns, multiplicities, one estimator. */
#include "host/advantage/advantage.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const gr_estimator* const gr_estimators[] = {
    &gr_estimator_grpo,
    &gr_estimator_dr_grpo,
    &gr_estimator_rloo,
    &gr_estimator_tree_grpo,
    &gr_estimator_sibling,
    &gr_estimator_gigpo,
    NULL,
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
    GR_RESERVE(c->path_adv, c->path_cap, c->path_begin[c->n_leaves]);
    for (int64_t i = 0; i < c->path_begin[c->n_leaves]; i++) c->path_adv[i] = 0;
}

void gr_credit_fill(gr_credit* c, const gr_tree* t, const gr_estimator* e, const void* settings,
                    double eps)
{
    c->tree = t;
    c->n_leaves = gr_tree_leaves(t, NULL, 0);
    reserve(c, c->n_leaves, t->n_nodes);
    gr_tree_leaves(t, c->leaf, c->n_leaves);
    gr_tree_split(t, c->leaf, c->n_leaves, c->split);
    for (int l = 0; l < c->n_leaves; l++) {
        c->ret[l] = gr_tree_return(t, c->leaf[l]);
        c->adv[l] = 0;
    }
    for (int i = 0; i < t->n_nodes; i++) c->node_adv[i] = 0;
    lay_out_paths(c);
    c->per_node = c->per_path = false;
    e->fill(settings, c, eps);
    c->idle = all_zero(c->node_adv, t->n_nodes) && all_zero(c->adv, c->n_leaves) &&
              all_zero(c->path_adv, (int)c->path_begin[c->n_leaves]);
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
    memset(c, 0, sizeof *c);
}
