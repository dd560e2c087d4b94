/* tree.c - the rollout tree as arrays of nodes.
 *
 * Life of a node. A child is born acting; its action and then the world's answer are appended; it
 * stays open as the live end of its branch, becomes inner when it gets a child, or is closed for
 * good:
 *
 *     add_child          set_action, set_result, set_obs            add_child
 *        └──> ACTING ───────────────┬───────────────> OPEN ──────────────────> INNER
 *                └── close: error,  └─> TERMINAL,      └── close: LOOP, PRUNED,
 *                    truncated          TIME_LIMIT         TRUNCATED, TIME_LIMIT
 *
 * Tokens. A node's tokens are contiguous, but the branches of a tree finish their turns in any
 * order, so an action may no longer be last when its observation arrives. It then moves behind the
 * others and leaves a hole, which gr_tree_order closes:
 *
 *     token: ..[A's action][B's action]           A's observation arrives
 *            ..[   hole   ][B's action][A's action|A's observation]
 *
 * Turns. Every live branch holds a grant of turns that it may still take (turns_left); the grants
 * add up to turns_reserved, and with a cap nothing is granted that the cap does not hold:
 *
 *     |== env_turns ==|-- grant of branch 0 --|-- grant of branch 1 --|.. free ..| turn_cap
 *
 * A turn moves one unit from a grant to env_turns; closing frees what is left. The first child of a
 * leaf takes over the leaf's grant; every other child needs a new one. New grants are made in
 * rounds only, when no branch runs, so they do not depend on which branch was faster.
 *
 * Rewinds. A leaf whose turn is taken back becomes rejected and gives its grant up; if it was live
 * its status says pruned. A restore is the same the other way round:
 *
 *     parent ──┬── a  rejected                    parent ──┬── a  policy, live again
 *              └── d  demo, about a    restore(a, d)       └── d  rejected */
#include "host/tree.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char* const gr_node_kind_name[] = {"policy", "demo", "rejected", "judge", "context"};
const char* const gr_node_status_name[] = {"open",   "acting",    "inner",      "terminal", "loop",
                                           "pruned", "truncated", "time_limit", "error"};

/* Every array with an element per node, and how many numbers the element has. */
/* clang-format off */
#define NODE_ARRAYS(X) \
    X(parent, 1) X(context, 1) X(branch, 1) X(ordinal, 1) X(turn, 1) \
    X(token_begin, 1) X(n_action, 1) X(n_obs, 1) \
    X(kind, 1) X(status, 1) X(logp_from, 1) X(stepped, 1) X(train, 1) X(valid, 1) X(success, 1) \
    X(reward, 1) X(score, 1) X(signal, GR_SIGNALS) X(uid, 1) X(version, 1) X(state_hash, 1) \
    X(turns_left, 1) X(env, 1) X(seq, 1) X(about, 1) X(told_begin, 1) X(n_told, 1) \
    X(said_begin, 1) X(n_said, 1) X(note_begin, 1) X(n_note, 1)
/* clang-format on */

static void* take(size_t n, size_t elem_size)
{
    void* p = calloc(n + 1, elem_size);
    GR_ASSERT(p != NULL, "out of memory: %zu elements of %zu bytes", n, elem_size);
    return p;
}

/* ---- growing --------------------------------------------------------------------------------- */

void gr_tree_reset(gr_tree* t, int64_t step, int slot, int attempt, int64_t task, uint64_t key,
                   int64_t turn_cap)
{
    t->step = step;
    t->slot = slot;
    t->attempt = attempt;
    t->task = task;
    t->key = key;
    t->turn_cap = turn_cap;
    t->n_nodes = 0;
    t->n_tokens = t->n_told_tokens = t->n_text = 0;
    t->env_turns = t->gen_tokens = t->refiner_tokens = t->critic_tokens = 0;
    t->scorer_calls = t->unanswered = t->turns_reserved = 0;
    memset(t->env_errors, 0, sizeof t->env_errors);
}

void gr_tree_free(gr_tree* t)
{
#define FREE(field, width) free(t->field);
    NODE_ARRAYS(FREE)
#undef FREE
    free(t->token);
    free(t->logp);
    free(t->told);
    free(t->text);
    memset(t, 0, sizeof *t);
}

static void reserve_nodes(gr_tree* t, int64_t n)
{
    int64_t cap = t->node_cap;
#define RESERVE(field, width) \
    cap = t->node_cap;        \
    t->field = gr_array_reserve(t->field, &cap, n, (width) * sizeof *t->field);
    NODE_ARRAYS(RESERVE)
#undef RESERVE
    t->node_cap = cap;
}

static void reserve_tokens(gr_tree* t, int64_t n)
{
    int64_t cap = t->token_cap;
    t->token = gr_array_reserve(t->token, &cap, n, sizeof *t->token);
    cap = t->token_cap;
    t->logp = gr_array_reserve(t->logp, &cap, n, sizeof *t->logp);
    t->token_cap = cap;
}

static int new_node(gr_tree* t, int parent)
{
    int node = t->n_nodes++;
    reserve_nodes(t, t->n_nodes);
#define CLEAR(field, width) \
    memset(t->field + (int64_t)node * (width), 0, (width) * sizeof *t->field);
    NODE_ARRAYS(CLEAR)
#undef CLEAR
    t->parent[node] = t->context[node] = parent;
    t->kind[node] = GR_POLICY;
    t->score[node] = (double)NAN;
    t->token_begin[node] = t->n_tokens;
    t->env[node] = t->seq[node] = t->about[node] = -1;
    return node;
}

int gr_tree_add_root(gr_tree* t, const int32_t* token, int n, int horizon)
{
    GR_ASSERT(t->n_nodes == 0);
    int root = new_node(t, -1);
    t->branch[root] = -1;
    t->uid[root] = t->key;
    t->status[root] = GR_OPEN;
    t->turns_left[root] = horizon; /* of every path; not a grant */
    gr_tree_set_obs(t, root, token, n);
    return root;
}

int64_t gr_tree_turns_free(const gr_tree* t)
{
    return t->turn_cap > 0 ? t->turn_cap - t->env_turns - t->turns_reserved : INT64_MAX;
}

/* Turns for a new child of `parent`: the grant that an open leaf passes on, else a new one. */
static int grant(gr_tree* t, int parent)
{
    int turns = t->turns_left[0] - t->turn[parent];
    if (parent > 0 && t->status[parent] == GR_OPEN) {
        turns = t->turns_left[parent];
        t->turns_left[parent] = 0;
        return turns;
    }
    turns = (int)GR_MIN(turns, gr_tree_turns_free(t));
    t->turns_reserved += GR_MAX(turns, 0);
    return turns;
}

static int next_ordinal(const gr_tree* t, int parent)
{
    int n = 0;
    for (int i = parent + 1; i < t->n_nodes; i++) n += t->parent[i] == parent;
    return n;
}

static int n_branches(const gr_tree* t)
{
    int n = 0;
    for (int i = 1; i < t->n_nodes; i++) n = GR_MAX(n, t->branch[i] + 1);
    return n;
}

int gr_tree_add_child(gr_tree* t, int parent, int branch)
{
    GR_ASSERT(t->status[parent] == GR_OPEN || t->status[parent] == GR_INNER, "node %d is %s",
              parent, gr_node_status_name[t->status[parent]]);
    int turns = grant(t, parent);
    if (turns <= 0) return -1;
    int ordinal = next_ordinal(t, parent), branches = parent == 0 ? n_branches(t) : 0;
    int node = new_node(t, parent);
    GR_ASSERT(parent > 0 || branch < branches, "root has no branch %d", branch);
    if (parent > 0) branch = t->branch[parent];
    t->branch[node] = branch < 0 ? branches : branch;
    t->ordinal[node] = ordinal;
    t->turn[node] = t->turn[parent] + 1;
    t->uid[node] = gr_key_join(t->uid[parent], (uint64_t)ordinal);
    t->status[node] = GR_ACTING;
    t->turns_left[node] = turns;
    t->status[parent] = GR_INNER;
    return node;
}

void gr_tree_set_action(gr_tree* t, int node, const int32_t* token, const double* logp, int n,
                        uint64_t version)
{
    GR_ASSERT(t->status[node] == GR_ACTING && gr_node_tokens(t, node) == 0);
    reserve_tokens(t, t->n_tokens + n);
    t->token_begin[node] = t->n_tokens;
    t->n_action[node] = n;
    for (int i = 0; i < n; i++) {
        t->token[t->n_tokens + i] = token[i];
        t->logp[t->n_tokens + i] = logp[i];
    }
    t->n_tokens += n;
    t->version[node] = version;
    t->logp_from[node] = GR_LOGP_SAMPLER;
    t->train[node] = true;
}

void gr_tree_set_obs(gr_tree* t, int node, const int32_t* token, int n)
{
    GR_ASSERT(t->n_obs[node] == 0);
    int64_t begin = t->token_begin[node], n_action = t->n_action[node];
    reserve_tokens(t, t->n_tokens + n_action + n);
    if (begin + n_action != t->n_tokens) { /* other branches wrote behind the action: move it */
        memcpy(t->token + t->n_tokens, t->token + begin, (size_t)n_action * sizeof *t->token);
        memcpy(t->logp + t->n_tokens, t->logp + begin, (size_t)n_action * sizeof *t->logp);
        t->token_begin[node] = t->n_tokens;
        t->n_tokens += n_action;
    }
    for (int i = 0; i < n; i++) {
        t->token[t->n_tokens + i] = token[i];
        t->logp[t->n_tokens + i] = 0;
    }
    t->n_tokens += n;
    t->n_obs[node] = n;
}

void gr_tree_set_result(gr_tree* t, int node, const gr_obs* obs)
{
    static const uint8_t status_of[] = {[GR_RUNNING] = GR_OPEN,
                                        [GR_END_TERMINAL] = GR_TERMINAL,
                                        [GR_END_TIME_LIMIT] = GR_TIME_LIMIT};
    memcpy(t->signal + (int64_t)node * GR_SIGNALS, obs->signal, sizeof obs->signal);
    t->state_hash[node] = obs->hash;
    if (node == 0) return; /* the answer to a reset */
    GR_ASSERT(t->status[node] == GR_ACTING && t->turns_left[node] > 0);
    t->reward[node] = obs->reward;
    t->success[node] = obs->success;
    t->valid[node] = obs->valid;
    t->stepped[node] = true;
    t->status[node] = GR_OPEN;
    t->env_turns++;
    t->turns_reserved--;
    t->turns_left[node]--;
    if (obs->end != GR_RUNNING) gr_tree_close(t, node, status_of[obs->end]);
}

void gr_tree_close(gr_tree* t, int node, gr_node_status status)
{
    GR_ASSERT(t->status[node] == GR_OPEN || t->status[node] == GR_ACTING, "node %d is %s", node,
              gr_node_status_name[t->status[node]]);
    GR_ASSERT(status >= GR_TERMINAL && status < GR_N_STATUSES);
    t->status[node] = (uint8_t)status;
    if (node == 0) return;
    t->turns_reserved -= t->turns_left[node];
    t->turns_left[node] = 0;
}

/* ---- taking turns back ----------------------------------------------------------------------- */

static bool acts(const gr_tree* t, int node)
{
    return t->kind[node] == GR_POLICY || t->kind[node] == GR_DEMO;
}

static void reject(gr_tree* t, int node)
{
    GR_ASSERT(node > 0 && acts(t, node) && t->status[node] != GR_INNER, "node %d is %s", node,
              gr_node_status_name[t->status[node]]);
    GR_ASSERT(t->status[node] != GR_ACTING, "node %d is running", node);
    if (t->status[node] == GR_OPEN) gr_tree_close(t, node, GR_PRUNED);
    t->kind[node] = GR_REJECTED;
    t->train[node] = false;
}

int gr_tree_rewind(gr_tree* t, int node, int about)
{
    int parent = t->parent[node];
    if (t->turn_cap > 0 && gr_tree_turns_free(t) + t->turns_left[node] < 1) return -1;
    reject(t, node);
    GR_ASSERT(t->kind[about] == GR_REJECTED && t->parent[about] == parent, "node %d", about);
    int child = gr_tree_add_child(t, parent, t->branch[node]);
    GR_ASSERT(child > 0);
    t->kind[child] = GR_DEMO;
    t->about[child] = about;
    return child;
}

void gr_tree_restore(gr_tree* t, int node, int other)
{
    GR_ASSERT(t->kind[node] == GR_REJECTED && t->parent[node] == t->parent[other], "node %d", node);
    reject(t, other);
    t->kind[node] = t->about[node] >= 0 ? GR_DEMO : GR_POLICY;
    t->train[node] = true;
    if (t->status[node] != GR_PRUNED) return; /* it had ended before it was rejected */
    int turns = (int)GR_MIN(t->turns_left[0] - t->turn[node], gr_tree_turns_free(t));
    t->status[node] = turns > 0 ? GR_OPEN : GR_TRUNCATED;
    t->turns_left[node] = GR_MAX(turns, 0);
    t->turns_reserved += t->turns_left[node];
}

void gr_tree_set_told(gr_tree* t, int node, const int32_t* token, int n)
{
    GR_RESERVE(t->told, t->told_cap, t->n_told_tokens + n + 1);
    memcpy(t->told + t->n_told_tokens, token, (size_t)n * sizeof *token);
    t->told_begin[node] = t->n_told_tokens;
    t->n_told[node] = n;
    t->n_told_tokens += n;
}

/* Returns where the text begins. */
static int64_t add_text(gr_tree* t, const char* text, int n)
{
    int64_t begin = t->n_text;
    GR_RESERVE(t->text, t->text_cap, begin + n + 1);
    memcpy(t->text + begin, text, (size_t)n);
    t->n_text += n;
    return begin;
}

void gr_tree_set_said(gr_tree* t, int node, const char* text, int n)
{
    t->said_begin[node] = add_text(t, text, n);
    t->n_said[node] = n;
}

void gr_tree_set_note(gr_tree* t, int node, const char* text, int n)
{
    t->note_begin[node] = add_text(t, text, n);
    t->n_note[node] = n;
}

/* ---- canonical order ------------------------------------------------------------------------- */

/* Breadth-first order. Siblings are numbered in the order of their ordinals, because that is the
 * order in which they were made; so pushing each node's children in turn gives turn, parent,
 * ordinal. */
static void breadth_first(const gr_tree* t, int32_t* order, int32_t* first, int32_t* next)
{
    int n = 1;
    for (int i = 0; i < t->n_nodes; i++) first[i] = next[i] = -1;
    for (int i = t->n_nodes - 1; i > 0; i--) {
        next[i] = first[t->parent[i]];
        first[t->parent[i]] = i;
    }
    order[0] = 0;
    for (int at = 0; at < n; at++) {
        for (int c = first[order[at]]; c >= 0; c = next[c]) order[n++] = c;
    }
    GR_ASSERT(n == t->n_nodes);
}

static bool in_order(const gr_tree* t, const int32_t* order)
{
    int64_t at = 0;
    for (int i = 0; i < t->n_nodes; i++) {
        if (order[i] != i || t->token_begin[i] != at) return false;
        at += gr_node_tokens(t, i);
    }
    return at == t->n_tokens;
}

/* element i becomes what element order[i] was */
static void permute(void* data, size_t elem_size, const int32_t* order, int n, char* scratch)
{
    char* x = data;
    for (int i = 0; i < n; i++) {
        memcpy(scratch + (size_t)i * elem_size, x + (size_t)order[i] * elem_size, elem_size);
    }
    memcpy(data, scratch, (size_t)n * elem_size);
}

/* Lays the nodes' tokens end to end, in node order. */
static void close_holes(gr_tree* t)
{
    size_t n = (size_t)t->n_tokens;
    int32_t* token = take(n, sizeof *token);
    double* logp = take(n, sizeof *logp);
    int64_t at = 0;
    for (int i = 0; i < t->n_nodes; i++) {
        int64_t from = t->token_begin[i], len = gr_node_tokens(t, i);
        memcpy(token + at, t->token + from, (size_t)len * sizeof *token);
        memcpy(logp + at, t->logp + from, (size_t)len * sizeof *logp);
        t->token_begin[i] = at;
        at += len;
    }
    t->n_tokens = at;
    memcpy(t->token, token, (size_t)at * sizeof *token);
    memcpy(t->logp, logp, (size_t)at * sizeof *logp);
    free(token);
    free(logp);
}

void gr_tree_order(gr_tree* t)
{
    size_t n = (size_t)t->n_nodes;
    if (n == 0) return;
    int32_t* order = take(3 * n, sizeof *order);
    int32_t *rank = order + n, *next = order + 2 * n;
    breadth_first(t, order, rank, next);
    if (!in_order(t, order)) {
        char* scratch = take(n, GR_SIGNALS * sizeof(double));
        for (int i = 0; i < t->n_nodes; i++) {
            GR_ASSERT(t->status[i] != GR_ACTING, "node %d is running", i);
            rank[order[i]] = i;
        }
#define PERMUTE(field, width) \
    permute(t->field, (width) * sizeof *t->field, order, t->n_nodes, scratch);
        NODE_ARRAYS(PERMUTE)
#undef PERMUTE
        for (int i = 0; i < t->n_nodes; i++) {
            if (t->parent[i] >= 0) t->parent[i] = rank[t->parent[i]];
            if (t->context[i] >= 0) t->context[i] = rank[t->context[i]];
            if (t->about[i] >= 0) t->about[i] = rank[t->about[i]];
        }
        close_holes(t);
        free(scratch);
    }
    free(order);
}

/* ---- reading --------------------------------------------------------------------------------- */

int gr_tree_path_length(const gr_tree* t, int node)
{
    int n = 0;
    for (; node >= 0; node = t->context[node]) n += gr_node_tokens(t, node);
    return n;
}

int gr_tree_path_tokens(const gr_tree* t, int node, int32_t* out, int cap)
{
    int n = gr_tree_path_length(t, node);
    GR_ASSERT(n <= cap, "%d tokens, room for %d", n, cap);
    for (int end = n; node >= 0; node = t->context[node]) {
        int len = gr_node_tokens(t, node);
        end -= len;
        memcpy(out + end, t->token + t->token_begin[node], (size_t)len * sizeof *out);
    }
    return n;
}

int gr_tree_path_nodes(const gr_tree* t, int node, int32_t* out, int cap)
{
    int n = 0;
    for (int i = node; i >= 0; i = t->parent[i]) n++;
    GR_ASSERT(n <= cap, "%d nodes, room for %d", n, cap);
    for (int at = n; node >= 0; node = t->parent[node]) out[--at] = node;
    return n;
}

int gr_tree_action_text(const gr_tree* t, int node, char* text, int cap)
{
    return gr_decode(t->tokenizer, GR_MARKUP, t->token + t->token_begin[node], t->n_action[node],
                     text, cap);
}

int gr_tree_obs_text(const gr_tree* t, int node, char* text, int cap)
{
    const int32_t* token = t->token + t->token_begin[node] + t->n_action[node];
    return gr_decode(t->tokenizer, GR_MARKUP, token, t->n_obs[node], text, cap);
}

double gr_tree_return(const gr_tree* t, int node)
{
    double sum = 0;
    for (; node >= 0; node = t->parent[node]) sum += t->reward[node];
    return sum;
}

bool gr_tree_same_action(const gr_tree* t, int a, int b)
{
    size_t bytes = (size_t)t->n_action[a] * sizeof *t->token;
    return t->n_action[a] == t->n_action[b] &&
           memcmp(t->token + t->token_begin[a], t->token + t->token_begin[b], bytes) == 0;
}

int gr_tree_n_children(const gr_tree* t, int node)
{
    int n = 0;
    for (int i = node + 1; i < t->n_nodes; i++) n += t->parent[i] == node && acts(t, i);
    return n;
}

int gr_tree_attempt(const gr_tree* t, int node)
{
    int n = 0;
    for (int i = t->parent[node] + 1; i < node; i++) {
        n += t->parent[i] == t->parent[node] && t->branch[i] == t->branch[node];
    }
    return n;
}

/* ---- counted leaves -------------------------------------------------------------------------- */

/* A node with children is inner, whatever became of them: where every child failed with an error,
 * the path up to there has no outcome of its own, so the node is no leaf and nothing of it is
 * credited. "Counted children" are those with a counted leaf at or below them. */
static bool counted(const gr_tree* t, int node)
{
    gr_node_status s = t->status[node];
    return node > 0 && acts(t, node) && s >= GR_TERMINAL && s <= GR_TIME_LIMIT;
}

int gr_tree_leaves(const gr_tree* t, int32_t* leaf, int cap)
{
    int n = 0;
    for (int i = 1; i < t->n_nodes; i++) {
        if (!counted(t, i)) continue;
        if (n < cap) leaf[n] = i;
        n++;
    }
    return n;
}

bool gr_tree_is_fork(const gr_tree* t, int node)
{
    int seen = -1;
    if (node == 0) return false;
    for (int i = node + 1; i < t->n_nodes; i++) {
        if (!counted(t, i)) continue;
        int child = i; /* the child of `node` above leaf i, if there is one */
        while (child > node && t->parent[child] != node) child = t->parent[child];
        if (child <= node) continue;
        if (seen >= 0 && child != seen) return true;
        seen = child;
    }
    return false;
}

/* Nodes whose siblings share a weight: the children of a fork, and those children of the root that
 * belong to one branch (expansions at the root join one), so that a branch's leaves weigh 1
 * together. */
static int family(const gr_tree* t, int node)
{
    return t->parent[node] > 0 ? t->parent[node] : t->n_nodes + t->branch[node];
}

void gr_tree_split(const gr_tree* t, const int32_t* leaf, int n_leaves, double* s)
{
    size_t n = (size_t)t->n_nodes;
    bool* seen = take(n, sizeof *seen);
    int32_t* members = take(2 * n, sizeof *members); /* counted ones of each family */
    for (int l = 0; l < n_leaves; l++) {
        for (int i = leaf[l]; i > 0 && !seen[i]; i = t->parent[i]) {
            seen[i] = true;
            members[family(t, i)]++;
        }
    }
    for (int l = 0; l < n_leaves; l++) {
        s[l] = 1;
        for (int i = leaf[l]; i > 0; i = t->parent[i]) s[l] /= members[family(t, i)];
    }
    free(seen);
    free(members);
}

/* ---- self-check ------------------------------------------------------------------------------ */

static void check_links(const gr_tree* t, int i, int32_t* n_children, int* branches)
{
    int p = t->parent[i];
    GR_ASSERT(p >= 0 && p < i && t->context[i] < i, "node %d: parent %d", i, p);
    GR_ASSERT(t->ordinal[i] == n_children[p]++, "node %d: ordinal %d", i, t->ordinal[i]);
    GR_ASSERT(t->uid[i] == gr_key_join(t->uid[p], (uint64_t)t->ordinal[i]), "node %d", i);
    GR_ASSERT(t->turn[i] == t->turn[p] + 1 && t->turn[i] <= t->turns_left[0], "node %d", i);
    GR_ASSERT(t->about[i] < 0 || (t->about[i] < i && t->parent[t->about[i]] == p), "node %d", i);
    GR_ASSERT(t->kind[i] != GR_REJECTED || t->status[i] >= GR_TERMINAL, "node %d", i);
    GR_ASSERT(t->status[p] == GR_INNER, "node %d has a child and is %s", p,
              gr_node_status_name[t->status[p]]);
    if (p > 0) {
        GR_ASSERT(t->branch[i] == t->branch[p], "node %d: branch %d", i, t->branch[i]);
    } else {
        GR_ASSERT(t->branch[i] >= 0 && t->branch[i] <= *branches, "node %d: branch %d", i,
                  t->branch[i]);
        *branches = GR_MAX(*branches, t->branch[i] + 1);
    }
}

void gr_tree_check(const gr_tree* t)
{
    int64_t turns = 0, granted = 0, tokens = 0;
    int branches = 0;
    if (t->n_nodes == 0) return;
    int32_t* n_children = take((size_t)t->n_nodes, sizeof *n_children);
    GR_ASSERT(t->parent[0] < 0 && t->context[0] < 0 && t->branch[0] < 0 && t->turn[0] == 0);
    GR_ASSERT(t->uid[0] == t->key && !t->stepped[0] && t->n_action[0] == 0);
    for (int i = 0; i < t->n_nodes; i++) {
        if (i > 0) check_links(t, i, n_children, &branches);
        GR_ASSERT(t->n_action[i] >= 0 && t->n_obs[i] >= 0 && t->token_begin[i] >= 0);
        GR_ASSERT(t->token_begin[i] + gr_node_tokens(t, i) <= t->n_tokens, "node %d", i);
        bool live = t->status[i] == GR_OPEN || t->status[i] == GR_ACTING;
        GR_ASSERT(live || i == 0 || t->turns_left[i] == 0, "node %d ended with turns", i);
        tokens += gr_node_tokens(t, i);
        turns += t->stepped[i];
        granted += i > 0 ? t->turns_left[i] : 0;
    }
    for (int i = 0; i < t->n_nodes; i++) {
        GR_ASSERT((t->status[i] == GR_INNER) == (n_children[i] > 0), "node %d is %s", i,
                  gr_node_status_name[t->status[i]]);
    }
    GR_ASSERT(tokens <= t->n_tokens && t->n_tokens <= t->token_cap);
    GR_ASSERT(turns == t->env_turns, "%lld turns ran, ledger says %lld", (long long)turns,
              (long long)t->env_turns);
    GR_ASSERT(granted == t->turns_reserved, "%lld turns granted, ledger says %lld",
              (long long)granted, (long long)t->turns_reserved);
    GR_ASSERT(t->turn_cap == 0 || turns + granted <= t->turn_cap, "turn cap exceeded");
    free(n_children);
}
