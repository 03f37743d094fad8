"use strict";
// The list of runs, as it moves. All text goes into the page by textContent.
(() => {
  const HEADS = [
    ["name", "run"], ["method", "method"], ["data", "data"], ["seed", "seed"], ["round", "round"], ["value", "score"],
    ["status", "status"], ["changed", "last line"],
  ];
  const RIGHT = new Set(["seed", "round", "value"]);
  const MOST = 1000; // lines that are shown
  let rows = [], by = "changed", up = false, lost = false;
  const find = document.getElementById("find"), said = document.getElementById("said");
  const head = document.querySelector("#runs thead tr"), body = document.querySelector("#runs tbody");
  const known = new Map(); // id -> its line in the table

  function cell(tag, text, name) {
    const node = document.createElement(tag);
    node.textContent = text;
    if (name) node.className = name;
    return node;
  }
  for (const [key, title] of HEADS) {
    const node = cell("th", "", RIGHT.has(key) ? "right" : null), button = cell("button", title);
    button.type = "button";
    button.addEventListener("click", () => { up = by === key ? !up : key === "name"; by = key; draw(); });
    node.scope = "col";
    node.dataset.key = key;
    node.append(button);
    head.append(node);
  }

  const SHARE = /accuracy|f1|share|auc|recall|exact|ap50|pooled_map/;
  const shown = (row) => (row.value === null ? "-"
    : SHARE.test(row.metric) ? `${(100 * row.value).toFixed(1)} %` : String(+row.value.toPrecision(4)));
  function ago(seconds) {
    const past = Math.max(0, Date.now() / 1000 - seconds);
    if (!seconds) return "-";
    if (past < 90) return `${Math.round(past)} s ago`;
    if (past < 5400) return `${Math.round(past / 60)} min ago`;
    return past < 129600 ? `${Math.round(past / 3600)} h ago` : `${Math.round(past / 86400)} days ago`;
  }

  function line(row) {
    const node = known.get(row.id) || document.createElement("tr");
    known.set(row.id, node);
    const link = cell("a", row.name), first = document.createElement("td"), bar = document.createElement("progress");
    link.href = `/run/${row.id}`;
    first.append(link);
    const far = `${row.round} of ${row.rounds}`, round = cell("td", `${far} `, "right");
    Object.assign(bar, { max: Math.max(row.rounds, 1), value: row.round });
    bar.setAttribute("aria-label", `${far} rounds`);
    round.append(bar);
    node.dataset.status = row.status;
    node.replaceChildren(
      first, cell("td", row.method), cell("td", row.data), cell("td", row.seed, "right"), round,
      cell("td", shown(row), "right"), cell("td", row.status, row.status), cell("td", ago(row.changed)),
    );
    return node;
  }

  function draw() {
    const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
    const text = (row) => `${row.name} ${row.method} ${row.data} ${row.status}`.toLowerCase();
    const there = rows.filter((row) => words.every((word) => text(row).includes(word)));
    const less = (a, b) => (a[by] === b[by] ? a.name < b.name : (a[by] === null || a[by] < b[by]) === up);
    there.sort((a, b) => (less(a, b) ? -1 : 1));
    for (const node of head.children) {
      node.setAttribute("aria-sort", node.dataset.key !== by ? "none" : up ? "ascending" : "descending");
    }
    body.replaceChildren(...there.slice(0, MOST).map(line));
    const count = (status) => `${rows.filter((row) => row.status === status).length} ${status}`;
    const all = `${rows.length} in ${said.dataset.folder}: ${["running", "finished", "stopped"].map(count).join(", ")}`;
    const shows = all + (there.length > MOST ? "; the first 1,000 are shown" : "");
    said.textContent = lost ? "the server does not answer; trying again ..." : shows;
  }
  find.addEventListener("input", draw);
  const stream = new EventSource("/rows");
  stream.addEventListener("rows", (event) => { [rows, lost] = [JSON.parse(event.data), false]; draw(); });
  stream.addEventListener("error", () => { lost = true; draw(); });
  setInterval(draw, 10000);
})();
