#!/usr/bin/env python3
"""A complete world for grove: guess a number. The messages are described in envs/protocol.h.

    grove train configs/... env.name=remote 'remote.command=python3 envs/example_world.py'
"""
import hashlib
import json
import sys

TOP, TURNS = 1000, 12
SECRETS = {
    "train": [n for n in range(1, TOP + 1) if n % 10],
    "test": list(range(10, TOP + 1, 10)),  # never trained on
    "warmstart": [],
}


def observe(state, text, valid=True):
    secret, low, high, turn = state
    solved = low == high == secret
    end = "terminal" if solved else "time_limit" if turn >= TURNS else "running"
    known = 1 - (high - low) / TOP  # how much of the range is ruled out
    digest = hashlib.blake2b(repr((secret, low, high)).encode(), digest_size=8).hexdigest()
    return {"text": text + "\n", "reward": float(solved), "success": solved, "valid": valid,
            "end": end, "signals": [known], "hash": digest}


def step(state, action):
    secret, low, high, turn = state
    guess = int(action) if action.strip().isdecimal() else 0
    if not 1 <= guess <= TOP:
        return (secret, low, high, turn + 1), "not a number", False
    if guess == secret:
        return (secret, guess, guess, turn + 1), "right", True
    if guess < secret:
        return (secret, max(low, guess + 1), high, turn + 1), "higher", True
    return (secret, low, min(high, guess - 1), turn + 1), "lower", True


def answer(episodes, request):
    op, episode = request["op"], request.get("episode")
    if op == "hello":
        return {"version": 1, "prompt": f"Guess a number from 1 to {TOP}.\n", "stop": "\n",
                "action_cap": 5, "horizon": TURNS, "signals": ["known"], "fork": True, "hash": True}
    if op == "tasks":
        return {split: len(secrets) for split, secrets in SECRETS.items()}
    if op == "reset":  # a world with chance in it would seed its generator with request["key"]
        episodes[episode] = (SECRETS[request["split"]][request["task"]], 1, TOP, 0)
        return observe(episodes[episode], "?")
    if op == "step":
        episodes[episode], text, valid = step(episodes[episode], request["action"])
        return observe(episodes[episode], text, valid)
    if op == "fork":  # and here, unless the key is 0
        episodes[request["to"]] = episodes[episode]
    elif op == "close":
        episodes.pop(episode, None)
    return {}


def main():
    episodes, source, sink = {}, sys.stdin.buffer, sys.stdout.buffer
    while head := source.read(4):
        request = json.loads(source.read(int.from_bytes(head, "big")))
        try:
            reply = answer(episodes, request)
        except (LookupError, ValueError) as error:
            reply = {"error": repr(error)}
        body = json.dumps({"id": request["id"], **reply}).encode()
        sink.write(len(body).to_bytes(4, "big") + body)
        sink.flush()


if __name__ == "__main__":
    main()
