// Shared by all charts: the data, the theme's colours, how numbers are written, axes and tooltips.

const root = document.documentElement;
const coarse = matchMedia("(pointer: coarse)").matches;
const blocks = new Map();
const packed = new Map(); // the text of compressed blocks, by name

// The content of a block of JSON, parsed once. A region's block stores its trials in columns.
function block(id) {
  if (!blocks.has(id)) {
    const data = JSON.parse(packed.get(id) ?? document.getElementById(id).textContent);
    if (data.number) {
      data.trials = trialsOf(data);
      data.complete = data.trials.filter((trial) => trial.value !== null);
    }
    blocks.set(id, data);
  }
  return blocks.get(id);
}

function trialsOf(data) {
  return data.number.map((number, at) => ({
    number,
    state: data.state[at],
    value: data.value[at],
    params: data.params.map((column) => column[at]),
    error: data.errors[number],
    curve: data.curves[number],
  }));
}

// The reader's choice in the switch `kind` of a block.
function choice(kind, id) {
  return document.querySelector(`[data-switch="${kind}-${id}"] [aria-pressed=true]`)?.value;
}

function css(name) {
  return getComputedStyle(root)
    .getPropertyValue("--" + name)
    .trim();
}

// The theme's colours from poor (0) to good (1). Good has the most contrast to the page.
function ramp() {
  return d3.interpolateRgbBasis(css("ramp").split(" "));
}

function number(value, digits = 5) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e-4 && size < 1e7) {
    return value.toLocaleString("en", { maximumSignificantDigits: digits }).replace("-", "−");
  }
  return scientific(value, digits, Number);
}

// A number with a power of ten; `shortened` may change the factor before the power.
function scientific(value, digits, shortened = String) {
  const [mantissa, exponent] = value.toExponential(digits - 1).split("e");
  const before = String(shortened(mantissa)).replace("-", "−");
  return `${before} × ${powerOfTen(Number(exponent))}`;
}

const RAISED = "⁻⁰¹²³⁴⁵⁶⁷⁸⁹";

function powerOfTen(exponent) {
  return "10" + String(exponent).replace(/./g, (sign) => RAISED["-0123456789".indexOf(sign)]);
}

function duration(seconds) {
  const whole = Math.round(seconds);
  const two = (count) => String(Math.floor(count)).padStart(2, "0");
  if (seconds < 9.95) return `${Math.max(0, seconds).toFixed(1)} s`;
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${two(whole % 60)} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${two((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86400)} d ${two((whole % 86400) / 3600)} h`;
}

function oneLine(text, length) {
  const line = text.split(/\s+/).join(" ");
  if (line.length <= length) return line;
  const tail = Math.floor(length / 3);
  return `${line.slice(0, length - tail - 1)}…${line.slice(-tail)}`;
}

const ruler = document.createElement("canvas").getContext("2d");

function textWidth(text) {
  ruler.font = `12px ${css("text")}`;
  return ruler.measureText(text).width;
}

// A number with three digits, such as 262k; below a thousand, `text`.
function shortNumber(value, text) {
  return Math.abs(value) < 1000 ? text : d3.format(".3~s")(value).replace("-", "−");
}

// `text` cut in its middle so that it takes at most `width` pixels.
function fitted(text, width) {
  let length = text.length;
  let result = oneLine(text, length);
  while (length > 3 && textWidth(result) > width) result = oneLine(text, --length);
  return result;
}

// Ticks at round numbers for a linear or logarithmic axis: their places, and the function that writes
// a number of this axis.
function ticks(kind, low, high, most = 5, whole = false) {
  if (kind !== "log") {
    const places = d3.ticks(low, high, most).filter((at) => !whole || Number.isInteger(at));
    return { places, text: linearText(places) };
  }
  const exponents = d3.range(Math.floor(Math.log10(low)), Math.ceil(Math.log10(high)) + 1);
  const multiples = (steps) =>
    exponents
      .flatMap((exponent) => steps.map((step) => Number(`${step}e${exponent}`)))
      .filter((place) => place >= low && place <= high);
  const decades = multiples([1]);
  let places = decades.filter((_, at) => at % Math.ceil(decades.length / most) === 0);
  if (decades.length < 3) {
    const choices = [d3.range(1, 10), [1, 2, 5], [1, 3], [1]].map(multiples);
    places = choices.find((made) => made.length <= most + 1) ?? decades;
    if (places.length < 2) places = choices[2].length < 2 ? choices[0] : choices[2];
  }
  const powers = places.length > 1 && places.every((place) => decades.includes(place));
  const wide = places.some((place) => place < 1e-3 || place > 1e4);
  const power = (place) => powerOfTen(Math.round(Math.log10(place)));
  return { places, text: powers && wide ? power : (place) => number(place, 3) };
}

// All numbers of an axis have the same number of decimals; tiny or huge ones have a power of ten.
function linearText(places) {
  const size = d3.max(places, Math.abs) || 0;
  const step = places.length > 1 ? places[1] - places[0] : 0;
  if (!(step > 0) || size >= 1e7 || step < 1e-7) return (place) => number(place, 10);
  const decimals = d3.precisionFixed(step);
  return (place) => fixed(place, decimals);
}

function fixed(value, decimals) {
  return value
    .toLocaleString("en", { minimumFractionDigits: decimals, maximumFractionDigits: decimals })
    .replace(/^-(?=0(\.0*)?$)/, "")
    .replace("-", "−");
}

// The texts of an axis that is `room` pixels long. A text that would touch the one before is empty.
function apart({ scale, places, texts, room }) {
  if (room === Infinity) return texts;
  const along = scale.type === "log" ? Math.log : Number;
  const [low, high] = scale.domain.map(along);
  let free = -Infinity;
  return texts.map((text, at) => {
    const middle = (room * (along(places[at]) - low)) / (high - low);
    const half = textWidth(text) / 2;
    if (middle - half < free) return "";
    free = middle + half + 8;
    return text;
  });
}

function padded(kind, low, high, share = 0.06) {
  if (kind === "log") {
    const factor = low === high ? 1.1 : (high / low) ** share;
    return [low / factor, high * factor];
  }
  const room = low === high ? Math.abs(low) / 20 || 1 : share * (high - low);
  return [low - room, high + room];
}

// The layout of values, from `scale` and the reader's choice in the switches of a block: linear or
// logarithmic, with or without outliers.
function layout(values, scale, id, which = "") {
  const kind = choice(`${which}scale`, id) === "log" ? "log" : "linear";
  const near = choice(`${which}range`, id) === "near";
  const view = near && scale.view ? scale.view : d3.extent(values);
  const domain = padded(kind, ...view);
  const place = (kind === "log" ? d3.scaleLog() : d3.scaleLinear()).domain(view).clamp(true);
  return {
    kind,
    view,
    domain,
    outside: (value) => value < domain[0] || value > domain[1],
    clamp: (value) => Math.min(domain[1], Math.max(domain[0], value)),
    fraction: (value) => (view[0] === view[1] ? 1 : place(value)),
  };
}

// An axis of numbers: Plot's scale, the marks of its grid and texts, and the width of its texts. On a
// bottom axis that is `room` pixels long, texts don't touch. All texts are within `span`.
function numberAxis(side, { kind, domain }, choices = {}) {
  const { most = 5, grid = true, room = Infinity, whole = false, span = domain } = choices;
  const { places, text } = ticks(kind, ...span, most, whole);
  const scale = { type: kind, domain };
  const texts = apart({ scale, places, texts: places.map(text), room });
  return axisOf(side, scale, places, texts, grid);
}

function axisOf(side, scale, places, texts, grid) {
  const upright = side === "left";
  const [draw, lines] = upright ? [Plot.axisY, Plot.gridY] : [Plot.axisX, Plot.gridX];
  const marks = [
    draw(places, {
      anchor: side,
      tickSize: 0,
      tickPadding: 6,
      label: null,
      fill: "var(--muted)",
      text: (_, at) => texts[at],
    }),
  ];
  if (grid) marks.unshift(lines(places, { stroke: "var(--rule)", strokeOpacity: 1 }));
  return { scale, marks, width: d3.max(texts, textWidth) ?? 0 };
}

// A plot with a left and a bottom axis and their names.
function field({ width, height, left, bottom, names, marks, ...scales }) {
  return frame({
    width,
    height,
    margin: [34, 14, 42, left.width + 14],
    x: bottom.scale,
    y: left.scale,
    ...scales,
    marks: [
      ...left.marks,
      ...bottom.marks,
      axisName(names[0], "left"),
      axisName(names[1], "bottom"),
      ...marks,
    ],
  });
}

// A text next to each row of a chart: on the left or the right of the frame.
function besideRows(rows, side, y, text, more = {}) {
  const anchor = side === "left" ? { textAnchor: "end", dx: -10 } : { textAnchor: "start", dx: 12 };
  return Plot.text(rows, { y, text, frameAnchor: side, ...anchor, fill: "var(--muted)", ...more });
}

// A plot in the page's style; `height` includes the margins.
function frame({ width, height, margin, marks, ...scales }) {
  const [top, right, bottom, left] = margin;
  return Plot.plot({
    width,
    height,
    marginTop: top,
    marginRight: right,
    marginBottom: bottom,
    marginLeft: left,
    style: { fontSize: "12px", fontFamily: "inherit", background: "none", color: "var(--ink)" },
    ...scales,
    marks,
  });
}

// The name of an axis: above the left axis, or below the right end of the bottom axis.
function axisName(text, where) {
  const at =
    where === "left"
      ? { frameAnchor: "top-left", textAnchor: "start", dx: -34, dy: -24 }
      : { frameAnchor: "bottom-right", textAnchor: "end", dy: 32 };
  return Plot.text([oneLine(text, 40)], { ...at, fill: "var(--muted)" });
}

// The tooltip of the point under the pointer; `pointer` is Plot's, by x and y or by one of them.
function label(points, pointer, channels, lines) {
  const style = { fill: "var(--raised)", stroke: "var(--muted)", fontSize: 12, lineHeight: 1.3 };
  const title = (point) => lines(point).join("\n");
  return Plot.tip(points, pointer({ ...style, lineWidth: 24, ...channels, title }));
}

// A ring around the point under the pointer, and its tooltip.
function tip(points, channels, lines) {
  const pointer = { ...channels, maxRadius: coarse ? 60 : 40 };
  return [
    Plot.dot(points, Plot.pointer({ ...pointer, r: 7, stroke: "var(--ink)", strokeWidth: 1.5 })),
    label(points, Plot.pointer, { ...pointer, lineWidth: 22 }, lines),
  ];
}

function withRoles(data, { number }, name) {
  const roles = [number === data.best && "best", number === data.baseline && "default settings"];
  return [name, ...roles].filter(Boolean);
}

// The lines of a trial's tooltip in all charts.
function trialLines(data, trial) {
  const lines = [withRoles(data, trial, `trial ${trial.number}`).join(" · ")];
  if (trial.value !== null) lines.push(`${oneLine(data.metric, 40)}: ${number(trial.value, 6)}`);
  else lines.push(trial.error ? `${trial.state}: ${trial.error}` : trial.state);
  data.parameters.forEach((parameter, at) => {
    const text = parameterText(parameter, trial.params[at]);
    if (text !== null) lines.push(`${oneLine(parameter.name, 40)}: ${text}`);
  });
  return lines;
}

function parameterText(parameter, value) {
  if (value === null) return null;
  return parameter.choices ? parameter.choices[value] : number(value);
}

function element(tag, className, ...content) {
  const made = document.createElement(tag);
  made.className = className;
  made.append(...content);
  return made;
}

// The legend of a chart: the shape (a class), the theme's colour and the text of each mark.
function legend(items) {
  return element(
    "ul",
    "legend",
    ...items.map(([shape, color, text]) => {
      const sign = element("i", `mark ${shape}`);
      sign.style.color = `var(--${color})`;
      sign.setAttribute("aria-hidden", "true");
      return element("li", "", sign, text);
    }),
  );
}

function note(text) {
  return element("p", "muted small", text);
}

function count(many, thing) {
  return `${many.toLocaleString("en")} ${thing}${many === 1 ? "" : "s"}`;
}
