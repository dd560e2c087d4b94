/* vec_math.h - exp and log on vec. Included by cpu.h.
 *
 * Errors are below 2 units in the last place over the whole range, subnormal numbers, infinities
 * and NaN included (tests/test_ops.c measures them). Polynomials are minimax fits made for these
 * intervals. On fp64 they call libm. acc_exp and acc_log give the bits of one lane. */
#pragma once

#if defined(GR_CPU_F64)

static inline vec vec_exp(vec x)
{
    vec_lanes y = vec_to_lanes(x);
    VEC_LANES y.lane[i] = exp(y.lane[i]);
    return vec_from_lanes(y);
}
static inline vec vec_log(vec x)
{
    vec_lanes y = vec_to_lanes(x);
    VEC_LANES y.lane[i] = log(y.lane[i]);
    return vec_from_lanes(y);
}
static inline acc acc_exp(acc x) { return exp(x); }
static inline acc acc_log(acc x) { return log(x); }

#else

/* ln 2 in two parts; the first has 15 bits, so its product with an exponent is exact. */
#define VEC_LN2_HI 0.693145751953125f
#define VEC_LN2_LO 1.428606765330187e-06f

/* e^x = 2^n e^r with n = round(x / ln 2), |r| <= ln 2 / 2. */
static inline vec vec_exp(vec x)
{
    /* beyond these bounds the result is 0 or infinite anyway; this operand order keeps NaN */
    x = vec_max(vec_set(-105.0f), vec_min(vec_set(89.0f), x));
    const vec shift = vec_set(12582912.0f); /* 1.5 2^23: adding it rounds to a whole number */
    const vec n = vec_sub(vec_fma(x, vec_set(1.4426950216293335f), shift), shift);
    vec r = vec_fnma(n, vec_set(VEC_LN2_HI), x);
    r = vec_fnma(n, vec_set(VEC_LN2_LO), r);
    vec p = vec_set(0.001381446490995586f);
    p = vec_fma(p, r, vec_set(0.008368780836462975f));
    p = vec_fma(p, r, vec_set(0.04166839271783829f));
    p = vec_fma(p, r, vec_set(0.1666651964187622f));
    p = vec_fma(p, r, vec_set(0.4999999403953552f));
    p = vec_fma(p, vec_mul(r, r), r);
    return vec_scale2(vec_add(p, vec_set(1.0f)), n);
}

/* log x = e ln 2 + log(1 + f) with x = 2^e (1 + f), sqrt(1/2) <= 1 + f < sqrt(2). */
static inline vec vec_log(vec x)
{
    const vec zero = vec_zero(), one = vec_set(1.0f), least = vec_set(1.17549435e-38f);
    const vec normal = vec_if_less(x, least, vec_mul(x, vec_set(8388608.0f)), x);
    vec e = vec_add(vec_exponent(normal), vec_if_less(x, least, vec_set(-23.0f), zero));
    vec f = vec_mantissa(normal);
    const vec bound = vec_set(1.41421354f);
    e = vec_if_less(f, bound, e, vec_add(e, one));
    f = vec_sub(vec_if_less(f, bound, f, vec_mul(f, vec_set(0.5f))), one);
    vec p = vec_set(0.06746601313352585f);
    p = vec_fma(p, f, vec_set(-0.11675640940666199f));
    p = vec_fma(p, f, vec_set(0.11888174712657928f));
    p = vec_fma(p, f, vec_set(-0.12405591458082199f));
    p = vec_fma(p, f, vec_set(0.14219550788402557f));
    p = vec_fma(p, f, vec_set(-0.1666799634695053f));
    p = vec_fma(p, f, vec_set(0.2000211924314499f));
    p = vec_fma(p, f, vec_set(-0.25000008940696716f));
    p = vec_fma(p, f, vec_set(0.3333331346511841f));
    const vec f2 = vec_mul(f, f);
    vec y = vec_mul(vec_mul(p, f), f2);
    y = vec_fma(e, vec_set(VEC_LN2_LO), y);
    y = vec_fnma(vec_set(0.5f), f2, y);
    y = vec_fma(e, vec_set(VEC_LN2_HI), vec_add(f, y));
    /* 0, negative numbers, infinity, NaN */
    const vec inf = vec_set(HUGE_VALF);
    y = vec_if_less(x, inf, y, vec_add(x, x)); /* infinity and NaN give themselves */
    const vec low = vec_if_less(x, zero, vec_set((acc)NAN), vec_sub(zero, inf));
    return vec_if_less(x, vec_set(1.4e-45f), low, y);
}

static inline acc vec_first(vec x)
{
    acc lane[VEC];
    vec_store(lane, x);
    return lane[0];
}
static inline acc acc_exp(acc x) { return vec_first(vec_exp(vec_set(x))); }
static inline acc acc_log(acc x) { return vec_first(vec_log(vec_set(x))); }

#endif
