/* What runners print and what it proves. The logs under tests/golden/swe_logs/ are real runs
 * (tools/golden/swe_logs.sh). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "envs/swebench/log_parser.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t n);
static int below(uint64_t key, uint64_t at, int n) { return (int)(gr_uniform(key, at) * n); }

typedef struct expected {
    const char* name;
    gr_swe_status status;
} expected;

/* The caller frees it. */
static char* read_log(const char* name, size_t* n)
{
    char path[100];
    (void)snprintf(path, sizeof path, "tests/golden/swe_logs/%s.txt", name);
    FILE* f = fopen(path, "rb");
    if (f == NULL) fail_msg("%s", path);
    char* text = malloc(1 << 20);
    *n = fread(text, 1, 1 << 20, f);
    fclose(f);
    assert_in_range(*n, 100, (1 << 20) - 1);
    return text;
}

static gr_swe_results parse(const char* parser, const char* log, size_t n)
{
    gr_swe_results r = {0};
    const gr_swe_parser* p = gr_swe_parser_find(parser);
    assert_non_null(p);
    p->parse(log, n, &r);
    return r;
}

/* The log of the same name says this of these tests, and names `n_names` in all. */
static void says(const char* parser, int64_t n_names, const expected* want, int n_want)
{
    size_t n = 0;
    char* log = read_log(parser, &n);
    gr_swe_results r = parse(parser, log, n);
    for (int i = 0; i < n_want; i++) {
        const struct gr_swe_result* got = gr_swe_results_find(&r, want[i].name);
        if (got == NULL) fail_msg("%s: no `%s`", parser, want[i].name);
        if (got->status != want[i].status) fail_msg("%s: %s: %d", parser, got->name, got->status);
    }
    if (r.n != n_names) {
        for (int64_t i = 0; i < r.n; i++) print_message("%s\n", r.result[i].name);
        fail_msg("%s: %lld names", parser, (long long)r.n);
    }
    gr_swe_results_free(&r);
    free(log);
}
#define SAYS(parser, n_names, ...)                     \
    do {                                               \
        static const expected want_[] = {__VA_ARGS__}; \
        says(parser, n_names, want_, GR_COUNT(want_)); \
    } while (0)

static void pytest_logs(void** state)
{
    (void)state;
    /* A name ends at its first blank; programs print "PASSED is ..." too. Published ids have
     * both. */
    SAYS("pytest", 11, {"test_shapes.py::test_passes[plain]", GR_SWE_PASSED},
         {"test_shapes.py::test_passes[two", GR_SWE_PASSED},
         {"test_shapes.py::test_passes[[nested]]", GR_SWE_PASSED},
         {"test_shapes.py::TestGroup::test_method", GR_SWE_PASSED}, {"is", GR_SWE_PASSED},
         {"test_shapes.py::test_fails_as_expected", GR_SWE_XFAIL},
         {"test_shapes.py::test_errors", GR_SWE_ERROR},
         {"test_shapes.py::test_fails[1]", GR_SWE_FAILED});
    SAYS("pytest_v2", 10, {"test_shapes.py::test_passes[two words]", GR_SWE_PASSED},
         {"test_shapes.py::test_passes[a - b]", GR_SWE_PASSED},
         {"test_shapes.py::test_fails[2]", GR_SWE_FAILED},
         {"test_shapes.py::test_errors", GR_SWE_ERROR},
         {"test_shapes.py::TestGroup::test_method", GR_SWE_PASSED});
    SAYS("pytest_options", 13,
         {"tests/test_utils.py::TestExtractZippedPaths::test_unzipped_paths_unchanged[/]",
          GR_SWE_PASSED},
         {"tests/test_utils.py::TestExtractZippedPaths::test_unzipped_paths_unchanged[/location]",
          GR_SWE_PASSED},
         {"tests/test_utils.py::TestExtractZippedPaths::"
          "test_unzipped_paths_unchanged[/test_utils.py]",
          GR_SWE_PASSED},
         {"tests/test_utils.py::test_get_auth_from_url[http://user:pass", GR_SWE_PASSED});
}

static void plotting_logs(void** state)
{
    (void)state;
    SAYS("matplotlib", 4, {"test_shapes_matplotlib.py::test_button[1]", GR_SWE_PASSED},
         {"test_shapes_matplotlib.py::test_button[MouseButton.MIDDLE]", GR_SWE_PASSED},
         {"test_shapes_matplotlib.py::test_button[3]", GR_SWE_FAILED},
         {"test_backend_bases.py::test_non_gui_warning", GR_SWE_FAILED});
    SAYS("seaborn", 25, {"tests/test_rcmod.py::TestPalette::test_set_palette", GR_SWE_PASSED},
         {"tests/test_docstrings.py::TestDocstringComponents::test_from_method", GR_SWE_PASSED});
}

static void own_runners(void** state)
{
    (void)state;
    SAYS("sympy", 7, {"test_passes", GR_SWE_PASSED}, {"test_fails", GR_SWE_FAILED},
         {"test_errors", GR_SWE_ERROR}, {"test_get_mod_func", GR_SWE_PASSED},
         {"sympy/utilities/tests/test_shapes.py:test_fails", GR_SWE_FAILED},
         {"sympy/utilities/tests/test_shapes.py:test_errors", GR_SWE_FAILED});
    /* A docstring stands for its test; a test that prints is still known by its name. */
    SAYS("django", 11, {"test_passes (shapes.tests.ShapeTests.test_passes)", GR_SWE_PASSED},
         {"A docstring takes the name's line", GR_SWE_PASSED},
         {"test_talks (shapes.tests.ShapeTests.test_talks)", GR_SWE_PASSED},
         {"test_skips (shapes.tests.ShapeTests.test_skips)", GR_SWE_SKIPPED},
         {"test_fails (shapes.tests.ShapeTests.test_fails)", GR_SWE_FAILED},
         {"test_errors (shapes.tests.ShapeTests.test_errors)", GR_SWE_ERROR},
         {"test_fails", GR_SWE_FAILED}, {"test_errors", GR_SWE_ERROR});
}

static void lines_with_corners(void** state)
{
    (void)state;
    static const struct {
        const char *parser, *log, *name;
        gr_swe_status status;
    } row[] = {
        {"pytest", "FAILED - a\n", "a", GR_SWE_FAILED},
        {"pytest", "FAILED a - b\r", "a", GR_SWE_FAILED},
        {"pytest", "PASSED [100%]", "[100%]", GR_SWE_PASSED},
        {"pytest", "PASSEDx a", "a", GR_SWE_UNKNOWN},
        {"pytest_options", "PASSED a[/x/y*z]", "a[/x/y*z]", GR_SWE_PASSED},
        {"pytest_options", "PASSED a[//x/y]", "a[//x/y]", GR_SWE_PASSED},
        {"pytest_options", "PASSED a[/x/[y]/z]tail", "a[/z]", GR_SWE_PASSED},
        {"pytest_v2", "a  b\tPASSED", "a bPASSED", GR_SWE_UNKNOWN},
        {"pytest_v2", "a  b PASSED", "a b", GR_SWE_PASSED},
        {"seaborn", "a PASSED [ 3%]", "a", GR_SWE_PASSED},
        {"django", "a ... Internal Server Error: /x/y/\nok\nb", "a", GR_SWE_PASSED},
        {"django", "a ... ok\nb ... x\ny\nok", "b", GR_SWE_PASSED},
        {"django", "Applying sites.0002_alter_domain_unique...test_no_migrations (x) ... ok",
         "test_no_migrations (x)", GR_SWE_PASSED},
    };
    for (int i = 0; i < GR_COUNT(row); i++) {
        gr_swe_results r = parse(row[i].parser, row[i].log, strlen(row[i].log));
        const struct gr_swe_result* got = gr_swe_results_find(&r, row[i].name);
        if (row[i].status == GR_SWE_UNKNOWN && got == NULL) {
            gr_swe_results_free(&r);
            continue;
        }
        if (got == NULL) fail_msg("%s: `%s` not in `%s`", row[i].parser, row[i].name, row[i].log);
        assert_int_equal(got->status, row[i].status);
        gr_swe_results_free(&r);
    }
    gr_swe_results none = parse("pytest", "SKIPPED [3] a.py:1: why\n", 24);
    assert_int_equal(none.n, 0);
    gr_swe_results_free(&none);
}

static void every_repository_has_its_parser(void** state)
{
    (void)state;
    static const char* const alias[][2] = {
        {"parse_log_flask", "pytest"},          {"parse_log_scikit", "pytest_v2"},
        {"parse_log_pvlib", "pytest"},          {"parse_log_requests", "pytest_options"},
        {"parse_log_pytest_v2", "pytest_v2"},   {"parse_log_seaborn", "seaborn"},
        {"parse_log_pytest", "pytest"},         {"parse_log_django", "django"},
        {"parse_log_astroid", "pytest"},        {"parse_log_sphinx", "pytest_v2"},
        {"parse_log_matplotlib", "matplotlib"}, {"parse_log_pylint", "pytest_options"},
    };
    for (int i = 0; i < GR_COUNT(alias); i++) {
        const gr_swe_parser* p = gr_swe_parser_find(alias[i][0]);
        if (p == NULL) fail_msg("%s", alias[i][0]);
        assert_string_equal(p->name, alias[i][1]);
    }
    assert_null(gr_swe_parser_find("parse_log_py"));
    assert_null(gr_swe_parser_find("parse_log_"));
    assert_null(gr_swe_parser_find(""));
    assert_string_equal(gr_swe_repo_find("sympy/sympy")->parser, "sympy");
    assert_null(gr_swe_repo_find("sympy"));
}

/* ---- what a log proves -------------------------------------------------------------------- */

static int verdict_of(const char* log, int exit_code)
{
    char* one[] = {(char[]){"t.py::a"}};
    gr_swe_instance x = {.fail_to_pass = {one, 1}};
    gr_swe_results r = {0};
    bool proven = gr_swe_log_read(gr_swe_parser_find("pytest"), log, strlen(log), exit_code, &r);
    int resolution = proven ? (int)gr_swe_judge(&x, &r).resolution : -1;
    gr_swe_results_free(&r);
    return resolution;
}

static void markers_decide_what_counts(void** state)
{
    (void)state;
    static const char start[] = ": '" GR_SWE_START "'\n", end[] = "\n+ : '" GR_SWE_END "'\n";
    static const struct {
        const char* part[6];
        int code, want;
    } row[] = {
        {{start, "PASSED t.py::a", end}, 0, GR_SWE_FULL},
        {{start, "FAILED t.py::a - x", end}, 1, GR_SWE_NO},
        {{"PASSED t.py::a\n", start, "FAILED t.py::a", end}, 1, GR_SWE_NO}, /* before the tests */
        {{start, "FAILED t.py::a", end, "PASSED t.py::a\n"}, 1, GR_SWE_NO}, /* and after them */
        {{start, "FAILED t.py::a", end, start, "\nPASSED t.py::a", end}, 1, GR_SWE_NO},
        {{start, "no test", end, "PASSED t.py::a\n"}, 0, GR_SWE_FULL}, /* beside the markers */
        {{"PASSED t.py::a\n"}, 0, -1},
        {{start, "PASSED t.py::a\n"}, 0, -1},
        {{end, "PASSED t.py::a\n", start, "\n"}, 0, GR_SWE_FULL}, /* as the harness has it */
        {{start, "PASSED t.py::a", end}, 1, -1},   /* failed, but nothing says what */
        {{start, "PASSED t.py::a", end}, 137, -1}, /* killed */
        {{start, "PASSED t.py::a\nFAILED t.py::b", end}, 1, GR_SWE_FULL},
        {{start, "PASSED t.py::a", end, ">>>>> Tests Timed Out"}, 0, -1},
        {{">>>>> Patch Apply Failed\n", start, "PASSED t.py::a", end}, 0, -1},
        {{start, end}, 0, GR_SWE_NO},
    };
    for (int i = 0; i < GR_COUNT(row); i++) {
        char log[1000] = "";
        for (int k = 0; k < 6 && row[i].part[k] != NULL; k++) {
            (void)strncat(log, row[i].part[k], sizeof log - strlen(log) - 1);
        }
        int got = verdict_of(log, row[i].code);
        if (got != row[i].want) fail_msg("row %d: %d, not %d\n%s", i, got, row[i].want, log);
    }
}

/* The rule of envs/swebench/results.h against its definition, on random results. */
static void resolution_is_its_definition(void** state)
{
    (void)state;
    char text[8][16];
    char* name[8];
    int seen[3] = {0};
    for (int i = 0; i < 8; i++) {
        (void)snprintf(text[i], sizeof text[i], "t%d", i);
        name[i] = text[i];
    }
    for (uint64_t key = 1; key <= 3000; key++) {
        int n_f2p = 1 + below(key, 0, 3), n_p2p = below(key, 1, 4), ok_f = 0, ok_p = 0;
        gr_swe_results r = {0};
        gr_swe_instance x = {.fail_to_pass = {name, n_f2p}, .pass_to_pass = {name + 4, n_p2p}};
        for (int i = 0; i < 8; i++) {
            /* half of the time passing, else any status or no mention */
            int s = below(key, 10 + (uint64_t)i, 2) ? GR_SWE_PASSED
                                                    : below(key, 20 + (uint64_t)i, 7) - 1;
            if (s >= 0) gr_swe_results_set(&r, name[i], strlen(name[i]), (gr_swe_status)s);
            bool passes = s == GR_SWE_PASSED || s == GR_SWE_XFAIL;
            if (i < n_f2p) ok_f += passes;
            if (i >= 4 && i < 4 + n_p2p) ok_p += passes || s == GR_SWE_SKIPPED;
        }
        gr_swe_verdict v = gr_swe_judge(&x, &r);
        assert_int_equal(v.f2p_passed, ok_f);
        assert_int_equal(v.p2p_passed, ok_p);
        bool kept = ok_p == n_p2p;
        int want = kept && ok_f == n_f2p ? GR_SWE_FULL : kept && ok_f > 0 ? GR_SWE_PARTIAL : 0;
        assert_int_equal(v.resolution, want);
        seen[want]++;
        gr_swe_results_free(&r);
    }
    for (int i = 0; i < 3; i++) assert_true(seen[i] > 100);
}

static void cut_ids_mean_what_they_begin(void** state)
{
    (void)state;
    gr_swe_results r = {0};
    static const struct {
        const char* name;
        gr_swe_status status;
    } row[] = {{"a[x y]", GR_SWE_PASSED}, {"a[x z]", GR_SWE_XFAIL},  {"b[x y]", GR_SWE_PASSED},
               {"b[x z]", GR_SWE_FAILED}, {"c[d]", GR_SWE_PASSED},   {"e[x", GR_SWE_FAILED},
               {"e[x y]", GR_SWE_PASSED}, {"plain_2", GR_SWE_PASSED}};
    for (int i = 0; i < GR_COUNT(row); i++) {
        gr_swe_results_set(&r, row[i].name, strlen(row[i].name), row[i].status);
    }
    assert_string_equal(gr_swe_results_match(&r, "a[x")->name, "a[x y]"); /* both count as passed */
    assert_null(gr_swe_results_match(&r, "b[x"));                         /* they disagree */
    assert_null(gr_swe_results_match(&r, "c[d]x"));
    assert_null(gr_swe_results_match(&r, "plain")); /* no bracket, no prefix */
    assert_int_equal(gr_swe_results_match(&r, "e[x")->status, GR_SWE_FAILED); /* exact wins */
    gr_swe_results_free(&r);
}

/* Real logs, cut anywhere and with bytes changed. */
static void damaged_logs_do_no_harm(void** state)
{
    (void)state;
    static const char* const name[] = {"pytest",  "pytest_options", "pytest_v2", "matplotlib",
                                       "seaborn", "sympy",          "django"};
    for (int i = 0; i < GR_COUNT(name); i++) {
        size_t n = 0;
        char* log = read_log(name[i], &n);
        uint8_t* data = malloc(n + 1);
        for (uint64_t k = 0; k < 400; k++) {
            data[0] = (uint8_t)(i + 7 * below(k, 100, 3));
            memcpy(data + 1, log, n);
            for (uint64_t c = 0; c < k % 40; c++) {
                data[1 + below(k, c, (int)n)] =
                    (uint8_t) "[]\n - \0\x1bPoE.:_"[below(k, 50 + c, 15)];
            }
            (void)LLVMFuzzerTestOneInput(data, 1 + (size_t)below(k, 99, (int)n + 1));
        }
        free(data);
        free(log);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pytest_logs),
        cmocka_unit_test(plotting_logs),
        cmocka_unit_test(own_runners),
        cmocka_unit_test(lines_with_corners),
        cmocka_unit_test(every_repository_has_its_parser),
        cmocka_unit_test(markers_decide_what_counts),
        cmocka_unit_test(resolution_is_its_definition),
        cmocka_unit_test(cut_ids_mean_what_they_begin),
        cmocka_unit_test(damaged_logs_do_no_harm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
