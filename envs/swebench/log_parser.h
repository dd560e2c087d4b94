/* log_parser.h - the logs of test runners: which test did what. Level 1.
 *
 * A parser is a pure function of untrusted text. */
#pragma once
#include "envs/swebench/results.h"

typedef struct gr_swe_parser {
    const char* name;
    void (*parse)(const char* log, size_t n, gr_swe_results* out);
} gr_swe_parser;

/* What is known of a repository of SWE-bench. */
typedef struct gr_swe_repo {
    const char* repo;         /* "pallets/flask" */
    const char* parser;       /* "pytest" */
    const char* test_command; /* the files follow */
} gr_swe_repo;

const gr_swe_repo* gr_swe_repo_find(const char* repo); /* NULL: not one of those */
/* By the parser's own name ("pytest_v2") or as published files call it, after a repository
 * ("parse_log_flask"). NULL: none. */
const gr_swe_parser* gr_swe_parser_find(const char* name);

/* The text between the markers of an evaluation's log. NULL: markers are missing, or one says
 * that patch, tests or time failed. */
const char* gr_swe_log_cut(const char* log, size_t n, size_t* n_cut);

#define GR_SWE_START ">>>>> Start Test Output"
#define GR_SWE_END   ">>>>> End Test Output"

/* The results in an evaluation's whole log. False if it proves nothing: see gr_swe_log_cut; or
 * the tests ended with exit_code != 0, but none is said to have failed, so the log does not
 * describe what ran. */
bool gr_swe_log_read(const gr_swe_parser* p, const char* log, size_t n, int exit_code,
                     gr_swe_results* out);
