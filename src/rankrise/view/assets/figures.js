"use strict";
// Draws the figures of the report with plotly. Names are data: they reach the page by textContent, and plotly as text
// whose markup was escaped when the page was written.
(() => {
  const { figures, ramps } = JSON.parse(document.getElementById("data").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const calm = window.matchMedia("(prefers-reduced-motion: reduce)");
  const drawn = []; // { element, panel, figure, state } of every plot on the page
  let isPrinting = false;

  const make = (tag, properties = {}, ...children) => {
    const element = Object.assign(document.createElement(tag), properties);
    element.append(...children);
    return element;
  };
  // "W_K" with its subscript, as nodes.
  const words = (label) => label.split(/(?<![A-Za-z0-9_])([A-Za-zσ]_(?:[A-Za-z]|\d{1,3}))(?![A-Za-z0-9_])/).map((part, i) => {
    if (i % 2 === 0) return part;
    const [letter, index] = part.split("_");
    return make("span", {}, letter, make("sub", { textContent: index }));
  });
  const isDark = () => dark.matches && !isPrinting;
  const colourOf = (trace) => (isDark() ? trace.dark : trace.colour);
  const variable = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const faded = (hex, alpha) =>
    `rgba(${[1, 3, 5].map((k) => parseInt(hex.slice(k, k + 2), 16)).join(",")},${alpha})`;
  const DASH = { dashed: "6px,3px", steps: "6px,3px", dotted: "2px,3px" };

  // --- one panel -----------------------------------------------------------------------------------------------

  const curve = (trace) => ({
    type: "scatter", x: trace.x, y: trace.y, name: trace.label || trace.group,
    mode: trace.style === "points" ? "lines+markers" : "lines",
    line: {
      color: colourOf(trace), width: trace.style === "points" ? 1.4 : 2, dash: DASH[trace.style] || "solid",
      shape: trace.style === "steps" ? "hv" : "linear",
    },
    marker: { size: 7 },
    error_y: trace.style === "points" && trace.low
      ? { type: "data", symmetric: false, array: trace.y.map((y, i) => (trace.high[i] ?? y) - y),
          arrayminus: trace.y.map((y, i) => y - (trace.low[i] ?? y)), thickness: 1.2, width: 4 }
      : undefined,
    hovertemplate: "%{x:.4g}, %{y:.4g}",
  });

  const band = (trace, num) => ({
    type: "scatter", x: [...trace.x, ...[...trace.x].reverse()], y: [...trace.high, ...[...trace.low].reverse()],
    fill: "toself", fillcolor: faded(colourOf(trace), Math.min(0.15, 0.6 / num)), line: { width: 0 }, mode: "lines", hoverinfo: "skip",
  });

  const heat = (cells, top) => ({
    type: "heatmap", x: cells.cols, y: cells.rows, z: cells.values, zmin: 1, zmax: top, xgap: 2, ygap: 2,
    colorscale: ramps[isDark() ? "dark" : "light"].map((colour, i, all) => [i / (all.length - 1), colour]),
    showscale: false, hovertemplate: "%{y}, head %{x}: %{z:.3f}<extra></extra>",
  });

  // The numbers of a heat map, each black or white, whichever is read better on its cell (contrast of WCAG); none
  // where the cells are too small to read them: hovering says them.
  const LEAST = 24; // pixels
  const rgb = (hex) => [1, 3, 5].map((k) => parseInt(hex.slice(k, k + 2), 16));
  const luminance = (parts) => {
    const [red, green, blue] = parts.map((p) => (p / 255 <= 0.04045 ? p / 255 / 12.92 : ((p / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const inkOn = (parts) =>
    ((luminance(parts) + 0.05) ** 2 > 0.05 * 1.05 ? "#000000" : "#ffffff");
  const cellColour = (value, top) => {
    const ramp = ramps[isDark() ? "dark" : "light"].map(rgb);
    const place = Math.min(Math.max((value - 1) / Math.max(top - 1, 1e-9), 0), 1) * (ramp.length - 1);
    const i = Math.min(Math.floor(place), ramp.length - 2);
    return ramp[i].map((a, k) => a + (ramp[i + 1][k] - a) * (place - i));
  };
  const cellNumbers = (cells, top, element) => {
    const width = (element.clientWidth - 70) / cells.cols.length;
    const height = (element.clientHeight - 50) / cells.rows.length;
    if (width < LEAST || height < 0.6 * LEAST) return [];
    return cells.rows.flatMap((row, i) => cells.cols.map((col, j) => ({ // by place: "1" would be read as the second
      x: j, y: i, text: cells.values[i][j]?.toFixed(1) ?? "", showarrow: false,
      font: { size: 11, color: inkOn(cellColour(cells.values[i][j], top)) },
    })));
  };
  const topOf = (figure) => Math.max(...figure.panels.flatMap((p) => (p.cells ? p.cells.values.flat() : [])));

  // Curves that are shown at a position of the slider; null shows all.
  const isShown = (figure, trace, position) =>
    position === null || !trace.level || trace.group === figure.levels[position];

  const tracesOf = (figure, panel, position) => {
    if (panel.cells) return [heat(panel.cells, topOf(figure))];
    const shown = panel.traces.filter((trace) => isShown(figure, trace, position));
    const bands = shown.filter((trace) => trace.low && trace.style !== "points").map((trace) => band(trace, shown.length));
    return [...bands, ...shown.map(curve)];
  };

  const range = (axis, values) => {
    const scale = axis.log ? Math.log10 : (v) => v;
    const usable = values.filter((v) => v !== null && (!axis.log || v > 0));
    if (!usable.length) return undefined;
    let low = scale(axis.low ?? usable.reduce((a, b) => Math.min(a, b)));
    let high = scale(axis.high ?? usable.reduce((a, b) => Math.max(a, b)));
    const margin = 0.04 * (high - low || 1);
    if (axis.low === null) low -= margin;
    if (axis.high === null) high += margin;
    return [low, high];
  };

  const axisLayout = (axis, values) => ({
    title: { text: axis.markup, standoff: 6, font: { size: 12 } }, type: axis.log ? "log" : "linear",
    range: range(axis, values), gridcolor: variable("--grid"), linecolor: variable("--line"), showline: true,
    zeroline: false, tickfont: { size: 11 }, tickangle: 0, automargin: true, nticks: 5,
    ...(axis.ticks ? { tickvals: axis.ticks, ticktext: axis.ticks.map(String) } : {}),
    ...(axis.log && !axis.ticks ? { dtick: 1, exponentformat: "power" } : {}),
  });

  const layoutOf = (panel) => {
    const all = (key) => panel.traces.flatMap((t) => [...t[key], ...(key === "y" && t.high ? [...t.low, ...t.high] : [])]);
    const x = panel.cells ? { title: { text: panel.x.markup, standoff: 4, font: { size: 12 } }, type: "category", fixedrange: true, automargin: true, ticks: "", showgrid: false } : axisLayout(panel.x, all("x"));
    const y = panel.cells ? { autorange: "reversed", automargin: true, fixedrange: true, ticks: "", showgrid: false } : axisLayout(panel.y, all("y"));
    return {
      margin: { l: 10, r: 8, t: 6, b: 10 }, paper_bgcolor: "transparent", plot_bgcolor: "transparent",
      font: { color: variable("--ink"), family: "system-ui, DejaVu Sans, sans-serif" }, showlegend: false,
      hovermode: "closest", xaxis: x, yaxis: y,
      shapes: panel.marks.map((mark) => ({
        type: "line", x0: mark, x1: mark, y0: 0, y1: 1, yref: "paper", layer: "below", line: { color: variable("--line"), width: 1 },
      })),
    };
  };

  // Labels at the ends of curves, pushed apart (y in the units of the axis, or its logarithm), with a line where moved.
  const endLabels = (figure, panel, position, [low, high], height) => {
    const ends = panel.traces.filter((t) => t.atEnd && t.label && isShown(figure, t, position));
    const scale = panel.y.log ? Math.log10 : (v) => v;
    const gap = (14 / height) * (high - low);
    const sorted = ends.map((trace) => {
      const end = scale(trace.y[trace.y.length - 1]);
      return { trace, end, y: end };
    }).sort((a, b) => a.y - b.y);
    for (let i = 1; i < sorted.length; i += 1) sorted[i].y = Math.max(sorted[i].y, sorted[i - 1].y + gap);
    const over = sorted.length ? Math.max(0, sorted[sorted.length - 1].y - high) : 0;
    for (let i = sorted.length - 1; over && i >= 0; i -= 1) {
      sorted[i].y = Math.min(sorted[i].y, i === sorted.length - 1 ? high : sorted[i + 1].y - gap);
    }
    const moves = sorted.map(({ end, y }) => ((end - y) / (high - low)) * height); // in pixels, down
    const room = moves.some((move) => Math.abs(move) > 3) ? 14 : 3;
    return sorted.map(({ trace, end }, i) => ({
      x: 1, xref: "paper", y: end, yref: "y", text: trace.markup, xanchor: "left", yanchor: "middle", ax: room, ay: moves[i],
      showarrow: true, arrowhead: 0, arrowwidth: 1, arrowcolor: Math.abs(moves[i]) > 3 ? colourOf(trace) : "rgba(0,0,0,0)",
      standoff: 0, borderpad: 0, font: { size: 11, color: colourOf(trace) },
    }));
  };

  const draw = ({ element, panel, figure, state }) => {
    const options = { responsive: true, displaylogo: false, displayModeBar: false };
    const layout = layoutOf(panel);
    if (panel.cells) layout.annotations = cellNumbers(panel.cells, topOf(figure), element);
    if (panel.traces.some((trace) => trace.atEnd)) {
      const height = Math.max(60, element.clientHeight - 60);
      layout.annotations = endLabels(figure, panel, state.position, layout.yaxis.range, height);
      const longest = Math.max(...panel.traces.filter((trace) => trace.atEnd).map((trace) => trace.label.length));
      layout.margin.r = 16 + 6 * Math.min(longest, 9);
    }
    Plotly.react(element, tracesOf(figure, panel, state.position), layout, options);
  };

  // --- around the panels ---------------------------------------------------------------------------------------

  const legend = (figure) => {
    const named = new Map();
    for (const trace of figure.panels.flatMap((panel) => panel.traces)) {
      if (trace.label && !trace.atEnd && !named.has(trace.label)) named.set(trace.label, trace);
    }
    const list = make("ul", { className: "legend" });
    for (const [label, trace] of named) {
      const dashes = { dashed: "dashed", steps: "dashed", dotted: "dotted" }[trace.style] || "";
      const swatch = make("span", { className: `swatch ${dashes}` });
      swatch.style.color = colourOf(trace);
      swatch.trace = trace;
      list.append(make("li", {}, swatch, make("span", {}, ...words(label))));
    }
    return list;
  };

  const scale = (figure) => {
    const bar = make("div", { className: "bar" });
    bar.isScale = true;
    for (const [level, text] of figure.order.ticks) {
      const tick = make("span", { textContent: text });
      tick.style.left = `${100 * level}%`;
      bar.append(tick);
    }
    return make("div", { className: "scale" }, make("span", { textContent: figure.order.label }), bar);
  };

  const paint = () => {
    for (const swatch of document.querySelectorAll(".swatch")) swatch.style.color = colourOf(swatch.trace);
    for (const bar of document.querySelectorAll(".scale .bar")) {
      bar.style.background = `linear-gradient(to right, ${ramps[isDark() ? "dark" : "light"].join(",")})`;
    }
  };

  const controls = (figure, state, redraw, number) => {
    const last = figure.levels.length - 1;
    const id = `slider-${number}`;
    const slider = make("input", { type: "range", id, min: 0, max: last, step: 1, value: last });
    const shown = make("output", { htmlFor: id });
    const all = make("input", { type: "checkbox", checked: true, id: `all-${number}` });
    const nameOf = (position) => (figure.control.play ? `${figure.control.label} ${figure.levels[position]}` : figure.levels[position]);
    const update = () => {
      state.position = all.checked ? null : Number(slider.value);
      shown.textContent = all.checked ? "all" : nameOf(state.position);
      slider.setAttribute("aria-valuetext", nameOf(Number(slider.value)));
      redraw();
    };
    slider.addEventListener("input", () => { all.checked = false; update(); });
    all.addEventListener("change", () => { stop(); update(); });
    const box = make("div", { className: "controls" },
      make("label", { htmlFor: id, textContent: figure.control.label }), slider, shown,
      make("label", {}, all, " all at once"));
    let timer = null;
    const button = make("button", { type: "button", textContent: "Play" });
    const stop = () => { clearInterval(timer); timer = null; button.textContent = "Play"; };
    const advance = () => {
      if (Number(slider.value) >= last) return stop();
      slider.value = Number(slider.value) + 1;
      return update();
    };
    button.addEventListener("click", () => {
      if (timer !== null) return stop();
      if (all.checked || Number(slider.value) >= last) slider.value = 0;
      all.checked = false;
      update();
      button.textContent = "Pause";
      timer = setInterval(advance, calm.matches ? 1500 : 350);
      return undefined;
    });
    slider.addEventListener("pointerdown", stop);
    slider.addEventListener("keydown", stop);
    if (figure.control.play) box.prepend(button);
    update();
    return box;
  };

  const mount = (stage, number) => {
    const figure = figures[Number(stage.dataset.figure)];
    const state = { position: null };
    const mine = [];
    const grid = make("div", { className: "grid" });
    grid.style.setProperty("--cols", figure.cols);
    if (figure.cols === 1) grid.classList.add("single");
    Object.assign(grid, { tabIndex: 0 }).setAttribute("role", "group"); // it scrolls where the page is narrow
    grid.setAttribute("aria-label", `Panels of: ${figure.title}`);
    for (const panel of figure.panels) {
      const element = make("div", { className: "plot" });
      element.setAttribute("role", "img");
      element.setAttribute("aria-label", `${figure.title}: ${panel.title}`);
      const box = make("div", { className: panel.span > 1 ? "panel wide" : "panel" }, make("h4", {}, ...words(panel.title)), element);
      if (panel.span > 1 && window.innerWidth > 760) box.style.gridColumn = `span ${panel.span}`;
      grid.append(box);
      mine.push({ element, panel, figure, state, stage });
    }
    const redraw = () => mine.filter((plot) => plot.isDrawn).forEach(draw);
    if (figure.control && figure.levels.length > 1) stage.append(controls(figure, state, redraw, number));
    stage.append(grid, legend(figure));
    if (figure.order) stage.append(scale(figure));
    drawn.push(...mine);
    near.observe(stage);
  };

  // --- the page --------------------------------------------------------------------------------------------------

  const show = (plot) => {
    if (plot.isDrawn) return;
    plot.isDrawn = true;
    draw(plot);
  };
  const near = new IntersectionObserver((entries) => {
    const stages = new Set(entries.filter((entry) => entry.isIntersecting).map((entry) => entry.target));
    drawn.filter((plot) => stages.has(plot.stage)).forEach(show);
  }, { rootMargin: "400px" });
  document.querySelectorAll(".stage").forEach(mount);
  paint();
  const repaint = () => { paint(); drawn.filter((plot) => plot.isDrawn).forEach(draw); };
  dark.addEventListener("change", repaint);
  window.addEventListener("resize", () => drawn.filter((plot) => plot.isDrawn && plot.panel.cells).forEach(draw));
  window.addEventListener("beforeprint", () => {
    isPrinting = true;
    document.querySelectorAll("details").forEach((element) => { element.open = true; });
    drawn.forEach(show);
    repaint();
  });
  window.addEventListener("afterprint", () => { isPrinting = false; repaint(); });
})();
