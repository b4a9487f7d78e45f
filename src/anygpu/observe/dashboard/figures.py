"""The page as Bokeh has it: figures, their sources, and how both are brought up to date."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bokeh.document import Document
from bokeh.models import (
    AdaptiveTicker,
    ColumnDataSource,
    FixedTicker,
    HoverTool,
    Model,
    NumeralTickFormatter,
    Range1d,
)
from bokeh.plotting import figure

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
    "predictions": {"functions": tables.functions},
    "problems": {"problems": tables.problems, "advice": tables.advice},
}

#: What the lines of each tab are, and how their values read.
LINES: dict[str, dict[str, tuple[Panel, str]]] = {
    "overview": {
        "rate": (lambda history, view: panels.process_lines(history, view, panels.rate), "0,0"),
        "load": (lambda history, view: panels.device_lines(history, view, lambda one: one.load), "0%"),
    },
    "devices": {
        "utilisation": (lambda history, view: panels.device_lines(history, view, lambda one: one.load), "0%"),
        "memory": (lambda history, view: panels.device_lines(history, view, lambda one: one.memory), "0 ib"),
        "temperature": (lambda history, view: panels.device_lines(history, view, lambda one: one.temperature), "0"),
        "power": (lambda history, view: panels.device_lines(history, view, lambda one: one.power), "0"),
    },
    "queue": {
        "waiting": (lambda history, view: panels.process_lines(history, view, panels.waiting), "0,0"),
        "batches": (lambda history, view: panels.process_lines(history, view, panels.tasks_per_launch), "0.0"),
    },
}
#: Of these the top of the axis is known.
_FULL = {"load": 1.0, "utilisation": 1.0}

#: Marks on an axis of seconds: 1 ns, 10 ns … 100 s.
_SECONDS = {10.0 ** (power - 9): f"{10 ** (power % 3)} {('ns', 'µs', 'ms', 's')[power // 3]}" for power in range(12)}


class Page:
    """What one browser sees."""

    def __init__(self, history: History, now: Callable[[], float]) -> None:
        """Makes all models, which takes Bokeh a good part of a second: before a browser asks for them."""
        self._document: Document | None = None
        self._history, self._now = history, now
        self._sources: dict[str, ColumnDataSource] = {}
        self._window = Range1d(-WINDOWS["30 s"], 0, name="window")
        self._seconds = WINDOWS["30 s"]
        self._time_axes: list[tuple[Any, int]] = []
        self._rows: list[str] = []
        self._bounds: tuple[float, float] | None = None
        self._asked = False
        self.tab = "overview"
        self.process: int | None = None
        self.paused = False
        self._roots = self._figures()
        #: What the page says to us: its tab, its window, its process, whether it is paused.
        self._choices = ColumnDataSource({"tab": ["overview"], "window": ["30 s"], "process": [""], "paused": [False]})
        self._choices.name = "choices data"
        self._choices.on_change("data", self._chosen)
        texts = [self._source(name) for each in TABLES.values() for name in each]
        # Models that nothing draws reach the browser as a tag of one that is drawn.
        self._roots[0].tags = [*dict.fromkeys(texts), self._choices]

    def open(self, document: Document, closed: Callable[[Page], None]) -> None:
        """In this document, for a browser."""
        self._document = document
        self._update()
        for root in self._roots:
            document.add_root(root)
        document.title = "anygpu"
        # The page says itself that the connection is lost.
        document.config.notify_connection_status = False
        document.on_session_destroyed(lambda context: closed(self))

    def ask_for_update(self) -> None:
        """As soon as the last one has reached the browser: a slow one gets fewer, and none waits for it."""
        if self._document is not None and not self._asked and not self.paused:
            self._asked = True
            self._document.add_next_tick_callback(self._update)

    # -- bringing up to date

    def _update(self) -> None:
        self._asked = False
        view = View(self._now(), self._seconds, self.process)
        history = self._history
        for each in (TABLES["page"], TABLES[self.tab]):
            for name, panel in each.items():
                self._say(name, panel(history, view))
        for name, (panel, _) in LINES.get(self.tab, {}).items():
            self._sources[name].data = panel(history, view)
        if self.tab == "overview":
            columns, rows = panels.calls(history, view)
            self._sources["timeline"].data = columns
            self._name_rows(rows)
        elif self.tab == "devices":
            self._sources["owners"].data = panels.owners(history, view)
        elif self.tab == "predictions":
            columns = panels.predictions(history, view)
            self._sources["predictions"].data = columns
            self._bound(panels.bounds(columns))

    def _say(self, name: str, columns: Columns) -> None:
        source = self._sources[name]
        if source.data != columns:
            source.data = columns

    def _chosen(self, attribute: str, old: Any, new: Any) -> None:
        """The browser may say anything: what is not known is not done."""
        chosen = {name: values[0] for name, values in new.items() if isinstance(values, list) and len(values) == 1}
        tab, window, process = chosen.get("tab"), chosen.get("window"), chosen.get("process")
        if tab in TABLES and tab != "page":
            self.tab = tab
        self.process = int(process) if isinstance(process, str) and process.isdecimal() else None
        self.paused = chosen.get("paused") is True
        if isinstance(window, str) and WINDOWS.get(window, self._seconds) != self._seconds:
            self._seconds = WINDOWS[window]
            self._window.update(start=-self._seconds, end=0)
            for axis, marks in self._time_axes:
                _tick(axis, *_times(self._seconds, marks))
        self._update()

    def _name_rows(self, rows: list[str]) -> None:
        if rows != self._rows:
            self._rows = rows
            self._row_range.end = max(1, len(rows))
            _tick(self._row_axis, [row + 0.5 for row in range(len(rows))], rows)
            self._row_grid.ticker = FixedTicker(ticks=list(range(len(rows) + 1)))

    def _bound(self, bounds: tuple[float, float]) -> None:
        if bounds != self._bounds:
            self._bounds = bounds
            low, high = bounds
            self._predicted.update(start=low, end=high)
            self._actual.update(start=low, end=high)
            self._sources["diagonal"].data = {"x": [low, high], "y": [low, high]}

    # -- what there is

    def _source(self, name: str, columns: Columns | None = None) -> ColumnDataSource:
        if name not in self._sources:
            self._sources[name] = ColumnDataSource(columns or {}, name=f"{name} data")
        return self._sources[name]

    def _figures(self) -> list[Model]:
        found = [self._timeline()]
        for lines in LINES.values():
            found += [self._lines(name, form) for name, (_, form) in lines.items()]
        return [*found, self._owners(), self._predictions()]

    def _over_time(self, name: str, marks: int = 3, **options: Any) -> Any:
        plot = _figure(name, x_range=self._window, **options)
        self._time_axes.append((plot.xaxis[0], marks))
        _tick(plot.xaxis[0], *_times(self._seconds, marks))
        return plot

    def _timeline(self) -> Any:
        source = self._source("timeline", panels.calls(History(), View(0.0, 1.0))[0])
        self._row_range = Range1d(0, 1)
        plot = self._over_time(
            "timeline",
            marks=6,
            y_range=self._row_range,
            tools="xpan,xwheel_zoom",
            active_scroll="xwheel_zoom",
            lod_threshold=None,
        )
        self._row_axis = plot.yaxis[0]
        self._row_grid = plot.ygrid[0]
        _tick(self._row_axis, [], [])
        plot.segment("waited", "line", "left", "line", source=source, color="colour", line_width=2, line_alpha=0.45)
        run = plot.quad("left", "right", "middle", "bottom", source=source, color="colour", line_width=0)
        move = plot.quad("left", "right", "top", "middle", source=source, color="colour", line_width=0, alpha=0.4)
        said = [("", "@function"), ("", "@where"), ("", "@calls"), ("run", "@run{0.000} ms"),
                ("moves", "@move{0.000} ms"), ("waiting", "@wait{0.000} ms")]  # fmt: skip
        plot.add_tools(HoverTool(renderers=[run, move], tooltips=said, mode="mouse"))
        return plot

    def _lines(self, name: str, form: str) -> Any:
        source = self._source(name, panels.lines([]))
        top = {"end": _FULL[name] * 1.02} if name in _FULL else {}
        plot = self._over_time(name, tools="")
        plot.y_range.update(start=0, range_padding=0.15, only_visible=False, **top)
        _format(plot.yaxis[0], form)
        plot.multi_line("xs", "ys", source=source, line_color="colour", line_width=2, line_join="round")
        return plot

    def _owners(self) -> Any:
        source = self._source("owners", panels.lines([]))
        plot = self._over_time("owners", tools="")
        plot.y_range.update(start=0, range_padding=0.15)
        _format(plot.yaxis[0], "0 ib")
        areas = plot.patches("xs", "ys", source=source, color="colour", fill_alpha=0.75, line_width=0)
        plot.add_tools(HoverTool(renderers=[areas], tooltips=[("", "@name")]))
        return plot

    def _predictions(self) -> Any:
        source = self._source("predictions", panels.predictions(History(), View(0.0, 1.0)))
        self._predicted, self._actual = Range1d(1e-6, 1.0), Range1d(1e-6, 1.0)
        plot = _figure(
            "predictions",
            x_range=self._predicted,
            y_range=self._actual,
            x_axis_type="log",
            y_axis_type="log",
            x_axis_label="predicted",
            y_axis_label="actual",
            tools="",
        )
        for axis in (plot.xaxis[0], plot.yaxis[0]):
            _tick(axis, list(_SECONDS), list(_SECONDS.values()))
        plot.xgrid.visible = True
        diagonal = self._source("diagonal", {"x": [1e-6, 1.0], "y": [1e-6, 1.0]})
        plot.line("x", "y", source=diagonal, color=panels.GREY, line_dash="dashed", line_width=1.5)
        dots = plot.scatter("predicted", "actual", source=source, color="colour", size=6, fill_alpha=0.55, line_width=0)
        plot.add_tools(HoverTool(renderers=[dots], tooltips=[("", "@function"), ("", "@device")]))
        return plot


def _figure(name: str, **options: Any) -> Any:
    plot = figure(name=name, sizing_mode="stretch_both", toolbar_location=None, min_border=4, **options)
    # Colours are those of the style sheet, which knows whether it is dark.
    plot.update(background_fill_color=None, border_fill_color=None, outline_line_color=None)
    for axis in (plot.xaxis[0], plot.yaxis[0]):
        axis.update(minor_tick_line_color=None, axis_line_color=None, major_tick_line_color=None)
        axis.update(major_label_text_font_size="11px", axis_label_text_font_size="11px")
        axis.update(axis_label_text_font_style="normal")
    plot.xgrid.visible = False
    return plot


def _tick(axis: Any, where: Sequence[float], names: Sequence[str]) -> None:
    axis.update(ticker=FixedTicker(ticks=list(where)), major_label_overrides=dict(zip(where, names, strict=True)))


def _format(axis: Any, form: str) -> None:
    axis.formatter = NumeralTickFormatter(format=form)
    if form.endswith("ib"):
        # At 1, 2, 4 … of each unit.
        axis.ticker = AdaptiveTicker(base=1024, mantissas=[1 << power for power in range(10)], desired_num_ticks=4)
    else:
        axis.ticker.desired_num_ticks = 4


def _times(window: float, marks: int) -> tuple[list[float], list[str]]:
    """Marks on the axis of time: how long ago it was."""
    where = [-window * number / marks for number in range(marks, -1, -1)]

    def name(ago: float) -> str:
        if ago == 0:
            return "now"
        return f"−{ago:.0f} s" if window <= 60 else f"−{ago / 60:.3g} min"

    return where, [name(-each) for each in where]
