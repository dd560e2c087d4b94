/* The program as a whole: determinism, resume after kill -9, refusals, learning. Runs the built `grove`
 * (GROVE_BIN) in folders of its own under the temporary directory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cjson/cJSON.h>
#include <cmocka.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "host/base.h"
#include "host/json.h"

static char root[128]; /* a fresh temporary folder */

/* A run of a few seconds at most; the file is written once into the temporary folder. */
static const char tiny[] =
    "{\"run\": {\"name\": \"t\", \"seed\": 5, \"steps\": 6},"
    " \"model\": {\"layers\": 1, \"width\": 32, \"heads\": 2, \"kv_heads\": 1, \"mlp\": 48, "
    "\"vocab\": 256},"
    " \"env\": {\"name\": \"frozenlake\"},"
    " \"frozenlake\": {\"size\": 3, \"hole_prob\": 0.1, \"max_turns\": 5, \"demo_noise\": 0.2},"
    " \"warmstart\": {\"steps\": 60, \"batch\": 16, \"lr\": 1e-2},"
    " \"rollout\": {\"strategy\": \"patr_retro\", \"group\": 4, \"groups_per_step\": 6,"
    "  \"max_turn_tokens\": 6, \"max_context\": 128},"
    " \"optimizer\": {\"microbatch_tokens\": 512},"
    " \"eval\": {\"tasks\": 12, \"every\": 3, \"greedy\": true},"
    " \"checkpoint\": {\"every\": 1, \"keep\": 2}, \"log\": {\"quiet\": true, \"trees_every\": 1}}";

static char config_path[160];

static pid_t start(const char* fault, const char* command, const char* const* args, int n)
{
    const char* argv[40] = {GROVE_BIN, command};
    int k = 2;
    for (int i = 0; i < n; i++) argv[k++] = args[i];
    char log[200];
    (void)snprintf(log, sizeof log, "%s/stderr", root);
    pid_t pid = fork();
    if (pid != 0) return pid;
    if (fault != NULL) setenv("GR_FAULT", fault, 1);
    int fd = open(log, O_CREAT | O_TRUNC | O_WRONLY, 0644);
    (void)dup2(fd, 2);
    (void)dup2(open("/dev/null", O_WRONLY), 1);
    (void)execv(argv[0], (char* const*)(uintptr_t)argv);
    _exit(127);
}

static struct rusage usage; /* of the last program that finished */

static int finish(pid_t pid)
{
    int status = 0;
    assert_int_equal(wait4(pid, &status, 0, &usage), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* Trains the tiny config in <root>/<dir>/t with further overrides; returns the exit status. */
static pid_t start_train(const char* fault, const char* dir, int n_more, const char* const* more)
{
    char run_dir[200];
    const char* args[32] = {config_path, run_dir};
    (void)snprintf(run_dir, sizeof run_dir, "run.dir=%s/%s", root, dir);
    for (int i = 0; i < n_more; i++) args[2 + i] = more[i];
    return start(fault, "train", args, 2 + n_more);
}

static int train(const char* dir, int n_more, const char* const* more)
{
    return finish(start_train(NULL, dir, n_more, more));
}

static char* slurp(const char* dir, const char* file)
{
    char path[300];
    (void)snprintf(path, sizeof path, "%s/%s%s", root, dir, file);
    FILE* f = fopen(path, "rb");
    if (f == NULL) return NULL;
    char* text = calloc(1, 1 << 22);
    size_t n = fread(text, 1, (1 << 22) - 1, f);
    text[n] = 0;
    (void)fclose(f);
    return text;
}

static bool stderr_has(const char* what)
{
    char* text = slurp("", "stderr");
    bool found = text != NULL && strstr(text, what) != NULL;
    if (!found) print_message("stderr: %s\n", text);
    free(text);
    return found;
}

static bool is_clock(const char* name)
{
    return strncmp(name, "time/", 5) == 0 || strncmp(name, "perf/", 5) == 0 ||
           strncmp(name, "mem/", 4) == 0 || strstr(name, "prefill") != NULL;
}

/* metrics.jsonl without what a clock or the batch decides. */
static char* metrics_of(const char* dir)
{
    char* text = slurp(dir, "/t/metrics.jsonl");
    assert_non_null(text);
    char* out = calloc(1, strlen(text) + 64);
    for (char* line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        cJSON* o = cJSON_Parse(line);
        assert_non_null(o);
        for (cJSON *item = o->child, *next; item != NULL; item = next) {
            next = item->next;
            if (is_clock(item->string)) cJSON_Delete(cJSON_DetachItemViaPointer(o, item));
        }
        char* kept = cJSON_PrintUnformatted(o);
        (void)strcat(strcat(out, kept), "\n");
        free(kept);
        cJSON_Delete(o);
    }
    free(text);
    return out;
}

/* `file` of the last checkpoint, byte for byte. */
static void assert_same_file(const char* a, const char* b, const char* file)
{
    char command[600];
    (void)snprintf(command, sizeof command,
                   "cmp %s/%s/t/checkpoints/000006/%s %s/%s/t/checkpoints/000006/%s", root, a, file,
                   root, b, file);
    assert_int_equal(system(command), 0);
}

static void assert_same_run(const char* a, const char* b)
{
    char *ma = metrics_of(a), *mb = metrics_of(b);
    assert_string_equal(ma, mb);
    free(ma);
    free(mb);
    ma = slurp(a, "/t/trees.jsonl"), mb = slurp(b, "/t/trees.jsonl");
    assert_string_equal(ma, mb);
    free(ma);
    free(mb);
    assert_same_file(a, b, "model.safetensors");
}

static void setup_reference(void)
{
    static bool done;
    if (done) return;
    done = true;
    if (train("reference", 0, NULL) != 0) stderr_has("?");
}

static void parity_is_exactly_zero(void** state)
{
    (void)state;
    setup_reference();
    char* text = slurp("reference", "/t/metrics.jsonl");
    assert_non_null(text);
    int steps = 0, measured = 0;
    for (char* line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        cJSON* o = cJSON_Parse(line);
        const cJSON* parity = cJSON_GetObjectItem(o, "parity/max_abs_dlogp");
        if (parity != NULL) steps++;
        if (cJSON_IsNumber(parity)) {
            measured++;
            assert_true(parity->valuedouble == 0);
        }
        cJSON_Delete(o);
    }
    free(text);
    assert_int_equal(steps, 6);
    assert_true(measured > 0);
}

static void same_run_on_any_threads_and_batches(void** state)
{
    (void)state;
    setup_reference();
    const char* const one[] = {"device.threads=1"};
    assert_int_equal(train("one_thread", 1, one), 0);
    assert_same_run("reference", "one_thread");
    const char* const narrow[] = {"device.threads=2", "rollout.max_live=3", "rollout.max_rows=16"};
    assert_int_equal(train("narrow", 3, narrow), 0);
    assert_same_run("reference", "narrow");
}

/* A sanitizer makes a start ten times as long and looks for other mistakes: fewer kills do there. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { KILLS = 12 };
#else
enum { KILLS = 50 };
#endif

static void killed_anywhere_it_resumes_bit_for_bit(void** state)
{
    (void)state;
    setup_reference();
    static const char* const places[] = {"record.open", "record.write", "record.sync",
                                         "record.rename"};
    int kills = 0;
    for (int round = 0; kills < KILLS; round++) {
        char dir[32];
        (void)snprintf(dir, sizeof dir, "killed%d", round);
        int status = 137;
        for (int attempt = 0; status != 0; attempt++) {
            assert_true(attempt < 200);
            char fault[64];
            uint64_t dice = gr_key_join((uint64_t)round, (uint64_t)attempt);
            bool at_place = dice % 3 != 0;
            (void)snprintf(fault, sizeof fault, "kill:%s:%d", places[dice / 3 % 4],
                           1 + (int)(dice / 64 % 40));
            pid_t pid = start_train(kills < KILLS && at_place ? fault : NULL, dir, 0, NULL);
            if (kills < KILLS && !at_place) {
                (void)usleep((useconds_t)(1000 + dice / 4096 % 400000));
                (void)kill(pid, SIGKILL);
            }
            status = finish(pid);
            if (status == 137)
                kills++;
            else if (status != 0)
                (void)stderr_has("?");
            assert_true(status == 0 || status == 137);
            char* finished = slurp(dir, "/t/finished"); /* killed on its way out: it is over */
            if (finished != NULL) status = 0;
            free(finished);
        }
        assert_same_run("reference", dir);
    }
}

/* Weights, moments and steps of the value model are part of a checkpoint, whichever trunk it has. */
static void a_value_model_resumes_bit_for_bit(void** state)
{
    (void)state;
    static const char* const backbones[] = {"separate", "shared"};
    for (int b = 0; b < GR_COUNT(backbones); b++) {
        char whole[32], cut[32], backbone[64];
        const char* more[] = {"advantage.estimator=gae", "value.lr=1e-2", "eval.tasks=4",
                              "value.clip=0.2", backbone};
        (void)snprintf(backbone, sizeof backbone, "value.backbone=%s", backbones[b]);
        (void)snprintf(whole, sizeof whole, "%s_whole", backbones[b]);
        (void)snprintf(cut, sizeof cut, "%s_cut", backbones[b]);
        assert_int_equal(train(whole, GR_COUNT(more), more), 0);
        for (int kills = 1, status = 137; status != 0; kills++) {
            char fault[64];
            (void)snprintf(fault, sizeof fault, "kill:record.rename:%d", 6);
            status = finish(start_train(kills < 4 ? fault : NULL, cut, GR_COUNT(more), more));
            assert_int_equal(status, kills < 4 ? 137 : 0);
        }
        assert_same_run(whole, cut);
        assert_same_file(whole, cut, "value.safetensors");
        assert_same_file(whole, cut, "value_optimizer.safetensors");
        char* text = slurp(whole, "/t/metrics.jsonl");
        assert_non_null(strstr(text, "\"value/loss\": 0."));
        free(text);
    }
}

/* Steps that are judged and made again: the same run on any threads and after kills, at parity. */
static void rewinds_resume_bit_for_bit(void** state)
{
    (void)state;
    const char* const more[] = {"rollout.strategy=proceed", "scorer.name=rule_critic",
                                "proceed.told=critique",    "proceed.final_share=0.25",
                                "rollout.max_context=512",  "optimizer.minibatches=2"};
    const char* one[GR_COUNT(more) + 1];
    memcpy(one, more, sizeof more);
    one[GR_COUNT(more)] = "device.threads=1";
    assert_int_equal(train("rewind_whole", GR_COUNT(more), more), 0);
    assert_int_equal(train("rewind_one", GR_COUNT(one), one), 0);
    assert_same_run("rewind_whole", "rewind_one");
    for (int kills = 1, status = 137; status != 0; kills++) {
        const char* fault = kills < 4 ? "kill:record.rename:6" : NULL;
        status = finish(start_train(fault, "rewind_cut", GR_COUNT(more), more));
        assert_int_equal(status, kills < 4 ? 137 : 0);
    }
    assert_same_run("rewind_whole", "rewind_cut");
    char *metrics = slurp("rewind_whole", "/t/metrics.jsonl"),
         *trees = slurp("rewind_whole", "/t/trees.jsonl");
    assert_non_null(strstr(metrics, "\"parity/max_abs_dlogp\": 0,"));
    assert_null(strstr(metrics, "\"budget/refiner_tokens\": 0,"));
    assert_non_null(strstr(trees, "\"kind\": \"rejected\""));
    assert_non_null(strstr(trees, "\"logp_from\": \"trainer\""));
    assert_non_null(strstr(trees, "\"critique\": \"the step"));
    free(metrics);
    free(trees);
}

/* States that the policy judges: its questions are in the same batch as everything else. */
static void a_judged_run_resumes_bit_for_bit(void** state)
{
    (void)state;
    const char* const more[] = {"scorer.name=judge",
                                "judge.reads=path",
                                "judge.temperature=1",
                                "judge.max_tokens=12",
                                "rollout.max_live=64",
                                "rollout.max_context=1024",
                                "optimizer.microbatch_tokens=1024"};
    const char* one[GR_COUNT(more)];
    memcpy(one, more, sizeof more);
    one[4] = "rollout.max_live=3";
    assert_int_equal(train("judged_whole", GR_COUNT(more), more), 0);
    assert_int_equal(train("judged_one", GR_COUNT(one), one), 0);
    assert_same_run("judged_whole", "judged_one");
    pid_t killed = start_train("kill:record.rename:9", "judged_cut", GR_COUNT(more), more);
    assert_int_equal(finish(killed), 137);
    assert_int_equal(train("judged_cut", GR_COUNT(more), more), 0);
    assert_same_run("judged_whole", "judged_cut");
    char* metrics = slurp("judged_whole", "/t/metrics.jsonl");
    assert_non_null(strstr(metrics, "\"parity/max_abs_dlogp\": 0,"));
    assert_non_null(strstr(metrics, "\"budget/critic_tokens\": "));
    assert_null(strstr(metrics, "\"budget/critic_tokens\": 0,"));
    free(metrics);
}

static void sigterm_leaves_a_checkpoint_to_go_on_from(void** state)
{
    (void)state;
    setup_reference();
    for (int i = 0; i < 3; i++) {
        char dir[32];
        (void)snprintf(dir, sizeof dir, "term%d", i);
        pid_t pid = start_train(NULL, dir, 0, NULL);
        (void)usleep(150000 + 120000 * (useconds_t)i);
        (void)kill(pid, SIGTERM);
        int first = finish(pid);
        /* before the handler is set the signal ends the process; a run that was over stays over */
        assert_true(first == 0 || first == 128 + SIGTERM);
        int again = train(dir, 0, NULL);
        if (again != 0) assert_true(stderr_has("finished"));
        assert_same_run("reference", dir);
    }
}

/* `key` in the last line of metrics.jsonl that has a number there; `none`: no line has. */
static double last_metric(const char* dir, const char* key, double none)
{
    char* text = slurp(dir, "/t/metrics.jsonl");
    for (char* line = text != NULL ? strtok(text, "\n") : NULL; line != NULL;
         line = strtok(NULL, "\n")) {
        cJSON* o = cJSON_Parse(line); /* NULL: a line that is being written */
        const cJSON* x = cJSON_GetObjectItem(o, key);
        if (cJSON_IsNumber(x)) none = x->valuedouble;
        cJSON_Delete(o);
    }
    free(text);
    return none;
}

/* A run without end or regular checkpoints: what it can go on from, the signal has made. */
static void signals_end_the_step_with_a_checkpoint(void** state)
{
    (void)state;
    const char* more[] = {"run.steps=1000000", "checkpoint.every=0", "eval.every=0"};
    double step = 0;
    for (int i = 0; i < 3; i++) {
        pid_t pid = start_train(NULL, "endless", GR_COUNT(more), more);
        while (last_metric("endless", "step", 0) < step + 2 && waitpid(pid, NULL, WNOHANG) == 0) {
            (void)usleep(2000);
        }
        (void)kill(pid, i % 2 == 0 ? SIGINT : SIGTERM);
        assert_int_equal(finish(pid), 0);
        char file[80];
        double after = last_metric("endless", "step", 0);
        assert_true(after >= step + 2);
        (void)snprintf(file, sizeof file, "/t/checkpoints/%06.0f/complete", after);
        char* complete = slurp("endless", file);
        assert_non_null(complete);
        free(complete);
        assert_null(slurp("endless", "/t/finished"));
        step = after;
    }
}

/* The first step that reaches a budget is the last one. */
static void budgets_end_a_run(void** state)
{
    (void)state;
    static const char* const budget[][2] = {{"budget.turns=400", "budget/charged_turns"},
                                            {"budget.tokens=2500", "budget/gen_tokens"}};
    for (int i = 0; i < GR_COUNT(budget); i++) {
        char dir[32];
        (void)snprintf(dir, sizeof dir, "budget%d", i);
        const char* more[] = {budget[i][0], "run.steps=0", "eval.every=0"};
        const double limit = strtod(strchr(budget[i][0], '=') + 1, NULL);
        assert_int_equal(train(dir, GR_COUNT(more), more), 0);
        char* text = slurp(dir, "/t/metrics.jsonl");
        int lines = 0;
        double spent = 0;
        for (char* line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n")) {
            cJSON* o = cJSON_Parse(line);
            assert_true(spent < limit); /* by the line before */
            const cJSON* x = cJSON_GetObjectItem(o, budget[i][1]);
            if (x != NULL) {
                assert_true(x->valuedouble > spent); /* a ledger never goes back */
                spent = x->valuedouble;
            }
            cJSON_Delete(o);
            lines++;
        }
        assert_true(spent >= limit && lines > 3);
        free(text);
    }
}

/* Groups in trees.jsonl: by attempt, idle ones, and those with more leaves than first branches. */
typedef struct groups {
    int attempt[4], idle, grown, n;
} groups;

static groups groups_of(const char* dir)
{
    groups g = {0};
    char* text = slurp(dir, "/t/trees.jsonl");
    assert_non_null(text);
    for (char* line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n"), g.n++) {
        cJSON* o = cJSON_Parse(line);
        int attempt = (int)cJSON_GetObjectItem(o, "attempt")->valuedouble;
        assert_in_range(attempt, 0, 3);
        g.attempt[attempt]++;
        const cJSON* first = cJSON_GetObjectItem(o, "nodes")->child;
        g.grown += cJSON_GetObjectItem(first, "leaves")->valuedouble > 4;
        g.idle += cJSON_GetObjectItem(first, "a_pos")->valuedouble == 0;
        cJSON_Delete(o);
    }
    free(text);
    return g;
}

/* Resampled groups are other tasks, extended ones get more branches; both end after refill_max
 * tries, and what was thrown away stays in the ledger. */
static void idle_groups_are_refilled_as_asked(void** state)
{
    (void)state;
    const char* more[] = {"rollout.strategy=flat", "eval.tasks=0", "rollout.refill=none"};
    assert_int_equal(train("refill_none", 3, more), 0);
    const groups none = groups_of("refill_none");
    assert_true(none.attempt[0] == none.n && none.grown == 0 && none.idle > 0);
    const double paid = last_metric("refill_none", "budget/gen_tokens", 0);

    const char* again[] = {"rollout.strategy=flat", "eval.tasks=0", "rollout.refill=resample",
                           "rollout.refill_max=3"};
    assert_int_equal(train("refill_resample", 4, again), 0);
    const groups resampled = groups_of("refill_resample");
    assert_int_equal(resampled.n, none.n);
    assert_true(resampled.attempt[0] < none.n && resampled.idle < none.idle);
    assert_int_equal(resampled.grown, 0);
    assert_true(last_metric("refill_resample", "budget/gen_tokens", 0) > paid);
    assert_true(last_metric("refill_resample", "budget/discarded_tokens", 0) >
                last_metric("refill_none", "budget/discarded_tokens", 0));

    again[2] = "rollout.refill=extend";
    assert_int_equal(train("refill_extend", 4, again), 0);
    const groups extended = groups_of("refill_extend");
    assert_int_equal(extended.n, none.n);
    assert_true(extended.attempt[0] == none.n && extended.idle < none.idle);
    assert_true(extended.grown > 0);
}

static void the_closing_table_starts_with_the_run(void** state)
{
    (void)state;
    const char* const loud[] = {"log.quiet=false"};
    assert_int_equal(train("whole", 1, loud), 0);
    char* whole = slurp("", "stderr");
    assert_int_equal(finish(start_train("kill:record.rename:12", "halves", 1, loud)), 137);
    assert_int_equal(train("halves", 1, loud), 0);
    char* halves = slurp("", "stderr");
    const char *a = strstr(whole, "held-out success "), *b = strstr(halves, "held-out success ");
    assert_non_null(a);
    assert_non_null(b);
    assert_null(strstr(halves, "step 0 ")); /* the second session did not evaluate the start */
    size_t table = strcspn(strchr(a, '\n') + 1, "\n") + (size_t)(strchr(a, '\n') + 1 - a);
    assert_memory_equal(a, b, table);
    free(whole);
    free(halves);
}

static void a_finished_run_is_never_overwritten(void** state)
{
    (void)state;
    setup_reference();
    char* before = slurp("reference", "/t/metrics.jsonl");
    assert_int_equal(train("reference", 0, NULL), 1);
    assert_true(stderr_has("finished"));
    char* after = slurp("reference", "/t/metrics.jsonl");
    assert_string_equal(before, after);
    free(before);
    free(after);
}

static void bad_settings_end_before_any_work(void** state)
{
    (void)state;
    static const struct {
        const char *word, *reason;
    } cases[] = {
        {"rollout.grup=4", "rollout.group"},
        {"patr.theta=3", "patr"},
        {"rollout.group=-1", "rollout.group"},
        {"frozenlake.size=99", "frozenlake.size"},
        {"rollout.top_p=0.9", "top_p"},
        {"loss.weighting=once_mean", "token_mean"},
        {"rollout.strategy=nonesuch", "nonesuch"},
        {"scorer.name=nonesuch", "nonesuch"},
        {"device.name=tpu", "tpu"},
        {"value.lr=1", "value.lr has no effect: advantage.estimator is grpo"},
        {"hiper.gamma=1", "hiper.gamma has no effect: rollout.interface is plain"},
        {"advantage.estimator=hae", "advantage.estimator = hae needs rollout.interface = hiper"},
    };
    for (int i = 0; i < GR_COUNT(cases); i++) {
        const char* more[] = {cases[i].word};
        assert_int_equal(train("refused", 1, more), 1);
        assert_true(stderr_has(cases[i].reason));
        char* nothing = slurp("refused", "/t/config.json");
        assert_null(nothing);
    }
}

/* Without eps AdamW divides 0 by 0 where a weight has no gradient yet. Updates are left out, their
 * batches written aside, and past optimizer.max_skipped the run ends. */
static void a_run_that_diverges_says_so(void** state)
{
    (void)state;
    const char* more[] = {"optimizer.eps=0", "eval.tasks=0", "optimizer.max_skipped=2"};
    assert_int_equal(train("diverged", GR_COUNT(more), more), 1);
    assert_true(stderr_has("grove: step 3: loss or gradient not finite 3 times in a row "
                           "(optimizer.max_skipped)"));
    for (int step = 1; step <= 4; step++) {
        char file[40], first[40];
        (void)snprintf(file, sizeof file, "/t/skipped-%06d.jsonl", step);
        (void)snprintf(first, sizeof first, "{\"step\": %d, ", step);
        char* text = slurp("diverged", file);
        if (step <= 3) assert_memory_equal(text, first, strlen(first));
        if (step > 3) assert_null(text);
        free(text);
    }
    assert_null(slurp("diverged", "/t/finished"));
}

static void dry_run_writes_nothing(void** state)
{
    (void)state;
    const char* more[] = {"--dry-run"};
    assert_int_equal(train("dry", 1, more), 0);
    assert_true(stderr_has("objective"));
    assert_true(stderr_has("memory"));
    assert_null(slurp("dry", "/t/config.json"));
}

/* A model large enough that the program itself (some 10 MB) does not decide. */
static void memory_is_what_the_plan_says(void** state)
{
    (void)state;
    const char* more[] = {"model.layers=6", "model.width=256",   "model.mlp=704", "model.heads=4",
                          "run.steps=2",    "warmstart.steps=2", "eval.tasks=4",  "--dry-run"};
    assert_int_equal(train("plan", 8, more), 0);
    char* text = slurp("", "stderr");
    const char* at = strstr(text, "together ");
    assert_non_null(at);
    const double planned = 1e6 * strtod(at + strlen("together "), NULL);
    free(text);
    assert_int_equal(train("plan", 7, more), 0);
    const double peak = 1024.0 * (double)usage.ru_maxrss;
    print_message("plan %.1f MB, peak %.1f MB\n", planned / 1e6, peak / 1e6);
    assert_true(peak > 0.5 * planned);
#if !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__) /* these need memory of their own */
    assert_true(peak <= 1.1 * planned);
#endif
}

static void replay_finds_equal_tokens(void** state)
{
    (void)state;
    setup_reference();
    char run[200];
    (void)snprintf(run, sizeof run, "%s/reference/t", root);
    const char* args[] = {run, "--node", "6:0:1"};
    assert_int_equal(finish(start(NULL, "replay", args, 3)), 0);
    const char* early[] = {run, "--node", "2:1:1"}; /* its weights are made again from the first */
    assert_int_equal(finish(start(NULL, "replay", early, 3)), 0);
    const char* missing[] = {run, "--node", "9:0:1"};
    assert_int_equal(finish(start(NULL, "replay", missing, 3)), 1);
    assert_true(stderr_has("9:0:1"));
}

/* What `grove inspect --observations` prints for the given trees.jsonl; `status` is its exit status. */
static char* inspect(const char* log, size_t n, const char* option, int* status)
{
    char command[600];
    (void)snprintf(command, sizeof command, "mkdir -p %s/drawn", root);
    assert_int_equal(system(command), 0);
    (void)snprintf(command, sizeof command, "%s/drawn/trees.jsonl", root);
    FILE* f = fopen(command, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(log, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
    (void)snprintf(command, sizeof command, "%s inspect %s/drawn %s >%s/out 2>%s/stderr", GROVE_BIN,
                   root, option, root, root);
    *status = WEXITSTATUS(system(command));
    return slurp("", "out");
}

static void inspect_prints_no_byte_that_steers(void** state)
{
    (void)state;
    char log[4096];
    int status, n = 0;
    n += snprintf(log, sizeof log, "{\"step\": 1, \"group\": 0, \"nodes\": [");
    for (int id = 0; id < 2; id++) {
        n += snprintf(log + n, sizeof log - (size_t)n,
                      "%s{\"id\": %d, \"parent\": %d, \"status\": \"x\\u001b[2J\", \"action\": "
                      "\"\\u0007go\\u009b\", \"observation\": \"a\\nb",
                      id > 0 ? ", " : "", id, id - 1);
        for (int c = 1; c < 256; c++) {
            if (c != '"' && c != '\\' && c != '\n') log[n++] = (char)c;
        }
        n += snprintf(log + n, sizeof log - (size_t)n, "\"}");
    }
    n += snprintf(log + n, sizeof log - (size_t)n, "]}\n");
    for (int json = 0; json < 2; json++) {
        char* out = inspect(log, (size_t)n, json ? "--json" : "--observations", &status);
        assert_int_equal(status, 0);
        assert_non_null(strstr(out, json ? "\\u001b" : "\\x1b"));
        size_t bytes = strlen(out), length;
        for (size_t i = 0; i < bytes; i += length) {
            length = gr_utf8_length(out + i, bytes - i);
            assert_true(length > 0);
            assert_true((unsigned char)out[i] >= 0x20 || out[i] == '\n');
            assert_true(out[i] != 0x7f);
            if ((unsigned char)out[i] == 0xc2) assert_true((unsigned char)out[i + 1] >= 0xa0);
        }
        free(out);
    }
}

/* A chain far deeper than a line of 1,024 bytes, then 10,000 siblings: every node is drawn once. */
static void inspect_draws_deep_and_wide_trees(void** state)
{
    (void)state;
    for (int wide = 0; wide < 2; wide++) {
        int nodes = wide ? 10000 : 1000, n = 0, status;
        char* log = calloc(1, 1 << 20);
        n += sprintf(log, "{\"step\": 1, \"group\": 0, \"nodes\": [{\"id\": 0, \"parent\": -1}");
        for (int id = 1; id <= nodes; id++) {
            n += sprintf(log + n, ", {\"id\": %d, \"parent\": %d}", id, wide ? 0 : id - 1);
        }
        n += sprintf(log + n, "]}\n");
        char* out = inspect(log, (size_t)n, "", &status);
        assert_int_equal(status, 0);
        int drawn = 0;
        for (char* line = strtok(out, "\n"); line != NULL; line = strtok(NULL, "\n")) {
            const char* id = strstr(line, "#");
            if (id == NULL) continue;
            assert_int_equal(strtol(id + 1, NULL, 10), ++drawn);
            assert_int_equal(strspn(line, " "), wide ? 0 : 2 * (drawn - 1));
        }
        assert_int_equal(drawn, nodes);
        free(out);
        free(log);
    }
}

static void inspect_names_a_damaged_line(void** state)
{
    (void)state;
    static const char whole[] = "{\"step\": 1, \"group\": 0, \"nodes\": [{\"id\": 0}]}\n";
    char log[400];
    int status;
    int n = snprintf(log, sizeof log, "%s%.20s\n%s", whole, whole, whole);
    free(inspect(log, (size_t)n, "", &status));
    assert_int_equal(status, 1);
    assert_true(stderr_has("trees.jsonl: line 2 is damaged"));
    n = snprintf(log, sizeof log, "%s%.20s", whole, whole);
    free(inspect(log, (size_t)n, "", &status));
    assert_int_equal(status, 0);
}

static void damaged_checkpoints_are_refused_or_passed_over(void** state)
{
    (void)state;
    const char* four[] = {"run.steps=4"};
    assert_int_equal(train("damage", 1, four), 0);
    char command[400];
    (void)snprintf(command, sizeof command,
                   "cd %s/damage/t && truncate -s 100 checkpoints/000004/model.safetensors", root);
    assert_int_equal(system(command), 0);
    char path[300];
    (void)snprintf(path, sizeof path, "%s/damage/t/checkpoints/000004", root);
    const char* args[] = {path};
    assert_int_equal(finish(start(NULL, "eval", args, 1)), 1);
    assert_true(stderr_has("000004"));
    (void)snprintf(path, sizeof path, "%s/damage/t", root);
    assert_int_equal(finish(start(NULL, "eval", args, 1)), 0); /* the one before */
}

/* Held-out success before and after a run of 60 steps. */
static void learn(const char* dir, int n_own, const char* const* own)
{
    const char* more[24] = {"run.steps=60",
                            "frozenlake.size=3",
                            "optimizer.lr=2e-3",
                            "model.width=32",
                            "model.layers=2",
                            "warmstart.steps=80",
                            "eval.tasks=300",
                            "eval.every=0",
                            "checkpoint.every=0",
                            "log.trees_every=0",
                            "rollout.groups_per_step=24",
                            "optimizer.microbatch_tokens=4096"};
    int n = 12;
    for (int i = 0; i < n_own; i++) more[n++] = own[i];
    assert_int_equal(train(dir, n, more), 0);
    char* text = slurp(dir, "/t/metrics.jsonl");
    assert_non_null(text);
    double first = (double)NAN, last = (double)NAN;
    for (char* line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        cJSON* o = cJSON_Parse(line);
        const cJSON* s = cJSON_GetObjectItem(o, "eval/success");
        if (cJSON_IsNumber(s) && isnan(first)) first = s->valuedouble;
        if (cJSON_IsNumber(s)) last = s->valuedouble;
        cJSON_Delete(o);
    }
    free(text);
    print_message("held-out success %.2f -> %.2f\n", first, last);
    assert_true(last >= first + 0.15);
}

static void it_learns(void** state)
{
    (void)state;
    if (getenv("GR_SKIP_LEARNING") != NULL) skip();
    learn("learns", 0, NULL);
}

static void it_learns_from_values(void** state)
{
    (void)state;
    if (getenv("GR_SKIP_LEARNING") != NULL) skip();
    const char* own[] = {"advantage.estimator=gae", "rollout.strategy=flat"};
    learn("learns_values", GR_COUNT(own), own);
}

static int make_root(void** state)
{
    (void)state;
    (void)snprintf(root, sizeof root, "%s/grove-test-XXXXXX",
                   getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    if (mkdtemp(root) == NULL) return 1;
    (void)snprintf(config_path, sizeof config_path, "%s/tiny.json", root);
    FILE* f = fopen(config_path, "w");
    if (f == NULL) return 1;
    (void)fputs(tiny, f);
    return fclose(f);
}

static int remove_root(void** state)
{
    (void)state;
    char command[200];
    (void)snprintf(command, sizeof command, "rm -rf '%s'", root);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parity_is_exactly_zero),
        cmocka_unit_test(same_run_on_any_threads_and_batches),
        cmocka_unit_test(the_closing_table_starts_with_the_run),
        cmocka_unit_test(a_finished_run_is_never_overwritten),
        cmocka_unit_test(bad_settings_end_before_any_work),
        cmocka_unit_test(dry_run_writes_nothing),
        cmocka_unit_test(memory_is_what_the_plan_says),
        cmocka_unit_test(replay_finds_equal_tokens),
        cmocka_unit_test(inspect_prints_no_byte_that_steers),
        cmocka_unit_test(inspect_draws_deep_and_wide_trees),
        cmocka_unit_test(inspect_names_a_damaged_line),
        cmocka_unit_test(damaged_checkpoints_are_refused_or_passed_over),
        cmocka_unit_test(rewinds_resume_bit_for_bit),
        cmocka_unit_test(a_judged_run_resumes_bit_for_bit),
        cmocka_unit_test(sigterm_leaves_a_checkpoint_to_go_on_from),
        cmocka_unit_test(signals_end_the_step_with_a_checkpoint),
        cmocka_unit_test(budgets_end_a_run),
        cmocka_unit_test(idle_groups_are_refilled_as_asked),
        cmocka_unit_test(killed_anywhere_it_resumes_bit_for_bit),
        cmocka_unit_test(a_value_model_resumes_bit_for_bit),
        cmocka_unit_test(a_run_that_diverges_says_so),
        cmocka_unit_test(it_learns),
        cmocka_unit_test(it_learns_from_values),
    };
    return cmocka_run_group_tests(tests, make_root, remove_root);
}
