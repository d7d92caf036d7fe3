// ---- Tables of data, and those of the page

function openData({ target }) {
  const chart = drawn.get(target.previousElementSibling.dataset.chart), { rows } = chart, table = make("table");
  const fields = keys(rows[0] ?? {}).filter((field) => !["label", "top"].includes(field)), sizes = fields.map((field) => largest(rows.map((row) => row[field])));
  const { textContent } = target.closest("figure").querySelector("h2, h3"), quantity = get("quantity");
  const value = chart.name.startsWith("layer") ? (features.get(quantity)?.name ?? quantity) : textContent;
  const names = { value, x: page.axes[get("x")]?.title, ...page.charts[chart.name].columns };
  const lines = [fields.map((field) => names[field] ?? field.replaceAll("_", " ")), ...rows.map((row) => fields.map((field) => row[field]))];
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

