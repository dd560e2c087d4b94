/* Observations are as long as their world says: from another process through the rollout and the
 * tree to trees.jsonl, plain and behind the interface of plans, whole to the last byte. */
#include "tests/disk.h"

#include <cjson/cJSON.h>

#include "host/train.h"

enum { LONG = 6000 }; /* bytes of every observation of the world */

static gr_config config;
static gr_run run;

static void open_run(const char* name, const char* interface, int announced)
{
    char more[4][256];
    (void)snprintf(more[0], sizeof more[0], "run.dir=%s", scratch);
    (void)snprintf(more[1], sizeof more[1], "run.name=%s", name);
    (void)snprintf(more[2], sizeof more[2], "rollout.interface=%s", interface);
    (void)snprintf(more[3], sizeof more[3],
                   "remote.command=exec python3 -S -E tests/hostile_world.py long=%d announced=%d",
                   LONG, announced);
    const char* pairs[] = {
        "run.steps=1",
        "model.layers=1",
        "model.width=16",
        "model.heads=1",
        "model.kv_heads=1",
        "model.mlp=16",
        "env.name=remote",
        "scorer.name=constant",
        "remote.workers=1",
        "rollout.strategy=flat",
        "rollout.group=2",
        "rollout.groups_per_step=1",
        "rollout.max_turns=1",
        "rollout.max_turn_tokens=2",
        "rollout.max_context=16384",
        "optimizer.microbatch_tokens=32768",
        "eval.tasks=0",
        "checkpoint.best=false",
        "device.threads=1",
        more[0],
        more[1],
        more[2],
        more[3],
    };
    gr_run_settings(&config);
    ASSERT_OK(gr_config_load(&config, NULL, GR_COUNT(pairs), pairs));
    ASSERT_OK(gr_run_open(&run, &config, GR_RUN_TRAIN, NULL, false));
}

static void close_run(void)
{
    gr_run_close(&run);
    gr_config_free(&config);
}

/* The world's text of an observation is its state, minus signs and an end of line. */
static void assert_whole(const char* shown)
{
    const char* at = strstr(shown, "---");
    assert_non_null(at);
    at -= 16;
    assert_int_equal(strspn(at, "0123456789abcdef"), 16);
    assert_int_equal(strspn(at + 16, "-"), LONG - 17);
    assert_int_equal(at[LONG - 1], '\n');
}

static void check_tree(const char* name, const char* behind)
{
    char path[200];
    (void)snprintf(path, sizeof path, "%s/%s", scratch, name);
    char* text = slurp(path, "trees.jsonl", NULL);
    assert_non_null(text);
    cJSON* tree = cJSON_Parse(text);
    const cJSON* nodes = cJSON_GetObjectItem(tree, "nodes");
    assert_int_equal(cJSON_GetArraySize(nodes), 3);
    const cJSON* x;
    cJSON_ArrayForEach(x, nodes)
    {
        const char* shown = cJSON_GetStringValue(cJSON_GetObjectItem(x, "observation"));
        assert_whole(shown);
        assert_string_equal(shown + strlen(shown) - strlen(behind), behind);
    }
    cJSON_Delete(tree);
    free(text);
}

static void long_observations_are_whole_in_the_record(void** state)
{
    (void)state;
    static const struct {
        const char *interface, *behind;
    } kind[] = {{"plain", "-\n"}, {"hiper", "-\nCurrent subgoal: None\n"}};
    for (int i = 0; i < GR_COUNT(kind); i++) {
        open_run(kind[i].interface, kind[i].interface, LONG);
        assert_int_equal(gr_envs_world(run.envs)->obs_cap, LONG);
        ASSERT_OK(gr_train(&run));
        close_run();
        check_tree(kind[i].interface, kind[i].behind);
    }
}

/* One byte more than announced costs the trajectories, and no more. */
static void a_world_is_held_to_what_it_announced(void** state)
{
    (void)state;
    open_run("held", "plain", LONG - 1);
    int h = gr_envs_reset(run.envs, GR_TRAIN, 0, 1, 0);
    gr_env_reply r;
    assert_true(gr_envs_poll(run.envs, &r, true));
    assert_int_equal(r.error, GR_ENV_PROTOCOL);
    assert_string_equal(r.obs->text, "");
    gr_envs_free(run.envs, h);
    close_run();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(long_observations_are_whole_in_the_record, make_scratch,
                                        remove_scratch),
        cmocka_unit_test_setup_teardown(a_world_is_held_to_what_it_announced, make_scratch,
                                        remove_scratch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
