/* chat.c - the list of formats, and what they render with. */
#include "model/chat.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <utf8proc.h>

#include "host/arena.h"
#include "host/json.h"
#include "model/chat/parts.h"

#define PATH_BYTES 1024

const gr_chat_format* const gr_chat_formats[] = {
    &gr_chat_qwen25,  &gr_chat_qwen3, &gr_chat_smollm2, &gr_chat_llama2, &gr_chat_llama3,
    &gr_chat_llama31, NULL,
};

const gr_chat_format* gr_chat_find(const char* name)
{
    for (int i = 0; gr_chat_formats[i] != NULL; i++) {
        if (strcmp(gr_chat_formats[i]->name, name) == 0) return gr_chat_formats[i];
    }
    return NULL;
}

/* ---- which format a template is ---------------------------------------------------------- */

/* Copies of a template differ in line ends and indentation. */
static uint64_t hash_template(const char* text, size_t n)
{
    char* dense = malloc(n + 1);
    size_t k = 0;
    GR_ASSERT(dense != NULL, "out of memory");
    for (size_t i = 0; i < n; i++) {
        if (strchr(" \t\r\n", text[i]) == NULL || text[i] == 0) dense[k++] = text[i];
    }
    uint64_t hash = gr_hash64(dense, k, 0);
    free(dense);
    return hash;
}

gr_status gr_chat_of_template(const gr_chat_format** out, const char* where, const char* text,
                              size_t n)
{
    uint64_t hash = hash_template(text, n);
    for (int i = 0; gr_chat_formats[i] != NULL; i++) {
        const uint64_t* known = gr_chat_formats[i]->known;
        for (int k = 0; k < GR_COUNT(gr_chat_formats[i]->known) && known[k] != 0; k++) {
            if (known[k] == hash) {
                *out = gr_chat_formats[i];
                return GR_OK;
            }
        }
    }
    return GR_FAIL(GR_EDATA,
                   "%s: the chat template (hash %016llx) is unknown: name the format it equals in "
                   "model.chat, or write one (CONTRIBUTING.md, \"a chat format\")",
                   where, (unsigned long long)hash);
}

/* The template in tokenizer_config.json: a text, or the one named `default` of a list. */
static const char* config_template(const cJSON* root)
{
    const cJSON *item, *t = cJSON_GetObjectItemCaseSensitive(root, "chat_template");
    if (!cJSON_IsArray(t)) return cJSON_GetStringValue(t);
    cJSON_ArrayForEach(item, t)
    {
        const char* name = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(item, "name"));
        if (name == NULL || strcmp(name, "default") != 0) continue;
        return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(item, "template"));
    }
    return NULL;
}

GR_MUST_CHECK static gr_status of_file(const gr_chat_format** out, const char* path)
{
    static char text[1 << 16];
    FILE* f = fopen(path, "rbe");
    if (f == NULL) return GR_FAIL(GR_EIO, "%s: cannot open", path);
    size_t n = fread(text, 1, sizeof text, f);
    (void)fclose(f);
    return gr_chat_of_template(out, path, text, n);
}

gr_status gr_chat_of_folder(const gr_chat_format** out, const char* folder)
{
    char path[PATH_BYTES];
    cJSON* root = NULL;
    if (snprintf(path, sizeof path, "%s/chat_template.jinja", folder) >= PATH_BYTES - 16) {
        return GR_FAIL(GR_EARG, "%.80s...: path too long", folder);
    }
    if (access(path, F_OK) == 0) return of_file(out, path);
    (void)snprintf(path, sizeof path, "%s/tokenizer_config.json", folder);
    if (access(path, F_OK) != 0) {
        return GR_FAIL(GR_EDATA,
                       "%s: neither chat_template.jinja nor tokenizer_config.json: name a format "
                       "in model.chat",
                       folder);
    }
    GR_TRY(gr_json_read(path, &root));
    const char* text = config_template(root);
    gr_status st = text != NULL ? gr_chat_of_template(out, path, text, strlen(text))
                                : GR_FAIL(GR_EDATA,
                                          "%s: chat_template is missing: name a format in "
                                          "model.chat",
                                          path);
    cJSON_Delete(root);
    return st;
}

gr_status gr_chat_check(const gr_chat_format* f, const gr_tokenizer* t)
{
    for (int i = 0; t != NULL && i < GR_COUNT(f->needs) && f->needs[i] != NULL; i++) {
        if (gr_tokenizer_find(t, f->needs[i]) >= 0) continue;
        return GR_FAIL(GR_EDATA, "model.chat: %s needs the token %s, which the vocabulary has not",
                       f->name, f->needs[i]);
    }
    return GR_OK;
}

gr_status gr_chat_check_tools(const gr_chat_format* f, const char* tools)
{
    if (!f->tools) return GR_FAIL(GR_EARG, "the chat format %s knows no tools", f->name);
    cJSON* array = gr_json_parse(tools, strlen(tools), NULL);
    bool good = cJSON_IsArray(array);
    cJSON_Delete(array);
    return good ? GR_OK : GR_FAIL(GR_EDATA, "tools: not a JSON array");
}

/* ---- gathering and encoding -------------------------------------------------------------- */

static void put_token(gr_chat_text* out, int32_t token)
{
    GR_RESERVE(out->token, out->token_cap, out->n + 1);
    out->token[out->n++] = token;
}

static void put_bytes(gr_chat_text* out, const char* at, size_t n)
{
    GR_RESERVE(out->text, out->text_cap, out->n_text + (int64_t)n + 1);
    memcpy(out->text + out->n_text, at, n);
    out->n_text += (int64_t)n;
}

static void flush(gr_chat_text* out)
{
    while (out->n_text > 0) {
        int room = (int)out->token_cap - out->n;
        int more = gr_encode(out->tokenizer, GR_PLAIN, out->text, (int)out->n_text,
                             out->token + out->n, room);
        if (more <= room) {
            out->n += more;
            out->n_text = 0;
        } else {
            GR_RESERVE(out->token, out->token_cap, out->n + more);
        }
    }
}

void gr_chat_plain(gr_chat_text* out, gr_string text) { put_bytes(out, text.at, text.n); }

static void put_markup(gr_chat_text* out, gr_string text)
{
    size_t done = 0, begin, end;
    int32_t id;
    while (gr_tokenizer_next(out->tokenizer, text, done, &begin, &end, &id)) {
        put_bytes(out, text.at + done, begin - done);
        flush(out);
        put_token(out, id);
        done = end;
    }
    put_bytes(out, text.at + done, text.n - done);
}

void gr_chat_markup(gr_chat_text* out, const char* text)
{
    put_markup(out, (gr_string){text, strlen(text)});
}

void gr_chat_render(const gr_chat_format* f, gr_chat_text* out, const gr_chat_part* p)
{
    out->n = 0;
    out->n_text = 0;
    GR_ASSERT(p->tools == NULL || (f->tools && p->first), "%s: tools", f->name);
    for (int i = 0; i < p->n; i++) {
        GR_ASSERT(p->message[i].role != GR_SYSTEM || (p->first && i == 0), "system message %d", i);
    }
    f->render(out, p);
    flush(out);
}

void gr_chat_reply(const gr_chat_format* f, gr_chat_text* out, const char* text, size_t n)
{
    out->n = 0;
    out->n_text = 0;
    gr_chat_markup(out, f->reply[0]);
    put_markup(out, (gr_string){text, n});
    gr_chat_markup(out, f->reply[1]);
    flush(out);
}

void gr_chat_text_free(gr_chat_text* out)
{
    free(out->token);
    free(out->text);
    *out = (gr_chat_text){.tokenizer = out->tokenizer};
}

/* ---- text -------------------------------------------------------------------------------- */

/* As Python's str.isspace: Unicode's white space and the four information separators. */
static bool is_space(int32_t c)
{
    return (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 ||
           c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 ||
           c == 0x202f || c == 0x205f || c == 0x3000;
}

gr_string gr_chat_trim(gr_string s)
{
    int32_t c = 0;
    for (size_t n; s.n > 0; s.at += n, s.n -= n) {
        n = gr_utf8_length(s.at, s.n);
        if (n > 0) (void)utf8proc_iterate((const utf8proc_uint8_t*)s.at, (utf8proc_ssize_t)n, &c);
        if (n == 0 || !is_space(c)) break;
    }
    while (s.n > 0) {
        size_t n = 1;
        while (n < s.n && n < 4 && ((uint8_t)s.at[s.n - n] & 0xc0) == 0x80) n++;
        const char* last = s.at + s.n - n;
        if (gr_utf8_length(last, n) != n) break;
        (void)utf8proc_iterate((const utf8proc_uint8_t*)last, (utf8proc_ssize_t)n, &c);
        if (!is_space(c)) break;
        s.n -= n;
    }
    return s;
}

/* ---- JSON as Python writes it ------------------------------------------------------------ */

void gr_chat_json_string(gr_chat_text* out, gr_string text)
{
    static const char named[] = "\"\\\b\f\n\r\t", letter[] = "\"\\bfnrt";
    put_bytes(out, "\"", 1);
    for (size_t i = 0; i < text.n; i++) {
        char c = text.at[i], escape[8];
        const char* at = c != 0 ? strchr(named, c) : NULL;
        int n = 1;
        escape[0] = c;
        if (at != NULL)
            n = snprintf(escape, sizeof escape, "\\%c", letter[at - named]);
        else if ((uint8_t)c < 0x20)
            n = snprintf(escape, sizeof escape, "\\u%04x", c);
        put_bytes(out, escape, (size_t)n);
    }
    put_bytes(out, "\"", 1);
}

static void new_line(gr_chat_text* out, int indent, int depth)
{
    if (indent > 0) put_bytes(out, "\n", 1);
    for (int i = 0; i < indent * depth; i++) put_bytes(out, " ", 1);
}

/* Numbers are copied as they are written, which cJSON forgets: `at` runs along in the
 * source. */
static void put_number(gr_chat_text* out, const char** at)
{
    const char* s = *at + strcspn(*at, "-0123456789");
    size_t n = strspn(s, "+-.0123456789eE");
    put_bytes(out, s, n);
    *at = s + n;
}

static void skip_string(const char** at)
{
    const char* s = strchr(*at, '"');
    for (s++; *s != '"'; s++) s += *s == '\\';
    *at = s + 1;
}

static void put_json(gr_chat_text* out, const cJSON* o, const char** at, int indent, int depth)
{
    if (cJSON_IsNumber(o)) {
        put_number(out, at);
    } else if (cJSON_IsString(o)) {
        skip_string(at);
        gr_chat_json_string(out, (gr_string){o->valuestring, strlen(o->valuestring)});
    } else if (cJSON_IsObject(o) || cJSON_IsArray(o)) {
        bool object = cJSON_IsObject(o);
        const cJSON* item;
        put_bytes(out, object ? "{" : "[", 1);
        cJSON_ArrayForEach(item, o)
        {
            if (item != o->child) put_bytes(out, indent > 0 ? "," : ", ", indent > 0 ? 1 : 2);
            new_line(out, indent, depth + 1);
            if (object) {
                skip_string(at);
                gr_chat_json_string(out, (gr_string){item->string, strlen(item->string)});
                put_bytes(out, ": ", 2);
            }
            put_json(out, item, at, indent, depth + 1);
        }
        if (o->child != NULL) new_line(out, indent, depth);
        put_bytes(out, object ? "}" : "]", 1);
    } else {
        const char* word = cJSON_IsTrue(o) ? "true" : cJSON_IsFalse(o) ? "false" : "null";
        put_bytes(out, word, strlen(word));
    }
}

void gr_chat_json_list(gr_chat_text* out, const char* array, int indent, const char* before,
                       const char* after)
{
    cJSON* root = gr_json_parse(array, strlen(array), NULL);
    GR_ASSERT(cJSON_IsArray(root), "gr_chat_check_tools comes first");
    const char* at = array;
    const cJSON* item;
    cJSON_ArrayForEach(item, root)
    {
        put_bytes(out, before, strlen(before));
        put_json(out, item, &at, indent, 0);
        put_bytes(out, after, strlen(after));
    }
    cJSON_Delete(root);
}
