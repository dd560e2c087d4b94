/* keydoor.c - cross the frozen lake by way of a key: without it the goal is a locked door.
 *
 * A map is seen as rows of P H _ with K for the key and D for the door; when the key is taken, K is
 * gone and the door is the goal, G. A player on the locked door stands there like on ice. Below the
 * map stand row and column of the player and of what is to be reached next, since a small model
 * does not find two letters in a map and compare their places: `P23 K41`. Signals are privileged:
 * progress counts the moves of both legs. */
#include "envs/keydoor.h"

#include <stdio.h>
#include <string.h>

#define S gr_lake_settings
static const gr_setting settings[] = {
    GR_SET_INT(S, size, 3, GR_LAKE_SIZE_MAX, 6, "cells per side of the square map"),
    GR_SET_REAL(S, hole_prob, 0, 0.9, 0.15, "chance that a cell is a hole"),
    GR_SET_REAL(S, success_rate, 0, 1, 1,
                "chance that a move goes where it should; 1: no slipping, 1/3: gymnasium's ice"),
    GR_SET_INT(S, max_turns, 2, 1000, 24, "turns of an episode; both legs fit into them"),
    GR_LAKE_SETTINGS(S),
};
static const gr_block block = GR_BLOCK(S, "keydoor", "env.name=keydoor", settings);
#undef S

enum { MAX_BOARDS = 1024, KEY_CELL = 0x6b6579 };

/* ---- tasks ------------------------------------------------------------------------------------- */

static int goal_of(const gr_lake_map* m) { return m->size * m->size - 1; }

bool gr_keydoor_place(gr_keydoor* k, int64_t max_turns)
{
    const gr_lake_map* m = &k->lake.map;
    uint8_t from_start[GR_LAKE_CELLS];
    int fit[GR_LAKE_CELLS], n = 0;
    gr_lake_measure(m, 0, from_start);
    for (int i = 1; i < goal_of(m); i++) {
        if (m->hole[i] || from_start[i] == GR_LAKE_FAR || m->distance[i] == GR_LAKE_FAR) continue;
        if (from_start[i] + m->distance[i] <= max_turns) fit[n++] = i;
    }
    if (n == 0) return false;
    k->key = (uint8_t)fit[(int)(gr_uniform(gr_key_join(m->seed, KEY_CELL), 0) * n)];
    gr_lake_measure(m, k->key, k->to_key);
    return true;
}

/* Map and key of a task: of the seeds task, task + 2^32, ... the first that fits and belongs to the
 * split. */
static bool find_task(const gr_lake_settings* s, gr_split split, int64_t task, int64_t max_tries,
                      gr_keydoor* k)
{
    bool demo = split == GR_WARMSTART && s->demo_hole_prob > 0;
    double hole_prob = demo ? s->demo_hole_prob : s->hole_prob;
    gr_lake_map* m = &k->lake.map;
    for (int64_t i = 0; i < max_tries; i++) {
        uint64_t seed = (uint64_t)task + ((uint64_t)i << 32);
        if (!gr_lake_map_generate(m, (int)s->size, hole_prob, seed, MAX_BOARDS)) continue;
        if (gr_lake_map_is_test(m) != (split == GR_TEST)) continue;
        if (gr_keydoor_place(k, s->max_turns)) return true;
    }
    return false;
}

static gr_status keydoor_open(void** self, const void* values)
{
    static const char* const name[] = {"train", "test", "warm-start"};
    const gr_lake_settings* s = values;
    for (int split = GR_TRAIN; split <= GR_WARMSTART; split++) {
        gr_keydoor k = {0};
        if (find_task(s, (gr_split)split, 0, GR_LAKE_PROBE, &k)) continue;
        return GR_FAIL(GR_EARG,
                       "keydoor: no %s map of size %d with both legs in %d moves among %d seeds",
                       name[split], (int)s->size, (int)s->max_turns, GR_LAKE_PROBE);
    }
    return gr_lake_keep(self, values);
}

static size_t keydoor_state_bytes(void* self)
{
    (void)self;
    return sizeof(gr_keydoor);
}

/* ---- dynamics ---------------------------------------------------------------------------------- */

static bool won(const gr_keydoor* k) { return k->has_key && k->lake.cell == goal_of(&k->lake.map); }

double gr_keydoor_move(const gr_lake_settings* s, gr_keydoor* k, int action)
{
    gr_lake* lake = &k->lake;
    if (lake->ended != GR_RUNNING) return 0;
    gr_lake_slide(s, lake, action);
    k->has_key = k->has_key || lake->cell == k->key;
    return gr_lake_settle(s, lake, lake->cell + (k->has_key ? GR_LAKE_CELLS : 0), won(k));
}

/* ---- what is seen ------------------------------------------------------------------------------ */

static char symbol(const gr_keydoor* k, int cell)
{
    const gr_lake_map* m = &k->lake.map;
    if (cell == k->lake.cell) return m->hole[cell] ? 'X' : 'P';
    if (m->hole[cell]) return 'H';
    if (cell == goal_of(m)) return k->has_key ? 'G' : 'D';
    return cell == k->key && !k->has_key ? 'K' : '_';
}

int gr_keydoor_render(const gr_keydoor* k, char* text)
{
    int size = k->lake.map.size, n = 0;
    for (int i = 0; i < size * size; i++) {
        text[n++] = symbol(k, i);
        if (i % size == size - 1) text[n++] = '\n';
    }
    int at = k->lake.cell, next = k->has_key ? goal_of(&k->lake.map) : k->key;
    return n + snprintf(text + n, (size_t)(GR_LAKE_OBS_CAP + 1 - n), "P%d%d %c%d%d\n", at / size,
                        at % size, k->has_key ? 'G' : 'K', next / size, next % size);
}

int gr_keydoor_way(const gr_keydoor* k)
{
    const gr_lake_map* m = &k->lake.map;
    return k->has_key ? m->distance[k->lake.cell] : k->to_key[k->lake.cell] + m->distance[k->key];
}

/* 1 on the opened door, 0 where the whole way or more is left, and in holes. */
static double progress(const gr_keydoor* k)
{
    int here = gr_keydoor_way(k), start = k->to_key[0] + k->lake.map.distance[k->key];
    if (here >= GR_LAKE_FAR) return 0;
    return 1 - (double)here / GR_MAX(start, here);
}

static uint64_t hash(const gr_keydoor* k)
{
    uint8_t bytes[GR_LAKE_CELLS + 4];
    memcpy(bytes, k->lake.map.hole, GR_LAKE_CELLS);
    bytes[GR_LAKE_CELLS] = (uint8_t)k->lake.map.size;
    bytes[GR_LAKE_CELLS + 1] = (uint8_t)k->lake.cell;
    bytes[GR_LAKE_CELLS + 2] = k->key;
    bytes[GR_LAKE_CELLS + 3] = k->has_key;
    return gr_hash64(bytes, sizeof bytes, 0);
}

static void observe(const gr_lake_settings* s, const gr_keydoor* k, double reward, bool valid,
                    gr_obs* out)
{
    const gr_lake* lake = &k->lake;
    out->n_text = gr_keydoor_render(k, out->text);
    out->reward = reward;
    out->success = won(k);
    out->valid = valid;
    out->end = (gr_end)lake->ended;
    memset(out->signal, 0, sizeof out->signal);
    out->signal[0] = progress(k);
    out->signal[1] = (1 - gr_lake_hazard(&lake->map, lake->cell)) *
                     gr_lake_novelty(lake->trail, lake->turn, (int)s->novelty_window);
    out->signal[2] = GR_MIN(GR_MAX(lake->reward_sum, 0), 1);
    out->signal[3] = k->has_key;
    out->signal[4] = gr_keydoor_way(k);
    out->hash = hash(k);
}

/* ---- the world --------------------------------------------------------------------------------- */

static void keydoor_reset(void* self, void* state, gr_split split, int64_t task, uint64_t key,
                          gr_obs* out)
{
    gr_keydoor* k = state;
    memset(k, 0, sizeof *k);
    bool found = find_task(self, split, task, GR_LAKE_SEARCH, k);
    GR_ASSERT(found, "keydoor_open found maps to be more frequent");
    gr_lake_begin(&k->lake, key == 0 ? k->lake.map.seed : key);
    observe(self, k, 0, true, out);
}

static void keydoor_step(void* self, void* state, const char* action, int n_action, gr_obs* out)
{
    int a = n_action <= GR_LAKE_ACTION_CAP ? gr_lake_parse_action(action, n_action) : -1;
    double reward = gr_keydoor_move(self, state, a);
    observe(self, state, reward, a >= 0, out);
}

static void keydoor_fork(void* self, void* dst, const void* src, uint64_t key)
{
    (void)self;
    memcpy(dst, src, sizeof(gr_keydoor));
    if (key != 0) gr_numpy_seed(&((gr_keydoor*)dst)->lake.random, key);
}

static int keydoor_demonstrate(void* self, const void* state, uint64_t key, int turn, char* action,
                               int cap)
{
    const gr_keydoor* k = state;
    const gr_lake_map* m = &k->lake.map;
    int to = k->has_key ? goal_of(m) : k->key;
    const uint8_t* distance = k->has_key ? m->distance : k->to_key;
    int a = gr_lake_walk(self, m, k->lake.cell, to, distance, key, turn);
    return gr_lake_action_text(a, action, cap);
}

static int keydoor_subgoal(void* self, const void* state, char* text, int cap)
{
    const gr_keydoor* k = state;
    (void)self;
    return snprintf(text, (size_t)cap, "%s", k->has_key ? "door" : "key");
}

const gr_world gr_world_keydoor = {
    .name = "keydoor",
    .block = &block,
    .signal = {"progress", "safe_novelty", "reward", "key", "distance"},
    .n_signals = 5,
    .prompt = "",
    .stop = "\n",
    .action_cap = GR_LAKE_ACTION_CAP,
    .obs_cap = GR_LAKE_OBS_CAP,
    .open = keydoor_open,
    .close = gr_lake_close,
    .n_tasks = gr_lake_n_tasks,
    .horizon = gr_lake_horizon,
    .state_bytes = keydoor_state_bytes,
    .reset = keydoor_reset,
    .step = keydoor_step,
    .fork = keydoor_fork,
    .demonstrate = keydoor_demonstrate,
    .subgoal = keydoor_subgoal,
};
