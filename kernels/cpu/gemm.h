/* gemm.h - the matrix products behind the matmul ops, for other sources of kernels/cpu/.
 *
 * Here inputs and outputs may also be acc: logits and their gradients never are real. A row has the
 * same bits in any batch, and for any run of panels, as its part of the whole product. */
#pragma once
#include "kernels/cpu/cpu.h"

/* Packed weights are panels of GEMM_WIDTH outputs, each panel k * GEMM_WIDTH reals, the last one
 * padded: the product with outputs [p * GEMM_WIDTH, ...) alone starts at gemm_panel(packed, p, k). */
#if defined(GR_CPU_AVX512)
#define GEMM_WIDTH 32
#else
#define GEMM_WIDTH 16
#endif

static inline const real* gemm_panel(const void* packed, int64_t panel, int k)
{
    return (const real*)packed + panel * k * GEMM_WIDTH;
}

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
