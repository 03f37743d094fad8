"use strict";
// Draws what it is given: every part of a panel by its kind. All text goes into the page by textContent, never as markup.
(() => {
  let data = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const SVG = "http://www.w3.org/2000/svg";
  const COLOURS = 8, DASHES = ["solid", "dash", "dot", "dashdot"];
  const SCALE = ["#00224e", "#35456c", "#666970", "#948e77", "#c8b866", "#fee838"]; // cividis, for everybody's eyes

  // -- elements ----------------------------------------------------------------------------------------------

  function made(node, attributes, children) {
    for (const [name, value] of Object.entries(attributes || {})) {
      if (name === "style") Object.assign(node.style, value);
      else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
    }
    for (const child of [children].flat(Infinity)) {
      if (child !== null && child !== undefined && child !== false) node.append(child.nodeType ? child : String(child));
    }
    return node;
  }
  const el = (tag, attributes, ...children) => made(document.createElement(tag), attributes, children);
  const svg = (tag, attributes, ...children) => made(document.createElementNS(SVG, tag), attributes, children);
  const css = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const colour = (n) => (n === null || n === undefined ? css("--grey") : css(`--c${((n % COLOURS) + COLOURS) % COLOURS}`));
  const paint = (n) => (n === null || n === undefined ? "var(--grey)" : `var(--c${((n % COLOURS) + COLOURS) % COLOURS})`);
  const faint = (hex, alpha) => `${hex}${Math.round(alpha * 255).toString(16).padStart(2, "0")}`;
  const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;"); // plotly reads some markup
  const dark = () => css("--bg") !== "#ffffff";
  const shares = () => (dark() ? ["#1d2b36", "#2f6f9f", "#4ba6e3", "#d3ebfa"] : ["#e6f0f8", "#8fc1e3", "#0072b2", "#00263d"]);
  const split = () => (dark() ? ["#4ba6e3", "#28506b", "#1c2024", "#70431f", "#f0813a"] : ["#2166ac", "#92c5de", "#f7f7f7", "#f4a582", "#b2182b"]);
  const narrow = () => window.matchMedia("(max-width: 46rem)").matches;

  function between(scale, share) {
    const at = Math.min(Math.max(share, 0), 1) * (scale.length - 1), k = Math.min(Math.floor(at), scale.length - 2);
    const mix = [1, 3, 5].map((i) => {
      const [a, b] = [scale[k], scale[k + 1]].map((hex) => parseInt(hex.slice(i, i + 2), 16));
      return Math.round(a + (b - a) * (at - k));
    });
    return `rgb(${mix.join(",")})`;
  }

  function shown(value, axis) {
    if (value === null || value === undefined) return "-";
    return axis && axis.share ? `${(100 * value).toFixed(1)} %` : String(+value.toPrecision(4));
  }

  async function copy(text, button) {
    let done = true;
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const area = el("textarea", { style: { position: "fixed", opacity: 0 } });
      area.value = text;
      document.body.append(area);
      area.select();
      done = document.execCommand("copy");
      area.remove();
    }
    const name = button.textContent;
    button.textContent = done ? "copied" : "not allowed here";
    setTimeout(() => { button.textContent = name; }, 1200);
  }
  const copies = (texts) => el("div", { class: "copies" }, "copy as",
    Object.entries(texts).map(([name, text]) => el("button", { type: "button", onclick: (e) => copy(text, e.target) }, name)));

  // -- the answer --------------------------------------------------------------------------------------------

  function icon(kind) {
    const dot = (x, y, n) => svg("circle", { cx: x, cy: y, r: 3.4, fill: n === undefined ? "var(--muted)" : paint(n) });
    const hub = (x, y) => svg("path", { d: `M${x} ${y - 6}l6 6l-6 6l-6 -6z`, fill: "var(--ink)" });
    const line = (a, b) => svg("line", { x1: a[0], y1: a[1], x2: b[0], y2: b[1], stroke: "var(--grey)", "stroke-width": 1.3 });
    const around = (x, y, r, n, turn = 0) => [...Array(n).keys()].map((k) => [x + r * Math.sin(turn + 2 * Math.PI * k / n), y - r * Math.cos(turn + 2 * Math.PI * k / n)]);
    const star = (x, y, r, n, c, turn) => around(x, y, r, n, turn).map((p) => [line([x, y], p), dot(...p, c)]).concat([hub(x, y)]);
    const drawn = {
      alone: () => [[14, 14], [40, 10], [66, 16], [22, 36], [54, 34], [12, 54], [40, 56], [68, 52]].map((p) => dot(...p)),
      star: () => star(40, 32, 25, 8),
      several: () => [star(20, 19, 12.5, 5, 0), star(60, 19, 12.5, 5, 1), star(40, 46, 12.5, 5, 2, Math.PI)],
      cells: () => [[28, 0], [52, 1]].map(([x, n]) => svg("circle", { cx: x, cy: 32, r: 23, fill: paint(n), "fill-opacity": .16, stroke: paint(n), "stroke-width": 1.4 }))
        .concat([hub(22, 32), hub(58, 32)], [[16, 20], [14, 44], [40, 23], [40, 41], [64, 20], [66, 44]].map((p) => dot(...p))),
      peers: () => { const at = around(40, 32, 24, 7); return at.map((p, k) => line(p, at[(k + 1) % 7])).concat(at.map((p) => dot(...p))); },
    }[kind];
    return drawn ? svg("svg", { viewBox: "0 0 80 64", "aria-hidden": "true" }, drawn()) : null;
  }

  function drawAnswer(found) {
    const values = found.bars.flatMap((bar) => [bar.mean, bar.worst, ...bar.each]).filter((v) => v !== null);
    const most = found.share ? 1 : Math.max(...values, 1e-12) * 1.08;
    const at = (value) => `${Math.min(Math.max(100 * value / most, 0), 100)}%`;
    const icons = found.bars.some((bar) => bar.icon), below = found.bars.some((bar) => bar.below);
    const seeds = found.bars.some((bar) => bar.each.length > 1), worst = found.bars.some((bar) => bar.worst !== null);
    const many = icons ? "bar" : "bar plain";
    const row = (bar) => el("div", { class: bar.best ? `${many} best` : many },
      icons && (icon(bar.icon) || svg("svg", {})),
      el("div", { class: "label" }, bar.label, bar.words && el("small", {}, bar.words)),
      el("div", { class: "track", role: "img", "aria-label": `${bar.label}: ${bar.text}` },
        bar.mean !== null && el("i", { style: { width: at(bar.mean), background: paint(bar.n) } }),
        bar.worst !== null && el("u", { style: { left: at(bar.worst) }, title: `worst tenth of the clients: ${shown(bar.worst, found)}` }),
        seeds && bar.each.map((value) => el("b", { style: { left: at(value) } }))),
      el("div", { class: "score" }, bar.text), el("div", { class: "below" }, bar.below));
    const head = el("div", { class: `${many} head` }, icons && el("span"), el("span"), el("span", {}, found.metric + (found.lower ? ", less is better" : "")),
      el("span", {}, seeds ? "mean ± deviation" : ""), el("span", {}, below ? "better alone" : ""));
    made(document.querySelector("header"), {}, [
      el("p", { class: "brand" }, "polycentric"), el("h1", {}, found.headline), el("p", { class: "lead" }, found.lead),
      el("div", { class: "bars" }, head, found.bars.map(row)),
      el("div", { class: "keys" },
        seeds && el("span", {}, el("b"), "one seed"),
        worst && el("span", {}, el("u"), "worst tenth of the clients"),
        below && el("span", {}, "better alone: share of the clients whom a model trained on their own examples alone serves better")),
      found.told.length > 0 && el("ul", { class: "told" }, found.told.map((line) => el("li", {}, line))),
      found.notes.length > 0 && el("ul", { class: "told notes" }, found.notes.map((line) => el("li", {}, line)))]);
  }

  // -- charts ------------------------------------------------------------------------------------------------

  const charts = new Map(); // element -> its part, to be drawn again in other colours
  let ready = null;

  const remembered = new Map(); // panel -> what was chosen there, where the page is drawn again

  function unpacked() {
    if (window.Plotly) return Promise.resolve(); // a live page has it from its server
    const packed = document.getElementById("plotly").textContent;
    const raw = Uint8Array.from(atob(packed), (c) => c.charCodeAt(0));
    const stream = new Blob([raw]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).text().then((text) => { document.head.append(el("script", {}, text)); });
  }

  function axisOf(axis, more) {
    const found = { title: { text: plain(axis.title), standoff: 8, font: { size: 13, color: css("--muted") } }, 
      gridcolor: css("--line"), linecolor: css("--grey"), tickcolor: css("--line"), zeroline: false, ticks: "", fixedrange: !zooms(), ...more };
    if (axis.share) Object.assign(found, { tickformat: ".0%", hoverformat: ".1%" });
    if (axis.bytes) Object.assign(found, { tickformat: ".3~s", ticksuffix: "B", nticks: 6 });
    if (axis.unit) found.ticksuffix = ` ${axis.unit}`;
    if (axis.zero) Object.assign(found, { rangemode: "tozero", zeroline: true, zerolinecolor: css("--grey"), zerolinewidth: 1 });
    if (axis.range) found.range = axis.range;
    return found;
  }
  const zooms = () => window.matchMedia("(hover: hover) and (pointer: fine)").matches; // elsewhere a finger scrolls the page

  function layoutOf(plot, more) {
    const size = root.classList.contains("printing") ? { width: plot.clientWidth, height: plot.clientHeight } : {}; // paper does not resize it
    return { ...size, margin: { l: 52, r: 14, t: 10, b: 44 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false,
      font: { family: css("--sans"), size: 12.5, color: css("--ink") }, dragmode: zooms() ? "zoom" : false, hovermode: "closest", shapes: [], annotations: [],
      hoverlabel: { bgcolor: css("--card"), bordercolor: css("--grey"), font: { family: css("--sans"), size: 12.5, color: css("--ink") }, align: "left", namelength: 40 },
      ...more };
  }

  function traces(part) {
    const largest = Math.max(1, ...part.series.flatMap((s) => s.sizes || []));
    const out = [], moving = part.series.filter((s) => !s.level);
    const xs = moving.flatMap((s) => s.x).filter((x) => typeof x === "number");
    const ends = xs.length ? [xs.reduce((a, b) => Math.min(a, b)), xs.reduce((a, b) => Math.max(a, b))] : [0, 1];
    part.series.forEach((s, k) => {
      const c = colour(s.n), dash = s.level ? "dot" : DASHES[Math.floor(Math.max(s.n || 0, 0) / COLOURS) % DASHES.length];
      const value = `%{y}`, name = plain(s.name), who = s.text && s.text.map(plain);
      const base = { name, meta: k, x: s.x, y: s.y, text: who, textposition: "none", hovertemplate: `${who ? "%{text}<br>" : ""}${name}: ${value}<extra></extra>` };
      if (s.low) {
        const flat = { meta: k, x: s.x, mode: "lines", line: { width: 0, color: c }, hoverinfo: "skip" };
        out.push({ ...flat, y: s.low }, { ...flat, y: s.high, fill: "tonexty", fillcolor: faint(c, .17) });
      }
      if (s.level) out.push({ ...base, x: ends, y: [s.y[s.y.length - 1], s.y[s.y.length - 1]], mode: "lines", line: { color: c, width: 2, dash }, hovertemplate: `${name}, at its end: ${value}<extra></extra>` });
      else if (s.mode === "bars") out.push({ ...base, type: "bar", marker: { color: c }, hovertemplate: `%{x}<br>${name}: ${who ? "%{text}" : value}<extra></extra>` });
      else if (s.mode === "area") out.push({ ...base, mode: "lines", stackgroup: "one", line: { width: .5, color: c, shape: "hv" }, fillcolor: faint(c, .75) });
      else if (s.mode === "points") out.push({ ...base, mode: "markers", marker: { color: c, size: s.sizes ? s.sizes.map((n) => 7 + 33 * Math.sqrt(n / largest) * Math.min(1, largest / 40)) : s.x.length > 400 ? 5 : 9, opacity: .8, line: { width: .8, color: css("--bg") } } });
      else out.push({ ...base, mode: s.x.length < 2 ? "markers" : "lines", line: { color: c, width: 2.2, dash }, marker: { color: c } });
    });
    return out;
  }

  function drawChart(plot, part) {
    const all = part.series.flatMap((s) => s.y.concat(part.diagonal ? s.x : [])).filter((v) => typeof v === "number");
    const layout = layoutOf(plot, { xaxis: axisOf(part.x, { automargin: "bottom" }), yaxis: axisOf(part.y, { automargin: "left" }), barmode: part.stack ? "stack" : "group", bargap: .25 });
    if (part.series.every((s) => s.low || (!s.text && s.mode === "line")) && part.series.length > 1 && !part.shade) layout.hovermode = "x unified";
    if (layout.hovermode === "x unified") layout.xaxis.unifiedhovertitle = { text: `${plain(part.x.title)} %{x}` };
    if (part.bare) for (const axis of [layout.xaxis, layout.yaxis]) Object.assign(axis, { showticklabels: false });
    if (part.series.some((s) => s.mode === "bars")) Object.assign(layout.xaxis, { showgrid: false });
    const along = part.series.flatMap((s) => s.x), span = part.x.whole && along.length ? Math.max(...along) - Math.min(...along) : Infinity;
    if (span <= 12) layout.xaxis.dtick = 1; // no half rounds
    const line = { color: css("--grey"), width: 1, dash: "dash" };
    if (part.diagonal && all.length) {
      const low = all.reduce((a, b) => Math.min(a, b)), high = all.reduce((a, b) => Math.max(a, b));
      layout.shapes.push({ type: "line", x0: low, y0: low, x1: high, y1: high, line, layer: "below" });
    }
    if (part.shade) {
      layout.shapes.push({ type: "rect", xref: "x", yref: "paper", x0: part.shade.from, x1: part.shade.to, y0: 0, y1: 1, fillcolor: faint(css("--grey"), .14), line: { width: 0 }, layer: "below" });
      layout.annotations.push({ x: part.shade.from, y: 1, xref: "x", yref: "paper", xanchor: "left", yanchor: "top", text: part.shade.words, showarrow: false, font: { size: 11.5, color: css("--muted") } });
    }
    return Plotly.react(plot, traces(part), layout, { responsive: true, displayModeBar: false, doubleClick: "reset" });
  }

  function swatch(s) {
    const c = paint(s.n), dash = [null, "5 3", "2 2", "6 2 2 2"][Math.floor(Math.max(s.n || 0, 0) / COLOURS) % 4];
    const mark = s.mode === "line" ? svg("line", { x1: 1, y1: 6, x2: 23, y2: 6, stroke: c, "stroke-width": 3, "stroke-dasharray": s.level ? "2 2" : dash })
      : s.mode === "points" ? svg("circle", { cx: 12, cy: 6, r: 5, fill: c }) : svg("rect", { x: 4, y: 1, width: 16, height: 10, rx: 1.5, fill: c });
    return svg("svg", { viewBox: "0 0 24 12", "aria-hidden": "true" }, mark);
  }

  function legend(part, plot) {
    const toggle = (k) => (event) => {
      const button = event.currentTarget, on = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", on);
      const which = plot.data.map((t, i) => (t.meta === k ? i : -1)).filter((i) => i >= 0);
      Plotly.restyle(plot, { visible: on }, which);
    };
    return el("div", { class: "legend" }, part.series.map((s, k) =>
      el("button", { type: "button", "aria-pressed": "true", onclick: toggle(k) }, swatch(s), s.level ? `${s.name} (does not move along this axis)` : s.name)));
  }

  function drawHeat(plot, part) {
    const rows = part.z.length, columns = rows ? part.z[0].length : 0, blocks = part.blocks || [];
    const z = part.share ? part.z.map((row) => row.map((v) => v || null)) : part.z;
    const text = z.map((row, i) => row.map((v, j) => `${plain(part.rows[i])}<br>${plain(part.columns[j])}`));
    const high = part.split || z.flat().reduce((a, b) => Math.max(a, b || 0), 1e-9), scale = part.split ? split() : shares();
    const short = (name) => plain(name.length > 14 ? `${name.slice(0, 13)}…` : name);
    const ticks = (names, most) => (blocks.length ? { tickvals: blocks.map(([a, b]) => (a + b) / 2), ticktext: blocks.map((b) => short(b[2])) }
      : names.length <= most ? { tickvals: [...names.keys()], ticktext: names.map(short) } : { showticklabels: false });
    const format = part.share ? ".0%" : ".2f", square = Boolean(part.split);
    const trace = { type: "heatmap", z, text, zmin: square ? -high : 0, zmax: high, colorscale: scale.map((c, k) => [k / (scale.length - 1), c]), hoverongaps: false,
      xgap: columns <= 60 ? 1 : 0, ygap: rows <= 60 ? 1 : 0, hovertemplate: `%{text}<br>${part.title}: %{z:${format}}<extra></extra>`,
      colorbar: { thickness: 10, outlinewidth: 0, tickformat: format, nticks: 6, title: { text: part.title, side: "top", font: { size: 12, color: css("--muted") } }, tickfont: { size: 11 }, len: .7, x: 1.01, xpad: 4 } };
    const axis = { showgrid: false, zeroline: false, fixedrange: true, tickfont: { size: 11.5 }, ticks: "", ...(square ? { constrain: "domain" } : {}) };
    const cuts = blocks.slice(1).map(([a]) => a - .5), line = { color: css("--ink"), width: 1.2 };
    const layout = layoutOf(plot, { margin: { l: 20, r: 10, t: 8, b: 24 }, dragmode: false,
      xaxis: { ...axis, automargin: "bottom", ...ticks(part.columns, square ? 24 : narrow() ? 16 : 40), tickangle: blocks.length ? 0 : "auto", ...(square ? { scaleanchor: "y" } : {}) },
      yaxis: { ...axis, automargin: "left", ...ticks(part.rows, narrow() ? 24 : 40), autorange: "reversed" },
      shapes: cuts.flatMap((k) => [{ type: "line", x0: k, x1: k, y0: -.5, y1: rows - .5, line }, { type: "line", y0: k, y1: k, x0: -.5, x1: columns - .5, line }]) });
    return Plotly.react(plot, [trace], layout, { responsive: true, displayModeBar: false });
  }

  const DRAW = { chart: drawChart, heat: drawHeat };

  function whenReady(plot, part) {
    charts.set(plot, part);
    ready.then(() => { if (charts.get(plot) === part) { if (!plot.data) plot.replaceChildren(); return DRAW[part.kind](plot, part); } });
  }

  function plotted(part, box) {
    const old = box.querySelector(":scope > .plot");
    const square = part.split || part.equal, shape = square ? "plot square" : part.kind === "heat" ? "plot high" : "plot";
    const plot = old && old.dataset.shape === shape && box.dataset.kind === part.kind ? old : el("div", { class: shape, "data-shape": shape }, el("p", { class: "wait" }, "drawing …"));
    box.dataset.kind = part.kind;
    if (plot !== old) { if (old) charts.delete(old); box.replaceChildren(plot); } else for (const other of [...box.children]) if (other !== plot) other.remove();
    if (part.kind === "chart" && part.series.length > (part.legend ? 0 : 1)) box.prepend(legend(part, plot));
    whenReady(plot, part);
  }

  // -- hand-made ---------------------------------------------------------------------------------------------

  function picture(part, box, chosen, again) {
    const W = 640, P = 22, X = (x) => P + x * (W - 2 * P), Y = (y) => P + (1 - y) * (W - 2 * P);
    const n = part.clients.x.length, r = Math.max(2.2, Math.min(7.5, 90 / Math.sqrt(n)));
    const by = part.colours.find((c) => c.name === chosen["colour by"]) || part.colours[0];
    const span = by.between && by.between[1] > by.between[0] ? by.between[1] - by.between[0] : 1;
    const fill = (k) => (by.values ? (by.values[k] === null ? "var(--grey)" : between(SCALE, (by.values[k] - by.between[0]) / span)) : paint(by.kinds[k]));
    const ends = part.links.map(([a, b, share, match]) => {
      const [x1, y1] = part.peers ? [part.clients.x[a], part.clients.y[a]] : [part.centers.x[a], part.centers.y[a]];
      return svg("line", { x1: X(x1), y1: Y(y1), x2: X(part.clients.x[b]), y2: Y(part.clients.y[b]), "stroke-linecap": "round",
        stroke: part.matchings ? paint(match) : "var(--grey)", "stroke-opacity": part.matchings ? .35 + .6 * share : n > 200 ? .22 : .5,
        "stroke-width": part.matchings ? .6 + 5 * share : 1.1, "stroke-dasharray": share > 0 ? null : "2 4" });
    });
    const cells = part.centers.x.map((x, k) => part.centers.r[k] > 0 && svg("circle", { cx: X(x), cy: Y(part.centers.y[k]), r: part.centers.r[k] * (W - 2 * P), fill: paint(part.centers.n[k]), "fill-opacity": .09, stroke: paint(part.centers.n[k]), "stroke-width": 1.2 }));
    const dots = part.clients.x.map((x, k) => svg("circle", { cx: X(x), cy: Y(part.clients.y[k]), r, fill: fill(k), stroke: "var(--bg)", "stroke-width": n > 400 ? .4 : 1, "data-k": k }));
    const hubs = part.centers.x.map((x, k) => { const s = part.centers.x.length > 40 ? 5 : 9; return svg("path", { d: `M${X(x)} ${Y(part.centers.y[k]) - s}l${s} ${s}l${-s} ${s}l${-s} ${-s}z`, fill: "var(--ink)", stroke: "var(--bg)", "stroke-width": 1.5 }, svg("title", {}, `center ${part.centers.n[k]}`)); });
    const caption = el("p", { "aria-live": "polite" }, part.words);
    const tell = (event) => {
      const k = event.target.dataset && event.target.dataset.k;
      const kind = k !== undefined && (by.values ? shown(by.values[k], by.axis) : by.labels[by.kinds[k]] || "");
      caption.textContent = k === undefined ? part.words : `client ${part.clients.names[k]}${kind ? `: ${by.name} ${kind.replace(/^cluster /, "")}` : ""}`;
    };
    const keys = by.values
      ? el("div", { class: "legend" }, el("span", {}, `${by.name} ${shown(by.between[0], by.axis)}`, el("i", { class: "scale", style: { background: `linear-gradient(90deg, ${SCALE.join(",")})` } }), shown(by.between[1], by.axis)))
      : el("div", { class: "legend" }, Object.entries(by.labels).map(([k, name]) => el("span", {}, swatch({ n: +k, mode: "points" }), name)));
    const match = part.matchings && [...new Map(part.links.map(([, , share, m]) => [m, share]))].sort((a, b) => a[0] - b[0]).slice(0, 8);
    const often = match && el("div", { class: "legend" }, "matchings, and their share of the rounds:", match.map(([m, share]) => el("span", {}, swatch({ n: m, mode: "line" }), shown(share, { share: true }))));
    box.replaceChildren(keys, ...(often ? [often] : []),
      svg("svg", { viewBox: `0 0 ${W} ${W}`, role: "img", "aria-label": part.words, onpointerover: tell, onpointerdown: tell }, cells, ends, dots, hubs), caption);
  }

  function flow(part, box) {
    const W = 900, H = 360, top = 28, wide = 16, gap = 10, columns = part.columns.length;
    const total = part.nodes.filter((v) => v[0] === 0).reduce((a, v) => a + v[2], 0);
    const most = Math.max(...part.columns.map((_, j) => part.nodes.filter((v) => v[0] === j).length));
    const unit = (H - top - 8 - gap * (most - 1)) / Math.max(total, 1);
    const x = (j) => 4 + j * (W - 8 - wide) / Math.max(columns - 1, 1), y = [], used = part.nodes.map(() => [0, 0]);
    part.columns.forEach((_, j) => { let at = top; part.nodes.forEach((v, i) => { if (v[0] === j) { y[i] = at; at += v[2] * unit + gap; } }); });
    const bands = part.links.map(([a, b, n]) => {
      const y0 = y[a] + used[a][1], y1 = y[b] + used[b][0], h = n * unit, x0 = x(part.nodes[a][0]) + wide, x1 = x(part.nodes[b][0]), m = (x0 + x1) / 2;
      used[a][1] += h; used[b][0] += h;
      const stays = part.nodes[a][1] === part.nodes[b][1];
      return svg("path", { d: `M${x0} ${y0}C${m} ${y0} ${m} ${y1} ${x1} ${y1}v${h}C${m} ${y1 + h} ${m} ${y0 + h} ${x0} ${y0 + h}z`, fill: stays ? "var(--grey)" : paint(part.nodes[a][1]), "fill-opacity": stays ? .18 : .6 },
        svg("title", {}, `${n} clients from cluster ${part.nodes[a][1]} to ${part.nodes[b][1]}`));
    });
    const nodes = part.nodes.map(([j, k, n], i) => [svg("rect", { x: x(j), y: y[i], width: wide, height: Math.max(n * unit, 1), fill: paint(k) }, svg("title", {}, `cluster ${k}: ${n} clients`)),
      n * unit > 13 && svg("text", { x: j === columns - 1 ? x(j) - 6 : x(j) + wide + 6, y: y[i] + n * unit / 2 + 4.5, "text-anchor": j === columns - 1 ? "end" : "start" }, `${k}: ${n}`)]);
    const heads = part.columns.map((name, j) => svg("text", { class: "muted", x: j === 0 ? x(0) : j === columns - 1 ? x(j) + wide : x(j) + wide / 2, y: 14, "text-anchor": j === 0 ? "start" : j === columns - 1 ? "end" : "middle" }, name));
    box.replaceChildren(el("h3", {}, "who went where"), el("div", { class: "flow scroll" }, svg("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": "clients between clusters", style: { minWidth: "34rem" } }, bands, nodes, heads)));
  }

  function image(part, box) {
    const lines = part.rows.length, tall = narrow() ? 24 : Math.max(30, Math.min(46, part.high)), high = lines * tall;
    const picture = el("img", { src: part.src, alt: part.alt, style: { height: `${high}px` } });
    const names = part.rows.map((row, k) => el("div", {}, el("b", { style: { color: paint(row.n) } }, k === 0 || part.rows[k - 1].n !== row.n ? row.name : ""), el("small", {}, row.client)));
    const columns = part.columns.length;
    box.replaceChildren(el("div", { class: "sheet" },
      el("div", { class: "across", style: { gridTemplateColumns: `repeat(${columns}, minmax(0, 1fr))` } }, part.columns.map((name) => el("span", {}, name.length > 6 ? `${name.slice(0, 5)}…` : name))),
      el("div", { class: "down", style: { gridTemplateRows: `repeat(${lines}, ${tall}px)` } }, names), picture));
  }

  function table(part, box) {
    const best = new Set(part.best.map(([i, j]) => `${i}.${j}`)), side = (j) => (j < part.left ? null : "right");
    const cell = (i) => (text, j) => el("td", { class: [side(j), best.has(`${i}.${j}`) && "best"].filter(Boolean).join(" ") || null }, text);
    box.replaceChildren(...[part.title && el("h3", {}, part.title),
      el("div", { class: "scroll" }, el("table", {}, el("thead", {}, el("tr", {}, part.heads.map((head, j) => el("th", { class: side(j), scope: "col" }, head)))),
        el("tbody", {}, part.lines.map((line, i) => el("tr", {}, line.map(cell(i))))))),
      part.caption && el("p", { class: "caption" }, part.caption), copies(part.copies)].filter(Boolean));
  }

  const KINDS = {
    chart: plotted, heat: plotted, picture, flow, image, table,
    facts: (part, box) => box.replaceChildren(el("dl", {}, part.pairs.map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]))),
    code: (part, box) => box.replaceChildren(...[!part.folded && el("h3", {}, part.title), el("pre", {}, part.text), copies({ text: part.text })].filter(Boolean)),
    words: (part, box) => box.replaceChildren(el("ul", { class: "told" }, part.lines.map((line) => el("li", {}, line)))),
  };

  // -- panels ------------------------------------------------------------------------------------------------

  function drawPanel(found) {
    const before = remembered.get(found.key) || {}, chosen = {}, boxes = found.parts.map(() => el("div"));
    remembered.set(found.key, chosen);
    const options = new Map(); // by name: all values of the panel's switches
    for (const part of found.parts.filter((p) => p.kind === "switch")) {
      for (const option of part.options) {
        const known = options.get(option.name) || { ...option, values: [] };
        known.values = [...new Set([...known.values, ...option.values])];
        options.set(option.name, known);
        const first = option.name === "run" && known.values.includes(data.answer.bars[0].label) ? data.answer.bars[0].label : null;
        chosen[option.name] = first || option.values[(part.start || {})[option.name] || 0];
        if (!option.slider && known.values.includes(before[option.name])) chosen[option.name] = before[option.name];
      }
    }
    const resolved = (part) => {
      if (part.kind !== "switch") return part;
      const keys = part.options.map((option) => { const k = option.values.indexOf(chosen[option.name]); return option.slider ? +chosen[option.name] : k; });
      while (keys[keys.length - 1] > 0 && part.options[keys.length - 1].slider && !part.parts[keys.join(".")]) keys[keys.length - 1] -= 1;
      const one = part.parts[keys.join(".")];
      return one ? { ...part.shared, ...one } : null;
    };
    const last = new Map(); // how far a slider can go, and what it says
    const draw = () => found.parts.forEach((whole, k) => {
      const part = resolved(whole), box = boxes[k];
      box.hidden = !part;
      if (part) box.className = part.half ? `${part.kind} half` : part.kind;
      if (!part) return;
      if (part.at && last.has("slider")) {
        const { range, output, name } = last.get("slider"), base = whole.options.map((o) => (o.slider ? null : o.values.indexOf(chosen[o.name])));
        const many = Object.keys(whole.parts).filter((key) => key.split(".").every((v, i) => base[i] === null || base[i] === +v)).length;
        range.max = many - 1; range.disabled = many < 2; output.textContent = part.at;
        if (+range.value !== +chosen[name]) range.value = chosen[name];
      }
      let inner = box;
      if (part.folded) {
        if (!box.firstChild) box.append(el("details", {}, el("summary", {}, part.title || "more"), el("div")));
        inner = box.querySelector("details > div");
      }
      KINDS[part.kind](part.folded ? { ...part, title: "" } : part, inner, chosen, draw);
    });
    const choose = (name, value) => { chosen[name] = value; draw(); };
    const control = (option) => {
      if (option.slider) {
        if (option.values.length < 2) return null;
        const output = el("output", {}), range = el("input", { type: "range", min: 0, max: option.values.length - 1, value: option.values.length - 1, step: 1, "aria-label": option.name, oninput: (e) => choose(option.name, e.target.value) });
        chosen[option.name] = String(option.values.length - 1);
        last.set("slider", { range, output, name: option.name });
        return el("label", {}, option.name, range, output);
      }
      if (option.values.length < 2) return option.name === "run" && data.answer.bars.length > 1 ? el("span", {}, "run", el("b", {}, option.values[0])) : null;
      if (option.values.length > 5 || option.values.join("").length > (narrow() ? 24 : 46)) {
        return el("label", {}, option.name, el("select", { onchange: (e) => choose(option.name, e.target.value) }, option.values.map((value) => el("option", { value, selected: value === chosen[option.name] }, value))));
      }
      const buttons = option.values.map((value) => el("button", { type: "button", "aria-pressed": value === chosen[option.name] ? "true" : "false",
        onclick: () => { buttons.forEach((b, k) => b.setAttribute("aria-pressed", option.values[k] === value ? "true" : "false")); choose(option.name, value); } }, value));
      return el("span", {}, option.name, el("span", { class: "choose", role: "group", "aria-label": option.name }, buttons));
    };
    const colourings = [...new Set(found.parts.flatMap((p) => (p.kind === "picture" ? [p] : Object.values(p.parts || {}))).flatMap((p) => (p.colours || []).map((c) => c.name)))].filter(Boolean);
    if (colourings.length > 1) { options.set("colour by", { name: "colour by", values: colourings }); chosen["colour by"] = colourings.includes("cluster") ? "cluster" : colourings[0]; }
    const controls = [...options.values()].map(control).filter(Boolean);
    document.querySelector("main").append(el("section", { id: found.key }, el("h2", {}, found.title), el("p", { class: "how" }, found.words),
      controls.length > 0 && el("div", { class: "controls" }, controls), el("div", { class: "parts" }, boxes)));
    draw();
  }

  function redraw() { for (const [plot, part] of charts) if (plot.isConnected && plot.data) DRAW[part.kind](plot, part); }

  // -- the page ----------------------------------------------------------------------------------------------

  ready = unpacked().catch(() => {
    document.querySelectorAll(".wait").forEach((p) => { p.textContent = "This browser cannot unpack the charts; tables and drawings are all there."; });
    return new Promise(() => {});
  });

  function drawAll() {
    const at = window.scrollY;
    charts.clear();
    for (const part of ["header", "nav", "main"]) document.querySelector(part).replaceChildren();
    drawAnswer(data.answer);
    for (const found of data.panels) drawPanel(found);
    document.querySelector("nav").append(el("div", {}, data.panels.map((found) => el("a", { href: `#${found.key}` }, found.key.replace("-", " ")))));
    window.scrollTo(0, at);
  }
  drawAll();
  const said = root.dataset.events ? "Live, from `polycentric watch` on this machine." : "Made by `polycentric report`. This file holds everything it shows; it loads nothing and sends nothing.";
  document.querySelector("footer").append(el("p", {}, said));

  // A live page: the server tells that a run has gone on, and the data are asked for again, at most once a second.

  function listen() {
    let waiting = false, again = false;
    const refresh = async () => {
      if (waiting) { again = true; return; }
      waiting = true; again = false;
      try {
        const found = await fetch(root.dataset.from, { cache: "no-store" });
        if (found.ok) { data = await found.json(); drawAll(); root.dataset.drawn = String(+(root.dataset.drawn || 0) + 1); }
      } finally {
        setTimeout(() => { waiting = false; if (again) refresh(); }, 700);
      }
    };
    const stream = new EventSource(root.dataset.events); // it reconnects by itself, and says where it was
    stream.addEventListener("line", refresh);
    stream.addEventListener("reset", refresh);
    stream.addEventListener("status", refresh);
  }
  if (root.dataset.events) listen();

  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  const print = (on) => () => {
    root.classList.toggle("printing", on);
    for (const plot of charts.keys()) plot.style.width = on && !plot.closest(".half") ? "660px" : on ? "320px" : "";
    redraw();
    if (!on) for (const plot of charts.keys()) if (plot.isConnected && plot.data) Plotly.Plots.resize(plot);
  };
  window.addEventListener("beforeprint", print(true));
  window.addEventListener("afterprint", print(false));
  ready.then(() => { root.dataset.ready = "true"; });
})();
