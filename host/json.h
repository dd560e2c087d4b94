/* json.h - writing JSON exactly: text of any bytes, numbers that read back to the same bits.
 *
 * Level 0. Reading is cJSON's, behind a check of size; it keeps integers as doubles and prints bytes as
 * they are, which is too little for 64-bit counters, log-probabilities and what a byte model says. */
#pragma once
#include <stdio.h>

#include "host/base.h"

/* Bytes of the UTF-8 character at the start of text[0..n), n > 0; 0: none begins there. */
size_t gr_utf8_length(const char* text, size_t n);
/* A quoted string of n bytes, control characters escaped; bytes that are no UTF-8 become U+FFFD. */
void gr_json_text(FILE* out, const char* text, size_t n);
/* The shortest decimal that reads back to x; null for what JSON has no number for. */
void gr_json_number(FILE* out, double x);

/* Text of a file or of a file's header that a stranger may have written. A parsed value takes about 80
 * bytes, so their number is bounded before anything is parsed; cJSON bounds the nesting. NULL where the
 * text is too large or no JSON; end (may be NULL) is then or else where parsing ended. The caller
 * deletes the result. */
struct cJSON;
struct cJSON* gr_json_parse(const char* text, size_t n, const char** end);
/* The object in a file. The caller deletes it. */
GR_MUST_CHECK gr_status gr_json_read(const char* path, struct cJSON** object);
/* A whole number of 0 to 2^53, which doubles hold exactly; -1 for anything else, NULL as well. */
int64_t gr_json_whole(const struct cJSON* item);
