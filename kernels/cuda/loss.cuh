/* loss.cuh - the policy loss of one predicted token (kernels/ops.h states it), in double, for the op
 * and for the merge of the LM head. */
#pragma once
#include "kernels/cuda/cuda.cuh"

typedef struct loss_row {
    double logp, entropy, old_logp, ref_logp, a_pos, a_neg, w;
} loss_row;

/* What a row adds to gr_loss_sums, in that struct's order; one number is a maximum. */
#define LOSS_TERMS 10
#define LOSS_MAX   8 /* max_abs_dlogp */
typedef struct loss_terms {
    double of[LOSS_TERMS];
} loss_terms;
static_assert(sizeof(gr_loss_sums) == sizeof(loss_terms), "one term per sum");

typedef struct loss_inputs {
    const float *old_logp, *ref_logp, *a_pos, *a_neg, *w; /* (r); ref_logp may be NULL */
} loss_inputs;

typedef struct loss_grad {
    double loss, dlogp;
} loss_grad;

/* Surrogate on the ratio q. Its gradient by logp is q times the slope, which is 0 beyond a bound. */
__device__ __forceinline__ loss_grad surrogate(const loss_row* x, double q, const gr_loss_params* p)
{
    const double high = 1 + p->clip_high, low = 1 - p->clip_low;
    const double bound = p->dual_clip > 0 ? p->dual_clip : HUGE_VAL;
    const double below = fmin(q, high), above = fmin(fmax(q, low), bound);
    const double slope = (q <= high ? x->a_pos : 0) + (q >= low && q <= bound ? x->a_neg : 0);
    loss_grad g = {-(x->a_pos * below + x->a_neg * above), -q * slope};
    return g;
}

/* Estimators of the divergence from the reference, D = ref_logp - logp. Schulman 2020,
 * "Approximating KL divergence". */
__device__ __forceinline__ loss_grad divergence(double d, gr_kl kind)
{
    loss_grad g = {0, 0};
    if (kind == GR_KL_K1) g.loss = -d, g.dlogp = 1;
    if (kind == GR_KL_K2) g.loss = d * d / 2, g.dlogp = -d;
    if (kind == GR_KL_K3) g.loss = expm1(d) - d, g.dlogp = -expm1(d);
    return g;
}

/* Returns dL/dlogp. */
__device__ __forceinline__ double loss_of_row(loss_terms* t, const loss_row* x,
                                              const gr_loss_params* p)
{
    double dlogp = -x->a_pos, loss = -x->a_pos * x->logp, kl_ref = 0, high = 0, low = 0;
    if (p->kind == GR_LOSS_POLICY) {
        const double q = exp(x->logp - x->old_logp), coef = p->kl_coef * x->w;
        const loss_grad pg = surrogate(x, q, p), kl = divergence(x->ref_logp - x->logp, p->kl);
        loss = pg.loss + coef * kl.loss - p->entropy_coef * x->w * x->entropy;
        dlogp = pg.dlogp + coef * kl.dlogp;
        kl_ref = x->w * kl.loss;
        if (x->a_pos > 0 && q > 1 + p->clip_high) high += x->w;
        if (x->a_neg < 0 && p->dual_clip > 0 && q > p->dual_clip) high += x->w;
        if (x->a_neg < 0 && q < 1 - p->clip_low) low += x->w;
    }
    const double d = x->logp - x->old_logp;
    t->of[0] = loss;
    t->of[1] = x->w;
    t->of[2] = x->w > 0 ? 1 : 0;
    t->of[3] = x->w * x->entropy;
    t->of[4] = x->w * (expm1(d) - d);
    t->of[5] = kl_ref;
    t->of[6] = low;
    t->of[7] = high;
    t->of[LOSS_MAX] = fabs(d);
    t->of[9] = fabs(d);
    return dlogp;
}

/* Row i of the batch: its terms, dL/dlogp and dL/dH. */
__device__ __forceinline__ void loss_at(loss_terms* t, float* dlogp, float* dentropy, int64_t i,
                                        float logp, float entropy, const loss_inputs* in,
                                        const gr_loss_params* p)
{
    const loss_row x = {(double)logp,
                        (double)entropy,
                        (double)in->old_logp[i],
                        (double)(in->ref_logp == NULL ? logp : in->ref_logp[i]),
                        (double)in->a_pos[i],
                        (double)in->a_neg[i],
                        (double)in->w[i]};
    *dlogp = (float)loss_of_row(t, &x, p);
    *dentropy = (float)(-(p->kind == GR_LOSS_POLICY ? p->entropy_coef : 0) * x.w);
}

/* sums += terms of n rows, in row order. */
void gr_cuda_add_terms(cudaStream_t stream, gr_loss_sums* sums, const loss_terms* terms, int64_t n);
