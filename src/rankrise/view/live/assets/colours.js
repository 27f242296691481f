// Colours of layers, which have an order, and of runs, which have none; both for light and for dark pages.
import { RAMPS, RUNS } from "./palette.js";

const dark = matchMedia("(prefers-color-scheme: dark)");

export const onSchemeChange = (handle) => {
  dark.addEventListener("change", handle);
  return () => dark.removeEventListener("change", handle);
};

const channels = (colour) => [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));

// The colour of a place from 0 to 1 in an order.
export const shade = (level) => {
  const ramp = RAMPS[dark.matches ? "dark" : "light"];
  const place = Math.min(Math.max(level, 0), 1) * (ramp.length - 1);
  const i = Math.min(Math.floor(place), ramp.length - 2);
  const [a, b] = [channels(ramp[i]), channels(ramp[i + 1])];
  return `#${a.map((value, k) => Math.round(value + (b[k] - value) * (place - i)).toString(16).padStart(2, "0")).join("")}`;
};

export const ofLayer = (place, num) => shade(num > 1 ? place / (num - 1) : 0.5);

export const ofRun = (place) => {
  const colours = RUNS[dark.matches ? "dark" : "light"];
  return colours[place % colours.length];
};

// Black or white, whichever is read better on a colour.
export const inkOn = (colour) => {
  const [r, g, b] = channels(colour).map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000000" : "#ffffff";
};
