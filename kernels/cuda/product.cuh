/* product.cuh - the matrix product as a kernel: y, dy^T x or anything between, added or written. */
#pragma once
#include "kernels/cuda/gemm.cuh"

/* Output (i, j) is at[i * m_step + row j * n_step]; it starts from itself, from bias[i] or from 0. */
template <class Y, class T> struct output {
    Y* at;
    const T* bias;
    int64_t m_step, n_step;
    const int32_t* pick; /* row j is pick[j]; NULL: j */
    bool add;
};

template <class Y, class T>
__device__ __forceinline__ Y* output_at(const output<Y, T>& y, int64_t i, int64_t j)
{
    return y.at + i * y.m_step + (y.pick != NULL ? y.pick[j] : j) * y.n_step;
}
template <class Y, class T>
__device__ __forceinline__ float start_of(const output<Y, T>& y, int64_t i, int64_t j)
{
    if (y.add) return to_float(*output_at(y, i, j));
    return y.bias != NULL ? to_float(y.bias[i]) : 0;
}

template <int BN, class Y, class T>
__global__ void __launch_bounds__(GEMM_THREADS, gemm_blocks<T>::n)
    product(operand<T> w, operand<T> x, output<Y, T> y, extent inner)
{
    __shared__ __align__(16) gemm_tiles<BN, T> tiles;
    const int64_t m0 = (int64_t)blockIdx.y * BM, n0 = (int64_t)blockIdx.x * BN;
    const int64_t m = size_of(w.rows), n = size_of(x.rows);
    if (n0 >= n) return;
    float sum[BN / 2];
#pragma unroll
    for (int e = 0; e < BN / 2; e++) {
        const place p = place_of<BN, T>(e);
        sum[e] = m0 + p.row < m && n0 + p.col < n ? start_of(y, m0 + p.row, n0 + p.col) : 0;
    }
    accumulate<BN>(sum, &tiles, w, x, m0, n0, size_of(inner));
#pragma unroll
    for (int e = 0; e < BN / 2; e++) {
        const place p = place_of<BN, T>(e);
        if (m0 + p.row < m && n0 + p.col < n)
            *output_at(y, m0 + p.row, n0 + p.col) = to_real<Y>(sum[e]);
    }
}

template <class Y, class T>
static void launch_product(cudaStream_t stream, const operand<T>& w, const operand<T>& x,
                           const output<Y, T>& y, extent inner)
{
    const int64_t m = w.rows.most, n = x.rows.most;
    if (n <= FEW)
        LAUNCH((product<FEW, Y, T>), gemm_grid(m, n, FEW), GEMM_THREADS, 0, stream, w, x, y, inner);
    else
        LAUNCH((product<MANY, Y, T>), gemm_grid(m, n, MANY), GEMM_THREADS, 0, stream, w, x, y,
               inner);
}
