/* model_config.c - config.json of a model folder: its shape in the words of the Hugging Face libraries.
 *
 * What this program does not compute must not be loaded as if it did: a key that asks for more is an
 * error that names it. Keys that change nothing here (token ids, dtype, caches) are passed over. */
#include <cjson/cJSON.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "host/checkpoint_parts.h"
#include "host/durable.h"
#include "host/json.h"
#include "model/gguf_weights.h"

/* ---- reading --------------------------------------------------------------------------------- */

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

/* fallback 0: the key must be there. */
static double real(reader* r, const char* key, double fallback)
{
    const cJSON* item = value(r, key);
    if (item == NULL && fallback > 0) return fallback;
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
    static const char* const off[] = {"attention_bias", "mlp_bias", "use_sliding_window",
                                      "rope_interleaved"};
    for (int i = 0; i < GR_COUNT(off); i++) {
        if (flag(r, off[i], false)) {
            return GR_FAIL(GR_EDATA, "%s: `%s` is not supported", r->path, off[i]);
        }
    }
    if (value(r, "quantization_config") != NULL) {
        return GR_FAIL(GR_EDATA, "%s: `quantization_config` is not supported", r->path);
    }
    if (flag(r, "partial_rotary_factor", false) ||
        (cJSON_IsNumber(value(r, "partial_rotary_factor")) &&
         value(r, "partial_rotary_factor")->valuedouble != 1)) {
        return GR_FAIL(GR_EDATA, "%s: `partial_rotary_factor` is not supported", r->path);
    }
    const cJSON* kind = NULL;
    cJSON_ArrayForEach(kind, value(r, "layer_types"))
    {
        if (cJSON_IsString(kind) && strcmp(kind->valuestring, "full_attention") == 0) continue;
        return GR_FAIL(GR_EDATA, "%s: `layer_types`: only full_attention is supported", r->path);
    }
    return GR_OK;
}

/* Rotary positions: newer files keep all about them in rope_parameters, older ones the base outside. */
static gr_status read_rope(reader* r, gr_model_config* m)
{
    const char* section = value(r, "rope_parameters") != NULL ? "rope_parameters" : "rope_scaling";
    reader s = {.path = r->path, .object = value(r, section)};
    m->rope_theta = real(r, "rope_theta", 10000);
    if (s.object == NULL) return r->st;
    m->rope_theta = real(&s, "rope_theta", m->rope_theta);
    const char* type = cJSON_GetStringValue(value(&s, "rope_type"));
    if (type == NULL) type = cJSON_GetStringValue(value(&s, "type"));
    if (type == NULL || strcmp(type, "default") == 0) return s.st;
    if (strcmp(type, "llama3") != 0) {
        return GR_FAIL(GR_EDATA, "%s: `%s` of type `%s` is not supported", r->path, section, type);
    }
    m->rope_scaling = (gr_rope_scaling){
        .factor = real(&s, "factor", 0),
        .low = real(&s, "low_freq_factor", 0),
        .high = real(&s, "high_freq_factor", 0),
        .original = whole(&s, "original_max_position_embeddings", -1),
    };
    if (s.st == GR_OK && !(m->rope_scaling.low < m->rope_scaling.high)) {
        return GR_FAIL(GR_EDATA, "%s: `%s`: low_freq_factor is not below high_freq_factor", r->path,
                       section);
    }
    return s.st;
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
    GR_TRY(r->st);
    GR_TRY(read_rope(r, m));
    return gr_model_config_check(m, r->path);
}

static gr_status load_gguf(const char* path, gr_model_config* out)
{
    gr_gguf g;
    GR_TRY(gr_gguf_open(&g, path));
    gr_status st = gr_gguf_config(&g, out);
    gr_gguf_close(&g);
    return st;
}

gr_status gr_model_config_load(const char* dir, gr_model_config* out)
{
    char path[1100];
    GR_TRY(gr_folder_gguf(dir, path, sizeof path));
    if (path[0] != 0) return load_gguf(path, out);
    cJSON* object = NULL;
    gr_model_config m;
    (void)snprintf(path, sizeof path, "%s/config.json", dir);
    gr_status st = gr_json_read(path, &object);
    reader r = {.path = path, .object = object};
    if (st == GR_OK) st = read_model(&r, &m);
    cJSON_Delete(object);
    if (st == GR_OK) *out = m;
    return st;
}

/* ---- writing --------------------------------------------------------------------------------- */

static void set(cJSON* object, const char* key, cJSON* item)
{
    cJSON_DeleteItemFromObjectCaseSensitive(object, key);
    cJSON_AddItemToObject(object, key, item);
}

/* cJSON's own numbers lose the last bits; these read back to the double, or to the float. */
static cJSON* exact(double x)
{
    char text[32];
    for (int digits = 15; digits <= 17; digits++) {
        (void)snprintf(text, sizeof text, "%.*g", digits, x);
        if (strtod(text, NULL) == x) break;
    }
    return cJSON_CreateRaw(text);
}
static cJSON* exact_float(float x)
{
    char text[32];
    for (int digits = 1; digits <= 9; digits++) {
        (void)snprintf(text, sizeof text, "%.*g", digits, (double)x);
        if (strtof(text, NULL) == x) break;
    }
    return cJSON_CreateRaw(text);
}

static void describe(cJSON* o, const gr_model_config* m)
{
    static const char* const types[] = {"llama", "qwen2", "qwen3"};
    static const char* const classes[] = {"LlamaForCausalLM", "Qwen2ForCausalLM",
                                          "Qwen3ForCausalLM"};
    int family = m->qk_norm ? 2 : m->qkv_bias ? 1 : 0;
    const char* architecture[] = {classes[family]};
    set(o, "architectures", cJSON_CreateStringArray(architecture, 1));
    set(o, "model_type", cJSON_CreateString(types[family]));
    set(o, "num_hidden_layers", cJSON_CreateNumber(m->layers));
    set(o, "hidden_size", cJSON_CreateNumber(m->width));
    set(o, "num_attention_heads", cJSON_CreateNumber(m->heads));
    set(o, "num_key_value_heads", cJSON_CreateNumber(m->kv_heads));
    set(o, "head_dim", cJSON_CreateNumber(m->head_dim));
    set(o, "intermediate_size", cJSON_CreateNumber(m->mlp));
    set(o, "vocab_size", cJSON_CreateNumber(m->vocab));
    set(o, "max_position_embeddings", cJSON_CreateNumber(m->max_context));
    set(o, "rope_theta", exact(m->rope_theta));
    if (m->rope_scaling.factor != 0) {
        cJSON* s = cJSON_CreateObject();
        cJSON_AddStringToObject(s, "rope_type", "llama3");
        set(s, "factor", exact(m->rope_scaling.factor));
        set(s, "low_freq_factor", exact(m->rope_scaling.low));
        set(s, "high_freq_factor", exact(m->rope_scaling.high));
        cJSON_AddNumberToObject(s, "original_max_position_embeddings", m->rope_scaling.original);
        set(o, "rope_scaling", s);
    }
    set(o, "rms_norm_eps", exact_float(m->norm_eps));
    set(o, "hidden_act", cJSON_CreateString("silu"));
    set(o, "qkv_bias", cJSON_CreateBool(m->qkv_bias));
    set(o, "qk_norm", cJSON_CreateBool(m->qk_norm));
    set(o, "tie_word_embeddings", cJSON_CreateBool(m->tied));
}

static gr_status write_object(const char* folder, const cJSON* object)
{
    char path[1100];
    (void)snprintf(path, sizeof path, "%s/config.json", folder);
    char* text = cJSON_Print(object);
    GR_ASSERT(text != NULL, "out of memory");
    gr_status st = gr_write_file(path, text, strlen(text));
    free(text);
    return st;
}

gr_status gr_model_config_save(const char* folder, const gr_model_config* m)
{
    cJSON* o = cJSON_CreateObject();
    describe(o, m);
    gr_status st = write_object(folder, o);
    cJSON_Delete(o);
    return st;
}

gr_status gr_model_config_export(const char* folder, const gr_model_config* m, const char* dtype,
                                 const char* source)
{
    cJSON* o = NULL;
    if (source == NULL) {
        if (m->qk_norm && m->qkv_bias) {
            return GR_FAIL(GR_EARG, "export: no published family has both model.qk_norm and "
                                    "model.qkv_bias");
        }
        o = cJSON_CreateObject();
        describe(o, m);
        cJSON_DeleteItemFromObjectCaseSensitive(o, "qkv_bias"); /* follows from model_type */
        cJSON_DeleteItemFromObjectCaseSensitive(o, "qk_norm");
    } else {
        char path[1100];
        (void)snprintf(path, sizeof path, "%s/config.json", source);
        GR_TRY(gr_json_read(path, &o));
    }
    cJSON_DeleteItemFromObjectCaseSensitive(o, "dtype"); /* the newer name of the same */
    set(o, "torch_dtype", cJSON_CreateString(dtype));
    gr_status st = write_object(folder, o);
    cJSON_Delete(o);
    return st;
}
