/* optimizer.c - gradient norm and AdamW over flat arrays. Element-wise or in fixed blocks, so the
 * bits do not depend on the number of threads. */
#include "kernels/cpu/cpu.h"

#define BLOCK 4096

static double block_sumsq(const acc* x, int64_t n)
{
    vec s[4] = {vec_zero(), vec_zero(), vec_zero(), vec_zero()};
    int64_t i = 0;
    for (; i + 4 * VEC <= n; i += 4 * VEC)
        for (int j = 0; j < 4; j++) {
            const vec v = vec_load(x + i + j * VEC);
            s[j] = vec_fma(v, v, s[j]);
        }
    for (; i < n; i += VEC) {
        const vec v = vec_load_part(x + i, (int)GR_MIN(n - i, VEC));
        s[0] = vec_fma(v, v, s[0]);
    }
    return (double)vec_sum(vec_add(vec_add(s[0], s[1]), vec_add(s[2], s[3])));
}

static void sumsq_blocks(double* part, const acc* x, int64_t n)
{
#pragma omp for schedule(static)
    for (int64_t i = 0; i < n; i += BLOCK)
        part[i / BLOCK] = block_sumsq(x + i, GR_MIN(n - i, BLOCK));
}

void OP(sumsq)(gr_dev* dev, double* out, const void* x, int64_t n)
{
    enum {
        GROUP = 512 * BLOCK
    }; /* the sums of its blocks are kept until they are added in order */
    double part[GROUP / BLOCK];
    *out = 0;
    for (int64_t first = 0; first < n; first += GROUP) {
        const int64_t count = GR_MIN(n - first, GROUP);
        OP_RUN(op_threads(dev, OP_ELEMENT * (double)count),
               sumsq_blocks(part, (const acc*)x + first, count));
        for (int64_t b = 0; b < (count + BLOCK - 1) / BLOCK; b++) *out += part[b];
    }
}

/* The step's constants, rounded once. */
typedef struct adam {
    vec grad_scale, beta1, rest1, beta2, rest2, rate1, correct2, eps, keep;
} adam;

/* One lane block; returns the new master values. */
static vec adam_step(const adam* a, vec p, vec* m, vec* v, vec g)
{
    g = vec_mul(g, a->grad_scale);
    *m = vec_fma(a->beta1, *m, vec_mul(a->rest1, g));
    *v = vec_fma(a->beta2, *v, vec_mul(a->rest2, vec_mul(g, g)));
    const vec size = vec_add(vec_sqrt(vec_mul(*v, a->correct2)), a->eps);
    return vec_fnma(a->rate1, vec_div(*m, size), vec_mul(p, a->keep));
}

static void adam_range(const adam* a, acc* master, real* weight, acc* m, acc* v, const acc* grad,
                       int64_t n)
{
    for (int64_t i = 0; i < n; i += VEC) {
        const int left = (int)GR_MIN(n - i, VEC);
        vec m1 = vec_load_part(m + i, left), v1 = vec_load_part(v + i, left);
        const vec p =
            adam_step(a, vec_load_part(master + i, left), &m1, &v1, vec_load_part(grad + i, left));
        vec_store_part(m + i, m1, left);
        vec_store_part(v + i, v1, left);
        vec_store_part(master + i, p, left);
        vec_store_real_part(weight + i, p, left);
    }
}

static void adam_blocks(const adam* a, acc* master, real* weight, acc* m, acc* v, const acc* grad,
                        int64_t n)
{
#pragma omp for schedule(static)
    for (int64_t i = 0; i < n; i += BLOCK)
        adam_range(a, master + i, weight + i, m + i, v + i, grad + i, GR_MIN(n - i, BLOCK));
}

void OP(adamw_f32)(gr_dev* dev, void* master, void* weight, void* m, void* v, const void* grad,
                   int64_t n, const gr_adamw* params)
{
    const double bias1 = 1 - pow(params->beta1, (double)params->step);
    const double bias2 = 1 - pow(params->beta2, (double)params->step);
    const adam a = {
        .grad_scale = vec_set((acc)params->grad_scale),
        .beta1 = vec_set((acc)params->beta1),
        .rest1 = vec_set((acc)(1 - params->beta1)),
        .beta2 = vec_set((acc)params->beta2),
        .rest2 = vec_set((acc)(1 - params->beta2)),
        .rate1 = vec_set((acc)(params->lr / bias1)),
        .correct2 = vec_set((acc)(1 / bias2)),
        .eps = vec_set((acc)params->eps),
        .keep = vec_set((acc)(1 - params->lr * params->weight_decay)),
    };
    OP_RUN(op_threads(dev, 4 * OP_ELEMENT * (double)n),
           adam_blocks(&a, master, weight, m, v, grad, n));
}
