/* gpu_plan.h - what training a model takes on one GPU of a given size. Level 7.
 *
 * Arithmetic from sizes alone: no device is asked, none need be there. Weights and activations are
 * bf16. Two thirds of the memory are states, so the plan compares ways to keep them (bytes per
 * parameter; the first is how every device keeps them today, but for the packed copies):
 *
 *     weights + gradient + the rest
 *       2 + 4 + 12   fp32 master, moments and gradient
 *       2 + 2 + 12   the same with a bf16 gradient
 *       2 + 2 + 10   the master split: 16 more bits beside the bf16 weight make it exact
 *       2 + 4 +  6   split master, bf16 moments rounded stochastically
 *       2 + 2 +  6   the same with a bf16 gradient
 *
 * Sampling and updating take turns, so that KV pages share their place with gradient and
 * activations. */
#pragma once
#include "model/config.h"

typedef struct gr_gpu_request {
    int64_t card_bytes;
    int64_t microbatch_tokens, kv_tokens; /* what the configuration asks for */
    bool recompute;                       /* keep layer inputs only */
    bool reference;                       /* a second, frozen model for the KL */
} gr_gpu_request;

#define GR_GPU_STATES 5
typedef struct gr_gpu_states {
    const char* name;
    int weight, gradient, rest; /* bytes per parameter */
    int64_t states, total;      /* bytes; total: with the larger of sampling and updating */
    int64_t kv_tokens;          /* most that fit beside what always stays; 0: none */
    bool fits;
} gr_gpu_states;

typedef struct gr_gpu_plan {
    int64_t n_params;
    int64_t usable;            /* bytes of the card but for what driver and libraries take */
    int64_t reference;         /* bytes */
    int64_t token;             /* bytes of activations of a token */
    int64_t activations, head; /* bytes of a micro-batch; of one block of logits */
    int64_t kv_token;          /* bytes of a token's keys and values */
    gr_gpu_states way[GR_GPU_STATES];
    int chosen; /* the first that fits; -1: none */
} gr_gpu_plan;

int64_t gr_model_params(const gr_model_config* m);
void gr_gpu_plan_make(gr_gpu_plan* p, const gr_model_config* m, const gr_gpu_request* r);
void gr_gpu_plan_log(const gr_gpu_plan* p, const gr_gpu_request* r);
