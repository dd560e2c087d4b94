/* gguf.h - what a GGUF file holds: metadata, vocabulary, tensors. Level 1.
 *
 *     "GGUF"  uint32 version (2 or 3)  uint64 tensors  uint64 values
 *     values  key, uint32 type, value                  strings are uint64 length and bytes;
 *             an array is uint32 item type, uint64 count, items
 *     tensors name, uint32 dimensions, uint64 sizes (innermost first), uint32 type, uint64 offset
 *     data    from the next multiple of general.alignment (32) on; offsets count from there
 *
 * All little endian, nothing aligned. (github.com/ggml-org/ggml, docs/gguf.md.) The file stays mapped;
 * texts point into it and end nowhere but where `n` says. Every length is checked against the file at
 * opening, so that what is handed out can be read. */
#pragma once
#include "model/map.h"
#include "model/quant.h"

typedef struct gr_gguf_text {
    const char* at;
    int64_t n;
} gr_gguf_text;

/* The format's numbers. */
typedef enum gr_gguf_type {
    GR_GGUF_U8,
    GR_GGUF_I8,
    GR_GGUF_U16,
    GR_GGUF_I16,
    GR_GGUF_U32,
    GR_GGUF_I32,
    GR_GGUF_F32,
    GR_GGUF_BOOL,
    GR_GGUF_TEXT,
    GR_GGUF_ARRAY,
    GR_GGUF_U64,
    GR_GGUF_I64,
    GR_GGUF_F64,
    GR_GGUF_N_TYPES
} gr_gguf_type;

typedef struct gr_gguf_value {
    gr_gguf_text key;
    gr_gguf_type type; /* of one item */
    bool is_array;     /* of items that are no arrays themselves */
    int64_t count;     /* items; 1 unless an array */
    const unsigned char* at;
} gr_gguf_value;

typedef struct gr_gguf_tensor {
    gr_gguf_text name;
    int n_dims;       /* 1 .. 4 */
    int64_t shape[4]; /* outermost first, as everywhere else here */
    int64_t n;        /* elements */
    gr_quant_type type;
    const unsigned char* data;
    int64_t bytes;
} gr_gguf_tensor;

typedef struct gr_gguf {
    char path[1024]; /* for errors */
    gr_map map;
    gr_gguf_value* value; /* sorted by key */
    int n_values;
    gr_gguf_tensor* tensor; /* sorted by name */
    int n_tensors;
} gr_gguf;

/* Refuses other versions and byte orders, keys and tensors named twice, tensors that overlap, reach
 * beyond the file or have a type that gr_quant_read does not read. */
GR_MUST_CHECK gr_status gr_gguf_open(gr_gguf* g, const char* path);
void gr_gguf_close(gr_gguf* g); /* accepts a zeroed struct and a second call */

const gr_gguf_value* gr_gguf_find(const gr_gguf* g, const char* key); /* NULL: not there */
const gr_gguf_tensor* gr_gguf_find_tensor(const gr_gguf* g, const char* name);
gr_gguf_text
gr_gguf_text_at(const gr_gguf_value* v); /* the first; n = 0 where v is NULL or no text */
bool gr_gguf_is(gr_gguf_text a, const char* b);
/* Item i, false where it is of another kind or beyond an int64. */
bool gr_gguf_whole(const gr_gguf_value* v, int64_t i, int64_t* out); /* integers and booleans */
bool gr_gguf_real(const gr_gguf_value* v, int64_t i, double* out);   /* floats */

/* ---- vocabulary ------------------------------------------------------------------------------ */

/* tokenizer.ggml.*: everything a tokenizer is made from. */
typedef enum gr_token_kind {
    GR_TOKEN_NORMAL = 1,
    GR_TOKEN_UNKNOWN,
    GR_TOKEN_CONTROL, /* special: never the result of encoding plain text */
    GR_TOKEN_USER,    /* added: matched before pre-tokenization */
    GR_TOKEN_UNUSED,
    GR_TOKEN_BYTE /* "<0x41>": what byte fallback writes */
} gr_token_kind;

typedef struct gr_gguf_vocab {
    gr_gguf_text model;         /* "gpt2": byte-level BPE; "llama": SentencePiece */
    gr_gguf_text pre;           /* name of the pre-tokenizer; n = 0: none given */
    gr_gguf_text chat_template; /* Jinja; n = 0: none */
    gr_gguf_text* token;        /* (n_tokens) */
    int32_t* kind;              /* (n_tokens) gr_token_kind */
    float* score;               /* (n_tokens) of SentencePiece; NULL: none */
    gr_gguf_text* merge;        /* (n_merges) "left right", best first */
    int n_tokens, n_merges;
    int bos, eos, unknown, pad; /* ids, -1: none */
    int add_eos;                /* 1, 0, or -1: not said */
    /* Where the file does not say: as llama.cpp, true for SentencePiece and, of a text's beginning,
     * for llama-bpe. Without a bos nothing is added. */
    bool add_bos, add_space_prefix;
} gr_gguf_vocab;

/* Its texts point into g's file. EDATA where the file has none, or one that contradicts itself. */
GR_MUST_CHECK gr_status gr_gguf_vocab_open(gr_gguf_vocab* v, const gr_gguf* g);
void gr_gguf_vocab_close(gr_gguf_vocab* v); /* accepts a zeroed struct and a second call */
