/* env.c - handles: one view of worlds in this process and of worlds that answer later.
 *
 * Owns the states of in-process worlds, one block per handle, and the requests that no poll has
 * answered yet. An in-process request is carried out when it is polled, so there is one observation
 * to keep, whatever is in flight. Nothing allocates after gr_envs_open. */
#include "envs/env.h"

#include <stdlib.h>
#include <string.h>

typedef enum request { NO_REQUEST, RESET, STEP } request;

typedef struct handle {
    bool used;
    request request; /* in flight */
    uint64_t tag;
    gr_split split; /* of a reset */
    int64_t task;
    uint64_t key;
    int n_action; /* of a step; its text is in gr_envs.action */
} handle;

struct gr_envs {
    gr_world world;
    void* self;
    int max_handles, n_free, in_flight;
    handle* handle; /* max_handles */
    int32_t* free;  /* stack of n_free handles: what is freed last is used first */
    int32_t* queue; /* ring of max_handles: in-process requests in order */
    int queue_head, queue_size;
    size_t state_bytes, action_bytes;
    char* state;  /* (max_handles, state_bytes) */
    char* action; /* (max_handles, action_bytes) */
    gr_obs obs;   /* its text: (obs_cap + 1) */
};

const char* gr_env_error_name(gr_env_error error)
{
    static const char* const name[GR_N_ENV_ERRORS] = {
        [GR_ENV_OK] = "ok",           [GR_ENV_TIMEOUT] = "timeout",
        [GR_ENV_CRASH] = "crash",     [GR_ENV_PROTOCOL] = "protocol",
        [GR_ENV_REFUSED] = "refused",
    };
    return name[error];
}

static gr_status allocate(gr_envs* e)
{
    size_t n = (size_t)e->max_handles;
    size_t state = e->world.async ? 0 : e->world.state_bytes(e->self);
    e->state_bytes = (state + 15) & ~(size_t)15; /* states may hold anything malloc could */
    e->action_bytes = (size_t)e->world.action_cap + 1;
    e->handle = calloc(n, sizeof *e->handle);
    e->free = calloc(n, sizeof *e->free);
    e->queue = calloc(n, sizeof *e->queue);
    e->state = calloc(n, GR_MAX(e->state_bytes, 1));
    e->action = calloc(n, e->action_bytes);
    e->obs.text = calloc((size_t)e->world.obs_cap + 1, 1);
    if (!e->handle || !e->free || !e->queue || !e->state || !e->action || !e->obs.text) {
        return GR_FAIL(GR_ENOMEM, "%s: %d states of %zu bytes are not to be had", e->world.name,
                       e->max_handles, e->state_bytes);
    }
    while (e->n_free < e->max_handles) {
        e->free[e->n_free] = e->max_handles - 1 - e->n_free;
        e->n_free++;
    }
    return GR_OK;
}

gr_status gr_envs_open(gr_envs** out, const gr_world* world, const void* settings, int max_handles)
{
    gr_status st = GR_OK;
    gr_envs* e = calloc(1, sizeof *e);
    if (e == NULL) return GR_FAIL(GR_ENOMEM, "%s: out of memory", world->name);
    e->world = *world;
    e->max_handles = max_handles;
    GR_GOTO(st, world->open(&e->self, settings), out);
    if (world->describe != NULL) world->describe(e->self, &e->world);
    GR_GOTO(st, allocate(e), out);
    *out = e;
    return GR_OK;
out:
    gr_envs_close(e);
    return st;
}

void gr_envs_close(gr_envs* e)
{
    if (e == NULL) return;
    if (e->self != NULL) e->world.close(e->self);
    free(e->handle);
    free(e->free);
    free(e->queue);
    free(e->state);
    free(e->action);
    free(e->obs.text);
    free(e);
}

int64_t gr_envs_n_tasks(gr_envs* e, gr_split split) { return e->world.n_tasks(e->self, split); }
int gr_envs_horizon(gr_envs* e) { return e->world.horizon(e->self); }
const gr_world* gr_envs_world(const gr_envs* e) { return &e->world; }
int gr_envs_in_flight(const gr_envs* e) { return e->in_flight; }
int gr_envs_free_handles(const gr_envs* e) { return e->n_free; }
void* gr_envs_self(gr_envs* e) { return e->self; }

static void* state_of(gr_envs* e, int h) { return e->state + (size_t)h * e->state_bytes; }
static char* action_of(gr_envs* e, int h) { return e->action + (size_t)h * e->action_bytes; }

static handle* used(gr_envs* e, int h)
{
    GR_ASSERT(h >= 0 && h < e->max_handles && e->handle[h].used, "handle %d", h);
    return &e->handle[h];
}

static handle* idle(gr_envs* e, int h)
{
    handle* p = used(e, h);
    GR_ASSERT(p->request == NO_REQUEST, "handle %d has a request in flight", h);
    return p;
}

void* gr_envs_state(gr_envs* e, int h)
{
    (void)used(e, h);
    return e->world.async ? NULL : state_of(e, h);
}

static int take(gr_envs* e)
{
    if (e->n_free == 0) return -1;
    int h = e->free[--e->n_free];
    e->handle[h] = (handle){.used = true};
    return h;
}

static void begin(gr_envs* e, int h, request what, uint64_t tag)
{
    e->handle[h].request = what;
    e->handle[h].tag = tag;
    e->in_flight++;
    if (e->world.async != NULL) return;
    e->queue[(e->queue_head + e->queue_size++) % e->max_handles] = h;
}

int gr_envs_reset(gr_envs* e, gr_split split, int64_t task, uint64_t key, uint64_t tag)
{
    int h = take(e);
    if (h < 0) return -1;
    e->handle[h].split = split;
    e->handle[h].task = task;
    e->handle[h].key = key;
    begin(e, h, RESET, tag);
    if (e->world.async != NULL) e->world.async->reset(e->self, h, split, task, key);
    return h;
}

void gr_envs_step(gr_envs* e, int h, const char* action, int n_action, uint64_t tag)
{
    handle* p = idle(e, h);
    p->n_action = GR_MIN(n_action, e->world.action_cap + 1);
    memcpy(action_of(e, h), action, (size_t)p->n_action);
    begin(e, h, STEP, tag);
    if (e->world.async != NULL) e->world.async->step(e->self, h, action_of(e, h), p->n_action);
}

int gr_envs_fork(gr_envs* e, int src, uint64_t key)
{
    (void)idle(e, src);
    int dst = take(e);
    if (dst < 0) return -1;
    if (e->world.async != NULL) {
        e->world.async->fork(e->self, dst, src, key);
    } else {
        e->world.fork(e->self, state_of(e, dst), state_of(e, src), key);
    }
    return dst;
}

void gr_envs_judge(gr_envs* e, const int* h, int n, double* out)
{
    for (int i = 0; i < n; i++) (void)idle(e, h[i]);
    e->world.async->judge(e->self, h, n, out);
}

/* Takes a handle's request out of the ring, keeping the order of the others. */
static void dequeue(gr_envs* e, int h)
{
    int kept = 0;
    for (int i = 0; i < e->queue_size; i++) {
        int32_t at = e->queue[(e->queue_head + i) % e->max_handles];
        if (at != h) e->queue[(e->queue_head + kept++) % e->max_handles] = at;
    }
    e->queue_size = kept;
}

void gr_envs_free(gr_envs* e, int h)
{
    handle* p = used(e, h);
    if (p->request != NO_REQUEST) {
        e->in_flight--;
        if (e->world.async == NULL) dequeue(e, h);
    }
    if (e->world.async != NULL) e->world.async->release(e->self, h);
    p->used = false;
    e->free[e->n_free++] = h;
}

/* Carries out the oldest in-process request; returns its handle or -1. */
static int carry_out(gr_envs* e)
{
    if (e->queue_size == 0) return -1;
    int h = e->queue[e->queue_head];
    e->queue_head = (e->queue_head + 1) % e->max_handles;
    e->queue_size--;
    const handle* p = &e->handle[h];
    if (p->request == RESET) {
        e->world.reset(e->self, state_of(e, h), p->split, p->task, p->key, &e->obs);
    } else {
        e->world.step(e->self, state_of(e, h), action_of(e, h), p->n_action, &e->obs);
    }
    return h;
}

bool gr_envs_poll(gr_envs* e, gr_env_reply* out, bool wait)
{
    gr_env_error error = GR_ENV_OK;
    const gr_obs* obs = &e->obs;
    int h = e->world.async ? e->world.async->poll(e->self, wait, &error, &obs) : carry_out(e);
    if (h < 0) return false;
    if (error != GR_ENV_OK) {
        e->obs = (gr_obs){.text = e->obs.text};
        e->obs.text[0] = 0;
        obs = &e->obs;
    }
    handle* p = used(e, h);
    p->request = NO_REQUEST;
    e->in_flight--;
    *out = (gr_env_reply){.tag = p->tag, .handle = h, .error = error, .obs = obs};
    return true;
}
