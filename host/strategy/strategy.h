/* strategy.h - where to branch, where to stop. Level 5.
 *
 * A strategy reads the tree and returns decisions; rollout.c carries them out through tree.h. It is
 * asked at two moments: when one branch has finished a turn (verdict), and when no branch of the
 * tree is running (round). It keeps no state of its own: what it needs is in the tree and in
 * gr_round.number, so a tree can be replayed. */
#pragma once
#include "host/tree.h"

typedef enum gr_verdict {
    GR_GO_ON,    /* next turn at once */
    GR_WAIT,     /* hold until the next round */
    GR_STOP_LOOP /* end the branch, status loop */
} gr_verdict;

typedef enum gr_decide {
    GR_GROW,   /* as n_children, status and branch say */
    GR_REFINE, /* take the node's turn back and make it again, told what is wrong with `about` */
    GR_RESTORE /* the rejected attempt `node` after all, in the place of `about` */
} gr_decide;

typedef struct gr_decision {
    int node;
    int n_children;        /* > 0: go on from the end of this node with so many children; several
                              decisions on one node add up */
    gr_node_status status; /* n_children == 0: close it as LOOP or PRUNED */
    int branch; /* root only: -1 opens a new branch per child, else the branch they join */
    gr_decide what;
    int about; /* GR_REFINE: itself or an earlier attempt at the same turn; GR_RESTORE: a later one */
} gr_decision;

/* Who makes a turn again that was taken back, and what is put behind the rejected action. */
enum { GR_REFINER_POLICY, GR_REFINER_EXPERT };
enum { GR_TOLD_CRITIQUE, GR_TOLD_UNDONE, GR_TOLD_NOTHING };
typedef struct gr_refiner {
    int who;  /* the policy, or the world's demonstrator */
    int told; /* critique and observation, the observation alone, or nothing of the attempt */
    bool same_noise; /* the world's random stream is rewound, too */
} gr_refiner;

typedef struct gr_round {
    int number;      /* rounds this tree has had before: 0 is the first, right after the reset */
    int group;       /* rollout.group */
    int horizon;     /* most turns of a path */
    uint64_t key;    /* for random choices of this tree and round */
    double progress; /* share of the run that is done, in [0, 1] */
    const double* score; /* (n_nodes) of nodes named by `wants`, else NaN */
} gr_round;

typedef struct gr_strategy {
    const char* name;
    const gr_block* block; /* NULL: no settings */
    bool keeps_states;     /* may expand inner nodes: their env states and KV pages are kept */
    /* NULL: it never decides GR_REFINE. */
    gr_refiner (*refiner)(const void* settings);
    /* May be NULL: GR_GO_ON always. `node` is open and has just taken its turn. */
    gr_verdict (*verdict)(const void* settings, const gr_tree* t, int node);
    /* Nodes the next round wants scored; returns their number. May be NULL: none. */
    int (*wants)(const void* settings, const gr_tree* t, const gr_round* r, int32_t* node, int cap);
    /* Decisions; open leaves without one stay as they are for one more turn (children = 1).
     * Returns their number; a tree in which then nothing runs is finished. */
    int (*round)(const void* settings, const gr_tree* t, const gr_round* r, gr_decision* out,
                 int cap);
} gr_strategy;

extern const gr_strategy gr_strategy_flat, gr_strategy_patr, gr_strategy_patr_retro,
    gr_strategy_proceed, gr_strategy_tree_grpo, gr_strategy_tree_random;
extern const gr_strategy* const gr_strategies[]; /* NULL-terminated */
const gr_strategy* gr_strategy_find(const char* name);

/* The first round of every strategy: `group` new branches at the root. Returns 1 decision. */
int gr_open_group(const gr_round* r, gr_decision* out, int cap);

/* Number of equal actions in a row that end at `node`, itself included. With `still`, turns count
 * only while the state hash does not change either. */
int gr_repeats(const gr_tree* t, int node, bool still);
/* The critic's level of a score. */
static inline int gr_level(double score) { return (int)(score * 10 + 0.5); }
/* Orders node[0..n) by descending score[node]; ties at random under `key`. */
void gr_rank(int32_t* node, int n, const double* score, uint64_t key);
