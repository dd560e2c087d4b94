/* test_sandbox_wire.c - what needs no sandbox: messages as pure functions of bytes, and what is
 * written into control groups of either version. */
#include "tests/disk.h"

#include <sys/resource.h>

#include "envs/sandbox/limits.h"
#include "envs/sandbox/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t n); /* fuzz_sandbox.c */

static int below(uint64_t key, uint64_t at, int n) { return (int)(gr_uniform(key, at) * n); }

/* Text of random bytes without NUL, some of them no UTF-8. */
static char* random_text(uint64_t key, int most)
{
    int n = below(key, 0, most);
    char* text = malloc((size_t)n + 1);
    for (int i = 0; i < n; i++) text[i] = (char)(1 + below(key, (uint64_t)i + 1, 255));
    text[n] = 0;
    return text;
}

static void requests_are_read_as_they_were_written(void** state)
{
    (void)state;
    for (uint64_t round = 0; round < 400; round++) {
        uint64_t key = gr_key_join(11, round);
        char* text[6];
        for (int i = 0; i < 6; i++) text[i] = random_text(gr_key_join(key, (uint64_t)i), 60);
        char tree[80], at[80];
        (void)snprintf(tree, sizeof tree, "/%s", text[0]);
        (void)snprintf(at, sizeof at, "/%s", text[1]);
        const char* const list[] = {text[2], text[3], NULL};
        const char* const read[] = {tree, at, NULL};
        gr_wire_request in = {
            .id = 1 + below(key, 1, 1 << 30),
            .op = (gr_sandbox_op)(1 + below(key, 2, GR_N_SANDBOX_OPS - 1)),
            .sandbox = 1 + below(key, 3, 1000),
            .to = 1 + below(key, 4, 1000),
            .tree = {.tree = tree,
                     .at = at,
                     .work = below(key, 12, 2) ? tree : NULL,
                     .read = below(key, 5, 2) ? read : NULL},
            .command = {.argv = list,
                        .env = below(key, 6, 2) ? list : NULL,
                        .cwd = below(key, 7, 2) ? text[4] : NULL,
                        .input = below(key, 8, 2) ? text[5] : NULL,
                        .n_input = strlen(text[5]),
                        .time_s = below(key, 9, 100000) / 1024.0,
                        .head = below(key, 10, 10000),
                        .tail = below(key, 11, 10000)},
        };
        gr_wire_bytes b = {0};
        size_t n_body = 0;
        gr_wire_request out;
        gr_wire_write_request(&b, &in);
        for (size_t n = 0; n < b.n; n += 1 + b.n / 7) {
            assert_int_equal(gr_wire_frame(&(gr_wire_bytes){b.data, n, b.cap}, &n_body), 0);
        }
        assert_int_equal(gr_wire_frame(&b, &n_body), 1);
        assert_int_equal(n_body + 4, b.n);
        ASSERT_OK(gr_wire_read_request(b.data + 4, n_body, &out));
        assert_int_equal(out.id, in.id);
        assert_int_equal(out.op, in.op);
        if (in.op != GR_SANDBOX_PING) assert_int_equal(out.sandbox, in.sandbox);
        if (in.op == GR_SANDBOX_FORK) assert_int_equal(out.to, in.to);
        if (in.op == GR_SANDBOX_CREATE) {
            assert_string_equal(out.tree.tree, tree);
            assert_string_equal(out.tree.at, at);
            assert_int_equal(out.tree.work != NULL, in.tree.work != NULL);
            if (out.tree.work != NULL) assert_string_equal(out.tree.work, tree);
            assert_int_equal(out.tree.read != NULL, in.tree.read != NULL);
            if (out.tree.read != NULL) assert_string_equal(out.tree.read[1], at);
        }
        if (in.op == GR_SANDBOX_RUN) {
            const gr_sandbox_command *c = &out.command, *d = &in.command;
            assert_string_equal(c->argv[0], text[2]);
            assert_string_equal(c->argv[1], text[3]);
            assert_null(c->argv[2]);
            assert_int_equal(c->env != NULL, d->env != NULL);
            assert_int_equal(c->cwd != NULL, d->cwd != NULL);
            if (c->cwd != NULL) assert_string_equal(c->cwd, d->cwd);
            assert_int_equal(c->input != NULL, d->input != NULL);
            if (c->input != NULL) assert_memory_equal(c->input, d->input, d->n_input);
            if (c->input != NULL) assert_int_equal(c->n_input, d->n_input);
            assert_true(c->time_s == d->time_s && c->head == d->head && c->tail == d->tail);
        }
        gr_wire_free_request(&out);
        free(b.data);
        for (int i = 0; i < 6; i++) free(text[i]);
    }
}

static void replies_are_read_as_they_were_written(void** state)
{
    (void)state;
    const gr_wire_hello told = {"root", "overlay", "v2", "nothing is \"missing\""};
    for (uint64_t round = 0; round < 400; round++) {
        uint64_t key = gr_key_join(12, round);
        char* text = random_text(key, 200);
        size_t n = strlen(text), n_body = 0;
        gr_sandbox_reply in = {
            .request = 1 + below(key, 1000, 1 << 30),
            .op = (gr_sandbox_op)below(key, 1001, GR_N_SANDBOX_OPS),
            .error = below(key, 1002, 3) ? GR_SANDBOX_OK
                                         : (gr_sandbox_class)below(key, 1003, GR_N_SANDBOX_CLASSES),
            .cause = (gr_sandbox_cause)below(key, 1004, GR_N_SANDBOX_CAUSES),
            .code = below(key, 1005, 256),
            .seconds = below(key, 1006, 100000) / 1024.0,
            .n_all = (int64_t)n + below(key, 1007, 1 << 30),
            .output = text,
            .n_output = n,
            .n_head = (size_t)below(key, 1008, (int)n + 1),
            .hash = gr_key_join(key, 9),
        };
        (void)snprintf(in.reason, sizeof in.reason, "%.99s", text);
        gr_sandbox_reply out = {0};
        gr_wire_bytes b = {0};
        gr_wire_hello hello;
        gr_wire_write_reply(&b, &in, in.op == GR_SANDBOX_HELLO ? &told : NULL);
        assert_int_equal(gr_wire_frame(&b, &n_body), 1);
        ASSERT_OK(gr_wire_read_reply(b.data + 4, n_body, &out, &hello));
        assert_int_equal(out.request, in.request);
        assert_int_equal(out.error, in.error);
        if (in.error != GR_SANDBOX_OK) {
            assert_string_equal(out.reason, in.reason);
        } else if (in.op == GR_SANDBOX_RUN) {
            assert_int_equal(out.cause, in.cause);
            assert_int_equal(out.code, in.code);
            assert_true(out.seconds == in.seconds && out.n_all == in.n_all);
            assert_true(out.n_head == in.n_head && out.n_output == n);
            assert_memory_equal(out.output, text, n);
        } else if (in.op == GR_SANDBOX_HASH) {
            assert_true(out.hash == in.hash);
        } else if (in.op == GR_SANDBOX_HELLO) {
            assert_memory_equal(&hello, &told, sizeof hello);
        }
        free(b.data);
        free(text);
    }
}

static void limits_travel_whole_and_in_range(void** state)
{
    (void)state;
    gr_sandbox_settings s;
    gr_wire_request out;
    gr_wire_bytes b = {0};
    size_t n_body = 0;
    gr_sandbox_defaults(&s);
    assert_int_equal(s.live, 256);
    s.live = 77;
    s.cpus = 0.3;
    s.memory_mb = 1 << 24;
    (void)snprintf(s.cgroup, sizeof s.cgroup, "/a \"b\"");
    gr_wire_write_request(&b, &(gr_wire_request){.id = 1, .limits = &s, .secret = "s"});
    assert_int_equal(gr_wire_frame(&b, &n_body), 1);
    ASSERT_OK(gr_wire_read_request(b.data + 4, n_body, &out));
    assert_memory_equal(out.limits, &s, sizeof s);
    assert_string_equal(out.secret, "s");
    gr_wire_free_request(&out);
    free(b.data);
    static const char* const wrong[] = {
        "{\"id\":1,\"op\":\"hello\",\"version\":2}",
        "{\"id\":1,\"op\":\"hello\",\"version\":1,\"limits\":{\"live\":0}}",
        "{\"id\":1,\"op\":\"hello\",\"version\":1,\"limits\":{\"pids\":2.5}}",
        "{\"id\":1,\"op\":\"hello\",\"version\":1,\"limits\":{\"cgroup\":3}}",
        "{\"id\":1,\"op\":\"create\",\"sandbox\":1,\"tree\":\"x\",\"at\":\"/\"}",
        "{\"id\":1,\"op\":\"create\",\"sandbox\":1,\"tree\":\"/x\",\"at\":\"/\",\"read\":[\"y\"]}",
        "{\"id\":1,\"op\":\"run\",\"sandbox\":1,\"argv\":[],\"time_s\":1,\"head\":1,\"tail\":1}",
        "{\"id\":1,\"op\":\"run\",\"sandbox\":1,\"argv\":[1],\"time_s\":1,\"head\":1,\"tail\":1}",
        "{\"id\":1,\"op\":\"run\",\"sandbox\":1,\"argv\":[\"a\"],\"time_s\":1,\"head\":1e9,"
        "\"tail\":1}",
        "{\"id\":1,\"op\":\"run\",\"sandbox\":1,\"argv\":[\"a\"],\"time_s\":-1,\"head\":1,\"tail\":"
        "1}",
        "{\"id\":1,\"op\":\"fork\",\"sandbox\":1}",
        "{\"id\":0,\"op\":\"ping\"}",
        "{\"id\":1,\"op\":\"dance\"}",
        "[1]",
        "",
    };
    for (int i = 0; i < GR_COUNT(wrong); i++) {
        assert_int_equal(gr_wire_read_request(wrong[i], strlen(wrong[i]), &out), GR_EDATA);
        assert_true(is_one_line(gr_last_error_text()));
    }
}

/* The fuzzer's own inputs, and damaged ones made from them. */
static void damaged_messages_do_no_harm(void** state)
{
    (void)state;
    const char* dir = "tests/corpus/fuzz_sandbox";
    DIR* d = opendir(dir);
    assert_non_null(d);
    int files = 0;
    for (const struct dirent* e; (e = readdir(d)) != NULL;) {
        size_t n = 0;
        if (e->d_name[0] == '.') continue;
        char* bytes = slurp(dir, e->d_name, &n);
        files++;
        for (uint64_t round = 0; round < 2000; round++) {
            uint64_t key = gr_key_join(gr_key_join(13, round), (uint64_t)files);
            char* damaged = malloc(n);
            memcpy(damaged, bytes, n);
            for (int i = below(key, 0, 4); i > 0; i--) {
                damaged[below(key, (uint64_t)(2 * i), (int)n)] =
                    (char)below(key, (uint64_t)(2 * i + 1), 256);
            }
            size_t cut = below(key, 99, 2) ? (size_t)below(key, 98, (int)n + 1) : n;
            (void)LLVMFuzzerTestOneInput((const uint8_t*)damaged, cut);
            free(damaged);
        }
        free(bytes);
    }
    (void)closedir(d);
    assert_true(files >= 4);
}

/* ---- control groups, as files in a folder ---------------------------------------------------- */

static char hierarchy[80];

static void plant(const char* folder, const char* const* files)
{
    char path[200];
    (void)snprintf(path, sizeof path, "%s/%s", hierarchy, folder);
    (void)mkdir(path, 0755);
    for (; *files != NULL; files++) spill(path, *files, "", 0);
}

static void expect_file(const char* file, const char* expected)
{
    char* text = slurp(hierarchy, file, NULL);
    if (text == NULL || strcmp(text, expected) != 0) {
        fail_msg("%s: `%s`, not `%s`", file, text != NULL ? text : "(none)", expected);
    }
    free(text);
}

static gr_groups open_planted(const char* mounts, char* notice, size_t cap)
{
    gr_groups g;
    char path[120];
    spill(scratch, "mounts", mounts, strlen(mounts));
    (void)snprintf(path, sizeof path, "%s/mounts", scratch);
    gr_groups_open(&g, path, "/in", "run", notice, cap);
    return g;
}

static void version_2_groups_get_their_limits(void** state)
{
    (void)state;
    static const char* const control[] = {"cgroup.subtree_control", NULL};
    static const char* const one[] = {
        "memory.max", "memory.swap.max", "memory.oom.group", "pids.max",
        "cpu.max",    "cgroup.procs",    "memory.events",    NULL};
    char mounts[300], notice[200] = "";
    (void)snprintf(hierarchy, sizeof hierarchy, "%s/v2", scratch);
    plant("", control);
    plant("in", control);
    plant("in/run", control);
    plant("in/run/7", one);
    (void)snprintf(mounts, sizeof mounts, "proc /proc proc rw 0 0\ncgroup2 %s cgroup2 rw 0 0\n",
                   hierarchy);
    spill(hierarchy, "cgroup.controllers", "cpuset cpu io memory\n", 21);
    gr_groups g = open_planted(mounts, notice, sizeof notice);
    assert_int_equal(g.version, 2);
    assert_string_equal(notice, "no control group here for pids"); /* it is not handed down here */
    spill(hierarchy, "cgroup.controllers", "cpuset cpu io memory pids\n", 26);
    notice[0] = 0;
    g = open_planted(mounts, notice, sizeof notice);
    assert_string_equal(notice, "");
    gr_sandbox_settings s;
    gr_sandbox_defaults(&s);
    s.memory_mb = 64;
    s.pids = 33;
    s.cpus = 1.5;
    ASSERT_OK(gr_group_make(&g, 7, &s));
    ASSERT_OK(gr_group_enter(&g, 7, 4242));
    expect_file("in/run/7/memory.max", "67108864");
    expect_file("in/run/7/memory.swap.max", "0");
    expect_file("in/run/7/memory.oom.group", "1");
    expect_file("in/run/7/pids.max", "33");
    expect_file("in/run/7/cpu.max", "150000 100000");
    expect_file("in/run/7/cgroup.procs", "4242");
    spill(hierarchy, "in/run/7/memory.events",
          "low 0\nmax 9\noom 1\noom_kill 3\noom_group_kill 1\n", 47);
    assert_int_equal(gr_group_kills(&g, 7), 3);
}

static void without_groups_limits_are_those_of_processes(void** state)
{
    (void)state;
    char notice[200] = "";
    gr_groups g = open_planted("proc /proc proc rw 0 0\n", notice, sizeof notice);
    assert_int_equal(g.version, 0);
    assert_string_equal(notice, "no control group here for memory, pids, cpu");
    pid_t pid = fork();
    if (pid == 0) {
        struct rlimit r[3];
        gr_sandbox_settings s;
        gr_sandbox_defaults(&s);
        s.memory_mb = 512;
        gr_limits_apply(&g, &s);
        (void)getrlimit(RLIMIT_AS, &r[0]);
        (void)getrlimit(RLIMIT_NPROC, &r[1]);
        (void)getrlimit(RLIMIT_FSIZE, &r[2]);
        _exit(r[0].rlim_max != 512u << 20 || r[1].rlim_max != 256 || r[2].rlim_cur != 512u << 20);
    }
    assert_int_equal(wait_for(pid), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_are_read_as_they_were_written),
        cmocka_unit_test(replies_are_read_as_they_were_written),
        cmocka_unit_test(limits_travel_whole_and_in_range),
        cmocka_unit_test(damaged_messages_do_no_harm),
        cmocka_unit_test(version_2_groups_get_their_limits),
        cmocka_unit_test(without_groups_limits_are_those_of_processes),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
