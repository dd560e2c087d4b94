/* remote.c - a world in other processes: episodes that can be forked and that outlive their
 * process.
 *
 * A handle's state is a `moment`: the way to reach it, as a chain of reset, steps and forks that
 * handles share. An `episode` is such a state alive in a worker process. Forks are lazy: handles in
 * the same state share one episode until one of them steps, and the last one takes it over, so a
 * chain of forks and steps costs no more than its steps. Whenever no episode fits (a fork in a
 * world that cannot fork, a process that died) the chain is played again on a fresh episode, and
 * every answer is compared with the first time's. */
#include "envs/remote.h"

#include <stdlib.h>
#include <string.h>

#include "envs/crew.h"
#include "host/arena.h"

#define S gr_remote_settings
static const gr_setting settings[] = {
    GR_SET_TEXT(S, command, "", "command line of the world, run by /bin/sh"),
    GR_SET_INT(S, workers, 1, 256, 2, "processes that share the episodes"),
    GR_SET_REAL(S, deadline_s, 0.01, 86400, 60, "seconds until an answer must have come"),
    GR_SET_REAL(S, start_deadline_s, 0.01, 86400, 120, "the same for a process that starts"),
};
static const gr_block block = GR_BLOCK(S, "remote", "env.name=remote", settings);
#undef S

typedef struct moment {
    struct moment* before; /* owned reference; NULL: a reset */
    int64_t refs;
    gr_op op;
    bool answered;
    uint64_t digest; /* of the answer, once answered */
    gr_split split;
    int64_t task;
    uint64_t key;
    int n_action;
    char action[];
} moment;

typedef struct episode {
    int64_t refs; /* handles with this state */
    int worker;
    int64_t generation; /* of the worker's process; if it has another one, the episode is gone */
    int64_t id;
    const moment* at; /* kept alive by the handles */
} episode;

typedef struct play { /* what is known of a handle */
    moment* at;       /* NULL: not in use */
    episode* episode; /* NULL: none, or none any more */
    bool busy;
    uint64_t serial; /* of its latest request; news of earlier ones are not for it */
} play;

typedef struct failure { /* known, but not yet polled */
    int handle;
    uint64_t serial;
    gr_env_error error;
} failure;

typedef struct remote {
    gr_crew* crew;
    play* play; /* by handle */
    int64_t n_plays;
    int in_flight;
    uint64_t last_serial;
    int64_t last_episode;
    failure* failure;
    int64_t n_failures, cap_failures;
    moment** way; /* scratch */
    int64_t cap_way;
} remote;

/* ---- moments --------------------------------------------------------------------------------- */

static moment* moment_new(gr_op op, moment* before, int n_action)
{
    moment* m = calloc(1, sizeof *m + (size_t)n_action);
    GR_ASSERT(m != NULL, "out of memory");
    m->op = op;
    m->refs = 1;
    m->n_action = n_action;
    m->before = before;
    return m;
}

static moment* keep(moment* m)
{
    if (m != NULL) m->refs++;
    return m;
}

static void forget(void* at)
{
    moment* m = at;
    while (m != NULL && --m->refs == 0) {
        moment* before = m->before;
        free(m);
        m = before;
    }
}

/* ---- episodes -------------------------------------------------------------------------------- */

static bool alive(const remote* r, const episode* e)
{
    return gr_crew_generation(r->crew, e->worker) == e->generation;
}

static episode* episode_new(remote* r, int worker)
{
    episode* e = calloc(1, sizeof *e);
    GR_ASSERT(e != NULL, "out of memory");
    e->refs = 1;
    e->worker = worker;
    e->generation = gr_crew_generation(r->crew, worker);
    e->id = ++r->last_episode;
    return e;
}

static void leave(remote* r, episode* e)
{
    if (e == NULL || --e->refs > 0) return;
    if (alive(r, e)) {
        gr_request_frame q = {.op = GR_OP_CLOSE, .episode = e->id};
        gr_crew_ask(r->crew, e->worker, &q, (gr_claim){.handle = -1});
    }
    free(e);
}

static gr_claim claim(const remote* r, int handle, moment* at)
{
    return (gr_claim){.handle = handle, .serial = r->play[handle].serial, .at = keep(at)};
}

/* A copy of an episode for this handle, which gives up its share in the old one. */
static episode* split(remote* r, int handle, episode* e, uint64_t key)
{
    episode* copy = episode_new(r, e->worker);
    gr_request_frame q = {.op = GR_OP_FORK, .episode = e->id, .to = copy->id, .key = key};
    gr_crew_ask(r->crew, e->worker, &q, claim(r, handle, NULL));
    leave(r, e);
    return copy;
}

static void ask(remote* r, int handle, const episode* e, moment* m)
{
    gr_request_frame q = {
        .op = m->op,
        .episode = e->id,
        .split = m->split,
        .task = m->task,
        .key = m->key,
        .action = m->action,
        .n_action = m->n_action,
    };
    gr_crew_ask(r->crew, e->worker, &q, claim(r, handle, m));
}

static void fail(remote* r, int handle, gr_env_error error)
{
    play* p = &r->play[handle];
    leave(r, p->episode);
    p->episode = NULL;
    p->serial = ++r->last_serial;
    GR_RESERVE(r->failure, r->cap_failures, r->n_failures + 1);
    r->failure[r->n_failures++] = (failure){handle, p->serial, error};
}

/* Moments from the handle's state back to that of `e` (NULL: to the start), the newest first. */
static int64_t way_back(remote* r, moment* from, const episode* e)
{
    const moment* to = e != NULL ? e->at : NULL;
    int64_t n = 0;
    for (moment* m = from; m != to; m = m->before) {
        GR_RESERVE(r->way, r->cap_way, n + 1);
        r->way[n++] = m;
    }
    return n;
}

/* Asks for all that leads to the handle's state, on an episode that no other handle shares. */
static void bring(remote* r, int handle)
{
    play* p = &r->play[handle];
    episode* e = p->episode;
    p->episode = NULL;
    p->serial = ++r->last_serial;
    if (e != NULL && (!alive(r, e) || (e->refs > 1 && !gr_crew_hello(r->crew)->fork))) {
        leave(r, e);
        e = NULL;
    }
    int64_t n = way_back(r, p->at, e);
    if (e == NULL) {
        int worker = gr_crew_choose(r->crew);
        if (worker < 0) {
            fail(r, handle, GR_ENV_CRASH);
            return;
        }
        e = episode_new(r, worker);
    } else if (e->refs > 1 && r->way[n - 1]->op != GR_OP_FORK) {
        e = split(r, handle, e, 0);
    }
    while (n-- > 0) {
        if (r->way[n]->op == GR_OP_FORK)
            e = split(r, handle, e, r->way[n]->key);
        else
            ask(r, handle, e, r->way[n]);
    }
    e->at = p->at;
    p->episode = e;
}

/* ---- news ------------------------------------------------------------------------------------ */

static uint64_t digest_of(const gr_obs* o)
{
    uint64_t h = gr_hash64(o->text, (size_t)o->n_text, o->hash);
    h = gr_hash64(o->signal, sizeof o->signal, h);
    h = gr_hash64(&o->reward, sizeof o->reward, h);
    return gr_key_join(h, (uint64_t)o->end << 2 | (uint64_t)o->success << 1 | (uint64_t)o->valid);
}

/* False if this moment was answered otherwise before. */
static bool is_repeatable(moment* m, const gr_obs* o)
{
    uint64_t digest = digest_of(o);
    bool same = !m->answered || m->digest == digest;
    m->answered = true;
    m->digest = digest;
    return same;
}

/* Takes in news about a handle's latest request. True if it is the answer that its poll waits
 * for. */
static bool settle(remote* r, gr_news* news)
{
    const gr_claim* c = &news->claim;
    if (news->lost) {
        bring(r, c->handle);
        return false;
    }
    if (news->error == GR_ENV_OK && c->at != NULL && !is_repeatable(c->at, news->obs)) {
        gr_crew_complain(r->crew, "the same actions were answered otherwise before");
        news->error = GR_ENV_PROTOCOL;
    }
    if (news->error != GR_ENV_OK) {
        fail(r, c->handle, news->error);
        return false;
    }
    return c->at == r->play[c->handle].at; /* else a step of the way */
}

static bool is_awaited(const remote* r, const gr_claim* c)
{
    return c->handle >= 0 && r->play[c->handle].busy && r->play[c->handle].serial == c->serial;
}

/* The oldest failure that is still awaited: its handle, or -1. */
static int next_failure(remote* r, gr_env_error* error)
{
    while (r->n_failures > 0) {
        failure f = r->failure[0];
        memmove(r->failure, r->failure + 1, (size_t)--r->n_failures * sizeof *r->failure);
        if (r->play[f.handle].serial != f.serial) continue;
        *error = f.error;
        return f.handle;
    }
    return -1;
}

static int next_settled(remote* r, bool wait, gr_env_error* error, const gr_obs** obs)
{
    gr_news news;
    for (;;) {
        int handle = next_failure(r, error);
        if (handle >= 0) return handle;
        if (!gr_crew_next(r->crew, wait, &news)) return -1;
        bool settled = is_awaited(r, &news.claim) && settle(r, &news);
        forget(news.claim.at);
        *obs = news.obs;
        if (settled) return news.claim.handle;
    }
}

static int remote_poll(void* self, bool wait, gr_env_error* error, const gr_obs** obs)
{
    remote* r = self;
    *error = GR_ENV_OK;
    wait = wait && r->in_flight > 0;
    int handle = next_settled(r, wait, error, obs);
    GR_ASSERT(handle >= 0 || !wait, "%d requests in flight, but nothing is owed", r->in_flight);
    if (handle < 0) return -1;
    r->play[handle].busy = false;
    r->in_flight--;
    return handle;
}

/* ---- requests -------------------------------------------------------------------------------- */

/* The handle's state becomes `at`, whose reference it takes over; what it held is let go. */
static void go(remote* r, int handle, moment* at)
{
    r->play[handle].at = at;
    r->play[handle].busy = true;
    r->in_flight++;
    bring(r, handle);
}

static void remote_reset(void* self, int handle, gr_split split, int64_t task, uint64_t key)
{
    remote* r = self;
    GR_RESERVE(r->play, r->n_plays, handle + 1);
    moment* m = moment_new(GR_OP_RESET, NULL, 0);
    m->split = split;
    m->task = task;
    m->key = key;
    go(r, handle, m);
}

static void remote_step(void* self, int handle, const char* action, int n_action)
{
    remote* r = self;
    moment* m = moment_new(GR_OP_STEP, r->play[handle].at, n_action); /* takes the reference over */
    memcpy(m->action, action, (size_t)n_action);
    go(r, handle, m);
}

static void remote_fork(void* self, int dst, int src, uint64_t key)
{
    remote* r = self;
    GR_RESERVE(r->play, r->n_plays, dst + 1);
    play* d = &r->play[dst];
    d->at = keep(r->play[src].at);
    d->episode = r->play[src].episode;
    if (d->episode != NULL) d->episode->refs++;
    if (key == 0 || !gr_crew_hello(r->crew)->fork) return;
    d->at = moment_new(GR_OP_FORK, d->at, 0);
    d->at->key = key;
}

static void remote_release(void* self, int handle)
{
    remote* r = self;
    play* p = &r->play[handle];
    r->in_flight -= p->busy;
    leave(r, p->episode);
    forget(p->at);
    *p = (play){.serial = ++r->last_serial};
}

/* ---- the world ------------------------------------------------------------------------------- */

static gr_status remote_open(void** self, const void* values)
{
    const gr_remote_settings* s = values;
    if (s->command[0] == 0) return GR_FAIL(GR_EARG, "remote.command: empty");
    remote* r = calloc(1, sizeof *r);
    if (r == NULL) return GR_FAIL(GR_ENOMEM, "remote: out of memory");
    gr_status st = gr_crew_open(&r->crew, s);
    if (st == GR_OK)
        *self = r;
    else
        free(r);
    return st;
}

static void remote_close(void* self)
{
    remote* r = self;
    for (int64_t i = 0; i < r->n_plays; i++) {
        play* p = &r->play[i];
        if (p->episode != NULL && --p->episode->refs == 0) free(p->episode);
        forget(p->at);
    }
    gr_crew_close(r->crew, forget);
    free(r->play);
    free(r->failure);
    free(r->way);
    free(r);
}

static void remote_describe(void* self, gr_world* facts)
{
    const gr_hello* h = gr_crew_hello(((remote*)self)->crew);
    facts->prompt = h->prompt;
    facts->stop = h->stop;
    facts->action_cap = h->action_cap;
    facts->obs_cap = h->text_max;
    facts->n_signals = h->n_signals;
    for (int i = 0; i < h->n_signals; i++) facts->signal[i] = h->signal[i];
}

static int64_t remote_n_tasks(void* self, gr_split split)
{
    return gr_crew_n_tasks(((remote*)self)->crew, split);
}

static int remote_horizon(void* self) { return gr_crew_hello(((remote*)self)->crew)->horizon; }

static const gr_async async = {
    .reset = remote_reset,
    .step = remote_step,
    .fork = remote_fork,
    .release = remote_release,
    .poll = remote_poll,
};

const gr_world gr_world_remote = {
    .name = "remote",
    .block = &block,
    .prompt = "",
    .stop = "\n",
    .action_cap = 1,
    .open = remote_open,
    .close = remote_close,
    .describe = remote_describe,
    .n_tasks = remote_n_tasks,
    .horizon = remote_horizon,
    .async = &async,
};
