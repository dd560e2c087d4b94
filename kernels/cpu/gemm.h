/* gemm.h - the matrix products behind the matmul ops, for other sources of kernels/cpu/.
 *
 * Here inputs and outputs may also be acc: logits and their gradients never are real. */
#pragma once
#include "kernels/cpu/cpu.h"

/* Packed weights are panels of GEMM_WIDTH outputs: [panel][k][GEMM_WIDTH] real, the last panel padded
 * with zeros. (In bf16 mode they have the library's layout.) */
#if defined(GR_CPU_AVX512)
#define GEMM_WIDTH 32
#else
#define GEMM_WIDTH 16
#endif

static inline int64_t gemm_panels(int m) { return ((int64_t)m + GEMM_WIDTH - 1) / GEMM_WIDTH; }

/* Copies n elements, real or acc, to acc. */
static inline void copy_to_acc(acc* to, const void* from, int64_t at, bool is_acc, int64_t n)
{
    const real* x = (const real*)from + at;
    const acc* y = (const acc*)from + at;
    for (int64_t i = 0; i < n; i += VEC) {
        const int left = (int)GR_MIN(n - i, VEC);
        vec_store_part(to + i,
                       is_acc ? vec_load_part(y + i, left) : vec_load_real_part(x + i, left), left);
    }
}

/* bf16 mode: never on an fp64 device. */
static inline bool gemm_by_library(const gr_dev* dev) { return dev->matmul == GR_MATMUL_BF16; }

typedef struct gemm_args {
    void* y;            /* (n, m) rows of y_stride elements */
    const void* x;      /* (n, k) rows of k elements */
    const void* packed; /* from matmul_pack */
    const void* bias;   /* (m) real or NULL: where the chain of an output starts */
    int64_t n, y_stride;
    int m, k;
    bool x_acc, y_acc; /* the type of x, y: acc, else real */
} gemm_args;

void OP(gemm)(gr_dev* dev, const gemm_args* args);

/* dw (m, k) acc += dy^T x in row order, starting from what dw holds: rows in two calls give the bits
 * of one. dy (n, m) rows of dy_stride elements, acc or real; x (n, k) real. */
void OP(gemm_dw)(gr_dev* dev, acc* dw, const void* dy, bool dy_acc, int64_t dy_stride,
                 const void* x, int64_t n, int m, int k);
