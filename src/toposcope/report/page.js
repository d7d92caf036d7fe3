// Sorting and filtering of tables marked "sortable", and folded parts opened for print. Without it the page is whole.
(() => {
  const key = (cell) => {
    const text = cell.textContent.trim();
    if (text === "–") return null;
    const number = parseFloat(text.replaceAll("−", "-").replaceAll(",", "").replace(/^< /, "-"));
    // "< .001" is below every p-value that is written out
    return text.startsWith("<") ? 0 : Number.isNaN(number) ? text.toLowerCase() : number;
  };
  const compare = (a, b) =>
    typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });

  for (const table of document.querySelectorAll("table.sortable")) {
    const body = table.tBodies[0];
    const rows = [...body.rows];
    const heads = [...table.tHead.rows[table.tHead.rows.length - 1].cells];
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent;
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        for (const other of heads) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const keyed = rows.map((row) => [key(row.cells[column]), row]);
        keyed.sort(([a], [b]) => (a === null ? b !== null : b === null ? -1 : down ? compare(b, a) : compare(a, b)));
        body.append(...keyed.map(([, row]) => row));
      });
    });
    const box = document.createElement("div");
    box.className = "filter";
    const label = document.createElement("label");
    label.textContent = "Show only rows with ";
    const input = document.createElement("input");
    input.type = "search";
    label.append(input);
    const count = document.createElement("span");
    count.setAttribute("role", "status");
    box.append(label, count);
    table.closest(".scroll").before(box);
    input.addEventListener("input", () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const row of rows) {
        const text = row.textContent.toLowerCase();
        row.hidden = !words.every((word) => text.includes(word));
        shown += !row.hidden;
      }
      count.textContent = words.length ? `${shown} of ${rows.length} rows` : "";
    });
  }
  addEventListener("beforeprint", () => {
    for (const part of document.querySelectorAll("details:not([open])")) {
      part.open = true;
      part.dataset.folded = "";
    }
  });
  addEventListener("afterprint", () => {
    for (const part of document.querySelectorAll("details[data-folded]")) {
      part.open = false;
      delete part.dataset.folded;
    }
  });
})();
