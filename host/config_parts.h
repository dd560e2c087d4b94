/* config_parts.h - what the files of the settings share. Level 1.
 *
 * config.c holds the blocks, config_core.c the core tables; config_parse.c reads file and command line,
 * config_check.c compares settings with each other, config_print.c writes them. */
#pragma once
#include "host/config.h"

typedef struct gr_core_block {
    gr_block block;
    size_t offset; /* of its struct in gr_config */
} gr_core_block;
extern const gr_core_block gr_core_blocks[];
extern const int gr_n_core_blocks;

static inline void* gr_setting_at(const gr_setting* s, void* block_value)
{
    return (char*)block_value + s->offset;
}
static inline const void* gr_setting_of(const gr_setting* s, const void* block_value)
{
    return (const char*)block_value + s->offset;
}

#define GR_SETTINGS_MAX 64                                      /* of a block */
int gr_config_find_block(const gr_config* c, const char* name); /* index; -1: none */
const gr_setting* gr_config_find_setting(const gr_block* b, const char* key);

/* Word i of "a|b|c": its length, 0 past the end. */
int gr_choice_word(const char* list, int i, const char** word);
bool gr_choice_has(const char* list, const char* text);

/* The value as it is written on the command line. */
#define GR_VALUE_MAX (GR_TEXT_MAX + 8)
void gr_setting_text(const gr_setting* s, const void* block_value, char out[GR_VALUE_MAX]);

/* Whether "section.key=a|b" holds; with "!" before it, whether it does not. `now` may be NULL, else it
 * becomes "section.key is value". */
bool gr_config_holds(const gr_config* c, const char* condition, char* now, size_t cap);
/* Why a key that is set has no effect, as "section.key is value"; false if it has. */
bool gr_config_idle_key(const gr_config* c, const gr_block* b, const gr_setting* s, char* why,
                        size_t cap);
/* Fills in what follows from other settings, then compares settings with each other. */
GR_MUST_CHECK gr_status gr_config_resolve(gr_config* c);
