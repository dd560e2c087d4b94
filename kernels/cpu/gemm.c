/* gemm.c - matrix products whose rows do not depend on the batch.
 *
 * Packed weights are panels of 16 outputs: [panel][k][16], the last panel padded with zeros. Every
 * output is one fma chain over k in order, so a row has the same bits in any batch and on any number
 * of threads. */
#include "kernels/cpu/cpu.h"

static int64_t panels_of(int m) { return ((int64_t)m + VEC - 1) / VEC; }

size_t OP(matmul_packed_bytes)(const gr_dev* dev, int m, int k, bool transpose)
{
    (void)dev;
    const int64_t panels = transpose ? panels_of(k) * m : panels_of(m) * k;
    return (size_t)(panels * VEC) * sizeof(real);
}

void OP(matmul_pack)(gr_dev* dev, void* packed, const void* w, int m, int k, bool transpose)
{
    const real* from = w;
    real* to = packed;
    const int outputs = transpose ? k : m, inner = transpose ? m : k;
    const int64_t step_out = transpose ? 1 : k, step_in = transpose ? k : 1;
    const int threads = op_threads(dev, (double)m * k);
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (int64_t p = 0; p < panels_of(outputs); p++)
        for (int64_t q = 0; q < inner; q++)
            for (int64_t j = 0; j < VEC; j++) {
                const int64_t out = p * VEC + j;
                to[(p * inner + q) * VEC + j] =
                    out < outputs ? from[out * step_out + q * step_in] : 0;
            }
}

void OP(matmul)(gr_dev* dev, void* y, const void* x, const void* packed, const void* bias,
                int64_t n, int m, int k)
{
    const int threads = op_threads(dev, (double)n * m * k);
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (int64_t p = 0; p < panels_of(m); p++) {
        const real* panel = (const real*)packed + p * k * VEC;
        const int left = (int)GR_MIN(m - p * VEC, VEC);
        for (int64_t i = 0; i < n; i++) {
            vec s = vec_zero();
            for (int64_t q = 0; q < k; q++)
                s = vec_fma(vec_set(real_to_acc(((const real*)x)[i * k + q])),
                            vec_load_real(panel + q * VEC), s);
            if (bias != NULL) s = vec_add(s, vec_load_real_part((const real*)bias + p * VEC, left));
            vec_store_real_part((real*)y + i * m + p * VEC, s, left);
        }
    }
}

size_t OP(matmul_dw_scratch)(const gr_dev* dev, int64_t n, int m, int k)
{
    (void)dev, (void)n, (void)m, (void)k;
    return 0;
}

void OP(matmul_dw)(gr_dev* dev, void* dw, void* db, const void* dy, const void* x, int64_t n, int m,
                   int k, void* scratch)
{
    (void)scratch;
    const int threads = op_threads(dev, (double)n * m * k);
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (int64_t j = 0; j < m; j++)
        for (int64_t i = 0; i < n; i++) {
            const acc d = real_to_acc(((const real*)dy)[i * m + j]);
            if (db != NULL) ((acc*)db)[j] += d;
            for (int q = 0; q < k; q += VEC) {
                const int left = GR_MIN(k - q, VEC);
                acc* out = (acc*)dw + j * k + q;
                const vec v = vec_load_real_part((const real*)x + i * k + q, left);
                vec_store_part(out, vec_fma(vec_set(d), v, vec_load_part(out, left)), left);
            }
        }
}
