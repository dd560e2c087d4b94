/* engine_state.h - what the engine's own files know of each other. Level 4.
 *
 * engine_batch.c puts the next forward together, engine.c runs it and says what becomes of it. */
#pragma once
#include "model/engine.h"

#define GR_STOP_MAX 64

typedef struct request {
    gr_request r;     /* context, uid and stop are copies */
    int32_t* context; /* (max_context) */
    uint64_t* uid;    /* (n_children) in the pool of uids */
    char stop[GR_STOP_MAX];
    int n_stop;
    uint64_t serial; /* order of submission */
    int n_started;   /* children that have begun */
    int n_done;
    int64_t n_fed; /* context tokens forwarded since children last began */
} request;

typedef enum stage { STAGE_FREE, STAGE_LIVE, STAGE_DONE } stage;

typedef struct child {
    stage stage;
    request* q; /* while live */
    uint64_t serial, tag, uid;
    int ordinal, seq;
    int32_t* token; /* (max_action) */
    double* logp;
    int n_tokens;
    gr_stop_cause cause;
    uint64_t version;
} child;

/* Rows of the next forward; `d_` arrays are on the device. */
typedef struct row_list {
    int n;
    int32_t *token, *position, *slot, *seq, *n_keys;
    int32_t *d_token, *d_position, *d_slot, *d_pair;
} row_list;

/* Tokens to sample after it. */
typedef struct sample_list {
    int n;
    child** child;
    int32_t *src, *index, *token;
    uint64_t* uid;
    gr_sampling* sampling;
    double* logp;
    int32_t *d_src, *d_index, *d_token;
    uint64_t* d_uid;
    gr_sampling* d_sampling;
    void *d_logp, *d_scratch;
} sample_list;

/* What a sequence is in the step that is being put together; a row number from 0 on: its path is
 * complete and that row is its last. */
enum { SEQ_IDLE = -2, SEQ_HELD = -1 };

/* Everything below lives in the host arena. */
struct gr_engine_state {
    child* child;  /* (max_live) */
    child** order; /* live ones, in order of start */
    int n_done;    /* ended and not yet polled */
    int turn;      /* place in `order` of the child that is being fed */
    request* request;
    request** queue; /* unfinished ones, in order of submission */
    request** spare;
    int max_queue, n_queue;
    uint64_t* uid; /* (n_seqs) of unfinished children, in order of submission */
    int n_uids;
    uint64_t serial;
    int32_t* hold;     /* (n_seqs) SEQ_IDLE, SEQ_HELD or a row */
    int32_t* readers;  /* (n_seqs) unfinished requests on this context */
    bool* orphan;      /* (n_seqs) freed by the caller while it had readers */
    int32_t* idle_ref; /* (n_pages) references from idle sequences */
    row_list rows;
    sample_list samples;
    int max_action;
};

/* Gives rows to paths that miss keys, children first, and lists the tokens to sample. */
void gr_engine_gather(gr_engine* e);

/* Is there a place and a sequence for one more child? */
bool gr_engine_can_start(const gr_engine* e);
/* The next waiting child of q, on the first n_shared tokens of its context's sequence. */
child* gr_engine_start_child(gr_engine* e, request* q, int n_shared);
