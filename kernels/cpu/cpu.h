/* cpu.h - what every source of kernels/cpu/ shares. Level 2.
 *
 * The sources are compiled once per variant: a storage type (fp32, bf16, fp64) and an instruction
 * set (base, AVX2 with FMA, AVX-512). OP(matmul) is this variant's name of gr_ops.matmul.
 *
 *   real   element of weights and activations in memory
 *   acc    element of sums, statistics and weight gradients, and the type all arithmetic is done in
 *   vec    16 acc lanes (vec.h), the same lanes on every instruction set
 *
 * Sums run in a fixed order, fused multiply-adds are explicit (vec_fma, acc_fma): AVX2 and AVX-512
 * give the same bits. base has no fma instruction and rounds the product too. */
#pragma once
#include "kernels/ops.h"

#include <math.h>
#include <string.h>

#define CPU_PASTE_(variant, op) gr_cpu_##variant##_##op
#define CPU_PASTE(variant, op)  CPU_PASTE_(variant, op)
#define OP(op)                  CPU_PASTE(GR_CPU_VARIANT, op)

#define X(op) gr_##op##_fn OP(op);
GR_OP_LIST(X)
GR_SIZE_LIST(X)
#undef X

/* ---- element types ----------------------------------------------------------------------------- */

#if defined(GR_CPU_F64)
typedef double real;
typedef double acc;
#elif defined(GR_CPU_BF16)
typedef uint16_t real;
typedef float acc;
#else
typedef float real;
typedef float acc;
#endif

#if defined(GR_CPU_BF16)
static inline acc real_to_acc(real x)
{
    const uint32_t bits = (uint32_t)x << 16;
    acc y;
    memcpy(&y, &bits, sizeof y);
    return y;
}
/* Rounds to nearest, ties to even; a NaN stays a (quiet) NaN. */
static inline real acc_to_real(acc x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (real)(bits >> 16 | 0x40);
    return (real)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
#else
static inline acc real_to_acc(real x) { return x; }
static inline real acc_to_real(acc x) { return x; }
#endif

/* a * b + c, rounded once where the instruction set can. */
static inline acc acc_fma(acc a, acc b, acc c)
{
#if defined(__FMA__)
    return __builtin_fmaf(a, b, c);
#else
    return a * b + c;
#endif
}

#include "kernels/cpu/vec.h"
#include "kernels/cpu/vec_math.h"

/* ---- threads -----------------------------------------------------------------------------------
 * An op takes all threads or the calling one alone: starting a parallel region costs a microsecond
 * or two, changing the size of the team far more. `work` is an estimate in multiply-adds of a matrix
 * product; an element of a pointwise op costs about OP_ELEMENT of them, memory included.
 *
 * The loop stands in a function of its own under `#pragma omp for`, which without a team around it
 * runs over all iterations:
 *     OP_RUN(op_threads(dev, n * c * OP_ELEMENT), embed_rows(y, table, token, n, c)); */
#define OP_WORK_MIN 262144.0
#define OP_ELEMENT  16.0

static inline int op_threads(const gr_dev* dev, double work)
{
    return work < OP_WORK_MIN ? 1 : dev->threads;
}

#define OP_RUN(threads, call)                                      \
    do {                                                           \
        const int op_threads_ = (threads);                         \
        if (op_threads_ > 1) {                                     \
            _Pragma("omp parallel num_threads(op_threads_)") call; \
        } else {                                                   \
            call;                                                  \
        }                                                          \
    } while (0)
