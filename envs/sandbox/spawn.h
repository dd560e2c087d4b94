/* spawn.h - starts a confined command as a child of the helper. Level 1. */
#pragma once
#include "envs/sandbox/confine.h"

typedef struct gr_job {
    pid_t pid;
    int pidfd;  /* readable once it has ended, and all its descendants with it */
    int out;    /* its output; never blocks */
    int report; /* why it did not start, if it did not */
} gr_job;

/* Fills in the descriptors of `c`. The command enters the groups of sandbox `number` before it runs
 * anything. */
GR_MUST_CHECK gr_status gr_job_start(gr_job* job, gr_confinement* c, int64_t number,
                                     const char* input, size_t n_input);
void gr_job_kill(const gr_job* job);
/* Once pidfd is readable: the exit status as a shell has it. Fails if the command never ran. */
GR_MUST_CHECK gr_status gr_job_reap(gr_job* job, int* code);
void gr_job_close(gr_job* job); /* the descriptors */
