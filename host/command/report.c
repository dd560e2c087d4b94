/* report.c - one page about runs: curves, trees, ledger; opens from disk, loads nothing. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "host/command/report_data.h"
#include "host/command/report_page.h"

#define RUNS_MAX 256

typedef struct options {
    const char* run[RUNS_MAX];
    const char* out;
    int64_t every;
    int n_runs;
} options;

static const struct argp_option option_list[] = {
    {"output", 'o', "FILE", 0, "The page (default report.html)", 0},
    {"every", 'e', "N", 0, "Only the trees of every Nth logged step (default 1: all)", 0},
    {0},
};

static error_t parse(int key, char* arg, struct argp_state* state)
{
    options* o = state->input;
    switch (key) {
    case 'o':
        o->out = arg;
        return 0;
    case 'e':
        o->every = strtoll(arg, NULL, 10);
        if (o->every <= 0) argp_error(state, "--every %s: not a positive number", arg);
        return 0;
    case ARGP_KEY_ARG:
        if (o->n_runs == RUNS_MAX) argp_error(state, "more than %d runs", RUNS_MAX);
        o->run[o->n_runs++] = arg;
        return 0;
    case ARGP_KEY_END:
        if (o->n_runs == 0) argp_usage(state);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp argp = {
    option_list,
    parse,
    "RUN [RUN ...]",
    "Writes one page about runs, finished or not: learning curves, every logged tree, what the "
    "budget bought. "
    "Runs that differ in nothing but the seed are shown as mean and band. The page needs no "
    "network.\v"
    "Examples:\n"
    "  grove report runs/frozenlake_patr -o report.html\n"
    "  grove report runs/patr_1 runs/patr_2 runs/flat_1 runs/flat_2 --every 10\n",
    NULL,
    NULL,
    NULL};

static gr_status put_runs(const options* o, FILE* page, FILE* index)
{
    printf("%-32s %8s %8s %10s %10s\n", "run", "steps", "trees", "nodes", "log MB");
    for (int i = 0; i < o->n_runs; i++) {
        gr_report_counts n;
        GR_TRY(gr_report_run(page, index, o->run[i], i, o->every, &n));
        printf("%-32s %8lld %8lld %10lld %10.2f\n", o->run[i], (long long)n.steps,
               (long long)n.trees, (long long)n.nodes, (double)n.bytes / 1e6);
    }
    return GR_OK;
}

/* The index is known last: it goes behind the chunks it speaks of. */
static gr_status put_page(const options* o, FILE* page)
{
    char* text = NULL;
    size_t n = 0;
    gr_chunk c;
    FILE* index = open_memstream(&text, &n);
    GR_ASSERT(index != NULL, "out of memory");
    fprintf(index, "{\"version\":\"%s\",\"runs\":[", GR_VERSION);
    (void)fwrite(gr_report_head, 1, gr_report_head_size, page);
    gr_status st = put_runs(o, page, index);
    fputs("]}", index);
    bool whole = fclose(index) == 0;
    GR_ASSERT(whole, "out of memory");
    gr_chunk_begin(&c, page, "index");
    gr_chunk_add(&c, text, n);
    gr_chunk_end(&c);
    free(text);
    (void)fwrite(gr_report_tail, 1, gr_report_tail_size, page);
    return st;
}

static gr_status failed(const char* path)
{
    return GR_FAIL(GR_EIO, "%s: cannot write: %s", path, strerror(errno));
}

/* Written aside and renamed, so that a browser that reads again while a run goes on sees a whole page.
 * A device, a pipe or a link keeps its name: it is written to as it is. */
static gr_status report(const options* o)
{
    struct stat there;
    bool in_place = lstat(o->out, &there) == 0 && !S_ISREG(there.st_mode);
    char* path = NULL;
    if (asprintf(&path, "%s%s", o->out, in_place ? "" : ".part") < 0) {
        return GR_FAIL(GR_ENOMEM, "out of memory");
    }
    FILE* page = fopen(path, "we");
    gr_status st = page != NULL ? put_page(o, page) : failed(path);
    long bytes = page != NULL ? ftell(page) : 0;
    if (page != NULL && st == GR_OK && (fflush(page) != 0 || ferror(page))) st = failed(path);
    if (page != NULL && fclose(page) != 0 && st == GR_OK) st = failed(path);
    if (st == GR_OK && !in_place && rename(path, o->out) != 0) st = failed(o->out);
    if (st != GR_OK && page != NULL && !in_place) (void)unlink(path);
    free(path);
    if (st == GR_OK) printf("%s  %.2f MB\n", o->out, (double)bytes / 1e6);
    return st;
}

static int run_report(int argc, char** argv)
{
    options o = {.out = "report.html", .every = 1};
    if (argp_parse(&argp, argc, argv, 0, NULL, &o) != 0) return 1;
    return report(&o) == GR_OK ? 0 : gr_command_fail();
}

const gr_command gr_command_report = {"report", "one page: curves, trees, what the budget bought",
                                      run_report};
