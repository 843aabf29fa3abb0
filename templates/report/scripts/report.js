// Only in the report: unpacks the data, makes a region when it is opened, filters regions, prints.

// ---- The compressed data ----

// The data are lines of JSON: the first of all regions together, then one of each region.
async function unpack(text) {
  const letters = atob(text);
  const bytes = new Uint8Array(letters.length);
  for (let at = 0; at < letters.length; at++) bytes[at] = letters.charCodeAt(at);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const [all, ...regions] = (await new Response(stream).text()).split("\n");
  packed.set("regions-data", all);
  regions.forEach((region, at) => packed.set(`data-${at}`, region));
}

await unpack(document.getElementById("packed").textContent);

// Makes a region's content when the region is opened for the first time.
function fill(region) {
  const body = region.querySelector(".body");
  if (body.firstChild) return;
  body.innerHTML = block(`data-${region.dataset.region}`).html;
  watch(body);
}

// The table of a study's days. It has a row for each region, so it is part of the compressed data.
const days = document.getElementById("days-by-region");
if (days) {
  days.innerHTML = block("regions-data").days;
  watch(days);
}

document.addEventListener(
  "toggle",
  ({ target }) => {
    if (target.matches("details.region") && target.open) fill(target);
  },
  true, // capture, because `toggle` doesn't bubble
);

// ---- The filter: text and state ----

const regions = [...document.querySelectorAll("details.region")].sort(
  (a, b) => a.dataset.region - b.dataset.region,
);
const search = document.getElementById("filter");

function applyFilter() {
  const wanted = search.value.trim().toLowerCase();
  const group = document.querySelector("[data-chip][aria-pressed=true]").dataset.chip;
  showWanted((name, at) => {
    const grouped = !group || regions[at].dataset.group === group;
    return grouped && name.includes(wanted);
  });
  for (const each of document.querySelectorAll(".group")) {
    each.hidden = !each.querySelector(".region:not([hidden])");
  }
  const shown = `${regions.length - hidden.size} of ${regions.length} regions shown`;
  document.getElementById("shown").textContent = shown;
  redraw(isOfAll);
}

search?.addEventListener("input", applyFilter);

// ---- Opening regions ----

function anchor(slug) {
  return `#region-${encodeURIComponent(slug)}`;
}

function go(slug) {
  if (location.hash === anchor(slug)) openNamed();
  else location.hash = anchor(slug);
}

function openNamed() {
  let region;
  try {
    region = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  } catch {
    return; // not an address that this page wrote
  }
  if (!region?.matches("details.region")) return;
  if (region.hidden) {
    search.value = "";
    press(document.querySelector("[data-chip]"));
    applyFilter();
  }
  region.open = true;
  fill(region);
  region.scrollIntoView();
  region.querySelector("summary").focus({ preventScroll: true });
}

function openAll(open) {
  for (const region of regions) if (!region.hidden) region.open = open;
}

// Shows the table's row of the trial under the pointer in its region's chart.
function openPointed(picture) {
  const { number } = pointed(picture);
  const table = picture.closest(".region")?.querySelector("details.trials");
  const rows = [...(table?.querySelectorAll("tbody tr") ?? [])];
  const row = rows.find((each) => each.cells[0].textContent === String(number));
  if (!row) return;
  table.open = true;
  for (const each of rows) each.classList.toggle("shown", each === row);
  row.scrollIntoView({ block: "center" });
}

document.addEventListener("click", (event) => {
  const chip = event.target.closest?.("[data-chip]");
  if (chip) {
    press(chip);
    applyFilter();
  }
  const all = event.target.closest?.("[data-open-all]");
  if (all) openAll(all.dataset.openAll === "true");
});

// Printing uses the light theme and the paper's width, and draws every chart of the open regions.
let screenTheme;
addEventListener("beforeprint", () => {
  screenTheme = root.dataset.theme;
  root.dataset.theme = "light";
  root.classList.add("printing");
  for (const figure of document.querySelectorAll(".figure")) {
    if (!figure.closest("details:not([open])")) draw(figure);
  }
});
addEventListener("afterprint", () => {
  root.classList.remove("printing");
  if (screenTheme) root.dataset.theme = screenTheme;
  else delete root.dataset.theme;
  redraw();
});

watch();
for (const region of regions) if (region.open) fill(region);
addEventListener("hashchange", openNamed);
// after loading, because the browser's own jump to the region would take the focus
if (document.readyState === "complete") openNamed();
else addEventListener("load", openNamed);
