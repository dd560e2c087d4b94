/* LM head and sampling: against plain formulas in fp64, finite differences, and the distribution that
 * sampling promises. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#ifndef GR_TEST_GPU
/* The noise of the plain C variant, to look at single words. */
#define GR_CPU_VARIANT f32_base
#define GR_CPU_F32     1
#define GR_CPU_BASE    1
#include "kernels/cpu/gumbel.h"
#endif
#include "tests/loss.h"

/* ---- a head ---------------------------------------------------------------------------------------------- */

typedef struct lm {
    gr_dev dev;
    int64_t n;
    int c, v;
    tensor hidden, w;
    void *packed, *packed_t;
    double* logits; /* (n, v) in fp64 */
} lm;

static void pack(lm* m)
{
    m->dev.ops->matmul_pack(&m->dev, m->packed, m->w.dev, m->v, m->c, false);
    m->dev.ops->matmul_pack(&m->dev, m->packed_t, m->w.dev, m->v, m->c, true);
    for (int64_t i = 0; i < m->n; i++)
        for (int x = 0; x < m->v; x++) {
            double sum = 0;
            for (int k = 0; k < m->c; k++)
                sum += m->hidden.host[i * m->c + k] * m->w.host[(int64_t)x * m->c + k];
            m->logits[i * m->v + x] = sum;
        }
}

static bool open_lm(lm* m, const table* t, int threads, rng* r, int64_t n, int c, int v)
{
    if (!open_table(&m->dev, t, threads)) return false;
    m->n = n;
    m->c = c;
    m->v = v;
    m->hidden = random_real(&m->dev, r, n * c, 1.5);
    m->w = random_real(&m->dev, r, (int64_t)v * c, 1.5);
    m->packed = dev_bytes(&m->dev, m->dev.ops->matmul_packed_bytes(&m->dev, v, c, false));
    m->packed_t = dev_bytes(&m->dev, m->dev.ops->matmul_packed_bytes(&m->dev, v, c, true));
    m->logits = malloc((size_t)(n * v) * sizeof(double));
    pack(m);
    return true;
}

static void close_lm(lm* m)
{
    free_tensor(&m->dev, &m->hidden);
    free_tensor(&m->dev, &m->w);
    gr_dev_free(&m->dev, m->packed);
    gr_dev_free(&m->dev, m->packed_t);
    free(m->logits);
    gr_dev_close(&m->dev);
}

/* Requests and answers of the head. */
typedef struct query {
    int32_t src[MAX_TOKENS], target[MAX_TOKENS], token[MAX_TOKENS], index[MAX_TOKENS];
    uint64_t uid[MAX_TOKENS];
    gr_sampling how[MAX_TOKENS];
    double logp[MAX_TOKENS], entropy[MAX_TOKENS];
    int64_t r;
} query;

/* The requests as the op reads them, on the device. */
typedef struct dev_query {
    int32_t *src, *target, *token, *index;
    uint64_t* uid;
    gr_sampling* how;
} dev_query;

static dev_query open_query(gr_dev* dev, const query* q)
{
    const size_t n = (size_t)q->r;
    return (dev_query){.src = dev_copy(dev, q->src, n * sizeof *q->src),
                       .target = dev_copy(dev, q->target, n * sizeof *q->target),
                       .token = dev_bytes(dev, n * sizeof *q->token),
                       .index = dev_copy(dev, q->index, n * sizeof *q->index),
                       .uid = dev_copy(dev, q->uid, n * sizeof *q->uid),
                       .how = dev_copy(dev, q->how, n * sizeof *q->how)};
}

static void close_query(gr_dev* dev, dev_query* d)
{
    void* of[] = {d->src, d->target, d->token, d->index, d->uid, d->how};
    for (int i = 0; i < GR_COUNT(of); i++) gr_dev_free(dev, of[i]);
}

static void run_head(lm* m, query* q, bool measure)
{
    gr_dev* dev = &m->dev;
    void *logp = new_acc(dev, q->r), *entropy = new_acc(dev, q->r);
    const size_t bytes = dev->ops->head_scratch(dev, q->r, m->c, m->v);
    void* scratch = new_scratch(dev, bytes);
    dev_query d = open_query(dev, q);
    dev->ops->head(dev, logp, entropy, measure ? NULL : d.token, m->hidden.dev, m->packed, d.src,
                   measure ? d.target : NULL, d.how, d.uid, d.index, q->r, m->c, m->v, scratch);
    if (!measure) gr_dev_read(dev, q->token, d.token, (size_t)q->r * sizeof *q->token);
    close_query(dev, &d);
    free_scratch(dev, scratch, bytes);
    gr_dev_read_acc(dev, q->logp, logp, q->r);
    gr_dev_read_acc(dev, q->entropy, entropy, q->r);
    gr_dev_free(dev, logp);
    gr_dev_free(dev, entropy);
}

static const gr_sampling plain = {.temperature = 1, .top_p = 1};

static void random_query(query* q, const lm* m, rng* r, int64_t n)
{
    q->r = n;
    for (int64_t i = 0; i < n; i++) {
        q->src[i] = i > 0 && below(r, 3) == 0 ? q->src[i - 1] : below(r, (int)m->n);
        q->target[i] = below(r, m->v);
        q->uid[i] = r->key * 1000003u + (uint64_t)below(r, 1000);
        q->index[i] = below(r, 2000);
        q->how[i] = plain;
        q->how[i].temperature = below(r, 2) == 0 ? 1 : (float)(0.3 + 2 * uniform(r));
    }
}

typedef struct softmax {
    double log_sum, entropy; /* log of sum of exp(z) */
} softmax;

static softmax softmax_of(const double* logits, int v, double temperature)
{
    double max = -HUGE_VAL, sum = 0, weighted = 0;
    for (int x = 0; x < v; x++) max = fmax(max, logits[x] / temperature);
    for (int x = 0; x < v; x++) {
        const double d = logits[x] / temperature - max;
        sum += exp(d);
        weighted += d * exp(d);
    }
    return (softmax){max + log(sum), log(sum) - weighted / sum};
}

static void measures_match_plain_sums(void** state)
{
    (void)state;
    static const int sizes[][2] = {{24, 1000}, {7, 37}, {3, 5}, {33, 2049}, {2, 1}};
    rng r = {.key = 3};
    for (int t = 0; t < GR_COUNT(tables); t++)
        for (int i = 0; i < GR_COUNT(sizes); i++) {
            lm m;
            static query q;
            if (!open_lm(&m, &tables[t], 2, &r, 9, sizes[i][0], sizes[i][1])) continue;
            random_query(&q, &m, &r, 100);
            run_head(&m, &q, true);
            for (int64_t k = 0; k < q.r; k++) {
                const double* logits = m.logits + q.src[k] * m.v;
                const double temperature = (double)q.how[k].temperature;
                const softmax s = softmax_of(logits, m.v, temperature);
                const double tolerance = tables[t].dtype == GR_F64 ? 1e-12 : 3e-5;
                assert_near(q.logp[k], logits[q.target[k]] / temperature - s.log_sum, tolerance);
                assert_near(q.entropy[k], s.entropy, tolerance);
            }
            close_lm(&m);
        }
}

/* ---- noise ------------------------------------------------------------------------------------------------- */

static double noise_of_word(uint32_t w)
{
    const double v = ((double)(UINT32_MAX - w) + 0.5) * 0x1p-32;
    return -log(w < 0x80000000u ? -log(((double)w + 0.5) * 0x1p-32) : -log1p(-v));
}

static double noise_of(uint64_t uid, int32_t index, int x)
{
    uint32_t w[4];
    gr_philox(uid, (uint64_t)index, (uint64_t)(x / 4), w);
    return noise_of_word(w[x % 4]);
}

#ifndef GR_TEST_GPU
/* u is never 0 or 1, whatever the word: the noise is finite and close to what fp64 gives. */
static void noise_is_finite_for_every_word(void** state)
{
    (void)state;
    rng r = {.key = 4};
    for (int round = 0; round < 20000; round++) {
        uint32_t w[VEC];
        acc noise[VEC];
        for (int i = 0; i < VEC; i++) {
            const uint32_t at = (uint32_t)(0x1p32 * uniform(&r)), near = at >> below(&r, 32);
            w[i] = i % 3 == 0 ? at : i % 3 == 1 ? near : UINT32_MAX - near;
        }
        w[0] = round == 0 ? 0 : w[0];
        w[1] = round == 0 ? UINT32_MAX : w[1];
        vec_store(noise, gumbel_of_words(w));
        for (int i = 0; i < VEC; i++) {
            assert_true(isfinite(noise[i]));
            assert_near((double)noise[i], noise_of_word(w[i]), 2e-6);
        }
    }
}

#endif

/* ---- sampling ------------------------------------------------------------------------------------------------ */

/* The token drawn has the largest z + noise, up to the rounding of logits. */
static void draws_follow_the_noise(void** state)
{
    (void)state;
    static const int sizes[][2] = {{16, 3000}, {5, 63}, {5, 64}, {3, 2}};
    rng r = {.key = 5};
    for (int t = 0; t < GR_COUNT(tables); t++)
        for (int i = 0; i < GR_COUNT(sizes); i++) {
            lm m;
            static query q;
            if (!open_lm(&m, &tables[t], 2, &r, 9, sizes[i][0], sizes[i][1])) continue;
            random_query(&q, &m, &r, 150);
            run_head(&m, &q, false);
            for (int64_t k = 0; k < q.r; k++) {
                double best = -HUGE_VAL, got = -HUGE_VAL;
                for (int x = 0; x < m.v; x++) {
                    const double z = m.logits[q.src[k] * m.v + x] / (double)q.how[k].temperature;
                    const double score = z + noise_of(q.uid[k], q.index[k], x);
                    best = fmax(best, score);
                    if (x == q.token[k]) got = score;
                }
                assert_near(got, best, tables[t].dtype == GR_F64 ? 1e-12 : 3e-5);
            }
            close_lm(&m);
        }
}

#ifndef GR_TEST_GPU
static void draws_have_the_softmax_distribution(void** state)
{
    (void)state;
    enum { V = 50, DRAWS = 30000 };
    rng r = {.key = 6};
    lm m;
    static query q;
    const table best = {"cpu", GR_F32, 0};
    assert_true(open_lm(&m, &best, 2, &r, 1, 3, V));
    int64_t count[V] = {0};
    for (int first = 0; first < DRAWS; first += MAX_TOKENS) {
        q.r = MAX_TOKENS;
        for (int i = 0; i < MAX_TOKENS; i++) {
            q.src[i] = 0;
            q.uid[i] = (uint64_t)(first / 1000); /* few keys, many counters */
            q.index[i] = first + i;
            q.how[i] = plain;
            q.how[i].temperature = 1.5f;
        }
        run_head(&m, &q, false);
        for (int i = 0; i < MAX_TOKENS; i++) count[q.token[i]]++;
    }
    const double total = (DRAWS + MAX_TOKENS - 1) / MAX_TOKENS * MAX_TOKENS;
    const softmax s = softmax_of(m.logits, V, 1.5);
    double chi2 = 0;
    for (int x = 0; x < V; x++) {
        const double want = total * exp(m.logits[x] / 1.5 - s.log_sum);
        chi2 += ((double)count[x] - want) * ((double)count[x] - want) / want;
    }
    print_message("chi-square %.1f at %d degrees of freedom\n", chi2, V - 1);
    assert_true(chi2 < 49 + 5 * 9.9 && chi2 > 49 - 4.5 * 9.9);
    close_lm(&m);
}

#endif

static gr_sampling any_sampling(rng* r)
{
    gr_sampling s = {.temperature = (float)(0.5 + uniform(r)), .top_p = 1};
    switch (below(r, 6)) {
    case 0:
        s.greedy = true;
        break;
    case 1:
        s.top_k = 1 + below(r, 20);
        break;
    case 2:
        s.top_p = (float)uniform(r);
        break;
    case 3:
        s.min_p = (float)(0.3 * uniform(r));
        break;
    case 4:
        s.top_k = 12, s.top_p = 0.8f, s.min_p = 0.01f;
        break;
    default:
        break;
    }
    return s;
}

static int64_t copy_request(query* to, const query* from, int64_t i)
{
    const int64_t k = to->r++;
    to->src[k] = from->src[i];
    to->uid[k] = from->uid[i];
    to->index[k] = from->index[i];
    to->how[k] = from->how[i];
    return k;
}

/* The same request alone, elsewhere in a batch or measured as a target: same token, same log-prob. */
static void draws_do_not_depend_on_the_batch(void** state)
{
    (void)state;
    rng r = {.key = 7};
    for (int t = 0; t < GR_COUNT(tables); t++) {
        lm m;
        static query q, other;
        if (!open_lm(&m, &tables[t], 1 + t % 2, &r, 40, 12, 700)) continue;
        random_query(&q, &m, &r, 200);
        for (int64_t i = 0; i < q.r; i++) q.how[i] = any_sampling(&r);
        run_head(&m, &q, false);
        memcpy(q.target, q.token, sizeof q.target);
        other = q;
        run_head(&m, &other, true);
        assert_memory_equal(other.logp, q.logp, (size_t)q.r * sizeof *q.logp);
        int64_t from[MAX_TOKENS];
        for (int round = 0; round < 12; round++) {
            other.r = 0;
            const int n = round < 4 ? 1 : 1 + below(&r, 200);
            for (int k = 0; k < n; k++) from[k] = below(&r, (int)q.r);
            for (int k = 0; k < n; k++) copy_request(&other, &q, from[k]);
            run_head(&m, &other, false);
            for (int k = 0; k < n; k++) {
                assert_int_equal(other.token[k], q.token[from[k]]);
                assert_true(other.logp[k] == q.logp[from[k]]);
                assert_true(other.entropy[k] == q.entropy[from[k]]);
            }
        }
        close_lm(&m);
    }
}

/* Rows of the weights repeat, so that logits are equal. */
static void repeat_row(lm* m, int from, int to)
{
    memcpy(m->w.host + (int64_t)to * m->c, m->w.host + (int64_t)from * m->c,
           (size_t)m->c * sizeof(double));
    gr_dev_write_real(&m->dev, m->w.dev, m->w.host, m->w.n);
}

static int argmax_of(const double* logits, int v)
{
    int best = 0;
    for (int x = 1; x < v; x++)
        if (logits[x] > logits[best]) best = x;
    return best;
}

static void greedy_takes_the_lowest_of_equals(void** state)
{
    (void)state;
    rng r = {.key = 8};
    for (int t = 0; t < GR_COUNT(tables); t++)
        for (int round = 0; round < 20; round++) {
            lm m;
            query q = {.r = 1, .how = {plain}};
            const int v = 2 + below(&r, 300);
            if (!open_lm(&m, &tables[t], 1, &r, 1, 4, v)) continue;
            const int best = argmax_of(m.logits, v);
            for (int k = 0; k < 4; k++) repeat_row(&m, best, below(&r, v));
            pack(&m);
            q.how[0].greedy = true;
            run_head(&m, &q, false);
            assert_int_equal(q.token[0], argmax_of(m.logits, v));
            close_lm(&m);
        }
}

/* ---- restricted sampling ---------------------------------------------------------------------------------------- */

static const double* sort_by;
static int by_logit(const void* a, const void* b)
{
    const int x = *(const int*)a, y = *(const int*)b;
    if (sort_by[x] != sort_by[y]) return sort_by[x] < sort_by[y] ? 1 : -1;
    return x - y;
}

/* Which ids may be drawn: by sorting. */
static void candidates_of(bool* in, const double* logits, int v, const gr_sampling* how)
{
    int order[1024];
    const double temperature = (double)how->temperature;
    const softmax s = softmax_of(logits, v, temperature);
    for (int x = 0; x < v; x++) order[x] = x;
    sort_by = logits;
    qsort(order, (size_t)v, sizeof *order, by_logit);
    double mass = 0;
    for (int k = 0; k < v; k++) {
        const double p = exp(logits[order[k]] / temperature - s.log_sum);
        const double largest = exp(logits[order[0]] / temperature - s.log_sum);
        in[order[k]] = (how->top_k == 0 || k < how->top_k) &&
                       (k == 0 || mass < (double)how->top_p) && p >= (double)how->min_p * largest;
        mass += p;
    }
}

static void restricted_draws_stay_in_their_set(void** state)
{
    (void)state;
    rng r = {.key = 9};
    int met = 0, allowed = 0;
    for (int t = 0; t < GR_COUNT(tables); t++)
        for (int round = 0; round < 25; round++) {
            lm m;
            static query q;
            bool in[1024], seen[1024] = {false};
            const int v = 1 + below(&r, 400);
            if (!open_lm(&m, &tables[t], 2, &r, 1, 2, v)) continue;
            for (int k = 0; k < 30; k++) repeat_row(&m, below(&r, v), below(&r, v));
            pack(&m);
            const gr_sampling how = any_sampling(&r);
            q.r = 128;
            for (int i = 0; i < q.r; i++) {
                q.src[i] = 0, q.uid[i] = r.key + (uint64_t)round, q.index[i] = i;
                q.how[i] = how;
                q.how[i].greedy = false;
            }
            run_head(&m, &q, false);
            candidates_of(in, m.logits, v, &how);
            const softmax s = softmax_of(m.logits, v, (double)how.temperature);
            for (int i = 0; i < q.r; i++) {
                assert_true(in[q.token[i]]);
                seen[q.token[i]] = true;
                assert_near(q.logp[i], m.logits[q.token[i]] / (double)how.temperature - s.log_sum,
                            3e-5);
            }
            for (int x = 0; x < v; x++) met += seen[x], allowed += in[x];
            close_lm(&m);
        }
    print_message("%d of %d candidates drawn\n", met, allowed);
    assert_true(met > allowed / 3);
}

/* A set of one or two: all of it is drawn. */
static void small_sets_are_drawn_whole(void** state)
{
    (void)state;
    gr_sampling how[4] = {plain, plain, plain, plain};
    how[0].top_k = 2;
    how[1].top_p = 1e-6f;
    how[2].min_p = 1;
    how[3].top_p = 0;
    rng r = {.key = 10};
    for (int k = 0; k < 4; k++) {
        lm m;
        static query q;
        bool seen[100] = {false};
        assert_true(open_lm(&m, &tables[1], 1, &r, 1, 3, 100));
        const int best = argmax_of(m.logits, 100);
        for (int x = 0; x < 100; x++)
            if (x % 30 == best % 30) repeat_row(&m, best, x); /* three or four equal ones */
        pack(&m);
        q.r = 300;
        for (int i = 0; i < q.r; i++) q.src[i] = 0, q.uid[i] = 5, q.index[i] = i, q.how[i] = how[k];
        run_head(&m, &q, false);
        for (int i = 0; i < q.r; i++) seen[q.token[i]] = true;
        const int low = best % 30; /* the lowest of the equals */
        for (int x = 0; x < 100; x++) {
            const bool want = k == 0   ? x == low || x == low + 30
                              : k == 2 ? x % 30 == low
                                       : x == low;
            assert_int_equal(seen[x], want);
        }
        close_lm(&m);
    }
}

/* ---- head_loss ---------------------------------------------------------------------------------------------------- */

typedef struct loss_run {
    void *dhidden, *dw, *logp, *entropy;
    gr_loss_sums sums;
} loss_run;

static loss_run run_head_loss(lm* m, const query* q, const loss_input* x, const gr_loss_params* p,
                              double dw0)
{
    gr_dev* dev = &m->dev;
    const double* in[5] = {x->old_logp, x->ref_logp, x->a_pos, x->a_neg, x->w};
    void* t[5];
    for (int i = 0; i < 5; i++) {
        t[i] = new_acc(dev, x->r);
        gr_dev_write_acc(dev, t[i], in[i], x->r);
    }
    loss_run out = {.dhidden = new_real(dev, m->n * m->c),
                    .dw = new_acc(dev, m->w.n),
                    .logp = new_acc(dev, x->r),
                    .entropy = new_acc(dev, x->r)};
    double* start = malloc((size_t)GR_MAX(m->w.n, m->n * m->c) * sizeof *start);
    for (int64_t i = 0; i < m->n * m->c; i++) start[i] = (double)NAN;
    gr_dev_write_real(dev, out.dhidden, start, m->n * m->c);
    for (int64_t i = 0; i < m->w.n; i++) start[i] = dw0;
    gr_dev_write_acc(dev, out.dw, start, m->w.n);
    free(start);
    dev_query d = open_query(dev, q);
    gr_loss_sums* sums = dev_bytes(dev, sizeof *sums);
    const gr_loss_rows rows = {d.src, d.target, t[0], t[1], t[2], t[3], t[4]};
    const size_t bytes = dev->ops->head_loss_scratch(dev, x->r, m->c, m->v);
    void* scratch = new_scratch(dev, bytes);
    dev->ops->head_loss(dev, out.dhidden, out.dw, out.logp, out.entropy, sums, m->hidden.dev,
                        m->packed, m->packed_t, &rows, x->r, m->n, m->c, m->v, p, scratch);
    gr_dev_read(dev, &out.sums, sums, sizeof *sums);
    gr_dev_free(dev, sums);
    close_query(dev, &d);
    free_scratch(dev, scratch, bytes);
    for (int i = 0; i < 5; i++) gr_dev_free(dev, t[i]);
    return out;
}

static void free_run(lm* m, loss_run* x)
{
    gr_dev_free(&m->dev, x->dhidden);
    gr_dev_free(&m->dev, x->dw);
    gr_dev_free(&m->dev, x->logp);
    gr_dev_free(&m->dev, x->entropy);
}

/* Rows off policy by clear ratios; about a third of them carry no weight, some only measure. */
static void loss_problem(lm* m, query* q, loss_input* x, rng* r, int64_t n, float temperature)
{
    random_query(q, m, r, n);
    for (int64_t i = 0; i < n; i++) q->how[i].temperature = temperature;
    run_head(m, q, true);
    *x = random_input(r, n);
    for (int64_t i = 0; i < n; i++) {
        x->old_logp[i] = q->logp[i] - log_ratio(r);
        x->ref_logp[i] = q->logp[i] + 2 * uniform(r) - 1;
        if (below(r, 3) == 0) x->a_pos[i] = x->a_neg[i] = x->w[i] = 0;
    }
}

#ifndef GR_TEST_GPU
static double head_loss_at(lm* m, const query* q, const loss_input* x, const gr_loss_params* p,
                           tensor* of, int64_t at, double value)
{
    const double kept = of->host[at];
    of->host[at] = value;
    gr_dev_write_real(&m->dev, of->dev, of->host, of->n);
    pack(m);
    loss_run out = run_head_loss(m, q, x, p, 0);
    free_run(m, &out);
    of->host[at] = kept;
    gr_dev_write_real(&m->dev, of->dev, of->host, of->n);
    pack(m);
    return out.sums.loss;
}

static void head_loss_matches_differences(void** state)
{
    (void)state;
    rng r = {.key = 11};
    for (int k = 0; k < N_PARAMS; k++) {
        lm m;
        static query q;
        static loss_input x;
        gr_loss_params p = params_of(k);
        p.temperature = k % 2 == 0 ? 1 : 0.8f;
        assert_true(open_lm(&m, &tables[0], 1, &r, 9, 4, 21));
        loss_problem(&m, &q, &x, &r, 20, p.temperature);
        loss_run out = run_head_loss(&m, &q, &x, &p, 0.25);
        for (int i = 0; i < 24; i++) {
            tensor* of = i % 2 == 0 ? &m.hidden : &m.w;
            const int64_t at = below(&r, (int)of->n);
            const double h = 1e-5, v = of->host[at];
            const double want = (head_loss_at(&m, &q, &x, &p, of, at, v + h) -
                                 head_loss_at(&m, &q, &x, &p, of, at, v - h)) /
                                (2 * h);
            const double* got = i % 2 == 0 ? out.dhidden : out.dw;
            assert_near(got[at] - (i % 2 == 0 ? 0 : 0.25), want, 1e-6);
        }
        free_run(&m, &out);
        close_lm(&m);
    }
}

#endif

static double* read_back(gr_dev* dev, const void* x, int64_t n, bool is_acc)
{
    double* host = malloc((size_t)n * sizeof *host);
    if (is_acc)
        gr_dev_read_acc(dev, host, x, n);
    else
        gr_dev_read_real(dev, host, x, n);
    return host;
}

static void assert_close(lm* a, const void* x, lm* b, const void* y, int64_t n, bool is_acc,
                         double tolerance)
{
    double *got = read_back(&a->dev, x, n, is_acc), *want = read_back(&b->dev, y, n, is_acc);
    double most = 1e-30;
    for (int64_t i = 0; i < n; i++) most = fmax(most, fabs(want[i]));
    for (int64_t i = 0; i < n; i++) assert_near(got[i] / most, want[i] / most, tolerance);
    free(got);
    free(want);
}

/* The cpu device keeps dL/dlogits in acc, CUDA in real. */
static double dw_tolerance(const table* t)
{
    return t->dtype == GR_BF16 && strncmp(t->name, "cpu", 3) != 0 ? 3e-3 : 2e-5;
}

/* Several blocks of rows, many rows of one hidden row: like fp64, and zero where no row reads. */
static void head_loss_agrees_on_all_tables(void** state)
{
    (void)state;
    for (int t = 1; t < GR_COUNT(tables); t++) {
        lm m, exact;
        static query q, q64;
        static loss_input x, x64;
        rng r = {.key = 12}, r64 = {.key = 12};
        gr_loss_params p = params_of(7);
        p.temperature = 0.9f;
        if (!open_lm(&m, &tables[t], 2, &r, 40, 20, 150)) continue;
        assert_true(open_lm(&exact, &tables[0], 1, &r64, 40, 20, 150));
        gr_dev_write_real(&exact.dev, exact.hidden.dev, m.hidden.host, m.hidden.n);
        gr_dev_write_real(&exact.dev, exact.w.dev, m.w.host, m.w.n);
        exact.dev.ops->matmul_pack(&exact.dev, exact.packed, exact.w.dev, exact.v, exact.c, false);
        exact.dev.ops->matmul_pack(&exact.dev, exact.packed_t, exact.w.dev, exact.v, exact.c, true);
        loss_problem(&m, &q, &x, &r, 500, p.temperature);
        loss_problem(&exact, &q64, &x64, &r64, 500, p.temperature);
        for (int64_t i = 0; i < q.r; i++) q.src[i] = q64.src[i] = q.src[i] < 20 ? q.src[i] : 7;
        loss_run got = run_head_loss(&m, &q, &x, &p, 0);
        loss_run want = run_head_loss(&exact, &q, &x, &p, 0);
        const double tolerance = tables[t].dtype == GR_BF16 ? 5e-3 : 2e-5;
        assert_close(&m, got.dw, &exact, want.dw, m.w.n, true, dw_tolerance(&tables[t]));
        assert_close(&m, got.logp, &exact, want.logp, q.r, true, 2e-5);
        assert_close(&m, got.dhidden, &exact, want.dhidden, m.hidden.n, false, tolerance);
        assert_near(got.sums.loss, want.sums.loss, 2e-5);
        double* dhidden = read_back(&m.dev, got.dhidden, m.hidden.n, false);
        for (int64_t i = 20 * m.c; i < m.hidden.n; i++) assert_true(dhidden[i] == 0);
        free(dhidden);
        free_run(&m, &got);
        free_run(&exact, &want);
        close_lm(&m);
        close_lm(&exact);
    }
}

/* ---- the same bits --------------------------------------------------------------------------------------------------- */

static void assert_equal_tensors(lm m[2], const void* x, const void* y, int64_t n, bool is_acc)
{
    double *a = read_back(&m[0].dev, x, n, is_acc), *b = read_back(&m[1].dev, y, n, is_acc);
    assert_memory_equal(a, b, (size_t)n * sizeof *a);
    free(a);
    free(b);
}

static void assert_same_bits(const table* a, int threads_a, const table* b, int threads_b)
{
    lm m[2];
    static query q[2];
    static loss_input x[2];
    loss_run out[2];
    const table* t[2] = {a, b};
    const int threads[2] = {threads_a, threads_b};
    gr_loss_params p = params_of(3);
    for (int i = 0; i < 2; i++) {
        rng r = {.key = 13};
        if (!open_lm(&m[i], t[i], threads[i], &r, 40, 30, 600)) return;
        loss_problem(&m[i], &q[i], &x[i], &r, 400, 1);
        x[i] = x[0];
        out[i] = run_head_loss(&m[i], &q[i], &x[i], &p, 0.5);
        for (int64_t k = 0; k < q[i].r; k++) q[i].how[k] = any_sampling(&r);
        run_head(&m[i], &q[i], false);
    }
    assert_equal_tensors(m, out[0].dhidden, out[1].dhidden, m[0].hidden.n, false);
    assert_equal_tensors(m, out[0].dw, out[1].dw, m[0].w.n, true);
    assert_equal_tensors(m, out[0].logp, out[1].logp, q[0].r, true);
    assert_equal_tensors(m, out[0].entropy, out[1].entropy, q[0].r, true);
    assert_memory_equal(&out[0].sums, &out[1].sums, sizeof out[0].sums);
    assert_memory_equal(q[0].token, q[1].token, (size_t)q[0].r * sizeof *q[0].token);
    assert_memory_equal(q[0].logp, q[1].logp, (size_t)q[0].r * sizeof *q[0].logp);
    for (int i = 0; i < 2; i++) {
        free_run(&m[i], &out[i]);
        close_lm(&m[i]);
    }
}

static void threads_do_not_matter(void** state)
{
    (void)state;
    for (int t = 0; t < GR_COUNT(tables); t++) assert_same_bits(&tables[t], 1, &tables[t], 2);
}

#ifndef GR_TEST_GPU
static void avx2_and_avx512_agree(void** state)
{
    (void)state;
    assert_same_bits(&tables[2], 1, &tables[3], 2);
    assert_same_bits(&tables[5], 2, &tables[6], 1);
}

#endif

/* What training measures is what sampling reported. */
static void head_loss_measures_like_head(void** state)
{
    (void)state;
    rng r = {.key = 14};
    for (int t = 0; t < GR_COUNT(tables); t++) {
        lm m;
        static query q;
        static loss_input x;
        const gr_loss_params p = {.temperature = 0.7f};
        if (!open_lm(&m, &tables[t], 2, &r, 40, 18, 333)) continue;
        loss_problem(&m, &q, &x, &r, 300, 0.7f);
        run_head(&m, &q, false);
        memcpy(q.target, q.token, sizeof q.target);
        memcpy(x.old_logp, q.logp, sizeof x.old_logp);
        loss_run out = run_head_loss(&m, &q, &x, &p, 0);
        assert_true(out.sums.max_abs_dlogp == 0);
        free_run(&m, &out);
        close_lm(&m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(measures_match_plain_sums),
        cmocka_unit_test(draws_follow_the_noise),
        cmocka_unit_test(draws_do_not_depend_on_the_batch),
        cmocka_unit_test(greedy_takes_the_lowest_of_equals),
        cmocka_unit_test(restricted_draws_stay_in_their_set),
        cmocka_unit_test(small_sets_are_drawn_whole),
        cmocka_unit_test(head_loss_agrees_on_all_tables),
        cmocka_unit_test(threads_do_not_matter),
        cmocka_unit_test(head_loss_measures_like_head),
#ifndef GR_TEST_GPU
        cmocka_unit_test(noise_is_finite_for_every_word),
        cmocka_unit_test(draws_have_the_softmax_distribution),
        cmocka_unit_test(head_loss_matches_differences),
        cmocka_unit_test(avx2_and_avx512_agree),
#endif
    };
    return device_is_here() ? cmocka_run_group_tests(tests, NULL, NULL) : SKIPPED;
}
