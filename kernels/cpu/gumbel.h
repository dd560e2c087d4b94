/* gumbel.h - Gumbel noise of 64 vocabulary ids at once.
 *
 * The noise of id x is -log(E) with E = -log(u), u = (word + 1/2) 2^-32, where word is Philox word
 * x % 4 of counter (hi, x / 4). E keeps full relative precision where u is close to 1, that is where
 * the winners are. */
#pragma once
#include "kernels/cpu/cpu.h"

#define GUMBEL_IDS 64

/* ---- Philox4x32-10 on many counters, the words of gr_philox ---------------------------------------- */

#if defined(GR_CPU_AVX512)
#define U32(name)      _mm512_##name
#define U32_BITS(name) _mm512_##name##_si512
#define U32_LANES      16
typedef __m512i u32s;
#elif defined(GR_CPU_AVX2)
#define U32(name)      _mm256_##name
#define U32_BITS(name) _mm256_##name##_si256
#define U32_LANES      8
typedef __m256i u32s;
#endif

#if defined(U32_LANES)

/* Upper and lower halves of the 64-bit products. */
static inline void philox_multiply(u32s* high, u32s* low, u32s x, uint32_t factor)
{
    const u32s f = U32(set1_epi32)((int32_t)factor);
    const u32s even = U32(mul_epu32)(x, f), odd = U32(mul_epu32)(U32(srli_epi64)(x, 32), f);
    const u32s upper = U32(slli_epi64)(U32(set1_epi32)(-1), 32);
    *high = U32_BITS(or)(U32(srli_epi64)(even, 32), U32_BITS(and)(upper, odd));
    *low = U32_BITS(or)(U32_BITS(andnot)(upper, even), U32(slli_epi64)(odd, 32));
}

static inline u32s philox_xor(u32s a, u32s b, uint32_t key)
{
    return U32_BITS(xor)(U32_BITS(xor)(a, b), U32(set1_epi32)((int32_t)key));
}

/* Lane i holds counter lo + LANES / 4 (i % 4) + i / 4: a transpose of 4 x 4 words within each 128
 * bits then puts the words in order. */
static inline void philox_lanes(uint32_t* out, uint64_t key, uint64_t hi, uint32_t lo)
{
    int32_t first[U32_LANES];
    for (int i = 0; i < U32_LANES; i++)
        first[i] = (int32_t)(lo + (uint32_t)(U32_LANES / 4 * (i % 4) + i / 4));
    u32s c0, c1 = U32(set1_epi32)(0), c2 = U32(set1_epi32)((int32_t)hi);
    u32s c3 = U32(set1_epi32)((int32_t)(hi >> 32));
    memcpy(&c0, first, sizeof c0);
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int round = 0; round < 10; round++) {
        u32s high0, low0, high1, low1;
        philox_multiply(&high0, &low0, c0, 0xD2511F53u);
        philox_multiply(&high1, &low1, c2, 0xCD9E8D57u);
        c0 = philox_xor(high1, c1, k0);
        c2 = philox_xor(high0, c3, k1);
        c1 = low1;
        c3 = low0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    const u32s a = U32(unpacklo_epi32)(c0, c1), b = U32(unpacklo_epi32)(c2, c3);
    const u32s c = U32(unpackhi_epi32)(c0, c1), d = U32(unpackhi_epi32)(c2, c3);
    const u32s word[4] = {U32(unpacklo_epi64)(a, b), U32(unpackhi_epi64)(a, b),
                          U32(unpacklo_epi64)(c, d), U32(unpackhi_epi64)(c, d)};
    memcpy(out, word, sizeof word);
}

static inline void philox_words(uint32_t out[GUMBEL_IDS], uint64_t key, uint64_t hi, uint32_t lo)
{
    for (int i = 0; i < GUMBEL_IDS; i += 4 * U32_LANES)
        philox_lanes(out + i, key, hi, lo + (uint32_t)i / 4);
}

#else

static inline void philox_words(uint32_t out[GUMBEL_IDS], uint64_t key, uint64_t hi, uint32_t lo)
{
    for (int i = 0; i < GUMBEL_IDS; i += 4) gr_philox(key, hi, lo + (uint32_t)i / 4, out + i);
}

#endif

/* ---- words to noise --------------------------------------------------------------------------------- */

/* 16 words, each xor `flip`, rounded once. */
static inline vec vec_from_words(const uint32_t* w, uint32_t flip)
{
#if defined(GR_CPU_AVX512)
    const __m512i x = _mm512_loadu_si512(w);
    return _mm512_cvtepu32_ps(_mm512_xor_si512(x, _mm512_set1_epi32((int32_t)flip)));
#else
    acc lane[VEC];
    for (int i = 0; i < VEC; i++) lane[i] = (acc)(w[i] ^ flip);
    return vec_load(lane);
#endif
}

/* -log(-log(u)). Near u = 1 the logarithm of the rounded x = 1 - v, v = 1 - u, is corrected for the
 * rounding: log(1 - v) = log(x) v / (1 - x) (Kahan's log1p). */
static inline vec gumbel_of_words(const uint32_t* w)
{
    const vec half = vec_set((acc)0.5), one = vec_set(1), unit = vec_set((acc)0x1p-32);
    const vec u = vec_mul(vec_add(vec_from_words(w, 0), half), unit);
    const vec v = vec_mul(vec_add(vec_from_words(w, UINT32_MAX), half), unit);
    const vec x = vec_if_less(v, half, vec_sub(one, v), u);
    const vec minus_log = vec_sub(vec_zero(), vec_log(x));
    const vec corrected = vec_div(vec_mul(minus_log, v), vec_sub(one, x));
    const vec near_one = vec_if_less(x, one, corrected, v);
    return vec_sub(vec_zero(), vec_log(vec_if_less(v, half, near_one, minus_log)));
}

/* Noise of ids first ... first + 63; first is a multiple of 64. */
static inline void gumbel_noise(acc out[GUMBEL_IDS], uint64_t key, uint64_t hi, int64_t first)
{
    uint32_t w[GUMBEL_IDS];
    philox_words(w, key, hi, (uint32_t)(first / 4));
    for (int i = 0; i < GUMBEL_IDS; i += VEC) vec_store(out + i, gumbel_of_words(w + i));
}
