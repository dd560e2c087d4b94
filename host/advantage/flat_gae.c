/* flat_gae.c - generalised advantage estimation (Schulman et al. 2016, arXiv:1506.02438) on a tree.
 *
 *     level = turn      one value per turn, of the state that the turn answers; all tokens of the
 *                       turn share its advantage
 *     level = token     one value and one advantage per action token; a turn's reward comes with its
 *                       last token, whose successor is the next turn's first token
 *     level = bi_level  GAE over turns on the value before each turn's last token; its return is the
 *                       reward at that token of an undiscounted GAE inside the turn (RAGEN, Wang et
 *                       al. 2025, arXiv:2504.20073; here turns without reward count, too)
 *
 * Every leaf's path is estimated for itself, so a turn that several leaves share has an advantage
 * and a target from each. A path that the world did not end, because of its horizon, a cap or the
 * strategy, is worth 0 behind its end or, with bootstrap, what the value model says of its last
 * state. The targets of the value model are A + V before A is normalised. */
#include <stdlib.h>

#include "host/advantage/advantage.h"
#include "host/advantage/gae.h"

enum { LEVEL_TURN, LEVEL_TOKEN, LEVEL_BI };

typedef struct gae_settings {
    int level;
    double gamma, lambda;
    bool bootstrap, normalise;
} gae_settings;

static const gr_setting gae_table[] = {
    GR_SET_CHOICE(gae_settings, level, "turn|token|bi_level", LEVEL_TURN,
                  "what has an advantage of its own; bi_level: turns first, then their tokens"),
    GR_SET_REAL(gae_settings, gamma, 0, 1, 1, "discount per turn; with level = token per token"),
    GR_SET_REAL(gae_settings, lambda, 0, 1, 0.95,
                "weight of later errors; 1: returns, 0: one step"),
    GR_SET_BOOL(gae_settings, bootstrap, false,
                "a path that was cut off goes on from its last value instead of 0"),
    GR_SET_BOOL(gae_settings, normalise, true,
                "advantages get mean 0 and deviation 1 over a step's turns, or tokens"),
};
static const gr_block gae_block =
    GR_BLOCK(gae_settings, "gae", "advantage.estimator=gae", gae_table);

static int one_head(const void* settings)
{
    (void)settings;
    return 1;
}

static bool goes_on(const gae_settings* s, const gr_credit* c, int l)
{
    return s->bootstrap && c->tree->status[c->leaf[l]] != GR_TERMINAL;
}

static void ask(const void* settings, gr_credit* c)
{
    const gae_settings* s = settings;
    const gr_tree* t = c->tree;
    for (int l = 0; l < c->n_leaves; l++) {
        for (int i = c->leaf[l]; i > 0; i = t->parent[i]) {
            int n = s->level == LEVEL_TURN ? 1 : t->n_action[i];
            for (int k = 0; k < n; k++) gr_credit_ask(c, i, k, 0);
        }
        if (goes_on(s, c, l)) gr_credit_ask_end(c, c->leaf[l], 0);
    }
}

/* What the recursion runs over on one path: turns, or action tokens. */
typedef struct link {
    int node, k;
} link;
typedef struct chain {
    int n;
    link* at;
    double *reward, *value, *adv;
    double after; /* value behind the end */
} chain;

static chain chain_open(int cap)
{
    chain h = {.at = malloc(((size_t)cap + 1) * sizeof *h.at),
               .reward = malloc(((size_t)cap + 1) * 3 * sizeof *h.reward)};
    GR_ASSERT(h.at != NULL && h.reward != NULL, "out of memory");
    h.value = h.reward + cap;
    h.adv = h.value + cap;
    return h;
}

static void chain_close(chain* h)
{
    free(h->at);
    free(h->reward);
}

/* Fills the chain with leaf l's path from its first turn on. A turn that was cut off before its
 * first token has no link of its own at the level of tokens. */
static void follow(const gae_settings* s, const gr_credit* c, int l, const int32_t* path, int n,
                   chain* h)
{
    const gr_tree* t = c->tree;
    h->n = 0;
    for (int j = 1; j < n; j++) {
        int node = path[j], links = s->level == LEVEL_TURN ? 1 : t->n_action[node];
        for (int k = 0; k < links; k++, h->n++) {
            h->at[h->n] = (link){node, k};
            h->value[h->n] = gr_credit_value(c, node, k, 0);
            h->reward[h->n] = k == links - 1 ? t->reward[node] : 0;
        }
    }
    h->after = goes_on(s, c, l) ? gr_credit_value_end(c, c->leaf[l], 0) : 0;
}

static bool last_of_turn(const chain* h, int i)
{
    return i + 1 == h->n || h->at[i + 1].node != h->at[i].node;
}

/* The links that end a turn first, by themselves; then each turn's links towards its return. */
static void two_levels(const gae_settings* s, chain* h)
{
    chain turns = chain_open(h->n);
    for (int i = 0; i < h->n; i++) {
        if (!last_of_turn(h, i)) continue;
        turns.reward[turns.n] = h->reward[i];
        turns.value[turns.n++] = h->value[i];
    }
    gr_gae(turns.adv, turns.reward, turns.value, turns.n, h->after, s->gamma, s->lambda);
    for (int begin = 0, end = 0, turn = 0; begin < h->n; begin = end, turn++) {
        while (!last_of_turn(h, end)) end++;
        h->reward[end] = turns.adv[turn] + turns.value[turn];
        end++;
        gr_gae(h->adv + begin, h->reward + begin, h->value + begin, end - begin, 0, 1, s->lambda);
    }
    chain_close(&turns);
}

static void hand_out(const gae_settings* s, gr_credit* c, int l, const chain* h)
{
    for (int i = 0; i < h->n; i++) {
        int64_t at = c->path_begin[l] + c->tree->turn[h->at[i].node] - 1;
        if (s->level == LEVEL_TURN)
            c->path_adv[at] = h->adv[i];
        else
            c->token_adv[c->token_at[at] + h->at[i].k] = h->adv[i];
        gr_credit_teach(c, l, h->at[i].node, h->at[i].k, 0, h->adv[i] + h->value[i]);
    }
}

/* Links of the longest path, one more than there can be turns or tokens. */
static int longest_path(const gr_credit* c)
{
    int n = 0;
    for (int l = 0; l < c->n_leaves; l++) {
        int links = c->tree->turn[c->leaf[l]] + 1;
        for (int i = c->leaf[l]; i > 0; i = c->tree->parent[i]) links += c->tree->n_action[i];
        n = GR_MAX(n, links);
    }
    return n;
}

static void gae(const void* settings, gr_credit* c, double eps)
{
    const gae_settings* s = settings;
    (void)eps; /* of comparisons within a group */
    int cap = longest_path(c);
    chain h = chain_open(cap);
    int32_t* path = malloc(((size_t)cap + 1) * sizeof *path);
    GR_ASSERT(path != NULL, "out of memory");
    c->normalise = s->normalise;
    c->per_path = true;
    if (s->level != LEVEL_TURN) gr_credit_per_token(c);
    for (int l = 0; l < c->n_leaves; l++) {
        int n = gr_tree_path_nodes(c->tree, c->leaf[l], path, cap);
        follow(s, c, l, path, n, &h);
        if (s->level == LEVEL_BI)
            two_levels(s, &h);
        else
            gr_gae(h.adv, h.reward, h.value, h.n, h.after, s->gamma, s->lambda);
        hand_out(s, c, l, &h);
    }
    free(path);
    chain_close(&h);
}

const gr_estimator gr_estimator_gae = {
    .name = "gae", .block = &gae_block, .fill = gae, .n_heads = one_head, .ask = ask};
