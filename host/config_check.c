/* config_check.c - settings against each other, before any work. Errors name keys and the reason. */
#include <string.h>

#include "host/config_parts.h"

#define PAGE 16 /* tokens of a KV page */

/* ---- keys that another key switches off --------------------------------------------------------- */

static const char shape[] =
    "layers|width|heads|kv_heads|head_dim|mlp|vocab|rope_theta|norm_eps|qkv_bias|qk_norm|tied";
static const char hierarchy[] =
    "switch_adv|gamma|lambda_low|lambda_high|keep|keep_penalty|consistency_penalty|"
    "invalid_penalty|bootstrap|normalise";
static const char learning[] = "batch|lr|warmup_steps|final_ratio";

/* The keys act only where the condition holds. */
static const struct {
    const char *section, *keys, *condition;
} switches[] = {
    {"model", shape, "model.path="},
    {"model", shape, "warmstart.load="},
    {"model", "reference", "!loss.kl=none"},
    {"rollout", "refill_max", "!rollout.refill=none"},
    {"optimizer", "final_ratio", "!optimizer.schedule=constant"},
    {"hiper", hierarchy, "advantage.estimator=hae"},
    {"proceed", "told", "proceed.refiner=policy"},
    {"proceed", "ratio|mask", "proceed.loss=surrogate"},
    {"proceed", "mu", "proceed.loss=sft"},
    {"proceed", "phi_scale", "proceed.weight=phi"},
    {"judge", "weights|blend", "scorer.name=judge"},
    {"judge", "chat|think", "!judge.model="},
    {"judge", "reads", "judge.model="},
    {"judge", "history", "judge.reads=text"},
    {"value", "coef", "value.backbone=shared"},
    {"warmstart", "load", "model.path="},
    {"warmstart", "steps", "warmstart.load="},
    {"warmstart", learning, "warmstart.load="},
    {"warmstart", learning, "!warmstart.steps=0"},
};

bool gr_config_idle_key(const gr_config* c, const gr_block* b, const gr_setting* s, char* why,
                        size_t cap)
{
    for (int i = 0; i < GR_COUNT(switches); i++) {
        if (strcmp(switches[i].section, b->name) != 0) continue;
        bool named = gr_choice_has(switches[i].keys, s->key);
        if (named && !gr_config_holds(c, switches[i].condition, why, cap)) return true;
    }
    return false;
}

/* ---- what follows from other settings ------------------------------------------------------------- */

static int64_t path_pages(const gr_config_rollout* r) { return (r->max_context + PAGE - 1) / PAGE; }

static gr_status derive(gr_config* c)
{
    gr_config_rollout* r = &c->rollout;
    gr_config_loss* l = &c->loss;
    if (r->groups_per_step == 0 && r->tokens_per_step == 0) r->groups_per_step = 8;
    if (r->kv_pages == 0) r->kv_pages = GR_MIN(2 * r->max_live * path_pages(r) + 2, 67108864);
    if (l->aggregation == GR_AGG_CONSTANT && l->length == 0) {
        if (r->max_turns == 0) {
            return GR_FAIL(GR_EARG, "loss.aggregation = constant needs loss.length, or "
                                    "rollout.max_turns to derive it from");
        }
        l->length = r->max_turns * r->max_turn_tokens;
    }
    return GR_OK;
}

/* ---- checks --------------------------------------------------------------------------------------- */

static gr_status check_run(const gr_config* c)
{
    const char* name = c->run.name;
    if (name[0] == 0 || strchr(name, '/') != NULL || strcmp(name, ".") == 0 ||
        strcmp(name, "..") == 0) {
        return GR_FAIL(GR_EARG, "run.name = `%s` must be the name of one folder", name);
    }
    if (c->run.dir[0] == 0) return GR_FAIL(GR_EARG, "run.dir is empty; `.` is the present folder");
    return GR_OK;
}

static gr_status check_model(const gr_config* c)
{
    const gr_config_model* m = &c->model;
    if (m->path[0] != 0 || c->warmstart.load[0] != 0) return GR_OK; /* the shape comes from there */
    if (m->heads % m->kv_heads != 0) {
        return GR_FAIL(GR_EARG, "model.heads = %lld is no multiple of model.kv_heads = %lld",
                       (long long)m->heads, (long long)m->kv_heads);
    }
    if (m->head_dim == 0 && m->width % m->heads != 0) {
        return GR_FAIL(GR_EARG,
                       "model.width = %lld is no multiple of model.heads = %lld; set "
                       "model.head_dim",
                       (long long)m->width, (long long)m->heads);
    }
    int64_t head_dim = m->head_dim > 0 ? m->head_dim : m->width / m->heads;
    if (head_dim % 2 != 0) {
        return GR_FAIL(
            GR_EARG, "%s gives heads of %lld: rotary positions turn pairs, so it must be even",
            m->head_dim > 0 ? "model.head_dim" : "model.width / model.heads", (long long)head_dim);
    }
    return GR_OK;
}

static gr_status check_rollout(const gr_config* c)
{
    const gr_config_rollout* r = &c->rollout;
    if (r->max_turn_tokens >= r->max_context) {
        return GR_FAIL(GR_EARG,
                       "rollout.max_turn_tokens = %lld leaves no room for a prompt in "
                       "rollout.max_context = %lld",
                       (long long)r->max_turn_tokens, (long long)r->max_context);
    }
    if (r->kv_pages < path_pages(r) + 2) {
        return GR_FAIL(GR_EARG,
                       "rollout.kv_pages = %lld is too small: one path of rollout.max_context = "
                       "%lld takes %lld",
                       (long long)r->kv_pages, (long long)r->max_context,
                       (long long)path_pages(r) + 2);
    }
    if (strcmp(c->advantage.estimator, "hae") == 0 && r->interface != GR_INTERFACE_HIPER) {
        return GR_FAIL(GR_EARG,
                       "advantage.estimator = hae needs rollout.interface = hiper: it gives "
                       "credit to switches, subgoals and actions");
    }
    if (strcmp(r->strategy, "proceed") == 0 && r->interface != GR_INTERFACE_PLAIN) {
        return GR_FAIL(GR_EARG, "rollout.strategy = proceed needs rollout.interface = plain: a "
                                "step that is made again is a plain action");
    }
    if (r->max_tree_turns > 0 && r->max_tree_turns < r->group) {
        return GR_FAIL(GR_EARG,
                       "rollout.max_tree_turns = %lld is less than one turn for each branch of "
                       "rollout.group = %lld",
                       (long long)r->max_tree_turns, (long long)r->group);
    }
    return GR_OK;
}

static gr_status check_loss(const gr_config* c)
{
    const gr_config_loss* l = &c->loss;
    if (l->weighting == GR_WEIGHT_ONCE_MEAN && l->aggregation != GR_AGG_TOKEN_MEAN) {
        return GR_FAIL(GR_EARG, "loss.weighting = once_mean counts unique tokens and needs "
                                "loss.aggregation = token_mean");
    }
    if (l->kl != 0 && l->kl_coef == 0) {
        return GR_FAIL(GR_EARG, "loss.kl has no effect: loss.kl_coef is 0");
    }
    if (l->kl == 0 && l->kl_coef != 0) {
        return GR_FAIL(GR_EARG, "loss.kl_coef has no effect: loss.kl is none");
    }
    if (l->dual_clip != 0 && l->dual_clip <= 1) { /* Ye et al. 2020, arXiv:1912.09729 */
        return GR_FAIL(GR_EARG, "loss.dual_clip = %g bounds the ratio and must be above 1, or 0",
                       l->dual_clip);
    }
    if (l->length != 0 && l->aggregation != GR_AGG_CONSTANT) {
        return GR_FAIL(GR_EARG, "loss.length has no effect: loss.aggregation is not constant");
    }
    return GR_OK;
}

static gr_status check_optimizer(const gr_config* c)
{
    const gr_config_optimizer* o = &c->optimizer;
    const gr_config_rollout* r = &c->rollout;
    if (o->microbatch_tokens < r->max_context) {
        return GR_FAIL(GR_EARG,
                       "optimizer.microbatch_tokens = %lld must hold a path of "
                       "rollout.max_context = %lld",
                       (long long)o->microbatch_tokens, (long long)r->max_context);
    }
    if (r->groups_per_step > 0 && o->minibatches > r->groups_per_step) {
        return GR_FAIL(GR_EARG,
                       "optimizer.minibatches = %lld: a minibatch is whole trees, and "
                       "rollout.groups_per_step is %lld",
                       (long long)o->minibatches, (long long)r->groups_per_step);
    }
    return GR_OK;
}

gr_status gr_config_resolve(gr_config* c)
{
    GR_TRY(derive(c));
    GR_TRY(check_run(c));
    GR_TRY(check_model(c));
    GR_TRY(check_rollout(c));
    GR_TRY(check_loss(c));
    return check_optimizer(c);
}

/* ---- training ------------------------------------------------------------------------------------- */

gr_status gr_config_check_train(const gr_config* c)
{
    const gr_config_rollout* r = &c->rollout;
    const char* cut = r->top_k != 0 ? "top_k" : r->top_p != 1 ? "top_p" : "min_p";
    if (r->top_k != 0 || r->top_p != 1 || r->min_p != 0) {
        return GR_FAIL(GR_EARG,
                       "rollout.%s is for eval and generate: a training rollout must sample from "
                       "the distribution that the loss differentiates",
                       cut);
    }
    if (c->run.steps == 0 && c->budget.turns == 0 && c->budget.tokens == 0 &&
        c->budget.minutes == 0) {
        return GR_FAIL(GR_EARG, "run.steps, budget.turns, budget.tokens and budget.minutes are all "
                                "0: the run would never end");
    }
    if (c->log.quiet && c->log.json) {
        return GR_FAIL(GR_EARG, "log.json has no effect: log.quiet is set");
    }
    bool compares = !gr_choice_has("gae|hae", c->advantage.estimator);
    if (r->group == 1 && strcmp(r->strategy, "flat") == 0 && compares) {
        return GR_FAIL(GR_EARG, "rollout.group = 1 with rollout.strategy = flat: every advantage "
                                "would be 0");
    }
    return GR_OK;
}
