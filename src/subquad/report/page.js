// Draws the charts, lets the reader choose a view, and sorts tables.
const charts = JSON.parse(document.getElementById("charts").textContent);
const choice = document.getElementById("view");
const views = [];
const show = (view) => view.signal("view", choice.value).runAsync();
const embedded = Object.entries(charts).map(([name, spec]) =>
  vegaEmbed(document.getElementById("chart-" + name), spec, { actions: false, renderer: "svg" }).then((result) => {
    if (!choice || !(spec.params ?? []).some((param) => param.name === "view")) return null; // has one view only
    views.push(result.view);
    return show(result.view); // what the menu names: browsers remember a choice when a page is loaded again
  }));

if (choice) choice.addEventListener("change", () => views.forEach(show));

for (const table of document.querySelectorAll("table")) {
  table.querySelectorAll("th button").forEach((button, column) => button.addEventListener("click", () => {
    const head = button.closest("th");
    const up = head.getAttribute("aria-sort") !== "ascending";
    table.querySelectorAll("th").forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const key = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent;
    const compare = (a, b) => a !== "" && b !== "" && !isNaN(a) && !isNaN(b) ? a - b : String(a).localeCompare(String(b));
    const rows = [...table.tBodies[0].rows].sort((a, b) => (up ? 1 : -1) * compare(key(a), key(b)));
    table.tBodies[0].append(...rows);
  }));
}

Promise.all(embedded).then(() => document.documentElement.setAttribute("data-drawn", "yes"));
