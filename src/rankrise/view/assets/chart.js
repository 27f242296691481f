"use strict";
// A small chart in SVG: lines, steps and bars between two axes. Redrawn when its box changes size.
const SVG = "http://www.w3.org/2000/svg";
const node = (tag, attributes = {}, ...children) => {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
};

// "a_3" with its subscript, as parts of an SVG text.
const label = (text) => text.split(/(?<![A-Za-z0-9_])([A-Za-zσ]_(?:[A-Za-z]|\d{1,3}))(?![A-Za-z0-9_])/).flatMap((part, i) => {
  if (i % 2 === 0) return [part];
  const [letter, index] = part.split("_");
  return [letter, node("tspan", { dy: "3", "font-size": "75%" }, index), node("tspan", { dy: "-3" }, "\u200b")];
});

// Round numbers that divide an interval into a few parts.
const ticksOf = (low, high, num) => {
  const rough = (high - low) / num;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((k) => k * power).find((s) => s >= rough * 0.999);
  const first = Math.ceil(low / step - 1e-9);
  return Array.from({ length: Math.floor(high / step + 1e-9) - first + 1 }, (_, i) => (first + i) * step);
};

class Chart {
  // box: the element; title, xLabel, yLabel: text; x, y: [low, high]; draw: () => [{ kind, x, y, colour, width, dash, opacity }]
  constructor(box, options) {
    Object.assign(this, options);
    this.box = box;
    new ResizeObserver(() => this.render()).observe(box);
  }

  render() {
    const width = this.box.clientWidth;
    const height = this.box.clientHeight;
    if (!width || !height) return;
    const edge = { left: 38, right: 10, top: this.title ? 22 : 8, bottom: this.xLabel ? 38 : 22 };
    const inner = { width: width - edge.left - edge.right, height: height - edge.top - edge.bottom };
    const px = (x) => edge.left + ((x - this.x[0]) / (this.x[1] - this.x[0])) * inner.width;
    const py = (y) => edge.top + inner.height - ((y - this.y[0]) / (this.y[1] - this.y[0])) * inner.height;
    const svg = node("svg", { viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
    this.drawAxes(svg, { px, py, width, height, edge, inner });
    const name = `clip-${this.box.id}`;
    svg.append(node("clipPath", { id: name }, node("rect", { x: edge.left, y: edge.top - 3, width: inner.width + 3, height: inner.height + 4 })));
    const marks = node("g", { "clip-path": `url(#${name})` });
    for (const mark of this.draw()) marks.append(mark.kind === "bars" ? Chart.bars(mark, px, py) : Chart.line(mark, px, py));
    svg.append(marks);
    this.box.replaceChildren(svg);
  }

  drawAxes(svg, { px, py, width, height, edge, inner }) {
    const bottom = edge.top + inner.height;
    for (const tick of ticksOf(...this.y, Math.max(2, inner.height / 50))) {
      svg.append(node("line", { class: "gridline", x1: edge.left, x2: edge.left + inner.width, y1: py(tick), y2: py(tick) }));
      svg.append(node("text", { x: edge.left - 6, y: py(tick) + 4, "text-anchor": "end" }, String(+tick.toPrecision(6))));
    }
    for (const tick of ticksOf(...this.x, Math.max(2, inner.width / 80))) {
      svg.append(node("text", { x: px(tick), y: bottom + 16, "text-anchor": "middle" }, String(+tick.toPrecision(6))));
    }
    svg.append(node("line", { class: "axis", x1: edge.left, x2: edge.left + inner.width, y1: bottom, y2: bottom }));
    svg.append(node("line", { class: "axis", x1: edge.left, x2: edge.left, y1: edge.top, y2: bottom }));
    if (this.title) svg.append(node("text", { class: "title", x: edge.left, y: 13 }, ...label(this.title)));
    if (this.xLabel) svg.append(node("text", { x: edge.left + inner.width, y: height - 4, "text-anchor": "end" }, this.xLabel));
  }

  static line({ x, y, colour, width = 2, dash = "", opacity = 1, steps = false, name = "" }, px, py) {
    const points = x.map((value, i) => [px(value), py(y[i])]).filter((_, i) => y[i] !== null);
    const path = points.map(([a, b], i) => {
      if (!i) return `M${a.toFixed(1)} ${b.toFixed(1)}`;
      return steps ? `H${a.toFixed(1)}V${b.toFixed(1)}` : `L${a.toFixed(1)} ${b.toFixed(1)}`;
    });
    return node("path", {
      d: path.join(""), fill: "none", stroke: colour, "stroke-width": width, "stroke-dasharray": dash, opacity,
      "stroke-linejoin": "round", "data-name": name,
    });
  }

  static bars({ x, y, colour }, px, py) {
    const half = 0.36 * (px(1) - px(0));
    const zero = py(0);
    return node("g", {}, ...x.map((value, i) => node("rect", {
      x: px(value) - half, width: 2 * half, y: py(y[i] || 0), height: Math.max(0, zero - py(y[i] || 0)), fill: colour,
    })));
  }
}
