#include "envs/protocol.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXACT 1e15 /* integers up to here survive a double and cJSON's 15 digits */

/* ---- UTF-8 ----------------------------------------------------------------------------------- */

/* Bytes of the well-formed sequence at s (RFC 3629), 0 if there is none. */
static int utf8_length(const unsigned char* s, size_t n)
{
    if (s[0] < 0x80) return 1;
    int length = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
    if (s[0] < 0xc2 || s[0] > 0xf4 || (size_t)length > n) return 0;
    for (int i = 1; i < length; i++) {
        if ((s[i] & 0xc0) != 0x80) return 0;
    }
    if (s[0] == 0xe0 && s[1] < 0xa0) return 0; /* too long a form */
    if (s[0] == 0xed && s[1] > 0x9f) return 0; /* surrogates */
    if (s[0] == 0xf0 && s[1] < 0x90) return 0;
    if (s[0] == 0xf4 && s[1] > 0x8f) return 0; /* above U+10FFFF */
    return length;
}

static bool is_utf8(const char* text, size_t n)
{
    const unsigned char* s = (const unsigned char*)text;
    for (size_t i = 0; i < n;) {
        int length = utf8_length(s + i, n - i);
        if (length == 0) return false;
        i += (size_t)length;
    }
    return true;
}

/* out has room for 3 n + 1 bytes. NUL, which would end the text, counts as no text. */
static void make_utf8(const char* text, int n, char* out)
{
    const unsigned char* s = (const unsigned char*)text;
    for (int i = 0; i < n;) {
        int length = utf8_length(s + i, (size_t)(n - i));
        if (length == 0 || s[i] == 0) {
            memcpy(out, "\xef\xbf\xbd", 3);
            out += 3;
            i++;
        } else {
            memcpy(out, s + i, (size_t)length);
            out += length;
            i += length;
        }
    }
    *out = 0;
}

/* ---- requests -------------------------------------------------------------------------------- */

static void add_key(cJSON* o, uint64_t key)
{
    char hex[17];
    (void)snprintf(hex, sizeof hex, "%016llx", (unsigned long long)key);
    cJSON_AddStringToObject(o, "key", hex);
}

static void add_fields(cJSON* o, const gr_request_frame* r)
{
    static const char* const split[] = {"train", "test", "warmstart"};
    char action[3 * (GR_ACTION_MAX + 1) + 1];
    if (r->op == GR_OP_HELLO) {
        cJSON_AddNumberToObject(o, "version", GR_PROTOCOL_VERSION);
        cJSON_AddNumberToObject(o, "text_max", GR_TEXT_LIMIT);
    }
    if (r->op >= GR_OP_RESET) cJSON_AddNumberToObject(o, "episode", (double)r->episode);
    if (r->op == GR_OP_RESET) {
        cJSON_AddStringToObject(o, "split", split[r->split]);
        cJSON_AddNumberToObject(o, "task", (double)r->task);
        add_key(o, r->key);
    } else if (r->op == GR_OP_STEP) {
        GR_ASSERT(r->n_action <= GR_ACTION_MAX + 1);
        make_utf8(r->action, r->n_action, action);
        cJSON_AddStringToObject(o, "action", action);
    } else if (r->op == GR_OP_FORK) {
        cJSON_AddNumberToObject(o, "to", (double)r->to);
        add_key(o, r->key);
    }
}

size_t gr_protocol_write(const gr_request_frame* r, char frame[GR_REQUEST_MAX])
{
    static const char* const op[] = {"hello", "tasks", "reset", "step", "fork", "close"};
    cJSON* o = cJSON_CreateObject();
    cJSON_AddNumberToObject(o, "id", (double)r->id);
    cJSON_AddStringToObject(o, "op", op[r->op]);
    add_fields(o, r);
    char* body = frame + GR_FRAME_HEAD;
    bool fits = cJSON_PrintPreallocated(o, body, GR_REQUEST_MAX - GR_FRAME_HEAD, false);
    GR_ASSERT(fits, "request of op %d", r->op);
    cJSON_Delete(o);
    size_t n = strlen(body);
    for (int i = 0; i < GR_FRAME_HEAD; i++) frame[i] = (char)(n >> (24 - 8 * i) & 0xff);
    return GR_FRAME_HEAD + n;
}

/* ---- answers --------------------------------------------------------------------------------- */

gr_frame_state gr_protocol_frame(const void* bytes, size_t n, size_t* n_body)
{
    const unsigned char* b = bytes;
    if (n < GR_FRAME_HEAD) return GR_FRAME_PARTIAL;
    *n_body = (size_t)b[0] << 24 | (size_t)b[1] << 16 | (size_t)b[2] << 8 | b[3];
    if (*n_body == 0 || *n_body > GR_FRAME_MAX) return GR_FRAME_BAD;
    return n - GR_FRAME_HEAD >= *n_body ? GR_FRAME_WHOLE : GR_FRAME_PARTIAL;
}

/* Readers of one field: false, with the reason written, if it is not what it should be. */

static bool wrong(gr_answer* a, const char* key, const char* what)
{
    (void)snprintf(a->reason, sizeof a->reason, "\"%s\" is not %s", key, what);
    return false;
}

static bool read_number(gr_answer* a, const cJSON* o, const char* key, double* out)
{
    const cJSON* v = cJSON_GetObjectItemCaseSensitive(o, key);
    if (!cJSON_IsNumber(v) || !isfinite(v->valuedouble)) return wrong(a, key, "a number");
    *out = v->valuedouble;
    return true;
}

static bool read_integer(gr_answer* a, const cJSON* o, const char* key, double min, double max,
                         int64_t* out)
{
    double v = 0;
    char what[64];
    (void)snprintf(what, sizeof what, "an integer from %.0f to %.0f", min, max);
    if (!read_number(a, o, key, &v) || v != floor(v) || v < min || v > max) {
        return wrong(a, key, what);
    }
    *out = (int64_t)v;
    return true;
}

static bool read_bool(gr_answer* a, const cJSON* o, const char* key, bool* out)
{
    const cJSON* v = cJSON_GetObjectItemCaseSensitive(o, key);
    *out = cJSON_IsTrue(v);
    return cJSON_IsBool(v) || wrong(a, key, "true or false");
}

static bool copy_text(gr_answer* a, const cJSON* v, const char* key, size_t min, char* out,
                      size_t cap)
{
    char what[64];
    (void)snprintf(what, sizeof what, "a text of %zu to %zu bytes", min, cap - 1);
    if (!cJSON_IsString(v)) return wrong(a, key, what);
    size_t n = strlen(v->valuestring);
    if (n < min || n >= cap) return wrong(a, key, what);
    memcpy(out, v->valuestring, n + 1);
    return true;
}

static bool read_text(gr_answer* a, const cJSON* o, const char* key, size_t min, char* out,
                      size_t cap)
{
    return copy_text(a, cJSON_GetObjectItemCaseSensitive(o, key), key, min, out, cap);
}

static bool read_hello(const cJSON* o, gr_answer* a)
{
    gr_hello* h = &a->hello;
    int64_t version = 0, cap = 0, horizon = 0, text_max = GR_TEXT_LIMIT;
    const cJSON* signals = cJSON_GetObjectItemCaseSensitive(o, "signals");
    if (!read_integer(a, o, "version", GR_PROTOCOL_VERSION, GR_PROTOCOL_VERSION, &version) ||
        !read_text(a, o, "prompt", 0, h->prompt, sizeof h->prompt) ||
        !read_text(a, o, "stop", 1, h->stop, sizeof h->stop) ||
        !read_integer(a, o, "action_cap", 1, GR_ACTION_MAX, &cap) ||
        !read_integer(a, o, "horizon", 1, 1e6, &horizon) || !read_bool(a, o, "fork", &h->fork) ||
        !read_bool(a, o, "hash", &h->hash)) {
        return false;
    }
    if (cJSON_HasObjectItem(o, "text_max") &&
        !read_integer(a, o, "text_max", 1, GR_TEXT_LIMIT, &text_max)) {
        return false;
    }
    h->action_cap = (int)cap;
    h->text_max = (int)text_max;
    h->horizon = (int)horizon;
    h->n_signals = cJSON_GetArraySize(signals);
    if (!cJSON_IsArray(signals) || h->n_signals > GR_SIGNALS) {
        h->n_signals = 0;
        return wrong(a, "signals", "a list of at most 8 names");
    }
    int i = 0;
    const cJSON* v;
    cJSON_ArrayForEach(v, signals)
    {
        if (!copy_text(a, v, "signals", 1, h->signal[i++], GR_NAME_MAX)) return false;
    }
    return true;
}

static bool read_tasks(const cJSON* o, gr_answer* a)
{
    return read_integer(a, o, "train", 1, EXACT, &a->n_tasks[GR_TRAIN]) &&
           read_integer(a, o, "test", 0, EXACT, &a->n_tasks[GR_TEST]) &&
           read_integer(a, o, "warmstart", 0, EXACT, &a->n_tasks[GR_WARMSTART]);
}

static bool read_end(const cJSON* o, gr_answer* a)
{
    static const char* const name[] = {"running", "terminal", "time_limit"};
    const cJSON* v = cJSON_GetObjectItemCaseSensitive(o, "end");
    for (int i = 0; i < GR_COUNT(name); i++) {
        a->obs.end = (gr_end)i;
        if (cJSON_IsString(v) && strcmp(v->valuestring, name[i]) == 0) return true;
    }
    return wrong(a, "end", "running, terminal or time_limit");
}

static bool read_signals(const cJSON* o, const gr_hello* hello, gr_answer* a)
{
    const cJSON* list = cJSON_GetObjectItemCaseSensitive(o, "signals");
    if (hello->n_signals == 0) return true;
    if (!cJSON_IsArray(list) || cJSON_GetArraySize(list) != hello->n_signals) {
        return wrong(a, "signals", "a list of as many numbers as hello has names");
    }
    int i = 0;
    const cJSON* v;
    cJSON_ArrayForEach(v, list)
    {
        if (!cJSON_IsNumber(v) || !isfinite(v->valuedouble)) return wrong(a, "signals", "numbers");
        a->obs.signal[i++] = v->valuedouble;
    }
    return true;
}

static bool read_hash(const cJSON* o, const gr_hello* hello, gr_answer* a)
{
    a->obs.hash = gr_hash64(a->obs.text, (size_t)a->obs.n_text, 0);
    if (!hello->hash) return true;
    char hex[17];
    if (!read_text(a, o, "hash", 16, hex, sizeof hex)) return false;
    if (strspn(hex, "0123456789abcdefABCDEF") != 16) return wrong(a, "hash", "hexadecimal");
    a->obs.hash = strtoull(hex, NULL, 16);
    return true;
}

static bool read_obs(const cJSON* o, const gr_hello* hello, gr_answer* a)
{
    gr_obs* b = &a->obs;
    if (!read_text(a, o, "text", 0, b->text, (size_t)hello->text_max + 1)) return false;
    b->n_text = (int)strlen(b->text);
    return read_number(a, o, "reward", &b->reward) && read_bool(a, o, "success", &b->success) &&
           read_bool(a, o, "valid", &b->valid) && read_end(o, a) && read_signals(o, hello, a) &&
           read_hash(o, hello, a);
}

static gr_answer_kind read_fields(const cJSON* o, gr_op op, int64_t id, const gr_hello* hello,
                                  gr_answer* a)
{
    int64_t got = 0;
    if (!read_integer(a, o, "id", (double)id, (double)id, &got)) return GR_ANSWER_NONSENSE;
    const cJSON* error = cJSON_GetObjectItemCaseSensitive(o, "error");
    if (cJSON_IsString(error)) {
        (void)snprintf(a->reason, sizeof a->reason, "%.200s", error->valuestring);
        return GR_ANSWER_REFUSED;
    }
    bool good = true;
    if (op == GR_OP_HELLO) good = read_hello(o, a);
    if (op == GR_OP_TASKS) good = read_tasks(o, a);
    if (op == GR_OP_RESET || op == GR_OP_STEP) good = read_obs(o, hello, a);
    return good ? GR_ANSWER_GOOD : GR_ANSWER_WRONG;
}

gr_answer_kind gr_protocol_read(const char* body, size_t n, gr_op op, int64_t id,
                                const gr_hello* hello, gr_answer* out)
{
    memset(out, 0, offsetof(gr_answer, text));
    out->text[0] = 0;
    out->obs.text = out->text;
    const char* end = NULL;
    cJSON* o = is_utf8(body, n) ? cJSON_ParseWithLengthOpts(body, n, &end, false) : NULL;
    while (o != NULL && end < body + n && strchr(" \t\r\n", *end) != NULL && *end != 0) end++;
    gr_answer_kind kind = GR_ANSWER_NONSENSE;
    if (!cJSON_IsObject(o) || end != body + n) {
        (void)snprintf(out->reason, sizeof out->reason, "an answer is no JSON object");
    } else {
        kind = read_fields(o, op, id, hello, out);
    }
    cJSON_Delete(o);
    return kind;
}
