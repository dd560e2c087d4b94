/* watchdog.h - says what a run waits for when it stands still. Level 7; private to the training loop. */
#pragma once
#include "host/train.h"

/* A thread that prints one line whenever no step has ended for log.watchdog_s seconds, naming the phase
 * and the party that is waited for. log.watchdog_s = 0: none. */
typedef struct gr_watchdog gr_watchdog;
GR_MUST_CHECK gr_status gr_watchdog_start(gr_watchdog** out, const gr_run* run);
void gr_watchdog_beat(gr_watchdog* w, int64_t step); /* a step ended */
void gr_watchdog_stop(gr_watchdog* w);               /* NULL: nothing */
