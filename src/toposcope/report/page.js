// Draws the page's charts and answers its controls. Without it, text and tables are whole.
const page = JSON.parse(document.getElementById("data").textContent), explorer = page.explorer;
const byId = (id) => document.getElementById(id);
const all = (selector, within = document) => [...within.querySelectorAll(selector)];
const make = (tag, properties = {}, ...children) => {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
};

// ---- what is shown: kept in the address, so that a link leads to it

const state = new URLSearchParams(location.hash.includes("=") ? location.hash.slice(1) : "");
const get = (key) => state.get(key) ?? "";
const off = () => new Set(state.getAll("off"));
const step = () => (state.has("step") ? Number(get("step")) : NaN);
function set(key, value) {
  value === "" ? state.delete(key) : state.set(key, value);
}
let later;
function remember() {
  clearTimeout(later);
  later = setTimeout(() => history.replaceState(null, "", `#${state}`), 200);
}

// ---- data

const column = (c, i) => (!c.texts ? c[i] : c.at[i] < 0 ? null : c.texts[c.at[i]]);
function rowsOf(columns) {
  const [first] = Object.values(columns);
  const n = first ? (first.texts ? first.at : first).length : 0;
  return Array.from({ length: n }, (_, i) => Object.fromEntries(Object.entries(columns).map(([field, c]) => [field, column(c, i)])));
}
const unpacked = (text) => text && new Float32Array(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer);
const runs = (explorer?.runs ?? []).map((run) => ({ ...run, loss: unpacked(run.loss), tokens: unpacked(run.tokens), clocks: run.clocks.map(unpacked) }));
const features = new Map(explorer?.features.map((feature) => [feature.key, feature]));
const association = rowsOf(explorer?.association ?? {});
const feature = () => features.get(get("feature"));
const layers = () => explorer?.layers[get("run")];
const nearest = (steps, at) => steps.reduce((best, each) => (Math.abs(each - at) < Math.abs(best - at) ? each : best), steps[0]);
const number = (v) => (typeof v !== "number" ? (v ?? "–") : (Math.abs(v) >= 1e6 || (v && Math.abs(v) < 1e-3) ? v.toExponential(2) : String(+v.toPrecision(4))).replace("-", "−"));

// Mid-ranks less their mean, and what is left of them once those of the clocks are taken out.
function ranks(values) {
  const sorted = [...values].sort((a, b) => a - b);
  return values.map((v) => (sorted.indexOf(v) + sorted.lastIndexOf(v)) / 2 - (values.length - 1) / 2);
}
const dot = (a, b) => a.reduce((sum, v, i) => sum + v * b[i], 0);
function without(series, clocks) {
  const basis = [];
  const residual = (values) => basis.reduce((left, b) => left.map((v, i) => v - dot(left, b) * b[i]), values);
  for (const clock of clocks) {
    const left = residual(clock), size = Math.sqrt(dot(left, left));
    if (size > 1e-6 * Math.sqrt(dot(clock, clock))) basis.push(left.map((v) => v / size));
  }
  return residual(series);
}

// ---- rows of the explorer's charts

const lines = (run, values) => run.steps.map((step, i) => ({ run: run.name, step, value: values[i] })).filter((row) => Number.isFinite(row.value));
const chosen = (run) => unpacked(feature()?.values[get("role")]?.[run.name]);
const ofRuns = (values) => runs.flatMap((run) => { const v = values(run); return v ? lines(run, v) : []; });

function pairs(given) {
  return runs.flatMap((run) => {
    const values = chosen(run);
    if (!values) return [];
    const known = run.steps.map((_, i) => i).filter((i) => [values, run.loss, ...run.clocks].every((series) => Number.isFinite(series[i])));
    let [a, b, ...clocks] = [values, run.loss, ...run.clocks].map((series) => known.map((i) => series[i]));
    if (given) [a, b] = [a, b].map((series) => without(ranks(series), clocks.map(ranks)));
    return known.map((i, k) => ({ run: run.name, step: run.steps[i], a: a[k], b: b[k] }));
  });
}
function cells() {
  const run = runs.find((each) => each.name === get("run")), values = unpacked(layers()?.values[get("quantity")]);
  if (!values) return [];
  return layers().names.flatMap((layer, i) => run.steps.map((step, j) => {
    const value = values[i * run.steps.length + j];
    return { layer, step, value: Number.isFinite(value) ? value : null };
  }));
}
const ofLayer = () => ofRuns((run) => {
  const of = explorer.layers[run.name], place = of?.names.indexOf(get("layer")), n = run.steps.length;
  return place >= 0 && unpacked(of.values[get("quantity")])?.slice(place * n, (place + 1) * n);
});
function barsAt() {
  const of = explorer.diagrams[get("run")] ?? {}, steps = Object.keys(of).map(Number), here = nearest(steps, step() || 0), place = steps.indexOf(here);
  return { here, sides: [[steps[place - 1], "before"], [steps[place + 1], "after"], [here, "here"]].map(([at, when]) => [when, of[at]?.[get("layer")] ?? {}]) };
}
const bars = () => barsAt().sides.flatMap(([when, of]) => Object.entries(of).flatMap(([name, { bars }]) => {
  const points = unpacked(bars);
  return Array.from({ length: points.length / 2 }, (_, i) => ({ name, when, birth: points[2 * i], death: points[2 * i + 1], place: `${name} ${100 + i}` }));
}));
const sources = {
  "explore-loss": () => ofRuns((run) => run.loss), "explore-feature": () => ofRuns(chosen),
  "explore-raw": () => pairs(false), "explore-given": () => pairs(true),
  "layer-map": cells, "layer-lines": ofLayer, "layer-diagram": bars, "layer-bars": bars,
};

// ---- drawing

const drawn = new Map(); // name -> { view, place, sets: name of data -> rows, text: specification }
const dark = () => document.documentElement.dataset.theme === "dark";

// The rows of runs that are on, with the value of the page's x axis, between checkpoints by interpolation.
function shown(rows) {
  const kept = rows.filter((row) => !off().has(row.run));
  const axis = get("x");
  if (axis !== "tokens" && axis !== "loss") return kept;
  return kept.map((row) => {
    const run = runs.find((each) => each.name === row.run), i = run?.steps.findIndex((each) => each >= row.step) ?? -1;
    if (i < 0 || !run[axis]) return { ...row, x: null };
    const j = Math.max(0, i - (run.steps[i] > row.step)), share = i === j ? 0 : (row.step - run.steps[j]) / (run.steps[i] - run.steps[j]);
    return { ...row, x: run[axis][j] + share * (run[axis][i] - run[axis][j]) };
  });
}
const AXES = {
  log: { scale: { type: "symlog", constant: 1, nice: false }, axis: { values: [0, 1, 10, 100, 1e3, 1e4, 1e5, 1e6, 1e7], format: "~s" } },
  tokens: { field: "x", title: "tokens", scale: { nice: false }, axis: { format: "~s" } },
  loss: { field: "x", title: "loss, falling to the right", scale: { zero: false, nice: false, reverse: true }, axis: {} },
};
// The same specification at another width, and with the page's x axis wherever x is the training step.
function adapted(spec, width) {
  const { hconcat, ...out } = spec;
  const x = spec.encoding?.x;
  if (x?.field === "step" && x.type === "quantitative" && AXES[get("x")])
    out.encoding = { ...spec.encoding, x: { ...x, ...AXES[get("x")] }, ...((spec.mark.type ?? spec.mark) === "line" && { order: { field: "step" } }) };
  if (spec.layer) out.layer = spec.layer.map((part) => { const { width: _, ...rest } = adapted(part, width); return rest; });
  const children = hconcat ?? spec.concat ?? spec.vconcat;
  if (!children && !spec.spec) return { ...out, width: Math.max(60, width) };
  const columns = spec.vconcat ? 1 : Math.max(1, Math.min(hconcat?.length ?? spec.columns ?? 1, Math.floor(width / 240)));
  const inner = (child) => adapted(child, width / columns - 20);
  if (spec.spec) out.spec = inner(spec.spec);
  else out[spec.vconcat ? "vconcat" : "concat"] = children.map(inner);
  return spec.vconcat ? out : { ...out, columns };
}

async function draw(place) {
  const name = place.dataset.chart, text = JSON.stringify(page.charts[name]), room = place.clientWidth || Number(place.dataset.room);
  const named = Object.keys(page.datasets).filter((each) => text.includes(each));
  const sets = sources[name] ? { rows: sources[name]() } : Object.fromEntries(named.map((each) => [each, rowsOf(page.datasets[each])]));
  const datasets = Object.fromEntries(Object.entries(sets).map(([each, rows]) => [each, shown(rows)]));
  const look = { datasets, config: page.config[dark() ? "dark" : "light"], background: "transparent" };
  let width = room - 70, view;
  for (const attempt of [1, 2, 3]) {
    view?.finalize();
    ({ view } = await vegaEmbed(place, { ...adapted(page.charts[name], width), ...look }, { actions: false, renderer: "svg", ast: true, logLevel: 1, tooltip: { theme: dark() ? "dark" : "light" } }));
    const excess = (place.querySelector("svg")?.getBoundingClientRect().width || room) - room;
    if (Math.abs(excess) < 8) break;
    width -= excess;
  }
  drawn.get(name)?.view.finalize();
  const chart = { view, place, sets, text };
  drawn.set(name, chart);
  if (text.includes('"hover"')) view.addSignalListener("hover", (_, value) => (value.step ? moveTo(value.step[0]) : mark(chart)));
  if (name === "layer-map") view.addEventListener("click", (_, item) => item?.datum?.layer && choose({ layer: item.datum.layer, step: item.datum.step }));
  tools(place, name);
  mark(chart);
}

const rowsIn = (chart) => shown(Object.values(chart.sets)[0] ?? []);
const stepsIn = (chart) => [...new Set(rowsIn(chart).map((row) => row.step))].filter(Number.isFinite).sort((a, b) => a - b);

// Put a chart's cursor at the step, and write the values there above it.
function mark(chart) {
  if (!chart.text.includes('"name":"at"')) return;
  const at = Number.isNaN(step()) ? -1 : nearest(stepsIn(chart), step()) ?? -1;
  if (chart.text.includes('"name":"layer"')) chart.view.signal("layer", get("layer"));
  chart.view.signal("at", at).runAsync();
  const line = chart.place.closest("figure").querySelector(".readout:not([id])");
  const here = rowsIn(chart).filter((row) => row.step === at && typeof row.value === "number" && (!row.layer || row.layer === get("layer")));
  if (line) line.textContent = here.length ? `step ${at}: ${here.slice(0, 8).map((row) => [row.run ?? row.layer, row.series, number(row.value)].filter(Boolean).join(" ")).join(" · ")}` : "";
}
function refresh(names) {
  for (const chart of names.map((name) => drawn.get(name)).filter(Boolean)) {
    if (sources[chart.place.dataset.chart]) chart.sets = { rows: sources[chart.place.dataset.chart]() };
    for (const [name, rows] of Object.entries(chart.sets)) chart.view.data(name, shown(rows));
    chart.view.runAsync();
    mark(chart);
  }
}
async function redraw() {
  for (const { place } of [...drawn.values()]) await draw(place);
}
let frame;
function moveTo(at) {
  set("step", at);
  cancelAnimationFrame(frame);
  frame = requestAnimationFrame(() => {
    drawn.forEach(mark);
    refresh(["layer-diagram", "layer-bars"]);
    words();
    remember();
  });
}

// ---- copies of a chart, the data behind it, and its keys

function csv(rows) {
  const fields = Object.keys(rows[0] ?? {}), quoted = (v) => `"${String(v ?? "").replaceAll('"', '""').replace(/^(?=[=+@\t\r]|-\D)/, "'")}"`;
  return [fields, ...rows.map((row) => fields.map((field) => row[field]))].map((line) => line.map(quoted).join(",")).join("\n");
}
async function copy({ view, ...chart }, kind, name) {
  const blob = kind === "PNG" ? await (await fetchless(view)) : new Blob([kind === "SVG" ? await view.toSVG() : csv(rowsIn(chart))], { type: kind === "SVG" ? "image/svg+xml" : "text/csv" });
  try {
    await (kind === "PNG" ? navigator.clipboard.write([new ClipboardItem({ [blob.type]: blob })]) : navigator.clipboard.writeText(await blob.text()));
    return "copied";
  } catch {
    make("a", { href: URL.createObjectURL(blob), download: `${name}.${kind.toLowerCase()}` }).click(); // no clipboard here: a file instead
    return "saved";
  }
}
const fetchless = async (view) => new Promise(async (done) => (await view.toCanvas(2)).toBlob(done));
function tools(place, name) {
  const figure = place.closest("figure");
  if (figure.querySelector(".tools")) return;
  const buttons = ["SVG", "PNG", "CSV"].map((kind) => make("button", { type: "button", textContent: kind, title: `Copy as ${kind}`, onclick: async ({ target }) => (target.textContent = await copy(drawn.get(name), kind, name)) }));
  const data = make("details", { className: "rows" }, make("summary", { textContent: "Data" }));
  data.addEventListener("toggle", () => {
    const rows = rowsIn(drawn.get(name)), line = (tag, cells) => make("tr", {}, ...cells.map((cell) => make(tag, { textContent: number(cell) })));
    const table = make("table", {}, make("caption", { textContent: rows.length > 300 ? `The first 300 of ${rows.length} rows; CSV has all.` : "" }), line("th", Object.keys(rows[0] ?? {})), ...rows.slice(0, 300).map((row) => line("td", Object.values(row))));
    data.querySelector(".scroll")?.remove();
    if (data.open) data.append(make("div", { className: "scroll tall", tabIndex: 0, role: "region", ariaLabel: "Data of the chart" }, table));
  });
  figure.append(make("div", { className: "tools" }, ...buttons, data));
  place.addEventListener("keydown", (event) => {
    const steps = stepsIn(drawn.get(name)), at = steps.indexOf(nearest(steps, step())), names = name === "layer-map" ? layers().names : [];
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: steps.length - 1 }[event.key], down = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (to !== undefined && steps.length) moveTo(steps[Math.max(0, Math.min(steps.length - 1, to))]);
    else if (down && names.length) choose({ layer: names[Math.max(0, Math.min(names.length - 1, names.indexOf(get("layer")) + down))] });
    else if (event.key === "Escape") moveTo("");
    else return;
    event.preventDefault();
  });
}

// ---- controls and words

function choose(changes) {
  for (const [key, value] of Object.entries(changes)) set(key, value);
  const among = (key, names) => names.includes(get(key)) || set(key, names[0] ?? "");
  among("feature", [...features.keys()]);
  among("role", Object.keys(feature()?.values ?? {}));
  among("run", Object.keys(explorer.layers).reverse());
  among("quantity", Object.keys(layers()?.values ?? {}));
  among("layer", [...(layers()?.names ?? [])].reverse());
  const options = { role: Object.keys(feature().values), run: Object.keys(explorer.layers), quantity: Object.keys(layers()?.values ?? {}) };
  for (const select of all("select[data-state]")) {
    const key = select.dataset.state;
    if (options[key]) select.replaceChildren(...options[key].map((value) => make("option", { value, textContent: features.get(value)?.name ?? value })));
    select.value = get(key) || "step";
  }
  for (const box of all("input[name=run]")) box.checked = !off().has(box.value);
  "x" in changes ? redraw() : refresh("off" in changes ? [...drawn.keys()] : Object.keys(sources));
  words();
  remember();
}
function words() {
  if (!explorer) return;
  const rows = association.filter((row) => row.feature === get("feature") && row.group === get("role") && !off().has(row.run)).slice(0, 6);
  const list = (field) => rows.map((row) => `${row.run} ${row[field] === null ? "not defined" : number(row[field])}`).join(", ") || "not defined";
  const texts = {
    at: Number.isNaN(step()) ? "" : `step ${step()}`,
    "feature-title": `${feature()?.name}${get("role") === "network" ? "" : `, ${get("role")}`}`,
    "raw-title": "Against the loss", "raw-note": `rho: ${list("rho")}. The step alone: ${list("rho_step")}.`,
    "given-title": "Step, rate and norm taken out", "given-note": `rho: ${list("rho_given_all")}. ${list("verdict")}.`,
    "layer-title": get("layer"), "diagram-note": `${get("layer")} at step ${barsAt().here}; faint: the checkpoints before and after`,
  };
  for (const [id, text] of Object.entries(texts)) if (byId(id)) byId(id).textContent = text;
}

// ---- tables: sorting by a click on a head, filtering, and rows that lead to the explorer

function sortable(table) {
  const body = table.tBodies[0], rows = [...body.rows], heads = [...table.tHead.rows].at(-1).cells;
  const key = (cell) => (cell.textContent.trim() === "–" ? Infinity : parseFloat(cell.textContent.replaceAll("−", "-").replace(/,|^< /g, "")));
  const compare = (a, b) => (Number.isNaN(key(a)) || Number.isNaN(key(b)) ? a.textContent.localeCompare(b.textContent, "en", { numeric: true }) : key(a) - key(b) || 0);
  [...heads].forEach((head, i) => {
    const button = make("button", { type: "button", textContent: head.textContent, onclick: () => {
      const sign = head.ariaSort === "ascending" ? -1 : 1;
      for (const other of heads) other.ariaSort = null;
      head.ariaSort = sign > 0 ? "ascending" : "descending";
      body.append(...rows.sort((a, b) => sign * compare(a.cells[i], b.cells[i])));
    } });
    head.replaceChildren(button);
  });
  const count = make("span", { role: "status" }), input = make("input", { type: "search", oninput: () => {
    const words = input.value.toLowerCase().split(/\s+/);
    for (const row of rows) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
    count.textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length} rows`;
  } });
  table.closest(".scroll").before(make("div", { className: "filter" }, make("label", {}, "Show only rows with ", input), count));
}
function leadToExplorer(row) {
  const { feature, group } = row.dataset, head = row.querySelector("th");
  if (features.has(feature)) head.replaceChildren(make("button", { type: "button", className: "link", textContent: head.textContent, onclick: () => { choose({ feature, role: group }); byId("explore").scrollIntoView(); } }));
}

// ---- start: what is on screen, then the rest

const open = (part) => { if (part) { part.open = true; part.scrollIntoView(); } };
function measure() {
  const main = byId("content").clientWidth - 40;
  for (const place of all("[data-chart]")) place.dataset.room = main < 900 || place.closest(".wide") ? main : (main - 24) / 2;
}
function listen() {
  byId("theme").onclick = () => { document.documentElement.dataset.theme = dark() ? "light" : "dark"; redraw(); };
  addEventListener("beforeprint", () => all("details.part").forEach((part) => (part.open = true)));
  addEventListener("hashchange", () => open(byId(location.hash.slice(1))?.closest("details.part")));
  let width = innerWidth, timer;
  addEventListener("resize", () => { clearTimeout(timer); timer = setTimeout(() => { if (innerWidth !== width) { width = innerWidth; measure(); redraw(); } }, 200); });
  if (!explorer) return;
  for (const select of all("select[data-state]")) select.onchange = () => choose({ [select.dataset.state]: select.value });
  byId("bar").onchange = ({ target }) => { if (target.name !== "run") return; state.delete("off"); for (const box of all("input[name=run]:not(:checked)")) state.append("off", box.value); choose({ }); refresh([...drawn.keys()]); };
  byId("reset").onclick = () => { for (const key of [...state.keys()]) state.delete(key); choose({ x: "" }); };
}
if (matchMedia("(prefers-color-scheme: dark)").matches) document.documentElement.dataset.theme = "dark";
measure();
listen();
for (const [key, each] of features) {
  let group = all("optgroup", byId("feature")).find((group) => group.label === each.kind);
  if (!group) byId("feature").append((group = make("optgroup", { label: each.kind })));
  group.append(make("option", { value: key, textContent: each.name }));
}
if (explorer) choose({});
all("table.sortable").forEach(sortable);
all("tr[data-feature]").forEach(leadToExplorer);
open(location.hash && !location.hash.includes("=") && byId(location.hash.slice(1))?.closest("details.part"));
const places = all("[data-chart]");
for (const place of places.filter((place) => !place.closest("details:not([open])"))) await draw(place);
document.body.dataset.ready = "yes";
for (const place of places.filter((place) => !drawn.has(place.dataset.chart))) {
  await new Promise((done) => setTimeout(done));
  await draw(place);
}
document.body.dataset.drawn = "yes";
