// The singular values of one head's change, with a scrubber that goes through the steps at which they were measured.
import { get } from "./api.js";
import { shade } from "./colours.js";
import { h, number, select } from "./dom.js";
import { Lines } from "./lines.js";

const FRAME = 120; // milliseconds that a step is shown while the film plays

export class Spectra {
  constructor(run) {
    Object.assign(this, { run, circuit: "kq", place: null, found: null, circuits: [], atEnd: true, asked: "", film: null });
    this.chart = new Lines({ label: "Singular values of the change of one head", yLabel: "σ", xLabel: "i, from the largest", height: 250, log: true });
    this.slider = h("input", { type: "range", min: "0", max: "0", value: "0", "aria-label": "Step of training", oninput: () => { this.atEnd = this.slider.value === this.slider.max; this.draw(); } });
    this.output = h("output");
    this.play = h("button", { type: "button", onclick: () => (this.film ? this.stop() : this.start()) }, "Play");
    this.title = h("h3");
    this.choice = h("span");
    this.missing = h("p", { class: "soft small" });
    this.body = h("div", {}, h("div", { class: "controls" }, this.choice, this.play, this.slider, this.output), this.chart.element);
    this.element = h("div", {}, this.title, this.missing, this.body);
    this.body.hidden = true;
  }

  choose(layer, head) {
    this.place = { layer, head };
    this.load();
  }

  // circuits: those that have spectra; step: the last step of the run, whose growth may have brought new spectra
  update(circuits, step, place) {
    this.circuits = circuits;
    this.step = step;
    this.place ??= place;
    if (circuits.length && !circuits.includes(this.circuit)) this.circuit = circuits[0];
    this.missing.textContent = circuits.length ? "" : "No spectra were recorded yet: they have a clock of their own, RankTracker(..., spectra=50).";
    if (this.choice.dataset.key !== circuits.join()) {
      this.choice.dataset.key = circuits.join();
      this.choice.replaceChildren(select("Circuit", circuits.map((name) => [name, name]), this.circuit, (name) => { this.circuit = name; this.load(); }));
    }
    this.load();
  }

  async load() {
    this.body.hidden = !this.circuits.length || !this.place;
    if (this.body.hidden) return;
    const query = { run: this.run, circuit: this.circuit, ...this.place };
    const asked = JSON.stringify([query, this.step]);
    if (this.asked === asked) return;
    this.asked = asked;
    let found;
    try {
      found = await get("spectra", query);
    } catch (error) {
      this.missing.textContent = error.message;
      return;
    }
    if (this.asked !== asked) return; // another head was chosen meanwhile
    const step = this.found?.steps[this.slider.value];
    this.found = found;
    this.slider.max = String(found.steps.length - 1);
    const same = found.steps.indexOf(step);
    this.slider.value = String(this.atEnd || same < 0 ? found.steps.length - 1 : same);
    this.draw();
  }

  draw() {
    const { steps, values } = this.found ?? { steps: [], values: [] };
    if (!steps.length) return;
    const at = Number(this.slider.value);
    const line = (i, name, rest) => ({ name, x: values[i].map((_, k) => k + 1), y: values[i], ...rest });
    const places = [...new Set([0, 1, 2, 3].map((k) => Math.round((k / 4) * (steps.length - 1))))].filter((i) => i !== at);
    const faint = places.map((i) => line(i, `step ${number(steps[i], 6)}`, { colour: shade(i / Math.max(1, steps.length - 1)), width: 1, dash: "3 3" }));
    this.title.textContent = `${this.circuit} of layer ${this.place.layer}, head ${this.place.head}`;
    this.output.textContent = `step ${number(steps[at], 7)}`;
    this.slider.setAttribute("aria-valuetext", this.output.textContent);
    this.chart.show([line(at, "now", { colour: shade(at / Math.max(1, steps.length - 1)), width: 2.5 }), ...faint]);
  }

  start() {
    this.play.textContent = "Stop";
    if (this.slider.value === this.slider.max) this.slider.value = "0";
    this.film = setInterval(() => {
      this.slider.value = String(Number(this.slider.value) + 1);
      this.atEnd = this.slider.value === this.slider.max;
      this.draw();
      if (this.atEnd) this.stop();
    }, FRAME);
  }

  stop() {
    clearInterval(this.film);
    this.film = null;
    this.play.textContent = "Play";
  }
}
