/* patr_retro.c - retrospective branching: finish first, then restart where failures looked best.
 *
 * rollout.group branches run to their end. Then, `rounds` times, the `restarts` best-scored nodes
 * of failing branches get one more child each, a branch at most once a round, and those run to
 * their end. A task that every branch solves gets no restarts: it has nothing to teach, and its
 * turns go to other tasks.
 *
 * A branch offers the nodes that its own turns started from, except the root. A restarted branch
 * thus offers the node it was restarted from once more:
 *
 *     root -- 1 -- 2 -- 3 -- leaf a        a offers 3 2 1
 *                  +--- 4 -- 5 -- leaf b   b offers 5 4 2 */
#include "host/strategy/strategy.h"

#include <stdlib.h>

enum { FROM_FAILING, FROM_ALL };
enum { SKIP_SOLVED, SKIP_PARTLY_SOLVED };

typedef struct retro_settings {
    int64_t rounds, restarts, max_leaves;
    int from, skip;
} retro_settings;

static const gr_setting retro_table[] = {
    GR_SET_INT(retro_settings, rounds, 0, 64, 2, "rounds of restarts after the first branches"),
    GR_SET_INT(retro_settings, restarts, 1, 64, 2, "restarts a round"),
    GR_SET_CHOICE(retro_settings, from, "failing|all", FROM_FAILING,
                  "branches whose nodes may be restarted"),
    GR_SET_CHOICE(retro_settings, skip, "solved|partly_solved", SKIP_SOLVED,
                  "tasks without restarts: those that every branch solved, or any branch"),
    GR_SET_INT(retro_settings, max_leaves, 0, 256, 10,
               "no restarts beyond so many leaves of a tree; 0: no limit"),
};
static const gr_block retro_block =
    GR_BLOCK(retro_settings, "patr_retro", "rollout.strategy=patr_retro", retro_table);

/* Leaves whose branches offer nodes in this round; 0 of them when no restart is due. */
static int offering(const retro_settings* s, const gr_tree* t, const gr_round* r, int32_t* leaf)
{
    int n = gr_tree_leaves(t, leaf, t->n_nodes), solved = 0, kept = 0;
    for (int i = 0; i < n; i++) solved += t->success[leaf[i]];
    bool skipped = s->skip == SKIP_SOLVED ? solved == n : solved > 0;
    if (r->number < 1 || r->number > s->rounds || skipped) return 0;
    for (int i = 0; i < n; i++) {
        if (s->from == FROM_ALL || !t->success[leaf[i]]) leaf[kept++] = leaf[i];
    }
    return kept;
}

/* The turn before `turn` on the same branch, 0 if it was the first: the first child goes on with
 * its parent's branch, later ones are restarts. */
static int turn_before(const gr_tree* t, int turn)
{
    return t->ordinal[turn] == 0 ? t->parent[turn] : 0;
}

static int32_t* take_nodes(const gr_tree* t)
{
    int32_t* node = calloc((size_t)t->n_nodes, sizeof *node);
    GR_ASSERT(node != NULL, "out of memory");
    return node;
}

static int retro_wants(const void* settings, const gr_tree* t, const gr_round* r, int32_t* node,
                       int cap)
{
    int32_t *leaf = take_nodes(t), *offered = take_nodes(t);
    int n_leaves = offering(settings, t, r, leaf), n = 0;
    for (int l = 0; l < n_leaves; l++) {
        for (int i = leaf[l]; i > 0; i = turn_before(t, i)) offered[t->parent[i]] = 1;
    }
    for (int i = 1; i < t->n_nodes && n < cap; i++) {
        if (offered[i]) node[n++] = i;
    }
    free(leaf);
    free(offered);
    return n;
}

typedef struct offer {
    int at; /* index of the leaf in its list; -1: none */
    int node;
    double score, tie;
} offer;

/* The best node that any of the leaves' branches offers and `turns` more turns can pay for. */
static offer best_offer(const gr_tree* t, const gr_round* r, const int32_t* leaf, int n_leaves,
                        int64_t turns)
{
    offer best = {.at = -1};
    for (int l = 0; l < n_leaves; l++) {
        uint64_t key = gr_key_join(r->key, (uint64_t)leaf[l]);
        for (int i = leaf[l]; i > 0; i = turn_before(t, i)) {
            int node = t->parent[i];
            if (node == 0 || r->horizon - t->turn[node] > turns) continue;
            offer o = {l, node, r->score[node], gr_uniform(key, (uint64_t)node)};
            bool wins = o.score > best.score || (o.score == best.score && o.tie > best.tie);
            if (best.at < 0 || wins) best = o;
        }
    }
    return best;
}

static int retro_round(const void* settings, const gr_tree* t, const gr_round* r, gr_decision* out,
                       int cap)
{
    const retro_settings* s = settings;
    if (r->number == 0) return gr_open_group(r, out, cap);
    int32_t* leaf = take_nodes(t);
    int n_leaves = offering(s, t, r, leaf), n = 0;
    int64_t leaves = gr_tree_leaves(t, NULL, 0), turns = gr_tree_turns_free(t);
    while (n < s->restarts && n < cap && (s->max_leaves == 0 || leaves + n < s->max_leaves)) {
        offer o = best_offer(t, r, leaf, n_leaves, turns);
        if (o.at < 0) break;
        turns -= r->horizon - t->turn[o.node];
        out[n++] = (gr_decision){.node = o.node, .n_children = 1};
        n_leaves--; /* the branch has had its restart of this round */
        for (int l = o.at; l < n_leaves; l++) leaf[l] = leaf[l + 1];
    }
    free(leaf);
    return n;
}

const gr_strategy gr_strategy_patr_retro = {
    .name = "patr_retro",
    .block = &retro_block,
    .keeps_states = true,
    .wants = retro_wants,
    .round = retro_round,
};
