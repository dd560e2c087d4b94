/* The folder of a run: lock, logs that are cut back, lines of metrics and trees. */
#include "tests/disk.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <math.h>
#include <sys/resource.h>

#include "host/durable.h"
#include "host/json.h"
#include "host/record.h"
#include "tests/grow.h"

static uint64_t dice_at;
static uint64_t below_n(uint64_t n)
{
    uint64_t x = gr_key_join(0x72756e6c6f67, dice_at++);
    return n > 0 ? x % n : x;
}

static const char settings[] = "{\"run\": {\"seed\": 1}}\n";
static const char later[] = "{\"run\": {\"seed\": 1}, \"log\": {}}\n";

/* Some lines of both logs. */
static void write_lines(gr_run_log* log, int64_t step, int n)
{
    for (int i = 0; i < n; i++) {
        gr_metrics m = {0};
        gr_metrics_set(&m, "x", (double)below_n(1000));
        ASSERT_OK(gr_metrics_write(log, step + i, &m));
        fprintf(log->trees, "{\"tree\": %d}\n", (int)below_n(100000));
    }
}

static gr_train_state state_at(gr_run_log* log, int64_t step)
{
    gr_train_state s = {.step = step};
    ASSERT_OK(gr_run_log_offsets(log, &s.metrics_bytes, &s.trees_bytes));
    return s;
}

/* ---- the folder -------------------------------------------------------------------------------- */

static void logs_are_cut_back_to_the_checkpoint(void** state)
{
    (void)state;
    for (int round = 0; round < 60; round++) {
        gr_run_log log;
        const char* dir = fresh();
        ASSERT_OK(gr_run_log_open(&log, dir, settings, NULL));
        write_lines(&log, 0, (int)below_n(5));
        gr_train_state s = state_at(&log, 3);
        size_t n_metrics = 0, n_trees = 0, n = 0;
        char* metrics = slurp(dir, "metrics.jsonl", &n_metrics);
        char* trees = slurp(dir, "trees.jsonl", &n_trees);
        assert_int_equal(s.metrics_bytes, n_metrics);
        assert_int_equal(s.trees_bytes, n_trees);
        write_lines(&log, 4, (int)below_n(5));
        if (below_n(2)) fputs("{\"step\": 9, \"x\"", log.metrics); /* half a line, then the crash */
        if (below_n(2)) fputs("{", log.trees);
        gr_run_log_close(&log);
        for (int again = 0; again < 2; again++) {
            ASSERT_OK(gr_run_log_open(&log, dir, later, &s));
            char* now = slurp(dir, "metrics.jsonl", &n);
            assert_true(n == n_metrics && memcmp(now, metrics, n) == 0);
            free(now);
            now = slurp(dir, "trees.jsonl", &n);
            assert_true(n == n_trees && memcmp(now, trees, n) == 0);
            free(now);
            now = slurp(dir, "config.json", &n);
            assert_string_equal(now, later);
            free(now);
            write_lines(&log, 4, 1); /* goes behind what was kept */
            gr_run_log_close(&log);
            now = slurp(dir, "metrics.jsonl", &n);
            assert_true(n > n_metrics && memcmp(now, metrics, n_metrics) == 0);
            assert_true(now[n_metrics] == '{' && now[n - 1] == '\n');
            free(now);
        }
        free(metrics);
        free(trees);
    }
}

static void lost_lines_are_an_error(void** state)
{
    (void)state;
    static const char* const names[] = {"metrics.jsonl", "trees.jsonl"};
    for (int i = 0; i < 2; i++) {
        gr_run_log log;
        char want[300];
        const char* dir = fresh();
        ASSERT_OK(gr_run_log_open(&log, dir, settings, NULL));
        write_lines(&log, 0, 3);
        gr_train_state s = state_at(&log, 3);
        gr_run_log_close(&log);
        spill(dir, names[i], "{}\n", 3);
        assert_int_equal(gr_run_log_open(&log, dir, settings, &s), GR_EDATA);
        (void)snprintf(want, sizeof want, "%s/%s: 3 bytes, but the checkpoint counts %lld", dir,
                       names[i], (long long)(i == 0 ? s.metrics_bytes : s.trees_bytes));
        assert_ptr_equal(strstr(gr_last_error_text(), want), gr_last_error_text());
        char* now = slurp(dir, names[i], NULL);
        assert_string_equal(now, "{}\n");
        free(now);
    }
}

static void a_run_is_never_overwritten(void** state)
{
    (void)state;
    gr_run_log log;
    const char* dir = fresh();
    char path[300];
    /* what ended before its first checkpoint is begun again */
    for (int i = 0; i < 3; i++) {
        ASSERT_OK(gr_run_log_open(&log, dir, settings, NULL));
        size_t n = 1;
        char* metrics = slurp(dir, "metrics.jsonl", &n);
        assert_int_equal(n, 0);
        free(metrics);
        write_lines(&log, 0, 1);
        fputs("half", log.metrics);
        gr_run_log_close(&log);
    }
    /* results */
    static const char results[] = "{\"step\": 0}\n{\"step\": 1}\n";
    spill(dir, "metrics.jsonl", results, strlen(results));
    assert_int_equal(gr_run_log_open(&log, dir, later, NULL), GR_EARG);
    assert_non_null(strstr(gr_last_error_text(), "holds a run"));
    spill(dir, "metrics.jsonl", "", 0);
    /* a checkpoint, even a damaged one */
    (void)snprintf(path, sizeof path, "%s/checkpoints/000003", dir);
    ASSERT_OK(gr_make_folders(path));
    ASSERT_OK(gr_run_log_open(&log, dir, settings, NULL)); /* without a marker it is none */
    gr_run_log_close(&log);
    spill(path, "complete", "", 0);
    assert_int_equal(gr_run_log_open(&log, dir, later, NULL), GR_EARG);
    assert_non_null(strstr(gr_last_error_text(), "holds a run"));
    char* now = slurp(dir, "config.json", NULL);
    assert_string_equal(now, settings);
    free(now);
    /* the end */
    gr_train_state s = {.step = 3};
    ASSERT_OK(gr_run_log_open(&log, dir, settings, &s));
    assert_false(gr_run_log_finished(dir));
    ASSERT_OK(gr_run_log_finish(&log));
    assert_true(gr_run_log_finished(dir));
    gr_run_log_close(&log);
    assert_int_equal(gr_run_log_open(&log, dir, settings, &s), GR_EARG);
    assert_non_null(strstr(gr_last_error_text(), "finished"));
    assert_int_equal(gr_run_log_open(&log, dir, settings, NULL), GR_EARG);
}

static void checkpoints_of_a_lost_future_go(void** state)
{
    (void)state;
    gr_run_log log;
    const char* dir = fresh();
    static const char* const names[] = {"000002", "000004", "000006", "best"};
    char path[300];
    for (int i = 0; i < GR_COUNT(names); i++) {
        (void)snprintf(path, sizeof path, "%s/checkpoints/%s", dir, names[i]);
        ASSERT_OK(gr_make_folders(path));
        spill(path, "complete", "", 0);
    }
    gr_train_state s = {.step = 4};
    ASSERT_OK(gr_run_log_open(&log, dir, settings, &s));
    gr_run_log_close(&log);
    for (int i = 0; i < GR_COUNT(names); i++) {
        (void)snprintf(path, sizeof path, "%s/checkpoints/%s", dir, names[i]);
        assert_int_equal(gr_exists(path), i != 2);
    }
}

/* ---- two processes ------------------------------------------------------------------------------ */

static void one_process_holds_a_run(void** state)
{
    (void)state;
    gr_run_log log;
    const char* dir = fresh();
    int ready[2];
    char byte = 0, want[64];
    assert_int_equal(pipe(ready), 0);
    pid_t pid = fork();
    if (pid == 0) {
        if (gr_run_log_open(&log, dir, settings, NULL) == GR_OK) (void)!write(ready[1], "x", 1);
        for (;;) (void)pause();
    }
    assert_int_equal(read(ready[0], &byte, 1), 1);
    (void)snprintf(want, sizeof want, "process %ld is running this run", (long)pid);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(gr_run_log_open(&log, dir, later, NULL), GR_EARG);
        assert_non_null(strstr(gr_last_error_text(), want));
        assert_null(log.metrics);
    }
    char* now = slurp(dir, "config.json", NULL);
    assert_string_equal(now, settings);
    free(now);
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(wait_for(pid), 128 + SIGKILL);
    ASSERT_OK(gr_run_log_open(&log, dir, settings, NULL)); /* the lock died with it */
    gr_run_log other;
    assert_int_equal(gr_run_log_open(&other, dir, settings, NULL), GR_EARG);
    gr_run_log_close(&log);
    gr_run_log_close(&log); /* closing twice is fine */
    ASSERT_OK(gr_run_log_open(&other, dir, settings, NULL));
    gr_run_log_close(&other);
    (void)close(ready[0]);
    (void)close(ready[1]);
}

/* The same for files whose size is not known. */
static char* slurp_stream(const char* dir, const char* name)
{
    char path[200], *text = calloc(1, 4096);
    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE* f = fopen(path, "re");
    assert_non_null(f);
    (void)!fread(text, 1, 4095, f);
    (void)fclose(f);
    return text;
}

/* The commands a world runs as keep no hold on the folder of a run that was killed. */
static void programs_started_by_a_run_do_not_hold_it(void** state)
{
    (void)state;
    const char* dir = fresh();
    int ready[2];
    pid_t sleeper = 0;
    assert_int_equal(pipe(ready), 0);
    pid_t pid = fork();
    if (pid == 0) {
        gr_run_log log;
        if (gr_run_log_open(&log, dir, settings, NULL) != GR_OK) _exit(1);
        pid_t child = fork();
        if (child == 0) {
            (void)execlp("sleep", "sleep", "30", (char*)NULL);
            _exit(127);
        }
        (void)!write(ready[1], &child, sizeof child);
        for (;;) (void)pause();
    }
    assert_int_equal(read(ready[0], &sleeper, sizeof sleeper), sizeof sleeper);
    char name[64], *command = NULL;
    (void)snprintf(name, sizeof name, "%ld/cmdline", (long)sleeper);
    for (bool started = false; !started; free(command)) { /* until it is another program */
        command = slurp_stream("/proc", name);
        started = strcmp(command, "sleep") == 0;
    }
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(wait_for(pid), 128 + SIGKILL);
    gr_run_log log;
    gr_status st = gr_run_log_open(&log, dir, settings, NULL);
    (void)kill(sleeper, SIGKILL);
    ASSERT_OK(st);
    gr_run_log_close(&log);
}

/* ---- failures ----------------------------------------------------------------------------------- */

static const char* const places[] = {"record.open", "record.write",  "record.read",
                                     "record.sync", "record.rename", "record.remove"};

/* A run with a checkpoint's worth of lines and some behind it. */
static gr_train_state make_run(const char* dir)
{
    gr_run_log log;
    char path[300];
    ASSERT_OK(gr_run_log_open(&log, dir, settings, NULL));
    write_lines(&log, 0, 3);
    gr_train_state s = state_at(&log, 2);
    write_lines(&log, 3, 2);
    gr_run_log_close(&log);
    (void)snprintf(path, sizeof path, "%s/checkpoints/000005", dir); /* passed over */
    ASSERT_OK(gr_make_folders(path));
    spill(path, "complete", "", 0);
    return s;
}

static void assert_resumes(const char* dir, const gr_train_state* s, const char* metrics)
{
    gr_run_log log;
    size_t n = 0;
    char* config = slurp(dir, "config.json", NULL);
    assert_true(strcmp(config, settings) == 0 || strcmp(config, later) == 0);
    free(config);
    ASSERT_OK(gr_run_log_open(&log, dir, later, s));
    gr_run_log_close(&log);
    char* now = slurp(dir, "metrics.jsonl", &n);
    assert_int_equal(n, s->metrics_bytes);
    assert_memory_equal(now, metrics, n);
    free(now);
}

static void a_resume_may_fail_or_die_anywhere(void** state)
{
    (void)state;
    int failed = 0, killed = 0;
    for (int i = 0; i < 2 * GR_COUNT(places); i++) {
        bool kills = i % 2;
        for (int k = 1, go = 1; go; k++) {
            char spec[64];
            const char* dir = fresh();
            gr_train_state s = make_run(dir);
            char* metrics = slurp(dir, "metrics.jsonl", NULL);
            (void)snprintf(spec, sizeof spec, "%s%s:%d", kills ? "kill:" : "", places[i / 2], k);
            pid_t pid = fork();
            if (pid == 0) {
                gr_run_log log;
                gr_fault_set(spec);
                gr_status st = gr_run_log_open(&log, dir, later, &s);
                bool clear = st == GR_OK || (is_one_line(gr_last_error_text()) &&
                                             strstr(gr_last_error_text(), dir) != NULL);
                _exit(st == GR_OK ? 0 : clear ? 1 : 2);
            }
            int status = wait_for(pid);
            assert_true(status == 0 || status == (kills ? 128 + SIGKILL : 1));
            assert_resumes(dir, &s, metrics);
            failed += status == 1;
            killed += status > 1;
            go = status != 0;
            free(metrics);
        }
    }
    assert_true(failed > 10 && killed > 10);
    print_message("failed %d calls of a resume, killed it at %d\n", failed, killed);
}

static void a_full_disk_is_one_line(void** state)
{
    (void)state;
    pid_t pid = fork();
    const char* dir = fresh();
    if (pid == 0) {
        gr_run_log log;
        gr_metrics m = {0};
        for (int i = 0; i < 50; i++) {
            char name[32];
            (void)snprintf(name, sizeof name, "metric%d", i);
            gr_metrics_set(&m, name, i);
        }
        (void)signal(SIGXFSZ, SIG_IGN);
        if (gr_run_log_open(&log, dir, settings, NULL) != GR_OK) _exit(2);
        (void)setrlimit(RLIMIT_FSIZE, &(struct rlimit){.rlim_cur = 1000, .rlim_max = 1000});
        gr_status st = GR_OK;
        int written = 0;
        for (; written < 9 && st == GR_OK; written++) st = gr_metrics_write(&log, written, &m);
        bool clear = strstr(gr_last_error_text(), "metrics.jsonl: cannot write: File too large");
        _exit(st == GR_EIO && clear && written == 2 ? 0 : 1);
    }
    assert_int_equal(wait_for(pid), 0);
    gr_run_log log;
    assert_int_equal(gr_run_log_open(&log, "/proc/nothing", settings, NULL), GR_EIO);
    assert_ptr_equal(strstr(gr_last_error_text(), "/proc/nothing: cannot create: "),
                     gr_last_error_text());
    spill(scratch, "file", "", 0);
    char path[200];
    (void)snprintf(path, sizeof path, "%s/file/run", scratch);
    assert_int_equal(gr_run_log_open(&log, path, settings, NULL), GR_EIO);
    assert_true(is_one_line(gr_last_error_text()));
}

/* ---- metrics ------------------------------------------------------------------------------------ */

static void metrics_are_lines_of_exact_numbers(void** state)
{
    (void)state;
    gr_run_log log;
    const char* dir = fresh();
    ASSERT_OK(gr_run_log_open(&log, dir, settings, NULL));
    gr_metrics m = {0};
    gr_metrics_set(&m, "loss", 0.1);
    gr_metrics_set(&m, "a/b \"c\"", -1e300);
    gr_metrics_set(&m, "none", (double)NAN);
    gr_metrics_set(&m, "tokens", 123456789012.0);
    gr_metrics_set(&m, "inf", HUGE_VAL);
    gr_metrics_set(&m, "loss", 0.25); /* replaces, keeps its place */
    assert_true(gr_metrics_get(&m, "loss") == 0.25);
    assert_true(isnan(gr_metrics_get(&m, "absent")));
    ASSERT_OK(gr_metrics_write(&log, 7, &m));
    char* text = slurp(dir, "metrics.jsonl", NULL); /* flushed: there before the log is closed */
    assert_string_equal(text, "{\"step\": 7, \"loss\": 0.25, \"a/b \\\"c\\\"\": -1e+300, \"none\": "
                              "null, \"tokens\": 123456789012, \"inf\": null}\n");
    free(text);
    gr_run_log_close(&log);
}

static void metrics_read_back(void** state)
{
    (void)state;
    gr_run_log log;
    const char* dir = fresh();
    ASSERT_OK(gr_run_log_open(&log, dir, settings, NULL));
    for (int64_t step = 0; step < 60; step++) {
        gr_metrics m = {0};
        int n = (int)below_n(GR_MAX_METRICS + 1);
        for (int i = 0; i < n; i++) {
            char name[64];
            uint64_t bits = below_n(0);
            double x = 0;
            memcpy(&x, &bits, sizeof x);
            (void)snprintf(name, sizeof name, "group%d/metric_%d", i % 5, i);
            gr_metrics_set(&m, name, x);
        }
        size_t before = 0, after = 0;
        free(slurp(dir, "metrics.jsonl", &before));
        ASSERT_OK(gr_metrics_write(&log, step, &m));
        char* text = slurp(dir, "metrics.jsonl", &after);
        cJSON* o = cJSON_Parse(text + before);
        assert_non_null(o);
        assert_int_equal(cJSON_GetArraySize(o), n + 1);
        assert_true(cJSON_GetObjectItem(o, "step")->valuedouble == (double)step);
        for (int i = 0; i < n; i++) {
            const cJSON* item = cJSON_GetObjectItemCaseSensitive(o, m.item[i].name);
            double x = m.item[i].value;
            assert_true(isfinite(x) ? item->valuedouble == x : cJSON_IsNull(item));
        }
        cJSON_Delete(o);
        free(text);
    }
    gr_run_log_close(&log);
}

/* ---- trees -------------------------------------------------------------------------------------- */

static double number(const cJSON* node, const char* key)
{
    const cJSON* item = cJSON_GetObjectItemCaseSensitive(node, key);
    assert_true(cJSON_IsNumber(item) || cJSON_IsNull(item));
    return cJSON_IsNumber(item) ? item->valuedouble : (double)NAN;
}

static bool same(double a, double b) { return a == b || (isnan(a) && isnan(b)); }

static const char* text_of(const cJSON* node, const char* key)
{
    const cJSON* item = cJSON_GetObjectItemCaseSensitive(node, key);
    assert_true(cJSON_IsString(item));
    return item->valuestring;
}

static void assert_tokens(const cJSON* node, const char* key, const int32_t* token, int n)
{
    const cJSON* list = cJSON_GetObjectItemCaseSensitive(node, key);
    assert_int_equal(cJSON_GetArraySize(list), n);
    for (int i = 0; i < n; i++) {
        assert_true(cJSON_GetArrayItem(list, i)->valuedouble == token[i]);
    }
}

/* The advantages of the leaves below a node, by walking up from every leaf. */
static void assert_advantage(const cJSON* json, const gr_credit* c, int node)
{
    double a_pos = 0, a_neg = 0, first = (double)NAN;
    bool differ = false;
    int n = 0;
    for (int l = 0; l < c->n_leaves; l++) {
        int up = c->leaf[l];
        while (up > node) up = c->tree->parent[up];
        if (up != node) continue;
        double a = node == 0 && c->per_path ? 0 : gr_credit_at(c, l, node);
        if (n++ == 0) first = a;
        differ = differ || a != first;
        a_pos += fmax(a, 0);
        a_neg += fmin(a, 0);
    }
    assert_true(same(number(json, "advantage"), differ ? (double)NAN : first));
    assert_true(number(json, "leaves") == n);
    assert_true(number(json, "a_pos") == a_pos);
    assert_true(number(json, "a_neg") == a_neg);
}

static bool flag(const cJSON* node, const char* key)
{
    const cJSON* item = cJSON_GetObjectItemCaseSensitive(node, key);
    assert_true(cJSON_IsBool(item));
    return cJSON_IsTrue(item);
}

static void assert_node(const cJSON* json, const gr_credit* c, int node)
{
    const gr_tree* t = c->tree;
    int64_t begin = t->token_begin[node];
    char uid[32];
    assert_true(number(json, "id") == node && number(json, "parent") == t->parent[node]);
    assert_true(number(json, "turn") == t->turn[node] && number(json, "branch") == t->branch[node]);
    assert_string_equal(text_of(json, "kind"), gr_node_kind_name[t->kind[node]]);
    assert_string_equal(text_of(json, "status"), gr_node_status_name[t->status[node]]);
    assert_true(same(number(json, "score"), t->score[node]));
    assert_true(number(json, "reward") == t->reward[node]);
    assert_true(number(json, "ordinal") == t->ordinal[node]);
    assert_int_equal(flag(json, "success"), t->success[node]);
    assert_int_equal(flag(json, "stepped"), t->stepped[node]);
    assert_int_equal(flag(json, "valid"), t->valid[node]);
    assert_int_equal(flag(json, "train"), t->train[node]);
    const cJSON* signals = cJSON_GetObjectItem(json, "signals");
    assert_int_equal(cJSON_GetArraySize(signals), toy_facts.n_signals);
    for (int i = 0; i < toy_facts.n_signals; i++) {
        double x = t->signal[(int64_t)node * GR_SIGNALS + i];
        assert_true(cJSON_GetArrayItem(signals, i)->valuedouble == x);
    }
    assert_tokens(json, "tokens", t->token + begin, t->n_action[node]);
    assert_tokens(json, "obs_tokens", t->token + begin + t->n_action[node], t->n_obs[node]);
    const cJSON* logp = cJSON_GetObjectItem(json, "logp");
    assert_int_equal(cJSON_GetArraySize(logp), t->n_action[node]);
    for (int i = 0; i < t->n_action[node]; i++) {
        assert_true(cJSON_GetArrayItem(logp, i)->valuedouble == t->logp[begin + i]);
    }
    (void)snprintf(uid, sizeof uid, "%016" PRIx64, t->uid[node]);
    assert_string_equal(text_of(json, "uid"), uid);
    assert_advantage(json, c, node);
}

/* Texts are UTF-8 whatever the tokens are, and exact where those are ASCII. */
static void assert_texts(const cJSON* json, const gr_tree* t, int node, bool ascii)
{
    static const char* const keys[] = {"action", "observation"};
    for (int k = 0; k < 2; k++) {
        const char* text = text_of(json, keys[k]);
        char want[256];
        for (const char* s = text; *s != 0; s += gr_utf8_length(s, strlen(s))) {
            assert_true(gr_utf8_length(s, strlen(s)) > 0);
        }
        if (!ascii) continue;
        (void)(k == 0 ? gr_tree_action_text : gr_tree_obs_text)(t, node, want, (int)sizeof want);
        assert_string_equal(text, want);
    }
}

static void trees_are_logged_exactly(void** state)
{
    (void)state;
    static const char* const strategies[] = {"flat", "patr", "patr_retro", "tree_grpo"};
    static const char* const estimators[] = {"grpo",    "rloo",  "tree_grpo",
                                             "sibling", "gigpo", "gae"};
    gr_run_log log;
    gr_tree t = {0};
    gr_credit c = {0};
    int partly = 0;
    const char* dir = fresh();
    ASSERT_OK(gr_run_log_open(&log, dir, settings, NULL));
    for (int round = 0; round < 120; round++) {
        toy w = {.p_up = 0.5,
                 .goal = 1,
                 .horizon = 2 + (int)below_n(5),
                 .p_end = 0.15,
                 .p_error = 0.05,
                 .p_cut = 0.05,
                 .reward_step = 0.1,
                 .max_action = 4,
                 .max_obs = 5};
        bool ascii = round % 2;
        grow_named(&t, &w, strategies[below_n(4)], "", "heuristic", 2 + (int)below_n(4), 0,
                   below_n(0));
        for (int64_t i = 0; i < t.n_tokens; i++) {
            t.token[i] = (int32_t)(ascii ? 1 + below_n(127) : below_n(256));
        }
        const gr_estimator* e = gr_estimator_find(estimators[below_n(6)]);
        gr_credit_fill(&c, &t, e, settings_for(e), 1e-6);
        size_t before = 0, after = 0;
        free(slurp(dir, "trees.jsonl", &before));
        ASSERT_OK(gr_tree_log_write(&log, &c, &toy_facts));
        char* text = slurp(dir, "trees.jsonl", &after);
        assert_true(strchr(text + before, '\n') == text + after - 1);
        cJSON* o = cJSON_Parse(text + before);
        assert_non_null(o);
        assert_true(number(o, "step") == 5 && number(o, "group") == 2 && number(o, "task") == 11);
        assert_true(number(o, "attempt") == 0);
        const cJSON* names = cJSON_GetObjectItem(o, "signals");
        assert_int_equal(cJSON_GetArraySize(names), toy_facts.n_signals);
        for (int i = 0; i < toy_facts.n_signals; i++) {
            assert_string_equal(cJSON_GetStringValue(cJSON_GetArrayItem(names, i)),
                                toy_facts.signal[i]);
        }
        const cJSON *nodes = cJSON_GetObjectItem(o, "nodes"), *node = NULL;
        assert_int_equal(cJSON_GetArraySize(nodes), t.n_nodes);
        int id = 0;
        cJSON_ArrayForEach(node, nodes)
        {
            assert_node(node, &c, id);
            assert_texts(node, &t, id, ascii);
            partly += number(node, "a_pos") != 0 && number(node, "a_neg") != 0;
            id++;
        }
        cJSON_Delete(o);
        free(text);
    }
    assert_true(partly > 100);
    gr_run_log_close(&log);
    gr_credit_free(&c);
    gr_tree_free(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logs_are_cut_back_to_the_checkpoint),
        cmocka_unit_test(lost_lines_are_an_error),
        cmocka_unit_test(a_run_is_never_overwritten),
        cmocka_unit_test(checkpoints_of_a_lost_future_go),
        cmocka_unit_test(one_process_holds_a_run),
        cmocka_unit_test(programs_started_by_a_run_do_not_hold_it),
        cmocka_unit_test(a_resume_may_fail_or_die_anywhere),
        cmocka_unit_test(a_full_disk_is_one_line),
        cmocka_unit_test(metrics_are_lines_of_exact_numbers),
        cmocka_unit_test(metrics_read_back),
        cmocka_unit_test(trees_are_logged_exactly),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
