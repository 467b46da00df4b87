"use strict";
// What every page does: theme, tables that sort, commands that copy.

(() => {
  const root = document.documentElement, button = document.getElementById("theme");
  const dark = () => root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const show = () => button.setAttribute("aria-pressed", String(dark()));
  button.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; show(); });
  show();
})();

for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const up = head.getAttribute("aria-sort") !== "ascending", numeric = head.classList.contains("number");
    const key = (row) => {
      const cell = row.cells[column];
      return numeric ? parseFloat(cell.dataset.value) : cell.textContent;
    };
    const order = (a, b) => {
      const [x, y] = [key(a), key(b)];
      if (!numeric) return (up ? 1 : -1) * x.localeCompare(y, undefined, { numeric: true });
      if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y); // what is not known comes last
      return (up ? 1 : -1) * (x - y);
    };
    table.tBodies[0].append(...[...table.tBodies[0].rows].sort(order));
    heads.forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
  }));
}

async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch { // a page opened from a file may not use the clipboard: the old way
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}

for (const button of document.querySelectorAll("button.copy")) {
  const source = button.dataset.from ? button.closest("." + button.dataset.from) : button.parentElement;
  const text = () => [...source.children].filter((part) => part !== button).map((part) => part.innerText).join("\n");
  button.addEventListener("click", async () => {
    await copied(text());
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
}
