/* arrays.c - the vocabulary inside a GGUF file, which its writer took from tokenizer.json or
 * from a SentencePiece model.
 *
 * The file names its pre-tokenizer instead of holding it. SentencePiece has no list of
 * merges: any two tokens that make a third may merge, those of the highest score first. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/tokenizer/parts.h"

/* tokenizer.ggml.token_type */
enum { TYPE_NORMAL = 1, TYPE_UNKNOWN, TYPE_CONTROL, TYPE_USER, TYPE_UNUSED, TYPE_BYTE };

typedef struct reader {
    const char* name;
    const gr_token_arrays* a;
    gr_tokenizer* t;
} reader;

static bool equals(gr_string s, const char* text)
{
    return s.n == strlen(text) && memcmp(s.at, text, s.n) == 0;
}

static int type_of(const gr_token_arrays* a, int64_t id)
{
    return a->type != NULL ? a->type[id] : TYPE_NORMAL;
}

static bool is_added(int type) { return type == TYPE_CONTROL || type == TYPE_USER; }

/* ---- strings ----------------------------------------------------------------------------- */

static void add_token(gr_tokenizer* t, gr_string s, int64_t id, int type)
{
    char* copy = malloc(s.n + 1);
    GR_ASSERT(copy != NULL, "out of memory");
    memcpy(copy, s.at, s.n);
    copy[s.n] = 0;
    unsigned byte = 0;
    size_t n = s.n;
    if (is_added(type)) {
        if (n > 0) {
            gr_added_add(&t->added, copy, n,
                         (gr_added){.id = (int32_t)id, .special = type == TYPE_CONTROL});
        }
        (void)gr_strings_add(&t->bpe.piece, NULL, 0);
        (void)gr_strings_add(&t->text, copy, n);
    } else if (t->bpe.byte_level) {
        int64_t bytes = gr_unmap_bytes(copy, n);
        n = bytes >= 0 ? (size_t)bytes : n;
        if (n == 1) t->bpe.byte[(uint8_t)copy[0]] = (int32_t)id;
        (void)gr_strings_add(&t->bpe.piece, copy, n);
        (void)gr_strings_add(&t->text, copy, n);
    } else if (type == TYPE_BYTE && n == 6 && sscanf(copy, "<0x%2X>", &byte) == 1) {
        t->bpe.byte[byte] = (int32_t)id;
        (void)gr_strings_add(&t->bpe.piece, NULL, 0);
        (void)gr_strings_add(&t->text, &(char){(char)byte}, 1);
    } else {
        if (type == TYPE_UNKNOWN) t->bpe.unknown = (int32_t)id;
        (void)gr_strings_add(&t->bpe.piece, copy, n);
        gr_add_marked_text(&t->text, copy, n);
    }
    free(copy);
}

GR_MUST_CHECK static gr_status read_tokens(const reader* r)
{
    const gr_token_arrays* a = r->a;
    int64_t twice = 0;
    if (a->n_tokens <= 0 || a->n_tokens > GR_MAX_TOKENS) {
        return GR_FAIL(GR_EDATA, "%s: tokenizer.ggml.tokens: %lld tokens", r->name,
                       (long long)a->n_tokens);
    }
    for (int64_t i = 0; i < a->n_tokens; i++) add_token(r->t, a->token[i], i, type_of(a, i));
    int n_bytes = 0;
    for (int i = 0; i < 256; i++) n_bytes += r->t->bpe.byte[i] >= 0;
    for (int i = 0; i < 256 && (n_bytes == 0 || !r->t->bpe.byte_level); i++) {
        if (r->t->bpe.byte[i] >= 0) continue;
        return GR_FAIL(GR_EDATA, "%s: tokenizer.ggml.tokens: byte 0x%02X has no token", r->name, i);
    }
    if (gr_bpe_index(&r->t->bpe, &twice)) return GR_OK;
    return GR_FAIL(GR_EDATA, "%s: tokenizer.ggml.tokens: token %lld is there twice", r->name,
                   (long long)twice);
}

/* ---- merges ------------------------------------------------------------------------------ */

GR_MUST_CHECK static gr_status read_merges(const reader* r)
{
    const gr_token_arrays* a = r->a;
    gr_bpe* b = &r->t->bpe;
    gr_bpe_merges_begin(b, a->n_merges);
    for (int64_t i = 0; i < a->n_merges; i++) {
        char buffer[2048];
        gr_string m = a->merge[i];
        int32_t left = -1, right = -1;
        const char* space = m.n < sizeof buffer ? memchr(m.at, ' ', m.n) : NULL;
        if (space != NULL) {
            size_t n_left = (size_t)(space - m.at), n_right = m.n - n_left - 1;
            memcpy(buffer, m.at, n_left);
            memcpy(buffer + n_left, space + 1, n_right);
            int64_t l = gr_unmap_bytes(buffer, n_left);
            int64_t k = gr_unmap_bytes(buffer + n_left, n_right);
            if (l > 0) left = gr_bpe_find(b, buffer, (size_t)l);
            if (k > 0) right = gr_bpe_find(b, buffer + n_left, (size_t)k);
        }
        if (left < 0 || right < 0 || !gr_bpe_add_merge(b, left, right, (int32_t)i)) {
            return GR_FAIL(
                GR_EDATA,
                "%s: tokenizer.ggml.merges: number %lld is no pair of tokens that make a third",
                r->name, (long long)i);
        }
    }
    return GR_OK;
}

static int by_score(const void* x, const void* y, void* score)
{
    float a = ((const float*)score)[*(const int32_t*)x],
          b = ((const float*)score)[*(const int32_t*)y];
    return (a < b) - (a > b);
}

/* Equal scores have equal ranks: the leftmost pair is then merged first. */
GR_MUST_CHECK static gr_status rank_scores(const reader* r)
{
    const gr_token_arrays* a = r->a;
    if (a->score == NULL) return GR_FAIL(GR_EDATA, "%s: tokenizer.ggml.scores is missing", r->name);
    int32_t* order = malloc((size_t)a->n_tokens * sizeof *order);
    int32_t* rank = malloc((size_t)a->n_tokens * sizeof *rank);
    GR_ASSERT(order != NULL && rank != NULL, "out of memory");
    gr_status st = GR_OK;
    for (int64_t i = 0; i < a->n_tokens; i++) {
        order[i] = (int32_t)i;
        if (a->score[i] != a->score[i]) {
            st = GR_FAIL(GR_EDATA, "%s: tokenizer.ggml.scores: token %lld has no number", r->name,
                         (long long)i);
        }
    }
    if (st == GR_OK) {
        qsort_r(order, (size_t)a->n_tokens, sizeof *order, by_score, (void*)(uintptr_t)a->score);
        for (int64_t i = 0; i < a->n_tokens; i++) {
            bool same = i > 0 && a->score[order[i]] == a->score[order[i - 1]];
            rank[order[i]] = same ? rank[order[i - 1]] : (int32_t)i;
        }
        gr_bpe_merge_all(&r->t->bpe, rank);
    }
    free(order);
    free(rank);
    return st;
}

/* ---- words ------------------------------------------------------------------------------- */

GR_MUST_CHECK static gr_status add_pattern(const reader* r, const char* pattern)
{
    return gr_split_add(r->t, r->name, "tokenizer.ggml.pre", pattern, strlen(pattern), false);
}

/* The reference composes text for Qwen; the GGUF file has no word for it. */
GR_MUST_CHECK static gr_status choose_pattern(const reader* r)
{
    gr_string pre = r->a->pre;
    if (equals(pre, "qwen2") || equals(pre, "deepseek-r1-qwen")) {
        r->t->normalizer.nfc = true;
        return add_pattern(r, gr_split_qwen2);
    }
    if (equals(pre, "llama-bpe") || equals(pre, "llama3") || equals(pre, "llama-v3")) {
        r->t->bpe.whole_first = true;
        return add_pattern(r, gr_split_llama3);
    }
    if (equals(pre, "smollm")) {
        GR_TRY(add_pattern(r, gr_split_digits));
        return add_pattern(r, gr_split_gpt2);
    }
    if (equals(pre, "gpt-2")) return add_pattern(r, gr_split_gpt2);
    return GR_FAIL(
        GR_EDATA,
        "%s: tokenizer.ggml.pre: `%.*s` is not supported (qwen2, llama-bpe, smollm, gpt-2 are)",
        r->name, (int)GR_MIN(pre.n, 64), pre.at);
}

GR_MUST_CHECK static gr_status read_all(const reader* r)
{
    const gr_token_arrays* a = r->a;
    gr_tokenizer* t = r->t;
    t->bpe.byte_level = equals(a->model, "gpt2");
    if (!t->bpe.byte_level && !equals(a->model, "llama")) {
        return GR_FAIL(GR_EDATA,
                       "%s: tokenizer.ggml.model: `%.*s` is not supported (gpt2, llama are)",
                       r->name, (int)GR_MIN(a->model.n, 64), a->model.at);
    }
    GR_TRY(read_tokens(r));
    if (t->bpe.byte_level) {
        GR_TRY(choose_pattern(r));
        GR_TRY(read_merges(r));
    } else {
        memcpy(t->normalizer.space, GR_SPACE_MARK, sizeof GR_SPACE_MARK);
        t->normalizer.prefix = a->add_space_prefix ? GR_PREFIX_SPANS : GR_PREFIX_NONE;
        GR_TRY(rank_scores(r));
    }
    if (a->add_bos) {
        if (a->bos < 0 || a->bos >= a->n_tokens) {
            return GR_FAIL(GR_EDATA, "%s: tokenizer.ggml.bos_token_id: %lld is no token", r->name,
                           (long long)a->bos);
        }
        t->bos = (int32_t)a->bos;
    }
    gr_tokenizer_finish(t);
    return GR_OK;
}

gr_status gr_tokenizer_from_arrays(gr_tokenizer** out, const char* name, const gr_token_arrays* a)
{
    reader r = {name, a, gr_tokenizer_new()};
    gr_status st = read_all(&r);
    *out = st == GR_OK ? r.t : NULL;
    if (st != GR_OK) gr_tokenizer_free(r.t);
    return st;
}
