// Elements. Text from anywhere is set as text only; nothing here takes markup.
const SVG = "http://www.w3.org/2000/svg";

const fill = (element, properties, children) => {
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
};

export const h = (tag, properties = {}, ...children) => fill(document.createElement(tag), properties, children);
export const s = (tag, properties = {}, ...children) => fill(document.createElementNS(SVG, tag), properties, children);

// A fraction in a few digits; a whole number, such as a step or a count of parameters, with all of them.
export const number = (value, digits = 3) => {
  if (value === null || value === undefined) return "–";
  if (Number.isInteger(value)) return String(value);
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(Math.max(0, digits - 2)).replace(/\.?0+e/, "e");
  return String(+value.toPrecision(digits));
};

// A rank, always with two decimals, so that a column of them is easy to compare.
export const fixed = (value) => (value === null || value === undefined ? "–" : value.toFixed(2));

export const count = (value) => (value === null || value === undefined ? "–" : value.toLocaleString("en"));

export const ago = (seconds) => {
  const passed = Math.max(0, Date.now() / 1000 - seconds);
  for (const [unit, size] of [["d", 86400], ["h", 3600], ["min", 60]]) {
    if (passed >= size) return `${Math.floor(passed / size)} ${unit} ago`;
  }
  return passed < 5 ? "now" : `${Math.floor(passed)} s ago`;
};

const STATES = {
  running: "A process is writing this run now.",
  finished: "This run was closed.",
  stopped: "This run was cut off: it was not closed, and no process writes it.",
  damaged: "This run cannot be read.",
  removed: "This run is no longer in the folder.",
};

export const badge = (state) =>
  h("span", { class: `badge ${state in STATES ? state : "damaged"}`, title: STATES[state] ?? "" }, state);

export const select = (label, options, value, change) => {
  const list = h("select", { onchange: () => change(list.value) }, options.map(([key, text]) => h("option", { value: key }, text)));
  list.value = value;
  return h("label", {}, label, " ", list);
};
