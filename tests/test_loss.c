/* Policy loss: against finite differences, flattened rows and its own definition at the bounds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/loss.h"

static double loss_at(gr_dev* dev, loss_input* x, const gr_loss_params* p, double* at, double value)
{
    static loss_output out;
    const double kept = *at;
    *at = value;
    run_loss(dev, &out, x, p);
    *at = kept;
    return out.sums.loss;
}

static double difference(gr_dev* dev, loss_input* x, const gr_loss_params* p, double* at)
{
    const double h = 1e-5;
    return (loss_at(dev, x, p, at, *at + h) - loss_at(dev, x, p, at, *at - h)) / (2 * h);
}

static void loss_gradient_matches_differences(void** state)
{
    (void)state;
    gr_dev dev;
    rng r = {.key = 1};
    assert_true(open_table(&dev, &tables[0], 1));
    for (int k = 0; k < N_PARAMS; k++) {
        const gr_loss_params p = params_of(k);
        loss_input x = random_input(&r, 60);
        static loss_output out;
        run_loss(&dev, &out, &x, &p);
        for (int64_t i = 0; i < x.r; i++) {
            assert_near(out.dlogp[i], difference(&dev, &x, &p, &x.logp[i]), 1e-7);
            assert_near(out.dentropy[i], difference(&dev, &x, &p, &x.entropy[i]), 1e-7);
        }
    }
    gr_dev_close(&dev);
}

/* ---- folded trees equal flattened rows ------------------------------------------------------------------ */

/* Textbook clipped loss of one token of one trajectory, and its slope. */
static double flat_loss(double a, double logp, double old_logp, const gr_loss_params* p,
                        double* slope)
{
    const double q = exp(logp - old_logp);
    const double clipped = fmin(fmax(q, 1 - p->clip_low), 1 + p->clip_high);
    double gain = fmin(q * a, clipped * a);
    *slope = q * a <= clipped * a ? -q * a : 0;
    if (a < 0 && p->dual_clip > 0 && gain < p->dual_clip * a) {
        gain = p->dual_clip * a;
        *slope = 0;
    }
    return -gain;
}

static double flat_kl(double d, gr_kl kind, double* slope)
{
    const double value[4] = {0, -d, d * d / 2, exp(d) - d - 1}, by_logp[4] = {0, 1, -d, 1 - exp(d)};
    *slope = by_logp[kind];
    return value[kind];
}

typedef struct flat_sums {
    double loss, dlogp[MAX_TOKENS], dentropy[MAX_TOKENS];
} flat_sums;

/* Adds one trajectory, the tokens before and including `leaf`; each token folds it in too. */
static void add_trajectory(flat_sums* f, loss_input* x, const int* parent, int leaf, rng* r,
                           const gr_loss_params* p)
{
    const double weight = uniform(r);
    double a = 2 * uniform(r) - 1;
    for (int u = leaf; u >= 0; u = parent[u]) {
        if (below(r, 8) == 0) a = 2 * uniform(r) - 1; /* credit may differ along the path */
        double slope, kl_slope;
        f->loss += weight * flat_loss(a, x->logp[u], x->old_logp[u], p, &slope);
        f->loss += weight * p->kl_coef * flat_kl(x->ref_logp[u] - x->logp[u], p->kl, &kl_slope);
        f->loss -= weight * p->entropy_coef * x->entropy[u];
        f->dlogp[u] += weight * (slope + p->kl_coef * kl_slope);
        f->dentropy[u] -= weight * p->entropy_coef;
        x->a_pos[u] += weight * fmax(a, 0);
        x->a_neg[u] += weight * fmin(a, 0);
        x->w[u] += weight;
    }
}

static void folded_tree_equals_flattened_rows(void** state)
{
    (void)state;
    gr_dev dev;
    rng r = {.key = 2};
    assert_true(open_table(&dev, &tables[0], 1));
    for (int round = 0; round < 300; round++) {
        const gr_loss_params p = params_of(round % 8);
        static loss_input x;
        static loss_output out;
        static flat_sums f;
        int parent[MAX_TOKENS];
        x = random_input(&r, 1 + below(&r, 120));
        memset(&f, 0, sizeof f);
        memset(x.a_pos, 0, sizeof x.a_pos);
        memset(x.a_neg, 0, sizeof x.a_neg);
        memset(x.w, 0, sizeof x.w);
        for (int u = 0; u < x.r; u++) parent[u] = u == 0 || below(&r, 6) > 0 ? u - 1 : below(&r, u);
        for (int leaf = 0; leaf < x.r; leaf++)
            if (below(&r, 5) == 0) add_trajectory(&f, &x, parent, leaf, &r, &p);
        run_loss(&dev, &out, &x, &p);
        assert_near(out.sums.loss, f.loss, 1e-12);
        for (int64_t u = 0; u < x.r; u++) {
            assert_near(out.dlogp[u], f.dlogp[u], 1e-12);
            assert_near(out.dentropy[u], f.dentropy[u], 1e-12);
        }
    }
    gr_dev_close(&dev);
}

/* Ratio 1 with both bounds at 1: the gradient is kept, nothing counts as cut. */
static void ties_keep_the_gradient(void** state)
{
    (void)state;
    for (int t = 0; t < GR_COUNT(tables); t++) {
        gr_dev dev;
        if (!open_table(&dev, &tables[t], 1)) continue;
        const gr_loss_params p = {.dual_clip = 1, .temperature = 1};
        loss_input x = {.logp = {-1, -2},
                        .old_logp = {-1, -2},
                        .a_pos = {0.5, 0},
                        .a_neg = {-0.25, -1},
                        .w = {1, 2},
                        .r = 2};
        loss_output out;
        run_loss(&dev, &out, &x, &p);
        assert_true(out.dlogp[0] == -0.25 && out.dlogp[1] == 1);
        assert_true(out.sums.clip_high == 0 && out.sums.clip_low == 0);
        gr_dev_close(&dev);
    }
}

/* On the weights that sampled, every ratio is 1: REINFORCE, and nothing is cut. */
static void on_untouched_weights_it_is_reinforce(void** state)
{
    (void)state;
    gr_dev dev;
    rng r = {.key = 4};
    assert_true(open_table(&dev, &tables[0], 1));
    for (int round = 0; round < 50; round++) {
        gr_loss_params p = params_of(round % 8);
        static loss_output out;
        loss_input x = random_input(&r, 60);
        p.kl = GR_KL_NONE;
        p.kl_coef = 0;
        memcpy(x.old_logp, x.logp, sizeof x.logp);
        run_loss(&dev, &out, &x, &p);
        for (int64_t u = 0; u < x.r; u++) {
            assert_near(out.dlogp[u], -(x.a_pos[u] + x.a_neg[u]), 1e-15);
        }
        assert_true(out.sums.clip_low == 0 && out.sums.clip_high == 0);
        assert_true(out.sums.max_abs_dlogp == 0 && out.sums.kl_old == 0);
    }
    gr_dev_close(&dev);
}

/* A weight on a row's credit, such as p (1 - p) of a demonstration, is a number: the gradient is that
 * many times the surrogate's, whatever it was computed from. */
static void weighted_credit_weighs_the_gradient(void** state)
{
    (void)state;
    gr_dev dev;
    rng r = {.key = 5};
    int pulled = 0;
    assert_true(open_table(&dev, &tables[0], 1));
    for (int round = 0; round < 50; round++) {
        gr_loss_params p = params_of(round % 8);
        static loss_output plain, weighted;
        loss_input x = random_input(&r, 60), y = x;
        double phi[60];
        p.kl = GR_KL_NONE;
        p.kl_coef = 0;
        for (int64_t u = 0; u < x.r; u++) {
            phi[u] = exp(x.logp[u]) * (1 - exp(x.logp[u]));
            y.a_pos[u] *= phi[u];
            y.a_neg[u] *= phi[u];
        }
        run_loss(&dev, &plain, &x, &p);
        run_loss(&dev, &weighted, &y, &p);
        for (int64_t u = 0; u < x.r; u++) {
            assert_near(weighted.dlogp[u], phi[u] * plain.dlogp[u], 1e-14);
            pulled += plain.dlogp[u] != 0;
        }
    }
    assert_true(pulled > 500);
    gr_dev_close(&dev);
}

static void sums_say_what_happened(void** state)
{
    (void)state;
    gr_dev dev;
    assert_true(open_table(&dev, &tables[0], 1));
    const gr_loss_params p = params_of(4 + GR_KL_K2);
    loss_input x = {.logp = {-1, -1, -1, -1, -1},
                    .entropy = {1, 1, 1, 1, 2},
                    .a_pos = {1, 1, 0, 0, 0},
                    .a_neg = {-1, 0, -1, -1, 0},
                    .w = {1, 2, 4, 8, 0},
                    .r = 5};
    static const double ratio[5] = {0.5, 1.5, 0.5, 3.5, 1};
    double kl_old = 0, sum = 0;
    for (int i = 0; i < 5; i++) {
        x.old_logp[i] = x.logp[i] - log(ratio[i]);
        x.ref_logp[i] = x.logp[i] + i;
        kl_old += x.w[i] * (ratio[i] - 1 - log(ratio[i]));
        sum += fabs(log(ratio[i]));
    }
    static loss_output out;
    run_loss(&dev, &out, &x, &p);
    const gr_loss_sums* s = &out.sums;
    assert_true(s->weight == 15 && s->rows == 4 && s->entropy == 15);
    assert_true(s->clip_low == 1 + 4 && s->clip_high == 2 + 8);
    assert_near(s->kl_old, kl_old, 1e-12);
    assert_near(s->kl_ref, 2 * 0.5 + 4 * 2 + 8 * 4.5, 1e-12);
    assert_near(s->max_abs_dlogp, log(3.5), 1e-12);
    assert_near(s->sum_abs_dlogp, sum, 1e-12);
    gr_dev_close(&dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loss_gradient_matches_differences),
        cmocka_unit_test(folded_tree_equals_flattened_rows),
        cmocka_unit_test(ties_keep_the_gradient),
        cmocka_unit_test(on_untouched_weights_it_is_reinforce),
        cmocka_unit_test(weighted_credit_weighs_the_gradient),
        cmocka_unit_test(sums_say_what_happened),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
