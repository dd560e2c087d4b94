/* gemm.cu - y = x w^T where a row does not depend on the batch, and dw += dy^T x.
 *
 * Every output is one chain over the inner dimension in order, started from its bias or from what dw
 * holds: fused multiply-adds for fp32, mma.sync steps of 16 for bf16. Nothing splits a chain, and the
 * weights are always the M operand, so tiles for few and for many rows give the same bits.
 *
 * A block computes BM outputs x BN rows. Both operands pass through shared memory as [row][BK]; what
 * lies outside a matrix is zero there. */
#include "kernels/cuda/cuda.cuh"

#define BM      64  /* outputs of a block */
#define THREADS 128 /* of bf16: a warp owns 16 outputs; of fp32: a thread owns 4 */
#define FEW     8   /* rows of a block that decodes */
#define MANY    64

/* Element (i, q), q along the chain, is at[i * row + q * step]. One of row and step is 1. */
template <class T> struct operand {
    const T* at;
    int64_t row, step;
    int64_t rows; /* that exist */
    bool whole;   /* step is 1; rows are 16-byte aligned */
};

/* Output (i, j) is at[i * m_step + j * n_step]; it starts from itself, from bias[i] or from 0. */
template <class Y, class T> struct output {
    Y* at;
    const T* bias;
    int64_t m_step, n_step;
    bool add;
};

template <class Y, class T>
__device__ __forceinline__ float start_of(const output<Y, T>* y, int64_t i, int64_t j)
{
    if (y->add) return to_float(y->at[i * y->m_step + j * y->n_step]);
    return y->bias != NULL ? to_float(y->bias[i]) : 0;
}

__device__ __forceinline__ void set_zero(float* x) { *x = 0; }
__device__ __forceinline__ void set_zero(bf16* x) { x->bits = 0; }

/* tile[i][q] = element (first + i, q0 + q), i < ROWS, q < BK. Neighbouring threads read neighbours. */
template <int ROWS, int BK, int PITCH, class T>
__device__ __forceinline__ void load_tile(T* tile, const operand<T>* x, int64_t first, int64_t q0,
                                          int64_t k)
{
    for (int at = (int)threadIdx.x; at < ROWS * BK; at += THREADS) {
        const int i = x->step == 1 ? at / BK : at % ROWS, q = x->step == 1 ? at % BK : at / ROWS;
        T* to = tile + i * PITCH + q;
        if (first + i < x->rows && q0 + q < k)
            *to = x->at[(first + i) * x->row + (q0 + q) * x->step];
        else
            set_zero(to);
    }
}

/* ---- fp32 --------------------------------------------------------------------------------------- */

#define F32_BK    16
#define F32_PITCH (F32_BK + 1)

template <int BN>
__global__ void __launch_bounds__(THREADS, 4)
    gemm_f32(operand<float> w, operand<float> x, output<float, float> y, int64_t k)
{
    __shared__ float ws[BM * F32_PITCH], xs[BN * F32_PITCH];
    const int64_t m0 = (int64_t)blockIdx.y * BM, n0 = (int64_t)blockIdx.x * BN;
    const int tm = (int)threadIdx.x % 16, tn = (int)threadIdx.x / 16;
    float sum[4][BN / 8];
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < BN / 8; j++) {
            const int64_t row = m0 + tm + 16 * i, col = n0 + tn + 8 * j;
            sum[i][j] = row < w.rows && col < x.rows ? start_of(&y, row, col) : 0;
        }
    for (int64_t q0 = 0; q0 < k; q0 += F32_BK) {
        __syncthreads();
        load_tile<BM, F32_BK, F32_PITCH>(ws, &w, m0, q0, k);
        load_tile<BN, F32_BK, F32_PITCH>(xs, &x, n0, q0, k);
        __syncthreads();
        const int steps = k - q0 < F32_BK ? (int)(k - q0) : F32_BK;
        for (int q = 0; q < steps; q++)
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < BN / 8; j++)
                    sum[i][j] = fmaf(xs[(tn + 8 * j) * F32_PITCH + q],
                                     ws[(tm + 16 * i) * F32_PITCH + q], sum[i][j]);
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < BN / 8; j++) {
            const int64_t row = m0 + tm + 16 * i, col = n0 + tn + 8 * j;
            if (row < w.rows && col < x.rows) y.at[row * y.m_step + col * y.n_step] = sum[i][j];
        }
}

/* ---- bf16 --------------------------------------------------------------------------------------- */

#define BF16_BK     32
#define BF16_PITCH  40 /* 80 bytes: the 8 rows of an ldmatrix lie in different banks */
#define BF16_STAGES 4

/* Starts the copy of a tile: by cp.async where rows are aligned, else at once. */
template <int ROWS>
__device__ __forceinline__ void start_tile(bf16* tile, const operand<bf16>* x, int64_t first,
                                           int64_t q0, int64_t k)
{
    if (!x->whole) {
        load_tile<ROWS, BF16_BK, BF16_PITCH>(tile, x, first, q0, k);
        return;
    }
    for (int at = (int)threadIdx.x; at < ROWS * BF16_BK / 8; at += THREADS) {
        const int i = at / (BF16_BK / 8), q = at % (BF16_BK / 8) * 8;
        const int64_t left = first + i < x->rows ? k - q0 - q : 0;
        const int bytes = left >= 8 ? 16 : left > 0 ? (int)left * 2 : 0;
        const bf16* from = bytes > 0 ? x->at + (first + i) * x->row + q0 + q : x->at;
        port::cp_async16(port::smem_addr(tile + i * BF16_PITCH + q), from, bytes);
    }
}

/* sum += the products of one stage: warp's 16 outputs x BN rows, two steps of 16. */
template <int BN>
__device__ __forceinline__ void mma_stage(float (&sum)[BN / 8][4], const bf16* ws, const bf16* xs)
{
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    uint32_t a[2][4];
#pragma unroll
    for (int s = 0; s < 2; s++)
        port::ldmatrix_x4(a[s], port::smem_addr(ws + (warp * 16 + lane % 16) * BF16_PITCH + s * 16 +
                                                lane / 16 * 8));
#pragma unroll
    for (int j = 0; j < BN / 8; j++) {
        uint32_t b[4]; /* 8 rows, k in quarters */
        port::ldmatrix_x4(b, port::smem_addr(xs + (j * 8 + lane % 8) * BF16_PITCH + lane / 8 * 8));
        port::mma_bf16_16816(sum[j], a[0], b[0], b[1]);
        port::mma_bf16_16816(sum[j], a[1], b[2], b[3]);
    }
}

template <int BN, class Y>
__global__ void __launch_bounds__(THREADS, 3)
    gemm_bf16(operand<bf16> w, operand<bf16> x, output<Y, bf16> y, int64_t k)
{
    __shared__ __align__(16) bf16 ws[BF16_STAGES][BM * BF16_PITCH];
    __shared__ __align__(16) bf16 xs[BF16_STAGES][BN * BF16_PITCH];
    const int64_t m0 = (int64_t)blockIdx.y * BM, n0 = (int64_t)blockIdx.x * BN;
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    const int64_t row = m0 + warp * 16 + lane / 4, col = n0 + lane % 4 * 2;
    float sum[BN / 8][4]; /* (row, col), (row, col + 1), (row + 8, col), (row + 8, col + 1) */
#pragma unroll
    for (int j = 0; j < BN / 8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int64_t r = row + e / 2 * 8, c = col + j * 8 + e % 2;
            sum[j][e] = r < w.rows && c < x.rows ? start_of(&y, r, c) : 0;
        }
    const int64_t stages = (k + BF16_BK - 1) / BF16_BK;
    for (int64_t s = 0; s < BF16_STAGES - 1; s++) {
        if (s < stages) start_tile<BM>(ws[s], &w, m0, s * BF16_BK, k);
        if (s < stages) start_tile<BN>(xs[s], &x, n0, s * BF16_BK, k);
        port::cp_async_commit();
    }
    for (int64_t s = 0; s < stages; s++) {
        port::cp_async_wait<BF16_STAGES - 2>();
        __syncthreads(); /* stage s is here; stage s - 1 is no longer read */
        const int64_t ahead = s + BF16_STAGES - 1;
        const int to = (int)(ahead % BF16_STAGES), at = (int)(s % BF16_STAGES);
        if (ahead < stages) start_tile<BM>(ws[to], &w, m0, ahead * BF16_BK, k);
        if (ahead < stages) start_tile<BN>(xs[to], &x, n0, ahead * BF16_BK, k);
        port::cp_async_commit();
        mma_stage<BN>(sum, ws[at], xs[at]);
    }
#pragma unroll
    for (int j = 0; j < BN / 8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int64_t r = row + e / 2 * 8, c = col + j * 8 + e % 2;
            if (r < w.rows && c < x.rows) y.at[r * y.m_step + c * y.n_step] = to_real<Y>(sum[j][e]);
        }
}

/* ---- launch ------------------------------------------------------------------------------------- */

static dim3 grid_of(int64_t m, int64_t n, int bn)
{
    GR_ASSERT(ceil_div(m, BM) <= 65535, "%lld outputs", (long long)m);
    return dim3((unsigned)ceil_div(n, bn), (unsigned)ceil_div(m, BM));
}

static void launch(cudaStream_t s, operand<float> w, operand<float> x, output<float, float> y,
                   int64_t k)
{
    if (x.rows <= FEW)
        LAUNCH(gemm_f32<FEW>, grid_of(w.rows, x.rows, FEW), THREADS, 0, s, w, x, y, k);
    else
        LAUNCH(gemm_f32<MANY>, grid_of(w.rows, x.rows, MANY), THREADS, 0, s, w, x, y, k);
}
template <class Y>
static void launch(cudaStream_t s, operand<bf16> w, operand<bf16> x, output<Y, bf16> y, int64_t k)
{
    if (x.rows <= FEW)
        LAUNCH((gemm_bf16<FEW, Y>), grid_of(w.rows, x.rows, FEW), THREADS, 0, s, w, x, y, k);
    else
        LAUNCH((gemm_bf16<MANY, Y>), grid_of(w.rows, x.rows, MANY), THREADS, 0, s, w, x, y, k);
}

/* ---- packed weights: rows of the chain's dimension, each padded to whole chunks ------------------ */

static int64_t packed_row(const gr_dev* dev, int inner)
{
    const int64_t n = 16 / (int64_t)dev->real_bytes;
    return ceil_div(inner, n) * n;
}

size_t OP(matmul_packed_bytes)(const gr_dev* dev, int m, int k, bool transpose)
{
    const int64_t outputs = transpose ? k : m, inner = transpose ? m : k;
    return (size_t)(outputs * packed_row(dev, (int)inner)) * dev->real_bytes;
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
                         m, k, packed_row(dev, transpose ? m : k), transpose));
    gr_cuda_launched(dev, "matmul_pack");
}

/* ---- ops ---------------------------------------------------------------------------------------- */

void OP(matmul)(gr_dev* dev, void* y, const void* x, const void* packed, const void* bias,
                int64_t n, int m, int k)
{
    if (n == 0) return;
    FOR_REAL(dev, {
        const bool whole = is_aligned(x, 16) && (size_t)k * sizeof(T) % 16 == 0;
        const operand<T> w = {(const T*)packed, packed_row(dev, k), 1, m, true};
        const operand<T> rows = {(const T*)x, k, 1, n, whole};
        const output<T, T> out = {(T*)y, (const T*)bias, 1, m, false};
        launch(gr_cuda_stream(dev), w, rows, out, k);
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
        const operand<T> a = {(const T*)dy, 1, m, m, false}, b = {(const T*)x, 1, k, k, false};
        const output<float, T> out = {(float*)dw, NULL, k, 1, true};
        launch(gr_cuda_stream(dev), a, b, out, n);
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
