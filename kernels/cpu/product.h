/* product.h - small matrix products on a thread's own buffers, as attention needs them. */
#pragma once
#include "kernels/cpu/cpu.h"

/* How a and b lie in memory. Pages hold GR_PAGE columns of b (keys of K) or steps (keys of V). */
typedef enum product_kind {
    PRODUCT_PLAIN,        /* a (rows, steps) acc, b (steps, cols) real */
    PRODUCT_COLUMN_PAGES, /* b in pages [steps][GR_PAGE] */
    PRODUCT_STEP_PAGES,   /* b in pages [GR_PAGE][cols] */
    PRODUCT_TRANSPOSED,   /* a (steps, rows) acc, b (steps, cols) acc */
} product_kind;

/* c (rows, cols) = a b, or added to c. Each element is one fma chain over the steps, from 0 or from
 * what c holds, so cutting the steps over several calls changes no bit. Rows of c have room for cols
 * rounded up to whole vectors; nothing past cols is read of b. */
typedef struct product {
    product_kind kind;
    bool add;
    acc* c;
    const acc* a;
    const void* b;
    const real* const* pages;     /* instead of b */
    int64_t c_row, a_row, b_step; /* elements from one to the next; a_row of a's rows in memory */
    int64_t rows, cols, steps;
} product;

void OP(product)(const product* p);
