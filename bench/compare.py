#!/usr/bin/env python3
"""Compares rollout methods at equal budget on FrozenLake regimes.

Every run is an ordinary `grove train`, so an interrupted comparison goes on where it stopped; what a run came to
is kept in the .json too, and a run that stands there with the same settings is not made again. For each method
the learning rate with the best mean over the tuning seeds is chosen, then fresh seeds are run at that rate and
reported.
The budget is environment turns plus charged scorer calls, the same for every method. A step that is taken back
has cost its turn, and the one made in its place costs another; the column `tokens` is all that was sampled, for
steps made again as well.

  bench/compare.py Z --jobs 2             run what is missing, write table and plot
  bench/compare.py Z --report-only        table and plot from the runs that exist

Writes bench/results/compare-<regime>.md and .json; tools/plot.sh draws them. Only the standard library and
gnuplot are used.
"""
import argparse
import hashlib
import json
import math
import os
import statistics
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
T95 = [0, 12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228]  # Student's t, 97.5 %

REGIMES = {  # budget in environment turns; a turn is about 5.3 tokens
    "L": dict(config="configs/frozenlake_flat.json", turns=22600, set=[],
              text="4x4, 20 % holes, base that repeats itself, horizon 16"),
    "X": dict(config="configs/frozenlake_patr.json", turns=56600, set=["frozenlake.demo_noise=0.55"],
              text="4x4, 45 % holes, base from 20 % holes and noise 0.55, horizon 12"),
    "Z": dict(config="configs/frozenlake_patr.json", turns=94000, set=[],
              text="4x4, 45 % holes, base from 20 % holes and noise 0.8 (start success 1 %), horizon 12"),
    "K": dict(config="configs/keydoor_patr.json", turns=47000, set=[],
              more=["turn_gae", "hiper_term", "hiper_gain", "proceed"],
              configs={"hiper_term": "configs/keydoor_hiper.json", "hiper_gain": "configs/keydoor_hiper.json"},
              method_set={"tree_random": ["patr.interval=3"], "patr": ["patr.interval=3"]},
              text="key and door, 6x6, 25 % holes, base from 15 % holes and noise 0.4 (start success 3 %), horizon 20"),
}
RATES = {"L": [3e-4, 6e-4, 1.2e-3, 2.4e-3], "X": [5e-4, 8e-4, 1.2e-3, 1.6e-3], "Z": [5e-4, 8e-4, 1.2e-3, 1.6e-3],
         "K": [5e-4, 1e-3]}
METHODS = {
    "flat_grpo": ["rollout.strategy=flat", "rollout.group=8", "advantage.estimator=grpo"],
    "flat_rloo": ["rollout.strategy=flat", "rollout.group=8", "advantage.estimator=rloo"],
    "flat_gigpo": ["rollout.strategy=flat", "rollout.group=8", "advantage.estimator=gigpo"],
    "tree_random": ["rollout.strategy=tree_random", "rollout.group=4", "patr.interval=2"],
    "tree_grpo": ["rollout.strategy=tree_grpo", "rollout.group=2", "tree_grpo.n=2", "tree_grpo.l=1",
                  "advantage.estimator=tree_grpo"],
    "patr": ["rollout.strategy=patr", "rollout.group=4", "patr.interval=2"],
    "patr_retro": ["rollout.strategy=patr_retro", "rollout.group=4"],
    # Compared where a regime lists them under `more`.
    "turn_gae": ["rollout.strategy=flat", "rollout.group=8", "advantage.estimator=gae"],
    "hiper_term": ["hiper.switch_adv=term_head"],
    "hiper_gain": ["hiper.switch_adv=gain"],
    "proceed": ["rollout.strategy=proceed", "rollout.group=8", "scorer.name=rule_critic", "proceed.told=undone",
                "proceed.phi_scale=4"],
}
SOME = ["turn_gae", "hiper_term", "hiper_gain", "proceed"]
TUNING_SEEDS = {"L": [101, 102, 103], "X": [101, 102, 103], "Z": [101, 102, 103], "K": [101, 102]}
SEEDS = [1, 2, 3, 4, 5]


def methods_of(regime):
    return [m for m in METHODS if m not in SOME or m in REGIMES[regime].get("more", [])]


def config_of(regime, method):
    return REGIMES[regime].get("configs", {}).get(method, REGIMES[regime]["config"])


def base_of(regime, config):
    """Name of the run whose initial weights all methods with this configuration begin from."""
    return "base" if config == REGIMES[regime]["config"] else "base-" + os.path.splitext(os.path.basename(config))[0]


def run_name(method, rate, seed):
    return f"{method}-{rate:g}-{seed}"


def run_dir(regime, name):
    """Seen from ROOT, where every run is started."""
    return os.path.join("runs", "compare", regime, name)


def grove(args, regime, name, config, overrides):
    """Runs one training to its end, unless it is finished; returns its metrics, none where it is not."""
    directory = os.path.join(ROOT, run_dir(regime, name))
    os.makedirs(os.path.dirname(directory), exist_ok=True)
    if not os.path.exists(os.path.join(directory, "finished")) and not args.report_only:
        command = [args.grove, "train", config, f"run.dir=runs/compare/{regime}",
                   f"run.name={name}", "log.quiet=true", "log.trees_every=0", "checkpoint.every=0",
                   "device.threads=1", *REGIMES[regime]["set"], *overrides]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)}\n{done.stderr}")
    if not os.path.exists(os.path.join(directory, "finished")):
        return []
    with open(os.path.join(directory, "metrics.jsonl")) as f:
        return [json.loads(line) for line in f]


class Results:
    """The comparison's .json. What ended runs came to stands in it by name, with a hash of the settings they were
    made with, and so outlives their folders."""

    def __init__(self, regime):
        self.path = os.path.join(ROOT, "bench", "results", f"compare-{regime}.json")
        self.lock = threading.Lock()
        self.content = {"runs": {}}
        if os.path.exists(self.path):
            with open(self.path) as f:
                self.content |= json.load(f)

    def run(self, name, settings):
        run = self.content["runs"].get(name)
        return run if run and run["settings"] == settings else None

    def write(self, **parts):
        with self.lock:
            self.content |= parts
            with open(self.path + ".new", "w") as f:
                json.dump(self.content, f)
            os.replace(self.path + ".new", self.path)


def train(args, results, regime, method, rate, seed):
    """One run as final() and evaluations() tell it, or None; tuning seeds are evaluated at the end only."""
    name, config = run_name(method, rate, seed), config_of(regime, method)
    base = os.path.join(run_dir(regime, base_of(regime, config)), "checkpoints", "initial")
    overrides = [*METHODS[method], *REGIMES[regime].get("method_set", {}).get(method, []),
                 f"optimizer.lr={rate:g}", f"run.seed={seed}", "budget.tokens=0",
                 f"budget.turns={REGIMES[regime]['turns']}", f"warmstart.load={base}",
                 *(["eval.every_share=1"] if seed in TUNING_SEEDS[regime] else [])]
    with open(os.path.join(ROOT, config)) as f:
        settings = hashlib.sha256("\n".join([f.read(), *REGIMES[regime]["set"], *overrides]).encode()).hexdigest()[:16]
    run = results.run(name, settings)
    if run:
        return run
    metrics = grove(args, regime, name, config, overrides)
    if not metrics:
        return None
    run = dict(settings=settings, final=final(metrics), evaluations=evaluations(metrics))
    results.write(runs=results.content["runs"] | {name: run})
    print(f"{regime} {name}: {run['final']['success']:.3f}", flush=True)
    return run


def final(metrics):
    """What a run is judged by: its last evaluation, and its ledger."""
    last = metrics[-1]
    seconds = sum(m.get(k) or 0 for m in metrics for k in ("time/gen", "time/env", "time/score", "time/train"))
    return dict(success=last.get("eval/success", math.nan), greedy=last.get("eval/success_greedy", math.nan),
                turns=last["budget/env_turns"], tokens=last["budget/gen_tokens"],
                loss=last["budget/loss_tokens"], loss_flat=last["budget/loss_tokens_flat"],
                minutes=seconds / 60,
                none=statistics.fmean(m["group/solve_none"] for m in metrics if m.get("group/solve_none") is not None),
                zero=statistics.fmean(m["group/frac_zero_adv"] for m in metrics if m.get("group/frac_zero_adv") is not None),
                nodes=statistics.fmean(m["tree/informative_nodes_per_1k_tokens"] for m in metrics
                                       if m.get("tree/informative_nodes_per_1k_tokens") is not None))


def evaluations(metrics):
    """(environment turns, held-out success) through a run."""
    return [(m.get("budget/env_turns", 0), m["eval/success"]) for m in metrics if m.get("eval/success") is not None]


def mean_half(values):
    """Mean and half width of the 95 % interval (Student's t)."""
    if len(values) < 2:
        return (values[0] if values else math.nan), math.nan
    return statistics.fmean(values), T95[len(values) - 1] * statistics.stdev(values) / math.sqrt(len(values))


def curve(runs):
    """Held-out success against environment turns, mean over runs, on a common grid."""
    series = [run["evaluations"] for run in runs]
    if not series:
        return []
    end = min(s[-1][0] for s in series)
    out = []
    for i in range(21):
        x = end * i / 20
        ys = []
        for s in series:
            after = next((j for j, p in enumerate(s) if p[0] >= x), len(s) - 1)
            (x0, y0), (x1, y1) = s[max(after - 1, 0)], s[after]
            ys.append(y1 if x1 == x0 else y0 + (y1 - y0) * (x - x0) / (x1 - x0))
        m, h = mean_half(ys)
        out.append((x, m, h if not math.isnan(h) else 0))
    return out


def own_bases(regime, runs):
    own = [m for m in runs if config_of(regime, m) != REGIMES[regime]["config"]]
    return f" but {', '.join(own)}, whose base learnt the same demonstrations with switch, subgoal and action" if own else ""


def report(results, regime, best, tuned, runs):
    """Table, .json and figures of {method: {seed: run}}."""
    out = [f"# Regime {regime}: {REGIMES[regime]['text']}", "",
           f"Budget {REGIMES[regime]['turns']} environment turns (scorer calls of this comparison cost none), "
           f"{len(SEEDS)} seeds, 500 held-out maps, one base model for all{own_bases(regime, runs)}. Rates tried: "
           f"{', '.join(f'{r:g}' for r in RATES[regime])} on seeds {', '.join(map(str, TUNING_SEEDS[regime]))}, which are "
           f"not reported.", "",
           f"    bench/compare.py {regime}", "",
           "| method | rate | success T=1 | 95 % | minus flat_grpo | 95 % | greedy | turns | tokens | loss tokens | as flat rows | all-fail groups | informative nodes / 1k tokens | minutes |",
           "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|"]
    ends = {m: {s: run["final"] for s, run in by_seed.items()} for m, by_seed in runs.items()}
    reference = ends.get("flat_grpo", {})
    for method, by_seed in ends.items():
        f = list(by_seed.values())
        s, h = mean_half([x["success"] for x in f])
        d, dh = mean_half([x["success"] - reference[k]["success"] for k, x in by_seed.items() if k in reference])
        g, _ = mean_half([x["greedy"] for x in f])
        avg = {k: statistics.fmean(x[k] for x in f) for k in f[0]}
        out.append(f"| {method} | {best[method]:g} | {100 * s:.1f} | ±{100 * h:.1f} | {100 * d:+.1f} | ±{100 * dh:.1f} | "
                   f"{100 * g:.1f} | {avg['turns']:.0f} | {avg['tokens']:.0f} | {avg['loss']:.0f} | {avg['loss_flat']:.0f} | "
                   f"{avg['none']:.2f} | {avg['nodes']:.0f} | {avg['minutes']:.2f} |")
    out += ["", "Tuning, success at T=1 per seed:", "", "| method | " + " | ".join(f"{r:g}" for r in RATES[regime]) + " |",
            "|---|" + "---|" * len(RATES[regime])]
    for method, by_rate in tuned.items():
        out.append(f"| {method} | " + " | ".join(" / ".join(f"{100 * x:.1f}" for x in by_rate[r]) for r in RATES[regime]) + " |")
    with open(os.path.join(ROOT, "bench", "results", f"compare-{regime}.md"), "w") as f:
        f.write("\n".join(out) + "\n")
    results.write(rates=best, tuning={m: {f"{r:g}": v for r, v in t.items()} for m, t in tuned.items()}, final=ends,
                  curves={m: curve(by_seed.values()) for m, by_seed in runs.items()})
    subprocess.run([os.path.join(ROOT, "tools", "plot.sh"), f"bench/results/compare-{regime}.json"], check=True)
    print("\n".join(out))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("regime", choices=REGIMES)
    p.add_argument("--grove", default=os.path.join(ROOT, "build", "release", "grove"))
    p.add_argument("--jobs", type=int, default=2)
    p.add_argument("--methods", nargs="*", choices=METHODS, help="default: those of the regime")
    p.add_argument("--report-only", action="store_true")
    args = p.parse_args()
    regime = args.regime
    args.methods = args.methods or methods_of(regime)
    for config in dict.fromkeys(config_of(regime, m) for m in args.methods):
        grove(args, regime, base_of(regime, config), config, ["budget.tokens=1", "run.seed=7", "eval.tasks=0"])
    results = Results(regime)
    with ThreadPoolExecutor(args.jobs) as pool:
        def all_runs(jobs):
            runs = dict(zip(jobs, pool.map(lambda job: train(args, results, regime, *job), jobs)))
            missing = [run_name(*job) for job, run in runs.items() if run is None]
            if missing:
                sys.exit(f"no table without {', '.join(missing)}")
            return runs

        tuning = all_runs([(m, r, s) for m in args.methods for r in RATES[regime] for s in TUNING_SEEDS[regime]])
        tuned = {m: {r: [tuning[m, r, s]["final"]["success"] for s in TUNING_SEEDS[regime]] for r in RATES[regime]}
                 for m in args.methods}  # success per rate and tuning seed
        best = {m: max(t, key=lambda r: statistics.fmean(t[r])) for m, t in tuned.items()}
        done = all_runs([(m, best[m], s) for s in SEEDS for m in args.methods])
    report(results, regime, best, tuned, {m: {s: done[m, best[m], s] for s in SEEDS} for m in args.methods})


if __name__ == "__main__":
    main()
