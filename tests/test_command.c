/* What all sub-commands promise: help that can be read, output that arrives or is said not to. Runs
 * the built `grove` (GROVE_BIN). */
#include "tests/disk.h"

/* Exit status of a line of the shell, which knows $GROVE and the scratch as $S; what it prints is in
 * the files out and err there. */
static int shell(const char* line)
{
    char command[1000];
    (void)snprintf(command, sizeof command, "(%s) >$S/out 2>$S/err", line);
    int status = system(command);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static int grove(const char* words)
{
    char line[800];
    (void)snprintf(line, sizeof line, "$GROVE %s", words);
    return shell(line);
}

static void assert_printed(const char* file, const char* what)
{
    char* text = slurp(scratch, file, NULL);
    assert_non_null(text);
    if (strstr(text, what) == NULL) fail_msg("%s, not %s", text, what);
    free(text);
}

static int make_run(void** state)
{
    if (make_scratch(state) != 0) return 1;
    (void)setenv("S", scratch, 1);
    (void)setenv("GROVE", GROVE_BIN, 1);
    return grove("train configs/frozenlake_flat.json run.dir=$S run.name=r run.steps=1 "
                 "budget.turns=0 budget.tokens=0 rollout.tokens_per_step=0 "
                 "rollout.groups_per_step=2 warmstart.steps=2 warmstart.batch=4 model.layers=1 "
                 "model.width=16 model.heads=1 model.kv_heads=1 model.mlp=24 eval.tasks=3 "
                 "eval.every_share=0 log.quiet=true device.threads=1");
}

/* A page goes into a device, a pipe or the target of a link; none of them is replaced by a file. */
static void a_report_replaces_files_only(void** state)
{
    (void)state;
    assert_int_equal(shell("ln -s /dev/full $S/link"), 0);
    assert_int_equal(grove("report $S/r -o $S/link"), 1);
    assert_printed("err", "/link: cannot write: No space left on device");
    assert_int_equal(shell("test -h $S/link && mkfifo $S/pipe"), 0);
    assert_int_equal(shell("cat $S/pipe >$S/read & $GROVE report $S/r -o $S/pipe && wait"), 0);
    assert_int_equal(grove("report $S/r -o $S/page"), 0);
    assert_int_equal(shell("test -p $S/pipe && cmp $S/read $S/page"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_report_replaces_files_only),
    };
    return cmocka_run_group_tests(tests, make_run, remove_scratch);
}
