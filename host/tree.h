/* tree.h - the rollout tree: one object from sampler to gradient. Level 4.
 *
 * A node is one turn: [action tokens | resulting observation tokens]; the root is [prompt | first
 * observation]. Environment state, score, reward and KV pages of a node belong to its end, so the
 * children of a fork share everything up to and including the observation they answer. The initial
 * branches are the root's children; `branch` is the ordinal of a node's initial branch. The root is
 * never a fork: "fork" means a non-root node with two or more counted children.
 *
 *     root [prompt|obs0] --+-- n1 [a|obs] --+-- n4 [a|obs]      branch 0 0   (n1 is a fork)
 *                          |                +-- n5 [a|obs]             0
 *                          +-- n2 [a|obs]                              1
 *                          +-- n3 [a|obs]                              2
 *
 * A step that was taken back stays beside the one made in its place: kind rejected, no leaf, no
 * part of any path that is credited.
 *
 * Structure of arrays, no per-node malloc. Nodes are numbered in order of creation, so a parent
 * comes before its children. Only the functions here change a tree; it is closed before credit is
 * assigned. */
#pragma once
#include "envs/env.h"
#include "host/arena.h"
#include "model/engine.h"

typedef enum gr_node_kind { GR_POLICY, GR_DEMO, GR_REJECTED, GR_JUDGE, GR_CONTEXT } gr_node_kind;
typedef enum gr_node_status {
    GR_OPEN,       /* a leaf that may go on */
    GR_ACTING,     /* its action is being sampled or executed */
    GR_INNER,      /* has children */
    GR_TERMINAL,   /* the world ended the episode */
    GR_LOOP,       /* stopped: repeats itself */
    GR_PRUNED,     /* stopped by its score */
    GR_TRUNCATED,  /* context, token cap or tree budget */
    GR_TIME_LIMIT, /* horizon */
    GR_ERROR,      /* the environment failed: outside baseline and loss */
    GR_N_STATUSES
} gr_node_status;
typedef enum gr_logp_from { GR_LOGP_SAMPLER, GR_LOGP_TRAINER } gr_logp_from;

extern const char* const gr_node_kind_name[];
extern const char* const gr_node_status_name[];

typedef struct gr_tree {
    /* identity */
    int64_t step;
    int slot, attempt; /* group of the step; how often it was resampled */
    int64_t task;
    uint64_t key; /* root uid */
    /* spells its tokens; borrowed; NULL: bytes */
    const gr_tokenizer* tokenizer;
    /* per node, n_nodes */
    int n_nodes;
    int32_t *parent,
        *context; /* -1 at the root; context: the token parent, see design of packing */
    int32_t *branch, *ordinal, *turn; /* root: -1, 0, 0 */
    int64_t* token_begin;             /* into token[]; node's tokens are contiguous */
    int32_t *n_action, *n_obs;
    uint8_t *kind, *status, *logp_from;
    bool *stepped, *train, *valid, *success;
    double* reward; /* of this turn */
    double* score;  /* NaN: not scored */
    double* signal; /* (n_nodes, GR_SIGNALS) */
    uint64_t *uid, *version, *state_hash;
    int32_t* turns_left; /* environment turns the branch may still take; root: the horizon */
    int32_t *env, *seq;  /* handle and KV sequence, -1: none */
    int32_t* about;      /* demo: the rejected attempt whose critique it answers, its sibling;
                            else -1 */
    int64_t *told_begin, *said_begin, *note_begin; /* into told[], text[] */
    int32_t* n_told; /* demo: tokens that stood behind the rejected action when it was sampled */
    int32_t* n_said; /* bytes of the observation as the world said it; kept where models read it */
    int32_t* n_note; /* bytes of what a critic or judge said about the node */
    int64_t node_cap;
    /* per token, n_tokens */
    int32_t* token;
    double* logp; /* sampling log-prob of action tokens; 0 for observations */
    int64_t n_tokens, token_cap;
    /* beside the tokens: never trained, never a context of what is */
    int32_t* told;
    char* text;
    int64_t n_told_tokens, told_cap, n_text, text_cap;
    /* ledger of this tree; gen_tokens are those of all purposes, refiner_tokens and critic_tokens
     * those of them that made steps again and that judged. unanswered: of scorer_calls, questions
     * to a model that brought no level */
    int64_t env_turns, gen_tokens, refiner_tokens, critic_tokens, scorer_calls, unanswered;
    int64_t env_errors[GR_N_ENV_ERRORS];
    int64_t turn_cap;       /* rollout.max_tree_turns; 0: none */
    int64_t turns_reserved; /* granted to live branches and not yet used */
} gr_tree;

void gr_tree_reset(gr_tree* t, int64_t step, int slot, int attempt, int64_t task, uint64_t key,
                   int64_t turn_cap); /* the tokenizer stays */
void gr_tree_free(gr_tree* t);

/* The root with its prompt and first observation. Returns 0. */
int gr_tree_add_root(gr_tree* t, const int32_t* token, int n, int horizon);
/* A child of `parent` that will act: next ordinal, uid derived from the parent's, branch inherited;
 * a child of the root with branch < 0 opens the next branch. Grants it turns within the tree's cap:
 * -1 and no change if not one turn is left. */
int gr_tree_add_child(gr_tree* t, int parent, int branch);
void gr_tree_set_action(gr_tree* t, int node, const int32_t* token, const double* logp, int n,
                        uint64_t version);
void gr_tree_set_obs(gr_tree* t, int node, const int32_t* token, int n);
/* What the world answered; leaves status OPEN or sets TERMINAL / TIME_LIMIT. Counts the turn. On
 * the root: signals and hash of the reset, nothing is counted. */
void gr_tree_set_result(gr_tree* t, int node, const gr_obs* obs);
/* Turns that are neither taken nor granted; INT64_MAX without a cap. */
int64_t gr_tree_turns_free(const gr_tree* t);
/* Ends a live branch; gives its unused turns back. */
void gr_tree_close(gr_tree* t, int node, gr_node_status status);
/* Takes the turn of a leaf back: it stays in the tree as rejected, and a new sibling, a demo that
 * answers the critique of attempt `about`, will act from their parent's end. Returns it; -1 and no
 * change if the tree's cap has no turn for it. Only in rounds, as every new grant. */
int gr_tree_rewind(gr_tree* t, int node, int about);
/* The rejected attempt `node` takes the place of its sibling `other`, an ended leaf or a live one;
 * it is live again if it was, and if the tree's cap has turns. */
void gr_tree_restore(gr_tree* t, int node, int other);
void gr_tree_set_told(gr_tree* t, int node, const int32_t* token, int n);
void gr_tree_set_said(gr_tree* t, int node, const char* text, int n);
void gr_tree_set_note(gr_tree* t, int node, const char* text, int n);

static inline int gr_node_tokens(const gr_tree* t, int node)
{
    return t->n_action[node] + t->n_obs[node];
}
/* Renumbers nodes (and their tokens) into canonical order: by turn, then by the parent's number,
 * then by ordinal. Branches of one tree finish turns in an order that depends on the batch; after
 * this the arrays do not. Only while no branch is running. */
void gr_tree_order(gr_tree* t);

/* Tokens from the root to the end of `node` along context links; returns their number. */
int gr_tree_path_tokens(const gr_tree* t, int node, int32_t* out, int cap);
int gr_tree_path_length(const gr_tree* t, int node);
int gr_tree_path_nodes(const gr_tree* t, int node, int32_t* out, int cap); /* root first */
/* At most cap - 1 bytes and a terminator, special tokens spelled; return the bytes written. */
int gr_tree_action_text(const gr_tree* t, int node, char* text, int cap);
int gr_tree_obs_text(const gr_tree* t, int node, char* text, int cap);
double gr_tree_return(const gr_tree* t, int node);        /* sum of rewards on the path */
bool gr_tree_same_action(const gr_tree* t, int a, int b); /* equal action tokens */
int gr_tree_n_children(const gr_tree* t, int node);       /* policy and demo */
/* Attempts at the same turn of the same branch that were made before `node`. */
int gr_tree_attempt(const gr_tree* t, int node);
bool gr_tree_is_fork(const gr_tree* t, int node);

/* Counted leaf: policy or demo, without policy or demo children, ended, not an error. Fills `leaf`
 * in node order and returns their number. */
int gr_tree_leaves(const gr_tree* t, int32_t* leaf, int cap);
/* Split multiplicity of each leaf: product over the forks on its path of 1/(counted children);
 * children of the root that belong to one branch share its weight, so the sum over a tree is its
 * number of initial branches with counted leaves. A counted child has a counted leaf at or below
 * it. */
void gr_tree_split(const gr_tree* t, const int32_t* leaf, int n_leaves, double* s);

/* Recounts what is stored twice (children, turns, tokens, reservations); panics if wrong. */
void gr_tree_check(const gr_tree* t);
