#include "envs/sandbox/place.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "envs/sandbox/files.h"
#include "envs/sandbox/limits.h"

#define PREFIX "grove-sandbox-"
enum { TRIES = 16, HALF_MADE_S = 60 };

/* ---- what dead helpers left ------------------------------------------------------------------ */

/* The lock of a folder of ours whose helper is dead, or -1. */
static int lock_of_dead(int folder)
{
    struct stat s;
    struct timespec now;
    if (fstat(folder, &s) != 0 || !S_ISDIR(s.st_mode) || s.st_uid != geteuid()) return -1;
    int fd = openat(folder, "lock", O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT) { /* dead between two calls, or about to go on */
        (void)clock_gettime(CLOCK_REALTIME, &now);
        if (now.tv_sec - s.st_mtim.tv_sec < HALF_MADE_S) return -1;
        fd = openat(folder, "lock", O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    }
    if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0) return fd;
    if (fd >= 0) (void)close(fd);
    return -1;
}

static void sweep(const gr_sandbox_settings* s)
{
    DIR* d = opendir(s->sandbox_dir);
    const struct dirent* e;
    while (d != NULL && (e = readdir(d)) != NULL) {
        if (strncmp(e->d_name, PREFIX, strlen(PREFIX)) != 0) continue;
        int folder = openat(dirfd(d), e->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        int lock = folder >= 0 ? lock_of_dead(folder) : -1;
        if (lock >= 0) {
            gr_groups_sweep("/proc/self/mounts", s->cgroup, e->d_name);
            if (gr_files_remove(dirfd(d), e->d_name) != GR_OK)
                gr_log("sandbox: cannot remove %s/%s: %s", s->sandbox_dir, e->d_name,
                       gr_last_error_text());
            (void)close(lock);
        }
        if (folder >= 0) (void)close(folder);
    }
    if (d != NULL) (void)closedir(d);
}

/* ---- the folder ------------------------------------------------------------------------------ */

/* False if it is another's already: a sweep of a helper that started at the same time. */
static bool lock_folder(gr_place* p)
{
    char path[sizeof p->folder + 8];
    struct stat s;
    (void)snprintf(path, sizeof path, "%s/lock", p->folder);
    p->lock = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (p->lock >= 0 && flock(p->lock, LOCK_EX | LOCK_NB) == 0 && fstat(p->lock, &s) == 0 &&
        s.st_nlink > 0) {
        return true;
    }
    if (p->lock >= 0) (void)close(p->lock);
    p->lock = -1;
    return false;
}

static gr_status make_folder(gr_place* p, const char* dir)
{
    for (int i = 0; i < TRIES; i++) {
        (void)snprintf(p->folder, sizeof p->folder, "%s/" PREFIX "XXXXXX", dir);
        if (gr_fault("sandbox.folder") || mkdtemp(p->folder) == NULL) break;
        (void)snprintf(p->name, sizeof p->name, "%s", strrchr(p->folder, '/') + 1);
        if (lock_folder(p)) return GR_OK;
    }
    p->folder[0] = 0;
    return GR_FAIL(GR_EIO, "sandbox_dir: %s: %s", dir, strerror(errno));
}

/* ---- namespaces ------------------------------------------------------------------------------ */

static bool write_text(const char* path, const char* text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    bool good = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    if (fd >= 0) (void)close(fd);
    return good;
}

/* As root a mount namespace; else a user namespace as well, in which we have root's rights. */
static gr_status enter_namespaces(gr_place* p)
{
    char uid[64], gid[64];
    (void)snprintf(uid, sizeof uid, "0 %u 1\n", geteuid());
    (void)snprintf(gid, sizeof gid, "0 %u 1\n", getegid());
    p->as_root = geteuid() == 0 && !gr_fault("sandbox.root") && unshare(CLONE_NEWNS) == 0;
    if (!p->as_root &&
        (gr_fault("sandbox.namespace") || unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0 ||
         !write_text("/proc/self/setgroups", "deny") || !write_text("/proc/self/uid_map", uid) ||
         !write_text("/proc/self/gid_map", gid))) {
        return GR_FAIL(GR_EIO,
                       "this system lets user %u create no namespaces (%s): no sandbox is possible",
                       geteuid(), strerror(errno));
    }
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0) {
        return GR_FAIL(GR_EIO, "private mounts: %s", strerror(errno));
    }
    return GR_OK;
}

static gr_status mount_store(gr_place* p, int64_t space_mb)
{
    char path[sizeof p->folder + 8], options[64];
    (void)snprintf(path, sizeof path, "%s/store", p->folder);
    (void)snprintf(options, sizeof options, "size=%lldm,nr_inodes=%lld,mode=711",
                   (long long)space_mb, (long long)space_mb * 256);
    if (gr_fault("sandbox.store") || mkdir(path, 0700) != 0 ||
        mount("tmpfs", path, "tmpfs", MS_NOSUID, options) != 0 || chdir(path) != 0) {
        return GR_FAIL(GR_EIO, "store %s: %s", path, strerror(errno));
    }
    p->store = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return p->store >= 0 ? GR_OK : GR_FAIL(GR_EIO, "store %s: %s", path, strerror(errno));
}

gr_status gr_place_open(gr_place* p, const gr_sandbox_settings* s)
{
    *p = (gr_place){.lock = -1, .store = -1};
    sweep(s);
    gr_status st = make_folder(p, s->sandbox_dir);
    if (st == GR_OK) st = enter_namespaces(p);
    if (st == GR_OK) st = mount_store(p, s->space_mb);
    if (st != GR_OK) gr_place_close(p);
    return st;
}

void gr_place_close(gr_place* p)
{
    char store[sizeof p->folder + 8];
    if (p->store >= 0) (void)close(p->store);
    if (p->folder[0] != 0) {
        (void)chdir("/");
        (void)snprintf(store, sizeof store, "%s/store", p->folder);
        (void)umount2(store, MNT_DETACH);
        if (gr_files_remove(AT_FDCWD, p->folder) != GR_OK)
            gr_log("sandbox: %s", gr_last_error_text());
    }
    if (p->lock >= 0) (void)close(p->lock);
    *p = (gr_place){.lock = -1, .store = -1};
}
