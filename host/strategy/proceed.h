/* proceed.h - settings of ProCeedRL that more than its strategy reads. Level 5.
 *
 * The strategy decides which steps are made again (proceed.c); what their tokens weigh in the loss
 * is host/demo.c's. One block of settings serves both. */
#pragma once
#include "host/strategy/strategy.h"

enum { GR_DEMO_SURROGATE, GR_DEMO_SFT };
enum { GR_RATIO_CLEAN, GR_RATIO_ONE };
enum { GR_PHI_NONE, GR_PHI };

typedef struct gr_proceed_settings {
    /* which steps, by whom */
    int64_t threshold, tries, max_refined;
    double share, final_share;
    int refiner, told, noise, keep;
    /* in the loss */
    int loss, ratio, weight, mask;
    double phi_scale, mu;
} gr_proceed_settings;
extern const gr_block gr_proceed_block;

/* Branches of a group whose bad steps are made again: those of the lowest ordinals. */
int gr_proceed_demos(const gr_proceed_settings* s, int group, double progress);
