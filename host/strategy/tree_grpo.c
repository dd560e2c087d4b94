/* tree_grpo.c - Tree-GRPO's trees (Ji et al. 2025, github.com/AMAP-ML/Tree-GRPO).
 *
 * rollout.group chains run to their end; each is the first branch of a tree of its own with a
 * shared root. Then, `l` times, every such tree picks `n` of its nodes uniformly, with replacement,
 * from the root and all nodes that are not leaves, and goes on from each to the end. An expansion
 * at the root joins the branch that picked it. Without early ends and caps a group has M (l n + 1)
 * leaves. */
#include "host/strategy/strategy.h"

typedef struct tree_grpo_settings {
    int64_t n, l;
} tree_grpo_settings;

static const gr_setting tree_grpo_table[] = {
    GR_SET_INT(tree_grpo_settings, n, 1, 64, 2, "nodes a tree expands at a time"),
    GR_SET_INT(tree_grpo_settings, l, 0, 64, 1, "times that every tree expands"),
};
static const gr_block tree_grpo_block =
    GR_BLOCK(tree_grpo_settings, "tree_grpo", "rollout.strategy=tree_grpo", tree_grpo_table);

/* Candidate number `pick` of a branch: 0 is the root, then inner nodes in node order. pick < 0:
 * only counts; returns their number. */
static int candidate(const gr_tree* t, int branch, int pick)
{
    int n = 1;
    if (pick == 0) return 0;
    for (int i = 1; i < t->n_nodes; i++) {
        if (t->branch[i] != branch || t->status[i] != GR_INNER) continue;
        if (n++ == pick) return i;
    }
    return n;
}

static int tree_grpo_round(const void* settings, const gr_tree* t, const gr_round* r,
                           gr_decision* out, int cap)
{
    const tree_grpo_settings* s = settings;
    int n = 0, branches = 0;
    if (r->number == 0) return gr_open_group(r, out, cap);
    if (r->number > s->l) return 0;
    for (int i = 1; i < t->n_nodes; i++) branches = GR_MAX(branches, t->branch[i] + 1);
    int64_t turns = gr_tree_turns_free(t);
    /* the newest group only: a tree may be extended by another one */
    for (int b = GR_MAX(branches - r->group, 0); b < branches; b++) {
        int n_candidates = candidate(t, b, -1);
        for (int64_t k = 0; k < s->n && n < cap; k++) {
            double u = gr_uniform(gr_key_join(r->key, (uint64_t)b), (uint64_t)k);
            int node = candidate(t, b, (int)(u * n_candidates));
            int64_t need = r->horizon - t->turn[node];
            if (need > turns) continue;
            turns -= need;
            out[n++] = (gr_decision){.node = node, .n_children = 1, .branch = b};
        }
    }
    return n;
}

const gr_strategy gr_strategy_tree_grpo = {
    .name = "tree_grpo",
    .block = &tree_grpo_block,
    .keeps_states = true,
    .round = tree_grpo_round,
};
