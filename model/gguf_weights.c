/* gguf_weights.c - shape and weights of the families as GGUF files carry them.
 *
 * Names differ from Hugging Face's (table below), and so does one thing more: files of the llama
 * family turn neighbouring elements of a head into rotary pairs, (2i, 2i + 1), where the models and
 * this program pair (i, i + d/2). Rows of their q and k projections therefore stand in that order and
 * are put back here; qwen's are not touched. Llama 3's stretched wavelengths are a tensor of
 * divisors, `rope_freqs.weight`, of which only the largest, the factor, is not known before. */
#include "model/gguf_weights.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/safetensors.h"

#define CHUNK 4096 /* elements converted at a time: whole blocks of any type */

/* ---- shape ----------------------------------------------------------------------------------- */

typedef struct reader {
    const gr_gguf* g;
    char family[16];
    gr_status st; /* of the first key that failed */
} reader;

typedef char key_text[96];
static const char* full_key(const reader* r, const char* name, key_text key)
{
    (void)snprintf(key, sizeof(key_text), "%s.%s", r->family, name);
    return key;
}

/* fallback < 0: the key must be there. */
static int whole(reader* r, const char* name, int fallback)
{
    key_text key;
    int64_t x = 0;
    const gr_gguf_value* v = gr_gguf_find(r->g, full_key(r, name, key));
    if (v == NULL && fallback >= 0) return fallback;
    bool good = v != NULL && !v->is_array && gr_gguf_whole(v, 0, &x) && x >= 1 && x <= INT_MAX;
    if (r->st == GR_OK && !good) {
        r->st =
            GR_FAIL(GR_EDATA, "%s: `%s` is missing or no whole number above 0", r->g->path, key);
    }
    return r->st == GR_OK ? (int)x : 1;
}

/* fallback 0: the key must be there. */
static double real(reader* r, const char* name, double fallback)
{
    key_text key;
    double x = 0;
    const gr_gguf_value* v = gr_gguf_find(r->g, full_key(r, name, key));
    if (v == NULL && fallback > 0) return fallback;
    bool good = v != NULL && !v->is_array && gr_gguf_real(v, 0, &x) && x > 0 && isfinite(x);
    if (r->st == GR_OK && !good) {
        r->st = GR_FAIL(GR_EDATA, "%s: `%s` is missing or no number above 0", r->g->path, key);
    }
    return r->st == GR_OK ? x : 1;
}

static gr_status find_family(reader* r)
{
    static const char* const known[] = {"llama", "qwen2", "qwen3"};
    const gr_gguf_value* v = gr_gguf_find(r->g, "general.architecture");
    if (v == NULL || v->type != GR_GGUF_TEXT || v->is_array) {
        return GR_FAIL(GR_EDATA, "%s: `general.architecture` is missing", r->g->path);
    }
    const gr_gguf_text name = gr_gguf_text_at(v);
    for (int i = 0; i < GR_COUNT(known); i++) {
        if (gr_gguf_is(name, known[i])) (void)snprintf(r->family, sizeof r->family, "%s", known[i]);
    }
    if (r->family[0] != 0) return GR_OK;
    return GR_FAIL(GR_EDATA, "%s: `general.architecture` is none of llama, qwen2, qwen3",
                   r->g->path);
}

/* Keys of the family that say what is read below, or that may say what changes nothing. */
static const struct {
    const char* name;
    enum { READ, ONLY_ZERO, ONLY_NONE, ONLY_TRUE, IGNORED } rule;
} keys[] = {
    {"block_count", READ},
    {"context_length", READ},
    {"embedding_length", READ},
    {"feed_forward_length", READ},
    {"vocab_size", READ},
    {"attention.head_count", READ},
    {"attention.head_count_kv", READ},
    {"attention.key_length", READ},
    {"attention.value_length", READ},
    {"attention.layer_norm_rms_epsilon", READ},
    {"rope.dimension_count", READ},
    {"rope.freq_base", READ},
    {"rope.scaling.original_context_length", READ},
    {"attention.sliding_window", READ},
    {"attention.causal", ONLY_TRUE},
    {"rope.scaling.type", ONLY_NONE},
    {"expert_count", ONLY_ZERO},
    {"expert_used_count", ONLY_ZERO},
    {"tensor_data_layout", IGNORED}, /* a remark on the order of rows, which the family decides */
};

static bool allowed(const gr_gguf_value* v, int rule)
{
    int64_t x = -1;
    switch (rule) {
    case ONLY_ZERO:
        return gr_gguf_whole(v, 0, &x) && x == 0;
    case ONLY_TRUE:
        return gr_gguf_whole(v, 0, &x) && x == 1;
    case ONLY_NONE:
        return v->type == GR_GGUF_TEXT && !v->is_array && gr_gguf_is(gr_gguf_text_at(v), "none");
    default:
        return true;
    }
}

static gr_status check_keys(const reader* r)
{
    size_t skip = strlen(r->family) + 1;
    for (int i = 0; i < r->g->n_values; i++) {
        const gr_gguf_value* v = &r->g->value[i];
        if (v->key.n <= (int64_t)skip || memcmp(v->key.at, r->family, skip - 1) != 0 ||
            v->key.at[skip - 1] != '.') {
            continue;
        }
        gr_gguf_text name = {v->key.at + skip, v->key.n - (int64_t)skip};
        int k = 0;
        while (k < GR_COUNT(keys) && !gr_gguf_is(name, keys[k].name)) k++;
        if (k < GR_COUNT(keys) && allowed(v, (int)keys[k].rule)) continue;
        return GR_FAIL(GR_EDATA, "%s: `%.*s` is not supported", r->g->path, (int)v->key.n,
                       v->key.at);
    }
    return GR_OK;
}

/* Divisors of the angular speeds as Llama 3 makes them, to 1e-5; its published models all have low =
 * 1, high = 4 and 8192 tokens, which files do not repeat. */
static gr_status read_scaling(reader* r, gr_model_config* m)
{
    const gr_gguf_tensor* t = gr_gguf_find_tensor(r->g, "rope_freqs.weight");
    float divisor[GR_QUANT_MAX * 2];
    if (t == NULL) return GR_OK;
    int n = m->head_dim / 2;
    if (t->type != GR_QUANT_F32 || t->n != n || n > GR_COUNT(divisor)) {
        return GR_FAIL(GR_EDATA, "%s: tensor `rope_freqs.weight` has no %d numbers", r->g->path, n);
    }
    gr_quant_read(divisor, t->type, t->data, n);
    gr_rope_scaling s = {.low = 1, .high = 4};
    s.original = whole(r, "rope.scaling.original_context_length", 8192);
    for (int i = 0; i < n; i++) s.factor = fmax(s.factor, (double)divisor[i]);
    for (int i = 0; i < n; i++) {
        double speed = pow(m->rope_theta, -2.0 * i / m->head_dim);
        double got = gr_rope_scaled(&s, speed) * (double)divisor[i] / speed;
        if (s.factor >= 1 && isfinite(s.factor) && fabs(got - 1) <= 1e-5) continue;
        return GR_FAIL(GR_EDATA,
                       "%s: tensor `rope_freqs.weight` is not Llama 3's scaling of %d tokens",
                       r->g->path, s.original);
    }
    if (s.factor > 1) m->rope_scaling = s;
    return r->st;
}

/* The vocabulary is as large as the embedding; whatever else speaks of it must agree. */
static gr_status read_vocab_size(reader* r, gr_model_config* m)
{
    const gr_gguf* g = r->g;
    const gr_gguf_tensor* embed = gr_gguf_find_tensor(g, "token_embd.weight");
    const gr_gguf_value* tokens = gr_gguf_find(g, "tokenizer.ggml.tokens");
    if (embed == NULL || embed->n_dims != 2 || embed->shape[0] > INT_MAX) {
        return GR_FAIL(GR_EDATA, "%s: tensor `token_embd.weight` is missing or no matrix", g->path);
    }
    m->vocab = (int)embed->shape[0];
    int said = whole(r, "vocab_size", m->vocab);
    int64_t listed = tokens != NULL ? tokens->count : m->vocab;
    GR_TRY(r->st);
    if (said == m->vocab && listed == m->vocab) return GR_OK;
    return GR_FAIL(GR_EDATA,
                   "%s: a vocabulary of %lld tokens beside an embedding of %d rows (`%s`)", g->path,
                   listed != m->vocab ? (long long)listed : (long long)said, m->vocab,
                   listed != m->vocab ? "tokenizer.ggml.tokens" : "vocab_size");
}

static gr_status check_heads(reader* r, const gr_model_config* m)
{
    int turned = whole(r, "rope.dimension_count", m->head_dim);
    int value = whole(r, "attention.value_length", m->head_dim);
    int window = whole(r, "attention.sliding_window", m->max_context);
    GR_TRY(r->st);
    if (value != m->head_dim) {
        return GR_FAIL(GR_EDATA,
                       "%s: `%s.attention.value_length` is not supported beside keys of %d",
                       r->g->path, r->family, m->head_dim);
    }
    if (turned != m->head_dim) {
        return GR_FAIL(GR_EDATA, "%s: `%s.rope.dimension_count` is not supported below %d",
                       r->g->path, r->family, m->head_dim);
    }
    if (window < m->max_context) {
        return GR_FAIL(GR_EDATA, "%s: `%s.attention.sliding_window` is not supported", r->g->path,
                       r->family);
    }
    return GR_OK;
}

gr_status gr_gguf_config(const gr_gguf* g, gr_model_config* out)
{
    reader r = {.g = g};
    GR_TRY(find_family(&r));
    GR_TRY(check_keys(&r));
    gr_model_config m = {
        .layers = whole(&r, "block_count", -1),
        .width = whole(&r, "embedding_length", -1),
        .heads = whole(&r, "attention.head_count", -1),
        .mlp = whole(&r, "feed_forward_length", -1),
        .max_context = whole(&r, "context_length", -1),
        .rope_theta = real(&r, "rope.freq_base", 10000),
        .norm_eps = (float)real(&r, "attention.layer_norm_rms_epsilon", 0),
        .qkv_bias = strcmp(r.family, "qwen2") == 0,
        .qk_norm = strcmp(r.family, "qwen3") == 0,
        .tied = gr_gguf_find_tensor(g, "output.weight") == NULL,
    };
    m.kv_heads = whole(&r, "attention.head_count_kv", m.heads);
    m.head_dim = whole(&r, "attention.key_length", m.width / m.heads);
    GR_TRY(r.st);
    GR_TRY(read_vocab_size(&r, &m));
    GR_TRY(gr_model_config_check(&m, g->path));
    GR_TRY(check_heads(&r, &m));
    GR_TRY(read_scaling(&r, &m));
    *out = m;
    return GR_OK;
}

/* ---- names ----------------------------------------------------------------------------------- */

static const struct {
    const char *ours, *theirs;
} names[] = {
    {"model.embed_tokens.weight", "token_embd.weight"},
    {"model.norm.weight", "output_norm.weight"},
    {"lm_head.weight", "output.weight"},
    /* in a layer */
    {"input_layernorm.", "attn_norm."},
    {"self_attn.q_proj.", "attn_q."},
    {"self_attn.k_proj.", "attn_k."},
    {"self_attn.v_proj.", "attn_v."},
    {"self_attn.o_proj.", "attn_output."},
    {"self_attn.q_norm.", "attn_q_norm."},
    {"self_attn.k_norm.", "attn_k_norm."},
    {"post_attention_layernorm.", "ffn_norm."},
    {"mlp.gate_proj.", "ffn_gate."},
    {"mlp.up_proj.", "ffn_up."},
    {"mlp.down_proj.", "ffn_down."},
};

/* `model.layers.7.mlp.up_proj.weight` -> `blk.7.ffn_up.weight` */
static void their_name(const char* ours, char out[96])
{
    int layer = -1, skip = 0;
    (void)sscanf(ours, "model.layers.%d.%n", &layer, &skip);
    for (int i = 0; i < GR_COUNT(names); i++) {
        size_t n = strlen(names[i].ours);
        if (strncmp(ours + skip, names[i].ours, n) != 0) continue;
        if (layer < 0) {
            (void)snprintf(out, 96, "%s", names[i].theirs);
        } else {
            (void)snprintf(out, 96, "blk.%d.%s%s", layer, names[i].theirs, ours + skip + n);
        }
        return;
    }
    GR_ASSERT(false, "%s has no name in GGUF files", ours);
}

/* ---- weights --------------------------------------------------------------------------------- */

typedef struct loader {
    gr_weights* w;
    const gr_gguf* g;
    gr_safetensors_entry* entry;
    const gr_gguf_tensor** from; /* (n) NULL: not read */
    int n;
    bool paired; /* rotary pairs are neighbours */
} loader;

static int64_t rows_of(const gr_safetensors_entry* e) { return e->n_dims == 2 ? e->shape[0] : 1; }
static int64_t cols_of(const gr_safetensors_entry* e) { return e->shape[e->n_dims - 1]; }

static gr_status check_shape(const gr_gguf* g, const gr_gguf_tensor* t,
                             const gr_safetensors_entry* e)
{
    bool same = t->n_dims == e->n_dims && t->shape[0] == e->shape[0] &&
                (e->n_dims == 1 || t->shape[1] == e->shape[1]);
    if (same) return GR_OK;
    return GR_FAIL(GR_EDATA, "%s: tensor `%.*s`: %lld x %lld where %lld x %lld are expected",
                   g->path, (int)t->name.n, t->name.at, (long long)(t->n / cols_of(e)),
                   (long long)t->shape[t->n_dims - 1], (long long)rows_of(e),
                   (long long)cols_of(e));
}

/* Elements [first, first + n) of a row, first a multiple of CHUNK. */
static void read_piece(float out[CHUNK], const gr_gguf_tensor* t, int64_t row, int64_t first,
                       int64_t n)
{
    int64_t at = row * t->shape[t->n_dims - 1] + first;
    gr_quant_read(out, t->type, t->data + at / gr_quant_elements(t->type) * gr_quant_bytes(t->type),
                  n);
}

static gr_status check_finite(const gr_gguf* g, const gr_gguf_tensor* t)
{
    float piece[CHUNK];
    for (int64_t i = 0; i < t->n; i += CHUNK) {
        int64_t n = GR_MIN(CHUNK, t->n - i);
        read_piece(piece, t, 0, i, n);
        for (int64_t j = 0; j < n; j++) {
            if (isfinite(piece[j])) continue;
            return GR_FAIL(GR_EDATA, "%s: tensor `%.*s`: element %lld is not finite", g->path,
                           (int)t->name.n, t->name.at, (long long)(i + j));
        }
    }
    return GR_OK;
}

/* Every tensor must have been asked for; the divisors are part of the shape. */
static gr_status check_all_taken(const loader* l, const bool* taken)
{
    for (int k = 0; k < l->g->n_tensors; k++) {
        gr_gguf_text name = l->g->tensor[k].name;
        if (taken[k] || gr_gguf_is(name, "rope_freqs.weight")) continue;
        return GR_FAIL(GR_EDATA, "%s: tensor `%.*s` is not expected here", l->g->path, (int)name.n,
                       name.at);
    }
    return GR_OK;
}

/* Pairs entries with tensors and checks these. */
static gr_status match(loader* l, bool* taken)
{
    for (int i = 0; i < l->n; i++) {
        char name[96];
        their_name(l->entry[i].name, name);
        const gr_gguf_tensor* t = gr_gguf_find_tensor(l->g, name);
        if (t != NULL) taken[t - l->g->tensor] = true;
        if (l->entry[i].data == NULL) continue;
        if (t == NULL) return GR_FAIL(GR_EDATA, "%s: tensor `%s` is missing", l->g->path, name);
        GR_TRY(check_shape(l->g, t, &l->entry[i]));
        GR_TRY(check_finite(l->g, t));
        l->from[i] = t;
    }
    return check_all_taken(l, taken);
}

/* Where row `row` of a projection to heads lies in the file. */
static int64_t row_in_file(const loader* l, const gr_safetensors_entry* e, int64_t row)
{
    bool turned =
        strstr(e->name, "q_proj.weight") != NULL || strstr(e->name, "k_proj.weight") != NULL;
    if (!l->paired || !turned) return row;
    int d = l->w->config.head_dim;
    int64_t in_head = row % d;
    return row - in_head + in_head % (d / 2) * 2 + in_head / (d / 2);
}

static void fill(const loader* l, const gr_safetensors_entry* e, const gr_gguf_tensor* t)
{
    gr_dev* dev = l->w->dev;
    float piece[CHUNK];
    double wide[CHUNK];
    int64_t cols = cols_of(e);
    for (int64_t row = 0; row < rows_of(e); row++) {
        for (int64_t i = 0; i < cols; i += CHUNK) {
            int64_t n = GR_MIN(CHUNK, cols - i);
            read_piece(piece, t, row_in_file(l, e, row), i, n);
            for (int64_t k = 0; k < n; k++) wide[k] = (double)piece[k];
            gr_dev_write_acc(dev, gr_acc_at(dev, e->data, row * cols + i), wide, n);
        }
    }
}

gr_status gr_gguf_load(gr_weights* w, const gr_gguf* g)
{
    reader r = {.g = g};
    GR_TRY(find_family(&r));
    loader l = {.w = w, .g = g, .paired = strcmp(r.family, "llama") == 0};
    l.n = gr_weights_entries(w, w->master, "", NULL);
    l.entry = malloc((size_t)l.n * sizeof *l.entry);
    l.from = calloc((size_t)l.n, sizeof *l.from);
    bool* taken = calloc((size_t)g->n_tensors + 1, sizeof *taken);
    GR_ASSERT(l.entry != NULL && l.from != NULL && taken != NULL, "out of memory");
    gr_weights_entries(w, w->master, "", l.entry);
    gr_status st = match(&l, taken);
    for (int i = 0; i < l.n && st == GR_OK; i++) {
        if (l.from[i] != NULL) fill(&l, &l.entry[i], l.from[i]);
    }
    free(taken);
    free(l.from);
    free(l.entry);
    if (st != GR_OK) return st;
    gr_weights_publish(w);
    return gr_dev_sync(w->dev);
}
