// The table of a region's trials: its rows, columns, links, and how numbers are written.

const JOB_COLUMNS = [
  ["Started (UTC)", "number", "started", (at) => d3.utcFormat("%d %b %H:%M:%S")(1000 * at)],
  ["Time", "number", "seconds", duration],
  ["CPU time", "number", "cpu", duration],
  ["Memory", "number", "memory", (size) => `${number(size)} MB`],
  ["USD", "number", "usd", money],
  ["Ranks", "number", "ranks", String],
  ["Generations", "number", "generations", String],
  ["Machine", "text", "machine", String],
];

// A cost above zero is never shown as zero.
function money(amount) {
  const decimals = amount >= 1 || amount === 0 ? 2 : 4;
  const least = 10 ** -decimals;
  return 0 < amount && amount < least ? `<${least.toFixed(decimals)}` : fixed(amount, decimals);
}

// For each column: its title, how it is sorted ("plain": not at all), its values by trial, and the
// function that writes a value. A column is omitted if no trial has a value.
function trialColumns(data) {
  const decimal = (decimals) => (value) =>
    decimals === null ? number(value, 4) : fixed(value, decimals);
  const { reported, jobs } = data;
  const states = data.trials.map((trial) => withRoles(data, trial, trial.state).join(", "));
  return [
    ["Trial", "number", data.number, String],
    ["State", "text", states, String],
    [data.metric, "number", data.value, decimal(data.decimals)],
    ...(reported ? [[reported.metric, "number", reported.value, decimal(reported.decimals)]] : []),
    ...data.settings.map((name) => settingColumn(data, name)),
    ...JOB_COLUMNS.filter(([, , name]) => jobs[name]).map(([title, kind, name, text]) => [
      title,
      kind,
      jobs[name],
      text,
    ]),
    ["Attempts", "number", data.attempts, String],
    ["DAG node", "plain", data.node, String],
  ];
}

function settingColumn(data, name) {
  const at = data.parameters.findIndex((parameter) => parameter.name === name);
  if (at < 0) return [name, "plain", data.others[name], String];
  const { choices, whole, decimals, digits } = data.parameters[at];
  const text = (value) => {
    if (choices) return choices[value];
    if (whole) return String(value).replace("-", "−");
    return decimals !== null ? fixed(value, decimals) : value ? scientific(value, digits) : "0";
  };
  return [name, "plain", data.params[at], (value) => (value === null ? "" : text(value))];
}

// On the live page the newest trial comes first, with its progress and a link to its own page.
function fillTrials(table) {
  const { trials: id, path, progress } = table.dataset;
  const data = block(id);
  const columns = trialColumns(data);
  const titles = columns.map(([title, kind]) => {
    const cell = element("th", "", kind === "plain" ? title : element("button", "", title));
    cell.scope = "col";
    cell.dataset.kind = kind;
    return cell;
  });
  const rows = data.trials.map((trial, at) => {
    const cells = columns.map(([title, kind, values, text]) => trialCell(values[at], kind, text));
    if (trial.number === data.best) for (const cell of cells.slice(0, 3)) cell.className = "strong";
    if (trial.state === "failed") cells[1].className = "bad";
    if (path) lead(cells, trial, path + encodeURIComponent(data.node[at]));
    return element("tr", "", ...cells);
  });
  if (progress) {
    for (const [node, text] of Object.entries(JSON.parse(progress)))
      rows[data.node.indexOf(node)]?.cells[1].append(`, ${text}`);
    rows.reverse();
  }
  const head = element("thead", "", element("tr", "", ...titles));
  table.replaceChildren(head, element("tbody", "", ...rows));
}

function trialCell(value, kind, text) {
  const shown = value === null && kind !== "plain" ? "–" : text(value);
  const cell = element("td", "", shown);
  if (kind === "number" && value !== null && shown !== String(value)) cell.dataset.key = value;
  return cell;
}

function lead([cell], { number }, href) {
  const link = Object.assign(element("a", "", cell.textContent), { id: `trial-${number}`, href });
  cell.replaceChildren(link);
}
