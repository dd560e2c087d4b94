/* answer.h - what a model that judges has to say: one JSON object with a level and its reason.
 * Level 5.1.
 *
 *     {"critique": "it walks back to where it came from", "score": 3}
 *
 * Strict, because a wrong level does more harm than none: the object ends the text, but for white
 * space and the closing fence of a code block; score stands in it once and is a whole number of 0
 * to 10; critique, if it is there, stands in it once and is a text. Other keys are allowed. What
 * stands in front of the object is what the model thought. */
#pragma once
#include "host/base.h"

#define GR_CRITIQUE_MAX 1024 /* bytes that are kept of a critique, terminator included */

typedef struct gr_answer {
    int level; /* 0 .. GR_LEVELS */
    int n_critique;
    char critique[GR_CRITIQUE_MAX]; /* "" without one; cut between characters */
} gr_answer;

/* False, and nothing in `out`: this is no answer. */
bool gr_answer_read(const char* text, size_t n, gr_answer* out);
