// charts.js - line charts with bands and stacked areas, as SVG; scales, ticks and shapes are D3's.
//
// The charts of a view share a cursor: pointing at one shows the values of all at that place, in the heading of each,
// where nothing can overlap.

class Chart {
  /** `options`: title, hint, xLabel, format (y), height, domain [low, high] (null: of the data), cursor (function) */
  constructor(options) {
    this.options = { height: 150, format: short, domain: [null, null], ...options };
    this.readout = h("span", { class: "readout" });
    this.plot = h("div", { class: "plot" });
    this.element = h("figure", { class: "chart" },
      h("figcaption", { title: options.hint && `${options.title}: ${options.hint}` },
        h("span", { class: "chart-title" }, options.title),
        options.hint && h("span", { class: "chart-hint" }, options.hint), this.readout),
      this.plot);
    this.plot.addEventListener("pointermove", (e) => {
      const x = this.x?.invert(e.clientX - this.plot.getBoundingClientRect().left);
      if (finite(x)) options.cursor?.(x);
    });
    this.plot.addEventListener("pointerleave", () => options.cursor?.(null));
  }

  /** Scales for the present width, axes and grid; returns the group that data is drawn into. */
  frame(xs, ys) {
    const { height, domain, format, xLabel } = this.options;
    const width = Math.max(200, this.plot.clientWidth);
    const m = { left: 46, right: 12, top: 8, bottom: xLabel ? 38 : 22 };
    let [low, high] = [domain[0] ?? d3.min(ys) ?? 0, domain[1] ?? d3.max(ys) ?? 1];
    if (low === high) [low, high] = low === 0 ? [0, 1] : [low - Math.abs(low) / 2, high + Math.abs(high) / 2];
    const x1 = d3.max(xs) ?? 1;
    this.x = d3.scaleLinear().domain([0, x1 > 0 ? x1 : 1]).range([m.left, width - m.right]);
    this.y = d3.scaleLinear().domain([low, high]).range([height - m.bottom, m.top]);
    if (domain[1] === null) this.y.nice(4);
    const yTicks = this.y.ticks(height > 200 ? 6 : 3), xTicks = this.x.ticks(Math.max(2, Math.floor(width / 110)));
    const step = yTicks.length > 1 ? yTicks[1] - yTicks[0] : 1;
    const bottom = height - m.bottom;
    this.cross = s("line", { class: "cross", y1: m.top, y2: bottom, visibility: "hidden" });
    this.bottom = bottom;
    this.right = width - m.right;
    const data = s("g");
    this.plot.replaceChildren(s("svg", { width, height, role: "img", "aria-label": this.options.title },
      yTicks.map((t) => s("line", { class: "grid", x1: m.left, x2: width - m.right, y1: this.y(t), y2: this.y(t) })),
      yTicks.map((t) => s("text", { class: "tick", x: m.left - 8, y: this.y(t) + 4, "text-anchor": "end" },
        format === percent ? percent(t, step < 0.001 ? 2 : step < 0.01 ? 1 : 0) : format(t))),
      s("line", { class: "axis", x1: m.left, x2: width - m.right, y1: bottom, y2: bottom }),
      xTicks.map((t) => s("text", { class: "tick", x: this.x(t), y: bottom + 16, "text-anchor": "middle" }, short(t))),
      xLabel && s("text", { class: "label", x: width - m.right, y: bottom + 33, "text-anchor": "end" }, xLabel),
      data, this.cross));
    return data;
  }

  /** Shows the values at x (null: none). */
  point(x) {
    if (!this.x) return;
    const off = x === null || x > this.x.domain()[1];
    this.cross.setAttribute("visibility", off ? "hidden" : "visible");
    if (!off) for (const end of ["x1", "x2"]) this.cross.setAttribute(end, this.x(x));
    this.readout.replaceChildren(...(off ? this.resting() : this.values(x)));
  }

  resting() { return []; }
}

const nearest = (points, x) => points[Math.min(d3.bisector((p) => p.x).center(points, x), points.length - 1)];
const swatch = (color) => h("i", { class: "swatch", style: { background: color } });

/** Lines with an optional band. series: {name, color, points: [{x, y, low, high}], thin: [[x, y], …], bars} */
class LineChart extends Chart {
  draw(series) {
    this.series = series.filter((one) => one.points.length > 0);
    const all = this.series.flatMap((one) => one.points);
    const ys = all.flatMap((p) => [p.y, p.low ?? p.y, p.high ?? p.y])
      .concat(this.series.flatMap((one) => (one.thin ?? []).flat().map((p) => p[1])));
    const xs = all.map((p) => p.x).concat(this.series.flatMap((one) => (one.thin ?? []).flat().map((p) => p[0])));
    const g = this.frame(xs, ys);
    if (all.length === 0) {
      g.append(s("text", { class: "label", x: (this.x.range()[0] + this.right) / 2, y: this.bottom / 2,
        "text-anchor": "middle" }, "nothing logged"));
    }
    const band = d3.area().x((p) => this.x(p.x)).y0((p) => this.y(p.low)).y1((p) => this.y(p.high));
    const line = d3.line().x((p) => this.x(p.x)).y((p) => this.y(p.y));
    const thin = d3.line().x((p) => this.x(p[0])).y((p) => this.y(p[1]));
    for (const one of this.series) {
      if (finite(one.points[0].low)) g.append(s("path", { class: "band", d: band(one.points), fill: one.color }));
      for (const points of one.thin ?? []) g.append(s("path", { class: "thin", d: thin(points), stroke: one.color }));
    }
    for (const one of this.series) {
      g.append(s("path", { class: "line", d: line(one.points), stroke: one.color }));
      if (one.dots || one.points.length === 1) {
        for (const p of one.points) g.append(s("circle", { cx: this.x(p.x), cy: this.y(p.y), r: 3, fill: one.color }));
      }
    }
    this.point(null);
    return this;
  }

  values(x) {
    const { format } = this.options;
    return this.series.map((one) => {
      const p = nearest(one.points, x);
      const range = this.options.ranges && finite(p.low) ? h("small", {}, ` [${format(p.low)}, ${format(p.high)}]`) : null;
      return h("span", {}, this.series.length > 1 && swatch(one.color), format(p.y), range);
    });
  }

  resting() { // the latest value: what a run is at now
    const { format } = this.options;
    if (this.series.length > 4) return [];
    return this.series.map((one) => h("span", { class: "latest" }, this.series.length > 1 && swatch(one.color),
      format(one.points[one.points.length - 1].y)));
  }
}

/** Shares or sums on top of each other. parts: [{name, color}], rows: [{x, values: [one per part]}] */
class AreaChart extends Chart {
  draw(parts, rows) {
    this.parts = parts;
    this.rows = rows;
    const stacked = d3.stack().keys(d3.range(parts.length)).value((row, k) => row.values[k])(rows);
    const g = this.frame(rows.map((r) => r.x), rows.map((r) => d3.sum(r.values)).concat(0));
    const area = d3.area().x((p) => this.x(p.data.x)).y0((p) => this.y(p[0])).y1((p) => this.y(p[1]));
    for (const [k, layer] of stacked.entries()) {
      g.append(s("path", { class: "layer", d: area(layer), fill: parts[k].color }));
    }
    this.element.querySelector(".parts")?.remove();
    this.element.append(h("div", { class: "parts" }, parts.map((p) => h("span", {}, swatch(p.color), p.name))));
    this.point(null);
    return this;
  }

  values(x) {
    const row = nearest(this.rows, x);
    return row ? this.parts.map((p, k) => h("span", {}, swatch(p.color), this.options.format(row.values[k]))) : [];
  }
}
