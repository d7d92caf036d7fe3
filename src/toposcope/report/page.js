// Draws the charts of the page at the width of their place.
const page = JSON.parse(document.getElementById("data").textContent);

function rowsOf(columns) {
  const fields = Object.entries(columns);
  const n = fields.length ? (fields[0][1].texts ? fields[0][1].at : fields[0][1]).length : 0;
  return Array.from({ length: n }, (_, i) =>
    Object.fromEntries(fields.map(([f, c]) => [f, c.texts ? (c.at[i] < 0 ? null : c.texts[c.at[i]]) : c[i]])),
  );
}

function fitted(spec, width) {
  if (spec.spec || spec.concat || spec.hconcat || spec.vconcat) {
    const most = spec.hconcat?.length ?? spec.columns ?? 1;
    const columns = Math.max(1, Math.min(most, Math.floor(width / 260)));
    const inner = (child) => fitted(child, width / columns);
    const out = { ...spec };
    if (spec.spec) out.spec = inner(spec.spec);
    for (const key of ["concat", "vconcat"]) if (spec[key]) out[key] = spec[key].map(inner);
    if (spec.hconcat) { out.concat = spec.hconcat.map(inner); delete out.hconcat; }
    if (!spec.vconcat) out.columns = columns;
    return out;
  }
  return { ...spec, width: Math.max(120, width - 90) };
}

async function draw(place) {
  const chart = page.charts[place.dataset.chart];
  const width = document.getElementById("content").clientWidth - 40;
  const spec = { ...fitted(chart, Math.min(width, 900)), config: page.config.light };
  spec.datasets = Object.fromEntries(Object.entries(page.datasets).filter(([name]) => JSON.stringify(chart).includes(name)).map(([name, c]) => [name, rowsOf(c)]));
  try { await vegaEmbed(place, spec, { actions: false, renderer: "svg" }); } catch (e) { console.error(place.dataset.chart, e); }
}
for (const place of document.querySelectorAll("[data-chart]")) await draw(place);
document.body.dataset.drawn = "yes";
