#include "kernels/device.h"
#include "kernels/cpu/onednn.h"
#include "kernels/cpu/state.h"
#include "kernels/cpu/variants.h"

#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define ALIGN     256
#define HUGE_PAGE ((size_t)2 << 20)

/* ---- what this machine can run ------------------------------------------------------------------ */

static bool cpu_has_base(void) { return true; }
static bool cpu_has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
static bool cpu_has_avx512(void)
{
    return cpu_has_avx2() && __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
}

typedef struct cpu_table {
    gr_dtype dtype;
    const char* isa;
    bool (*supported)(void);
    const gr_ops* ops;
} cpu_table;

#define DTYPE_f32  GR_F32
#define DTYPE_bf16 GR_BF16
#define DTYPE_f64  GR_F64
static const cpu_table cpu_tables[] = {
#define X(dtype, isa) {DTYPE_##dtype, #isa, cpu_has_##isa, &gr_ops_cpu_##dtype##_##isa},
    GR_CPU_VARIANT_LIST(X)
#undef X
};

static const char* dtype_name(gr_dtype dtype)
{
    static const char* const name[] = {"fp32", "bf16", "fp64"};
    return name[dtype];
}

/* The last table of this dtype that runs here, or the one of the given instruction set. */
static gr_status find_table(const cpu_table** out, gr_dtype dtype, const char* isa)
{
    bool known = isa == NULL, exists = false;
    *out = NULL;
    for (int i = 0; i < GR_COUNT(cpu_tables); i++) {
        const cpu_table* t = &cpu_tables[i];
        if (isa != NULL && strcmp(t->isa, isa) != 0) continue;
        known = true;
        if (t->dtype != dtype) continue;
        exists = true;
        if (t->supported()) *out = t;
    }
    if (*out != NULL) return GR_OK;
    if (!known)
        return GR_FAIL(GR_EARG, "device cpu:%s: unknown instruction set (base, avx2, avx512)", isa);
    if (!exists) return GR_FAIL(GR_EARG, "device cpu:%s: not built for %s", isa, dtype_name(dtype));
    return GR_FAIL(GR_EARG, "device cpu:%s: this CPU does not have it", isa);
}

static const char* why_no_bf16_matmul(const cpu_table* table)
{
    if (table->dtype == GR_F64) return "fp64 has exact products only";
    if (strcmp(table->isa, "avx512") != 0) return "needs cpu:avx512";
    return gr_onednn_missing();
}

static gr_status resolve_matmul(gr_matmul_mode* out, gr_matmul_mode wanted, const cpu_table* table)
{
    const char* reason = why_no_bf16_matmul(table);
    if (wanted == GR_MATMUL_BF16 && reason != NULL)
        return GR_FAIL(GR_EARG, "device.matmul: bf16: %s", reason);
    *out = wanted == GR_MATMUL_EXACT || reason != NULL ? GR_MATMUL_EXACT : GR_MATMUL_BF16;
    return GR_OK;
}

/* ---- open and close ------------------------------------------------------------------------------ */

static void* aligned_block(size_t bytes)
{
    const size_t align = bytes >= HUGE_PAGE ? HUGE_PAGE : ALIGN;
    const size_t whole = (GR_MAX(bytes, 1) + align - 1) / align * align;
    void* p = gr_fault("dev.alloc") ? NULL : aligned_alloc(align, whole);
    /* Weights and caches are read from end to end: large pages save address lookups. */
    if (p != NULL && align == HUGE_PAGE) (void)madvise(p, whole, MADV_HUGEPAGE);
    return p;
}

static gr_status open_state(gr_dev* dev)
{
    gr_cpu_state* state = calloc(1, sizeof *state);
    dev->impl = state;
    if (state != NULL)
        state->scratch = aligned_block((size_t)dev->threads * GR_CPU_SCRATCH * dev->acc_bytes);
    if (state == NULL || state->scratch == NULL)
        return GR_FAIL(GR_ENOMEM, "device cpu: no memory for the scratch of its threads");
    if (dev->matmul == GR_MATMUL_BF16) GR_TRY(gr_onednn_open(&state->onednn, dev->threads));
    return GR_OK;
}

gr_status gr_dev_open(gr_dev* dev, const gr_dev_options* options)
{
    memset(dev, 0, sizeof *dev);
    const char* name = options->name;
    const char* isa = NULL;
    if (strncmp(name, "cpu:", 4) == 0)
        isa = name + 4;
    else if (strcmp(name, "cpu") != 0)
        return GR_FAIL(GR_EARG,
                       "device: unknown device \"%s\" (cpu, cpu:base, cpu:avx2, cpu:avx512)", name);
    if (options->threads < 0) return GR_FAIL(GR_EARG, "device.threads: %d < 0", options->threads);
    const cpu_table* table;
    GR_TRY(find_table(&table, options->dtype, isa));
    GR_TRY(resolve_matmul(&dev->matmul, options->matmul, table));
    dev->ops = table->ops;
    dev->dtype = options->dtype;
    dev->real_bytes = options->dtype == GR_F64 ? 8 : options->dtype == GR_F32 ? 4 : 2;
    dev->acc_bytes = options->dtype == GR_F64 ? 8 : 4;
    dev->threads = options->threads > 0 ? options->threads : omp_get_num_procs();
    const gr_status st = open_state(dev);
    if (st != GR_OK) {
        gr_dev_close(dev);
        return st;
    }
    (void)snprintf(dev->name, sizeof dev->name, "cpu:%s", table->isa);
    (void)snprintf(dev->detail, sizeof dev->detail, "cpu %s, %s, %s matmul, %d thread%s",
                   table->isa, dtype_name(dev->dtype),
                   dev->matmul == GR_MATMUL_EXACT ? "exact" : "bf16", dev->threads,
                   dev->threads == 1 ? "" : "s");
    return GR_OK;
}

void gr_dev_close(gr_dev* dev)
{
    gr_cpu_state* state = dev->impl;
    if (state != NULL) {
        gr_onednn_close(state->onednn);
        free(state->scratch);
    }
    free(state);
    memset(dev, 0, sizeof *dev);
}

gr_status gr_dev_sync(gr_dev* dev)
{
    if (dev->err == GR_OK) return GR_OK;
    return GR_FAIL(dev->err, "%s: %s", dev->name, dev->err_text);
}

/* ---- memory --------------------------------------------------------------------------------------- */

gr_status gr_dev_alloc(gr_dev* dev, void** out, size_t bytes)
{
    *out = aligned_block(bytes);
    if (*out == NULL) return GR_FAIL(GR_ENOMEM, "%s: no memory for %zu bytes", dev->name, bytes);
    memset(*out, 0, bytes);
    return GR_OK;
}

void gr_dev_free(gr_dev* dev, void* p)
{
    (void)dev;
    free(p);
}

void gr_dev_write(gr_dev* dev, void* dst, const void* src, size_t bytes)
{
    (void)dev;
    if (bytes > 0) memcpy(dst, src, bytes);
}
void gr_dev_read(gr_dev* dev, void* dst, const void* src, size_t bytes)
{
    (void)dev;
    if (bytes > 0) memcpy(dst, src, bytes);
}
void gr_dev_zero(gr_dev* dev, void* dst, size_t bytes)
{
    (void)dev;
    if (bytes > 0) memset(dst, 0, bytes);
}

/* ---- conversion ------------------------------------------------------------------------------------ */

/* Rounds to nearest, ties to even; a NaN stays a NaN. */
static uint16_t float_to_bf16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
static float bf16_to_float(uint16_t x)
{
    const uint32_t bits = (uint32_t)x << 16;
    float y;
    memcpy(&y, &bits, sizeof y);
    return y;
}

static void write_as(gr_dtype dtype, void* dst, const double* src, int64_t n)
{
    if (dtype == GR_F64) memcpy(dst, src, (size_t)n * sizeof *src);
    for (int64_t i = 0; dtype == GR_F32 && i < n; i++) ((float*)dst)[i] = (float)src[i];
    for (int64_t i = 0; dtype == GR_BF16 && i < n; i++)
        ((uint16_t*)dst)[i] = float_to_bf16((float)src[i]);
}
static void read_as(gr_dtype dtype, double* dst, const void* src, int64_t n)
{
    if (dtype == GR_F64) memcpy(dst, src, (size_t)n * sizeof *dst);
    for (int64_t i = 0; dtype == GR_F32 && i < n; i++) dst[i] = (double)((const float*)src)[i];
    for (int64_t i = 0; dtype == GR_BF16 && i < n; i++)
        dst[i] = (double)bf16_to_float(((const uint16_t*)src)[i]);
}

static gr_dtype acc_dtype(const gr_dev* dev) { return dev->dtype == GR_F64 ? GR_F64 : GR_F32; }

void gr_dev_write_acc(gr_dev* dev, void* dst, const double* src, int64_t n)
{
    write_as(acc_dtype(dev), dst, src, n);
}
void gr_dev_read_acc(gr_dev* dev, double* dst, const void* src, int64_t n)
{
    read_as(acc_dtype(dev), dst, src, n);
}
void gr_dev_write_real(gr_dev* dev, void* dst, const double* src, int64_t n)
{
    write_as(dev->dtype, dst, src, n);
}
void gr_dev_read_real(gr_dev* dev, double* dst, const void* src, int64_t n)
{
    read_as(dev->dtype, dst, src, n);
}
