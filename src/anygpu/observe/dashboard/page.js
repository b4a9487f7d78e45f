// Puts Bokeh's figures into the page, and the texts beside them. Texts are set as text and never as HTML: names in them
// are whatever users have chosen.
"use strict";

const NUMBERS = new Set(["calls", "p50", "p90", "p99", "of_predicted", "busy", "memory", "temperature", "power", "clock",
  "backlog", "done", "tasks_a_launch", "waiting", "bytes", "device_time", "share", "cost", "process", "calls_a_second",
  "processor"]);
const PROSE = new Set(["why", "finding", "instead", "command"]);
const MARKED = new Set(["what", "failed", "throttled", "is"]);

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
      const cell = made("td", undefined, kind(name));
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

function begin(doc) {
  const follow = (name, show) => {
    const source = doc.get_model_by_name(`${name} data`);
    if (source === null) return;
    const now = () => show(Object.fromEntries(Object.entries(source.data instanceof Map ? Object.fromEntries(source.data) : source.data)));
    source.properties.data.change.connect(now);
    now();
  };
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
  one("window").addEventListener("change", () => choose({}));
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
  const views = await Bokeh.embed.embed_items({}, [item], path);
  if (views.length) begin(Bokeh.documents.at(-1));
  else {
    one("lost").hidden = false;
    one("lost").textContent = "The page could not be opened. Load it again.";
  }
});
