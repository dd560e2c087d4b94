/* rope.cu - splits qkv into heads, normalises them (Qwen3) and turns them by their position.
 *
 * A block takes token rows, first their angles (doubles, rounded once, as on the cpu device), then a
 * warp per head. Lane l holds the pairs (i, i + d/2) of i = 2 l, 2 l + 1, 64 + 2 l, ... Gradients of
 * the norm weights are sums over groups of rows, whose number depends on n alone, then over the
 * groups in order. */
#include "kernels/cuda/cuda.cuh"

#define MAX_PAIRS    128
#define ROPE_THREADS 128
#define ROPE_WARPS   (ROPE_THREADS / WARP)

/* ---- angles ------------------------------------------------------------------------------------- */

/* Radians per position: theta^(-2i/d) for pair i. */
typedef struct speeds {
    double of[MAX_PAIRS];
} speeds;

static speeds rope_speeds(const gr_heads* a)
{
    GR_ASSERT(a->d % 2 == 0 && a->d / 2 <= MAX_PAIRS, "d=%d", a->d);
    speeds s = {{1}};
    const double ratio = pow(a->theta, -2.0 / a->d);
    for (int i = 1; i < a->d / 2; i++) s.of[i] = s.of[i - 1] * ratio;
    for (int i = 0; i < a->d / 2; i++) s.of[i] = gr_rope_scaled(&a->scaling, s.of[i]);
    return s;
}

/* Sine and cosine of x: n pi/2 + r with |r| <= pi/4, then Taylor series, good to 1e-16. Cody and
 * Waite's reduction: pi/2 in parts of 22 bits, so that n times a part is exact for 31 bits of n. */
__device__ __forceinline__ void turn(float* sine, float* cosine, double x)
{
    const double shift = 6755399441055744.0; /* 1.5 2^52: adding it rounds to a whole number */
    const double n = (x * 0.6366197723675814 + shift) - shift;
    double r = x - n * 1.570796012878418;
    r -= n * 3.139164164167596e-07;
    r -= n * 6.223371969669989e-14;
    r -= n * 2.0222662487959506e-21;
    const double r2 = r * r;
    double s = r2 * (-1.0 / 1307674368000) + 1.0 / 6227020800;
    s = s * r2 - 1.0 / 39916800;
    s = s * r2 + 1.0 / 362880;
    s = s * r2 - 1.0 / 5040;
    s = s * r2 + 1.0 / 120;
    s = s * r2 - 1.0 / 6;
    s = s * r2 * r + r;
    double c = r2 * (1.0 / 20922789888000) - 1.0 / 87178291200;
    c = c * r2 + 1.0 / 479001600;
    c = c * r2 - 1.0 / 3628800;
    c = c * r2 + 1.0 / 40320;
    c = c * r2 - 1.0 / 720;
    c = c * r2 + 1.0 / 24;
    c = c * r2 * r2 - 0.5 * r2 + 1;
    /* odd n swaps the two; the sine changes sign for n mod 4 = 2, 3, the cosine for 1, 2 */
    const int q = (int)((int64_t)n & 3);
    const double sin_x = q & 1 ? c : s, cos_x = q & 1 ? s : c;
    *sine = (float)(q & 2 ? -sin_x : sin_x);
    *cosine = (float)((q + 1) & 2 ? -cos_x : cos_x);
}

typedef struct rotation {
    float cos[MAX_PAIRS], sin[MAX_PAIRS];
} rotation;

/* All threads of the block; the barriers also end the use of the row before. */
__device__ __forceinline__ void rotate_to(rotation* r, const speeds* s, int32_t position, int half)
{
    __syncthreads();
    for (int i = (int)threadIdx.x; i < half; i += ROPE_THREADS)
        turn(&r->sin[i], &r->cos[i], s->of[i] * position);
    __syncthreads();
}

/* ---- a head in the registers of a warp ------------------------------------------------------------ */

/* Elements i and i + d/2 of pair i; IT 64 pairs. Pairs past the end are 0. */
template <int IT> struct head_regs {
    float a[IT][2], b[IT][2];
};

__device__ __forceinline__ int pair_of(int it)
{
    return it * 2 * WARP + 2 * (int)(threadIdx.x % WARP);
}

__device__ __forceinline__ void load_two(float* to, const float* p)
{
    const float2 x = *(const float2*)p;
    to[0] = x.x;
    to[1] = x.y;
}
__device__ __forceinline__ void load_two(float* to, const bf16* p)
{
    const uint32_t x = *(const uint32_t*)p;
    to[0] = __uint_as_float(x << 16);
    to[1] = __uint_as_float(x & 0xffff0000u);
}
__device__ __forceinline__ void store_two(float* p, const float* x)
{
    *(float2*)p = make_float2(x[0], x[1]);
}
__device__ __forceinline__ void store_two(bf16* p, const float* x)
{
    *(uint32_t*)p = to_real<bf16>(x[0]).bits | (uint32_t)to_real<bf16>(x[1]).bits << 16;
}

/* Two neighbours if both exist and lie on an even address. */
template <class T>
__device__ __forceinline__ void load_pair(float* to, const T* p, int left, bool even)
{
    if (even && left >= 2) {
        load_two(to, p);
        return;
    }
    for (int e = 0; e < 2; e++) to[e] = e < left ? to_float(p[e]) : 0;
}
template <class T>
__device__ __forceinline__ void store_pair(T* p, const float* x, int left, bool even)
{
    if (even && left >= 2) {
        store_two(p, x);
        return;
    }
    for (int e = 0; e < 2; e++)
        if (e < left) p[e] = to_real<T>(x[e]);
}

template <class T, int IT>
__device__ __forceinline__ void load_head(head_regs<IT>* h, const T* x, int half, bool even)
{
#pragma unroll
    for (int it = 0; it < IT; it++) {
        const int i = pair_of(it);
        load_pair(h->a[it], x + i, half - i, even);
        load_pair(h->b[it], x + half + i, half - i, even);
    }
}
template <class T, int IT>
__device__ __forceinline__ void store_head(T* x, const head_regs<IT>* h, int half, bool even)
{
#pragma unroll
    for (int it = 0; it < IT; it++) {
        const int i = pair_of(it);
        store_pair(x + i, h->a[it], half - i, even);
        store_pair(x + half + i, h->b[it], half - i, even);
    }
}

/* Turns by the rotation, or back. */
template <int IT>
__device__ __forceinline__ void rotate(head_regs<IT>* h, const rotation* rot, int half, bool back)
{
#pragma unroll
    for (int it = 0; it < IT; it++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int i = pair_of(it) + e;
            if (i >= half) continue;
            const float a = h->a[it][e], b = h->b[it][e], c = rot->cos[i];
            const float s = back ? -rot->sin[i] : rot->sin[i];
            h->a[it][e] = fmaf(-b, s, a * c);
            h->b[it][e] = fmaf(a, s, b * c);
        }
}

template <int IT>
__device__ __forceinline__ float dot_of(const head_regs<IT>* x, const head_regs<IT>* y)
{
    float sum = 0;
#pragma unroll
    for (int it = 0; it < IT; it++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            sum = fmaf(x->a[it][e], y->a[it][e], sum);
            sum = fmaf(x->b[it][e], y->b[it][e], sum);
        }
    return warp_sum(sum);
}

/* x *= factor, then x *= y if there is a y. */
template <int IT>
__device__ __forceinline__ void scale(head_regs<IT>* x, float factor, const head_regs<IT>* y)
{
#pragma unroll
    for (int it = 0; it < IT; it++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            x->a[it][e] *= factor;
            x->b[it][e] *= factor;
            if (y != NULL) x->a[it][e] *= y->a[it][e];
            if (y != NULL) x->b[it][e] *= y->b[it][e];
        }
}

template <class T>
__device__ __forceinline__ void copy_head(T* to, const T* from, int d, bool whole)
{
    const int N = chunk_of<T>::n;
    for (int i = (int)(threadIdx.x % WARP) * N; i < d; i += WARP * N) {
        float x[N];
        load_chunk(x, from + i, d - i, whole);
        store_chunk(to + i, x, d - i, whole);
    }
}

/* ---- forward -------------------------------------------------------------------------------------- */

template <class T> struct rope_args {
    T *q, *k, *v;
    float* rstd;
    const T *qkv, *q_norm, *k_norm;
    const int32_t* position;
    int64_t n;
    int h, hk, d;
    float eps;
    bool even, whole;
    speeds speed;
};

template <class T, int IT>
__device__ void rope_fwd_head(const rope_args<T>* a, const rotation* rot, int64_t row, int j)
{
    const int h = a->h, hk = a->hk, d = a->d;
    const T* x = a->qkv + (row * (h + 2 * hk) + j) * d;
    if (j >= h + hk) {
        copy_head(a->v + (row * hk + j - h - hk) * d, x, d, a->whole);
        return;
    }
    const T* norm = j < h ? a->q_norm : a->k_norm;
    head_regs<IT> y, w;
    load_head(&y, x, d / 2, a->even);
    if (norm != NULL) {
        const float r = 1 / sqrtf(dot_of(&y, &y) / (float)d + a->eps);
        if (a->rstd != NULL && threadIdx.x % WARP == 0) a->rstd[row * (h + hk) + j] = r;
        load_head(&w, norm, d / 2, a->even);
        scale(&y, r, &w);
    }
    rotate(&y, rot, d / 2, false);
    store_head(j < h ? a->q + (row * h + j) * d : a->k + (row * hk + j - h) * d, &y, d / 2,
               a->even);
}

template <class T, int IT> __global__ void __launch_bounds__(ROPE_THREADS) rope_fwd(rope_args<T> a)
{
    __shared__ rotation rot;
    for (int64_t row = blockIdx.x; row < a.n; row += gridDim.x) {
        rotate_to(&rot, &a.speed, a.position[row], a.d / 2);
        for (int j = (int)threadIdx.x / WARP; j < a.h + 2 * a.hk; j += ROPE_WARPS)
            rope_fwd_head<T, IT>(&a, &rot, row, j);
    }
}

/* Runs `...` with IT being the registers that d needs. */
#define FOR_HEAD(d, ...)       \
    do {                       \
        if ((d) <= 4 * WARP) { \
            const int IT = 1;  \
            __VA_ARGS__;       \
        } else {               \
            const int IT = 2;  \
            __VA_ARGS__;       \
        }                      \
    } while (0)

template <class T> static bool head_even(const gr_heads* a, const void* x)
{
    return a->d % 4 == 0 && is_aligned(x, 2 * sizeof(T));
}
template <class T> static bool head_whole(const gr_heads* a, const void* x)
{
    return (size_t)a->d * sizeof(T) % 16 == 0 && is_aligned(x, 16);
}

void OP(qkv_rope_fwd)(gr_dev* dev, void* q, void* k, void* v, void* rstd, const void* qkv,
                      const void* q_norm, const void* k_norm, const int32_t* position, int64_t n,
                      const gr_heads* heads)
{
    if (n == 0) return;
    FOR_REAL(dev, {
        const bool even = head_even<T>(heads, qkv) && head_even<T>(heads, q) &&
                          head_even<T>(heads, k) && head_even<T>(heads, q_norm) &&
                          head_even<T>(heads, k_norm);
        const bool whole = head_whole<T>(heads, qkv) && head_whole<T>(heads, v);
        const rope_args<T> a = {(T*)q,
                                (T*)k,
                                (T*)v,
                                (float*)rstd,
                                (const T*)qkv,
                                (const T*)q_norm,
                                (const T*)k_norm,
                                position,
                                n,
                                heads->h,
                                heads->hk,
                                heads->d,
                                heads->eps,
                                even,
                                whole,
                                rope_speeds(heads)};
        const int grid = (int)GR_MIN(n, (int64_t)gr_cuda_processors(dev) * 16);
        FOR_HEAD(heads->d,
                 LAUNCH((rope_fwd<T, IT>), grid, ROPE_THREADS, 0, gr_cuda_stream(dev), a));
    });
    gr_cuda_launched(dev, "qkv_rope_fwd");
}

/* ---- backward ------------------------------------------------------------------------------------- */

template <class T> struct rope_bwd_args {
    T* dqkv;
    float* part; /* (groups, 2, d): sums over a group's rows for q and k; without norm NULL */
    const T *dq, *dk, *dv, *qkv, *q_norm, *k_norm;
    const float* rstd;
    const int32_t* position;
    int64_t n;
    int h, hk, d, groups;
    bool even, whole;
    speeds speed;
};

/* Gradient through y = x r w of a head; adds dy x r to dw. */
template <int IT>
__device__ __forceinline__ void norm_back(head_regs<IT>* g, head_regs<IT>* x, head_regs<IT>* dw,
                                          const head_regs<IT>* w, float r, int d)
{
    scale(x, r, (const head_regs<IT>*)NULL);
#pragma unroll
    for (int it = 0; it < IT; it++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            dw->a[it][e] = fmaf(g->a[it][e], x->a[it][e], dw->a[it][e]);
            dw->b[it][e] = fmaf(g->b[it][e], x->b[it][e], dw->b[it][e]);
        }
    scale(g, 1, w);
    const float dot = dot_of(g, x) / (float)d;
#pragma unroll
    for (int it = 0; it < IT; it++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            g->a[it][e] = r * fmaf(-x->a[it][e], dot, g->a[it][e]);
            g->b[it][e] = r * fmaf(-x->b[it][e], dot, g->b[it][e]);
        }
}

template <class T, int IT>
__device__ void rope_bwd_head(const rope_bwd_args<T>* a, const rotation* rot, int64_t row, int j,
                              const T* dy, const T* norm, head_regs<IT>* dw)
{
    const int d = a->d;
    const int64_t at = (row * (a->h + 2 * a->hk) + j) * d;
    head_regs<IT> g, x, w;
    load_head(&g, dy, d / 2, a->even);
    rotate(&g, rot, d / 2, true);
    if (norm != NULL) {
        load_head(&x, a->qkv + at, d / 2, a->even);
        load_head(&w, norm, d / 2, a->even);
        norm_back(&g, &x, dw, &w, a->rstd[row * (a->h + a->hk) + j], d);
    }
    store_head(a->dqkv + at, &g, d / 2, a->even);
}

/* Adds the warps' sums in warp order and writes them. */
template <int IT>
__device__ void store_sums(float* part, const head_regs<IT>* dw, float (*shared)[2 * MAX_PAIRS],
                           int d)
{
    const int warp = (int)threadIdx.x / WARP;
    __syncthreads();
    store_head(shared[warp], dw, d / 2, false);
    __syncthreads();
    for (int i = (int)threadIdx.x; i < d; i += ROPE_THREADS) {
        float sum = 0;
        for (int k = 0; k < ROPE_WARPS; k++) sum += shared[k][i];
        part[i] = sum;
    }
}

/* Block = group of rows. */
template <class T, int IT>
__global__ void __launch_bounds__(ROPE_THREADS, 4) rope_bwd(rope_bwd_args<T> a)
{
    __shared__ rotation rot;
    __shared__ float shared[ROPE_WARPS][2 * MAX_PAIRS];
    const int h = a.h, hk = a.hk, d = a.d;
    head_regs<IT> dq_norm = {}, dk_norm = {};
    const int64_t first = a.n * blockIdx.x / a.groups, last = a.n * (blockIdx.x + 1) / a.groups;
    for (int64_t row = first; row < last; row++) {
        rotate_to(&rot, &a.speed, a.position[row], d / 2);
        int j = (int)threadIdx.x / WARP;
        for (; j < h; j += ROPE_WARPS)
            rope_bwd_head<T, IT>(&a, &rot, row, j, a.dq + (row * h + j) * d, a.q_norm, &dq_norm);
        for (; j < h + hk; j += ROPE_WARPS)
            rope_bwd_head<T, IT>(&a, &rot, row, j, a.dk + (row * hk + j - h) * d, a.k_norm,
                                 &dk_norm);
        for (; j < h + 2 * hk; j += ROPE_WARPS)
            copy_head(a.dqkv + (row * (h + 2 * hk) + j) * d, a.dv + (row * hk + j - h - hk) * d, d,
                      a.whole);
    }
    if (a.part == NULL) return;
    store_sums(a.part + (int64_t)blockIdx.x * 2 * d, &dq_norm, shared, d);
    store_sums(a.part + ((int64_t)blockIdx.x * 2 + 1) * d, &dk_norm, shared, d);
}

/* to[i] += the groups' sums in order; block 0: q, block 1: k. */
__global__ void __launch_bounds__(2 * MAX_PAIRS)
    add_head_parts(float* dq_norm, float* dk_norm, const float* part, int groups, int d)
{
    float* to = blockIdx.x == 0 ? dq_norm : dk_norm;
    const int i = (int)threadIdx.x;
    if (to == NULL || i >= d) return;
    float sum = 0;
#pragma unroll 8
    for (int g = 0; g < groups; g++) sum += part[((int64_t)g * 2 + blockIdx.x) * d + i];
    to[i] += sum;
}

void OP(qkv_rope_bwd)(gr_dev* dev, void* dqkv, void* dq_norm, void* dk_norm, const void* dq,
                      const void* dk, const void* dv, const void* qkv, const void* q_norm,
                      const void* k_norm, const void* rstd, const int32_t* position, int64_t n,
                      const gr_heads* heads)
{
    if (n == 0) return;
    const bool norm = q_norm != NULL || k_norm != NULL;
    float* part = norm ? (float*)gr_cuda_workspace(dev) : NULL;
    const int groups = (int)GR_MIN(n, 1024);
    FOR_REAL(dev, {
        const bool even = head_even<T>(heads, qkv) && head_even<T>(heads, dqkv) &&
                          head_even<T>(heads, dq) && head_even<T>(heads, dk) &&
                          head_even<T>(heads, q_norm) && head_even<T>(heads, k_norm);
        const bool whole = head_whole<T>(heads, dqkv) && head_whole<T>(heads, dv);
        const rope_bwd_args<T> a = {(T*)dqkv,
                                    part,
                                    (const T*)dq,
                                    (const T*)dk,
                                    (const T*)dv,
                                    (const T*)qkv,
                                    (const T*)q_norm,
                                    (const T*)k_norm,
                                    (const float*)rstd,
                                    position,
                                    n,
                                    heads->h,
                                    heads->hk,
                                    heads->d,
                                    groups,
                                    even,
                                    whole,
                                    rope_speeds(heads)};
        FOR_HEAD(heads->d,
                 LAUNCH((rope_bwd<T, IT>), groups, ROPE_THREADS, 0, gr_cuda_stream(dev), a));
    });
    if (norm)
        LAUNCH(add_head_parts, 2, 2 * MAX_PAIRS, 0, gr_cuda_stream(dev), (float*)dq_norm,
               (float*)dk_norm, part, groups, heads->d);
    gr_cuda_launched(dev, "qkv_rope_bwd");
}
