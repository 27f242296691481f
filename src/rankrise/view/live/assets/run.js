// One run: its curves, stages, heads and spectra, all of them growing while it trains.
import { get, listen } from "./api.js";
import { ofLayer, onSchemeChange } from "./colours.js";
import { badge, count, fixed, h, number, select } from "./dom.js";
import { Heat } from "./heat.js";
import { Lines } from "./lines.js";
import { claimRow } from "./list.js";
import { Spectra } from "./spectra.js";

export const QUANTITIES = {
  stable_rank: "stable rank", effective_rank: "effective rank", frobenius_norm: "size ‖Δ‖_F", spectral_norm: "size σ₁",
  attention_entropy_share: "entropy of attention, share of log n", max_logit: "largest logit of attention", jacobian_change: "change of the Jacobian",
};
// What the curves of a quantity are of, by the circuit of its rows. Attention itself is recorded under kq.
export const CIRCUITS = { kq: "key-query: change of W_K W_Qᵀ", vo: "value-output: change of W_V W_Oᵀ", "": "the layer as a whole" };
const OF_ATTENTION = ["attention_entropy_share", "max_logit"];
export const panelTitle = (circuit, quantity) => (OF_ATTENTION.includes(quantity) ? "attention" : CIRCUITS[circuit]);
const MOST_LISTED = 40;

export const stageWords = (stage) =>
  stage.kind === "loss"
    ? `step ${Math.round(stage.step)}: the loss falls by ${number(stage.size)}`
    : `step ${Math.round(stage.step)}: rank of ${stage.circuit} in layer ${stage.layer} rises by ${number(stage.size)}`;

export const showRun = (main, crumbs, id) => {
  let [run, claims] = [null, []];
  const chosen = { scalar: null, quantity: "stable_rank", log: false, hidden: new Set() };
  const parts = {};

  const build = () => {
    parts.title = h("h1");
    parts.meta = h("p", { class: "meta" });
    parts.alerts = h("div");
    parts.scalarControls = h("div", { class: "controls" });
    parts.scalar = new Lines({ label: "A number over training", height: 230 });
    parts.rankControls = h("div", { class: "controls" });
    parts.legend = h("div", { class: "layers", role: "group", "aria-label": "Layers that are shown" });
    parts.ranks = Object.fromEntries(Object.entries(CIRCUITS).map(([name, text]) => [name, new Lines({ label: text, height: 260 })]));
    parts.panels = Object.fromEntries(Object.keys(CIRCUITS).map((name) => [name, h("div", { "data-circuit": name }, h("h3"), parts.ranks[name].element)]));
    parts.stages = h("ol", { class: "stages" });
    parts.numStages = h("p", { class: "soft small", role: "status" });
    parts.spectra = new Spectra(id);
    parts.heat = new Heat((layer, head) => choose(layer, head));
    parts.heads = h("tbody");
    parts.headsMissing = h("p", { class: "soft small" });
    parts.claims = h("section");
    parts.byLayer = card("By layer", "Each line is a layer, the mean over its heads. A stable rank of 1 says that a head has learned one direction.", parts.rankControls,
      parts.legend, h("div", { class: "pair" }, Object.values(parts.panels)));
    parts.byHead = h("div", { class: "pair" },
      card("Heads", "Look which heads differ from those beside them. Choose one to see its spectrum.", parts.heat.element),
      card("Spectrum", "How many singular values have left the floor, early and late.", parts.spectra.element));
    parts.table = h("div", { class: "wide" },
      h("table", {}, h("thead", {}, h("tr", {}, ["layer", "head", "learned", "size of kq", "size of vo", "rank of kq", "rank of vo"].map((text) => h("th", { scope: "col" }, text)))), parts.heads));
    parts.most = card("Heads that learned most", "By the size of their change; 1 × is an average head.", parts.table, parts.headsMissing);
    parts.notes = h("ul", { class: "notes small soft" });
    main.replaceChildren(
      parts.title, parts.meta, parts.alerts,
      card("Over training", "Look for plateaus and for the steps between them; a triangle marks a step.", parts.scalarControls, parts.scalar.element),
      parts.byLayer, card("Stages", "", parts.numStages, parts.stages), parts.byHead, parts.most, parts.claims, parts.notes,
    );
  };

  const choose = (layer, head) => {
    parts.heat.choose(layer, head);
    parts.spectra.choose(layer, head);
  };

  const showHead = () => {
    document.title = `${nameOf(run)} · rankrise`;
    parts.title.replaceChildren(nameOf(run), " ", badge(run.state));
    if (run.problem) {
      parts.meta.textContent = run.problem;
      return;
    }
    const facts = [
      run.experiment || null, run.differs || null, run.numLayers ? `${run.numLayers} layers` : "no attention tracked",
      run.lastStep === null ? "nothing recorded yet" : `steps ${count(run.firstStep)} to ${count(run.lastStep)}`, `${count(run.rows)} numbers`,
    ];
    parts.meta.textContent = facts.filter(Boolean).join(" · ");
    parts.alerts.replaceChildren(...run.alerts.map((sentence) => h("p", { class: "notice", role: "alert" }, `Alert: ${sentence}`)));
    parts.notes.replaceChildren(...run.notes.map((note) => h("li", {}, note)));
  };

  const marksOf = (kind, circuit) =>
    (run.stages ?? []).filter((stage) => stage.kind === kind && (kind === "loss" || (stage.circuit === circuit && !chosen.hidden.has(stage.layer))));

  const showScalar = () => {
    const names = Object.keys(run.scalars);
    if (!names.includes(chosen.scalar)) chosen.scalar = names[0] ?? null;
    const curve = run.scalars[chosen.scalar];
    parts.scalar.yLabel = chosen.scalar ?? "";
    parts.scalar.log = chosen.log;
    const marks = ["loss", "train_loss"].includes(chosen.scalar) ? marksOf("loss") : [];
    const ink = getComputedStyle(document.body).getPropertyValue("--accent").trim();
    parts.scalar.show(
      curve ? [{ name: chosen.scalar, x: curve.steps, y: curve.values, low: curve.low, high: curve.high, colour: ink }] : [],
      marks.map((stage) => ({ x: stage.step, colour: "var(--focus)", text: stageWords(stage) })),
    );
    keep(parts.scalarControls, names.join("\n"), () => [
      names.length > 1 ? select("Show", names.map((name) => [name, name]), chosen.scalar, (name) => { chosen.scalar = name; showScalar(); }) : null,
      toggle("logarithmic", chosen.log, (isOn) => { chosen.log = isOn; showScalar(); }),
    ]);
  };

  const showRanks = () => {
    const there = Object.keys(QUANTITIES).filter((name) => run.curves[name]);
    parts.byLayer.hidden = !there.length && !run.numLayers;
    if (!there.includes(chosen.quantity)) chosen.quantity = there[0] ?? "stable_rank";
    const layers = [...new Set(Object.values(run.curves[chosen.quantity] ?? {}).flatMap((curve) => curve.layers))].sort((a, b) => a - b);
    for (const [circuit, chart] of Object.entries(parts.ranks)) {
      const curve = run.curves[chosen.quantity]?.[circuit];
      parts.panels[circuit].hidden = there.length ? !curve : circuit === "";
      parts.panels[circuit].firstChild.textContent = panelTitle(circuit, chosen.quantity);
      chart.yLabel = QUANTITIES[chosen.quantity];
      const lines = (curve?.layers ?? []).map((layer, row) => ({ layer, name: `layer ${layer}`, x: curve.steps, y: curve.values[row], colour: ofLayer(layers.indexOf(layer), layers.length) }));
      const marks = chosen.quantity === "stable_rank" ? marksOf("rank", circuit) : [];
      chart.show(lines.filter((line) => !chosen.hidden.has(line.layer)), marks.map((stage) => ({ x: stage.step, colour: ofLayer(layers.indexOf(stage.layer), layers.length), text: stageWords(stage) })));
    }
    keep(parts.rankControls, there.join(), () => [select("Show", there.map((name) => [name, QUANTITIES[name]]), chosen.quantity, (name) => { chosen.quantity = name; showRanks(); })]);
    parts.legend.replaceChildren(...layers.map((layer, place) => {
      const button = h("button", { type: "button", class: "chip", "aria-pressed": String(!chosen.hidden.has(layer)), "data-layer": layer, onclick: () => {
        if (!chosen.hidden.delete(layer)) chosen.hidden.add(layer);
        showRanks();
        parts.legend.querySelector(`[data-layer="${layer}"]`)?.focus();
      } }, h("i", { class: "key" }), `layer ${layer}`);
      button.firstChild.style.background = ofLayer(place, layers.length);
      return button;
    }));
  };

  const showStages = () => {
    const stages = run.stages ?? [];
    const none = `No stage was found${run.state === "running" ? " yet" : ""}: a stage is a fast step of a curve between two plateaus that last as long, and needs 20 measurements to be seen.`;
    parts.numStages.textContent = run.stages === null ? "Looking for stages …" : stages.length ? "" : none;
    parts.stages.replaceChildren(...stages.slice(0, MOST_LISTED).map((stage) => h("li", {}, stageWords(stage))));
  };

  const showHeads = () => {
    parts.byHead.hidden = parts.most.hidden = !run.heads.length && !run.numLayers;
    parts.heat.show(run.heads);
    parts.headsMissing.textContent = Object.keys(run.curves).length ? run.headsMissing : "Nothing was measured of the heads yet.";
    parts.table.hidden = Boolean(run.headsMissing);
    parts.heads.replaceChildren(...run.heads.slice(0, 10).map((head) =>
      h("tr", {}, h("td", {}, String(head.layer)), h("td", {}, h("button", { type: "button", class: "link", onclick: () => choose(head.layer, head.head) }, String(head.head))),
        h("td", {}, `${fixed(head.learned)} ×`), ...["kq", "vo"].map((name) => h("td", {}, number(head.norms[name]))), ...["kq", "vo"].map((name) => h("td", {}, fixed(head.ranks[name]))))));
    const [best] = run.heads;
    if (best && !parts.heat.chosen) parts.heat.choose(best.layer, best.head);
    parts.spectra.update(run.spectra, run.lastStep, parts.heat.chosen);
  };

  const showClaims = () => {
    const mine = claims.filter((one) => one.runs.includes(run.source));
    if (mine.length) parts.claims.replaceChildren(card("Claims that read this run", "", h("div", { class: "wide" }, h("table", {}, h("tbody", {}, mine.map(claimRow))))));
  };

  const show = () => {
    if (!run) return;
    showHead();
    if (run.problem) return;
    for (const part of [showScalar, showRanks, showStages, showHeads, showClaims]) part();
  };

  build();
  parts.title.textContent = "Loading …";
  crumbs.replaceChildren(h("a", { href: "#/" }, "← all runs"));
  const stopScheme = onSchemeChange(show);
  const stop = listen([id], { run: (found) => { run = found; show(); } });
  get("verdicts").then((found) => { claims = found; if (run?.scalars) showClaims(); }, () => {});
  return () => {
    stop();
    stopScheme();
    parts.spectra.stop();
  };
};

export const nameOf = (run) => run.name || run.source || "this folder";

export const card = (title, look, ...content) => h("section", { class: "card" }, h("h2", {}, title), look ? h("p", { class: "soft small" }, look) : null, ...content);

export const toggle = (text, isOn, change) => {
  const box = h("input", { type: "checkbox", onchange: () => change(box.checked) });
  box.checked = isOn;
  return h("label", {}, box, ` ${text}`);
};

// Controls are made again only if what they offer has changed, so that they keep the focus.
export const keep = (place, key, make) => {
  if (place.dataset.key === key) return;
  place.dataset.key = key;
  place.replaceChildren(...make().filter(Boolean));
};
