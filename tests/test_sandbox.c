/* test_sandbox.c - what a sandbox is to those who use it: commands, files, forks, refusals. What it
 * holds back is in test_sandbox_hold.c. */
#include "tests/sandbox.h"

static int below(uint64_t key, uint64_t at, int n) { return (int)(gr_uniform(key, at) * n); }

static gr_sandbox* box; /* the connection that most tests share */

/* ---- commands -------------------------------------------------------------------------------- */

static void a_command_has_its_code_and_output(void** state)
{
    (void)state;
    gr_sandbox_reply r = create(box, 1);
    ASSERT_REPLY(&r);
    expect_sh(box, 1, "exit 3", 3, "");
    expect_sh(box, 1, "echo out; echo err >&2; exit 255", 255, "out\nerr\n");
    expect_sh(box, 1, "kill -9 $$", 137, "");
    expect_sh(box, 1, "kill -TERM $$", 143, "");
    expect_sh(box, 1, "pwd; cat src/a.py link; id -un", 0, "/testbed\na = 1\na = 1\nroot\n");
    expect_sh(box, 1, "echo $HOME $HIDDEN; test -w $HOME && test -w /tmp", 0, "/root\n");
    expect_sh(box, 1, "(exit 1) & wait; sleep 60 & echo done", 0, "done\n"); /* and no waiting */
    r = sh(box, 1, "exec /no/such/program");
    ASSERT_REPLY(&r);
    assert_int_equal(r.code, 127);
    r = end(box, 1);
    ASSERT_REPLY(&r);
}

static void a_command_has_its_input_environment_and_folder(void** state)
{
    (void)state;
    static char big[3 << 20];
    gr_sandbox_reply r = create(box, 1);
    ASSERT_REPLY(&r);
    const char* const cat[] = {"cat", NULL};
    const char* const env[] = {"HIDDEN=no=t", "no value", "LANG=x", NULL};
    const char* const show[] = {"sh", "-c", "pwd; echo $HIDDEN $LANG; cat", NULL};
    for (size_t i = 0; i < sizeof big; i++) big[i] = (char)(i * 7 + i / 251);
    gr_sandbox_command c = {.argv = cat, .input = big, .n_input = sizeof big, .time_s = 120};
    c.head = sizeof big;
    gr_sandbox_wait(box, gr_sandbox_run(box, 1, &c), &r);
    ASSERT_REPLY(&r);
    assert_true(r.n_output == sizeof big && memcmp(r.output, big, sizeof big) == 0);
    c = (gr_sandbox_command){
        .argv = show, .env = env, .cwd = "/testbed/src", .input = "", .time_s = 120, .head = 100};
    gr_sandbox_wait(box, gr_sandbox_run(box, 1, &c), &r);
    ASSERT_REPLY(&r);
    assert_int_equal(r.n_output, strlen("/testbed/src\nno=t x\n"));
    assert_memory_equal(r.output, "/testbed/src\nno=t x\n", r.n_output);
    c.cwd = "/no/such/folder";
    gr_sandbox_wait(box, gr_sandbox_run(box, 1, &c), &r);
    assert_int_equal(r.error, GR_SANDBOX_BROKEN);
    assert_non_null(strstr(r.reason, "/no/such/folder"));
    (void)end(box, 1);
}

/* Byte i of a long output is known, so any part of it can be checked. */
static void of_long_output_head_and_tail_are_kept(void** state)
{
    (void)state;
    gr_sandbox_reply r = create(box, 1);
    ASSERT_REPLY(&r);
    for (uint64_t round = 0; round < 12; round++) {
        char text[64], expected[32];
        int n = below(round, 0, 3) == 0 ? below(round, 1, 200) : 1000 * below(round, 1, 300);
        int head = below(round, 2, 2) * below(round, 3, 9000), tail = below(round, 4, 9000);
        (void)snprintf(text, sizeof text, "seq -f %%07.0f 0 %d", n / 8 - 1);
        const char* const argv[] = {"bash", "-c", text, NULL};
        gr_sandbox_command c = {.argv = argv, .time_s = 120, .head = head, .tail = tail};
        n = n / 8 * 8; /* lines of 8 bytes */
        gr_sandbox_wait(box, gr_sandbox_run(box, 1, &c), &r);
        ASSERT_REPLY(&r);
        assert_int_equal(r.n_all, n);
        assert_int_equal(r.n_head, GR_MIN(n, head));
        assert_int_equal(r.n_output, GR_MIN(n, head + tail));
        for (size_t i = 0; i < r.n_output; i++) {
            size_t at = i < r.n_head ? i : (size_t)n - r.n_output + i;
            (void)snprintf(expected, sizeof expected, "%07zu\n", at / 8);
            assert_int_equal(r.output[i], expected[at % 8]);
        }
    }
    (void)end(box, 1);
}

/* ---- files ----------------------------------------------------------------------------------- */

static void files_persist_and_the_base_does_not_change(void** state)
{
    (void)state;
    uint64_t before = hash_of_folder(base_tree);
    gr_sandbox_reply r = create(box, 1);
    ASSERT_REPLY(&r);
    r = create(box, 2);
    ASSERT_REPLY(&r);
    assert_true(hash_of(box, 1) == before);
    expect_sh(box, 1,
              "echo new >src/a.py; rm -r src/deep; echo t >/tmp/t; echo h >~/h; cd empty; >x", 0,
              "");
    expect_sh(box, 1, "cat src/a.py /tmp/t ~/h; ls empty src", 0,
              "new\nt\nh\nempty:\nx\n\nsrc:\na.py\nb.py\n");
    expect_sh(box, 2, "cat src/a.py src/deep/c.py; ls /tmp ~", 0,
              "a = 1\nc = 3\n/root:\n\n/tmp:\n");
    assert_true(hash_of(box, 1) != before);
    assert_true(hash_of(box, 2) == before);
    assert_true(hash_of_folder(base_tree) == before);
    expect_sh(box, 1, "mkdir .git; date >.git/x; git init -q other; rm -r other", 0, "");
    uint64_t with = hash_of(box, 1);
    expect_sh(box, 1, "rm -r .git", 0, "");
    assert_true(hash_of(box, 1) == with); /* .git does not count */
    (void)end(box, 1);
    (void)end(box, 2);
}

static void children_of_a_fork_go_their_own_ways(void** state)
{
    (void)state;
    gr_sandbox_reply r = create(box, 1);
    ASSERT_REPLY(&r);
    expect_sh(box, 1, "echo p >src/a.py; echo p >p; echo p >/tmp/p; echo p >~/p; rm src/b.py", 0,
              "");
    uint64_t parent = hash_of(box, 1), child[3];
    for (int i = 0; i < 3; i++) {
        r = fork_to(box, 1, 2 + i);
        ASSERT_REPLY(&r);
        assert_true(hash_of(box, 2 + i) == parent);
    }
    for (int i = 0; i < 3; i++) {
        char text[200];
        (void)snprintf(text, sizeof text,
                       "cat src/a.py p /tmp/p ~/p; ls src; echo %d >p; echo %d >/tmp/p; rm -r src",
                       i, i);
        expect_sh(box, 2 + i, text, 0, "p\np\np\np\na.py\ndeep\n");
        child[i] = hash_of(box, 2 + i);
        assert_true(child[i] != parent);
        assert_true(hash_of(box, 1) == parent);
    }
    for (int i = 0; i < 3; i++) {
        char expected[32];
        assert_true(hash_of(box, 2 + i) == child[i]);
        (void)snprintf(expected, sizeof expected, "%d\n%d\n", i, i);
        expect_sh(box, 2 + i, "cat p /tmp/p", 0, expected);
    }
    assert_true(child[0] != child[1] && child[1] != child[2]);
    (void)end(box, 1); /* children outlive their parent */
    assert_true(hash_of(box, 3) == child[1]);
    expect_sh(box, 3, "mkdir -p src/deep; ls src src/deep", 0, "src:\ndeep\n\nsrc/deep:\n");
    for (int i = 0; i < 3; i++) (void)end(box, 2 + i);
}

/* Random changes, with all the ways in which layers hide and show what is below them. */
static void write_change(uint64_t key, uint64_t at, char* out, size_t cap)
{
    static const char* const name[] = {"src", "src/deep", "src/a.py", "empty",
                                       "x",   "x/y",      "link",     "tests/z"};
    const char* n = name[below(key, 4 * at, GR_COUNT(name))];
    int kind = below(key, 4 * at + 1, 8), d = below(key, 4 * at + 2, 8);
    switch (kind) {
    case 3:
        (void)snprintf(out, cap, "rm -rf %s; mkdir %s 2>/dev/null; true", n, n);
        break;
    case 5:
        (void)snprintf(out, cap, "chmod 7%d%d %s 2>/dev/null; true", d, d, n);
        break;
    case 6:
        (void)snprintf(out, cap, "rm -rf %s.m; mv %s %s.m 2>/dev/null; true", n, n, n);
        break;
    case 0:
        (void)snprintf(out, cap, "mkdir -p %s 2>/dev/null; echo %d >%s/f%d; true", n, d, n, d);
        break;
    case 1:
        (void)snprintf(out, cap, "rm -rf %s", n);
        break;
    case 2:
        (void)snprintf(out, cap, "rm -rf %s; echo %d >%s; true", n, d, n);
        break;
    case 4:
        (void)snprintf(out, cap, "echo %d >>%s; true", d, n);
        break;
    default:
        (void)snprintf(out, cap, "rm -rf %s; ln -s t%d %s; true", n, d, n);
        break;
    }
}

/* A chain of forks, deep enough to be merged twice, shows what plain files show after the same
 * changes. */
static void any_chain_of_forks_shows_what_plain_files_show(void** state)
{
    (void)state;
    enum { DEEP = 140, CHANGES = 3 };
    char copy[128], text[4000], change[300];
    (void)snprintf(copy, sizeof copy, "%s/copy", scratch);
    (void)snprintf(text, sizeof text, "cp -a %s %s", base_tree, copy);
    assert_int_equal(system(text), 0);
    gr_sandbox_reply r = create(box, 1);
    ASSERT_REPLY(&r);
    for (int i = 1; i <= DEEP; i++) {
        size_t n = (size_t)snprintf(text, sizeof text, "{ ");
        for (int k = 0; k < CHANGES; k++) {
            write_change(7, (uint64_t)(i * CHANGES + k), change, sizeof change);
            n += (size_t)snprintf(text + n, sizeof text - n, "%s; ", change);
        }
        (void)snprintf(text + n, sizeof text - n, "} 2>/dev/null");
        expect_sh(box, i, text, 0, "");
        char there[4200];
        (void)snprintf(there, sizeof there, "cd %s; umask 022; %s", copy, text);
        assert_int_equal(system(there), 0);
        r = fork_to(box, i, i + 1);
        ASSERT_REPLY(&r);
        if (i % 3 != 0) (void)end(box, i);
        if (i % 20 == 0 || i > DEEP - 3 || (i > 63 && i < 68)) {
            if (hash_of(box, i + 1) != hash_of_folder(copy))
                fail_msg("after %d forks: %s", i, text);
        }
    }
    for (int i = 1; i <= DEEP + 1; i++) {
        if (i % 3 == 0 || i == DEEP + 1) (void)end(box, i);
    }
    remove_all(copy);
}

static void a_whole_system_can_be_the_tree(void** state)
{
    (void)state;
    char text[1200], root[100];
    (void)snprintf(root, sizeof root, "%s/system", scratch);
    (void)snprintf(text, sizeof text,
                   "set -e; mkdir -p %s/bin %s/room; cd %s/bin; cp /bin/dash sh; cp sh bash; "
                   "for f in $(ldd /bin/dash | grep -o '/[^ ]*'); do mkdir -p %s$(dirname $f); cp "
                   "-L $f %s$f; done",
                   root, root, root, root, root);
    assert_int_equal(system(text), 0);
    const gr_sandbox_tree tree = {.tree = root, .at = "/", .work = "/room"};
    gr_sandbox_reply r;
    gr_sandbox_wait(box, gr_sandbox_create(box, 1, &tree), &r);
    ASSERT_REPLY(&r);
    const char* const argv[] = {"sh", "-c", "echo x >/room/x; echo /* /room/*; echo $$ >/dev/null",
                                NULL};
    const gr_sandbox_command c = {.argv = argv, .time_s = 120, .head = 400};
    gr_sandbox_wait(box, gr_sandbox_run(box, 1, &c), &r);
    ASSERT_REPLY(&r);
    (void)snprintf(text, sizeof text, "%.*s", (int)r.n_output, r.output);
    assert_int_equal(r.code, 0);
    assert_non_null(strstr(text, "/bin /dev /lib"));
    assert_non_null(strstr(text, "/room/x"));
    assert_null(strstr(text, "/usr"));
    uint64_t hash = hash_of(box, 1); /* of the room alone, and where the command was */
    expect_sh(box, 1, "pwd; echo x >/beside", 0, "/room\n");
    assert_true(hash_of(box, 1) == hash);
    expect_sh(box, 1, "echo y >beside", 0, "");
    assert_true(hash_of(box, 1) != hash);
    (void)end(box, 1);
    remove_all(root);
}

static void more_folders_can_be_shown_read_only(void** state)
{
    (void)state;
    char path[128];
    (void)snprintf(path, sizeof path, "%s/tests", base_tree);
    const char* const read[] = {path, NULL};
    const gr_sandbox_tree tree = {.tree = base_tree, .at = "/room/tree", .read = read};
    gr_sandbox_reply r;
    char text[400];
    gr_sandbox_wait(box, gr_sandbox_create(box, 1, &tree), &r);
    ASSERT_REPLY(&r);
    (void)snprintf(text, sizeof text, "pwd; ls %s; touch %s/x 2>/dev/null || echo no", path, path);
    expect_sh(box, 1, text, 0, "/room/tree\ntest_a.py\nno\n");
    (void)end(box, 1);
}

/* ---- refusals, room and order ---------------------------------------------------------------- */

static void what_cannot_be_done_is_refused_in_one_line(void** state)
{
    (void)state;
    gr_sandbox_reply r;
    const gr_sandbox_tree wrong[] = {
        {.tree = "/no/such/tree", .at = "/testbed"},
        {.tree = base_tree, .at = "testbed"},
        {.tree = "base", .at = "/testbed"},
        {.tree = base_tree, .at = "/usr/nowhere"},
        {.tree = base_tree, .at = "/a/../b"},
        {.tree = base_tree, .at = "/testbed", .read = (const char* const[]){"/no/such", NULL}},
    };
    for (int i = 0; i < GR_COUNT(wrong); i++) {
        gr_sandbox_wait(box, gr_sandbox_create(box, 9, &wrong[i]), &r);
        if (r.error != GR_SANDBOX_REFUSED) fail_msg("%d: class %d %s", i, r.error, r.reason);
        assert_true(is_one_line(r.reason));
    }
    assert_int_equal(sh(box, 9, "true").error, GR_SANDBOX_REFUSED);
    assert_int_equal(fork_to(box, 9, 10).error, GR_SANDBOX_REFUSED);
    assert_int_equal(end(box, 9).error, GR_SANDBOX_REFUSED);
    r = create(box, 9);
    ASSERT_REPLY(&r);
    assert_int_equal(create(box, 9).error, GR_SANDBOX_REFUSED);
    assert_int_equal(fork_to(box, 9, 9).error, GR_SANDBOX_REFUSED);
    int64_t slow = start_sh(box, 9, "sleep 0.3; echo slow", 120),
            fast = start_sh(box, 9, "true", 120);
    gr_sandbox_wait(box, fast, &r);
    assert_int_equal(r.error, GR_SANDBOX_REFUSED);
    assert_non_null(strstr(r.reason, "busy"));
    gr_sandbox_wait(box, slow, &r);
    ASSERT_REPLY(&r);
    assert_memory_equal(r.output, "slow", 4);
    (void)end(box, 9);
}

static void ending_a_sandbox_ends_its_command(void** state)
{
    (void)state;
    gr_sandbox_reply r = create(box, 1);
    ASSERT_REPLY(&r);
    int64_t run = start_sh(box, 1, "sleep 4321.5", 600);
    int64_t closing = gr_sandbox_end(box, 1);
    double start = gr_now_s();
    gr_sandbox_wait(box, run, &r);
    assert_int_equal(r.error, GR_SANDBOX_GONE);
    gr_sandbox_wait(box, closing, &r);
    ASSERT_REPLY(&r);
    assert_true(gr_now_s() - start < 60); /* it would sleep longer */
    r = create(box, 1);                   /* its number is free */
    ASSERT_REPLY(&r);
    expect_sh(box, 1, "echo back", 0, "back\n");
    assert_int_equal(count_processes("sleep 4321.5"), 0);
    (void)end(box, 1);
}

static void a_full_host_is_asked_again_for_a_while(void** state)
{
    (void)state;
    gr_sandbox_settings s = small_limits();
    gr_sandbox_reply r;
    gr_sandbox_stop();
    s.live = 3;
    s.patience_s = 0.3;
    gr_sandbox* b = open_sandbox(&s);
    for (int i = 1; i <= 3; i++) {
        r = i == 2 ? fork_to(b, 1, 2) : create(b, i);
        ASSERT_REPLY(&r);
    }
    double start = gr_now_s();
    r = create(b, 4);
    assert_int_equal(r.error, GR_SANDBOX_FULL);
    assert_true(is_one_line(r.reason));
    assert_true(gr_now_s() - start >= 0.1);
    gr_sandbox_close(b);
    s.patience_s = 30; /* not a limit of the host: another connection may have its own */
    b = open_sandbox(&s);
    for (int i = 1; i <= 3; i++) {
        r = create(b, i);
        ASSERT_REPLY(&r);
    }
    const gr_sandbox_tree tree = {.tree = base_tree, .at = "/testbed"};
    int64_t fourth = gr_sandbox_create(b, 4, &tree), closing = gr_sandbox_end(b, 2);
    bool got[2] = {false, false};
    while (!got[0] || !got[1]) {
        assert_true(gr_sandbox_poll(b, true, &r));
        ASSERT_REPLY(&r);
        got[r.request == fourth] = true;
        assert_true(r.request == fourth || r.request == closing);
    }
    expect_sh(b, 4, "echo in", 0, "in\n");
    close_sandbox(b);
}

static void commands_wait_for_their_turn(void** state)
{
    (void)state;
    gr_sandbox_settings s = small_limits();
    gr_sandbox_reply r;
    gr_sandbox_stop();
    s.running = 1;
    gr_sandbox* b = open_sandbox(&s);
    int64_t asked[5];
    for (int i = 0; i < 5; i++) {
        r = create(b, i + 1);
        ASSERT_REPLY(&r);
    }
    for (int i = 0; i < 5; i++) asked[i] = start_sh(b, i + 1, "sleep 0.05", 120);
    for (int i = 0; i < 5; i++) { /* one by one, so in order */
        assert_true(gr_sandbox_poll(b, true, &r));
        ASSERT_REPLY(&r);
        assert_int_equal(r.request, asked[i]);
    }
    assert_false(gr_sandbox_poll(b, true, &r));
    gr_sandbox* other = NULL;
    s.live++;
    assert_int_equal(gr_sandbox_open(&other, &s), GR_EARG); /* its limits are not the host's */
    assert_true(is_one_line(gr_last_error_text()));
    close_sandbox(b);
}

/* Two connections may use the same numbers, and one's end leaves the other alone. */
static void connections_do_not_meet(void** state)
{
    (void)state;
    gr_sandbox_settings s = small_limits();
    gr_sandbox_stop();
    gr_sandbox *a = open_sandbox(&s), *b = open_sandbox(&s);
    gr_sandbox_reply r = create(a, 1);
    ASSERT_REPLY(&r);
    r = create(b, 1);
    ASSERT_REPLY(&r);
    expect_sh(a, 1, "echo a >x", 0, "");
    expect_sh(b, 1, "cat x 2>/dev/null || echo none", 0, "none\n");
    (void)start_sh(a, 1, "sleep 1000.25", 2000);
    gr_sandbox_close(a);
    expect_sh(b, 1, "echo b", 0, "b\n");
    close_sandbox(b);
    assert_int_equal(count_processes("sleep 1000.25"), 0);
    assert_true(nothing_left());
}

/* ---- main ------------------------------------------------------------------------------------ */

static int open_shared(void** state)
{
    (void)state;
    gr_sandbox_settings s = small_limits();
    return gr_sandbox_open(&box, &s) != GR_OK;
}

static int close_shared(void** state)
{
    (void)state;
    close_sandbox(box);
    return !nothing_left();
}

int main(void)
{
    const struct CMUnitTest shared[] = {
        cmocka_unit_test(a_command_has_its_code_and_output),
        cmocka_unit_test(a_command_has_its_input_environment_and_folder),
        cmocka_unit_test(of_long_output_head_and_tail_are_kept),
        cmocka_unit_test(files_persist_and_the_base_does_not_change),
        cmocka_unit_test(children_of_a_fork_go_their_own_ways),
        cmocka_unit_test(any_chain_of_forks_shows_what_plain_files_show),
        cmocka_unit_test(a_whole_system_can_be_the_tree),
        cmocka_unit_test(more_folders_can_be_shown_read_only),
        cmocka_unit_test(what_cannot_be_done_is_refused_in_one_line),
        cmocka_unit_test(ending_a_sandbox_ends_its_command),
    };
    const struct CMUnitTest own[] = {
        cmocka_unit_test(a_full_host_is_asked_again_for_a_while),
        cmocka_unit_test(commands_wait_for_their_turn),
        cmocka_unit_test(connections_do_not_meet),
    };
    if (make_base(NULL) != 0) return 1;
    int failed = 0;
    if (sandboxes_work()) {
        failed = cmocka_run_group_tests(shared, open_shared, close_shared);
        failed += cmocka_run_group_tests(own, NULL, NULL);
    }
    (void)remove_scratch(NULL);
    return failed;
}
