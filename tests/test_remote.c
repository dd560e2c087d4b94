/* test_remote.c - worlds in other processes, well-behaved and hostile. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cjson/cJSON.h>
#include <cmocka.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "envs/protocol.h"
#include "envs/remote.h"

#define ASSERT_OK(call)                                                \
    do {                                                               \
        gr_status got_ = (call);                                       \
        if (got_ != GR_OK) fail_msg("%s: %s", #call, gr_last_error()); \
    } while (0)
#define HOSTILE "exec python3 -S -E tests/hostile_world.py"

static int below(uint64_t key, uint64_t at, int n) { return (int)(gr_uniform(key, at) * n); }

/* ---- protocol: requests ---------------------------------------------------------------------- */

static cJSON* written(const gr_request_frame* r)
{
    char frame[GR_REQUEST_MAX];
    size_t n = gr_protocol_write(r, frame), n_body = 0;
    assert_int_equal(gr_protocol_frame(frame, n, &n_body), GR_FRAME_WHOLE);
    assert_int_equal(n_body + GR_FRAME_HEAD, n);
    cJSON* o = cJSON_ParseWithLength(frame + GR_FRAME_HEAD, n_body);
    assert_true(cJSON_IsObject(o));
    return o;
}

static const char* text_of(const cJSON* o, const char* key)
{
    return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(o, key));
}

static double number_of(const cJSON* o, const char* key)
{
    return cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(o, key));
}

static void requests_are_written_as_promised(void** state)
{
    (void)state;
    cJSON* o = written(&(gr_request_frame){.op = GR_OP_RESET,
                                           .id = 1ll << 40,
                                           .episode = 9,
                                           .split = GR_TEST,
                                           .task = 999999999999,
                                           .key = 0xfedcba9876543210});
    assert_string_equal(text_of(o, "op"), "reset");
    assert_string_equal(text_of(o, "split"), "test");
    assert_string_equal(text_of(o, "key"), "fedcba9876543210");
    assert_true(number_of(o, "id") == (double)(1ll << 40) && number_of(o, "episode") == 9);
    assert_true(number_of(o, "task") == 999999999999);
    cJSON_Delete(o);
    const struct {
        const char *bytes, *text;
        int n;
    } all[] = {
        {"left\n", "left\n", 5},
        {"\"\\\t\x01\n", "\"\\\t\x01\n", 5},
        {"\xc3\xa9\xe2\x82\xac\xf0\x9f\x8c\xb2", "\xc3\xa9\xe2\x82\xac\xf0\x9f\x8c\xb2", 9},
        {"a\0b",
         "a\xef\xbf\xbd"
         "b",
         3},
        {"\xc3", "\xef\xbf\xbd", 1},
        {"\xc0\x80", "\xef\xbf\xbd\xef\xbf\xbd", 2},
        {"\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd", 3},
        {"\xf4\x90\x80\x80x", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbdx", 5},
    };
    for (int i = 0; i < GR_COUNT(all); i++) {
        o = written(
            &(gr_request_frame){.op = GR_OP_STEP, .action = all[i].bytes, .n_action = all[i].n});
        assert_string_equal(text_of(o, "action"), all[i].text);
        cJSON_Delete(o);
    }
    char longest[GR_ACTION_MAX + 1]; /* fits whatever the bytes are */
    for (int byte = 0; byte < 256; byte++) {
        memset(longest, byte, sizeof longest);
        cJSON_Delete(written(
            &(gr_request_frame){.op = GR_OP_STEP, .action = longest, .n_action = sizeof longest}));
    }
}

/* ---- protocol: answers ----------------------------------------------------------------------- */

static void a_frame_is_whole_when_its_last_byte_is_there(void** state)
{
    (void)state;
    char bytes[600] = {0};
    size_t n_body = 0;
    for (size_t length = 0; length < 500; length++) {
        bytes[2] = (char)(length >> 8);
        bytes[3] = (char)length;
        for (size_t n = 0; n < 520; n++) {
            gr_frame_state expected = n < 4            ? GR_FRAME_PARTIAL
                                      : length == 0    ? GR_FRAME_BAD
                                      : n < length + 4 ? GR_FRAME_PARTIAL
                                                       : GR_FRAME_WHOLE;
            assert_int_equal(gr_protocol_frame(bytes, n, &n_body), expected);
            if (expected == GR_FRAME_WHOLE) assert_int_equal(n_body, length);
        }
    }
    const unsigned char most[] = {0, 0x10, 0, 0}, more[] = {0, 0x10, 0, 1},
                        all[] = {255, 255, 255, 255};
    assert_int_equal(gr_protocol_frame(most, 4, &n_body), GR_FRAME_PARTIAL);
    assert_int_equal(gr_protocol_frame(more, 4, &n_body), GR_FRAME_BAD);
    assert_int_equal(gr_protocol_frame(all, 4, &n_body), GR_FRAME_BAD);
}

static gr_answer answer;
static const gr_hello two_signals = {.n_signals = 2, .hash = true, .text_max = 5000};
#define OBS                                                                          \
    "{\"id\":7,\"text\":\"hi\\n\",\"reward\":-1.5,\"success\":true,\"valid\":false," \
    "\"end\":\"time_limit\",\"signals\":[1,0.25],\"hash\":\"00000000000000ff\",\"more\":[{}]}"
#define HELLO                                                                      \
    "{\"id\":7,\"version\":1,\"prompt\":\"go\",\"stop\":\"\\n\",\"action_cap\":8," \
    "\"horizon\":20,\"signals\":[\"near\",\"new\"],\"fork\":true,\"hash\":false}"
#define TASKS "{\"id\":7,\"train\":1000000000000,\"test\":0,\"warmstart\":3}"

static gr_answer_kind read_as(gr_op op, const char* body)
{
    return gr_protocol_read(body, strlen(body), op, 7, &two_signals, &answer);
}

/* `body` with the first `from` replaced by `to`. */
static gr_answer_kind read_changed(gr_op op, const char* body, const char* from, const char* to)
{
    char text[8192];
    const char* at = strstr(body, from);
    assert_non_null(at);
    (void)snprintf(text, sizeof text, "%.*s%s%s", (int)(at - body), body, to, at + strlen(from));
    return read_as(op, text);
}

static void answers_carry_their_fields(void** state)
{
    (void)state;
    assert_int_equal(read_as(GR_OP_STEP, OBS), GR_ANSWER_GOOD);
    const gr_obs* o = &answer.obs;
    assert_string_equal(o->text, "hi\n");
    assert_true(o->n_text == 3 && o->reward == -1.5 && o->success && !o->valid);
    assert_true(o->end == GR_END_TIME_LIMIT && o->hash == 255);
    assert_true(o->signal[0] == 1 && o->signal[1] == 0.25 && o->signal[2] == 0);
    assert_int_equal(read_as(GR_OP_HELLO, HELLO), GR_ANSWER_GOOD);
    const gr_hello* h = &answer.hello;
    assert_string_equal(h->prompt, "go");
    assert_string_equal(h->stop, "\n");
    assert_string_equal(h->signal[1], "new");
    assert_true(h->n_signals == 2 && h->action_cap == 8 && h->horizon == 20);
    assert_true(h->fork && !h->hash && h->text_max == GR_TEXT_LIMIT);
    assert_int_equal(read_changed(GR_OP_HELLO, HELLO, "{", "{\"text_max\":77,"), GR_ANSWER_GOOD);
    assert_int_equal(answer.hello.text_max, 77);
    assert_int_equal(read_as(GR_OP_TASKS, TASKS), GR_ANSWER_GOOD);
    assert_true(answer.n_tasks[GR_TRAIN] == 1000000000000 && answer.n_tasks[GR_WARMSTART] == 3);
    assert_int_equal(read_as(GR_OP_FORK, "{\"id\":7}"), GR_ANSWER_GOOD);
    assert_int_equal(read_as(GR_OP_CLOSE, " {\"id\":7.0} \n"), GR_ANSWER_GOOD);
    assert_int_equal(read_as(GR_OP_FORK, "{\"id\":7,\"error\":\"no\"}"), GR_ANSWER_REFUSED);
    assert_string_equal(answer.reason, "no");
    gr_hello none = {.text_max = 1}; /* neither signals nor a hash are due: the text is hashed */
    const char* bare = "{\"id\":7,\"text\":\"a\",\"reward\":0,\"success\":false,\"valid\":true,"
                       "\"end\":\"running\"}";
    assert_int_equal(gr_protocol_read(bare, strlen(bare), GR_OP_RESET, 7, &none, &answer),
                     GR_ANSWER_GOOD);
    assert_true(answer.obs.hash == gr_hash64("a", 1, 0));
    assert_int_equal(read_as(GR_OP_RESET, bare), GR_ANSWER_WRONG);
}

static void answers_that_are_wrong_are_told_from_nonsense(void** state)
{
    (void)state;
    const struct {
        gr_op op;
        const char *body, *from, *to;
    } wrong[] = {
        {GR_OP_STEP, OBS, "\"text\"", "\"txt\""},
        {GR_OP_STEP, OBS, "\"hi\\n\"", "5"},
        {GR_OP_STEP, OBS, "-1.5", "\"-1.5\""},
        {GR_OP_STEP, OBS, "-1.5", "1e999"},
        {GR_OP_STEP, OBS, "-1.5", "null"},
        {GR_OP_STEP, OBS, "true", "1"},
        {GR_OP_STEP, OBS, "time_limit", "timelimit"},
        {GR_OP_STEP, OBS, "\"time_limit\"", "2"},
        {GR_OP_STEP, OBS, "[1,0.25]", "[1]"},
        {GR_OP_STEP, OBS, "[1,0.25]", "[1,2,3,4,5,6,7,8,9,10]"},
        {GR_OP_STEP, OBS, "0.25]", "\"a\"]"},
        {GR_OP_STEP, OBS, "[1,0.25]", "{\"near\":1,\"new\":2}"},
        {GR_OP_STEP, OBS, "00ff", "0xff"},
        {GR_OP_STEP, OBS, "00ff", "ff"},
        {GR_OP_STEP, OBS, "00ff", "00000ff"},
        {GR_OP_HELLO, HELLO, "\"version\":1", "\"version\":2"},
        {GR_OP_HELLO, HELLO, "\"version\":1", "\"versions\":1"},
        {GR_OP_HELLO, HELLO, "\"\\n\"", "\"\""},
        {GR_OP_HELLO, HELLO, "\"action_cap\":8", "\"action_cap\":0"},
        {GR_OP_HELLO, HELLO, "\"action_cap\":8", "\"action_cap\":16384"},
        {GR_OP_HELLO, HELLO, "\"fork\":true", "\"fork\":true,\"text_max\":0"},
        {GR_OP_HELLO, HELLO, "\"fork\":true", "\"fork\":true,\"text_max\":131072"},
        {GR_OP_HELLO, HELLO, "\"fork\":true", "\"fork\":true,\"text_max\":\"7\""},
        {GR_OP_HELLO, HELLO, "\"horizon\":20", "\"horizon\":2.5"},
        {GR_OP_HELLO, HELLO, "[\"near\",\"new\"]", "\"near\""},
        {GR_OP_HELLO, HELLO, "\"near\"", "\"\""},
        {GR_OP_HELLO, HELLO, "\"near\"", "1,2,3,4,5,6,7,8"},
        {GR_OP_HELLO, HELLO, "\"fork\":true", "\"fork\":\"yes\""},
        {GR_OP_TASKS, TASKS, "1000000000000", "0"},
        {GR_OP_TASKS, TASKS, "1000000000000", "1e18"},
        {GR_OP_TASKS, TASKS, "\"test\"", "\"tests\""},
        {GR_OP_TASKS, TASKS, ":3", ":-3"},
    };
    for (int i = 0; i < GR_COUNT(wrong); i++) {
        if (read_changed(wrong[i].op, wrong[i].body, wrong[i].from, wrong[i].to) !=
            GR_ANSWER_WRONG) {
            fail_msg("%s instead of %s", wrong[i].to, wrong[i].from);
        }
        assert_true(answer.reason[0] != 0);
    }
    char text[5002];
    memset(text, 'x', sizeof text);
    text[two_signals.text_max] = 0;
    assert_int_equal(read_changed(GR_OP_STEP, OBS, "hi\\n", text), GR_ANSWER_GOOD);
    assert_int_equal(answer.obs.n_text, two_signals.text_max);
    text[two_signals.text_max] = 'x';
    text[two_signals.text_max + 1] = 0;
    assert_int_equal(read_changed(GR_OP_STEP, OBS, "hi\\n", text), GR_ANSWER_WRONG);
    const char* nonsense[] = {
        "",
        "{",
        "[]",
        "7",
        "null",
        "{\"id\":8}",
        "{}",
        "{\"id\":7}{}",
        "{\"id\":7}x",
        "{\"id\":\"7\"}",
        "{\"id\":7.5}",
        "{\"id\":\xff}",
        "{\"id\":7,\"text\":\"\xed\xa0\x80\"}",
        "{\"id\":7,\"text\":\"\\ud800\"}",
        "{\"id\":7,}",
    };
    for (int i = 0; i < GR_COUNT(nonsense); i++) {
        if (read_as(GR_OP_STEP, nonsense[i]) != GR_ANSWER_NONSENSE) fail_msg("%s", nonsense[i]);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t n); /* fuzz_protocol.c */

/* Its corpus, cut anywhere and with bytes changed; the address sanitizer sees what is read too
 * far. */
static void damaged_answers_do_no_harm(void** state)
{
    (void)state;
    const char* name[] = {"step", "hello", "tasks", "refused"};
    for (int i = 0; i < GR_COUNT(name); i++) {
        char path[64];
        uint8_t whole[1024], data[1024];
        (void)snprintf(path, sizeof path, "tests/corpus/fuzz_protocol/%s", name[i]);
        FILE* f = fopen(path, "rb");
        assert_non_null(f);
        int n = (int)fread(whole, 1, sizeof whole, f);
        fclose(f);
        assert_in_range(n, 10, 1000);
        for (uint64_t k = 0; k < 5000; k++) {
            memcpy(data, whole, (size_t)n);
            for (uint64_t c = 0; c < k % 5; c++) {
                data[below(k, c, n)] = (uint8_t) "\"{}[]:,\0\n9e-u\xc3\xff"[below(k, 9 + c, 16)];
            }
            (void)LLVMFuzzerTestOneInput(data, k < (uint64_t)n ? (size_t)k : (size_t)n);
        }
    }
}

/* ---- a pool and what the hostile world should say -------------------------------------------- */

static gr_envs* open_world(const char* command, int workers, double deadline_s, int max_handles)
{
    gr_remote_settings s = {.workers = workers, .deadline_s = deadline_s, .start_deadline_s = 60};
    (void)snprintf(s.command, sizeof s.command, "%s", command);
    gr_envs* e = NULL;
    ASSERT_OK(gr_envs_open(&e, &gr_world_remote, &s, max_handles));
    return e;
}

static uint64_t mix(uint64_t state, const char* text)
{
    for (; *text != 0; text++) state = (state ^ (unsigned char)*text) * 0x100000001b3u;
    return state;
}

static uint64_t mix_reset(int64_t task, uint64_t key)
{
    char text[64];
    (void)snprintf(text, sizeof text, "train/%lld/%016llx", (long long)task,
                   (unsigned long long)key);
    return mix(0xcbf29ce484222325u, text);
}

static uint64_t mix_fork(uint64_t state, uint64_t key)
{
    char text[17] = "";
    if (key != 0) (void)snprintf(text, sizeof text, "%016llx", (unsigned long long)key);
    return mix(state, text);
}

static void step(gr_envs* e, int h, const char* action)
{
    gr_envs_step(e, h, action, (int)strlen(action), (uint64_t)h);
}

static void check_text(const gr_env_reply* r, uint64_t expected)
{
    char text[32];
    (void)snprintf(text, sizeof text, "%016llx\n", (unsigned long long)expected);
    assert_int_equal(r->error, GR_ENV_OK);
    assert_string_equal(r->obs->text, text);
}

/* Waits for the only request in flight. */
static gr_env_reply wait_for(gr_envs* e, int h)
{
    gr_env_reply r;
    assert_int_equal(gr_envs_in_flight(e), 1);
    assert_true(gr_envs_poll(e, &r, true));
    assert_int_equal(r.handle, h);
    assert_int_equal(r.tag, h);
    return r;
}

static int reset(gr_envs* e, int64_t task, uint64_t key)
{
    int expected = gr_envs_reset(e, GR_TRAIN, task, key, 0);
    gr_env_reply r;
    assert_true(gr_envs_poll(e, &r, true));
    assert_int_equal(r.handle, expected);
    check_text(&r, mix_reset(task, key));
    return r.handle;
}

static void assert_no_children_left(void)
{
    assert_true(waitpid(-1, NULL, WNOHANG) < 0 && errno == ECHILD);
}

/* ---- well-behaved worlds --------------------------------------------------------------------- */

static void the_example_world_is_played_to_its_end(void** state)
{
    (void)state;
    gr_envs* e = open_world("exec python3 -S -E envs/example_world.py", 2, 60, 8);
    const gr_world* w = gr_envs_world(e);
    assert_string_equal(w->prompt, "Guess a number from 1 to 1000.\n");
    assert_string_equal(w->stop, "\n");
    assert_string_equal(w->signal[0], "known");
    assert_true(w->n_signals == 1 && w->action_cap == 5 && w->demonstrate == NULL);
    assert_int_equal(gr_envs_horizon(e), 12);
    assert_int_equal(gr_envs_n_tasks(e, GR_TRAIN), 900);
    assert_int_equal(gr_envs_n_tasks(e, GR_TEST), 100);
    for (int64_t task = 0; task < 100; task += 33) {
        int h = gr_envs_reset(e, GR_TEST, task, 1, 0), low = 1, high = 1000;
        gr_env_reply r;
        assert_true(gr_envs_poll(e, &r, true));
        assert_null(gr_envs_state(e, h));
        double known = -1;
        while (r.obs->end == GR_RUNNING) {
            assert_true(r.error == GR_ENV_OK && r.obs->valid && r.obs->reward == 0);
            assert_true(r.obs->signal[0] > known);
            known = r.obs->signal[0];
            int middle = (low + high) / 2;
            char guess[16];
            (void)snprintf(guess, sizeof guess, "%d\n", middle);
            step(e, h, guess);
            r = wait_for(e, h);
            if (strcmp(r.obs->text, "higher\n") == 0) low = middle + 1;
            if (strcmp(r.obs->text, "lower\n") == 0) high = middle - 1;
        }
        assert_int_equal(r.obs->end, GR_END_TERMINAL);
        assert_true(r.obs->success && r.obs->reward == 1);
        gr_envs_free(e, h);
    }
    int h = gr_envs_reset(e, GR_TEST, 100, 1, 0); /* there is no such task */
    gr_env_reply r;
    assert_true(gr_envs_poll(e, &r, true));
    assert_int_equal(r.error, GR_ENV_REFUSED);
    assert_int_equal(r.obs->n_text, 0);
    gr_envs_free(e, h);
    gr_envs_close(e);
    assert_no_children_left();
}

/* One handle forks before every step, as rollouts do; the parents are freed. */
static void a_chain_of_forks_costs_no_more_than_its_steps(void** state)
{
    (void)state;
    const char* command[] = {HOSTILE, HOSTILE " nofork"};
    for (int k = 0; k < 2; k++) {
        gr_envs* e = open_world(command[k], 1, 60, 4);
        int h = reset(e, 1, 2);
        double first = 0;
        for (int i = 0; i < 30; i++) {
            int child = gr_envs_fork(e, h, 0);
            gr_envs_free(e, h);
            step(e, h = child, "id?\n");
            gr_env_reply r = wait_for(e, h);
            double id = strtod(r.obs->text, NULL);
            if (i == 0) first = id;
            assert_true(id == first + i);
        }
        gr_envs_close(e);
    }
}

static void deadlines_run_from_when_it_is_ones_turn(void** state)
{
    (void)state;
    gr_envs* e = open_world(HOSTILE, 1, 1.0, 8);
    int h[8];
    for (int i = 0; i < 8; i++) h[i] = reset(e, i, 0);
    for (int i = 0; i < 8; i++) step(e, h[i], "nap\n"); /* 1.6 s altogether */
    for (int i = 0; i < 8; i++) {
        gr_env_reply r;
        assert_true(gr_envs_poll(e, &r, true));
        check_text(&r, mix(mix_reset(r.handle, 0), "nap\n"));
    }
    step(e, h[0], "x\n"); /* answered at once, but not looked at for long */
    usleep(1200000);
    gr_env_reply r = wait_for(e, h[0]);
    assert_int_equal(r.error, GR_ENV_OK);
    assert_false(gr_envs_poll(e, &r, true));
    gr_envs_close(e);
}

/* ---- hostile worlds -------------------------------------------------------------------------- */

static const struct {
    const char* action;
    gr_env_error error;
} harm[] = {
    {"exit\n", GR_ENV_CRASH},       {"segv\n", GR_ENV_CRASH},     {"mute\n", GR_ENV_CRASH},
    {"half\n", GR_ENV_CRASH},       {"giant\n", GR_ENV_PROTOCOL}, {"flood\n", GR_ENV_PROTOCOL},
    {"zero\n", GR_ENV_PROTOCOL},    {"text\n", GR_ENV_PROTOCOL},  {"junk\n", GR_ENV_PROTOCOL},
    {"tail\n", GR_ENV_PROTOCOL},    {"list\n", GR_ENV_PROTOCOL},  {"deep\n", GR_ENV_PROTOCOL},
    {"latin\n", GR_ENV_PROTOCOL},   {"id\n", GR_ENV_PROTOCOL},    {"noid\n", GR_ENV_PROTOCOL},
    {"types\n", GR_ENV_PROTOCOL},   {"nan\n", GR_ENV_PROTOCOL},   {"end\n", GR_ENV_PROTOCOL},
    {"signals\n", GR_ENV_PROTOCOL}, {"long\n", GR_ENV_PROTOCOL},  {"missing\n", GR_ENV_PROTOCOL},
    {"refuse\n", GR_ENV_REFUSED},   {"hang\n", GR_ENV_TIMEOUT},   {"stall\n", GR_ENV_TIMEOUT},
};
enum { N_HARM = GR_COUNT(harm), N_QUICK_HARM = N_HARM - 2 };

/* Six episodes on two processes: the third does harm in the midst of the others' steps. */
static void harm_costs_only_its_own_trajectory(void** state)
{
    (void)state;
    enum { N = 6 };
    gr_envs* e = open_world(HOSTILE, 2, 1.0, N);
    for (int k = 0; k < N_HARM; k++) {
        int h[N], failed = 0;
        uint64_t mirror[N];
        for (int i = 0; i < N; i++) {
            h[i] = reset(e, i, (uint64_t)k);
            mirror[h[i]] = mix_reset(i, (uint64_t)k);
        }
        double begin = gr_now_s();
        for (int turn = 0; turn < 3; turn++) {
            for (int i = 0; i < N; i++) {
                if (turn == 2 && i == 2) continue;
                const char* action = turn == 1 && i == 2 ? harm[k].action : "go\n";
                mirror[h[i]] = mix(mirror[h[i]], action);
                step(e, h[i], action);
            }
            gr_env_reply r;
            while (gr_envs_poll(e, &r, true)) {
                if (r.handle == h[2] && turn == 1) {
                    if (r.error != harm[k].error) fail_msg("%s: error %d", harm[k].action, r.error);
                    assert_int_equal(r.obs->n_text, 0);
                    failed++;
                } else {
                    check_text(&r, mirror[r.handle]);
                }
            }
        }
        assert_int_equal(failed, 1);
        if (harm[k].error == GR_ENV_TIMEOUT) assert_true(gr_now_s() - begin >= 1.0);
        for (int i = N - 1; i >= 0; i--) gr_envs_free(e, h[i]);
    }
    gr_envs_close(e);
    assert_no_children_left();
}

/* Two answers to one request: once nothing is owed, nobody is to blame for the second. */
static void answers_nobody_asked_for_end_the_process(void** state)
{
    (void)state;
    gr_envs* e = open_world(HOSTILE, 1, 60, 4);
    int a = reset(e, 1, 0), b = reset(e, 2, 0);
    step(e, a, "twice\n");
    gr_env_reply r = wait_for(e, a);
    check_text(&r, mix(mix_reset(1, 0), "twice\n"));
    gr_envs_free(e, a);
    usleep(300000);
    assert_false(gr_envs_poll(e, &r, false));
    step(e, b, "go\n");
    r = wait_for(e, b);
    check_text(&r, mix(mix_reset(2, 0), "go\n"));
    gr_envs_close(e);
}

/* An answer that is in the pipe when its process dies counts, even if a write fails before it is
 * read. */
static void answers_outlive_their_process(void** state)
{
    (void)state;
    gr_envs* e = open_world(HOSTILE, 1, 60, 4);
    int h[4];
    for (int i = 0; i < 4; i++) h[i] = reset(e, i, 0);
    step(e, h[0], "go\n");
    step(e, h[1], "exit\n");
    usleep(300000);
    step(e, h[2], "go\n");
    step(e, h[3], "go\n");
    gr_env_reply r;
    for (int i = 0; i < 4; i++) {
        assert_true(gr_envs_poll(e, &r, true));
        if (r.handle == h[1])
            assert_int_equal(r.error, GR_ENV_CRASH);
        else
            check_text(&r, mix(mix_reset(r.handle, 0), "go\n"));
    }
    gr_envs_close(e);
}

/* Random requests against a mirror of every handle's state. */
static void play_at_random(gr_envs* e, bool forks, uint64_t seed, int rounds, int harm_every)
{
    enum { CAP = 20, NOT_USED = 0, IDLE, BUSY, BROKEN };
    int use[CAP] = {0}, in_flight = 0, harmed = 0;
    uint64_t mirror[CAP] = {0};
    gr_env_error expected[CAP] = {GR_ENV_OK};
    char action[16];
    for (uint64_t k = 0; k < (uint64_t)rounds; k++) {
        int h = below(seed, 4 * k, CAP), what = below(seed, 4 * k + 1, 10);
        uint64_t key = (uint64_t)below(seed, 4 * k + 2, 3);
        gr_env_reply r;
        if (what == 0) {
            int got = gr_envs_reset(e, GR_TRAIN, (int64_t)k % 1000, key, k);
            if (got < 0) continue;
            use[got] = BUSY;
            mirror[got] = mix_reset((int64_t)k % 1000, key);
            expected[got] = GR_ENV_OK;
            in_flight++;
        } else if (what <= 2 && use[h] == IDLE) {
            int got = gr_envs_fork(e, h, key);
            if (got < 0) continue;
            use[got] = IDLE;
            mirror[got] = mix_fork(mirror[h], forks ? key : 0);
        } else if (what <= 5 && use[h] == IDLE) {
            int bad = harm_every > 0 && below(seed, 4 * k + 3, harm_every) == 0;
            int which = below(seed, 4 * k + 2, N_QUICK_HARM);
            expected[h] = bad ? harm[which].error : GR_ENV_OK;
            harmed += bad;
            (void)snprintf(action, sizeof action, "step %d\n", (int)key);
            if (bad) (void)snprintf(action, sizeof action, "%s", harm[which].action);
            mirror[h] = mix(mirror[h], action);
            step(e, h, action);
            use[h] = BUSY;
            in_flight++;
        } else if (what == 6 && use[h] != NOT_USED) {
            in_flight -= use[h] == BUSY;
            gr_envs_free(e, h);
            use[h] = NOT_USED;
        } else if (what >= 7 && gr_envs_poll(e, &r, what == 9)) {
            assert_int_equal(use[r.handle], BUSY);
            assert_int_equal(r.error, expected[r.handle]);
            if (r.error == GR_ENV_OK) check_text(&r, mirror[r.handle]);
            use[r.handle] = r.error == GR_ENV_OK ? IDLE : BROKEN;
            in_flight--;
        } else if (what == 9) {
            assert_int_equal(in_flight, 0); /* a poll that waits has something to tell */
        }
        assert_int_equal(gr_envs_in_flight(e), in_flight);
    }
    if (harm_every > 0) assert_true(harmed > 10);
    for (int h = 0; h < CAP; h++) {
        if (use[h] != NOT_USED) gr_envs_free(e, h);
    }
}

static void any_order_of_requests_gives_the_states_it_should(void** state)
{
    (void)state;
    gr_envs* e = open_world(HOSTILE, 3, 60, 20);
    play_at_random(e, true, 1, 4000, 0);
    play_at_random(e, true, 2, 2000, 12); /* with harm among them */
    gr_envs_close(e);
    e = open_world(HOSTILE " nofork nohash", 2, 60, 20);
    play_at_random(e, false, 3, 4000, 0);
    play_at_random(e, false, 4, 2000, 12);
    gr_envs_close(e);
    assert_no_children_left();
}

static void a_world_that_is_not_repeatable_is_found_out(void** state)
{
    (void)state;
    gr_envs* e = open_world(HOSTILE, 1, 60, 4);
    int a = reset(e, 1, 0), b = reset(e, 2, 0);
    step(e, a, "pid\n");
    assert_int_equal(wait_for(e, a).error, GR_ENV_OK);
    step(e, b, "exit\n"); /* a must move to another process, which has another pid */
    assert_int_equal(wait_for(e, b).error, GR_ENV_CRASH);
    step(e, a, "go\n");
    assert_int_equal(wait_for(e, a).error, GR_ENV_PROTOCOL);
    gr_envs_close(e);
}

static void a_bad_start_is_an_error_with_a_reason(void** state)
{
    (void)state;
    const struct {
        const char *command, *reason;
    } all[] = {
        {"", "empty"},
        {"exit 7", "status 7"},
        {"/no/such/world", "status 127"},
        {HOSTILE " hello=junk", "JSON"},
        {HOSTILE " hello=version", "version"},
        {HOSTILE " hello=refuse", "not today"},
        {HOSTILE " hello=segv", "signal 11"},
        {HOSTILE " hello=hang", "within 0.7 s"},
        {"echo hello, world", "frame of"},
        {"exec cat", "prompt"}, /* says what it hears */
    };
    for (int i = 0; i < GR_COUNT(all); i++) {
        gr_remote_settings s = {.workers = 1, .deadline_s = 60, .start_deadline_s = 60};
        if (strstr(all[i].command, "hang") != NULL) s.start_deadline_s = 0.7;
        (void)snprintf(s.command, sizeof s.command, "%s", all[i].command);
        gr_envs* e = NULL;
        gr_status st = gr_envs_open(&e, &gr_world_remote, &s, 4);
        assert_int_equal(st, i == 0 ? GR_EARG : GR_EIO);
        assert_null(e);
        assert_non_null(strstr(gr_last_error(), "remote.command"));
        if (strstr(gr_last_error(), all[i].reason) == NULL) {
            fail_msg("%s: %s", all[i].command, gr_last_error());
        }
    }
    assert_no_children_left();
}

static void restart_in_vain(const char* hello)
{
    char command[200], file[] = "/tmp/grove-test-XXXXXX";
    int fd = mkstemp(file);
    assert_true(fd >= 0);
    close(fd);
    unlink(file);
    (void)snprintf(command, sizeof command, HOSTILE " hello=%s later=%s", hello, file);
    gr_envs* e = open_world(command, 1, 60, 8);
    int h[4];
    for (int i = 0; i < 4; i++) h[i] = reset(e, i, 0);
    for (int i = 0; i < 4; i++) step(e, h[i], i == 0 ? "segv\n" : "go\n");
    gr_env_reply r;
    for (int i = 0; i < 4; i++) {
        assert_true(gr_envs_poll(e, &r, true));
        assert_int_equal(r.error, GR_ENV_CRASH);
    }
    int given_up = gr_envs_reset(e, GR_TRAIN, 0, 0, 0), more = gr_envs_reset(e, GR_TRAIN, 0, 0, 0);
    gr_envs_free(e, given_up);
    assert_true(gr_envs_poll(e, &r, true));
    assert_true(r.handle == more && r.error == GR_ENV_CRASH);
    assert_false(gr_envs_poll(e, &r, true));
    gr_envs_close(e);
    unlink(file);
}

static void a_world_that_cannot_start_again_fails_all_but_hangs_nobody(void** state)
{
    (void)state;
    restart_in_vain("exit");
    restart_in_vain("version");
    assert_no_children_left();
}

/* True once the process is gone or waits only to be reaped by whoever adopted it. */
static bool is_dead(int pid)
{
    char path[64], text[256] = "";
    (void)snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE* f = fopen(path, "r");
    if (f == NULL) return true;
    (void)fgets(text, sizeof text, f);
    fclose(f);
    const char* after_name = strrchr(text, ')');
    return after_name != NULL && (after_name[2] == 'Z' || after_name[2] == 'X');
}

static void nothing_a_world_started_outlives_it(void** state)
{
    (void)state;
    const char* ends[] = {"exit\n", "hang\n", "go\n"};
    for (int k = 0; k < GR_COUNT(ends); k++) {
        gr_envs* e = open_world(HOSTILE, 1, 1.0, 4);
        int h = reset(e, 1, 0);
        step(e, h, "child\n");
        int child = atoi(wait_for(e, h).obs->text);
        assert_true(child > 1 && !is_dead(child));
        step(e, h, ends[k]);
        gr_env_error error = wait_for(e, h).error;
        assert_int_equal(error, k == 0 ? GR_ENV_CRASH : k == 1 ? GR_ENV_TIMEOUT : GR_ENV_OK);
        gr_envs_close(e);
        for (int i = 0; i < 5000 && !is_dead(child); i++) usleep(1000);
        assert_true(is_dead(child));
    }
    assert_no_children_left();
}

static void handles_can_be_dropped_at_any_time(void** state)
{
    (void)state;
    gr_envs* e = open_world(HOSTILE, 2, 60, 8);
    for (int k = 0; k < 50; k++) {
        int b = reset(e, k, 1), a = gr_envs_reset(e, GR_TRAIN, k, 0, 0);
        step(e, b, "go\n");
        gr_envs_free(e, b);
        gr_envs_free(e, a);
        assert_int_equal(gr_envs_in_flight(e), 0);
        gr_env_reply r;
        assert_false(gr_envs_poll(e, &r, true));
    }
    (void)gr_envs_reset(e, GR_TRAIN, 0, 0, 0); /* closed with a request in flight */
    gr_envs_close(e);
    e = open_world(HOSTILE, 2, 60, 8);
    step(e, reset(e, 0, 0), "hang\n"); /* and with a process that would never answer */
    gr_envs_close(e);
    assert_no_children_left();
}

/* Injected failures of the outside world: an error of somebody at most, never a hang or a wrong
 * state. */
static void failures_of_pipes_and_starts_are_survived(void** state)
{
    (void)state;
    const char* place[] = {"worker.start", "worker.write", "worker.read"};
    for (int i = 0; i < 3 * 4; i++) {
        char spec[64];
        gr_envs* e = open_world(HOSTILE, 1, 60, 4);
        int a = reset(e, 1, 0), b = reset(e, 2, 0);
        (void)snprintf(spec, sizeof spec, "%s:%d", place[i % 3], 1 + i / 3);
        gr_fault_set(spec);
        uint64_t mirror[4];
        mirror[a] = mix_reset(1, 0);
        mirror[b] = mix_reset(2, 0);
        int errors = 0;
        for (int turn = 0; turn < 5 && errors == 0; turn++) {
            const char* action = turn == 2 && i % 3 == 0 ? "exit\n" : "go\n"; /* forces a start */
            step(e, a, action);
            step(e, b, "go\n");
            mirror[a] = mix(mirror[a], action);
            mirror[b] = mix(mirror[b], "go\n");
            gr_env_reply r;
            while (gr_envs_poll(e, &r, true)) {
                if (r.error == GR_ENV_OK)
                    check_text(&r, mirror[r.handle]);
                else
                    errors++;
            }
        }
        assert_true(errors <= 1);
        gr_fault_set(NULL);
        gr_envs_close(e);
    }
    gr_fault_set("worker.start:1");
    gr_remote_settings s = {
        .command = HOSTILE, .workers = 1, .deadline_s = 1, .start_deadline_s = 1};
    gr_envs* e = NULL;
    assert_int_equal(gr_envs_open(&e, &gr_world_remote, &s, 4), GR_EIO);
    gr_fault_set(NULL);
    assert_no_children_left();
}

int main(void)
{
    const struct CMUnitTest pure[] = {
        cmocka_unit_test(requests_are_written_as_promised),
        cmocka_unit_test(a_frame_is_whole_when_its_last_byte_is_there),
        cmocka_unit_test(answers_carry_their_fields),
        cmocka_unit_test(answers_that_are_wrong_are_told_from_nonsense),
        cmocka_unit_test(damaged_answers_do_no_harm),
    };
    const struct CMUnitTest processes[] = {
        cmocka_unit_test(the_example_world_is_played_to_its_end),
        cmocka_unit_test(a_chain_of_forks_costs_no_more_than_its_steps),
        cmocka_unit_test(deadlines_run_from_when_it_is_ones_turn),
        cmocka_unit_test(harm_costs_only_its_own_trajectory),
        cmocka_unit_test(answers_nobody_asked_for_end_the_process),
        cmocka_unit_test(answers_outlive_their_process),
        cmocka_unit_test(any_order_of_requests_gives_the_states_it_should),
        cmocka_unit_test(a_world_that_is_not_repeatable_is_found_out),
        cmocka_unit_test(a_bad_start_is_an_error_with_a_reason),
        cmocka_unit_test(a_world_that_cannot_start_again_fails_all_but_hangs_nobody),
        cmocka_unit_test(nothing_a_world_started_outlives_it),
        cmocka_unit_test(handles_can_be_dropped_at_any_time),
        cmocka_unit_test(failures_of_pipes_and_starts_are_survived),
    };
    int failed = cmocka_run_group_tests_name("protocol", pure, NULL, NULL);
    if (system("python3 -S -E -c 'import json'") != 0) {
        fprintf(stderr, "no python3: worlds in other processes are not tested\n");
        return failed;
    }
    return failed + cmocka_run_group_tests_name("processes", processes, NULL, NULL);
}
