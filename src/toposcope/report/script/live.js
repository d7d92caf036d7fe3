// ---- The served page, which receives rows while it is open

const live = page.live, got = parsed("{}"), near = {}, looks = {}, pending = new Set(), fresh = new Set();
const query = (more) => `${new URLSearchParams({ study: live.study, ...fromEntries(["feature", "run", "quantity", "layer"].map((key) => [key, get(key)])), ...more })}`;
const ofRun = ({ chart, run, rows }) => rowsOf(rows).map((row) => (chart === "layer-map" ? { ...row, label: labelOf(run, row.layer) } : { run, ...row }));
const labelOf = (run, layer) => explorer.layers[run]?.labels[explorer.layers[run].names.indexOf(layer)] ?? layer;
let source, shownView, waits, heard, written, forecasts, main, touched = Date.now();

for (const name of [...live.charts, ...live.axes]) got[name] = Object.create(null);
known = (run, axis) => {
  const rows = got[axis]?.[run.name];
  return axis in got ? { steps: rows?.map((row) => row.step), values: rows?.map((row) => row.value) } : { steps: run.steps, values: run[axis] };
};
// Rows of a line; where the chart is zoomed in, the detailed ones.
for (const name of live.charts) sources[name] = () => {
  const lines = entries(got[name]).flatMap(([run, rows]) => {
    const closer = near[name]?.runs.get(run);
    return closer ? [...rows.filter((row) => row.step < near[name].from), ...closer, ...rows.filter((row) => row.step > near[name].to)] : rows;
  });
  if (name !== "explore-loss") return lines;
  const ofKind = (kind, rows) => (kind === main ? rows.map((row) => ({ ...row, series: kind })) : explorer.runs.length > 6 ? [] : rows.map((row) => ({ ...row, series: `${kind}, in grey` })));
  const all = [...ofKind("training", lines), ...ofKind("validation", sources["explore-validation"]()), ...forecasts];
  return all.map(({ run, step, value, series, low = null, high = null, forecast = null }) => ({ run, step, value, series, low, high, forecast }));
};
function take(message) {
  if (message.shape !== live.shape) return location.reload(); // the choices changed: a new run, layer or quantity
  for (const line of message.lines) {
    const { chart, run, after } = line, before = (got[chart][run] ?? []).filter((row) => row.step <= after);
    if (!keys(got[chart]).length && message !== live) fresh.add(chart);
    got[chart][run] = [...before, ...ofRun(line)];
    pending.add(chart === "explore-validation" ? "explore-loss" : chart);
    if (got[chart][run].length > live.most && message !== live) connect(); // reconnect to get them thinned
  }
  ({ forecasts, main } = message);
  written = Date.now() - 1000 * message.age;
  for (const [id, html] of entries(message.html)) {
    if (byId(id).dataset.html !== html) byId(id).replaceChildren(document.createRange().createContextualFragment(html));
    byId(id).dataset.html = html;
  }
  const renewed = message.version !== live.version;
  byId("renew").hidden = !renewed;
  if (renewed && Date.now() - touched > 30000 && !all("main details[open]").length) location.reload();
  for (const place of all(".first-charts [data-chart^=live-]")) place.parentElement.hidden = !Object.values(got[place.dataset.chart]).some((rows) => rows.length);
  if (message === live) return tick(); // its rows are drawn when the page is
  waits ??= setTimeout(async () => {
    waits = undefined;
    const first = [...fresh].filter((name) => drawn.has(name)); // the first rows determine the space of an axis
    const changed = page.axes[get("x")]?.field ? live.charts : ["explore-loss", ...pending];
    pending.clear();
    fresh.clear();
    offerAxes();
    refresh(changed);
    for (const name of first) await draw(drawn.get(name).place);
  }, 150);
  tick();
}
function tick() {
  const age = Math.max(0, Math.round((Date.now() - written) / 1000)), on = source?.readyState === 1, place = byId("age");
  const [n, unit] = age < 90 ? [age, "s"] : age < 5400 ? [age / 60, "min"] : age < 172800 ? [age / 3600, "h"] : [age / 86400, "days"];
  place.className = on ? "good" : "warn";
  place.replaceChildren(make("b", { textContent: on ? "●" : "○" }), on ? ` last written ${Math.round(n)} ${unit} ago` : " not connected; reconnecting");
}

// A connection serves one view. The browser reconnects by itself, and sends its position.
function connect() {
  source?.close();
  [heard, shownView] = [Date.now(), query()];
  source = new EventSource(`events?${shownView}`);
  source.onmessage = ({ data }) => {
    heard = Date.now();
    take(parsed(data));
  };
  source.addEventListener("alive", () => (heard = Date.now()));
  source.onopen = source.onerror = tick;
}
function watch() {
  if (document.hidden) source.close(); // a browser has few connections for all tabs
  else if (source.readyState === 2 || Date.now() - heard > 40000) connect();
  tick();
}
setInterval(watch, 1000);
document.addEventListener("visibilitychange", watch);
for (const name of ["pointermove", "keydown", "wheel"]) addEventListener(name, () => (touched = Date.now()));
byId("renew").onclick = () => location.reload();

async function look(name, between) {
  for (const each of [name, name === "explore-loss" && "explore-validation"]) delete near[each];
  if (between?.length) {
    const [from, to] = [Math.floor(between[0]), Math.ceil(between[1])], answer = await fetch(`detail?${query({ chart: name, from, to })}`);
    for (const line of answer.ok ? await answer.json() : []) (near[line.chart] ??= { from, to, runs: new Map() }).runs.set(line.run, ofRun(line));
  }
  refresh([name]);
}
const [plainDraw, plainChoose] = [draw, choose];
draw = async (place) => {
  const name = place.dataset.chart, isLine = name in got && name !== "layer-map" && !page.axes[get("x")]?.field;
  delete near[name];
  page.embed.renderer = sources[name]?.().length > 2000 ? "canvas" : "svg";
  await plainDraw(place);
  if (isLine) drawn.get(name).view.addSignalListener("zoom_step", (_, between) => {
    clearTimeout(looks[name]);
    looks[name] = setTimeout(look, 150, name, between);
  });
};
choose = (...given) => {
  plainChoose(...given);
  if (shownView === query()) return;
  for (const name of ["explore-feature", "layer-lines", "layer-map"]) got[name] = Object.create(null);
  connect();
};
take(live);

