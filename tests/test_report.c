/* The data of a report: every whole line of the logs, byte for byte, in a form that HTML cannot take for markup. Runs
 * the built `grove` (GROVE_BIN); what the page does with the data is tested in a browser (tests/report_page.py). */
#include "tests/disk.h"

#include <cjson/cJSON.h>
#include <zlib.h>

#include "host/durable.h"
#include "host/json.h"
#include "host/record.h"

static uint64_t dice_at;
static uint64_t below_n(uint64_t n) { return gr_key_join(0x7265706f7274, dice_at++) % n; }

/* Growing text. */
typedef struct text {
    char* at;
    size_t n, cap;
} text;

static void put(text* t, const char* bytes, size_t n)
{
    while (t->n + n + 1 > t->cap) {
        t->cap = t->cap > 0 ? 2 * t->cap : 4096;
        t->at = realloc(t->at, t->cap);
        assert_non_null(t->at);
    }
    memcpy(t->at + t->n, bytes, n);
    t->n += n;
    t->at[t->n] = 0;
}

/* ---- a run folder ------------------------------------------------------------------------------------- */

static const char* const hostile[] = {
    "</script><script>alert(1)</script>",
    "<!-- <script>",
    "]]>",
    "<img src=x onerror=alert(1)>",
    "\" onload=\"alert(1)",
    "@DATA@ @SCRIPT@ ${alert(1)}",
    "\u2028\u2029\u202e",
    "&lt;/script&gt;",
    "\033]0;alert\007",
};

static void put_line(text* log, int64_t step, int n_nodes)
{
    char* line = NULL;
    size_t n = 0;
    FILE* f = open_memstream(&line, &n);
    assert_non_null(f);
    fprintf(f, "{\"step\": %lld, \"group\": 0, \"nodes\": [", (long long)step);
    for (int i = 0; i < n_nodes; i++) {
        const char* bad = hostile[below_n(GR_COUNT(hostile))];
        char noise[64];
        for (int k = 0; k < GR_COUNT(noise); k++) noise[k] = (char)below_n(256);
        fprintf(f, "%s{\"id\": %d, \"parent\": %d, \"action\": ", i > 0 ? ", " : "", i,
                (int)below_n((uint64_t)i + 1) - (i == 0));
        gr_json_text(f, bad, strlen(bad));
        fputs(", \"observation\": ", f);
        gr_json_text(f, noise, sizeof noise);
        fprintf(f, ", \"logp\": [-%.17g]}", (double)below_n(1000) / 999);
    }
    fputs("]}\n", f);
    assert_int_equal(fclose(f), 0);
    put(log, line, n);
    free(line);
}

typedef struct logs {
    text metrics, trees;
} logs;

/* `steps` steps of one to three trees. */
static logs some_logs(int steps)
{
    logs l = {0};
    for (int s = 0; s <= steps; s++) {
        char line[64];
        int n = snprintf(line, sizeof line, "{\"step\": %d, \"x\": %.17g}\n", s,
                         (double)below_n(99) / 98);
        put(&l.metrics, line, (size_t)n);
        for (uint64_t i = below_n(3) + 1; s > 0 && i > 0; i--)
            put_line(&l.trees, s, (int)below_n(12) + 1);
    }
    return l;
}

static void free_logs(logs* l)
{
    free(l->metrics.at);
    free(l->trees.at);
}

static void write_run(const char* metrics, size_t n_metrics, const char* trees, size_t n_trees)
{
    static const char config[] = "{\"run\": {\"name\": \"</script><b>\"}}";
    spill(scratch, "config.json", config, sizeof config - 1);
    spill(scratch, "metrics.jsonl", metrics, n_metrics);
    spill(scratch, "trees.jsonl", trees, n_trees);
}

/* ---- a page --------------------------------------------------------------------------------------------- */

/* Runs `grove report` on the folder; the page as text, NULL if it failed. */
static char* report(const char* options, size_t* n)
{
    char command[600], path[256];
    (void)snprintf(command, sizeof command, "%s report %s %s -o %s/page >%s/out 2>%s/err",
                   GROVE_BIN, options, scratch, scratch, scratch, scratch);
    (void)snprintf(path, sizeof path, "%s/page", scratch);
    remove(path);
    int status = system(command);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) <= 1);
    assert_int_equal(gr_exists(path), WEXITSTATUS(status) == 0);
    if (WEXITSTATUS(status) != 0) return NULL;
    char* page = calloc(1, 8 << 20);
    assert_non_null(page);
    ASSERT_OK(gr_read_file(path, page, 8 << 20, n));
    return page;
}

static int digit(char c)
{
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* Content of the chunk `id`, inflated; at NULL if the page has none. Everything in it is base64. */
static text chunk(const char* page, const char* id)
{
    char open[80];
    text packed = {0}, out = {0};
    (void)snprintf(open, sizeof open, "<script type=\"text/plain\" id=\"%s\">", id);
    const char* s = strstr(page, open);
    if (s == NULL) return out;
    s += strlen(open);
    while (digit(s[0]) >= 0) {
        unsigned bits = 0;
        int n = 0;
        for (int i = 0; i < 4; i++) {
            assert_true(digit(s[i]) >= 0 || (s[i] == '=' && i >= 2));
            n += digit(s[i]) >= 0;
            bits = bits << 6 | (unsigned)(s[i] == '=' ? 0 : digit(s[i]));
        }
        char byte[3] = {(char)(bits >> 16), (char)(bits >> 8), (char)bits};
        put(&packed, byte, (size_t)n - 1);
        s += 4;
    }
    assert_memory_equal(s, "</script>", 9);
    z_stream z = {.next_in = (Bytef*)packed.at, .avail_in = (uInt)packed.n};
    assert_int_equal(inflateInit2(&z, 15 + 16), Z_OK);
    for (int status = Z_OK; status != Z_STREAM_END;) {
        char part[4096];
        z.next_out = (Bytef*)part;
        z.avail_out = sizeof part;
        status = inflate(&z, Z_NO_FLUSH);
        assert_true(status == Z_OK || status == Z_STREAM_END);
        put(&out, part, sizeof part - z.avail_out);
    }
    assert_int_equal(z.avail_in, 0);
    assert_int_equal(inflateEnd(&z), Z_OK);
    free(packed.at);
    return out;
}

static int count(const char* page, const char* what)
{
    int n = 0;
    for (const char* s = page; (s = strstr(s, what)) != NULL; s++) n++;
    return n;
}

/* The trees of all chunks that the index names, in its order. */
static text trees_of(const char* page, int* n_chunks)
{
    text all = {0}, index = chunk(page, "index");
    assert_non_null(index.at);
    cJSON* o = cJSON_Parse(index.at);
    const cJSON *step, *run = cJSON_GetArrayItem(cJSON_GetObjectItem(o, "runs"), 0);
    *n_chunks = 0;
    cJSON_ArrayForEach(step, cJSON_GetObjectItem(run, "steps"))
    {
        text t = chunk(page, cJSON_GetStringValue(cJSON_GetObjectItem(step, "chunk")));
        assert_non_null(t.at);
        assert_int_equal(count(t.at, "\n"), cJSON_GetArraySize(cJSON_GetObjectItem(step, "trees")));
        put(&all, t.at, t.n);
        free(t.at);
        ++*n_chunks;
    }
    cJSON_Delete(o);
    free(index.at);
    return all;
}

static void assert_chunk(const char* page, const char* id, const char* want, size_t n)
{
    text got = chunk(page, id);
    assert_int_equal(got.n, n);
    if (n > 0) assert_memory_equal(got.at, want, n);
    free(got.at);
}

/* ---- tests ------------------------------------------------------------------------------------------------ */

static void logs_arrive_whole_and_hostile_text_stays_text(void** state)
{
    (void)state;
    write_run("", 0, "", 0);
    size_t n_empty = 0, n_page = 0;
    char* empty = report("", &n_empty);
    assert_non_null(empty);
    for (int round = 0; round < 12; round++) {
        int n_chunks = 0;
        logs l = some_logs(1 + (int)below_n(20));
        write_run(l.metrics.at, l.metrics.n, l.trees.at, l.trees.n);
        char* page = report("", &n_page);
        assert_non_null(page);
        text trees = trees_of(page, &n_chunks);
        assert_int_equal(trees.n, l.trees.n);
        assert_memory_equal(trees.at, l.trees.at, l.trees.n);
        assert_chunk(page, "r0-metrics", l.metrics.at, l.metrics.n);
        /* no element beyond those of the page itself and one per step */
        assert_int_equal(count(page, "<script"), count(empty, "<script") + n_chunks);
        assert_int_equal(count(page, "</script"), count(empty, "</script") + n_chunks);
        assert_int_equal(count(page, "alert"), count(empty, "alert"));
        assert_true(n_page - n_empty <= 2 * (l.metrics.n + l.trees.n));
        free(trees.at);
        free(page);
        free_logs(&l);
    }
    free(empty);
}

/* Bytes of the lines that are whole after `n` bytes; what a kill leaves behind them is dropped. */
static size_t whole(const char* log, size_t n)
{
    while (n > 0 && log[n - 1] != '\n') n--;
    return n;
}

static void a_run_killed_anywhere_gives_a_report(void** state)
{
    (void)state;
    logs l = some_logs(9);
    for (int round = 0; round < 60; round++) {
        size_t n_metrics = below_n(l.metrics.n + 1), n_trees = below_n(l.trees.n + 1), n = 0;
        bool cut = n_trees < l.trees.n && l.trees.at[n_trees] == '\n'; /* whole but for its end */
        int n_chunks = 0;
        if (cut || (n_metrics < l.metrics.n && l.metrics.at[n_metrics] == '\n')) continue;
        write_run(l.metrics.at, n_metrics, l.trees.at, n_trees);
        char* page = report("", &n);
        assert_non_null(page);
        text trees = trees_of(page, &n_chunks);
        assert_int_equal(trees.n, whole(l.trees.at, n_trees));
        if (trees.n > 0) assert_memory_equal(trees.at, l.trees.at, trees.n);
        assert_chunk(page, "r0-metrics", l.metrics.at, whole(l.metrics.at, n_metrics));
        free(trees.at);
        free(page);
    }
    free_logs(&l);
}

static void damage_inside_is_named_and_leaves_no_page(void** state)
{
    (void)state;
    logs l = some_logs(6);
    for (int round = 0; round < 20; round++) {
        char want[64], err[512];
        size_t n = 0, lines = (size_t)count(l.trees.at, "\n"), bad = below_n(lines - 1);
        char* damaged = strdup(l.trees.at);
        char* line = damaged;
        for (size_t i = 0; i < bad; i++) line = strchr(line, '\n') + 1;
        line[below_n(2)] = '}';
        write_run(l.metrics.at, l.metrics.n, damaged, l.trees.n);
        assert_null(report("", &n));
        (void)snprintf(want, sizeof want, "trees.jsonl: line %zu is damaged", bad + 1);
        char path[256];
        (void)snprintf(path, sizeof path, "%s/err", scratch);
        ASSERT_OK(gr_read_file(path, err, sizeof err, &n));
        assert_non_null(strstr(err, want));
        assert_int_equal(count(err, "\n"), 1);
        (void)snprintf(path, sizeof path, "%s/page.part", scratch);
        assert_false(gr_exists(path));
        free(damaged);
    }
    free_logs(&l);
}

static void every_nth_step_is_taken(void** state)
{
    (void)state;
    logs l = some_logs(17);
    write_run(l.metrics.at, l.metrics.n, l.trees.at, l.trees.n);
    for (int every = 1; every < 20; every++) {
        char option[32], first[32];
        size_t n = 0;
        int n_chunks = 0;
        (void)snprintf(option, sizeof option, "--every %d", every);
        char* page = report(option, &n);
        text trees = trees_of(page, &n_chunks);
        assert_int_equal(n_chunks, (17 + every - 1) / every);
        (void)snprintf(first, sizeof first, "{\"step\": %d,", 1 + every);
        assert_int_equal(strstr(trees.at, first) != NULL, 1 + every <= 17);
        free(trees.at);
        free(page);
    }
    free_logs(&l);
}

/* "running" while a process holds the lock of the run, "finished" with the marker, else "stopped". */
static void the_state_of_a_run_is_told(void** state)
{
    (void)state;
    static const char* const want[] = {"stopped", "running", "finished"};
    char path[256];
    logs l = some_logs(2);
    for (int i = 0; i < GR_COUNT(want); i++) {
        gr_run_log log = {0};
        size_t n = 0;
        remove_all(scratch);
        assert_int_equal(mkdir(scratch, 0755), 0);
        if (i == 1) ASSERT_OK(gr_run_log_open(&log, scratch, "{}", NULL));
        write_run(l.metrics.at, l.metrics.n, l.trees.at, l.trees.n);
        if (i == 2) spill(scratch, "finished", "", 0);
        char* page = report("", &n);
        assert_non_null(page);
        text index = chunk(page, "index");
        (void)snprintf(path, sizeof path, "\"state\":\"%s\"", want[i]);
        assert_non_null(strstr(index.at, path));
        if (i == 1) gr_run_log_close(&log);
        free(index.at);
        free(page);
    }
    free_logs(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logs_arrive_whole_and_hostile_text_stays_text),
        cmocka_unit_test(a_run_killed_anywhere_gives_a_report),
        cmocka_unit_test(damage_inside_is_named_and_leaves_no_page),
        cmocka_unit_test(every_nth_step_is_taken),
        cmocka_unit_test(the_state_of_a_run_is_told),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
