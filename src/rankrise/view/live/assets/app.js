// Which page the address asks for: #/ the list, #/run/ID one run, #/runs/ID,ID several over each other.
import { showCompare } from "./compare.js";
import { showList } from "./list.js";
import { showRun } from "./run.js";

const main = document.getElementById("main");
const crumbs = document.getElementById("crumbs");
const chosen = new Set(); // the runs that are ticked in the list
let leave = () => {};

const route = () => {
  leave();
  window.scrollTo(0, 0);
  crumbs.replaceChildren();
  document.title = "Runs · rankrise";
  const [, page, ids] = location.hash.split("/");
  if (page === "run" && ids) leave = showRun(main, crumbs, ids);
  else if (page === "runs" && ids) leave = showCompare(main, crumbs, ids.split(","));
  else leave = showList(main, chosen);
};

document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
document.addEventListener("keydown", (event) => {
  const isTyping = ["INPUT", "SELECT", "TEXTAREA"].includes(document.activeElement?.tagName);
  if (event.key === "Escape" && isTyping) document.activeElement.blur();
  else if (event.key === "Escape") location.hash = "#/";
});
window.addEventListener("hashchange", route);
route();
