/* math.cuh - exp, log and Gumbel noise with the bits of the cpu device (kernels/cpu/vec_math.h,
 * gumbel.h; where it has fused multiply-adds). The same polynomials in the same order. */
#pragma once
#include "kernels/cuda/cuda.cuh"

#define LN2_HI 0.693145751953125f /* 15 bits: its product with an exponent is exact */
#define LN2_LO 1.428606765330187e-06f

__device__ __forceinline__ float power_of_2(int e) /* -126 <= e <= 127 */
{
    return __uint_as_float((uint32_t)(e + 127) << 23);
}

/* e^x = 2^n e^r with n = round(x / ln 2), |r| <= ln 2 / 2. Below 2 units in the last place. */
__device__ __forceinline__ float exp_of(float x)
{
    x = x > 89.0f ? 89.0f : x; /* comparisons that keep NaN */
    x = x < -105.0f ? -105.0f : x;
    const float shift = 12582912.0f; /* 1.5 2^23: adding it rounds to a whole number */
    const float n = fmaf(x, 1.4426950216293335f, shift) - shift;
    float r = fmaf(-n, LN2_HI, x);
    r = fmaf(-n, LN2_LO, r);
    float p = 0.001381446490995586f;
    p = fmaf(p, r, 0.008368780836462975f);
    p = fmaf(p, r, 0.04166839271783829f);
    p = fmaf(p, r, 0.1666651964187622f);
    p = fmaf(p, r, 0.4999999403953552f);
    p = fmaf(p, r * r, r) + 1.0f;
    /* 2^n in two factors: n reaches 128 and -151. Only the second can round. */
    const int e = n == n ? (int)n : 0, most = e > 127 ? 127 : e < -126 ? -126 : e;
    return p * power_of_2(most) * power_of_2(e - most);
}

/* log x = e ln 2 + log(1 + f) with x = 2^e (1 + f), sqrt(1/2) <= 1 + f < sqrt(2). */
__device__ __forceinline__ float log_of(float x)
{
    if (!(x > 0 && x <= 3.40282347e38f)) { /* 0, negative numbers, infinity, NaN */
        if (x == 0) return __uint_as_float(0xff800000u);
        return x < 0 ? __uint_as_float(0x7fc00000u) : x + x;
    }
    const bool tiny = x < 1.17549435e-38f;
    const uint32_t bits = __float_as_uint(tiny ? x * 8388608.0f : x);
    float e = (float)((int)(bits >> 23) - 127) + (tiny ? -23.0f : 0.0f);
    float f = __uint_as_float((bits & 0x7fffffu) | 0x3f800000u);
    if (!(f < 1.41421354f)) {
        e += 1.0f;
        f *= 0.5f;
    }
    f -= 1.0f;
    float p = 0.06746601313352585f;
    p = fmaf(p, f, -0.11675640940666199f);
    p = fmaf(p, f, 0.11888174712657928f);
    p = fmaf(p, f, -0.12405591458082199f);
    p = fmaf(p, f, 0.14219550788402557f);
    p = fmaf(p, f, -0.1666799634695053f);
    p = fmaf(p, f, 0.2000211924314499f);
    p = fmaf(p, f, -0.25000008940696716f);
    p = fmaf(p, f, 0.3333331346511841f);
    const float f2 = f * f;
    float y = p * f * f2;
    y = fmaf(e, LN2_LO, y);
    y = fmaf(-0.5f, f2, y);
    return fmaf(e, LN2_HI, f + y);
}

/* ---- Gumbel noise ------------------------------------------------------------------------------- */

/* Philox4x32-10 (Salmon et al. 2011) of counter (hi, lo): the words of gr_philox. */
__device__ __forceinline__ uint4 philox(uint64_t key, uint64_t hi, uint32_t lo)
{
    uint32_t c0 = lo, c1 = 0, c2 = (uint32_t)hi, c3 = (uint32_t)(hi >> 32);
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
#pragma unroll
    for (int round = 0; round < 10; round++) {
        const uint64_t p0 = (uint64_t)c0 * 0xD2511F53u, p1 = (uint64_t)c2 * 0xCD9E8D57u;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return make_uint4(c0, c1, c2, c3);
}

/* -log(-log(u)), u = (word + 1/2) 2^-32. Near u = 1 the logarithm of the rounded x = 1 - v,
 * v = 1 - u, is corrected for the rounding: log(1 - v) = log(x) v / (1 - x) (Kahan's log1p). */
__device__ __forceinline__ float gumbel_of_word(uint32_t word)
{
    const float unit = 2.3283064365386963e-10f; /* 2^-32 */
    const float u = ((float)word + 0.5f) * unit, v = ((float)~word + 0.5f) * unit;
    const float x = v < 0.5f ? 1.0f - v : u;
    const float minus_log = 0.0f - log_of(x);
    if (v < 0.5f) return 0.0f - log_of(x < 1.0f ? minus_log * v / (1.0f - x) : v);
    return 0.0f - log_of(minus_log);
}

/* Noise of the four ids from `id`, a multiple of 4, on. */
__device__ __forceinline__ void gumbel_noise(float noise[4], uint64_t uid, int32_t index, int id)
{
    const uint4 w = philox(uid, (uint64_t)(int64_t)index, (uint32_t)id / 4);
    noise[0] = gumbel_of_word(w.x);
    noise[1] = gumbel_of_word(w.y);
    noise[2] = gumbel_of_word(w.z);
    noise[3] = gumbel_of_word(w.w);
}
