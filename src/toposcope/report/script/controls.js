// ---- Controls and words

const choices = explorer && {
  feature: () => [...features.keys()],
  role: () => keys(feature().values),
  run: () => keys(explorer.layers),
  quantity: () => keys(layers()?.values ?? {}),
  layer: () => layers()?.names ?? [],
};
const LOOKS = ["x", "y", "smooth", "runs", "off"]; // what the scales of charts depend on
const NEEDS = { tokens: "no log here has tokens", time: "no log here has times" };
function choose(changes, how) {
  for (const [key, value] of entries(changes)) set(key, value);
  if (changes.feature in (layers()?.values ?? {})) set("quantity", changes.feature);
  for (const [key, values] of entries(choices ?? {})) if (!values().includes(get(key))) set(key, values()[0] ?? "");
  for (const select of all("select[data-state]")) {
    const key = select.dataset.state, titles = layers()?.titles ?? [];
    const option = (value, i) => new Option((key === "quantity" && titles[i]) || value, value);
    if (choices?.[key] && key !== "feature") select.replaceChildren(...choices[key]().map(option));
    select.value = get(key);
  }
  remember(how);
  showRuns();
  keys(changes).some((key) => LOOKS.includes(key)) ? redraw() : refresh(keys(sources));
  words();
}
function showRuns() {
  const off = state.getAll("off"), { matches, literal } = matcher(get("runs")), on = isOn(), note = byId("filtered");
  for (const box of all("[name=run]")) [box.checked, box.parentElement.hidden] = [!off.includes(box.value), !runs.some((run) => run.group === box.value && matches(run.name))];
  if (!note) return;
  if (byId("filter").value !== get("runs")) byId("filter").value = get("runs");
  const some = get("runs") ? `${runs.filter((run) => on(run.name)).length} of ${runs.length} runs` : "";
  note.textContent = literal ? `${some}; not an expression, so taken literally` : some;
}
// Which x axes the runs have; the others say what is missing.
function offerAxes() {
  for (const option of byId("x-axis")?.options ?? []) {
    const has = !(option.value in NEEDS) || runs.some((run) => known(run, option.value).values?.length > 1);
    option.dataset.name ??= option.text;
    option.disabled = !has;
    option.text = has ? option.dataset.name : `${option.dataset.name} (${NEEDS[option.value]})`;
  }
}
function words() {
  if (byId("at")) byId("at").textContent = isNaN(step()) ? "" : `step ${step()}`;
  if (byId("unpin")) byId("unpin").hidden = isNaN(pinned());
  if (!explorer) return;
  const [raw, given] = feature()?.notes[get("role")] ?? ["", ""];
  const texts = {
    "feature-title": feature()?.kind === "log" ? feature().name : `${feature()?.name}, ${get("role")}`,
    "raw-note": raw,
    "given-note": given,
    "layer-title": get("layer"),
    "diagram-note": `${get("layer")} at step ${sides().here}; faint: before and after`,
  };
  for (const [id, text] of entries(texts)) if (byId(id)) byId(id).textContent = text;
}

// ---- A note at each chart of what is not drawn

function comment(chart) {
  const line = chart.place.previousElementSibling, note = outsideNote(chart), texts = notesOf(chart);
  const button = note && make("button", { type: "button", textContent: note.action });
  if (button) button.onclick = () => {
    toggle("all", chart.name, !state.getAll("all").includes(chart.name));
    remember();
    draw(chart.place);
  };
  const text = [note?.text, ...texts].filter(Boolean).join(" ");
  if (line.dataset.text === `${text}${note?.action}`) return; // a reader of the screen hears it once
  line.dataset.text = `${text}${note?.action}`;
  line.replaceChildren(text, ...(button ? [" ", button] : []));
}
