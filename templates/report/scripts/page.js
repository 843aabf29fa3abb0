// Draws pictures when they come into view and anew when the theme, the width, the filter or a
// switch changes; filters and sorts; makes what a region has when it is opened; opens the one that
// the address names.

const PICTURES = {
  overview: overviewPicture,
  timeline: timelinePicture,
  costs: costsPicture,
  history: historyPicture,
  importance: importancePicture,
  curves: curvesPicture,
  parallel: parallelPicture,
  contour: (...given) => pairPicture(...given, "contour"),
  scatter: (...given) => pairPicture(...given, "scatter"),
  slice: slicePicture,
};

const OF_ALL = ["overview", "timeline", "costs"]; // pictures of all regions together
const LEAST_WIDTH = 240; // narrower ones are drawn so wide and shrunk
const drawn = new Map(); // figure to the width that it was drawn with

function draw(figure) {
  const { picture, place, block: id } = figure.dataset;
  const ofAll = OF_ALL.includes(picture);
  const data = ofAll ? block("regions-data")[picture] : block(id);
  const width = figure.clientWidth;
  if (!width) return;
  drawn.set(figure, width);
  const drawnWidth = Math.max(LEAST_WIDTH, width);
  const given = place === undefined ? [] : [place];
  figure.replaceChildren(...PICTURES[picture](data, drawnWidth, ofAll ? picture : id, ...given));
}

function redraw(chosen = () => true) {
  for (const figure of drawn.keys()) if (chosen(figure)) draw(figure);
}

// ---- The filter: text and state ----

const filter = { text: "", group: "" };
const regions = [...document.querySelectorAll("details.region")].sort(
  (a, b) => a.dataset.region - b.dataset.region,
);
const hidden = new Set();

function shown(region) {
  return !hidden.has(region);
}

function applyFilter() {
  const wanted = filter.text.trim().toLowerCase();
  regions.forEach((region, at) => {
    const named = block("regions-data").names[at].toLowerCase().includes(wanted);
    const grouped = !filter.group || region.dataset.group === filter.group;
    if (named && grouped) hidden.delete(at);
    else hidden.add(at);
  });
  for (const each of document.querySelectorAll("[data-region]")) {
    each.hidden = hidden.has(Number(each.dataset.region));
  }
  for (const group of document.querySelectorAll(".group")) {
    group.hidden = !group.querySelector(".region:not([hidden])");
  }
  for (const chip of document.querySelectorAll("[data-chip]")) {
    chip.setAttribute("aria-pressed", String(chip.dataset.chip === filter.group));
  }
  const told = document.getElementById("shown");
  if (told) told.textContent = `${regions.length - hidden.size} of ${regions.length} regions shown`;
  redraw((figure) => OF_ALL.includes(figure.dataset.picture));
}

function setFilter(change) {
  Object.assign(filter, change);
  applyFilter();
}

const search = document.getElementById("filter");
search?.addEventListener("input", () => setFilter({ text: search.value }));

function clearFilter() {
  if (search) search.value = "";
  setFilter({ text: "", group: "" });
}

// ---- Opening regions ----

function anchor(slug) {
  return `#region-${encodeURIComponent(slug)}`;
}

function go(slug) {
  if (location.hash === anchor(slug)) openNamed();
  else location.hash = anchor(slug);
}

function openNamed() {
  let id = location.hash.slice(1);
  try {
    id = decodeURIComponent(id);
  } catch {
    return;
  }
  const region = document.getElementById(id);
  if (!region || !region.matches("details.region")) return;
  if (region.hidden) clearFilter();
  region.open = true;
  fill(region);
  region.scrollIntoView();
  region.querySelector("summary").focus({ preventScroll: true });
}

function openAll(open) {
  for (const region of regions) if (!region.hidden) region.open = open;
}

// Makes what a region has, once: it is kept compressed until then.
function fill(region) {
  const body = region.querySelector(".body");
  if (body.firstChild) return;
  body.innerHTML = block(`data-${region.dataset.region}`).html;
  body.querySelectorAll("[data-trials]").forEach(fillTrials);
  watch(body);
}

// Shows the row of the trial that is pointed at in a picture.
function showTrial(picture) {
  const trial = picture.value?.trial ?? picture.value;
  const number = typeof trial === "number" ? trial : trial?.number;
  const table = picture.closest(".region").querySelector("details.trials");
  const rows = [...(table?.querySelectorAll("tbody tr") ?? [])];
  const row = rows.find((each) => each.cells[0].textContent === String(number));
  if (!row) return;
  table.open = true;
  for (const each of rows) each.classList.toggle("shown", each === row);
  row.scrollIntoView({ block: "center" });
}

// ---- Tables ----

function sort(header) {
  const table = header.closest("table");
  const numeric = header.dataset.kind === "number";
  const before = header.getAttribute("aria-sort");
  const up = before ? before === "descending" : !numeric;
  const column = header.cellIndex;
  const keyed = [...table.tBodies[0].rows].map((row) => [keyOf(row.cells[column]), row]);
  const text = new Intl.Collator("en", { numeric: true });
  keyed.sort(([a], [b]) => {
    if (a === undefined || b === undefined) return (a === undefined) - (b === undefined);
    return (up ? 1 : -1) * (numeric ? a - b : text.compare(a, b));
  });
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", up ? "ascending" : "descending");
  table.tBodies[0].append(...keyed.map(([, row]) => row));
}

// What a cell sorts by: its key, else its text; nothing where it says nothing.
function keyOf(cell) {
  const text = cell.textContent.trim();
  return cell.dataset.key ?? (text === "" || text === "–" ? undefined : text);
}

// Says how many columns a table has beyond its edges, and shades those edges.
function hint(scroller) {
  const box = scroller.getBoundingClientRect();
  const cells = [...scroller.querySelectorAll("thead th")].map((cell) =>
    cell.getBoundingClientRect(),
  );
  const beyond = cells.filter((cell) => cell.right > box.right + 8).length;
  scroller.parentElement.classList.toggle("more-left", scroller.scrollLeft > 2);
  scroller.parentElement.classList.toggle("more-right", beyond > 0);
  scroller.parentElement.querySelector(".hint").textContent =
    beyond > 0 ? `${count(beyond, "more column")} →` : "";
}

// On a phone: all columns of a table, or those that most readers want.
function showColumns(button) {
  const table = document.getElementById(button.getAttribute("aria-controls"));
  const all = table.classList.toggle("all");
  button.setAttribute("aria-expanded", String(all));
  button.textContent = all ? "Fewer columns" : `${button.dataset.more} more columns`;
  hint(table.closest(".scroll"));
}

const widths = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    if (target.matches(".scroll")) hint(target);
    else if (drawn.has(target) && drawn.get(target) !== target.clientWidth) draw(target);
  }
});
// ---- The theme ----

const dark = matchMedia("(prefers-color-scheme: dark)");
const button = document.getElementById("theme");

function isDark() {
  return root.dataset.theme ? root.dataset.theme === "dark" : dark.matches;
}

function theme(name) {
  if (name) root.dataset.theme = name;
  button.textContent = isDark() ? "Light" : "Dark";
  redraw();
}

button.hidden = false;
button.addEventListener("click", () => theme(isDark() ? "light" : "dark"));
dark.addEventListener("change", () => theme());
theme();

// ---- What the reader does ----

// One of a switch's options is pressed at a time.
function choose(option) {
  const group = option.closest("[data-switch]");
  for (const each of group.querySelectorAll("button")) {
    each.setAttribute("aria-pressed", String(each === option));
  }
  redraw((figure) => figure.dataset.block === group.dataset.block);
}

document.addEventListener("click", (event) => {
  const header = event.target.closest?.(".sortable thead th button")?.closest("th");
  if (header) sort(header);
  const chip = event.target.closest?.("[data-chip]");
  if (chip) setFilter({ group: chip.dataset.chip });
  const option = event.target.closest?.("[data-switch] button");
  if (option) choose(option);
  const more = event.target.closest?.("[data-more]");
  if (more) showColumns(more);
  const all = event.target.closest?.("[data-open-all]");
  if (all) openAll(all.dataset.openAll === "true");
  const picture = event.target.closest?.(".region .figure svg");
  if (picture && !coarse && !event.target.closest(".brush")) showTrial(picture);
});

document.addEventListener("toggle", ({ target }) => {
  if (target.matches("details.region") && target.open) fill(target);
}, true); // it doesn't bubble

const seen = new IntersectionObserver(
  (entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      seen.unobserve(entry.target);
      draw(entry.target);
      widths.observe(entry.target);
    }
  },
  { rootMargin: "200px" },
);

// Draws the pictures of a part of the page as they come into view, and shows what scripts need.
function watch(part) {
  for (const figure of part.querySelectorAll(".figure")) seen.observe(figure);
  for (const each of part.querySelectorAll(".needs-script")) each.hidden = false;
  for (const scroller of part.querySelectorAll(".scroll")) {
    scroller.addEventListener("scroll", () => hint(scroller), { passive: true });
    widths.observe(scroller);
  }
}

root.classList.add("scripted");
watch(document);
for (const region of regions) if (region.open) fill(region);

// On paper: light, as wide as the paper, every picture of the regions that are open.
let screenTheme;
addEventListener("beforeprint", () => {
  screenTheme = root.dataset.theme;
  root.dataset.theme = "light";
  root.classList.add("printing");
  for (const figure of document.querySelectorAll(".figure")) if (!figure.closest("details:not([open])")) draw(figure);
});
addEventListener("afterprint", () => {
  root.classList.remove("printing");
  if (screenTheme) root.dataset.theme = screenTheme;
  else delete root.dataset.theme;
  redraw();
});

addEventListener("hashchange", openNamed);
// not before: the browser's own jump would take the focus
if (document.readyState === "complete") openNamed();
else addEventListener("load", openNamed);
