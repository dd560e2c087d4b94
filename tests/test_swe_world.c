/* Episodes on repositories: what is said, what is shown, forks, and how they end. */
#include "tests/swe.h"

#include "envs/swebench/action.h"
#include "envs/swebench/swebench.h"

static gr_swe_settings settings;
static gr_envs* envs; /* the world of these settings, except where another one is played */

static const gr_obs* answer_of(int handle)
{
    gr_env_reply r;
    assert_true(gr_envs_poll(envs, &r, true));
    assert_int_equal(r.error, GR_ENV_OK);
    assert_int_equal(r.handle, handle);
    return r.obs;
}

static const gr_obs* act(int handle, const char* action)
{
    gr_envs_step(envs, handle, action, (int)strlen(action), 0);
    return answer_of(handle);
}

static const gr_obs* sh(int handle, const char* command)
{
    static char action[GR_ACTION_MAX + 1];
    (void)snprintf(action, sizeof action, "I look.\n```bash\n%s\n```\n", command);
    return act(handle, action);
}

/* A handle on the training task of this id, after its reset. */
static int begin(const char* id)
{
    for (int64_t task = 0; task < gr_envs_n_tasks(envs, GR_TRAIN); task++) {
        const gr_swe_instance* x = &tiny.instance[task + task / 3]; /* each fourth is held out */
        if (strcmp(x->id, id) != 0) continue;
        int h = gr_envs_reset(envs, GR_TRAIN, task, 1, 0);
        const gr_obs* o = answer_of(h);
        assert_string_equal(o->text, x->problem);
        assert_int_equal(o->end, GR_RUNNING);
        return h;
    }
    fail_msg("no training task `%s`", id);
    return -1;
}

#define MEND                                                                             \
    "sed -i 's/(merged\\[-1\\]\\[0\\], end)/(merged[-1][0], max(merged[-1][1], end))/' " \
    "intervals.py"

static void an_episode_that_solves(void** state)
{
    (void)state;
    int h = begin("tiny__intervals-1");
    const gr_obs* o = sh(h, "ls; echo out; echo err >&2; exit 3");
    assert_string_equal(o->text,
                        "exit status 3\nREADME.md\nintervals.py\ntest_intervals.py\nout\nerr\n");
    assert_true(o->valid && o->signal[4] == 1 && o->signal[0] == 0);
    uint64_t start = o->hash;
    o = sh(h, "cd /tmp; export X=1");
    o = sh(h, "pwd; echo $X-; cat intervals.py | head -1"); /* a new shell each time */
    assert_non_null(strstr(o->text, "exit status 0\n/testbed\n-\n\"\"\"Half-open"));
    o = sh(h, "python3 -c 'from intervals import merge; print(merge([(0, 10), (2, 3)]))'");
    assert_non_null(strstr(o->text, "[(0, 3)]"));
    assert_true(o->signal[1] == 1 && o->signal[2] == 0 && o->hash == start);
    o = sh(h, MEND);
    assert_string_equal(o->text, "exit status 0\n");
    assert_true(o->signal[2] == 1 && o->signal[0] == 1 && o->hash != start);
    o = sh(h, "submit");
    assert_string_equal(o->text, "Handed in.\n");
    assert_true(o->success && o->end == GR_END_TERMINAL);
    assert_true(o->reward == 1);
    gr_envs_free(envs, h);
}

static void an_episode_that_does_not(void** state)
{
    (void)state;
    int h = begin("tiny__intervals-1");
    const gr_obs* o = sh(h, "echo 'def broken(' >>intervals.py");
    assert_true(o->signal[2] == 0); /* changed, but no Python any more */
    o = sh(h, "echo 'def broken(' >>intervals.py");
    assert_true(o->signal[4] == 0.5); /* the same command again */
    o = sh(h, "git checkout -q . && git commit -q --allow-empty -m x; echo '# x' >>intervals.py; "
              "git commit -qam y");
    assert_true(o->signal[2] == 1); /* a commit does not hide a change */
    o = sh(h, " submit ");
    assert_true(!o->success && o->end == GR_END_TERMINAL && o->reward == 0);
    gr_envs_free(envs, h);
}

/* Tests that an agent edits do not count; those that it runs are a signal. */
static void tests_run_are_a_signal(void** state)
{
    (void)state;
    int h = begin("tiny__intervals-1");
    const char* add = "cat >test_new.py <<E\nfrom intervals import merge\n\n\ndef test_new():\n"
                      "    assert merge([(0, 9), (1, 2)]) == [(0, 9)]\nE\npython3 -m pytest -q";
    const gr_obs* o = sh(h, add);
    if (strstr(o->text, "1 failed, 4 passed") == NULL) fail_msg("%s", o->text);
    assert_true(o->signal[3] == 0);
    o = sh(h, MEND);
    assert_true(o->signal[3] == 0);
    o = sh(h, "python3 -m pytest -q");
    assert_non_null(strstr(o->text, "5 passed"));
    assert_true(o->signal[3] == 1);
    o = sh(h, "submit");
    assert_true(o->success);
    gr_envs_free(envs, h);
}

static void three_forks_diverge(void** state)
{
    (void)state;
    int h = begin("tiny__lru_cache-1"), child[3];
    const gr_obs* o = sh(h, "echo parent >note");
    uint64_t parent = o->hash, seen[3];
    char command[100];
    for (int i = 0; i < 3; i++) child[i] = gr_envs_fork(envs, h, (uint64_t)i);
    for (int i = 0; i < 3; i++) {
        assert_true(child[i] >= 0);
        (void)snprintf(command, sizeof command, "cat note; echo child %d >note", i);
        o = sh(child[i], command);
        assert_string_equal(o->text, "exit status 0\nparent\n");
        seen[i] = o->hash;
        assert_true(seen[i] != parent && (i == 0 || seen[i] != seen[i - 1]));
    }
    o = sh(h, "cat note");
    assert_string_equal(o->text, "exit status 0\nparent\n");
    assert_true(o->hash == parent);
    for (int i = 2; i >= 0; i--) {
        o = sh(child[i], "cat note");
        assert_true(o->hash == seen[i]);
        gr_envs_free(envs, child[i]);
    }
    gr_envs_free(envs, h);
}

static void what_is_no_turn_is_said(void** state)
{
    (void)state;
    static const char* const action[] = {"", "ls", "```\nls\n```\n", "```bash\nls\n",
                                         "```bash\nls\n```\n```bash\nls\n```\n"};
    int h = begin("tiny__intervals-1");
    for (int i = 0; i < GR_COUNT(action); i++) {
        const gr_obs* o = act(h, action[i]);
        assert_true(!o->valid && o->signal[5] == 0 && o->signal[4] == 1);
        assert_true(strncmp(o->text, "Not understood", 14) == 0);
    }
    const gr_obs* o = sh(h, "printf 'a\\0b\\377c\\n'");
    assert_string_equal(o->text, "exit status 0\na?b?c\n");
    for (int turn = GR_COUNT(action) + 1; turn < settings.max_turns; turn++) {
        assert_int_equal(o->end, GR_RUNNING);
        o = sh(h, "true");
    }
    assert_int_equal(o->end, GR_END_TIME_LIMIT);
    gr_envs_free(envs, h);
}

/* Of what is longer than settings.output, head and tail; what is said is as long as it likes. */
static void long_texts_keep_head_and_tail(void** state)
{
    (void)state;
    int h = begin("tiny__intervals-1"), n = 0;
    const gr_obs* o = sh(h, "seq 100000 110000");
    assert_int_equal(strncmp(o->text, "exit status 0\n100000\n100001\n", 28), 0);
    assert_string_equal(o->text + o->n_text - 14, "109999\n110000\n");
    assert_non_null(strstr(o->text, "\n[64007 bytes left out]\n"));
    assert_in_range(o->n_text, settings.output, gr_envs_world(envs)->obs_cap);
    static char command[9100];
    n = snprintf(command, sizeof command, "cat >long.txt <<'END'\n");
    memset(command + n, 'x', 8999);
    (void)snprintf(command + n + 8999, 40, "\nEND\nwc -c <long.txt");
    o = sh(h, command);
    assert_string_equal(o->text, "exit status 0\n9000\n");
    gr_envs_free(envs, h);
}

/* Where a world shows little and waits only a second. */
static void short_limits_are_kept(void** state)
{
    (void)state;
    gr_envs* usual = envs;
    gr_swe_settings small = settings;
    small.output = 200;
    small.command_s = 1;
    ASSERT_OK(gr_envs_open(&envs, &gr_world_swebench, &small, 1));
    int h = gr_envs_reset(envs, GR_TRAIN, 0, 1, 0);
    const gr_obs* o = answer_of(h);
    assert_true(strlen(tiny.instance[0].problem) > 200);
    assert_int_equal(strncmp(o->text, tiny.instance[0].problem, 200), 0);
    assert_string_equal(o->text + 200, "\n[the rest is left out]\n");
    o = sh(h, "sleep 100");
    assert_non_null(strstr(o->text, "the time was up"));
    gr_envs_close(envs);
    envs = usual;
}

/* Handles that are let go with a turn in flight, even while they are graded. */
static void handles_may_go_at_any_time(void** state)
{
    (void)state;
    for (int i = 0; i < 6; i++) {
        int h = begin("tiny__intervals-1");
        const char* action = i % 2 ? "```bash\nsubmit\n```\n" : "```bash\nsleep 1\n```\n";
        gr_envs_step(envs, h, action, (int)strlen(action), 0);
        gr_env_reply r;
        if (i > 3) {
            usleep(200000);
            (void)gr_envs_poll(envs, &r, false);
        }
        gr_envs_free(envs, h);
    }
    assert_int_equal(gr_envs_in_flight(envs), 0);
    int h = begin("tiny__intervals-1");
    assert_true(sh(h, "ls")->valid);
    gr_envs_free(envs, h);
}

static void texts_are_read(void** state)
{
    (void)state;
    int passed = 0, failed = 0;
    const char* issue = "In `pkg.shapes` the file wide.py is wrong; see area_of.";
    assert_true(gr_swe_action_opens("cat pkg/shapes.py", 17, issue));
    assert_true(gr_swe_action_opens("sed -n 1,5p wide.py", 19, issue));
    assert_false(gr_swe_action_opens("cat pkg/shape.py", 16, issue));
    assert_false(gr_swe_action_opens("cat wide.pyc", 12, issue));
    assert_true(gr_swe_action_tests("python3 try.py", 14));
    assert_false(gr_swe_action_tests("cat a.py", 8));
    static const char log[] = "1 failed\n== 2 failed, 11 passed, 1 error in 0.10s ==\n";
    assert_true(gr_swe_output_counts(log, sizeof log - 1, &passed, &failed));
    assert_true(passed == 11 && failed == 3);
    assert_false(gr_swe_output_counts("3 passed", 8, &passed, &failed));
}

static bool open_world(void)
{
    settings = tiny_settings("cache");
    settings.max_turns = 8;
    settings.output = 6000;
    settings.command_s = 20;
    (void)snprintf(settings.predictions, sizeof settings.predictions, "%s/out.jsonl", scratch);
    if (gr_envs_open(&envs, &gr_world_swebench, &settings, 8) == GR_OK) return true;
    printf("SKIPPED: %s\n", gr_last_error_text());
    return false;
}

/* What the episodes above handed in, as the official harness takes it. */
static void patches_are_on_record(void** state)
{
    (void)state;
    static char text[60000];
    FILE* f = fopen(settings.predictions, "rb");
    assert_non_null(f);
    size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = 0;
    assert_true(strncmp(text,
                        "{\"instance_id\":\"tiny__intervals-1\",\"model_name_or_path\":\"grove\","
                        "\"model_patch\":\"diff --git a/intervals.py b/intervals.py\\n",
                        121) == 0);
    int lines = 0;
    for (size_t i = 0; i < n; i++) lines += text[i] == '\n';
    assert_in_range(lines, 3, 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_are_read),
        cmocka_unit_test(an_episode_that_solves),
        cmocka_unit_test(an_episode_that_does_not),
        cmocka_unit_test(tests_run_are_a_signal),
        cmocka_unit_test(three_forks_diverge),
        cmocka_unit_test(what_is_no_turn_is_said),
        cmocka_unit_test(long_texts_keep_head_and_tail),
        cmocka_unit_test(short_limits_are_kept),
        cmocka_unit_test(handles_may_go_at_any_time),
        cmocka_unit_test(patches_are_on_record),
    };
    if (make_scratch(NULL) != 0 || gr_swe_read(&tiny, "envs/swe_tiny") != GR_OK) return 1;
    if (!open_world()) return remove_scratch(NULL);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    gr_envs_close(envs);
    gr_sandbox_stop();
    gr_swe_set_free(&tiny);
    (void)remove_scratch(NULL);
    return failed;
}
