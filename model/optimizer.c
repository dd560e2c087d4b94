/* optimizer.c - norm, clip, AdamW, new packed weights. */
#include "model/optimizer.h"

#include <math.h>

void gr_optimizer_layout(gr_optimizer* o, gr_weights* w, gr_arena* device)
{
    size_t n = (size_t)w->n_params;
    *o = (gr_optimizer){.w = w};
    o->grad = gr_arena_push(device, n, w->dev->acc_bytes);
    o->m = gr_arena_push(device, n, w->dev->acc_bytes);
    o->v = gr_arena_push(device, n, w->dev->acc_bytes);
    o->norm_sq = GR_PUSH(device, double, 1);
}

void gr_optimizer_reset(gr_optimizer* o)
{
    size_t bytes = (size_t)o->w->n_params * o->w->dev->acc_bytes;
    gr_dev_zero(o->w->dev, o->m, bytes);
    gr_dev_zero(o->w->dev, o->v, bytes);
    o->step = 0;
}

void gr_optimizer_zero_grad(gr_optimizer* o)
{
    gr_dev_zero(o->w->dev, o->grad, (size_t)o->w->n_params * o->w->dev->acc_bytes);
}

/* From 1 at progress 0 to `final` at progress 1. */
static double decay_factor(gr_schedule schedule, double final, double progress)
{
    double p = fmin(fmax(progress, 0), 1);
    switch (schedule) {
    case GR_LINEAR:
        return 1 - (1 - final) * p;
    case GR_COSINE:
        return final + (1 - final) * 0.5 * (1 + cos(M_PI * p));
    case GR_CONSTANT:
        break;
    }
    return 1;
}

double gr_optimizer_rate(const gr_optimizer_settings* s, int64_t step, double progress)
{
    double warm = 1;
    if (step + 1 < s->warmup_steps) warm = (double)(step + 1) / (double)s->warmup_steps;
    return s->lr * warm * decay_factor(s->schedule, s->final_ratio, progress);
}

/* The norms and biases between the matrices do not decay, so tensors are updated one by one. */
static void update(gr_optimizer* o, const gr_optimizer_settings* s, double lr, double grad_scale)
{
    gr_weights* w = o->w;
    gr_dev* dev = w->dev;
    for (int i = 0; i < w->n_tensors; i++) {
        const gr_tensor* t = &w->tensor[i];
        gr_adamw params = {
            .lr = lr,
            .beta1 = s->beta1,
            .beta2 = s->beta2,
            .eps = s->eps,
            .weight_decay = t->decay ? s->weight_decay : 0,
            .grad_scale = grad_scale,
            .step = o->step + 1,
        };
        dev->ops->adamw_f32(dev, gr_acc_at(dev, w->master, t->offset),
                            gr_real_at(dev, w->value, t->offset), gr_acc_at(dev, o->m, t->offset),
                            gr_acc_at(dev, o->v, t->offset), gr_acc_at(dev, o->grad, t->offset),
                            (int64_t)t->rows * t->cols, &params);
    }
}

gr_status gr_optimizer_step(gr_optimizer* o, const gr_optimizer_settings* s, double progress,
                            double* grad_norm, double* lr, bool* skipped)
{
    gr_dev* dev = o->w->dev;
    double norm_sq = 0;
    dev->ops->sumsq(dev, o->norm_sq, o->grad, o->w->n_params);
    gr_dev_read(dev, &norm_sq, o->norm_sq, sizeof norm_sq);
    GR_TRY(gr_dev_sync(dev));
    *grad_norm = sqrt(norm_sq);
    *lr = gr_optimizer_rate(s, o->step, progress);
    *skipped = !isfinite(*grad_norm);
    if (*skipped) return GR_OK;
    bool clip = s->grad_clip > 0 && *grad_norm > s->grad_clip;
    update(o, s, *lr, clip ? s->grad_clip / *grad_norm : 1);
    o->step++;
    gr_weights_repack(o->w);
    return gr_dev_sync(dev);
}
