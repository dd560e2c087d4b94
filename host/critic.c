#include "host/critic.h"

#include <string.h>

static const gr_setting table[] = {
    GR_SET_CHOICE(gr_critic_settings, backbone, "separate|shared", GR_BACKBONE_SEPARATE,
                  "of the value model: a copy of the policy that learns alone, or its hidden rows"),
    GR_SET_REAL(gr_critic_settings, lr, 0, 100, 1e-3,
                "learning rate of the value model; schedule and clipping as the policy's"),
    GR_SET_REAL(gr_critic_settings, coef, 0, 1e6, 0.5,
                "weight of the value loss in a shared trunk"),
    GR_SET_REAL(gr_critic_settings, clip, 0, 1e6, 0,
                "a value moves at most this far in a step before its error counts; 0: any"),
};
const gr_block gr_critic_block =
    GR_BLOCK(gr_critic_settings, "value", "advantage.estimator=gae|hae", table);

void gr_critic_layout(gr_critic* c, int n_heads, const gr_critic_settings* s,
                      const gr_weights* policy, int64_t max_tokens, gr_arena* host,
                      gr_arena* device)
{
    gr_model_config m = policy->config;
    bool shared = s->backbone == GR_BACKBONE_SHARED;
    m.value_heads = n_heads;
    if (shared) m.layers = 0;
    *c = (gr_critic){.n_heads = n_heads, .s = s};
    gr_weights_layout(&c->w, policy->dev, &m, true, host, device);
    gr_optimizer_layout(&c->optimizer, &c->w, device);
    gr_value_layout(&c->value, &c->w, max_tokens, host, device);
    c->pass = (gr_value_pass){.value = &c->value,
                              .params = {.coef = shared ? s->coef : 1, .clip = s->clip},
                              .grad = c->optimizer.grad};
}

void gr_critic_layout_objectives(gr_critic* c, gr_objective* policy, const gr_weights* weights,
                                 int64_t max_tokens, bool recompute, gr_arena* host,
                                 gr_arena* device)
{
    int max_path = weights->config.max_context;
    size_t begin = gr_arena_mark(device);
    gr_objective_layout(policy, weights, max_tokens, max_path, true, recompute, host, device);
    if (c->n_heads == 0) return;
    c->reader = policy;
    if (c->s->backbone == GR_BACKBONE_SEPARATE) {
        size_t end = gr_arena_mark(device);
        gr_arena_release(device, begin);
        gr_objective_layout(&c->objective, &c->w, max_tokens, max_path, true, recompute, host,
                            device);
        device->used = GR_MAX(device->used, end);
        c->reader = &c->objective;
    }
    gr_objective_set_values(c->reader, &c->pass);
}

/* The tensors of both have the same offsets up to the heads. */
static void copy_trunk(gr_weights* to, const gr_weights* from)
{
    double chunk[512];
    for (int i = 0; i < to->n_tensors; i++) {
        const gr_tensor* t = &to->tensor[i];
        if (t->offset == to->head || t->offset == to->value_bias) continue;
        GR_ASSERT(strcmp(t->name, from->tensor[i].name) == 0 &&
                  t->offset == from->tensor[i].offset);
        for (int64_t k = 0; k < (int64_t)t->rows * t->cols; k += GR_COUNT(chunk)) {
            int64_t n = GR_MIN(GR_COUNT(chunk), (int64_t)t->rows * t->cols - k);
            size_t bytes = (size_t)n * to->dev->acc_bytes;
            gr_dev_read(to->dev, chunk, gr_acc_at(to->dev, from->master, t->offset + k), bytes);
            gr_dev_write(to->dev, gr_acc_at(to->dev, to->master, t->offset + k), chunk, bytes);
        }
    }
}

void gr_critic_start(gr_critic* c, const gr_weights* policy, uint64_t seed)
{
    gr_weights_init(&c->w, seed);
    copy_trunk(&c->w, policy);
    gr_weights_publish(&c->w);
}

gr_status gr_critic_answer(gr_critic* c, gr_objective* policy, const gr_pack* pack,
                           float temperature)
{
    gr_read** read = pack->read;
    gr_probe** probe = pack->probe;
    for (int i = 0; i < pack->n_pieces; i++) {
        const gr_batch* b = &pack->piece[i];
        if (b->n_rows > 0 || c->reader == policy) {
            GR_TRY(gr_objective_read(policy, b, temperature));
        }
        if (c->n_heads > 0 && c->reader != policy)
            GR_TRY(gr_objective_read(c->reader, b, temperature));
        for (int k = 0; k < b->n_values; k++) (*read++)->value = b->value_old[k];
        for (int k = 0; k < b->n_rows; k++) (*probe++)->logp = b->old_logp[k];
    }
    return GR_OK;
}

void gr_critic_begin(gr_critic* c)
{
    gr_optimizer_zero_grad(&c->optimizer);
    c->pass.sums = (gr_value_sums){0};
}

gr_status gr_critic_step(gr_critic* c, const gr_batch* piece)
{
    gr_loss_sums none = {0}; /* it predicts nothing */
    if (c->reader != &c->objective) return GR_OK;
    return gr_objective_step(&c->objective, piece, NULL, c->optimizer.grad, &none);
}
