/* task.h - a command in progress: its output, its deadline, its end. Level 1.
 *
 * Runs on the helper's loop. Output beyond what is kept is counted and forgotten as it comes, so a
 * command may write without end; its owner hears of it once, when nothing of it is left. */
#pragma once
#include <uv.h>

#include "envs/sandbox/spawn.h"

typedef struct gr_task gr_task;
typedef void (*gr_task_done)(gr_task* t, gr_status st); /* st: it never ran */

struct gr_task {
    /* for the owner */
    void* owner;
    gr_sandbox_cause cause;
    int code;
    double seconds;
    int64_t n_all;
    /* private */
    gr_task_done done;
    gr_job job;
    uv_poll_t on_output, on_end;
    uv_timer_t deadline;
    double started;
    int64_t output_max;
    char *head, *tail; /* the tail is a ring, its oldest byte at n_all - head_cap once full */
    int64_t n_head, head_cap, tail_cap;
    int open_handles;
    bool killed, ended;
};

/* Starts it; `c` and the input are not needed any more after that. */
GR_MUST_CHECK gr_status gr_task_start(gr_task** out, uv_loop_t* loop, gr_confinement* c,
                                      int64_t number, const gr_sandbox_command* command,
                                      gr_task_done done, void* owner);
/* Ends it; `done` is called as always. A cause that came first stays. */
void gr_task_kill(gr_task* t, gr_sandbox_cause cause);
/* What was kept of the output, in two parts; valid until gr_task_free. */
int64_t gr_task_head(const gr_task* t, const char** head);
/* Copies the tail, in order, to `out` (room for tail_cap bytes); returns its bytes. */
int64_t gr_task_tail(const gr_task* t, char* out);
void gr_task_free(gr_task* t); /* after `done`; the memory goes when the loop has run */
