/* train.c - the training loop: sample, credit, pack, update, record.
 *
 * The tree is the only thing that changes while sampling and is closed before credit is assigned;
 * after that data flows one way. step.c turns what happened into numbers. */
#include "host/train.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/progress.h"
#include "host/step.h"
#include "host/watchdog.h"

static volatile sig_atomic_t stop_requested;

void gr_train_stop(void) { stop_requested = 1; }

double gr_train_progress(const gr_run* run)
{
    const gr_config* c = run->config;
    const gr_train_state* s = &run->state;
    double p = 0;
    if (c->run.steps > 0) p = fmax(p, (double)s->step / (double)c->run.steps);
    if (c->budget.turns > 0) p = fmax(p, (double)s->charged_turns / (double)c->budget.turns);
    if (c->budget.tokens > 0) p = fmax(p, (double)s->gen_tokens / (double)c->budget.tokens);
    return fmin(p, 1);
}

static bool finished(const gr_run* run)
{
    double minutes = run->config->budget.minutes;
    return gr_train_progress(run) >= 1 || (minutes > 0 && run->state.seconds >= 60 * minutes);
}

/* ---- sample ------------------------------------------------------------------------------------------ */

/* A permutation of [0, n) under `key`: four Feistel rounds on the next even power of two, walked until
 * the result is in range. Every task is met once an epoch, in an order of its own. */
static int64_t permute(int64_t index, int64_t n, uint64_t key)
{
    int half = 1;
    while ((int64_t)1 << (2 * half) < n) half++;
    uint64_t mask = ((uint64_t)1 << half) - 1, x = (uint64_t)index;
    do {
        uint64_t l = x >> half, r = x & mask;
        for (uint64_t round = 0; round < 4; round++) {
            uint64_t f = gr_key_join(key + round, r) & mask;
            uint64_t t = l ^ f;
            l = r;
            r = t;
        }
        x = l << half | r;
    } while ((int64_t)x >= n);
    return (int64_t)x;
}

static int64_t next_task(gr_run* run)
{
    int64_t n = gr_envs_n_tasks(run->envs, GR_TRAIN), at = run->state.next_task++;
    return permute(at % n, n, gr_key_join((uint64_t)run->config->run.seed, (uint64_t)(at / n)));
}

static int64_t groups_of_step(const gr_run* run)
{
    const gr_config_rollout* c = &run->config->rollout;
    int64_t n = c->groups_per_step;
    if (c->tokens_per_step > 0) {
        double per_group = run->state.tokens_per_group;
        if (per_group <= 0) { /* no step yet: turns rarely use their cap */
            per_group = 0.6 * (double)(c->group * gr_envs_horizon(run->envs) * c->max_turn_tokens);
        }
        int64_t fit = (int64_t)llround((double)c->tokens_per_step / per_group);
        n = n > 0 ? GR_MIN(n, fit) : fit;
    }
    return GR_MAX(n, GR_MAX(run->config->optimizer.minibatches, 1));
}

/* Values, and log-probs of demonstrations, are read on the whole step at once: one forward over its
 * packed trees. */
static gr_status read_answers(gr_run* run, int64_t first, int64_t n)
{
    if (run->critic.n_heads == 0 && run->demos.s == NULL) return GR_OK;
    GR_TRY(gr_pack_ask(&run->pack, run->credit + first, (int)n,
                       (int)run->config->optimizer.microbatch_tokens));
    return gr_critic_answer(&run->critic, &run->objective, &run->pack, run->loss.temperature);
}

static gr_status assign_credit(gr_run* run, int64_t first, int64_t n)
{
    const void* settings = run->estimator_settings;
    for (int64_t i = first; i < first + n; i++) {
        gr_credit_begin(&run->credit[i], &run->tree[i], run->estimator, settings);
        gr_demos_ask(&run->demos, &run->credit[i]);
    }
    GR_TRY(read_answers(run, first, n));
    for (int64_t i = first; i < first + n; i++) {
        gr_demos_hear(&run->demos, &run->credit[i], &run->tree[i]);
        gr_credit_finish(&run->credit[i], run->estimator, settings, run->config->advantage.eps);
    }
    gr_credit_normalise(run->credit + first, (int)n);
    for (int64_t i = first; i < first + n; i++) gr_demos_credit(&run->demos, &run->credit[i]);
    return GR_OK;
}

static gr_status grow(gr_run* run, int64_t first, int64_t n)
{
    GR_TRY(gr_rollout_run(run->rollout, &run->train_settings, run->task + first, (int)n,
                          run->tree + first));
    return assign_credit(run, first, n);
}

/* A group is its tree, its task and its credit. */
static void swap_groups(gr_run* run, int64_t a, int64_t b)
{
    gr_tree t = run->tree[a];
    run->tree[a] = run->tree[b], run->tree[b] = t;
    gr_credit c = run->credit[a];
    run->credit[a] = run->credit[b], run->credit[b] = c;
    gr_rollout_task k = run->task[a];
    run->task[a] = run->task[b], run->task[b] = k;
}

/* Moves groups that cannot teach behind the others, order kept; returns how many teach. */
static int64_t idle_last(gr_run* run, int64_t n)
{
    int64_t kept = 0;
    for (int64_t i = 0; i < n; i++) {
        if (run->credit[i].idle) continue;
        for (int64_t j = i; j > kept; j--) swap_groups(run, j, j - 1);
        kept++;
    }
    for (int64_t i = 0; i < n; i++) run->credit[i].tree = &run->tree[i];
    return kept;
}

/* Trees of this step with their credit, rollout.refill applied. */
static gr_status sample(gr_run* run, gr_step* st)
{
    const gr_config_rollout* c = &run->config->rollout;
    int64_t n = st->n_groups = groups_of_step(run);
    run->train_settings.progress = gr_train_progress(run);
    GR_RESERVE(run->tree, run->tree_cap, n);
    GR_RESERVE(run->credit, run->credit_cap, n);
    GR_RESERVE(run->task, run->task_cap, n);
    for (int64_t i = 0; i < n; i++) {
        run->task[i] = (gr_rollout_task){
            .step = run->state.step + 1, .slot = (int)i, .split = GR_TRAIN, .task = next_task(run)};
    }
    GR_TRY(grow(run, 0, n));
    for (int attempt = 1; c->refill != GR_REFILL_NONE && attempt <= c->refill_max; attempt++) {
        int64_t teach = idle_last(run, n);
        if (teach == n) break;
        for (int64_t i = teach; i < n; i++) {
            gr_rollout_task* k = &run->task[i];
            k->extend = c->refill == GR_REFILL_EXTEND;
            if (k->extend) continue;
            gr_step_discard(st, &run->credit[i]);
            k->attempt = attempt;
            k->task = next_task(run);
        }
        GR_TRY(grow(run, teach, n - teach));
    }
    const gr_hiper_settings* plan = run->train_settings.plan;
    for (int64_t i = 0; i < n; i++) gr_step_count(st, &run->credit[i]);
    for (int64_t i = 0; i < n && plan != NULL; i++) gr_step_count_plans(st, plan, &run->tree[i]);
    double per_group = (double)st->gen_tokens / (double)n;
    double* estimate = &run->state.tokens_per_group;
    *estimate = *estimate > 0 ? 0.8 * *estimate + 0.2 * per_group : per_group;
    return GR_OK;
}

/* ---- update ------------------------------------------------------------------------------------------ */

/* Gradients of the packed minibatch, policy's and value model's. */
static gr_status differentiate(gr_run* run, gr_loss_sums* sums, bool first)
{
    gr_optimizer_zero_grad(&run->optimizer);
    if (run->critic.n_heads > 0) gr_critic_begin(&run->critic);
    for (int i = 0; i < run->pack.n_pieces; i++) {
        gr_batch* piece = &run->pack.piece[i];
        GR_TRY(gr_demos_weigh(&run->demos, &run->objective, piece, run->loss.temperature, first));
        if (run->loss.kl != GR_KL_NONE) {
            GR_TRY(gr_objective_logp(&run->reference_objective, piece, run->loss.temperature,
                                     piece->ref_logp));
        }
        GR_TRY(gr_objective_step(&run->objective, piece, &run->loss, run->optimizer.grad, sums));
        if (run->critic.n_heads > 0) GR_TRY(gr_critic_step(&run->critic, piece));
    }
    return GR_OK;
}

/* Steps of policy and value model; neither where a loss is not finite. */
static gr_status step_all(gr_run* run, gr_step* st, const gr_loss_sums* sums, bool* skipped)
{
    double progress = gr_train_progress(run);
    *skipped = run->pack.trained == 0 || !isfinite(sums->loss);
    if (run->critic.n_heads > 0) *skipped = *skipped || !isfinite(run->critic.pass.sums.loss);
    if (*skipped) return GR_OK;
    GR_TRY(gr_optimizer_step(&run->optimizer, &run->optimizer_settings, progress, &st->grad_norm,
                             &st->lr, skipped));
    if (*skipped || run->critic.n_heads == 0) return GR_OK;
    gr_optimizer_settings s = run->optimizer_settings;
    s.lr = run->critic.s->lr;
    return gr_optimizer_step(&run->critic.optimizer, &s, progress, &st->value_grad_norm,
                             &st->value_lr, skipped);
}

/* One optimizer step on whole trees member[0..n). */
static gr_status update_minibatch(gr_run* run, gr_step* st, int n, bool first)
{
    const gr_config* c = run->config;
    gr_denominators d = {0};
    for (int i = 0; i < n; i++) gr_denominators_add(&d, run->member[i], &c->loss);
    GR_TRY(gr_pack_make(&run->pack, run->member, n, &c->loss, &d,
                        (int)c->optimizer.microbatch_tokens));
    gr_loss_sums sums = {0};
    bool skipped = false;
    GR_TRY(differentiate(run, &sums, first));
    GR_TRY(step_all(run, st, &sums, &skipped));
    gr_step_add_loss(st, &sums, &run->pack, first);
    if (run->critic.n_heads > 0) gr_step_add_values(st, &run->critic.pass.sums);
    if (!skipped) {
        run->state.skipped_in_a_row = 0;
        run->state.updates++;
        return GR_OK;
    }
    GR_TRY(gr_step_write_aside(run, n));
    if (++run->state.skipped_in_a_row > c->optimizer.max_skipped) {
        return GR_FAIL(GR_EDATA,
                       "step %lld: loss or gradient not finite %lld times in a row "
                       "(optimizer.max_skipped)",
                       (long long)run->state.step + 1, (long long)run->state.skipped_in_a_row);
    }
    return GR_OK;
}

static gr_status update(gr_run* run, gr_step* st)
{
    const gr_config* c = run->config;
    int64_t n = 0;
    GR_RESERVE(run->member, run->member_cap, st->n_groups);
    const gr_credit** all = run->member;
    for (int64_t i = 0; i < st->n_groups; i++) {
        if (!run->credit[i].idle || c->loss.count_idle_groups) all[n++] = &run->credit[i];
    }
    for (int64_t epoch = 0; epoch < c->optimizer.epochs; epoch++) {
        for (int64_t m = 0; m < c->optimizer.minibatches; m++) {
            int64_t begin = n * m / c->optimizer.minibatches;
            int64_t end = n * (m + 1) / c->optimizer.minibatches;
            if (begin == end) continue;
            run->member = all + begin;
            gr_status s = update_minibatch(run, st, (int)(end - begin), !st->updated);
            run->member = all;
            GR_TRY(s);
            st->updated = true;
        }
    }
    gr_engine_reset(&run->engine); /* pages of the old weights are stale */
    return GR_OK;
}

/* ---- record ------------------------------------------------------------------------------------------ */

static bool eval_due(gr_run* run, bool last)
{
    const gr_config_eval* e = &run->config->eval;
    if (e->tasks == 0) return false;
    if (last || run->state.step == 0) return true;
    if (e->every > 0 && run->state.step % e->every == 0) return true;
    if (e->every_share > 0 && gr_train_progress(run) >= run->state.next_eval) return true;
    return false;
}

static gr_status evaluate(gr_run* run, gr_metrics* m)
{
    const gr_config_eval* e = &run->config->eval;
    gr_eval_result r;
    double begin = gr_now_s();
    gr_sampling sampling = {.temperature = (float)e->temperature, .top_p = 1};
    GR_TRY(gr_evaluate(run, GR_TEST, e->tasks, e->samples, &sampling, &r));
    gr_metrics_set(m, "eval/success", r.success);
    gr_metrics_set(m, "eval/return", r.ret);
    gr_metrics_set(m, "eval/turns", r.turns);
    gr_metrics_set(m, "eval/errors", (double)r.errors);
    if (run->state.best_step < 0 || r.success > run->state.best_success) {
        run->state.best_success = r.success;
        run->state.best_step = run->state.step;
    }
    if (e->greedy) {
        sampling.greedy = true;
        GR_TRY(gr_evaluate(run, GR_TEST, e->tasks, 1, &sampling, &r));
        gr_metrics_set(m, "eval/success_greedy", r.success);
    }
    if (e->every_share > 0) {
        while (run->state.next_eval <= gr_train_progress(run)) {
            run->state.next_eval += e->every_share;
        }
    }
    gr_metrics_set(m, "time/eval", gr_now_s() - begin);
    return GR_OK;
}

static gr_status save(gr_run* run, const char* label)
{
    gr_train_state* s = &run->state;
    GR_TRY(gr_run_log_offsets(&run->log, &s->metrics_bytes, &s->trees_bytes));
    s->weights_hash = gr_weights_hash(&run->weights);
    return gr_checkpoint_save(run->log.dir, s, &run->weights, &run->optimizer, gr_run_critic(run),
                              label, (int)run->config->checkpoint.keep);
}

static gr_status log_trees(gr_run* run, const gr_step* st)
{
    int64_t every = run->config->log.trees_every;
    if (every == 0 || run->state.step % every != 0) return GR_OK;
    for (int64_t i = 0; i < st->n_groups; i++) {
        GR_TRY(gr_tree_log_write(&run->log, &run->credit[i], gr_envs_world(run->envs)));
    }
    return GR_OK;
}

/* The step's line in the logs, and a checkpoint where one is due. */
static gr_status record(gr_run* run, gr_step* st, gr_metrics* m, bool last)
{
    const gr_config* c = run->config;
    double begin = gr_now_s();
    bool best = run->state.best_step == run->state.step && c->checkpoint.best;
    bool due = c->checkpoint.every > 0 && run->state.step % c->checkpoint.every == 0;
    gr_metrics_set(m, "time/ckpt", st->ckpt_s);
    GR_TRY(gr_metrics_write(&run->log, run->state.step, m));
    if (best)
        GR_TRY(save(run, "best")); /* first: a resume starts after the step's own checkpoint */
    if (due || last || stop_requested) GR_TRY(save(run, NULL));
    run->state.seconds += gr_now_s() - st->begin_s;
    st->ckpt_s = gr_now_s() - begin;
    return GR_OK;
}

static gr_status train_step(gr_run* run, gr_step* st, gr_progress* progress)
{
    gr_metrics m = {0};
    gr_step_begin(st, run);
    GR_TRY(sample(run, st));
    double begin = gr_now_s();
    GR_TRY(update(run, st));
    st->train_s = gr_now_s() - begin;
    gr_step_charge(run, st);
    run->state.step++;
    gr_step_metrics(run, st, &m);
    bool last = finished(run);
    GR_TRY(log_trees(run, st)); /* an evaluation grows its own trees in the same place */
    if (eval_due(run, last)) GR_TRY(evaluate(run, &m));
    GR_TRY(record(run, st, &m, last));
    gr_progress_step(progress, run, &m);
    return GR_OK;
}

/* The reference is the model before training, or model.reference. */
static gr_status set_reference(gr_run* run)
{
    if (run->loss.kl == GR_KL_NONE) return GR_OK;
    const gr_config_model* c = &run->config->model;
    char path[1024];
    if (c->reference[0] != 0) {
        (void)snprintf(path, sizeof path, "%s", c->reference);
    } else {
        GR_TRY(gr_checkpoint_find(run->log.dir, "initial", path, sizeof path));
    }
    return gr_checkpoint_load(path, NULL, &run->reference, NULL, NULL);
}

gr_status gr_train_again(gr_run* run, int64_t n)
{
    gr_step st = {0};
    GR_TRY(set_reference(run));
    for (int64_t i = 0; i < n; i++) {
        gr_step_begin(&st, run);
        GR_TRY(sample(run, &st));
        GR_TRY(update(run, &st));
        gr_step_charge(run, &st);
        run->state.step++;
    }
    return GR_OK;
}

/* Opens the run folder: a fresh one, or the newest checkpoint of an unfinished one. */
static gr_status open_log(gr_run* run, bool* resumed)
{
    const gr_config* c = run->config;
    char dir[GR_TEXT_MAX * 2 + 2], path[1024] = "", arithmetic[sizeof run->state.arithmetic];
    (void)snprintf(arithmetic, sizeof arithmetic, "%s %s", run->dev.name,
                   run->dev.matmul == GR_MATMUL_EXACT ? "exact" : "bf16");
    (void)snprintf(dir, sizeof dir, "%s/%s", c->run.dir, c->run.name);
    if (gr_run_log_finished(dir)) {
        return GR_FAIL(GR_EARG, "%s: this run is finished; choose another run.name", dir);
    }
    if (c->run.resume) GR_TRY(gr_checkpoint_find(dir, NULL, path, sizeof path));
    *resumed = path[0] != 0;
    gr_train_state* s = &run->state;
    *s = (gr_train_state){.best_step = -1, .next_eval = c->eval.every_share};
    if (*resumed) {
        GR_TRY(gr_checkpoint_load(path, s, &run->weights, &run->optimizer, gr_run_critic(run)));
        if (s->config_hash != gr_config_hash(c)) {
            return GR_FAIL(GR_EARG, "%s: settings differ from those the run was started with", dir);
        }
        if (strcmp(s->arithmetic, arithmetic) != 0) {
            gr_log("warning: resuming on `%s` a run of `%s`: bits may differ", arithmetic,
                   s->arithmetic);
        }
    }
    s->config_hash = gr_config_hash(c);
    (void)snprintf(s->arithmetic, sizeof s->arithmetic, "%s", arithmetic);
    char* json = gr_config_print(c);
    gr_status st = gr_run_log_open(&run->log, dir, json, *resumed ? s : NULL);
    free(json);
    return st;
}

/* Weights before the first step: given or initial ones, which may learn from demonstrations. */
static gr_status start(gr_run* run)
{
    const gr_config* c = run->config;
    const char* given = c->model.path[0] ? c->model.path : c->warmstart.load;
    if (given[0] != 0) {
        GR_TRY(gr_checkpoint_load(given, NULL, &run->weights, NULL, NULL));
    }
    if (c->warmstart.load[0] == 0 && c->warmstart.steps > 0) GR_TRY(gr_warmstart(run));
    if (run->critic.n_heads > 0) {
        gr_critic_start(&run->critic, &run->weights, (uint64_t)c->run.seed);
    }
    gr_engine_reset(&run->engine);
    return GR_OK;
}

/* The run's first line in the logs: the model before training. */
static gr_status begin(gr_run* run, gr_progress* progress)
{
    gr_metrics m = {0};
    GR_TRY(start(run));
    GR_TRY(save(run, "initial"));
    if (eval_due(run, false)) GR_TRY(evaluate(run, &m));
    GR_TRY(gr_metrics_write(&run->log, 0, &m));
    GR_TRY(save(run, NULL));
    gr_progress_step(progress, run, &m);
    return GR_OK;
}

static gr_status train_all(gr_run* run, gr_watchdog* watchdog, gr_progress* progress)
{
    gr_step st = {0};
    while (!finished(run) && !stop_requested) {
        GR_TRY(train_step(run, &st, progress));
        gr_watchdog_beat(watchdog, run->state.step);
    }
    return GR_OK;
}

gr_status gr_train(gr_run* run)
{
    gr_progress progress = {0};
    gr_watchdog* watchdog = NULL;
    bool resumed = false;
    stop_requested = 0;
    GR_TRY(open_log(run, &resumed));
    if (!resumed) GR_TRY(begin(run, &progress));
    GR_TRY(set_reference(run));
    gr_engine_reset(&run->engine);
    GR_TRY(gr_watchdog_start(&watchdog, run));
    gr_status st = train_all(run, watchdog, &progress);
    gr_watchdog_stop(watchdog);
    GR_TRY(st);
    gr_progress_end(&progress, run);
    return finished(run) ? gr_run_log_finish(&run->log) : GR_OK;
}
