/* train.h - a run: every part in one place, and the loops over it. Level 7.
 *
 * run.c puts the parts together (memory plan, weights, world, engine), train.c is the training step on
 * one screen, warmstart.c the supervised start, evaluate.c held-out success. */
#pragma once
#include "host/critic.h"
#include "host/demo.h"
#include "host/judge_model.h"
#include "host/pack.h"
#include "host/record.h"
#include "host/rollout.h"
#include "model/objective.h"

typedef enum gr_run_mode { GR_RUN_TRAIN, GR_RUN_EVAL } gr_run_mode;

/* Bytes by lifetime; what `--dry-run` prints. */
typedef struct gr_memory_plan {
    size_t weights, optimizer, reference, kv_pool, decode, judge, train, value, host;
} gr_memory_plan;

typedef struct gr_run {
    const gr_config* config; /* borrowed */
    gr_run_mode mode;
    gr_tokenizer* tokenizer; /* of model.path; NULL: bytes */
    gr_dev dev;
    gr_arena host, device; /* own their blocks */
    gr_memory_plan plan;
    gr_weights weights;
    gr_weights reference; /* only with a KL term */
    gr_optimizer optimizer;
    gr_objective objective, reference_objective;
    gr_critic critic;     /* without heads: the estimator needs no values */
    gr_demos demos;       /* without settings: the strategy makes no demonstrations */
    gr_judge_model judge; /* without settings: the scorer asks no model */
    gr_engine engine;
    gr_envs* envs;
    gr_rollout* rollout;
    gr_rollout_settings train_settings;
    const gr_estimator* estimator;
    const void* estimator_settings;
    int n_heads; /* of the value model; 0: none */
    gr_loss_params loss;
    gr_optimizer_settings optimizer_settings;
    gr_train_state state;
    gr_run_log log;
    /* one step */
    gr_tree* tree; /* (tree_cap) */
    gr_credit* credit;
    gr_rollout_task* task;
    int64_t tree_cap, credit_cap, task_cap;
    gr_pack pack;
    const gr_credit** member; /* groups of one minibatch */
    int64_t member_cap;
} gr_run;

/* Core settings and the blocks of all worlds, strategies, scorers and estimators, with defaults. */
void gr_run_settings(gr_config* c);

/* The model's shape: of the folder or file, NULL or "": of the settings. */
GR_MUST_CHECK gr_status gr_run_shape(const gr_config* c, const char* weights_dir,
                                     gr_model_config* m);
/* Device, world, memory, parts; weights are initialised, not loaded. `weights_dir`: folder whose model
 * shape replaces the settings' (NULL: settings). plan_only: fills run->plan and stops before taking
 * memory. Close accepts whatever open left. */
GR_MUST_CHECK gr_status gr_run_open(gr_run* run, const gr_config* config, gr_run_mode mode,
                                    const char* weights_dir, bool plan_only);
void gr_run_close(gr_run* run);
/* Weights and moments of the value model, for checkpoints; NULL: none. */
static inline gr_optimizer* gr_run_critic(gr_run* run)
{
    return run->critic.n_heads > 0 ? &run->critic.optimizer : NULL;
}
void gr_run_describe(
    const gr_run* run); /* device, model, objective in words, memory plan; stderr */

/* Supervised learning on the world's demonstrations, before the first step. */
GR_MUST_CHECK gr_status gr_warmstart(gr_run* run);

typedef struct gr_eval_result {
    int64_t tasks, samples;                    /* samples per task */
    double success, success_low, success_high; /* mean over tasks and samples; 95 % interval */
    double ret, turns;
    double pass_at_k[2]; /* k = 1, samples: unbiased estimates over tasks */
    int64_t env_turns, gen_tokens;
    int64_t errors; /* episodes that the world lost; they count as failures */
} gr_eval_result;
/* Held-out tasks 0 .. tasks - 1, `samples` independent episodes each. */
GR_MUST_CHECK gr_status gr_evaluate(gr_run* run, gr_split split, int64_t tasks, int64_t samples,
                                    const gr_sampling* sampling, gr_eval_result* out);
/* Wilson interval of a proportion over n trials, 95 %. */
void gr_wilson(double p, double n, double* low, double* high);
/* Probability that k draws without replacement out of n, c of them solved, hold a solved one. */
double gr_pass_at(int64_t n, int64_t c, int64_t k);

/* Trains until steps or budget end, or until gr_train_stop was called; resumes from the run folder when
 * it holds a checkpoint and run.resume is set. Leaves a checkpoint and, at the end, `finished`. */
GR_MUST_CHECK gr_status gr_train(gr_run* run);
/* Makes n more steps in memory, writing nothing: for replays. The run holds a checkpoint's weights,
 * moments and state. */
GR_MUST_CHECK gr_status gr_train_again(gr_run* run, int64_t n);
void gr_train_stop(void); /* async-signal-safe: ends the step in progress with a checkpoint */
/* Share of the run that is done, in [0, 1]: the largest over steps and budgets. */
double gr_train_progress(const gr_run* run);
