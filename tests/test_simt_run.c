/* The CUDA sources in whole training runs, emulated (tests/simt/), beside the cpu device: FrozenLake's
 * main job with its smallest model. Both devices start from the same weights, learn for three steps,
 * then play without noise. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cjson/cJSON.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/json.h"
#include "host/train.h"
#include "tests/simt/guard.h"

enum { STEPS = 3, TREES = 3, MOST_STEPS = STEPS + 2 };

static char root[128]; /* a fresh temporary folder */

/* Most that a step on the emulated device may differ from one on the cpu device, whose sums are taken
 * in another order: of the loss absolute, of the gradient's norm relative, of the log-probs of two
 * tokens that the devices prefer differently. */
typedef struct bounds {
    double loss, norm, logp;
} bounds;
static const bounds fp32 = {1e-7, 1e-5, 1e-4}, bf16 = {1e-3, 3e-2, 5e-2};

static const char* const model[] = {"model.layers=1", "model.width=32", "model.heads=2",
                                    "model.kv_heads=1", "model.mlp=48"};
static const char* const small[] = {
    "run.name=t",           "run.seed=5",
    "frozenlake.size=3",    "frozenlake.hole_prob=0.1",
    "eval.tasks=0",         "rollout.groups_per_step=2",
    "rollout.group=3",      "rollout.max_turn_tokens=6",
    "checkpoint.every=0",   "checkpoint.best=false",
    "log.quiet=true",       "log.trees_every=0",
    "log.watchdog_s=0",     "device.threads=1",
    "rollout.max_live=16",  "optimizer.microbatch_tokens=384",
    "rollout.max_rows=128", "rollout.max_context=128",
};

/* ---- a run ---------------------------------------------------------------------------------- */

typedef struct side {
    char dir[160];
    gr_config config;
    gr_run run;
    gr_tree tree[TREES];
    int n_steps;
    double loss[MOST_STEPS], norm[MOST_STEPS], parity[MOST_STEPS]; /* NaN: nothing to learn */
} side;

static void must(gr_status st)
{
    if (st != GR_OK) fail_msg("%s", gr_last_error());
}

/* Last words win. The model is the small one, or comes with the weights that `more` names. */
static void open_side(side* s, const char* name, const char* device, int n, const char* const* more)
{
    char dir[200], on[64];
    const char* word[64];
    bool own = true;
    int k = 0;
    memset(s, 0, sizeof *s);
    (void)snprintf(s->dir, sizeof s->dir, "%s/%s", root, name);
    (void)snprintf(dir, sizeof dir, "run.dir=%s", s->dir);
    (void)snprintf(on, sizeof on, "device.name=%s", device);
    for (int i = 0; i < GR_COUNT(small); i++) word[k++] = small[i];
    for (int i = 0; i < n; i++) own &= strncmp(more[i], "warmstart.load", 14) != 0;
    for (int i = 0; i < GR_COUNT(model) && own; i++) word[k++] = model[i];
    word[k++] = dir, word[k++] = on;
    for (int i = 0; i < n; i++) word[k++] = more[i];
    gr_run_settings(&s->config);
    must(gr_config_load(&s->config, NULL, k, word));
    must(gr_run_open(&s->run, &s->config, GR_RUN_TRAIN, s->config.warmstart.load, false));
}

static void close_side(side* s)
{
    for (int i = 0; i < TREES; i++) gr_tree_free(&s->tree[i]);
    gr_run_close(&s->run);
    gr_config_free(&s->config);
}

static double number(const cJSON* line, const char* key)
{
    const cJSON* x = cJSON_GetObjectItem(line, key);
    return cJSON_IsNumber(x) ? x->valuedouble : (double)NAN;
}

static void read_metrics(side* s)
{
    char path[200], text[4096];
    (void)snprintf(path, sizeof path, "%s/t/metrics.jsonl", s->dir);
    FILE* f = fopen(path, "r");
    assert_non_null(f);
    for (; fgets(text, sizeof text, f) != NULL; s->n_steps++) {
        cJSON* line = cJSON_Parse(text);
        assert_true(line != NULL && s->n_steps < MOST_STEPS);
        s->loss[s->n_steps] = number(line, "policy/loss");
        s->norm[s->n_steps] = number(line, "policy/grad_norm");
        s->parity[s->n_steps] = number(line, "parity/max_abs_dlogp");
        cJSON_Delete(line);
    }
    (void)fclose(f);
}

/* How many of its steps measured parity; it is 0 in each of them. */
static int exact_steps(const side* s)
{
    int n = 0;
    for (int i = 0; i < s->n_steps; i++) {
        if (isnan(s->parity[i])) continue;
        if (s->parity[i] != 0) fail_msg("%s, line %d: parity %g", s->dir, i + 1, s->parity[i]);
        n++;
    }
    return n;
}

static void learn(side* s)
{
    must(gr_train(&s->run));
    read_metrics(s);
}

/* The most probable actions, on tasks that were not trained on. */
static void play(side* s)
{
    gr_rollout_settings settings = s->run.train_settings;
    gr_rollout_task task[TREES];
    settings.sampling.greedy = true;
    for (int i = 0; i < TREES; i++)
        task[i] = (gr_rollout_task){.slot = i, .split = GR_TEST, .task = i};
    must(gr_rollout_run(s->run.rollout, &settings, task, TREES, s->tree));
}

/* ---- two devices ---------------------------------------------------------------------------- */

/* How much more probable token a is than b behind the first n_action tokens of `node`. */
static double preference(side* s, const gr_tree* t, int node, int n_action, int32_t a, int32_t b)
{
    int32_t token[512], position[512], end[512], target[2] = {a, b}, src[2];
    double logp[2];
    int n = gr_tree_path_tokens(t, t->context[node], token, GR_COUNT(token));
    memcpy(token + n, t->token + t->token_begin[node], (size_t)n_action * sizeof *token);
    n += n_action;
    for (int i = 0; i < n; i++) position[i] = i, end[i] = n;
    src[0] = src[1] = n - 1;
    gr_batch b2 = {.token = token,
                   .position = position,
                   .subtree_end = end,
                   .n_tokens = n,
                   .max_path = n,
                   .src = src,
                   .target = target,
                   .n_rows = 2};
    must(gr_objective_logp(&s->run.objective, &b2, s->run.loss.temperature, logp));
    return logp[0] - logp[1];
}

/* The first node whose actions differ; n_nodes: none. Up to there the trees are one. */
static int first_difference(const gr_tree* a, const gr_tree* b)
{
    int n = GR_MIN(a->n_nodes, b->n_nodes);
    for (int i = 1; i < n; i++) {
        bool same = a->parent[i] == b->parent[i] && a->n_action[i] == b->n_action[i] &&
                    memcmp(a->token + a->token_begin[i], b->token + b->token_begin[i],
                           (size_t)a->n_action[i] * sizeof *a->token) == 0;
        if (!same) return i;
    }
    assert_int_equal(a->n_nodes, b->n_nodes);
    return n;
}

/* Equal, or parted where the cpu device finds both tokens about as probable. */
static bool same_tree(side* cpu, const gr_tree* a, const gr_tree* b, double bound)
{
    int node = first_difference(a, b), k = 0;
    if (node == a->n_nodes) return true;
    const int32_t *x = a->token + a->token_begin[node], *y = b->token + b->token_begin[node];
    assert_int_equal(a->parent[node], b->parent[node]);
    while (x[k] == y[k]) k++;
    double gap = preference(cpu, a, node, k, x[k], y[k]);
    print_message("node %d parts by %.2e\n", node, gap);
    assert_true(gap <= bound);
    return false;
}

/* `preference` knows what the cpu device preferred. */
static void check_preference(side* cpu, const gr_tree* t)
{
    const int32_t first = t->token[t->token_begin[1]];
    for (int32_t other = 'A'; other <= 'Z'; other++)
        if (other != first) assert_true(preference(cpu, t, 1, 0, first, other) > 0);
}

static int compare(side* cpu, side* simt, const bounds* most)
{
    int same = 0;
    assert_int_equal(cpu->n_steps, simt->n_steps);
    for (int i = 0; i < cpu->n_steps; i++) {
        assert_int_equal(isnan(cpu->loss[i]), isnan(simt->loss[i]));
        if (isnan(cpu->loss[i])) continue;
        double loss = fabs(cpu->loss[i] - simt->loss[i]), norm = simt->norm[i] / cpu->norm[i] - 1;
        print_message("step %d: loss %+.1e, apart %.1e; norm %.4f, apart %.1e\n", i, cpu->loss[i],
                      loss, cpu->norm[i], norm);
        assert_true(loss <= most->loss && fabs(norm) <= most->norm);
    }
    check_preference(cpu, &cpu->tree[0]);
    for (int i = 0; i < TREES; i++)
        same += same_tree(cpu, &cpu->tree[i], &simt->tree[i], most->logp);
    return same;
}

/* Folder of weights that have seen demonstrations; without them no tree reaches the goal and there is
 * nothing to learn. */
static const char* warm_weights(void)
{
    static char word[200];
    const char* const more[] = {
        "warmstart.steps=60", "warmstart.batch=16",     "warmstart.lr=1e-2",        "run.steps=1",
        "checkpoint.keep=0",  "frozenlake.max_turns=5", "frozenlake.demo_noise=0.2"};
    if (word[0] != 0) return word;
    side s;
    open_side(&s, "warm", "cpu", GR_COUNT(more), more);
    must(gr_train(&s.run));
    (void)snprintf(word, sizeof word, "warmstart.load=%s/t/checkpoints/initial", s.dir);
    close_side(&s);
    return word;
}

static void train_on_both(const char* strategy, const char* dtype, const bounds* most)
{
    const char* const more[] = {"run.steps=3",
                                "frozenlake.max_turns=5",
                                "optimizer.epochs=2",
                                "loss.entropy_coef=0.1",
                                warm_weights(),
                                strategy,
                                dtype};
    side cpu, simt;
    char name[2][96];
    for (int i = 0; i < 2; i++)
        (void)snprintf(name[i], sizeof name[i], "%s_%s_%s", i ? "simt" : "cpu", strategy, dtype);
    open_side(&cpu, name[0], "cpu", GR_COUNT(more), more);
    open_side(&simt, name[1], "simt", GR_COUNT(more), more);
    learn(&cpu), learn(&simt);
    play(&cpu), play(&simt);
    assert_true(exact_steps(&cpu) >= 2 && exact_steps(&simt) >= 2);
    int same = compare(&cpu, &simt, most);
    print_message("%s %s: %d of %d greedy trees are the same\n", strategy, dtype, same, TREES);
    close_side(&cpu);
    close_side(&simt);
}

static void three_steps_in_fp32(void** state)
{
    (void)state;
    train_on_both("rollout.strategy=patr_retro", "model.dtype=fp32", &fp32);
}

static void three_steps_in_bf16(void** state)
{
    (void)state;
    train_on_both("rollout.strategy=tree_grpo", "model.dtype=bf16", &bf16);
}

/* What the sampler read from pages the trainer finds in the packed tree, to the bit: all shapes of
 * trees, paths of several chunks of 256 keys. Idle groups count, so that every token is measured. */
static void sampler_and_trainer_agree_in_every_shape(void** state)
{
    (void)state;
    static const struct {
        const char *name, *word[6];
    } shape[] = {
        {"flat", {"rollout.strategy=flat", "model.dtype=bf16", "model.qk_norm=true"}},
        {"random", {"rollout.strategy=tree_random", "model.dtype=bf16", "model.qkv_bias=true"}},
        {"patr", {"rollout.strategy=patr", "patr.interval=2", "model.head_dim=20"}},
        {"wide",
         {"rollout.strategy=flat", "rollout.group=9", "model.heads=6", "model.head_dim=8",
          "frozenlake.max_turns=4"}},
        {"long",
         {"rollout.strategy=patr_retro", "frozenlake.max_turns=11", "frozenlake.size=4",
          "rollout.max_context=320", "rollout.group=2", "model.dtype=bf16"}},
    };
    for (int i = 0; i < GR_COUNT(shape); i++) {
        const char* more[12] = {"run.steps=1", "frozenlake.max_turns=4",
                                "loss.count_idle_groups=true", "rollout.groups_per_step=1",
                                "rollout.max_turn_tokens=4"};
        int n = 5;
        for (int k = 0; k < 6 && shape[i].word[k] != NULL; k++) more[n++] = shape[i].word[k];
        side s;
        open_side(&s, shape[i].name, "simt", n, more);
        simt_guard(i == 0 ? SIZE_MAX : 0); /* no code of the host may follow a device pointer */
        learn(&s);
        simt_guard(0);
        print_message("%s: %d tokens\n", shape[i].name, (int)s.run.state.gen_tokens);
        assert_int_equal(exact_steps(&s), 1);
        close_side(&s);
    }
}

/* Fast plans cut paths elsewhere: sampler and trainer differ by rounding, and the run says so. */
static void fast_attention_gives_up_parity(void** state)
{
    (void)state;
    const char* const more[] = {"run.steps=1",
                                "device.attention=fast",
                                "rollout.strategy=patr_retro",
                                "frozenlake.max_turns=11",
                                "frozenlake.size=4",
                                "rollout.max_context=320",
                                "rollout.group=2",
                                "rollout.groups_per_step=1",
                                "rollout.max_turn_tokens=4",
                                "loss.count_idle_groups=true"};
    side s;
    open_side(&s, "fast", "simt", GR_COUNT(more), more);
    assert_non_null(strstr(s.run.dev.detail, "fast attention (sampler and trainer differ)"));
    learn(&s);
    double parity = 0;
    for (int i = 0; i < s.n_steps; i++) parity = fmax(parity, s.parity[i]); /* passes over NaN */
    print_message("parity %g\n", parity);
    assert_true(parity > 0 && parity < 1e-4);
    close_side(&s);
}

/* Status of a short run whose k-th launch fails. */
static gr_status train_with_failed_launch(int k)
{
    const char* const more[] = {"run.steps=1", "frozenlake.max_turns=4",
                                "loss.count_idle_groups=true", "rollout.groups_per_step=1",
                                "rollout.max_turn_tokens=4"};
    char name[32], fault[32];
    side s;
    (void)snprintf(name, sizeof name, "launch%d", k);
    (void)snprintf(fault, sizeof fault, "dev.launch:%d", k);
    open_side(&s, name, "simt", GR_COUNT(more), more);
    gr_fault_set(fault);
    const gr_status st = gr_train(&s.run);
    gr_fault_set(NULL);
    close_side(&s);
    return st;
}

/* The first launch that fails is named at the next sync and ends the run, wherever in it. */
static void a_failed_launch_ends_the_run(void** state)
{
    (void)state;
    int k = 1, failed = 0;
    for (; train_with_failed_launch(k) != GR_OK; k += 1 + k / 2, failed++) {
        const char* text = gr_last_error_text();
        print_message("launch %d: %s\n", k, text);
        assert_int_equal(strncmp(text, "simt: ", 6), 0);
        assert_non_null(strstr(text, ": unspecified launch failure"));
        assert_null(strchr(text, '\n'));
    }
    assert_true(failed >= 10); /* then the run had fewer launches */
}

static void large_heads_are_refused_at_once(void** state)
{
    (void)state;
    const char* const word[] = {"device.name=simt", "run.steps=1", "model.head_dim=130"};
    gr_config config;
    gr_run run;
    gr_run_settings(&config);
    must(gr_config_load(&config, NULL, GR_COUNT(word), word));
    assert_int_equal(gr_run_open(&run, &config, GR_RUN_TRAIN, NULL, true), GR_EARG);
    assert_non_null(strstr(gr_last_error_text(), "heads of at most 128"));
    gr_run_close(&run);
    gr_config_free(&config);
}

static int make_root(void** state)
{
    (void)state;
    (void)snprintf(root, sizeof root, "/tmp/grove-simt-XXXXXX");
    return mkdtemp(root) == NULL;
}

static int remove_root(void** state)
{
    char command[160];
    (void)state;
    (void)snprintf(command, sizeof command, "rm -rf %s", root);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(large_heads_are_refused_at_once),
        cmocka_unit_test(fast_attention_gives_up_parity),
        cmocka_unit_test(a_failed_launch_ends_the_run),
        cmocka_unit_test(three_steps_in_fp32),
        cmocka_unit_test(three_steps_in_bf16),
        cmocka_unit_test(sampler_and_trainer_agree_in_every_shape),
    };
    return cmocka_run_group_tests(tests, make_root, remove_root);
}
