/* heuristic.c - a weighted sum of the signals that a world reports, and the same with noise.
 *
 * The weights are a setting, "progress=0.7 safe_novelty=0.2 reward=0.1", so no scorer knows a
 * world: names are looked up in the world's list, and one that is not there is refused before the
 * run. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/scorer/scorer.h"

typedef struct heuristic_settings {
    char weights[GR_TEXT_MAX];
} heuristic_settings;

typedef struct noisy_settings {
    char weights[GR_TEXT_MAX]; /* first, as in heuristic_settings */
    double p;
} noisy_settings;

static const gr_setting heuristic_table[] = {
    GR_SET_TEXT(heuristic_settings, weights, GR_WEIGHTS_DEFAULT, GR_WEIGHTS_HELP),
};
static const gr_block heuristic_block =
    GR_BLOCK(heuristic_settings, "heuristic", "scorer.name=heuristic", heuristic_table);

static const gr_setting noisy_table[] = {
    GR_SET_TEXT(noisy_settings, weights, GR_WEIGHTS_DEFAULT, GR_WEIGHTS_HELP),
    GR_SET_REAL(noisy_settings, p, 0, 1, 0.5,
                "probability that a node's score is drawn from [0, 1) instead"),
};
static const gr_block noisy_block =
    GR_BLOCK(noisy_settings, "noisy", "scorer.name=noisy", noisy_table);

typedef struct weight {
    const char* name; /* n_name bytes */
    int n_name, signal;
    double value;
} weight;

/* Takes the next "name=value" from *at. False at the end of the text; signal is -1 for a name that
 * the world does not report, name NULL for a text that is no weight. */
static bool next_weight(const char** at, const gr_world* world, weight* w)
{
    const char* begin = *at + strspn(*at, " ,");
    *w = (weight){.signal = -1};
    if (*begin == 0) return false;
    int n_name = (int)strcspn(begin, "= ,");
    char* end = NULL;
    if (n_name == 0 || begin[n_name] != '=') return true;
    w->value = strtod(begin + n_name + 1, &end);
    if (end == begin + n_name + 1 || (*end != 0 && strchr(" ,", *end) == NULL)) return true;
    if (!isfinite(w->value)) return true;
    *at = end;
    w->name = begin;
    w->n_name = n_name;
    w->signal = gr_signal_find(world, begin, (size_t)n_name);
    return true;
}

double gr_heuristic_score(const void* settings, const gr_tree* t, const gr_world* world, int node)
{
    const char* at = settings; /* the text of weights */
    const double* signal = t->signal + (int64_t)node * GR_SIGNALS;
    double sum = 0;
    weight w;
    if (gr_terminal_score(t, node, &sum)) return sum;
    while (next_weight(&at, world, &w)) {
        GR_ASSERT(w.name != NULL && w.signal >= 0, "weights were not checked");
        sum += w.value * signal[w.signal];
    }
    return fmin(fmax(sum, 0), 1);
}

gr_status gr_heuristic_check(const gr_scorer* self, const void* settings, const gr_world* world)
{
    const char* at = settings;
    const char* block = self->block->name;
    uint32_t seen = 0;
    weight w;
    while (next_weight(&at, world, &w)) {
        if (w.name == NULL)
            return GR_FAIL(GR_EARG, "%s.weights: `%s` is not name=weight", block, at);
        if (w.signal < 0) {
            return gr_signal_unknown(block, "weights", w.name, (size_t)w.n_name, world);
        }
        if (seen >> w.signal & 1) {
            return GR_FAIL(GR_EARG, "%s.weights: `%.*s` is named twice", block, w.n_name, w.name);
        }
        seen |= (uint32_t)1 << w.signal;
    }
    if (seen == 0) return GR_FAIL(GR_EARG, "%s.weights: empty, so every score would be 0", block);
    return GR_OK;
}

static void heuristic(const void* settings, const gr_tree* t, const gr_world* world, uint64_t key,
                      const int32_t* node, int n, double* out)
{
    (void)key;
    for (int i = 0; i < n; i++) out[i] = gr_heuristic_score(settings, t, world, node[i]);
}

static void noisy(const void* settings, const gr_tree* t, const gr_world* world, uint64_t key,
                  const int32_t* node, int n, double* out)
{
    const noisy_settings* s = settings;
    for (int i = 0; i < n; i++) {
        uint64_t k = gr_key_join(key, t->uid[node[i]]);
        out[i] = gr_heuristic_score(settings, t, world, node[i]);
        if (t->status[node[i]] != GR_TERMINAL && gr_uniform(k, 0) < s->p) out[i] = gr_uniform(k, 1);
    }
}

const gr_scorer gr_scorer_heuristic = {.name = "heuristic",
                                       .block = &heuristic_block,
                                       .check = gr_heuristic_check,
                                       .score = heuristic};
const gr_scorer gr_scorer_noisy = {
    .name = "noisy", .block = &noisy_block, .check = gr_heuristic_check, .score = noisy};
