/* fuzz_sandbox.c - what comes over a socket of the sandboxes is untrusted: frames, requests and
 * replies, by libFuzzer. The first byte chooses the side. */
#include <stdlib.h>
#include <string.h>

#include "envs/sandbox/wire.h"

static void read_as_host(const char* body, size_t n)
{
    gr_wire_request r;
    gr_wire_bytes again = {0};
    if (gr_wire_read_request(body, n, &r) != GR_OK) {
        if (gr_last_error_text()[0] == 0) abort();
        return;
    }
    if (r.op == GR_SANDBOX_RUN && r.command.head + r.command.tail > GR_SANDBOX_OUTPUT_MAX) abort();
    if (r.op == GR_SANDBOX_CREATE && (r.tree.tree[0] != '/' || r.tree.at[0] != '/')) abort();
    gr_wire_write_request(&again, &r); /* what was taken can be said */
    free(again.data);
    gr_wire_free_request(&r);
}

static void read_as_client(const char* body, size_t n)
{
    gr_sandbox_reply r = {0};
    gr_wire_hello hello;
    if (gr_wire_read_reply(body, n, &r, &hello) != GR_OK) return;
    if (r.n_head > r.n_output || r.error >= GR_N_SANDBOX_CLASSES) abort();
    if (r.output != NULL && r.output + r.n_output != body + n) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t* data, size_t n)
{
    if (n == 0) return 0;
    gr_wire_bytes all = {0};
    size_t n_body = 0;
    bool host = data[0] & 1;
    gr_wire_append(&all, data + 1, n - 1);
    while (gr_wire_frame(&all, &n_body) > 0) {
        char* body = malloc(n_body); /* its own block, so that reading beyond it shows */
        if (body == NULL) abort();
        memcpy(body, all.data + 4, n_body);
        if (host)
            read_as_host(body, n_body);
        else
            read_as_client(body, n_body);
        free(body);
        gr_wire_consume(&all, n_body + 4);
    }
    free(all.data);
    return 0;
}
