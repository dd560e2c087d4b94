/* kernels.h - what the tests of device ops share: every table, random tensors, guarded scratch. */
#pragma once
#include "kernels/ops.h"
#ifdef GR_TEST_SIMT
#include "tests/simt/guard.h"
#endif

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct rng {
    uint64_t key, at;
} rng;

static inline double uniform(rng* r) { return gr_uniform(r->key, r->at++); }
static inline int below(rng* r, int n) { return (int)(uniform(r) * n); }

/* Storage type, instruction set, and how far results may be from fp64: one rounding to storage and the
 * sums' own error. */
typedef struct table {
    const char* name;
    gr_dtype dtype;
    double tolerance;
} table;

static const table tables[] = {
#ifdef GR_TEST_GPU /* the CUDA sources on that device; the first one is the fp64 reference */
    {"cpu:base", GR_F64, 1e-11},
    {GR_TEST_GPU, GR_F32, 4e-5},
    {GR_TEST_GPU, GR_BF16, 1e-2},
#else
    {"cpu:base", GR_F64, 1e-11},   {"cpu:base", GR_F32, 4e-5},  {"cpu:avx2", GR_F32, 4e-5},
    {"cpu:avx512", GR_F32, 4e-5},  {"cpu:base", GR_BF16, 1e-2}, {"cpu:avx2", GR_BF16, 1e-2},
    {"cpu:avx512", GR_BF16, 1e-2},
#endif
};

/* How large a test is: the emulator runs every thread by turns. */
static inline int trim(int n)
{
#ifdef GR_TEST_SIMT
    return (n + 2) / 3;
#else
    return n;
#endif
}

/* False where this CPU lacks the instruction set. */
static inline bool open_table(gr_dev* dev, const table* t, int threads)
{
    const gr_dev_options options = {
        .name = t->name, .dtype = t->dtype, .matmul = GR_MATMUL_EXACT, .threads = threads};
    return gr_dev_open(dev, &options) == GR_OK;
}

/* The exit status by which ctest knows a test that did not run. */
enum { SKIPPED = 77 };
/* Says why not. */
static inline bool device_is_here(void)
{
    gr_dev dev;
    const bool here = open_table(&dev, &tables[1], 1);
    if (!here) printf("skipped: %s\n", gr_last_error_text());
    gr_dev_close(&dev);
#ifdef GR_TEST_SIMT
    simt_guard(1 << 20); /* no code of a test may follow a device pointer */
#endif
    return here;
}

static inline void* dev_bytes(gr_dev* dev, size_t bytes)
{
    void* p;
    GR_ASSERT(gr_dev_alloc(dev, &p, bytes) == GR_OK);
    return p;
}
/* A copy of a host array. */
static inline void* dev_copy(gr_dev* dev, const void* from, size_t bytes)
{
    void* p = dev_bytes(dev, bytes);
    gr_dev_write(dev, p, from, bytes);
    return p;
}
/* Device memory is the device's: what a test looks at or fills goes through the host. */
static inline void* dev_read(gr_dev* dev, const void* p, size_t bytes)
{
    void* host = malloc(bytes);
    gr_dev_read(dev, host, p, bytes);
    return host;
}
static inline void dev_fill(gr_dev* dev, void* p, int byte, size_t bytes)
{
    void* host = malloc(bytes);
    memset(host, byte, bytes);
    gr_dev_write(dev, p, host, bytes);
    free(host);
}
static inline void dev_move(gr_dev* dev, void* to, const void* from, size_t bytes)
{
    void* host = dev_read(dev, from, bytes);
    gr_dev_write(dev, to, host, bytes);
    free(host);
}
static inline bool dev_same(gr_dev* dev_a, const void* a, gr_dev* dev_b, const void* b,
                            size_t bytes)
{
    void *x = dev_read(dev_a, a, bytes), *y = dev_read(dev_b, b, bytes);
    const bool same = memcmp(x, y, bytes) == 0;
    free(x);
    free(y);
    return same;
}
static inline void* new_real(gr_dev* dev, int64_t n)
{
    return dev_bytes(dev, (size_t)n * dev->real_bytes);
}
static inline void* new_acc(gr_dev* dev, int64_t n)
{
    return dev_bytes(dev, (size_t)n * dev->acc_bytes);
}

/* n values in [-range, range], rounded to the device's real: host copy and device tensor. */
typedef struct tensor {
    double* host;
    void* dev;
    int64_t n;
} tensor;

static inline tensor random_real(gr_dev* dev, rng* r, int64_t n, double range)
{
    tensor t = {malloc((size_t)n * sizeof(double)), new_real(dev, n), n};
    for (int64_t i = 0; i < n; i++) t.host[i] = range * (2 * uniform(r) - 1);
    gr_dev_write_real(dev, t.dev, t.host, n);
    gr_dev_read_real(dev, t.host, t.dev, n);
    return t;
}
static inline void free_tensor(gr_dev* dev, tensor* t)
{
    free(t->host);
    gr_dev_free(dev, t->dev);
}

/* Scratch full of NaN, with a guard behind it. */
enum { GUARD = 256, GUARD_BYTE = 0x5a };
static inline void* new_scratch(gr_dev* dev, size_t bytes)
{
    unsigned char* host = malloc(bytes + GUARD);
    memset(host, 0xff, bytes);
    memset(host + bytes, GUARD_BYTE, GUARD);
    void* p = dev_copy(dev, host, bytes + GUARD);
    free(host);
    return p;
}
static inline void free_scratch(gr_dev* dev, void* scratch, size_t bytes)
{
    unsigned char guard[GUARD];
    gr_dev_read(dev, guard, (char*)scratch + bytes, GUARD);
    for (int i = 0; i < GUARD; i++) GR_ASSERT(guard[i] == GUARD_BYTE, "scratch overrun");
    gr_dev_free(dev, scratch);
}
