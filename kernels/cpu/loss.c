/* loss.c - the policy loss folded over a tree (kernels/ops.h states it). In double, in row order. */
#include "kernels/cpu/cpu.h"

/* One predicted token. */
typedef struct loss_row {
    double logp, entropy, old_logp, ref_logp, a_pos, a_neg, w;
} loss_row;

typedef struct loss_grad {
    double loss, dlogp;
} loss_grad;

/* Surrogate on the ratio q. Its gradient by logp is q times the slope, which is 0 beyond a bound. */
static loss_grad surrogate(const loss_row* x, double q, const gr_loss_params* p)
{
    const double high = 1 + p->clip_high, low = 1 - p->clip_low;
    const double bound = p->dual_clip > 0 ? p->dual_clip : HUGE_VAL;
    const double below = fmin(q, high), above = fmin(fmax(q, low), bound);
    const double slope = (q <= high ? x->a_pos : 0) + (q >= low && q <= bound ? x->a_neg : 0);
    return (loss_grad){-(x->a_pos * below + x->a_neg * above), -q * slope};
}

/* Estimators of the divergence from the reference, D = ref_logp - logp. Schulman 2020,
 * "Approximating KL divergence". */
static loss_grad divergence(double d, gr_kl kind)
{
    switch (kind) {
    case GR_KL_NONE:
        break;
    case GR_KL_K1:
        return (loss_grad){-d, 1};
    case GR_KL_K2:
        return (loss_grad){d * d / 2, -d};
    case GR_KL_K3:
        return (loss_grad){expm1(d) - d, -expm1(d)};
    }
    return (loss_grad){0, 0};
}

static void count_cuts(gr_loss_sums* s, const loss_row* x, double q, const gr_loss_params* p)
{
    if (x->a_pos > 0 && q > 1 + p->clip_high) s->clip_high += x->w;
    if (x->a_neg < 0 && p->dual_clip > 0 && q > p->dual_clip) s->clip_high += x->w;
    if (x->a_neg < 0 && q < 1 - p->clip_low) s->clip_low += x->w;
}

/* Returns dL/dlogp; dL/dH is the same for all rows but for the weight. */
static double loss_of_row(gr_loss_sums* s, const loss_row* x, const gr_loss_params* p)
{
    if (p->kind == GR_LOSS_NLL) {
        s->loss -= x->a_pos * x->logp;
        return -x->a_pos;
    }
    const double q = exp(x->logp - x->old_logp);
    const loss_grad pg = surrogate(x, q, p);
    const loss_grad kl = divergence(x->ref_logp - x->logp, p->kl);
    const double coef = p->kl_coef * x->w;
    s->loss += pg.loss + coef * kl.loss - p->entropy_coef * x->w * x->entropy;
    s->kl_ref += x->w * kl.loss;
    count_cuts(s, x, q, p);
    return pg.dlogp + coef * kl.dlogp;
}

/* What is measured whatever the loss. */
static void measure_row(gr_loss_sums* s, const loss_row* x)
{
    const double d = x->logp - x->old_logp;
    s->weight += x->w;
    s->rows += x->w > 0;
    s->entropy += x->w * x->entropy;
    s->kl_old += x->w * (expm1(d) - d);
    s->max_abs_dlogp = fmax(s->max_abs_dlogp, fabs(d));
    s->sum_abs_dlogp += fabs(d);
}

static double at(const void* x, int64_t i) { return (double)((const acc*)x)[i]; }

void OP(policy_loss)(gr_dev* dev, void* dlogp, void* dentropy, gr_loss_sums* sums, const void* logp,
                     const void* entropy, const void* old_logp, const void* ref_logp,
                     const void* a_pos, const void* a_neg, const void* w, int64_t r,
                     const gr_loss_params* params)
{
    (void)dev;
    gr_loss_sums s = *sums;
    const double coef = params->kind == GR_LOSS_POLICY ? params->entropy_coef : 0;
    for (int64_t i = 0; i < r; i++) {
        const loss_row x = {
            .logp = at(logp, i),
            .entropy = at(entropy, i),
            .old_logp = at(old_logp, i),
            .ref_logp = ref_logp == NULL ? at(logp, i) : at(ref_logp, i),
            .a_pos = at(a_pos, i),
            .a_neg = at(a_neg, i),
            .w = at(w, i),
        };
        ((acc*)dlogp)[i] = (acc)loss_of_row(&s, &x, params);
        ((acc*)dentropy)[i] = (acc)(-coef * x.w);
        measure_row(&s, &x);
    }
    *sums = s;
}
