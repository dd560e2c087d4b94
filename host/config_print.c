/* config_print.c - settings as text: command line, JSON, hash, help. */
#include <stdlib.h>
#include <string.h>

#include "host/config_parts.h"
#include "host/json.h"

void gr_setting_text(const gr_setting* s, const void* block_value, char out[GR_VALUE_MAX])
{
    const void* at = gr_setting_of(s, block_value);
    const char* word = NULL;
    int n = 0;
    switch (s->type) {
    case GR_INT:
        (void)snprintf(out, GR_VALUE_MAX, "%lld", (long long)*(const int64_t*)at);
        return;
    case GR_REAL:
        (void)snprintf(out, GR_VALUE_MAX, "%.15g", *(const double*)at);
        return;
    case GR_BOOL:
        (void)snprintf(out, GR_VALUE_MAX, "%s", *(const bool*)at ? "true" : "false");
        return;
    case GR_TEXT:
        (void)snprintf(out, GR_VALUE_MAX, "%s", (const char*)at);
        return;
    case GR_CHOICE:
        n = gr_choice_word(s->text, *(const int*)at, &word);
        (void)snprintf(out, GR_VALUE_MAX, "%.*s", n, word);
        return;
    }
}

static void print_json(FILE* f, const gr_setting* s, const void* block_value)
{
    char text[GR_VALUE_MAX];
    gr_setting_text(s, block_value, text);
    if (s->type == GR_REAL)
        gr_json_number(f, *(const double*)gr_setting_of(s, block_value));
    else if (s->type == GR_TEXT || s->type == GR_CHOICE)
        gr_json_text(f, text, strlen(text));
    else
        fputs(text, f);
}

char* gr_config_print(const gr_config* c)
{
    char* out = NULL;
    size_t n = 0;
    FILE* f = open_memstream(&out, &n);
    GR_ASSERT(f != NULL, "out of memory");
    const char* before = "{\n";
    for (int i = 0; i < c->n_blocks; i++) {
        const gr_block* b = c->block[i].block;
        if (!gr_config_active(c, b)) continue;
        fprintf(f, "%s  \"%s\": {", before, b->name);
        for (int k = 0; k < b->n_settings; k++) {
            fprintf(f, "%s\n    \"%s\": ", k > 0 ? "," : "", b->setting[k].key);
            print_json(f, &b->setting[k], c->block[i].value);
        }
        fputs("\n  }", f);
        before = ",\n";
    }
    fputs("\n}\n", f);
    bool whole = fclose(f) == 0;
    GR_ASSERT(whole, "out of memory");
    return out;
}

uint64_t gr_config_hash(const gr_config* c)
{
    static const char without[] = "run.dir|run.name|run.resume|device.threads|checkpoint.keep";
    uint64_t hash = 0;
    for (int i = 0; i < c->n_blocks; i++) {
        const gr_block* b = c->block[i].block;
        if (!gr_config_active(c, b)) continue;
        for (int k = 0; k < b->n_settings; k++) {
            const gr_setting* s = &b->setting[k];
            char name[128], value[GR_VALUE_MAX];
            (void)snprintf(name, sizeof name, "%s.%s", b->name, s->key);
            if (gr_choice_has(without, name) || strcmp(b->name, "log") == 0) continue;
            hash = gr_hash64(name, strlen(name), hash);
            gr_setting_text(s, c->block[i].value, value);
            if (s->type == GR_REAL)
                hash = gr_hash64(gr_setting_of(s, c->block[i].value), sizeof(double), hash);
            else
                hash = gr_hash64(value, strlen(value), hash);
        }
    }
    return hash;
}

/* ---- help ------------------------------------------------------------------------------------ */

static int print_bound(char* out, size_t cap, double x)
{
    if (x >= 1e9) return 0; /* as good as none */
    return snprintf(out, cap, "%.15g", x);
}

static void print_range(char out[128], const gr_setting* s)
{
    int n = 0;
    switch (s->type) {
    case GR_INT:
    case GR_REAL:
        n = snprintf(out, 128, "%s %.15g..", s->type == GR_INT ? "int" : "real", s->min);
        (void)print_bound(out + n, 128 - (size_t)n, s->max);
        return;
    case GR_BOOL:
        (void)snprintf(out, 128, "true|false");
        return;
    case GR_TEXT:
        (void)snprintf(out, 128, "text");
        return;
    case GR_CHOICE:
        (void)snprintf(out, 128, "%s", s->text);
        return;
    }
}

static void print_default(char out[GR_VALUE_MAX], const gr_setting* s)
{
    const char* word = NULL;
    int n = 0;
    switch (s->type) {
    case GR_INT:
    case GR_REAL:
        (void)snprintf(out, GR_VALUE_MAX, "%.15g", s->def);
        return;
    case GR_BOOL:
        (void)snprintf(out, GR_VALUE_MAX, "%s", s->def != 0 ? "true" : "false");
        return;
    case GR_TEXT:
        (void)snprintf(out, GR_VALUE_MAX, "%s", s->text[0] != 0 ? s->text : "-");
        return;
    case GR_CHOICE:
        n = gr_choice_word(s->text, (int)s->def, &word);
        (void)snprintf(out, GR_VALUE_MAX, "%.*s", n, word);
        return;
    }
}

/* `text` from column `at` on; what does not fit goes on under it, broken between words. */
static void print_wrapped(const char* text, int at, FILE* out)
{
    const size_t room = (size_t)(GR_HELP_WIDTH - at);
    size_t n;
    for (; (n = strlen(text)) > room; text += n + 1) {
        for (n = room; n > 0 && text[n] != ' ';) n--;
        if (n == 0) n = strcspn(text, " ");
        if (text[n] == 0) break;
        fprintf(out, "%.*s\n%*s", (int)n, text, at, "");
    }
    fprintf(out, "%s\n", text);
}

static void print_block(const gr_block* b, FILE* out)
{
    enum {
        INDENT = 6,
        NARROW = 30
    }; /* of a meaning below its setting; too little room beside it */
    char range[128], def[GR_VALUE_MAX];
    int wide_key = 0, wide_range = 0, wide_def = 0;
    for (int k = 0; k < b->n_settings; k++) {
        print_range(range, &b->setting[k]);
        print_default(def, &b->setting[k]);
        wide_key = GR_MAX(wide_key, (int)strlen(b->setting[k].key));
        wide_range = GR_MAX(wide_range, (int)strlen(range));
        wide_def = GR_MAX(wide_def, (int)strlen(def));
    }
    int at = (int)strlen("  .      ") + (int)strlen(b->name) + wide_key + wide_range + wide_def;
    bool below = at + NARROW > GR_HELP_WIDTH;
    fprintf(out, "\n%s", b->name);
    if (b->active_when != NULL) fprintf(out, " (acts when %s)", b->active_when);
    fputc('\n', out);
    for (int k = 0; k < b->n_settings; k++) {
        const gr_setting* s = &b->setting[k];
        print_range(range, s);
        print_default(def, s);
        fprintf(out, "  %s.%-*s  %-*s  ", b->name, wide_key, s->key, wide_range, range);
        if (below)
            fprintf(out, "%s\n%*s", def, INDENT, "");
        else
            fprintf(out, "%-*s  ", wide_def, def);
        print_wrapped(s->help, below ? INDENT : at, out);
    }
}

void gr_config_help(const gr_config* c, const char* section, FILE* out)
{
    for (int i = 0; i < c->n_blocks; i++) {
        const gr_block* b = c->block[i].block;
        if (section == NULL || strcmp(section, b->name) == 0) print_block(b, out);
    }
}
