/* attention.c - exact attention over pages and packed trees.
 *
 * Both ops write the scores of a row densely in path order, so everything after the scores depends on
 * the row's number of keys alone, and a score on its query and key alone. A row has the same bits
 * decoded, prefilled, through a forked page or packed in a tree. */
#include "kernels/cpu/attention.h"
#include "kernels/cpu/product.h"

#include <omp.h>

#define SCORE_KEYS 64 /* keys whose scores are computed at a time */
#define SPAN_PAGES 32

/* ---- one block of query rows -------------------------------------------------------------------------- */

/* A thread's buffers, and the rows they hold. */
typedef struct block {
    acc* q;          /* (flat, d) */
    acc* p;          /* (flat, p_row) scores, then exp(score - maximum) */
    acc* o;          /* (flat, o_row) */
    acc* stat;       /* (flat, 2) maximum and sum */
    int32_t* n_keys; /* (rows) */
    int32_t* list;   /* runs that the block sees */
    int64_t rows, p_row, o_row;
} block;

static void block_layout(block* b, gr_arena* a, const heads* s, int64_t max_keys, int64_t list)
{
    const int64_t rows = block_rows(s->group), flat = rows * s->group;
    b->p_row = row_stride(max_keys + VEC);
    b->o_row = row_stride(s->d);
    b->q = GR_PUSH(a, acc, flat * s->d);
    b->p = GR_PUSH(a, acc, flat * b->p_row);
    b->o = GR_PUSH(a, acc, flat * b->o_row);
    b->stat = GR_PUSH(a, acc, flat * 2);
    b->n_keys = GR_PUSH(a, int32_t, rows);
    b->list = GR_PUSH(a, int32_t, list);
}

/* Keys first_key ... first_key + n_keys - 1 of the paths of rows [row_begin, row_end): in pages that
 * all these rows see whole, or else at k and v. */
typedef struct span {
    int64_t first_key, n_keys;
    int64_t row_begin, row_end;
    const real *k, *v; /* K as [d][k_step], V as [keys][v_step] */
    const real *k_pages[SPAN_PAGES], *v_pages[SPAN_PAGES];
    int64_t n_pages, k_step, v_step;
} span;

/* Scores of a row past its last key are written too, and never read: the keys of the path that come
 * next, if any, overwrite them. */
static void span_scores(const block* b, const heads* s, const span* x)
{
    int64_t row = x->row_begin;
    for (int64_t at = 0; at < x->n_keys; at += SCORE_KEYS) {
        while (row < x->row_end && b->n_keys[row] <= x->first_key + at) row++;
        const product p = {.kind = x->n_pages > 0 ? PRODUCT_COLUMN_PAGES : PRODUCT_PLAIN,
                           .c = b->p + row * s->group * b->p_row + x->first_key + at,
                           .a = b->q + row * s->group * s->d,
                           .b = x->k + at,
                           .pages = x->k_pages + at / GR_PAGE,
                           .c_row = b->p_row,
                           .a_row = s->d,
                           .b_step = x->k_step,
                           .rows = (x->row_end - row) * s->group,
                           .cols = whole_vecs(GR_MIN(x->n_keys - at, SCORE_KEYS)),
                           .steps = s->d};
        OP(product)(&p);
    }
}

/* o += p v over keys [from, to) of the span, for `rows` rows from `row`. */
static void add_values(const block* b, const heads* s, const span* x, int64_t row, int64_t rows,
                       int64_t from, int64_t to)
{
    if (from >= to) return;
    const product p = {.kind = x->n_pages > 0 ? PRODUCT_STEP_PAGES : PRODUCT_PLAIN,
                       .add = true,
                       .c = b->o + row * s->group * b->o_row,
                       .a = b->p + row * s->group * b->p_row + x->first_key + from,
                       .b = x->v + from * x->v_step,
                       .pages = x->v_pages,
                       .c_row = b->o_row,
                       .a_row = b->p_row,
                       .b_step = x->v_step,
                       .rows = rows * s->group,
                       .cols = s->d,
                       .steps = to - from};
    OP(product)(&p);
}

static void span_values(const block* b, const heads* s, const span* x)
{
    int64_t common = x->n_keys; /* keys that every row sees */
    for (int64_t r = x->row_begin; r < x->row_end; r++)
        common = GR_MIN(common, b->n_keys[r] - x->first_key);
    common = GR_MAX(common, 0);
    add_values(b, s, x, x->row_begin, x->row_end - x->row_begin, 0, common);
    for (int64_t r = x->row_begin; r < x->row_end; r++)
        add_values(b, s, x, r, 1, common, GR_MIN(b->n_keys[r] - x->first_key, x->n_keys));
}

/* Scores -> exp(scale score - maximum), and both stats. Lanes past the end are set to count nothing. */
static void softmax_row(acc* p, int64_t n, acc scale, acc stat[2])
{
    for (int64_t i = n; i < whole_vecs(n); i++) p[i] = -(acc)INFINITY;
    const vec by = vec_set(scale);
    vec max = vec_set(-(acc)INFINITY), sum = vec_zero();
    for (int64_t i = 0; i < n; i += VEC) {
        const vec x = vec_mul(vec_load(p + i), by);
        vec_store(p + i, x);
        max = vec_max(max, x);
    }
    stat[0] = vec_max_all(max);
    const vec m = vec_set(stat[0]);
    for (int64_t i = 0; i < n; i += VEC) {
        const vec e = vec_exp(vec_sub(vec_load(p + i), m));
        vec_store(p + i, e);
        sum = vec_add(sum, e);
    }
    stat[1] = vec_sum(sum);
}

static void block_softmax(const block* b, const heads* s)
{
    for (int64_t i = 0; i < b->rows * s->group; i++)
        softmax_row(b->p + i * b->p_row, b->n_keys[i / s->group], s->scale, b->stat + 2 * i);
}

static void store_row(real* o, const block* b, const heads* s, int64_t block_row, int64_t row,
                      int kv_head)
{
    for (int64_t j = 0; j < s->group; j++) {
        const int64_t i = block_row * s->group + j;
        real* to = o + ((row * s->hk + kv_head) * s->group + j) * s->d;
        for (int c = 0; c < s->d; c++)
            to[c] = acc_to_real(b->o[i * b->o_row + c] / b->stat[2 * i + 1]);
    }
}

static void block_clear(const block* b, const heads* s)
{
    memset(b->o, 0, (size_t)(b->rows * s->group * b->o_row) * sizeof(acc));
}

/* ---- pages --------------------------------------------------------------------------------------------- */

/* Per page and head: K as [d][GR_PAGE], then V as [GR_PAGE][d]. */
static int64_t page_head_size(int d) { return (int64_t)2 * GR_PAGE * d; }

size_t OP(kv_page_bytes)(const gr_dev* dev, int hk, int d)
{
    (void)dev;
    return (size_t)(hk * page_head_size(d)) * sizeof(real);
}

static void append_rows(real* pool, const real* k, const real* v, const int32_t* slot, int64_t n,
                        int hk, int d)
{
#pragma omp for schedule(static)
    for (int64_t i = 0; i < n; i++) {
        const int64_t page = slot[i] / GR_PAGE, at = slot[i] % GR_PAGE;
        for (int head = 0; head < hk; head++) {
            real* to = pool + (page * hk + head) * page_head_size(d);
            const int64_t from = (i * hk + head) * d;
            for (int c = 0; c < d; c++) to[c * GR_PAGE + at] = k[from + c];
            memcpy(to + GR_PAGE * d + at * d, v + from, (size_t)d * sizeof(real));
        }
    }
}

void OP(kv_append)(gr_dev* dev, void* pool, const void* k, const void* v, const int32_t* slot,
                   int64_t n, int hk, int d)
{
    OP_RUN(op_threads(dev, OP_ELEMENT * (double)n * hk * d),
           append_rows(pool, k, v, slot, n, hk, d));
}

void OP(kv_copy)(gr_dev* dev, void* pool, const int32_t* pair, int64_t n, int layers, int64_t pages,
                 int hk, int d)
{
    const size_t bytes = OP(kv_page_bytes)(dev, hk, d);
    for (int64_t layer = 0; layer < layers; layer++) {
        char* base = (char*)pool + (size_t)(layer * pages) * bytes;
        for (int64_t i = 0; i < n; i++)
            memcpy(base + (size_t)pair[2 * i + 1] * bytes, base + (size_t)pair[2 * i] * bytes,
                   bytes);
    }
}

typedef struct paged_args {
    real* o;
    const real *q, *pool;
    const gr_page_plan* plan;
    heads s;
    char* scratch;
    size_t thread_bytes;
} paged_args;

static size_t paged_thread_bytes(const heads* s, int64_t max_keys)
{
    gr_arena a = {0};
    block b;
    block_layout(&b, &a, s, max_keys, 0);
    return thread_bytes_of(&a);
}

size_t OP(attention_paged_scratch)(const gr_dev* dev, int h, int hk, int d, int max_keys)
{
    const heads s = heads_of(h, hk, d, 1);
    return paged_thread_bytes(&s, max_keys) * (size_t)dev->threads;
}

static const real* page_at(const paged_args* a, int64_t page, int kv_head)
{
    return a->pool + (page * a->s.hk + kv_head) * page_head_size(a->s.d);
}

/* Takes into the span page after page, from unit u on, that the same rows see whole; a page that some
 * row sees in part is a span of its own. Returns the unit that follows. */
static int page_span(span* x, const paged_args* a, const block* b, int64_t first_row, int kv_head,
                     int u, int unit_end)
{
    const gr_page_unit* unit = a->plan->unit;
    *x = (span){.first_key = unit[u].first_key,
                .row_begin = GR_MAX(unit[u].row_begin - first_row, 0),
                .row_end = GR_MIN(unit[u].row_end - first_row, b->rows),
                .k_step = GR_PAGE,
                .v_step = a->s.d};
    if (x->row_begin >= x->row_end) return u + 1;
    int64_t least = INT64_MAX;
    for (int64_t r = x->row_begin; r < x->row_end; r++) least = GR_MIN(least, b->n_keys[r]);
    const int begin = u;
    for (; u < unit_end && x->n_pages < SPAN_PAGES; u++, x->n_pages++) {
        const gr_page_unit* n = unit + u;
        if (n->first_key != x->first_key + x->n_pages * GR_PAGE || least < n->first_key + GR_PAGE ||
            n->row_begin != unit[begin].row_begin || n->row_end != unit[begin].row_end)
            break;
        x->k_pages[x->n_pages] = page_at(a, n->page, kv_head);
        x->v_pages[x->n_pages] = page_at(a, n->page, kv_head) + GR_PAGE * a->s.d;
    }
    x->n_keys = GR_PAGE * GR_MAX(x->n_pages, 1);
    if (u > begin) return u;
    x->k = page_at(a, unit[u].page, kv_head);
    x->v = x->k + GR_PAGE * a->s.d;
    return u + 1;
}

/* Plan rows [first, first + block_rows) of a task against one KV head. */
static void paged_block(const paged_args* a, const gr_page_task* t, int64_t first, int kv_head)
{
    const gr_page_plan* plan = a->plan;
    block b;
    gr_arena arena = {.base = a->scratch + (size_t)omp_get_thread_num() * a->thread_bytes,
                      .cap = a->thread_bytes};
    block_layout(&b, &arena, &a->s, t->max_keys, 0);
    b.rows = GR_MIN(t->row_end - first, block_rows(a->s.group));
    for (int64_t r = 0; r < b.rows; r++) {
        b.n_keys[r] = plan->n_keys[first + r];
        gather_row(b.q + r * a->s.group * a->s.d, a->q, plan->row[first + r], kv_head, &a->s);
    }
    span x;
    for (int u = t->unit_begin; u < t->unit_end;) {
        u = page_span(&x, a, &b, first, kv_head, u, t->unit_end);
        span_scores(&b, &a->s, &x);
    }
    block_softmax(&b, &a->s);
    block_clear(&b, &a->s);
    for (int u = t->unit_begin; u < t->unit_end;) {
        u = page_span(&x, a, &b, first, kv_head, u, t->unit_end);
        span_values(&b, &a->s, &x);
    }
    for (int64_t r = 0; r < b.rows; r++)
        store_row(a->o, &b, &a->s, r, plan->row[first + r], kv_head);
}

static void paged_tasks(const paged_args* a)
{
    const int64_t rows = block_rows(a->s.group), blocks = (GR_TASK_ROWS + rows - 1) / rows;
#pragma omp for schedule(dynamic)
    for (int64_t i = 0; i < a->plan->n_tasks * blocks * a->s.hk; i++) {
        const gr_page_task* t = a->plan->task + i / (blocks * a->s.hk);
        const int64_t first = t->row_begin + i / a->s.hk % blocks * rows;
        if (first < t->row_end) paged_block(a, t, first, (int)(i % a->s.hk));
    }
}

void OP(attention_paged)(gr_dev* dev, void* o, const void* q, const void* pool,
                         const gr_page_plan* plan, int h, int hk, int d, float scale, void* scratch)
{
    paged_args a = {.o = o,
                    .q = q,
                    .pool = pool,
                    .plan = plan,
                    .s = heads_of(h, hk, d, scale),
                    .scratch = scratch};
    double keys = 0;
    for (int i = 0; i < plan->n_rows; i++) keys += plan->n_keys[i];
    int64_t max_keys = 0;
    for (int i = 0; i < plan->n_tasks; i++) max_keys = GR_MAX(max_keys, plan->task[i].max_keys);
    a.thread_bytes = paged_thread_bytes(&a.s, max_keys);
    OP_RUN(op_threads(dev, 2 * keys * h * d), paged_tasks(&a));
}

/* ---- packed trees ---------------------------------------------------------------------------------------- */

void OP(runs_layout)(runs* r, gr_arena* a, int64_t n)
{
    r->start = GR_PUSH(a, int32_t, n + 1);
    r->parent = GR_PUSH(a, int32_t, n);
    r->before = GR_PUSH(a, int32_t, n);
    r->of = GR_PUSH(a, int32_t, n);
}

void OP(runs_find)(runs* r, const int32_t* subtree_end, int64_t n)
{
    r->subtree_end = subtree_end;
    r->count = 0;
    int32_t run = -1;
    for (int32_t i = 0; i < n; i++) {
        if (i > 0 && subtree_end[i] == subtree_end[i - 1]) {
            r->of[i] = run;
            continue;
        }
        /* the closest earlier run that still covers this token */
        while (run >= 0 && subtree_end[r->start[run]] <= i) run = r->parent[run];
        const int32_t parent = run;
        run = r->count++;
        r->start[run] = i;
        r->parent[run] = parent;
        r->before[run] =
            parent < 0 ? 0 : r->before[parent] + (r->start[parent + 1] - r->start[parent]);
        r->start[run + 1] = (int32_t)n; /* until the next run is met */
        r->of[i] = run;
    }
}

int64_t OP(runs_seen)(const runs* r, int32_t* list, int64_t first, int64_t last)
{
    int64_t n = 0;
    for (int32_t run = r->parent[r->of[first]]; run >= 0; run = r->parent[run]) n++;
    int64_t at = n;
    for (int32_t run = r->parent[r->of[first]]; run >= 0; run = r->parent[run]) list[--at] = run;
    for (int32_t run = r->of[first]; run <= r->of[last - 1]; run++) list[n++] = run;
    return n;
}

void OP(transpose_heads)(real* to, const real* x, int64_t n, int hk, int d)
{
    const int64_t stride = transposed_stride(n), blocks = (n + VEC - 1) / VEC;
#pragma omp for schedule(static)
    for (int64_t i = 0; i < blocks * hk; i++) {
        const int64_t first = i / hk * VEC, head = i % hk, width = GR_MIN(n - first, VEC);
        for (int64_t c = 0; c < d; c++) {
            real* row = to + (head * d + c) * stride + first;
            for (int64_t t = 0; t < width; t++) row[t] = x[((first + t) * hk + head) * d + c];
        }
    }
}

typedef struct tree_args {
    real* o;
    acc* stat;
    const real *q, *k, *v;
    int64_t n, max_path;
    heads s;
    runs runs;
    real* kt; /* (hk, d, transposed_stride(n)) */
    char* scratch;
    size_t thread_bytes;
} tree_args;

static void tree_block_layout(block* b, gr_arena* a, const heads* s, int64_t max_path)
{
    block_layout(b, a, s, max_path, max_path + block_rows(s->group));
}

/* The buffers all threads share; those of the threads lie behind. */
static void tree_layout(tree_args* t, gr_arena* a)
{
    OP(runs_layout)(&t->runs, a, t->n);
    t->kt = GR_PUSH(a, real, t->s.hk * t->s.d * transposed_stride(t->n));
    gr_arena one = {0};
    block b;
    tree_block_layout(&b, &one, &t->s, t->max_path);
    t->thread_bytes = thread_bytes_of(&one);
}

static size_t tree_fwd_scratch(const gr_dev* dev, const heads* s, int64_t n, int max_path)
{
    gr_arena a = {0};
    tree_args t = {.n = n, .max_path = max_path, .s = *s};
    tree_layout(&t, &a);
    gr_arena_push(&a, (size_t)dev->threads, t.thread_bytes);
    return a.used;
}

size_t OP(attention_tree_scratch)(const gr_dev* dev, int64_t n, int h, int hk, int d, int max_path)
{
    const heads s = heads_of(h, hk, d, 1);
    const size_t forward = tree_fwd_scratch(dev, &s, n, max_path);
    return GR_MAX(forward, OP(attention_tree_bwd_scratch)(dev, n, h, hk, d, max_path));
}

/* A run as seen by tokens [first, first + rows): all its keys but those behind the last token. */
static span run_span(const tree_args* t, int32_t run, int64_t first, int64_t rows, int kv_head)
{
    const runs* r = &t->runs;
    const int64_t start = r->start[run], end = GR_MIN(r->start[run + 1], first + rows);
    const int64_t stride = transposed_stride(t->n), step = (int64_t)t->s.hk * t->s.d;
    return (span){.first_key = r->before[run],
                  .n_keys = end - start,
                  .row_begin = GR_MAX(start - first, 0),
                  .row_end = GR_MIN(r->subtree_end[start] - first, rows),
                  .k = t->kt + (int64_t)kv_head * t->s.d * stride + start,
                  .v = t->v + start * step + (int64_t)kv_head * t->s.d,
                  .k_step = stride,
                  .v_step = step};
}

static void tree_block(const tree_args* t, int64_t first, int kv_head)
{
    block b;
    gr_arena arena = {.base = t->scratch + (size_t)omp_get_thread_num() * t->thread_bytes,
                      .cap = t->thread_bytes};
    tree_block_layout(&b, &arena, &t->s, t->max_path);
    b.rows = GR_MIN(t->n - first, block_rows(t->s.group));
    for (int64_t r = 0; r < b.rows; r++) {
        b.n_keys[r] = (int32_t)path_length(&t->runs, first + r);
        gather_row(b.q + r * t->s.group * t->s.d, t->q, first + r, kv_head, &t->s);
    }
    const int64_t n_runs = OP(runs_seen)(&t->runs, b.list, first, first + b.rows);
    for (int64_t i = 0; i < n_runs; i++) {
        const span x = run_span(t, b.list[i], first, b.rows, kv_head);
        span_scores(&b, &t->s, &x);
    }
    block_softmax(&b, &t->s);
    block_clear(&b, &t->s);
    for (int64_t i = 0; i < n_runs; i++) {
        const span x = run_span(t, b.list[i], first, b.rows, kv_head);
        span_values(&b, &t->s, &x);
    }
    for (int64_t r = 0; r < b.rows; r++) {
        store_row(t->o, &b, &t->s, r, first + r, kv_head);
        const int64_t head = ((first + r) * t->s.hk + kv_head) * t->s.group;
        if (t->stat != NULL)
            memcpy(t->stat + 2 * head, b.stat + 2 * r * t->s.group,
                   (size_t)t->s.group * 2 * sizeof(acc));
    }
}

static void tree_tasks(const tree_args* t)
{
    OP(transpose_heads)(t->kt, t->k, t->n, t->s.hk, t->s.d);
    const int64_t rows = block_rows(t->s.group), blocks = (t->n + rows - 1) / rows;
#pragma omp for schedule(dynamic)
    for (int64_t i = 0; i < blocks * t->s.hk; i++)
        tree_block(t, i / t->s.hk * rows, (int)(i % t->s.hk));
}

void OP(attention_tree)(gr_dev* dev, void* o, void* stat, const void* q, const void* k,
                        const void* v, const int32_t* subtree_end, int64_t n, int h, int hk, int d,
                        float scale, int max_path, void* scratch)
{
    tree_args t = {.o = o,
                   .stat = stat,
                   .q = q,
                   .k = k,
                   .v = v,
                   .n = n,
                   .max_path = max_path,
                   .s = heads_of(h, hk, d, scale)};
    gr_arena a = {.base = scratch, .cap = SIZE_MAX};
    tree_layout(&t, &a);
    t.scratch = gr_arena_push(&a, (size_t)dev->threads, t.thread_bytes);
    OP(runs_find)(&t.runs, subtree_end, n);
    double keys = 0;
    for (int64_t i = 0; i < n; i++) {
        GR_ASSERT(path_length(&t.runs, i) <= max_path, "token %lld", (long long)i);
        keys += (double)path_length(&t.runs, i);
    }
    OP_RUN(op_threads(dev, 2 * keys * h * d), tree_tasks(&t));
}
