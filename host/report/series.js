// series.js - numbers behind the curves: intervals, means over seeds, bins.

const AXES = {
  turns: ["budget/env_turns", "environment turns"],
  tokens: ["budget/gen_tokens", "sampled tokens"],
  minutes: ["clock/minutes", "minutes"],
  steps: ["step", "steps"],
};

const finite = (x) => typeof x === "number" && Number.isFinite(x);

/** Points [x, y] of one metric of one run. The line of step 0 has no budget yet: it is at 0. */
const pointsOf = (run, axis, name) => run.metrics.filter((m) => finite(m[name]))
  .map((m) => [m[AXES[axis][0]] ?? 0, m[name]]);

/** 95 % interval of a share p of n trials: Wilson 1927. */
function wilson(p, n) {
  const z2 = 1.959963984540054 ** 2;
  const centre = (p + z2 / (2 * n)) / (1 + z2 / n);
  const half = Math.sqrt(z2) / (1 + z2 / n) * Math.sqrt(p * (1 - p) / n + z2 / (4 * n * n));
  return [Math.max(0, centre - half), Math.min(1, centre + half)];
}

/** Student's t, 97.5 %, by degrees of freedom. */
const T975 = [NaN, 12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.16,
  2.145, 2.131, 2.12, 2.11, 2.101, 2.093, 2.086];
const t975 = (df) => T975[df] ?? 1.96 + 2.4 / df;

/** Line through points, at x; beyond the ends NaN. */
function interpolate(points, x) {
  const i = d3.bisector((p) => p[0]).left(points, x);
  if (i < points.length && points[i][0] === x) return points[i][1];
  if (i === 0 || i === points.length) return NaN;
  const [x0, y0] = points[i - 1], [x1, y1] = points[i];
  return y0 + (y1 - y0) * (x - x0) / (x1 - x0);
}

/** The values of several seeds on a common grid, up to where the shortest run ends. */
function onGrid(series) {
  const end = Math.min(...series.map((p) => p[p.length - 1][0])), begin = Math.max(...series.map((p) => p[0][0]));
  return d3.range(0, 41).map((i) => begin + (end - begin) * i / 40)
    .map((x) => [x, series.map((p) => interpolate(p, x))]).filter(([, ys]) => ys.every(finite));
}

/** Mean over seeds with the 95 % interval of that mean, cut to the share's [0, 1]. */
function meanOfSeeds(series) {
  const n = series.length;
  return onGrid(series).map(([x, ys]) => {
    const mean = d3.mean(ys), half = t975(n - 1) * d3.deviation(ys) / Math.sqrt(n);
    return { x, y: mean, low: Math.max(0, mean - half), high: Math.min(1, mean + half) };
  });
}

const rangeOfSeeds = (series) => onGrid(series).map(([x, ys]) => ({ x, y: d3.mean(ys), low: d3.min(ys), high: d3.max(ys) }));

/** Held-out episodes behind one evaluation: the trials of its interval. */
function trialsOf(run, greedy) {
  const tasks = run.config.eval?.tasks ?? 0;
  return greedy ? tasks : tasks * (run.config.eval?.samples ?? 1);
}

/** The success of a group of runs: one run with Wilson intervals, several as mean and band. */
function successCurve(group, axis, greedy) {
  const name = greedy ? "eval/success_greedy" : "eval/success";
  const series = group.runs.map((run) => pointsOf(run, axis, name)).filter((p) => p.length > 0);
  if (series.length === 0) return { points: [], single: [] };
  if (series.length > 1) return { points: meanOfSeeds(series), single: series };
  const n = trialsOf(group.runs[0], greedy);
  return {
    points: series[0].map(([x, y]) => {
      const [low, high] = n > 0 ? wilson(y, n) : [y, y];
      return { x, y, low, high };
    }),
    single: [],
  };
}

/** At most `most` bins of equally many steps: mean, and the range of what was put together. */
function bins(points, most = 90) {
  const size = Math.max(1, Math.ceil(points.length / most)), out = [];
  for (let i = 0; i < points.length; i += size) {
    const part = points.slice(i, i + size), ys = part.map((p) => p[1]);
    out.push({ x: d3.mean(part, (p) => p[0]), y: d3.mean(ys), low: d3.min(ys), high: d3.max(ys) });
  }
  return out;
}
