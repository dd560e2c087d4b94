/* bench_hae.c - the variance of policy gradients: hierarchical advantages against flat GAE, where every
 * value is known exactly.
 *
 * A corridor of 7 cells: a key at one end, a door at the other, the player in the middle; the door pays
 * 1 once the key was taken, and every turn ends the episode for nothing with probability 0.04. The policy
 * is a table: KEEP or SWITCH by (state, subgoal before), one of two subgoals by state, left or right by
 * (state, subgoal). Its values solve
 *
 *     V_low(s, o)  = E_a[r + (1 - beta(s', o)) V_low(s', o) + beta(s', o) V_high(s')]
 *     V_high(s)    = E_o V_low(s, o)         U(s, o) = (1 - beta) V_low(s, o) + beta V_high(s)
 *
 * where U, the value before a turn, is what flat GAE and the third head have. So the exact gradient is
 * known, too (and checked against finite differences of V_high at the start). Sampled episodes go through
 * the recursions that train (host/advantage/gae.h). Printed per estimator: the distance of the mean
 * gradient from the exact one beside what noise alone would give, and the variance of one episode's
 * gradient, in all and by kind of token, as a share of flat GAE's at lambda 1; once more with values
 * that are wrong, where less variance is paid for with bias.
 *
 *     bench_hae [episodes per policy, default 100000] */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/advantage/gae.h"

enum { CELLS = 7, STATES = 2 * CELLS, GOALS = 2, MAX_TURNS = 4096, POLICIES = 8 };
enum { N_SWITCH = STATES * GOALS, N_GOAL = STATES, N_ACT = STATES * GOALS };
enum { AT_SWITCH = 0, AT_GOAL = N_SWITCH, AT_ACT = N_SWITCH + N_GOAL, N = AT_ACT + N_ACT };
static const double p_abort = 0.04;
static const int start = CELLS / 2;

/* All three choices are between two things: a logit each. */
typedef struct policy {
    double logit[N];
} policy;

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }
static double beta(const policy* p, int s, int o)
{
    return sigmoid(p->logit[AT_SWITCH + 2 * s + o]);
}
static double goal_1(const policy* p, int s) { return sigmoid(p->logit[AT_GOAL + s]); }
static double right(const policy* p, int s, int o) { return sigmoid(p->logit[AT_ACT + 2 * s + o]); }

/* State s = cell + CELLS with the key. Returns the next one, -1 at the end, and the reward. */
static int move(int s, bool to_right, double* reward)
{
    int cell = s % CELLS, key = s / CELLS;
    cell = to_right ? GR_MIN(cell + 1, CELLS - 1) : GR_MAX(cell - 1, 0);
    key = key || cell == 0;
    *reward = key && cell == CELLS - 1;
    return *reward > 0 ? -1 : cell + key * CELLS;
}

typedef struct values {
    double low[STATES][GOALS], high[STATES], before[STATES][GOALS];
} values;

/* r + what follows, once an action is chosen. */
static double after(const values* v, int s, int o, bool to_right)
{
    double reward = 0;
    int next = move(s, to_right, &reward);
    return reward + (next < 0 ? 0 : (1 - p_abort) * v->before[next][o]);
}

static void solve(const policy* p, values* v)
{
    memset(v, 0, sizeof *v);
    for (double change = 1; change > 1e-15;) {
        change = 0;
        for (int s = 0; s < STATES; s++) {
            for (int o = 0; o < GOALS; o++) {
                double r = right(p, s, o);
                double now = r * after(v, s, o, true) + (1 - r) * after(v, s, o, false);
                change = fmax(change, fabs(now - v->low[s][o]));
                v->low[s][o] = now;
            }
            double g = goal_1(p, s);
            v->high[s] = (1 - g) * v->low[s][0] + g * v->low[s][1];
            for (int o = 0; o < GOALS; o++) {
                double b = beta(p, s, o);
                v->before[s][o] = (1 - b) * v->low[s][o] + b * v->high[s];
            }
        }
    }
}

/* Expected gradient: visits times the slope of each choice. The first turn switches, by rule. */
static void exact_gradient(const policy* p, const values* v, double* g)
{
    double enter[STATES][GOALS] = {{0}}, next[STATES][GOALS];
    double switches[STATES] = {[CELLS / 2] = 1}, left = 1;
    memset(g, 0, N * sizeof *g);
    for (int turn = 0; turn < 20000 && left > 1e-17; turn++) { /* enter: turns by (s, o before) */
        memset(next, 0, sizeof next);
        left = 0;
        for (int s = 0; s < STATES; s++) {
            double low[GOALS], b[GOALS], g1 = goal_1(p, s);
            for (int o = 0; o < GOALS; o++) {
                b[o] = beta(p, s, o);
                switches[s] += enter[s][o] * b[o];
                g[AT_SWITCH + 2 * s + o] +=
                    enter[s][o] * b[o] * (1 - b[o]) * (v->high[s] - v->low[s][o]);
            }
            g[AT_GOAL + s] += switches[s] * g1 * (1 - g1) * (v->low[s][1] - v->low[s][0]);
            for (int o = 0; o < GOALS; o++) {
                low[o] = enter[s][o] * (1 - b[o]) + switches[s] * (o ? g1 : 1 - g1);
                double r = right(p, s, o), ahead = after(v, s, o, true),
                       back = after(v, s, o, false);
                g[AT_ACT + 2 * s + o] += low[o] * r * (1 - r) * (ahead - back);
                for (int a = 0; a < 2; a++) {
                    double reward = 0;
                    int to = move(s, a, &reward);
                    double mass = low[o] * (a ? r : 1 - r) * (1 - p_abort);
                    if (to >= 0) next[to][o] += mass, left += mass;
                }
            }
            switches[s] = 0;
        }
        memcpy(enter, next, sizeof enter);
    }
}

static void check_exact(const policy* p, const double* g)
{
    for (int i = 0; i < N; i++) {
        policy q = *p;
        values v;
        double j[2];
        for (int side = 0; side < 2; side++) {
            q.logit[i] = p->logit[i] + (side ? 1e-5 : -1e-5);
            solve(&q, &v);
            j[side] = v.high[start];
        }
        GR_ASSERT(fabs((j[1] - j[0]) / 2e-5 - g[i]) < 1e-8, "%d: %g, not %g", i, g[i],
                  (j[1] - j[0]) / 2e-5);
    }
}

/* ---- episodes ----------------------------------------------------------------------------------- */

typedef struct episode {
    int n;
    int state[MAX_TURNS], before[MAX_TURNS], goal[MAX_TURNS];
    bool switched[MAX_TURNS], to_right[MAX_TURNS];
    double reward[MAX_TURNS];
    double low[MAX_TURNS], high[MAX_TURNS],
        flat[MAX_TURNS];          /* values of the turn; flat: before it */
    double low_before[MAX_TURNS]; /* of the subgoal before */
} episode;

static void play(const policy* p, const values* v, uint64_t key, episode* e)
{
    int s = start, o = 0;
    for (e->n = 0; s >= 0 && e->n < MAX_TURNS; e->n++) {
        int t = e->n;
        uint64_t at = 4 * (uint64_t)t;
        e->state[t] = s;
        e->before[t] = o;
        e->switched[t] = t == 0 || gr_uniform(key, at) < beta(p, s, o);
        if (e->switched[t]) o = gr_uniform(key, at + 1) < goal_1(p, s);
        e->goal[t] = o;
        e->to_right[t] = gr_uniform(key, at + 2) < right(p, s, o);
        e->low[t] = v->low[s][o];
        e->high[t] = v->high[s];
        e->flat[t] = t == 0 ? v->high[s] : v->before[s][e->before[t]];
        e->low_before[t] = v->low[s][e->before[t]];
        s = move(s, e->to_right[t], &e->reward[t]);
        if (gr_uniform(key, at + 3) < p_abort) s = -1;
    }
}

/* Adds the log-probability's gradient of each choice of turn t, times its advantage. */
static void add_turn(const policy* p, const episode* e, int t, double a_switch, double a_goal,
                     double a_act, double* g)
{
    int s = e->state[t], o = e->goal[t], was = e->before[t];
    double b = beta(p, s, was), g1 = goal_1(p, s), r = right(p, s, o);
    if (t > 0) g[AT_SWITCH + 2 * s + was] += (e->switched[t] - b) * a_switch;
    if (e->switched[t]) g[AT_GOAL + s] += (o - g1) * a_goal;
    g[AT_ACT + 2 * s + o] += (e->to_right[t] - r) * a_act;
}

typedef struct estimator {
    const char* name;
    enum { RETURNS, FLAT, TERM_HEAD, GAIN } kind;
    double lambda; /* of turns; in hierarchies of segments, whose turns have lambda 1 */
} estimator;

static const estimator estimators[] = {
    {"returns (no values)", RETURNS, 1},
    {"flat GAE, lambda 1", FLAT, 1},
    {"flat GAE, lambda 0.95", FLAT, 0.95},
    {"flat GAE, lambda 0.8", FLAT, 0.8},
    {"flat GAE, lambda 0", FLAT, 0},
    {"HAE term_head, lambda_high 1", TERM_HEAD, 1},
    {"HAE term_head, lambda_high 0.95", TERM_HEAD, 0.95},
    {"HAE gain, lambda_high 1", GAIN, 1},
    {"HAE gain, lambda_high 0.95", GAIN, 0.95},
};
enum { ESTIMATORS = GR_COUNT(estimators) };

static void gradient(const estimator* k, const policy* p, const episode* e, double* g)
{
    static double low[MAX_TURNS], high[MAX_TURNS], to_go[MAX_TURNS], zero[MAX_TURNS];
    memset(g, 0, N * sizeof *g);
    if (k->kind == RETURNS || k->kind == FLAT) {
        gr_gae(low, e->reward, k->kind == FLAT ? e->flat : zero, e->n, 0, 1, k->lambda);
        for (int t = 0; t < e->n; t++) add_turn(p, e, t, low[t], low[t], low[t], g);
        return;
    }
    gr_hae h = {.n = e->n,
                .reward = e->reward,
                .switched = e->switched,
                .low = e->low,
                .high = e->high,
                .gamma = 1,
                .lambda_low = 1,
                .lambda_high = k->lambda,
                .done = true};
    gr_hae_fill(&h, low, high, to_go);
    for (int t = 0; t < e->n; t++) {
        double b = beta(p, e->state[t], e->before[t]), a_switch = to_go[t] - e->flat[t];
        if (k->kind == GAIN && t > 0) {
            a_switch = gr_hae_switch_gain(e->switched[t], b, e->high[t], e->low_before[t]);
        }
        add_turn(p, e, t, a_switch, high[t], low[t], g);
    }
}

/* ---- the table ---------------------------------------------------------------------------------- */

typedef struct moments {
    double sum[N], sq[N];
} moments;

static double variance(const moments* m, int64_t n, int begin, int end)
{
    double v = 0;
    for (int i = begin; i < end; i++) {
        double mean = m->sum[i] / (double)n;
        v += m->sq[i] / (double)n - mean * mean;
    }
    return v;
}

/* Means over policies: distance from the exact gradient, what noise alone gives, variances. */
typedef struct row {
    double distance, noise, size, all, change, goal, act;
} row;

static void add_policy(const moments* m, const double* exact, int64_t n, row* r)
{
    double sq = 0, size = 0, all = variance(m, n, 0, N);
    for (int i = 0; i < N; i++) {
        double d = m->sum[i] / (double)n - exact[i];
        sq += d * d;
        size += exact[i] * exact[i];
    }
    r->distance += sqrt(sq) / POLICIES;
    r->noise += sqrt(all / (double)n) / POLICIES;
    r->size += sqrt(size) / POLICIES;
    r->all += all / POLICIES;
    r->change += variance(m, n, AT_SWITCH, AT_GOAL) / POLICIES;
    r->goal += variance(m, n, AT_GOAL, AT_ACT) / POLICIES;
    r->act += variance(m, n, AT_ACT, N) / POLICIES;
}

/* Subgoals lean on actions by `lean`: 1 to the right for the door, to the left for the key. */
static policy any_policy(uint64_t key, double lean)
{
    policy p;
    for (int i = 0; i < N; i++) p.logit[i] = 2 * gr_uniform(key, (uint64_t)i) - 1;
    for (int i = 0; i < N_SWITCH; i++) p.logit[AT_SWITCH + i] -= 1.5; /* a subgoal lives a while */
    for (int i = 0; i < N_ACT; i++) p.logit[AT_ACT + i] += i % 2 ? lean : -lean;
    return p;
}

/* Every value off by up to `error`, the same wherever it is read. */
static void blur(values* v, uint64_t key, double error)
{
    double* all = &v->low[0][0];
    for (size_t i = 0; i < sizeof *v / sizeof *all; i++) {
        all[i] += error * (2 * gr_uniform(key, i) - 1);
    }
}

static void compare(double lean, double error, int64_t episodes, row* rows)
{
    static episode e;
    static moments m[ESTIMATORS];
    for (uint64_t k = 0; k < POLICIES; k++) {
        policy p = any_policy(gr_key_join(1, k), lean);
        values v;
        double exact[N], g[N];
        solve(&p, &v);
        exact_gradient(&p, &v, exact);
        check_exact(&p, exact);
        blur(&v, gr_key_join(3, k), error);
        memset(m, 0, sizeof m);
        for (int64_t i = 0; i < episodes; i++) {
            play(&p, &v, gr_key_join(gr_key_join(2, k), (uint64_t)i), &e);
            for (int j = 0; j < ESTIMATORS; j++) {
                gradient(&estimators[j], &p, &e, g);
                for (int c = 0; c < N; c++) m[j].sum[c] += g[c], m[j].sq[c] += g[c] * g[c];
            }
        }
        for (int j = 0; j < ESTIMATORS; j++) {
            add_policy(&m[j], exact, episodes, &rows[j]);
        }
    }
}

static void print(double lean, double error, const row* rows)
{
    const row* flat = &rows[1];
    printf("\nSubgoals move the logits of actions by %.2g; values are off by up to %.2g; the exact "
           "gradient has norm %.3f.\n\n",
           lean, error, flat->size);
    printf("| estimator | distance of the mean from it | by noise alone | variance / flat GAE, "
           "lambda 1 |"
           " of switches | of subgoals | of actions |\n|---|---|---|---|---|---|---|\n");
    for (int j = 0; j < ESTIMATORS; j++) {
        const row* r = &rows[j];
        printf("| %s | %.4f | %.4f | %.2f | %.2f | %.2f | %.2f |\n", estimators[j].name,
               r->distance, r->noise, r->all / flat->all, r->change / flat->change,
               r->goal / flat->goal, r->act / flat->act);
    }
}

int main(int argc, char** argv)
{
    static const struct {
        double lean, error;
    } task[] = {{2, 0}, {0, 0}, {2, 0.1}};
    int64_t episodes = argc > 1 ? strtoll(argv[1], NULL, 10) : 100000;
    if (episodes < 2) {
        fprintf(stderr, "bench_hae: %s: no number of episodes above 1\n", argv[1]);
        return 1;
    }
    printf("%d random policies, %lld episodes each.\n", POLICIES, (long long)episodes);
    for (int i = 0; i < GR_COUNT(task); i++) {
        row rows[ESTIMATORS] = {{0}};
        compare(task[i].lean, task[i].error, episodes, rows);
        print(task[i].lean, task[i].error, rows);
    }
    return 0;
}
