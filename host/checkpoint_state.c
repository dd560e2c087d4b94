/* checkpoint_state.c - state.json of a checkpoint. */
#include <cjson/cJSON.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "host/checkpoint_parts.h"
#include "host/durable.h"
#include "host/json.h"

/* A number of JSON is a double for most readers, so 64-bit integers stand in quotes. */
typedef enum kind { WHOLE, BITS, REAL, TEXT } kind;

typedef struct saved {
    gr_train_state s;
    int64_t optimizer_step, value_step;
} saved;

// clang-format off
#define FIELD(kind, name) {#name, kind, offsetof(gr_train_state, name), false}
#define LATER(kind, name) {#name, kind, offsetof(gr_train_state, name), true}
#define ERRORS(name, e) \
    {name, WHOLE, offsetof(gr_train_state, env_errors) + (e) * sizeof(int64_t), true}
// clang-format on
static const struct {
    const char* name;
    kind kind;
    size_t offset;
    bool later; /* older files have none: 0 */
} fields[] = {
    FIELD(WHOLE, step),
    FIELD(WHOLE, updates),
    FIELD(WHOLE, env_turns),
    FIELD(WHOLE, gen_tokens),
    LATER(WHOLE, refiner_tokens),
    LATER(WHOLE, critic_tokens),
    FIELD(WHOLE, prefill_tokens),
    FIELD(WHOLE, scorer_calls),
    FIELD(WHOLE, charged_turns),
    FIELD(WHOLE, loss_tokens),
    FIELD(WHOLE, loss_tokens_flat),
    FIELD(WHOLE, discarded_tokens),
    FIELD(WHOLE, skipped_in_a_row),
    FIELD(WHOLE, next_task),
    FIELD(REAL, tokens_per_group),
    FIELD(REAL, seconds),
    FIELD(REAL, best_success),
    FIELD(WHOLE, best_step),
    FIELD(REAL, next_eval),
    FIELD(WHOLE, metrics_bytes),
    FIELD(WHOLE, trees_bytes),
    FIELD(BITS, config_hash),
    FIELD(BITS, weights_hash),
    FIELD(TEXT, arithmetic),
    ERRORS("errors_timeout", GR_ENV_TIMEOUT),
    ERRORS("errors_crash", GR_ENV_CRASH),
    ERRORS("errors_protocol", GR_ENV_PROTOCOL),
    ERRORS("errors_refused", GR_ENV_REFUSED),
    {"optimizer_step", WHOLE, offsetof(saved, optimizer_step), false},
    {"value_step", WHOLE, offsetof(saved, value_step), true},
};

static void print_field(FILE* f, int i, const saved* state)
{
    const void* at = (const char*)state + fields[i].offset;
    fprintf(f, "%s\n  \"%s\": ", i > 0 ? "," : "", fields[i].name);
    switch (fields[i].kind) {
    case WHOLE:
        fprintf(f, "\"%" PRId64 "\"", *(const int64_t*)at);
        return;
    case BITS:
        fprintf(f, "\"%016" PRIx64 "\"", *(const uint64_t*)at);
        return;
    case REAL:
        if (isfinite(*(const double*)at))
            gr_json_number(f, *(const double*)at);
        else
            fprintf(f, "\"%f\"", *(const double*)at); /* inf, -inf, nan */
        return;
    case TEXT:
        gr_json_text(f, at, strlen(at));
        return;
    }
}

gr_status gr_state_save(const char* folder, const gr_train_state* s, int64_t optimizer_step,
                        int64_t value_step)
{
    char path[1100], *text = NULL;
    size_t n = 0;
    const saved state = {.s = *s, .optimizer_step = optimizer_step, .value_step = value_step};
    FILE* f = open_memstream(&text, &n);
    GR_ASSERT(f != NULL, "out of memory");
    fputc('{', f);
    for (int i = 0; i < GR_COUNT(fields); i++) print_field(f, i, &state);
    fputs("\n}\n", f);
    bool written = fclose(f) == 0;
    GR_ASSERT(written, "out of memory");
    (void)snprintf(path, sizeof path, "%s/state.json", folder);
    gr_status st = gr_write_file(path, text, n);
    free(text);
    return st;
}

static bool parse_field(int i, const cJSON* item, saved* state)
{
    void* at = (char*)state + fields[i].offset;
    const char* text = cJSON_GetStringValue(item);
    char* end = NULL;
    if (text == NULL) {
        if (fields[i].kind != REAL || !cJSON_IsNumber(item)) return false;
        *(double*)at = item->valuedouble;
        return true;
    }
    switch (fields[i].kind) {
    case WHOLE:
        *(int64_t*)at = strtoll(text, &end, 10);
        break;
    case BITS:
        *(uint64_t*)at = strtoull(text, &end, 16);
        break;
    case REAL:
        *(double*)at = strtod(text, &end);
        break;
    case TEXT:
        (void)snprintf(at, sizeof state->s.arithmetic, "%s", text);
        return true;
    }
    return end != text && *end == 0;
}

gr_status gr_state_load(const char* folder, gr_train_state* s, int64_t* optimizer_step,
                        int64_t* value_step)
{
    char path[1100];
    cJSON* object = NULL;
    saved state = {0};
    (void)snprintf(path, sizeof path, "%s/state.json", folder);
    gr_status st = gr_json_read(path, &object);
    for (int i = 0; i < GR_COUNT(fields) && st == GR_OK; i++) {
        const cJSON* item = cJSON_GetObjectItemCaseSensitive(object, fields[i].name);
        if (item == NULL && fields[i].later) continue;
        if (!parse_field(i, item, &state)) {
            st = GR_FAIL(GR_EDATA, "%s: `%s` is missing or no value of its kind", path,
                         fields[i].name);
        }
    }
    cJSON_Delete(object);
    GR_TRY(st);
    *s = state.s;
    *optimizer_step = state.optimizer_step;
    *value_step = state.value_step;
    return GR_OK;
}
