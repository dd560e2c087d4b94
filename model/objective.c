/* objective.c - one packed batch through the network: loss and gradient, or log-probs alone. */
#include "model/objective.h"

#include <math.h>

void gr_objective_layout(gr_objective* o, const gr_weights* w, int64_t max_tokens, int max_path,
                         bool train, bool recompute, gr_arena* host, gr_arena* device)
{
    const gr_model_config* c = &w->config;
    gr_dev* dev = w->dev;
    size_t n = (size_t)max_tokens;
    *o = (gr_objective){.w = w, .max_tokens = max_tokens};
    gr_acts_layout(&o->acts, w, max_tokens, max_path, train, recompute, host, device);
    o->token = GR_PUSH(device, int32_t, n);
    o->position = GR_PUSH(device, int32_t, n);
    if (c->value_heads > 0) return; /* predicts nothing */
    o->src = GR_PUSH(device, int32_t, n);
    o->target = GR_PUSH(device, int32_t, n);
    o->logp = gr_arena_push(device, n, dev->acc_bytes);
    o->host_logp = GR_PUSH(host, double, n);
    o->sampling = GR_PUSH(device, gr_sampling, n);
    size_t scratch = dev->ops->head_scratch(dev, max_tokens, c->width, c->vocab);
    if (train) {
        o->entropy = gr_arena_push(device, n, dev->acc_bytes);
        o->old_logp = gr_arena_push(device, n, dev->acc_bytes);
        o->ref_logp = gr_arena_push(device, n, dev->acc_bytes);
        o->a_pos = gr_arena_push(device, n, dev->acc_bytes);
        o->a_neg = gr_arena_push(device, n, dev->acc_bytes);
        o->weight = gr_arena_push(device, n, dev->acc_bytes);
        o->sums = GR_PUSH(device, gr_loss_sums, 1);
        size_t loss = dev->ops->head_loss_scratch(dev, max_tokens, c->width, c->vocab);
        scratch = GR_MAX(scratch, loss);
    }
    o->scratch = gr_arena_push(device, scratch, 1);
}

void gr_objective_set_values(gr_objective* o, gr_value_pass* pass)
{
    o->values = pass;
    if (pass->value->w == o->w) pass->value->dhidden = o->acts.dhidden;
}

/* The batch's tokens and predicted rows on the device, and the forward over them. */
static gr_rows forward(gr_objective* o, const gr_batch* b)
{
    gr_dev* dev = o->w->dev;
    GR_ASSERT(b->n_tokens <= o->max_tokens && b->n_rows <= o->max_tokens,
              "%d tokens, %d rows, room for %lld", b->n_tokens, b->n_rows,
              (long long)o->max_tokens);
    size_t bytes = (size_t)b->n_tokens * sizeof(int32_t);
    gr_dev_write(dev, o->token, b->token, bytes);
    gr_dev_write(dev, o->position, b->position, bytes);
    if (o->src != NULL) {
        gr_dev_write(dev, o->src, b->src, (size_t)b->n_rows * sizeof(int32_t));
        gr_dev_write(dev, o->target, b->target, (size_t)b->n_rows * sizeof(int32_t));
    }
    gr_rows rows = {
        .token = o->token,
        .position = o->position,
        .subtree_end = b->subtree_end,
        .n = b->n_tokens,
        .max_path = b->max_path,
    };
    gr_transformer_forward(o->w, &rows, &o->acts);
    return rows;
}

static void upload_coefficients(gr_objective* o, const gr_batch* b, bool kl)
{
    gr_dev* dev = o->w->dev;
    gr_dev_write_acc(dev, o->old_logp, b->old_logp, b->n_rows);
    if (kl) gr_dev_write_acc(dev, o->ref_logp, b->ref_logp, b->n_rows);
    gr_dev_write_acc(dev, o->a_pos, b->a_pos, b->n_rows);
    gr_dev_write_acc(dev, o->a_neg, b->a_neg, b->n_rows);
    gr_dev_write_acc(dev, o->weight, b->w, b->n_rows);
    gr_dev_zero(dev, o->sums, sizeof *o->sums);
}

static void add_sums(gr_loss_sums* to, const gr_loss_sums* s)
{
    to->loss += s->loss;
    to->weight += s->weight;
    to->rows += s->rows;
    to->entropy += s->entropy;
    to->kl_old += s->kl_old;
    to->kl_ref += s->kl_ref;
    to->clip_low += s->clip_low;
    to->clip_high += s->clip_high;
    to->sum_abs_dlogp += s->sum_abs_dlogp;
    to->max_abs_dlogp = fmax(to->max_abs_dlogp, s->max_abs_dlogp);
}

/* The policy's loss of the batch in hand and dL/dhidden; 0 where nothing is predicted. */
static void policy_loss(gr_objective* o, const gr_batch* b, const gr_loss_params* params,
                        void* grad)
{
    const gr_weights* w = o->w;
    const gr_model_config* c = &w->config;
    gr_dev* dev = w->dev;
    if (b->n_rows == 0) {
        gr_dev_zero(dev, o->acts.dhidden, (size_t)b->n_tokens * (size_t)c->width * dev->real_bytes);
        return;
    }
    bool kl = params->kl != GR_KL_NONE;
    upload_coefficients(o, b, kl);
    gr_loss_rows predicted = {
        .src = o->src,
        .target = o->target,
        .old_logp = o->old_logp,
        .ref_logp = kl ? o->ref_logp : NULL,
        .a_pos = o->a_pos,
        .a_neg = o->a_neg,
        .w = o->weight,
    };
    dev->ops->head_loss(dev, o->acts.dhidden, gr_acc_at(dev, grad, w->head), o->logp, o->entropy,
                        o->sums, o->acts.hidden, w->packed_head.fwd, w->packed_head.bwd, &predicted,
                        b->n_rows, b->n_tokens, c->width, c->vocab, params, o->scratch);
}

/* The value loss; its dL/dhidden is all there is, or a second one. */
static gr_status value_loss(gr_objective* o, const gr_batch* b)
{
    gr_value_pass* p = o->values;
    GR_TRY(gr_value_loss(p->value, o->acts.hidden, b->n_tokens, b, &p->params, p->grad, &p->sums));
    if (p->value->w != o->w) o->acts.dhidden_more = p->value->dhidden;
    return GR_OK;
}

gr_status gr_objective_step(gr_objective* o, const gr_batch* batch, const gr_loss_params* params,
                            void* grad, gr_loss_sums* sums)
{
    gr_dev* dev = o->w->dev;
    bool predicts = o->w->config.value_heads == 0;
    bool rows = predicts && batch->n_rows > 0, values = o->values != NULL && batch->n_values > 0;
    GR_ASSERT(o->acts.train);
    if (!rows && !values) return GR_OK; /* no loss, no gradient */
    gr_rows tokens = forward(o, batch);
    o->acts.dhidden_more = NULL;
    if (predicts) policy_loss(o, batch, params, grad);
    if (values) GR_TRY(value_loss(o, batch));
    gr_transformer_backward(o->w, &tokens, &o->acts, grad);
    if (!rows) return gr_dev_sync(dev);

    gr_loss_sums got;
    gr_dev_read(dev, &got, o->sums, sizeof got);
    gr_dev_read_acc(dev, o->host_logp, o->logp, batch->n_rows);
    GR_TRY(gr_dev_sync(dev));
    add_sums(sums, &got);
    return GR_OK;
}

/* Every row measures at the same temperature; in pieces, because the host keeps no such array. */
static void upload_sampling(gr_objective* o, int64_t n, float temperature)
{
    gr_sampling piece[128];
    for (int i = 0; i < GR_COUNT(piece); i++) {
        piece[i] = (gr_sampling){.temperature = temperature, .top_p = 1};
    }
    for (int64_t i = 0; i < n; i += GR_COUNT(piece)) {
        size_t bytes = (size_t)GR_MIN(GR_COUNT(piece), n - i) * sizeof *piece;
        gr_dev_write(o->w->dev, o->sampling + i, piece, bytes);
    }
}

/* Log-probs of the rows behind the forward in hand. */
static void measure(gr_objective* o, const gr_batch* batch, float temperature, double* out)
{
    const gr_weights* w = o->w;
    const gr_model_config* c = &w->config;
    gr_dev* dev = w->dev;
    upload_sampling(o, batch->n_rows, temperature);
    dev->ops->head(dev, o->logp, NULL, NULL, o->acts.hidden, w->packed_head.fwd, o->src, o->target,
                   o->sampling, NULL, NULL, batch->n_rows, c->width, c->vocab, o->scratch);
    gr_dev_read_acc(dev, out, o->logp, batch->n_rows);
}

gr_status gr_objective_read(gr_objective* o, const gr_batch* batch, float temperature)
{
    bool rows = o->w->config.value_heads == 0 && batch->n_rows > 0;
    bool values = o->values != NULL && batch->n_values > 0;
    if (!rows && !values) return GR_OK;
    (void)forward(o, batch);
    if (rows) measure(o, batch, temperature, batch->old_logp);
    if (values) {
        GR_TRY(gr_value_read(o->values->value, o->acts.hidden, batch->n_tokens, batch));
    }
    return gr_dev_sync(o->w->dev);
}

gr_status gr_objective_logp(gr_objective* o, const gr_batch* batch, float temperature, double* out)
{
    if (batch->n_rows == 0) return GR_OK;
    (void)forward(o, batch);
    measure(o, batch, temperature, out);
    return gr_dev_sync(o->w->dev);
}
