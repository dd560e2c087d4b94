/* config_parse.c - the settings of a run: file, then command line, then checks. */
#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "host/config_parts.h"
#include "host/durable.h"
#include "host/json.h"

#define FILE_MAX (1 << 20) /* bytes of a settings file */

static const char command_line[] = "command line";

/* ---- the nearest name, for errors ------------------------------------------------------------- */

/* Levenshtein's distance of two names, of which at most 63 bytes count. */
static int distance(const char* a, const char* b)
{
    int row[64];
    int n = (int)GR_MIN(strlen(a), 63), m = (int)GR_MIN(strlen(b), 63);
    for (int j = 0; j <= m; j++) row[j] = j;
    for (int i = 1; i <= n; i++) {
        int corner = row[0];
        row[0] = i;
        for (int j = 1; j <= m; j++) {
            int replace = corner + (a[i - 1] != b[j - 1]);
            corner = row[j];
            row[j] = GR_MIN(replace, GR_MIN(row[j - 1], corner) + 1);
        }
    }
    return row[m];
}

static gr_status unknown_section(const gr_config* c, const char* source, const char* section)
{
    int best = 0;
    for (int i = 1; i < c->n_blocks; i++) {
        if (distance(section, c->block[i].block->name) <
            distance(section, c->block[best].block->name))
            best = i;
    }
    return GR_FAIL(GR_EARG, "%s: %.64s: unknown section; did you mean %s?", source, section,
                   c->block[best].block->name);
}

/* A key in the wrong section counts as one wrong letter: rollout.lr finds optimizer.lr. */
static gr_status unknown_key(const gr_config* c, const char* source, const gr_block* b,
                             const char* key)
{
    const char *section = "", *nearest = "";
    int best = INT32_MAX;
    for (int i = 0; i < c->n_blocks; i++) {
        const gr_block* other = c->block[i].block;
        for (int j = 0; j < other->n_settings; j++) {
            int cost = distance(key, other->setting[j].key) + (other == b ? 0 : 1);
            if (cost > best || (cost == best && other != b)) continue;
            if (cost == best && strcmp(section, b->name) == 0) continue;
            best = cost;
            section = other->name;
            nearest = other->setting[j].key;
        }
    }
    return GR_FAIL(GR_EARG, "%s: %s.%.64s: unknown key; did you mean %s.%s?", source, b->name, key,
                   section, nearest);
}

/* ---- values ---------------------------------------------------------------------------------- */

typedef struct place { /* a setting, and where its value was written */
    const char* source;
    const gr_block* block;
    const gr_setting* setting;
} place;

static gr_status wrong_type(const place* p, const char* expected, const cJSON* got)
{
    char text[64] = "an object";
    if (cJSON_IsString(got)) (void)snprintf(text, sizeof text, "`%.40s`", got->valuestring);
    if (cJSON_IsNumber(got)) (void)snprintf(text, sizeof text, "%.15g", got->valuedouble);
    if (cJSON_IsBool(got)) (void)snprintf(text, sizeof text, cJSON_IsTrue(got) ? "true" : "false");
    if (cJSON_IsNull(got)) (void)snprintf(text, sizeof text, "null");
    if (cJSON_IsArray(got)) (void)snprintf(text, sizeof text, "a list");
    return GR_FAIL(GR_EARG, "%s: %s.%s: expected %s, got %s", p->source, p->block->name,
                   p->setting->key, expected, text);
}

static gr_status set_number(const place* p, void* at, const cJSON* item)
{
    const gr_setting* s = p->setting;
    bool whole = s->type == GR_INT;
    double x = item->valuedouble;
    if (!cJSON_IsNumber(item)) return wrong_type(p, whole ? "a whole number" : "a number", item);
    if (!isfinite(x)) {
        return GR_FAIL(GR_EARG, "%s: %s.%s: not a finite number", p->source, p->block->name,
                       s->key);
    }
    if (whole && x != floor(x)) return wrong_type(p, "a whole number", item);
    if (x < s->min || x > s->max) {
        return GR_FAIL(GR_EARG, "%s: %s.%s: %.15g is not in %.16g..%.16g", p->source,
                       p->block->name, s->key, x, s->min, s->max);
    }
    if (whole)
        *(int64_t*)at = (int64_t)x;
    else
        *(double*)at = x + 0.0; /* -0 becomes 0 */
    return GR_OK;
}

static gr_status set_text(const place* p, char* at, const char* text)
{
    size_t n = strlen(text);
    if (n >= GR_TEXT_MAX) {
        return GR_FAIL(GR_EARG, "%s: %s.%s: text of %zu bytes, at most %d fit", p->source,
                       p->block->name, p->setting->key, n, GR_TEXT_MAX - 1);
    }
    for (size_t i = 0; i < n;) {
        size_t length = gr_utf8_length(text + i, n - i);
        if (length == 0) {
            return GR_FAIL(GR_EARG, "%s: %s.%s: byte %zu is not UTF-8", p->source, p->block->name,
                           p->setting->key, i);
        }
        i += length;
    }
    memset(at, 0, GR_TEXT_MAX);
    memcpy(at, text, n);
    return GR_OK;
}

static gr_status set_choice(const place* p, int* at, const char* text)
{
    const char* word = NULL;
    for (int i = 0, n; (n = gr_choice_word(p->setting->text, i, &word)) > 0; i++) {
        if ((size_t)n != strlen(text) || strncmp(word, text, (size_t)n) != 0) continue;
        *at = i;
        return GR_OK;
    }
    return GR_FAIL(GR_EARG, "%s: %s.%s: `%.64s` is none of %s", p->source, p->block->name,
                   p->setting->key, text, p->setting->text);
}

static gr_status set_value(const place* p, void* block_value, const cJSON* item)
{
    void* at = gr_setting_at(p->setting, block_value);
    switch (p->setting->type) {
    case GR_INT:
    case GR_REAL:
        return set_number(p, at, item);
    case GR_BOOL:
        if (!cJSON_IsBool(item)) return wrong_type(p, "true or false", item);
        *(bool*)at = cJSON_IsTrue(item);
        return GR_OK;
    case GR_TEXT:
        if (!cJSON_IsString(item)) return wrong_type(p, "text", item);
        return set_text(p, at, item->valuestring);
    case GR_CHOICE:
        if (!cJSON_IsString(item)) return wrong_type(p, p->setting->text, item);
        return set_choice(p, at, item->valuestring);
    }
    return GR_OK;
}

/* ---- file ------------------------------------------------------------------------------------ */

static gr_status parse_section(gr_config* c, const char* source, int block, const cJSON* object)
{
    place p = {.source = source, .block = c->block[block].block};
    bool seen[GR_SETTINGS_MAX] = {0};
    if (!cJSON_IsObject(object)) {
        return GR_FAIL(GR_EARG, "%s: %s: expected an object of settings", source, p.block->name);
    }
    const cJSON* item = NULL;
    cJSON_ArrayForEach(item, object)
    {
        p.setting = gr_config_find_setting(p.block, item->string);
        if (p.setting == NULL) return unknown_key(c, source, p.block, item->string);
        bool* twice = &seen[p.setting - p.block->setting];
        if (*twice)
            return GR_FAIL(GR_EARG, "%s: %s.%s: twice", source, p.block->name, item->string);
        *twice = true;
        GR_TRY(set_value(&p, c->block[block].value, item));
    }
    return GR_OK;
}

static gr_status parse_sections(gr_config* c, const char* source, const cJSON* root)
{
    bool seen[GR_MAX_BLOCKS] = {0};
    if (!cJSON_IsObject(root)) return GR_FAIL(GR_EARG, "%s: not an object of sections", source);
    const cJSON* item = NULL;
    cJSON_ArrayForEach(item, root)
    {
        int i = gr_config_find_block(c, item->string);
        if (i < 0) return unknown_section(c, source, item->string);
        if (seen[i]) return GR_FAIL(GR_EARG, "%s: %s: twice", source, item->string);
        seen[i] = true;
        GR_TRY(parse_section(c, source, i, item));
    }
    return GR_OK;
}

/* cJSON ends text at an escaped NUL and takes raw ones for blanks. */
static bool has_nul(const char* json, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (json[i] == 0) return true;
        if (json[i] != '\\') continue;
        if (n - i >= 6 && memcmp(json + i, "\\u0000", 6) == 0) return true;
        i++;
    }
    return false;
}

static gr_status not_json(const char* source, const char* json, size_t n, const char* end)
{
    int line = 1, column = 1;
    for (const char* s = json; s < end && s < json + n; s++) {
        line += *s == '\n';
        column = *s == '\n' ? 1 : column + 1;
    }
    return GR_FAIL(GR_EARG, "%s: not JSON near line %d, column %d", source, line, column);
}

static gr_status parse_json(gr_config* c, const char* source, const char* json, size_t n)
{
    const char* end = json;
    if (has_nul(json, n)) return GR_FAIL(GR_EARG, "%s: holds a NUL character", source);
    cJSON* root = cJSON_ParseWithLengthOpts(json, n, &end, false);
    if (root == NULL) return not_json(source, json, n, end);
    while (end < json + n && strchr(" \t\r\n", *end) != NULL) end++;
    gr_status st =
        end < json + n ? not_json(source, json, n, end) : parse_sections(c, source, root);
    cJSON_Delete(root);
    return st;
}

/* ---- command line ---------------------------------------------------------------------------- */

/* Splits "section.key=value" and finds the setting; *value points behind the equal sign. */
static gr_status find_override(const gr_config* c, const char* text, place* p, int* block,
                               const char** value)
{
    char section[64], key[64];
    int n = 0;
    if (sscanf(text, "%63[^.=].%63[^=]=%n", section, key, &n) != 2 || n == 0) {
        return GR_FAIL(GR_EARG, "%s: `%.64s`: not section.key=value", command_line, text);
    }
    *block = gr_config_find_block(c, section);
    if (*block < 0) return unknown_section(c, command_line, section);
    *p = (place){.source = command_line, .block = c->block[*block].block};
    p->setting = gr_config_find_setting(p->block, key);
    if (p->setting == NULL) return unknown_key(c, command_line, p->block, key);
    *value = text + n;
    return GR_OK;
}

static gr_status apply_override(gr_config* c, const char* text)
{
    place p;
    int block = -1;
    const char* value = NULL;
    GR_TRY(find_override(c, text, &p, &block, &value));
    bool quoted = p.setting->type == GR_TEXT || p.setting->type == GR_CHOICE;
    cJSON* item = quoted ? NULL : cJSON_ParseWithOpts(value, NULL, true);
    if (item == NULL) item = cJSON_CreateString(value);
    GR_ASSERT(item != NULL, "out of memory");
    gr_status st = set_value(&p, c->block[block].value, item);
    cJSON_Delete(item);
    return st;
}

/* A file may hold settings of methods that are not chosen; who types one means it to act. */
static gr_status check_override(const gr_config* c, const char* text)
{
    place p;
    int block = -1;
    const char* value = NULL;
    char why[GR_VALUE_MAX + 128];
    GR_TRY(find_override(c, text, &p, &block, &value));
    const char* when = p.block->active_when;
    bool idle = when != NULL && !gr_config_holds(c, when, why, sizeof why);
    if (!idle && !gr_config_idle_key(c, p.block, p.setting, why, sizeof why)) return GR_OK;
    return GR_FAIL(GR_EARG, "%s: %s.%s has no effect: %s", command_line, p.block->name,
                   p.setting->key, why);
}

static gr_status finish(gr_config* c, int n_overrides, const char* const* overrides)
{
    for (int i = 0; i < n_overrides; i++) GR_TRY(apply_override(c, overrides[i]));
    for (int i = 0; i < n_overrides; i++) GR_TRY(check_override(c, overrides[i]));
    return gr_config_resolve(c);
}

/* ---- entry ----------------------------------------------------------------------------------- */

gr_status gr_config_parse(gr_config* c, const char* name, const char* json, size_t n_bytes,
                          int n_overrides, const char* const* overrides)
{
    GR_TRY(parse_json(c, name, json, n_bytes));
    return finish(c, n_overrides, overrides);
}

gr_status gr_config_load(gr_config* c, const char* path, int n_overrides,
                         const char* const* overrides)
{
    if (path == NULL) return finish(c, n_overrides, overrides);
    size_t n = 0;
    char* text = malloc(FILE_MAX);
    if (text == NULL) return GR_FAIL(GR_ENOMEM, "%s: out of memory", path);
    gr_status st = gr_read_file(path, text, FILE_MAX, &n);
    if (st == GR_OK) st = gr_config_parse(c, path, text, n, n_overrides, overrides);
    free(text);
    return st;
}
