/* answer.c - reads the answer of a model that judges. */
#include "host/scorer/answer.h"

#include <cjson/cJSON.h>
#include <string.h>

#include "host/json.h"
#include "host/scorer/scorer.h"

/* Braces at which an object is looked for: a text that has more of them is no answer, and reading
 * it takes time that grows with its length only. */
enum { BRACES_MAX = 64 };

static bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

/* Length of the text without white space and the closing fence behind it. */
static size_t trimmed(const char* text, size_t n)
{
    while (n > 0 && is_blank(text[n - 1])) n--;
    if (n >= 3 && memcmp(text + n - 3, "```", 3) == 0) n -= 3;
    while (n > 0 && is_blank(text[n - 1])) n--;
    return n;
}

/* The object that ends text[0..n), or NULL. The caller deletes it. */
static cJSON* last_object(const char* text, size_t n)
{
    int braces = 0;
    for (size_t i = 0; i < n && braces < BRACES_MAX; i++) {
        const char* end = NULL;
        if (text[i] != '{') continue;
        braces++;
        cJSON* object = gr_json_parse(text + i, n - i, &end);
        if (object != NULL && end == text + n) return object;
        cJSON_Delete(object);
    }
    return NULL;
}

/* The member of that name, if the object has exactly one. */
static const cJSON* member(const cJSON* object, const char* name, int* n)
{
    const cJSON *item, *found = NULL;
    *n = 0;
    cJSON_ArrayForEach(item, object)
    {
        if (strcmp(item->string, name) != 0) continue;
        found = item;
        ++*n;
    }
    return found;
}

static bool read_level(const cJSON* object, int* level)
{
    int n = 0;
    const cJSON* score = member(object, "score", &n);
    if (n != 1 || !cJSON_IsNumber(score)) return false;
    double x = score->valuedouble;
    if (!(x >= 0 && x <= GR_LEVELS) || x != (int)x) return false;
    *level = (int)x;
    return true;
}

static bool read_critique(const cJSON* object, gr_answer* out)
{
    int n = 0;
    const cJSON* critique = member(object, "critique", &n);
    out->n_critique = 0;
    out->critique[0] = 0;
    if (n == 0) return true;
    if (n != 1 || !cJSON_IsString(critique)) return false;
    const char* text = critique->valuestring;
    size_t length = strlen(text), kept = 0;
    while (kept < length) {
        size_t step = GR_MAX(gr_utf8_length(text + kept, length - kept), (size_t)1);
        if (kept + step >= GR_CRITIQUE_MAX) break;
        kept += step;
    }
    memcpy(out->critique, text, kept);
    out->critique[kept] = 0;
    out->n_critique = (int)kept;
    return true;
}

bool gr_answer_read(const char* text, size_t n, gr_answer* out)
{
    cJSON* object = last_object(text, trimmed(text, n));
    gr_answer read;
    bool sound = object != NULL && read_level(object, &read.level) && read_critique(object, &read);
    cJSON_Delete(object);
    if (sound) *out = read;
    return sound;
}
