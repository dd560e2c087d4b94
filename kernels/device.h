/* device.h - one compute device: its memory, its op table, its sticky error.
 *
 * Level 1. Ops are called through `dev->ops` (kernels/ops.h) and queued in call order. A failed
 * launch is recorded once here, with the op's name and the driver's text; results of later ops are
 * worth nothing, and the next gr_dev_sync reports it (like ferror). */
#pragma once
#include "host/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Storage of weights and activations, fixed per opened device. Sums, statistics, gradients of
 * weights and optimizer states are `acc`: fp32 for F32 and BF16, fp64 for F64 (tests only). */
typedef enum gr_dtype { GR_F32, GR_BF16, GR_F64 } gr_dtype;
typedef enum gr_matmul_mode { GR_MATMUL_EXACT, GR_MATMUL_BF16, GR_MATMUL_AUTO } gr_matmul_mode;
/* Over pages. Exact: the bits of attention over a packed tree; fast: a GPU reads shared keys once. */
typedef enum gr_attention_mode { GR_ATTENTION_EXACT, GR_ATTENTION_FAST } gr_attention_mode;

typedef struct gr_ops gr_ops;
struct gr_backend;

typedef struct gr_dev {
    const gr_ops* ops;
    const struct gr_backend* backend; /* what kind of device it is (backend.h) */
    char name[32]; /* what was chosen: "cpu avx512 f32 exact, 2 threads" is `detail` */
    char detail[160];
    gr_dtype dtype;
    size_t real_bytes;     /* element size of real tensors */
    size_t acc_bytes;      /* element size of acc tensors */
    gr_matmul_mode matmul; /* resolved: never GR_MATMUL_AUTO */
    gr_attention_mode attention;
    int threads;
    int max_head;  /* largest head size attention takes; 0: any */
    gr_status err; /* first device error */
    char err_text[256];
    void* impl; /* private to the device's own file */
} gr_dev;

typedef struct gr_dev_options {
    const char* name; /* "cpu": best instruction set here; "cpu:avx512", "cpu:avx2", "cpu:base";
                         "cuda:N": GPU number N */
    gr_dtype dtype;
    gr_matmul_mode matmul;
    int threads; /* 0: all cores; a GPU has no use for it */
    gr_attention_mode attention;
} gr_dev_options;

GR_MUST_CHECK gr_status gr_dev_open(gr_dev* dev, const gr_dev_options* options);
/* "cpu: ..." and so on, a line per kind of device that this program has; NULL behind the last. */
const char* gr_dev_built(int i);
void gr_dev_close(gr_dev* dev); /* accepts a zeroed struct and a second call */

GR_MUST_CHECK gr_status gr_dev_alloc(gr_dev* dev, void** out,
                                     size_t bytes); /* zeroed, 256-aligned */
void gr_dev_free(gr_dev* dev, void* p);

/* Copies. The typed ones convert between host doubles and the device's real or acc type. */
void gr_dev_write(gr_dev* dev, void* dst, const void* src, size_t bytes);
void gr_dev_read(gr_dev* dev, void* dst, const void* src, size_t bytes);
void gr_dev_zero(gr_dev* dev, void* dst, size_t bytes);
void gr_dev_write_acc(gr_dev* dev, void* dst, const double* src, int64_t n);
void gr_dev_read_acc(gr_dev* dev, double* dst, const void* src, int64_t n);
void gr_dev_write_real(gr_dev* dev, void* dst, const double* src, int64_t n);
void gr_dev_read_real(gr_dev* dev, double* dst, const void* src, int64_t n);

GR_MUST_CHECK gr_status gr_dev_sync(gr_dev* dev);

/* The device's own clock, for benchmarks: marks 0 and 1 are set between queued work, elapsed waits for
 * mark 1 and gives the seconds from 0 to 1. */
void gr_dev_mark(gr_dev* dev, int which);
double gr_dev_elapsed(gr_dev* dev);

/* Pointer arithmetic on untyped tensors, in elements. Like strchr they take const tensors too. */
static inline void* gr_real_at(const gr_dev* dev, const void* p, int64_t i)
{
    return (void*)((uintptr_t)p + (size_t)i * dev->real_bytes);
}
static inline void* gr_acc_at(const gr_dev* dev, const void* p, int64_t i)
{
    return (void*)((uintptr_t)p + (size_t)i * dev->acc_bytes);
}

#ifdef __cplusplus
}
#endif
