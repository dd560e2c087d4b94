/* swebench.h - the world of repository tasks: an issue, a sandbox, one bash block per turn.
 * Level 1. */
#pragma once
#include "envs/env.h"
#include "envs/sandbox/sandbox.h"

typedef struct gr_swe_settings {
    char instances[GR_TEXT_MAX], test_instances[GR_TEXT_MAX];
    char mirrors[GR_TEXT_MAX], cache[GR_TEXT_MAX], setup[GR_TEXT_MAX], read[GR_TEXT_MAX];
    char predictions[GR_TEXT_MAX], images[GR_TEXT_MAX];
    int backend; /* of tree.h */
    int64_t max_turns, output;
    double fetch_s, command_s, episode_s, tests_s;
    gr_sandbox_settings sandbox;
} gr_swe_settings;

extern const gr_world gr_world_swebench;
