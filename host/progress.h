/* progress.h - what a person sees on stderr while a run works. Level 7; private to the loops.
 *
 * On a terminal one line that updates itself; elsewhere plain lines, at most one every few seconds. */
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
