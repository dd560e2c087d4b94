/* frozenlake_map.c - which map a task has. */
#include <string.h>

#include "envs/frozenlake.h"

enum { MAX_BOARDS = 1024 };

int gr_lake_neighbour(const gr_lake_map* m, int cell, int action)
{
    int size = m->size, row = cell / size, col = cell % size;
    switch (action) {
    case GR_LAKE_LEFT:
        return col > 0 ? cell - 1 : cell;
    case GR_LAKE_DOWN:
        return row < size - 1 ? cell + size : cell;
    case GR_LAKE_RIGHT:
        return col < size - 1 ? cell + 1 : cell;
    default:
        return row > 0 ? cell - size : cell;
    }
}

/* Breadth first from `to`. */
void gr_lake_measure(const gr_lake_map* m, int to, uint8_t* distance)
{
    int queue[GR_LAKE_CELLS], head = 0, tail = 0;
    memset(distance, GR_LAKE_FAR, GR_LAKE_CELLS);
    distance[to] = 0;
    queue[tail++] = to;
    while (head < tail) {
        int cell = queue[head++];
        for (int a = 0; a < GR_LAKE_ACTIONS; a++) {
            int next = gr_lake_neighbour(m, cell, a);
            if (m->hole[next] || distance[next] != GR_LAKE_FAR) continue;
            distance[next] = (uint8_t)(distance[cell] + 1);
            queue[tail++] = next;
        }
    }
}

static void measure(gr_lake_map* m) { gr_lake_measure(m, m->size * m->size - 1, m->distance); }

bool gr_lake_map_generate(gr_lake_map* m, int size, double hole_prob, uint64_t seed, int max_boards)
{
    double p = 1 - hole_prob, frozen_below = p / (p + (1 - p)); /* numpy normalises like this */
    gr_numpy_random random;
    memset(m, 0, sizeof *m);
    m->seed = seed;
    m->size = size;
    gr_numpy_seed(&random, seed);
    for (int board = 0; board < max_boards; board++) {
        for (int i = 0; i < size * size; i++)
            m->hole[i] = gr_numpy_uniform(&random) >= frozen_below;
        m->hole[0] = m->hole[size * size - 1] = 0;
        measure(m);
        if (m->distance[0] != GR_LAKE_FAR) return true;
    }
    return false;
}

void gr_lake_map_parse(gr_lake_map* m, int size, const char* cells)
{
    memset(m, 0, sizeof *m);
    m->size = size;
    for (int i = 0; i < size * size; i++) m->hole[i] = cells[i] == 'H';
    measure(m);
}

bool gr_lake_map_is_test(const gr_lake_map* m)
{
    return gr_hash64(m->hole, sizeof m->hole, (uint64_t)m->size) % 8 == 0;
}

bool gr_lake_map_of_task(const gr_lake_settings* s, gr_split split, int64_t task, int64_t max_tries,
                         gr_lake_map* m)
{
    bool demo = split == GR_WARMSTART && s->demo_hole_prob > 0;
    double hole_prob = demo ? s->demo_hole_prob : s->hole_prob;
    for (int64_t i = 0; i < max_tries; i++) {
        uint64_t seed = (uint64_t)task + ((uint64_t)i << 32);
        if (!gr_lake_map_generate(m, (int)s->size, hole_prob, seed, MAX_BOARDS)) continue;
        if (m->distance[0] > s->max_turns) continue;
        if (gr_lake_map_is_test(m) == (split == GR_TEST)) return true;
    }
    return false;
}
