/* loss.h - what the tests of the policy loss and of the LM head share: loss inputs at random. */
#pragma once
#include "tests/kernels.h"

static inline void assert_near(double got, double want, double tolerance)
{
    if (!(fabs(got - want) <= tolerance * fmax(1, fabs(want))))
        fail_msg("got %.17g, want %.17g, tolerance %g", got, want, tolerance);
}

/* ---- policy loss ------------------------------------------------------------------------------------ */

enum { MAX_TOKENS = 512 };

/* Per predicted token, as the op reads it. */
typedef struct loss_input {
    double logp[MAX_TOKENS], entropy[MAX_TOKENS], old_logp[MAX_TOKENS], ref_logp[MAX_TOKENS];
    double a_pos[MAX_TOKENS], a_neg[MAX_TOKENS], w[MAX_TOKENS];
    int64_t r;
} loss_input;

typedef struct loss_output {
    double dlogp[MAX_TOKENS], dentropy[MAX_TOKENS];
    gr_loss_sums sums;
} loss_output;

static inline void run_loss(gr_dev* dev, loss_output* out, const loss_input* x,
                            const gr_loss_params* p)
{
    const double* in[7] = {x->logp, x->entropy, x->old_logp, x->ref_logp, x->a_pos, x->a_neg, x->w};
    void *t[7], *dlogp = new_acc(dev, x->r), *dentropy = new_acc(dev, x->r);
    for (int i = 0; i < 7; i++) {
        t[i] = new_acc(dev, x->r);
        gr_dev_write_acc(dev, t[i], in[i], x->r);
    }
    gr_loss_sums* sums = dev_bytes(dev, sizeof *sums);
    dev->ops->policy_loss(dev, dlogp, dentropy, sums, t[0], t[1], t[2], t[3], t[4], t[5], t[6],
                          x->r, p);
    gr_dev_read(dev, &out->sums, sums, sizeof *sums);
    gr_dev_free(dev, sums);
    gr_dev_read_acc(dev, out->dlogp, dlogp, x->r);
    gr_dev_read_acc(dev, out->dentropy, dentropy, x->r);
    for (int i = 0; i < 7; i++) gr_dev_free(dev, t[i]);
    gr_dev_free(dev, dlogp);
    gr_dev_free(dev, dentropy);
}

/* All kinds of KL, with and without dual clip, and the likelihood loss. */
static inline gr_loss_params params_of(int i)
{
    return (gr_loss_params){.kind = i == 8 ? GR_LOSS_NLL : GR_LOSS_POLICY,
                            .clip_low = 0.2,
                            .clip_high = 0.3,
                            .dual_clip = i / 4 == 1 ? 3 : 0,
                            .kl = (gr_kl)(i % 4),
                            .kl_coef = 0.7,
                            .entropy_coef = 0.05,
                            .temperature = 1};
}
enum { N_PARAMS = 9 };

/* A log ratio inside, beyond either bound, or beyond the dual clip's, never close to one. */
static inline double log_ratio(rng* r)
{
    const double low[4] = {log(0.83), log(0.4), log(1.35), log(3.1)};
    const double high[4] = {log(1.27), log(0.77), log(2.9), log(5)};
    const int k = below(r, 4);
    return low[k] + (high[k] - low[k]) * uniform(r);
}

static inline loss_input random_input(rng* r, int64_t n)
{
    loss_input x = {.r = n};
    for (int64_t i = 0; i < n; i++) {
        x.logp[i] = -4 * uniform(r);
        x.entropy[i] = 3 * uniform(r);
        x.old_logp[i] = x.logp[i] - log_ratio(r);
        x.ref_logp[i] = x.logp[i] + 2 * uniform(r) - 1;
        x.a_pos[i] = below(r, 4) == 0 ? 0 : uniform(r);
        x.a_neg[i] = below(r, 4) == 0 ? 0 : -uniform(r);
        x.w[i] = uniform(r);
    }
    return x;
}
