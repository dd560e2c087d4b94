/* values.c - what estimators with a value model share: reads, targets, normalisation. */
#include <math.h>
#include <stdlib.h>

#include "host/advantage/advantage.h"

/* ---- reads ------------------------------------------------------------------------------------- */

typedef struct place {
    int node, offset;
} place;

static place end_of(const gr_tree* t, int node)
{
    while (gr_node_tokens(t, node) == 0) node = t->context[node]; /* a prompt ends the climb */
    return (place){node, gr_node_tokens(t, node) - 1};
}

static place before(const gr_tree* t, int node, int k)
{
    return k > 0 ? (place){node, k - 1} : end_of(t, t->context[node]);
}

static int32_t* slot(const gr_credit* c, place p, int head)
{
    return &c->read_of[(c->tree->token_begin[p.node] + p.offset) * c->n_heads + head];
}

static void ask(gr_credit* c, place p, int head)
{
    GR_ASSERT(head < c->n_heads);
    if (*slot(c, p, head) >= 0) return;
    GR_RESERVE(c->read, c->read_cap, c->n_reads + 1);
    *slot(c, p, head) = c->n_reads;
    c->read[c->n_reads++] = (gr_read){.node = p.node, .offset = p.offset, .head = head};
}

static int asked(const gr_credit* c, place p, int head)
{
    int read = *slot(c, p, head);
    GR_ASSERT(read >= 0, "node %d: its value was not asked for", p.node);
    return read;
}

void gr_credit_ask(gr_credit* c, int node, int k, int head)
{
    ask(c, before(c->tree, node, k), head);
}
void gr_credit_ask_end(gr_credit* c, int node, int head) { ask(c, end_of(c->tree, node), head); }

void gr_credit_ask_logp(gr_credit* c, int node, int k, int token)
{
    GR_RESERVE(c->probe, c->probe_cap, c->n_probes + 1);
    c->probe[c->n_probes++] = (gr_probe){.node = node, .k = k, .token = token};
}

double gr_credit_value(const gr_credit* c, int node, int k, int head)
{
    return c->read[asked(c, before(c->tree, node, k), head)].value;
}

double gr_credit_value_end(const gr_credit* c, int node, int head)
{
    return c->read[asked(c, end_of(c->tree, node), head)].value;
}

void gr_credit_teach(gr_credit* c, int l, int node, int k, int head, double ret)
{
    int read = asked(c, before(c->tree, node, k), head);
    GR_RESERVE(c->target, c->target_cap, c->n_targets + 1);
    c->target[c->n_targets++] = (gr_target){.read = read, .leaf = l, .ret = ret};
}

/* ---- advantages of tokens ---------------------------------------------------------------------- */

void gr_credit_per_token(gr_credit* c)
{
    const gr_tree* t = c->tree;
    int64_t n = 0;
    c->per_token = true;
    GR_RESERVE(c->token_at, c->at_cap, c->path_begin[c->n_leaves] + 1);
    for (int l = 0; l < c->n_leaves; l++) {
        for (int i = c->leaf[l]; i > 0; i = t->parent[i]) {
            c->token_at[c->path_begin[l] + t->turn[i] - 1] = n;
            n += t->n_action[i];
        }
    }
    GR_RESERVE(c->token_adv, c->token_cap, n + 1);
    for (int64_t i = 0; i < n; i++) c->token_adv[i] = 0;
}

double gr_credit_token(const gr_credit* c, int l, int node, int k)
{
    const gr_tree* t = c->tree;
    if (!gr_credit_by_token(c)) return gr_credit_at(c, l, node);
    int64_t at = c->path_begin[l] + t->turn[node] - 1;
    if (c->per_token) return c->token_adv[c->token_at[at] + k];
    double sum = 0;
    for (int b = 0; b < c->n_kinds; b++) {
        bool of_kind = c->kinds[t->token_begin[node] + k] >> b & 1;
        if (of_kind) sum += c->path_adv[at * c->n_kinds + b];
    }
    return sum;
}

int gr_credit_n_trained(const gr_credit* c, int node)
{
    int n = 0;
    for (int k = 0; k < c->tree->n_action[node]; k++) n += gr_credit_trained(c, node, k);
    return n;
}

bool gr_credit_masked(const gr_credit* c, int l, int node)
{
    if (c->tree->kind[node] != GR_DEMO || c->demo_mask == GR_DEMO_ALWAYS) return false;
    if (c->demo_mask == GR_DEMO_IF_SUCCESS) return !c->tree->success[c->leaf[l]];
    return gr_credit_at(c, l, node) <= 0;
}

double gr_credit_at(const gr_credit* c, int l, int node)
{
    double sum = 0;
    int n = 0;
    if (!gr_credit_by_token(c)) {
        if (c->per_path) return c->path_adv[c->path_begin[l] + c->tree->turn[node] - 1];
        return c->per_node ? c->node_adv[node] : c->adv[l];
    }
    for (int k = 0; k < c->tree->n_action[node]; k++) {
        if (!gr_credit_trained(c, node, k)) continue;
        sum += gr_credit_token(c, l, node, k);
        n++;
    }
    return n > 0 ? sum / n : 0;
}

/* ---- normalisation ------------------------------------------------------------------------------ */

/* One pass over the advantages of kind b: adds them up, or rewrites them. */
typedef struct spread {
    int kind;
    double n, sum, sq; /* sq: of differences from the mean */
    double mean, scale;
    enum { SUM, SQUARES, WRITE } pass;
} spread;

static void visit(spread* s, double* a)
{
    if (s->pass == SUM) s->n += 1, s->sum += *a;
    if (s->pass == SQUARES) s->sq += (*a - s->mean) * (*a - s->mean);
    if (s->pass == WRITE) *a = (*a - s->mean) * s->scale;
}

static bool owns_kind(const gr_credit* c, int node, int kind)
{
    const gr_tree* t = c->tree;
    if (!t->train[node]) return false;
    if (c->n_kinds == 1) return t->n_action[node] > 0;
    for (int k = 0; k < t->n_action[node]; k++) {
        if (c->kinds[t->token_begin[node] + k] >> kind & 1) return true;
    }
    return false;
}

static void visit_credit(spread* s, gr_credit* c)
{
    const gr_tree* t = c->tree;
    for (int l = 0; l < c->n_leaves; l++) {
        for (int i = c->leaf[l]; i > 0; i = t->parent[i]) {
            int64_t at = c->path_begin[l] + t->turn[i] - 1;
            if (!owns_kind(c, i, s->kind)) continue;
            if (!c->per_token) visit(s, &c->path_adv[at * c->n_kinds + s->kind]);
            for (int k = 0; k < t->n_action[i] && c->per_token; k++) {
                visit(s, &c->token_adv[c->token_at[at] + k]);
            }
        }
    }
}

static void visit_all(spread* s, gr_credit* c, int n, int pass)
{
    s->pass = pass;
    for (int i = 0; i < n; i++) {
        if (c[i].normalise) visit_credit(s, &c[i]);
    }
}

void gr_credit_normalise(gr_credit* c, int n)
{
    for (int kind = 0; n > 0 && kind < c[0].n_kinds; kind++) {
        spread s = {.kind = kind};
        visit_all(&s, c, n, SUM);
        if (s.n == 0) continue;
        s.mean = s.sum / s.n;
        visit_all(&s, c, n, SQUARES);
        s.scale = 1 / (sqrt(s.sq / s.n) + 1e-8);
        visit_all(&s, c, n, WRITE);
    }
}
