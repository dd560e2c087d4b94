/* step.h - what one training step did, in numbers. Level 7; private to the training loop. */
#pragma once
#include "host/train.h"

typedef struct gr_step {
    double begin_s, train_s, ckpt_s; /* ckpt_s: of the step before, known only after its line */
    gr_rollout_times before;         /* rollout clocks at the start of the step */
    gr_engine_counts counts;         /* engine counters at the start of the step */
    int64_t judge_prefill;           /* the same of a judge with an engine of its own */
    int64_t n_groups;
    bool updated;
    /* sums over the groups of the step, discarded ones included in the ledger part */
    int64_t groups, solve_all, solve_none, solve_partial, idle;
    int64_t nodes, leaves, inner, children, depth, turns, turns_max, truncated, valid;
    int64_t env_turns, gen_tokens, refiner_tokens, critic_tokens, scorer_calls, unanswered;
    int64_t informative, discarded_tokens;
    int64_t rewound, demos; /* attempts that were taken back; demonstrations that stayed */
    int64_t errors[GR_N_ENV_ERRORS];
    int64_t plans, switches, well_formed; /* turns with the interface of HiPER */
    double reward_weight, reward, reward_sq;
    /* of the updates */
    gr_loss_sums loss;
    int64_t minibatches, pieces;
    double parity_max, parity_sum, parity_rows; /* first minibatch only */
    int64_t loss_tokens, loss_tokens_flat, tokens, tokens_flat;
    double grad_norm, lr;
    gr_value_sums value; /* without a value model all 0 */
    double value_grad_norm, value_lr;
} gr_step;

void gr_step_begin(gr_step* st, const gr_run* run);  /* keeps ckpt_s */
void gr_step_count(gr_step* st, const gr_credit* c); /* a group that stays */
void gr_step_count_plans(gr_step* st, const gr_hiper_settings* s, const gr_tree* t);
void gr_step_discard(gr_step* st, const gr_credit* c); /* a group that is resampled */
void gr_step_add_loss(gr_step* st, const gr_loss_sums* sums, const gr_pack* pack, bool first);
void gr_step_add_values(gr_step* st, const gr_value_sums* sums);
void gr_step_charge(gr_run* run, const gr_step* st); /* adds the step to the run's ledger */
void gr_step_metrics(const gr_run* run, const gr_step* st, gr_metrics* m);
/* The trees of a minibatch whose loss or gradient is not finite, into <run>/skipped-<step>.jsonl. */
GR_MUST_CHECK gr_status gr_step_write_aside(gr_run* run, int n_members);
