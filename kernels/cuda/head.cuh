/* head.cuh - logits of the LM head as tiles in shared memory, and what is kept of them.
 *
 * Logits never lie in memory. A block computes those of BM ids for BN rows and leaves, per row, a
 * `part`: maximum, sums of exponentials, and the best candidate. The parts of a row are merged in an
 * order that depends on the vocabulary alone, so a row has the same bits in any batch, measured or
 * drawn. */
#pragma once
#include "kernels/cuda/gemm.cuh"
#include "kernels/cuda/math.cuh"

/* ---- what is asked of a row --------------------------------------------------------------------- */

/* Arrays hold the rows of a block. A target wins every draw, so measuring is drawing too. */
struct head_query {
    const gr_sampling* how; /* NULL: `temperature` for all rows, which have targets */
    const int32_t* target;  /* NULL: draw */
    const uint64_t* uid;
    const int32_t* index;
    float temperature;
};

__device__ __forceinline__ float inverse_temperature(const head_query& q, int64_t row)
{
    return 1.0f / (q.how != NULL ? q.how[row].temperature : q.temperature);
}
/* The draw needs more than the best candidate of each part (sample.cu). */
__device__ __forceinline__ bool is_restricted(const head_query& q, int64_t row)
{
    if (q.target != NULL || q.how[row].greedy) return false;
    return q.how[row].top_k > 0 || q.how[row].top_p < 1 || q.how[row].min_p > 0;
}

/* ---- candidates --------------------------------------------------------------------------------- */

struct candidate {
    float score, z;
    int32_t id;
};

/* The higher score; on ties the lower id. */
__device__ __forceinline__ candidate better(const candidate& a, const candidate& b)
{
    return a.score > b.score || (a.score == b.score && a.id < b.id) ? a : b;
}
/* Over lanes that differ in bits below `width`; all lanes of `mask` call it. */
__device__ __forceinline__ candidate best_of(unsigned mask, candidate mine, int width)
{
    for (int i = width / 2; i > 0; i /= 2) {
        const candidate other = {__shfl_xor_sync(mask, mine.score, i),
                                 __shfl_xor_sync(mask, mine.z, i),
                                 __shfl_xor_sync(mask, mine.id, i)};
        mine = better(mine, other);
    }
    return mine;
}

/* ---- parts -------------------------------------------------------------------------------------- */

/* Of BM ids of a row, with z = logits / temperature. */
struct head_part {
    float max, sum, weighted; /* sums of e = exp(z - max) and of e (z - max) */
    candidate best;
};
struct row_stats {
    double log_sum; /* of exp(z - max) */
    float max, entropy;
};
struct measured_row {
    row_stats stats;
    candidate best;
};

__device__ __forceinline__ float logp_of(const row_stats& s, float z)
{
    return (float)((double)(z - s.max) - s.log_sum);
}

/* Merges the parts of a row. All lanes of the warp call it and get the result. */
static __device__ __forceinline__ measured_row merge_parts(const head_part* part, int n)
{
    const int lane = (int)threadIdx.x % WARP;
    measured_row row;
    float max = part[0].max;
    candidate best = part[0].best;
    for (int i = lane; i < n; i += WARP) {
        max = fmaxf(max, part[i].max);
        best = better(part[i].best, best);
    }
    for (int i = WARP / 2; i > 0; i /= 2) max = fmaxf(max, __shfl_xor_sync(ALL_LANES, max, i));
    row.best = best_of(ALL_LANES, best, WARP);
    double sum = 0, weighted = 0;
    for (int i = lane; i < n; i += WARP) {
        const float below = part[i].max - max;
        const double scale = (double)exp_of(below), s = (double)part[i].sum;
        sum += scale * s;
        weighted += scale * ((double)part[i].weighted + s * (double)below);
    }
    for (int i = WARP / 2; i > 0; i /= 2) {
        sum += __shfl_xor_sync(ALL_LANES, sum, i);
        weighted += __shfl_xor_sync(ALL_LANES, weighted, i);
    }
    row.stats.max = max;
    row.stats.log_sum = log(sum);
    row.stats.entropy = (float)(row.stats.log_sum - weighted / sum);
    return row;
}

/* ---- a tile of logits --------------------------------------------------------------------------- */

#define LOGITS_PITCH (BM + 4) /* 16-byte aligned; neighbouring rows lie in different banks */
#define LANE_IDS     4        /* of a lane; half a warp reads a row */
#define COLUMN_STEP  (GEMM_THREADS / 16)

template <int BN, class T> union head_tiles {
    gemm_tiles<BN, T> operands;
    float logits[BN * LOGITS_PITCH];
};

/* logits[j * LOGITS_PITCH + i] = w_i x_j. All threads of the block call it. */
template <int BN, class T>
__device__ __forceinline__ void logits_tile(head_tiles<BN, T>* s, const operand<T>& w,
                                            const operand<T>& x, int64_t m0, int64_t n0, int k)
{
    float sum[BN / 2];
#pragma unroll
    for (int e = 0; e < BN / 2; e++) sum[e] = 0;
    accumulate<BN>(sum, &s->operands, w, x, m0, n0, k);
    __syncthreads(); /* the operands are no longer read */
#pragma unroll
    for (int e = 0; e < BN / 2; e++) {
        const place p = place_of<BN, T>(e);
        s->logits[p.col * LOGITS_PITCH + p.row] = sum[e];
    }
    __syncthreads();
}

/* z of four ids from `id` on; past the end it counts nothing: finite, but its exponential is 0. */
__device__ __forceinline__ void load_z(float z[LANE_IDS], const float* logits, int id, int v,
                                       float inv_t)
{
    const float4 x = *(const float4*)logits;
    const float raw[LANE_IDS] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int i = 0; i < LANE_IDS; i++) z[i] = id + i < v ? raw[i] * inv_t : -1e30f;
}

/* ---- rows ----------------------------------------------------------------------------------------*/

#define GATHER_THREADS 128

/* to[i] = from[src[pick[i]]] (pick NULL: src[i]), rows of `pitch` elements, zeros from c on. */
template <class T>
__global__ void __launch_bounds__(GATHER_THREADS)
    gather_rows(T* to, int64_t pitch, const T* from, int c, const int32_t* src, const int32_t* pick,
                extent rows)
{
    const int64_t i = blockIdx.x;
    if (i >= size_of(rows)) return;
    const T* row = from + (int64_t)src[pick != NULL ? pick[i] : i] * c;
    const bool whole = (uintptr_t)row % 16 == 0;
    const int n = chunk_of<T>::n;
    for (int at = (int)threadIdx.x * n; at < pitch; at += GATHER_THREADS * n) {
        float x[n];
        load_chunk<T>(x, row + at, c - at, whole);
        store_chunk<T>(to + i * pitch + at, x, n, true);
    }
}

template <class T>
static inline void gather(cudaStream_t stream, T* to, const void* from, int c, const int32_t* src,
                          const int32_t* pick, extent rows)
{
    LAUNCH(gather_rows<T>, (unsigned)rows.most, GATHER_THREADS, 0, stream, to, padded<T>(c),
           (const T*)from, c, src, pick, rows);
}

/* ---- measuring (head.cu) ------------------------------------------------------------------------ */

static inline int head_parts(int v) { return (int)ceil_div(v, BM); }

/* Queues the parts (rows, head_parts(v)) of rows of x; z of restricted rows goes to kept (rows, v). */
void gr_cuda_head_parts(gr_dev* dev, head_part* parts, float* kept, const void* packed,
                        const void* x, int64_t rows, int c, int v, const head_query& q);
