/* bench_op.c - how fast single ops are, on any device.
 *
 *     bench_op --list                                    ops, the shape keys they read, defaults
 *     bench_op NAME|all [key=value ...]                  e.g. bench_op matmul n=8 m=1536 k=576
 *     keys: device=cpu dtype=fp32|bf16 threads=0 repeats=20 flush_mb=256, and those of the shape
 *
 * Before it is timed, an op runs on a small shape and is compared with the cpu device in fp64. Between
 * repeats a buffer larger than the caches is written. One JSON line per op: median, 10th and 90th
 * percentile, the bytes and flop it needs at least, rates, and the ratio of its bytes per second to
 * those of kv_copy, a plain copy, in the same run. */
#include "bench/op.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct options {
    const char* name;
    gr_dev_options device;
    int64_t repeats, flush_mb;
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

static const char* value_of(const char* word, const char* key)
{
    const size_t n = strlen(key);
    return strncmp(word, key, n) == 0 && word[n] == '=' ? word + n + 1 : NULL;
}

static gr_status take_word(options* o, char* word)
{
    const char* value;
    op_shape any;
    const char* equals = strchr(word, '=');
    if (equals == NULL) return GR_FAIL(GR_EARG, "%s: not key=value", word);
    if ((value = value_of(word, "device")) != NULL) {
        o->device.name = value;
    } else if ((value = value_of(word, "dtype")) != NULL) {
        if (strcmp(value, "fp32") != 0 && strcmp(value, "bf16") != 0)
            return GR_FAIL(GR_EARG, "%s: fp32 or bf16", word);
        o->device.dtype = strcmp(value, "bf16") == 0 ? GR_BF16 : GR_F32;
    } else if ((value = value_of(word, "threads")) != NULL) {
        o->device.threads = atoi(value);
    } else if ((value = value_of(word, "repeats")) != NULL) {
        o->repeats = GR_MAX(atoi(value), 1);
    } else if ((value = value_of(word, "flush_mb")) != NULL) {
        o->flush_mb = GR_MAX(atoi(value), 0);
    } else if (field_of(&any, word, (size_t)(equals - word)) != NULL) {
        o->key[o->n_keys++] = word;
    } else {
        return GR_FAIL(GR_EARG, "%s: no such key; bench_op --list shows them", word);
    }
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
    double median, p10, p90, bytes, flop;
} timing;

static int by_value(const void* a, const void* b)
{
    const double x = *(const double*)a, y = *(const double*)b;
    return (x > y) - (x < y);
}

static void time_runs(const options* o, const op_case* c, op_run* r, double* seconds)
{
    gr_dev* dev = r->dev;
    const size_t flush = (size_t)o->flush_mb << 20;
    void* cold = NULL;
    if (flush > 0 && gr_dev_alloc(dev, &cold, flush) != GR_OK) cold = NULL;
    for (int64_t i = -2; i < o->repeats; i++) { /* two to warm up */
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
    double* seconds = malloc((size_t)o->repeats * sizeof *seconds);
    GR_ASSERT(seconds != NULL);
    open_run(&r, c, dev, s);
    time_runs(o, c, &r, seconds);
    qsort(seconds, (size_t)o->repeats, sizeof *seconds, by_value);
    *t = (timing){seconds[o->repeats / 2], seconds[o->repeats / 10],
                  seconds[o->repeats - 1 - o->repeats / 10], (double)c->bytes(&r),
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

static const char* commit(void)
{
    static char text[64] = "unknown";
    FILE* f = popen("git -C " GR_SOURCE_DIR " rev-parse --short HEAD 2>/dev/null", "r");
    if (f != NULL && fgets(text, sizeof text, f) != NULL) text[strcspn(text, "\n")] = 0;
    if (f != NULL) (void)pclose(f);
    return text;
}

static void print(const op_case* c, const op_shape* s, const gr_dev* dev, const timing* t,
                  double copy_rate)
{
    printf("{\"bench\": \"op\", \"op\": \"%s\", \"shape\": {", c->name);
    print_shape(c->keys, s);
    printf("}, \"median_us\": %.2f, \"p10_us\": %.2f, \"p90_us\": %.2f, ", t->median * 1e6,
           t->p10 * 1e6, t->p90 * 1e6);
    printf("\"mbytes\": %.3f, \"gb_s\": %.2f, ", t->bytes * 1e-6, t->bytes / t->median * 1e-9);
    if (t->flop > 0)
        printf("\"gflop\": %.3f, \"gflop_s\": %.1f, ", t->flop * 1e-9, t->flop / t->median * 1e-9);
    if (copy_rate > 0) printf("\"of_copy\": %.3f, ", t->bytes / t->median / copy_rate);
    printf("\"device\": \"%s\", \"commit\": \"%s\"}\n", dev->detail, commit());
    (void)fflush(stdout);
}

static void list(void)
{
    for (const op_case* c = op_cases; c->name != NULL; c++) {
        printf("%-19s %-52s {", c->name, c->what);
        print_shape(c->keys, &c->shape);
        printf("}\n");
    }
}

/* ---- main ------------------------------------------------------------------------------------------- */

static const op_case* case_named(const char* name)
{
    for (const op_case* c = op_cases; c->name != NULL; c++)
        if (strcmp(c->name, name) == 0) return c;
    return NULL;
}

static gr_status bench(const options* o, gr_dev* dev)
{
    const op_case *copy = case_named("kv_copy"), *one = case_named(o->name);
    timing t;
    GR_TRY(measure(&t, o, copy, dev, &copy->shape));
    const double copy_rate = t.bytes / t.median;
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

static gr_status run(options* o, int argc, char** argv)
{
    gr_dev dev;
    o->name = argv[1];
    if (strcmp(o->name, "all") != 0 && case_named(o->name) == NULL)
        return GR_FAIL(GR_EARG, "%s: no such op; bench_op --list shows them", o->name);
    for (int i = 2; i < argc; i++) GR_TRY(take_word(o, argv[i]));
    GR_TRY(gr_dev_open(&dev, &o->device));
    const gr_status st = bench(o, &dev);
    gr_dev_close(&dev);
    return st;
}

int main(int argc, char** argv)
{
    char* keys[64];
    options o = {.device = {.name = "cpu"}, .repeats = 20, .flush_mb = 256, .key = keys};
    if (argc == 2 && strcmp(argv[1], "--list") == 0) {
        list();
        return 0;
    }
    if (argc < 2 || argc > GR_COUNT(keys) || argv[1][0] == '-') {
        fprintf(stderr, "usage: bench_op --list | NAME|all [key=value ...]\n");
        return 1;
    }
    if (run(&o, argc, argv) == GR_OK) return 0;
    fprintf(stderr, "bench_op: %s\n", gr_last_error_text());
    return 1;
}
