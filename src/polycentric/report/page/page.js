"use strict";
// Draws what it is given: every part of a panel by its kind (parts.py lists them). It knows nothing of runs. All text
// goes into the page by textContent, never as markup.
(() => {
  let data = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const SVG = "http://www.w3.org/2000/svg";
  const COLOURS = 8;
  const DASHES = ["solid", "dash", "dot", "dashdot"];
  const CIVIDIS = ["#00224e", "#35456c", "#666970", "#948e77", "#c8b866", "#fee838"]; // told apart by everybody

  // -- elements ------------------------------------------------------------------------------------------------

  function made(node, attributes, children) {
    for (const [name, value] of Object.entries(attributes || {})) {
      if (name === "style") Object.assign(node.style, value);
      else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else if (value !== null && value !== undefined && value !== false) {
        node.setAttribute(name, value === true ? "" : value);
      }
    }
    for (const child of [children].flat(Infinity)) {
      if (child === null || child === undefined || child === false) continue;
      node.append(child.nodeType ? child : String(child));
    }
    return node;
  }
  const el = (tag, attributes, ...children) => made(document.createElement(tag), attributes, children);
  const svg = (tag, attributes, ...children) => made(document.createElementNS(SVG, tag), attributes, children);
  const scrolls = (name) => ({ class: "scroll", tabindex: 0, role: "region", "aria-label": name }); // also by keys
  const filled = (box, ...children) => { box.replaceChildren(); return made(box, {}, children); };

  const css = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const variable = (n) => (n === null || n === undefined ? "--grey" : `--c${((n % COLOURS) + COLOURS) % COLOURS}`);
  const colour = (n) => css(variable(n)); // for plotly, which wants it now
  const paint = (n) => `var(${variable(n)})`; // for our own drawings, which follow by day and night
  const round = (n) => Math.floor(Math.max(n || 0, 0) / COLOURS) % DASHES.length; // how often colours came round
  const faint = (hex, alpha) => `${hex}${Math.round(alpha * 255).toString(16).padStart(2, "0")}`;
  const dark = () => css("--bg") !== "#ffffff";
  const narrow = () => window.matchMedia("(max-width: 46rem)").matches;
  const zooms = () => window.matchMedia("(hover: hover) and (pointer: fine)").matches; // a finger scrolls the page
  const least = (values) => values.reduce((a, b) => Math.min(a, b), Infinity);
  const most = (values) => values.reduce((a, b) => Math.max(a, b), -Infinity);

  // Plotly reads some markup in what it shows.
  const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const short = (text, n) => (text.length > n ? `${text.slice(0, n - 1)}…` : text);

  function shown(value, axis) {
    if (value === null || value === undefined) return "-";
    return axis && axis.share ? `${(100 * value).toFixed(1)} %` : String(+value.toPrecision(4));
  }

  function between(scale, share) {
    const at = Math.min(Math.max(share, 0), 1) * (scale.length - 1);
    const k = Math.min(Math.floor(at), scale.length - 2);
    const mix = [1, 3, 5].map((i) => {
      const [a, b] = [scale[k], scale[k + 1]].map((hex) => parseInt(hex.slice(i, i + 2), 16));
      return Math.round(a + (b - a) * (at - k));
    });
    return `rgb(${mix.join(",")})`;
  }

  async function copy(text, button) {
    let done = true;
    try {
      await navigator.clipboard.writeText(text);
    } catch { // not every browser lets a file do so
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

  function copies(texts) {
    const button = ([name, text]) => el("button", { type: "button", onclick: (e) => copy(text, e.target) }, name);
    return el("div", { class: "copies" }, "copy as", Object.entries(texts).map(button));
  }

  const state = el("span", { role: "status" }); // of a live page: whether it is

  // -- the answer ----------------------------------------------------------------------------------------------

  function icon(kind) {
    const grey = "var(--muted)";
    const dot = ([x, y], n) => svg("circle", { cx: x, cy: y, r: 3.4, fill: n === undefined ? grey : paint(n) });
    const hub = (x, y) => svg("path", { d: `M${x} ${y - 6}l6 6l-6 6l-6 -6z`, fill: "var(--ink)" });
    const line = ([x1, y1], [x2, y2]) => svg("line", { x1, y1, x2, y2, stroke: "var(--grey)", "stroke-width": 1.3 });
    const cell = (x, n) => svg("circle", {
      cx: x, cy: 32, r: 23, fill: paint(n), "fill-opacity": .16, stroke: paint(n), "stroke-width": 1.4,
    });
    const around = (x, y, r, n, turn = 0) => [...Array(n).keys()].map((k) => {
      const angle = turn + 2 * Math.PI * k / n;
      return [x + r * Math.sin(angle), y - r * Math.cos(angle)];
    });
    const ray = (x, y, c) => (p) => [line([x, y], p), dot(p, c)];
    const star = (x, y, r, n, c, turn) => [around(x, y, r, n, turn).map(ray(x, y, c)), hub(x, y)];
    const ring = around(40, 32, 24, 7);
    const drawn = {
      alone: () => [[14, 14], [40, 10], [66, 16], [22, 36], [54, 34], [12, 54], [40, 56], [68, 52]].map((p) => dot(p)),
      star: () => star(40, 32, 25, 8),
      several: () => [star(20, 19, 12.5, 5, 0), star(60, 19, 12.5, 5, 1), star(40, 46, 12.5, 5, 2, Math.PI)],
      cells: () => [cell(28, 0), cell(52, 1), hub(22, 32), hub(58, 32),
        [[16, 20], [14, 44], [40, 23], [40, 41], [64, 20], [66, 44]].map((p) => dot(p))],
      peers: () => [ring.map((p, k) => line(p, ring[(k + 1) % 7])), ring.map((p) => dot(p))],
    }[kind];
    return drawn ? svg("svg", { viewBox: "0 0 80 64", "aria-hidden": "true" }, drawn()) : svg("svg", {});
  }

  function drawAnswer(found) {
    const values = found.bars.flatMap((bar) => [bar.mean, bar.worst, ...bar.each]).filter((v) => v !== null);
    const end = found.share ? 1 : Math.max(most(values), 1e-12) * 1.08;
    const at = (value) => `${Math.min(Math.max(100 * value / end, 0), 100)}%`;
    const icons = found.bars.some((bar) => bar.icon), below = found.bars.some((bar) => bar.below);
    const seeds = found.bars.some((bar) => bar.each.length > 1), worst = found.bars.some((bar) => bar.worst !== null);
    const kind = icons ? "bar" : "bar plain";
    const tick = (value) => el("u", { style: { left: at(value) }, title: `worst tenth: ${shown(value, found)}` });
    const row = (bar) => el("div", { class: bar.best ? `${kind} best` : kind },
      icons && icon(bar.icon),
      el("div", { class: "label" }, bar.label, bar.words && el("small", {}, bar.words)),
      el("div", { class: "track", role: "img", "aria-label": `${bar.label}: ${bar.text}` },
        bar.mean !== null && el("i", { style: { width: at(bar.mean), background: paint(bar.n) } }),
        bar.worst !== null && tick(bar.worst),
        seeds && bar.each.map((value) => el("b", { style: { left: at(value) } }))),
      el("div", { class: "score" }, bar.text),
      el("div", { class: "below" }, bar.below));
    const head = el("div", { class: `${kind} head` },
      icons && el("span"), el("span"), el("span", {}, found.metric + (found.lower ? ", less is better" : "")),
      el("span", {}, seeds ? "mean ± deviation" : ""), el("span", {}, below ? "better alone" : ""));
    const keys = el("div", { class: "keys" },
      seeds && el("span", {}, el("b"), "one seed"),
      worst && el("span", {}, el("u"), "worst tenth of the clients"),
      below && el("span", {}, "better alone: share of the clients whom training on their own examples serves better"));
    const item = (line) => el("li", {}, line);
    const list = (lines, name) => lines.length > 0 && el("ul", { class: name }, lines.map(item));
    made(document.querySelector("header"), {}, [
      el("p", { class: "brand" }, "polycentric", root.dataset.events && [" · ", el("a", { href: "/" }, "all runs")],
        state),
      el("h1", {}, found.headline), el("p", { class: "lead" }, found.lead),
      el("div", { class: "bars" }, head, found.bars.map(row)), keys,
      list(found.told, "told"), list(found.notes, "told notes"),
    ]);
  }

  // -- charts --------------------------------------------------------------------------------------------------

  const charts = new Map(); // element -> its part, to be drawn again in other colours
  let ready = null;

  function unpacked() {
    if (window.Plotly) return Promise.resolve(); // a live page has it from its server
    const raw = Uint8Array.from(atob(document.getElementById("plotly").textContent), (c) => c.charCodeAt(0));
    const stream = new Blob([raw]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).text().then((text) => { document.head.append(el("script", {}, text)); });
  }

  function axisOf(axis, more) {
    const found = {
      title: { text: plain(axis.title), standoff: 8, font: { size: 13, color: css("--muted") } }, zeroline: false,
      gridcolor: css("--line"), linecolor: css("--grey"), ticks: "", fixedrange: !zooms(), ...more,
    };
    if (axis.share) Object.assign(found, { tickformat: ".0%", hoverformat: ".1%" });
    if (axis.bytes) Object.assign(found, { tickformat: ".3~s", ticksuffix: "B", nticks: 6 });
    if (axis.unit) Object.assign(found, { ticksuffix: axis.unit, range: [0, 100] });
    if (axis.zero) {
      Object.assign(found, { rangemode: "tozero", zeroline: true, zerolinecolor: css("--grey"), zerolinewidth: 1 });
    }
    if (axis.range) found.range = axis.range;
    return found;
  }

  function layoutOf(plot, more) {
    const printing = root.classList.contains("printing"); // paper does not resize what is on it
    const type = { family: css("--sans"), size: 12.5, color: css("--ink") };
    return {
      ...(printing ? { width: plot.clientWidth, height: plot.clientHeight } : {}),
      margin: { l: 52, r: 22, t: 10, b: 44 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      showlegend: false, font: type, dragmode: zooms() ? "zoom" : false, hovermode: "closest",
      hoverlabel: { bgcolor: css("--card"), bordercolor: css("--grey"), font: type, align: "left", namelength: 40 },
      shapes: [], annotations: [], ...more,
    };
  }
  const CONFIG = { responsive: true, displayModeBar: false, doubleClick: "reset" };

  // Where points with a name of their own (`who`) were, frame by frame.
  function standings(frame) {
    const found = new Map();
    frame.series.forEach((s) => s.who.forEach((id, i) => found.set(id, { x: s.x[i], y: s.y[i], n: s.n })));
    return found;
  }
  const before = (part, id) => part.past && part.past.length && part.past[part.past.length - 1].get(id);
  function trail(part, s) {
    const x = [], y = [], many = most(part.series.map((other) => other.who.length)) > 60;
    const past = many ? part.past.slice(-2) : part.past;
    s.who.forEach((id, i) => {
      for (const at of past.map((frame) => frame.get(id)).filter(Boolean)) { x.push(at.x); y.push(at.y); }
      x.push(s.x[i], null);
      y.push(s.y[i], null);
    });
    return { x, y, mode: "lines", line: { color: faint(colour(s.n), many ? .25 : .4), width: 1 }, hoverinfo: "skip" };
  }

  function traces(part) {
    const largest = most([1, ...part.series.flatMap((s) => s.sizes || [])]);
    const xs = part.series.filter((s) => !s.level).flatMap((s) => s.x).filter((x) => typeof x === "number");
    const ends = xs.length ? [least(xs), most(xs)] : [0, 1];
    return part.series.flatMap((s, k) => {
      const c = colour(s.n), name = plain(s.name), who = s.text && s.text.map(plain);
      const base = {
        name, meta: k, x: s.x, y: s.y, text: who, textposition: "none",
        hovertemplate: `${who ? "%{text}<br>" : ""}${name}: %{y}<extra></extra>`,
      };
      if (s.level) {
        const end = s.y[s.y.length - 1], hovertemplate = `${name}, at its end: %{y}<extra></extra>`;
        const line = { color: c, width: 2, dash: "dot" };
        return [{ ...base, x: ends, y: [end, end], mode: "lines", line, hovertemplate }];
      }
      if (s.mode === "bars") {
        const hovertemplate = `%{x}<br>${name}: ${who ? "%{text}" : "%{y}"}<extra></extra>`;
        return [{ ...base, type: "bar", marker: { color: c }, hovertemplate }];
      }
      if (s.mode === "area") {
        const line = { width: .5, color: c, shape: "hv" };
        return [{ ...base, mode: "lines", stackgroup: "one", line, fillcolor: faint(c, .75) }];
      }
      if (s.mode === "points") {
        const grows = (n) => 7 + 33 * Math.sqrt(n / largest) * Math.min(1, largest / 40);
        const size = s.sizes ? s.sizes.map(grows) : s.x.length > 400 ? 5 : 9;
        const left = s.who && s.who.map((id) => before(part, id)).map((at) => (at && at.n !== s.n ? at.n : null));
        const ring = left && {
          width: left.map((n) => (n === null ? .8 : 2.5)),
          color: left.map((n) => (n === null ? css("--bg") : colour(n))),
        };
        const marker = { color: c, size, opacity: .8, line: { width: .8, color: css("--bg"), ...ring } };
        const points = { ...base, mode: "markers", marker };
        return part.past && part.past.length ? [{ ...trail(part, s), meta: k }, points] : [points];
      }
      const edge = { meta: k, x: s.x, mode: "lines", line: { width: 0, color: c }, hoverinfo: "skip" };
      const above = { ...edge, y: s.high, fill: "tonexty", fillcolor: faint(c, .17) };
      const band = s.low ? [{ ...edge, y: s.low }, above] : [];
      const line = { color: c, width: 2.2, dash: DASHES[round(s.n)] };
      return [...band, { ...base, mode: s.x.length < 2 ? "markers" : "lines", line, marker: { color: c } }];
    });
  }

  // A bar that stands alone is no wall.
  function bargap(part) {
    const kinds = new Set(part.series.flatMap((s) => s.x)).size;
    return kinds > 3 ? .25 : 1 - .18 * Math.max(kinds, 1);
  }

  function drawChart(plot, part) {
    const layout = layoutOf(plot, {
      xaxis: axisOf(part.x, { automargin: "bottom" }), yaxis: axisOf(part.y, { automargin: "left" }),
      barmode: part.stack ? "stack" : "group", bargap: bargap(part),
    });
    const curves = part.series.every((s) => s.low || (!s.text && s.mode === "line"));
    if (curves && part.series.length > 1 && !part.shade) {
      layout.hovermode = "x unified";
      layout.xaxis.unifiedhovertitle = { text: `${plain(part.x.title)} %{x}` };
    }
    if (part.bare) for (const axis of [layout.xaxis, layout.yaxis]) axis.showticklabels = false;
    if (part.series.some((s) => s.mode === "bars")) layout.xaxis.showgrid = false;
    const kinds = part.series.length ? part.series[0].x.filter((x) => typeof x === "string") : [];
    if (kinds.length) Object.assign(layout.xaxis, { tickvals: kinds, ticktext: kinds.map((x) => plain(short(x, 18))) });
    const along = part.series.flatMap((s) => s.x);
    if (part.x.whole && most(along) - least(along) <= 12) layout.xaxis.dtick = 1; // no half rounds
    const all = part.series.flatMap((s) => [...s.x, ...s.y]).filter((v) => typeof v === "number");
    if (part.diagonal && all.length) {
      const [low, high] = [least(all), most(all)], line = { color: css("--grey"), width: 1, dash: "dash" };
      layout.shapes.push({ type: "line", x0: low, y0: low, x1: high, y1: high, line, layer: "below" });
    }
    if (part.shade) {
      const { from, to, words } = part.shade, place = { xref: "x", yref: "paper" };
      const look = { fillcolor: faint(css("--grey"), .14), line: { width: 0 }, layer: "below" };
      layout.shapes.push({ type: "rect", ...place, x0: from, x1: to, y0: 0, y1: 1, ...look });
      const text = { text: words, showarrow: false, font: { size: 11.5, color: css("--muted") } };
      layout.annotations.push({ x: from, y: 1, ...place, xanchor: "left", yanchor: "top", ...text });
    }
    return Plotly.react(plot, traces(part), layout, CONFIG);
  }

  const SHARES = { // none is the page itself; and towards either side of zero
    light: ["#e6f0f8", "#8fc1e3", "#0072b2", "#00263d"], dark: ["#1d2b36", "#2f6f9f", "#4ba6e3", "#d3ebfa"],
  };
  const SIDES = {
    light: ["#2166ac", "#92c5de", "#f7f7f7", "#f4a582", "#b2182b"],
    dark: ["#4ba6e3", "#28506b", "#1c2024", "#70431f", "#f0813a"],
  };

  function drawHeat(plot, part) {
    const rows = part.z.length, columns = rows ? part.z[0].length : 0, blocks = part.blocks || [];
    const square = Boolean(part.split), format = part.share ? ".0%" : ".2f";
    const z = part.share ? part.z.map((row) => row.map((v) => v || null)) : part.z;
    const text = z.map((row, i) => row.map((v, j) => `${plain(part.rows[i])}<br>${plain(part.columns[j])}`));
    const high = part.split || most(z.flat().map((v) => v || 1e-9));
    const scale = (square ? SIDES : SHARES)[dark() ? "dark" : "light"];
    const trace = {
      type: "heatmap", z, text, zmin: square ? -high : 0, zmax: high, hoverongaps: false,
      xgap: columns <= 60 ? 1 : 0, ygap: rows <= 60 ? 1 : 0,
      colorscale: scale.map((c, k) => [k / (scale.length - 1), c]),
      hovertemplate: `%{text}<br>${part.title}: %{z:${format}}<extra></extra>`,
      colorbar: {
        thickness: 10, outlinewidth: 0, len: .7, x: 1.01, xpad: 4,
        tickformat: format, nticks: 6, tickfont: { size: 11 },
        title: { text: part.title, side: "top", font: { size: 12, color: css("--muted") } },
      },
    };
    const named = (vals, names) => ({ tickvals: vals, ticktext: names.map((name) => plain(short(name, 14))) });
    const ticks = (names, room) => (blocks.length ? named(blocks.map(([a, b]) => (a + b) / 2), blocks.map((b) => b[2]))
      : names.length <= room ? named([...names.keys()], names) : { showticklabels: false });
    const axis = { showgrid: false, zeroline: false, fixedrange: true, tickfont: { size: 11.5 }, ticks: "" };
    const line = { color: css("--ink"), width: 1.2 };
    const cut = (k) => [
      { type: "line", x0: k, x1: k, y0: -.5, y1: rows - .5, line },
      { type: "line", y0: k, y1: k, x0: -.5, x1: columns - .5, line },
    ];
    const layout = layoutOf(plot, {
      margin: { l: 20, r: 10, t: 8, b: 24 }, dragmode: false, shapes: blocks.slice(1).flatMap(([a]) => cut(a - .5)),
      xaxis: { ...axis, automargin: "bottom", ...ticks(part.columns, square ? 24 : narrow() ? 16 : 40) },
      yaxis: { ...axis, automargin: "left", autorange: "reversed", ...ticks(part.rows, narrow() ? 24 : 40) },
    });
    if (blocks.length) layout.xaxis.tickangle = 0;
    if (square) {
      Object.assign(layout.xaxis, { scaleanchor: "y", constrain: "domain" });
      layout.yaxis.constrain = "domain";
    }
    return Plotly.react(plot, [trace], layout, CONFIG);
  }

  const DRAW = { chart: drawChart, heat: drawHeat };

  function swatch(s) {
    const stroke = paint(s.n), dash = [null, "5 3", "2 2", "6 2 2 2"][round(s.n)];
    const line = { x1: 1, y1: 6, x2: 23, y2: 6, stroke, "stroke-width": 3, "stroke-dasharray": s.level ? "2 2" : dash };
    const mark = s.mode === "line" ? svg("line", line)
      : s.mode === "points" ? svg("circle", { cx: 12, cy: 6, r: 5, fill: stroke })
      : svg("rect", { x: 4, y: 1, width: 16, height: 10, rx: 1.5, fill: stroke });
    return svg("svg", { viewBox: "0 0 24 12", "aria-hidden": "true" }, mark);
  }

  function legend(part, plot) {
    const toggle = (k) => (event) => {
      const button = event.currentTarget, on = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", on);
      const which = plot.data.map((trace, i) => (trace.meta === k ? i : -1)).filter((i) => i >= 0);
      Plotly.restyle(plot, { visible: on }, which);
    };
    const entry = (s, k) => el("button", { type: "button", "aria-pressed": "true", onclick: toggle(k) },
      swatch(s), s.level ? `${s.name} (does not move along this axis)` : s.name);
    return el("div", { class: "legend" }, part.series.map(entry));
  }

  // A chart or a heat map in its box; the element of the one before is kept, so that a slider moves what is there.
  function plotted(part, box) {
    const shape = part.split || part.equal ? "plot square" : part.kind === "heat" ? "plot high" : "plot";
    const old = box.querySelector(":scope > .plot");
    const kept = old && old.dataset.shape === `${part.kind} ${shape}`;
    const waits = () => el("p", { class: "wait" }, "drawing …");
    const plot = kept ? old : el("div", { class: shape, "data-shape": `${part.kind} ${shape}` }, waits());
    if (old && !kept) charts.delete(old);
    for (const other of [...box.children]) if (other !== plot) other.remove();
    if (!kept) box.append(plot);
    if (part.kind === "chart" && part.series.length > (part.legend ? 0 : 1)) box.prepend(legend(part, plot));
    const names = (part.series || []).map((s) => s.name).join(", ");
    const what = part.kind === "heat" ? part.title : [part.y.title, part.x.title, names].filter(Boolean).join(", ");
    made(plot, { role: "img", "aria-label": what });
    charts.set(plot, part);
    ready.then(() => {
      if (charts.get(plot) !== part) return; // another was chosen since
      if (!plot.data) plot.replaceChildren();
      DRAW[part.kind](plot, part);
    });
  }

  // -- drawings of our own -------------------------------------------------------------------------------------

  function picture(part, box, chosen) {
    const side = 640, edge = 22, wide = side - 2 * edge;
    const [X, Y] = [(x) => edge + x * wide, (y) => edge + (1 - y) * wide];
    const { clients, centers } = part, n = clients.x.length, r = Math.max(2.2, Math.min(7.5, 90 / Math.sqrt(n)));
    const by = part.colours.find((c) => c.name === chosen["colour by"]) || part.colours[0];
    const share = (value) => (value - by.between[0]) / (by.between[1] - by.between[0] || 1);
    const scored = (value) => (value === null ? "var(--grey)" : between(CIVIDIS, share(value)));
    const fill = (k) => (by.values ? scored(by.values[k]) : paint(by.kinds[k]));

    const links = part.links.map(([a, b, used, match]) => {
      const from = part.peers ? clients : centers;
      const look = part.matchings
        ? { stroke: paint(match), "stroke-opacity": .35 + .6 * used, "stroke-width": .6 + 5 * used }
        : { stroke: "var(--grey)", "stroke-opacity": n > 200 ? .22 : .5, "stroke-width": 1.1 };
      const ends = { x1: X(from.x[a]), y1: Y(from.y[a]), x2: X(clients.x[b]), y2: Y(clients.y[b]) };
      return svg("line", { ...ends, ...look, "stroke-linecap": "round", "stroke-dasharray": used > 0 ? null : "2 4" });
    });
    const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;
    const [cx, cy] = [X(mean(centers.x)), Y(mean(centers.y))];
    const wire = { x1: cx, y1: cy, stroke: "var(--ink)", "stroke-width": 1.2, "stroke-dasharray": "5 4" };
    const wires = centers.cloud && centers.x.map((x, k) => svg("line", { ...wire, x2: X(x), y2: Y(centers.y[k]) }));
    const cloud = centers.cloud && [
      svg("rect", { x: cx - 26, y: cy - 12, width: 52, height: 24, rx: 12, fill: "var(--bg)", stroke: "var(--ink)" }),
      svg("text", { x: cx, y: cy + 4.5, "text-anchor": "middle" }, "cloud"),
    ];
    const cells = centers.x.map((x, k) => centers.r[k] > 0 && svg("circle", {
      cx: X(x), cy: Y(centers.y[k]), r: centers.r[k] * wide, fill: paint(centers.n[k]), "fill-opacity": .09,
      stroke: paint(centers.n[k]), "stroke-width": 1.2,
    }));
    const dots = clients.x.map((x, k) => svg("circle", {
      cx: X(x), cy: Y(clients.y[k]), r, "data-k": k,
      fill: fill(k), stroke: "var(--bg)", "stroke-width": n > 400 ? .4 : 1,
    }));
    const hubs = centers.x.map((x, k) => {
      const s = centers.x.length > 40 ? 5 : 9, d = `M${X(x)} ${Y(centers.y[k]) - s}l${s} ${s}l${-s} ${s}l${-s} ${-s}z`;
      const look = { d, fill: "var(--ink)", stroke: "var(--bg)", "stroke-width": 1.5 };
      return svg("path", look, svg("title", {}, `center ${centers.n[k]}`));
    });

    const caption = el("p", { "aria-live": "polite" }, part.words);
    const tell = (event) => {
      const k = event.target.dataset && event.target.dataset.k;
      if (k === undefined) { caption.textContent = part.words; return; }
      const kind = by.values ? `${by.name} ${shown(by.values[k], by.axis)}` : by.labels[by.kinds[k]] || "";
      const word = by.values || kind.startsWith(by.name) ? "" : `${by.name} `;
      caption.textContent = `client ${clients.names[k]}${kind ? `: ${word}${kind}` : ""}`;
    };
    const ramp = el("i", { class: "scale", style: { background: `linear-gradient(90deg, ${CIVIDIS.join(",")})` } });
    const keys = by.values
      ? el("span", {}, `${by.name} ${shown(by.between[0], by.axis)}`, ramp, shown(by.between[1], by.axis))
      : Object.entries(by.labels).map(([k, name]) => el("span", {}, swatch({ n: +k, mode: "points" }), name));
    const shares = new Map(part.links.map(([, , used, match]) => [match, used]));
    const matchings = [...shares].sort((a, b) => a[0] - b[0]).slice(0, 8);
    const often = part.matchings && el("div", { class: "legend" }, "matchings, and their share of the rounds:",
      matchings.map(([m, used]) => el("span", {}, swatch({ n: m, mode: "line" }), shown(used, { share: true }))));
    const look = { viewBox: `0 0 ${side} ${side}`, role: "img", "aria-label": part.words };
    filled(box, el("div", { class: "legend" }, keys), often,
      svg("svg", { ...look, onpointerover: tell, onpointerdown: tell }, cells, wires, links, dots, cloud, hubs),
      caption);
  }

  function flow(part, box) {
    const W = 900, H = 360, top = 28, wide = 16, gap = 10, { nodes, columns } = part, last = columns.length - 1;
    const of = (j) => nodes.filter((node) => node[0] === j);
    const total = of(0).reduce((sum, node) => sum + node[2], 0);
    const unit = (H - top - 8 - gap * (most(columns.map((_, j) => of(j).length)) - 1)) / Math.max(total, 1);
    const x = (j) => 4 + j * (W - 8 - wide) / Math.max(last, 1);
    const y = [], out = nodes.map(() => 0), into = nodes.map(() => 0);
    columns.forEach((_, j) => {
      let at = top;
      nodes.forEach((node, i) => { if (node[0] === j) { y[i] = at; at += node[2] * unit + gap; } });
    });
    const bands = part.links.map(([a, b, n]) => {
      const [y0, y1, h] = [y[a] + out[a], y[b] + into[b], n * unit], [x0, x1] = [x(nodes[a][0]) + wide, x(nodes[b][0])];
      out[a] += h;
      into[b] += h;
      const m = (x0 + x1) / 2, stays = nodes[a][1] === nodes[b][1];
      const d = `M${x0} ${y0}C${m} ${y0} ${m} ${y1} ${x1} ${y1}v${h}C${m} ${y1 + h} ${m} ${y0 + h} ${x0} ${y0 + h}z`;
      return svg("path", { d, fill: stays ? "var(--grey)" : paint(nodes[a][1]), "fill-opacity": stays ? .18 : .6 },
        svg("title", {}, `${n} clients from cluster ${nodes[a][1]} to ${nodes[b][1]}`));
    });
    const bars = nodes.map(([j, k, n], i) => {
      const place = j === last ? { x: x(j) - 6, "text-anchor": "end" } : { x: x(j) + wide + 6, "text-anchor": "start" };
      return [
        svg("rect", { x: x(j), y: y[i], width: wide, height: Math.max(n * unit, 1), fill: paint(k) },
          svg("title", {}, `cluster ${k}: ${n} clients`)),
        n * unit > 13 && svg("text", { ...place, y: y[i] + n * unit / 2 + 4.5 }, `${k}: ${n}`),
      ];
    });
    const heads = columns.map((name, j) => {
      const [at, anchor] = j === 0 ? [x(0), "start"] : j === last ? [x(j) + wide, "end"] : [x(j) + wide / 2, "middle"];
      return svg("text", { class: "muted", x: at, y: 14, "text-anchor": anchor }, name);
    });
    const look = { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": "clients between clusters" };
    filled(box, el("h3", {}, "who went where (cluster: clients)"),
      el("div", scrolls("who went where"), svg("svg", look, bands, bars, heads)));
  }

  function image(part, box) {
    const lines = part.rows.length, tall = narrow() ? 24 : Math.max(30, Math.min(46, part.high));
    const first = (k) => k === 0 || part.rows[k - 1].n !== part.rows[k].n;
    const name = (row, k) => el("div", {},
      el("b", { style: { borderColor: paint(row.n) } }, first(k) ? row.name : ""), el("small", {}, row.client));
    const across = { gridTemplateColumns: `repeat(${part.columns.length}, minmax(0, 1fr))` };
    filled(box, el("div", { class: "sheet" },
      el("div", { class: "across", style: across }, part.columns.map((column) => el("span", {}, short(column, 6)))),
      el("div", { class: "down", style: { gridTemplateRows: `repeat(${lines}, ${tall}px)` } }, part.rows.map(name)),
      el("img", { src: part.src, alt: part.alt, style: { height: `${lines * tall}px` } })));
  }

  function photo(part, box) {
    filled(box, el("figure", { class: "photo" }, el("img", { src: part.src, alt: part.alt }),
      el("figcaption", {}, part.alt)));
  }

  function table(part, box) {
    const best = new Set(part.best.map(([i, j]) => `${i}.${j}`)), side = (j) => (j < part.left ? "" : "right");
    const head = (text, j) => el("th", { class: side(j), scope: "col" }, text);
    const cell = (i) => (text, j) => el("td", { class: best.has(`${i}.${j}`) ? `${side(j)} best` : side(j) }, text);
    filled(box, part.title && el("h3", {}, part.title),
      el("div", scrolls(part.title || part.heads[0]), el("table", {},
        el("thead", {}, el("tr", {}, part.heads.map(head))),
        el("tbody", {}, part.lines.map((line, i) => el("tr", {}, line.map(cell(i))))))),
      part.caption && el("p", { class: "caption" }, part.caption), copies(part.copies));
  }

  function facts(part, box) {
    filled(box, el("dl", {}, part.pairs.map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])));
  }

  function code(part, box) {
    filled(box, part.title && el("h3", {}, part.title), el("pre", { tabindex: 0 }, part.text),
      copies({ text: part.text }));
  }

  function words(part, box) {
    filled(box, el("ul", { class: "told" }, part.lines.map((line) => el("li", {}, line))));
  }

  const KINDS = { chart: plotted, heat: plotted, picture, flow, image, photo, table, facts, code, words };

  // -- panels --------------------------------------------------------------------------------------------------

  const remembered = new Map(); // panel -> what was chosen there, where the page is drawn again

  // A panel has one control for every option of its switches, by name: what is chosen is a value, wherever it stands.
  function optionsOf(panel) {
    const options = new Map(), chosen = {}, before = remembered.get(panel.key) || {};
    remembered.set(panel.key, chosen);
    for (const part of panel.parts.filter((p) => p.kind === "switch")) {
      for (const option of part.options) {
        const known = options.get(option.name) || { ...option, values: [] };
        known.values = [...new Set([...known.values, ...option.values])];
        options.set(option.name, known);
        const best = option.name === "run" && known.values.find((value) => value === data.answer.bars[0].label);
        const first = option.slider ? known.values.length - 1 : (part.start || {})[option.name] || 0;
        chosen[option.name] = best || known.values[first];
        if (!option.slider && known.values.includes(before[option.name])) chosen[option.name] = before[option.name];
      }
    }
    const drawn = panel.parts.flatMap((p) => (p.kind === "switch" ? Object.values(p.parts) : [p]));
    drawn.sort((a, b) => (b.colours || []).length - (a.colours || []).length);
    const names = [...new Set(drawn.flatMap((p) => (p.colours || []).map((c) => c.name)))].filter(Boolean);
    if (names.length > 1) {
      options.set("colour by", { name: "colour by", values: names });
      chosen["colour by"] = [before["colour by"], "cluster"].find((name) => names.includes(name)) || names[0];
    }
    return [options, chosen];
  }

  // The part that is chosen of a switch, or nothing; of a slider that goes on, the last there is.
  function resolved(part, chosen) {
    if (part.kind !== "switch") return part;
    const keys = part.options.map((option) => option.values.indexOf(chosen[option.name]));
    const end = keys.length - 1;
    while (part.options[end].slider && keys[end] > 0 && !part.parts[keys.join(".")]) keys[end] -= 1;
    const found = part.parts[keys.join(".")];
    if (!found || !found.trails) return found ? { ...part.shared, ...found } : null;
    const earlier = [...Array(keys[end]).keys()].map((k) => part.parts[[...keys.slice(0, end), k].join(".")]);
    return { ...part.shared, ...found, past: earlier.filter(Boolean).map(standings) };
  }

  function drawPanel(panel) {
    const [options, chosen] = optionsOf(panel), boxes = panel.parts.map(() => el("div")), says = el("output", {});
    const draw = () => panel.parts.forEach((whole, k) => {
      const part = resolved(whole, chosen), box = boxes[k];
      box.hidden = !part;
      if (!part) return;
      box.className = part.half ? `${part.kind} half` : part.kind;
      if (part.at) says.textContent = part.at;
      if (part.folded && !box.firstChild) box.append(el("details", {}, el("summary", {}, part.title), el("div")));
      const inner = part.folded ? box.querySelector("details > div") : box;
      KINDS[part.kind](part.folded ? { ...part, title: "" } : part, inner, chosen);
    });
    const choose = (name, value) => { chosen[name] = value; draw(); };
    const section = el("section", { id: panel.key }, el("h2", {}, panel.title), el("p", { class: "how" }, panel.words));
    const controls = [...options.values()].map((option) => control(option, chosen, choose, says)).filter(Boolean);
    if (controls.length) section.append(el("div", { class: "controls" }, controls));
    section.append(el("div", { class: "parts" }, boxes));
    document.querySelector("main").append(section);
    draw();
  }

  function control({ name, values, slider }, chosen, choose, says) {
    const several = data.answer.bars.length > 1;
    if (values.length < 2) return name === "run" && several ? el("span", {}, "run", el("b", {}, values[0])) : null;
    if (slider) {
      const oninput = (event) => choose(name, values[+event.target.value]);
      const last = values.length - 1;
      const how = { type: "range", min: 0, max: last, value: last, step: 1, "aria-label": name };
      return el("label", {}, name, el("input", { ...how, oninput }), says);
    }
    if (values.length > 5 || values.join("").length > (narrow() ? 24 : 46)) {
      const entries = values.map((value) => el("option", { value, selected: value === chosen[name] }, value));
      return el("label", {}, name, el("select", { onchange: (event) => choose(name, event.target.value) }, entries));
    }
    const pressed = (value) => String(value === chosen[name]);
    const buttons = values.map((value) => el("button", {
      type: "button", "aria-pressed": pressed(value), onclick: () => {
        choose(name, value);
        buttons.forEach((button, k) => button.setAttribute("aria-pressed", pressed(values[k])));
      },
    }, value));
    return el("span", {}, name, el("span", { class: "choose", role: "group", "aria-label": name }, buttons));
  }

  // -- the page ------------------------------------------------------------------------------------------------

  const standing = () => [...charts].filter(([plot]) => plot.isConnected && plot.data);
  const redraw = () => standing().forEach(([plot, part]) => DRAW[part.kind](plot, part));

  // Two panels on a page.
  const PAPER = { "chart plot square": [410, 330], "heat plot square": [410, 330], "heat plot high": [660, 330] };

  function printing(on) {
    root.classList.toggle("printing", on);
    for (const plot of charts.keys()) { // in pixels: the type is smaller on paper, and with it every other measure
      const [wide, high] = plot.closest(".half") ? [320, 230] : PAPER[plot.dataset.shape] || [660, 250];
      Object.assign(plot.style, on ? { width: `${wide}px`, height: `${high}px` } : { width: "", height: "" });
    }
    redraw();
    if (!on) standing().forEach(([plot]) => Plotly.Plots.resize(plot));
  }

  function drawAll() {
    const at = window.scrollY, link = (panel) => el("a", { href: `#${panel.key}` }, panel.key.replace("-", " "));
    charts.clear();
    for (const part of ["header", "nav", "main"]) document.querySelector(part).replaceChildren();
    drawAnswer(data.answer);
    data.panels.forEach(drawPanel);
    document.querySelector("nav").append(el("div", {}, data.panels.map(link)));
    window.scrollTo(0, at);
  }

  // A live page: the server tells that a run has gone on, and the data are asked for again, at most once a second.
  function listen() {
    let waiting = false, again = false;
    const refresh = async () => {
      if (waiting) { again = true; return; }
      [waiting, again] = [true, false];
      try {
        const found = await fetch(root.dataset.from, { cache: "no-store" });
        if (found.ok) {
          data = await found.json();
          drawAll();
          root.dataset.drawn = String(+(root.dataset.drawn || 0) + 1);
        }
      } catch { // the server is away; the stream tries again, and says when there is more
      } finally {
        setTimeout(() => { waiting = false; if (again) refresh(); }, 700);
      }
    };
    const stream = new EventSource(root.dataset.events); // it reconnects by itself, and says where it was
    for (const name of ["line", "reset", "status"]) stream.addEventListener(name, refresh);
    stream.addEventListener("open", () => { state.textContent = " · live"; refresh(); });
    stream.addEventListener("error", () => { state.textContent = " · the server does not answer; trying again …"; });
  }

  ready = unpacked().catch(() => {
    const said = "This browser cannot unpack the charts; tables and drawings are all there.";
    document.querySelectorAll(".wait").forEach((p) => { p.textContent = said; });
    return new Promise(() => {}); // nothing waits for it any longer
  });
  drawAll();
  const live = "From `polycentric watch` on this machine; drawn anew when the run has a new line.";
  const file = "Made by `polycentric report`. This file holds everything it shows; it loads nothing and sends nothing.";
  document.querySelector("footer").append(el("p", {}, root.dataset.events ? live : file));
  if (root.dataset.events) listen();
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  window.addEventListener("beforeprint", () => printing(true));
  window.addEventListener("afterprint", () => printing(false));
  ready.then(() => { root.dataset.ready = "true"; });
})();
