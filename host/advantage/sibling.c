/* sibling.c - credit where paths part: a child of a fork is compared with its siblings.
 *
 *     A(c) = V(c) - mean of V over c and its siblings
 *     V(c) = split-weighted mean return of the leaves below c
 *
 * The root's children are siblings; nodes below take over the advantage of the nearest fork's
 * child above them. Splitting shares a fork's weight evenly among its children, so V of a node
 * is the plain mean of V over its counted children, which lets equal returns give equal V to the
 * last bit. */
#include <stdlib.h>

#include "host/advantage/advantage.h"

typedef struct family {
    double first, sum; /* V over the counted children seen so far */
    int n;
    bool equal;
} family;

static double value(const family* f) { return f->equal ? f->first : f->sum / f->n; }

static void add_child(family* f, double v)
{
    if (f->n == 0) f->first = v;
    f->equal = f->n == 0 || (f->equal && v == f->first);
    f->sum += v;
    f->n++;
}

static void sibling(const void* settings, gr_credit* c, double eps)
{
    const gr_tree* t = c->tree;
    (void)settings;
    (void)eps;
    c->per_node = true;
    family* f = calloc((size_t)t->n_nodes, sizeof *f);
    GR_ASSERT(f != NULL, "out of memory");
    /* a leaf is a family of itself: V is its return; children come after their parents */
    for (int l = 0; l < c->n_leaves; l++) add_child(&f[c->leaf[l]], c->ret[l]);
    for (int i = t->n_nodes - 1; i > 0; i--) {
        if (f[i].n > 0) add_child(&f[t->parent[i]], value(&f[i]));
    }
    for (int i = 1; i < t->n_nodes; i++) {
        const family* siblings = &f[t->parent[i]];
        if (f[i].n == 0) continue;
        if (siblings->n > 1)
            c->node_adv[i] = siblings->equal ? 0 : value(&f[i]) - value(siblings);
        else
            c->node_adv[i] = c->node_adv[t->parent[i]];
    }
    free(f);
}

const gr_estimator gr_estimator_sibling = {.name = "sibling", .fill = sibling};
