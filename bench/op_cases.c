/* op_cases.c - the ops, with inputs, the bytes they must move and the flop they must do. */
#include "bench/op.h"

#include <stdlib.h>
#include <string.h>

#include "model/kv.h"

/* ---- tensors -------------------------------------------------------------------------------------- */

enum { BLOCK = 1 << 16 }; /* random values, repeated: large weights would take long to draw */

static void* allocate(op_run* r, size_t bytes)
{
    void* p;
    GR_ASSERT(gr_dev_alloc(r->dev, &p, bytes) == GR_OK, "%s", gr_last_error_text());
    return p;
}

static void* keep(op_run* r, void* p, int64_t n, op_kind kind, bool is_result)
{
    GR_ASSERT(r->n_tensors < GR_COUNT(r->tensor));
    r->tensor[r->n_tensors++] = (op_tensor){p, n, kind, is_result};
    return p;
}

/* Values of [low, high). */
static void* input(op_run* r, int64_t n, op_kind kind, double low, double high)
{
    static double value[BLOCK];
    const size_t size = kind == OP_REAL ? r->dev->real_bytes : r->dev->acc_bytes;
    char* p = allocate(r, (size_t)n * size);
    const uint64_t key = r->seed++;
    for (int64_t i = 0; i < GR_MIN(n, BLOCK); i++)
        value[i] = low + (high - low) * gr_uniform(key, (uint64_t)i);
    for (int64_t at = 0; at < n; at += BLOCK) {
        if (kind == OP_REAL)
            gr_dev_write_real(r->dev, p + (size_t)at * size, value, GR_MIN(n - at, BLOCK));
        else
            gr_dev_write_acc(r->dev, p + (size_t)at * size, value, GR_MIN(n - at, BLOCK));
    }
    return keep(r, p, n, kind, false);
}
static void* real(op_run* r, int64_t n) { return input(r, n, OP_REAL, -1, 1); }
static void* acc(op_run* r, int64_t n, double low, double high)
{
    return input(r, n, OP_ACC, low, high);
}
static void* bytes_of(op_run* r, const void* from, size_t bytes)
{
    void* p = allocate(r, bytes);
    gr_dev_write(r->dev, p, from, bytes);
    return keep(r, p, (int64_t)bytes, OP_INT, false);
}
static void* result(op_run* r, int64_t n, op_kind kind)
{
    const size_t size = kind == OP_REAL  ? r->dev->real_bytes
                        : kind == OP_ACC ? r->dev->acc_bytes
                                         : sizeof(int32_t);
    return keep(r, allocate(r, (size_t)n * size), n, kind, true);
}
static void* space(op_run* r, size_t bytes)
{
    return keep(r, allocate(r, GR_MAX(bytes, (size_t)1)), (int64_t)bytes, OP_INT, false);
}
static void* at(const op_run* r, int i) { return r->tensor[i].at; }

typedef int32_t fill_fn(const op_run* r, int64_t i);
static void* ints(op_run* r, int64_t n, fill_fn* fill)
{
    int32_t* host = malloc((size_t)n * sizeof *host);
    GR_ASSERT(host != NULL);
    for (int64_t i = 0; i < n; i++) host[i] = fill(r, i);
    void* p = bytes_of(r, host, (size_t)n * sizeof *host);
    free(host);
    return p;
}
static int32_t own_number(const op_run* r, int64_t i)
{
    (void)r;
    return (int32_t)i;
}
static int32_t any_id(const op_run* r, int64_t i)
{
    return (int32_t)(gr_uniform(77, (uint64_t)i) * (double)r->s.v);
}
static int32_t any_position(const op_run* r, int64_t i)
{
    (void)r;
    return (int32_t)(i % 4096);
}

static int64_t size_real(const op_run* r) { return (int64_t)r->dev->real_bytes; }
static int64_t size_acc(const op_run* r) { return (int64_t)r->dev->acc_bytes; }

/* ---- pointwise ------------------------------------------------------------------------------------ */

static void embed_open(op_run* r)
{
    result(r, r->s.n * r->s.c, OP_REAL);
    real(r, r->s.v * r->s.c);
    ints(r, r->s.n, any_id);
}
static void embed_run(op_run* r)
{
    r->dev->ops->embed_fwd(r->dev, at(r, 0), at(r, 1), at(r, 2), r->s.n, (int)r->s.c);
}
static int64_t embed_bytes(const op_run* r) { return 2 * r->s.n * r->s.c * size_real(r); }

static void embed_bwd_open(op_run* r)
{
    result(r, r->s.v * r->s.c, OP_ACC);
    real(r, r->s.n * r->s.c);
    ints(r, r->s.n, any_id);
}
static void embed_bwd_run(op_run* r)
{
    r->dev->ops->embed_bwd(r->dev, at(r, 0), at(r, 1), at(r, 2), r->s.n, (int)r->s.c);
}
static int64_t embed_bwd_bytes(const op_run* r)
{
    return r->s.n * r->s.c * (size_real(r) + 2 * size_acc(r));
}

static void rmsnorm_open(op_run* r)
{
    for (int i = 0; i < 2; i++) result(r, r->s.n * r->s.c, OP_REAL);
    result(r, r->s.n, OP_ACC);
    for (int i = 0; i < 2; i++) real(r, r->s.n * r->s.c);
    real(r, r->s.c);
}
static void rmsnorm_run(op_run* r)
{
    r->dev->ops->rmsnorm_fwd(r->dev, at(r, 0), at(r, 1), at(r, 2), at(r, 3), at(r, 4), at(r, 5),
                             r->s.n, (int)r->s.c, 1e-5f);
}
static int64_t rmsnorm_bytes(const op_run* r) { return 4 * r->s.n * r->s.c * size_real(r); }

static void rmsnorm_bwd_open(op_run* r)
{
    result(r, r->s.n * r->s.c, OP_REAL);
    result(r, r->s.c, OP_ACC);
    for (int i = 0; i < 3; i++) real(r, r->s.n * r->s.c);
    real(r, r->s.c);
    acc(r, r->s.n, 0.5, 2);
}
static void rmsnorm_bwd_run(op_run* r)
{
    r->dev->ops->rmsnorm_bwd(r->dev, at(r, 0), at(r, 1), at(r, 2), at(r, 3), at(r, 5), at(r, 6),
                             at(r, 4), r->s.n, (int)r->s.c);
}

static gr_heads heads_of(const op_run* r)
{
    return (gr_heads){
        .h = (int)r->s.h, .hk = (int)r->s.hk, .d = (int)r->s.d, .theta = 10000, .eps = 1e-5f};
}
static int64_t qkv_row(const op_run* r) { return (r->s.h + 2 * r->s.hk) * r->s.d; }
static void qkv_open(op_run* r)
{
    result(r, r->s.n * r->s.h * r->s.d, OP_REAL);
    for (int i = 0; i < 2; i++) result(r, r->s.n * r->s.hk * r->s.d, OP_REAL);
    real(r, r->s.n * qkv_row(r));
    ints(r, r->s.n, any_position);
}
static void qkv_run(op_run* r)
{
    const gr_heads heads = heads_of(r);
    r->dev->ops->qkv_rope_fwd(r->dev, at(r, 0), at(r, 1), at(r, 2), NULL, at(r, 3), NULL, NULL,
                              at(r, 4), r->s.n, &heads);
}
static int64_t qkv_bytes(const op_run* r) { return 2 * r->s.n * qkv_row(r) * size_real(r); }
static void qkv_bwd_open(op_run* r)
{
    result(r, r->s.n * qkv_row(r), OP_REAL);
    real(r, r->s.n * r->s.h * r->s.d);
    for (int i = 0; i < 2; i++) real(r, r->s.n * r->s.hk * r->s.d);
    real(r, r->s.n * qkv_row(r));
    ints(r, r->s.n, any_position);
}
static void qkv_bwd_run(op_run* r)
{
    const gr_heads heads = heads_of(r);
    r->dev->ops->qkv_rope_bwd(r->dev, at(r, 0), NULL, NULL, at(r, 1), at(r, 2), at(r, 3), at(r, 4),
                              NULL, NULL, NULL, at(r, 5), r->s.n, &heads);
}

static void swiglu_open(op_run* r)
{
    result(r, r->s.n * r->s.f, OP_REAL);
    real(r, r->s.n * 2 * r->s.f);
}
static void swiglu_run(op_run* r)
{
    r->dev->ops->swiglu_fwd(r->dev, at(r, 0), at(r, 1), r->s.n, (int)r->s.f);
}
static int64_t swiglu_bytes(const op_run* r) { return 3 * r->s.n * r->s.f * size_real(r); }
static void swiglu_bwd_open(op_run* r)
{
    result(r, r->s.n * 2 * r->s.f, OP_REAL);
    real(r, r->s.n * r->s.f);
    real(r, r->s.n * 2 * r->s.f);
}
static void swiglu_bwd_run(op_run* r)
{
    r->dev->ops->swiglu_bwd(r->dev, at(r, 0), at(r, 1), at(r, 2), r->s.n, (int)r->s.f);
}
static int64_t swiglu_bwd_bytes(const op_run* r) { return 5 * r->s.n * r->s.f * size_real(r); }

/* ---- matrix products ------------------------------------------------------------------------------ */

static void* packed(op_run* r, int64_t m, int64_t k, bool transpose)
{
    const void* w = real(r, m * k);
    void* p = space(r, r->dev->ops->matmul_packed_bytes(r->dev, (int)m, (int)k, transpose));
    r->dev->ops->matmul_pack(r->dev, p, w, (int)m, (int)k, transpose);
    return p;
}
static void matmul_open(op_run* r)
{
    result(r, r->s.n * r->s.m, OP_REAL);
    real(r, r->s.n * r->s.k);
    packed(r, r->s.m, r->s.k, false);
}
static void matmul_run(op_run* r)
{
    r->dev->ops->matmul(r->dev, at(r, 0), at(r, 1), at(r, 3), NULL, r->s.n, (int)r->s.m,
                        (int)r->s.k);
}
static int64_t matmul_bytes(const op_run* r)
{
    return (r->s.n * r->s.m + r->s.n * r->s.k + r->s.m * r->s.k) * size_real(r);
}
static int64_t matmul_flop(const op_run* r) { return 2 * r->s.n * r->s.m * r->s.k; }

static void matmul_dw_open(op_run* r)
{
    result(r, r->s.m * r->s.k, OP_ACC);
    real(r, r->s.n * r->s.m);
    real(r, r->s.n * r->s.k);
    space(r, r->dev->ops->matmul_dw_scratch(r->dev, r->s.n, (int)r->s.m, (int)r->s.k));
}
static void matmul_dw_run(op_run* r)
{
    r->dev->ops->matmul_dw(r->dev, at(r, 0), NULL, at(r, 1), at(r, 2), r->s.n, (int)r->s.m,
                           (int)r->s.k, at(r, 3));
}
static int64_t matmul_dw_bytes(const op_run* r)
{
    return r->s.n * (r->s.m + r->s.k) * size_real(r) + 2 * r->s.m * r->s.k * size_acc(r);
}

/* ---- pages and attention -------------------------------------------------------------------------- */

static void kv_copy_open(op_run* r)
{
    const size_t page = r->dev->ops->kv_page_bytes(r->dev, (int)r->s.hk, (int)r->s.d);
    int32_t* pair = malloc((size_t)r->s.n * 2 * sizeof *pair);
    GR_ASSERT(pair != NULL);
    for (int64_t i = 0; i < r->s.n; i++) {
        pair[2 * i] = (int32_t)i;
        pair[2 * i + 1] = (int32_t)(r->s.n + i);
    }
    input(r, 2 * r->s.n * (int64_t)(page / r->dev->real_bytes), OP_REAL, -1, 1);
    r->tensor[0].is_result = true;
    bytes_of(r, pair, (size_t)r->s.n * 2 * sizeof *pair);
    free(pair);
}
static void kv_copy_run(op_run* r)
{
    r->dev->ops->kv_copy(r->dev, at(r, 0), at(r, 1), r->s.n, 1, 2 * r->s.n, (int)r->s.hk,
                         (int)r->s.d);
}
static int64_t kv_copy_bytes(const op_run* r)
{
    return 2 * r->s.n * GR_PAGE * 2 * r->s.hk * r->s.d * size_real(r);
}

/* One prefix, `leaves` sequences that share it and hold n tokens of their own; each asks one query. */
typedef struct paged {
    gr_kv kv;
    gr_kv_plan plan;
    void* block;
} paged;

static void paged_layout(paged* p, const op_shape* s, gr_arena* host)
{
    const int64_t most = s->prefix + s->n, per_leaf = s->n / GR_PAGE + 3;
    gr_kv_layout(&p->kv, (int)(s->prefix / GR_PAGE + 2 + s->leaves * per_leaf), (int)s->leaves + 1,
                 (int)most, host);
    gr_kv_plan_layout(&p->plan, &p->kv, (int)s->leaves, host);
}

static void append_keys(op_run* r, paged* p, int seq, int64_t n)
{
    const int64_t row = r->s.hk * r->s.d;
    int32_t* slot = malloc((size_t)n * sizeof *slot);
    GR_ASSERT(slot != NULL && gr_kv_append(&p->kv, seq, (int)n, slot));
    const int first = r->n_tensors;
    void *k = real(r, n * row), *v = real(r, n * row);
    void* slots = bytes_of(r, slot, (size_t)n * sizeof *slot);
    r->dev->ops->kv_append(r->dev, at(r, 2), k, v, slots, n, (int)r->s.hk, (int)r->s.d);
    while (r->n_tensors > first) gr_dev_free(r->dev, r->tensor[--r->n_tensors].at);
    free(slot);
}

/* Copies that forks have queued; one run at a time, as the engine does. */
static void copy_pages(op_run* r, paged* p)
{
    for (int first = 0; first < p->kv.n_pairs;) {
        const int end = gr_kv_copy_run(&p->kv, first);
        void* pair =
            bytes_of(r, p->kv.pair + 2 * first, (size_t)(end - first) * 2 * sizeof(int32_t));
        r->dev->ops->kv_copy(r->dev, at(r, 2), pair, end - first, 1, p->kv.n_pages, (int)r->s.hk,
                             (int)r->s.d);
        gr_dev_free(r->dev, pair);
        r->n_tensors--;
        first = end;
    }
    p->kv.n_pairs = 0;
}

static void paged_open(op_run* r)
{
    const int h = (int)r->s.h, hk = (int)r->s.hk, d = (int)r->s.d;
    const int64_t keys = r->s.prefix + r->s.n;
    paged* p = calloc(1, sizeof *p);
    gr_arena host = {0};
    GR_ASSERT(p != NULL);
    r->plan = p;
    paged_layout(p, &r->s, &host);
    p->block = calloc(1, host.used);
    host = (gr_arena){.base = p->block, .cap = host.used};
    GR_ASSERT(p->block != NULL);
    paged_layout(p, &r->s, &host);
    result(r, r->s.leaves * h * d, OP_REAL);
    real(r, r->s.leaves * h * d);
    space(r, (size_t)p->kv.n_pages * r->dev->ops->kv_page_bytes(r->dev, hk, d));
    space(r, r->dev->ops->attention_paged_scratch(r->dev, h, hk, d, (int)keys));
    const int root = gr_kv_open(&p->kv);
    int32_t* seq = malloc((size_t)r->s.leaves * 2 * sizeof *seq);
    GR_ASSERT(seq != NULL);
    append_keys(r, p, root, r->s.prefix);
    for (int64_t i = 0; i < r->s.leaves; i++) {
        seq[i] = gr_kv_fork(&p->kv, root, (int)r->s.prefix);
        seq[r->s.leaves + i] = (int32_t)keys;
        append_keys(r, p, seq[i], r->s.n);
        copy_pages(r, p);
    }
    gr_kv_plan_make(&p->plan, &p->kv, seq, seq + r->s.leaves, (int)r->s.leaves);
    free(seq);
}
void op_free_plan(op_run* r)
{
    paged* p = r->plan;
    if (p != NULL) free(p->block);
    free(p);
}
static void paged_run(op_run* r)
{
    const paged* p = r->plan;
    r->dev->ops->attention_paged(r->dev, at(r, 0), at(r, 1), at(r, 2), &p->plan.plan, (int)r->s.h,
                                 (int)r->s.hk, (int)r->s.d, 0.125f, at(r, 3));
}
static int64_t paged_bytes(const op_run* r)
{
    return 2 * (r->s.prefix + r->s.leaves * r->s.n) * r->s.hk * r->s.d * size_real(r);
}
static int64_t paged_flop(const op_run* r)
{
    return 4 * r->s.leaves * (r->s.prefix + r->s.n) * r->s.h * r->s.d;
}

static int64_t tree_tokens(const op_run* r) { return r->s.prefix + r->s.leaves * r->s.n; }
static int32_t tree_end(const op_run* r, int64_t i)
{
    if (i < r->s.prefix) return (int32_t)tree_tokens(r);
    return (int32_t)(r->s.prefix + ((i - r->s.prefix) / r->s.n + 1) * r->s.n);
}
enum { T_O, T_STAT, T_Q, T_K, T_V, T_SCRATCH, T_DO, T_DQ, T_DK, T_DV };
static void tree_open(op_run* r)
{
    const int64_t n = tree_tokens(r), q = n * r->s.h * r->s.d, kv = n * r->s.hk * r->s.d;
    result(r, q, OP_REAL);
    space(r,
          (size_t)(n * r->s.h * 2) * r->dev->acc_bytes); /* statistics, as the device likes them */
    real(r, q);
    for (int i = 0; i < 2; i++) real(r, kv);
    paged* p = calloc(1, sizeof *p);
    r->plan = p;
    GR_ASSERT(p != NULL);
    int32_t* end = p->block = malloc((size_t)n * sizeof *end); /* the host's */
    GR_ASSERT(end != NULL);
    for (int64_t i = 0; i < n; i++) end[i] = tree_end(r, i);
    space(r, r->dev->ops->attention_tree_scratch(r->dev, n, (int)r->s.h, (int)r->s.hk, (int)r->s.d,
                                                 (int)(r->s.prefix + r->s.n)));
}
static const int32_t* tree_ends(const op_run* r) { return ((const paged*)r->plan)->block; }
static void tree_run(op_run* r)
{
    r->dev->ops->attention_tree(r->dev, at(r, T_O), at(r, T_STAT), at(r, T_Q), at(r, T_K),
                                at(r, T_V), tree_ends(r), tree_tokens(r), (int)r->s.h, (int)r->s.hk,
                                (int)r->s.d, 0.125f, (int)(r->s.prefix + r->s.n), at(r, T_SCRATCH));
}
static int64_t tree_bytes(const op_run* r)
{
    return 2 * tree_tokens(r) * (r->s.h + r->s.hk) * r->s.d * size_real(r);
}
/* Query-key pairs that the mask leaves. */
static int64_t tree_pairs(const op_run* r)
{
    const int64_t p = r->s.prefix, n = r->s.n;
    return p * (p + 1) / 2 + r->s.leaves * (n * p + n * (n + 1) / 2);
}
static int64_t tree_flop(const op_run* r) { return 4 * tree_pairs(r) * r->s.h * r->s.d; }

static void tree_bwd_open(op_run* r)
{
    const int64_t n = tree_tokens(r), q = n * r->s.h * r->s.d, kv = n * r->s.hk * r->s.d;
    tree_open(r);
    real(r, q);
    result(r, q, OP_REAL);
    for (int i = 0; i < 2; i++) result(r, kv, OP_REAL);
    tree_run(r);
}
static void tree_bwd_run(op_run* r)
{
    r->dev->ops->attention_tree_bwd(
        r->dev, at(r, T_DQ), at(r, T_DK), at(r, T_DV), at(r, T_DO), at(r, T_O), at(r, T_STAT),
        at(r, T_Q), at(r, T_K), at(r, T_V), tree_ends(r), tree_tokens(r), (int)r->s.h, (int)r->s.hk,
        (int)r->s.d, 0.125f, (int)(r->s.prefix + r->s.n), at(r, T_SCRATCH));
}
static int64_t tree_bwd_bytes(const op_run* r) { return 2 * tree_bytes(r); }
static int64_t tree_bwd_flop(const op_run* r) { return 5 * tree_flop(r) / 2; }

/* ---- LM head, loss, optimizer --------------------------------------------------------------------- */

enum { H_LOGP, H_ENTROPY, H_HIDDEN, H_W, H_PACKED, H_SRC, H_TARGET, H_HOW, H_UID, H_SCRATCH };
static void head_tensors(op_run* r, bool draw)
{
    gr_sampling* how = calloc((size_t)r->s.r, sizeof *how);
    uint64_t* uid = calloc((size_t)r->s.r, sizeof *uid);
    GR_ASSERT(how != NULL && uid != NULL);
    for (int64_t i = 0; i < r->s.r; i++) {
        how[i] = (gr_sampling){.temperature = 1, .top_p = 1, .top_k = (int32_t)r->s.top_k};
        uid[i] = (uint64_t)i;
    }
    result(r, r->s.r, OP_ACC);
    result(r, r->s.r, OP_ACC);
    r->tensor[H_LOGP].is_result = !draw; /* a draw between near equals may differ */
    real(r, r->s.r * r->s.c);
    packed(r, r->s.v, r->s.c, false);
    ints(r, r->s.r, own_number);
    ints(r, r->s.r, any_id);
    bytes_of(r, how, (size_t)r->s.r * sizeof *how);
    bytes_of(r, uid, (size_t)r->s.r * sizeof *uid);
    space(r, r->dev->ops->head_scratch(r->dev, r->s.r, (int)r->s.c, (int)r->s.v));
    free(how);
    free(uid);
}
static void head_call(op_run* r, bool draw)
{
    r->dev->ops->head(r->dev, at(r, H_LOGP), at(r, H_ENTROPY), draw ? at(r, H_TARGET) : NULL,
                      at(r, H_HIDDEN), at(r, H_PACKED), at(r, H_SRC), draw ? NULL : at(r, H_TARGET),
                      at(r, H_HOW), at(r, H_UID), at(r, H_SRC), r->s.r, (int)r->s.c, (int)r->s.v,
                      at(r, H_SCRATCH));
}
static void head_open(op_run* r) { head_tensors(r, false); }
static void head_run(op_run* r) { head_call(r, false); }
static void draw_open(op_run* r) { head_tensors(r, true); }
static void draw_run(op_run* r) { head_call(r, true); }
static int64_t head_bytes(const op_run* r)
{
    return (r->s.r + r->s.v) * r->s.c * size_real(r) + 2 * r->s.r * size_acc(r);
}
static int64_t head_flop(const op_run* r) { return 2 * r->s.r * r->s.v * r->s.c; }

static const gr_loss_params loss_params = {.clip_low = 0.2,
                                           .clip_high = 0.3,
                                           .kl = GR_KL_K3,
                                           .kl_coef = 0.01,
                                           .entropy_coef = 0.001,
                                           .temperature = 1};
enum { L_DLOGP, L_DENTROPY, L_OLD, L_REF, L_POS, L_NEG, L_W, L_SUMS, L_LOGP, L_ENTROPY };
static void loss_open(op_run* r)
{
    for (int i = 0; i < 2; i++) result(r, r->s.r, OP_ACC);
    for (int i = 0; i < 2; i++) acc(r, r->s.r, -6, -0.1);
    acc(r, r->s.r, 0, 1);
    acc(r, r->s.r, -1, 0);
    acc(r, r->s.r, 0, 1);
    space(r, sizeof(gr_loss_sums));
    acc(r, r->s.r, -6, -0.1);
    acc(r, r->s.r, 0, 5);
}
static void loss_run(op_run* r)
{
    r->dev->ops->policy_loss(r->dev, at(r, L_DLOGP), at(r, L_DENTROPY), at(r, L_SUMS),
                             at(r, L_LOGP), at(r, L_ENTROPY), at(r, L_OLD), at(r, L_REF),
                             at(r, L_POS), at(r, L_NEG), at(r, L_W), r->s.r, &loss_params);
}
static int64_t loss_bytes(const op_run* r) { return 9 * r->s.r * size_acc(r); }

enum {
    HL_DHIDDEN = L_ENTROPY + 1,
    HL_DW,
    HL_HIDDEN,
    HL_W,
    HL_PACKED,
    HL_W_T,
    HL_PACKED_T,
    HL_SRC,
    HL_TARGET,
    HL_SCRATCH
};
static void head_loss_open(op_run* r)
{
    loss_open(r); /* logp and entropy are results here, dlogp and dentropy unused */
    r->tensor[L_DLOGP].is_result = r->tensor[L_DENTROPY].is_result = false;
    r->tensor[L_LOGP].is_result = r->tensor[L_ENTROPY].is_result = true;
    result(r, r->s.r * r->s.c, OP_REAL);
    result(r, r->s.v * r->s.c, OP_ACC);
    input(r, r->s.r * r->s.c, OP_REAL, -0.3, 0.3);
    const uint64_t weights = r->seed;
    packed(r, r->s.v, r->s.c, false);
    r->seed = weights;
    packed(r, r->s.v, r->s.c, true);
    ints(r, r->s.r, own_number);
    ints(r, r->s.r, any_id);
    space(r, r->dev->ops->head_loss_scratch(r->dev, r->s.r, (int)r->s.c, (int)r->s.v));
}
static void head_loss_run(op_run* r)
{
    const gr_loss_rows rows = {at(r, HL_SRC), at(r, HL_TARGET), at(r, L_OLD), at(r, L_REF),
                               at(r, L_POS),  at(r, L_NEG),     at(r, L_W)};
    r->dev->ops->head_loss(r->dev, at(r, HL_DHIDDEN), at(r, HL_DW), at(r, L_LOGP), at(r, L_ENTROPY),
                           at(r, L_SUMS), at(r, HL_HIDDEN), at(r, HL_PACKED), at(r, HL_PACKED_T),
                           &rows, r->s.r, r->s.r, (int)r->s.c, (int)r->s.v, &loss_params,
                           at(r, HL_SCRATCH));
}
static int64_t head_loss_bytes(const op_run* r)
{
    return (2 * r->s.r + 2 * r->s.v) * r->s.c * size_real(r) + 2 * r->s.v * r->s.c * size_acc(r);
}
static int64_t head_loss_flop(const op_run* r) { return 3 * head_flop(r); }

static void sumsq_open(op_run* r)
{
    space(r, sizeof(double));
    acc(r, r->s.n, -1, 1);
}
static void sumsq_run(op_run* r) { r->dev->ops->sumsq(r->dev, at(r, 0), at(r, 1), r->s.n); }
static int64_t sumsq_bytes(const op_run* r) { return r->s.n * size_acc(r); }

static void adamw_open(op_run* r)
{
    acc(r, r->s.n, -1, 1);
    acc(r, r->s.n, -1, 1);
    acc(r, r->s.n, 0.1, 1);
    for (int i = 0; i < 3; i++) r->tensor[i].is_result = true;
    result(r, r->s.n, OP_REAL);
    acc(r, r->s.n, -1, 1);
}
static void adamw_run(op_run* r)
{
    const gr_adamw params = {.lr = 1e-4,
                             .beta1 = 0.9,
                             .beta2 = 0.95,
                             .eps = 1e-8,
                             .weight_decay = 0.1,
                             .grad_scale = 1,
                             .step = 10};
    r->dev->ops->adamw_f32(r->dev, at(r, 0), at(r, 3), at(r, 1), at(r, 2), at(r, 4), r->s.n,
                           &params);
}
static int64_t adamw_bytes(const op_run* r) { return r->s.n * (7 * size_acc(r) + size_real(r)); }

/* ---- the list ------------------------------------------------------------------------------------- */

#define WIDTHS .c = 576, .m = 1536, .k = 576, .f = 1536, .h = 9, .hk = 3, .d = 64, .v = 49152

const op_case op_cases[] = {
    {"embed_fwd",
     "rows of a table",
     "n c v",
     {.n = 2048, WIDTHS},
     embed_open,
     embed_run,
     embed_bytes,
     NULL},
    {"embed_bwd",
     "its gradient, in token order",
     "n c v",
     {.n = 2048, WIDTHS},
     embed_bwd_open,
     embed_bwd_run,
     embed_bwd_bytes,
     NULL},
    {"rmsnorm_fwd",
     "residual and norm",
     "n c",
     {.n = 2048, WIDTHS},
     rmsnorm_open,
     rmsnorm_run,
     rmsnorm_bytes,
     NULL},
    {"rmsnorm_bwd",
     "its gradient",
     "n c",
     {.n = 2048, WIDTHS},
     rmsnorm_bwd_open,
     rmsnorm_bwd_run,
     rmsnorm_bytes,
     NULL},
    {"qkv_rope_fwd",
     "split and rotate",
     "n h hk d",
     {.n = 2048, WIDTHS},
     qkv_open,
     qkv_run,
     qkv_bytes,
     NULL},
    {"qkv_rope_bwd",
     "its gradient",
     "n h hk d",
     {.n = 2048, WIDTHS},
     qkv_bwd_open,
     qkv_bwd_run,
     qkv_bytes,
     NULL},
    {"swiglu_fwd",
     "silu(g) u",
     "n f",
     {.n = 2048, WIDTHS},
     swiglu_open,
     swiglu_run,
     swiglu_bytes,
     NULL},
    {"swiglu_bwd",
     "its gradient",
     "n f",
     {.n = 2048, WIDTHS},
     swiglu_bwd_open,
     swiglu_bwd_run,
     swiglu_bwd_bytes,
     NULL},
    {"matmul",
     "y = x w^T",
     "n m k",
     {.n = 1024, WIDTHS},
     matmul_open,
     matmul_run,
     matmul_bytes,
     matmul_flop},
    {"matmul_dw",
     "dw += dy^T x",
     "n m k",
     {.n = 1024, WIDTHS},
     matmul_dw_open,
     matmul_dw_run,
     matmul_dw_bytes,
     matmul_flop},
    {"kv_copy",
     "pages of a pool: a plain copy",
     "n hk d",
     {.n = 2048, WIDTHS},
     kv_copy_open,
     kv_copy_run,
     kv_copy_bytes,
     NULL},
    {"attention_paged",
     "decode: leaves of one prefix, n keys of their own",
     "leaves prefix n h hk d",
     {.n = 64, .leaves = 32, .prefix = 1000, WIDTHS},
     paged_open,
     paged_run,
     paged_bytes,
     paged_flop},
    {"attention_tree",
     "training: leaves of n tokens over one prefix",
     "leaves prefix n h hk d",
     {.n = 64, .leaves = 8, .prefix = 500, WIDTHS},
     tree_open,
     tree_run,
     tree_bytes,
     tree_flop},
    {"attention_tree_bwd",
     "its gradient",
     "leaves prefix n h hk d",
     {.n = 64, .leaves = 8, .prefix = 500, WIDTHS},
     tree_bwd_open,
     tree_bwd_run,
     tree_bwd_bytes,
     tree_bwd_flop},
    {"head",
     "log-prob and entropy of r targets",
     "r c v",
     {.r = 256, WIDTHS},
     head_open,
     head_run,
     head_bytes,
     head_flop},
    {"head_draw",
     "draw r tokens, from all (top_k=0) or from the best",
     "r c v top_k",
     {.r = 32, WIDTHS},
     draw_open,
     draw_run,
     head_bytes,
     head_flop},
    {"policy_loss",
     "loss and slopes of r rows",
     "r",
     {.r = 32768, WIDTHS},
     loss_open,
     loss_run,
     loss_bytes,
     NULL},
    {"head_loss",
     "head, loss and gradients of r rows",
     "r c v",
     {.r = 256, WIDTHS},
     head_loss_open,
     head_loss_run,
     head_loss_bytes,
     head_loss_flop},
    {"sumsq", "sum of squares", "n", {.n = 1 << 24}, sumsq_open, sumsq_run, sumsq_bytes, NULL},
    {"adamw_f32",
     "one optimizer step",
     "n",
     {.n = 1 << 24},
     adamw_open,
     adamw_run,
     adamw_bytes,
     NULL},
    {0},
};
