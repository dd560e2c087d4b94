/* judge_model.h - the model that a run's scorer asks. Level 6.5.
 *
 * The policy itself, or a model with weights, vocabulary and KV pages of its own, which never
 * learns. */
#pragma once
#include "host/record.h"
#include "host/rollout.h"
#include "host/scorer/judge.h"

typedef struct gr_judge_model {
    const gr_judge_settings* s; /* NULL: no model is asked */
    bool own;                   /* judge.model; else the policy judges itself */
    gr_model_config shape;      /* this and what follows: of its own */
    gr_tokenizer* tokenizer;
    gr_weights weights;
    gr_engine engine;
} gr_judge_model;

/* Reads shape, vocabulary and chat format; fills what rollouts have to know. `policy` is the
 * policy's format. */
GR_MUST_CHECK gr_status gr_judge_model_open(gr_judge_model* m, const gr_config* c,
                                            const gr_judge_settings* s,
                                            const gr_dialog_format* policy, gr_judge* out);
/* Weights and engine of its own, sized like the policy's engine. Two passes (arena.h). */
void gr_judge_model_layout(gr_judge_model* m, gr_dev* dev, const gr_engine_settings* policy,
                           gr_arena* host, gr_arena* device);
GR_MUST_CHECK gr_status gr_judge_model_load(gr_judge_model* m);
void gr_judge_model_close(gr_judge_model* m);
