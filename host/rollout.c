/* rollout.c - grows the trees of one step: the loop, turns and rounds.
 *
 * One loop serves all trees: finished actions go to the world, the world's answers close turns, the
 * strategy says how each branch goes on, and open branches ask the engine for their next action. A
 * tree's branches advance independently between two rounds of its strategy; a round happens when none
 * of its branches is running. Completion order inside a round depends on the batch, so nodes are put
 * into canonical order before anything reads their numbers. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "host/rollout_state.h"

enum { KEY_ROUND = 0x726f756e64, KEY_SCORE = 0x73636f7265 };
enum { AROUND = 1024 }; /* bytes that hiper.c puts around an observation, subgoal excepted */

#define DECISIONS 256

gr_status gr_rollout_open(gr_rollout** out, gr_engine* engine, gr_envs* envs, uint64_t run_seed)
{
    gr_rollout* r = calloc(1, sizeof *r);
    int shown_cap = gr_envs_world(envs)->obs_cap + GR_TURN_MAX + AROUND;
    char* shown = malloc((size_t)shown_cap);
    if (r == NULL || shown == NULL) {
        free(r);
        free(shown);
        return GR_FAIL(GR_ENOMEM, "rollout: out of memory");
    }
    r->shown = shown;
    r->shown_cap = shown_cap;
    r->engine = engine;
    r->envs = envs;
    r->seed = run_seed;
    r->phase = "idle";
    *out = r;
    return GR_OK;
}

void gr_rollout_close(gr_rollout* r)
{
    if (r == NULL) return;
    for (int64_t i = 0; i < r->grower_cap; i++) {
        free(r->grower[i].wanted);
        free(r->grower[i].question);
    }
    free(r->grower);
    free(r->path);
    free(r->score);
    free(r->uid);
    free(r->unsampled);
    free(r->shown);
    free(r->answer);
    gr_dialog_free(&r->dialog);
    gr_dialog_free(&r->judge_dialog);
    free(r);
}

const gr_rollout_times* gr_rollout_time(const gr_rollout* r) { return &r->times; }
const char* gr_rollout_phase(const gr_rollout* r) { return r->phase; }

uint64_t gr_rollout_key(uint64_t run_seed, gr_purpose purpose, const gr_rollout_task* task)
{
    uint64_t key = gr_key_join(run_seed, (uint64_t)purpose);
    key = gr_key_join(key, (uint64_t)task->step);
    key = gr_key_join(key, (uint64_t)task->slot);
    return gr_key_join(key, (uint64_t)task->attempt);
}

uint64_t gr_rollout_tag(const gr_rollout* r, const grower* g, int node)
{
    return (uint64_t)(g - r->grower) << 32 | (uint32_t)node;
}
static grower* tag_grower(const gr_rollout* r, uint64_t tag) { return &r->grower[tag >> 32]; }
static int tag_node(uint64_t tag) { return (int)(uint32_t)tag; }

int gr_rollout_path(gr_rollout* r, const gr_tree* t, int node, int more)
{
    GR_RESERVE(r->path, r->path_cap, gr_tree_path_length(t, node) + more);
    return gr_tree_path_tokens(t, node, r->path, (int)r->path_cap);
}

void gr_rollout_release(gr_rollout* r, gr_tree* t, int node)
{
    if (t->env[node] >= 0) gr_envs_free(r->envs, t->env[node]);
    if (t->seq[node] >= 0) gr_engine_free_seq(r->engine, t->seq[node]);
    t->env[node] = t->seq[node] = -1;
}

/* Of observations, as the world said them: for models that read them again. */
static bool keeps_texts(const gr_rollout* r) { return gr_rollout_tells(r) || gr_rollout_asks(r); }

static bool keeps(const gr_rollout* r, const gr_tree* t, int node)
{
    if (t->status[node] == GR_OPEN || t->status[node] == GR_ACTING) return true;
    if (t->status[node] != GR_INNER) return false;
    return r->s->strategy->keeps_states || node == 0 || gr_rollout_may_rewind(r, t, node);
}

/* ---- a branch's turn: act, step, answer ------------------------------------------------------------ */

/* k more children of `node` start to act: one request, since they continue the same tokens. */
static void branch_out(gr_rollout* r, grower* g, int node, int k, int branch)
{
    gr_tree* t = g->tree;
    int first = t->n_nodes, made = 0;
    GR_RESERVE(r->uid, r->uid_cap, k);
    for (; made < k; made++) {
        int child = gr_tree_add_child(t, node, branch);
        if (child < 0) break; /* the tree's turn cap is reached */
        uint64_t key = t->ordinal[child] == 0 ? 0 : gr_key_join(t->uid[child], KEY_ENV);
        t->env[child] = gr_envs_fork(r->envs, t->env[node], key);
        GR_ASSERT(t->env[child] >= 0, "no environment handle is left");
        r->uid[made] = t->uid[child];
    }
    if (made == 0) {
        if (t->status[node] == GR_OPEN) gr_tree_close(t, node, GR_TRUNCATED);
        return;
    }
    if (t->seq[node] < 0) t->seq[node] = gr_engine_open_seq(r->engine);
    GR_ASSERT(t->seq[node] >= 0, "no KV sequence is left");
    g->running += made;
    int n_context = gr_rollout_path(r, t, node, 0); /* may move r->path */
    gr_request request = {
        .tag = gr_rollout_tag(r, g, first),
        .seq = t->seq[node],
        .n_context = n_context,
        .context = r->path,
        .n_children = made,
        .uid = r->uid,
        .sampling = r->s->sampling,
        .max_tokens = r->s->max_turn_tokens,
        .purpose = r->s->purpose,
    };
    gr_dialog_stop(&r->dialog, gr_rollout_stop(r->s, gr_envs_world(r->envs)), &request);
    gr_engine_submit(r->engine, &request);
}

static void end_branch(grower* g, int node, gr_node_status status)
{
    gr_tree_close(g->tree, node, status);
    g->running--;
}

/* ---- what passes between model and world, by the interface ----------------------------------------- */

const char* gr_rollout_stop(const gr_rollout_settings* s, const gr_world* world)
{
    return s->plan != NULL ? gr_plan_stop(s->plan->tags) : world->stop;
}

/* The part of r->text, *n bytes, that is for the world; valid until the next call. */
static const char* action_of(gr_rollout* r, int* n)
{
    if (r->s->plan == NULL) return r->text;
    gr_plan p;
    gr_plan_parse(r->text, *n, r->s->plan->tags, &p);
    *n = gr_plan_action(&p, r->text, *n, gr_envs_world(r->envs)->stop, r->shown, r->shown_cap);
    return r->shown;
}

/* What the model sees of an observation that answers `node` (the root: opens the episode), *n bytes;
 * valid until the next call. */
static const char* shown_of(gr_rollout* r, const gr_tree* t, int node, const gr_obs* o, int* n)
{
    *n = o->n_text;
    if (r->s->plan == NULL) return o->text;
    int n_said = node > 0 ? gr_tree_action_text(t, node, r->text, GR_TURN_MAX) : 0;
    *n = gr_plan_show(r->s->plan, node > 0 ? r->text : NULL, n_said, o->text, o->n_text, r->shown,
                      r->shown_cap);
    return r->shown;
}

void gr_rollout_act(gr_rollout* r, grower* g, int node)
{
    const gr_tree* t = g->tree;
    const gr_world* world = gr_envs_world(r->envs);
    int n =
        gr_dialog_hear(&r->dialog, world, gr_rollout_stop(r->s, world),
                       t->token + t->token_begin[node], t->n_action[node], r->text, GR_TURN_MAX);
    const char* action = action_of(r, &n);
    gr_envs_step(r->envs, t->env[node], action, n, gr_rollout_tag(r, g, node));
}

static void on_action(gr_rollout* r, const gr_reply* a)
{
    grower* g = tag_grower(r, a->tag);
    gr_tree* t = g->tree;
    int node = tag_node(a->tag) + a->child;
    int parent = t->parent[node];
    gr_tree_set_action(t, node, a->token, a->logp, a->n_tokens, a->version);
    t->seq[node] = a->seq;
    t->gen_tokens += a->n_tokens;
    if (t->kind[node] == GR_DEMO) gr_rollout_on_refined(r, t, node);
    if (!keeps(r, t, parent)) gr_rollout_release(r, t, parent);
    if (t->parent[parent] >= 0) gr_rollout_settle(r, t, parent);
    if (a->cause == GR_STOP_CONTEXT || (a->cause == GR_STOP_CAP && r->s->on_cap == GR_ON_CAP_END)) {
        end_branch(g, node, GR_TRUNCATED);
        return;
    }
    gr_rollout_act(r, g, node);
}

static void on_turn(gr_rollout* r, grower* g, int node, const gr_env_reply* e)
{
    gr_tree* t = g->tree;
    if (e->error != GR_ENV_OK) {
        t->env_errors[e->error]++;
        end_branch(g, node, GR_ERROR);
        return;
    }
    int n_text = 0;
    const char* text = shown_of(r, t, node, e->obs, &n_text);
    gr_dialog_observe(&r->dialog, t->token + t->token_begin[node], t->n_action[node], text, n_text,
                      e->obs->end != GR_RUNNING);
    int n = r->dialog.out.n;
    bool fits = gr_tree_path_length(t, node) + n < r->s->max_context; /* and one token to answer */
    gr_tree_set_result(t, node, e->obs);
    if (keeps_texts(r)) gr_tree_set_said(t, node, e->obs->text, e->obs->n_text);
    if (fits) gr_tree_set_obs(t, node, r->dialog.out.token, n);
    if (t->status[node] != GR_OPEN) { /* the world ended the episode */
        g->running--;
        return;
    }
    const gr_strategy* st = r->s->strategy;
    if (t->turn[node] >= r->horizon) {
        end_branch(g, node, GR_TIME_LIMIT);
    } else if (!fits || t->turns_left[node] == 0) {
        end_branch(g, node, GR_TRUNCATED);
    } else {
        gr_verdict v =
            st->verdict == NULL ? GR_GO_ON : st->verdict(r->s->strategy_settings, t, node);
        if (v == GR_STOP_LOOP) {
            end_branch(g, node, GR_LOOP);
        } else {
            g->running--;
            if (v == GR_GO_ON) branch_out(r, g, node, 1, t->branch[node]);
        }
    }
}

static void on_reset(gr_rollout* r, grower* g, const gr_env_reply* e)
{
    gr_tree* t = g->tree;
    if (!g->task->extend) {
        bool ok = e->error == GR_ENV_OK;
        int n_text = 0;
        const char* text = ok ? shown_of(r, t, 0, e->obs, &n_text) : "";
        gr_dialog_open(&r->dialog, gr_envs_world(r->envs), text, n_text);
        gr_tree_add_root(t, r->dialog.out.token, r->dialog.out.n, r->horizon);
        if (ok) gr_tree_set_result(t, 0, e->obs);
        if (keeps_texts(r)) gr_tree_set_said(t, 0, e->obs->text, e->obs->n_text);
    }
    t->env[0] = e->handle;
    g->stage = STAGE_GROWING;
    if (e->error != GR_ENV_OK) {
        t->env_errors[e->error]++;
        if (!g->task->extend) gr_tree_close(t, 0, GR_ERROR);
        g->round = -1; /* nothing to grow */
    }
}

/* ---- rounds ------------------------------------------------------------------------------------------ */

static void note_critique(gr_rollout* r, gr_tree* t, int node)
{
    const gr_scorer* s = r->s->scorer;
    if (s->critique == NULL) return;
    int n = s->critique(r->s->scorer_settings, t, node, t->score[node], r->text, GR_TURN_MAX);
    gr_tree_set_note(t, node, r->text, n);
}

/* What the strategy sees; the scores are those of the nodes that it wanted. */
static gr_round round_of(gr_rollout* r, const grower* g)
{
    const gr_tree* t = g->tree;
    GR_RESERVE(r->score, r->score_cap, 2 * (int64_t)t->n_nodes);
    for (int i = 0; i < t->n_nodes; i++) r->score[i] = (double)NAN;
    for (int i = 0; i < g->n_wanted; i++) r->score[g->wanted[i]] = t->score[g->wanted[i]];
    return (gr_round){
        .number = g->round,
        .group = r->s->group,
        .horizon = r->horizon,
        .key = gr_key_join(gr_key_join(t->key, KEY_ROUND), (uint64_t)g->round + 1),
        .progress = r->s->progress,
        .score = r->score,
    };
}

/* Scores the wanted nodes. A model that is asked is asked once about a node: what stands until it
 * answers is the scorer's, and so is the list of questions. */
static void score_nodes(gr_rollout* r, grower* g)
{
    gr_tree* t = g->tree;
    const gr_scorer* s = r->s->scorer;
    bool asks = gr_rollout_asks(r);
    double* out = r->score + t->n_nodes; /* second half: scores in order of g->wanted */
    if (g->n_wanted == 0) return;
    if (s->look != NULL)
        s->look(t, r->envs, g->wanted, g->n_wanted, out);
    else
        s->score(r->s->scorer_settings, t, gr_envs_world(r->envs), gr_key_join(t->key, KEY_SCORE),
                 g->wanted, g->n_wanted, out);
    for (int i = 0; i < g->n_wanted; i++) {
        int node = g->wanted[i];
        if (asks && !isnan(t->score[node])) continue;
        t->score[node] = out[i];
        if (asks)
            g->question[g->n_questions++] = node;
        else
            note_critique(r, t, node);
    }
    if (!asks) t->scorer_calls += g->n_wanted;
}

/* Brings the tree into order and lists what its next round wants scored. */
static void begin_round(gr_rollout* r, grower* g)
{
    gr_tree* t = g->tree;
    const gr_strategy* st = r->s->strategy;
    double begin = gr_now_s();
    g->stage = STAGE_JUDGING;
    g->n_wanted = g->n_questions = g->n_asked = g->n_answered = 0;
    gr_tree_order(t);
    if (st->wants == NULL) return;
    GR_ASSERT(!r->s->scorer->privileged || r->s->purpose == GR_FOR_TRAIN, "%s in an evaluation",
              r->s->scorer->name);
    GR_RESERVE(g->wanted, g->wanted_cap, t->n_nodes);
    GR_RESERVE(g->question, g->question_cap, t->n_nodes);
    gr_round round = round_of(r, g);
    g->n_wanted = st->wants(r->s->strategy_settings, t, &round, g->wanted, t->n_nodes);
    score_nodes(r, g);
    r->times.score_s += gr_now_s() - begin;
}

static void finish(gr_rollout* r, grower* g)
{
    gr_tree* t = g->tree;
    for (int i = 0; i < t->n_nodes; i++) {
        if (t->status[i] == GR_OPEN && i > 0) gr_tree_close(t, i, GR_TRUNCATED);
        gr_rollout_release(r, t, i);
    }
    g->stage = STAGE_DONE;
    gr_tree_check(t);
}

static void carry_out(gr_rollout* r, grower* g, const gr_decision* d)
{
    if (d->what == GR_REFINE)
        gr_rollout_refine(r, g, d);
    else if (d->what == GR_RESTORE)
        gr_tree_restore(g->tree, d->node, d->about);
    else if (d->n_children > 0)
        branch_out(r, g, d->node, d->n_children, d->branch);
    else
        gr_tree_close(g->tree, d->node, d->status);
}

/* Asks the strategy how the tree goes on. Nothing runs afterwards where it is finished. */
static void end_round(gr_rollout* r, grower* g)
{
    gr_tree* t = g->tree;
    gr_round round = round_of(r, g);
    gr_decision d[DECISIONS];
    g->stage = STAGE_GROWING;
    g->round++;
    int n = r->s->strategy->round(r->s->strategy_settings, t, &round, d, DECISIONS);
    GR_ASSERT(n <= DECISIONS);
    int n_open = t->n_nodes; /* children made below are not open leaves of this round */
    for (int i = 0; i < n; i++) carry_out(r, g, &d[i]);
    for (int i = 1; i < n_open; i++) {
        if (t->status[i] == GR_OPEN) branch_out(r, g, i, 1, t->branch[i]);
    }
}

/* ---- the loop ---------------------------------------------------------------------------------------- */

static void start(gr_rollout* r, grower* g)
{
    const gr_rollout_task* k = g->task;
    uint64_t key = gr_rollout_key(r->seed, r->s->purpose, k);
    if (!k->extend) {
        gr_tree_reset(g->tree, k->step, k->slot, k->attempt, k->task, key, r->s->max_tree_turns);
        g->tree->tokenizer = r->s->dialog.tokenizer;
    }
    g->stage = STAGE_RESET;
    int handle = gr_envs_reset(r->envs, k->split, k->task, gr_key_join(g->tree->key, KEY_ENV),
                               gr_rollout_tag(r, g, 0));
    GR_ASSERT(handle >= 0, "no environment handle is left");
}

/* Starts waiting trees while the engine has room for their branches, and plays due rounds. Returns how
 * many trees are not finished. */
static int advance(gr_rollout* r, int n)
{
    int unfinished = 0, open = 0;
    int window = 1 + 2 * r->engine->max_live / r->s->group;
    for (int i = 0; i < n; i++) {
        grower* g = &r->grower[i];
        if (g->stage == STAGE_WAITING && open < window) start(r, g);
        if (g->stage == STAGE_GROWING && g->running == 0) {
            if (g->round >= 0)
                begin_round(r, g);
            else
                finish(r, g); /* the reset failed */
        }
        if (g->stage == STAGE_JUDGING && gr_rollout_judge(r, g)) {
            end_round(r, g);
            if (g->running == 0) finish(r, g);
        }
        open += g->stage != STAGE_WAITING && g->stage != STAGE_DONE;
        unfinished += g->stage != STAGE_DONE;
    }
    return unfinished;
}

static bool idle(const gr_rollout* r)
{
    return gr_engine_idle(r->engine) && gr_engine_idle(r->judge);
}

static void hear_world(gr_rollout* r)
{
    double begin = gr_now_s();
    bool wait = idle(r) && gr_envs_in_flight(r->envs) > 0;
    if (wait) r->phase = "waiting for the environment";
    gr_env_reply e;
    while (gr_envs_poll(r->envs, &e, wait)) {
        wait = false;
        grower* g = tag_grower(r, e.tag);
        if (g->stage == STAGE_RESET)
            on_reset(r, g, &e);
        else
            on_turn(r, g, tag_node(e.tag), &e);
    }
    r->times.env_s += gr_now_s() - begin;
}

/* One step of all that waits at a model. */
static gr_status decode(gr_rollout* r, gr_engine* engine)
{
    if (gr_engine_idle(engine)) return GR_OK;
    r->phase = "decoding";
    double begin = gr_now_s();
    GR_TRY(gr_engine_step(engine));
    r->times.gen_s += gr_now_s() - begin;
    gr_reply a;
    while (gr_engine_poll(engine, &a)) {
        if (gr_rollout_is_answer(&a))
            gr_rollout_on_answer(r, &a);
        else
            on_action(r, &a);
    }
    return GR_OK;
}

gr_status gr_rollout_run(gr_rollout* r, const gr_rollout_settings* s, const gr_rollout_task* task,
                         int n, gr_tree* tree)
{
    r->s = s;
    gr_dialog_free(&r->dialog);
    gr_dialog_init(&r->dialog, &s->dialog);
    r->judge = s->judge.engine != NULL ? s->judge.engine : r->engine;
    gr_dialog_free(&r->judge_dialog);
    gr_dialog_init(&r->judge_dialog, &s->judge.dialog);
    int world_horizon = gr_envs_horizon(r->envs);
    r->horizon = s->max_turns > 0 ? GR_MIN(s->max_turns, world_horizon) : world_horizon;
    GR_RESERVE(r->grower, r->grower_cap, n);
    for (int i = 0; i < n; i++) {
        grower* g = &r->grower[i];
        *g = (grower){.tree = &tree[i],
                      .task = &task[i],
                      .wanted = g->wanted,
                      .question = g->question,
                      .wanted_cap = g->wanted_cap,
                      .question_cap = g->question_cap};
    }
    while (advance(r, n) > 0) {
        hear_world(r);
        GR_TRY(decode(r, r->engine));
        if (r->judge != r->engine) GR_TRY(decode(r, r->judge));
    }
    r->phase = "idle";
    for (int i = 0; i < n; i++) gr_tree_order(&tree[i]);
    return GR_OK;
}
