/* grpo.c - returns compared with the mean of their group, in units of its deviation (Shao et al.
 * 2024, arXiv:2402.03300, eq. 3), and without the division (Dr. GRPO, Liu et al. 2025,
 * arXiv:2503.20783). */
#include <math.h>

#include "host/advantage/advantage.h"

void gr_group_mean(const double* r, int n, double* a)
{
    double sum = 0;
    bool equal = true;
    for (int i = 0; i < n; i++) {
        sum += r[i];
        equal = equal && r[i] == r[0];
    }
    /* compared, because n equal values do not sum to n times the value: 8 x 0.4 would leave noise
     * that a division by a tiny deviation blows up */
    double mean = sum / n;
    for (int i = 0; i < n; i++) a[i] = equal ? 0 : r[i] - mean;
}

void gr_group_grpo(const double* r, int n, double eps, double* a)
{
    double sq = 0;
    gr_group_mean(r, n, a);
    for (int i = 0; i < n; i++) sq += a[i] * a[i];
    if (sq == 0) return;
    double std = sqrt(sq / (n - 1)); /* n >= 2: a singleton has no deviation */
    for (int i = 0; i < n; i++) a[i] /= std + eps;
}

static void grpo(const void* settings, gr_credit* c, double eps)
{
    (void)settings;
    gr_group_grpo(c->ret, c->n_leaves, eps, c->adv);
}

static void dr_grpo(const void* settings, gr_credit* c, double eps)
{
    (void)settings;
    (void)eps;
    gr_group_mean(c->ret, c->n_leaves, c->adv);
}

const gr_estimator gr_estimator_grpo = {.name = "grpo", .fill = grpo};
const gr_estimator gr_estimator_dr_grpo = {.name = "dr_grpo", .fill = dr_grpo};
