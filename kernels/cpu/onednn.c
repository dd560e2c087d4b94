#include "kernels/cpu/onednn.h"
#include "kernels/cpu/state.h"

#include <dnnl.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The library compiles code per shape, which takes milliseconds, so what it made is kept. To keep the
 * number of shapes small, rows are cut: whole blocks, then powers of two, then at most ROWS_SMALL - 1
 * rows at once. */
#define ROWS_BLOCK  256
#define ROWS_SMALL  32
#define TOKEN_BLOCK 1024 /* of dw, which is read and written once per block */

typedef enum call_kind {
    CALL_MATMUL,  /* rows, m, k; stride of y */
    CALL_OUTER,   /* rows, m, k */
    CALL_CONVERT, /* rows of k fp32, stride of the source, to dense bf16 */
    CALL_PACK,    /* m, k */
} call_kind;

typedef struct call_key {
    int64_t kind, rows, m, k, stride;
    int64_t y_f32, bias, w_f32, transpose; /* bias: 0 none, 1 bf16, 2 fp32 */
} call_key;

enum { SRC, WEIGHTS, BIAS, DST, N_OPERANDS };
static const int operand_arg[N_OPERANDS] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_BIAS,
                                            DNNL_ARG_DST};

typedef struct call {
    call_key key;
    struct call* next; /* in the same bucket */
    dnnl_primitive_t primitive;
    dnnl_memory_t operand[N_OPERANDS]; /* NULL: not used */
} call;

typedef struct buffer {
    void* at;
    size_t bytes;
} buffer;

#define BUCKETS 256
struct gr_onednn {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    call* bucket[BUCKETS];
    buffer converted[2]; /* operands rounded to bf16; grown to the largest ever needed */
};

#define DNNL_TRY(expr)                               \
    do {                                             \
        const dnnl_status_t status_ = (expr);        \
        if (status_ != dnnl_success) return status_; \
    } while (0)

/* ---- descriptors ----------------------------------------------------------------------------------- */

static dnnl_data_type_t type_of(bool f32) { return f32 ? dnnl_f32 : dnnl_bf16; }

static dnnl_status_t matrix(dnnl_memory_desc_t* out, int64_t rows, int64_t cols, int64_t row_step,
                            int64_t col_step, dnnl_data_type_t type)
{
    const dnnl_dims_t dims = {rows, cols}, strides = {row_step, col_step};
    return dnnl_memory_desc_init_by_strides(out, 2, dims, type, strides);
}

static dnnl_status_t any_layout(dnnl_memory_desc_t* out, int64_t rows, int64_t cols)
{
    const dnnl_dims_t dims = {rows, cols};
    return dnnl_memory_desc_init_by_tag(out, 2, dims, dnnl_bf16, dnnl_format_tag_any);
}

/* The layout of packed weights: what the library wants for whole blocks of rows. */
static dnnl_status_t packed_layout(gr_onednn* lib, dnnl_memory_desc_t* out, int64_t m, int64_t k)
{
    dnnl_memory_desc_t src, weights, dst;
    dnnl_matmul_desc_t desc;
    dnnl_primitive_desc_t made;
    DNNL_TRY(matrix(&src, ROWS_BLOCK, k, k, 1, dnnl_bf16));
    DNNL_TRY(any_layout(&weights, k, m));
    DNNL_TRY(matrix(&dst, ROWS_BLOCK, m, m, 1, dnnl_bf16));
    DNNL_TRY(dnnl_matmul_desc_init(&desc, &src, &weights, NULL, &dst));
    DNNL_TRY(dnnl_primitive_desc_create(&made, &desc, NULL, lib->engine, NULL));
    *out = *dnnl_primitive_desc_query_md(made, dnnl_query_weights_md, 0);
    return dnnl_primitive_desc_destroy(made);
}

/* ---- making calls ------------------------------------------------------------------------------------ */

static dnnl_status_t set_operand(gr_onednn* lib, call* c, int which, const dnnl_memory_desc_t* desc)
{
    return dnnl_memory_create(&c->operand[which], desc, lib->engine, DNNL_MEMORY_NONE);
}

static dnnl_status_t make_reorder(gr_onednn* lib, call* c, const dnnl_memory_desc_t* src,
                                  const dnnl_memory_desc_t* dst)
{
    dnnl_primitive_desc_t desc;
    DNNL_TRY(dnnl_reorder_primitive_desc_create(&desc, src, lib->engine, dst, lib->engine, NULL));
    DNNL_TRY(dnnl_primitive_create(&c->primitive, desc));
    DNNL_TRY(dnnl_primitive_desc_destroy(desc));
    DNNL_TRY(set_operand(lib, c, SRC, src));
    return set_operand(lib, c, DST, dst);
}

static dnnl_status_t make_product(gr_onednn* lib, call* c, const dnnl_memory_desc_t* src,
                                  const dnnl_memory_desc_t* weights, const dnnl_memory_desc_t* bias,
                                  const dnnl_memory_desc_t* dst, bool add)
{
    dnnl_matmul_desc_t desc;
    dnnl_primitive_desc_t made;
    dnnl_primitive_attr_t attr;
    dnnl_post_ops_t post;
    DNNL_TRY(dnnl_primitive_attr_create(&attr));
    DNNL_TRY(dnnl_post_ops_create(&post));
    if (add) DNNL_TRY(dnnl_post_ops_append_sum(post, 1));
    DNNL_TRY(dnnl_primitive_attr_set_post_ops(attr, post));
    DNNL_TRY(dnnl_matmul_desc_init(&desc, src, weights, bias, dst));
    DNNL_TRY(dnnl_primitive_desc_create(&made, &desc, attr, lib->engine, NULL));
    DNNL_TRY(dnnl_primitive_create(&c->primitive, made));
    DNNL_TRY(dnnl_primitive_desc_destroy(made));
    DNNL_TRY(dnnl_post_ops_destroy(post));
    DNNL_TRY(dnnl_primitive_attr_destroy(attr));
    DNNL_TRY(set_operand(lib, c, SRC, src));
    DNNL_TRY(set_operand(lib, c, WEIGHTS, weights));
    if (bias != NULL) DNNL_TRY(set_operand(lib, c, BIAS, bias));
    return set_operand(lib, c, DST, dst);
}

static dnnl_status_t make_call(gr_onednn* lib, call* c)
{
    const call_key* key = &c->key;
    dnnl_memory_desc_t src, weights, bias, dst;
    switch ((call_kind)key->kind) {
    case CALL_MATMUL:
        DNNL_TRY(matrix(&src, key->rows, key->k, key->k, 1, dnnl_bf16));
        DNNL_TRY(packed_layout(lib, &weights, key->m, key->k));
        DNNL_TRY(matrix(&bias, 1, key->m, key->m, 1, type_of(key->bias == 2)));
        DNNL_TRY(matrix(&dst, key->rows, key->m, key->stride, 1, type_of(key->y_f32)));
        return make_product(lib, c, &src, &weights, key->bias != 0 ? &bias : NULL, &dst, false);
    case CALL_OUTER:
        DNNL_TRY(matrix(&src, key->m, key->rows, 1, key->stride, dnnl_bf16));
        DNNL_TRY(matrix(&weights, key->rows, key->k, key->k, 1, dnnl_bf16));
        DNNL_TRY(matrix(&dst, key->m, key->k, key->k, 1, dnnl_f32));
        return make_product(lib, c, &src, &weights, NULL, &dst, true);
    case CALL_CONVERT:
        DNNL_TRY(matrix(&src, key->rows, key->k, key->stride, 1, dnnl_f32));
        DNNL_TRY(matrix(&dst, key->rows, key->k, key->k, 1, dnnl_bf16));
        return make_reorder(lib, c, &src, &dst);
    case CALL_PACK:
        DNNL_TRY(matrix(&src, key->k, key->m, key->transpose ? key->m : 1,
                        key->transpose ? 1 : key->k, type_of(key->w_f32)));
        DNNL_TRY(packed_layout(lib, &dst, key->m, key->k));
        return make_reorder(lib, c, &src, &dst);
    }
    return dnnl_invalid_arguments;
}

static void free_call(call* c)
{
    for (int i = 0; i < N_OPERANDS; i++) (void)dnnl_memory_destroy(c->operand[i]);
    (void)dnnl_primitive_destroy(c->primitive);
    free(c);
}

static dnnl_status_t find_call(gr_onednn* lib, call** out, const call_key* key)
{
    call** bucket = &lib->bucket[gr_hash64(key, sizeof *key, 0) % BUCKETS];
    for (*out = *bucket; *out != NULL; *out = (*out)->next)
        if (memcmp(&(*out)->key, key, sizeof *key) == 0) return dnnl_success;
    call* c = calloc(1, sizeof *c);
    if (c == NULL) return dnnl_out_of_memory;
    c->key = *key;
    const dnnl_status_t status = make_call(lib, c);
    if (status != dnnl_success) {
        free_call(c);
        return status;
    }
    c->next = *bucket;
    *out = *bucket = c;
    return dnnl_success;
}

/* at[]: where the operands are; those the call lacks are ignored. */
static dnnl_status_t run_call(gr_onednn* lib, const call_key* key, void* const at[N_OPERANDS])
{
    call* c;
    DNNL_TRY(find_call(lib, &c, key));
    dnnl_exec_arg_t arg[N_OPERANDS];
    int n = 0;
    for (int i = 0; i < N_OPERANDS; i++) {
        if (c->operand[i] == NULL) continue;
        DNNL_TRY(dnnl_memory_set_data_handle(c->operand[i], at[i]));
        arg[n++] = (dnnl_exec_arg_t){operand_arg[i], c->operand[i]};
    }
    DNNL_TRY(dnnl_primitive_execute(c->primitive, lib->stream, n, arg));
    return dnnl_stream_wait(lib->stream);
}

/* ---- open and close ------------------------------------------------------------------------------------ */

const char* gr_onednn_missing(void)
{
    return __builtin_cpu_supports("avx512bf16") ? NULL
                                                : "this CPU has neither AMX nor AVX-512 bf16";
}

gr_status gr_onednn_open(gr_onednn** out, int threads)
{
    gr_onednn* lib = calloc(1, sizeof *lib);
    *out = lib;
    if (lib == NULL) return GR_FAIL(GR_ENOMEM, "oneDNN: no memory");
    omp_set_num_threads(threads); /* what the library asks for */
    if (dnnl_engine_create(&lib->engine, dnnl_cpu, 0) != dnnl_success ||
        dnnl_stream_create(&lib->stream, lib->engine, dnnl_stream_default_flags) != dnnl_success) {
        gr_onednn_close(lib);
        *out = NULL;
        return GR_FAIL(GR_EDEV, "oneDNN: cannot create an engine for the CPU");
    }
    return GR_OK;
}

void gr_onednn_close(gr_onednn* lib)
{
    if (lib == NULL) return;
    for (int i = 0; i < BUCKETS; i++)
        while (lib->bucket[i] != NULL) {
            call* c = lib->bucket[i];
            lib->bucket[i] = c->next;
            free_call(c);
        }
    for (int i = 0; i < GR_COUNT(lib->converted); i++) free(lib->converted[i].at);
    if (lib->stream != NULL) (void)dnnl_stream_destroy(lib->stream);
    if (lib->engine != NULL) (void)dnnl_engine_destroy(lib->engine);
    free(lib);
}

/* ---- products -------------------------------------------------------------------------------------------- */

static gr_onednn* lib_of(const gr_dev* dev) { return ((const gr_cpu_state*)dev->impl)->onednn; }

static void record(gr_dev* dev, const char* op, dnnl_status_t status)
{
    if (status == dnnl_success || dev->err != GR_OK) return;
    dev->err = status == dnnl_out_of_memory ? GR_ENOMEM : GR_EDEV;
    (void)snprintf(dev->err_text, sizeof dev->err_text, "%s: oneDNN status %d", op, (int)status);
}

static int64_t next_rows(int64_t left, int64_t block)
{
    if (left >= block) return block;
    if (left < ROWS_SMALL) return left;
    int64_t rows = ROWS_SMALL;
    while (2 * rows <= left) rows *= 2;
    return rows;
}

size_t gr_onednn_packed_bytes(const gr_dev* dev, int m, int k)
{
    dnnl_memory_desc_t layout;
    if (packed_layout(lib_of(dev), &layout, m, k) != dnnl_success)
        return 0; /* pack will fail, and say so */
    return dnnl_memory_desc_get_size(&layout);
}

void gr_onednn_pack(gr_dev* dev, void* packed, const void* w, bool w_f32, int m, int k,
                    bool transpose)
{
    if (dev->err != GR_OK) return;
    const call_key key = {
        .kind = CALL_PACK, .m = m, .k = k, .w_f32 = w_f32, .transpose = transpose};
    void* const at[N_OPERANDS] = {[SRC] = (void*)(uintptr_t)w, [DST] = packed};
    record(dev, "matmul_pack", run_call(lib_of(dev), &key, at));
}

/* Elements [first, first + rows) of a matrix with k columns as dense bf16: in place if they are. */
typedef struct rows_of {
    const void* at;
    bool f32;
    int64_t stride, k;
} rows_of;

static dnnl_status_t as_bf16(gr_onednn* lib, void** out, buffer* b, const rows_of* m, int64_t first,
                             int64_t rows)
{
    const size_t size = m->f32 ? sizeof(float) : sizeof(uint16_t);
    *out = (void*)((uintptr_t)m->at + (size_t)(first * m->stride) * size);
    if (!m->f32) return dnnl_success;
    const size_t bytes = ((size_t)(rows * m->k) * sizeof(uint16_t) + 63) / 64 * 64;
    if (bytes > b->bytes) {
        free(b->at);
        *b = (buffer){aligned_alloc(64, bytes), bytes};
        if (b->at == NULL) *b = (buffer){0};
        if (b->at == NULL) return dnnl_out_of_memory;
    }
    const call_key key = {.kind = CALL_CONVERT, .rows = rows, .k = m->k, .stride = m->stride};
    void* const at[N_OPERANDS] = {[SRC] = *out, [DST] = b->at};
    *out = b->at;
    return run_call(lib, &key, at);
}

static dnnl_status_t matmul_rows(gr_onednn* lib, const gr_onednn_args* a, int64_t first,
                                 int64_t rows)
{
    const rows_of x = {a->x, a->x_f32, a->k, a->k};
    const call_key key = {.kind = CALL_MATMUL,
                          .rows = rows,
                          .m = a->m,
                          .k = a->k,
                          .stride = a->y_stride,
                          .y_f32 = a->y_f32,
                          .bias = a->bias == NULL ? 0
                                  : a->bias_f32   ? 2
                                                  : 1};
    const size_t y_size = a->y_f32 ? sizeof(float) : sizeof(uint16_t);
    void* at[N_OPERANDS] = {[WEIGHTS] = (void*)(uintptr_t)a->packed,
                            [BIAS] = (void*)(uintptr_t)a->bias,
                            [DST] = (char*)a->y + (size_t)(first * a->y_stride) * y_size};
    DNNL_TRY(as_bf16(lib, &at[SRC], &lib->converted[0], &x, first, rows));
    return run_call(lib, &key, at);
}

void gr_onednn_matmul(gr_dev* dev, const gr_onednn_args* a)
{
    for (int64_t i = 0, rows; i < a->n && dev->err == GR_OK; i += rows) {
        rows = next_rows(a->n - i, ROWS_BLOCK);
        record(dev, "matmul", matmul_rows(lib_of(dev), a, i, rows));
    }
}

static dnnl_status_t dw_rows(gr_onednn* lib, const gr_onednn_dw_args* a, int64_t first,
                             int64_t rows)
{
    const rows_of dy = {a->dy, a->dy_f32, a->dy_stride, a->m}, x = {a->x, a->x_f32, a->k, a->k};
    const call_key key = {.kind = CALL_OUTER,
                          .rows = rows,
                          .m = a->m,
                          .k = a->k,
                          .stride = a->dy_f32 ? a->m : a->dy_stride};
    void* at[N_OPERANDS] = {[DST] = a->dw};
    DNNL_TRY(as_bf16(lib, &at[SRC], &lib->converted[0], &dy, first, rows));
    DNNL_TRY(as_bf16(lib, &at[WEIGHTS], &lib->converted[1], &x, first, rows));
    return run_call(lib, &key, at);
}

void gr_onednn_dw(gr_dev* dev, const gr_onednn_dw_args* a)
{
    for (int64_t i = 0, rows; i < a->n && dev->err == GR_OK; i += rows) {
        rows = next_rows(a->n - i, TOKEN_BLOCK);
        record(dev, "matmul_dw", dw_rows(lib_of(dev), a, i, rows));
    }
}
