// Puts Bokeh's figures into the page, and the texts beside them. Texts are set as text and never as HTML: names in them
// are whatever users have chosen.
"use strict";

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

function showTable(table, { heads, kinds, rows, tones, colours, whys }) {
  const head = made("tr");
  // A number in the first column is a name, and stands where names do.
  const kind = (index) => (index || kinds[index] !== "number" ? kinds[index] : "");
  heads.forEach((name, index) => head.append(made("th", name, kind(index))));
  const lines = rows.map((texts, row) => {
    const line = made("tr");
    texts.forEach((text, index) => {
      const cell = made("td", undefined, `${kind(index)} ${tones[row][index]}`);
      if (index === 0 && colours.length) cell.append(swatch(colours[row]));
      cell.append(text);
      cell.title = text === "–" ? whys[row] ?? "" : text;
      line.append(cell);
    });
    return line;
  });
  table.replaceChildren(...(lines.length ? [head, ...lines] : []));
}

function showTiles(tiles) {
  one("tiles").replaceChildren(...tiles.map(([name, value, tone]) => {
    const tile = made("div", undefined, tone);
    tile.append(made("b", value), made("span", name));
    return tile;
  }));
}

function showNotes(said) {
  for (const note of all("[data-note]")) {
    const text = said[note.dataset.note];
    note.hidden = text === undefined;
    note.textContent = text ?? "";
  }
  const empty = said.page !== undefined;
  document.querySelector("main").hidden = empty;
  one("tiles").hidden = empty;
}

function showLegend(element, data) {
  element.replaceChildren(...data.name.map((name, index) => {
    const entry = made("span");
    entry.title = name;
    entry.append(swatch(data.colour[index]), made("b", name));
    return entry;
  }));
}

function showProcesses({ rows }) {
  const select = one("process"), chosen = select.value;
  const options = [new Option("all", "")];
  for (const [pid, command, state] of rows) {
    options.push(new Option(`${pid} ${command}${state.startsWith("ended") ? " (ended)" : ""}`, pid));
  }
  if (options.map((each) => each.text).join("\n") === [...select.options].map((each) => each.text).join("\n")) return;
  select.replaceChildren(...options);
  select.value = chosen;
  if (select.selectedIndex < 0) select.value = "";
}

function showProblems({ tones }) {
  const count = tones.filter((row) => row.includes("bad")).length;
  one("count").hidden = count === 0;
  one("count").textContent = count;
}

// Columns as Bokeh takes them: what is not known is not a number, where JSON has null.
const numbers = (values) => (Array.isArray(values[0]) ? values.map(numbers)
  : typeof (values.find((each) => each !== null) ?? 0) === "number" ? Float64Array.from(values, (each) => each ?? NaN) : values);
const asColumns = (data) => Object.fromEntries(Object.entries(data).map(([name, values]) => [name, numbers(values)]));

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

// What was chosen in the page.
const chosen = { tab: "overview", paused: false };

function show(figures, data) {
  for (const figure of figures.roots()) {
    const columns = data[figure.name];
    if (columns === undefined) continue;
    const drawn = figures.get_model_by_name(`${figure.name} data`);
    if (!Array.isArray(columns)) drawn.data = asColumns(columns);
    else if (figure.name === "timeline") {
      // Rows first: what is drawn has its place then.
      showRows(figures, columns[1]);
      drawn.data = asColumns(columns[0]);
    } else {
      showBounds(figures, ...columns[1]);
      drawn.data = asColumns(columns[0]);
    }
  }
  showTiles(data.tiles);
  showNotes(data.notes);
  showProcesses(data.processes);
  showProblems(data.problems);
  for (const table of all("table[data-source]")) if (data[table.dataset.source]) showTable(table, data[table.dataset.source]);
  for (const legend of all("[data-legend]")) if (data[legend.dataset.legend]) showLegend(legend, data[legend.dataset.legend]);
}

function begin(figures) {
  let timer, newest = 0;
  // Asks for the columns, shows them, and asks again: one that draws slowly asks less often.
  const ask = async () => {
    clearTimeout(timer);
    const number = ++newest;
    const query = new URLSearchParams({ tab: chosen.tab, window: one("window").value, process: one("process").value });
    const data = await fetch(`columns.json?${query}`).then((answer) => answer.json(), () => null);
    // Something else was chosen meanwhile, for which another answer comes.
    if (number !== newest) return;
    one("lost").hidden = data !== null;
    if (data !== null) show(figures, data);
    document.body.dataset.ready = "yes";
    if (!chosen.paused) timer = setTimeout(ask, 1000 * (data?.interval ?? 1));
  };
  const open = (name) => {
    for (const button of all("nav button")) button.setAttribute("aria-selected", button.dataset.tab === name);
    for (const tab of all("main .tab")) tab.hidden = tab.dataset.tab !== name;
    history.replaceState(null, "", `#${name}`);
    chosen.tab = name;
    ask();
  };
  for (const button of all("nav button")) button.addEventListener("click", () => open(button.dataset.tab));
  const seconds = () => Number(one("window").selectedOptions[0].dataset.seconds);
  showWindow(figures, seconds());
  one("window").addEventListener("change", () => {
    showWindow(figures, seconds());
    ask();
  });
  one("process").addEventListener("change", ask);
  one("pause").addEventListener("click", () => {
    chosen.paused = !chosen.paused;
    one("pause").setAttribute("aria-pressed", chosen.paused);
    one("pause").textContent = chosen.paused ? "Go on" : "Pause";
    ask();
  });
  const named = location.hash.slice(1);
  open(all("nav button").some((button) => button.dataset.tab === named) ? named : "overview");
}

document.addEventListener("DOMContentLoaded", async () => {
  const { document: drawn, roots } = await (await fetch("figures.json")).json();
  const items = { docid: "figures", roots, root_ids: Object.keys(roots), use_for_title: false };
  await Bokeh.embed.embed_items({ figures: drawn }, [items]);
  begin(Bokeh.documents.at(-1));
});
