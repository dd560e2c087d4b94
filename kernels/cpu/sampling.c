/* sampling.c - greedy choice and Gumbel-max over the full vocabulary, and what restricts it.
 *
 * argmax over x of z_x + Gumbel noise is a draw from softmax(z) (Gumbel 1954; Maddison et al. 2014,
 * arXiv:1411.0030). The noise is a function of (uid, index, x), so a draw does not depend on the batch,
 * and excluding ids leaves the noise of the others as it is.
 *
 * top_k, top_p and min_p each name a set under the full distribution; candidates lie in all of them:
 *   top_k  the k largest z
 *   top_p  the largest z whose probabilities reach top_p, as few as possible
 *   min_p  probabilities of at least min_p times the largest
 * Of equal z at an edge the lower ids are in. */
#include "kernels/cpu/sampling.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/gumbel.h"

/* ---- argmax ---------------------------------------------------------------------------------------- */

/* Per lane: the largest value so far and where it is; ids ascend, so on ties the lowest stays. */
typedef struct best {
    vec value, id;
} best;

static inline void best_take(best* b, vec value, vec id)
{
    b->id = vec_if_less(b->value, value, id, b->id);
    b->value = vec_if_less(b->value, value, value, b->value);
}

static int32_t best_id(const best* b)
{
    acc value[VEC], id[VEC];
    vec_store(value, b->value);
    vec_store(id, b->id);
    int k = 0;
    for (int i = 1; i < VEC; i++)
        if (value[i] > value[k] || (value[i] == value[k] && id[i] < id[k])) k = i;
    return (int32_t)id[k];
}

static vec lane_ids(void)
{
    static const acc lane[VEC] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return vec_load(lane);
}

/* Lanes past the end lose against everything. */
static vec load_or_lowest(const acc* z, int left)
{
    if (left >= VEC) return vec_load(z);
    return vec_if_less(lane_ids(), vec_set((acc)left), vec_load_part(z, left),
                       vec_set(-(acc)INFINITY));
}

static int32_t argmax(const sampling_row* row)
{
    best b = {vec_set(-(acc)INFINITY), vec_zero()};
    for (int i = 0; i < row->v; i += VEC)
        best_take(&b, load_or_lowest(row->z + i, row->v - i), vec_add(vec_set((acc)i), lane_ids()));
    return best_id(&b);
}

static int32_t argmax_noisy(const sampling_row* row)
{
    best b = {vec_set(-(acc)INFINITY), vec_zero()};
    for (int first = 0; first < row->v; first += GUMBEL_IDS) {
        acc noise[GUMBEL_IDS];
        gumbel_noise(noise, row->uid, (uint64_t)row->index, first);
        for (int i = 0; i < GUMBEL_IDS && first + i < row->v; i += VEC) {
            const int at = first + i;
            const vec z = load_or_lowest(row->z + at, row->v - at);
            best_take(&b, vec_add(z, vec_load(noise + i)), vec_add(vec_set((acc)at), lane_ids()));
        }
    }
    return best_id(&b);
}

/* ---- restrictions ------------------------------------------------------------------------------------ */

/* The largest values: all above `edge`, and of those equal to it the `ties` lowest ids. */
typedef struct top_set {
    acc edge;
    int64_t ties;
} top_set;

/* acc values as integers in the same order. */
#if defined(GR_CPU_F64)
typedef int64_t key;
#define KEY_REST INT64_MAX
#else
typedef int32_t key;
#define KEY_REST INT32_MAX
#endif

static key key_of(acc x)
{
    key k;
    memcpy(&k, &x, sizeof k);
    return k < 0 ? k ^ KEY_REST : k;
}
static acc value_of(key k)
{
    acc x;
    k = k < 0 ? k ^ KEY_REST : k;
    memcpy(&x, &k, sizeof x);
    return x;
}

/* Sum of the weights (NULL: 1 each) of values of at least `edge`. */
static double weight_from(const sampling_row* row, const acc* weight, acc edge)
{
    const vec e = vec_set(edge), zero = vec_zero();
    double sum = 0;
    for (int i = 0; i < row->v; i += VEC) {
        const int left = GR_MIN(row->v - i, VEC);
        const vec w = weight == NULL ? vec_set(1) : vec_load_part(weight + i, left);
        sum += (double)vec_sum(vec_if_less(load_or_lowest(row->z + i, left), e, zero, w));
    }
    return sum;
}

/* The smallest set of largest values whose weights sum to `wanted`: bisection finds its edge. */
static top_set top_of(const sampling_row* row, const acc* weight, acc least, double wanted)
{
    const key max = key_of(row->max);
    key in = key_of(least),
        out = max + 1; /* the sum reaches `wanted` from `in` on, not from `out` */
    while (out - 1 > in) {
        const key mid = (key)((uint64_t)in + ((uint64_t)out - (uint64_t)in) / 2);
        if (weight_from(row, weight, value_of(mid)) >= wanted)
            in = mid;
        else
            out = mid;
    }
    const acc edge = value_of(in);
    const double each = weight == NULL ? 1 : (double)acc_exp(edge - row->max);
    const double above = in < max ? weight_from(row, weight, value_of(in + 1)) : 0;
    return (top_set){edge, GR_MAX((int64_t)ceil((wanted - above) / each), 1)};
}

static top_set narrower(top_set a, top_set b)
{
    if (a.edge != b.edge) return a.edge > b.edge ? a : b;
    return a.ties < b.ties ? a : b;
}

/* Sets z of what is no candidate to -infinity. */
static void restrict_to_candidates(const sampling_row* row, const gr_sampling* how)
{
    acc least = row->max;
    for (int i = 0; i < row->v; i++) {
        row->weight[i] = row->z[i] - row->max;
        least = GR_MIN(least, row->z[i]);
    }
    for (int i = 0; i < row->v; i += VEC) {
        const int left = GR_MIN(row->v - i, VEC);
        vec_store_part(row->weight + i, vec_exp(vec_load_part(row->weight + i, left)), left);
    }
    top_set top = {least, INT64_MAX};
    if (how->top_k > 0 && how->top_k < row->v)
        top = narrower(top, top_of(row, NULL, least, how->top_k));
    if (how->top_p < 1) {
        const double wanted = (double)how->top_p * weight_from(row, row->weight, least);
        top = narrower(top, top_of(row, row->weight, least, wanted));
    }
    for (int i = 0; i < row->v; i++) {
        bool in = row->z[i] >= top.edge && row->weight[i] >= (acc)how->min_p;
        if (in && row->z[i] == top.edge) in = top.ties-- > 0;
        if (!in) row->z[i] = -(acc)INFINITY;
    }
}

int32_t OP(sample)(const sampling_row* row, const gr_sampling* how)
{
    if (how->greedy) return argmax(row);
    if (how->top_k > 0 || how->top_p < 1 || how->min_p > 0) restrict_to_candidates(row, how);
    return argmax_noisy(row);
}
