#include "host/dialog.h"

#include <stdlib.h>
#include <string.h>

#include "host/arena.h"
#include "model/vocabulary.h"

gr_status gr_dialog_choose(gr_dialog_format* f, const char* block, const char* path,
                           const char* chat, bool think)
{
    f->no_think = !think;
    if (strcmp(chat, "auto") == 0) {
        if (path[0] == 0) return GR_FAIL(GR_EARG, "%s.chat: auto needs %s.path", block, block);
        GR_TRY(gr_model_chat(&f->chat, path));
    } else if (strcmp(chat, "none") != 0) {
        f->chat = gr_chat_find(chat);
        if (f->chat == NULL) return GR_FAIL(GR_EARG, "%s.chat: no format `%s`", block, chat);
    }
    if (f->no_think && (f->chat == NULL || !f->chat->thinks)) {
        return GR_FAIL(GR_EARG, "%s.think has no effect: the chat format is %s", block,
                       f->chat == NULL ? "none" : f->chat->name);
    }
    return f->chat != NULL ? gr_chat_check(f->chat, f->tokenizer) : GR_OK;
}

static void add_end(gr_dialog* d, const char* name)
{
    int32_t id = gr_tokenizer_find(d->format.tokenizer, name);
    if (id >= 0 && d->n_end < GR_END_MAX) d->end[d->n_end++] = id;
}

void gr_dialog_init(gr_dialog* d, const gr_dialog_format* format)
{
    /* How models without a chat format say that a text is over. */
    static const char* const over[] = {"<|endoftext|>", "<|end_of_text|>", "</s>"};
    *d = (gr_dialog){.format = *format, .out = {.tokenizer = format->tokenizer}};
    const gr_chat_format* chat = format->chat;
    for (int i = 0; chat != NULL && i < GR_COUNT(chat->end) && chat->end[i] != NULL; i++) {
        add_end(d, chat->end[i]);
    }
    for (int i = 0; chat == NULL && i < GR_COUNT(over); i++) add_end(d, over[i]);
}

void gr_dialog_free(gr_dialog* d) { gr_chat_text_free(&d->out); }

/* ---- rendering ------------------------------------------------------------------------------- */

/* Into out, from its start: a token in front (-1: none) and a text. */
static void render_plain(gr_dialog* d, int32_t bos, const char* text, int n_text)
{
    gr_chat_text* out = &d->out;
    GR_RESERVE(out->token, out->token_cap, n_text + 1);
    out->n = 0;
    if (bos >= 0) out->token[out->n++] = bos;
    for (;;) {
        int room = (int)out->token_cap - out->n;
        int more =
            gr_encode(d->format.tokenizer, GR_PLAIN, text, n_text, out->token + out->n, room);
        if (more <= room) {
            out->n += more;
            return;
        }
        GR_RESERVE(out->token, out->token_cap, out->n + more);
    }
}

static void render_turn(gr_dialog* d, gr_chat_part part, const char* text, int n_text)
{
    const gr_message said = {GR_USER, {text, (size_t)n_text}};
    part.message = &said;
    part.n = 1;
    part.no_think = d->format.no_think;
    gr_chat_render(d->format.chat, &d->out, &part);
}

void gr_dialog_ask(gr_dialog* d, const char* text, int n)
{
    if (d->format.chat != NULL)
        render_turn(d, (gr_chat_part){.first = true, .answer = true}, text, n);
    else
        render_plain(d, gr_tokenizer_bos(d->format.tokenizer), text, n);
}

/* Prompt and observation are one text, so that words which meet in it are read as in any other. */
void gr_dialog_open(gr_dialog* d, const gr_world* world, const char* obs, int n_obs)
{
    int n_prompt = (int)strlen(world->prompt);
    char* text = malloc((size_t)(n_prompt + n_obs) + 1);
    GR_ASSERT(text != NULL, "out of memory");
    memcpy(text, world->prompt, (size_t)n_prompt);
    memcpy(text + n_prompt, obs, (size_t)n_obs);
    gr_dialog_ask(d, text, n_prompt + n_obs);
    free(text);
}

/* Bytes at the end of an action that spell the format's end token, where bytes are the tokens. */
static int spelled_end(const gr_dialog* d, const int32_t* token, int n)
{
    const gr_chat_format* chat = d->format.chat;
    if (chat == NULL || d->format.tokenizer != NULL) return 0;
    int n_end = (int)strlen(chat->end[0]);
    for (int i = 0; i < n_end; i++) {
        if (n < n_end || token[n - n_end + i] != (unsigned char)chat->end[0][i]) return 0;
    }
    return n_end;
}

/* Tokens at the end of an action that are its end, 0: it was cut off, or ends with a text. */
static int end_tokens(const gr_dialog* d, const int32_t* token, int n)
{
    for (int i = 0; i < d->n_end; i++) {
        if (n > 0 && token[n - 1] == d->end[i]) return 1;
    }
    return spelled_end(d, token, n);
}

void gr_dialog_observe(gr_dialog* d, const int32_t* action, int n_action, const char* obs,
                       int n_obs, bool last)
{
    if (d->format.chat == NULL) {
        render_plain(d, -1, obs, n_obs);
        return;
    }
    /* Only the first of the end tokens is the template's own. */
    bool closed = spelled_end(d, action, n_action) > 0 ||
                  (d->n_end > 0 && n_action > 0 && action[n_action - 1] == d->end[0]);
    render_turn(d, (gr_chat_part){.unfinished = !closed, .answer = !last}, obs, n_obs);
}

void gr_dialog_act(gr_dialog* d, const gr_world* world, const char* action, int n_action)
{
    if (d->format.chat == NULL) {
        render_plain(d, -1, action, n_action);
        return;
    }
    int n_stop = (int)strlen(world->stop);
    bool stopped =
        n_action >= n_stop && memcmp(action + n_action - n_stop, world->stop, (size_t)n_stop) == 0;
    gr_chat_reply(d->format.chat, &d->out, action, (size_t)(n_action - (stopped ? n_stop : 0)));
}

/* ---- listening ------------------------------------------------------------------------------- */

int gr_dialog_text(const gr_dialog* d, const int32_t* token, int n, char* text, int cap)
{
    return gr_decode(d->format.tokenizer, GR_PLAIN, token, n - end_tokens(d, token, n), text, cap);
}

int gr_dialog_hear(const gr_dialog* d, const gr_world* world, const char* stop,
                   const int32_t* token, int n, char* text, int cap)
{
    int n_end = end_tokens(d, token, n), n_stop = (int)strlen(stop);
    int length = gr_dialog_text(d, token, n, text, cap);
    const char* at = n_stop > 0 ? memmem(text, (size_t)length, stop, (size_t)n_stop) : NULL;
    if (d->format.chat == NULL && at != NULL) length = (int)(at - text) + n_stop;
    int n_own = (int)strlen(world->stop);
    bool stopped =
        length >= n_own && memcmp(text + length - n_own, world->stop, (size_t)n_own) == 0;
    if (n_end > 0 && !stopped && length + n_own < cap) {
        memcpy(text + length, world->stop, (size_t)n_own);
        length += n_own;
    }
    text[length] = 0;
    return length;
}

void gr_dialog_stop(const gr_dialog* d, const char* stop, gr_request* r)
{
    const gr_chat_format* chat = d->format.chat;
    bool spelled = chat != NULL && d->format.tokenizer == NULL;
    r->stop = chat == NULL ? stop : spelled ? chat->end[0] : NULL;
    r->n_end = d->n_end;
    memcpy(r->end, d->end, sizeof r->end);
}
