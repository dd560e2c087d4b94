/* results.h - what a log says about each test, and whether that solves an instance. Level 1.
 *
 * Follows the official harness of SWE-bench to the letter where it decides
 * (github.com/SWE-bench, harness/grading.py and log_parsers/python.py at 7a21e05), its quirks
 * included: published figures are made with it. */
#pragma once
#include "envs/swebench/instance.h"

typedef enum gr_swe_status {
    GR_SWE_UNKNOWN, /* a word that is no status */
    GR_SWE_PASSED,
    GR_SWE_FAILED,
    GR_SWE_ERROR,
    GR_SWE_SKIPPED,
    GR_SWE_XFAIL,
} gr_swe_status;

/* Names of tests and their status; of a name that comes twice the later status holds. */
typedef struct gr_swe_results {
    struct gr_swe_result {
        char* name;
        gr_swe_status status;
    } * result;
    int64_t n, cap;
    int64_t* slot; /* hash table: index of a result + 1, 0 if free */
    int64_t n_slots;
} gr_swe_results;

void gr_swe_results_set(gr_swe_results* r, const char* name, size_t n, gr_swe_status status);
const struct gr_swe_result* gr_swe_results_find(const gr_swe_results* r, const char* name);
/* The result that an expected id means, or NULL. Ids in published data are sometimes cut inside
 * a parameter: one with more '[' than ']' means the tests that it begins, if these agree on
 * having passed. */
const struct gr_swe_result* gr_swe_results_match(const gr_swe_results* r, const char* id);
void gr_swe_results_free(gr_swe_results* r);

typedef enum gr_swe_resolution { GR_SWE_NO, GR_SWE_PARTIAL, GR_SWE_FULL } gr_swe_resolution;

typedef struct gr_swe_verdict {
    int f2p_passed, p2p_passed; /* of instance->fail_to_pass.n and pass_to_pass.n */
    gr_swe_resolution resolution;
} gr_swe_verdict;

/* A test that must begin to pass has to pass (or fail as expected); one that must go on passing
 * may also be skipped; one that the log does not mention has failed. */
gr_swe_verdict gr_swe_judge(const gr_swe_instance* x, const gr_swe_results* r);
