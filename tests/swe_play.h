/* swe_play.h - a stochastic policy for repository tasks that no model has to be able to write.
 *
 * Between a model whose turn is one byte and the world of swebench stands a table that makes of
 * every byte a command: looking, mending, handing in, nonsense, and one that hangs. So all that
 * happens is what happens in a run. */
#pragma once
#include "tests/swe.h"

#include "envs/swebench/swebench.h"
#include "host/train.h"

#define HANDLES 4096

/* ---- the policy: a byte is a command ----------------------------------------------------- */

enum { LOOK, TRY, MEND, SPOIL, SUBMIT, NONSENSE, HANG, N_MOVES };
static const struct {
    const char *name, *command; /* NULL: made for the task, or no command */
    int share;                  /* of 256 bytes */
} moves[N_MOVES] = {
    [LOOK] = {"look", "cat *.py | head -n 4", 68},
    [TRY] = {"try", "python3 -c 'print(6 * 7)'", 40},
    [MEND] = {"mend", NULL, 48},
    [SPOIL] = {"spoil", "for f in *.py; do echo 'def (' >>$f; done", 16},
    [SUBMIT] = {"submit", "submit", 48},
    [NONSENSE] = {"nonsense", NULL, 24},
    [HANG] = {"hang", "sleep 600", 12},
};

static gr_swe_set tasks;
static int64_t task_of[HANDLES]; /* by handle */
static int64_t asked[N_MOVES], n_resets, n_forks;

static int move_of(const char* action, int n)
{
    int byte = n > 0 ? (unsigned char)action[0] : 0, move = 0;
    while (byte >= moves[move].share) byte -= moves[move++].share;
    return move;
}

static void play_reset(void* self, int h, gr_split split, int64_t task, uint64_t key)
{
    n_resets++;
    task_of[h] = task;
    gr_world_swebench.async->reset(self, h, split, task, key);
}

static void play_fork(void* self, int dst, int src, uint64_t key)
{
    n_forks++;
    task_of[dst] = task_of[src];
    gr_world_swebench.async->fork(self, dst, src, key);
}

static void play_step(void* self, int h, const char* action, int n)
{
    char text[GR_ACTION_MAX + 1];
    int move = move_of(action, n);
    asked[move]++;
    if (move == MEND) {
        (void)snprintf(text, sizeof text, "```bash\ngit apply - <<'END'\n%sEND\n```\n",
                       tasks.instance[task_of[h]].gold);
    } else if (move == NONSENSE) {
        (void)snprintf(text, sizeof text, "I think.\n");
    } else {
        (void)snprintf(text, sizeof text, "```bash\n%s\n```\n", moves[move].command);
    }
    gr_world_swebench.async->step(self, h, text, (int)strlen(text));
}

/* ---- the run ----------------------------------------------------------------------------- */

static gr_config config;
static gr_run run;

/* Five tasks and one without sources, which is found out at its resets. */
static inline void make_tasks(void)
{
    char command[600];
    (void)snprintf(command, sizeof command,
                   "mkdir %s/tasks && for t in csv_line durations intervals semver wrap_text; do "
                   "cp -R envs/swe_tiny/$t %s/tasks; done && cp -R envs/swe_tiny/sparse "
                   "%s/tasks/lost && sed -i s/sparse/lost/ %s/tasks/lost/instance.json",
                   scratch, scratch, scratch, scratch);
    assert_int_equal(system(command), 0);
    (void)snprintf(command, sizeof command, "%s/tasks", scratch);
    ASSERT_OK(gr_swe_read(&tasks, command));
    assert_int_equal(tasks.n, 6);
}

/* Its sources go, once the run is open. */
static inline void lose_one_task(void)
{
    char lost[200];
    (void)snprintf(lost, sizeof lost, "%s/tasks/lost/repo", scratch);
    remove_all(lost);
}

/* PATR on the tasks; `more` are n_more settings. */
static inline bool open_run(int steps, int n_more, const char* const* more)
{
    static const char* const pairs[] = {
        "run.name=patr",
        "run.seed=7",
        "model.layers=2",
        "model.width=32",
        "model.heads=2",
        "model.kv_heads=1",
        "model.mlp=48",
        "env.name=swebench",
        "swebench.test_instances=envs/swe_tiny",
        "swebench.max_turns=6",
        "swebench.output=300",
        "swebench.episode_s=3",
        "swebench.tests_s=60",
        "swebench.running=16",
        "rollout.strategy=patr",
        "rollout.group=4",
        "rollout.groups_per_step=3",
        "rollout.max_turn_tokens=1",
        "rollout.max_context=4096",
        "rollout.temperature=0.1",
        "patr.interval=2",
        "patr.alpha=0.2",
        "patr.theta=2",
        "patr.max_leaves=8",
        "optimizer.lr=2e-3",
        "optimizer.microbatch_tokens=16384",
        "eval.tasks=0",
        "checkpoint.best=false",
        "device.threads=1",
    };
    const char* all[GR_COUNT(pairs) + 5 + 8];
    char own[5][200];
    int n = 0;
    (void)snprintf(own[0], sizeof own[0], "run.steps=%d", steps);
    (void)snprintf(own[1], sizeof own[1], "run.dir=%s", scratch);
    (void)snprintf(own[2], sizeof own[2], "swebench.instances=%s/tasks", scratch);
    (void)snprintf(own[3], sizeof own[3], "swebench.cache=%s/cache", scratch);
    (void)snprintf(own[4], sizeof own[4], "swebench.sandbox_dir=%s", scratch);
    for (int i = 0; i < GR_COUNT(pairs); i++) all[n++] = pairs[i];
    for (int i = 0; i < GR_COUNT(own); i++) all[n++] = own[i];
    assert_true(n_more <= 8);
    for (int i = 0; i < n_more; i++) all[n++] = more[i];
    gr_run_settings(&config);
    ASSERT_OK(gr_config_load(&config, NULL, n, all));
    if (gr_run_open(&run, &config, GR_RUN_TRAIN, NULL, false) == GR_OK) return true;
    printf("SKIPPED: %s\n", gr_last_error_text());
    return false;
}

/* Puts the table of commands between model and world. */
static inline void play_for_the_model(gr_world* world)
{
    static gr_async played;
    played = *gr_world_swebench.async;
    played.reset = play_reset;
    played.step = play_step;
    played.fork = play_fork;
    *world = gr_world_swebench;
    world->async = &played;
    world->stop = "\n";
    world->action_cap = 4;
    gr_rollout_close(run.rollout);
    gr_envs_close(run.envs);
    run.envs = NULL;
    run.rollout = NULL;
    ASSERT_OK(gr_envs_open(&run.envs, world, gr_config_block(&config, "swebench"), HANDLES));
    ASSERT_OK(gr_rollout_open(&run.rollout, &run.engine, run.envs, (uint64_t)config.run.seed));
}
