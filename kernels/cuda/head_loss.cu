/* head_loss.cu - LM head, policy loss and their gradient over blocks of rows. The loss of a row is
 * taken where its parts are merged; logits are computed once more for the rows that have a gradient,
 * and become their own gradient before they leave shared memory. */
#include "kernels/cuda/chain.cuh"
#include "kernels/cuda/head.cuh"
#include "kernels/cuda/loss.cuh"
#include "kernels/cuda/product.cuh"

#include "host/arena.h"

#define LOSS_ROWS     1024 /* at a time; their dlogits take rows x v reals */
#define MERGE_THREADS 128  /* a warp per row */
#define LIST_THREADS  1024
#define FOLD_THREADS  128

/* ---- loss --------------------------------------------------------------------------------------- */

/* Of the rows of a block. */
struct block_rows {
    row_stats* stats;
    float *dlogp, *dentropy;
    loss_terms* terms;
};

__global__ void __launch_bounds__(MERGE_THREADS)
    merge_loss(block_rows b, float* logp, float* entropy, const head_part* parts, int n_parts,
               loss_inputs in, gr_loss_params params, int64_t first, int64_t rows)
{
    const int64_t row = ((int64_t)blockIdx.x * MERGE_THREADS + threadIdx.x) / WARP;
    if (row >= rows) return;
    const measured_row m = merge_parts(parts + row * n_parts, n_parts);
    if (threadIdx.x % WARP != 0) return;
    const float mine = logp_of(m.stats, m.best.z);
    b.stats[row] = m.stats;
    logp[first + row] = mine;
    entropy[first + row] = m.stats.entropy;
    loss_at(&b.terms[row], &b.dlogp[row], &b.dentropy[row], first + row, mine, m.stats.entropy, &in,
            &params);
}

/* active[0 .. *count): the rows that have a gradient, in order. One block. */
__global__ void __launch_bounds__(LIST_THREADS)
    list_active(int32_t* active, int32_t* count, const float* dlogp, const float* dentropy,
                int rows)
{
    __shared__ int of_warp[LIST_THREADS / WARP];
    const int row = (int)threadIdx.x, lane = row % WARP, warp = row / WARP;
    const bool is_active = row < rows && (dlogp[row] != 0 || dentropy[row] != 0);
    const unsigned votes = __ballot_sync(ALL_LANES, is_active);
    if (lane == 0) of_warp[warp] = __popc(votes);
    __syncthreads();
    int at = __popc(votes & ((1u << lane) - 1)), total = 0;
    for (int i = 0; i < LIST_THREADS / WARP; i++) {
        if (i < warp) at += of_warp[i];
        total += of_warp[i];
    }
    if (is_active) active[at] = row;
    if (row == 0) *count = total;
}
static_assert(LOSS_ROWS <= LIST_THREADS, "a thread per row");

/* ---- gradient of the logits --------------------------------------------------------------------- */

/* With g = dL/dlogp and e = dL/dH, dz_x = g (1[x = target] - p_x) - e p_x (ln p_x + H), divided by the
 * temperature. */
struct row_slope {
    float max, log_sum, slope, level, at_target;
    int32_t target;
};
__device__ __forceinline__ row_slope slope_of(const block_rows& b, int32_t row, int32_t target,
                                              float inv_t)
{
    const float g = b.dlogp[row], e = b.dentropy[row];
    const row_stats st = b.stats[row];
    const row_slope s = {
        st.max, (float)st.log_sum, -e * inv_t, (-g - e * st.entropy) * inv_t, g * inv_t, target};
    return s;
}

template <class T> struct __align__(LANE_IDS * sizeof(T)) four { T x[LANE_IDS]; };

template <int BN, class T>
__global__ void __launch_bounds__(GEMM_THREADS, gemm_blocks<T>::n)
    gradient_tile(T* dz, operand<T> w, operand<T> x, int k, block_rows b, const int32_t* active,
                  const int32_t* target, float temperature)
{
    __shared__ __align__(16) head_tiles<BN, T> tiles;
    const int64_t m0 = (int64_t)blockIdx.y * BM, n0 = (int64_t)blockIdx.x * BN;
    const int64_t rows = size_of(x.rows), pitch = padded<T>(w.rows.most);
    const int v = (int)w.rows.most, lane = (int)threadIdx.x % 16, id = (int)m0 + lane * LANE_IDS;
    const float inv_t = 1.0f / temperature;
    if (n0 >= rows) return;
    logits_tile<BN, T>(&tiles, w, x, m0, n0, k);
    if (id >= pitch) return;
    for (int col = (int)threadIdx.x / 16; col < BN && n0 + col < rows; col += COLUMN_STEP) {
        const int32_t row = active[n0 + col];
        const row_slope s = slope_of(b, row, target[row], inv_t);
        float z[LANE_IDS];
        load_z(z, tiles.logits + col * LOGITS_PITCH + lane * LANE_IDS, id, v, inv_t);
        four<T> out;
        for (int i = 0; i < LANE_IDS; i++) {
            const float log_p = (z[i] - s.max) - s.log_sum;
            float d = exp_of(log_p) * fmaf(s.slope, log_p, s.level);
            if (id + i == s.target) d += s.at_target;
            out.x[i] = to_real<T>(id + i < v ? d : 0);
        }
        *(four<T>*)(dz + (n0 + col) * pitch + id) = out;
    }
}

/* ---- gradient of the hidden rows ---------------------------------------------------------------- */

/* dhidden[src[i]] = sum of dx over the rows that read it, in order. Block per row of dx. */
template <class T>
__global__ void __launch_bounds__(FOLD_THREADS)
    fold_hidden(T* dhidden, const float* dx, const int32_t* src, const chain* link, int r, int c)
{
    const int first = (int)blockIdx.x;
    if (!link[first].is_first) return;
    for (int k = (int)threadIdx.x; k < c; k += FOLD_THREADS) {
        float sum = 0;
        for (int i = first; i < r; i = link[i].next) sum += dx[(int64_t)i * c + k];
        dhidden[(int64_t)src[first] * c + k] = to_real<T>(sum);
    }
}

/* ---- op ----------------------------------------------------------------------------------------- */

struct loss_scratch {
    void* x; /* (rows, padded c), of all rows and then of the active ones */
    head_part* parts;
    block_rows rows;
    int32_t *active, *count;
    void* dz;  /* (rows, padded v) of the active rows */
    float* dx; /* (r, c) */
    chain* link;
};

static size_t lay_out(loss_scratch* s, void* base, const gr_dev* dev, int64_t r, int c, int v)
{
    gr_arena a = {(char*)base, SIZE_MAX, 0, 0};
    const int64_t rows = GR_MIN(r, LOSS_ROWS);
    FOR_REAL(dev, {
        s->x = GR_PUSH(&a, T, rows * padded<T>(c));
        s->dz = GR_PUSH(&a, T, rows * padded<T>(v));
    });
    s->parts = GR_PUSH(&a, head_part, rows * head_parts(v));
    s->rows.stats = GR_PUSH(&a, row_stats, rows);
    s->rows.dlogp = GR_PUSH(&a, float, rows);
    s->rows.dentropy = GR_PUSH(&a, float, rows);
    s->rows.terms = GR_PUSH(&a, loss_terms, rows);
    s->active = GR_PUSH(&a, int32_t, rows);
    s->count = GR_PUSH(&a, int32_t, 1);
    s->dx = GR_PUSH(&a, float, r* c);
    s->link = GR_PUSH(&a, chain, r);
    return a.used;
}

size_t OP(head_loss_scratch)(const gr_dev* dev, int64_t r, int c, int v)
{
    loss_scratch s;
    return lay_out(&s, NULL, dev, r, c, v);
}

/* Everything that stays the same from block to block. */
template <class T> struct head_job {
    cudaStream_t stream;
    loss_scratch s;
    const T* hidden;
    operand<T> w, w_t;
    const gr_loss_rows* rows;
    const gr_loss_params* params;
    float *dw, *logp, *entropy;
    gr_loss_sums* sums;
    int c, v;
};

template <class T> static void measure(gr_dev* dev, const head_job<T>& j, int64_t first, int64_t n)
{
    const gr_loss_rows* in = j.rows;
    const head_query q = {NULL, in->target + first, NULL, NULL, j.params->temperature};
    const loss_inputs inputs = {(const float*)in->old_logp, (const float*)in->ref_logp,
                                (const float*)in->a_pos, (const float*)in->a_neg,
                                (const float*)in->w};
    gather(j.stream, (T*)j.s.x, j.hidden, j.c, in->src + first, NULL, extent_of(n));
    gr_cuda_head_parts(dev, j.s.parts, NULL, j.w.at, j.s.x, n, j.c, j.v, q);
    LAUNCH(merge_loss, (unsigned)ceil_div(n * WARP, MERGE_THREADS), MERGE_THREADS, 0, j.stream,
           j.s.rows, j.logp, j.entropy, j.s.parts, head_parts(j.v), inputs, *j.params, first, n);
    gr_cuda_add_terms(j.stream, j.sums, j.s.rows.terms, n);
    LAUNCH(list_active, 1, LIST_THREADS, 0, j.stream, j.s.active, j.s.count, j.s.rows.dlogp,
           j.s.rows.dentropy, (int)n);
}

template <int BN, class T>
static void launch_gradient(const head_job<T>& j, const operand<T>& x, int64_t first)
{
    LAUNCH((gradient_tile<BN, T>), gemm_grid(j.v, x.rows.most, BN), GEMM_THREADS, 0, j.stream,
           (T*)j.s.dz, j.w, x, j.c, j.s.rows, j.s.active, j.rows->target + first,
           j.params->temperature);
}

/* dx = dz w; dw += dz^T x, both over the active rows. */
template <class T> static void go_back(const head_job<T>& j, int64_t first, int64_t n)
{
    const extent live = {n, j.s.count};
    const T* dz = (const T*)j.s.dz;
    const int64_t dz_row = padded<T>(j.v), x_row = padded<T>(j.c);
    const operand<T> x = {(const T*)j.s.x, x_row, 1, live, true};
    gather(j.stream, (T*)j.s.x, j.hidden, j.c, j.rows->src + first, j.s.active, live);
    if (n <= FEW)
        launch_gradient<FEW>(j, x, first);
    else
        launch_gradient<MANY>(j, x, first);
    const operand<T> by_row = {dz, dz_row, 1, live, true};
    const output<float, T> dx = {j.s.dx + first * j.c, NULL, 1, j.c, j.s.active, false};
    launch_product(j.stream, j.w_t, by_row, dx, extent_of(j.v));
    const operand<T> by_id = {dz, 1, dz_row, extent_of(j.v), false};
    const operand<T> by_channel = {x.at, 1, x_row, extent_of(j.c), false};
    const output<float, T> dw = {j.dw, NULL, j.c, 1, NULL, true};
    launch_product(j.stream, by_id, by_channel, dw, live);
}

template <class T>
static void run_loss(gr_dev* dev, const head_job<T>& j, T* dhidden, int64_t r, int64_t n)
{
    gr_dev_zero(dev, dhidden, (size_t)(n * j.c) * sizeof(T));
    if (r == 0) return;
    gr_dev_zero(dev, j.s.dx, (size_t)(r * j.c) * sizeof(float));
    for (int64_t first = 0; first < r; first += LOSS_ROWS) {
        const int64_t rows = GR_MIN(r - first, LOSS_ROWS);
        measure(dev, j, first, rows);
        go_back(j, first, rows);
    }
    chain_equals(j.stream, j.s.link, j.rows->src, r);
    LAUNCH(fold_hidden<T>, (unsigned)r, FOLD_THREADS, 0, j.stream, dhidden, j.s.dx, j.rows->src,
           j.s.link, (int)r, j.c);
}

void OP(head_loss)(gr_dev* dev, void* dhidden, void* dw, void* logp, void* entropy,
                   gr_loss_sums* sums, const void* hidden, const void* packed, const void* packed_t,
                   const gr_loss_rows* rows, int64_t r, int64_t n, int c, int v,
                   const gr_loss_params* params, void* scratch)
{
    loss_scratch s;
    (void)lay_out(&s, scratch, dev, r, c, v);
    FOR_REAL(dev, {
        const head_job<T> j = {gr_cuda_stream(dev),
                               s,
                               (const T*)hidden,
                               packed_operand<T>(packed, v, c),
                               packed_operand<T>(packed_t, c, v),
                               rows,
                               params,
                               (float*)dw,
                               (float*)logp,
                               (float*)entropy,
                               sums,
                               c,
                               v};
        run_loss(dev, j, (T*)dhidden, r, n);
    });
    gr_cuda_launched(dev, "head_loss");
}
