/* The filters of `grove inspect`; how it draws is tested in test_train.c. Runs the built `grove` (GROVE_BIN). */
#include "tests/disk.h"

/* What `grove inspect` prints for the given trees.jsonl. */
static char* inspect(const char* log, size_t n, const char* option, int* status)
{
    char command[700];
    remove_all(scratch);
    assert_int_equal(mkdir(scratch, 0755), 0);
    spill(scratch, "trees.jsonl", log, n);
    (void)snprintf(command, sizeof command, "%s inspect %s %s >%s/out 2>%s/stderr", GROVE_BIN,
                   scratch, option, scratch, scratch);
    *status = WEXITSTATUS(system(command));
    return slurp(scratch, "out", NULL);
}

/* Random logs and filters: the trees that --json prints and the nodes that the drawing marks are those that
 * meet the filter, by the definition. */
static void filters_choose_trees_and_mark_nodes(void** state)
{
    (void)state;
    static const char* const statuses[] = {"loop", "pruned", "inner", "success"};
    enum { TREES = 8, NODES = 6 };
    int meeting = 0;
    for (uint64_t round = 0; round < 20; round++) {
        char log[8192], option[128];
        bool meets[TREES][NODES] = {{false}};
        int n = 0, status, score = (int)(gr_key_join(round, 1) % 10);
        const char* wanted = statuses[gr_key_join(round, 2) % 4];
        bool by_status = round % 3 != 0, by_score = round % 3 != 1;
        for (int t = 0; t < TREES; t++) {
            n += sprintf(log + n, "{\"step\": %d, \"group\": %d, \"nodes\": [", 1 + t / 4, t % 4);
            n += sprintf(log + n, "{\"id\": 0, \"parent\": -1, \"status\": \"inner\"}");
            for (int i = 1; i < NODES; i++) {
                uint64_t dice = gr_key_join(round, (uint64_t)(100 + t * NODES + i));
                const char* has = statuses[dice % 3];
                int x = (int)(dice >> 8 & 15);
                bool success = dice >> 16 & 1, scored = x < 10;
                n += sprintf(log + n,
                             ", {\"id\": %d, \"parent\": %d, \"status\": \"%s\", \"score\": ", i,
                             (int)(dice >> 20) & 1 ? i - 1 : 0, has);
                n += scored ? sprintf(log + n, "0.%d", x) : sprintf(log + n, "null");
                n += sprintf(log + n, ", \"success\": %s}", success ? "true" : "false");
                bool is = strcmp(wanted, "success") == 0 ? success : strcmp(wanted, has) == 0;
                meets[t][i] = (!by_status || is) && (!by_score || (scored && x >= score));
            }
            n += sprintf(log + n, "]}\n");
        }
        int length = 0;
        if (by_status) length += sprintf(option + length, " --status %s", wanted);
        if (by_score) length += sprintf(option + length, " --min-score 0.%d", score);
        for (int t = 0; t < TREES; t++) {
            int want = 0, marks = 0, lines = 0;
            for (int i = 1; i < NODES; i++) want += meets[t][i];
            (void)sprintf(option + length, " --step %d --group %d", 1 + t / 4, t % 4);
            char* out = inspect(log, (size_t)n, option, &status);
            assert_int_equal(status, want == 0);
            for (char* s = out; (s = strstr(s, "<--")) != NULL; s++) marks++;
            assert_int_equal(marks, want);
            free(out);
            (void)strcat(option, " --json");
            out = inspect(log, (size_t)n, option, &status);
            for (char* s = out; (s = strchr(s, '\n')) != NULL; s++) lines++;
            assert_int_equal(lines, want > 0);
            meeting += want > 0;
            free(out);
        }
    }
    assert_in_range(meeting, 20, 140);
}

static void bad_filters_are_refused(void** state)
{
    (void)state;
    static const char* const bad[][2] = {
        {"--status lop", "--status lop: no such status"},
        {"--min-score high", "--min-score high: no number"},
        {"--step 4x", "--step 4x: not a step"},
        {"--group -1", "--group -1: not a group"},
    };
    for (int i = 0; i < GR_COUNT(bad); i++) {
        int status;
        free(inspect("{}\n", 3, bad[i][0], &status));
        assert_int_equal(status, 1);
        char* text = slurp(scratch, "stderr", NULL);
        assert_non_null(strstr(text, bad[i][1]));
        free(text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(filters_choose_trees_and_mark_nodes),
        cmocka_unit_test(bad_filters_are_refused),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
