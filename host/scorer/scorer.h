/* scorer.h - how good is a prefix. Level 5.
 *
 * Scores decide where to spend and nothing else: they never touch rewards or advantages. Terminal
 * states score 1 or 0 by their success. */
#pragma once
#include "host/tree.h"

typedef struct gr_scorer {
    const char* name;
    const gr_block* block;
    int turn_cost; /* environment turns one call is charged as: 0 for heuristics, 1 for a model */
    /* Scores of n nodes in [0, 1] into out. `key` serves random scorers. */
    void (*score)(const void* settings, const gr_tree* t, const gr_world* world, uint64_t key,
                  const int32_t* node, int n, double* out);
} gr_scorer;

extern const gr_scorer gr_scorer_heuristic, gr_scorer_noisy, gr_scorer_random, gr_scorer_constant,
    gr_scorer_reward_only;
extern const gr_scorer* const gr_scorers[]; /* NULL-terminated */
const gr_scorer* gr_scorer_find(const char* name);
/* Refuses settings that name signals the world does not report. */
GR_MUST_CHECK gr_status gr_scorer_check(const gr_scorer* s, const void* settings,
                                        const gr_world* world);
/* The score by which a heuristic sees one node; noisy(p) builds on it. `settings` of both begin
 * with the text of weights. */
double gr_heuristic_score(const void* settings, const gr_tree* t, const gr_world* world, int node);
/* True, with the score, for a node in which the world ended the episode. */
bool gr_terminal_score(const gr_tree* t, int node, double* out);
