/* rollout.h - grows the trees of one step: engine, world, strategy and scorer meet here. Level 6. */
#pragma once
#include "host/config.h"
#include "host/dialog.h"
#include "host/hiper.h"
#include "host/scorer/scorer.h"
#include "host/strategy/strategy.h"

/* The model that a scorer asks. What it answers depends on tree, node and weights alone. */
typedef struct gr_judge {
    gr_engine* engine; /* borrowed; NULL: that of the policy */
    gr_dialog_format dialog;
    gr_sampling sampling;
    int history; /* turns that it reads, or GR_HAS_READ: it answers behind the episode itself */
    int max_tokens;
    int64_t max_calls; /* a tree; 0: any */
} gr_judge;

typedef struct gr_rollout_settings {
    const gr_strategy* strategy;
    const void* strategy_settings;
    const gr_scorer* scorer;
    const void* scorer_settings;
    gr_judge judge; /* of scorers with questions */
    int group, max_turns, max_turn_tokens, max_context, on_cap;
    int64_t max_tree_turns;
    const gr_hiper_settings* plan; /* the interface of HiPER; NULL: plain text in and out */
    double progress;               /* share of the run that is done, for strategies that ask */
    gr_sampling sampling;
    gr_purpose purpose;
    gr_dialog_format dialog;
} gr_rollout_settings;

typedef struct gr_rollout_task {
    int64_t step;
    int slot, attempt;
    gr_split split;
    int64_t task;
    bool extend; /* keep the tree and open `group` more initial branches from its root */
} gr_rollout_task;

typedef struct gr_rollout_times {
    double gen_s, env_s, score_s;
} gr_rollout_times;

typedef struct gr_rollout gr_rollout;
GR_MUST_CHECK gr_status gr_rollout_open(gr_rollout** out, gr_engine* engine, gr_envs* envs,
                                        uint64_t run_seed);
void gr_rollout_close(gr_rollout* r);

/* Grows one finished tree per task, all of them in one continuous batch. tree[i] belongs to task[i] and
 * is reset here unless the task extends it. The result depends on (run seed, task, weights, settings)
 * only. Handles and pages are given back before return. */
GR_MUST_CHECK gr_status gr_rollout_run(gr_rollout* r, const gr_rollout_settings* s,
                                       const gr_rollout_task* task, int n, gr_tree* tree);
const gr_rollout_times* gr_rollout_time(const gr_rollout* r); /* since open */
/* What the loop is waiting for, in words, for the watchdog and progress line; any thread. */
const char* gr_rollout_phase(const gr_rollout* r);

/* The text that ends a turn. */
const char* gr_rollout_stop(const gr_rollout_settings* s, const gr_world* world);

/* uid of a root: hash of (run seed, purpose, step, slot, attempt). */
uint64_t gr_rollout_key(uint64_t run_seed, gr_purpose purpose, const gr_rollout_task* task);
