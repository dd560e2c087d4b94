// node.js - everything about one node: what it saw, said, was worth and was taught; its siblings beside it.

const isTextWorld = (node) => !readMap(node.observation);

/** "progress=0.7 safe_novelty=0.2" -> Map; the score is the weighted sum of signals (host/scorer/heuristic.c). */
function weightsOf(config) {
  const text = config[config.scorer?.name]?.weights ?? "";
  return new Map(text.split(/[\s,]+/).filter(Boolean).map((pair) => pair.split("=")).map(([k, v]) => [k, Number(v)]));
}

function fact(name, ...value) {
  return [h("dt", {}, name), h("dd", {}, value)];
}

function chip(node) {
  const kind = outcome(node), forked = node.children.length > 1 && node.up;
  if (!GLYPH[kind]) return h("span", { class: "chip" }, forked ? `branch point ×${node.children.length}` : "goes on");
  return h("span", { class: "chip end end-" + GLYPH[kind][0], title: OUTCOME_TEXT[kind] }, glyphIcon(kind, 18),
    OUTCOME_WORD[kind]);
}

/** Tokens of the action, each shaded by its surprise. Texts of single tokens are known of byte models only. */
function heatStrip(node, config) {
  const bytes = (config.model?.vocab ?? 0) === 256;
  return h("div", { class: "heat" }, node.tokens.map((token, i) => {
    const logp = node.logp[i] ?? 0, p = Math.exp(logp), surprise = Math.min(1, -logp / 4);
    const text = !bytes ? String(token) : token === 10 ? "⏎" : token === 32 ? "␣" : visible(String.fromCharCode(token));
    const title = `token ${token}\nlog-prob ${logp.toPrecision(4)}\nprobability ${percent(p, p > 0.995 ? 3 : 1)}`;
    return h("span", { class: "token", title },
      h("b", { style: { background: `color-mix(in srgb, var(--warn) ${Math.round(100 * surprise)}%, transparent)` } }, text),
      h("small", {}, p >= 0.995 ? "≈1" : p >= 0.095 ? p.toFixed(2).slice(1) : p.toFixed(3).slice(1)));
  }));
}

function scoreParts(tree, node) {
  const weights = weightsOf(tree.run.config), values = node.signals ?? [];
  const ended = node.status === "terminal", weighed = finite(node.score) && !ended;
  return h("div", { class: "bars" }, tree.names.map((name, i) => {
    const weight = weights.get(name), value = values[i];
    const text = weight === undefined || !weighed ? "" : ` × ${weight} = ${short(value * weight)}`;
    const width = `${Math.max(0, Math.min(1, value)) * 100}%`;
    return h("div", { class: "bar-row" }, h("span", {}, name), h("i", {}, h("b", { style: { width } })),
      h("span", { class: "num" }, short(value), h("small", {}, text)));
  }), 
  ended && finite(node.score) && h("p", { class: "note" }, "A terminal node scores 1 or 0 by its success."),
  !finite(node.score) && h("p", { class: "note" }, "Not scored: the strategy did not ask."));
}

function creditBar(node) {
  const most = Math.max(node.a_pos ?? 0, -(node.a_neg ?? 0), 1e-9), half = (x) => `${50 * Math.abs(x) / most}%`;
  return h("div", { class: "credit", title: "sums over the leaves below, before loss.weighting" },
    h("span", { class: "num" }, "A− ", signed(node.a_neg)),
    h("i", {}, h("b", { class: "minus", style: { width: half(node.a_neg ?? 0) } }),
      h("b", { class: "plus", style: { width: half(node.a_pos ?? 0) } })),
    h("span", { class: "num" }, "A+ ", signed(node.a_pos)));
}

function whyTaught(tree, node) {
  if (!node.up) return "The prompt is not trained on.";
  if (node.taught) return "Changed a gradient.";
  if (!node.train) return "Not trained on: " + (node.status === "error" ? "the world failed." : "no gradient is taken through it.");
  if (node.leaves === 0) return "No counted leaf below: outside baseline and loss.";
  const idle = tree.nodes.every((n) => !n.a_pos && !n.a_neg);
  return "Changed no gradient: " + (idle ? "all leaves of this tree were worth the same." : "the advantages below are exactly 0.");
}

const quote = (text) => (/^[\w./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);
const replayCommand = (tree, node) => `grove replay ${quote(tree.run.dir)} --node ${tree.step}:${tree.group}:${node.id}`;

async function copyReplay(tree, node, button) {
  const text = replayCommand(tree, node);
  try {
    await navigator.clipboard.writeText(text);
  } catch { // pages from disk may lack the clipboard: a selected field does as well
    const field = h("textarea", { class: "off" }, text);
    document.body.append(field);
    field.select();
    document.execCommand("copy");
    field.remove();
  }
  if (button) button.textContent = "copied";
}

function crumbs(node, select) {
  const path = pathTo(node), shown = path.slice(-9);
  return h("div", { class: "crumbs" }, shown.length < path.length && h("span", {}, "… "),
    shown.map((n, i) => [i > 0 && h("span", { class: "sep" }, "›"),
      h("button", { type: "button", class: n === node ? "here" : "", onclick: () => select(n) }, fit(label(n), 160))]));
}

/** The panel of `node`. `actions`: select(node), compare() */
function nodePanel(tree, node, actions) {
  const siblings = node.up ? node.up.children : [], acted = Boolean(node.up);
  const copy = h("button", { type: "button", class: "copy", onclick: () => copyReplay(tree, node, copy) }, "copy");
  return [
    crumbs(node, actions.select),
    h("div", { class: "panel-head" },
      h("h2", {}, acted ? `Turn ${node.turn}` : "Prompt",
        h("small", {}, ` node ${node.id}` + (acted ? ` · branch ${node.branch}` : ""))), chip(node)),
    acted && [h("h3", {}, "Action"),
      isTextWorld(node) && node.action.trim() !== "" ? terminal("", node.action) : null,
      node.tokens.length > 0 ? heatStrip(node, tree.run.config) : h("p", { class: "note" }, "no tokens"),
      node.stepped && !node.valid && h("p", { class: "note warn" }, "The world did not understand this action.")],
    h("h3", {}, "Observation"), observation(node, 46),
    acted && [
      h("h3", {}, "Score", h("span", { class: "value" }, short(node.score))), scoreParts(tree, node),
      h("h3", {}, "Credit",
        h("span", { class: "value" }, node.advantage === null ? "leaves below differ" : "A " + signed(node.advantage))),
      creditBar(node),
      h("dl", { class: "facts" }, fact("reward of the turn", short(node.reward)), fact("return to here", short(node.total)),
        fact("leaves below", whole(node.leaves)), fact("log-prob of the action", minus(d3.sum(node.logp).toFixed(3)))),
      h("p", { class: "note" }, whyTaught(tree, node))],
    siblings.length > 1 && h("button", { type: "button", class: "wide", id: "compare", onclick: actions.compare },
      `${siblings.length} siblings side by side`, h("kbd", {}, "d")),
    acted && [h("h3", {}, "Replay"), h("div", { class: "replay" }, h("code", {}, replayCommand(tree, node)), copy)],
  ];
}

/** All continuations of one state, each against the chosen one. */
function showSiblings(tree, node) {
  if (!node.up || node.up.children.length < 2) return;
  const dialog = document.getElementById("dialog"), chosen = node.observation.split("\n");
  dialog.className = "large";
  dialog.replaceChildren(
    h("h2", {}, `Turn ${node.turn}: ${node.up.children.length} answers to one state`),
    h("div", { class: "siblings" }, node.up.children.map((n) => h("section", { class: n === node ? "sibling chosen" : "sibling" },
      h("header", {}, h("b", {}, `node ${n.id}`), chip(n)),
      h("dl", { class: "facts" }, fact("score", short(n.score)),
        fact("advantage", n.advantage === null ? "differs below" : signed(n.advantage)),
        fact("leaves below", whole(n.leaves)), fact("log-prob", minus(d3.sum(n.logp).toFixed(3)))),
      h("h3", {}, "Action"), h("pre", { class: "action" }, words(node.action, n.action, n !== node)),
      h("h3", {}, "Observation"), drawMapOf(n, 40) ?? lineDiff(chosen, n.observation.split("\n"), n !== node)))),
    h("form", { method: "dialog" }, h("button", { type: "submit" }, "Close")));
  dialog.showModal();
}

/** Text with the words marked that the chosen sibling does not have. */
function words(chosen, text, compare) {
  const split = (t) => visible(t.trim()).split(/(\s+)/);
  if (!compare) return visible(text.trim());
  return diff(split(chosen), split(text)).filter(([kind]) => kind !== "-")
    .map(([kind, word]) => (kind === "+" ? h("mark", {}, word) : word));
}

function lineDiff(chosen, other, compare) {
  if (!compare) return h("pre", { class: "terminal" }, visible(other.join("\n")));
  return h("pre", { class: "terminal" }, diff(chosen, other).map(([kind, line]) =>
    h("span", { class: { "+": "added", "-": "gone", " ": "same" }[kind] }, `${kind} ${visible(line)}`)));
}
