/* gemm.cuh - the inner loop of every matrix product: BM x BN tiles of w x^T in registers.
 *
 * Every output is one chain over the inner dimension in order: fused multiply-adds for fp32, mma.sync
 * steps of 16 for bf16. Nothing splits a chain, and w is always the M operand, so tiles for few and
 * for many rows of x give the same bits.
 *
 * Both operands pass through shared memory as [row][BK]; what lies outside a matrix is zero there. */
#pragma once
#include "kernels/cuda/cuda.cuh"

#define BM           64  /* rows of w, the outputs, in a block */
#define GEMM_THREADS 128 /* of bf16: a warp owns 16 outputs; of fp32: a thread owns 4 */
#define FEW          8   /* BN of a block that decodes */
#define MANY         64

/* A size that the host knows, or of which it knows the largest value only. */
struct extent {
    int64_t most;
    const int32_t* count; /* on the device; NULL: most */
};
__device__ __forceinline__ int64_t size_of(const extent& e)
{
    return e.count != NULL ? *e.count : e.most;
}
static inline extent extent_of(int64_t n)
{
    const extent e = {n, NULL};
    return e;
}

/* Element (i, q), q along the chain, is at[i * row + q * step]. One of row and step is 1. */
template <class T> struct operand {
    const T* at;
    int64_t row, step;
    extent rows;
    bool whole; /* step is 1; rows are 16-byte aligned */
};

/* Threads hold BN / 2 outputs each: fp32 4 x BN / 8, spread over the tile; bf16 the fragments of mma. */
template <int BN, class T> struct gemm_tiles; /* shared memory of a block */
struct place {
    int row, col; /* of w and of x, in the tile */
};

/* tile[i][q] = element (first + i, q0 + q), i < ROWS, q < BK. Neighbouring threads read neighbours. */
template <int ROWS, int BK, int PITCH, class T>
__device__ __forceinline__ void load_tile(T* tile, const operand<T>& x, int64_t rows, int64_t first,
                                          int64_t q0, int64_t k)
{
    for (int at = (int)threadIdx.x; at < ROWS * BK; at += GEMM_THREADS) {
        const int i = x.step == 1 ? at / BK : at % ROWS, q = x.step == 1 ? at % BK : at / ROWS;
        T* to = tile + i * PITCH + q;
        if (first + i < rows && q0 + q < k)
            *to = x.at[(first + i) * x.row + (q0 + q) * x.step];
        else
            set_zero(to);
    }
}

/* ---- fp32 --------------------------------------------------------------------------------------- */

#define F32_BK    16
#define F32_PITCH (F32_BK + 1)

template <int BN> struct gemm_tiles<BN, float> {
    float w[BM * F32_PITCH], x[BN * F32_PITCH];
};

template <int BN, class T> __device__ __forceinline__ place place_of(int e);
template <int BN> __device__ __forceinline__ place place_f32(int e)
{
    const place p = {(int)threadIdx.x % 16 + 16 * (e / (BN / 8)),
                     (int)threadIdx.x / 16 + 8 * (e % (BN / 8))};
    return p;
}

/* sum += the tile at (m0, n0). All threads of the block call it; it ends without a barrier. */
template <int BN>
__device__ __forceinline__ void accumulate(float (&sum)[BN / 2], gemm_tiles<BN, float>* s,
                                           const operand<float>& w, const operand<float>& x,
                                           int64_t m0, int64_t n0, int64_t k)
{
    const int64_t w_rows = size_of(w.rows), x_rows = size_of(x.rows);
    const int tm = (int)threadIdx.x % 16, tn = (int)threadIdx.x / 16;
    for (int64_t q0 = 0; q0 < k; q0 += F32_BK) {
        __syncthreads();
        load_tile<BM, F32_BK, F32_PITCH>(s->w, w, w_rows, m0, q0, k);
        load_tile<BN, F32_BK, F32_PITCH>(s->x, x, x_rows, n0, q0, k);
        __syncthreads();
        const int steps = k - q0 < F32_BK ? (int)(k - q0) : F32_BK;
        for (int q = 0; q < steps; q++)
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < BN / 8; j++)
                    sum[i * (BN / 8) + j] =
                        fmaf(s->x[(tn + 8 * j) * F32_PITCH + q],
                             s->w[(tm + 16 * i) * F32_PITCH + q], sum[i * (BN / 8) + j]);
    }
}

/* ---- bf16 --------------------------------------------------------------------------------------- */

#define BF16_BK     32
#define BF16_PITCH  40 /* 80 bytes: the 8 rows of an ldmatrix lie in different banks */
#define BF16_STAGES 4

template <int BN> struct gemm_tiles<BN, bf16> {
    bf16 w[BF16_STAGES][BM * BF16_PITCH], x[BF16_STAGES][BN * BF16_PITCH];
};

template <int BN> __device__ __forceinline__ place place_bf16(int e)
{
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    const place p = {warp * 16 + lane / 4 + e % 4 / 2 * 8, e / 4 * 8 + lane % 4 * 2 + e % 2};
    return p;
}

/* Starts the copy of a tile: by cp.async where rows are aligned, else at once. */
template <int ROWS>
__device__ __forceinline__ void start_tile(bf16* tile, const operand<bf16>& x, int64_t rows,
                                           int64_t first, int64_t q0, int64_t k)
{
    if (!x.whole) {
        load_tile<ROWS, BF16_BK, BF16_PITCH>(tile, x, rows, first, q0, k);
        return;
    }
    for (int at = (int)threadIdx.x; at < ROWS * BF16_BK / 8; at += GEMM_THREADS) {
        const int i = at / (BF16_BK / 8), q = at % (BF16_BK / 8) * 8;
        const int64_t left = first + i < rows ? k - q0 - q : 0;
        const int bytes = left >= 8 ? 16 : left > 0 ? (int)left * 2 : 0;
        const bf16* from = bytes > 0 ? x.at + (first + i) * x.row + q0 + q : x.at;
        port::cp_async16(port::smem_addr(tile + i * BF16_PITCH + q), from, bytes);
    }
}

/* sum += the products of one stage: warp's 16 outputs x BN rows, two steps of 16. */
template <int BN>
__device__ __forceinline__ void mma_stage(float (&sum)[BN / 2], const bf16* ws, const bf16* xs)
{
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    uint32_t a[2][4];
#pragma unroll
    for (int s = 0; s < 2; s++)
        port::ldmatrix_x4(a[s], port::smem_addr(ws + (warp * 16 + lane % 16) * BF16_PITCH + s * 16 +
                                                lane / 16 * 8));
#pragma unroll
    for (int j = 0; j < BN / 8; j++) {
        float(&c)[4] = *(float(*)[4])(sum + 4 * j);
        uint32_t b[4]; /* 8 rows, k in quarters */
        port::ldmatrix_x4(b, port::smem_addr(xs + (j * 8 + lane % 8) * BF16_PITCH + lane / 8 * 8));
        port::mma_bf16_16816(c, a[0], b[0], b[1]);
        port::mma_bf16_16816(c, a[1], b[2], b[3]);
    }
}

template <int BN>
__device__ __forceinline__ void accumulate(float (&sum)[BN / 2], gemm_tiles<BN, bf16>* s,
                                           const operand<bf16>& w, const operand<bf16>& x,
                                           int64_t m0, int64_t n0, int64_t k)
{
    const int64_t w_rows = size_of(w.rows), x_rows = size_of(x.rows);
    const int64_t stages = (k + BF16_BK - 1) / BF16_BK;
    for (int64_t i = 0; i < BF16_STAGES - 1; i++) {
        if (i < stages) start_tile<BM>(s->w[i], w, w_rows, m0, i * BF16_BK, k);
        if (i < stages) start_tile<BN>(s->x[i], x, x_rows, n0, i * BF16_BK, k);
        port::cp_async_commit();
    }
    for (int64_t i = 0; i < stages; i++) {
        port::cp_async_wait<BF16_STAGES - 2>();
        __syncthreads(); /* stage i is here; stage i - 1 is no longer read */
        const int64_t ahead = i + BF16_STAGES - 1;
        const int to = (int)(ahead % BF16_STAGES), at = (int)(i % BF16_STAGES);
        if (ahead < stages) start_tile<BM>(s->w[to], w, w_rows, m0, ahead * BF16_BK, k);
        if (ahead < stages) start_tile<BN>(s->x[to], x, x_rows, n0, ahead * BF16_BK, k);
        port::cp_async_commit();
        mma_stage<BN>(sum, s->w[at], s->x[at]);
    }
}

template <> __device__ __forceinline__ place place_of<FEW, float>(int e)
{
    return place_f32<FEW>(e);
}
template <> __device__ __forceinline__ place place_of<MANY, float>(int e)
{
    return place_f32<MANY>(e);
}
template <> __device__ __forceinline__ place place_of<FEW, bf16>(int e)
{
    return place_bf16<FEW>(e);
}
template <> __device__ __forceinline__ place place_of<MANY, bf16>(int e)
{
    return place_bf16<MANY>(e);
}

/* ---- launch ------------------------------------------------------------------------------------- */

template <class T> struct gemm_blocks; /* that fit a multiprocessor */
template <> struct gemm_blocks<float> {
    static const int n = 4;
};
template <> struct gemm_blocks<bf16> {
    static const int n = 3;
};

/* Blocks of neighbouring rows of x run together, so w is read from memory once. */
static inline dim3 gemm_grid(int64_t m, int64_t n, int bn)
{
    GR_ASSERT(ceil_div(m, BM) <= 65535, "%lld outputs", (long long)m);
    return dim3((unsigned)ceil_div(n, bn), (unsigned)ceil_div(m, BM));
}

/* ---- packed weights: rows of the chain's dimension, each padded to whole chunks ------------------ */

template <class T> static inline __host__ __device__ int64_t padded(int64_t n)
{
    return ceil_div(n, chunk_of<T>::n) * chunk_of<T>::n;
}
/* The packed weights of n outputs and a chain of k. */
template <class T> static inline operand<T> packed_operand(const void* packed, int64_t n, int64_t k)
{
    const operand<T> w = {(const T*)packed, padded<T>(k), 1, extent_of(n), true};
    return w;
}
