#!/usr/bin/env python3
"""Metrics of runs for TensorBoard, under the names they have in metrics.jsonl.

  tools/to_tensorboard.py runs/frozenlake_patr -o tb && tensorboard --logdir tb
  tools/to_tensorboard.py runs/frozenlake_patr -o tb --live                  follows the run until it ends
  tools/to_tensorboard.py runs/a runs/b -o tb --x budget/env_turns           turns as the horizontal axis

Needs the package tensorboard (PyPI), nothing else of it than its file format.
"""
import argparse
import json
import os
import sys
import threading

import metrics_log

try:
    from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, types_pb2
    from tensorboard.summary.writer.event_file_writer import EventFileWriter
except ImportError:
    sys.exit("to_tensorboard.py: the package tensorboard is missing: pip install tensorboard")


def scalar(tag, value):
    return summary_pb2.Summary.Value(tag=tag, simple_value=value)


def text(tag, value):
    """A text as TensorBoard's text plugin reads it."""
    metadata = summary_pb2.SummaryMetadata(plugin_data=summary_pb2.SummaryMetadata.PluginData(plugin_name="text"))
    tensor = tensor_pb2.TensorProto(dtype=types_pb2.DT_STRING, string_val=[value.encode()])
    tensor.tensor_shape.dim.add(size=1)
    return summary_pb2.Summary.Value(tag=tag, metadata=metadata, tensor=tensor)


def export(run, out, x, live):
    """One folder of event files. The clock of an event is the run's own: when it began, and its work since."""
    writer = EventFileWriter(os.path.join(out, metrics_log.name(run)))
    clock = os.path.getmtime(os.path.join(run, "config.json"))
    settings = json.dumps(metrics_log.config(run), indent=2)
    try:
        for metrics in metrics_log.lines(run, live):
            clock += metrics_log.seconds(metrics)
            values = [scalar(k, v) for k, v in metrics_log.numbers(metrics).items()]
            if metrics["step"] == 0:
                values.append(text("config", "    " + settings.replace("\n", "\n    ")))
            step = int(metrics.get(x) or 0)
            writer.add_event(event_pb2.Event(wall_time=clock, step=step, summary=summary_pb2.Summary(value=values)))
            if live:
                writer.flush()
    finally:
        writer.close()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("runs", nargs="+", metavar="RUN")
    p.add_argument("-o", "--out", required=True, metavar="DIR", help="folder for TensorBoard's --logdir")
    p.add_argument("--x", default="step", metavar="NAME", help="metric that becomes the step (default: step)")
    p.add_argument("--live", action="store_true", help="follow runs that go on")
    args = p.parse_args()
    threads = [threading.Thread(target=export, args=(run, args.out, args.x, args.live)) for run in args.runs]
    for t in threads:
        t.start()
    for t in threads:
        t.join()


if __name__ == "__main__":
    main()
