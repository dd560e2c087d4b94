/* attention.cuh - what the attention kernels share: matrices in shared memory, products of
 * 16x16 blocks in the registers of a warp, and exponentials whose sums do not depend on how
 * keys are grouped.
 *
 * One source serves both types. bf16 multiplies on the tensor cores; fp32, which has no exact
 * mode there, multiplies with fused multiply-adds from shared memory, each lane the same
 * outputs. In a 16x16 block of results lane l holds, as x[j][e], row l / 4 + e / 2 * 8 and
 * column 8 j + l % 4 * 2 + e % 2.
 *
 * Exponentials. t = scale q k log2(e) is split into a whole n and a rest f, |f| <= 1/2, and 2^f
 * is scaled by 2^(n - max), max being the largest n so far. So each term differs from what it
 * would be under another max by a power of 2 alone, as do all sums of them: a row has the same
 * bits for every way to walk its keys that keeps their order. (Exact up to terms below 2^-126
 * of the largest, which are dropped.) The softmax of blocks: Dao et al. 2022, arXiv:2205.14135,
 * algorithm 1. */
#pragma once
#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/cuda.cuh"

#define BLOCK 16 /* rows and columns of a block; keys of a page */

/* ---- matrices in shared memory ------------------------------------------------------------------ */

/* Rows of D elements, 16 bytes apart from whole: 8 neighbours lie in different banks. */
template <class T, int D> struct rows_of {
    static const int pitch = D + chunk_of<T>::n;
    static const int chunks = D / chunk_of<T>::n;
};

/* Starts to copy a chunk of a row of which `left` elements are left; zeros behind them. */
__device__ __forceinline__ void set_element(float* to, const float* from)
{
    *to = from ? *from : 0;
}
__device__ __forceinline__ void set_element(bf16* to, const bf16* from)
{
    to->bits = from ? from->bits : (uint16_t)0;
}
template <class T>
__device__ __forceinline__ void start_chunk(T* to, const T* from, int left, bool whole)
{
    const int n = chunk_of<T>::n;
    if (whole) {
        port::cp_async16(port::smem_addr(to), from, left >= n ? 16 : 0);
        return;
    }
#pragma unroll
    for (int i = 0; i < n; i++) set_element(to + i, i < left ? from + i : NULL);
}

/* ---- products of blocks ------------------------------------------------------------------------- */

/* a: 16 rows x 16 steps. b: 16 columns x 16 steps. */
template <class T> struct block_a;
template <class T> struct block_b;
template <> struct block_a<bf16> {
    uint32_t r[4];
};
template <> struct block_b<bf16> {
    uint32_t r[4]; /* columns 0-7: steps 0-7, 8-15; columns 8-15 */
};
template <> struct block_a<float> {
    const float* at;
    int pitch;
};
template <> struct block_b<float> { /* (column, step) at column * col + step * next */
    const float* at;
    int col, next;
};

__device__ __forceinline__ int lane_of() { return (int)(threadIdx.x % WARP); }

/* From rows along the steps. */
__device__ __forceinline__ void load_a(block_a<bf16>* a, const bf16* x, int pitch)
{
    const int l = lane_of();
    port::ldmatrix_x4(a->r, port::smem_addr(x + l % 16 * pitch + l / 16 * 8));
}
__device__ __forceinline__ void load_a(block_a<float>* a, const float* x, int pitch)
{
    a->at = x;
    a->pitch = pitch;
}
/* From rows that are columns of b. */
__device__ __forceinline__ void load_b(block_b<bf16>* b, const bf16* x, int pitch)
{
    const int l = lane_of();
    port::ldmatrix_x4(b->r, port::smem_addr(x + (l % 8 + l / 16 * 8) * pitch + l / 8 % 2 * 8));
}
__device__ __forceinline__ void load_b(block_b<float>* b, const float* x, int pitch)
{
    b->at = x;
    b->col = pitch;
    b->next = 1;
}
/* From rows that are steps of b. */
__device__ __forceinline__ void load_b_rows(block_b<bf16>* b, const bf16* x, int pitch)
{
    const int l = lane_of();
    port::ldmatrix_x4_trans(b->r, port::smem_addr(x + l % 16 * pitch + l / 16 * 8));
}
__device__ __forceinline__ void load_b_rows(block_b<float>* b, const float* x, int pitch)
{
    b->at = x;
    b->col = 1;
    b->next = pitch;
}

/* x += a b. */
__device__ __forceinline__ void multiply(float (*x)[4], const block_a<bf16>& a,
                                         const block_b<bf16>& b)
{
    port::mma_bf16_16816(x[0], a.r, b.r[0], b.r[1]);
    port::mma_bf16_16816(x[1], a.r, b.r[2], b.r[3]);
}

__device__ __forceinline__ float dot4(const float4& a, const float4& b, float sum)
{
    return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}
__device__ __forceinline__ float element(const float4& a, int i)
{
    return i == 0 ? a.x : i == 1 ? a.y : i == 2 ? a.z : a.w;
}
__device__ __forceinline__ void multiply(float (*x)[4], const block_a<float>& a,
                                         const block_b<float>& b)
{
    const float *top = a.at + lane_of() / 4 * a.pitch, *low = top + 8 * a.pitch;
    const int col = lane_of() % 4 * 2;
#pragma unroll
    for (int k = 0; k < BLOCK; k += 4) {
        const float4 a0 = *(const float4*)(top + k), a1 = *(const float4*)(low + k);
        if (b.next == 1) {
#pragma unroll
            for (int c = 0; c < 4; c++) {
                const int j = c / 2, e = c % 2;
                const float4 v = *(const float4*)(b.at + (8 * j + col + e) * b.col + k);
                x[j][e] = dot4(a0, v, x[j][e]);
                x[j][e + 2] = dot4(a1, v, x[j][e + 2]);
            }
            continue;
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const float2 v = *(const float2*)(b.at + (k + i) * b.next + 8 * j + col);
                const float e0 = element(a0, i), e1 = element(a1, i);
                x[j][0] = fmaf(e0, v.x, x[j][0]);
                x[j][1] = fmaf(e0, v.y, x[j][1]);
                x[j][2] = fmaf(e1, v.x, x[j][2]);
                x[j][3] = fmaf(e1, v.y, x[j][3]);
            }
    }
}

/* Results as the a of a further product, rounded to T; x is left as rounded. fp32 passes
 * through the warp's own SCRATCH floats of shared memory. */
#define SCRATCH_PITCH 20
#define SCRATCH       (BLOCK * SCRATCH_PITCH)

__device__ __forceinline__ uint32_t round_pair(float* low, float* high)
{
    const uint32_t y = port::pack_bf16(*low, *high);
    *low = __uint_as_float(y << 16);
    *high = __uint_as_float(y & 0xffff0000u);
    return y;
}
__device__ __forceinline__ void make_a(block_a<bf16>* a, float (*x)[4], float* scratch)
{
    (void)scratch;
#pragma unroll
    for (int i = 0; i < 4; i++)
        a->r[i] = round_pair(&x[i / 2][i % 2 * 2], &x[i / 2][i % 2 * 2 + 1]);
}
__device__ __forceinline__ void make_a(block_a<float>* a, float (*x)[4], float* scratch)
{
    float* to = scratch + lane_of() / 4 * SCRATCH_PITCH + lane_of() % 4 * 2;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 4; i++)
        *(float2*)(to + i % 2 * 8 * SCRATCH_PITCH + i / 2 * 8) =
            make_float2(x[i / 2][i % 2 * 2], x[i / 2][i % 2 * 2 + 1]);
    __syncwarp();
    a->at = scratch;
    a->pitch = SCRATCH_PITCH;
}

/* ---- exponentials ------------------------------------------------------------------------------- */

/* A whole n is kept as the float n + SHIFT, whose bits count like n for |n| < 2^21. */
#define SHIFT  12582912.0f /* 1.5 2^23 */
#define NO_MAX 11534336.0f /* SHIFT - 2^20: below every score; the max of no keys */

/* 2^(a - b) for kept a <= b; 0 below 2^-126. */
__device__ __forceinline__ float power_between(float a, float b)
{
    int e = __float_as_int(a) - __float_as_int(b);
    e = e < -127 ? -127 : e;
    return __uint_as_float((uint32_t)(e + 127) << 23);
}
__device__ __forceinline__ float kept_max(float score, float scale2)
{
    return fmaf(score, scale2, SHIFT);
}
/* 2^(score scale2 - max). A NaN stays one; the score of a hidden key is -infinity. */
__device__ __forceinline__ float weight_of(float score, float scale2, float max)
{
    const float n = kept_max(score, scale2), f = fmaf(score, scale2, -(n - SHIFT));
    return score == -INFINITY ? 0 : port::exp2_approx(f) * power_between(n, max);
}

__device__ __forceinline__ float quad_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 1));
    return fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 2));
}
__device__ __forceinline__ float quad_sum(float x)
{
    x += __shfl_xor_sync(ALL_LANES, x, 1);
    return x + __shfl_xor_sync(ALL_LANES, x, 2);
}

/* The sums of further keys, (max, sum) and each output x, join those before. */
typedef struct join {
    float before, further; /* factors */
} join;
__device__ __forceinline__ join join_sums(float* run_max, float* run_sum, float max, float sum)
{
    const float both = fmaxf(*run_max, max);
    const join j = {power_between(*run_max, both), power_between(max, both)};
    *run_sum = fmaf(sum, j.further, *run_sum * j.before);
    *run_max = both;
    return j;
}
__device__ __forceinline__ float joined(join j, float run, float x)
{
    return fmaf(x, j.further, run * j.before);
}

/* ---- rows --------------------------------------------------------------------------------------- */

/* Writes x[0], x[1] at p if they are among the `left` elements; `even`: p is aligned to both. */
__device__ __forceinline__ void put_two(float* p, const float* x, int left, bool even)
{
    if (even && left >= 2) {
        *(float2*)p = make_float2(x[0], x[1]);
        return;
    }
    if (left > 0) p[0] = x[0];
    if (left > 1) p[1] = x[1];
}
__device__ __forceinline__ void put_two(bf16* p, const float* x, int left, bool even)
{
    if (even && left >= 2) {
        *(uint32_t*)p = port::pack_bf16(x[0], x[1]);
        return;
    }
    if (left > 0) p[0] = to_real<bf16>(x[0]);
    if (left > 1) p[1] = to_real<bf16>(x[1]);
}

/* Runs `...` with D being the padded size of a head. */
#define FOR_HEAD_SIZE(d, ...)                                        \
    do {                                                             \
        GR_ASSERT((d) <= GR_CUDA_MAX_HEAD, "heads of %d", (int)(d)); \
        if ((d) <= 16) {                                             \
            const int D = 16;                                        \
            __VA_ARGS__;                                             \
        } else if ((d) <= 64) {                                      \
            const int D = 64;                                        \
            __VA_ARGS__;                                             \
        } else {                                                     \
            const int D = 128;                                       \
            __VA_ARGS__;                                             \
        }                                                            \
    } while (0)

/* ---- tiles of query rows, walked by teams of warps ---------------------------------------------- */

/* Where a page's keys lie: in the pool, or as tokens of a packed tree. */
template <class T> struct key_source {
    const T *k, *v;      /* the pool's v starts behind its first k */
    const int32_t* slot; /* NULL: the pool */
    const gr_key_page* page;
    const int32_t* list;
    int hk, d;
    bool whole; /* rows are 16-byte aligned */
};

/* Element of k and v where key i of the entry's page begins; -1: there is none. */
template <class T>
__device__ __forceinline__ int64_t key_at(const key_source<T>* s, int32_t entry, int i, int head)
{
    if (entry < 0) return -1;
    const int32_t index = entry >> GR_ENTRY_SHIFT;
    if (s->slot != NULL) {
        const int32_t token = s->slot[(int64_t)index * GR_PAGE + i];
        return token < 0 ? -1 : ((int64_t)token * s->hk + head) * s->d;
    }
    const int32_t page = s->page[index].page, last = (s->page[index].end_key - 1) % GR_PAGE;
    return i > last ? -1 : (((int64_t)page * s->hk + head) * 2 * GR_PAGE + i) * s->d;
}

/* Starts to copy the keys and values of a step's pages; zeros where there is no key. */
template <class T, int D, int PAGES, int THREADS>
__device__ __forceinline__ void start_keys(T* ks, T* vs, const key_source<T>* s, int step, int head,
                                           int thread)
{
    const int N = chunk_of<T>::n, chunks = rows_of<T, D>::chunks, pitch = rows_of<T, D>::pitch;
#pragma unroll 1
    for (int i = 0; i < PAGES; i++) {
        const int32_t entry = s->list[step * PAGES + i];
        for (int at = thread; at < GR_PAGE * chunks; at += THREADS) {
            const int key = at / chunks, c = at % chunks * N;
            const int64_t from = key_at(s, entry, key, head);
            const int left = from < 0 ? 0 : s->d - c;
            const int64_t offset = left > 0 ? from + c : 0;
            const int to = (i * GR_PAGE + key) * pitch + c;
            start_chunk(ks + to, s->k + offset, left, s->whole);
            start_chunk(vs + to, s->v + offset, left, s->whole);
        }
    }
}

/* Flat rows of a tile and how they map to tensors of queries. */
typedef struct query_rows {
    const int32_t *row, *n_keys; /* by plan row; row NULL: itself */
    int h, hk, group, d;
} query_rows;

/* Element of q where flat row `flat` of a KV head begins. */
__device__ __forceinline__ int64_t query_at(const query_rows* r, int32_t flat, int head)
{
    const int32_t plan_row = flat / r->group, j = flat % r->group;
    const int64_t row = r->row != NULL ? r->row[plan_row] : plan_row;
    return (row * r->h + (int64_t)head * r->group + j) * r->d;
}

/* Starts to copy rows [first, first + n) of which those before `end` exist. */
template <class T, int D, int THREADS>
__device__ __forceinline__ void start_queries(T* to, const T* q, const query_rows* r, int32_t first,
                                              int32_t end, int n, int head, int thread, bool whole)
{
    const int N = chunk_of<T>::n, chunks = rows_of<T, D>::chunks, pitch = rows_of<T, D>::pitch;
    for (int at = thread; at < n * chunks; at += THREADS) {
        const int i = at / chunks, c = at % chunks * N;
        const int left = first + i < end ? r->d - c : 0;
        const T* from = left > 0 ? q + query_at(r, first + i, head) + c : q;
        start_chunk(to + i * pitch + c, from, left, whole);
    }
}

/* The two rows of the tile that a lane holds: lane / 4 and 8 more of its warp's 16. */
typedef struct lane_rows {
    int32_t flat[2], row[2], n_keys[2]; /* row -1: behind the tile */
} lane_rows;

__device__ __forceinline__ lane_rows rows_of_lane(const query_rows* r, const gr_tile* t, int warp)
{
    lane_rows x;
#pragma unroll
    for (int e = 0; e < 2; e++) {
        x.flat[e] = t->flat_begin + warp * BLOCK + lane_of() / 4 + 8 * e;
        const bool here = x.flat[e] < t->flat_end;
        x.row[e] = here ? x.flat[e] / r->group : -1;
        x.n_keys[e] = here ? r->n_keys[x.row[e]] : 0;
    }
    return x;
}

/* How many keys of an entry's page each row of the lane sees. */
__device__ __forceinline__ void keys_seen(int seen[2], const gr_key_page* pages, int32_t entry,
                                          const lane_rows* x)
{
    seen[0] = seen[1] = entry < 0 ? 0 : GR_PAGE;
    if (entry < 0 || !(entry & GR_ENTRY_PARTIAL)) return;
    const gr_key_page p = pages[entry >> GR_ENTRY_SHIFT];
    const int32_t first = (p.end_key - 1) / GR_PAGE * GR_PAGE;
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const int left = x->n_keys[e] - first;
        const bool here = x->row[e] >= p.row_begin && x->row[e] < p.row_end;
        seen[e] = !here || left < 0 ? 0 : left < GR_PAGE ? left : GR_PAGE;
    }
}

/* WARPS warps with MATRICES of query rows and a ring of STAGES steps of PAGES pages, in their
 * own part of shared memory. */
template <class T, int D, int PAGES_, int STAGES_, int WARPS_, int MATRICES = 1> struct team {
    static const int PAGES = PAGES_, STAGES = STAGES_, WARPS = WARPS_, THREADS = WARPS * WARP;
    static const int pitch = rows_of<T, D>::pitch;
    static const int query_bytes = WARPS * BLOCK * pitch * (int)sizeof(T);
    static const int half_bytes = PAGES * GR_PAGE * pitch * (int)sizeof(T); /* keys, or values */
    static const int scratch_bytes = sizeof(T) == 4 ? WARPS * SCRATCH * 4 : 0;
    static const int ring = MATRICES * query_bytes; /* where it begins */
    static const int bytes = ring + STAGES * 2 * half_bytes + scratch_bytes;

    static __device__ __forceinline__ int thread() { return (int)threadIdx.x % THREADS; }
    static __device__ __forceinline__ int warp() { return thread() / WARP; }
    static __device__ __forceinline__ void sync()
    {
        if (WARPS == 1)
            __syncwarp();
        else
            __syncthreads();
    }
    static __device__ __forceinline__ T* queries(unsigned char* shared, int matrix)
    {
        return (T*)(shared + matrix * query_bytes);
    }
    static __device__ __forceinline__ T* keys(unsigned char* shared, int step)
    {
        return (T*)(shared + ring + step % STAGES * 2 * half_bytes);
    }
    static __device__ __forceinline__ T* values(unsigned char* shared, int step)
    {
        return (T*)(shared + ring + (step % STAGES * 2 + 1) * half_bytes);
    }
    static __device__ __forceinline__ float* scratch(unsigned char* shared)
    {
        return (float*)(shared + bytes - scratch_bytes) + (sizeof(T) == 4 ? warp() * SCRATCH : 0);
    }
};

/* Teams for tiles of one type. Wide tiles take the whole block. */
template <class T> struct team_sizes;
template <> struct team_sizes<bf16> {
    static const int warps = 8, pages = 4, stages = 3, bwd_stages = 2;
};
template <> struct team_sizes<float> { /* twice the bytes, no tensor cores */
    static const int warps = 4, pages = 2, stages = 2, bwd_stages = 2;
};
template <class T> static int wide_rows() { return team_sizes<T>::warps * BLOCK; }
