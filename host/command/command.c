#include "host/command/command.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "host/json.h"
#include "model/folder.h"

const gr_command* const gr_commands[] = {
    &gr_command_train,   &gr_command_eval,    &gr_command_generate,
    &gr_command_inspect, &gr_command_report,  &gr_command_replay,
    &gr_command_export,  &gr_command_sandbox, NULL,
};

char* gr_command_help(int key, const char* text, void* input)
{
    (void)input;
    if (key != ARGP_KEY_HELP_EXTRA) return (char*)(uintptr_t)text; /* argp keeps it as it was */
    char* out = NULL;
    size_t n = 0;
    FILE* f = open_memstream(&out, &n);
    if (f == NULL) return NULL;
    gr_config c;
    gr_run_settings(&c);
    fprintf(f, "Settings, as section.key=value or in the configuration file:\n");
    gr_config_help(&c, NULL, f);
    gr_config_free(&c);
    (void)fclose(f);
    return out;
}

int gr_command_fail(void)
{
    fprintf(stderr, "grove: %s\n", gr_last_error_text());
    return 1;
}

void gr_command_print_text(const char* text, size_t n, size_t most)
{
    for (size_t i = 0; i < n && i < most;) {
        unsigned char c = (unsigned char)text[i];
        size_t length = gr_utf8_length(text + i, n - i);
        bool c1 = length == 2 && c == 0xc2 && (unsigned char)text[i + 1] < 0xa0;
        if (length > 0 && i + length > most) return;
        if (c == '\n') {
            printf("\\n");
        } else if (length == 0 || c < 0x20 || c == 0x7f) {
            printf("\\x%02x", c);
        } else if (c1) {
            printf("\\x%02x\\x%02x", c, (unsigned char)text[i + 1]);
        } else {
            (void)fwrite(text + i, 1, length, stdout);
        }
        i += length > 0 ? length : 1;
    }
}

void gr_command_print_lines(const char* text, size_t n, const char* indent)
{
    for (size_t i = 0; i < n;) {
        const char* end = memchr(text + i, '\n', n - i);
        size_t line = end != NULL ? (size_t)(end - text) - i : n - i;
        printf("%s", indent);
        gr_command_print_text(text + i, line, line);
        putchar('\n');
        i += line + 1;
    }
}

gr_status gr_command_next_line(gr_line_reader* r, cJSON** object)
{
    *object = NULL;
    ssize_t n;
    while (*object == NULL && (n = getline(&r->line, &r->cap, r->file)) > 0) {
        r->number++;
        if (r->damaged > 0) {
            return GR_FAIL(GR_EDATA, "%s: line %lld is damaged: not an object in JSON", r->path,
                           (long long)r->damaged);
        }
        if (strlen(r->line) == (size_t)n) *object = cJSON_ParseWithOpts(r->line, NULL, true);
        if (!cJSON_IsObject(*object)) {
            cJSON_Delete(*object);
            *object = NULL;
            r->damaged = r->number;
        }
    }
    return GR_OK;
}

/* False if `arg` is neither the subject nor an override. */
static bool take_word(gr_command_words* w, char* arg)
{
    const char* equals = strchr(arg, '=');
    const char* dot = strchr(arg, '.');
    const char* slash = strchr(arg, '/'); /* a path may hold dots and equal signs */
    bool is_override =
        equals != NULL && dot != NULL && dot < equals && (slash == NULL || slash > equals);
    if (is_override && w->n_overrides < GR_COUNT(w->override)) {
        w->override[w->n_overrides++] = arg;
        return true;
    }
    if (is_override || w->subject != NULL) return false;
    w->subject = arg;
    return true;
}

error_t gr_command_parse(gr_command_words* w, int key, char* arg, struct argp_state* state)
{
    switch (key) {
    case ARGP_KEY_ARG:
        if (!take_word(w, arg)) argp_error(state, "`%s` is not section.key=value", arg);
        return 0;
    case ARGP_KEY_NO_ARGS:
        argp_usage(state);
        return 0;
    case ARGP_KEY_SUCCESS:
        if (w->subject == NULL) argp_usage(state);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static bool exists(const char* path)
{
    struct stat s;
    return stat(path, &s) == 0;
}

/* Weights without a run: a GGUF file, or a folder of a model as the Hugging Face libraries write it. */
static gr_status find_model(const char* where, bool* found)
{
    static const char* const file[] = {"model.safetensors", "model.safetensors.index.json"};
    char path[1200];
    GR_TRY(gr_folder_gguf(where, path, sizeof path));
    *found = path[0] != 0;
    for (int i = 0; i < GR_COUNT(file); i++) {
        (void)snprintf(path, sizeof path, "%s/%s", where, file[i]);
        *found = *found || exists(path);
    }
    return GR_OK;
}

/* Default settings but for the overrides. */
static gr_status open_model(gr_run* run, gr_config* c, const char* where, const gr_command_words* w)
{
    gr_command_words words = *w;
    char path[1200];
    if (words.n_overrides == GR_COUNT(words.override)) return GR_FAIL(GR_EARG, "too many words");
    (void)snprintf(path, sizeof path, "model.path=%s", where);
    words.override[words.n_overrides++] = path;
    GR_TRY(gr_config_load(c, NULL, words.n_overrides, words.override));
    GR_TRY(gr_run_open(run, c, GR_RUN_EVAL, where, false));
    GR_TRY(gr_folder_load(&run->weights, where));
    gr_engine_reset(&run->engine);
    return GR_OK;
}

gr_status gr_command_open_run(gr_run* run, gr_config* c, const char* where, const char* label,
                              gr_run_mode mode, const gr_command_words* w)
{
    char config[1200], checkpoint[1024];
    bool model = false;
    (void)snprintf(config, sizeof config, "%s/state.json", where);
    if (mode == GR_RUN_EVAL && label == NULL && !exists(config)) {
        GR_TRY(find_model(where, &model));
        if (model) return open_model(run, c, where, w);
    }
    if (exists(config)) { /* a checkpoint folder: the run is two levels up */
        (void)snprintf(checkpoint, sizeof checkpoint, "%s", where);
        (void)snprintf(config, sizeof config, "%s/../../config.json", where);
    } else {
        (void)snprintf(config, sizeof config, "%s/config.json", where);
        if (!exists(config))
            return GR_FAIL(GR_EARG, "%s: no run here (config.json is missing)", where);
        GR_TRY(gr_checkpoint_find(where, label, checkpoint, sizeof checkpoint));
        if (checkpoint[0] == 0) {
            return GR_FAIL(GR_EARG, "%s: no complete checkpoint%s%s", where, label ? " " : "",
                           label ? label : "");
        }
    }
    GR_TRY(gr_config_load(c, config, w->n_overrides, w->override));
    GR_TRY(gr_run_open(run, c, mode, checkpoint, false));
    GR_TRY(gr_checkpoint_load(checkpoint, &run->state, &run->weights,
                              mode == GR_RUN_TRAIN ? &run->optimizer : NULL, gr_run_critic(run)));
    (void)snprintf(run->log.dir, sizeof run->log.dir, "%s", where); /* no files are open */
    gr_engine_reset(&run->engine);
    return GR_OK;
}
