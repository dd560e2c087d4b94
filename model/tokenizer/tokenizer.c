/* tokenizer.c - encoding and decoding with the tables that a reader made. */
#include "model/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "host/json.h"
#include "model/tokenizer/parts.h"

#define JIT_STACK (1 << 20)

/* ---- life -------------------------------------------------------------------------------- */

gr_tokenizer* gr_tokenizer_new(void)
{
    gr_tokenizer* t = calloc(1, sizeof *t);
    GR_ASSERT(t != NULL, "out of memory");
    t->bos = t->bpe.unknown = -1;
    for (int i = 0; i < 256; i++) t->bpe.byte[i] = -1;
    return t;
}

void gr_tokenizer_finish(gr_tokenizer* t)
{
    GR_RESERVE(t->special, t->special_cap, t->text.n);
    for (int64_t i = 0; i < t->added.n; i++) {
        if (t->added.token[i].special) t->special[t->added.token[i].id] = true;
    }
    gr_added_finish(&t->added);
}

static void scratch_free(gr_scratch* s)
{
    if (s == NULL) return;
    free(s->cache);
    free(s->symbol);
    free(s->heap);
    free(s->normal);
    for (int i = 0; i < GR_MAX_SPLITS; i++) pcre2_match_data_free(s->match[i]);
    pcre2_match_context_free(s->context);
    pcre2_jit_stack_free(s->stack);
    free(s);
}

void gr_tokenizer_free(gr_tokenizer* t)
{
    if (t == NULL) return;
    gr_bpe_free(&t->bpe);
    gr_strings_free(&t->text);
    gr_strings_free(&t->added.content);
    free(t->added.token);
    free(t->special);
    for (int i = 0; i < t->n_splits; i++) pcre2_code_free(t->split[i].regex);
    scratch_free(t->spare);
    free(t);
}

/* ---- what a call writes to
 * ------------------------------------------------------------------------------ One scratch
 * waits at the tokenizer, with the words seen so far. A thread that finds none makes one,
 * and of two that come back one is dropped. */

static gr_scratch* scratch_new(const gr_tokenizer* t)
{
    gr_scratch* s = calloc(1, sizeof *s);
    GR_ASSERT(s != NULL, "out of memory");
    s->cache = calloc(GR_CACHE_SLOTS, sizeof *s->cache);
    s->context = pcre2_match_context_create(NULL);
    s->stack = pcre2_jit_stack_create(1 << 15, JIT_STACK, NULL);
    GR_ASSERT(s->cache != NULL && s->context != NULL, "out of memory");
    if (s->stack != NULL) pcre2_jit_stack_assign(s->context, NULL, s->stack);
    for (int i = 0; i < t->n_splits; i++) {
        s->match[i] = pcre2_match_data_create_from_pattern(t->split[i].regex, NULL);
        GR_ASSERT(s->match[i] != NULL, "out of memory");
    }
    return s;
}

static gr_scratch* borrow(const gr_tokenizer* t)
{
    gr_scratch* s =
        __atomic_exchange_n(&((gr_tokenizer*)(uintptr_t)t)->spare, NULL, __ATOMIC_ACQ_REL);
    return s != NULL ? s : scratch_new(t);
}

static void give_back(const gr_tokenizer* t, gr_scratch* s)
{
    s->out = NULL;
    scratch_free(__atomic_exchange_n(&((gr_tokenizer*)(uintptr_t)t)->spare, s, __ATOMIC_ACQ_REL));
}

/* ---- encoding ---------------------------------------------------------------------------- */

/* Words of valid UTF-8 in its normal form. */
static void encode_normal(const gr_tokenizer* t, gr_scratch* s, gr_text_kind kind, gr_string text)
{
    size_t done = 0, begin, end;
    int32_t id;
    while (kind == GR_MARKUP && gr_added_next(&t->added, true, text, done, &begin, &end, &id)) {
        if (begin > done) gr_split_span(t, s, 0, text.at + done, begin - done);
        gr_put_token(s, id);
        done = end;
    }
    if (done < text.n) gr_split_span(t, s, 0, text.at + done, text.n - done);
}

/* A span of any bytes, cut into UTF-8 and what is none. */
static void encode_span(const gr_tokenizer* t, gr_scratch* s, gr_text_kind kind, const char* text,
                        size_t n, bool first)
{
    for (size_t begin = 0, end = 0; begin < n; begin = end) {
        size_t length;
        while (end < n &&
               (length = (uint8_t)text[end] < 0x80 ? 1 : gr_utf8_length(text + end, n - end)) > 0) {
            end += length;
        }
        if (end > begin) {
            encode_normal(
                t, s, kind,
                gr_normalize(&t->normalizer, s, text + begin, end - begin, first && begin == 0));
        }
        begin = end;
        while (end < n && gr_utf8_length(text + end, n - end) == 0) end++;
        if (end > begin) gr_bpe_word(&t->bpe, s, text + begin, end - begin);
    }
}

static int encode_bytes(const char* text, int n_bytes, int32_t* token, int cap)
{
    for (int i = 0; i < n_bytes && i < cap; i++) token[i] = (unsigned char)text[i];
    return n_bytes;
}

int gr_encode(const gr_tokenizer* t, gr_text_kind kind, const char* text, int n_bytes,
              int32_t* token, int cap)
{
    if (t == NULL) return encode_bytes(text, n_bytes, token, cap);
    gr_scratch* s = borrow(t);
    s->out = token;
    s->cap_out = cap;
    s->n_out = 0;
    size_t n = (size_t)n_bytes, done = 0, begin, end;
    int32_t id;
    while (kind == GR_MARKUP &&
           gr_added_next(&t->added, false, (gr_string){text, n}, done, &begin, &end, &id)) {
        encode_span(t, s, kind, text + done, begin - done, done == 0);
        gr_put_token(s, id);
        done = end;
    }
    encode_span(t, s, kind, text + done, n - done, done == 0);
    int n_out = s->n_out;
    give_back(t, s);
    return n_out;
}

/* ---- decoding ---------------------------------------------------------------------------- */

#define BYTES4(x)  (char)(x), (char)((x) + 1), (char)((x) + 2), (char)((x) + 3)
#define BYTES16(x) BYTES4(x), BYTES4((x) + 4), BYTES4((x) + 8), BYTES4((x) + 12)
#define BYTES64(x) BYTES16(x), BYTES16((x) + 16), BYTES16((x) + 32), BYTES16((x) + 48)
static const char every_byte[256] = {BYTES64(0), BYTES64(64), BYTES64(128), BYTES64(192)};

static const char* byte_text(int32_t token, int* n_bytes)
{
    *n_bytes = token >= 0 && token < GR_BYTE_VOCAB;
    return every_byte + (*n_bytes > 0 ? token : 0);
}

const char* gr_token_text(const gr_tokenizer* t, gr_text_kind kind, int32_t token, int* n_bytes)
{
    if (t == NULL) return byte_text(token, n_bytes);
    *n_bytes = 0;
    if (token < 0 || token >= t->text.n) return "";
    if (kind == GR_PLAIN && t->special[token]) return "";
    gr_string s = gr_strings_get(&t->text, token);
    *n_bytes = (int)s.n;
    return s.at;
}

int gr_decode(const gr_tokenizer* t, gr_text_kind kind, const int32_t* token, int n, char* text,
              int cap)
{
    int len = 0;
    for (int i = 0; i < n && len < cap - 1; i++) {
        int length;
        const char* at = gr_token_text(t, kind, token[i], &length);
        length = GR_MIN(length, cap - 1 - len);
        memcpy(text + len, at, (size_t)length);
        len += length;
    }
    text[len] = 0;
    return len;
}

/* ---- facts ------------------------------------------------------------------------------- */

int gr_tokenizer_vocab(const gr_tokenizer* t) { return t == NULL ? GR_BYTE_VOCAB : (int)t->text.n; }

int32_t gr_tokenizer_bos(const gr_tokenizer* t) { return t == NULL ? -1 : t->bos; }

int32_t gr_tokenizer_find(const gr_tokenizer* t, const char* name)
{
    for (int64_t i = 0; t != NULL && i < t->added.n; i++) {
        gr_string s = gr_strings_get(&t->added.content, t->added.token[i].text);
        if (s.n == strlen(name) && memcmp(s.at, name, s.n) == 0) return t->added.token[i].id;
    }
    return -1;
}

bool gr_tokenizer_next(const gr_tokenizer* t, gr_string text, size_t from, size_t* begin,
                       size_t* end, int32_t* id)
{
    if (t == NULL) return false;
    size_t b, e;
    int32_t i;
    bool found = gr_added_next(&t->added, false, text, from, begin, end, id);
    if (!gr_added_next(&t->added, true, text, from, &b, &e, &i) || (found && *begin <= b))
        return found;
    *begin = b;
    *end = e;
    *id = i;
    return true;
}

/* ---- printable bytes --------------------------------------------------------------------- */

/* Printable Latin-1 stands for itself; the other bytes, in order, are U+0100 and following.
 * -1: neither. */
static int unmap(int c)
{
    if ((c >= '!' && c <= '~') || (c >= 0xa1 && c <= 0xff && c != 0xad)) return c;
    int k = c - 0x100; /* 00..20, 7F..A0, AD */
    if (k < 0 || k > 67) return -1;
    return k <= 32 ? k : k <= 66 ? k + 94 : 0xad;
}

int64_t gr_unmap_bytes(char* s, size_t n)
{
    const unsigned char* u = (const unsigned char*)s;
    for (int write = 0; write < 2; write++) {
        int64_t k = 0;
        for (size_t i = 0, length; i < n; i += length) {
            length = u[i] < 0x80 ? 1 : 2;
            if (length == 2 && (u[i] < 0xc2 || u[i] > 0xc5 || i + 1 >= n)) return -1;
            int byte = unmap(length == 1 ? u[i] : (u[i] & 0x1f) << 6 | (u[i + 1] & 0x3f));
            if (byte < 0) return -1;
            if (write) s[k] = (char)byte;
            k++;
        }
        if (write) return k;
    }
    return 0;
}

void gr_add_marked_text(gr_strings* text, char* s, size_t n)
{
    size_t k = 0;
    for (size_t i = 0; i < n; k++) {
        bool mark = n - i >= 3 && memcmp(s + i, GR_SPACE_MARK, 3) == 0;
        s[k] = mark ? ' ' : s[i];
        i += mark ? 3 : 1;
    }
    (void)gr_strings_add(text, s, k);
}
