/* keydoor.h - inside of the key-and-door lake, shared with its tests. Level 1.
 *
 * FrozenLake's maps, ice and random stream (envs/frozenlake.h) with one thing to do first: the goal
 * is a locked door until the key has been walked over. Only then does the goal end the episode and
 * give its reward, so one sparse reward stands behind two legs. The key lies on a cell that the
 * task's seed draws (by a stream of its own: gymnasium's is untouched) among those from which both
 * legs together take at most max_turns moves. */
#pragma once
#include "envs/frozenlake.h"

/* The whole state of an episode. lake.trail holds cells, + GR_LAKE_CELLS with the key in hand. */
typedef struct gr_keydoor {
    gr_lake lake;
    uint8_t to_key[GR_LAKE_CELLS]; /* moves to the key around the holes */
    uint8_t key;                   /* its cell */
    bool has_key;
} gr_keydoor;

extern const gr_world gr_world_keydoor;

/* Lays the key on the map; false if no cell fits into max_turns. */
bool gr_keydoor_place(gr_keydoor* k, int64_t max_turns);
/* One move; returns its reward. action -1: not understood. */
double gr_keydoor_move(const gr_lake_settings* s, gr_keydoor* k, int action);
/* Moves still to go, over the key if it is not in hand; GR_LAKE_FAR or more: no way. */
int gr_keydoor_way(const gr_keydoor* k);
int gr_keydoor_render(const gr_keydoor* k, char* text); /* (GR_LAKE_OBS_CAP + 1); returns
                                                          * its length */
