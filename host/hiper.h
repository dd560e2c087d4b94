/* hiper.h - the plan-and-act interface of HiPER (arXiv:2602.16165) between a model and a world. Level 1.
 *
 *     <switch>KEEP or SWITCH</switch><subgoal>what to reach now</subgoal><action>for the world</action>
 *
 * A turn is these three blocks and ends with the last one's tag. The world gets the action alone; what it
 * answers is shown with the present subgoal, which is what the model wrote in its last turn, "None" before
 * the first. hiper.tags = short has the same blocks in fewer bytes, for small byte models:
 *
 *     <s>K or S</s><g>...</g><a>...</a>
 *
 * What is missing or wrong has a meaning, too (gr_plan_parse): a policy that learns writes anything.
 * One block of settings serves the interface and the estimator that goes with it (advantage/hae.c). */
#pragma once
#include "host/setting.h"

enum { GR_TAGS_FULL, GR_TAGS_SHORT };
enum { GR_SWITCH_TERM_HEAD, GR_SWITCH_GAIN };
enum { GR_KEEP_NORMALISED, GR_KEEP_FIXED };

typedef struct gr_hiper_settings {
    int tags;
    bool prompt;
    /* of the estimator hae */
    int switch_adv, keep;
    double gamma, lambda_low, lambda_high;
    double keep_penalty, consistency_penalty, invalid_penalty;
    bool bootstrap, normalise;
} gr_hiper_settings;
extern const gr_block gr_hiper_block;

/* Kinds of bytes, as bits. */
enum { GR_KIND_ACTION = 1, GR_KIND_SUBGOAL = 2, GR_KIND_SWITCH = 4 };

typedef struct gr_span {
    int begin, end; /* bytes; begin < 0: there is no such block */
} gr_span;

typedef struct gr_plan {
    gr_span switch_block, subgoal_block, action_block; /* with their tags */
    gr_span word, subgoal, action;                     /* what stands between, blanks trimmed */
    bool switched; /* the word is neither KEEP nor missing nor empty */
    bool valid;    /* three blocks, a legal word, no Chinese character in the text */
} gr_plan;

/* The first opening tag of each block counts, with the first closing one after it. Without a block of
 * action the whole text is one, so that the world sees it (and the policy is told by its reward). */
void gr_plan_parse(const char* text, int n, int tags, gr_plan* out);
int gr_plan_kinds(const gr_plan* p, int byte); /* of the text; 0: of none */
/* The subgoal that stands after a turn: what was written; "None" without a switch block or a subgoal
 * block; "" after a word that is none of the two. Not terminated. */
const char* gr_plan_subgoal(const gr_plan* p, const char* text, int tags, int* n);

const char* gr_plan_stop(int tags);                /* text that ends a turn */
const char* gr_plan_word(int tags, bool switched); /* KEEP, SWITCH */

/* All three write at most cap - 1 bytes and a terminator and return the bytes written. */
/* What the world gets: the action and the world's own stop text; of a text without action all of it. */
int gr_plan_action(const gr_plan* p, const char* text, int n, const char* stop, char* out, int cap);
/* What the model sees of an observation; text NULL: the first, with instructions if they are set. */
int gr_plan_show(const gr_hiper_settings* s, const char* text, int n, const char* obs, int n_obs,
                 char* out, int cap);
/* A turn as a demonstrator writes it; `action` with or without the world's stop text. */
int gr_plan_write(int tags, bool switched, const char* subgoal, const char* action, int n_action,
                  const char* stop, char* out, int cap);
