#include "host/advantage/gae.h"

#include <math.h>

void gr_gae(double* adv, const double* reward, const double* value, int n, double value_after,
            double gamma, double lambda)
{
    double next_value = value_after, next = 0;
    for (int t = n - 1; t >= 0; t--) {
        next = reward[t] + gamma * next_value - value[t] + gamma * lambda * next;
        next_value = value[t];
        adv[t] = next;
    }
}

/* What the segments behind the one in hand hand down to it. */
typedef struct behind {
    double high; /* V_high at the next boundary */
    double adv;  /* high advantage there */
    bool any;    /* there is a next boundary */
} behind;

/* Where a segment goes on: the next boundary, the end, or the last values of a path cut off. */
static double value_behind(const gr_hae* h, const behind* b, const double* value, int at)
{
    if (b->any) return b->high;
    return !h->done && h->bootstrap ? value[at] : 0;
}

static void segment(const gr_hae* h, int begin, int end, behind* b, double* low, double* high,
                    double* to_go)
{
    double after = value_behind(h, b, h->high, begin), sum = after;
    gr_gae(low + begin, h->reward + begin, h->low + begin, end - begin,
           value_behind(h, b, h->low, end - 1), h->gamma, h->lambda_low);
    for (int t = end - 1; t >= begin; t--) {
        sum = h->reward[t] + h->gamma * sum;
        to_go[t] = sum;
        high[t] = 0;
    }
    double discount = pow(h->gamma, end - begin);
    high[begin] = sum - h->high[begin] + discount * h->lambda_high * b->adv;
    *b = (behind){.high = h->high[begin], .adv = high[begin], .any = true};
}

void gr_hae_fill(const gr_hae* h, double* low, double* high, double* to_go)
{
    behind b = {0};
    GR_ASSERT(h->n >= 1);
    for (int end = h->n, t = h->n - 1; t >= 0; t--) {
        if (t > 0 && !h->switched[t]) continue;
        segment(h, t, end, &b, low, high, to_go);
        end = t;
    }
}

double gr_hae_switch_gain(bool switched, double beta, double v_high, double v_low_before)
{
    return ((switched ? 1 : 0) - beta) * (v_high - v_low_before);
}
