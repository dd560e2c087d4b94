/* protocol.h - what is said between grove and a world in another process, version 1. Level 1.
 *
 * The world reads requests from its standard input and writes answers to its standard output, each
 * as one frame: the length in bytes (4 bytes, big endian), then so many bytes of one JSON object in
 * UTF-8. It answers every request, in the order they came, and flushes each answer before it reads
 * on: what is owed first is what a deadline or a crash is blamed on. Standard error is free for its
 * log. It ends when its input ends. envs/example_world.py is a complete world.
 *
 *   {"id":1,"op":"hello","version":1,"text_max":131071}
 *     -> {"id":1,"version":1,"prompt":"","stop":"\n","action_cap":16,"horizon":20,
 *         "signals":["progress"],"fork":true,"hash":true,"text_max":4000}
 *   {"id":2,"op":"tasks"}
 *     -> {"id":2,"train":1000,"test":100,"warmstart":0}
 *   {"id":3,"op":"reset","episode":1,"split":"train","task":17,"key":"00c0ffee00c0ffee"}
 *     -> {"id":3,"text":"...","reward":0,"success":false,"valid":true,"end":"running",
 *         "signals":[0.25],"hash":"0123456789abcdef"}
 *   {"id":4,"op":"step","episode":1,"action":"left\n"}
 *     -> as reset
 *   {"id":5,"op":"fork","episode":1,"to":2,"key":"0000000000000000"}
 *     -> {"id":5}
 *   {"id":6,"op":"close","episode":2}
 *     -> {"id":6}
 *   anything the world cannot do
 *     -> {"id":7,"error":"no such task"}
 *
 * Fields mean what envs/env.h says. A process holds many episodes; grove numbers them. "end" is
 * running, terminal or time_limit; "signals" has one number for each name of hello. Keys and hashes
 * are 64-bit numbers in hexadecimal, because JSON numbers lose bits. No text holds U+0000; bytes of
 * an action that are no UTF-8 text come as U+FFFD. Fields not named here are ignored.
 *
 * The text of an observation has at most text_max bytes: grove says what it takes at most, and a
 * world that says what it needs itself, which it may leave out, saves memory and is held to it. A
 * prompt has at most 16383 bytes.
 *
 * A world must be repeatable: split, task, key and actions decide every answer. That is how an
 * episode outlives its process, and how a world without "fork" is forked: its actions are played
 * again on a fresh episode, and answers other than the first time's are an error. (Such a fork
 * cannot have a random stream of its own.) A world without "hash" is hashed by its text. */
#pragma once
#include "envs/env.h"

enum {
    GR_PROTOCOL_VERSION = 1,
    GR_FRAME_HEAD = 4,
    GR_FRAME_MAX = 1 << 20, /* most bytes of one answer */
    /* Highest text_max: a frame holds it even where JSON writes six bytes for each. */
    GR_TEXT_LIMIT = (1 << 17) - 1,
    GR_REQUEST_MAX = 6 * (GR_ACTION_MAX + 1) + 512, /* frame of the longest request */
    GR_PROMPT_MAX = 1 << 14,
    GR_NAME_MAX = 64, /* stop text and names of signals */
};

typedef enum gr_op {
    GR_OP_HELLO,
    GR_OP_TASKS,
    GR_OP_RESET,
    GR_OP_STEP,
    GR_OP_FORK,
    GR_OP_CLOSE
} gr_op;

/* ---- requests -------------------------------------------------------------------------------- */

typedef struct gr_request_frame {
    gr_op op;
    int64_t id, episode, to;
    gr_split split;
    int64_t task;
    uint64_t key;
    const char* action;
    int n_action;
} gr_request_frame;

/* Writes the frame of a request; returns its bytes. */
size_t gr_protocol_write(const gr_request_frame* r, char frame[GR_REQUEST_MAX]);

/* ---- answers: pure functions of untrusted bytes ---------------------------------------------- */

typedef enum gr_frame_state { GR_FRAME_PARTIAL, GR_FRAME_WHOLE, GR_FRAME_BAD } gr_frame_state;

/* Is there a frame at the start of n bytes? WHOLE: its body is the n_body bytes at GR_FRAME_HEAD.
 * BAD: its length is 0 or above GR_FRAME_MAX, which nothing that follows can mend. */
gr_frame_state gr_protocol_frame(const void* bytes, size_t n, size_t* n_body);

typedef struct gr_hello {
    char prompt[GR_PROMPT_MAX], stop[GR_NAME_MAX];
    char signal[GR_SIGNALS][GR_NAME_MAX];
    int n_signals, action_cap, text_max, horizon;
    bool fork, hash;
} gr_hello;

typedef enum gr_answer_kind {
    GR_ANSWER_GOOD,
    GR_ANSWER_REFUSED,  /* the world reports an error */
    GR_ANSWER_WRONG,    /* its fields are not what the request asks for */
    GR_ANSWER_NONSENSE, /* no JSON object, or not the answer that is due */
} gr_answer_kind;

typedef struct gr_answer {
    char reason[256]; /* unless good, for people */
    gr_hello hello;   /* of GR_OP_HELLO, zero elsewhere */
    int64_t n_tasks[3];
    gr_obs obs; /* its text is the one below */
    char text[GR_TEXT_LIMIT + 1];
} gr_answer;

/* Reads the body of the answer to request `id`, an `op`. `hello` (NULL for hello itself) says which
 * signals, how long a text and whether a hash are due. */
gr_answer_kind gr_protocol_read(const char* body, size_t n, gr_op op, int64_t id,
                                const gr_hello* hello, gr_answer* out);
