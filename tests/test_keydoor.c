/* The key-and-door lake: FrozenLake's dynamics, two legs, one reward at the end. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "envs/keydoor.h"

static const char* const word[] = {"left\n", "down\n", "right\n", "up\n"};
static int below(uint64_t key, uint64_t at, int n) { return (int)(gr_uniform(key, at) * n); }

static gr_lake_settings lake_settings(int size)
{
    return (gr_lake_settings){.size = size,
                              .hole_prob = 0.2,
                              .success_rate = 1,
                              .max_turns = 6 * size,
                              .novelty_window = 5,
                              .train_maps = 1000,
                              .test_maps = 1000,
                              .demo_expert = 1};
}

static gr_envs* open_envs(const gr_lake_settings* s)
{
    gr_envs* e = NULL;
    if (gr_envs_open(&e, &gr_world_keydoor, s, 8) != GR_OK) fail_msg("%s", gr_last_error());
    return e;
}

static const gr_obs* answer(gr_envs* e)
{
    gr_env_reply r;
    assert_true(gr_envs_poll(e, &r, true));
    assert_int_equal(r.error, GR_ENV_OK);
    return r.obs;
}

static const gr_obs* act(gr_envs* e, int handle, const char* action)
{
    gr_envs_step(e, handle, action, (int)strlen(action), 0);
    return answer(e);
}

/* The same actions on the same stream move both worlds alike, on ice as well. */
static void moves_are_frozenlakes(void** state)
{
    (void)state;
    int moved = 0;
    for (uint64_t key = 1; key <= 300; key++) {
        gr_lake_settings s = lake_settings(4 + (int)(key % 7));
        s.success_rate = key % 2 ? 1 : 1.0 / 3;
        gr_keydoor k = {0};
        if (!gr_lake_map_generate(&k.lake.map, (int)s.size, s.hole_prob, key, 100)) continue;
        assert_true(gr_keydoor_place(&k, s.max_turns));
        gr_lake lake = {.map = k.lake.map};
        gr_lake_begin(&lake, key);
        gr_lake_begin(&k.lake, key);
        for (int t = 0; lake.ended == GR_RUNNING && k.lake.ended == GR_RUNNING; t++) {
            int a = below(key, (uint64_t)t, 5) - 1; /* -1: not understood */
            (void)gr_lake_move(&s, &lake, a);
            (void)gr_keydoor_move(&s, &k, a);
            assert_int_equal(lake.cell, k.lake.cell);
            assert_memory_equal(&lake.random, &k.lake.random, sizeof lake.random);
            if (k.lake.ended == GR_END_TERMINAL) assert_int_equal(lake.ended, GR_END_TERMINAL);
            moved++;
        }
    }
    assert_true(moved > 1000);
}

/* Holes: none. The key lies where the test puts it. */
static gr_keydoor open_field(int size, int key)
{
    char cells[GR_LAKE_CELLS];
    gr_keydoor k = {.key = (uint8_t)key};
    memset(cells, 'F', sizeof cells);
    gr_lake_map_parse(&k.lake.map, size, cells);
    gr_lake_measure(&k.lake.map, key, k.to_key);
    gr_lake_begin(&k.lake, 1);
    return k;
}

static void the_goal_counts_only_with_the_key(void** state)
{
    (void)state;
    static const int first[] = {GR_LAKE_RIGHT, GR_LAKE_RIGHT, GR_LAKE_DOWN, GR_LAKE_DOWN};
    static const int back[] = {GR_LAKE_LEFT, GR_LAKE_LEFT, GR_LAKE_RIGHT, GR_LAKE_RIGHT};
    gr_lake_settings s = lake_settings(3);
    gr_keydoor k = open_field(3, 6);
    char text[GR_LAKE_OBS_CAP + 1];
    (void)gr_keydoor_render(&k, text);
    assert_string_equal(text, "P__\n___\nK_D\nP00 K20\n");
    for (int i = 0; i < 4; i++) assert_true(gr_keydoor_move(&s, &k, first[i]) == 0);
    assert_int_equal(k.lake.cell, 8); /* on the door, locked */
    assert_int_equal(k.lake.ended, GR_RUNNING);
    assert_int_equal(gr_keydoor_way(&k), 4);
    for (int i = 0; i < 4; i++) {
        assert_true(k.has_key == (i >= 2));
        assert_true(gr_keydoor_move(&s, &k, back[i]) == (i == 3));
        (void)gr_keydoor_render(&k, text);
        if (i == 2) assert_string_equal(text, "___\n___\n_PG\nP21 G22\n");
    }
    assert_int_equal(k.lake.ended, GR_END_TERMINAL);
}

/* Every task can be solved, by its expert in exactly the moves of both legs, while progress rises;
 * test tasks are on other maps than training ones. */
static void experts_walk_both_legs_of_every_task(void** state)
{
    (void)state;
    for (int size = 6; size <= 10; size += 2) {
        gr_lake_settings s = lake_settings(size);
        gr_envs* e = open_envs(&s);
        for (int64_t task = 0; task < 90; task++) {
            gr_split split = (gr_split)(task % 3);
            char action[16];
            int h = gr_envs_reset(e, split, task, 0, 0), turn = 0;
            const gr_obs* o = answer(e);
            const gr_keydoor* k = gr_envs_state(e, h);
            double progress = o->signal[0];
            int way = gr_keydoor_way(k);
            assert_true(gr_lake_map_is_test(&k->lake.map) == (split == GR_TEST));
            assert_true(way >= 2 * size - 2 && way <= s.max_turns && progress == 0);
            for (; o->end == GR_RUNNING; turn++) {
                int n = gr_world_keydoor.demonstrate(gr_envs_self(e), gr_envs_state(e, h),
                                                     (uint64_t)task, turn, action, 16);
                assert_int_equal(n, (int)strlen(action));
                o = act(e, h, action);
                assert_true(o->valid && o->signal[0] > progress);
                assert_true(o->signal[3] == k->has_key && (o->signal[3] == 1 || o->reward == 0));
                assert_true(o->signal[4] == way - turn - 1);
                progress = o->signal[0];
            }
            assert_true(o->success && o->reward == 1 && progress == 1 && turn == way);
            gr_envs_free(e, h);
        }
        gr_envs_close(e);
    }
}

/* A fork with key 0 goes on as its original; another key changes the ice only. The hash sees the
 * key in hand, not the turn. */
static void a_fork_is_the_state(void** state)
{
    (void)state;
    gr_lake_settings s = lake_settings(6);
    s.success_rate = 0.4;
    gr_envs* e = open_envs(&s);
    int apart = 0, with_key = 0;
    for (int64_t task = 0; task < 200; task++) {
        uint64_t key = 1 + (uint64_t)task;
        int h = gr_envs_reset(e, GR_TRAIN, task, key, 0);
        uint64_t hash = answer(e)->hash, still = act(e, h, "nonsense\n")->hash;
        assert_true(hash == still);
        for (int t = 0; t < 6; t++) hash = act(e, h, word[below(key, (uint64_t)t, 4)])->hash;
        gr_keydoor* k = gr_envs_state(e, h);
        with_key += k->has_key;
        int same = gr_envs_fork(e, h, 0), other = gr_envs_fork(e, h, key);
        assert_memory_equal(gr_envs_state(e, same), k, sizeof *k);
        assert_memory_equal(&((gr_keydoor*)gr_envs_state(e, other))->lake.map, &k->lake.map,
                            sizeof k->lake.map);
        for (int t = 0; t < 4; t++) {
            const char* a = word[below(key, 100 + (uint64_t)t, 4)];
            hash = act(e, h, a)->hash;
            assert_true(act(e, same, a)->hash == hash);
            apart += act(e, other, a)->hash != hash;
        }
        gr_envs_free(e, h);
        gr_envs_free(e, same);
        gr_envs_free(e, other);
    }
    assert_true(apart > 50 && with_key > 5);
    gr_envs_close(e);
    gr_keydoor a = open_field(3, 1), b = a;
    char text[2][GR_LAKE_OBS_CAP + 1];
    gr_obs x = {.text = text[0]}, y = {.text = text[1]};
    gr_world_keydoor.step(&s, &a, "huh\n", 4, &x);
    b.has_key = true;
    gr_world_keydoor.step(&s, &b, "huh\n", 4, &y);
    assert_true(x.hash != y.hash && !x.valid);
}

static void tasks_without_room_for_both_legs_are_refused(void** state)
{
    (void)state;
    gr_lake_settings s = lake_settings(6);
    gr_envs* e = NULL;
    s.max_turns = 9; /* the shortest way over any key takes 10 */
    assert_int_equal(gr_envs_open(&e, &gr_world_keydoor, &s, 1), GR_EARG);
    assert_non_null(strstr(gr_last_error(), "keydoor: no train map of size 6"));
    assert_null(e);
}

static void an_episode_ends_at_its_turn_limit(void** state)
{
    (void)state;
    gr_lake_settings s = lake_settings(6);
    gr_envs* e = open_envs(&s);
    int h = gr_envs_reset(e, GR_TEST, 3, 0, 0);
    const gr_obs* o = answer(e);
    int turns = 0;
    for (; o->end == GR_RUNNING; turns++) o = act(e, h, "nonsense\n");
    assert_int_equal(turns, s.max_turns);
    assert_int_equal(o->end, GR_END_TIME_LIMIT);
    assert_false(o->success);
    gr_envs_close(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(moves_are_frozenlakes),
        cmocka_unit_test(the_goal_counts_only_with_the_key),
        cmocka_unit_test(experts_walk_both_legs_of_every_task),
        cmocka_unit_test(a_fork_is_the_state),
        cmocka_unit_test(tasks_without_room_for_both_legs_are_refused),
        cmocka_unit_test(an_episode_ends_at_its_turn_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
