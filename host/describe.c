/* describe.c - a run in words: what was chosen, what is optimised, what it takes. */
#include <stdio.h>

#include "host/train.h"

static const char* weighting(int w)
{
    static const char* const text[] = {
        "every leaf counts as a row of its own, shared tokens once per leaf",
        "leaves of a fork share its weight, so a group weighs its initial branches",
        "shared tokens weigh 1/sqrt(leaves below)",
        "every unique token counts once with the mean advantage of the leaves below",
    };
    return text[w];
}

static const char* aggregation(int a)
{
    static const char* const text[] = {
        "mean over leaves of the mean over their tokens",
        "mean over tokens",
        "sum over tokens divided by leaves x loss.length",
    };
    return text[a];
}

static void demonstrations(const gr_run* run)
{
    static const char* const left_out[] = {"none is left out", "those of failed paths are left out",
                                           "those of paths without advantage are left out"};
    const gr_proceed_settings* s = run->demos.s;
    if (s == NULL) return;
    gr_log("critic     %s judges each step in %.3g of a group's branches; level %lld and below is",
           run->config->scorer.name, s->share, (long long)s->threshold);
    gr_log("           taken back and made again by the %s, %lld time%s at most",
           s->refiner == GR_REFINER_EXPERT ? "world's demonstrator" : "policy", (long long)s->tries,
           s->tries > 1 ? "s" : "");
    if (s->loss == GR_DEMO_SFT) {
        gr_log("           + %.3g x -log p of steps made again on paths that succeed, the policy's "
               "loss %.3g times",
               s->mu, 1 - s->mu);
    } else {
        gr_log("           steps made again are trained in their path's own context, ratio %s;",
               s->ratio == GR_RATIO_ONE ? "1" : "to the policy before the step");
        gr_log("           %s", left_out[s->mask]);
    }
    if (s->weight == GR_PHI) gr_log("           their tokens weigh %.3g p (1 - p)", s->phi_scale);
}

static void objective(const gr_run* run)
{
    const gr_config* c = run->config;
    const gr_loss_params* l = &run->loss;
    gr_log("objective  clipped policy gradient, ratio in [%.3g, %.3g]", 1 - l->clip_low,
           1 + l->clip_high);
    if (l->dual_clip > 0)
        gr_log("           dual clip at ratio %.3g where the advantage is negative", l->dual_clip);
    gr_log("           advantage: %s; temperature %.3g", c->advantage.estimator,
           (double)l->temperature);
    gr_log("           %s;", aggregation(c->loss.aggregation));
    gr_log("           %s", weighting(c->loss.weighting));
    if (l->kl != GR_KL_NONE) {
        gr_log("           + %.3g x KL to %s (k%d)", l->kl_coef,
               c->model.reference[0] ? c->model.reference : "the weights before training",
               (int)l->kl);
    }
    if (l->entropy_coef != 0) gr_log("           - %.3g x entropy", l->entropy_coef);
    if (run->critic.n_heads == 0) {
        gr_log("           groups whose advantages are all 0 are %s",
               c->loss.count_idle_groups ? "counted in the denominators" : "left out");
        return;
    }
    const gr_critic_settings* v = run->critic.s;
    gr_log("values     %d scalar head%s on %s; squared error%s, rate %.3g", run->critic.n_heads,
           run->critic.n_heads > 1 ? "s" : "",
           v->backbone == GR_BACKBONE_SHARED ? "the policy's hidden rows" : "a model of their own",
           v->clip > 0 ? ", clipped" : "", v->lr);
}

static void sampling(const gr_run* run)
{
    const gr_config_rollout* r = &run->config->rollout;
    gr_log("rollouts   %s: %lld initial branches a group, scorer %s", r->strategy,
           (long long)r->group, run->config->scorer.name);
    if (run->train_settings.scorer->privileged) {
        gr_log("           the scorer runs the hidden tests that judge: for training alone");
    }
    if (r->tokens_per_step > 0) {
        gr_log("           about %lld sampled tokens a step%s", (long long)r->tokens_per_step,
               r->groups_per_step > 0 ? ", at most rollout.groups_per_step groups" : "");
    } else {
        gr_log("           %lld groups a step", (long long)r->groups_per_step);
    }
    if (r->interface == GR_INTERFACE_HIPER) {
        gr_log("           turns of switch, subgoal and action, ended by %s",
               gr_plan_stop(run->train_settings.plan->tags));
    }
    if (r->max_tree_turns > 0) {
        gr_log("           at most %lld environment turns a tree", (long long)r->max_tree_turns);
    }
}

static void judge(const gr_run* run)
{
    const gr_judge_settings* s = run->judge.s;
    const gr_model_config* m = &run->judge.shape;
    if (s == NULL) return;
    if (run->judge.own) {
        gr_log("judge      %s: %lld parameters, %d layers, %d wide", s->model,
               (long long)run->judge.weights.n_params, m->layers, m->width);
    } else {
        gr_log("judge      the policy itself");
    }
    gr_log("           answers of at most %lld tokens, temperature %.3g; a question costs a turn",
           (long long)s->max_tokens, s->temperature);
    if (s->max_calls > 0) gr_log("           at most %lld a tree", (long long)s->max_calls);
}

static void memory(const gr_run* run)
{
    const gr_memory_plan* p = &run->plan;
    const double mb = 1e6;
    gr_log(
        "memory     weights %.1f MB, optimizer %.1f, reference %.1f, KV pages %.1f, decoding %.1f,",
        (double)p->weights / mb, (double)p->optimizer / mb, (double)p->reference / mb,
        (double)p->kv_pool / mb, (double)p->decode / mb);
    gr_log("           judge %.1f, training %.1f, value model %.1f, host tables %.1f; together "
           "%.1f MB",
           (double)p->judge / mb, (double)p->train / mb, (double)p->value / mb,
           (double)p->host / mb,
           (double)(p->weights + p->optimizer + p->reference + p->kv_pool + p->decode + p->judge +
                    p->train + p->value + p->host) /
               mb);
}

void gr_run_describe(const gr_run* run)
{
    const gr_model_config* m = &run->weights.config;
    gr_log("device     %s", run->dev.detail);
    gr_log(
        "model      %lld parameters: %d layers, %d wide, %d heads (%d KV), MLP %d, vocabulary %d",
        (long long)run->weights.n_params, m->layers, m->width, m->heads, m->kv_heads, m->mlp,
        m->vocab);
    if (run->mode == GR_RUN_TRAIN) {
        sampling(run);
        objective(run);
        demonstrations(run);
        judge(run);
    }
    memory(run);
}
