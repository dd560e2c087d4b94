/* bench_op.c - bench op NAME|all [key=value ...]: how fast single ops are, on any device.
 *
 * E.g. bench op matmul n=8 m=1536 k=576. Keys of its own: flush_mb=256, and those of the shape.
 *
 * Before it is timed, an op runs on a small shape and is compared with the cpu device in fp64. Between
 * repeats a buffer larger than the caches is written. One JSON line per op: median, 10th and 90th
 * percentile, the bytes and flop it needs at least, rates, and the ratio of its bytes per second to
 * those of kv_copy, a plain copy, in the same run. */
#include "bench/bench.h"
#include "bench/op.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct options {
    const char* name;
    bench_options all;
    int flush_mb;
    int n_keys;
    char** key; /* key=value of the shape */
} options;

/* ---- settings --------------------------------------------------------------------------------------- */

#define SHAPE_KEYS(X) \
    X(n) X(c) X(m) X(k) X(f) X(h) X(hk) X(d) X(v) X(r) X(leaves) X(prefix) X(top_k)

static int64_t* field_of(op_shape* s, const char* key, size_t n)
{
#define X(name) \
    if (strlen(#name) == n && strncmp(key, #name, n) == 0) return &s->name;
    SHAPE_KEYS(X)
#undef X
    return NULL;
}

static gr_status take_word(options* o, char* word)
{
    const bench_key own = {"flush_mb", &o->flush_mb, 0};
    const char* equals = strchr(word, '=');
    op_shape any;
    bool taken;
    GR_TRY(bench_take(&o->all, &own, 1, word, &taken));
    if (taken) return GR_OK;
    if (equals == NULL || field_of(&any, word, (size_t)(equals - word)) == NULL)
        return GR_FAIL(GR_EARG, "%s: no such key; bench --list shows them", word);
    o->key[o->n_keys++] = word;
    return GR_OK;
}

/* Shape words that the case reads; others are for other cases of `all`. */
static gr_status shape_of(op_shape* s, const op_case* c, const options* o)
{
    *s = c->shape;
    for (int i = 0; i < o->n_keys; i++) {
        const char* equals = strchr(o->key[i], '=');
        int64_t* field = field_of(s, o->key[i], (size_t)(equals - o->key[i]));
        char* end;
        *field = strtoll(equals + 1, &end, 10);
        if (*end != 0 || *field < (field == &s->top_k || field == &s->prefix ? 0 : 1))
            return GR_FAIL(GR_EARG, "%s: not a positive number", o->key[i]);
    }
    return GR_OK;
}

/* ---- runs ------------------------------------------------------------------------------------------- */

static void open_run(op_run* r, const op_case* c, gr_dev* dev, const op_shape* s)
{
    *r = (op_run){.dev = dev, .s = *s, .seed = 1};
    c->open(r);
}

static void close_run(op_run* r)
{
    for (int i = 0; i < r->n_tensors; i++) gr_dev_free(r->dev, r->tensor[i].at);
    op_free_plan(r);
}

static double* read_tensor(const op_run* r, const op_tensor* t)
{
    double* x = malloc((size_t)t->n * sizeof *x);
    GR_ASSERT(x != NULL);
    if (t->kind == OP_REAL)
        gr_dev_read_real(r->dev, x, t->at, t->n);
    else
        gr_dev_read_acc(r->dev, x, t->at, t->n);
    return x;
}

/* Norm of the difference of two results over the norm of the second. */
static double distance(const op_run* a, const op_run* b, int i)
{
    double *x = read_tensor(a, &a->tensor[i]), *y = read_tensor(b, &b->tensor[i]);
    double difference = 0, norm = 0;
    for (int64_t k = 0; k < a->tensor[i].n; k++) {
        difference += (x[k] - y[k]) * (x[k] - y[k]);
        norm += y[k] * y[k];
    }
    free(x);
    free(y);
    return difference == 0 ? 0 : sqrt(difference / norm);
}

/* A shape of the same kind that fp64 on one thread does in an instant. */
static op_shape small_shape(op_shape s)
{
    const int64_t group = s.hk > 0 ? s.h / s.hk : 1;
#define LIMIT(key, most) s.key = GR_MIN(s.key, most)
    LIMIT(n, 70);
    LIMIT(c, 96);
    LIMIT(m, 130);
    LIMIT(k, 96);
    LIMIT(f, 96);
    LIMIT(hk, 2);
    LIMIT(v, 300);
    LIMIT(r, 40);
    LIMIT(leaves, 5);
    LIMIT(prefix, 90);
    LIMIT(top_k, 20);
#undef LIMIT
    s.h = group * s.hk;
    return s;
}

static gr_status check(const op_case* c, gr_dev* dev, const op_shape* s)
{
    const double bound = dev->dtype == GR_BF16 ? 1.5e-2 : 1e-5;
    const gr_dev_options exact = {.name = "cpu:base", .dtype = GR_F64, .threads = 1};
    const op_shape small = small_shape(*s);
    gr_status st = GR_OK;
    gr_dev reference;
    op_run got, want;
    GR_TRY(gr_dev_open(&reference, &exact));
    open_run(&got, c, dev, &small);
    open_run(&want, c, &reference, &small);
    c->run(&got);
    c->run(&want);
    for (int i = 0; i < got.n_tensors && st == GR_OK; i++) {
        if (!got.tensor[i].is_result) continue;
        const double d = distance(&got, &want, i);
        if (!(d <= bound))
            st = GR_FAIL(GR_EDATA, "%s: wrong: result %d is %.2g away from fp64, %.2g allowed",
                         c->name, i, d, bound);
    }
    close_run(&got);
    close_run(&want);
    gr_dev_close(&reference);
    return st != GR_OK ? st : gr_dev_sync(dev);
}

/* ---- timing ----------------------------------------------------------------------------------------- */

typedef struct timing {
    bench_times s;
    double bytes, flop;
} timing;

static void time_runs(const options* o, const op_case* c, op_run* r, double* seconds)
{
    gr_dev* dev = r->dev;
    const size_t flush = (size_t)o->flush_mb << 20;
    void* cold = NULL;
    if (flush > 0 && gr_dev_alloc(dev, &cold, flush) != GR_OK) cold = NULL;
    for (int i = -2; i < o->all.repeats; i++) { /* two to warm up */
        if (cold != NULL) gr_dev_zero(dev, cold, flush);
        gr_dev_mark(dev, 0);
        c->run(r);
        gr_dev_mark(dev, 1);
        if (i >= 0) seconds[i] = gr_dev_elapsed(dev);
    }
    gr_dev_free(dev, cold);
}

static gr_status measure(timing* t, const options* o, const op_case* c, gr_dev* dev,
                         const op_shape* s)
{
    op_run r;
    double* seconds = malloc((size_t)o->all.repeats * sizeof *seconds);
    GR_ASSERT(seconds != NULL);
    open_run(&r, c, dev, s);
    time_runs(o, c, &r, seconds);
    *t = (timing){bench_sort(seconds, o->all.repeats), (double)c->bytes(&r),
                  c->flop != NULL ? (double)c->flop(&r) : 0};
    close_run(&r);
    free(seconds);
    return gr_dev_sync(dev);
}

/* ---- output ----------------------------------------------------------------------------------------- */

static void print_shape(const char* keys, const op_shape* s)
{
    op_shape shape = *s;
    const char* end;
    for (const char* key = keys; *key != 0; key = *end == 0 ? end : end + 1) {
        end = strchr(key, ' ') != NULL ? strchr(key, ' ') : key + strlen(key);
        printf("%s\"%.*s\": %lld", key == keys ? "" : ", ", (int)(end - key), key,
               (long long)*field_of(&shape, key, (size_t)(end - key)));
    }
}

static void print(const op_case* c, const op_shape* s, const gr_dev* dev, const timing* t,
                  double copy_rate)
{
    printf("{\"bench\": \"op\", \"op\": \"%s\", \"shape\": {", c->name);
    print_shape(c->keys, s);
    printf("}, \"median_us\": %.2f, \"p10_us\": %.2f, \"p90_us\": %.2f, ", t->s.median * 1e6,
           t->s.p10 * 1e6, t->s.p90 * 1e6);
    printf("\"mbytes\": %.3f, \"gb_s\": %.2f, ", t->bytes * 1e-6, t->bytes / t->s.median * 1e-9);
    if (t->flop > 0)
        printf("\"gflop\": %.3f, \"gflop_s\": %.1f, ", t->flop * 1e-9,
               t->flop / t->s.median * 1e-9);
    if (copy_rate > 0) printf("\"of_copy\": %.3f, ", t->bytes / t->s.median / copy_rate);
    bench_end_line(dev);
}

static void list(void)
{
    for (const op_case* c = op_cases; c->name != NULL; c++) {
        printf("%-19s %-52s {", c->name, c->what);
        print_shape(c->keys, &c->shape);
        printf("}\n");
    }
}

/* ---- the part ---------------------------------------------------------------------------------------- */

static const op_case* case_named(const char* name)
{
    for (const op_case* c = op_cases; c->name != NULL; c++)
        if (strcmp(c->name, name) == 0) return c;
    return NULL;
}

static gr_status bench_cases(const options* o, gr_dev* dev)
{
    const op_case *copy = case_named("kv_copy"), *one = case_named(o->name);
    timing t;
    GR_TRY(measure(&t, o, copy, dev, &copy->shape));
    const double copy_rate = t.bytes / t.s.median;
    for (const op_case* c = op_cases; c->name != NULL; c++) {
        if (one != NULL && c != one) continue;
        op_shape s;
        GR_TRY(shape_of(&s, c, o));
        GR_TRY(check(c, dev, &s));
        GR_TRY(measure(&t, o, c, dev, &s));
        print(c, &s, dev, &t, copy_rate);
    }
    return GR_OK;
}

static gr_status run_words(options* o, int n, char** word)
{
    gr_dev dev;
    if (n == 0) return GR_FAIL(GR_EARG, "which? all, or one that bench --list shows");
    o->name = word[0];
    if (strcmp(o->name, "all") != 0 && case_named(o->name) == NULL)
        return GR_FAIL(GR_EARG, "%s: no such op; bench --list shows them", o->name);
    for (int i = 1; i < n; i++) GR_TRY(take_word(o, word[i]));
    gr_status st = gr_dev_open(&dev, &o->all.device);
    if (st == GR_OK) st = bench_cases(o, &dev);
    gr_dev_close(&dev);
    return st;
}

static gr_status run(int n, char** word)
{
    options o = {.all = {.device = {.name = "cpu"}, .repeats = 20}, .flush_mb = 256};
    o.key = malloc(((size_t)n + 1) * sizeof *o.key);
    GR_ASSERT(o.key != NULL);
    const gr_status st = run_words(&o, n, word);
    free(o.key);
    return st;
}

const bench_part bench_op = {"op", "one op, or all, with cold caches", list, run};
