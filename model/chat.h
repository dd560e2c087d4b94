/* chat.h - conversations as their models write them. Level 1.
 *
 * A format renders what is appended to a conversation at once: the opening, or everything
 * between two turns of the assistant. Nothing that has been rendered is ever rendered again,
 * and turns of the assistant stay as they were sampled, thoughts included. Where a model's
 * own Jinja template rewrites earlier turns (Qwen3 drops their thoughts), a format does not;
 * in all else the texts are equal.
 *
 *     open  <|im_start|>system .. <|im_start|>user .. <|im_start|>assistant\n
 *                                                         the model samples ..<|im_end|>
 *     next  \n<|im_start|>user .. <|im_start|>assistant\n
 *                                                         the model samples ..<|im_end|>
 *
 * What people and worlds say is plain text: it cannot spell a special token. */
#pragma once
#include "model/tokenizer.h"

typedef enum gr_role { GR_SYSTEM, GR_USER, GR_TOOL } gr_role;

typedef struct gr_message {
    gr_role role;
    gr_string text;
} gr_message;

typedef struct gr_chat_part {
    bool first;                /* a conversation begins */
    bool unfinished;           /* the assistant was cut off before the token that ends its turn */
    const gr_message* message; /* (n); a system message comes first in the first part or nowhere */
    int n;
    const char* tools; /* first part: JSON array of the functions the model may call; NULL: none */
    const char* date;  /* first part: "today", where a format says it; NULL: the format's own */
    bool answer;       /* the assistant is to speak */
    bool no_think; /* its thoughts are closed before they begin, where a format knows thoughts */
} gr_chat_part;

typedef struct gr_chat_text gr_chat_text;
typedef struct gr_chat_format {
    const char* name;     /* value of model.chat */
    const char* bos;      /* token a conversation begins with; NULL: none */
    const char* needs[6]; /* added tokens without which a vocabulary does not fit; up to a NULL */
    const char* end[3];   /* tokens that end an answer; the first is the one of the template */
    bool tools, thinks;   /* knows functions; thoughts */
    const char* reply[2]; /* what stands around an answer that others wrote */
    /* XXH64 of the Jinja templates that it equals, white space left out; up to a 0. */
    uint64_t known[8];
    void (*render)(gr_chat_text* out, const gr_chat_part* p);
} gr_chat_format;

extern const gr_chat_format* const gr_chat_formats[]; /* NULL-terminated; a new one adds its line */
const gr_chat_format* gr_chat_find(const char* name);
/* The format of a Jinja template. An unknown one is an error that says how to add it;
 * `where` names the file. */
GR_MUST_CHECK gr_status gr_chat_of_template(const gr_chat_format** out, const char* where,
                                            const char* text, size_t n);
/* The same for the template in a folder's chat_template.jinja or tokenizer_config.json. */
GR_MUST_CHECK gr_status gr_chat_of_folder(const gr_chat_format** out, const char* folder);
/* Has the vocabulary what the format writes? */
GR_MUST_CHECK gr_status gr_chat_check(const gr_chat_format* f, const gr_tokenizer* t);
GR_MUST_CHECK gr_status gr_chat_check_tools(const gr_chat_format* f, const char* tools);

/* ---- rendering
 * --------------------------------------------------------------------------------- Text is
 * gathered and encoded up to the next added token, so that words which meet are read as in
 * one text. With bytes as tokens everything is spelled. */

struct gr_chat_text {
    const gr_tokenizer* tokenizer; /* borrowed; NULL: bytes */
    int32_t* token;                /* (n) what was rendered; owned */
    int n;
    int64_t token_cap;
    char* text; /* gathered and not yet encoded; owned */
    int64_t n_text, text_cap;
};

/* Into out->token, from its start. */
void gr_chat_render(const gr_chat_format* f, gr_chat_text* out, const gr_chat_part* p);
/* An answer that was not sampled but is to be learnt: a demonstration. Markup, as it would be
 * sampled. */
void gr_chat_reply(const gr_chat_format* f, gr_chat_text* out, const char* text, size_t n);
void gr_chat_text_free(gr_chat_text* out);
