/* Trees from the sampler: the same whatever the batch, threads or pool; ledgers that add up. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "host/train.h"

#define TREES 6

static const char* const small[] = {
    "model.layers=2",
    "model.width=32",
    "model.heads=4",
    "model.kv_heads=2",
    "model.mlp=48",
    "model.vocab=256",
    "env.name=frozenlake",
    "frozenlake.size=4",
    "frozenlake.max_turns=8",
    "rollout.group=4",
    "rollout.max_turn_tokens=4",
    "rollout.max_context=256",
    "rollout.groups_per_step=6",
    "run.seed=11",
};

typedef struct fixture {
    gr_config config;
    gr_run run;
    gr_tree tree[TREES];
} fixture;

static void open_run(fixture* f, int n_more, const char* const* more)
{
    const char* all[64];
    int n = 0;
    for (; n < GR_COUNT(small); n++) all[n] = small[n];
    for (int i = 0; i < n_more; i++) all[n++] = more[i];
    memset(f, 0, sizeof *f);
    gr_run_settings(&f->config);
    if (gr_config_load(&f->config, NULL, n, all) != GR_OK) fail_msg("%s", gr_last_error());
    if (gr_run_open(&f->run, &f->config, GR_RUN_EVAL, NULL, false) != GR_OK) {
        fail_msg("%s", gr_last_error());
    }
    gr_weights_publish(&f->run.weights);
    gr_engine_reset(&f->run.engine);
}

static void close_run(fixture* f)
{
    for (int i = 0; i < TREES; i++) gr_tree_free(&f->tree[i]);
    gr_run_close(&f->run);
    gr_config_free(&f->config);
}

static void roll(fixture* f, bool extend)
{
    gr_rollout_task task[TREES];
    for (int i = 0; i < TREES; i++) {
        task[i] = (gr_rollout_task){
            .step = 3, .slot = i, .split = GR_TRAIN, .task = 40 + i, .extend = extend};
    }
    gr_status st = gr_rollout_run(f->run.rollout, &f->run.train_settings, task, TREES, f->tree);
    if (st != GR_OK) fail_msg("%s", gr_last_error());
    for (int i = 0; i < TREES; i++) gr_tree_check(&f->tree[i]);
}

/* Everything that must not depend on how the tree was computed. */
static uint64_t tree_hash(const gr_tree* t)
{
    size_t n = (size_t)t->n_nodes;
    uint64_t h = gr_hash64(t->parent, n * sizeof *t->parent, 0);
    h = gr_hash64(t->branch, n * sizeof *t->branch, h);
    h = gr_hash64(t->ordinal, n * sizeof *t->ordinal, h);
    h = gr_hash64(t->status, n * sizeof *t->status, h);
    h = gr_hash64(t->reward, n * sizeof *t->reward, h);
    h = gr_hash64(t->score, n * sizeof *t->score, h);
    h = gr_hash64(t->uid, n * sizeof *t->uid, h);
    h = gr_hash64(t->token_begin, n * sizeof *t->token_begin, h);
    h = gr_hash64(t->token, (size_t)t->n_tokens * sizeof *t->token, h);
    h = gr_hash64(t->logp, (size_t)t->n_tokens * sizeof *t->logp, h);
    return gr_hash64(&t->env_turns, sizeof t->env_turns, h);
}

static uint64_t forest_hash(const char* strategy, int n_more, const char* const* more, bool extend)
{
    const char* all[16] = {strategy};
    for (int i = 0; i < n_more; i++) all[1 + i] = more[i];
    fixture f;
    open_run(&f, 1 + n_more, all);
    roll(&f, false);
    if (extend) roll(&f, true);
    uint64_t h = 0;
    for (int i = 0; i < TREES; i++) h = gr_key_join(h, tree_hash(&f.tree[i]));
    close_run(&f);
    return h;
}

static const char* const strategies[] = {
    "rollout.strategy=flat",      "rollout.strategy=patr",        "rollout.strategy=patr_retro",
    "rollout.strategy=tree_grpo", "rollout.strategy=tree_random", "rollout.strategy=proceed"};

static void same_trees_however_computed(void** state)
{
    (void)state;
    const char* const ways[][3] = {
        {"device.threads=2", "rollout.max_live=64", "rollout.max_rows=512"},
        {"device.threads=1", "rollout.max_live=1", "rollout.max_rows=512"},
        {"device.threads=2", "rollout.max_live=7", "rollout.max_rows=8"},
        {"device.threads=1", "rollout.max_live=5", "rollout.kv_pages=40"},
    };
    for (int s = 0; s < GR_COUNT(strategies); s++) {
        uint64_t first = 0;
        for (int w = 0; w < GR_COUNT(ways); w++) {
            uint64_t h = forest_hash(strategies[s], 3, ways[w], s == 0);
            if (w == 0) first = h;
            if (h != first) fail_msg("%s differs under way %d", strategies[s], w);
        }
    }
}

static void another_seed_gives_other_trees(void** state)
{
    (void)state;
    const char* const other[] = {"run.seed=12"};
    assert_true(forest_hash(strategies[0], 0, NULL, false) !=
                forest_hash(strategies[0], 1, other, false));
}

/* Invariant: tree_random is patr with a constant scorer. */
static void tree_random_is_patr_with_constant_scores(void** state)
{
    (void)state;
    const char* const constant[] = {"scorer.name=constant", "patr.interval=2"};
    const char* const interval[] = {"scorer.name=constant", "patr.interval=2"};
    uint64_t a = forest_hash("rollout.strategy=patr", 2, constant, false);
    uint64_t b = forest_hash("rollout.strategy=tree_random", 2, interval, false);
    assert_true(a == b);
}

/* Invariant: no checkpoint inside the horizon leaves independent rollouts with the same tokens. */
static void patr_without_checkpoints_is_flat(void** state)
{
    (void)state;
    const char* const never[] = {"patr.interval=8", "patr.theta=100", "patr.alpha=1"};
    uint64_t a = forest_hash("rollout.strategy=patr", 3, never, false);
    assert_true(a == forest_hash("rollout.strategy=flat", 0, NULL, false));
}

static void ledger_counts_what_ran(void** state)
{
    (void)state;
    for (int s = 0; s < GR_COUNT(strategies); s++) {
        fixture f;
        open_run(&f, 1, &strategies[s]);
        const int64_t* counts = f.run.engine.counts.gen_tokens;
        int64_t before = counts[GR_FOR_TRAIN] + counts[GR_FOR_REFINE],
                again = counts[GR_FOR_REFINE];
        roll(&f, false);
        int64_t tokens = 0;
        for (int i = 0; i < TREES; i++) {
            const gr_tree* t = &f.tree[i];
            int64_t turns = 0, actions = 0;
            for (int n = 1; n < t->n_nodes; n++) {
                turns += t->stepped[n];
                actions += t->n_action[n];
                assert_true(t->status[n] != GR_OPEN && t->status[n] != GR_ACTING);
                assert_int_equal(t->env[n], -1);
                assert_int_equal(t->seq[n], -1);
                assert_true(t->uid[n] ==
                            gr_key_join(t->uid[t->parent[n]], (uint64_t)t->ordinal[n]));
            }
            assert_int_equal(turns, t->env_turns);
            assert_int_equal(actions, t->gen_tokens);
            tokens += actions;
            again += t->refiner_tokens;
        }
        assert_int_equal(tokens, counts[GR_FOR_TRAIN] + counts[GR_FOR_REFINE] - before);
        assert_int_equal(again, counts[GR_FOR_REFINE]);
        close_run(&f);
    }
}

static void turn_cap_is_never_exceeded(void** state)
{
    (void)state;
    for (int s = 0; s < GR_COUNT(strategies); s++) {
        for (int cap = 4; cap < 40; cap += 7) {
            char text[64];
            (void)snprintf(text, sizeof text, "rollout.max_tree_turns=%d", cap);
            const char* more[] = {strategies[s], text, "patr.interval=2"};
            fixture f;
            open_run(&f, s == 1 || s == 4 ? 3 : 2, more);
            roll(&f, false);
            for (int i = 0; i < TREES; i++) assert_true(f.tree[i].env_turns <= cap);
            close_run(&f);
        }
    }
}

/* Siblings share tokens and environment state up to the fork and nothing after it. */
static void siblings_share_exactly_their_prefix(void** state)
{
    (void)state;
    const char* more[] = {"rollout.strategy=patr", "patr.interval=2"};
    fixture f;
    open_run(&f, 2, more);
    roll(&f, false);
    int forks = 0;
    for (int i = 0; i < TREES; i++) {
        const gr_tree* t = &f.tree[i];
        for (int n = 1; n < t->n_nodes; n++) {
            if (!gr_tree_is_fork(t, n)) continue;
            forks++;
            assert_int_equal(t->status[n], GR_INNER);
        }
        for (int a = 1; a < t->n_nodes; a++) {
            for (int b = a + 1; b < t->n_nodes; b++) {
                if (t->parent[a] != t->parent[b]) continue;
                assert_int_equal(t->turn[a], t->turn[b]);
                assert_true(t->uid[a] != t->uid[b]);
            }
        }
    }
    assert_true(forks > 0);
    close_run(&f);
}

/* With the interface of HiPER: played again by hand, every path shows what it showed. */
static void replay_path(fixture* f, const gr_tree* t, int leaf)
{
    static char said[2048], action[2048], shown[8192], seen[8192];
    int32_t path[32];
    const gr_hiper_settings* plan = f->run.train_settings.plan;
    const char* stop = gr_envs_world(f->run.envs)->stop;
    gr_env_reply e;
    int n = gr_tree_path_nodes(t, leaf, path, GR_COUNT(path)), n_said = 0;
    int handle = gr_envs_reset(f->run.envs, GR_TRAIN, t->task, 1, 0);
    for (int i = 0; i < n; i++) {
        if (i > 0) {
            gr_plan p;
            n_said = gr_tree_action_text(t, path[i], said, sizeof said);
            gr_plan_parse(said, n_said, plan->tags, &p);
            int n_action = gr_plan_action(&p, said, n_said, stop, action, sizeof action);
            gr_envs_step(f->run.envs, handle, action, n_action, 0);
        }
        assert_true(gr_envs_poll(f->run.envs, &e, true) && e.error == GR_ENV_OK);
        gr_plan_show(plan, i > 0 ? said : NULL, n_said, e.obs->text, e.obs->n_text, shown,
                     sizeof shown);
        (void)gr_tree_obs_text(t, path[i], seen, sizeof seen);
        assert_string_equal(seen, shown);
    }
    gr_envs_free(f->run.envs, handle);
}

static void plans_stand_between_model_and_world(void** state)
{
    (void)state;
    const char* const more[] = {"rollout.interface=hiper", "hiper.tags=short",
                                "rollout.max_context=1024", "rollout.max_turn_tokens=20"};
    fixture f;
    open_run(&f, GR_COUNT(more), more);
    assert_string_equal(gr_rollout_stop(&f.run.train_settings, gr_envs_world(f.run.envs)), "</a>");
    roll(&f, false);
    int paths = 0;
    for (int i = 0; i < TREES; i++) {
        const gr_tree* t = &f.tree[i];
        char text[4096];
        (void)gr_tree_obs_text(t, 0, text, sizeof text);
        assert_non_null(strstr(text, "Answer with three blocks"));
        assert_non_null(strstr(text, "[None]\n"));
        for (int j = 1; j < t->n_nodes; j++) {
            if (t->status[j] == GR_INNER) continue;
            replay_path(&f, t, j);
            paths++;
        }
    }
    assert_int_equal(paths, 4 * TREES);
    close_run(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_trees_however_computed),
        cmocka_unit_test(another_seed_gives_other_trees),
        cmocka_unit_test(tree_random_is_patr_with_constant_scores),
        cmocka_unit_test(patr_without_checkpoints_is_flat),
        cmocka_unit_test(ledger_counts_what_ran),
        cmocka_unit_test(turn_cap_is_never_exceeded),
        cmocka_unit_test(siblings_share_exactly_their_prefix),
        cmocka_unit_test(plans_stand_between_model_and_world),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
