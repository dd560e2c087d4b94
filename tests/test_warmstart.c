/* The supervised start where episodes fill a micro-batch to the last token. Runs the built `grove` (GROVE_BIN), so that
 * a write past the end is the allocator's or the sanitizer's to see. */
#include "tests/disk.h"

static const char settings[] =
    "{\"run\": {\"name\": \"t\", \"steps\": 1},"
    " \"model\": {\"layers\": 1, \"width\": 16, \"heads\": 1, \"kv_heads\": 1, \"mlp\": 24, "
    "\"vocab\": 256},"
    " \"frozenlake\": {\"size\": 3, \"hole_prob\": 0.1, \"max_turns\": 5},"
    " \"warmstart\": {\"steps\": 2, \"batch\": 40},"
    " \"rollout\": {\"group\": 2, \"groups_per_step\": 1, \"max_turn_tokens\": 6},"
    " \"checkpoint\": {\"every\": 0}, \"eval\": {\"tasks\": 0}, \"log\": {\"quiet\": true}}";

/* With the prompt of a format in words, an episode begins with 100 to 150 tokens at once. */
static void episodes_with_a_prompt_stay_inside_the_batch(void** state)
{
    (void)state;
    for (int tokens = 400; tokens < 700; tokens += 23) {
        char command[700];
        remove_all(scratch);
        assert_int_equal(mkdir(scratch, 0755), 0);
        spill(scratch, "c.json", settings, sizeof settings - 1);
        (void)snprintf(command, sizeof command,
                       "%s train %s/c.json run.dir=%s device.threads=1 frozenlake.format=%s "
                       "rollout.max_context=400 optimizer.microbatch_tokens=%d >%s/out 2>&1",
                       GROVE_BIN, scratch, scratch, tokens % 2 ? "coord" : "grid", tokens, scratch);
        int status = system(command);
        if (status != 0) {
            char* text = slurp(scratch, "out", NULL);
            fail_msg("microbatch_tokens %d: status %d: %s", tokens, status, text);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(episodes_with_a_prompt_stay_inside_the_batch),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
