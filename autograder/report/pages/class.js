"use strict";
const table = document.getElementById("submissions");
const rows = [...table.tBodies[0].rows];
const words = document.getElementById("words");
const status = document.getElementById("status");
const count = document.getElementById("count");
const order = new Intl.Collator(undefined, { numeric: true });

function value(row, column) {
  const cell = row.cells[column];
  return "number" in cell.dataset ? Number(cell.dataset.number) : cell.textContent.trim();
}

function sort(column, header) {
  const down = header.getAttribute("aria-sort") === "ascending";
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", down ? "descending" : "ascending");
  rows.sort((one, other) => {
    const [a, b] = [value(one, column), value(other, column)];
    const sign = typeof a === "number" ? a - b : order.compare(a, b);
    return down ? -sign : sign;
  });
  table.tBodies[0].append(...rows);
}

function show() {
  const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0;
  for (const row of rows) {
    const text = row.textContent.toLowerCase();
    const fits = wanted.every((word) => text.includes(word));
    row.hidden = !fits || (status.value !== "" && row.dataset.status !== status.value);
    shown += !row.hidden;
  }
  count.textContent = `${shown} of ${rows.length}`;
}

[...table.tHead.rows[0].cells].forEach((header, column) => {
  header.querySelector("button").addEventListener("click", () => sort(column, header));
});
words.addEventListener("input", show);
status.addEventListener("change", show);
show();
