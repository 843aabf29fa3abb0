// The live page's script: updates that keep the reader's choices, the filter of regions, the keyboard.

// ---- Updates ----

const EVERY = 1000; // milliseconds between requests for changes
const PATIENCE = 20000; // milliseconds until a request without an answer fails
const lost = document.getElementById("lost");
const waiting = new Map(); // figures under the pointer, and the data that they show

// A hidden page makes no requests.
async function renew() {
  const live = document.getElementById("live");
  if (!live?.dataset.next) return;
  const text = document.hidden ? "" : await ask(live.dataset.next);
  if (text) replace(live, text);
  setTimeout(renew, EVERY);
}

// The new content of the page; empty if it is unchanged, or if the request fails.
async function ask(address) {
  try {
    const answer = await fetch(address, { signal: AbortSignal.timeout(PATIENCE) });
    lost.hidden = answer.ok;
    return answer.ok ? await answer.text() : "";
  } catch {
    lost.hidden = false;
    return "";
  }
}

// Replaces the content, and keeps what the reader opened, sorted, pressed and typed, and the focus.
function replace(live, text) {
  const all = (selector) => [...document.querySelectorAll(selector)];
  const open = new Map(all("details[id]").map((each) => [each.id, each.open]));
  const sorted = all("[aria-sort]").map((each) => [each.textContent, isSortedUp(each)]);
  const pressed = all("[data-switch] [aria-pressed=true]").map(placeOf);
  const columns = all(".scroll").map((each) => each.scrollLeft);
  const pictures = new Map([...drawn.keys()].map((figure) => [nameOf(figure), drawnOf(figure)]));
  const filter = document.getElementById("filter");
  const place = [scrollX, scrollY];
  const focused = document.activeElement.id;
  live.outerHTML = text;
  if (filter) document.getElementById("filter")?.replaceWith(filter);
  for (const [id, isOpen] of open) document.getElementById(id)?.toggleAttribute("open", isOpen);
  for (const option of all("[data-switch] button")) {
    if (pressed.includes(placeOf(option))) press(option);
  }
  begin(pictures);
  for (const [title, up] of sorted) {
    const header = all(".sortable thead th").find((each) => each.textContent === title);
    if (header) sort(header, up);
  }
  all(".scroll").forEach((each, at) => (each.scrollLeft = columns[at] ?? 0));
  scrollTo(...place);
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
}

function placeOf(option) {
  return `${option.closest("[data-switch]").dataset.switch}=${option.value}`;
}

function nameOf({ dataset: { picture, block: id, place } }) {
  return [picture, id, place].join();
}

function dataOf(figure) {
  return document.getElementById(isOfAll(figure) ? "regions-data" : figure.dataset.block).textContent;
}

function drawnOf(figure) {
  return {
    nodes: [...figure.childNodes],
    width: drawn.get(figure),
    data: waiting.get(figure) ?? dataOf(figure),
    isPointedAt: figure.matches(":hover"),
  };
}

// Sets up the content of the page. A chart is redrawn if its data have changed; a chart under the
// pointer, after the pointer has left it.
function begin(pictures = new Map()) {
  blocks.clear();
  drawn.clear();
  waiting.clear();
  for (const observer of [seen, widths]) observer.disconnect();
  watch();
  filterRegions();
  const known = [...document.querySelectorAll(".figure")]
    .map((figure) => ({ figure, ...pictures.get(nameOf(figure)) }))
    .filter(({ nodes }) => nodes);
  for (const { figure, nodes, width } of known) {
    seen.unobserve(figure);
    figure.replaceChildren(...nodes);
    drawn.set(figure, width);
    widths.observe(figure);
  }
  for (const { figure, data, isPointedAt } of known) {
    if (data === dataOf(figure)) continue;
    if (isPointedAt) drawLater(figure, data);
    else draw(figure);
  }
  for (const log of document.querySelectorAll("pre.log")) {
    log.scrollTop = log.scrollHeight; // readers want the end of a log
  }
}

function drawLater(figure, data) {
  waiting.set(figure, data);
  const leave = () => waiting.delete(figure) && draw(figure);
  figure.addEventListener("pointerleave", leave, { once: true });
}

// ---- The filter and the keyboard ----

function filterRegions() {
  const filter = document.getElementById("filter");
  if (!filter) return;
  const wanted = filter.value.trim().toLowerCase();
  showWanted((name) => name.includes(wanted));
  const tiles = [...document.querySelectorAll(".regions > li")];
  filter.hidden = tiles.length < 4;
  document.getElementById("none").hidden = tiles.some((tile) => !tile.hidden);
}

// Opens the trial under the pointer in a chart; in a chart of all regions, the region.
function openPointed(picture) {
  const { number, region } = pointed(picture);
  const trial = document.getElementById(`trial-${number}`);
  const tile = document.querySelector(`.regions > [data-region="${region}"] a`);
  (trial ?? tile)?.click();
}

document.addEventListener("click", (event) => {
  if (!event.target.closest("#theme")) return;
  try {
    localStorage.setItem("trialfleet-theme", root.dataset.theme);
  } catch {
    // the browser stores nothing, so the choice lasts until the page is closed
  }
});
document.addEventListener("input", (event) => {
  if (event.target.id !== "filter") return;
  filterRegions();
  redraw(isOfAll);
});

// "/" goes to the filter; arrow keys go to the next tile in their direction.
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
  const tiles = [...document.querySelectorAll(".regions > li:not([hidden]) .region-tile")];
  const at = tiles.indexOf(document.activeElement);
  if (at < 0) return;
  const row = tiles.filter((tile) => tile.offsetTop === tiles[0].offsetTop).length;
  const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -row, ArrowDown: row };
  const tile = tiles[at + steps[event.key]];
  if (!tile) return;
  event.preventDefault();
  tile.focus();
}

begin();
setTimeout(renew, EVERY);
