/* Estimators against their formulas, their bounds, and the groups that have nothing to teach. */
#include "tests/grow.h"

static const toy lively = {.p_up = 0.5,
                           .goal = 2,
                           .horizon = 9,
                           .p_end = 0.06,
                           .p_error = 0.05,
                           .p_cut = 0.02,
                           .reward_step = 0.1,
                           .max_action = 3,
                           .max_obs = 3};

static const char* const strategies[][2] = {
    {"flat", ""}, {"patr", "interval=2"}, {"patr_retro", "restarts=3"}, {"tree_grpo", "n=3 l=2"}};

static void grow_any(gr_tree* t, uint64_t key)
{
    const char* const* s = strategies[key % GR_COUNT(strategies)];
    grow_named(t, &lively, s[0], s[1], "random", 4, 0, key);
}

static bool near(double a, double b) { return fabs(a - b) <= 1e-12 * (1 + fabs(a) + fabs(b)); }

/* ---- groups ---------------------------------------------------------------------------------- */

static void groups_follow_their_formulas(void** state)
{
    (void)state;
    dice d = {.key = 3};
    for (int trial = 0; trial < 10000; trial++) {
        double r[16], a[16], b[16], sum = 0, total = 0, sq = 0;
        int n = 2 + choose(&d, 15);
        bool binary = trial % 2;
        for (int i = 0; i < n; i++) r[i] = binary ? choose(&d, 2) : 4 * chance(&d) - 2;
        for (int i = 0; i < n; i++) total += r[i];
        for (int i = 0; i < n; i++) sq += (r[i] - total / n) * (r[i] - total / n);
        double std = sqrt(sq / (n - 1)); /* over the whole group, nobody left out */
        gr_group_grpo(r, n, 1e-6, a);
        for (int i = 0; i < n; i++) {
            assert_true(fabs(a[i] - (r[i] - total / n) / (std + 1e-6)) < 1e-9);
            assert_true(fabs(a[i]) <= (n - 1) / sqrt(n) + 1e-12);
            sum += a[i];
        }
        assert_true(fabs(sum) < 1e-9);
        gr_group_grpo(r, n, 0, a); /* the bound is met when one stands out */
        for (int i = 0; i < n; i++) assert_true(fabs(a[i]) <= (n - 1) / sqrt(n) + 1e-12);
        for (int i = 0; i < n; i++) b[i] = 3 * r[i] + 7;
        gr_group_grpo(b, n, 0, b); /* in place */
        for (int i = 0; i < n; i++) assert_true(fabs(a[i] - b[i]) < 1e-9);

        gr_group_mean(r, n, a);
        gr_group_rloo(r, n, b);
        for (int i = 0; i < n; i++) {
            assert_true(near(a[i], r[i] - total / n));
            assert_true(near(b[i], r[i] - (total - r[i]) / (n - 1)));
            assert_true(near(b[i], a[i] * n / (n - 1)));
        }
    }
}

static void the_bound_is_met_by_one_against_all(void** state)
{
    (void)state;
    for (int n = 2; n <= 16; n++) {
        double r[16] = {1}, a[16];
        gr_group_grpo(r, n, 0, a);
        assert_true(fabs(a[0] - (n - 1) / sqrt(n)) < 1e-12);
    }
}

static void equal_rewards_and_singletons_give_exactly_0(void** state)
{
    (void)state;
    void (*const plain[])(const double*, int, double*) = {gr_group_mean, gr_group_rloo};
    const double values[] = {0.4, 0, 1, -0.1, 1.0 / 3, 1e300, 1e-300, 0.1 + 0.2};
    for (int v = 0; v < GR_COUNT(values); v++) {
        for (int n = 1; n <= 40; n++) {
            double r[40], a[40];
            for (int i = 0; i < n; i++) r[i] = values[v];
            for (int eps = 0; eps < 2; eps++) {
                gr_group_grpo(r, n, eps * 1e-6, a);
                for (int i = 0; i < n; i++) assert_true(a[i] == 0);
            }
            for (int k = 0; k < 2; k++) {
                plain[k](r, n, a);
                for (int i = 0; i < n; i++) assert_true(a[i] == 0);
            }
        }
    }
}

/* ---- trees ----------------------------------------------------------------------------------- */

static void leaves_and_returns_are_the_trees(void** state)
{
    (void)state;
    gr_tree t = {0};
    gr_credit c = {0};
    for (uint64_t key = 1; key <= 60; key++) {
        grow_any(&t, key);
        gr_credit_fill(&c, &t, &gr_estimator_grpo, NULL, 1e-6);
        int32_t path[64];
        double a[256];
        assert_int_equal(c.n_leaves, gr_tree_leaves(&t, NULL, 0));
        assert_ptr_equal(c.tree, &t);
        for (int l = 0; l < c.n_leaves; l++) {
            double sum = 0;
            int n = gr_tree_path_nodes(&t, c.leaf[l], path, 64);
            for (int i = 0; i < n; i++) sum += t.reward[path[i]];
            assert_true(fabs(c.ret[l] - sum) < 1e-12);
            assert_true(l == 0 || c.leaf[l] > c.leaf[l - 1]);
            assert_true(c.split[l] > 0 && c.split[l] <= 1);
        }
        gr_group_grpo(c.ret, c.n_leaves, 1e-6, a);
        for (int l = 0; l < c.n_leaves; l++) assert_true(a[l] == c.adv[l]);
        assert_false(c.per_node);
        gr_credit_fill(&c, &t, &gr_estimator_dr_grpo, NULL, 1e-6);
        gr_group_mean(c.ret, c.n_leaves, a);
        for (int l = 0; l < c.n_leaves; l++) assert_true(a[l] == c.adv[l]);
        gr_credit_fill(&c, &t, &gr_estimator_rloo, NULL, 1e-6);
        gr_group_rloo(c.ret, c.n_leaves, a);
        for (int l = 0; l < c.n_leaves; l++) assert_true(a[l] == c.adv[l]);
    }
    gr_credit_free(&c);
    gr_tree_free(&t);
}

static void tree_grpo_adds_both_comparisons(void** state)
{
    (void)state;
    gr_tree t = {0};
    gr_credit c = {0}, flat = {0};
    for (uint64_t key = 1; key <= 60; key++) {
        grow_any(&t, key);
        gr_credit_fill(&c, &t, &gr_estimator_tree_grpo, NULL, 1e-6);
        gr_credit_fill(&flat, &t, &gr_estimator_grpo, NULL, 1e-6);
        for (int l = 0; l < c.n_leaves; l++) {
            double r[256], a[256];
            int n = 0, me = 0;
            for (int k = 0; k < c.n_leaves; k++) {
                if (t.branch[c.leaf[k]] != t.branch[c.leaf[l]]) continue;
                if (k == l) me = n;
                r[n++] = c.ret[k];
            }
            gr_group_grpo(r, n, 1e-6, a);
            assert_true(near(c.adv[l], flat.adv[l] + a[me]));
        }
        /* one tree: twice GRPO. no expansions: GRPO, to the last bit */
        grow_named(&t, &lively, "tree_grpo", "n=3 l=2", "random", 1, 0, key);
        gr_credit_fill(&c, &t, &gr_estimator_tree_grpo, NULL, 1e-6);
        gr_credit_fill(&flat, &t, &gr_estimator_grpo, NULL, 1e-6);
        for (int l = 0; l < c.n_leaves; l++) assert_true(c.adv[l] == 2 * flat.adv[l]);
        grow_named(&t, &lively, "tree_grpo", "n=3 l=0", "random", 6, 0, key);
        gr_credit_fill(&c, &t, &gr_estimator_tree_grpo, NULL, 1e-6);
        gr_credit_fill(&flat, &t, &gr_estimator_grpo, NULL, 1e-6);
        for (int l = 0; l < c.n_leaves; l++) assert_true(c.adv[l] == flat.adv[l]);
    }
    gr_credit_free(&c);
    gr_credit_free(&flat);
    gr_tree_free(&t);
}

/* ---- sibling --------------------------------------------------------------------------------- */

/* V by its definition: split-weighted mean return of the leaves below. */
static double value_of(const gr_credit* c, int node)
{
    double sum = 0, weight = 0;
    for (int l = 0; l < c->n_leaves; l++) {
        int i = c->leaf[l];
        while (i > node) i = c->tree->parent[i];
        if (i != node) continue;
        sum += c->split[l] * c->ret[l];
        weight += c->split[l];
    }
    return weight > 0 ? sum / weight : (double)NAN;
}

static void sibling_compares_at_forks_and_hands_down(void** state)
{
    (void)state;
    gr_tree t = {0};
    gr_credit c = {0};
    int forks = 0, inherited = 0;
    for (uint64_t key = 1; key <= 80; key++) {
        grow_any(&t, key);
        gr_credit_fill(&c, &t, &gr_estimator_sibling, NULL, 1e-6);
        assert_true(c.per_node);
        for (int i = 1; i < t.n_nodes; i++) {
            double v = value_of(&c, i), mean = 0;
            int n = 0;
            if (isnan(v)) {
                assert_true(c.node_adv[i] == 0); /* nothing counted below */
                continue;
            }
            for (int s = 1; s < t.n_nodes; s++) {
                if (t.parent[s] != t.parent[i] || isnan(value_of(&c, s))) continue;
                mean += value_of(&c, s);
                n++;
            }
            if (n > 1) {
                assert_true(fabs(c.node_adv[i] - (v - mean / n)) < 1e-12);
                forks++;
            } else {
                assert_true(c.node_adv[i] == c.node_adv[t.parent[i]]);
                inherited++;
            }
        }
        assert_true(c.node_adv[0] == 0);
    }
    assert_true(forks > 500 && inherited > 500);
    gr_credit_free(&c);
    gr_tree_free(&t);
}

/* ---- gigpo ------------------------------------------------------------------------------- */

/* Discounted return of leaf l from the turn of `node` on. */
static double return_from(const gr_credit* c, int l, int node, double gamma)
{
    double ret = 0;
    for (int i = c->leaf[l];; i = c->tree->parent[i]) {
        ret = c->tree->reward[i] + gamma * ret;
        if (i == node) return ret;
    }
}

/* The comparison of turns by definition: all (leaf, turn) of the tree with node's anchor. */
static double step_part(const gr_credit* c, int leaf, int node, double gamma, bool by_std)
{
    static double r[8192], a[8192];
    const gr_tree* t = c->tree;
    int n = 0, me = -1;
    for (int l = 0; l < c->n_leaves; l++) {
        for (int i = c->leaf[l]; i > 0; i = t->parent[i]) {
            if (t->state_hash[t->parent[i]] != t->state_hash[t->parent[node]]) continue;
            if (l == leaf && i == node) me = n;
            assert_true(n < GR_COUNT(r));
            r[n++] = return_from(c, l, i, gamma);
        }
    }
    if (by_std)
        gr_group_grpo(r, n, 1e-6, a);
    else
        gr_group_mean(r, n, a);
    return a[me];
}

static void fill_gigpo(gr_credit* c, const gr_tree* t, const char* pairs)
{
    void* s = settings_of(gr_estimator_gigpo.block, pairs);
    gr_credit_fill(c, t, &gr_estimator_gigpo, s, 1e-6);
    free(s);
}

static void gigpo_adds_turns_compared_at_equal_states(void** state)
{
    (void)state;
    gr_tree t = {0};
    gr_credit c = {0}, flat = {0};
    int checked = 0, parted = 0;
    for (uint64_t key = 1; key <= 40; key++) {
        grow_any(&t, key);
        bool by_std = key % 2;
        const gr_estimator* episode = by_std ? &gr_estimator_grpo : &gr_estimator_dr_grpo;
        gr_credit_fill(&flat, &t, episode, NULL, 1e-6);
        fill_gigpo(&c, &t, by_std ? "gamma=0.8 omega=0.5" : "gamma=0.8 omega=0.5 norm=mean");
        for (int l = 0; l < c.n_leaves && c.n_leaves > 1; l++) {
            for (int i = c.leaf[l]; i > 0; i = t.parent[i]) {
                double step = step_part(&c, l, i, 0.8, by_std);
                assert_true(fabs(gr_credit_at(&c, l, i) - flat.adv[l] - 0.5 * step) < 1e-9);
                parted += step != 0;
                checked++;
            }
        }
        /* omega = 0: the episode part to the last bit */
        fill_gigpo(&c, &t, by_std ? "omega=0" : "omega=0 norm=mean");
        for (int l = 0; l < c.n_leaves && c.n_leaves > 1; l++) {
            for (int i = c.leaf[l]; i > 0; i = t.parent[i]) {
                assert_true(gr_credit_at(&c, l, i) == flat.adv[l]);
            }
        }
        /* gamma = 0: what the turn itself earned */
        fill_gigpo(&c, &t, "gamma=0 norm=mean");
        gr_credit_fill(&flat, &t, &gr_estimator_dr_grpo, NULL, 1e-6);
        for (int l = 0; l < c.n_leaves && c.n_leaves > 1; l++) {
            int leaf = c.leaf[l];
            assert_true(return_from(&c, l, leaf, 0) == t.reward[leaf]);
            double step = step_part(&c, l, leaf, 0, false);
            assert_true(fabs(gr_credit_at(&c, l, leaf) - flat.adv[l] - step) < 1e-9);
        }
    }
    assert_true(checked > 1000 && parted > 500);
    gr_credit_free(&c);
    gr_credit_free(&flat);
    gr_tree_free(&t);
}

static void gigpo_is_silent_where_no_state_is_met_twice(void** state)
{
    (void)state;
    gr_tree t = {0};
    gr_credit c = {0}, flat = {0};
    for (uint64_t key = 1; key <= 40; key++) {
        grow_named(&t, &lively, "flat", "", "random", 6, 0, key);
        for (int i = 0; i < t.n_nodes; i++) t.state_hash[i] = 7000 + (uint64_t)i;
        gr_credit_fill(&flat, &t, &gr_estimator_grpo, NULL, 1e-6);
        fill_gigpo(&c, &t, "");
        for (int l = 0; l < c.n_leaves && c.n_leaves > 1; l++) {
            for (int i = c.leaf[l]; t.turn[i] > 1; i = t.parent[i]) { /* all first turns meet */
                assert_true(gr_credit_at(&c, l, i) == flat.adv[l]);
            }
        }
        /* identical paths: at every turn the same state and the same reward */
        toy endless = lively;
        endless.p_end = endless.p_error = endless.p_cut = 0;
        grow_named(&t, &endless, "flat", "", "random", 6, 0, key);
        for (int i = 0; i < t.n_nodes; i++) {
            t.state_hash[i] = 7000 + (uint64_t)t.turn[i];
            t.reward[i] = 0.1 * t.turn[i];
        }
        fill_gigpo(&c, &t, "");
        assert_true(c.n_leaves == 6 && c.idle);
        t.reward[c.leaf[3]] += 1;
        fill_gigpo(&c, &t, "");
        assert_false(c.idle);
    }
    gr_credit_free(&c);
    gr_credit_free(&flat);
    gr_tree_free(&t);
}

/* ---- groups that cannot teach ---------------------------------------------------------------- */

static void set_returns(gr_tree* t, double value)
{
    for (int i = 0; i < t->n_nodes; i++) t->reward[i] = t->status[i] == GR_INNER ? 0 : value;
}

static void equal_returns_make_every_estimator_idle(void** state)
{
    (void)state;
    gr_tree t = {0};
    gr_credit c = {0};
    for (uint64_t key = 1; key <= 40; key++) {
        grow_any(&t, key);
        for (int e = 0; gr_estimators[e] != NULL; e++) {
            assert_ptr_equal(gr_estimator_find(gr_estimators[e]->name), gr_estimators[e]);
            if (gr_estimators[e]->ask != NULL) continue; /* its values learn from any group */
            /* gigpo sees when a reward came, so only no reward at all is equal to it */
            bool timed = gr_estimators[e] == &gr_estimator_gigpo;
            set_returns(&t, timed ? 0 : key % 2 ? 0.4 : 1.0 / 3);
            gr_credit_fill(&c, &t, gr_estimators[e], settings_for(gr_estimators[e]), 0);
            for (int l = 0; l < c.n_leaves; l++) assert_true(c.adv[l] == 0);
            for (int i = 0; i < t.n_nodes; i++) assert_true(c.node_adv[i] == 0);
            for (int64_t i = 0; i < c.path_begin[c.n_leaves]; i++) {
                assert_true(c.path_adv[i] == 0);
            }
            assert_true(c.idle);
            if (c.n_leaves < 2) continue;
            t.reward[c.leaf[0]] += 1;
            gr_credit_fill(&c, &t, gr_estimators[e], settings_for(gr_estimators[e]), 1e-6);
            assert_false(c.idle);
        }
    }
    assert_null(gr_estimator_find("nothing"));
    gr_credit_free(&c);
    gr_tree_free(&t);
}

static void singletons_and_empty_trees_are_idle(void** state)
{
    (void)state;
    gr_tree t = {0};
    gr_credit c = {0};
    toy sound = lively;
    sound.p_error = 0;
    for (int e = 0; gr_estimators[e] != NULL; e++) {
        bool compares = gr_estimators[e]->ask == NULL;
        grow_named(&t, &sound, "flat", "", "random", 1, 0, 21);
        gr_credit_fill(&c, &t, gr_estimators[e], settings_for(gr_estimators[e]), 0);
        assert_int_equal(c.n_leaves, 1);
        assert_true(c.ret[0] != 0 && c.adv[0] == 0 && c.idle == compares);
        toy broken = lively;
        broken.p_error = 2; /* every member fails */
        grow_named(&t, &broken, "flat", "", "random", 4, 0, 2);
        gr_credit_fill(&c, &t, gr_estimators[e], settings_for(gr_estimators[e]), 0);
        assert_true(c.n_leaves == 0 && c.idle);
        gr_tree_reset(&t, 0, 0, 0, 0, 1, 0);
        gr_tree_add_root(&t, (const int32_t[]){1}, 1, 4); /* root alone, its reset failed */
        gr_tree_close(&t, 0, GR_ERROR);
        gr_credit_fill(&c, &t, gr_estimators[e], settings_for(gr_estimators[e]), 0);
        assert_true(c.n_leaves == 0 && c.idle);
    }
    gr_credit_free(&c);
    gr_tree_free(&t);
}

/* ---- what credit must not see ---------------------------------------------------------------- */

static uint64_t credit_hash(const gr_credit* c)
{
    size_t n = (size_t)c->n_leaves;
    uint64_t h = gr_hash64(c->leaf, n * sizeof *c->leaf, 0);
    h = gr_hash64(c->ret, n * sizeof *c->ret, h);
    h = gr_hash64(c->split, n * sizeof *c->split, h);
    h = gr_hash64(c->adv, n * sizeof *c->adv, h);
    h = gr_hash64(c->path_adv, (size_t)c->path_begin[c->n_leaves] * sizeof *c->path_adv, h);
    return gr_hash64(c->node_adv, (size_t)c->tree->n_nodes * sizeof *c->node_adv, h);
}

static void errors_and_scores_do_not_reach_credit(void** state)
{
    (void)state;
    gr_tree t = {0};
    gr_credit c = {0};
    int errors = 0;
    for (uint64_t key = 1; key <= 40; key++) {
        for (int e = 0; gr_estimators[e] != NULL; e++) {
            grow_any(&t, key);
            gr_credit_fill(&c, &t, gr_estimators[e], settings_for(gr_estimators[e]), 1e-6);
            uint64_t h = credit_hash(&c);
            for (int i = 0; i < t.n_nodes; i++) {
                t.score[i] = 0.1 * i;
                t.signal[i * GR_SIGNALS] = 7;
                if (t.status[i] != GR_ERROR) continue;
                t.reward[i] = 1e6;
                t.success[i] = true;
                errors++;
            }
            gr_credit_fill(&c, &t, gr_estimators[e], settings_for(gr_estimators[e]), 1e-6);
            assert_true(credit_hash(&c) == h);
        }
    }
    assert_true(errors > 100);
    gr_credit_free(&c);
    gr_tree_free(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(groups_follow_their_formulas),
        cmocka_unit_test(the_bound_is_met_by_one_against_all),
        cmocka_unit_test(equal_rewards_and_singletons_give_exactly_0),
        cmocka_unit_test(leaves_and_returns_are_the_trees),
        cmocka_unit_test(tree_grpo_adds_both_comparisons),
        cmocka_unit_test(sibling_compares_at_forks_and_hands_down),
        cmocka_unit_test(gigpo_adds_turns_compared_at_equal_states),
        cmocka_unit_test(gigpo_is_silent_where_no_state_is_met_twice),
        cmocka_unit_test(equal_returns_make_every_estimator_idle),
        cmocka_unit_test(singletons_and_empty_trees_are_idle),
        cmocka_unit_test(errors_and_scores_do_not_reach_credit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
