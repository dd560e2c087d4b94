/* Advantages from values: the identities that hold for any rewards, values and switches, on paths
 * and on the paths of trees. */
#include "host/advantage/gae.h"
#include "tests/grow.h"

enum { TURNS = 9, CASES = 500 };

typedef struct path {
    int n;
    double reward[TURNS], low[TURNS], high[TURNS];
    bool switched[TURNS];
    double gamma, lambda_low, lambda_high;
    double a_low[TURNS], a_high[TURNS], to_go[TURNS]; /* out */
} path;

static double any(uint64_t key, int i) { return gr_uniform(key, (uint64_t)i); }
static bool near(double a, double b) { return fabs(a - b) <= 1e-9 * (1 + fabs(a) + fabs(b)); }

static path any_path(uint64_t key)
{
    static const double gammas[] = {1, 0.95, 0.9};
    path p = {.n = 1 + (int)(any(key, 0) * TURNS),
              .gamma = gammas[key % 3],
              .lambda_low = any(key, 1),
              .lambda_high = any(key, 2)};
    for (int t = 0; t < p.n; t++) {
        p.reward[t] = 4 * any(key, 10 + 4 * t) - 2;
        p.low[t] = 4 * any(key, 11 + 4 * t) - 2;
        p.high[t] = 4 * any(key, 12 + 4 * t) - 2;
        p.switched[t] = any(key, 13 + 4 * t) < 0.4;
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
        double after = any(key, 3);
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
        int k = (int)(any(key, 4) * p.n), begin = segment_begin(&p, k);
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
        double beta = 0.01 + 0.98 * any(key, 0), high = any(key, 1), low = any(key, 2);
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

/* ---- on trees ---------------------------------------------------------------------------------- */

static const toy lively = {.p_up = 0.5,
                           .goal = 2,
                           .horizon = 8,
                           .p_end = 0.1,
                           .p_error = 0.05,
                           .p_cut = 0.03,
                           .reward_step = 0.1,
                           .max_action = 4,
                           .max_obs = 3};
static const char* const strategies[][2] = {
    {"flat", ""}, {"patr", "interval=2 alpha=0.1"}, {"patr_retro", "restarts=3"}};

static double any_value(const gr_read* r)
{
    return 2 * gr_uniform((uint64_t)r->node * 1000 + (uint64_t)r->offset, (uint64_t)r->head) - 1;
}

/* A tree with credit whose reads are answered by any_value; zero: by 0. */
static void credit_tree(gr_credit* c, gr_tree* t, uint64_t key, const char* settings, bool zero)
{
    const char* const* s = strategies[key % GR_COUNT(strategies)];
    void* block = settings_of(gr_estimator_gae.block, settings);
    grow_named(t, &lively, s[0], s[1], "random", 4, 0, key);
    gr_credit_begin(c, t, &gr_estimator_gae, block);
    for (int i = 0; i < c->n_reads; i++) c->read[i].value = zero ? 0 : any_value(&c->read[i]);
    gr_credit_finish(c, &gr_estimator_gae, block, 0);
    free(block);
}

/* Rewards from `node` to the leaf. */
static double rest(const gr_tree* t, int leaf, int node)
{
    double sum = 0;
    for (; leaf >= node && leaf > 0; leaf = t->parent[leaf]) sum += t->reward[leaf];
    return sum;
}

/* lambda = gamma = 1: every leaf gives its return from here on, less the value, at each level. */
static void at_lambda_1_every_leaf_gives_its_return_less_the_value(void** state)
{
    (void)state;
    static const char* const levels[] = {"turn", "token", "bi_level"};
    gr_tree t = {0};
    gr_credit c = {0};
    int shared = 0;
    for (uint64_t key = 1; key <= 90; key++) {
        char settings[96];
        (void)snprintf(settings, sizeof settings, "level=%s lambda=1 normalise=false",
                       levels[key / 3 % 3]);
        credit_tree(&c, &t, key, settings, key % 7 == 0);
        for (int l = 0; l < c.n_leaves; l++) {
            for (int i = c.leaf[l]; i > 0; i = t.parent[i]) {
                double want = rest(&t, c.leaf[l], i);
                for (int k = 0; k < t.n_action[i]; k++) {
                    double value = gr_credit_value(&c, i, key / 3 % 3 == 0 ? 0 : k, 0);
                    assert_true(near(gr_credit_token(&c, l, i, k), want - value));
                }
            }
        }
        for (int64_t i = 0; i < c.n_targets; i++) { /* the targets are the returns themselves */
            const gr_target* g = &c.target[i];
            const gr_read* r = &c.read[g->read];
            bool inside = r->node > 0 && r->offset + 1 < t.n_action[r->node];
            int next = c.leaf[g->leaf]; /* the turn that the read answers, or stands in */
            while (!inside && t.parent[next] != r->node) next = t.parent[next];
            if (inside) next = r->node;
            shared += g->leaf > 0;
            assert_true(near(g->ret, rest(&t, c.leaf[g->leaf], next)));
            assert_true(near(g->weight * (key / 3 % 3 == 0 ? t.turn[c.leaf[g->leaf]] : 1), 1) ||
                        key / 3 % 3 != 0);
        }
        assert_false(c.idle && c.n_leaves > 0);
    }
    assert_true(shared > 1000);
    gr_credit_free(&c);
    gr_tree_free(&t);
}

/* lambda = 0 leaves one-step errors: within a turn of bi_level, differences of values. */
static void at_lambda_0_errors_are_of_one_step(void** state)
{
    (void)state;
    gr_tree t = {0};
    gr_credit c = {0};
    for (uint64_t key = 1; key <= 60; key++) {
        bool turns = key / 3 % 2;
        credit_tree(&c, &t, key,
                    turns ? "level=turn lambda=0 gamma=0.9 normalise=false"
                          : "level=token lambda=0 gamma=0.9 normalise=false",
                    false);
        for (int l = 0; l < c.n_leaves; l++) {
            int after = -1; /* the node that follows on the path */
            for (int i = c.leaf[l]; i > 0; after = i, i = t.parent[i]) {
                double next = after > 0 ? gr_credit_value(&c, after, 0, 0) : 0;
                for (int k = t.n_action[i] - 1; k >= 0; k--) {
                    double reward = turns || k == t.n_action[i] - 1 ? t.reward[i] : 0;
                    double value = gr_credit_value(&c, i, turns ? 0 : k, 0);
                    double delta = reward + 0.9 * next - value;
                    assert_true(near(gr_credit_token(&c, l, i, k), delta));
                    if (!turns) next = value;
                }
            }
        }
    }
    gr_credit_free(&c);
    gr_tree_free(&t);
}

/* With values 0, gamma = lambda = 1 and no whitening every token of a leaf carries what is still to
 * come, whatever the level; a path that was cut off goes on from its last value if told to. */
static void cut_paths_go_on_from_their_last_value(void** state)
{
    (void)state;
    gr_tree t = {0};
    gr_credit c = {0};
    int cut = 0;
    for (uint64_t key = 1; key <= 60; key++) {
        credit_tree(&c, &t, key, "lambda=1 bootstrap=true normalise=false", false);
        for (int l = 0; l < c.n_leaves; l++) {
            int leaf = c.leaf[l];
            bool ended = t.status[leaf] == GR_TERMINAL;
            double after = ended ? 0 : gr_credit_value_end(&c, leaf, 0);
            assert_true(near(gr_credit_at(&c, l, leaf),
                             t.reward[leaf] + after - gr_credit_value(&c, leaf, 0, 0)));
            cut += !ended;
        }
    }
    assert_true(cut > 100);
    gr_credit_free(&c);
    gr_tree_free(&t);
}

static void normalised_advantages_have_mean_0_and_deviation_1(void** state)
{
    (void)state;
    static gr_tree t[3];
    static gr_credit c[3];
    for (uint64_t key = 1; key <= 30; key++) {
        bool turns = key % 2;
        double n = 0, sum = 0, sq = 0;
        for (int g = 0; g < 3; g++) {
            credit_tree(&c[g], &t[g], 3 * key + (uint64_t)g, turns ? "" : "level=token", false);
        }
        gr_credit_normalise(c, 3);
        for (int g = 0; g < 3; g++) {
            for (int l = 0; l < c[g].n_leaves; l++) {
                for (int i = c[g].leaf[l]; i > 0; i = t[g].parent[i]) {
                    for (int k = 0; k < (turns ? 1 : t[g].n_action[i]); k++) {
                        double a = gr_credit_token(&c[g], l, i, k);
                        n++, sum += a, sq += a * a;
                    }
                }
            }
        }
        assert_true(fabs(sum / n) < 1e-9 && fabs(sq / n - 1) < 1e-6);
    }
    for (int g = 0; g < 3; g++) gr_credit_free(&c[g]), gr_tree_free(&t[g]);
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
        cmocka_unit_test(at_lambda_1_every_leaf_gives_its_return_less_the_value),
        cmocka_unit_test(at_lambda_0_errors_are_of_one_step),
        cmocka_unit_test(cut_paths_go_on_from_their_last_value),
        cmocka_unit_test(normalised_advantages_have_mean_0_and_deviation_1),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
