/* client.c - the asking side: one connection, and the requests it has not heard of. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "envs/sandbox/server.h"
#include "envs/sandbox/wire.h"
#include "host/arena.h"

enum { BLOCK = 1 << 16, SECRET_CAP = 256 };
#define PING_S        10.0  /* of silence, then we ask whether anybody is there */
#define SILENCE_S     120.0 /* then nobody is */
#define BACKOFF_S     0.02  /* the first wait for room; each further one is twice as long ... */
#define BACKOFF_MAX_S 1.0

typedef struct asked {
    int64_t id, sandbox; /* sandbox: of a fork the new one */
    gr_sandbox_op op;
    double since, again; /* again: when to send it once more; infinite: it is on its way */
    double pause;
    gr_wire_bytes frame; /* of creates and forks, which may have to wait for room */
} asked;

struct gr_sandbox {
    int fd; /* -1: gone */
    char why[200], description[700];
    double patience_s, heard, pinged;
    int64_t last_id;
    asked* asked;
    int64_t n_asked, cap_asked;
    gr_wire_bytes out, in;
    size_t spent; /* bytes of `in` that the last reply lay in */
};

/* ---- the helper ------------------------------------------------------------------------------ */

static struct {
    pid_t owner; /* 0: none. A fork of ours has none yet. */
    pid_t pid;
    int control;
} helper;

GR_NORETURN static void be_helper(int control)
{
    (void)setsid(); /* a Ctrl-C is for the run, which ends its step first */
    (void)prctl(PR_SET_NAME, "grove-sandbox");
    int own = fcntl(control, F_DUPFD_CLOEXEC, 3);
    if (own > 3) own = dup3(own, 3, O_CLOEXEC);
    (void)close_range(4, ~0u, 0);
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null >= 0 && (dup2(null, 0) < 0 || dup2(null, 1) < 0)) _exit(1);
    _exit(own == 3 ? gr_server_run(own) : 1);
}

gr_status gr_sandbox_prestart(void)
{
    int ends[2];
    if (helper.owner == getpid()) return GR_OK;
    if (gr_fault("sandbox.helper") ||
        socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
        return GR_FAIL(GR_EIO, "sandbox helper: %s", strerror(errno));
    }
    (void)fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) be_helper(ends[1]);
    (void)close(ends[1]);
    if (pid < 0) {
        (void)close(ends[0]);
        return GR_FAIL(GR_EIO, "sandbox helper: %s", strerror(errno));
    }
    helper.owner = getpid();
    helper.pid = pid;
    helper.control = ends[0];
    return GR_OK;
}

void gr_sandbox_stop(void)
{
    if (helper.owner != getpid()) return;
    (void)close(helper.control);
    while (waitpid(helper.pid, NULL, 0) < 0 && errno == EINTR) continue;
    helper.owner = 0;
}

/* A new connection to the helper. */
static gr_status connect_here(int* fd)
{
    int ends[2];
    GR_TRY(gr_sandbox_prestart());
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
        return GR_FAIL(GR_EIO, "sandbox: %s", strerror(errno));
    }
    bool passed = gr_server_pass(helper.control, ends[1]);
    int why = errno;
    (void)close(ends[1]);
    *fd = ends[0];
    if (passed) return GR_OK;
    (void)close(ends[0]);
    *fd = -1;
    return GR_FAIL(GR_EIO, "sandbox helper: %s", strerror(why));
}

static gr_status connect_there(const char* address, int* out)
{
    char host[256];
    const char* port;
    struct addrinfo hint = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    GR_TRY(gr_address_split(address, host, sizeof host, &port));
    int rc = getaddrinfo(host, port, &hint, &found), fd = -1;
    if (rc != 0) return GR_FAIL(GR_EIO, "sandbox_host: %s: %s", address, gai_strerror(rc));
    for (const struct addrinfo* a = found; a != NULL && fd < 0; a = a->ai_next) {
        fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd >= 0 && connect(fd, a->ai_addr, a->ai_addrlen) == 0) break;
        rc = errno;
        if (fd >= 0) (void)close(fd);
        fd = -1;
    }
    freeaddrinfo(found);
    if (fd < 0) return GR_FAIL(GR_EIO, "sandbox_host: %s: %s", address, strerror(rc));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    *out = fd;
    return GR_OK;
}

/* ---- bytes ----------------------------------------------------------------------------------- */

static void lose(gr_sandbox* s, const char* why)
{
    if (s->fd < 0) return;
    (void)snprintf(s->why, sizeof s->why, "%s", why);
    (void)close(s->fd);
    s->fd = -1;
}

static void flush(gr_sandbox* s)
{
    size_t done = 0;
    while (s->fd >= 0 && done < s->out.n) {
        ssize_t n = gr_fault("sandbox.ask")
                        ? -1
                        : send(s->fd, s->out.data + done, s->out.n - done, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) break;
        if (n < 0)
            lose(s, "the sandbox helper has ended");
        else
            done += (size_t)n;
    }
    gr_wire_consume(&s->out, done);
}

/* Reads what is there. False: nothing. */
static bool receive(gr_sandbox* s)
{
    static _Thread_local char block[BLOCK];
    bool any = false;
    while (s->fd >= 0) {
        ssize_t n = gr_fault("sandbox.hear") ? 0 : recv(s->fd, block, sizeof block, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) break;
        if (n <= 0)
            lose(s, "the sandbox helper has ended");
        else
            gr_wire_append(&s->in, block, (size_t)n);
        any = true;
        if (n > 0) s->heard = gr_now_s();
    }
    return any;
}

/* ---- requests -------------------------------------------------------------------------------- */

static int64_t ask(gr_sandbox* s, gr_wire_request* r)
{
    r->id = ++s->last_id;
    GR_RESERVE(s->asked, s->cap_asked, s->n_asked + 1);
    asked* a = &s->asked[s->n_asked++];
    *a = (asked){
        .id = r->id,
        .sandbox = r->op == GR_SANDBOX_FORK ? r->to : r->sandbox,
        .op = r->op,
        .since = gr_now_s(),
        .again = HUGE_VAL,
        .pause = BACKOFF_S,
    };
    if (s->n_asked == 1) s->heard = a->since; /* silence counts from here */
    size_t before = s->out.n;
    gr_wire_write_request(&s->out, r);
    if (r->op == GR_SANDBOX_CREATE || r->op == GR_SANDBOX_FORK) {
        gr_wire_append(&a->frame, s->out.data + before, s->out.n - before);
    }
    flush(s);
    return r->id;
}

int64_t gr_sandbox_create(gr_sandbox* s, int64_t sandbox, const gr_sandbox_tree* tree)
{
    gr_wire_request r = {.op = GR_SANDBOX_CREATE, .sandbox = sandbox, .tree = *tree};
    return ask(s, &r);
}

int64_t gr_sandbox_run(gr_sandbox* s, int64_t sandbox, const gr_sandbox_command* command)
{
    gr_wire_request r = {.op = GR_SANDBOX_RUN, .sandbox = sandbox, .command = *command};
    return ask(s, &r);
}

int64_t gr_sandbox_fork(gr_sandbox* s, int64_t sandbox, int64_t to)
{
    gr_wire_request r = {.op = GR_SANDBOX_FORK, .sandbox = sandbox, .to = to};
    return ask(s, &r);
}

int64_t gr_sandbox_hash(gr_sandbox* s, int64_t sandbox)
{
    gr_wire_request r = {.op = GR_SANDBOX_HASH, .sandbox = sandbox};
    return ask(s, &r);
}

int64_t gr_sandbox_end(gr_sandbox* s, int64_t sandbox)
{
    gr_wire_request r = {.op = GR_SANDBOX_CLOSE, .sandbox = sandbox};
    return ask(s, &r);
}

/* ---- replies --------------------------------------------------------------------------------- */

static void forget(gr_sandbox* s, int64_t i)
{
    free(s->asked[i].frame.data);
    memmove(s->asked + i, s->asked + i + 1, (size_t)(s->n_asked - i - 1) * sizeof *s->asked);
    memset(&s->asked[--s->n_asked], 0, sizeof *s->asked);
}

/* A host without room: the request waits and is sent again, while our patience lasts. */
static bool wait_for_room(const gr_sandbox* s, asked* a, const gr_sandbox_reply* r)
{
    double now = gr_now_s();
    if (r->error != GR_SANDBOX_FULL || a->frame.n == 0) return false;
    if (now + a->pause > a->since + s->patience_s) return false;
    a->again = now + a->pause;
    a->pause = fmin(2 * a->pause, BACKOFF_MAX_S);
    return true;
}

/* The next frame, if one is whole. True: it is a reply that somebody waits for. */
static bool take(gr_sandbox* s, gr_sandbox_reply* out, bool* any)
{
    gr_wire_hello hello;
    size_t n_body = 0;
    gr_wire_consume(&s->in, s->spent);
    s->spent = 0;
    int found = gr_wire_frame(&s->in, &n_body);
    *any = found > 0;
    if (found < 0) lose(s, "the sandbox helper talks nonsense");
    if (found <= 0) return false;
    s->spent = n_body + 4;
    memset(out, 0, sizeof *out);
    if (gr_wire_read_reply(s->in.data + 4, n_body, out, &hello) != GR_OK) {
        lose(s, "the sandbox helper talks nonsense");
        return false;
    }
    for (int64_t i = 0; i < s->n_asked; i++) {
        asked* a = &s->asked[i];
        if (a->id != out->request) continue;
        if (wait_for_room(s, a, out)) return false;
        out->op = a->op;
        out->sandbox = a->sandbox;
        if (a->op == GR_SANDBOX_HELLO) {
            (void)snprintf(s->description, sizeof s->description, "%s, %s, control groups %s%s%s",
                           hello.mode, hello.trees, hello.groups, hello.notice[0] ? "; " : "",
                           hello.notice);
        }
        bool ping = a->op == GR_SANDBOX_PING;
        forget(s, i);
        return !ping;
    }
    return false;
}

/* All that is asked of a helper that is gone, one by one. */
static bool take_lost(gr_sandbox* s, gr_sandbox_reply* out)
{
    while (s->fd < 0 && s->n_asked > 0) {
        const asked* a = &s->asked[0];
        *out = (gr_sandbox_reply){
            .request = a->id, .op = a->op, .sandbox = a->sandbox, .error = GR_SANDBOX_GONE};
        (void)snprintf(out->reason, sizeof out->reason, "%s", s->why);
        forget(s, 0);
        if (out->op != GR_SANDBOX_PING) return true;
    }
    return false;
}

/* Sends again what waits for room, and asks for a sign of life. Returns when to be here next. */
static double tend(gr_sandbox* s)
{
    double now = gr_now_s(), next = fmax(s->heard, s->pinged) + PING_S;
    for (int64_t i = 0; i < s->n_asked; i++) {
        asked* a = &s->asked[i];
        if (a->again <= now) {
            a->again = HUGE_VAL;
            gr_wire_append(&s->out, a->frame.data, a->frame.n);
        }
        next = fmin(next, a->again);
    }
    if (s->n_asked > 0 && now - s->heard > SILENCE_S) lose(s, "the sandbox helper is silent");
    if (s->n_asked > 0 && now >= fmax(s->heard, s->pinged) + PING_S) {
        s->pinged = now;
        gr_wire_request r = {.op = GR_SANDBOX_PING};
        (void)ask(s, &r);
    }
    flush(s);
    return next;
}

bool gr_sandbox_poll(gr_sandbox* s, bool wait, gr_sandbox_reply* out)
{
    for (;;) {
        bool any = true;
        while (any) {
            if (take(s, out, &any)) return true;
        }
        if (receive(s)) continue;
        if (take_lost(s, out)) return true;
        double next = tend(s);
        if (!wait || s->n_asked == 0) return false;
        if (s->fd < 0) continue;
        struct pollfd p = {.fd = s->fd, .events = POLLIN};
        if (s->out.n > 0) p.events |= POLLOUT;
        (void)poll(&p, 1, (int)(1000 * fmax(next - gr_now_s(), 0)) + 1);
    }
}

void gr_sandbox_wait(gr_sandbox* s, int64_t request, gr_sandbox_reply* out)
{
    while (gr_sandbox_poll(s, true, out)) {
        if (out->request == request) return;
    }
    GR_ASSERT(false, "request %lld was answered before", (long long)request);
}

/* ---- open and close -------------------------------------------------------------------------- */

static gr_status greet(gr_sandbox* s, const gr_sandbox_settings* limits)
{
    char secret[SECRET_CAP];
    gr_sandbox_reply reply;
    gr_wire_request r = {.op = GR_SANDBOX_HELLO};
    bool there = limits->sandbox_host[0] != 0;
    if (there) {
        GR_TRY(gr_secret_read(limits->secret_file, secret, sizeof secret));
        r.secret = secret;
    } else {
        r.limits = limits;
    }
    gr_sandbox_wait(s, ask(s, &r), &reply);
    if (reply.error == GR_SANDBOX_OK) return GR_OK;
    return GR_FAIL(reply.error == GR_SANDBOX_REFUSED ? GR_EARG : GR_EIO, "sandbox: %s",
                   reply.reason);
}

static gr_status open_once(gr_sandbox* s, const gr_sandbox_settings* limits)
{
    GR_TRY(limits->sandbox_host[0] != 0 ? connect_there(limits->sandbox_host, &s->fd)
                                        : connect_here(&s->fd));
    if (fcntl(s->fd, F_SETFL, O_NONBLOCK) != 0) {
        return GR_FAIL(GR_EIO, "sandbox: %s", strerror(errno));
    }
    return greet(s, limits);
}

gr_status gr_sandbox_open(gr_sandbox** out, const gr_sandbox_settings* limits)
{
    gr_sandbox* s = calloc(1, sizeof *s);
    if (s == NULL) return GR_FAIL(GR_ENOMEM, "sandbox: out of memory");
    s->fd = -1;
    s->patience_s = limits->patience_s;
    gr_status st = open_once(s, limits);
    if (st != GR_OK && s->fd < 0 && limits->sandbox_host[0] == 0) {
        /* Nobody is there. A helper that was killed takes connections until its last descriptor is
         * closed, so only its silence tells; we wait for its end and start another. */
        gr_sandbox_stop();
        st = open_once(s, limits);
    }
    if (st == GR_OK)
        *out = s;
    else
        gr_sandbox_close(s);
    return st;
}

void gr_sandbox_close(gr_sandbox* s)
{
    if (s == NULL) return;
    lose(s, "closed");
    while (s->n_asked > 0) forget(s, 0);
    free(s->asked);
    free(s->out.data);
    free(s->in.data);
    free(s);
}

const char* gr_sandbox_describe(const gr_sandbox* s) { return s->description; }
