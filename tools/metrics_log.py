"""Lines of a run's metrics.jsonl, from a run that ended, was killed or still goes on. Standard library only."""
import json
import os
import time

POLL_S = 1.0
PHASES = ("gen", "env", "score", "train", "eval", "ckpt")


def lines(run, live=False):
    """Yields one dict per whole line, in the order of steps. A half-written last line is left for later or, without
    `live`, left out. With `live` waits for more until the run has ended (its marker `finished`).

    A run that was interrupted and goes on cuts its log back and writes the same lines again: steps that were
    yielded are not repeated."""
    path, last, at = os.path.join(run, "metrics.jsonl"), -1, 0
    while True:
        ended = os.path.exists(os.path.join(run, "finished"))  # before reading: nothing is written behind it
        size = os.path.getsize(path)
        at = at if at <= size else 0
        with open(path, "rb") as f:
            f.seek(at)
            for line in f:
                if not line.endswith(b"\n"):
                    break
                at += len(line)
                metrics = json.loads(line)
                if metrics["step"] > last:
                    last = metrics["step"]
                    yield metrics
        if ended or not live:
            return
        time.sleep(POLL_S)


def numbers(metrics):
    """The values of a line by name, without the step and without what was not measured (null)."""
    return {k: v for k, v in metrics.items() if k != "step" and v is not None}


def seconds(metrics):
    """Work of a step, all phases."""
    return sum(metrics.get("time/" + phase) or 0 for phase in PHASES)


def config(run):
    """Settings of a run as a flat dict, section.key -> value."""
    with open(os.path.join(run, "config.json")) as f:
        return {f"{section}.{key}": value for section, keys in json.load(f).items() for key, value in keys.items()}


def name(run):
    return os.path.basename(os.path.abspath(run))
