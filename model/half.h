/* half.h - IEEE 754 binary16, the short float of model files. Level 1. */
#pragma once
#include <math.h>
#include <stdint.h>

/* Exact; infinities and NaN alike give infinity, which readers refuse. */
static inline double gr_half(uint16_t bits)
{
    int exponent = bits >> 10 & 31, mantissa = bits & 1023;
    double sign = bits >> 15 ? -1 : 1;
    if (exponent == 31) return HUGE_VAL;
    if (exponent == 0) return sign * ldexp(mantissa, -24);
    return sign * ldexp(mantissa + 1024, exponent - 25);
}
