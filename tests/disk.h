/* disk.h - folders, files and children for the tests of what a run leaves on disk. */
#pragma once
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "host/base.h"

#define ASSERT_OK(call)                                                \
    do {                                                               \
        gr_status got_ = (call);                                       \
        if (got_ != GR_OK) fail_msg("%s: %s", #call, gr_last_error()); \
    } while (0)

static char scratch[64]; /* this program's own folder, in memory where the system has such a disk */

static inline int make_scratch(void** state)
{
    (void)state;
    const char* dir = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    (void)snprintf(scratch, sizeof scratch, "%s/grove_test_XXXXXX", dir);
    return mkdtemp(scratch) == NULL || chmod(scratch, 0755) != 0;
}

static inline int remove_entry(const char* path, const struct stat* info, int kind, struct FTW* at)
{
    (void)info, (void)kind, (void)at;
    return remove(path);
}
static inline void remove_all(const char* path)
{
    (void)nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

static inline int remove_scratch(void** state)
{
    (void)state;
    remove_all(scratch);
    return 0;
}

/* Runs a script in the scratch folder; it must succeed. */
static inline void run_script(const char* fmt, ...) GR_PRINTF(1, 2);
static inline void run_script(const char* fmt, ...)
{
    char script[2500], command[2700];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(script, sizeof script, fmt, ap);
    va_end(ap);
    (void)snprintf(command, sizeof command, "set -e; cd %s; %s", scratch, script);
    if (system(command) != 0) fail_msg("%s", command);
}

/* A folder of the scratch that does not exist yet. */
static inline const char* fresh(void)
{
    static char path[128];
    (void)snprintf(path, sizeof path, "%s/run", scratch);
    remove_all(path);
    return path;
}

/* Contents of a file, ended by NUL; the caller frees it. NULL if there is none. */
static inline char* slurp(const char* dir, const char* name, size_t* n)
{
    char path[1200];
    struct stat info;
    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE* f = fopen(path, "rb");
    if (f == NULL) return NULL;
    assert_int_equal(fstat(fileno(f), &info), 0);
    char* text = calloc(1, (size_t)info.st_size + 1);
    size_t got = fread(text, 1, (size_t)info.st_size, f);
    assert_int_equal(got, info.st_size);
    if (n != NULL) *n = got;
    (void)fclose(f);
    return text;
}

static inline void spill(const char* dir, const char* name, const char* text, size_t n)
{
    char path[1200];
    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE* f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static inline bool is_one_line(const char* text)
{
    return text[0] != 0 && strchr(text, '\n') == NULL;
}

/* Exit status of a child, or 128 + signal. */
static inline int wait_for(pid_t pid)
{
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* Sends stderr into a file of the scratch until `loud`, which returns what was said; free it. */
static int loud_stderr = -1;
static inline void hush(void)
{
    char path[100];
    (void)snprintf(path, sizeof path, "%s/stderr", scratch);
    (void)fflush(stderr);
    loud_stderr = dup(2);
    int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0644);
    (void)dup2(fd, 2);
    (void)close(fd);
}
static inline char* loud(void)
{
    (void)fflush(stderr);
    (void)dup2(loud_stderr, 2);
    (void)close(loud_stderr);
    return slurp(scratch, "stderr", NULL);
}
