/* dialog.h - how a world's texts become tokens, and a model's tokens an action. Level 4.
 *
 * Prompt, observations and actions follow each other as they are, behind the token that the
 * vocabulary puts in front of texts. Every text is encoded once, when it is appended;
 * sampled tokens never are. */
#pragma once
#include "envs/env.h"
#include "host/arena.h"
#include "model/engine.h"

typedef struct gr_dialog {
    const gr_tokenizer* tokenizer; /* borrowed; NULL: bytes */
    int32_t* token;                /* what the last call rendered; owned */
    int64_t cap;
} gr_dialog;

void gr_dialog_init(gr_dialog* d, const gr_tokenizer* tokenizer);
void gr_dialog_free(gr_dialog* d);

/* The tokens of each are left in d->token; the functions return their number. */
int gr_dialog_open(gr_dialog* d, const gr_world* world, const char* obs, int n_obs); /* root */
int gr_dialog_observe(gr_dialog* d, const char* obs, int n_obs);
int gr_dialog_act(gr_dialog* d, const char* action, int n_action); /* of a demonstrator */

/* What is heard of an action: its text up to the stop string, without special tokens. At most cap - 1 bytes and a terminator; returns the bytes written. */
int gr_dialog_hear(const gr_dialog* d, const char* stop, const int32_t* token, int n, char* text,
                   int cap);
/* Where the model ends an action: at a text, the world's or the interface's, or at an end token. */
void gr_dialog_stop(const gr_dialog* d, const char* stop, gr_request* r);
