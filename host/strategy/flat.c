/* flat.c - independent rollouts: `rollout.group` branches at the root and nothing else. */
#include "host/strategy/strategy.h"

static int flat_round(const void* settings, const gr_tree* t, const gr_round* r, gr_decision* out,
                      int cap)
{
    (void)settings;
    (void)t;
    return r->number == 0 ? gr_open_group(r, out, cap) : 0;
}

const gr_strategy gr_strategy_flat = {.name = "flat", .round = flat_round};
