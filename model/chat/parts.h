/* parts.h - what chat formats are written with. Level 1. */
#pragma once
#include "model/chat.h"

void gr_chat_markup(gr_chat_text* out, const char* text); /* a format's own words and tokens */
void gr_chat_plain(gr_chat_text* out, gr_string text);    /* somebody's words */
/* A JSON array's elements, or a string, as Python's json module writes them. indent 0: on
 * one line. `between` is written before each element, `after` behind it. */
void gr_chat_json_list(gr_chat_text* out, const char* array, int indent, const char* before,
                       const char* after);
void gr_chat_json_string(gr_chat_text* out, gr_string text);
gr_string
gr_chat_trim(gr_string text); /* without white space at both ends, as Python's str.strip */

/* Copies the system message, if the part begins with one, and returns the number of messages it
 * takes. */
static inline int gr_chat_system(const gr_chat_part* p, gr_string* text)
{
    bool has = p->n > 0 && p->message[0].role == GR_SYSTEM;
    if (has) *text = p->message[0].text;
    return has;
}

extern const gr_chat_format gr_chat_qwen25, gr_chat_qwen3, gr_chat_smollm2;
extern const gr_chat_format gr_chat_llama2, gr_chat_llama3, gr_chat_llama31;
