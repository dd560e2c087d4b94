/* engine.c - one continuous batch: the queue, one step, and what becomes of its tokens. */
#include <string.h>

#include "model/engine_state.h"

/* ---- layout ------------------------------------------------------------------------------ */

static void rows_layout(row_list* l, int n, int n_pages, gr_arena* host, gr_arena* device)
{
    l->token = GR_PUSH(host, int32_t, n);
    l->position = GR_PUSH(host, int32_t, n);
    l->slot = GR_PUSH(host, int32_t, n);
    l->seq = GR_PUSH(host, int32_t, n);
    l->n_keys = GR_PUSH(host, int32_t, n);
    l->d_token = GR_PUSH(device, int32_t, n);
    l->d_position = GR_PUSH(device, int32_t, n);
    l->d_slot = GR_PUSH(device, int32_t, n);
    l->d_pair = GR_PUSH(device, int32_t, 2 * (int64_t)n_pages);
}

static void samples_layout(sample_list* l, const gr_weights* w, int n, gr_arena* host,
                           gr_arena* device)
{
    gr_dev* dev = w->dev;
    l->child = GR_PUSH(host, child*, n);
    l->src = GR_PUSH(host, int32_t, n);
    l->index = GR_PUSH(host, int32_t, n);
    l->token = GR_PUSH(host, int32_t, n);
    l->uid = GR_PUSH(host, uint64_t, n);
    l->sampling = GR_PUSH(host, gr_sampling, n);
    l->logp = GR_PUSH(host, double, n);
    l->d_src = GR_PUSH(device, int32_t, n);
    l->d_index = GR_PUSH(device, int32_t, n);
    l->d_token = GR_PUSH(device, int32_t, n);
    l->d_uid = GR_PUSH(device, uint64_t, n);
    l->d_sampling = GR_PUSH(device, gr_sampling, n);
    l->d_logp = gr_arena_push(device, (size_t)n, dev->acc_bytes);
    l->d_scratch =
        gr_arena_push(device, dev->ops->head_scratch(dev, n, w->config.width, w->config.vocab), 1);
}

/* The children, the queue and their buffers. */
static void queue_layout(struct gr_engine_state* st, int max_live, int n_seqs, int max_context,
                         gr_arena* host)
{
    st->child = GR_PUSH(host, child, max_live);
    st->order = GR_PUSH(host, child*, max_live);
    st->request = GR_PUSH(host, request, st->max_queue);
    st->queue = GR_PUSH(host, request*, st->max_queue);
    st->spare = GR_PUSH(host, request*, st->max_queue);
    int32_t* token = GR_PUSH(host, int32_t, (int64_t)max_live * st->max_action);
    double* logp = GR_PUSH(host, double, (int64_t)max_live * st->max_action);
    int32_t* context = GR_PUSH(host, int32_t, (int64_t)st->max_queue * max_context);
    st->uid = GR_PUSH(host, uint64_t, n_seqs);
    st->hold = GR_PUSH(host, int32_t, n_seqs);
    st->readers = GR_PUSH(host, int32_t, n_seqs);
    st->orphan = GR_PUSH(host, bool, n_seqs);
    if (host->base == NULL) return;
    for (int64_t i = 0; i < max_live; i++) {
        st->child[i] =
            (child){.token = token + i * st->max_action, .logp = logp + i * st->max_action};
    }
    for (int64_t i = 0; i < st->max_queue; i++) {
        st->request[i] = (request){.context = context + i * max_context};
    }
}

void gr_engine_layout(gr_engine* e, const gr_weights* w, const gr_engine_settings* s,
                      gr_arena* host, gr_arena* device)
{
    const gr_model_config* m = &w->config;
    GR_ASSERT(s->max_live > 0 && s->max_rows > 0 && s->n_seqs > 1 && s->max_action > 0);
    GR_ASSERT(s->n_pages >= m->max_context / GR_PAGE + 2, "one path must fit into %d pages",
              s->n_pages);
    *e = (gr_engine){
        .w = w, .tokenizer = s->tokenizer, .max_live = s->max_live, .max_rows = s->max_rows};
    gr_acts_layout(&e->acts, w, s->max_rows, m->max_context, false, false, host, device);
    gr_kv_layout(&e->kv, s->n_pages, s->n_seqs, m->max_context, host);
    gr_kv_plan_layout(&e->plan, &e->kv, s->max_rows, host);
    size_t page_bytes = w->dev->ops->kv_page_bytes(w->dev, m->kv_heads, m->head_dim);
    e->pool = gr_arena_push(device, (size_t)m->layers * (size_t)s->n_pages, page_bytes);

    e->state = GR_PUSH(host, struct gr_engine_state, 1);
    struct gr_engine_state measured, *st = e->state != NULL ? e->state : &measured;
    *st = (struct gr_engine_state){.max_action = s->max_action};
    st->max_queue = s->max_queue > 0 ? s->max_queue : GR_MAX(256, 16 * s->max_live);
    st->idle_ref = GR_PUSH(host, int32_t, s->n_pages);
    queue_layout(st, s->max_live, s->n_seqs, m->max_context, host);
    rows_layout(&st->rows, s->max_rows, s->n_pages, host, device);
    samples_layout(&st->samples, w, s->max_live, host, device);
    if (e->state != NULL) gr_engine_reset(e);
}

void gr_engine_reset(gr_engine* e)
{
    struct gr_engine_state* st = e->state;
    gr_kv_reset(&e->kv);
    gr_kv_set_version(&e->kv, e->w->version);
    e->n_live = st->n_done = st->n_queue = st->n_uids = 0;
    for (int i = 0; i < e->max_live; i++) st->child[i].stage = STAGE_FREE;
    for (int i = 0; i < st->max_queue; i++) st->spare[i] = &st->request[st->max_queue - 1 - i];
    memset(st->readers, 0, (size_t)e->kv.n_seqs * sizeof *st->readers);
    memset(st->orphan, 0, (size_t)e->kv.n_seqs * sizeof *st->orphan);
}

/* ---- sequences --------------------------------------------------------------------------- */

int gr_engine_open_seq(gr_engine* e) { return gr_kv_open(&e->kv); }

int gr_engine_fork_seq(gr_engine* e, int seq, int len)
{
    return gr_kv_fork(&e->kv, seq, GR_MIN(len, gr_kv_len(&e->kv, seq)));
}

void gr_engine_free_seq(gr_engine* e, int seq)
{
    struct gr_engine_state* st = e->state;
    GR_ASSERT(!st->orphan[seq], "sequence %d is freed twice", seq);
    if (st->readers[seq] > 0)
        st->orphan[seq] = true;
    else
        gr_kv_free(&e->kv, seq);
}

/* ---- the queue --------------------------------------------------------------------------- */

/* A sequence is filled by all requests on it, so one's context must begin with the other's. */
static void check_same_path(const gr_engine* e, const gr_request* r)
{
    const struct gr_engine_state* st = e->state;
    for (int i = 0; i < st->n_queue; i++) {
        const gr_request* other = &st->queue[i]->r;
        if (other->seq != r->seq || other->n_context >= e->w->config.max_context) continue;
        size_t n = (size_t)GR_MIN(r->n_context, other->n_context);
        GR_ASSERT(memcmp(st->queue[i]->context, r->context, n * sizeof *r->context) == 0,
                  "two paths on sequence %d", r->seq);
    }
}

void gr_engine_submit(gr_engine* e, const gr_request* r)
{
    struct gr_engine_state* st = e->state;
    GR_ASSERT(r->n_context > 0 && r->n_children > 0 && r->max_tokens > 0);
    GR_ASSERT(r->max_tokens <= st->max_action, "%d tokens", r->max_tokens);
    GR_ASSERT(r->n_end <= GR_END_MAX, "%d end tokens", r->n_end);
    GR_ASSERT(st->n_queue < st->max_queue, "more than %d requests", st->max_queue);
    GR_ASSERT(st->n_uids + r->n_children <= e->kv.n_seqs, "more children than sequences");
    GR_ASSERT(gr_kv_len(&e->kv, r->seq) >= 0 && !st->orphan[r->seq]);
    if (st->readers[r->seq] > 0) check_same_path(e, r);
    request* q = st->spare[st->max_queue - 1 - st->n_queue];
    int32_t* context = q->context;
    *q = (request){.r = *r, .context = context, .uid = st->uid + st->n_uids};
    q->serial = st->serial++;
    if (r->n_context < e->w->config.max_context) {
        memcpy(context, r->context, (size_t)r->n_context * sizeof *context);
    }
    memcpy(q->uid, r->uid, (size_t)r->n_children * sizeof *q->uid);
    st->n_uids += r->n_children;
    if (r->stop != NULL) {
        q->n_stop = (int)strlen(r->stop);
        GR_ASSERT(q->n_stop > 0 && q->n_stop < GR_STOP_MAX, "stop string of %d bytes", q->n_stop);
        memcpy(q->stop, r->stop, (size_t)q->n_stop);
    }
    st->readers[r->seq]++;
    st->queue[st->n_queue++] = q;
}

/* Takes a request whose children have all ended off the queue. */
static void retire(gr_engine* e, request* q)
{
    struct gr_engine_state* st = e->state;
    int at = 0;
    while (st->queue[at] != q) at++;
    memmove(st->queue + at, st->queue + at + 1, (size_t)(st->n_queue - at - 1) * sizeof(request*));
    st->n_queue--;
    st->spare[st->max_queue - 1 - st->n_queue] = q;

    int n = q->r.n_children;
    uint64_t* end = st->uid + st->n_uids;
    memmove(q->uid, q->uid + n, (size_t)(end - q->uid - n) * sizeof *end);
    st->n_uids -= n;
    for (int i = at; i < st->n_queue; i++) st->queue[i]->uid -= n;

    int seq = q->r.seq;
    if (--st->readers[seq] == 0 && st->orphan[seq]) {
        st->orphan[seq] = false;
        gr_kv_free(&e->kv, seq);
    }
}

bool gr_engine_idle(const gr_engine* e) { return e->state->n_queue == 0; }

/* ---- what becomes of it ------------------------------------------------------------------ */

static void finish(gr_engine* e, child* c, gr_stop_cause cause)
{
    struct gr_engine_state* st = e->state;
    c->stage = STAGE_DONE;
    c->cause = cause;
    st->n_done++;
    int at = 0;
    while (st->order[at] != c) at++;
    memmove(st->order + at, st->order + at + 1, (size_t)(e->n_live - at - 1) * sizeof(child*));
    e->n_live--;
    if (++c->q->n_done == c->q->r.n_children) retire(e, c->q);
}

/* Contexts that fill the model's length have nothing to sample. */
static void refuse_full_contexts(gr_engine* e)
{
    struct gr_engine_state* st = e->state;
    for (int i = 0; i < st->n_queue && gr_engine_can_start(e);) {
        request* q = st->queue[i];
        bool full = q->r.n_context >= e->w->config.max_context;
        if (full)
            finish(e, gr_engine_start_child(e, q, 0),
                   GR_STOP_CONTEXT); /* may take q off the queue */
        else
            i++;
    }
}

/* The last bytes of the text before the last token, at most n of them, at the end of
 * tail[n]; their number. */
static int text_before(const gr_tokenizer* t, const child* c, char* tail, int n)
{
    int have = 0;
    for (int i = c->n_tokens - 2; i >= 0 && have < n; i--) {
        int length;
        const char* text = gr_token_text(t, GR_MARKUP, c->token[i], &length);
        int take = GR_MIN(length, n - have);
        memcpy(tail + n - have - take, text + length - take, (size_t)take);
        have += take;
    }
    return have;
}

/* Does the stop string end in the last token? It may begin in earlier ones, and text may
 * follow it. */
static bool meets_stop(const gr_engine* e, const child* c)
{
    const request* q = c->q;
    char tail[GR_STOP_MAX];
    int length, n = q->n_stop - 1;
    if (q->n_stop == 0) return false;
    const char* text = gr_token_text(e->tokenizer, GR_MARKUP, c->token[c->n_tokens - 1], &length);
    if (length == 0) return false;
    if (memmem(text, (size_t)length, q->stop, (size_t)q->n_stop) != NULL) return true;
    int have = text_before(e->tokenizer, c, tail, n);
    for (int k = GR_MAX(1, q->n_stop - length); k <= have; k++) { /* bytes before the token */
        if (memcmp(tail + n - k, q->stop, (size_t)k) == 0 &&
            memcmp(text, q->stop + k, (size_t)(q->n_stop - k)) == 0) {
            return true;
        }
    }
    return false;
}

static bool is_end(const gr_request* r, int32_t token)
{
    for (int i = 0; i < r->n_end; i++) {
        if (r->end[i] == token) return true;
    }
    return false;
}

static void commit(gr_engine* e, child* c, int32_t token, double logp)
{
    const gr_request* r = &c->q->r;
    c->token[c->n_tokens] = token;
    c->logp[c->n_tokens++] = logp;
    e->counts.gen_tokens[r->purpose]++;
    if (is_end(r, token))
        finish(e, c, GR_STOP_TOKEN);
    else if (meets_stop(e, c))
        finish(e, c, GR_STOP_STRING);
    else if (r->n_context + c->n_tokens == e->w->config.max_context)
        finish(e, c, GR_STOP_CONTEXT);
    else if (c->n_tokens == r->max_tokens)
        finish(e, c, GR_STOP_CAP);
}

static void copy_pages(gr_engine* e)
{
    gr_dev* dev = e->w->dev;
    const gr_model_config* m = &e->w->config;
    gr_kv* kv = &e->kv;
    int32_t* pair = e->state->rows.d_pair;
    gr_dev_write(dev, pair, kv->pair, (size_t)kv->n_pairs * 2 * sizeof *pair);
    for (int i = 0, end; i < kv->n_pairs; i = end) {
        end = gr_kv_copy_run(kv, i);
        dev->ops->kv_copy(dev, e->pool, pair + 2 * i, end - i, m->layers, kv->n_pages, m->kv_heads,
                          m->head_dim);
    }
    kv->n_pairs = 0;
}

static void forward(gr_engine* e)
{
    gr_dev* dev = e->w->dev;
    const row_list* l = &e->state->rows;
    size_t bytes = (size_t)l->n * sizeof(int32_t);
    copy_pages(e);
    gr_kv_plan_make(&e->plan, &e->kv, l->seq, l->n_keys, l->n);
    gr_dev_write(dev, l->d_token, l->token, bytes);
    gr_dev_write(dev, l->d_position, l->position, bytes);
    gr_dev_write(dev, l->d_slot, l->slot, bytes);
    gr_rows rows = {.token = l->d_token,
                    .position = l->d_position,
                    .n = l->n,
                    .pages = &e->plan.plan,
                    .pool = e->pool,
                    .pool_pages = e->kv.n_pages,
                    .slot = l->d_slot};
    gr_transformer_forward(e->w, &rows, &e->acts);
    e->counts.forwards++;
    e->counts.rows += l->n;
    e->counts.pages_peak = e->kv.pages_peak;
}

static gr_status sample(gr_engine* e)
{
    const gr_weights* w = e->w;
    gr_dev* dev = w->dev;
    const sample_list* l = &e->state->samples;
    size_t n = (size_t)l->n;
    gr_dev_write(dev, l->d_src, l->src, n * sizeof *l->src);
    gr_dev_write(dev, l->d_index, l->index, n * sizeof *l->index);
    gr_dev_write(dev, l->d_uid, l->uid, n * sizeof *l->uid);
    gr_dev_write(dev, l->d_sampling, l->sampling, n * sizeof *l->sampling);
    dev->ops->head(dev, l->d_logp, NULL, l->d_token, e->acts.hidden, w->packed_head.fwd, l->d_src,
                   NULL, l->d_sampling, l->d_uid, l->d_index, l->n, w->config.width,
                   w->config.vocab, l->d_scratch);
    GR_TRY(gr_dev_sync(dev));
    gr_dev_read(dev, l->token, l->d_token, n * sizeof *l->token);
    gr_dev_read_acc(dev, l->logp, l->d_logp, l->n);
    return GR_OK;
}

gr_status gr_engine_step(gr_engine* e)
{
    struct gr_engine_state* st = e->state;
    GR_ASSERT(e->kv.version == e->w->version || e->n_live == 0, "weights changed under a child");
    gr_kv_set_version(&e->kv, e->w->version);
    refuse_full_contexts(e);
    gr_engine_gather(e);
    if (st->rows.n == 0) {
        GR_ASSERT(st->n_queue == 0 || st->n_done > 0, "no sequence is left for a child");
        return GR_OK;
    }
    forward(e);
    GR_TRY(sample(e));
    const sample_list* l = &st->samples;
    for (int i = 0; i < l->n; i++) commit(e, l->child[i], l->token[i], l->logp[i]);
    return GR_OK;
}

bool gr_engine_poll(gr_engine* e, gr_reply* out)
{
    struct gr_engine_state* st = e->state;
    child* first = NULL;
    for (int i = 0; i < e->max_live; i++) {
        child* c = &st->child[i];
        if (c->stage != STAGE_DONE) continue;
        if (first == NULL || c->serial < first->serial ||
            (c->serial == first->serial && c->ordinal < first->ordinal)) {
            first = c;
        }
    }
    if (first == NULL) return false;
    first->stage = STAGE_FREE; /* its buffers are used again by the next step at the earliest */
    st->n_done--;
    *out = (gr_reply){.tag = first->tag,
                      .child = first->ordinal,
                      .seq = first->seq,
                      .token = first->token,
                      .logp = first->logp,
                      .n_tokens = first->n_tokens,
                      .cause = first->cause,
                      .version = first->version};
    return true;
}
