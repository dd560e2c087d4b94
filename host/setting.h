/* setting.h - how a module declares its settings: one table that drives parse, check, print and help.
 *
 * Level 0. A block is a JSON object of the config file ("patr": {...}). Core blocks live in
 * host/config.c; a method or an environment declares its own block beside its code. */
#pragma once
#include "host/base.h"

typedef enum gr_setting_type { GR_INT, GR_REAL, GR_BOOL, GR_TEXT, GR_CHOICE } gr_setting_type;

#define GR_TEXT_MAX 256 /* bytes of a text setting, terminator included */

typedef struct gr_setting {
    const char* key;
    gr_setting_type type;
    size_t offset;    /* in the block's struct: int64_t, double, bool, char[GR_TEXT_MAX], int */
    double min, max;  /* GR_INT, GR_REAL: allowed range, both ends included */
    double def;       /* default of numbers, booleans and choices (index) */
    const char* text; /* GR_TEXT: default; GR_CHOICE: "exact|bf16|auto" */
    const char* help; /* meaning and unit, one line */
} gr_setting;

typedef struct gr_block {
    const char* name;        /* "patr" */
    const char* active_when; /* "rollout.strategy=patr|tree_random"; NULL: always */
    const gr_setting* setting;
    int n_settings;
    size_t struct_bytes;
} gr_block;

#define GR_SET_INT(S, f, lo, hi, d, h)                 \
    {                                                  \
#f, GR_INT, offsetof(S, f), lo, hi, d, NULL, h \
    }
#define GR_SET_REAL(S, f, lo, hi, d, h)                 \
    {                                                   \
#f, GR_REAL, offsetof(S, f), lo, hi, d, NULL, h \
    }
#define GR_SET_BOOL(S, f, d, h)                       \
    {                                                 \
#f, GR_BOOL, offsetof(S, f), 0, 1, d, NULL, h \
    }
#define GR_SET_TEXT(S, f, d, h)                    \
    {                                              \
#f, GR_TEXT, offsetof(S, f), 0, 0, 0, d, h \
    }
#define GR_SET_CHOICE(S, f, list, d, h)                 \
    {                                                   \
#f, GR_CHOICE, offsetof(S, f), 0, 0, d, list, h \
    }
#define GR_BLOCK(S, block_name, when, table)                \
    {                                                       \
        block_name, when, table, GR_COUNT(table), sizeof(S) \
    }
