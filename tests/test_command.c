/* What all sub-commands promise: help that can be read, output that arrives or is said not to. Runs
 * the built `grove` (GROVE_BIN). */
#include "tests/disk.h"

static const char* const names[] = {"train",  "eval",   "generate", "inspect",
                                    "report", "replay", "export",   "sandbox"};

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

/* Lines fit the width, and what goes on in the next line is indented under its setting. */
static void help_is_a_table(void** state)
{
    (void)state;
    for (int i = 0; i < GR_COUNT(names); i++) {
        char words[64];
        (void)snprintf(words, sizeof words, "%s --help", names[i]);
        assert_int_equal(grove(words), 0);
        char* text = slurp(scratch, "out", NULL);
        assert_non_null(text);
        char* settings = strstr(text, "\nSettings, as");
        int rows = 0, lines = 0;
        for (char* line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n"), lines++) {
            if (strlen(line) > 100) fail_msg("%s: %s", words, line);
            if (settings == NULL || line <= settings + 1) continue;
            size_t name = strspn(line, "abcdefghijklmnopqrstuvwxyz_");
            bool block = name > 0 && (line[name] == 0 || strncmp(line + name, " (acts", 6) == 0);
            if (!block && strncmp(line, "  ", 2) != 0) fail_msg("%s: %s", words, line);
            rows++;
        }
        assert_true(lines > 5 && (settings == NULL || rows > 10));
        free(text);
    }
}

static void a_full_disk_under_the_output_is_said(void** state)
{
    (void)state;
    static const char* const words[] = {"--version",
                                        "--help",
                                        "train --help",
                                        "eval $S/r --tasks 2",
                                        "inspect $S/r",
                                        "eval $S/r --tasks 2 --json",
                                        "generate $S/r -p P_ -t 4",
                                        "report $S/r -o $S/page"};
    for (int i = 0; i < GR_COUNT(words); i++) {
        char full[100];
        (void)snprintf(full, sizeof full, "%s >/dev/full", words[i]);
        assert_int_equal(grove(words[i]), 0);
        if (grove(full) != 1) fail_msg("%s", full);
        assert_printed("err", "grove: standard output: cannot write: ");
    }
    /* who has read enough is no error */
    assert_int_equal(shell("{ sleep 0.1; $GROVE train --help; echo $? >&2; } | true"), 0);
    char* text = slurp(scratch, "err", NULL);
    assert_string_equal(text, "0\n");
    free(text);
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

/* A device that is not there is one line before any work, and no run begins. */
static void a_missing_gpu_is_one_line(void** state)
{
    (void)state;
    static const char* const words[] = {"train configs/frozenlake_flat.json run.dir=$S/gpu",
                                        "train configs/frozenlake_flat.json --dry-run",
                                        "eval $S/r"};
    for (int i = 0; i < GR_COUNT(words); i++) {
        char command[200];
        (void)snprintf(command, sizeof command, "%s device.name=cuda:1000", words[i]);
        assert_int_equal(grove(command), 1);
        char* text = slurp(scratch, "err", NULL);
        if (strstr(text, "cuda:1000: ") == NULL || strchr(text, '\n') != strrchr(text, '\n'))
            fail_msg("%s: %s", words[i], text);
        free(text);
    }
    assert_int_equal(shell("test -e $S/gpu"), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(help_is_a_table),
        cmocka_unit_test(a_full_disk_under_the_output_is_said),
        cmocka_unit_test(a_report_replaces_files_only),
        cmocka_unit_test(a_missing_gpu_is_one_line),
    };
    return cmocka_run_group_tests(tests, make_run, remove_scratch);
}
