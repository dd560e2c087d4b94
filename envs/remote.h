/* remote.h - the world behind envs/protocol.h. Level 1. */
#pragma once
#include "envs/env.h"

typedef struct gr_remote_settings {
    char command[GR_TEXT_MAX];
    int64_t workers;
    double deadline_s, start_deadline_s;
} gr_remote_settings;

extern const gr_world gr_world_remote;
