// trees.js - the explorer: which run, step and task; the tree; the chosen node. The address says what is shown.

const explorer = { run: 0, step: -1, tree: 0, measure: "score", forest: null };

const solvedBar = (t) => h("span", { class: "solved" },
  h("b", { style: { width: `${t.leaves > 0 ? 100 * t.solved / t.leaves : 0}%` } }));

/** Small glyphs of what happened in a tree. */
function stops(t) {
  return STOPS.filter((kind) => t[kind] > 0).map((kind) => h("span", { class: "stop end end-" + GLYPH[kind][0],
    title: `${t[kind]} × ${OUTCOME_TEXT[kind]}` }, glyphIcon(kind, 13), t[kind]));
}

async function showTrees(report, view, parts) {
  const withTrees = report.runs.filter((r) => r.steps.length > 0);
  if (withTrees.length === 0) {
    view.replaceChildren(h("p", { class: "empty" }, "No trees are logged (log.trees_every)."));
    return;
  }
  const [runNumber, stepNumber, group, nodeId] = parts.map(Number);
  const run = report.runs[runNumber]?.steps.length > 0 ? report.runs[runNumber] : withTrees[0];
  const at = finite(stepNumber) ? d3.bisectCenter(run.steps.map((x) => x.step), stepNumber) : run.steps.length - 1;
  const step = run.steps[at];
  let which = step.trees.findIndex((t) => t.group === group);
  if (which < 0) which = mostTelling(step.trees);
  const turn = ++explorer.turn || (explorer.turn = 1); // a later choice overtakes one that still unpacks
  const tree = await loadTree(run, step, which);
  if (turn !== explorer.turn) return;
  const node = tree.nodes[nodeId] ?? tree.nodes[0];
  draw(report, view, { run, at, step, which, tree, node });
}

/** The tree to begin with: one that teaches, with branch points, is worth a look. */
const mostTelling = (trees) => d3.maxIndex(trees, (t) => (t.idle ? 0 : 1000) + 10 * t.forks + Math.min(t.nodes, 60) / 10);

const go = (run, step, group, node) => {
  const to = `#trees/${run.number}/${step.step}/${group}` + (node ? `/${node.id}` : "");
  if (location.hash !== to) location.hash = to;
};

function draw(report, view, now) {
  const { run, step, tree } = now;
  const known = explorer.shown === tree.run.number + "/" + tree.step + "/" + tree.group && view.querySelector(".explorer");
  explorer.shown = tree.run.number + "/" + tree.step + "/" + tree.group;
  if (known) { // another node of the same tree: the drawing stays
    now.tree = explorer.now.tree;
    now.node = now.tree.nodes[now.node.id];
  }
  explorer.now = now;
  const select = (node) => go(run, step, tree.group, node);
  if (!known) {
    explorer.forest = new Forest(select);
    view.replaceChildren(h("div", { class: "explorer" },
      h("aside", { class: "side" }, stepPicker(report, now), treeList(now)),
      h("section", { class: "middle" }, toolbar(now), explorer.forest.element, legend()),
      h("aside", { class: "panel", id: "panel" })));
    explorer.forest.show(now.tree, explorer.measure);
    view.querySelector(".tree-list [aria-selected=true]")?.scrollIntoView({ block: "nearest" });
  }
  explorer.forest.select(now.node);
  const panel = document.getElementById("panel");
  const compare = () => showSiblings(now.tree, explorer.now.node);
  panel.replaceChildren(...nodePanel(now.tree, now.node, { select, compare }).flat(3).filter(Boolean));
  panel.scrollTo(0, 0);
  updateScale();
  report.keys = (e) => treeKeys(e, explorer.now);
  report.redraw = () => explorer.forest.paintBy(explorer.measure) ?? updateScale();
}

function stepPicker(report, { run, at, step }) {
  const to = (i) => i >= 0 && i < run.steps.length && go(run, run.steps[i], "first");
  return h("div", { class: "picker" },
    report.runs.length > 1 && h("select", { "aria-label": "Run",
      onchange: (e) => go(report.runs[e.target.value], { step: step.step }, "first") },
      report.runs.filter((r) => r.steps.length > 0).map((r) => h("option", { value: r.number, selected: r === run }, r.name))),
    h("div", { class: "picker-row" }, h("b", {}, `Step ${step.step}`),
      h("button", { type: "button", id: "step-before", title: "step before ( , )", onclick: () => to(at - 1) }, "‹"),
      h("button", { type: "button", id: "step-after", title: "step after ( . )", onclick: () => to(at + 1) }, "›")),
    h("input", { type: "range", id: "step", min: 0, max: run.steps.length - 1, value: at, "aria-label": "Step",
      oninput: (e) => to(Number(e.target.value)) }));
}

function treeList({ run, step, which }) {
  return h("div", { class: "tree-list", role: "listbox", "aria-label": "Trees of the step" }, step.trees.map((t, i) =>
    h("button", { type: "button", role: "option", "aria-selected": String(i === which), class: t.idle ? "idle" : "",
      onclick: () => go(run, step, t.group),
      title: `task ${t.task}` + (t.idle ? ": all leaves were worth the same, so it taught nothing" : "") },
    h("span", { class: "row" }, h("b", {}, `Tree ${t.group}`), h("small", {}, t.idle ? "idle" : plural(t.forks, "fork"))),
    solvedBar(t),
    h("span", { class: "row" }, h("small", {}, `${t.solved}/${t.leaves} solved`), h("span", { class: "stops" }, stops(t))))));
}

function toolbar({ tree }) {
  const scale = h("div", { class: "scale" });
  return h("div", { class: "toolbar" },
    h("span", { class: "what" }, h("b", {}, `task ${tree.task}`), ` ${plural(tree.nodes.length, "node")}, `,
      `${whole(d3.sum(tree.nodes, (n) => n.tokens.length))} sampled tokens`),
    choice("Colour", Object.entries(MEASURES).map(([id, m]) => [id, m.label]), explorer.measure, paint), scale);
}

function paint(measure) {
  explorer.measure = measure;
  for (const b of document.querySelectorAll(".toolbar .choice button")) {
    b.setAttribute("aria-checked", String(b.dataset.value === measure));
  }
  explorer.forest.paintBy(measure);
  updateScale();
}

function updateScale() {
  const { mix, range } = explorer.forest.colour;
  const colours = d3.range(0, 9).map((k) => mix(range[0] + (range[2] - range[0]) * k / 8));
  document.querySelector(".scale").replaceChildren(short(range[0]),
    h("i", { style: { background: `linear-gradient(90deg, ${colours.join()})` } }), short(range[2]));
}

function legend() {
  const fork = s("rect", { class: "fork", x: -5, y: -5, width: 10, height: 10, rx: 1.5, transform: "rotate(45)" });
  const bar = s("rect", { x: 0, y: 3, width: 18, height: 2, rx: 1, fill: "currentColor" });
  const blank = s("rect", { class: "no-value", x: 0.5, y: 1.5, width: 19, height: 11, rx: 3.5 });
  return h("div", { class: "legend" },
    h("span", {}, s("svg", { width: 16, height: 16, viewBox: "-8 -8 16 16" }, fork), "branch point"),
    ["success", "terminal", ...STOPS].map((k) => h("span", { class: "end end-" + GLYPH[k][0], title: OUTCOME_TEXT[k] },
      glyphIcon(k, 16), OUTCOME_WORD[k])),
    h("span", { title: "changed a gradient: a leaf below has an advantage" }, s("svg", { width: 18, height: 8 }, bar), "taught"),
    h("span", {}, s("svg", { width: 20, height: 14 }, blank), "no value"));
}

/** True if the key meant something here. */
function treeKeys(e, now) {
  const { run, at, step, which, node } = now, forest = explorer.forest;
  const select = (n) => { if (n) go(run, step, now.tree.group, n); return true; };
  const tree = (i) => { if (step.trees[i]) go(run, step, step.trees[i].group); return true; };
  const toStep = (i) => { if (run.steps[i]) go(run, run.steps[i], "first"); return true; };
  const fork = (n) => n.children.length > 1 && n.up, end = (n) => n.children.length === 0 && n.up;
  switch (e.key) {
    case "ArrowLeft": return select(node.up);
    case "ArrowRight": return select(node.children[0]);
    case "ArrowUp": return select(forest.beside(node, -1));
    case "ArrowDown": return select(forest.beside(node, 1));
    case "f": return select(forest.next(node, 1, fork));
    case "F": return select(forest.next(node, -1, fork));
    case "e": return select(forest.next(node, 1, end));
    case "E": return select(forest.next(node, -1, end));
    case "[": return tree(which - 1);
    case "]": return tree(which + 1);
    case ",": return toStep(at - 1);
    case ".": return toStep(at + 1);
    case "m": {
      const order = Object.keys(MEASURES);
      paint(order[(order.indexOf(explorer.measure) + 1) % order.length]);
      return true;
    }
    case "d": showSiblings(now.tree, node); return true;
    case "c": if (node.up) copyReplay(now.tree, node, document.querySelector(".copy")); return true;
    default: return false;
  }
}
