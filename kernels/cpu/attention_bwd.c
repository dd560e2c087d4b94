/* attention_bwd.c - gradient of attention over a packed tree, in one pass over the scores.
 *
 *   P_ij = exp(scale q_i k_j - max_i) / sum_i    dP_ij = do_i v_j    D_i = do_i o_i
 *   dS_ij = scale P_ij (dP_ij - D_i)
 *   dq_i = sum_j dS_ij k_j    dk_j = sum_i dS_ij q_i    dv_j = sum_i P_ij do_i
 * (Dao et al. 2022, arXiv:2205.14135, appendix B).
 *
 * The queries are cut into segments of about equal work. A task is one segment against one KV head. It
 * sums dk and dv over its queries in order: of keys inside the segment into rows that are its alone, of
 * the path before the segment into rows of its own copy. The copies are then added in the order of the
 * segments. The cut depends on the tree alone, so the sums do not depend on threads. */
#include "kernels/cpu/attention.h"
#include "kernels/cpu/product.h"

#include <omp.h>

#define TILE_KEYS    64
#define SEGMENTS_MIN 4
#define SEGMENTS_MAX 16

typedef struct bwd_args {
    real *dq, *dk, *dv;
    const real *dout, *o, *q, *k, *v;
    const acc* stat;
    int64_t n, max_path;
    heads s;
    runs runs;
    real *kt, *vt; /* (hk, d, transposed_stride(n)) */
    int n_segments;
    int32_t first[SEGMENTS_MAX + 1]; /* token of each segment; then n */
    int64_t row;                     /* elements from row to row of the sums below */
    acc *own_dk, *own_dv;            /* (hk, n, row) */
    acc *path_dk, *path_dv; /* (segments - 1, hk, path_rows, row) from the second segment on */
    int64_t path_rows;
    char* scratch;
    size_t thread_bytes;
} bwd_args;

/* A thread's buffers for a block of query rows. Flat rows of q and dout have d elements. */
typedef struct bwd_block {
    acc *q, *dout, *dq; /* dq (flat, row) */
    acc *p, *ds;        /* (flat, tile_row) */
    acc* of_row;        /* (flat, 3) maximum, 1 / sum, D */
    int32_t *n_keys, *list;
    int64_t first, rows;
} bwd_block;

static int64_t tile_row(void) { return row_stride(TILE_KEYS); }

/* ---- memory ---------------------------------------------------------------------------------------------- */

static void bwd_block_layout(bwd_block* b, gr_arena* a, const bwd_args* t)
{
    const int64_t rows = block_rows(t->s.group), flat = rows * t->s.group;
    b->q = GR_PUSH(a, acc, flat * t->s.d);
    b->dout = GR_PUSH(a, acc, flat * t->s.d);
    b->dq = GR_PUSH(a, acc, flat * t->row);
    b->p = GR_PUSH(a, acc, flat * tile_row());
    b->ds = GR_PUSH(a, acc, flat * tile_row());
    b->of_row = GR_PUSH(a, acc, flat * 3);
    b->n_keys = GR_PUSH(a, int32_t, rows);
    b->list = GR_PUSH(a, int32_t, t->max_path + rows);
}

/* Copies of paths take about twice as many rows as there are tokens, unless few long paths make the
 * least number of segments cost more. */
static void bwd_layout(bwd_args* t, gr_arena* a)
{
    const int64_t heads_d = (int64_t)t->s.hk * t->s.d;
    t->path_rows = GR_MAX(GR_MIN(t->max_path, t->n), 1);
    const int64_t copies =
        GR_MIN(GR_MAX(2 * t->n / t->path_rows, SEGMENTS_MIN - 1), SEGMENTS_MAX - 1);
    t->n_segments = (int)copies + 1;
    t->row = row_stride(t->s.d);
    OP(runs_layout)(&t->runs, a, t->n);
    t->kt = GR_PUSH(a, real, heads_d * transposed_stride(t->n));
    t->vt = GR_PUSH(a, real, heads_d * transposed_stride(t->n));
    t->own_dk = GR_PUSH(a, acc, t->s.hk * t->n * t->row);
    t->own_dv = GR_PUSH(a, acc, t->s.hk * t->n * t->row);
    const int64_t rows =
        GR_MAX(copies * t->path_rows, 2 * t->n); /* grows with n and with the path */
    t->path_dk = GR_PUSH(a, acc, t->s.hk * rows * t->row);
    t->path_dv = GR_PUSH(a, acc, t->s.hk * rows * t->row);
    gr_arena one = {0};
    bwd_block b;
    bwd_block_layout(&b, &one, t);
    t->thread_bytes = thread_bytes_of(&one);
}

size_t OP(attention_tree_bwd_scratch)(const gr_dev* dev, int64_t n, int h, int hk, int d,
                                      int max_path)
{
    gr_arena a = {0};
    bwd_args t = {.n = n, .max_path = max_path, .s = heads_of(h, hk, d, 1)};
    bwd_layout(&t, &a);
    gr_arena_push(&a, (size_t)dev->threads, t.thread_bytes);
    return a.used;
}

/* ---- segments ---------------------------------------------------------------------------------------------- */

/* Cuts the tokens so that each segment has about the same number of (query, key) pairs. */
static double cut_segments(bwd_args* t)
{
    double total = 0, sum = 0;
    for (int64_t i = 0; i < t->n; i++) total += (double)path_length(&t->runs, i);
    int cut = 0;
    for (int64_t i = 0; i < t->n; i++) {
        while (cut < t->n_segments && sum >= total * cut / t->n_segments)
            t->first[cut++] = (int32_t)i;
        sum += (double)path_length(&t->runs, i);
    }
    while (cut <= t->n_segments) t->first[cut++] = (int32_t)t->n;
    return total;
}

typedef struct key_sums {
    acc *dk, *dv;
} key_sums;

static key_sums own_sums(const bwd_args* t, int64_t token, int kv_head)
{
    const int64_t at = (kv_head * t->n + token) * t->row;
    return (key_sums){t->own_dk + at, t->own_dv + at};
}

static key_sums path_sums(const bwd_args* t, int segment, int64_t place, int kv_head)
{
    const int64_t at = (((segment - 1) * t->s.hk + kv_head) * t->path_rows + place) * t->row;
    return (key_sums){t->path_dk + at, t->path_dv + at};
}

static void clear_sums(const bwd_args* t, key_sums s, int64_t rows)
{
    memset(s.dk, 0, (size_t)(rows * t->row) * sizeof(acc));
    memset(s.dv, 0, (size_t)(rows * t->row) * sizeof(acc));
}

/* ---- one block of queries against one tile of keys ----------------------------------------------------------- */

/* Keys token ... token + keys - 1 of a run, which lie from `place` on in the path. */
typedef struct key_tile {
    int64_t token, keys, place;
    int64_t row_begin, row_end; /* of the block: rows that see some of them */
    int kv_head;
    key_sums sums;
} key_tile;

/* q k^T into p, do v^T into ds. */
static void tile_scores(const bwd_args* t, const bwd_block* b, const key_tile* x)
{
    const int64_t flat = x->row_begin * t->s.group, stride = transposed_stride(t->n);
    const int64_t at = (int64_t)x->kv_head * t->s.d * stride + x->token;
    product p = {.kind = PRODUCT_PLAIN,
                 .c = b->p + flat * tile_row(),
                 .a = b->q + flat * t->s.d,
                 .b = t->kt + at,
                 .c_row = tile_row(),
                 .a_row = t->s.d,
                 .b_step = stride,
                 .rows = (x->row_end - x->row_begin) * t->s.group,
                 .cols = whole_vecs(x->keys),
                 .steps = t->s.d};
    OP(product)(&p);
    p.c = b->ds + flat * tile_row();
    p.a = b->dout + flat * t->s.d;
    p.b = t->vt + at;
    OP(product)(&p);
}

/* Scores -> P, dP -> dS; 0 for keys that the row does not see. */
static void tile_softmax(const bwd_args* t, const bwd_block* b, const key_tile* x)
{
    const vec scale = vec_set(t->s.scale);
    for (int64_t i = x->row_begin * t->s.group; i < x->row_end * t->s.group; i++) {
        acc *p = b->p + i * tile_row(), *ds = b->ds + i * tile_row();
        const int64_t seen = GR_MIN(b->n_keys[i / t->s.group] - x->place, x->keys);
        const vec max = vec_set(b->of_row[3 * i]), inverse = vec_set(b->of_row[3 * i + 1]);
        const vec delta = vec_set(b->of_row[3 * i + 2]);
        for (int64_t j = 0; j < seen; j += VEC) {
            const vec e = vec_exp(vec_sub(vec_mul(vec_load(p + j), scale), max));
            const vec y = vec_mul(e, inverse);
            vec_store(p + j, y);
            vec_store(ds + j, vec_mul(vec_mul(y, scale), vec_sub(vec_load(ds + j), delta)));
        }
        for (int64_t j = GR_MAX(seen, 0); j < x->keys; j++) p[j] = ds[j] = 0;
    }
}

static void tile_sums(const bwd_args* t, const bwd_block* b, const key_tile* x)
{
    const int64_t flat = x->row_begin * t->s.group, step = (int64_t)t->s.hk * t->s.d;
    const int64_t rows = (x->row_end - x->row_begin) * t->s.group;
    const product dq = {.kind = PRODUCT_PLAIN,
                        .add = true,
                        .c = b->dq + flat * t->row,
                        .a = b->ds + flat * tile_row(),
                        .b = t->k + x->token * step + (int64_t)x->kv_head * t->s.d,
                        .c_row = t->row,
                        .a_row = tile_row(),
                        .b_step = step,
                        .rows = rows,
                        .cols = t->s.d,
                        .steps = x->keys};
    OP(product)(&dq);
    product dkv = {.kind = PRODUCT_TRANSPOSED,
                   .add = true,
                   .c = x->sums.dk,
                   .a = b->ds + flat * tile_row(),
                   .b = b->q + flat * t->s.d,
                   .c_row = t->row,
                   .a_row = tile_row(),
                   .b_step = t->s.d,
                   .rows = x->keys,
                   .cols = t->s.d,
                   .steps = rows};
    OP(product)(&dkv);
    dkv.c = x->sums.dv;
    dkv.a = b->p + flat * tile_row();
    dkv.b = b->dout + flat * t->s.d;
    OP(product)(&dkv);
}

/* ---- one task -------------------------------------------------------------------------------------------------- */

static void load_block(const bwd_args* t, const bwd_block* b, int kv_head)
{
    const heads* s = &t->s;
    for (int64_t r = 0; r < b->rows; r++) {
        const int64_t flat = r * s->group, row = b->first + r;
        b->n_keys[r] = (int32_t)path_length(&t->runs, row);
        gather_row(b->q + flat * s->d, t->q, row, kv_head, s);
        gather_row(b->dout + flat * s->d, t->dout, row, kv_head, s);
        for (int64_t j = 0; j < s->group; j++) {
            const int64_t head = row * s->h + (int64_t)kv_head * s->group + j;
            const real* o = t->o + head * s->d;
            const acc* dout = b->dout + (flat + j) * s->d;
            acc delta = 0;
            for (int c = 0; c < s->d; c++) delta = acc_fma(dout[c], real_to_acc(o[c]), delta);
            acc* of_row = b->of_row + 3 * (flat + j);
            of_row[0] = t->stat[2 * head];
            of_row[1] = 1 / t->stat[2 * head + 1];
            of_row[2] = delta;
        }
    }
    memset(b->dq, 0, (size_t)(b->rows * s->group * t->row) * sizeof(acc));
}

static void store_dq(const bwd_args* t, const bwd_block* b, int kv_head)
{
    const heads* s = &t->s;
    for (int64_t i = 0; i < b->rows * s->group; i++) {
        const int64_t head =
            (b->first + i / s->group) * s->h + (int64_t)kv_head * s->group + i % s->group;
        for (int c = 0; c < s->d; c++) t->dq[head * s->d + c] = acc_to_real(b->dq[i * t->row + c]);
    }
}

/* The keys of a run, tile by tile; no tile crosses the start of the segment. */
static void block_run(const bwd_args* t, const bwd_block* b, int32_t run, int segment, int kv_head)
{
    const runs* r = &t->runs;
    const int64_t start = r->start[run], end = GR_MIN(r->start[run + 1], b->first + b->rows);
    const int64_t segment_first = t->first[segment];
    key_tile x = {.row_begin = GR_MAX(start - b->first, 0),
                  .row_end = GR_MIN(r->subtree_end[start] - b->first, b->rows),
                  .kv_head = kv_head};
    for (x.token = start; x.token < end; x.token += x.keys) {
        const bool own = x.token >= segment_first;
        x.place = r->before[run] + (x.token - start);
        x.keys = GR_MIN(TILE_KEYS, (own ? end : GR_MIN(end, segment_first)) - x.token);
        x.sums = own ? own_sums(t, x.token, kv_head) : path_sums(t, segment, x.place, kv_head);
        while (x.row_begin < x.row_end && b->n_keys[x.row_begin] <= x.place) x.row_begin++;
        tile_scores(t, b, &x);
        tile_softmax(t, b, &x);
        tile_sums(t, b, &x);
    }
}

static void segment_task(const bwd_args* t, int segment, int kv_head)
{
    const int64_t first = t->first[segment], last = t->first[segment + 1];
    if (first == last) return;
    bwd_block b;
    gr_arena arena = {.base = t->scratch + (size_t)omp_get_thread_num() * t->thread_bytes,
                      .cap = t->thread_bytes};
    bwd_block_layout(&b, &arena, t);
    clear_sums(t, own_sums(t, first, kv_head), last - first);
    if (segment > 0)
        clear_sums(t, path_sums(t, segment, 0, kv_head), path_length(&t->runs, first) - 1);
    for (b.first = first; b.first < last; b.first += b.rows) {
        b.rows = GR_MIN(last - b.first, block_rows(t->s.group));
        load_block(t, &b, kv_head);
        const int64_t n_runs = OP(runs_seen)(&t->runs, b.list, b.first, b.first + b.rows);
        for (int64_t i = 0; i < n_runs; i++) block_run(t, &b, b.list[i], segment, kv_head);
        store_dq(t, &b, kv_head);
    }
}

/* ---- all tasks ---------------------------------------------------------------------------------------------------- */

static void add_row(acc* sum, const acc* x, int d)
{
    for (int c = 0; c < d; c++) sum[c] += x[c];
}

/* Adds the copies of a key's sums in the order of the segments. */
static void finish_key(const bwd_args* t, int64_t token, int kv_head)
{
    const int64_t place = path_length(&t->runs, token) - 1;
    const key_sums own = own_sums(t, token, kv_head);
    for (int s = 1; s < t->n_segments; s++) {
        const int64_t first = t->first[s];
        if (first <= token || first >= t->runs.subtree_end[token] || first == t->first[s + 1])
            continue;
        const key_sums copy = path_sums(t, s, place, kv_head);
        add_row(own.dk, copy.dk, t->s.d);
        add_row(own.dv, copy.dv, t->s.d);
    }
    const int64_t to = (token * t->s.hk + kv_head) * t->s.d;
    for (int c = 0; c < t->s.d; c++) {
        t->dk[to + c] = acc_to_real(own.dk[c]);
        t->dv[to + c] = acc_to_real(own.dv[c]);
    }
}

static void bwd_tasks(const bwd_args* t)
{
    const int hk = t->s.hk;
    OP(transpose_heads)(t->kt, t->k, t->n, hk, t->s.d);
    OP(transpose_heads)(t->vt, t->v, t->n, hk, t->s.d);
#pragma omp for schedule(dynamic)
    for (int i = 0; i < t->n_segments * hk; i++) segment_task(t, i / hk, i % hk);
#pragma omp for schedule(static)
    for (int64_t i = 0; i < t->n * hk; i++) finish_key(t, i / hk, (int)(i % hk));
}

void OP(attention_tree_bwd)(gr_dev* dev, void* dq, void* dk, void* dv, const void* do_,
                            const void* o, const void* stat, const void* q, const void* k,
                            const void* v, const int32_t* subtree_end, int64_t n, int h, int hk,
                            int d, float scale, int max_path, void* scratch)
{
    if (n == 0) return;
    bwd_args t = {.dq = dq,
                  .dk = dk,
                  .dv = dv,
                  .dout = do_,
                  .o = o,
                  .q = q,
                  .k = k,
                  .v = v,
                  .stat = stat,
                  .n = n,
                  .max_path = max_path,
                  .s = heads_of(h, hk, d, scale)};
    gr_arena a = {.base = scratch, .cap = SIZE_MAX};
    bwd_layout(&t, &a);
    t.scratch = gr_arena_push(&a, (size_t)dev->threads, t.thread_bytes);
    OP(runs_find)(&t.runs, subtree_end, n);
    const double pairs = cut_segments(&t);
    OP_RUN(op_threads(dev, 5 * pairs * h * d), bwd_tasks(&t));
}
