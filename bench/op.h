/* op.h - what a microbenchmark of one op says about itself; op_cases.c lists them, bench_op.c times them.
 *
 * A case draws its inputs from one fixed stream, so the same shape on two devices has the same inputs:
 * that is how a result is checked before it is timed. */
#pragma once
#include "host/arena.h"
#include "kernels/ops.h"

/* Letters as in kernels/ops.h; a case reads those it needs. */
typedef struct op_shape {
    int64_t n;          /* rows, tokens, elements */
    int64_t c, m, k, f; /* channels, outputs, inner dimension, MLP width */
    int64_t h, hk, d;   /* query heads, KV heads, head size */
    int64_t v, r;       /* vocabulary, predicted tokens */
    int64_t leaves,
        prefix; /* of a tree: leaves and the tokens they share; n tokens each of their own */
    int64_t top_k;
} op_shape;

typedef enum op_kind { OP_REAL, OP_ACC, OP_INT } op_kind;
typedef struct op_tensor {
    void* at;
    int64_t n;
    op_kind kind;
    bool is_result;
} op_tensor;

typedef struct op_run {
    gr_dev* dev;
    op_shape s;
    op_tensor tensor[24];
    int n_tensors;
    void* plan; /* of paged attention */
    uint64_t seed;
} op_run;

typedef struct op_case {
    const char *name, *what;
    const char* keys;        /* of the shape, that it reads */
    op_shape shape;          /* by default */
    void (*open)(op_run* r); /* makes the tensors, in the order that run knows */
    void (*run)(op_run* r);
    int64_t (*bytes)(const op_run* r); /* least that must move to or from memory */
    int64_t (*flop)(const op_run* r);  /* NULL: bytes decide */
} op_case;

extern const op_case op_cases[]; /* ended by a NULL name */
void op_free_plan(op_run* r);
