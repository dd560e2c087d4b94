/* dialog.h - how a world's texts become tokens, and a model's tokens an action. Level 4.
 *
 * Without a chat format prompt, observations and actions follow each other as they are,
 * behind the token that the vocabulary puts in front of texts. With one, what the world says
 * are turns of the user, and actions are the assistant's answers. Every text is encoded
 * once, when it is appended; sampled tokens never are. */
#pragma once
#include "envs/env.h"
#include "model/chat.h"
#include "model/engine.h"

typedef struct gr_dialog_format {
    const gr_tokenizer* tokenizer; /* borrowed; NULL: bytes */
    const gr_chat_format* chat;    /* NULL: plain text */
    bool no_think;                 /* answers begin without thoughts */
} gr_dialog_format;

/* Fills chat and no_think of a format whose tokenizer is that of the model at `path`: `chat` is a
 * format's name, auto (what came with the model) or none. `block` names the settings in errors. */
GR_MUST_CHECK gr_status gr_dialog_choose(gr_dialog_format* f, const char* block, const char* path,
                                         const char* chat, bool think);

typedef struct gr_dialog {
    gr_dialog_format format;
    int32_t
        end[GR_END_MAX]; /* tokens that end an action, which the world hears as its stop string */
    int n_end;
    gr_chat_text out; /* what the last call rendered: out.token, out.n */
} gr_dialog;

void gr_dialog_init(gr_dialog* d, const gr_dialog_format* format);
void gr_dialog_free(gr_dialog* d);

/* A conversation that begins with a text and is to be answered. The tokens are in d->out. */
void gr_dialog_ask(gr_dialog* d, const char* text, int n);
/* The root: prompt and first observation. */
void gr_dialog_open(gr_dialog* d, const gr_world* world, const char* obs, int n_obs);
/* An observation behind the action of the given tokens; `last`: no action follows. */
void gr_dialog_observe(gr_dialog* d, const int32_t* action, int n_action, const char* obs,
                       int n_obs, bool last);
/* An action of a demonstrator, the world's stop string included. */
void gr_dialog_act(gr_dialog* d, const gr_world* world, const char* action, int n_action);

/* The text of an answer without what ends it. At most cap - 1 bytes and a terminator; returns the
 * bytes written. */
int gr_dialog_text(const gr_dialog* d, const int32_t* token, int n, char* text, int cap);
/* What is heard of an action: its text without special tokens, up to the stop string. An end
 * token stands for the world's own. At most cap - 1 bytes and a terminator; returns the bytes
 * written. */
int gr_dialog_hear(const gr_dialog* d, const gr_world* world, const char* stop,
                   const int32_t* token, int n, char* text, int cap);
/* Where the model ends an action: without a chat format at `stop`, which is the world's, or
 * that of what stands between model and world. */
void gr_dialog_stop(const gr_dialog* d, const char* stop, gr_request* r);
