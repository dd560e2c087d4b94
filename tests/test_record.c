/* Checkpoints: bit for bit, and whole or ignored whatever fails, dies or rots. */
#include "tests/disk.h"

#include <inttypes.h>
#include <math.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>

#include "host/durable.h"
#include "host/record.h"

static uint64_t dice_at;
static uint64_t dice(uint64_t n)
{
    uint64_t x = gr_key_join(0x7265636f7264, dice_at++);
    return n > 0 ? x % n : x;
}

/* ---- a model and its optimizer ------------------------------------------------------------------- */

typedef struct model {
    gr_dev dev;
    gr_arena host, device;
    gr_weights w;
    gr_optimizer o;
} model;

static const gr_model_config small = {.layers = 1,
                                      .width = 12,
                                      .heads = 2,
                                      .kv_heads = 1,
                                      .head_dim = 6,
                                      .mlp = 7,
                                      .vocab = 19,
                                      .max_context = 64,
                                      .rope_theta = 12345.678,
                                      .norm_eps = 1e-6f,
                                      .qkv_bias = true,
                                      .tied = true};

static void lay_out(model* m, const gr_model_config* c)
{
    gr_weights_layout(&m->w, &m->dev, c, true, &m->host, &m->device);
    gr_optimizer_layout(&m->o, &m->w, &m->device);
}

static void open_model(model* m, const gr_model_config* c, gr_dtype dtype)
{
    void* block = NULL;
    memset(m, 0, sizeof *m);
    ASSERT_OK(gr_dev_open(&m->dev, &(gr_dev_options){.name = "cpu", .dtype = dtype, .threads = 1}));
    lay_out(m, c);
    m->host.cap = m->host.used, m->device.cap = m->device.used;
    m->host.used = m->device.used = 0;
    m->host.base = calloc(1, m->host.cap);
    ASSERT_OK(gr_dev_alloc(&m->dev, &block, m->device.cap));
    m->device.base = block;
    lay_out(m, c);
}

static void close_model(model* m)
{
    free(m->host.base);
    gr_dev_free(&m->dev, m->device.base);
    gr_dev_close(&m->dev);
}

/* Any finite float, denormals and both zeros among them. */
static float any_float(void)
{
    static const float edge[] = {0, -0.0f, 1e-45f, -1e-38f, 3.4e38f};
    uint32_t bits = (uint32_t)dice(0);
    float x = edge[dice(GR_COUNT(edge))];
    if (dice(20) == 0) return x;
    memcpy(&x, &bits, sizeof x);
    return isfinite(x) ? x : 1.5f;
}

static void scramble(model* m)
{
    void* flat[] = {m->w.master, m->o.m, m->o.v};
    for (int f = 0; f < 3; f++) {
        for (int i = 0; i < m->w.n_tensors; i++) {
            const gr_tensor* t = &m->w.tensor[i];
            float* x = gr_acc_at(&m->dev, flat[f], t->offset);
            for (int64_t k = 0; k < (int64_t)t->rows * t->cols; k++) x[k] = any_float();
        }
    }
    m->o.step = (int64_t)dice(1u << 20);
    gr_weights_publish(&m->w);
}

/* Masters, moments and the count of updates; of two models equal iff all their bits are. */
static uint64_t bits_of(const model* m)
{
    const void* flat[] = {m->w.master, m->o.m, m->o.v};
    uint64_t h = gr_hash64(&m->o.step, sizeof m->o.step, 0);
    for (int f = 0; f < 3; f++) {
        for (int i = 0; i < m->w.n_tensors; i++) {
            const gr_tensor* t = &m->w.tensor[i];
            size_t bytes = (size_t)t->rows * (size_t)t->cols * m->dev.acc_bytes;
            h = gr_hash64(gr_acc_at(&m->dev, flat[f], t->offset), bytes, h);
        }
    }
    return gr_hash64(m->w.value, (size_t)m->w.n_params * m->dev.real_bytes, h);
}

static gr_train_state any_state(int64_t step)
{
    gr_train_state s;
    double edge[] = {0, -0.0, HUGE_VAL, -HUGE_VAL, 0.1, 5e-324, 1.7976931348623157e308};
    for (size_t i = 0; i < sizeof s; i += 8) {
        uint64_t x = dice(0);
        memcpy((char*)&s + i, &x, 8);
    }
    double* real[] = {&s.tokens_per_group, &s.seconds, &s.best_success, &s.next_eval};
    for (int i = 0; i < 4; i++) *real[i] = edge[dice(GR_COUNT(edge))];
    if (dice(2)) s.seconds = (double)dice(0) / 3e9;
    memset(s.arithmetic, 0, sizeof s.arithmetic);
    (void)snprintf(s.arithmetic, sizeof s.arithmetic, "cpu \"avx%d\"\\ exact", (int)dice(600));
    s.env_errors[GR_ENV_OK] = 0; /* not one of them, so not saved */
    s.step = step;
    return s;
}

/* Two states of one run, A before B, and a third model to load them into. */
typedef struct pair {
    model a, b, c;
    gr_train_state sa, sb;
    uint64_t bits_a, bits_b;
} pair;

static void open_pair(pair* p)
{
    open_model(&p->a, &small, GR_F32);
    open_model(&p->b, &small, GR_F32);
    open_model(&p->c, &small, GR_F32);
    scramble(&p->a);
    scramble(&p->b);
    p->sa = any_state(1);
    p->sb = any_state(2);
    p->bits_a = bits_of(&p->a);
    p->bits_b = bits_of(&p->b);
}

static void close_pair(pair* p)
{
    close_model(&p->a);
    close_model(&p->b);
    close_model(&p->c);
}

static gr_status save_a(const pair* p, const char* dir, const char* label)
{
    return gr_checkpoint_save(dir, &p->sa, &p->a.w, &p->a.o, NULL, label, 0);
}
static gr_status save_b(const pair* p, const char* dir, const char* label, int keep)
{
    return gr_checkpoint_save(dir, &p->sb, &p->b.w, &p->b.o, NULL, label, keep);
}

/* 'a' or 'b': what is found and loads, every bit compared; '-': nothing. */
static char newest(pair* p, const char* dir, const char* label)
{
    char path[1024];
    gr_train_state s = any_state(99);
    ASSERT_OK(gr_checkpoint_find(dir, label, path, sizeof path));
    if (path[0] == 0) return '-';
    scramble(&p->c);
    ASSERT_OK(gr_checkpoint_load(path, &s, &p->c.w, &p->c.o, NULL));
    char who = s.step == 1 ? 'a' : 'b';
    assert_memory_equal(&s, who == 'a' ? &p->sa : &p->sb, sizeof s);
    assert_true(bits_of(&p->c) == (who == 'a' ? p->bits_a : p->bits_b));
    return who;
}

/* Everything in the folder of checkpoints, sorted, with a blank behind each name. */
static void list(const char* dir, char out[1000])
{
    char path[300];
    struct dirent** e = NULL;
    out[0] = 0;
    (void)snprintf(path, sizeof path, "%s/checkpoints", dir);
    int n = scandir(path, &e, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        if (strcmp(e[i]->d_name, ".") != 0 && strcmp(e[i]->d_name, "..") != 0) {
            (void)snprintf(out + strlen(out), 1000 - strlen(out), "%s ", e[i]->d_name);
        }
        free(e[i]);
    }
    free(e);
}

static void assert_lists(const char* dir, const char* expected)
{
    char names[1000];
    list(dir, names);
    assert_string_equal(names, expected);
}

/* ---- what is saved is loaded -------------------------------------------------------------------- */

/* A value model rides along: heads alone, or heads on a trunk. Without one there is none to load. */
static void a_value_model_comes_back_with_its_run(void** state)
{
    (void)state;
    for (int round = 0; round < 6; round++) {
        gr_model_config c = small, values = small;
        values.value_heads = 1 + (int)dice(3);
        if (round % 2) values.layers = 0;
        model from, to, heads, other;
        open_model(&from, &c, GR_F32);
        open_model(&to, &c, GR_F32);
        open_model(&heads, &values, GR_F32);
        open_model(&other, &values, GR_F32);
        scramble(&from);
        scramble(&heads);
        scramble(&other);
        scramble(&to);
        gr_train_state s = any_state((int64_t)dice(2000000)), back;
        char path[1024];
        const char* dir = fresh();
        ASSERT_OK(gr_checkpoint_save(dir, &s, &from.w, &from.o, &heads.o, NULL, 2));
        ASSERT_OK(gr_checkpoint_find(dir, NULL, path, sizeof path));
        ASSERT_OK(gr_checkpoint_load(path, &back, &to.w, &to.o, &other.o));
        assert_memory_equal(&back, &s, sizeof s);
        assert_true(bits_of(&to) == bits_of(&from) && bits_of(&other) == bits_of(&heads));
        assert_int_equal(other.o.step, heads.o.step);
        scramble(&to);
        ASSERT_OK(gr_checkpoint_load(path, &back, &to.w, &to.o, NULL)); /* the policy alone */
        assert_true(bits_of(&to) == bits_of(&from));
        ASSERT_OK(gr_checkpoint_save(dir, &s, &from.w, &from.o, NULL, "bare", 2));
        ASSERT_OK(gr_checkpoint_find(dir, "bare", path, sizeof path));
        assert_int_not_equal(gr_checkpoint_load(path, &back, &to.w, &to.o, &other.o), GR_OK);
        assert_non_null(strstr(gr_last_error_text(), "value.safetensors"));
        close_model(&from);
        close_model(&to);
        close_model(&heads);
        close_model(&other);
    }
}

static void every_bit_comes_back(void** state)
{
    (void)state;
    static const gr_dtype dtypes[] = {GR_F32, GR_BF16};
    for (int round = 0; round < 24; round++) {
        gr_model_config c = small;
        c.qkv_bias = dice(2), c.qk_norm = dice(2), c.tied = dice(2);
        c.layers = 1 + (int)dice(3);
        model from, to;
        open_model(&from, &c, dtypes[round % 2]);
        open_model(&to, &c, dtypes[round % 2]);
        scramble(&from);
        scramble(&to);
        gr_train_state s = any_state((int64_t)dice(2000000)), back;
        char path[1024];
        const char* dir = fresh();
        ASSERT_OK(gr_checkpoint_save(dir, &s, &from.w, &from.o, NULL, NULL, 2));
        ASSERT_OK(gr_checkpoint_find(dir, NULL, path, sizeof path));
        uint64_t version = to.w.version;
        ASSERT_OK(gr_checkpoint_load(path, &back, &to.w, &to.o, NULL));
        assert_memory_equal(&back, &s, sizeof s);
        assert_true(bits_of(&to) == bits_of(&from));
        assert_true(to.w.version > version); /* cached keys of the old weights are stale */
        scramble(&to);
        int64_t updates = to.o.step;
        ASSERT_OK(gr_checkpoint_load(path, NULL, &to.w, NULL, NULL)); /* weights only */
        assert_true(gr_weights_hash(&to.w) == gr_weights_hash(&from.w));
        assert_int_equal(to.o.step, updates);
        close_model(&from);
        close_model(&to);
    }
}

static void shapes_come_back(void** state)
{
    (void)state;
    model m;
    for (int round = 0; round < 40; round++) {
        gr_model_config c = small, back;
        c.qkv_bias = dice(2), c.qk_norm = dice(2), c.tied = dice(2);
        c.heads = 2 * (1 + (int)dice(3)), c.kv_heads = 2, c.mlp = 1 + (int)dice(40);
        c.rope_theta = 1 + (double)dice(0) / 1e13;
        c.norm_eps = (float)(1e-6 * (1 + (double)dice(0) / 1e19));
        c.max_context = 1 + (int)dice(100000);
        if (round % 3 == 0) {
            c.rope_scaling = (gr_rope_scaling){.factor = 1 + (double)dice(0) / 1e18,
                                               .low = 1 + (double)dice(0) / 1e19,
                                               .high = 4 + (double)dice(0) / 1e19,
                                               .original = 1 + (int)dice(9000)};
        }
        char path[1024];
        const char* dir = fresh();
        gr_train_state s = any_state(3);
        open_model(&m, &c, GR_F32);
        scramble(&m);
        ASSERT_OK(gr_checkpoint_save(dir, &s, &m.w, &m.o, NULL, NULL, 2));
        ASSERT_OK(gr_checkpoint_find(dir, NULL, path, sizeof path));
        memset(&back, 0, sizeof back);
        ASSERT_OK(gr_model_config_load(path, &back));
        assert_true(
            back.layers == c.layers && back.width == c.width && back.heads == c.heads &&
            back.kv_heads == c.kv_heads && back.head_dim == c.head_dim && back.mlp == c.mlp &&
            back.vocab == c.vocab && back.max_context == c.max_context &&
            back.rope_theta == c.rope_theta && back.norm_eps == c.norm_eps &&
            back.rope_scaling.factor == c.rope_scaling.factor &&
            back.rope_scaling.low == c.rope_scaling.low &&
            back.rope_scaling.high == c.rope_scaling.high &&
            back.rope_scaling.original == c.rope_scaling.original && back.qkv_bias == c.qkv_bias &&
            back.qk_norm == c.qk_norm && back.tied == c.tied);
        close_model(&m);
    }
}

#define LLAMA                                                                     \
    "\"num_hidden_layers\": 2, \"hidden_size\": 64, \"num_attention_heads\": 4, " \
    "\"intermediate_size\": 96, \"vocab_size\": 300, \"max_position_embeddings\": 2048"

static void shapes_of_other_models_are_read_or_refused(void** state)
{
    (void)state;
    static const struct {
        const char *json, *refusal; /* NULL: read */
    } cases[] = {
        {"{\"model_type\": \"llama\", " LLAMA "}", NULL},
        {"{\"model_type\": \"qwen2\", \"rope_scaling\": null, " LLAMA "}", NULL},
        {"{\"model_type\": \"qwen3\", \"rope_parameters\": {\"rope_theta\": 1e6, \"rope_type\": "
         "\"default\"}, " LLAMA "}",
         NULL},
        {"{\"model_type\": \"gpt2\", " LLAMA "}", "model_type `gpt2` is none of"},
        {"{" LLAMA "}", "`model_type` is missing"},
        {"{\"model_type\": \"llama\"}", "`num_hidden_layers` is missing"},
        {"{\"model_type\": \"llama\", \"head_dim\": 1.5, " LLAMA "}", "`head_dim`"},
        {"{\"model_type\": \"llama\", \"head_dim\": 15, " LLAMA "}", "do not fit together"},
        {"{\"model_type\": \"llama\", \"num_key_value_heads\": 3, " LLAMA "}",
         "do not fit together"},
        {"{\"model_type\": \"llama\", \"rope_theta\": -1, " LLAMA "}", "`rope_theta`"},
        {"{\"model_type\": \"llama\", \"hidden_act\": \"gelu\", " LLAMA "}", "hidden_act"},
        {"{\"model_type\": \"llama\", \"attention_bias\": true, " LLAMA "}", "attention_bias"},
        {"{\"model_type\": \"llama\", \"rope_scaling\": {\"rope_type\": \"yarn\"}, " LLAMA "}",
         "`rope_scaling` of type `yarn`"},
        {"{\"model_type\": \"llama\", \"rope_scaling\": {\"rope_type\": \"llama3\"}, " LLAMA "}",
         "`factor`"},
        {"{\"model_type\": \"llama\", \"rope_interleaved\": true, " LLAMA "}", "rope_interleaved"},
        {"{\"model_type\": \"llama\", \"quantization_config\": {}, " LLAMA "}",
         "quantization_config"},
        {"{\"model_type\": \"llama\", \"partial_rotary_factor\": 0.5, " LLAMA "}",
         "partial_rotary_factor"},
        {"{\"model_type\": \"qwen2\", \"use_sliding_window\": true, " LLAMA "}",
         "use_sliding_window"},
        {"{\"model_type\": \"qwen2\", \"layer_types\": [\"full_attention\", "
         "\"sliding_attention\"], " LLAMA "}",
         "layer_types"},
        {"[]", "not a JSON object"},
        {"{", "not a JSON object"},
    };
    for (int i = 0; i < GR_COUNT(cases); i++) {
        gr_model_config m = {.layers = 77};
        spill(scratch, "config.json", cases[i].json, strlen(cases[i].json));
        gr_status st = gr_model_config_load(scratch, &m);
        if (cases[i].refusal == NULL) {
            ASSERT_OK(st);
            assert_true(m.layers == 2 && m.width == 64 && m.kv_heads == 4 && m.head_dim == 16);
            assert_int_equal(m.qkv_bias, i == 1);
            assert_int_equal(m.qk_norm, i == 2);
            assert_true(m.rope_theta == (i == 2 ? 1e6 : 1e4));
            continue;
        }
        assert_int_equal(st, GR_EDATA);
        assert_non_null(strstr(gr_last_error_text(), "config.json: "));
        if (strstr(gr_last_error_text(), cases[i].refusal) == NULL) {
            fail_msg("%s: %s", cases[i].json, gr_last_error_text());
        }
        assert_int_equal(m.layers, 77);
    }
    gr_model_config m;
    assert_int_equal(gr_model_config_load("/nowhere", &m), GR_EIO);
}

/* Out of one folder and into another: shape and files stay, the dtype is the new one's. */
static void an_export_carries_what_it_came_with(void** state)
{
    (void)state;
    pair p;
    open_pair(&p);
    const char* source = fresh();
    char folder[300];
    gr_weights_init(&p.a.w, 5); /* any bits may not fit bf16 */
    static const char kept[] = "{\"eos_token_id\": 2}";
    ASSERT_OK(gr_export(&p.a.w, source, NULL, GR_FILE_F32, GR_SHARD_BYTES));
    spill(source, "generation_config.json", kept, strlen(kept));
    spill(source, "private.txt", kept, strlen(kept));
    (void)snprintf(folder, sizeof folder, "%s/out", source);
    ASSERT_OK(gr_export(&p.a.w, folder, source, GR_FILE_BF16, 1));
    gr_model_config c;
    ASSERT_OK(gr_model_config_load(folder, &c));
    assert_true(c.width == p.a.w.config.width && c.layers == p.a.w.config.layers);
    size_t n = 0;
    char* text = slurp(folder, "generation_config.json", &n);
    assert_true(n == strlen(kept) && memcmp(text, kept, n) == 0);
    free(text);
    text = slurp(folder, "config.json", &n);
    assert_non_null(memmem(text, n, "\"bfloat16\"", 10));
    assert_null(memmem(text, n, "\"float32\"", 9));
    free(text);
    char other[400];
    (void)snprintf(other, sizeof other, "%s/private.txt", folder);
    assert_false(gr_exists(other));
    ASSERT_OK(gr_checkpoint_load(folder, NULL, &p.c.w, NULL, NULL));
    ASSERT_OK(gr_checkpoint_load(source, NULL, &p.c.w, NULL, NULL));
    assert_true(gr_weights_hash(&p.c.w) == gr_weights_hash(&p.a.w));
    assert_int_equal(gr_export(&p.a.w, folder, NULL, GR_FILE_F32, 1), GR_EARG); /* not empty */
    assert_non_null(strstr(gr_last_error_text(), "not empty"));
    close_pair(&p);
}

/* A folder with a model and nothing else, as published ones are. */
static void a_model_from_elsewhere_gives_its_weights(void** state)
{
    (void)state;
    pair p;
    open_pair(&p);
    const char* dir = fresh();
    ASSERT_OK(gr_make_folders(dir));
    char file[200];
    (void)snprintf(file, sizeof file, "%s/model.safetensors", dir);
    ASSERT_OK(gr_weights_save(&p.a.w, file));
    ASSERT_OK(gr_checkpoint_load(dir, NULL, &p.c.w, NULL, NULL));
    assert_true(gr_weights_hash(&p.c.w) == gr_weights_hash(&p.a.w));
    gr_train_state s = p.sb;
    uint64_t before = bits_of(&p.c);
    assert_int_equal(gr_checkpoint_load(dir, &s, &p.c.w, &p.c.o, NULL), GR_EIO);
    assert_non_null(strstr(gr_last_error_text(), "state.json: cannot open"));
    assert_int_equal(gr_checkpoint_load("", NULL, &p.c.w, NULL, NULL), GR_EDATA);
    assert_true(bits_of(&p.c) == before);
    assert_memory_equal(&s, &p.sb, sizeof s);
    close_pair(&p);
}

/* ---- names --------------------------------------------------------------------------------------- */

static void the_newest_are_kept_and_labels_stay(void** state)
{
    (void)state;
    pair p;
    open_pair(&p);
    const char* dir = fresh();
    char path[1024], want[1024];
    for (int64_t step = 0; step <= 12; step++) {
        p.sa.step = step;
        ASSERT_OK(gr_checkpoint_save(dir, &p.sa, &p.a.w, &p.a.o, NULL, NULL, 3));
        if (step == 4) ASSERT_OK(save_b(&p, dir, "best", 3));
        if (step == 7) ASSERT_OK(save_b(&p, dir, "best", 1));
    }
    assert_lists(dir, "000010 000011 000012 best ");
    ASSERT_OK(gr_checkpoint_find(dir, NULL, path, sizeof path));
    (void)snprintf(want, sizeof want, "%s/checkpoints/000012", dir);
    assert_string_equal(path, want);
    ASSERT_OK(gr_checkpoint_find(dir, "11", path, sizeof path));
    (void)snprintf(want, sizeof want, "%s/checkpoints/000011", dir);
    assert_string_equal(path, want);
    ASSERT_OK(gr_checkpoint_find(dir, "000009", path, sizeof path));
    assert_string_equal(path, "");
    ASSERT_OK(gr_checkpoint_find(dir, "none", path, sizeof path));
    assert_string_equal(path, "");
    assert_int_equal(newest(&p, dir, "best"), 'b');
    assert_true(gr_checkpoint_any(dir));
    ASSERT_OK(gr_checkpoint_forget(dir, 10));
    assert_lists(dir, "000010 best ");
    p.sa.step = 1234567; /* more digits than the name has room for */
    ASSERT_OK(gr_checkpoint_save(dir, &p.sa, &p.a.w, &p.a.o, NULL, NULL, 0));
    assert_lists(dir, "000010 1234567 best ");
    ASSERT_OK(gr_checkpoint_find(dir, NULL, path, sizeof path));
    assert_non_null(strstr(path, "/1234567"));
    ASSERT_OK(gr_checkpoint_find("/nowhere", NULL, path, sizeof path));
    assert_string_equal(path, "");
    assert_false(gr_checkpoint_any("/nowhere"));
    close_pair(&p);
}

/* ---- failures ------------------------------------------------------------------------------------ */

static const char* const places[] = {"record.open",  "record.write",  "record.read",
                                     "record.sync",  "record.rename", "record.remove",
                                     "weights.open", "weights.write", "weights.close"};

/* What must hold after a save of B over A went wrong anywhere. */
static void assert_old_or_new(pair* p, const char* dir, const char* label)
{
    char now = newest(p, dir, label);
    assert_true(now == 'a' || now == 'b');
    if (label == NULL) {
        char by_name = newest(p, dir, "2");
        assert_true(by_name == '-' || by_name == 'b');
        assert_int_equal(now == 'b', by_name == 'b');
    }
    if (label != NULL) { /* saving something else must not clean away the old one */
        ASSERT_OK(save_a(p, dir, NULL));
        assert_int_equal(newest(p, dir, label), now);
        char path[300];
        (void)snprintf(path, sizeof path, "%s/checkpoints/000001", dir);
        remove_all(path);
    }
    ASSERT_OK(save_b(p, dir, label, 1)); /* and the next attempt cleans up */
    assert_int_equal(newest(p, dir, label), 'b');
    assert_lists(dir, label != NULL ? "best " : "000002 ");
}

static int fail_each_call(pair* p, const char* place, const char* label)
{
    for (int k = 1;; k++) {
        char spec[64];
        const char* dir = fresh();
        ASSERT_OK(save_a(p, dir, label));
        (void)snprintf(spec, sizeof spec, "%s:%d", place, k);
        gr_fault_set(spec);
        hush();
        gr_status st = save_b(p, dir, label, 1);
        char* said = loud();
        bool fired = st != GR_OK || strstr(said, "warning: ") != NULL;
        free(said);
        gr_fault_set(NULL);
        if (!fired) return k - 1;
        /* removing what is old may fail without harm to what is new */
        bool harmless = strcmp(place, "record.remove") == 0 && st == GR_OK;
        assert_true(harmless || st == GR_EIO);
        if (!harmless) {
            assert_true(is_one_line(gr_last_error_text()));
            assert_non_null(strstr(gr_last_error_text(), dir));
            assert_non_null(strstr(gr_last_error_text(), "Input/output error"));
        }
        assert_old_or_new(p, dir, label);
    }
}

static void any_failed_call_leaves_a_whole_checkpoint(void** state)
{
    (void)state;
    pair p;
    open_pair(&p);
    int calls = 0;
    for (int i = 0; i < GR_COUNT(places); i++) {
        int n = fail_each_call(&p, places[i], NULL),
            labelled = fail_each_call(&p, places[i], "best");
        assert_true(n > 0 && labelled > 0);
        calls += n + labelled;
    }
    print_message("failed %d calls of a save\n", calls);
    close_pair(&p);
}

static int kill_each_call(pair* p, const char* place, const char* label)
{
    for (int k = 1;; k++) {
        const char* dir = fresh();
        ASSERT_OK(save_a(p, dir, label));
        pid_t pid = fork();
        if (pid == 0) {
            char spec[64];
            (void)snprintf(spec, sizeof spec, "kill:%s:%d", place, k);
            gr_fault_set(spec);
            _exit(save_b(p, dir, label, 1) != GR_OK);
        }
        int status = wait_for(pid);
        if (status == 0) return k - 1;
        assert_int_equal(status, 128 + SIGKILL);
        assert_old_or_new(p, dir, label);
    }
}

static void killed_at_any_call_it_is_old_or_new(void** state)
{
    (void)state;
    pair p;
    open_pair(&p);
    int kills = 0;
    for (int i = 0; i < GR_COUNT(places); i++) {
        kills += kill_each_call(&p, places[i], NULL) + kill_each_call(&p, places[i], "best");
    }
    assert_true(kills > 100);
    print_message("killed %d times inside a save\n", kills);
    close_pair(&p);
}

/* ---- damage -------------------------------------------------------------------------------------- */

static const char* const parts[] = {"model.safetensors", "optimizer.safetensors", "config.json",
                                    "state.json", "complete"};

/* Spoils a file in one of a few ways; keeps its old content in *good. */
static void spoil(const char* folder, const char* name, int way, char** good, size_t* n)
{
    char path[1200];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    *good = slurp(folder, name, n);
    char* bad = calloc(1, *n + 2);
    memcpy(bad, *good, *n);
    size_t size = *n, at = (size_t)dice(*n);
    switch (way) {
    case 0:
        assert_int_equal(unlink(path), 0);
        free(bad);
        return;
    case 1:
        size = at;
        break;
    case 2:
        size = *n + 1;
        break;
    case 3:
        size = 0;
        break;
    default:
        bad[at] = (char)(bad[at] ^ 1 << dice(8));
        break;
    }
    spill(folder, name, bad, size);
    free(bad);
}

static void damage_is_named_and_passed_over(void** state)
{
    (void)state;
    pair p;
    open_pair(&p);
    const char* dir = fresh();
    char folder[300];
    ASSERT_OK(save_a(&p, dir, NULL));
    ASSERT_OK(save_b(&p, dir, NULL, 0));
    (void)snprintf(folder, sizeof folder, "%s/checkpoints/000002", dir);
    for (int i = 0; i < GR_COUNT(parts) * 24; i++) {
        const char* name = parts[i % GR_COUNT(parts)];
        int way = i / GR_COUNT(parts);
        char* good = NULL;
        size_t n = 0;
        spoil(folder, name, way, &good, &n);
        scramble(&p.c);
        uint64_t before = bits_of(&p.c), version = p.c.w.version;
        gr_train_state s = p.sa;
        gr_status st = gr_checkpoint_load(folder, &s, &p.c.w, &p.c.o, NULL);
        assert_true(st == GR_EDATA || (st == GR_EIO && way == 0));
        assert_true(is_one_line(gr_last_error_text()));
        assert_non_null(strstr(gr_last_error_text(), folder));
        assert_non_null(strstr(gr_last_error_text(), name));
        assert_true(bits_of(&p.c) == before && p.c.w.version == version);
        assert_memory_equal(&s, &p.sa, sizeof s);
        hush();
        char found = newest(&p, dir, NULL), by_name = newest(&p, dir, "2");
        char* said = loud();
        assert_int_equal(found, 'a');
        assert_int_equal(by_name, '-');
        bool gone = way == 0 && strcmp(name, "complete") == 0; /* as after a crash: no news */
        assert_int_equal(strstr(said, "warning: checkpoint passed over: ") != NULL, !gone);
        free(said);
        spill(folder, name, good, n);
        free(good);
        assert_int_equal(newest(&p, dir, NULL), 'b');
    }
    close_pair(&p);
}

/* A marker that fits the folder's files as they are now. */
static void mark_again(const char* folder)
{
    char text[1000], path[1200];
    int n = 0;
    for (int i = 0; i < 4; i++) {
        int64_t bytes = 0;
        uint64_t hash = 0;
        (void)snprintf(path, sizeof path, "%s/%s", folder, parts[i]);
        ASSERT_OK(gr_hash_file(path, &bytes, &hash));
        n += snprintf(text + n, sizeof text - (size_t)n, "%016" PRIx64 " %" PRId64 " %s\n", hash,
                      bytes, parts[i]);
    }
    n += snprintf(text + n, sizeof text - (size_t)n, "%016" PRIx64 "\n",
                  gr_hash64(text, (size_t)n, 0));
    spill(folder, "complete", text, (size_t)n);
}

static void what_does_not_belong_changes_nothing(void** state)
{
    (void)state;
    pair p;
    model other;
    gr_model_config wide = small;
    wide.mlp = 8;
    open_pair(&p);
    open_model(&other, &wide, GR_F32);
    scramble(&other);
    const char* dir = fresh();
    char mine[300], theirs[300];
    ASSERT_OK(save_a(&p, dir, NULL));
    ASSERT_OK(gr_checkpoint_save(dir, &p.sb, &other.w, &other.o, NULL, NULL, 0));
    (void)snprintf(mine, sizeof mine, "%s/checkpoints/000001", dir);
    (void)snprintf(theirs, sizeof theirs, "%s/checkpoints/000002", dir);
    gr_train_state s = p.sb;
    uint64_t before = bits_of(&p.c);
    assert_int_equal(gr_checkpoint_load(theirs, &s, &p.c.w, &p.c.o, NULL), GR_EDATA);
    assert_non_null(strstr(gr_last_error_text(), "model.safetensors: tensor `"));
    size_t n = 0; /* sound files and marker, but the moments are of another model */
    char* moments = slurp(theirs, "optimizer.safetensors", &n);
    spill(mine, "optimizer.safetensors", moments, n);
    mark_again(mine);
    assert_int_equal(gr_checkpoint_load(mine, &s, &p.c.w, &p.c.o, NULL), GR_EDATA);
    assert_non_null(strstr(gr_last_error_text(), "optimizer.safetensors: tensor `"));
    static const char* const states[] = {"{}", "[]", "{\"step\": \"x\"}", "{\"step\": 3}", ""};
    for (int i = 0; i < GR_COUNT(states); i++) {
        spill(mine, "state.json", states[i], strlen(states[i]));
        mark_again(mine);
        assert_int_equal(gr_checkpoint_load(mine, &s, &p.c.w, &p.c.o, NULL), GR_EDATA);
        assert_non_null(strstr(gr_last_error_text(), "state.json: "));
    }
    assert_true(bits_of(&p.c) == before);
    assert_memory_equal(&s, &p.sb, sizeof s);
    free(moments);
    close_model(&other);
    close_pair(&p);
}

/* ---- disks that are full or closed ----------------------------------------------------------------- */

static void a_full_disk_costs_the_new_one_only(void** state)
{
    (void)state;
    pair p;
    open_pair(&p);
    for (rlim_t limit = 0; limit < 40000; limit += 1 + (rlim_t)dice(2500)) {
        const char* dir = fresh();
        ASSERT_OK(save_a(&p, dir, NULL));
        pid_t pid = fork();
        if (pid == 0) {
            (void)signal(SIGXFSZ, SIG_IGN);
            (void)setrlimit(RLIMIT_FSIZE, &(struct rlimit){.rlim_cur = limit, .rlim_max = limit});
            gr_status st = save_b(&p, dir, NULL, 1);
            if (st == GR_OK) _exit(0);
            bool clear = is_one_line(gr_last_error_text()) &&
                         strstr(gr_last_error_text(), "File too large") != NULL;
            _exit(st == GR_EIO && clear ? 1 : 2);
        }
        int status = wait_for(pid);
        assert_true(status == 0 || status == 1);
        assert_int_equal(newest(&p, dir, NULL), status == 0 ? 'b' : 'a');
    }
    close_pair(&p);
}

/* Takes what is free on a disk, but for `left` bytes. */
static void fill_disk(const char* dir, off_t left)
{
    static char block[4096];
    char path[300];
    (void)snprintf(path, sizeof path, "%s/filler", dir);
    int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0644);
    while (write(fd, block, sizeof block) == (ssize_t)sizeof block) {}
    off_t size = lseek(fd, 0, SEEK_END);
    (void)!ftruncate(fd, size > left ? size - left : 0);
    (void)close(fd);
}

/* In a child: 77 where no file system can be mounted, 0 if all holds. */
static int fill_small_disk(pair* p)
{
    char dir[200];
    int full = 0, fit = 0;
    (void)snprintf(dir, sizeof dir, "%s/disk", scratch);
    if (mkdir(dir, 0755) != 0 || unshare(CLONE_NEWNS) != 0 ||
        mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("none", dir, "tmpfs", 0, "size=256k") != 0) {
        return 77;
    }
    for (off_t left = 0; left < 65536; left += 4096) {
        char run[210];
        (void)snprintf(run, sizeof run, "%s/run", dir);
        remove_all(run);
        (void)snprintf(run, sizeof run, "%s/filler", dir);
        (void)unlink(run);
        (void)snprintf(run, sizeof run, "%s/run", dir);
        if (save_a(p, run, NULL) != GR_OK) return 1;
        fill_disk(dir, left);
        gr_status st = save_b(p, run, NULL, 1);
        if (st != GR_OK && strstr(gr_last_error_text(), "No space left on device") == NULL)
            return 2;
        if (newest(p, run, NULL) != (st == GR_OK ? 'b' : 'a')) return 3;
        full += st != GR_OK;
        fit += st == GR_OK;
    }
    return full > 3 && fit > 3 ? 0 : 4;
}

static void a_small_disk_runs_full(void** state)
{
    (void)state;
    pair p;
    open_pair(&p);
    pid_t pid = fork();
    if (pid == 0) _exit(fill_small_disk(&p));
    int status = wait_for(pid);
    close_pair(&p);
    if (status == 77) skip();
    assert_int_equal(status, 0);
}

static void a_folder_that_may_not_be_written_says_so(void** state)
{
    (void)state;
    pair p;
    open_pair(&p);
    const char* dir = fresh();
    char folder[300];
    ASSERT_OK(save_a(&p, dir, NULL));
    (void)snprintf(folder, sizeof folder, "%s/checkpoints", dir);
    assert_int_equal(chmod(folder, 0555), 0);
    pid_t pid = fork();
    if (pid == 0) {
        if (geteuid() == 0 && seteuid(65534) != 0) _exit(77); /* root may write everywhere */
        gr_status st = save_b(&p, dir, NULL, 1);
        const char* text = gr_last_error_text();
        _exit(st == GR_EIO && strstr(text, "/.000002.part: cannot create: Permission denied") ? 0
                                                                                              : 1);
    }
    int status = wait_for(pid);
    assert_int_equal(chmod(folder, 0755), 0);
    assert_int_equal(newest(&p, dir, NULL), 'a');
    assert_int_equal(save_b(&p, "/proc/nothing", NULL, 1), GR_EIO);
    assert_true(is_one_line(gr_last_error_text()));
    close_pair(&p);
    if (status == 77) skip();
    assert_int_equal(status, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_bit_comes_back),
        cmocka_unit_test(a_value_model_comes_back_with_its_run),
        cmocka_unit_test(shapes_come_back),
        cmocka_unit_test(shapes_of_other_models_are_read_or_refused),
        cmocka_unit_test(an_export_carries_what_it_came_with),
        cmocka_unit_test(a_model_from_elsewhere_gives_its_weights),
        cmocka_unit_test(the_newest_are_kept_and_labels_stay),
        cmocka_unit_test(any_failed_call_leaves_a_whole_checkpoint),
        cmocka_unit_test(killed_at_any_call_it_is_old_or_new),
        cmocka_unit_test(damage_is_named_and_passed_over),
        cmocka_unit_test(what_does_not_belong_changes_nothing),
        cmocka_unit_test(a_full_disk_costs_the_new_one_only),
        cmocka_unit_test(a_small_disk_runs_full),
        cmocka_unit_test(a_folder_that_may_not_be_written_says_so),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
