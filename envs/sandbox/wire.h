/* wire.h - requests and replies as bytes; pure functions of them. Level 1. The messages are
 * described in sandbox.h. */
#pragma once
#include "envs/sandbox/sandbox.h"

typedef struct gr_wire_bytes {
    char* data;
    size_t n, cap;
} gr_wire_bytes;

void gr_wire_append(gr_wire_bytes* b, const void* data, size_t n);
void gr_wire_consume(gr_wire_bytes* b, size_t n); /* from the front */

typedef struct gr_wire_request {
    int64_t id, sandbox, to;
    gr_sandbox_op op;
    const char* secret;                /* of hello; NULL: none */
    const gr_sandbox_settings* limits; /* of hello; NULL: whatever holds there */
    gr_sandbox_tree tree;
    gr_sandbox_command command;
    /* owned by one that was read */
    struct cJSON* json;
    const char** list[3];
    gr_sandbox_settings limits_read;
} gr_wire_request;

/* How a connection's host confines, as its hello tells. */
typedef struct gr_wire_hello {
    char mode[16], trees[16], groups[16], notice[512];
} gr_wire_hello;

/* Is there a frame at the start? Its body is n_body bytes at offset 4. -1: there never will be. */
int gr_wire_frame(const gr_wire_bytes* b, size_t* n_body);

void gr_wire_write_request(gr_wire_bytes* out, const gr_wire_request* r);
/* What it points to lies in `body` and in itself. On failure the message says why, and `id` and
 * `sandbox` are what could be read of them. */
GR_MUST_CHECK gr_status gr_wire_read_request(const char* body, size_t n, gr_wire_request* r);
void gr_wire_free_request(gr_wire_request* r);

/* `hello` goes with a reply to hello, else NULL. */
void gr_wire_write_reply(gr_wire_bytes* out, const gr_sandbox_reply* r, const gr_wire_hello* hello);
/* Fills what the message says; r->op stays. */
GR_MUST_CHECK gr_status gr_wire_read_reply(const char* body, size_t n, gr_sandbox_reply* r,
                                           gr_wire_hello* hello);
