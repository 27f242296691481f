(() => {
  const { toy, film } = JSON.parse(document.getElementById("data").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const calm = window.matchMedia("(prefers-reduced-motion: reduce)");
  const by = (id) => document.getElementById(id);
  const variable = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const colourOf = (trace) => (dark.matches ? trace.dark : trace.colour);
  const charts = [];

  const addBox = (parent, id, description) => {
    const box = document.createElement("div");
    Object.assign(box, { id, className: "chart" });
    box.setAttribute("role", "img");
    box.setAttribute("aria-label", description);
    parent.append(box);
    return box;
  };

  const extent = (panel, key, axis) => {
    const values = panel.traces.flatMap((trace) => trace[key]).filter((value) => value !== null);
    let [low, high] = [axis.low ?? Math.min(...values), axis.high ?? Math.max(...values)];
    const margin = 0.05 * (high - low || 1);
    if (axis.low === null) low -= margin;
    if (axis.high === null) high += margin;
    return [low, high];
  };

  // --- the α slider: the chosen curve in colour, the others faint, the limit on top ---------------------------------

  const alpha = by("alpha");
  alpha.max = toy.levels.length - 1;
  alpha.value = alpha.max; // the smallest α, whose curve is the staircase
  const curves = (panel) => {
    const chosen = toy.levels[Number(alpha.value)];
    const line = (trace, extra) => ({ kind: "line", x: trace.x, y: trace.y, colour: colourOf(trace), ...extra });
    const ordered = panel.traces.filter((trace) => trace.level);
    return [
      ...ordered.filter((t) => t.group !== chosen).map((t) => line(t, { colour: variable("--soft"), width: 1, opacity: 0.3 })),
      ...ordered.filter((t) => t.group === chosen).map((t) => line(t, { width: 2.6, name: "chosen" })),
      ...panel.traces.filter((t) => !t.level).map((t) => line(t, { steps: true, dash: "6 4", width: 1.8, name: "limit" })),
    ];
  };
  toy.panels.forEach((panel, i) => {
    const box = i ? addBox(by("products"), `product-${i}`, `Product ${panel.title}`) : by("loss");
    charts.push(new Chart(box, {
      title: panel.title, xLabel: i ? "" : panel.x.label, x: extent(panel, "x", panel.x), y: extent(panel, "y", panel.y),
      draw: () => curves(panel),
    }));
  });

  // --- the film ------------------------------------------------------------------------------------------------------

  const time = by("time");
  time.max = film.levels.length - 1;
  time.value = 0;
  film.colNames.forEach((name, i) => by("layer").append(new Option(name.replace("layer ", ""), String(i))));
  by("layer").value = String(film.layer); // the one that rises most
  const bars = (panel) => {
    const now = panel.traces.find((trace) => trace.level && trace.group === film.levels[Number(time.value)]);
    const init = panel.traces.find((trace) => !trace.level);
    return [
      { kind: "bars", x: now.x, y: now.y, colour: colourOf(now) },
      { kind: "line", x: init.x, y: init.y, colour: variable("--soft"), dash: "5 4", width: 1.6 },
    ];
  };
  film.rowNames.forEach((name, circuit) => {
    const panel = () => film.panels[circuit * film.cols + Number(by("layer").value)];
    const first = film.panels[circuit * film.cols];
    const box = addBox(by("spectra"), `spectrum-${circuit}`, `Spectrum of the change, ${name}`);
    charts.push(new Chart(box, {
      title: name, xLabel: "singular value, from the largest", x: [0.4, first.traces[0].x.length + 0.6], y: [0, 1],
      draw: () => bars(panel()),
    }));
  });

  const say = (input, output, text) => {
    by(output).textContent = text;
    input.setAttribute("aria-valuetext", text);
  };
  const update = () => {
    say(alpha, "alpha-value", toy.levels[Number(alpha.value)]);
    say(time, "time-value", film.levels[Number(time.value)]);
    charts.forEach((chart) => chart.render());
  };

  let timer = null;
  const stop = () => { clearInterval(timer); timer = null; by("play").textContent = "Play"; };
  by("play").addEventListener("click", () => {
    if (timer !== null) { stop(); return; }
    if (Number(time.value) >= Number(time.max)) time.value = 0;
    by("play").textContent = "Pause";
    timer = setInterval(() => {
      if (Number(time.value) >= Number(time.max)) stop();
      else time.value = Number(time.value) + 1;
      update();
    }, calm.matches ? 1500 : 300);
    update();
  });
  alpha.addEventListener("input", update);
  time.addEventListener("input", () => { stop(); update(); });
  by("layer").addEventListener("change", update);
  dark.addEventListener("change", update);
  update();
})();
