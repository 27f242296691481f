// Every head of every layer as a cell: the arrow keys move over the cells, Enter chooses one.
import { inkOn, onSchemeChange, shade } from "./colours.js";
import { h, number, s, select } from "./dom.js";

const MEASURES = {
  kq: ["stable rank of kq", (head) => head.ranks.kq],
  vo: ["stable rank of vo", (head) => head.ranks.vo],
  learned: ["amount learned", (head) => head.learned],
};

export class Heat {
  // choose: is called with the layer and the head of a cell that the user chooses
  constructor(choose) {
    Object.assign(this, { onChoose: choose, heads: [], measure: "kq", chosen: null, at: null });
    this.grid = h("div", { class: "heat", tabindex: "0", role: "application", "aria-label": "Heads by layer; the arrow keys move, Enter chooses" });
    this.readout = h("p", { class: "readout", "aria-live": "polite" });
    const controls = h("div", { class: "controls" }, select("Show", Object.entries(MEASURES).map(([key, [text]]) => [key, text]), this.measure, (key) => { this.measure = key; this.render(); }));
    this.element = h("div", {}, controls, this.grid, this.readout);
    this.grid.addEventListener("keydown", (event) => this.key(event));
    this.grid.addEventListener("blur", () => this.move(null));
    new ResizeObserver(() => this.render()).observe(this.grid);
    onSchemeChange(() => this.render());
  }

  show(heads) {
    this.heads = heads;
    this.layers = [...new Set(heads.map((head) => head.layer))].sort((a, b) => a - b);
    this.num = Math.max(0, ...heads.map((head) => head.head + 1));
    this.render();
  }

  choose(layer, head) {
    this.chosen = { layer, head };
    this.render();
  }

  render() {
    const width = this.grid.clientWidth;
    if (!width) return;
    if (!this.heads.length) {
      this.grid.replaceChildren();
      return;
    }
    const [left, top] = [44, 30];
    const [name, read] = MEASURES[this.measure];
    const cell = Math.min(46, (width - left) / this.num);
    const tall = Math.max(Math.min(cell, 30), 9);
    const values = this.heads.map(read).filter((value) => value !== null && value !== undefined);
    if (!values.length) {
      this.grid.replaceChildren(h("p", { class: "soft small" }, `The ${name} was not measured.`));
      return;
    }
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const svg = s("svg", { viewBox: `0 0 ${width} ${top + tall * this.layers.length + 2}`, "aria-hidden": "true" });
    const each = Math.ceil(18 / cell);
    svg.append(s("text", { class: "title", x: left, y: 11 }, "head"), s("text", { class: "title", x: 2, y: top - 5 }, "layer"));
    for (let head = 0; head < this.num; head += each) svg.append(s("text", { x: left + (head + 0.5) * cell, y: top - 5, "text-anchor": "middle" }, String(head)));
    const rowsEach = Math.ceil(13 / tall);
    this.layers.forEach((layer, row) => {
      if (row % rowsEach === 0) svg.append(s("text", { x: left - 6, y: top + (row + 0.5) * tall + 4, "text-anchor": "end" }, String(layer)));
    });
    for (const head of this.heads) {
      const [x, y, value] = [left + head.head * cell, top + this.layers.indexOf(head.layer) * tall, read(head)];
      const isKnown = value !== null && value !== undefined;
      const colour = isKnown ? shade((value - low) / (high - low || 1)) : "#bbbbbb";
      const box = s("rect", { x: x + 0.5, y: y + 0.5, width: Math.max(cell - 1, 1), height: Math.max(tall - 1, 1), rx: 2, fill: colour, "data-layer": head.layer, "data-head": head.head });
      box.addEventListener("click", () => this.onChoose(head.layer, head.head));
      box.addEventListener("pointerenter", () => this.say(head));
      svg.append(box);
      if (cell >= 34 && isKnown) svg.append(s("text", { class: "value", x: x + cell / 2, y: y + tall / 2 + 4, "text-anchor": "middle", fill: inkOn(colour) }, value.toFixed(1)));
    }
    for (const [place, kind] of [[this.chosen, "chosen"], [this.at, "at"]]) {
      if (!place || !this.layers.includes(place.layer)) continue;
      svg.append(s("rect", { class: kind, x: left + place.head * cell, y: top + this.layers.indexOf(place.layer) * tall, width: cell, height: tall, rx: 2 }));
    }
    this.grid.replaceChildren(svg);
    this.grid.setAttribute("aria-label", `${name} by layer (down) and head (across), ${number(low)} to ${number(high)}; the arrow keys move, Enter chooses`);
  }

  key(event) {
    const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    const from = this.at ?? this.chosen;
    if (!this.heads.length || !from) return;
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      this.onChoose(from.layer, from.head);
    } else if (event.key in moves) {
      event.preventDefault();
      const [down, right] = moves[event.key];
      const row = Math.min(Math.max(this.layers.indexOf(from.layer) + down, 0), this.layers.length - 1);
      const place = { layer: this.layers[row], head: Math.min(Math.max(from.head + right, 0), this.num - 1) };
      const head = this.heads.find((one) => one.layer === place.layer && one.head === place.head);
      if (head) this.move(place, head);
    }
  }

  move(place, head) {
    this.at = place;
    this.render();
    if (head) this.say(head);
    else this.readout.replaceChildren();
  }

  say(head) {
    const [name, read] = MEASURES[this.measure];
    this.readout.replaceChildren(h("span", {}, `layer ${head.layer}, head ${head.head}: ${name} `, h("b", {}, number(read(head), 4))));
  }
}
