"use strict";
(() => {
const REFRESH_MS = 2000, MANY = 100, REFRESH_MANY_MS = 5000;
const SVG = "http://www.w3.org/2000/svg";
const $ = (id) => document.getElementById(id);

// Text is only ever set as text: nothing that a table or a broker says can become markup.
function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}
function say(node, text) { if (node.textContent !== text) node.textContent = text; }
function classify(node, name) { if (node.className !== name) node.className = name; }

// Words and numbers

const STATES = {
  failed: ["failed", "bad"], backing_off: ["error, retrying", "bad"], paused: ["paused", "warn"], starting: ["starting", "idle"],
  snapshot: ["snapshot", "busy"], catching_up: ["catching up", "busy"], at_tip: ["at the tip", "good"], stopped: ["stopped", "idle"],
};
const number = (value) => value === null || value === undefined ? "?" : value.toLocaleString("en");
function duration(seconds) {
  if (seconds === null || seconds === undefined) return "?";
  if (seconds < 0) return `-${duration(-seconds)}`;
  if (seconds === 0) return "0 s";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  const minutes = Math.floor(seconds / 60), hours = Math.floor(minutes / 60);
  if (minutes < 60) return `${minutes} min ${Math.floor(seconds % 60)} s`;
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}
function rate(value) { return value === null || value === undefined ? "?" : value >= 100 || value === 0 ? number(Math.round(value)) : value.toPrecision(2); }
function versions(count) { return `${number(count)} ${count === 1 ? "version" : "versions"}`; }
function stateOf(table) { return STATES[table.state] || [table.state, "idle"]; }
function headroomOf(table) {
  const headroom = table.headroom;
  return headroom === null ? "?" : headroom.lost ? "changes lost" : headroom.seconds <= 0 ? "overdue" : duration(headroom.seconds);
}
const isBehind = (table) => table.lag_versions > 0;
const isAtRisk = (table) => table.headroom !== null && table.headroom.at_risk;

// How much attention a table needs: the first of the list is the subject of the headline.
function urgency(table) {
  const rank = { failed: 6, backing_off: 5, paused: 3, starting: 2 }[table.state] || (isBehind(table) ? 1 : 0);
  return (isAtRisk(table) ? 10 : 0) + rank;
}
function byAttention(a, b) {
  return urgency(b) - urgency(a) || (b.lag_seconds || 0) - (a.lag_seconds || 0) || a.name.localeCompare(b.name);
}

// Charts

function svg(tag, attributes) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}
// The lines and the areas under them; unknown values are gaps, and a value between two gaps is a dot.
function paths(values, top, width, height) {
  const step = width / (values.length - 1);
  let stroke = "", area = "", start = null;
  const close = (end) => { if (start !== null) area += `L${end},${height}L${start},${height}Z`; start = null; };
  values.forEach((value, index) => {
    if (value === null) { close(((index - 1) * step).toFixed(1)); return; }
    const x = (index * step).toFixed(1), y = (height - 1 - value / top * (height - 3)).toFixed(1);
    const command = start === null ? "M" : "L";
    if (start === null && (values[index + 1] ?? null) === null) stroke += `M${x},${y}h1`;
    if (start === null) start = x;
    stroke += `${command}${x},${y}`;
    area += `${command}${x},${y}`;
  });
  close(width);
  return [stroke, area];
}
function chart(title, name, format) {
  const figure = element("figure"), caption = element("figcaption"), now = element("b");
  caption.append(element("span", "", title), now);
  const picture = svg("svg", { viewBox: "0 0 360 80", preserveAspectRatio: "none", role: "img", "aria-label": `${title}, the last hour` });
  const area = svg("path", { class: "area" }), stroke = svg("path", { class: "stroke" });
  picture.append(svg("path", { class: "base", d: "M0,79.5H360" }), area, stroke);
  const axis = element("div", "axis"), most = element("span");
  axis.append(element("span", "", "1 h ago"), most, element("span", "", "now"));
  figure.append(caption, picture, axis);
  let last = [];
  picture.addEventListener("mousemove", (event) => {
    const box = picture.getBoundingClientRect(), at = Math.round((event.clientX - box.left) / box.width * (last.length - 1));
    const value = last[at] ?? null, ago = (last.length - 1 - at) * sampleSeconds;
    say(most, `${value === null ? "nothing" : format(value)}, ${duration(ago)} ago`);
  });
  const update = (history) => {
    last = history[name];
    const known = last.filter((value) => value !== null), top = Math.max(...known, 0);
    const [lines, areas] = paths(last, top || 1, 360, 80);
    stroke.setAttribute("d", lines);
    area.setAttribute("d", areas);
    say(now, last.length && last[last.length - 1] !== null ? format(last[last.length - 1]) : known.length ? "–" : "no data yet");
    if (!picture.matches(":hover")) say(most, known.length ? `at most ${format(top)}` : "");
  };
  return { figure, update };
}
const charts = () => [chart("Lag", "lag_seconds", duration), chart("Rows per second", "rows_per_second", rate),
  chart("Commit to delivery", "delivery_seconds", duration)];
function sparkline() {
  const picture = svg("svg", { viewBox: "0 0 90 24", preserveAspectRatio: "none", "aria-hidden": "true" });
  const area = svg("path", { class: "area" }), stroke = svg("path", { class: "stroke" });
  picture.append(area, stroke);
  return { picture, update(values) {
    const [lines, areas] = values === null ? ["", ""] : paths(values, Math.max(...values), 90, 24);
    if (stroke.getAttribute("d") !== lines) { stroke.setAttribute("d", lines); area.setAttribute("d", areas); }
  } };
}

// The table

const COLUMNS = [
  { id: "attention", title: "Table", text: true, order: byAttention },
  { id: "state", title: "State", text: true, order: (a, b) => stateOf(a)[0].localeCompare(stateOf(b)[0]) || byAttention(a, b) },
  { id: "versions", title: "Versions", order: (a, b) => (b.lag_versions ?? -1) - (a.lag_versions ?? -1) || byAttention(a, b) },
  { id: "seconds", title: "Behind", order: (a, b) => (b.lag_seconds ?? -1) - (a.lag_seconds ?? -1) || byAttention(a, b) },
  { id: "lag", title: "Lag, 1 h", order: null, text: true },
  { id: "why", title: "Why, and next", order: null, text: true },
  { id: "rows", title: "Rows/s", order: (a, b) => (b.rows_per_second ?? -1) - (a.rows_per_second ?? -1) || byAttention(a, b) },
  { id: "delivery", title: "Delivered", order: (a, b) => (a.delivered_at ?? 0) - (b.delivered_at ?? 0) || byAttention(a, b) },
  { id: "headroom", title: "Retention left", order: (a, b) => (a.headroom?.seconds ?? Infinity) - (b.headroom?.seconds ?? Infinity) || byAttention(a, b) },
];
const FILTERS = [
  ["all", "All", () => true], ["errors", "Errors", (table) => ["failed", "backing_off"].includes(table.state)],
  ["risk", "At risk", isAtRisk], ["behind", "Behind", isBehind], ["paused", "Paused", (table) => table.state === "paused"],
  ["tip", "At the tip", (table) => table.state === "at_tip"],
];
// Tokens are kept in this variable only: a reload forgets them.
const tokens = { read: "", act: "" };
let controls = false, role = "alone", leader = null;
let tables = [], sampleSeconds = 10, sort = "attention", reversed = false, filter = "all", search = "", opened = null;
const rows = new Map();

function makeRow(name) {
  const row = element("tr", "row"), cells = Object.fromEntries(COLUMNS.map((column) => {
    const cell = element("td", column.text ? "" : "number");
    row.append(cell);
    return [column.id, cell];
  }));
  const button = element("button", "", name), place = element("small"), state = element("span"), line = sparkline();
  const why = element("div"), following = element("small");
  button.addEventListener("click", () => open(opened === name ? null : name));
  cells.attention.className = "name";
  cells.attention.append(button, place);
  cells.state.append(state);
  cells.lag.className = "trend";
  cells.lag.append(line.picture);
  cells.why.className = "words";
  cells.why.append(why, following);
  return { row, button, update(table) {
    const [word, level] = stateOf(table);
    say(place, `${table.topic} ← ${table.uri}`); // the end of a long line is hidden
    if (place.title !== place.textContent) place.title = place.textContent;
    say(state, word);
    classify(state, `state ${level}`);
    say(cells.versions, table.lag_versions === null ? "?" : number(table.lag_versions));
    say(cells.seconds, table.lag_versions === 0 ? "0" : duration(table.lag_seconds));
    line.update(table.trend);
    say(why, table.why);
    say(following, urgency(table) ? table.next : "");
    say(cells.rows, rate(table.rows_per_second));
    say(cells.delivery, table.delivered_at === null ? "–" : `${duration(Math.max(0, Date.now() / 1000 - table.delivered_at))} ago`);
    say(cells.headroom, headroomOf(table));
    classify(cells.headroom, isAtRisk(table) ? "number risk" : "number");
  } };
}
function shown() {
  const words = search.toLowerCase().split(/\s+/).filter(Boolean), matches = FILTERS.find(([id]) => id === filter)[2];
  const order = COLUMNS.find((column) => column.id === sort).order;
  const found = tables.filter((table) => matches(table)
    && words.every((word) => `${table.name} ${table.uri} ${table.topic} ${stateOf(table)[0]}`.toLowerCase().includes(word)));
  found.sort(reversed ? (a, b) => order(b, a) : order);
  return found;
}
// Only rows that are in another place move, so that nothing flickers. A row that moves would lose the focus.
function place(body, wanted) {
  const focused = document.activeElement;
  wanted.forEach((row, index) => {
    if (body.children[index + 1] === row) body.children[index].remove();
    if (body.children[index] !== row) body.insertBefore(row, body.children[index] || null);
  });
  while (body.children.length > wanted.length) body.lastElementChild.remove();
  if (focused !== document.activeElement && focused.isConnected) focused.focus({ preventScroll: true });
}
function showRows() {
  const found = shown(), body = $("rows"), wanted = [];
  for (const table of found) {
    if (!rows.has(table.name)) rows.set(table.name, makeRow(table.name));
    const made = rows.get(table.name);
    made.update(table);
    made.button.setAttribute("aria-expanded", String(table.name === opened));
    wanted.push(made.row);
    if (table.name === opened) wanted.push(panel.row);
  }
  place(body, wanted);
  $("empty").hidden = found.length > 0;
  say($("count"), found.length === tables.length ? tablesOf(tables.length) : `${number(found.length)} of ${tablesOf(tables.length)}`);
  for (const button of $("filters").children) {
    const [id, title, matches] = FILTERS.find(([each]) => each === button.dataset.filter), count = tables.filter(matches).length;
    say(button, `${title} ${number(count)}`);
    button.hidden = count === 0 && id !== "all" && id !== filter;
    button.setAttribute("aria-pressed", String(id === filter));
  }
  for (const header of $("columns").children) {
    header.setAttribute("aria-sort", header.dataset.column !== sort ? "none" : reversed ? "ascending" : "descending");
  }
}
function tablesOf(count) { return `${number(count)} ${count === 1 ? "table" : "tables"}`; }

// Requests of operators

const actions = (() => {
  const box = element("div", "actions"), input = element("input"), answer = element("div");
  const made = {};
  let table = null, asked = null;
  answer.setAttribute("role", "status");
  input.id = "request";
  input.autocomplete = "off";
  function button(id, title, act) {
    made[id] = element("button", "", title);
    made[id].type = "button";
    made[id].dataset.action = id;
    made[id].addEventListener("click", act);
    box.append(made[id]);
  }
  async function request(path, body) {
    say(answer, "…");
    try {
      const response = await fetch(`/tables/${encodeURIComponent(table.name)}/${path}`, {
        method: "POST", headers: { Authorization: `Bearer ${tokens.act}`, "Content-Type": "application/json" }, body: JSON.stringify(body),
      });
      if (response.status === 401) tokens.act = "";
      const told = await response.json();
      say(answer, `${told.type}: ${told.additional_data?.message ?? response.status}`);
    } catch (error) {
      say(answer, error.message);
    }
    asked = null;
    input.value = "";
    show();
    await refresh();
  }
  box.append(input);
  button("use", "Use token", () => { tokens.act = input.value; input.value = ""; say(answer, ""); show(); });
  button("pause", "Pause", () => request("pause", {}));
  button("resume", "Resume", () => request("resume", {}));
  button("snapshot", "Publish again …", () => { asked = "snapshot"; show(); input.focus(); });
  button("really", "Publish these rows again", () => request("snapshot", input.value.trim() ? { where: input.value } : {}));
  button("cancel", "Cancel", () => { asked = null; input.value = ""; show(); });
  button("stop", "Stop publishing again", () => request("snapshot/stop", {}));
  button("forget", "Forget token", () => { tokens.act = ""; say(answer, ""); show(); });
  box.append(answer);
  function show() {
    const locked = tokens.act === "", wanted = locked ? ["use"] : asked === "snapshot" ? ["really", "cancel"]
      : [table.state === "paused" ? "resume" : "pause", table.resnapshot ? "stop" : "snapshot", "forget"];
    box.hidden = !controls;
    for (const [id, each] of Object.entries(made)) each.hidden = !wanted.includes(id);
    input.hidden = !locked && asked === null;
    input.type = locked ? "password" : "text";
    input.placeholder = locked ? "Token of controls" : "All rows, or where: day >= '2026-01-01'";
    input.setAttribute("aria-label", locked ? "Token of controls" : "Condition");
  }
  return { box, update(found) {
    if (table !== null && table.name !== found.name) { asked = null; input.value = ""; say(answer, ""); }
    table = found;
    show();
  } };
})();

// The details of one table

const panel = (() => {
  const row = element("tr", "open"), cell = element("td"), box = element("div", "details"), pictures = element("div", "charts");
  const facts = element("dl", "facts"), title = element("h3", "", "Last errors"), errors = element("ul"), drawn = charts();
  cell.colSpan = COLUMNS.length;
  pictures.append(...drawn.map((each) => each.figure));
  box.append(pictures, facts, actions.box, title, errors);
  cell.append(box);
  row.append(cell);
  let before = "";
  return { row, box, update(found) {
    drawn.forEach((each) => each.update(found.history));
    actions.update(found);
    const lines = factsOf(found), text = JSON.stringify([lines, found.errors]);
    if (text === before) return;
    before = text;
    facts.replaceChildren(...lines.flatMap(([name, value]) => [element("dt", "", name), element("dd", "", value)]));
    title.hidden = found.errors.length === 0;
    errors.replaceChildren(...found.errors.map(errorOf));
  } };
})();
function factsOf(found) {
  const position = found.position, lines = [["Why", found.why], ["Next", found.next]];
  lines.push(["Position", position === null ? "unknown" : `version ${number(position.version)}${position.part ? `, after ${number(position.part)} files` : ""}${position.phase === "snapshot" ? ", snapshot" : ""}`]);
  lines.push(["Delivered", `version ${number(found.delivered)} of ${number(found.newest)}; in the ledger ${number(found.ledger_version)}`]);
  lines.push(["Since the start", `${versions(found.commits)}; ${Object.entries(found.rows).map(([kind, count]) => `${number(count)} ${kind}`).join(", ")}`]);
  for (const [kind, title] of [["log", "Log clean-up"], ["deleted_files", "VACUUM"]]) {
    const each = found.retention[kind];
    if (each) lines.push([title, each.lost ? "has removed undelivered changes" : `may remove undelivered changes in ${duration(each.headroom_seconds)}, of ${duration(each.retention_seconds)}`]);
  }
  return lines;
}
function errorOf(error) {
  const item = element("li", "", error.what), places = [error.at.replace("T", " "), error.family];
  if (error.count > 1) places.unshift(`${number(error.count)} times`);
  if (error.version !== null) places.push(`version ${number(error.version)}`);
  if (error.path !== null) places.push(error.path);
  if (error.hint !== null) item.append(element("div", "hint", error.hint));
  item.append(element("small", "", places.join(" · ")));
  return item;
}
function open(name) {
  opened = name;
  remember();
  showRows();
  refresh();
}

// The headline

function showVerdict() {
  const order = [...tables].sort(byAttention), first = order[0], others = order.slice(1).filter((table) => urgency(table) > 0);
  let headline, level;
  const behind = first && isBehind(first) ? ` ${versions(first.lag_versions)}, ${duration(first.lag_seconds)} behind` : "";
  if (role === "standby") [headline, level] = [leader === null ? "No process leads" : `Standing by: ${leader} delivers`, leader === null ? "warn" : "good"];
  else if (!first) [headline, level] = ["No tables", "unknown"];
  else if (urgency(first) === 0) [headline, level] = [tables.length === 1 ? `${first.name} is up to date` : `All ${number(tables.length)} tables are up to date`, "good"];
  else if (["failed", "backing_off"].includes(first.state)) [headline, level] = [`${first.name}: error${behind ? `,${behind}` : ""}`, "bad"];
  else if (isAtRisk(first)) [headline, level] = [`${first.name}:${behind ? `${behind};` : ""} retention left: ${headroomOf(first)}`, "bad"];
  else if (first.state === "paused") [headline, level] = [`${first.name} is paused${behind ? `,${behind}` : ""}`, "warn"];
  else if (first.state === "starting") [headline, level] = [`${first.name} has not started`, "warn"];
  else [headline, level] = [`${first.name} is${behind}`, first.lag_seconds > 300 && first.state !== "snapshot" ? "warn" : "busy"];
  say($("headline"), headline);
  if ($("verdict").dataset.level !== level) $("verdict").dataset.level = level;
  $("reasons").hidden = !first || urgency(first) === 0;
  if (first) {
    say($("why"), first.why);
    say($("next"), first.next);
    say($("hint"), first.hint ?? "");
    for (const id of ["todo", "hint"]) $(id).hidden = !first.hint;
  }
  const counts = FILTERS.slice(1, 5).map(([, title, matches]) => [title.toLowerCase(), others.filter(matches).length]).filter(([, count]) => count);
  say($("others"), counts.length ? `Other tables: ${counts.map(([title, count]) => `${number(count)} ${title}`).join(", ")}.` : "");
  document.title = `${level === "bad" ? "✖ " : level === "warn" ? "! " : ""}${headline} · cdfd`;
}

// Loading

const whole = charts();
$("charts").append(...whole.map((each) => each.figure));
async function load(path) {
  const act = tokens.act, token = act || tokens.read;
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const response = await fetch(path, { cache: "no-store", headers });
  if (response.status === 401 && act) {
    if (tokens.act === act) tokens.act = "";
    return load(path);
  }
  if (response.status === 401) throw Object.assign(new Error("It wants a token: that of `http.authentication`, or of `controls`."), { login: true });
  if (!response.ok) throw new Error(`${response.status} ${response.statusText}`);
  return response.json();
}
async function refresh() {
  const name = opened, path = name === null ? null : `/overview/table?name=${encodeURIComponent(name)}`;
  let all, found;
  try {
    [all, found] = await Promise.all([load("/overview"), path && load(path).catch(() => null)]);
  } catch (error) {
    showSilence(error);
    return;
  }
  show(all, name === opened ? found : null);
}
function show(all, found) {
  $("login").hidden = true;
  [controls, role, leader] = [all.controls, all.role, all.leader];
  tables = all.tables;
  sampleSeconds = all.sample_seconds;
  say($("pipeline"), all.pipeline);
  say($("about"), `cdfd ${all.cdfd}, up ${duration(all.uptime_seconds)}`);
  const names = new Set(tables.map((table) => table.name));
  for (const known of rows.keys()) if (!names.has(known)) rows.delete(known);
  if (opened !== null && !names.has(opened)) opened = null;
  whole.forEach((each) => each.update(all.history));
  if (found !== null) panel.update(found);
  showVerdict();
  showRows();
  document.body.dataset.shown = String(Number(document.body.dataset.shown || 0) + 1);
}
function showSilence(error) {
  $("verdict").dataset.level = "bad";
  say($("headline"), error.login ? "The daemon does not show its tables" : "The daemon does not answer");
  $("login").hidden = !error.login;
  $("reasons").hidden = false;
  say($("why"), error.message);
  say($("next"), error.login ? "Enter the token. This page keeps it until you leave." : "The page tries again. The values below are old.");
  for (const id of ["todo", "hint"]) $(id).hidden = true;
}
async function run() {
  if (!document.hidden) await refresh();
  setTimeout(run, tables.length > MANY ? REFRESH_MANY_MS : REFRESH_MS);
}

// Controls. The address keeps what is chosen, so that a reload and a link show the same.

function remember() {
  const chosen = new URLSearchParams();
  for (const [key, value, usual] of [["search", search, ""], ["filter", filter, "all"], ["sort", sort, "attention"], ["table", opened ?? "", ""]]) {
    if (value !== usual) chosen.set(key, value);
  }
  if (reversed) chosen.set("reversed", "1");
  history.replaceState(null, "", chosen.size ? `#${chosen}` : location.pathname);
}
function recall() {
  const chosen = new URLSearchParams(location.hash.slice(1));
  search = chosen.get("search") ?? "";
  $("search").value = search;
  filter = FILTERS.some(([id]) => id === chosen.get("filter")) ? chosen.get("filter") : "all";
  sort = COLUMNS.some(({ id, order }) => order && id === chosen.get("sort")) ? chosen.get("sort") : "attention";
  reversed = chosen.has("reversed");
  opened = chosen.get("table");
}
for (const column of COLUMNS) {
  const header = element("th", column.text ? "" : "number");
  header.dataset.column = column.id;
  header.scope = "col";
  if (column.order === null) header.textContent = column.title;
  else {
    const button = element("button", "", column.title);
    button.addEventListener("click", () => { reversed = sort === column.id && !reversed; sort = column.id; remember(); showRows(); });
    header.append(button);
  }
  $("columns").append(header);
}
for (const [id] of FILTERS) {
  const button = element("button");
  button.dataset.filter = id;
  button.addEventListener("click", () => { filter = id; remember(); showRows(); });
  $("filters").append(button);
}
function enter() { tokens.read = $("token").value; $("token").value = ""; refresh(); }
$("enter").addEventListener("click", enter);
$("token").addEventListener("keydown", (event) => { if (event.key === "Enter") enter(); });
$("search").addEventListener("input", (event) => { search = event.target.value; remember(); showRows(); });
document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
recall();
run();
})();
