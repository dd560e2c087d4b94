/* split.c - normal forms, and cutting text into words.
 *
 * A pre-tokenizer is a list of regular expressions; each cuts the pieces of the one before
 * it, and sees nothing beyond its piece. They were written for Oniguruma and for Rust's
 * engines; PCRE2 is told to read them the same way: `^` and `$` mean lines, and \s is
 * written out, because Unicode's white space and PCRE2's differ in U+180E. */
#include <string.h>
#include <utf8proc.h>

#include "host/json.h"
#include "model/tokenizer/parts.h"

#define SPACE  \
    "\\t-\\r " \
    "\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define PATTERN_MAX 4096

/* Radford et al. 2019; the patterns of the others stand in their tokenizer files. */
const char gr_split_gpt2[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
const char gr_split_llama3[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|"
    " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
const char gr_split_qwen2[] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|"
                              " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
const char gr_split_digits[] = "\\p{N}";

/* ---- building ---------------------------------------------------------------------------- */

/* Copies a pattern with \s written out. False: too long. */
static bool spell_out(const char* pattern, size_t n, char out[PATTERN_MAX], size_t* n_out)
{
    bool in_class = false;
    size_t k = 0;
    for (size_t i = 0; i < n; i++) {
        char c = pattern[i], next = i + 1 < n ? pattern[i + 1] : 0;
        const char* text = NULL;
        if (c == '\\' && next == 's') text = in_class ? SPACE : "[" SPACE "]";
        if (c == '\\' && next == 'S' && !in_class) text = "[^" SPACE "]";
        size_t length = text != NULL ? strlen(text) : c == '\\' && i + 1 < n ? 2 : 1;
        if (k + length > PATTERN_MAX) return false;
        memcpy(out + k, text != NULL ? text : pattern + i, length);
        k += length;
        if (c == '\\') {
            i++;
        } else if (c == '[' || c == ']') {
            in_class = c == '[';
        }
    }
    *n_out = k;
    return true;
}

gr_status gr_split_add(gr_tokenizer* t, const char* file, const char* key, const char* pattern,
                       size_t n, bool literal)
{
    char text[PATTERN_MAX];
    size_t n_text = n;
    if (t->n_splits == GR_MAX_SPLITS) {
        return GR_FAIL(GR_EDATA, "%s: %s: more than %d patterns", file, key, GR_MAX_SPLITS);
    }
    if (n > PATTERN_MAX || (!literal && !spell_out(pattern, n, text, &n_text))) {
        return GR_FAIL(GR_EDATA, "%s: %s: pattern of %zu bytes", file, key, n);
    }
    if (literal) {
        memcpy(text, pattern, n);
    } else if (memmem(pattern, n, "&&", 2) != NULL) {
        return GR_FAIL(GR_EDATA, "%s: %s: intersections of classes are not supported", file, key);
    }
    /* \C, one byte of a character, would cut where no text may be cut. */
    uint32_t options = literal ? PCRE2_UTF | PCRE2_LITERAL
                               : PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
    int code;
    PCRE2_SIZE at;
    gr_split* split = &t->split[t->n_splits];
    split->regex = pcre2_compile((PCRE2_SPTR)text, n_text, options, &code, &at, NULL);
    if (split->regex == NULL) {
        PCRE2_UCHAR why[128];
        (void)pcre2_get_error_message(code, why, sizeof why);
        return GR_FAIL(GR_EDATA, "%s: %s: bad pattern: %s", file, key, (const char*)why);
    }
    split->jit = pcre2_jit_compile(split->regex, PCRE2_JIT_COMPLETE) == 0;
    t->n_splits++;
    return GR_OK;
}

/* ---- normal forms ------------------------------------------------------------------------ */

/* Is the character beginning at s the same in NFC, whatever stands around it? True for the
 * blocks of most text; of the others utf8proc decides. Latin letters may be joined by a mark
 * behind them, which lies above U+02FF and is not passed here. */
static bool is_plain(const unsigned char* s)
{
    if (s[0] < 0xcc) return true;                         /* below U+0300 */
    if (s[0] < 0xe0) return s[0] == 0xd0 || s[0] == 0xd1; /* U+0400 .. 047F */
    if (s[0] < 0xe3) return false;
    if (s[0] == 0xe3) return s[1] >= 0x90; /* U+3400 .. */
    if (s[0] <= 0xe9) return true;         /* .. 9FFF */
    if (s[0] == 0xea) return s[1] >= 0xb0; /* Hangul from U+AC00 */
    if (s[0] <= 0xec) return true;
    return s[0] == 0xf0 && s[1] == 0x9f; /* emoji: U+1F000 .. 1FFFF */
}

static bool is_nfc(const char* text, size_t n)
{
    const unsigned char* s = (const unsigned char*)text;
    for (size_t i = 0; i < n; i++) {
        if (s[i] >= 0xc0 && !is_plain(s + i)) return false;
    }
    return true;
}

static void put_bytes(gr_scratch* s, size_t* n, const char* at, size_t length)
{
    GR_RESERVE(s->normal, s->normal_cap, (int64_t)(*n + length));
    memcpy(s->normal + *n, at, length);
    *n += length;
}

static gr_string compose(gr_scratch* s, const char* text, size_t n)
{
    if (is_nfc(text, n)) return (gr_string){text, n};
    utf8proc_uint8_t* out = NULL;
    utf8proc_ssize_t length = utf8proc_map((const utf8proc_uint8_t*)text, (utf8proc_ssize_t)n, &out,
                                           UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    GR_ASSERT(length >= 0, "%s", utf8proc_errmsg(length));
    size_t n_normal = 0;
    put_bytes(s, &n_normal, (const char*)out, (size_t)length);
    free(out);
    return (gr_string){s->normal, n_normal};
}

gr_string gr_normalize(const gr_normalizer* z, gr_scratch* s, const char* text, size_t n,
                       bool first)
{
    if (z->nfc) return compose(s, text, n);
    size_t n_space = strlen(z->space), n_normal = 0;
    if (n_space == 0) return (gr_string){text, n};
    bool prefix = z->prefix == GR_PREFIX_SPANS || (z->prefix == GR_PREFIX_FIRST && first);
    if (prefix && z->drop_twice) {
        bool has = (n > 0 && text[0] == ' ') || (n >= n_space && !memcmp(text, z->space, n_space));
        prefix = !has;
    }
    if (prefix) put_bytes(s, &n_normal, z->space, n_space);
    for (size_t i = 0; i < n;) {
        const char* space = memchr(text + i, ' ', n - i);
        size_t end = space != NULL ? (size_t)(space - text) : n;
        put_bytes(s, &n_normal, text + i, end - i);
        if (space != NULL) put_bytes(s, &n_normal, z->space, n_space);
        i = end + (space != NULL);
    }
    return (gr_string){s->normal, n_normal};
}

/* ---- cutting ----------------------------------------------------------------------------- */

/* Where the first match from `from` on lies. A search that takes too long for the engine's
 * limits, which no pattern of a model does, finds nothing. */
static bool match(const gr_split* split, gr_scratch* s, int step, const char* text, size_t n,
                  size_t from, size_t at[2])
{
    PCRE2_SPTR subject = (PCRE2_SPTR)text;
    pcre2_match_data* m = s->match[step];
    int found =
        split->jit ? pcre2_jit_match(split->regex, subject, n, from, 0, m, s->context)
                   : pcre2_match(split->regex, subject, n, from, PCRE2_NO_UTF_CHECK, m, s->context);
    if (found < 0) return false;
    const PCRE2_SIZE* v = pcre2_get_ovector_pointer(m);
    at[0] = v[0];
    at[1] = v[1];
    return at[0] <= at[1]; /* \K in a lookahead can turn them round */
}

static inline void piece(const gr_tokenizer* t, gr_scratch* s, int step, const char* text, size_t n)
{
    if (n == 0) return;
    if (step == t->n_splits)
        gr_bpe_word(&t->bpe, s, text, n);
    else
        gr_split_span(t, s, step, text, n);
}

void gr_split_span(const gr_tokenizer* t, gr_scratch* s, int step, const char* text, size_t n)
{
    if (step == t->n_splits) {
        piece(t, s, step, text, n);
        return;
    }
    size_t done = 0, from = 0, at[2];
    while (from < n && match(&t->split[step], s, step, text, n, from, at)) {
        if (at[0] < done) break;
        piece(t, s, step + 1, text + done, at[0] - done);
        piece(t, s, step + 1, text + at[0], at[1] - at[0]);
        done = from = at[1];
        if (at[0] == at[1] && from < n) from += gr_utf8_length(text + from, n - from);
    }
    piece(t, s, step + 1, text + done, n - done);
}
