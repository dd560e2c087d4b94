/* pack.h - finished trees with credit to packed batches. Level 5.
 *
 * Depth-first pre-order over context links. In it, key j is visible to query i iff
 * j <= i < subtree_end[j]; the clipped loss is linear in the advantage on each sign, so per unique
 * token the sums a_pos, a_neg, w over the leaves below carry the exact flattened loss. A forest larger
 * than one micro-batch is cut at nodes: a prefix that a later piece needs is packed again with zero
 * coefficients, and each trained token lies in exactly one piece. */
#pragma once
#include "host/advantage/advantage.h"
#include "host/config.h"
#include "model/batch.h"

typedef struct gr_pack {
    gr_batch* piece; /* (n_pieces) micro-batches, each <= max_tokens */
    int n_pieces;
    int64_t trained;      /* predicted tokens with w > 0, over all pieces */
    int64_t trained_flat; /* the same counted once per leaf: what flat rows would train */
    int64_t tokens;       /* packed, re-packed prefixes included */
    int64_t tokens_flat;  /* tokens of all leaf paths as rows of their own */
    /* of gr_pack_ask: what each value row and each predicted row answers, over all pieces in order */
    gr_read** read;
    gr_probe** probe;
    /* private */
    int64_t piece_cap;
    struct gr_pack_scratch* scratch;
} gr_pack;

/* Sums that the denominators need, over all trained groups of a minibatch (all pieces, all ranks). */
typedef struct gr_denominators {
    double n_leaves;      /* N */
    double leaf_tokens;   /* sum of |y_l|: policy tokens of full paths */
    double split;         /* sum of s_l */
    double split_tokens;  /* sum of s_l |y_l| */
    double unique_tokens; /* T */
    double value_leaves;  /* leaves of groups with a value model */
} gr_denominators;
void gr_denominators_add(gr_denominators* d, const gr_credit* c, const gr_config_loss* loss);

/* Packs `n` credits (idle ones are skipped unless loss.count_idle_groups). A node longer than
 * max_tokens together with its prefix is an error that names the setting. */
GR_MUST_CHECK gr_status gr_pack_make(gr_pack* p, const gr_credit* const* credit, int n,
                                     const gr_config_loss* loss, const gr_denominators* d,
                                     int max_tokens);
/* The same credit as flat rows, one path per leaf: the reference that tests compare with. */
GR_MUST_CHECK gr_status gr_pack_flat(gr_pack* p, const gr_credit* const* credit, int n,
                                     const gr_config_loss* loss, const gr_denominators* d,
                                     int max_tokens);
/* What the credits ask for instead of what they teach: their reads as value rows, their probes as
 * predicted rows, in any trees, idle or not. */
GR_MUST_CHECK gr_status gr_pack_ask(gr_pack* p, gr_credit* credit, int n, int max_tokens);
void gr_pack_free(gr_pack* p);
