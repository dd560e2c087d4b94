// forest.js - a tree from left to right by turn: layout, drawing of what is in sight, a small map of the whole.
//
// The first child continues its parent's row, as it continues its random stream; further children branch off below.
// Only nodes and edges in sight are in the document; the rest is arithmetic, so 10,000 nodes scroll as 100 do.

const ROW = 30, GAP = 14, PILL = 22, TOP = 34, LEFT = 18;

const meanAdvantage = (n) => n.advantage ?? (n.leaves > 0 ? (n.a_pos + n.a_neg) / n.leaves : null);

const MEASURES = {
  score: { label: "score", of: (n) => n.score, diverging: false },
  advantage: { label: "advantage", of: meanAdvantage, diverging: true },
  reward: { label: "reward", of: (n) => (n.children.length === 0 && n.up ? n.total : n.reward || null), diverging: true },
};

/** Glyphs in a circle of radius 8 around 0, 0. Each end differs in shape, not only in colour. */
const GLYPH = {
  success: ["good", "M-3.6 .2L-1 3L4 -3"],
  terminal: ["dim", "M-3 -3L3 3M3 -3L-3 3"],
  loop: ["warn", "M3.6 -1.6A4 4 0 1 0 4 1.4M4.4 -4.4L3.8 -1.2L.8 -2"],
  pruned: ["warn", "M-4 0H4"],
  truncated: ["warn", "M-3.4 0h.1M0 0h.1M3.4 0h.1"],
  time_limit: ["warn", "M0 -3.4V0L2.6 1.8"],
  error: ["error", "M0 -4V1M0 3.6v.1"],
  open: ["dim", "M-2 -3L3 0L-2 3Z"],
};
const OUTCOME_WORD = { success: "success", terminal: "failed", loop: "loop", pruned: "pruned", truncated: "truncated",
  time_limit: "out of turns", error: "error", open: "open" };
const OUTCOME_TEXT = { success: "success", terminal: "ended without success", loop: "stopped: repeats itself",
  pruned: "stopped by its score", truncated: "cut off: context, tokens or turns", time_limit: "out of turns",
  error: "the world failed", open: "still open" };

const glyph = (kind) => [s("circle", { r: 8 }), s("path", { d: GLYPH[kind][1] })];
const glyphIcon = (kind, size) => s("svg", { width: size, height: size, viewBox: "-9 -9 18 18" }, glyph(kind));

/** Ends that are not the world's own. */
const STOPS = ["loop", "pruned", "truncated", "time_limit", "error"];

/** Rows by depth first, columns by turn. Sets node.x, node.y and returns the extent. */
function layoutTree(tree) {
  const nodes = tree.nodes;
  const longest = d3.max(nodes, (n) => Math.min(22, label(n).length)) ?? 4;
  const pill = Math.max(48, Math.min(190, longest * 7.4 + 22)), column = pill + 46;
  let y = TOP + ROW / 2, bands = [];
  const stack = [[nodes[0], true]];
  while (stack.length > 0) { // no recursion: a path may be thousands of turns long
    const [node, first] = stack.pop();
    if (!first) y += ROW + (node.up === nodes[0] ? GAP : 0);
    node.y = y;
    node.x = LEFT + node.turn * column;
    if (node.up === nodes[0]) bands.push({ branch: node.branch, from: y });
    for (let i = node.children.length - 1; i >= 0; i--) stack.push([node.children[i], i === 0]);
  }
  const turns = d3.max(nodes, (n) => n.turn);
  for (const [i, band] of bands.entries()) band.to = i + 1 < bands.length ? bands[i + 1].from - ROW - GAP : y;
  return { width: LEFT + turns * column + pill + 60, height: y + ROW, pill, column, turns, bands };
}

const label = (node) => node.up ? visible(node.action.trim().split("\n")[0]) || "∅" : "start";
const fit = (text, pill) => {
  const most = Math.max(3, Math.floor((pill - 16) / 7.4));
  return text.length > most ? text.slice(0, most - 1) + "…" : text;
};

/** value -> [fill, ink] for the measure on this tree. */
function colouring(tree, name) {
  const { of, diverging } = MEASURES[name];
  const values = tree.nodes.map(of).filter(finite);
  const most = diverging ? d3.max(values, Math.abs) || 1 : 1, zero = cssColor("--zero");
  const scale = diverging ? d3.scaleLinear([-most, 0, most], [cssColor("--minus"), zero, cssColor("--plus")])
    : d3.scaleLinear([0, 1], [cssColor("--ramp-0"), cssColor("--ramp-1")]);
  const mix = scale.interpolate(d3.interpolateRgb).clamp(true);
  const paint = (node) => {
    const v = of(node);
    if (!finite(v)) return [null, null];
    const fill = mix(v), c = d3.rgb(fill), light = (0.299 * c.r + 0.587 * c.g + 0.114 * c.b) / 255;
    return [fill, light > 0.58 ? "#14181d" : "#ffffff"];
  };
  return { paint, mix, range: diverging ? [-most, 0, most] : [0, 0.5, 1] };
}

class Forest {
  /** `onSelect(node)`: a node was chosen by pointer. */
  constructor(onSelect) {
    this.onSelect = onSelect;
    this.svg = s("svg", { class: "forest", role: "tree", "aria-label": "rollout tree" });
    this.heads = s("g", { class: "heads" });
    this.layers = { bands: s("g"), edges: s("g"), nodes: s("g") };
    this.world = s("g", {}, Object.values(this.layers));
    this.svg.append(this.world, this.heads);
    this.space = h("div", { class: "forest-space" });
    this.scroller = h("div", { class: "forest-scroll", tabindex: "0" }, this.space, this.svg);
    this.overview = h("canvas", { class: "overview", "aria-hidden": "true" });
    this.element = h("div", { class: "forest-box" }, this.scroller, this.overview);
    this.drawn = new Map();
    this.draw = eachFrame(() => this.drawNow());
    this.scroller.addEventListener("scroll", this.draw, { passive: true });
    const jump = (e) => {
      if (e.buttons !== 1) return;
      const part = e.offsetY / this.overview.clientHeight;
      this.scroller.scrollTop = part * this.size.height - this.scroller.clientHeight / 2;
    };
    this.overview.addEventListener("pointerdown", jump);
    this.overview.addEventListener("pointermove", jump);
    new ResizeObserver(this.draw).observe(this.scroller);
  }

  show(tree, measure) {
    this.tree = tree;
    this.size = layoutTree(tree);
    this.byRow = [...tree.nodes].sort((a, b) => a.y - b.y);
    this.paintBy(measure);
    this.scroller.scrollTo(0, 0);
  }

  paintBy(measure) {
    this.colour = colouring(this.tree, measure);
    this.reset();
  }

  reset() {
    for (const layer of Object.values(this.layers)) layer.replaceChildren();
    this.drawn.clear();
    this.space.style.setProperty("width", this.size.width + "px");
    this.space.style.setProperty("height", this.size.height + "px");
    this.drawOverview();
    this.draw();
  }

  select(node) {
    this.selected = node;
    this.path = new Set(pathTo(node).map((n) => n.id));
    const box = this.scroller, x = node.x - box.scrollLeft, y = node.y - box.scrollTop;
    if (x < 60 || x + this.size.pill > box.clientWidth - 60) box.scrollLeft = node.x - box.clientWidth / 2;
    if (y < TOP + 30 || y > box.clientHeight - 50) box.scrollTop = node.y - box.clientHeight / 2;
    this.layers.edges.replaceChildren();
    for (const id of [...this.drawn.keys()]) if (id[0] === "e") this.drawn.delete(id);
    for (const [id, g] of this.drawn) if (id[0] === "n") this.mark(g, this.tree.nodes[Number(id.slice(1))]);
    this.draw();
  }

  mark(g, node) {
    g.classList.toggle("selected", node === this.selected);
    g.classList.toggle("on-path", Boolean(this.path?.has(node.id)));
    g.setAttribute("aria-selected", String(node === this.selected));
  }

  drawNow() {
    if (!this.tree) return;
    const box = this.scroller, width = box.clientWidth, height = box.clientHeight;
    this.svg.setAttribute("width", width);
    this.svg.setAttribute("height", height);
    const left = box.scrollLeft, top = box.scrollTop;
    this.world.setAttribute("transform", `translate(${-left},${-top})`);
    const view = { x0: left - 240, x1: left + width + 60, y0: top - 60, y1: top + height + 60 };
    const wanted = new Set();
    const first = d3.bisector((n) => n.y).left(this.byRow, view.y0);
    for (let i = first; i < this.byRow.length && this.byRow[i].y <= view.y1; i++) {
      const node = this.byRow[i];
      if (node.x < view.x0 || node.x > view.x1) continue;
      this.keep(wanted, "n" + node.id, this.layers.nodes, () => this.drawNode(node));
    }
    for (let i = first; i < this.byRow.length; i++) { // a parent never lies below its child
      const node = this.byRow[i], up = node.up;
      if (!up || up.y > view.y1 || node.x < view.x0 || up.x > view.x1) continue;
      this.keep(wanted, "e" + node.id, this.layers.edges, () => this.drawEdge(up, node));
    }
    for (const band of this.size.bands.slice(1)) { // the first begins in the row of the prompt itself
      if (band.to < view.y0 || band.from > view.y1) continue;
      this.keep(wanted, "b" + band.from, this.layers.bands, () => this.drawBand(band));
    }
    for (const [id, element] of this.drawn) if (!wanted.has(id)) { element.remove(); this.drawn.delete(id); }
    this.drawHeads(left, width);
    this.drawFrame();
  }

  keep(wanted, id, layer, create) {
    wanted.add(id);
    if (this.drawn.has(id)) return;
    const element = create();
    this.drawn.set(id, element);
    layer.append(element);
  }

  drawNode(node) {
    const { pill } = this.size, [fill, ink] = this.colour.paint(node), forked = node.children.length > 1 && node.up;
    const g = s("g", { class: "node", role: "treeitem", "data-id": node.id, transform: `translate(${node.x},${node.y})`,
      onclick: () => this.onSelect(node) },
    s("rect", { class: fill ? "pill" : "pill blank", y: -PILL / 2, width: pill, height: PILL, rx: 6, fill }),
    s("text", { x: pill / 2, y: 4, "text-anchor": "middle", style: ink && { fill: ink } }, fit(label(node), pill)),
    node.taught && s("rect", { class: "taught", x: 5, y: PILL / 2 - 3.5, width: pill - 10, height: 1.6, rx: 0.8,
      fill: ink ?? "currentColor" }));
    if (forked) {
      g.append(s("rect", { class: "fork", x: pill - 5.5, y: -5.5, width: 11, height: 11, rx: 1.5,
        transform: `rotate(45 ${pill} 0)` }),
        s("text", { class: "fork-count", x: pill, y: 3.4, "text-anchor": "middle" }, node.children.length));
    }
    if (node.children.length === 0 && node.up) {
      const kind = GLYPH[outcome(node)] ? outcome(node) : "open";
      g.append(s("g", { class: "end end-" + GLYPH[kind][0], transform: `translate(${pill + 15},0)` }, glyph(kind)));
    }
    const end = OUTCOME_TEXT[outcome(node)] ?? "goes on";
    const numbers = `score ${short(node.score)}  advantage ${signed(node.advantage)}`;
    g.append(s("title", {}, `#${node.id} ${label(node)}\n${end}\n${numbers}`));
    this.mark(g, node);
    return g;
  }

  drawEdge(up, node) {
    const { pill } = this.size, x0 = up.x + pill, x1 = node.x, y0 = up.y, y1 = node.y, r = 9, mid = x0 + 22;
    const d = y0 === y1 ? `M${x0} ${y0}H${x1}`
      : `M${x0} ${y0}H${mid - r}Q${mid} ${y0} ${mid} ${y0 + r}V${y1 - r}Q${mid} ${y1} ${mid + r} ${y1}H${x1}`;
    return s("path", { class: this.path?.has(node.id) && this.path.has(up.id) ? "edge on-path" : "edge", d,
      "stroke-width": 1.2 + Math.min(3, Math.log2(1 + (node.leaves || 0)) * 0.7) });
  }

  drawBand(band) {
    return s("text", { class: "branch", x: LEFT + this.size.pill / 2, y: band.from + 4, "text-anchor": "middle" },
      `branch ${band.branch}`);
  }

  drawHeads(left, width) {
    const { column, turns, pill } = this.size, heads = [];
    for (let t = Math.max(0, Math.floor((left - LEFT - pill) / column)); t <= turns; t++) {
      const x = LEFT + t * column - left + pill / 2;
      if (x - pill / 2 > width) break;
      heads.push(s("text", { x, y: 17, "text-anchor": "middle" }, t === 0 ? "prompt" : `turn ${t}`));
    }
    this.heads.replaceChildren(s("rect", { class: "head-back", width, height: 26 }), ...heads);
  }

  /** The whole tree, one dot a node; one canvas, drawn once per tree. */
  drawOverview() {
    const canvas = this.overview, tall = this.size.height > this.scroller.clientHeight + 4;
    canvas.hidden = !tall;
    this.image = null;
    if (!tall) return;
    const w = canvas.width = 64, hgt = canvas.height = Math.max(100, this.scroller.clientHeight);
    const c = canvas.getContext("2d");
    const blank = cssColor("--faint"), sx = (w - 8) / this.size.width, sy = hgt / this.size.height;
    c.clearRect(0, 0, w, hgt);
    for (const node of this.tree.nodes) {
      c.fillStyle = this.colour.paint(node)[0] ?? blank;
      c.fillRect(4 + node.x * sx, node.y * sy - 1, Math.max(2, this.size.pill * sx), Math.max(1, Math.min(3, ROW * sy - 1)));
    }
    this.image = c.getImageData(0, 0, w, hgt);
  }

  drawFrame() {
    if (!this.image) return;
    const canvas = this.overview, c = canvas.getContext("2d"), sy = canvas.height / this.size.height, box = this.scroller;
    c.putImageData(this.image, 0, 0);
    c.strokeStyle = cssColor("--accent");
    c.lineWidth = 1.5;
    c.strokeRect(1, box.scrollTop * sy + 1, canvas.width - 2, Math.max(6, box.clientHeight * sy - 2));
  }

  // ---- moves -----------------------------------------------------------------------------------------------

  /** The node next to `node` in rows, in the same column if there is one near, else the nearest. */
  beside(node, direction) {
    const same = this.byRow.filter((n) => n.turn === node.turn);
    return same[same.indexOf(node) + direction];
  }

  /** The next node in row order for which `test` holds. */
  next(node, direction, test) {
    const i = this.byRow.indexOf(node), n = this.byRow.length;
    for (let k = 1; k < n; k++) {
      const other = this.byRow[(((i + direction * k) % n) + n) % n];
      if (test(other)) return other;
    }
    return undefined;
  }
}
