/* optimizer.cu - gradient norm and AdamW over flat arrays, in chunks of 16 bytes. Elements are
 * computed as on the cpu device, to the bit. */
#include "kernels/cuda/cuda.cuh"

#define THREADS 256

/* ---- norm --------------------------------------------------------------------------------------- */

#define BLOCK 4096 /* values of one sum */
#define GROUP 1024 /* of these sums, added up in order */

/* part[b] = sum of the squares of block b. */
__global__ void __launch_bounds__(THREADS)
    sumsq_blocks(double* part, const float* x, int64_t n, bool whole)
{
    __shared__ float shared[THREADS / WARP];
    const int64_t first = (int64_t)blockIdx.x * BLOCK;
    float sum = 0;
    for (int64_t i = first + 4 * threadIdx.x; i < first + BLOCK && i < n; i += 4 * THREADS) {
        float v[4];
        load_chunk(v, x + i, (int)GR_MIN(n - i, 4), whole);
#pragma unroll
        for (int e = 0; e < 4; e++) sum = fmaf(v[e], v[e], sum);
    }
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) part[blockIdx.x] = (double)sum;
}

/* out[g] = the sum of group g's parts in order, after what it holds if there is `more`. One thread
 * per group; of no parts at all the sum is 0. */
__global__ void __launch_bounds__(WARP)
    add_in_order(double* out, const double* part, int64_t n, int64_t group, bool more)
{
    const int64_t g = (int64_t)blockIdx.x * WARP + threadIdx.x, first = g * group;
    if (first >= n && g > 0) return;
    double sum = more ? out[g] : 0;
#pragma unroll 8
    for (int64_t i = first; i < GR_MIN(first + group, n); i++) sum += part[i];
    out[g] = sum;
}

/* Sums of blocks are added within groups of 1024, these in order: one chain over the blocks of a
 * large model would take longer than reading them. */
void OP(sumsq)(gr_dev* dev, double* out, const void* x, int64_t n)
{
    const cudaStream_t stream = gr_cuda_stream(dev);
    double* part = (double*)gr_cuda_workspace(dev);
    const int64_t most = (int64_t)(GR_CUDA_WORKSPACE / sizeof *part) / 2 / GROUP * GROUP;
    double* sums = part + most;
    for (int64_t first = 0; first == 0 || first < n; first += most * BLOCK) {
        const int64_t count = GR_MIN(n - first, most * BLOCK), blocks = ceil_div(count, BLOCK);
        const int64_t groups = ceil_div(blocks, GROUP);
        if (blocks > 0)
            LAUNCH(sumsq_blocks, (unsigned)blocks, THREADS, 0, stream, part,
                   (const float*)x + first, count, is_aligned(x, 16));
        LAUNCH(add_in_order, (unsigned)ceil_div(GR_MAX(groups, 1), WARP), WARP, 0, stream, sums,
               part, blocks, (int64_t)GROUP, false);
        LAUNCH(add_in_order, 1, WARP, 0, stream, out, sums, groups, GR_MAX(groups, 1), first > 0);
    }
    gr_cuda_launched(dev, "sumsq");
}

/* ---- AdamW -------------------------------------------------------------------------------------- */

/* The step's constants, rounded once. */
typedef struct adam {
    float grad_scale, beta1, rest1, beta2, rest2, rate1, correct2, eps, keep;
} adam;

__device__ __forceinline__ float adam_step(const adam* a, float p, float* m, float* v, float g)
{
    g *= a->grad_scale;
    *m = fmaf(a->beta1, *m, a->rest1 * g);
    *v = fmaf(a->beta2, *v, a->rest2 * (g * g));
    return fmaf(-a->rate1, *m / (sqrtf(*v * a->correct2) + a->eps), p * a->keep);
}

/* Thread: one chunk of weights, which is one or two of every fp32 array. */
template <class T>
__global__ void __launch_bounds__(THREADS) adamw(adam a, float* master, T* weight, float* m,
                                                 float* v, const float* grad, int64_t n, bool whole)
{
    const int N = chunk_of<T>::n;
    const int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * N;
    if (i >= n) return;
    float p[N], m1[N], v1[N], g[N];
#pragma unroll
    for (int e = 0; e < N; e += 4) {
        const int left = (int)GR_MIN(n - i - e, 4);
        load_chunk(p + e, master + i + e, left, whole);
        load_chunk(m1 + e, m + i + e, left, whole);
        load_chunk(v1 + e, v + i + e, left, whole);
        load_chunk(g + e, grad + i + e, left, whole);
    }
#pragma unroll
    for (int e = 0; e < N; e++) p[e] = adam_step(&a, p[e], m1 + e, v1 + e, g[e]);
#pragma unroll
    for (int e = 0; e < N; e += 4) {
        const int left = (int)GR_MIN(n - i - e, 4);
        store_chunk(m + i + e, m1 + e, left, whole);
        store_chunk(v + i + e, v1 + e, left, whole);
        store_chunk(master + i + e, p + e, left, whole);
    }
    if ((void*)weight != (void*)master) store_chunk(weight + i, p, (int)GR_MIN(n - i, N), whole);
}

void OP(adamw_f32)(gr_dev* dev, void* master, void* weight, void* m, void* v, const void* grad,
                   int64_t n, const gr_adamw* params)
{
    if (n == 0) return;
    const double bias1 = 1 - pow(params->beta1, (double)params->step);
    const double bias2 = 1 - pow(params->beta2, (double)params->step);
    const adam a = {(float)params->grad_scale,
                    (float)params->beta1,
                    (float)(1 - params->beta1),
                    (float)params->beta2,
                    (float)(1 - params->beta2),
                    (float)(params->lr / bias1),
                    (float)(1 / bias2),
                    (float)params->eps,
                    (float)(1 - params->lr * params->weight_decay)};
    const bool whole = is_aligned(master, 16) && is_aligned(weight, 16) && is_aligned(m, 16) &&
                       is_aligned(v, 16) && is_aligned(grad, 16);
    FOR_REAL(dev, {
        const unsigned grid = (unsigned)ceil_div(n, (int64_t)THREADS * chunk_of<T>::n);
        LAUNCH(adamw<T>, grid, THREADS, 0, gr_cuda_stream(dev), a, (float*)master, (T*)weight,
               (float*)m, (float*)v, (const float*)grad, n, whole);
    });
    gr_cuda_launched(dev, "adamw_f32");
}
