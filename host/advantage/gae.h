/* gae.h - advantages from values: the recursions over the turns of one path. Level 5; private to
 * the estimators, which read rewards and values off the tree.
 *
 * Flat: Schulman et al. 2016, arXiv:1506.02438, eq. 16. Hierarchical (HiPER, arXiv:2602.16165): a
 * path is cut into segments, each the life of one subgoal; boundaries are turn 0 and the turns that
 * switch. All arrays have one element per turn; fp64, summed from the last turn to the first. */
#pragma once
#include "host/base.h"

/* adv[t] = delta_t + gamma lambda adv[t + 1], delta_t = r_t + gamma V(t + 1) - V(t), with
 * `value_after` behind the last turn: 0 where the episode ended. adv may not alias the inputs. */
void gr_gae(double* adv, const double* reward, const double* value, int n, double value_after,
            double gamma, double lambda);

typedef struct gr_hae {
    int n; /* turns, >= 1 */
    const double* reward;
    const bool* switched; /* the turn set a new subgoal; turn 0 counts as such */
    const double* low;    /* V of state and subgoal, after the turn's subgoal is chosen */
    const double* high;   /* V of the state, before anything is said; read at boundaries only */
    double gamma, lambda_low, lambda_high;
    bool done;      /* the world ended the episode; false: it was cut off */
    bool bootstrap; /* a path that was cut off goes on from its last values, else from 0 */
} gr_hae;

/* low[t]: GAE inside the segment, started anew in each, which ends in V_high of the next boundary.
 * high[t]: at boundaries, GAE over segments with discounts gamma^length; 0 elsewhere.
 * to_go[t]: discounted reward to the segment's end and V_high of the next boundary from there: the
 * target of a third, termination head. */
void gr_hae_fill(const gr_hae* h, double* low, double* high, double* to_go);

/* The paper's advantage of KEEP or SWITCH: (q - beta)(V_high(s) - V_low(s, subgoal before)), beta
 * the probability of SWITCH. Its mean under the policy is 0. */
double gr_hae_switch_gain(bool switched, double beta, double v_high, double v_low_before);
