/* What a run shows while it works: for a person, for a program, or nothing. Runs the built `grove` (GROVE_BIN). */
#include "tests/disk.h"

#include <cjson/cJSON.h>
#include <math.h>

static const char tiny[] =
    "{\"run\": {\"name\": \"t\", \"seed\": 5, \"steps\": 4},"
    " \"model\": {\"layers\": 1, \"width\": 16, \"heads\": 1, \"kv_heads\": 1, \"mlp\": 24, "
    "\"vocab\": 256},"
    " \"frozenlake\": {\"size\": 3, \"hole_prob\": 0.1, \"max_turns\": 4},"
    " \"warmstart\": {\"steps\": 3, \"batch\": 4},"
    " \"rollout\": {\"group\": 2, \"groups_per_step\": 2, \"max_turn_tokens\": 6, \"max_context\": "
    "128},"
    " \"optimizer\": {\"microbatch_tokens\": 512}, \"checkpoint\": {\"every\": 0},"
    " \"eval\": {\"tasks\": 4, \"every\": 2, \"greedy\": true}}";

/* Trains a fresh run; what it printed is in the files out and err of the scratch. */
static int train(const char* words)
{
    char command[700];
    remove_all(scratch);
    assert_int_equal(mkdir(scratch, 0755), 0);
    spill(scratch, "c.json", tiny, sizeof tiny - 1);
    (void)snprintf(command, sizeof command,
                   "%s train %s/c.json run.dir=%s device.threads=1 %s >%s/out 2>%s/err", GROVE_BIN,
                   scratch, scratch, words, scratch, scratch);
    int status = system(command);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* True if both lines say the same of a name each: a number, or nothing. */
static bool agree(const cJSON* a, const char* name_a, const cJSON* b, const char* name_b)
{
    const cJSON* x = cJSON_GetObjectItemCaseSensitive(a, name_a);
    const cJSON* y = cJSON_GetObjectItemCaseSensitive(b, name_b);
    assert_non_null(x);
    if (!cJSON_IsNumber(y)) return cJSON_IsNull(x);
    return cJSON_IsNumber(x) && x->valuedouble == y->valuedouble;
}

static double number(const cJSON* o, const char* name)
{
    const cJSON* item = cJSON_GetObjectItemCaseSensitive(o, name);
    return cJSON_IsNumber(item) ? item->valuedouble : (double)NAN;
}

/* Splits text into lines that must be objects; returns their number. */
static int parse_lines(char* text, cJSON** object, int cap)
{
    int n = 0;
    for (char* line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        assert_true(n < cap);
        object[n] = cJSON_ParseWithOpts(line, NULL, true);
        assert_true(cJSON_IsObject(object[n]));
        n++;
    }
    return n;
}

static void programs_read_every_step(void** state)
{
    (void)state;
    cJSON *shown[32], *logged[32];
    assert_int_equal(train("log.json=true"), 0);
    char* out = slurp(scratch, "out", NULL);
    char* metrics = slurp(scratch, "t/metrics.jsonl", NULL);
    int n = parse_lines(out, shown, 32), n_logged = parse_lines(metrics, logged, 32), at = 0;
    assert_int_equal(n_logged, 5);
    while (cJSON_HasObjectItem(shown[at], "warmstart")) at++;
    assert_int_equal(at, 3);
    assert_int_equal(n, at + n_logged + 1);
    for (int i = 0; i < n_logged; i++) {
        const cJSON *a = shown[at + i], *b = logged[i];
        assert_true(agree(a, "step", b, "step"));
        assert_true(agree(a, "reward", b, "reward/mean"));
        assert_true(agree(a, "success", b, "eval/success"));
        assert_true(agree(a, "success_greedy", b, "eval/success_greedy"));
        assert_true(agree(a, "gen_tok_s", b, "perf/gen_tok_s"));
        assert_true(agree(a, "token_ratio", b, "tree/token_ratio"));
        assert_true(number(a, "share") == i / 4.0);
    }
    const cJSON *end = shown[n - 1], *last = logged[n_logged - 1];
    assert_true(number(end, "steps") == 4);
    assert_true(agree(end, "env_turns", last, "budget/env_turns"));
    assert_true(agree(end, "gen_tokens", last, "budget/gen_tokens"));
    assert_true(agree(end, "success_first", logged[0], "eval/success"));
    assert_true(agree(end, "success_last", last, "eval/success"));
    for (int i = 0; i < n; i++) cJSON_Delete(shown[i]);
    for (int i = 0; i < n_logged; i++) cJSON_Delete(logged[i]);
    char* err = slurp(scratch, "err", NULL);
    assert_string_equal(err, "");
    free(err);
    free(metrics);
    free(out);
}

static void people_read_lines_and_a_table(void** state)
{
    (void)state;
    assert_int_equal(train(""), 0);
    char *out = slurp(scratch, "out", NULL), *err = slurp(scratch, "err", NULL);
    static const char* const parts[] = {"step 4",           "held-out ", " tok/s",
                                        "sharing x",        "eta ",      "held-out success",
                                        "environment turns"};
    for (int i = 0; i < GR_COUNT(parts); i++) {
        if (strstr(err, parts[i]) == NULL) fail_msg("no `%s` in: %s", parts[i], err);
    }
    assert_string_equal(out, "");
    free(out);
    free(err);
}

static void quiet_is_quiet(void** state)
{
    (void)state;
    assert_int_equal(train("log.quiet=true"), 0);
    char *out = slurp(scratch, "out", NULL), *err = slurp(scratch, "err", NULL);
    assert_string_equal(out, "");
    assert_string_equal(err, "");
    free(out);
    free(err);
    assert_int_equal(train("log.quiet=true log.json=true"), 1);
    err = slurp(scratch, "err", NULL);
    assert_non_null(strstr(err, "log.json has no effect"));
    free(err);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(programs_read_every_step),
        cmocka_unit_test(people_read_lines_and_a_table),
        cmocka_unit_test(quiet_is_quiet),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
