// ---- Lines over training: which rows they draw, on which scales

const HALF_LIVES = { [page.live ? "" : "light"]: 0.01, strong: 0.05 }; // of the moving average, as shares of the steps logged
const MIN_VALUES = 2; // that the half-life is long
const MIN_SMOOTHED = 50; // values of a line: one of fewer, such as a loss of a few evaluations, stays as it is
const START = 0.25; // of the steps of a line: these may lie outside of an axis which they would stretch, on these charts of the live page
const FALLING = page.live ? ["explore-loss", "live-gradient", "live-ratio"] : [];
const STRETCHED = 1.5; // times the range without them
const FAN = 0.25; // of the range of the lines, by which the interval of a forecast may widen it
const MAX_ROWS = 24000; // drawn by one chart; beyond them its lines keep their extremes
const MAX_POINTS = 5000; // of a scatter plot; of more it shows every so many
const MARGIN = 0.04; // above and below a range
const MAX_MARKS = 60; // of a line, at the edge beyond which some of its values are

// A chart's main data and the axis of their values, if it draws lines over training.
function lineChart(spec) {
  const isLine = ({ mark, encoding: { x, y } = {} }) => mark?.type === "line" && x?.field === "step" && x.type === "quantitative" && y?.field === "value";
  const part = spec.layer?.find(isLine), data = part && (part.data ?? spec.data)?.name;
  return data && { data, y: part.encoding.y };
}
function isOn() {
  const off = new Set(state.getAll("off")), { matches } = matcher(get("runs"));
  return (run) => run === undefined || (!off.has(run) && !off.has(named.get(run)?.group) && matches(run));
}

// What is known of a run's tokens, time or loss.
let known = (run, axis) => (axis === "time" ? (run.times ?? {}) : { steps: run.steps, values: run[axis] });
let joined = (lines) => lines; // forecasts with the lines that they go on from
function along(name, axis) {
  const run = named.get(name), { steps, values } = run ? known(run, axis) : {};
  const places = (values ? steps.map((_, i) => i) : []).filter((i) => Number.isFinite(values[i]));
  const [at, there] = [steps, values].map((list) => places.map((i) => list[i])), start = axis === "time" ? there[0] : 0;
  return (each) => (at.length < 2 ? null : interpolated(at, there, each) - start);
}
// Rows of runs that are on, with their place on the page's x axis; null where it is not known.
function shown(rows) {
  const on = isOn(), axis = get("x"), kept = rows.filter((row) => on(row.run)), of = new Map();
  if (!page.axes[axis]?.field) return kept;
  for (const { run } of kept) if (!of.has(run)) of.set(run, along(run, axis));
  return kept.map((row) => ({ ...row, x: of.get(row.run)(row.step) }));
}
function groupsOf(rows, key) {
  const groups = new Map();
  for (const row of rows) groups.has(key(row)) ? groups.get(key(row)).push(row) : groups.set(key(row), [row]);
  return groups;
}
const isSchedule = (name) => name === "live-rate" || (name === "explore-feature" && get("feature") === "log learning_rate"); // no noise
function smoothLines({ name }, lines) {
  const logged = lines.filter(([row]) => row.forecast == null), share = HALF_LIVES[get("smooth")];
  if (!share) return lines;
  const ends = (line) => [line[0].step, line.at(-1).step], whole = share * span(hull(...logged.map(ends)));
  return lines.map((line) => {
    const halfLife = Math.max(whole, (MIN_VALUES * span(ends(line))) / (line.length - 1 || 1)) || 1, values = line.length < MIN_SMOOTHED || isSchedule(name) ? line.map((row) => row.value) : smoothed(line.map((row) => row.step), line.map((row) => row.value), halfLife);
    return line.map((row, i) => ({ ...row, smooth: values[i] }));
  });
}

// How a chart draws its lines: on its own scale, or on another one where a control asks for it or values would be drawn flat.
const SCALES = {
  linear: { to: Number, from: Number, has: Number.isFinite },
  log: { to: Math.log10, from: (v) => 10 ** v, has: (v) => v > 0 && v < Infinity },
};
const padded = (range) => {
  const margin = MARGIN * (span(range) || Math.abs(range[1]) || 1);
  return [range[0] - margin, range[1] + margin];
};
const startOf = (line) => line[0].step + START * (line.at(-1).step - line[0].step);
function planOf({ name, lines: { y } }, lines, isFiltered) {
  const own = y.scale ?? {}, rows = lines.flat(), asked = get("y") || own.type || "linear", logged = rows.filter((row) => row.forecast == null);
  const type = asked === "log" && !rows.some((row) => row.value > 0) ? "linear" : asked, { to, from, has } = SCALES[type] ?? SCALES.linear;
  const seen = (row) => [row.low, row.high, row.forecast, row.value].filter(has).map(to);
  const byLayer = groupsOf(logged.filter((row) => Number.isFinite(row.value)).sort((a, b) => a.step - b.step), (row) => `${row.run}\n${row.layer}`);
  const values = (of) => [...byLayer.values()].map((line) => of(line).flatMap(seen)); // training and validation of a run are one line: either is sparse
  const plan = { type, asked, nonPositive: asked === "log" ? rows.filter((row) => row.value <= 0 && row.value !== null).length : 0, outside: [], fans: [] };
  let range = robustRange(values((line) => line));
  if (!range) return plan;
  const late = FALLING.includes(name) && robustRange(values((line) => line.filter((row) => row.step >= startOf(line))));
  plan.isLate = Boolean(late && span(late) && span(range) > STRETCHED * span(late));
  if (plan.isLate) range = late;
  // A forecast may double the range, and its interval widen it a little: neither flattens what was logged.
  const [least, most] = range, size = span(range) || Math.abs(least) || 1, within = (v, share) => Math.max(least - share * size, Math.min(most + share * size, v));
  for (const row of rows.filter((each) => has(each.forecast))) for (const [v, share] of [[row.forecast, 1], [row.low, FAN], [row.high, FAN]])
    if (has(v)) range = hull(range, [within(to(v), share), within(to(v), share)]);
  const [low, high] = padded(range), whole = rows.flatMap(seen).reduce(([a, b], v) => [Math.min(a, v), Math.max(b, v)], range);
  const side = (row) => (seen(row).some((v) => v > high) ? "above" : seen(row).some((v) => v < low) ? "below" : "");
  plan.ends = [low, high].map(from);
  plan.fans = rows.filter((row) => row.forecast != null && side(row));
  plan.outside = lines.map((line) => line.filter((row) => row.forecast == null && side(row)).map((row) => ({ ...row, side: side(row), isStart: plan.isLate && row.step < startOf(line) }))).filter((line) => line.length);
  plan.lost = lines.map((line) => line.findLast((row) => Number.isFinite(row.value))).filter((row) => row && row.forecast == null && side(row));
  plan.isWhole = state.getAll("all").includes(name);
  plan.isClipped = plan.outside.length + plan.fans.length > 0 && !plan.isWhole;
  for (const row of rows.filter(({ label }) => label && innerWidth > 700)) row.top = plan.isClipped ? Math.min(row.high, plan.ends[1]) : row.high;
  plan.isOwn = !plan.isClipped && (!own.domain || !(get("y") || isFiltered));
  if (plan.isClipped) plan.domain = plan.ends;
  else if (!own.domain && type !== "log") plan.domain = whole;
  else if (!own.domain || !plan.isOwn) plan.domain = padded(whole).map(from);
  return plan;
}

// Rows and scale of a chart; of a chart of other things, its rows alone.
function prepare(chart) {
  chart.data = fromEntries(entries(chart.sets).map(([name, rows]) => [name, shown(rows)]));
  const main = chart.lines?.data ?? keys(chart.sets)[0], all = chart.sets[main] ?? [];
  chart.rows = chart.data[main] ?? [];
  if (chart.lines) {
    const lines = joined(smoothLines(chart, [...groupsOf(chart.rows, (row) => `${row.run}\n${row.series}\n${row.layer}`).values()].map((line) => line.sort((a, b) => a.step - b.step))));
    chart.each = lines.filter(([row]) => row.forecast == null);
    chart.rows = lines.flat();
    chart.plan = planOf(chart, lines, all.length > chart.rows.length);
    chart.data[main] = lines.flatMap((line) => (chart.rows.length > MAX_ROWS ? thinned(line.map((row) => row.value), MAX_ROWS / lines.length).map((i) => line[i]) : line));
    if (chart.plan.type === "log") for (const [name, rows] of entries(chart.data)) chart.data[name] = rows.map(positive);
    chart.data.outside = chart.plan.outside.map((line) => line.filter((row) => !row.isStart)).flatMap((line) => thinned(line.map((row) => row.value), MAX_MARKS).map((i) => line[i]));
  }
  if (chart.rows.length > MAX_POINTS && "a" in chart.rows[0]) chart.data[main] = chart.rows.filter((_, i) => i % Math.ceil(chart.rows.length / MAX_POINTS) === 0);
  chart.byStep = groupsOf(chart.rows, (row) => row.step);
  chart.steps = [...chart.byStep.keys()].filter(isFinite).sort((a, b) => a - b);
  if (chart.lines) chart.extent = extentOf(chart);
  chart.places = page.axes[get("x")]?.field ? chart.rows.filter((row) => Number.isFinite(row.x)).sort((a, b) => a.x - b.x) : null;
}
// The steps, or what stands in their place, of all that a chart draws, from 0.
function extentOf({ data }) {
  const field = page.axes[get("x")]?.field ?? "step";
  const ends = Object.values(data).flat().map((row) => row[field]).filter(Number.isFinite).reduce(([a, b], v) => [Math.min(a, v), Math.max(b, v)], [0, 0]);
  return ends[0] < ends[1] ? ends : [0, 1];
}
const positive = (row) => (["value", "smooth", "low"].some((name) => row[name] <= 0) ? { ...row, ...fromEntries(["value", "smooth", "low"].map((name) => [name, row[name] > 0 ? row[name] : null])) } : row);
// The specification of a chart with its plan: another scale, smooth lines before raw ones, marks where values are outside.
function planned(spec, { lines, plan, extent, each }) {
  if (!lines) return spec;
  const smooth = get("smooth") in HALF_LIVES, scale = { type: plan.type, ...(plan.type === "log" && { zero: undefined }), ...(plan.domain && { domain: { expr: "range" }, nice: plan.isOwn && plan.type !== "log" }) };
  const isNew = smooth || !plan.isOwn || plan.type !== (lines.y.scale?.type ?? "linear"), on = isOn();
  const isLabel = ({ mark, encoding }) => mark?.type === "text" && encoding?.text?.field === "run", hasLabels = spec.layer.some(isLabel);
  const named = ({ scale }) => (scale?.domain?.every(on) ?? true ? undefined : scale.domain.filter(on));
  const legend = (color) => (color.legend === null && !(hasLabels && isNew) ? null : { symbolOpacity: 1, ...color.legend, values: named(color) });
  const layer = spec.layer.filter((part) => !(isNew && isLabel(part))).flatMap((part) => {
    if (!part.encoding) return part;
    const { x, y, color } = part.encoding, encoding = { ...part.encoding }, isMain = [lines.data, "cursor"].includes((part.data ?? spec.data)?.name);
    // Without domains of their own, the scales would follow the cursor, and all marks be made anew.
    if (x?.field === "step") encoding.x = { ...x, scale: { ...x.scale, domain: { expr: "extent" } } };
    if (y?.field) encoding.y = { ...y, scale: { ...y.scale, ...scale } };
    if (color?.field === "run") encoding.color = { ...color, legend: legend(color) };
    if (part.data?.name === "cursor" && part.mark.type === "rule") encoding.strokeDash = { condition: { test: "datum.pinned", value: [1, 0] }, value: [4, 3] };
    if (smooth && part.mark.type === "area" && page.live) return { ...part, mark: { ...part.mark, opacity: 0.4 * part.mark.opacity * Math.min(1, 3 / each.length) }, encoding };
    if (!smooth || !isMain || y?.field !== "value") return { ...part, encoding };
    const raw = { ...part, name: undefined, mark: { ...part.mark, opacity: 0.25, strokeWidth: 1, point: false }, encoding: { ...encoding, strokeWidth: undefined } };
    const front = { ...part, encoding: { ...encoding, y: { ...encoding.y, field: "smooth" } } };
    return part.mark.type === "line" ? [raw, front] : front;
  });
  if (plan.isClipped) layer.push(...["above", "below"].map((side) => edge(layer, side)));
  return { ...spec, layer, params: [...(spec.params ?? []), { name: "range", value: plan.domain ?? null }, { name: "extent", value: extent }] };
}
function edge(layer, side) {
  const { encoding } = layer.find((part) => part.encoding.x?.field === "step" && part.encoding.color?.field === "run");
  return {
    data: { name: "outside" },
    transform: [{ filter: `datum.side === '${side}'` }],
    mark: { type: "point", shape: side === "above" ? "triangle-up" : "triangle-down", filled: true, size: 45, opacity: 0.9 },
    encoding: {
      x: encoding.x,
      color: encoding.color,
      y: { value: side === "above" ? 4 : { expr: "height - 4" } },
      tooltip: ["run", "step", "value"].map((field) => ({ field, type: "nominal" })),
    },
  };
}

// What a chart does not draw, and why.
function notesOf({ lines, plan, rows, data }) {
  if (!lines) return data.rows?.length < rows.length ? [`${number(data.rows.length)} of ${number(rows.length)} points are drawn, evenly chosen.`] : [];
  const axis = get("x"), off = page.axes[axis]?.field ? rows.filter((row) => !Number.isFinite(row.x)) : [], without = new Set(off.map((row) => row.run)).size;
  const n = (count, noun) => `${number(count)} ${noun}${count === 1 ? "" : "s"}`;
  return [
    plan.nonPositive && plan.type === "log" && `${n(plan.nonPositive, "value")} of 0 or less: not on a logarithmic axis.`,
    plan.asked !== plan.type && "No value is above 0: the axis stays linear.",
    off.length && `${n(off.length, "value")} of ${n(without, "run")} not drawn: their ${axis} is not known.`,
    data[lines.data].length < rows.length && `${number(data[lines.data].length)} of ${number(rows.length)} values are drawn, every extreme among them.`,
  ].filter(Boolean);
}
function outsideNote({ plan }) {
  if (!plan?.outside.length && !plan?.fans.length) return null;
  const rows = plan.outside.flat(), [starts, others] = [true, false].map((is) => rows.filter((row) => row.isStart === is)), ends = { above: plan.ends[1], below: plan.ends[0] };
  const beyond = (of) => ["above", "below"].filter((side) => of.some((row) => row.side === side)).map((side) => `${side} ${Number(ends[side].toPrecision(3))}`).join(" or ");
  const lost = plan.lost.map((row) => `${row.run ?? "the line"} ends there, at ${number(row.value)}`), fan = plan.fans.at(-1);
  const text = plan.isWhole ? "All values are shown." : [
    starts.length && `The start is ${beyond(starts)}.`,
    others.length && `${number(others.length)} ${others.length === 1 ? "value is" : "values are"} outside, ${beyond(others)}${lost.length > 3 ? `; ${lost.length} runs end there` : lost.map((each) => `; ${each}`).join("")}.`,
    fan && `The axis cuts ${plan.fans.length > 1 && new Set(plan.fans.map((row) => row.run)).size > 1 ? "forecasts" : `the interval of the forecast, ${fan.label}`}.`,
  ].filter(Boolean).join(" ");
  const back = plan.isLate ? "Fit the recent part" : "Leave outliers outside";
  return { text, action: plan.isWhole ? back : starts.length ? "Show the start" : "Show all" };
}
