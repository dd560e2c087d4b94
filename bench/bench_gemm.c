/* bench_gemm.c - speed of the matrix products against oneDNN's sgemm and against the machine.
 *
 *   bench_gemm [device] [fp32|bf16] [threads]      e.g. bench_gemm cpu:avx2 fp32 2
 *
 * Prints GFLOP/s, best of several runs, for y = x w^T and for dw += dy^T x, after the machine's own
 * fp32 peak: independent fused multiply-adds on registers, on as many threads. Compile with
 * GR_HAVE_ONEDNN for the comparison; quiet cores matter more than anything else. */
#include "kernels/ops.h"

#include <immintrin.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef GR_HAVE_ONEDNN
#include <dnnl.h>
#endif

enum { REPEATS = 10 };

typedef struct shape {
    int n, m, k; /* rows, outputs, inner; for dw: tokens, rows and columns of dw */
} shape;

static const shape forward_shapes[] = {
    {2048, 2048, 2048}, {1024, 576, 576}, {1024, 1536, 576}, {1024, 576, 1536}, {32, 1536, 576},
    {8, 1536, 576},     {4, 1536, 576},   {1, 1536, 576},    {256, 49152, 576}, {32, 49152, 576},
    {8, 49152, 576},    {1, 49152, 576},  {256, 576, 49152}, {1024, 4864, 896}, {1024, 896, 4864},
    {1024, 64, 64},     {8, 64, 64},      {8, 192, 64},      {1, 64, 64},
};
static const shape dw_shapes[] = {
    {2048, 576, 576},  {2048, 1536, 576}, {2048, 576, 1536}, {512, 1536, 576},
    {256, 49152, 576}, {512, 49152, 576}, {2048, 64, 64},
};

/* ---- the machine's peak ---------------------------------------------------------------------- */

enum { CHAINS = 12, ROUNDS = 1 << 20 }; /* enough independent sums to fill two pipes */

/* One thread's multiply-adds on registers; returns the flop done. */
#define PEAK(name, isa, vec, set1, fmadd)                                      \
    __attribute__((target(isa))) static double name(void)                      \
    {                                                                          \
        vec sum[CHAINS], x = set1(1.0f);                                       \
        for (int i = 0; i < CHAINS; i++) sum[i] = set1(0.0f);                  \
        for (int r = 0; r < ROUNDS; r++) {                                     \
            __asm__ volatile("" : "+v"(x)); /* else it is all folded */        \
            _Pragma("GCC unroll 12") for (int i = 0; i < CHAINS; i++) sum[i] = \
                fmadd(x, x, sum[i]);                                           \
        }                                                                      \
        for (int i = 0; i < CHAINS; i++) __asm__ volatile("" ::"v"(sum[i]));   \
        return 2.0 * (double)(sizeof(vec) / sizeof(float)) * CHAINS * ROUNDS;  \
    }
PEAK(peak_avx2, "avx2,fma", __m256, _mm256_set1_ps, _mm256_fmadd_ps)
PEAK(peak_avx512, "avx512f", __m512, _mm512_set1_ps, _mm512_fmadd_ps)

static void report_peak(const gr_dev* dev)
{
    double (*work)(void) = strstr(dev->detail, "avx512") ? peak_avx512
                           : strstr(dev->detail, "avx2") ? peak_avx2
                                                         : NULL;
    double best = 0;
    if (work == NULL) return;
    for (int i = 0; i < REPEATS; i++) {
        const double start = gr_now_s();
        double flop = 0;
#pragma omp parallel num_threads(dev->threads) reduction(+ : flop)
        flop += work();
        best = GR_MAX(best, flop / (gr_now_s() - start) * 1e-9);
    }
    printf("peak    multiply-adds on registers  %8.1f\n", best);
}

/* ---- products -------------------------------------------------------------------------------- */

typedef struct bench {
    gr_dev dev;
    shape s;
    void *x, *w, *packed, *y, *scratch;
} bench;

typedef void work_fn(bench* b);

static void forward(bench* b)
{
    b->dev.ops->matmul(&b->dev, b->y, b->x, b->packed, NULL, b->s.n, b->s.m, b->s.k);
}
static void outer(bench* b)
{
    b->dev.ops->matmul_dw(&b->dev, b->y, NULL, b->w, b->x, b->s.n, b->s.m, b->s.k, b->scratch);
}
#ifdef GR_HAVE_ONEDNN
static void library_forward(bench* b)
{
    const shape s = b->s;
    (void)dnnl_sgemm('N', 'T', s.n, s.m, s.k, 1, b->x, s.k, b->w, s.k, 0, b->y, s.m);
}
static void library_outer(bench* b)
{
    const shape s = b->s;
    (void)dnnl_sgemm('T', 'N', s.m, s.k, s.n, 1, b->w, s.m, b->x, s.k, 1, b->y, s.k);
}
#endif

/* Best GFLOP/s of each; the two take turns, so that a disturbed moment hits both. */
static void gflops(bench* b, work_fn* const work[2], double out[2])
{
    const double flop = 2.0 * b->s.n * b->s.m * b->s.k;
    const int calls = 1 + (int)(1e9 / flop);
    for (int r = 0; r < REPEATS; r++)
        for (int w = 0; w < 2 && work[w] != NULL; w++) {
            work[w](b);
            const double start = gr_now_s();
            for (int i = 0; i < calls; i++) work[w](b);
            out[w] = GR_MAX(out[w], flop * calls / (gr_now_s() - start) * 1e-9);
        }
}

static void* tensor(gr_dev* dev, int64_t n, bool is_acc, bool random)
{
    void* p;
    if (gr_dev_alloc(dev, &p, (size_t)n * (is_acc ? dev->acc_bytes : dev->real_bytes)) != GR_OK) {
        gr_log("%s", gr_last_error_text());
        exit(1);
    }
    for (int64_t i = 0; random && i < n; i++) {
        const double v = gr_uniform(1, (uint64_t)i) - 0.5;
        gr_dev_write_real(dev, gr_real_at(dev, p, i), &v, 1);
    }
    return p;
}

static void report(bench* b, const char* what, work_fn* own, work_fn* library)
{
    double g[2] = {0};
    gflops(b, (work_fn* const[]){own, b->dev.dtype == GR_F32 ? library : NULL}, g);
    printf("%-7s %5d x %5d x %5d  %8.1f", what, b->s.n, b->s.m, b->s.k, g[0]);
    if (g[1] > 0) printf("  oneDNN %8.1f  ratio %.2f", g[1], g[0] / g[1]);
    printf("\n");
    (void)fflush(stdout);
}

static void bench_forward(bench* b, shape s)
{
    gr_dev* dev = &b->dev;
    b->s = s;
    b->x = tensor(dev, (int64_t)s.n * s.k, false, true);
    b->w = tensor(dev, (int64_t)s.m * s.k, false, true);
    b->y = tensor(dev, (int64_t)s.n * s.m, false, false);
    if (gr_dev_alloc(dev, &b->packed, dev->ops->matmul_packed_bytes(dev, s.m, s.k, false)) != GR_OK)
        exit(1);
    dev->ops->matmul_pack(dev, b->packed, b->w, s.m, s.k, false);
#ifdef GR_HAVE_ONEDNN
    report(b, "forward", forward, library_forward);
#else
    report(b, "forward", forward, NULL);
#endif
    gr_dev_free(dev, b->x);
    gr_dev_free(dev, b->w);
    gr_dev_free(dev, b->y);
    gr_dev_free(dev, b->packed);
}

static void bench_dw(bench* b, shape s)
{
    gr_dev* dev = &b->dev;
    b->s = s;
    b->x = tensor(dev, (int64_t)s.n * s.k, false, true);
    b->w = tensor(dev, (int64_t)s.n * s.m, false, true);
    b->y = tensor(dev, (int64_t)s.m * s.k, true, false);
    if (gr_dev_alloc(dev, &b->scratch, dev->ops->matmul_dw_scratch(dev, s.n, s.m, s.k)) != GR_OK)
        exit(1);
#ifdef GR_HAVE_ONEDNN
    report(b, "dw", outer, library_outer);
#else
    report(b, "dw", outer, NULL);
#endif
    gr_dev_free(dev, b->x);
    gr_dev_free(dev, b->w);
    gr_dev_free(dev, b->y);
    gr_dev_free(dev, b->scratch);
}

int main(int argc, char** argv)
{
    const char* dtype = argc > 2 ? argv[2] : "fp32";
    const gr_dev_options options = {.name = argc > 1 ? argv[1] : "cpu",
                                    .dtype = strcmp(dtype, "bf16") == 0 ? GR_BF16 : GR_F32,
                                    .matmul = GR_MATMUL_EXACT,
                                    .threads = argc > 3 ? atoi(argv[3]) : 0};
    bench b = {0};
    if (gr_dev_open(&b.dev, &options) != GR_OK) {
        gr_log("%s", gr_last_error_text());
        return 1;
    }
    printf("%s\n", b.dev.detail);
    report_peak(&b.dev);
    for (int i = 0; i < GR_COUNT(forward_shapes); i++) bench_forward(&b, forward_shapes[i]);
    for (int i = 0; i < GR_COUNT(dw_shapes); i++) bench_dw(&b, dw_shapes[i]);
    gr_dev_close(&b.dev);
    return 0;
}
