/* run_log.c - the folder of a run: its lock, its settings, its two logs. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "host/durable.h"
#include "host/record.h"

typedef char path[640];

static void join(path out, const char* dir, const char* name)
{
    (void)snprintf(out, sizeof(path), "%s/%s", dir, name);
}

static gr_status cannot(const char* verb, const char* file)
{
    return GR_FAIL(GR_EIO, "%s: cannot %s: %s", file, verb, strerror(errno));
}

static bool faulty(const char* place)
{
    if (!gr_fault(place)) return false;
    errno = EIO;
    return true;
}

/* The kernel drops the lock with the process, so a killed run leaves none behind. The file says who
 * holds it. */
static gr_status take_lock(gr_run_log* log)
{
    path file;
    long holder = 0;
    join(file, log->dir, "lock");
    log->lock = faulty("record.open") ? NULL : fopen(file, "a+e");
    if (log->lock == NULL) return cannot("open", file);
    if (flock(fileno(log->lock), LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK) return cannot("lock", file);
        (void)rewind(log->lock);
        if (fscanf(log->lock, "%ld", &holder) != 1) holder = 0;
        return GR_FAIL(GR_EARG, "%s: process %ld is running this run", log->dir, holder);
    }
    if (ftruncate(fileno(log->lock), 0) != 0) return cannot("write", file);
    fprintf(log->lock, "%ld\n", (long)getpid());
    if (fflush(log->lock) != 0) return cannot("write", file);
    return GR_OK;
}

/* Opens a log and cuts it to `bytes`: what was written behind a checkpoint will be written again, and
 * a crash may have left half a line. */
static gr_status open_cut(FILE** out, const char* dir, const char* name, int64_t bytes)
{
    path file;
    struct stat info;
    join(file, dir, name);
    *out = faulty("record.open") ? NULL : fopen(file, "ae");
    if (*out == NULL) return cannot("open", file);
    if (fstat(fileno(*out), &info) != 0) return cannot("read", file);
    if (info.st_size < bytes) {
        return GR_FAIL(GR_EDATA,
                       "%s: %lld bytes, but the checkpoint counts %lld: lines are missing", file,
                       (long long)info.st_size, (long long)bytes);
    }
    if (info.st_size == bytes) return GR_OK;
    if (faulty("record.write") || ftruncate(fileno(*out), bytes) != 0) return cannot("cut", file);
    if (faulty("record.sync") || fsync(fileno(*out)) != 0) return cannot("sync", file);
    return GR_OK;
}

/* More than the line of step 0: results that a fresh start would destroy. */
static bool holds_results(const char* dir)
{
    path file;
    join(file, dir, "metrics.jsonl");
    FILE* f = fopen(file, "re");
    if (f == NULL) return false;
    int lines = 0;
    for (int c; lines < 2 && (c = getc(f)) != EOF;) lines += c == '\n';
    (void)fclose(f);
    return lines >= 2;
}

static gr_status open_all(gr_run_log* log, const char* config_json, const gr_train_state* state)
{
    path file;
    GR_TRY(gr_make_folders(log->dir));
    GR_TRY(take_lock(log));
    if (gr_run_log_finished(log->dir)) {
        return GR_FAIL(GR_EARG, "%s: this run is finished", log->dir);
    }
    if (state == NULL && (gr_checkpoint_any(log->dir) || holds_results(log->dir))) {
        return GR_FAIL(GR_EARG,
                       "%s: holds a run that this would overwrite; choose another run.name",
                       log->dir);
    }
    if (state != NULL) GR_TRY(gr_checkpoint_forget(log->dir, state->step));
    join(file, log->dir, "config.json");
    GR_TRY(gr_replace_file(file, config_json, strlen(config_json)));
    GR_TRY(open_cut(&log->metrics, log->dir, "metrics.jsonl", state ? state->metrics_bytes : 0));
    GR_TRY(open_cut(&log->trees, log->dir, "trees.jsonl", state ? state->trees_bytes : 0));
    return gr_sync(log->dir);
}

gr_status gr_run_log_open(gr_run_log* log, const char* dir, const char* config_json,
                          const gr_train_state* state)
{
    memset(log, 0, sizeof *log);
    if (strlen(dir) >= sizeof log->dir) {
        return GR_FAIL(GR_EARG, "%.80s...: path of %zu bytes", dir, strlen(dir));
    }
    (void)snprintf(log->dir, sizeof log->dir, "%s", dir);
    gr_status st = open_all(log, config_json, state);
    if (st != GR_OK) gr_run_log_close(log);
    return st;
}

gr_status gr_run_log_finish(gr_run_log* log)
{
    path file;
    int64_t metrics = 0, trees = 0;
    GR_TRY(gr_run_log_offsets(log, &metrics, &trees));
    join(file, log->dir, "finished");
    return gr_replace_file(file, "", 0);
}

bool gr_run_log_finished(const char* dir)
{
    path file;
    join(file, dir, "finished");
    return gr_exists(file);
}

/* Synced, so that a checkpoint never counts lines that a power cut takes away. */
static gr_status offset(FILE* f, const char* dir, const char* name, int64_t* bytes)
{
    path file;
    join(file, dir, name);
    if (faulty("record.write") || fflush(f) != 0) return cannot("write", file);
    if (faulty("record.sync") || fsync(fileno(f)) != 0) return cannot("sync", file);
    *bytes = (int64_t)lseek(fileno(f), 0, SEEK_END);
    return *bytes >= 0 ? GR_OK : cannot("read", file);
}

gr_status gr_run_log_offsets(gr_run_log* log, int64_t* metrics, int64_t* trees)
{
    GR_TRY(offset(log->metrics, log->dir, "metrics.jsonl", metrics));
    return offset(log->trees, log->dir, "trees.jsonl", trees);
}

void gr_run_log_close(gr_run_log* log)
{
    if (log->metrics != NULL) (void)fclose(log->metrics);
    if (log->trees != NULL) (void)fclose(log->trees);
    if (log->lock != NULL) (void)fclose(log->lock);
    memset(log, 0, sizeof *log);
}
