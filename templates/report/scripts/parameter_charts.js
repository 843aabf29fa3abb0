// The charts of parameters: parallel coordinates, the two most important parameters, each parameter.

const UNUSED = -0.14; // the place of a parameter that a trial does not use, in parallel coordinates

// The axis of a parameter: Plot's scale, its ticks and their texts.
function parameterAxis(parameter, side, room, most = 5) {
  if (parameter.choices) {
    const places = d3.range(parameter.choices.length);
    const each = side === "bottom" ? room / places.length - 4 : room;
    const texts = places.map((at) => fitted(parameter.choices[at], Math.max(14, each)));
    const scale = { type: "linear", domain: [-0.5, places.length - 0.5] };
    const along = side === "bottom" ? room : Infinity;
    return axisOf(side, scale, places, apart({ scale, places, texts, room: along }), false);
  }
  const { low, high, log, whole } = parameter;
  const kind = log ? "log" : "linear";
  const along = side === "bottom" ? room : Infinity;
  const axis = { most, whole, room: along, span: [low, high] };
  return numberAxis(side, { kind, domain: padded(kind, low, high) }, axis);
}

// A value's place from 0 to 1 along a parameter's axis.
function fractionOf(parameter, value) {
  if (value === null) return null;
  if (parameter.choices)
    return parameter.choices.length > 1 ? value / (parameter.choices.length - 1) : 0.5;
  const [low, high, at] = [parameter.low, parameter.high, value].map(
    parameter.log ? Math.log : Number,
  );
  return high > low ? Math.min(1, Math.max(0, (at - low) / (high - low))) : 0.5;
}

// The legend of the objective's colours.
function colorBar(data, all) {
  const colors = ramp();
  const bar = element("i", "ramp");
  const stops = d3.range(0, 1.01, 0.1).map((at) => colors(at));
  bar.style.background = `linear-gradient(to right, ${stops.join(", ")})`;
  bar.setAttribute("aria-hidden", "true");
  const [least, most] = all.view;
  const text = linearText([least, least + (most - least) / 100, most]);
  const [low, high] = all.view.map(all.kind === "log" ? (value) => number(value, 4) : text);
  const [poor, good] = data.better === "higher" ? [low, high] : [high, low];
  return element("p", "legend", element("span", "cut", data.metric), poor, bar, good);
}

// A line per trial across all parameters and the objective, coloured by the objective.
function parallelPicture(data, width, id) {
  const all = objective(data, id);
  const trials = d3.sort(data.complete, (trial) => all.good(trial.value));
  const used = data.parameters.filter((_, at) => trials.some((trial) => trial.params[at] !== null));
  const most = Math.max(2, Math.floor(width / (width < 500 ? 64 : 84)) - 1);
  const drawn = used.slice(0, most);
  const axes = [
    ...drawn.map((parameter) => {
      const at = data.parameters.indexOf(parameter);
      return {
        name: parameter.name,
        ticks: axisTicks(parameter),
        place: (trial) => fractionOf(parameter, trial.params[at]) ?? UNUSED,
        gaps: trials.some((trial) => trial.params[at] === null),
      };
    }),
    { name: data.metric, ticks: objectiveTicks(all), place: (trial) => all.fraction(trial.value) },
  ];
  const gaps = axes.some((axis) => axis.gaps);
  const room = parallelRoom(axes, width);
  const points = trials.flatMap((trial) =>
    axes.map((axis, at) => ({ trial, at, place: axis.place(trial) })),
  );
  const colors = ramp();
  const stroke = ({ trial }) => colors(all.good(trial.value));
  const texts = axes.flatMap((axis, at) => [
    ...fittedTicks(axis.ticks, room.tick(at)).map(([place, text]) => ({ at, place, text })),
    ...(axis.gaps ? [{ at, place: UNUSED, text: "not used" }] : []),
  ]);
  const picture = frame({
    width,
    height: 330 + room.top,
    margin: [34 + room.top, room.right, 14, room.left],
    x: { type: "linear", domain: [0, axes.length - 1], axis: null },
    y: { type: "linear", domain: [gaps ? UNUSED - 0.04 : -0.02, 1.02], axis: null },
    marks: [
      Plot.ruleX(axes, {
        x: (_, at) => at,
        y1: 0,
        y2: 1,
        stroke: "var(--muted)",
        strokeOpacity: 0.6,
      }),
      Plot.line(points, {
        x: "at",
        y: "place",
        z: (point) => point.trial.number,
        stroke,
        curve: "bump-x",
        strokeWidth: ({ trial }) => (trial.number === data.best ? 3 : 1.5),
        className: "lines",
        strokeOpacity: 0.85,
      }),
      Plot.text(texts, {
        x: "at",
        y: "place",
        text: "text",
        textAnchor: "start",
        dx: 6,
        fill: "var(--muted)",
        stroke: "var(--surface)",
        strokeWidth: 7, // closes the gaps between digits, so that no curve is visible there
        fontSize: 11,
      }),
      ...[0, 1].map((row) =>
        Plot.text(
          axes.map((axis, at) => ({ ...axis, at })).filter(({ at }) => room.row(at) === row),
          {
            x: "at",
            frameAnchor: "top",
            dy: row ? -38 : -22,
            textAnchor: "start",
            dx: -8,
            text: ({ name, at }) => fitted(name, room.name(at)),
            title: "name",
            fontWeight: 600,
          },
        ),
      ),
      ...tip(points, { x: "at", y: "place" }, ({ trial }) => trialLines(data, trial)),
    ],
  });
  const lines = [...picture.querySelectorAll("g[aria-label=line] path")];
  picture.addEventListener("input", () => {
    const pointed = picture.value?.trial;
    picture.classList.toggle("pointing", Boolean(pointed));
    lines.forEach((line, at) => line.classList.toggle("pointed", trials[at] === pointed));
  });
  if (!coarse) brushes(picture, axes, trials, lines);
  const result = [colorBar(data, all), picture];
  const hidden = used.length - drawn.length;
  if (hidden)
    result.push(note(`${count(hidden, "less important parameter")} omitted: too little width.`));
  else if (!coarse) result.push(note("Drag along an axis to select trials; click it to clear the selection."));
  return result;
}

// The room for the texts of parallel axes, in pixels. A name may reach the next axis. Long names
// alternate between two rows and may reach the axis after the next. A tick's text may reach the next
// axis.
function parallelRoom(axes, width) {
  const left = 18;
  const last = axes.at(-1);
  const wanted = d3.max([...last.ticks.map(([, text]) => text), last.name], textWidth) + 14;
  const right = Math.min(Math.max(56, wanted), 0.25 * width);
  const each = (width - left - right) / (axes.length - 1);
  const bold = 1.12; // names are bold, but textWidth measures regular text
  const two = axes.slice(0, -1).some((axis) => bold * textWidth(axis.name) > each - 12);
  const row = (at) => (two && (axes.length - 1 - at) % 2 ? 1 : 0);
  const ahead = (at) => Math.min(two ? 2 : 1, axes.length - 1 - at);
  return {
    left,
    right,
    top: two ? 16 : 0,
    row,
    name: (at) => (ahead(at) * each + (at + (two ? 2 : 1) > axes.length - 1 ? right : -4)) / bold,
    tick: (at) => (at === axes.length - 1 ? right - 8 : each - 14),
  };
}

// Shortens the texts of ticks to a width in pixels: cuts each choice, and writes all numbers shorter
// if one is too wide.
function fittedTicks(ticks, width) {
  const wide = ticks.some(([, text]) => textWidth(text) > width);
  return ticks.map(([place, text, value]) => [
    place,
    value === undefined ? fitted(text, width) : wide ? shortNumber(value, text) : text,
  ]);
}

// The ticks of a parameter's axis: the place from 0 to 1, the text and, unless it is a choice, the
// number of each.
function axisTicks(parameter) {
  const { low, high, log, choices, whole } = parameter;
  const made = choices
    ? { places: d3.range(choices.length), text: (place) => choices[place] }
    : ticks(log ? "log" : "linear", low, high, 4, whole);
  const text = (place) =>
    made.places.includes(place) ? made.text(place) : number(place, whole ? 16 : 6);
  const chosen = [];
  for (const place of choices ? made.places : [low, high, ...made.places]) {
    const at = fractionOf(parameter, place);
    if (chosen.every(([other]) => Math.abs(other - at) > 0.06))
      chosen.push([at, text(place), choices ? undefined : place]);
  }
  return chosen;
}

function objectiveTicks(all) {
  const made = ticks(all.kind, ...all.view, 5);
  return made.places.map((place) => [all.fraction(place), made.text(place), place]);
}

// Selects trials by dragging along axes; all other trials fade.
function brushes(picture, axes, trials, lines) {
  const x = picture.scale("x"),
    y = picture.scale("y");
  const chosen = new Map();
  const refresh = () => {
    trials.forEach((trial, at) => {
      const picked = [...chosen].every(([axis, [low, high]]) => {
        const place = axes[axis].place(trial);
        return place >= low && place <= high;
      });
      lines[at]?.classList.toggle("faded", !picked);
    });
  };
  axes.forEach((_, axis) => {
    const at = x.apply(axis);
    const brush = d3
      .brushY()
      .extent([
        [at - 7, y.apply(1.02)],
        [at + 7, y.apply(y.domain[0])],
      ])
      .on("brush end", ({ selection }) => {
        if (selection) chosen.set(axis, selection.map(y.invert).reverse());
        else chosen.delete(axis);
        refresh();
      });
    d3.select(picture).append("g").attr("class", "brush").call(brush);
  });
}

// A trial's place on a parameter's axis. Trials with the same choice are placed next to each other.
function spread(parameter, trial, at) {
  const value = trial.params[at];
  if (value === null || !parameter.choices) return value;
  return value + 0.5 * (((trial.number * 0.618) % 1) - 0.5);
}

// The objective over the two most important parameters, with a smoothed surface if there are enough
// trials.
function pairPicture(data, width, id, { picture: kind }) {
  const all = objective(data, id);
  const [one, other] = data.pair.map((at) => data.parameters[at]);
  const at = (trial, axis) => spread(data.parameters[data.pair[axis]], trial, data.pair[axis]);
  const trials = data.complete.filter((trial) => at(trial, 0) !== null && at(trial, 1) !== null);
  const left = parameterAxis(other, "left", 0.3 * width);
  const bottom = parameterAxis(one, "bottom", width - left.width - 28, width / 80);
  const channels = { x: (trial) => at(trial, 0), y: (trial) => at(trial, 1) };
  const good = (trial) => all.good(trial.value);
  const colors = { type: "linear", domain: [0, 1], clamp: true, interpolate: ramp() };
  const picture = field({
    width,
    height: 330,
    left,
    bottom,
    names: [other.name, one.name],
    color: colors,
    marks: [
      ...(kind === "contour"
        ? [
            Plot.contour(trials, {
              ...channels,
              fill: good,
              interpolate: smoothed,
              pixelSize: 4,
              clip: "frame",
              thresholds: d3.range(0, 1, 0.1),
              stroke: "var(--surface)",
              strokeOpacity: 0.35,
            }),
          ]
        : []),
      Plot.dot(trials, {
        ...channels,
        r: 4.5,
        fill: good,
        stroke: "var(--ink)",
        strokeWidth: 1,
      }),
      bestDot(data, trials, channels, { r: 8, stroke: "var(--ink)", strokeWidth: 2 }),
      ...tip(trials, channels, (trial) => trialLines(data, trial)),
    ],
  });
  return [colorBar(data, all), picture];
}

// The Nadaraya-Watson mean with a Gaussian kernel; NaN, which is left blank, if no trial is near.
function smoothed(index, width, height, X, Y, V) {
  const values = new Float64Array(width * height);
  const reach = 0.22 * Math.max(0.5, (30 / index.length) ** (1 / 6));
  for (let row = 0; row < height; row++) {
    for (let column = 0; column < width; column++) {
      let weight = 0,
        sum = 0,
        nearest = Infinity;
      for (const at of index) {
        const across = (X[at] - column) / width,
          along = (Y[at] - row) / height;
        const distance = across * across + along * along;
        const own = Math.exp(-distance / (0.5 * reach * reach));
        weight += own;
        sum += own * V[at];
        nearest = Math.min(nearest, distance);
      }
      values[row * width + column] = nearest > 4 * reach * reach ? NaN : sum / weight;
    }
  }
  return values;
}

// The objective over one parameter.
function slicePicture(data, width, id, { place }) {
  const parameter = data.parameters[place];
  const all = objective(data, id);
  const trials = data.complete.filter((trial) => trial.params[place] !== null);
  const left = numberAxis("left", all, { most: 4 });
  const margin = [8, 12, 42, left.width + 12];
  const bottom = parameterAxis(parameter, "bottom", width - margin[1] - margin[3], width / 80);
  const x = (trial) => spread(parameter, trial, place);
  const y = (trial) => all.clamp(trial.value);
  return [
    frame({
      width,
      height: 190,
      margin,
      x: bottom.scale,
      y: left.scale,
      marks: [
        ...left.marks,
        ...bottom.marks,
        ...trialDots(trials, x, all),
        bestDot(data, trials, { x, y }),
        axisName(parameter.name, "bottom"),
        ...tip(trials, { x, y }, (trial) => trialLines(data, trial)),
      ],
    }),
  ];
}
