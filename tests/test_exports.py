#!/usr/bin/env python3
"""Exports and figures: what is read back is what was logged.

  tests/test_exports.py

The reader of the log and the figures are always tested; the exports where tensorboard and wandb are installed
(PyPI). Exit status 77 (skipped) if one is missing.
"""
import glob
import importlib.util
import json
import math
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time
from xml.etree import ElementTree

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tools"))
import metrics_log  # noqa: E402

NAMES = ["reward/mean", "policy/kl_old", "budget/env_turns", "time/gen", "eval/success"]


def make_run(folder, steps, rng):
    """A run of random numbers; what is not measured at a step is null or absent."""
    os.makedirs(folder)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump({"run": {"name": "r", "seed": 3}, "optimizer": {"lr": 1e-3}}, f)
    lines = []
    for step in range(steps):
        line = {"step": step}
        for name in NAMES:
            if rng.random() < 0.8:
                line[name] = None if rng.random() < 0.1 else rng.choice([rng.random(), rng.randrange(1 << 20), 0, -1e-9])
        lines.append(line)
    return lines


def write(folder, lines, rest=""):
    with open(os.path.join(folder, "metrics.jsonl"), "w") as f:
        f.write("".join(json.dumps(line) + "\n" for line in lines) + rest)


def test_reader(folder, rng):
    """Cut anywhere, the whole lines come; a run that is followed while it grows, is cut back and ends, comes once."""
    lines = make_run(folder, 30, rng)
    text = "".join(json.dumps(line) + "\n" for line in lines)
    for _ in range(40):
        cut = rng.randrange(len(text) + 1)
        with open(os.path.join(folder, "metrics.jsonl"), "w") as f:
            f.write(text[:cut])
        whole = text[:cut].count("\n")
        assert list(metrics_log.lines(folder)) == lines[:whole]
    metrics_log.POLL_S = 0.01
    write(folder, lines[:5], json.dumps(lines[5])[:7])
    got = []
    reader = threading.Thread(target=lambda: got.extend(metrics_log.lines(folder, live=True)))
    reader.start()
    for count in (12, 8, 20, 3, 30):
        time.sleep(0.05)
        write(folder, lines[:count])
    open(os.path.join(folder, "finished"), "w").close()
    reader.join(30)
    assert not reader.is_alive() and got == lines


def expect(lines):
    return {n: {m["step"]: m[n] for m in lines if m.get(n) is not None} for n in NAMES}


def same(a, b):
    """Event files hold 32-bit numbers."""
    return set(a) == set(b) and all(math.isclose(a[s], b[s], rel_tol=1e-6, abs_tol=1e-30) for s in b)


def test_tensorboard(folder, rng):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    run, out = os.path.join(folder, "run"), os.path.join(folder, "tb")
    lines = make_run(run, 25, rng)
    write(run, lines, '{"step": 25, "rew')
    subprocess.run([sys.executable, os.path.join(ROOT, "tools", "to_tensorboard.py"), run, "-o", out], check=True)
    events = EventAccumulator(os.path.join(out, "run"), size_guidance={"scalars": 0})
    events.Reload()
    for name, values in expect(lines).items():
        assert same({e.step: e.value for e in events.Scalars(name)}, values), name
    assert "optimizer.lr" in events.Tensors("config")[0].tensor_proto.string_val[0].decode()
    clock = [e.wall_time for e in events.Scalars("reward/mean")]
    assert clock == sorted(clock)


def wandb_records(path):
    """Records of an offline file: after 7 bytes a log as LevelDB's: blocks of 32 KiB, chunks of CRC, length and kind
    (1 whole, 2 first, 3 middle, 4 last)."""
    with open(path, "rb") as f:
        data = f.read()
    assert data[:4] == b":W&B"
    at, record = 7, b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        n, kind = struct.unpack("<HB", data[at + 4:at + 7])
        record = (b"" if kind in (1, 2) else record) + data[at + 7:at + 7 + n]
        at += 7 + n
        if kind in (1, 4):
            yield record


def test_wandb(folder, rng):
    from wandb.proto import wandb_internal_pb2
    run = os.path.join(folder, "run")
    lines = make_run(run, 25, rng)
    write(run, lines, '{"step": 25, "rew')
    subprocess.run([sys.executable, os.path.join(ROOT, "tools", "to_wandb.py"), run, "-o", folder], check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, "WANDB_SILENT": "true"})
    got = {n: {} for n in NAMES}
    settings = {}
    for data in wandb_records(glob.glob(os.path.join(folder, "wandb", "offline-run-*", "*.wandb"))[0]):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "run":
            settings.update({c.key: json.loads(c.value_json) for c in record.run.config.update})
        for item in record.history.item:
            name = item.key or "/".join(item.nested_key)
            if name in got:
                got[name][record.history.step.num] = json.loads(item.value_json)
    assert got == expect(lines)
    assert settings["optimizer.lr"] == 1e-3


def test_figures(folder, rng):
    """Every method of a table has its name in both figures, and its dots in the second."""
    del rng
    os.makedirs(folder)
    for ending in ("json", "md"):
        shutil.copy(os.path.join(ROOT, "bench", "results", "compare-Z." + ending), folder)
    table = os.path.join(folder, "compare-Z")
    subprocess.run([os.path.join(ROOT, "tools", "plot.sh"), table + ".json"], check=True, stdout=subprocess.DEVNULL)
    with open(table + ".json") as f:
        methods = json.load(f)["final"]
    for figure in (".svg", "-final.svg"):
        svg = ElementTree.parse(table + figure).getroot()
        words = {"".join(e.itertext()).strip() for e in svg.iter("{http://www.w3.org/2000/svg}text")}
        assert methods.keys() <= words, words
    seeds = sum(len(by_seed) for by_seed in methods.values())
    with open(table + "-final.svg") as f:
        text = f.read()
    hollow, full = (text.count(f"<use xlink:href='#gpPt{kind}' transform") for kind in (5, 6))  # gnuplot's point types 6 and 7
    assert hollow == seeds and full == len(methods), (hollow, full)


def main():
    rng = random.Random(8)
    missing = 0
    for test, package in ((test_reader, None), (test_figures, None), (test_tensorboard, "tensorboard"), (test_wandb, "wandb")):
        if package and importlib.util.find_spec(package) is None:
            print(f"skipped {test.__name__}: the package {package} is not installed")
            missing += 1
            continue
        with tempfile.TemporaryDirectory() as folder:
            test(os.path.join(folder, "x"), rng)
        print(f"ok      {test.__name__}")
    return 77 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
