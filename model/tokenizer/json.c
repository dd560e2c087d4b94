/* json.c - tokenizer.json as the library `tokenizers` writes it.
 *
 * What is read: BPE models, of bytes (GPT-2's alphabet) or of characters with byte fallback;
 * normalizers NFC, and the replacement of spaces of SentencePiece; pre-tokenizers Split,
 * Digits, ByteLevel, Metaspace and sequences of them; a post-processor that puts one token
 * in front; the matching decoders. Everything else is an error that names it. Settings for
 * padding and truncation are other programs' business. */
#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

#include "host/json.h"
#include "model/tokenizer/parts.h"

typedef struct reader {
    const char* name; /* of the file, for errors */
    const cJSON* root;
    gr_tokenizer* t;
    char** vocab; /* by id, in the JSON; NULL: none */
    int64_t n_ids, vocab_cap;
    bool byte_decoder, strip_mark;
} reader;

/* ---- access ------------------------------------------------------------------------------ */

static const cJSON* get(const cJSON* o, const char* key)
{
    return cJSON_GetObjectItemCaseSensitive(o, key);
}

static bool is_true(const cJSON* o, const char* key) { return cJSON_IsTrue(get(o, key)); }

/* A string; "" where there is none. */
static const char* text_of(const cJSON* o, const char* key)
{
    const char* s = cJSON_GetStringValue(get(o, key));
    return s != NULL ? s : "";
}

static const char* type_of(const cJSON* o) { return text_of(o, "type"); }
static bool is(const cJSON* o, const char* type) { return strcmp(type_of(o), type) == 0; }
static bool is_set(const cJSON* o) { return o != NULL && !cJSON_IsNull(o); }

/* A string of the file for an error, which is one line. Valid until the next but three. */
static const char* shown(const char* s)
{
    static _Thread_local char text[4][65];
    static _Thread_local int turn;
    char* out = text[turn++ % 4];
    int i = 0;
    for (; i < 64 && s[i] != 0; i++) out[i] = (uint8_t)s[i] < 0x20 || s[i] == 0x7f ? '?' : s[i];
    out[i] = 0;
    return out;
}

GR_MUST_CHECK static gr_status unsupported(const reader* r, const char* key, const cJSON* o)
{
    return GR_FAIL(GR_EDATA, "%s: %s: type `%s` is not supported", r->name, key, shown(type_of(o)));
}

/* ---- sequences --------------------------------------------------------------------------- */

typedef gr_status step_fn(reader* r, const cJSON* step);

/* Calls `fn` for the steps of a sequence, or for the one step that stands for itself.
 * Sequences of sequences are nobody's. */
GR_MUST_CHECK static gr_status each(reader* r, const char* key, const char* list, step_fn* fn)
{
    const cJSON *o = get(r->root, key), *step;
    if (!is_set(o)) return GR_OK;
    if (!is(o, "Sequence")) return fn(r, o);
    const cJSON* steps = get(o, list);
    if (!cJSON_IsArray(steps)) return GR_FAIL(GR_EDATA, "%s: %s.%s: no list", r->name, key, list);
    cJSON_ArrayForEach(step, steps) GR_TRY(fn(r, step));
    return GR_OK;
}

/* ---- normalizer -------------------------------------------------------------------------- */

static bool replaces(const cJSON* step, const char* from, const char* to)
{
    return is(step, "Replace") && strcmp(text_of(get(step, "pattern"), "String"), from) == 0 &&
           strcmp(text_of(step, "content"), to) == 0;
}

static gr_status normalizer(reader* r, const cJSON* step)
{
    gr_normalizer* z = &r->t->normalizer;
    bool mark = is(step, "Prepend") && strcmp(text_of(step, "prepend"), GR_SPACE_MARK) == 0;
    if (is(step, "NFC") && z->space[0] == 0) {
        z->nfc = true;
    } else if (mark && !z->nfc) {
        z->prefix = GR_PREFIX_SPANS;
    } else if (replaces(step, " ", GR_SPACE_MARK) && !z->nfc) {
        (void)memcpy(z->space, GR_SPACE_MARK, sizeof GR_SPACE_MARK);
    } else {
        return unsupported(r, "normalizer", step);
    }
    return GR_OK;
}

static gr_status check_normalizer(const reader* r)
{
    const gr_normalizer* z = &r->t->normalizer;
    if (z->prefix == GR_PREFIX_NONE || z->space[0] != 0) return GR_OK;
    return GR_FAIL(GR_EDATA, "%s: normalizer: Prepend without Replace is not supported", r->name);
}

/* ---- pre-tokenizer ----------------------------------------------------------------------- */

static gr_status split(reader* r, const cJSON* step)
{
    const cJSON* pattern = get(step, "pattern");
    const char* regex = cJSON_GetStringValue(get(pattern, "Regex"));
    const char* text = regex != NULL ? regex : text_of(pattern, "String");
    if (strcmp(text_of(step, "behavior"), "Isolated") != 0 || is_true(step, "invert")) {
        return GR_FAIL(GR_EDATA, "%s: pre_tokenizer: Split with behavior `%s`%s is not supported",
                       r->name, shown(text_of(step, "behavior")),
                       is_true(step, "invert") ? " inverted" : "");
    }
    if (text[0] == 0) return GR_FAIL(GR_EDATA, "%s: pre_tokenizer: Split without pattern", r->name);
    return gr_split_add(r->t, r->name, "pre_tokenizer", text, strlen(text), regex == NULL);
}

static gr_status metaspace(reader* r, const cJSON* step)
{
    gr_normalizer* z = &r->t->normalizer;
    const char* scheme = text_of(step, "prepend_scheme");
    bool split_off = get(step, "split") != NULL && !is_true(step, "split");
    if (z->nfc || z->space[0] != 0 || !split_off ||
        strcmp(text_of(step, "replacement"), GR_SPACE_MARK) != 0) {
        return GR_FAIL(GR_EDATA,
                       "%s: pre_tokenizer: Metaspace is supported with replacement " GR_SPACE_MARK
                       ", without split and without a normalizer",
                       r->name);
    }
    memcpy(z->space, GR_SPACE_MARK, sizeof GR_SPACE_MARK);
    z->drop_twice = true;
    z->prefix = strcmp(scheme, "never") == 0   ? GR_PREFIX_NONE
                : strcmp(scheme, "first") == 0 ? GR_PREFIX_FIRST
                                               : GR_PREFIX_SPANS;
    return GR_OK;
}

static gr_status pre_tokenizer(reader* r, const cJSON* step)
{
    gr_tokenizer* t = r->t;
    if (t->bpe.byte_level) {
        return GR_FAIL(GR_EDATA, "%s: pre_tokenizer: a step after ByteLevel", r->name);
    }
    if (is(step, "Split")) return split(r, step);
    if (is(step, "Metaspace")) return metaspace(r, step);
    if (is(step, "Digits")) {
        const char* digits = is_true(step, "individual_digits") ? gr_split_digits : "\\p{N}+";
        return gr_split_add(t, r->name, "pre_tokenizer", digits, strlen(digits), false);
    }
    if (!is(step, "ByteLevel")) return unsupported(r, "pre_tokenizer", step);
    if (is_true(step, "add_prefix_space")) {
        return GR_FAIL(GR_EDATA, "%s: pre_tokenizer: add_prefix_space is not supported", r->name);
    }
    t->bpe.byte_level = true;
    if (get(step, "use_regex") != NULL && !is_true(step, "use_regex")) return GR_OK;
    return gr_split_add(t, r->name, "pre_tokenizer", gr_split_gpt2, strlen(gr_split_gpt2), false);
}

/* ---- decoder ----------------------------------------------------------------------------- */

static gr_status decoder(reader* r, const cJSON* step)
{
    bool strip = is(step, "Strip") && strcmp(text_of(step, "content"), " ") == 0;
    if (is(step, "ByteLevel")) {
        r->byte_decoder = true;
    } else if (replaces(step, GR_SPACE_MARK, " ") || is(step, "Metaspace")) {
        r->strip_mark = true;
    } else if (!is(step, "ByteFallback") && !is(step, "Fuse") && !strip) {
        return unsupported(r, "decoder", step);
    }
    return GR_OK;
}

/* ---- vocabulary -------------------------------------------------------------------------- */

GR_MUST_CHECK static gr_status take_id(const reader* r, const char* key, const char* token,
                                       const cJSON* id, int64_t n, int64_t* out)
{
    *out = gr_json_whole(id);
    /* Gaps are allowed, a huge table for a few tokens is not. */
    if (*out < 0 || *out >= GR_MIN(GR_MAX_TOKENS, 4 * n + 65536)) {
        return GR_FAIL(GR_EDATA, "%s: %s: token `%s` has no sensible id among %lld tokens", r->name,
                       key, shown(token), (long long)n);
    }
    return GR_OK;
}

static gr_status read_vocab(reader* r, const cJSON* model)
{
    const cJSON *item, *vocab = get(model, "vocab");
    if (!cJSON_IsObject(vocab)) return GR_FAIL(GR_EDATA, "%s: model.vocab: no object", r->name);
    int64_t n = cJSON_GetArraySize(vocab);
    cJSON_ArrayForEach(item, vocab)
    {
        int64_t id;
        GR_TRY(take_id(r, "model.vocab", item->string, item, n, &id));
        GR_RESERVE(r->vocab, r->vocab_cap, id + 1);
        if (r->vocab[id] != NULL) {
            return GR_FAIL(GR_EDATA, "%s: model.vocab: tokens `%s` and `%s` have the same id %lld",
                           r->name, shown(r->vocab[id]), shown(item->string), (long long)id);
        }
        r->vocab[id] = item->string;
        r->n_ids = GR_MAX(r->n_ids, id + 1);
    }
    if (n == 0) return GR_FAIL(GR_EDATA, "%s: model.vocab: empty", r->name);
    const cJSON* unknown = get(vocab, text_of(model, "unk_token"));
    if (cJSON_IsNumber(unknown)) r->t->bpe.unknown = (int32_t)unknown->valuedouble;
    return GR_OK;
}

static gr_status read_added(reader* r)
{
    const cJSON *item, *list = get(r->root, "added_tokens");
    int64_t n = r->n_ids + cJSON_GetArraySize(list);
    cJSON_ArrayForEach(item, list)
    {
        const char* content = text_of(item, "content");
        int64_t id;
        GR_TRY(take_id(r, "added_tokens", content, get(item, "id"), n, &id));
        if (content[0] == 0) {
            return GR_FAIL(GR_EDATA, "%s: added_tokens: token %lld is empty", r->name,
                           (long long)id);
        }
        r->n_ids = GR_MAX(r->n_ids, id + 1);
        gr_added_add(&r->t->added, content, strlen(content),
                     (gr_added){.id = (int32_t)id,
                                .special = is_true(item, "special"),
                                .normalized = is_true(item, "normalized"),
                                .lstrip = is_true(item, "lstrip"),
                                .rstrip = is_true(item, "rstrip"),
                                .single_word = is_true(item, "single_word")});
    }
    GR_RESERVE(r->vocab, r->vocab_cap, r->n_ids);
    return GR_OK;
}

/* The byte of a piece <0x0A>; -1: it is none. */
static int byte_piece(const char* s, size_t n)
{
    unsigned byte = 0;
    char close = 0;
    if (n != 6 || strncmp(s, "<0x", 3) != 0 || sscanf(s + 3, "%2X%c", &byte, &close) != 2)
        return -1;
    return close == '>' ? (int)byte : -1;
}

/* Piece and text of every id; added tokens that are no part of the model have text only. */
static void fill_strings(reader* r)
{
    gr_tokenizer* t = r->t;
    gr_bpe* b = &t->bpe;
    gr_string* added = calloc((size_t)r->n_ids + 1, sizeof *added);
    GR_ASSERT(added != NULL, "out of memory");
    for (int64_t i = 0; i < t->added.n; i++) {
        added[t->added.token[i].id] = gr_strings_get(&t->added.content, t->added.token[i].text);
    }
    for (int64_t id = 0; id < r->n_ids; id++) {
        char* s = r->vocab[id];
        size_t n = s != NULL ? strlen(s) : 0;
        int byte = -1;
        if (b->byte_level) {
            int64_t bytes = gr_unmap_bytes(s, n);
            n = bytes >= 0 ? (size_t)bytes : n; /* added tokens may be written as they are */
            if (n == 1) b->byte[(uint8_t)s[0]] = (int32_t)id;
        } else {
            byte = byte_piece(s, n);
            if (byte >= 0) b->byte[byte] = (int32_t)id;
        }
        (void)gr_strings_add(&b->piece, s, n);
        if (added[id].n > 0)
            (void)gr_strings_add(&t->text, added[id].at, added[id].n);
        else if (byte >= 0)
            (void)gr_strings_add(&t->text, &(char){(char)byte}, 1);
        else if (r->strip_mark)
            gr_add_marked_text(&t->text, s, n);
        else
            (void)gr_strings_add(&t->text, s, n);
    }
    free(added);
}

/* ---- merges ------------------------------------------------------------------------------ */

/* The two sides of a merge, which is "left right" or ["left", "right"]; both in `buffer`. */
static bool sides(const cJSON* item, char* buffer, size_t cap, gr_string side[2])
{
    const char* left = cJSON_GetStringValue(item);
    const char* right = NULL;
    size_t n_left = 0;
    if (left != NULL) {
        right = strchr(left, ' ');
        if (right != NULL) n_left = (size_t)(right++ - left);
    } else if (cJSON_GetArraySize(item) == 2) {
        left = cJSON_GetStringValue(cJSON_GetArrayItem(item, 0));
        right = cJSON_GetStringValue(cJSON_GetArrayItem(item, 1));
        n_left = left != NULL ? strlen(left) : 0;
    }
    if (left == NULL || right == NULL || n_left + strlen(right) > cap) return false;
    memcpy(buffer, left, n_left);
    memcpy(buffer + n_left, right, strlen(right));
    side[0] = (gr_string){buffer, n_left};
    side[1] = (gr_string){buffer + n_left, strlen(right)};
    return true;
}

static gr_status read_merges(reader* r, const cJSON* model)
{
    gr_bpe* b = &r->t->bpe;
    const cJSON *item, *merges = get(model, "merges");
    if (!cJSON_IsArray(merges)) return GR_FAIL(GR_EDATA, "%s: model.merges: no list", r->name);
    gr_bpe_merges_begin(b, cJSON_GetArraySize(merges));
    int32_t rank = 0;
    cJSON_ArrayForEach(item, merges)
    {
        char buffer[2048];
        gr_string side[2];
        int32_t id[2] = {-1, -1};
        bool good = sides(item, buffer, sizeof buffer, side);
        for (int i = 0; i < 2 && good; i++) {
            int64_t n = b->byte_level ? gr_unmap_bytes(buffer + (side[i].at - buffer), side[i].n)
                                      : (int64_t)side[i].n;
            if (n > 0) id[i] = gr_bpe_find(b, side[i].at, (size_t)n);
        }
        if (id[0] < 0 || id[1] < 0 || !gr_bpe_add_merge(b, id[0], id[1], rank)) {
            return GR_FAIL(GR_EDATA,
                           "%s: model.merges: number %d is no pair of tokens that make a third",
                           r->name, rank);
        }
        rank++;
    }
    return GR_OK;
}

/* ---- model ------------------------------------------------------------------------------- */

static gr_status check_model(const reader* r, const cJSON* model)
{
    static const char* const off[] = {"dropout", "continuing_subword_prefix", "end_of_word_suffix"};
    if (!cJSON_IsObject(model)) return GR_FAIL(GR_EDATA, "%s: model: no object", r->name);
    if (type_of(model)[0] != 0 && !is(model, "BPE")) return unsupported(r, "model", model);
    for (int i = 0; i < GR_COUNT(off); i++) {
        const cJSON* o = get(model, off[i]);
        bool nothing = !is_set(o) || (cJSON_IsString(o) && o->valuestring[0] == 0) ||
                       (cJSON_IsNumber(o) && o->valuedouble == 0);
        if (!nothing) return GR_FAIL(GR_EDATA, "%s: model.%s is not supported", r->name, off[i]);
    }
    return GR_OK;
}

/* Characters without a token are their bytes, which must all be there; a byte-level
 * vocabulary may lack some. */
static gr_status check_bytes(const reader* r, const cJSON* model)
{
    const gr_bpe* b = &r->t->bpe;
    if (b->byte_level != r->byte_decoder) {
        return GR_FAIL(GR_EDATA, "%s: decoder: does not match the pre_tokenizer", r->name);
    }
    if (!b->byte_level && !is_true(model, "byte_fallback")) {
        return GR_FAIL(GR_EDATA, "%s: model: neither byte-level nor with byte_fallback", r->name);
    }
    int n_bytes = 0;
    for (int i = 0; i < 256; i++) n_bytes += b->byte[i] >= 0;
    if (b->byte_level && n_bytes > 0) return GR_OK;
    for (int i = 0; i < 256; i++) {
        if (b->byte[i] >= 0) continue;
        return GR_FAIL(GR_EDATA, "%s: model.vocab: byte 0x%02X has no token", r->name, i);
    }
    return GR_OK;
}

static gr_status read_model(reader* r)
{
    const cJSON* model = get(r->root, "model");
    gr_bpe* b = &r->t->bpe;
    int64_t twice = 0;
    GR_TRY(check_model(r, model));
    GR_TRY(read_vocab(r, model));
    GR_TRY(read_added(r));
    fill_strings(r);
    GR_TRY(check_bytes(r, model));
    if (!gr_bpe_index(b, &twice)) {
        return GR_FAIL(GR_EDATA, "%s: model.vocab: token %lld is there twice", r->name,
                       (long long)twice);
    }
    b->whole_first = is_true(model, "ignore_merges");
    b->fuse_unknown = is_true(model, "fuse_unk");
    return read_merges(r, model);
}

/* ---- post-processor ---------------------------------------------------------------------- */

/* Only [token, text] and [text]: nothing is put behind a text that goes on. */
static gr_status post_processor(reader* r, const cJSON* step)
{
    if (is(step, "ByteLevel")) return GR_OK; /* moves offsets, which nobody asks for */
    if (!is(step, "TemplateProcessing")) return unsupported(r, "post_processor", step);
    const cJSON* single = get(step, "single");
    int n = cJSON_GetArraySize(single);
    const cJSON *first = cJSON_GetArrayItem(single, 0), *last = cJSON_GetArrayItem(single, n - 1);
    if (n < 1 || n > 2 || get(last, "Sequence") == NULL) {
        return GR_FAIL(GR_EDATA, "%s: post_processor: only one token in front is supported",
                       r->name);
    }
    if (n == 1) return GR_OK;
    const char* name = text_of(get(first, "SpecialToken"), "id");
    r->t->bos = gr_tokenizer_find(r->t, name);
    if (r->t->bos >= 0) return GR_OK;
    return GR_FAIL(GR_EDATA, "%s: post_processor: `%s` is no added token", r->name, shown(name));
}

/* ---- the whole --------------------------------------------------------------------------- */

static gr_status read_all(reader* r)
{
    GR_TRY(each(r, "normalizer", "normalizers", normalizer));
    GR_TRY(check_normalizer(r));
    GR_TRY(each(r, "pre_tokenizer", "pretokenizers", pre_tokenizer));
    GR_TRY(each(r, "decoder", "decoders", decoder));
    GR_TRY(read_model(r));
    GR_TRY(each(r, "post_processor", "processors", post_processor));
    gr_tokenizer_finish(r->t);
    return GR_OK;
}

gr_status gr_tokenizer_from_json(gr_tokenizer** out, const char* name, const char* text,
                                 size_t n_bytes)
{
    cJSON* root = gr_json_parse(text, n_bytes, NULL);
    gr_status st = GR_OK;
    *out = NULL;
    if (cJSON_IsObject(root)) {
        reader r = {.name = name, .root = root, .t = gr_tokenizer_new()};
        st = read_all(&r);
        free(r.vocab);
        if (st == GR_OK)
            *out = r.t;
        else
            gr_tokenizer_free(r.t);
    } else {
        st = GR_FAIL(GR_EDATA, "%s: not a JSON object", name);
    }
    cJSON_Delete(root);
    return st;
}
