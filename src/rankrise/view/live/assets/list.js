// The list of runs: filter, sort, open, choose some to lay over each other; and what was found of the claims.
import { get, listen } from "./api.js";
import { ago, badge, count, fixed, h, number, select } from "./dom.js";
import { spark } from "./lines.js";

const ORDERS = {
  changed: ["last changed", (a, b) => b.changed - a.changed],
  path: ["name", (a, b) => a.path.localeCompare(b.path, "en", { numeric: true })],
  loss: ["loss", (a, b) => (a.loss ?? Infinity) - (b.loss ?? Infinity)],
  rank: ["rank", (a, b) => (b.rank ?? -Infinity) - (a.rank ?? -Infinity)],
};
const MOST_CHOSEN = 12;

export const nameOf = (run) => run.path || "this folder";

export const showList = (main, chosen) => {
  const runs = new Map();
  const rows = new Map();
  let [order, isDue] = ["changed", false];

  const filter = h("input", { type: "search", id: "filter", placeholder: "Filter by name, state or setting ( / )", "aria-label": "Filter the runs", oninput: () => arrange() });
  const compare = h("button", { type: "button", class: "primary", onclick: () => { location.hash = `#/runs/${[...chosen].join(",")}`; } });
  const total = h("p", { class: "soft small", role: "status" });
  const body = h("tbody");
  const head = ["", "run", "state", "layers × heads", "step", "loss", "", "stable rank of kq", "", "changed"];
  const table = h("table", { class: "runs" }, h("thead", {}, h("tr", {}, head.map((text) => h("th", { scope: "col" }, text)))), body);
  const claims = h("section");
  const empty = h("p", { class: "notice" }, "There is no run here yet. Record one with ", h("code", {}, "rankrise.RankTracker(model, out=\"runs/mine\")"), "; it appears here as soon as it begins.");
  main.replaceChildren(
    h("h1", {}, "Runs"),
    h("div", { class: "controls" }, filter, select("Sort by", Object.entries(ORDERS).map(([key, [text]]) => [key, text]), order, (key) => { order = key; arrange(); }), compare),
    total, empty, h("div", { class: "wide" }, table), claims,
  );

  const offer = () => {
    compare.disabled = chosen.size < 2 || chosen.size > MOST_CHOSEN;
    compare.textContent = chosen.size > MOST_CHOSEN ? `At most ${MOST_CHOSEN} runs` : `Compare ${chosen.size || ""} runs`.replace("  ", " ");
  };

  const build = (run) => {
    const box = h("input", { type: "checkbox", "aria-label": `Compare ${nameOf(run)}`, onchange: () => {
      if (box.checked) chosen.add(run.id);
      else chosen.delete(run.id);
      offer();
    } });
    box.checked = chosen.has(run.id);
    const [low, high] = run.heads;
    const size = run.layers ? `${run.layers} × ${low === high ? low : `${low}–${high}`}` : "–";
    const isNamed = run.path.split("/").includes(run.experiment); // then the experiment would stand there twice
    const aside = [isNamed ? "" : run.experiment, run.differs].filter(Boolean).join(" · ");
    const cells = [
      h("td", {}, box),
      h("th", { scope: "row" }, h("a", { href: `#/run/${run.id}` }, nameOf(run)), aside ? h("span", { class: "soft small aside" }, aside) : null, run.problem ? h("span", { class: "problem" }, run.problem) : null),
      h("td", {}, badge(run.state)), h("td", {}, size), h("td", {}, count(run.step)),
      h("td", {}, number(run.loss)), h("td", {}, spark(run.losses ?? [], "loss over training")),
      h("td", {}, fixed(run.rank)), h("td", {}, spark(run.ranks ?? [], "rank over training")),
      h("td", { class: "soft", "data-changed": run.changed }, ago(run.changed)),
    ];
    return h("tr", { "data-run": run.id, "data-state": run.state }, cells);
  };

  const arrange = () => {
    isDue = false;
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const fits = (run) => words.every((word) => `${run.path} ${run.experiment} ${run.differs} ${run.state}`.toLowerCase().includes(word));
    const shown = [...runs.values()].filter(fits).sort(ORDERS[order][1]);
    const focused = document.activeElement?.closest?.("tr")?.dataset.run;
    const place = document.activeElement?.matches?.("input[type=checkbox]") ? "input" : "a";
    body.replaceChildren(...shown.map((run) => rows.get(run.id)));
    if (focused) rows.get(focused)?.querySelector(place)?.focus();
    const running = shown.filter((run) => run.state === "running").length;
    total.textContent = `${count(shown.length)} of ${count(runs.size)} runs${running ? `, ${running} running` : ""}`;
    empty.hidden = runs.size > 0;
    offer();
  };

  const take = ({ runs: changed, gone }) => {
    for (const run of changed) {
      runs.set(run.id, run);
      rows.set(run.id, build(run));
    }
    for (const id of gone) {
      runs.delete(id);
      rows.delete(id);
      chosen.delete(id);
    }
    if (!isDue) requestAnimationFrame(arrange);
    isDue = true;
  };

  const key = (event) => {
    if (event.key === "/" && document.activeElement !== filter) {
      event.preventDefault();
      filter.focus();
      return;
    }
    if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return;
    const links = [...body.querySelectorAll("a")];
    if (document.activeElement.tagName === "SELECT" || !links.length) return;
    event.preventDefault();
    const now = links.indexOf(document.activeElement.closest("tr")?.querySelector("a"));
    const next = now < 0 ? 0 : now + (event.key === "ArrowDown" ? 1 : -1);
    if (next < 0) filter.focus();
    else links[Math.min(next, links.length - 1)].focus();
  };

  const showClaims = (found) => {
    if (!found.length) return;
    const order = { fails: 0, holds: 1 };
    const sorted = [...found].sort((a, b) => (order[a.verdict] ?? 2) - (order[b.verdict] ?? 2));
    const numOf = (verdict) => found.filter((one) => one.verdict === verdict).length;
    claims.replaceChildren(
      h("h2", {}, "Claims"),
      h("p", {}, `Of ${count(found.length)} claims ${numOf("holds")} hold, ${numOf("fails")} fail and ${numOf("not tested")} were not tested.`),
      h("details", {}, h("summary", {}, "Every claim"), h("div", { class: "wide" }, h("table", {}, h("tbody", {}, sorted.map(claimRow))))),
    );
  };

  document.addEventListener("keydown", key);
  const timer = setInterval(() => {
    for (const cell of body.querySelectorAll("[data-changed]")) cell.textContent = ago(Number(cell.dataset.changed));
  }, 10_000);
  const stop = listen([], { list: take });
  get("verdicts").then(showClaims, () => {});
  offer();
  return () => {
    stop();
    clearInterval(timer);
    document.removeEventListener("keydown", key);
  };
};

export const claimRow = (one) =>
  h("tr", {}, h("td", {}, h("span", { class: `verdict ${one.verdict.replaceAll(" ", "-")}` }, one.verdict)), h("td", { class: "words" }, one.claim), h("td", { class: "words soft" }, one.reason));
