/* kv.h - the pool of key/value pages: reference counts, forks, truncation. Level 3.
 *
 * A sequence is a list of pages of GR_PAGE tokens; only its last page may be partial. A fork shares
 * all pages; the first append into a shared partial page copies it (queued as a pair for the device,
 * flushed by gr_kv_copies before the forward). Host bookkeeping only: the device sees page numbers.
 * Sequences written under another weight version count as empty: stale pages are never read.
 *
 *     parent  [ A ][ B ][ C. ]        ref: A 2, B 2, C 2
 *     child   [ A ][ B ][ C. ]
 *     append to child: C is shared and partial -> copy to D, ref C 1, D 1
 *     child   [ A ][ B ][ D.+]                                                                  */
#pragma once
#include "host/arena.h"
#include "kernels/ops.h"

typedef struct gr_kv_seq {
    int32_t* page; /* (max_pages_per_seq), in the arena */
    int32_t n_pages, len;
    uint64_t version;
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
    int32_t* pair; /* (2 n_pages) copies waiting for the device: from, to */
    int32_t n_pairs;
    uint64_t version; /* current weights */
    int32_t pages_peak;
} gr_kv;

void gr_kv_layout(gr_kv* kv, int n_pages, int n_seqs, int max_context, gr_arena* host);
void gr_kv_reset(gr_kv* kv); /* frees all sequences and pages */
void gr_kv_set_version(gr_kv* kv, uint64_t version);

int gr_kv_open(gr_kv* kv);                   /* empty sequence; -1 when none is left */
int gr_kv_fork(gr_kv* kv, int seq, int len); /* shares the first len tokens; -1 when none left */
void gr_kv_free(gr_kv* kv, int seq);
void gr_kv_truncate(gr_kv* kv, int seq, int len); /* keeps the sequence, frees pages past len */
int gr_kv_len(const gr_kv* kv, int seq);          /* 0 if stale */
/* Makes room for n more tokens and writes their slots (page * GR_PAGE + offset). False, with nothing
 * changed, when the pool lacks pages. */
bool gr_kv_append(gr_kv* kv, int seq, int n, int32_t* slot);

/* Recounts every reference and the free lists; panics on a difference. Tests call it after each act. */
void gr_kv_check(const gr_kv* kv);

/* Plans attention for query rows: row i belongs to sequence seq[i] and sees n_keys[i] keys. Storage
 * comes from gr_kv_plan_layout for at most max_rows rows. Sorts rows by page list, so that rows with
 * common pages are neighbours, cuts them into tasks and lists each task's pages once. */
typedef struct gr_kv_plan {
    gr_page_plan plan;
    int32_t *row, *n_keys, *order_scratch;
    gr_page_unit* unit;
    gr_page_task* task;
    int max_rows, max_units;
} gr_kv_plan;
void gr_kv_plan_layout(gr_kv_plan* p, const gr_kv* kv, int max_rows, gr_arena* host);
void gr_kv_plan_make(gr_kv_plan* p, const gr_kv* kv, const int32_t* seq, const int32_t* n_keys,
                     int n_rows);
