/* advantage.h - what credit a leaf gets. Level 5.
 *
 * Estimators are pure functions of a finished tree. They write, for each counted leaf, one
 * advantage, or one per node, or one per node of its path. In all of them equal rewards give
 * exactly 0 (by comparison), a singleton gives 0, and errored members are outside baseline and
 * loss. */
#pragma once
#include "host/tree.h"

typedef struct gr_credit {
    const gr_tree* tree;
    int n_leaves;
    int32_t* leaf; /* (n_leaves) counted leaves, node order */
    double* ret;   /* (n_leaves) return */
    double* split; /* (n_leaves) split multiplicity, gr_tree_split */
    double* adv;   /* (n_leaves) advantage of the whole path, unless per_node */
    bool per_node;
    double* node_adv; /* (n_nodes) with per_node: advantage of the node's own tokens */
    bool per_path;
    double* path_adv;    /* with per_path: advantage that leaf l gives the turn t of its path, at
                            path_begin[l] + t - 1 */
    int64_t* path_begin; /* (n_leaves + 1) */
    int64_t leaf_cap, node_cap, path_cap;
    bool idle; /* all advantages are exactly 0: the group cannot teach */
} gr_credit;

/* The advantage that leaf number l gives the tokens of `node`, which lies on its path. */
static inline double gr_credit_at(const gr_credit* c, int l, int node)
{
    if (c->per_path) return c->path_adv[c->path_begin[l] + c->tree->turn[node] - 1];
    return c->per_node ? c->node_adv[node] : c->adv[l];
}

typedef struct gr_estimator {
    const char* name;
    const gr_block* block; /* NULL: no settings */
    /* leaf, ret, split are filled; writes adv, node_adv or path_adv */
    void (*fill)(const void* settings, gr_credit* c, double eps);
} gr_estimator;

extern const gr_estimator gr_estimator_grpo, gr_estimator_dr_grpo, gr_estimator_rloo,
    gr_estimator_tree_grpo, gr_estimator_sibling, gr_estimator_gigpo;
extern const gr_estimator* const gr_estimators[]; /* NULL-terminated */
const gr_estimator* gr_estimator_find(const char* name);

/* Leaves, returns, multiplicities, the estimator, idle. `settings` is the filled struct of its
 * block. Buffers grow and are reused. */
void gr_credit_fill(gr_credit* c, const gr_tree* t, const gr_estimator* e, const void* settings,
                    double eps);
void gr_credit_free(gr_credit* c);

/* (R - mean)/(std + eps) with the unbiased deviation, 0 for singletons and equal rewards; the same
 * without division; R minus the mean of the others. Building blocks of the files here. */
void gr_group_grpo(const double* r, int n, double eps, double* a);
void gr_group_mean(const double* r, int n, double* a);
void gr_group_rloo(const double* r, int n, double* a);
