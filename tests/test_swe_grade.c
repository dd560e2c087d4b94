/* Grading of the tiny set: gold patches solve it, empty ones do not, forged ones do not either. */
#include "tests/swe.h"

static gr_swe_grade grade(int64_t task, const char* patch, char** log)
{
    gr_swe_grade g;
    gr_swe_judging j = {.instance = &tiny.instance[task],
                        .tree = {.tree = tiny_tree[task], .at = "/testbed"},
                        .setup = "",
                        .time_s = 60};
    gr_swe_grade_now(box, 1, &j, patch, &g, log);
    return g;
}

/* A patch that adds one file. The caller frees it. */
static char* new_file(const char* path, const char* lines)
{
    size_t n = strlen(lines) * 2 + 400;
    char* patch = malloc(n);
    int count = 0;
    for (const char* c = lines; *c != 0; c++) count += *c == '\n';
    int at = snprintf(patch, n,
                      "diff --git a/%s b/%s\nnew file mode 100644\n--- /dev/null\n+++ b/%s\n"
                      "@@ -0,0 +1,%d @@\n+",
                      path, path, path, count);
    for (const char* c = lines; *c != 0; c++) {
        patch[at++] = *c;
        if (*c == '\n' && c[1] != 0) patch[at++] = '+';
    }
    patch[at] = 0;
    return patch;
}

static void gold_resolves_and_empty_does_not(void** state)
{
    (void)state;
    static const char comment[] = "# nothing that helps\n";
    for (int64_t i = 0; i < tiny.n; i++) {
        const gr_swe_instance* x = &tiny.instance[i];
        char* log = NULL;
        gr_swe_grade g = grade(i, x->gold, &log);
        if (g.outcome != GR_SWE_GRADED || g.verdict.resolution != GR_SWE_FULL) {
            fail_msg("%s: %s %s\n%s", x->id, gr_swe_outcome_name(g.outcome), g.reason, log);
        }
        assert_int_equal(g.verdict.f2p_passed, x->fail_to_pass.n);
        assert_int_equal(g.verdict.p2p_passed, x->pass_to_pass.n);
        free(log);
        g = grade(i, "", NULL);
        assert_int_equal(g.outcome, GR_SWE_EMPTY);
        assert_int_equal(g.verdict.resolution, GR_SWE_NO);
        char* useless = new_file("notes.py", comment);
        g = grade(i, useless, NULL); /* the tests run, and those that must begin to pass fail */
        free(useless);
        assert_int_equal(g.outcome, GR_SWE_GRADED);
        assert_int_equal(g.verdict.resolution, GR_SWE_NO);
        assert_int_equal(g.verdict.f2p_passed, 0);
        assert_int_equal(g.verdict.p2p_passed, x->pass_to_pass.n);
    }
}

/* Patches that only a later way applies: lines moved, context changed. */
static void patches_apply_in_four_ways(void** state)
{
    (void)state;
    static const char fuzzy[] = /* git wants the context as it is; patch takes a changed line */
        "--- a/intervals.py\n+++ b/intervals.py\n@@ -11,5 +11,5 @@ def merge(intervals):\n"
        "             continue\n"
        "         if merged and start <= merged[-1][1]:\n"
        "-            merged[-1] = (merged[-1][0], end)\n"
        "+            merged[-1] = (merged[-1][0], max(merged[-1][1], end))\n"
        "         else:\n             merged.add((start, end))\n";
    int64_t task = find_tiny("tiny__intervals-1");
    gr_swe_grade g = grade(task, fuzzy, NULL);
    assert_int_equal(g.outcome, GR_SWE_GRADED);
    assert_int_equal(g.verdict.resolution, GR_SWE_FULL);
    assert_int_equal(grade(task, "no patch at all\n", NULL).outcome, GR_SWE_UNAPPLIED);
    assert_int_equal(
        grade(task, "--- a/none.py\n+++ b/none.py\n@@ -1 +1 @@\n-a\n+b\n", NULL).outcome,
        GR_SWE_UNAPPLIED);
}

#define PASSED_LINES                                            \
    "PASSED test_intervals.py::test_disjoint_intervals_stay\\n" \
    "PASSED test_intervals.py::test_touching_intervals_join\\n" \
    "PASSED test_intervals.py::test_empty_intervals_vanish\\n"  \
    "PASSED test_intervals.py::test_gaps\\n"                    \
    "PASSED test_intervals.py::test_an_inner_interval_changes_nothing\\n"
/* pytest's capture keeps the true output in some descriptor of its own. */
#define SPEAK                                                                                  \
    "import os\ndef say(text):\n    for fd in (1, *range(3, 20)):\n        try:\n            " \
    "os.write(fd, text)\n        except OSError:\n            pass\n"
#define SAY        "say(b'" PASSED_LINES "')\n"
#define MARK(text) "say(b'\\n" text "\\n')\n"

/* Each is a file that a patch adds; none may come out as solved. */
static void forgeries_fail(void** state)
{
    (void)state;
    static const struct {
        const char *name, *file, *lines;
    } attempt[] = {
        {"results printed, then away", "conftest.py", SPEAK SAY "os._exit(0)\n"},
        {"the same with a failing status", "conftest.py", SPEAK SAY "os._exit(1)\n"},
        {"end marker too", "conftest.py", SPEAK SAY MARK(GR_SWE_END) "os._exit(1)\n"},
        {"another start marker", "conftest.py", SPEAK MARK(GR_SWE_END) MARK(GR_SWE_START) SAY},
        {"at the end of the session", "conftest.py",
         SPEAK "def pytest_sessionfinish(session):\n    session.exitstatus = 0\n    " SAY
               "    os._exit(0)\n"},
        {"failures declared passes", "conftest.py",
         "def pytest_runtest_logreport(report):\n    report.outcome = 'passed'\n"},
        {"failures declared passes early", "conftest.py",
         "import pytest\n\n@pytest.hookimpl(hookwrapper=True)\n"
         "def pytest_runtest_makereport(item, call):\n    r = (yield).get_result()\n"
         "    r.outcome = 'passed'\n    r.longrepr = None\n"},
        {"tests skipped", "conftest.py",
         "def pytest_collection_modifyitems(items):\n    del items[:]\n"},
        {"another pytest", "pytest.py", SPEAK SAY "os._exit(1)\n"},
        {"a child that outlives the run", "conftest.py",
         SPEAK "import time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(1)\n    " SAY
               "    os._exit(0)\n"},
        {"the shell killed", "conftest.py",
         SPEAK SAY MARK(GR_SWE_END) "os.kill(os.getppid(), 9)\n"},
        {"options in a file", "pytest.ini", "[pytest]\naddopts = --co -q\n"},
    };
    int64_t task = find_tiny("tiny__intervals-1");
    for (int i = 0; i < GR_COUNT(attempt); i++) {
        char *patch = new_file(attempt[i].file, attempt[i].lines), *log = NULL;
        gr_swe_grade g = grade(task, patch, &log);
        if (g.outcome == GR_SWE_UNAPPLIED || g.verdict.resolution == GR_SWE_FULL) {
            fail_msg("%s: %s\n%s", attempt[i].name, gr_swe_outcome_name(g.outcome), log);
        }
        print_message("%-34s %s\n", attempt[i].name, gr_swe_outcome_name(g.outcome));
        free(log);
        free(patch);
    }
}

/* A runner that does not get to its tests has claimed nothing. */
static void a_run_that_breaks_off_is_no_forgery(void** state)
{
    (void)state;
    int64_t task = find_tiny("tiny__intervals-1");
    char* broken = new_file("conftest.py", "import a_module_that_nobody_has\n");
    char* forged = new_file("conftest.py", SPEAK SAY "os._exit(1)\n");
    assert_int_equal(grade(task, broken, NULL).outcome, GR_SWE_UNPROVEN);
    assert_int_equal(grade(task, forged, NULL).outcome, GR_SWE_FORGED);
    free(broken);
    free(forged);
}

/* What a patch does to the judge's own files is undone before they run. */
static void the_judges_files_are_the_judges(void** state)
{
    (void)state;
    static const char emptied[] =
        "--- a/test_intervals.py\n+++ b/test_intervals.py\n@@ -1,6 +1,6 @@\n"
        " from intervals import gaps, merge, total_length\n \n \n"
        "-def test_disjoint_intervals_stay():\n"
        "-    assert merge([(4, 6), (0, 2)]) == [(0, 2), (4, 6)]\n"
        "+def test_an_inner_interval_changes_nothing():\n+    pass\n \n";
    gr_swe_grade g = grade(find_tiny("tiny__intervals-1"), emptied, NULL);
    assert_int_equal(g.outcome, GR_SWE_GRADED);
    assert_int_equal(g.verdict.f2p_passed, 0);
    assert_int_equal(g.verdict.p2p_passed,
                     tiny.instance[find_tiny("tiny__intervals-1")].pass_to_pass.n);
    /* A link in the place of the folder of tests: put back as a folder. */
    char script[9000], patch[20000];
    int64_t task = find_tiny("tiny__lru_cache-1");
    (void)snprintf(script, sizeof script,
                   "cp -a %s %s/copy && cd %s/copy && rm -r tests && ln -s /tmp tests && "
                   "git add -A && git diff --cached HEAD >../link.patch",
                   tiny_tree[task], scratch, scratch);
    assert_int_equal(system(script), 0);
    (void)snprintf(script, sizeof script, "%s/link.patch", scratch);
    FILE* f = fopen(script, "rb");
    assert_non_null(f);
    size_t n = fread(patch, 1, sizeof patch - 1, f);
    fclose(f);
    patch[n] = 0;
    assert_true(strstr(patch, "120000") != NULL);
    g = grade(task, patch, NULL);
    assert_int_equal(g.outcome, GR_SWE_GRADED);
    assert_int_equal(g.verdict.f2p_passed, 0);
    assert_int_equal(g.verdict.p2p_passed, tiny.instance[task].pass_to_pass.n);
}

static void a_test_that_hangs_costs_its_time(void** state)
{
    (void)state;
    gr_swe_grade g;
    int64_t task = find_tiny("tiny__intervals-1");
    char* patch = new_file("conftest.py", "import time\ntime.sleep(1000)\n");
    gr_swe_judging j = {.instance = &tiny.instance[task],
                        .tree = {.tree = tiny_tree[task], .at = "/testbed"},
                        .setup = "",
                        .time_s = 1};
    gr_swe_grade_now(box, 1, &j, patch, &g, NULL);
    assert_int_equal(g.outcome, GR_SWE_OUT_OF_TIME);
    j.tree.tree = "/no/such/tree";
    gr_swe_grade_now(box, 1, &j, patch, &g, NULL);
    assert_int_equal(g.outcome, GR_SWE_NO_SANDBOX);
    assert_true(g.reason[0] != 0);
    free(patch);
}

/* A runner that writes as sympy's does: no file with the name of a test, [OK] or [FAIL] behind the
 * last test of a file, and a report of what failed. */
static const char sympy_runner[] =
    "import sys\n"
    "sys.path.insert(0, '.')\n"
    "failed = []\n"
    "for path in sys.argv[1:]:\n"
    "    tests = {}\n"
    "    exec(open(path).read(), tests)\n"
    "    names = [n for n in tests if n.startswith('test_')]\n"
    "    print(f'\\n{path}[{len(names)}] ')\n"
    "    words = []\n"
    "    for name in names:\n"
    "        try:\n"
    "            tests[name]()\n"
    "            words.append('ok')\n"
    "        except AssertionError:\n"
    "            words.append('F')\n"
    "            failed.append(f'{path}:{name}')\n"
    "    mark = '[FAIL]' if 'F' in words else '[OK]'\n"
    "    for i, name in enumerate(names):\n"
    "        print(name, words[i] + (mark.rjust(50) if i == len(names) - 1 else ''))\n"
    "for name in failed:\n"
    "    print('_' * 80 + f'\\n_____ {name} ______\\n    assert False\\nAssertionError\\n')\n"
    "sys.exit(len(failed) > 0)\n";

static void write_text(const char* folder, const char* name, const char* text)
{
    char path[4200];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE* f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0 && fclose(f) == 0);
}

static void the_runner_of_sympy_is_understood(void** state)
{
    (void)state;
    char path[4096], command[900];
    (void)snprintf(command, sizeof command,
                   "set -e; mkdir -p %s/s/one/repo/pkg/tests; cd %s/s/one; echo it >problem.md; "
                   "echo 'x = 1' >repo/pkg/a.py; printf 'def test_old():\\n    pass\\n\\n\\n"
                   "def test_end():\\n    pass\\n' >repo/pkg/tests/test_a.py; "
                   "printf '{\"instance_id\":\"s-1\",\"repo\":\"s/s\",\"log_parser\":\"sympy\","
                   "\"test_cmd\":\"python3 runner.py\",\"FAIL_TO_PASS\":[\"test_new\"],"
                   "\"PASS_TO_PASS\":[\"test_old\"]}' >instance.json",
                   scratch, scratch);
    assert_int_equal(system(command), 0);
    (void)snprintf(path, sizeof path, "%s/s/one/repo", scratch);
    write_text(path, "runner.py", sympy_runner);
    (void)snprintf(path, sizeof path, "%s/s/one", scratch);
    write_text(path, "gold.patch", "--- a/pkg/a.py\n+++ b/pkg/a.py\n@@ -1 +1 @@\n-x = 1\n+x = 2\n");
    write_text(path, "test.patch",
               "--- a/pkg/tests/test_a.py\n+++ b/pkg/tests/test_a.py\n@@ -1,3 +1,8 @@\n"
               "+def test_new():\n+    from pkg.a import x\n+    assert x == 2\n+\n+\n"
               " def test_old():\n     pass\n \n");
    gr_swe_set set = {0};
    (void)snprintf(path, sizeof path, "%s/s", scratch);
    ASSERT_OK(gr_swe_read(&set, path));
    ASSERT_OK(gr_swe_check(&set.instance[0]));
    ASSERT_OK(gr_swe_tree(&set.instance[0], &own_sources, path));
    gr_swe_judging j = {.instance = &set.instance[0],
                        .tree = {.tree = path, .at = "/testbed"},
                        .setup = "",
                        .time_s = 60};
    const gr_swe_resolution expected[] = {GR_SWE_FULL, GR_SWE_NO};
    char* useless = new_file("notes.py", "# nothing\n");
    const char* const patch[] = {set.instance[0].gold, useless};
    for (int i = 0; i < 2; i++) {
        gr_swe_grade g;
        char* log = NULL;
        gr_swe_grade_now(box, 1, &j, patch[i], &g, &log);
        if (g.outcome != GR_SWE_GRADED || g.verdict.resolution != expected[i]) {
            fail_msg("%s %s\n%s", gr_swe_outcome_name(g.outcome), g.reason, log);
        }
        free(log);
    }
    free(useless);
    gr_swe_set_free(&set);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gold_resolves_and_empty_does_not),
        cmocka_unit_test(patches_apply_in_four_ways),
        cmocka_unit_test(forgeries_fail),
        cmocka_unit_test(a_run_that_breaks_off_is_no_forgery),
        cmocka_unit_test(the_judges_files_are_the_judges),
        cmocka_unit_test(a_test_that_hangs_costs_its_time),
        cmocka_unit_test(the_runner_of_sympy_is_understood),
    };
    if (make_scratch(NULL) != 0) return 1;
    if (!open_box()) return remove_scratch(NULL);
    make_tiny_trees();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    gr_sandbox_close(box);
    gr_sandbox_stop();
    gr_swe_set_free(&tiny);
    (void)remove_scratch(NULL);
    return failed;
}
