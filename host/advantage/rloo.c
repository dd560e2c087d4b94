/* rloo.c - returns against the mean of the others (Ahmadian et al. 2024, arXiv:2402.14740). */
#include "host/advantage/advantage.h"

void gr_group_rloo(const double* r, int n, double* a)
{
    gr_group_mean(r, n, a);
    /* R - mean of the others = n/(n - 1) (R - mean of all) */
    for (int i = 0; i < n && n > 1; i++) a[i] *= (double)n / (n - 1);
}

static void rloo(const void* settings, gr_credit* c, double eps)
{
    (void)settings;
    (void)eps;
    gr_group_rloo(c->ret, c->n_leaves, c->adv);
}

const gr_estimator gr_estimator_rloo = {.name = "rloo", .fill = rloo};
