#include "host/durable.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PATH_MAX_BYTES 1200

/* The outside call at `place` is to fail, as if the disk had. */
static bool faulty(const char* place)
{
    if (!gr_fault(place)) return false;
    errno = EIO;
    return true;
}

static gr_status cannot(const char* verb, const char* path)
{
    return GR_FAIL(GR_EIO, "%s: cannot %s: %s", path, verb, strerror(errno));
}

bool gr_exists(const char* path)
{
    struct stat info;
    return stat(path, &info) == 0;
}

static bool is_folder(const char* path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

static gr_status make_folder(const char* path)
{
    if (faulty("record.open") || mkdir(path, 0777) != 0) return cannot("create", path);
    return GR_OK;
}

gr_status gr_make_folders(const char* path)
{
    char part[PATH_MAX_BYTES], parent[PATH_MAX_BYTES] = ".";
    size_t n = strlen(path);
    if (n >= sizeof part) return GR_FAIL(GR_EARG, "%.80s...: path of %zu bytes", path, n);
    for (size_t i = 1; i <= n; i++) {
        if (path[i] != '/' && path[i] != 0) continue;
        (void)snprintf(part, sizeof part, "%.*s", (int)i, path);
        if (!is_folder(part)) {
            GR_TRY(make_folder(part));
            GR_TRY(gr_sync(parent));
        }
        (void)snprintf(parent, sizeof parent, "%s", part);
    }
    return GR_OK;
}

gr_status gr_sync(const char* path)
{
    int fd = faulty("record.open") ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return cannot("open", path);
    bool failed = faulty("record.sync") || fsync(fd) != 0;
    int cause = errno;
    (void)close(fd);
    errno = cause;
    return failed ? cannot("sync", path) : GR_OK;
}

gr_status gr_write_file(const char* path, const char* text, size_t n)
{
    FILE* f = faulty("record.open") ? NULL : fopen(path, "we");
    if (f == NULL) return cannot("create", path);
    bool failed = faulty("record.write") || fwrite(text, 1, n, f) != n || fflush(f) != 0;
    bool unsynced = !failed && (faulty("record.sync") || fsync(fileno(f)) != 0);
    int cause = errno;
    if (fclose(f) != 0 && !failed && !unsynced) {
        failed = true;
        cause = errno;
    }
    errno = cause;
    if (failed) return cannot("write", path);
    return unsynced ? cannot("sync", path) : GR_OK;
}

gr_status gr_rename(const char* from, const char* to)
{
    if (faulty("record.rename") || rename(from, to) != 0) return cannot("rename", from);
    return GR_OK;
}

gr_status gr_replace_file(const char* path, const char* text, size_t n)
{
    char aside[PATH_MAX_BYTES + 8], folder[PATH_MAX_BYTES];
    (void)snprintf(aside, sizeof aside, "%s.part", path);
    (void)snprintf(folder, sizeof folder, "%s", path);
    char* slash = strrchr(folder, '/');
    if (slash != NULL) *slash = 0;
    gr_status st = gr_write_file(aside, text, n);
    if (st == GR_OK) st = gr_rename(aside, path);
    if (st != GR_OK) {
        (void)unlink(aside);
        return st;
    }
    return gr_sync(slash != NULL ? folder : ".");
}

gr_status gr_read_file(const char* path, char* text, size_t cap, size_t* n)
{
    FILE* f = faulty("record.open") ? NULL : fopen(path, "re");
    if (f == NULL) return cannot("open", path);
    errno = EIO;
    *n = faulty("record.read") ? 0 : fread(text, 1, cap, f);
    bool failed = ferror(f) || (*n < cap && !feof(f));
    int cause = errno;
    (void)fclose(f);
    errno = cause;
    if (failed) return cannot("read", path);
    if (*n == cap) return GR_FAIL(GR_EDATA, "%s: larger than %zu bytes", path, cap - 1);
    text[*n] = 0;
    return GR_OK;
}

gr_status gr_hash_file(const char* path, int64_t* bytes, uint64_t* hash)
{
    char block[1 << 16];
    FILE* f = faulty("record.open") ? NULL : fopen(path, "re");
    if (f == NULL) return cannot("open", path);
    *bytes = 0;
    *hash = 0;
    bool failed = faulty("record.read");
    for (size_t n; !failed && (n = fread(block, 1, sizeof block, f)) > 0;) {
        *bytes += (int64_t)n;
        *hash = gr_hash64(block, n, *hash);
    }
    failed = failed || ferror(f);
    int cause = errno;
    (void)fclose(f);
    errno = cause;
    return failed ? cannot("read", path) : GR_OK;
}

static gr_status remove_one(const char* folder, const char* name)
{
    char path[PATH_MAX_BYTES + 300];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    if (faulty("record.remove") || (unlink(path) != 0 && errno != ENOENT)) {
        return cannot("remove", path);
    }
    return GR_OK;
}

gr_status gr_remove_folder(const char* path, const char* first)
{
    DIR* dir = opendir(path);
    if (dir == NULL && errno == ENOENT) return GR_OK;
    if (dir == NULL) return cannot("open", path);
    gr_status st = first != NULL ? remove_one(path, first) : GR_OK;
    for (const struct dirent* e; st == GR_OK && (e = readdir(dir)) != NULL;) {
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0) {
            st = remove_one(path, e->d_name);
        }
    }
    (void)closedir(dir);
    if (st != GR_OK) return st;
    if (faulty("record.remove") || rmdir(path) != 0) return cannot("remove", path);
    return GR_OK;
}
