/* grow.h - grows trees without a model: a scripted policy in a scripted world, strategies and
 * scorers as in a run. Shared by the tests of tree, strategy, advantage and pack.
 *
 * The world is a walk on the integers. A turn's first action token says up (1) or down (0); more
 * action tokens, observations, rewards and ends are drawn under the node's uid, so what happens
 * depends on the path alone, while `order` says which running branch moves next. */
#pragma once
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/advantage/advantage.h"
#include "host/scorer/scorer.h"
#include "host/strategy/strategy.h"

/* ---- randomness of the tests ----------------------------------------------------------------- */

typedef struct dice {
    uint64_t key, at;
} dice;
static inline double chance(dice* d) { return gr_uniform(d->key, d->at++); }
static inline int choose(dice* d, int n) { return (int)(chance(d) * n); }

/* ---- settings -------------------------------------------------------------------------------- */

static inline void set_value(const gr_setting* s, void* block, const char* value)
{
    char* at = (char*)block + s->offset;
    int choice = 0;
    switch (s->type) {
    case GR_INT:
        *(int64_t*)(void*)at = strtoll(value, NULL, 10);
        break;
    case GR_REAL:
        *(double*)(void*)at = strtod(value, NULL);
        break;
    case GR_BOOL:
        *(bool*)at = value[0] == 't' || value[0] == '1';
        break;
    case GR_TEXT:
        (void)snprintf(at, GR_TEXT_MAX, "%s", value);
        break;
    case GR_CHOICE: /* number of bars before the name */
        for (const char* p = s->text; p < strstr(s->text, value); p++) choice += *p == '|';
        *(int*)(void*)at = choice;
        break;
    }
}

/* A block's struct with its defaults, then "key=value key=value"; the caller frees it. */
static inline void* settings_of(const gr_block* b, const char* pairs)
{
    char text[512], number[64], *save = NULL;
    if (b == NULL) return NULL;
    void* block = calloc(1, b->struct_bytes);
    for (int i = 0; i < b->n_settings; i++) {
        const gr_setting* s = &b->setting[i];
        (void)snprintf(number, sizeof number, "%.17g", s->def);
        if (s->type == GR_CHOICE)
            *(int*)(void*)((char*)block + s->offset) = (int)s->def;
        else
            set_value(s, block, s->type == GR_TEXT ? s->text : number);
    }
    (void)snprintf(text, sizeof text, "%s", pairs);
    for (char* p = strtok_r(text, " ", &save); p != NULL; p = strtok_r(NULL, " ", &save)) {
        size_t n = strcspn(p, "=");
        int i = 0;
        while (i < b->n_settings &&
               (strlen(b->setting[i].key) != n || memcmp(b->setting[i].key, p, n) != 0)) {
            i++;
        }
        if (i == b->n_settings) fail_msg("%s has no %s", b->name, p);
        set_value(&b->setting[i], block, p + n + 1);
    }
    return block;
}

/* The default settings of an estimator, until the next call. */
static inline const void* settings_for(const gr_estimator* e)
{
    static _Alignas(16) char kept[256];
    void* s = settings_of(e->block, "");
    if (s == NULL) return NULL;
    assert_true(e->block->struct_bytes <= sizeof kept);
    memcpy(kept, s, e->block->struct_bytes);
    free(s);
    return kept;
}

/* ---- world and policy ------------------------------------------------------------------------ */

typedef struct toy {
    double p_up;        /* probability of a step up */
    int goal;           /* paths that reach the horizon succeed at this position or above */
    int horizon;        /* turns */
    double p_end;       /* a turn ends the episode; its success is a coin */
    double p_error;     /* a turn fails */
    double p_cut;       /* an action meets its cap and ends the branch, no turn is taken */
    double reward_step; /* rewards of turns are multiples of it */
    int max_action, max_obs;
} toy;

static const gr_world toy_facts = {.name = "toy", .signal = {"progress", "luck"}, .n_signals = 2};

enum { DRAW_UP, DRAW_END, DRAW_ERROR, DRAW_CUT, DRAW_REWARD, DRAW_LUCK, DRAW_TOKENS };
static inline double draw(const gr_tree* t, int node, int what)
{
    return gr_uniform(gr_key_join(t->uid[node], 77), (uint64_t)what);
}

static inline int position_of(const gr_tree* t, int node)
{
    int x = 0;
    for (; node > 0; node = t->parent[node]) x += t->token[t->token_begin[node]] == 1 ? 1 : -1;
    return x;
}

static inline void toy_act(const toy* w, gr_tree* t, int node)
{
    int32_t token[64];
    double logp[64];
    int n = 1 + (int)(draw(t, node, DRAW_TOKENS) * w->max_action);
    for (int i = 0; i < n; i++) {
        token[i] = 2 + (int)(draw(t, node, DRAW_TOKENS + 1 + i) * 50);
        logp[i] = log(0.05 + 0.9 * draw(t, node, DRAW_TOKENS + 100 + i));
    }
    token[0] = draw(t, node, DRAW_UP) < w->p_up;
    gr_tree_set_action(t, node, token, logp, n, 3);
    t->gen_tokens += n;
}

static inline void toy_step(const toy* w, gr_tree* t, int node, gr_obs* o)
{
    int x = position_of(t, node);
    bool end = draw(t, node, DRAW_END) < w->p_end;
    memset(o, 0, sizeof *o);
    o->valid = true;
    o->hash = (uint64_t)(x + 1000);
    o->reward = w->reward_step * floor(4 * draw(t, node, DRAW_REWARD));
    o->success =
        end ? draw(t, node, DRAW_END) < w->p_end / 2 : t->turn[node] == w->horizon && x >= w->goal;
    o->reward += o->success;
    o->end = end ? GR_END_TERMINAL : GR_RUNNING;
    o->signal[0] = 0.5 + 0.5 * x / w->horizon;
    o->signal[1] = draw(t, node, DRAW_LUCK);
}

/* ---- the loop -------------------------------------------------------------------------------- */

typedef struct grower {
    const toy* world;
    const gr_strategy* strategy;
    const void* strategy_settings;
    const gr_scorer* scorer;
    const void* scorer_settings;
    int group;
    int64_t turn_cap;
    double progress;
    uint64_t order; /* key of the order in which running branches move */
    bool check;     /* gr_tree_check after every change */
    bool extend;    /* the tree is finished and gets another group */
    bool states;    /* nodes that go on have a state to rewind to */
    /* sees every round before its decisions are carried out; may be NULL */
    void (*watch)(void* arg, const gr_tree* t, const gr_round* r, const gr_decision* d, int n);
    void* watch_arg;
} grower;

static inline void looked_at(const grower* g, const gr_tree* t)
{
    if (g->check) gr_tree_check(t);
}

static inline void branch_out(const grower* g, gr_tree* t, int node, int k, int branch)
{
    int made = 0;
    while (made < k && gr_tree_add_child(t, node, branch) >= 0) made++;
    if (made == 0 && t->status[node] == GR_OPEN) gr_tree_close(t, node, GR_TRUNCATED);
    looked_at(g, t);
}

/* The next thing that happens to an acting node: its action, then the world's answer. */
static inline void move(const grower* g, gr_tree* t, int node)
{
    const toy* w = g->world;
    gr_obs o;
    int32_t obs[64];
    if (t->n_action[node] == 0) {
        toy_act(w, t, node);
        looked_at(g, t);
        return;
    }
    if (draw(t, node, DRAW_ERROR) < w->p_error || draw(t, node, DRAW_CUT) < w->p_cut) {
        bool error = draw(t, node, DRAW_ERROR) < w->p_error;
        gr_tree_close(t, node, error ? GR_ERROR : GR_TRUNCATED);
        return;
    }
    int n = (int)(draw(t, node, DRAW_TOKENS + 50) * (w->max_obs + 1));
    for (int i = 0; i < n; i++) obs[i] = 60 + (int)(draw(t, node, DRAW_TOKENS + 51 + i) * 30);
    toy_step(w, t, node, &o);
    gr_tree_set_result(t, node, &o);
    gr_tree_set_obs(t, node, obs, n);
    looked_at(g, t);
    if (t->status[node] != GR_OPEN) return;
    if (g->states) t->env[node] = 0;
    if (t->turn[node] >= w->horizon) {
        gr_tree_close(t, node, GR_TIME_LIMIT);
        return;
    }
    if (t->turns_left[node] == 0) {
        gr_tree_close(t, node, GR_TRUNCATED);
        return;
    }
    gr_verdict v = g->strategy->verdict == NULL
                       ? GR_GO_ON
                       : g->strategy->verdict(g->strategy_settings, t, node);
    if (v == GR_STOP_LOOP) gr_tree_close(t, node, GR_LOOP);
    if (v == GR_GO_ON) branch_out(g, t, node, 1, t->branch[node]);
}

/* One acting node, chosen under the order's key; -1: nothing runs. */
static inline int pick_running(const gr_tree* t, dice* order)
{
    int n = 0;
    for (int i = 0; i < t->n_nodes; i++) n += t->status[i] == GR_ACTING;
    int pick = n > 0 ? choose(order, n) : -1;
    for (int i = 0; i < t->n_nodes && pick >= 0; i++) {
        if (t->status[i] == GR_ACTING && pick-- == 0) return i;
    }
    return -1;
}

static inline bool play_round(const grower* g, gr_tree* t, int number)
{
    static gr_decision d[256];
    gr_tree_order(t);
    looked_at(g, t);
    double* score = malloc((size_t)t->n_nodes * 2 * sizeof *score);
    int32_t* node = malloc((size_t)t->n_nodes * sizeof *node);
    for (int i = 0; i < t->n_nodes; i++) score[i] = (double)NAN;
    gr_round r = {.number = number,
                  .group = g->group,
                  .horizon = g->world->horizon,
                  .key = gr_key_join(t->key, (uint64_t)number),
                  .progress = g->progress,
                  .score = score};
    if (g->strategy->wants != NULL) {
        int n = g->strategy->wants(g->strategy_settings, t, &r, node, t->n_nodes);
        double* out = score + t->n_nodes;
        g->scorer->score(g->scorer_settings, t, &toy_facts, gr_key_join(r.key, 1), node, n, out);
        for (int i = 0; i < n; i++) t->score[node[i]] = score[node[i]] = out[i];
        t->scorer_calls += n;
    }
    int n = g->strategy->round(g->strategy_settings, t, &r, d, 256), n_open = t->n_nodes;
    assert_true(n <= 256);
    if (g->watch != NULL) g->watch(g->watch_arg, t, &r, d, n);
    for (int i = 0; i < n; i++) {
        if (d[i].what == GR_REFINE)
            (void)gr_tree_rewind(t, d[i].node, d[i].about);
        else if (d[i].what == GR_RESTORE)
            gr_tree_restore(t, d[i].node, d[i].about);
        else if (d[i].n_children > 0)
            branch_out(g, t, d[i].node, d[i].n_children, d[i].branch);
        else
            gr_tree_close(t, d[i].node, d[i].status);
    }
    for (int i = 1; i < n_open; i++) {
        if (t->status[i] == GR_OPEN) branch_out(g, t, i, 1, t->branch[i]);
    }
    looked_at(g, t);
    free(score);
    free(node);
    dice first = {0};
    return pick_running(t, &first) >= 0;
}

/* A finished tree in canonical order. */
static inline void grow(const grower* g, gr_tree* t, uint64_t key)
{
    static const int32_t prompt[] = {90, 91, 92};
    dice order = {.key = g->order};
    if (!g->extend) {
        gr_tree_reset(t, 5, 2, 0, 11, key, g->turn_cap);
        gr_tree_add_root(t, prompt, 3, g->world->horizon);
        gr_tree_set_result(t, 0, &(gr_obs){.hash = 1000});
        if (g->states) t->env[0] = 0;
    }
    for (int number = 0; play_round(g, t, number); number++) {
        for (int node; (node = pick_running(t, &order)) >= 0;) move(g, t, node);
    }
    for (int i = 1; i < t->n_nodes; i++) {
        if (t->status[i] == GR_OPEN) gr_tree_close(t, i, GR_TRUNCATED);
    }
    gr_tree_order(t);
    gr_tree_check(t);
}

/* Grows with a strategy and a scorer by name, their settings as text. */
static inline void grow_named(gr_tree* t, const toy* w, const char* strategy, const char* pairs,
                              const char* scorer, int group, int64_t turn_cap, uint64_t key)
{
    grower g = {.world = w, .group = group, .turn_cap = turn_cap, .order = key + 1};
    g.strategy = gr_strategy_find(strategy);
    g.scorer = gr_scorer_find(scorer);
    void* s = settings_of(g.strategy->block, pairs);
    void* c = settings_of(g.scorer->block, "");
    if (g.scorer->block != NULL && strcmp(scorer, "constant") != 0) {
        (void)snprintf(c, GR_TEXT_MAX, "progress=1 luck=0.3"); /* the text of weights is first */
    }
    g.strategy_settings = s;
    g.scorer_settings = c;
    grow(&g, t, key);
    free(s);
    free(c);
}

/* Everything in a finished tree that must be reproducible. */
static inline uint64_t hash_of(const gr_tree* t)
{
    size_t n = (size_t)t->n_nodes;
    uint64_t h = gr_hash64(t->parent, n * sizeof *t->parent, 0);
    h = gr_hash64(t->context, n * sizeof *t->context, h);
    h = gr_hash64(t->branch, n * sizeof *t->branch, h);
    h = gr_hash64(t->ordinal, n * sizeof *t->ordinal, h);
    h = gr_hash64(t->turn, n * sizeof *t->turn, h);
    h = gr_hash64(t->token_begin, n * sizeof *t->token_begin, h);
    h = gr_hash64(t->n_action, n * sizeof *t->n_action, h);
    h = gr_hash64(t->n_obs, n * sizeof *t->n_obs, h);
    h = gr_hash64(t->status, n * sizeof *t->status, h);
    h = gr_hash64(t->stepped, n * sizeof *t->stepped, h);
    h = gr_hash64(t->success, n * sizeof *t->success, h);
    h = gr_hash64(t->reward, n * sizeof *t->reward, h);
    h = gr_hash64(t->signal, n * GR_SIGNALS * sizeof *t->signal, h);
    h = gr_hash64(t->uid, n * sizeof *t->uid, h);
    h = gr_hash64(t->token, (size_t)t->n_tokens * sizeof *t->token, h);
    h = gr_hash64(t->logp, (size_t)t->n_tokens * sizeof *t->logp, h);
    return gr_hash64(&t->env_turns, sizeof t->env_turns, h);
}

static inline int count_status(const gr_tree* t, gr_node_status status)
{
    int n = 0;
    for (int i = 0; i < t->n_nodes; i++) n += t->status[i] == status;
    return n;
}
