/* tree_random.c - the control for patr: the same tree with branch points chosen at random.
 *
 * It is patr with equal scores everywhere, so nothing is pruned and ties are drawn at random; it
 * has patr's block of settings, and grows the tree that patr grows with scorer.name = constant.
 * What the scorer says is recorded in the tree but decides nothing. */
#include <stdlib.h>

#include "host/strategy/patr.h"

static int random_round(const void* settings, const gr_tree* t, const gr_round* r, gr_decision* out,
                        int cap)
{
    gr_round blind = *r;
    double* equal = calloc((size_t)t->n_nodes, sizeof *equal);
    GR_ASSERT(equal != NULL, "out of memory");
    blind.score = equal;
    int n = gr_patr_round(settings, t, &blind, out, cap);
    free(equal);
    return n;
}

const gr_strategy gr_strategy_tree_random = {
    .name = "tree_random",
    .block = &gr_patr_block,
    .verdict = gr_patr_verdict,
    .wants = gr_patr_wants,
    .round = random_round,
};
