/* norm.h - the arithmetic of y = x r w with r = 1 / rms(x), shared by the norms of rows and of heads. */
#pragma once
#include "kernels/cpu/cpu.h"

/* 1 / sqrt(mean(x^2) + eps) */
static inline acc inverse_rms(const real* x, int c, float eps)
{
    vec s = vec_zero();
    int i = 0;
    for (; i + VEC <= c; i += VEC) {
        const vec v = vec_load_real(x + i);
        s = vec_fma(v, v, s);
    }
    if (i < c) {
        const vec v = vec_load_real_part(x + i, c - i);
        s = vec_fma(v, v, s);
    }
    return 1 / acc_sqrt(vec_sum(s) / (acc)c + (acc)eps);
}

/* One lane block of the gradient through y = x r w, with dot = mean over the row of w dy x r. */
static inline vec norm_dx(vec dy, vec x, vec w, vec r, vec dot)
{
    return vec_mul(r, vec_fnma(vec_mul(x, r), dot, vec_mul(dy, w)));
}
