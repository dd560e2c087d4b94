/* gguf_file.h - writes GGUF files piece by piece, so that tests can write any, into a folder of their
 * own. */
#pragma once
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "model/gguf.h"

#define GGUF_MAX 262144
typedef struct gguf_file {
    unsigned char bytes[GGUF_MAX];
    size_t n;
    /* tensors are announced before their data, so these wait here */
    unsigned char infos[GGUF_MAX / 4], data[GGUF_MAX];
    size_t n_infos, n_data;
    uint64_t n_tensors, n_values;
    uint32_t version, alignment;
} gguf_file;

static inline void gguf_put(gguf_file* f, const void* data, size_t n)
{
    GR_ASSERT(f->n + n <= sizeof f->bytes);
    memcpy(f->bytes + f->n, data, n);
    f->n += n;
}
static inline void gguf_u32(gguf_file* f, uint32_t x) { gguf_put(f, &x, sizeof x); }
static inline void gguf_u64(gguf_file* f, uint64_t x) { gguf_put(f, &x, sizeof x); }
static inline void gguf_text(gguf_file* f, const char* text)
{
    gguf_u64(f, strlen(text));
    gguf_put(f, text, strlen(text));
}

static inline gguf_file* gguf_begin(uint32_t version)
{
    gguf_file* f = calloc(1, sizeof *f);
    GR_ASSERT(f != NULL);
    f->version = version;
    f->alignment = 32;
    f->n = 24; /* filled in at the end */
    return f;
}

static inline void gguf_key(gguf_file* f, const char* key, gr_gguf_type type)
{
    gguf_text(f, key);
    gguf_u32(f, type);
    f->n_values++;
}
static inline void gguf_set_u32(gguf_file* f, const char* key, uint32_t x)
{
    gguf_key(f, key, GR_GGUF_U32);
    gguf_u32(f, x);
    if (strcmp(key, "general.alignment") == 0) f->alignment = x;
}
static inline void gguf_set_f32(gguf_file* f, const char* key, float x)
{
    gguf_key(f, key, GR_GGUF_F32);
    gguf_put(f, &x, sizeof x);
}
static inline void gguf_set_bool(gguf_file* f, const char* key, bool x)
{
    gguf_key(f, key, GR_GGUF_BOOL);
    gguf_put(f, &(unsigned char){x}, 1);
}
static inline void gguf_set_text(gguf_file* f, const char* key, const char* text)
{
    gguf_key(f, key, GR_GGUF_TEXT);
    gguf_text(f, text);
}
/* The caller puts `n` items of the type. */
static inline void gguf_set_array(gguf_file* f, const char* key, gr_gguf_type type, uint64_t n)
{
    gguf_key(f, key, GR_GGUF_ARRAY);
    gguf_u32(f, type);
    gguf_u64(f, n);
}

/* rows = 0: a vector. */
static inline void gguf_tensor(gguf_file* f, const char* name, uint64_t rows, uint64_t cols,
                               uint32_t type, const void* data, size_t bytes)
{
    size_t at = (f->n_data + f->alignment - 1) / f->alignment * f->alignment, n = f->n;
    GR_ASSERT(at + bytes <= sizeof f->data);
    memcpy(f->data + at, data, bytes);
    f->n_data = at + bytes;
    gguf_text(f, name);
    gguf_u32(f, rows > 0 ? 2 : 1);
    gguf_u64(f, cols);
    if (rows > 0) gguf_u64(f, rows);
    gguf_u32(f, type);
    gguf_u64(f, at);
    GR_ASSERT(f->n_infos + (f->n - n) <= sizeof f->infos);
    memcpy(f->infos + f->n_infos, f->bytes + n, f->n - n);
    f->n_infos += f->n - n;
    f->n = n;
    f->n_tensors++;
}

/* Puts all together; to be called once. */
static inline void gguf_end(gguf_file* f)
{
    size_t n = f->n;
    f->n = 0;
    gguf_put(f, "GGUF", 4);
    gguf_u32(f, f->version);
    gguf_u64(f, f->n_tensors);
    gguf_u64(f, f->n_values);
    f->n = n;
    gguf_put(f, f->infos, f->n_infos);
    while (f->n_data > 0 && f->n % f->alignment != 0) gguf_put(f, "", 1);
    gguf_put(f, f->data, f->n_data);
}

/* ---- fixtures -------------------------------------------------------------------------------- */

#define ASSERT_OK(call)                                                \
    do {                                                               \
        gr_status got_ = (call);                                       \
        if (got_ != GR_OK) fail_msg("%s: %s", #call, gr_last_error()); \
    } while (0)

static char dir[] = "/tmp/test_gguf_XXXXXX";
static char path[64];
static uint64_t draws;

static inline uint64_t dice(uint64_t n) /* 0: 64 bits */
{
    uint32_t word[4];
    gr_philox(17, 0, draws++, word);
    uint64_t x = (uint64_t)word[0] << 32 | word[1];
    return n == 0 ? x : x % n;
}

static inline int make_dir(void** state)
{
    (void)state;
    if (mkdtemp(dir) == NULL) return -1;
    (void)snprintf(path, sizeof path, "%s/a.gguf", dir);
    return 0;
}

static inline int remove_dir(void** state)
{
    (void)state;
    (void)unlink(path);
    return rmdir(dir);
}

static inline void spill(const char* name, const void* data, size_t n)
{
    FILE* f = fopen(name, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

/* Writes what was built. */
static inline void finish(gguf_file* f)
{
    gguf_end(f);
    spill(path, f->bytes, f->n);
    free(f);
}

/* The last failure was of the world, named the file, gave a reason, and took one line. */
static inline void assert_refused(gr_status st, const char* part)
{
    const char* text = gr_last_error_text();
    if (st != GR_EDATA || strstr(text, path) == NULL || strstr(text, part) == NULL ||
        strchr(text, '\n') != NULL) {
        fail_msg("status %d, `%s`, wanted `%s`", st, text, part);
    }
}

typedef struct words {
    int n_tokens, n_merges, n_kinds, n_scores, bad_kind, eos;
    bool model;
} words;

/* A vocabulary of its own kind, right or wrong. */
static inline void vocab_put(gguf_file* f, const words* w)
{
    char text[32];
    if (w->model) gguf_set_text(f, "tokenizer.ggml.model", "gpt2");
    gguf_set_text(f, "tokenizer.ggml.pre", "smollm");
    gguf_set_array(f, "tokenizer.ggml.tokens", GR_GGUF_TEXT, (uint64_t)w->n_tokens);
    for (int i = 0; i < w->n_tokens; i++) {
        (void)snprintf(text, sizeof text, "%.*s%d", i % 5, "Ġé<>", i);
        gguf_text(f, text);
    }
    gguf_set_array(f, "tokenizer.ggml.token_type", GR_GGUF_I32, (uint64_t)w->n_kinds);
    for (int i = 0; i < w->n_kinds; i++) {
        gguf_u32(f, i == w->bad_kind ? 7 : 1 + (uint32_t)i % 6);
    }
    if (w->n_scores > 0) gguf_set_array(f, "tokenizer.ggml.scores", GR_GGUF_F32, w->n_scores);
    for (int i = 0; i < w->n_scores; i++) gguf_put(f, &(float){-(float)i}, 4);
    gguf_set_array(f, "tokenizer.ggml.merges", GR_GGUF_TEXT, (uint64_t)w->n_merges);
    for (int i = 0; i < w->n_merges; i++) gguf_text(f, i % 2 ? "a b" : "Ġ t");
    gguf_set_u32(f, "tokenizer.ggml.eos_token_id", (uint32_t)w->eos);
    gguf_set_bool(f, "tokenizer.ggml.add_bos_token", false);
}

static inline gguf_file* vocab_file(const words* w)
{
    gguf_file* f = gguf_begin(3);
    vocab_put(f, w);
    return f;
}
