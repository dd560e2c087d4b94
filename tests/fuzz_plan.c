/* fuzz_plan.c - a policy writes anything: the reader of HiPER's blocks, by libFuzzer.
 *
 * Blocks lie inside the text, tags included; every byte has a kind where there is no block of action;
 * what is written from the parts is read back. */
#include <stdlib.h>
#include <string.h>

#include "host/hiper.h"

static void check_span(gr_span block, gr_span inside, int n)
{
    if ((block.begin < 0) != (inside.begin < 0)) abort();
    if (block.begin < 0) return;
    if (block.begin > inside.begin || inside.begin > inside.end || inside.end > block.end ||
        block.end > n) {
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size)
{
    static char out[8192];
    if (size == 0 || size > 4000) return 0;
    int tags = data[0] % 2, n = (int)size - 1, length = 0;
    char* text = malloc((size_t)n + 1); /* its own block, so that reading beyond it shows */
    if (text == NULL) abort();
    memcpy(text, data + 1, (size_t)n);
    gr_plan p, again;
    gr_plan_parse(text, n, tags, &p);
    check_span(p.switch_block, p.word, n);
    check_span(p.subgoal_block, p.subgoal, n);
    check_span(p.action_block, p.action, n);
    if (p.switched && p.word.end <= p.word.begin) abort();
    if (p.valid && (p.switch_block.begin < 0 || p.subgoal_block.begin < 0)) abort();
    for (int i = 0; i < n; i++) {
        if (p.action_block.begin < 0 && !(gr_plan_kinds(&p, i) & GR_KIND_ACTION)) abort();
    }
    const char* subgoal = gr_plan_subgoal(&p, text, tags, &length);
    if (length < 0 || (length > 0 && subgoal == NULL)) abort();
    for (int cap = 1; cap < (int)sizeof out; cap = cap * 2 + 1) {
        if (gr_plan_action(&p, text, n, "\n", out, cap) >= cap) abort();
        gr_hiper_settings s = {.tags = tags, .prompt = data[0] & 2};
        if (gr_plan_show(&s, text, n, "P_\n", 3, out, cap) >= cap) abort();
    }
    int written = gr_plan_write(tags, p.switched, "g", "left\n", 5, "\n", out, sizeof out);
    gr_plan_parse(out, written, tags, &again);
    if (!again.valid || again.switched != p.switched) abort();
    free(text);
    return 0;
}
