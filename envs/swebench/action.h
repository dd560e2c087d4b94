/* action.h - what an agent says and what it is shown: pure functions of text. Level 1. */
#pragma once
#include "envs/env.h"

/* The one ```bash block of an answer: false if there is none, or more than one. */
bool gr_swe_action_read(const char* text, int n, const char** command, int* n_command);
/* The command that hands the work in: `submit`, alone. */
bool gr_swe_action_submits(const char* command, int n);
/* Does it run tests or a script of its own? */
bool gr_swe_action_tests(const char* command, int n);
/* Does it name a Python file that the issue names, by path, file or module? */
bool gr_swe_action_opens(const char* command, int n, const char* problem);

/* Counts in the last summary line of pytest or unittest; false if there is none. */
bool gr_swe_output_counts(const char* output, size_t n, int* passed, int* failed);
/* Appends to text[*n..cap] as much as fits and a terminator; bytes that are no UTF-8 text become
 * '?'. */
void gr_swe_say(char* text, int* n, int cap, const char* bytes, size_t n_bytes);
