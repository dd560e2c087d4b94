/* test_envs.c - FrozenLake against gymnasium, and the handles that every world is seen through. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "envs/frozenlake.h"

#define ASSERT_OK(call)                                                \
    do {                                                               \
        gr_status got_ = (call);                                       \
        if (got_ != GR_OK) fail_msg("%s: %s", #call, gr_last_error()); \
    } while (0)

static gr_lake_settings lake_defaults(void)
{
    gr_lake_settings s;
    const gr_block* b = gr_world_frozenlake.block;
    assert_int_equal(b->struct_bytes, sizeof s);
    for (int i = 0; i < b->n_settings; i++) {
        char* field = (char*)&s + b->setting[i].offset;
        double def = b->setting[i].def;
        switch (b->setting[i].type) {
        case GR_INT:
            *(int64_t*)(void*)field = (int64_t)def;
            break;
        case GR_REAL:
            *(double*)(void*)field = def;
            break;
        case GR_CHOICE:
            *(int*)(void*)field = (int)def;
            break;
        default:
            fail();
        }
    }
    return s;
}

static gr_envs* open_lake(const gr_lake_settings* s, int max_handles)
{
    gr_envs* e = NULL;
    ASSERT_OK(gr_envs_open(&e, &gr_world_frozenlake, s, max_handles));
    return e;
}

static const gr_obs* answer(gr_envs* e, int handle)
{
    gr_env_reply r;
    assert_true(gr_envs_poll(e, &r, true));
    assert_int_equal(r.handle, handle);
    assert_int_equal(r.error, GR_ENV_OK);
    return r.obs;
}

static const gr_obs* act(gr_envs* e, int handle, const char* action)
{
    gr_envs_step(e, handle, action, (int)strlen(action), 0);
    return answer(e, handle);
}

static const char* const word[] = {"left\n", "down\n", "right\n", "up\n"};
static int below(uint64_t key, uint64_t at, int n) { return (int)(gr_uniform(key, at) * n); }

/* ---- golden files ---------------------------------------------------------------------------- */

/* A map as the R lines make it: the board, then start and goal, all drawn again if they will not
 * do. */
static void map_with_drawn_ends(int size, double p, uint64_t seed, char* cells)
{
    gr_numpy_random r;
    gr_numpy_seed(&r, seed);
    for (;;) {
        gr_lake_map m = {.size = size};
        for (int i = 0; i < size * size; i++) {
            cells[i] = gr_numpy_uniform(&r) < p / (p + (1 - p)) ? 'F' : 'H';
        }
        uint32_t n = (uint32_t)size, end[2] = {0};
        for (int i = 0; i < 2; i++) {
            end[i] = gr_numpy_integer(&r, n) * n;
            end[i] += gr_numpy_integer(&r, n);
        }
        if (end[0] == end[1]) continue;
        cells[end[0]] = 'S';
        cells[end[1]] = 'G';
        bool seen[GR_LAKE_CELLS] = {false};
        seen[end[0]] = true;
        for (int round = 0; round < size * size; round++) {
            for (int i = 0; i < size * size; i++) {
                for (int a = 0; seen[i] && a < 4; a++) {
                    int next = gr_lake_neighbour(&m, i, a);
                    seen[next] |= cells[next] != 'H';
                }
            }
        }
        if (seen[end[1]]) return;
    }
}

static bool same_cells(const gr_lake_map* m, const char* cells)
{
    for (int i = 0; i < m->size * m->size; i++) {
        if (m->hole[i] != (cells[i] == 'H')) return false;
    }
    return cells[0] == 'S' && cells[m->size * m->size - 1] == 'G';
}

static void check_draws(char kind, uint32_t n, uint64_t seed, const char* values)
{
    gr_numpy_random r;
    gr_numpy_seed(&r, seed);
    char* at = NULL;
    for (const char* p = values; *p != 0 && *p != '\n'; p = at) {
        if (kind == 'U')
            assert_true(strtod(p, &at) == gr_numpy_uniform(&r));
        else
            assert_int_equal(strtoull(p, &at, 10), gr_numpy_integer(&r, n));
    }
}

static void draws_and_maps_are_numpys_and_gymnasiums(void** state)
{
    (void)state;
    FILE* f = fopen("tests/golden/frozenlake_maps.txt", "r");
    assert_non_null(f);
    char line[512], kind;
    unsigned n;
    double p;
    unsigned long long seed;
    int at, lines = 0;
    for (; fgets(line, sizeof line, f) != NULL; lines++) {
        assert_int_equal(sscanf(line, " %c %u %lf %llu %n", &kind, &n, &p, &seed, &at), 4);
        if (kind == 'G') {
            gr_lake_map m;
            assert_true(gr_lake_map_generate(&m, (int)n, 1 - p, seed, 1000));
            assert_true(same_cells(&m, line + at));
        } else if (kind == 'R') {
            char cells[GR_LAKE_CELLS];
            map_with_drawn_ends((int)n, p, seed, cells);
            assert_memory_equal(cells, line + at, (size_t)n * n);
        } else {
            check_draws(kind, n, seed, line + at);
        }
    }
    assert_true(lines > 1600);
    fclose(f);
}

typedef struct episode {
    int size;
    double p, rate, reward;
    unsigned long long seed;
    char cells[GR_LAKE_CELLS + 1], action[64], states[128];
    int terminated;
} episode;

static int replay(const episode* g)
{
    gr_lake_settings s = lake_defaults();
    gr_lake lake = {0};
    s.size = g->size;
    s.success_rate = g->rate;
    s.max_turns = 1000;
    if (g->p > 0)
        assert_true(gr_lake_map_generate(&lake.map, g->size, 1 - g->p, g->seed, 1000));
    else
        gr_lake_map_parse(&lake.map, g->size, g->cells);
    assert_true(same_cells(&lake.map, g->cells));
    gr_lake_begin(&lake, g->seed);
    int n = (int)strlen(g->action);
    double reward = 0;
    for (int i = 0; i <= n; i++) {
        assert_int_equal(lake.cell, (g->states[2 * i] - '0') * 10 + g->states[2 * i + 1] - '0');
        assert_int_equal(lake.ended, i == n && g->terminated ? GR_END_TERMINAL : GR_RUNNING);
        if (i < n) reward = gr_lake_move(&s, &lake, g->action[i] - '0');
    }
    assert_true(reward == g->reward);
    gr_numpy_random stream; /* one draw at reset and one per step, on firm ice too */
    gr_numpy_seed(&stream, g->seed);
    for (int i = 0; i <= n; i++) (void)gr_numpy_uniform(&stream);
    assert_memory_equal(&stream, &lake.random, sizeof stream);
    return n;
}

static void transitions_are_gymnasiums(void** state)
{
    (void)state;
    FILE* f = fopen("tests/golden/frozenlake_steps.txt", "r");
    assert_non_null(f);
    episode g;
    int steps = 0;
    while (fscanf(f, "%d %lf %llu %lf %100s %63s %127s %lf %d", &g.size, &g.p, &g.seed, &g.rate,
                  g.cells, g.action, g.states, &g.reward, &g.terminated) == 9) {
        steps += replay(&g);
    }
    assert_true(feof(f));
    assert_true(steps >= 10000);
    fclose(f);
}

/* ---- dynamics against theory ----------------------------------------------------------------- */

enum { TURNS_MAX = 200 };
static uint8_t best[TURNS_MAX + 1][GR_LAKE_CELLS]; /* action by turns left and cell */

/* Chance to reach the goal within `turns` under the best policy, by value iteration. */
static double value_iteration(const gr_lake_map* m, double rate, int turns)
{
    double v[2][GR_LAKE_CELLS] = {{0}};
    int cells = m->size * m->size;
    v[0][cells - 1] = v[1][cells - 1] = 1;
    for (int left = 1; left <= turns; left++) {
        const double* before = v[(left + 1) % 2];
        for (int c = 0; c < cells - 1; c++) {
            double most = -1;
            for (int a = 0; a < 4 && !m->hole[c]; a++) {
                double q = rate * before[gr_lake_neighbour(m, c, a)];
                q += (1 - rate) / 2 * before[gr_lake_neighbour(m, c, (a + 1) % 4)];
                q += (1 - rate) / 2 * before[gr_lake_neighbour(m, c, (a + 3) % 4)];
                if (q > most) best[left][c] = (uint8_t)a, most = q;
            }
            v[left % 2][c] = m->hole[c] ? 0 : most;
        }
    }
    return v[turns % 2][0];
}

static void best_policy_succeeds_as_often_as_theory_says(void** state)
{
    (void)state;
    const char* small = "SFFFFHFHFFFHHFFG";
    const char* large = "SFFFFFFFFFFFFFFFFFFHFFFFFFFFFHFFFFFHFFFFFHHFFFHFFHFFHFHFFFFHFFFG";
    const struct {
        const char* cells;
        int size, turns;
        double rate, success;
    } all[] = {
        {small, 4, 100, 1.0 / 3, 0.744190}, {large, 8, 200, 1.0 / 3, 0.913220},
        {small, 4, 100, 0.8, 0.893954},     {small, 4, 10, 0.8, 0.689570},
        {small, 4, 10, 1.0 / 3, 0.041406},
    };
    for (int i = 0; i < GR_COUNT(all); i++) {
        gr_lake_settings s = lake_defaults();
        s.success_rate = all[i].rate;
        s.max_turns = all[i].turns;
        gr_lake lake = {0};
        gr_lake_map_parse(&lake.map, all[i].size, all[i].cells);
        double p = value_iteration(&lake.map, all[i].rate, all[i].turns);
        assert_float_equal((float)p, (float)all[i].success, 1e-6f);
        int episodes = 20000, solved = 0;
        for (int k = 0; k < episodes; k++) {
            gr_lake_begin(&lake, gr_key_join(7, (uint64_t)k));
            while (lake.ended == GR_RUNNING) {
                solved += gr_lake_move(&s, &lake, best[all[i].turns - lake.turn][lake.cell]) > 0;
            }
        }
        double error = sqrt(p * (1 - p) / episodes);
        assert_true(fabs((double)solved / episodes - p) < 4 * error);
    }
}

/* ---- tasks ----------------------------------------------------------------------------------- */

static int by_bytes(const void* a, const void* b) { return memcmp(a, b, GR_LAKE_CELLS); }

/* Distance by relaxation, another way than the world's. */
static int moves_to_goal(const gr_lake_map* m)
{
    int cells = m->size * m->size, d[GR_LAKE_CELLS];
    for (int i = 0; i < cells; i++) d[i] = i == cells - 1 ? 0 : 999;
    for (int round = 0; round < cells; round++) {
        for (int i = 0; i < cells; i++) {
            for (int a = 0; a < 4 && !m->hole[i]; a++) {
                d[i] = GR_MIN(d[i], d[gr_lake_neighbour(m, i, a)] + 1);
            }
        }
    }
    return d[0];
}

static void splits_share_no_map_and_every_map_can_be_solved(void** state)
{
    (void)state;
    enum { N = 3000 };
    for (int k = 0; k < 4; k++) {
        gr_lake_settings s = lake_defaults();
        s.size = (int[]){4, 4, 6, 8}[k];
        s.hole_prob = (double[]){0.2, 0.45, 0.3, 0.2}[k];
        s.demo_hole_prob = k % 2 ? 0.2 : 0;
        s.max_turns = 2 * s.size - 2 + 2 * (k % 2);
        uint8_t(*test)[GR_LAKE_CELLS] = malloc(N * sizeof *test);
        gr_lake_map m;
        for (int i = 0; i < N; i++) {
            assert_true(gr_lake_map_of_task(&s, GR_TEST, i, 1 << 20, &m));
            assert_true(moves_to_goal(&m) <= s.max_turns);
            memcpy(test[i], m.hole, sizeof m.hole);
        }
        qsort(test, N, sizeof *test, by_bytes);
        for (int i = 0; i < 2 * N; i++) {
            gr_split split = i % 2 ? GR_TRAIN : GR_WARMSTART;
            assert_true(gr_lake_map_of_task(&s, split, i, 1 << 20, &m));
            assert_int_equal(m.distance[0], moves_to_goal(&m));
            assert_true(m.distance[0] <= s.max_turns);
            assert_null(bsearch(m.hole, test, N, sizeof *test, by_bytes));
        }
        free(test);
    }
}

static void tasks_are_repeatable_and_their_key_0_is_gymnasiums_stream(void** state)
{
    (void)state;
    gr_lake_settings s = lake_defaults();
    s.success_rate = 1.0 / 3;
    gr_envs* e = open_lake(&s, 4);
    assert_int_equal(gr_envs_n_tasks(e, GR_TRAIN), 1000000000);
    assert_int_equal(gr_envs_n_tasks(e, GR_TEST), 100000);
    assert_int_equal(gr_envs_horizon(e), 12);
    for (int task = 0; task < 50; task++) {
        int h[4];
        gr_lake* lake[4];
        for (int i = 0; i < 4; i++) {
            uint64_t key = (uint64_t[]){0, 0, 5, 6}[i];
            h[i] = gr_envs_reset(e, GR_TRAIN, task, key, 0);
            assert_true(answer(e, h[i])->end == GR_RUNNING);
            lake[i] = gr_envs_state(e, h[i]);
        }
        assert_memory_equal(lake[0], lake[1], sizeof(gr_lake));
        assert_int_equal(lake[0]->map.seed % (1ull << 32), task);
        gr_lake expected = *lake[0];
        gr_lake_begin(&expected, lake[0]->map.seed);
        assert_memory_equal(&expected, lake[0], sizeof expected);
        gr_lake_begin(&expected, 5);
        assert_memory_equal(&expected, lake[2], sizeof expected);
        assert_memory_not_equal(&lake[2]->random, &lake[3]->random, sizeof(gr_numpy_random));
        for (int i = 0; i < 4; i++) gr_envs_free(e, h[i]);
    }
    gr_envs_close(e);
}

static void settings_without_maps_are_refused(void** state)
{
    (void)state;
    const struct {
        int size, turns;
        double holes, demo_holes;
        const char* split;
    } all[] = {
        {4, 12, 0, 0, "test"},   {4, 5, 0.2, 0, "train"},   {10, 40, 0.9, 0, "train"},
        {2, 1, 0.2, 0, "train"}, {9, 40, 0.2, 0.9, "warm"},
    };
    for (int i = 0; i < GR_COUNT(all); i++) {
        gr_lake_settings s = lake_defaults();
        s.size = all[i].size;
        s.max_turns = all[i].turns;
        s.hole_prob = all[i].holes;
        s.demo_hole_prob = all[i].demo_holes;
        gr_envs* e = NULL;
        assert_int_equal(gr_envs_open(&e, &gr_world_frozenlake, &s, 4), GR_EARG);
        assert_non_null(strstr(gr_last_error(), all[i].split));
        assert_null(e);
    }
}

/* ---- forks and hashes ------------------------------------------------------------------------ */

static void a_fork_goes_on_as_its_original_would(void** state)
{
    (void)state;
    int differ = 0;
    for (uint64_t k = 0; k < 200; k++) {
        gr_lake_settings s = lake_defaults();
        s.size = 6;
        s.success_rate = k % 2 ? 1.0 / 3 : 1;
        s.max_turns = 40;
        gr_envs* e = open_lake(&s, 3);
        int a = gr_envs_reset(e, GR_TRAIN, (int64_t)k, k % 3, 0);
        (void)answer(e, a);
        for (uint64_t t = 0; t < k % 7; t++) (void)act(e, a, word[below(k, t, 4)]);
        gr_lake before = *(gr_lake*)gr_envs_state(e, a);
        int same = gr_envs_fork(e, a, 0), other = gr_envs_fork(e, a, 77 + k);
        assert_memory_equal(gr_envs_state(e, same), &before, sizeof before);
        for (uint64_t t = 7; t < 30; t++) {
            const char* action = word[below(k, t, 4)];
            (void)act(e, same, action);
            (void)act(e, other, action);
        }
        assert_memory_equal(gr_envs_state(e, a), &before, sizeof before);
        for (uint64_t t = 7; t < 30; t++) (void)act(e, a, word[below(k, t, 4)]);
        assert_memory_equal(gr_envs_state(e, a), gr_envs_state(e, same), sizeof before);
        const gr_lake *x = gr_envs_state(e, a), *y = gr_envs_state(e, other);
        bool equal_walk = memcmp(x->trail, y->trail, sizeof x->trail) == 0;
        if (k % 2 == 0) assert_true(equal_walk);
        differ += !equal_walk;
        gr_envs_close(e);
    }
    assert_true(differ > 50);
}

static void the_hash_is_of_map_and_position(void** state)
{
    (void)state;
    enum { N = 4000 };
    static uint64_t hash[N];
    static gr_lake at[N];
    gr_lake_settings s = lake_defaults();
    s.success_rate = 0.5;
    s.max_turns = 1000;
    gr_envs* e = open_lake(&s, 1);
    int n = 0;
    for (uint64_t k = 0; n < N; k++) {
        int h = gr_envs_reset(e, GR_TRAIN, (int64_t)(k % 20), k, 0);
        const gr_obs* o = answer(e, h);
        for (uint64_t t = 0; o->end == GR_RUNNING && n < N; t++) {
            at[n] = *(gr_lake*)gr_envs_state(e, h);
            hash[n++] = o->hash;
            o = act(e, h, t % 5 ? word[below(k, t, 4)] : "nothing\n");
        }
        gr_envs_free(e, h);
    }
    int equal = 0;
    for (int i = 0; i < N; i += 3) {
        for (int j = 0; j < N; j++) {
            bool same = at[i].cell == at[j].cell &&
                        memcmp(at[i].map.hole, at[j].map.hole, GR_LAKE_CELLS) == 0;
            assert_int_equal(hash[i] == hash[j], same);
            equal += same && at[i].turn != at[j].turn;
        }
    }
    assert_true(equal > 1000);
    gr_envs_close(e);
}

/* ---- text and signals ------------------------------------------------------------------------ */

static void actions_are_words_with_a_line_end(void** state)
{
    (void)state;
    const struct {
        const char* text;
        int action;
    } all[] = {
        {"left\n", 0},   {"down\n", 1},   {"right\n", 2},  {"up\n", 3},        {" UP \r\n", 3},
        {"\tLeFt\n", 0}, {"left", -1},    {"", -1},        {"\n", -1},         {" \n", -1},
        {"lef\n", -1},   {"leftt\n", -1}, {"up up\n", -1}, {"up\nleft\n", -1}, {"\xff\xfe\n", -1},
    };
    for (int i = 0; i < GR_COUNT(all); i++) {
        const char* t = all[i].text;
        assert_int_equal(gr_lake_parse_action(t, (int)strlen(t)), all[i].action);
    }
    assert_int_equal(gr_lake_parse_action("up\0\n", 4), -1);
    for (uint64_t k = 0; k < 20000; k++) { /* any bytes */
        char text[12];
        int n = below(k, 99, 12);
        for (int i = 0; i < n; i++) text[i] = "uplefdownright \n\t\xc3x"[below(k, (uint64_t)i, 20)];
        int a = gr_lake_parse_action(text, n);
        assert_in_range(a + 1, 0, 4);
    }
}

static void a_map_can_be_read_in_three_formats(void** state)
{
    (void)state;
    gr_lake_settings s = lake_defaults();
    gr_lake lake = {0};
    char text[GR_LAKE_OBS_CAP + 1];
    gr_lake_map_parse(&lake.map, 4, "SFFFFHFHFFFHHFFG");
    gr_lake_begin(&lake, 0);
    assert_int_equal(gr_lake_render(&lake, GR_LAKE_COMPACT, text, sizeof text), 20);
    assert_string_equal(text, "P___\n_H_H\n___H\nH__G\n");
    (void)gr_lake_move(&s, &lake, GR_LAKE_RIGHT);
    (void)gr_lake_render(&lake, GR_LAKE_GRID, text, sizeof text);
    assert_string_equal(text, "_ P _ _\n_ H _ H\n_ _ _ H\nH _ _ G\n");
    int n = gr_lake_render(&lake, GR_LAKE_COORD, text, sizeof text);
    assert_string_equal(text, "Player: (0, 1) Goal: (3, 3) Holes: (1, 1) (1, 3) (2, 3) (3, 0)\n");
    assert_int_equal(n, strlen(text));
    (void)gr_lake_move(&s, &lake, GR_LAKE_DOWN);
    (void)gr_lake_render(&lake, GR_LAKE_COMPACT, text, sizeof text);
    assert_string_equal(text, "____\n_X_H\n___H\nH__G\n");
    gr_lake_map_parse(&lake.map, 2, "SFFG");
    gr_lake_begin(&lake, 0);
    (void)gr_lake_move(&s, &lake, GR_LAKE_RIGHT);
    (void)gr_lake_move(&s, &lake, GR_LAKE_DOWN);
    (void)gr_lake_render(&lake, GR_LAKE_COMPACT, text, sizeof text);
    assert_string_equal(text, "__\n_P\n");
    (void)gr_lake_render(&lake, GR_LAKE_COORD, text, sizeof text);
    assert_string_equal(text, "Player: (1, 1) Goal: (1, 1) Holes: none\n");
    char holes[GR_LAKE_CELLS]; /* the longest text there is */
    memset(holes, 'H', sizeof holes);
    gr_lake_map_parse(&lake.map, GR_LAKE_SIZE_MAX, holes);
    assert_true(gr_lake_render(&lake, GR_LAKE_COORD, text, sizeof text) <= GR_LAKE_OBS_CAP);
    for (int format = GR_LAKE_COMPACT; format <= GR_LAKE_COORD; format++) {
        s.format = format;
        gr_envs* e = open_lake(&s, 1);
        bool explained = strlen(gr_envs_world(e)->prompt) > 0;
        assert_int_equal(explained, format != GR_LAKE_COMPACT);
        gr_envs_close(e);
    }
}

/* On the map below, with a window of 3:  P___ / _H_H / ___H / H__G  */
static void signals_say_how_near_how_safe_and_how_new(void** state)
{
    (void)state;
    gr_lake_settings s = lake_defaults();
    s.novelty_window = 3;
    s.max_turns = 100;
    gr_envs* e = open_lake(&s, 1);
    int h = gr_envs_reset(e, GR_TRAIN, 0, 0, 0);
    const gr_obs* o = answer(e, h);
    assert_true(o->signal[0] == 0 && o->signal[2] == 0);
    gr_lake* lake = gr_envs_state(e, h);
    gr_lake_map_parse(&lake->map, 4, "SFFFFHFHFFFHHFFG");
    const struct {
        const char* action;
        double progress, hazard, novelty, reward;
    } all[] = {
        {"left\n", 0, 0, 0, 0},
        {"down\n", 1 / 6.0, 0.25, 0.5, 0},
        {"what\n", 1 / 6.0, 0.25, 1 / 3.0, 0},
        {"down\n", 2 / 6.0, 0.25, 2 / 3.0, 0},
        {"right\n", 3 / 6.0, 0.25, 2 / 3.0, 0},
        {"right\n", 4 / 6.0, 0.25, 1, 0},
        {"up\n", 3 / 6.0, 0.5, 1, 0},
        {"down\n", 4 / 6.0, 0.25, 2 / 3.0, 0}, /* was there before the last turn but one */
        {"down\n", 5 / 6.0, 0, 2 / 3.0, 0},
        {"right\n", 1, 0.25, 1, 1},
    };
    for (int i = 0; i < GR_COUNT(all); i++) {
        o = act(e, h, all[i].action);
        double safe_novelty = (1 - all[i].hazard) * all[i].novelty;
        assert_true(fabs(o->signal[0] - all[i].progress) < 1e-12);
        if (fabs(o->signal[1] - safe_novelty) > 1e-12) {
            fail_msg("turn %d: %g, not %g", i, o->signal[1], safe_novelty);
        }
        assert_true(o->signal[2] == all[i].reward && o->reward == all[i].reward);
        assert_true(fabs(o->signal[3] - 6 * (1 - all[i].progress)) < 1e-12); /* moves to go */
        assert_int_equal(o->valid, strcmp(all[i].action, "what\n") != 0);
        assert_int_equal(o->success, i == GR_COUNT(all) - 1);
    }
    assert_int_equal(o->end, GR_END_TERMINAL);
    gr_envs_close(e);
}

static void an_episode_ends_at_its_turn_limit(void** state)
{
    (void)state;
    gr_lake_settings s = lake_defaults();
    gr_envs* e = open_lake(&s, 1);
    int h = gr_envs_reset(e, GR_TEST, 3, 0, 0);
    (void)answer(e, h);
    for (int turn = 1; turn <= s.max_turns; turn++) {
        /* words longer than action_cap are no actions, however they begin */
        const gr_obs* o = act(e, h, turn % 2 ? "stay\n" : "  left \n\n");
        assert_false(o->valid);
        assert_int_equal(o->end, turn < s.max_turns ? GR_RUNNING : GR_END_TIME_LIMIT);
        assert_false(o->success);
    }
    assert_int_equal(((gr_lake*)gr_envs_state(e, h))->cell, 0);
    gr_envs_close(e);
}

/* ---- demonstrations -------------------------------------------------------------------------- */

typedef struct shown {
    int solved, fallen, turns, repeated;
} shown;

static shown demonstrate(const gr_lake_settings* s, int episodes)
{
    shown sum = {0};
    gr_envs* e = open_lake(s, 1);
    for (int k = 0; k < episodes; k++) {
        int h = gr_envs_reset(e, GR_WARMSTART, k, 0, 0);
        const gr_obs* o = answer(e, h);
        char action[16] = "", last[16];
        for (int turn = 0; o->end == GR_RUNNING; turn++) {
            memcpy(last, action, sizeof last);
            int n = gr_world_frozenlake.demonstrate(gr_envs_self(e), gr_envs_state(e, h),
                                                    gr_key_join(3, (uint64_t)k), turn, action, 16);
            assert_int_equal(n, strlen(action));
            o = act(e, h, action);
            assert_true(o->valid);
            sum.repeated += strcmp(last, action) == 0;
            sum.turns++;
        }
        sum.solved += o->success;
        sum.fallen += !o->success && o->end == GR_END_TERMINAL;
        if (s->demo_expert == 1 && s->demo_noise + s->demo_repeat == 0) {
            const gr_lake* lake = gr_envs_state(e, h);
            assert_int_equal(lake->turn, lake->map.distance[0]);
        }
        gr_envs_free(e, h);
    }
    gr_envs_close(e);
    return sum;
}

static void demonstrators_are_as_good_as_asked(void** state)
{
    (void)state;
    gr_lake_settings s = lake_defaults();
    s.max_turns = 16;
    s.demo_expert = 1;
    s.demo_noise = 0;
    assert_int_equal(demonstrate(&s, 500).solved, 500);
    s.demo_expert = 0;
    shown blind = demonstrate(&s, 500);
    assert_int_equal(blind.solved + blind.fallen, 500);
    assert_in_range(blind.fallen, 200, 400); /* 1 - 0.8^5 of the cells in between, or fewer */
    s.demo_expert = 0.5;
    shown half = demonstrate(&s, 500);
    assert_in_range(half.solved, blind.solved + 100, 450);
    s.demo_noise = 0.55;
    shown noisy = demonstrate(&s, 500);
    assert_in_range(noisy.solved, 10, half.solved - 50);
    s.demo_noise = 0;
    s.demo_repeat = 1; /* one action for ever ends at a wall or in a hole */
    shown stuck = demonstrate(&s, 500);
    assert_int_equal(stuck.solved, 0);
    assert_int_equal(stuck.repeated, stuck.turns - 500);
    s.demo_repeat = 0.15;
    assert_in_range(demonstrate(&s, 500).solved, 10, half.solved - 50);
}

/* ---- handles --------------------------------------------------------------------------------- */

static void every_request_gets_one_reply_in_order(void** state)
{
    (void)state;
    enum { CAP = 24, NOT_USED = 0, IDLE, BUSY };
    gr_lake_settings s = lake_defaults();
    gr_envs* e = open_lake(&s, CAP);
    int use[CAP] = {0}, fifo[CAP], n_fifo = 0, n_used = 0;
    uint64_t tag[CAP], next_tag = 1;
    for (uint64_t k = 0; k < 20000; k++) {
        int h = below(1, k, CAP), what = below(2, k, 6);
        if (what == 0 || (what == 1 && use[h] == IDLE)) {
            int got =
                what == 0 ? gr_envs_reset(e, GR_TRAIN, h, k, next_tag) : gr_envs_fork(e, h, k);
            assert_int_equal(got < 0, n_used == CAP);
            if (got < 0) continue;
            assert_int_equal(use[got], NOT_USED);
            use[got] = what == 0 ? BUSY : IDLE;
            if (what == 0) tag[got] = next_tag++, fifo[n_fifo++] = got;
            n_used++;
        } else if (what == 2 && use[h] == IDLE) {
            gr_envs_step(e, h, "up\n", 3, next_tag);
            tag[h] = next_tag++;
            fifo[n_fifo++] = h;
            use[h] = BUSY;
        } else if (what == 3 && use[h] != NOT_USED) {
            gr_envs_free(e, h);
            int kept = 0;
            for (int i = 0; i < n_fifo; i++) {
                if (fifo[i] != h) fifo[kept++] = fifo[i];
            }
            n_fifo = kept;
            use[h] = NOT_USED;
            n_used--;
        } else if (what >= 4) {
            gr_env_reply r;
            assert_int_equal(gr_envs_poll(e, &r, what == 5), n_fifo > 0);
            if (n_fifo == 0) continue;
            assert_int_equal(r.handle, fifo[0]);
            assert_int_equal(r.tag, tag[r.handle]);
            memmove(fifo, fifo + 1, (size_t)--n_fifo * sizeof *fifo);
            use[r.handle] = IDLE;
        }
        assert_int_equal(gr_envs_in_flight(e), n_fifo);
        assert_int_equal(gr_envs_free_handles(e), CAP - n_used);
    }
    gr_envs_close(e);
}

static void worlds_are_found_by_name(void** state)
{
    (void)state;
    assert_ptr_equal(gr_world_find("frozenlake"), &gr_world_frozenlake);
    assert_null(gr_world_find("frozen"));
    assert_null(gr_world_find(""));
    for (int i = 0; gr_worlds[i] != NULL; i++) {
        assert_ptr_equal(gr_world_find(gr_worlds[i]->name), gr_worlds[i]);
    }
    gr_envs_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(draws_and_maps_are_numpys_and_gymnasiums),
        cmocka_unit_test(transitions_are_gymnasiums),
        cmocka_unit_test(best_policy_succeeds_as_often_as_theory_says),
        cmocka_unit_test(splits_share_no_map_and_every_map_can_be_solved),
        cmocka_unit_test(tasks_are_repeatable_and_their_key_0_is_gymnasiums_stream),
        cmocka_unit_test(settings_without_maps_are_refused),
        cmocka_unit_test(a_fork_goes_on_as_its_original_would),
        cmocka_unit_test(the_hash_is_of_map_and_position),
        cmocka_unit_test(actions_are_words_with_a_line_end),
        cmocka_unit_test(a_map_can_be_read_in_three_formats),
        cmocka_unit_test(signals_say_how_near_how_safe_and_how_new),
        cmocka_unit_test(an_episode_ends_at_its_turn_limit),
        cmocka_unit_test(demonstrators_are_as_good_as_asked),
        cmocka_unit_test(every_request_gets_one_reply_in_order),
        cmocka_unit_test(worlds_are_found_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
