/* swebench.c - episodes on repositories.
 *
 * A turn is one command in a fresh shell, so all that an episode is lies in its files: a fork
 * is a fork of the sandbox and a copy of a small struct. A turn asks the sandbox for up to
 * three things in a row: the command, the hash of the tree, and, where that changed, what kind
 * of change it is. `submit` takes the difference to the base as the patch and grades it in
 * another, fresh sandbox. */
#include "envs/swebench/swebench.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "envs/swebench/action.h"
#include "envs/swebench/grade.h"
#include "envs/swebench/tree.h"
#include "host/arena.h"
#include "host/json.h"

#define IMAGES "docker.io/swebench"

#define S gr_swe_settings
static const gr_setting settings[] = {
    GR_SET_TEXT(S, instances, "envs/swe_tiny", "file (JSON, JSON lines) or folder of tasks"),
    GR_SET_TEXT(S, test_instances, "", "the same for the test split; empty: every fourth of them"),
    GR_SET_TEXT(S, mirrors, "",
                "folder with repositories as owner__name[.git|.bundle], or URL above owner/name"),
    GR_SET_CHOICE(S, backend, "sandbox|podman|docker|apptainer", GR_SWE_SANDBOX,
                  "base trees are repositories, or what this tool unpacks of container images"),
    GR_SET_TEXT(S, images, IMAGES, "registry and namespace of images that instances do not name"),
    GR_SET_TEXT(S, cache, "/tmp/grove-swebench", "folder where base trees are kept"),
    GR_SET_TEXT(S, setup, "", "shell lines before every command and test run"),
    GR_SET_TEXT(S, read, "", "more folders that sandboxes may read, separated by spaces"),
    GR_SET_TEXT(S, predictions, "", "file to which every patch handed in is added; empty: none"),
    GR_SET_INT(S, max_turns, 1, 1000, 50, "turns of an episode"),
    GR_SET_INT(S, output, 200, 100000, 10000,
               "bytes of a command's output, or of the issue, that are shown: head and tail"),
    GR_SET_REAL(S, fetch_s, 0.1, 86400, 1800, "seconds until a base tree must have been made"),
    GR_SET_REAL(S, command_s, 0.1, 86400, 60, "seconds of a command"),
    GR_SET_REAL(S, episode_s, 0.1, 1e6, 5400,
                "seconds of an episode's commands; one that takes longer is lost as a timeout"),
    GR_SET_REAL(S, tests_s, 1, 86400, 300, "seconds of the tests that grade"),
    GR_SANDBOX_SETTINGS(S, sandbox),
};
static const gr_block block = GR_BLOCK(S, "swebench", "env.name=swebench", settings);
#undef S

#define RECENT    10        /* turns that the signal `trouble` looks back */
#define PATCH_MAX (4 << 20) /* bytes of a patch; a larger one counts as none */
#define READ_MAX  16
#define AROUND    256 /* bytes that are shown around the output of a command */

static const char prompt[] =
    "You mend a Python repository in /testbed. Each of your turns is exactly one shell block:\n"
    "```bash\ncommand\n```\n"
    "Every block runs in a new shell in /testbed; only files last. There is no network. Look at\n"
    "the code, change it so that the issue is solved, and run the tests. Hidden tests judge; what\n"
    "you change in tests does not count. The block `submit` hands your work in.\n\nIssue:\n";

enum { OPENED, TESTED, EDITED, IMPROVED, TROUBLE, FORMAT, N_SIGNALS };

typedef enum stage {
    IDLE,
    CREATE,
    COMMAND,
    HASH,
    PROBE,
    DIFF, /* for handing in ... */
    GRADE,
    JUDGE_DIFF, /* ... and for a scorer */
    JUDGE_GRADE
} stage;

typedef struct episode {
    int64_t sandbox; /* its number; 0: none */
    int64_t grading; /* number of the sandbox that grades; 0: none */
    int64_t instance;
    stage stage;
    int turn;
    double used_s;       /* by its commands, those before a fork included */
    uint64_t tree, base; /* hashes of the tree, now and at the start */
    /* what the signals need */
    bool opened, tested, edited, improved;
    bool has_counts, stale; /* counts of the last test run; an edit came after it */
    int passed, failed;
    uint64_t recent[RECENT]; /* hashes of the last commands */
    bool bad[RECENT];        /* errored, repeated or no command */
} episode;

/* What the hidden tests have said of a tree, so that no two runs are made for one. */
typedef struct judged {
    uint64_t key; /* of instance and tree */
    double met;   /* in [0, 1]; NaN: not known */
} judged;

typedef struct answer { /* known, but not yet polled */
    int handle;
    gr_env_error error;
    gr_obs obs;
} answer;

typedef struct swebench {
    const gr_swe_settings* s;
    gr_sandbox* box;
    gr_swe_set train, test;
    char** tree;                 /* base trees by instance, train before test; NULL: not yet made */
    char setup[2 * GR_TEXT_MAX]; /* before every command and test run */
    char read_text[GR_TEXT_MAX];
    const char* read[READ_MAX + 1];
    episode* episode; /* by handle */
    gr_swe_grader** grader;
    int64_t n_episodes, cap_graders, cap_pending;
    int64_t last_sandbox;
    int in_flight;
    answer *answers, given;
    int64_t n_answers, cap_answers;
    int* owner; /* handle by sandbox number, -1: nobody waits */
    int64_t cap_owner;
    judged* judged;
    int64_t n_judged, cap_judged;
    int judging;     /* handles that a scorer waits for */
    gr_obs* pending; /* by handle: what a turn has shown so far; (obs_cap + 1) of text each */
} swebench;

/* ---- instances --------------------------------------------------------------------------- */

/* Without a test file, every fourth instance is for tests. */
static bool has_test_file(const swebench* w) { return w->s->test_instances[0] != 0; }

static int64_t swe_n_tasks(void* self, gr_split split)
{
    const swebench* w = self;
    int64_t held_out = has_test_file(w) ? w->test.n : w->train.n / 4;
    if (split == GR_WARMSTART) return 0;
    if (split == GR_TEST) return held_out;
    return has_test_file(w) ? w->train.n : w->train.n - held_out;
}

/* Position in train, then test. Of each four, the last is held out. */
static int64_t instance_of(const swebench* w, gr_split split, int64_t task)
{
    if (has_test_file(w)) return split == GR_TEST ? w->train.n + task : task;
    return split == GR_TEST ? 4 * task + 3 : task + GR_MIN(task / 3, w->train.n / 4);
}

static bool is_held_out(const swebench* w, int64_t i)
{
    return has_test_file(w) ? i >= w->train.n : i % 4 == 3;
}

static const gr_swe_instance* instance_at(const swebench* w, int64_t i)
{
    return i < w->train.n ? &w->train.instance[i] : &w->test.instance[i - w->train.n];
}

static gr_swe_sources sources(const swebench* w)
{
    return (gr_swe_sources){.backend = w->s->backend,
                            .mirrors = w->s->mirrors,
                            .images = w->s->images,
                            .cache = w->s->cache,
                            .fetch_s = w->s->fetch_s};
}

static gr_status read_instances(swebench* w)
{
    const gr_swe_sources from = sources(w);
    GR_TRY(gr_swe_read(&w->train, w->s->instances));
    if (has_test_file(w)) GR_TRY(gr_swe_read(&w->test, w->s->test_instances));
    int64_t n = w->train.n + w->test.n;
    for (int64_t i = 0; i < n; i++) {
        GR_TRY(gr_swe_check(instance_at(w, i)));
        GR_TRY(gr_swe_check_source(instance_at(w, i), &from));
    }
    w->tree = calloc((size_t)n, sizeof *w->tree);
    return w->tree == NULL ? GR_FAIL(GR_ENOMEM, "swebench: out of memory") : GR_OK;
}

static gr_status make_tree(swebench* w, int64_t i)
{
    char path[4096];
    if (w->tree[i] != NULL) return GR_OK;
    const gr_swe_sources from = sources(w);
    GR_TRY(gr_swe_tree(instance_at(w, i), &from, path));
    w->tree[i] = gr_swe_copy(path, strlen(path));
    return GR_OK;
}

static gr_sandbox_tree view(const swebench* w, int64_t i)
{
    return gr_swe_tree_view(w->s->backend, w->tree[i], w->read);
}

static gr_status split_read(swebench* w)
{
    int n = 0;
    char* rest = NULL;
    memcpy(w->read_text, w->s->read, sizeof w->read_text);
    for (char* at = strtok_r(w->read_text, " ", &rest); at != NULL;
         at = strtok_r(NULL, " ", &rest)) {
        if (at[0] != '/' || n == READ_MAX) {
            return GR_FAIL(GR_EARG, "swebench.read: at most %d absolute paths", READ_MAX);
        }
        w->read[n++] = at;
    }
    return GR_OK;
}

/* ---- asking the sandbox ------------------------------------------------------------------ */

static void own(swebench* w, int64_t sandbox, int handle)
{
    GR_RESERVE(w->owner, w->cap_owner, sandbox + 1);
    w->owner[sandbox] = handle;
}

static void run(swebench* w, int h, stage next, const char* script, int64_t keep, double time_s)
{
    episode* e = &w->episode[h];
    const char* const argv[] = {"bash", "-c", script, NULL};
    const char* const env[] = {"GIT_CONFIG_NOSYSTEM=1", "PYTHONDONTWRITEBYTECODE=1",
                               "PYTHONHASHSEED=0", "PAGER=cat", NULL};
    gr_sandbox_command c = {
        .argv = argv, .env = env, .time_s = time_s, .head = keep - keep / 2, .tail = keep / 2};
    e->stage = next;
    (void)gr_sandbox_run(w->box, e->sandbox, &c);
}

static void settle(swebench* w, int h, gr_env_error error, const gr_obs* obs)
{
    GR_RESERVE(w->answers, w->cap_answers, w->n_answers + 1);
    answer* a = &w->answers[w->n_answers++];
    a->handle = h;
    a->error = error;
    if (obs != NULL) a->obs = *obs;
    w->episode[h].stage = IDLE;
}

static gr_env_error error_of(gr_sandbox_class c)
{
    return c == GR_SANDBOX_GONE ? GR_ENV_CRASH : GR_ENV_REFUSED;
}

/* ---- what the agent is shown ------------------------------------------------------------- */

static int obs_cap(const swebench* w) { return (int)w->s->output + AROUND; }

static void say_bytes(const swebench* w, gr_obs* o, const char* bytes, size_t n)
{
    gr_swe_say(o->text, &o->n_text, obs_cap(w), bytes, n);
}

static void say(const swebench* w, gr_obs* o, const char* text)
{
    say_bytes(w, o, text, strlen(text));
}

static void end_line(const swebench* w, gr_obs* o)
{
    if (o->n_text > 0 && o->text[o->n_text - 1] != '\n') say(w, o, "\n");
}

/* What the handle's turn shows from here on, empty. */
static gr_obs* observe(swebench* w, int h)
{
    gr_obs* o = &w->pending[h];
    *o = (gr_obs){.text = o->text};
    o->text[0] = 0;
    return o;
}

/* A long issue is cut at its end. */
static void say_issue(const swebench* w, gr_obs* o, const char* problem)
{
    size_t n = strlen(problem), most = (size_t)w->s->output;
    say_bytes(w, o, problem, GR_MIN(n, most));
    if (n > most) say(w, o, "\n[the rest is left out]\n");
    end_line(w, o);
}

/* Of what an episode is: its task and its files. */
static uint64_t key_of(const episode* e) { return gr_key_join(e->tree, (uint64_t)e->instance); }

static void fill(const swebench* w, episode* e, gr_obs* o)
{
    double bad = 0;
    int seen = GR_MIN(e->turn, RECENT);
    for (int i = 0; i < seen; i++) bad += e->bad[i];
    o->signal[OPENED] = e->opened || e->edited;
    o->signal[TESTED] = e->tested;
    o->signal[EDITED] = e->edited;
    o->signal[IMPROVED] = e->improved;
    o->signal[TROUBLE] = seen > 0 ? bad / seen : 0;
    o->signal[FORMAT] = o->valid;
    o->hash = key_of(e);
    if (e->turn >= w->s->max_turns && o->end == GR_RUNNING) o->end = GR_END_TIME_LIMIT;
}

static void show_output(const swebench* w, const gr_sandbox_reply* r, gr_obs* o)
{
    static const char* const cause[GR_N_SANDBOX_CAUSES] = {
        [GR_SANDBOX_EXITED] = "",
        [GR_SANDBOX_TIME] = ", the time was up",
        [GR_SANDBOX_MEMORY] = ", out of memory",
        [GR_SANDBOX_DISK] = ", the disk is full",
        [GR_SANDBOX_OUTPUT] = ", too much was written",
        [GR_SANDBOX_STUCK] = ", it could not be ended",
    };
    char line[100];
    (void)snprintf(line, sizeof line, "exit status %d%s\n", r->code, cause[r->cause]);
    say(w, o, line);
    say_bytes(w, o, r->output, r->n_head);
    long long left_out = (long long)(r->n_all - (int64_t)r->n_output);
    if (left_out > 0) {
        (void)snprintf(line, sizeof line, "\n[%lld bytes left out]\n", left_out);
        say(w, o, line);
    }
    say_bytes(w, o, r->output + r->n_head, r->n_output - r->n_head);
    end_line(w, o);
}

/* ---- turns ------------------------------------------------------------------------------- */

static void note_command(episode* e, uint64_t hash, bool bad)
{
    int at = (e->turn - 1) % RECENT;
    for (int i = 0; i < GR_MIN(e->turn - 1, RECENT); i++) bad = bad || e->recent[i] == hash;
    e->recent[at] = hash;
    e->bad[at] = bad;
}

/* More tests passed or fewer failed than in the run before the last edit. */
static void note_tests(episode* e, const gr_sandbox_reply* r)
{
    int passed = 0, failed = 0;
    if (!gr_swe_output_counts(r->output, r->n_output, &passed, &failed)) return;
    if (e->has_counts && e->stale) {
        e->improved = passed > e->passed || failed < e->failed;
    }
    e->has_counts = true;
    e->stale = false;
    e->passed = passed;
    e->failed = failed;
}

/* The difference between the first commit and the files as they are, in an index of its own. */
#define DIFF_SETUP                                                                            \
    "export GIT_INDEX_FILE=/tmp/grove-index; cp .git/index $GIT_INDEX_FILE; git add -A -N . " \
    "2>/dev/null; base=$(git rev-list --max-parents=0 HEAD | tail -n 1); "

static const char probe_script[] =
    DIFF_SETUP "git diff --quiet $base && exit 3; "
               "git diff $base --name-only -z --diff-filter=d -- '*.py' | python3 -c \"import sys\n"
               "for f in sys.stdin.buffer.read().split(b'\\0'):\n"
               "    if f: compile(open(f, 'rb').read(), f, 'exec')\" 2>/dev/null";
static const char diff_script[] =
    DIFF_SETUP "git -c core.fileMode=false diff --no-color --no-ext-diff --binary $base";

/* Runs a command of n bytes behind the set-up. */
static void run_set_up(swebench* w, int h, stage next, const char* command, int n, int64_t keep,
                       double time_s)
{
    size_t cap = strlen(w->setup) + (size_t)n + 2;
    char* text = malloc(cap);
    GR_ASSERT(text != NULL, "out of memory");
    (void)snprintf(text, cap, "%s\n%.*s", w->setup, n, command);
    run(w, h, next, text, keep, time_s);
    free(text);
}

static void swe_step(void* self, int h, const char* action, int n_action)
{
    swebench* w = self;
    episode* e = &w->episode[h];
    const char* command = NULL;
    int n = 0;
    e->turn++;
    w->in_flight++;
    gr_obs* o = observe(w, h);
    bool valid = n_action <= GR_ACTION_MAX && gr_swe_action_read(action, n_action, &command, &n);
    if (!valid) {
        note_command(e, 0, true);
        say(w, o, "Not understood: a turn is exactly one ```bash block, closed by ```.\n");
        fill(w, e, o);
        settle(w, h, GR_ENV_OK, o);
        return;
    }
    o->valid = true;
    if (gr_swe_action_submits(command, n)) {
        run(w, h, DIFF, diff_script, 2 * PATCH_MAX, w->s->command_s);
        return;
    }
    e->opened = e->opened || gr_swe_action_opens(command, n, instance_at(w, e->instance)->problem);
    e->tested = e->tested || gr_swe_action_tests(command, n);
    note_command(e, gr_hash64(command, (size_t)n, 1), false);
    run_set_up(w, h, COMMAND, command, n, w->s->output,
               fmin(w->s->command_s, w->s->episode_s - e->used_s));
}

static void finish_turn(swebench* w, int h)
{
    gr_obs* o = &w->pending[h];
    fill(w, &w->episode[h], o);
    settle(w, h, GR_ENV_OK, o);
}

/* Whether the time of the episode has ended with this command. */
static bool uses_up(const swebench* w, episode* e, const gr_sandbox_reply* r)
{
    double left_s = w->s->episode_s - e->used_s;
    e->used_s += r->seconds;
    return r->seconds >= left_s || (r->cause == GR_SANDBOX_TIME && left_s <= w->s->command_s);
}

static void on_command(swebench* w, int h, const gr_sandbox_reply* r)
{
    episode* e = &w->episode[h];
    show_output(w, r, &w->pending[h]);
    if (r->code != 0 || r->cause != GR_SANDBOX_EXITED) e->bad[(e->turn - 1) % RECENT] = true;
    note_tests(e, r);
    if (r->cause == GR_SANDBOX_STUCK || uses_up(w, e, r)) {
        settle(w, h, GR_ENV_TIMEOUT, NULL);
        return;
    }
    if (r->cause == GR_SANDBOX_DISK) { /* the sandbox takes no more commands */
        settle(w, h, GR_ENV_REFUSED, NULL);
        return;
    }
    e->stage = HASH;
    (void)gr_sandbox_hash(w->box, e->sandbox);
}

static void on_hash(swebench* w, int h, const gr_sandbox_reply* r)
{
    episode* e = &w->episode[h];
    bool first = e->turn == 0, changed = r->hash != e->tree;
    e->tree = r->hash;
    if (first) e->base = r->hash;
    if (first || !changed) {
        finish_turn(w, h);
        return;
    }
    e->stale = true;
    run_set_up(w, h, PROBE, probe_script, (int)strlen(probe_script), 1000, w->s->command_s);
}

static void record_prediction(const swebench* w, const char* id, const char* patch, size_t n)
{
    if (w->s->predictions[0] == 0) return;
    FILE* f = fopen(w->s->predictions, "abe");
    if (f == NULL) return; /* a record that cannot be written does not end the run */
    fprintf(f, "{\"instance_id\":\"%s\",\"model_name_or_path\":\"grove\",", id);
    fputs("\"model_patch\":", f);
    gr_json_text(f, patch, n);
    fputs("}\n", f);
    (void)fclose(f);
}

/* The reply to diff_script is graded in a fresh sandbox; a patch that is not whole is none. */
static void begin_grading(swebench* w, int h, const gr_sandbox_reply* r, stage next)
{
    episode* e = &w->episode[h];
    bool whole = r->code == 0 && r->cause == GR_SANDBOX_EXITED && r->n_all <= PATCH_MAX;
    size_t n = whole ? r->n_output : 0;
    const gr_swe_instance* x = instance_at(w, e->instance);
    if (next == GRADE) record_prediction(w, x->id, r->output, n);
    gr_swe_judging j = {
        .instance = x, .tree = view(w, e->instance), .setup = w->setup, .time_s = w->s->tests_s};
    e->grading = ++w->last_sandbox;
    own(w, e->grading, h);
    e->stage = next;
    w->grader[h] = gr_swe_grader_begin(w->box, e->grading, &j, r->output, n);
}

static void on_grade(swebench* w, int h, const gr_swe_grade* g)
{
    gr_obs* o = &w->pending[h];
    if (g->outcome == GR_SWE_NO_SANDBOX) {
        settle(w, h, GR_ENV_REFUSED, NULL);
        return;
    }
    o->success = g->outcome == GR_SWE_GRADED && g->verdict.resolution == GR_SWE_FULL;
    o->reward = o->success ? 1 : 0;
    o->end = GR_END_TERMINAL;
    say(w, o, "Handed in.\n");
    finish_turn(w, h);
}

/* ---- judging for a scorer ---------------------------------------------------------------- */

/* NULL: nobody has asked of this tree yet. */
static judged* find_judged(const swebench* w, uint64_t key)
{
    for (int64_t i = 0; i < w->n_judged; i++) {
        if (w->judged[i].key == key) return &w->judged[i];
    }
    return NULL;
}

static void on_judged(swebench* w, int h, double met)
{
    find_judged(w, key_of(&w->episode[h]))->met = met;
    w->episode[h].stage = IDLE;
    w->judging--;
}

/* The share of the tests that must begin to pass, times the share that must go on passing. */
static double share_met(const gr_swe_instance* x, const gr_swe_grade* g)
{
    if (g->outcome == GR_SWE_NO_SANDBOX) return (double)NAN;
    if (g->outcome != GR_SWE_GRADED) return 0;
    double begin = (double)g->verdict.f2p_passed / GR_MAX(x->fail_to_pass.n, 1);
    double go_on = x->pass_to_pass.n > 0 ? (double)g->verdict.p2p_passed / x->pass_to_pass.n : 1;
    return begin * go_on;
}

/* What could not be found out is tried again the next time. */
static void forget_unknown(swebench* w)
{
    int64_t kept = 0;
    for (int64_t i = 0; i < w->n_judged; i++) {
        if (!isnan(w->judged[i].met)) w->judged[kept++] = w->judged[i];
    }
    w->n_judged = kept;
}

/* A tree as it was at the start meets nothing. */
static void begin_judging(swebench* w, int h)
{
    episode* e = &w->episode[h];
    if (find_judged(w, key_of(e)) != NULL) return;
    GR_RESERVE(w->judged, w->cap_judged, w->n_judged + 1);
    w->judged[w->n_judged++] = (judged){.key = key_of(e)};
    if (e->tree == e->base) return;
    w->judging++;
    run(w, h, JUDGE_DIFF, diff_script, 2 * PATCH_MAX, w->s->command_s);
}

static void hear_grader(swebench* w, int h, const gr_sandbox_reply* r)
{
    episode* e = &w->episode[h];
    gr_swe_grade grade;
    if (!gr_swe_grader_hear(w->grader[h], r, &grade)) return;
    gr_swe_grader_end(w->grader[h]);
    w->grader[h] = NULL;
    e->grading = 0; /* the grader has closed it */
    if (grade.outcome == GR_SWE_NO_SANDBOX) {
        gr_log("swebench: %s: %s", instance_at(w, e->instance)->id, grade.reason);
    }
    if (e->stage == JUDGE_GRADE)
        on_judged(w, h, share_met(instance_at(w, e->instance), &grade));
    else
        on_grade(w, h, &grade);
}

/* A reply about a sandbox whose handle waits for it. */
static void hear(swebench* w, int h, const gr_sandbox_reply* r)
{
    episode* e = &w->episode[h];
    if (r->op == GR_SANDBOX_FORK) return; /* if it failed, the next request fails, too */
    if (e->stage == GRADE || e->stage == JUDGE_GRADE) {
        hear_grader(w, h, r);
        return;
    }
    if (r->error != GR_SANDBOX_OK) {
        if (r->op == GR_SANDBOX_CREATE) e->sandbox = 0;
        gr_log("swebench: %s: %s", instance_at(w, e->instance)->id, r->reason);
        if (e->stage == JUDGE_DIFF)
            on_judged(w, h, (double)NAN);
        else
            settle(w, h, error_of(r->error), NULL);
        return;
    }
    switch (e->stage) {
    case CREATE:
        e->stage = HASH;
        (void)gr_sandbox_hash(w->box, e->sandbox);
        break;
    case COMMAND:
        on_command(w, h, r);
        break;
    case HASH:
        on_hash(w, h, r);
        break;
    case PROBE:
        e->edited = r->code == 0 && r->cause == GR_SANDBOX_EXITED;
        finish_turn(w, h);
        break;
    case DIFF:
        begin_grading(w, h, r, GRADE);
        break;
    case JUDGE_DIFF:
        begin_grading(w, h, r, JUDGE_GRADE);
        break;
    default:
        break; /* of a fork that went well */
    }
}

/* ---- handles ----------------------------------------------------------------------------- */

static void make_room(swebench* w, int h)
{
    GR_RESERVE(w->episode, w->n_episodes, h + 1);
    GR_RESERVE(w->grader, w->cap_graders, h + 1);
    GR_RESERVE(w->pending, w->cap_pending, h + 1);
    if (w->pending[h].text != NULL) return;
    w->pending[h].text = malloc((size_t)obs_cap(w) + 1);
    GR_ASSERT(w->pending[h].text != NULL, "out of memory");
}

static void swe_reset(void* self, int h, gr_split split, int64_t task, uint64_t key)
{
    swebench* w = self;
    (void)key; /* nothing here is random */
    make_room(w, h);
    episode* e = &w->episode[h];
    *e = (episode){.instance = instance_of(w, split, task)};
    w->in_flight++;
    gr_obs* o = observe(w, h);
    o->valid = true;
    if (make_tree(w, e->instance) != GR_OK) {
        gr_log("swebench: %s", gr_last_error_text());
        settle(w, h, GR_ENV_REFUSED, NULL);
        return;
    }
    say_issue(w, o, instance_at(w, e->instance)->problem);
    e->sandbox = ++w->last_sandbox;
    e->stage = CREATE;
    own(w, e->sandbox, h);
    gr_sandbox_tree tree = view(w, e->instance);
    (void)gr_sandbox_create(w->box, e->sandbox, &tree);
}

static void swe_fork(void* self, int dst, int src, uint64_t key)
{
    swebench* w = self;
    (void)key;
    make_room(w, dst);
    episode* e = &w->episode[dst];
    *e = w->episode[src];
    if (e->sandbox == 0) return;
    e->sandbox = ++w->last_sandbox;
    own(w, e->sandbox, dst);
    /* The helper forks before it looks at the next request, so nobody has to wait for it. */
    (void)gr_sandbox_fork(w->box, w->episode[src].sandbox, e->sandbox);
}

/* Ends a sandbox, whatever it is doing; nobody hears of it any more. */
static void end_sandbox(swebench* w, int64_t number)
{
    if (number == 0) return;
    w->owner[number] = -1;
    (void)gr_sandbox_end(w->box, number);
}

static void swe_release(void* self, int h)
{
    swebench* w = self;
    episode* e = &w->episode[h];
    if (e->stage != IDLE) w->in_flight--;
    int64_t kept = 0;
    for (int64_t i = 0; i < w->n_answers; i++) {
        if (w->answers[i].handle == h)
            w->in_flight--;
        else
            w->answers[kept++] = w->answers[i];
    }
    w->n_answers = kept;
    gr_swe_grader_end(w->grader[h]);
    w->grader[h] = NULL;
    end_sandbox(w, e->grading);
    end_sandbox(w, e->sandbox);
    *e = (episode){0};
}

/* False: nothing was to be heard. */
static bool listen_once(swebench* w, bool wait)
{
    gr_sandbox_reply r;
    if (!gr_sandbox_poll(w->box, wait, &r)) return false;
    int h = r.sandbox > 0 && r.sandbox < w->cap_owner ? w->owner[r.sandbox] : -1;
    if (h >= 0) hear(w, h, &r);
    return true;
}

/* Other episodes go on meanwhile; their answers wait for the next poll. */
static void swe_judge(void* self, const int* handle, int n, double* out)
{
    swebench* w = self;
    for (int i = 0; i < n; i++) {
        bool held_out = is_held_out(w, w->episode[handle[i]].instance);
        GR_ASSERT(!held_out, "the hidden tests of a held-out task are asked for");
        begin_judging(w, handle[i]);
    }
    while (w->judging > 0) {
        bool owed = listen_once(w, true);
        GR_ASSERT(owed, "a scorer waits for a reply that nobody owes");
    }
    for (int i = 0; i < n; i++) {
        judged* j = find_judged(w, key_of(&w->episode[handle[i]]));
        out[i] = j->met;
    }
    forget_unknown(w);
}

static int swe_poll(void* self, bool wait, gr_env_error* error, const gr_obs** obs)
{
    swebench* w = self;
    while (w->n_answers == 0) {
        if (!listen_once(w, wait && w->in_flight > 0)) return -1;
    }
    w->given = w->answers[0];
    memmove(w->answers, w->answers + 1, (size_t)--w->n_answers * sizeof *w->answers);
    w->in_flight--;
    *error = w->given.error;
    *obs = &w->given.obs;
    return w->given.handle;
}

/* ---- the world --------------------------------------------------------------------------- */

static void swe_close(void* self)
{
    swebench* w = self;
    for (int64_t i = 0; i < w->cap_graders; i++) gr_swe_grader_end(w->grader[i]);
    if (w->box != NULL) gr_sandbox_close(w->box);
    for (int64_t i = 0; w->tree != NULL && i < w->train.n + w->test.n; i++) free(w->tree[i]);
    gr_swe_set_free(&w->train);
    gr_swe_set_free(&w->test);
    free(w->tree);
    free(w->episode);
    free(w->grader);
    for (int64_t i = 0; i < w->cap_pending; i++) free(w->pending[i].text);
    free(w->pending);
    free(w->answers);
    free(w->judged);
    free(w->owner);
    free(w);
}

/* Sources come from repositories or from images. */
static gr_status choose_sources(swebench* w)
{
    /* The official images have their Python in an environment of this name. */
    static const char activate[] = "[ ! -r /opt/miniconda3/bin/activate ] || "
                                   ". /opt/miniconda3/bin/activate testbed\n";
    bool image = w->s->backend != GR_SWE_SANDBOX;
    (void)snprintf(w->setup, sizeof w->setup, "%s%s", image ? activate : "", w->s->setup);
    if (image && w->s->mirrors[0] != 0) {
        return GR_FAIL(GR_EARG, "swebench.mirrors has no effect: swebench.backend takes images");
    }
    if (!image && strcmp(w->s->images, IMAGES) != 0) {
        return GR_FAIL(GR_EARG, "swebench.images has no effect with swebench.backend = sandbox");
    }
    return GR_OK;
}

static gr_status open_parts(swebench* w)
{
    GR_TRY(choose_sources(w));
    GR_TRY(read_instances(w));
    GR_TRY(split_read(w));
    if (swe_n_tasks(w, GR_TRAIN) == 0) {
        return GR_FAIL(GR_EDATA, "%s: no instance is left to train on", w->s->instances);
    }
    if (mkdir(w->s->cache, 0755) != 0 && errno != EEXIST) {
        return GR_FAIL(GR_EIO, "swebench.cache: %s: %s", w->s->cache, strerror(errno));
    }
    return gr_sandbox_open(&w->box, &w->s->sandbox);
}

static gr_status swe_open(void** self, const void* values)
{
    swebench* w = calloc(1, sizeof *w);
    if (w == NULL) return GR_FAIL(GR_ENOMEM, "swebench: out of memory");
    w->s = values;
    gr_status st = open_parts(w);
    if (st == GR_OK)
        *self = w;
    else
        swe_close(w);
    return st;
}

static void swe_describe(void* self, gr_world* facts) { facts->obs_cap = obs_cap(self); }
static int swe_horizon(void* self) { return (int)((const swebench*)self)->s->max_turns; }

static const gr_async async = {
    .reset = swe_reset,
    .step = swe_step,
    .fork = swe_fork,
    .release = swe_release,
    .judge = swe_judge,
    .poll = swe_poll,
};

const gr_world gr_world_swebench = {
    .name = "swebench",
    .block = &block,
    .signal = {"opened", "tested", "edited", "improved", "trouble", "format"},
    .n_signals = N_SIGNALS,
    .prompt = prompt,
    .stop = "\n```\n",
    .action_cap = GR_ACTION_MAX,
    .open = swe_open,
    .close = swe_close,
    .describe = swe_describe,
    .n_tasks = swe_n_tasks,
    .horizon = swe_horizon,
    .async = &async,
};
