/* scorer.c - the list of scorers, and what they share. */
#include "host/scorer/scorer.h"

#include <string.h>

const gr_scorer* const gr_scorers[] = {
    &gr_scorer_heuristic, &gr_scorer_noisy,       &gr_scorer_random,
    &gr_scorer_constant,  &gr_scorer_reward_only, NULL,
};

const gr_scorer* gr_scorer_find(const char* name)
{
    for (int i = 0; gr_scorers[i] != NULL; i++) {
        if (strcmp(gr_scorers[i]->name, name) == 0) return gr_scorers[i];
    }
    return NULL;
}

bool gr_terminal_score(const gr_tree* t, int node, double* out)
{
    if (t->status[node] != GR_TERMINAL) return false;
    *out = t->success[node] ? 1 : 0;
    return true;
}
