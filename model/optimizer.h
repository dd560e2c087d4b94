/* optimizer.h - AdamW over the flat buffers. Level 3. */
#pragma once
#include "model/weights.h"

typedef enum gr_schedule { GR_CONSTANT, GR_LINEAR, GR_COSINE } gr_schedule;

typedef struct gr_optimizer_settings {
    double lr, beta1, beta2, eps, weight_decay;
    double grad_clip;     /* global norm; 0: off */
    gr_schedule schedule; /* of the rate after warm-up, over `progress` in [0, 1] of the run */
    double final_ratio;   /* rate at the end / lr */
    int64_t warmup_steps;
} gr_optimizer_settings;

typedef struct gr_optimizer {
    gr_weights* w;      /* borrowed */
    void *grad, *m, *v; /* (n_params) acc */
    double* norm_sq;    /* device */
    int64_t step;       /* updates done */
} gr_optimizer;

void gr_optimizer_layout(gr_optimizer* o, gr_weights* w, gr_arena* device);
void gr_optimizer_reset(gr_optimizer* o); /* moments and step to 0 */
void gr_optimizer_zero_grad(gr_optimizer* o);
double gr_optimizer_rate(const gr_optimizer_settings* s, int64_t step, double progress);
/* Norm, clip, step, publish. A non-finite norm changes nothing and sets *skipped. */
GR_MUST_CHECK gr_status gr_optimizer_step(gr_optimizer* o, const gr_optimizer_settings* s,
                                          double progress, double* grad_norm, double* lr,
                                          bool* skipped);
