"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const STEP = 200;
  const [CELL, SEND, ROLE, LENGTH, PREFIX, HIT, EXPECTED, START, TTFT, LEDGER, FINDINGS, FLAGS, JUNCTION] =
    Array.from({ length: 13 }, (_, i) => i);
  const [NAME, LABEL, , WORKLOAD, MODEL, LAW] = [0, 1, 2, 3, 4, 5];
  const DIFFERS = 1, MARKED = 2;
  const cell = (row) => data.cells[row[CELL]];
  const title = (c) => `${c[WORKLOAD]} on ${c[MODEL]}`;
  const start = (row) => row[START] ?? row[HIT];
  const columns = [
    ["engine", (row) => cell(row)[LABEL]],
    ["workload", (row) => title(cell(row))],
    ["send", (row) => row[SEND]],
    ["L", (row) => row[LENGTH], "number"],
    ["P", (row) => row[PREFIX], "number"],
    ["hit", (row) => row[HIT], "number hit"],
    ["law", (row) => row[EXPECTED], "number"],
    ["start", (row) => row[START], "number"],
    ["TTFT ms", (row) => row[TTFT], "number", (value) => (value / 1e6).toFixed(1)],
    ["ledger", (row) => (row[LEDGER].length ? row[LENGTH] - start(row) : null), "ledger"],
  ];
  const form = document.getElementById("filters").elements;
  const head = document.querySelector("#table thead tr");
  const body = document.querySelector("#table tbody");
  const more = document.getElementById("more");
  let order = null, descending = false, only = null, shown = STEP, found = [];

  function element(tag, text, name) {
    const made = document.createElement(tag);
    if (text !== undefined && text !== null) made.textContent = text;
    if (name) made.className = name;
    return made;
  }

  function svg(tag, attributes) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    return made;
  }

  function intervals(row) {
    const parts = [];
    for (let i = 0, from = 0; i < row[LEDGER].length; i += 2) {
      parts.push([from, row[LEDGER][i], data.causes[row[LEDGER][i + 1]]]);
      from = row[LEDGER][i];
    }
    return parts;
  }

  function words(row) {
    const totals = new Map();
    for (const [from, to, cause] of intervals(row)) totals.set(cause, (totals.get(cause) ?? 0) + to - from);
    return [...totals].map(([cause, tokens]) => `${cause} ${tokens}`).join(", ") || "unknown";
  }

  function bar(row) {
    const drawing = svg("svg", { class: "bar", role: "img", "aria-label": words(row) });
    for (const [from, to, cause] of intervals(row)) {
      const width = Math.max((100 * (to - from)) / row[LENGTH], 0.4);
      const x = Math.min((100 * from) / row[LENGTH], 100 - width);
      const part = svg("rect", { x: `${x}%`, width: `${width}%`, height: "100%", fill: `url(#cause-${cause})` });
      const tip = svg("title", {});
      tip.textContent = `[${from}, ${to}) ${cause}: ${to - from} tokens`;
      part.append(tip);
      drawing.append(part);
    }
    return drawing;
  }

  function detail(row) {
    const line = element("tr", null, "detail");
    const box = element("td");
    box.colSpan = columns.length;
    const [, label, , , , law] = cell(row);
    box.append(element("p", `${label}, ${title(cell(row))}, ${row[SEND]}. Law: ${law}. ` +
      `Hit ${row[HIT] ?? "?"}, the law says ${row[EXPECTED] ?? "?"}; computing starts at ${row[START] ?? "?"}.` +
      (row[JUNCTION] === null ? "" : ` Boundary the next sibling can use: ${row[JUNCTION]}.`)));
    for (const finding of row[FINDINGS]) box.append(element("p", finding, "finding"));
    const table = element("table");
    for (const [from, to, cause] of intervals(row)) {
      const entry = element("tr");
      const swatch = svg("svg", { width: 14, height: 14 });
      swatch.append(svg("rect", { width: 14, height: 14, fill: `url(#cause-${cause})`, stroke: "#777" }));
      const first = element("td");
      first.append(swatch);
      entry.append(first, element("td", `[${from}, ${to})`, "number"), element("td", to - from, "number"),
        element("td", cause));
      table.append(entry);
    }
    box.append(table);
    line.append(box);
    return line;
  }

  function toggle(line, row) {
    if (line.nextSibling && line.nextSibling.className === "detail") line.nextSibling.remove();
    else line.after(detail(row));
  }

  function lineOf(row) {
    const line = element("tr", null, row[FLAGS] & MARKED ? "row marked" : "row");
    line.tabIndex = 0;
    for (const [name, value, style, shape] of columns) {
      const box = element("td", null, style);
      box.dataset.name = name;
      if (name === "ledger") box.append(bar(row), element("div", words(row), "words"));
      else {
        const raw = value(row);
        const text = raw === null ? (name === "TTFT ms" ? "-" : "?") : shape ? shape(raw) : raw;
        box.textContent = name === "hit" && row[FLAGS] & MARKED ? `${text} !` : text;
      }
      line.append(box);
    }
    line.addEventListener("click", () => toggle(line, row));
    line.addEventListener("keydown", (event) => { if (event.key === "Enter") toggle(line, row); });
    return line;
  }

  function matches(row) {
    const c = cell(row), cause = form.cause.value;
    return (only === null || c[NAME] === only) &&
      (!form.label.value || c[LABEL] === form.label.value) &&
      (!form.workload.value || title(c) === form.workload.value) &&
      (!form.role.value || data.roles[row[ROLE]] === form.role.value) &&
      (!cause || row[LEDGER].some((number, i) => i % 2 && data.causes[number] === cause)) &&
      (!form.differs.checked || row[FLAGS] & DIFFERS) && (!form.marked.checked || row[FLAGS] & MARKED);
  }

  function compare(a, b) {
    const value = columns[order][1], x = value(a), y = value(b);
    if (x === null || y === null) return (x === null) - (y === null);  // unknown last, either way
    const less = typeof x === "number" ? x - y : x.localeCompare(y, "en", { numeric: true });
    return descending ? -less : less;
  }

  function update() {
    found = data.requests.filter(matches);
    if (order !== null) found.sort(compare);
    shown = STEP;
    draw();
  }

  function draw() {
    body.replaceChildren(...found.slice(0, shown).map(lineOf));
    more.hidden = found.length <= shown;
    more.textContent = `show more (${found.length - shown} left)`;
    document.getElementById("shown").textContent = `${found.length} of ${data.requests.length} requests` +
      (data.leftOut ? ` on this page (${data.leftOut} more are not)` : "") +
      (only === null ? "" : `, cell ${only}`);
    [...head.children].forEach((box, i) => {
      box.setAttribute("aria-sort", i !== order ? "none" : descending ? "descending" : "ascending");
      box.firstChild.textContent = columns[i][0] + (i !== order ? "" : descending ? " ▼" : " ▲");
    });
  }

  function options(select, values, chosen) {
    select.append(new Option("all", ""), ...values.map((value) => new Option(value, value)));
    select.value = values.includes(chosen) ? chosen : "";
  }

  function fromAddress() {
    const name = location.hash.startsWith("#cell=") ? decodeURIComponent(location.hash.slice(6)) : null;
    const chosen = data.cells.find((c) => c[NAME] === name);
    if (!chosen) return;
    only = null;
    form.label.value = chosen[LABEL];
    form.workload.value = title(chosen);
    form.cause.value = "";
    form.differs.checked = form.marked.checked = false;
    form.role.value = data.roles.includes("probe") ? "probe" : "";
    update();
    document.getElementById("requests").scrollIntoView();
  }

  columns.forEach(([name, , style], i) => {
    const box = element("th", null, style === "ledger" ? "ledger" : style);
    const button = element("button", name);
    button.type = "button";
    button.addEventListener("click", () => { descending = order === i && !descending; order = i; update(); });
    box.append(button);
    head.append(box);
  });
  const distinct = (values) => [...new Set(values)].filter((value) => value);
  const seen = new Set(data.requests.flatMap((row) => row[LEDGER].filter((_, i) => i % 2)));
  options(form.label, distinct(data.cells.map((c) => c[LABEL])));
  options(form.workload, distinct(data.cells.filter((c) => c[WORKLOAD]).map(title)));
  options(form.cause, data.causes.filter((_, i) => seen.has(i)));
  options(form.role, data.roles, "probe");
  const filters = document.getElementById("filters");
  filters.addEventListener("change", () => { only = null; update(); });
  filters.addEventListener("reset", () => setTimeout(() => { only = null; history.replaceState(null, "", "#"); update(); }));
  more.addEventListener("click", () => { shown += STEP; draw(); });
  window.addEventListener("hashchange", fromAddress);
  document.querySelector(".matrix")?.addEventListener("click", (event) => {
    const link = event.target.closest("a");
    if (link && link.hash === location.hash) fromAddress();  // the same square once more
  });
  update();
  fromAddress();
})();
