/* crew.h - the processes of a remote world: who owes what, who is late, who died. Level 1.
 *
 * A worker answers its requests in order, so the oldest answer owed is the one to blame when it
 * hangs, dies or talks nonsense (a second answer to one request is nonsense to the next). Every
 * request is heard of exactly once more: answered, blamed, or lost through no fault of its own and
 * to be asked again of another process. Knows no episodes. */
#pragma once
#include "envs/protocol.h"
#include "envs/remote.h"

typedef struct gr_claim { /* who waits for an answer; the owner's own words */
    int handle;
    uint64_t serial;
    void* at;
} gr_claim;

typedef struct gr_news {
    gr_claim claim;
    gr_op op;
    gr_env_error error;
    bool lost;         /* the process ended first; not this request's fault */
    const gr_obs* obs; /* of resets and steps that went well; valid until the next call */
} gr_news;

typedef struct gr_crew gr_crew;

/* Starts the processes and waits for the first one's hello and number of tasks. */
GR_MUST_CHECK gr_status gr_crew_open(gr_crew** out, const gr_remote_settings* s);
void gr_crew_close(gr_crew* c, void (*drop)(void* at)); /* drop: claims that were never heard of */
const gr_hello* gr_crew_hello(const gr_crew* c);
int64_t gr_crew_n_tasks(const gr_crew* c, gr_split split);

/* The worker that owes least, started if need be; -1: none can be started any more. */
int gr_crew_choose(gr_crew* c);
/* Number of the worker's present process, never used twice; 0: none. */
int64_t gr_crew_generation(const gr_crew* c, int worker);
/* Fills in q->id and sends it. */
void gr_crew_ask(gr_crew* c, int worker, gr_request_frame* q, gr_claim claim);
/* With wait, false only if nothing is owed. */
bool gr_crew_next(gr_crew* c, bool wait, gr_news* out);
/* One line of log about trouble, the first few times. */
void gr_crew_complain(gr_crew* c, const char* fmt, ...) GR_PRINTF(2, 3);
