/* vec.h - 16 lanes of acc on AVX-512, AVX2 and plain C. Included by cpu.h.
 *
 * Every function does the same on each lane on every instruction set, with these edges:
 *   vec_max(a, b), vec_min(a, b)   b where one of the two is NaN
 *   vec_load_part(p, n)            reads n <= 16 elements, the other lanes are 0
 *   vec_sum, vec_max_all           halves folded onto each other: 16, 8, 4, 2, 1 lanes
 *   vec_scale2(x, e)               x 2^e for whole e in [-300, 300], rounded once
 *   vec_exponent, vec_mantissa     x = mantissa 2^exponent with 1 <= |mantissa| < 2, x normal */
#pragma once

#define VEC 16

#if defined(GR_CPU_AVX512) || defined(GR_CPU_AVX2)
#include <immintrin.h>
#endif

#if defined(GR_CPU_AVX512)

typedef __m512 vec;

static inline __mmask16 vec_mask(int n) { return (__mmask16)((1u << n) - 1); }

static inline vec vec_zero(void) { return _mm512_setzero_ps(); }
static inline vec vec_set(acc x) { return _mm512_set1_ps(x); }
static inline vec vec_load(const acc* p) { return _mm512_loadu_ps(p); }
static inline void vec_store(acc* p, vec x) { _mm512_storeu_ps(p, x); }
static inline vec vec_load_part(const acc* p, int n)
{
    return _mm512_maskz_loadu_ps(vec_mask(n), p);
}
static inline void vec_store_part(acc* p, vec x, int n)
{
    _mm512_mask_storeu_ps(p, vec_mask(n), x);
}
static inline vec vec_add(vec a, vec b) { return _mm512_add_ps(a, b); }
static inline vec vec_sub(vec a, vec b) { return _mm512_sub_ps(a, b); }
static inline vec vec_mul(vec a, vec b) { return _mm512_mul_ps(a, b); }
static inline vec vec_div(vec a, vec b) { return _mm512_div_ps(a, b); }
static inline vec vec_sqrt(vec a) { return _mm512_sqrt_ps(a); }
static inline vec vec_max(vec a, vec b) { return _mm512_max_ps(a, b); }
static inline vec vec_min(vec a, vec b) { return _mm512_min_ps(a, b); }
static inline vec vec_fma(vec a, vec b, vec c) { return _mm512_fmadd_ps(a, b, c); }
static inline vec vec_fnma(vec a, vec b, vec c) { return _mm512_fnmadd_ps(a, b, c); }
/* a < b ? x : y per lane; y where a or b is NaN. */
static inline vec vec_if_less(vec a, vec b, vec x, vec y)
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), y, x);
}
static inline vec vec_scale2(vec x, vec e) { return _mm512_scalef_ps(x, e); }
static inline vec vec_exponent(vec x) { return _mm512_getexp_ps(x); }
static inline vec vec_mantissa(vec x)
{
    return _mm512_getmant_ps(x, _MM_MANT_NORM_1_2, _MM_MANT_SIGN_src);
}

static inline __m256 vec_upper(vec x)
{
    return _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(x), 1));
}
static inline __m256 vec_half_sum(vec x)
{
    return _mm256_add_ps(_mm512_castps512_ps256(x), vec_upper(x));
}
static inline __m256 vec_half_max(vec x)
{
    return _mm256_max_ps(_mm512_castps512_ps256(x), vec_upper(x));
}

#if defined(GR_CPU_BF16)
static inline vec vec_from_bf16(__m256i x)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}
static inline __m256i vec_to_bf16(vec x)
{
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i near = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_blend_epi32(nan, near, quiet), 16));
}
static inline vec vec_load_real(const real* p)
{
    return vec_from_bf16(_mm256_loadu_si256((const __m256i*)(const void*)p));
}
static inline vec vec_load_real_part(const real* p, int n)
{
    return vec_from_bf16(_mm256_maskz_loadu_epi16(vec_mask(n), p));
}
static inline void vec_store_real(real* p, vec x)
{
    _mm256_storeu_si256((__m256i*)(void*)p, vec_to_bf16(x));
}
static inline void vec_store_real_part(real* p, vec x, int n)
{
    _mm256_mask_storeu_epi16(p, vec_mask(n), vec_to_bf16(x));
}
#endif

#elif defined(GR_CPU_AVX2)

typedef struct vec {
    __m256 lo, hi;
} vec;

/* A window of this table is the mask of the first n lanes. */
static const int32_t vec_mask_table[2 * VEC] = {-1, -1, -1, -1, -1, -1, -1, -1,
                                                -1, -1, -1, -1, -1, -1, -1, -1};
static inline __m256i vec_mask(int n, int first)
{
    const int32_t* p = vec_mask_table + VEC - n + first;
    return _mm256_loadu_si256((const __m256i*)(const void*)p);
}

static inline vec vec_zero(void) { return (vec){_mm256_setzero_ps(), _mm256_setzero_ps()}; }
static inline vec vec_set(acc x) { return (vec){_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
static inline vec vec_load(const acc* p)
{
    return (vec){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
static inline void vec_store(acc* p, vec x)
{
    _mm256_storeu_ps(p, x.lo);
    _mm256_storeu_ps(p + 8, x.hi);
}
static inline vec vec_load_part(const acc* p, int n)
{
    return (vec){_mm256_maskload_ps(p, vec_mask(n, 0)), _mm256_maskload_ps(p + 8, vec_mask(n, 8))};
}
static inline void vec_store_part(acc* p, vec x, int n)
{
    _mm256_maskstore_ps(p, vec_mask(n, 0), x.lo);
    _mm256_maskstore_ps(p + 8, vec_mask(n, 8), x.hi);
}
static inline vec vec_add(vec a, vec b)
{
    return (vec){_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
static inline vec vec_sub(vec a, vec b)
{
    return (vec){_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}
static inline vec vec_mul(vec a, vec b)
{
    return (vec){_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
static inline vec vec_div(vec a, vec b)
{
    return (vec){_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}
static inline vec vec_sqrt(vec a) { return (vec){_mm256_sqrt_ps(a.lo), _mm256_sqrt_ps(a.hi)}; }
static inline vec vec_max(vec a, vec b)
{
    return (vec){_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}
static inline vec vec_min(vec a, vec b)
{
    return (vec){_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
}
static inline vec vec_fma(vec a, vec b, vec c)
{
    return (vec){_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
static inline vec vec_fnma(vec a, vec b, vec c)
{
    return (vec){_mm256_fnmadd_ps(a.lo, b.lo, c.lo), _mm256_fnmadd_ps(a.hi, b.hi, c.hi)};
}
static inline vec vec_if_less(vec a, vec b, vec x, vec y)
{
    return (vec){_mm256_blendv_ps(y.lo, x.lo, _mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ)),
                 _mm256_blendv_ps(y.hi, x.hi, _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ))};
}
/* Two factors of about half the exponent: the first product is exact, the second rounds. */
static inline __m256 vec_half_scale2(__m256 x, __m256 e)
{
    const __m256i whole = _mm256_cvtps_epi32(e), bias = _mm256_set1_epi32(127);
    const __m256i first = _mm256_srai_epi32(whole, 1), second = _mm256_sub_epi32(whole, first);
    x = _mm256_mul_ps(x, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(first, bias), 23)));
    return _mm256_mul_ps(
        x, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(second, bias), 23)));
}
static inline vec vec_scale2(vec x, vec e)
{
    return (vec){vec_half_scale2(x.lo, e.lo), vec_half_scale2(x.hi, e.hi)};
}
static inline __m256 vec_half_exponent(__m256 x)
{
    const __m256i biased =
        _mm256_and_si256(_mm256_srli_epi32(_mm256_castps_si256(x), 23), _mm256_set1_epi32(0xff));
    return _mm256_cvtepi32_ps(_mm256_sub_epi32(biased, _mm256_set1_epi32(127)));
}
static inline vec vec_exponent(vec x)
{
    return (vec){vec_half_exponent(x.lo), vec_half_exponent(x.hi)};
}
static inline __m256 vec_half_mantissa(__m256 x)
{
    const __m256 keep = _mm256_castsi256_ps(_mm256_set1_epi32((int32_t)0x807fffffu));
    return _mm256_or_ps(_mm256_and_ps(x, keep), _mm256_set1_ps(1));
}
static inline vec vec_mantissa(vec x)
{
    return (vec){vec_half_mantissa(x.lo), vec_half_mantissa(x.hi)};
}

static inline __m256 vec_half_sum(vec x) { return _mm256_add_ps(x.lo, x.hi); }
static inline __m256 vec_half_max(vec x) { return _mm256_max_ps(x.lo, x.hi); }

#if defined(GR_CPU_BF16)
static inline __m256 vec_half_from_bf16(__m128i x)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
}
static inline __m256i vec_half_round_bf16(__m256 x) /* in the upper 16 bits' place, shifted down */
{
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i near = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    return _mm256_srli_epi32(_mm256_blendv_epi8(near, quiet, nan), 16);
}
static inline vec vec_load_real(const real* p)
{
    return (vec){vec_half_from_bf16(_mm_loadu_si128((const __m128i*)(const void*)p)),
                 vec_half_from_bf16(_mm_loadu_si128((const __m128i*)(const void*)(p + 8)))};
}
static inline void vec_store_real(real* p, vec x)
{
    /* packus works within 128-bit halves: 0 2 1 3 restores the order */
    const __m256i both = _mm256_packus_epi32(vec_half_round_bf16(x.lo), vec_half_round_bf16(x.hi));
    _mm256_storeu_si256((__m256i*)(void*)p, _mm256_permute4x64_epi64(both, 0xd8));
}
#define VEC_REAL_PART_BY_COPY
#endif

#else /* plain C with the compilers' vectors of 16 bytes */

typedef acc vec_group __attribute__((vector_size(16)));
typedef struct vec {
    vec_group group[VEC * sizeof(acc) / 16];
} vec;

#define VEC_GROUPS _Pragma("GCC unroll 8") for (size_t i = 0; i < VEC * sizeof(acc) / 16; i++)

/* Lane by lane, for what has no operator. */
typedef struct vec_lanes {
    acc lane[VEC];
} vec_lanes;
static inline vec_lanes vec_to_lanes(vec x)
{
    vec_lanes y;
    memcpy(&y, &x, sizeof y);
    return y;
}
static inline vec vec_from_lanes(vec_lanes x)
{
    vec y;
    memcpy(&y, &x, sizeof y);
    return y;
}
#define VEC_LANES  for (int i = 0; i < VEC; i++)

static inline vec vec_set(acc x)
{
    vec y;
    VEC_GROUPS y.group[i] = x - (vec_group){0};
    return y;
}
static inline vec vec_zero(void) { return vec_set(0); }
static inline vec vec_load(const acc* p)
{
    vec y;
    memcpy(&y, p, sizeof y);
    return y;
}
static inline void vec_store(acc* p, vec x) { memcpy(p, &x, sizeof x); }
static inline vec vec_load_part(const acc* p, int n)
{
    vec_lanes y = {{0}};
    memcpy(y.lane, p, (size_t)n * sizeof *p);
    return vec_from_lanes(y);
}
static inline void vec_store_part(acc* p, vec x, int n) { memcpy(p, &x, (size_t)n * sizeof *p); }
static inline vec vec_add(vec a, vec b)
{
    VEC_GROUPS a.group[i] += b.group[i];
    return a;
}
static inline vec vec_sub(vec a, vec b)
{
    VEC_GROUPS a.group[i] -= b.group[i];
    return a;
}
static inline vec vec_mul(vec a, vec b)
{
    VEC_GROUPS a.group[i] *= b.group[i];
    return a;
}
static inline vec vec_div(vec a, vec b)
{
    VEC_GROUPS a.group[i] /= b.group[i];
    return a;
}
static inline vec vec_sqrt(vec a)
{
    vec_lanes x = vec_to_lanes(a);
    VEC_LANES x.lane[i] = (acc)sqrt((double)x.lane[i]);
    return vec_from_lanes(x);
}
static inline vec vec_fma(vec a, vec b, vec c)
{
    VEC_GROUPS c.group[i] += a.group[i] * b.group[i];
    return c;
}
static inline vec vec_fnma(vec a, vec b, vec c)
{
    VEC_GROUPS c.group[i] -= a.group[i] * b.group[i];
    return c;
}
static inline vec vec_if_less(vec a, vec b, vec x, vec y)
{
    VEC_GROUPS
    {
        typedef __typeof__(a.group[i] < b.group[i]) bits;
        const bits less = a.group[i] < b.group[i];
        y.group[i] = (vec_group)((less & (bits)x.group[i]) | (~less & (bits)y.group[i]));
    }
    return y;
}
static inline vec vec_max(vec a, vec b) { return vec_if_less(b, a, a, b); }
static inline vec vec_min(vec a, vec b) { return vec_if_less(a, b, a, b); }
static inline vec vec_scale2(vec a, vec e)
{
    vec_lanes x = vec_to_lanes(a), n = vec_to_lanes(e);
    VEC_LANES x.lane[i] = (acc)ldexp((double)x.lane[i], (int)n.lane[i]);
    return vec_from_lanes(x);
}
static inline vec vec_exponent(vec a)
{
    vec_lanes x = vec_to_lanes(a);
    VEC_LANES x.lane[i] = (acc)ilogb((double)x.lane[i]);
    return vec_from_lanes(x);
}
static inline vec vec_mantissa(vec a)
{
    vec_lanes x = vec_to_lanes(a);
    VEC_LANES
    {
        int e = ilogb((double)x.lane[i]); /* of 0 it is the smallest int, which has no negative */
        x.lane[i] = (acc)ldexp((double)x.lane[i], e == FP_ILOGB0 ? 0 : -e);
    }
    return vec_from_lanes(x);
}
static inline acc vec_sum(vec a)
{
    vec_lanes x = vec_to_lanes(a);
    for (int half = VEC / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) x.lane[i] += x.lane[i + half];
    return x.lane[0];
}
static inline acc vec_max_all(vec a)
{
    vec_lanes x = vec_to_lanes(a);
    for (int half = VEC / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            if (!(x.lane[i] > x.lane[i + half])) x.lane[i] = x.lane[i + half];
    return x.lane[0];
}

#if defined(GR_CPU_BF16)
static inline vec vec_load_real(const real* p)
{
    vec_lanes y;
    VEC_LANES y.lane[i] = real_to_acc(p[i]);
    return vec_from_lanes(y);
}
static inline void vec_store_real(real* p, vec a)
{
    const vec_lanes x = vec_to_lanes(a);
    VEC_LANES p[i] = acc_to_real(x.lane[i]);
}
#define VEC_REAL_PART_BY_COPY
#endif

#endif

#if defined(GR_CPU_AVX512) || defined(GR_CPU_AVX2)
static inline acc vec_sum(vec x)
{
    const __m256 a = vec_half_sum(x);
    const __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}
static inline acc vec_max_all(vec x)
{
    const __m256 a = vec_half_max(x);
    const __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 c = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(c, _mm_movehdup_ps(c)));
}
#endif

static inline acc acc_sqrt(acc x) { return (acc)sqrt((double)x); } /* exact: rounds once */

#if !defined(GR_CPU_BF16)
static inline vec vec_load_real(const real* p) { return vec_load(p); }
static inline vec vec_load_real_part(const real* p, int n) { return vec_load_part(p, n); }
static inline void vec_store_real(real* p, vec x) { vec_store(p, x); }
static inline void vec_store_real_part(real* p, vec x, int n) { vec_store_part(p, x, n); }
#elif defined(VEC_REAL_PART_BY_COPY)
static inline vec vec_load_real_part(const real* p, int n)
{
    real whole[VEC] = {0};
    memcpy(whole, p, (size_t)n * sizeof *p);
    return vec_load_real(whole);
}
static inline void vec_store_real_part(real* p, vec x, int n)
{
    real whole[VEC];
    vec_store_real(whole, x);
    memcpy(p, whole, (size_t)n * sizeof *p);
}
#endif
