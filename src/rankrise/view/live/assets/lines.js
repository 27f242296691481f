// A chart of lines over steps: axes, bands, marks of stages, and a cross-hair that the mouse and the arrow keys move.
import { h, number, s } from "./dom.js";

const ticksOf = (low, high, num) => {
  const rough = (high - low) / num;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((k) => k * power).find((size) => size >= rough * 0.999);
  const first = Math.ceil(low / step - 1e-9);
  if (Math.floor(high / step + 1e-9) <= first) return ticksOf(low, high, 2 * num); // one number is no scale
  return Array.from({ length: Math.floor(high / step + 1e-9) - first + 1 }, (_, i) => (first + i) * step);
};

const logTicks = (low, high) => {
  const [first, last] = [Math.ceil(Math.log10(low) - 1e-9), Math.floor(Math.log10(high) + 1e-9)];
  const each = Math.max(1, Math.ceil((last - first + 1) / 6));
  const found = [];
  for (let power = first; power <= last; power += each) found.push(10 ** power);
  return found.length > 1 ? found : ticksOf(low, high, 4);
};

const short = (value) => {
  const size = Math.abs(value);
  if (size >= 1e6) return `${+(value / 1e6).toPrecision(4)}M`;
  if (size >= 1e4) return `${+(value / 1e3).toPrecision(4)}k`;
  return number(value, 4);
};

// The place of the entry of an ascending list that is nearest to a value.
const nearest = (list, value) => {
  let [low, high] = [0, list.length - 1];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (list[middle] < value) low = middle;
    else high = middle;
  }
  return Math.abs(list[low] - value) <= Math.abs(list[high] - value) ? low : high;
};

export class Lines {
  // label: what the chart shows, for readers that do not see it; yLabel, xLabel: text; log: whether the values are on a
  // logarithmic axis.
  constructor({ label, yLabel = "", xLabel = "step", height = 240, log = false }) {
    Object.assign(this, { label, yLabel, xLabel, log, series: [], marks: [], at: null });
    this.plot = h("div", { class: "plot", tabindex: "0", role: "img", "aria-label": label });
    this.plot.style.height = `${height}px`;
    this.readout = h("p", { class: "readout", "aria-live": "polite" });
    this.element = h("div", { class: "lines" }, this.plot, this.readout);
    this.plot.addEventListener("pointermove", (event) => this.point(event));
    this.plot.addEventListener("pointerleave", () => this.move(null));
    this.plot.addEventListener("keydown", (event) => this.key(event));
    this.plot.addEventListener("blur", () => this.move(null));
    new ResizeObserver(() => this.render()).observe(this.plot);
  }

  // series: [{ name, x, y, low?, high?, colour, width?, dash? }]; marks: [{ x, colour, text }]
  show(series, marks = []) {
    this.series = series.filter((line) => line.x.length);
    this.marks = marks;
    this.render();
  }

  ranges() {
    const xs = this.series.flatMap((line) => [line.x[0], line.x[line.x.length - 1]]);
    const usable = (value) => value !== null && (!this.log || value > 0);
    let [low, high] = [Infinity, -Infinity];
    for (const line of this.series) {
      for (const values of [line.y, line.low ?? [], line.high ?? []]) {
        for (const value of values) {
          if (usable(value)) [low, high] = [Math.min(low, value), Math.max(high, value)];
        }
      }
    }
    if (low > high) [low, high] = [this.log ? 0.1 : 0, 1];
    if (this.log) return { x: [Math.min(...xs), Math.max(...xs)], y: [low / 1.15, high * 1.15] };
    const room = (high - low || Math.abs(high) || 1) * 0.06;
    return { x: [Math.min(...xs), Math.max(...xs)], y: [low - room, high + room] };
  }

  render() {
    const [width, height] = [this.plot.clientWidth, this.plot.clientHeight];
    if (!width || !height) return;
    if (!this.series.length) {
      this.plot.replaceChildren(h("p", { class: "soft small" }, "Nothing was recorded yet."));
      return;
    }
    const { x, y } = this.ranges();
    if (x[0] === x[1]) [x[0], x[1]] = [x[0] - 0.5, x[1] + 0.5];
    const edge = { left: 52, right: 12, top: 20, bottom: 34 };
    const inner = { width: width - edge.left - edge.right, height: height - edge.top - edge.bottom };
    const scale = this.log ? Math.log : (value) => value;
    const [bottom, top] = [scale(y[0]), scale(y[1])];
    this.px = (value) => edge.left + ((value - x[0]) / (x[1] - x[0])) * inner.width;
    this.py = (value) => edge.top + inner.height - ((scale(value) - bottom) / (top - bottom)) * inner.height;
    this.frame = { x, edge, inner, width };
    const svg = s("svg", { viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
    this.axes(svg, x, y, height);
    for (const line of this.series) this.band(svg, line);
    for (const mark of this.marks) this.mark(svg, mark);
    for (const line of this.series) svg.append(this.path(line), ...this.dots(line));
    this.cross = s("g", { class: "cross" });
    svg.append(this.cross);
    this.plot.replaceChildren(svg);
    this.move(this.at);
  }

  axes(svg, x, y, height) {
    const { edge, inner } = this.frame;
    const bottom = edge.top + inner.height;
    for (const tick of this.log ? logTicks(...y) : ticksOf(...y, Math.max(2, inner.height / 48))) {
      const at = this.py(tick);
      svg.append(s("line", { class: "gridline", x1: edge.left, x2: edge.left + inner.width, y1: at, y2: at }));
      svg.append(s("text", { x: edge.left - 7, y: at + 4, "text-anchor": "end" }, short(tick)));
    }
    for (const tick of ticksOf(...x, Math.max(2, inner.width / 90))) {
      svg.append(s("text", { x: this.px(tick), y: bottom + 16, "text-anchor": "middle" }, short(tick)));
    }
    svg.append(s("line", { class: "axis", x1: edge.left, x2: edge.left + inner.width, y1: bottom, y2: bottom }));
    svg.append(s("text", { class: "title", x: 2, y: 11 }, this.yLabel));
    svg.append(s("text", { x: edge.left + inner.width, y: height - 2, "text-anchor": "end" }, this.xLabel));
  }

  points(line, values) {
    const usable = (value) => value !== null && value !== undefined && (!this.log || value > 0);
    return line.x.map((step, i) => (usable(values[i]) ? [this.px(step), this.py(values[i])] : null));
  }

  path(line) {
    let isPen = false;
    const parts = this.points(line, line.y).map((point) => {
      if (!point) {
        isPen = false;
        return "";
      }
      const word = `${isPen ? "L" : "M"}${point[0].toFixed(1)} ${point[1].toFixed(1)}`;
      isPen = true;
      return word;
    });
    return s("path", {
      class: "line", d: parts.join(""), stroke: line.colour, "stroke-width": line.width ?? 2,
      "stroke-dasharray": line.dash, "data-name": line.name, "data-points": line.x.length,
    });
  }

  // A measurement without one before and after it, which a line does not show.
  dots(line) {
    const points = this.points(line, line.y);
    const alone = points.filter((point, i) => point && !points[i - 1] && !points[i + 1]);
    return alone.map(([x, y]) => s("circle", { class: "dot", cx: x, cy: y, r: 3.5, fill: line.colour }));
  }

  band(svg, line) {
    if (!line.low) return;
    const [low, high] = [this.points(line, line.low).filter(Boolean), this.points(line, line.high).filter(Boolean)];
    const outline = [...high, ...low.reverse()].map(([a, b]) => `${a.toFixed(1)},${b.toFixed(1)}`).join(" ");
    svg.append(s("polygon", { class: "band", points: outline, fill: line.colour }));
  }

  mark(svg, { x, colour, text }) {
    if (x < this.frame.x[0] || x > this.frame.x[1]) return;
    const { edge, inner } = this.frame;
    const at = this.px(x);
    const group = s("g", { class: "stage", "data-step": x }, s("title", {}, text));
    group.append(s("line", { x1: at, x2: at, y1: edge.top, y2: edge.top + inner.height, stroke: colour }));
    group.append(s("path", { d: `M${at - 5} ${edge.top - 7}h10l-5 8z`, fill: colour }));
    svg.append(group);
  }

  point(event) {
    if (!this.frame || !this.series.length) return;
    const { x, edge, inner } = this.frame;
    const share = (event.clientX - this.plot.getBoundingClientRect().left - edge.left) / inner.width;
    this.move(x[0] + Math.min(Math.max(share, 0), 1) * (x[1] - x[0]));
  }

  key(event) {
    const steps = this.series[0]?.x;
    if (!steps || !["ArrowLeft", "ArrowRight", "Home", "End"].includes(event.key)) return;
    event.preventDefault();
    const now = this.at === null ? steps.length - 1 : nearest(steps, this.at);
    const next = { ArrowLeft: now - 1, ArrowRight: now + 1, Home: 0, End: steps.length - 1 }[event.key];
    this.move(steps[Math.min(Math.max(next, 0), steps.length - 1)]);
  }

  move(step) {
    this.at = step;
    if (!this.cross) return;
    this.cross.replaceChildren();
    if (step === null || !this.series.length) {
      this.readout.replaceChildren();
      return;
    }
    const { edge, inner } = this.frame;
    const found = this.series.map((line) => {
      const i = nearest(line.x, step);
      return { line, step: line.x[i], value: line.y[i] };
    });
    const at = this.px(found[0].step);
    this.cross.append(s("line", { x1: at, x2: at, y1: edge.top, y2: edge.top + inner.height }));
    for (const { line, step: place, value } of found) {
      if (value === null || (this.log && value <= 0)) continue;
      this.cross.append(s("circle", { cx: this.px(place), cy: this.py(value), r: 3.5, fill: line.colour }));
    }
    const words = found.slice(0, 24).map(({ line, value }) => {
      const key = h("i", { class: "key" });
      key.style.background = line.colour;
      return h("span", {}, key, `${line.name} `, h("b", {}, number(value, 4)));
    });
    this.readout.replaceChildren(h("span", {}, `${this.xLabel} `, h("b", {}, number(found[0].step, 7))), ...words);
  }
}

// A curve without axes, as tall as a line of text.
export const spark = (values, label) => {
  const there = values.filter((value) => value !== null);
  if (there.length < 2) return null;
  const [low, high] = [Math.min(...there), Math.max(...there)];
  const points = values.flatMap((value, i) => {
    if (value === null) return [];
    return [`${((i / (values.length - 1)) * 78 + 1).toFixed(1)},${(19 - ((value - low) / (high - low || 1)) * 17).toFixed(1)}`];
  });
  return s("svg", { class: "spark", viewBox: "0 0 80 20", role: "img", "aria-label": label }, s("polyline", { points: points.join(" ") }));
};
