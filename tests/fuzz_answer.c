/* fuzz_answer.c - a model that judges writes anything: the reader of its answers, by libFuzzer.
 *
 * Whatever is read has a level of 0 to 10 and a critique that is terminated where it ends; what is
 * no answer leaves the result alone; white space may stand behind an answer, anything else not. */
#include <stdlib.h>
#include <string.h>

#include "host/scorer/answer.h"
#include "host/scorer/scorer.h"

static bool read_copy(const uint8_t* data, size_t n, const char* behind, gr_answer* out)
{
    size_t more = strlen(behind);
    char* text = malloc(n + more + 1); /* its own block, so that reading beyond it shows */
    if (text == NULL) abort();
    memcpy(text, data, n);
    memcpy(text + n, behind, more);
    text = realloc(text, n + more > 0 ? n + more : 1);
    bool sound = gr_answer_read(text, n + more, out);
    free(text);
    return sound;
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t* data, size_t n)
{
    gr_answer a, b;
    if (n > 1 << 16) return 0;
    memset(&a, 0x5a, sizeof a);
    b = a;
    if (!read_copy(data, n, "", &a)) {
        if (memcmp(&a, &b, sizeof a) != 0) abort();
        return 0;
    }
    if (a.level < 0 || a.level > GR_LEVELS) abort();
    if (a.n_critique < 0 || a.n_critique >= GR_CRITIQUE_MAX) abort();
    if (memchr(a.critique, 0, GR_CRITIQUE_MAX) != a.critique + a.n_critique) abort();
    if (!read_copy(data, n, " \n", &b) || b.level != a.level) abort();
    if (read_copy(data, n, "x", &b)) abort();
    return 0;
}
