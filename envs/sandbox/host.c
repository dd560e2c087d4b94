#include "envs/sandbox/host.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "envs/sandbox/place.h"
#include "envs/sandbox/task.h"

enum { WATCH_MS = 100, ENTRY = 4096, MIB = 1 << 20, STEP = 16 * MIB, HASH_S = 600, CLOSING_S = 15 };

typedef struct box { /* a sandbox */
    struct box* next;
    void* owner; /* NULL: ended, but its command has not */
    int64_t number;
    int64_t group; /* number of its control group, of no other sandbox ever */
    bool grouped;
    gr_stack files;
    char *at, *work;
    char** read; /* NULL-terminated */
    struct job* job;
    const char* lost; /* why it takes no more commands; NULL: it does */
} box;

typedef struct job {  /* a command that waits or runs */
    struct job* next; /* of those that wait */
    box* box;
    gr_wire_request request;
    char* input; /* owned copy */
    gr_task* task;
    int64_t kills; /* of the group before it */
} job;

struct gr_host {
    uv_loop_t* loop;
    gr_host_answer answer;
    gr_sandbox_settings limits;
    gr_wire_hello hello;
    gr_place place;
    gr_layers layers;
    gr_groups groups;
    struct sock_fprog filter;
    int self; /* pidfd of this process */
    uv_timer_t watch;
    box* box;
    job *first, *last; /* that wait */
    int64_t n_boxes, n_running, next_group, seen_bytes;
};

/* ---- answers --------------------------------------------------------------------------------- */

static gr_sandbox_reply reply_to(const gr_wire_request* r)
{
    return (gr_sandbox_reply){.request = r->id, .op = r->op, .sandbox = r->sandbox};
}

static void refuse(gr_host* h, void* owner, const gr_wire_request* r, gr_sandbox_class error,
                   const char* reason)
{
    gr_sandbox_reply a = reply_to(r);
    a.error = error;
    (void)snprintf(a.reason, sizeof a.reason, "%s", reason);
    if (owner != NULL) h->answer(owner, &a);
}

/* A refusal in the words of the last error. */
static void refuse_for(gr_host* h, void* owner, const gr_wire_request* r, gr_status st)
{
    refuse(h, owner, r, st == GR_EARG ? GR_SANDBOX_REFUSED : GR_SANDBOX_BROKEN,
           gr_last_error_text());
}

static void agree(gr_host* h, void* owner, const gr_wire_request* r)
{
    gr_sandbox_reply a = reply_to(r);
    h->answer(owner, &a);
}

/* ---- sandboxes ------------------------------------------------------------------------------- */

static box* find(gr_host* h, void* owner, int64_t number)
{
    for (box* b = h->box; b != NULL; b = b->next) {
        if (b->owner == owner && b->number == number) return b;
    }
    return NULL;
}

static void free_texts(char** list)
{
    for (int i = 0; list != NULL && list[i] != NULL; i++) free(list[i]);
    free(list);
}

static char** copy_texts(const char* const* list)
{
    int n = 0;
    if (list == NULL) return NULL;
    while (list[n] != NULL) n++;
    char** copy = calloc((size_t)n + 1, sizeof *copy);
    GR_ASSERT(copy != NULL, "out of memory");
    for (int i = 0; i < n; i++) {
        copy[i] = strdup(list[i]);
        GR_ASSERT(copy[i] != NULL, "out of memory");
    }
    return copy;
}

static box* add_box(gr_host* h, void* owner, int64_t number, const gr_stack* files,
                    const gr_sandbox_tree* tree)
{
    box* b = calloc(1, sizeof *b);
    GR_ASSERT(b != NULL, "out of memory");
    *b = (box){.next = h->box,
               .owner = owner,
               .number = number,
               .group = ++h->next_group,
               .files = *files,
               .at = strdup(tree->at),
               .work = strdup(tree->work != NULL ? tree->work : tree->at),
               .read = copy_texts(tree->read)};
    GR_ASSERT(b->at != NULL && b->work != NULL, "out of memory");
    h->box = b;
    h->n_boxes++;
    return b;
}

static void free_box(gr_host* h, box* b)
{
    for (box** link = &h->box; *link != NULL; link = &(*link)->next) {
        if (*link != b) continue;
        *link = b->next;
        break;
    }
    gr_layers_drop(&h->layers, &b->files);
    if (b->grouped) gr_group_remove(&h->groups, b->group);
    free_texts(b->read);
    free(b->at);
    free(b->work);
    free(b);
    h->n_boxes--;
}

/* Is there room for one more, of that number? Else refuses. */
static bool may_add(gr_host* h, void* owner, const gr_wire_request* r, int64_t number)
{
    char text[80];
    if (find(h, owner, number) != NULL) {
        refuse(h, owner, r, GR_SANDBOX_REFUSED, "a sandbox of that number is there already");
        return false;
    }
    if (h->n_boxes < h->limits.live) return true;
    (void)snprintf(text, sizeof text, "%lld sandboxes are live", (long long)h->n_boxes);
    refuse(h, owner, r, GR_SANDBOX_FULL, text);
    return false;
}

static gr_status create(gr_host* h, void* owner, const gr_wire_request* r)
{
    gr_stack files;
    bool whole = strcmp(r->tree.at, "/") == 0;
    struct stat s;
    if (!whole) GR_TRY(gr_skeleton_place(r->tree.at));
    for (int i = 0; r->tree.read != NULL && r->tree.read[i] != NULL; i++) {
        const char* path = r->tree.read[i];
        if (stat(path, &s) != 0 || !S_ISDIR(s.st_mode)) {
            return GR_FAIL(GR_EARG, "%.200s: no folder", path);
        }
        if (!whole) GR_TRY(gr_skeleton_place(path));
    }
    GR_TRY(gr_layers_new(&h->layers, &files, r->tree.tree));
    (void)add_box(h, owner, r->sandbox, &files, &r->tree);
    return GR_OK;
}

static gr_status fork_box(gr_host* h, void* owner, const gr_wire_request* r, box* from)
{
    gr_stack files;
    GR_TRY(gr_layers_fork(&h->layers, &from->files, &files));
    const gr_sandbox_tree tree = {
        .at = from->at, .work = from->work, .read = (const char* const*)(uintptr_t)from->read};
    box* b = add_box(h, owner, r->to, &files, &tree);
    b->lost = from->lost;
    return GR_OK;
}

/* ---- commands -------------------------------------------------------------------------------- */

static void free_job(job* j)
{
    gr_wire_free_request(&j->request);
    free(j->input);
    free(j);
}

static gr_confinement confinement_of(gr_host* h, const box* b, const gr_wire_request* r)
{
    gr_confinement c = {
        .as_root = h->place.as_root,
        .overlay = h->layers.overlay,
        .owner = h->layers.owner,
        .filter = &h->filter,
        .groups = &h->groups,
        .limits = &h->limits,
        .at = b->at,
        .work = b->work,
        .read = (const char* const*)(uintptr_t)b->read,
        .argv = r->command.argv,
        .env = r->command.env,
        .cwd = r->command.cwd,
        .helper = h->self,
    };
    if (h->layers.overlay) {
        gr_layers_options(&h->layers, &b->files, "tree", c.tree);
        gr_layers_options(&h->layers, &b->files, "rest", c.rest);
    } else {
        gr_layers_copy(&b->files, "tree", c.tree);
        gr_layers_copy(&b->files, "rest", c.rest);
    }
    return c;
}

/* What a command did beyond exiting. */
static gr_sandbox_cause judge(gr_host* h, box* b, const job* j)
{
    gr_sandbox_cause cause = j->task->cause;
    if (cause == GR_SANDBOX_STUCK) b->lost = "a command in it could not be ended";
    if (cause == GR_SANDBOX_STUCK) return cause;
    if (gr_layers_size(&h->layers, &b->files) > h->limits.disk_mb * MIB) {
        b->lost = "its files exceed disk_mb";
        return GR_SANDBOX_DISK;
    }
    bool killed = b->grouped && gr_group_kills(&h->groups, b->group) > j->kills;
    return cause == GR_SANDBOX_EXITED && killed ? GR_SANDBOX_MEMORY : cause;
}

static void report_hash(gr_host* h, job* j, gr_sandbox_reply* a)
{
    const char* text = a->output;
    bool good = a->cause == GR_SANDBOX_EXITED && a->code == 0 && a->n_output == 16;
    char hex[17] = "";
    if (good) memcpy(hex, text, 16);
    a->hash = strtoull(hex, NULL, 16);
    if (good)
        h->answer(j->box->owner, a);
    else
        refuse(h, j->box->owner, &j->request, GR_SANDBOX_BROKEN, "the hash did not come");
}

static void report(gr_host* h, job* j)
{
    gr_sandbox_reply a = reply_to(&j->request);
    const char* head;
    int64_t n = gr_task_head(j->task, &head);
    char* output = malloc((size_t)(n + j->task->tail_cap) + 1);
    GR_ASSERT(output != NULL, "out of memory");
    memcpy(output, head, (size_t)n);
    a.n_head = (size_t)n;
    a.n_output = (size_t)(n + gr_task_tail(j->task, output + n));
    a.output = output;
    a.cause = judge(h, j->box, j);
    a.code = j->task->code;
    a.seconds = j->task->seconds;
    a.n_all = j->task->n_all;
    if (j->box->owner != NULL && a.op == GR_SANDBOX_HASH) report_hash(h, j, &a);
    if (j->box->owner != NULL && a.op == GR_SANDBOX_RUN) h->answer(j->box->owner, &a);
    free(output);
}

static void start_waiting(gr_host* h);

static void command_done(gr_task* t, gr_status st)
{
    job* j = t->owner;
    box* b = j->box;
    gr_host* h = t->deadline.loop->data;
    if (st == GR_OK)
        report(h, j);
    else
        refuse_for(h, b->owner, &j->request, st);
    gr_task_free(t);
    free_job(j);
    b->job = NULL;
    if (b->owner == NULL) free_box(h, b);
    h->n_running--;
    start_waiting(h);
}

static gr_status start(gr_host* h, job* j)
{
    static const gr_sandbox_command hashing = {.time_s = HASH_S, .head = 16};
    box* b = j->box;
    if (!b->grouped) GR_TRY(gr_group_make(&h->groups, b->group, &h->limits));
    b->grouped = true;
    gr_confinement c = confinement_of(h, b, &j->request);
    const gr_sandbox_command* command =
        j->request.op == GR_SANDBOX_HASH ? &hashing : &j->request.command;
    j->kills = gr_group_kills(&h->groups, b->group);
    return gr_task_start(&j->task, h->loop, &c, b->group, command, command_done, j);
}

static void watch_files(uv_timer_t* timer);

static void start_waiting(gr_host* h)
{
    while (h->first != NULL && h->n_running < h->limits.running) {
        job* j = h->first;
        h->first = j->next;
        if (h->first == NULL) h->last = NULL;
        gr_status st = start(h, j);
        if (st == GR_OK) {
            h->n_running++;
        } else {
            box* b = j->box;
            refuse_for(h, b->owner, &j->request, st);
            b->job = NULL;
            free_job(j);
        }
    }
    if (h->n_running > 0 && !uv_is_active((uv_handle_t*)&h->watch)) {
        (void)uv_timer_start(&h->watch, watch_files, WATCH_MS, WATCH_MS);
    }
}

/* Takes the request over. */
static void enqueue(gr_host* h, box* b, gr_wire_request* r)
{
    job* j = calloc(1, sizeof *j);
    GR_ASSERT(j != NULL, "out of memory");
    j->box = b;
    j->request = *r;
    r->json = NULL;
    memset(r->list, 0, sizeof r->list);
    if (j->request.command.input != NULL) { /* it lies in the connection's buffer */
        j->input = malloc(j->request.command.n_input + 1);
        GR_ASSERT(j->input != NULL, "out of memory");
        memcpy(j->input, j->request.command.input, j->request.command.n_input);
        j->request.command.input = j->input;
    }
    b->job = j;
    if (h->last != NULL)
        h->last->next = j;
    else
        h->first = j;
    h->last = j;
    start_waiting(h);
}

static void unqueue(gr_host* h, job* j)
{
    job* before = NULL;
    for (job* at = h->first; at != NULL; before = at, at = at->next) {
        if (at != j) continue;
        if (before != NULL)
            before->next = j->next;
        else
            h->first = j->next;
        if (h->last == j) h->last = before;
        return;
    }
}

/* Ends a sandbox: at once, or when its command has ended. */
static void end_box(gr_host* h, box* b)
{
    job* j = b->job;
    if (j != NULL) refuse(h, b->owner, &j->request, GR_SANDBOX_GONE, "the sandbox was closed");
    b->owner = NULL;
    if (j != NULL && j->task != NULL) {
        gr_task_kill(j->task, GR_SANDBOX_EXITED);
        return;
    }
    if (j != NULL) {
        unqueue(h, j);
        free_job(j);
    }
    free_box(h, b);
}

/* ---- files that grow too much ---------------------------------------------------------------- */

/* While commands run: when the store has filled up by a step, whoever is over its share is ended
 * before it takes the room of the others. */
static void watch_files(uv_timer_t* timer)
{
    gr_host* h = timer->data;
    struct statfs s;
    if (h->n_running == 0) (void)uv_timer_stop(timer);
    if (fstatfs(h->place.store, &s) != 0) return;
    int64_t used = (int64_t)(s.f_blocks - s.f_bfree) * (int64_t)s.f_bsize +
                   (int64_t)(s.f_files - s.f_ffree) * ENTRY; /* empty files take room, too */
    bool tight = s.f_bfree < s.f_blocks / 4 || s.f_ffree < s.f_files / 4;
    h->seen_bytes = GR_MIN(h->seen_bytes, used);
    if (used < h->seen_bytes + STEP && !tight) return;
    h->seen_bytes = used;
    for (box* b = h->box; b != NULL; b = b->next) {
        if (b->job == NULL || b->job->task == NULL) continue;
        if (gr_layers_size(&h->layers, &b->files) <= h->limits.disk_mb * MIB) continue;
        gr_task_kill(b->job->task, GR_SANDBOX_DISK);
    }
}

/* ---- requests -------------------------------------------------------------------------------- */

void gr_host_ask(gr_host* h, void* owner, gr_wire_request* r)
{
    gr_status st = GR_OK;
    box* b = find(h, owner, r->sandbox);
    bool runs = r->op == GR_SANDBOX_RUN || r->op == GR_SANDBOX_HASH;
    if (r->op == GR_SANDBOX_CREATE) {
        if (may_add(h, owner, r, r->sandbox)) {
            st = create(h, owner, r);
            if (st == GR_OK) agree(h, owner, r);
        }
    } else if (b == NULL) {
        refuse(h, owner, r, GR_SANDBOX_REFUSED, "there is no sandbox of that number");
    } else if (r->op == GR_SANDBOX_CLOSE) {
        end_box(h, b);
        agree(h, owner, r);
    } else if (b->job != NULL) {
        refuse(h, owner, r, GR_SANDBOX_REFUSED, "the sandbox is busy");
    } else if (runs && b->lost != NULL) {
        refuse(h, owner, r, GR_SANDBOX_REFUSED, b->lost);
    } else if (runs) {
        enqueue(h, b, r);
    } else if (may_add(h, owner, r, r->to)) {
        st = fork_box(h, owner, r, b);
        if (st == GR_OK) agree(h, owner, r);
    }
    if (st != GR_OK) refuse_for(h, owner, r, st);
    gr_wire_free_request(r);
}

void gr_host_forget(gr_host* h, void* owner)
{
    for (box *b = h->box, *next; b != NULL; b = next) {
        next = b->next;
        if (b->owner != owner) continue;
        b->owner = NULL; /* hears nothing more */
        end_box(h, b);
    }
}

/* ---- open and close -------------------------------------------------------------------------- */

static void describe(gr_host* h, const char* files, const char* groups)
{
    gr_wire_hello* o = &h->hello;
    (void)snprintf(o->mode, sizeof o->mode, "%s", h->place.as_root ? "root" : "user");
    (void)snprintf(o->trees, sizeof o->trees, "%s", h->layers.overlay ? "overlay" : "copies");
    (void)snprintf(o->groups, sizeof o->groups, "%s",
                   h->groups.version == 0   ? "none"
                   : h->groups.version == 1 ? "v1"
                                            : "v2");
    (void)snprintf(o->notice, sizeof o->notice, "%s%s%s", files, files[0] && groups[0] ? "; " : "",
                   groups);
}

static gr_status prepare(gr_host* h)
{
    char files[200] = "", groups[200] = "";
    h->self = (int)syscall(SYS_pidfd_open, getpid(), 0);
    if (h->self < 0) return GR_FAIL(GR_EIO, "sandbox: pidfd: %s", strerror(errno));
    GR_TRY(gr_place_open(&h->place, &h->limits));
    gr_groups_open(&h->groups, "/proc/self/mounts", h->limits.cgroup, h->place.name, groups,
                   sizeof groups);
    GR_TRY(gr_layers_open(&h->layers, h->place.store, h->place.as_root, files, sizeof files));
    GR_TRY(gr_skeleton_make());
    GR_TRY(gr_filter_compile(&h->filter));
    describe(h, files, groups);
    return GR_OK;
}

static void release(gr_host* h)
{
    gr_groups_close(&h->groups);
    if (h->place.folder[0] != 0) gr_place_close(&h->place);
    if (h->self >= 0) (void)close(h->self);
    free(h->filter.filter);
    free(h);
}

gr_status gr_host_open(gr_host** out, uv_loop_t* loop, const gr_sandbox_settings* limits,
                       gr_host_answer answer)
{
    gr_host* h = calloc(1, sizeof *h);
    GR_ASSERT(h != NULL, "out of memory");
    h->loop = loop;
    h->limits = *limits;
    h->answer = answer;
    h->self = -1;
    if (h->limits.running == 0) h->limits.running = GR_MAX(1, sysconf(_SC_NPROCESSORS_ONLN));
    loop->data = h;
    gr_status st = prepare(h);
    if (st != GR_OK) {
        release(h);
        return st;
    }
    (void)uv_timer_init(loop, &h->watch);
    h->watch.data = h;
    *out = h;
    return GR_OK;
}

void gr_host_close(gr_host* h)
{
    if (h == NULL) return;
    for (box *b = h->box, *next; b != NULL; b = next) {
        next = b->next;
        if (b->owner == NULL) continue; /* on its way */
        b->owner = NULL;
        end_box(h, b);
    }
    double until = gr_now_s() + CLOSING_S;
    while (h->box != NULL && gr_now_s() < until) (void)uv_run(h->loop, UV_RUN_ONCE);
    uv_close((uv_handle_t*)&h->watch, NULL);
    (void)uv_run(h->loop, UV_RUN_NOWAIT);
    release(h);
}

const gr_wire_hello* gr_host_hello(const gr_host* h) { return &h->hello; }

bool gr_host_same_limits(const gr_host* h, const gr_sandbox_settings* s)
{
    const gr_sandbox_settings* l = &h->limits;
    return l->live == s->live && (s->running == 0 || l->running == s->running) &&
           l->memory_mb == s->memory_mb && l->pids == s->pids && l->cpus == s->cpus &&
           l->disk_mb == s->disk_mb && l->space_mb == s->space_mb && l->output_mb == s->output_mb &&
           strcmp(l->sandbox_dir, s->sandbox_dir) == 0 && strcmp(l->cgroup, s->cgroup) == 0;
}
