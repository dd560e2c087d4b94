/* Models out of GGUF files: every family and type, what is refused, and the fuzzer's corpus. */
#include "tests/gguf_file.h"

#include <cjson/cJSON.h>
#include <math.h>

#include "host/durable.h"
#include "host/json.h"
#include "host/record.h"
#include "model/gguf_weights.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size); /* fuzz_gguf.c */

/* ---- models ---------------------------------------------------------------------------------- */

typedef struct model {
    gr_dev dev;
    gr_arena host, device;
    gr_weights w;
} model;

static void model_open(model* m, const gr_model_config* c)
{
    void* block = NULL;
    memset(m, 0, sizeof *m);
    ASSERT_OK(
        gr_dev_open(&m->dev, &(gr_dev_options){.name = "cpu", .dtype = GR_F32, .threads = 1}));
    gr_weights_layout(&m->w, &m->dev, c, false, &m->host, &m->device);
    m->host = (gr_arena){.base = calloc(1, m->host.used), .cap = m->host.used};
    ASSERT_OK(gr_dev_alloc(&m->dev, &block, m->device.used));
    m->device = (gr_arena){.base = block, .cap = m->device.used};
    gr_weights_layout(&m->w, &m->dev, c, false, &m->host, &m->device);
}

static void model_close(model* m)
{
    free(m->host.base);
    gr_dev_free(&m->dev, m->device.base);
    gr_dev_close(&m->dev);
}

static gr_model_config random_shape(int family)
{
    gr_model_config c = {
        .layers = 1 + (int)dice(2),
        .width = 32,
        .kv_heads = 1 + (int)dice(2),
        .head_dim = 2 + 2 * (int)dice(6),
        .mlp = 32,
        .vocab = 20 + (int)dice(20),
        .max_context = 100,
        .rope_theta = 500000,
        .norm_eps = 1e-5f,
        .tied = dice(2),
        .qkv_bias = family == 1,
        .qk_norm = family == 2,
    };
    c.heads = c.kv_heads * (1 + (int)dice(3));
    if (family == 0 && dice(2)) {
        c.head_dim = 16; /* large enough for every stretch of the scaling */
        c.rope_scaling = (gr_rope_scaling){8, 1, 4, 8192};
    }
    return c;
}

static const char* const families[] = {"llama", "qwen2", "qwen3"};

static void set_shape(gguf_file* f, int family, const gr_model_config* c)
{
    char key[96];
    const struct {
        const char* name;
        int value;
    } whole[] = {
        {"block_count", c->layers},
        {"embedding_length", c->width},
        {"attention.head_count", c->heads},
        {"attention.head_count_kv", c->kv_heads},
        {"feed_forward_length", c->mlp},
        {"context_length", c->max_context},
        {"attention.key_length", c->head_dim},
        {"attention.value_length", c->head_dim},
    };
    gguf_set_text(f, "general.architecture", families[family]);
    for (int i = 0; i < GR_COUNT(whole); i++) {
        (void)snprintf(key, sizeof key, "%s.%s", families[family], whole[i].name);
        gguf_set_u32(f, key, (uint32_t)whole[i].value);
    }
    (void)snprintf(key, sizeof key, "%s.rope.freq_base", families[family]);
    gguf_set_f32(f, key, (float)c->rope_theta);
    (void)snprintf(key, sizeof key, "%s.attention.layer_norm_rms_epsilon", families[family]);
    gguf_set_f32(f, key, c->norm_eps);
}

/* Whole numbers / 64 up to 127: exact in every type below. Rows of a head in file order where the
 * family pairs neighbours. */
static void set_tensor(gguf_file* f, const model* m, const char* name, int64_t offset, int rows,
                       int cols, bool paired)
{
    static const gr_quant_type types[] = {GR_QUANT_F32, GR_QUANT_F16, GR_QUANT_BF16, GR_QUANT_Q8_0};
    gr_quant_type type = rows > 0 && cols % 32 == 0 ? types[dice(4)] : types[dice(3)];
    unsigned char data[40000];
    size_t n = 0;
    for (int row = 0; row < GR_MAX(rows, 1); row++) {
        int d = m->w.config.head_dim, in_head = row % d;
        int from = paired ? row - in_head + in_head / 2 + in_head % 2 * (d / 2) : row;
        const float* x = (const float*)m->w.master + offset + (int64_t)from * cols;
        for (int i = 0; i < cols; i++) {
            uint32_t bits = 0;
            memcpy(&bits, &x[i], 4);
            uint16_t high = (uint16_t)(bits >> 16), half = 0;
            if (x[i] != 0) { /* no subnormals among these */
                half = (uint16_t)((bits >> 16 & 0x8000) | ((bits >> 23 & 255) - 112) << 10 |
                                  (bits >> 13 & 1023));
            }
            if (type == GR_QUANT_Q8_0 && i % 32 == 0) {
                static const uint16_t scale = 0x2400; /* 1/64 */
                memcpy(data + n, &scale, 2), n += 2;
            }
            if (type == GR_QUANT_F32) memcpy(data + n, &bits, 4), n += 4;
            if (type == GR_QUANT_F16) memcpy(data + n, &half, 2), n += 2;
            if (type == GR_QUANT_BF16) memcpy(data + n, &high, 2), n += 2;
            if (type == GR_QUANT_Q8_0) data[n++] = (unsigned char)(int8_t)(x[i] * 64);
            GR_ASSERT(n + 4 <= sizeof data);
        }
    }
    gguf_tensor(f, name, (uint64_t)rows, (uint64_t)cols, type, data, n);
}

static void set_layer(gguf_file* f, const model* m, int family, int l)
{
    const gr_model_config* c = &m->w.config;
    const gr_layer_offsets* at = &m->w.layer[l];
    int q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim, w = c->width;
    const struct {
        const char* name;
        int64_t offset; /* < 0: the family has none */
        int rows, cols;
    } tensor[] = {
        {"attn_norm.weight", at->attn_norm, 0, w},
        {"attn_q.weight", at->qkv, q, w},
        {"attn_k.weight", at->qkv + (int64_t)q * w, kv, w},
        {"attn_v.weight", at->qkv + (int64_t)(q + kv) * w, kv, w},
        {"attn_q.bias", at->qkv_bias, 0, q},
        {"attn_k.bias", at->qkv_bias + (c->qkv_bias ? q : 0), 0, kv},
        {"attn_v.bias", at->qkv_bias + (c->qkv_bias ? q + kv : 0), 0, kv},
        {"attn_q_norm.weight", at->q_norm, 0, c->head_dim},
        {"attn_k_norm.weight", at->k_norm, 0, c->head_dim},
        {"attn_output.weight", at->attn_out, w, q},
        {"ffn_norm.weight", at->mlp_norm, 0, w},
        {"ffn_gate.weight", at->gate_up, c->mlp, w},
        {"ffn_up.weight", at->gate_up + (int64_t)c->mlp * w, c->mlp, w},
        {"ffn_down.weight", at->down, w, c->mlp},
    };
    for (int i = 0; i < GR_COUNT(tensor); i++) {
        char name[96];
        bool paired = family == 0 && (i == 1 || i == 2);
        if (tensor[i].offset < 0) continue;
        (void)snprintf(name, sizeof name, "blk.%d.%s", l, tensor[i].name);
        set_tensor(f, m, name, tensor[i].offset, tensor[i].rows, tensor[i].cols, paired);
    }
}

/* Llama 3's divisors as its authors state them: by wavelength. */
static void set_divisors(gguf_file* f, const gr_model_config* c)
{
    float divisor[256];
    const gr_rope_scaling* s = &c->rope_scaling;
    for (int i = 0; i < c->head_dim / 2; i++) {
        double wave = 2 * M_PI * pow(c->rope_theta, 2.0 * i / c->head_dim), d = 1;
        if (wave > s->original / s->low) {
            d = s->factor;
        } else if (wave >= s->original / s->high) {
            double mix = (s->original / wave - s->low) / (s->high - s->low);
            d = 1 / ((1 - mix) / s->factor + mix);
        }
        divisor[i] = (float)d;
    }
    gguf_tensor(f, "rope_freqs.weight", 0, (uint64_t)c->head_dim / 2, GR_QUANT_F32, divisor,
                sizeof *divisor * (size_t)c->head_dim / 2);
}

static gguf_file* model_file(const model* m, int family, uint32_t version)
{
    const gr_model_config* c = &m->w.config;
    gguf_file* f = gguf_begin(version);
    set_shape(f, family, c);
    set_tensor(f, m, "token_embd.weight", m->w.embed, c->vocab, c->width, false);
    set_tensor(f, m, "output_norm.weight", m->w.final_norm, 0, c->width, false);
    if (!c->tied) set_tensor(f, m, "output.weight", m->w.head, c->vocab, c->width, false);
    for (int l = 0; l < c->layers; l++) set_layer(f, m, family, l);
    if (c->rope_scaling.factor != 0) set_divisors(f, c);
    return f;
}

static void randomise(model* m)
{
    float* x = m->w.master;
    for (int i = 0; i < m->w.n_tensors; i++) {
        const gr_tensor* t = &m->w.tensor[i];
        for (int64_t k = 0; k < (int64_t)t->rows * t->cols; k++) {
            x[t->offset + k] = (float)((int)dice(255) - 127) / 64;
        }
    }
}

static void assert_same_shape(const gr_model_config* a, const gr_model_config* b)
{
    assert_true(a->layers == b->layers && a->width == b->width && a->heads == b->heads &&
                a->kv_heads == b->kv_heads && a->head_dim == b->head_dim && a->mlp == b->mlp &&
                a->vocab == b->vocab && a->max_context == b->max_context &&
                a->rope_theta == b->rope_theta && a->norm_eps == b->norm_eps &&
                a->qkv_bias == b->qkv_bias && a->qk_norm == b->qk_norm && a->tied == b->tied);
    assert_true(a->rope_scaling.factor == b->rope_scaling.factor &&
                a->rope_scaling.low == b->rope_scaling.low &&
                a->rope_scaling.high == b->rope_scaling.high &&
                a->rope_scaling.original == b->rope_scaling.original);
}

static void models_of_every_family_are_loaded(void** state)
{
    (void)state;
    for (int round = 0; round < 60; round++) {
        int family = round % 3;
        gr_model_config c = random_shape(family), got;
        model a, b;
        model_open(&a, &c);
        randomise(&a);
        finish(model_file(&a, family, 2 + (uint32_t)dice(2)));
        gr_gguf g;
        ASSERT_OK(gr_gguf_open(&g, path));
        ASSERT_OK(gr_gguf_config(&g, &got));
        assert_same_shape(&got, &c);
        gr_gguf_close(&g);
        model_open(&b, &got);
        ASSERT_OK(gr_folder_load(&b.w, round % 2 ? path : dir)); /* the folder's only one */
        assert_true(gr_weights_hash(&a.w) == gr_weights_hash(&b.w));
        assert_int_equal(b.w.version, 1);
        model_close(&a);
        model_close(&b);
    }
}

/* One value more, or another one, and what the reader says to it. */
static void shapes_that_are_not_computed_are_refused(void** state)
{
    (void)state;
    static const struct {
        const char *key, *text; /* text NULL: `value` */
        uint32_t value;
        const char* part; /* NULL: read */
    } cases[] = {
        {"qwen2.expert_count", NULL, 0, NULL},
        {"qwen2.rope.scaling.type", "none", 0, NULL},
        {"qwen2.vocab_size", NULL, 24, NULL},
        {"qwen2.rope.dimension_count", NULL, 8, NULL},
        {"qwen2.attention.sliding_window", NULL, 100, NULL},
        {"llama.logit_scale", NULL, 3, NULL}, /* another family's */
        {"qwen2.expert_count", NULL, 8, "`qwen2.expert_count` is not supported"},
        {"qwen2.rope.scaling.type", "yarn", 0, "`qwen2.rope.scaling.type` is not supported"},
        {"qwen2.rope.scaling.factor", NULL, 4, "`qwen2.rope.scaling.factor` is not supported"},
        {"qwen2.logit_scale", NULL, 1, "`qwen2.logit_scale` is not supported"},
        {"qwen2.attention.sliding_window", NULL, 99, "sliding_window` is not supported"},
        {"qwen2.rope.dimension_count", NULL, 4, "rope.dimension_count` is not supported"},
        {"qwen2.vocab_size", NULL, 25, "25 tokens beside an embedding of 24 rows"},
        {"qwen2.vocab_size", "many", 0, "`qwen2.vocab_size` is missing or no whole number"},
        {"qwen2.rope.scaling.original_context_length", NULL, 0, NULL}, /* without divisors */
    };
    gr_model_config c = random_shape(1), got;
    c.vocab = 24, c.head_dim = 8;
    model m;
    model_open(&m, &c);
    randomise(&m);
    for (int i = 0; i < GR_COUNT(cases); i++) {
        gguf_file* f = model_file(&m, 1, 3);
        if (cases[i].text != NULL) {
            gguf_set_text(f, cases[i].key, cases[i].text);
        } else {
            gguf_set_u32(f, cases[i].key, cases[i].value);
        }
        finish(f);
        gr_gguf g;
        ASSERT_OK(gr_gguf_open(&g, path));
        gr_status st = gr_gguf_config(&g, &got);
        if (cases[i].part == NULL) {
            ASSERT_OK(st);
        } else {
            assert_refused(st, cases[i].part);
        }
        gr_gguf_close(&g);
    }
    model_close(&m);
}

static void sizes_that_cannot_be_meant_are_refused(void** state)
{
    (void)state;
    gr_model_config c;
    const struct {
        int* size;
        int value;
        const char* part;
    } changes[] = {
        {&c.layers, 0, "`llama.block_count` is missing or no whole number above 0"},
        {&c.layers, INT32_MAX, "layers of 2147483647"},
        {&c.width, 1 << 30, "width of 1073741824"},
        {&c.heads, 1 << 20, "heads of 1048576"},
        {&c.kv_heads, 3, "4 heads of 8 over 3"},
        {&c.head_dim, 7, "4 heads of 7 over 2"},
        {&c.head_dim, 8192, "head size of 8192"},
        {&c.mlp, INT32_MAX, "MLP width of"},
        {&c.max_context, 0, "`llama.context_length`"},
    };
    for (int i = 0; i < GR_COUNT(changes); i++) {
        static const float row[32] = {0};
        gr_gguf g;
        gr_model_config got;
        c = random_shape(0);
        c.heads = 4, c.kv_heads = 2, c.head_dim = 8;
        *changes[i].size = changes[i].value;
        gguf_file* f = gguf_begin(3);
        set_shape(f, 0, &c);
        gguf_tensor(f, "token_embd.weight", 4, 8, GR_QUANT_F32, row, sizeof row);
        finish(f);
        ASSERT_OK(gr_gguf_open(&g, path));
        assert_refused(gr_gguf_config(&g, &got), changes[i].part);
        gr_gguf_close(&g);
    }
}

static void refuse_load(model* m, const char* part)
{
    uint64_t before = gr_weights_hash(&m->w), version = m->w.version;
    assert_refused(gr_folder_load(&m->w, path), part);
    assert_true(gr_weights_hash(&m->w) == before && m->w.version == version);
}

static void another_model_is_refused(void** state)
{
    (void)state;
    gr_model_config c = random_shape(0);
    c.layers = 1, c.tied = true, c.vocab = 24, c.rope_scaling = (gr_rope_scaling){0};
    model m, other;
    model_open(&m, &c);
    randomise(&m);
    gguf_file* f = model_file(&m, 0, 3);
    gguf_tensor(f, "blk.0.attn_q.bias", 0, 1, GR_QUANT_F32, &(float){1}, 4);
    finish(f);
    refuse_load(&m, "tensor `blk.0.attn_q.bias` is not expected here");
    finish(model_file(&m, 0, 3));
    gr_model_config changed = c;
    changed.layers = 2;
    model_open(&other, &changed);
    refuse_load(&other, "tensor `blk.1.attn_norm.weight` is missing");
    model_close(&other);
    changed = c, changed.vocab = 25;
    model_open(&other, &changed);
    refuse_load(&other, "tensor `token_embd.weight`: 24 x 32 where 25 x 32 are expected");
    model_close(&other);
    changed = c, changed.qkv_bias = true;
    model_open(&other, &changed);
    refuse_load(&other, "tensor `blk.0.attn_q.bias` is missing");
    model_close(&other);
    model_close(&m);
}

/* A scale that is infinite or no number makes its whole block so. */
static void values_that_are_not_finite_are_refused(void** state)
{
    (void)state;
    static const struct {
        gr_quant_type type;
        uint32_t bits;
    } bad[] = {{GR_QUANT_F32, 0x7f800000}, {GR_QUANT_F32, 0xff800000}, {GR_QUANT_F32, 0x7fc00000},
               {GR_QUANT_F16, 0x7c00},     {GR_QUANT_F16, 0xfe01},     {GR_QUANT_BF16, 0x7f80},
               {GR_QUANT_Q8_0, 0x7c00},    {GR_QUANT_Q4_1, 0x7c000000}};
    gr_model_config c = random_shape(0);
    c.layers = 1, c.tied = true, c.rope_scaling = (gr_rope_scaling){0};
    model m;
    model_open(&m, &c);
    randomise(&m);
    for (int i = 0; i < GR_COUNT(bad); i++) {
        unsigned char data[40000] = {0};
        size_t bytes = (size_t)(c.vocab * c.width / gr_quant_elements(bad[i].type) *
                                gr_quant_bytes(bad[i].type));
        gguf_file* f = gguf_begin(3);
        set_shape(f, 0, &c);
        data[40] = 1; /* no zero, so that the scale matters */
        memcpy(data, &bad[i].bits, bad[i].type == GR_QUANT_F16 ? 2 : 4);
        gguf_tensor(f, "token_embd.weight", (uint64_t)c.vocab, (uint64_t)c.width, bad[i].type, data,
                    bytes);
        set_tensor(f, &m, "output_norm.weight", m.w.final_norm, 0, c.width, false);
        set_layer(f, &m, 0, 0);
        finish(f);
        refuse_load(&m, "tensor `token_embd.weight`: element 0 is not finite");
    }
    model_close(&m);
}

static void other_divisors_are_refused(void** state)
{
    (void)state;
    for (int at = 0; at < 8; at++) {
        gr_model_config c = random_shape(0), got;
        c.head_dim = 16, c.rope_scaling = (gr_rope_scaling){0};
        model m;
        model_open(&m, &c);
        randomise(&m);
        gguf_file* f = model_file(&m, 0, 3);
        c.rope_scaling = (gr_rope_scaling){32, 1, 4, 8192};
        set_divisors(f, &c);
        float wrong = at % 2 ? NAN : 2; /* in place of any of the eight */
        memcpy(f->data + f->n_data - 32 + 4 * at, &wrong, 4);
        finish(f);
        gr_gguf g;
        ASSERT_OK(gr_gguf_open(&g, path));
        assert_refused(gr_gguf_config(&g, &got), "`rope_freqs.weight` is not Llama 3's scaling");
        gr_gguf_close(&g);
        model_close(&m);
    }
}

static void vocabularies_of_another_size_are_refused(void** state)
{
    (void)state;
    gr_gguf g;
    gr_model_config c = random_shape(0), got;
    c.vocab = 24, c.rope_scaling = (gr_rope_scaling){0};
    model m;
    model_open(&m, &c);
    gguf_file* f = model_file(&m, 0, 3);
    gguf_set_array(f, "tokenizer.ggml.tokens", GR_GGUF_TEXT, 1);
    gguf_text(f, "a");
    finish(f);
    ASSERT_OK(gr_gguf_open(&g, path));
    assert_refused(gr_gguf_config(&g, &got), "a vocabulary of 1 tokens beside an embedding of 24");
    gr_gguf_close(&g);
    model_close(&m);
}

/* ---- folders ------------ ------------------------------------------------------------------- */

static void a_folder_stands_for_its_only_file(void** state)
{
    (void)state;
    char found[128], other[64], config[64];
    (void)snprintf(other, sizeof other, "%s/b.gguf", dir);
    (void)snprintf(config, sizeof config, "%s/config.json", dir);
    (void)unlink(path);
    ASSERT_OK(gr_folder_gguf(dir, found, sizeof found));
    assert_string_equal(found, "");
    spill(path, "", 0);
    ASSERT_OK(gr_folder_gguf(dir, found, sizeof found));
    assert_string_equal(found, path);
    spill(other, "", 0);
    assert_int_equal(gr_folder_gguf(dir, found, sizeof found), GR_EARG);
    assert_non_null(strstr(gr_last_error_text(), "several GGUF files"));
    ASSERT_OK(gr_folder_gguf(other, found, sizeof found));
    assert_string_equal(found, other);
    spill(config, "{}", 2);
    ASSERT_OK(gr_folder_gguf(dir, found, sizeof found));
    assert_string_equal(found, "");
    ASSERT_OK(gr_folder_gguf("/nowhere", found, sizeof found));
    assert_string_equal(found, "");
    assert_int_equal(gr_folder_gguf(path, found, 5), GR_EARG);
    (void)unlink(other);
    (void)unlink(config);
}

/* ---- export ---------------------------------------------------------------------------------- */

static cJSON* read_json(const char* folder, const char* name)
{
    char file[128];
    cJSON* json = NULL;
    (void)snprintf(file, sizeof file, "%s/%s", folder, name);
    ASSERT_OK(gr_json_read(file, &json));
    return json;
}

static const cJSON* at(const cJSON* json, const char* key)
{
    const cJSON* item = cJSON_GetObjectItemCaseSensitive(json, key);
    assert_non_null(item);
    return item;
}

/* The folder's tokenizer.json says of every token and merge what the file says. */
static void check_tokenizer(const char* folder, const words* w)
{
    cJSON* json = read_json(folder, "tokenizer.json");
    const cJSON *bpe = at(json, "model"), *vocab = at(bpe, "vocab"), *added = NULL;
    assert_int_equal(cJSON_GetArraySize(vocab), w->n_tokens);
    assert_int_equal(cJSON_GetArraySize(at(bpe, "merges")), w->n_merges);
    int n_added = 0;
    for (int i = 0; i < w->n_tokens; i++) {
        char text[32];
        (void)snprintf(text, sizeof text, "%.*s%d", i % 5, "Ġé<>", i);
        if (gr_utf8_length(text, strlen(text)) == 0 || i % 5 == 3) continue; /* a character cut */
        assert_int_equal(at(vocab, text)->valueint, i);
    }
    cJSON_ArrayForEach(added, at(json, "added_tokens"))
    {
        int kind = 1 + at(added, "id")->valueint % 6;
        assert_true(kind == GR_TOKEN_CONTROL || kind == GR_TOKEN_USER || kind == GR_TOKEN_UNKNOWN);
        assert_int_equal(cJSON_IsTrue(at(added, "special")), kind != GR_TOKEN_USER);
        n_added++;
    }
    assert_int_equal(n_added, (w->n_tokens + 4) / 6 + (w->n_tokens + 3) / 6 +
                                  (w->n_tokens + 2) / 6); /* kinds 2, 3 and 4 */
    cJSON_Delete(json);
}

/* Out of a GGUF file and into a folder: weights, shape, ids and tokenizer. */
static void an_export_says_what_the_file_said(void** state)
{
    (void)state;
    char folder[96];
    (void)snprintf(folder, sizeof folder, "%s/out", dir);
    for (int round = 0; round < 9; round++) {
        int family = round % 3;
        gr_model_config c = random_shape(family), got;
        words w = {.n_tokens = c.vocab, .n_merges = 5, .n_kinds = c.vocab, .bad_kind = -1};
        w.eos = 3, w.model = true;
        model a, b;
        model_open(&a, &c);
        randomise(&a);
        gguf_file* f = model_file(&a, family, 3);
        vocab_put(f, &w);
        finish(f);
        ASSERT_OK(gr_export(&a.w, folder, path, GR_FILE_F32, round % 2 ? 5000 : GR_SHARD_BYTES));
        ASSERT_OK(gr_model_config_load(folder, &got));
        assert_same_shape(&got, &c);
        model_open(&b, &got);
        ASSERT_OK(gr_folder_load(&b.w, folder));
        assert_true(gr_weights_hash(&a.w) == gr_weights_hash(&b.w));
        check_tokenizer(folder, &w);
        cJSON* json = read_json(folder, "generation_config.json");
        assert_int_equal(at(json, "eos_token_id")->valueint, 3);
        assert_int_equal(cJSON_GetArraySize(json), 1);
        cJSON_Delete(json);
        ASSERT_OK(gr_remove_folder(folder, NULL));
        model_close(&a);
        model_close(&b);
    }
}

/* ---- fuzz ------------------------------------------------------------------------------------ */

/* What the fuzzer starts from: models of each family and a vocabulary. They are also written to the
 * folder that GR_CORPUS names. */
static void corpus_and_its_neighbours_are_survived(void** state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        gguf_file* f;
        if (i < 3) {
            gr_model_config c = random_shape(i);
            c.layers = 1, c.width = 4, c.heads = 2, c.kv_heads = 1, c.mlp = 3, c.vocab = 5;
            c.head_dim = i == 0 ? 16 : 2;
            c.rope_scaling.factor = i == 0 ? 8 : 0, c.rope_scaling.low = 1;
            c.rope_scaling.high = 4, c.rope_scaling.original = 8192;
            model m;
            model_open(&m, &c);
            randomise(&m);
            f = model_file(&m, i, 2 + (uint32_t)i % 2);
            model_close(&m);
        } else {
            f = vocab_file(&(words){5, 3, 5, 5, -1, 2, true});
        }
        gguf_end(f);
        if (getenv("GR_CORPUS") != NULL) {
            char name[200];
            (void)snprintf(name, sizeof name, "%s/%s", getenv("GR_CORPUS"),
                           i < 3 ? families[i] : "vocabulary");
            spill(name, f->bytes, f->n);
        }
        for (int round = 0; round < 400; round++) {
            unsigned char* changed = malloc(f->n);
            memcpy(changed, f->bytes, f->n);
            for (int k = round % 4; k > 0; k--) {
                changed[dice(f->n)] = (unsigned char)(dice(2) ? dice(4) : dice(256));
            }
            (void)LLVMFuzzerTestOneInput(changed, f->n - (round % 3 == 0 ? dice(f->n) : 0));
            free(changed);
        }
        free(f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(models_of_every_family_are_loaded),
        cmocka_unit_test(shapes_that_are_not_computed_are_refused),
        cmocka_unit_test(sizes_that_cannot_be_meant_are_refused),
        cmocka_unit_test(another_model_is_refused),
        cmocka_unit_test(values_that_are_not_finite_are_refused),
        cmocka_unit_test(other_divisors_are_refused),
        cmocka_unit_test(vocabularies_of_another_size_are_refused),
        cmocka_unit_test(a_folder_stands_for_its_only_file),
        cmocka_unit_test(an_export_says_what_the_file_said),
        cmocka_unit_test(corpus_and_its_neighbours_are_survived),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
