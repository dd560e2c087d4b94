/* pack.c - trees to micro-batches.
 *
 * A tree is walked depth-first over its context links. The walk keeps the path that is open and
 * what of it the current piece holds; tokens are written only when a trained node needs them, its
 * missing ancestors first. So prompts, cut prefixes and branches that teach nothing follow one
 * rule:
 *
 *     path    R ── A1 ── A3              piece 1 is full before A3; piece 2 begins with R and A1,
 *     piece 1 [R][A1 *][A2 *]            written again without rows, and A3 has the rows that were
 *     piece 2 [R][A1][A3 *]              not in piece 1 (* = rows)
 *
 * Leaving a node fixes the subtree_end of its tokens. Credit goes along parent links: every leaf
 * adds its weight and its weighted advantage, by sign, to the nodes of its path, or to single tokens
 * where those differ. A value row stands with the node that holds the token it reads. */
#include "host/pack.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What the leaves below a node add up to; all of its action tokens share it. */
typedef struct sums {
    double a_pos, a_neg, w;
    int32_t n_leaves;
} sums;

typedef struct open_node {
    int32_t node;
    int32_t begin; /* first token in the current piece; -1: not written in it */
    int32_t end;   /* tokens of the path up to the node's end */
    int32_t last;  /* index in the piece of the last token of that path; -1: none */
} open_node;

struct gr_pack_scratch {
    /* arrays of all pieces, end to end */
    int32_t *token, *position, *subtree_end;
    int64_t n_tokens, token_cap;
    int32_t *src, *target;
    double *old_logp, *ref_logp, *a_pos, *a_neg, *w;
    bool* demo;
    int64_t n_rows, row_cap;
    int32_t *value_src, *value_head;
    double *value_target, *value_weight, *value_old;
    int64_t n_values, value_cap;
    int64_t read_cap, probe_cap;
    int64_t piece_begin; /* first token of the current piece */
    /* of the tree in hand, per node */
    sums* sum;
    int64_t sum_cap;
    sums* token_sum; /* per token, where those of a node differ */
    int64_t token_sum_cap;
    /* targets, or reads and probes, by node: item i of a node is followed by next_item[i] */
    int32_t *first_value, *next_value, *first_probe, *next_probe;
    int64_t first_value_cap, next_value_cap, first_probe_cap, next_probe_cap;
    int32_t *first, *next; /* children by context, in node order; roots hang on first[n_nodes] */
    int64_t first_cap, next_cap;
    open_node* path;
    int64_t path_cap;
    int depth;
};

/* ---- weights of leaves ----------------------------------------------------------------------- */

/* |y|: trained tokens of the full path, shared ones included. */
static int64_t trained_tokens(const gr_credit* c, int leaf)
{
    int64_t n = 0;
    for (int i = leaf; i > 0; i = c->tree->parent[i]) n += gr_credit_n_trained(c, i);
    return n;
}

/* Those of them that the leaf does not train after all. */
static int64_t masked_tokens(const gr_credit* c, int l)
{
    int64_t n = 0;
    for (int i = c->leaf[l]; i > 0; i = c->tree->parent[i]) {
        if (gr_credit_masked(c, l, i)) n += gr_credit_n_trained(c, i);
    }
    return n;
}

static bool taught(const gr_credit* c, const gr_config_loss* loss)
{
    return !c->idle || loss->count_idle_groups;
}

void gr_denominators_add(gr_denominators* d, const gr_credit* c, const gr_config_loss* loss)
{
    const gr_tree* t = c->tree;
    if (!taught(c, loss)) return;
    if (c->n_heads > 0) d->value_leaves += c->n_leaves;
    bool* seen = calloc((size_t)t->n_nodes + 1, sizeof *seen);
    GR_ASSERT(seen != NULL, "out of memory");
    for (int l = 0; l < c->n_leaves; l++) {
        double tokens = (double)trained_tokens(c, c->leaf[l]);
        d->n_leaves += 1;
        d->leaf_tokens += tokens;
        d->split += c->split[l];
        d->split_tokens += c->split[l] * tokens;
        for (int i = c->leaf[l]; i > 0 && !seen[i]; i = t->parent[i]) {
            seen[i] = true;
            d->unique_tokens += gr_credit_n_trained(c, i);
        }
    }
    free(seen);
}

static double leaf_weight(const gr_config_loss* loss, const gr_denominators* d, double split,
                          double tokens)
{
    bool splits = loss->weighting == GR_WEIGHT_SPLIT;
    double share = splits ? split : 1, leaves = splits ? d->split : d->n_leaves;
    if (tokens == 0) return 0; /* nothing of this path is trained */
    if (loss->weighting == GR_WEIGHT_ONCE_MEAN) {
        GR_ASSERT(loss->aggregation == GR_AGG_TOKEN_MEAN, "once_mean needs token_mean");
        return 1 / d->unique_tokens;
    }
    switch (loss->aggregation) {
    case GR_AGG_TOKEN_MEAN:
        return share / (splits ? d->split_tokens : d->leaf_tokens);
    case GR_AGG_CONSTANT:
        GR_ASSERT(loss->length > 0, "loss.length");
        return share / (leaves * (double)loss->length);
    default:
        return share / (leaves * tokens);
    }
}

/* What a node with n leaves below it makes of their sums. */
static double sharing(const gr_config_loss* loss, int n)
{
    if (loss->weighting == GR_WEIGHT_INV_SQRT) return 1 / sqrt(n);
    return loss->weighting == GR_WEIGHT_ONCE_MEAN ? 1.0 / n : 1;
}

/* ---- one tree -------------------------------------------------------------------------------- */

typedef struct packer {
    gr_pack* p;
    struct gr_pack_scratch* s;
    const gr_config_loss* loss;
    const gr_denominators* d;
    int max_tokens;
    /* the tree in hand */
    const gr_credit* c;
    gr_credit* asking; /* answers go here; NULL: it teaches */
    bool by_token;
} packer;

static void add_leaf(sums* s, double w, double a)
{
    s->a_pos += w * fmax(a, 0);
    s->a_neg += w * fmin(a, 0);
    s->w += w;
}

static void scale(sums* s, double f)
{
    s->a_pos *= f;
    s->a_neg *= f;
    s->w *= f;
}

static void add_tokens(packer* k, int l, int node, double w)
{
    const gr_tree* t = k->c->tree;
    for (int j = 0; j < t->n_action[node]; j++) {
        add_leaf(&k->s->token_sum[t->token_begin[node] + j], w, gr_credit_token(k->c, l, node, j));
    }
}

/* Sums of the nodes over leaves begin .. end - 1 alone; n_leaves counts all of the tree's. */
static void sum_leaves(packer* k, int begin, int end)
{
    const gr_credit* c = k->c;
    const gr_tree* t = c->tree;
    GR_RESERVE(k->s->sum, k->s->sum_cap, t->n_nodes);
    sums* sum = k->s->sum;
    memset(sum, 0, (size_t)t->n_nodes * sizeof *sum);
    if (k->by_token) {
        GR_RESERVE(k->s->token_sum, k->s->token_sum_cap, t->n_tokens);
        memset(k->s->token_sum, 0, (size_t)t->n_tokens * sizeof *sum);
    }
    for (int l = 0; l < c->n_leaves; l++) {
        double tokens = (double)trained_tokens(c, c->leaf[l]);
        double w = leaf_weight(k->loss, k->d, c->split[l], tokens);
        for (int i = c->leaf[l]; i > 0; i = t->parent[i]) {
            sum[i].n_leaves++;
            if (l < begin || l >= end || gr_credit_masked(c, l, i)) continue;
            add_leaf(&sum[i], w, k->by_token ? 0 : gr_credit_at(c, l, i));
            if (k->by_token) add_tokens(k, l, i, w);
        }
    }
    for (int i = 1; i < t->n_nodes; i++) {
        if (sum[i].n_leaves == 0) continue;
        double f = sharing(k->loss, sum[i].n_leaves);
        scale(&sum[i], f);
        for (int j = 0; j < t->n_action[i] && k->by_token; j++) {
            scale(&k->s->token_sum[t->token_begin[i] + j], f);
        }
    }
}

/* ---- what stands at which node --------------------------------------------------------------- */

/* Item i, of any number, becomes the first of its node. */
static void link_item(int32_t* first, int32_t* next, int node, int i)
{
    next[i] = first[node];
    first[node] = i;
}

/* Targets of leaves begin .. end - 1; of an asking tree reads and probes. In order, since every
 * item goes before those of higher number. */
static void link_values(packer* k, int begin, int end)
{
    struct gr_pack_scratch* s = k->s;
    const gr_credit* c = k->c;
    const bool asks = k->asking != NULL;
    int n_values = asks ? c->n_reads : (int)c->n_targets, n_probes = asks ? c->n_probes : 0;
    GR_RESERVE(s->first_value, s->first_value_cap, c->tree->n_nodes);
    GR_RESERVE(s->next_value, s->next_value_cap, n_values);
    GR_RESERVE(s->first_probe, s->first_probe_cap, c->tree->n_nodes);
    GR_RESERVE(s->next_probe, s->next_probe_cap, n_probes);
    for (int i = 0; i < c->tree->n_nodes; i++) s->first_value[i] = s->first_probe[i] = -1;
    for (int i = n_values - 1; i >= 0; i--) {
        if (!asks && (c->target[i].leaf < begin || c->target[i].leaf >= end)) continue;
        int read = asks ? i : c->target[i].read;
        link_item(s->first_value, s->next_value, c->read[read].node, i);
    }
    for (int i = n_probes - 1; i >= 0; i--) {
        link_item(s->first_probe, s->next_probe, c->probe[i].node, i);
    }
}

static void link_children(struct gr_pack_scratch* s, const gr_tree* t)
{
    GR_RESERVE(s->first, s->first_cap, t->n_nodes + 1);
    GR_RESERVE(s->next, s->next_cap, t->n_nodes);
    for (int i = 0; i <= t->n_nodes; i++) s->first[i] = -1;
    for (int i = t->n_nodes - 1; i >= 0; i--) {
        int up = t->context[i] >= 0 ? t->context[i] : t->n_nodes;
        s->next[i] = s->first[up];
        s->first[up] = i;
    }
}

static void reserve_tokens(struct gr_pack_scratch* s, int64_t n)
{
    int64_t cap = s->token_cap;
    s->token = gr_array_reserve(s->token, &cap, n, sizeof *s->token);
    cap = s->token_cap;
    s->position = gr_array_reserve(s->position, &cap, n, sizeof *s->position);
    cap = s->token_cap;
    s->subtree_end = gr_array_reserve(s->subtree_end, &cap, n, sizeof *s->subtree_end);
    s->token_cap = cap;
}

static void reserve_rows(struct gr_pack_scratch* s, int64_t n)
{
    int32_t** ints[] = {&s->src, &s->target};
    double** reals[] = {&s->old_logp, &s->ref_logp, &s->a_pos, &s->a_neg, &s->w};
    int64_t cap = s->row_cap;
    for (int i = 0; i < GR_COUNT(ints); i++) {
        cap = s->row_cap;
        *ints[i] = gr_array_reserve(*ints[i], &cap, n, sizeof **ints[i]);
    }
    for (int i = 0; i < GR_COUNT(reals); i++) {
        cap = s->row_cap;
        *reals[i] = gr_array_reserve(*reals[i], &cap, n, sizeof **reals[i]);
    }
    cap = s->row_cap;
    s->demo = gr_array_reserve(s->demo, &cap, n, sizeof *s->demo);
    s->row_cap = cap;
}

static gr_batch* last_piece(const packer* k) { return &k->p->piece[k->p->n_pieces - 1]; }

/* The row that predicts `target` in the place of action token i of o's node. */
static void write_row(packer* k, const open_node* o, int before, int i, int32_t target,
                      double old_logp, const sums* sum)
{
    struct gr_pack_scratch* s = k->s;
    reserve_rows(s, s->n_rows + 1);
    int64_t u = s->n_rows++;
    s->src[u] = i == 0 ? before : o->begin + i - 1;
    s->target[u] = target;
    s->old_logp[u] = old_logp;
    s->ref_logp[u] = 0;
    s->a_pos[u] = sum->a_pos;
    s->a_neg[u] = sum->a_neg;
    s->w[u] = sum->w;
    s->demo[u] = k->c->tree->kind[o->node] == GR_DEMO;
    last_piece(k)->n_rows++;
}

/* Rows of the node's action, which follows token `before`. */
static void write_rows(packer* k, const open_node* o, int before)
{
    const gr_tree* t = k->c->tree;
    const int64_t from = t->token_begin[o->node];
    GR_ASSERT(before >= 0, "node %d: nothing precedes its action", o->node);
    for (int i = 0; i < t->n_action[o->node]; i++) {
        if (!gr_credit_trained(k->c, o->node, i)) continue;
        const sums* sum = k->by_token ? &k->s->token_sum[from + i] : &k->s->sum[o->node];
        write_row(k, o, before, i, t->token[from + i], t->logp[from + i], sum);
        k->p->trained++;
    }
}

static void write_probes(packer* k, const open_node* o, int before)
{
    static const sums none;
    for (int i = k->s->first_probe[o->node]; i >= 0; i = k->s->next_probe[i]) {
        gr_probe* probe = &k->asking->probe[i];
        GR_RESERVE(k->p->probe, k->s->probe_cap, k->s->n_rows + 1);
        k->p->probe[k->s->n_rows] = probe;
        write_row(k, o, before, probe->k, probe->token, 0, &none);
    }
}

static void reserve_values(struct gr_pack_scratch* s, int64_t n)
{
    int32_t** ints[] = {&s->value_src, &s->value_head};
    double** reals[] = {&s->value_target, &s->value_weight, &s->value_old};
    int64_t cap = s->value_cap;
    for (int i = 0; i < GR_COUNT(ints); i++) {
        cap = s->value_cap;
        *ints[i] = gr_array_reserve(*ints[i], &cap, n, sizeof **ints[i]);
    }
    for (int i = 0; i < GR_COUNT(reals); i++) {
        cap = s->value_cap;
        *reals[i] = gr_array_reserve(*reals[i], &cap, n, sizeof **reals[i]);
    }
    s->value_cap = cap;
}

/* Value rows that read the node's tokens. */
static void write_values(packer* k, const open_node* o)
{
    struct gr_pack_scratch* s = k->s;
    for (int i = s->first_value[o->node]; i >= 0; i = s->next_value[i]) {
        const gr_target* g = k->asking != NULL ? NULL : &k->c->target[i];
        const gr_read* read = &k->c->read[g != NULL ? g->read : i];
        reserve_values(s, s->n_values + 1);
        int64_t u = s->n_values++;
        s->value_src[u] = o->begin + read->offset;
        s->value_head[u] = read->head;
        s->value_old[u] = read->value;
        s->value_target[u] = g != NULL ? g->ret : 0;
        s->value_weight[u] = g != NULL ? g->weight / k->d->value_leaves : 0;
        last_piece(k)->n_values++;
        if (g != NULL) continue;
        GR_RESERVE(k->p->read, s->read_cap, s->n_values);
        k->p->read[u] = &k->asking->read[i];
    }
}

/* Everything that stands at the node whose tokens were written last. */
static void write_items(packer* k, const open_node* o, int before)
{
    if (k->asking != NULL)
        write_probes(k, o, before);
    else if (k->s->sum[o->node].w != 0 && k->c->tree->train[o->node])
        write_rows(k, o, before);
    if (k->c->n_heads > 0) write_values(k, o);
}

/* Writes path[at] behind what the piece holds. */
static void write_node(packer* k, const gr_tree* t, int at, bool wanted)
{
    struct gr_pack_scratch* s = k->s;
    gr_batch* piece = &k->p->piece[k->p->n_pieces - 1];
    open_node* o = &s->path[at];
    int n = gr_node_tokens(t, o->node), position = o->end - n;
    int before = at > 0 ? s->path[at - 1].last : -1;
    o->begin = piece->n_tokens;
    o->last = n > 0 ? o->begin + n - 1 : before;
    reserve_tokens(s, s->n_tokens + n);
    for (int i = 0; i < n; i++) {
        s->token[s->n_tokens + i] = t->token[t->token_begin[o->node] + i];
        s->position[s->n_tokens + i] = position + i;
    }
    s->n_tokens += n;
    piece->n_tokens += n;
    piece->max_path = GR_MAX(piece->max_path, o->end);
    if (wanted) write_items(k, o, before);
}

/* The piece holds all it will of path[at]'s subtree. */
static void fix_end(packer* k, const gr_tree* t, int at)
{
    struct gr_pack_scratch* s = k->s;
    open_node* o = &s->path[at];
    if (o->begin < 0) return;
    int end = k->p->piece[k->p->n_pieces - 1].n_tokens, n = gr_node_tokens(t, o->node);
    for (int i = 0; i < n; i++) s->subtree_end[s->piece_begin + o->begin + i] = end;
    o->begin = -1;
}

static void begin_piece(packer* k, const gr_tree* t)
{
    gr_pack* p = k->p;
    for (int at = 0; at < k->s->depth; at++) fix_end(k, t, at);
    GR_RESERVE(p->piece, p->piece_cap, p->n_pieces + 1);
    p->piece[p->n_pieces++] = (gr_batch){0};
    k->s->piece_begin = k->s->n_tokens;
}

/* Tokens that the current piece lacks of the open path. */
static int missing(const struct gr_pack_scratch* s, const gr_tree* t)
{
    int n = 0;
    for (int at = s->depth - 1; at >= 0 && s->path[at].begin < 0; at--) {
        n += gr_node_tokens(t, s->path[at].node);
    }
    return n;
}

/* Whether something stands at the node, so that its tokens are needed. */
static bool wanted(const packer* k, int node)
{
    const struct gr_pack_scratch* s = k->s;
    if (k->c->n_heads > 0 && s->first_value[node] >= 0) return true;
    if (k->asking != NULL) return s->first_probe[node] >= 0;
    return s->sum[node].w != 0 && gr_credit_n_trained(k->c, node) > 0;
}

static gr_status enter(packer* k, const gr_tree* t, int node)
{
    struct gr_pack_scratch* s = k->s;
    GR_RESERVE(s->path, s->path_cap, s->depth + 1);
    int above = s->depth > 0 ? s->path[s->depth - 1].end : 0;
    s->path[s->depth++] =
        (open_node){.node = node, .begin = -1, .end = above + gr_node_tokens(t, node)};
    if (!wanted(k, node)) return GR_OK;

    int need = missing(s, t);
    const gr_batch* piece = k->p->n_pieces > 0 ? &k->p->piece[k->p->n_pieces - 1] : NULL;
    if (piece == NULL || piece->n_tokens + need > k->max_tokens) {
        begin_piece(k, t);
        need = missing(s, t);
        if (need > k->max_tokens) {
            return GR_FAIL(GR_EARG,
                           "optimizer.microbatch_tokens=%d: a turn needs %d tokens with what "
                           "precedes it",
                           k->max_tokens, need);
        }
    }
    int from = s->depth;
    while (from > 0 && s->path[from - 1].begin < 0) from--;
    for (int at = from; at < s->depth; at++) write_node(k, t, at, at == s->depth - 1);
    return GR_OK;
}

static void leave(packer* k, const gr_tree* t)
{
    fix_end(k, t, k->s->depth - 1);
    k->s->depth--;
}

/* Packs the nodes that have sums, depth-first. */
static gr_status pack_tree(packer* k, const gr_tree* t)
{
    struct gr_pack_scratch* s = k->s;
    s->depth = 0;
    for (int node = s->first[t->n_nodes]; node >= 0;) {
        GR_TRY(enter(k, t, node));
        int next = s->first[node];
        while (next < 0 && s->depth > 0) {
            next = s->next[s->path[s->depth - 1].node];
            leave(k, t);
        }
        node = next;
    }
    return GR_OK;
}

/* ---- a minibatch ----------------------------------------------------------------------------- */

static gr_status begin(packer* k)
{
    gr_pack* p = k->p;
    if (p->scratch == NULL) p->scratch = calloc(1, sizeof *p->scratch);
    if (p->scratch == NULL) return GR_FAIL(GR_ENOMEM, "pack: out of memory");
    k->s = p->scratch;
    k->s->n_tokens = k->s->n_rows = k->s->n_values = k->s->piece_begin = 0;
    p->n_pieces = 0;
    p->trained = p->trained_flat = p->tokens = p->tokens_flat = 0;
    return GR_OK;
}

/* The arrays have stopped moving: pieces may point into them. */
static void finish(packer* k)
{
    const struct gr_pack_scratch* s = k->s;
    int64_t token = 0, row = 0, value = 0;
    for (int i = 0; i < k->p->n_pieces; i++) {
        gr_batch* b = &k->p->piece[i];
        b->token = s->token + token;
        b->position = s->position + token;
        b->subtree_end = s->subtree_end + token;
        b->src = s->src + row;
        b->target = s->target + row;
        b->old_logp = s->old_logp + row;
        b->ref_logp = s->ref_logp + row;
        b->a_pos = s->a_pos + row;
        b->a_neg = s->a_neg + row;
        b->w = s->w + row;
        b->demo = s->demo + row;
        b->value_src = s->value_src + value;
        b->value_head = s->value_head + value;
        b->value_target = s->value_target + value;
        b->value_weight = s->value_weight + value;
        b->value_old = s->value_old + value;
        token += b->n_tokens;
        row += b->n_rows;
        value += b->n_values;
    }
    k->p->tokens = token;
}

static gr_status pack_all(gr_pack* p, const gr_credit* const* credit, int n,
                          const gr_config_loss* loss, const gr_denominators* d, int max_tokens,
                          bool flat)
{
    packer k = {.p = p, .loss = loss, .d = d, .max_tokens = max_tokens};
    GR_TRY(begin(&k));
    for (int i = 0; i < n; i++) {
        const gr_credit* c = k.c = credit[i];
        if (!taught(c, loss)) continue;
        k.by_token = gr_credit_by_token(c);
        link_children(k.s, c->tree);
        for (int l = 0; l < c->n_leaves; l++) {
            int64_t trained = trained_tokens(c, c->leaf[l]) - masked_tokens(c, l);
            p->trained_flat += trained;
            if (trained > 0) p->tokens_flat += gr_tree_path_length(c->tree, c->leaf[l]);
        }
        int step = flat ? 1 : c->n_leaves;
        for (int l = 0; l < c->n_leaves; l += step) {
            sum_leaves(&k, l, l + step);
            if (c->n_heads > 0) link_values(&k, l, l + step);
            GR_TRY(pack_tree(&k, c->tree));
        }
    }
    finish(&k);
    return GR_OK;
}

gr_status gr_pack_ask(gr_pack* p, gr_credit* credit, int n, int max_tokens)
{
    packer k = {.p = p, .max_tokens = max_tokens};
    GR_TRY(begin(&k));
    for (int i = 0; i < n; i++) {
        k.c = k.asking = &credit[i];
        if (credit[i].n_heads == 0 && credit[i].n_probes == 0) continue;
        link_children(k.s, credit[i].tree);
        link_values(&k, 0, credit[i].n_leaves);
        GR_TRY(pack_tree(&k, credit[i].tree));
    }
    finish(&k);
    return GR_OK;
}

gr_status gr_pack_make(gr_pack* p, const gr_credit* const* credit, int n,
                       const gr_config_loss* loss, const gr_denominators* d, int max_tokens)
{
    return pack_all(p, credit, n, loss, d, max_tokens, false);
}

gr_status gr_pack_flat(gr_pack* p, const gr_credit* const* credit, int n,
                       const gr_config_loss* loss, const gr_denominators* d, int max_tokens)
{
    return pack_all(p, credit, n, loss, d, max_tokens, true);
}

void gr_pack_free(gr_pack* p)
{
    struct gr_pack_scratch* s = p->scratch;
    if (s != NULL) {
        void* all[] = {
            s->token,     s->position,    s->subtree_end, s->src,          s->target,
            s->old_logp,  s->ref_logp,    s->a_pos,       s->a_neg,        s->w,
            s->sum,       s->first,       s->next,        s->path,         s->token_sum,
            s->demo,      s->value_src,   s->value_head,  s->value_target, s->value_weight,
            s->value_old, s->first_value, s->next_value,  s->first_probe,  s->next_probe};
        for (int i = 0; i < GR_COUNT(all); i++) free(all[i]);
    }
    free(s);
    free(p->piece);
    free(p->read);
    free(p->probe);
    memset(p, 0, sizeof *p);
}
