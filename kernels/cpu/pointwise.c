/* pointwise.c - embedding, norm and gated activation, forward and backward.
 *
 * Forward rows are independent. Sums over rows (gradients of weights) run in row order: threads
 * split the columns, never the rows. */
#include "kernels/cpu/norm.h"

#define COLUMNS (8 * VEC) /* of a block that one thread sums over all rows */

/* ---- embedding --------------------------------------------------------------------------------- */

static void embed_rows(real* y, const real* table, const int32_t* token, int64_t n, int c)
{
#pragma omp for schedule(static)
    for (int64_t i = 0; i < n; i++)
        memcpy(y + i * c, table + (int64_t)token[i] * c, (size_t)c * sizeof *y);
}

void OP(embed_fwd)(gr_dev* dev, void* y, const void* table, const int32_t* token, int64_t n, int c)
{
    OP_RUN(op_threads(dev, OP_ELEMENT * (double)n * c), embed_rows(y, table, token, n, c));
}

static void add_row(acc* sum, const real* x, int c)
{
    int i = 0;
    for (; i + VEC <= c; i += VEC)
        vec_store(sum + i, vec_add(vec_load(sum + i), vec_load_real(x + i)));
    if (i < c) {
        const vec s = vec_add(vec_load_part(sum + i, c - i), vec_load_real_part(x + i, c - i));
        vec_store_part(sum + i, s, c - i);
    }
}

static void embed_columns(acc* dtable, const real* dy, const int32_t* token, int64_t n, int c)
{
#pragma omp for schedule(static)
    for (int j = 0; j < c; j += COLUMNS)
        for (int64_t i = 0; i < n; i++)
            add_row(dtable + (int64_t)token[i] * c + j, dy + i * c + j, GR_MIN(c - j, COLUMNS));
}

void OP(embed_bwd)(gr_dev* dev, void* dtable, const void* dy, const int32_t* token, int64_t n,
                   int c)
{
    OP_RUN(op_threads(dev, OP_ELEMENT * (double)n * c), embed_columns(dtable, dy, token, n, c));
}

/* ---- RMS norm ---------------------------------------------------------------------------------- */

static void residual_row(real* sum, const real* x, const real* delta, int c)
{
    int i = 0;
    for (; i + VEC <= c; i += VEC)
        vec_store_real(sum + i, vec_add(vec_load_real(x + i), vec_load_real(delta + i)));
    if (i < c) {
        const int left = c - i;
        const vec s = vec_add(vec_load_real_part(x + i, left), vec_load_real_part(delta + i, left));
        vec_store_real_part(sum + i, s, left);
    }
}

static void scale_row(real* y, const real* x, acc rstd, const real* w, int c)
{
    const vec r = vec_set(rstd);
    int i = 0;
    for (; i + VEC <= c; i += VEC)
        vec_store_real(y + i, vec_mul(vec_mul(vec_load_real(x + i), r), vec_load_real(w + i)));
    if (i < c) {
        const int left = c - i;
        const vec v = vec_mul(vec_load_real_part(x + i, left), r);
        vec_store_real_part(y + i, vec_mul(v, vec_load_real_part(w + i, left)), left);
    }
}

static void norm_rows(real* y, real* sum, acc* rstd, const real* x, const real* delta,
                      const real* w, int64_t n, int c, float eps)
{
#pragma omp for schedule(static)
    for (int64_t i = 0; i < n; i++) {
        const real* row = x + i * c;
        if (delta != NULL) {
            residual_row(sum + i * c, row, delta + i * c, c);
            row = sum + i * c;
        }
        const acc r = inverse_rms(row, c, eps);
        if (rstd != NULL) rstd[i] = r;
        scale_row(y + i * c, row, r, w, c);
    }
}

void OP(rmsnorm_fwd)(gr_dev* dev, void* y, void* sum, void* rstd, const void* x, const void* delta,
                     const void* w, int64_t n, int c, float eps)
{
    OP_RUN(op_threads(dev, 2 * OP_ELEMENT * (double)n * c),
           norm_rows(y, sum, rstd, x, delta, w, n, c, eps));
}

static void norm_bwd_row(real* dx, const real* dy, const real* x, const real* w, acc rstd,
                         const real* dsum, int c)
{
    const vec r = vec_set(rstd);
    vec s = vec_zero();
    for (int i = 0; i < c; i += VEC) {
        const int left = GR_MIN(c - i, VEC);
        const vec wdy = vec_mul(vec_load_real_part(dy + i, left), vec_load_real_part(w + i, left));
        s = vec_fma(wdy, vec_mul(vec_load_real_part(x + i, left), r), s);
    }
    const vec dot = vec_set(vec_sum(s) / (acc)c);
    for (int i = 0; i < c; i += VEC) {
        const int left = GR_MIN(c - i, VEC);
        vec d = norm_dx(vec_load_real_part(dy + i, left), vec_load_real_part(x + i, left),
                        vec_load_real_part(w + i, left), r, dot);
        if (dsum != NULL) d = vec_add(d, vec_load_real_part(dsum + i, left));
        vec_store_real_part(dx + i, d, left);
    }
}

/* dw += dy x rstd, one row. */
static void norm_dw_row(acc* dw, const real* dy, const real* x, acc rstd, int c)
{
    const vec r = vec_set(rstd);
    for (int i = 0; i < c; i += VEC) {
        const int left = GR_MIN(c - i, VEC);
        const vec xhat = vec_mul(vec_load_real_part(x + i, left), r);
        const vec sum =
            vec_fma(vec_load_real_part(dy + i, left), xhat, vec_load_part(dw + i, left));
        vec_store_part(dw + i, sum, left);
    }
}

static void norm_bwd(real* dx, acc* dw, const real* dy, const real* x, const real* w,
                     const acc* rstd, const real* dsum, int64_t n, int c)
{
#pragma omp for schedule(static) nowait
    for (int j = 0; j < c; j += COLUMNS)
        for (int64_t i = 0; i < n; i++)
            norm_dw_row(dw + j, dy + i * c + j, x + i * c + j, rstd[i], GR_MIN(c - j, COLUMNS));
#pragma omp for schedule(static)
    for (int64_t i = 0; i < n; i++)
        norm_bwd_row(dx + i * c, dy + i * c, x + i * c, w, rstd[i],
                     dsum != NULL ? dsum + i * c : NULL, c);
}

void OP(rmsnorm_bwd)(gr_dev* dev, void* dx, void* dw, const void* dy, const void* x, const void* w,
                     const void* rstd, const void* dsum, int64_t n, int c)
{
    OP_RUN(op_threads(dev, 4 * OP_ELEMENT * (double)n * c),
           norm_bwd(dx, dw, dy, x, w, rstd, dsum, n, c));
}

/* ---- gated activation --------------------------------------------------------------------------- */

static vec sigmoid(vec x)
{
    const vec one = vec_set(1);
    return vec_div(one, vec_add(one, vec_exp(vec_sub(vec_zero(), x))));
}

static void swiglu_row(real* y, const real* gu, int f)
{
    for (int i = 0; i < f; i += VEC) {
        const int left = GR_MIN(f - i, VEC);
        const vec g = vec_load_real_part(gu + i, left), u = vec_load_real_part(gu + f + i, left);
        vec_store_real_part(y + i, vec_mul(vec_mul(g, sigmoid(g)), u), left);
    }
}

static void swiglu_rows(real* y, const real* gu, int64_t n, int f)
{
#pragma omp for schedule(static)
    for (int64_t i = 0; i < n; i++) swiglu_row(y + i * f, gu + i * 2 * f, f);
}

void OP(swiglu_fwd)(gr_dev* dev, void* y, const void* gu, int64_t n, int f)
{
    OP_RUN(op_threads(dev, 2 * OP_ELEMENT * (double)n * f), swiglu_rows(y, gu, n, f));
}

static void swiglu_bwd_row(real* dgu, const real* dy, const real* gu, int f)
{
    const vec one = vec_set(1);
    for (int i = 0; i < f; i += VEC) {
        const int left = GR_MIN(f - i, VEC);
        const vec g = vec_load_real_part(gu + i, left), u = vec_load_real_part(gu + f + i, left);
        const vec d = vec_load_real_part(dy + i, left), s = sigmoid(g);
        const vec slope = vec_mul(s, vec_fma(g, vec_sub(one, s), one)); /* of silu at g */
        vec_store_real_part(dgu + i, vec_mul(vec_mul(d, u), slope), left);
        vec_store_real_part(dgu + f + i, vec_mul(d, vec_mul(g, s)), left);
    }
}

static void swiglu_bwd_rows(real* dgu, const real* dy, const real* gu, int64_t n, int f)
{
#pragma omp for schedule(static)
    for (int64_t i = 0; i < n; i++) swiglu_bwd_row(dgu + i * 2 * f, dy + i * f, gu + i * 2 * f, f);
}

void OP(swiglu_bwd)(gr_dev* dev, void* dgu, const void* dy, const void* gu, int64_t n, int f)
{
    OP_RUN(op_threads(dev, 3 * OP_ELEMENT * (double)n * f), swiglu_bwd_rows(dgu, dy, gu, n, f));
}
