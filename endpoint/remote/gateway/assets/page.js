"use strict";
// The page of the gateway draws a stream of samples into tables. Rows keep their elements, which preserves focus, selection and the
// position of a screen reader. All text of the owner is set through textContent.

const $ = (id) => document.getElementById(id);
let paused = false, before = null, rates = new Map(), history = [];

function element(name, attributes = {}, ...children) {
  const e = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) e.setAttribute(key, value);
  e.append(...children);
  return e;
}
function setText(e, text) { if (e.textContent !== text) e.textContent = text; }

function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let i = 0;
  while (n >= 1024 && i < units.length - 1) { n /= 1024; i++; }
  return (i && n < 100 ? n.toFixed(1) : Math.round(n)) + " " + units[i];
}
function seconds(s) {
  if (!s) return "–";
  if (s < 1e-3) return Math.round(s * 1e6) + " µs";
  if (s < 1) return (s * 1e3).toPrecision(3) + " ms";
  return s.toPrecision(3) + " s";
}
function age(from, now) {
  const s = Math.max(0, (new Date(now) - new Date(from)) / 1000);
  if (s < 60) return Math.floor(s) + " s";
  if (s < 3600) return Math.floor(s / 60) + " min";
  if (s < 86400) return Math.floor(s / 3600) + " h";
  return Math.floor(s / 86400) + " d";
}
const perSecond = (n) => n === 0 ? "0" : n < 10 ? n.toFixed(1) : String(Math.round(n));
const count = (n) => n.toLocaleString("en");

// table draws rows into a table. columns are {title, number, wide, draw(row) → text or element}. key identifies a row across samples.
function table(id, columns, rows, key, none) {
  const t = $(id);
  if (!t.tHead) {
    const head = t.createTHead().insertRow();
    for (const c of columns) head.append(element("th", { scope: "col", role: "columnheader", class: c.number ? "number" : "" }, c.title));
    t.createTBody();
    // The narrow layout draws tables as lists, which removes their implicit roles.
    t.setAttribute("role", "table");
    for (const part of [t.tHead, t.tBodies[0]]) part.setAttribute("role", "rowgroup");
    head.setAttribute("role", "row");
  }
  const body = t.tBodies[0], old = new Map([...body.rows].map((r) => [r.dataset.key, r]));
  if (rows.length === 0) {
    if (!body.querySelector(".empty")) body.replaceChildren(element("tr", { role: "row" }, element("td", { class: "empty", role: "cell", colspan: columns.length }, none)));
    return;
  }
  let at = 0;
  for (const row of rows) {
    const k = key(row);
    let tr = old.get(k);
    if (!tr) {
      tr = element("tr", { "data-key": k, role: "row" });
      columns.forEach((c, i) => tr.append(i === 0 ? element("th", { scope: "row", role: "rowheader", "data-title": c.title })
        : element("td", { class: c.number ? "number" : c.wide ? "wide" : "", role: "cell", "data-title": c.title })));
    }
    old.delete(k);
    columns.forEach((c, i) => {
      const drawn = c.draw(row), cell = tr.cells[i];
      if (drawn instanceof Node) { if (cell.firstChild?.outerHTML !== drawn.outerHTML) cell.replaceChildren(drawn); } else setText(cell, drawn);
      if (c.state) cell.className = "state-" + c.state(row);
    });
    if (body.rows[at] !== tr) body.insertBefore(tr, body.rows[at] ?? null);
    at++;
  }
  while (body.rows.length > at) body.rows[at].remove();
}

function filtered(id, rows, text) {
  const wanted = $(id).value.trim().toLowerCase();
  return wanted === "" ? rows : rows.filter((r) => text(r).toLowerCase().includes(wanted));
}

function facts(list, pairs) {
  for (const [name, value] of pairs) {
    let dd = list.querySelector(`dd[data-name="${name}"]`);
    if (!dd) {
      dd = element("dd", { "data-name": name });
      list.append(element("div", {}, element("dt", {}, name), dd));
    }
    setText(dd, value);
  }
}

function drawState(s) {
  const reasons = Object.values(s.gateway.not_ready ?? {});
  const state = $("state");
  setText(state, s.gateway.draining ? "stopping" : reasons.length ? "not ready: " + reasons.join("; ") : "ready");
  state.className = "badge " + (reasons.length || s.gateway.draining ? "bad" : "good");
  const warning = $("warning");
  warning.hidden = !s.gateway.open;
  if (s.gateway.insecure && s.gateway.open) setText(warning, "insecure: every client that can connect may use this gateway");
  else if (s.gateway.open) setText(warning, "no identity required: serves " + s.gateway.access);
  setText($("version"), "gateway " + s.gateway.version + (s.gateway.read_only ? " · read-only" : ""));
}

function drawOverview(s) {
  const o = s.owner, stats = o.stats ?? {};
  facts($("overview"), [
    ["owner", o.attached ? (o.label || "attached") + (o.pid ? ` (pid ${o.pid})` : "") : "none"],
    ["socket", o.socket ?? "–"],
    ["owner uptime", o.attached ? age(o.started_at, s.time) : "–"],
    ["gateway uptime", age(s.gateway.started, s.time)],
    ["memory owned", bytes(stats.bytes_owned ?? 0)],
    ["mapped by clients", bytes(stats.bytes_mapped ?? 0)],
    ["clients of the owner", count(stats.clients ?? 0)],
    ["leases", count(stats.leases ?? 0)],
    ...Object.entries(s.gateway.addresses).map(([name, a]) => [name, a]),
    ["serves", s.gateway.access],
    ["connections", Object.entries(s.gateway.connections).map(([n, c]) => `${n} ${c}`).join(", ") || "–"],
  ]);
}

function drawRefusals(s) {
  facts($("refusals"), [
    ...Object.entries(s.gateway.limits).map(([name, n]) => ["over the limit of " + name, count(n)]),
    ...Object.entries(s.gateway.refusals).map(([right, n]) => ["without the right " + right, count(n)]),
  ]);
}

function drawRate(s) {
  let total = 0;
  const now = new Date(s.time), seen = new Map();
  for (const c of s.calls) {
    const key = c.protocol + " " + c.method, old = before?.calls.get(key);
    const dt = before ? (now - before.time) / 1000 : 0;
    const rate = dt > 0 ? Math.max(0, (c.calls - (old ?? 0)) / dt) : 0;
    rates.set(key, rate);
    seen.set(key, c.calls);
    // A JSON-RPC call is also counted as an HTTP request.
    if (c.protocol !== "jsonrpc") total += rate;
  }
  for (const c of s.clients) {
    const key = "client " + c.method + " " + c.name, dt = before ? (now - before.time) / 1000 : 0;
    rates.set(key, dt > 0 ? Math.max(0, (c.calls - (before.calls.get(key) ?? 0)) / dt) : 0);
    seen.set(key, c.calls);
  }
  before = { time: now, calls: seen };
  history.push(total);
  history = history.slice(-60);
  const top = Math.max(1, ...history), step = 600 / 59, from = 60 - history.length;
  const d = history.map((v, i) => `${i ? "L" : "M"}${((from + i) * step).toFixed(1)},${(78 - 74 * v / top).toFixed(1)}`).join("");
  const svg = $("rate");
  let path = svg.querySelector("path");
  if (!path) svg.append(path = document.createElementNS("http://www.w3.org/2000/svg", "path"));
  path.setAttribute("d", d);
  svg.setAttribute("aria-label", `calls per second over the last minute: now ${perSecond(total)}, peak ${perSecond(Math.max(...history))}`);
  setText($("rate-now"), `${perSecond(total)} (peak ${perSecond(Math.max(...history))})`);
}

function drawMemory(s) {
  const box = $("memory"), wanted = new Set();
  for (const d of s.owner.devices) {
    wanted.add(d.uuid);
    let card = box.querySelector(`[data-device="${CSS.escape(d.uuid)}"]`);
    if (!card) {
      card = element("div", { class: "device", "data-device": d.uuid }, element("h3"), element("div", { class: "bar", role: "img" }), element("ul", { class: "legend" }));
      box.append(card);
    }
    const uses = s.owner.memory.filter((m) => m.device === d.uuid), total = uses.reduce((n, m) => n + m.bytes, 0);
    setText(card.querySelector("h3"), `${d.type}:${d.index} ${d.name ?? ""} — ${bytes(total)}`);
    const said = uses.map((m) => `${m.use} ${bytes(m.bytes)} in ${m.storages} ${m.storages === 1 ? "piece" : "pieces"}`);
    const bar = card.querySelector(".bar"), legend = card.querySelector(".legend");
    bar.setAttribute("aria-label", said.join(", ") || "no memory in use");
    if (legend.dataset.said !== said.join()) {
      legend.dataset.said = said.join();
      bar.replaceChildren(...uses.map((m) => { const e = element("div", { class: "use-" + m.use }); e.style.flexGrow = m.bytes; return e; }));
      legend.replaceChildren(...uses.map((m, i) => element("li", { class: "use-" + m.use }, said[i])));
      if (!uses.length) legend.replaceChildren(element("li", {}, "no memory in use"));
    }
  }
  for (const card of [...box.children]) if (!wanted.has(card.dataset.device)) card.remove();
}

function progress(t) {
  if (!t.total) return t.message ?? "";
  const bar = element("progress", { max: t.total, value: t.done ?? 0, "aria-label": `${t.endpoint}: ${t.done ?? 0} of ${t.total}` });
  return element("span", {}, bar, ` ${Math.floor(100 * (t.done ?? 0) / t.total)} % ${t.message ?? ""}`);
}

// placementWords describes the copy of a version on another device.
function placementWords(p) {
  const device = p.device.type === "cpu" ? "host" : `${p.device.type}:${p.device.index}`;
  const state = p.making ? "copying" : p.holders ? `${count(p.holders)} holders` : "unused";
  return `${device}: ${bytes(p.bytes)}, ${state}, ${count(p.hits)} hits`;
}

function drawTables(s) {
  const rate = (c) => rates.get(c.protocol + " " + c.method) ?? 0;
  table("models", [
    { title: "Name", draw: (m) => m.name },
    { title: "Version", number: true, draw: (m) => m.version + (m.newest ? " (newest)" : "") },
    { title: "Size", number: true, draw: (m) => bytes(m.bytes) },
    { title: "Tensors", number: true, draw: (m) => count(m.tensors) },
    { title: "Age", number: true, draw: (m) => age(m.published_at, s.time) },
    { title: "Holders", wide: true, draw: (m) => m.holders.length ? m.holders.join(", ") : "none" },
    { title: "Copies", wide: true, draw: (m) => (m.placements || []).map(placementWords).join(", ") || "none" },
    { title: "Source", wide: true, draw: (m) => m.source ?? "" },
  ], filtered("filter-models", s.models, (m) => m.name), (m) => m.name + "@" + m.version, "no models published");
  table("calls", [
    { title: "Method", draw: (c) => c.method },
    { title: "Protocol", draw: (c) => c.protocol },
    { title: "Calls/s", number: true, draw: (c) => perSecond(rate(c)) },
    { title: "p50", number: true, draw: (c) => seconds(c.p50) },
    { title: "p99", number: true, draw: (c) => seconds(c.p99) },
    { title: "Calls", number: true, draw: (c) => count(c.calls) },
    { title: "Failures", number: true, draw: (c) => count(c.failures) },
  ], filtered("filter-calls", s.calls, (c) => c.protocol + " " + c.method), (c) => c.protocol + " " + c.method, "no calls yet");
  table("clients", [
    { title: "Client", draw: (c) => c.name || "without a name" },
    { title: "Identity", draw: (c) => c.method },
    { title: "Calls/s", number: true, draw: (c) => perSecond(rates.get("client " + c.method + " " + c.name) ?? 0) },
    { title: "p50", number: true, draw: (c) => seconds(c.p50) },
    { title: "p99", number: true, draw: (c) => seconds(c.p99) },
    { title: "Calls", number: true, draw: (c) => count(c.calls) },
    { title: "Failures", number: true, draw: (c) => count(c.failures) },
    { title: "Uses", wide: true, draw: (c) => c.uses.join(", ") },
  ], s.clients, (c) => c.method + " " + c.name, "no clients yet");
  table("endpoints", [
    { title: "Function", draw: (e) => e.name },
    { title: "Calls", number: true, draw: (e) => count(e.calls) },
    { title: "Cache hits", number: true, draw: (e) => count(e.cache_hits) },
    { title: "Failures", number: true, draw: (e) => count(e.failures) },
    { title: "p50", number: true, draw: (e) => seconds(e.p50 / 1e9) },
    { title: "p99", number: true, draw: (e) => seconds(e.p99 / 1e9) },
  ], s.owner.endpoints, (e) => e.name, "the owner has no functions");
  table("tasks", [
    { title: "Function", draw: (t) => t.endpoint },
    { title: "State", state: (t) => t.status, draw: (t) => t.status },
    { title: "Progress", wide: true, draw: (t) => t.status === "failed" || t.status === "cancelled" ? t.error_message ?? "" : progress(t) },
    { title: "Age", number: true, draw: (t) => age(t.created_at, s.time) },
    { title: "Id", draw: (t) => t.task_id },
  ], filtered("filter-tasks", [...s.tasks].reverse(), (t) => t.endpoint + " " + t.status + " " + t.task_id), (t) => t.task_id, "no tasks");
}

// mirrorColumns are the columns of the mirrors component.
const mirrorColumns = [
  { title: "Name", draw: (m) => m.name },
  { title: "State", wide: true, draw: (m) => m.problem ? `${m.state}: ${m.problem}` : m.state },
  { title: "Progress", draw: (m) => progress({ endpoint: m.name, done: m.done, total: m.total }) },
  { title: "Rate", number: true, draw: (m) => m.bytes_per_second ? bytes(m.bytes_per_second) + "/s" : "–" },
  { title: "From", draw: (m) => m.from || "–" },
  { title: "Version", number: true, draw: (m) => m.version || "–" },
  { title: "Source version", draw: (m) => m.source_version || "–" },
  { title: "Transferred", number: true, draw: (m) => bytes(m.moved_bytes) + (m.bytes_of_peers ? `, ${bytes(m.bytes_of_peers)} from mirrors` : "") },
  { title: "Source", wide: true, draw: (m) => m.source },
];

// useColumns are the columns of the versions that other hosts lease.
const useColumns = [
  { title: "Host", draw: (u) => u.host },
  { title: "Client", draw: (u) => u.identity },
  { title: "Model", draw: (u) => u.model },
  { title: "Version", number: true, draw: (u) => count(u.version) },
  { title: "Leases", number: true, draw: (u) => count(u.leases) },
];

// Columns, keys of rows and titles of components that differ from the fields of their rows and their names.
const componentColumns = { mirrors: mirrorColumns, models: useColumns };
const componentKeys = { models: (u) => `${u.host} ${u.identity} ${u.model}@${u.version}` };
const componentTitles = { models: "Versions used by other hosts" };

// drawComponents draws the status of components: lists of objects as tables, other values as facts.
function drawComponents(s) {
  for (const [name, value] of Object.entries(s.components)) {
    const id = "component-" + name;
    if (!$(id)) {
      const title = componentTitles[name] ?? name[0].toUpperCase() + name.slice(1);
      $("components").append(element("section", { id, "aria-labelledby": "h-" + id },
        element("h2", { id: "h-" + id }, title),
        element("dl", { class: "facts" }),
        element("div", { class: "scroll", role: "region", "aria-labelledby": "h-" + id, tabindex: "0" }, element("table", { id: id + "-table" }))));
    }
    const lists = Array.isArray(value) ? [value] : Object.values(value ?? {}).filter(Array.isArray);
    const rest = Array.isArray(value) ? [] : Object.entries(value ?? {}).filter(([, v]) => !Array.isArray(v));
    facts($(id).querySelector("dl"), rest.map(([k, v]) => [k.replaceAll("_", " "), plain(k, v)]));
    const rows = lists.flat().filter((r) => r && typeof r === "object");
    if (lists.length) {
      const keys = rows.length ? Object.keys(rows[0]) : ["name"];
      const t = $(id + "-table");
      if (t.dataset.keys !== keys.join()) { t.dataset.keys = keys.join(); t.replaceChildren(); }
      table(id + "-table", componentColumns[name] ?? keys.map((k) => ({ title: k.replaceAll("_", " "), number: rows.some((r) => typeof r[k] === "number"), draw: (r) => plain(k, r[k]) })),
        rows, componentKeys[name] ?? ((r) => String(r[keys[0]])), name === "models" ? "none" : "empty");
    }
  }
}
function plain(key, v) {
  if (v === null || v === undefined) return "";
  if (typeof v === "number") return /bytes/.test(key) ? bytes(v) : count(v);
  return typeof v === "object" ? JSON.stringify(v) : String(v);
}

let last = null;
function draw(s) {
  last = s;
  drawState(s); drawOverview(s); drawRefusals(s); drawMemory(s); drawTables(s); drawComponents(s);
}

const source = new EventSource("v1/events");
source.addEventListener("status", (event) => {
  if (paused) return;
  const s = JSON.parse(event.data);
  drawRate(s);
  draw(s);
});
source.addEventListener("error", () => {
  setText($("state"), "no connection to the gateway, retrying");
  $("state").className = "badge bad";
});

for (const id of ["filter-models", "filter-calls", "filter-tasks"]) $(id).addEventListener("input", () => last && drawTables(last));
$("pause").addEventListener("click", () => {
  paused = !paused;
  $("pause").setAttribute("aria-pressed", String(paused));
});
const dark = matchMedia("(prefers-color-scheme: dark)");
function theme(choice) {
  if (choice) { document.documentElement.dataset.theme = choice; localStorage.setItem("theme", choice); }
  const now = document.documentElement.dataset.theme ?? (dark.matches ? "dark" : "light");
  setText($("theme"), now === "dark" ? "Light" : "Dark");
  $("theme").setAttribute("aria-label", `Switch to ${now === "dark" ? "light" : "dark"} theme`);
  return now;
}
theme(localStorage.getItem("theme"));
$("theme").addEventListener("click", () => theme(theme() === "dark" ? "light" : "dark"));
dark.addEventListener("change", () => theme());
