/* attention_bwd.cu - gradient of attention over a packed tree, in two kernels without atomics.
 *
 * With P the probabilities and D_i = do_i o_i, as on the cpu (kernels/cpu/attention_bwd.c):
 *   dP_ij = do_i v_j    dS_ij = scale P_ij (dP_ij - D_i)
 *   dq_i = sum_j dS_ij k_j    dk_j = sum_i dS_ij q_i    dv_j = sum_i P_ij do_i
 * (Dao et al. 2022, arXiv:2205.14135, appendix B). The kernel of dq walks the forward's tiles;
 * that of dk and dv holds 64 keys of a KV head and walks all later queries that may see them,
 * in order. Where the plan cuts the queries, sums of the segments are added in order. Both
 * compute P and dP: two more products than a kernel that adds dq with atomics, and the same
 * bits each time. */
#include "kernels/cuda/attention_tree.cuh"

template <class T> struct bwd_args {
    tree_args<T> tree; /* attend.stat: of the forward; attend.o: dq */
    const T *dout, *o;
    T *dk, *dv;
    float *delta, *part; /* (n, h); (parts, hk, 2, GR_KEY_TILE, part_pitch(d)) */
    float scale;
};

/* ---- delta -------------------------------------------------------------------------------------- */

#define DELTA_THREADS 128

/* delta = sum of dout o. Warp = head of a token. */
template <class T> __global__ void __launch_bounds__(DELTA_THREADS) head_deltas(bwd_args<T> a)
{
    const int d = a.tree.attend.rows.d;
    const int64_t at = ((int64_t)blockIdx.x * DELTA_THREADS + threadIdx.x) / WARP;
    if (at >= a.tree.n * a.tree.attend.rows.h) return;
    float sum = 0;
    for (int c = lane_of(); c < d; c += WARP)
        sum = fmaf(to_float(a.dout[at * d + c]), to_float(a.o[at * d + c]), sum);
    sum = warp_sum(sum);
    if (lane_of() == 0) a.delta[at] = sum;
}

/* ---- dq ----------------------------------------------------------------------------------------- */

template <class T, int D>
using dq_team =
    team<T, D, team_sizes<T>::pages, team_sizes<T>::bwd_stages, team_sizes<T>::warps, 2>;

/* What a lane knows of its two rows. */
typedef struct row_stats {
    float max[2], inverse[2], delta[2];
} row_stats;

template <class T>
__device__ __forceinline__ row_stats stats_of_lane(const bwd_args<T>* a, const lane_rows* rows,
                                                   int head)
{
    row_stats s = {{NO_MAX, NO_MAX}, {0, 0}, {0, 0}};
    const attend_args<T>* f = &a->tree.attend;
#pragma unroll
    for (int e = 0; e < 2; e++) {
        if (rows->row[e] < 0) continue;
        const int64_t at = query_at(&f->rows, rows->flat[e], head) / f->rows.d;
        s.max[e] = f->stat[2 * at] + SHIFT;
        s.inverse[e] = 1 / f->stat[2 * at + 1];
        s.delta[e] = a->delta[at];
    }
    return s;
}

/* dq += dS k over the keys of a step. */
template <class T, int D, int PAGES>
__device__ __forceinline__ void dq_step(float (*dq)[4], const bwd_args<T>* a, const lane_rows* rows,
                                        const row_stats* stats, const int32_t* list, const T* q,
                                        const T* dout, const T* k, const T* v, float* scratch)
{
    const attend_args<T>* f = &a->tree.attend;
    const int pitch = rows_of<T, D>::pitch;
    int seen[PAGES][2];
    bool some = false;
#pragma unroll
    for (int i = 0; i < PAGES; i++) {
        keys_seen(seen[i], f->keys.page, list[i], rows);
        some |= seen[i][0] > 0 || seen[i][1] > 0;
    }
    if (!__any_sync(ALL_LANES, some)) return;
    float s[2 * PAGES][4], dp[2 * PAGES][4];
    block_scores<T, D, PAGES>(s, q, k);
    block_scores<T, D, PAGES>(dp, dout, v);
    hide_keys<PAGES>(s, seen);
#pragma unroll
    for (int j = 0; j < 2 * PAGES; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const float p =
                weight_of(s[j][e], f->scale2, stats->max[e / 2]) * stats->inverse[e / 2];
            s[j][e] = p * (dp[j][e] - stats->delta[e / 2]) * a->scale;
        }
#pragma unroll
    for (int i = 0; i < PAGES; i++) {
        block_a<T> ds;
        make_a(&ds, s + 2 * i, scratch);
#pragma unroll
        for (int c = 0; c < D; c += BLOCK) {
            block_b<T> b;
            load_b_rows(&b, k + i * GR_PAGE * pitch + c, pitch);
            multiply(dq + c / 8, ds, b);
        }
    }
}

/* Block = tile of the forward, KV head. */
template <class T, int D>
__global__ void __launch_bounds__(team_sizes<T>::warps* WARP, 1) attend_dq(bwd_args<T> a)
{
    typedef dq_team<T, D> team;
    DYN_SHARED(unsigned char, shared);
    const int PAGES = team::PAGES, STAGES = team::STAGES, pitch = team::pitch;
    const attend_args<T>* f = &a.tree.attend;
    const int head = (int)blockIdx.x % f->rows.hk, thread = team::thread();
    const gr_tile t = f->tile[blockIdx.x / f->rows.hk];
    key_source<T> keys = f->keys;
    keys.list += t.list_begin;
    const int steps = (t.list_end - t.list_begin) / PAGES;
    T *const q = team::queries(shared, 0), *const dout = team::queries(shared, 1);
    start_queries<T, D, team::THREADS>(q, f->q, &f->rows, t.flat_begin, t.flat_end,
                                       team::WARPS * BLOCK, head, thread, f->whole);
    start_queries<T, D, team::THREADS>(dout, a.dout, &f->rows, t.flat_begin, t.flat_end,
                                       team::WARPS * BLOCK, head, thread, f->whole);
#pragma unroll 1
    for (int s = 0; s < STAGES - 1; s++) {
        if (s < steps)
            start_keys<T, D, PAGES, team::THREADS>(team::keys(shared, s), team::values(shared, s),
                                                   &keys, s, head, thread);
        port::cp_async_commit();
    }
    const lane_rows rows = rows_of_lane(&f->rows, &t, team::warp());
    const row_stats stats = stats_of_lane(&a, &rows, head);
    float dq[D / 8][4] = {};
#pragma unroll 1
    for (int s = 0; s < steps; s++) {
        port::cp_async_wait<STAGES - 2>();
        team::sync(); /* step s is here; step s - 1 is no longer read */
        const int ahead = s + STAGES - 1;
        if (ahead < steps)
            start_keys<T, D, PAGES, team::THREADS>(
                team::keys(shared, ahead), team::values(shared, ahead), &keys, ahead, head, thread);
        port::cp_async_commit();
        const int first = team::warp() * BLOCK * pitch;
        dq_step<T, D, PAGES>(dq, &a, &rows, &stats, keys.list + s * PAGES, q + first, dout + first,
                             team::keys(shared, s), team::values(shared, s), team::scratch(shared));
    }
    const int col = lane_of() % 4 * 2;
#pragma unroll
    for (int e = 0; e < 2; e++) {
        if (rows.row[e] < 0) continue;
        T* to = f->o + query_at(&f->rows, rows.flat[e], head) + col;
#pragma unroll
        for (int j = 0; j < D / 8; j++)
            put_two(to + 8 * j, dq[j] + 2 * e, f->rows.d - 8 * j - col, f->even);
    }
}

/* ---- dk and dv ---------------------------------------------------------------------------------- */

#define KEY_WARPS   (GR_KEY_TILE / BLOCK)
#define KEY_THREADS (KEY_WARPS * WARP)
#define KEY_STAGES  2

/* Flat query rows of a step. */
typedef struct step_stats {
    float max[GR_QUERY_STEP], inverse[GR_QUERY_STEP], delta[GR_QUERY_STEP];
    int32_t token[GR_QUERY_STEP];
} step_stats;

template <class T, int D> struct key_shape {
    static const int pitch = rows_of<T, D>::pitch;
    static const int key_bytes = GR_KEY_TILE * pitch * (int)sizeof(T);
    static const int query_bytes = GR_QUERY_STEP * pitch * (int)sizeof(T);
    static const int stage_bytes = 2 * query_bytes + (int)sizeof(step_stats);
    static const int ring = 2 * key_bytes;
    static const int scratch = ring + KEY_STAGES * stage_bytes;
    static const int bytes = scratch + (sizeof(T) == 4 ? KEY_WARPS * SCRATCH * 4 : 0);
};

template <class T, int D> struct query_stage {
    T *q, *dout;
    step_stats* stats;
};
template <class T, int D>
__device__ __forceinline__ query_stage<T, D> stage_at(unsigned char* shared, int step)
{
    typedef key_shape<T, D> shape;
    unsigned char* at = shared + shape::ring + step % KEY_STAGES * shape::stage_bytes;
    return {(T*)at, (T*)(at + shape::query_bytes), (step_stats*)(at + 2 * shape::query_bytes)};
}

/* Keys of the unit, k and v, to shared memory. */
template <class T, int D>
__device__ __forceinline__ void start_key_tile(T* ks, T* vs, const key_source<T>* s,
                                               const gr_key_unit* u, int head)
{
    const int N = chunk_of<T>::n, chunks = rows_of<T, D>::chunks, pitch = rows_of<T, D>::pitch;
    for (int at = (int)threadIdx.x; at < GR_KEY_TILE * chunks; at += KEY_THREADS) {
        const int i = at / chunks, c = at % chunks * N;
        const int left = u->key_begin + i < u->key_end ? s->d - c : 0;
        const int64_t from = left > 0 ? ((int64_t)(u->key_begin + i) * s->hk + head) * s->d + c : 0;
        start_chunk(ks + i * pitch + c, s->k + from, left, s->whole);
        start_chunk(vs + i * pitch + c, s->v + from, left, s->whole);
    }
}

template <class T, int D>
__device__ __forceinline__ void start_query_step(const query_stage<T, D>* to, const bwd_args<T>* a,
                                                 int step, int head)
{
    const attend_args<T>* f = &a->tree.attend;
    const int thread = (int)threadIdx.x;
    const int32_t first = step * GR_QUERY_STEP, end = (int32_t)(a->tree.n * f->rows.group);
    start_queries<T, D, KEY_THREADS>(to->q, f->q, &f->rows, first, end, GR_QUERY_STEP, head, thread,
                                     f->whole);
    start_queries<T, D, KEY_THREADS>(to->dout, a->dout, &f->rows, first, end, GR_QUERY_STEP, head,
                                     thread, f->whole);
    if (thread >= GR_QUERY_STEP) return;
    const bool here = first + thread < end;
    const int64_t at = here ? query_at(&f->rows, first + thread, head) / f->rows.d : 0;
    to->stats->token[thread] = (first + thread) / f->rows.group;
    to->stats->max[thread] = here ? f->stat[2 * at] + SHIFT : NO_MAX;
    to->stats->inverse[thread] = here ? 1 / f->stat[2 * at + 1] : 0;
    to->stats->delta[thread] = here ? a->delta[at] : 0;
}

/* The two keys of a lane. */
typedef struct lane_keys {
    int32_t key[2], end[2]; /* token, and one past the last that sees it */
} lane_keys;

/* Probabilities in s and gradients of scores in dp, from both products, keys along the rows. */
__device__ __forceinline__ void key_softmax(float (*s)[4], float (*dp)[4], const step_stats* stats,
                                            const lane_keys* keys, float scale2, float scale)
{
#pragma unroll
    for (int j = 0; j < GR_QUERY_STEP / 8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int i = 8 * j + lane_of() % 4 * 2 + e % 2, token = stats->token[i];
            const bool sees = keys->key[e / 2] <= token && token < keys->end[e / 2];
            const float p =
                sees ? weight_of(s[j][e], scale2, stats->max[i]) * stats->inverse[i] : 0;
            s[j][e] = p;
            dp[j][e] = sees ? p * (dp[j][e] - stats->delta[i]) * scale : 0;
        }
}

/* dk += dS^T q and dv += P^T dout over the queries of a step; the warp's 16 keys lie at k and
 * v. */
template <class T, int D>
__device__ __forceinline__ void key_step(float (*dk)[4], float (*dv)[4], const bwd_args<T>* a,
                                         const query_stage<T, D>* x, const lane_keys* keys,
                                         const T* k, const T* v, float* scratch)
{
    const int pitch = rows_of<T, D>::pitch, BLOCKS = GR_QUERY_STEP / BLOCK;
    const int first = x->stats->token[0], last = x->stats->token[GR_QUERY_STEP - 1];
    const bool some = (first < keys->end[0] && last >= keys->key[0]) ||
                      (first < keys->end[1] && last >= keys->key[1]);
    if (!__any_sync(ALL_LANES, some)) return;
    float s[2 * BLOCKS][4], dp[2 * BLOCKS][4];
    block_scores<T, D, BLOCKS>(s, k, x->q);
    block_scores<T, D, BLOCKS>(dp, v, x->dout);
    key_softmax(s, dp, x->stats, keys, a->tree.attend.scale2, a->scale);
#pragma unroll
    for (int i = 0; i < BLOCKS; i++) {
        block_a<T> p, ds;
        make_a(&p, s + 2 * i, scratch);
#pragma unroll
        for (int c = 0; c < D; c += BLOCK) {
            block_b<T> b;
            load_b_rows(&b, x->dout + i * BLOCK * pitch + c, pitch);
            multiply(dv + c / 8, p, b);
        }
        make_a(&ds, dp + 2 * i, scratch);
#pragma unroll
        for (int c = 0; c < D; c += BLOCK) {
            block_b<T> b;
            load_b_rows(&b, x->q + i * BLOCK * pitch + c, pitch);
            multiply(dk + c / 8, ds, b);
        }
    }
}

template <class T, int D>
__device__ __forceinline__ void store_keys(const bwd_args<T>* a, const gr_key_unit* u, int head,
                                           float (*dk)[4], float (*dv)[4])
{
    const attend_args<T>* f = &a->tree.attend;
    const int d = f->rows.d, hk = f->rows.hk, col = lane_of() % 4 * 2;
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const int i = (int)threadIdx.x / WARP * BLOCK + lane_of() / 4 + 8 * e;
        if (u->key_begin + i >= u->key_end) continue;
        const int64_t at = ((int64_t)(u->key_begin + i) * hk + head) * d + col;
        float* part =
            a->part + (((int64_t)u->part * hk + head) * 2 * GR_KEY_TILE + i) * part_pitch(d) + col;
#pragma unroll
        for (int j = 0; j < D / 8; j++) {
            const int left = d - 8 * j - col;
            if (u->part < 0) {
                put_two(a->dk + at + 8 * j, dk[j] + 2 * e, left, f->even);
                put_two(a->dv + at + 8 * j, dv[j] + 2 * e, left, f->even);
            } else {
                put_two(part + 8 * j, dk[j] + 2 * e, left, true);
                put_two(part + GR_KEY_TILE * part_pitch(d) + 8 * j, dv[j] + 2 * e, left, true);
            }
        }
    }
}

/* Block = key unit, KV head. */
template <class T, int D>
__global__ void __launch_bounds__(KEY_THREADS, 2) attend_dkv(bwd_args<T> a)
{
    typedef key_shape<T, D> shape;
    DYN_SHARED(unsigned char, shared);
    const attend_args<T>* f = &a.tree.attend;
    const int head = (int)blockIdx.x % f->rows.hk, warp = (int)threadIdx.x / WARP;
    const gr_key_unit u = a.tree.unit[blockIdx.x / f->rows.hk];
    T *const k = (T*)shared, *const v = (T*)(shared + shape::key_bytes);
    float* const scratch =
        (float*)(shared + shape::scratch) + (sizeof(T) == 4 ? warp * SCRATCH : 0);
    lane_keys keys;
#pragma unroll
    for (int e = 0; e < 2; e++) {
        keys.key[e] = u.key_begin + warp * BLOCK + lane_of() / 4 + 8 * e;
        keys.end[e] = keys.key[e] < u.key_end ? a.tree.subtree_end[keys.key[e]] : 0;
    }
    start_key_tile<T, D>(k, v, &f->keys, &u, head);
    query_stage<T, D> x = stage_at<T, D>(shared, u.step_begin);
    start_query_step(&x, &a, u.step_begin, head);
    port::cp_async_commit();
    float dk[D / 8][4] = {}, dv[D / 8][4] = {};
#pragma unroll 1
    for (int s = u.step_begin; s < u.step_end; s++) {
        port::cp_async_wait<0>();
        __syncthreads(); /* step s is here; step s - 1 is no longer read */
        const query_stage<T, D> next = stage_at<T, D>(shared, s + 1);
        x = stage_at<T, D>(shared, s);
        if (s + 1 < u.step_end) start_query_step(&next, &a, s + 1, head);
        port::cp_async_commit();
        const int first = warp * BLOCK * shape::pitch;
        key_step(dk, dv, &a, &x, &keys, k + first, v + first, scratch);
    }
    store_keys<T, D>(&a, &u, head, dk, dv);
}

#define SUM_THREADS 128

/* dk or dv (by blockIdx.y) of a cut key tile and KV head: the segments' sums in order. */
template <class T> __global__ void __launch_bounds__(SUM_THREADS) sum_parts(bwd_args<T> a)
{
    const int hk = a.tree.attend.rows.hk, d = a.tree.attend.rows.d, pitch = part_pitch(d);
    const gr_key_sum s = a.tree.sum[blockIdx.x / hk];
    const int head = (int)blockIdx.x % hk, rows = s.key_end - s.key_begin;
    T* to = blockIdx.y == 0 ? a.dk : a.dv;
    for (int at = (int)threadIdx.x; at < rows * d; at += SUM_THREADS) {
        const int i = at / d, c = at % d;
        float sum = 0;
        for (int p = s.part_begin; p < s.part_end; p++)
            sum +=
                a.part[((((int64_t)p * hk + head) * 2 + blockIdx.y) * GR_KEY_TILE + i) * pitch + c];
        to[((int64_t)(s.key_begin + i) * hk + head) * d + c] = to_real<T>(sum);
    }
}

/* ---- launch ------------------------------------------------------------------------------------- */

template <class T, int D> static void run_bwd(gr_dev* dev, const bwd_args<T>* a)
{
    const gr_tree_plan* p = &gr_cuda_plans_of(dev)->tree;
    cudaStream_t stream = gr_cuda_stream(dev);
    const unsigned hk = (unsigned)a->tree.attend.rows.hk;
    LAUNCH(head_deltas<T>,
           (unsigned)ceil_div(a->tree.n * a->tree.attend.rows.h * WARP, DELTA_THREADS),
           DELTA_THREADS, 0, stream, *a);
    gr_cuda_allow_shared(attend_dq<T, D>, (size_t)dq_team<T, D>::bytes);
    LAUNCH((attend_dq<T, D>), (unsigned)p->n_tiles * hk, (dq_team<T, D>::THREADS),
           (size_t)(dq_team<T, D>::bytes), stream, *a);
    gr_cuda_allow_shared(attend_dkv<T, D>, (size_t)key_shape<T, D>::bytes);
    LAUNCH((attend_dkv<T, D>), (unsigned)p->n_units * hk, KEY_THREADS,
           (size_t)(key_shape<T, D>::bytes), stream, *a);
    if (p->n_sums > 0)
        LAUNCH(sum_parts<T>, dim3((unsigned)p->n_sums * hk, 2), SUM_THREADS, 0, stream, *a);
}

void OP(attention_tree_bwd)(gr_dev* dev, void* dq, void* dk, void* dv, const void* do_,
                            const void* o, const void* stat, const void* q, const void* k,
                            const void* v, const int32_t* subtree_end, int64_t n, int h, int hk,
                            int d, float scale, int max_path, void* scratch)
{
    if (n == 0) return;
    FOR_REAL(dev, {
        const tree_scratch s = tree_layout(n, h, hk, d, wide_rows<T>(), max_path);
        bwd_args<T> a;
        memset(&a, 0, sizeof a);
        a.tree = tree_prepare<T>(dev, (const T*)q, (const T*)k, (const T*)v, subtree_end, n, h, hk,
                                 d, scale, max_path, scratch);
        a.tree.attend.o = (T*)dq;
        a.tree.attend.stat = (float*)stat;
        a.tree.attend.whole = a.tree.attend.whole && is_aligned(do_, 16);
        a.dout = (const T*)do_;
        a.o = (const T*)o;
        a.dk = (T*)dk;
        a.dv = (T*)dv;
        a.delta = (float*)((char*)scratch + s.delta);
        a.part = (float*)((char*)scratch + s.part);
        a.scale = scale;
        FOR_HEAD_SIZE(d, run_bwd<T, D>(dev, &a));
    });
    gr_cuda_launched(dev, "attention_tree_bwd");
}
