// What the page does beside asking for news: the theme, the filter of regions, the keyboard.
"use strict";

const root = document.documentElement;
const darkened = matchMedia("(prefers-color-scheme: dark)");

function isDark() {
  return root.dataset.theme ? root.dataset.theme === "dark" : darkened.matches;
}

function showSwitches() {
  for (const button of document.querySelectorAll("[data-theme-switch]")) {
    button.hidden = false;
    button.textContent = isDark() ? "Light" : "Dark";
  }
  const filter = document.getElementById("filter");
  if (filter) filter.hidden = document.querySelectorAll(".regions > li").length < 4;
}

function filterRegions() {
  const filter = document.getElementById("filter");
  if (!filter) return;
  const wanted = filter.value.trim().toLowerCase();
  let shown = 0;
  for (const tile of document.querySelectorAll(".regions > li")) {
    tile.hidden = !tile.dataset.name.toLowerCase().includes(wanted);
    shown += !tile.hidden;
  }
  document.getElementById("none").hidden = shown > 0;
}

function prepare() {
  showSwitches();
  filterRegions();
  for (const log of document.querySelectorAll("pre.log:not([data-seen])")) {
    log.dataset.seen = "";
    log.scrollTop = log.scrollHeight; // the end is what is asked for
  }
}

document.addEventListener("click", (event) => {
  if (!event.target.closest("[data-theme-switch]")) return;
  root.dataset.theme = isDark() ? "light" : "dark";
  try {
    localStorage.setItem("trialfleet-theme", root.dataset.theme);
  } catch {
    // it lasts as long as the page then
  }
  showSwitches();
});
document.addEventListener("input", (event) => {
  if (event.target.id === "filter") filterRegions();
});
darkened.addEventListener("change", showSwitches);

// "/" filters; arrows go from tile to tile, as they lie on the screen.
document.addEventListener("keydown", (event) => {
  if (event.altKey || event.ctrlKey || event.metaKey) return;
  const filter = document.getElementById("filter");
  if (event.key === "/" && filter && document.activeElement !== filter) {
    event.preventDefault();
    filter.focus();
  } else if (event.key === "Escape" && document.activeElement === filter) {
    filter.value = "";
    filterRegions();
  } else if (event.key.startsWith("Arrow")) {
    goTo(event);
  }
});

function goTo(event) {
  const from = document.activeElement.closest(".region-tile");
  if (!from) return;
  const here = middle(from);
  const sideways = event.key === "ArrowLeft" || event.key === "ArrowRight";
  const sign = event.key === "ArrowLeft" || event.key === "ArrowUp" ? -1 : 1;
  const distance = (tile) => {
    const [x, y] = middle(tile);
    const [along, across] = sideways ? [x - here[0], y - here[1]] : [y - here[1], x - here[0]];
    return along * sign > 1 ? Math.abs(along) + 3 * Math.abs(across) : Infinity;
  };
  const tiles = [...document.querySelectorAll(".regions > li:not([hidden]) .region-tile")];
  const nearest = tiles.reduce((best, tile) => (distance(tile) < distance(best) ? tile : best), from);
  if (nearest === from) return;
  event.preventDefault();
  nearest.focus();
}

function middle(tile) {
  const box = tile.getBoundingClientRect();
  return [box.left + box.width / 2, box.top + box.height / 2];
}

// What the reader has opened stays open when the page is renewed.
let open = [];
document.body.addEventListener("htmx:beforeSwap", () => {
  open = [...document.querySelectorAll("details[open][id]")].map((each) => each.id);
});
document.body.addEventListener("htmx:afterSwap", () => {
  for (const id of open) document.getElementById(id)?.setAttribute("open", "");
});

// Nobody looks at a hidden page, so it asks for nothing.
document.body.addEventListener("htmx:beforeRequest", (event) => {
  if (document.hidden) event.preventDefault();
});
document.body.addEventListener("htmx:afterSettle", prepare);
const lost = document.getElementById("lost");
for (const name of ["htmx:sendError", "htmx:timeout", "htmx:responseError"]) {
  document.body.addEventListener(name, () => (lost.hidden = false));
}
document.body.addEventListener("htmx:afterOnLoad", () => (lost.hidden = true));
prepare();
