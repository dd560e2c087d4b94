/* program.h - another program, run to its end or its deadline. Level 1. */
#pragma once
#include "host/setting.h"

/* Runs argv[0], which is looked up in PATH, without input; what it says goes to the file `log`.
 * *code: its exit status, 128 + signal where one ended it. At the deadline it and all it started
 * are told to end, and killed two seconds later; that is an error, as one that cannot start is. */
GR_MUST_CHECK gr_status gr_swe_program(char* const argv[], const char* log, double time_s,
                                       int* code);
/* Why it failed, in one line of its log: the first that says fatal or error, else the last. */
void gr_swe_program_reason(const char* log, char* line, size_t cap);
