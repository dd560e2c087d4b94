/* rule_critic.c - a critic without a model: what a step did, read off the world's signals.
 *
 * On the scale of ProCeedRL's process critic (arXiv:2604.02006), where a rule can tell levels
 * apart: a step that ended the episode without success is worth 0, one that changed nothing 2, one
 * that led away from the goal 4, one that came no nearer 6, one that came nearer 8, success 10. How
 * far the goal is says a signal of the world, whose name is a setting. */
#include <stdio.h>
#include <string.h>

#include "host/scorer/scorer.h"

typedef struct rule_settings {
    char signal[GR_TEXT_MAX];
} rule_settings;

static const gr_setting rule_table[] = {
    GR_SET_TEXT(rule_settings, signal, "distance",
                "signal of the world that falls as the goal comes nearer"),
};
static const gr_block rule_block =
    GR_BLOCK(rule_settings, "rule_critic", "scorer.name=rule_critic", rule_table);

enum { FATAL = 0, STILL = 2, AWAY = 4, LEVEL = 6, NEARER = 8, SOLVED = 10 };

static const char* const words[GR_LEVELS + 1] = {
    [FATAL] = "the step ended the episode without success",
    [STILL] = "the step changed nothing",
    [AWAY] = "the step leads away from the goal",
    [LEVEL] = "the step comes no nearer to the goal",
    [NEARER] = "the step comes nearer to the goal",
    [SOLVED] = "the task is solved",
};

static gr_status check(const gr_scorer* self, const void* settings, const gr_world* world)
{
    const rule_settings* s = settings;
    if (gr_signal_find(world, s->signal, strlen(s->signal)) >= 0) return GR_OK;
    return gr_signal_unknown(self->block->name, "signal", s->signal, strlen(s->signal), world);
}

static int level(const gr_tree* t, int node, int signal)
{
    const double* here = t->signal + (int64_t)node * GR_SIGNALS;
    const double* before = t->signal + (int64_t)t->parent[node] * GR_SIGNALS;
    if (t->success[node]) return SOLVED;
    if (t->status[node] == GR_TERMINAL) return FATAL;
    if (t->state_hash[node] == t->state_hash[t->parent[node]]) return STILL;
    return here[signal] < before[signal] ? NEARER : here[signal] > before[signal] ? AWAY : LEVEL;
}

static void score(const void* settings, const gr_tree* t, const gr_world* world, uint64_t key,
                  const int32_t* node, int n, double* out)
{
    const rule_settings* s = settings;
    int signal = gr_signal_find(world, s->signal, strlen(s->signal));
    (void)key;
    for (int i = 0; i < n; i++) out[i] = level(t, node[i], signal) / (double)GR_LEVELS;
}

static int critique(const void* settings, const gr_tree* t, int node, double score, char* text,
                    int cap)
{
    (void)settings;
    (void)t;
    (void)node;
    return snprintf(text, (size_t)cap, "%s", words[(int)(score * GR_LEVELS + 0.5)]);
}

const gr_scorer gr_scorer_rule_critic = {.name = "rule_critic",
                                         .block = &rule_block,
                                         .check = check,
                                         .score = score,
                                         .critique = critique};
