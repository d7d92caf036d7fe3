// ---- The served page, which receives rows while it is open

const live = page.live, got = parsed("{}"), near = {}, looks = {}, changed = new Set(); // rows by quantity, run and layer
const MOST = 800, LEAST = 100; // rows of one chart, and of each of its runs: of more, neighbours are drawn as one
const COLUMNS = 48, PLACES = 64; // of the layer map; of a run on another axis, between which it is a straight line
const MAX_AHEAD = 2; // of the steps seen, for which a forecast is drawn beyond them
const RELOAD_MS = 10000; // after which a page may be loaded anew
const PATIENCE = 2000; // milliseconds until charts are drawn without rows
const WHOLE = ["", "network", "pooled"]; // in place of a layer
const KEYS = {
  "explore-loss": ["log loss"], "explore-validation": ["log validation_loss"], "live-rate": ["log learning_rate"],
  "live-gradient": ["log grad_norm", "training gradient_norm"], "live-ratio": ["training update_ratio"],
};
const charts = [...keys(KEYS).filter((name) => name !== "explore-validation"), "explore-feature", "layer-lines", "layer-map"];
const keysOf = (name) => KEYS[name] ?? [get(name === "explore-feature" ? "feature" : "quantity")];
const query = () => `${new URLSearchParams({ study: live.study, run: get("run"), quantity: get("quantity") })}`;
let reload, source, position = "{}", shownView, waits, heard, written, { forecasts, main } = live;
let ready, first = new Promise((done) => (ready = done));

function rowsOfRun(name, run, line) {
  const all = Math.max(LEAST, MOST / Math.max(2, live.runs.length)), most = Math.floor(name.startsWith("live-") ? Math.max(40, all / 2) : all), n = line.steps.length;
  const [from, to] = (near[name] ?? [-Infinity, Infinity]).map((at, i) => line.steps.findIndex((step) => (i ? step > at : step >= at))).map((i) => (i < 0 ? n : i));
  const far = (start, end) => merged(line, start, end, Math.ceil((most * (end - start)) / n) || 1);
  return [...far(0, from), ...merged(line, from, to, most), ...far(to, n)].map((row) => ({ run, ...row }));
}
const lineOf = (key, run, layers) => layers.map((layer) => got[key]?.[run]?.[layer]).find(Boolean);
function lines(name) {
  const layers = name === "layer-lines" ? [get("layer")] : WHOLE, of = name === "layer-lines" ? [get("run")] : live.runs;
  return of.flatMap((run) => {
    const line = keysOf(name).map((key) => lineOf(key, run, layers)).find(Boolean);
    return line ? rowsOfRun(name, run, line) : [];
  });
}
for (const name of charts) sources[name] = () => lines(name);
sources["explore-loss"] = () => {
  const ofKind = (kind, rows) => (kind === main ? rows.map((row) => ({ ...row, series: kind })) : explorer.runs.length > 6 ? [] : rows.map((row) => ({ ...row, series: `${kind}, in grey` })));
  near["explore-validation"] = near["explore-loss"];
  const all = [...ofKind("training", lines("explore-loss")), ...ofKind("validation", lines("explore-validation")), ...forecasts];
  return all.map(({ run, step, value, series, low = null, high = null, forecast = null, label = "" }) => ({ run, step, value, series, low, high, forecast, label }));
};
// A forecast begins where its own line ends; of one that goes on for more than twice the steps seen, the first part is drawn.
joined = (lines) => lines.flatMap((line) => {
  const [end] = line, own = end.forecast != null && lines.find(([row]) => row.run === end.run && row.series === main)?.at(-1);
  if (!own) return end.forecast == null ? [line] : [];
  const begin = own.smooth ?? own.value, share = Math.min(1, (MAX_AHEAD * own.step) / (end.step - own.step)), to = (v) => v && begin + share * (v - begin);
  const path = (at, reach) => ({ ...end, step: at, ...fromEntries(["value", "forecast", "low", "high"].map((name) => [name, reach(end[name])])) });
  const last = path(Math.round(own.step + share * (end.step - own.step)), to);
  return own.step < end.step ? [[{ ...path(own.step, (v) => v && begin), label: "" }, { ...last, label: share < 1 ? `${end.label} at step ${number(end.step)}` : end.label }]] : [];
});
function map() {
  const of = got[get("quantity")]?.[get("run")] ?? {}, names = layers()?.names.filter((name) => of[name]) ?? [];
  const { ends, width, values } = columnsOf(names.map((name) => of[name]), COLUMNS), labels = layers()?.labels;
  return { width, cells: names.flatMap((layer, k) => ends.map((step, i) => ({ layer, step, value: values[k][i], label: labels[layers().names.indexOf(layer)] }))) };
}
sources["layer-map"] = () => map().cells;
known = (run, axis) => {
  const { steps, values } = lineOf(axis === "tokens" ? "log tokens" : axis, run.name, WHOLE) ?? { steps: [], values: [] }, every = Math.ceil(steps.length / PLACES);
  const few = (list) => list.filter((_, i) => i % every === 0 || i === steps.length - 1);
  return { steps: few(steps), values: few(values) };
};
drawnWords = ({ name, rows }) => {
  const key = name === "explore-loss" && main === "validation" ? ["log validation_loss"] : keysOf(name), runs = key.flatMap((each) => Object.values(got[each] ?? {}));
  const all = name === "layer-lines" ? 0 : runs.reduce((sum, of) => sum + (WHOLE.map((layer) => of[layer]).find(Boolean)?.steps.length ?? 0), 0);
  const n = rows.filter((row) => row.forecast == null && (name !== "explore-loss" || row.series === main)).length;
  return n && n < all && isNaN(step()) ? `${number(n)} points of ${number(all)} values` : "";
};
function note() {
  const { width } = map(), isMerged = charts.some((name) => name !== "layer-map" && sources[name]().some((row) => row.low < row.high && row.forecast == null)), share = HALF_LIVES[get("smooth")];
  byId("thinned").textContent = [
    explorer.coloured_by && `Lines have the colour of their ${explorer.coloured_by}: there are more runs than colours.`,
    share && `Lines are smoothed by a debiased exponential moving average; its half-life is ${100 * share}% of the steps, at least ${MIN_VALUES} values. The values themselves are faint behind it. Lines of fewer than ${MIN_SMOOTHED} values and schedules are not smoothed.`,
    isMerged && "A line with many steps shows means over neighbouring steps, and a band from their minimum to their maximum; zoom in to see single steps.",
    width > 1 && `Each column stands for ${width} measured steps, with each layer's most unusual value among them.`,
  ].filter(Boolean).join(" ");
}

function take(message) {
  // The choices changed, by a new run, layer or quantity; a folder that is just being read has many.
  if (message.shape !== live.shape) reload ??= setTimeout(() => location.reload(), live.runs.length ? Math.max(0, RELOAD_MS - performance.now()) : 0);
  for (const of of Object.values(got)) for (const run of message.anew) delete of[run];
  for (const [key, run, layer, steps, values] of message.lines) {
    const of = ((got[key] ??= Object.create(null))[run] ??= Object.create(null));
    put((of[layer] ??= { steps: [], values: [] }), steps, values);
    changed.add(key);
  }
  if (message.more) return;
  ({ forecasts, main } = message);
  written = Date.now() - 1000 * message.age;
  for (const [id, html] of entries(message.html)) {
    if (byId(id).dataset.html !== html) byId(id).replaceChildren(document.createRange().createContextualFragment(html));
    byId(id).dataset.html = html;
  }
  for (const head of all("#runs tbody th:not(:has(i))")) head.prepend(make("i", { className: `dot run-${named.get(head.title)?.colour}` }));
  notify(message.needs);
  const small = all(".first-charts [data-chart^=live-]"), room = () => small.filter((place) => place.parentElement.hidden).length, before = room();
  for (const place of small) place.parentElement.hidden = !sources[place.dataset.chart]().length;
  if (drawn.size && room() !== before) redraw(); // the others have another width
  tick();
  if (message === live) return;
  ready();
  waits ??= setTimeout(async () => {
    waits = undefined;
    const isDrawn = (name) => drawn.has(name) && (name === "explore-loss" || page.axes[get("x")]?.field || keysOf(name).some((key) => changed.has(key)));
    const renewed = charts.filter(isDrawn), empty = renewed.filter((name) => !drawn.get(name).rows.length);
    changed.clear();
    offerAxes();
    refresh(renewed);
    for (const name of empty) if (drawn.get(name).rows.length) await draw(drawn.get(name).place); // the first rows determine the space of an axis
    note();
  }, 150);
}
function tick() {
  const age = Math.max(0, Math.round((Date.now() - written) / 1000)), on = source?.readyState === 1, place = byId("age");
  const [n, unit] = age < 90 ? [age, "s"] : age < 5400 ? [age / 60, "min"] : age < 172800 ? [age / 3600, "h"] : [age / 86400, "days"];
  place.className = on ? "good" : "warn";
  place.replaceChildren(make("b", { textContent: on ? "●" : "○" }), on ? ` last written ${Math.round(n)} ${unit} ago` : " not connected; reconnecting");
}

// A connection serves one view, from where the page is; the browser reconnects by itself, and sends its position.
function connect() {
  source?.close();
  [heard, shownView] = [Date.now(), query()];
  source = new EventSource(`events?${shownView}&after=${encodeURIComponent(position)}`);
  source.onmessage = ({ data, lastEventId }) => {
    heard = Date.now();
    take(parsed(data));
    position = lastEventId;
  };
  source.addEventListener("alive", () => (heard = Date.now()));
  source.onopen = source.onerror = tick;
}
function watch() {
  if (document.hidden && !notifies()) source.close(); // a browser has few connections for all tabs
  else if (source.readyState === 2 || Date.now() - heard > 40000) connect();
  tick();
}
setInterval(watch, 1000);
document.addEventListener("visibilitychange", watch);

const [plainDraw, plainChoose] = [draw, choose];
draw = async (place) => {
  const name = place.dataset.chart;
  await Promise.race([first, new Promise((done) => setTimeout(done, PATIENCE))]);
  delete near[name];
  page.embed.renderer = sources[name]?.().length > 2000 ? "canvas" : "svg";
  await plainDraw(place);
  if (charts.includes(name) && name !== "layer-map" && !page.axes[get("x")]?.field) drawn.get(name).view.addSignalListener("zoom_step", (_, between) => {
    clearTimeout(looks[name]);
    looks[name] = setTimeout(() => {
      near[name] = between?.length ? between : undefined;
      refresh([name]);
    }, 150);
  });
};
choose = (...given) => {
  plainChoose(...given);
  if (shownView === query()) return;
  for (const of of Object.values(got)) for (const run of Object.values(of)) for (const layer of keys(run)) if (!WHOLE.includes(layer)) delete run[layer];
  // the rows of layers come last, and only those of the chosen quantity
  position = JSON.stringify(fromEntries(entries(parsed(position)).map(([study, of]) => [study, of.length > 2 ? [...of.slice(0, -1), 0] : of])));
  connect();
};
take(live);
