"use strict";
// A search for every long table. Without this script the tables are whole; nothing is fetched and nothing is kept.
for (const table of document.querySelectorAll("table.long")) {
  const rows = [...table.tBodies[0].rows];
  const label = document.createElement("label"), field = document.createElement("input");
  const found = document.createElement("output");
  field.type = "search";
  label.append(document.body.dataset.search + " ", field);
  field.addEventListener("input", () => {
    const wanted = field.value.toLowerCase();
    let shown = 0;
    for (const row of rows) {
      row.hidden = !row.textContent.toLowerCase().includes(wanted);
      shown += !row.hidden;
    }
    found.textContent = ` ${shown} / ${rows.length}`;
  });
  const bar = document.createElement("p");
  bar.className = "search";
  bar.append(label, found);
  table.parentElement.before(bar);
}
