#include "envs/sandbox/server.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "envs/sandbox/host.h"

enum {
    UNKNOWN_MAX = 4096,     /* bytes that a stranger may send before it has said hello */
    STRANGERS_MAX = 16,     /* at a time */
    UNREAD_MAX = 256 << 20, /* answers a client may leave unread before it is given up */
};

typedef struct connection {
    struct connection* next;
    struct server* server;
    union {
        uv_stream_t stream;
        uv_pipe_t pipe;
        uv_tcp_t tcp;
    } at;
    gr_wire_bytes received;
    bool trusted, greeted, closing;
} connection;

typedef struct server {
    uv_loop_t loop;
    uv_poll_t control;
    uv_tcp_t listener;
    uv_signal_t stop[2];
    gr_host* host;
    connection* connection;
    const char* secret; /* NULL: connections are our parent's own */
    bool ending;
} server;

/* ---- connections ----------------------------------------------------------------------------- */

static void on_closed(uv_handle_t* handle)
{
    connection* c = handle->data;
    for (connection** link = &c->server->connection; *link != NULL; link = &(*link)->next) {
        if (*link != c) continue;
        *link = c->next;
        break;
    }
    free(c->received.data);
    free(c);
}

static void hang_up(connection* c)
{
    if (c->closing) return;
    c->closing = true;
    if (c->server->host != NULL) gr_host_forget(c->server->host, c);
    uv_close((uv_handle_t*)&c->at.stream, on_closed);
}

typedef struct sending {
    uv_write_t write;
    gr_wire_bytes bytes;
} sending;

static void on_sent(uv_write_t* write, int status)
{
    sending* s = write->data;
    connection* c = write->handle->data;
    free(s->bytes.data);
    free(s);
    if (status < 0) hang_up(c);
}

static void send_reply(connection* c, const gr_sandbox_reply* reply, const gr_wire_hello* hello)
{
    if (c->closing) return;
    sending* s = calloc(1, sizeof *s);
    GR_ASSERT(s != NULL, "out of memory");
    gr_wire_write_reply(&s->bytes, reply, hello);
    uv_buf_t b = uv_buf_init(s->bytes.data, (unsigned)s->bytes.n);
    s->write.data = s;
    int rc = gr_fault("sandbox.send") ? UV_EIO : uv_write(&s->write, &c->at.stream, &b, 1, on_sent);
    if (rc < 0) {
        free(s->bytes.data);
        free(s);
    }
    if (rc < 0 || uv_stream_get_write_queue_size(&c->at.stream) > UNREAD_MAX) hang_up(c);
}

static void answer(void* owner, const gr_sandbox_reply* reply) { send_reply(owner, reply, NULL); }

/* ---- hello ----------------------------------------------------------------------------------- */

/* Takes as long whatever is wrong. */
static bool is_secret(const char* secret, const char* text)
{
    size_t n = strlen(secret), n_text = text != NULL ? strlen(text) : 0;
    unsigned difference = n != n_text;
    for (size_t i = 0; i < n; i++) difference |= (unsigned)(secret[i] ^ (i < n_text ? text[i] : 0));
    return difference == 0;
}

static gr_status greet(connection* c, const gr_wire_request* r)
{
    server* s = c->server;
    if (s->secret != NULL && !is_secret(s->secret, r->secret)) {
        return GR_FAIL(GR_EARG, "the secret is another");
    }
    c->trusted = true;
    if (s->host == NULL && r->limits == NULL) return GR_FAIL(GR_EARG, "limits: missing");
    if (s->host == NULL) GR_TRY(gr_host_open(&s->host, &s->loop, r->limits, answer));
    if (r->limits != NULL && s->secret == NULL && !gr_host_same_limits(s->host, r->limits)) {
        return GR_FAIL(GR_EARG, "other limits hold here already");
    }
    c->greeted = true;
    return GR_OK;
}

static void say_hello(connection* c, const gr_wire_request* r)
{
    gr_sandbox_reply a = {.request = r->id, .op = GR_SANDBOX_HELLO};
    gr_status st = greet(c, r);
    if (st != GR_OK) {
        a.error = st == GR_EARG ? GR_SANDBOX_REFUSED : GR_SANDBOX_BROKEN;
        (void)snprintf(a.reason, sizeof a.reason, "%s", gr_last_error_text());
    }
    send_reply(c, &a, c->greeted ? gr_host_hello(c->server->host) : NULL);
    if (!c->trusted) hang_up(c);
}

/* ---- requests -------------------------------------------------------------------------------- */

static void serve(connection* c, const char* body, size_t n)
{
    gr_wire_request r;
    gr_sandbox_reply a = {0};
    if (gr_wire_read_request(body, n, &r) != GR_OK) {
        a.request = r.id;
        a.error = GR_SANDBOX_REFUSED;
        (void)snprintf(a.reason, sizeof a.reason, "%s", gr_last_error_text());
        if (r.id > 0 && c->trusted)
            send_reply(c, &a, NULL);
        else
            hang_up(c);
        return;
    }
    if (r.op == GR_SANDBOX_HELLO) {
        say_hello(c, &r);
    } else if (!c->greeted) {
        hang_up(c);
    } else if (r.op == GR_SANDBOX_PING) {
        a.request = r.id;
        a.op = r.op;
        send_reply(c, &a, NULL);
    } else {
        gr_host_ask(c->server->host, c, &r);
    }
    gr_wire_free_request(&r);
}

static void on_room(uv_handle_t* handle, size_t suggested, uv_buf_t* out)
{
    static char block[1 << 16];
    (void)handle, (void)suggested;
    *out = uv_buf_init(block, sizeof block);
}

static void on_read(uv_stream_t* stream, ssize_t n, const uv_buf_t* block)
{
    connection* c = stream->data;
    size_t n_body = 0;
    int found = 0;
    if (gr_fault("sandbox.receive")) n = UV_EIO;
    if (n < 0) hang_up(c);
    if (n <= 0) return;
    gr_wire_append(&c->received, block->base, (size_t)n);
    while (!c->closing && (found = gr_wire_frame(&c->received, &n_body)) > 0) {
        serve(c, c->received.data + 4, n_body);
        gr_wire_consume(&c->received, n_body + 4);
    }
    if (!c->closing && (found < 0 || (!c->trusted && c->received.n > UNKNOWN_MAX))) hang_up(c);
}

static connection* new_connection(server* s)
{
    connection* c = calloc(1, sizeof *c);
    GR_ASSERT(c != NULL, "out of memory");
    c->server = s;
    c->next = s->connection;
    s->connection = c;
    return c;
}

static void take_connection(server* s, int fd)
{
    connection* c = new_connection(s);
    (void)uv_pipe_init(&s->loop, &c->at.pipe, 0);
    c->at.stream.data = c;
    c->trusted = true;
    if (uv_pipe_open(&c->at.pipe, fd) != 0 || uv_read_start(&c->at.stream, on_room, on_read) != 0) {
        hang_up(c);
    }
}

/* ---- from the parent ------------------------------------------------------------------------- */

bool gr_server_pass(int control, int fd)
{
    char byte = 0, room[CMSG_SPACE(sizeof fd)] = {0};
    struct iovec part = {.iov_base = &byte, .iov_len = 1};
    struct msghdr m = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    struct cmsghdr* h = CMSG_FIRSTHDR(&m);
    h->cmsg_level = SOL_SOCKET;
    h->cmsg_type = SCM_RIGHTS;
    h->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(h), &fd, sizeof fd);
    return !gr_fault("sandbox.pass") && sendmsg(control, &m, MSG_NOSIGNAL) == 1;
}

/* The descriptor that came; -1: none. *ended: no more will. */
static int receive_descriptor(int control, bool* ended)
{
    char byte, room[CMSG_SPACE(sizeof(int))];
    struct iovec part = {.iov_base = &byte, .iov_len = 1};
    struct msghdr m = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    ssize_t n = recvmsg(control, &m, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    *ended = n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR);
    const struct cmsghdr* h = n > 0 ? CMSG_FIRSTHDR(&m) : NULL;
    int fd = -1;
    if (h != NULL && h->cmsg_type == SCM_RIGHTS) memcpy(&fd, CMSG_DATA(h), sizeof fd);
    return fd;
}

static void end_serving(server* s)
{
    if (s->ending) return;
    s->ending = true;
    uv_stop(&s->loop);
}

static void control_came(uv_poll_t* poll, int status, int events)
{
    server* s = poll->data;
    bool ended = false;
    int fd, control = -1;
    (void)events, (void)status;
    (void)uv_fileno((uv_handle_t*)poll, &control);
    while ((fd = receive_descriptor(control, &ended)) >= 0) take_connection(s, fd);
    if (ended) end_serving(s);
}

/* ---- the helper ------------------------------------------------------------------------------ */

static void on_stop(uv_signal_t* handle, int number)
{
    (void)number;
    end_serving(handle->data);
}

static bool open_server(server* s)
{
    static const int numbers[] = {SIGTERM, SIGINT};
    if (uv_loop_init(&s->loop) != 0) return false;
    for (int i = 0; i < GR_COUNT(numbers); i++) {
        (void)uv_signal_init(&s->loop, &s->stop[i]);
        s->stop[i].data = s;
        (void)uv_signal_start(&s->stop[i], on_stop, numbers[i]);
    }
    return true;
}

static void close_handle(uv_handle_t* handle, void* unused)
{
    (void)unused;
    if (!uv_is_closing(handle)) uv_close(handle, NULL);
}

static void close_server(server* s)
{
    for (connection* c = s->connection; c != NULL; c = c->next) hang_up(c);
    gr_host_close(s->host);
    uv_walk(&s->loop, close_handle, NULL);
    (void)uv_run(&s->loop, UV_RUN_DEFAULT);
    (void)uv_loop_close(&s->loop);
}

int gr_server_run(int control)
{
    server s = {0};
    (void)signal(SIGPIPE, SIG_IGN);
    if (!open_server(&s)) return 1;
    if (uv_poll_init(&s.loop, &s.control, control) != 0) return 1;
    s.control.data = &s;
    (void)uv_poll_start(&s.control, UV_READABLE | UV_DISCONNECT, control_came);
    (void)uv_run(&s.loop, UV_RUN_DEFAULT);
    close_server(&s);
    return 0;
}

/* ---- over TCP -------------------------------------------------------------------------------- */

static void on_connection(uv_stream_t* listener, int status)
{
    server* s = listener->data;
    int strangers = 0;
    if (status < 0) return;
    connection* c = new_connection(s);
    (void)uv_tcp_init(&s->loop, &c->at.tcp);
    c->at.stream.data = c;
    for (const connection* k = s->connection; k != NULL; k = k->next) strangers += !k->trusted;
    if (uv_accept(listener, &c->at.stream) != 0 || strangers > STRANGERS_MAX ||
        uv_read_start(&c->at.stream, on_room, on_read) != 0) {
        hang_up(c);
        return;
    }
    (void)uv_tcp_nodelay(&c->at.tcp, 1);
    (void)uv_tcp_keepalive(&c->at.tcp, 1, 60); /* a client that vanished frees its sandboxes */
}

gr_status gr_address_split(const char* address, char* host, size_t cap, const char** port)
{
    const char* colon = strrchr(address, ':');
    bool bracket = address[0] == '[';
    size_t n = colon == NULL ? 0 : (size_t)(colon - address);
    if (n == 0 || colon[1] == 0 || n >= cap) {
        return GR_FAIL(GR_EARG, "%s: not HOST:PORT", address);
    }
    memcpy(host, address + bracket, n - 2 * bracket);
    host[n - 2 * bracket] = 0;
    *port = colon + 1;
    return GR_OK;
}

gr_status gr_secret_read(const char* path, char* out, size_t cap)
{
    struct stat s;
    FILE* f = fopen(path, "re");
    if (f == NULL) return GR_FAIL(GR_EARG, "secret_file: %s: %s", path, strerror(errno));
    bool open_to_all = fstat(fileno(f), &s) != 0 || (s.st_mode & 077) != 0;
    bool good = fgets(out, (int)cap, f) != NULL;
    (void)fclose(f);
    if (open_to_all) return GR_FAIL(GR_EARG, "secret_file: %s: others may read it", path);
    if (good) out[strcspn(out, "\r\n")] = 0;
    if (!good || strlen(out) < 16) {
        return GR_FAIL(GR_EARG, "secret_file: %s: needs a line of at least 16 bytes", path);
    }
    return GR_OK;
}

static gr_status bind_to(server* s, const char* address)
{
    char host[256];
    const char* port;
    struct addrinfo hint = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *found = NULL;
    GR_TRY(gr_address_split(address, host, sizeof host, &port));
    int rc = getaddrinfo(host, port, &hint, &found);
    if (rc != 0) return GR_FAIL(GR_EARG, "%s: %s", address, gai_strerror(rc));
    (void)uv_tcp_init(&s->loop, &s->listener);
    s->listener.data = s;
    rc = uv_tcp_bind(&s->listener, found->ai_addr, 0);
    freeaddrinfo(found);
    if (rc == 0) rc = uv_listen((uv_stream_t*)&s->listener, 16, on_connection);
    return rc == 0 ? GR_OK : GR_FAIL(GR_EIO, "%s: %s", address, uv_strerror(rc));
}

static void print_port(server* s, int fd)
{
    struct sockaddr_storage a;
    int n = sizeof a;
    if (uv_tcp_getsockname(&s->listener, (struct sockaddr*)&a, &n) != 0) return;
    unsigned port = a.ss_family == AF_INET6 ? ((struct sockaddr_in6*)&a)->sin6_port
                                            : ((struct sockaddr_in*)&a)->sin_port;
    (void)dprintf(fd, "%u\n", (port >> 8 | port << 8) & 0xffff);
}

gr_status gr_sandbox_listen(const char* address, const gr_sandbox_settings* limits, int ready_fd)
{
    char secret[256];
    GR_TRY(gr_secret_read(limits->secret_file, secret, sizeof secret));
    server s = {.secret = secret};
    (void)signal(SIGPIPE, SIG_IGN);
    if (!open_server(&s)) return GR_FAIL(GR_ENOMEM, "sandbox: no event loop");
    gr_status st = bind_to(&s, address);
    if (st == GR_OK) st = gr_host_open(&s.host, &s.loop, limits, answer);
    if (st == GR_OK) {
        if (ready_fd >= 0) print_port(&s, ready_fd);
        (void)uv_run(&s.loop, UV_RUN_DEFAULT);
    }
    close_server(&s);
    return st;
}
