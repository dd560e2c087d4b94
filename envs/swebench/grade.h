/* grade.h - does a patch solve an instance? Level 1.
 *
 * Follows the official harness: a fresh tree, the patch by the first of four ways that works,
 * the judge's test files put back, its test patch, the test command between two markers, the
 * log read by the repository's parser. Two things are added against forgery, because the patch
 * runs in the same process as the tests: the exit status is the sandbox's, not a line of the
 * log; and the run has two tests of random names more, one that must pass and one that must
 * fail. A program that prints results itself and leaves before the runner speaks does not know
 * them. */
#pragma once
#include "envs/sandbox/sandbox.h"
#include "envs/swebench/log_parser.h"

typedef enum gr_swe_outcome {
    GR_SWE_GRADED,      /* the verdict counts */
    GR_SWE_EMPTY,       /* no patch */
    GR_SWE_UNAPPLIED,   /* the patch does not apply in any way */
    GR_SWE_NO_TESTS,    /* the judge's own patch does not apply on top of it */
    GR_SWE_OUT_OF_TIME, /* or out of memory, disk or output */
    GR_SWE_UNPROVEN,    /* the log does not describe what ran, or nothing did */
    GR_SWE_FORGED,      /* passes, but the random tests are missing or say the wrong thing */
    GR_SWE_NO_SANDBOX,  /* the sandbox failed; nothing is known */
    GR_N_SWE_OUTCOMES
} gr_swe_outcome;
const char* gr_swe_outcome_name(gr_swe_outcome o);

typedef struct gr_swe_grade {
    gr_swe_outcome outcome;
    gr_swe_verdict verdict;
    char reason[256]; /* of GR_SWE_NO_SANDBOX */
    double seconds;   /* of the test command */
} gr_swe_grade;

typedef struct gr_swe_judging { /* what stays the same for an instance */
    const gr_swe_instance* instance;
    gr_sandbox_tree tree; /* its base tree */
    const char* setup;    /* shell lines before the test command; "" for none */
    double time_s;        /* of the test command */
} gr_swe_judging;

/* GR_EDATA if the instance names no parser that is known. */
GR_MUST_CHECK gr_status gr_swe_check(const gr_swe_instance* x);

typedef struct gr_swe_grader gr_swe_grader;
/* Asks for a fresh sandbox of that number on `box`, and so on with each reply to `sandbox` that
 * is handed in; true once *grade is filled. The sandbox is then closed. `patch` is copied. */
gr_swe_grader* gr_swe_grader_begin(gr_sandbox* box, int64_t sandbox, const gr_swe_judging* j,
                                   const char* patch, size_t n_patch);
bool gr_swe_grader_hear(gr_swe_grader* g, const gr_sandbox_reply* r, gr_swe_grade* grade);
void gr_swe_grader_end(gr_swe_grader* g); /* also before it is done */

/* All of it at once; for tools and tests. `log` (may be NULL): a copy of the log, which the
 * caller frees. */
void gr_swe_grade_now(gr_sandbox* box, int64_t sandbox, const gr_swe_judging* j, const char* patch,
                      gr_swe_grade* grade, char** log);
