/* rollout_refine.c - a step is taken back and made again.
 *
 * The state that a step started from is its parent's: a rewind is one more fork of it, and a new
 * sibling acts there. The policy makes it behind the clean path, the rejected action, and what is
 * told about it, in the place of the world's answer:
 *
 *     clean path ... [obs] [rejected action][critique, obs once more]  -> sampled
 *     clean path ... [obs]                                                sampled [obs'] ...
 *
 * Only the second line is ever a context of anything that is trained. An expert's action comes from
 * the world's demonstrator and is sampled from nothing. */
#include <stdio.h>
#include <string.h>

#include "host/rollout_state.h"

static bool refines(const gr_rollout* r) { return r->s->strategy->refiner != NULL; }

static gr_refiner refiner_of(const gr_rollout* r)
{
    return r->s->strategy->refiner(r->s->strategy_settings);
}

/* ---- states ---------------------------------------------------------------------------------- */

bool gr_rollout_may_rewind(const gr_rollout* r, const gr_tree* t, int node)
{
    if (!refines(r)) return false;
    for (int i = node + 1; i < t->n_nodes; i++) {
        bool acts = t->kind[i] == GR_POLICY || t->kind[i] == GR_DEMO;
        if (t->parent[i] == node && acts && t->status[i] != GR_INNER) return true;
    }
    return false;
}

void gr_rollout_settle(gr_rollout* r, gr_tree* t, int node)
{
    int parent = t->parent[node];
    if (!refines(r)) return;
    for (int i = parent + 1; i < t->n_nodes; i++) {
        bool attempt = t->parent[i] == parent && t->branch[i] == t->branch[node];
        if (attempt && t->kind[i] == GR_REJECTED) gr_rollout_release(r, t, i);
    }
    if (parent > 0 && !gr_rollout_may_rewind(r, t, parent)) gr_rollout_release(r, t, parent);
}

bool gr_rollout_tells(const gr_rollout* r)
{
    return refines(r) && refiner_of(r).told != GR_TOLD_NOTHING;
}

/* ---- the policy as refiner ------------------------------------------------------------------- */

/* What stands behind the action of attempt `about`, into r->dialog.out. */
static void render_told(gr_rollout* r, const gr_tree* t, int about, int told)
{
    int parent = t->parent[about], n = 0;
    if (told == GR_TOLD_CRITIQUE) {
        n = snprintf(r->shown, GR_TURN_MAX,
                     "This step was taken back. Score %d of %d%s%.*s. Choose "
                     "another one.\n",
                     gr_level(t->score[about]), GR_LEVELS, t->n_note[about] > 0 ? ": " : "",
                     t->n_note[about], t->text + t->note_begin[about]);
        n = GR_MIN(n, GR_TURN_MAX - 1);
    }
    memcpy(r->shown + n, t->text + t->said_begin[parent], (size_t)t->n_said[parent]);
    gr_dialog_observe(&r->dialog, t->token + t->token_begin[about], t->n_action[about], r->shown,
                      n + t->n_said[parent], false);
}

int gr_rollout_behind_action(gr_rollout* r, const gr_tree* t, int node, const gr_chat_text* more)
{
    int n_action = t->n_action[node];
    int n = gr_rollout_path(r, t, t->parent[node], n_action + more->n);
    memcpy(r->path + n, t->token + t->token_begin[node], (size_t)n_action * sizeof *r->path);
    memcpy(r->path + n + n_action, more->token, (size_t)more->n * sizeof *r->path);
    return n + n_action + more->n;
}

/* The refiner's context into r->path; returns its length. What is told is in r->dialog.out. */
static int render_context(gr_rollout* r, const gr_tree* t, int about, int told)
{
    if (told == GR_TOLD_NOTHING) return gr_rollout_path(r, t, t->parent[about], 0);
    render_told(r, t, about, told);
    return gr_rollout_behind_action(r, t, about, &r->dialog.out);
}

int gr_rollout_open_behind(gr_rollout* r, const gr_tree* t, int node, int n_context)
{
    int shared = gr_tree_path_length(t, t->parent[node]) + t->n_action[node];
    shared = GR_MIN(shared, n_context);
    int seq = t->seq[node] >= 0 ? gr_engine_fork_seq(r->engine, t->seq[node], shared)
                                : gr_engine_open_seq(r->engine);
    GR_ASSERT(seq >= 0, "no KV sequence is left");
    return seq;
}

static void ask_policy(gr_rollout* r, grower* g, int node, int n_context)
{
    const gr_tree* t = g->tree;
    int seq = gr_rollout_open_behind(r, t, t->about[node], n_context);
    gr_request request = {
        .tag = gr_rollout_tag(r, g, node),
        .seq = seq,
        .n_context = n_context,
        .context = r->path,
        .n_children = 1,
        .uid = &t->uid[node],
        .sampling = r->s->sampling,
        .max_tokens = r->s->max_turn_tokens,
        .purpose = GR_FOR_REFINE,
    };
    gr_dialog_stop(&r->dialog, gr_rollout_stop(r->s, gr_envs_world(r->envs)), &request);
    gr_engine_submit(r->engine, &request);
    gr_engine_free_seq(r->engine, seq); /* lives until the request has been read */
}

void gr_rollout_on_refined(gr_rollout* r, gr_tree* t, int node)
{
    int parent = t->parent[node];
    t->refiner_tokens += t->n_action[node];
    if (refiner_of(r).told == GR_TOLD_NOTHING) return; /* its pages are those of the clean path */
    gr_engine_free_seq(r->engine, t->seq[node]);
    t->seq[node] = -1;
    if (t->seq[parent] < 0) return;
    int clean = gr_tree_path_length(t, parent);
    t->seq[node] = gr_engine_fork_seq(r->engine, t->seq[parent], clean);
}

/* ---- the expert ------------------------------------------------------------------------------ */

/* The demonstrator of a branch stays the same one for all its steps. */
static void ask_expert(gr_rollout* r, grower* g, int node)
{
    gr_tree* t = g->tree;
    const gr_world* world = gr_envs_world(r->envs);
    uint64_t key = gr_key_join(gr_key_join(t->key, KEY_EXPERT), (uint64_t)t->branch[node]);
    int n = world->demonstrate(gr_envs_self(r->envs), gr_envs_state(r->envs, t->env[node]), key,
                               t->turn[node] - 1, r->text, GR_TURN_MAX);
    gr_dialog_act(&r->dialog, world, r->text, n);
    GR_RESERVE(r->unsampled, r->unsampled_cap, r->dialog.out.n);
    gr_tree_set_action(t, node, r->dialog.out.token, r->unsampled, r->dialog.out.n,
                       r->engine->w->version);
    t->logp_from[node] = GR_LOGP_TRAINER;
    gr_rollout_act(r, g, node);
}

/* ---- both ------------------------------------------------------------------------------------ */

void gr_rollout_refine(gr_rollout* r, grower* g, const gr_decision* d)
{
    gr_tree* t = g->tree;
    gr_refiner who = refiner_of(r);
    bool expert = who.who == GR_REFINER_EXPERT;
    int n_context = expert ? 0 : render_context(r, t, d->about, who.told);
    if (n_context >= r->s->max_context) return;
    int node = gr_tree_rewind(t, d->node, d->about);
    if (node < 0) return;
    uint64_t noise = who.same_noise ? 0 : gr_key_join(t->uid[node], KEY_ENV);
    t->env[node] = gr_envs_fork(r->envs, t->env[t->parent[node]], noise);
    GR_ASSERT(t->env[node] >= 0, "no environment handle is left");
    g->running++;
    if (expert) {
        ask_expert(r, g, node);
        return;
    }
    if (who.told != GR_TOLD_NOTHING) {
        gr_tree_set_told(t, node, r->dialog.out.token, r->dialog.out.n);
    }
    ask_policy(r, g, node, n_context);
}
