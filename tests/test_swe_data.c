/* Instances of repository tasks: every published form is read, and what is wrong is said in one
 * line. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "envs/swebench/instance.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t n);

#define COMMIT "0123456789abcdef0123456789abcdef01234567"
#define PATCH(file)                                                                  \
    "diff --git a/" file " b/" file "\\n--- a/" file "\\n+++ b/" file "\\n@@ -1 +1 " \
    "@@\\n-a\\n+b\\n"
#define HEAD "\"instance_id\":\"o__r-1\",\"repo\":\"o/r\",\"base_commit\":\"" COMMIT "\","
#define BODY "\"patch\":\"" PATCH("src/a.py") "\",\"test_patch\":\"" PATCH("t/test_a.py") "\""

static int below(uint64_t key, uint64_t at, int n) { return (int)(gr_uniform(key, at) * n); }

static gr_swe_set parse(const char* text)
{
    gr_swe_set set = {0};
    gr_status st = gr_swe_parse(&set, "x", text, strlen(text));
    if (st != GR_OK) fail_msg("%s\n%s", gr_last_error(), text);
    return set;
}

static void refuse(const char* text, const char* reason)
{
    gr_swe_set set = {0};
    assert_int_equal(gr_swe_parse(&set, "x", text, strlen(text)), GR_EDATA);
    if (strcmp(gr_last_error_text(), reason) != 0) {
        fail_msg("`%s` instead of `%s`", gr_last_error_text(), reason);
    }
    assert_int_equal(set.n, 0);
    gr_swe_set_free(&set);
}

/* Real rows of SWE-bench in v5 fields. */
static void published_rows_are_read(void** state)
{
    (void)state;
    gr_swe_set set = {0};
    assert_int_equal(gr_swe_read(&set, "tests/golden/swebench/instances.jsonl"), GR_OK);
    assert_int_equal(set.n, 3);
    const gr_swe_instance* x = &set.instance[0];
    assert_string_equal(x->id, "sympy__sympy-12096");
    assert_string_equal(x->repo, "sympy/sympy");
    assert_string_equal(x->log_parser, "parse_log_sympy");
    assert_int_equal(x->fail_to_pass.n, 1);
    assert_string_equal(x->fail_to_pass.name[0], "test_issue_12092");
    assert_int_equal(x->test_files.n, 1);
    assert_string_equal(x->test_files.name[0], "sympy/utilities/tests/test_lambdify.py");
    assert_non_null(strstr(x->eval_script, ">>>>> Start Test Output"));
    assert_false(x->gold_reversed);
    gr_swe_set_free(&set);
}

/* The same instance as a line, as an array, with lists as lists and as text in a list. */
static void forms_mean_the_same(void** state)
{
    (void)state;
    static const char* const form[] = {
        "{" HEAD BODY ",\"FAIL_TO_PASS\":[\"t/test_a.py::x[a b]\"],\"PASS_TO_PASS\":[]}",
        "\n\n{" HEAD BODY ",\"FAIL_TO_PASS\":\"[\\\"t/test_a.py::x[a b]\\\"]\"}\r\n",
        "[{" HEAD BODY ",\"FAIL_TO_PASS\":[\"t/test_a.py::x[a b]\"],\"PASS_TO_PASS\":\"[]\"}]\n",
        "{" HEAD BODY ",\"FAIL_TO_PASS\":[\"t/test_a.py::x[a b]\"],\"PASS_TO_PASS\":null,"
        "\"version\":null,\"other\":{\"a\":[1]}}",
    };
    for (int i = 0; i < GR_COUNT(form); i++) {
        gr_swe_set set = parse(form[i]);
        assert_int_equal(set.n, 1);
        const gr_swe_instance* x = &set.instance[0];
        assert_string_equal(x->base_commit, COMMIT);
        assert_string_equal(x->fail_to_pass.name[0], "t/test_a.py::x[a b]");
        assert_int_equal(x->pass_to_pass.n, 0);
        assert_int_equal(x->test_files.n, 1);
        assert_string_equal(x->test_files.name[0], "t/test_a.py");
        assert_string_equal(x->version, "");
        gr_swe_set_free(&set);
    }
}

static void a_smith_row_is_a_bug_to_undo(void** state)
{
    (void)state;
    gr_swe_set set =
        parse("{\"instance_id\":\"o__r.0a1b2c3d.f__x\",\"repo\":"
              "\"swesmith/o__r.x.0a1b2c3d\",\"patch\":\"" PATCH(
                  "a.py") "\","
                          "\"FAIL_TO_PASS\":[\"t/b.py::x\",\"t/a.py::y\",\"t/b.py::z[q/w::e]\"]}");
    const gr_swe_instance* x = &set.instance[0];
    assert_true(x->gold_reversed);
    assert_string_equal(x->repo, "o/r.x");
    assert_string_equal(x->base_commit, "0a1b2c3d");
    assert_int_equal(x->test_files.n, 2);
    assert_string_equal(x->test_files.name[0], "t/a.py");
    assert_string_equal(x->test_files.name[1], "t/b.py");
    gr_swe_set_free(&set);
}

static void what_is_wrong_is_said_in_a_line(void** state)
{
    (void)state;
    static const char* const row[][2] = {
        {"", "x: holds no instance"},
        {"[]", "x: holds no instance"},
        {"[1]", "x: element 0: not a JSON object"},
        {"[{}] x", "x: something follows the list"},
        {"[{", "x: not JSON"},
        {"{}", "x:1: instance_id: is missing"},
        {"\n{\"instance_id\":7}", "x:2: instance_id: is no text"},
        {"{\"instance_id\":\"\"}", "x:1: instance_id: is empty"},
        {"{" HEAD "\"patch\":\"p\",\"FAIL_TO_PASS\":7}", "x:1: FAIL_TO_PASS: is no list of tests"},
        {"{" HEAD "\"patch\":\"p\",\"FAIL_TO_PASS\":\"['a']\"}",
         "x:1: FAIL_TO_PASS: is no list of tests"},
        {"{" HEAD "\"patch\":\"p\",\"FAIL_TO_PASS\":\"[\\\"a\\\"] x\"}",
         "x:1: FAIL_TO_PASS: something follows the list"},
        {"{" HEAD "\"patch\":\"p\",\"FAIL_TO_PASS\":[\"t.py::a\",1]}",
         "x:1: FAIL_TO_PASS: element 1 is no name of a test"},
        {"{" HEAD "\"patch\":\"p\",\"FAIL_TO_PASS\":[]}", "x:1: FAIL_TO_PASS: names no test"},
        {"{" HEAD "\"patch\":\"p\",\"FAIL_TO_PASS\":[\"../x.py::t\"]}",
         "x:1: `../x.py::t` is a test of no file, and there is no test_patch"},
        {"{" HEAD "\"patch\":\"p\",\"FAIL_TO_PASS\":[\"a\\nb::t\"]}", /* still one line */
         "x:1: `a` is a test of no file, and there is no test_patch"},
        {"{\"instance_id\":\"../x\",\"repo\":\"o/r\",\"patch\":\"p\"}",
         "x:1: instance_id: only letters, digits and ._-, as it names files"},
        {"{\"instance_id\":\"x\",\"repo\":\"o/r/s\",\"patch\":\"p\"}", "x:1: repo: not owner/name"},
        {"{\"instance_id\":\"x\",\"repo\":\"o/r\",\"patch\":\"p\",\"base_commit\":\"master\"}",
         "x:1: base_commit: not 40 or 64 hexadecimal digits"},
        {"{\"instance_id\":\"x\",\"repo\":\"swesmith/o__r\",\"patch\":\"p\"}",
         "x:1: repo: not swesmith/owner__name.commit"},
        {"{" HEAD "\"patch\":\"p\",\"test_patch\":\"--- a/../x\\n\",\"FAIL_TO_PASS\":[\"a\"]}",
         "x:1: test_patch: `../x` is no path inside the tree"},
        {"{" HEAD "\"patch\":\"p\",\"test_patch\":\"+++ .git/config\\n\",\"FAIL_TO_PASS\":[\"a\"]}",
         "x:1: test_patch: `.git/config` has no a/ or b/ before it"},
        {"{" HEAD "\"patch\":\"p\",\"test_patch\":\"+++ b/.git/x\\n\",\"FAIL_TO_PASS\":[\"a\"]}",
         "x:1: test_patch: `.git/x` is no path inside the tree"},
    };
    for (int i = 0; i < GR_COUNT(row); i++) refuse(row[i][0], row[i][1]);
    char twice[2000];
    (void)snprintf(twice, sizeof twice, "%s\n%s",
                   "{" HEAD BODY ",\"FAIL_TO_PASS\":[\"t/test_a.py::x\"]}",
                   "{" HEAD BODY ",\"FAIL_TO_PASS\":[\"t/test_a.py::x\"]}");
    refuse(twice, "x: instance_id: `o__r-1` is there twice");
}

/* The tasks that come with the program. */
static void the_tiny_set_is_read(void** state)
{
    (void)state;
    gr_swe_set set = {0};
    gr_status st = gr_swe_read(&set, "envs/swe_tiny");
    if (st != GR_OK) fail_msg("%s", gr_last_error());
    assert_in_range(set.n, 12, 100);
    for (int64_t i = 0; i < set.n; i++) {
        const gr_swe_instance* x = &set.instance[i];
        gr_swe_names gold = {0};
        assert_true(strncmp(x->id, "tiny__", 6) == 0 && strlen(x->problem) > 100);
        assert_true(x->fail_to_pass.n > 0 && x->pass_to_pass.n > 0);
        assert_int_equal(x->test_files.n, 1);
        assert_int_equal(gr_swe_patch_files(x->gold, &gold), GR_OK);
        for (int k = 0; k < gold.n; k++) assert_null(strstr(gold.name[k], "test"));
        assert_in_range(gold.n, 1, 5);
        gr_swe_names_free(&gold);
    }
    gr_swe_set_free(&set);
}

static void files_that_cannot_be_had_are_named(void** state)
{
    (void)state;
    gr_swe_set set = {0};
    assert_int_equal(gr_swe_read(&set, "/no/such/file"), GR_EIO);
    assert_string_equal(gr_last_error_text(),
                        "/no/such/file: cannot open: No such file or directory");
    assert_int_equal(gr_swe_read(&set, "/dev/null"), GR_EIO);
    assert_string_equal(gr_last_error_text(), "/dev/null: not a regular file");
    char folder[] = "/tmp/grove_swe_XXXXXX", task[64];
    assert_non_null(mkdtemp(folder));
    assert_int_equal(gr_swe_read(&set, folder), GR_EDATA);
    assert_non_null(strstr(gr_last_error_text(), ": holds no instance"));
    (void)snprintf(task, sizeof task, "%s/task", folder);
    assert_int_equal(mkdir(task, 0700), 0);
    assert_int_equal(gr_swe_read(&set, folder), GR_EIO);
    assert_non_null(strstr(gr_last_error_text(), "/task/problem.md: cannot open"));
    assert_int_equal(rmdir(task), 0);
    assert_int_equal(rmdir(folder), 0);
    assert_int_equal(set.n, 0);
}

/* A removed line "-- x" is content of a hunk, not a header; names are sorted, each once. */
static void paths_of_patches(void** state)
{
    (void)state;
    gr_swe_names files = {0};
    static const char patch[] =
        "diff --git a/b/z.py b/b/z.py\n--- a/b/z.py\t2020\n+++ b/b/z.py\r\n"
        "@@ -1,3 +1,2 @@ def f\n x\n--- a/not/this\n+++ b/nor/that\n-y\n"
        "\\ No newline at end of file\n"
        "diff --git a/new b/new\n--- /dev/null\n+++ b/new\n@@ -0,0 +1 @@\n+x\n"
        "rename from old name.txt\nrename to a.txt\n"
        "Binary files a/img.png and b/img.png differ\n";
    static const char* const want[] = {"a.txt", "b/z.py", "new", "old name.txt"};
    assert_int_equal(gr_swe_patch_files(patch, &files), GR_OK);
    assert_int_equal(files.n, GR_COUNT(want));
    for (int i = 0; i < files.n; i++) assert_string_equal(files.name[i], want[i]);
    gr_swe_names_free(&files);
}

static void sorted_names_are_a_set(void** state)
{
    (void)state;
    for (uint64_t key = 1; key <= 50; key++) {
        gr_swe_names names = {0};
        bool there[100] = {false};
        int n = 0;
        for (uint64_t i = 0; i < 150; i++) {
            int v = below(key, i, 100);
            char text[8];
            int length = snprintf(text, sizeof text, "%02d", v);
            gr_swe_names_add(&names, text, (size_t)length);
            n += !there[v];
            there[v] = true;
        }
        assert_int_equal(names.n, n);
        for (int i = 0; i < n; i++) {
            assert_true(there[atoi(names.name[i])]);
            if (i > 0) assert_true(strcmp(names.name[i - 1], names.name[i]) < 0);
        }
        gr_swe_names_free(&names);
    }
}

/* The fuzz target's corpus, cut anywhere and with bytes changed. */
static void damaged_files_do_no_harm(void** state)
{
    (void)state;
    static const char* const name[] = {"lines", "array", "smith", "rename"};
    for (int i = 0; i < GR_COUNT(name); i++) {
        char path[64];
        uint8_t whole[4096], data[4096];
        (void)snprintf(path, sizeof path, "tests/corpus/fuzz_swe_instance/%s", name[i]);
        FILE* f = fopen(path, "rb");
        assert_non_null(f);
        int n = (int)fread(whole, 1, sizeof whole, f);
        fclose(f);
        assert_in_range(n, 100, 4000);
        for (uint64_t k = 0; k < 3000; k++) {
            memcpy(data, whole, (size_t)n);
            for (uint64_t c = 0; c < k % 5; c++) {
                data[below(k, c, n)] = (uint8_t) "\"{}[]:,\0\n9e-u\xc3\xff/"[below(k, 9 + c, 17)];
            }
            (void)LLVMFuzzerTestOneInput(data, k < (uint64_t)n ? (size_t)k : (size_t)n);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_rows_are_read),
        cmocka_unit_test(forms_mean_the_same),
        cmocka_unit_test(a_smith_row_is_a_bug_to_undo),
        cmocka_unit_test(what_is_wrong_is_said_in_a_line),
        cmocka_unit_test(the_tiny_set_is_read),
        cmocka_unit_test(files_that_cannot_be_had_are_named),
        cmocka_unit_test(paths_of_patches),
        cmocka_unit_test(sorted_names_are_a_set),
        cmocka_unit_test(damaged_files_do_no_harm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
