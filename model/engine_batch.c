/* engine_batch.c - who gets rows in the next forward.
 *
 * Everything that waits for a forward is a path whose last keys are missing: a request's context that
 * is not yet in pages, a child that has sampled a token (one key is missing), or a child whose pages
 * were taken away (many are). `feed` gives a path rows; a path whose last token is among them has a
 * hidden row to sample from. */
#include <string.h>

#include "model/engine_state.h"

/* ---- making room -------------------------------------------------------------------------------------
 * Pages that only idle sequences hold may be taken. They are the ends of those sequences, because
 * whoever holds a page holds the ones before it. */

static bool is_idle(const gr_engine* e, int seq)
{
    return e->kv.seq[seq].used && e->state->hold[seq] == SEQ_IDLE;
}

static bool is_evictable(const gr_engine* e, int32_t page)
{
    return e->state->idle_ref[page] == e->kv.ref[page];
}

static int count_evictable(gr_engine* e)
{
    const gr_kv* kv = &e->kv;
    int32_t* idle_ref = e->state->idle_ref;
    memset(idle_ref, 0, (size_t)kv->n_pages * sizeof *idle_ref);
    for (int s = 0; s < kv->n_seqs; s++) {
        if (!is_idle(e, s)) continue;
        for (int i = 0; i < kv->seq[s].n_pages; i++) idle_ref[kv->seq[s].page[i]]++;
    }
    int n = 0;
    for (int i = 0; i < kv->n_pages; i++) n += kv->ref[i] > 0 && is_evictable(e, i);
    return n;
}

/* After count_evictable: in descending order of id until n_free pages are free or nothing is left.
 * Sequences that are not idle have no such pages. */
static void evict(gr_engine* e, int n_free)
{
    gr_kv* kv = &e->kv;
    for (int s = kv->n_seqs - 1; s >= 0 && kv->n_free < n_free; s--) {
        const gr_kv_seq* q = &kv->seq[s];
        int keep = q->n_pages;
        while (keep > 0 && is_evictable(e, q->page[keep - 1])) {
            e->state->idle_ref[q->page[--keep]]--;
        }
        if (keep == q->n_pages) continue;
        gr_kv_truncate(kv, s, keep * GR_PAGE);
        e->counts.evictions++;
    }
}

/* The last live child that has not had its turn loses its claim on its pages for this step. */
static bool set_back_last(gr_engine* e)
{
    struct gr_engine_state* st = e->state;
    for (int i = e->n_live - 1; i > st->turn; i--) {
        int32_t* hold = &st->hold[st->order[i]->seq];
        if (*hold == SEQ_IDLE) continue;
        *hold = SEQ_IDLE;
        return true;
    }
    return false;
}

static bool make_room(gr_engine* e, int n_pages)
{
    gr_kv* kv = &e->kv;
    if (kv->n_free >= n_pages) return true;
    while (kv->n_free + count_evictable(e) < n_pages) {
        if (!set_back_last(e)) return false;
    }
    evict(e, n_pages + e->n_live); /* a few more, as each live child will soon need one */
    return true;
}

/* ---- putting a forward together ---------------------------------------------------------------------- */

enum { FED_PART = -1, FED_NOTHING = -2 };

/* Gives rows to the missing part of the path q's context, then c's tokens (c NULL: none) on `seq`; at
 * least its last token. Returns the row of that last token, or why there is none. A path begins only
 * if there is room for the whole of it: else paths would take each other's pages in turns. */
static int feed(gr_engine* e, request* q, const child* c, int seq)
{
    struct gr_engine_state* st = e->state;
    row_list* l = &st->rows;
    int n_context = q->r.n_context, n_path = n_context + (c != NULL ? c->n_tokens : 0);
    if (gr_kv_len(&e->kv, seq) >= n_path) gr_kv_truncate(&e->kv, seq, n_path - 1);
    int begin = gr_kv_len(&e->kv, seq), end = GR_MIN(n_path, begin + e->max_rows - l->n);
    st->hold[seq] = SEQ_HELD;
    if (!make_room(e, gr_kv_need(&e->kv, seq, n_path - begin))) return FED_NOTHING;
    GR_ASSERT(gr_kv_append(&e->kv, seq, end - begin, l->slot + l->n));
    for (int i = begin; i < end; i++, l->n++) {
        l->token[l->n] = i < n_context ? q->context[i] : c->token[i - n_context];
        l->position[l->n] = i;
        l->seq[l->n] = seq;
        l->n_keys[l->n] = i + 1;
    }
    if (c == NULL) q->n_fed += end - begin;
    e->counts.prefill_tokens += end - begin - (c != NULL && end == n_path);
    if (end < n_path) return FED_PART;
    return st->hold[seq] = l->n - 1;
}

static void add_sample(gr_engine* e, child* c, int row)
{
    sample_list* l = &e->state->samples;
    l->child[l->n] = c;
    l->src[l->n] = row;
    l->uid[l->n] = c->uid;
    l->index[l->n] = c->n_tokens;
    l->sampling[l->n] = c->q->r.sampling;
    l->n++;
}

/* Returns whether every child found room. */
static bool feed_children(gr_engine* e)
{
    struct gr_engine_state* st = e->state;
    bool all = true;
    for (st->turn = 0; st->turn < e->n_live && st->rows.n < e->max_rows; st->turn++) {
        child* c = st->order[st->turn];
        int row = feed(e, c->q, c, c->seq);
        if (row >= 0) add_sample(e, c, row);
        all &= row != FED_NOTHING;
    }
    st->turn = e->n_live;
    return all;
}

bool gr_engine_can_start(const gr_engine* e)
{
    return e->n_live + e->state->n_done < e->max_live && e->kv.n_free_seq > 0;
}

child* gr_engine_start_child(gr_engine* e, request* q, int n_shared)
{
    struct gr_engine_state* st = e->state;
    int seq = gr_kv_fork(&e->kv, q->r.seq, n_shared);
    child* c = st->child;
    while (c->stage != STAGE_FREE) c++;
    *c = (child){.stage = STAGE_LIVE,
                 .q = q,
                 .serial = q->serial,
                 .tag = q->r.tag,
                 .seq = seq,
                 .token = c->token,
                 .logp = c->logp,
                 .version = e->w->version};
    c->ordinal = q->n_started++;
    c->uid = q->uid[c->ordinal];
    st->hold[seq] = SEQ_HELD;
    st->order[e->n_live++] = c;
    return c;
}

/* Children of q begin on the hidden row of its last context token. */
static void start_children(gr_engine* e, request* q, int row)
{
    int first = q->n_started;
    while (q->n_started < q->r.n_children && gr_engine_can_start(e)) {
        add_sample(e, gr_engine_start_child(e, q, q->r.n_context), row);
    }
    if (q->n_started == first) return;
    e->counts.shared_tokens += (int64_t)(q->n_started - first) * q->r.n_context - q->n_fed;
    q->n_fed = 0;
}

/* Requests in order of submission, as long as there are places for their children, rows and pages. */
static void feed_contexts(gr_engine* e)
{
    struct gr_engine_state* st = e->state;
    for (int i = 0; i < st->n_queue && gr_engine_can_start(e); i++) {
        request* q = st->queue[i];
        if (q->n_started == q->r.n_children || q->r.n_context >= e->w->config.max_context) continue;
        int row = st->hold[q->r.seq];
        bool same_path = row >= 0 && st->rows.n_keys[row] == q->r.n_context;
        if (row != SEQ_IDLE && !same_path) continue;
        if (!same_path) {
            if (st->rows.n == e->max_rows) break;
            row = feed(e, q, NULL, q->r.seq);
        }
        if (row == FED_NOTHING) break;
        if (row >= 0) start_children(e, q, row);
    }
}

void gr_engine_gather(gr_engine* e)
{
    struct gr_engine_state* st = e->state;
    for (int i = 0; i < e->kv.n_seqs; i++) st->hold[i] = SEQ_IDLE;
    for (int i = 0; i < e->n_live; i++) st->hold[st->order[i]->seq] = SEQ_HELD;
    st->rows.n = st->samples.n = 0;
    if (feed_children(e)) feed_contexts(e);
}
