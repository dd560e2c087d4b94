/* attention_plan.h - what the host plans for the attention kernels: who reads which keys, and
 * where. Level 2. Plain C, so that plans are counted and tested without a GPU.
 *
 * Keys come in pages: GR_PAGE keys at consecutive places of a path, in the KV pool or, for a
 * packed tree, listed by token. A page starts at a multiple of GR_PAGE of the path, so every
 * row meets its keys in the same groups of 16, wherever they are stored.
 *
 * Query rows are flat: row r, head j of the group that shares a KV head is flat row r * group +
 * j. A tile is a run of flat rows against a list of pages, in path order for each of its rows;
 * a kernel works on a tile once per KV head. In the exact rule a row's sums start anew every
 * GR_CHUNK_PAGES pages of its path and these chunks are added in path order; an exact plan may
 * part a row's keys between tiles only there. */
#pragma once
#include "kernels/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    GR_CHUNK_PAGES = 16, /* 256 keys */
    GR_STEP_PAGES = 4,   /* of a wide tile that are worked on at once */
    GR_NARROW_ROWS = 16, /* flat rows of a tile that one warp works on, page by page */
};

typedef struct gr_key_page {
    int32_t page;               /* in the pool; or its row of gr_tree_plan.slot */
    int32_t end_key;            /* path index behind its last key; the first is a multiple of 16 */
    int32_t row_begin, row_end; /* rows that may see it; each sees its keys below n_keys[row] */
} gr_key_page;

static inline int32_t gr_page_first_key(const gr_key_page* p)
{
    return (p->end_key - 1) / GR_PAGE * GR_PAGE;
}

typedef struct gr_tile {
    int32_t flat_begin, flat_end;
    int32_t list_begin, list_end; /* of a wide tile: whole steps, none across two chunks */
    int32_t n_pages;              /* in the list */
    int32_t part;                 /* first row of its partial results; -1: the results are final */
} gr_tile;

/* Lists of pages. An entry is page << GR_ENTRY_SHIFT with two flags, or GR_NO_PAGE, which fills
 * up a step. */
enum {
    GR_NO_PAGE = -1,
    GR_ENTRY_PARTIAL = 1, /* some row of the tile does not see all keys of the page */
    GR_ENTRY_CHUNK = 2,   /* another chunk than the step before */
    GR_ENTRY_SHIFT = 2,
};
typedef struct gr_key_list {
    int32_t* entry;
    int32_t n;
    int64_t cap;
} gr_key_list;

/* Appends sorted[0 .. n), indices into page in path order, as the list of t, whose flat rows
 * are set; in steps of `step` pages. */
void gr_key_list_add(gr_key_list* l, gr_tile* t, const gr_key_page* page, const int32_t* sorted,
                     int32_t n, const int32_t* n_keys, int group, int step);

/* ---- pages of the pool -------------------------------------------------------------------------- */

typedef struct gr_pool_shape {
    int group, hk;
    int wide_rows;     /* most flat rows of a tile */
    bool exact;        /* rows have the same bits in any plan */
    int blocks, warps; /* resident blocks; warps of one that take narrow tiles */
    int64_t max_parts; /* room for partial results, in flat rows */
    size_t max_bytes;  /* and for what a plan uploads */
} gr_pool_shape;

typedef struct gr_pool_plan {
    gr_key_page*
        page; /* by depth, then rows: a page of the pool once per run of rows that see it */
    gr_key_list list;
    gr_tile* tile; /* wide ones first, each kind in falling cost */
    /* Partial results of flat row i, in path order: merge[merge_begin[i]] ...; none: it is
     * final. */
    int32_t *merge_begin, *merge;
    /* What each slot does: item[work_begin[s]] ..., an item being tile * hk + KV head. The
     * blocks' slots for wide tiles come first, then `warps` per block for narrow ones. */
    int32_t *work_begin, *item;
    int32_t n_pages, n_tiles, n_wide, n_parts, n_merge, n_flat, n_slots;
    uint64_t number;        /* of plans that were made; another number, other arrays */
    int64_t makespan, work; /* the most of a slot; of all. In fifths of the time to read a page */
    struct gr_pool_planner* planner; /* its own tables */
    int64_t cap[7];
} gr_pool_plan;

/* Plans tasks from `first` on, as many as have room; returns the first that is left. In an
 * exact plan paths are cut at chunks or not at all, whichever ends sooner. */
int gr_pool_plan_make(gr_pool_plan* p, const gr_page_plan* pages, int first,
                      const gr_pool_shape* shape);
/* Calls f(context, array, bytes) for each array that the device reads, in the order of the
 * fields. */
typedef void gr_plan_array_fn(void* context, const void* array, size_t bytes);
void gr_pool_plan_arrays(const gr_pool_plan* p, gr_plan_array_fn* f, void* context);
void gr_pool_plan_free(gr_pool_plan* p);

/* ---- packed trees ------------------------------------------------------------------------------- */

enum {
    GR_KEY_TILE = 64,   /* keys of a block in the backward of keys and values */
    GR_QUERY_STEP = 32, /* flat rows it takes at once */
};

/* Keys [key_begin, key_end) against GR_QUERY_STEPs [step_begin, step_end) of flat query rows. */
typedef struct gr_key_unit {
    int32_t key_begin, key_end, step_begin, step_end;
    int32_t part; /* its number among the partial results; -1: the results are final */
} gr_key_unit;
/* Key tile whose queries were cut: its sums are those of parts [part_begin, part_end), in
 * order. */
typedef struct gr_key_sum {
    int32_t key_begin, key_end, part_begin, part_end;
} gr_key_sum;

typedef struct gr_tree_shape {
    int group, hk;
    int wide_rows; /* most flat rows of a tile */
} gr_tree_shape;

typedef struct gr_tree_plan {
    int32_t n;
    gr_tree_shape shape;
    int32_t* subtree_end; /* (n) copy of the input: layers of one forward ask for the same plan */
    int32_t* n_keys;      /* (n) keys a token sees, itself included */
    int32_t* slot;        /* (n_pages, GR_PAGE) token of each key; -1 behind the last */
    gr_key_page* page;
    gr_key_list list;
    gr_tile* tile;     /* all wide and final, longest first */
    gr_key_unit* unit; /* of the backward, longest first */
    gr_key_sum* sum;
    int32_t n_pages, n_tiles, n_units, n_sums, n_parts;
    uint64_t number;        /* of plans that were made; another number, other arrays */
    int32_t *path, *sorted; /* scratch of the planner */
    struct gr_tree_run* run;
    int64_t cap[10];
} gr_tree_plan;

void gr_tree_plan_make(gr_tree_plan* p, const int32_t* subtree_end, int32_t n,
                       const gr_tree_shape* shape);
void gr_tree_plan_arrays(const gr_tree_plan* p, gr_plan_array_fn* f, void* context);
void gr_tree_plan_free(gr_tree_plan* p);

/* The most that any tree of these sizes needs. */
typedef struct gr_tree_bounds {
    size_t bytes; /* of its arrays, before they are aligned */
    int64_t parts;
} gr_tree_bounds;
gr_tree_bounds gr_tree_plan_bounds(int64_t n, const gr_tree_shape* shape, int max_path);

#ifdef __cplusplus
}
#endif
