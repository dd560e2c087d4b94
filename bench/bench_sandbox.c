/* bench_sandbox.c - what forks and commands of sandboxes cost, and what they hold back.
 *
 *   bench_sandbox fork TREE     latency of forks against copies of the tree, a git repository
 *   bench_sandbox hold          ways out and hogs: how each ends
 *   bench_sandbox live TREE     10, 100 and 300 sandboxes at a time, and one more than may be
 *
 * Prints markdown. A fork is timed from the request to the reply, one child at a time; the helper
 * is another process, so the way there and back is in it. */
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include "envs/sandbox/files.h"
#include "envs/sandbox/sandbox.h"
#include "tests/escapes.h"

enum { FORKS = 200, RUNS = 40, COPIES = 5 };

static gr_sandbox* box;

GR_NORETURN static void die(const char* text)
{
    fprintf(stderr, "bench_sandbox: %s\n", text);
    exit(1);
}

static gr_sandbox_reply await(int64_t request)
{
    gr_sandbox_reply r;
    gr_sandbox_wait(box, request, &r);
    if (r.error != GR_SANDBOX_OK) die(r.reason);
    return r;
}

static gr_sandbox_reply sh(int64_t sandbox, const char* text, double time_s)
{
    const char* const argv[] = {"bash", "-c", text, NULL};
    const gr_sandbox_command c = {.argv = argv, .time_s = time_s, .head = 2000, .tail = 2000};
    return await(gr_sandbox_run(box, sandbox, &c));
}

static void create(int64_t sandbox, const char* tree)
{
    (void)await(
        gr_sandbox_create(box, sandbox, &(gr_sandbox_tree){.tree = tree, .at = "/testbed"}));
}

/* ---- times ----------------------------------------------------------------------------------- */

static int by_size(const void* a, const void* b)
{
    const double x = *(const double*)a, y = *(const double*)b;
    return (x > y) - (x < y);
}

static void print_row(const char* name, double* ms, int n)
{
    qsort(ms, (size_t)n, sizeof *ms, by_size);
    printf("| %s | %d | %.3f | %.3f | %.3f | %.3f |\n", name, n, ms[0], ms[n / 2], ms[n * 9 / 10],
           ms[n - 1]);
}

static double ms_since(double start) { return 1e3 * (gr_now_s() - start); }

/* Sandbox 1 with `depth` frozen layers below it. */
static void grow(const char* tree, int depth)
{
    create(1, tree);
    for (int i = 0; i < depth; i++) {
        char text[64];
        (void)snprintf(text, sizeof text, "echo %d >>grown", i);
        (void)sh(1, text, 60);
        (void)await(gr_sandbox_fork(box, 1, 2));
        (void)await(gr_sandbox_end(box, 2));
    }
}

static double time_command(int64_t sandbox)
{
    double start = gr_now_s();
    (void)sh(sandbox, ":", 60);
    return ms_since(start);
}

/* One child of a sandbox that has changed files, so that its layer is frozen; then of one that has
 * not, as the second and third child of the same state are. */
static void time_forks(const char* tree, int depth)
{
    double changed[RUNS], same[FORKS], first[RUNS], next[RUNS];
    char name[80];
    grow(tree, depth);
    for (int i = 0; i < FORKS; i++) {
        double start = gr_now_s();
        (void)await(gr_sandbox_fork(box, 1, 2));
        same[i] = ms_since(start);
        (void)await(gr_sandbox_end(box, 2));
    }
    for (int i = 0; i < RUNS; i++) {
        (void)await(gr_sandbox_fork(box, 1, 3)); /* of the same depth each time */
        (void)sh(3, "echo x >>grown2", 60);
        double start = gr_now_s();
        (void)await(gr_sandbox_fork(box, 3, 2));
        changed[i] = ms_since(start);
        first[i] = time_command(2);
        next[i] = time_command(2);
        (void)await(gr_sandbox_end(box, 2));
        (void)await(gr_sandbox_end(box, 3));
    }
    (void)snprintf(name, sizeof name, "fork, files changed since the last, depth %d%s", depth,
                   depth >= 64 ? " (merges them)" : "");
    print_row(name, changed, RUNS);
    (void)snprintf(name, sizeof name, "fork, files unchanged, depth %d", depth);
    print_row(name, same, FORKS);
    (void)snprintf(name, sizeof name, "a child's first command (`:`), depth %d", depth);
    print_row(name, first, RUNS);
    (void)snprintf(name, sizeof name, "its second, depth %d", depth);
    print_row(name, next, RUNS);
    (void)await(gr_sandbox_end(box, 1));
}

static void time_shell(const char* name, const char* work, const char* undo)
{
    double ms[COPIES];
    for (int i = 0; i < COPIES; i++) {
        double start = gr_now_s();
        if (system(work) != 0) die(work);
        ms[i] = ms_since(start);
        if (system(undo) != 0) die(undo);
    }
    print_row(name, ms, COPIES);
}

static void time_copies(const char* tree)
{
    char work[1000], undo[600];
    static const char* const place[] = {"/dev/shm", "/tmp"};
    for (int i = 0; i < 2; i++) {
        char name[80];
        (void)snprintf(work, sizeof work, "cp -a %s %s/bench_sandbox_copy", tree, place[i]);
        (void)snprintf(undo, sizeof undo, "rm -rf %s/bench_sandbox_copy", place[i]);
        (void)snprintf(name, sizeof name, "cp -a to %s", place[i]);
        time_shell(name, work, undo);
    }
    (void)snprintf(work, sizeof work,
                   "git -C %s worktree add -q --detach /tmp/bench_sandbox_wt HEAD", tree);
    (void)snprintf(undo, sizeof undo, "git -C %s worktree remove --force /tmp/bench_sandbox_wt",
                   tree);
    time_shell("git worktree add", work, undo);
    time_shell("sh -c true: a process and a shell, nothing else", "true", "true");
}

static void bench_fork(const char* tree)
{
    double load[3] = {0};
    int fd = open(tree, O_RDONLY | O_DIRECTORY);
    if (fd < 0) die(strerror(errno));
    (void)getloadavg(load, 3);
    printf("Tree: %.1f MB. %s. %ld processors, load average %.1f when it began.\n\n",
           (double)gr_files_size(fd) / 1e6, gr_sandbox_describe(box), sysconf(_SC_NPROCESSORS_ONLN),
           load[0]);
    (void)close(fd);
    printf("| ms | n | least | median | 90 %% | most |\n|---|---|---|---|---|---|\n");
    static const int depths[] = {0, 1, 4, 16, 48, 64};
    for (int i = 0; i < GR_COUNT(depths); i++) time_forks(tree, depths[i]);
    time_copies(tree);
}

/* ---- what is held back ----------------------------------------------------------------------- */

static const char* const cause_name[] = {"exited",     "time",         "memory",
                                         "disk share", "output share", "stuck"};

static void print_escapes(void)
{
    printf("| attempt | result | what it was told |\n|---|---|---|\n");
    for (int i = 0; i < GR_COUNT(escapes); i++) {
        gr_sandbox_reply r = sh(1, escapes[i].text, 20);
        char told[90] = "";
        size_t n = 0, from = 0;
        for (size_t k = 0; k + 1 < r.n_output; k++) from = r.output[k] == '\n' ? k + 1 : from;
        for (size_t k = from; k < r.n_output && n + 1 < sizeof told && r.output[k] != '\n'; k++) {
            told[n++] = r.output[k] == '|' ? '/' : r.output[k];
        }
        bool escaped = memmem(r.output, r.n_output, "ESCAPED", 7) != NULL;
        printf("| %s | %s | %s |\n", escapes[i].name, escaped ? "**ESCAPED**" : "held",
               told[0]         ? told
               : r.code == 159 ? "(killed by the filter)"
                               : "(error of the call)");
    }
}

static void print_hogs(void)
{
    static const struct {
        const char *name, *text;
    } hogs[] = {
        {"memory: one block of 4 GB", "python3 -c 'bytearray(4 << 30)'"},
        {"memory: page by page", "python3 -c 'a = [bytearray(1 << 20) for i in range(9999)]'"},
        {"fork bomb", "f() { f | f & }; f; sleep 100"},
        {"threads", "python3 -c 'import threading, time\nfor i in range(5000): "
                    "threading.Thread(target=time.sleep, args=(9,)).start()'"},
        {"disk: many files of 1 MB",
         "for i in $(seq 9999); do head -c 1000000 /dev/zero >f$i || exit; done"},
        {"disk: one file", "cat /dev/zero >f"},
        {"disk: /dev/shm", "cat /dev/zero >/dev/shm/f"},
        {"inodes", "python3 -c 'for i in range(10**7): open(f\"f{i}\", \"w\")'"},
        {"output of 10 GB", "head -c 10000000000 /dev/zero"},
        {"sleeper that ignores signals",
         "trap '' TERM INT HUP; setsid sleep 100 & while :; do sleep 100; done"},
        {"stopped shell", "kill -STOP $$; sleep 100"},
        {"all processors", "for i in $(seq 16); do while :; do :; done & done; sleep 100"},
    };
    printf("\n| hog | ended by | after s | code | bytes of output | a neighbour's command "
           "meanwhile, ms |\n"
           "|---|---|---|---|---|---|\n");
    create(2, "/usr/share/doc/bash");
    for (int i = 0; i < GR_COUNT(hogs); i++) {
        const char* const argv[] = {"bash", "-c", hogs[i].text, NULL};
        const gr_sandbox_command c = {.argv = argv, .time_s = 5, .head = 2000};
        const char* const other[] = {"bash", "-c", "echo x >x; cat x", NULL};
        const gr_sandbox_command d = {.argv = other, .time_s = 60, .head = 2000};
        gr_sandbox_reply r, hog = {0};
        (void)await(gr_sandbox_fork(box, 1, 3));
        int64_t asked = gr_sandbox_run(box, 3, &c), n = 0, neighbour = 0;
        double sum = 0, start = 0;
        while (hog.request == 0) { /* the neighbour works until the hog is gone */
            if (neighbour == 0) {
                start = gr_now_s();
                neighbour = gr_sandbox_run(box, 2, &d);
            }
            if (!gr_sandbox_poll(box, true, &r) || r.error != GR_SANDBOX_OK) die(r.reason);
            if (r.request == asked) hog = r;
            if (r.request == neighbour) {
                if (r.n_output != 2) die("the neighbour's command went wrong");
                sum += ms_since(start);
                n++;
                neighbour = 0;
            }
        }
        if (neighbour != 0) (void)await(neighbour);
        printf("| %s | %s | %.2f | %d | %lld | %.0f (mean of %lld) |\n", hogs[i].name,
               cause_name[hog.cause], hog.seconds, hog.code, (long long)hog.n_all,
               n > 0 ? sum / (double)n : 0, (long long)n);
        (void)await(gr_sandbox_end(box, 3));
    }
}

/* ---- many at a time -------------------------------------------------------------------------- */

enum { MOST_LIVE = 300, ROUNDS = 5 };

/* The first child of a process; *n: how many it has. */
static int child_of(int pid, int* n)
{
    char path[64];
    int first = 0, child;
    (void)snprintf(path, sizeof path, "/proc/%d/task/%d/children", pid, pid);
    FILE* f = fopen(path, "r");
    if (f == NULL) die(path);
    for (*n = 0; fscanf(f, "%d", &child) == 1; (*n)++) first = *n == 0 ? child : first;
    (void)fclose(f);
    return first;
}

static int count_mounts(int pid)
{
    char path[64];
    int n = 0;
    (void)snprintf(path, sizeof path, "/proc/%d/mounts", pid);
    FILE* f = fopen(path, "r");
    if (f == NULL) die(path);
    for (int c; (c = fgetc(f)) != EOF;) n += c == '\n';
    (void)fclose(f);
    return n;
}

static double resident_mb(int pid)
{
    char path[64];
    long all = 0, resident = 0;
    (void)snprintf(path, sizeof path, "/proc/%d/statm", pid);
    FILE* f = fopen(path, "r");
    if (f == NULL || fscanf(f, "%ld %ld", &all, &resident) != 2) die(path);
    (void)fclose(f);
    return (double)resident * (double)sysconf(_SC_PAGESIZE) / 1e6;
}

static double store_mb(int helper) /* which stands in its store */
{
    char path[64];
    struct statfs s;
    (void)snprintf(path, sizeof path, "/proc/%d/cwd", helper);
    if (statfs(path, &s) != 0) die(path);
    return (double)(s.f_blocks - s.f_bfree) * (double)s.f_bsize / 1e6;
}

static int count_paths(const char* pattern)
{
    glob_t found;
    int n = glob(pattern, 0, NULL, &found) == 0 ? (int)found.gl_pathc : 0;
    globfree(&found);
    return n;
}

static char place[64], groups[2][100]; /* the helper's folder is in `place` alone */

/* Control groups in those of this helper; `own` adds these. */
static int count_groups(bool own)
{
    int n = 0;
    char pattern[sizeof groups[0] + 4];
    for (int i = 0; i < 2; i++) {
        (void)snprintf(pattern, sizeof pattern, "%.99s/*/", groups[i]);
        n += count_paths(pattern) + (own ? count_paths(groups[i]) : 0);
    }
    return n;
}

static void open_place(gr_sandbox_settings* s)
{
    glob_t found;
    (void)snprintf(place, sizeof place, "/tmp/bench_sandbox_XXXXXX");
    if (mkdtemp(place) == NULL) die("/tmp: cannot write");
    (void)snprintf(s->sandbox_dir, sizeof s->sandbox_dir, "%s", place);
    s->live = MOST_LIVE;
    s->space_mb = 4096;
    s->patience_s = 0;
    if (gr_sandbox_open(&box, s) != GR_OK) die(gr_last_error());
    char pattern[80];
    (void)snprintf(pattern, sizeof pattern, "%s/grove-sandbox-*", place);
    if (glob(pattern, 0, NULL, &found) != 0) die("the helper has no folder");
    const char* name = strrchr(found.gl_pathv[0], '/') + 1;
    (void)snprintf(groups[0], sizeof groups[0], "/sys/fs/cgroup/%.60s", name);
    (void)snprintf(groups[1], sizeof groups[1], "/sys/fs/cgroup/*/%.60s", name);
    globfree(&found);
}

/* Asks sandboxes 1 to n for the same command at once. */
static double seconds_at_once(int n, const char* text)
{
    const char* const argv[] = {"bash", "-c", text, NULL};
    const gr_sandbox_command c = {.argv = argv, .time_s = 60, .head = 2000};
    gr_sandbox_reply r;
    double start = gr_now_s();
    for (int i = 1; i <= n; i++) (void)gr_sandbox_run(box, i, &c);
    while (gr_sandbox_poll(box, true, &r)) {
        if (r.error != GR_SANDBOX_OK || r.code != 0) die("a command went wrong");
    }
    return gr_now_s() - start;
}

/* n live ones, half of them forks of the others, each with 100 kB of its own or its parent's. */
static void print_live(const char* tree, int helper, int n)
{
    static double ms[ROUNDS * MOST_LIVE];
    int children, mounts = count_mounts(helper);
    double start = gr_now_s();
    for (int i = 1; i <= n / 2; i++) create(i, tree);
    double created = gr_now_s() - start;
    (void)seconds_at_once(n / 2, "head -c 100000 /dev/urandom >own");
    start = gr_now_s();
    for (int i = 1; i <= n / 2; i++) (void)await(gr_sandbox_fork(box, i, n / 2 + i));
    double forked = gr_now_s() - start;
    double at_once = seconds_at_once(n, "echo x >>own2");
    for (int i = 0; i < ROUNDS * n; i++) ms[i] = time_command(1 + i % n);
    (void)child_of(helper, &children);
    qsort(ms, (size_t)(ROUNDS * n), sizeof *ms, by_size);
    printf("| %d | %.0f | %.0f | %.0f | %.1f | %.1f | %.1f | %.1f | %d | %d | %d |\n", n,
           n / 2 / created, n / 2 / forked, n / at_once, ms[ROUNDS * n / 2],
           ms[ROUNDS * n * 99 / 100], resident_mb(helper), store_mb(helper),
           count_mounts(helper) - mounts, children, count_groups(false));
}

static void end_all(int n)
{
    for (int i = 1; i <= n; i++) (void)await(gr_sandbox_end(box, i));
}

/* Asks for one more than may be, by a connection that waits so long for room. */
static void print_one_more(const gr_sandbox_settings* limits, double patience_s, const char* tree,
                           bool room)
{
    static const char* const class_name[] = {"made", "full", "refused", "broken", "gone"};
    gr_sandbox_settings s = *limits;
    gr_sandbox* other;
    gr_sandbox_reply r;
    s.patience_s = patience_s;
    if (gr_sandbox_open(&other, &s) != GR_OK) die(gr_last_error());
    double start = gr_now_s();
    int64_t asked = gr_sandbox_create(other, 1, &(gr_sandbox_tree){.tree = tree, .at = "/testbed"});
    if (room) {
        (void)gr_sandbox_poll(other, false, &r);
        (void)usleep(500000);
        (void)await(gr_sandbox_end(box, MOST_LIVE));
    }
    gr_sandbox_wait(other, asked, &r);
    printf("| %g | %s | %s | %.2f | %s |\n", patience_s, room ? "after 0.5 s" : "none",
           class_name[r.error], gr_now_s() - start, r.error == GR_SANDBOX_OK ? "" : r.reason);
    gr_sandbox_close(other);
}

static void bench_live(const char* tree)
{
    gr_sandbox_settings s;
    int n;
    gr_sandbox_defaults(&s);
    open_place(&s);
    int helper = child_of(getpid(), &n);
    double load[3] = {0};
    (void)getloadavg(load, 3);
    printf("%s. %ld processors, load average %.1f when it began; live %lld, space_mb %lld, all "
           "else as by default.\n\n",
           gr_sandbox_describe(box), sysconf(_SC_NPROCESSORS_ONLN), load[0], (long long)s.live,
           (long long)s.space_mb);
    printf("| live | created /s | forked /s | commands /s, all at once | a command, median ms | "
           "99 %% ms | helper, MB | files, MB | mounts | processes | control groups |\n"
           "|---|---|---|---|---|---|---|---|---|---|---|\n");
    static const int counts[] = {10, 100, MOST_LIVE};
    for (int i = 0; i < GR_COUNT(counts); i++) {
        if (i > 0) end_all(counts[i - 1]);
        print_live(tree, helper, counts[i]);
    }
    printf("\n| patience_s | room | one more is | after s | reason |\n|---|---|---|---|---|\n");
    print_one_more(&s, 0, tree, false);
    print_one_more(&s, 2, tree, false);
    print_one_more(&s, 30, tree, true);
    end_all(MOST_LIVE - 1);
    printf("\nAfter the last is closed: %d control groups in the helper's, %.1f MB of files.\n",
           count_groups(false), store_mb(helper));
    gr_sandbox_close(box);
    gr_sandbox_stop();
    char pattern[80];
    (void)snprintf(pattern, sizeof pattern, "%s/*", place);
    printf("After the helper's end: %d entries in its place, %d control groups.\n",
           count_paths(pattern), count_groups(true));
    (void)rmdir(place);
}

int main(int argc, char** argv)
{
    gr_sandbox_settings s;
    bool forks = argc == 3 && strcmp(argv[1], "fork") == 0;
    bool hold = argc == 2 && strcmp(argv[1], "hold") == 0;
    bool live = argc == 3 && strcmp(argv[1], "live") == 0;
    if (!forks && !hold && !live) die("fork TREE, hold, or live TREE");
    if (live) {
        bench_live(argv[2]);
        return 0;
    }
    gr_sandbox_defaults(&s);
    s.memory_mb = 256;
    s.pids = 64;
    s.disk_mb = 64;
    s.space_mb = 1024;
    if (gr_sandbox_open(&box, &s) != GR_OK) die(gr_last_error());
    if (forks) {
        bench_fork(argv[2]);
    } else {
        printf("%s; memory_mb 256, pids 64, disk_mb 64, output_mb 64, time 5 s\n\n",
               gr_sandbox_describe(box));
        create(1, "/usr/share/doc/bash");
        print_escapes();
        print_hogs();
    }
    gr_sandbox_close(box);
    gr_sandbox_stop();
    return 0;
}
