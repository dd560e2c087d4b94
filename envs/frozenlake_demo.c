/* frozenlake_demo.c - imperfect demonstrators, so that a warm start leaves something to learn.
 *
 * An episode is walked either by an expert (any shortest path around the holes) or by a walker who
 * heads for the goal but sees no holes. Noise makes single actions random; a stuck walker repeats
 * one action to the end. All draws are functions of (key, turn). */
#include <stdio.h>

#include "envs/frozenlake.h"

enum { DRAW_NOISE, DRAW_NOISE_ACTION, DRAW_STUCK, DRAW_STUCK_ACTION, DRAW_CHOICE, N_DRAWS };

static double draw(uint64_t key, int turn, int which)
{
    return gr_uniform(key, 1 + (uint64_t)turn * N_DRAWS + (uint64_t)which); /* 0: which walker */
}

static int draw_action(uint64_t key, int turn, int which)
{
    return (int)(draw(key, turn, which) * GR_LAKE_ACTIONS);
}

/* Moves still to go as this walker sees it. */
static int way_to_go(const gr_lake_map* m, int cell, bool expert)
{
    if (expert) return m->distance[cell];
    return (m->size - 1 - cell / m->size) + (m->size - 1 - cell % m->size);
}

/* Any of the actions that come nearer to the goal, by equal chance. */
static int approach(const gr_lake* lake, bool expert, double u)
{
    const gr_lake_map* m = &lake->map;
    int nearer[GR_LAKE_ACTIONS], n = 0;
    for (int a = 0; a < GR_LAKE_ACTIONS; a++) {
        int next = gr_lake_neighbour(m, lake->cell, a);
        if (way_to_go(m, next, expert) < way_to_go(m, lake->cell, expert)) nearer[n++] = a;
    }
    return n > 0 ? nearer[(int)(u * n)] : (int)(u * GR_LAKE_ACTIONS);
}

/* The action a walker is stuck on by this turn, or -1. */
static int stuck(const gr_lake_settings* s, uint64_t key, int turn)
{
    for (int t = 0; t <= turn && s->demo_repeat > 0; t++) {
        if (draw(key, t, DRAW_STUCK) < s->demo_repeat)
            return draw_action(key, t, DRAW_STUCK_ACTION);
    }
    return -1;
}

int gr_lake_demonstrate(void* self, const void* state, uint64_t key, int turn, char* action,
                        int cap)
{
    static const char* const word[] = {"left\n", "down\n", "right\n", "up\n"};
    const gr_lake_settings* s = self;
    int a = stuck(s, key, turn);
    if (a < 0) {
        bool expert = gr_uniform(key, 0) < s->demo_expert;
        a = draw(key, turn, DRAW_NOISE) < s->demo_noise
                ? draw_action(key, turn, DRAW_NOISE_ACTION)
                : approach(state, expert, draw(key, turn, DRAW_CHOICE));
    }
    int n = snprintf(action, (size_t)cap, "%s", word[a]);
    GR_ASSERT(n < cap);
    return n;
}
