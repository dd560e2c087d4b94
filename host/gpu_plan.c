/* gpu_plan.c - bytes from sizes. */
#include "host/gpu_plan.h"

#define GIB       ((double)(1 << 30))
#define RESERVE   ((int64_t)3 << 30) /* bytes: context, libraries, workspaces */
#define HEAD_ROWS 512                /* rows whose fp32 logits exist at a time */

int64_t gr_model_params(const gr_model_config* m)
{
    int64_t c = m->width, qkv = gr_qkv_width(m), q = (int64_t)m->heads * m->head_dim;
    int64_t layer = qkv * c + c * q + 3 * c * m->mlp + 2 * c;
    if (m->qkv_bias) layer += qkv;
    if (m->qk_norm) layer += 2 * m->head_dim;
    return m->layers * layer + c + (m->tied ? 1 : 2) * m->vocab * c;
}

/* Bytes of one layer that a token leaves for the backward: bf16 input, norm, q, k, v, attention,
 * second input, norm, gate, up and their product; fp32 statistics of softmax and norms. */
static int64_t layer_bytes(const gr_model_config* m)
{
    int64_t q = (int64_t)m->heads * m->head_dim;
    return 2 * (4 * (int64_t)m->width + gr_qkv_width(m) + q + 3 * (int64_t)m->mlp) +
           4 * (2 * m->heads + 2);
}

static void plan_activations(gr_gpu_plan* p, const gr_model_config* m, const gr_gpu_request* r)
{
    int64_t layer = layer_bytes(m), input = 2 * (int64_t)m->width;
    p->token = m->layers * (r->recompute ? input : layer);
    p->activations = r->microbatch_tokens * (p->token + (r->recompute ? layer : 0));
    p->head = HEAD_ROWS * 4 * (int64_t)m->vocab;
    p->kv_token = 2 * 2 * (int64_t)m->kv_heads * m->head_dim * m->layers;
}

static void plan_states(gr_gpu_plan* p, gr_gpu_states* s, const gr_gpu_request* r)
{
    int64_t gradient = s->gradient * p->n_params;
    s->states = (s->weight + s->gradient + s->rest) * p->n_params;
    int64_t stays = s->states - gradient + p->reference;
    int64_t update = gradient + p->activations + p->head;
    int64_t sample = r->kv_tokens * p->kv_token + p->head;
    s->total = stays + GR_MAX(update, sample);
    s->fits = s->total <= p->usable;
    int64_t left = p->usable - stays - p->head;
    s->kv_tokens = left > 0 ? left / p->kv_token : 0;
}

void gr_gpu_plan_make(gr_gpu_plan* p, const gr_model_config* m, const gr_gpu_request* r)
{
    static const gr_gpu_states ways[GR_GPU_STATES] = {
        {.name = "fp32 master, moments, gradient", .weight = 2, .gradient = 4, .rest = 12},
        {.name = "the same, bf16 gradient", .weight = 2, .gradient = 2, .rest = 12},
        {.name = "split master, bf16 gradient", .weight = 2, .gradient = 2, .rest = 10},
        {.name = "split master, bf16 moments", .weight = 2, .gradient = 4, .rest = 6},
        {.name = "the same, bf16 gradient", .weight = 2, .gradient = 2, .rest = 6},
    };
    *p = (gr_gpu_plan){
        .n_params = gr_model_params(m), .usable = GR_MAX(r->card_bytes - RESERVE, 0), .chosen = -1};
    p->reference = r->reference ? 2 * p->n_params : 0;
    plan_activations(p, m, r);
    for (int i = GR_GPU_STATES - 1; i >= 0; i--) {
        p->way[i] = ways[i];
        plan_states(p, &p->way[i], r);
        if (p->way[i].fits) p->chosen = i;
    }
}

static double gib(int64_t bytes) { return (double)bytes / GIB; }

void gr_gpu_plan_log(const gr_gpu_plan* p, const gr_gpu_request* r)
{
    gr_log("card       %.1f GiB, %.1f of them to be had; one GPU, bf16, arithmetic only",
           gib(r->card_bytes), gib(p->usable));
    gr_log("model      %.3f billion parameters, %.1f GiB of weights%s", (double)p->n_params / 1e9,
           gib(2 * p->n_params), r->reference ? ", the same again for the reference" : "");
    gr_log("update     %lld tokens of a micro-batch: %.1f GiB (%.2f MB a token%s), logits %.1f GiB",
           (long long)r->microbatch_tokens, gib(p->activations), (double)p->token / 1e6,
           r->recompute ? ", layer inputs" : "", gib(p->head));
    gr_log("sampling   %lld tokens of KV pages: %.1f GiB (%lld bytes a token)",
           (long long)r->kv_tokens, gib(r->kv_tokens * p->kv_token), (long long)p->kv_token);
    gr_log("states     weights + gradient + rest      GiB   in all   KV tokens at most");
    for (int i = 0; i < GR_GPU_STATES; i++) {
        const gr_gpu_states* s = &p->way[i];
        gr_log("  %s %-30s %d + %d + %2d %6.1f   %6.1f  %10lld  %s", i == p->chosen ? "*" : " ",
               s->name, s->weight, s->gradient, s->rest, gib(s->states), gib(s->total),
               (long long)s->kv_tokens, s->fits ? "fits" : "does not fit");
    }
    gr_log("           split masters and bf16 moments need an optimizer that no device has yet");
}
