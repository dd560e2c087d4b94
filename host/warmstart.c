/* warmstart.c - supervised learning on the world's own demonstrations.
 *
 * A model that never acts sensibly earns no reward to learn from. Episodes of a noisy demonstrator are
 * packed as a forest of single paths and its action tokens are learnt by maximum likelihood, through
 * the same forward, objective and optimizer as everything else. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "host/progress.h"
#include "host/train.h"

/* ACTION_MAX, TURN_MAX: bytes, and tokens with what ends them. */
enum { KEY_WARMSTART = 0x7761726d, ACTION_MAX = 64, SUBGOAL_MAX = 32, TURN_MAX = 256 };
enum { AROUND = 1024 }; /* bytes that hiper.c puts around an observation */

/* Episodes written one after the other until the micro-batch is full. */
typedef struct demos {
    gr_batch batch;
    gr_dialog dialog;
    int max_tokens;
    int64_t caps[9];
    char turn[TURN_MAX]; /* what was said last */
    int n_turn;
    /* with the interface of HiPER */
    char subgoal[SUBGOAL_MAX];
    char* shown; /* (shown_cap) */
    int shown_cap;
} demos;

static void demos_open(demos* d, int max_tokens, int obs_cap)
{
    gr_batch* b = &d->batch;
    int64_t cap = 0;
    d->shown_cap = obs_cap + AROUND;
    GR_RESERVE(d->shown, cap, d->shown_cap);
    d->max_tokens = max_tokens;
    GR_RESERVE(b->token, d->caps[0], max_tokens);
    GR_RESERVE(b->position, d->caps[1], max_tokens);
    GR_RESERVE(b->subtree_end, d->caps[2], max_tokens);
    GR_RESERVE(b->src, d->caps[3], max_tokens);
    GR_RESERVE(b->target, d->caps[4], max_tokens);
    GR_RESERVE(b->old_logp, d->caps[5], max_tokens);
    GR_RESERVE(b->a_pos, d->caps[6], max_tokens);
    GR_RESERVE(b->a_neg, d->caps[7], max_tokens);
    GR_RESERVE(b->w, d->caps[8], max_tokens);
}

static void demos_close(demos* d)
{
    gr_batch* b = &d->batch;
    void* all[] = {b->token,    b->position, b->subtree_end, b->src, b->target,
                   b->old_logp, b->a_pos,    b->a_neg,       b->w};
    for (int i = 0; i < GR_COUNT(all); i++) free(all[i]);
    free(d->shown);
    gr_dialog_free(&d->dialog);
}

/* Appends what the dialog rendered last. */
static void append(demos* d)
{
    gr_batch* b = &d->batch;
    const gr_chat_text* out = &d->dialog.out;
    memcpy(b->token + b->n_tokens, out->token, (size_t)out->n * sizeof *b->token);
    b->n_tokens += out->n;
}

/* Most tokens of a turn, what ends it included. */
static int room(const gr_run* run)
{
    return run->train_settings.plan != NULL ? TURN_MAX : ACTION_MAX;
}

/* The demonstrator's turn around its action into d->turn: SWITCH where it is after something else
 * than before. */
static void write_turn(gr_run* run, demos* d, int handle, int turn, const char* action, int n)
{
    const gr_hiper_settings* plan = run->train_settings.plan;
    const gr_world* world = gr_envs_world(run->envs);
    char subgoal[SUBGOAL_MAX] = "goal";
    if (plan == NULL) {
        memcpy(d->turn, action, (size_t)n);
        d->n_turn = n;
        return;
    }
    if (world->subgoal != NULL) {
        world->subgoal(gr_envs_self(run->envs), gr_envs_state(run->envs, handle), subgoal,
                       SUBGOAL_MAX);
    }
    bool switched = turn == 0 || strcmp(subgoal, d->subgoal) != 0;
    memcpy(d->subgoal, subgoal, sizeof subgoal);
    d->n_turn =
        gr_plan_write(plan->tags, switched, subgoal, action, n, world->stop, d->turn, TURN_MAX);
}

/* The demonstrator's next turn as tokens that are learnt; returns the length of its action. */
static int append_action(gr_run* run, demos* d, int handle, uint64_t key, int turn, char* action)
{
    gr_batch* b = &d->batch;
    const gr_world* world = gr_envs_world(run->envs);
    int begin = b->n_tokens;
    int n_action = world->demonstrate(gr_envs_self(run->envs), gr_envs_state(run->envs, handle),
                                      key, turn, action, ACTION_MAX);
    write_turn(run, d, handle, turn, action, n_action);
    gr_dialog_act(&d->dialog, world, d->turn, d->n_turn);
    GR_ASSERT(d->dialog.out.n <= room(run), "%d tokens of an action", d->dialog.out.n);
    append(d);
    for (int i = begin; i < b->n_tokens; i++) {
        b->src[b->n_rows] = i - 1;
        b->target[b->n_rows++] = b->token[i];
    }
    return n_action;
}

/* What the learner sees of an observation; *n becomes its length. */
static const char* show(gr_run* run, demos* d, int turn, const gr_obs* o, int* n)
{
    const gr_hiper_settings* plan = run->train_settings.plan;
    *n = o->n_text;
    if (plan == NULL) return o->text;
    *n = gr_plan_show(plan, turn > 0 ? d->turn : NULL, d->n_turn, o->text, o->n_text, d->shown,
                      d->shown_cap);
    return d->shown;
}

/* An observation: the prompt is in front of the first one, an action that was ended of the others. */
static void render(gr_run* run, demos* d, int turn, const gr_obs* obs)
{
    const gr_batch* b = &d->batch;
    int n_text = 0;
    const char* text = show(run, d, turn, obs, &n_text);
    if (turn == 0) {
        gr_dialog_open(&d->dialog, gr_envs_world(run->envs), text, n_text);
    } else {
        int n = GR_MIN(b->n_tokens, room(run));
        gr_dialog_observe(&d->dialog, b->token + b->n_tokens - n, n, text, n_text, false);
    }
}

/* Plays one episode behind the others; *fits is false, with nothing changed, when the micro-batch is
 * full. An episode ends after a whole turn at the latest where max_context would be passed. */
static gr_status play(gr_run* run, demos* d, int64_t index, bool* fits)
{
    gr_batch* b = &d->batch;
    const gr_config* c = run->config;
    uint64_t key = gr_key_join(gr_key_join((uint64_t)c->run.seed, KEY_WARMSTART), (uint64_t)index);
    uint64_t n_tasks = (uint64_t)gr_envs_n_tasks(run->envs, GR_WARMSTART);
    int64_t task = (int64_t)(gr_key_join(key, 0) % n_tasks);
    int begin = b->n_tokens, rows = b->n_rows, longest = begin + (int)c->rollout.max_context;
    *fits = true;
    int handle = gr_envs_reset(run->envs, GR_WARMSTART, task, key, 0);
    char action[ACTION_MAX];
    gr_env_reply e;
    for (int turn = 0;; turn++) {
        if (!gr_envs_poll(run->envs, &e, true) || e.error != GR_ENV_OK) {
            return GR_FAIL(GR_EDATA, "warmstart: the environment failed");
        }
        render(run, d, turn, e.obs);
        int next = b->n_tokens + d->dialog.out.n + room(run);
        if (e.obs->end != GR_RUNNING || next > longest) break;
        *fits =
            next <= d->max_tokens; /* always, behind no other: a micro-batch holds max_context */
        if (!*fits) break;
        append(d);
        int n_action = append_action(run, d, handle, key, turn, action);
        gr_envs_step(run->envs, handle, action, n_action, 0);
    }
    gr_envs_free(run->envs, handle);
    if (!*fits) {
        b->n_tokens = begin;
        b->n_rows = rows;
        return GR_OK;
    }
    double weight = 1 / ((double)c->warmstart.batch * (double)GR_MAX(b->n_rows - rows, 1));
    for (int i = rows; i < b->n_rows; i++) b->a_pos[i] = b->w[i] = weight;
    for (int i = begin; i < b->n_tokens; i++) {
        b->position[i] = i - begin;
        b->subtree_end[i] = b->n_tokens;
    }
    b->max_path = GR_MAX(b->max_path, b->n_tokens - begin);
    return GR_OK;
}

static gr_status learn(gr_run* run, gr_batch* b, gr_loss_sums* sums)
{
    const gr_loss_params nll = {.kind = GR_LOSS_NLL, .temperature = 1};
    if (b->n_rows > 0) { /* none where no first turn fits max_context */
        GR_TRY(gr_objective_step(&run->objective, b, &nll, run->optimizer.grad, sums));
    }
    b->n_tokens = b->n_rows = b->max_path = 0;
    return GR_OK;
}

/* Gradient of `batch` episodes from number *index on: the mean over episodes of each one's mean loss. */
static gr_status learn_episodes(gr_run* run, demos* d, int64_t* index, gr_loss_sums* sums)
{
    int64_t batch = run->config->warmstart.batch;
    for (int64_t i = 0; i < batch;) {
        bool fits = false;
        GR_TRY(play(run, d, *index, &fits));
        if (fits) i++, ++*index;
        if (!fits || i == batch) GR_TRY(learn(run, &d->batch, sums));
    }
    return GR_OK;
}

gr_status gr_warmstart(gr_run* run)
{
    const gr_config_warmstart* c = &run->config->warmstart;
    const gr_world* world = gr_envs_world(run->envs);
    if (world->demonstrate == NULL) {
        return GR_FAIL(GR_EARG, "warmstart.steps: the world `%s` gives no demonstrations",
                       world->name);
    }
    gr_optimizer_settings s = run->optimizer_settings;
    s.lr = c->lr;
    s.schedule = GR_COSINE;
    s.final_ratio = c->final_ratio;
    s.warmup_steps = c->warmup_steps;
    demos d = {0};
    demos_open(&d, (int)run->config->optimizer.microbatch_tokens, world->obs_cap);
    gr_dialog_init(&d.dialog, &run->train_settings.dialog);
    gr_progress progress = {0};
    gr_status st = GR_OK;
    for (int64_t step = 0, index = 0; step < c->steps && st == GR_OK; step++) {
        gr_loss_sums sums = {0};
        double norm = 0, lr = 0, done = (double)step / (double)c->steps;
        bool skipped = false;
        gr_optimizer_zero_grad(&run->optimizer);
        GR_GOTO(st, learn_episodes(run, &d, &index, &sums), out);
        GR_GOTO(st, gr_optimizer_step(&run->optimizer, &s, done, &norm, &lr, &skipped), out);
        gr_progress_warmstart(&progress, run, step + 1, c->steps, sums.loss / sums.weight);
    }
    gr_optimizer_reset(&run->optimizer); /* moments of another loss would mislead the first steps */
out:
    demos_close(&d);
    return st;
}
