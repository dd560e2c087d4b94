/* bench_step.c - bench step [key=value ...]: one training step, and where its time goes.
 *
 * The default is a 135M model (30 layers, width 576, 9 heads, 3 KV heads, MLP 1536, vocabulary
 * 49152, tied) on 8 paths of 564 tokens. fork=k makes the paths share their first k tokens, as the
 * leaves of one tree do; batches=k cuts the step into k micro-batches of paths / k paths each. One
 * JSON line; on a device whose ops have run when they return, they are timed by a table that wraps
 * its own. Flat rows are compared with a tree by flat_tokens / step_s; peak_mb is what the process
 * really took, plan_mb what was planned; gflops counts 6 flop per weight and token (attention not
 * counted). Before anything is timed, three losses of a small model are compared with fp64. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "bench/bench.h"
#include "model/objective.h"
#include "model/optimizer.h"

/* ---- settings -------------------------------------------------------------------------------- */

typedef struct settings {
    gr_model_config model;
    int tied;                /* the head is the embedding */
    int paths, tokens, fork; /* tokens per path, of them the first `fork` shared by all */
    int predict;             /* every predict-th token is trained */
    int batches;             /* micro-batches of a step */
    int recompute;
    int cpu_time; /* seconds are the process's CPU time: comparable on a busy machine */
} settings;

static settings defaults(void)
{
    return (settings){
        .model = bench_model(), .tied = 1, .paths = 8, .tokens = 564, .predict = 1, .batches = 1};
}

#define KEYS(s)                                                                                  \
    {                                                                                            \
        BENCH_MODEL_KEYS(&(s)->model), {"tied", &(s)->tied, 0}, {"paths", &(s)->paths, 1},       \
            {"tokens", &(s)->tokens, 2}, {"fork", &(s)->fork, 0}, {"predict", &(s)->predict, 1}, \
            {"batches", &(s)->batches, 1}, {"recompute", &(s)->recompute, 0},                    \
            {"cpu_time", &(s)->cpu_time, 0},                                                     \
    }

/* ---- timed ops ------------------------------------------------------------------------------- */

enum { PRODUCTS, PRODUCTS_DW, ATTENTION, ATTENTION_BWD, HEAD, POINTWISE, ADAMW, PACK, N_PARTS };
static const char* const part_name[N_PARTS] = {
    "products", "products_dw", "attention", "attention_bwd", "head", "pointwise", "adamw", "pack"};
static double part_s[N_PARTS];
static const gr_ops* wrapped;
static clockid_t used_clock = CLOCK_MONOTONIC;

static double now(void)
{
    struct timespec t;
    (void)clock_gettime(used_clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#define TIMED(part, op, params, args)  \
    static void timed_##op params      \
    {                                  \
        double begin = now();          \
        wrapped->op args;              \
        part_s[part] += now() - begin; \
    }

TIMED(PRODUCTS, matmul,
      (gr_dev * dev, void* y, const void* x, const void* w, const void* b, int64_t n, int m, int k),
      (dev, y, x, w, b, n, m, k))
TIMED(PRODUCTS_DW, matmul_dw,
      (gr_dev * dev, void* dw, void* db, const void* dy, const void* x, int64_t n, int m, int k,
       void* scratch),
      (dev, dw, db, dy, x, n, m, k, scratch))
TIMED(ATTENTION, attention_tree,
      (gr_dev * dev, void* o, void* stat, const void* q, const void* k, const void* v,
       const int32_t* end, int64_t n, int h, int hk, int d, float scale, int max_path,
       void* scratch),
      (dev, o, stat, q, k, v, end, n, h, hk, d, scale, max_path, scratch))
TIMED(ATTENTION_BWD, attention_tree_bwd,
      (gr_dev * dev, void* dq, void* dk, void* dv, const void* do_, const void* o, const void* stat,
       const void* q, const void* k, const void* v, const int32_t* end, int64_t n, int h, int hk,
       int d, float scale, int max_path, void* scratch),
      (dev, dq, dk, dv, do_, o, stat, q, k, v, end, n, h, hk, d, scale, max_path, scratch))
TIMED(HEAD, head_loss,
      (gr_dev * dev, void* dh, void* dw, void* logp, void* entropy, gr_loss_sums* sums,
       const void* hidden, const void* packed, const void* packed_t, const gr_loss_rows* rows,
       int64_t r, int64_t n, int c, int v, const gr_loss_params* p, void* scratch),
      (dev, dh, dw, logp, entropy, sums, hidden, packed, packed_t, rows, r, n, c, v, p, scratch))
TIMED(POINTWISE, embed_bwd,
      (gr_dev * dev, void* dtable, const void* dy, const int32_t* token, int64_t n, int c),
      (dev, dtable, dy, token, n, c))
TIMED(POINTWISE, rmsnorm_fwd,
      (gr_dev * dev, void* y, void* sum, void* rstd, const void* x, const void* delta,
       const void* w, int64_t n, int c, float eps),
      (dev, y, sum, rstd, x, delta, w, n, c, eps))
TIMED(POINTWISE, rmsnorm_bwd,
      (gr_dev * dev, void* dx, void* dw, const void* dy, const void* x, const void* w,
       const void* rstd, const void* dsum, int64_t n, int c),
      (dev, dx, dw, dy, x, w, rstd, dsum, n, c))
TIMED(POINTWISE, qkv_rope_fwd,
      (gr_dev * dev, void* q, void* k, void* v, void* rstd, const void* qkv, const void* qn,
       const void* kn, const int32_t* position, int64_t n, const gr_heads* heads),
      (dev, q, k, v, rstd, qkv, qn, kn, position, n, heads))
TIMED(POINTWISE, qkv_rope_bwd,
      (gr_dev * dev, void* dqkv, void* dqn, void* dkn, const void* dq, const void* dk,
       const void* dv, const void* qkv, const void* qn, const void* kn, const void* rstd,
       const int32_t* position, int64_t n, const gr_heads* heads),
      (dev, dqkv, dqn, dkn, dq, dk, dv, qkv, qn, kn, rstd, position, n, heads))
TIMED(POINTWISE, swiglu_fwd, (gr_dev * dev, void* y, const void* gu, int64_t n, int f),
      (dev, y, gu, n, f))
TIMED(POINTWISE, swiglu_bwd,
      (gr_dev * dev, void* dgu, const void* dy, const void* gu, int64_t n, int f),
      (dev, dgu, dy, gu, n, f))
TIMED(ADAMW, adamw_f32,
      (gr_dev * dev, void* master, void* weight, void* m, void* v, const void* grad, int64_t n,
       const gr_adamw* p),
      (dev, master, weight, m, v, grad, n, p))
TIMED(ADAMW, sumsq, (gr_dev * dev, double* out, const void* x, int64_t n), (dev, out, x, n))
TIMED(PACK, matmul_pack, (gr_dev * dev, void* packed, const void* w, int m, int k, bool transpose),
      (dev, packed, w, m, k, transpose))

static void time_ops(gr_dev* dev, gr_ops* table)
{
    wrapped = dev->ops;
    *table = *dev->ops;
    table->matmul = timed_matmul;
    table->matmul_dw = timed_matmul_dw;
    table->attention_tree = timed_attention_tree;
    table->attention_tree_bwd = timed_attention_tree_bwd;
    table->head_loss = timed_head_loss;
    table->embed_bwd = timed_embed_bwd;
    table->rmsnorm_fwd = timed_rmsnorm_fwd;
    table->rmsnorm_bwd = timed_rmsnorm_bwd;
    table->qkv_rope_fwd = timed_qkv_rope_fwd;
    table->qkv_rope_bwd = timed_qkv_rope_bwd;
    table->swiglu_fwd = timed_swiglu_fwd;
    table->swiglu_bwd = timed_swiglu_bwd;
    table->adamw_f32 = timed_adamw_f32;
    table->sumsq = timed_sumsq;
    table->matmul_pack = timed_matmul_pack;
    dev->ops = table;
}

/* ---- what is trained ------------------------------------------------------------------------- */

typedef struct trainer {
    gr_dev dev;
    gr_ops table;
    gr_weights w;
    gr_optimizer opt;
    gr_objective o;
    gr_arena host, device;
} trainer;

static void layout(trainer* t, const settings* s, int n_tokens, gr_arena* host, gr_arena* device)
{
    gr_model_config c = s->model;
    c.max_context = s->tokens;
    c.tied = s->tied;
    gr_weights_layout(&t->w, &t->dev, &c, true, host, device);
    gr_optimizer_layout(&t->opt, &t->w, device);
    gr_objective_layout(&t->o, &t->w, n_tokens, s->tokens, true, s->recompute, host, device);
}

/* One micro-batch: leaves below a shared prefix of `fork` tokens (0: paths of their own). */
static gr_batch make_batch(const settings* s)
{
    const int paths = s->paths / s->batches;
    size_t n = (size_t)paths * (size_t)s->tokens;
    gr_batch b = {.max_path = s->tokens};
    int32_t** const ints[] = {&b.token, &b.position, &b.subtree_end, &b.src, &b.target};
    double** const doubles[] = {&b.old_logp, &b.ref_logp, &b.a_pos, &b.a_neg, &b.w};
    for (int i = 0; i < GR_COUNT(ints); i++) *ints[i] = calloc(n, sizeof(int32_t));
    for (int i = 0; i < GR_COUNT(doubles); i++) *doubles[i] = calloc(n, sizeof(double));
    for (int path = 0; path < paths; path++) {
        int first = path == 0 ? 0 : s->fork;
        int end = b.n_tokens + s->tokens - first;
        for (int i = first; i < s->tokens; i++) {
            int at = b.n_tokens++;
            b.token[at] = (int32_t)(gr_uniform(1, (uint64_t)at) * s->model.vocab);
            b.position[at] = i;
            b.subtree_end[at] = end;
            if (i == 0 || i % s->predict != 0) continue;
            b.src[b.n_rows] = i == s->fork ? s->fork - 1 : at - 1;
            b.target[b.n_rows] = b.token[at];
            b.a_pos[b.n_rows] = b.w[b.n_rows] = 1.0 / (double)(s->paths * s->tokens);
            b.n_rows++;
        }
    }
    for (int i = 0; i < s->fork; i++) b.subtree_end[i] = b.n_tokens;
    return b;
}

static void free_batch(gr_batch* b)
{
    void* all[] = {b->token,    b->position, b->subtree_end, b->src,   b->target,
                   b->old_logp, b->ref_logp, b->a_pos,       b->a_neg, b->w};
    for (int i = 0; i < GR_COUNT(all); i++) free(all[i]);
}

static gr_status step(trainer* t, const settings* s, const gr_batch* b, double* loss,
                      double* seconds)
{
    const gr_loss_params nll = {.kind = GR_LOSS_NLL, .temperature = 1};
    const gr_optimizer_settings adam = {
        .lr = 1e-4, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.01, .grad_clip = 1};
    double begin = now(), norm, lr;
    bool skipped = false;
    gr_loss_sums sums = {0};
    gr_optimizer_zero_grad(&t->opt);
    for (int i = 0; i < s->batches; i++)
        GR_TRY(gr_objective_step(&t->o, b, &nll, t->opt.grad, &sums));
    GR_TRY(gr_optimizer_step(&t->opt, &adam, 0, &norm, &lr, &skipped));
    if (skipped) return GR_FAIL(GR_EDATA, "the gradient is not finite");
    *loss = sums.loss;
    *seconds = now() - begin;
    return GR_OK;
}

static gr_status open_trainer(trainer* t, const settings* s, const gr_dev_options* how,
                              const gr_batch* b)
{
    void* block = NULL;
    memset(t, 0, sizeof *t);
    GR_TRY(gr_dev_open(&t->dev, how));
    if (bench_ops_block(&t->dev)) time_ops(&t->dev, &t->table);
    layout(t, s, b->n_tokens, &t->host, &t->device);
    t->host.cap = t->host.used, t->device.cap = t->device.used;
    t->host.used = t->device.used = 0;
    t->host.base = calloc(1, t->host.cap);
    if (t->host.base == NULL) return GR_FAIL(GR_ENOMEM, "out of memory");
    GR_TRY(gr_dev_alloc(&t->dev, &block, t->device.cap));
    t->device.base = block;
    layout(t, s, b->n_tokens, &t->host, &t->device);
    gr_weights_init(&t->w, 1);
    return GR_OK;
}

static void close_trainer(trainer* t)
{
    gr_dev_free(&t->dev, t->device.base);
    free(t->host.base);
    gr_dev_close(&t->dev);
}

/* ---- check ----------------------------------------------------------------------------------- */

enum { CHECKED = 3 };

static gr_status losses(const settings* s, const gr_dev_options* how, double* loss)
{
    trainer t;
    double seconds;
    gr_batch b = make_batch(s);
    gr_status st = open_trainer(&t, s, how, &b);
    for (int i = 0; i < CHECKED && st == GR_OK; i++) st = step(&t, s, &b, &loss[i], &seconds);
    close_trainer(&t);
    free_batch(&b);
    return st;
}

static gr_status check(const bench_options* o)
{
    settings small = {.model = bench_model(),
                      .tied = 1,
                      .paths = 3,
                      .tokens = 40,
                      .fork = 21,
                      .predict = 1,
                      .batches = 1};
    gr_model_config* m = &small.model;
    m->layers = 2, m->width = 64, m->mlp = 96, m->vocab = 300;
    m->heads = 4, m->kv_heads = 2, m->head_dim = 16;
    const gr_dev_options exact = {.name = "cpu:base", .dtype = GR_F64, .threads = 1};
    const double bound = o->device.dtype == GR_BF16 ? 1e-2 : 1e-5;
    double got[CHECKED], want[CHECKED];
    GR_TRY(losses(&small, &o->device, got));
    GR_TRY(losses(&small, &exact, want));
    for (int i = 0; i < CHECKED; i++)
        if (!(fabs(got[i] / want[i] - 1) <= bound))
            return GR_FAIL(GR_EDATA, "wrong: loss %g, in fp64 %g", got[i], want[i]);
    return GR_OK;
}

/* ---- the part -------------------------------------------------------------------------------- */

static void report(const trainer* t, const settings* s, const gr_batch* b, const bench_times* times,
                   const double* loss, const double* parts)
{
    struct rusage usage;
    (void)getrusage(RUSAGE_SELF, &usage);
    const int tokens = s->batches * b->n_tokens, flat = s->paths * s->tokens;
    const double flop = 6.0 * (double)t->w.n_params * tokens;
    printf("{\"bench\": \"step\", \"params\": %lld, \"tokens\": %d, \"flat_tokens\": %d, "
           "\"step_s\": %.3f, \"p10_s\": %.3f, \"p90_s\": %.3f, \"best_s\": %.3f, ",
           (long long)t->w.n_params, tokens, flat, times->median, times->p10, times->p90,
           times->best);
    printf("\"tokens_per_s\": %.1f, \"flat_tokens_per_s\": %.1f, \"gflop\": %.1f, "
           "\"gflops\": %.1f, \"plan_mb\": %.0f, \"peak_mb\": %.0f, \"loss\": [%.4f,%.4f], ",
           tokens / times->median, flat / times->median, flop * 1e-9, flop * 1e-9 / times->median,
           (double)(t->host.cap + t->device.cap) / 1e6, 1024.0 * (double)usage.ru_maxrss / 1e6,
           loss[0], loss[1]);
    if (bench_ops_block(&t->dev)) {
        double rest = times->best;
        printf("\"parts_s\": {");
        for (int i = 0; i < N_PARTS; i++) {
            printf("\"%s\": %.3f, ", part_name[i], parts[i]);
            rest -= parts[i];
        }
        printf("\"rest\": %.3f}, ", rest);
    }
    bench_end_line(&t->dev);
}

/* loss: of the first step, which warms up, and of the last. parts: of the best step. */
static gr_status time_steps(trainer* t, const settings* s, const gr_batch* b, int n)
{
    double loss[2], seconds, best = HUGE_VAL, parts[N_PARTS] = {0};
    double* times = malloc((size_t)n * sizeof *times);
    GR_ASSERT(times != NULL);
    gr_status st = step(t, s, b, &loss[0], &seconds);
    for (int i = 0; i < n && st == GR_OK; i++) {
        memset(part_s, 0, sizeof part_s);
        st = step(t, s, b, &loss[1], &times[i]);
        if (st != GR_OK || times[i] >= best) continue;
        best = times[i];
        memcpy(parts, part_s, sizeof part_s);
    }
    if (st == GR_OK) {
        const bench_times sorted = bench_sort(times, n);
        report(t, s, b, &sorted, loss, parts);
    }
    free(times);
    return st;
}

static void list(void)
{
    settings s = defaults();
    const bench_key key[] = KEYS(&s);
    bench_list_keys(key, GR_COUNT(key));
}

static gr_status run(int n, char** word)
{
    bench_options o = {.device = {.name = "cpu"}, .repeats = 3};
    settings s = defaults();
    const bench_key key[] = KEYS(&s);
    trainer t;
    GR_TRY(bench_take_all(&o, key, GR_COUNT(key), n, word));
    if (s.fork >= s.tokens || s.paths % s.batches != 0)
        return GR_FAIL(GR_EARG, "fork < tokens, and batches divides paths");
    GR_TRY(check(&o));
    if (s.cpu_time) used_clock = CLOCK_PROCESS_CPUTIME_ID;
    gr_batch b = make_batch(&s);
    gr_status st = open_trainer(&t, &s, &o.device, &b);
    if (st == GR_OK) st = time_steps(&t, &s, &b, o.repeats);
    close_trainer(&t);
    free_batch(&b);
    return st;
}

const bench_part bench_step = {"step", "one training step of a model with random weights", list,
                               run};
