#include "envs/sandbox/task.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    BLOCK = 1 << 16,
    BLOCKS_PER_TURN = 16, /* read from one command before others have their turn */
    GRACE_MS = 10000,     /* for the kernel to take apart what was killed */
    MIB = 1 << 20
};

/* ---- output ---------------------------------------------------------------------------------- */

static void keep(gr_task* t, const char* data, int64_t n)
{
    int64_t to_head = GR_MIN(n, t->head_cap - t->n_head);
    if (to_head > 0) {
        memcpy(t->head + t->n_head, data, (size_t)to_head);
        t->n_head += to_head;
    }
    for (int64_t i = GR_MAX(to_head, n - t->tail_cap); i < n && t->tail_cap > 0;) {
        int64_t at = (t->n_all + i - t->head_cap) % t->tail_cap;
        int64_t run = GR_MIN(n - i, t->tail_cap - at);
        memcpy(t->tail + at, data + i, (size_t)run);
        i += run;
    }
    t->n_all += n;
}

int64_t gr_task_head(const gr_task* t, const char** head)
{
    *head = t->head;
    return t->n_head;
}

int64_t gr_task_tail(const gr_task* t, char* out)
{
    int64_t past = t->n_all - t->n_head, n = GR_MIN(past, t->tail_cap);
    int64_t from = past - n; /* number of the first byte kept, counted from the end of the head */
    for (int64_t i = 0; i < n;) {
        int64_t at = (from + i) % t->tail_cap, run = GR_MIN(n - i, t->tail_cap - at);
        memcpy(out + i, t->tail + at, (size_t)run);
        i += run;
    }
    return n;
}

/* False at the end, or when there is nothing more for now. */
static bool take_block(gr_task* t)
{
    static char block[BLOCK];
    ssize_t n = gr_fault("sandbox.output") ? -1 : read(t->job.out, block, sizeof block);
    if (n < 0 && errno == EINTR) return true;
    if (n <= 0) {
        if (n == 0 || errno != EAGAIN) (void)uv_poll_stop(&t->on_output);
        return false;
    }
    keep(t, block, n);
    if (t->n_all > t->output_max) gr_task_kill(t, GR_SANDBOX_OUTPUT);
    return true;
}

static void output_came(uv_poll_t* poll, int status, int events)
{
    gr_task* t = poll->data;
    (void)status, (void)events;
    for (int i = 0; i < BLOCKS_PER_TURN; i++) {
        if (!take_block(t)) return;
    }
}

/* ---- the end --------------------------------------------------------------------------------- */

static void end(gr_task* t, gr_status st)
{
    if (t->ended) return;
    t->ended = true;
    t->seconds = gr_now_s() - t->started;
    (void)uv_poll_stop(&t->on_end);
    (void)uv_poll_stop(&t->on_output);
    (void)uv_timer_stop(&t->deadline);
    t->done(t, st);
}

static void process_ended(uv_poll_t* poll, int status, int events)
{
    gr_task* t = poll->data;
    (void)status, (void)events;
    while (take_block(t)) continue; /* nobody writes any more: what is left fits a pipe */
    end(t, gr_job_reap(&t->job, &t->code));
}

static void time_is_up(uv_timer_t* timer)
{
    gr_task* t = timer->data;
    if (t->killed) {
        t->cause = GR_SANDBOX_STUCK;
        end(t, GR_OK);
    } else {
        gr_task_kill(t, GR_SANDBOX_TIME);
    }
}

void gr_task_kill(gr_task* t, gr_sandbox_cause cause)
{
    if (t->killed || t->ended) return;
    t->killed = true;
    t->cause = cause;
    gr_job_kill(&t->job);
    (void)uv_timer_start(&t->deadline, time_is_up, GRACE_MS, 0);
}

static void handle_closed(uv_handle_t* handle)
{
    gr_task* t = handle->data;
    if (--t->open_handles > 0) return;
    gr_job_close(&t->job);
    free(t->head);
    free(t->tail);
    free(t);
}

void gr_task_free(gr_task* t)
{
    uv_close((uv_handle_t*)&t->on_output, handle_closed);
    uv_close((uv_handle_t*)&t->on_end, handle_closed);
    uv_close((uv_handle_t*)&t->deadline, handle_closed);
}

/* ---- the start ------------------------------------------------------------------------------- */

static gr_task* make(const gr_sandbox_command* command, gr_task_done done, void* owner)
{
    gr_task* t = calloc(1, sizeof *t);
    GR_ASSERT(t != NULL, "out of memory");
    t->done = done;
    t->owner = owner;
    t->head_cap = command->head;
    t->tail_cap = command->tail;
    t->head = malloc((size_t)t->head_cap + 1); /* untouched pages cost nothing */
    t->tail = malloc((size_t)t->tail_cap + 1);
    GR_ASSERT(t->head != NULL && t->tail != NULL, "out of memory");
    t->on_output.data = t->on_end.data = t->deadline.data = t;
    t->open_handles = 3;
    t->started = gr_now_s();
    return t;
}

gr_status gr_task_start(gr_task** out, uv_loop_t* loop, gr_confinement* c, int64_t number,
                        const gr_sandbox_command* command, gr_task_done done, void* owner)
{
    gr_task* t = make(command, done, owner);
    t->output_max = c->limits->output_mb * MIB;
    gr_status st = gr_job_start(&t->job, c, number, command->input, command->n_input);
    if (st != GR_OK) {
        free(t->head);
        free(t->tail);
        free(t);
        return st;
    }
    (void)uv_timer_init(loop, &t->deadline);
    int rc = uv_poll_init(loop, &t->on_output, t->job.out);
    GR_ASSERT(rc == 0, "poll of a pipe: %s", uv_strerror(rc));
    rc = uv_poll_init(loop, &t->on_end, t->job.pidfd);
    GR_ASSERT(rc == 0, "poll of a process: %s", uv_strerror(rc));
    (void)uv_poll_start(&t->on_output, UV_READABLE | UV_DISCONNECT, output_came);
    (void)uv_poll_start(&t->on_end, UV_READABLE, process_ended);
    uv_update_time(loop);
    (void)uv_timer_start(&t->deadline, time_is_up, (uint64_t)(command->time_s * 1000) + 1, 0);
    *out = t;
    return GR_OK;
}
