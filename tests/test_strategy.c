/* Strategies and scorers: what each checkpoint decides is recomputed here from its published rule,
 * trees have the counts that follow from it, and a strategy differs from another only where it
 * should. */
#include "tests/grow.h"

static const toy straight = {.p_up = 0.5, .goal = 1, .horizon = 10, .max_action = 2, .max_obs = 2};
static const toy lively = {.p_up = 0.5,
                           .goal = 2,
                           .horizon = 10,
                           .p_end = 0.06,
                           .p_error = 0.03,
                           .max_action = 3,
                           .max_obs = 3};

static int n_leaves(const gr_tree* t) { return gr_tree_leaves(t, NULL, 0); }

/* ---- counts ---------------------------------------------------------------------------------- */

/* Leaves and turns of a checkpoint tree in which nothing ends early. */
static void count_patr(int b0, int m, int k, int interval, int horizon, int* leaves, int* turns)
{
    int t = 0;
    *leaves = b0, *turns = 0;
    while (t < horizon) {
        int go = GR_MIN(interval, horizon - t);
        *turns += *leaves * go;
        t += go;
        if (t < horizon) *leaves += GR_MIN(k, *leaves) * (m - 1);
    }
}

static void assert_patr_counts(int b0, int m, int k, int interval, int horizon)
{
    gr_tree t = {0};
    char pairs[128];
    int leaves = 0, turns = 0;
    toy w = straight;
    w.horizon = horizon;
    (void)snprintf(pairs, sizeof pairs, "interval=%d children=%d expand=%d max_leaves=0 alpha=1",
                   interval, m, k);
    count_patr(b0, m, k, interval, horizon, &leaves, &turns);
    grow_named(&t, &w, "patr", pairs, "random", b0, 0, (uint64_t)(b0 + 100 * horizon));
    assert_int_equal(n_leaves(&t), leaves);
    assert_int_equal(t.env_turns, turns);
    int64_t rows = 0; /* full rows need more turns by what the prefixes share */
    for (int i = 1; i < t.n_nodes; i++) {
        if (t.status[i] == GR_TIME_LIMIT) rows += t.turn[i];
    }
    assert_int_equal(rows, leaves * horizon);
    gr_tree_free(&t);
}

static void patr_has_its_published_counts(void** state)
{
    (void)state;
    int leaves = 0, turns = 0;
    count_patr(4, 2, 2, 13, 50, &leaves, &turns);
    assert_true(leaves == 10 && turns == 344); /* SWE-Bench settings */
    count_patr(4, 2, 2, 5, 20, &leaves, &turns);
    assert_true(leaves == 10 && turns == 140);
    assert_patr_counts(4, 2, 2, 13, 50);
    assert_patr_counts(4, 2, 2, 5, 10);
    assert_patr_counts(4, 2, 2, 5, 15);
    assert_patr_counts(4, 2, 2, 5, 20);
    dice d = {.key = 5};
    for (int i = 0; i < 60; i++) {
        assert_patr_counts(1 + choose(&d, 6), 1 + choose(&d, 3), choose(&d, 4), 1 + choose(&d, 7),
                           1 + choose(&d, 20));
    }
}

static void tree_grpo_has_its_published_counts(void** state)
{
    (void)state;
    gr_tree t = {0};
    dice d = {.key = 6};
    for (int i = 0; i < 60; i++) {
        int m = 1 + choose(&d, 4), n = 1 + choose(&d, 3), l = choose(&d, 4);
        char pairs[64];
        (void)snprintf(pairs, sizeof pairs, "n=%d l=%d", n, l);
        grow_named(&t, &straight, "tree_grpo", pairs, "random", m, 0, (uint64_t)i);
        assert_int_equal(n_leaves(&t), m * (l * n + 1));
        int of_branch[8] = {0};
        for (int k = 1; k < t.n_nodes; k++) of_branch[t.branch[k]] += t.status[k] == GR_TIME_LIMIT;
        for (int b = 0; b < m; b++) assert_int_equal(of_branch[b], l * n + 1);
        /* without expansions it is flat */
        if (l == 0) {
            uint64_t h = hash_of(&t);
            grow_named(&t, &straight, "flat", "", "random", m, 0, (uint64_t)i);
            assert_true(hash_of(&t) == h);
        }
    }
    gr_tree_free(&t);
}

/* ---- patr: each checkpoint ------------------------------------------------------------------- */

typedef struct patr_rule {
    double alpha;
    int expand, children, max_leaves, min_active;
    int interval;
    int checkpoints, pruned, expanded, full, unpaid; /* what was seen */
} patr_rule;

static int by_value(const void* a, const void* b)
{
    double x = *(const double*)a, y = *(const double*)b;
    return (x > y) - (x < y);
}

static const gr_decision* decision_on(const gr_decision* d, int n, int node)
{
    const gr_decision* found = NULL;
    for (int i = 0; i < n; i++) {
        if (d[i].node != node) continue;
        assert_null(found); /* one decision per branch */
        found = &d[i];
    }
    return found;
}

static void watch_patr(void* arg, const gr_tree* t, const gr_round* r, const gr_decision* d, int n)
{
    patr_rule* rule = arg;
    double s[512];
    int active[512], n_active = 0, pruned = 0, expanded = 0;
    if (r->number == 0) {
        assert_true(n == 1 && d[0].node == 0 && d[0].n_children == r->group && d[0].branch == -1);
        return;
    }
    for (int i = 1; i < t->n_nodes; i++) {
        if (t->status[i] != GR_OPEN) continue;
        assert_int_equal(t->turn[i], r->number * rule->interval);
        active[n_active] = i;
        s[n_active++] = r->score[i];
    }
    if (n_active == 0) {
        assert_int_equal(n, 0);
        return;
    }
    rule->checkpoints++;
    qsort(s, (size_t)n_active, sizeof *s, by_value);
    double median = n_active % 2 ? s[n_active / 2] : (s[n_active / 2 - 1] + s[n_active / 2]) / 2;
    for (int i = 0; i < n_active; i++) {
        const gr_decision* on = decision_on(d, n, active[i]);
        double score = r->score[active[i]];
        bool below_bar = score < median - rule->alpha;
        bool is_pruned = on != NULL && on->n_children == 0;
        /* everything under the bar goes, from the worst on, as long as min_active stay */
        int better = 0;
        for (int j = 0; j < n_active; j++) better += s[j] > score;
        assert_int_equal(is_pruned, below_bar && better >= rule->min_active);
        if (is_pruned) assert_int_equal(on->status, GR_PRUNED);
        if (on != NULL && on->n_children > 0) {
            assert_int_equal(on->n_children, rule->children);
            assert_true(better < rule->expand);
            expanded++;
        }
        pruned += is_pruned;
    }
    assert_int_equal(n, pruned + expanded);
    int wanted = GR_MIN(rule->expand, n_active - pruned), leaves = n_leaves(t) + n_active;
    int room = wanted, more = rule->children - 1;
    if (rule->max_leaves > 0 && more > 0) room = GR_MAX(rule->max_leaves - leaves, 0) / more;
    if (t->turn_cap > 0 && more > 0) { /* each one has to be paid to the horizon */
        int64_t held = 0;
        for (int i = 0; i < n_active; i++) {
            const gr_decision* on = decision_on(d, n, active[i]);
            held += on != NULL && on->n_children == 0 ? 0 : t->turns_left[active[i]];
        }
        int64_t need = more * (r->horizon - t->turn[active[0]]);
        int paid = (int)((t->turn_cap - t->env_turns - held) / need);
        rule->unpaid += paid < GR_MIN(wanted, room);
        room = GR_MIN(room, paid);
    }
    if (more > 0) assert_int_equal(expanded, GR_MIN(wanted, room)); /* one child: goes on anyway */
    rule->pruned += pruned;
    rule->expanded += expanded;
    rule->full += room < wanted;
}

static void patr_decides_by_its_rule(void** state)
{
    (void)state;
    gr_tree t = {0};
    int pruned = 0, expanded = 0, full = 0, unpaid = 0;
    for (uint64_t key = 1; key <= 300; key++) {
        dice d = {.key = key};
        patr_rule rule = {.alpha = floor(chance(&d) * 4) / 8,
                          .expand = choose(&d, 4),
                          .children = 1 + choose(&d, 3),
                          .max_leaves = choose(&d, 3) ? 5 + choose(&d, 10) : 0,
                          .min_active = 1 + choose(&d, 3),
                          .interval = 1 + choose(&d, 4)};
        char pairs[256];
        (void)snprintf(pairs, sizeof pairs,
                       "alpha=%g expand=%d children=%d max_leaves=%d min_active=%d interval=%d",
                       rule.alpha, rule.expand, rule.children, rule.max_leaves, rule.min_active,
                       rule.interval);
        void* s = settings_of(gr_strategy_patr.block, pairs);
        grower g = {.world = &lively,
                    .strategy = &gr_strategy_patr,
                    .strategy_settings = s,
                    .scorer = &gr_scorer_random,
                    .group = 1 + choose(&d, 6),
                    .watch = watch_patr,
                    .watch_arg = &rule};
        if (key % 2) g.turn_cap = 10 * g.group + choose(&d, 60);
        grow(&g, &t, key);
        if (rule.max_leaves > 0) assert_true(n_leaves(&t) <= GR_MAX(rule.max_leaves, g.group));
        pruned += rule.pruned;
        expanded += rule.expanded;
        full += rule.full;
        unpaid += rule.unpaid;
        free(s);
    }
    assert_true(pruned > 50 && expanded > 50 && full > 20 && unpaid > 20);
    gr_tree_free(&t);
}

/* Scores lie in [0, 1], so nothing can be more than 1 below the median. */
static void alpha_of_one_never_prunes(void** state)
{
    (void)state;
    gr_tree t = {0};
    for (uint64_t key = 1; key <= 40; key++) {
        grow_named(&t, &lively, "patr", "interval=1 alpha=1", "random", 6, 0, key);
        assert_int_equal(count_status(&t, GR_PRUNED), 0);
    }
    gr_tree_free(&t);
}

static void patr_without_branching_is_flat(void** state)
{
    (void)state;
    gr_tree a = {0}, b = {0};
    static const char* const off[] = {"children=1 interval=2 alpha=1 theta=0",
                                      "interval=10 alpha=1 theta=0",
                                      "expand=0 interval=3 alpha=1 theta=11"};
    for (uint64_t key = 1; key <= 20; key++) {
        grow_named(&a, &lively, "flat", "", "random", 5, 0, key);
        for (int i = 0; i < GR_COUNT(off); i++) {
            grow_named(&b, &lively, "patr", off[i], "random", 5, 0, key);
            assert_true(hash_of(&a) == hash_of(&b));
        }
        grow_named(&b, &lively, "patr_retro", "rounds=0", "random", 5, 0, key);
        assert_true(hash_of(&a) == hash_of(&b));
    }
    gr_tree_free(&a);
    gr_tree_free(&b);
}

static void tree_random_is_patr_with_equal_scores(void** state)
{
    (void)state;
    gr_tree a = {0}, b = {0}, c = {0};
    int differs = 0;
    for (uint64_t key = 1; key <= 40; key++) {
        grow_named(&a, &lively, "patr", "interval=2", "constant", 4, 0, key);
        grow_named(&b, &lively, "tree_random", "interval=2", "constant", 4, 0, key);
        assert_true(hash_of(&a) == hash_of(&b));
        for (int i = 0; i < a.n_nodes; i++) {
            assert_true(a.score[i] == b.score[i] || (isnan(a.score[i]) && isnan(b.score[i])));
        }
        grow_named(&b, &lively, "tree_random", "interval=2", "heuristic", 4, 0, key);
        assert_true(hash_of(&a) == hash_of(&b)); /* whatever the scorer says */
        grow_named(&c, &lively, "patr", "interval=2", "heuristic", 4, 0, key);
        differs += hash_of(&a) != hash_of(&c);
    }
    assert_true(differs > 20);
    gr_tree_free(&a);
    gr_tree_free(&b);
    gr_tree_free(&c);
}

/* ---- loops ----------------------------------------------------------------------------------- */

static void loops_are_counted_in_turns(void** state)
{
    (void)state;
    gr_tree t = {0};
    for (uint64_t key = 1; key <= 200; key++) {
        dice d = {.key = key};
        int action[32], hash[32], n = 12;
        gr_tree_reset(&t, 0, 0, 0, 0, key, 0);
        gr_tree_add_root(&t, (const int32_t[]){1}, 1, 40);
        hash[0] = 5;
        gr_tree_set_result(&t, 0, &(gr_obs){.hash = 5});
        char pairs[64];
        int theta = choose(&d, 5);
        (void)snprintf(pairs, sizeof pairs, "theta=%d interval=100", theta);
        void* still = settings_of(gr_strategy_patr.block, pairs);
        (void)snprintf(pairs, sizeof pairs, "theta=%d interval=4 loop=action", theta);
        void* same = settings_of(gr_strategy_patr.block, pairs);
        for (int i = 1, node = 0; i <= n; i++) {
            action[i] = choose(&d, 5) == 0;
            hash[i] = choose(&d, 4) == 0 ? 6 + i : hash[i - 1];
            node = gr_tree_add_child(&t, node, -1);
            gr_tree_set_action(&t, node, (const int32_t[]){action[i]}, (const double[]){-1}, 1, 0);
            gr_tree_set_result(&t, node, &(gr_obs){.hash = (uint64_t)hash[i]});
            int equal = 0, unmoved = 0;
            for (int j = i; j > 0 && action[j] == action[i]; j--) equal++;
            for (int j = i; j > 0 && action[j] == action[i] && hash[j] == hash[j - 1]; j--)
                unmoved++;
            assert_int_equal(gr_repeats(&t, node, false), equal);
            assert_int_equal(gr_repeats(&t, node, true), unmoved);
            assert_int_equal(gr_strategy_patr.verdict(still, &t, node),
                             theta > 0 && unmoved >= theta ? GR_STOP_LOOP : GR_GO_ON);
            gr_verdict expected = i % 4 == 0 ? GR_WAIT : GR_GO_ON;
            if (theta > 0 && equal >= theta) expected = GR_STOP_LOOP;
            assert_int_equal(gr_strategy_patr.verdict(same, &t, node), expected);
        }
        free(still);
        free(same);
    }
    gr_tree_free(&t);
}

/* A straight path repeats its action and moves: only the published rule ends it, at turn theta. */
static void straight_paths_survive_by_default(void** state)
{
    (void)state;
    gr_tree t = {0};
    const toy up = {.p_up = 1.1, .goal = 1, .horizon = 10, .max_action = 1};
    grow_named(&t, &up, "patr", "interval=20", "random", 4, 0, 1);
    assert_int_equal(count_status(&t, GR_LOOP), 0);
    assert_int_equal(count_status(&t, GR_TIME_LIMIT), 4);
    grow_named(&t, &up, "patr", "interval=20 loop=action", "random", 4, 0, 1);
    assert_int_equal(count_status(&t, GR_LOOP), 4);
    for (int i = 1; i < t.n_nodes; i++) {
        if (t.status[i] == GR_LOOP) assert_int_equal(t.turn[i], 6);
    }
    gr_tree_free(&t);
}

/* ---- tree_grpo: each draw -------------------------------------------------------------------- */

typedef struct draws {
    int count[64]; /* by turn of the chosen node, first round only */
    int n;
} draws;

static void watch_draws(void* arg, const gr_tree* t, const gr_round* r, const gr_decision* d, int n)
{
    draws* seen = arg;
    if (r->number == 0) return;
    for (int i = 0; i < n; i++) {
        assert_int_equal(d[i].n_children, 1);
        assert_true(d[i].node == 0 || t->branch[d[i].node] == d[i].branch);
        assert_true(t->status[d[i].node] == GR_INNER);
        if (r->number > 1) continue;
        seen->count[t->turn[d[i].node]]++;
        seen->n++;
    }
}

static void tree_grpo_draws_nodes_uniformly(void** state)
{
    (void)state;
    gr_tree t = {0};
    draws seen = {0};
    void* s = settings_of(gr_strategy_tree_grpo.block, "n=3 l=2");
    grower g = {.world = &straight,
                .strategy = &gr_strategy_tree_grpo,
                .strategy_settings = s,
                .group = 4,
                .watch = watch_draws,
                .watch_arg = &seen};
    for (uint64_t key = 1; key <= 1000; key++) grow(&g, &t, key);
    double chi2 = 0, expected = (double)seen.n / straight.horizon;
    assert_int_equal(seen.n, 1000 * 4 * 3);
    for (int i = 0; i < straight.horizon; i++) {
        chi2 += (seen.count[i] - expected) * (seen.count[i] - expected) / expected;
    }
    assert_true(chi2 < 27.9); /* 9 degrees of freedom: once in a thousand */
    free(s);
    gr_tree_free(&t);
}

/* ---- patr_retro: each round ------------------------------------------------------------------ */

typedef struct retro_rule {
    int rounds, restarts, max_leaves;
    bool all, skip_partly;
    int restarted, skipped, full, twice, unpaid;
} retro_rule;

#define OWNERS 64
typedef struct offers {
    int n_owners;
    bool may[OWNERS];       /* its leaf counts and may be restarted */
    bool has[OWNERS][1024]; /* node is offered */
} offers;

/* Branches as the first rollouts and each restart began them. */
static void collect_offers(const retro_rule* rule, const gr_tree* t, offers* o)
{
    int owner[1024] = {0};
    memset(o, 0, sizeof *o);
    for (int i = 1; i < t->n_nodes; i++) {
        bool begins = t->parent[i] == 0 || t->ordinal[i] > 0;
        owner[i] = begins ? o->n_owners++ : owner[t->parent[i]];
        assert_true(o->n_owners <= OWNERS);
        if (t->parent[i] != 0) o->has[owner[i]][t->parent[i]] = true;
        if (t->status[i] == GR_INNER || t->status[i] == GR_ERROR) continue;
        o->may[owner[i]] = rule->all || !t->success[i];
    }
}

typedef struct choice {
    const offers* o;
    const gr_tree* t;
    const gr_round* r;
    bool used[OWNERS];
    bool must_end; /* nothing may be left to choose */
} choice;

static int64_t price(const choice* c, int node) { return c->r->horizon - c->t->turn[node]; }

static double best_of(const choice* c, int64_t turns)
{
    double best = -1;
    for (int k = 0; k < c->o->n_owners; k++) {
        for (int i = 1; i < c->t->n_nodes && c->o->may[k] && !c->used[k]; i++) {
            if (c->o->has[k][i] && price(c, i) <= turns) best = fmax(best, c->r->score[i]);
        }
    }
    return best;
}

/* Can decisions d[0..n) be the best offers one after the other, each branch used once and each
 * restart paid to the horizon? */
static bool explained(choice* c, int64_t turns, const gr_decision* d, int n)
{
    if (n == 0) return !c->must_end || best_of(c, turns) < 0;
    if (c->r->score[d->node] != best_of(c, turns)) return false;
    for (int k = 0; k < c->o->n_owners; k++) {
        if (!c->o->may[k] || c->used[k] || !c->o->has[k][d->node]) continue;
        c->used[k] = true;
        if (explained(c, turns - price(c, d->node), d + 1, n - 1)) return true;
        c->used[k] = false;
    }
    return false;
}

static void watch_retro(void* arg, const gr_tree* t, const gr_round* r, const gr_decision* d, int n)
{
    static offers o;
    retro_rule* rule = arg;
    int solved = 0, failed = 0, leaves = n_leaves(t);
    if (r->number == 0) return;
    for (int i = 1; i < t->n_nodes; i++) {
        if (t->status[i] == GR_INNER || t->status[i] == GR_ERROR) continue;
        solved += t->success[i];
        failed += !t->success[i];
    }
    bool skipped = rule->skip_partly ? solved > 0 : failed == 0;
    if (r->number > rule->rounds || skipped) {
        assert_int_equal(n, 0);
        rule->skipped += skipped;
        return;
    }
    collect_offers(rule, t, &o);
    int room = rule->max_leaves > 0 ? GR_MAX(rule->max_leaves - leaves, 0) : 1000;
    int most = GR_MIN(rule->restarts, room);
    int64_t turns = t->turn_cap > 0 ? t->turn_cap - t->env_turns : 100000;
    choice c = {.o = &o, .t = t, .r = r, .must_end = n < most};
    assert_true(n <= most);
    assert_true(explained(&c, turns, d, n));
    for (int i = 0; i < n; i++) {
        assert_int_equal(d[i].n_children, 1);
        assert_int_equal(t->status[d[i].node], GR_INNER);
        for (int j = 0; j < i; j++) rule->twice += d[j].node == d[i].node;
    }
    rule->restarted += n;
    rule->full += room < rule->restarts;
    rule->unpaid += n < most && turns < 1000;
}

static void patr_retro_restarts_the_best_failures(void** state)
{
    (void)state;
    gr_tree t = {0};
    int restarted = 0, skipped = 0, full = 0, twice = 0, unpaid = 0;
    for (uint64_t key = 1; key <= 900; key++) {
        dice d = {.key = key};
        retro_rule rule = {.rounds = choose(&d, 4),
                           .restarts = 1 + choose(&d, 4),
                           .max_leaves = choose(&d, 3) ? 4 + choose(&d, 8) : 0,
                           .all = choose(&d, 4) == 0,
                           .skip_partly = choose(&d, 4) == 0};
        char pairs[256];
        toy w = lively;
        w.goal = choose(&d, 9) - 5; /* from mostly solved to mostly failed tasks */
        (void)snprintf(pairs, sizeof pairs, "rounds=%d restarts=%d max_leaves=%d from=%s skip=%s",
                       rule.rounds, rule.restarts, rule.max_leaves, rule.all ? "all" : "failing",
                       rule.skip_partly ? "partly_solved" : "solved");
        void* s = settings_of(gr_strategy_patr_retro.block, pairs);
        grower g = {.world = &w,
                    .strategy = &gr_strategy_patr_retro,
                    .strategy_settings = s,
                    .scorer = &gr_scorer_random,
                    .group = 1 + choose(&d, 5),
                    .watch = watch_retro,
                    .watch_arg = &rule};
        if (key % 2) g.turn_cap = 10 * g.group + choose(&d, 20);
        grow(&g, &t, key);
        restarted += rule.restarted;
        skipped += rule.skipped;
        full += rule.full;
        twice += rule.twice;
        unpaid += rule.unpaid;
        free(s);
    }
    assert_true(restarted > 500 && skipped > 100 && full > 50 && twice > 1 && unpaid > 50);
    gr_tree_free(&t);
}

/* ---- turn caps ------------------------------------------------------------------------------- */

/* Branching that a tree's turns cannot pay for in full is left out: no branch is cut by the cap. */
static void caps_skip_branches_instead_of_cutting_them(void** state)
{
    (void)state;
    gr_tree t = {0};
    static const char* const s[][2] = {{"patr", "interval=2 alpha=0.2 max_leaves=0"},
                                       {"patr_retro", "rounds=4 max_leaves=0"},
                                       {"tree_grpo", "n=3 l=3"},
                                       {"tree_random", "interval=3 max_leaves=0"}};
    for (int i = 0; i < GR_COUNT(s); i++) {
        int64_t last = 0;
        for (int cap = 40; cap <= 140; cap += 20) { /* four branches of ten turns fit */
            int64_t turns = 0;
            for (uint64_t key = 1; key <= 20; key++) {
                grow_named(&t, &lively, s[i][0], s[i][1], "random", 4, cap, key);
                assert_int_equal(count_status(&t, GR_TRUNCATED), 0);
                assert_true(t.env_turns <= cap);
                turns += t.env_turns;
            }
            assert_true(turns >= last);
            last = turns;
        }
    }
    gr_tree_free(&t);
}

/* ---- unbiasedness ---------------------------------------------------------------------------- */

/* Probability that a fair walk of n steps ends at `goal` or above. */
static double walk_success(int n, int goal)
{
    double p[64] = {[32] = 1};
    for (int i = 0; i < n; i++) {
        double q[64] = {0};
        for (int x = 1; x < 63; x++) q[x] = 0.5 * (p[x - 1] + p[x + 1]);
        memcpy(p, q, sizeof p);
    }
    double sum = 0;
    for (int x = 32 + goal; x < 64; x++) sum += p[x];
    return sum;
}

/* Better prefixes get more leaves, so the plain mean over leaves flatters the policy;
 * multiplicities undo that exactly. */
static void split_weights_are_unbiased(void** state)
{
    (void)state;
    gr_tree t = {0};
    const toy w = {.p_up = 0.5, .goal = 3, .horizon = 9, .max_action = 1};
    double split = 0, plain = 0, truth = walk_success(9, 3);
    const int trees = 10000;
    for (int i = 0; i < trees; i++) {
        int32_t leaf[64];
        double s[64], sum = 0, won = 0;
        grow_named(&t, &w, "patr", "interval=3 alpha=1 max_leaves=0", "heuristic", 4, 0,
                   (uint64_t)i);
        int n = gr_tree_leaves(&t, leaf, 64);
        gr_tree_split(&t, leaf, n, s);
        for (int l = 0; l < n; l++) {
            sum += s[l] * t.success[leaf[l]];
            won += t.success[leaf[l]];
        }
        split += sum / 4 / trees;
        plain += won / n / trees;
    }
    assert_true(fabs(truth - 130.0 / 512) < 1e-12); /* 9 choose 6 and above */
    assert_true(fabs(split - truth) < 0.01);
    assert_true(plain - truth > 0.03);
    gr_tree_free(&t);
}

/* ---- ranking --------------------------------------------------------------------------------- */

static void ranks_descend_and_ties_are_drawn(void** state)
{
    (void)state;
    dice d = {.key = 9};
    int first[4] = {0};
    for (int i = 0; i < 2000; i++) {
        double score[20];
        int32_t node[20], again[20];
        int n = 1 + choose(&d, 19);
        for (int k = 0; k < n; k++) score[k] = choose(&d, 4);
        for (int k = 0; k < n; k++) node[k] = k, again[k] = n - 1 - k;
        uint64_t key = d.at;
        gr_rank(node, n, score, key);
        gr_rank(again, n, score, key);
        bool seen[20] = {false};
        for (int k = 0; k < n; k++) {
            assert_true(!seen[node[k]] &&
                        node[k] == again[k]); /* the order given does not matter */
            seen[node[k]] = true;
            if (k > 0) assert_true(score[node[k - 1]] >= score[node[k]]);
        }
        int32_t tied[4] = {0, 1, 2, 3};
        gr_rank(tied, 4, (const double[]){1, 1, 1, 1}, key);
        first[tied[0]]++;
    }
    for (int k = 0; k < 4; k++) assert_in_range(first[k], 430, 570); /* 500, 3.6 deviations */
}

/* ---- scorers --------------------------------------------------------------------------------- */

static void score_all(const gr_scorer* s, const void* settings, const gr_tree* t, uint64_t key,
                      double* out)
{
    int32_t node[2048];
    for (int i = 0; i < t->n_nodes; i++) node[i] = i;
    s->score(settings, t, &toy_facts, key, node, t->n_nodes, out);
}

static void scorers_score_what_they_say(void** state)
{
    (void)state;
    gr_tree t = {0};
    toy w = lively;
    static double h[2048], x[2048], y[2048];
    w.reward_step = 0.1;
    int drawn = 0, n = 0, low = 0;
    for (uint64_t key = 1; key <= 60; key++) {
        grow_named(&t, &w, "patr", "interval=2", "random", 4, 0, key);
        char* weights = settings_of(gr_scorer_heuristic.block, "");
        (void)snprintf(weights, GR_TEXT_MAX, "luck=-0.5  progress=1.25");
        score_all(&gr_scorer_heuristic, weights, &t, key, h);
        for (int i = 0; i < t.n_nodes; i++) {
            const double* s = t.signal + (int64_t)i * GR_SIGNALS;
            double sum = fmin(fmax(1.25 * s[0] - 0.5 * s[1], 0), 1);
            if (t.status[i] == GR_TERMINAL) sum = t.success[i];
            assert_true(fabs(h[i] - sum) < 1e-15);
            assert_true(h[i] == gr_heuristic_score(weights, &t, &toy_facts, i));
            low += h[i] == 0;
        }
        score_all(&gr_scorer_random, NULL, &t, key, x);
        score_all(&gr_scorer_random, NULL, &t, key + 1000, y);
        for (int i = 0; i < t.n_nodes; i++) {
            bool end = t.status[i] == GR_TERMINAL;
            assert_true(x[i] >= 0 && x[i] <= 1 && (end ? x[i] == t.success[i] : x[i] != y[i]));
        }
        score_all(&gr_scorer_reward_only, NULL, &t, key, x);
        for (int i = 0; i < t.n_nodes; i++) {
            bool end = t.status[i] == GR_TERMINAL;
            double sum = fmin(fmax(gr_tree_return(&t, i), 0), 1);
            assert_true(x[i] == (end ? t.success[i] : sum));
        }
        void* c = settings_of(gr_scorer_constant.block, "value=0.25");
        score_all(&gr_scorer_constant, c, &t, key, x);
        for (int i = 0; i < t.n_nodes; i++) {
            assert_true(x[i] == (t.status[i] == GR_TERMINAL ? t.success[i] : 0.25));
        }
        char* noisy = settings_of(gr_scorer_noisy.block, "p=0.3");
        memcpy(noisy, weights, GR_TEXT_MAX);
        score_all(&gr_scorer_noisy, noisy, &t, key, x);
        for (int i = 0; i < t.n_nodes; i++) {
            if (t.status[i] == GR_TERMINAL) assert_true(x[i] == t.success[i]);
            drawn += x[i] != h[i];
            n += t.status[i] != GR_TERMINAL;
        }
        free(weights);
        free(c);
        free(noisy);
    }
    assert_true(low > 0);
    assert_true(fabs((double)drawn / n - 0.3) < 4 * sqrt(0.21 / n));
    gr_tree_free(&t);
}

/* A chain of one step from a signal of 3, which the rule critic sees as `level`. */
static void assert_rule(const gr_obs* o, const char* signal, int level, const char* why)
{
    gr_tree t = {0};
    char text[128];
    double score = -1;
    char* s = settings_of(gr_scorer_rule_critic.block, "");
    (void)snprintf(s, GR_TEXT_MAX, "%s", signal);
    gr_tree_reset(&t, 0, 0, 0, 0, 1, 0);
    gr_tree_add_root(&t, (const int32_t[]){1}, 1, 8);
    gr_tree_set_result(&t, 0, &(gr_obs){.hash = 5, .signal = {3, 3}});
    int node = gr_tree_add_child(&t, 0, -1);
    gr_tree_set_action(&t, node, (const int32_t[]){1}, (const double[]){0}, 1, 0);
    gr_tree_set_result(&t, node, o);
    gr_scorer_rule_critic.score(s, &t, &toy_facts, 0, (const int32_t[]){node}, 1, &score);
    assert_true(score * GR_LEVELS == level);
    int n = gr_scorer_rule_critic.critique(s, &t, node, score, text, sizeof text);
    assert_int_equal(n, (int)strlen(text));
    assert_non_null(strstr(text, why));
    gr_tree_free(&t);
    free(s);
}

static void the_rule_critic_judges_what_a_step_did(void** state)
{
    (void)state;
    const gr_obs hole = {.hash = 6, .end = GR_END_TERMINAL, .signal = {2, 2}};
    const gr_obs goal = {.hash = 6, .end = GR_END_TERMINAL, .success = true, .signal = {9, 9}};
    assert_rule(&hole, "luck", 0, "ended the episode");
    assert_rule(&(gr_obs){.hash = 5, .signal = {3, 3}}, "luck", 2, "nothing");
    assert_rule(&(gr_obs){.hash = 6, .signal = {1, 4}}, "luck", 4, "away");
    assert_rule(&(gr_obs){.hash = 6, .signal = {1, 3}}, "luck", 6, "no nearer");
    assert_rule(&(gr_obs){.hash = 6, .signal = {1, 2}}, "luck", 8, "nearer");
    assert_rule(&(gr_obs){.hash = 6, .signal = {1, 4}}, "progress", 8, "nearer");
    assert_rule(&goal, "luck", 10, "solved");
    char* s = settings_of(gr_scorer_rule_critic.block, ""); /* signal = distance */
    assert_int_equal(gr_scorer_check(&gr_scorer_rule_critic, s, &toy_facts), GR_EARG);
    assert_non_null(strstr(gr_last_error_text(), "reports no `distance`"));
    assert_int_equal(gr_scorer_check(&gr_scorer_rule_critic, s, gr_world_find("keydoor")), GR_OK);
    free(s);
}

static void weights_are_checked_before_the_run(void** state)
{
    (void)state;
    static const struct {
        const char *weights, *reason; /* NULL: accepted */
    } cases[] = {
        {"progress=0.7 luck=0.2", NULL},
        {"  luck=-1e-3,progress=2 ", NULL},
        {"progress=0.7 safe_novelty=0.2", "reports no `safe_novelty`; it reports: progress, luck"},
        {"progres=1", "reports no `progres`"},
        {"progress", "is not name=weight"},
        {"progress=", "is not name=weight"},
        {"progress=x", "is not name=weight"},
        {"progress=1x", "is not name=weight"},
        {"=1", "is not name=weight"},
        {"progress=nan", "is not name=weight"},
        {"progress=inf", "is not name=weight"},
        {"luck=1 progress=1 luck=2", "`luck` is named twice"},
        {"", "empty"},
        {" , ", "empty"},
    };
    const gr_scorer* const both[] = {&gr_scorer_heuristic, &gr_scorer_noisy};
    for (int k = 0; k < 2; k++) {
        char* s = settings_of(both[k]->block, "");
        for (int i = 0; i < GR_COUNT(cases); i++) {
            (void)snprintf(s, GR_TEXT_MAX, "%s", cases[i].weights);
            gr_status st = gr_scorer_check(both[k], s, &toy_facts);
            assert_int_equal(st, cases[i].reason == NULL ? GR_OK : GR_EARG);
            if (st == GR_OK) continue;
            assert_non_null(strstr(gr_last_error_text(), cases[i].reason));
            assert_non_null(strstr(gr_last_error_text(), both[k]->block->name));
        }
        free(s);
    }
    assert_int_equal(gr_scorer_check(&gr_scorer_random, NULL, &toy_facts), GR_OK);
}

/* ---- lists ----------------------------------------------------------------------------------- */

static void check_block(const gr_block* b)
{
    for (int i = 0; b != NULL && i < b->n_settings; i++) {
        const gr_setting* s = &b->setting[i];
        assert_true(s->help != NULL && s->help[0] != 0);
        if (s->type == GR_INT || s->type == GR_REAL) {
            assert_true(s->def >= s->min && s->def <= s->max);
        }
    }
}

static void lists_know_their_members(void** state)
{
    (void)state;
    for (int i = 0; gr_strategies[i] != NULL; i++) {
        assert_ptr_equal(gr_strategy_find(gr_strategies[i]->name), gr_strategies[i]);
        check_block(gr_strategies[i]->block);
    }
    for (int i = 0; gr_scorers[i] != NULL; i++) {
        assert_ptr_equal(gr_scorer_find(gr_scorers[i]->name), gr_scorers[i]);
        const gr_scorer* s = gr_scorers[i]; /* a model's call and a run of tests cost a turn */
        assert_int_equal(s->turn_cost, s->question != NULL || s->look != NULL);
        check_block(gr_scorers[i]->block);
    }
    assert_null(gr_strategy_find("nothing"));
    assert_null(gr_scorer_find(""));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(patr_has_its_published_counts),
        cmocka_unit_test(tree_grpo_has_its_published_counts),
        cmocka_unit_test(patr_decides_by_its_rule),
        cmocka_unit_test(alpha_of_one_never_prunes),
        cmocka_unit_test(patr_without_branching_is_flat),
        cmocka_unit_test(tree_random_is_patr_with_equal_scores),
        cmocka_unit_test(loops_are_counted_in_turns),
        cmocka_unit_test(straight_paths_survive_by_default),
        cmocka_unit_test(tree_grpo_draws_nodes_uniformly),
        cmocka_unit_test(patr_retro_restarts_the_best_failures),
        cmocka_unit_test(caps_skip_branches_instead_of_cutting_them),
        cmocka_unit_test(split_weights_are_unbiased),
        cmocka_unit_test(ranks_descend_and_ties_are_drawn),
        cmocka_unit_test(scorers_score_what_they_say),
        cmocka_unit_test(the_rule_critic_judges_what_a_step_did),
        cmocka_unit_test(weights_are_checked_before_the_run),
        cmocka_unit_test(lists_know_their_members),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
