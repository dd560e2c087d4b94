/* pointwise.cu - embedding, norm and gated activation, forward and backward.
 *
 * Every element is read once and written once, in chunks of 16 bytes where rows are aligned. A row
 * of the norm lives in the registers of one block. Gradients of weights are sums over groups of rows,
 * whose number depends on n alone, then over the groups in order; the embedding's run in token order
 * along chains of equal tokens. */
#include "kernels/cuda/chain.cuh"
#include "kernels/cuda/math.cuh"

/* ---- embedding ---------------------------------------------------------------------------------- */

#define EMBED_THREADS 128

template <class T>
__global__ void __launch_bounds__(EMBED_THREADS)
    embed_fwd(T* y, const T* table, const int32_t* token, int64_t n, int c, bool whole)
{
    const int chunks = (c + chunk_of<T>::n - 1) / chunk_of<T>::n;
    const int64_t all = n * chunks, stride = (int64_t)gridDim.x * EMBED_THREADS;
    for (int64_t at = (int64_t)blockIdx.x * EMBED_THREADS + threadIdx.x; at < all; at += stride) {
        const int64_t row = at / chunks;
        const int i = (int)(at % chunks) * chunk_of<T>::n;
        float x[chunk_of<T>::n];
        load_chunk(x, table + (int64_t)token[row] * c + i, c - i, whole);
        store_chunk(y + row * c + i, x, c - i, whole);
    }
}

/* Blocks of a loop over `items`, enough to fill the GPU. */
static int loop_grid(const gr_dev* dev, int64_t items, int threads)
{
    return (int)GR_MIN(ceil_div(items, threads), (int64_t)gr_cuda_processors(dev) * 16);
}

template <class T> static bool whole_rows(const void* a, const void* b, int64_t c)
{
    return is_aligned(a, 16) && is_aligned(b, 16) && (size_t)c * sizeof(T) % 16 == 0;
}

void OP(embed_fwd)(gr_dev* dev, void* y, const void* table, const int32_t* token, int64_t n, int c)
{
    if (n == 0) return;
    FOR_REAL(dev, {
        const int grid = loop_grid(dev, n * ceil_div(c, chunk_of<T>::n), EMBED_THREADS);
        LAUNCH(embed_fwd<T>, grid, EMBED_THREADS, 0, gr_cuda_stream(dev), (T*)y, (const T*)table,
               token, n, c, whole_rows<T>(y, table, c));
    });
    gr_cuda_launched(dev, "embed_fwd");
}

/* Block (i, j): if row i is the first of its token, the token's rows are added in order, columns of
 * slice j. */
template <class T>
__global__ void __launch_bounds__(EMBED_THREADS)
    embed_bwd(float* dtable, const T* dy, const int32_t* token, const chain* next, int64_t n, int c)
{
    int64_t row = blockIdx.x;
    if (!next[row].is_first) return;
    const int i = (int)(blockIdx.y * EMBED_THREADS + threadIdx.x);
    if (i >= c) return;
    float* to = dtable + (int64_t)token[row] * c + i;
    float sum = *to;
    for (; row < n; row = next[row].next) sum += to_float(dy[row * c + i]);
    *to = sum;
}

void OP(embed_bwd)(gr_dev* dev, void* dtable, const void* dy, const int32_t* token, int64_t n,
                   int c)
{
    chain* next = (chain*)gr_cuda_workspace(dev);
    const int64_t most = (int64_t)(GR_CUDA_WORKSPACE / sizeof *next);
    for (int64_t first = 0; first < n; first += most) {
        const int64_t rows = GR_MIN(n - first, most);
        chain_equals(gr_cuda_stream(dev), next, token + first, rows);
        const dim3 grid((unsigned)rows, (unsigned)ceil_div(c, EMBED_THREADS));
        FOR_REAL(dev,
                 LAUNCH(embed_bwd<T>, grid, EMBED_THREADS, 0, gr_cuda_stream(dev), (float*)dtable,
                        (const T*)dy + first * c, token + first, next, rows, c));
    }
    gr_cuda_launched(dev, "embed_bwd");
}

/* ---- RMS norm ----------------------------------------------------------------------------------- */

/* How a block holds a row: chunk number item * threads + thread, item < items. */
typedef struct row_shape {
    int threads, items;
} row_shape;

static row_shape shape_of(int c, int chunk_n)
{
    const int chunks = (int)ceil_div(c, chunk_n);
    row_shape s = {32, 1};
    while (s.threads < 256 && s.threads < chunks) s.threads *= 2;
    if (chunks * chunk_n > 256 * 16) s.threads = 512;
    while (s.items * s.threads < chunks) s.items *= 2;
    GR_ASSERT(s.items * chunk_n <= 16, "rows of %d are too long", c);
    return s;
}

/* Runs `...` with ITEMS being a constant of `shape.items`. */
#define FOR_ITEMS(shape, ...)                      \
    do {                                           \
        if ((shape).items == 1) {                  \
            const int ITEMS = 1;                   \
            __VA_ARGS__;                           \
        } else if ((shape).items == 2) {           \
            const int ITEMS = 2;                   \
            __VA_ARGS__;                           \
        } else {                                   \
            const int ITEMS = 16 / chunk_of<T>::n; \
            __VA_ARGS__;                           \
        }                                          \
    } while (0)

template <class T> struct norm_args {
    T *y, *sum;
    float* rstd;
    const T *x, *delta, *w;
    int64_t n;
    int c;
    float eps;
    bool whole;
};

/* Blocks take rows in turn; each keeps its part of w in registers. */
template <class T, int ITEMS> __global__ void __launch_bounds__(512) rmsnorm_fwd(norm_args<T> a)
{
    const int N = chunk_of<T>::n, c = a.c;
    __shared__ float shared[16];
    float w[ITEMS][N], x[ITEMS][N];
#pragma unroll
    for (int k = 0; k < ITEMS; k++) {
        const int i = (int)(k * blockDim.x + threadIdx.x) * N;
        load_chunk(w[k], a.w + i, c - i, a.whole);
    }
    for (int64_t row = blockIdx.x; row < a.n; row += gridDim.x) {
        float square = 0;
#pragma unroll
        for (int k = 0; k < ITEMS; k++) {
            const int i = (int)(k * blockDim.x + threadIdx.x) * N;
            load_chunk(x[k], a.x + row * c + i, c - i, a.whole);
            if (a.delta != NULL) {
                float d[N];
                load_chunk(d, a.delta + row * c + i, c - i, a.whole);
#pragma unroll
                for (int e = 0; e < N; e++) x[k][e] = to_float(to_real<T>(x[k][e] + d[e]));
                store_chunk(a.sum + row * c + i, x[k], c - i, a.whole);
            }
#pragma unroll
            for (int e = 0; e < N; e++) square = fmaf(x[k][e], x[k][e], square);
        }
        const float r = 1 / sqrtf(block_sum(square, shared) / (float)c + a.eps);
        if (a.rstd != NULL && threadIdx.x == 0) a.rstd[row] = r;
#pragma unroll
        for (int k = 0; k < ITEMS; k++) {
            const int i = (int)(k * blockDim.x + threadIdx.x) * N;
#pragma unroll
            for (int e = 0; e < N; e++) x[k][e] = x[k][e] * r * w[k][e];
            store_chunk(a.y + row * c + i, x[k], c - i, a.whole);
        }
    }
}

void OP(rmsnorm_fwd)(gr_dev* dev, void* y, void* sum, void* rstd, const void* x, const void* delta,
                     const void* w, int64_t n, int c, float eps)
{
    if (n == 0) return;
    FOR_REAL(dev, {
        const row_shape s = shape_of(c, chunk_of<T>::n);
        const bool whole =
            whole_rows<T>(x, y, c) && whole_rows<T>(delta, sum, c) && is_aligned(w, 16);
        const norm_args<T> a = {
            (T*)y, (T*)sum, (float*)rstd, (const T*)x, (const T*)delta, (const T*)w,
            n,     c,       eps,          whole};
        const int grid = (int)GR_MIN(n, (int64_t)gr_cuda_processors(dev) * 4);
        FOR_ITEMS(s, LAUNCH((rmsnorm_fwd<T, ITEMS>), grid, s.threads, 0, gr_cuda_stream(dev), a));
    });
    gr_cuda_launched(dev, "rmsnorm_fwd");
}

template <class T> struct norm_bwd_args {
    T* dx;
    float* part; /* (groups, c) sums of dy x rstd over a group's rows */
    const T *dy, *x, *w, *dsum;
    const float* rstd;
    int64_t n;
    int c, groups;
    bool whole;
};

/* Block = group of rows. */
template <class T, int ITEMS> __global__ void __launch_bounds__(512) rmsnorm_bwd(norm_bwd_args<T> a)
{
    const int N = chunk_of<T>::n, c = a.c;
    __shared__ float shared[16];
    float dw[ITEMS][N], dy[ITEMS][N], x[ITEMS][N];
#pragma unroll
    for (int k = 0; k < ITEMS; k++)
#pragma unroll
        for (int e = 0; e < N; e++) dw[k][e] = 0;
    const int64_t first = a.n * blockIdx.x / a.groups, last = a.n * (blockIdx.x + 1) / a.groups;
    for (int64_t row = first; row < last; row++) {
        const float r = a.rstd[row];
        float dot = 0;
#pragma unroll
        for (int k = 0; k < ITEMS; k++) {
            const int i = (int)(k * blockDim.x + threadIdx.x) * N;
            float w[N];
            load_chunk(w, a.w + i, c - i, a.whole);
            load_chunk(dy[k], a.dy + row * c + i, c - i, a.whole);
            load_chunk(x[k], a.x + row * c + i, c - i, a.whole);
#pragma unroll
            for (int e = 0; e < N; e++) {
                x[k][e] *= r;
                dw[k][e] = fmaf(dy[k][e], x[k][e], dw[k][e]);
                dy[k][e] *= w[e];
                dot = fmaf(dy[k][e], x[k][e], dot);
            }
        }
        dot = block_sum(dot, shared) / (float)c;
#pragma unroll
        for (int k = 0; k < ITEMS; k++) {
            const int i = (int)(k * blockDim.x + threadIdx.x) * N;
            float d[N];
            if (a.dsum != NULL) load_chunk(d, a.dsum + row * c + i, c - i, a.whole);
#pragma unroll
            for (int e = 0; e < N; e++) {
                const float g = r * fmaf(-x[k][e], dot, dy[k][e]);
                d[e] = a.dsum != NULL ? g + d[e] : g;
            }
            store_chunk(a.dx + row * c + i, d, c - i, a.whole);
        }
    }
#pragma unroll
    for (int k = 0; k < ITEMS; k++)
#pragma unroll
        for (int e = 0; e < N; e += 4) {
            const int i = (int)(k * blockDim.x + threadIdx.x) * N + e;
            store_chunk(a.part + (int64_t)blockIdx.x * c + i, dw[k] + e, c - i,
                        a.whole && c % 4 == 0);
        }
}

#define SUM_THREADS 128

/* to[i] += part[0][i] + part[1][i] + ... in order. */
__global__ void __launch_bounds__(SUM_THREADS)
    add_parts(float* to, const float* part, int groups, int c)
{
    const int i = (int)(blockIdx.x * SUM_THREADS + threadIdx.x);
    if (i >= c) return;
    float sum = 0;
#pragma unroll 8
    for (int g = 0; g < groups; g++) sum += part[(int64_t)g * c + i];
    to[i] += sum;
}

void OP(rmsnorm_bwd)(gr_dev* dev, void* dx, void* dw, const void* dy, const void* x, const void* w,
                     const void* rstd, const void* dsum, int64_t n, int c)
{
    if (n == 0) return;
    float* part = (float*)gr_cuda_workspace(dev);
    const int groups = (int)GR_MIN(ceil_div(n, 32), 256);
    GR_ASSERT((size_t)groups * c * sizeof *part <= GR_CUDA_WORKSPACE);
    FOR_REAL(dev, {
        const row_shape s = shape_of(c, chunk_of<T>::n);
        const bool whole =
            whole_rows<T>(x, dy, c) && whole_rows<T>(dx, dsum, c) && is_aligned(w, 16);
        const norm_bwd_args<T> a = {(T*)dx,
                                    part,
                                    (const T*)dy,
                                    (const T*)x,
                                    (const T*)w,
                                    (const T*)dsum,
                                    (const float*)rstd,
                                    n,
                                    c,
                                    groups,
                                    whole};
        FOR_ITEMS(s, LAUNCH((rmsnorm_bwd<T, ITEMS>), groups, s.threads, 0, gr_cuda_stream(dev), a));
    });
    LAUNCH(add_parts, (unsigned)ceil_div(c, SUM_THREADS), SUM_THREADS, 0, gr_cuda_stream(dev),
           (float*)dw, part, groups, c);
    gr_cuda_launched(dev, "rmsnorm_bwd");
}

/* ---- gated activation --------------------------------------------------------------------------- */

#define GLU_THREADS 256

/* The division and the exponential of kernels/cpu/pointwise.c: same bits. */
__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + exp_of(0.0f - x)); }

template <class T>
__global__ void __launch_bounds__(GLU_THREADS)
    swiglu_fwd(T* y, const T* gu, int64_t n, int f, bool whole)
{
    const int N = chunk_of<T>::n, chunks = (f + N - 1) / N;
    const int64_t all = n * chunks, stride = (int64_t)gridDim.x * GLU_THREADS;
    for (int64_t at = (int64_t)blockIdx.x * GLU_THREADS + threadIdx.x; at < all; at += stride) {
        const int64_t row = at / chunks;
        const int i = (int)(at % chunks) * N;
        float g[N], u[N];
        load_chunk(g, gu + row * 2 * f + i, f - i, whole);
        load_chunk(u, gu + row * 2 * f + f + i, f - i, whole);
#pragma unroll
        for (int e = 0; e < N; e++) u[e] = g[e] * sigmoid(g[e]) * u[e];
        store_chunk(y + row * f + i, u, f - i, whole);
    }
}

template <class T>
__global__ void __launch_bounds__(GLU_THREADS)
    swiglu_bwd(T* dgu, const T* dy, const T* gu, int64_t n, int f, bool whole)
{
    const int N = chunk_of<T>::n, chunks = (f + N - 1) / N;
    const int64_t all = n * chunks, stride = (int64_t)gridDim.x * GLU_THREADS;
    for (int64_t at = (int64_t)blockIdx.x * GLU_THREADS + threadIdx.x; at < all; at += stride) {
        const int64_t row = at / chunks;
        const int i = (int)(at % chunks) * N;
        float g[N], u[N], d[N];
        load_chunk(g, gu + row * 2 * f + i, f - i, whole);
        load_chunk(u, gu + row * 2 * f + f + i, f - i, whole);
        load_chunk(d, dy + row * f + i, f - i, whole);
#pragma unroll
        for (int e = 0; e < N; e++) {
            const float s = sigmoid(g[e]);
            const float slope = s * fmaf(g[e], 1.0f - s, 1.0f); /* of silu at g */
            const float du = d[e] * (g[e] * s);
            g[e] = d[e] * u[e] * slope;
            u[e] = du;
        }
        store_chunk(dgu + row * 2 * f + i, g, f - i, whole);
        store_chunk(dgu + row * 2 * f + f + i, u, f - i, whole);
    }
}

void OP(swiglu_fwd)(gr_dev* dev, void* y, const void* gu, int64_t n, int f)
{
    if (n == 0) return;
    FOR_REAL(dev,
             LAUNCH(swiglu_fwd<T>, loop_grid(dev, n * ceil_div(f, chunk_of<T>::n), GLU_THREADS),
                    GLU_THREADS, 0, gr_cuda_stream(dev), (T*)y, (const T*)gu, n, f,
                    whole_rows<T>(y, gu, f)));
    gr_cuda_launched(dev, "swiglu_fwd");
}

void OP(swiglu_bwd)(gr_dev* dev, void* dgu, const void* dy, const void* gu, int64_t n, int f)
{
    if (n == 0) return;
    FOR_REAL(dev,
             LAUNCH(swiglu_bwd<T>, loop_grid(dev, n * ceil_div(f, chunk_of<T>::n), GLU_THREADS),
                    GLU_THREADS, 0, gr_cuda_stream(dev), (T*)dgu, (const T*)dy, (const T*)gu, n, f,
                    whole_rows<T>(dgu, gu, f) && is_aligned(dy, 16)));
    gr_cuda_launched(dev, "swiglu_bwd");
}
