/* attention.h - what the forward and the backward of attention share.
 *
 * Query rows are worked on in blocks against one KV head at a time: the heads of the group that share
 * it are neighbouring rows, so that row r, head j of the block is flat row r * group + j. A block
 * meets its keys in spans, stretches of keys that all lie in one place. */
#pragma once
#include "kernels/cpu/cpu.h"

#include "host/arena.h"

#define BLOCK_FLAT 96 /* flat rows of a block: enough for the tiles, scores stay in level 2 cache */

/* Query rows of a block: at least one, so the flat rows can be more than BLOCK_FLAT. */
static inline int64_t block_rows(int group) { return GR_MAX(BLOCK_FLAT / group, 1); }

static inline int64_t whole_vecs(int64_t n) { return (n + VEC - 1) / VEC * VEC; }
/* Elements from row to row: an odd number of vectors, or rows would share their places in the cache. */
static inline int64_t row_stride(int64_t n) { return whole_vecs(n) | VEC; }

/* What one thread lays out, such that the next thread's buffers are aligned like its own. */
static inline size_t thread_bytes_of(const gr_arena* one)
{
    return (one->used + 255) & ~(size_t)255;
}

/* Tensor shapes of one call. */
typedef struct heads {
    int h, hk, d, group; /* group = h / hk query heads share a KV head */
    acc scale;
} heads;

static inline heads heads_of(int h, int hk, int d, float scale)
{
    return (heads){h, hk, d, h / hk, (acc)scale};
}

/* Copies a row of each head of the group to flat rows of d, in acc. */
static inline void gather_row(acc* to, const real* x, int64_t row, int kv_head, const heads* s)
{
    const int64_t n = (int64_t)s->group * s->d;
    const real* from = x + row * s->h * s->d + kv_head * n;
    for (int64_t i = 0; i < n; i++) to[i] = real_to_acc(from[i]);
}

/* ---- packed trees -------------------------------------------------------------------------------------
 * A run is a longest stretch of tokens with equal subtree_end: a node, or nodes without siblings. All
 * its keys are seen by the same later queries, its path is that of its parent run plus itself. */
typedef struct runs {
    int32_t* start;  /* (count + 1) first token; then n */
    int32_t* parent; /* (count) -1 at a root */
    int32_t* before; /* (count) keys of the path before the run */
    int32_t* of;     /* (n) the run of a token */
    const int32_t* subtree_end;
    int32_t count;
} runs;

/* Keys that token i sees, itself included. */
static inline int64_t path_length(const runs* r, int64_t i)
{
    const int32_t run = r->of[i];
    return r->before[run] + (i - r->start[run]) + 1;
}

void OP(runs_layout)(runs* r, gr_arena* a, int64_t n);
void OP(runs_find)(runs* r, const int32_t* subtree_end, int64_t n);
/* Lists the runs that tokens [first, last) see, in path order; returns how many. */
int64_t OP(runs_seen)(const runs* r, int32_t* list, int64_t first, int64_t last);

/* (n, hk, d) -> (hk, d, stride), inside a parallel region. The stride leaves a vector past the end. */
static inline int64_t transposed_stride(int64_t n) { return row_stride(n + VEC); }
void OP(transpose_heads)(real* to, const real* x, int64_t n, int hk, int d);

size_t OP(attention_tree_bwd_scratch)(const gr_dev* dev, int64_t n, int h, int hk, int d,
                                      int max_path);
