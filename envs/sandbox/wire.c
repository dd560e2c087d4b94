#include "envs/sandbox/wire.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEAD = 4, JSON_MAX = 1 << 20, LIST_MAX = 4096 };
#define EXACT 1e15 /* integers up to here survive a double and cJSON's 15 digits */

static const char* const op_name[] = {"hello", "create", "run", "fork", "hash", "close", "ping"};
static const char* const class_name[] = {"ok", "full", "refused", "broken", "gone"};
static const char* const cause_name[] = {"exited", "time", "memory", "disk", "output", "stuck"};

/* ---- bytes and frames ------------------------------------------------------------------------ */

void gr_wire_append(gr_wire_bytes* b, const void* data, size_t n)
{
    if (b->cap - b->n < n) {
        b->cap = GR_MAX(2 * b->cap, b->n + n + 4096);
        b->data = realloc(b->data, b->cap);
        GR_ASSERT(b->data != NULL, "out of memory");
    }
    if (n > 0) memcpy(b->data + b->n, data, n);
    b->n += n;
}

void gr_wire_consume(gr_wire_bytes* b, size_t n)
{
    b->n -= n;
    if (b->n > 0) memmove(b->data, b->data + n, b->n);
    if (b->n > 0 || b->cap <= JSON_MAX) return;
    free(b->data); /* once in a while a large one came */
    *b = (gr_wire_bytes){0};
}

int gr_wire_frame(const gr_wire_bytes* b, size_t* n_body)
{
    const unsigned char* h = (const unsigned char*)b->data;
    if (b->n < HEAD) return 0;
    *n_body = (size_t)h[0] << 24 | (size_t)h[1] << 16 | (size_t)h[2] << 8 | h[3];
    if (*n_body == 0 || *n_body > GR_SANDBOX_FRAME_MAX) return -1;
    return b->n - HEAD >= *n_body;
}

static void append_frame(gr_wire_bytes* out, cJSON* o, const char* raw, size_t n_raw, bool with_raw)
{
    char* text = cJSON_PrintUnformatted(o);
    GR_ASSERT(text != NULL, "out of memory");
    cJSON_Delete(o);
    size_t n_text = strlen(text), n = n_text + (with_raw ? 1 + n_raw : 0);
    const char head[HEAD] = {(char)(n >> 24), (char)(n >> 16), (char)(n >> 8), (char)n};
    gr_wire_append(out, head, HEAD);
    gr_wire_append(out, text, n_text + with_raw); /* its NUL goes before the raw bytes */
    if (with_raw) gr_wire_append(out, raw, n_raw);
    free(text);
}

/* The object at the front of a body; *raw is what follows its NUL, NULL without one. */
static cJSON* parse(const char* body, size_t n, const char** raw, size_t* n_raw)
{
    const char* nul = memchr(body, 0, n);
    size_t n_text = nul != NULL ? (size_t)(nul - body) : n;
    *raw = nul != NULL ? nul + 1 : NULL;
    *n_raw = nul != NULL ? n - n_text - 1 : 0;
    if (n_text > JSON_MAX) return NULL;
    cJSON* o = cJSON_ParseWithLength(body, n_text);
    if (cJSON_IsObject(o)) return o;
    cJSON_Delete(o);
    return NULL;
}

/* ---- fields ---------------------------------------------------------------------------------- */

static const cJSON* field(const cJSON* o, const char* key)
{
    return cJSON_GetObjectItemCaseSensitive(o, key);
}

static const char* text_of(const cJSON* o, const char* key)
{
    return cJSON_GetStringValue(field(o, key));
}

/* False if there is no such integer from min to max. */
static bool integer(const cJSON* o, const char* key, double min, double max, int64_t* out)
{
    const cJSON* v = field(o, key);
    if (!cJSON_IsNumber(v) || !(v->valuedouble >= min && v->valuedouble <= max)) return false;
    *out = (int64_t)v->valuedouble;
    return (double)*out == v->valuedouble;
}

static bool real(const cJSON* o, const char* key, double min, double max, double* out)
{
    const cJSON* v = field(o, key);
    if (!cJSON_IsNumber(v) || !(v->valuedouble >= min && v->valuedouble <= max)) return false;
    *out = v->valuedouble;
    return true;
}

static int name_of(const char* const* names, int n, const char* text)
{
    for (int i = 0; i < n && text != NULL; i++) {
        if (strcmp(names[i], text) == 0) return i;
    }
    return -1;
}

static void add_list(cJSON* o, const char* key, const char* const* list)
{
    if (list == NULL) return;
    cJSON* a = cJSON_AddArrayToObject(o, key);
    for (; *list != NULL; list++) cJSON_AddItemToArray(a, cJSON_CreateString(*list));
}

/* A NULL-terminated array into the strings of `o`, owned by *out; NULL where the key is missing. */
static bool list_of(const cJSON* o, const char* key, const char*** out)
{
    const cJSON *a = field(o, key), *v;
    int n = cJSON_GetArraySize(a), i = 0;
    if (a == NULL) return true;
    if (!cJSON_IsArray(a) || n > LIST_MAX) return false;
    *out = calloc((size_t)n + 1, sizeof **out);
    GR_ASSERT(*out != NULL, "out of memory");
    cJSON_ArrayForEach(v, a)
    {
        if (!cJSON_IsString(v)) return false;
        (*out)[i++] = v->valuestring;
    }
    return true;
}

/* ---- limits ---------------------------------------------------------------------------------- */

static const gr_setting limit_table[] = {GR_SANDBOX_SETTINGS(
    struct { gr_sandbox_settings s; }, s)};

void gr_sandbox_defaults(gr_sandbox_settings* s)
{
    memset(s, 0, sizeof *s);
    for (int i = 0; i < GR_COUNT(limit_table); i++) {
        const gr_setting* t = &limit_table[i];
        char* at = (char*)s + t->offset;
        if (t->type == GR_INT) *(int64_t*)(void*)at = (int64_t)t->def;
        if (t->type == GR_REAL) *(double*)(void*)at = t->def;
        if (t->type == GR_TEXT) (void)snprintf(at, GR_TEXT_MAX, "%s", t->text);
    }
}

/* Where the sandboxes are and how to get there is no business of the other side. */
static bool travels(const gr_setting* t)
{
    return strcmp(t->key, "sandbox_host") != 0 && strcmp(t->key, "secret_file") != 0 &&
           strcmp(t->key, "patience_s") != 0;
}

static void add_limits(cJSON* o, const gr_sandbox_settings* s)
{
    cJSON* l = cJSON_AddObjectToObject(o, "limits");
    for (int i = 0; i < GR_COUNT(limit_table); i++) {
        const gr_setting* t = &limit_table[i];
        const char* at = (const char*)s + t->offset;
        if (!travels(t)) continue;
        if (t->type == GR_TEXT)
            cJSON_AddStringToObject(l, t->key, at);
        else if (t->type == GR_INT)
            cJSON_AddNumberToObject(l, t->key, (double)*(const int64_t*)(const void*)at);
        else
            cJSON_AddNumberToObject(l, t->key, *(const double*)(const void*)at);
    }
}

static gr_status read_limits(const cJSON* l, gr_sandbox_settings* s)
{
    gr_sandbox_defaults(s);
    for (int i = 0; i < GR_COUNT(limit_table); i++) {
        const gr_setting* t = &limit_table[i];
        char* at = (char*)s + t->offset;
        const char* text = text_of(l, t->key);
        bool good = true;
        if (!travels(t) || field(l, t->key) == NULL) continue;
        if (t->type == GR_INT) good = integer(l, t->key, t->min, t->max, (int64_t*)(void*)at);
        if (t->type == GR_REAL) good = real(l, t->key, t->min, t->max, (double*)(void*)at);
        if (t->type == GR_TEXT) good = text != NULL && strlen(text) < GR_TEXT_MAX;
        if (!good) return GR_FAIL(GR_EDATA, "limits: %s: out of range", t->key);
        if (t->type == GR_TEXT) (void)snprintf(at, GR_TEXT_MAX, "%s", text);
    }
    return GR_OK;
}

/* ---- requests -------------------------------------------------------------------------------- */

static void add_command(cJSON* o, const gr_sandbox_command* c)
{
    add_list(o, "argv", c->argv);
    add_list(o, "env", c->env);
    if (c->cwd != NULL) cJSON_AddStringToObject(o, "cwd", c->cwd);
    cJSON_AddNumberToObject(o, "time_s", c->time_s);
    cJSON_AddNumberToObject(o, "head", (double)c->head);
    cJSON_AddNumberToObject(o, "tail", (double)c->tail);
}

void gr_wire_write_request(gr_wire_bytes* out, const gr_wire_request* r)
{
    cJSON* o = cJSON_CreateObject();
    bool raw = r->op == GR_SANDBOX_RUN && r->command.input != NULL;
    cJSON_AddNumberToObject(o, "id", (double)r->id);
    cJSON_AddStringToObject(o, "op", op_name[r->op]);
    if (r->op == GR_SANDBOX_HELLO) {
        cJSON_AddNumberToObject(o, "version", GR_SANDBOX_VERSION);
        if (r->secret != NULL) cJSON_AddStringToObject(o, "secret", r->secret);
        if (r->limits != NULL) add_limits(o, r->limits);
    } else if (r->op != GR_SANDBOX_PING) {
        cJSON_AddNumberToObject(o, "sandbox", (double)r->sandbox);
    }
    if (r->op == GR_SANDBOX_CREATE) {
        cJSON_AddStringToObject(o, "tree", r->tree.tree);
        cJSON_AddStringToObject(o, "at", r->tree.at);
        if (r->tree.work != NULL) cJSON_AddStringToObject(o, "work", r->tree.work);
        add_list(o, "read", r->tree.read);
    }
    if (r->op == GR_SANDBOX_FORK) cJSON_AddNumberToObject(o, "to", (double)r->to);
    if (r->op == GR_SANDBOX_RUN) add_command(o, &r->command);
    append_frame(out, o, r->command.input, r->command.n_input, raw);
}

static gr_status read_hello(const cJSON* o, gr_wire_request* r)
{
    int64_t version = 0;
    const cJSON* limits = field(o, "limits");
    if (!integer(o, "version", GR_SANDBOX_VERSION, GR_SANDBOX_VERSION, &version)) {
        return GR_FAIL(GR_EDATA, "version: only %d is spoken here", GR_SANDBOX_VERSION);
    }
    r->secret = text_of(o, "secret");
    if (limits == NULL) return GR_OK;
    GR_TRY(read_limits(limits, &r->limits_read));
    r->limits = &r->limits_read;
    return GR_OK;
}

static gr_status read_tree(const cJSON* o, gr_wire_request* r)
{
    r->tree.tree = text_of(o, "tree");
    r->tree.at = text_of(o, "at");
    r->tree.work = text_of(o, "work");
    if (r->tree.tree == NULL || r->tree.tree[0] != '/') {
        return GR_FAIL(GR_EDATA, "tree: no absolute path");
    }
    if (r->tree.at == NULL || r->tree.at[0] != '/')
        return GR_FAIL(GR_EDATA, "at: no absolute path");
    if (r->tree.work != NULL && r->tree.work[0] != '/') {
        return GR_FAIL(GR_EDATA, "work: no absolute path");
    }
    if (!list_of(o, "read", &r->list[0])) return GR_FAIL(GR_EDATA, "read: no list of texts");
    r->tree.read = r->list[0];
    for (int i = 0; r->tree.read != NULL && r->tree.read[i] != NULL; i++) {
        if (r->tree.read[i][0] != '/') return GR_FAIL(GR_EDATA, "read: no absolute path");
    }
    return GR_OK;
}

static gr_status read_command(const cJSON* o, gr_wire_request* r)
{
    gr_sandbox_command* c = &r->command;
    if (!list_of(o, "argv", &r->list[1]) || r->list[1] == NULL || r->list[1][0] == NULL) {
        return GR_FAIL(GR_EDATA, "argv: no list of texts");
    }
    if (!list_of(o, "env", &r->list[2])) return GR_FAIL(GR_EDATA, "env: no list of texts");
    c->argv = r->list[1];
    c->env = r->list[2];
    c->cwd = text_of(o, "cwd");
    if (!real(o, "time_s", 0, 1e6, &c->time_s)) return GR_FAIL(GR_EDATA, "time_s: out of range");
    if (!integer(o, "head", 0, GR_SANDBOX_OUTPUT_MAX, &c->head) ||
        !integer(o, "tail", 0, GR_SANDBOX_OUTPUT_MAX, &c->tail) ||
        c->head + c->tail > GR_SANDBOX_OUTPUT_MAX) {
        return GR_FAIL(GR_EDATA, "head, tail: out of range");
    }
    return GR_OK;
}

static gr_status read_fields(const cJSON* o, gr_wire_request* r)
{
    if (!integer(o, "id", 1, EXACT, &r->id)) return GR_FAIL(GR_EDATA, "id: no number");
    int op = name_of(op_name, GR_N_SANDBOX_OPS, text_of(o, "op"));
    if (op < 0) return GR_FAIL(GR_EDATA, "op: unknown");
    r->op = (gr_sandbox_op)op;
    if (r->op == GR_SANDBOX_HELLO) return read_hello(o, r);
    if (r->op == GR_SANDBOX_PING) return GR_OK;
    if (!integer(o, "sandbox", 1, EXACT, &r->sandbox)) {
        return GR_FAIL(GR_EDATA, "sandbox: no number");
    }
    if (r->op == GR_SANDBOX_FORK && !integer(o, "to", 1, EXACT, &r->to)) {
        return GR_FAIL(GR_EDATA, "to: no number");
    }
    if (r->op == GR_SANDBOX_CREATE) return read_tree(o, r);
    if (r->op == GR_SANDBOX_RUN) return read_command(o, r);
    return GR_OK;
}

gr_status gr_wire_read_request(const char* body, size_t n, gr_wire_request* r)
{
    memset(r, 0, sizeof *r);
    r->json = parse(body, n, &r->command.input, &r->command.n_input);
    if (r->json == NULL) return GR_FAIL(GR_EDATA, "no JSON object");
    gr_status st = read_fields(r->json, r);
    if (st != GR_OK) gr_wire_free_request(r);
    return st;
}

void gr_wire_free_request(gr_wire_request* r)
{
    cJSON_Delete(r->json);
    r->json = NULL;
    for (int i = 0; i < GR_COUNT(r->list); i++) {
        free(r->list[i]);
        r->list[i] = NULL;
    }
}

/* ---- replies --------------------------------------------------------------------------------- */

static void add_hash(cJSON* o, uint64_t hash)
{
    char hex[17];
    (void)snprintf(hex, sizeof hex, "%016llx", (unsigned long long)hash);
    cJSON_AddStringToObject(o, "hash", hex);
}

void gr_wire_write_reply(gr_wire_bytes* out, const gr_sandbox_reply* r, const gr_wire_hello* hello)
{
    cJSON* o = cJSON_CreateObject();
    bool raw = r->error == GR_SANDBOX_OK && r->op == GR_SANDBOX_RUN;
    cJSON_AddNumberToObject(o, "id", (double)r->request);
    if (r->error != GR_SANDBOX_OK) {
        cJSON_AddStringToObject(o, "error", r->reason);
        cJSON_AddStringToObject(o, "class", class_name[r->error]);
    } else if (hello != NULL) {
        cJSON_AddNumberToObject(o, "version", GR_SANDBOX_VERSION);
        cJSON_AddStringToObject(o, "mode", hello->mode);
        cJSON_AddStringToObject(o, "trees", hello->trees);
        cJSON_AddStringToObject(o, "groups", hello->groups);
        cJSON_AddStringToObject(o, "notice", hello->notice);
    } else if (raw) {
        cJSON_AddStringToObject(o, "cause", cause_name[r->cause]);
        cJSON_AddNumberToObject(o, "code", r->code);
        cJSON_AddNumberToObject(o, "seconds", r->seconds);
        cJSON_AddNumberToObject(o, "bytes", (double)r->n_all);
        cJSON_AddNumberToObject(o, "head", (double)r->n_head);
    } else if (r->op == GR_SANDBOX_HASH) {
        add_hash(o, r->hash);
    }
    append_frame(out, o, r->output, r->n_output, raw);
}

static bool read_outcome(const cJSON* o, gr_sandbox_reply* r)
{
    int cause = name_of(cause_name, GR_N_SANDBOX_CAUSES, text_of(o, "cause"));
    int64_t code = 0, head = 0;
    if (cause < 0 || !integer(o, "code", 0, 255, &code) ||
        !real(o, "seconds", 0, 1e9, &r->seconds) || !integer(o, "bytes", 0, EXACT, &r->n_all) ||
        !integer(o, "head", 0, (double)r->n_output, &head)) {
        return false;
    }
    r->cause = (gr_sandbox_cause)cause;
    r->code = (int)code;
    r->n_head = (size_t)head;
    return true;
}

static void copy_word(char* out, size_t cap, const char* text)
{
    (void)snprintf(out, cap, "%s", text != NULL ? text : "");
}

static gr_status read_reply(const cJSON* o, gr_sandbox_reply* r, gr_wire_hello* hello)
{
    if (!integer(o, "id", 1, EXACT, &r->request)) return GR_FAIL(GR_EDATA, "id: no number");
    const char* error = text_of(o, "error");
    if (error != NULL) {
        int c = name_of(class_name, GR_N_SANDBOX_CLASSES, text_of(o, "class"));
        r->error = c > 0 ? (gr_sandbox_class)c : GR_SANDBOX_BROKEN;
        (void)snprintf(r->reason, sizeof r->reason, "%s", error);
        return GR_OK;
    }
    const char* hash = text_of(o, "hash");
    if (hash != NULL) r->hash = strtoull(hash, NULL, 16);
    if (field(o, "cause") != NULL && !read_outcome(o, r)) return GR_FAIL(GR_EDATA, "no outcome");
    copy_word(hello->mode, sizeof hello->mode, text_of(o, "mode"));
    copy_word(hello->trees, sizeof hello->trees, text_of(o, "trees"));
    copy_word(hello->groups, sizeof hello->groups, text_of(o, "groups"));
    copy_word(hello->notice, sizeof hello->notice, text_of(o, "notice"));
    return GR_OK;
}

gr_status gr_wire_read_reply(const char* body, size_t n, gr_sandbox_reply* r, gr_wire_hello* hello)
{
    memset(hello, 0, sizeof *hello);
    cJSON* o = parse(body, n, &r->output, &r->n_output);
    if (o == NULL) return GR_FAIL(GR_EDATA, "no JSON object");
    gr_status st = read_reply(o, r, hello);
    cJSON_Delete(o);
    return st;
}
