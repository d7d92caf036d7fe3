// The page's charts and controls.
// Runs and layers may be named as a member of every object (constructor, toString): no dictionary here has any, and Vega, whose
// own dictionaries do, gets such names with an invisible character at the end.
const parsed = (text) => JSON.parse(text, (_, v) => (v && typeof v === "object" && !Array.isArray(v) ? Object.setPrototypeOf(v, null) : v));
const forVega = (v) => {
  if (typeof v === "string") return v in Object.prototype ? `${v}\u2060` : v;
  if (!v || typeof v !== "object") return v;
  return Array.isArray(v) ? v.map(forVega) : fromEntries(entries(v).map(([key, each]) => [forVega(key), forVega(each)]));
};
const page = parsed(document.getElementById("data").textContent), explorer = page.explorer;
const { entries, fromEntries, keys } = Object, root = document.documentElement;
const byId = (id) => document.getElementById(id);
const all = (selector) => [...document.querySelectorAll(selector)];
const make = (tag, properties) => Object.assign(document.createElement(tag), properties);

// ---- State

const state = new URLSearchParams(location.hash.includes("=") ? location.hash.slice(1) : "");
const get = (key) => state.get(key) ?? "";
const step = () => parseFloat(get("step"));
const off = () => state.getAll("off");
let later;
function remember() {
  clearTimeout(later);
  later = setTimeout(() => history.replaceState(null, "", `#${state}`), 200);
}
function set(key, value) {
  value === "" ? state.delete(key) : state.set(key, value);
  remember();
}

// ---- Data

const rowsOf = (columns) => (Object.values(columns)[0] ?? []).map((_, i) => fromEntries(entries(columns).map(([field, values]) => [field, values[i]])));
const unpacked = (text) => text && [...new Float32Array(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer)];
const runs = (explorer?.runs ?? []).map((run) => ({ ...run, loss: unpacked(run.loss), tokens: unpacked(run.tokens), covariates: run.covariates.map(unpacked) }));
const features = new Map(explorer?.features.map((each) => [each.key, each]));
const feature = () => features.get(get("feature"));
const layers = () => explorer.layers[get("run")];
const nearest = (steps, at) => steps.reduce((best, each) => (Math.abs(each - at) < Math.abs(best - at) ? each : best), steps[0]);
const largest = (values) => values.reduce((most, v) => Math.max(most, Math.abs(v) || 0), 0);
// As people write it; next to numbers of size `most` a rounding error is 0.
function number(v, most = 0) {
  if (typeof v !== "number") return v ?? "–";
  if (Math.abs(v) <= 1e-12 * most) return "0";
  if (Math.abs(v) < 1e-4 || Math.abs(v) >= 1e15) return `${+v.toPrecision(3)}`;
  return v.toLocaleString("en", Number.isInteger(v) ? {} : { maximumSignificantDigits: 4 });
}

// Centred ranks; the last of some series, those before it regressed out.
function ranks(values) {
  const sorted = values.toSorted((a, b) => a - b);
  return values.map((v) => (sorted.indexOf(v) + sorted.lastIndexOf(v) - values.length + 1) / 2);
}
const dot = (a, b) => a.reduce((sum, v, i) => sum + v * b[i], 0);
function residual(series) {
  const free = [];
  for (const values of series) {
    const left = free.reduce((rest, base) => rest.map((v, i) => v - (dot(rest, base) / dot(base, base)) * base[i]), values);
    if (dot(left, left) > 1e-12 * dot(values, values)) free.push(left);
    else if (values === series.at(-1)) return values.map(() => 0);
  }
  const left = free.at(-1), most = largest(left);
  return left.map((v) => (Math.abs(v) <= 1e-12 * most ? 0 : v));
}

// ---- Rows of charts

const linesOf = (values) => runs.flatMap((run) => (values(run) || []).map((value, i) => ({ run: run.name, step: run.steps[i], value })).filter((row) => !isNaN(row.value)));
const chosen = (run) => unpacked(feature()?.values[get("role")]?.[run.name]);
const ofLayer = (run) => {
  const of = explorer.layers[run.name], place = of?.names.indexOf(get("layer")), n = run.steps.length;
  return place >= 0 && unpacked(of.values[get("quantity")])?.slice(place * n, (place + 1) * n);
};
function pairs(given) {
  return runs.flatMap((run) => {
    const series = [chosen(run), run.loss, ...run.covariates];
    if (!series[0]) return [];
    const known = run.steps.map((_, i) => i).filter((i) => series.every((values) => !isNaN(values[i])));
    let [a, b, ...covariates] = series.map((values) => known.map((i) => values[i]));
    if (given) [a, b] = [a, b].map((values) => residual([...covariates, values].map(ranks)));
    return known.map((i, k) => ({ run: run.name, step: run.steps[i], a: a[k], b: b[k] }));
  });
}
function cells() {
  const { steps } = runs.find((run) => run.name === get("run")) ?? { steps: [] }, values = unpacked(layers()?.values[get("quantity")]);
  return (values ?? []).map((value, i) => ({ layer: layers().names[Math.floor(i / steps.length)], label: layers().labels[Math.floor(i / steps.length)], step: steps[i % steps.length], value }));
}
function sides() {
  const of = explorer.diagrams[get("run")] ?? {}, steps = keys(of).map(Number), i = steps.indexOf(nearest(steps, isNaN(step()) ? 1e15 : step()));
  return { before: steps[i - 1], after: steps[i + 1], here: steps[i] };
}
const bars = () => entries(sides()).flatMap(([when, at]) => entries(explorer.diagrams[get("run")]?.[at]?.[get("layer")] ?? {}).flatMap(([name, of]) => {
  const points = unpacked(of.bars);
  return points.flatMap((birth, i) => (i % 2 ? [] : { name, when, birth, death: points[i + 1], place: `${name} ${100 + i / 2}` }));
}));
const sources = {
  "explore-loss": () => linesOf((run) => run.loss), "explore-feature": () => linesOf(chosen), "explore-raw": () => pairs(false),
  "explore-given": () => pairs(true), "layer-map": cells, "layer-lines": () => linesOf(ofLayer), "layer-diagram": bars, "layer-bars": bars,
};

// ---- Drawing

const drawn = new Map(); // by name; a chart's own rows are the first of its sets

// Rows of runs that are on, on the x axis.
function shown(rows) {
  const axis = get("x"), hidden = off();
  const at = (row) => {
    const run = runs.find((each) => each.name === row.run);
    return run?.[axis]?.[run.steps.indexOf(row.step)] ?? null;
  };
  const kept = rows.filter((row) => !hidden.includes(row.run));
  return page.axes[axis]?.field ? kept.map((row) => ({ ...row, x: at(row) })) : kept;
}
// A chart at another width, on the page's x axis.
function adapted(spec, width) {
  const out = { ...spec }, x = spec.encoding?.x, axis = page.axes[get("x")], parts = spec.concat ?? spec.vconcat;
  if (x?.field === "step" && x.type === "quantitative" && axis) {
    out.encoding = { ...spec.encoding, x: { ...x, ...axis } };
    if (spec.mark.type === "line") out.encoding.order = { field: "step" };
  }
  if (spec.layer) out.layer = spec.layer.map((part) => ({ ...adapted(part, width), width: undefined }));
  if (!parts && !spec.spec) return { ...out, width: Math.max(140, width) };
  const columns = Math.max(1, Math.min(spec.columns ?? 1, Math.floor(width / 240))), inner = (part) => adapted(part, width / columns - 20);
  return spec.spec ? { ...out, columns, spec: inner(spec.spec) } : { ...out, columns, concat: parts.map(inner), vconcat: undefined };
}

async function draw(place) {
  const name = place.dataset.chart, { spec, cursor, hover } = page.charts[name], room = place.clientWidth || 560;
  const sets = sources[name] ? { rows: sources[name]() } : fromEntries(page.charts[name].datasets.map((each) => [each, rowsOf(page.datasets[each])]));
  const datasets = fromEntries(entries(sets).map(([each, rows]) => [each, shown(rows)]));
  const config = structuredClone(page.config[root.dataset.theme]);
  config.legend.columns = Math.ceil(room / 170 - 1);
  config.axis.labelLimit = Math.min(180, room / 3);
  drawn.get(name)?.view.finalize();
  let view, width = room - 70;
  for (let tries = 0; tries < 3; tries++) {
    view?.finalize();
    ({ view } = await vegaEmbed(place, forVega({ ...adapted(spec, width), datasets, config }), { ...page.embed, downloadFileName: name, tooltip: { theme: root.dataset.theme } }));
    const excess = (place.querySelector(".marks").getBoundingClientRect().width || room) - room; // 0: hidden
    if (excess < 8 && excess > -20) break;
    width -= excess;
  }
  const chart = { name, view, place, sets, cursor };
  drawn.set(name, chart);
  if (hover) view.addSignalListener("hover", (_, value) => value.step && moveTo(value.step[0]));
  place.querySelector("summary").ariaLabel = "Save";
  place.querySelector(".marks").ariaHidden = true;
  place.onkeydown = press;
  place.nextElementSibling.ontoggle = openData;
  if (name === "layer-map") view.addEventListener("click", (_, item) => item?.datum?.layer && choose({ layer: item.datum.layer.replace(/\u2060$/, ""), step: item.datum.step }));
  mark(chart);
}
const rowsIn = (chart) => shown(Object.values(chart.sets)[0]);
const stepsIn = (chart) => [...new Set(rowsIn(chart).map((row) => row.step))].filter(isFinite).sort((a, b) => a - b);
const stepOf = (chart) => (isNaN(step()) ? -1 : (nearest(stepsIn(chart), step()) ?? -1));

// Put a chart's cursor at the step; write the values there.
function mark(chart) {
  if (!chart.cursor) return;
  const here = stepOf(chart), line = chart.place.previousElementSibling;
  if (chart.name === "layer-map") chart.view.signal("layer", forVega(get("layer")));
  chart.view.signal("at", here).runAsync();
  const rows = rowsIn(chart).filter((row) => row.step === here && "value" in row && (!row.layer || row.layer === get("layer")));
  const values = rows.slice(0, 8).map((row) => [row.run ?? row.layer, row.series, number(row.value)].join(" "));
  if (!line.id) line.textContent = rows.length ? `step ${here}: ${values.join(" · ")}` : "";
}
function refresh(names) {
  for (const chart of names.map((name) => drawn.get(name)).filter(Boolean)) {
    if (sources[chart.name]) chart.sets = { rows: sources[chart.name]() };
    for (const [name, rows] of entries(chart.sets)) chart.view.data(name, forVega(shown(rows)));
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
let turn = 0;
async function redraw() {
  const own = ++turn, visible = ({ place }) => place.checkVisibility();
  for (const { place } of [...drawn.values()].sort((a, b) => visible(b) - visible(a))) {
    if (own === turn) await draw(place);
    await new Promise((done) => setTimeout(done));
  }
}

// ---- Data and keys

function openData({ target }) {
  const chart = drawn.get(target.previousElementSibling.dataset.chart), rows = rowsIn(chart), table = make("table");
  const fields = keys(rows[0] ?? {}), sizes = fields.map((field) => largest(rows.map((row) => row[field])));
  const { textContent } = target.closest("figure").querySelector("h2, h3"), quantity = get("quantity");
  const value = chart.name.startsWith("layer") ? (features.get(quantity)?.name ?? quantity) : textContent;
  const names = { value, x: page.axes[get("x")]?.title, ...page.charts[chart.name].columns };
  const lines = [fields.map((field) => names[field] ?? field.replaceAll("_", " ")), ...rows.map(Object.values)];
  const quoted = (v) => `"${`${v ?? ""}`.replaceAll('"', '""').replace(/^\s*[=+@-](?![\d.])|^[\t\r]/, "'$&")}"`;
  table.createTHead().insertRow().append(...lines[0].map((textContent) => make("th", { textContent, scope: "col" })));
  const body = table.createTBody();
  for (const line of lines.slice(1, 301)) body.insertRow().append(...line.map((cell, i) => make("td", { textContent: number(cell, sizes[i]) })));
  const href = `data:text/csv,${encodeURIComponent(lines.map((line) => line.map(quoted).join(",")).join("\n"))}`;
  const link = make("a", { href, download: `${chart.name}.csv`, textContent: "CSV" });
  target.querySelector("div")?.remove();
  const box = make("div", { className: "scroll tall", tabIndex: 0, role: "region", ariaLabel: "Data" });
  box.append(link, table);
  if (target.open) target.append(box);
}
function press(event) {
  const chart = drawn.get(event.currentTarget.dataset.chart), steps = stepsIn(chart), here = steps.indexOf(stepOf(chart));
  const along = { ArrowRight: 1, ArrowLeft: -1 }[event.key], down = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  const within = (list, i) => list[Math.max(0, Math.min(list.length - 1, i))];
  if (along && steps.length) moveTo(within(steps, here + along));
  else if (down && chart.name === "layer-map") choose({ layer: within(layers().names, layers().names.indexOf(get("layer")) + down) });
  else if (event.key === "Escape") moveTo("");
  else return;
  event.preventDefault();
}

// ---- Controls and words

const choices = {
  feature: () => [...features.keys()],
  role: () => keys(feature().values),
  run: () => keys(explorer.layers),
  quantity: () => keys(layers()?.values ?? {}),
  layer: () => layers()?.names ?? [],
};
function choose(changes) {
  for (const [key, value] of entries(changes)) set(key, value);
  if (changes.feature in (layers()?.values ?? {})) set("quantity", changes.feature);
  for (const [key, values] of entries(choices)) if (!values().includes(get(key))) set(key, values()[0] ?? "");
  for (const select of all("[data-state]")) {
    const key = select.dataset.state, titles = layers()?.titles ?? [];
    const option = (value, i) => new Option((key === "quantity" && titles[i]) || value, value);
    if (choices[key] && key !== "feature") select.replaceChildren(...choices[key]().map(option));
    select.value = get(key) || "step";
  }
  for (const box of all("[name=run]")) box.checked = !off().includes(box.value);
  "x" in changes ? redraw() : refresh(keys(sources));
  words();
}
function words() {
  if (!explorer) return;
  const [raw, given] = feature().notes[get("role")] ?? ["", ""];
  const texts = {
    at: isNaN(step()) ? "" : `step ${step()}`,
    "feature-title": `${feature().name}, ${get("role")}`,
    "raw-note": raw,
    "given-note": given,
    "layer-title": get("layer"),
    "diagram-note": `${get("layer")} at step ${sides().here}; faint: before and after`,
  };
  for (const [id, text] of entries(texts)) if (byId(id)) byId(id).textContent = text;
}

// ---- Tables

function sortable(table) {
  const body = table.tBodies[0], rows = [...body.rows], heads = [...table.tHead.lastElementChild.cells];
  const key = ({ textContent: text }) => {
    const value = parseFloat(text.replace("−", "-").replace(/,|< /g, ""));
    return text === "–" ? Infinity : isNaN(value) ? text : value;
  };
  const compare = (a, b) => (typeof a === typeof b ? (a > b) - (a < b) : typeof a === "number" ? -1 : 1);
  heads.forEach((head, i) => (head.firstChild.onclick = () => {
    const sign = head.ariaSort === "ascending" ? -1 : 1;
    for (const other of heads) other.ariaSort = null;
    head.ariaSort = sign > 0 ? "ascending" : "descending";
    body.append(...rows.sort((a, b) => sign * compare(key(a.cells[i]), key(b.cells[i]))));
  }));
  table.parentElement.previousElementSibling.oninput = ({ target, currentTarget }) => {
    const words = target.value.toLowerCase().split(/\s+/);
    for (const row of rows) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
    currentTarget.lastChild.textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length}`;
  };
}
function leadToExplorer(row) {
  row.querySelector("button").onclick = () => {
    choose({ feature: row.dataset.feature, role: row.dataset.group });
    byId("explore").scrollIntoView();
  };
}

// ---- Start

if (matchMedia("(prefers-color-scheme: dark)").matches) root.dataset.theme = "dark";
byId("theme").onclick = () => {
  root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
  redraw();
};
let wide = innerWidth;
addEventListener("resize", () => innerWidth !== wide && redraw((wide = innerWidth)));
addEventListener("beforeprint", () => all("details.part").forEach((part) => (part.open = true)));
if (explorer) {
  for (const select of all("[data-state]")) select.onchange = () => choose({ [select.dataset.state]: select.value });
  byId("bar").oninput = ({ target }) => {
    if (target.name !== "run") return;
    state.delete("off");
    if (!all("[name=run]:checked").length) target.checked = true;
    for (const box of all("[name=run]:not(:checked)")) state.append("off", box.value);
    choose({});
    redraw();
    remember();
  };
  byId("reset").onclick = () => {
    for (const key of [...state.keys()]) state.delete(key);
    choose({ x: "" });
  };
  choose({});
}
all("table.sortable").forEach(sortable);
all("tr[data-feature]").forEach(leadToExplorer);
for (const place of all("[data-chart]")) {
  await draw(place).catch(console.error);
  await new Promise((done) => setTimeout(done));
}
document.body.dataset.drawn = "yes";
