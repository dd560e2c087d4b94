/* hae.c - hierarchical advantage estimation of HiPER (arXiv:2602.16165) on a tree: switches, subgoals
 * and actions have credit of their own.
 *
 * A path is cut into segments, each the life of one subgoal; they begin at the first turn and at turns
 * that switch (advantage/gae.h). Three kinds of tokens (host/hiper.h):
 *
 *     action   every turn        A_low: GAE inside the segment, which ends in V_high of the next one
 *     subgoal  boundaries        A_high: GAE over segments
 *     switch   every turn        hiper.switch_adv
 *         term_head (the authors' program): G - V_term, G the return to the segment's end and V_high
 *                  behind it, V_term a third head
 *         gain     (the paper): (q - beta)(V_high(s) - V_low(s, subgoal before)), beta the policy's
 *                  probability of SWITCH at the word: p(SWITCH) / (p(SWITCH) + p(KEEP)) there
 *
 * All other tokens are not trained. Values are read before the turn's first token (high, term, and
 * V_low of the subgoal before) and behind the subgoal block (low of the subgoal chosen; without one
 * behind the switch block, else before the first token). Targets are A + V; on KEEP turns, where
 * the subgoal before is the present one, the low head learns its target before the turn as well, so
 * that gain reads what was learnt.
 *
 * Rewards are the world's less the penalties of the block. Path by path, since what a turn costs
 * depends on its path: leaves that share turns give them a credit each. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "host/advantage/advantage.h"
#include "host/advantage/gae.h"
#include "host/hiper.h"

enum { HEAD_LOW, HEAD_HIGH, HEAD_TERM };
enum { ACTION, SUBGOAL, SWITCH, N_KINDS }; /* bits of host/hiper.h */

/* What a turn says, and where in its tokens; what is behind GR_TURN_MAX is of no block. */
typedef struct turn {
    gr_plan plan;
    char text[GR_TURN_MAX];
    int n_text;
    int32_t token_of[GR_TURN_MAX]; /* of each byte */
} turn;

static void read_turn(const gr_hiper_settings* s, const gr_tree* t, int node, turn* out)
{
    out->n_text = 0;
    for (int k = 0; k < t->n_action[node]; k++) {
        int n = 0;
        const char* text =
            gr_token_text(t->tokenizer, GR_MARKUP, t->token[t->token_begin[node] + k], &n);
        if (out->n_text + n > GR_TURN_MAX - 64) break;
        memcpy(out->text + out->n_text, text, (size_t)n);
        for (int b = 0; b < n; b++) out->token_of[out->n_text + b] = k;
        out->n_text += n;
    }
    gr_plan_parse(out->text, out->n_text, s->tags, &out->plan);
}

/* The action token in front of which `byte` begins; the end of the text: behind the last. */
static int token_at(const turn* u, int byte, int n_action)
{
    return byte < u->n_text ? u->token_of[byte] : n_action;
}

/* Where the low head reads: the subgoal is chosen, the action is not. */
static int after_subgoal(const gr_tree* t, int node, const turn* u)
{
    gr_span s = u->plan.subgoal_block;
    if (s.begin < 0) s = u->plan.switch_block;
    return s.begin < 0 ? 0 : token_at(u, s.end, t->n_action[node]);
}

static bool boundary(const gr_tree* t, int node, const turn* u)
{
    return t->turn[node] == 1 || u->plan.switched;
}

static bool has_word(const turn* u) { return u->plan.word.begin < u->plan.word.end; }

static int n_heads(const void* settings)
{
    const gr_hiper_settings* s = settings;
    return s->switch_adv == GR_SWITCH_TERM_HEAD ? 3 : 2;
}

/* A token belongs to the blocks of its first byte; subgoals count at boundaries alone. */
static void mark_kinds(gr_credit* c, int node, const turn* u)
{
    const gr_tree* t = c->tree;
    for (int b = u->n_text - 1; b >= 0; b--) {
        int kinds = gr_plan_kinds(&u->plan, b);
        if (!boundary(t, node, u)) kinds &= ~GR_KIND_SUBGOAL;
        c->kinds[t->token_begin[node] + u->token_of[b]] = (uint8_t)kinds;
    }
}

static void ask_word(const gr_hiper_settings* s, gr_credit* c, int node, const turn* u)
{
    int32_t token = 0;
    if (!has_word(u)) return;
    for (int change = 0; change < 2; change++) {
        const char* word = gr_plan_word(s->tags, change);
        (void)gr_encode(c->tree->tokenizer, GR_PLAIN, word, (int)strlen(word), &token, 1);
        gr_credit_ask_logp(c, node, u->token_of[u->plan.word.begin], token);
    }
}

static void ask_turn(const gr_hiper_settings* s, gr_credit* c, int node, turn* u)
{
    const gr_tree* t = c->tree;
    read_turn(s, t, node, u);
    mark_kinds(c, node, u);
    gr_credit_ask(c, node, 0, HEAD_HIGH);
    gr_credit_ask(c, node, after_subgoal(t, node, u), HEAD_LOW);
    if (s->switch_adv == GR_SWITCH_TERM_HEAD) {
        gr_credit_ask(c, node, 0, HEAD_TERM);
    } else {
        gr_credit_ask(c, node, 0, HEAD_LOW);
        ask_word(s, c, node, u);
    }
}

/* Turns that were cut off before their first token say nothing and are left out. */
static bool speaks(const gr_tree* t, int node) { return node > 0 && t->n_action[node] > 0; }

static void ask(const void* settings, gr_credit* c)
{
    const gr_tree* t = c->tree;
    bool* seen = calloc((size_t)t->n_nodes + 1, sizeof *seen);
    turn* u = malloc(sizeof *u);
    GR_ASSERT(seen != NULL && u != NULL, "out of memory");
    for (int l = 0; l < c->n_leaves; l++) {
        for (int i = c->leaf[l]; i > 0 && !seen[i]; i = t->parent[i]) {
            seen[i] = true;
            if (speaks(t, i)) ask_turn(settings, c, i, u);
        }
    }
    free(seen);
    free(u);
}

/* ---- one path ----------------------------------------------------------------------------------- */

/* Turns of a path, in order, as the recursions want them. */
typedef struct path {
    int n, cap;
    int32_t* node;
    int* low_at;                          /* token that the low value stands before */
    bool *switched, *valid, *strays;      /* strays: KEEP with another subgoal than before */
    double *reward, *low, *high, *before; /* before: V_low of the subgoal before, or V_term */
    double *a_low, *a_high, *to_go;
    turn turns[2], *now, *last; /* the two that are compared */
} path;

static path* path_open(int cap)
{
    path* p = calloc(1, sizeof *p);
    size_t n = (size_t)cap + 1;
    GR_ASSERT(p != NULL, "out of memory");
    p->cap = cap;
    p->node = calloc(n, sizeof *p->node);
    p->low_at = calloc(n, sizeof *p->low_at);
    p->switched = calloc(n * 3, sizeof *p->switched);
    p->reward = calloc(n * 7, sizeof *p->reward);
    GR_ASSERT(p->node && p->low_at && p->switched && p->reward, "out of memory");
    p->valid = p->switched + n, p->strays = p->valid + n;
    p->low = p->reward + n, p->high = p->low + n, p->before = p->high + n;
    p->a_low = p->before + n, p->a_high = p->a_low + n, p->to_go = p->a_high + n;
    p->now = &p->turns[0], p->last = &p->turns[1];
    return p;
}

static void path_close(path* p)
{
    free(p->node);
    free(p->low_at);
    free(p->switched);
    free(p->reward);
    free(p);
}

static bool same_subgoal(const turn* a, const turn* b)
{
    gr_span x = a->plan.subgoal_block, y = b->plan.subgoal_block;
    if (x.begin < 0 || y.begin < 0) return true; /* nothing to compare */
    int n = x.end - x.begin;
    return n == y.end - y.begin && memcmp(a->text + x.begin, b->text + y.begin, (size_t)n) == 0;
}

static void add_turn(const gr_hiper_settings* s, const gr_credit* c, int node, path* p)
{
    const gr_tree* t = c->tree;
    int i = p->n++;
    turn* u = p->now;
    read_turn(s, t, node, u);
    p->node[i] = node;
    p->low_at[i] = after_subgoal(t, node, u);
    p->switched[i] = u->plan.switched;
    p->valid[i] = u->plan.valid;
    p->strays[i] = i > 0 && !p->switched[i] && !same_subgoal(u, p->last);
    p->reward[i] = t->reward[node];
    p->high[i] = gr_credit_value(c, node, 0, HEAD_HIGH);
    p->low[i] = gr_credit_value(c, node, p->low_at[i], HEAD_LOW);
    p->before[i] =
        gr_credit_value(c, node, 0, s->switch_adv == GR_SWITCH_GAIN ? HEAD_LOW : HEAD_TERM);
    p->now = p->last;
    p->last = u;
}

/* A path of one turn has nothing to keep. */
static void penalise(const gr_hiper_settings* s, path* p)
{
    double keep = s->keep == GR_KEEP_FIXED ? s->keep_penalty : s->keep_penalty / p->n;
    if (s->keep == GR_KEEP_NORMALISED && p->n == 1) keep = 0;
    for (int i = 0; i < p->n; i++) {
        if (!p->switched[i]) p->reward[i] -= keep;
        if (p->strays[i]) p->reward[i] -= s->consistency_penalty;
        if (!p->valid[i]) p->reward[i] -= s->invalid_penalty;
    }
}

static void follow(const gr_hiper_settings* s, const gr_credit* c, int l, int32_t* nodes, path* p)
{
    int n = gr_tree_path_nodes(c->tree, c->leaf[l], nodes, p->cap);
    p->n = 0;
    for (int i = 1; i < n; i++) {
        if (speaks(c->tree, nodes[i])) add_turn(s, c, nodes[i], p);
    }
    penalise(s, p);
}

/* beta at every turn that has a word, from the two probes of its node. */
static void fill_beta(const gr_credit* c, double* beta)
{
    for (int i = 0; i < c->n_probes; i += 2) {
        const gr_probe *keep = &c->probe[i], *change = keep + 1;
        beta[keep->node] = 1 / (1 + exp(keep->logp - change->logp));
    }
}

static void hand_out(const gr_hiper_settings* s, gr_credit* c, int l, const path* p,
                     const double* beta)
{
    bool gain = s->switch_adv == GR_SWITCH_GAIN;
    for (int i = 0; i < p->n; i++) {
        int node = p->node[i];
        double* a = &c->path_adv[(c->path_begin[l] + c->tree->turn[node] - 1) * N_KINDS];
        bool starts = i == 0 || p->switched[i];
        a[ACTION] = p->a_low[i];
        a[SUBGOAL] = p->a_high[i]; /* 0 inside a segment */
        a[SWITCH] = gain ? gr_hae_switch_gain(p->switched[i], beta[node], p->high[i], p->before[i])
                         : p->to_go[i] - p->before[i];
        gr_credit_teach(c, l, node, p->low_at[i], HEAD_LOW, p->a_low[i] + p->low[i]);
        if (starts) gr_credit_teach(c, l, node, 0, HEAD_HIGH, p->a_high[i] + p->high[i]);
        if (!gain) gr_credit_teach(c, l, node, 0, HEAD_TERM, p->to_go[i]);
        if (gain && !starts && p->low_at[i] > 0) {
            gr_credit_teach(c, l, node, 0, HEAD_LOW, p->a_low[i] + p->low[i]);
        }
    }
}

static void estimate(const gr_hiper_settings* s, const gr_credit* c, int l, path* p)
{
    gr_hae h = {.n = p->n,
                .reward = p->reward,
                .switched = p->switched,
                .low = p->low,
                .high = p->high,
                .gamma = s->gamma,
                .lambda_low = s->lambda_low,
                .lambda_high = s->lambda_high,
                .done = c->tree->status[c->leaf[l]] == GR_TERMINAL,
                .bootstrap = s->bootstrap};
    gr_hae_fill(&h, p->a_low, p->a_high, p->to_go);
}

static void hae(const void* settings, gr_credit* c, double eps)
{
    const gr_hiper_settings* s = settings;
    int cap = 1;
    (void)eps; /* of comparisons within a group */
    for (int l = 0; l < c->n_leaves; l++) cap = GR_MAX(cap, c->tree->turn[c->leaf[l]] + 1);
    path* p = path_open(cap);
    int32_t* nodes = malloc((size_t)cap * sizeof *nodes);
    double* beta = calloc((size_t)c->tree->n_nodes + 1, sizeof *beta);
    GR_ASSERT(nodes != NULL && beta != NULL, "out of memory");
    c->per_path = true;
    c->normalise = s->normalise;
    if (s->switch_adv == GR_SWITCH_GAIN) fill_beta(c, beta);
    for (int l = 0; l < c->n_leaves; l++) {
        follow(s, c, l, nodes, p);
        if (p->n == 0) continue;
        estimate(s, c, l, p);
        hand_out(s, c, l, p, beta);
    }
    free(nodes);
    free(beta);
    path_close(p);
}

const gr_estimator gr_estimator_hae = {.name = "hae",
                                       .block = &gr_hiper_block,
                                       .fill = hae,
                                       .n_kinds = N_KINDS,
                                       .n_heads = n_heads,
                                       .ask = ask};
