/* kv.h - the pool of key/value pages: reference counts, forks, truncation. Level 3.
 *
 * A sequence is a list of pages of GR_PAGE tokens; only its last page may be partial. A fork shares
 * all pages; the first append into a shared partial page copies it (queued as a pair for the device,
 * carried out before the next forward). Host bookkeeping only: the device sees page numbers.
 * A new weight version empties every sequence: stale pages are never read.
 *
 *     parent  [ A ][ B ][ C. ]        ref: A 2, B 2, C 2
 *     child   [ A ][ B ][ C. ]
 *     append to child: C is shared and partial -> copy to D, ref C 1, D 1
 *     child   [ A ][ B ][ D.+]
 *
 * Pages therefore form a forest: whoever holds a page holds the same pages before it. */
#pragma once
#include "host/arena.h"
#include "kernels/ops.h"

typedef struct gr_kv_seq {
    int32_t* page; /* (max_pages_per_seq), in the arena */
    int32_t n_pages, len;
    bool used;
} gr_kv_seq;

typedef struct gr_kv {
    int32_t n_pages, n_seqs, pages_per_seq;
    int32_t* ref;       /* (n_pages) */
    int32_t* free_page; /* stack */
    int32_t n_free;
    gr_kv_seq* seq; /* (n_seqs) */
    int32_t* free_seq;
    int32_t n_free_seq;
    int32_t* pair; /* (2 n_pages) copies waiting for the device, in order: from, to */
    int32_t n_pairs;
    uint64_t version; /* current weights */
    int32_t pages_peak;
} gr_kv;

void gr_kv_layout(gr_kv* kv, int n_pages, int n_seqs, int max_context, gr_arena* host);
void gr_kv_reset(gr_kv* kv);                         /* frees all sequences and pages */
void gr_kv_set_version(gr_kv* kv, uint64_t version); /* another one empties all sequences */

int gr_kv_open(gr_kv* kv);                   /* empty sequence; -1 when none is left */
int gr_kv_fork(gr_kv* kv, int seq, int len); /* shares the first len tokens; -1 when none left */
void gr_kv_free(gr_kv* kv, int seq);
void gr_kv_truncate(gr_kv* kv, int seq, int len); /* keeps the sequence, frees pages past len */
int gr_kv_len(const gr_kv* kv, int seq);
/* Makes room for n more tokens and writes their slots (page * GR_PAGE + offset). False, with nothing
 * changed, when the pool lacks pages. */
bool gr_kv_append(gr_kv* kv, int seq, int n, int32_t* slot);
int gr_kv_need(const gr_kv* kv, int seq, int n); /* pages that appending n tokens would take */

/* End of the run of queued pairs from `first` whose copies do not touch each other's results, so that
 * one kv_copy may do them at once. After the last run the caller sets n_pairs to 0. */
int gr_kv_copy_run(const gr_kv* kv, int first);

/* Recounts every reference and the free lists and checks that pages form a forest; panics on a
 * difference. Tests call it after each act. */
void gr_kv_check(const gr_kv* kv);

/* Plans attention for query rows: row i belongs to sequence seq[i] and sees its first n_keys[i] keys.
 * Rows are sorted by the pages they see, so that rows with common pages are neighbours; tasks are cut
 * where neighbours have least in common and list each of their pages once. Storage comes from
 * gr_kv_plan_layout for at most max_rows rows. */
typedef struct gr_kv_plan {
    gr_page_plan plan;
    int32_t *row, *n_keys; /* (max_rows) */
    int32_t* merge;        /* (max_rows) second half of the sort */
    int32_t* common;       /* (max_rows) pages that a plan row shares with the one before it */
    int32_t *place, *open; /* (pages_per_seq) by depth: next unit to write; unit not yet ended */
    gr_page_unit* unit;
    gr_page_task* task;
    int max_rows, max_units, max_tasks;
} gr_kv_plan;
void gr_kv_plan_layout(gr_kv_plan* p, const gr_kv* kv, int max_rows, gr_arena* host);
void gr_kv_plan_make(gr_kv_plan* p, const gr_kv* kv, const int32_t* seq, const int32_t* n_keys,
                     int n_rows);
