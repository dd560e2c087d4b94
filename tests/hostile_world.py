#!/usr/bin/env python3
"""A world that misbehaves on command, for tests/test_remote.c.

Its state is a 64-bit hash of all that happened to the episode, its text that hash: the test
computes the same. Actions named in harm() do harm, every other one is a step. Options: nofork,
nohash; long=N: texts of N bytes; announced=M: the text_max of its hello; hello=KIND: harm instead
of a hello, with later=FILE only once FILE exists (the first start makes it).
"""
import json
import os
import sys
import time

OPTION = dict((a + "=").split("=")[:2] for a in sys.argv[1:])
OUT = sys.stdout.buffer


def mix(state, text):  # FNV-1a
    for byte in text.encode():
        state = (state ^ byte) * 0x100000001B3 % 2**64
    return state


def send(body):
    OUT.write(len(body).to_bytes(4, "big") + body)
    OUT.flush()


def raw(data):
    OUT.write(data)
    OUT.flush()


def harm(kind, good):
    """Answers badly or not at all; `good` is what should have been said."""
    body = json.dumps(good).encode()
    if kind == "hang":
        time.sleep(3600)
    elif kind == "exit":
        os._exit(3)
    elif kind == "segv":
        os.kill(os.getpid(), 11)
    elif kind == "mute":  # closes its output and lives on
        OUT.close()
        os.close(1)
        time.sleep(3600)
    elif kind == "half":  # part of a frame, then the end
        raw((100).to_bytes(4, "big") + body[:20])
        os._exit(0)
    elif kind == "stall":  # part of a frame, then nothing
        raw((100).to_bytes(4, "big") + body[:20])
        time.sleep(3600)
    elif kind == "giant":
        raw((2**31).to_bytes(4, "big") + body)
    elif kind == "flood":  # far more than anybody reads
        raw((2**20 + 1).to_bytes(4, "big") + b" " * 2**22)
    elif kind == "zero":
        raw(bytes(4))
    elif kind == "text":
        raw(b"Traceback (most recent call last):\n")
    elif kind == "junk":
        send(b'{"id":' + body)
    elif kind == "tail":
        send(body + b"{}")
    elif kind == "list":
        send(b"[" + body + b"]")
    elif kind == "deep":
        send(b"[" * 100000)
    elif kind == "latin":
        send(body.replace(b'"text": "', b'"text": "\xe9'))
    elif kind == "id":
        send(json.dumps({**good, "id": good["id"] + 1}).encode())
    elif kind == "noid":
        send(json.dumps({k: v for k, v in good.items() if k != "id"}).encode())
    elif kind == "twice":
        send(body)
        send(body)
    elif kind == "types":
        send(json.dumps({**good, "reward": "much"}).encode())
    elif kind == "nan":
        send(body.replace(b'"reward": 0', b'"reward": 1e999'))
    elif kind == "end":
        send(json.dumps({**good, "end": "soon"}).encode())
    elif kind == "signals":
        send(json.dumps({**good, "signals": [1]}).encode())
    elif kind == "long":
        send(json.dumps({**good, "text": "x" * 2**17}).encode())
    elif kind == "missing":
        send(json.dumps({"id": good["id"]}).encode())
    elif kind == "refuse":
        send(json.dumps({"id": good["id"], "error": "not today"}).encode())
    else:
        return False
    return True


def observe(state, text=None):
    if text is None:
        text = f"{state:016x}".ljust(int(OPTION.get("long", 0)) - 1, "-") + "\n"
    return {"text": text, "reward": 0, "success": False, "valid": True,
            "end": "running", "signals": [0.5, len(OPTION)], "hash": f"{state:016x}"}


def answer(episodes, q):
    op, e = q["op"], q.get("episode")
    if op == "hello":
        return {"version": 1, "prompt": "", "stop": "\n", "action_cap": 60, "horizon": 100,
                "signals": ["a", "b"], "fork": "nofork" not in OPTION,
                "hash": "nohash" not in OPTION,
                **({"text_max": int(OPTION["announced"])} if "announced" in OPTION else {})}
    if op == "tasks":
        return {"train": 1000, "test": 10, "warmstart": 0}
    if op == "close":
        del episodes[e]
        return {}
    if op == "fork":
        key = "" if q["key"] == "0" * 16 else q["key"]
        assert "nofork" not in OPTION and q["to"] not in episodes
        episodes[q["to"]] = mix(episodes[e], key)
        return {}
    if op == "reset":
        assert e not in episodes
        episodes[e] = mix(0xCBF29CE484222325, f"{q['split']}/{q['task']}/{q['key']}")
        return observe(episodes[e])
    episodes[e] = mix(episodes[e], q["action"])
    if q["action"] == "nap\n":
        time.sleep(0.2)
    if q["action"] == "pid\n":
        return observe(episodes[e], f"{os.getpid()}\n")
    if q["action"] == "id?\n":
        return observe(episodes[e], f"{q['id']}\n")
    if q["action"] == "child\n":  # a process that holds the pipes and would outlive this one
        import subprocess  # slow to load, seldom needed

        return observe(episodes[e], f"{subprocess.Popen(['sleep', '3600']).pid}\n")
    return observe(episodes[e])


def main():
    episodes, source = {}, sys.stdin.buffer
    bad = OPTION.get("hello")
    if "later" in OPTION and not os.path.exists(OPTION["later"]):
        open(OPTION["later"], "w").close()
        bad = None
    while head := source.read(4):
        q = json.loads(source.read(int.from_bytes(head, "big")))
        good = {"id": q["id"], **answer(episodes, q)}
        kind = (bad or "") if q["op"] == "hello" else q.get("action", "").strip()
        if kind == "version":
            good["version"] = 2
        if not harm(kind, good):
            send(json.dumps(good).encode())


if __name__ == "__main__":
    main()
