// Draws the page's charts and answers its controls. Without it, text and tables are whole.
const page = JSON.parse(document.getElementById("data").textContent), explorer = page.explorer;
const byId = (id) => document.getElementById(id);
const all = (selector, within = document) => [...within.querySelectorAll(selector)];
const make = (tag, properties, ...children) => {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
};

// ---- What is shown. It is kept in the address, so that a link leads to it.

const state = new URLSearchParams(location.hash.includes("=") ? location.hash.slice(1) : "");
const get = (key) => state.get(key) ?? "";
const step = () => (state.has("step") ? Number(get("step")) : NaN);
const off = () => state.getAll("off");
let later;
function set(key, value) {
  value === "" ? state.delete(key) : state.set(key, value);
  clearTimeout(later);
  later = setTimeout(() => history.replaceState(null, "", `#${state}`), 200);
}

// ---- Data

function rowsOf(columns) {
  const fields = Object.entries(columns), first = fields[0]?.[1] ?? [];
  const cell = (c, i) => (c.texts ? (c.texts[c.at[i]] ?? null) : c[i]);
  return (first.texts ? first.at : first).map((_, i) => Object.fromEntries(fields.map(([field, c]) => [field, cell(c, i)])));
}
const unpacked = (text) => text && [...new Float32Array(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer)];
const runs = (explorer?.runs ?? []).map((run) => ({ ...run, loss: unpacked(run.loss), tokens: unpacked(run.tokens), clocks: run.clocks.map(unpacked) }));
const features = new Map(explorer?.features.map((each) => [each.key, each]));
const association = rowsOf(explorer?.association ?? {});
const feature = () => features.get(get("feature"));
const layers = () => explorer.layers[get("run")];
const nearest = (steps, at) => steps.reduce((best, each) => (Math.abs(each - at) < Math.abs(best - at) ? each : best), steps[0]);
const number = (v) => (typeof v === "number" ? (Math.abs(v) < 1e6 && (!v || Math.abs(v) > 1e-3) ? String(+v.toPrecision(4)) : v.toExponential(2)).replace("-", "−") : (v ?? "–"));

// Ranks less their mean, and what is left of a series of ranks once those of the clocks are taken out.
function ranks(values) {
  const sorted = values.toSorted((a, b) => a - b);
  return values.map((v) => (sorted.indexOf(v) + sorted.lastIndexOf(v) - values.length + 1) / 2);
}
const dot = (a, b) => a.reduce((sum, v, i) => sum + v * b[i], 0);
function without(series, clocks) {
  const basis = [];
  const residual = (values) => {
    const left = basis.reduce((rest, b) => rest.map((v, i) => v - dot(rest, b) * b[i]), values);
    return dot(left, left) > 1e-12 * dot(values, values) ? left : left.fill(0);
  };
  for (const left of clocks.map(residual)) if (dot(left, left)) basis.push(residual(left).map((v) => v / Math.sqrt(dot(left, left))));
  return residual(series);
}

// ---- Rows of the explorer's charts

const linesOf = (values) => runs.flatMap((run) => (values(run) || []).map((value, i) => ({ run: run.name, step: run.steps[i], value })).filter((row) => !isNaN(row.value)));
const chosen = (run) => unpacked(feature()?.values[get("role")]?.[run.name]);
const ofLayer = (run) => {
  const of = explorer.layers[run.name], place = of?.names.indexOf(get("layer")), n = run.steps.length;
  return place >= 0 && unpacked(of.values[get("quantity")])?.slice(place * n, (place + 1) * n);
};
function pairs(given) {
  return runs.flatMap((run) => {
    const series = [chosen(run), run.loss, ...run.clocks];
    if (!series[0]) return [];
    const known = run.steps.map((_, i) => i).filter((i) => series.every((values) => !isNaN(values[i])));
    let [a, b, ...clocks] = series.map((values) => known.map((i) => values[i]));
    if (given) [a, b] = [a, b].map((values) => without(ranks(values), clocks.map(ranks)));
    return known.map((i, k) => ({ run: run.name, step: run.steps[i], a: a[k], b: b[k] }));
  });
}
function cells() {
  const { steps } = runs.find((run) => run.name === get("run")) ?? { steps: [] }, values = unpacked(layers()?.values[get("quantity")]);
  return (values ?? []).map((value, i) => ({ layer: layers().names[Math.floor(i / steps.length)], step: steps[i % steps.length], value: isNaN(value) ? null : value }));
}
function sides() {
  const of = explorer.diagrams[get("run")] ?? {}, steps = Object.keys(of).map(Number), i = steps.indexOf(nearest(steps, step() || 0));
  return { before: steps[i - 1], after: steps[i + 1], here: steps[i] };
}
const bars = () => Object.entries(sides()).flatMap(([when, at]) => Object.entries(explorer.diagrams[get("run")]?.[at]?.[get("layer")] ?? {}).flatMap(([name, of]) => {
  const points = unpacked(of.bars);
  return points.flatMap((birth, i) => (i % 2 ? [] : { name, when, birth, death: points[i + 1], place: `${name} ${100 + i / 2}` }));
}));
const sources = {
  "explore-loss": () => linesOf((run) => run.loss), "explore-feature": () => linesOf(chosen), "explore-raw": () => pairs(false),
  "explore-given": () => pairs(true), "layer-map": cells, "layer-lines": () => linesOf(ofLayer), "layer-diagram": bars, "layer-bars": bars,
};

// ---- Drawing

const drawn = new Map(); // name -> { name, view, place, text: specification, sets: rows by name of data }
const dark = () => document.documentElement.dataset.theme === "dark";

// The rows of runs that are on, with the value of the page's x axis at checkpoints.
function shown(rows) {
  const axis = get("x"), hidden = off();
  const at = (row) => {
    const run = runs.find((each) => each.name === row.run);
    return run?.[axis]?.[run.steps.indexOf(row.step)] ?? null;
  };
  const kept = rows.filter((row) => !hidden.includes(row.run));
  return AXES[axis]?.field ? kept.map((row) => ({ ...row, x: at(row) })) : kept;
}
const AXES = {
  log: { scale: { type: "symlog", constant: 1, nice: false }, axis: { values: [0, 1, 10, 100, 1e3, 1e4, 1e5, 1e6, 1e7], format: "~s" } },
  tokens: { field: "x", title: "tokens", scale: { nice: false }, axis: { format: "~s" } },
  loss: { field: "x", title: "loss, falling to the right", scale: { zero: false, nice: false, reverse: true }, axis: {} },
};
// A specification at another width, and with the page's x axis wherever x is the training step.
function adapted(spec, width) {
  const out = { ...spec }, x = spec.encoding?.x, parts = spec.concat ?? spec.vconcat;
  if (x?.field === "step" && x.type === "quantitative" && AXES[get("x")])
    out.encoding = { ...spec.encoding, x: { ...x, ...AXES[get("x")] }, ...((spec.mark.type ?? spec.mark) === "line" && { order: { field: "step" } }) };
  if (spec.layer) out.layer = spec.layer.map((part) => ({ ...adapted(part, width), width: undefined }));
  if (!parts && !spec.spec) return { ...out, width: Math.max(60, width) };
  const columns = spec.vconcat ? 1 : Math.max(1, Math.min(spec.columns ?? 1, Math.floor(width / 240)));
  const inner = (part) => adapted(part, width / columns - 20);
  if (spec.spec) return { ...out, spec: inner(spec.spec), columns };
  return spec.vconcat ? { ...out, vconcat: parts.map(inner) } : { ...out, concat: parts.map(inner), columns };
}

async function draw(place) {
  const name = place.dataset.chart, text = JSON.stringify(page.charts[name]), room = place.clientWidth || byId("content").clientWidth - 60;
  const sets = sources[name] ? { rows: sources[name]() } : Object.fromEntries(Object.entries(page.datasets).filter(([each]) => text.includes(each)).map(([each, columns]) => [each, rowsOf(columns)]));
  const datasets = Object.fromEntries(Object.entries(sets).map(([each, rows]) => [each, shown(rows)]));
  const look = { datasets, config: page.config[dark() ? "dark" : "light"], background: "transparent" };
  const options = { renderer: "svg", ast: true, logLevel: 1, actions: { export: true, source: false, compiled: false, editor: false }, downloadFileName: name };
  drawn.get(name)?.view.finalize();
  let view, excess = 70, width = room;
  for (let tries = 0; tries < 3 && Math.abs(excess) > 7; tries++) {
    view?.finalize();
    width -= excess;
    ({ view } = await vegaEmbed(place, { ...adapted(page.charts[name], width), ...look }, options));
    excess = place.querySelector("svg.marks").getBoundingClientRect().width - room || 0;
  }
  const chart = { name, view, place, sets, text };
  drawn.set(name, chart);
  if (text.includes('"hover"')) view.addSignalListener("hover", (_, value) => value.step && moveTo(value.step[0]));
  place.onkeydown = press;
  place.nextElementSibling.ontoggle = openData;
  if (name === "layer-map") view.addEventListener("click", (_, item) => item?.datum?.layer && choose({ layer: item.datum.layer, step: item.datum.step }));
  mark(chart);
}
const rowsIn = (chart) => shown(Object.values(chart.sets)[0]);
const stepsIn = (chart) => [...new Set(rowsIn(chart).map((row) => row.step))].sort((a, b) => a - b);

// Put a chart's cursor at the step, and write the values there above it.
function mark(chart) {
  if (!chart.text.includes('"name":"at"')) return;
  const at = nearest(stepsIn(chart), step()) ?? -1, here = isNaN(step()) ? -1 : at;
  if (chart.name === "layer-map") chart.view.signal("layer", get("layer"));
  chart.view.signal("at", here).runAsync();
  const rows = rowsIn(chart).filter((row) => row.step === here && "value" in row && (!row.layer || row.layer === get("layer")));
  const line = all(".readout:not([id])", chart.place.closest("figure"))[0];
  if (line) line.textContent = rows.length ? `step ${here}: ${rows.slice(0, 8).map((row) => [row.run ?? row.layer, row.series, number(row.value)].join(" ")).join(" · ")}` : "";
}
function refresh(names) {
  for (const chart of names.map((name) => drawn.get(name)).filter(Boolean)) {
    if (sources[chart.name]) chart.sets = { rows: sources[chart.name]() };
    for (const [name, rows] of Object.entries(chart.sets)) chart.view.data(name, shown(rows));
    mark(chart);
  }
}
let frame;
function moveTo(at) {
  set("step", at);
  cancelAnimationFrame(frame);
  frame = requestAnimationFrame(() => {
    drawn.forEach(mark);
    refresh(["layer-diagram", "layer-bars"]);
    words();
  });
}
async function redraw() {
  for (const { place } of [...drawn.values()]) await draw(place);
}

// ---- The data behind a chart, and its keys

function openData({ target }) {
  const chart = drawn.get(target.closest("figure").querySelector("[data-chart]").dataset.chart), rows = rowsIn(chart), fields = Object.keys(rows[0] ?? {});
  const line = (tag, cells) => make("tr", {}, ...cells.map((cell) => make(tag, { textContent: number(cell) })));
  const quoted = (v) => `"${String(v ?? "").replaceAll('"', '""').replace(/^[=+@\t]/, "'$&")}"`;
  const csv = [fields, ...rows.map((row) => Object.values(row))].map((cells) => cells.map(quoted).join(",")).join("\n");
  const link = make("a", { href: `data:text/csv;charset=utf-8,${encodeURIComponent(csv)}`, download: `${chart.name}.csv`, textContent: "CSV" });
  const table = make("table", {}, line("th", fields), ...rows.slice(0, 300).map((row) => line("td", Object.values(row))));
  target.querySelector("div")?.remove();
  if (target.open) target.append(make("div", {}, make("p", {}, link, ` of ${rows.length} rows${rows.length > 300 ? ", the first 300 here" : ""}`), make("div", { className: "scroll tall", tabIndex: 0, role: "region", ariaLabel: "Data of the chart" }, table)));
}
function press(event) {
  const chart = drawn.get(event.currentTarget.dataset.chart), steps = stepsIn(chart), at = steps.indexOf(nearest(steps, step()));
  const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: steps.length - 1 }[event.key], down = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  const within = (list, i) => list[Math.max(0, Math.min(list.length - 1, i))];
  if (to !== undefined && steps.length) moveTo(within(steps, to));
  else if (down && chart.name === "layer-map") choose({ layer: within(layers().names, layers().names.indexOf(get("layer")) + down) });
  else if (event.key === "Escape") moveTo("");
  else return;
  event.preventDefault();
}

// ---- Controls and words

function choose(changes) {
  for (const [key, value] of Object.entries(changes)) set(key, value);
  const among = (key, names) => names.includes(get(key)) || set(key, names[0] ?? "");
  among("feature", [...features.keys()]);
  among("role", Object.keys(feature().values));
  among("run", Object.keys(explorer.layers).reverse());
  among("quantity", Object.keys(layers()?.values ?? {}));
  among("layer", layers()?.names.toReversed() ?? []);
  const options = { role: Object.keys(feature().values), run: Object.keys(explorer.layers), quantity: Object.keys(layers()?.values ?? {}) };
  for (const select of all("[data-state]")) {
    const key = select.dataset.state;
    if (options[key]) select.replaceChildren(...options[key].map((value) => make("option", { value, textContent: features.get(value)?.name ?? value })));
    select.value = get(key) || "step";
  }
  for (const box of all("[name=run]")) box.checked = !off().includes(box.value);
  "x" in changes ? redraw() : refresh(Object.keys(sources));
  words();
}
function words() {
  const rows = association.filter((row) => row.feature === get("feature") && row.group === get("role") && !off().includes(row.run)).slice(0, 6);
  const list = (field) => rows.map((row) => `${row.run} ${row[field] === null ? "not defined" : number(row[field])}`).join(", ") || "not defined";
  const texts = {
    at: isNaN(step()) ? "" : `step ${step()}`, "feature-title": `${feature().name}${get("role") === "network" ? "" : `, ${get("role")}`}`,
    "raw-note": `rho: ${list("rho")}. The step alone: ${list("rho_step")}.`, "given-note": `rho: ${list("rho_given_all")}. Verdict: ${list("verdict")}.`,
    "layer-title": get("layer"), "diagram-note": `Step ${sides().here}; faint: the checkpoints before and after.`,
  };
  for (const [id, text] of Object.entries(texts)) if (byId(id)) byId(id).textContent = text;
}

// ---- Tables: sorted by a click on a head, filtered, and a row leads to the explorer

function sortable(table) {
  const body = table.tBodies[0], rows = [...body.rows], heads = [...[...table.tHead.rows].at(-1).cells];
  const key = (cell) => (cell.textContent === "–" ? Infinity : parseFloat(cell.textContent.replace("−", "-").replace(/,|< /g, "")));
  const compare = (a, b) => (isNaN(key(a)) || isNaN(key(b)) ? a.textContent.localeCompare(b.textContent, "en", { numeric: true }) : key(a) - key(b) || 0);
  heads.forEach((head, i) => head.replaceChildren(make("button", { textContent: head.textContent, onclick: () => {
    const sign = head.ariaSort === "ascending" ? -1 : 1;
    for (const other of heads) other.ariaSort = null;
    head.ariaSort = sign > 0 ? "ascending" : "descending";
    body.append(...rows.sort((a, b) => sign * compare(a.cells[i], b.cells[i])));
  } })));
  const count = make("span", { role: "status" }), input = make("input", { type: "search", oninput: () => {
    for (const row of rows) row.hidden = !input.value.toLowerCase().split(/\s+/).every((word) => row.textContent.toLowerCase().includes(word));
    count.textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length} rows`;
  } });
  table.closest(".scroll").before(make("div", { className: "filter" }, make("label", {}, "Show only rows with ", input), count));
}
function leadToExplorer(row) {
  const { feature, group: role } = row.dataset, head = row.cells[0];
  if (features.has(feature)) head.replaceChildren(make("button", { className: "link", textContent: head.textContent, onclick: () => { choose({ feature, role }); byId("explore").scrollIntoView(); } }));
}

// ---- Start

function openPart() {
  const target = location.hash.includes("=") ? null : byId(decodeURIComponent(location.hash.slice(1)));
  for (let part = target; part; part = part.parentElement) if (part.tagName === "DETAILS") part.open = true;
  target?.scrollIntoView();
}
if (matchMedia("(prefers-color-scheme: dark)").matches) document.documentElement.dataset.theme = "dark";
byId("theme").onclick = () => {
  document.documentElement.dataset.theme = dark() ? "light" : "dark";
  redraw();
};
let wide = innerWidth;
addEventListener("resize", () => innerWidth !== wide && redraw((wide = innerWidth)));
addEventListener("beforeprint", () => all("details.part").forEach((part) => (part.open = true)));
addEventListener("hashchange", openPart);
if (explorer) {
  for (const select of all("[data-state]")) select.onchange = () => choose({ [select.dataset.state]: select.value });
  byId("bar").oninput = ({ target }) => {
    if (target.name !== "run") return;
    state.delete("off");
    for (const box of all("[name=run]:not(:checked)")) state.append("off", box.value);
    choose({});
    refresh([...drawn.keys()]);
  };
  byId("reset").onclick = () => {
    for (const key of [...state.keys()]) state.delete(key);
    choose({ x: "" });
  };
  choose({});
}
openPart();
for (const place of all("[data-chart]")) {
  await draw(place);
  await new Promise((done) => setTimeout(done)); // the page answers in between
}
all("table.sortable").forEach(sortable);
all("tr[data-feature]").forEach(leadToExplorer);
document.body.dataset.drawn = "yes";
