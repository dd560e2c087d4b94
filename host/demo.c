/* demo.c - what demonstrations weigh in the loss.
 *
 * With p the policy's present probability of a demonstrated token in its clean context, and phi =
 * phi_scale p (1 - p) or 1, a row's share of the loss is
 *
 *     surrogate   phi times the clipped surrogate of its advantage; ratio = one puts the present
 *                 log-prob in the place of the old one, so that nothing is clipped
 *     sft         (1 - mu) of the policy's rows as they are, and of the demonstrations
 *                 -mu phi log p (CHORD, arXiv:2508.11408): its gradient is that of a surrogate of
 *                 advantage 1 at ratio 1
 *
 * phi is a number on the row, so no gradient goes through it. Entropy and KL are not weighed. */
#include "host/demo.h"

#include <math.h>
#include <stdlib.h>

void gr_demos_ask(const gr_demos* d, gr_credit* c)
{
    const gr_tree* t = c->tree;
    if (d->s == NULL) return;
    for (int i = 1; i < t->n_nodes; i++) {
        if (t->kind[i] != GR_DEMO) continue;
        for (int k = 0; k < t->n_action[i]; k++) {
            gr_credit_ask_logp(c, i, k, t->token[t->token_begin[i] + k]);
        }
    }
}

void gr_demos_hear(const gr_demos* d, const gr_credit* c, gr_tree* t)
{
    if (d->s == NULL) return;
    for (int i = 0; i < c->n_probes; i++) {
        const gr_probe* p = &c->probe[i];
        if (t->kind[p->node] != GR_DEMO) continue;
        t->logp[t->token_begin[p->node] + p->k] = p->logp;
        t->logp_from[p->node] = GR_LOGP_TRAINER;
    }
}

static bool has_lesson(const gr_credit* c)
{
    for (int l = 0; l < c->n_leaves; l++) {
        for (int i = c->leaf[l]; i > 0; i = c->tree->parent[i]) {
            if (c->tree->kind[i] == GR_DEMO && !gr_credit_masked(c, l, i)) return true;
        }
    }
    return false;
}

void gr_demos_credit(const gr_demos* d, gr_credit* c)
{
    if (d->s == NULL) return;
    bool sft = d->s->loss == GR_DEMO_SFT;
    c->demo_mask = sft ? GR_DEMO_IF_SUCCESS : d->s->mask;
    if (sft && c->idle) c->idle = !has_lesson(c);
}

void gr_demos_apply(const gr_proceed_settings* s, gr_batch* b, const double* logp)
{
    bool sft = s->loss == GR_DEMO_SFT;
    for (int u = 0; u < b->n_rows; u++) {
        if (!b->demo[u]) {
            if (!sft) continue;
            b->a_pos[u] *= 1 - s->mu;
            b->a_neg[u] *= 1 - s->mu;
            continue;
        }
        double p = exp(logp[u]), phi = s->weight == GR_PHI ? s->phi_scale * p * (1 - p) : 1;
        if (sft || s->ratio == GR_RATIO_ONE) b->old_logp[u] = logp[u];
        b->a_pos[u] = phi * (sft ? s->mu * b->w[u] : b->a_pos[u]);
        b->a_neg[u] = phi * (sft ? 0 : b->a_neg[u]);
    }
}

static bool has_demos(const gr_batch* b)
{
    for (int u = 0; u < b->n_rows; u++) {
        if (b->demo[u]) return true;
    }
    return false;
}

gr_status gr_demos_weigh(gr_demos* d, gr_objective* o, gr_batch* piece, float temperature,
                         bool untouched)
{
    const double* logp = piece->old_logp;
    if (d->s == NULL) return GR_OK;
    if (!untouched && has_demos(piece)) {
        GR_RESERVE(d->logp, d->logp_cap, piece->n_rows);
        GR_TRY(gr_objective_logp(o, piece, temperature, d->logp));
        logp = d->logp;
    }
    gr_demos_apply(d->s, piece, logp);
    return GR_OK;
}
