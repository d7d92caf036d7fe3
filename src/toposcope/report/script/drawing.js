// ---- Drawing

const drawn = new Map(); // by name
const MAX_TOLD = 3; // values at the cursor in words; more are a table
const MAX_PASSING = 12; // rows of it while the pointer passes; where a step is pinned, it has all
const MAX_DOTS = 40; // marks at the cursor

// A chart at another width, on the page's x axis.
function adapted(spec, width) {
  const out = { ...spec }, x = spec.encoding?.x, axis = page.axes[get("x")], parts = spec.concat ?? spec.vconcat;
  if (x?.field === "step" && x.type === "quantitative" && axis) {
    out.encoding = { ...spec.encoding, x: { ...x, ...axis, scale: { ...axis.scale, ...(x.scale?.domain && { domain: x.scale.domain }) } } };
    if (spec.mark.type === "line") out.encoding.order = { field: "step" };
  }
  if (spec.layer) out.layer = spec.layer.map((part) => ({ ...adapted(part, width), width: undefined }));
  if (!parts && !spec.spec) return { ...out, width: Math.max(140, width) };
  const columns = Math.max(1, Math.min(spec.columns ?? 1, Math.floor(width / 240))), inner = (part) => adapted(part, width / columns - 20);
  return spec.spec ? { ...out, columns, spec: inner(spec.spec) } : { ...out, columns, concat: parts.map(inner), vconcat: undefined };
}
const setsOf = (name) => (sources[name] ? { rows: sources[name]() } : fromEntries(page.charts[name].datasets.map((each) => [each, rowsOf(page.datasets[each])])));

const turns = new Map(); // the last drawing of each place, after which the next begins
function draw(place) {
  const own = (turns.get(place) ?? Promise.resolve()).catch(() => {}).then(() => embed(place));
  turns.set(place, own);
  return own;
}
async function embed(place) {
  const name = place.dataset.chart, { spec, cursor } = page.charts[name], room = place.clientWidth || 560;
  const chart = { name, place, spec, cursor, lines: lineChart(spec), sets: setsOf(name) };
  prepare(chart);
  const config = structuredClone(page.config[root.dataset.theme]), datasets = { ...chart.data, cursor: [] };
  const category = config.range.category;
  if (page.live && runs.length > category.length) config.range.category = runs.map((run) => category[run.colour]);
  config.legend.columns = Math.ceil(room / 170 - 1);
  config.axis.labelLimit = Math.min(180, room / 3);
  drawn.get(name)?.view.finalize();
  let width = room - 70;
  for (let tries = 0; tries < 3; tries++) {
    chart.view?.finalize();
    const whole = forVega({ ...adapted(planned(spec, chart), width), datasets, config });
    chart.view = (await vegaEmbed(place, whole, { ...page.embed, downloadFileName: name, tooltip: { theme: root.dataset.theme } })).view;
    const excess = (place.querySelector(".marks").getBoundingClientRect().width || room) - room; // 0: hidden
    if (excess < 2 && excess > -20) break;
    width -= excess;
  }
  chart.look = lookOf(chart);
  drawn.set(name, chart);
  place.querySelector("summary").ariaLabel = "Save";
  place.querySelector(".marks").ariaHidden = true;
  place.onkeydown = press;
  place.nextElementSibling.ontoggle = openData;
  if (chart.lines && cursor) follow(chart);
  if (name === "layer-map") chart.view.addEventListener("click", (_, item) => item?.datum?.layer && choose({ layer: item.datum.layer.replace(/\u2060$/, ""), step: item.datum.step }));
  comment(chart);
  mark(chart);
}
const lookOf = ({ plan }) => plan && `${plan.type} ${plan.isClipped} ${plan.isOwn} ${!plan.domain}`;

// Put a chart's cursor at the step; write the values there.
function mark(chart) {
  if (!chart.cursor || !chart.place.checkVisibility()) return;
  const at = (value) => (isNaN(value) ? undefined : nearest(chart.steps, value)), here = at(step()), pin = at(pinned());
  const line = chart.place.closest("figure").querySelector(".readout"), rows = rowsAt(chart, here);
  if (chart.name === "layer-map") chart.view.signal("layer", forVega(get("layer")));
  const few = (all) => (all.length > MAX_DOTS ? [{ ...all[0], value: null, smooth: null }] : all); // of many runs the rule alone
  const cursor = () => [...few(rowsAt(chart, pin)).map((row) => ({ ...row, step: pin, pinned: true })), ...(here === pin ? [] : few(rows).map((row) => ({ ...row, step: here })))];
  if (chart.lines) chart.view.data("cursor", forVega(cursor()));
  chart.view.signal("at", here ?? -1).runAsync();
  const told = rows.filter((row) => "value" in row && (!row.layer || row.layer === get("layer")));
  const smooth = (row) => (Number.isFinite(row.smooth) ? `(smooth ${number(row.smooth)})` : "");
  const values = told.slice(0, MAX_TOLD).map((row) => [row.run ?? row.layer, row.series, number(row.value), smooth(row)].filter(Boolean).join(" "));
  if (!line.id) line.textContent = rows.length ? `step ${here}: ${told.length > MAX_TOLD ? `${told.length} values` : values.join(" · ")}` : drawnWords(chart);
  list(chart, here, told.length > MAX_TOLD && chart.name === active ? told : []);
}
let drawnWords = () => ""; // how many of the values a chart draws, where no step is chosen
// The last row of every line up to a step; of a chart of other things, the rows of the step.
function rowsAt({ lines, each, byStep }, here) {
  return lines && here !== undefined ? each.map((line) => line[line.findLastIndex((row) => row.step <= here)]).filter(Boolean) : (byStep.get(here) ?? []);
}
// The table of the values at the cursor, the lowest first, on the side of the chart where the pointer is not.
function list({ name, place, view }, here, told) {
  const figure = place.closest("figure"), box = figure.querySelector(".values") ?? make("div", { className: "values", role: "region", ariaLabel: "Values at the cursor" });
  box.hidden = !told.length;
  if (box.hidden) return box.remove();
  const rows = told.toSorted((a, b) => a.value - b.value), few = hovered === undefined ? rows : rows.slice(0, MAX_PASSING), table = make("table"), are = new Set(told.map((row) => row.series)).size > 1;
  for (const row of few) {
    const at = row.step < here && here - row.step > 0.02 * here ? `at ${number(row.step)}` : "", dot = make("i", { className: `run-${named.get(row.run)?.colour}` });
    const line = table.insertRow(), label = [row.run ?? row.layer, are && row.series].filter(Boolean).join(" ");
    line.insertCell().append(dot, ` ${label}`);
    for (const textContent of [number(row.value), Number.isFinite(row.smooth) && row.smooth !== row.value ? number(row.smooth) : "", at]) line.insertCell().textContent = textContent;
  }
  const more = rows.length - few.length, text = `step ${number(here)}${rows.some((row) => Number.isFinite(row.smooth) && row.smooth !== row.value) ? ": value, smoothed" : ""}${more ? `; ${more} more, click to see all` : ""}`;
  box.replaceChildren(make("b", { textContent: text }), table);
  box.tabIndex = hovered === undefined ? 0 : -1;
  box.className = hovered === undefined ? "values" : "values passing";
  figure.append(box);
  const isRight = view.scale("x")(rows[0].x ?? here) > view.width() / 2;
  [box.style.left, box.style.right] = isRight ? ["3.5rem", "auto"] : ["auto", "1rem"];
}
function refresh(names) {
  for (const chart of names.map((name) => drawn.get(name)).filter(Boolean)) {
    if (sources[chart.name]) chart.sets = { rows: sources[chart.name]() };
    prepare(chart);
    if (lookOf(chart) !== chart.look) {
      draw(chart.place).catch(console.error);
      continue;
    }
    if (chart.plan?.domain) chart.view.signal("range", chart.plan.domain);
    if (chart.extent) chart.view.signal("extent", chart.extent);
    for (const [name, rows] of entries(chart.data)) if (name !== "outside" || chart.plan.isClipped) chart.view.data(name, forVega(rows));
    comment(chart);
    mark(chart);
  }
}
let frame, active; // the chart that was pointed at last
function move() {
  cancelAnimationFrame(frame);
  frame = requestAnimationFrame(() => {
    drawn.forEach(mark);
    refresh(["layer-diagram"]);
    words();
  });
}
function pin(at, how) {
  set("step", at);
  remember(how);
  move();
}
let turn = 0;
async function redraw() {
  const own = ++turn, visible = ({ place }) => place.checkVisibility();
  for (const { place } of [...drawn.values()].sort((a, b) => visible(b) - visible(a))) {
    if (own === turn) await draw(place);
    await new Promise((done) => setTimeout(done));
  }
}

// ---- The pointer and the keys

const NEAR = 6; // pixels by which a second click may miss the first, or a click may move

// The step under a point of the screen; undefined outside of the plot.
function stepAt({ view, place, places, steps }, event) {
  const box = place.querySelector(".marks").getBoundingClientRect(), { left, top } = view.padding(), [x0, y0] = view.origin();
  const [x, y] = [event.clientX - box.left - left - x0, event.clientY - box.top - top - y0];
  if (x < 0 || y < 0 || x > view.width() || y > view.height()) return {};
  const value = view.scale("x").invert(x), row = places?.[places.length && nearestPlace(places, value)];
  return { x, step: places ? row?.step : nearest(steps, value) };
}
const nearestPlace = (rows, x) => rows.reduce((best, row, i) => (Math.abs(row.x - x) < Math.abs(rows[best].x - x) ? i : best), 0);
function follow(chart) {
  const { place } = chart, hover = (at) => at !== hovered && move((hovered = at), (active = at === undefined ? active : chart.name));
  let from;
  place.onpointermove = (event) => event.pointerType !== "touch" && hover(stepAt(chart, event).step);
  place.onpointerleave = () => hover(undefined);
  place.onpointerdown = (event) => (from = [event.clientX, event.clientY]);
  place.onclick = (event) => {
    const { x, step: under } = stepAt(chart, event), at = hovered ?? under;
    if (under === undefined || event.target.closest("details") || Math.hypot(event.clientX - from[0], event.clientY - from[1]) > NEAR) return;
    const old = (chart.places ?? []).find((row) => row.step === pinned())?.x ?? pinned();
    pin(at === pinned() || Math.abs(chart.view.scale("x")(old) - x) <= NEAR ? "" : at);
  };
}
function press(event) {
  const chart = drawn.get(event.currentTarget.dataset.chart), { steps } = chart, here = isNaN(pinned()) ? -1 : steps.indexOf(nearest(steps, pinned()));
  const along = { ArrowRight: 1, ArrowLeft: -1 }[event.key], down = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  const within = (list, i) => list[Math.max(0, Math.min(list.length - 1, i))];
  active = chart.name;
  if (along && steps.length) pin(within(steps, here + along), "replaceState");
  else if (down && chart.name === "layer-map") choose({ layer: within(layers().names, layers().names.indexOf(get("layer")) + down) });
  else return;
  event.preventDefault();
}
addEventListener("keydown", ({ key, target }) => key === "Escape" && get("step") && !target.matches("input, select") && pin(""));

