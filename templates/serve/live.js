// What the live page alone has: it keeps what the reader did when it is renewed; the filter of
// regions, the keyboard.

// ---- Renewal ----

// What a renewal would undo: what is open, sorted and pressed, and the pictures that are drawn.
let before;
const waiting = new Map(); // figures that the pointer is at, and the data that they were drawn of

function dataOf(figure) {
  return document.getElementById(isOfAll(figure) ? "regions-data" : figure.dataset.block).textContent;
}

function nameOf({ dataset: { picture, block: id, place } }) {
  return [picture, id, place].join();
}

document.body.addEventListener("htmx:beforeSwap", () => {
  const all = (selector) => [...document.querySelectorAll(selector)];
  before = {
    open: new Map(all("details[id]").map((each) => [each.id, each.open])),
    sorted: all("[aria-sort]").map((each) => [each.textContent, isSortedUp(each)]),
    pressed: all("[data-switch] [aria-pressed=true]").map((option) => [
      option.closest("[data-switch]").dataset.switch,
      option.value,
    ]),
    scrolled: all(".scroll").map((each) => each.scrollLeft),
    pictures: new Map(
      [...drawn].map(([figure, width]) => {
        const data = waiting.get(figure) ?? dataOf(figure);
        const isPointedAt = figure.matches(":hover");
        return [nameOf(figure), { width, data, isPointedAt, nodes: [...figure.childNodes] }];
      }),
    ),
  };
});

document.body.addEventListener("htmx:afterSwap", () => {
  for (const [id, open] of before.open) document.getElementById(id)?.toggleAttribute("open", open);
  for (const [title, up] of before.sorted) {
    const headers = [...document.querySelectorAll(".sortable thead th")];
    const header = headers.find((each) => each.textContent === title);
    if (header) sort(header, up);
  }
  for (const [name, value] of before.pressed) {
    const options = [...document.querySelectorAll(`[data-switch="${CSS.escape(name)}"] button`)];
    if (options.some((each) => each.value === value)) {
      for (const each of options) each.setAttribute("aria-pressed", String(each.value === value));
    }
  }
  document.querySelectorAll(".scroll").forEach((each, at) => {
    each.scrollLeft = before.scrolled[at] ?? 0;
  });
  begin();
});

// Looks after what is on the page now. A picture that was drawn stays as it is while its data do;
// one that the pointer is at is drawn anew when it has left.
function begin() {
  blocks.clear();
  drawn.clear();
  waiting.clear();
  for (const observer of [seen, widths]) observer.disconnect();
  watch();
  for (const figure of document.querySelectorAll(".figure")) {
    const known = before?.pictures.get(nameOf(figure));
    if (!known) continue;
    seen.unobserve(figure);
    figure.replaceChildren(...known.nodes);
    drawn.set(figure, known.width);
    widths.observe(figure);
    if (known.data === dataOf(figure)) continue;
    if (known.isPointedAt) waitFor(figure, known.data);
    else draw(figure);
  }
  filterRegions();
  for (const log of document.querySelectorAll("pre.log")) {
    log.scrollTop = log.scrollHeight; // the end is what is asked for
  }
}

function waitFor(figure, data) {
  waiting.set(figure, data);
  const leave = () => waiting.delete(figure) && draw(figure);
  figure.addEventListener("pointerleave", leave, { once: true });
}

// Nobody looks at a hidden page, so it asks for nothing.
document.body.addEventListener("htmx:beforeRequest", (event) => {
  if (document.hidden) event.preventDefault();
});
const lost = document.getElementById("lost");
for (const name of ["htmx:sendError", "htmx:timeout", "htmx:responseError"]) {
  document.body.addEventListener(name, () => (lost.hidden = false));
}
document.body.addEventListener("htmx:afterOnLoad", () => (lost.hidden = true));

// ---- The filter and the keyboard ----

function isWanted(name) {
  const wanted = document.getElementById("filter")?.value ?? "";
  return name.toLowerCase().includes(wanted.trim().toLowerCase());
}

// Whether a region's jobs are drawn, by its place in the run.
function shown(region) {
  return isWanted(block("regions-data").names[region]);
}

function filterRegions() {
  const tiles = [...document.querySelectorAll(".regions > li")];
  const filter = document.getElementById("filter");
  if (!filter) return;
  filter.hidden = tiles.length < 4;
  for (const tile of tiles) tile.hidden = !isWanted(tile.dataset.name);
  document.getElementById("none").hidden = tiles.some((tile) => !tile.hidden);
}

// Opens the trial that is pointed at in a picture; in one of all regions its region.
function openPointed(picture) {
  const { number, region } = pointed(picture);
  const trial = document.getElementById(`trial-${number}`);
  const name = trial ? null : block("regions-data").names[region];
  const tile = document.querySelector(`.regions > [data-name="${CSS.escape(name)}"] a`);
  (trial ?? tile)?.click();
}

document.addEventListener("click", (event) => {
  if (!event.target.closest("#theme")) return;
  try {
    localStorage.setItem("trialfleet-theme", root.dataset.theme);
  } catch {
    // it lasts as long as the page then
  }
});
document.addEventListener("input", (event) => {
  if (event.target.id !== "filter") return;
  filterRegions();
  redraw(isOfAll);
});

// "/" filters; arrows go from tile to tile, as they lie on the screen.
document.addEventListener("keydown", (event) => {
  if (event.altKey || event.ctrlKey || event.metaKey) return;
  const filter = document.getElementById("filter");
  if (event.key === "/" && filter && document.activeElement !== filter) {
    event.preventDefault();
    filter.focus();
  } else if (event.key === "Escape" && document.activeElement === filter) {
    filter.value = "";
    filter.dispatchEvent(new Event("input", { bubbles: true }));
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

begin();
