/* config.c - the blocks of settings: defaults, names, conditions on other settings. */
#include <stdlib.h>
#include <string.h>

#include "host/config_parts.h"

/* ---- blocks ---------------------------------------------------------------------------------- */

static void set_default(const gr_setting* s, void* value)
{
    void* at = gr_setting_at(s, value);
    switch (s->type) {
    case GR_INT:
        *(int64_t*)at = (int64_t)s->def;
        return;
    case GR_REAL:
        *(double*)at = s->def;
        return;
    case GR_BOOL:
        *(bool*)at = s->def != 0;
        return;
    case GR_CHOICE:
        *(int*)at = (int)s->def;
        return;
    case GR_TEXT:
        GR_ASSERT(strlen(s->text) < GR_TEXT_MAX, "%s", s->key);
        memcpy(at, s->text, strlen(s->text) + 1);
        return;
    }
}

static void add_block(gr_config* c, const gr_block* b, void* value)
{
    GR_ASSERT(c->n_blocks < GR_MAX_BLOCKS && b->n_settings <= GR_SETTINGS_MAX, "%s", b->name);
    c->block[c->n_blocks].block = b;
    c->block[c->n_blocks++].value = value;
    for (int i = 0; i < b->n_settings; i++) set_default(&b->setting[i], value);
}

void gr_config_init(gr_config* c)
{
    memset(c, 0, sizeof *c);
    for (int i = 0; i < gr_n_core_blocks; i++) {
        add_block(c, &gr_core_blocks[i].block, (char*)c + gr_core_blocks[i].offset);
    }
}

int gr_config_find_block(const gr_config* c, const char* name)
{
    for (int i = 0; i < c->n_blocks; i++) {
        if (strcmp(c->block[i].block->name, name) == 0) return i;
    }
    return -1;
}

void gr_config_register(gr_config* c, const gr_block* b)
{
    int i = gr_config_find_block(c, b->name);
    if (i >= 0) {
        GR_ASSERT(c->block[i].block == b, "two blocks are called %s", b->name);
        return;
    }
    void* value = calloc(1, b->struct_bytes);
    GR_ASSERT(value != NULL, "out of memory");
    add_block(c, b, value);
}

void gr_config_free(gr_config* c)
{
    for (int i = gr_n_core_blocks; i < c->n_blocks; i++) free(c->block[i].value);
    memset(c, 0, sizeof *c);
}

const void* gr_config_block(const gr_config* c, const char* name)
{
    int i = gr_config_find_block(c, name);
    GR_ASSERT(i >= 0, "no block %s", name);
    return c->block[i].value;
}

const gr_setting* gr_config_find_setting(const gr_block* b, const char* key)
{
    for (int i = 0; i < b->n_settings; i++) {
        if (strcmp(b->setting[i].key, key) == 0) return &b->setting[i];
    }
    return NULL;
}

/* ---- conditions: "section.key=a|b" ----------------------------------------------------------- */

int gr_choice_word(const char* list, int i, const char** word)
{
    for (; i > 0; i--) {
        list = strchr(list, '|');
        if (list == NULL) return 0;
        list++;
    }
    *word = list;
    return (int)strcspn(list, "|");
}

bool gr_choice_has(const char* list, const char* text)
{
    const char* word = list;
    for (;; word++) {
        size_t n = strcspn(word, "|");
        if (n == strlen(text) && strncmp(word, text, n) == 0) return true;
        word += n;
        if (*word == 0) return false;
    }
}

bool gr_config_holds(const gr_config* c, const char* condition, char* now, size_t cap)
{
    bool no = condition[0] == '!';
    char section[64], key[64], value[GR_VALUE_MAX];
    int n = 0;
    if (no) condition++;
    int parts = sscanf(condition, "%63[^.].%63[^=]=%n", section, key, &n);
    GR_ASSERT(parts == 2 && n > 0, "%s", condition);
    int i = gr_config_find_block(c, section);
    const gr_setting* s = i < 0 ? NULL : gr_config_find_setting(c->block[i].block, key);
    GR_ASSERT(s != NULL, "%s names no setting", condition);
    gr_setting_text(s, c->block[i].value, value);
    if (now != NULL) (void)snprintf(now, cap, "%s.%s is %s", section, key, value);
    return gr_choice_has(condition + n, value) != no;
}

bool gr_config_active(const gr_config* c, const gr_block* b)
{
    return b->active_when == NULL || gr_config_holds(c, b->active_when, NULL, 0);
}
