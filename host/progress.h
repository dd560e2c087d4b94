/* progress.h - what is seen of a run while it works. Level 7; private to the loops.
 *
 * For a person on stderr: on a terminal one line that updates itself; elsewhere plain lines, at most one every
 * few seconds; a table at the end. For a program, with log.json, on stdout: one object per line, of every
 * step and at the end; a number that is not known is null. With log.quiet nothing. */
#pragma once
#include "host/train.h"

typedef struct gr_progress {
    double start_s, last_s; /* clock of the first and the latest line */
    double start_share;     /* progress when it started: a resumed run has done some */
    double first_success, first_greedy, last_success, last_greedy; /* NaN until evaluated */
    bool started, open_line;
} gr_progress;

void gr_progress_warmstart(gr_progress* p, const gr_run* run, int64_t step, int64_t steps,
                           double loss);
void gr_progress_step(gr_progress* p, const gr_run* run, const gr_metrics* m);
void gr_progress_end(gr_progress* p, const gr_run* run); /* the closing table */
