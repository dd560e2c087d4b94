/* strategy.c - the list of strategies, and what several of them use. */
#include "host/strategy/strategy.h"

#include <string.h>

const gr_strategy* const gr_strategies[] = {
    &gr_strategy_flat,
    &gr_strategy_patr,
    &gr_strategy_patr_retro,
    &gr_strategy_proceed,
    &gr_strategy_tree_grpo,
    &gr_strategy_tree_random,
    NULL,
};

const gr_strategy* gr_strategy_find(const char* name)
{
    for (int i = 0; gr_strategies[i] != NULL; i++) {
        if (strcmp(gr_strategies[i]->name, name) == 0) return gr_strategies[i];
    }
    return NULL;
}

int gr_open_group(const gr_round* r, gr_decision* out, int cap)
{
    GR_ASSERT(cap >= 1);
    out[0] = (gr_decision){.node = 0, .n_children = r->group, .branch = -1};
    return 1;
}

int gr_repeats(const gr_tree* t, int node, bool still)
{
    int n = 0;
    for (int i = node; i > 0 && gr_tree_same_action(t, i, node); i = t->parent[i]) {
        if (still && t->state_hash[i] != t->state_hash[t->parent[i]]) break;
        n++;
    }
    return n;
}

static bool better(int a, int b, const double* score, uint64_t key)
{
    if (score[a] != score[b]) return score[a] > score[b];
    return gr_uniform(key, (uint64_t)a) > gr_uniform(key, (uint64_t)b);
}

void gr_rank(int32_t* node, int n, const double* score, uint64_t key)
{
    for (int i = 1; i < n; i++) { /* insertion: lists are short */
        int32_t x = node[i];
        int at = i;
        for (; at > 0 && better(x, node[at - 1], score, key); at--) node[at] = node[at - 1];
        node[at] = x;
    }
}
