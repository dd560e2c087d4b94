/* attention_fwd.cuh - a tile of query rows against its pages: the forward of both attention
 * ops. */
#pragma once
#include "kernels/cuda/attention.cuh"

template <class T> struct attend_args {
    T* o;
    float* stat; /* (n, h, 2): max as a power of 2, sum; may be NULL */
    const T* q;
    key_source<T> keys;
    query_rows rows;
    const gr_tile* tile;
    float* part;      /* (parts, hk, part_size(d)): max, sum, output */
    float scale2;     /* scale log2(e) */
    bool even, whole; /* rows of q and o: aligned to two elements; to 16 bytes */
};

static __host__ __device__ inline int part_size(int d) { return d % 2 == 0 ? d + 2 : d + 3; }

/* What a lane holds of its two rows: sums of the chunk at hand and of those before it. */
template <int D> struct row_sums {
    float max[2], sum[2], run_max[2], run_sum[2];
    float o[D / 8][4], run[D / 8][4];
};

template <int D> __device__ __forceinline__ void open_chunk(row_sums<D>* x)
{
#pragma unroll
    for (int e = 0; e < 2; e++) {
        x->max[e] = NO_MAX;
        x->sum[e] = 0;
    }
#pragma unroll
    for (int j = 0; j < D / 8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) x->o[j][e] = 0;
}

template <int D> __device__ __forceinline__ void close_chunk(row_sums<D>* x)
{
    join both[2];
#pragma unroll
    for (int e = 0; e < 2; e++)
        both[e] = join_sums(&x->run_max[e], &x->run_sum[e], x->max[e], quad_sum(x->sum[e]));
#pragma unroll
    for (int j = 0; j < D / 8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) x->run[j][e] = joined(both[e / 2], x->run[j][e], x->o[j][e]);
    open_chunk(x);
}

/* Scores of a warp's 16 rows with the keys of a step. */
template <class T, int D, int PAGES>
__device__ __forceinline__ void block_scores(float (*s)[4], const T* q, const T* k)
{
    const int pitch = rows_of<T, D>::pitch;
#pragma unroll
    for (int j = 0; j < 2 * PAGES; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) s[j][e] = 0;
#pragma unroll
    for (int c = 0; c < D; c += BLOCK) {
        block_a<T> a;
        load_a(&a, q + c, pitch);
#pragma unroll
        for (int i = 0; i < PAGES; i++) {
            block_b<T> b;
            load_b(&b, k + i * GR_PAGE * pitch + c, pitch);
            multiply(s + 2 * i, a, b);
        }
    }
}

/* Scores of keys that a row does not see become -infinity. */
template <int PAGES> __device__ __forceinline__ void hide_keys(float (*s)[4], const int (*seen)[2])
{
#pragma unroll
    for (int j = 0; j < 2 * PAGES; j++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (j % 2 * 8 + lane_of() % 4 * 2 + e % 2 >= seen[j / 2][e / 2]) s[j][e] = -INFINITY;
}

/* Raises the rows' max to that of the scores; what was summed is scaled to it. */
template <int D, int PAGES>
__device__ __forceinline__ void raise_max(row_sums<D>* x, const float (*s)[4], float scale2)
{
    float max[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int j = 0; j < 2 * PAGES; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) max[e / 2] = fmaxf(max[e / 2], s[j][e]);
    float factor[2];
    bool raised = false;
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const float higher = fmaxf(x->max[e], kept_max(quad_max(max[e]), scale2));
        factor[e] = power_between(x->max[e], higher);
        raised |= higher != x->max[e];
        x->max[e] = higher;
    }
    if (!__any_sync(ALL_LANES, raised)) return;
    x->sum[0] *= factor[0];
    x->sum[1] *= factor[1];
#pragma unroll
    for (int j = 0; j < D / 8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) x->o[j][e] *= factor[e / 2];
}

/* Adds the keys of a step to the sums of a warp's rows. */
template <class T, int D, int PAGES>
__device__ __forceinline__ void attend_step(row_sums<D>* x, const lane_rows* rows,
                                            const key_source<T>* keys, int step, const T* q,
                                            const T* k, const T* v, float scale2, float* scratch)
{
    const int pitch = rows_of<T, D>::pitch;
    int seen[PAGES][2];
    bool some = false, all = true;
#pragma unroll
    for (int i = 0; i < PAGES; i++) {
        keys_seen(seen[i], keys->page, keys->list[step * PAGES + i], rows);
        some |= seen[i][0] > 0 || seen[i][1] > 0;
        all &= seen[i][0] == GR_PAGE && seen[i][1] == GR_PAGE;
    }
    if (!__any_sync(ALL_LANES, some)) return;
    float s[2 * PAGES][4];
    block_scores<T, D, PAGES>(s, q, k);
    if (!__all_sync(ALL_LANES, all)) hide_keys<PAGES>(s, seen);
    raise_max<D, PAGES>(x, s, scale2);
#pragma unroll
    for (int j = 0; j < 2 * PAGES; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) s[j][e] = weight_of(s[j][e], scale2, x->max[e / 2]);
#pragma unroll
    for (int i = 0; i < PAGES; i++) {
        block_a<T> p;
        make_a(&p, s + 2 * i, scratch);
#pragma unroll
        for (int j = 2 * i; j < 2 * i + 2; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) x->sum[e / 2] += s[j][e];
#pragma unroll
        for (int c = 0; c < D; c += BLOCK) {
            block_b<T> b;
            load_b_rows(&b, v + i * GR_PAGE * pitch + c, pitch);
            multiply(x->o + c / 8, p, b);
        }
    }
}

/* One row's output from its sums, columns x[0], x[1] of two. */
template <class T>
__device__ __forceinline__ void put_output(T* to, const float* x, float sum, int left, bool even)
{
    const float y[2] = {x[0] / sum, x[1] / sum};
    put_two(to, y, left, even);
}

template <class T, int D>
__device__ __forceinline__ void store_rows(const attend_args<T>* a, const gr_tile* t,
                                           const row_sums<D>* x, const lane_rows* rows, int head)
{
    const int d = a->rows.d, col = lane_of() % 4 * 2;
#pragma unroll
    for (int e = 0; e < 2; e++) {
        if (rows->row[e] < 0) continue;
        if (t->part >= 0) {
            const int64_t part = t->part + rows->flat[e] - t->flat_begin;
            float* to = a->part + (part * a->rows.hk + head) * part_size(d);
            if (col == 0) {
                to[0] = x->run_max[e];
                to[1] = x->run_sum[e];
            }
#pragma unroll
            for (int j = 0; j < D / 8; j++)
                put_two(to + 2 + 8 * j + col, x->run[j] + 2 * e, d - 8 * j - col, true);
            continue;
        }
        const int64_t at = query_at(&a->rows, rows->flat[e], head);
        if (a->stat != NULL && col == 0) {
            a->stat[at / d * 2] = x->run_max[e] - SHIFT;
            a->stat[at / d * 2 + 1] = x->run_sum[e];
        }
#pragma unroll
        for (int j = 0; j < D / 8; j++)
            put_output(a->o + at + 8 * j + col, x->run[j] + 2 * e, x->run_sum[e], d - 8 * j - col,
                       a->even);
    }
}

/* The team works on one tile for one KV head. */
template <class T, int D, class Team>
__device__ void attend_tile(const attend_args<T>* a, unsigned char* shared, int tile, int head)
{
    const int PAGES = Team::PAGES, STAGES = Team::STAGES, pitch = rows_of<T, D>::pitch;
    const gr_tile t = a->tile[tile];
    key_source<T> keys = a->keys;
    keys.list += t.list_begin;
    const int steps = (t.list_end - t.list_begin) / PAGES, thread = Team::thread();
    T* const q = Team::queries(shared, 0);
    Team::sync(); /* the tile before is no longer read */
    start_queries<T, D, Team::THREADS>(q, a->q, &a->rows, t.flat_begin, t.flat_end,
                                       Team::WARPS * BLOCK, head, thread, a->whole);
#pragma unroll 1
    for (int s = 0; s < STAGES - 1; s++) {
        if (s < steps)
            start_keys<T, D, PAGES, Team::THREADS>(Team::keys(shared, s), Team::values(shared, s),
                                                   &keys, s, head, thread);
        port::cp_async_commit();
    }
    const lane_rows rows = rows_of_lane(&a->rows, &t, Team::warp());
    row_sums<D> x;
    open_chunk(&x);
#pragma unroll
    for (int e = 0; e < 2; e++) {
        x.run_max[e] = NO_MAX;
        x.run_sum[e] = 0;
    }
#pragma unroll
    for (int j = 0; j < D / 8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) x.run[j][e] = 0;
#pragma unroll 1
    for (int s = 0; s < steps; s++) {
        port::cp_async_wait<STAGES - 2>();
        Team::sync(); /* step s is here; step s - 1 is no longer read */
        const int ahead = s + STAGES - 1;
        if (ahead < steps)
            start_keys<T, D, PAGES, Team::THREADS>(
                Team::keys(shared, ahead), Team::values(shared, ahead), &keys, ahead, head, thread);
        port::cp_async_commit();
        const int32_t first = keys.list[s * PAGES];
        if (first >= 0 && (first & GR_ENTRY_CHUNK)) close_chunk(&x);
        attend_step<T, D, PAGES>(&x, &rows, &keys, s, q + Team::warp() * BLOCK * pitch,
                                 Team::keys(shared, s), Team::values(shared, s), a->scale2,
                                 Team::scratch(shared));
    }
    close_chunk(&x);
    store_rows(a, &t, &x, &rows, head);
}
