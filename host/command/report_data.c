#include "host/command/report_data.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "host/durable.h"
#include "host/json.h"

/* ---- chunks -------------------------------------------------------------------------------------------- */

/* Up to three bytes as four digits; = stands for what is missing. */
static void put_group(gr_chunk* c)
{
    static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    unsigned bits = 0;
    char four[4];
    for (int i = 0; i < 3; i++) bits = bits << 8 | (i < c->n_rest ? c->rest[i] : 0);
    for (int i = 0; i < 4; i++) four[i] = i <= c->n_rest ? digit[bits >> (18 - 6 * i) & 63] : '=';
    (void)fwrite(four, 1, 4, c->out); /* ferror tells, at the end */
    c->n_rest = 0;
}

static void put_base64(gr_chunk* c, const unsigned char* byte, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        c->rest[c->n_rest++] = byte[i];
        if (c->n_rest == 3) put_group(c);
    }
}

static void deflate_all(gr_chunk* c, const char* text, size_t n, int flush)
{
    unsigned char out[16384];
    c->z.next_in = (Bytef*)(uintptr_t)text;
    c->z.avail_in = (uInt)n;
    do {
        c->z.next_out = out;
        c->z.avail_out = sizeof out;
        int status = deflate(&c->z, flush);
        GR_ASSERT(status != Z_STREAM_ERROR, "deflate");
        put_base64(c, out, sizeof out - c->z.avail_out);
    } while (c->z.avail_out == 0);
}

void gr_chunk_begin(gr_chunk* c, FILE* out, const char* id)
{
    *c = (gr_chunk){.out = out, .open = true};
    int status = deflateInit2(&c->z, Z_DEFAULT_COMPRESSION, Z_DEFLATED, 15 + 16 /* gzip */, 8,
                              Z_DEFAULT_STRATEGY);
    GR_ASSERT(status == Z_OK, "out of memory");
    fprintf(out, "<script type=\"text/plain\" id=\"%s\">", id);
}

void gr_chunk_add(gr_chunk* c, const char* text, size_t n)
{
    for (size_t part; n > 0; text += part, n -= part) { /* zlib counts in 32 bits */
        part = GR_MIN(n, (size_t)1 << 30);
        deflate_all(c, text, part, Z_NO_FLUSH);
    }
}

void gr_chunk_end(gr_chunk* c)
{
    if (!c->open) return;
    deflate_all(c, "", 0, Z_FINISH);
    (void)deflateEnd(&c->z);
    if (c->n_rest > 0) put_group(c);
    fputs("</script>\n", c->out);
    c->open = false;
}

/* ---- a run --------------------------------------------------------------------------------------------- */

static double number(const cJSON* object, const char* key)
{
    const cJSON* item = cJSON_GetObjectItemCaseSensitive(object, key);
    return cJSON_IsNumber(item) ? item->valuedouble : 0;
}

static bool is(const cJSON* object, const char* key, const char* word)
{
    const char* s = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, key));
    return s != NULL && strcmp(s, word) == 0;
}

static bool flag(const cJSON* object, const char* key)
{
    return cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(object, key));
}

/* Nodes whose leaves have an advantage, and the sampled tokens of all and of those. */
typedef struct tally {
    int64_t nodes, leaves, solved, forks, tokens, taught, taught_tokens;
    int64_t status[5];
    bool idle;
} tally;

static tally count(const cJSON* nodes)
{
    static const char* const stop[] = {"loop", "pruned", "truncated", "time_limit", "error"};
    tally t = {.nodes = cJSON_GetArraySize(nodes), .idle = true};
    int* children = calloc((size_t)t.nodes + 1, sizeof *children);
    GR_ASSERT(children != NULL, "out of memory");
    const cJSON* node;
    cJSON_ArrayForEach(node, nodes)
    {
        double parent = number(node, "parent");
        if (parent > 0 && parent < (double)t.nodes) children[(int)parent]++;
        for (int i = 0; i < GR_COUNT(stop); i++) t.status[i] += is(node, "status", stop[i]);
    }
    cJSON_ArrayForEach(node, nodes)
    {
        double id = number(node, "id");
        int n = id > 0 && id < (double)t.nodes ? children[(int)id] : 0;
        int64_t tokens = cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(node, "tokens"));
        bool leaf = n == 0 && id > 0 && !is(node, "status", "error");
        bool pushed = number(node, "a_pos") != 0 || number(node, "a_neg") != 0 ||
                      number(node, "advantage") != 0;
        const cJSON* train = cJSON_GetObjectItemCaseSensitive(node, "train");
        bool taught = pushed && tokens > 0 && !cJSON_IsFalse(train); /* older logs leave it out */
        t.forks += n > 1;
        t.leaves += leaf;
        t.solved += leaf && flag(node, "success");
        t.tokens += tokens;
        t.taught += taught;
        t.taught_tokens += taught ? tokens : 0;
        t.idle = t.idle && !pushed;
    }
    free(children);
    return t;
}

/* A row of the index; its columns are named in host/report/data.js. */
static void put_row(FILE* index, const cJSON* tree, const tally* t)
{
    fprintf(index, "[%.0f,%.0f,%.0f,%lld,%lld,%lld,%lld", number(tree, "group"),
            number(tree, "attempt"), number(tree, "task"), (long long)t->nodes,
            (long long)t->leaves, (long long)t->solved, (long long)t->forks);
    for (int i = 0; i < GR_COUNT(t->status); i++) fprintf(index, ",%lld", (long long)t->status[i]);
    fprintf(index, ",%lld,%lld,%lld,%d]", (long long)t->tokens, (long long)t->taught,
            (long long)t->taught_tokens, t->idle);
}

/* "running" while a process holds the lock. */
static const char* state_of(const char* dir)
{
    char path[1024];
    if (gr_run_log_finished(dir)) return "finished";
    (void)snprintf(path, sizeof path, "%s/lock", dir);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return "stopped";
    bool held = flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    (void)close(fd);
    return held ? "running" : "stopped";
}

static gr_status open_reader(gr_line_reader* r, const char* path)
{
    *r = (gr_line_reader){.file = fopen(path, "re"), .path = path};
    if (r->file == NULL) return GR_FAIL(GR_EIO, "%s: %s", path, strerror(errno));
    return GR_OK;
}

static void close_reader(gr_line_reader* r)
{
    if (r->file != NULL) (void)fclose(r->file);
    free(r->line);
}

static gr_status put_config(FILE* page, const char* dir, const char* id)
{
    char path[1024];
    cJSON* config = NULL;
    gr_chunk c;
    (void)snprintf(path, sizeof path, "%s/config.json", dir);
    GR_TRY(gr_json_read(path, &config));
    char* text = cJSON_PrintUnformatted(config);
    GR_ASSERT(text != NULL, "out of memory");
    gr_chunk_begin(&c, page, id);
    gr_chunk_add(&c, text, strlen(text));
    gr_chunk_end(&c);
    cJSON_free(text);
    cJSON_Delete(config);
    return GR_OK;
}

static gr_status put_metrics(FILE* page, const char* dir, const char* id, gr_report_counts* counts)
{
    char path[1024];
    gr_line_reader r;
    gr_chunk c;
    cJSON* line;
    gr_status st;
    (void)snprintf(path, sizeof path, "%s/metrics.jsonl", dir);
    GR_TRY(open_reader(&r, path));
    gr_chunk_begin(&c, page, id);
    while ((st = gr_command_next_line(&r, &line)) == GR_OK && line != NULL) {
        gr_chunk_add(&c, r.line, strlen(r.line));
        counts->bytes += (int64_t)strlen(r.line);
        counts->steps = (int64_t)number(line, "step");
        cJSON_Delete(line);
    }
    gr_chunk_end(&c);
    close_reader(&r);
    return st;
}

/* Where in the log the copying of trees is. */
typedef struct forest {
    FILE *page, *index;
    gr_report_counts* counts;
    gr_chunk chunk;
    int64_t step, n_steps, every;
    int run, n_chunks;
    bool wanted;
} forest;

static void next_step(forest* f, int64_t step)
{
    char id[48];
    if (f->chunk.open) fputs("]}", f->index);
    gr_chunk_end(&f->chunk);
    f->step = step;
    f->wanted = f->n_steps++ % f->every == 0;
    if (!f->wanted) return;
    (void)snprintf(id, sizeof id, "r%d-trees%d", f->run, f->n_chunks);
    fprintf(f->index, "%s{\"step\":%lld,\"chunk\":\"%s\",\"trees\":[", f->n_chunks++ > 0 ? "," : "",
            (long long)step, id);
    gr_chunk_begin(&f->chunk, f->page, id);
}

static void put_tree(forest* f, const cJSON* tree, const char* line)
{
    bool first = (int64_t)number(tree, "step") != f->step;
    if (first) next_step(f, (int64_t)number(tree, "step"));
    if (!f->wanted) return;
    tally t = count(cJSON_GetObjectItemCaseSensitive(tree, "nodes"));
    if (!first) fputc(',', f->index);
    put_row(f->index, tree, &t);
    gr_chunk_add(&f->chunk, line, strlen(line));
    f->counts->bytes += (int64_t)strlen(line);
    f->counts->trees++;
    f->counts->nodes += t.nodes;
}

static gr_status put_trees(forest* f, const char* dir)
{
    char path[1024];
    gr_line_reader r;
    cJSON* tree;
    gr_status st;
    (void)snprintf(path, sizeof path, "%s/trees.jsonl", dir);
    GR_TRY(open_reader(&r, path));
    while ((st = gr_command_next_line(&r, &tree)) == GR_OK && tree != NULL) {
        put_tree(f, tree, r.line);
        cJSON_Delete(tree);
    }
    if (f->chunk.open) fputs("]}", f->index);
    gr_chunk_end(&f->chunk);
    close_reader(&r);
    return st;
}

gr_status gr_report_run(FILE* page, FILE* index, const char* dir, int run, int64_t every,
                        gr_report_counts* counts)
{
    char config[32], metrics[32];
    forest f = {
        .page = page, .index = index, .counts = counts, .step = -1, .every = every, .run = run};
    (void)snprintf(config, sizeof config, "r%d-config", run);
    (void)snprintf(metrics, sizeof metrics, "r%d-metrics", run);
    *counts = (gr_report_counts){0};
    GR_TRY(put_config(page, dir, config));
    GR_TRY(put_metrics(page, dir, metrics, counts));
    fprintf(index, "%s{\"dir\":", run > 0 ? "," : "");
    gr_json_text(index, dir, strlen(dir));
    fprintf(index, ",\"state\":\"%s\",\"configChunk\":\"%s\",\"metricsChunk\":\"%s\",\"steps\":[",
            state_of(dir), config, metrics);
    GR_TRY(put_trees(&f, dir));
    fputs("]}", index);
    return GR_OK;
}
