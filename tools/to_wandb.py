#!/usr/bin/env python3
"""Metrics of runs for Weights & Biases, offline: nothing is sent; `wandb sync` uploads the folders later, or never.

  tools/to_wandb.py runs/frozenlake_patr --project grove
  tools/to_wandb.py runs/frozenlake_patr --project grove --live              follows the run until it ends
  wandb sync wandb/offline-run-*

Names are those of metrics.jsonl; the settings become the run's config. Needs the package wandb (PyPI).
"""
import argparse
import os
import sys

import metrics_log

try:
    import wandb
except ImportError:
    sys.exit("to_wandb.py: the package wandb is missing: pip install wandb")


def export(run, project, out, live):
    os.makedirs(out, exist_ok=True)
    record = wandb.init(project=project, name=metrics_log.name(run), config=metrics_log.config(run), dir=out, mode="offline",
                        settings=wandb.Settings(console="off", x_disable_stats=True, disable_git=True))
    for metrics in metrics_log.lines(run, live):
        record.log(metrics_log.numbers(metrics), step=metrics["step"])
    record.finish()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("run", metavar="RUN")
    p.add_argument("--project", default="grove")
    p.add_argument("-o", "--out", default=".", metavar="DIR", help="where the folder wandb/ goes (default: here)")
    p.add_argument("--live", action="store_true", help="follow a run that goes on")
    args = p.parse_args()
    export(args.run, args.project, args.out, args.live)


if __name__ == "__main__":
    main()
