/* limits.h - how much a sandbox may take: control groups, version 1 or 2, and resource limits where
 * there are none. Level 1.
 *
 * A run's groups lie under one folder named after the run, one group per sandbox in it: memory that
 * a sandbox took in files stays counted between its commands. */
#pragma once
#include <sys/types.h>

#include "envs/sandbox/sandbox.h"

enum { GR_GROUP_MEMORY, GR_GROUP_PIDS, GR_GROUP_CPU, GR_GROUP_KINDS };

typedef struct gr_groups {
    int version; /* 1, 2; 0: no groups */
    /* folder of the run per kind; "": that kind is missing. In version 2 all are the same. */
    char folder[GR_GROUP_KINDS][600];
} gr_groups;

/* Finds the hierarchies and makes the run's folder `name` in the group `in` ("/...") of each. Never
 * fails: what is missing is written to `notice`. `mounts` is /proc/self/mounts but in tests. */
void gr_groups_open(gr_groups* g, const char* mounts, const char* in, const char* name,
                    char* notice, size_t cap);
void gr_groups_close(gr_groups* g); /* removes the folder */
/* Kills what a dead run `name` left in its groups, and removes them. */
void gr_groups_sweep(const char* mounts, const char* in, const char* name);

/* The group of sandbox `number`, with its limits. */
GR_MUST_CHECK gr_status gr_group_make(const gr_groups* g, int64_t number,
                                      const gr_sandbox_settings* limits);
GR_MUST_CHECK gr_status gr_group_enter(const gr_groups* g, int64_t number, pid_t pid);
int64_t gr_group_kills(const gr_groups* g, int64_t number); /* for want of memory, so far */
void gr_group_remove(const gr_groups* g, int64_t number);

/* Resource limits of the calling process, for a command: always single files and core dumps, and
 * what no group limits. */
void gr_limits_apply(const gr_groups* g, const gr_sandbox_settings* limits);
