/* env.h - the contract of a world, and the handles through which the scheduler sees every world.
 *
 * Level 1. A world is text in, text out. In-process worlds are plain C with their whole state in
 * one fixed-size block (generator included), so a fork is a memcpy; other worlds live in processes
 * behind envs/protocol.h. No tensors, no tokens, no threads here. */
#pragma once
#include "host/setting.h"

#define GR_SIGNALS    8     /* most named numbers a world reports per step */
#define GR_ACTION_MAX 16383 /* highest action_cap */
/* Bytes of a model's turn that are read: the longest action and what may stand around it. */
#define GR_TURN_MAX (GR_ACTION_MAX + 4097)

/* Tasks of different splits never overlap, except that warm-start demonstrations may use training
 * maps of another difficulty. */
typedef enum gr_split { GR_TRAIN, GR_TEST, GR_WARMSTART } gr_split;
typedef enum gr_end { GR_RUNNING, GR_END_TERMINAL, GR_END_TIME_LIMIT } gr_end;

/* What a reset or a step answers. */
typedef struct gr_obs {
    char* text; /* at most gr_world.obs_cap bytes and a terminator; of whoever made the struct */
    int n_text;
    double reward; /* of this step */
    bool success;  /* of the episode so far; is not the reward */
    bool valid;    /* the action was understood */
    gr_end end;
    double signal[GR_SIGNALS]; /* named by gr_world.signal; what a heuristic scorer may weigh */
    uint64_t hash;             /* of the state, without random stream and turn counter */
} gr_obs;

/* Errors cost only their own trajectory; they are counted by class. */
typedef enum gr_env_error {
    GR_ENV_OK,
    GR_ENV_TIMEOUT,  /* no answer within the deadline */
    GR_ENV_CRASH,    /* the process or connection ended */
    GR_ENV_PROTOCOL, /* an answer that is not one */
    GR_ENV_REFUSED,  /* the world itself reports an error */
    GR_N_ENV_ERRORS
} gr_env_error;
const char* gr_env_error_name(gr_env_error error); /* "timeout"; of GR_ENV_OK "ok" */

typedef struct gr_async gr_async;
typedef struct gr_world gr_world;
struct gr_world {
    const char* name;      /* value of env.name */
    const gr_block* block; /* its settings */
    const char* signal[GR_SIGNALS];
    int n_signals;
    const char* prompt; /* text before the first observation; "" if none */
    const char* stop;   /* text that ends an action, part of it */
    int action_cap;     /* most bytes of an action; of a longer one a world sees one byte more */
    int obs_cap;        /* most bytes of an observation: buffers are made for it once */
    /* `settings` is the filled struct of `block`; it outlives the world. */
    gr_status (*open)(void** self, const void* settings);
    void (*close)(void* self);
    /* Puts facts that only the opened world knows (signals, prompt, stop, caps) into `facts`, the
     * copy of this struct that gr_envs_world returns. Their strings live as long as self. NULL:
     * none. */
    void (*describe)(void* self, gr_world* facts);
    int64_t (*n_tasks)(void* self, gr_split split);
    int (*horizon)(void* self); /* most turns of an episode */
    size_t (*state_bytes)(void* self);
    /* key 0: the stream the reference implementation has for this task; else this key's stream. */
    void (*reset)(void* self, void* state, gr_split split, int64_t task, uint64_t key, gr_obs* out);
    void (*step)(void* self, void* state, const char* action, int n_action, gr_obs* out);
    /* dst becomes src with its own random stream; key 0 keeps src's stream (a fork's child 0). */
    void (*fork)(void* self, void* dst, const void* src, uint64_t key);
    /* The next action of a (noisy) demonstrator for warm starts, stop text included; NULL: none.
     * `key` belongs to the episode (which demonstrator) and `turn` to the step; the world's own
     * settings say how good demonstrators are. Returns its length in bytes. */
    int (*demonstrate)(void* self, const void* state, uint64_t key, int turn, char* action,
                       int cap);
    /* What the demonstrator is after in this state, a word or two; NULL: "goal". Returns its length. */
    int (*subgoal)(void* self, const void* state, char* text, int cap);
    const gr_async* async; /* NULL: in process */
};

/* A world that answers later, because it lives in other processes: these take the place of
 * state_bytes, reset, step and fork. Handles are the caller's small numbers. */
struct gr_async {
    void (*reset)(void* self, int handle, gr_split split, int64_t task, uint64_t key);
    void (*step)(void* self, int handle, const char* action, int n_action);
    void (*fork)(void* self, int dst, int src, uint64_t key);
    void (*release)(void* self, int handle); /* an answer still to come is dropped */
    /* How much of what judges a training task in the end is met by the states of n idle handles, in
     * [0, 1]; NaN: it could not be found out. The states stay as they are. Returns when all is
     * known. NULL: the world cannot say. */
    void (*judge)(void* self, const int* handle, int n, double* out);
    /* The handle of the next answer, or -1: none is ready, or with wait none is in flight. *obs is
     * valid until the next call; NULL on error. */
    int (*poll)(void* self, bool wait, gr_env_error* error, const gr_obs** obs);
};

extern const gr_world* const gr_worlds[]; /* NULL-terminated: the list of worlds */
const gr_world* gr_world_find(const char* name);

/* ---- handles: the asynchronous view ---------------------------------------------------------- */

typedef struct gr_env_reply {
    uint64_t tag;
    int handle;
    gr_env_error error;
    const gr_obs* obs; /* valid until the next call; zero and without text on error */
} gr_env_reply;

typedef struct gr_envs gr_envs;

GR_MUST_CHECK gr_status gr_envs_open(gr_envs** out, const gr_world* world, const void* settings,
                                     int max_handles);
void gr_envs_close(gr_envs* e);
int64_t gr_envs_n_tasks(gr_envs* e, gr_split split);
int gr_envs_horizon(gr_envs* e);
const gr_world* gr_envs_world(const gr_envs* e); /* with the facts known since it was opened */

/* Every reset and step gives exactly one reply, of in-process worlds at once. -1: no free handle. */
int gr_envs_reset(gr_envs* e, gr_split split, int64_t task, uint64_t key, uint64_t tag);
void gr_envs_step(gr_envs* e, int handle, const char* action, int n_action, uint64_t tag);
/* Copies a handle that has no step in flight; a world that cannot fork replays its actions. */
int gr_envs_fork(gr_envs* e, int handle, uint64_t key);
void gr_envs_free(gr_envs* e, int handle); /* a reply still to come is dropped */
/* gr_async.judge; only of worlds that have it. */
void gr_envs_judge(gr_envs* e, const int* handle, int n, double* out);
/* False when no reply is ready; with wait, blocks until one is or nothing is in flight. */
bool gr_envs_poll(gr_envs* e, gr_env_reply* out, bool wait);
int gr_envs_in_flight(const gr_envs* e);
int gr_envs_free_handles(const gr_envs* e);
/* In-process worlds: the state behind a handle, for demonstrations and drawings; else NULL. */
void* gr_envs_state(gr_envs* e, int handle);
void* gr_envs_self(gr_envs* e);
