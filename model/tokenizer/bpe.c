/* bpe.c - byte-pair encoding of one word, and the tables for it.
 *
 * A word begins as its bytes (or characters); of all neighbours that may merge, those with
 * the least rank do, the leftmost first, until none may (Sennrich et al. 2016). Both
 * searches give the same tokens: short words are scanned, which is quadratic with a tiny
 * constant, long ones keep a heap. Words of text come again and again, so short ones are
 * remembered with their tokens. */
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "host/json.h"
#include "model/tokenizer/parts.h"

#define SCAN_MAX 48 /* symbols of a word that is scanned */
#define NO_RANK  INT32_MAX

/* ---- tables ------------------------------------------------------------------------------ */

int64_t gr_strings_add(gr_strings* s, const char* at, size_t n)
{
    GR_RESERVE(s->bytes, s->bytes_cap, s->n_bytes + (int64_t)n + 1);
    GR_RESERVE(s->end, s->end_cap, s->n + 1);
    if (n > 0) memcpy(s->bytes + s->n_bytes, at, n);
    s->n_bytes += (int64_t)n;
    s->end[s->n] = s->n_bytes;
    return s->n++;
}

gr_string gr_strings_get(const gr_strings* s, int64_t i)
{
    int64_t begin = i > 0 ? s->end[i - 1] : 0;
    return (gr_string){s->bytes + begin, (size_t)(s->end[i] - begin)};
}

void gr_strings_free(gr_strings* s)
{
    free(s->bytes);
    free(s->end);
}

static void* table(uint64_t* mask, int64_t n, size_t elem_size)
{
    uint64_t slots = 16;
    while (slots < 2 * (uint64_t)n) slots *= 2;
    void* p = malloc(slots * elem_size);
    GR_ASSERT(p != NULL, "out of memory");
    memset(p, 0xff, slots * elem_size);
    *mask = slots - 1;
    return p;
}

/* The slot of a piece, or the empty one where it belongs. */
static int32_t* find_slot(const gr_bpe* b, const char* at, size_t n)
{
    for (uint64_t i = XXH3_64bits(at, n);; i++) {
        int32_t* slot = &b->slot[i & b->slot_mask];
        if (*slot < 0) return slot;
        gr_string s = gr_strings_get(&b->piece, *slot);
        if (s.n == n && memcmp(s.at, at, n) == 0) return slot;
    }
}

bool gr_bpe_index(gr_bpe* b, int64_t* twice)
{
    b->slot = table(&b->slot_mask, b->piece.n, sizeof *b->slot);
    for (int64_t id = 0; id < b->piece.n; id++) {
        gr_string s = gr_strings_get(&b->piece, id);
        if (s.n == 0) continue;
        int32_t* slot = find_slot(b, s.at, s.n);
        *twice = id;
        if (*slot >= 0) return false;
        *slot = (int32_t)id;
    }
    return true;
}

int32_t gr_bpe_find(const gr_bpe* b, const char* at, size_t n)
{
    return n > 0 ? *find_slot(b, at, n) : -1;
}

static inline uint64_t pair_of(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

/* The entry of a pair, or the empty one where it belongs. */
static inline gr_merge* find_merge(const gr_bpe* b, uint64_t pair)
{
    uint64_t h = pair * 0x9e3779b97f4a7c15u; /* Fibonacci hashing: the high bits are mixed well */
    for (uint64_t i = h >> 32;; i++) {
        gr_merge* m = &b->merge[i & b->merge_mask];
        if (m->pair == pair || m->pair == GR_NO_PAIR) return m;
    }
}

void gr_bpe_merges_begin(gr_bpe* b, int64_t n)
{
    b->merge = table(&b->merge_mask, n, sizeof *b->merge);
}

bool gr_bpe_add_merge(gr_bpe* b, int32_t left, int32_t right, int32_t rank)
{
    char joined[512], *at = joined;
    gr_string l = gr_strings_get(&b->piece, left), r = gr_strings_get(&b->piece, right);
    if (l.n + r.n > sizeof joined) at = malloc(l.n + r.n);
    GR_ASSERT(at != NULL, "out of memory");
    memcpy(at, l.at, l.n);
    memcpy(at + l.n, r.at, r.n);
    int32_t token = gr_bpe_find(b, at, l.n + r.n);
    if (at != joined) free(at);
    if (token < 0) return false;
    *find_merge(b, pair_of(left, right)) = (gr_merge){pair_of(left, right), rank, token};
    return true;
}

/* All ways to cut a token in two tokens; counts them, and enters them where `rank` says so. */
static int64_t cut_tokens(gr_bpe* b, const int32_t* rank, bool enter)
{
    int64_t n = 0;
    for (int64_t id = 0; id < b->piece.n; id++) {
        gr_string s = gr_strings_get(&b->piece, id);
        for (size_t k = 1; k < s.n; k++) {
            int32_t left = gr_bpe_find(b, s.at, k);
            int32_t right = left < 0 ? -1 : gr_bpe_find(b, s.at + k, s.n - k);
            if (right < 0) continue;
            n++;
            if (!enter) continue;
            *find_merge(b, pair_of(left, right)) = (gr_merge){
                pair_of(left, right), rank != NULL ? rank[id] : (int32_t)id, (int32_t)id};
        }
    }
    return n;
}

void gr_bpe_merge_all(gr_bpe* b, const int32_t* rank)
{
    gr_bpe_merges_begin(b, cut_tokens(b, rank, false));
    (void)cut_tokens(b, rank, true);
}

void gr_bpe_free(gr_bpe* b)
{
    gr_strings_free(&b->piece);
    free(b->slot);
    free(b->merge);
}

/* ---- symbols ----------------------------------------------------------------------------- */

/* Some vocabularies lack the tokens of a few control characters. */
static int64_t byte_symbols(const gr_bpe* b, gr_symbol* x, const char* word, size_t n)
{
    int64_t k = 0;
    int32_t last = -1;
    for (size_t i = 0; i < n; i++) {
        int32_t id = b->byte[(uint8_t)word[i]];
        bool fused = id < 0 && last < 0 && i > 0 && b->fuse_unknown;
        last = id;
        if (id < 0) id = fused ? -1 : b->unknown;
        if (id >= 0) x[k++].token = id;
    }
    return k;
}

/* Characters of a word that is not made of bytes. An unknown one becomes its bytes if all of
 * them are tokens, else the unknown token, one for a run of them where they are fused. */
static int64_t character_symbols(const gr_bpe* b, gr_symbol* x, const char* word, size_t n)
{
    int64_t k = 0;
    bool unknown = false; /* the last symbol */
    for (size_t i = 0, length; i < n; i += length) {
        length = GR_MAX(gr_utf8_length(word + i, n - i), 1);
        int32_t id = gr_bpe_find(b, word + i, length);
        bool bytes = id < 0;
        for (size_t j = 0; j < length && bytes; j++) bytes = b->byte[(uint8_t)word[i + j]] >= 0;
        if (bytes) {
            for (size_t j = 0; j < length; j++) x[k++].token = b->byte[(uint8_t)word[i + j]];
        } else if (id >= 0) {
            x[k++].token = id;
        } else if (b->unknown >= 0 && !(unknown && b->fuse_unknown)) {
            x[k++].token = b->unknown;
        }
        unknown = id < 0 && !bytes;
    }
    return k;
}

static int64_t symbols_of(const gr_bpe* b, gr_scratch* s, const char* word, size_t n)
{
    GR_RESERVE(s->symbol, s->symbol_cap, (int64_t)n + 1);
    return b->byte_level ? byte_symbols(b, s->symbol, word, n)
                         : character_symbols(b, s->symbol, word, n);
}

static inline void rank_pair(const gr_bpe* b, gr_symbol* left, const gr_symbol* right)
{
    const gr_merge* m = find_merge(b, pair_of(left->token, right->token));
    bool found = m->pair != GR_NO_PAIR;
    left->rank = found ? m->rank : NO_RANK;
    left->merged = found ? m->token : -1;
}

/* ---- merging ----------------------------------------------------------------------------- */

/* Returns how many symbols are left. */
static int64_t merge_by_scan(const gr_bpe* b, gr_symbol* x, int64_t n)
{
    for (int64_t i = 0; i + 1 < n; i++) rank_pair(b, &x[i], &x[i + 1]);
    while (n > 1) {
        int64_t at = 0;
        for (int64_t i = 1; i + 1 < n; i++) at = x[i].rank < x[at].rank ? i : at;
        if (x[at].rank == NO_RANK) break;
        x[at].token = x[at].merged;
        n--;
        memmove(x + at + 1, x + at + 2, (size_t)(n - at - 1) * sizeof *x);
        if (at + 1 < n) rank_pair(b, &x[at], &x[at + 1]);
        if (at > 0) rank_pair(b, &x[at - 1], &x[at]);
    }
    return n;
}

static void heap_push(gr_scratch* s, int64_t* n, const gr_symbol* x, int32_t at)
{
    if (x[at].rank == NO_RANK) return;
    GR_RESERVE(s->heap, s->heap_cap, *n + 1);
    uint64_t key = (uint64_t)(uint32_t)x[at].rank << 32 | (uint32_t)at;
    int64_t i = (*n)++;
    for (; i > 0 && s->heap[(i - 1) / 2] > key; i = (i - 1) / 2) s->heap[i] = s->heap[(i - 1) / 2];
    s->heap[i] = key;
}

static uint64_t heap_pop(gr_scratch* s, int64_t* n)
{
    uint64_t top = s->heap[0], last = s->heap[--*n];
    int64_t i = 0;
    for (int64_t child; (child = 2 * i + 1) < *n; i = child) {
        if (child + 1 < *n && s->heap[child + 1] < s->heap[child]) child++;
        if (s->heap[child] >= last) break;
        s->heap[i] = s->heap[child];
    }
    s->heap[i] = last;
    return top;
}

/* The same with links between symbols; an entry of the heap holds as long as its symbol
 * begins a pair of that rank. */
static int64_t merge_by_heap(const gr_bpe* b, gr_scratch* s, int64_t n)
{
    gr_symbol* x = s->symbol;
    int64_t n_heap = 0;
    for (int64_t i = 0; i < n; i++) {
        x[i].previous = (int32_t)i - 1;
        x[i].next = i + 1 < n ? (int32_t)i + 1 : -1;
        x[i].rank = NO_RANK;
        if (i + 1 < n) rank_pair(b, &x[i], &x[i + 1]);
        heap_push(s, &n_heap, x, (int32_t)i);
    }
    while (n_heap > 0) {
        uint64_t top = heap_pop(s, &n_heap);
        int32_t at = (int32_t)(uint32_t)top, next = x[at].next, rank = (int32_t)(top >> 32);
        if (x[at].token < 0 || next < 0 || x[at].rank != rank) continue;
        x[at].token = x[at].merged;
        x[at].next = x[next].next;
        x[next].token = -1;
        x[at].rank = NO_RANK;
        if (x[at].next >= 0) {
            x[x[at].next].previous = at;
            rank_pair(b, &x[at], &x[x[at].next]);
            heap_push(s, &n_heap, x, at);
        }
        if (x[at].previous >= 0) {
            rank_pair(b, &x[x[at].previous], &x[at]);
            heap_push(s, &n_heap, x, x[at].previous);
        }
    }
    int64_t left = 0;
    for (int64_t i = 0; i >= 0 && i < n; i = x[i].next) x[left++].token = x[i].token;
    return left;
}

/* ---- a word ------------------------------------------------------------------------------ */

static int64_t merge_word(const gr_bpe* b, gr_scratch* s, const char* word, size_t n)
{
    if (b->whole_first) {
        int32_t id = gr_bpe_find(b, word, n);
        if (id >= 0) {
            GR_RESERVE(s->symbol, s->symbol_cap, 1);
            s->symbol[0].token = id;
            return 1;
        }
    }
    int64_t k = symbols_of(b, s, word, n);
    return k <= SCAN_MAX ? merge_by_scan(b, s->symbol, k) : merge_by_heap(b, s, k);
}

void gr_bpe_word(const gr_bpe* b, gr_scratch* s, const char* word, size_t n)
{
    gr_cached* c = NULL;
    if (n <= GR_CACHE_WORD) {
        c = &s->cache[XXH3_64bits(word, n) % GR_CACHE_SLOTS];
        if (c->n_word == n && memcmp(c->word, word, n) == 0) {
            for (int i = 0; i < c->n_tokens; i++) gr_put_token(s, c->token[i]);
            return;
        }
    }
    int64_t k = merge_word(b, s, word, n);
    for (int64_t i = 0; i < k; i++) gr_put_token(s, s->symbol[i].token);
    if (c == NULL || k > GR_CACHE_TOKENS) return;
    c->n_word = (uint8_t)n;
    c->n_tokens = (uint8_t)k;
    memcpy(c->word, word, n);
    for (int64_t i = 0; i < k; i++) c->token[i] = s->symbol[i].token;
}
