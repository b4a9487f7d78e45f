"""Serves the dashboard to the browser of this user, and to no other.

Everything is under a secret in the path, which is printed where the dashboard is started; requests with the name of
another host, or from another page, are refused before anything is looked up. The page loads nothing from elsewhere, and
asks again and again for the columns of the tab that it shows: the server keeps nothing of a browser.
"""

from __future__ import annotations

import asyncio
import functools
import hmac
import json
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, Protocol

import bokeh
import msgspec
from bokeh.document import Document
from bokeh.models import (
    AdaptiveTicker,
    ColumnDataSource,
    FixedTicker,
    HoverTool,
    NumeralTickFormatter,
    Range1d,
)
from bokeh.plotting import figure

from anygpu.errors import AnyGPUError
from anygpu.observe.dashboard import panels
from anygpu.observe.dashboard.history import DashboardHistory
from anygpu.observe.dashboard.panels import GREY, WINDOWS, HistoryView
from anygpu.observe.looking import NoAnswer, ObservedProcess, observed_processes
from anygpu.observe.servers import HOST, HttpAnswer, HttpRefused, HttpRequest, LocalServer
from anygpu.observe.snapshot import Snapshot

# -- the figures of the page, without data: the same for every browser, so Bokeh makes and writes them once
#
# What Bokeh takes for eleven figures, a good part of a second, is over before a browser asks. The script of the page
# puts the columns of its session into their sources, and sets their ranges and marks.


#: How the values of lines read.
_LINES = {
    "rate": "0,0",
    "load": "0%",
    "utilisation": "0%",
    "memory": "0 ib",
    "temperature": "0",
    "power": "0",
    "waiting": "0,0",
    "batches": "0.0",
}
#: Figures whose axis has a fixed top.
_FULL = {"load": 1.0, "utilisation": 1.0}
_BLOCKS = ("left", "right", "bottom", "middle", "top", "line", "waited", "run", "move", "wait",
           "colour", "function", "where", "calls")  # fmt: skip

#: Marks on an axis of seconds: 1 ns, 10 ns … 100 s.
_SECONDS = {10.0 ** (power - 9): f"{10 ** (power % 3)} {('ns', 'µs', 'ms', 's')[power // 3]}" for power in range(12)}


@functools.cache
def figures() -> bytes:
    """All figures as JSON: Bokeh's document, and which root belongs into which element of the page.

    They are made once for each process, without data.
    """
    document = Document()
    window = Range1d(-30, 0, name="window")
    plots = [_timeline(window), *(_lines(name, form, window) for name, form in _LINES.items())]
    # All at once: with each root that is added alone, Bokeh looks at all models again.
    with document.models.freeze():
        for plot in (*plots, _owners(window), _predictions()):
            document.add_root(plot)
    document.title = "anygpu"
    roots = {root.id: f"plot-{root.name}" for root in document.roots}
    return json.dumps({"document": document.to_json(deferred=False), "roots": roots}).encode()


def _timeline(window: Range1d) -> Any:
    """The figure of calls as blocks in rows of their process, thread or device, over time."""
    source = _source("timeline", _BLOCKS)
    plot = _figure(
        "timeline",
        x_range=window,
        y_range=Range1d(0, 1, name="row range"),
        tools="xpan,xwheel_zoom",
        active_scroll="xwheel_zoom",
        lod_threshold=None,
    )
    for axis in (plot.xaxis[0], plot.yaxis[0]):
        _tick(axis, [], [])
    plot.yaxis[0].name = "row axis"
    plot.ygrid[0].update(name="row grid", ticker=FixedTicker(ticks=[]))
    plot.segment("waited", "line", "left", "line", source=source, color="colour", line_width=2, line_alpha=0.45)
    run = plot.quad("left", "right", "middle", "bottom", source=source, color="colour", line_width=0)
    move = plot.quad("left", "right", "top", "middle", source=source, color="colour", line_width=0, alpha=0.4)
    said = [("", "@function"), ("", "@where"), ("", "@calls"), ("run", "@run{0.000} ms"),
            ("moves", "@move{0.000} ms"), ("waiting", "@wait{0.000} ms")]  # fmt: skip
    plot.add_tools(HoverTool(renderers=[run, move], tooltips=said, mode="mouse"))
    return plot


def _lines(name: str, form: str, window: Range1d) -> Any:
    """A figure of lines over time; `form` is how its values read."""
    plot, source = _over_time(name, form, window)
    top = {"end": _FULL[name] * 1.02} if name in _FULL else {}
    plot.y_range.update(only_visible=False, **top)
    plot.multi_line("xs", "ys", source=source, line_color="colour", line_width=2, line_join="round")
    return plot


def _owners(window: Range1d) -> Any:
    """The figure of memory by owner, as areas one upon the other."""
    plot, source = _over_time("owners", "0 ib", window)
    areas = plot.patches("xs", "ys", source=source, color="colour", fill_alpha=0.75, line_width=0)
    plot.add_tools(HoverTool(renderers=[areas], tooltips=[("", "@name")]))
    return plot


def _over_time(name: str, form: str, window: Range1d) -> tuple[Any, ColumnDataSource]:
    """An empty figure of values from 0 on over time, and its source."""
    plot = _figure(name, x_range=window, tools="")
    _tick(plot.xaxis[0], [], [])
    plot.y_range.update(start=0, range_padding=0.15)
    _format(plot.yaxis[0], form)
    return plot, _source(name, ("xs", "ys", "colour", "name"))


def _predictions() -> Any:
    """The figure of predicted against actual seconds, on logarithmic axes."""
    source = _source("predictions", ("predicted", "actual", "colour", "function", "device"))
    plot = _figure(
        "predictions",
        x_range=Range1d(1e-6, 1.0, name="predicted"),
        y_range=Range1d(1e-6, 1.0, name="actual"),
        x_axis_type="log",
        y_axis_type="log",
        x_axis_label="predicted",
        y_axis_label="actual",
        tools="",
    )
    for axis in (plot.xaxis[0], plot.yaxis[0]):
        _tick(axis, list(_SECONDS), list(_SECONDS.values()))
    plot.xgrid.visible = True
    ends = [min(_SECONDS), max(_SECONDS)]
    plot.line(ends, ends, color=GREY, line_dash="dashed", line_width=1.5)
    dots = plot.scatter("predicted", "actual", source=source, color="colour", size=6, fill_alpha=0.55, line_width=0)
    plot.add_tools(HoverTool(renderers=[dots], tooltips=[("", "@function"), ("", "@device")]))
    return plot


def _source(name: str, columns: Sequence[str]) -> ColumnDataSource:
    return ColumnDataSource({column: [] for column in columns}, name=f"{name} data")


def _figure(name: str, **options: Any) -> Any:
    """An empty figure in the style of the page."""
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
    """Puts marks with these names on an axis, and no others."""
    axis.update(ticker=FixedTicker(ticks=list(where)), major_label_overrides=dict(zip(where, names, strict=True)))


def _format(axis: Any, form: str) -> None:
    """Sets how the values of an axis read; bytes have marks at powers of two."""
    axis.formatter = NumeralTickFormatter(format=form)
    if form.endswith("ib"):
        # At 1, 2, 4 … of each unit.
        axis.ticker = AdaptiveTicker(base=1024, mantissas=[1 << power for power in range(10)], desired_num_ticks=4)
    else:
        axis.ticker.desired_num_ticks = 4


#: How often processes are asked, in seconds, while a page is open and while none is.
INTERVAL, IDLE_INTERVAL = 0.5, 2.0
#: Processes that are asked at once.
_AT_ONCE = 16
#: A process that is slower than this, in seconds, is not waited for: its answer counts next time.
PATIENCE = 0.2

_HERE = Path(__file__).parent
_FILES = {
    "": (_HERE / "page.html", "text/html; charset=utf-8"),
    "page.css": (_HERE / "page.css", "text/css; charset=utf-8"),
    "page.js": (_HERE / "page.js", "text/javascript; charset=utf-8"),
    "bokeh.min.js": (
        Path(bokeh.__file__).parent / "server" / "static" / "js" / "bokeh.min.js",
        "text/javascript; charset=utf-8",
    ),
}
_JSON = "application/json; charset=utf-8"

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}

Panel = Callable[[DashboardHistory, HistoryView], Any]

#: The columns of each tab; those of "page" are sent with every tab.
TABS: dict[str, dict[str, Panel]] = {
    "page": {"tiles": panels.tiles, "notes": panels.notes, "processes": panels.processes, "problems": panels.problems},
    "overview": {
        "functions": panels.functions,
        "timeline": panels.calls,
        "rate": lambda history, view: panels.process_lines(history, view, panels.rate),
        "load": lambda history, view: panels.device_lines(history, view, lambda one: one.load),
    },
    "devices": {
        "devices": panels.devices,
        "utilisation": lambda history, view: panels.device_lines(history, view, lambda one: one.load),
        "memory": lambda history, view: panels.device_lines(history, view, lambda one: one.memory),
        "temperature": lambda history, view: panels.device_lines(history, view, lambda one: one.temperature),
        "power": lambda history, view: panels.device_lines(history, view, lambda one: one.power),
        "owners": panels.owners,
    },
    "queue": {
        "lanes": panels.lanes,
        "tenants": panels.tenants,
        "waiting": lambda history, view: panels.process_lines(history, view, panels.waiting),
        "batches": lambda history, view: panels.process_lines(history, view, panels.tasks_per_launch),
    },
    "predictions": {"fits": panels.fits, "steps": panels.steps, "predictions": panels.predictions},
    "problems": {"advice": panels.advice},
}


def columns(history: DashboardHistory, view: HistoryView, tab: str) -> dict[str, Any]:
    """The data of all panels of a tab, by name."""
    return {name: panel(history, view) for each in ("page", tab) for name, panel in TABS[each].items()}


class PortTaken(AnyGPUError):
    """The dashboard cannot listen on the port."""


class ProcessSource(Protocol):
    """Asks processes what they are doing."""

    def snapshots(self, since: Mapping[int, int]) -> Mapping[int, Snapshot | None]:
        """The answers by process id; `None` for a process that has not answered.

        `since` has the number of the newest call that is known of each.
        """
        ...


class ObservedProcesses:
    """Asks all processes of this user. For one thread at a time.

    Questions are asked in a pool of threads; one that is not answered in time is not asked again until it is.
    """

    def __init__(self, find: Callable[[], Sequence[ObservedProcess]] = observed_processes) -> None:
        self._find = find
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="anygpu dashboard")
        self._asked: dict[int, Future[Snapshot]] = {}

    def snapshots(self, since: Mapping[int, int]) -> dict[int, Snapshot | None]:
        """Asks all observed processes at once, each for what is new since a call number.

        Waits `PATIENCE` seconds; `None` stands for processes that are still to answer.
        """
        found: dict[int, Snapshot | None] = {}
        for process in self._find():
            found[process.pid] = None
            if process.pid not in self._asked:
                self._asked[process.pid] = self._pool.submit(process.ask, since.get(process.pid, 0))
        done, _ = wait(self._asked.values(), timeout=PATIENCE)
        for pid in [pid for pid, asked in self._asked.items() if asked in done]:
            try:
                found[pid] = self._asked.pop(pid).result()
            except NoAnswer as error:
                if error.ended:
                    found.pop(pid, None)
            except AnyGPUError:
                found.pop(pid, None)  # another user's, or of another version
        return found

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


class Dashboard:
    """A server that follows what a source tells. For one thread, that of its event loop.

    Raises `PortTaken` if it cannot listen. Its `url` has a secret in it, without which nothing is answered.
    """

    def __init__(
        self, source: ProcessSource, *, port: int = 0, interval: float = INTERVAL, now: Callable[[], float] = time.time
    ) -> None:
        self._source, self._now, self._interval = source, now, interval
        self._token = secrets.token_urlsafe(24)
        self.history = DashboardHistory()
        #: When a page last asked for its columns, by the loop's clock.
        self._asked = float("-inf")
        # It takes a while: not when a browser asks for it.
        figures()
        try:
            self._server = LocalServer(self._respond, self._check, port, headers=_HEADERS)
        except OSError as error:
            why = error.strerror or str(error)
            raise PortTaken(
                f"the dashboard cannot listen on port {port}: {why}. Leave out --port for a free one."
            ) from None
        self.port = self._server.port
        self._hosts = [f"{host}:{self.port}" for host in (HOST, "localhost")]
        self.url = f"http://{HOST}:{self.port}/{self._token}/"

    async def run(self, ready: Callable[[], None] = lambda: None) -> None:
        """Serve until it is cancelled."""
        async with self._server.serving():
            ready()
            await self._follow()

    async def _follow(self) -> None:
        """Asks the processes again and again, on another thread, and adds their answers to the history."""
        loop = asyncio.get_running_loop()
        while True:
            begin = loop.time()
            # Asking waits for processes: not on the thread that answers browsers.
            snapshots = await loop.run_in_executor(None, self._source.snapshots, self.history.since())
            self.history.add(snapshots, self._now())
            while (left := begin + self._pause(loop.time()) - loop.time()) > 0:
                await asyncio.sleep(min(left, self._interval))

    def _pause(self, now: float) -> float:
        """Seconds from one look at the processes to the next."""
        return self._interval if now - self._asked < IDLE_INTERVAL else max(self._interval, IDLE_INTERVAL)

    def _check(self, request: HttpRequest) -> None:
        """Refuses requests under another host's name, from another page, or without the secret."""
        if request.hosts not in [[host] for host in self._hosts]:
            raise HttpRefused(403, "This address is not the dashboard's.")
        if any(origin.removeprefix("http://") not in self._hosts for origin in request.origins):
            raise HttpRefused(403, "Another page asked for the dashboard.")
        token = request.path.split("/")[1] if request.path.startswith("/") else ""
        if not hmac.compare_digest(token.encode(errors="replace"), self._token.encode()):
            raise HttpRefused(403, "Open the dashboard with the whole address that it printed: it has a secret in it.")

    def _respond(self, request: HttpRequest) -> HttpAnswer:
        """The answer for a file of the page, the figures or the columns; 404 for anything else."""
        name = request.path.removeprefix(f"/{self._token}").removeprefix("/")
        if name in _FILES:
            path, kind = _FILES[name]
            return HttpAnswer(path.read_bytes(), kind)
        if name == "figures.json":
            return HttpAnswer(figures(), _JSON)
        if name == "columns.json":
            return HttpAnswer(self._columns(request.query), _JSON)
        raise HttpRefused(404, "There is no such page.")

    def _columns(self, chosen: Mapping[str, str]) -> bytes:
        """The columns of a tab. A browser may send anything: what is unknown counts as not chosen."""
        self._asked = asyncio.get_running_loop().time()
        tab, process = chosen.get("tab", ""), chosen.get("process", "")
        seconds = WINDOWS.get(chosen.get("window", ""), WINDOWS["30 s"])
        pid = int(process) if process.isdecimal() and len(process) < 20 else None
        found = columns(
            self.history, HistoryView(self._now(), seconds, pid), tab if tab in TABS and tab != "page" else "overview"
        )
        return msgspec.json.encode({"interval": self._interval, **found}, enc_hook=lambda array: array.tolist())
