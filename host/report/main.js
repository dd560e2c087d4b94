// main.js - which view is shown, and the address of what is looked at (#trees/RUN/STEP/GROUP/NODE).

const VIEWS = [
  ["learning", "Learning", showLearning],
  ["trees", "Trees", showTrees],
  ["ledger", "Ledger", showLedger],
  ["settings", "Settings", showSettings],
];

function route(report) {
  const parts = decodeURIComponent(location.hash.slice(1)).split("/");
  const [name, , show] = VIEWS.find(([id]) => id === parts[0]) ?? VIEWS[0];
  for (const link of document.querySelectorAll("#views a")) {
    link.toggleAttribute("aria-current", link.hash === "#" + name);
  }
  const view = document.getElementById("view");
  view.className = "view-" + name;
  report.keys = null;
  report.redraw = null;
  Promise.resolve(show(report, view, parts.slice(1))).catch((error) =>
    view.replaceChildren(h("p", { class: "empty" }, "This cannot be shown: " + error.message)));
}

function showSubject(report) {
  const [run] = report.runs, steps = run.metrics.length > 0 ? run.metrics[run.metrics.length - 1].step : 0;
  const words = report.runs.length > 1
    ? [plural(report.runs.length, "run"), plural(report.groups.length, "method")]
    : [run.config.env?.name, run.config.rollout?.strategy, run.config.advantage?.estimator, plural(steps, "step")];
  document.getElementById("subject").replaceChildren(
    h("b", {}, report.runs.length > 1 ? report.groups.map((g) => g.name).join(" / ") : run.name), " ",
    words.filter(Boolean).join(" · "),
    ...(report.runs.length === 1 ? [h("span", { class: "state state-" + run.state }, run.state)] : []));
  document.title = `${report.runs.map((r) => r.name).slice(0, 3).join(", ")} – grove report`;
}

/** system -> light -> dark; the choice stays with the page's address bar, nothing is stored. */
function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  document.getElementById("theme").textContent = { system: "◐", light: "○", dark: "●" }[theme];
}

const KEYS = [
  ["1 … 4", "learning, trees, ledger, settings"],
  ["← →", "tree: parent, first child"],
  ["↑ ↓", "tree: neighbour above, below"],
  ["f  F", "tree: next, previous branch point"],
  ["e  E", "tree: next, previous end of an episode"],
  ["[  ]", "tree before, after"],
  [",  .", "step before, after"],
  ["m", "colour by score, advantage, reward"],
  ["d", "siblings side by side"],
  ["c", "copy the command that replays the node"],
  ["Esc", "close"],
];

function showHelp(report) {
  const dialog = document.getElementById("dialog");
  dialog.className = "small";
  dialog.replaceChildren(h("h2", {}, "Keys"),
    h("dl", { class: "keys" }, KEYS.map(([key, text]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, text)])),
    h("p", { class: "note" }, `grove ${report.version}. Charts are computed with D3 (scale, shape, array and what they need), ` +
      "© 2010–2022 Mike Bostock, under BSD-3-Clause and ISC; the licences stand at the head of the script in this page."),
    h("form", { method: "dialog" }, h("button", { type: "submit" }, "Close")));
  dialog.showModal();
}

async function start() {
  const report = await loadReport();
  report.groups = groupRuns(report.runs);
  showSubject(report);
  document.getElementById("views").append(...VIEWS.map(([id, text], i) =>
    h("a", { href: "#" + id, title: `Key ${i + 1}` }, text)));
  setTheme("system");
  document.getElementById("theme").addEventListener("click", () => {
    const order = ["system", "light", "dark"];
    setTheme(order[(order.indexOf(document.documentElement.dataset.theme) + 1) % 3]);
    report.redraw?.();
  });
  document.getElementById("help").addEventListener("click", () => showHelp(report));
  window.addEventListener("hashchange", () => route(report));
  window.addEventListener("resize", eachFrame(() => report.redraw?.()));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => report.redraw?.());
  window.addEventListener("keydown", (e) => {
    if (e.ctrlKey || e.metaKey || e.altKey || e.target.matches("input, select, textarea")) return;
    if (document.getElementById("dialog").open) return;
    if (e.key === "?") showHelp(report);
    else if (VIEWS[e.key - 1]) location.hash = VIEWS[e.key - 1][0];
    else if (!report.keys?.(e)) return;
    e.preventDefault();
  });
  route(report);
  document.documentElement.dataset.ready = "true";
}

start().catch((error) => {
  document.getElementById("view").replaceChildren(h("p", { class: "empty" }, "This report cannot be read: " + error.message));
  throw error;
});
