/* judge.h - settings of the scorers that ask a model. Level 5.2.
 *
 * The scorers (judge.c) write questions and weigh answers; host/rollout_judge.c asks, host/run.c
 * opens the model. */
#pragma once
#include "host/scorer/scorer.h"

enum { GR_JUDGE_READS_TEXT, GR_JUDGE_READS_PATH };
typedef struct gr_judge_settings {
    char weights[GR_TEXT_MAX]; /* first, where gr_heuristic_score looks for them */
    double blend, temperature;
    int reads;
    int64_t history, max_tokens, max_calls;
    char model[GR_TEXT_MAX], chat[GR_TEXT_MAX];
    bool think;
} gr_judge_settings;
extern const gr_block gr_judge_block; /* "judge" */
