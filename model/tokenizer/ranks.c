/* ranks.c - tiktoken rank files, and finding the tokenizer of a folder.
 *
 * A rank file holds the bytes of every token and no more; any two tokens whose bytes make a
 * third may merge, by the third's rank. Patterns and special tokens are constants of the
 * programs that read such files, so a family is known by its number of ranks. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "model/tokenizer/parts.h"

#define PATH_BYTES 1024
#define FILE_MAX   (128 << 20)

/* Special tokens follow the ranks in this order; %d counts from `numbered`. */
typedef struct family {
    int64_t n_ranks;
    const char* pattern;
    bool nfc;
    const char* special[12];
    const char* numbered;
    int first, last; /* what %d runs over; last < first: nothing */
    bool bos;        /* texts begin with the first special token */
} family;

static const family families[] = {
    {128000,
     gr_split_llama3,
     false,
     {"<|begin_of_text|>", "<|end_of_text|>", "<|reserved_special_token_0|>",
      "<|reserved_special_token_1|>", "<|finetune_right_pad_id|>", "<|step_id|>",
      "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|eot_id|>", "<|python_tag|>",
      "<|image|>"},
     "<|reserved_special_token_%d|>",
     2,
     245,
     true},
    {151643,
     gr_split_qwen2,
     true,
     {"<|endoftext|>", "<|im_start|>", "<|im_end|>"},
     "<|extra_%d|>",
     0,
     204,
     false},
};

static const family* family_of(int64_t n_ranks)
{
    for (int i = 0; i < GR_COUNT(families); i++) {
        if (families[i].n_ranks == n_ranks) return &families[i];
    }
    return NULL;
}

static int digit(char c)
{
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* Bytes of base64 text, at most cap; -1: it is none, or too long. */
static int64_t decode_base64(const char* s, size_t n, char* out, size_t cap)
{
    uint32_t bits = 0;
    int held = 0;
    size_t k = 0;
    while (n > 0 && s[n - 1] == '=') n--;
    for (size_t i = 0; i < n; i++) {
        int d = digit(s[i]);
        if (d < 0) return -1;
        bits = bits << 6 | (uint32_t)d;
        held += 6;
        if (held < 8) continue;
        held -= 8;
        if (k == cap) return -1;
        out[k++] = (char)(bits >> held);
    }
    return (int64_t)k;
}

/* One line "base64 rank"; ranks are consecutive. */
GR_MUST_CHECK static gr_status add_rank(gr_tokenizer* t, const char* name, const char* line,
                                        size_t n)
{
    char bytes[512], rank[16] = "";
    int64_t id = t->bpe.piece.n;
    const char* space = memchr(line, ' ', n);
    size_t n_text = space != NULL ? (size_t)(space - line) : n;
    int64_t n_bytes = decode_base64(line, n_text, bytes, sizeof bytes);
    if (space != NULL && n - n_text - 1 < sizeof rank) memcpy(rank, space + 1, n - n_text - 1);
    if (n_bytes <= 0 || rank[0] == 0 || strtoll(rank, NULL, 10) != id || id >= GR_MAX_TOKENS) {
        return GR_FAIL(GR_EDATA, "%s: line %lld: not the base64 text of token %lld and its rank",
                       name, (long long)id + 1, (long long)id);
    }
    (void)gr_strings_add(&t->bpe.piece, bytes, (size_t)n_bytes);
    (void)gr_strings_add(&t->text, bytes, (size_t)n_bytes);
    if (n_bytes == 1) t->bpe.byte[(uint8_t)bytes[0]] = (int32_t)id;
    return GR_OK;
}

static void add_special(gr_tokenizer* t, const char* content)
{
    int32_t id = (int32_t)gr_strings_add(&t->text, content, strlen(content));
    gr_added_add(&t->added, content, strlen(content), (gr_added){.id = id, .special = true});
}

static void add_specials(gr_tokenizer* t, const family* f)
{
    for (int i = 0; i < GR_COUNT(f->special) && f->special[i] != NULL; i++) {
        add_special(t, f->special[i]);
    }
    const char* number = strchr(f->numbered, '%');
    for (int i = f->first; i <= f->last; i++) {
        char content[64];
        (void)snprintf(content, sizeof content, "%.*s%d%s", (int)(number - f->numbered),
                       f->numbered, i, number + 2);
        add_special(t, content);
    }
    if (f->bos) t->bos = (int32_t)f->n_ranks;
}

static gr_status read_ranks(gr_tokenizer* t, const char* name, const char* text, size_t n)
{
    int64_t twice = 0;
    t->bpe.byte_level = t->bpe.whole_first = true;
    for (size_t i = 0; i < n;) {
        const char* newline = memchr(text + i, '\n', n - i);
        size_t end = newline != NULL ? (size_t)(newline - text) : n;
        if (end > i) GR_TRY(add_rank(t, name, text + i, end - i));
        i = end + 1;
    }
    const family* f = family_of(t->bpe.piece.n);
    if (f == NULL) {
        return GR_FAIL(GR_EDATA,
                       "%s: %lld ranks are of no known family (Llama 3 has 128000, Qwen 151643)",
                       name, (long long)t->bpe.piece.n);
    }
    for (int i = 0; i < 256; i++) {
        if (t->bpe.byte[i] < 0) return GR_FAIL(GR_EDATA, "%s: byte 0x%02X has no token", name, i);
    }
    if (!gr_bpe_index(&t->bpe, &twice)) {
        return GR_FAIL(GR_EDATA, "%s: line %lld: the token is there twice", name,
                       (long long)twice + 1);
    }
    gr_bpe_merge_all(&t->bpe, NULL);
    t->normalizer.nfc = f->nfc;
    GR_TRY(gr_split_add(t, name, "pattern", f->pattern, strlen(f->pattern), false));
    add_specials(t, f);
    gr_tokenizer_finish(t);
    return GR_OK;
}

gr_status gr_tokenizer_from_ranks(gr_tokenizer** out, const char* name, const char* text,
                                  size_t n_bytes)
{
    gr_tokenizer* t = gr_tokenizer_new();
    gr_status st = read_ranks(t, name, text, n_bytes);
    *out = st == GR_OK ? t : NULL;
    if (st != GR_OK) gr_tokenizer_free(t);
    return st;
}

/* ---- files ------------------------------------------------------------------------------- */

GR_MUST_CHECK static gr_status read_file(const char* path, char** text, size_t* n)
{
    struct stat info;
    FILE* f = fopen(path, "rbe");
    if (f == NULL) return GR_FAIL(GR_EIO, "%s: cannot open: %s", path, strerror(errno));
    gr_status st = GR_OK;
    if (fstat(fileno(f), &info) != 0 || !S_ISREG(info.st_mode) || info.st_size > FILE_MAX) {
        GR_GOTO(st, GR_FAIL(GR_EDATA, "%s: no regular file of at most %d bytes", path, FILE_MAX),
                out);
    }
    *n = (size_t)info.st_size;
    *text = malloc(*n + 1);
    if (*text == NULL) GR_GOTO(st, GR_FAIL(GR_ENOMEM, "%s: out of memory", path), out);
    if (fread(*text, 1, *n, f) != *n) st = GR_FAIL(GR_EIO, "%s: cannot read", path);
out:
    (void)fclose(f);
    return st;
}

static bool ends_with(const char* s, const char* end)
{
    size_t n = strlen(s), n_end = strlen(end);
    return n >= n_end && strcmp(s + n - n_end, end) == 0;
}

/* The tokenizer's file in a folder: the first of these names. */
static bool find_file(const char* folder, char path[PATH_BYTES])
{
    static const char* const names[] = {"tokenizer.json", "tokenizer.model", ".tiktoken"};
    char best[256] = "";
    for (int i = 0; i < GR_COUNT(names) && best[0] == 0; i++) {
        DIR* dir = opendir(folder);
        for (const struct dirent* e; dir != NULL && (e = readdir(dir)) != NULL;) {
            bool fits = i < 2 ? strcmp(e->d_name, names[i]) == 0 : ends_with(e->d_name, names[i]);
            bool before = best[0] == 0 || strcmp(e->d_name, best) < 0;
            if (fits && before) (void)snprintf(best, sizeof best, "%s", e->d_name);
        }
        if (dir != NULL) (void)closedir(dir);
    }
    return best[0] != 0 && snprintf(path, PATH_BYTES, "%s/%s", folder, best) < PATH_BYTES;
}

bool gr_tokenizer_exists(const char* path)
{
    char file[PATH_BYTES];
    struct stat info;
    if (stat(path, &info) != 0) return false;
    return S_ISDIR(info.st_mode) ? find_file(path, file)
                                 : ends_with(path, ".json") || ends_with(path, ".model") ||
                                       ends_with(path, ".tiktoken");
}

gr_status gr_tokenizer_load(gr_tokenizer** out, const char* path)
{
    char file[PATH_BYTES];
    char* text = NULL;
    size_t n = 0;
    struct stat info;
    *out = NULL;
    if (snprintf(file, sizeof file, "%s", path) >= PATH_BYTES) {
        return GR_FAIL(GR_EARG, "%.80s...: path too long", path);
    }
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode) && !find_file(path, file)) {
        return GR_FAIL(GR_EIO, "%s: no tokenizer.json, tokenizer.model or .tiktoken here", path);
    }
    gr_status st = read_file(file, &text, &n);
    if (st == GR_OK) {
        st = ends_with(file, ".json") ? gr_tokenizer_from_json(out, file, text, n)
                                      : gr_tokenizer_from_ranks(out, file, text, n);
    }
    free(text);
    return st;
}
