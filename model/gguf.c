/* gguf.c - finds the values and tensors of a GGUF file. Nothing in it is believed. */
#include "model/gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_VALUES  65536 /* real files have some 40 values and a few thousand tensors */
#define MAX_TENSORS 1048576
#define MAX_NAME    128

static const int item_bytes[GR_GGUF_N_TYPES] = {
    [GR_GGUF_U8] = 1,  [GR_GGUF_I8] = 1,  [GR_GGUF_U16] = 2, [GR_GGUF_I16] = 2,
    [GR_GGUF_U32] = 4, [GR_GGUF_I32] = 4, [GR_GGUF_F32] = 4, [GR_GGUF_BOOL] = 1,
    [GR_GGUF_U64] = 8, [GR_GGUF_I64] = 8, [GR_GGUF_F64] = 8,
};

/* ---- cursor ---------------------------------------------------------------------------------- */

typedef struct cursor {
    const char* path;
    const unsigned char *begin, *at, *end;
} cursor;

/* The next `bytes` bytes; NULL: the file ends before. */
static const unsigned char* take(cursor* c, uint64_t bytes)
{
    if (bytes > (uint64_t)(c->end - c->at)) return NULL;
    const unsigned char* at = c->at;
    c->at += bytes;
    return at;
}

static gr_status cut(const cursor* c)
{
    return GR_FAIL(GR_EDATA, "%s: the file ends inside what byte %lld begins", c->path,
                   (long long)(c->at - c->begin));
}

static gr_status take_u32(cursor* c, uint32_t* out)
{
    const unsigned char* at = take(c, sizeof *out);
    if (at == NULL) return cut(c);
    memcpy(out, at, sizeof *out);
    return GR_OK;
}

static gr_status take_u64(cursor* c, uint64_t* out)
{
    const unsigned char* at = take(c, sizeof *out);
    if (at == NULL) return cut(c);
    memcpy(out, at, sizeof *out);
    return GR_OK;
}

static gr_status take_text(cursor* c, gr_gguf_text* out)
{
    uint64_t n = 0;
    GR_TRY(take_u64(c, &n));
    const unsigned char* at = take(c, n);
    if (at == NULL) return cut(c);
    *out = (gr_gguf_text){(const char*)at, (int64_t)n};
    return GR_OK;
}

/* A key or a tensor's name: errors show it. */
static gr_status take_name(cursor* c, gr_gguf_text* out)
{
    const unsigned char* begin = c->at;
    GR_TRY(take_text(c, out));
    bool good = out->n > 0 && out->n <= MAX_NAME;
    for (int64_t i = 0; good && i < out->n; i++) good = out->at[i] > ' ' && out->at[i] <= '~';
    if (good) return GR_OK;
    return GR_FAIL(GR_EDATA, "%s: no name at byte %lld", c->path, (long long)(begin - c->begin));
}

/* ---- values ---------------------------------------------------------------------------------- */

static gr_status take_value(cursor* c, gr_gguf_value* v)
{
    uint32_t type = 0;
    uint64_t count = 1;
    GR_TRY(take_name(c, &v->key));
    GR_TRY(take_u32(c, &type));
    v->is_array = type == GR_GGUF_ARRAY;
    if (v->is_array) {
        GR_TRY(take_u32(c, &type));
        GR_TRY(take_u64(c, &count));
    }
    if (type >= GR_GGUF_N_TYPES || type == GR_GGUF_ARRAY) {
        return GR_FAIL(GR_EDATA, "%s: `%.*s`: values of type %u are not supported", c->path,
                       (int)v->key.n, v->key.at, type);
    }
    v->type = (gr_gguf_type)type;
    v->at = c->at;
    uint64_t left = (uint64_t)(c->end - c->at), least = v->type == GR_GGUF_TEXT ? 8 : 1;
    if (count > left / least) return cut(c);
    v->count = (int64_t)count;
    if (v->type != GR_GGUF_TEXT) {
        uint64_t bytes = 0;
        bool over = __builtin_mul_overflow(count, (uint64_t)item_bytes[type], &bytes);
        return over || take(c, bytes) == NULL ? cut(c) : GR_OK;
    }
    for (uint64_t i = 0; i < count; i++) {
        gr_gguf_text unused;
        GR_TRY(take_text(c, &unused));
    }
    return GR_OK;
}

static int compare(gr_gguf_text a, gr_gguf_text b)
{
    int order = memcmp(a.at, b.at, (size_t)GR_MIN(a.n, b.n));
    return order != 0 ? order : (a.n > b.n) - (a.n < b.n);
}

static int by_key(const void* a, const void* b)
{
    return compare(((const gr_gguf_value*)a)->key, ((const gr_gguf_value*)b)->key);
}

static gr_status take_values(gr_gguf* g, cursor* c, uint64_t n)
{
    g->value = calloc((size_t)n + 1, sizeof *g->value);
    GR_ASSERT(g->value != NULL, "out of memory");
    for (g->n_values = 0; g->n_values < (int)n; g->n_values++) {
        GR_TRY(take_value(c, &g->value[g->n_values]));
    }
    qsort(g->value, (size_t)n, sizeof *g->value, by_key);
    for (int i = 1; i < g->n_values; i++) {
        gr_gguf_text key = g->value[i].key;
        if (compare(g->value[i - 1].key, key) != 0) continue;
        return GR_FAIL(GR_EDATA, "%s: `%.*s` is there twice", g->path, (int)key.n, key.at);
    }
    return GR_OK;
}

/* ---- tensors --------------------------------------------------------------------------------- */

#define FAIL_TENSOR(g, t, fmt, ...)                                                         \
    GR_FAIL(GR_EDATA, "%s: tensor `%.*s`: " fmt, (g)->path, (int)(t)->name.n, (t)->name.at, \
            __VA_ARGS__)

/* Name, shape and type; `offset` is left to the caller, who knows where the data begin. */
static gr_status take_tensor(const gr_gguf* g, cursor* c, gr_gguf_tensor* t, uint64_t* offset)
{
    uint32_t n_dims = 0, type = 0;
    GR_TRY(take_name(c, &t->name));
    GR_TRY(take_u32(c, &n_dims));
    if (n_dims < 1 || n_dims > GR_COUNT(t->shape)) {
        return FAIL_TENSOR(g, t, "%u dimensions", n_dims);
    }
    t->n_dims = (int)n_dims;
    t->n = 1;
    for (int i = t->n_dims - 1; i >= 0; i--) {
        uint64_t size = 0;
        GR_TRY(take_u64(c, &size));
        if (size < 1 || size > INT64_MAX || __builtin_mul_overflow(t->n, (int64_t)size, &t->n)) {
            return FAIL_TENSOR(g, t, "impossible shape (%d dimensions)", t->n_dims);
        }
        t->shape[i] = (int64_t)size;
    }
    GR_TRY(take_u32(c, &type));
    if (gr_quant_name(type) == NULL) {
        return FAIL_TENSOR(g, t,
                           "type %u is none of F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, "
                           "Q4_K, Q5_K, Q6_K",
                           type);
    }
    t->type = (gr_quant_type)type;
    return take_u64(c, offset);
}

/* Where the data lie, checked against the file. */
static gr_status place_tensor(const gr_gguf* g, gr_gguf_tensor* t, uint64_t offset,
                              const unsigned char* data, int64_t data_bytes, int64_t alignment)
{
    int block = gr_quant_elements(t->type);
    if (t->shape[t->n_dims - 1] % block != 0) {
        return FAIL_TENSOR(g, t, "rows of %lld are no whole blocks of %s",
                           (long long)t->shape[t->n_dims - 1], gr_quant_name(t->type));
    }
    bool over = __builtin_mul_overflow(t->n / block, (int64_t)gr_quant_bytes(t->type), &t->bytes);
    if (over || offset > (uint64_t)data_bytes || t->bytes > data_bytes - (int64_t)offset) {
        return FAIL_TENSOR(g, t, "its data reach beyond the file (%lld bytes)",
                           (long long)g->map.size);
    }
    if (offset % (uint64_t)alignment != 0) {
        return FAIL_TENSOR(g, t, "its data begin at no multiple of %lld", (long long)alignment);
    }
    t->data = data + offset;
    return GR_OK;
}

static int by_data(const void* pa, const void* pb)
{
    const gr_gguf_tensor *a = pa, *b = pb;
    return (a->data > b->data) - (a->data < b->data);
}

static int by_name(const void* a, const void* b)
{
    return compare(((const gr_gguf_tensor*)a)->name, ((const gr_gguf_tensor*)b)->name);
}

static gr_status check_tensors(gr_gguf* g)
{
    gr_gguf_tensor* t = g->tensor;
    qsort(t, (size_t)g->n_tensors, sizeof *t, by_data);
    for (int i = 1; i < g->n_tensors; i++) {
        if (t[i].data >= t[i - 1].data + t[i - 1].bytes) continue;
        return FAIL_TENSOR(g, &t[i], "its data overlap those of `%.*s`", (int)t[i - 1].name.n,
                           t[i - 1].name.at);
    }
    qsort(t, (size_t)g->n_tensors, sizeof *t, by_name);
    for (int i = 1; i < g->n_tensors; i++) {
        if (compare(t[i - 1].name, t[i].name) != 0) continue;
        return GR_FAIL(GR_EDATA, "%s: tensor `%.*s` is there twice", g->path, (int)t[i].name.n,
                       t[i].name.at);
    }
    return GR_OK;
}

static gr_status find_alignment(const gr_gguf* g, int64_t* alignment)
{
    const gr_gguf_value* v = gr_gguf_find(g, "general.alignment");
    *alignment = 32;
    if (v == NULL) return GR_OK;
    if (!gr_gguf_whole(v, 0, alignment) || *alignment < 8 || *alignment > 1 << 20 ||
        *alignment % 8 != 0) {
        return GR_FAIL(GR_EDATA, "%s: `general.alignment` is no multiple of 8", g->path);
    }
    return GR_OK;
}

static gr_status place_tensors(gr_gguf* g, const cursor* c, const uint64_t* offset)
{
    int64_t alignment = 0;
    GR_TRY(find_alignment(g, &alignment));
    int64_t at = (c->at - c->begin + alignment - 1) / alignment * alignment;
    if (at > g->map.size) at = g->map.size; /* no tensor fits there, and there may be none */
    for (int i = 0; i < g->n_tensors; i++) {
        GR_TRY(
            place_tensor(g, &g->tensor[i], offset[i], c->begin + at, g->map.size - at, alignment));
    }
    return check_tensors(g);
}

static gr_status take_tensors(gr_gguf* g, cursor* c, uint64_t n)
{
    g->tensor = calloc((size_t)n + 1, sizeof *g->tensor);
    uint64_t* offset = calloc((size_t)n + 1, sizeof *offset);
    GR_ASSERT(g->tensor != NULL && offset != NULL, "out of memory");
    gr_status st = GR_OK;
    for (; g->n_tensors < (int)n; g->n_tensors++) {
        int i = g->n_tensors;
        GR_GOTO(st, take_tensor(g, c, &g->tensor[i], &offset[i]), out);
    }
    st = place_tensors(g, c, offset);
out:
    free(offset);
    return st;
}

/* ---- the file -------------------------------------------------------------------------------- */

static gr_status check_version(const char* path, uint32_t version)
{
    if (version == 2 || version == 3) return GR_OK;
    uint32_t swapped = __builtin_bswap32(version);
    if (swapped == 2 || swapped == 3) {
        return GR_FAIL(GR_EDATA, "%s: a GGUF file of a big-endian machine is not supported", path);
    }
    return GR_FAIL(GR_EDATA, "%s: GGUF version %u is not supported, 2 and 3 are", path, version);
}

static gr_status parse(gr_gguf* g)
{
    const unsigned char* bytes = g->map.bytes;
    cursor c = {g->path, bytes, bytes, bytes + g->map.size};
    uint32_t version = 0;
    uint64_t n_tensors = 0, n_values = 0;
    const unsigned char* magic = take(&c, 4);
    if (magic == NULL || memcmp(magic, "GGUF", 4) != 0) {
        return GR_FAIL(GR_EDATA, "%s: no GGUF file", g->path);
    }
    GR_TRY(take_u32(&c, &version));
    GR_TRY(check_version(g->path, version));
    GR_TRY(take_u64(&c, &n_tensors));
    GR_TRY(take_u64(&c, &n_values));
    /* The least a tensor takes is 25 bytes, and a value 14. */
    uint64_t left = (uint64_t)(c.end - c.at);
    if (n_tensors > MAX_TENSORS || n_values > MAX_VALUES || n_tensors > left / 25 ||
        n_values > left / 14) {
        return GR_FAIL(GR_EDATA, "%s: %llu tensors and %llu values in a file of %lld bytes",
                       g->path, (unsigned long long)n_tensors, (unsigned long long)n_values,
                       (long long)g->map.size);
    }
    GR_TRY(take_values(g, &c, n_values));
    return take_tensors(g, &c, n_tensors);
}

gr_status gr_gguf_open(gr_gguf* g, const char* path)
{
    *g = (gr_gguf){0};
    if (snprintf(g->path, sizeof g->path, "%s", path) >= (int)sizeof g->path) {
        return GR_FAIL(GR_EARG, "%.80s...: the path is too long", path);
    }
    GR_TRY(gr_map_open(&g->map, path));
    gr_status st = parse(g);
    if (st != GR_OK) gr_gguf_close(g);
    return st;
}

void gr_gguf_close(gr_gguf* g)
{
    free(g->value);
    free(g->tensor);
    gr_map_close(&g->map);
    *g = (gr_gguf){0};
}

/* ---- looking things up ----------------------------------------------------------------------- */

bool gr_gguf_is(gr_gguf_text a, const char* b)
{
    return a.n == (int64_t)strlen(b) && memcmp(a.at, b, (size_t)a.n) == 0;
}

const gr_gguf_value* gr_gguf_find(const gr_gguf* g, const char* key)
{
    const gr_gguf_value wanted = {.key = {key, (int64_t)strlen(key)}};
    return bsearch(&wanted, g->value, (size_t)g->n_values, sizeof *g->value, by_key);
}

const gr_gguf_tensor* gr_gguf_find_tensor(const gr_gguf* g, const char* name)
{
    const gr_gguf_tensor wanted = {.name = {name, (int64_t)strlen(name)}};
    return bsearch(&wanted, g->tensor, (size_t)g->n_tensors, sizeof *g->tensor, by_name);
}

gr_gguf_text gr_gguf_text_at(const gr_gguf_value* v)
{
    uint64_t n = 0;
    if (v == NULL || v->type != GR_GGUF_TEXT || v->count == 0) return (gr_gguf_text){"", 0};
    memcpy(&n, v->at, sizeof n); /* checked at opening */
    return (gr_gguf_text){(const char*)v->at + sizeof n, (int64_t)n};
}

bool gr_gguf_whole(const gr_gguf_value* v, int64_t i, int64_t* out)
{
    uint64_t bits = 0;
    if (v == NULL || i < 0 || i >= v->count || item_bytes[v->type] == 0) return false;
    memcpy(&bits, v->at + i * item_bytes[v->type], (size_t)item_bytes[v->type]);
    switch (v->type) {
    case GR_GGUF_BOOL:
        *out = bits != 0;
        return true;
    case GR_GGUF_I8:
        *out = (int8_t)bits;
        return true;
    case GR_GGUF_I16:
        *out = (int16_t)bits;
        return true;
    case GR_GGUF_I32:
        *out = (int32_t)bits;
        return true;
    case GR_GGUF_U64:
        if (bits > INT64_MAX) return false;
        *out = (int64_t)bits;
        return true;
    case GR_GGUF_U8:
    case GR_GGUF_U16:
    case GR_GGUF_U32:
    case GR_GGUF_I64:
        *out = (int64_t)bits;
        return true;
    default:
        return false;
    }
}

bool gr_gguf_real(const gr_gguf_value* v, int64_t i, double* out)
{
    float x = 0;
    if (v == NULL || i < 0 || i >= v->count) return false;
    if (v->type == GR_GGUF_F64) {
        memcpy(out, v->at + 8 * i, sizeof *out);
        return true;
    }
    if (v->type != GR_GGUF_F32) return false;
    memcpy(&x, v->at + 4 * i, sizeof x);
    *out = (double)x;
    return true;
}
