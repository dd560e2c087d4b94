#include "host/step.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

void gr_step_begin(gr_step* st, const gr_run* run)
{
    double ckpt_s = st->ckpt_s;
    *st = (gr_step){
        .begin_s = gr_now_s(),
        .ckpt_s = ckpt_s,
        .before = *gr_rollout_time(run->rollout),
        .counts = run->engine.counts,
        .judge_prefill = run->judge.engine.counts.prefill_tokens,
        .grad_norm = (double)NAN,
        .lr = (double)NAN,
        .value_grad_norm = (double)NAN,
        .value_lr = (double)NAN,
    };
}

/* Nodes whose tokens carry a gradient: on the path of a leaf with a non-zero advantage. */
static int64_t informative_nodes(const gr_credit* c)
{
    const gr_tree* t = c->tree;
    int64_t n = 0;
    if (c->idle) return 0;
    for (int node = 1; node < t->n_nodes; node++) {
        if (t->n_action[node] == 0 || !t->train[node]) continue;
        bool taught = c->per_node && c->node_adv[node] != 0;
        for (int l = 0; l < c->n_leaves && !taught && !c->per_node; l++) {
            int up = c->leaf[l];
            while (up > node) up = t->parent[up];
            taught = up == node && gr_credit_at(c, l, node) != 0;
        }
        n += taught;
    }
    return n;
}

static void count_ledger(gr_step* st, const gr_tree* t)
{
    st->env_turns += t->env_turns;
    st->gen_tokens += t->gen_tokens;
    st->refiner_tokens += t->refiner_tokens;
    st->critic_tokens += t->critic_tokens;
    st->scorer_calls += t->scorer_calls;
    st->unanswered += t->unanswered;
    for (int e = 0; e < GR_N_ENV_ERRORS; e++) st->errors[e] += t->env_errors[e];
}

static void count_nodes(gr_step* st, const gr_tree* t)
{
    st->nodes += t->n_nodes;
    for (int i = 1; i < t->n_nodes; i++) {
        st->turns += t->stepped[i];
        st->rewound += t->kind[i] == GR_REJECTED;
        st->demos += t->kind[i] == GR_DEMO;
        st->valid += t->stepped[i] && t->valid[i];
        int k = gr_tree_n_children(t, i);
        st->inner += k > 0;
        st->children += k;
    }
}

void gr_step_count(gr_step* st, const gr_credit* c)
{
    const gr_tree* t = c->tree;
    double solved = 0;
    count_ledger(st, t);
    count_nodes(st, t);
    st->groups++;
    st->idle += c->idle;
    st->leaves += c->n_leaves;
    for (int l = 0; l < c->n_leaves; l++) {
        int leaf = c->leaf[l];
        double s = c->split[l];
        solved += t->success[leaf];
        st->reward_weight += s;
        st->reward += s * c->ret[l];
        st->reward_sq += s * c->ret[l] * c->ret[l];
        st->depth += t->turn[leaf];
        st->turns_max = GR_MAX(st->turns_max, t->turn[leaf]);
        st->truncated += t->status[leaf] == GR_TRUNCATED || t->status[leaf] == GR_TIME_LIMIT;
    }
    if (c->n_leaves > 0) {
        bool all = solved == c->n_leaves, none = solved == 0;
        st->solve_all += all;
        st->solve_none += none;
        st->solve_partial += !all && !none;
    }
    st->informative += informative_nodes(c);
    if (c->idle) st->discarded_tokens += t->gen_tokens;
}

void gr_step_count_plans(gr_step* st, const gr_hiper_settings* s, const gr_tree* t)
{
    char text[GR_TURN_MAX];
    gr_plan p;
    for (int i = 1; i < t->n_nodes; i++) {
        if (!t->stepped[i]) continue;
        int n = gr_tree_action_text(t, i, text, sizeof text);
        gr_plan_parse(text, n, s->tags, &p);
        st->plans++;
        st->switches += p.switched;
        st->well_formed += p.valid;
    }
}

void gr_step_discard(gr_step* st, const gr_credit* c)
{
    count_ledger(st, c->tree);
    st->discarded_tokens += c->tree->gen_tokens;
}

void gr_step_add_loss(gr_step* st, const gr_loss_sums* sums, const gr_pack* pack, bool first)
{
    gr_loss_sums* l = &st->loss;
    l->loss += sums->loss;
    l->weight += sums->weight;
    l->rows += sums->rows;
    l->entropy += sums->entropy;
    l->kl_old += sums->kl_old;
    l->kl_ref += sums->kl_ref;
    l->clip_low += sums->clip_low;
    l->clip_high += sums->clip_high;
    st->minibatches++;
    st->loss_tokens += pack->trained;
    st->loss_tokens_flat += pack->trained_flat;
    st->tokens += pack->tokens;
    st->tokens_flat += pack->tokens_flat;
    if (first && sums->rows > 0) {
        st->parity_max = sums->max_abs_dlogp;
        st->parity_sum = sums->sum_abs_dlogp;
        st->parity_rows = sums->rows;
    }
}

void gr_step_add_values(gr_step* st, const gr_value_sums* sums)
{
    st->value.loss += sums->loss;
    st->value.weight += sums->weight;
    st->value.target += sums->target;
    st->value.target_sq += sums->target_sq;
    st->value.error_sq += sums->error_sq;
}

void gr_step_charge(gr_run* run, const gr_step* st)
{
    gr_train_state* s = &run->state;
    s->env_turns += st->env_turns;
    s->gen_tokens += st->gen_tokens;
    s->refiner_tokens += st->refiner_tokens;
    s->critic_tokens += st->critic_tokens;
    s->scorer_calls += st->scorer_calls;
    s->charged_turns += st->env_turns + st->scorer_calls * run->train_settings.scorer->turn_cost;
    s->prefill_tokens += run->engine.counts.prefill_tokens - st->counts.prefill_tokens;
    s->prefill_tokens += run->judge.engine.counts.prefill_tokens - st->judge_prefill;
    s->loss_tokens += st->loss_tokens;
    s->loss_tokens_flat += st->loss_tokens_flat;
    s->discarded_tokens += st->discarded_tokens;
    for (int e = 0; e < GR_N_ENV_ERRORS; e++) s->env_errors[e] += st->errors[e];
}

static double ratio(double a, double b) { return b != 0 ? a / b : (double)NAN; }

/* Trajectories that the world lost, as a share of all and by class. */
static void metrics_of_errors(const gr_step* st, gr_metrics* m)
{
    char name[64];
    int64_t all = 0;
    for (int e = GR_ENV_OK + 1; e < GR_N_ENV_ERRORS; e++) {
        (void)snprintf(name, sizeof name, "errors/%s", gr_env_error_name((gr_env_error)e));
        gr_metrics_set(m, name, (double)st->errors[e]);
        all += st->errors[e];
    }
    gr_metrics_set(m, "turns/error_frac", ratio((double)all, (double)(st->leaves + all)));
}

static void metrics_of_trees(const gr_step* st, bool demos, gr_metrics* m)
{
    double groups = (double)st->groups, leaves = (double)st->leaves;
    double mean = ratio(st->reward, st->reward_weight);
    double var = ratio(st->reward_sq, st->reward_weight) - mean * mean;
    gr_metrics_set(m, "reward/mean", mean);
    gr_metrics_set(m, "reward/std", sqrt(fmax(var, 0)));
    gr_metrics_set(m, "group/solve_all", ratio((double)st->solve_all, groups));
    gr_metrics_set(m, "group/solve_none", ratio((double)st->solve_none, groups));
    gr_metrics_set(m, "group/solve_partial", ratio((double)st->solve_partial, groups));
    gr_metrics_set(m, "group/frac_zero_adv", ratio((double)st->idle, groups));
    gr_metrics_set(m, "tree/nodes", ratio((double)st->nodes, groups));
    gr_metrics_set(m, "tree/leaves", ratio(leaves, groups));
    gr_metrics_set(m, "tree/depth_mean", ratio((double)st->depth, leaves));
    gr_metrics_set(m, "tree/branch_factor", ratio((double)st->children, (double)st->inner));
    gr_metrics_set(m, "tree/token_ratio", ratio((double)st->tokens_flat, (double)st->tokens));
    gr_metrics_set(m, "tree/informative_nodes_per_1k_tokens",
                   ratio(1000 * (double)st->informative, (double)st->gen_tokens));
    gr_metrics_set(m, "turns/mean", ratio((double)st->depth, leaves));
    gr_metrics_set(m, "turns/max", (double)st->turns_max);
    gr_metrics_set(m, "turns/truncated_frac", ratio((double)st->truncated, leaves));
    metrics_of_errors(st, m);
    gr_metrics_set(m, "turns/valid_action_frac", ratio((double)st->valid, (double)st->turns));
    if (demos) {
        gr_metrics_set(m, "demo/rewound_frac", ratio((double)st->rewound, (double)st->turns));
        gr_metrics_set(m, "demo/kept_frac", ratio((double)st->demos, (double)st->rewound));
    }
    if (st->plans == 0) return;
    gr_metrics_set(m, "plan/switch_frac", ratio((double)st->switches, (double)st->plans));
    gr_metrics_set(m, "plan/well_formed_frac", ratio((double)st->well_formed, (double)st->plans));
}

static void metrics_of_update(const gr_step* st, gr_metrics* m)
{
    const gr_loss_sums* l = &st->loss;
    gr_metrics_set(m, "policy/loss", ratio(l->loss, (double)st->minibatches));
    gr_metrics_set(m, "policy/entropy", ratio(l->entropy, l->weight));
    gr_metrics_set(m, "policy/kl_old", ratio(l->kl_old, l->weight));
    gr_metrics_set(m, "policy/kl_ref", ratio(l->kl_ref, l->weight));
    gr_metrics_set(m, "policy/clip_low", ratio(l->clip_low, l->weight));
    gr_metrics_set(m, "policy/clip_high", ratio(l->clip_high, l->weight));
    gr_metrics_set(m, "policy/grad_norm", st->grad_norm);
    gr_metrics_set(m, "policy/lr", st->lr);
    gr_metrics_set(m, "parity/max_abs_dlogp", st->parity_rows > 0 ? st->parity_max : (double)NAN);
    gr_metrics_set(m, "parity/mean_abs_dlogp", ratio(st->parity_sum, st->parity_rows));
}

/* Targets are those of all leaves, so the explained variance is that of flat rows. */
static void metrics_of_values(const gr_step* st, gr_metrics* m)
{
    const gr_value_sums* v = &st->value;
    double mean = ratio(v->target, v->weight);
    double var = ratio(v->target_sq, v->weight) - mean * mean;
    gr_metrics_set(m, "value/loss", ratio(v->loss, v->weight));
    gr_metrics_set(m, "value/target", mean);
    gr_metrics_set(m, "value/explained", 1 - ratio(ratio(v->error_sq, v->weight), var));
    gr_metrics_set(m, "value/grad_norm", st->value_grad_norm);
    gr_metrics_set(m, "value/lr", st->value_lr);
}

static void metrics_of_ledger(const gr_run* run, const gr_step* st, gr_metrics* m)
{
    const gr_train_state* s = &run->state;
    const gr_rollout_times* now = gr_rollout_time(run->rollout);
    double gen_s = now->gen_s - st->before.gen_s;
    gr_metrics_set(m, "budget/env_turns", (double)s->env_turns);
    gr_metrics_set(m, "budget/gen_tokens", (double)s->gen_tokens);
    if (run->demos.s != NULL) {
        gr_metrics_set(m, "budget/refiner_tokens", (double)s->refiner_tokens);
    }
    if (run->judge.s != NULL) {
        gr_metrics_set(m, "budget/critic_tokens", (double)s->critic_tokens);
        gr_metrics_set(m, "critic/unanswered_frac",
                       ratio((double)st->unanswered, (double)st->scorer_calls));
    }
    gr_metrics_set(m, "budget/prefill_tokens", (double)s->prefill_tokens);
    gr_metrics_set(m, "budget/scorer_calls", (double)s->scorer_calls);
    gr_metrics_set(m, "budget/charged_turns", (double)s->charged_turns);
    gr_metrics_set(m, "budget/loss_tokens", (double)s->loss_tokens);
    gr_metrics_set(m, "budget/loss_tokens_flat", (double)s->loss_tokens_flat);
    gr_metrics_set(m, "budget/discarded_tokens", (double)s->discarded_tokens);
    gr_metrics_set(m, "time/gen", gen_s);
    gr_metrics_set(m, "time/env", now->env_s - st->before.env_s);
    gr_metrics_set(m, "time/score", now->score_s - st->before.score_s);
    gr_metrics_set(m, "time/train", st->train_s);
    gr_metrics_set(m, "perf/gen_tok_s", ratio((double)st->gen_tokens, gen_s));
    gr_metrics_set(m, "perf/train_tok_s", ratio((double)st->tokens, st->train_s));
    gr_metrics_set(m, "perf/saved_prefill_tok",
                   (double)(run->engine.counts.shared_tokens - st->counts.shared_tokens));
    gr_metrics_set(m, "mem/arena_gb", (double)(run->host.peak + run->device.peak) / 1e9);
    gr_metrics_set(m, "mem/kv_pages_used", (double)run->engine.counts.pages_peak);
}

void gr_step_metrics(const gr_run* run, const gr_step* st, gr_metrics* m)
{
    metrics_of_trees(st, run->demos.s != NULL, m);
    metrics_of_update(st, m);
    if (run->critic.n_heads > 0) metrics_of_values(st, m);
    metrics_of_ledger(run, st, m);
}

gr_status gr_step_write_aside(gr_run* run, int n_members)
{
    gr_run_log aside = run->log;
    char path[sizeof run->log.dir + 48];
    (void)snprintf(path, sizeof path, "%s/skipped-%06lld.jsonl", run->log.dir,
                   (long long)run->state.step + 1); /* the step in progress, as in the tree log */
    aside.trees = fopen(path, "ae");
    if (aside.trees == NULL) return GR_FAIL(GR_EIO, "%s: %s", path, strerror(errno));
    gr_status st = GR_OK;
    for (int i = 0; i < n_members && st == GR_OK; i++) {
        st = gr_tree_log_write(&aside, run->member[i], gr_envs_world(run->envs));
    }
    if (fclose(aside.trees) != 0 && st == GR_OK) st = GR_FAIL(GR_EIO, "%s: write failed", path);
    gr_log("warning: step %lld: loss or gradient not finite; update left out, batch in %s",
           (long long)run->state.step + 1, path);
    return st;
}
