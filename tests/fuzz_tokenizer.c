/* fuzz_tokenizer.c - tokenizer.json of any content: a vocabulary that encodes any text, or
 * one line that says what is wrong. */
#include <string.h>

#include "model/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size)
{
    static const char text[] = "ab <|im_end|> 12\n\t caf\xc3\xa9 e\xcc\x81\xff\xe2\x96\x81x";
    int32_t token[512];
    char back[2048];
    gr_tokenizer* t = NULL;
    if (gr_tokenizer_from_json(&t, "fuzz", (const char*)data, size) != GR_OK) {
        GR_ASSERT(t == NULL && strncmp(gr_last_error_text(), "fuzz: ", 6) == 0);
        GR_ASSERT(strchr(gr_last_error_text(), '\n') == NULL);
        return 0;
    }
    for (int kind = 0; kind < 2; kind++) {
        int n =
            gr_encode(t, (gr_text_kind)kind, text, (int)sizeof text - 1, token, GR_COUNT(token));
        GR_ASSERT(n >= 0 && n <= GR_COUNT(token));
        for (int i = 0; i < n; i++) GR_ASSERT(token[i] >= 0 && token[i] < gr_tokenizer_vocab(t));
        GR_ASSERT(gr_decode(t, GR_MARKUP, token, n, back, (int)sizeof back) < (int)sizeof back);
    }
    gr_tokenizer_free(t);
    return 0;
}
