/* instance.h - a repository task: an issue to solve, tests that judge, and where the code comes
 * from. Level 1.
 *
 * Reads the files that the SWE-bench family is published as, JSON or JSON lines, one object per
 * instance: SWE-bench (classic and v5 fields), SWE-Gym (test lists as lists), SWE-smith (the
 * patch makes the bug), and folders of tasks laid out as envs/swe_tiny/. What a stranger wrote
 * ends up in file names and commands, so ids, commits and paths are checked here, once. */
#pragma once
#include "envs/swebench/names.h"

typedef struct gr_swe_instance {
    char* id;          /* letters, digits and "._-": fit for a file name */
    char* repo;        /* "owner/name" */
    char* base_commit; /* 40 or 64 hexadecimal digits; "" where the tree is given */
    char* version;     /* "" if not given */
    char* problem;     /* the issue */
    char* gold;        /* the patch that solves it; with gold_reversed the one that makes the bug */
    bool gold_reversed;
    char* test_patch;          /* what the judge adds to the tests; "" if they are in the tree */
    gr_swe_names fail_to_pass; /* ids of tests that must begin to pass */
    gr_swe_names pass_to_pass; /* and that must go on passing */
    gr_swe_names test_files;   /* sorted: what the judge restores before it runs them */
    char* log_parser;          /* name of the parser ("pytest"), "" where the repository decides */
    char* test_command;        /* without the files; "" where the repository decides */
    char* eval_script;         /* v5: for the official image; "" if not given */
    char* image;               /* container image; "" if not given */
    char* tree;                /* folder that holds the sources; "" where a mirror has them */
} gr_swe_instance;

typedef struct gr_swe_set {
    gr_swe_instance* instance;
    int64_t n, cap;
} gr_swe_set;

/* Appends what `path` holds: a file of JSON or JSON lines, or a folder of task folders. On
 * failure the message names the file, the line or element, the key and the reason; the set is
 * as it was. */
GR_MUST_CHECK gr_status gr_swe_read(gr_swe_set* set, const char* path);
/* The same from memory; `name` is for messages. */
GR_MUST_CHECK gr_status gr_swe_parse(gr_swe_set* set, const char* name, const char* text, size_t n);
void gr_swe_set_free(gr_swe_set* set);
