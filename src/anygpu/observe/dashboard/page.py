"""What one browser sees: columns for its figures and tables, brought up to date while it looks.

The figures themselves are the same for all browsers and are no part of a session: see `figures`. A session has the
columns only, of which Bokeh makes and sends a dozen models in milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bokeh.document import Document
from bokeh.models import ColumnDataSource, Spacer

from anygpu.observe.dashboard import panels, tables
from anygpu.observe.dashboard.history import History
from anygpu.observe.dashboard.panels import WINDOWS, Columns, View

Panel = Callable[[History, View], Columns]

#: What the tables of each tab say; "page" is on all of them.
TABLES: dict[str, dict[str, Panel]] = {
    "page": {"tiles": tables.tiles, "notes": tables.notes, "processes": tables.processes},
    "overview": {"functions": tables.functions, "problems": tables.problems},
    "devices": {"devices": tables.devices},
    "queue": {"lanes": tables.lanes, "tenants": tables.tenants},
    "predictions": {"functions": tables.functions, "steps": tables.steps},
    "problems": {"problems": tables.problems, "advice": tables.advice},
}

#: What the lines of each tab are.
LINES: dict[str, dict[str, Panel]] = {
    "overview": {
        "rate": lambda history, view: panels.process_lines(history, view, panels.rate),
        "load": lambda history, view: panels.device_lines(history, view, lambda one: one.load),
    },
    "devices": {
        "utilisation": lambda history, view: panels.device_lines(history, view, lambda one: one.load),
        "memory": lambda history, view: panels.device_lines(history, view, lambda one: one.memory),
        "temperature": lambda history, view: panels.device_lines(history, view, lambda one: one.temperature),
        "power": lambda history, view: panels.device_lines(history, view, lambda one: one.power),
        "owners": panels.owners,
    },
    "queue": {
        "waiting": lambda history, view: panels.process_lines(history, view, panels.waiting),
        "batches": lambda history, view: panels.process_lines(history, view, panels.tasks_per_launch),
    },
}


class Page:
    """What one browser sees."""

    def __init__(self, history: History, now: Callable[[], float]) -> None:
        self._document: Document | None = None
        self._history, self._now = history, now
        self._seconds = WINDOWS["30 s"]
        self._asked = False
        self.tab = "overview"
        self.process: int | None = None
        self.paused = False
        names = [name for each in (*TABLES.values(), *LINES.values()) for name in each]
        names += ["timeline", "rows", "predictions", "bounds"]
        self._sources = {name: ColumnDataSource(name=f"{name} data") for name in dict.fromkeys(names)}
        #: What the page says to us: its tab, its window, its process, whether it is paused.
        self._choices = ColumnDataSource({"tab": ["overview"], "window": ["30 s"], "process": [""], "paused": [False]})
        self._choices.name = "choices data"
        self._choices.on_change("data", self._chosen)

    def open(self, document: Document, closed: Callable[[Page], None]) -> None:
        """In this document, for a browser."""
        self._document = document
        self._update()
        # Models that nothing draws reach the browser as tags of one that is drawn, if only as nothing.
        document.add_root(Spacer(name="columns", tags=[*self._sources.values(), self._choices]))
        document.title = "anygpu"
        # The page says itself that the connection is lost.
        document.config.notify_connection_status = False
        document.on_session_destroyed(lambda context: closed(self))

    def ask_for_update(self) -> None:
        """As soon as the last one has reached the browser: a slow one gets fewer, and none waits for it."""
        if self._document is not None and not self._asked and not self.paused:
            self._asked = True
            self._document.add_next_tick_callback(self._update)

    def _update(self) -> None:
        self._asked = False
        view = View(self._now(), self._seconds, self.process)
        history = self._history
        for each in (TABLES["page"], TABLES[self.tab]):
            for name, panel in each.items():
                self._say(name, panel(history, view))
        for name, panel in LINES.get(self.tab, {}).items():
            self._sources[name].data = panel(history, view)
        if self.tab == "overview":
            columns, rows = panels.calls(history, view)
            # Rows first: what is drawn has its place then.
            self._say("rows", {"name": rows})
            self._sources["timeline"].data = columns
        elif self.tab == "predictions":
            columns = panels.predictions(history, view)
            low, high = panels.bounds(columns)
            self._say("bounds", {"low": [low], "high": [high]})
            self._sources["predictions"].data = columns

    def _say(self, name: str, columns: Columns) -> None:
        source = self._sources[name]
        if source.data != columns:
            source.data = columns

    def _chosen(self, attribute: str, old: Any, new: Any) -> None:
        """The browser may say anything: what is not known is not done."""
        chosen = {name: values[0] for name, values in new.items() if isinstance(values, list) and len(values) == 1}
        tab, window, process = chosen.get("tab"), chosen.get("window"), chosen.get("process")
        if isinstance(tab, str) and tab in TABLES and tab != "page":
            self.tab = tab
        self.process = int(process) if isinstance(process, str) and process.isdecimal() else None
        self.paused = chosen.get("paused") is True
        if isinstance(window, str):
            self._seconds = WINDOWS.get(window, self._seconds)
        self._update()
