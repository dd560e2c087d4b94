/* pool_plan.c - tiles and slots for attention over the pages of the pool (attention_plan.h).
 *
 * Pages and the runs of rows that see them form a forest: a page's children are the pages that
 * follow it on some row's path. Cut into chunks, a subtree of the forest is either one tile, so
 * that each of its pages is read once, or, where paths part, a tile for each branch, which
 * reads the pages above again. Working upwards from the leaves, the cheaper one is chosen by
 * the work of a slot: the time to read a page, or to multiply it with the rows, the partial
 * results, and the start of a tile.
 *
 * Where rows need not have the same bits in any plan, the pages above a fork are a tile of
 * their own and nothing is read twice. */
#include "kernels/cuda/attention_plan.h"

#include "host/arena.h"

#include <stdlib.h>
#include <string.h>

/* Costs in fifths of the time to read a page of one KV head. Its product with 16 flat rows
 * takes a fifth of that on GPUs with 5 x 16 x 2 multiply-adds per byte of memory traffic. */
enum {
    READ_PAGE = 5,
    MULTIPLY = 1,   /* a page with GR_NARROW_ROWS flat rows */
    WRITE_PART = 5, /* and read again, of GR_NARROW_ROWS flat rows */
    START_TILE = 15,
};
enum { UNCUT = INT32_MAX }; /* as pages of a chunk */

typedef struct node {
    int32_t parent, child_begin, child_end;
    int32_t below;   /* pages of its subtree inside the chunk, itself included */
    int32_t segment; /* pages from here on that the same rows see, */
    int32_t last;    /* and the last of them; only where nothing is read twice */
    bool split;      /* a tile per branch */
    int64_t cost;    /* of the better choice */
} node;

typedef struct slot_load {
    int64_t load;
    int32_t slot;
} slot_load;

/* What the plan was made from, copied: the layers of a batch ask for the same one. */
typedef struct request {
    gr_pool_shape shape;
    int first, end, n_rows, n_units, n_tasks;
    int32_t *row, *n_keys;
    gr_page_unit* unit;
    gr_page_task* task;
    int64_t cap[4];
} request;

typedef struct gr_pool_planner {
    request made;
    const gr_page_plan* in;
    gr_pool_shape shape;
    int32_t chunk;        /* pages of a chunk, or UNCUT */
    int32_t longest;      /* pages of a tile where nothing is read twice */
    int32_t* depth_begin; /* first page of each depth; one more behind the last */
    int32_t n_depths;
    node* node; /* (n_pages) */
    int32_t *sorted, *fill, *of_item;
    slot_load* heap;                /* blocks by work */
    int64_t *wide_load, *warp_load; /* (blocks) of wide tiles; (blocks, warps) of narrow ones */
    int64_t cap[8];
} planner;

/* ---- pages -------------------------------------------------------------------------------------- */

/* Units by depth, rows ascending; neighbours on one page become one. */
static void gather_pages(gr_pool_plan* p, planner* b)
{
    const gr_page_plan* in = b->in;
    b->n_depths = 0;
    for (int i = 0; i < in->n_units; i++)
        b->n_depths = GR_MAX(b->n_depths, in->unit[i].first_key / GR_PAGE + 1);
    GR_RESERVE(b->depth_begin, b->cap[0], b->n_depths + 1);
    GR_RESERVE(b->fill, b->cap[1], GR_MAX(b->n_depths, (int)in->n_rows * b->shape.group) + 1);
    GR_RESERVE(p->page, p->cap[0], in->n_units + 1);
    memset(b->depth_begin, 0, ((size_t)b->n_depths + 1) * sizeof *b->depth_begin);
    for (int i = 0; i < in->n_units; i++) b->depth_begin[in->unit[i].first_key / GR_PAGE + 1]++;
    for (int k = 0; k < b->n_depths; k++) b->depth_begin[k + 1] += b->depth_begin[k];
    memcpy(b->fill, b->depth_begin, (size_t)b->n_depths * sizeof *b->fill);
    for (int i = 0; i < in->n_units; i++) {
        const gr_page_unit* u = &in->unit[i];
        const int32_t k = u->first_key / GR_PAGE, at = b->fill[k];
        gr_key_page* last = at > b->depth_begin[k] ? &p->page[at - 1] : NULL;
        if (last != NULL && last->page == u->page && last->row_end == u->row_begin) {
            last->row_end = u->row_end;
            continue;
        }
        p->page[b->fill[k]++] =
            (gr_key_page){u->page, u->first_key + GR_PAGE, u->row_begin, u->row_end};
    }
    p->n_pages = 0;
    for (int k = 0; k < b->n_depths; k++) { /* closes the gaps that merging left */
        const int32_t from = b->depth_begin[k], n = b->fill[k] - from;
        memmove(p->page + p->n_pages, p->page + from, (size_t)n * sizeof *p->page);
        b->depth_begin[k] = p->n_pages;
        p->n_pages += n;
    }
    b->depth_begin[b->n_depths] = p->n_pages;
}

/* Links each page with those that follow it; the last of a path may be partly filled. */
static void link_pages(gr_pool_plan* p, planner* b)
{
    GR_RESERVE(b->node, b->cap[2], p->n_pages + 1);
    for (int k = 0; k < b->n_depths; k++) {
        const bool deepest = k + 1 == b->n_depths;
        int32_t child = b->depth_begin[k + 1];
        const int32_t last = deepest ? child : b->depth_begin[k + 2];
        for (int32_t i = b->depth_begin[k]; i < b->depth_begin[k + 1]; i++) {
            gr_key_page* page = &p->page[i];
            node* x = &b->node[i];
            if (k == 0) x->parent = -1;
            x->child_begin = child;
            for (; child < last && p->page[child].row_begin < page->row_end; child++) {
                GR_ASSERT(p->page[child].row_end <= page->row_end, "pages do not form a forest");
                b->node[child].parent = i;
            }
            x->child_end = child;
            int32_t most = 0;
            for (int32_t r = page->row_begin; r < page->row_end && x->child_end == x->child_begin;
                 r++)
                most = GR_MAX(most, b->in->n_keys[r]);
            if (most > 0) page->end_key = GR_MIN(page->end_key, most);
        }
    }
}

/* ---- choice of tiles ---------------------------------------------------------------------------- */

static int64_t tile_cost(const planner* b, int64_t pages, int64_t flat)
{
    const int64_t tiles = (flat + b->shape.wide_rows - 1) / b->shape.wide_rows;
    const int64_t rows = (flat + GR_NARROW_ROWS - 1) / GR_NARROW_ROWS;
    const int64_t parts = b->chunk == UNCUT && b->shape.exact ? 0 : WRITE_PART * rows;
    return GR_MAX(READ_PAGE * pages * tiles, MULTIPLY * pages * rows) + parts + START_TILE * tiles;
}

static int64_t flat_rows(const planner* b, int32_t rows) { return (int64_t)rows * b->shape.group; }

static bool ends_chunk(const planner* b, int depth)
{
    return b->chunk != UNCUT && (depth + 1) % b->chunk == 0;
}
static int32_t depth_in_chunk(const planner* b, int depth)
{
    return b->chunk == UNCUT ? depth : depth % b->chunk;
}

static int32_t rows_of(const gr_pool_plan* p, int32_t i)
{
    return p->page[i].row_end - p->page[i].row_begin;
}

/* The page that follows i for all its rows, or -1. */
static int32_t only_child(const gr_pool_plan* p, const planner* b, int32_t i)
{
    const node* x = &b->node[i];
    const bool same =
        x->child_end == x->child_begin + 1 && rows_of(p, x->child_begin) == rows_of(p, i);
    return same ? x->child_begin : -1;
}

/* Tiles for each branch below page i, and for the rows whose path ends in it. */
static int64_t branches_cost(const gr_pool_plan* p, const planner* b, int32_t i, int depth)
{
    const node* x = &b->node[i];
    int32_t ended = rows_of(p, i);
    int64_t cost = 0;
    for (int32_t c = x->child_begin; c < x->child_end; c++) {
        cost += b->node[c].cost;
        ended -= rows_of(p, c);
    }
    if (ended > 0) cost += tile_cost(b, depth_in_chunk(b, depth) + 1, flat_rows(b, ended));
    return cost;
}

static void choose_exact(const gr_pool_plan* p, planner* b, int32_t i, int depth)
{
    node* x = &b->node[i];
    const bool leaf = x->child_begin == x->child_end || ends_chunk(b, depth);
    x->below = 1;
    for (int32_t c = x->child_begin; c < x->child_end && !leaf; c++) x->below += b->node[c].below;
    x->cost = tile_cost(b, depth_in_chunk(b, depth) + x->below, flat_rows(b, rows_of(p, i)));
    x->split = false;
    if (leaf) return;
    const int64_t branches =
        only_child(p, b, i) >= 0 ? b->node[x->child_begin].cost : branches_cost(p, b, i, depth);
    if (branches > x->cost) return;
    x->cost = branches;
    x->split = true;
}

static int64_t segment_cost(const planner* b, int32_t pages, int64_t flat)
{
    const int32_t cuts = (pages + b->longest - 1) / b->longest;
    return cuts * tile_cost(b, (pages + cuts - 1) / cuts, flat);
}

static void choose_fast(const gr_pool_plan* p, planner* b, int32_t i)
{
    node* x = &b->node[i];
    const int64_t flat = flat_rows(b, rows_of(p, i));
    const int32_t next = only_child(p, b, i);
    x->below = 1;
    for (int32_t c = x->child_begin; c < x->child_end; c++) x->below += b->node[c].below;
    x->segment = next >= 0 ? b->node[next].segment + 1 : 1;
    x->last = next >= 0 ? b->node[next].last : i;
    x->cost = segment_cost(b, x->segment, flat);
    for (int32_t c = b->node[x->last].child_begin; c < b->node[x->last].child_end; c++)
        x->cost += b->node[c].cost;
    x->split = true;
    if (x->below > b->longest || x->below == x->segment) return;
    const int64_t together = tile_cost(b, x->below, flat);
    if (together > x->cost) return;
    x->cost = together;
    x->split = false;
}

static void choose_tiles(const gr_pool_plan* p, planner* b)
{
    for (int k = b->n_depths - 1; k >= 0; k--)
        for (int32_t i = b->depth_begin[k]; i < b->depth_begin[k + 1]; i++)
            if (b->shape.exact)
                choose_exact(p, b, i, k);
            else
                choose_fast(p, b, i);
}

/* ---- tiles -------------------------------------------------------------------------------------- */

/* Rows [begin, end) against the `above` pages that lead to page i, page i, `chain` pages that
 * follow it alone, and, with `all`, the pages of its subtree inside the chunk. */
typedef struct cut {
    int32_t i, depth, row_begin, row_end, above, chain;
    bool all;
} cut;

static int32_t sort_pages(const gr_pool_plan* p, planner* b, const cut* c, const gr_tile* t)
{
    const int32_t row_begin = t->flat_begin / b->shape.group;
    const int32_t row_end = (t->flat_end - 1) / b->shape.group + 1;
    GR_RESERVE(b->sorted, b->cap[3], p->n_pages + 1);
    int32_t n = c->above, at = c->i;
    for (int32_t k = c->above; k >= 0; k--, at = b->node[at].parent) b->sorted[k] = at;
    n++;
    at = c->i;
    for (int32_t k = 0; k < c->chain; k++) b->sorted[n++] = at = b->node[at].child_begin;
    int32_t from = b->node[c->i].child_begin, to = b->node[c->i].child_end;
    for (int depth = c->depth; c->all && from < to && !ends_chunk(b, depth); depth++) {
        for (int32_t k = from; k < to; k++)
            if (p->page[k].row_begin < row_end && p->page[k].row_end > row_begin)
                b->sorted[n++] = k;
        to = b->node[to - 1].child_end;
        from = b->node[from].child_begin;
    }
    return n;
}

static void add_tiles(gr_pool_plan* p, planner* b, const cut* c)
{
    const int32_t end = c->row_end * b->shape.group;
    for (int32_t flat = c->row_begin * b->shape.group; flat < end; flat += b->shape.wide_rows) {
        gr_tile t = {.flat_begin = flat, .flat_end = GR_MIN(flat + b->shape.wide_rows, end)};
        const bool wide = t.flat_end - t.flat_begin > GR_NARROW_ROWS;
        const int32_t n = sort_pages(p, b, c, &t);
        gr_key_list_add(&p->list, &t, p->page, b->sorted, n, b->in->n_keys, b->shape.group,
                        wide ? GR_STEP_PAGES : 1);
        GR_RESERVE(p->tile, p->cap[1], p->n_tiles + 1);
        p->tile[p->n_tiles++] = t;
    }
}

static void emit_exact(gr_pool_plan* p, planner* b, int32_t i, int depth)
{
    for (int32_t next; b->node[i].split && (next = only_child(p, b, i)) >= 0; depth++) i = next;
    const node* x = &b->node[i];
    cut c = {.i = i, .depth = depth, .above = depth_in_chunk(b, depth), .all = !x->split};
    c.row_begin = p->page[i].row_begin;
    if (x->split) { /* rows between the branches end here */
        for (int32_t k = x->child_begin; k < x->child_end; k++) {
            c.row_end = p->page[k].row_begin;
            add_tiles(p, b, &c);
            emit_exact(p, b, k, depth + 1);
            c.row_begin = p->page[k].row_end;
        }
    }
    c.row_end = p->page[i].row_end;
    add_tiles(p, b, &c);
}

static void emit_fast(gr_pool_plan* p, planner* b, int32_t i, int depth)
{
    const node* x = &b->node[i];
    cut c = {.i = i, .depth = depth, .all = !x->split};
    c.row_begin = p->page[i].row_begin;
    c.row_end = p->page[i].row_end;
    if (!x->split) {
        add_tiles(p, b, &c);
        return;
    }
    const int32_t pages = x->segment, cuts = (pages + b->longest - 1) / b->longest;
    for (int32_t k = 0; k < cuts; k++) {
        const int32_t from = (int32_t)((int64_t)pages * k / cuts);
        c.chain = (int32_t)((int64_t)pages * (k + 1) / cuts) - from - 1;
        add_tiles(p, b, &c);
        for (int32_t s = 0; s < c.chain; s++) c.i = b->node[c.i].child_begin;
        if (k + 1 < cuts) c.i = b->node[c.i].child_begin;
    }
    x = &b->node[c.i];
    for (int32_t k = x->child_begin; k < x->child_end; k++) emit_fast(p, b, k, depth + pages);
}

static void make_tiles(gr_pool_plan* p, planner* b)
{
    p->n_tiles = p->list.n = 0;
    const int step = b->shape.exact && b->chunk != UNCUT ? b->chunk : b->n_depths;
    for (int k = 0; k < b->n_depths; k += step)
        for (int32_t i = b->depth_begin[k]; i < b->depth_begin[k + 1]; i++)
            if (b->shape.exact)
                emit_exact(p, b, i, k);
            else
                emit_fast(p, b, i, k);
}

/* ---- partial results ---------------------------------------------------------------------------- */

/* A row with one tile gets its result from it; others merge their parts in the order of the
 * tiles. */
static void make_parts(gr_pool_plan* p, planner* b)
{
    p->n_flat = b->in->n_rows * b->shape.group;
    GR_RESERVE(p->merge_begin, p->cap[2], p->n_flat + 1);
    memset(p->merge_begin, 0, ((size_t)p->n_flat + 1) * sizeof *p->merge_begin);
    for (int32_t i = 0; i < p->n_tiles; i++)
        for (int32_t r = p->tile[i].flat_begin; r < p->tile[i].flat_end; r++)
            p->merge_begin[r + 1]++;
    p->n_parts = 0;
    for (int32_t i = 0; i < p->n_tiles; i++) {
        gr_tile* t = &p->tile[i];
        t->part = -1;
        for (int32_t r = t->flat_begin; r < t->flat_end; r++)
            if (p->merge_begin[r + 1] > 1) t->part = p->n_parts;
        if (t->part >= 0) p->n_parts += t->flat_end - t->flat_begin;
        for (int32_t r = t->flat_begin; r < t->flat_end && t->part < 0; r++)
            p->merge_begin[r + 1] = 0;
    }
    for (int32_t r = 0; r < p->n_flat; r++) p->merge_begin[r + 1] += p->merge_begin[r];
    p->n_merge = p->merge_begin[p->n_flat];
    GR_RESERVE(p->merge, p->cap[3], p->n_merge + 1);
    memcpy(b->fill, p->merge_begin, (size_t)p->n_flat * sizeof *b->fill);
    for (int32_t i = 0; i < p->n_tiles; i++) {
        const gr_tile* t = &p->tile[i];
        for (int32_t r = t->flat_begin; r < t->flat_end && t->part >= 0; r++)
            p->merge[b->fill[r]++] = t->part + r - t->flat_begin;
    }
}

/* ---- slots -------------------------------------------------------------------------------------- */

static bool is_wide(const gr_tile* t) { return t->flat_end - t->flat_begin > GR_NARROW_ROWS; }

static int64_t work_of(const gr_tile* t)
{
    const int64_t rows = (t->flat_end - t->flat_begin + GR_NARROW_ROWS - 1) / GR_NARROW_ROWS;
    return GR_MAX(READ_PAGE, MULTIPLY * rows) * t->n_pages +
           (t->part >= 0 ? WRITE_PART * rows : 0) + START_TILE;
}

static int by_work(const void* a, const void* b)
{
    const gr_tile *x = a, *y = b;
    if (is_wide(x) != is_wide(y)) return is_wide(x) ? -1 : 1;
    if (work_of(x) != work_of(y)) return work_of(x) < work_of(y) ? 1 : -1;
    if (x->flat_begin != y->flat_begin) return x->flat_begin < y->flat_begin ? -1 : 1;
    return x->list_begin < y->list_begin ? -1 : x->list_begin > y->list_begin;
}

static bool is_less(slot_load a, slot_load b)
{
    return a.load != b.load ? a.load < b.load : a.slot < b.slot;
}

/* The least loaded slot takes `work` more; returns it. */
static int32_t give(slot_load* heap, int32_t n, int64_t work)
{
    slot_load x = heap[0];
    const int32_t slot = x.slot;
    x.load += work;
    int32_t at = 0;
    for (int32_t child = 1; child < n; child = 2 * at + 1) {
        if (child + 1 < n && is_less(heap[child + 1], heap[child])) child++;
        if (!is_less(heap[child], x)) break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = x;
    return slot;
}

/* The warp of a block that has least to do. */
static int32_t idle_warp(const int64_t* load, int32_t warps)
{
    int32_t least = 0;
    for (int32_t w = 1; w < warps; w++)
        if (load[w] < load[least]) least = w;
    return least;
}

/* When the last block ends: it has read all, and the warp with most to do, which alone reaches
 * three quarters of the block's way to memory, is through. */
static int64_t last_end(const planner* b)
{
    int64_t end = 0;
    for (int32_t i = 0; i < b->shape.blocks; i++) {
        const int64_t* load = b->warp_load + (int64_t)b->heap[i].slot * b->shape.warps;
        end = GR_MAX(end, b->heap[i].load);
        for (int32_t w = 0; w < b->shape.warps; w++)
            end = GR_MAX(end, b->wide_load[b->heap[i].slot] + load[w] * 4 / 3);
    }
    return end;
}

/* The items of each slot, in falling work. */
static void list_items(gr_pool_plan* p, const planner* b, int32_t items)
{
    GR_RESERVE(p->work_begin, p->cap[4], p->n_slots + 1);
    GR_RESERVE(p->item, p->cap[5], items + 1);
    memset(p->work_begin, 0, ((size_t)p->n_slots + 1) * sizeof *p->work_begin);
    for (int32_t i = 0; i < items; i++) p->work_begin[b->of_item[i] + 1]++;
    for (int32_t s = 0; s < p->n_slots; s++) p->work_begin[s + 1] += p->work_begin[s];
    for (int32_t i = items - 1; i >= 0; i--) p->item[--p->work_begin[b->of_item[i] + 1]] = i;
    for (int32_t s = 0; s < p->n_slots; s++) p->work_begin[s] = p->work_begin[s + 1];
    p->work_begin[p->n_slots] = items;
}

/* Wide tiles first, each kind longest first, once per KV head, to the least loaded block; of a
 * narrow one then its least loaded warp takes it. */
static void make_slots(gr_pool_plan* p, planner* b)
{
    const int32_t blocks = b->shape.blocks, warps = b->shape.warps, hk = b->shape.hk;
    p->n_slots = blocks * (1 + warps);
    qsort(p->tile, (size_t)p->n_tiles, sizeof *p->tile, by_work);
    p->n_wide = 0;
    while (p->n_wide < p->n_tiles && is_wide(&p->tile[p->n_wide])) p->n_wide++;
    const int32_t items = p->n_tiles * hk;
    GR_RESERVE(b->of_item, b->cap[4], items + 1);
    GR_RESERVE(b->heap, b->cap[5], blocks);
    GR_RESERVE(b->wide_load, b->cap[6], blocks);
    GR_RESERVE(b->warp_load, b->cap[7], (int64_t)blocks * warps);
    memset(b->wide_load, 0, (size_t)blocks * sizeof *b->wide_load);
    memset(b->warp_load, 0, (size_t)blocks * (size_t)warps * sizeof *b->warp_load);
    for (int32_t s = 0; s < blocks; s++) b->heap[s] = (slot_load){0, s};
    p->work = 0;
    for (int32_t i = 0; i < items; i++) {
        const int64_t work = work_of(&p->tile[i / hk]);
        const int32_t block = give(b->heap, blocks, work);
        p->work += work;
        b->of_item[i] = block;
        if (i / hk < p->n_wide) {
            b->wide_load[block] += work;
            continue;
        }
        int64_t* load = b->warp_load + (int64_t)block * warps;
        const int32_t w = idle_warp(load, warps);
        load[w] += work;
        b->of_item[i] = blocks + block * warps + w;
    }
    p->makespan = last_end(b);
    list_items(p, b, items);
}

/* ---- the plan ----------------------------------------------------------------------------------- */

static void plan_cut(gr_pool_plan* p, planner* b, int32_t chunk)
{
    b->chunk = chunk;
    choose_tiles(p, b);
    make_tiles(p, b);
    make_parts(p, b);
    make_slots(p, b);
}

static void plan_all(gr_pool_plan* p, const gr_page_plan* pages, const gr_pool_shape* shape)
{
    planner* b = p->planner;
    b->in = pages;
    b->shape = *shape;
    gather_pages(p, b);
    link_pages(p, b);
    /* Where nothing is read twice: two tiles for each block, but none shorter than half a
     * chunk. */
    const int64_t even = (int64_t)p->n_pages * shape->hk / (2 * shape->blocks);
    b->longest = (int32_t)GR_MAX(even, GR_CHUNK_PAGES / 2);
    if (!shape->exact) {
        plan_cut(p, b, UNCUT);
        if (p->n_parts <= shape->max_parts) return;
    }
    b->shape.exact = true;
    plan_cut(p, b, UNCUT);
    const int64_t uncut = p->makespan;
    plan_cut(p, b, GR_CHUNK_PAGES);
    if (p->n_parts > shape->max_parts || p->makespan > uncut) plan_cut(p, b, UNCUT);
}

void gr_pool_plan_arrays(const gr_pool_plan* p, gr_plan_array_fn* f, void* context)
{
    f(context, p->page, (size_t)p->n_pages * sizeof *p->page);
    f(context, p->list.entry, (size_t)p->list.n * sizeof *p->list.entry);
    f(context, p->tile, (size_t)p->n_tiles * sizeof *p->tile);
    f(context, p->merge_begin, ((size_t)p->n_flat + 1) * sizeof *p->merge_begin);
    f(context, p->merge, (size_t)p->n_merge * sizeof *p->merge);
    f(context, p->work_begin, ((size_t)p->n_slots + 1) * sizeof *p->work_begin);
    f(context, p->item, (size_t)p->work_begin[p->n_slots] * sizeof *p->item);
}

static bool is_same_shape(const gr_pool_shape* a, const gr_pool_shape* b)
{
    return a->group == b->group && a->hk == b->hk && a->wide_rows == b->wide_rows &&
           a->exact == b->exact && a->blocks == b->blocks && a->warps == b->warps &&
           a->max_parts == b->max_parts && a->max_bytes == b->max_bytes;
}

#define SAME(a, b, n) (memcmp((a), (b), (size_t)(n) * sizeof *(a)) == 0)
static bool is_made(const request* r, const gr_page_plan* in, int first, const gr_pool_shape* s)
{
    return r->end > 0 && r->first == first && is_same_shape(&r->shape, s) &&
           r->n_rows == in->n_rows && r->n_units == in->n_units && r->n_tasks == in->n_tasks &&
           SAME(r->row, in->row, r->n_rows) && SAME(r->n_keys, in->n_keys, r->n_rows) &&
           SAME(r->unit, in->unit, r->n_units) && SAME(r->task, in->task, r->n_tasks);
}

static int note_made(request* r, const gr_page_plan* in, int first, int end, const gr_pool_shape* s)
{
    GR_RESERVE(r->row, r->cap[0], in->n_rows);
    GR_RESERVE(r->n_keys, r->cap[1], in->n_rows);
    GR_RESERVE(r->unit, r->cap[2], in->n_units);
    GR_RESERVE(r->task, r->cap[3], in->n_tasks);
    memcpy(r->row, in->row, (size_t)in->n_rows * sizeof *r->row);
    memcpy(r->n_keys, in->n_keys, (size_t)in->n_rows * sizeof *r->n_keys);
    memcpy(r->unit, in->unit, (size_t)in->n_units * sizeof *r->unit);
    memcpy(r->task, in->task, (size_t)in->n_tasks * sizeof *r->task);
    r->n_rows = in->n_rows, r->n_units = in->n_units, r->n_tasks = in->n_tasks;
    r->shape = *s;
    r->first = first;
    return r->end = end;
}

static void add_bytes(void* sum, const void* array, size_t bytes)
{
    (void)array;
    *(size_t*)sum += bytes;
}

int gr_pool_plan_make(gr_pool_plan* p, const gr_page_plan* pages, int first,
                      const gr_pool_shape* shape)
{
    GR_RESERVE(p->planner, p->cap[6], 1);
    request* made = &p->planner->made;
    if (is_made(made, pages, first, shape)) return made->end;
    p->number++;
    for (int end = pages->n_tasks;; end = first + (end - first) / 2) {
        gr_page_plan some = *pages;
        some.unit += pages->task[first].unit_begin;
        some.n_units = pages->task[end - 1].unit_end - pages->task[first].unit_begin;
        plan_all(p, &some, shape);
        size_t bytes = 0;
        gr_pool_plan_arrays(p, add_bytes, &bytes);
        if (end == first + 1 || bytes <= shape->max_bytes)
            return note_made(made, pages, first, end, shape);
    }
}

void gr_pool_plan_free(gr_pool_plan* p)
{
    if (p->planner != NULL) {
        const planner* b = p->planner;
        void* own[] = {b->depth_begin, b->node,        b->sorted,    b->fill,
                       b->of_item,     b->heap,        b->wide_load, b->warp_load,
                       b->made.row,    b->made.n_keys, b->made.unit, b->made.task};
        for (int i = 0; i < GR_COUNT(own); i++) free(own[i]);
    }
    void* all[] = {p->page,  p->list.entry, p->tile, p->merge_begin,
                   p->merge, p->work_begin, p->item, p->planner};
    for (int i = 0; i < GR_COUNT(all); i++) free(all[i]);
    memset(p, 0, sizeof *p);
}
