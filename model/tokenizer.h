/* tokenizer.h - text to tokens and back. Level 1.
 *
 * Byte tokenizer: token = byte, vocabulary 256. Decoding any token sequence gives back the bytes that
 * were encoded, so sampled tokens are appended as they are and never re-encoded. */
#pragma once
#include "host/base.h"

#define GR_BYTE_VOCAB 256

/* Writes at most `cap` tokens; returns how many the text needs. */
static inline int gr_encode(const char* text, int n_bytes, int32_t* token, int cap)
{
    for (int i = 0; i < n_bytes && i < cap; i++) token[i] = (unsigned char)text[i];
    return n_bytes;
}
/* Writes at most cap - 1 bytes and a terminator; returns the bytes written. */
static inline int gr_decode(const int32_t* token, int n, char* text, int cap)
{
    int len = 0;
    for (; len < n && len < cap - 1; len++) text[len] = (char)token[len];
    text[len] = 0;
    return len;
}
