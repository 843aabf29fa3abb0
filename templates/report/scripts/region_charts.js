// The charts of all regions together: tuned against default settings, and the timeline of jobs.

const ROW = 24;

function rowHeight(rows) {
  return rows.length > 30 ? 19 : ROW;
}

const OVERVIEW_HEAD = 26; // pixels above the rows

// A row per region: its name with a link to the region, the marks that `marks` draws along an axis of
// numbers, and its gain.
function rowsPicture(rows, { width, high, scale, title, tipAt, marks }) {
  const names = Math.min(0.34 * width, 220, d3.max(rows, (row) => textWidth(row.name)) + 14);
  const side = Math.max(44, d3.max(rows, (row) => textWidth(row.gain_text)) + 16);
  const axis = { most: width < 500 ? 4 : 8, room: width - names - side };
  const bottom = numberAxis("bottom", scale, axis);
  const y = (row) => String(row.region);
  const picture = frame({
    width,
    height: rows.length * high + OVERVIEW_HEAD + 44,
    margin: [OVERVIEW_HEAD, side, 44, names],
    x: bottom.scale,
    y: { type: "band", domain: rows.map(y), axis: null, padding: 0 },
    marks: [
      ...bottom.marks,
      ...(rows.length > 15 ? numberAxis("top", scale, { ...axis, grid: false }).marks : []),
      ...marks(y),
      besideRows(rows, "left", y, (row) => fitted(row.name, names - 14), {
        href: (row) => anchor(row.slug),
        fill: "currentColor",
      }),
      besideRows(rows, "right", y, "gain_text", {
        fill: (row) => (row.gain < 0 ? "var(--failed)" : "var(--muted)"),
      }),
      axisName(title, "bottom"),
      label(rows, Plot.pointerY, { x: tipAt, y }, overviewLines),
    ],
  });
  picture.addEventListener("click", () => picture.value && !coarse && go(picture.value.slug));
  return picture;
}

// Tuned against default settings: a row per region that the filter shows, the greatest gain first.
function overviewPicture(data, width, id) {
  const gains = choice("show", id) === "gain";
  const scale = gains ? data.gainScale : data.scale;
  for (const [kind, ofGains] of [["scale", false], ["range", false], ["gain-range", true]]) {
    const group = document.querySelector(`[data-switch="${kind}-${id}"]`);
    if (group) group.hidden = gains !== ofGains;
  }
  const rows = data.rows.filter((row) => !hidden.has(row.region));
  rows.sort((a, b) => (a.gain === null) - (b.gain === null) || b.gain - a.gain);
  if (!rows.length) return [note("No shown region has a completed trial.")];
  const from = (row) => (gains ? (row.gain === null ? null : 0) : row.default);
  const to = (row) => (gains ? row.gain : row.tuned);
  const values = rows.flatMap((row) => [from(row), to(row)]).filter((value) => value !== null);
  const all = layout(values.length ? values : [0], scale, id, gains ? "gain-" : "");
  const tone = (row) => `var(--${row.gain < 0 ? "failed" : "tuned"})`;
  const place = (value) => (row) => (value(row) === null ? null : all.clamp(value(row)));
  const compared = rows.filter((row) => row.gain !== null);
  const beyond = rows.filter((row) =>
    [from(row), to(row)].some((v) => v !== null && all.outside(v)),
  );
  const better = gains ? "positive is better" : `${data.better} is better`;
  const picture = rowsPicture(rows, {
    width,
    high: rowHeight(data.rows),
    scale: all,
    title: `${oneLine(data.metric, 30)}${gains ? ", gain" : ""} (${better})`,
    tipAt: place((row) => to(row) ?? from(row)),
    marks: (y) => [
      Plot.ruleY(rows, { y, stroke: "var(--rule)" }),
      gains ? Plot.ruleX([0], { stroke: "var(--default)" }) : null,
      Plot.link(compared, {
        x1: place(from),
        x2: place(to),
        y,
        stroke: tone,
        strokeOpacity: 0.5,
        strokeWidth: 4,
      }),
      Plot.dot(rows, {
        x: place(from),
        y,
        r: gains ? 0 : 5,
        fill: "var(--surface)",
        stroke: "var(--default)",
        strokeWidth: 2,
      }),
      Plot.dot(rows, { x: place(to), y, r: 5.5, fill: tone }),
      besideRows(["gain"], "top-right", undefined, String, { dy: -15 }),
    ],
  });
  const signs = [["dot", "tuned", "tuned settings"]];
  if (!gains) signs.unshift(["ring", "default", "default settings"]);
  if (compared.some((row) => row.gain < 0)) signs.push(["dot", "failed", "tuned is worse"]);
  const result = [legend(signs), picture];
  if (beyond.length)
    result.push(note(`${count(beyond.length, "region")} beyond this view, at its edge.`));
  return result;
}

function overviewLines(row) {
  return [
    oneLine(row.name, 60),
    `default settings: ${number(row.default)}`,
    `tuned settings: ${number(row.tuned)}`,
    ...(row.gain === null ? [] : [`gain: ${row.gain_text}`]),
    ...(row.final === null ? [] : [`full training: ${number(row.final)}`]),
  ];
}

const STATE_COLORS = {
  complete: "tuned",
  "full training": "default",
  gate: "good",
  failed: "failed",
  running: "running",
};
const LOST = ["failed attempt", "cut off"]; // executions of a job that ran again later

// The timeline: a group of rows per machine, and a bar per job over the time of day. A region's own
// chart shows only its jobs.
function timelinePicture(data, width, id, { place }) {
  const bars = barsOf(data, place);
  if (!bars.length) return [note("The times of the shown jobs are unknown.")];
  const used = [...new Set(bars.map((bar) => bar.row))].sort((a, b) => a - b);
  const size = Math.max(4, Math.min(20, 640 / used.length));
  const position = new Map(used.map((row, at) => [row, at]));
  const machines = d3
    .groups(used, (row) => data.rows[row])
    .map(([name, rows]) => ({ name, top: position.get(rows[0]), many: rows.length }));
  const hosts = machines.map(({ name }) => name.split(".")[0]);
  if (new Set(hosts).size === hosts.length && !hosts.some((host) => /^\d*$/.test(host)))
    machines.forEach((machine, at) => (machine.name = hosts[at])); // the tooltip has the whole name
  const named = machines.filter(({ many }) => many * size >= 11);
  const left = Math.min(0.36 * width, (d3.max(named, ({ name }) => textWidth(name)) ?? -8) + 12);
  const start = d3.min(bars, (bar) => bar.from),
    end = Math.max(start + 1, d3.max(bars, (bar) => bar.to));
  const axis = timeAxis(data, start, end, width - left - 12);
  const color = (state) => STATE_COLORS[state] ?? "muted";
  const sides = {
    x1: (bar) => axis.place(bar.from),
    x2: (bar) => Math.max(axis.place(bar.to), axis.place(bar.from) + axis.domain[1] / 900),
    y1: (bar) => position.get(bar.row) + 0.1,
    y2: (bar) => position.get(bar.row) + 0.9,
  };
  const middle = (bar) => (axis.place(bar.from) + axis.place(bar.to)) / 2;
  const picture = frame({
    width,
    height: used.length * size + 54,
    margin: [8, 12, 46, left],
    x: { type: "linear", domain: axis.domain, axis: null },
    y: { type: "linear", domain: [used.length, 0], axis: null },
    marks: [
      ...axis.marks,
      Plot.ruleY(machines.slice(1), { y: "top", stroke: "var(--rule)" }),
      Plot.rect(bars, {
        ...sides,
        fill: (bar) => `var(--${color(bar.state)})`,
        fillOpacity: 0.75,
        stroke: "var(--surface)",
        strokeWidth: size > 8 ? 1 : 0.3,
      }),
      Plot.rect(
        bars.filter((bar) => LOST.includes(bar.state)),
        {
          ...sides,
          fill: "none",
          stroke: "var(--failed)",
          strokeDasharray: "3,2",
          className: "lost",
        },
      ),
      besideRows(
        named,
        "left",
        ({ top, many }) => top + many / 2,
        ({ name }) => fitted(name, left - 12),
      ),
      axisName("UTC", "bottom"),
      label(
        bars,
        Plot.pointer,
        { x: middle, px: middle, y: (bar) => position.get(bar.row) + 0.5 },
        (bar) => barLines(data, bar),
      ),
    ],
  });
  const signs = [...new Set(bars.map((bar) => bar.state))]
    .sort()
    .map((state) => [LOST.includes(state) ? "lost bar" : "bar", color(state), state]);
  const paused = d3.sum(axis.pauses, ([from, to]) => to - from);
  if (paused) signs.push(["solid bar", "rule", `paused for ${duration(paused)}, not to scale`]);
  return [legend(signs), picture];
}

// The jobs of the region at `place`, or without a place, of all regions that the filter shows.
function barsOf(data, place) {
  const isDrawn = (at) => (place === undefined ? !hidden.has(at) : at === Number(place));
  return data.bars
    .map(([region, trial, state, from, to, row]) => {
      return { region, trial, state: data.states[state], from, to, row };
    })
    .filter((bar) => isDrawn(bar.region));
}

// The axis of the time of day from `start` to `end`. A pause takes as much room as a thirtieth of the
// time without pauses, at most.
function timeAxis(data, start, end, room) {
  const pauses = data.pauses.filter(([from, to]) => from > start && to < end);
  const active = end - start - d3.sum(pauses, ([from, to]) => to - from);
  const most = active / 30;
  const place = (at) => {
    const cuts = pauses.map(([from, to]) => {
      const part = Math.min(1, Math.max(0, (at - from) / (to - from)));
      return part * Math.max(0, to - from - most);
    });
    return at - start - d3.sum(cuts);
  };
  const domain = [0, place(end)];
  const time = (seconds) => new Date(1000 * (data.start + seconds));
  const text = clock(end - start);
  const step = d3.utcTickInterval(time(0), time(domain[1]), Math.max(3, room / 110));
  const parts = [start, ...pauses.flat(), end];
  const ticks = [];
  for (let at = 0; at < parts.length; at += 2) {
    for (const moment of step?.range(time(parts[at]), time(parts[at + 1] + 0.001)) ?? []) {
      const tick = { at: place(moment / 1000 - data.start), text: text(moment) };
      const pixels = (room * (tick.at - (ticks.at(-1)?.at ?? -Infinity))) / domain[1];
      if (pixels > textWidth(tick.text) + 12) ticks.push(tick);
    }
  }
  const marks = [
    Plot.rectX(pauses, {
      x1: ([from]) => place(from),
      x2: ([, to]) => place(to),
      fill: "var(--rule)",
    }),
    Plot.ruleX(ticks, { x: "at", stroke: "var(--rule)" }),
    Plot.text(ticks, {
      x: "at",
      text: "text",
      frameAnchor: "bottom",
      dy: 16,
      fill: "var(--muted)",
    }),
  ];
  return { place, domain, marks, pauses };
}

// The function that writes a time of day in UTC, as exactly as an axis of `span` seconds needs; above
// 24 hours, with the day.
function clock(span) {
  if (span < 10) {
    const whole = d3.utcFormat("%H:%M:%S");
    return (time) => `${whole(time)}.${Math.floor(time.getUTCMilliseconds() / 100)}`;
  }
  return d3.utcFormat(span > 86400 ? "%d %b %H:%M" : span > 600 ? "%H:%M" : "%H:%M:%S");
}

function barLines(data, bar) {
  const name = block("regions-data").names[bar.region];
  const end = bar.state === "gate" ? "gate" : "full training";
  const exact = d3.utcFormat("%H:%M:%S");
  const time = (seconds) => exact(new Date(1000 * (data.start + seconds)));
  return [
    `${oneLine(name, 40)} · ${bar.trial === null ? end : `trial ${bar.trial}`}`,
    ...(bar.trial === null && !LOST.includes(bar.state) ? [] : [bar.state]),
    `${time(bar.from)} to ${time(bar.to)} UTC, ${duration(bar.to - bar.from)}`,
    oneLine(data.rows[bar.row], 60),
  ];
}
