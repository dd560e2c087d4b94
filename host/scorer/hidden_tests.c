/* hidden_tests.c - the oracle: how much of what judges a task a prefix already meets.
 *
 * The world is asked to judge the state behind each node, which for repository tasks means to
 * run the hidden tests on the patch so far, in a fresh sandbox. No deployed agent knows that, so
 * it is for training alone, to be asked for by name: an upper bound for what a scorer can give.
 * The advantage stays that of the outcome. */
#include <math.h>
#include <stdlib.h>

#include "host/scorer/scorer.h"

static gr_status check(const gr_scorer* self, const void* settings, const gr_world* world)
{
    (void)settings;
    if (world->async != NULL && world->async->judge != NULL) return GR_OK;
    return GR_FAIL(GR_EARG, "scorer.name = %s: the world `%s` has no hidden tests", self->name,
                   world->name);
}

/* What could not be judged scores 0; the world has said why. */
static void look(const gr_tree* t, gr_envs* envs, const int32_t* node, int n, double* out)
{
    int* handle = malloc((size_t)n * sizeof *handle);
    double* met = malloc((size_t)n * sizeof *met);
    GR_ASSERT(handle != NULL && met != NULL, "out of memory");
    int asked = 0, told = 0;
    for (int i = 0; i < n; i++) {
        if (t->status[node[i]] != GR_TERMINAL) handle[asked++] = t->env[node[i]];
    }
    if (asked > 0) gr_envs_judge(envs, handle, asked, met);
    for (int i = 0; i < n; i++) {
        if (gr_terminal_score(t, node[i], &out[i])) continue;
        out[i] = isnan(met[told]) ? 0 : met[told];
        told++;
    }
    free(handle);
    free(met);
}

const gr_scorer gr_scorer_hidden_tests = {
    .name = "hidden_tests",
    .turn_cost = 1,
    .privileged = true,
    .check = check,
    .look = look,
};
