/* worker.h - one child process: bytes to its standard input, frames from its standard output. Level
 * 1.
 *
 * Runs on the caller's loop. Callbacks only collect bytes and set flags, so nothing happens behind
 * the caller's back: it looks at frames and flags when it wants to. */
#pragma once
#include <uv.h>

#include "envs/protocol.h"

typedef struct gr_bytes {
    char* data;
    size_t n, cap;
} gr_bytes;

typedef struct gr_worker {
    /* for the owner to read */
    bool fresh; /* something was received since the owner cleared this */
    bool ended; /* no more bytes will come */
    bool exited;
    int exit_status, exit_signal; /* once exited */
    /* private */
    uv_process_t process;
    uv_pipe_t in, out; /* the child's */
    uv_write_t write;
    gr_bytes queued, writing, received;
    size_t taken; /* bytes of `received` that are done with */
    int open_handles;
    bool is_writing, closing;
} gr_worker;

/* `command` goes to /bin/sh in a process group of its own. */
GR_MUST_CHECK gr_status gr_worker_start(gr_worker** out, uv_loop_t* loop, const char* command);
void gr_worker_send(gr_worker* w, const char* frame, size_t n);
/* The next frame's body, valid until the next call here or of the loop. */
gr_frame_state gr_worker_take(gr_worker* w, const char** body, size_t* n_body);
/* Kills the process group. Memory and process are gone when the loop has run for a while. */
void gr_worker_kill(gr_worker* w);
