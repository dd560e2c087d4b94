/* engine.h - batched decoding over page tables. Level 4.
 *
 * One continuous batch: requests in any stage share every forward. A request names a context (the
 * tokens of a path) and asks for k continuations; the context's missing tail is prefilled once, then
 * the k children fork its pages and sample their first token from its one last row. Each child ends
 * at a stop string or end token, at its token cap, or at the context limit. What a child samples
 * depends on its uid, its context and the weights alone, never on the batch.
 *
 * When the pool is full, idle sequences give up their pages in descending order of id (those that a
 * live child shares stay), then the last live child is set back; both are prefilled again when they
 * are needed. Never an error. */
#pragma once
#include "model/kv.h"
#include "model/tokenizer.h"
#include "model/transformer.h"

typedef enum gr_purpose {
    GR_FOR_TRAIN,
    GR_FOR_EVAL,
    GR_FOR_JUDGE,  /* scorers that ask a model */
    GR_FOR_REFINE, /* steps that are made again */
    GR_N_PURPOSES
} gr_purpose;

#define GR_END_MAX 4

typedef struct gr_request {
    uint64_t tag;           /* the caller's, returned in replies */
    int seq;                /* sequence of the context, holding any prefix of it; the caller's. The
                               contexts of unfinished requests on one sequence are one path */
    const int32_t* context; /* (n_context) whole path, copied; n_context >= 1 */
    int n_context;          /* from the model's max_context on: no token is sampled */
    int n_children;
    const uint64_t* uid; /* (n_children) key of each child's randomness */
    gr_sampling sampling;
    const char* stop; /* the action ends with this text, which belongs to it; NULL: none */
    int max_tokens;   /* cap of one child */
    /* Tokens that end an action, and belong to it. The stop string ends it with the token in which the
     * string ends; special tokens are spelled in it. */
    int32_t end[GR_END_MAX];
    int n_end;
    gr_purpose purpose;
} gr_request;

typedef enum gr_stop_cause {
    GR_STOP_STRING,
    GR_STOP_TOKEN,
    GR_STOP_CAP,
    GR_STOP_CONTEXT
} gr_stop_cause;

typedef struct gr_reply {
    uint64_t tag;
    int child;            /* 0 .. n_children - 1 */
    int seq;              /* the child's own sequence, now the caller's to free; holds all tokens
                               but the last sampled one */
    const int32_t* token; /* valid until the next call on the engine */
    const double* logp;
    int n_tokens;
    gr_stop_cause cause;
    uint64_t version; /* weights that sampled it */
} gr_reply;

typedef struct gr_engine_counts {
    int64_t gen_tokens[GR_N_PURPOSES];
    int64_t prefill_tokens; /* forwarded context tokens, and what a child set back reads again */
    int64_t shared_tokens;  /* prefill that was saved: contexts of all children - forwarded once */
    int64_t forwards, rows, evictions;
    int64_t pages_peak;
} gr_engine_counts;

typedef struct gr_engine {
    const gr_weights* w;           /* borrowed */
    const gr_tokenizer* tokenizer; /* borrowed */
    gr_acts acts;
    gr_kv kv;
    gr_kv_plan plan;
    void* pool;
    gr_engine_counts counts;
    int max_live, n_live, max_rows;
    struct gr_engine_state* state; /* private: engine_state.h */
} gr_engine;

typedef struct gr_engine_settings {
    int max_live;   /* children that decode at once; more wait in order */
    int max_rows;   /* rows of one forward; long prefills are cut */
    int n_pages;    /* of the KV pool; at least max_context / GR_PAGE + 2 */
    int n_seqs;     /* sequences the caller may hold, live ones included */
    int max_action; /* most tokens of one child */
    int max_queue;  /* unfinished requests, each keeps max_context tokens; 0: 16 per live child, at
                       least 256. Their unfinished children are at most n_seqs. */
    /* spells tokens where a stop string is looked for; borrowed; NULL: bytes */
    const gr_tokenizer* tokenizer;
} gr_engine_settings;

void gr_engine_layout(gr_engine* e, const gr_weights* w, const gr_engine_settings* s,
                      gr_arena* host, gr_arena* device);
/* Drops all sequences and requests and takes the weights' present version. Call after an update. */
void gr_engine_reset(gr_engine* e);

int gr_engine_open_seq(gr_engine* e); /* empty; -1 when none is left */
int gr_engine_fork_seq(gr_engine* e, int seq,
                       int len);                /* first len tokens, or what is left of them */
void gr_engine_free_seq(gr_engine* e, int seq); /* also while requests still read it */

void gr_engine_submit(gr_engine* e, const gr_request* r);
bool gr_engine_idle(const gr_engine* e); /* nothing queued or live */
/* One forward over everything that is live. Replies are then polled, in order of submission. */
GR_MUST_CHECK gr_status gr_engine_step(gr_engine* e);
bool gr_engine_poll(gr_engine* e, gr_reply* out);
