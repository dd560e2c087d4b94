/* command.h - the sub-commands of grove. Level 9: the only place that knows them all. */
#pragma once
#include <argp.h>
#include <cjson/cJSON.h>
#include <stdio.h>

#include "host/train.h"

typedef struct gr_command {
    const char* name;
    const char* summary;               /* one line for `grove --help` */
    int (*run)(int argc, char** argv); /* argv[0] is "grove <name>"; returns the exit status */
} gr_command;

extern const gr_command gr_command_train, gr_command_eval, gr_command_generate, gr_command_inspect,
    gr_command_replay, gr_command_export, gr_command_report, gr_command_sandbox;
extern const gr_command* const gr_commands[]; /* NULL-terminated */

/* An argp help filter that appends the settings table to `--help`. */
char* gr_command_help(int key, const char* text, void* input);
/* Prints the last error as one line "grove: <reason>" and returns 1. */
int gr_command_fail(void);
/* Text that a world or a model wrote, on stdout, so that it cannot steer the terminal: control
 * characters (C0, DEL and C1) and bytes that are no UTF-8 as escapes. At most `most` bytes of
 * text[0..n) are read; a character cut there is left out. */
void gr_command_print_text(const char* text, size_t n, size_t most);
/* The same, whole, line by line: each after `indent`; a last line without an end gets one. */
void gr_command_print_lines(const char* text, size_t n, const char* indent);

/* The lines of metrics.jsonl or trees.jsonl, one after the other; zeroed but for `file` and `path` at the
 * start. */
typedef struct gr_line_reader {
    FILE* file;
    const char* path; /* for errors */
    char* line;       /* the latest line, owned by the reader: free it */
    size_t cap;
    int64_t number; /* of the latest line, from 1 */
    int64_t damaged;
} gr_line_reader;
/* The next object, to be deleted by the caller; NULL at the end. A run that was killed may leave its last
 * line half-written: that is the end too. Damage before the last line is GR_EDATA. */
GR_MUST_CHECK gr_status gr_command_next_line(gr_line_reader* r, cJSON** object);

/* Words after the options: one subject (a file or folder), then section.key=value. */
typedef struct gr_command_words {
    const char* subject;
    const char* override[128];
    int n_overrides;
} gr_command_words;
/* The part of an argp parser that all commands share: words that are no options, and their absence. */
error_t gr_command_parse(gr_command_words* w, int key, char* arg, struct argp_state* state);

/* Opens what a finished or interrupted run left, for reading: config.json of the run, its overrides,
 * and the weights of a checkpoint. `where` is a run folder (newest checkpoint, or `label`) or a
 * checkpoint folder inside one; for eval without `label` also a model, whose settings are the
 * defaults. */
GR_MUST_CHECK gr_status gr_command_open_run(gr_run* run, gr_config* c, const char* where,
                                            const char* label, gr_run_mode mode,
                                            const gr_command_words* w);
