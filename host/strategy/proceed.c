/* proceed.c - process critic and rewinds in a part of the group (ProCeedRL, arXiv:2604.02006).
 *
 * A share of the initial branches is watched by a critic, which is the run's scorer: after each of
 * their turns it gives the step a level of 0 to 10. A step of at most `threshold` is taken back,
 * with the state of the world, and a refiner makes another one in its place, told what was wrong:
 *
 *     parent --+-- a   policy, level 2 -> rejected
 *              +-- d1  demo, level 4   -> rejected (tries = 2)
 *              +-- d2  demo, level 8      stays; the branch goes on from here
 *
 * Where no attempt passes, the best one stays (keep = better; of equal ones the last), so a step is
 * never replaced by a worse one; an attempt that the world did not understand loses to any other.
 * The other branches are plain rollouts, and all of them are one group for the baseline.
 *
 * The attempts at a turn are siblings in the tree, so everything decided here is read off it. */
#include "host/strategy/proceed.h"

#include <math.h>

#include "host/advantage/advantage.h"

enum { KEEP_BETTER, KEEP_LAST };
enum { NOISE_FRESH, NOISE_SAME };

#define S gr_proceed_settings
static const gr_setting table[] = {
    GR_SET_INT(S, threshold, -1, 10, 4, "a step of at most this level is taken back; -1: none"),
    GR_SET_INT(S, tries, 1, 16, 1, "times a step is made again"),
    GR_SET_INT(S, max_refined, 0, 1e6, 0, "turns of a branch that may be made again; 0: any"),
    GR_SET_REAL(S, share, 0, 1, 0.5, "of a group's branches whose steps the critic judges"),
    GR_SET_REAL(S, final_share, -1, 1, -1,
                "the same at the end of the run, linear in between; -1: as share"),
    GR_SET_CHOICE(S, refiner, "policy|expert", GR_REFINER_POLICY,
                  "who makes a step again: the policy itself, or the world's demonstrator"),
    GR_SET_CHOICE(S, told, "critique|undone|nothing", GR_TOLD_CRITIQUE,
                  "what the policy reads when it makes a step again: attempt and critique, the "
                  "attempt and that nothing came of it, or what it read before"),
    GR_SET_CHOICE(S, noise, "fresh|same", NOISE_FRESH,
                  "a step that is made again meets chances of its own, or those of the first"),
    GR_SET_CHOICE(S, keep, "better|last", KEEP_BETTER,
                  "where no attempt passes: the best one stays, or the last"),
    GR_SET_CHOICE(S, loss, "surrogate|sft", GR_DEMO_SURROGATE,
                  "demonstrations are trained by their advantage, or where they succeed by maximum "
                  "likelihood, mu of it beside 1 - mu of the policy's loss"),
    GR_SET_CHOICE(S, ratio, "clean|one", GR_RATIO_CLEAN,
                  "ratio of a demonstration's tokens: to the step's first policy in their clean "
                  "context, or always 1"),
    GR_SET_CHOICE(S, weight, "one|phi", GR_PHI,
                  "of a demonstration's token of probability p: 1, or phi_scale p (1 - p)"),
    GR_SET_CHOICE(S, mask, "none|failed|negative", GR_DEMO_IF_SUCCESS,
                  "demonstrations that are not trained: of paths without success, or of paths "
                  "without positive advantage"),
    GR_SET_REAL(S, phi_scale, 0, 1e6, 1, "4 gives phi the most 1"),
    GR_SET_REAL(S, mu, 0, 1, 0.1, "weight of the likelihood with loss = sft"),
};
#undef S
const gr_block gr_proceed_block =
    GR_BLOCK(gr_proceed_settings, "proceed", "rollout.strategy=proceed", table);

int gr_proceed_demos(const gr_proceed_settings* s, int group, double progress)
{
    double end = s->final_share < 0 ? s->share : s->final_share;
    return (int)lround(group * (s->share + (end - s->share) * progress));
}

/* ---- reading attempts off the tree ----------------------------------------------------------- */

static bool is_watched(const gr_proceed_settings* s, const gr_tree* t, const gr_round* r, int node)
{
    return t->branch[node] % r->group < gr_proceed_demos(s, r->group, r->progress);
}

/* The end of a branch in whose turn something may still change. */
static bool is_tip(const gr_tree* t, int node)
{
    bool acts = t->kind[node] == GR_POLICY || t->kind[node] == GR_DEMO;
    return acts && t->status[node] != GR_INNER && t->status[node] != GR_ACTING;
}

/* A refined step that came to nothing: cut off, refused by the world, or not understood. */
static bool is_broken(const gr_tree* t, int node)
{
    return t->kind[node] == GR_DEMO && (!t->stepped[node] || !t->valid[node]);
}

static bool can_be_judged(const gr_tree* t, int node)
{
    gr_node_status s = t->status[node];
    bool ended = s == GR_TERMINAL || s == GR_TIME_LIMIT;
    return isnan(t->score[node]) && t->stepped[node] &&
           (s == GR_OPEN || (ended && !t->success[node]));
}

/* Turns of the node's branch that have been made again. */
static int n_refined(const gr_tree* t, int node)
{
    int n = 0;
    for (int i = 1; i < t->n_nodes; i++) {
        if (t->branch[i] == t->branch[node] && t->about[i] >= 0) n += gr_tree_attempt(t, i) == 1;
    }
    return n;
}

/* May the turn of `node` be made once more? Its branch must be paid for up to the horizon. */
static bool may_refine(const gr_proceed_settings* s, const gr_tree* t, const gr_round* r, int node,
                       int64_t turns)
{
    int attempt = gr_tree_attempt(t, node), parent = t->parent[node];
    if (s->threshold < 0 || attempt >= s->tries || t->env[parent] < 0) return false;
    if (attempt == 0 && s->max_refined > 0 && n_refined(t, node) >= s->max_refined) return false;
    return t->turn_cap == 0 || turns + t->turns_left[node] >= r->horizon - t->turn[parent];
}

static int first_attempt(const gr_tree* t, int node)
{
    int i = t->parent[node] + 1;
    while (t->parent[i] != t->parent[node] || t->branch[i] != t->branch[node]) i++;
    return i;
}

static int worth(const gr_tree* t, int node)
{
    return is_broken(t, node) || isnan(t->score[node]) ? -1 : gr_level(t->score[node]);
}

/* The best of all attempts at the turn of `node`, which is the last; of equal ones the last. */
static int best_attempt(const gr_tree* t, int node)
{
    int best = node;
    for (int i = node - 1; i > t->parent[node]; i--) {
        if (t->parent[i] != t->parent[node] || t->branch[i] != t->branch[node]) continue;
        if (worth(t, i) > worth(t, best)) best = i;
    }
    return best;
}

/* ---- the strategy ---------------------------------------------------------------------------- */

static gr_verdict verdict(const void* settings, const gr_tree* t, int node)
{
    const gr_proceed_settings* s = settings;
    (void)t;
    (void)node;
    return s->threshold < 0 ? GR_GO_ON : GR_WAIT;
}

/* A first attempt is judged if it could be made again, a later one in any case. */
static int wants(const void* settings, const gr_tree* t, const gr_round* r, int32_t* node, int cap)
{
    const gr_proceed_settings* s = settings;
    int64_t turns = gr_tree_turns_free(t);
    int n = 0;
    for (int i = 1; i < t->n_nodes && n < cap; i++) {
        if (!is_tip(t, i) || !is_watched(s, t, r, i) || is_broken(t, i)) continue;
        bool demo = t->kind[i] == GR_DEMO;
        if (can_be_judged(t, i) && (demo || may_refine(s, t, r, i, turns))) node[n++] = i;
    }
    return n;
}

/* What becomes of a step that did not pass. */
static gr_decision decide(const gr_proceed_settings* s, const gr_tree* t, const gr_round* r,
                          int node, int64_t* turns)
{
    if (may_refine(s, t, r, node, *turns)) {
        int64_t need = r->horizon - t->turn[t->parent[node]] - t->turns_left[node];
        if (t->turn_cap > 0) *turns -= need;
        return (gr_decision){.what = GR_REFINE, .node = node, .about = first_attempt(t, node)};
    }
    int best = s->keep == KEEP_LAST && !is_broken(t, node) ? node : best_attempt(t, node);
    if (best == node) return (gr_decision){.node = -1};
    return (gr_decision){.what = GR_RESTORE, .node = best, .about = node};
}

static int round_of(const void* settings, const gr_tree* t, const gr_round* r, gr_decision* out,
                    int cap)
{
    const gr_proceed_settings* s = settings;
    int64_t turns = gr_tree_turns_free(t);
    int n = 0;
    if (r->number == 0) return gr_open_group(r, out, cap);
    for (int i = 1; i < t->n_nodes && n < cap; i++) {
        if (!is_tip(t, i) || !is_watched(s, t, r, i)) continue;
        bool judged = !isnan(r->score[i]);
        bool fails = is_broken(t, i) || (judged && gr_level(r->score[i]) <= s->threshold);
        if (!fails) continue;
        gr_decision d = decide(s, t, r, i, &turns);
        if (d.node >= 0) out[n++] = d;
    }
    return n;
}

static gr_refiner refiner(const void* settings)
{
    const gr_proceed_settings* s = settings;
    return (gr_refiner){.who = s->refiner, .told = s->told, .same_noise = s->noise == NOISE_SAME};
}

const gr_strategy gr_strategy_proceed = {
    .name = "proceed",
    .block = &gr_proceed_block,
    .keeps_states = true,
    .refiner = refiner,
    .verdict = verdict,
    .wants = wants,
    .round = round_of,
};
