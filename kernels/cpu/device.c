/* device.c - the cpu device: instruction sets, memory of the host, and the scratch of threads. */
#include "kernels/backend.h"
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
    void* p = aligned_alloc(align, whole);
    /* Weights and caches are read from end to end: large pages save address lookups. */
    if (p != NULL && align == HUGE_PAGE) (void)madvise(p, whole, MADV_HUGEPAGE);
    return p;
}

static gr_status open_state(gr_dev* dev)
{
    gr_cpu_state* state = calloc(1, sizeof *state);
    dev->impl = state;
    if (state != NULL)
        state->scratch =
            gr_fault("dev.alloc")
                ? NULL
                : aligned_block((size_t)dev->threads * GR_CPU_SCRATCH * dev->acc_bytes);
    if (state == NULL || state->scratch == NULL)
        return GR_FAIL(GR_ENOMEM, "device cpu: no memory for the scratch of its threads");
    if (dev->matmul == GR_MATMUL_BF16) GR_TRY(gr_onednn_open(&state->onednn, dev->threads));
    return GR_OK;
}

static bool takes(const char* name)
{
    return strcmp(name, "cpu") == 0 || strncmp(name, "cpu:", 4) == 0;
}

static gr_status open_cpu(gr_dev* dev, const gr_dev_options* options)
{
    const char* isa = options->name[3] == ':' ? options->name + 4 : NULL;
    const cpu_table* table;
    if (options->attention == GR_ATTENTION_FAST)
        return GR_FAIL(GR_EARG, "device.attention: fast: the cpu device has exact attention only");
    GR_TRY(find_table(&table, options->dtype, isa));
    GR_TRY(resolve_matmul(&dev->matmul, options->matmul, table));
    dev->ops = table->ops;
    dev->threads = options->threads > 0 ? options->threads : omp_get_num_procs();
    GR_TRY(open_state(dev));
    (void)snprintf(dev->name, sizeof dev->name, "cpu:%s", table->isa);
    (void)snprintf(dev->detail, sizeof dev->detail, "cpu %s, %s, %s matmul, %d thread%s",
                   table->isa, dtype_name(dev->dtype),
                   dev->matmul == GR_MATMUL_EXACT ? "exact" : "bf16", dev->threads,
                   dev->threads == 1 ? "" : "s");
    return GR_OK;
}

static void close_cpu(gr_dev* dev)
{
    gr_cpu_state* state = dev->impl;
    if (state != NULL) {
        gr_onednn_close(state->onednn);
        free(state->scratch);
    }
    free(state);
}

/* ---- memory --------------------------------------------------------------------------------------- */

static void* alloc(gr_dev* dev, size_t bytes)
{
    (void)dev;
    void* p = aligned_block(bytes);
    if (p != NULL) memset(p, 0, bytes);
    return p;
}
static void release(gr_dev* dev, void* p)
{
    (void)dev;
    free(p);
}
static void copy(gr_dev* dev, void* dst, const void* src, size_t bytes)
{
    (void)dev;
    memcpy(dst, src, bytes);
}
static void zero(gr_dev* dev, void* dst, size_t bytes)
{
    (void)dev;
    memset(dst, 0, bytes);
}
static void wait_for_nothing(gr_dev* dev) { (void)dev; } /* an op has run when it returns */

static void mark(gr_dev* dev, int which) { ((gr_cpu_state*)dev->impl)->mark[which] = gr_now_s(); }
static double elapsed(gr_dev* dev)
{
    const gr_cpu_state* state = dev->impl;
    return state->mark[1] - state->mark[0];
}

const gr_backend gr_backend_cpu = {
    .names = "cpu, cpu:base, cpu:avx2, cpu:avx512",
    .built = "cpu: base, avx2, avx512",
    .takes = takes,
    .open = open_cpu,
    .close = close_cpu,
    .alloc = alloc,
    .release = release,
    .write = copy,
    .read = copy,
    .zero = zero,
    .sync = wait_for_nothing,
    .mark = mark,
    .elapsed = elapsed,
};
