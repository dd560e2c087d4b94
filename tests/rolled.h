/* rolled.h - a small run and the trees of one step of it; GROUPS is the test's. */
#pragma once
#include "host/train.h"
#include "tests/disk.h"

typedef struct fixture {
    gr_config config;
    gr_run run;
    gr_tree tree[GROUPS];
} fixture;

/* Opens a run of these settings; its weights are not published yet. */
static inline gr_status try_open(fixture* f, int n, const char* const* settings)
{
    memset(f, 0, sizeof *f);
    gr_run_settings(&f->config);
    GR_TRY(gr_config_load(&f->config, NULL, n, settings));
    return gr_run_open(&f->run, &f->config, GR_RUN_TRAIN, NULL, false);
}

static inline void close_run(fixture* f)
{
    for (int i = 0; i < GROUPS; i++) gr_tree_free(&f->tree[i]);
    gr_run_close(&f->run);
    gr_config_free(&f->config);
}

static inline void roll(fixture* f)
{
    gr_rollout_task task[GROUPS];
    for (int i = 0; i < GROUPS; i++) {
        task[i] = (gr_rollout_task){.step = 1, .slot = i, .split = GR_TRAIN, .task = 20 + i};
    }
    ASSERT_OK(gr_rollout_run(f->run.rollout, &f->run.train_settings, task, GROUPS, f->tree));
    for (int i = 0; i < GROUPS; i++) gr_tree_check(&f->tree[i]);
}
