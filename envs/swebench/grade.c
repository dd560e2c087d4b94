#include "envs/swebench/grade.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define APPLY_TIME_S      120
#define LOG_MAX           (16 << 20)
#define FAILED_TEST_PATCH 97 /* exit status of the test script: its own patch did not apply */

typedef enum stage { CREATE, APPLY, TEST, CLOSE } stage;

struct gr_swe_grader {
    gr_sandbox* box;
    int64_t sandbox;
    gr_swe_judging j;
    const gr_swe_parser* parser;
    stage stage;
    gr_swe_grade grade;
    char* patch;
    size_t n_patch;
    bool has_canary;
    char canary[300];             /* path of the file with the two random tests */
    char passes[400], fails[400]; /* the names that the log must have for them */
    char pass_word[20], fail_word[20];
    char* log; /* copy of the last one, for gr_swe_grade_now */
};

const char* gr_swe_outcome_name(gr_swe_outcome o)
{
    static const char* const name[] = {"graded",
                                       "empty patch",
                                       "patch does not apply",
                                       "test patch does not apply",
                                       "out of time or space",
                                       "log proves nothing",
                                       "forged",
                                       "no sandbox"};
    return name[o];
}

/* ---- what is run -------------------------------------------------------------------------- */

typedef struct text {
    char* at;
    size_t n, cap;
} text;

static void add(text* t, const char* s)
{
    size_t n = strlen(s);
    if (t->n + n + 1 > t->cap) {
        t->cap = 2 * (t->n + n + 1);
        t->at = realloc(t->at, t->cap);
        GR_ASSERT(t->at != NULL, "out of memory");
    }
    memcpy(t->at + t->n, s, n + 1);
    t->n += n;
}

/* As one word of a shell. */
static void add_quoted(text* t, const char* s)
{
    char c[2] = {0};
    add(t, "'");
    for (; *s != 0; s++) {
        c[0] = *s;
        add(t, *s == '\'' ? "'\\''" : c);
    }
    add(t, "'");
}

static const char apply_script[] = "p=/tmp/model.patch; cat >$p\n"
                                   "again() { git checkout -q -- . ; git clean -fdq; }\n"
                                   "git apply --verbose $p && exit\n"
                                   "again; git apply --verbose --3way $p && exit\n"
                                   "again; git apply --verbose --reject $p && exit\n"
                                   "again; patch --batch --forward --fuzz=5 -p1 -i $p\n";

/* Is a file of the test patch one that a runner takes as an argument? */
static bool is_argument(const char* file)
{
    static const char* const data[] = {".json", ".png", ".csv", ".txt",  ".md",  ".jpg",
                                       ".jpeg", ".pkl", ".yml", ".yaml", ".toml"};
    size_t n = strlen(file);
    for (int i = 0; i < GR_COUNT(data); i++) {
        size_t k = strlen(data[i]);
        if (n >= k && strcmp(file + n - k, data[i]) == 0) return false;
    }
    return true;
}

/* "tests/admin/tests.py" is admin.tests to django's runner. */
static void add_django_label(text* t, const char* file)
{
    if (strncmp(file, "tests/", 6) == 0) file += 6;
    char* label = gr_swe_copy(file, strlen(file));
    size_t n = strlen(label);
    if (n > 3 && strcmp(label + n - 3, ".py") == 0) label[n - 3] = 0;
    for (char* c = label; *c != 0; c++) {
        if (*c == '/') *c = '.';
    }
    add_quoted(t, label);
    free(label);
}

/* The test command of a v5 evaluation script: the lines between its markers. False: none
 * there. */
static bool add_given_command(text* t, const char* eval_script)
{
    const char* start = strstr(eval_script, GR_SWE_START);
    const char* line = start == NULL ? NULL : strchr(start, '\n');
    const char* end = line == NULL ? NULL : strstr(line, GR_SWE_END);
    if (end == NULL) return false;
    while (end > line && *end != '\n') end--; /* the marker is behind a command */
    while (end > line && end[-1] == '\n') end--;
    if (end <= line + 1) return false;
    char* command = gr_swe_copy(line + 1, (size_t)(end - line - 1));
    add(t, command);
    free(command);
    return true;
}

static void add_test_command(text* t, const gr_swe_instance* x, bool django)
{
    if (add_given_command(t, x->eval_script)) return;
    const gr_swe_repo* known = gr_swe_repo_find(x->repo);
    add(t, x->test_command[0] != 0 ? x->test_command
           : known != NULL         ? known->test_command
                                   : "pytest -rA");
    for (int i = 0; i < x->test_files.n; i++) {
        if (!is_argument(x->test_files.name[i])) continue;
        add(t, " ");
        if (django)
            add_django_label(t, x->test_files.name[i]);
        else
            add_quoted(t, x->test_files.name[i]);
    }
}

/* Puts back what the judge owns: files as they were, those that were not there removed. */
static void add_restore(text* t, const gr_swe_instance* x)
{
    add(t, "for f in");
    for (int i = 0; i < x->test_files.n; i++) {
        add(t, " ");
        add_quoted(t, x->test_files.name[i]);
    }
    add(t, "; do if git cat-file -e \"HEAD:$f\" 2>/dev/null; then git checkout -q HEAD -- \"$f\"; "
           "else rm -rf -- \"$f\"; fi; done\n");
}

/* Reads the test patch from its standard input; its status is that of the test command. */
static void add_test_script(text* t, const gr_swe_grader* g)
{
    char failed[40];
    const gr_swe_instance* x = g->j.instance;
    (void)snprintf(failed, sizeof failed, " || exit %d\n", FAILED_TEST_PATCH);
    add_restore(t, x);
    if (x->test_patch[0] != 0) {
        add(t, "cat >/tmp/test.patch; git apply -v /tmp/test.patch");
        add(t, failed);
    }
    if (g->has_canary) {
        add(t, "printf 'def test_%s():\\n    pass\\n\\n\\ndef test_%s():\\n    assert False\\n' ");
        add(t, g->pass_word);
        add(t, " ");
        add(t, g->fail_word);
        add(t, " >");
        add_quoted(t, g->canary);
        add(t, failed);
    }
    add(t, g->j.setup);
    add(t, "\necho; echo '" GR_SWE_START "'\n");
    add_test_command(t, x, strcmp(g->parser->name, "django") == 0);
    if (g->has_canary) {
        add(t, " ");
        add_quoted(t, g->canary);
    }
    add(t, " </dev/null\nstatus=$?\necho; echo '" GR_SWE_END "'\nexit $status\n");
}

/* ---- the random tests --------------------------------------------------------------------- */

/* Beside the first test file, so that it is imported like that one. */
static void place_canary(gr_swe_grader* g)
{
    uint64_t word[3];
    const gr_swe_names* files = &g->j.instance->test_files;
    const char* beside = NULL;
    for (int i = 0; i < files->n && beside == NULL; i++) {
        const char* f = files->name[i];
        if (strlen(f) > 3 && strcmp(f + strlen(f) - 3, ".py") == 0) beside = f;
    }
    if (strcmp(g->parser->name, "django") == 0 || beside == NULL || strlen(beside) > 200) return;
    if (getrandom(word, sizeof word, 0) != sizeof word) return;
    g->has_canary = true;
    const char* slash = strrchr(beside, '/');
    int n_folder = slash == NULL ? 0 : (int)(slash - beside + 1);
    (void)snprintf(g->canary, sizeof g->canary, "%.*stest_%016llx.py", n_folder, beside,
                   (unsigned long long)word[0]);
    (void)snprintf(g->pass_word, sizeof g->pass_word, "%016llx", (unsigned long long)word[1]);
    (void)snprintf(g->fail_word, sizeof g->fail_word, "%016llx", (unsigned long long)word[2]);
    bool sympy = strcmp(g->parser->name, "sympy") == 0;
    (void)snprintf(g->passes, sizeof g->passes, "%s%stest_%s", sympy ? "" : g->canary,
                   sympy ? "" : "::", g->pass_word);
    /* sympy's runner writes [FAIL] behind a file's last test; the name is that of its report. */
    (void)snprintf(g->fails, sizeof g->fails, "%s%stest_%s", g->canary,
                   sympy ? ":" : "::", g->fail_word);
}

/* Both are there as they must be, and the runner's status says that one failed. */
static bool canary_lives(const gr_swe_grader* g, gr_swe_results* r, int code)
{
    const struct gr_swe_result* passed = gr_swe_results_find(r, g->passes);
    const struct gr_swe_result* failed = gr_swe_results_find(r, g->fails);
    bool lives = code != 0 && passed != NULL && passed->status == GR_SWE_PASSED && failed != NULL &&
                 failed->status == GR_SWE_FAILED;
    if (lives) gr_swe_results_set(r, g->fails, strlen(g->fails), GR_SWE_UNKNOWN);
    return lives;
}

/* ---- from request to verdict -------------------------------------------------------------- */

gr_status gr_swe_check(const gr_swe_instance* x)
{
    const gr_swe_repo* known = gr_swe_repo_find(x->repo);
    if (x->log_parser[0] != 0) {
        if (gr_swe_parser_find(x->log_parser) != NULL) return GR_OK;
        return GR_FAIL(GR_EDATA, "%s: log_parser: `%s` is none that is known", x->id,
                       x->log_parser);
    }
    if (known != NULL || strstr(x->fail_to_pass.name[0], "::") != NULL) return GR_OK; /* pytest's */
    return GR_FAIL(GR_EDATA, "%s: log_parser: missing, and %s is no repository that is known",
                   x->id, x->repo);
}

static const gr_swe_parser* parser_of(const gr_swe_instance* x)
{
    const gr_swe_repo* known = gr_swe_repo_find(x->repo);
    const gr_swe_parser* p = gr_swe_parser_find(x->log_parser[0] != 0 ? x->log_parser
                                                : known != NULL       ? known->parser
                                                                      : "pytest");
    GR_ASSERT(p != NULL, "gr_swe_check was not asked");
    return p;
}

static void run(gr_swe_grader* g, const char* script, const char* input, size_t n_input,
                double time_s)
{
    const char* const argv[] = {"bash", "-c", script, NULL};
    const char* const env[] = {"GIT_CONFIG_NOSYSTEM=1", "PYTHONDONTWRITEBYTECODE=1",
                               "PYTHONHASHSEED=0", NULL};
    gr_sandbox_command c = {.argv = argv,
                            .env = env,
                            .input = input,
                            .n_input = n_input,
                            .time_s = time_s,
                            .head = LOG_MAX / 2,
                            .tail = LOG_MAX / 2};
    (void)gr_sandbox_run(g->box, g->sandbox, &c);
}

gr_swe_grader* gr_swe_grader_begin(gr_sandbox* box, int64_t sandbox, const gr_swe_judging* j,
                                   const char* patch, size_t n_patch)
{
    gr_swe_grader* g = calloc(1, sizeof *g);
    GR_ASSERT(g != NULL, "out of memory");
    g->box = box;
    g->sandbox = sandbox;
    g->j = *j;
    g->parser = parser_of(j->instance);
    g->patch = gr_swe_copy(patch, n_patch);
    g->n_patch = n_patch;
    place_canary(g);
    (void)gr_sandbox_create(box, sandbox, &g->j.tree);
    return g;
}

void gr_swe_grader_end(gr_swe_grader* g)
{
    if (g == NULL) return;
    free(g->patch);
    free(g->log);
    free(g);
}

/* Without the random tests a log that has passes is forged; one that has none is of a run that
 * did not come so far. */
static void read_log(gr_swe_grader* g, const gr_sandbox_reply* r)
{
    gr_swe_results results = {0};
    /* With the failing test, a status of 1 says nothing of the others. */
    int code = g->has_canary && r->code == 1 ? 0 : r->code;
    bool proven = gr_swe_log_read(g->parser, r->output, r->n_output, code, &results);
    bool genuine = !g->has_canary || canary_lives(g, &results, r->code);
    gr_swe_verdict said = gr_swe_judge(g->j.instance, &results);
    if (!proven || (!genuine && said.f2p_passed + said.p2p_passed == 0)) {
        g->grade.outcome = GR_SWE_UNPROVEN;
    } else if (!genuine) {
        g->grade.outcome = GR_SWE_FORGED;
    } else {
        g->grade.outcome = GR_SWE_GRADED;
        g->grade.verdict = said;
    }
    gr_swe_results_free(&results);
}

static void begin_test(gr_swe_grader* g)
{
    text script = {0};
    const char* test_patch = g->j.instance->test_patch;
    add_test_script(&script, g);
    g->stage = TEST;
    run(g, script.at, test_patch, strlen(test_patch), g->j.time_s);
    free(script.at);
}

/* Ends with this outcome: the sandbox is closed, the grade comes with the reply to that. */
static void finish(gr_swe_grader* g, gr_swe_outcome outcome)
{
    g->grade.outcome = outcome;
    g->stage = CLOSE;
    (void)gr_sandbox_end(g->box, g->sandbox);
}

static void on_run(gr_swe_grader* g, const gr_sandbox_reply* r)
{
    if (g->stage == TEST) {
        g->grade.seconds = r->seconds;
        free(g->log);
        g->log = gr_swe_copy(r->output, r->n_output);
    }
    if (r->cause != GR_SANDBOX_EXITED && r->cause != GR_SANDBOX_MEMORY) {
        finish(g, GR_SWE_OUT_OF_TIME);
    } else if (g->stage == APPLY && r->code != 0) {
        finish(g, GR_SWE_UNAPPLIED);
    } else if (g->stage == APPLY) {
        begin_test(g);
    } else if (r->code == FAILED_TEST_PATCH) {
        finish(g, GR_SWE_NO_TESTS);
    } else {
        read_log(g, r);
        finish(g, g->grade.outcome);
    }
}

bool gr_swe_grader_hear(gr_swe_grader* g, const gr_sandbox_reply* r, gr_swe_grade* grade)
{
    if (r->op == GR_SANDBOX_CLOSE || (r->op == GR_SANDBOX_CREATE && r->error != GR_SANDBOX_OK)) {
        if (r->op == GR_SANDBOX_CREATE) {
            g->grade.outcome = GR_SWE_NO_SANDBOX;
            (void)snprintf(g->grade.reason, sizeof g->grade.reason, "%s", r->reason);
        }
        *grade = g->grade;
        return true;
    }
    if (r->error != GR_SANDBOX_OK) {
        (void)snprintf(g->grade.reason, sizeof g->grade.reason, "%s", r->reason);
        finish(g, GR_SWE_NO_SANDBOX);
    } else if (r->op == GR_SANDBOX_RUN) {
        on_run(g, r);
    } else if (strspn(g->patch, " \t\r\n") == g->n_patch) {
        finish(g, GR_SWE_EMPTY);
    } else {
        g->stage = APPLY;
        run(g, apply_script, g->patch, g->n_patch, APPLY_TIME_S);
    }
    return false;
}

void gr_swe_grade_now(gr_sandbox* box, int64_t sandbox, const gr_swe_judging* j, const char* patch,
                      gr_swe_grade* grade, char** log)
{
    gr_sandbox_reply r;
    gr_swe_grader* g = gr_swe_grader_begin(box, sandbox, j, patch, strlen(patch));
    do {
        bool owed = gr_sandbox_poll(box, true, &r);
        GR_ASSERT(owed, "a grader waits for a reply that nobody owes");
    } while (r.sandbox != sandbox || !gr_swe_grader_hear(g, &r, grade));
    if (log != NULL) {
        *log = g->log;
        g->log = NULL;
    }
    gr_swe_grader_end(g);
}
