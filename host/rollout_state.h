/* rollout_state.h - what the files of the rollout loop know of each other. Level 6.
 *
 * rollout.c has the loop, turns and rounds, rollout_refine.c steps that are made again,
 * rollout_judge.c questions to a model. */
#pragma once
#include "host/rollout.h"

enum { KEY_ENV = 0x656e76, KEY_EXPERT = 0x657870657274 };

typedef enum stage {
    STAGE_WAITING,
    STAGE_RESET,
    STAGE_GROWING,
    STAGE_JUDGING, /* between two turns: a round waits for its scores */
    STAGE_DONE
} stage;

/* One tree while it grows. */
typedef struct grower {
    gr_tree* tree;
    const gr_rollout_task* task;
    stage stage;
    int running; /* branches that are sampling or stepping */
    int round;
    /* the round in progress: nodes whose scores it wants, and those a model is asked about; owned,
     * kept from tree to tree */
    int32_t *wanted, *question;
    int64_t wanted_cap, question_cap;
    int n_wanted, n_questions, n_asked, n_answered;
} grower;

struct gr_rollout {
    gr_engine* engine; /* borrowed */
    gr_envs* envs;     /* borrowed */
    uint64_t seed;
    gr_rollout_times times;
    const char* volatile phase;
    /* of the run in progress */
    const gr_rollout_settings* s;
    int horizon;
    grower* grower;
    int64_t grower_cap;
    int32_t* path;
    int64_t path_cap;
    double* score;
    int64_t score_cap;
    uint64_t* uid;
    int64_t uid_cap;
    double* unsampled; /* zeros: log-probs of what no model sampled */
    int64_t unsampled_cap;
    gr_engine* judge; /* that of the policy, where it judges itself */
    int n_judging;    /* questions that the judge has not answered */
    gr_dialog dialog, judge_dialog;
    char* answer;
    int64_t answer_cap;
    char text[GR_TURN_MAX]; /* what the model said */
    char* shown;            /* (shown_cap): an observation and what is told with it */
    int shown_cap;
};

/* ---- rollout.c ------------------------------------------------------------------------------- */

/* Names the tree and the node that an answer belongs to. */
uint64_t gr_rollout_tag(const gr_rollout* r, const grower* g, int node);
/* Tokens up to the end of `node` into r->path, with room for `more`; returns their number. */
int gr_rollout_path(gr_rollout* r, const gr_tree* t, int node, int more);
void gr_rollout_release(gr_rollout* r, gr_tree* t, int node); /* environment handle and KV pages */
void gr_rollout_act(gr_rollout* r, grower* g, int node);      /* its action goes to the world */

/* ---- rollout_refine.c ------------------------------------------------------------------------ */

/* The path to the end of the node's action, and `more` behind it, into r->path; returns its length.
 * The node's observation is not in it: who is told something there reads it as a part of that. */
int gr_rollout_behind_action(gr_rollout* r, const gr_tree* t, int node, const gr_chat_text* more);
/* A sequence of its own that holds what the node has in pages of such a context, or of the clean
 * one of n_context tokens that ends before the action. */
int gr_rollout_open_behind(gr_rollout* r, const gr_tree* t, int node, int n_context);
/* Carries out GR_REFINE. Nothing happens where the tree has no turn left for another attempt or the
 * refiner's context no token. */
void gr_rollout_refine(gr_rollout* r, grower* g, const gr_decision* d);
/* The refiner's action is in the tree: what was sampled behind a critique goes on behind the clean
 * path. */
void gr_rollout_on_refined(gr_rollout* r, gr_tree* t, int node);
/* Whether a turn that starts from the end of `node` may still be taken back. */
bool gr_rollout_may_rewind(const gr_rollout* r, const gr_tree* t, int node);
/* `node` has been answered, so its own turn is final: rejected attempts at it let go of their
 * states, and so does the node they all started from. */
void gr_rollout_settle(gr_rollout* r, gr_tree* t, int node);
bool gr_rollout_tells(const gr_rollout* r); /* the refiner reads observations once more */

/* ---- rollout_judge.c ------------------------------------------------------------------------- */

/* Whether the scorer asks a model, and the strategy the scorer. */
bool gr_rollout_asks(const gr_rollout* r);
/* Asks as many of the round's questions as there is room for. True: all are answered. */
bool gr_rollout_judge(gr_rollout* r, grower* g);
bool gr_rollout_is_answer(const gr_reply* a);
void gr_rollout_on_answer(gr_rollout* r, const gr_reply* a);
