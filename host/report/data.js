// data.js - what is inside this page: the logs of the runs, compressed, unpacked when they are looked at.
//
// A chunk is a <script type="text/plain"> with base64 of gzip. The text of the logs therefore never meets the
// HTML parser; it becomes strings here, and everything shown goes through textContent.

const chunkCache = new Map();

/** Text of a chunk. The latest few stay unpacked; 50 MB of trees never lie in memory at once. */
async function chunkText(id) {
  if (chunkCache.has(id)) return chunkCache.get(id);
  const packed = document.getElementById(id).textContent.trim();
  const bytes = Uint8Array.from(atob(packed), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const text = await new Response(stream).text();
  chunkCache.set(id, text);
  if (chunkCache.size > 6) chunkCache.delete(chunkCache.keys().next().value);
  return text;
}

const lines = (text) => text.split("\n").filter((line) => line !== "");

/** Columns of a tree's row in the index, as host/command/report_data.c writes them. */
const TREE = ["group", "attempt", "task", "nodes", "leaves", "solved", "forks", "loop", "pruned", "truncated",
  "time_limit", "error", "tokens", "taught", "taughtTokens", "idle"];

/** All runs with settings and metrics; trees stay packed, their index says what there is. */
async function loadReport() {
  const index = JSON.parse(await chunkText("index"));
  for (const [number, run] of index.runs.entries()) {
    run.number = number;
    run.config = JSON.parse(await chunkText(run.configChunk));
    run.metrics = lines(await chunkText(run.metricsChunk)).map((line) => JSON.parse(line));
    for (const step of run.steps) {
      step.trees = step.trees.map((row) => Object.fromEntries(TREE.map((name, i) => [name, row[i]])));
    }
    run.name = run.config.run?.name || run.dir;
    addClock(run.metrics);
  }
  return index;
}

/** Minutes of work up to each step. Phases are logged, their sum is what a budget of minutes would see. */
function addClock(metrics) {
  let seconds = 0;
  for (const m of metrics) {
    for (const phase of PHASES) seconds += m["time/" + phase] ?? 0;
    m["clock/minutes"] = seconds / 60;
  }
}

const PHASES = ["gen", "env", "score", "train", "eval", "ckpt"];

/** One tree, its nodes linked: children in the order of the log, siblings of a node, signals by name. */
async function loadTree(run, step, which) {
  const text = lines(await chunkText(step.chunk))[which];
  const tree = JSON.parse(text);
  const nodes = tree.nodes;
  if (!nodes?.length || nodes.some((node, i) => node.id !== i)) throw new Error("its log is damaged: nodes are missing");
  for (const node of nodes) node.children = [];
  for (const node of nodes) {
    node.up = node.parent >= 0 && node.parent < node.id ? nodes[node.parent] : null;
    if (node.up) node.up.children.push(node);
    node.total = (node.up ? node.up.total : 0) + (node.reward ?? 0);
    if (node.leaves === undefined) fillOldNode(node);
    node.taught = node.train && node.tokens.length > 0 && (node.a_pos !== 0 || node.a_neg !== 0);
  }
  tree.run = run;
  tree.names = tree.signals ?? [];
  return tree;
}

/** Logs of before version 0.1.0 leave out what follows from other fields, and flags that were nearly always set. */
function fillOldNode(node) {
  node.a_pos ??= Math.max(node.advantage ?? 0, 0);
  node.a_neg ??= Math.min(node.advantage ?? 0, 0);
  Object.assign(node, { leaves: NaN, train: true, valid: true, stepped: node.turn > 0 });
}

/** The status a reader thinks of: a terminal node either reached the goal or did not. */
const outcome = (node) => (node.status === "terminal" || node.status === "time_limit") && node.success
  ? "success" : node.status;

/** Nodes from the root to `node`. */
function pathTo(node) {
  const path = [];
  for (let n = node; n; n = n.up) path.unshift(n);
  return path;
}

/** Settings as one flat table: section.key -> value. */
function flatten(config) {
  const flat = {};
  for (const [section, keys] of Object.entries(config)) {
    for (const [key, value] of Object.entries(keys)) flat[section + "." + key] = value;
  }
  return flat;
}

/** Runs that differ in nothing but the seed belong together; a group is named by what sets it apart. */
function groupRuns(runs) {
  const own = /^(run\.|device\.|log\.|checkpoint\.|warmstart\.load$)/;
  const groups = new Map();
  for (const run of runs) {
    run.flat = flatten(run.config);
    const shared = Object.entries(run.flat).filter(([key]) => !own.test(key));
    const id = JSON.stringify(shared);
    if (!groups.has(id)) groups.set(id, { runs: [], flat: Object.fromEntries(shared) });
    groups.get(id).runs.push(run);
  }
  const list = [...groups.values()];
  const keys = new Set(list.flatMap((g) => Object.keys(g.flat)));
  // Blocks that one method alone has name nothing.
  const common = [...keys].filter((k) => list.every((g) => g.flat[k] !== undefined));
  const differing = common.filter((k) => new Set(list.map((g) => JSON.stringify(g.flat[k]))).size > 1);
  const first = ["env.name", "rollout.strategy", "advantage.estimator", "optimizer.lr", "rollout.group"];
  const naming = first.filter((k) => differing.includes(k));
  for (const key of differing) if (!naming.includes(key) && !key.includes("kv_pages")) naming.push(key);
  for (const group of list) {
    const words = naming.slice(0, 3)
      .map((k) => (k.endsWith(".name") || typeof group.flat[k] === "string" ? "" : k.split(".")[1] + " ") + group.flat[k]);
    group.name = list.length === 1 ? group.runs[0].name.replace(/[-_]\d+$/, "") : words.join(" · ");
  }
  for (const group of list) { // what names cannot tell apart, the runs' own names do
    if (list.filter((g) => g.name === group.name).length > 1) group.name = group.runs[0].name;
  }
  for (const [i, group] of list.entries()) group.color = `var(--series-${i % 7})`;
  return list;
}
