// The report and the live page: drawing of charts, sorting and filtering of tables, theme, input.
// A chart is drawn when it comes into view, and again when the theme, its width or a switch changes.

// The function that draws each chart, and the chart's approximate height. The height is reserved
// before the chart is drawn, so that the page doesn't jump.
const PICTURES = {
  overview: [overviewPicture, ({ rows }) => rows.length * rowHeight(rows) + 95],
  timeline: [
    timelinePicture,
    ({ rows }, place) => (place ? 200 : 76 + Math.min(640, 20 * rows.length)),
  ],
  history: [historyPicture, 320],
  curves: [curvesPicture, 300],
  parallel: [parallelPicture, 380],
  contour: [pairPicture, 360],
  scatter: [pairPicture, 360],
  slice: [slicePicture, 190],
};

const OF_ALL = ["overview", "timeline"]; // charts of all regions together
const LEAST_WIDTH = 240; // a chart for less width is drawn with this width and shrunk
const drawn = new Map(); // each drawn figure, and the width of its chart

function isOfAll(figure) {
  return OF_ALL.includes(figure.dataset.picture);
}

function draw(figure) {
  const { picture, block: id } = figure.dataset;
  const ofAll = isOfAll(figure);
  const data = ofAll ? block("regions-data")[picture] : block(id);
  const width = figure.clientWidth;
  if (!width) return;
  drawn.set(figure, width);
  const drawnWidth = Math.max(LEAST_WIDTH, width);
  const [made] = PICTURES[picture];
  figure.replaceChildren(...made(data, drawnWidth, ofAll ? picture : id, figure.dataset));
}

function redraw(chosen = () => true) {
  for (const figure of drawn.keys()) if (chosen(figure)) draw(figure);
}

// ---- Tables ----

// Sorts a table by a column. Numbers are descending at first, texts ascending; each further call
// reverses the order.
function sort(header, up = !isSortedUp(header)) {
  const table = header.closest("table");
  const numeric = header.dataset.kind === "number";
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

function isSortedUp(header) {
  const before = header.getAttribute("aria-sort");
  return before ? before === "ascending" : header.dataset.kind === "number";
}

// A cell's sort key: its `data-key`, otherwise its text; undefined for an empty cell.
function keyOf(cell) {
  const text = cell.textContent.trim();
  return cell.dataset.key ?? (text === "" || text === "–" ? undefined : text);
}

// Shows how many columns are beyond a table's right edge, and shades each edge with columns beyond it.
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

// On a phone, switches between all columns of a table and those that most readers want.
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

// ---- The filter of regions ----

const hidden = new Set(); // the regions that the filter hides, by their places in the run

// Shows only the regions for which `isWanted` is true; it gets a name in lower case and a place.
function showWanted(isWanted) {
  hidden.clear();
  block("regions-data").names.forEach((name, at) => {
    if (!isWanted(name.toLowerCase(), at)) hidden.add(at);
  });
  for (const each of document.querySelectorAll("[data-region]")) {
    each.hidden = hidden.has(Number(each.dataset.region));
  }
}

// ---- The theme ----

const dark = matchMedia("(prefers-color-scheme: dark)");

function isDark() {
  return root.dataset.theme ? root.dataset.theme === "dark" : dark.matches;
}

function showTheme() {
  const button = document.getElementById("theme");
  if (!button) return;
  button.hidden = false;
  button.textContent = isDark() ? "Light" : "Dark";
}

function changeTheme() {
  showTheme();
  redraw();
}

dark.addEventListener("change", changeTheme);

// ---- The reader's input ----

// Presses an option and releases the others of its group.
function press(option) {
  for (const each of option.closest("[role=group]").querySelectorAll("button")) {
    each.setAttribute("aria-pressed", String(each === option));
  }
}

function choose(option) {
  press(option);
  const { block: id } = option.closest("[data-switch]").dataset;
  redraw((figure) => figure.dataset.block === id);
}

document.addEventListener("click", (event) => {
  const header = event.target.closest?.(".sortable thead th button")?.closest("th");
  if (header) sort(header);
  const option = event.target.closest?.("[data-switch] button");
  if (option) choose(option);
  const more = event.target.closest?.("[data-more]");
  if (more) showColumns(more);
  if (event.target.closest?.("#theme")) {
    root.dataset.theme = isDark() ? "light" : "dark";
    changeTheme();
  }
  const picture = event.target.closest?.(".figure svg");
  if (picture && !coarse && !event.target.closest(".brush")) openPointed(picture);
});

// The trial under the pointer in a chart: its number, and its region's place.
function pointed(picture) {
  const found = picture.value?.trial ?? picture.value;
  const number = typeof found === "number" ? found : found?.number;
  return { number, region: picture.value?.region };
}

const seen = new IntersectionObserver(
  (entries) => {
    for (const { target } of entries.filter((entry) => entry.isIntersecting)) {
      seen.unobserve(target);
      draw(target);
      widths.observe(target);
    }
  },
  { rootMargin: "200px" },
);

function heightOf({ dataset: { picture, place } }) {
  const [, height] = PICTURES[picture];
  return typeof height === "number" ? height : height(block("regions-data")[picture], place);
}

// Sets up the content of the page, or of a part of it.
function watch(part = document) {
  root.classList.add("scripted");
  for (const each of part.querySelectorAll(".needs-script")) each.hidden = false;
  showTheme();
  part.querySelectorAll("[data-trials]").forEach(fillTrials);
  for (const figure of part.querySelectorAll(".figure")) {
    figure.style.minHeight = `${heightOf(figure)}px`;
    seen.observe(figure);
  }
  for (const scroller of part.querySelectorAll(".table > .scroll")) {
    scroller.addEventListener("scroll", () => hint(scroller), { passive: true });
    widths.observe(scroller);
  }
}
