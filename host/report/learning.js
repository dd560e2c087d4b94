// learning.js - what the runs learned, and what learning looked like from inside.

const learning = { axis: "turns", greedy: false };

/** name, title, hint, what may be set of the chart */
const CURVES = [
  ["reward/mean", "Reward", "per episode, training tasks"],
  ["policy/entropy", "Entropy", "nats per token"],
  ["policy/kl_old", "KL to the sampler", "nats per token"],
  ["policy/kl_ref", "KL to the reference", "nats per token"],
  ["policy/grad_norm", "Gradient norm", "before clipping"],
  ["policy/clip_high", "Clipped from above", "share of the loss weight", { format: percent }],
  ["policy/clip_low", "Clipped from below", "share of the loss weight", { format: percent }],
  ["parity/max_abs_dlogp", "Parity", "largest |Δ log-prob|, sampler against trainer"],
  ["policy/lr", "Learning rate", ""],
  ["tree/token_ratio", "Saved by sharing", "flat rows / packed tokens",
    { format: (x) => "×" + short(x), domain: [1, null] }],
  ["perf/saved_prefill_tok", "Prefill saved", "tokens a step, by sharing"],
  ["tree/informative_nodes_per_1k_tokens", "Nodes that taught", "changed a gradient, per 1000 sampled tokens"],
  ["tree/nodes", "Tree size", "nodes per tree"],
  ["turns/mean", "Episode length", "turns"],
  ["turns/valid_action_frac", "Understood actions", "share of turns", { format: percent }],
  ["perf/gen_tok_s", "Sampling speed", "tokens per second"],
];

const GROUP_PARTS = [["group/solve_all", "all solved", "var(--good)"], ["group/solve_partial", "some solved", "var(--some)"],
  ["group/solve_none", "none solved", "var(--bad)"]];
const PHASE_NAMES = { gen: "sampling", env: "worlds", score: "scoring", train: "update", eval: "evaluation",
  ckpt: "checkpoints" };

/** Rows of a stacked chart out of one run's metrics, averaged over bins of steps. */
function stackRows(run, axis, names) {
  const rows = run.metrics.filter((m) => names.some((n) => finite(m[n])));
  const size = Math.max(1, Math.ceil(rows.length / 60)), out = [];
  for (let i = 0; i < rows.length; i += size) {
    const part = rows.slice(i, i + size);
    out.push({
      x: d3.mean(part, (m) => m[AXES[axis][0]] ?? 0),
      values: names.map((n) => d3.mean(part, (m) => (finite(m[n]) ? m[n] : 0))),
    });
  }
  return out;
}

function headline(report) {
  const group = h("div", { class: "tiles" });
  for (const one of report.groups) {
    const curve = successCurve(one, "steps", learning.greedy).points;
    if (curve.length === 0) continue;
    const first = curve[0], last = curve[curve.length - 1];
    group.append(h("div", { class: "tile" },
      h("div", { class: "tile-name" }, swatch(one.color), one.name,
        one.runs.length > 1 && h("small", {}, `, ${one.runs.length} seeds`)),
      h("div", { class: "tile-value" }, percent(last.y)),
      h("div", { class: "tile-note" }, `[${percent(last.low)}, ${percent(last.high)}], from ${percent(first.y)}`)));
  }
  return group;
}

function showLearning(report, view) {
  const charts = [];
  const cursor = (x) => charts.forEach((c) => c.point(x));
  const add = (chart) => { charts.push(chart); return chart; };
  const set = (key) => (value) => { learning[key] = value; showLearning(report, view); };
  const many = report.runs.length > 1;
  const [, xLabel] = AXES[learning.axis];
  const main = add(new LineChart({
    title: "Held-out success", height: 340, xLabel, cursor, ranges: true, domain: [0, null], format: percent,
    hint: (learning.greedy ? "greedy" : `temperature ${report.runs[0].config.eval?.temperature ?? 1}`) +
      (report.groups.some((g) => g.runs.length > 1) ? ", mean over seeds and its 95 % interval"
        : ", 95 % interval of the episodes"),
  }));
  const small = h("div", { class: "grid-charts" });
  view.replaceChildren(h("div", { class: "page" },
    h("div", { class: "controls" },
      choice("Against", [["turns", "turns"], ["tokens", "tokens"], ["minutes", "minutes"], ["steps", "steps"]],
        learning.axis, set("axis")),
      choice("Decoding", [[false, "sampled"], [true, "greedy"]], learning.greedy, set("greedy"))),
    headline(report), main.element,
    h("p", { class: "note" }, "Below: the line is the mean of neighbouring steps, its band their range",
      many ? "; of several seeds their mean and range." : ".", " Pointing at a chart reads all of them at that place."),
    small));
  main.draw(report.groups.map((group) => {
    const { points, single } = successCurve(group, learning.axis, learning.greedy);
    return { name: group.name, color: group.color, points, thin: single, dots: single.length === 0 };
  }));
  const withReference = report.runs.some((r) => r.config.loss?.kl !== "none");
  const shown = CURVES.filter(([name]) => (name !== "policy/kl_ref" || withReference) && 
    report.runs.some((r) => r.metrics.some((m) => finite(m[name]))));
  for (const [name, title, hint, options] of shown) {
    const chart = add(new LineChart({ title, hint, cursor, ...options }));
    small.append(chart.element);
    chart.draw(report.groups.map((group) => ({ name: group.name, color: group.color, points: smallCurve(group, name) })));
  }
  for (const run of report.runs.slice(0, 6)) { // of more runs the first six
    const of = many ? run.name : "";
    const shares = add(new AreaChart({ title: "Groups", hint: of || "share of the step's trees", cursor, domain: [0, 1],
      format: (x) => percent(x, 0) }));
    const phases = add(new AreaChart({ title: "Time per phase", hint: of || "seconds a step", cursor }));
    small.append(shares.element, phases.element);
    shares.draw(GROUP_PARTS.map(([, name, color]) => ({ name, color })),
      stackRows(run, learning.axis, GROUP_PARTS.map(([n]) => n)));
    phases.draw(PHASES.map((p, i) => ({ name: PHASE_NAMES[p], color: `var(--phase-${i})` })),
      stackRows(run, learning.axis, PHASES.map((p) => "time/" + p)));
  }
  report.redraw = () => showLearning(report, view);
}

/** A metric of a group: bins of one run, or the mean and range over seeds of their bins. */
function smallCurve(group, name) {
  const series = group.runs.map((run) => bins(pointsOf(run, learning.axis, name))).filter((p) => p.length > 0);
  if (series.length <= 1) return series[0] ?? [];
  return rangeOfSeeds(series.map((points) => points.map((p) => [p.x, p.y])));
}
