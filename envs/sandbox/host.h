/* host.h - all sandboxes of a host: who owns them, what they stand on, what they do. Level 1.
 *
 * Knows no connections: an owner is a pointer that requests come with. Everything happens on one
 * loop and one thread. */
#pragma once
#include <uv.h>

#include "envs/sandbox/wire.h"

typedef struct gr_host gr_host;

/* Answers a request of `owner`; the reply's output is valid during the call. */
typedef void (*gr_host_answer)(void* owner, const gr_sandbox_reply* reply);

/* From here on this process is good for nothing else (envs/sandbox/place.h). */
GR_MUST_CHECK gr_status gr_host_open(gr_host** out, uv_loop_t* loop,
                                     const gr_sandbox_settings* limits, gr_host_answer answer);
/* Ends all commands and removes everything; runs the loop for that. */
void gr_host_close(gr_host* h);
const gr_wire_hello* gr_host_hello(const gr_host* h);
bool gr_host_same_limits(const gr_host* h, const gr_sandbox_settings* limits);
/* Takes over what `r` owns; `body` is what it was read from and stays the caller's. Answered now or
 * later. Not for hello and ping. */
void gr_host_ask(gr_host* h, void* owner, gr_wire_request* r);
/* Ends all sandboxes of an owner, who gets no more answers. */
void gr_host_forget(gr_host* h, void* owner);
