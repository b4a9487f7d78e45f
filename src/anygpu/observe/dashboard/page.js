// Puts Bokeh's figures into the page, and the texts beside them. Texts are set as text and never as HTML: names in them
// are whatever users have chosen.
"use strict";

const NUMBERS = new Set(["calls", "p50", "p90", "p99", "of_predicted", "busy", "memory", "temperature", "power", "clock",
  "backlog", "done", "tasks_a_launch", "waiting", "bytes", "device_time", "share", "cost", "process", "calls_a_second",
  "processor", "steps", "peak", "predicted", "again", "failed"]);
const PROSE = new Set(["why", "finding", "instead", "command", "parts"]);
const MARKED = new Set(["what", "failed", "again", "throttled", "is"]);

const all = (selector) => [...document.querySelectorAll(selector)];
const one = (id) => document.getElementById(id);

function made(name, text, kind) {
  const element = document.createElement(name);
  if (text !== undefined) element.textContent = text;
  if (kind) element.className = kind;
  return element;
}

function swatch(colour) {
  const element = made("i", undefined, "swatch");
  element.style.backgroundColor = colour;
  return element;
}

const column = (data, name) => [...(data[name] ?? [])];

function showTable(table, data) {
  const columns = table.dataset.columns.split(" "), heads = table.dataset.heads.split("|");
  const kind = (name) => (NUMBERS.has(name) && name !== columns[0] ? "number " : "") + (PROSE.has(name) ? "prose " : "") + (MARKED.has(name) ? "mark" : "");
  const values = columns.map((name) => column(data, name.replaceAll("_", " ")));
  const colours = column(data, "colour"), levels = column(data, "level");
  const head = made("tr");
  columns.forEach((name, index) => head.append(made("th", heads[index], kind(name))));
  const rows = values[0].map((_, row) => {
    const line = made("tr", undefined, levels[row]);
    columns.forEach((name, index) => {
      // A row is marked for what has happened in it, not for what has not.
      const cell = made("td", undefined, values[index][row] === "0" ? kind(name).replace("mark", "") : kind(name));
      if (index === 0 && colours.length) cell.append(swatch(colours[row]));
      cell.append(values[index][row]);
      cell.title = values[index][row] === "–" ? column(data, "not known")[row] ?? "" : values[index][row];
      line.append(cell);
    });
    return line;
  });
  table.replaceChildren(...(rows.length ? [head, ...rows] : []));
}

function showTiles(data) {
  const names = column(data, "name"), values = column(data, "value"), levels = column(data, "level");
  one("tiles").replaceChildren(...names.map((name, index) => {
    const tile = made("div", undefined, levels[index]);
    tile.append(made("b", values[index]), made("span", name));
    return tile;
  }));
}

function showNotes(data) {
  const said = new Map(column(data, "panel").map((panel, index) => [panel, data.text[index]]));
  for (const note of all("[data-note]")) {
    const text = said.get(note.dataset.note);
    note.hidden = text === undefined;
    note.textContent = text ?? "";
  }
  const nobody = said.has("page");
  document.querySelector("main").hidden = nobody;
  one("tiles").hidden = nobody;
}

function showLegend(element, data) {
  const names = column(data, "name"), colours = column(data, "colour");
  element.replaceChildren(...names.map((name, index) => {
    const entry = made("span");
    entry.title = name;
    entry.append(swatch(colours[index]), made("b", name));
    return entry;
  }));
}

function showProcesses(data) {
  const select = one("process"), chosen = select.value;
  const options = [new Option("all", "")];
  column(data, "process").forEach((pid, index) => {
    const ended = data.state[index].startsWith("ended") ? " (ended)" : "";
    options.push(new Option(`${pid} ${data.command[index]}${ended}`, pid));
  });
  if (options.map((each) => each.text).join("\n") === [...select.options].map((each) => each.text).join("\n")) return;
  select.replaceChildren(...options);
  select.value = chosen;
  if (select.selectedIndex < 0) select.value = "";
}

function showProblems(data) {
  const count = column(data, "level").filter((level) => level === "bad").length;
  one("count").hidden = count === 0;
  one("count").textContent = count;
}

const plain = (data) => (data instanceof Map ? Object.fromEntries(data) : data);

function tick(axis, where, names) {
  axis.ticker.ticks = where;
  axis.major_label_overrides = new Map(where.map((each, index) => [each, names[index]]));
}

// Marks on the axes of time: how long ago it was.
function showWindow(figures, seconds) {
  const name = (ago) => (ago === 0 ? "now" : seconds <= 60 ? `−${ago.toFixed()} s` : `−${Number((ago / 60).toPrecision(3))} min`);
  const window = figures.get_model_by_name("window");
  for (const figure of figures.roots()) {
    if (figure.x_range !== window) continue;
    const marks = figure.name === "timeline" ? 6 : 3;
    const ago = Array.from({ length: marks + 1 }, (_, index) => (seconds * (marks - index)) / marks);
    tick(figure.below[0], ago.map((each) => (each ? -each : 0)), ago.map(name));
  }
  window.setv({ start: -seconds, end: 0 });
}

function showRows(figures, names) {
  figures.get_model_by_name("row range").end = Math.max(1, names.length);
  tick(figures.get_model_by_name("row axis"), names.map((_, row) => row + 0.5), names);
  figures.get_model_by_name("row grid").ticker.ticks = [...names.keys(), names.length];
}

function showBounds(figures, low, high) {
  for (const name of ["predicted", "actual"]) figures.get_model_by_name(name).setv({ start: low, end: high });
}

// `doc` has the columns, of this browser's session; `figures` has what draws them.
function begin(doc, figures) {
  const follow = (name, show) => {
    const source = doc.get_model_by_name(`${name} data`);
    if (source === null) return;
    const now = () => { if (Object.keys(plain(source.data)).length) show(plain(source.data)); };
    source.properties.data.change.connect(now);
    now();
  };
  follow("rows", (data) => showRows(figures, column(data, "name")));
  follow("bounds", (data) => showBounds(figures, data.low[0], data.high[0]));
  for (const figure of figures.roots()) {
    const drawn = figures.get_model_by_name(`${figure.name} data`);
    follow(figure.name, (data) => { drawn.data = data; });
  }
  follow("tiles", showTiles);
  follow("notes", showNotes);
  follow("processes", showProcesses);
  follow("problems", showProblems);
  for (const table of all("table[data-source]")) follow(table.dataset.source, (data) => showTable(table, data));
  for (const legend of all("[data-legend]")) follow(legend.dataset.legend, (data) => showLegend(legend, data));

  const choices = doc.get_model_by_name("choices data");
  const chosen = { tab: "overview", paused: false };
  const choose = (changes) => {
    Object.assign(chosen, changes);
    choices.data = { tab: [chosen.tab], window: [one("window").value], process: [one("process").value], paused: [chosen.paused] };
  };
  const open = (name) => {
    for (const button of all("nav button")) button.setAttribute("aria-selected", button.dataset.tab === name);
    for (const tab of all("main .tab")) tab.hidden = tab.dataset.tab !== name;
    history.replaceState(null, "", `#${name}`);
    choose({ tab: name });
  };
  for (const button of all("nav button")) button.addEventListener("click", () => open(button.dataset.tab));
  const seconds = () => Number(one("window").selectedOptions[0].dataset.seconds);
  showWindow(figures, seconds());
  one("window").addEventListener("change", () => {
    showWindow(figures, seconds());
    choose({});
  });
  one("process").addEventListener("change", () => choose({}));
  one("pause").addEventListener("click", () => {
    one("pause").setAttribute("aria-pressed", !chosen.paused);
    one("pause").textContent = chosen.paused ? "Pause" : "Go on";
    choose({ paused: !chosen.paused });
  });
  const named = location.hash.slice(1);
  if (all("nav button").some((button) => button.dataset.tab === named) && named !== "overview") open(named);

  doc.on_event("connection_lost", () => {
    one("lost").hidden = false;
    one("lost").textContent = "The dashboard has ended: this is the last it showed. Start it again with: anygpu dashboard";
  });
  doc.on_event("client_reconnected", () => { one("lost").hidden = true; });
  document.body.dataset.ready = "yes";
}

document.addEventListener("DOMContentLoaded", async () => {
  const { item, path } = JSON.parse(one("session").textContent);
  const { document: drawn, roots } = await (await fetch("figures.json")).json();
  const figures = { docid: "figures", roots, root_ids: Object.keys(roots), use_for_title: false };
  const views = await Bokeh.embed.embed_items({ figures: drawn }, [figures, item], path);
  if (views.length === 2) begin(Bokeh.documents.at(-1), Bokeh.documents.at(-2));
  else {
    one("lost").hidden = false;
    one("lost").textContent = "The page could not be opened. Load it again.";
  }
});
