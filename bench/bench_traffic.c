/* bench_traffic.c - the memory traffic of the CUDA kernels, counted by the emulator of tests/simt/.
 *
 *     bench_traffic FOLDER        the folder of the kernels' PTX
 *
 * Runs every case of op_cases.c once, on small shapes, from the PTX that nvcc wrote. One JSON line per
 * op and kernel; bench/traffic.py makes the table. */
#include "bench/op.h"
#include "tests/simt/count.h"
#include "tests/simt/ptx/ptx.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 4096 };

/* Rows are whole chunks of 16 bytes, as in real models; enough of them for full tiles. */
static op_shape small_shape(op_shape s)
{
#define SET(key, value) s.key = s.key > 0 ? value : 0
    SET(n, s.c > 0 || s.h > 0 || s.m > 0 ? 64 : 16384);
    SET(c, 256);
    SET(m, 192);
    SET(k, 256);
    SET(f, 256);
    SET(h, 4);
    SET(hk, 2);
    SET(d, 64);
    SET(v, 512);
    SET(r, 64);
#undef SET
    return s;
}

/* What the CUDA device cannot do yet is NULL. */
static bool is_there(const gr_ops* ops, const char* name)
{
#define X(op) \
    if (strcmp(name, #op) == 0) return ops->op != NULL;
    GR_OP_LIST(X)
#undef X
    return true; /* head_draw: a way to call `head` */
}

static void print_kernel(const char* op, const simt_line* line, int n, double op_bytes)
{
    simt_line sum[SIMT_MMA + 1] = {0};
    for (int i = 0; i < n; i++)
        if (strcmp(line[i].kernel, line->kernel) == 0 && line[i].place[0] == 0)
            sum[line[i].kind] = line[i];
    const int64_t shared = sum[SIMT_SHARED_LOAD].wavefronts + sum[SIMT_SHARED_STORE].wavefronts;
    const int64_t ideal = sum[SIMT_SHARED_LOAD].ideal + sum[SIMT_SHARED_STORE].ideal;
    printf("{\"op\": \"%s\", \"op_bytes\": %.0f, \"kernel\": \"%s\", \"threads\": %d, "
           "\"dynamic_bytes\": %d, ",
           op, op_bytes, line->kernel, line->threads, line->dynamic_bytes);
    printf("\"load_sectors\": %lld, \"load_least\": %lld, \"store_sectors\": %lld, "
           "\"store_least\": %lld, \"wavefronts\": %lld, \"ideal\": %lld, \"mma\": %lld}\n",
           (long long)sum[SIMT_LOAD].sectors, (long long)sum[SIMT_LOAD].unique_sectors,
           (long long)sum[SIMT_STORE].sectors, (long long)sum[SIMT_STORE].unique_sectors,
           (long long)shared, (long long)ideal, (long long)sum[SIMT_MMA].requests);
}

static void count_case(const op_case* c, gr_dev* dev)
{
    static simt_line line[MOST];
    op_run r = {.dev = dev, .s = small_shape(c->shape), .seed = 1};
    c->open(&r);
    simt_count_start();
    c->run(&r);
    const int n = simt_count_stop(line, MOST);
    GR_ASSERT(n <= MOST);
    for (int i = 0; i < n; i++)
        if (i == 0 || strcmp(line[i].kernel, line[i - 1].kernel) != 0)
            print_kernel(c->name, &line[i], n - i, (double)c->bytes(&r));
    for (int i = 0; i < r.n_tensors; i++) gr_dev_free(dev, r.tensor[i].at);
    op_free_plan(&r);
}

static gr_status load_ptx(const char* folder)
{
    DIR* d = opendir(folder);
    if (d == NULL) return GR_FAIL(GR_EARG, "%s: cannot be read", folder);
    const char* why = NULL;
    for (const struct dirent* e; why == NULL && (e = readdir(d)) != NULL;) {
        char path[1024];
        const char* dot = strrchr(e->d_name, '.');
        if (dot == NULL || strcmp(dot, ".ptx") != 0) continue;
        (void)snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        why = simt_ptx_load(path);
    }
    (void)closedir(d);
    return why == NULL ? GR_OK : GR_FAIL(GR_EDATA, "%s", why);
}

static gr_status run(const char* folder)
{
    gr_dev dev;
    const gr_dev_options options = {.name = "simt", .dtype = GR_BF16, .threads = 1};
    GR_TRY(load_ptx(folder));
    GR_TRY(gr_dev_open(&dev, &options));
    simt_ptx_set_mode(SIMT_PTX_ONLY);
    for (const op_case* c = op_cases; c->name != NULL; c++)
        if (is_there(dev.ops, c->name)) count_case(c, &dev);
    const gr_status st = gr_dev_sync(&dev);
    gr_dev_close(&dev);
    return st;
}

int main(int argc, char** argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: bench_traffic FOLDER\n");
        return 1;
    }
    if (run(argv[1]) == GR_OK) return 0;
    fprintf(stderr, "bench_traffic: %s\n", gr_last_error_text());
    return 1;
}
