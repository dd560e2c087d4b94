// dom.js - elements and numbers. Text enters the page as text nodes only; nothing here parses HTML.

function make(create, tag, attributes, children) {
  const node = create(tag);
  for (const [key, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key === "style") for (const [k, v] of Object.entries(value)) node.style.setProperty(k, v);
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.flat(3).filter((c) => c !== null && c !== undefined && c !== false));
  return node;
}

const h = (tag, attributes, ...children) => make((t) => document.createElement(t), tag, attributes, children);
const s = (tag, attributes, ...children) =>
  make((t) => document.createElementNS("http://www.w3.org/2000/svg", t), tag, attributes, children);

/** A row of buttons of which one is chosen. `options`: [value, label, title]. */
function choice(label, options, value, onChoose) {
  return h("div", { class: "choice", role: "radiogroup", "aria-label": label },
    h("span", { class: "choice-label" }, label),
    options.map(([v, text, title]) => h("button", {
      type: "button", role: "radio", "aria-checked": String(v === value), "data-value": String(v), title,
      onclick: () => onChoose(v),
    }, text)));
}

/** 1234567 -> 1.23M, 0.00012 -> 0.00012, 12.345 -> 12.3. */
function short(x) {
  if (x === null || x === undefined || Number.isNaN(x)) return "–";
  const a = Math.abs(x);
  if (a === 0) return "0";
  if (a >= 1e9) return trim(x / 1e9) + "G";
  if (a >= 1e6) return trim(x / 1e6) + "M";
  if (a >= 1e4) return trim(x / 1e3) + "k";
  if (a < 1e-3) return x.toExponential(1).replace("e-", "e−");
  return trim(x);
}
const trim = (x) => minus(Number(x.toPrecision(3)).toString());
const minus = (text) => text.replace("-", "−");
const percent = (x, digits = 1) => (Number.isFinite(x) ? (100 * x).toFixed(digits) + " %" : "–");
const signed = (x, digits = 2) => x === null || x === undefined ? "–" : minus((x > 0 ? "+" : "") + x.toFixed(digits));
const whole = (x) => !Number.isFinite(x) ? "–" : Math.round(x).toLocaleString("en-US").replaceAll(",", "\u2009");
const plural = (n, word) => `${whole(n)} ${word}${n === 1 ? "" : "s"}`;

/** The value of a colour variable of style.css, as the theme now has it. */
const cssColor = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** Calls `draw` at most once a frame. */
function eachFrame(draw) {
  let waiting = false;
  return () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; draw(); });
  };
}
