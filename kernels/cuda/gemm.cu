/* gemm.cu - y = x w^T where a row does not depend on the batch, and dw += dy^T x. A chain starts from
 * its bias or from what dw holds; gemm.cuh says the rest. */
#include "kernels/cuda/gemm.cuh"
#include "kernels/cuda/product.cuh"

/* ---- packed weights: rows of the chain's dimension, each padded to whole chunks ------------------ */

size_t OP(matmul_packed_bytes)(const gr_dev* dev, int m, int k, bool transpose)
{
    const int64_t outputs = transpose ? k : m, inner = transpose ? m : k;
    FOR_REAL(dev, return (size_t)(outputs * padded<T>(inner)) * sizeof(T));
}

#define PACK 32 /* a block turns PACK x PACK elements */

template <class T>
__global__ void __launch_bounds__(PACK * 8)
    pack(T* to, const T* w, int m, int k, int64_t row, bool transpose)
{
    __shared__ T tile[PACK][PACK + 1];
    const int lane = (int)threadIdx.x % PACK, first = (int)threadIdx.x / PACK;
    const int64_t j0 = (int64_t)blockIdx.y * PACK, i0 = (int64_t)blockIdx.x * PACK;
    for (int r = first; r < PACK; r += 8) {
        if (j0 + r < m && i0 + lane < k)
            tile[r][lane] = w[(j0 + r) * k + i0 + lane];
        else
            set_zero(&tile[r][lane]);
    }
    __syncthreads();
    const int64_t out0 = transpose ? i0 : j0, in0 = transpose ? j0 : i0,
                  outputs = transpose ? k : m;
    for (int r = first; r < PACK; r += 8)
        if (out0 + r < outputs && in0 + lane < row)
            to[(out0 + r) * row + in0 + lane] = transpose ? tile[lane][r] : tile[r][lane];
}

void OP(matmul_pack)(gr_dev* dev, void* packed, const void* w, int m, int k, bool transpose)
{
    const dim3 grid((unsigned)ceil_div(k, PACK), (unsigned)ceil_div(m, PACK));
    FOR_REAL(dev, LAUNCH(pack<T>, grid, PACK * 8, 0, gr_cuda_stream(dev), (T*)packed, (const T*)w,
                         m, k, padded<T>(transpose ? m : k), transpose));
    gr_cuda_launched(dev, "matmul_pack");
}

/* ---- ops ---------------------------------------------------------------------------------------- */

void OP(matmul)(gr_dev* dev, void* y, const void* x, const void* packed, const void* bias,
                int64_t n, int m, int k)
{
    if (n == 0) return;
    FOR_REAL(dev, {
        const bool whole = is_aligned(x, 16) && (size_t)k * sizeof(T) % 16 == 0;
        const operand<T> rows = {(const T*)x, k, 1, extent_of(n), whole};
        const output<T, T> out = {(T*)y, (const T*)bias, 1, m, NULL, false};
        launch_product(gr_cuda_stream(dev), packed_operand<T>(packed, m, k), rows, out,
                       extent_of(k));
    });
    gr_cuda_launched(dev, "matmul");
}

#define COLUMN_THREADS 128

/* db[j] += the column's sum, in row order. */
template <class T>
__global__ void __launch_bounds__(COLUMN_THREADS)
    add_columns(float* db, const T* dy, int64_t n, int m)
{
    const int j = (int)(blockIdx.x * COLUMN_THREADS + threadIdx.x);
    if (j >= m) return;
    float sum = db[j];
#pragma unroll 8
    for (int64_t i = 0; i < n; i++) sum += to_float(dy[i * m + j]);
    db[j] = sum;
}

void OP(matmul_dw)(gr_dev* dev, void* dw, void* db, const void* dy, const void* x, int64_t n, int m,
                   int k, void* scratch)
{
    (void)scratch;
    if (n == 0) return;
    FOR_REAL(dev, {
        const operand<T> a = {(const T*)dy, 1, m, extent_of(m), false};
        const operand<T> b = {(const T*)x, 1, k, extent_of(k), false};
        const output<float, T> out = {(float*)dw, NULL, k, 1, NULL, true};
        launch_product(gr_cuda_stream(dev), a, b, out, extent_of(n));
        if (db != NULL)
            LAUNCH(add_columns<T>, (unsigned)ceil_div(m, COLUMN_THREADS), COLUMN_THREADS, 0,
                   gr_cuda_stream(dev), (float*)db, (const T*)dy, n, m);
    });
    gr_cuda_launched(dev, "matmul_dw");
}

size_t OP(matmul_dw_scratch)(const gr_dev* dev, int64_t n, int m, int k)
{
    (void)dev, (void)n, (void)m, (void)k;
    return 0;
}
