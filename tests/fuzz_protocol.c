/* fuzz_protocol.c - what a world answers is untrusted: frames and bodies, by libFuzzer.
 *
 * The first byte chooses what is asked and what hello said; the rest is what the world sends. */
#include <stdlib.h>
#include <string.h>

#include "envs/protocol.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t* data, size_t n)
{
    static gr_answer answer;
    if (n == 0) return 0;
    gr_op op = (gr_op)(data[0] % 6);
    gr_hello hello = {
        .n_signals = data[0] / 6 % (GR_SIGNALS + 1), .hash = data[0] & 0x80, .text_max = 40};
    data++, n--;
    size_t n_body = 0;
    while (gr_protocol_frame(data, n, &n_body) == GR_FRAME_WHOLE) {
        data += GR_FRAME_HEAD, n -= GR_FRAME_HEAD;
        char* body = malloc(n_body); /* its own block, so that reading beyond it shows */
        if (body == NULL) abort();
        memcpy(body, data, n_body);
        gr_answer_kind kind = gr_protocol_read(body, n_body, op, 7, &hello, &answer);
        if (kind != GR_ANSWER_GOOD && answer.reason[0] == 0 && kind != GR_ANSWER_REFUSED) abort();
        if (answer.obs.n_text < 0 || answer.obs.n_text > hello.text_max) abort();
        free(body);
        data += n_body, n -= n_body;
    }
    return 0;
}
