/* scorer.h - how good is a prefix, or the step that it ends with. Level 5.
 *
 * Scores decide where to spend and nothing else: they never touch rewards or advantages. Terminal
 * states score 1 or 0 by their success. A critic is a scorer that judges the last step of the
 * prefix, on a scale of 0 to 10 (score = level / 10), and says why. A scorer may ask a model: then
 * `score` gives what holds without an answer, and `hear` what holds with one. */
#pragma once
#include <stdio.h>

#include "host/tree.h"

#define GR_LEVELS 10 /* of critics: 0 does harm, 10 solves the task */
enum { GR_HAS_READ = -1 };

typedef struct gr_scorer gr_scorer;
struct gr_scorer {
    const char* name;
    const gr_block* block;
    /* Environment turns one call is charged as: 0 for heuristics, 1 for a model or for tests. */
    int turn_cost;
    /* It knows what judges the task: `grove eval` refuses it, and the run's log says so. */
    bool privileged;
    /* Refuses settings that do not fit the world, such as signals it does not report; NULL: any
     * settings fit any world. */
    gr_status (*check)(const gr_scorer* self, const void* settings, const gr_world* world);
    /* Scores of n nodes in [0, 1] into out. `key` serves random scorers. */
    void (*score)(const void* settings, const gr_tree* t, const gr_world* world, uint64_t key,
                  const int32_t* node, int n, double* out);
    /* In the place of `score`, for a scorer that looks at the worlds' states behind the nodes. */
    void (*look)(const gr_tree* t, gr_envs* envs, const int32_t* node, int n, double* out);
    /* Why a node has that score, in words: at most cap - 1 bytes and a terminator; returns the
     * bytes written. NULL: it does not say. */
    int (*critique)(const void* settings, const gr_tree* t, int node, double score, char* text,
                    int cap);
    /* This and `hear` are NULL in scorers that ask no model. Writes what the model is to read about
     * a node, with at most `history` turns in front of its last one; GR_HAS_READ: it has read them
     * all as an agent, what is missing is the question. False: there is nothing to ask about it. */
    bool (*question)(const gr_tree* t, const gr_world* world, int node, int history, FILE* out);
    /* The score of a node that the model gave a level of 0 to GR_LEVELS, and `score` a score of
     * `before`. */
    double (*hear)(const void* settings, double before, int level);
};

extern const gr_scorer gr_scorer_heuristic, gr_scorer_noisy, gr_scorer_random, gr_scorer_constant,
    gr_scorer_reward_only, gr_scorer_rule_critic, gr_scorer_hidden_tests, gr_scorer_judge,
    gr_scorer_model_critic;
extern const gr_scorer* const gr_scorers[]; /* NULL-terminated */
const gr_scorer* gr_scorer_find(const char* name);
GR_MUST_CHECK gr_status gr_scorer_check(const gr_scorer* s, const void* settings,
                                        const gr_world* world);
/* Number of the world's signal of n bytes of name; -1: it reports none of that name. */
int gr_signal_find(const gr_world* world, const char* name, size_t n);
/* The error about a setting `key` of a block that names an unknown signal. */
gr_status gr_signal_unknown(const char* block, const char* key, const char* name, size_t n,
                            const gr_world* world);
/* The score by which a heuristic sees one node; noisy(p) and judge build on it. `settings` of all
 * begin with the text of weights, which the check reads. */
#define GR_WEIGHTS_DEFAULT "progress=0.7 safe_novelty=0.2 reward=0.1"
#define GR_WEIGHTS_HELP    "weights of the world's signals, name=weight separated by spaces"
GR_MUST_CHECK gr_status gr_heuristic_check(const gr_scorer* self, const void* settings,
                                           const gr_world* world);
double gr_heuristic_score(const void* settings, const gr_tree* t, const gr_world* world, int node);
/* True, with the score, for a node in which the world ended the episode. */
bool gr_terminal_score(const gr_tree* t, int node, double* out);
