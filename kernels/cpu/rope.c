/* rope.c - splits qkv into heads, normalises them (Qwen3) and turns them by their position.
 *
 * Angles are doubles, a function of position and pair alone, and so are their sines and cosines before
 * they are rounded once. Sums over rows (gradients of the norm weights) run in row order: threads
 * split the pairs, never the rows. */
#include "kernels/cpu/norm.h"

/* ---- angles ---------------------------------------------------------------------------------------- */

#define MAX_PAIRS 256

typedef struct rotation {
    acc cos[MAX_PAIRS], sin[MAX_PAIRS];
} rotation;

/* Radians per position: theta^(-2i/d), scaled, for pair i; zero for the rest. */
typedef struct speeds {
    double of[MAX_PAIRS];
} speeds;

static speeds rope_speeds(const gr_heads* a)
{
    GR_ASSERT(a->d % 2 == 0 && a->d / 2 <= MAX_PAIRS, "d=%d", a->d);
    speeds s = {{1}};
    const double ratio = pow(a->theta, -2.0 / a->d);
    for (int i = 1; i < a->d / 2; i++) s.of[i] = s.of[i - 1] * ratio;
    for (int i = 0; i < a->d / 2; i++) s.of[i] = gr_rope_scaled(&a->scaling, s.of[i]);
    return s;
}

#define WIDE 8
typedef double wide __attribute__((vector_size(WIDE * sizeof(double))));
typedef int64_t wide_bits __attribute__((vector_size(WIDE * sizeof(double))));

/* Sines and cosines of WIDE angles position * speed: x = n pi/2 + r with |r| <= pi/4, then Taylor
 * series, good to 1e-16. Cody and Waite's reduction: pi/2 in parts of 22 bits, so that n times a part
 * is exact for 31 bits of n. No fma, hence the same bits everywhere. */
static void turn(acc* sine, acc* cosine, const double* speed, double position)
{
    wide x;
    memcpy(&x, speed, sizeof x);
    x *= position;
    const double shift = 6755399441055744.0; /* 1.5 2^52: adding it rounds to a whole number */
    const wide shifted = x * 0.6366197723675814 + shift, n = shifted - shift;
    wide r = x - n * 1.570796012878418;
    r -= n * 3.139164164167596e-07;
    r -= n * 6.223371969669989e-14;
    r -= n * 2.0222662487959506e-21;
    const wide r2 = r * r;
    wide s = r2 * (-1.0 / 1307674368000) + 1.0 / 6227020800;
    s = s * r2 - 1.0 / 39916800;
    s = s * r2 + 1.0 / 362880;
    s = s * r2 - 1.0 / 5040;
    s = s * r2 + 1.0 / 120;
    s = s * r2 - 1.0 / 6;
    s = s * r2 * r + r;
    wide c = r2 * (1.0 / 20922789888000) - 1.0 / 87178291200;
    c = c * r2 + 1.0 / 479001600;
    c = c * r2 - 1.0 / 3628800;
    c = c * r2 + 1.0 / 40320;
    c = c * r2 - 1.0 / 720;
    c = c * r2 + 1.0 / 24;
    c = c * r2 * r2 - 0.5 * r2 + 1;
    /* odd n swaps the two; the sine changes sign for n mod 4 = 2, 3, the cosine for 1, 2 */
    const wide_bits q = (wide_bits)shifted, odd = -(q & 1);
    const wide_bits sin_bits = (odd & (wide_bits)c) | (~odd & (wide_bits)s);
    const wide_bits cos_bits = (odd & (wide_bits)s) | (~odd & (wide_bits)c);
    const wide sin_x = (wide)(sin_bits ^ ((q & 2) << 62));
    const wide cos_x = (wide)(cos_bits ^ (((q + 1) & 2) << 62));
    for (int i = 0; i < WIDE; i++) sine[i] = (acc)sin_x[i];
    for (int i = 0; i < WIDE; i++) cosine[i] = (acc)cos_x[i];
}

/* Pairs [first, last), and others up to a multiple of WIDE of them. */
static void rotation_at(rotation* r, const speeds* s, int32_t position, int first, int last)
{
    _Static_assert(MAX_PAIRS % WIDE == 0 && VEC % WIDE == 0, "whole groups");
    for (int i = first; i < last; i += WIDE) turn(r->sin + i, r->cos + i, s->of + i, position);
}

/* ---- forward ----------------------------------------------------------------------------------------- */

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
    const speeds* speed;
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

/* A sine and cosine cost about this many multiply-adds of a matrix product. */
#define ANGLE_WORK 200.0

void OP(qkv_rope_fwd)(gr_dev* dev, void* q, void* k, void* v, void* rstd, const void* qkv,
                      const void* q_norm, const void* k_norm, const int32_t* position, int64_t n,
                      const gr_heads* heads)
{
    const speeds speed = rope_speeds(heads);
    const rope_fwd a = {q, k, v, rstd, qkv, q_norm, k_norm, position, &speed, n};
    const double elements = (double)(heads->h + 2 * heads->hk) * heads->d;
    OP_RUN(op_threads(dev, (double)n * (OP_ELEMENT * elements + ANGLE_WORK * heads->d / 2)),
           rope_rows(&a, heads));
}

/* ---- backward ---------------------------------------------------------------------------------------- */

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
    const speeds* speed;
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
    const speeds speed = rope_speeds(heads);
    const rope_bwd a = {
        .group = {{dq, q_norm, dq_norm, 0, heads->h}, {dk, k_norm, dk_norm, heads->h, heads->hk}},
        .dqkv = dqkv,
        .dv = dv,
        .qkv = qkv,
        .rstd = rstd,
        .position = position,
        .speed = &speed,
        .n = n};
    const double elements = (double)(heads->h + 2 * heads->hk) * heads->d;
    OP_RUN(op_threads(dev, (double)n * (OP_ELEMENT * elements + ANGLE_WORK * heads->d / 2)),
           rope_bwd_rows(&a, heads));
}
