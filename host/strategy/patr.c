/* patr.c - process-reward informed tree rollout (Li et al. 2026, arXiv:2607.15610).
 *
 * Every `interval` turns all live branches of a tree meet at a checkpoint. Those that score more
 * than `alpha` below the median end as pruned; the best `expand` of the others go on as `children`
 * children each; the rest goes on as it is. A branch that repeats itself `theta` times ends as loop
 * at once. Ended branches stay in the group: the scores allocate turns and never touch rewards.
 *
 * Settings that differ from the paper's text by default: loop = still, because "the same action
 * theta times" also ends straight paths that are right (loop = action is the published rule), and
 * max_leaves, which the published settings never reach (0 takes the limit away). */
#include "host/strategy/patr.h"

#include <stdlib.h>

enum { LOOP_STILL, LOOP_ACTION };

typedef struct patr_settings {
    int64_t interval, expand, children, theta, max_leaves, min_active;
    double alpha;
    int loop;
} patr_settings;

static const gr_setting patr_table[] = {
    GR_SET_INT(patr_settings, interval, 1, 1e6, 5, "turns between two checkpoints"),
    GR_SET_INT(patr_settings, expand, 0, 64, 2, "live branches that branch at a checkpoint"),
    GR_SET_INT(patr_settings, children, 1, 16, 2, "children that take the place of such a branch"),
    GR_SET_REAL(patr_settings, alpha, 0, 1, 0.5,
                "a live branch ends as pruned when its score is more than this below the median"),
    GR_SET_INT(patr_settings, theta, 0, 1e6, 6,
               "a branch ends as loop after so many repetitions; 0: never"),
    GR_SET_CHOICE(patr_settings, loop, "still|action", LOOP_STILL,
                  "what repeats: the action while the state stays equal, or the action alone"),
    GR_SET_INT(patr_settings, max_leaves, 0, 256, 10,
               "no branching beyond so many leaves of a tree; 0: no limit"),
    GR_SET_INT(patr_settings, min_active, 1, 64, 1, "live branches that pruning always leaves"),
};
const gr_block gr_patr_block =
    GR_BLOCK(patr_settings, "patr", "rollout.strategy=patr|tree_random", patr_table);

gr_verdict gr_patr_verdict(const void* settings, const gr_tree* t, int node)
{
    const patr_settings* s = settings;
    if (s->theta > 0 && gr_repeats(t, node, s->loop == LOOP_STILL) >= s->theta) {
        return GR_STOP_LOOP;
    }
    return t->turn[node] % s->interval == 0 ? GR_WAIT : GR_GO_ON;
}

int gr_patr_wants(const void* settings, const gr_tree* t, const gr_round* r, int32_t* node, int cap)
{
    (void)settings;
    int n = 0;
    if (r->number == 0) return 0;
    for (int i = 1; i < t->n_nodes; i++) {
        if (t->status[i] == GR_OPEN && n < cap) node[n++] = i;
    }
    return n;
}

/* Median score of nodes in descending order; of an even number the mean of the middle two. */
static double median(const int32_t* node, int n, const double* score)
{
    return 0.5 * (score[node[(n - 1) / 2]] + score[node[n / 2]]);
}

/* Decides on `active`, which is in descending order of score. */
static int checkpoint(const patr_settings* s, const gr_tree* t, const gr_round* r,
                      const int32_t* active, int n_active, gr_decision* out, int cap)
{
    int n = 0, rest = n_active;
    int64_t leaves = gr_tree_leaves(t, NULL, 0) + n_active, freed = 0;
    double worst = median(active, n_active, r->score) - s->alpha;
    while (rest > s->min_active && r->score[active[rest - 1]] < worst && n < cap) {
        int node = active[--rest];
        freed += t->turns_left[node];
        out[n++] = (gr_decision){.node = node, .status = GR_PRUNED};
    }
    int64_t more = s->children - 1, turns = gr_tree_turns_free(t);
    if (t->turn_cap > 0) turns += freed; /* pruned branches give theirs back first */
    for (int i = 0; i < GR_MIN(rest, s->expand) && n < cap; i++) {
        int64_t need = more * (r->horizon - t->turn[active[i]]);
        bool room = s->max_leaves == 0 || leaves + more <= s->max_leaves;
        if (!room || need > turns) continue; /* it goes on alone */
        leaves += more;
        turns -= need;
        out[n++] = (gr_decision){.node = active[i], .n_children = (int)s->children};
    }
    return n;
}

int gr_patr_round(const void* settings, const gr_tree* t, const gr_round* r, gr_decision* out,
                  int cap)
{
    if (r->number == 0) return gr_open_group(r, out, cap);
    int32_t* active = malloc((size_t)t->n_nodes * sizeof *active);
    GR_ASSERT(active != NULL, "out of memory");
    int n_active = gr_patr_wants(settings, t, r, active, t->n_nodes), n = 0;
    gr_rank(active, n_active, r->score, r->key);
    if (n_active > 0) n = checkpoint(settings, t, r, active, n_active, out, cap);
    free(active);
    return n;
}

const gr_strategy gr_strategy_patr = {
    .name = "patr",
    .block = &gr_patr_block,
    .verdict = gr_patr_verdict,
    .wants = gr_patr_wants,
    .round = gr_patr_round,
};
