/* atomic.h - atomics and fences of the CUDA language. Fibers switch only where they wait, so plain
 * arithmetic is atomic here; the access is reported as one, and orders threads across a fence. */
#pragma once
#include <simt.h>

#define SIMT_ATOMIC(name, next)                                                          \
    template <class T, class U>                                                          \
    __attribute__((noinline, disable_sanitizer_instrumentation)) T name(T* p, U operand) \
    {                                                                                    \
        simt::access(p, sizeof(T), simt::ATOMIC, __builtin_return_address(0));           \
        const T value = (T)operand, old = *p;                                            \
        *p = (T)(next);                                                                  \
        return old;                                                                      \
    }
SIMT_ATOMIC(atomicAdd, old + value)
SIMT_ATOMIC(atomicSub, old - value)
SIMT_ATOMIC(atomicMax, old > value ? old : value)
SIMT_ATOMIC(atomicMin, old < value ? old : value)
SIMT_ATOMIC(atomicExch, value)
SIMT_ATOMIC(atomicAnd, old& value)
SIMT_ATOMIC(atomicOr, old | value)
SIMT_ATOMIC(atomicXor, old ^ value)
SIMT_ATOMIC(atomicInc, old >= value ? T(0) : T(old + 1))

template <class T>
__attribute__((noinline, disable_sanitizer_instrumentation)) T atomicCAS(T* p, T expected, T value)
{
    simt::access(p, sizeof(T), simt::ATOMIC, __builtin_return_address(0));
    const T old = *p;
    if (old == expected)
        *p = value;
    else
        simt::yield(__builtin_return_address(0));
    return old;
}

SIMT_INLINE void __threadfence() { simt::fence(); }
SIMT_INLINE void __threadfence_block() {}
SIMT_INLINE void __threadfence_system() { simt::fence(); }
__attribute__((noinline)) static inline void __nanosleep(unsigned)
{
    simt::yield(__builtin_return_address(0));
}
