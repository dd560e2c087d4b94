/* variants.h - the tables that kernels/cpu/ is compiled into: storage type, instruction set. */
#pragma once
#include "kernels/ops.h"

#define GR_CPU_VARIANT_LIST(X) \
    X(f32, base)               \
    X(f32, avx2)               \
    X(f32, avx512)             \
    X(bf16, base)              \
    X(bf16, avx2)              \
    X(bf16, avx512)            \
    X(f64, base)

#define X(dtype, isa) extern const gr_ops gr_ops_cpu_##dtype##_##isa;
GR_CPU_VARIANT_LIST(X)
#undef X
