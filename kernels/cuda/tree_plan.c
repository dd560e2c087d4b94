/* tree_plan.c - pages, tiles and key units of a packed tree (attention_plan.h).
 *
 * A run is a longest stretch of tokens with equal subtree_end: a node, or nodes without
 * siblings. Its pages start at multiples of GR_PAGE of the path, so the first may begin with
 * keys of runs above: it lists again what the parent's last page holds. A full page is seen by
 * the whole subtree, a partial one by its run alone, so every token sees each key of its path
 * exactly once.
 *
 * The backward of keys and values needs no such order: it takes tokens as they lie. Tiles of
 * keys near a root are seen by most queries; those whose work exceeds an even share are cut
 * into segments of queries, whose sums are added in order. The share does not depend on the
 * GPU: nor do sums. */
#include "kernels/cuda/attention_plan.h"

#include "host/arena.h"

#include <stdlib.h>
#include <string.h>

enum { SHARES = 264 }; /* two for each multiprocessor of the largest GPUs */

typedef struct gr_tree_run {
    int32_t start, parent, before; /* first token; run above, or -1; keys of the path before it */
} run;

/* ---- pages -------------------------------------------------------------------------------------- */

/* The runs, with one more that starts at n, and what each token sees. */
static int32_t find_runs(gr_tree_plan* p)
{
    run* r = p->run;
    int32_t count = 0, at = -1;
    for (int32_t i = 0; i < p->n; i++) {
        if (i == 0 || p->subtree_end[i] != p->subtree_end[i - 1]) {
            while (at >= 0 && p->subtree_end[r[at].start] <= i) at = r[at].parent;
            r[count].start = i; /* where the run before ends */
            const int32_t before = at < 0 ? 0 : r[at].before + r[at + 1].start - r[at].start;
            r[count] = (run){i, at, before};
            at = count++;
            r[count].start = p->n; /* until the next run is met */
        }
        p->n_keys[i] = r[at].before + i - r[at].start + 1;
    }
    return count;
}

/* Token at place `key` of the path of run `at`. */
static int32_t token_at(const run* r, int32_t at, int32_t key)
{
    while (key < r[at].before) at = r[at].parent;
    return r[at].start + key - r[at].before;
}

/* The page of run `at` whose first key is `first`. */
static void add_page(gr_tree_plan* p, int32_t at, int32_t first)
{
    const run* r = &p->run[at];
    const int32_t run_end = r[1].start, keys = r->before + run_end - r->start;
    const int32_t end = GR_MIN(first + GR_PAGE, keys), i = p->n_pages++;
    GR_RESERVE(p->page, p->cap[3], p->n_pages);
    GR_RESERVE(p->slot, p->cap[2], (int64_t)p->n_pages * GR_PAGE);
    for (int32_t s = 0; s < GR_PAGE; s++)
        p->slot[(int64_t)i * GR_PAGE + s] = first + s < end ? token_at(p->run, at, first + s) : -1;
    p->page[i] = (gr_key_page){
        .page = i,
        .end_key = end,
        .row_begin = r->start + GR_MAX(first - r->before, 0),
        .row_end = end == first + GR_PAGE ? p->subtree_end[r->start] : run_end,
    };
}

static void make_pages(gr_tree_plan* p)
{
    const int32_t count = find_runs(p);
    p->n_pages = 0;
    for (int32_t at = 0; at < count; at++) {
        const run* r = &p->run[at];
        const int32_t keys = r->before + r[1].start - r->start;
        for (int32_t k = r->before / GR_PAGE * GR_PAGE; k < keys; k += GR_PAGE) add_page(p, at, k);
    }
}

/* ---- tiles of queries --------------------------------------------------------------------------- */

static int32_t page_depth(const gr_tree_plan* p, int32_t page)
{
    return gr_page_first_key(&p->page[page]) / GR_PAGE;
}

/* Puts a page behind those of n sorted ones that lie no deeper. */
static void insert(gr_tree_plan* p, int32_t n, int32_t page)
{
    GR_RESERVE(p->sorted, p->cap[9], n + 1);
    for (; n > 0 && page_depth(p, p->sorted[n - 1]) > page_depth(p, page); n--)
        p->sorted[n] = p->sorted[n - 1];
    p->sorted[n] = page;
}

/* Pages stand in the order of the first token that sees them; path[k] is page k of the path of
 * the tile's first token. */
static void make_tiles(gr_tree_plan* p)
{
    const int32_t group = p->shape.group;
    const int64_t flats = (int64_t)p->n * group;
    int32_t next = 0;
    p->n_tiles = p->list.n = 0;
    for (int64_t first = 0; first < flats; first += p->shape.wide_rows) {
        gr_tile t = {.flat_begin = (int32_t)first,
                     .flat_end = (int32_t)GR_MIN(first + p->shape.wide_rows, flats),
                     .part = -1};
        const int32_t token = t.flat_begin / group, last = (t.flat_end - 1) / group;
        for (; next < p->n_pages && p->page[next].row_begin <= token; next++)
            p->path[page_depth(p, next)] = next;
        int32_t n = 0;
        for (int32_t k = 0; k <= (p->n_keys[token] - 1) / GR_PAGE; k++) insert(p, n++, p->path[k]);
        for (int32_t i = next; i < p->n_pages && p->page[i].row_begin <= last; i++)
            insert(p, n++, i);
        gr_key_list_add(&p->list, &t, p->page, p->sorted, n, p->n_keys, group, GR_STEP_PAGES);
        GR_RESERVE(p->tile, p->cap[4], p->n_tiles + 1);
        p->tile[p->n_tiles++] = t;
    }
}

static int longer_tile(const void* a, const void* b)
{
    const gr_tile *x = a, *y = b;
    if (x->n_pages != y->n_pages) return x->n_pages < y->n_pages ? 1 : -1;
    return (x->flat_begin > y->flat_begin) - (x->flat_begin < y->flat_begin);
}

/* ---- units of keys ------------------------------------------------------------------------------ */

/* Steps of queries that may see keys of [key, key_end). */
static gr_key_unit whole_unit(const gr_tree_plan* p, int32_t key)
{
    const int32_t key_end = GR_MIN(key + GR_KEY_TILE, p->n);
    int64_t end = 0;
    for (int32_t j = key; j < key_end; j++) end = GR_MAX(end, p->subtree_end[j]);
    return (gr_key_unit){key, key_end, (int32_t)((int64_t)key * p->shape.group / GR_QUERY_STEP),
                         (int32_t)((end * p->shape.group + GR_QUERY_STEP - 1) / GR_QUERY_STEP), -1};
}

static int64_t share_of_work(const gr_tree_plan* p)
{
    int64_t total = 0;
    for (int32_t key = 0; key < p->n; key += GR_KEY_TILE) {
        const gr_key_unit u = whole_unit(p, key);
        total += u.step_end - u.step_begin;
    }
    return GR_MAX(total * p->shape.hk / SHARES, 8);
}

static void add_unit(gr_tree_plan* p, gr_key_unit u)
{
    GR_RESERVE(p->unit, p->cap[5], p->n_units + 1);
    p->unit[p->n_units++] = u;
}

static void make_units(gr_tree_plan* p)
{
    const int64_t share = share_of_work(p);
    p->n_units = p->n_sums = p->n_parts = 0;
    for (int32_t key = 0; key < p->n; key += GR_KEY_TILE) {
        const gr_key_unit u = whole_unit(p, key);
        const int64_t steps = u.step_end - u.step_begin, cuts = (steps + share - 1) / share;
        if (cuts <= 1) {
            add_unit(p, u);
            continue;
        }
        GR_RESERVE(p->sum, p->cap[6], p->n_sums + 1);
        p->sum[p->n_sums++] =
            (gr_key_sum){u.key_begin, u.key_end, p->n_parts, p->n_parts + (int32_t)cuts};
        for (int64_t c = 0; c < cuts; c++)
            add_unit(
                p, (gr_key_unit){u.key_begin, u.key_end, u.step_begin + (int32_t)(steps * c / cuts),
                                 u.step_begin + (int32_t)(steps * (c + 1) / cuts), p->n_parts++});
    }
}

static int longer_unit(const void* a, const void* b)
{
    const gr_key_unit *x = a, *y = b;
    const int32_t nx = x->step_end - x->step_begin, ny = y->step_end - y->step_begin;
    if (nx != ny) return nx < ny ? 1 : -1;
    if (x->key_begin != y->key_begin) return x->key_begin > y->key_begin ? 1 : -1;
    return (x->step_begin > y->step_begin) - (x->step_begin < y->step_begin);
}

/* ---- the plan ----------------------------------------------------------------------------------- */

static bool is_same(const gr_tree_plan* p, const int32_t* subtree_end, int32_t n,
                    const gr_tree_shape* s)
{
    return p->n == n && n > 0 && p->shape.group == s->group && p->shape.hk == s->hk &&
           p->shape.wide_rows == s->wide_rows &&
           memcmp(p->subtree_end, subtree_end, (size_t)n * sizeof *subtree_end) == 0;
}

void gr_tree_plan_make(gr_tree_plan* p, const int32_t* subtree_end, int32_t n,
                       const gr_tree_shape* shape)
{
    if (is_same(p, subtree_end, n, shape)) return;
    p->number++;
    p->n = n;
    p->shape = *shape;
    GR_RESERVE(p->subtree_end, p->cap[0], n);
    GR_RESERVE(p->n_keys, p->cap[1], n);
    GR_RESERVE(p->path, p->cap[8], n / GR_PAGE + 1);
    GR_RESERVE(p->run, p->cap[7], (int64_t)n + 1);
    memcpy(p->subtree_end, subtree_end, (size_t)n * sizeof *subtree_end);
    make_pages(p);
    make_tiles(p);
    make_units(p);
    qsort(p->tile, (size_t)p->n_tiles, sizeof *p->tile, longer_tile);
    qsort(p->unit, (size_t)p->n_units, sizeof *p->unit, longer_unit);
}

void gr_tree_plan_arrays(const gr_tree_plan* p, gr_plan_array_fn* f, void* context)
{
    f(context, p->subtree_end, (size_t)p->n * sizeof *p->subtree_end);
    f(context, p->n_keys, (size_t)p->n * sizeof *p->n_keys);
    f(context, p->slot, (size_t)p->n_pages * GR_PAGE * sizeof *p->slot);
    f(context, p->page, (size_t)p->n_pages * sizeof *p->page);
    f(context, p->list.entry, (size_t)p->list.n * sizeof *p->list.entry);
    f(context, p->tile, (size_t)p->n_tiles * sizeof *p->tile);
    f(context, p->unit, (size_t)p->n_units * sizeof *p->unit);
    f(context, p->sum, (size_t)p->n_sums * sizeof *p->sum);
}

/* A page holds a token of its run that no page before it held. A tile lists the path of its
 * first token, filled up at each chunk, and the pages that begin in it. Cut tiles of keys have
 * more than a share of the work, so there are at most two segments for each share. */
gr_tree_bounds gr_tree_plan_bounds(int64_t n, const gr_tree_shape* shape, int max_path)
{
    const int64_t tiles = (n * shape->group + shape->wide_rows - 1) / shape->wide_rows;
    const int64_t path = max_path / GR_PAGE + 2, parts = 2 * SHARES / shape->hk + 1;
    const int64_t fill = (GR_STEP_PAGES - 1) * (path / GR_CHUNK_PAGES + 2);
    const int64_t key_tiles = (n + GR_KEY_TILE - 1) / GR_KEY_TILE;
    return (gr_tree_bounds){
        .bytes = sizeof(int32_t) * (size_t)(2 * n + n * GR_PAGE + tiles * (path + fill) + n) +
                 sizeof(gr_key_page) * (size_t)n + sizeof(gr_tile) * (size_t)tiles +
                 sizeof(gr_key_unit) * (size_t)(key_tiles + parts) +
                 sizeof(gr_key_sum) * (size_t)key_tiles,
        .parts = parts,
    };
}

void gr_tree_plan_free(gr_tree_plan* p)
{
    void* all[] = {p->subtree_end, p->n_keys, p->slot, p->page,   p->list.entry, p->tile,
                   p->unit,        p->sum,    p->path, p->sorted, p->run};
    for (int i = 0; i < GR_COUNT(all); i++) free(all[i]);
    memset(p, 0, sizeof *p);
}
