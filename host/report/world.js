// world.js - what a world answered, as a reader would see it: a map with the way walked, or a terminal.

/** Cells of a map in letters (P player, X player in a hole, H hole, K key, D closed door, G goal), or null.
 *  Lines with digits are not of the map. */
function readMap(text) {
  if (text.startsWith("Player:")) return readCoordinates(text);
  const rows = text.replaceAll(" ", "").split("\n").filter((row) => row !== "" && !/\d/.test(row));
  const square = rows.length > 1 && rows.every((row) => row.length === rows.length && /^[PXHGKD_]+$/.test(row));
  return square ? rows.map((row) => [...row]) : null;
}

/** The same from "Player: (0, 1) Goal: (3, 3) Holes: (1, 1) (2, 3)". */
function readCoordinates(text) {
  const cells = (part) => [...part.matchAll(/\((\d+), (\d+)\)/g)].map((m) => [Number(m[1]), Number(m[2])]);
  const [before, after] = text.split("Holes:");
  const [player, goal] = cells(before), holes = cells(after ?? "");
  if (!player || !goal || goal[0] > 64) return null;
  const map = d3.range(goal[0] + 1).map(() => Array(goal[0] + 1).fill("_"));
  for (const [r, c] of holes) if (map[r]) map[r][c] = "H";
  map[goal[0]][goal[1]] = "G";
  if (map[player[0]]) map[player[0]][player[1]] = map[player[0]][player[1]] === "H" ? "X" : "P";
  return map;
}

const playerOf = (map) => {
  const r = map.findIndex((row) => row.includes("P") || row.includes("X"));
  return r < 0 ? null : [r, map[r].findIndex((c) => c === "P" || c === "X")];
};

/** What lies below the player is seen in an earlier map of the path. */
function ground(maps) {
  const last = maps[maps.length - 1];
  return last.map((row, r) => row.map((c, k) => {
    if (c === "X") return "H";
    if (c !== "P") return c;
    const seen = maps.find((m) => m[r]?.[k] !== "P" && m[r]?.[k] !== "X")?.[r]?.[k];
    return seen && seen !== "K" ? seen : r === last.length - 1 && k === last.length - 1 ? "G" : "_";
  }));
}

/** The map at a node with the cells visited on its path. */
function drawMap(node, cell = 44) {
  const maps = pathTo(node).map((n) => readMap(n.observation)).filter(Boolean);
  if (maps.length === 0) return null;
  const map = ground(maps), size = map.length * cell, centre = ([r, c]) => [(c + 0.5) * cell, (r + 0.5) * cell];
  const way = maps.map(playerOf).filter(Boolean).map(centre), end = way[way.length - 1];
  const dead = maps[maps.length - 1].some((row) => row.includes("X"));
  const tiles = map.flatMap((row, r) => row.map((c, k) => s("g", { transform: `translate(${k * cell},${r * cell})` },
    s("rect", { class: "ice", x: 1, y: 1, width: cell - 2, height: cell - 2, rx: cell / 9 }),
    c === "H" && s("circle", { class: "hole", cx: cell / 2, cy: cell / 2, r: cell * 0.33 }),
    c === "G" && s("path", { class: "goal", d: flag(cell) }),
    c === "D" && s("path", { class: "door", d: door(cell) }),
    c === "K" && s("path", { class: "key", d: key(cell) }))));
  return s("svg", { class: "map", width: size, height: size, viewBox: `0 0 ${size} ${size}`, role: "img",
    "aria-label": `map of ${map.length} by ${map.length} cells, ${way.length - 1} moves walked` },
  tiles,
  way.length > 1 && s("path", { class: "way", d: spread(way, cell) }),
  way.length > 0 && s("circle", { class: "start", cx: way[0][0], cy: way[0][1], r: cell * 0.1 }),
  end && (dead
    ? s("path", { class: "fallen", transform: `translate(${end})`, d: cross(cell * 0.17) })
    : s("circle", { class: "player", cx: end[0], cy: end[1], r: cell * 0.2 })));
}

const cross = (r) => `M${-r} ${-r}L${r} ${r}M${r} ${-r}L${-r} ${r}`;
const door = (c) => `M${c * .3} ${c * .78}V${c * .4}a${c * .2} ${c * .2} 0 0 1 ${c * .4} 0V${c * .78}Z`;
const flag = (c) => `M${c * .36} ${c * .8}V${c * .2}l${c * .36} ${c * .14}l${-c * .36} ${c * .16}`;
const key = (c) => `M${c * .29} ${c * .38}a${c * .13} ${c * .13} 0 1 0 ${c * .26} 0a${c * .13} ${c * .13} 0 1 0 ${-c * .26} 0` +
  `M${c * .5} ${c * .48}L${c * .74} ${c * .72}M${c * .66} ${c * .64}l${-c * .08} ${c * .08}`;

/** A way through cell centres, shifted a little at each visit, so that steps back and forth stay visible. */
function spread(way, cell) {
  const visits = new Map();
  const moves = way.filter(([x, y], i) => i === 0 || x !== way[i - 1][0] || y !== way[i - 1][1]); // not against walls
  return d3.line()(moves.map(([x, y]) => {
    const id = x + "," + y, n = visits.get(id) ?? 0;
    visits.set(id, n + 1);
    const shift = n === 0 ? 0 : cell * 0.09 * Math.min(n, 3) * (n % 2 ? 1 : -1);
    return [x + shift, y + shift];
  }));
}

// ---- terminals ------------------------------------------------------------------------------------------------

const SGR = ["#6b7785", "#ff7b72", "#56d0a0", "#f2c14e", "#79b8ff", "#d9a0e8", "#63d3e0", "#e6edf3"];

/** Terminal output: colours of its escape sequences as spans, other sequences and controls left out. */
function terminal(text, prompt) {
  const out = h("pre", { class: "terminal" });
  if (prompt !== null) {
    out.append(...prompt.replace(/\n$/, "").split("\n").map((line, i) =>
      h("span", { class: "command" }, h("span", { class: "prompt" }, i === 0 ? "$ " : "> "), line + "\n")));
  }
  let color = null, bold = false;
  // eslint-disable-next-line no-control-regex
  for (const part of text.split(/(\x1b\[[0-9;?]*[A-Za-z])/)) {
    const sgr = /^\x1b\[([0-9;]*)m$/.exec(part);
    if (sgr) {
      for (const code of sgr[1].split(";").map(Number)) {
        if (code === 0) { color = null; bold = false; }
        else if (code === 1) bold = true;
        else if (code === 39) color = null;
        else if ((code >= 30 && code <= 37) || (code >= 90 && code <= 97)) color = SGR[code % 10];
      }
    } else if (!part.startsWith("\x1b[")) {
      const clean = visible(part);
      const style = { color: color ?? "inherit", "font-weight": bold ? "700" : "400" };
      if (clean) out.append(color || bold ? h("span", { style }, clean) : clean);
    }
  }
  return out;
}

/** Control characters as pictures, bidirectional overrides as their numbers: nothing reorders or hides text. */
const visible = (text) => text.replace(/[\x00-\x08\x0b-\x1f\x7f\u0080-\u009f\u202a-\u202e\u2066-\u2069]/g, (c) => {
  const code = c.charCodeAt(0);
  if (code < 0x20) return String.fromCharCode(0x2400 + code);
  return code === 0x7f ? "\u2421" : `\\u${code.toString(16).padStart(4, "0")}`;
});

/** What a node's world answered: a map where it is one, else text. */
function observation(node, cell) {
  return drawMapOf(node, cell) ?? terminal(node.observation, null);
}
const drawMapOf = (node, cell) => (readMap(node.observation) ? drawMap(node, cell) : null);

// ---- differences ----------------------------------------------------------------------------------------------

/** Longest common subsequence of two lists; [kind, item] with kind " " both, "-" only a, "+" only b. */
function diff(a, b) {
  if (a.length * b.length > 4e6) return [...a.map((x) => ["-", x]), ...b.map((x) => ["+", x])];
  const w = b.length + 1, best = new Uint32Array((a.length + 1) * w), out = [];
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      best[i * w + j] = a[i] === b[j] ? best[(i + 1) * w + j + 1] + 1 : Math.max(best[(i + 1) * w + j], best[i * w + j + 1]);
    }
  }
  let i = 0, j = 0;
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) { out.push([" ", a[i]]); i++; j++; }
    else if (j === b.length || (i < a.length && best[(i + 1) * w + j] >= best[i * w + j + 1])) out.push(["-", a[i++]]);
    else out.push(["+", b[j++]]);
  }
  return out;
}
