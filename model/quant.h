/* quant.h - blocks of short numbers in GGUF files and what they stand for. Level 1. */
#pragma once
#include "host/base.h"

/* The format's numbers of the types that are read; others are none of these. */
typedef enum gr_quant_type {
    GR_QUANT_F32 = 0,
    GR_QUANT_F16 = 1,
    GR_QUANT_Q4_0 = 2,
    GR_QUANT_Q4_1 = 3,
    GR_QUANT_Q5_0 = 6,
    GR_QUANT_Q5_1 = 7,
    GR_QUANT_Q8_0 = 8,
    GR_QUANT_Q4_K = 12,
    GR_QUANT_Q5_K = 13,
    GR_QUANT_Q6_K = 14,
    GR_QUANT_BF16 = 30,
    GR_QUANT_N_TYPES
} gr_quant_type;

#define GR_QUANT_MAX 256 /* elements of the largest block */

const char* gr_quant_name(uint32_t type);  /* NULL: not read */
int gr_quant_elements(gr_quant_type type); /* of a block; rows are whole blocks */
int gr_quant_bytes(gr_quant_type type);    /* of a block */
/* n elements, whole blocks, from data: each the float nearest to what the block stands for. */
void gr_quant_read(float* out, gr_quant_type type, const unsigned char* data, int64_t n);
