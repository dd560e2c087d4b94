/* head.cu - the LM head as an op: log-prob, entropy and draw of each row, from tiles of logits. */
#include "kernels/cuda/head.cuh"
#include "kernels/cuda/sample.cuh"

#include "host/arena.h"

#define HEAD_ROWS 256 /* at a time */

/* ---- parts -------------------------------------------------------------------------------------- */

/* The lane's best of its four ids. */
__device__ __forceinline__ candidate best_of_four(const float z[LANE_IDS], int id, int v,
                                                  const head_query& q, int64_t row)
{
    float score[LANE_IDS];
    if (q.target != NULL) {
        const int32_t target = q.target[row];
        for (int i = 0; i < LANE_IDS; i++) score[i] = id + i == target ? 1 : 0;
    } else {
        for (int i = 0; i < LANE_IDS; i++) score[i] = 0;
        if (!q.how[row].greedy) gumbel_noise(score, q.uid[row], q.index[row], id);
        for (int i = 0; i < LANE_IDS; i++) score[i] += z[i];
    }
    candidate best = {score[0], z[0], id};
    for (int i = 1; i < LANE_IDS; i++) {
        const candidate other = {score[i], z[i], id + i};
        if (id + i < v) best = better(other, best);
    }
    return best;
}

/* Half a warp measures a row's ids of the tile. */
__device__ __forceinline__ head_part part_of(const float z[LANE_IDS], int id, int v,
                                             const head_query& q, int64_t row)
{
    const unsigned mask = threadIdx.x % WARP < 16 ? 0x0000ffffu : 0xffff0000u;
    head_part p;
    p.max = fmaxf(fmaxf(z[0], z[1]), fmaxf(z[2], z[3]));
    for (int i = 8; i > 0; i /= 2) p.max = fmaxf(p.max, __shfl_xor_sync(mask, p.max, i));
    p.sum = p.weighted = 0;
    for (int i = 0; i < LANE_IDS; i++) {
        const float below = z[i] - p.max, e = exp_of(below);
        p.sum += e;
        p.weighted = fmaf(e, below, p.weighted);
    }
    for (int i = 8; i > 0; i /= 2) {
        p.sum += __shfl_xor_sync(mask, p.sum, i);
        p.weighted += __shfl_xor_sync(mask, p.weighted, i);
    }
    p.best = best_of(mask, best_of_four(z, id, v, q, row), 16);
    return p;
}

template <int BN, class T>
__global__ void __launch_bounds__(GEMM_THREADS, gemm_blocks<T>::n)
    measure_tile(head_part* parts, float* kept, operand<T> w, operand<T> x, int k, head_query q)
{
    __shared__ __align__(16) head_tiles<BN, T> tiles;
    const int64_t m0 = (int64_t)blockIdx.y * BM, n0 = (int64_t)blockIdx.x * BN;
    const int v = (int)w.rows.most, lane = (int)threadIdx.x % 16, id = (int)m0 + lane * LANE_IDS;
    const int64_t rows = x.rows.most;
    logits_tile<BN, T>(&tiles, w, x, m0, n0, k);
    for (int col = (int)threadIdx.x / 16; col < BN && n0 + col < rows; col += COLUMN_STEP) {
        const int64_t row = n0 + col;
        float z[LANE_IDS];
        load_z(z, tiles.logits + col * LOGITS_PITCH + lane * LANE_IDS, id, v,
               inverse_temperature(q, row));
        const head_part p = part_of(z, id, v, q, row);
        if (lane == 0) parts[row * gridDim.y + blockIdx.y] = p;
        if (!is_restricted(q, row)) continue;
        for (int i = 0; i < LANE_IDS; i++)
            if (id + i < v) kept[row * v + id + i] = z[i];
    }
}

template <class T>
static void launch_parts(cudaStream_t stream, head_part* parts, float* kept, const void* packed,
                         const void* x, int64_t rows, int c, int v, const head_query& q)
{
    const operand<T> w = packed_operand<T>(packed, v, c);
    const operand<T> in = {(const T*)x, padded<T>(c), 1, extent_of(rows), true};
    if (rows <= FEW)
        LAUNCH((measure_tile<FEW, T>), gemm_grid(v, rows, FEW), GEMM_THREADS, 0, stream, parts,
               kept, w, in, c, q);
    else
        LAUNCH((measure_tile<MANY, T>), gemm_grid(v, rows, MANY), GEMM_THREADS, 0, stream, parts,
               kept, w, in, c, q);
}

void gr_cuda_head_parts(gr_dev* dev, head_part* parts, float* kept, const void* packed,
                        const void* x, int64_t rows, int c, int v, const head_query& q)
{
    FOR_REAL(dev, launch_parts<T>(gr_cuda_stream(dev), parts, kept, packed, x, rows, c, v, q));
}

/* ---- merge -------------------------------------------------------------------------------------- */

#define MERGE_THREADS 128 /* a warp per row */

__global__ void __launch_bounds__(MERGE_THREADS)
    merge_rows(drawn_rows out, row_stats* stats, const head_part* parts, int n_parts, int64_t rows)
{
    const int64_t row = ((int64_t)blockIdx.x * MERGE_THREADS + threadIdx.x) / WARP;
    if (row >= rows) return;
    const measured_row m = merge_parts(parts + row * n_parts, n_parts);
    if (threadIdx.x % WARP != 0) return;
    stats[row] = m.stats;
    out.logp[row] = logp_of(m.stats, m.best.z);
    if (out.entropy != NULL) out.entropy[row] = m.stats.entropy;
    if (out.token != NULL) out.token[row] = m.best.id;
}

/* ---- op ----------------------------------------------------------------------------------------- */

struct head_scratch {
    void* x; /* (rows, padded c) */
    head_part* parts;
    row_stats* stats;
    float* kept; /* (rows, v) */
};

static size_t lay_out(head_scratch* s, void* base, const gr_dev* dev, int64_t r, int c, int v)
{
    gr_arena a = {(char*)base, SIZE_MAX, 0, 0};
    const int64_t rows = GR_MIN(r, HEAD_ROWS);
    FOR_REAL(dev, s->x = GR_PUSH(&a, T, rows * padded<T>(c)));
    s->parts = GR_PUSH(&a, head_part, rows * head_parts(v));
    s->stats = GR_PUSH(&a, row_stats, rows);
    s->kept = GR_PUSH(&a, float, rows* v);
    return a.used;
}

size_t OP(head_scratch)(const gr_dev* dev, int64_t r, int c, int v)
{
    head_scratch s;
    return lay_out(&s, NULL, dev, r, c, v);
}

/* The query and the results from row `first` on. */
static head_query query_from(const head_query& q, int64_t first)
{
    head_query b = q;
    b.how += first;
    if (q.target != NULL) b.target += first;
    if (q.uid != NULL) b.uid += first;
    if (q.index != NULL) b.index += first;
    return b;
}
static drawn_rows rows_from(const drawn_rows& out, int64_t first)
{
    drawn_rows b = out;
    b.logp += first;
    if (out.entropy != NULL) b.entropy += first;
    if (out.token != NULL) b.token += first;
    return b;
}

void OP(head)(gr_dev* dev, void* logp, void* entropy, int32_t* token, const void* hidden,
              const void* packed, const int32_t* src, const int32_t* target,
              const gr_sampling* sampling, const uint64_t* uid, const int32_t* index, int64_t r,
              int c, int v, void* scratch)
{
    const head_query all = {sampling, target, uid, index, 1};
    const drawn_rows results = {(float*)logp, (float*)entropy, token};
    cudaStream_t stream = gr_cuda_stream(dev);
    head_scratch s;
    (void)lay_out(&s, scratch, dev, r, c, v);
    for (int64_t first = 0; first < r; first += HEAD_ROWS) {
        const int64_t rows = GR_MIN(r - first, HEAD_ROWS);
        const head_query q = query_from(all, first);
        const drawn_rows out = rows_from(results, first);
        FOR_REAL(dev, gather(stream, (T*)s.x, hidden, c, src + first, NULL, extent_of(rows)));
        gr_cuda_head_parts(dev, s.parts, s.kept, packed, s.x, rows, c, v, q);
        LAUNCH(merge_rows, (unsigned)ceil_div(rows * WARP, MERGE_THREADS), MERGE_THREADS, 0, stream,
               out, s.stats, s.parts, head_parts(v), rows);
        if (target == NULL) gr_cuda_draw_restricted(stream, out, s.kept, s.stats, q, rows, v);
    }
    gr_cuda_launched(dev, "head");
}
