/* frozenlake.h - inside of the FrozenLake world, shared by its files and its tests. Level 1.
 *
 * Dynamics, maps and random streams are gymnasium's FrozenLakeEnv exactly (gymnasium 1.4, MIT
 * licence, Farama Foundation): its generate_random_map(size, 1 - hole_prob, seed), one draw at
 * reset and one per step. One map per task: of the seeds task, task + 2^32, task + 2 * 2^32, ...
 * the first whose map belongs to the split and has its goal within max_turns moves (seeds that find
 * no way on 1024 boards are passed over). A map belongs to the test split when its hash is a
 * multiple of 8, else to the others: splits are disjoint by what is on the map, not only by seed,
 * and warm-start maps of another difficulty are never test maps. */
#pragma once
#include "envs/env.h"
#include "envs/numpy_random.h"

enum {
    GR_LAKE_SIZE_MAX = 10,
    GR_LAKE_CELLS = GR_LAKE_SIZE_MAX * GR_LAKE_SIZE_MAX,
    GR_LAKE_OBS_CAP = 8 * GR_LAKE_CELLS + 64, /* " (9, 9)" for each hole, and the rest */
    GR_LAKE_WINDOW_MAX = 31,
    GR_LAKE_FAR = 255, /* distance of cells that have no way to the goal */
};
enum { GR_LAKE_COMPACT, GR_LAKE_GRID, GR_LAKE_COORD };
/* gymnasium's numbers; the order is also that of the slip table. */
enum { GR_LAKE_LEFT, GR_LAKE_DOWN, GR_LAKE_RIGHT, GR_LAKE_UP, GR_LAKE_ACTIONS };

typedef struct gr_lake_settings {
    int64_t size, max_turns, novelty_window, train_maps, test_maps;
    double hole_prob, success_rate;
    int format;
    double demo_hole_prob, demo_expert, demo_noise, demo_repeat;
} gr_lake_settings;

/* Cells row by row; start top left, goal bottom right. */
typedef struct gr_lake_map {
    uint64_t seed;
    int32_t size;
    uint8_t hole[GR_LAKE_CELLS];
    uint8_t distance[GR_LAKE_CELLS]; /* moves to the goal around the holes, GR_LAKE_FAR: no way */
} gr_lake_map;

/* The whole state of an episode. */
typedef struct gr_lake {
    gr_numpy_random random;
    gr_lake_map map;
    double reward_sum;
    int32_t cell, turn;
    uint8_t trail[GR_LAKE_WINDOW_MAX + 1]; /* positions by turn, a ring */
    uint8_t ended;                         /* gr_end */
} gr_lake;

extern const gr_world gr_world_frozenlake;

/* ---- frozenlake.c: what every world on the ice shares ---- */

/* The last settings of each. */
#define GR_LAKE_SETTINGS(S)                                                                      \
    GR_SET_INT(S, novelty_window, 1, GR_LAKE_WINDOW_MAX, 5,                                      \
               "turns that the signal safe_novelty looks back"),                                 \
        GR_SET_INT(S, train_maps, 1, 4294967295.0, 1e9, "training tasks, and warm-start tasks"), \
        GR_SET_INT(S, test_maps, 1, 4294967295.0, 1e5,                                           \
                   "test tasks; their maps are never trained on"),                               \
        GR_SET_REAL(S, demo_hole_prob, 0, 0.9, 0, "hole_prob of demonstrations; 0: the same"),   \
        GR_SET_REAL(S, demo_expert, 0, 1, 0.5,                                                   \
                    "share of demonstrations by shortest path; the others do not see holes"),    \
        GR_SET_REAL(S, demo_noise, 0, 1, 0.5, "chance that a demonstrated action is random"),    \
        GR_SET_REAL(S, demo_repeat, 0, 1, 0,                                                     \
                    "chance per turn that a demonstrator gets stuck on one action for good")

enum { GR_LAKE_ACTION_CAP = 8 };
/* Fewer maps than one in PROBE seeds count as none. */
enum { GR_LAKE_PROBE = 1024, GR_LAKE_SEARCH = 1 << 20 };

/* Of gr_world: *self becomes a copy of the settings, which close frees. */
GR_MUST_CHECK gr_status gr_lake_keep(void** self, const void* values);
void gr_lake_close(void* self);
int64_t gr_lake_n_tasks(void* self, gr_split split);
int gr_lake_horizon(void* self);

/* A turn begins: the player goes where the action and the ice say. action -1: not understood. */
void gr_lake_slide(const gr_lake_settings* s, gr_lake* lake, int action);
/* A turn ends: the place (a cell, or what tells its novelty) is noted; returns the reward. */
double gr_lake_settle(const gr_lake_settings* s, gr_lake* lake, int place, bool won);

/* ---- frozenlake_map.c ---- */

/* gymnasium's map of this seed; false if none of the first `max_boards` boards has a way. */
bool gr_lake_map_generate(gr_lake_map* m, int size, double hole_prob, uint64_t seed,
                          int max_boards);
/* From rows of S F H G one after the other, as gymnasium writes them. */
void gr_lake_map_parse(gr_lake_map* m, int size, const char* cells);
bool gr_lake_map_is_test(const gr_lake_map* m);
/* The map of a task. False, after `max_tries` seeds, if there is none. */
bool gr_lake_map_of_task(const gr_lake_settings* s, gr_split split, int64_t task, int64_t max_tries,
                         gr_lake_map* m);
int gr_lake_neighbour(const gr_lake_map* m, int cell, int action); /* walls: stay */
/* Moves from every cell to cell `to` around the holes, GR_LAKE_FAR: no way. (GR_LAKE_CELLS) */
void gr_lake_measure(const gr_lake_map* m, int to, uint8_t* distance);

/* ---- frozenlake.c ---- */

/* Starts an episode on lake->map: the stream of `seed` with its first draw taken. */
void gr_lake_begin(gr_lake* lake, uint64_t seed);
/* One move; returns its reward. action -1: not understood, nothing moves and nothing is drawn. */
double gr_lake_move(const gr_lake_settings* s, gr_lake* lake, int action);
int gr_lake_parse_action(const char* text, int n);
/* Where a move goes under gymnasium's slip table; u: the step's draw. */
int gr_lake_slip(double success_rate, int action, double u);
/* Share of a cell's four neighbours that are holes. */
double gr_lake_hazard(const gr_lake_map* m, int cell);
/* Share of the last turns that reached a place not seen before within the window. */
double gr_lake_novelty(const uint8_t* trail, int turn, int window);
int gr_lake_render(const gr_lake* lake, int format, char* text, int cap); /* returns its length */

/* ---- frozenlake_demo.c ---- */

/* The action of this episode's walker on the way to cell `to`; distance: gr_lake_measure of it. */
int gr_lake_walk(const gr_lake_settings* s, const gr_lake_map* m, int cell, int to,
                 const uint8_t* distance, uint64_t key, int turn);
int gr_lake_action_text(int a, char* text, int cap); /* stop text included; returns its length */
int gr_lake_demonstrate(void* self, const void* state, uint64_t key, int turn, char* action,
                        int cap);
