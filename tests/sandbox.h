/* sandbox.h - what the tests of sandboxes share: a base tree, requests that are waited for, and
 * what a helper holds, seen from outside. */
#pragma once
#include "tests/disk.h"

#include "envs/sandbox/files.h"
#include "envs/sandbox/sandbox.h"

static char base_tree[96]; /* what sandboxes stand on: some files, folders and links */

static inline void write_base(const char* rest, const char* text)
{
    spill(base_tree, rest, text, strlen(text));
}

static inline int make_base(void** state)
{
    char path[128];
    static const char* const folders[] = {"", "/src", "/src/deep", "/empty", "/tests"};
    if (make_scratch(state) != 0) return 1;
    (void)snprintf(base_tree, sizeof base_tree, "%s/base", scratch);
    for (int i = 0; i < GR_COUNT(folders); i++) {
        (void)snprintf(path, sizeof path, "%s%s", base_tree, folders[i]);
        if (mkdir(path, 0755) != 0) return 1;
    }
    write_base("src/a.py", "a = 1\n");
    write_base("src/b.py", "b = 2\n");
    write_base("src/deep/c.py", "c = 3\n");
    write_base("tests/test_a.py", "def test_a(): pass\n");
    (void)snprintf(path, sizeof path, "%s/link", base_tree);
    return symlink("src/a.py", path);
}

/* Limits of the tests: small, and a folder of their own that must be empty afterwards. */
static inline gr_sandbox_settings small_limits(void)
{
    gr_sandbox_settings s;
    gr_sandbox_defaults(&s);
    (void)snprintf(s.sandbox_dir, sizeof s.sandbox_dir, "%s", scratch);
    s.memory_mb = 96;
    s.pids = 48;
    s.disk_mb = 24;
    s.space_mb = 256;
    s.output_mb = 8;
    s.live = 64;
    s.cpus = 4;
    s.running = 4;
    s.patience_s = 0;
    return s;
}

/* Does this system let us make sandboxes? Says why not. */
static inline bool sandboxes_work(void)
{
    gr_sandbox_settings s = small_limits();
    gr_sandbox* b;
    gr_status st = gr_sandbox_open(&b, &s);
    if (st != GR_OK) {
        printf("SKIPPED: %s\n", gr_last_error_text());
        return false;
    }
    gr_sandbox_close(b);
    gr_sandbox_stop();
    return true;
}

static inline gr_sandbox* open_sandbox(const gr_sandbox_settings* s)
{
    gr_sandbox* b = NULL;
    ASSERT_OK(gr_sandbox_open(&b, s));
    return b;
}

static inline void close_sandbox(gr_sandbox* b)
{
    gr_sandbox_close(b);
    gr_sandbox_stop();
}

#define ASSERT_REPLY(r)                                                                     \
    do {                                                                                    \
        if ((r)->error != GR_SANDBOX_OK) fail_msg("class %d: %s", (r)->error, (r)->reason); \
    } while (0)

static inline gr_sandbox_reply create(gr_sandbox* b, int64_t number)
{
    gr_sandbox_reply r;
    const gr_sandbox_tree tree = {.tree = base_tree, .at = "/testbed"};
    gr_sandbox_wait(b, gr_sandbox_create(b, number, &tree), &r);
    return r;
}

static inline gr_sandbox_reply fork_to(gr_sandbox* b, int64_t from, int64_t to)
{
    gr_sandbox_reply r;
    gr_sandbox_wait(b, gr_sandbox_fork(b, from, to), &r);
    return r;
}

static inline gr_sandbox_reply end(gr_sandbox* b, int64_t number)
{
    gr_sandbox_reply r;
    gr_sandbox_wait(b, gr_sandbox_end(b, number), &r);
    return r;
}

static inline int64_t start_sh(gr_sandbox* b, int64_t number, const char* text, double time_s)
{
    const char* const argv[] = {"bash", "-c", text, NULL};
    const gr_sandbox_command c = {.argv = argv, .time_s = time_s, .head = 4000, .tail = 4000};
    return gr_sandbox_run(b, number, &c);
}

static inline gr_sandbox_reply sh(gr_sandbox* b, int64_t number, const char* text)
{
    gr_sandbox_reply r;
    gr_sandbox_wait(b, start_sh(b, number, text, 120), &r);
    return r;
}

/* Runs a command that must exit with `code` and print `output`. */
static inline void expect_sh(gr_sandbox* b, int64_t number, const char* text, int code,
                             const char* output)
{
    gr_sandbox_reply r = sh(b, number, text);
    ASSERT_REPLY(&r);
    bool same = r.n_output == strlen(output) && memcmp(r.output, output, r.n_output) == 0;
    if (r.cause != GR_SANDBOX_EXITED || r.code != code || !same) {
        fail_msg("`%s`: cause %d, code %d: %.*s", text, r.cause, r.code, (int)r.n_output, r.output);
    }
}

static inline uint64_t hash_of(gr_sandbox* b, int64_t number)
{
    gr_sandbox_reply r;
    gr_sandbox_wait(b, gr_sandbox_hash(b, number), &r);
    ASSERT_REPLY(&r);
    return r.hash;
}

static inline uint64_t hash_of_folder(const char* path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY);
    assert_true(fd >= 0);
    uint64_t h = gr_files_hash(fd);
    (void)close(fd);
    return h;
}

/* ---- from outside ---------------------------------------------------------------------------- */

static inline int count_entries(const char* path, const char* prefix)
{
    int n = 0;
    DIR* d = opendir(path);
    for (const struct dirent* e; d != NULL && (e = readdir(d)) != NULL;) {
        n += e->d_name[0] != '.' && strncmp(e->d_name, prefix, strlen(prefix)) == 0;
    }
    if (d != NULL) (void)closedir(d);
    return n;
}

static inline int count_lines(const char* path)
{
    int n = 0;
    FILE* f = fopen(path, "r");
    for (int c; f != NULL && (c = fgetc(f)) != EOF;) n += c == '\n';
    if (f != NULL) (void)fclose(f);
    return n;
}

/* Processes whose command line holds `word`. */
static inline int count_processes(const char* word)
{
    int n = 0;
    DIR* d = opendir("/proc");
    for (const struct dirent* e; (e = readdir(d)) != NULL;) {
        char path[300], line[4096];
        if (e->d_name[0] < '0' || e->d_name[0] > '9') continue;
        (void)snprintf(path, sizeof path, "/proc/%.20s/cmdline", e->d_name);
        int fd = open(path, O_RDONLY);
        ssize_t got = fd >= 0 ? read(fd, line, sizeof line - 1) : 0;
        if (fd >= 0) (void)close(fd);
        for (ssize_t i = 0; i < got; i++) line[i] = line[i] == 0 ? ' ' : line[i];
        line[got > 0 ? got : 0] = 0;
        n += strstr(line, word) != NULL;
    }
    (void)closedir(d);
    return n;
}

static inline int parent_of(int pid)
{
    char path[64], text[512] = "";
    int parent = 0;
    (void)snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE* f = fopen(path, "r");
    if (f == NULL) return 0;
    (void)!fread(text, 1, sizeof text - 1, f);
    (void)fclose(f);
    const char* at = strrchr(text, ')');
    if (at == NULL || at[2] == 'Z' || sscanf(at + 3, "%d", &parent) != 1) return 0;
    return parent;
}

/* The process that `parent` has started and that lives; the last one found. 0: none. */
static inline int child_of(int parent, int* n)
{
    int found = 0;
    DIR* d = opendir("/proc");
    *n = 0;
    for (const struct dirent* e; (e = readdir(d)) != NULL;) {
        int pid = atoi(e->d_name);
        if (pid <= 0 || parent_of(pid) != parent) continue;
        found = pid;
        (*n)++;
    }
    (void)closedir(d);
    return found;
}

static inline int helper_of(int parent)
{
    int n, pid = child_of(parent, &n);
    assert_int_equal(n, 1);
    return pid;
}

/* The control groups of helpers are named after their folders, which are noted here while they are
 * there: others on this machine have helpers of their own. */
static inline void note_folders(void)
{
    char path[128];
    (void)snprintf(path, sizeof path, "%s/names", scratch);
    FILE* f = fopen(path, "a");
    DIR* d = opendir(scratch);
    for (const struct dirent* e; f != NULL && d != NULL && (e = readdir(d)) != NULL;) {
        if (strncmp(e->d_name, "grove-sandbox-", 14) == 0) fprintf(f, "%s\n", e->d_name);
    }
    if (d != NULL) (void)closedir(d);
    if (f != NULL) (void)fclose(f);
}

static inline bool groups_are_gone(void)
{
    static const char* const hierarchy[] = {"",     "memory/",      "pids/",
                                            "cpu/", "cpu,cpuacct/", "unified/"};
    char path[400], name[128];
    int found = 0;
    (void)snprintf(path, sizeof path, "%s/names", scratch);
    FILE* f = fopen(path, "r");
    while (f != NULL && fgets(name, sizeof name, f) != NULL) {
        name[strcspn(name, "\n")] = 0;
        for (int i = 0; i < GR_COUNT(hierarchy); i++) {
            (void)snprintf(path, sizeof path, "/sys/fs/cgroup/%s%s", hierarchy[i], name);
            found += access(path, F_OK) == 0;
        }
    }
    if (f != NULL) (void)fclose(f);
    return found == 0;
}

static inline bool within(double seconds, bool (*holds)(void))
{
    double until = gr_now_s() + seconds;
    while (!holds()) {
        if (gr_now_s() > until) return false;
        (void)usleep(5000);
    }
    return true;
}

static inline bool nothing_left(void) { return count_entries(scratch, "grove-sandbox-") == 0; }
