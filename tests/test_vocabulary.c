/* What a model says of its words: the vocabulary and the chat template of GGUF files and of folders, and
 * runs that begin with them. */
#include "tests/gguf_file.h"

#include <cjson/cJSON.h>
#include <sys/stat.h>

#include "host/json.h"
#include "host/train.h"
#include "model/vocabulary.h"

#define GOLDEN "tests/golden/tokenizer/"
enum { MAX_IDS = 4096, TINY = 8 };

/* Meta-Llama-3-8B-Instruct's. */
static const char llama3[] =
    "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = "
    "'<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim "
    "+ '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif "
    "%}{{ content }}{% endfor %}{% if add_generation_prompt %}{{ "
    "'<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}";

/* ---- GGUF files with the vocabulary of a tokenizer.json ------------------------------------------ */

typedef struct vocabulary {
    cJSON* root;
    const char* token[1024]; /* by id, NULL: none */
    int n_tokens;
} vocabulary;

static const cJSON* at(const cJSON* o, const char* key)
{
    const cJSON* item = cJSON_GetObjectItemCaseSensitive(o, key);
    assert_non_null(item);
    return item;
}

static void name_token(vocabulary* v, int id, const char* text)
{
    assert_true(id >= 0 && id < GR_COUNT(v->token));
    v->token[id] = text;
    v->n_tokens = GR_MAX(v->n_tokens, id + 1);
}

static vocabulary vocabulary_open(const char* name)
{
    char file[128];
    vocabulary v = {0};
    const cJSON* item = NULL;
    (void)snprintf(file, sizeof file, GOLDEN "%s.json", name);
    ASSERT_OK(gr_json_read(file, &v.root));
    cJSON_ArrayForEach(item, at(at(v.root, "model"), "vocab"))
    {
        name_token(&v, item->valueint, item->string);
    }
    cJSON_ArrayForEach(item, at(v.root, "added_tokens"))
    {
        name_token(&v, at(item, "id")->valueint, at(item, "content")->valuestring);
    }
    return v;
}

static int kind_of(const vocabulary* v, int id)
{
    const cJSON* item = NULL;
    cJSON_ArrayForEach(item, at(v->root, "added_tokens"))
    {
        if (at(item, "id")->valueint != id) continue;
        if (strcmp(v->token[id], "<unk>") == 0) return GR_TOKEN_UNKNOWN;
        return cJSON_IsTrue(at(item, "special")) ? GR_TOKEN_CONTROL : GR_TOKEN_USER;
    }
    return strncmp(v->token[id], "<0x", 3) == 0 ? GR_TOKEN_BYTE : GR_TOKEN_NORMAL;
}

static void put_merges(gguf_file* f, const vocabulary* v)
{
    const cJSON *item = NULL, *merges = at(at(v->root, "model"), "merges");
    gguf_set_array(f, "tokenizer.ggml.merges", GR_GGUF_TEXT, (uint64_t)cJSON_GetArraySize(merges));
    cJSON_ArrayForEach(item, merges)
    {
        char pair[256];
        (void)snprintf(pair, sizeof pair, "%s %s", item->child->valuestring,
                       item->child->next->valuestring);
        gguf_text(f, pair);
    }
}

/* As the converters of llama.cpp write it. pre NULL: SentencePiece, whose scores fall with the id. */
static void put_vocabulary(gguf_file* f, const vocabulary* v, const char* pre)
{
    uint64_t n = (uint64_t)v->n_tokens;
    gguf_set_text(f, "tokenizer.ggml.model", pre != NULL ? "gpt2" : "llama");
    if (pre != NULL) gguf_set_text(f, "tokenizer.ggml.pre", pre);
    gguf_set_array(f, "tokenizer.ggml.tokens", GR_GGUF_TEXT, n);
    for (int i = 0; i < v->n_tokens; i++) gguf_text(f, v->token[i]);
    gguf_set_array(f, "tokenizer.ggml.token_type", GR_GGUF_I32, n);
    for (int i = 0; i < v->n_tokens; i++) gguf_u32(f, (uint32_t)kind_of(v, i));
    if (pre != NULL) {
        put_merges(f, v);
    } else {
        gguf_set_array(f, "tokenizer.ggml.scores", GR_GGUF_F32, n);
        for (int i = 0; i < v->n_tokens; i++) gguf_put(f, &(float){-(float)i}, 4);
    }
}

/* A model of one layer: SmolLM2's family, all weights 1/64. */
static void put_weights(gguf_file* f, int vocab)
{
    static const struct {
        const char* name;
        int rows, cols;
    } tensor[] = {{"output_norm.weight", 0, TINY},        {"blk.0.attn_norm.weight", 0, TINY},
                  {"blk.0.attn_q.weight", TINY, TINY},    {"blk.0.attn_k.weight", TINY, TINY},
                  {"blk.0.attn_v.weight", TINY, TINY},    {"blk.0.attn_output.weight", TINY, TINY},
                  {"blk.0.ffn_norm.weight", 0, TINY},     {"blk.0.ffn_gate.weight", TINY, TINY},
                  {"blk.0.ffn_up.weight", TINY, TINY},    {"blk.0.ffn_down.weight", TINY, TINY},
                  {"token_embd.weight", 0 /* vocab */, 0}};
    float x[1024 * TINY];
    for (int i = 0; i < GR_COUNT(x); i++) x[i] = 1.0f / 64;
    gguf_set_text(f, "general.architecture", "llama");
    gguf_set_u32(f, "llama.block_count", 1);
    gguf_set_u32(f, "llama.embedding_length", TINY);
    gguf_set_u32(f, "llama.attention.head_count", 1);
    gguf_set_u32(f, "llama.feed_forward_length", TINY);
    gguf_set_u32(f, "llama.context_length", 512);
    gguf_set_f32(f, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    for (int i = 0; i + 1 < GR_COUNT(tensor); i++) {
        int rows = tensor[i].rows, cols = tensor[i].cols;
        gguf_tensor(f, tensor[i].name, (uint64_t)rows, (uint64_t)cols, GR_QUANT_F32, x,
                    sizeof *x * (size_t)(GR_MAX(rows, 1) * cols));
    }
    gguf_tensor(f, "token_embd.weight", (uint64_t)vocab, TINY, GR_QUANT_F32, x,
                sizeof *x * (size_t)vocab * TINY);
}

/* ---- the same tokens ----------------------------------------------------------------------------- */

static void assert_same_tokens(const gr_tokenizer* a, const gr_tokenizer* b)
{
    static char line[1 << 16];
    static int32_t x[MAX_IDS], y[MAX_IDS];
    int n_lines = 0;
    FILE* f = fopen(GOLDEN "strings.txt", "r");
    assert_non_null(f);
    assert_int_equal(gr_tokenizer_vocab(a), gr_tokenizer_vocab(b));
    for (; fgets(line, sizeof line, f) != NULL; n_lines++) {
        for (int kind = GR_PLAIN; kind <= GR_MARKUP; kind++) {
            int n = gr_encode(a, (gr_text_kind)kind, line, (int)strlen(line), x, MAX_IDS);
            assert_int_equal(gr_encode(b, (gr_text_kind)kind, line, (int)strlen(line), y, MAX_IDS),
                             n);
            assert_memory_equal(x, y, (size_t)n * sizeof *x);
        }
    }
    assert_true(n_lines >= 5000);
    (void)fclose(f);
}

static const struct {
    const char *name, *pre, *bos; /* bos: what a text begins with where the file does not say */
} families[] = {
    {"smollm2", "smollm", NULL},
    {"qwen", "qwen2", NULL},
    {"llama3", "llama-bpe", "<|begin_of_text|>"},
    {"llama2", NULL, "<s>"},
};

static void files_bring_their_vocabulary(void** state)
{
    (void)state;
    for (int i = 0; i < GR_COUNT(families); i++) {
        char json[128];
        gr_tokenizer *want = NULL, *got = NULL;
        vocabulary v = vocabulary_open(families[i].name);
        (void)snprintf(json, sizeof json, GOLDEN "%s.json", families[i].name);
        ASSERT_OK(gr_tokenizer_load(&want, json));
        int bos = families[i].bos != NULL ? gr_tokenizer_find(want, families[i].bos) : -1;
        assert_int_equal(bos >= 0, families[i].bos != NULL);
        gguf_file* f = gguf_begin(3);
        put_vocabulary(f, &v, families[i].pre);
        if (bos >= 0) gguf_set_u32(f, "tokenizer.ggml.bos_token_id", (uint32_t)bos);
        finish(f);
        ASSERT_OK(gr_model_tokenizer(&got, i % 2 ? path : dir)); /* the folder's only one */
        assert_same_tokens(got, want);
        assert_int_equal(gr_tokenizer_bos(got), bos);
        gr_tokenizer_free(got);
        gr_tokenizer_free(want);
        cJSON_Delete(v.root);
    }
}

static void a_file_may_say_what_texts_begin_with(void** state)
{
    (void)state;
    vocabulary v = vocabulary_open("llama3");
    for (int begins = 0; begins < 2; begins++) {
        gr_tokenizer* t = NULL;
        gguf_file* f = gguf_begin(3);
        put_vocabulary(f, &v, begins ? "smollm" : "llama-bpe"); /* against the default of each */
        gguf_set_u32(f, "tokenizer.ggml.bos_token_id", 300);
        gguf_set_bool(f, "tokenizer.ggml.add_bos_token", begins);
        finish(f);
        ASSERT_OK(gr_model_tokenizer(&t, path));
        assert_int_equal(gr_tokenizer_bos(t), begins ? 300 : -1);
        gr_tokenizer_free(t);
    }
    cJSON_Delete(v.root);
}

static void weights_alone_read_bytes(void** state)
{
    (void)state;
    gr_tokenizer* t = (gr_tokenizer*)path;
    gguf_file* f = gguf_begin(3);
    put_weights(f, 300);
    finish(f);
    ASSERT_OK(gr_model_tokenizer(&t, path));
    assert_null(t);
    ASSERT_OK(gr_model_tokenizer(&t, "tests/golden/parity/llama2")); /* a folder of weights alone */
    assert_null(t);
}

static void broken_vocabularies_name_the_file(void** state)
{
    (void)state;
    gr_tokenizer* t = NULL;
    vocabulary v = vocabulary_open("smollm2");
    gguf_file* f = gguf_begin(3);
    put_vocabulary(f, &v, "a-new-one");
    finish(f);
    assert_refused(gr_model_tokenizer(&t, path),
                   "tokenizer.ggml.pre: `a-new-one` is not supported");
    assert_null(t);
    f = gguf_begin(3);
    gguf_set_text(f, "tokenizer.ggml.model", "gpt2");
    finish(f);
    assert_refused(gr_model_tokenizer(&t, path), "`tokenizer.ggml.tokens` is missing");
    v.token[7] = v.token[8]; /* one text, two tokens */
    f = gguf_begin(3);
    put_vocabulary(f, &v, "smollm");
    finish(f);
    assert_refused(gr_model_tokenizer(&t, path), "is there twice");
    assert_null(t);
    cJSON_Delete(v.root);
}

/* ---- folders ------------------------------------------------------------------------------------- */

/* Beside safetensors: tokenizer.json, else tiktoken ranks. */
static void folders_bring_theirs(void** state)
{
    (void)state;
    static const char template[] = "/tmp/test_vocabulary_XXXXXX";
    char folder[sizeof template], file[96];
    gr_tokenizer *want = NULL, *got = NULL;
    memcpy(folder, template, sizeof template);
    assert_non_null(mkdtemp(folder));
    (void)snprintf(file, sizeof file, "%s/config.json", folder);
    spill(file, "{}", 2);
    (void)snprintf(file, sizeof file, "%s/some.tiktoken", folder);
    spill(file, "not ranks", 9);
    assert_int_equal(gr_model_tokenizer(&got, folder), GR_EDATA);
    assert_non_null(strstr(gr_last_error_text(), "some.tiktoken"));
    (void)snprintf(file, sizeof file, "%s/tokenizer.json", folder);
    char here[512], full[700];
    assert_non_null(getcwd(here, sizeof here));
    (void)snprintf(full, sizeof full, "%s/" GOLDEN "smollm2.json", here);
    assert_int_equal(symlink(full, file), 0);
    ASSERT_OK(gr_tokenizer_load(&want, full));
    ASSERT_OK(gr_model_tokenizer(&got, folder));
    assert_same_tokens(got, want);
    gr_tokenizer_free(got);
    gr_tokenizer_free(want);
    (void)unlink(file);
    (void)snprintf(file, sizeof file, "%s/some.tiktoken", folder);
    (void)unlink(file);
    (void)snprintf(file, sizeof file, "%s/config.json", folder);
    (void)unlink(file);
    assert_int_equal(rmdir(folder), 0);
}

/* ---- chat formats and runs ----------------------------------------------------------------------- */

static void write_model(const char* chat_template)
{
    vocabulary v = vocabulary_open("llama3");
    gguf_file* f = gguf_begin(3);
    put_weights(f, v.n_tokens);
    put_vocabulary(f, &v, "llama-bpe");
    if (chat_template != NULL) gguf_set_text(f, "tokenizer.chat_template", chat_template);
    finish(f);
    cJSON_Delete(v.root);
}

static void the_template_chooses_the_format(void** state)
{
    (void)state;
    const gr_chat_format* f = NULL;
    write_model(llama3);
    ASSERT_OK(gr_model_chat(&f, path));
    assert_string_equal(f->name, "llama3");
    f = NULL;
    ASSERT_OK(gr_model_chat(&f, dir));
    assert_string_equal(f->name, "llama3");
    write_model("{{ something_else }}");
    assert_refused(gr_model_chat(&f, path),
                   "name the format it equals in model.chat, or write one");
    write_model(NULL);
    assert_refused(gr_model_chat(&f, path), "name a format in model.chat");
}

static gr_status open_run(gr_run* run, gr_config* c, const char* chat)
{
    char model[100], format[100];
    const char* set[] = {model, format, "rollout.max_live=2", "device.threads=1"};
    (void)snprintf(model, sizeof model, "model.path=%s", path);
    (void)snprintf(format, sizeof format, "model.chat=%s", chat);
    gr_run_settings(c);
    ASSERT_OK(gr_config_load(c, NULL, GR_COUNT(set), set));
    return gr_run_open(run, c, GR_RUN_EVAL, c->model.path, false);
}

static void runs_speak_as_the_file_says(void** state)
{
    (void)state;
    gr_config c;
    gr_run run;
    gr_dialog d;
    char text[512];
    write_model(llama3);
    ASSERT_OK(open_run(&run, &c, "auto"));
    gr_dialog_init(&d, &run.train_settings.dialog);
    gr_dialog_open(&d, gr_envs_world(run.envs), "P_\n_G\n", 6);
    gr_decode(run.tokenizer, GR_MARKUP, d.out.token, d.out.n, text, (int)sizeof text);
    assert_string_equal(text, "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nP_\n_G"
                              "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n");
    assert_int_equal(d.out.token[0], gr_tokenizer_find(run.tokenizer, "<|begin_of_text|>"));
    gr_dialog_free(&d);
    gr_run_close(&run);
    gr_config_free(&c);
    write_model("{{ something_else }}");
    assert_refused(open_run(&run, &c, "auto"), "CONTRIBUTING.md");
    gr_run_close(&run);
    gr_config_free(&c);
    ASSERT_OK(open_run(&run, &c, "none")); /* who does not ask is not refused */
    gr_run_close(&run);
    gr_config_free(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_bring_their_vocabulary),
        cmocka_unit_test(a_file_may_say_what_texts_begin_with),
        cmocka_unit_test(weights_alone_read_bytes),
        cmocka_unit_test(broken_vocabularies_name_the_file),
        cmocka_unit_test(folders_bring_theirs),
        cmocka_unit_test(the_template_chooses_the_format),
        cmocka_unit_test(runs_speak_as_the_file_says),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
