/* The oracle scorer: hidden tests judge the state behind a node, for training alone.
 *
 * First by hand, on trees whose share of the tests is known; then in a run of PATR with the policy
 * of swe_play.h, where the way to a node says what its score must be. */
#include "tests/swe_play.h"

#include <cjson/cJSON.h>

#define STEPS 2

static gr_envs* envs;

static const gr_obs* answer_of(int handle)
{
    gr_env_reply r;
    assert_true(gr_envs_poll(envs, &r, true));
    assert_int_equal(r.error, GR_ENV_OK);
    assert_int_equal(r.handle, handle);
    return r.obs;
}

static uint64_t sh(int handle, const char* command)
{
    static char action[GR_ACTION_MAX + 1];
    int n = snprintf(action, sizeof action, "```bash\n%s\n```\n", command);
    gr_envs_step(envs, handle, action, n, 0);
    const gr_obs* o = answer_of(handle);
    if (strncmp(o->text, "exit status 0\n", 14) != 0) fail_msg("%s: %s", command, o->text);
    return o->hash;
}

/* A training task of this id after its reset. */
static int begin(const char* id)
{
    int64_t task = find_tiny(id);
    int h = gr_envs_reset(envs, GR_TRAIN, task - (task + 1) / 4, 1, 0);
    (void)answer_of(h);
    return h;
}

static double judge(int handle)
{
    double met = -1;
    gr_envs_judge(envs, &handle, 1, &met);
    return met;
}

/* One half of the gold patch's effect is worth what the tests say, and damage is worth less. */
static void states_are_worth_what_the_tests_say(void** state)
{
    (void)state;
    const gr_swe_instance* x = &tiny.instance[find_tiny("tiny__intervals-1")];
    static char mend[GR_ACTION_MAX];
    (void)snprintf(mend, sizeof mend, "git apply - <<'END'\n%sEND", x->gold);
    int h[5];
    h[0] = begin(x->id); /* as it was */
    for (int i = 1; i < 5; i++) h[i] = gr_envs_fork(envs, h[0], (uint64_t)i);
    uint64_t mended = sh(h[1], mend);
    (void)sh(h[2], "sed -i 's/^def merge/def merged/' intervals.py"); /* breaks what went well */
    (void)sh(h[3], "for f in test_*.py; do echo 'def test_x(): pass' >$f; done");
    (void)sh(h[4], mend);
    (void)sh(h[4], "echo 'def (' >>intervals.py");
    double met[5];
    gr_envs_judge(envs, h, 5, met);
    assert_true(met[0] == 0 && met[1] == 1 && met[2] == 0 && met[3] == 0 && met[4] == 0);
    assert_true(x->pass_to_pass.n > 0);
    assert_true(sh(h[1], "true") == mended); /* judging leaves no trace */
    assert_true(judge(h[1]) == 1);
    for (int i = 0; i < 5; i++) gr_envs_free(envs, h[i]);
}

/* Answers of other episodes are kept while hidden tests run. */
static void other_episodes_go_on(void** state)
{
    (void)state;
    int h = begin("tiny__intervals-1"), other = begin("tiny__csv_line-1");
    (void)sh(h, "echo '# a comment' >>intervals.py");
    const char* action = "```bash\necho here\n```\n";
    gr_envs_step(envs, other, action, (int)strlen(action), 0);
    assert_true(judge(h) == 0);
    assert_string_equal(answer_of(other)->text, "exit status 0\nhere\n");
    gr_envs_free(envs, h);
    gr_envs_free(envs, other);
}

static bool open_world(void)
{
    static gr_swe_settings s;
    s = tiny_settings("tiny");
    s.output = 600;
    s.sandbox.running = 16;
    ASSERT_OK(gr_swe_read(&tiny, "envs/swe_tiny"));
    if (gr_envs_open(&envs, &gr_world_swebench, &s, 8) == GR_OK) return true;
    printf("SKIPPED: %s\n", gr_last_error_text());
    return false;
}

/* ---- a run ------------------------------------------------------------------------------- */

typedef struct walk { /* what a path has done to its tree */
    bool mended, spoiled;
} walk;

static double number(const cJSON* o, const char* key)
{
    const cJSON* item = cJSON_GetObjectItemCaseSensitive(o, key);
    return cJSON_IsNumber(item) ? item->valuedouble : -1;
}

/* Number of scored nodes; each has the score that its path gives it. */
static int check_scores(const cJSON* tree, int* solved)
{
    static walk w[512];
    const cJSON* x;
    int i = 0, n = 0;
    cJSON_ArrayForEach(x, cJSON_GetObjectItem(tree, "nodes"))
    {
        assert_true(i < GR_COUNT(w));
        int parent = (int)number(x, "parent");
        w[i] = parent < 0 ? (walk){0} : w[parent];
        const cJSON* token = cJSON_GetArrayItem(cJSON_GetObjectItem(x, "tokens"), 0);
        if (token != NULL) {
            char byte = (char)token->valueint;
            int move = move_of(&byte, 1);
            w[i].mended = w[i].mended || move == MEND;
            w[i].spoiled = w[i].spoiled || move == SPOIL;
        }
        double score = number(x, "score"), expected = w[i].mended && !w[i].spoiled;
        if (score >= 0) {
            if (score != expected) fail_msg("node %d: %g instead of %g", i, score, expected);
            *solved += expected == 1;
            n++;
        }
        i++;
    }
    return n;
}

static void scores_are_those_of_the_tests_and_are_charged(void** state)
{
    (void)state;
    char path[200];
    int scored = 0, solved = 0;
    (void)snprintf(path, sizeof path, "%s/patr", scratch);
    char *text = slurp(path, "trees.jsonl", NULL), *rest = NULL;
    for (char* line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        cJSON* tree = cJSON_Parse(line);
        scored += check_scores(tree, &solved);
        cJSON_Delete(tree);
    }
    free(text);
    assert_true(solved > 0 && scored > solved);
    assert_int_equal(run.state.scorer_calls, scored);
    assert_int_equal(run.state.charged_turns, run.state.env_turns + scored);
}

/* ---- what is said and refused ------------------------------------------------------------ */

static int program(const char* words, char* out, size_t cap)
{
    char command[600];
    (void)snprintf(command, sizeof command, "%s %s 2>%s/err >/dev/null", GROVE_BIN, words, scratch);
    int status = system(command);
    char* text = slurp(scratch, "err", NULL);
    (void)snprintf(out, cap, "%s", text);
    free(text);
    return WEXITSTATUS(status);
}

static void it_is_announced_and_refused_where_it_must_not_be(void** state)
{
    (void)state;
    char words[300], text[2000];
    (void)snprintf(words, sizeof words, "eval %s/patr", scratch);
    assert_int_equal(program(words, text, sizeof text), 1);
    assert_non_null(strstr(text, "scorer.name = hidden_tests knows what judges the tasks"));
    assert_int_equal(program("train configs/frozenlake_patr.json scorer.name=hidden_tests "
                             "run.dir=/tmp/none",
                             text, sizeof text),
                     1);
    assert_non_null(strstr(text, "hidden_tests: the world `frozenlake` has no hidden tests"));
    assert_int_equal(program("train configs/swe_tiny.json scorer.name=hidden_tests --dry-run", text,
                             sizeof text),
                     0);
    assert_non_null(strstr(text, "hidden tests that judge: for training alone"));
}

int main(void)
{
    const struct CMUnitTest by_hand[] = {
        cmocka_unit_test(states_are_worth_what_the_tests_say),
        cmocka_unit_test(other_episodes_go_on),
    };
    const struct CMUnitTest in_a_run[] = {
        cmocka_unit_test(scores_are_those_of_the_tests_and_are_charged),
        cmocka_unit_test(it_is_announced_and_refused_where_it_must_not_be),
    };
    static const char* const more[] = {"scorer.name=hidden_tests", "rollout.groups_per_step=2"};
    gr_world world;
    int failed = 0;
    if (gr_sandbox_prestart() != GR_OK || make_scratch(NULL) != 0) return 1;
    if (open_world()) {
        failed = cmocka_run_group_tests(by_hand, NULL, NULL);
        gr_envs_close(envs);
        make_tasks();
        if (!open_run(STEPS, GR_COUNT(more), more)) fail_msg("%s", gr_last_error());
        play_for_the_model(&world);
        lose_one_task();
        hush();
        gr_status st = gr_train(&run);
        free(loud());
        if (st != GR_OK) fail_msg("%s", gr_last_error());
        failed += cmocka_run_group_tests(in_a_run, NULL, NULL);
        gr_run_close(&run);
        gr_config_free(&config);
    }
    gr_sandbox_stop();
    gr_swe_set_free(&tiny);
    gr_swe_set_free(&tasks);
    (void)remove_scratch(NULL);
    return failed;
}
