/* Repository tasks from the command line: the tiny set as it is configured, and a task of one's own.
 * Runs the built `grove` (GROVE_BIN). */
#include "tests/disk.h"

/* Exit status of `grove WORDS`, which knows the scratch as $S; what it prints is in out and err. */
static int grove(const char* words)
{
    char command[1500];
    (void)snprintf(command, sizeof command,
                   GROVE_BIN " %s swebench.cache=$S/cache swebench.sandbox_dir=$S >$S/out 2>$S/err",
                   words);
    int status = system(command);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void assert_printed(const char* file, const char* what)
{
    char* text = slurp(scratch, file, NULL);
    assert_non_null(text);
    if (strstr(text, what) == NULL) fail_msg("%s, not %s", text, what);
    free(text);
}

#define SMALL "run.dir=$S run.steps=1 eval.tasks=1 device.threads=1 "
#define OWN   "swebench.instances=$S/tasks.jsonl "

static void the_tiny_set_trains_a_small_model(void** state)
{
    (void)state;
    if (grove("train configs/swe_tiny.json " SMALL) != 0) {
        assert_printed("err", "no sandbox is possible");
        skip();
    }
    char* metrics = slurp(scratch, "swe_tiny/metrics.jsonl", NULL);
    assert_non_null(metrics);
    assert_non_null(strstr(metrics, "\"turns/error_frac\": 0,"));
    assert_non_null(strstr(metrics, "\"parity/max_abs_dlogp\": "));
    assert_null(strstr(metrics, "\"budget/env_turns\": 0,"));
    free(metrics);
}

/* A repository with one commit, and a line of JSON that says what is to be done with it. */
static int write_task(void** state)
{
    if (make_scratch(state) != 0) return 1;
    (void)setenv("S", scratch, 1);
    run_script(
        "mkdir -p mirrors/me__slug; cd mirrors/me__slug; git init -q; "
        "echo 'slug = lambda title: title.lower().replace(\" \", \"-\")' >slug.py; "
        "printf 'from slug import slug\\n\\n\\ndef test_words():\\n    assert slug(\"A b\") == "
        "\"a-b\"\\n' >test_slug.py; "
        "git add -A; git -c user.name=me -c user.email=me@localhost commit -qm one; "
        "echo 'slug = lambda title: \"-\".join(title.lower().split())' >slug.py; "
        "git diff >$S/gold.patch; git checkout -q .; "
        "printf '\\n\\ndef test_many_blanks():\\n    assert slug(\"a  b\") == \"a-b\"\\n' "
        ">>test_slug.py; git diff >$S/test.patch; git checkout -q .");
    run_script(
        "python3 -c \"import json, subprocess\n"
        "base = subprocess.check_output(['git', '-C', 'mirrors/me__slug', 'rev-parse', 'HEAD'], "
        "text=True).strip()\n"
        "print(json.dumps(dict(instance_id='me__slug-1', repo='me/slug', base_commit=base,\n"
        "    problem_statement='Several blanks become several dashes.',\n"
        "    patch=open('gold.patch').read(), test_patch=open('test.patch').read(),\n"
        "    FAIL_TO_PASS=['test_slug.py::test_many_blanks'],\n"
        "    PASS_TO_PASS=['test_slug.py::test_words'])))\" >tasks.jsonl");
    return 0;
}

static void a_task_of_ones_own_is_trained_on(void** state)
{
    (void)state;
    if (grove("train configs/swe_tiny.json run.name=own " OWN
              "swebench.test_instances=$S/tasks.jsonl swebench.mirrors=$S/mirrors " SMALL) != 0) {
        assert_printed("err", "no sandbox is possible");
        skip();
    }
    char* metrics = slurp(scratch, "own/metrics.jsonl", NULL);
    assert_non_null(metrics);
    assert_non_null(strstr(metrics, "\"turns/error_frac\": 0,"));
    free(metrics);
    assert_int_equal(grove("eval $S/own"), 0);
    assert_printed("out", "tasks     1 x 1 episodes");
    assert_int_equal(grove("train configs/swe_tiny.json run.name=none " OWN
                           "swebench.mirrors=$S/mirrors " SMALL),
                     1);
    assert_printed("err", "grove: eval.tasks = 1, but env.name = swebench holds no task out");
}

/* Before any work, and not task by task as lost episodes. */
static void what_is_missing_is_said_at_the_start(void** state)
{
    (void)state;
    assert_int_equal(grove("train configs/swe_tiny.json run.name=none " OWN SMALL), 1);
    assert_printed("err", "grove: swebench.mirrors: empty, but me__slug-1 needs me/slug\n");
    assert_int_equal(
        grove("train configs/swe_tiny.json run.name=none " OWN "swebench.mirrors=$S " SMALL), 1);
    assert_printed("err", "no me__slug, .git or .bundle there, which me__slug-1 needs\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_tiny_set_trains_a_small_model),
        cmocka_unit_test(a_task_of_ones_own_is_trained_on),
        cmocka_unit_test(what_is_missing_is_said_at_the_start),
    };
    return cmocka_run_group_tests(tests, write_task, remove_scratch);
}
