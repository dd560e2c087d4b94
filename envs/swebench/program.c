#include "envs/swebench/program.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>
#include <uv.h>

#define GRACE_MS 2000 /* between being told to end and being killed */

typedef struct program {
    uv_process_t process;
    uv_timer_t deadline;
    int code, next_signal;
    bool late;
} program;

static void on_exit_status(uv_process_t* process, int64_t status, int signal)
{
    program* p = process->data;
    p->code = signal != 0 ? 128 + signal : (int)status;
    (void)kill(-process->pid, SIGKILL); /* what it left behind */
    uv_close((uv_handle_t*)&p->deadline, NULL);
    uv_close((uv_handle_t*)process, NULL);
}

static void on_deadline(uv_timer_t* timer)
{
    program* p = timer->data;
    p->late = true;
    (void)kill(-p->process.pid, p->next_signal);
    p->next_signal = SIGKILL;
}

/* Starts it in a group of its own; returns libuv's error. */
static int start(program* p, uv_loop_t* loop, char* const argv[], int log, double time_s)
{
    uv_stdio_container_t stdio[] = {
        {.flags = UV_IGNORE},
        {.flags = UV_INHERIT_FD, .data.fd = log},
        {.flags = UV_INHERIT_FD, .data.fd = log},
    };
    uv_process_options_t options = {
        .exit_cb = on_exit_status,
        .file = argv[0],
        .args = (char**)(uintptr_t)argv,
        .flags = UV_PROCESS_DETACHED,
        .stdio_count = GR_COUNT(stdio),
        .stdio = stdio,
    };
    *p = (program){.process.data = p, .deadline.data = p, .next_signal = SIGTERM};
    (void)uv_timer_init(loop, &p->deadline);
    int rc = uv_spawn(loop, &p->process, &options);
    if (rc == 0)
        rc = uv_timer_start(&p->deadline, on_deadline, (uint64_t)(1000 * time_s), GRACE_MS);
    else
        uv_close((uv_handle_t*)&p->process, NULL);
    if (rc != 0) uv_close((uv_handle_t*)&p->deadline, NULL);
    return rc;
}

gr_status gr_swe_program(char* const argv[], const char* log, double time_s, int* code)
{
    uv_loop_t loop;
    program p;
    int fd = open(log, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0) return GR_FAIL(GR_EIO, "%s: cannot write", log);
    int rc = uv_loop_init(&loop);
    if (rc == 0) {
        rc = start(&p, &loop, argv, fd, time_s);
        (void)uv_run(&loop, UV_RUN_DEFAULT);
        (void)uv_loop_close(&loop);
    }
    (void)close(fd);
    if (rc != 0) return GR_FAIL(GR_EIO, "%s: %s", argv[0], uv_strerror(rc));
    *code = p.code;
    return p.late ? GR_FAIL(GR_EIO, "not done within %g s", time_s) : GR_OK;
}

void gr_swe_program_reason(const char* log, char* line, size_t cap)
{
    char text[1024];
    (void)snprintf(line, cap, "no reason given");
    FILE* f = fopen(log, "rbe");
    while (f != NULL && fgets(text, sizeof text, f) != NULL) {
        text[strcspn(text, "\r\n")] = 0;
        if (text[0] != 0) (void)snprintf(line, cap, "%.300s", text);
        if (strncasecmp(text, "fatal:", 6) == 0 || strncasecmp(text, "error:", 6) == 0) break;
    }
    if (f != NULL) (void)fclose(f);
}
