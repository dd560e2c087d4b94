/* Plans of the CUDA attention kernels: every row meets each key of its path once, in path
 * order, and what is read and multiplied stays near what is needed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "bench/trees.h"

typedef struct rng {
    uint64_t key, at;
} rng;
static int below(rng* r, int n) { return (int)(gr_uniform(r->key, r->at++) * n); }

/* ---- random batches ------------------------------------------------------------------------------ */

/* Sequences that fork anywhere, rows that see any part of them; rows of one sequence are
 * neighbours. */
static tree_batch* random_batch(rng* r)
{
    tree_batch* b = tree_batch_open();
    const int most = 1 + below(r, below(r, 2) == 0 ? 40 : 700), seqs = 1 + below(r, 60);
    for (int i = 0; i < seqs; i++) {
        const int from = i > 0 && below(r, 5) > 0 ? below(r, i) : -1;
        const int seq = from < 0 ? gr_kv_open(&b->kv)
                                 : gr_kv_fork(&b->kv, from, below(r, gr_kv_len(&b->kv, from) + 1));
        assert_int_equal(seq, i);
        tree_append(b, seq, 1 + below(r, most));
    }
    for (int i = 0; i < seqs; i++) {
        const int rows = below(r, 6) == 0 ? below(r, 60) : below(r, 3), len = gr_kv_len(&b->kv, i);
        for (int k = 0; k < rows && k < len && b->n_rows < TREE_ROWS; k++) {
            b->seq[b->n_rows] = i;
            b->n_keys[b->n_rows++] = len - k;
        }
    }
    if (b->n_rows == 0) b->seq[0] = 0, b->n_keys[b->n_rows++] = 1;
    gr_kv_plan_make(&b->plan, &b->kv, b->seq, b->n_keys, b->n_rows);
    return b;
}

/* ---- what a tile lists --------------------------------------------------------------------------- */

static int32_t chunk_of(const gr_key_page* p)
{
    return gr_page_first_key(p) / (GR_PAGE * GR_CHUNK_PAGES);
}

/* Steps are whole and of one chunk, and say where another one begins. */
static void check_steps(const gr_key_list* l, const gr_key_page* page, const gr_tile* t, int step)
{
    int32_t chunk = -1, n = 0;
    assert_int_equal((t->list_end - t->list_begin) % step, 0);
    for (int32_t i = t->list_begin; i < t->list_end; i++) {
        const int32_t e = l->entry[i];
        if (e == GR_NO_PAGE) continue;
        const int32_t of = chunk_of(&page[e >> GR_ENTRY_SHIFT]);
        assert_true(of >= chunk);
        assert_int_equal((e & GR_ENTRY_CHUNK) != 0, chunk >= 0 && of != chunk);
        if (of != chunk) assert_int_equal((i - t->list_begin) % step, 0);
        chunk = of;
        n++;
    }
    assert_int_equal(n, t->n_pages);
}

/* Walks the pages of a tile that `row` sees; *key, the next one it needs, moves on.
 * check(context, page, row, first key) looks at each. */
typedef void check_page_fn(const void* context, const gr_key_page* page, int32_t row);
static void walk_tile(const gr_key_list* l, const gr_key_page* pages, const gr_tile* t, int32_t row,
                      int32_t n_keys, int32_t* key, check_page_fn* check, const void* context)
{
    for (int32_t i = t->list_begin; i < t->list_end; i++) {
        if (l->entry[i] == GR_NO_PAGE) continue;
        const gr_key_page* p = &pages[l->entry[i] >> GR_ENTRY_SHIFT];
        const int32_t first = gr_page_first_key(p);
        const bool sees = row >= p->row_begin && row < p->row_end && first < n_keys;
        if (!(l->entry[i] & GR_ENTRY_PARTIAL)) assert_true(sees && n_keys >= first + GR_PAGE);
        if (!sees) continue;
        assert_int_equal(first, *key);
        assert_true(p->end_key >= GR_MIN(n_keys, first + GR_PAGE));
        check(context, p, row);
        *key = GR_MIN(n_keys, first + GR_PAGE);
    }
}

/* ---- plans of the pool --------------------------------------------------------------------------- */

typedef struct pool_case {
    const tree_batch* b;
    const gr_pool_plan* p;
    gr_pool_shape s;
    int32_t row_begin, row_end; /* planned */
} pool_case;

static void is_rows_page(const void* context, const gr_key_page* page, int32_t row)
{
    const pool_case* x = context;
    const int32_t seq = x->b->seq[x->b->plan.plan.row[row]];
    assert_int_equal(page->page, x->b->kv.seq[seq].page[gr_page_first_key(page) / GR_PAGE]);
}

static bool holds(const gr_tile* t, int32_t flat)
{
    return flat >= t->flat_begin && flat < t->flat_end;
}

/* The tile whose part `part` is flat row `flat`'s; part -1: the one whose results are final. */
static const gr_tile* tile_of_part(const gr_pool_plan* p, int32_t flat, int32_t part)
{
    for (const gr_tile* t = p->tile; t < p->tile + p->n_tiles; t++) {
        if (!holds(t, flat)) continue;
        if (part < 0 ? t->part < 0 : t->part >= 0 && t->part + flat - t->flat_begin == part)
            return t;
    }
    fail_msg("flat row %d has no tile for part %d", flat, part);
    return NULL;
}

static void check_flat_row(const pool_case* x, int32_t flat)
{
    const gr_pool_plan* p = x->p;
    const int32_t row = flat / x->s.group, n_keys = x->b->plan.plan.n_keys[row];
    const int32_t first = p->merge_begin[flat], n = p->merge_begin[flat + 1] - first;
    int32_t tiles = 0, key = 0;
    for (const gr_tile* t = p->tile; t < p->tile + p->n_tiles; t++) tiles += holds(t, flat);
    assert_int_equal(tiles, GR_MAX(n, 1));
    for (int32_t i = 0; i < tiles; i++) {
        const gr_tile* t = tile_of_part(p, flat, n == 0 ? -1 : p->merge[first + i]);
        const int32_t before = key, chunk = GR_PAGE * GR_CHUNK_PAGES;
        walk_tile(&p->list, p->page, t, row, n_keys, &key, is_rows_page, x);
        if (n == 0 || !x->s.exact) continue;
        assert_true(before % chunk == 0 && key > before); /* one chunk to the end */
        assert_true(key == n_keys ? key <= before + chunk : key == before + chunk);
    }
    assert_int_equal(key, n_keys);
}

/* Each item is in one slot, wide ones in those of blocks. */
static void check_slots(const pool_case* x)
{
    const gr_pool_plan* p = x->p;
    const int32_t items = p->n_tiles * x->s.hk;
    bool* met = calloc((size_t)items + 1, sizeof *met);
    assert_int_equal(p->n_slots, x->s.blocks * (1 + x->s.warps));
    assert_int_equal(p->work_begin[0], 0);
    assert_int_equal(p->work_begin[p->n_slots], items);
    for (int32_t s = 0; s < p->n_slots; s++)
        for (int32_t i = p->work_begin[s]; i < p->work_begin[s + 1]; i++) {
            assert_in_range(p->item[i], 0, items - 1);
            assert_false(met[p->item[i]]);
            met[p->item[i]] = true;
            assert_int_equal(p->item[i] / x->s.hk < p->n_wide, s < x->s.blocks);
        }
    free(met);
}

static void check_parts(const pool_case* x)
{
    const gr_pool_plan* p = x->p;
    int32_t rows = 0;
    for (const gr_tile* t = p->tile; t < p->tile + p->n_tiles; t++) {
        const int32_t flat = t->flat_end - t->flat_begin;
        assert_true(flat > 0 && flat <= x->s.wide_rows);
        assert_int_equal(flat > GR_NARROW_ROWS, t < p->tile + p->n_wide);
        check_steps(&p->list, p->page, t, flat > GR_NARROW_ROWS ? GR_STEP_PAGES : 1);
        if (t->part < 0) continue;
        rows += flat;
        for (const gr_tile* u = p->tile; u < t; u++)
            assert_true(u->part < 0 || u->part >= t->part + flat ||
                        t->part >= u->part + u->flat_end - u->flat_begin);
    }
    assert_int_equal(rows, p->n_parts);
    assert_int_equal(rows, p->n_merge);
    assert_true(rows <= x->s.max_parts);
}

/* Plans the tasks in as many goes as their room asks for. */
static int check_pool(const tree_batch* b, gr_pool_plan* p, const gr_pool_shape* s)
{
    const gr_page_plan* in = &b->plan.plan;
    int goes = 0;
    for (int first = 0, end; first < in->n_tasks; first = end, goes++) {
        end = gr_pool_plan_make(p, in, first, s);
        assert_true(end > first && end <= in->n_tasks);
        const pool_case x = {b, p, *s, in->task[first].row_begin, in->task[end - 1].row_end};
        check_slots(&x);
        check_parts(&x);
        for (int32_t f = x.row_begin * s->group; f < x.row_end * s->group; f++)
            check_flat_row(&x, f);
    }
    return goes;
}

static void rows_meet_their_keys_in_order(void** state)
{
    (void)state;
    static const int groups[] = {1, 2, 3, 7, 8, 20};
    rng r = {.key = 1};
    gr_pool_plan p = {0};
    int parted[2] = {0, 0}, cut = 0;
    for (int round = 0; round < 400; round++) {
        tree_batch* b = random_batch(&r);
        gr_pool_shape s = {.group = groups[below(&r, GR_COUNT(groups))],
                           .hk = 1 + below(&r, 4),
                           .wide_rows = below(&r, 2) == 0 ? 128 : 64,
                           .exact = round % 2 == 0,
                           .blocks = 1 + below(&r, below(&r, 2) == 0 ? 4 : 132),
                           .warps = 1 + below(&r, 8),
                           .max_parts = below(&r, 4) == 0 ? below(&r, 500) : 1 << 20,
                           .max_bytes = below(&r, 4) == 0 ? 4096 : SIZE_MAX};
        cut += check_pool(b, &p, &s) > 1;
        parted[s.exact] += p.n_parts > 0;
        tree_batch_close(b);
    }
    print_message("%d fast and %d exact plans with parts, %d batches in several goes\n", parted[0],
                  parted[1], cut);
    assert_true(parted[0] > 20 && parted[1] > 20 && cut > 20);
    gr_pool_plan_free(&p);
}

/* Of each tree: fast 1.25, exact 1.45 times the keys that exist, tails that a fork copies
 * included; and slots end together, unless a path is too short to be cut for all of them. */
static void decoding_reads_little_more_than_once(void** state)
{
    (void)state;
    for (int i = 0; i < 2 * GR_COUNT(tree_cases); i++) {
        const tree_case* c = &tree_cases[i / 2];
        tree_batch* b = tree_batch_of(c);
        gr_pool_plan p = {0};
        gr_pool_shape s = h200_pool;
        s.exact = i % 2 == 1;
        assert_int_equal(check_pool(b, &p, &s), 1);
        const double read = (double)keys_read(&p) / (double)b->unique;
        const double late = (double)p.makespan * s.blocks / (double)p.work;
        print_message("%-22s %s: %.3f times the keys, longest slot %.2f of the mean\n", c->name,
                      s.exact ? "exact" : "fast ", read, late);
        assert_true(read <= (s.exact ? 1.45 : 1.25));
        assert_true(late <= 1.5);
        gr_pool_plan_free(&p);
        tree_batch_close(b);
    }
}

/* ---- packed trees --------------------------------------------------------------------------------- */

/* Tokens follow each other or step back to one of the path, or to none. */
static packed_tree random_tree(rng* r, int32_t n)
{
    packed_tree t = {malloc((size_t)n * sizeof(int32_t)), n, 0};
    int32_t* path = malloc((size_t)n * sizeof *path);
    const int forks = 1 + below(r, below(r, 2) == 0 ? 20 : 200);
    int32_t depth = 0;
    for (int32_t i = 0; i < n; i++) {
        if (depth > 0 && below(r, 1000) < forks) {
            const int32_t to = below(r, depth + 1) < 3 ? 0 : depth - 1 - below(r, depth);
            while (depth > to) t.subtree_end[path[--depth]] = i;
        }
        path[depth++] = i;
        t.max_path = GR_MAX(t.max_path, depth);
    }
    while (depth > 0) t.subtree_end[path[--depth]] = n;
    free(path);
    return t;
}

typedef struct tree_check {
    const gr_tree_plan* p;
    const int32_t* path; /* of the row */
} tree_check;

static void is_path_page(const void* context, const gr_key_page* page, int32_t row)
{
    const tree_check* x = context;
    const int32_t n_keys = x->p->n_keys[row];
    for (int32_t k = gr_page_first_key(page), i = 0; i < GR_PAGE; k++, i++) {
        const int32_t token = x->p->slot[(int64_t)page->page * GR_PAGE + i];
        assert_int_equal(token >= 0, k < page->end_key);
        if (k < n_keys) assert_int_equal(token, x->path[k]);
    }
}

static void check_tree_tiles(const gr_tree_plan* p)
{
    int32_t* path = malloc((size_t)p->n * sizeof *path);
    int64_t flat = 0;
    for (const gr_tile* t = p->tile; t < p->tile + p->n_tiles; t++) {
        assert_int_equal(t->part, -1);
        check_steps(&p->list, p->page, t, GR_STEP_PAGES);
        flat += t->flat_end - t->flat_begin;
        const int32_t last = (t->flat_end - 1) / p->shape.group;
        for (int32_t row = t->flat_begin / p->shape.group; row <= last; row++) {
            int32_t n = 0, key = 0;
            for (int32_t j = 0; j <= row; j++)
                if (row < p->subtree_end[j]) path[n++] = j;
            assert_int_equal(n, p->n_keys[row]);
            const tree_check x = {p, path};
            walk_tile(&p->list, p->page, t, row, n, &key, is_path_page, &x);
            assert_int_equal(key, n);
        }
    }
    assert_int_equal(flat, (int64_t)p->n * p->shape.group);
    free(path);
}

/* The segments of each key tile follow each other and hold all queries that see one of its
 * keys. */
static void check_tree_units(const gr_tree_plan* p)
{
    int32_t parts = 0, units = 0;
    for (int32_t key = 0; key < p->n; key += GR_KEY_TILE) {
        int64_t end = 0, steps = 0;
        int32_t least = INT32_MAX, most = 0, n = 0;
        for (int32_t j = key; j < GR_MIN(key + GR_KEY_TILE, p->n); j++)
            end = GR_MAX(end, (int64_t)p->subtree_end[j] * p->shape.group);
        for (const gr_key_unit* u = p->unit; u < p->unit + p->n_units; u++) {
            if (u->key_begin != key) continue;
            assert_int_equal(u->key_end, GR_MIN(key + GR_KEY_TILE, p->n));
            steps += u->step_end - u->step_begin;
            least = GR_MIN(least, u->step_begin);
            most = GR_MAX(most, u->step_end);
            n++;
        }
        units += n;
        assert_true((int64_t)least * GR_QUERY_STEP <= (int64_t)key * p->shape.group);
        assert_true((int64_t)most * GR_QUERY_STEP >= end);
        assert_int_equal(steps, most - least);
        for (const gr_key_sum* s = p->sum; s < p->sum + p->n_sums; s++) {
            if (s->key_begin != key) continue;
            assert_int_equal(s->part_end - s->part_begin, n);
            for (const gr_key_unit* u = p->unit; u < p->unit + p->n_units; u++)
                if (u->key_begin == key) assert_in_range(u->part, s->part_begin, s->part_end - 1);
            parts += n;
        }
    }
    assert_int_equal(units, p->n_units);
    assert_int_equal(parts, p->n_parts);
}

static void add_bytes(void* sum, const void* array, size_t bytes)
{
    (void)array;
    *(size_t*)sum += bytes;
}

static void tokens_meet_their_path_in_order(void** state)
{
    (void)state;
    rng r = {.key = 2};
    gr_tree_plan p = {0};
    int32_t cut = 0;
    for (int round = 0; round < 60; round++) {
        packed_tree t = random_tree(&r, 1 + below(&r, below(&r, 2) == 0 ? 60 : 1200));
        const gr_tree_shape s = {1 + below(&r, 9), 1 + below(&r, 4), below(&r, 2) == 0 ? 128 : 64};
        gr_tree_plan_make(&p, t.subtree_end, t.n, &s);
        check_tree_tiles(&p);
        check_tree_units(&p);
        const gr_tree_bounds bounds = gr_tree_plan_bounds(t.n, &s, t.max_path);
        size_t bytes = 0;
        gr_tree_plan_arrays(&p, add_bytes, &bytes);
        assert_true(bytes <= bounds.bytes && p.n_parts <= bounds.parts);
        cut += p.n_sums;
        free(t.subtree_end);
    }
    print_message("%d key tiles were cut\n", cut);
    assert_true(cut > 20);
    gr_tree_plan_free(&p);
}

static void training_multiplies_little_more_than_needed(void** state)
{
    (void)state;
    packed_tree t = packed_tree_of(&training_case);
    gr_tree_plan p = {0};
    gr_tree_plan_make(&p, t.subtree_end, t.n, &h200_tree);
    const double waste = (double)pairs_multiplied(&p) / (double)pairs_needed(&p);
    print_message("%d tokens: %.3f times the pairs\n", t.n, waste);
    assert_true(t.n > 30000 && waste <= 1.10);
    gr_tree_plan_free(&p);
    free(t.subtree_end);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_meet_their_keys_in_order),
        cmocka_unit_test(decoding_reads_little_more_than_once),
        cmocka_unit_test(tokens_meet_their_path_in_order),
        cmocka_unit_test(training_multiplies_little_more_than_needed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
