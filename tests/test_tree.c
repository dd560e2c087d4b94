/* The tree under random legal operations: it stays sound, its order does not depend on history,
 * its turns never exceed the cap, and its leaves and multiplicities are those of a recursive
 * reading. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/grow.h"

/* ---- tokens ---------------------------------------------------------------------------------- */

static void add_turn(gr_tree* t, int node, const char* action, const char* obs, gr_end end)
{
    int32_t token[64];
    double logp[64] = {0};
    gr_obs o = {.end = end, .reward = 1};
    int n = gr_encode(NULL, GR_PLAIN, action, (int)strlen(action), token, 64);
    for (int i = 0; i < n; i++) logp[i] = -0.5 * (i + 1);
    gr_tree_set_action(t, node, token, logp, n, 9);
    if (obs == NULL) return;
    gr_tree_set_result(t, node, &o);
    n = gr_encode(NULL, GR_PLAIN, obs, (int)strlen(obs), token, 64);
    gr_tree_set_obs(t, node, token, n);
}

static gr_tree root_of(const char* prompt, int horizon, int64_t turn_cap)
{
    int32_t token[64];
    gr_tree t = {0};
    gr_tree_reset(&t, 1, 0, 0, 7, 42, turn_cap);
    gr_tree_add_root(&t, token, gr_encode(NULL, GR_PLAIN, prompt, (int)strlen(prompt), token, 64),
                     horizon);
    return t;
}

static void nodes_stay_contiguous_when_branches_interleave(void** state)
{
    (void)state;
    gr_tree t = root_of("go:", 5, 0);
    char text[64];
    gr_obs o = {.reward = 0.25};
    int a = gr_tree_add_child(&t, 0, -1), b = gr_tree_add_child(&t, 0, -1);
    add_turn(&t, a, "left", NULL, GR_RUNNING);
    add_turn(&t, b, "right", " wall", GR_RUNNING); /* behind a's action */
    gr_tree_set_result(&t, a, &o);
    gr_tree_set_obs(&t, a, (const int32_t[]){' ', 'i', 'c', 'e'}, 4); /* a's action has to move */
    gr_tree_check(&t);
    gr_tree_action_text(&t, a, text, 64);
    assert_string_equal(text, "left");
    gr_tree_obs_text(&t, a, text, 64);
    assert_string_equal(text, " ice");
    assert_true(t.logp[t.token_begin[a] + 3] == -2 && t.logp[t.token_begin[a] + 4] == 0);

    int c = gr_tree_add_child(&t, a, -1);
    add_turn(&t, c, "up", " ok", GR_RUNNING);
    gr_tree_order(&t);
    assert_int_equal(t.n_tokens, strlen("go:left iceright wallup ok")); /* no hole is left */
    int32_t path[64], nodes[8];
    int n = gr_tree_path_tokens(&t, c, path, 64);
    assert_int_equal(n, gr_tree_path_length(&t, c));
    gr_decode(NULL, GR_PLAIN, path, n, text, 64);
    assert_string_equal(text, "go:left iceup ok");
    assert_int_equal(gr_tree_path_nodes(&t, c, nodes, 8), 3);
    assert_true(nodes[0] == 0 && nodes[1] == a && nodes[2] == c);
    assert_true(gr_tree_return(&t, c) == 1.25);
    gr_tree_free(&t);
}

static void equal_actions_are_recognised(void** state)
{
    (void)state;
    gr_tree t = root_of("x", 5, 0);
    const char* const action[] = {"up", "up", "u", "upp", "uq"};
    int node[5];
    for (int i = 0; i < 5; i++) {
        node[i] = gr_tree_add_child(&t, 0, -1);
        add_turn(&t, node[i], action[i], i % 2 ? "a" : "b", GR_RUNNING);
    }
    for (int i = 0; i < 5; i++) {
        for (int j = 0; j < 5; j++) {
            bool equal = strcmp(action[i], action[j]) == 0;
            assert_int_equal(gr_tree_same_action(&t, node[i], node[j]), equal);
        }
    }
    gr_tree_free(&t);
}

/* ---- random operations ----------------------------------------------------------------------- */

/* What a node holds follows from its uid alone, so it can be checked after any renumbering. */
static int32_t token_of(uint64_t uid, int i)
{
    return (int32_t)(gr_key_join(uid, 1000 + i) % 9999);
}
static int length_of(uint64_t uid, int what) { return (int)(gr_key_join(uid, what) % 6); }

static void check_tokens(const gr_tree* t, const bool* acted)
{
    for (int i = 1; i < t->n_nodes; i++) {
        if (t->n_action[i] > 0 || acted[i])
            assert_int_equal(t->n_action[i], length_of(t->uid[i], 1));
        if (t->stepped[i]) assert_int_equal(t->n_obs[i], length_of(t->uid[i], 2));
        for (int k = 0; k < gr_node_tokens(t, i); k++) {
            bool action = k < t->n_action[i];
            assert_int_equal(t->token[t->token_begin[i] + k], token_of(t->uid[i], k));
            assert_true(t->logp[t->token_begin[i] + k] == (action ? -1.0 - k : 0));
        }
    }
}

static void act_or_answer(gr_tree* t, int node, bool* acted, dice* d)
{
    int32_t token[16];
    double logp[16];
    int n_action = length_of(t->uid[node], 1), n_obs = length_of(t->uid[node], 2);
    if (!acted[node]) {
        for (int i = 0; i < n_action; i++) token[i] = token_of(t->uid[node], i), logp[i] = -1 - i;
        gr_tree_set_action(t, node, token, logp, n_action, 1);
        acted[node] = true;
        return;
    }
    int kind = choose(d, 12);
    if (kind == 0) {
        gr_tree_close(t, node, choose(d, 2) ? GR_ERROR : GR_TRUNCATED);
        return;
    }
    gr_obs o = {.end = kind == 1 ? GR_END_TERMINAL : kind == 2 ? GR_END_TIME_LIMIT : GR_RUNNING};
    int64_t before = t->env_turns;
    gr_tree_set_result(t, node, &o);
    assert_int_equal(t->env_turns, before + 1);
    for (int i = 0; i < n_obs; i++) token[i] = token_of(t->uid[node], n_action + i);
    gr_tree_set_obs(t, node, token, n_obs);
}

static void extend(gr_tree* t, int node, dice* d)
{
    int left = node > 0 && t->status[node] == GR_OPEN ? t->turns_left[node] : -1;
    int64_t free_turns = gr_tree_turns_free(t), reserved = t->turns_reserved;
    int n_nodes = t->n_nodes, horizon = t->turns_left[0];
    int child = gr_tree_add_child(t, node, node == 0 && n_nodes > 1 ? choose(d, 2) - 1 : -1);
    if (left >= 0) { /* the leaf's grant moved */
        assert_true(child >= 0 || left == 0);
        if (child < 0) return;
        assert_int_equal(t->turns_left[child], left);
        assert_int_equal(t->turns_reserved, reserved);
        return;
    }
    int64_t expected = GR_MIN(horizon - t->turn[node], free_turns);
    assert_int_equal(child >= 0, expected > 0);
    if (child >= 0) assert_int_equal(t->turns_left[child], expected);
    if (child < 0) assert_true(t->n_nodes == n_nodes && t->turns_reserved == reserved);
}

/* One legal operation on a random node. */
static void operate(gr_tree* t, bool* acted, dice* d)
{
    int node = choose(d, t->n_nodes);
    gr_node_status s = t->status[node];
    int running = count_status(t, GR_ACTING);
    if (s == GR_ACTING) {
        act_or_answer(t, node, acted, d);
        if (t->status[node] == GR_OPEN && t->turn[node] == t->turns_left[0]) {
            gr_tree_close(t, node, GR_TIME_LIMIT);
        } else if (t->status[node] == GR_OPEN && t->turns_left[node] == 0) {
            gr_tree_close(t, node, GR_TRUNCATED);
        }
    } else if (s == GR_OPEN && node > 0 && choose(d, 6) == 0) {
        gr_tree_close(t, node, GR_LOOP + choose(d, 4));
    } else if (s == GR_OPEN || (s == GR_INNER && choose(d, 4) == 0)) {
        extend(t, node, d);
    } else if (running == 0) {
        gr_tree_order(t); /* everything that runs has acted or not: nothing runs */
        for (int i = 0; i < t->n_nodes; i++) acted[i] = i > 0;
    }
}

static void random_operations_keep_the_tree_sound(void** state)
{
    (void)state;
    gr_tree t = {0};
    bool acted[1024];
    for (uint64_t seed = 0; seed < 300; seed++) {
        dice d = {.key = seed};
        int64_t cap = choose(&d, 2) ? 1 + choose(&d, 40) : 0;
        gr_tree_reset(&t, 0, 0, 0, 0, seed + 1, cap);
        gr_tree_add_root(&t, (const int32_t[]){1, 2}, 2, 1 + choose(&d, 8));
        memset(acted, 0, sizeof acted);
        for (int op = 0; op < 400; op++) {
            operate(&t, acted, &d);
            gr_tree_check(&t);
            check_tokens(&t, acted);
            assert_true(cap == 0 || t.env_turns + t.turns_reserved <= cap);
            assert_true(gr_tree_turns_free(&t) ==
                        (cap > 0 ? cap - t.env_turns - t.turns_reserved : INT64_MAX));
        }
    }
    gr_tree_free(&t);
}

/* ---- order ----------------------------------------------------------------------------------- */

static const toy lively = {.p_up = 0.5,
                           .goal = 1,
                           .horizon = 9,
                           .p_end = 0.05,
                           .p_error = 0.04,
                           .p_cut = 0.03,
                           .reward_step = 0.1,
                           .max_action = 4,
                           .max_obs = 3};

static const char* const strategies[][2] = {
    {"flat", ""},
    {"patr", "interval=2 alpha=0.1"},
    {"patr_retro", "restarts=3"},
    {"tree_grpo", "n=3 l=2"},
    {"tree_random", "interval=3 expand=3 max_leaves=0"},
};

/* Whichever branch moves first, the finished tree is the same, bit for bit. */
static void order_does_not_depend_on_history(void** state)
{
    (void)state;
    gr_tree t = {0};
    for (int s = 0; s < GR_COUNT(strategies); s++) {
        grower g = {.world = &lively, .group = 5, .scorer = &gr_scorer_random, .check = true};
        g.strategy = gr_strategy_find(strategies[s][0]);
        void* settings = settings_of(g.strategy->block, strategies[s][1]);
        g.strategy_settings = settings;
        for (uint64_t key = 1; key <= 8; key++) {
            uint64_t first = 0;
            g.turn_cap = key % 2 ? 0 : 30;
            for (uint64_t order = 0; order < 5; order++) {
                g.order = order;
                grow(&g, &t, key);
                if (order == 0) first = hash_of(&t);
                if (hash_of(&t) != first) fail_msg("%s differs", strategies[s][0]);
            }
        }
        free(settings);
    }
    gr_tree_free(&t);
}

static void order_is_by_turn_parent_ordinal(void** state)
{
    (void)state;
    gr_tree t = {0};
    for (uint64_t key = 1; key <= 20; key++) {
        grow_named(&t, &lively, "tree_grpo", "n=3 l=2", "random", 4, 0, key);
        int64_t at = 0;
        for (int i = 0; i < t.n_nodes; i++) {
            assert_int_equal(t.token_begin[i], at);
            at += gr_node_tokens(&t, i);
            if (i == 0) continue;
            bool later = t.turn[i] > t.turn[i - 1] || t.parent[i] > t.parent[i - 1] ||
                         t.ordinal[i] > t.ordinal[i - 1];
            assert_true(later && t.turn[i] >= t.turn[i - 1]);
            if (t.turn[i] == t.turn[i - 1]) assert_true(t.parent[i] >= t.parent[i - 1]);
        }
        assert_int_equal(at, t.n_tokens);
    }
    gr_tree_free(&t);
}

/* Another group of branches on a finished tree: the first ones keep their uids. */
static void extended_trees_keep_what_they_had(void** state)
{
    (void)state;
    gr_tree t = {0};
    for (int s = 0; s < GR_COUNT(strategies); s++) {
        grower g = {.world = &lively, .group = 3, .scorer = &gr_scorer_random, .order = 4};
        g.strategy = gr_strategy_find(strategies[s][0]);
        void* settings = settings_of(g.strategy->block, strategies[s][1]);
        g.strategy_settings = settings;
        g.extend = false;
        grow(&g, &t, 77);
        int n = t.n_nodes;
        uint64_t uids[512];
        for (int i = 0; i < n; i++) uids[i] = t.uid[i];
        g.extend = true;
        grow(&g, &t, 77);
        assert_true(t.n_nodes > n);
        for (int i = 0; i < n; i++) {
            int found = 0;
            for (int j = 0; j < t.n_nodes; j++) found += t.uid[j] == uids[i];
            assert_int_equal(found, 1);
        }
        int branches = 0;
        for (int i = 1; i < t.n_nodes; i++) branches = GR_MAX(branches, t.branch[i] + 1);
        assert_int_equal(branches, 6);
        free(settings);
    }
    gr_tree_free(&t);
}

/* ---- turns ----------------------------------------------------------------------------------- */

static void turn_cap_is_used_and_never_exceeded(void** state)
{
    (void)state;
    const toy straight = {.p_up = 0.5, .horizon = 8, .max_action = 1};
    gr_tree t = {0};
    for (int64_t cap = 1; cap < 50; cap++) {
        grow_named(&t, &straight, "flat", "", "random", 5, cap, 3);
        assert_int_equal(t.env_turns, GR_MIN(cap, 40)); /* nothing ends early */
        for (int s = 0; s < GR_COUNT(strategies); s++) {
            grow_named(&t, &lively, strategies[s][0], strategies[s][1], "random", 5, cap, 3);
            assert_true(t.env_turns <= cap);
            assert_int_equal(t.turns_reserved, 0);
        }
    }
    gr_tree_free(&t);
}

static void no_turn_left_means_no_child_and_no_change(void** state)
{
    (void)state;
    gr_tree t = root_of("x", 3, 4);
    int a = gr_tree_add_child(&t, 0, -1), b = gr_tree_add_child(&t, 0, -1);
    assert_int_equal(t.turns_left[a], 3);
    assert_int_equal(t.turns_left[b], 1); /* what the cap holds */
    assert_int_equal(gr_tree_add_child(&t, 0, -1), -1);
    assert_int_equal(t.n_nodes, 3);
    add_turn(&t, a, "u", "o", GR_END_TERMINAL); /* gives 2 turns back */
    assert_int_equal(gr_tree_turns_free(&t), 2);
    int c = gr_tree_add_child(&t, 0, -1);
    assert_int_equal(t.turns_left[c], 2);
    gr_tree_check(&t);
    gr_tree_free(&t);
}

/* ---- leaves and multiplicities --------------------------------------------------------------- */

static bool counts(const gr_tree* t, int node)
{
    bool ended = t->status[node] == GR_TERMINAL || t->status[node] == GR_LOOP ||
                 t->status[node] == GR_PRUNED || t->status[node] == GR_TRUNCATED ||
                 t->status[node] == GR_TIME_LIMIT;
    if (ended) return true;
    for (int c = node + 1; c < t->n_nodes; c++) {
        if (t->parent[c] == node && counts(t, c)) return true;
    }
    return false;
}

/* Hands `weight` down to the leaves. */
static void split_down(const gr_tree* t, int node, double weight, double* s)
{
    int n = 0;
    s[node] = weight;
    for (int c = node + 1; c < t->n_nodes; c++) n += t->parent[c] == node && counts(t, c);
    assert_int_equal(gr_tree_is_fork(t, node), node > 0 && n > 1);
    for (int c = node + 1; c < t->n_nodes; c++) {
        if (t->parent[c] != node || !counts(t, c)) continue;
        double share = n;
        if (node == 0) { /* children of one branch share its weight */
            share = 0;
            for (int o = 1; o < t->n_nodes; o++) {
                share += t->parent[o] == 0 && counts(t, o) && t->branch[o] == t->branch[c];
            }
        }
        split_down(t, c, weight / share, s);
    }
}

static void split_weighs_every_branch_once(void** state)
{
    (void)state;
    gr_tree t = {0};
    toy w = lively;
    static double s[4096], expected[4096];
    static int32_t leaf[4096];
    int errors = 0, forks = 0;
    for (uint64_t key = 1; key <= 200; key++) {
        const char* const* name = strategies[key % GR_COUNT(strategies)];
        w.p_error = key % 3 == 0 ? 0.25 : 0.02;
        grow_named(&t, &w, name[0], name[1], "random", 4, 0, key);
        int n = gr_tree_leaves(&t, leaf, GR_COUNT(leaf));
        gr_tree_split(&t, leaf, n, s);
        split_down(&t, 0, 1, expected);
        double sum = 0, of_branch[64] = {0};
        int at = 0, branches = 0;
        for (int i = 1; i < t.n_nodes; i++) {
            forks += gr_tree_is_fork(&t, i);
            bool is_leaf = counts(&t, i) && gr_tree_n_children(&t, i) == 0;
            errors += t.status[i] == GR_ERROR;
            assert_int_equal(is_leaf, at < n && leaf[at] == i);
            if (!is_leaf) continue;
            assert_true(fabs(s[at] - expected[i]) < 1e-14);
            of_branch[t.branch[i]] += s[at];
            sum += s[at++];
        }
        for (int b = 0; b < 64; b++) {
            assert_true(of_branch[b] == 0 || fabs(of_branch[b] - 1) < 1e-12);
            branches += of_branch[b] != 0;
        }
        assert_true(fabs(sum - branches) < 1e-12);
    }
    assert_true(errors > 100 && forks > 100);
    gr_tree_free(&t);
}

/* A node whose children all failed has no outcome: it is no leaf, and its siblings weigh all. */
static void errors_take_no_part(void** state)
{
    (void)state;
    gr_tree t = root_of("x", 4, 0);
    int a = gr_tree_add_child(&t, 0, -1);
    add_turn(&t, a, "a", "1", GR_RUNNING);
    int b = gr_tree_add_child(&t, a, -1), c = gr_tree_add_child(&t, a, -1);
    add_turn(&t, b, "b", "2", GR_RUNNING);
    add_turn(&t, c, "c", "3", GR_END_TERMINAL);
    for (int i = 0; i < 2; i++) {
        int child = gr_tree_add_child(&t, b, -1);
        add_turn(&t, child, "d", NULL, GR_RUNNING);
        gr_tree_close(&t, child, GR_ERROR);
    }
    int32_t leaf[8];
    double s[8];
    assert_int_equal(gr_tree_leaves(&t, leaf, 8), 1);
    assert_int_equal(leaf[0], c);
    gr_tree_split(&t, leaf, 1, s);
    assert_true(s[0] == 1);
    assert_false(gr_tree_is_fork(&t, a));
    assert_false(gr_tree_is_fork(&t, b));
    assert_int_equal(gr_tree_n_children(&t, b), 2);
    gr_tree_check(&t);
    gr_tree_free(&t);
}

/* ---- the check itself ------------------------------------------------------------------------ */

static void spoil_turns(gr_tree* t) { t->env_turns++; }
static void spoil_cap(gr_tree* t) { t->turn_cap = 1; }
static void spoil_reserved(gr_tree* t) { t->turns_reserved++; }
static void spoil_grant(gr_tree* t) { t->turns_left[t->n_nodes - 1]++; }
static void spoil_uid(gr_tree* t) { t->uid[2] ^= 1; }
static void spoil_ordinal(gr_tree* t) { t->ordinal[2]++; }
static void spoil_branch(gr_tree* t) { t->branch[t->n_nodes - 1]++; }
static void spoil_status(gr_tree* t) { t->status[1] = GR_TERMINAL; }
static void spoil_parent(gr_tree* t) { t->parent[t->n_nodes - 1] = 0; }
static void spoil_tokens(gr_tree* t) { t->n_obs[0] += 1000; }
static void spoil_overlap(gr_tree* t) { t->n_obs[1]++; } /* into the next node's tokens */
static void spoil_turn(gr_tree* t) { t->turn[2]++; }

static void check_finds_damage(void** state)
{
    (void)state;
    void (*const spoil[])(gr_tree*) = {spoil_turns,  spoil_cap,     spoil_reserved, spoil_grant,
                                       spoil_uid,    spoil_ordinal, spoil_branch,   spoil_status,
                                       spoil_parent, spoil_tokens,  spoil_turn,     spoil_overlap};
    gr_tree t = {0};
    grow_named(&t, &lively, "patr", "interval=2", "random", 4, 0, 8);
    for (int i = 0; i < GR_COUNT(spoil); i++) {
        fflush(NULL);
        pid_t child = fork();
        if (child == 0) {
            if (freopen("/dev/null", "w", stderr) == NULL) _exit(1);
            (void)signal(SIGABRT, SIG_DFL);
            spoil[i](&t);
            gr_tree_check(&t);
            _exit(0);
        }
        int status = 0;
        assert_true(waitpid(child, &status, 0) == child);
        if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGABRT) fail_msg("damage %d is missed", i);
    }
    gr_tree_free(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nodes_stay_contiguous_when_branches_interleave),
        cmocka_unit_test(equal_actions_are_recognised),
        cmocka_unit_test(random_operations_keep_the_tree_sound),
        cmocka_unit_test(order_does_not_depend_on_history),
        cmocka_unit_test(order_is_by_turn_parent_ordinal),
        cmocka_unit_test(extended_trees_keep_what_they_had),
        cmocka_unit_test(turn_cap_is_used_and_never_exceeded),
        cmocka_unit_test(no_turn_left_means_no_child_and_no_change),
        cmocka_unit_test(split_weighs_every_branch_once),
        cmocka_unit_test(errors_take_no_part),
        cmocka_unit_test(check_finds_damage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
