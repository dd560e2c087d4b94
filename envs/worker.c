#include "envs/worker.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void reserve(gr_bytes* b, size_t more)
{
    if (b->cap - b->n >= more) return;
    while (b->cap - b->n < more) b->cap = GR_MAX(2 * b->cap, 4096);
    b->data = realloc(b->data, b->cap);
    GR_ASSERT(b->data != NULL, "out of memory");
}

/* ---- end of life ----------------------------------------------------------------------------- */

static void on_closed(uv_handle_t* handle)
{
    gr_worker* w = handle->data;
    if (--w->open_handles > 0) return;
    free(w->queued.data);
    free(w->writing.data);
    free(w->received.data);
    free(w);
}

/* What the process started itself must not outlive it and keep the pipes open. */
static void kill_group(const gr_worker* w)
{
    if (w->process.pid > 0 && !w->exited) (void)kill(-w->process.pid, SIGKILL);
}

static void on_exit_status(uv_process_t* process, int64_t status, int signal)
{
    gr_worker* w = process->data;
    kill_group(w); /* its children; after this the number may be another's */
    w->exited = w->fresh = true;
    w->exit_status = (int)status;
    w->exit_signal = signal;
    if (w->closing) uv_close((uv_handle_t*)process, on_closed);
}

void gr_worker_kill(gr_worker* w)
{
    if (w->closing) return;
    w->closing = true;
    uv_close((uv_handle_t*)&w->in, on_closed);
    uv_close((uv_handle_t*)&w->out, on_closed);
    if (w->exited || w->process.pid <= 0) {
        uv_close((uv_handle_t*)&w->process, on_closed);
    } else {
        kill_group(w); /* the process handle stays until it is reaped */
    }
}

/* ---- bytes ----------------------------------------------------------------------------------- */

static void on_room(uv_handle_t* handle, size_t suggested, uv_buf_t* out)
{
    gr_bytes* b = &((gr_worker*)handle->data)->received;
    reserve(b, suggested);
    *out = uv_buf_init(b->data + b->n, (unsigned)suggested);
}

static void on_read(uv_stream_t* stream, ssize_t n, const uv_buf_t* room)
{
    gr_worker* w = stream->data;
    (void)room;
    if (gr_fault("worker.read")) n = UV_EIO;
    if (n == 0) return;
    w->fresh = true;
    if (n > 0) {
        w->received.n += (size_t)n; /* libuv reads 2 MiB at most before the owner can look */
    } else {
        w->ended = true;
        (void)uv_read_stop(stream);
    }
}

static void write_queued(gr_worker* w);

static void on_written(uv_write_t* write, int status)
{
    gr_worker* w = write->data;
    w->is_writing = false;
    w->writing.n = 0;
    if (w->closing) return;
    if (status < 0)
        kill_group(w); /* it reads no more. What it has answered is still in the pipe. */
    else
        write_queued(w);
}

static void write_queued(gr_worker* w)
{
    if (w->is_writing || w->queued.n == 0) return;
    gr_bytes full = w->queued;
    w->queued = w->writing;
    w->writing = full;
    uv_buf_t b = uv_buf_init(full.data, (unsigned)full.n);
    w->write.data = w;
    w->is_writing = true;
    int rc = gr_fault("worker.write")
                 ? UV_EIO
                 : uv_write(&w->write, (uv_stream_t*)&w->in, &b, 1, on_written);
    if (rc < 0) {
        w->is_writing = false;
        kill_group(w);
    }
}

void gr_worker_send(gr_worker* w, const char* frame, size_t n)
{
    if (w->ended) return;
    reserve(&w->queued, n);
    memcpy(w->queued.data + w->queued.n, frame, n);
    w->queued.n += n;
    write_queued(w);
}

/* Moves what is left to the front once all or much is done with. */
static void compact(gr_worker* w)
{
    gr_bytes* b = &w->received;
    if (w->taken == 0 || (w->taken < b->n && w->taken <= GR_FRAME_MAX)) return;
    memmove(b->data, b->data + w->taken, b->n - w->taken);
    b->n -= w->taken;
    w->taken = 0;
}

gr_frame_state gr_worker_take(gr_worker* w, const char** body, size_t* n_body)
{
    compact(w);
    gr_frame_state s = GR_FRAME_PARTIAL;
    if (w->received.n > w->taken) {
        s = gr_protocol_frame(w->received.data + w->taken, w->received.n - w->taken, n_body);
    }
    if (s == GR_FRAME_WHOLE) {
        *body = w->received.data + w->taken + GR_FRAME_HEAD;
        w->taken += GR_FRAME_HEAD + *n_body;
    }
    return s;
}

/* ---- start ----------------------------------------------------------------------------------- */

gr_status gr_worker_start(gr_worker** out, uv_loop_t* loop, const char* command)
{
    if (gr_fault("worker.start")) return GR_FAIL(GR_EIO, "%s: injected fault", command);
    gr_worker* w = calloc(1, sizeof *w);
    if (w == NULL) return GR_FAIL(GR_ENOMEM, "%s: out of memory", command);
    w->process.data = w->in.data = w->out.data = w;
    w->open_handles = 3;
    (void)uv_pipe_init(loop, &w->in, 0);
    (void)uv_pipe_init(loop, &w->out, 0);
    char sh[] = "/bin/sh", flag[] = "-c", text[GR_TEXT_MAX];
    (void)snprintf(text, sizeof text, "%s", command);
    char* argv[] = {sh, flag, text, NULL};
    uv_stdio_container_t stdio[] = {
        {.flags = UV_CREATE_PIPE | UV_READABLE_PIPE, .data.stream = (uv_stream_t*)&w->in},
        {.flags = UV_CREATE_PIPE | UV_WRITABLE_PIPE, .data.stream = (uv_stream_t*)&w->out},
        {.flags = UV_INHERIT_FD, .data.fd = 2},
    };
    uv_process_options_t options = {
        .exit_cb = on_exit_status,
        .file = sh,
        .args = argv,
        .flags = UV_PROCESS_DETACHED, /* own group; a Ctrl-C is for the run, which ends its step */
        .stdio_count = GR_COUNT(stdio),
        .stdio = stdio,
    };
    int rc = uv_spawn(loop, &w->process, &options);
    if (rc == 0) rc = uv_read_start((uv_stream_t*)&w->out, on_room, on_read);
    if (rc < 0) {
        gr_worker_kill(w);
        return GR_FAIL(GR_EIO, "%s: %s", command, uv_strerror(rc));
    }
    *out = w;
    return GR_OK;
}
