// ledger.js - what each part of the budget bought: tokens, turns, seconds, and which nodes changed a gradient.

const lastOf = (run, name) => {
  for (let i = run.metrics.length - 1; i >= 0; i--) if (finite(run.metrics[i][name])) return run.metrics[i][name];
  return NaN;
};
const sumOf = (run, name) => d3.sum(run.metrics, (m) => (finite(m[name]) ? m[name] : 0));

/** A bar of parts, each with its share in words. parts: [name, value, color] */
function partsBar(parts, format) {
  const total = d3.sum(parts, (p) => p[1]) || 1, shown = parts.filter((p) => p[1] > 0);
  return h("div", {},
    h("div", { class: "bar-parts", role: "img", "aria-label": shown.map((p) => `${p[0]} ${percent(p[1] / total)}`).join() },
      shown.map(([name, value, color]) => h("i", { title: `${name}: ${format(value)}`,
        style: { width: `${100 * value / total}%`, background: color } }))),
    h("div", { class: "bar-key" }, shown.map(([name, value, color]) =>
      h("span", {}, swatch(color), name, h("b", {}, format(value)), h("small", {}, percent(value / total))))));
}

/** Trees of the whole run, from the index: nodes and tokens by what they taught. */
function harvest(run) {
  const sum = { trees: 0, idleTokens: 0, ...Object.fromEntries(TREE.map((name) => [name, 0])) };
  for (const t of run.steps.flatMap((step) => step.trees)) {
    for (const name of TREE) sum[name] += t[name];
    sum.trees++;
    if (t.idle) sum.idleTokens += t.tokens;
  }
  return sum;
}

function budgetTable(runs) {
  const rows = [
    ["environment turns", "budget/env_turns", "what comparisons hold equal"],
    ["charged turns", "budget/charged_turns", "with scorer calls at their cost"],
    ["scorer calls", "budget/scorer_calls", ""],
    ["sampled tokens", "budget/gen_tokens", "decoded one by one"],
    ["prefilled tokens", "budget/prefill_tokens", "read in bulk"],
    ["trained tokens", "budget/loss_tokens", "each once, however many leaves share it"],
    ["the same as flat rows", "budget/loss_tokens_flat", "what training without sharing would take"],
    ["tokens of idle or refilled groups", "budget/discarded_tokens", "taught nothing"],
  ];
  const gained = (run) => 100 * (lastOf(run, "eval/success") - firstOf(run, "eval/success"));
  const perPoint = (run) => (gained(run) > 0 ? lastOf(run, "budget/env_turns") / gained(run) : NaN);
  return h("div", { class: "table-box" }, h("table", {},
    h("thead", {}, h("tr", {}, h("th", {}, "bought"), runs.map((r) => h("th", { class: "num" }, r.name)), h("th", {}))),
    h("tbody", {}, rows.map(([name, metric, note]) => h("tr", {}, h("td", {}, name),
      runs.map((r) => h("td", { class: "num" }, whole(lastOf(r, metric)))), h("td", { class: "note" }, note))),
    h("tr", {}, h("td", {}, "minutes"), runs.map((r) => h("td", { class: "num" }, short(lastOf(r, "clock/minutes")))),
      h("td", { class: "note" }, "all phases below; a warm start is not among them")),
    h("tr", { class: "sum" }, h("td", {}, "held-out success"), runs.map((r) => h("td", { class: "num" },
      `${percent(firstOf(r, "eval/success"))} → ${percent(lastOf(r, "eval/success"))}`)), h("td", {})),
    h("tr", { class: "sum" }, h("td", {}, "turns per point of success"),
      runs.map((r) => h("td", { class: "num" }, whole(perPoint(r)))),
      h("td", { class: "note" }, "gained over the model before training")))));
}
const firstOf = (run, name) => run.metrics.find((m) => finite(m[name]))?.[name] ?? NaN;

const inTokens = (x) => `${short(x)} tokens`;

/** Share of sampled tokens in nodes that changed a gradient, over steps. */
function taughtChart(runs, cursor) {
  const share = (trees) => d3.sum(trees, (t) => t.taughtTokens) / Math.max(1, d3.sum(trees, (t) => t.tokens));
  const chart = new LineChart({ title: "Generation that taught",
    hint: "share of a step's sampled tokens in nodes that changed a gradient", height: 200, xLabel: "steps",
    domain: [0, 1], format: (x) => percent(x, 0), cursor });
  chart.pending = () => chart.draw(runs.filter((r) => r.steps.length > 0).map((run) => ({
    name: run.name, color: `var(--series-${run.number % 7})`,
    points: bins(run.steps.map((step) => [step.step, share(step.trees)])),
  })));
  return chart;
}

function showLedger(report, view) {
  const charts = [], cursor = (x) => charts.forEach((c) => c.point(x));
  charts.push(taughtChart(report.runs, cursor));
  view.replaceChildren(h("div", { class: "page" },
    h("h2", {}, "What the budget bought"), budgetTable(report.runs),
    report.runs.map((run) => {
      const saved = lastOf(run, "budget/loss_tokens_flat") - lastOf(run, "budget/loss_tokens");
      const t = harvest(run), seconds = PHASES.map((p) => [PHASE_NAMES[p], sumOf(run, "time/" + p)]);
      return h("section", { class: "card" }, h("h2", {}, run.name),
        h("h3", {}, "Where the time went"),
        partsBar(seconds.map(([name, value], i) => [name, value, `var(--phase-${i})`]), (x) => `${short(x)} s`),
        t.nodes > 0 && [h("h3", {}, "Where generation went"),
          partsBar([["changed a gradient", t.taughtTokens, "var(--good)"], ["in idle trees", t.idleTokens, "var(--bad)"],
            ["in others, without effect", t.tokens - t.taughtTokens - t.idleTokens, "var(--series-4)"]], inTokens),
          h("p", { class: "note" }, `${plural(t.taught, "node")} of ${whole(t.nodes)} in the trees of this page changed a gradient; `,
            `${whole(t.idle)} of ${plural(t.trees, "tree")} were idle: all leaves worth the same. `,
            `${plural(t.forks, "branch point")}; `,
            STOPS.filter((k) => t[k] > 0).map((k) => `${whole(t[k])} ${OUTCOME_WORD[k]}`).join(", ") || "no stops", "."),
          h("h3", {}, "Tokens saved by sharing"),
          partsBar([["trained once", lastOf(run, "budget/loss_tokens"), "var(--series-0)"],
            ["not trained again", saved, "var(--series-5)"]], inTokens)]);
    }), charts[0].element));
  charts[0].pending();
  report.redraw = () => showLedger(report, view);
}

// ---- settings -------------------------------------------------------------------------------------------------

function showSettings(report, view) {
  const keys = [...new Set(report.runs.flatMap((r) => Object.keys(r.flat)))];
  const text = (v) => (v === undefined ? "–" : v === "" ? "(empty)" : visible(String(v)));
  const value = (run, key) => text(run.flat[key]);
  const differ = (key) => new Set(report.runs.map((r) => JSON.stringify(r.flat[key]))).size > 1;
  const sections = [...new Set(keys.map((k) => k.split(".")[0]))];
  view.replaceChildren(h("div", { class: "page" }, h("h2", {}, "Settings"),
    report.runs.length > 1 && h("p", { class: "note" }, "Marked: what differs among the runs; what they share stands once."),
    h("div", { class: "table-box" }, h("table", {},
      h("thead", {}, h("tr", {}, h("th", {}, "key"), report.runs.map((r) => h("th", {}, r.name)))),
      sections.map((section) => h("tbody", {}, keys.filter((k) => k.split(".")[0] === section).map((key) =>
        h("tr", { class: differ(key) ? "differs" : "" }, h("td", {}, h("code", {}, key)),
          differ(key) ? report.runs.map((r) => h("td", {}, h("code", {}, value(r, key))))
            : h("td", { colspan: report.runs.length }, h("code", {}, value(report.runs[0], key)))))))))));
}
