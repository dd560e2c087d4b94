/* Weights: layout, initial values, publishing, hash; files and what damages them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "model/folder.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size); /* fuzz_safetensors.c */

#define ASSERT_OK(call)                                                \
    do {                                                               \
        gr_status got_ = (call);                                       \
        if (got_ != GR_OK) fail_msg("%s: %s", #call, gr_last_error()); \
    } while (0)

static char dir[] = "/tmp/test_weights_XXXXXX";
static char path[64], copy[64];

static int make_dir(void** state)
{
    (void)state;
    if (mkdtemp(dir) == NULL) return -1;
    (void)snprintf(path, sizeof path, "%s/model.safetensors", dir);
    (void)snprintf(copy, sizeof copy, "%s/copy.safetensors", dir);
    return 0;
}

static int remove_dir(void** state)
{
    (void)state;
    (void)unlink(path);
    (void)unlink(copy);
    return rmdir(dir);
}

/* ---- a model's weights ----------------------------------------------------------------------- */

typedef struct model {
    gr_dev dev;
    gr_arena host, device;
    gr_weights w;
} model;

static void model_open(model* m, const gr_model_config* c, gr_dtype dtype, bool train)
{
    void* block = NULL;
    memset(m, 0, sizeof *m);
    ASSERT_OK(gr_dev_open(&m->dev, &(gr_dev_options){.name = "cpu", .dtype = dtype, .threads = 1}));
    gr_weights_layout(&m->w, &m->dev, c, train, &m->host, &m->device);
    m->host.cap = m->host.used, m->device.cap = m->device.used;
    m->host.used = m->device.used = 0;
    m->host.base = calloc(1, m->host.cap);
    ASSERT_OK(gr_dev_alloc(&m->dev, &block, m->device.cap));
    m->device.base = block;
    gr_weights_layout(&m->w, &m->dev, c, train, &m->host, &m->device);
    assert_int_equal(m->host.used, m->host.cap);
    assert_int_equal(m->device.used, m->device.cap);
}

static void model_close(model* m)
{
    free(m->host.base);
    gr_dev_free(&m->dev, m->device.base);
    gr_dev_close(&m->dev);
}

static gr_model_config shape(bool tied, bool bias, bool qk_norm)
{
    return (gr_model_config){.layers = 2,
                             .width = 20,
                             .heads = 3,
                             .kv_heads = 1,
                             .head_dim = 6,
                             .mlp = 11,
                             .vocab = 29,
                             .max_context = 64,
                             .rope_theta = 1e4,
                             .norm_eps = 1e-6f,
                             .tied = tied,
                             .qkv_bias = bias,
                             .qk_norm = qk_norm};
}

static double master_at(model* m, int64_t i)
{
    double x = 0;
    gr_dev_read_acc(&m->dev, &x, gr_acc_at(&m->dev, m->w.master, i), 1);
    return x;
}

static void set_master(model* m, int64_t i, double x)
{
    gr_dev_write_acc(&m->dev, gr_acc_at(&m->dev, m->w.master, i), &x, 1);
}

static void tensors_lie_apart_and_aligned(void** state)
{
    (void)state;
    for (int k = 0; k < 8; k++) {
        const gr_model_config c = shape(k & 1, k & 2, k & 4);
        model m;
        model_open(&m, &c, GR_F32, true);
        int64_t end = 0;
        for (int i = 0; i < m.w.n_tensors; i++) {
            const gr_tensor* t = &m.w.tensor[i];
            assert_int_equal(t->offset % 64, 0);
            assert_true(t->offset >= end && t->offset < end + 64);
            assert_int_equal(t->decay,
                             strstr(t->name, "norm") == NULL && strstr(t->name, "bias") == NULL);
            end = t->offset + (int64_t)t->rows * t->cols;
        }
        assert_true(m.w.n_params >= end && m.w.n_params < end + 64);
        assert_int_equal(m.w.head == m.w.embed, c.tied);
        model_close(&m);
    }
}

static void initial_values_are_the_same_on_every_dtype(void** state)
{
    (void)state;
    gr_model_config c = shape(false, true, true);
    c.vocab = 500, c.width = 100;
    model a, b, d;
    model_open(&a, &c, GR_F32, true);
    model_open(&b, &c, GR_BF16, true);
    model_open(&d, &c, GR_F64, false);
    gr_weights_init(&a.w, 3);
    gr_weights_init(&b.w, 3);
    gr_weights_init(&d.w, 3);
    assert_true(gr_weights_hash(&a.w) == gr_weights_hash(&b.w));
    for (int i = 0; i < a.w.n_tensors; i++) {
        const gr_tensor* t = &a.w.tensor[i];
        double n = (double)t->rows * t->cols, sum = 0, sum_sq = 0, std = 0.02;
        for (int64_t k = t->offset; k < t->offset + (int64_t)n; k++) {
            double x = master_at(&a, k);
            assert_true(x == master_at(&d, k));
            sum += x, sum_sq += x * x;
        }
        if (strstr(t->name, "o_proj") || strstr(t->name, "down_proj")) std /= 2;
        if (t->rows == 1) {
            assert_true(sum == (strstr(t->name, "bias") ? 0 : n));
            continue;
        }
        assert_true(fabs(sum / n) < 5 * std / sqrt(n));
        assert_true(fabs(sum_sq / n / (std * std) - 1) < 5 * sqrt(2 / n));
    }
    uint64_t before = gr_weights_hash(&a.w);
    gr_weights_init(&a.w, 4);
    assert_true(gr_weights_hash(&a.w) != before);
    assert_true(master_at(&a, 0) != master_at(&a, 4)); /* neighbouring blocks of the stream */
    model_close(&a);
    model_close(&b);
    model_close(&d);
}

static void hash_sees_every_bit_but_padding(void** state)
{
    (void)state;
    const gr_model_config c = shape(false, true, true);
    model m;
    model_open(&m, &c, GR_F32, true);
    gr_weights_init(&m.w, 3);
    uint64_t before = gr_weights_hash(&m.w);
    uint32_t* bits = m.w.master;
    for (int i = 0; i < m.w.n_tensors; i++) {
        const gr_tensor* t = &m.w.tensor[i];
        int64_t n = (int64_t)t->rows * t->cols, next = t->offset + (n + 63) / 64 * 64;
        for (int64_t k = t->offset; k < next; k++) {
            bits[k] ^= 1;
            assert_int_equal(gr_weights_hash(&m.w) == before, k >= t->offset + n);
            bits[k] ^= 1;
        }
    }
    assert_true(gr_weights_hash(&m.w) == before);
    model_close(&m);
}

static void publishing_rounds_and_counts(void** state)
{
    (void)state;
    const gr_model_config c = shape(true, false, false);
    model m;
    model_open(&m, &c, GR_BF16, true);
    gr_weights_init(&m.w, 3);
    assert_int_equal(m.w.version, 1);
    set_master(&m, 5, 1.0 + 0x1p-8); /* a tie: to the even neighbour, 1 */
    set_master(&m, 6, 1.0 + 0x1p-8 + 0x1p-20);
    gr_weights_publish(&m.w);
    assert_int_equal(m.w.version, 2);
    double v[2];
    gr_dev_read_real(&m.dev, v, gr_real_at(&m.dev, m.w.value, 5), 2);
    assert_true(v[0] == 1.0 && v[1] == 1.0 + 0x1p-7);
    model_close(&m);
}

/* ---- files ----------------------------------------------------------------------------------- */

static unsigned char* slurp(const char* name, size_t* n)
{
    struct stat info;
    assert_int_equal(stat(name, &info), 0);
    unsigned char* data = malloc((size_t)info.st_size + 1);
    FILE* f = fopen(name, "rb");
    assert_non_null(f);
    *n = fread(data, 1, (size_t)info.st_size, f);
    assert_int_equal(fclose(f), 0);
    return data;
}

static void spill(const char* name, const void* data, size_t n)
{
    FILE* f = fopen(name, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

/* A file of the given header and data. */
static void spill_parts(const char* header, const void* data, size_t n)
{
    uint64_t len = strlen(header);
    FILE* f = fopen(copy, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(&len, 1, 8, f), 8);
    assert_int_equal(fwrite(header, 1, len, f), len);
    assert_int_equal(fwrite(data, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static void a_round_trip_keeps_every_bit(void** state)
{
    (void)state;
    const gr_dtype dtypes[] = {GR_F32, GR_BF16, GR_F64};
    for (int k = 0; k < 24; k++) {
        const gr_model_config c = shape(k & 1, k & 2, k & 4);
        model a, b;
        model_open(&a, &c, dtypes[k / 8], true);
        model_open(&b, &c, dtypes[k / 8], false);
        gr_weights_init(&a.w, (uint64_t)k);
        for (int i = 0; i < a.w.n_tensors; i++) set_master(&a, a.w.tensor[i].offset, 1.0 / (3 + i));
        ASSERT_OK(gr_weights_save(&a.w, path));
        ASSERT_OK(gr_weights_load(&b.w, path));
        assert_int_equal(b.w.version, 1);
        assert_true(gr_weights_hash(&a.w) == gr_weights_hash(&b.w));
        model_close(&a);
        model_close(&b);
    }
}

/* The names and row ranges that other programs expect. */
static void fused_tensors_are_filed_apart(void** state)
{
    (void)state;
    const gr_model_config c = shape(false, true, false);
    model m;
    model_open(&m, &c, GR_F32, true);
    gr_weights_init(&m.w, 3);
    ASSERT_OK(gr_weights_save(&m.w, path));
    size_t n = 0;
    unsigned char* file = slurp(path, &n);
    uint64_t len = 0;
    memcpy(&len, file, 8);
    assert_int_equal((8 + len) % 64, 0);
    char* header = calloc(1, len + 1);
    memcpy(header, file + 8, len);
    const struct {
        const char* name;
        int64_t offset;
        int rows, cols;
    } want[] = {
        {"model.layers.1.self_attn.q_proj.weight", m.w.layer[1].qkv, 18, 20},
        {"model.layers.1.self_attn.k_proj.weight", m.w.layer[1].qkv + 18 * 20, 6, 20},
        {"model.layers.1.self_attn.v_proj.weight", m.w.layer[1].qkv + 24 * 20, 6, 20},
        {"model.layers.0.self_attn.v_proj.bias", m.w.layer[0].qkv_bias + 24, 0, 6},
        {"model.layers.0.mlp.gate_proj.weight", m.w.layer[0].gate_up, 11, 20},
        {"model.layers.0.mlp.up_proj.weight", m.w.layer[0].gate_up + 11 * 20, 11, 20},
        {"lm_head.weight", m.w.head, 29, 20},
    };
    for (int i = 0; i < GR_COUNT(want); i++) {
        char dims[32] = "", text[160];
        if (want[i].rows > 0) (void)snprintf(dims, sizeof dims, "%d,", want[i].rows);
        (void)snprintf(text, sizeof text,
                       "\"%s\":{\"dtype\":\"F32\",\"shape\":[%s%d],\"data_offsets\":[",
                       want[i].name, dims, want[i].cols);
        const char* at = strstr(header, text);
        if (at == NULL) fail_msg("no %s", text);
        size_t begin = strtoull(at + strlen(text), NULL, 10);
        size_t bytes = 4 * (size_t)(GR_MAX(want[i].rows, 1) * want[i].cols);
        assert_memory_equal(file + 8 + len + begin, gr_acc_at(&m.dev, m.w.master, want[i].offset),
                            bytes);
    }
    free(header);
    free(file);
    model_close(&m);
}

/* Loading must fail in words that name the file, and leave the weights alone. */
static void refuse(model* m, const char* name, gr_status code, const char* part)
{
    uint64_t before = gr_weights_hash(&m->w), version = m->w.version;
    gr_status st = gr_weights_load(&m->w, name);
    if (st == GR_OK || (code != GR_OK && st != code) ||
        strstr(gr_last_error_text(), name) == NULL || strstr(gr_last_error_text(), part) == NULL ||
        strchr(gr_last_error_text(), '\n') != NULL) {
        fail_msg("status %d, `%s`, wanted `%s`", st, gr_last_error_text(), part);
    }
    assert_true(gr_weights_hash(&m->w) == before && m->w.version == version);
}

static void open_saved(model* m, const gr_model_config* c)
{
    model_open(m, c, GR_F32, false);
    gr_weights_init(&m->w, 3);
    ASSERT_OK(gr_weights_save(&m->w, path));
    gr_weights_init(&m->w, 4);
}

static void a_cut_file_is_refused(void** state)
{
    (void)state;
    const gr_model_config c = shape(true, true, true);
    model m;
    open_saved(&m, &c);
    size_t n = 0;
    unsigned char* file = slurp(path, &n);
    uint64_t len = 0;
    memcpy(&len, file, sizeof len);
    for (size_t cut = 0; cut < n; cut += 64) {
        spill(copy, file, cut);
        refuse(&m, copy, GR_EDATA, "");
    }
    for (size_t cut = len; cut < 8 + len; cut++) { /* the header's length runs past the end */
        spill(copy, file, cut);
        refuse(&m, copy, GR_EDATA, "header of");
    }
    spill(copy, file, n - 1);
    refuse(&m, copy, GR_EDATA, "`model.norm.weight`: its byte range");
    file[n] = 0;
    spill(copy, file, n + 1);
    refuse(&m, copy, GR_EDATA, "bytes of data where the header describes");
    free(file);
    model_close(&m);
}

/* Every single-bit change of length and header is found, or concerns only what nobody reads: the
 * value in __metadata__. */
static void a_damaged_header_is_refused(void** state)
{
    (void)state;
    gr_model_config c = shape(false, false, false);
    c.layers = 1;
    model m;
    open_saved(&m, &c);
    gr_weights_init(&m.w, 3);
    uint64_t saved = gr_weights_hash(&m.w), harmless = 0;
    size_t n = 0;
    unsigned char* file = slurp(path, &n);
    uint64_t len = 0;
    memcpy(&len, file, 8);
    for (size_t i = 0; i < 8 + len; i++) {
        for (int bit = 0; bit < 8; bit++) {
            file[i] ^= (unsigned char)(1 << bit);
            spill(copy, file, n);
            gr_status st = gr_weights_load(&m.w, copy);
            assert_true(gr_weights_hash(&m.w) == saved);
            harmless += st == GR_OK;
            if (st != GR_OK) assert_non_null(strstr(gr_last_error_text(), copy));
            file[i] ^= (unsigned char)(1 << bit);
        }
    }
    assert_true(harmless <= 8 * strlen("\"format\":\"pt\""));
    free(file);
    model_close(&m);
}

static void another_model_is_refused(void** state)
{
    (void)state;
    const gr_model_config c = shape(false, true, true);
    gr_model_config other = c;
    model m;
    open_saved(&m, &c);
    model_close(&m);
    other.qkv_bias = false;
    model_open(&m, &other, GR_F32, false);
    refuse(&m, path, GR_EDATA, "bias` is not expected here");
    model_close(&m);
    other = c, other.layers = 3;
    model_open(&m, &other, GR_F32, false);
    refuse(&m, path, GR_EDATA, "tensor `model.layers.2.input_layernorm.weight` is missing");
    model_close(&m);
    other = c, other.width = 24;
    model_open(&m, &other, GR_F32, false);
    refuse(&m, path, GR_EDATA,
           "tensor `model.embed_tokens.weight`: shape 29 x 20, expected 29 x 24");
    model_close(&m);
    other = c, other.tied = true; /* the second copy is allowed and not read */
    model_open(&m, &other, GR_F32, false);
    ASSERT_OK(gr_weights_load(&m.w, path));
    model_close(&m);
}

static void values_that_are_not_finite_are_refused(void** state)
{
    (void)state;
    const gr_model_config c = shape(false, false, false);
    model m;
    open_saved(&m, &c);
    size_t n = 0;
    unsigned char* file = slurp(path, &n);
    const float bad[] = {(float)NAN, (float)INFINITY, -(float)INFINITY};
    for (int i = 0; i < 3; i++) {
        memcpy(file + n - 4, &bad[i], 4);
        spill(copy, file, n);
        refuse(&m, copy, GR_EDATA, "tensor `lm_head.weight`: element 579 is not finite");
    }
    free(file);
    model_close(&m);
}

/* ---- the format itself ----------------------------------------------------------------------- */

#define N_BITS 65536

/* Reads 65536 elements of one dtype, each the 16-bit pattern of its index, finite ones only. */
static double* read_patterns(const char* dtype, int exponent_bits)
{
    gr_dev dev;
    char header[128];
    uint16_t* bits = malloc(N_BITS * sizeof *bits);
    double *acc = malloc(N_BITS * sizeof *acc), *out = malloc(N_BITS * sizeof *out);
    unsigned mask = ((1u << exponent_bits) - 1) << (15 - exponent_bits);
    for (unsigned i = 0; i < N_BITS; i++) bits[i] = (uint16_t)((i & mask) == mask ? 0 : i);
    (void)snprintf(header, sizeof header,
                   "{\"x\":{\"dtype\":\"%s\",\"shape\":[65536],\"data_offsets\":[0,131072]}}",
                   dtype);
    spill_parts(header, bits, N_BITS * sizeof *bits);
    ASSERT_OK(gr_dev_open(&dev, &(gr_dev_options){.name = "cpu", .dtype = GR_F64, .threads = 1}));
    const gr_safetensors_entry e = {.name = "x", .n_dims = 1, .shape = {N_BITS}, .data = acc};
    ASSERT_OK(gr_safetensors_read(&(const char*){copy}, 1, &dev, &e, 1));
    gr_dev_read_acc(&dev, out, acc, N_BITS);
    gr_dev_close(&dev);
    free(bits);
    free(acc);
    return out;
}

static void check_patterns(const char* dtype, int exponent_bits, double one_bits)
{
    double* x = read_patterns(dtype, exponent_bits);
    int mantissa = 15 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1;
    int n_finite = ((1 << exponent_bits) - 1) << mantissa;
    assert_true(x[0] == 0 && x[(int)one_bits] == 1 && signbit(x[0x8000]));
    for (int i = 0; i + 1 < n_finite; i++) { /* equal steps within a binade */
        int exponent = GR_MAX(i >> mantissa, 1) - bias - mantissa;
        assert_true(x[i + 1] - x[i] == ldexp(1, exponent));
        assert_true(x[i + 0x8000] == -x[i]);
    }
    free(x);
}

static void short_floats_are_read_exactly(void** state)
{
    (void)state;
    check_patterns("F16", 5, 0x3c00);
    check_patterns("BF16", 8, 0x3f80);
}

/* Between two neighbours the nearer one is written, at the middle the even one. */
static void check_rounding(const char* name, int exponent_bits, gr_file_dtype dtype)
{
    gr_dev dev;
    double* exact = read_patterns(name, exponent_bits);
    float* x = malloc(4 * N_BITS * sizeof *x);
    uint16_t* want = malloc(4 * N_BITS * sizeof *want);
    int n_finite = ((1 << exponent_bits) - 1) << (15 - exponent_bits);
    int64_t n = 0;
    for (int i = 0; i + 1 < n_finite; i++) {
        static const double at[] = {0, 0.25, 0.5, 0.75};
        for (int k = 0; k < GR_COUNT(at); k++, n++) {
            double sign = i % 3 == 0 ? -1 : 1;
            x[n] = (float)(sign * (exact[i] + at[k] * (exact[i + 1] - exact[i])));
            want[n] = (uint16_t)((sign < 0 ? 0x8000 : 0) + i + (k == 2 ? i % 2 : k / 3));
        }
    }
    ASSERT_OK(gr_dev_open(&dev, &(gr_dev_options){.name = "cpu", .dtype = GR_F32, .threads = 1}));
    gr_safetensors_entry e = {.name = "x", .n_dims = 1, .shape = {n}, .data = x};
    ASSERT_OK(gr_safetensors_write(copy, &dev, &e, 1, dtype));
    assert_int_equal(gr_safetensors_bytes(&dev, &e, dtype), 2 * n);
    size_t bytes = 0;
    unsigned char* file = slurp(copy, &bytes);
    assert_memory_equal(file + bytes - 2 * n, want, 2 * (size_t)n);
    x[5] = dtype == GR_FILE_F16 ? 65520 : 0x1.ffp127f; /* the nearest is infinity */
    assert_int_equal(gr_safetensors_write(copy, &dev, &e, 1, dtype), GR_EDATA);
    assert_non_null(strstr(gr_last_error_text(), "beyond the range"));
    x[5] = nextafterf(x[5], 0);
    ASSERT_OK(gr_safetensors_write(copy, &dev, &e, 1, dtype));
    gr_dev_close(&dev);
    free(file);
    free(want);
    free(x);
    free(exact);
}

static void short_floats_are_written_to_the_nearest(void** state)
{
    (void)state;
    check_rounding("F16", 5, GR_FILE_F16);
    check_rounding("BF16", 8, GR_FILE_BF16);
}

static void headers_that_lie_are_refused(void** state)
{
    (void)state;
    const struct {
        const char *header, *text;
    } lies[] = {
        {"", "JSON"},
        {"[]", "JSON"},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}}", "after the JSON"},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}", "JSON"},
        {"{\"x\":{\"dtype\":\"I32\",\"shape\":[4],\"data_offsets\":[0,16]}}", "dtype `I32`"},
        {"{\"x\":{\"shape\":[4],\"data_offsets\":[0,16]}}", "no dtype"},
        {"{\"x\":{\"dtype\":7,\"shape\":[4],\"data_offsets\":[0,16]}}", "no dtype"},
        {"{\"x\":3}", "no dtype"},
        {"{\"x\":{\"dtype\":\"F32\",\"data_offsets\":[0,16]}}", "no shape"},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[-4],\"data_offsets\":[0,16]}}", "impossible shape"},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[1.5],\"data_offsets\":[0,6]}}", "impossible shape"},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[1e300],\"data_offsets\":[0,16]}}", "impossible"},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,16]}}",
         "impossible shape"},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904],\"data_offsets\":[0,0]}}",
         "impossible shape"},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,4],\"data_offsets\":[0,16]}}",
         "impossible shape"},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[4]}}", "byte range"},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0]}}", "byte range"},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16,16]}}", "byte range"},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[16,0]}}", "byte range"},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[-16,0]}}", "byte range"},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[4,20]}}", "byte range"},
        {"{\"x\":{\"dtype\":\"F64\",\"shape\":[4],\"data_offsets\":[0,16]}}", "byte range"},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[4,16]}}", "begins at byte 4"},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]}}", "16 bytes of data"},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]},"
         "\"y\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,16]}}",
         "tensor `y`: begins at byte 8"},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
         "\"x\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,16]}}",
         "tensor `x`"},
        {"{\"X\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}",
         "`X` is not expected"},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[4,1],\"data_offsets\":[0,16]}}", "shape 4 x 1"},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]},"
         "\"y\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[4,16]}}",
         "expected 4"},
    };
    gr_dev dev;
    float data[4] = {1, 2, 3, 4}, x[4] = {5, 6, 7, 8};
    ASSERT_OK(gr_dev_open(&dev, &(gr_dev_options){.name = "cpu", .dtype = GR_F32, .threads = 1}));
    const gr_safetensors_entry e = {.name = "x", .n_dims = 1, .shape = {4}, .data = x};
    for (int i = 0; i < GR_COUNT(lies); i++) {
        spill_parts(lies[i].header, data, sizeof data);
        gr_status st = gr_safetensors_read(&(const char*){copy}, 1, &dev, &e, 1);
        if (st != GR_EDATA || strstr(gr_last_error_text(), lies[i].text) == NULL) {
            fail_msg("%s: status %d `%s`", lies[i].header, st, gr_last_error_text());
        }
        assert_true(x[0] == 5 && x[3] == 8);
    }
    spill_parts("{\"x\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}  ", data,
                sizeof data);
    ASSERT_OK(gr_safetensors_read(&(const char*){copy}, 1, &dev, &e, 1));
    assert_true(x[0] == 1 && x[3] == 4);
    gr_dev_close(&dev);
}

/* Nesting that would end the stack, and more text than is ever meant, whole or as a sparse file. */
static void deep_and_large_headers_are_refused(void** state)
{
    (void)state;
    static const size_t depth[] = {1001, 100000, 3000000, 9000000};
    gr_dev dev;
    float x = 5;
    ASSERT_OK(gr_dev_open(&dev, &(gr_dev_options){.name = "cpu", .dtype = GR_F32, .threads = 1}));
    const gr_safetensors_entry e = {.name = "x", .n_dims = 1, .shape = {1}, .data = &x};
    for (int i = 0; i < 2 * GR_COUNT(depth); i++) {
        size_t n = depth[i / 2], unit = i % 2 ? 5 : 1;
        char* header = malloc(unit * n + 1);
        for (size_t k = 0; k < n; k++) memcpy(header + unit * k, i % 2 ? "{\"x\":" : "[", unit);
        header[unit * n] = 0;
        spill_parts(header, "", 0);
        assert_int_equal(gr_safetensors_read(&(const char*){copy}, 1, &dev, &e, 1), GR_EDATA);
        assert_non_null(strstr(gr_last_error_text(), "header is no JSON object"));
        free(header);
    }
    const uint64_t len = ((uint64_t)1 << 30) - 8;
    spill(copy, &len, sizeof len);
    assert_int_equal(truncate(copy, (off_t)1 << 30), 0);
    assert_int_equal(gr_safetensors_read(&(const char*){copy}, 1, &dev, &e, 1), GR_EDATA);
    assert_non_null(strstr(gr_last_error_text(), "header of 1073741816 bytes"));
    assert_true(x == 5);
    gr_dev_close(&dev);
}

/* ---- folders --------------------------------------------------------------------------------- */

static void clear_dir(void)
{
    char name[400];
    DIR* d = opendir(dir);
    assert_non_null(d);
    for (const struct dirent* e; (e = readdir(d)) != NULL;) {
        (void)snprintf(name, sizeof name, "%s/%s", dir, e->d_name);
        if (e->d_name[0] != '.') (void)unlink(name);
    }
    (void)closedir(d);
}

static int files_in_dir(void)
{
    int n = 0;
    DIR* d = opendir(dir);
    assert_non_null(d);
    for (const struct dirent* e; (e = readdir(d)) != NULL;) n += e->d_name[0] != '.';
    (void)closedir(d);
    return n;
}

static void any_sharding_reads_back(void** state)
{
    (void)state;
    for (int k = 0; k < 8; k++) {
        const gr_model_config c = shape(k & 1, k & 2, k & 4);
        model a, b;
        model_open(&a, &c, GR_F32, false);
        model_open(&b, &c, GR_F32, false);
        gr_weights_init(&a.w, (uint64_t)k);
        int64_t bytes = 0;
        for (int i = 0; i < a.w.n_tensors; i++) {
            bytes += 4 * (int64_t)a.w.tensor[i].rows * a.w.tensor[i].cols;
        }
        for (int64_t shard = 1; shard < 100000; shard *= 7) {
            clear_dir();
            ASSERT_OK(gr_folder_save(&a.w, dir, GR_FILE_F32, shard));
            bool one = access(path, F_OK) == 0;
            assert_true(one == (files_in_dir() == 1) && one == (shard >= bytes));
            gr_weights_init(&b.w, 99);
            ASSERT_OK(gr_folder_load(&b.w, dir));
            assert_true(gr_weights_hash(&a.w) == gr_weights_hash(&b.w));
            clear_dir();
            ASSERT_OK(gr_folder_save(&a.w, dir, GR_FILE_BF16, shard));
            ASSERT_OK(gr_folder_load(&b.w, dir));
            for (int i = 0; i < a.w.n_tensors; i++) {
                double x = master_at(&a, a.w.tensor[i].offset);
                assert_true(fabs(x - master_at(&b, a.w.tensor[i].offset)) <= fabs(x) / 256);
            }
        }
        model_close(&a);
        model_close(&b);
    }
    clear_dir();
}

static void indices_that_lie_are_refused(void** state)
{
    (void)state;
    const gr_model_config c = shape(true, false, false);
    static const struct {
        const char *text, *part;
    } lies[] = {
        {"", "not a JSON object"},
        {"{}", "names no file"},
        {"{\"weight_map\": [\"model.safetensors\"]}", "names no file"},
        {"{\"weight_map\": {\"a\": 3}}", "no file of this folder"},
        {"{\"weight_map\": {\"a\": \"../model.safetensors\"}}", "no file of this folder"},
        {"{\"weight_map\": {\"a\": \"/etc/passwd\"}}", "no file of this folder"},
        {"{\"weight_map\": {\"a\": \"none.safetensors\"}}", "No such file"},
        {"{\"weight_map\": {\"a\": \"1\"}}", "is missing"},
        {"{\"weight_map\": {\"a\": \"1\", \"b\": \"model.safetensors\"}}", "is there twice"},
    };
    char index[96], part[96];
    model m;
    open_saved(&m, &c);
    (void)snprintf(index, sizeof index, "%s/model.safetensors.index.json", dir);
    (void)snprintf(part, sizeof part, "%s/1", dir);
    int n = gr_weights_entries(&m.w, m.w.master, "", NULL);
    gr_safetensors_entry* entry = malloc((size_t)n * sizeof *entry);
    gr_weights_entries(&m.w, m.w.master, "", entry);
    ASSERT_OK(gr_safetensors_write(part, &m.dev, entry, 3, GR_FILE_F32));
    ASSERT_OK(gr_safetensors_write(copy, &m.dev, entry + 3, n - 3, GR_FILE_F32));
    uint64_t before = gr_weights_hash(&m.w);
    for (int i = 0; i < GR_COUNT(lies); i++) {
        if (i == GR_COUNT(lies) - 2) { /* only the part, then the part and the whole */
            ASSERT_OK(gr_weights_save(&m.w, path));
        }
        spill(index, lies[i].text, strlen(lies[i].text));
        gr_status st = gr_folder_load(&m.w, dir);
        if (st == GR_OK || strstr(gr_last_error_text(), lies[i].part) == NULL) {
            fail_msg("%s: %s", lies[i].text, gr_last_error_text());
        }
        assert_true(gr_weights_hash(&m.w) == before);
    }
    const char* good = "{\"weight_map\": {\"a\": \"1\", \"b\": \"copy.safetensors\"}}";
    spill(index, good, strlen(good));
    ASSERT_OK(gr_folder_load(&m.w, dir));
    free(entry);
    model_close(&m);
    clear_dir();
}

/* ---- the world fails ------------------------------------------------------------------------- */

static void every_outside_call_may_fail(void** state)
{
    (void)state;
    const gr_model_config c = shape(true, false, false);
    model m;
    open_saved(&m, &c);
    static const char* const on_load[] = {"weights.open:1", "weights.read:1"};
    for (int i = 0; i < GR_COUNT(on_load); i++) {
        gr_fault_set(on_load[i]);
        refuse(&m, path, GR_EIO, "");
    }
    static const char* const on_save[] = {"weights.open", "weights.write", "weights.close"};
    for (int i = 0; i < GR_COUNT(on_save); i++) {
        int k = 0;
        gr_status st = GR_EIO;
        while (st != GR_OK) { /* until there is no k-th call */
            char spec[64];
            (void)snprintf(spec, sizeof spec, "%s:%d", on_save[i], ++k);
            gr_fault_set(spec);
            (void)unlink(copy);
            st = gr_weights_save(&m.w, copy);
            if (st == GR_OK) break;
            assert_int_equal(st, GR_EIO);
            assert_non_null(strstr(gr_last_error_text(), copy));
            assert_int_equal(access(copy, F_OK), -1); /* no half-written file */
        }
        assert_int_equal(k > 2, i == 1);
    }
    gr_fault_set("");
    refuse(&m, dir, GR_EIO, "not a regular file");
    (void)unlink(copy);
    refuse(&m, copy, GR_EIO, "No such file");
    model_close(&m);
}

static void a_full_disk_is_reported(void** state)
{
    (void)state;
    const gr_model_config c = shape(true, false, false);
    model m;
    if (access("/dev/full", W_OK) != 0) skip();
    open_saved(&m, &c);
    assert_int_equal(gr_weights_save(&m.w, "/dev/full"), GR_EIO);
    assert_non_null(strstr(gr_last_error_text(), strerror(ENOSPC)));
    assert_int_equal(access("/dev/full", F_OK), 0);
    model_close(&m);
}

/* ---- fuzz ------------------------------------------------------------------------------------ */

/* What the fuzzer starts from, with a few bytes changed and the end cut, 300 times each. */
static void corpus_and_its_neighbours_are_survived(void** state)
{
    (void)state;
    static const char* const name[] = {"mixed", "with_optional", "overlap"};
    static const unsigned char bytes[] = "{}[]\":,0129e-. xyF\x80\x7f";
    uint64_t at = 0;
    for (int i = 0; i < GR_COUNT(name); i++) {
        char from[96];
        size_t n = 0;
        (void)snprintf(from, sizeof from, "tests/corpus/fuzz_safetensors/%s", name[i]);
        unsigned char* data = slurp(from, &n);
        for (int round = 0; round < 300; round++) {
            unsigned char* changed = malloc(n);
            memcpy(changed, data, n);
            for (int k = round % 4; k > 0; k--) {
                size_t to = (size_t)(gr_uniform(1, at++) * (double)n);
                changed[to] = bytes[(size_t)(gr_uniform(1, at++) * (sizeof bytes - 1))];
            }
            size_t cut = round % 3 == 0 ? (size_t)(gr_uniform(1, at++) * (double)n) : 0;
            (void)LLVMFuzzerTestOneInput(changed, n - cut);
            free(changed);
        }
        free(data);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors_lie_apart_and_aligned),
        cmocka_unit_test(initial_values_are_the_same_on_every_dtype),
        cmocka_unit_test(hash_sees_every_bit_but_padding),
        cmocka_unit_test(publishing_rounds_and_counts),
        cmocka_unit_test(a_round_trip_keeps_every_bit),
        cmocka_unit_test(fused_tensors_are_filed_apart),
        cmocka_unit_test(a_cut_file_is_refused),
        cmocka_unit_test(a_damaged_header_is_refused),
        cmocka_unit_test(another_model_is_refused),
        cmocka_unit_test(values_that_are_not_finite_are_refused),
        cmocka_unit_test(short_floats_are_read_exactly),
        cmocka_unit_test(short_floats_are_written_to_the_nearest),
        cmocka_unit_test(headers_that_lie_are_refused),
        cmocka_unit_test(deep_and_large_headers_are_refused),
        cmocka_unit_test(any_sharding_reads_back),
        cmocka_unit_test(indices_that_lie_are_refused),
        cmocka_unit_test(every_outside_call_may_fail),
        cmocka_unit_test(a_full_disk_is_reported),
        cmocka_unit_test(corpus_and_its_neighbours_are_survived),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
