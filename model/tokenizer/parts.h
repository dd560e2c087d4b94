/* parts.h - what the files of the tokenizer know of each other. Level 1.
 *
 * A reader (json.c, ranks.c, arrays.c) fills a gr_tokenizer part by part and calls
 * gr_tokenizer_finish; from then on it is constant. What encoding writes to meanwhile lies
 * in a scratch, which threads take from the tokenizer and put back. */
#pragma once
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "host/arena.h"
#include "model/tokenizer.h"

#define GR_MAX_TOKENS (1 << 22) /* of a vocabulary; the largest known have 2^18 */

/* ---- tables ------------------------------------------------------------------------------ */

/* Strings by number, in one block. */
typedef struct gr_strings {
    char* bytes;
    int64_t n_bytes, bytes_cap;
    int64_t* end; /* (n) */
    int64_t n, end_cap;
} gr_strings;

int64_t gr_strings_add(gr_strings* s, const char* at, size_t n); /* its number */
gr_string gr_strings_get(const gr_strings* s, int64_t i);
void gr_strings_free(gr_strings* s);

/* Two tokens become one: the pair that comes first (least rank) is merged first. */
typedef struct gr_merge {
    uint64_t pair; /* left << 32 | right; GR_NO_PAIR: empty slot */
    int32_t rank, token;
} gr_merge;
#define GR_NO_PAIR UINT64_MAX

/* Byte-pair encoding of one word. */
typedef struct gr_bpe {
    gr_strings piece; /* by id: the bytes a token stands for in a word; empty: no word has it */
    int32_t* slot;    /* hash table of ids by piece, -1: empty */
    uint64_t slot_mask;
    gr_merge* merge; /* hash table by pair */
    uint64_t merge_mask;
    int32_t byte[256]; /* the token of a byte, -1: none */
    bool byte_level;   /* words are bytes; else characters, and bytes where one is unknown */
    bool whole_first;  /* a word that is a token is that token, whatever the merges say */
    bool fuse_unknown;
    int32_t unknown; /* -1: unknown characters vanish, as in the reference */
} gr_bpe;

/* ---- words ------------------------------------------------------------------------------- */

#define GR_MAX_SPLITS 16

/* One step of the pre-tokenizer: matches and what lies between them become pieces of their
 * own. */
typedef struct gr_split {
    pcre2_code* regex;
    bool jit;
} gr_split;

/* What happens to a span before it is split. */
typedef struct gr_normalizer {
    bool nfc;
    char space[8];   /* what takes the place of a space; "": spaces stay */
    int prefix;      /* GR_PREFIX_*: where `space` is put in front */
    bool drop_twice; /* no prefix where the text begins with one */
} gr_normalizer;
enum { GR_PREFIX_NONE, GR_PREFIX_SPANS, GR_PREFIX_FIRST };

/* ---- added tokens ------------------------------------------------------------------------ */

typedef struct gr_added {
    int64_t text; /* in gr_added_set.content */
    int32_t id;
    bool special, normalized, lstrip, rstrip, single_word;
} gr_added;

typedef struct gr_added_set {
    gr_strings content;
    gr_added* token; /* sorted by content once finished */
    int64_t n, cap;
    bool starts[2][256]; /* [normalized][first byte] */
} gr_added_set;

/* ---- the whole --------------------------------------------------------------------------- */

typedef struct gr_scratch gr_scratch;
struct gr_tokenizer {
    gr_bpe bpe;
    gr_strings text; /* by id: decoded bytes */
    bool* special;   /* by id */
    int64_t special_cap;
    gr_added_set added;
    gr_normalizer normalizer;
    gr_split split[GR_MAX_SPLITS];
    int n_splits;
    int32_t bos;
    gr_scratch* volatile spare; /* exchanged atomically */
};

/* ---- building: bpe.c, split.c, added.c, tokenizer.c -------------------------------------- */

gr_tokenizer* gr_tokenizer_new(void);
/* After piece, text and added tokens are there: tables and flags. */
void gr_tokenizer_finish(gr_tokenizer* t);

/* Indexes the pieces, each but the empty one once. False: two ids have piece *twice. */
bool gr_bpe_index(gr_bpe* b, int64_t* twice);
int32_t gr_bpe_find(const gr_bpe* b, const char* at, size_t n); /* -1: no token */
/* Merges left and right ids into the token of the joined bytes. The last merge of a pair
 * holds. */
void gr_bpe_merges_begin(gr_bpe* b, int64_t n);
bool gr_bpe_add_merge(gr_bpe* b, int32_t left, int32_t right,
                      int32_t rank); /* false: no such token */
/* Every split of every token into two tokens, by the rank of the token: ranks are ids, or
 * `rank[id]`. */
void gr_bpe_merge_all(gr_bpe* b, const int32_t* rank);
void gr_bpe_free(gr_bpe* b);

/* Adds a step. `key` names the place in the file. */
GR_MUST_CHECK gr_status gr_split_add(gr_tokenizer* t, const char* file, const char* key,
                                     const char* pattern, size_t n, bool literal);
extern const char gr_split_gpt2[], gr_split_llama3[], gr_split_qwen2[], gr_split_digits[];

void gr_added_add(gr_added_set* s, const char* at, size_t n, gr_added token);
void gr_added_finish(gr_added_set* s);
/* The next added token at or after `from` among those with this `normalized`; false: none.
 * What of the text it takes is [*begin, *end), with white space that it strips. */
bool gr_added_next(const gr_added_set* s, bool normalized, gr_string text, size_t from,
                   size_t* begin, size_t* end, int32_t* id);

/* GPT-2 writes bytes as printable characters: 256 of them for 256 bytes. Replaces the n
 * bytes of `s` by the bytes they stand for; returns their number, or -1 with s unchanged
 * where a character stands for none. */
int64_t gr_unmap_bytes(char* s, size_t n);
/* Adds the n bytes of `s` with spaces for the marks that SentencePiece has in their place.
 * Changes s. */
void gr_add_marked_text(gr_strings* text, char* s, size_t n);
#define GR_SPACE_MARK "\xe2\x96\x81" /* U+2581 */

/* ---- encoding ---------------------------------------------------------------------------- */

#define GR_CACHE_WORD   22 /* longest word that is remembered */
#define GR_CACHE_TOKENS 8
#define GR_CACHE_SLOTS  (1 << 15)

/* A word and its tokens: one cache line. */
typedef struct gr_cached {
    uint8_t n_word, n_tokens; /* n_word 0: empty */
    char word[GR_CACHE_WORD];
    int32_t token[GR_CACHE_TOKENS];
} gr_cached;

typedef struct gr_symbol {
    int32_t token, rank, merged; /* rank and result of the pair it begins; INT32_MAX: none */
    int32_t previous, next;      /* -1: none; of long words only */
} gr_symbol;

struct gr_scratch {
    gr_cached* cache; /* (GR_CACHE_SLOTS) */
    gr_symbol* symbol;
    uint64_t* heap; /* rank << 32 | place */
    int64_t symbol_cap, heap_cap;
    char* normal; /* the span that is being split */
    int64_t normal_cap;
    pcre2_match_data* match[GR_MAX_SPLITS];
    pcre2_match_context* context;
    pcre2_jit_stack* stack;
    int32_t* out; /* of the call in progress */
    int n_out, cap_out;
};

static inline void gr_put_token(gr_scratch* s, int32_t token)
{
    if (s->n_out < s->cap_out) s->out[s->n_out] = token;
    s->n_out++;
}

void gr_bpe_word(const gr_bpe* b, gr_scratch* s, const char* word, size_t n);
/* Splits a span of valid UTF-8 from step `step` on and encodes its words. */
void gr_split_span(const gr_tokenizer* t, gr_scratch* s, int step, const char* text, size_t n);
/* The span in its normal form, in s->normal or as it was. `first`: the text begins here. */
gr_string gr_normalize(const gr_normalizer* z, gr_scratch* s, const char* text, size_t n,
                       bool first);
