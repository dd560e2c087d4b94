/* test_sandbox_hold.c - what a sandbox holds back: ways out, too much of anything, and what is left
 * when something dies. */
#include "tests/escapes.h"
#include "tests/sandbox.h"

#include <grp.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>

/* ---- ways out -------------------------------------------------------------------------------- */

static bool says_escaped(const gr_sandbox_reply* r)
{
    return memmem(r->output, r->n_output, "ESCAPED", strlen("ESCAPED")) != NULL;
}

static void no_way_out_works(void** state)
{
    gr_sandbox* b = *state;
    int failed = 0;
    gr_sandbox_reply r = create(b, 1);
    ASSERT_REPLY(&r);
    for (int i = 0; i < GR_COUNT(escapes); i++) {
        r = sh(b, 1, escapes[i].text);
        ASSERT_REPLY(&r);
        /* each says why it failed, but for the call that kills whoever makes it */
        bool tried = r.cause == GR_SANDBOX_EXITED && (r.n_output > 0 || r.code == 128 + SIGSYS);
        if (says_escaped(&r) || !tried) {
            print_message("%s: code %d: %.*s\n", escapes[i].name, r.code, (int)r.n_output,
                          r.output);
            failed++;
        }
    }
    assert_int_equal(failed, 0);
    (void)end(b, 1);
}

/* A file beside the base, by every path that could lead there. */
static void files_outside_are_out_of_reach(void** state)
{
    gr_sandbox* b = *state;
    char text[1200], path[128];
    spill(scratch, "secret", "secret text", 11);
    (void)snprintf(path, sizeof path, "%s/secret", scratch);
    uint64_t before = hash_of_folder(base_tree);
    gr_sandbox_reply r = create(b, 1);
    ASSERT_REPLY(&r);
    (void)snprintf(
        text, sizeof text,
        "p=%s; ln -s $p l1; ln -s / l2; ln -s ../../../../../../../../..$p l3; "
        "for f in $p l1 l2$p l3 ../..$p /proc/self/root$p /proc/1/root$p /proc/1/cwd/..$p "
        "/proc/self/cwd/../..$p /proc/*/root$p; do cat $f 2>/dev/null; done; "
        "grep -r 'secret text' /tmp /root /run /var 2>/dev/null; ls -l /proc/[0-9]*/fd 2>/dev/null "
        "| grep secret; "
        "rm -rf /bin/* /dev/* /etc/[a-p]* 2>/dev/null; echo end",
        path);
    expect_sh(b, 1, text, 0, "end\n");
    assert_int_equal(access(path, R_OK), 0);
    assert_true(hash_of_folder(base_tree) == before);
    (void)end(b, 1);
}

/* A server of this host on an abstract socket: no file stands between, only the namespace. */
static void sockets_outside_are_out_of_reach(void** state)
{
    gr_sandbox* b = *state;
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    char text[300];
    (void)snprintf(a.sun_path + 1, sizeof a.sun_path - 1, "grove-test-%d", getpid());
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    socklen_t n = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(a.sun_path + 1));
    assert_int_equal(bind(fd, (struct sockaddr*)&a, n), 0);
    assert_int_equal(listen(fd, 4), 0);
    (void)snprintf(
        text, sizeof text,
        "import socket; socket.socket(socket.AF_UNIX).connect(chr(0) + \"%s\"); print(1)",
        a.sun_path + 1);
    char outside[400], inside[400];
    (void)snprintf(outside, sizeof outside, "python3 -c '%s' >/dev/null", text);
    assert_int_equal(system(outside), 0); /* the attempt itself is sound */
    (void)snprintf(inside, sizeof inside, "python3 -c '%s' 2>/dev/null || echo no", text);
    gr_sandbox_reply r = create(b, 1);
    ASSERT_REPLY(&r);
    expect_sh(b, 1, inside, 0, "no\n");
    (void)snprintf(inside, sizeof inside, "kill -0 %d 2>/dev/null || echo no", getpid());
    expect_sh(b, 1, inside, 0, "no\n");
    (void)end(b, 1);
    (void)close(fd);
}

static void loopback_is_there_for_tests_of_servers(void** state)
{
    gr_sandbox* b = *state;
    gr_sandbox_reply r = create(b, 1);
    ASSERT_REPLY(&r);
    expect_sh(b, 1,
              "python3 -c 'import socket; s = socket.create_server((\"127.0.0.1\", 0)); "
              "c = socket.create_connection(s.getsockname()); print(\"met\")'",
              0, "met\n");
    (void)end(b, 1);
}

/* ---- too much of anything -------------------------------------------------------------------- */

/* A neighbour that works meanwhile. */
static void expect_neighbour(gr_sandbox* b)
{
    expect_sh(b, 2, "echo fine >f && cat f && python3 -c 'print(len(bytearray(1 << 22)))'", 0,
              "fine\n4194304\n");
}

static void expect_cause(gr_sandbox* b, const char* text, double time_s, int cause)
{
    gr_sandbox_reply r;
    int64_t asked = start_sh(b, 1, text, time_s);
    gr_sandbox_wait(b, asked, &r);
    ASSERT_REPLY(&r);
    if ((int)r.cause != cause) {
        fail_msg("`%s`: cause %d, code %d, %.2f s: %.*s", text, r.cause, r.code, r.seconds,
                 (int)GR_MIN(r.n_output, 300), r.output);
    }
}

static void hogs_are_ended_and_neighbours_work(void** state)
{
    gr_sandbox* b = *state;
    static const struct {
        const char* text;
        int cause;
        bool lost;
    } hogs[] = {
        {"python3 -c 'bytearray(1 << 30)'; exit 9", GR_SANDBOX_MEMORY, false},
        {"python3 -c 'a = [bytearray(1 << 20) for i in range(1000)]'", GR_SANDBOX_MEMORY, false},
        {"cat /dev/zero", GR_SANDBOX_OUTPUT, false},
        {"yes | head -c 10000000000", GR_SANDBOX_OUTPUT, false},
        {"for i in $(seq 40); do head -c 1000000 /dev/zero >f$i; done", GR_SANDBOX_DISK, true},
        {"for i in $(seq 40); do head -c 1000000 /dev/zero >/tmp/f$i; done; sleep 5",
         GR_SANDBOX_DISK, true},
        {"python3 -c 'import os\nfor i in range(20000): open(f\"f{i}\", \"w\")'", GR_SANDBOX_DISK,
         true},
        {"while :; do :; done", GR_SANDBOX_TIME, false},
    };
    gr_sandbox_reply r = create(b, 2);
    ASSERT_REPLY(&r);
    for (int i = 0; i < GR_COUNT(hogs); i++) {
        r = create(b, 1);
        ASSERT_REPLY(&r);
        expect_cause(b, hogs[i].text, hogs[i].cause == GR_SANDBOX_TIME ? 0.5 : 120, hogs[i].cause);
        expect_neighbour(b);
        r = sh(b, 1, "echo after");
        if (hogs[i].lost)
            assert_int_equal(r.error, GR_SANDBOX_REFUSED);
        else
            assert_memory_equal(r.output, "after", 5);
        (void)end(b, 1);
    }
    r = create(b, 1);
    ASSERT_REPLY(&r);
    r = sh(b, 1, "head -c 30000000 /dev/zero >one; echo $?"); /* one file meets its own limit */
    ASSERT_REPLY(&r);
    (void)end(b, 1);
    (void)end(b, 2);
}

static void a_fork_bomb_stays_small(void** state)
{
    gr_sandbox* b = *state;
    gr_sandbox_reply r = create(b, 2);
    ASSERT_REPLY(&r);
    r = create(b, 1);
    ASSERT_REPLY(&r);
    (void)start_sh(b, 1, "f() { f | f & }; f; sleep 7654.5", 5);
    int most = 0;
    for (int seen = 0, tries = 0; seen < 20 && tries < 3000; tries++) {
        (void)usleep(20000);
        most = GR_MAX(most, count_processes("sleep 7654.5"));
        if (most > 0) seen++; /* from when it has begun */
    }
    int64_t neighbour = start_sh(b, 2, "echo fine", 120);
    gr_sandbox_cause cause[2] = {GR_SANDBOX_STUCK, GR_SANDBOX_STUCK};
    for (int i = 0; i < 2; i++) {
        assert_true(gr_sandbox_poll(b, true, &r));
        ASSERT_REPLY(&r);
        cause[r.request == neighbour] = r.cause;
    }
    assert_int_equal(cause[0], GR_SANDBOX_TIME);
    assert_int_equal(cause[1], GR_SANDBOX_EXITED);
    assert_in_range(most, 1, 48);
    assert_int_equal(count_processes("sleep 7654.5"), 0);
    expect_sh(b, 1, "echo after", 0, "after\n");
    (void)end(b, 1);
    (void)end(b, 2);
}

/* Whatever tries to outlive its time or its command. */
static void nothing_outlives_its_command(void** state)
{
    gr_sandbox* b = *state;
    gr_sandbox_reply r = create(b, 1);
    ASSERT_REPLY(&r);
    static const char* const all[] = {
        "trap '' TERM INT HUP QUIT; sleep 9753.5 & (setsid nohup sleep 9753.5 &) ; "
        "python3 -c 'import os, time\nfor i in range(8):\n  if os.fork() == 0: os.setsid(); "
        "os.fork(); "
        "os.execlp(\"sleep\", \"sleep\", \"9753.5\")' ; while :; do sleep 1; done",
        "kill -STOP $$; sleep 9753.5",
        "exec sleep 9753.5",
    };
    for (int i = 0; i < GR_COUNT(all); i++) {
        double start = gr_now_s();
        expect_cause(b, all[i], 0.6, GR_SANDBOX_TIME);
        assert_true(gr_now_s() - start < 60);
        assert_int_equal(count_processes("sleep 9753.5"), 0);
    }
    expect_sh(b, 1, "(setsid sleep 9753.5 >/dev/null 2>&1 &); sleep 9753.5 & sleep 0.1; echo done",
              0, "done\n");
    assert_int_equal(count_processes("sleep 9753.5"), 0);
    expect_sh(b, 1, "(sleep 0.3; echo late >late) & echo done", 0, "done\n");
    (void)usleep(400000);
    expect_sh(b, 1, "ls late 2>/dev/null", 2, "");
    (void)end(b, 1);
}

static void names_and_depths_of_strangers_are_cleaned_up(void** state)
{
    gr_sandbox* b = *state;
    gr_sandbox_reply r = create(b, 1);
    ASSERT_REPLY(&r);
    expect_sh(b, 1,
              "python3 -c 'import os\nfor i in range(1500): os.mkdir(\"d\"); "
              "os.chdir(\"d\")\nopen(\"x\", "
              "\"w\").write(\"x\")'; mkdir locked; touch locked/x $'new\\nline' $'\\xff\\xfe' -- "
              "-rf '*'; "
              "chmod 0 locked; mkfifo pipe; ln -s loop loop",
              0, "");
    uint64_t h = hash_of(b, 1);
    r = fork_to(b, 1, 2);
    ASSERT_REPLY(&r);
    assert_true(hash_of(b, 2) == h);
    expect_sh(b, 2, "ls | head -3 | wc -l", 0, "3\n");
    r = end(b, 1);
    ASSERT_REPLY(&r);
    r = end(b, 2);
    ASSERT_REPLY(&r);
    char layers[64];
    (void)snprintf(layers, sizeof layers, "/proc/%d/cwd/l", helper_of(getpid()));
    assert_int_equal(count_entries(layers, ""), 0);
}

/* ---- what is left ---------------------------------------------------------------------------- */

static void thousand_forks_leave_nothing(void** state)
{
    gr_sandbox* b = *state;
    enum { FORKS = 1000, LIVE = 8 };
    char mounts[64], layers[64], bases[64];
    gr_sandbox_reply r = create(b, 1);
    ASSERT_REPLY(&r);
    int helper = helper_of(getpid()), n;
    (void)snprintf(mounts, sizeof mounts, "/proc/%d/mountinfo", helper);
    (void)snprintf(layers, sizeof layers, "/proc/%d/cwd/l", helper);
    (void)snprintf(bases, sizeof bases, "/proc/%d/cwd/b", helper);
    int mounts_before = count_lines(mounts);
    for (int i = 1; i <= FORKS; i++) {
        char text[64], expected[32];
        if (i % 50 == 1) { /* forks of unchanged files share everything */
            (void)snprintf(text, sizeof text, "echo %d >>src/a.py; wc -l <src/a.py", i);
            (void)snprintf(expected, sizeof expected, "%d\n", i / 50 + 2);
            expect_sh(b, i, text, 0, expected);
        }
        r = fork_to(b, i, i + 1);
        ASSERT_REPLY(&r);
        if (i >= LIVE) (void)end(b, i - LIVE + 1);
    }
    assert_in_range(count_entries(layers, ""), LIVE, LIVE + FORKS / 50 + 1);
    assert_int_equal(count_lines(mounts), mounts_before);
    for (int i = FORKS - LIVE + 2; i <= FORKS + 1; i++) (void)end(b, i);
    assert_int_equal(count_entries(layers, ""), 0);
    assert_int_equal(count_entries(bases, ""), 0);
    assert_int_equal(count_lines(mounts), mounts_before - 1); /* the base's own */
    (void)child_of(helper, &n);
    assert_int_equal(n, 0);
}

static int dead_helper;
static bool helper_is_gone(void) { return parent_of(dead_helper) == 0 && nothing_left(); }
static bool sleepers_are_gone(void) { return count_processes("sleep 8642.5") == 0; }

/* A trainer with two live sandboxes, one of them busy. Tells its helper through `ready`. */
GR_NORETURN static void be_trainer(int ready)
{
    gr_sandbox_settings s = small_limits();
    gr_sandbox* b;
    if (gr_sandbox_open(&b, &s) != GR_OK) _exit(1);
    if (create(b, 1).error != GR_SANDBOX_OK || fork_to(b, 1, 2).error != GR_SANDBOX_OK) _exit(1);
    (void)sh(b, 2, "echo x >x");
    (void)start_sh(b, 1, "sleep 8642.5 & setsid sleep 8642.5", 1000);
    while (count_processes("sleep 8642.5") < 3) (void)usleep(5000);
    int helper = helper_of(getpid());
    if (write(ready, &helper, sizeof helper) != sizeof helper) _exit(1);
    for (;;) (void)pause();
}

static pid_t start_trainer(void)
{
    int ready[2];
    assert_int_equal(pipe(ready), 0);
    pid_t pid = fork();
    if (pid == 0) be_trainer(ready[1]);
    (void)close(ready[1]);
    assert_int_equal(read(ready[0], &dead_helper, sizeof dead_helper), sizeof dead_helper);
    (void)close(ready[0]);
    note_folders();
    return pid;
}

static void nothing_is_left_of_a_killed_trainer(void** state)
{
    (void)state;
    pid_t trainer = start_trainer();
    (void)kill(trainer, SIGKILL);
    assert_int_equal(wait_for(trainer), 137);
    assert_true(within(60, helper_is_gone));
    assert_true(within(60, sleepers_are_gone));
    assert_true(within(60, groups_are_gone));
}

static void a_killed_helper_is_swept_by_the_next(void** state)
{
    (void)state;
    gr_sandbox_settings s = small_limits();
    pid_t trainer = start_trainer();
    (void)kill(dead_helper, SIGKILL);
    assert_true(within(60, sleepers_are_gone)); /* the kernel sees to them */
    (void)kill(trainer, SIGKILL);
    (void)wait_for(trainer);
    assert_int_equal(count_entries(scratch, "grove-sandbox-"), 1);
    gr_sandbox* b = open_sandbox(&s); /* sweeps, and makes its own */
    assert_int_equal(count_entries(scratch, "grove-sandbox-"), 1);
    gr_sandbox_reply r = create(b, 1);
    ASSERT_REPLY(&r);
    expect_sh(b, 1, "echo fine", 0, "fine\n");
    (void)kill(helper_of(getpid()), SIGKILL); /* in the middle of things */
    r = sh(b, 1, "true");
    assert_int_equal(r.error, GR_SANDBOX_GONE);
    assert_true(is_one_line(r.reason));
    r = create(b, 2);
    assert_int_equal(r.error, GR_SANDBOX_GONE);
    gr_sandbox_close(b);
    b = open_sandbox(&s); /* another helper is started */
    note_folders();
    r = create(b, 1);
    ASSERT_REPLY(&r);
    expect_sh(b, 1, "echo fine", 0, "fine\n");
    close_sandbox(b);
    assert_true(nothing_left());
    assert_true(within(60, groups_are_gone));
}

/* A dying helper takes connections until its last descriptor is closed. */
static void a_helper_is_replaced_while_it_dies(void** state)
{
    (void)state;
    gr_sandbox_settings s = small_limits();
    for (int i = 0; i < 20; i++) {
        gr_sandbox* b = open_sandbox(&s);
        (void)kill(helper_of(getpid()), SIGKILL);
        gr_sandbox* c = NULL;
        if (i % 2 == 0) { /* when the kernel has closed its side of the first connection */
            gr_sandbox_reply r = create(b, 1);
            assert_int_equal(r.error, GR_SANDBOX_GONE);
        }
        ASSERT_OK(gr_sandbox_open(&c, &s));
        gr_sandbox_close(b);
        close_sandbox(c);
    }
    gr_fault_set("sandbox.hear:1"); /* whatever the kernel's order: it took us, and is silent */
    gr_sandbox* b = open_sandbox(&s);
    gr_fault_set(NULL);
    close_sandbox(b);
    assert_true(nothing_left());
}

/* ---- other hosts, other kernels: the same in what they allow --------------------------------- */

/* Runs in a child process, so that it may become another user or fail in its own way. */
static void in_child(void (*work)(void))
{
    gr_sandbox_stop();
    (void)fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        work();
        _exit(0);
    }
    assert_int_equal(wait_for(pid), 0);
    assert_true(nothing_left());
}

#define CHECK(condition)                                                    \
    do {                                                                    \
        if (!(condition)) {                                                 \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
            _exit(9);                                                       \
        }                                                                   \
    } while (0)

/* The main promises once more, for a process that has no cmocka to fail in. */
static void check_promises(const char* expected, const char* notice)
{
    gr_sandbox_settings s = small_limits();
    gr_sandbox* b = NULL;
    gr_sandbox_reply r;
    if (gr_sandbox_open(&b, &s) != GR_OK) {
        fprintf(stderr, "%s\n", gr_last_error());
        _exit(8);
    }
    const char* told = gr_sandbox_describe(b);
    if (strstr(told, expected) == NULL || strstr(told, notice) == NULL) {
        fprintf(stderr, "not %s, %s: %s\n", expected, notice, told);
        _exit(7);
    }
    r = create(b, 1);
    if (r.error != GR_SANDBOX_OK) fprintf(stderr, "%s\n", r.reason);
    CHECK(r.error == GR_SANDBOX_OK);
    r = sh(b, 1, "id -u; rm -r src/deep; mkdir src/deep; echo p >p; echo p >/tmp/p");
    if (r.error != GR_SANDBOX_OK) fprintf(stderr, "%s\n", r.reason);
    CHECK(r.error == GR_SANDBOX_OK && r.code == 0 && r.n_output == 2 && r.output[0] == '0');
    CHECK(fork_to(b, 1, 2).error == GR_SANDBOX_OK);
    r = sh(b, 2, "cat p /tmp/p; ls src/deep; echo c >p; rm -r src");
    CHECK(r.code == 0 && r.n_output == 4 && memcmp(r.output, "p\np\n", 4) == 0);
    r = sh(b, 1, "cat p; ls src");
    CHECK(r.code == 0 && memcmp(r.output, "p\na.py\nb.py\ndeep\n", 17) == 0);
    for (int i = 0; i < GR_COUNT(escapes); i += 3) {
        r = sh(b, 1, escapes[i].text);
        if (says_escaped(&r)) fprintf(stderr, "%s\n", escapes[i].name);
        CHECK(r.error == GR_SANDBOX_OK && !says_escaped(&r));
    }
    gr_sandbox_wait(b, start_sh(b, 1, "sleep 100 & setsid sleep 6543.5", 0.3), &r);
    CHECK(r.cause == GR_SANDBOX_TIME && count_processes("sleep 6543.5") == 0);
    r = sh(b, 1, "python3 -c 'bytearray(1 << 30)'");
    CHECK(r.error == GR_SANDBOX_OK && (r.cause == GR_SANDBOX_MEMORY || r.code != 0));
    r = sh(
        b, 1,
        "python3 -c 'import os, time\nfor i in range(200):\n  if os.fork() == 0: time.sleep(9)'");
    CHECK(r.error == GR_SANDBOX_OK && r.code != 0);
    gr_sandbox_close(b);
    gr_sandbox_stop();
}

static void as_user(void)
{
    (void)snprintf(base_tree, sizeof base_tree, "%s/theirs", scratch);
    CHECK(setgroups(0, NULL) == 0 && setresgid(65534, 65534, 65534) == 0 &&
          setresuid(65534, 65534, 65534) == 0);
    (void)prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
    check_promises("user, overlay", "");
}

static void with_copies(void)
{
    gr_fault_set("sandbox.overlay:1");
    check_promises("root, copies", "no overlay file system here: trees are copied");
}

static void without_owner_maps(void)
{
    gr_fault_set("sandbox.map:1");
    check_promises("root, overlay", "");
}

static void works_as_an_ordinary_user(void** state)
{
    (void)state;
    char text[600];
    if (geteuid() != 0) skip(); /* the other tests are this one then */
    (void)snprintf(text, sizeof text,
                   "chmod 1777 %s; cp -a %s %s/theirs; chown -R 65534:65534 %s/theirs", scratch,
                   base_tree, scratch, scratch);
    assert_int_equal(system(text), 0);
    in_child(as_user);
}

static void works_without_overlay(void** state)
{
    (void)state;
    in_child(with_copies);
}

static void works_without_owner_maps(void** state)
{
    (void)state;
    in_child(without_owner_maps);
}

/* ---- calls that fail ------------------------------------------------------------------------- */

static const char* failing;
static int failing_at;

/* An answer may be an error in one line, nothing else may happen. */
static bool is_sound(const gr_sandbox_reply* r)
{
    return r->error == GR_SANDBOX_OK || is_one_line(r->reason);
}

static void with_a_failing_call(void)
{
    gr_sandbox_settings s = small_limits();
    gr_sandbox* b = NULL;
    char spec[64];
    (void)snprintf(spec, sizeof spec, "%s:%d", failing, failing_at);
    gr_fault_set(spec);
    if (gr_sandbox_open(&b, &s) != GR_OK) {
        CHECK(is_one_line(gr_last_error_text()));
        gr_sandbox_stop();
        return;
    }
    gr_sandbox_reply r = create(b, 1);
    CHECK(is_sound(&r));
    r = sh(b, 1, "echo x >x; echo y");
    CHECK(is_sound(&r));
    r = fork_to(b, 1, 2);
    CHECK(is_sound(&r));
    r = sh(b, 2, "cat x");
    CHECK(is_sound(&r));
    (void)gr_sandbox_end(b, 1);
    gr_sandbox_wait(b, gr_sandbox_hash(b, 2), &r);
    CHECK(is_sound(&r));
    gr_sandbox_close(b);
    gr_fault_set(NULL);
    bool each_time = strcmp(failing, "sandbox.confine") == 0; /* each command counts anew */
    CHECK(gr_sandbox_open(&b, &s) == GR_OK);
    note_folders();
    r = create(b, 1);
    CHECK(r.error == GR_SANDBOX_OK);
    r = sh(b, 1, "echo y");
    CHECK(each_time || (r.error == GR_SANDBOX_OK && r.code == 0 && r.n_output == 2));
    gr_sandbox_close(b);
    gr_sandbox_stop();
}

static void every_outside_call_may_fail(void** state)
{
    (void)state;
    static const struct {
        const char* place;
        int first, last;
    } places[] = {
        {"sandbox.helper", 1, 1}, {"sandbox.pass", 1, 2},     {"sandbox.ask", 1, 3},
        {"sandbox.hear", 1, 3},   {"sandbox.folder", 1, 1},   {"sandbox.namespace", 1, 1},
        {"sandbox.store", 1, 1},  {"sandbox.mkdir", 1, 13},   {"sandbox.skeleton", 1, 3},
        {"sandbox.filter", 1, 1}, {"sandbox.group", 1, 12},   {"sandbox.pipe", 1, 3},
        {"sandbox.clone", 1, 3},  {"sandbox.confine", 1, 30}, {"sandbox.output", 1, 2},
        {"sandbox.send", 1, 4},   {"sandbox.receive", 1, 4},  {"sandbox.remove", 1, 6},
    };
    hush();
    for (int i = 0; i < GR_COUNT(places); i++) {
        failing = places[i].place;
        for (failing_at = places[i].first; failing_at <= places[i].last; failing_at++) {
            in_child(with_a_failing_call);
        }
    }
    free(loud());
    assert_true(within(60, groups_are_gone));
}

/* ---- over TCP -------------------------------------------------------------------------------- */

static const char secret_text[] = "correct horse battery staple";

GR_NORETURN static void be_server(int ready)
{
    gr_sandbox_settings s = small_limits();
    (void)snprintf(s.secret_file, sizeof s.secret_file, "%s/server_key", scratch);
    _exit(gr_sandbox_listen("127.0.0.1:0", &s, ready) != GR_OK);
}

static void other_hosts_are_served_over_tcp(void** state)
{
    (void)state;
    int ready[2];
    gr_sandbox_settings s = small_limits();
    gr_sandbox* b = NULL;
    gr_sandbox_stop();
    char path[128];
    spill(scratch, "server_key", secret_text, strlen(secret_text));
    (void)snprintf(path, sizeof path, "%s/server_key", scratch);
    assert_int_equal(chmod(path, 0600), 0);
    assert_int_equal(pipe(ready), 0);
    pid_t server = fork();
    if (server == 0) be_server(ready[1]);
    char port[16] = "", wrong[] = "incorrect horse battery staple";
    assert_true(read(ready[0], port, sizeof port - 1) > 1);
    (void)snprintf(s.sandbox_host, sizeof s.sandbox_host, "127.0.0.1:%d", atoi(port));
    (void)snprintf(s.secret_file, sizeof s.secret_file, "%s/key", scratch);
    spill(scratch, "key", wrong, strlen(wrong));
    assert_int_equal(gr_sandbox_open(&b, &s), GR_EARG); /* others may read the file */
    assert_int_equal(chmod(s.secret_file, 0600), 0);
    assert_int_not_equal(gr_sandbox_open(&b, &s), GR_OK); /* another secret */
    assert_true(is_one_line(gr_last_error_text()));
    spill(scratch, "key", secret_text, strlen(secret_text));
    b = open_sandbox(&s);
    gr_sandbox_reply r = create(b, 1);
    ASSERT_REPLY(&r);
    expect_sh(b, 1, "echo far >f; cat f", 0, "far\n");
    r = fork_to(b, 1, 2);
    ASSERT_REPLY(&r);
    assert_true(hash_of(b, 1) == hash_of(b, 2));
    gr_sandbox_close(b);
    b = open_sandbox(&s); /* what the first left is gone */
    assert_int_equal(sh(b, 1, "true").error, GR_SANDBOX_REFUSED);
    (void)kill(server, SIGTERM);
    assert_int_equal(wait_for(server), 0);
    r = create(b, 1);
    assert_int_equal(r.error, GR_SANDBOX_GONE);
    gr_sandbox_close(b);
    assert_true(nothing_left());
    (void)close(ready[0]);
    (void)close(ready[1]);
}

/* ---- main ------------------------------------------------------------------------------------ */

static int connect_to_shared(void** state)
{
    gr_sandbox_settings s = small_limits();
    gr_sandbox* b;
    if (gr_sandbox_open(&b, &s) != GR_OK) return 1;
    *state = b;
    return 0;
}

static int disconnect(void** state)
{
    gr_sandbox_close(*state);
    return 0;
}

static int stop_shared(void** state)
{
    (void)state;
    gr_sandbox_stop();
    return !nothing_left();
}

#define SHARED(test) cmocka_unit_test_setup_teardown(test, connect_to_shared, disconnect)

int main(void)
{
    const struct CMUnitTest shared[] = {
        SHARED(no_way_out_works),
        SHARED(files_outside_are_out_of_reach),
        SHARED(sockets_outside_are_out_of_reach),
        SHARED(loopback_is_there_for_tests_of_servers),
        SHARED(hogs_are_ended_and_neighbours_work),
        SHARED(a_fork_bomb_stays_small),
        SHARED(nothing_outlives_its_command),
        SHARED(names_and_depths_of_strangers_are_cleaned_up),
        SHARED(thousand_forks_leave_nothing),
    };
    const struct CMUnitTest own[] = {
        cmocka_unit_test(nothing_is_left_of_a_killed_trainer),
        cmocka_unit_test(a_killed_helper_is_swept_by_the_next),
        cmocka_unit_test(a_helper_is_replaced_while_it_dies),
        cmocka_unit_test(works_as_an_ordinary_user),
        cmocka_unit_test(works_without_overlay),
        cmocka_unit_test(works_without_owner_maps),
        cmocka_unit_test(every_outside_call_may_fail),
        cmocka_unit_test(other_hosts_are_served_over_tcp),
    };
    if (make_base(NULL) != 0) return 1;
    int failed = 0;
    if (sandboxes_work()) {
        failed = cmocka_run_group_tests(shared, NULL, stop_shared);
        failed += cmocka_run_group_tests(own, NULL, NULL);
    }
    (void)remove_scratch(NULL);
    return failed;
}
