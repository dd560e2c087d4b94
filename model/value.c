/* value.c - scalar heads: products on the device, errors on the host. */
#include "model/value.h"

#include <math.h>
#include <string.h>

void gr_value_layout(gr_value* v, const gr_weights* w, int64_t max_tokens, gr_arena* host,
                     gr_arena* device)
{
    const gr_model_config* c = &w->config;
    gr_dev* dev = w->dev;
    size_t n = (size_t)max_tokens, outputs = n * (size_t)c->value_heads;
    GR_ASSERT(c->value_heads > 0);
    *v = (gr_value){.w = w, .max_tokens = max_tokens};
    v->out = gr_arena_push(device, outputs, dev->real_bytes);
    v->dout = gr_arena_push(device, outputs, dev->real_bytes);
    size_t rows = c->layers == 0 ? n : 0;
    v->dhidden = gr_arena_push(device, rows * (size_t)c->width, dev->real_bytes);
    v->scratch = gr_arena_push(
        device, dev->ops->matmul_dw_scratch(dev, max_tokens, c->value_heads, c->width), 1);
    v->host = GR_PUSH(host, double, outputs);
    v->slope = GR_PUSH(host, double, outputs);
}

/* V of n hidden rows into v->host. */
static gr_status forward(gr_value* v, const void* hidden, int64_t n)
{
    const gr_weights* w = v->w;
    gr_dev* dev = w->dev;
    int heads = w->config.value_heads;
    GR_ASSERT(n <= v->max_tokens, "%lld rows, room for %lld", (long long)n,
              (long long)v->max_tokens);
    dev->ops->matmul(dev, v->out, hidden, w->packed_head.fwd,
                     gr_real_at(dev, w->value, w->value_bias), n, heads, w->config.width);
    gr_dev_read_real(dev, v->host, v->out, n * heads);
    return gr_dev_sync(dev);
}

static int64_t place(const gr_value* v, const gr_batch* b, int i)
{
    return (int64_t)b->value_src[i] * v->w->config.value_heads + b->value_head[i];
}

gr_status gr_value_read(gr_value* v, const void* hidden, int64_t n, const gr_batch* batch)
{
    GR_TRY(forward(v, hidden, n));
    for (int i = 0; i < batch->n_values; i++) batch->value_old[i] = v->host[place(v, batch, i)];
    return GR_OK;
}

/* e and its slope by V; at a tie the slope of the unclipped error. */
static double error(double value, double target, double old, double clip, double* slope)
{
    double e = value - target;
    *slope = 2 * e;
    if (clip == 0) return e * e;
    double near = old + fmin(fmax(value - old, -clip), clip) - target;
    if (near * near > e * e) {
        *slope = fabs(value - old) < clip ? 2 * near : 0;
        e = near;
    }
    return e * e;
}

gr_status gr_value_loss(gr_value* v, const void* hidden, int64_t n, const gr_batch* batch,
                        const gr_value_params* params, void* grad, gr_value_sums* sums)
{
    const gr_weights* w = v->w;
    gr_dev* dev = w->dev;
    int heads = w->config.value_heads, c = w->config.width;
    GR_TRY(forward(v, hidden, n));
    memset(v->slope, 0, (size_t)(n * heads) * sizeof *v->slope);
    for (int i = 0; i < batch->n_values; i++) {
        double value = v->host[place(v, batch, i)], target = batch->value_target[i], d = 0;
        double weight = batch->value_weight[i];
        sums->loss += weight * error(value, target, batch->value_old[i], params->clip, &d);
        sums->weight += weight;
        sums->target += weight * target;
        sums->target_sq += weight * target * target;
        sums->error_sq += weight * (value - target) * (value - target);
        v->slope[place(v, batch, i)] += params->coef * weight * d; /* rows may share a place */
    }
    gr_dev_write_real(dev, v->dout, v->slope, n * heads);
    dev->ops->matmul(dev, v->dhidden, v->dout, w->packed_head.bwd, NULL, n, c, heads);
    dev->ops->matmul_dw(dev, gr_acc_at(dev, grad, w->head), gr_acc_at(dev, grad, w->value_bias),
                        v->dout, hidden, n, heads, c, v->scratch);
    return GR_OK;
}
