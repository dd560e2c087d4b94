/* server.h - the helper process: connections to the sandboxes of this host. Level 1.
 *
 * Connections come as descriptors through `control` from the process that forked us, or over TCP
 * from whoever knows the secret. A connection's sandboxes end with it. */
#pragma once
#include "envs/sandbox/sandbox.h"

/* Serves until `control` ends; returns the exit status. */
int gr_server_run(int control);
/* Sends the descriptor through the other end of a control socket. */
bool gr_server_pass(int control, int fd);

/* Reads the one line of a secret file that nobody else may read. */
GR_MUST_CHECK gr_status gr_secret_read(const char* path, char* out, size_t cap);
/* HOST:PORT in parts. */
GR_MUST_CHECK gr_status gr_address_split(const char* address, char* host, size_t cap,
                                         const char** port);
