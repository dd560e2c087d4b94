/* advantage.h - what credit a leaf gets. Level 5.
 *
 * Estimators are pure functions of a finished tree and, where they ask for them, of values read on
 * it. They write, for each counted leaf, one advantage, or one per node, per turn of its path, per
 * kind of token of a turn, or per token. Errored members are outside baseline and loss. Those that
 * compare a group give exactly 0 (by comparison) for equal rewards, and for a singleton.
 *
 * With a value model credit takes two passes: gr_credit_begin lists what is to be read, the caller
 * fills in the answers (host/critic.h), gr_credit_finish makes advantages and targets of them. */
#pragma once
#include "host/tree.h"

#define GR_HEADS_MAX 3 /* scalar heads of a value model */

/* Paths whose demonstrated steps are trained: all, those with success, those whose leaf has a
 * positive advantage. A step that is left out of a path still counts as a part of its length. */
enum { GR_DEMO_ALWAYS, GR_DEMO_IF_SUCCESS, GR_DEMO_IF_POSITIVE };

/* The value that head `head` gives to the hidden row of token `offset` of a node (its action and
 * observation tokens counted together). */
typedef struct gr_read {
    int32_t node, offset, head;
    double value; /* the answer */
} gr_read;
/* What leaf number `leaf` teaches a read. Leaves that share one keep a target each, so that the
 * squared error, clipped or not, is that of flat rows. */
typedef struct gr_target {
    int32_t read, leaf;
    double ret;
    double weight; /* 1 / (targets of the leaf for this head) */
} gr_target;
/* The policy's log-probability of `token` in the place of action token k. */
typedef struct gr_probe {
    int32_t node, k, token;
    double logp; /* the answer */
} gr_probe;

typedef struct gr_credit {
    const gr_tree* tree;
    int n_leaves;
    int32_t* leaf; /* (n_leaves) counted leaves, node order */
    double* ret;   /* (n_leaves) return */
    double* split; /* (n_leaves) split multiplicity, gr_tree_split */
    double* adv;   /* (n_leaves) advantage of the whole path, unless per_node */
    bool per_node;
    double* node_adv; /* (n_nodes) with per_node: advantage of the node's own tokens */
    bool per_path;
    double* path_adv; /* with per_path: advantage that leaf l gives tokens of kind b in the turn t
                            of its path, at (path_begin[l] + t - 1) n_kinds + b */
    int64_t* path_begin; /* (n_leaves + 1) */
    int n_kinds;         /* 1: all tokens of a turn share its advantage */
    uint8_t* kinds; /* (tokens of the tree) with n_kinds > 1: bit b, the action token is of kind
                            b; one of several kinds gets the sum, one of none is not trained */
    bool per_token;
    double* token_adv; /* with per_token: that of action token k of that turn, at
                          token_at[path_begin[l] + t - 1] + k */
    int64_t* token_at;
    bool normalise; /* advantages want mean 0 and deviation 1 over the step: gr_credit_normalise */
    /* value model; n_heads is 0 without one */
    int n_heads, n_reads, n_probes;
    int64_t n_targets;
    gr_read* read;
    gr_target* target;
    gr_probe* probe;
    int32_t* read_of; /* (tokens of the tree, n_heads): its read, or -1 */
    int64_t leaf_cap, node_cap, path_cap, kinds_cap, token_cap, at_cap;
    int64_t read_cap, target_cap, probe_cap, read_of_cap;
    int demo_mask; /* GR_DEMO_ALWAYS, ...: the caller's, kept from tree to tree */
    bool idle; /* all advantages are exactly 0: the group cannot teach. Never with a value model,
                  which learns from every group */
} gr_credit;

/* The advantage that leaf number l gives action token k of `node`, which lies on its path. */
double gr_credit_token(const gr_credit* c, int l, int node, int k);
/* The same for the node as a whole: the mean over its trained tokens. */
double gr_credit_at(const gr_credit* c, int l, int node);
/* Whether tokens of one node may have different advantages. */
static inline bool gr_credit_by_token(const gr_credit* c)
{
    return c->per_token || (c->per_path && c->n_kinds > 1);
}
/* Whether action token k of the node is trained at all. */
static inline bool gr_credit_trained(const gr_credit* c, int node, int k)
{
    const gr_tree* t = c->tree;
    return t->train[node] && (c->n_kinds == 1 || c->kinds[t->token_begin[node] + k] != 0);
}
int gr_credit_n_trained(const gr_credit* c, int node); /* of its action tokens */
/* Whether leaf number l teaches `node` nothing, as a demonstration that demo_mask leaves out. */
bool gr_credit_masked(const gr_credit* c, int l, int node);

typedef struct gr_estimator {
    const char* name;
    const gr_block* block; /* NULL: no settings */
    /* leaf, ret, split are filled; writes adv, node_adv, path_adv or token_adv, and targets */
    void (*fill)(const void* settings, gr_credit* c, double eps);
    int n_kinds; /* of tokens with advantages of their own; 0: one */
    /* Scalar heads that the value model needs; NULL: no value model. */
    int (*n_heads)(const void* settings);
    void (*ask)(const void* settings, gr_credit* c); /* files reads and probes */
} gr_estimator;

extern const gr_estimator gr_estimator_grpo, gr_estimator_dr_grpo, gr_estimator_rloo,
    gr_estimator_tree_grpo, gr_estimator_sibling, gr_estimator_gigpo, gr_estimator_gae,
    gr_estimator_hae;
extern const gr_estimator* const gr_estimators[]; /* NULL-terminated */
const gr_estimator* gr_estimator_find(const char* name);

/* Leaves, returns, multiplicities and what the estimator asks to be read. `settings` is the filled
 * struct of its block. Buffers grow and are reused. */
void gr_credit_begin(gr_credit* c, const gr_tree* t, const gr_estimator* e, const void* settings);
/* The estimator and idle, once the answers are in. */
void gr_credit_finish(gr_credit* c, const gr_estimator* e, const void* settings, double eps);
/* Both, for estimators that ask nothing. */
void gr_credit_fill(gr_credit* c, const gr_tree* t, const gr_estimator* e, const void* settings,
                    double eps);
/* Advantages of the groups that want it become (A - mean) / (deviation + 1e-8), for each kind over
 * the turns of all leaves that own tokens of it; per token over all trained tokens. */
void gr_credit_normalise(gr_credit* c, int n);
void gr_credit_free(gr_credit* c);

/* For estimators with a value model. The state before action token k of a node (k = n_action: after
 * the action) is the hidden row of the token in front of it: the children of a node share one. */
void gr_credit_ask(gr_credit* c, int node, int k, int head);
void gr_credit_ask_end(gr_credit* c, int node, int head); /* after the node's observation */
void gr_credit_ask_logp(gr_credit* c, int node, int k, int token);
double gr_credit_value(const gr_credit* c, int node, int k, int head); /* of an earlier ask */
double gr_credit_value_end(const gr_credit* c, int node, int head);
void gr_credit_teach(gr_credit* c, int l, int node, int k, int head, double ret);
/* Places for an advantage per token, all 0; sets per_token. */
void gr_credit_per_token(gr_credit* c);

/* (R - mean)/(std + eps) with the unbiased deviation, 0 for singletons and equal rewards; the same
 * without division; R minus the mean of the others. Building blocks of the files here. */
void gr_group_grpo(const double* r, int n, double eps, double* a);
void gr_group_mean(const double* r, int n, double* a);
void gr_group_rloo(const double* r, int n, double* a);
