/* batch.h - what training reads: a forest of tokens in depth-first order. Plain data. Level 2.
 *
 * Key j is visible to query i iff j <= i < subtree_end[j]: that array is the whole mask. Loss rows are
 * predicted tokens: row u is predicted by the hidden state of token src[u]; the children of a branch
 * point share one src. Coefficients are fp64 here and acc on the device. */
#pragma once
#include "host/base.h"

typedef struct gr_batch {
    /* per token, n_tokens */
    int32_t* token;
    int32_t* position;    /* index on its path */
    int32_t* subtree_end; /* one past the last token below */
    int n_tokens;
    int max_path; /* largest position + 1 */
    /* per predicted token, n_rows; only tokens that are trained or measured */
    int32_t* src;
    int32_t* target;
    double* old_logp;
    double* ref_logp;      /* filled by the reference model when KL is on */
    double *a_pos, *a_neg; /* sum over leaves below of w_l max(A, 0), min(A, 0) */
    double* w;             /* sum of w_l */
    bool* demo;            /* a token of a demonstration */
    int n_rows;
    /* per value row, n_values: head value_head[i] reads the hidden state of token value_src[i].
     * Several rows may share a read */
    int32_t *value_src, *value_head;
    double *value_target, *value_weight; /* what it should say */
    double* value_old;                   /* what it said when the batch was sampled */
    int n_values;
} gr_batch;
