/* scorer.c - the list of scorers, and what they share. */
#include "host/scorer/scorer.h"

#include <stdio.h>
#include <string.h>

const gr_scorer* const gr_scorers[] = {
    &gr_scorer_heuristic,    &gr_scorer_noisy,
    &gr_scorer_random,       &gr_scorer_constant,
    &gr_scorer_reward_only,  &gr_scorer_rule_critic,
    &gr_scorer_hidden_tests, &gr_scorer_judge,
    &gr_scorer_model_critic, NULL,
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

gr_status gr_scorer_check(const gr_scorer* s, const void* settings, const gr_world* world)
{
    return s->check != NULL ? s->check(s, settings, world) : GR_OK;
}

int gr_signal_find(const gr_world* world, const char* name, size_t n)
{
    for (int i = 0; i < world->n_signals; i++) {
        if (strlen(world->signal[i]) == n && memcmp(world->signal[i], name, n) == 0) return i;
    }
    return -1;
}

gr_status gr_signal_unknown(const char* block, const char* key, const char* name, size_t n,
                            const gr_world* world)
{
    char known[512] = "none";
    int at = 0;
    for (int i = 0; i < world->n_signals && at < (int)sizeof known; i++) {
        at += snprintf(known + at, sizeof known - (size_t)at, "%s%s", i > 0 ? ", " : "",
                       world->signal[i]);
    }
    return GR_FAIL(GR_EARG, "%s.%s: the world `%s` reports no `%.*s`; it reports: %s", block, key,
                   world->name, (int)n, name, known);
}
