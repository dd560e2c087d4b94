/* export_gguf.c - what a GGUF file says beside weights, as the small files of a Hugging Face folder:
 * config.json, generation_config.json and, for byte-level BPE, tokenizer.json and
 * tokenizer_config.json with the chat template. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/checkpoint_parts.h"
#include "host/durable.h"
#include "host/json.h"
#include "model/gguf_weights.h"

/* What the name of a pre-tokenizer stands for, in the words of the tokenizers library. */
typedef struct pre_tokenizer {
    const char *name, *normalizer, *steps;
    bool ignore_merges; /* a piece that is a token is one, whatever the merges say */
} pre_tokenizer;

#define SPLIT(regex)                                                                         \
    "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" regex "\"},\"behavior\":\"Isolated\","   \
    "\"invert\":false},{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":" \
    "false,\"use_regex\":false}"
/* Llama 3 takes up to three digits at a time, Qwen one. */
#define WORDS(digits)                                                              \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|" digits \
    "| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"

static const pre_tokenizer known[] = {
    {"smollm", "null",
     "{\"type\":\"Digits\",\"individual_digits\":true},{\"type\":\"ByteLevel\","
     "\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":true}",
     false},
    {"qwen2", "{\"type\":\"NFC\"}", SPLIT(WORDS("\\\\p{N}")), false},
    {"llama-bpe", "null", SPLIT(WORDS("\\\\p{N}{1,3}")), true},
};

static const pre_tokenizer* find_pre(const gr_gguf_vocab* v)
{
    if (!gr_gguf_is(v->model, "gpt2")) return NULL;
    for (int i = 0; i < GR_COUNT(known); i++) {
        if (gr_gguf_is(v->pre, known[i].name)) return &known[i];
    }
    return NULL;
}

/* ---- files ----------------------------------------------------------------------------------- */

/* A file that is put together in memory. */
typedef struct page {
    FILE* out;
    char* text;
    size_t n;
} page;

static void page_open(page* p)
{
    *p = (page){0};
    p->out = open_memstream(&p->text, &p->n);
    GR_ASSERT(p->out != NULL, "out of memory");
}

static gr_status page_write(page* p, const char* folder, const char* name)
{
    char path[1100];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    bool full = fclose(p->out) != 0;
    gr_status st =
        full ? GR_FAIL(GR_ENOMEM, "%s: out of memory", path) : gr_write_file(path, p->text, p->n);
    free(p->text);
    return st;
}

static void put_text(page* p, gr_gguf_text t) { gr_json_text(p->out, t.at, (size_t)t.n); }

/* ---- tokenizer.json -------------------------------------------------------------------------- */

static bool is_added(int32_t kind)
{
    return kind == GR_TOKEN_CONTROL || kind == GR_TOKEN_USER || kind == GR_TOKEN_UNKNOWN;
}

static void put_added(page* p, const gr_gguf_vocab* v)
{
    const char* comma = "";
    fputs("\"added_tokens\":[", p->out);
    for (int i = 0; i < v->n_tokens; i++) {
        if (!is_added(v->kind[i])) continue;
        fprintf(p->out, "%s\n{\"id\":%d,\"content\":", comma, i);
        put_text(p, v->token[i]);
        fprintf(p->out,
                ",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,"
                "\"special\":%s}",
                v->kind[i] == GR_TOKEN_USER ? "false" : "true");
        comma = ",";
    }
    fputs("],\n", p->out);
}

static void put_model(page* p, const gr_gguf_vocab* v, const pre_tokenizer* pre)
{
    fprintf(p->out,
            "\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,"
            "\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,\"fuse_unk\":false,"
            "\"byte_fallback\":false,\"ignore_merges\":%s,\n\"vocab\":{",
            pre->ignore_merges ? "true" : "false");
    for (int i = 0; i < v->n_tokens; i++) {
        fputs(i > 0 ? ",\n" : "\n", p->out);
        put_text(p, v->token[i]);
        fprintf(p->out, ":%d", i);
    }
    fputs("},\n\"merges\":[", p->out);
    for (int i = 0; i < v->n_merges; i++) {
        fputs(i > 0 ? ",\n" : "\n", p->out);
        put_text(p, v->merge[i]);
    }
    fputs("]}", p->out);
}

static void put_post_processor(page* p, const gr_gguf_vocab* v)
{
    gr_gguf_text bos = v->token[v->bos];
    static const char one[] = "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}";
    static const char two[] = "{\"Sequence\":{\"id\":\"B\",\"type_id\":1}}";
    for (int i = 0; i < 2; i++) {
        fputs(i == 0 ? "{\"type\":\"TemplateProcessing\",\"single\":[" : ",\"pair\":[", p->out);
        fputs("{\"SpecialToken\":{\"id\":", p->out);
        put_text(p, bos);
        fprintf(p->out, ",\"type_id\":0}},%s%s%s]", one, i == 1 ? "," : "", i == 1 ? two : "");
    }
    fputs(",\"special_tokens\":{", p->out);
    put_text(p, bos);
    fputs(":{\"id\":", p->out);
    put_text(p, bos);
    fprintf(p->out, ",\"ids\":[%d],\"tokens\":[", v->bos);
    put_text(p, bos);
    fputs("]}}}", p->out);
}

static gr_status write_tokenizer(const char* folder, const gr_gguf_vocab* v,
                                 const pre_tokenizer* pre)
{
    page p;
    page_open(&p);
    fputs("{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\n", p.out);
    put_added(&p, v);
    fprintf(
        p.out,
        "\"normalizer\":%s,\n\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[%s]},\n"
        "\"post_processor\":",
        pre->normalizer, pre->steps);
    if (v->add_bos) {
        put_post_processor(&p, v);
    } else {
        fputs("null", p.out);
    }
    fputs(",\n\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":true,"
          "\"use_regex\":true},\n",
          p.out);
    put_model(&p, v, pre);
    fputs("}\n", p.out);
    return page_write(&p, folder, "tokenizer.json");
}

/* ---- the smaller ones ------------------------------------------------------------------------ */

static gr_status write_tokenizer_config(const char* folder, const gr_gguf_vocab* v)
{
    const struct {
        const char* key;
        int id;
    } token[] = {{"bos_token", v->bos},
                 {"eos_token", v->eos},
                 {"unk_token", v->unknown},
                 {"pad_token", v->pad}};
    page p;
    page_open(&p);
    fputs("{\"tokenizer_class\":\"PreTrainedTokenizerFast\",\n"
          "\"clean_up_tokenization_spaces\":false",
          p.out);
    for (int i = 0; i < GR_COUNT(token); i++) {
        if (token[i].id < 0) continue;
        fprintf(p.out, ",\n\"%s\":", token[i].key);
        put_text(&p, v->token[token[i].id]);
    }
    if (v->chat_template.n > 0) {
        fputs(",\n\"chat_template\":", p.out);
        put_text(&p, v->chat_template);
    }
    fputs("}\n", p.out);
    return page_write(&p, folder, "tokenizer_config.json");
}

static gr_status write_generation_config(const char* folder, const gr_gguf_vocab* v)
{
    const struct {
        const char* key;
        int id;
    } token[] = {{"bos_token_id", v->bos}, {"eos_token_id", v->eos}, {"pad_token_id", v->pad}};
    page p;
    page_open(&p);
    const char* comma = "{";
    for (int i = 0; i < GR_COUNT(token); i++) {
        if (token[i].id < 0) continue;
        fprintf(p.out, "%s\"%s\": %d", comma, token[i].key, token[i].id);
        comma = ", ";
    }
    fputs(comma[0] == '{' ? "{}\n" : "}\n", p.out);
    return page_write(&p, folder, "generation_config.json");
}

/* ---- all of them ----------------------------------------------------------------------------- */

static gr_status write_all(const gr_gguf* g, const gr_gguf_vocab* v, const char* folder,
                           const char* dtype)
{
    gr_model_config m;
    GR_TRY(gr_gguf_config(g, &m));
    GR_TRY(gr_model_config_export(folder, &m, dtype, NULL));
    GR_TRY(write_generation_config(folder, v));
    const pre_tokenizer* pre = find_pre(v);
    if (pre == NULL) {
        gr_log(
            "warning: %s: no tokenizer.json is written: its kind of vocabulary, `%.*s` `%.*s`, is "
            "none of gpt2 with smollm, qwen2, llama-bpe",
            folder, (int)GR_MIN(v->model.n, 40), v->model.at, (int)GR_MIN(v->pre.n, 40), v->pre.at);
        return GR_OK;
    }
    GR_TRY(write_tokenizer(folder, v, pre));
    return write_tokenizer_config(folder, v);
}

gr_status gr_export_gguf(const char* folder, const char* path, const char* dtype)
{
    gr_gguf g;
    gr_gguf_vocab v = {0};
    GR_TRY(gr_gguf_open(&g, path));
    gr_status st = gr_gguf_vocab_open(&v, &g);
    if (st == GR_OK) st = write_all(&g, &v, folder, dtype);
    gr_gguf_vocab_close(&v);
    gr_gguf_close(&g);
    return st;
}
