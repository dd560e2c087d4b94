#include "host/dialog.h"

#include <stdlib.h>
#include <string.h>

void gr_dialog_init(gr_dialog* d, const gr_tokenizer* tokenizer)
{
    *d = (gr_dialog){.tokenizer = tokenizer};
}

void gr_dialog_free(gr_dialog* d)
{
    free(d->token);
    *d = (gr_dialog){0};
}

/* Appends the tokens of a text to the n that are there; returns their number. */
static int append(gr_dialog* d, int n, const char* text, int n_text)
{
    for (;;) {
        int room = (int)d->cap - n;
        int more = gr_encode(d->tokenizer, GR_PLAIN, text, n_text, d->token + n, room);
        if (more <= room) return n + more;
        GR_RESERVE(d->token, d->cap, n + more);
    }
}

/* Prompt and observation are one text, so that words which meet in it are read as in any
 * other. */
int gr_dialog_open(gr_dialog* d, const gr_world* world, const char* obs, int n_obs)
{
    int n = 0, n_prompt = (int)strlen(world->prompt);
    char* text = malloc((size_t)(n_prompt + n_obs) + 1);
    GR_ASSERT(text != NULL, "out of memory");
    memcpy(text, world->prompt, (size_t)n_prompt);
    memcpy(text + n_prompt, obs, (size_t)n_obs);
    GR_RESERVE(d->token, d->cap, n_prompt + n_obs + 1);
    int32_t bos = gr_tokenizer_bos(d->tokenizer);
    if (bos >= 0) d->token[n++] = bos;
    n = append(d, n, text, n_prompt + n_obs);
    free(text);
    return n;
}

int gr_dialog_observe(gr_dialog* d, const char* obs, int n_obs) { return append(d, 0, obs, n_obs); }

int gr_dialog_act(gr_dialog* d, const char* action, int n_action)
{
    return append(d, 0, action, n_action);
}

int gr_dialog_hear(const gr_dialog* d, const char* stop, const int32_t* token, int n, char* text,
                   int cap)
{
    int length = gr_decode(d->tokenizer, GR_PLAIN, token, n, text, cap);
    size_t n_stop = strlen(stop);
    const char* at = n_stop > 0 ? memmem(text, (size_t)length, stop, n_stop) : NULL;
    if (at != NULL) length = (int)(at - text) + (int)n_stop;
    text[length] = 0;
    return length;
}

void gr_dialog_stop(const gr_dialog* d, const char* stop, gr_request* r)
{
    /* A base model says in this way that its text is over. */
    static const char* const ends[] = {"<|endoftext|>", "<|end_of_text|>", "</s>", "<|im_end|>"};
    r->stop = stop;
    r->n_end = 0;
    for (int i = 0; i < GR_COUNT(ends) && r->n_end < GR_END_MAX; i++) {
        int32_t id = gr_tokenizer_find(d->tokenizer, ends[i]);
        if (id >= 0) r->end[r->n_end++] = id;
    }
}
