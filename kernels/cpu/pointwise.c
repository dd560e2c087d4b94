/* pointwise.c - embedding, norm, rotary positions and gated activation, forward and backward.
 *
 * Forward rows are independent. Sums over rows (gradients of weights) run in row order: threads
 * split the columns, never the rows. */
#include "kernels/cpu/cpu.h"

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

/* 1 / sqrt(mean(x^2) + eps) */
static acc inverse_rms(const real* x, int c, float eps)
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

/* One lane block of the gradient through y = x r w, with dot = mean over the row of w dy x r. */
static vec norm_dx(vec dy, vec x, vec w, vec r, vec dot)
{
    return vec_mul(r, vec_fnma(vec_mul(x, r), dot, vec_mul(dy, w)));
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

/* ---- rotary positions -------------------------------------------------------------------------- */

#define MAX_PAIRS 256

typedef struct rotation {
    acc cos[MAX_PAIRS], sin[MAX_PAIRS];
} rotation;

/* Radians per position of pair i. */
static void rope_speeds(double* speed, const gr_heads* a)
{
    GR_ASSERT(a->d % 2 == 0 && a->d / 2 <= MAX_PAIRS, "d=%d", a->d);
    for (int i = 0; i < a->d / 2; i++) speed[i] = pow(a->theta, -2.0 * i / a->d);
}

static void rotation_at(rotation* r, const double* speed, int32_t position, int first, int last)
{
    for (int i = first; i < last; i++) {
        double s, c;
        sincos(position * speed[i], &s, &c);
        r->cos[i] = (acc)c;
        r->sin[i] = (acc)s;
    }
}

/* One head: y = rotate(x r w), w NULL: rotate(x). */
static void rope_head(real* y, const real* x, const real* w, acc rstd, const rotation* rot, int d)
{
    const int half = d / 2;
    for (int i = 0; i < half; i += VEC) {
        const int left = GR_MIN(half - i, VEC);
        vec a = vec_load_real_part(x + i, left), b = vec_load_real_part(x + half + i, left);
        if (w != NULL) {
            const vec r = vec_set(rstd);
            a = vec_mul(vec_mul(a, r), vec_load_real_part(w + i, left));
            b = vec_mul(vec_mul(b, r), vec_load_real_part(w + half + i, left));
        }
        const vec c = vec_load_part(rot->cos + i, left), s = vec_load_part(rot->sin + i, left);
        vec_store_real_part(y + i, vec_fnma(b, s, vec_mul(a, c)), left);
        vec_store_real_part(y + half + i, vec_fma(a, s, vec_mul(b, c)), left);
    }
}

typedef struct rope_fwd {
    real *q, *k, *v;
    acc* rstd;
    const real *qkv, *q_norm, *k_norm;
    const int32_t* position;
    const double* speed;
    int64_t n;
} rope_fwd;

static void rope_row(const rope_fwd* a, const gr_heads* heads, int64_t i)
{
    const int h = heads->h, hk = heads->hk, d = heads->d;
    const real* row = a->qkv + i * (h + 2 * hk) * d;
    rotation rot;
    rotation_at(&rot, a->speed, a->position[i], 0, d / 2);
    for (int j = 0; j < h + hk; j++) {
        const real* x = row + (int64_t)j * d;
        const real* w = j < h ? a->q_norm : a->k_norm;
        real* y = j < h ? a->q + (i * h + j) * d : a->k + (i * hk + j - h) * d;
        acc r = 1;
        if (w != NULL) {
            r = inverse_rms(x, d, heads->eps);
            if (a->rstd != NULL) a->rstd[i * (h + hk) + j] = r;
        }
        rope_head(y, x, w, r, &rot, d);
    }
    memcpy(a->v + i * hk * d, row + (int64_t)(h + hk) * d, (size_t)hk * (size_t)d * sizeof *row);
}

static void rope_rows(const rope_fwd* a, const gr_heads* heads)
{
#pragma omp for schedule(static)
    for (int64_t i = 0; i < a->n; i++) rope_row(a, heads, i);
}

/* Sine and cosine in double cost about this many multiply-adds of a matrix product. */
#define ANGLE_WORK 2000.0

void OP(qkv_rope_fwd)(gr_dev* dev, void* q, void* k, void* v, void* rstd, const void* qkv,
                      const void* q_norm, const void* k_norm, const int32_t* position, int64_t n,
                      const gr_heads* heads)
{
    double speed[MAX_PAIRS];
    rope_speeds(speed, heads);
    const rope_fwd a = {q, k, v, rstd, qkv, q_norm, k_norm, position, speed, n};
    const double elements = (double)(heads->h + 2 * heads->hk) * heads->d;
    OP_RUN(op_threads(dev, (double)n * (OP_ELEMENT * elements + ANGLE_WORK * heads->d / 2)),
           rope_rows(&a, heads));
}

/* The two halves of a gradient, turned back by the rotation. */
typedef struct vec_pair {
    vec a, b;
} vec_pair;
static vec_pair rotate_back(const real* dy, const rotation* rot, int i, int left, int half)
{
    const vec a = vec_load_real_part(dy + i, left), b = vec_load_real_part(dy + half + i, left);
    const vec c = vec_load_part(rot->cos + i, left), s = vec_load_part(rot->sin + i, left);
    return (vec_pair){vec_fma(b, s, vec_mul(a, c)), vec_fnma(a, s, vec_mul(b, c))};
}

static void rope_bwd_head(real* dx, const real* dy, const real* x, const real* w, acc rstd,
                          const rotation* rot, int d)
{
    const int half = d / 2;
    const vec r = vec_set(rstd);
    vec dot = vec_zero();
    for (int i = 0; w != NULL && i < half; i += VEC) {
        const int left = GR_MIN(half - i, VEC);
        const vec_pair g = rotate_back(dy, rot, i, left, half);
        const vec xa = vec_mul(vec_load_real_part(x + i, left), r);
        const vec xb = vec_mul(vec_load_real_part(x + half + i, left), r);
        dot = vec_fma(vec_mul(g.a, vec_load_real_part(w + i, left)), xa, dot);
        dot = vec_fma(vec_mul(g.b, vec_load_real_part(w + half + i, left)), xb, dot);
    }
    if (w != NULL) dot = vec_set(vec_sum(dot) / (acc)d);
    for (int i = 0; i < half; i += VEC) {
        const int left = GR_MIN(half - i, VEC);
        vec_pair g = rotate_back(dy, rot, i, left, half);
        if (w != NULL) {
            g.a = norm_dx(g.a, vec_load_real_part(x + i, left), vec_load_real_part(w + i, left), r,
                          dot);
            g.b = norm_dx(g.b, vec_load_real_part(x + half + i, left),
                          vec_load_real_part(w + half + i, left), r, dot);
        }
        vec_store_real_part(dx + i, g.a, left);
        vec_store_real_part(dx + half + i, g.b, left);
    }
}

/* What the backward reads of q or of k: `count` heads per row, the first at `first` in qkv. */
typedef struct head_group {
    const real* dy;
    const real* w;
    acc* dw;
    int first, count;
} head_group;

typedef struct rope_bwd {
    head_group group[2]; /* q, k */
    real* dqkv;
    const real *dv, *qkv;
    const acc* rstd;
    const int32_t* position;
    const double* speed;
    int64_t n;
} rope_bwd;

/* Norm weight gradients of up to VEC pairs from pair i on, over rows, then heads, in order. */
static void rope_dw_pairs(const rope_bwd* a, const gr_heads* heads, const head_group* g, int i)
{
    const int d = heads->d, half = d / 2, left = GR_MIN(half - i, VEC);
    vec sa = vec_load_part(g->dw + i, left), sb = vec_load_part(g->dw + half + i, left);
    for (int64_t row = 0; row < a->n; row++) {
        rotation rot;
        rotation_at(&rot, a->speed, a->position[row], i, i + left);
        for (int j = 0; j < g->count; j++) {
            const vec_pair dy = rotate_back(g->dy + (row * g->count + j) * d, &rot, i, left, half);
            const real* x = a->qkv + (row * (heads->h + 2 * heads->hk) + g->first + j) * d;
            const vec r = vec_set(a->rstd[row * (heads->h + heads->hk) + g->first + j]);
            sa = vec_fma(dy.a, vec_mul(vec_load_real_part(x + i, left), r), sa);
            sb = vec_fma(dy.b, vec_mul(vec_load_real_part(x + half + i, left), r), sb);
        }
    }
    vec_store_part(g->dw + i, sa, left);
    vec_store_part(g->dw + half + i, sb, left);
}

static void rope_bwd_row(const rope_bwd* a, const gr_heads* heads, int64_t i)
{
    const int h = heads->h, hk = heads->hk, d = heads->d;
    const int64_t at = i * (h + 2 * hk) * d, v_at = (int64_t)(h + hk) * d;
    rotation rot;
    rotation_at(&rot, a->speed, a->position[i], 0, d / 2);
    for (int j = 0; j < h + hk; j++) {
        const head_group* g = &a->group[j >= h];
        const acc r = g->w != NULL ? a->rstd[i * (h + hk) + j] : 1;
        const real* dy = g->dy + (i * g->count + j - g->first) * d;
        rope_bwd_head(a->dqkv + at + (int64_t)j * d, dy, a->qkv + at + (int64_t)j * d, g->w, r,
                      &rot, d);
    }
    memcpy(a->dqkv + at + v_at, a->dv + i * hk * d, (size_t)hk * (size_t)d * sizeof(real));
}

static void rope_bwd_rows(const rope_bwd* a, const gr_heads* heads)
{
    const int blocks = (heads->d / 2 + VEC - 1) / VEC;
#pragma omp for schedule(static) nowait
    for (int t = 0; t < 2 * blocks; t++) {
        const head_group* g = &a->group[t / blocks];
        if (g->w != NULL) rope_dw_pairs(a, heads, g, t % blocks * VEC);
    }
#pragma omp for schedule(static)
    for (int64_t i = 0; i < a->n; i++) rope_bwd_row(a, heads, i);
}

void OP(qkv_rope_bwd)(gr_dev* dev, void* dqkv, void* dq_norm, void* dk_norm, const void* dq,
                      const void* dk, const void* dv, const void* qkv, const void* q_norm,
                      const void* k_norm, const void* rstd, const int32_t* position, int64_t n,
                      const gr_heads* heads)
{
    double speed[MAX_PAIRS];
    rope_speeds(speed, heads);
    const rope_bwd a = {
        .group = {{dq, q_norm, dq_norm, 0, heads->h}, {dk, k_norm, dk_norm, heads->h, heads->hk}},
        .dqkv = dqkv,
        .dv = dv,
        .qkv = qkv,
        .rstd = rstd,
        .position = position,
        .speed = speed,
        .n = n};
    const double elements = (double)(heads->h + 2 * heads->hk) * heads->d;
    OP_RUN(op_threads(dev, (double)n * (OP_ELEMENT * elements + ANGLE_WORK * heads->d / 2)),
           rope_bwd_rows(&a, heads));
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
