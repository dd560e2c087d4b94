/* Sampling: what a child gets depends on its uid, its context and the weights alone; its log-probs are
 * those of the training forward, bit for bit. */
#include <stdio.h>

#include "model/engine.h"
#include "tests/allocations.h"
#include "tests/net.h"

/* ---- an engine with its network -------------------------------------------------------------------- */

enum { CONTEXT = 96, VOCAB = 37, PLENTY = 2000, TINY = CONTEXT / GR_PAGE + 2 };

typedef struct rig {
    net t;
    gr_arena host, device;
    gr_engine e;
} rig;

static const gr_engine_settings wide = {
    .max_live = 64, .max_rows = 512, .n_pages = PLENTY, .n_seqs = 600, .max_action = CONTEXT};

static gr_engine_settings sized(int max_live, int max_rows, int n_pages)
{
    gr_engine_settings s = wide;
    s.max_live = max_live, s.max_rows = max_rows, s.n_pages = n_pages;
    return s;
}

static void rig_open(rig* g, gr_dtype dtype, int threads, const gr_engine_settings* s)
{
    memset(g, 0, sizeof *g);
    gr_model_config c = small_config();
    c.max_context = CONTEXT;
    c.vocab = VOCAB;
    net_open(
        &g->t,
        &(net_options){
            .config = c, .dtype = dtype, .threads = threads, .eval = true, .max_tokens = CONTEXT});
    net_randomise(&g->t, 3, 0.4);
    gr_engine_layout(&g->e, &g->t.w, s, &g->host, &g->device);
    net_take(&g->t, &g->host, true);
    net_take(&g->t, &g->device, false);
    memset(g->host.base, 0x5a, g->host.cap); /* arenas need not be clear */
    gr_engine_layout(&g->e, &g->t.w, s, &g->host, &g->device);
    assert_int_equal(g->host.used, g->host.cap);
    assert_int_equal(g->device.used, g->device.cap);
}

static void rig_close(rig* g)
{
    free(g->host.base);
    gr_dev_free(&g->t.dev, g->device.base);
    net_close(&g->t);
}

static void step(rig* g)
{
    ASSERT_OK(gr_engine_step(&g->e));
    gr_kv_check(&g->e.kv);
    assert_int_equal(g->e.kv.n_pairs, 0);
}

/* ---- a conversation ---------------------------------------------------------------------------------
 * Requests answer each other like the turns of a few trees. Which requests there are, what they say
 * and who draws with which key follows from node numbers; the order in which they come and when
 * sequences are given back follows from another key. */

enum { ROOTS = 9, FAN = 3, JOBS = ROOTS * (1 + FAN + FAN * FAN) };

typedef struct job {
    bool exists, submitted;
    int number, depth, seq, n_context, n_children, n_replies, serial;
    int32_t context[CONTEXT];
    gr_sampling sampling;
    char stop[4];
    int max_tokens;
    bool given_back;
} job;

typedef struct action {
    int n;
    int32_t token[CONTEXT];
    double logp[CONTEXT];
    gr_stop_cause cause;
} action;

typedef struct talk {
    job job[JOBS];
    action action[JOBS * FAN];
    int n_ready, ready[JOBS];
} talk;

static uint64_t job_key(int number) { return gr_key_join(71, (uint64_t)number); }
static uint64_t child_key(int number, int child)
{
    return gr_key_join(job_key(number), (uint64_t)child);
}

static void add_words(job* j, rng* r, int n)
{
    for (int i = 0; i < n && j->n_context < CONTEXT; i++) {
        j->context[j->n_context++] = below(r, VOCAB);
    }
}

static void decide(talk* k, job* j, rng* r)
{
    static const float temperature[] = {0.6f, 1.0f, 1.4f};
    j->exists = true;
    j->n_children = 1 + below(r, FAN);
    j->sampling = (gr_sampling){.temperature = temperature[below(r, 3)], .top_p = 1};
    j->sampling.greedy = below(r, 6) == 0;
    if (below(r, 4) == 0) j->sampling.top_k = 5;
    if (below(r, 4) == 0) j->sampling.top_p = 0.9f;
    j->max_tokens = 1 + below(r, 24);
    for (int i = 0, n = below(r, 2) + below(r, 2); i < n; i++)
        j->stop[i] = (char)(1 + below(r, VOCAB - 1));
    k->ready[k->n_ready++] = j->number;
}

/* Roots come in threes on one sequence: two with the same context and one with a longer one. */
static void open_roots(rig* g, talk* k)
{
    int seq = -1;
    for (int i = 0; i < ROOTS; i++) {
        job* j = &k->job[i];
        rng r = {.key = job_key(i)};
        if (i % 3 == 0) {
            seq = gr_engine_open_seq(&g->e);
            add_words(j, &r, 1 + below(&r, 50));
        } else {
            *j = j[-1];
            if (i % 3 == 2) add_words(j, &r, 1 + below(&r, 20));
        }
        j->number = i;
        j->seq = seq;
        decide(k, j, &r);
    }
}

/* The turn after an action: goes on from its end, or branches off inside it, or starts afresh. */
static void answer(rig* g, talk* k, const job* from, const gr_reply* a)
{
    int number = ROOTS + from->number * FAN + a->child;
    if (from->depth == 2 || a->cause == GR_STOP_CONTEXT) {
        gr_engine_free_seq(&g->e, a->seq);
        return;
    }
    rng r = {.key = job_key(number)};
    job* j = &k->job[number];
    *j = (job){.number = number, .depth = from->depth + 1, .seq = a->seq};
    j->n_context = from->n_context + a->n_tokens;
    memcpy(j->context, from->context, (size_t)from->n_context * sizeof *j->context);
    memcpy(j->context + from->n_context, a->token, (size_t)a->n_tokens * sizeof *a->token);
    int way = below(&r, 6);
    if (way == 0) {
        j->n_context = 1 + below(&r, j->n_context);
        j->seq = gr_engine_fork_seq(&g->e, a->seq, j->n_context);
        gr_engine_free_seq(&g->e, a->seq);
    } else if (way == 1) {
        gr_engine_free_seq(&g->e, a->seq);
        j->seq = gr_engine_open_seq(&g->e);
    }
    add_words(j, &r, way == 2 ? CONTEXT : below(&r, 20)); /* 2: a path as long as the model's */
    decide(k, j, &r);
}

static void submit(rig* g, talk* k, int at, int serial)
{
    job* j = &k->job[k->ready[at]];
    k->ready[at] = k->ready[--k->n_ready];
    uint64_t uid[FAN];
    for (int i = 0; i < j->n_children; i++) uid[i] = child_key(j->number, i);
    gr_engine_submit(&g->e, &(gr_request){.tag = (uint64_t)j->number,
                                          .seq = j->seq,
                                          .context = j->context,
                                          .n_context = j->n_context,
                                          .n_children = j->n_children,
                                          .uid = uid,
                                          .sampling = j->sampling,
                                          .stop = j->stop[0] != 0 ? j->stop : NULL,
                                          .max_tokens = j->max_tokens,
                                          .purpose = GR_FOR_EVAL});
    j->serial = serial;
    j->submitted = true;
    memset(uid, 0, sizeof uid); /* requests are copied */
}

/* The first of the jobs whose sequence this is. */
static job* owner_of(talk* k, const job* j)
{
    return j->depth == 0 ? &k->job[j->number / 3 * 3] : &k->job[j->number];
}

/* A context may be given back while children still read it, but not before all its requests came. */
static void give_back(rig* g, talk* k, const job* j, rng* order, int* n_early)
{
    job* owner = owner_of(k, j);
    int n_jobs = j->depth == 0 ? 3 : 1, n_done = 0;
    for (int i = 0; i < n_jobs; i++) {
        if (!owner[i].submitted) return;
        n_done += owner[i].n_replies == owner[i].n_children;
    }
    if (owner->given_back || (n_done < n_jobs && below(order, 2) == 0)) return;
    gr_engine_free_seq(&g->e, j->seq);
    owner->given_back = true;
    *n_early += n_done < n_jobs;
}

static void hear(rig* g, talk* k, rng* order, int* n_early)
{
    gr_reply a;
    int64_t last = -1;
    while (gr_engine_poll(&g->e, &a)) {
        job* j = &k->job[a.tag];
        int64_t place = (int64_t)j->serial * FAN + a.child;
        assert_true(place > last); /* in order of submission */
        last = place;
        assert_true(a.version == g->t.w.version);
        action* x = &k->action[j->number * FAN + a.child];
        *x = (action){.n = a.n_tokens, .cause = a.cause};
        memcpy(x->token, a.token, (size_t)a.n_tokens * sizeof *x->token);
        memcpy(x->logp, a.logp, (size_t)a.n_tokens * sizeof *x->logp);
        j->n_replies++;
        answer(g, k, j, &a);
        give_back(g, k, j, order, n_early);
    }
}

/* Talks to the end. */
static talk* converse(rig* g, uint64_t order_key)
{
    talk* k = calloc(1, sizeof *k);
    rng order = {.key = order_key};
    int serial = 0, n_early = 0;
    gr_engine_counts before = g->e.counts, *c = &g->e.counts;
    open_roots(g, k);
    while (k->n_ready > 0 || !gr_engine_idle(&g->e)) {
        int n = order_key == 0 ? k->n_ready : below(&order, k->n_ready + 1);
        while (n-- > 0) submit(g, k, below(&order, k->n_ready), serial++);
        step(g);
        hear(g, k, &order, &n_early);
    }
    assert_true(n_early > 0 && g->e.n_live == 0);
    assert_int_equal(g->e.kv.n_free_seq, g->e.kv.n_seqs);
    int64_t n = 0, n_decoded = 0; /* an action's last token is not forwarded */
    for (int i = 0; i < JOBS * FAN; i++) {
        n += k->action[i].n;
        n_decoded += GR_MAX(0, k->action[i].n - 1);
    }
    assert_int_equal(c->gen_tokens[GR_FOR_EVAL] - before.gen_tokens[GR_FOR_EVAL], n);
    assert_int_equal(c->rows - before.rows, c->prefill_tokens - before.prefill_tokens + n_decoded);
    return k;
}

static void assert_same_actions(const talk* a, const talk* b)
{
    for (int i = 0; i < JOBS * FAN; i++) {
        const action *x = &a->action[i], *y = &b->action[i];
        assert_int_equal(x->n, y->n);
        assert_int_equal(x->cause, y->cause);
        assert_memory_equal(x->token, y->token, (size_t)x->n * sizeof *x->token);
        assert_memory_equal(x->logp, y->logp, (size_t)x->n * sizeof *x->logp);
    }
}

/* ---- the same in any batch -------------------------------------------------------------------------- */

static void actions_do_not_depend_on_the_batch(gr_dtype dtype)
{
    static const struct {
        int max_live, max_rows, n_pages, threads;
    } c[] = {
        {64, 512, PLENTY, 1}, {1, 512, PLENTY, 2},   {3, 64, PLENTY, 2}, {64, 5, PLENTY, 2},
        {1, 1, TINY, 1},      {3, 5, TINY, 2},       {64, 512, TINY, 2}, {64, 5, TINY + 5, 2},
        {8, 64, 2 * TINY, 1}, {64, 64, 4 * TINY, 2},
    };
    rig g;
    rig_open(&g, dtype, 2, &wide);
    talk* base = converse(&g, 0);
    int n = 0, stops = 0, limits = 0, full = 0;
    for (int i = 0; i < JOBS * FAN; i++) {
        const action* x = &base->action[i];
        n += x->n;
        stops += x->n > 0 && x->cause == GR_STOP_STRING;
        limits += x->n > 0 && x->cause == GR_STOP_CONTEXT;
    }
    for (int i = 0; i < JOBS; i++) full += base->job[i].exists && base->job[i].n_context == CONTEXT;
    assert_true(n > 500 && stops > 5 && limits > 3 && full > 0); /* the talk has everything */
    rig_close(&g);
    int64_t evictions = 0;
    for (int i = 0; i < GR_COUNT(c); i++) {
        gr_engine_settings s = sized(c[i].max_live, c[i].max_rows, c[i].n_pages);
        rig_open(&g, dtype, c[i].threads, &s);
        talk* k = converse(&g, (uint64_t)(i + 1));
        assert_same_actions(base, k);
        assert_true(g.e.counts.pages_peak <= c[i].n_pages);
        if (c[i].n_pages == PLENTY)
            assert_int_equal(g.e.counts.evictions, 0);
        else
            assert_true(g.e.counts.evictions > 0);
        evictions += g.e.counts.evictions;
        free(k);
        rig_close(&g);
    }
    print_message("%d tokens, %d stops, %d at the context limit, %lld evictions\n", n, stops,
                  limits, (long long)evictions);
    free(base);
}

static void actions_do_not_depend_on_the_batch_f32(void** state)
{
    (void)state;
    actions_do_not_depend_on_the_batch(GR_F32);
}
static void actions_do_not_depend_on_the_batch_bf16(void** state)
{
    (void)state;
    actions_do_not_depend_on_the_batch(GR_BF16);
}

/* ---- the same as in training ------------------------------------------------------------------------ */

/* The training forward over a whole path: its log-probs, and the tokens that its hidden rows give
 * under (uid, ordinal). */
static void assert_as_in_training(rig* g, const job* j, int child, const action* x)
{
    forest* f = forest_new();
    gr_dev* dev = &g->t.dev;
    const gr_weights* w = &g->t.w;
    double logp[CONTEXT], scratch_logp[CONTEXT];
    int32_t token[CONTEXT], index[CONTEXT];
    uint64_t uid[CONTEXT];
    gr_sampling sampling[CONTEXT];
    int last = -1;
    for (int i = 0; i < j->n_context; i++) last = forest_add(f, last, j->context[i], false);
    for (int i = 0; i < x->n; i++) {
        last = forest_add(f, last, x->token[i], true);
        uid[i] = child_key(j->number, child), index[i] = i, sampling[i] = j->sampling;
    }
    ASSERT_OK(gr_objective_logp(&g->t.o, &f->b, j->sampling.temperature, logp));
    assert_memory_equal(logp, x->logp, (size_t)x->n * sizeof *logp);
    dev->ops->head(dev, scratch_logp, NULL, token, g->t.o.acts.hidden, w->packed_head.fwd, f->src,
                   NULL, sampling, uid, index, x->n, w->config.width, VOCAB, g->t.o.scratch);
    ASSERT_OK(gr_dev_sync(dev));
    assert_memory_equal(token, x->token, (size_t)x->n * sizeof *token);
    free(f);
}

static void actions_are_those_of_the_training_forward(void** state)
{
    (void)state;
    const gr_dtype dtypes[] = {GR_F32, GR_BF16, GR_F64};
    for (int i = 0; i < GR_COUNT(dtypes); i++) {
        rig g;
        gr_engine_settings s = sized(16, 40, 3 * TINY);
        rig_open(&g, dtypes[i], 2, &s);
        talk* k = converse(&g, 5);
        for (int a = 0; a < JOBS * FAN; a++) {
            if (k->action[a].n == 0) continue;
            assert_as_in_training(&g, &k->job[a / FAN], a % FAN, &k->action[a]);
        }
        free(k);
        rig_close(&g);
    }
}

static void new_weights_forget_all_pages(void** state)
{
    (void)state;
    rig g, fresh;
    rig_open(&g, GR_F32, 2, &wide);
    rig_open(&fresh, GR_F32, 2, &wide);
    talk* old = converse(&g, 1);
    net_randomise(&g.t, 4, 0.5);
    net_randomise(&fresh.t, 4, 0.5);
    gr_engine_reset(&g.e);
    assert_int_equal(g.e.kv.n_free, PLENTY);
    gr_engine_reset(&fresh.e);
    talk *k = converse(&g, 2), *other = converse(&fresh, 3);
    assert_same_actions(k, other);
    bool same = true;
    for (int i = 0; i < JOBS * FAN; i++) same &= k->action[i].n == old->action[i].n;
    assert_false(same);
    free(old);
    free(k);
    free(other);
    rig_close(&g);
    rig_close(&fresh);
}

static void reset_drops_what_is_under_way(void** state)
{
    (void)state;
    rig g;
    gr_engine_settings s = sized(4, 30, 40);
    rig_open(&g, GR_F32, 1, &s);
    talk* whole = converse(&g, 0);
    gr_engine_reset(&g.e);
    for (int i = 1; i < 12; i++) {
        talk* k = calloc(1, sizeof *k);
        open_roots(&g, k);
        while (k->n_ready > 0) submit(&g, k, 0, 0);
        for (int n = 0; n < i; n++) step(&g);
        free(k);
        gr_engine_reset(&g.e);
        gr_reply a;
        assert_true(gr_engine_idle(&g.e) && !gr_engine_poll(&g.e, &a));
        assert_int_equal(g.e.kv.n_free, 40);
    }
    talk* again = converse(&g, 7);
    assert_same_actions(whole, again);
    free(whole);
    free(again);
    rig_close(&g);
}

/* ---- single requests -------------------------------------------------------------------------------- */

typedef struct ask {
    int seq, n_context, n_children, max_tokens;
    int32_t context[CONTEXT];
    const char* stop;
    int32_t end; /* 0: none */
    uint64_t key;
} ask;

static ask ask_new(rig* g, uint64_t key, int n_context, int n_children, int max_tokens)
{
    ask q = {.seq = gr_engine_open_seq(&g->e),
             .n_context = n_context,
             .n_children = n_children,
             .max_tokens = max_tokens,
             .key = key};
    rng r = {.key = key};
    for (int i = 0; i < n_context; i++) q.context[i] = below(&r, VOCAB);
    return q;
}

static void ask_submit(rig* g, const ask* q)
{
    uint64_t uid[64];
    for (int i = 0; i < q->n_children; i++) uid[i] = gr_key_join(q->key, (uint64_t)i);
    gr_engine_submit(&g->e, &(gr_request){.seq = q->seq,
                                          .context = q->context,
                                          .n_context = q->n_context,
                                          .n_children = q->n_children,
                                          .uid = uid,
                                          .sampling = {.temperature = 1, .top_p = 1},
                                          .stop = q->stop,
                                          .end = {q->end},
                                          .n_end = q->end > 0,
                                          .max_tokens = q->max_tokens});
}

/* Runs to the end; replies in order of children into `out`. */
static void ask_all(rig* g, const ask* q, action* out)
{
    ask_submit(g, q);
    while (!gr_engine_idle(&g->e)) {
        step(g);
        gr_reply a;
        while (gr_engine_poll(&g->e, &a)) {
            out[a.child] = (action){.n = a.n_tokens, .cause = a.cause};
            memcpy(out[a.child].token, a.token, (size_t)a.n_tokens * sizeof *a.token);
            memcpy(out[a.child].logp, a.logp, (size_t)a.n_tokens * sizeof *a.logp);
            if (a.n_tokens > 0) {
                assert_int_equal(gr_kv_len(&g->e.kv, a.seq), q->n_context + a.n_tokens - 1);
            }
            gr_engine_free_seq(&g->e, a.seq);
        }
    }
}

static void children_share_one_prefill(void** state)
{
    (void)state;
    enum { K = 8, N = 40, MORE = 5 };
    action out[K];
    rig g;
    rig_open(&g, GR_F32, 1, &wide);
    gr_engine_counts* c = &g.e.counts;
    ask q = ask_new(&g, 1, N, K, 10);
    ask_all(&g, &q, out);
    assert_int_equal(c->prefill_tokens, N);
    assert_int_equal(c->shared_tokens, (K - 1) * N);
    assert_int_equal(c->gen_tokens[GR_FOR_TRAIN], K * 10);
    assert_int_equal(c->forwards, 10);
    assert_int_equal(c->rows, N + K * 9); /* a child's last token is not forwarded */
    assert_int_equal(gr_kv_len(&g.e.kv, q.seq), N);

    /* a longer path on the same sequence forwards what is new; the same path again one token */
    q.n_context = N + MORE;
    ask_all(&g, &q, out);
    assert_int_equal(c->prefill_tokens, N + MORE);
    ask_all(&g, &q, out);
    assert_int_equal(c->prefill_tokens, N + MORE + 1);
    assert_int_equal(c->prefill_tokens + c->shared_tokens, K * (N + 2 * (N + MORE)));

    /* a fork of an inner prefix */
    ask inner = q;
    inner.seq = gr_engine_fork_seq(&g.e, q.seq, 21);
    inner.n_context = 30;
    inner.context[21] = (inner.context[21] + 1) % VOCAB;
    int64_t before = c->prefill_tokens;
    ask_all(&g, &inner, out);
    assert_int_equal(c->prefill_tokens - before, 9);
    ask alone = inner;
    action same[K];
    alone.seq = gr_engine_open_seq(&g.e);
    ask_all(&g, &alone, same);
    for (int i = 0; i < K; i++) assert_memory_equal(&out[i], &same[i], sizeof out[i]);
    rig_close(&g);
}

/* With places for two of eight children, each further pair reads the last context token again; two
 * requests on one context share a forward. */
static void late_children_read_one_token(void** state)
{
    (void)state;
    enum { K = 8, N = 33 };
    action out[K];
    rig g;
    gr_engine_settings s = sized(2, 10, PLENTY);
    rig_open(&g, GR_F32, 1, &s);
    ask q = ask_new(&g, 2, N, K, 4);
    ask_all(&g, &q, out);
    assert_int_equal(g.e.counts.prefill_tokens, N + K / 2 - 1);
    rig_close(&g);

    rig_open(&g, GR_F32, 1, &wide);
    q = ask_new(&g, 2, N, 2, 4);
    ask_submit(&g, &q);
    ask_all(&g, &q, out);
    assert_int_equal(g.e.counts.prefill_tokens, N);
    assert_int_equal(g.e.counts.shared_tokens, 3 * N);
    assert_int_equal(g.e.counts.forwards, 4);
    rig_close(&g);
}

static bool ends_at(const action* x, int n, const char* stop)
{
    int len = (int)strlen(stop);
    for (int i = 0; i < len; i++) {
        if (n < len || x->token[n - len + i] != stop[i]) return false;
    }
    return true;
}

/* A stop string ends the action at its first occurrence and changes nothing before it. */
static void stop_strings_span_tokens(void** state)
{
    (void)state;
    rig g;
    rig_open(&g, GR_F32, 1, &wide);
    rng r = {.key = 8};
    int stopped = 0;
    for (int i = 0; i < 60; i++) {
        ask q = ask_new(&g, (uint64_t)i, 1 + below(&r, 20), 2, 60);
        action free_run[2], out[2];
        char stop[6] = {0};
        ask_all(&g, &q, free_run);
        int len = 1 + below(&r, 5), at = below(&r, 40);
        for (int k = 0; k < len; k++) stop[k] = (char)free_run[0].token[at + k];
        if ((int)strlen(stop) < len) continue; /* byte 0 is not in strings */
        q.stop = stop;
        ask_all(&g, &q, out);
        for (int c = 0; c < 2; c++) {
            int n = 1;
            while (n < 60 && !ends_at(&free_run[c], n, stop)) n++;
            bool ends = ends_at(&free_run[c], n, stop);
            assert_int_equal(out[c].n, n);
            assert_int_equal(out[c].cause, ends ? GR_STOP_STRING : GR_STOP_CAP);
            assert_memory_equal(out[c].token, free_run[c].token, (size_t)n * sizeof(int32_t));
            stopped += ends && len > 1;
        }
        gr_engine_free_seq(&g.e, q.seq);
    }
    assert_true(stopped > 20);
    rig_close(&g);
}

/* A vocabulary of VOCAB short texts over {a, b, c}; the last token is special. */
static gr_tokenizer* short_texts(void)
{
    static char text[VOCAB][8];
    static gr_string token[VOCAB];
    static int32_t type[VOCAB];
    gr_tokenizer* t = NULL;
    for (int i = 0; i < VOCAB; i++) {
        int n = 0;
        for (int x = i + 1; x > 0; x = (x - 1) / 3) text[i][n++] = "abc"[(x - 1) % 3];
        token[i] = (gr_string){text[i], (size_t)n};
        type[i] = i == VOCAB - 1 ? 3 : 1;
    }
    token[VOCAB - 1] = (gr_string){"<end>", 5};
    ASSERT_OK(gr_tokenizer_from_arrays(&t, "test",
                                       &(gr_token_arrays){.model = {"gpt2", 4},
                                                          .pre = {"gpt-2", 5},
                                                          .n_tokens = VOCAB,
                                                          .token = token,
                                                          .type = type}));
    return t;
}

/* Tokens until the text of them holds `stop`; more than n: it never does. */
static int tokens_until(const gr_tokenizer* t, const action* x, int n, const char* stop)
{
    char text[CONTEXT * 8];
    for (int k = 1; k <= n; k++) {
        gr_decode(t, GR_MARKUP, x->token, k, text, (int)sizeof text);
        if (strstr(text, stop) != NULL) return k;
    }
    return n + 1;
}

/* Where tokens are texts, a stop string begins and ends anywhere in them. */
static void stop_strings_end_inside_of_tokens(void** state)
{
    (void)state;
    gr_tokenizer* t = short_texts();
    gr_engine_settings s = wide;
    s.tokenizer = t;
    rig g;
    rig_open(&g, GR_F32, 1, &s);
    rng r = {.key = 9};
    int stopped = 0, ended = 0;
    for (int i = 0; i < 60; i++) {
        ask q = ask_new(&g, (uint64_t)i, 1 + below(&r, 20), 2, 40);
        action free_run[2], out[2];
        char text[CONTEXT * 8], stop[12];
        ask_all(&g, &q, free_run);
        int n_text = gr_decode(t, GR_MARKUP, free_run[0].token, 40, text, (int)sizeof text);
        (void)snprintf(stop, sizeof stop, "%.*s", 1 + below(&r, 9), text + below(&r, n_text - 10));
        q.stop = stop;
        q.end = i % 2 == 0 ? free_run[1].token[below(&r, 40)] : 0;
        ask_all(&g, &q, out);
        for (int c = 0; c < 2; c++) {
            int n = tokens_until(t, &free_run[c], 40, stop), end = 0;
            while (end < 40 && (q.end == 0 || free_run[c].token[end] != q.end)) end++;
            assert_int_equal(out[c].n, GR_MIN(GR_MIN(n, end + 1), 40));
            assert_int_equal(out[c].cause, end < 40 && end + 1 <= n ? GR_STOP_TOKEN
                                           : n <= 40                ? GR_STOP_STRING
                                                                    : GR_STOP_CAP);
            stopped += out[c].cause == GR_STOP_STRING;
            ended += out[c].cause == GR_STOP_TOKEN;
        }
        gr_engine_free_seq(&g.e, q.seq);
    }
    assert_true(stopped > 30 && ended > 10);
    rig_close(&g);
    gr_tokenizer_free(t);
}

static void limits_end_an_action(void** state)
{
    (void)state;
    rig g;
    rig_open(&g, GR_F32, 1, &wide);
    static const struct {
        int n_context, cap, n;
        gr_stop_cause cause;
    } c[] = {
        {10, 1, 1, GR_STOP_CAP},
        {10, 7, 7, GR_STOP_CAP},
        {CONTEXT - 8, 7, 7, GR_STOP_CAP},
        {CONTEXT - 7, 7, 7, GR_STOP_CONTEXT}, /* both: the context limit ends the episode */
        {CONTEXT - 3, 7, 3, GR_STOP_CONTEXT},
        {CONTEXT - 1, 7, 1, GR_STOP_CONTEXT},
        {CONTEXT, 7, 0, GR_STOP_CONTEXT},
    };
    for (int i = 0; i < GR_COUNT(c); i++) {
        action out[3];
        ask q = ask_new(&g, (uint64_t)i, c[i].n_context, 3, c[i].cap);
        ask_all(&g, &q, out);
        for (int k = 0; k < 3; k++) {
            assert_int_equal(out[k].n, c[i].n);
            assert_int_equal(out[k].cause, c[i].cause);
        }
    }
    rig_close(&g);
}

/* One path fills the pool alone; a request of many children passes through it. */
static void the_smallest_pool_is_enough(void** state)
{
    (void)state;
    action out[6], base[6];
    rig g;
    rig_open(&g, GR_BF16, 1, &wide);
    ask q = ask_new(&g, 4, CONTEXT - 30, 6, 40);
    ask_all(&g, &q, base);
    rig_close(&g);
    gr_engine_settings s = sized(6, 9, TINY);
    rig_open(&g, GR_BF16, 1, &s);
    q.seq = gr_engine_open_seq(&g.e);
    ask_all(&g, &q, out);
    for (int i = 0; i < 6; i++) assert_memory_equal(&out[i], &base[i], sizeof out[i]);
    assert_true(g.e.counts.evictions > 0 && g.e.counts.pages_peak <= TINY);
    rig_close(&g);
}

/* ---- memory ------------------------------------------------------------------------------------------ */

static void nothing_allocates_after_the_first_step(void** state)
{
    (void)state;
    if (!COUNTS_ALLOCATIONS) skip();
    const gr_dtype dtypes[] = {GR_F32, GR_BF16};
    for (int i = 0; i < 2; i++) {
        rig g;
        gr_engine_settings s = sized(8, 40, 2 * TINY);
        rig_open(&g, dtypes[i], 2, &s);
        talk* k = calloc(1, sizeof *k);
        open_roots(&g, k);
        long before = 0;
        for (int n = 0; k->n_ready > 0 || !gr_engine_idle(&g.e); n++) {
            if (n == 1) before = allocations;
            while (k->n_ready > 0) submit(&g, k, 0, 0);
            ASSERT_OK(gr_engine_step(&g.e)); /* not step(), whose check allocates */
            gr_reply a;
            while (gr_engine_poll(&g.e, &a)) answer(&g, k, &k->job[a.tag], &a);
        }
        assert_int_equal(allocations - before, 0);
        assert_true(before > 0 && g.e.counts.evictions > 0);
        free(k);
        rig_close(&g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(actions_do_not_depend_on_the_batch_f32),
        cmocka_unit_test(actions_do_not_depend_on_the_batch_bf16),
        cmocka_unit_test(actions_are_those_of_the_training_forward),
        cmocka_unit_test(new_weights_forget_all_pages),
        cmocka_unit_test(reset_drops_what_is_under_way),
        cmocka_unit_test(children_share_one_prefill),
        cmocka_unit_test(late_children_read_one_token),
        cmocka_unit_test(stop_strings_span_tokens),
        cmocka_unit_test(stop_strings_end_inside_of_tokens),
        cmocka_unit_test(limits_end_an_action),
        cmocka_unit_test(the_smallest_pool_is_enough),
        cmocka_unit_test(nothing_allocates_after_the_first_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
