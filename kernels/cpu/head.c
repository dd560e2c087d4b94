/* head.c - LM head: logits of a block of rows, then each row's log-prob, entropy, sample, gradient.
 *
 * A row's sums run over the vocabulary in one fixed order, in measuring and in training alike, so the
 * log-prob that the sampler reports is the trainer's to the last bit. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/sampling.h"

#include "host/arena.h"

#include <omp.h>

#define HEAD_ROWS 64 /* logits at a time */
#define LOSS_ROWS \
    256             /* the same where dw, as large as the weights, is read and written per block */
#define SUM_IDS 512 /* summed in acc; these sums are added up in double */

/* ---- one row ------------------------------------------------------------------------------------------ */

/* Of z = logits / temperature. */
typedef struct row_stats {
    acc max;
    double log_sum; /* of exp(z - max) */
    double entropy;
} row_stats;

static acc inverse(float temperature) { return 1 / (acc)temperature; }

/* z of up to 16 ids; lanes past the end count nothing: finite, but their exponential is 0. */
static vec load_z(const acc* logits, int left, vec inv_t)
{
    if (left >= VEC) return vec_mul(vec_load(logits), inv_t);
    static const acc lane[VEC] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return vec_if_less(vec_load(lane), vec_set((acc)left),
                       vec_mul(vec_load_part(logits, left), inv_t), vec_set((acc)-1e30));
}

static row_stats stats_of(const acc* logits, int v, acc inv_temperature)
{
    const vec inv_t = vec_set(inv_temperature);
    vec max = load_z(logits, v, inv_t);
    for (int i = VEC; i < v; i += VEC) max = vec_max(max, load_z(logits + i, v - i, inv_t));
    const acc m = vec_max_all(max);
    double sum = 0, weighted = 0; /* of e = exp(z - m) and of e (z - m) */
    for (int first = 0; first < v; first += SUM_IDS) {
        vec s = vec_zero(), t = vec_zero();
        for (int i = first; i < GR_MIN(first + SUM_IDS, v); i += VEC) {
            const vec x = vec_sub(load_z(logits + i, v - i, inv_t), vec_set(m));
            const vec e = vec_exp(x);
            s = vec_add(s, e);
            t = vec_fma(e, x, t);
        }
        sum += (double)vec_sum(s);
        weighted += (double)vec_sum(t);
    }
    const double log_sum = log(sum);
    return (row_stats){m, log_sum, log_sum - weighted / sum};
}

static acc logp_of(const row_stats* s, acc z) { return (acc)((double)(z - s->max) - s->log_sum); }

/* logits -> dL/dlogits, in place: with g = dL/dlogp and e = dL/dH,
 *   dz_x = g (1[x = target] - p_x) - e p_x (ln p_x + H), divided by the temperature. */
static void gradient_row(acc* logits, int v, acc inv_temperature, const row_stats* s,
                         int32_t target, acc g, acc e)
{
    const vec inv_t = vec_set(inv_temperature), max = vec_set(s->max);
    const vec log_sum = vec_set((acc)s->log_sum);
    const vec slope = vec_set(-e * inv_temperature);
    const vec level = vec_set((-g - e * (acc)s->entropy) * inv_temperature);
    for (int i = 0; i < v; i += VEC) {
        const int left = GR_MIN(v - i, VEC);
        const vec log_p = vec_sub(vec_sub(load_z(logits + i, left, inv_t), max), log_sum);
        const vec dz = vec_mul(vec_exp(log_p), vec_fma(slope, log_p, level));
        vec_store_part(logits + i, dz, left);
    }
    logits[target] += g * inv_temperature;
}

/* ---- logits of a block ---------------------------------------------------------------------------------- */

/* Row i of a block has logits slot[i]: neighbours that read the same hidden row share them. */
typedef struct logits_block {
    acc* logits;   /* (rows, v) */
    real* hidden;  /* (rows, c) */
    int32_t* slot; /* (rows) */
    int64_t n_slots;
} logits_block;

static void block_layout(logits_block* b, gr_arena* a, int64_t rows, int c, int v)
{
    b->logits = GR_PUSH(a, acc, rows * v);
    b->hidden = GR_PUSH(a, real, rows * c);
    b->slot = GR_PUSH(a, int32_t, rows);
}

static void block_logits(gr_dev* dev, logits_block* b, const real* hidden, const void* packed,
                         const int32_t* src, int64_t rows, int c, int v, bool share)
{
    b->n_slots = 0;
    for (int64_t i = 0; i < rows; i++) {
        if (!share || i == 0 || src[i] != src[i - 1])
            memcpy(b->hidden + b->n_slots++ * c, hidden + (int64_t)src[i] * c,
                   (size_t)c * sizeof(real));
        b->slot[i] = (int32_t)(b->n_slots - 1);
    }
    const gemm_args g = {.y = b->logits,
                         .x = b->hidden,
                         .packed = packed,
                         .n = b->n_slots,
                         .y_stride = v,
                         .m = v,
                         .k = c,
                         .y_acc = true};
    OP(gemm)(dev, &g);
}

/* ---- head ------------------------------------------------------------------------------------------------ */

typedef struct head_args {
    acc *logp, *entropy;
    int32_t* token;
    const int32_t* target;
    const gr_sampling* sampling;
    const uint64_t* uid;
    const int32_t* index;
    int64_t rows;
    int v;
    logits_block block;
    acc* work; /* (threads, 2, v) */
} head_args;

static void head_layout(head_args* h, gr_arena* a, const gr_dev* dev, int64_t r, int c, int v)
{
    block_layout(&h->block, a, GR_MIN(r, HEAD_ROWS), c, v);
    h->work = GR_PUSH(a, acc, (int64_t)dev->threads * 2 * v);
}

size_t OP(head_scratch)(const gr_dev* dev, int64_t r, int c, int v)
{
    gr_arena a = {0};
    head_args h = {0};
    head_layout(&h, &a, dev, r, c, v);
    return a.used;
}

static int32_t sample_row(const head_args* h, int64_t i, const acc* logits, const row_stats* s)
{
    acc* z = h->work + (int64_t)omp_get_thread_num() * 2 * h->v;
    const acc inv_t = inverse(h->sampling[i].temperature);
    for (int x = 0; x < h->v; x++) z[x] = logits[x] * inv_t;
    const sampling_row row = {.z = z,
                              .weight = z + h->v,
                              .v = h->v,
                              .max = s->max,
                              .uid = h->uid[i],
                              .index = h->index[i]};
    return OP(sample)(&row, &h->sampling[i]);
}

static void head_rows(const head_args* h)
{
#pragma omp for schedule(dynamic)
    for (int64_t i = 0; i < h->rows; i++) {
        const acc* logits = h->block.logits + (int64_t)h->block.slot[i] * h->v;
        const acc inv_t = inverse(h->sampling[i].temperature);
        const row_stats s = stats_of(logits, h->v, inv_t);
        int32_t token;
        if (h->target != NULL)
            token = h->target[i];
        else
            token = h->token[i] = sample_row(h, i, logits, &s);
        h->logp[i] = logp_of(&s, logits[token] * inv_t);
        if (h->entropy != NULL) h->entropy[i] = (acc)s.entropy;
    }
}

/* The arguments of a block that starts at row `first`. */
static head_args head_from(const head_args* h, int64_t first, int64_t rows)
{
    head_args b = *h;
    b.rows = rows;
    b.logp += first;
    if (h->entropy != NULL) b.entropy += first;
    if (h->target != NULL) b.target += first;
    if (h->token != NULL) b.token += first;
    if (h->uid != NULL) b.uid += first;
    if (h->index != NULL) b.index += first;
    b.sampling += first;
    return b;
}

void OP(head)(gr_dev* dev, void* logp, void* entropy, int32_t* token, const void* hidden,
              const void* packed, const int32_t* src, const int32_t* target,
              const gr_sampling* sampling, const uint64_t* uid, const int32_t* index, int64_t r,
              int c, int v, void* scratch)
{
    head_args h = {.logp = logp,
                   .entropy = entropy,
                   .token = token,
                   .target = target,
                   .sampling = sampling,
                   .uid = uid,
                   .index = index,
                   .v = v};
    gr_arena a = {.base = scratch, .cap = SIZE_MAX};
    head_layout(&h, &a, dev, r, c, v);
    for (int64_t first = 0; first < r; first += HEAD_ROWS) {
        const int64_t rows = GR_MIN(r - first, HEAD_ROWS);
        block_logits(dev, &h.block, hidden, packed, src + first, rows, c, v, true);
        const head_args b = head_from(&h, first, rows);
        OP_RUN(op_threads(dev, OP_ELEMENT * (double)rows * v), head_rows(&b));
    }
}

/* ---- head_loss ------------------------------------------------------------------------------------------- */

typedef struct loss_args {
    const gr_loss_rows* in;
    acc *logp, *entropy;
    acc inv_temperature;
    int c, v;
    logits_block block;
    row_stats* stats; /* (LOSS_ROWS) of the block's rows, like the next three */
    acc *dlogp, *dentropy;
    acc* dx;         /* (LOSS_ROWS, c) gradient by the hidden row that is read */
    int32_t* active; /* rows of the block that have a gradient */
    int64_t first, rows, n_active;
    acc* dhidden;   /* (r, c) sums of dx over the rows that read the same hidden row */
    int32_t* reads; /* (r) and which of these a row adds to */
    int64_t n_read;
} loss_args;

static void loss_layout(loss_args* h, gr_arena* a, int64_t r, int c, int v)
{
    const int64_t rows = GR_MIN(r, LOSS_ROWS);
    block_layout(&h->block, a, rows, c, v);
    h->stats = GR_PUSH(a, row_stats, rows);
    h->dlogp = GR_PUSH(a, acc, rows);
    h->dentropy = GR_PUSH(a, acc, rows);
    h->dx = GR_PUSH(a, acc, rows * c);
    h->active = GR_PUSH(a, int32_t, rows);
    h->dhidden = GR_PUSH(a, acc, r * c);
    h->reads = GR_PUSH(a, int32_t, r);
}

size_t OP(head_loss_scratch)(const gr_dev* dev, int64_t r, int c, int v)
{
    (void)dev;
    gr_arena a = {0};
    loss_args h = {0};
    loss_layout(&h, &a, r, c, v);
    return a.used;
}

/* Numbers the hidden rows that are read. The output holds the numbers meanwhile. */
static void number_hidden(loss_args* h, real* dhidden, int64_t r)
{
    const int32_t none = -1;
    GR_ASSERT((size_t)h->c * sizeof(real) >= sizeof none);
    for (int64_t i = 0; i < r; i++)
        memcpy(dhidden + (int64_t)h->in->src[i] * h->c, &none, sizeof none);
    for (int64_t i = 0; i < r; i++) {
        real* at = dhidden + (int64_t)h->in->src[i] * h->c;
        int32_t number;
        memcpy(&number, at, sizeof number);
        if (number == none) {
            number = (int32_t)h->n_read++;
            memcpy(at, &number, sizeof number);
        }
        h->reads[i] = number;
    }
    memset(h->dhidden, 0, (size_t)(h->n_read * h->c) * sizeof(acc));
}

static void measure_rows(const loss_args* h)
{
#pragma omp for schedule(dynamic)
    for (int64_t i = 0; i < h->rows; i++) {
        const acc* logits = h->block.logits + i * h->v;
        const acc z = logits[h->in->target[h->first + i]] * h->inv_temperature;
        h->stats[i] = stats_of(logits, h->v, h->inv_temperature);
        h->logp[h->first + i] = logp_of(&h->stats[i], z);
        h->entropy[h->first + i] = (acc)h->stats[i].entropy;
    }
}

static void block_loss(gr_dev* dev, loss_args* h, gr_loss_sums* sums, const gr_loss_params* params)
{
    const gr_loss_rows* in = h->in;
    const acc* ref = in->ref_logp;
    const int64_t at = h->first;
    OP(policy_loss)
    (dev, h->dlogp, h->dentropy, sums, h->logp + at, h->entropy + at, (const acc*)in->old_logp + at,
     ref == NULL ? NULL : ref + at, (const acc*)in->a_pos + at, (const acc*)in->a_neg + at,
     (const acc*)in->w + at, h->rows, params);
}

/* Moves the rows that have a gradient to the front of the block. */
static void keep_active(loss_args* h)
{
    const int64_t c = h->c, v = h->v;
    h->n_active = 0;
    for (int64_t i = 0; i < h->rows; i++) {
        if (h->dlogp[i] == 0 && h->dentropy[i] == 0) continue;
        const int64_t to = h->n_active++;
        h->active[to] = (int32_t)i;
        if (to == i) continue;
        memcpy(h->block.logits + to * v, h->block.logits + i * v, (size_t)v * sizeof(acc));
        memcpy(h->block.hidden + to * c, h->block.hidden + i * c, (size_t)c * sizeof(real));
    }
}

static void gradient_rows(const loss_args* h)
{
#pragma omp for schedule(dynamic)
    for (int64_t k = 0; k < h->n_active; k++) {
        const int64_t i = h->active[k];
        gradient_row(h->block.logits + k * h->v, h->v, h->inv_temperature, &h->stats[i],
                     h->in->target[h->first + i], h->dlogp[i], h->dentropy[i]);
    }
}

/* dw += dz^T hidden; dhidden += dz w, in row order. */
static void block_backward(gr_dev* dev, const loss_args* h, acc* dw, const void* packed_t)
{
    const gemm_args g = {.y = h->dx,
                         .x = h->block.logits,
                         .packed = packed_t,
                         .n = h->n_active,
                         .y_stride = h->c,
                         .m = h->c,
                         .k = h->v,
                         .x_acc = true,
                         .y_acc = true};
    OP(gemm)(dev, &g);
    OP(gemm_dw)(dev, dw, h->block.logits, true, h->v, h->block.hidden, h->n_active, h->v, h->c);
    for (int64_t k = 0; k < h->n_active; k++) {
        const acc* dx = h->dx + k * h->c;
        acc* sum = h->dhidden + (int64_t)h->reads[h->first + h->active[k]] * h->c;
        for (int i = 0; i < h->c; i++) sum[i] += dx[i];
    }
}

static void store_dhidden(const loss_args* h, real* dhidden, int64_t r, int64_t n)
{
    memset(dhidden, 0, (size_t)(n * h->c) * sizeof(real));
    for (int64_t i = 0; i < r; i++) {
        const acc* sum = h->dhidden + (int64_t)h->reads[i] * h->c;
        real* to = dhidden + (int64_t)h->in->src[i] * h->c;
        for (int k = 0; k < h->c; k++) to[k] = acc_to_real(sum[k]);
    }
}

void OP(head_loss)(gr_dev* dev, void* dhidden, void* dw, void* logp, void* entropy,
                   gr_loss_sums* sums, const void* hidden, const void* packed, const void* packed_t,
                   const gr_loss_rows* rows, int64_t r, int64_t n, int c, int v,
                   const gr_loss_params* params, void* scratch)
{
    loss_args h = {.in = rows,
                   .logp = logp,
                   .entropy = entropy,
                   .inv_temperature = inverse(params->temperature),
                   .c = c,
                   .v = v};
    gr_arena a = {.base = scratch, .cap = SIZE_MAX};
    loss_layout(&h, &a, r, c, v);
    number_hidden(&h, dhidden, r);
    for (h.first = 0; h.first < r; h.first += LOSS_ROWS) {
        h.rows = GR_MIN(r - h.first, LOSS_ROWS);
        const double work = OP_ELEMENT * (double)h.rows * v;
        block_logits(dev, &h.block, hidden, packed, rows->src + h.first, h.rows, c, v, false);
        OP_RUN(op_threads(dev, work), measure_rows(&h));
        block_loss(dev, &h, sums, params);
        keep_active(&h);
        OP_RUN(op_threads(dev, work), gradient_rows(&h));
        block_backward(dev, &h, dw, packed_t);
    }
    store_dhidden(&h, dhidden, r, n);
}
