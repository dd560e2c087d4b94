/* checkpoint_state.c - state.json and config.json of a checkpoint. */
#include <cjson/cJSON.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "host/checkpoint_parts.h"
#include "host/durable.h"
#include "host/json.h"

#define FILE_BYTES (1 << 20)

/* ---- state.json ------------------------------------------------------------------------------ */

/* A number of JSON is a double for most readers, so 64-bit integers stand in quotes. */
typedef enum kind { WHOLE, BITS, REAL, TEXT } kind;

typedef struct saved {
    gr_train_state s;
    int64_t optimizer_step;
} saved;

#define FIELD(kind, name)                           \
    {                                               \
#name, kind, offsetof(gr_train_state, name) \
    }
static const struct {
    const char* name;
    kind kind;
    size_t offset;
} fields[] = {
    FIELD(WHOLE, step),
    FIELD(WHOLE, updates),
    FIELD(WHOLE, env_turns),
    FIELD(WHOLE, gen_tokens),
    FIELD(WHOLE, prefill_tokens),
    FIELD(WHOLE, scorer_calls),
    FIELD(WHOLE, charged_turns),
    FIELD(WHOLE, loss_tokens),
    FIELD(WHOLE, loss_tokens_flat),
    FIELD(WHOLE, discarded_tokens),
    FIELD(WHOLE, skipped_in_a_row),
    FIELD(WHOLE, next_task),
    FIELD(REAL, tokens_per_group),
    FIELD(REAL, seconds),
    FIELD(REAL, best_success),
    FIELD(WHOLE, best_step),
    FIELD(REAL, next_eval),
    FIELD(WHOLE, metrics_bytes),
    FIELD(WHOLE, trees_bytes),
    FIELD(BITS, config_hash),
    FIELD(BITS, weights_hash),
    FIELD(TEXT, arithmetic),
    {"optimizer_step", WHOLE, offsetof(saved, optimizer_step)},
};

static void print_field(FILE* f, int i, const saved* state)
{
    const void* at = (const char*)state + fields[i].offset;
    fprintf(f, "%s\n  \"%s\": ", i > 0 ? "," : "", fields[i].name);
    switch (fields[i].kind) {
    case WHOLE:
        fprintf(f, "\"%" PRId64 "\"", *(const int64_t*)at);
        return;
    case BITS:
        fprintf(f, "\"%016" PRIx64 "\"", *(const uint64_t*)at);
        return;
    case REAL:
        if (isfinite(*(const double*)at))
            gr_json_number(f, *(const double*)at);
        else
            fprintf(f, "\"%f\"", *(const double*)at); /* inf, -inf, nan */
        return;
    case TEXT:
        gr_json_text(f, at, strlen(at));
        return;
    }
}

gr_status gr_state_save(const char* folder, const gr_train_state* s, int64_t optimizer_step)
{
    char path[1100], *text = NULL;
    size_t n = 0;
    const saved state = {.s = *s, .optimizer_step = optimizer_step};
    FILE* f = open_memstream(&text, &n);
    GR_ASSERT(f != NULL, "out of memory");
    fputc('{', f);
    for (int i = 0; i < GR_COUNT(fields); i++) print_field(f, i, &state);
    fputs("\n}\n", f);
    bool written = fclose(f) == 0;
    GR_ASSERT(written, "out of memory");
    (void)snprintf(path, sizeof path, "%s/state.json", folder);
    gr_status st = gr_write_file(path, text, n);
    free(text);
    return st;
}

static bool parse_field(int i, const cJSON* item, saved* state)
{
    void* at = (char*)state + fields[i].offset;
    const char* text = cJSON_GetStringValue(item);
    char* end = NULL;
    if (text == NULL) {
        if (fields[i].kind != REAL || !cJSON_IsNumber(item)) return false;
        *(double*)at = item->valuedouble;
        return true;
    }
    switch (fields[i].kind) {
    case WHOLE:
        *(int64_t*)at = strtoll(text, &end, 10);
        break;
    case BITS:
        *(uint64_t*)at = strtoull(text, &end, 16);
        break;
    case REAL:
        *(double*)at = strtod(text, &end);
        break;
    case TEXT:
        (void)snprintf(at, sizeof state->s.arithmetic, "%s", text);
        return true;
    }
    return end != text && *end == 0;
}

/* The JSON object in a file; the caller deletes it. */
static gr_status read_object(const char* path, cJSON** object)
{
    size_t n = 0;
    char* text = malloc(FILE_BYTES);
    GR_ASSERT(text != NULL, "out of memory");
    gr_status st = gr_read_file(path, text, FILE_BYTES, &n);
    if (st == GR_OK) {
        *object = cJSON_Parse(text);
        if (!cJSON_IsObject(*object)) st = GR_FAIL(GR_EDATA, "%s: not a JSON object", path);
    }
    free(text);
    return st;
}

gr_status gr_state_load(const char* folder, gr_train_state* s, int64_t* optimizer_step)
{
    char path[1100];
    cJSON* object = NULL;
    saved state = {0};
    (void)snprintf(path, sizeof path, "%s/state.json", folder);
    gr_status st = read_object(path, &object);
    for (int i = 0; i < GR_COUNT(fields) && st == GR_OK; i++) {
        const cJSON* item = cJSON_GetObjectItemCaseSensitive(object, fields[i].name);
        if (!parse_field(i, item, &state)) {
            st = GR_FAIL(GR_EDATA, "%s: `%s` is missing or no value of its kind", path,
                         fields[i].name);
        }
    }
    cJSON_Delete(object);
    GR_TRY(st);
    *s = state.s;
    *optimizer_step = state.optimizer_step;
    return GR_OK;
}

/* ---- config.json ----------------------------------------------------------------------------- */

gr_status gr_model_config_save(const char* folder, const gr_model_config* m)
{
    char path[1100], *text = NULL;
    size_t n = 0;
    FILE* f = open_memstream(&text, &n);
    GR_ASSERT(f != NULL, "out of memory");
    const char* type = m->qk_norm ? "qwen3" : m->qkv_bias ? "qwen2" : "llama";
    fprintf(f,
            "{\n  \"model_type\": \"%s\",\n  \"num_hidden_layers\": %d,\n  \"hidden_size\": %d,\n"
            "  \"num_attention_heads\": %d,\n  \"num_key_value_heads\": %d,\n  \"head_dim\": %d,\n"
            "  \"intermediate_size\": %d,\n  \"vocab_size\": %d,\n"
            "  \"max_position_embeddings\": %d,\n",
            type, m->layers, m->width, m->heads, m->kv_heads, m->head_dim, m->mlp, m->vocab,
            m->max_context);
    fputs("  \"rope_theta\": ", f);
    gr_json_number(f, m->rope_theta);
    fprintf(f, ",\n  \"rms_norm_eps\": %.9g,\n  \"hidden_act\": \"silu\",\n", (double)m->norm_eps);
    fprintf(f, "  \"qkv_bias\": %s,\n  \"qk_norm\": %s,\n  \"tie_word_embeddings\": %s\n}\n",
            m->qkv_bias ? "true" : "false", m->qk_norm ? "true" : "false",
            m->tied ? "true" : "false");
    bool written = fclose(f) == 0;
    GR_ASSERT(written, "out of memory");
    (void)snprintf(path, sizeof path, "%s/config.json", folder);
    gr_status st = gr_write_file(path, text, n);
    free(text);
    return st;
}

typedef struct reader {
    const char* path;
    const cJSON* object;
    gr_status st; /* of the first key that failed */
} reader;

/* The value of a key, NULL where it is absent or null. */
static const cJSON* value(const reader* r, const char* key)
{
    const cJSON* item = cJSON_GetObjectItemCaseSensitive(r->object, key);
    return cJSON_IsNull(item) ? NULL : item;
}

/* fallback < 0: the key must be there. */
static int whole(reader* r, const char* key, int fallback)
{
    const cJSON* item = value(r, key);
    if (item == NULL && fallback >= 0) return fallback;
    double x = cJSON_IsNumber(item) ? item->valuedouble : 0;
    if (r->st == GR_OK && !(x >= 1 && x <= INT_MAX && x == floor(x))) {
        r->st = GR_FAIL(GR_EDATA, "%s: `%s` is missing or no whole number above 0", r->path, key);
    }
    return r->st == GR_OK ? (int)x : 1;
}

static double real(reader* r, const char* key, double fallback)
{
    const cJSON* item = value(r, key);
    if (item == NULL) return fallback;
    double x = cJSON_IsNumber(item) ? item->valuedouble : 0;
    if (r->st == GR_OK && !(x > 0 && isfinite(x))) {
        r->st = GR_FAIL(GR_EDATA, "%s: `%s` is no number above 0", r->path, key);
    }
    return x;
}

static bool flag(const reader* r, const char* key, bool fallback)
{
    const cJSON* item = value(r, key);
    return cJSON_IsBool(item) ? cJSON_IsTrue(item) : fallback;
}

/* What this program does not compute must not be loaded as if it did. */
static gr_status check_supported(const reader* r, const char* type)
{
    if (strcmp(type, "llama") != 0 && strcmp(type, "qwen2") != 0 && strcmp(type, "qwen3") != 0) {
        return GR_FAIL(GR_EDATA, "%s: model_type `%s` is none of llama, qwen2, qwen3", r->path,
                       type);
    }
    const char* act = cJSON_GetStringValue(value(r, "hidden_act"));
    if (act != NULL && strcmp(act, "silu") != 0) {
        return GR_FAIL(GR_EDATA, "%s: hidden_act `%s` is not silu", r->path, act);
    }
    static const char* const off[] = {"attention_bias", "mlp_bias", "use_sliding_window"};
    for (int i = 0; i < GR_COUNT(off); i++) {
        if (flag(r, off[i], false)) {
            return GR_FAIL(GR_EDATA, "%s: `%s` is not supported", r->path, off[i]);
        }
    }
    const cJSON* scaling = value(r, "rope_scaling");
    if (scaling == NULL) scaling = value(r, "rope_parameters");
    const char* rope = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(scaling, "rope_type"));
    if (value(r, "rope_scaling") != NULL || (rope != NULL && strcmp(rope, "default") != 0)) {
        return GR_FAIL(GR_EDATA, "%s: scaled rotary positions are not supported", r->path);
    }
    return GR_OK;
}

static gr_status read_model(reader* r, gr_model_config* m)
{
    const char* type = cJSON_GetStringValue(value(r, "model_type"));
    if (type == NULL) return GR_FAIL(GR_EDATA, "%s: `model_type` is missing", r->path);
    GR_TRY(check_supported(r, type));
    *m = (gr_model_config){
        .layers = whole(r, "num_hidden_layers", -1),
        .width = whole(r, "hidden_size", -1),
        .heads = whole(r, "num_attention_heads", -1),
        .mlp = whole(r, "intermediate_size", -1),
        .vocab = whole(r, "vocab_size", -1),
        .max_context = whole(r, "max_position_embeddings", -1),
        .norm_eps = (float)real(r, "rms_norm_eps", 1e-6),
        .qkv_bias = flag(r, "qkv_bias", strcmp(type, "qwen2") == 0),
        .qk_norm = flag(r, "qk_norm", strcmp(type, "qwen3") == 0),
        .tied = flag(r, "tie_word_embeddings", false),
    };
    m->kv_heads = whole(r, "num_key_value_heads", m->heads);
    m->head_dim = whole(r, "head_dim", m->width / m->heads);
    reader nested = *r; /* newer files keep the base there */
    if (value(r, "rope_parameters") != NULL) nested.object = value(r, "rope_parameters");
    m->rope_theta = real(&nested, "rope_theta", 10000);
    if (r->st == GR_OK) r->st = nested.st;
    GR_TRY(r->st);
    if (m->heads % m->kv_heads != 0 || m->head_dim % 2 != 0) {
        return GR_FAIL(GR_EDATA, "%s: %d heads of %d over %d do not fit together", r->path,
                       m->heads, m->head_dim, m->kv_heads);
    }
    return GR_OK;
}

gr_status gr_model_config_load(const char* dir, gr_model_config* out)
{
    char path[1100];
    cJSON* object = NULL;
    gr_model_config m;
    (void)snprintf(path, sizeof path, "%s/config.json", dir);
    gr_status st = read_object(path, &object);
    reader r = {.path = path, .object = object};
    if (st == GR_OK) st = read_model(&r, &m);
    cJSON_Delete(object);
    if (st == GR_OK) *out = m;
    return st;
}
