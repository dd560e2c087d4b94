/* vec_check.h - measures kernels/cpu/vec_math.h; one build per instruction set. */
#pragma once
#include <stdint.h>

/* Over every `stride`-th fp32 bit pattern. Errors in units in the last place; a wrong infinity, sign of
 * zero aside, or NaN counts as 1e9. */
typedef struct vec_check {
    double exp_error, log_error;
    uint64_t hash; /* of all results, NaN as one value */
} vec_check;

vec_check vec_check_base(uint32_t stride);
vec_check vec_check_avx2(uint32_t stride);
vec_check vec_check_avx512(uint32_t stride);
