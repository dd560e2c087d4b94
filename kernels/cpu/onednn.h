/* onednn.h - bf16 matrix products through oneDNN, for device.matmul = bf16. Level 2.
 *
 * Faster than exact products by far where the CPU multiplies bf16 tiles (AMX), but a row's bits may
 * depend on its batch. Operands that are fp32 are rounded to bf16 first; sums are fp32. A failed call
 * is recorded in the device. Compiled once, used by every variant. */
#pragma once
#include "kernels/device.h"

typedef struct gr_onednn gr_onednn;

/* Why there are no bf16 products here, as a phrase; NULL if there are. Emulated they would be far slower
 * than exact ones. */
const char* gr_onednn_missing(void);

GR_MUST_CHECK gr_status gr_onednn_open(gr_onednn** out, int threads);
void gr_onednn_close(gr_onednn* lib); /* accepts NULL */

/* Weights (m, k) for y = x w^T in the library's own layout. */
size_t gr_onednn_packed_bytes(const gr_dev* dev, int m, int k);
/* w is (m, k), or with `transpose` (k, m). */
void gr_onednn_pack(gr_dev* dev, void* packed, const void* w, bool w_f32, int m, int k,
                    bool transpose);

typedef struct gr_onednn_args {
    void* y;       /* (n, m) rows of y_stride elements */
    const void* x; /* (n, k) dense */
    const void* packed;
    const void* bias; /* (m) or NULL */
    int64_t n, y_stride;
    int m, k;
    bool x_f32, y_f32, bias_f32; /* else bf16 */
} gr_onednn_args;
void gr_onednn_matmul(gr_dev* dev, const gr_onednn_args* a);

/* dw (m, k) fp32 += dy^T x; dy (n, m) rows of dy_stride elements, x (n, k) dense. */
typedef struct gr_onednn_dw_args {
    float* dw;
    const void *dy, *x;
    int64_t n, dy_stride;
    int m, k;
    bool dy_f32, x_f32;
} gr_onednn_dw_args;
void gr_onednn_dw(gr_dev* dev, const gr_onednn_dw_args* a);
