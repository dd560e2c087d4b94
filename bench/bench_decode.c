/* bench_decode.c - bench decode [key=value ...]: how fast a model samples, and where the time goes.
 *
 * Decodes batches of 1, 8 and 32 paths of 32 to 80 tokens and 32 leaves of one 1,000-token prefix with
 * random weights, greedily and sampled. One JSON line per case: tokens per second and milliseconds per
 * step of the best repeat, the repeats' median and percentiles, what a step must read and multiply, and
 * each op's share of the time where an op has run when it returns. Bytes are weights and keys, each
 * once; flop are those of the weights, attention not counted. Before anything is timed, a small
 * model's first log-probs are compared with fp64. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"
#include "model/engine.h"

#include <math.h>

enum { MAX_BATCH = 32, MAX_CONTEXT = 1104, STEPS = 48 };

typedef struct options {
    bench_options all;
    gr_model_config model;
} options;

/* ---- a clock per op ------------------------------------------------------------------------------
 * The device's table is replaced by one whose entries time the real ones. */

#define TIMED_OPS(X)   \
    X(embed_fwd)       \
    X(rmsnorm_fwd)     \
    X(qkv_rope_fwd)    \
    X(swiglu_fwd)      \
    X(matmul)          \
    X(kv_append)       \
    X(kv_copy)         \
    X(attention_paged) \
    X(head)

enum {
#define X(op) OP_##op,
    TIMED_OPS(X)
#undef X
        N_TIMED
};
static const char* const timed_name[] = {
#define X(op) #op,
    TIMED_OPS(X)
#undef X
};

typedef struct clocks {
    gr_ops ops; /* what the device calls; first, so that its address is the clocks' */
    const gr_ops* real;
    double seconds[N_TIMED];
} clocks;

static clocks* clocks_of(const gr_dev* dev) { return (clocks*)(uintptr_t)dev->ops; }

#define TIMED(op, ...)                                   \
    do {                                                 \
        clocks* clock_ = clocks_of(dev);                 \
        double begin_ = gr_now_s();                      \
        clock_->real->op(dev, __VA_ARGS__);              \
        clock_->seconds[OP_##op] += gr_now_s() - begin_; \
    } while (0)

static void embed_fwd(gr_dev* dev, void* y, const void* table, const int32_t* token, int64_t n,
                      int c)
{
    TIMED(embed_fwd, y, table, token, n, c);
}
static void rmsnorm_fwd(gr_dev* dev, void* y, void* sum, void* rstd, const void* x,
                        const void* delta, const void* w, int64_t n, int c, float eps)
{
    TIMED(rmsnorm_fwd, y, sum, rstd, x, delta, w, n, c, eps);
}
static void qkv_rope_fwd(gr_dev* dev, void* q, void* k, void* v, void* rstd, const void* qkv,
                         const void* q_norm, const void* k_norm, const int32_t* position, int64_t n,
                         const gr_heads* heads)
{
    TIMED(qkv_rope_fwd, q, k, v, rstd, qkv, q_norm, k_norm, position, n, heads);
}
static void swiglu_fwd(gr_dev* dev, void* y, const void* gu, int64_t n, int f)
{
    TIMED(swiglu_fwd, y, gu, n, f);
}
static void matmul(gr_dev* dev, void* y, const void* x, const void* packed, const void* bias,
                   int64_t n, int m, int k)
{
    TIMED(matmul, y, x, packed, bias, n, m, k);
}
static void kv_append(gr_dev* dev, void* pool, const void* k, const void* v, const int32_t* slot,
                      int64_t n, int hk, int d)
{
    TIMED(kv_append, pool, k, v, slot, n, hk, d);
}
static void kv_copy(gr_dev* dev, void* pool, const int32_t* pair, int64_t n, int layers,
                    int64_t pages, int hk, int d)
{
    TIMED(kv_copy, pool, pair, n, layers, pages, hk, d);
}
static void attention_paged(gr_dev* dev, void* o, const void* q, const void* pool,
                            const gr_page_plan* plan, int h, int hk, int d, float scale,
                            void* scratch)
{
    TIMED(attention_paged, o, q, pool, plan, h, hk, d, scale, scratch);
}
static void head(gr_dev* dev, void* logp, void* entropy, int32_t* token, const void* hidden,
                 const void* packed, const int32_t* src, const int32_t* target,
                 const gr_sampling* sampling, const uint64_t* uid, const int32_t* index, int64_t r,
                 int c, int v, void* scratch)
{
    TIMED(head, logp, entropy, token, hidden, packed, src, target, sampling, uid, index, r, c, v,
          scratch);
}

static void clocks_install(clocks* k, gr_dev* dev)
{
    *k = (clocks){.ops = *dev->ops, .real = dev->ops};
#define X(op) k->ops.op = op;
    TIMED_OPS(X)
#undef X
    dev->ops = &k->ops;
}

/* ---- model and engine ------------------------------------------------------------------------------ */

typedef struct bench {
    const options* o;
    gr_dev dev;
    clocks clocks;
    gr_arena host, device;
    gr_weights w;
    gr_engine e;
} bench;

static void bench_layout(bench* b)
{
    const int pages_per_path = MAX_CONTEXT / GR_PAGE + 2;
    const gr_engine_settings s = {.max_live = MAX_BATCH,
                                  .max_rows = MAX_BATCH * 32,
                                  .n_pages = pages_per_path + MAX_BATCH * 8,
                                  .n_seqs = 2 * MAX_BATCH + 1,
                                  .max_action = STEPS + 1};
    gr_weights_layout(&b->w, &b->dev, &b->o->model, false, &b->host, &b->device);
    gr_engine_layout(&b->e, &b->w, &s, &b->host, &b->device);
}

static gr_status bench_open(bench* b)
{
    void* block = NULL;
    GR_TRY(gr_dev_open(&b->dev, &b->o->all.device));
    bench_layout(b);
    b->host = (gr_arena){.base = calloc(1, b->host.used), .cap = b->host.used};
    if (b->host.base == NULL) return GR_FAIL(GR_ENOMEM, "out of memory");
    GR_TRY(gr_dev_alloc(&b->dev, &block, b->device.used));
    b->device = (gr_arena){.base = block, .cap = b->device.used};
    bench_layout(b);
    gr_weights_init(&b->w, 1);
    gr_weights_publish(&b->w);
    if (bench_ops_block(&b->dev)) clocks_install(&b->clocks, &b->dev);
    return GR_OK;
}

static void bench_close(bench* b)
{
    gr_dev_free(&b->dev, b->device.base);
    free(b->host.base);
    gr_dev_close(&b->dev);
}

/* ---- one case ---------------------------------------------------------------------------------------- */

typedef struct decode_case {
    const char* name;
    int n_requests, n_children, n_context;
} decode_case;

static const decode_case cases[] = {
    {"1 path", 1, 1, 32},
    {"8 paths", 8, 1, 32},
    {"32 paths", 32, 1, 32},
    {"32 leaves of one prefix", 1, 32, 1000},
};

static void submit(bench* b, const decode_case* c, bool greedy)
{
    static int32_t context[MAX_CONTEXT];
    uint64_t uid[MAX_BATCH];
    for (int q = 0; q < c->n_requests; q++) {
        uint64_t key = gr_key_join(1, (uint64_t)q);
        for (int i = 0; i < c->n_context; i++) {
            context[i] = (int32_t)(gr_uniform(key, (uint64_t)i) * b->o->model.vocab);
        }
        for (int i = 0; i < c->n_children; i++) uid[i] = gr_key_join(key, (uint64_t)i);
        gr_engine_submit(&b->e, &(gr_request){
                                    .tag = (uint64_t)q,
                                    .seq = gr_engine_open_seq(&b->e),
                                    .context = context,
                                    .n_context = c->n_context,
                                    .n_children = c->n_children,
                                    .uid = uid,
                                    .sampling = {.temperature = 1, .top_p = 1, .greedy = greedy},
                                    .max_tokens = STEPS + 1,
                                });
    }
}

typedef struct timing {
    double prefill_s, decode_s, op_s[N_TIMED];
} timing;

/* Prefill, then STEPS steps in which every path samples one token. */
static gr_status run_once(bench* b, const decode_case* c, bool greedy, timing* t)
{
    int batch = c->n_requests * c->n_children;
    gr_engine_reset(&b->e);
    submit(b, c, greedy);
    double begin = gr_now_s();
    while (b->e.n_live < batch) GR_TRY(gr_engine_step(&b->e));
    t->prefill_s = gr_now_s() - begin;
    memset(b->clocks.seconds, 0, sizeof b->clocks.seconds);
    begin = gr_now_s();
    while (!gr_engine_idle(&b->e)) GR_TRY(gr_engine_step(&b->e));
    t->decode_s = gr_now_s() - begin;
    memcpy(t->op_s, b->clocks.seconds, sizeof t->op_s);
    return GR_OK;
}

/* Least that a step reads, halfway through: weights, and each key and value of the pages once. */
static double step_bytes(const bench* b, const decode_case* c)
{
    const gr_model_config* m = &b->o->model;
    const double keys = c->n_requests * (c->n_context + c->n_children * STEPS / 2.0);
    const double per_key = 2.0 * m->kv_heads * m->head_dim * m->layers;
    return ((double)b->w.n_params + keys * per_key) * (double)b->dev.real_bytes;
}

static void report(const bench* b, const decode_case* c, bool greedy, const timing* t,
                   const bench_times* s)
{
    const int batch = c->n_requests * c->n_children;
    const double bytes = step_bytes(b, c), flop = 2.0 * (double)b->w.n_params * batch;
    double rest = t->decode_s;
    printf("{\"bench\": \"decode\", \"case\": \"%s\", \"sampling\": \"%s\", ", c->name,
           greedy ? "greedy" : "full");
    printf("\"tokens_per_s\": %.1f, \"ms_per_step\": %.3f, \"median_ms\": %.3f, \"p10_ms\": %.3f, "
           "\"p90_ms\": %.3f, \"prefill_tokens_per_s\": %.0f, ",
           batch * STEPS / s->best, s->best / STEPS * 1e3, s->median / STEPS * 1e3,
           s->p10 / STEPS * 1e3, s->p90 / STEPS * 1e3, c->n_requests * c->n_context / t->prefill_s);
    printf("\"mbytes\": %.1f, \"gb_s\": %.2f, \"gflop\": %.3f, \"gflop_s\": %.1f, ", bytes * 1e-6,
           bytes * STEPS / s->median * 1e-9, flop * 1e-9, flop * STEPS / s->median * 1e-9);
    if (bench_ops_block(&b->dev)) {
        printf("\"share\": {");
        for (int i = 0; i < N_TIMED; i++) {
            rest -= t->op_s[i];
            printf("\"%s\": %.4f, ", timed_name[i], t->op_s[i] / t->decode_s);
        }
        printf("\"host\": %.4f}, ", rest / t->decode_s);
    }
    bench_end_line(&b->dev);
}

static gr_status run_case(bench* b, const decode_case* c, bool greedy)
{
    timing best = {0};
    const int n = b->o->all.repeats;
    double* seconds = malloc((size_t)n * sizeof *seconds);
    GR_ASSERT(seconds != NULL);
    gr_status st = GR_OK;
    for (int i = 0; i < n && st == GR_OK; i++) {
        timing t;
        st = run_once(b, c, greedy, &t);
        seconds[i] = t.decode_s;
        if (i == 0 || t.decode_s < best.decode_s) best = t;
    }
    if (st == GR_OK) {
        const bench_times s = bench_sort(seconds, n);
        report(b, c, greedy, &best, &s);
    }
    free(seconds);
    return st;
}

/* ---- check ------------------------------------------------------------------------------------------- */

enum { CHECKED = 5 };

/* Log-probs of the most probable first token of each path. */
static gr_status first_logps(const options* o, double* logp)
{
    static const decode_case c = {"check", CHECKED, 1, 40};
    bench b = {.o = o};
    gr_reply reply;
    gr_status st = GR_OK;
    GR_GOTO(st, bench_open(&b), close);
    gr_engine_reset(&b.e);
    submit(&b, &c, true);
    while (!gr_engine_idle(&b.e)) GR_GOTO(st, gr_engine_step(&b.e), close);
    while (gr_engine_poll(&b.e, &reply)) logp[reply.tag] = reply.logp[0];
close:
    bench_close(&b);
    return st;
}

static gr_status check(const options* o)
{
    options small = *o, exact;
    double got[CHECKED] = {0}, want[CHECKED] = {0};
    const double bound = o->all.device.dtype == GR_BF16 ? 5e-2 : 1e-4;
    small.model.layers = 2, small.model.width = 64, small.model.mlp = 96, small.model.vocab = 500;
    small.model.heads = 4, small.model.kv_heads = 2, small.model.head_dim = 16;
    exact = small;
    exact.all.device = (gr_dev_options){.name = "cpu:base", .dtype = GR_F64, .threads = 1};
    GR_TRY(first_logps(&small, got));
    GR_TRY(first_logps(&exact, want));
    for (int i = 0; i < CHECKED; i++)
        if (!(fabs(got[i] - want[i]) <= bound) || want[i] >= 0)
            return GR_FAIL(GR_EDATA, "wrong: log-prob %g, in fp64 %g", got[i], want[i]);
    return GR_OK;
}

/* ---- the part ---------------------------------------------------------------------------------------- */

static options defaults(void)
{
    options o = {.all = {.device = {.name = "cpu"}, .repeats = 3}, .model = bench_model()};
    o.model.max_context = MAX_CONTEXT;
    return o;
}

static void list(void)
{
    options o = defaults();
    const bench_key key[] = {BENCH_MODEL_KEYS(&o.model)};
    for (int i = 0; i < GR_COUNT(cases); i++) printf("    %s\n", cases[i].name);
    bench_list_keys(key, GR_COUNT(key));
}

static gr_status run(int n, char** word)
{
    options o = defaults();
    const bench_key key[] = {BENCH_MODEL_KEYS(&o.model)};
    bench b = {.o = &o};
    gr_status st = GR_OK;
    GR_TRY(bench_take_all(&o.all, key, GR_COUNT(key), n, word));
    GR_TRY(check(&o));
    GR_GOTO(st, bench_open(&b), close);
    for (int i = 0; i < GR_COUNT(cases); i++)
        for (int greedy = 1; greedy >= 0; greedy--)
            GR_GOTO(st, run_case(&b, &cases[i], greedy == 1), close);
close:
    bench_close(&b);
    return st;
}

const bench_part bench_decode = {"decode", "sampling from a model with random weights", list, run};
