/* export.c - a trained model as a folder that other programs load. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/checkpoint_parts.h"
#include "host/durable.h"

#define PATH_BYTES  1024
#define LARGEST     (256 << 20) /* bytes of a carried file; tokenizers have some 20 MB */
#define COPY_CHUNKS 65536

/* What belongs to a model beside weights and shape, and training leaves as it was. */
static const char* const carried[] = {
    "generation_config.json",  "tokenizer.json",  "tokenizer_config.json",
    "special_tokens_map.json", "vocab.json",      "merges.txt",
    "added_tokens.json",       "tokenizer.model", "chat_template.jinja",
};

static gr_status join(char out[PATH_BYTES], const char* folder, const char* name)
{
    int n = snprintf(out, PATH_BYTES, "%s/%s", folder, name);
    if (n < PATH_BYTES) return GR_OK;
    return GR_FAIL(GR_EARG, "%.80s...: path of %d bytes", folder, n);
}

static gr_status read_whole(const char* path, char** text, size_t* n)
{
    FILE* f = fopen(path, "rbe");
    if (f == NULL) return GR_FAIL(GR_EIO, "%s: cannot open: %s", path, strerror(errno));
    gr_status st = GR_OK;
    size_t cap = 0, more = 1;
    while (more > 0 && st == GR_OK) {
        if (cap - *n < COPY_CHUNKS) {
            cap = 2 * cap + COPY_CHUNKS;
            char* larger = cap <= LARGEST ? realloc(*text, cap) : NULL;
            if (larger == NULL) {
                GR_GOTO(st, GR_FAIL(GR_EDATA, "%s: too large to be carried along", path), out);
            }
            *text = larger;
        }
        more = fread(*text + *n, 1, cap - *n, f);
        *n += more;
    }
    if (ferror(f)) st = GR_FAIL(GR_EIO, "%s: cannot read: %s", path, strerror(errno));
out:
    (void)fclose(f);
    return st;
}

static gr_status carry(const char* folder, const char* source)
{
    char from[PATH_BYTES], to[PATH_BYTES];
    for (int i = 0; i < GR_COUNT(carried); i++) {
        char* text = NULL;
        size_t n = 0;
        GR_TRY(join(from, source, carried[i]));
        GR_TRY(join(to, folder, carried[i]));
        if (!gr_exists(from)) continue;
        gr_status st = read_whole(from, &text, &n);
        if (st == GR_OK) st = gr_write_file(to, text, n);
        free(text);
        GR_TRY(st);
    }
    return GR_OK;
}

static gr_status check_empty(const char* folder)
{
    gr_status st = GR_OK;
    DIR* dir = opendir(folder);
    for (const struct dirent* e; dir != NULL && st == GR_OK && (e = readdir(dir)) != NULL;) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        st = GR_FAIL(GR_EARG, "%s: the folder is not empty", folder);
    }
    if (dir != NULL) (void)closedir(dir);
    return st;
}

gr_status gr_export(const gr_weights* w, const char* folder, const char* source,
                    gr_file_dtype dtype, int64_t shard_bytes)
{
    const char* name = dtype == GR_FILE_BF16  ? "bfloat16"
                       : dtype == GR_FILE_F16 ? "float16"
                                              : "float32";
    GR_ASSERT(dtype != GR_FILE_ACC);
    GR_TRY(gr_make_folders(folder));
    GR_TRY(check_empty(folder));
    char gguf[PATH_BYTES] = "";
    if (source != NULL) GR_TRY(gr_folder_gguf(source, gguf, sizeof gguf));
    if (gguf[0] != 0) {
        GR_TRY(gr_export_gguf(folder, gguf, name));
    } else {
        if (source != NULL) GR_TRY(carry(folder, source));
        GR_TRY(gr_model_config_export(folder, &w->config, name, source));
    }
    GR_TRY(gr_folder_save(w, folder, dtype, shard_bytes));
    return gr_sync(folder);
}
