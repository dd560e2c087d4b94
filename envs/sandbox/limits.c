#include "envs/sandbox/limits.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <mntent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_CAP = 768, FOLDER_CAP = 600, PERIOD_US = 100000, MIB = 1 << 20, SWEEP_TRIES = 200 };

static const char* const kind_name[] = {"memory", "pids", "cpu"};

/* ---- control files --------------------------------------------------------------------------- */

static bool write_file(const char* folder, const char* file, const char* text)
{
    char path[PATH_CAP];
    (void)snprintf(path, sizeof path, "%s/%s", folder, file);
    if (gr_fault("sandbox.group")) return false;
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    size_t n = strlen(text);
    bool good = fd >= 0 && write(fd, text, n) == (ssize_t)n;
    if (fd >= 0) (void)close(fd);
    return good;
}

static bool write_number(const char* folder, const char* file, long long number)
{
    char text[32];
    (void)snprintf(text, sizeof text, "%lld", number);
    return write_file(folder, file, text);
}

/* The file's text, cut to fit; "" if it cannot be read. */
static void read_file(const char* folder, const char* file, char* out, size_t cap)
{
    char path[PATH_CAP];
    (void)snprintf(path, sizeof path, "%s/%s", folder, file);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, out, cap - 1) : 0;
    out[n > 0 ? n : 0] = 0;
    if (fd >= 0) (void)close(fd);
}

/* Is `word` one of the words of a text? */
static bool has_word(const char* text, const char* word)
{
    size_t n = strlen(word);
    for (const char* at = text; (at = strstr(at, word)) != NULL; at += n) {
        bool starts = at == text || strchr(" ,\n", at[-1]) != NULL;
        if (starts && (at[n] == 0 || strchr(" ,\n", at[n]) != NULL)) return true;
    }
    return false;
}

/* ---- hierarchies ----------------------------------------------------------------------------- */

/* Where each kind's hierarchy is mounted; returns their version. One in version 1 wins, because a
 * kind is in one hierarchy only and the other mount is then an empty shell. */
static int find(const char* mounts, char mount[GR_GROUP_KINDS][256])
{
    char unified[256] = "", controllers[512];
    int version = 0;
    struct mntent m;
    char line[4096];
    memset(mount, 0, GR_GROUP_KINDS * sizeof mount[0]);
    FILE* f = setmntent(mounts, "re");
    if (f == NULL) return 0;
    while (getmntent_r(f, &m, line, sizeof line) != NULL) {
        if (strcmp(m.mnt_type, "cgroup2") == 0) {
            (void)snprintf(unified, sizeof unified, "%s", m.mnt_dir);
        }
        if (strcmp(m.mnt_type, "cgroup") != 0) continue;
        for (int k = 0; k < GR_GROUP_KINDS; k++) {
            if (!has_word(m.mnt_opts, kind_name[k])) continue;
            (void)snprintf(mount[k], sizeof mount[k], "%s", m.mnt_dir);
            version = 1;
        }
    }
    (void)endmntent(f);
    if (version == 1 || unified[0] == 0) return version;
    read_file(unified, "cgroup.controllers", controllers, sizeof controllers);
    for (int k = 0; k < GR_GROUP_KINDS; k++) {
        if (!has_word(controllers, kind_name[k])) continue;
        (void)snprintf(mount[k], sizeof mount[k], "%s", unified);
        version = 2;
    }
    return version;
}

/* Path of folder `name` in group `in` of a mounted hierarchy. */
static void place(char out[FOLDER_CAP], const char* mount, const char* in, const char* name)
{
    (void)snprintf(out, FOLDER_CAP, "%.255s%.255s%s%.64s", mount, strcmp(in, "/") == 0 ? "" : in,
                   name[0] ? "/" : "", name);
}

/* Version 2 hands controllers down from level to level. */
static bool hand_down(const char* folder, int kind)
{
    char have[512], text[16];
    read_file(folder, "cgroup.subtree_control", have, sizeof have);
    if (has_word(have, kind_name[kind])) return true;
    (void)snprintf(text, sizeof text, "+%s", kind_name[kind]);
    return write_file(folder, "cgroup.subtree_control", text);
}

static bool make_folder(const char* path)
{
    return !gr_fault("sandbox.group") && (mkdir(path, 0755) == 0 || errno == EEXIST);
}

void gr_groups_open(gr_groups* g, const char* mounts, const char* in, const char* name,
                    char* notice, size_t cap)
{
    char mount[GR_GROUP_KINDS][256], parent[FOLDER_CAP];
    size_t n = 0;
    memset(g, 0, sizeof *g);
    int version = find(mounts, mount);
    for (int k = 0; k < GR_GROUP_KINDS; k++) {
        place(parent, mount[k], in, "");
        place(g->folder[k], mount[k], in, name);
        bool good = mount[k][0] != 0 && (version == 1 || hand_down(parent, k)) &&
                    make_folder(g->folder[k]) && (version == 1 || hand_down(g->folder[k], k));
        if (good) {
            g->version = version;
        } else {
            g->folder[k][0] = 0;
            n += (size_t)snprintf(n < cap ? notice + n : NULL, n < cap ? cap - n : 0, "%s%s",
                                  n > 0 ? ", " : "no control group here for ", kind_name[k]);
        }
    }
}

/* Folders below `folder`, one level, then itself. Kernel folders are removed by rmdir alone. */
static void remove_groups(const char* folder, bool kill_first)
{
    char path[PATH_CAP], procs[4096];
    DIR* d = opendir(folder);
    const struct dirent* e;
    while (d != NULL && (e = readdir(d)) != NULL) {
        if (e->d_type != DT_DIR || e->d_name[0] == '.') continue;
        (void)snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        for (int i = 0; i < SWEEP_TRIES && rmdir(path) != 0 && errno == EBUSY && kill_first; i++) {
            read_file(path, "cgroup.procs", procs, sizeof procs);
            for (char* at = procs; *at != 0;) {
                long pid = strtol(at, &at, 10);
                if (pid > 1) (void)kill((pid_t)pid, SIGKILL);
                at += strspn(at, "\n ");
            }
            (void)usleep(5000);
        }
    }
    if (d != NULL) (void)closedir(d);
    (void)rmdir(folder);
}

void gr_groups_close(gr_groups* g)
{
    for (int k = 0; k < GR_GROUP_KINDS; k++) {
        if (g->folder[k][0] != 0) remove_groups(g->folder[k], false);
    }
}

void gr_groups_sweep(const char* mounts, const char* in, const char* name)
{
    char mount[GR_GROUP_KINDS][256], folder[FOLDER_CAP];
    (void)find(mounts, mount);
    for (int k = 0; k < GR_GROUP_KINDS; k++) {
        if (mount[k][0] == 0) continue;
        place(folder, mount[k], in, name);
        remove_groups(folder, true);
    }
}

/* ---- groups of sandboxes --------------------------------------------------------------------- */

static void path_of(const gr_groups* g, int kind, int64_t number, char out[PATH_CAP])
{
    (void)snprintf(out, PATH_CAP, "%s/%lld", g->folder[kind], (long long)number);
}

static bool limit_memory(const gr_groups* g, const char* group, int64_t bytes)
{
    if (g->version == 1) {
        bool good = write_number(group, "memory.limit_in_bytes", bytes);
        (void)write_number(group, "memory.memsw.limit_in_bytes", bytes); /* where swap counts */
        return good;
    }
    (void)write_file(group, "memory.swap.max", "0");
    (void)write_file(group, "memory.oom.group", "1");
    return write_number(group, "memory.max", bytes);
}

static bool limit_cpu(const gr_groups* g, const char* group, double cpus)
{
    char text[64];
    if (g->version == 1) {
        return write_number(group, "cpu.cfs_period_us", PERIOD_US) &&
               write_number(group, "cpu.cfs_quota_us", (long long)(cpus * PERIOD_US));
    }
    (void)snprintf(text, sizeof text, "%lld %d", (long long)(cpus * PERIOD_US), PERIOD_US);
    return write_file(group, "cpu.max", text);
}

static bool limit(const gr_groups* g, int kind, const char* group, const gr_sandbox_settings* s)
{
    if (kind == GR_GROUP_MEMORY) return limit_memory(g, group, s->memory_mb * MIB);
    if (kind == GR_GROUP_PIDS) return write_number(group, "pids.max", s->pids);
    return limit_cpu(g, group, s->cpus);
}

gr_status gr_group_make(const gr_groups* g, int64_t number, const gr_sandbox_settings* limits)
{
    char path[PATH_CAP];
    for (int k = 0; k < GR_GROUP_KINDS; k++) {
        if (g->folder[k][0] == 0) continue;
        path_of(g, k, number, path);
        if (!make_folder(path) || !limit(g, k, path, limits)) {
            int why = errno;
            gr_group_remove(g, number);
            return GR_FAIL(GR_EIO, "control group %s: %s", path, strerror(why));
        }
    }
    return GR_OK;
}

gr_status gr_group_enter(const gr_groups* g, int64_t number, pid_t pid)
{
    char path[PATH_CAP];
    bool entered = false;
    for (int k = 0; k < GR_GROUP_KINDS; k++) {
        if (g->folder[k][0] == 0 || (g->version == 2 && entered)) continue;
        path_of(g, k, number, path);
        entered = write_number(path, "cgroup.procs", pid);
        if (!entered) return GR_FAIL(GR_EIO, "control group %s: %s", path, strerror(errno));
    }
    return GR_OK;
}

int64_t gr_group_kills(const gr_groups* g, int64_t number)
{
    char path[PATH_CAP], text[512];
    if (g->folder[GR_GROUP_MEMORY][0] == 0) return 0;
    path_of(g, GR_GROUP_MEMORY, number, path);
    read_file(path, g->version == 1 ? "memory.oom_control" : "memory.events", text, sizeof text);
    const char* at = strstr(text, "oom_kill ");
    return at != NULL ? strtoll(at + strlen("oom_kill "), NULL, 10) : 0;
}

void gr_group_remove(const gr_groups* g, int64_t number)
{
    char path[PATH_CAP];
    for (int k = 0; k < GR_GROUP_KINDS; k++) {
        if (g->folder[k][0] == 0) continue;
        path_of(g, k, number, path);
        (void)rmdir(path);
    }
}

/* ---- resource limits ------------------------------------------------------------------------- */

static void lower(int what, rlim_t value)
{
    struct rlimit r;
    if (getrlimit((__rlimit_resource_t)what, &r) != 0) return;
    r.rlim_max = GR_MIN(r.rlim_max, value);
    r.rlim_cur = r.rlim_max;
    (void)setrlimit((__rlimit_resource_t)what, &r);
}

void gr_limits_apply(const gr_groups* g, const gr_sandbox_settings* limits)
{
    lower(RLIMIT_CORE, 0);
    lower(RLIMIT_FSIZE, (rlim_t)limits->disk_mb * MIB);
    lower(RLIMIT_NOFILE, 4096);
    lower(RLIMIT_MEMLOCK, 8 * MIB);
    lower(RLIMIT_MSGQUEUE, MIB);
    if (g->folder[GR_GROUP_MEMORY][0] == 0) lower(RLIMIT_AS, (rlim_t)limits->memory_mb * MIB);
    /* counted per user namespace, and each command has its own */
    if (g->folder[GR_GROUP_PIDS][0] == 0) lower(RLIMIT_NPROC, (rlim_t)limits->pids);
}
