/* bench_train.c - one training step: tokens per second and where the time goes.
 *
 *     bench_train [key=value ..]     keys and defaults: see `settings` below
 *
 * The default is a 135M model (30 layers, width 576, 9 heads, 3 KV heads, MLP 1536, vocabulary
 * 49152, tied) on 8 paths of 564 tokens. fork=k makes the paths share their first k tokens, as the
 * leaves of one tree do; batches=k cuts the step into k micro-batches of paths / k paths each. Prints
 * one JSON line; ops are timed by a table that wraps the device's own. Flat rows are compared with a
 * tree by flat_tokens / step_s; peak_mb is what the process really took, plan_mb what was planned;
 * gflops counts 6 flop per weight and token (attention not counted). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "model/objective.h"
#include "model/optimizer.h"

/* ---- settings -------------------------------------------------------------------------------- */

typedef struct settings {
    int layers, width, heads, kv_heads, head_dim, mlp, vocab, tied;
    int paths, tokens, fork; /* tokens per path, of them the first `fork` shared by all */
    int predict;             /* every predict-th token is trained */
    int batches;             /* micro-batches of a step */
    int bf16, threads, recompute, steps;
    int bf16_matmul; /* products through the library, where the CPU has bf16 arithmetic */
    int cpu_time;    /* seconds are the process's CPU time: comparable on a busy machine */
} settings;

static settings defaults(void)
{
    return (settings){.layers = 30,
                      .width = 576,
                      .heads = 9,
                      .kv_heads = 3,
                      .head_dim = 64,
                      .mlp = 1536,
                      .vocab = 49152,
                      .tied = 1,
                      .paths = 8,
                      .tokens = 564,
                      .predict = 1,
                      .batches = 1,
                      .steps = 3};
}

static int parse(settings* s, int argc, char** argv)
{
    const struct {
        const char* key;
        int* value;
    } table[] = {{"layers", &s->layers},
                 {"width", &s->width},
                 {"heads", &s->heads},
                 {"kv_heads", &s->kv_heads},
                 {"mlp", &s->mlp},
                 {"head_dim", &s->head_dim},
                 {"vocab", &s->vocab},
                 {"tied", &s->tied},
                 {"paths", &s->paths},
                 {"tokens", &s->tokens},
                 {"fork", &s->fork},
                 {"predict", &s->predict},
                 {"batches", &s->batches},
                 {"bf16", &s->bf16},
                 {"threads", &s->threads},
                 {"recompute", &s->recompute},
                 {"steps", &s->steps},
                 {"cpu_time", &s->cpu_time},
                 {"bf16_matmul", &s->bf16_matmul}};
    for (int i = 1; i < argc; i++) {
        const char* eq = strchr(argv[i], '=');
        bool known = false;
        for (int k = 0; k < GR_COUNT(table); k++) {
            size_t n = strlen(table[k].key);
            if (eq == NULL || (size_t)(eq - argv[i]) != n ||
                strncmp(argv[i], table[k].key, n) != 0) {
                continue;
            }
            *table[k].value = (int)strtol(eq + 1, NULL, 10);
            known = true;
        }
        if (!known) {
            fprintf(stderr, "bench_train: `%s` is no setting\n", argv[i]);
            return 1;
        }
    }
    return 0;
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
} trainer;

static void layout(trainer* t, const settings* s, int n_tokens, gr_arena* host, gr_arena* device)
{
    const gr_model_config c = {
        .layers = s->layers,
        .width = s->width,
        .heads = s->heads,
        .kv_heads = s->kv_heads,
        .head_dim = s->head_dim,
        .mlp = s->mlp,
        .vocab = s->vocab,
        .max_context = s->tokens,
        .rope_theta = 1e4,
        .norm_eps = 1e-5f,
        .tied = s->tied,
    };
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
            b.token[at] = (int32_t)(gr_uniform(1, (uint64_t)at) * s->vocab);
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

static double step(trainer* t, const settings* s, const gr_batch* b, double* loss)
{
    const gr_loss_params nll = {.kind = GR_LOSS_NLL, .temperature = 1};
    const gr_optimizer_settings adam = {
        .lr = 1e-4, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.01, .grad_clip = 1};
    double begin = now(), norm, lr;
    bool skipped = false;
    gr_loss_sums sums = {0};
    gr_status status = GR_OK;
    gr_optimizer_zero_grad(&t->opt);
    for (int i = 0; i < s->batches && status == GR_OK; i++)
        status = gr_objective_step(&t->o, b, &nll, t->opt.grad, &sums);
    if (status != GR_OK || gr_optimizer_step(&t->opt, &adam, 0, &norm, &lr, &skipped) != GR_OK ||
        skipped) {
        fprintf(stderr, "bench_train: %s\n", skipped ? "gradient not finite" : gr_last_error());
        exit(1);
    }
    *loss = sums.loss;
    return now() - begin;
}

static int by_value(const void* a, const void* b)
{
    double x = *(const double*)a, y = *(const double*)b;
    return x < y ? -1 : x > y;
}

static void run(trainer* t, const settings* s, const gr_batch* b, size_t planned)
{
    double times[64], loss = 0, first = 0, total = 0, best_parts[N_PARTS] = {0};
    int n = GR_MIN(s->steps, GR_COUNT(times));
    for (int i = -1; i < n; i++) { /* the first one warms up */
        memset(part_s, 0, sizeof part_s);
        double seconds = step(t, s, b, &loss);
        if (i < 0) {
            first = loss;
            continue;
        }
        times[i] = seconds;
        if (i == 0 || seconds < total) {
            total = seconds;
            memcpy(best_parts, part_s, sizeof part_s);
        }
    }
    qsort(times, (size_t)n, sizeof *times, by_value);
    struct rusage usage;
    (void)getrusage(RUSAGE_SELF, &usage);
    const int tokens = s->batches * b->n_tokens, flat = s->paths * s->tokens;
    printf("{\"device\":\"%s\",\"params\":%lld,\"tokens\":%d,\"flat_tokens\":%d,"
           "\"step_s\":%.3f,\"best_s\":%.3f,\"tokens_per_s\":%.1f,\"flat_tokens_per_s\":%.1f,"
           "\"gflops\":%.1f,"
           "\"plan_mb\":%.0f,\"peak_mb\":%.0f,\"loss\":[%.4f,%.4f],\"parts_s\":{",
           t->dev.detail, (long long)t->w.n_params, tokens, flat, times[n / 2], times[0],
           tokens / times[n / 2], flat / times[n / 2],
           6e-9 * (double)t->w.n_params * tokens / times[n / 2], (double)planned / 1e6,
           1024.0 * (double)usage.ru_maxrss / 1e6, first, loss);
    double rest = total;
    for (int i = 0; i < N_PARTS; i++) {
        printf("\"%s\":%.3f,", part_name[i], best_parts[i]);
        rest -= best_parts[i];
    }
    printf("\"rest\":%.3f}}\n", rest);
}

int main(int argc, char** argv)
{
    static trainer t;
    settings s = defaults();
    gr_arena host = {0}, device = {0};
    void* block = NULL;
    if (parse(&s, argc, argv) != 0) return 1;
    if (s.cpu_time) used_clock = CLOCK_PROCESS_CPUTIME_ID;
    const gr_dev_options how = {.name = "cpu",
                                .dtype = s.bf16 ? GR_BF16 : GR_F32,
                                .matmul = s.bf16_matmul ? GR_MATMUL_BF16 : GR_MATMUL_EXACT,
                                .threads = s.threads};
    if (gr_dev_open(&t.dev, &how) != GR_OK) goto fail;
    time_ops(&t.dev, &t.table);
    gr_batch b = make_batch(&s);
    layout(&t, &s, b.n_tokens, &host, &device);
    host.cap = host.used, device.cap = device.used;
    host.used = device.used = 0;
    host.base = calloc(1, host.cap);
    if (gr_dev_alloc(&t.dev, &block, device.cap) != GR_OK) goto fail;
    device.base = block;
    layout(&t, &s, b.n_tokens, &host, &device);
    gr_weights_init(&t.w, 1);
    run(&t, &s, &b, host.cap + device.cap);
    return 0;
fail:
    fprintf(stderr, "bench_train: %s\n", gr_last_error());
    return 1;
}
