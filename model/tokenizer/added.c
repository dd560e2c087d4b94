/* added.c - tokens that are found in markup before anything else is done to it.
 *
 * The rules are those of the reference (tokenizers, AddedVocabulary): of the tokens that
 * begin at a place the longest counts; one that must be a single word is passed over inside
 * of words; white space beside a token belongs to it where it strips. */
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "host/json.h"
#include "model/tokenizer/parts.h"

void gr_added_add(gr_added_set* s, const char* at, size_t n, gr_added token)
{
    GR_RESERVE(s->token, s->cap, s->n + 1);
    token.text = gr_strings_add(&s->content, at, n);
    s->token[s->n++] = token;
}

static int compare(const void* a, const void* b, void* content)
{
    gr_string x = gr_strings_get(content, ((const gr_added*)a)->text);
    gr_string y = gr_strings_get(content, ((const gr_added*)b)->text);
    int order = memcmp(x.at, y.at, GR_MIN(x.n, y.n));
    return order != 0 ? order : (x.n > y.n) - (x.n < y.n);
}

void gr_added_finish(gr_added_set* s)
{
    if (s->n > 0) qsort_r(s->token, (size_t)s->n, sizeof *s->token, compare, &s->content);
    for (int64_t i = 0; i < s->n; i++) {
        gr_string x = gr_strings_get(&s->content, s->token[i].text);
        if (x.n > 0) s->starts[s->token[i].normalized][(uint8_t)x.at[0]] = true;
    }
}

/* First token of [low, high), which agree in `depth` bytes, whose next byte is at least c. */
static int64_t lower(const gr_added_set* s, int64_t low, int64_t high, size_t depth, int c)
{
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        gr_string x = gr_strings_get(&s->content, s->token[middle].text);
        if (x.n <= depth || (uint8_t)x.at[depth] < c)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The longest token that text[0..n) begins with; NULL: none. */
static const gr_added* longest(const gr_added_set* s, bool normalized, const char* text, size_t n)
{
    const gr_added* best = NULL;
    int64_t low = 0, high = s->n;
    for (size_t depth = 0; low < high; depth++) {
        for (int64_t i = low; depth > 0 && i < high; i++) { /* those that end here come first */
            if (gr_strings_get(&s->content, s->token[i].text).n != depth) break;
            if (s->token[i].normalized == normalized) best = &s->token[i];
        }
        if (depth == n) break;
        int c = (uint8_t)text[depth];
        low = lower(s, low, high, depth, c);
        high = lower(s, low, high, depth, c + 1);
    }
    return best;
}

/* ---- neighbours -------------------------------------------------------------------------- */

static bool is_space(int32_t c)
{
    return (c >= 9 && c <= 13) || c == ' ' || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f ||
           c == 0x205f || c == 0x3000;
}

/* As \w: letters, marks, digits, connectors, joiners. */
static bool is_word(int32_t c)
{
    switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
        return true;
    default:
        return c == 0x200c || c == 0x200d;
    }
}

/* The character that begins at text[i] or, backwards, ends before it; its length, 0: none. */
static size_t character(gr_string text, size_t i, bool backwards, int32_t* c)
{
    size_t begin = i;
    if (backwards) {
        if (i == 0) return 0;
        begin--;
        while (begin > 0 && i - begin < 4 && ((uint8_t)text.at[begin] & 0xc0) == 0x80) begin--;
    }
    if (begin >= text.n) return 0;
    size_t length = gr_utf8_length(text.at + begin, text.n - begin);
    if (length == 0 || (backwards && begin + length != i)) return 0;
    (void)utf8proc_iterate((const utf8proc_uint8_t*)text.at + begin, (utf8proc_ssize_t)length, c);
    return length;
}

static bool inside_word(gr_string text, size_t begin, size_t end)
{
    int32_t c;
    return (character(text, begin, true, &c) > 0 && is_word(c)) ||
           (character(text, end, false, &c) > 0 && is_word(c));
}

bool gr_added_next(const gr_added_set* s, bool normalized, gr_string text, size_t from,
                   size_t* begin, size_t* end, int32_t* id)
{
    for (size_t i = from; i < text.n; i++) {
        if (!s->starts[normalized][(uint8_t)text.at[i]]) continue;
        const gr_added* a = longest(s, normalized, text.at + i, text.n - i);
        if (a == NULL) continue;
        size_t n = gr_strings_get(&s->content, a->text).n, length;
        int32_t c;
        *begin = i;
        *end = i + n;
        *id = a->id;
        if (a->single_word && inside_word(text, *begin, *end)) {
            i += n - 1;
            continue;
        }
        while (a->lstrip && *begin > from && (length = character(text, *begin, true, &c)) > 0 &&
               is_space(c)) {
            *begin -= length;
        }
        *begin = GR_MAX(*begin, from);
        while (a->rstrip && (length = character(text, *end, false, &c)) > 0 && is_space(c)) {
            *end += length;
        }
        return true;
    }
    return false;
}
