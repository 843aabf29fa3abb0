// The charts of a region's trials over time: the history of objectives, and the learning curves.

// The history: each trial's objective, and the best objective so far.
function historyPicture(data, width, id) {
  const { complete } = data;
  const failed = data.trials.filter((trial) => trial.state === "failed");
  const all = objective(data, id);
  const sign = data.better === "higher" ? 1 : -1;
  let best = null;
  const soFar = complete.map((trial) => {
    if (best === null || sign * (trial.value - best) > 0) best = trial.value;
    return { number: trial.number, value: best };
  });
  const last = d3.max(data.trials, (trial) => trial.number);
  const left = numberAxis("left", all);
  const across = { kind: "linear", domain: [-0.5, last + 0.5] };
  const most = Math.min(last || 1, width / 70);
  const bottom = numberAxis("bottom", across, { most, whole: true, grid: false });
  const y = (trial) => (trial.value === null ? all.domain[0] : all.clamp(trial.value));
  const beyond = complete.filter((trial) => all.outside(trial.value));
  const hasDefault = data.default !== null && !all.outside(data.default);
  const picture = field({
    width,
    height: 300,
    left,
    bottom,
    names: [data.metric, "trial"],
    marks: [
      hasDefault
        ? Plot.ruleY([data.default], {
            stroke: "var(--default)",
            strokeWidth: 1.5,
            strokeDasharray: "5 4",
          })
        : null,
      Plot.lineY(soFar, {
        x: "number",
        y: "value",
        curve: "step-after",
        stroke: "var(--tuned)",
        strokeWidth: 2,
        clip: "frame",
      }),
      ...trialDots(complete, "number", all),
      Plot.dot(failed, {
        x: "number",
        y,
        r: 3.5,
        symbol: "times",
        stroke: "var(--failed)",
        strokeWidth: 2,
      }),
      bestDot(data, complete, { x: "number", y }),
      ...tip([...complete, ...failed], { x: "number", y }, (trial) => trialLines(data, trial)),
    ],
  });
  const signs = [
    ["dot", "muted", "trial"],
    ["dot", "tuned", "best"],
    ["line", "tuned", "best so far"],
  ];
  if (hasDefault) signs.push(["dashed line", "default", "default settings"]);
  if (failed.length) signs.push(["cross", "failed", "failed"]);
  if (beyond.length) signs.push(["triangle", "muted", "outside this view"]);
  const result = [legend(signs), picture];
  if (beyond.length) {
    const missing =
      data.default !== null && !hasDefault ? ", the default settings' among them" : "";
    result.push(note(`${count(beyond.length, "trial")} outside this view, at its edge${missing}.`));
  }
  return result;
}

// A dot per trial, or a triangle at the edge if the trial is outside the view.
function trialDots(trials, x, all) {
  const [outside, inside] = [true, false].map((side) =>
    trials.filter((trial) => all.outside(trial.value) === side),
  );
  const y = (trial) => all.clamp(trial.value);
  return [
    Plot.dot(inside, { x, y, r: 3.5, fill: "var(--muted)", fillOpacity: 0.7 }),
    Plot.dot(outside, {
      x,
      y,
      r: 4,
      symbol: "triangle",
      fill: "var(--muted)",
      rotate: (trial) => (trial.value > all.domain[1] ? 0 : 180),
    }),
  ];
}

function bestDot(data, trials, channels, style = { r: 5.5, fill: "var(--tuned)" }) {
  const best = trials.filter((trial) => trial.number === data.best);
  return Plot.dot(best, { ...channels, ...style });
}

// The layout of the objective in all charts of a region: the reader's choice in the switch.
function objective(data, id) {
  const values = data.complete.map((trial) => trial.value);
  const all = layout(values, data.scale, id);
  const good = (value) =>
    data.better === "higher" ? all.fraction(value) : 1 - all.fraction(value);
  return { ...all, good };
}

const COLORED = ["failed", "running"]; // states whose name is also the colour of their curves

// The learning curves: trials' reports over their steps.
function curvesPicture(data, width, id) {
  const points = data.trials
    .filter((trial) => trial.curve)
    .flatMap((trial) =>
      trial.curve[0].map((step, at) => ({ trial, step, value: trial.curve[1][at] })),
    );
  const all = layout(
    points.map((point) => point.value),
    data.curveScale,
    id,
    "curves-",
  );
  const left = numberAxis("left", all);
  const domain = d3.extent(points, (point) => point.step);
  const bottom = numberAxis(
    "bottom",
    { kind: "linear", domain },
    { grid: false, most: width / 90, room: width - left.width - 28 },
  );
  const best = (point) => point.trial.number === data.best;
  const channels = { x: "step", y: "value", z: (point) => point.trial.number };
  const lines = (part, style) => Plot.line(part, { ...channels, ...style, clip: "frame" });
  const picture = field({
    width,
    height: 280,
    left,
    bottom,
    names: [data.metric, "step"],
    marks: [
      lines(
        points.filter((point) => !best(point)),
        {
          stroke: ({ trial: { state } }) => `var(--${COLORED.includes(state) ? state : "muted"})`,
          strokeOpacity: (point) => (point.trial.state === "running" ? 1 : 0.45),
          strokeWidth: 1.2,
        },
      ),
      lines(points.filter(best), { stroke: "var(--tuned)", strokeWidth: 2.5 }),
      ...tip(
        points.filter((point) => !all.outside(point.value)),
        { x: "step", y: "value" },
        (point) => [
          `step ${number(point.step, 9)}: ${number(point.value, 6)}`,
          ...trialLines(data, point.trial),
        ],
      ),
    ],
  });
  const signs = [
    ["line", "muted", "trial"],
    ["line", "tuned", "best trial"],
  ];
  for (const state of COLORED) {
    if (points.some((point) => point.trial.state === state))
      signs.push(["line", state, `${state} trial`]);
  }
  return [legend(signs), picture];
}
