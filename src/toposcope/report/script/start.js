// ---- Start

if (matchMedia("(prefers-color-scheme: dark)").matches) root.dataset.theme = "dark";
byId("theme").onclick = () => {
  root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
  redraw();
};
let wide = innerWidth;
addEventListener("resize", () => innerWidth !== wide && redraw((wide = innerWidth)));
addEventListener("beforeprint", () => all("details.part").forEach((part) => (part.open = true)));
document.addEventListener("toggle", () => drawn.forEach(mark), true);
addEventListener("popstate", () => {
  if (/^#[^=]+$/.test(location.hash)) return remember("replaceState"); // a link to a section keeps what is chosen
  readAddress();
  choose({ x: get("x") }, "replaceState");
  move();
});
for (const select of all("select[data-state]")) select.onchange = () => choose({ [select.dataset.state]: select.value });
const bar = byId("bar");
if (bar) {
  bar.hidden = !explorer && !all("[data-chart]").some(({ dataset }) => lineChart(page.charts[dataset.chart].spec));
  if (wide < 900) bar.querySelector("details").open = false;
  byId("reset").onclick = () => {
    for (const key of [...state.keys()]) state.delete(key);
    choose({ x: "" });
    move();
  };
  byId("unpin").onclick = () => pin("");
}
if (explorer) {
  let typing;
  byId("filter").oninput = ({ target }) => {
    clearTimeout(typing);
    typing = setTimeout(() => choose({ runs: target.value }), 250);
  };
  for (const box of all("[name=run]")) box.onchange = () => {
    if (!all("[name=run]:checked").length) box.checked = true;
    toggle("off", box.value, !box.checked);
    choose({ x: get("x") });
  };
}
offerAxes();
choose({}, "replaceState");
all("table.sortable").forEach(sortable);
all("tr[data-feature]").forEach(leadToExplorer);
for (const place of all("[data-chart]")) {
  await draw(place).catch(console.error);
  await new Promise((done) => setTimeout(done));
}
document.body.dataset.drawn = "yes";
