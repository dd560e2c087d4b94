/* frozenlake.c - cross a frozen lake to the goal without falling into a hole.
 *
 * Actions are left, down, right, up and a line end. On slippery ice (success_rate < 1) a move
 * goes to either side instead with equal chance. Entering the goal gives reward 1; goal and
 * holes end the episode, and so does the turn limit. Signals are privileged: they know distances
 * on the map. */
#include "envs/frozenlake.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ---- settings -------------------------------------------------------------------------------- */

#define S gr_lake_settings
static const gr_setting settings[] = {
    GR_SET_INT(S, size, 2, GR_LAKE_SIZE_MAX, 4, "cells per side of the square map"),
    GR_SET_REAL(S, hole_prob, 0, 0.9, 0.2, "chance that a cell is a hole (1 - gymnasium's p)"),
    GR_SET_REAL(S, success_rate, 0, 1, 1,
                "chance that a move goes where it should; 1: no slipping, 1/3: gymnasium's ice"),
    GR_SET_INT(S, max_turns, 1, 1000, 12, "turns of an episode; maps take at most so many moves"),
    GR_SET_CHOICE(S, format, "compact|grid|coord", GR_LAKE_COMPACT,
                  "text of a map: rows of P H _ G, the same with blanks, or coordinates"),
    GR_LAKE_SETTINGS(S),
};
static const gr_block block = GR_BLOCK(S, "frozenlake", "env.name=frozenlake", settings);
#undef S

gr_status gr_lake_keep(void** self, const void* values)
{
    gr_lake_settings* copy = malloc(sizeof *copy);
    if (copy == NULL) return GR_FAIL(GR_ENOMEM, "frozenlake: out of memory");
    memcpy(copy, values, sizeof *copy);
    *self = copy;
    return GR_OK;
}

void gr_lake_close(void* self) { free(self); }

int64_t gr_lake_n_tasks(void* self, gr_split split)
{
    const gr_lake_settings* s = self;
    return split == GR_TEST ? s->test_maps : s->train_maps;
}

int gr_lake_horizon(void* self) { return (int)((const gr_lake_settings*)self)->max_turns; }

static gr_status lake_open(void** self, const void* values)
{
    static const char* const name[] = {"train", "test", "warm-start"};
    const gr_lake_settings* s = values;
    for (int split = GR_TRAIN; split <= GR_WARMSTART; split++) {
        gr_lake_map map;
        if (gr_lake_map_of_task(s, (gr_split)split, 0, GR_LAKE_PROBE, &map)) continue;
        return GR_FAIL(GR_EARG,
                       "frozenlake: no %s map of size %d with holes at %g and a way of at most %d "
                       "moves among %d seeds",
                       name[split], (int)s->size,
                       split == GR_WARMSTART && s->demo_hole_prob > 0 ? s->demo_hole_prob
                                                                      : s->hole_prob,
                       (int)s->max_turns, GR_LAKE_PROBE);
    }
    return gr_lake_keep(self, values);
}

static size_t lake_state_bytes(void* self)
{
    (void)self;
    return sizeof(gr_lake);
}

static void lake_describe(void* self, gr_world* facts)
{
    static const char* const prompt[] = {
        [GR_LAKE_COMPACT] = "",
        [GR_LAKE_GRID] = "Walk over the frozen lake from P to G. _ is ice, H is a hole. "
                         "Answer with left, down, right or up.\n",
        [GR_LAKE_COORD] = "Walk over the frozen lake to the goal and into no hole. Positions are "
                          "(row, column) from the top left. Answer with left, down, right or up.\n",
    };
    facts->prompt = prompt[((const gr_lake_settings*)self)->format];
}

/* ---- dynamics -------------------------------------------------------------------------------- */

void gr_lake_begin(gr_lake* lake, uint64_t seed)
{
    gr_numpy_seed(&lake->random, seed);
    (void)gr_numpy_uniform(
        &lake->random); /* gymnasium draws the start cell, of which there is one */
    lake->cell = lake->turn = 0;
    lake->reward_sum = 0;
    lake->ended = GR_RUNNING;
    memset(lake->trail, 0, sizeof lake->trail);
}

/* gymnasium's table: the action before, the action, the action after (clockwise from left), drawn
 * as argmax(cumsum(probabilities) > u). */
int gr_lake_slip(double success_rate, int action, double u)
{
    double side = (1.0 - success_rate) / 2.0;
    if (side > u) return (action + 3) % GR_LAKE_ACTIONS;
    if (side + success_rate > u) return action;
    if (side + success_rate + side > u) return (action + 1) % GR_LAKE_ACTIONS;
    return (action + 3) % GR_LAKE_ACTIONS; /* argmax of nothing true is the first */
}

static bool on_goal(const gr_lake* lake)
{
    return lake->cell == lake->map.size * lake->map.size - 1;
}

void gr_lake_slide(const gr_lake_settings* s, gr_lake* lake, int action)
{
    lake->turn++;
    if (action < 0) return;
    double u = gr_numpy_uniform(&lake->random); /* without slipping, too */
    if (s->success_rate < 1) action = gr_lake_slip(s->success_rate, action, u);
    lake->cell = gr_lake_neighbour(&lake->map, lake->cell, action);
}

double gr_lake_settle(const gr_lake_settings* s, gr_lake* lake, int place, bool won)
{
    double reward = won ? 1 : 0;
    lake->trail[lake->turn % (GR_LAKE_WINDOW_MAX + 1)] = (uint8_t)place;
    lake->reward_sum += reward;
    if (won || lake->map.hole[lake->cell]) {
        lake->ended = GR_END_TERMINAL;
    } else if (lake->turn >= s->max_turns) {
        lake->ended = GR_END_TIME_LIMIT;
    }
    return reward;
}

double gr_lake_move(const gr_lake_settings* s, gr_lake* lake, int action)
{
    if (lake->ended != GR_RUNNING) return 0;
    gr_lake_slide(s, lake, action);
    return gr_lake_settle(s, lake, lake->cell, on_goal(lake));
}

static bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

int gr_lake_parse_action(const char* text, int n)
{
    static const char* const word[] = {"left", "down", "right", "up"};
    if (n == 0 || text[n - 1] != '\n') return -1; /* cut off before its end */
    while (n > 0 && is_blank(*text)) text++, n--;
    while (n > 0 && is_blank(text[n - 1])) n--;
    for (int a = 0; a < GR_LAKE_ACTIONS; a++) {
        if ((int)strlen(word[a]) == n && strncasecmp(text, word[a], (size_t)n) == 0) return a;
    }
    return -1;
}

/* ---- what is seen ---------------------------------------------------------------------------- */

/* P the player, X the player in a hole; on the goal P stands for both. */
static char symbol(const gr_lake* lake, int cell)
{
    const gr_lake_map* m = &lake->map;
    if (cell == lake->cell) return m->hole[cell] ? 'X' : 'P';
    if (m->hole[cell]) return 'H';
    return cell == m->size * m->size - 1 ? 'G' : '_';
}

GR_PRINTF(4, 5) static int append(char* text, int n, int cap, const char* fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int more = vsnprintf(text + n, (size_t)(cap - n), fmt, ap);
    va_end(ap);
    GR_ASSERT(more >= 0 && n + more < cap, "text of a map");
    return n + more;
}

/* One line: "Player: (0, 1) Goal: (3, 3) Holes: (1, 1) (2, 3)". */
static int render_coordinates(const gr_lake* lake, char* text, int cap)
{
    const gr_lake_map* m = &lake->map;
    int size = m->size, n_holes = 0;
    int n = append(text, 0, cap, "Player: (%d, %d) Goal: (%d, %d) Holes:", lake->cell / size,
                   lake->cell % size, size - 1, size - 1);
    for (int i = 0; i < size * size; i++) {
        if (m->hole[i]) n = append(text, n, cap, " (%d, %d)", i / size, i % size), n_holes++;
    }
    return append(text, n, cap, n_holes > 0 ? "\n" : " none\n");
}

int gr_lake_render(const gr_lake* lake, int format, char* text, int cap)
{
    if (format == GR_LAKE_COORD) return render_coordinates(lake, text, cap);
    int size = lake->map.size, n = 0;
    GR_ASSERT(cap > 2 * size * size);
    for (int i = 0; i < size * size; i++) {
        bool last = i % size == size - 1;
        text[n++] = symbol(lake, i);
        if (last || format == GR_LAKE_GRID) text[n++] = last ? '\n' : ' ';
    }
    text[n] = 0;
    return n;
}

/* 1 on the goal, 0 where the start or anything farther is; holes have no way at all. */
static double progress(const gr_lake* lake)
{
    int here = lake->map.distance[lake->cell], start = lake->map.distance[0];
    if (here == GR_LAKE_FAR) return 0;
    return 1 - (double)here / GR_MAX(GR_MAX(start, here), 1);
}

double gr_lake_novelty(const uint8_t* trail, int turn, int window)
{
    bool seen[UINT8_MAX + 1] = {false};
    int turns = GR_MIN(window, turn), fresh = 0;
    if (turns == 0) return 1;
    for (int t = turn - turns; t <= turn; t++) {
        int place = trail[t % (GR_LAKE_WINDOW_MAX + 1)];
        fresh += !seen[place] && t > turn - turns;
        seen[place] = true;
    }
    return (double)fresh / turns;
}

double gr_lake_hazard(const gr_lake_map* m, int cell)
{
    int holes = 0;
    for (int a = 0; a < GR_LAKE_ACTIONS; a++) holes += m->hole[gr_lake_neighbour(m, cell, a)];
    return holes / 4.0;
}

static uint64_t hash(const gr_lake* lake)
{
    uint8_t bytes[GR_LAKE_CELLS + 2];
    memcpy(bytes, lake->map.hole, GR_LAKE_CELLS);
    bytes[GR_LAKE_CELLS] = (uint8_t)lake->map.size;
    bytes[GR_LAKE_CELLS + 1] = (uint8_t)lake->cell;
    return gr_hash64(bytes, sizeof bytes, 0);
}

static void observe(const gr_lake_settings* s, const gr_lake* lake, double reward, bool valid,
                    gr_obs* out)
{
    out->n_text = gr_lake_render(lake, s->format, out->text, GR_LAKE_OBS_CAP + 1);
    out->reward = reward;
    out->success = on_goal(lake);
    out->valid = valid;
    out->end = (gr_end)lake->ended;
    memset(out->signal, 0, sizeof out->signal);
    out->signal[0] = progress(lake);
    out->signal[1] = (1 - gr_lake_hazard(&lake->map, lake->cell)) *
                     gr_lake_novelty(lake->trail, lake->turn, (int)s->novelty_window);
    out->signal[2] = GR_MIN(GR_MAX(lake->reward_sum, 0), 1);
    out->signal[3] = lake->map.distance[lake->cell];
    out->hash = hash(lake);
}

/* ---- the world ------------------------------------------------------------------------------- */

static void lake_reset(void* self, void* state, gr_split split, int64_t task, uint64_t key,
                       gr_obs* out)
{
    const gr_lake_settings* s = self;
    gr_lake* lake = state;
    memset(lake, 0, sizeof *lake);
    bool found = gr_lake_map_of_task(s, split, task, GR_LAKE_SEARCH, &lake->map);
    GR_ASSERT(found, "lake_open found maps to be more frequent");
    gr_lake_begin(lake, key == 0 ? lake->map.seed : key);
    observe(s, lake, 0, true, out);
}

static void lake_step(void* self, void* state, const char* action, int n_action, gr_obs* out)
{
    const gr_lake_settings* s = self;
    gr_lake* lake = state;
    int a = n_action <= GR_LAKE_ACTION_CAP ? gr_lake_parse_action(action, n_action) : -1;
    double reward = gr_lake_move(s, lake, a);
    observe(s, lake, reward, a >= 0, out);
}

static void lake_fork(void* self, void* dst, const void* src, uint64_t key)
{
    (void)self;
    memcpy(dst, src, sizeof(gr_lake));
    if (key != 0) gr_numpy_seed(&((gr_lake*)dst)->random, key);
}

const gr_world gr_world_frozenlake = {
    .name = "frozenlake",
    .block = &block,
    .signal = {"progress", "safe_novelty", "reward", "distance"},
    .n_signals = 4,
    .prompt = "",
    .stop = "\n",
    .action_cap = GR_LAKE_ACTION_CAP,
    .obs_cap = GR_LAKE_OBS_CAP,
    .open = lake_open,
    .close = gr_lake_close,
    .describe = lake_describe,
    .n_tasks = gr_lake_n_tasks,
    .horizon = gr_lake_horizon,
    .state_bytes = lake_state_bytes,
    .reset = lake_reset,
    .step = lake_step,
    .fork = lake_fork,
    .demonstrate = gr_lake_demonstrate,
};
