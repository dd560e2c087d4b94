/* trees.h - the trees whose attention is counted: batches of leaves that decode behind shared
 * prefixes, and one packed for training. Lengths are drawn, the same in every run.
 *
 * A batch is built in a page pool as sampling builds it: a fork shares pages, and the first
 * append to a shared partial page takes a copy. */
#pragma once
#include "kernels/cuda/attention_plan.h"
#include "model/kv.h"

#include <stdlib.h>
#include <string.h>

/* Lengths of a tree's levels, from least to most, and how many children a node of the level
 * has. */
typedef struct tree_level {
    int least, most, children;
} tree_level;
typedef struct tree_case {
    const char* name;
    int trees;
    tree_level level[4]; /* up to the first without children */
} tree_case;

static const tree_case tree_cases[] = {
    {"8 prompts x 8 answers", 8, {{600, 1400, 8}, {50, 1500, 0}}},
    {"agent, 64 leaves", 1, {{2000, 2000, 4}, {400, 1200, 4}, {300, 900, 4}, {20, 600, 0}}},
    {"4 agents, 256 leaves", 4, {{1500, 2500, 4}, {400, 1200, 4}, {300, 900, 4}, {20, 600, 0}}},
    {"16K prefix x 8", 1, {{16000, 16000, 8}, {50, 1500, 0}}},
    {"64 sequences of 4K", 64, {{3000, 5000, 0}}},
    {"one sequence of 8K", 1, {{8000, 8000, 0}}},
};

/* The agent tree in training: 32K tokens in depth-first order. */
static const tree_case training_case = {
    "agent, packed", 1, {{1950, 1950, 4}, {500, 1000, 4}, {300, 800, 4}, {20, 600, 0}}};

typedef struct lengths {
    uint64_t at;
} lengths;
static inline int draw_length(lengths* x, const tree_level* l)
{
    return l->least + (int)(gr_uniform(1, x->at++) * (l->most - l->least + 1));
}

/* ---- a decoding batch --------------------------------------------------------------------------- */

enum { TREE_PAGES = 24000, TREE_SEQS = 600, TREE_CONTEXT = 20000, TREE_ROWS = 512 };

typedef struct tree_batch {
    gr_kv kv;
    gr_kv_plan plan;
    gr_arena arena;
    int32_t seq[TREE_ROWS], n_keys[TREE_ROWS];
    int n_rows;
    int64_t unique, flat; /* tokens of the trees; of the leaves' paths */
} tree_batch;

static inline void tree_batch_layout(tree_batch* b)
{
    gr_kv_layout(&b->kv, TREE_PAGES, TREE_SEQS, TREE_CONTEXT, &b->arena);
    gr_kv_plan_layout(&b->plan, &b->kv, TREE_ROWS, &b->arena);
}

static inline tree_batch* tree_batch_open(void)
{
    tree_batch* b = calloc(1, sizeof *b);
    GR_ASSERT(b != NULL);
    tree_batch_layout(b);
    b->arena.cap = b->arena.used;
    b->arena.base = malloc(b->arena.cap);
    GR_ASSERT(b->arena.base != NULL);
    b->arena.used = 0;
    tree_batch_layout(b);
    return b;
}

static inline void tree_batch_close(tree_batch* b)
{
    free(b->arena.base);
    free(b);
}

static inline void tree_append(tree_batch* b, int seq, int n)
{
    static int32_t slot[TREE_CONTEXT];
    GR_ASSERT(gr_kv_append(&b->kv, seq, n, slot), "out of pages");
    b->kv.n_pairs = 0; /* no device copies them here */
    b->unique += n;
}

/* The node `seq` ends in, and all below it; a leaf becomes a row. */
static inline void tree_grow(tree_batch* b, const tree_level* l, int seq, lengths* x)
{
    tree_append(b, seq, draw_length(x, l));
    if (l->children == 0) {
        GR_ASSERT(b->n_rows < TREE_ROWS);
        b->seq[b->n_rows] = seq;
        b->n_keys[b->n_rows++] = gr_kv_len(&b->kv, seq);
        b->flat += gr_kv_len(&b->kv, seq);
        return;
    }
    for (int i = 0; i < l->children; i++) {
        const int child = gr_kv_fork(&b->kv, seq, gr_kv_len(&b->kv, seq));
        GR_ASSERT(child >= 0, "out of sequences");
        tree_grow(b, l + 1, child, x);
    }
}

/* Every leaf decodes one token. */
static inline tree_batch* tree_batch_of(const tree_case* c)
{
    tree_batch* b = tree_batch_open();
    lengths x = {0};
    for (int i = 0; i < c->trees; i++) tree_grow(b, c->level, gr_kv_open(&b->kv), &x);
    gr_kv_plan_make(&b->plan, &b->kv, b->seq, b->n_keys, b->n_rows);
    return b;
}

/* Keys that the tiles of a plan read, of one KV head. */
static inline int64_t keys_read(const gr_pool_plan* p)
{
    int64_t keys = 0;
    for (int32_t i = 0; i < p->list.n; i++) {
        if (p->list.entry[i] < 0) continue;
        const gr_key_page* page = &p->page[p->list.entry[i] >> GR_ENTRY_SHIFT];
        keys += page->end_key - gr_page_first_key(page);
    }
    return keys;
}

/* ---- a packed tree ------------------------------------------------------------------------------ */

typedef struct packed_tree {
    int32_t* subtree_end;
    int32_t n, max_path;
} packed_tree;

static inline void pack_node(packed_tree* t, const tree_level* l, int32_t before, lengths* x)
{
    const int32_t first = t->n, length = draw_length(x, l);
    t->n += length;
    t->max_path = GR_MAX(t->max_path, before + length);
    for (int i = 0; i < l->children; i++) pack_node(t, l + 1, before + length, x);
    for (int32_t i = first; i < first + length; i++) t->subtree_end[i] = t->n;
}

static inline packed_tree packed_tree_of(const tree_case* c)
{
    packed_tree t = {.subtree_end = malloc((size_t)1 << 20)};
    lengths x = {0};
    GR_ASSERT(t.subtree_end != NULL);
    for (int i = 0; i < c->trees; i++) pack_node(&t, c->level, 0, &x);
    return t;
}

/* Query-key pairs of one KV head: needed; multiplied by whole steps of the tiles. */
static inline int64_t pairs_needed(const gr_tree_plan* p)
{
    int64_t pairs = 0;
    for (int32_t i = 0; i < p->n; i++) pairs += (int64_t)p->n_keys[i] * p->shape.group;
    return pairs;
}
static inline int64_t pairs_multiplied(const gr_tree_plan* p)
{
    return (int64_t)p->list.n * GR_PAGE * p->shape.wide_rows;
}

/* An H200 with the heads of Qwen2.5-7B: 28 query heads, 4 KV heads of 128, bf16. */
static const gr_pool_shape h200_pool = {.group = 7,
                                        .hk = 4,
                                        .wide_rows = 128,
                                        .exact = true,
                                        .blocks = 132,
                                        .warps = 7,
                                        .max_parts = 36000,
                                        .max_bytes = (size_t)24 << 20};
static const gr_tree_shape h200_tree = {7, 4, 128};
