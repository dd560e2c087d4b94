/* Advantages from values: the identities that hold for any rewards, values and switches. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "host/advantage/gae.h"

enum { TURNS = 9, CASES = 500 };

typedef struct path {
    int n;
    double reward[TURNS], low[TURNS], high[TURNS];
    bool switched[TURNS];
    double gamma, lambda_low, lambda_high;
    double a_low[TURNS], a_high[TURNS], to_go[TURNS]; /* out */
} path;

static double draw(uint64_t key, int i) { return gr_uniform(key, (uint64_t)i); }
static bool near(double a, double b) { return fabs(a - b) <= 1e-9 * (1 + fabs(a) + fabs(b)); }

static path any_path(uint64_t key)
{
    static const double gammas[] = {1, 0.95, 0.9};
    path p = {.n = 1 + (int)(draw(key, 0) * TURNS),
              .gamma = gammas[key % 3],
              .lambda_low = draw(key, 1),
              .lambda_high = draw(key, 2)};
    for (int t = 0; t < p.n; t++) {
        p.reward[t] = 4 * draw(key, 10 + 4 * t) - 2;
        p.low[t] = 4 * draw(key, 11 + 4 * t) - 2;
        p.high[t] = 4 * draw(key, 12 + 4 * t) - 2;
        p.switched[t] = draw(key, 13 + 4 * t) < 0.4;
    }
    return p;
}

static void fill(path* p, bool done, bool bootstrap)
{
    gr_hae h = {.n = p->n,
                .reward = p->reward,
                .switched = p->switched,
                .low = p->low,
                .high = p->high,
                .gamma = p->gamma,
                .lambda_low = p->lambda_low,
                .lambda_high = p->lambda_high,
                .done = done,
                .bootstrap = bootstrap};
    gr_hae_fill(&h, p->a_low, p->a_high, p->to_go);
}

static bool boundary(const path* p, int t) { return t == 0 || p->switched[t]; }
static int segment_begin(const path* p, int t)
{
    while (!boundary(p, t)) t--;
    return t;
}
static int segment_end(const path* p, int t) /* one past it */
{
    for (t++; t < p->n && !p->switched[t];) t++;
    return t;
}

/* Discounted reward of turns begin .. end - 1, and of the value behind them. */
static double discounted(const path* p, int begin, int end, double after)
{
    for (int t = end - 1; t >= begin; t--) after = p->reward[t] + p->gamma * after;
    return after;
}

static void flat_gae_ends_in_returns_and_td_errors(void** state)
{
    (void)state;
    double a[TURNS], zero[TURNS] = {0};
    for (uint64_t key = 1; key <= CASES; key++) {
        path p = any_path(key);
        double after = draw(key, 3);
        gr_gae(a, p.reward, zero, p.n, 0, 1, 1); /* lambda = gamma = 1, V = 0: the return to go */
        for (int t = 0; t < p.n; t++) {
            double sum = 0;
            for (int k = t; k < p.n; k++) sum += p.reward[k];
            assert_true(near(a[t], sum));
        }
        gr_gae(a, p.reward, p.low, p.n, after, p.gamma, 0);
        for (int t = 0; t < p.n; t++) {
            double next = t + 1 < p.n ? p.low[t + 1] : after;
            assert_true(near(a[t], p.reward[t] + p.gamma * next - p.low[t]));
        }
    }
}

static void one_segment_is_flat_low_and_every_turn_is_flat_high(void** state)
{
    (void)state;
    double flat[TURNS];
    for (uint64_t key = 1; key <= CASES; key++) {
        path p = any_path(key);
        memset(p.switched, 0, sizeof p.switched);
        fill(&p, true, false);
        gr_gae(flat, p.reward, p.low, p.n, 0, p.gamma, p.lambda_low);
        for (int t = 0; t < p.n; t++) assert_true(near(p.a_low[t], flat[t]));
        assert_true(near(p.a_high[0], discounted(&p, 0, p.n, 0) - p.high[0]));
        memset(p.switched, 1, sizeof p.switched);
        fill(&p, true, false);
        gr_gae(flat, p.reward, p.high, p.n, 0, p.gamma, p.lambda_high);
        for (int t = 0; t < p.n; t++) {
            double next = t + 1 < p.n ? p.high[t + 1] : 0;
            assert_true(near(p.a_high[t], flat[t]));
            assert_true(near(p.a_low[t], p.reward[t] + p.gamma * next - p.low[t]));
        }
    }
}

static void lambda_1_telescopes(void** state)
{
    (void)state;
    for (uint64_t key = 1; key <= CASES; key++) {
        path p = any_path(key);
        p.lambda_low = p.lambda_high = 1;
        fill(&p, true, false);
        for (int t = 0; t < p.n; t++) {
            int end = segment_end(&p, t);
            double target = discounted(&p, t, end, end < p.n ? p.high[end] : 0);
            assert_true(near(p.a_low[t], target - p.low[t]));
            assert_true(near(p.to_go[t], target)); /* the low target */
            double all = discounted(&p, t, p.n, 0);
            assert_true(near(p.a_high[t], boundary(&p, t) ? all - p.high[t] : 0));
        }
        p.lambda_high = 0; /* at a boundary to_go is the one-step high target */
        fill(&p, true, false);
        for (int t = 0; t < p.n; t++) {
            if (boundary(&p, t)) assert_true(near(p.a_high[t], p.to_go[t] - p.high[t]));
        }
    }
}

static void a_reward_is_felt_in_its_segment_and_by_those_before(void** state)
{
    (void)state;
    for (uint64_t key = 1; key <= CASES; key++) {
        path p = any_path(key), q = p;
        int k = (int)(draw(key, 4) * p.n), begin = segment_begin(&p, k);
        q.reward[k] += 3;
        fill(&p, true, false);
        fill(&q, true, false);
        for (int t = 0; t < p.n; t++) {
            if (t < begin || t > k) assert_true(p.a_low[t] == q.a_low[t]);
            if (t > k) assert_true(p.a_high[t] == q.a_high[t]);
        }
        assert_false(p.a_low[k] == q.a_low[k]);
        assert_false(p.a_high[begin] == q.a_high[begin]);
    }
}

static void a_path_cut_off_is_not_punished_if_it_goes_on_from_its_values(void** state)
{
    (void)state;
    for (uint64_t key = 1; key <= CASES; key++) {
        path p = any_path(key), q, r;
        p.gamma = 1;
        q = r = p;
        fill(&p, false, true);
        int last = p.n - 1, begin = segment_begin(&p, last);
        assert_true(near(p.a_low[last], p.reward[last]));
        assert_true(near(p.a_high[begin], discounted(&p, begin, p.n, 0)));
        fill(&q, true, true); /* of an episode that ended the flag says nothing */
        fill(&r, true, false);
        for (int t = 0; t < p.n; t++) {
            assert_true(q.a_low[t] == r.a_low[t] && q.a_high[t] == r.a_high[t]);
            assert_true(q.to_go[t] == r.to_go[t]);
        }
    }
}

static void equal_shifts_of_all_values_reach_the_last_turn_alone(void** state)
{
    (void)state;
    for (uint64_t key = 1; key <= CASES; key++) {
        path p = any_path(key), q;
        p.gamma = 1;
        p.lambda_low = p.lambda_high = 0;
        q = p;
        for (int t = 0; t < p.n; t++) q.low[t] += 2, q.high[t] += 2;
        fill(&p, true, false);
        fill(&q, true, false);
        for (int t = 0; t < p.n; t++) {
            assert_true(near(p.a_low[t] - (t == p.n - 1 ? 2 : 0), q.a_low[t]));
        }
    }
}

static void the_gain_of_switching_is_fair_and_has_its_sign(void** state)
{
    (void)state;
    for (uint64_t key = 1; key <= CASES; key++) {
        double beta = 0.01 + 0.98 * draw(key, 0), high = draw(key, 1), low = draw(key, 2);
        double yes = gr_hae_switch_gain(true, beta, high, low);
        double no = gr_hae_switch_gain(false, beta, high, low);
        assert_true(near(beta * yes + (1 - beta) * no, 0));
        assert_true(yes * (high - low) > 0 && no * (high - low) < 0);
        assert_true(gr_hae_switch_gain(true, beta, high, high) == 0);
        /* the mean of A grad log pi(q) is the gain times grad beta: the logit's is beta(1 - beta) */
        double gradient = beta * yes * (1 - beta) + (1 - beta) * no * -beta;
        assert_true(near(gradient, (high - low) * beta * (1 - beta)));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(flat_gae_ends_in_returns_and_td_errors),
        cmocka_unit_test(one_segment_is_flat_low_and_every_turn_is_flat_high),
        cmocka_unit_test(lambda_1_telescopes),
        cmocka_unit_test(a_reward_is_felt_in_its_segment_and_by_those_before),
        cmocka_unit_test(a_path_cut_off_is_not_punished_if_it_goes_on_from_its_values),
        cmocka_unit_test(equal_shifts_of_all_values_reach_the_last_turn_alone),
        cmocka_unit_test(the_gain_of_switching_is_fair_and_has_its_sign),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
