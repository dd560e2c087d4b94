/* tokenizer.h - text to tokens and back. Level 1.
 *
 * A vocabulary is read once and never changes: any thread may use it. The byte tokenizer,
 * token = byte, needs no vocabulary and is written NULL. Sampled tokens are appended as they
 * are and never encoded again; the bytes of a sequence are the bytes of its tokens, one
 * after the other.
 *
 * Models come with byte-pair encodings (Sennrich et al. 2016) in three kinds of files:
 * tokenizer.json, a tiktoken rank file, and arrays inside a GGUF file. All three become the
 * same tables:
 *
 *     text --added tokens--> spans --normalise--> spans --split--> words --merge pairs--> tokens
 *            (markup only)          (NFC)                (PCRE2)
 *
 * Bytes that are no UTF-8 are words of their own; byte-level vocabularies keep them, as
 * every other byte. */
#pragma once
#include "host/base.h"

#define GR_BYTE_VOCAB 256

typedef struct gr_tokenizer gr_tokenizer;

/* In plain text nothing is more than text: what a world or a user says cannot forge the end
 * of a turn. In markup the vocabulary's added tokens (<|im_end|>, <think>, ..) are
 * recognised, and decoding spells special ones, which is what the reference implementation
 * does by default. */
typedef enum gr_text_kind { GR_PLAIN, GR_MARKUP } gr_text_kind;

/* Writes at most `cap` tokens; returns how many the text needs. */
int gr_encode(const gr_tokenizer* t, gr_text_kind kind, const char* text, int n_bytes,
              int32_t* token, int cap);
/* Writes at most cap - 1 bytes and a terminator; returns the bytes written. Plain: special
 * tokens have no text. Ids outside the vocabulary, which a padded head may sample, have none
 * either. */
int gr_decode(const gr_tokenizer* t, gr_text_kind kind, const int32_t* token, int n, char* text,
              int cap);
/* The bytes of one token as gr_decode gives them; they live as long as t, or in static
 * memory. */
const char* gr_token_text(const gr_tokenizer* t, gr_text_kind kind, int32_t token, int* n_bytes);

int gr_tokenizer_vocab(const gr_tokenizer* t); /* largest id + 1 */
int32_t
gr_tokenizer_bos(const gr_tokenizer* t); /* what a text begins with by default; -1: nothing */
int32_t gr_tokenizer_find(const gr_tokenizer* t, const char* name); /* an added token; -1: none */

typedef struct gr_string {
    const char* at; /* not terminated */
    size_t n;
} gr_string;

/* The next added token of a text at or after `from`: it takes [*begin, *end), with white
 * space that it strips. False: none; with bytes there never is one. */
bool gr_tokenizer_next(const gr_tokenizer* t, gr_string text, size_t from, size_t* begin,
                       size_t* end, int32_t* id);

/* ---- reading ----------------------------------------------------------------------------- */

/* From a folder (its tokenizer.json, else a rank file: tokenizer.model, *.tiktoken) or one
 * such file. Errors name the file, the key and what is not supported. */
GR_MUST_CHECK gr_status gr_tokenizer_load(gr_tokenizer** out, const char* path);
bool gr_tokenizer_exists(const char* path); /* is there one to load? */
/* tokenizer.json from memory; `name` stands for the file in errors. */
GR_MUST_CHECK gr_status gr_tokenizer_from_json(gr_tokenizer** out, const char* name,
                                               const char* text, size_t n_bytes);
/* Lines "base64 rank". The number of ranks tells the family, and with it pattern and special
 * tokens. */
GR_MUST_CHECK gr_status gr_tokenizer_from_ranks(gr_tokenizer** out, const char* name,
                                                const char* text, size_t n_bytes);

/* The keys tokenizer.ggml.* of a GGUF file; borrowed for the call. */
typedef struct gr_token_arrays {
    gr_string model; /* "gpt2": byte-level, with merges; "llama": SentencePiece, with scores */
    gr_string pre;   /* which pre-tokenizer: "qwen2", "llama-bpe", "smollm", ..; model gpt2 only */
    int64_t n_tokens;
    const gr_string* token; /* (n_tokens) */
    const int32_t* type;    /* (n_tokens) as GGUF numbers them; NULL: all normal */
    const float* score;     /* (n_tokens) model llama only */
    int64_t n_merges;
    const gr_string* merge; /* (n_merges) "left right", by rank; model gpt2 only */
    int64_t bos;            /* -1: none */
    bool add_bos, add_space_prefix;
} gr_token_arrays;
GR_MUST_CHECK gr_status gr_tokenizer_from_arrays(gr_tokenizer** out, const char* name,
                                                 const gr_token_arrays* a);

void gr_tokenizer_free(gr_tokenizer* t); /* NULL: nothing */
