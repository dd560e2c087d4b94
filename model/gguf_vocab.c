/* gguf_vocab.c - the vocabulary of a GGUF file as arrays. */
#include <stdlib.h>
#include <string.h>

#include "model/gguf.h"

#define MAX_TOKENS (1 << 24)

static const gr_gguf_value* find(const gr_gguf* g, const char* key, gr_gguf_type type,
                                 bool is_array)
{
    const gr_gguf_value* v = gr_gguf_find(g, key);
    return v != NULL && v->type == type && v->is_array == is_array ? v : NULL;
}

/* All texts of a list; their lengths were checked at opening. */
static void list_texts(gr_gguf_text* out, const gr_gguf_value* v)
{
    const unsigned char* at = v->at;
    for (int64_t i = 0; i < v->count; i++) {
        uint64_t n = 0;
        memcpy(&n, at, sizeof n);
        out[i] = (gr_gguf_text){(const char*)at + sizeof n, (int64_t)n};
        at += sizeof n + n;
    }
}

static gr_gguf_text text(const gr_gguf* g, const char* key)
{
    return gr_gguf_text_at(find(g, key, GR_GGUF_TEXT, false));
}

/* 1, 0, or `fallback` where the file does not say. */
static int flag(const gr_gguf* g, const char* key, int fallback)
{
    int64_t x = -1;
    const gr_gguf_value* v = find(g, key, GR_GGUF_BOOL, false);
    return gr_gguf_whole(v, 0, &x) ? (int)x : fallback;
}

static gr_status read_texts(const gr_gguf* g, const char* key, gr_gguf_text** out, int* n)
{
    const gr_gguf_value* v = gr_gguf_find(g, key);
    if (v == NULL) return GR_OK;
    if (v->type != GR_GGUF_TEXT || !v->is_array || v->count > MAX_TOKENS) {
        return GR_FAIL(GR_EDATA, "%s: `%s` is no list of texts", g->path, key);
    }
    *out = malloc(((size_t)v->count + 1) * sizeof **out);
    GR_ASSERT(*out != NULL, "out of memory");
    *n = (int)v->count;
    list_texts(*out, v);
    return GR_OK;
}

/* A number for every token, of the given type. */
static gr_status read_numbers(const gr_gguf* g, const char* key, gr_gguf_type type, int n,
                              void** out)
{
    const gr_gguf_value* v = gr_gguf_find(g, key);
    if (v == NULL) return GR_OK;
    if (v->type != type || !v->is_array || v->count != n) {
        return GR_FAIL(GR_EDATA, "%s: `%s` is no list of %d numbers, one for each token", g->path,
                       key, n);
    }
    *out = malloc((size_t)n * 4 + 4);
    GR_ASSERT(*out != NULL, "out of memory");
    memcpy(*out, v->at, (size_t)n * 4);
    return GR_OK;
}

static gr_status read_kinds(gr_gguf_vocab* v, const gr_gguf* g)
{
    static const char key[] = "tokenizer.ggml.token_type";
    void* kind = NULL;
    GR_TRY(read_numbers(g, key, GR_GGUF_I32, v->n_tokens, &kind));
    if (kind == NULL) return GR_FAIL(GR_EDATA, "%s: `%s` is missing", g->path, key);
    v->kind = kind;
    for (int i = 0; i < v->n_tokens; i++) {
        if (v->kind[i] >= GR_TOKEN_NORMAL && v->kind[i] <= GR_TOKEN_BYTE) continue;
        return GR_FAIL(GR_EDATA, "%s: `%s`: token %d has no known kind: %d", g->path, key, i,
                       v->kind[i]);
    }
    return GR_OK;
}

static gr_status read_id(const gr_gguf_vocab* v, const gr_gguf* g, const char* key, int* id)
{
    int64_t x = -1;
    const gr_gguf_value* value = gr_gguf_find(g, key);
    *id = -1;
    if (value == NULL) return GR_OK;
    if (value->is_array || !gr_gguf_whole(value, 0, &x) || x < 0 || x >= v->n_tokens) {
        return GR_FAIL(GR_EDATA, "%s: `%s` is none of %d tokens", g->path, key, v->n_tokens);
    }
    *id = (int)x;
    return GR_OK;
}

static gr_status read_ids(gr_gguf_vocab* v, const gr_gguf* g)
{
    GR_TRY(read_id(v, g, "tokenizer.ggml.bos_token_id", &v->bos));
    GR_TRY(read_id(v, g, "tokenizer.ggml.eos_token_id", &v->eos));
    GR_TRY(read_id(v, g, "tokenizer.ggml.unknown_token_id", &v->unknown));
    return read_id(v, g, "tokenizer.ggml.padding_token_id", &v->pad);
}

static gr_status read_vocab(gr_gguf_vocab* v, const gr_gguf* g)
{
    void* score = NULL;
    v->model = text(g, "tokenizer.ggml.model");
    v->pre = text(g, "tokenizer.ggml.pre");
    v->chat_template = text(g, "tokenizer.chat_template");
    GR_TRY(read_texts(g, "tokenizer.ggml.tokens", &v->token, &v->n_tokens));
    if (v->model.n == 0 || v->n_tokens == 0) {
        return GR_FAIL(GR_EDATA, "%s: no vocabulary: `tokenizer.ggml.%s` is missing", g->path,
                       v->model.n == 0 ? "model" : "tokens");
    }
    GR_TRY(read_kinds(v, g));
    GR_TRY(read_numbers(g, "tokenizer.ggml.scores", GR_GGUF_F32, v->n_tokens, &score));
    v->score = score;
    GR_TRY(read_texts(g, "tokenizer.ggml.merges", &v->merge, &v->n_merges));
    GR_TRY(read_ids(v, g));
    bool pieces = gr_gguf_is(v->model, "llama");
    bool begins = pieces || gr_gguf_is(v->pre, "llama-bpe");
    v->add_bos = flag(g, "tokenizer.ggml.add_bos_token", begins) != 0 && v->bos >= 0;
    v->add_eos = flag(g, "tokenizer.ggml.add_eos_token", -1);
    v->add_space_prefix = flag(g, "tokenizer.ggml.add_space_prefix", pieces) != 0;
    return GR_OK;
}

gr_status gr_gguf_vocab_open(gr_gguf_vocab* v, const gr_gguf* g)
{
    *v = (gr_gguf_vocab){0};
    gr_status st = read_vocab(v, g);
    if (st != GR_OK) gr_gguf_vocab_close(v);
    return st;
}

void gr_gguf_vocab_close(gr_gguf_vocab* v)
{
    free(v->token);
    free(v->kind);
    free(v->score);
    free(v->merge);
    *v = (gr_gguf_vocab){0};
}
