/* frozenlake_demo.c - imperfect demonstrators, so that a warm start leaves something to learn.
 *
 * An episode is walked either by an expert (any shortest path around the holes) or by a walker who
 * heads for the goal but sees no holes. Noise makes single actions random; a stuck walker repeats
 * one action to the end. All draws are functions of (key, turn). */
#include <stdio.h>
#include <stdlib.h>

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

/* Where a walker goes: an expert measures the way around the holes, others as the crow flies. */
typedef struct heading {
    const gr_lake_map* m;
    int to;
    const uint8_t* distance; /* NULL: does not see holes */
} heading;

static int way_to_go(const heading* h, int cell)
{
    int size = h->m->size;
    if (h->distance != NULL) return h->distance[cell];
    return abs(h->to / size - cell / size) + abs(h->to % size - cell % size);
}

/* Any of the actions that come nearer, by equal chance. */
static int approach(const heading* h, int cell, double u)
{
    int nearer[GR_LAKE_ACTIONS], n = 0;
    for (int a = 0; a < GR_LAKE_ACTIONS; a++) {
        int next = gr_lake_neighbour(h->m, cell, a);
        if (way_to_go(h, next) < way_to_go(h, cell)) nearer[n++] = a;
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

int gr_lake_walk(const gr_lake_settings* s, const gr_lake_map* m, int cell, int to,
                 const uint8_t* distance, uint64_t key, int turn)
{
    int a = stuck(s, key, turn);
    if (a >= 0) return a;
    if (draw(key, turn, DRAW_NOISE) < s->demo_noise) {
        return draw_action(key, turn, DRAW_NOISE_ACTION);
    }
    bool expert = gr_uniform(key, 0) < s->demo_expert;
    heading h = {.m = m, .to = to, .distance = expert ? distance : NULL};
    return approach(&h, cell, draw(key, turn, DRAW_CHOICE));
}

int gr_lake_action_text(int a, char* text, int cap)
{
    static const char* const word[] = {"left\n", "down\n", "right\n", "up\n"};
    int n = snprintf(text, (size_t)cap, "%s", word[a]);
    GR_ASSERT(n < cap);
    return n;
}

int gr_lake_demonstrate(void* self, const void* state, uint64_t key, int turn, char* action,
                        int cap)
{
    const gr_lake* lake = state;
    const gr_lake_map* m = &lake->map;
    int goal = m->size * m->size - 1;
    return gr_lake_action_text(gr_lake_walk(self, m, lake->cell, goal, m->distance, key, turn),
                               action, cap);
}
