/* swe.h - what the tests of repository tasks share: the tiny set, its base trees, a sandbox. */
#pragma once
#include "tests/disk.h"

#include "envs/swebench/grade.h"
#include "envs/swebench/swebench.h"
#include "envs/swebench/tree.h"

static gr_swe_set tiny;
static char tiny_tree[64][4096]; /* base trees, by instance */
static gr_sandbox* box;
static const gr_swe_sources own_sources = {.mirrors = "", .cache = scratch, .fetch_s = 300};

/* Settings of a world of the tiny set, which keeps its base trees in scratch/`cache`. */
static inline gr_swe_settings tiny_settings(const char* cache)
{
    gr_swe_settings s = {.max_turns = 20,
                         .output = 2000,
                         .fetch_s = 300,
                         .command_s = 60,
                         .episode_s = 600,
                         .tests_s = 60};
    (void)snprintf(s.instances, sizeof s.instances, "envs/swe_tiny");
    (void)snprintf(s.images, sizeof s.images, "docker.io/swebench");
    (void)snprintf(s.cache, sizeof s.cache, "%s/%s", scratch, cache);
    gr_sandbox_defaults(&s.sandbox);
    (void)snprintf(s.sandbox.sandbox_dir, sizeof s.sandbox.sandbox_dir, "%s", scratch);
    return s;
}

/* True if this system lets us make sandboxes; else says why not. */
static inline bool open_box(void)
{
    gr_sandbox_settings s;
    gr_sandbox_defaults(&s);
    (void)snprintf(s.sandbox_dir, sizeof s.sandbox_dir, "%s", scratch);
    s.live = 64;
    s.running = 2;
    if (gr_sandbox_open(&box, &s) == GR_OK) return true;
    printf("SKIPPED: %s\n", gr_last_error_text());
    return false;
}

static inline void make_tiny_trees(void)
{
    char path[4096];
    ASSERT_OK(gr_swe_read(&tiny, "envs/swe_tiny"));
    assert_in_range(tiny.n, 12, GR_COUNT(tiny_tree));
    for (int64_t i = 0; i < tiny.n; i++) {
        ASSERT_OK(gr_swe_check(&tiny.instance[i]));
        ASSERT_OK(gr_swe_tree(&tiny.instance[i], &own_sources, path));
        (void)snprintf(tiny_tree[i], sizeof tiny_tree[i], "%s", path);
    }
}

static inline int64_t find_tiny(const char* id)
{
    for (int64_t i = 0; i < tiny.n; i++) {
        if (strcmp(tiny.instance[i].id, id) == 0) return i;
    }
    fail_msg("no task `%s`", id);
    return -1;
}
