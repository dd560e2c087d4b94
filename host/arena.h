/* arena.h - memory by lifetime: one block, pushed and released as a stack.
 *
 * Level 0. An arena with base == NULL only measures: run the same layout function twice, first to
 * learn `used`, then on the real block. Offsets are identical in both passes, so `--dry-run` prints
 * exactly what a run will take. A size of 0 gives NULL, which is how optional buffers are expressed. */
#pragma once
#include "host/base.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct gr_arena {
    char* base; /* borrowed; NULL while measuring */
    size_t cap;
    size_t used;
    size_t peak;
} gr_arena;

void* gr_arena_push(gr_arena* a, size_t n,
                    size_t elem_size); /* 256-byte aligned; panics when full */
static inline size_t gr_arena_mark(const gr_arena* a) { return a->used; }
void gr_arena_release(gr_arena* a, size_t mark);

#define GR_PUSH(a, type, n) ((type*)gr_arena_push((a), (size_t)(n), sizeof(type)))

/* A growing array for host data whose size is not known before (tree nodes, token lists): grows by
 * half, new elements are zero; after the first steps it stops growing. Owned by the caller, freed with
 * free(). Out of memory panics: host arrays are small. Use: GR_RESERVE(t->token, t->token_cap, n). */
void* gr_array_reserve(void* data, int64_t* cap, int64_t want, size_t elem_size);
#define GR_RESERVE(ptr, cap, want) ((ptr) = gr_array_reserve((ptr), &(cap), (want), sizeof(*(ptr))))

/* How often gr_array_reserve has allocated, over all arrays and threads. */
int64_t gr_array_allocations(void);

#ifdef __cplusplus
}
#endif
