#include "host/arena.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define ARENA_ALIGN 256u /* cudaMalloc alignment; also a whole number of cache lines */

void* gr_arena_push(gr_arena* a, size_t n, size_t elem_size)
{
    size_t bytes = 0;
    GR_ASSERT(!__builtin_mul_overflow(n, elem_size, &bytes), "%zu x %zu", n, elem_size);
    size_t at = (a->used + ARENA_ALIGN - 1) & ~(size_t)(ARENA_ALIGN - 1);
    a->used = at + bytes;
    if (a->used > a->peak) a->peak = a->used;
    if (a->base == NULL || bytes == 0) return NULL;
    GR_ASSERT(a->used <= a->cap, "arena full: %zu of %zu bytes", a->used, a->cap);
    return a->base + at;
}

void gr_arena_release(gr_arena* a, size_t mark)
{
    GR_ASSERT(mark <= a->used);
    a->used = mark;
}

static _Atomic int64_t allocations;

void* gr_array_reserve(void* data, int64_t* cap, int64_t want, size_t elem_size)
{
    if (want <= *cap) return data;
    int64_t grown = GR_MAX(want, *cap + *cap / 2 + 16);
    void* p = realloc(data, (size_t)grown * elem_size);
    GR_ASSERT(p != NULL, "out of memory: %lld elements of %zu bytes", (long long)grown, elem_size);
    memset((char*)p + (size_t)*cap * elem_size, 0, (size_t)(grown - *cap) * elem_size);
    *cap = grown;
    atomic_fetch_add(&allocations, 1);
    return p;
}

int64_t gr_array_allocations(void) { return allocations; }
