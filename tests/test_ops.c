/* Pointwise ops, matrix products and the optimizer on every table this CPU can run: against plain
 * loops in fp64, against finite differences, and bit for bit against themselves in other batches, on
 * other numbers of threads and with other instruction sets. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/kernels.h"

/* ---- an op as the tests see it ------------------------------------------------------------------------ */

enum { MAX_IN = 3, MAX_OUT = 3 };

typedef struct run run;
typedef struct op_case op_case;
struct op_case {
    const char* name;
    int n_in, n_out;
    int in[MAX_IN]; /* elements: per row, or of the whole weight */
    bool weight[MAX_IN];
    int out[MAX_OUT];
    int stats; /* acc elements per row kept for the backward */
    int index; /* index (n) is below this */
    int c, m, k;
    bool library; /* bf16 products */
    gr_heads heads;
    void (*forward)(run* r, int64_t first, int64_t n);
    void (*backward)(run* r);
    void (*plain)(const op_case* o, double* const* out, double* const* in, const int32_t* index,
                  int64_t n);
};

struct run {
    gr_dev dev;
    const op_case* o;
    int64_t n;
    tensor in[MAX_IN];
    tensor dout[MAX_OUT];
    void* out[MAX_OUT];
    void* din[MAX_IN]; /* real, or acc for weights */
    void* stats;
    int32_t *index, *host_index;
};

static int64_t in_size(const op_case* o, int i, int64_t n)
{
    return o->weight[i] ? o->in[i] : n * o->in[i];
}
static void* in_at(const run* r, int i, int64_t row)
{
    return gr_real_at(&r->dev, r->in[i].dev, r->o->weight[i] ? 0 : row * r->o->in[i]);
}
static void* out_at(const run* r, int i, int64_t row)
{
    return gr_real_at(&r->dev, r->out[i], row * r->o->out[i]);
}
static void* stats_at(const run* r, int64_t row)
{
    return r->o->stats > 0 ? gr_acc_at(&r->dev, r->stats, row * r->o->stats) : NULL;
}

/* The same `seed` gives the same numbers on every device, up to rounding to its real. */
static bool run_open(run* r, const op_case* o, const table* t, int threads, int64_t n,
                     uint64_t seed)
{
    *r = (run){.o = o, .n = n};
    const gr_dev_options options = {.name = t->name,
                                    .dtype = t->dtype,
                                    .matmul = o->library ? GR_MATMUL_BF16 : GR_MATMUL_EXACT,
                                    .threads = threads};
    if (gr_dev_open(&r->dev, &options) != GR_OK) return false;
    rng g = {.key = seed};
    for (int i = 0; i < o->n_in; i++) {
        r->in[i] = random_real(&r->dev, &g, in_size(o, i, n), 2);
        r->din[i] = o->weight[i] ? new_acc(&r->dev, o->in[i]) : new_real(&r->dev, n * o->in[i]);
    }
    for (int i = 0; i < o->n_out; i++) {
        r->dout[i] = random_real(&r->dev, &g, n * o->out[i], 1);
        r->out[i] = new_real(&r->dev, n * o->out[i]);
    }
    r->stats = new_acc(&r->dev, n * o->stats);
    r->host_index = malloc((size_t)n * sizeof(int32_t));
    for (int64_t i = 0; i < n; i++) r->host_index[i] = below(&g, GR_MAX(o->index, 1));
    r->index = dev_copy(&r->dev, r->host_index, (size_t)n * sizeof(int32_t));
    return true;
}

static void run_close(run* r)
{
    for (int i = 0; i < r->o->n_in; i++) {
        free_tensor(&r->dev, &r->in[i]);
        gr_dev_free(&r->dev, r->din[i]);
    }
    for (int i = 0; i < r->o->n_out; i++) {
        free_tensor(&r->dev, &r->dout[i]);
        gr_dev_free(&r->dev, r->out[i]);
    }
    gr_dev_free(&r->dev, r->stats);
    gr_dev_free(&r->dev, r->index);
    free(r->host_index);
    gr_dev_close(&r->dev);
}

/* Bytes of output i, of gradient i. */
static size_t out_bytes(const run* r, int i)
{
    return (size_t)(r->n * r->o->out[i]) * r->dev.real_bytes;
}
static size_t din_bytes(const run* r, int i)
{
    const size_t size = r->o->weight[i] ? r->dev.acc_bytes : r->dev.real_bytes;
    return (size_t)in_size(r->o, i, r->n) * size;
}

static double* din_host(run* r, int i)
{
    const int64_t n = in_size(r->o, i, r->n);
    double* g = malloc((size_t)n * sizeof *g);
    if (r->o->weight[i])
        gr_dev_read_acc(&r->dev, g, r->din[i], n);
    else
        gr_dev_read_real(&r->dev, g, r->din[i], n);
    return g;
}

static double largest(const double* x, int64_t n)
{
    double m = 0;
    for (int64_t i = 0; i < n; i++) m = fmax(m, fabs(x[i]));
    return m;
}

/* ---- embedding ------------------------------------------------------------------------------------------ */

static void embed_forward(run* r, int64_t first, int64_t n)
{
    r->dev.ops->embed_fwd(&r->dev, out_at(r, 0, first), in_at(r, 0, 0), r->index + first, n,
                          r->o->c);
}
static void embed_backward(run* r)
{
    r->dev.ops->embed_bwd(&r->dev, r->din[0], r->dout[0].dev, r->index, r->n, r->o->c);
}
static void embed_plain(const op_case* o, double* const* out, double* const* in,
                        const int32_t* index, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        for (int j = 0; j < o->c; j++) out[0][i * o->c + j] = in[0][index[i] * o->c + j];
}
static op_case embed_case(int vocab, int c)
{
    return (op_case){.name = "embed",
                     .n_in = 1,
                     .n_out = 1,
                     .in = {vocab * c},
                     .weight = {true},
                     .out = {c},
                     .index = vocab,
                     .c = c,
                     .forward = embed_forward,
                     .backward = embed_backward,
                     .plain = embed_plain};
}

/* ---- RMS norm: inputs w, x and perhaps delta; outputs y and perhaps the sum ---------------------------- */

static const float norm_eps = 1e-5f;

static void norm_forward(run* r, int64_t first, int64_t n)
{
    const bool residual = r->o->n_in == 3;
    r->dev.ops->rmsnorm_fwd(&r->dev, out_at(r, 0, first), residual ? out_at(r, 1, first) : NULL,
                            stats_at(r, first), in_at(r, 1, first),
                            residual ? in_at(r, 2, first) : NULL, in_at(r, 0, 0), n, r->o->c,
                            norm_eps);
}
static void norm_backward(run* r)
{
    const bool residual = r->o->n_in == 3;
    r->dev.ops->rmsnorm_bwd(&r->dev, r->din[1], r->din[0], r->dout[0].dev,
                            residual ? r->out[1] : r->in[1].dev, r->in[0].dev, r->stats,
                            residual ? r->dout[1].dev : NULL, r->n, r->o->c);
    if (residual) gr_dev_write(&r->dev, r->din[2], r->din[1], din_bytes(r, 1));
}
static void norm_plain(const op_case* o, double* const* out, double* const* in,
                       const int32_t* index, int64_t n)
{
    (void)index;
    for (int64_t i = 0; i < n; i++) {
        double square = 0;
        for (int j = 0; j < o->c; j++) {
            const double s = in[1][i * o->c + j] + (o->n_in == 3 ? in[2][i * o->c + j] : 0);
            if (o->n_in == 3) out[1][i * o->c + j] = s;
            out[0][i * o->c + j] = s * in[0][j];
            square += s * s;
        }
        for (int j = 0; j < o->c; j++)
            out[0][i * o->c + j] /= sqrt(square / o->c + (double)norm_eps);
    }
}
static op_case norm_case(int c, bool residual)
{
    return (op_case){.name = "rmsnorm",
                     .n_in = residual ? 3 : 2,
                     .n_out = residual ? 2 : 1,
                     .in = {c, c, c},
                     .weight = {true},
                     .out = {c, c},
                     .stats = 1,
                     .c = c,
                     .forward = norm_forward,
                     .backward = norm_backward,
                     .plain = norm_plain};
}

/* ---- rotary positions: inputs qkv and perhaps the norm weights; outputs q, k, v ------------------------- */

static void rope_forward(run* r, int64_t first, int64_t n)
{
    const bool norm = r->o->n_in == 3;
    r->dev.ops->qkv_rope_fwd(&r->dev, out_at(r, 0, first), out_at(r, 1, first), out_at(r, 2, first),
                             norm ? stats_at(r, first) : NULL, in_at(r, 0, first),
                             norm ? in_at(r, 1, 0) : NULL, norm ? in_at(r, 2, 0) : NULL,
                             r->index + first, n, &r->o->heads);
}
static void rope_backward(run* r)
{
    const bool norm = r->o->n_in == 3;
    r->dev.ops->qkv_rope_bwd(&r->dev, r->din[0], norm ? r->din[1] : NULL, norm ? r->din[2] : NULL,
                             r->dout[0].dev, r->dout[1].dev, r->dout[2].dev, r->in[0].dev,
                             norm ? r->in[1].dev : NULL, norm ? r->in[2].dev : NULL, r->stats,
                             r->index, r->n, &r->o->heads);
}
static void rope_plain(const op_case* o, double* const* out, double* const* in,
                       const int32_t* index, int64_t n)
{
    const int h = o->heads.h, hk = o->heads.hk, d = o->heads.d, all = h + 2 * hk;
    for (int64_t i = 0; i < n * all; i++) {
        const int j = (int)(i % all), which = j < h ? 0 : j < h + hk ? 1 : 2;
        const int64_t row = i / all;
        double* y = out[which] + (row * (which == 0 ? h : hk) + j -
                                  (j < h        ? 0
                                   : j < h + hk ? h
                                                : h + hk)) *
                                     d;
        const double* x = in[0] + i * d;
        double square = 0;
        for (int e = 0; e < d; e++) square += x[e] * x[e];
        const double r = 1 / sqrt(square / d + (double)o->heads.eps);
        for (int e = 0; e < d; e++) {
            if (which == 2) {
                y[e] = x[e];
                continue;
            }
            const int pair = e % (d / 2), other = (e + d / 2) % d;
            const double* w = o->n_in == 3 ? in[1 + which] : NULL;
            const double a = w != NULL ? x[e] * r * w[e] : x[e];
            const double b = w != NULL ? x[other] * r * w[other] : x[other];
            const gr_rope_scaling* s = &o->heads.scaling;
            double speed = pow(o->heads.theta, -2.0 * pair / d);
            const double wave = 2 * M_PI / speed; /* tokens per turn */
            if (s->factor > 0 && wave > s->original / s->low) {
                speed /= s->factor;
            } else if (s->factor > 0 && wave > s->original / s->high) {
                const double mix = (s->original / wave - s->low) / (s->high - s->low);
                speed = (1 - mix) * speed / s->factor + mix * speed;
            }
            const double angle = index[row] * speed;
            y[e] = a * cos(angle) + (e < d / 2 ? -b : b) * sin(angle);
        }
    }
}
static op_case rope_case(int h, int hk, int d, bool norm)
{
    return (op_case){.name = norm ? "qkv_rope with norm" : "qkv_rope",
                     .n_in = norm ? 3 : 1,
                     .n_out = 3,
                     .in = {(h + 2 * hk) * d, d, d},
                     .weight = {false, true, true},
                     .out = {h * d, hk * d, hk * d},
                     .stats = h + hk,
                     .index = 5000,
                     .heads = {.h = h, .hk = hk, .d = d, .theta = 10000.0, .eps = 1e-6f},
                     .forward = rope_forward,
                     .backward = rope_backward,
                     .plain = rope_plain};
}

/* ---- gated activation ------------------------------------------------------------------------------------ */

static void swiglu_forward(run* r, int64_t first, int64_t n)
{
    r->dev.ops->swiglu_fwd(&r->dev, out_at(r, 0, first), in_at(r, 0, first), n, r->o->c);
}
static void swiglu_backward(run* r)
{
    r->dev.ops->swiglu_bwd(&r->dev, r->din[0], r->dout[0].dev, r->in[0].dev, r->n, r->o->c);
}
static void swiglu_plain(const op_case* o, double* const* out, double* const* in,
                         const int32_t* index, int64_t n)
{
    (void)index;
    for (int64_t i = 0; i < n; i++)
        for (int j = 0; j < o->c; j++) {
            const double g = in[0][i * 2 * o->c + j], u = in[0][i * 2 * o->c + o->c + j];
            out[0][i * o->c + j] = g / (1 + exp(-g)) * u;
        }
}
static op_case swiglu_case(int f)
{
    return (op_case){.name = "swiglu",
                     .n_in = 1,
                     .n_out = 1,
                     .in = {2 * f},
                     .out = {f},
                     .c = f,
                     .forward = swiglu_forward,
                     .backward = swiglu_backward,
                     .plain = swiglu_plain};
}

/* ---- matrix product: inputs w (m, k), x and perhaps a bias ------------------------------------------------ */

static void* pack(run* r, bool transpose)
{
    const int m = r->o->m, k = r->o->k;
    void* p = dev_bytes(&r->dev, r->dev.ops->matmul_packed_bytes(&r->dev, m, k, transpose));
    r->dev.ops->matmul_pack(&r->dev, p, r->in[0].dev, m, k, transpose);
    return p;
}
static void matmul_forward(run* r, int64_t first, int64_t n)
{
    void* packed = pack(r, false);
    r->dev.ops->matmul(&r->dev, out_at(r, 0, first), in_at(r, 1, first), packed,
                       r->o->n_in == 3 ? in_at(r, 2, 0) : NULL, n, r->o->m, r->o->k);
    gr_dev_free(&r->dev, packed);
}
static void matmul_backward(run* r)
{
    const int m = r->o->m, k = r->o->k;
    const size_t bytes = r->dev.ops->matmul_dw_scratch(&r->dev, r->n, m, k);
    void* scratch = new_scratch(&r->dev, bytes);
    void* packed = pack(r, true);
    r->dev.ops->matmul(&r->dev, r->din[1], r->dout[0].dev, packed, NULL, r->n, k, m);
    r->dev.ops->matmul_dw(&r->dev, r->din[0], r->o->n_in == 3 ? r->din[2] : NULL, r->dout[0].dev,
                          r->in[1].dev, r->n, m, k, scratch);
    gr_dev_free(&r->dev, packed);
    free_scratch(&r->dev, scratch, bytes);
}
static void matmul_plain(const op_case* o, double* const* out, double* const* in,
                         const int32_t* index, int64_t n)
{
    (void)index;
    for (int64_t i = 0; i < n; i++)
        for (int j = 0; j < o->m; j++) {
            double s = o->n_in == 3 ? in[2][j] : 0;
            for (int q = 0; q < o->k; q++) s += in[1][i * o->k + q] * in[0][j * o->k + q];
            out[0][i * o->m + j] = s;
        }
}
static op_case matmul_case(int m, int k, bool bias)
{
    return (op_case){.name = "matmul",
                     .n_in = bias ? 3 : 2,
                     .n_out = 1,
                     .in = {m * k, k, m},
                     .weight = {true, false, true},
                     .out = {m},
                     .m = m,
                     .k = k,
                     .forward = matmul_forward,
                     .backward = matmul_backward,
                     .plain = matmul_plain};
}

/* ---- the properties ---------------------------------------------------------------------------------------- */

/* Widths: less than a vector, a whole one, odd ones over several; k past one block of the product. */
static int all_cases(op_case* o)
{
    int n = 0;
    static const int width[] = {1, 16, 37, 129};
    for (int i = 0; i < GR_COUNT(width); i++) {
        o[n++] = embed_case(11, width[i]);
        o[n++] = norm_case(width[i], false);
        o[n++] = norm_case(width[i], true);
        o[n++] = swiglu_case(width[i]);
    }
    o[n++] = rope_case(1, 1, 2, true);
    o[n++] = rope_case(3, 1, 38, false);
    o[n++] = rope_case(4, 2, 64, true);
    o[n++] = rope_case(2, 2, 16, false);
    o[n++] = rope_case(2, 1, 32, false);
    o[n - 1].heads.scaling = (gr_rope_scaling){.factor = 8, .low = 1, .high = 4, .original = 512};
    o[n++] = matmul_case(1, 1, false);
    o[n++] = matmul_case(7, 5, true);
    o[n++] = matmul_case(33, 70, true);
    o[n++] = matmul_case(64, 64, false);
    o[n++] = matmul_case(130, 96, true);
    return n;
}
enum { MAX_CASES = 40 };

static void check_forward(run* r, double tolerance)
{
    const op_case* o = r->o;
    double *want[MAX_OUT] = {NULL}, *in[MAX_IN] = {NULL};
    for (int i = 0; i < o->n_out; i++)
        want[i] = malloc((size_t)(r->n * o->out[i] + 1) * sizeof(double));
    for (int i = 0; i < o->n_in; i++) in[i] = r->in[i].host;
    o->plain(o, want, in, r->host_index, r->n);
    o->forward(r, 0, r->n);
    for (int i = 0; i < o->n_out; i++) {
        const int64_t count = r->n * o->out[i];
        double* got = malloc((size_t)count * sizeof *got);
        gr_dev_read_real(&r->dev, got, r->out[i], count);
        const double scale = fmax(largest(want[i], count), 1e-3);
        for (int64_t j = 0; j < count; j++)
            GR_ASSERT(fabs(got[j] - want[i][j]) <= tolerance * scale,
                      "%s on %s: row %d of %d, output %d: %g, not %g", o->name, r->dev.detail,
                      (int)(j / o->out[i]), (int)r->n, i, got[j], want[i][j]);
        free(got);
        free(want[i]);
    }
}

static void test_forward_equals_plain_loops(void** state)
{
    (void)state;
    static const int rows[] = {1, 3, 17, 255, 257};
    op_case o[MAX_CASES];
    const int n = all_cases(o);
    for (int t = 0; t < GR_COUNT(tables); t++)
        for (int i = 0; i < n; i++)
            for (int j = 0; j < GR_COUNT(rows); j++) {
                run r;
                if (!run_open(&r, &o[i], &tables[t], 2, rows[j], (uint64_t)(100 * i + j))) {
                    if (i + j == 0) print_message("skipped: %s\n", gr_last_error_text());
                    continue;
                }
                check_forward(&r, tables[t].tolerance);
                run_close(&r);
            }
}

/* Products longer than one block of k, rows a power of two apart, and outputs over several tasks. */
static void test_long_products(void** state)
{
    (void)state;
    static const int shape[][3] = {{40, 70, 3200}, {2, 600, 1540}, {19, 33, 1024}, {400, 33, 129}};
    for (int t = 0; t < GR_COUNT(tables); t++)
        for (int i = 0; i < GR_COUNT(shape); i++) {
            const op_case o = matmul_case(shape[i][1], shape[i][2], true);
            run r;
            if (!run_open(&r, &o, &tables[t], 2, shape[i][0], (uint64_t)i)) continue;
            check_forward(&r, tables[t].tolerance);
            run_close(&r);
        }
}

/* Loss = sum of dout * out; every input element is moved both ways. */
static double loss_of(run* r)
{
    r->o->forward(r, 0, r->n);
    double loss = 0;
    for (int i = 0; i < r->o->n_out; i++)
        for (int64_t j = 0; j < r->n * r->o->out[i]; j++)
            loss += r->dout[i].host[j] * ((const double*)r->out[i])[j];
    return loss;
}

static void check_gradient(run* r, int i)
{
    double *g = din_host(r, i), *x = r->in[i].dev;
    const int64_t n = in_size(r->o, i, r->n);
    const double h = 1e-5, scale = fmax(largest(g, n), 1);
    for (int64_t j = 0; j < n; j++) {
        const double kept = x[j];
        x[j] = kept + h;
        const double up = loss_of(r);
        x[j] = kept - h;
        const double down = loss_of(r);
        x[j] = kept;
        GR_ASSERT(fabs((up - down) / (2 * h) - g[j]) <= 1e-6 * scale,
                  "%s: input %d, element %d: slope %g, gradient %g", r->o->name, i, (int)j,
                  (up - down) / (2 * h), g[j]);
    }
    free(g);
}

static void test_backward_equals_finite_differences(void** state)
{
    (void)state;
    op_case o[MAX_CASES];
    const int n = all_cases(o);
    for (int i = 0; i < n; i++) {
        run r;
        assert_true(run_open(&r, &o[i], &tables[0], 1, 3, (uint64_t)i));
        o[i].forward(&r, 0, r.n);
        o[i].backward(&r);
        for (int j = 0; j < o[i].n_in; j++) check_gradient(&r, j);
        run_close(&r);
    }
}

/* Same inputs, rounded to the table's real, on the fp64 table. */
static void check_backward(run* r, const op_case* plain, double tolerance)
{
    const op_case* o = r->o;
    run exact;
    assert_true(run_open(&exact, plain, &tables[0], 1, r->n, 0));
    for (int i = 0; i < o->n_in; i++)
        gr_dev_write_real(&exact.dev, exact.in[i].dev, r->in[i].host, r->in[i].n);
    for (int i = 0; i < o->n_out; i++)
        gr_dev_write_real(&exact.dev, exact.dout[i].dev, r->dout[i].host, r->dout[i].n);
    gr_dev_write(&exact.dev, exact.index, r->host_index, (size_t)r->n * sizeof(int32_t));
    for (int k = 0; k < 2; k++) {
        run* one = k == 0 ? r : &exact;
        o->forward(one, 0, r->n);
        o->backward(one);
    }
    for (int i = 0; i < o->n_in; i++) {
        double *got = din_host(r, i), *want = din_host(&exact, i);
        const int64_t count = in_size(o, i, r->n);
        const double scale = fmax(largest(want, count), 0.1);
        for (int64_t j = 0; j < count; j++)
            GR_ASSERT(fabs(got[j] - want[j]) <= tolerance * scale,
                      "%s on %s: %d rows, gradient %d, element %d: %g, not %g", o->name,
                      r->dev.detail, (int)r->n, i, (int)j, got[j], want[j]);
        free(got);
        free(want);
    }
    run_close(&exact);
}

static void test_backward_equals_fp64(void** state)
{
    (void)state;
    static const int rows[] = {1, 17, 257, 600};
    op_case o[MAX_CASES];
    const int n = all_cases(o);
    for (int t = 1; t < GR_COUNT(tables); t++)
        for (int i = 0; i < n; i++)
            for (int j = 0; j < GR_COUNT(rows); j++) {
                run r;
                if (!run_open(&r, &o[i], &tables[t], 2, rows[j], (uint64_t)(100 * i + j))) continue;
                check_backward(&r, &o[i], tables[t].tolerance);
                run_close(&r);
            }
}

static void assert_same_rows(run* a, run* b, int64_t first, int64_t n)
{
    for (int i = 0; i < a->o->n_out; i++)
        GR_ASSERT(dev_same(&a->dev, out_at(a, i, first), &b->dev, out_at(b, i, first),
                           (size_t)(n * a->o->out[i]) * a->dev.real_bytes),
                  "%s on %s: rows from %d in a batch of %d differ", a->o->name, a->dev.detail,
                  (int)first, (int)n);
}

static void test_rows_do_not_depend_on_the_batch(void** state)
{
    (void)state;
    enum { N = 300 };
    static const int batch[] = {1, 2, 7, 40};
    op_case o[MAX_CASES];
    int n = all_cases(o);
    o[n++] = matmul_case(90, 3100, true);
    o[n++] = matmul_case(70, 1024, false);
    for (int t = 0; t < GR_COUNT(tables); t++)
        for (int i = 0; i < n; i++) {
            run all, part;
            if (!run_open(&all, &o[i], &tables[t], 1, N, (uint64_t)i)) continue;
            assert_true(run_open(&part, &o[i], &tables[t], 2, N, (uint64_t)i));
            o[i].forward(&all, 0, N);
            o[i].forward(&part, 0, N);
            assert_same_rows(&all, &part, 0, N);
            rng g = {.key = (uint64_t)i};
            for (int j = 0; j < GR_COUNT(batch); j++) {
                const int64_t first = below(&g, N - batch[j]);
                o[i].forward(&part, first, batch[j]);
                assert_same_rows(&all, &part, first, batch[j]);
            }
            run_close(&all);
            run_close(&part);
        }
}

/* Forward and backward on two devices give the same bits. */
static void assert_same_run(const op_case* o, const table* ta, int threads_a, const table* tb,
                            int threads_b)
{
    run a, b;
    if (!run_open(&a, o, ta, threads_a, 300, 5)) return;
    if (run_open(&b, o, tb, threads_b, 300, 5)) {
        for (int k = 0; k < 2; k++) {
            o->forward(k == 0 ? &a : &b, 0, a.n);
            o->backward(k == 0 ? &a : &b);
        }
        for (int i = 0; i < o->n_out; i++)
            GR_ASSERT(dev_same(&a.dev, a.out[i], &b.dev, b.out[i], out_bytes(&a, i)),
                      "%s: %s, %s: output %d", o->name, a.dev.detail, b.dev.detail, i);
        for (int i = 0; i < o->n_in; i++)
            GR_ASSERT(dev_same(&a.dev, a.din[i], &b.dev, b.din[i], din_bytes(&a, i)),
                      "%s: %s, %s: gradient %d", o->name, a.dev.detail, b.dev.detail, i);
        run_close(&b);
    }
    run_close(&a);
}

static void test_bits_do_not_depend_on_threads(void** state)
{
    (void)state;
    op_case o[MAX_CASES];
    const int n = all_cases(o);
    for (int t = 0; t < GR_COUNT(tables); t++)
        for (int i = 0; i < n; i++) assert_same_run(&o[i], &tables[t], 1, &tables[t], 2 + (i == 0));
}

#ifndef GR_TEST_GPU
static void test_avx2_and_avx512_give_the_same_bits(void** state)
{
    (void)state;
    op_case o[MAX_CASES];
    int n = all_cases(o);
    o[n++] = matmul_case(90, 3100, true);
    for (int i = 0; i < n; i++) {
        assert_same_run(&o[i], &tables[2], 2, &tables[3], 2);
        assert_same_run(&o[i], &tables[5], 2, &tables[6], 2);
    }
}
#endif

/* ---- what the cases above leave out -------------------------------------------------------------------------- */

static void test_no_rows(void** state)
{
    (void)state;
    op_case o[MAX_CASES];
    const int n = all_cases(o);
    for (int t = 0; t < GR_COUNT(tables); t++)
        for (int i = 0; i < n; i++) {
            run r;
            if (!run_open(&r, &o[i], &tables[t], 2, 0, 1)) continue;
            o[i].forward(&r, 0, 0);
            o[i].backward(&r);
            for (int j = 0; j < o[i].n_in; j++) {
                double* g = din_host(&r, j);
                assert_true(largest(g, in_size(&o[i], j, 0)) <= 0);
                free(g);
            }
            run_close(&r);
        }
}

/* The residual sum is exact up to one rounding, ties to even. */
static void test_residual_is_rounded_once(void** state)
{
    (void)state;
    const op_case o = norm_case(129, true);
    for (int t = 0; t < GR_COUNT(tables); t++) {
        run r;
        if (!run_open(&r, &o, &tables[t], 1, 50, 3)) continue;
        const int64_t n = r.n * o.c;
        double *want = malloc((size_t)n * sizeof *want), *got = malloc((size_t)n * sizeof *got);
        void* rounded = new_real(&r.dev, n);
        for (int64_t i = 0; i < n; i++) want[i] = r.in[1].host[i] + r.in[2].host[i];
        gr_dev_write_real(&r.dev, rounded, want, n);
        o.forward(&r, 0, r.n);
        assert_true(dev_same(&r.dev, rounded, &r.dev, r.out[1], (size_t)n * r.dev.real_bytes));
        free(want);
        free(got);
        gr_dev_free(&r.dev, rounded);
        run_close(&r);
    }
}

/* Every token the same id, gradients of very different size: only the token order gives these bits. */
static void test_embed_bwd_adds_in_token_order(void** state)
{
    (void)state;
    enum { N = 500, C = 37 };
    for (int t = 1; t < GR_COUNT(tables); t++) {
        if (tables[t].dtype != GR_F32) continue;
        const op_case o = embed_case(1, C);
        run r;
        if (!run_open(&r, &o, &tables[t], 2, N, 9)) continue;
        float want[C] = {0}, got[C], *dy = dev_read(&r.dev, r.dout[0].dev, N * C * sizeof *dy);
        for (int i = 0; i < N * C; i++) dy[i] *= i / C % 3 == 0 ? 1e6f : 1.0f;
        for (int i = 0; i < N * C; i++) want[i % C] += dy[i];
        gr_dev_write(&r.dev, r.dout[0].dev, dy, N * C * sizeof *dy);
        o.backward(&r);
        gr_dev_read(&r.dev, got, r.din[0], sizeof got);
        assert_memory_equal(got, want, sizeof want);
        free(dy);
        run_close(&r);
    }
}

/* Gradients of weights go on from what is there: two halves of the rows give the bits of all. */
static void test_weight_gradients_add_up(void** state)
{
    (void)state;
    enum { N = 700, HALF = 333, M = 45, K = 70 };
    const op_case o = matmul_case(M, K, true);
    for (int t = 0; t < GR_COUNT(tables); t++) {
        run a, b;
        if (!run_open(&a, &o, &tables[t], 2, N, 4)) continue;
        assert_true(run_open(&b, &o, &tables[t], 2, N, 4));
        o.backward(&a);
        const gr_ops* ops = b.dev.ops;
        ops->matmul_dw(&b.dev, b.din[0], b.din[2], b.dout[0].dev, b.in[1].dev, HALF, M, K, NULL);
        ops->matmul_dw(&b.dev, b.din[0], b.din[2], gr_real_at(&b.dev, b.dout[0].dev, HALF * M),
                       gr_real_at(&b.dev, b.in[1].dev, HALF * K), N - HALF, M, K, NULL);
        assert_true(dev_same(&a.dev, a.din[0], &b.dev, b.din[0], din_bytes(&a, 0)));
        assert_true(dev_same(&a.dev, a.din[2], &b.dev, b.din[2], din_bytes(&a, 2)));
        run_close(&a);
        run_close(&b);
    }
}

/* Packing w with transpose is packing w^T. */
static void test_pack_transposes(void** state)
{
    (void)state;
    enum { M = 45, K = 70 };
    for (int t = 0; t < GR_COUNT(tables); t++) {
        gr_dev dev;
        if (!open_table(&dev, &tables[t], 2)) continue;
        rng g = {.key = 1};
        tensor w = random_real(&dev, &g, M * K, 1), turned = random_real(&dev, &g, M * K, 1);
        for (int i = 0; i < M * K; i++) turned.host[i % K * M + i / K] = w.host[i];
        gr_dev_write_real(&dev, turned.dev, turned.host, M * K);
        const size_t bytes = dev.ops->matmul_packed_bytes(&dev, M, K, true);
        assert_int_equal(bytes, dev.ops->matmul_packed_bytes(&dev, K, M, false));
        void *a = new_scratch(&dev, bytes), *b = new_scratch(&dev, bytes);
        dev.ops->matmul_pack(&dev, a, w.dev, M, K, true);
        dev.ops->matmul_pack(&dev, b, turned.dev, K, M, false);
        assert_true(dev_same(&dev, a, &dev, b, bytes));
        free_scratch(&dev, a, bytes);
        free_scratch(&dev, b, bytes);
        free_tensor(&dev, &w);
        free_tensor(&dev, &turned);
        gr_dev_close(&dev);
    }
}

/* Products through the library, with operands rounded to bf16. */
static void test_bf16_products(void** state)
{
    (void)state;
    static const int rows[] = {1, 3, 31, 300}, shape[][2] = {{7, 5}, {64, 64}, {130, 96}};
    for (int t = 1; t < GR_COUNT(tables); t++)
        for (int i = 0; i < GR_COUNT(shape); i++)
            for (int j = 0; j < GR_COUNT(rows); j++) {
                op_case o = matmul_case(shape[i][0], shape[i][1], true), exact = o;
                o.library = true;
                run r;
                if (!run_open(&r, &o, &tables[t], 2, rows[j], 3)) {
                    if (i + j == 0) print_message("skipped: %s\n", gr_last_error_text());
                    continue;
                }
                check_forward(&r, 2e-2);
                check_backward(&r, &exact, 2e-2);
                assert_int_equal(gr_dev_sync(&r.dev), GR_OK);
                run_close(&r);
            }
}

/* ---- optimizer ------------------------------------------------------------------------------------------------ */

static tensor random_acc(gr_dev* dev, rng* r, int64_t n, double range)
{
    tensor t = {malloc((size_t)n * sizeof(double)), new_acc(dev, n), n};
    for (int64_t i = 0; i < n; i++) t.host[i] = range * (2 * uniform(r) - 1);
    gr_dev_write_acc(dev, t.dev, t.host, n);
    gr_dev_read_acc(dev, t.host, t.dev, n);
    return t;
}

static void test_sumsq(void** state)
{
    (void)state;
    static const int size[] = {0, 1, 15, 4096, 4097, 100003};
    for (int t = 0; t < GR_COUNT(tables); t++)
        for (int i = 0; i < GR_COUNT(size); i++) {
            gr_dev one, two;
            if (!open_table(&one, &tables[t], 1)) continue;
            assert_true(open_table(&two, &tables[t], 2));
            rng g = {.key = (uint64_t)i};
            tensor x = random_acc(&one, &g, size[i], 3);
            double want = 0, got[2] = {-1, -1}, *out = dev_bytes(&one, sizeof got);
            gr_dev_write(&one, out, got, sizeof got);
            for (int64_t j = 0; j < x.n; j++) want += x.host[j] * x.host[j];
            one.ops->sumsq(&one, &out[0], x.dev, x.n);
            assert_int_equal(gr_dev_sync(&one), GR_OK); /* each device has a queue of its own */
            two.ops->sumsq(&two, &out[1], x.dev, x.n);
            assert_int_equal(gr_dev_sync(&two), GR_OK);
            gr_dev_read(&one, got, out, sizeof got);
            gr_dev_free(&one, out);
            assert_true(fabs(got[0] - want) <= 1e-5 * want);
            assert_memory_equal(&got[0], &got[1], sizeof got[0]);
            free_tensor(&one, &x);
            gr_dev_close(&one);
            gr_dev_close(&two);
        }
}

/* Loshchilov & Hutter, algorithm 2, in fp64 on the device's own numbers. */
static void plain_adamw(double* p, double* m, double* v, const double* g, int64_t n,
                        const gr_adamw* a)
{
    for (int64_t i = 0; i < n; i++) {
        const double s = g[i] * a->grad_scale;
        m[i] = a->beta1 * m[i] + (1 - a->beta1) * s;
        v[i] = a->beta2 * v[i] + (1 - a->beta2) * s * s;
        const double mean = m[i] / (1 - pow(a->beta1, (double)a->step));
        const double size = sqrt(v[i] / (1 - pow(a->beta2, (double)a->step))) + a->eps;
        p[i] -= a->lr * (mean / size + a->weight_decay * p[i]);
    }
}

static void check_adamw(gr_dev* dev, int64_t n)
{
    rng r = {.key = (uint64_t)n};
    tensor p = random_acc(dev, &r, n, 1), m = random_acc(dev, &r, n, 0),
           v = random_acc(dev, &r, n, 0);
    void* weight = dev->dtype == GR_BF16 ? new_real(dev, n) : p.dev;
    double *got = malloc((size_t)n * sizeof *got), *kept = malloc((size_t)n * sizeof *kept);
    for (int step = 1; step <= 5; step++) {
        const gr_adamw a = {1e-2, 0.9, 0.95, 1e-8, 0.1, 0.5, step};
        tensor g = random_acc(dev, &r, n, 2);
        dev->ops->adamw_f32(dev, p.dev, weight, m.dev, v.dev, g.dev, n, &a);
        plain_adamw(p.host, m.host, v.host, g.host, n, &a);
        free_tensor(dev, &g);
    }
    gr_dev_read_acc(dev, got, p.dev, n);
    for (int64_t i = 0; i < n; i++) assert_true(fabs(got[i] - p.host[i]) <= 2e-6);
    gr_dev_read_real(dev, kept, weight, n);
    gr_dev_write_real(dev, weight, got, n); /* rounded as the op must have rounded */
    gr_dev_read_real(dev, got, weight, n);
    assert_memory_equal(got, kept, (size_t)n * sizeof *got);
    if (weight != p.dev) gr_dev_free(dev, weight);
    free(got);
    free(kept);
    free_tensor(dev, &p);
    free_tensor(dev, &m);
    free_tensor(dev, &v);
}

static void test_adamw(void** state)
{
    (void)state;
    static const int size[] = {1, 15, 4097, 30001};
    for (int t = 0; t < GR_COUNT(tables); t++)
        for (int i = 0; i < GR_COUNT(size); i++) {
            gr_dev dev;
            if (!open_table(&dev, &tables[t], 2)) continue;
            check_adamw(&dev, size[i]);
            gr_dev_close(&dev);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forward_equals_plain_loops),
        cmocka_unit_test(test_long_products),
        cmocka_unit_test(test_backward_equals_finite_differences),
        cmocka_unit_test(test_backward_equals_fp64),
        cmocka_unit_test(test_rows_do_not_depend_on_the_batch),
        cmocka_unit_test(test_bits_do_not_depend_on_threads),
        cmocka_unit_test(test_no_rows),
        cmocka_unit_test(test_residual_is_rounded_once),
        cmocka_unit_test(test_embed_bwd_adds_in_token_order),
        cmocka_unit_test(test_weight_gradients_add_up),
        cmocka_unit_test(test_pack_transposes),
        cmocka_unit_test(test_bf16_products),
        cmocka_unit_test(test_sumsq),
        cmocka_unit_test(test_adamw),
#ifndef GR_TEST_GPU
        cmocka_unit_test(test_avx2_and_avx512_give_the_same_bits),
#endif
    };
    return device_is_here() ? cmocka_run_group_tests(tests, NULL, NULL) : SKIPPED;
}
