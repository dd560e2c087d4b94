#include "envs/sandbox/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static void drop(int* fd)
{
    if (*fd >= 0) (void)close(*fd);
    *fd = -1;
}

/* ---- descriptors ----------------------------------------------------------------------------- */

typedef struct pipes {
    int go[2], out[2], report[2], in;
} pipes;

static int open_input(const char* input, size_t n)
{
    if (input == NULL) return open("/dev/null", O_RDONLY | O_CLOEXEC);
    int fd = memfd_create("input", MFD_CLOEXEC);
    for (size_t done = 0; fd >= 0 && done < n;) {
        ssize_t wrote = write(fd, input + done, n - done);
        if (wrote <= 0) {
            (void)close(fd);
            return -1;
        }
        done += (size_t)wrote;
    }
    if (fd >= 0) (void)lseek(fd, 0, SEEK_SET);
    return fd;
}

static void close_pipes(pipes* p)
{
    for (int i = 0; i < 2; i++) {
        drop(&p->go[i]);
        drop(&p->out[i]);
        drop(&p->report[i]);
    }
    drop(&p->in);
}

static gr_status open_pipes(pipes* p, const char* input, size_t n)
{
    *p = (pipes){{-1, -1}, {-1, -1}, {-1, -1}, -1};
    bool good = !gr_fault("sandbox.pipe") && pipe2(p->go, O_CLOEXEC) == 0 &&
                pipe2(p->out, O_CLOEXEC) == 0 && pipe2(p->report, O_CLOEXEC) == 0 &&
                fcntl(p->out[0], F_SETFL, O_NONBLOCK) == 0 &&
                fcntl(p->report[0], F_SETFL, O_NONBLOCK) == 0;
    if (good) p->in = open_input(input, n);
    if (good && p->in >= 0) return GR_OK;
    gr_status st = GR_FAIL(GR_EIO, "pipes of a command: %s", strerror(errno));
    close_pipes(p);
    return st;
}

/* ---- processes ------------------------------------------------------------------------------- */

/* fork(2) into new namespaces. */
static pid_t clone_process(int* pidfd)
{
    struct clone_args args = {
        .flags =
            CLONE_PIDFD | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS,
        .pidfd = (uintptr_t)pidfd,
        .exit_signal = SIGCHLD,
    };
    if (gr_fault("sandbox.clone")) {
        errno = EAGAIN;
        return -1;
    }
    return (pid_t)syscall(SYS_clone3, &args, sizeof args);
}

gr_status gr_job_start(gr_job* job, gr_confinement* c, int64_t number, const char* input,
                       size_t n_input)
{
    pipes p;
    *job = (gr_job){.pid = -1, .pidfd = -1, .out = -1, .report = -1};
    GR_TRY(open_pipes(&p, input, n_input));
    c->go = p.go[0];
    c->in = p.in;
    c->out = p.out[1];
    c->report = p.report[1];
    job->pid = clone_process(&job->pidfd);
    if (job->pid == 0) {
        (void)close(p.go[1]); /* else nobody's death would end the wait for it */
        gr_confine(c);
    }
    gr_status st = job->pid > 0 ? gr_group_enter(c->groups, number, job->pid)
                                : GR_FAIL(GR_EIO, "clone: %s", strerror(errno));
    if (st == GR_OK && write(p.go[1], "", 1) != 1) st = GR_FAIL(GR_EIO, "go: %s", strerror(errno));
    if (st == GR_OK) {
        job->out = p.out[0];
        job->report = p.report[0];
        p.out[0] = p.report[0] = -1;
    } else if (job->pid > 0) {
        gr_job_kill(job);
        (void)waitpid(job->pid, NULL, 0);
        drop(&job->pidfd);
    }
    close_pipes(&p);
    return st;
}

void gr_job_kill(const gr_job* job)
{
    if (job->pidfd >= 0) (void)syscall(SYS_pidfd_send_signal, job->pidfd, SIGKILL, NULL, 0);
}

gr_status gr_job_reap(gr_job* job, int* code)
{
    char why[256];
    int status = 0;
    if (waitpid(job->pid, &status, WNOHANG) != job->pid) {
        return GR_FAIL(GR_EIO, "a command's process is not ours: %s", strerror(errno));
    }
    job->pid = -1;
    *code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    ssize_t n = read(job->report, why, sizeof why - 1);
    if (n <= 0) return GR_OK;
    why[n] = 0;
    return GR_FAIL(GR_EIO, "cannot confine a command: %s", why);
}

void gr_job_close(gr_job* job)
{
    drop(&job->pidfd);
    drop(&job->out);
    drop(&job->report);
}
