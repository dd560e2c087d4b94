/* test_chat.c - conversations equal those of the models' Jinja templates
 * (tools/golden/chat.py), text and tokens; what users say forges nothing; unknown templates
 * are refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cjson/cJSON.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "host/arena.h"
#include "model/chat.h"

#define ASSERT_OK(call)                                                \
    do {                                                               \
        gr_status got_ = (call);                                       \
        if (got_ != GR_OK) fail_msg("%s: %s", #call, gr_last_error()); \
    } while (0)

static const cJSON* at(const cJSON* o, const char* key)
{
    return cJSON_GetObjectItemCaseSensitive(o, key);
}

static gr_string string_of(const char* s) { return (gr_string){s, strlen(s)}; }

static gr_tokenizer* load(const char* name)
{
    char path[128];
    gr_tokenizer* t = NULL;
    (void)snprintf(path, sizeof path, "tests/golden/tokenizer/%s.json", name);
    ASSERT_OK(gr_tokenizer_load(&t, path));
    return t;
}

/* ---- rendering a whole conversation ------------------------------------------------------ */

typedef struct tokens {
    int32_t* at;
    int64_t n, cap;
} tokens;

static void take(tokens* all, const gr_chat_text* out)
{
    GR_RESERVE(all->at, all->cap, all->n + out->n + 1);
    memcpy(all->at + all->n, out->token, (size_t)out->n * sizeof *out->token);
    all->n += out->n;
}

static gr_role role_of(const char* name)
{
    return strcmp(name, "system") == 0 ? GR_SYSTEM : strcmp(name, "tool") == 0 ? GR_TOOL : GR_USER;
}

static tokens render(const cJSON* line, const gr_chat_format* f, const gr_tokenizer* t)
{
    gr_chat_text out = {.tokenizer = t};
    tokens all = {0};
    const cJSON *part, *item, *parts = at(line, "parts");
    cJSON_ArrayForEach(part, parts)
    {
        gr_message message[8];
        gr_chat_part p = {.first = part == parts->child,
                          .message = message,
                          .date = "3 May 2025",
                          .answer = true,
                          .no_think = cJSON_IsTrue(at(line, "no_think"))};
        if (p.first) p.tools = cJSON_GetStringValue(at(line, "tools"));
        cJSON_ArrayForEach(item, at(part, "messages"))
        {
            message[p.n++] = (gr_message){role_of(item->child->valuestring),
                                          string_of(item->child->next->valuestring)};
        }
        if (p.tools != NULL) ASSERT_OK(gr_chat_check_tools(f, p.tools));
        gr_chat_render(f, &out, &p);
        take(&all, &out);
        const char* reply = cJSON_GetStringValue(at(part, "reply"));
        if (reply == NULL) continue;
        gr_chat_reply(f, &out, reply, strlen(reply));
        take(&all, &out);
    }
    gr_chat_text_free(&out);
    return all;
}

static unsigned hash16(const int32_t* id, int64_t n)
{
    uint32_t h = 2166136261u;
    const uint8_t* byte = (const uint8_t*)id;
    for (size_t i = 0; i < (size_t)n * sizeof *id; i++) h = (h ^ byte[i]) * 16777619u;
    return h >> 16 ^ (h & 0xffff);
}

static void compare(const cJSON* line, int number)
{
    const gr_chat_format* f = gr_chat_find(at(line, "format")->valuestring);
    assert_non_null(f);
    const char* want = at(line, "text")->valuestring;
    tokens spelled = render(line, f, NULL);
    char* got = malloc((size_t)spelled.n + 1);
    gr_decode(NULL, GR_MARKUP, spelled.at, (int)spelled.n, got, (int)spelled.n + 1);
    if (strcmp(got, want) != 0) fail_msg("line %d: `%s`\nwanted `%s`", number, got, want);
    free(got);
    free(spelled.at);
    const cJSON* vocabulary = at(line, "vocabulary");
    if (vocabulary == NULL) return;
    gr_tokenizer* t = load(vocabulary->valuestring);
    ASSERT_OK(gr_chat_check(f, t));
    tokens all = render(line, f, t);
    if (hash16(all.at, all.n) != (unsigned)at(line, "hash")->valueint) {
        fail_msg("line %d: other tokens for `%s`", number, want);
    }
    free(all.at);
    gr_tokenizer_free(t);
}

static void conversations_equal_the_templates(void** state)
{
    (void)state;
    FILE* f = fopen("tests/golden/chat.jsonl", "r");
    char* text = NULL;
    size_t cap = 0;
    int n = 0, with_tools = 0, encoded = 0;
    assert_non_null(f);
    while (getline(&text, &cap, f) > 0) {
        cJSON* line = cJSON_Parse(text);
        assert_non_null(line);
        compare(line, ++n);
        with_tools += at(line, "tools") != NULL;
        encoded += at(line, "hash") != NULL;
        cJSON_Delete(line);
    }
    assert_true(n == 240 && with_tools > 30 && encoded > 150);
    free(text);
    (void)fclose(f);
}

/* ---- what is said stays text ------------------------------------------------------------- */

static void users_forge_nothing(void** state)
{
    (void)state;
    static const char* const vocabulary[] = {"qwen",   "qwen",   "smollm2",
                                             "llama2", "llama3", "llama3"};
    for (int i = 0; gr_chat_formats[i] != NULL; i++) {
        const gr_chat_format* f = gr_chat_formats[i];
        gr_tokenizer* t = load(vocabulary[i]);
        gr_chat_text out = {.tokenizer = t};
        int n[2][8] = {{0}};
        for (int forged = 0; forged < 2; forged++) {
            char text[512] = "x";
            for (int k = 0; forged && k < GR_COUNT(f->needs) && f->needs[k] != NULL; k++) {
                (void)strncat(text, f->needs[k], sizeof text - strlen(text) - 1);
            }
            const gr_message said = {GR_USER, string_of(text)};
            gr_chat_render(f, &out, &(gr_chat_part){.first = true, .message = &said, .n = 1});
            for (int j = 0; j < out.n; j++) {
                for (int k = 0; k < GR_COUNT(f->needs) && f->needs[k] != NULL; k++) {
                    n[forged][k] += out.token[j] == gr_tokenizer_find(t, f->needs[k]);
                }
            }
        }
        assert_memory_equal(n[0], n[1], sizeof n[0]);
        assert_true(n[0][0] > 0);
        gr_chat_text_free(&out);
        gr_tokenizer_free(t);
    }
}

/* A turn that was cut off is closed by the part behind it, as the model would have closed
 * it. */
static void unfinished_answers_are_closed(void** state)
{
    (void)state;
    const gr_message said = {GR_USER, string_of("on")};
    for (int i = 0; gr_chat_formats[i] != NULL; i++) {
        const gr_chat_format* f = gr_chat_formats[i];
        gr_chat_text out = {0};
        char text[2][256];
        for (int cut = 0; cut < 2; cut++) {
            gr_chat_render(f, &out, &(gr_chat_part){.unfinished = cut, .message = &said, .n = 1});
            gr_decode(NULL, GR_PLAIN, out.token, out.n, text[cut], 256);
        }
        size_t more = strlen(text[1]) - strlen(text[0]);
        assert_string_equal(text[1] + more, text[0]);
        assert_int_equal(more, strlen(f->reply[1]));
        assert_memory_equal(text[1], f->reply[1], more);
        gr_chat_text_free(&out);
    }
}

/* ---- which format a model has ------------------------------------------------------------ */

static void put(const char* path, const char* text)
{
    FILE* f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    (void)fclose(f);
}

static void unknown_templates_say_what_to_do(void** state)
{
    (void)state;
    /* Written out, Meta-Llama-3-8B-Instruct's; its line ends do not matter. */
    static const char known[] =
        "{% set loop_messages = messages %}{% for message in loop_messages %}\n{% set content = "
        "'<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | "
        "trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% "
        "endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}{{ "
        "'<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}\r\n";
    const gr_chat_format* f = NULL;
    ASSERT_OK(gr_chat_of_template(&f, "here", known, strlen(known)));
    assert_string_equal(f->name, "llama3");
    assert_int_equal(gr_chat_of_template(&f, "here", "{{ x }}", 7), GR_EDATA);
    assert_non_null(strstr(gr_last_error_text(), "here: the chat template (hash "));
    assert_non_null(
        strstr(gr_last_error_text(), "name the format it equals in model.chat, or write"));
    assert_null(gr_chat_find("alpaca"));

    char dir[] = "/tmp/test_chat_XXXXXX", path[64], config[64];
    assert_non_null(mkdtemp(dir));
    (void)snprintf(path, sizeof path, "%s/chat_template.jinja", dir);
    (void)snprintf(config, sizeof config, "%s/tokenizer_config.json", dir);
    assert_int_equal(gr_chat_of_folder(&f, dir), GR_EDATA);
    assert_non_null(strstr(gr_last_error_text(), "name a format in model.chat"));
    put(config, "{}");
    assert_int_equal(gr_chat_of_folder(&f, dir), GR_EDATA);
    cJSON* root = cJSON_CreateObject();
    cJSON_AddStringToObject(root, "chat_template", known);
    char* json = cJSON_Print(root);
    put(config, json);
    f = NULL;
    ASSERT_OK(gr_chat_of_folder(&f, dir));
    assert_string_equal(f->name, "llama3");
    put(path, "{{ other }}"); /* comes first */
    assert_int_equal(gr_chat_of_folder(&f, dir), GR_EDATA);
    put(path, known);
    ASSERT_OK(gr_chat_of_folder(&f, dir));
    free(json);
    cJSON_Delete(root);
    (void)unlink(path);
    (void)unlink(config);
    (void)rmdir(dir);
}

static void misfits_are_refused(void** state)
{
    (void)state;
    gr_tokenizer* t = load("llama2");
    assert_int_equal(gr_chat_check(gr_chat_find("qwen3"), t), GR_EDATA);
    assert_string_equal(gr_last_error_text(),
                        "model.chat: qwen3 needs the token <|im_start|>, which "
                        "the vocabulary has not");
    ASSERT_OK(gr_chat_check(gr_chat_find("qwen3"), NULL)); /* bytes spell anything */
    gr_tokenizer_free(t);
    assert_int_equal(gr_chat_check_tools(gr_chat_find("smollm2"), "[]"), GR_EARG);
    assert_int_equal(gr_chat_check_tools(gr_chat_find("qwen3"), "{}"), GR_EDATA);
    assert_int_equal(gr_chat_check_tools(gr_chat_find("qwen3"), "[{\"a\":"), GR_EDATA);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(conversations_equal_the_templates),
        cmocka_unit_test(users_forge_nothing),
        cmocka_unit_test(unfinished_answers_are_closed),
        cmocka_unit_test(unknown_templates_say_what_to_do),
        cmocka_unit_test(misfits_are_refused),
    };
    return cmocka_run_group_tests_name("chat", tests, NULL, NULL);
}
