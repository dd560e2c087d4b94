/* vocabulary.c - where the words of a model are found. */
#include "model/vocabulary.h"

#include <stdlib.h>

#include "model/folder.h"

#define PATH_BYTES 1024

static gr_string string_of(gr_gguf_text t) { return (gr_string){t.at, (size_t)t.n}; }

static gr_string* strings_of(const gr_gguf_text* text, int n)
{
    gr_string* out = malloc(((size_t)n + 1) * sizeof *out);
    GR_ASSERT(out != NULL, "out of memory");
    for (int i = 0; i < n; i++) out[i] = string_of(text[i]);
    return out;
}

gr_status gr_tokenizer_from_gguf(gr_tokenizer** out, const gr_gguf* g)
{
    gr_gguf_vocab v;
    *out = NULL;
    GR_TRY(gr_gguf_vocab_open(&v, g));
    gr_string *token = strings_of(v.token, v.n_tokens), *merge = strings_of(v.merge, v.n_merges);
    gr_status st = gr_tokenizer_from_arrays(out, g->path,
                                            &(gr_token_arrays){
                                                .model = string_of(v.model),
                                                .pre = string_of(v.pre),
                                                .n_tokens = v.n_tokens,
                                                .token = token,
                                                .type = v.kind,
                                                .score = v.score,
                                                .n_merges = v.n_merges,
                                                .merge = merge,
                                                .bos = v.bos,
                                                .add_bos = v.add_bos,
                                                .add_space_prefix = v.add_space_prefix,
                                            });
    free(token);
    free(merge);
    gr_gguf_vocab_close(&v);
    return st;
}

/* A file of weights alone is legal. */
static bool has_vocabulary(const gr_gguf* g)
{
    return gr_gguf_find(g, "tokenizer.ggml.model") != NULL ||
           gr_gguf_find(g, "tokenizer.ggml.tokens") != NULL;
}

gr_status gr_model_tokenizer(gr_tokenizer** out, const char* path)
{
    char file[PATH_BYTES];
    gr_gguf g;
    *out = NULL;
    GR_TRY(gr_folder_gguf(path, file, sizeof file));
    if (file[0] == 0) return gr_tokenizer_exists(path) ? gr_tokenizer_load(out, path) : GR_OK;
    GR_TRY(gr_gguf_open(&g, file));
    gr_status st = has_vocabulary(&g) ? gr_tokenizer_from_gguf(out, &g) : GR_OK;
    gr_gguf_close(&g);
    return st;
}

static gr_status chat_of_gguf(const gr_chat_format** out, const gr_gguf* g)
{
    gr_gguf_text t = gr_gguf_text_at(gr_gguf_find(g, "tokenizer.chat_template"));
    if (t.n > 0) return gr_chat_of_template(out, g->path, t.at, (size_t)t.n);
    return GR_FAIL(
        GR_EDATA, "%s: `tokenizer.chat_template` is missing: name a format in model.chat", g->path);
}

gr_status gr_model_chat(const gr_chat_format** out, const char* path)
{
    char file[PATH_BYTES];
    gr_gguf g;
    GR_TRY(gr_folder_gguf(path, file, sizeof file));
    if (file[0] == 0) return gr_chat_of_folder(out, path);
    GR_TRY(gr_gguf_open(&g, file));
    gr_status st = chat_of_gguf(out, &g);
    gr_gguf_close(&g);
    return st;
}
