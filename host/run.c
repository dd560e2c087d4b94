/* run.c - puts the parts of a run together: one memory plan, measured first, taken once. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/train.h"
#include "model/vocabulary.h"

#define MAX_HANDLES 65536 /* environment states; a state is a few hundred bytes */
#define MAX_SEQS \
    16384 /* KV sequences held by tree nodes; beyond them prefixes are prefilled again */

void gr_run_settings(gr_config* c)
{
    gr_config_init(c);
    for (int i = 0; gr_worlds[i] != NULL; i++) {
        if (gr_worlds[i]->block != NULL) gr_config_register(c, gr_worlds[i]->block);
    }
    for (int i = 0; gr_strategies[i] != NULL; i++) {
        if (gr_strategies[i]->block != NULL) gr_config_register(c, gr_strategies[i]->block);
    }
    for (int i = 0; gr_scorers[i] != NULL; i++) {
        if (gr_scorers[i]->block != NULL) gr_config_register(c, gr_scorers[i]->block);
    }
    for (int i = 0; gr_estimators[i] != NULL; i++) {
        if (gr_estimators[i]->block != NULL) gr_config_register(c, gr_estimators[i]->block);
    }
    gr_config_register(c, &gr_critic_block);
    gr_config_register(c, &gr_hiper_block);
}

static void model_config(const gr_config* c, gr_model_config* m)
{
    const gr_config_model* s = &c->model;
    *m = (gr_model_config){
        .layers = (int)s->layers,
        .width = (int)s->width,
        .heads = (int)s->heads,
        .kv_heads = (int)s->kv_heads,
        .head_dim = (int)(s->head_dim > 0 ? s->head_dim : s->width / s->heads),
        .mlp = (int)s->mlp,
        .vocab = (int)s->vocab,
        .max_context = (int)c->rollout.max_context,
        .rope_theta = s->rope_theta,
        .norm_eps = (float)s->norm_eps,
        .qkv_bias = s->qkv_bias,
        .qk_norm = s->qk_norm,
        .tied = s->tied,
    };
}

gr_status gr_run_shape(const gr_config* c, const char* weights_dir, gr_model_config* m)
{
    model_config(c, m);
    if (weights_dir == NULL || weights_dir[0] == 0) return GR_OK;
    GR_TRY(gr_model_config_load(weights_dir, m));
    m->max_context = (int)c->rollout.max_context;
    return GR_OK;
}

/* The layout of everything; run twice. */
static void layout(gr_run* run, const gr_model_config* m, gr_arena* host, gr_arena* device)
{
    const gr_config* c = run->config;
    const gr_config_rollout* ro = &c->rollout;
    gr_memory_plan* p = &run->plan;
    bool train = run->mode == GR_RUN_TRAIN;
    bool asks_policy = run->judge.s != NULL && !run->judge.own;
    int64_t tokens = c->optimizer.microbatch_tokens;
    gr_engine_settings es = {
        .max_live = (int)ro->max_live,
        .max_rows = (int)ro->max_rows,
        .n_pages = (int)ro->kv_pages,
        .n_seqs = MAX_SEQS,
        .max_action = (int)(asks_policy ? GR_MAX(ro->max_turn_tokens, run->judge.s->max_tokens)
                                        : ro->max_turn_tokens),
        .tokenizer = run->tokenizer,
    };
    size_t at = 0;
    gr_weights_layout(&run->weights, &run->dev, m, train, host, device);
    p->weights = device->used - at, at = device->used;
    if (train) {
        gr_optimizer_layout(&run->optimizer, &run->weights, device);
        p->optimizer = device->used - at, at = device->used;
    }
    if (train && c->loss.kl != GR_KL_NONE) {
        gr_weights_layout(&run->reference, &run->dev, m, false, host, device);
        gr_objective_layout(&run->reference_objective, &run->reference, tokens, m->max_context,
                            false, false, host, device);
        p->reference = device->used - at, at = device->used;
    }
    gr_engine_layout(&run->engine, &run->weights, &es, host, device);
    p->kv_pool = (size_t)ro->kv_pages * (size_t)m->layers *
                 run->dev.ops->kv_page_bytes(&run->dev, m->kv_heads, m->head_dim);
    p->decode = device->used - at - p->kv_pool, at = device->used;
    gr_judge_model_layout(&run->judge, &run->dev, &es, host, device);
    p->judge = device->used - at, at = device->used;
    if (train && run->n_heads > 0) {
        const gr_critic_settings* s = gr_config_block(c, gr_critic_block.name);
        gr_critic_layout(&run->critic, run->n_heads, s, &run->weights, tokens, host, device);
        p->value = device->used - at, at = device->used;
    }
    if (train) {
        gr_critic_layout_objectives(&run->critic, &run->objective, &run->weights, tokens,
                                    c->model.recompute, host, device);
        p->train = device->used - at;
    }
    p->host = host->used;
}

static gr_status take_memory(gr_run* run, const gr_model_config* m)
{
    void* block = NULL;
    run->host.cap = run->host.used;
    run->device.cap = run->device.used;
    run->host.used = run->device.used = 0;
    run->host.base = aligned_alloc(256, (run->host.cap + 255) & ~(size_t)255);
    if (run->host.base == NULL) {
        return GR_FAIL(GR_ENOMEM, "%zu bytes of host memory are not to be had", run->host.cap);
    }
    memset(run->host.base, 0, run->host.cap);
    GR_TRY(gr_dev_alloc(&run->dev, &block, run->device.cap));
    run->device.base = block;
    layout(run, m, &run->host, &run->device);
    return GR_OK;
}

/* A value model learns from every group, so none is idle. */
static gr_status check_values(const gr_config* c)
{
    const char* key = c->rollout.refill != GR_REFILL_NONE ? "rollout.refill"
                      : c->loss.count_idle_groups         ? "loss.count_idle_groups"
                                                          : NULL;
    if (key == NULL) return GR_OK;
    return GR_FAIL(GR_EARG, "%s has no effect: with advantage.estimator = %s no group is idle", key,
                   c->advantage.estimator);
}

static gr_status choose(gr_run* run)
{
    const gr_config* c = run->config;
    const gr_strategy* strategy = gr_strategy_find(c->rollout.strategy);
    const gr_scorer* scorer = gr_scorer_find(c->scorer.name);
    run->estimator = gr_estimator_find(c->advantage.estimator);
    if (strategy == NULL) {
        return GR_FAIL(GR_EARG, "rollout.strategy: no `%s`", c->rollout.strategy);
    }
    if (scorer == NULL) return GR_FAIL(GR_EARG, "scorer.name: no `%s`", c->scorer.name);
    if (run->estimator == NULL) {
        return GR_FAIL(GR_EARG, "advantage.estimator: no `%s`", c->advantage.estimator);
    }
    const gr_block* credit = run->estimator->block;
    run->estimator_settings = credit ? gr_config_block(c, credit->name) : NULL;
    if (run->estimator->n_heads != NULL) {
        run->n_heads = run->estimator->n_heads(run->estimator_settings);
        GR_TRY(check_values(c));
    }
    run->train_settings = (gr_rollout_settings){
        .strategy = strategy,
        .strategy_settings = strategy->block ? gr_config_block(c, strategy->block->name) : NULL,
        .scorer = scorer,
        .scorer_settings = scorer->block ? gr_config_block(c, scorer->block->name) : NULL,
        .group = (int)c->rollout.group,
        .max_turns = (int)c->rollout.max_turns,
        .max_turn_tokens = (int)c->rollout.max_turn_tokens,
        .max_context = (int)c->rollout.max_context,
        .on_cap = c->rollout.on_cap,
        .max_tree_turns = c->rollout.max_tree_turns,
        .plan = c->rollout.interface == GR_INTERFACE_HIPER ? gr_config_block(c, gr_hiper_block.name)
                                                           : NULL,
        .sampling = {.temperature = (float)c->rollout.temperature, .top_p = 1},
        .purpose = GR_FOR_TRAIN,
    };
    if (strategy == &gr_strategy_proceed) run->demos.s = run->train_settings.strategy_settings;
    run->loss = (gr_loss_params){
        .kind = GR_LOSS_POLICY,
        .clip_low = c->loss.clip_low,
        .clip_high = c->loss.clip_high,
        .dual_clip = c->loss.dual_clip,
        .kl = (gr_kl)c->loss.kl,
        .kl_coef = c->loss.kl_coef,
        .entropy_coef = c->loss.entropy_coef,
        .temperature = (float)c->rollout.temperature,
    };
    const gr_config_optimizer* o = &c->optimizer;
    run->optimizer_settings = (gr_optimizer_settings){
        .lr = o->lr,
        .beta1 = o->beta1,
        .beta2 = o->beta2,
        .eps = o->eps,
        .weight_decay = o->weight_decay,
        .grad_clip = o->grad_clip,
        .schedule = (gr_schedule)o->schedule,
        .final_ratio = o->final_ratio,
        .warmup_steps = o->warmup_steps,
    };
    return GR_OK;
}

/* Who makes steps again must be there. */
static gr_status check_refiner(const gr_run* run)
{
    const gr_strategy* s = run->train_settings.strategy;
    const gr_world* world = gr_envs_world(run->envs);
    if (s->refiner == NULL) return GR_OK;
    bool expert = s->refiner(run->train_settings.strategy_settings).who == GR_REFINER_EXPERT;
    if (!expert || (world->demonstrate != NULL && world->async == NULL)) return GR_OK;
    return GR_FAIL(GR_EARG, "%s.refiner = expert: the world `%s` has no demonstrator", s->name,
                   world->name);
}

static gr_status choose_chat(gr_run* run)
{
    const gr_config_model* c = &run->config->model;
    gr_dialog_format* f = &run->train_settings.dialog;
    *f = (gr_dialog_format){.tokenizer = run->tokenizer};
    return gr_dialog_choose(f, "model", c->path, c->chat, c->think);
}

/* The model that the scorer asks, if it asks one. Rollouts of an evaluation are not scored. */
static gr_status choose_judge(gr_run* run)
{
    gr_rollout_settings* s = &run->train_settings;
    if (s->scorer->question == NULL || run->mode != GR_RUN_TRAIN) return GR_OK;
    if (s->strategy->wants == NULL) {
        return GR_FAIL(GR_EARG,
                       "scorer.name = %s has no effect: rollout.strategy = %s asks for no "
                       "scores",
                       s->scorer->name, s->strategy->name);
    }
    return gr_judge_model_open(&run->judge, run->config, s->scorer_settings, &s->dialog, &s->judge);
}

/* A model that came without a vocabulary reads bytes. */
static gr_status open_tokenizer(gr_run* run, const gr_model_config* m)
{
    const char* path = run->config->model.path;
    if (path[0] != 0) GR_TRY(gr_model_tokenizer(&run->tokenizer, path));
    int n = gr_tokenizer_vocab(run->tokenizer);
    if (n <= m->vocab) return GR_OK;
    return GR_FAIL(GR_EDATA, "%s: the vocabulary has %d tokens, the model %d", path, n, m->vocab);
}

static gr_status check_heads(const gr_dev* dev, const gr_model_config* m)
{
    if (dev->max_head == 0 || m->head_dim <= dev->max_head) return GR_OK;
    return GR_FAIL(GR_EARG,
                   "device.name: attention on %s takes heads of at most %d, the model's "
                   "are of %d",
                   dev->name, dev->max_head, m->head_dim);
}

gr_status gr_run_open(gr_run* run, const gr_config* config, gr_run_mode mode,
                      const char* weights_dir, bool plan_only)
{
    memset(run, 0, sizeof *run);
    run->config = config;
    run->mode = mode;
    if (mode == GR_RUN_TRAIN) GR_TRY(gr_config_check_train(config));
    gr_model_config m;
    GR_TRY(gr_run_shape(config, weights_dir, &m));
    GR_TRY(open_tokenizer(run, &m));
    GR_TRY(gr_dev_open(&run->dev, &(gr_dev_options){
                                      .name = config->device.name,
                                      .dtype = (gr_dtype)config->model.dtype,
                                      .matmul = (gr_matmul_mode)config->device.matmul,
                                      .threads = (int)config->device.threads,
                                      .attention = (gr_attention_mode)config->device.attention,
                                  }));
    GR_TRY(check_heads(&run->dev, &m));
    GR_TRY(choose(run));
    GR_TRY(choose_chat(run));
    GR_TRY(choose_judge(run));
    if (run->judge.own) GR_TRY(check_heads(&run->dev, &run->judge.shape));
    layout(run, &m, &run->host, &run->device);
    if (plan_only) return GR_OK;
    const gr_world* world = gr_world_find(config->env.name);
    if (world == NULL) return GR_FAIL(GR_EARG, "env.name: no world `%s`", config->env.name);
    GR_TRY(gr_envs_open(&run->envs, world,
                        world->block ? gr_config_block(config, world->block->name) : NULL,
                        MAX_HANDLES));
    GR_TRY(gr_scorer_check(run->train_settings.scorer, run->train_settings.scorer_settings,
                           gr_envs_world(run->envs)));
    GR_TRY(check_refiner(run));
    GR_TRY(take_memory(run, &m));
    gr_weights_init(&run->weights, (uint64_t)config->run.seed);
    GR_TRY(gr_judge_model_load(&run->judge));
    GR_TRY(gr_rollout_open(&run->rollout, &run->engine, run->envs, (uint64_t)config->run.seed));
    return GR_OK;
}

void gr_run_close(gr_run* run)
{
    gr_run_log_close(&run->log);
    gr_rollout_close(run->rollout);
    gr_envs_close(run->envs);
    for (int64_t i = 0; i < run->tree_cap; i++) gr_tree_free(&run->tree[i]);
    for (int64_t i = 0; i < run->credit_cap; i++) gr_credit_free(&run->credit[i]);
    free(run->tree);
    free(run->credit);
    free(run->task);
    free(run->member);
    gr_pack_free(&run->pack);
    free(run->demos.logp);
    gr_dev_free(&run->dev, run->device.base);
    free(run->host.base);
    gr_dev_close(&run->dev);
    gr_judge_model_close(&run->judge);
    gr_tokenizer_free(run->tokenizer);
    memset(run, 0, sizeof *run);
}
