// Several runs over each other, each with a colour and a name of its own; runs are never averaged.
import { listen } from "./api.js";
import { ofRun, onSchemeChange } from "./colours.js";
import { badge, count, fixed, h, number, select } from "./dom.js";
import { Lines } from "./lines.js";
import { CIRCUITS, QUANTITIES, card, keep, nameOf, panelTitle, toggle } from "./run.js";

const IS_RANK = ["stable_rank", "effective_rank"];

const last = (values) => [...values].reverse().find((value) => value !== null);

// The mean over the lines of one circuit at every step; null where nothing was measured.
const meanOf = (rows) => rows[0].map((_, i) => {
  const there = rows.map((row) => row[i]).filter((value) => value !== null);
  return there.length ? there.reduce((sum, value) => sum + value, 0) / there.length : null;
});

export const showCompare = (main, crumbs, ids) => {
  const runs = new Map();
  const chosen = { scalar: null, quantity: "stable_rank", layer: "mean", log: false };
  const controls = h("div", { class: "controls" });
  const legend = h("ul", { class: "legend" });
  const scalar = new Lines({ label: "A number of every run over training", height: 250 });
  const charts = Object.fromEntries(Object.keys(CIRCUITS).map((circuit) => [circuit, new Lines({ label: `${circuit || "layer"} of every run`, height: 250 })]));
  const panels = Object.fromEntries(Object.entries(charts).map(([circuit, chart]) => [circuit, card("", "", chart.element)]));
  const [scalarHead, ...circuitHeads] = ["number", "kq", "vo"].map((text) => h("th", { scope: "col" }, text));
  const body = h("tbody");

  const valueOf = (run, circuit) => {
    const curve = run.curves[chosen.quantity]?.[circuit];
    if (!curve) return null;
    const row = curve.layers.indexOf(Number(chosen.layer));
    if (chosen.layer !== "mean" && row < 0) return null;
    return { x: curve.steps, y: chosen.layer === "mean" ? meanOf(curve.values) : curve.values[row] };
  };

  const show = () => {
    const there = ids.map((id, place) => ({ run: runs.get(id), colour: ofRun(place) })).filter(({ run }) => run?.scalars);
    const scalars = [...new Set(there.flatMap(({ run }) => Object.keys(run.scalars)))];
    if (!scalars.includes(chosen.scalar)) chosen.scalar = scalars[0] ?? null;
    const quantities = Object.keys(QUANTITIES).filter((name) => there.some(({ run }) => run.curves[name]));
    if (!quantities.includes(chosen.quantity)) chosen.quantity = quantities[0] ?? "stable_rank";
    const layers = Math.max(0, ...there.map(({ run }) => run.numLayers));
    const names = labels(there.map(({ run }) => run));
    legend.replaceChildren(...ids.map((id, place) => {
      const run = runs.get(id);
      const key = h("i", { class: "key" });
      key.style.background = ofRun(place);
      return h("li", {}, key, h("a", { href: `#/run/${id}` }, run ? nameOf(run) : "…"), run ? badge(run.state) : null, run?.differs ? h("span", { class: "soft small" }, ` ${run.differs}`) : null, run?.problem ? h("span", { class: "problem" }, run.problem) : null);
    }));
    keep(controls, [scalars.join(), quantities.join(), layers].join("\n"), () => [
      scalars.length ? select("Show", scalars.map((name) => [name, name]), chosen.scalar, (name) => { chosen.scalar = name; show(); }) : null,
      quantities.length ? select("and", quantities.map((name) => [name, QUANTITIES[name]]), chosen.quantity, (name) => { chosen.quantity = name; show(); }) : null,
      layers ? select("of", [["mean", "the mean over layers"], ...Array.from({ length: layers }, (_, n) => [String(n), `layer ${n}`])], chosen.layer, (layer) => { chosen.layer = layer; show(); }) : null,
      toggle("logarithmic", chosen.log, (isOn) => { chosen.log = isOn; show(); }),
    ]);
    scalar.log = chosen.log;
    scalar.yLabel = chosen.scalar ?? "";
    scalar.show(there.flatMap(({ run, colour }, i) => {
      const curve = run.scalars[chosen.scalar];
      return curve ? [{ name: names[i], x: curve.steps, y: curve.values, low: curve.low, high: curve.high, colour }] : [];
    }));
    scalarHead.textContent = chosen.scalar ?? "number";
    circuitHeads.forEach((head, i) => { head.textContent = `${QUANTITIES[chosen.quantity]} of ${["kq", "vo"][i]}`; });
    for (const circuit of Object.keys(CIRCUITS)) {
      panels[circuit].hidden = quantities.length ? !there.some(({ run }) => run.curves[chosen.quantity]?.[circuit]) : circuit === "";
      panels[circuit].firstChild.textContent = panelTitle(circuit, chosen.quantity);
      charts[circuit].yLabel = QUANTITIES[chosen.quantity];
      charts[circuit].show(there.flatMap(({ run, colour }, i) => {
        const found = valueOf(run, circuit);
        return found ? [{ name: names[i], ...found, colour }] : [];
      }));
    }
    body.replaceChildren(...there.map(({ run }, i) => h("tr", {}, h("th", { scope: "row" }, names[i]), h("td", {}, badge(run.state)), h("td", {}, count(run.lastStep)),
      h("td", {}, number(run.scalars[chosen.scalar]?.last)), ...["kq", "vo"].map((circuit) => h("td", {}, (IS_RANK.includes(chosen.quantity) ? fixed : number)(last(valueOf(run, circuit)?.y ?? [])))))));
  };

  main.replaceChildren(
    h("h1", {}, `${ids.length} runs over each other`), legend, controls,
    card("Over training", "", scalar.element),
    h("div", { class: "pair" }, Object.values(panels)),
    card("Now", "", h("div", { class: "wide" }, h("table", {}, h("thead", {}, h("tr", {}, ["run", "state", "step"].map((text, i) => h("th", { scope: "col", class: i < 2 ? "left" : undefined }, text)), scalarHead, circuitHeads)), body))),
  );
  crumbs.replaceChildren(h("a", { href: "#/" }, "← all runs"));
  document.title = `${ids.length} runs · rankrise`;
  const stopScheme = onSchemeChange(show);
  const stop = listen(ids, { run: (found) => { runs.set(found.id, found); show(); } });
  return () => {
    stop();
    stopScheme();
  };
};

// What tells the runs apart: their settings if all differ in them, or else their names without the folders that all are in.
const labels = (runs) => {
  const settings = runs.map((run) => run.differs);
  if (settings.every(Boolean) && new Set(settings).size === runs.length) return settings;
  const parts = runs.map((run) => nameOf(run).split("/"));
  let shared = 0;
  while (parts.length > 1 && parts.every((one) => one.length > shared + 1 && one[shared] === parts[0][shared])) shared += 1;
  return parts.map((one) => one.slice(shared).join("/"));
};
