"use strict";
// The list of runs, as it moves. All text goes into the page by textContent.
(() => {
  const HEADS = [["name", "run"], ["method", "method"], ["data", "data"], ["seed", "seed"], ["round", "round"], ["value", "score"], ["status", "status"], ["changed", "last line"]];
  let rows = [], by = "changed", up = false;
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
    const node = cell("th", "", key === "seed" || key === "round" || key === "value" ? "right" : null), button = cell("button", title);
    button.type = "button";
    button.addEventListener("click", () => { up = by === key ? !up : key === "name"; by = key; draw(); });
    node.scope = "col";
    node.append(button);
    head.append(node);
  }
  const shown = (row) => (row.value === null ? "-" : /accuracy|f1|share|auc|recall|exact/.test(row.metric) ? `${(100 * row.value).toFixed(1)} %` : String(+row.value.toPrecision(4)));
  const ago = (seconds) => {
    const past = Math.max(0, Date.now() / 1000 - seconds);
    return !seconds ? "-" : past < 90 ? `${Math.round(past)} s ago` : past < 5400 ? `${Math.round(past / 60)} min ago` : past < 129600 ? `${Math.round(past / 3600)} h ago` : `${Math.round(past / 86400)} days ago`;
  };

  function line(row) {
    let node = known.get(row.id);
    const link = document.createElement("a");
    link.href = `/run/${row.id}`;
    link.textContent = row.name;
    const first = document.createElement("td"), bar = document.createElement("progress"), round = cell("td", `${row.round} of ${row.rounds} `, "right");
    bar.max = Math.max(row.rounds, 1); bar.value = row.round; bar.setAttribute("aria-label", `${row.round} of ${row.rounds} rounds`);
    round.append(bar);
    first.append(link);
    if (!node) { node = document.createElement("tr"); known.set(row.id, node); }
    node.dataset.status = row.status;
    node.replaceChildren(first, cell("td", row.method), cell("td", row.data), cell("td", row.seed, "right"), round, cell("td", shown(row), "right"), cell("td", row.status, row.status), cell("td", ago(row.changed)));
    return node;
  }

  function draw() {
    const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
    const there = rows.filter((row) => words.every((word) => `${row.name} ${row.method} ${row.data} ${row.status}`.toLowerCase().includes(word)));
    there.sort((a, b) => (a[by] === b[by] ? (a.name < b.name ? -1 : 1) : (a[by] === null || a[by] < b[by] ? -1 : 1) * (up ? 1 : -1)));
    body.replaceChildren(...there.slice(0, 1000).map(line));
    const count = (status) => rows.filter((row) => row.status === status).length;
    said.textContent = `${rows.length} in ${said.dataset.folder}: ${count("running")} running, ${count("finished")} finished, ${count("stopped")} stopped` + (there.length > 1000 ? "; the first 1,000 are shown" : "");
  }
  find.addEventListener("input", draw);
  const stream = new EventSource("/rows");
  stream.addEventListener("rows", (event) => { rows = JSON.parse(event.data); draw(); });
  stream.addEventListener("error", () => { said.textContent = "the server does not answer; trying again ..."; });
  setInterval(draw, 10000);
})();
