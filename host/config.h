/* config.h - all settings of a run, checked before any work. Level 1.
 *
 * One JSON file with the sections below; any key is overridable as section.key=value. Tables
 * (host/setting.h) drive parse, check, print and help. Methods and worlds bring blocks of their own,
 * registered by the commands before parsing; blocks whose method is not chosen are inactive: they may
 * stay in the file, but a command-line key into one is an error. Unknown keys name the nearest. */
#pragma once
#include <stdio.h>

#include "host/setting.h"

typedef struct gr_config_run {
    char name[GR_TEXT_MAX], dir[GR_TEXT_MAX];
    int64_t seed, steps;
    bool resume;
} gr_config_run;
typedef struct gr_config_device {
    char name[GR_TEXT_MAX];
    int matmul, attention;
    int64_t threads;
} gr_config_device;
typedef struct gr_config_model {
    char path[GR_TEXT_MAX], reference[GR_TEXT_MAX];
    int dtype;
    int64_t layers, width, heads, kv_heads, head_dim, mlp, vocab;
    double rope_theta, norm_eps;
    bool qkv_bias, qk_norm, tied, recompute;
    char chat[GR_TEXT_MAX];
    bool think;
} gr_config_model;
typedef struct gr_config_env {
    char name[GR_TEXT_MAX];
} gr_config_env;
typedef struct gr_config_rollout {
    char strategy[GR_TEXT_MAX];
    int64_t group, groups_per_step, tokens_per_step, max_turns, max_turn_tokens, max_context;
    int64_t max_tree_turns, max_live, max_rows, kv_pages, refill_max;
    int on_cap, refill, interface;
    double temperature, top_p, min_p;
    int64_t top_k;
} gr_config_rollout;
typedef struct gr_config_scorer {
    char name[GR_TEXT_MAX];
} gr_config_scorer;
typedef struct gr_config_advantage {
    char estimator[GR_TEXT_MAX];
    double eps;
} gr_config_advantage;
typedef struct gr_config_loss {
    double clip_low, clip_high, dual_clip, kl_coef, entropy_coef;
    int kl, weighting, aggregation;
    int64_t length;
    bool count_idle_groups;
} gr_config_loss;
typedef struct gr_config_optimizer {
    double lr, beta1, beta2, eps, weight_decay, grad_clip, final_ratio;
    int schedule;
    int64_t warmup_steps, minibatches, epochs, microbatch_tokens, max_skipped;
} gr_config_optimizer;
typedef struct gr_config_warmstart {
    int64_t steps, batch, warmup_steps;
    double lr, final_ratio;
    char load[GR_TEXT_MAX]; /* weights to start from instead of training them */
} gr_config_warmstart;
typedef struct gr_config_budget {
    int64_t turns, tokens;
    double minutes;
} gr_config_budget;
typedef struct gr_config_eval {
    int64_t every, tasks, samples;
    double every_share; /* of the budget, instead of every n steps */
    double temperature;
    bool greedy;
} gr_config_eval;
typedef struct gr_config_checkpoint {
    int64_t every, keep;
    bool best;
} gr_config_checkpoint;
typedef struct gr_config_log {
    int64_t trees_every, watchdog_s;
    bool quiet, json;
} gr_config_log;

enum { GR_INTERFACE_PLAIN, GR_INTERFACE_HIPER };
enum { GR_ON_CAP_INVALID, GR_ON_CAP_END };
enum { GR_REFILL_NONE, GR_REFILL_RESAMPLE, GR_REFILL_EXTEND };
enum { GR_WEIGHT_PER_LEAF, GR_WEIGHT_SPLIT, GR_WEIGHT_INV_SQRT, GR_WEIGHT_ONCE_MEAN };
enum { GR_AGG_SEQ_MEAN_TOKEN_MEAN, GR_AGG_TOKEN_MEAN, GR_AGG_CONSTANT };

#define GR_MAX_BLOCKS 48
typedef struct gr_config {
    gr_config_run run;
    gr_config_device device;
    gr_config_model model;
    gr_config_env env;
    gr_config_rollout rollout;
    gr_config_scorer scorer;
    gr_config_advantage advantage;
    gr_config_loss loss;
    gr_config_optimizer optimizer;
    gr_config_warmstart warmstart;
    gr_config_budget budget;
    gr_config_eval eval;
    gr_config_checkpoint checkpoint;
    gr_config_log log;
    /* blocks in order of registration, core ones first */
    struct {
        const gr_block* block;
        void* value; /* struct of the block; owned for registered blocks */
    } block[GR_MAX_BLOCKS];
    int n_blocks;
} gr_config;

void gr_config_init(gr_config* c);                        /* core blocks with defaults */
void gr_config_register(gr_config* c, const gr_block* b); /* a second time is ignored */
void gr_config_free(gr_config* c);

/* File, then overrides ("section.key=value"), then checks of ranges and of fields against each other.
 * path NULL: defaults and overrides only. Errors name file (or command line), key and reason. */
GR_MUST_CHECK gr_status gr_config_load(gr_config* c, const char* path, int n_overrides,
                                       const char* const* overrides);
/* The same from memory; `name` stands for the file in errors. For tests and the fuzzer. */
GR_MUST_CHECK gr_status gr_config_parse(gr_config* c, const char* name, const char* json,
                                        size_t n_bytes, int n_overrides,
                                        const char* const* overrides);
/* What holds for training only: no cut distributions, an end, a baseline. Eval and generate skip it. */
GR_MUST_CHECK gr_status gr_config_check_train(const gr_config* c);
const void* gr_config_block(const gr_config* c, const char* name); /* a registered block's struct */
bool gr_config_active(const gr_config* c, const gr_block* b);

/* Resolved settings as JSON (inactive blocks left out), malloced: the caller frees it. Loading it again
 * gives the same settings. */
char* gr_config_print(const gr_config* c);
/* Hash of what decides the results of a run: everything but run.dir, run.name, run.resume, threads,
 * log, checkpoint.keep. A resume compares it. */
uint64_t gr_config_hash(const gr_config* c);
enum { GR_HELP_WIDTH = 98 }; /* columns of what the next function prints */
/* All keys with ranges and units; section NULL: all sections. */
void gr_config_help(const gr_config* c, const char* section, FILE* out);
