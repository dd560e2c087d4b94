/* tree_grpo.c - Tree-GRPO: a leaf is compared with the leaves of its own branch's tree and with all
 * leaves of the task, and the two are added (Ji et al. 2025, github.com/AMAP-ML/Tree-GRPO). */
#include <stdlib.h>

#include "host/advantage/advantage.h"

/* Adds the advantage within branch `b`. work: room for two numbers per leaf. */
static void add_intra(gr_credit* c, int b, double eps, double* work)
{
    const gr_tree* t = c->tree;
    double *ret = work, *adv = work + c->n_leaves;
    int n = 0;
    for (int l = 0; l < c->n_leaves; l++) {
        if (t->branch[c->leaf[l]] == b) ret[n++] = c->ret[l];
    }
    gr_group_grpo(ret, n, eps, adv);
    n = 0;
    for (int l = 0; l < c->n_leaves; l++) {
        if (t->branch[c->leaf[l]] == b) c->adv[l] += adv[n++];
    }
}

static void tree_grpo(const void* settings, gr_credit* c, double eps)
{
    int branches = 0;
    (void)settings;
    gr_group_grpo(c->ret, c->n_leaves, eps, c->adv);
    for (int l = 0; l < c->n_leaves; l++) {
        branches = GR_MAX(branches, c->tree->branch[c->leaf[l]] + 1);
    }
    double* work = malloc(((size_t)c->n_leaves * 2 + 1) * sizeof *work);
    GR_ASSERT(work != NULL, "out of memory");
    for (int b = 0; b < branches; b++) add_intra(c, b, eps, work);
    free(work);
}

const gr_estimator gr_estimator_tree_grpo = {.name = "tree_grpo", .fill = tree_grpo};
