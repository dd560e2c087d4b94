/* skeleton.c - the system as commands see it: programs and libraries read-only, a few devices. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "envs/sandbox/confine.h"

static const char* const folders[] = {
    "skel/usr",     "skel/etc",     "skel/proc", "skel/sys", "skel/dev",
    "skel/dev/shm", "skel/dev/pts", "skel/tmp",  "skel/run", "skel/root",
    "skel/var",     "skel/opt",     "stage",     "whole", /* for `rest`, and for whole systems */
};
static const char* const system_folders[] = {"usr", "etc", "bin", "sbin", "lib", "lib32", "lib64"};
static const char* const devices[] = {"null", "zero", "full", "random", "urandom", "tty"};
static const char* const links[][2] = {
    {"pts/ptmx", "skel/dev/ptmx"},          {"/proc/self/fd", "skel/dev/fd"},
    {"/proc/self/fd/0", "skel/dev/stdin"},  {"/proc/self/fd/1", "skel/dev/stdout"},
    {"/proc/self/fd/2", "skel/dev/stderr"}, {"/tmp", "skel/var/tmp"},
};

static gr_status failed(const char* what, const char* path)
{
    return GR_FAIL(GR_EIO, "sandbox: %s %s: %s", what, path, strerror(errno));
}

/* Shows `from` at the existing `to`. */
static gr_status show(const char* from, const char* to, uint64_t attributes)
{
    struct mount_attr attr = {.attr_set = attributes};
    int fd = open_tree(AT_FDCWD, from, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_RECURSIVE);
    if (fd < 0) return failed("open", from);
    bool good = !gr_fault("sandbox.skeleton") &&
                mount_setattr(fd, "", AT_EMPTY_PATH | AT_RECURSIVE, &attr, sizeof attr) == 0 &&
                move_mount(fd, "", AT_FDCWD, to, MOVE_MOUNT_F_EMPTY_PATH) == 0;
    gr_status st = good ? GR_OK : failed("mount", to);
    (void)close(fd);
    return st;
}

/* /usr and /etc, and the folders that today's systems have as links into /usr. */
static gr_status show_system(const char* name)
{
    char from[64], to[64], target[PATH_MAX];
    struct stat s;
    (void)snprintf(from, sizeof from, "/%s", name);
    (void)snprintf(to, sizeof to, "skel/%s", name);
    if (lstat(from, &s) != 0) return GR_OK;
    if (S_ISLNK(s.st_mode)) {
        ssize_t n = readlink(from, target, sizeof target - 1);
        target[n > 0 ? n : 0] = 0;
        return symlink(target, to) == 0 ? GR_OK : failed("link", to);
    }
    if (mkdir(to, 0755) != 0 && errno != EEXIST) return failed("create", to);
    return show(from, to, MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV);
}

static gr_status show_device(const char* name)
{
    char from[64], to[64];
    (void)snprintf(from, sizeof from, "/dev/%s", name);
    (void)snprintf(to, sizeof to, "skel/dev/%s", name);
    if (access(from, F_OK) != 0) return GR_OK;
    int fd = open(to, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0644);
    if (fd < 0) return failed("create", to);
    (void)close(fd);
    return show(from, to, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC);
}

gr_status gr_skeleton_make(void)
{
    if (mkdir("skel", 0755) != 0) return failed("create", "skel");
    if (mount("tmpfs", "skel", "tmpfs", MS_NOSUID, "size=1m,mode=755") != 0) {
        return failed("mount", "skel");
    }
    for (int i = 0; i < GR_COUNT(folders); i++) {
        if (mkdir(folders[i], 0755) != 0) return failed("create", folders[i]);
    }
    for (int i = 0; i < GR_COUNT(system_folders); i++) GR_TRY(show_system(system_folders[i]));
    for (int i = 0; i < GR_COUNT(devices); i++) GR_TRY(show_device(devices[i]));
    for (int i = 0; i < GR_COUNT(links); i++) {
        if (symlink(links[i][0], links[i][1]) != 0) return failed("link", links[i][1]);
    }
    return GR_OK;
}

bool gr_skeleton_way(const char* path)
{
    char at[PATH_MAX];
    if (snprintf(at, sizeof at, "%s", path) >= (int)sizeof at) return false;
    for (char* slash = strchr(at, '/'); slash != NULL;) { /* each folder on the way, then itself */
        char* next = strchr(slash + 1, '/');
        if (next != NULL) *next = 0;
        if (mkdir(at, 0755) != 0 && errno != EEXIST) return false;
        if (next != NULL) *next = '/';
        slash = next;
    }
    return true;
}

gr_status gr_skeleton_place(const char* path)
{
    char at[PATH_MAX];
    if (path[0] != '/' || strstr(path, "..") != NULL) {
        return GR_FAIL(GR_EARG, "%.200s: no absolute path", path);
    }
    int n = snprintf(at, sizeof at, "skel%s", path);
    if (n < (int)sizeof at && gr_skeleton_way(at)) return GR_OK;
    return GR_FAIL(GR_EARG, "%.200s: no place for it: %s", path, strerror(errno));
}
