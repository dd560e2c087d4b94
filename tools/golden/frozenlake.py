#!/usr/bin/env python3
"""Records what numpy and gymnasium do, for tests/test_envs.c.

    python3 -m venv /tmp/golden && /tmp/golden/bin/pip install -r tools/golden/frozenlake.txt
    /tmp/golden/bin/python tools/golden/frozenlake.py tests/golden

Writes frozenlake_maps.txt, one line per seed:
    G size p seed cells     map of gymnasium's generate_random_map
    R size p seed cells     map with drawn start and goal: random() and integers() interleaved
    U 0 0 seed x0 .. x7     first doubles of default_rng(seed).random(), hexadecimal
    I n 0 seed i0 .. i15    first values of default_rng(seed).integers(n)
and frozenlake_steps.txt, one line per episode of FrozenLakeEnv:
    size p seed success_rate cells actions states reward terminated
where seed serves map and reset, p 0 stands for a map of gymnasium's own list, actions are digits,
and states (two digits each) start with the one after reset.
"""
import random
import sys

import numpy as np
from gymnasium.envs.toy_text.frozen_lake import MAPS, FrozenLakeEnv, generate_random_map


def has_way(board, start):
    size, todo, seen = len(board), [start], set()
    while todo:
        r, c = todo.pop()
        if (r, c) in seen:
            continue
        seen.add((r, c))
        for y, x in (r + 1, c), (r, c + 1), (r - 1, c), (r, c - 1):
            if 0 <= y < size and 0 <= x < size:
                if board[y][x] == "G":
                    return True
                if board[y][x] != "H":
                    todo.append((y, x))
    return False


def map_with_drawn_ends(size, p, seed):
    rng = np.random.default_rng(seed)
    while True:
        board = rng.choice(["F", "H"], (size, size), p=[p, 1 - p])
        start = rng.integers(0, size), rng.integers(0, size)
        goal = rng.integers(0, size), rng.integers(0, size)
        if start == goal:
            continue
        board[start], board[goal] = "S", "G"
        if has_way(board, start):
            return "".join("".join(row) for row in board)


def write_maps(path):
    with open(path, "w") as out:
        for size, p in (4, 0.8), (8, 0.8), (4, 0.9), (5, 0.7):
            for seed in range(200):
                print("G", size, p, seed, "".join(generate_random_map(size, p, seed)), file=out)
        for size, p in (4, 0.9), (6, 0.9), (8, 0.85), (5, 0.8):
            for seed in range(200):
                print("R", size, p, seed, map_with_drawn_ends(size, p, seed), file=out)
        for seed in (*range(20), 2**31, 2**32, 2**32 + 5, 2**53, 2**63, 2**64 - 1):
            draws = np.random.default_rng(seed).random(8)
            print("U 0 0", seed, *(float(x).hex() for x in draws), file=out)
        for n in 1, 2, 7, 3 * 10**9:
            for seed in range(5):
                rng = np.random.default_rng(seed)
                print("I", n, 0, seed, *(rng.integers(n) for _ in range(16)), file=out)


def play(out, size, p, seed, rate, desc, actor):
    world = FrozenLakeEnv(desc=desc, is_slippery=rate < 1, success_rate=rate)
    states, actions = [world.reset(seed=seed)[0]], ""
    while True:
        actions += str(actor.randrange(4))
        state, reward, terminated, _, _ = world.step(int(actions[-1]))
        states.append(state)
        if terminated or len(actions) == 40:
            break
    cells = "".join(f"{s:02d}" for s in states)
    print(size, p, seed, rate, "".join(desc), actions, cells, reward, int(terminated), file=out)
    return len(actions)


def write_steps(path):
    actor, steps, seed = random.Random(1), 0, 0
    with open(path, "w") as out:
        while steps < 10000:
            for rate in 1.0, 1 / 3, 0.8:
                for size, p in (2, 0.8), (4, 0.8), (4, 0.55), (7, 0.9), (10, 0.9):
                    big = seed + (seed % 3 << 32)  # seeds of one and of two words
                    steps += play(out, size, p, big, rate, generate_random_map(size, p, big), actor)
                for size in 4, 8:
                    steps += play(out, size, 0, seed, rate, MAPS[f"{size}x{size}"], actor)
            seed += 1
    print(steps, "transitions")


if __name__ == "__main__":
    write_maps(sys.argv[1] + "/frozenlake_maps.txt")
    write_steps(sys.argv[1] + "/frozenlake_steps.txt")
