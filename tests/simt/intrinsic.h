/* intrinsic.h - arithmetic and cached loads of the CUDA language. */
#pragma once
#include <simt.h>

/* glibc declares some of these names: macros, not functions. Approximate on a GPU, exact here. */
#define __expf(x)    expf(x)
#define __logf(x)    logf(x)
#define __log2f(x)   log2f(x)
#define __sinf(x)    sinf(x)
#define __cosf(x)    cosf(x)
#define __powf(x, y) powf(x, y)

SIMT_INLINE float rsqrtf(float x) { return 1.0f / sqrtf(x); }
SIMT_INLINE float __fdividef(float a, float b) { return a / b; }
SIMT_INLINE float __frcp_rn(float x) { return 1.0f / x; }
SIMT_INLINE float __fsqrt_rn(float x) { return sqrtf(x); }
SIMT_INLINE float __fdiv_rn(float a, float b) { return a / b; }
SIMT_INLINE float __fadd_rn(float a, float b) { return a + b; }
SIMT_INLINE float __fmul_rn(float a, float b) { return a * b; }
SIMT_INLINE float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }

SIMT_INLINE int __popc(unsigned x) { return __builtin_popcount(x); }
SIMT_INLINE int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
SIMT_INLINE int __clz(int x) { return x != 0 ? __builtin_clz((unsigned)x) : 32; }
SIMT_INLINE int __clzll(long long x)
{
    return x != 0 ? __builtin_clzll((unsigned long long)x) : 64;
}
SIMT_INLINE int __ffs(int x) { return __builtin_ffs(x); }
SIMT_INLINE unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((uint64_t)a * b >> 32); }
SIMT_INLINE unsigned __brev(unsigned x)
{
    unsigned r = 0;
    for (int i = 0; i < 32; i++) r |= (x >> i & 1) << (31 - i);
    return r;
}

template <class To, class From> SIMT_INLINE To simt_bit_cast(From x)
{
    static_assert(sizeof(To) == sizeof(From), "same size");
    To y;
    __builtin_memcpy(&y, &x, sizeof y);
    return y;
}
SIMT_INLINE unsigned __float_as_uint(float x) { return simt_bit_cast<unsigned>(x); }
SIMT_INLINE int __float_as_int(float x) { return simt_bit_cast<int>(x); }
SIMT_INLINE float __uint_as_float(unsigned x) { return simt_bit_cast<float>(x); }
SIMT_INLINE float __int_as_float(int x) { return simt_bit_cast<float>(x); }
SIMT_INLINE long long __double_as_longlong(double x) { return simt_bit_cast<long long>(x); }
SIMT_INLINE double __longlong_as_double(long long x) { return simt_bit_cast<double>(x); }

template <class T> SIMT_INLINE T __ldg(const T* p) { return *p; }
template <class T> SIMT_INLINE T __ldcs(const T* p) { return *p; }
template <class T> SIMT_INLINE T __ldcg(const T* p) { return *p; }
template <class T> SIMT_INLINE void __stcs(T* p, T v) { *p = v; }
template <class T> SIMT_INLINE void __stcg(T* p, T v) { *p = v; }
template <class T> SIMT_INLINE T min(T a, T b) { return b < a ? b : a; }
template <class T> SIMT_INLINE T max(T a, T b) { return a < b ? b : a; }
