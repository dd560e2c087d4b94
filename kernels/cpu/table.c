/* table.c - this variant's ops as one table (kernels/cpu/variants.h). */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/variants.h"

#define TABLE_(variant) gr_ops_cpu_##variant
#define TABLE(variant)  TABLE_(variant)

const gr_ops TABLE(GR_CPU_VARIANT) = {
#define X(op) .op = OP(op),
    GR_OP_LIST(X) GR_SIZE_LIST(X)
#undef X
};
