#include "envs/crew.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "envs/worker.h"
#include "host/arena.h"

enum { MAX_STARTS = 3, MAX_COMPLAINTS = 20, LAST_WORDS_MS = 20 };
#define CLOSING_S 5.0 /* how long processes may take to die */

typedef struct debt { /* an answer that is owed */
    int64_t id;
    gr_op op;
    gr_claim claim;
} debt;

typedef struct debts { /* a queue: n of them from `head` on */
    debt* at;
    int64_t head, n, cap;
} debts;

typedef struct seat { /* where a process works; when it dies, the next one takes the seat */
    gr_worker* process;
    int64_t generation;
    bool greeted, lost;
    int starts;   /* since the last hello */
    double clock; /* when the first debt became the first */
    debts owes;
} seat;

struct gr_crew {
    uv_loop_t loop;
    uv_timer_t alarm; /* only wakes the loop */
    gr_remote_settings settings;
    int n_seats;
    seat* seat;
    debts orphans;      /* of processes that ended, to be told one by one */
    gr_env_error blame; /* of the first orphan; OK: it is not to blame */
    bool greeted;       /* hello and n_tasks are known */
    gr_hello hello;
    int64_t n_tasks[3];
    int64_t last_id, last_generation;
    int n_complaints;
    char why[256]; /* the latest complaint */
    gr_answer answer;
    char frame[GR_REQUEST_MAX];
};

void gr_crew_complain(gr_crew* c, const char* fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(c->why, sizeof c->why, fmt, ap);
    va_end(ap);
    c->n_complaints++;
    if (c->n_complaints <= MAX_COMPLAINTS) gr_log("remote world: %s", c->why);
    if (c->n_complaints == MAX_COMPLAINTS) gr_log("remote world: no more lines about trouble");
}

/* ---- debts ----------------------------------------------------------------------------------- */

static void push(debts* q, debt d)
{
    GR_RESERVE(q->at, q->cap, q->head + q->n + 1);
    q->at[q->head + q->n++] = d;
}

static debt pop(debts* q)
{
    debt d = q->at[q->head++];
    if (--q->n == 0) q->head = 0;
    return d;
}

void gr_crew_ask(gr_crew* c, int worker, gr_request_frame* q, gr_claim claim)
{
    seat* s = &c->seat[worker];
    q->id = ++c->last_id;
    if (s->owes.n == 0) s->clock = gr_now_s();
    push(&s->owes, (debt){q->id, q->op, claim});
    gr_worker_send(s->process, c->frame, gr_protocol_write(q, c->frame));
}

static void ask_about_world(gr_crew* c, int worker, gr_op op)
{
    gr_request_frame q = {.op = op};
    gr_crew_ask(c, worker, &q, (gr_claim){.handle = -1});
}

/* ---- birth and death ------------------------------------------------------------------------- */

static bool start(gr_crew* c, int worker)
{
    seat* s = &c->seat[worker];
    s->starts++;
    s->greeted = false;
    if (gr_worker_start(&s->process, &c->loop, c->settings.command) != GR_OK) {
        gr_crew_complain(c, "%s", gr_last_error_text());
        s->process = NULL;
        s->lost = s->starts >= MAX_STARTS;
        return false;
    }
    s->generation = ++c->last_generation;
    ask_about_world(c, worker, GR_OP_HELLO);
    return true;
}

int gr_crew_choose(gr_crew* c)
{
    for (;;) {
        int best = -1;
        for (int i = 0; i < c->n_seats; i++) {
            if (c->seat[i].lost) continue;
            if (best < 0 || c->seat[i].owes.n < c->seat[best].owes.n) best = i;
        }
        if (best < 0 || c->seat[best].process != NULL || start(c, best)) return best;
    }
}

int64_t gr_crew_generation(const gr_crew* c, int worker)
{
    return c->seat[worker].process != NULL ? c->seat[worker].generation : 0;
}

/* Ends a process. Its first debt gets the blame, unless it never even said hello. */
static void bury(gr_crew* c, seat* s, gr_env_error error)
{
    GR_ASSERT(c->orphans.n == 0, "one funeral at a time");
    gr_worker_kill(s->process);
    s->process = NULL;
    s->lost = !s->greeted && s->starts >= MAX_STARTS;
    if (s->lost) gr_crew_complain(c, "given up after %d starts without a hello", s->starts);
    c->blame = s->greeted ? error : GR_ENV_OK;
    debts empty = c->orphans;
    c->orphans = s->owes;
    s->owes = empty;
}

static void mourn(gr_crew* c, seat* s)
{
    const gr_worker* w = s->process;
    for (int ms = 0; ms < LAST_WORDS_MS && !w->exited;
         ms++) { /* its status says more than silence */
        uv_sleep(1);
        (void)uv_run(&c->loop, UV_RUN_NOWAIT);
    }
    if (w->exited && w->exit_signal != 0)
        gr_crew_complain(c, "a process was killed by signal %d", w->exit_signal);
    else if (w->exited)
        gr_crew_complain(c, "a process exited with status %d", w->exit_status);
    else
        gr_crew_complain(c, "a process closed its connection");
    bury(c, s, GR_ENV_CRASH);
}

static bool tell_orphan(gr_crew* c, gr_news* out)
{
    if (c->orphans.n == 0) return false;
    debt d = pop(&c->orphans);
    *out =
        (gr_news){.claim = d.claim, .op = d.op, .error = c->blame, .lost = c->blame == GR_ENV_OK};
    c->blame = GR_ENV_OK;
    return true;
}

/* ---- answers --------------------------------------------------------------------------------- */

/* Hello and tasks. A process that gets them wrong is of no use. */
static void learn(gr_crew* c, seat* s, gr_op op, gr_answer_kind kind)
{
    const gr_answer* a = &c->answer;
    bool hello = op == GR_OP_HELLO, good = kind == GR_ANSWER_GOOD;
    if (!good) gr_crew_complain(c, "%s: %s", hello ? "hello" : "tasks", a->reason);
    if (good && hello && c->greeted && memcmp(&c->hello, &a->hello, sizeof a->hello) != 0) {
        good = false;
        gr_crew_complain(c, "hello: not the same as the first process'");
    }
    if (!good) {
        bury(c, s, GR_ENV_PROTOCOL);
    } else if (hello) {
        c->hello = a->hello;
        s->greeted = true;
        s->starts = 0;
    } else {
        memcpy(c->n_tasks, a->n_tasks, sizeof c->n_tasks);
        c->greeted = true;
    }
}

/* One frame. True if it is news. */
static bool hear(gr_crew* c, seat* s, const char* body, size_t n, gr_news* out)
{
    if (s->owes.n == 0) {
        gr_crew_complain(c, "an answer that nobody asked for");
        bury(c, s, GR_ENV_PROTOCOL);
        return false;
    }
    const debt* first = &s->owes.at[s->owes.head];
    gr_answer_kind kind = gr_protocol_read(body, n, first->op, first->id, &c->hello, &c->answer);
    if (kind == GR_ANSWER_NONSENSE) {
        gr_crew_complain(c, "%s", c->answer.reason);
        bury(c, s, GR_ENV_PROTOCOL);
        return false;
    }
    debt d = pop(&s->owes);
    s->clock = gr_now_s();
    if (d.op == GR_OP_HELLO || d.op == GR_OP_TASKS) {
        learn(c, s, d.op, kind);
        return false;
    }
    *out = (gr_news){.claim = d.claim, .op = d.op, .obs = &c->answer.obs};
    if (kind == GR_ANSWER_GOOD) return true;
    out->error = kind == GR_ANSWER_REFUSED ? GR_ENV_REFUSED : GR_ENV_PROTOCOL;
    out->obs = NULL;
    gr_crew_complain(c, "%s", c->answer.reason);
    return true;
}

/* Reads what has come from one process, as far as the first news or its end. */
static bool listen_to(gr_crew* c, seat* s, gr_news* out)
{
    while (s->process != NULL) {
        const char* body = NULL;
        size_t n = 0;
        switch (gr_worker_take(s->process, &body, &n)) {
        case GR_FRAME_WHOLE:
            if (hear(c, s, body, n, out)) return true;
            break;
        case GR_FRAME_BAD:
            gr_crew_complain(c, "a frame of %zu bytes", n);
            bury(c, s, GR_ENV_PROTOCOL);
            break;
        case GR_FRAME_PARTIAL:
            s->process->fresh = false;
            if (!s->process->ended) return false;
            mourn(c, s);
        }
    }
    return tell_orphan(c, out);
}

/* ---- time ------------------------------------------------------------------------------------ */

static double due(const gr_crew* c, const seat* s)
{
    if (s->process == NULL || s->owes.n == 0) return HUGE_VAL;
    bool starts = s->owes.at[s->owes.head].op <= GR_OP_TASKS;
    return s->clock + (starts ? c->settings.start_deadline_s : c->settings.deadline_s);
}

/* Ends one worker that is late, if any. Only when nothing that was sent is left unread: the answer
 * may have come long ago, while the caller was busy with other things. */
static bool enforce_deadline(gr_crew* c, gr_news* out)
{
    for (int i = 0; i < c->n_seats; i++) {
        seat* s = &c->seat[i];
        if (due(c, s) > gr_now_s()) continue;
        gr_crew_complain(c, "no answer within %g s",
                         s->greeted ? c->settings.deadline_s : c->settings.start_deadline_s);
        bury(c, s, GR_ENV_TIMEOUT);
        return tell_orphan(c, out);
    }
    return false;
}

static bool anything_fresh(const gr_crew* c)
{
    for (int i = 0; i < c->n_seats; i++) {
        if (c->seat[i].process != NULL && c->seat[i].process->fresh) return true;
    }
    return false;
}

static void on_alarm(uv_timer_t* t) { (void)t; }

/* Sleeps until something comes or a deadline is reached. False if there is nothing to wait for. */
static bool sleep_on(gr_crew* c)
{
    double next = HUGE_VAL;
    for (int i = 0; i < c->n_seats; i++) next = fmin(next, due(c, &c->seat[i]));
    if (!isfinite(next)) return false;
    double wait_ms = 1000 * fmax(next - gr_now_s(), 0);
    uv_update_time(&c->loop);
    (void)uv_timer_start(&c->alarm, on_alarm, (uint64_t)wait_ms + 1, 0);
    (void)uv_run(&c->loop, UV_RUN_ONCE);
    (void)uv_timer_stop(&c->alarm);
    return true;
}

bool gr_crew_next(gr_crew* c, bool wait, gr_news* out)
{
    for (;;) {
        if (tell_orphan(c, out)) return true;
        for (int i = 0; i < c->n_seats; i++) {
            if (listen_to(c, &c->seat[i], out)) return true;
        }
        (void)uv_run(&c->loop, UV_RUN_NOWAIT);
        if (anything_fresh(c)) continue;
        if (enforce_deadline(c, out)) return true;
        if (!wait || !sleep_on(c)) return false;
    }
}

/* ---- open and close -------------------------------------------------------------------------- */

/* The first process must say hello and name its tasks; the others start meanwhile. */
static gr_status meet(gr_crew* c)
{
    gr_news news;
    if (!start(c, 0)) return GR_FAIL(GR_EIO, "remote.command: %s", c->why);
    ask_about_world(c, 0, GR_OP_TASKS);
    for (int i = 1; i < c->n_seats; i++) (void)start(c, i);
    while (c->seat[0].process != NULL && !c->greeted) {
        if (!gr_crew_next(c, true, &news)) break;
    }
    if (!c->greeted) return GR_FAIL(GR_EIO, "remote.command: %s", c->why);
    return GR_OK;
}

gr_status gr_crew_open(gr_crew** out, const gr_remote_settings* s)
{
    gr_crew* c = calloc(1, sizeof *c);
    seat* seats = calloc((size_t)s->workers, sizeof *seats);
    if (c == NULL || seats == NULL || uv_loop_init(&c->loop) != 0) {
        free(c);
        free(seats);
        return GR_FAIL(GR_ENOMEM, "remote: no event loop");
    }
    /* Writing to a process that has just died must be an error code, not the end of this one. */
    struct sigaction on_pipe;
    (void)sigaction(SIGPIPE, NULL, &on_pipe);
    if (on_pipe.sa_handler == SIG_DFL) (void)signal(SIGPIPE, SIG_IGN);
    (void)uv_timer_init(&c->loop, &c->alarm);
    c->settings = *s;
    c->n_seats = (int)s->workers;
    c->seat = seats;
    gr_status st = meet(c);
    if (st == GR_OK)
        *out = c;
    else
        gr_crew_close(c, NULL);
    return st;
}

static void drop_debts(debts* q, void (*drop)(void* at))
{
    while (q->n > 0) {
        debt d = pop(q);
        if (drop != NULL) drop(d.claim.at);
    }
    free(q->at);
}

void gr_crew_close(gr_crew* c, void (*drop)(void* at))
{
    if (c == NULL) return;
    for (int i = 0; i < c->n_seats; i++) {
        if (c->seat[i].process != NULL) gr_worker_kill(c->seat[i].process);
        drop_debts(&c->seat[i].owes, drop);
    }
    drop_debts(&c->orphans, drop);
    uv_close((uv_handle_t*)&c->alarm, NULL);
    double until = gr_now_s() + CLOSING_S;
    while (uv_run(&c->loop, UV_RUN_NOWAIT) != 0 && gr_now_s() < until) uv_sleep(1);
    free(c->seat);
    if (uv_loop_close(&c->loop) == 0)
        free(c);
    else /* its handle still points here */
        gr_log("remote world: a process does not die");
}

const gr_hello* gr_crew_hello(const gr_crew* c) { return &c->hello; }
int64_t gr_crew_n_tasks(const gr_crew* c, gr_split split) { return c->n_tasks[split]; }
