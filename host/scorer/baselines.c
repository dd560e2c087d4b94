/* baselines.c - scorers to compare with: random, constant, and the reward so far. */
#include <math.h>

#include "host/scorer/scorer.h"

typedef struct constant_settings {
    double value;
} constant_settings;

static const gr_setting constant_table[] = {
    GR_SET_REAL(constant_settings, value, 0, 1, 0.5, "score of every node"),
};
static const gr_block constant_block =
    GR_BLOCK(constant_settings, "constant", "scorer.name=constant", constant_table);

static void random_score(const void* settings, const gr_tree* t, const gr_world* world,
                         uint64_t key, const int32_t* node, int n, double* out)
{
    (void)settings;
    (void)world;
    for (int i = 0; i < n; i++) {
        if (gr_terminal_score(t, node[i], &out[i])) continue;
        out[i] = gr_uniform(gr_key_join(key, t->uid[node[i]]), 0);
    }
}

static void constant(const void* settings, const gr_tree* t, const gr_world* world, uint64_t key,
                     const int32_t* node, int n, double* out)
{
    const constant_settings* s = settings;
    (void)world;
    (void)key;
    for (int i = 0; i < n; i++) {
        if (!gr_terminal_score(t, node[i], &out[i])) out[i] = s->value;
    }
}

static void reward_only(const void* settings, const gr_tree* t, const gr_world* world, uint64_t key,
                        const int32_t* node, int n, double* out)
{
    (void)settings;
    (void)world;
    (void)key;
    for (int i = 0; i < n; i++) {
        if (gr_terminal_score(t, node[i], &out[i])) continue;
        out[i] = fmin(fmax(gr_tree_return(t, node[i]), 0), 1);
    }
}

const gr_scorer gr_scorer_random = {.name = "random", .score = random_score};
const gr_scorer gr_scorer_constant = {
    .name = "constant", .block = &constant_block, .score = constant};
const gr_scorer gr_scorer_reward_only = {.name = "reward_only", .score = reward_only};
