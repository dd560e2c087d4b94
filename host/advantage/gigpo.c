/* gigpo.c - an episode's return against its group's, plus each turn against other turns from the
 * same state (GiGPO, Feng et al. 2025, arXiv:2505.10978).
 *
 *     A(leaf, turn) = A_E(leaf) + omega A_S(leaf, turn)
 *     A_E  returns compared over the group, as in grpo or, with norm = mean, without division
 *     A_S  G = r + gamma r' + ... from the turn to the leaf's end, compared in the same way over
 *          all turns of the group that answer one anchor state
 *
 * The anchor is the hash of the state that the action answers: history and turn do not count. A
 * turn that several leaves share is in its anchor's group once for every leaf, as its copies in
 * flat rows would be. Groups of one give 0. Equal returns alone do not: of two paths to one reward
 * the discount prefers the shorter. */
#include <stdlib.h>

#include "host/advantage/advantage.h"

enum { NORM_STD, NORM_MEAN };

typedef struct gigpo_settings {
    double omega, gamma;
    int norm;
} gigpo_settings;

static const gr_setting gigpo_table[] = {
    GR_SET_REAL(gigpo_settings, omega, 0, 1000, 1, "weight of the comparison of turns"),
    GR_SET_REAL(gigpo_settings, gamma, 0, 1, 0.95, "discount of a turn's return, per turn"),
    GR_SET_CHOICE(gigpo_settings, norm, "std|mean", NORM_STD,
                  "both comparisons: divide by the deviation, or subtract the mean alone"),
};
static const gr_block gigpo_block =
    GR_BLOCK(gigpo_settings, "gigpo", "advantage.estimator=gigpo", gigpo_table);

/* One turn of one leaf's path. */
typedef struct visit {
    uint64_t anchor;
    int64_t at; /* in path_adv */
    double ret; /* discounted, from this turn on */
} visit;

static int by_anchor(const void* a, const void* b)
{
    const visit *x = a, *y = b;
    if (x->anchor != y->anchor) return x->anchor < y->anchor ? -1 : 1;
    return x->at < y->at ? -1 : x->at > y->at; /* sums in one order */
}

static void list_visits(const gigpo_settings* s, const gr_credit* c, visit* v)
{
    const gr_tree* t = c->tree;
    for (int l = 0; l < c->n_leaves; l++) {
        double ret = 0;
        for (int i = c->leaf[l]; i > 0; i = t->parent[i]) {
            int64_t at = c->path_begin[l] + t->turn[i] - 1;
            ret = t->reward[i] + s->gamma * ret;
            v[at] = (visit){.anchor = t->state_hash[t->parent[i]], .at = at, .ret = ret};
        }
    }
}

static void compare(const gigpo_settings* s, const double* r, int n, double eps, double* a)
{
    if (s->norm == NORM_STD)
        gr_group_grpo(r, n, eps, a);
    else
        gr_group_mean(r, n, a);
}

static void add_steps(const gigpo_settings* s, gr_credit* c, double eps)
{
    int64_t n = c->path_begin[c->n_leaves];
    visit* v = malloc(((size_t)n + 1) * sizeof *v);
    double* work = malloc(((size_t)n + 1) * 2 * sizeof *work);
    GR_ASSERT(v != NULL && work != NULL, "out of memory");
    double *ret = work, *adv = work + n;
    list_visits(s, c, v);
    qsort(v, (size_t)n, sizeof *v, by_anchor);
    for (int64_t begin = 0, end; begin < n; begin = end) {
        for (end = begin; end < n && v[end].anchor == v[begin].anchor; end++) {
            ret[end - begin] = v[end].ret;
        }
        compare(s, ret, (int)(end - begin), eps, adv);
        for (int64_t i = begin; i < end; i++) c->path_adv[v[i].at] += s->omega * adv[i - begin];
    }
    free(v);
    free(work);
}

static void gigpo(const void* settings, gr_credit* c, double eps)
{
    const gigpo_settings* s = settings;
    if (c->n_leaves < 2) return; /* one path that comes back to a state is no comparison either */
    compare(s, c->ret, c->n_leaves, eps, c->adv);
    c->per_path = true;
    for (int l = 0; l < c->n_leaves; l++) {
        for (int64_t i = c->path_begin[l]; i < c->path_begin[l + 1]; i++)
            c->path_adv[i] = c->adv[l];
        c->adv[l] = 0; /* it is in path_adv */
    }
    add_steps(s, c, eps);
}

const gr_estimator gr_estimator_gigpo = {.name = "gigpo", .block = &gigpo_block, .fill = gigpo};
