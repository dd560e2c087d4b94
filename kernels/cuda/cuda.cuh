/* cuda.cuh - what every source of kernels/cuda/ shares. Level 2.
 *
 * Sources are compiled by nvcc and, for tests without a GPU, as C++ by the emulator of tests/simt/;
 * port.cuh hides the difference. One table serves fp32 and bf16: a launcher picks the instance by
 * dev->dtype. Arithmetic is in float, fused multiply-adds are written out (fmaf) and the compiler
 * contracts nothing (-fmad=false), so both builds round alike.
 *
 *   real   element of weights and activations: float or bf16 (template parameter T)
 *   chunk  16 bytes of reals, what one thread loads at once
 *
 * No float atomics; sums run in an order that depends on sizes alone, never on the GPU. */
#pragma once
#include "kernels/cuda/cuda.h"

#include <string.h>

/* ---- helpers of launchers ----------------------------------------------------------------------- */

/* Runs `...` with T being the device's real. */
#define FOR_REAL(dev, ...)             \
    do {                               \
        if ((dev)->dtype == GR_BF16) { \
            typedef bf16 T;            \
            __VA_ARGS__;               \
        } else {                       \
            typedef float T;           \
            __VA_ARGS__;               \
        }                              \
    } while (0)

static inline __host__ __device__ int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static inline bool is_aligned(const void* p, size_t bytes) { return (uintptr_t)p % bytes == 0; }

/* ---- elements ----------------------------------------------------------------------------------- */

struct bf16 {
    uint16_t bits;
};

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(bf16 x)
{
    return __uint_as_float((uint32_t)x.bits << 16);
}

template <class T> __device__ __forceinline__ T to_real(float x);
template <> __device__ __forceinline__ float to_real<float>(float x) { return x; }
/* To nearest, ties to even; a NaN stays a quiet NaN. */
template <> __device__ __forceinline__ bf16 to_real<bf16>(float x)
{
    const uint32_t bits = __float_as_uint(x);
    bf16 y;
    y.bits = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    if ((bits & 0x7fffffffu) > 0x7f800000u) y.bits = (uint16_t)(bits >> 16 | 0x40);
    return y;
}

__device__ __forceinline__ void set_zero(float* x) { *x = 0; }
__device__ __forceinline__ void set_zero(bf16* x) { x->bits = 0; }

/* ---- chunks ------------------------------------------------------------------------------------- */

template <class T> struct chunk_of {
    static const int n = 16 / (int)sizeof(T);
};
template <class T> struct chunk {
    T x[chunk_of<T>::n];
};

/* x = p[0 .. left), zeros behind. `whole`: p is 16-byte aligned. */
template <class T>
__device__ __forceinline__ void load_chunk(float* x, const T* p, int left, bool whole)
{
    const int n = chunk_of<T>::n;
    if (whole && left >= n) {
        const uint4 raw = *(const uint4*)p;
        chunk<T> c;
        memcpy(&c, &raw, sizeof c);
#pragma unroll
        for (int i = 0; i < n; i++) x[i] = to_float(c.x[i]);
        return;
    }
#pragma unroll
    for (int i = 0; i < n; i++) x[i] = i < left ? to_float(p[i]) : 0;
}

template <class T>
__device__ __forceinline__ void store_chunk(T* p, const float* x, int left, bool whole)
{
    const int n = chunk_of<T>::n;
    if (whole && left >= n) {
        chunk<T> c;
#pragma unroll
        for (int i = 0; i < n; i++) c.x[i] = to_real<T>(x[i]);
        uint4 raw;
        memcpy(&raw, &c, sizeof raw);
        *(uint4*)p = raw;
        return;
    }
#pragma unroll
    for (int i = 0; i < n; i++)
        if (i < left) p[i] = to_real<T>(x[i]);
}

/* ---- sums --------------------------------------------------------------------------------------- */

#define WARP      32
#define ALL_LANES 0xffffffffu

/* Over the lanes, halves folded onto each other; every lane gets it. */
__device__ __forceinline__ float warp_sum(float x)
{
    for (int i = WARP / 2; i > 0; i /= 2) x += __shfl_xor_sync(ALL_LANES, x, i);
    return x;
}

/* Over the block, warps in order; every thread gets it. shared: one float per warp. All threads of
 * the block call it; it may be called again at once. */
__device__ __forceinline__ float block_sum(float x, float* shared)
{
    const int warps = (int)blockDim.x / WARP;
    x = warp_sum(x);
    if (warps == 1) return x;
    if (threadIdx.x % WARP == 0) shared[threadIdx.x / WARP] = x;
    __syncthreads();
    float sum = 0;
    for (int i = 0; i < warps; i++) sum += shared[i];
    __syncthreads();
    return sum;
}
