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

// ---- State: what is chosen, which the address holds

const state = new URLSearchParams();
const get = (key) => state.get(key) ?? "";
let hovered, later, asked; // the step under the pointer; how the address is to change
const pinned = () => parseFloat(get("step"));
const step = () => hovered ?? pinned();
function readAddress() {
  for (const key of [...state.keys()]) state.delete(key);
  for (const [key, value] of new URLSearchParams(location.hash.includes("=") ? location.hash.slice(1) : "")) state.append(key, value);
}
readAddress();
function remember(how = "pushState") {
  clearTimeout(later);
  asked = asked === "pushState" ? asked : how; // a choice is a step of the history; the cursor and defaults are none
  later = setTimeout(() => {
    if (location.hash.slice(1) !== `${state}`) history[asked](null, "", `#${state}`);
    asked = undefined;
  }, 200);
}
const set = (key, value) => (value === "" ? state.delete(key) : state.set(key, value));
function toggle(key, value, on) {
  const others = state.getAll(key).filter((each) => each !== value);
  state.delete(key);
  for (const each of on ? [...others, value] : others) state.append(key, each);
}

// ---- Data

const rowsOf = (columns) => (Object.values(columns)[0] ?? []).map((_, i) => fromEntries(entries(columns).map(([field, values]) => [field, values[i]])));
const unpacked = (text) => text && [...new Float32Array(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer)];
const runs = (explorer?.runs ?? []).map((run) => ({ ...run, loss: unpacked(run.loss), tokens: unpacked(run.tokens), covariates: run.covariates.map(unpacked) }));
const named = new Map(runs.map((run) => [run.name, run]));
const features = new Map(explorer?.features.map((each) => [each.key, each]));
const feature = () => features.get(get("feature"));
const layers = () => explorer?.layers[get("run")];
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
  const first = new Map(), last = new Map();
  values.toSorted((a, b) => a - b).forEach((v, i) => last.set(v, i) && first.has(v) || first.set(v, i));
  return values.map((v) => (first.get(v) + last.get(v) - values.length + 1) / 2);
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

const linesOf = (values, steps = (run) => run.steps) => runs.flatMap((run) => (values(run) || []).map((value, i) => ({ run: run.name, step: steps(run)[i], value })).filter((row) => !isNaN(row.value)));
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
    if (given) [a, b] = [a, b].map((values) => ranks(residual([...covariates, values])));
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
  return points.flatMap((birth, i) => (i % 2 ? [] : { name, when, birth, death: points[i + 1] }));
}));
const sources = {
  "explore-loss": () => linesOf((run) => unpacked(run.losses?.values) ?? run.loss, (run) => run.losses?.steps ?? run.steps), "explore-feature": () => linesOf(chosen), "explore-raw": () => pairs(false),
  "explore-given": () => pairs(true), "layer-map": cells, "layer-lines": () => linesOf(ofLayer), "layer-diagram": bars,
};

