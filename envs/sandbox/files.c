#include "envs/sandbox/files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

enum {
    PAGE = 4096,
    NEAR = 64, /* levels that removal descends before it lifts what is deeper to the top */
};

/* ---- folders --------------------------------------------------------------------------------- */

static DIR* open_folder(int at, const char* name)
{
    int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR* d = fd < 0 ? NULL : fdopendir(fd);
    if (d == NULL && fd >= 0) (void)close(fd);
    return d;
}

/* The next entry's name, without "." and ".."; NULL at the end. */
static const char* next_name(DIR* d)
{
    const struct dirent* e;
    while ((e = readdir(d)) != NULL) {
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0) return e->d_name;
    }
    return NULL;
}

static gr_status failed(const char* what, const char* name)
{
    return GR_FAIL(errno == ENOSPC || errno == ENOMEM ? GR_ENOMEM : GR_EIO, "%s %.100s: %s", what,
                   name, strerror(errno));
}

/* ---- remove ---------------------------------------------------------------------------------- */

typedef struct removal {
    int top;
    int64_t lifted; /* folders moved to the top because they were too deep */
} removal;

static gr_status remove_from(removal* r, int at, const char* name, int depth);

static gr_status empty(removal* r, DIR* d, int depth)
{
    const char* name;
    while ((name = next_name(d)) != NULL) GR_TRY(remove_from(r, dirfd(d), name, depth));
    return GR_OK;
}

static gr_status remove_from(removal* r, int at, const char* name, int depth)
{
    if (unlinkat(at, name, 0) == 0 || errno == ENOENT) return GR_OK;
    if (errno != EISDIR && errno != EPERM) return failed("remove", name);
    if (depth == NEAR) {
        char lifted[64];
        (void)snprintf(lifted, sizeof lifted, ".lifted-%lld", (long long)r->lifted++);
        if (renameat(at, name, r->top, lifted) != 0) return failed("lift", name);
        return GR_OK;
    }
    DIR* d = open_folder(at, name);
    if (d == NULL) return failed("open", name);
    gr_status st = empty(r, d, depth + 1);
    (void)closedir(d);
    if (st == GR_OK && unlinkat(at, name, AT_REMOVEDIR) != 0) st = failed("remove", name);
    return st;
}

gr_status gr_files_remove(int at, const char* name)
{
    if (gr_fault("sandbox.remove")) return GR_FAIL(GR_EIO, "remove %s: injected fault", name);
    if (unlinkat(at, name, 0) == 0 || errno == ENOENT) return GR_OK;
    if (errno != EISDIR && errno != EPERM) return failed("remove", name);
    DIR* top = open_folder(at, name);
    if (top == NULL) return failed("open", name);
    removal r = {.top = dirfd(top)};
    gr_status st = GR_OK;
    int64_t before;
    do { /* once more whenever something was lifted */
        before = r.lifted;
        rewinddir(top);
        st = empty(&r, top, 1);
    } while (st == GR_OK && r.lifted != before);
    (void)closedir(top);
    if (st == GR_OK && unlinkat(at, name, AT_REMOVEDIR) != 0) st = failed("remove", name);
    return st;
}

/* ---- copy ------------------------------------------------------------------------------------ */

static gr_status copy_bytes(int from, int to, const char* name)
{
    static char block[1 << 16];
    for (;;) {
        ssize_t n = copy_file_range(from, NULL, to, NULL, 1 << 30, 0);
        if (n > 0) continue;
        if (n == 0 && lseek(from, 0, SEEK_CUR) > 0) return GR_OK;
        break; /* not between these file systems, or nothing in it */
    }
    ssize_t n;
    while ((n = read(from, block, sizeof block)) > 0) {
        for (ssize_t done = 0; done < n;) {
            ssize_t wrote = write(to, block + done, (size_t)(n - done));
            if (wrote < 0) return failed("copy", name);
            done += wrote;
        }
    }
    return n == 0 ? GR_OK : failed("copy", name);
}

static gr_status copy_file(int from, const char* name, int to)
{
    int in = openat(from, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (in < 0) return failed("open", name);
    int out = openat(to, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    gr_status st = out < 0 ? failed("create", name) : copy_bytes(in, out, name);
    if (out >= 0) (void)close(out);
    (void)close(in);
    return st;
}

static gr_status copy_link(int from, const char* name, int to)
{
    char target[4096];
    ssize_t n = readlinkat(from, name, target, sizeof target - 1);
    if (n < 0) return failed("read link", name);
    target[n] = 0;
    return symlinkat(target, to, name) == 0 ? GR_OK : failed("link", name);
}

/* Owner, mode and times, in an order in which none undoes another. */
static gr_status dress(int to, const char* name, const struct stat* s, uid_t owner)
{
    const struct timespec times[2] = {s->st_atim, s->st_mtim};
    if (fchownat(to, name, owner, owner, AT_SYMLINK_NOFOLLOW) != 0) return failed("own", name);
    if (!S_ISLNK(s->st_mode) && fchmodat(to, name, s->st_mode & 07777, 0) != 0) {
        return failed("mode of", name);
    }
    (void)utimensat(to, name, times, AT_SYMLINK_NOFOLLOW);
    return GR_OK;
}

static gr_status copy_entry(int from, const char* name, int to, const char* as, uid_t owner)
{
    struct stat s;
    if (fstatat(from, name, &s, AT_SYMLINK_NOFOLLOW) != 0) return failed("look at", name);
    gr_status st = GR_OK;
    if (S_ISDIR(s.st_mode)) {
        if (mkdirat(to, as, 0700) != 0) return failed("create", as);
        DIR* d = open_folder(from, name);
        int below = openat(to, as, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (d == NULL || below < 0) st = failed("open", name);
        const char* child;
        while (st == GR_OK && (child = next_name(d)) != NULL) {
            st = copy_entry(dirfd(d), child, below, child, owner);
        }
        if (d != NULL) (void)closedir(d);
        if (below >= 0) (void)close(below);
    } else if (S_ISREG(s.st_mode)) {
        st = copy_file(from, name, to);
    } else if (S_ISLNK(s.st_mode)) {
        st = copy_link(from, name, to);
    } else {
        return GR_OK;
    }
    return st == GR_OK ? dress(to, as, &s, owner) : st;
}

gr_status gr_files_copy(int from, int at, const char* name, uid_t owner)
{
    if (gr_fault("sandbox.copy")) return GR_FAIL(GR_EIO, "copy %s: injected fault", name);
    return copy_entry(from, ".", at, name, owner);
}

/* ---- merge ----------------------------------------------------------------------------------- */

static bool is_opaque(int folder, const char* opaque)
{
    char value[8];
    return fgetxattr(folder, opaque, value, sizeof value) == 1 && value[0] == 'y';
}

/* A folder where `into` has something else, or where `upper` hides it, starts empty and must go on
 * hiding what lower layers have of that name. */
static gr_status make_room(int into, const char* name, bool hides, const char* opaque)
{
    struct stat old;
    bool any = fstatat(into, name, &old, AT_SYMLINK_NOFOLLOW) == 0;
    if (any && S_ISDIR(old.st_mode) && !hides) return GR_OK;
    if (any) GR_TRY(gr_files_remove(into, name));
    if (mkdirat(into, name, 0700) != 0) return failed("create", name);
    if (!any && !hides) return GR_OK;
    int fd = openat(into, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    bool set = fd >= 0 && fsetxattr(fd, opaque, "y", 1, 0) == 0;
    if (fd >= 0) (void)close(fd);
    return set ? GR_OK : failed("mark", name);
}

static gr_status merge_entry(int upper, const char* name, int into, const char* opaque);

static gr_status merge_folder(int upper, const char* name, int into, const struct stat* s,
                              const char* opaque)
{
    DIR* d = open_folder(upper, name);
    if (d == NULL) return failed("open", name);
    gr_status st = make_room(into, name, is_opaque(dirfd(d), opaque), opaque);
    int below = openat(into, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (st == GR_OK && below < 0) st = failed("open", name);
    const char* child;
    while (st == GR_OK && (child = next_name(d)) != NULL) {
        st = merge_entry(dirfd(d), child, below, opaque);
    }
    if (below >= 0) (void)close(below);
    (void)closedir(d);
    return st == GR_OK ? dress(into, name, s, s->st_uid) : st;
}

static gr_status merge_entry(int upper, const char* name, int into, const char* opaque)
{
    struct stat s;
    if (fstatat(upper, name, &s, AT_SYMLINK_NOFOLLOW) != 0) return failed("look at", name);
    if (S_ISDIR(s.st_mode)) return merge_folder(upper, name, into, &s, opaque);
    GR_TRY(gr_files_remove(into, name)); /* what marks a deleted name is linked like a file */
    return linkat(upper, name, into, name, 0) == 0 ? GR_OK : failed("link", name);
}

gr_status gr_files_merge(int upper, int into, const char* opaque)
{
    DIR* d = open_folder(upper, ".");
    struct stat s;
    if (d == NULL || fstat(upper, &s) != 0) return failed("open", "layer");
    gr_status st = GR_OK;
    const char* child;
    while (st == GR_OK && (child = next_name(d)) != NULL) {
        st = merge_entry(upper, child, into, opaque);
    }
    (void)closedir(d);
    return st == GR_OK ? dress(into, ".", &s, s.st_uid) : st;
}

/* ---- size ------------------------------------------------------------------------------------ */

int64_t gr_files_size(int folder)
{
    DIR* d = open_folder(folder, ".");
    if (d == NULL) return 0;
    int64_t sum = 0;
    const char* name;
    while ((name = next_name(d)) != NULL) {
        struct stat s;
        if (fstatat(dirfd(d), name, &s, AT_SYMLINK_NOFOLLOW) != 0) continue;
        sum += GR_MAX((int64_t)s.st_blocks * 512, PAGE);
        int below =
            S_ISDIR(s.st_mode) ? openat(dirfd(d), name, O_PATH | O_NOFOLLOW | O_CLOEXEC) : -1;
        if (below < 0) continue;
        sum += gr_files_size(below);
        (void)close(below);
    }
    (void)closedir(d);
    return sum;
}

/* ---- hash ------------------------------------------------------------------------------------ */

static uint64_t hash_content(int at, const char* name, const struct stat* s, uint64_t h)
{
    char block[1 << 14];
    if (S_ISLNK(s->st_mode)) {
        ssize_t n = readlinkat(at, name, block, sizeof block);
        return gr_hash64(block, n > 0 ? (size_t)n : 0, h);
    }
    if (!S_ISREG(s->st_mode)) return h;
    int fd = openat(at, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    ssize_t n = -1;
    while (fd >= 0 && (n = read(fd, block, sizeof block)) > 0) h = gr_hash64(block, (size_t)n, h);
    if (fd >= 0) (void)close(fd);
    return n == 0 ? h : gr_key_join(h, 1); /* unreadable */
}

/* A sum over the entries, so that their order on disk does not matter. */
static uint64_t hash_folder(int at, const char* path, bool top)
{
    DIR* d = open_folder(at, path);
    if (d == NULL) return 1; /* unreadable, or too deep for this process */
    uint64_t sum = 0;
    const char* name;
    while ((name = next_name(d)) != NULL) {
        struct stat s;
        if (top && strcmp(name, ".git") == 0) continue;
        if (fstatat(dirfd(d), name, &s, AT_SYMLINK_NOFOLLOW) != 0) continue;
        uint64_t h = gr_key_join(gr_hash64(name, strlen(name), 0), s.st_mode);
        sum += S_ISDIR(s.st_mode) ? gr_key_join(h, hash_folder(dirfd(d), name, false))
                                  : hash_content(dirfd(d), name, &s, h);
    }
    (void)closedir(d);
    return sum;
}

uint64_t gr_files_hash(int folder) { return hash_folder(folder, ".", true); }
