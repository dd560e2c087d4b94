/* allocations.h - counts what a test binary allocates. Include it in one source file. */
#pragma once
#include <stdatomic.h>
#include <stdlib.h>

static _Atomic long allocations;

/* A sanitizer takes the allocator's place itself. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define COUNTS_ALLOCATIONS 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define COUNTS_ALLOCATIONS 0
#endif
#endif
#ifndef COUNTS_ALLOCATIONS
#define COUNTS_ALLOCATIONS 1
void* __libc_malloc(size_t n);
void* __libc_calloc(size_t n, size_t size);
void* __libc_realloc(void* p, size_t n);
void* __libc_memalign(size_t align, size_t n);
void* malloc(size_t n)
{
    allocations++;
    return __libc_malloc(n);
}
void* calloc(size_t n, size_t size)
{
    allocations++;
    return __libc_calloc(n, size);
}
void* realloc(void* p, size_t n)
{
    allocations++;
    return __libc_realloc(p, n);
}
void* aligned_alloc(size_t align, size_t n)
{
    allocations++;
    return __libc_memalign(align, n);
}
#endif
