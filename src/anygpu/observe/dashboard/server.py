"""Serves the dashboard to the browser of this user, and to no other.

Everything is under a secret in the path, which is printed where the dashboard is started; requests with the name of
another host, or from another page, are refused before anything is looked up. The page loads nothing from elsewhere, and
asks again and again for the columns of the tab that it shows: the server keeps nothing of a browser.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, Protocol

import bokeh
import msgspec

from anygpu.errors import AnyGPUError
from anygpu.observe.dashboard import panels, tables
from anygpu.observe.dashboard.figures import figures
from anygpu.observe.dashboard.history import History
from anygpu.observe.dashboard.panels import WINDOWS, View
from anygpu.observe.local_http import HOST, Answer, LocalServer, Refused, Request
from anygpu.observe.looking import NoAnswer, ObservedProcess, observed_processes
from anygpu.observe.snapshot import Snapshot

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

Panel = Callable[[History, View], Any]

#: The columns of each tab; those of "page" are sent with every tab.
TABS: dict[str, dict[str, Panel]] = {
    "page": {"tiles": tables.tiles, "notes": tables.notes, "processes": tables.processes, "problems": tables.problems},
    "overview": {
        "functions": tables.functions,
        "timeline": panels.calls,
        "rate": lambda history, view: panels.process_lines(history, view, panels.rate),
        "load": lambda history, view: panels.device_lines(history, view, lambda one: one.load),
    },
    "devices": {
        "devices": tables.devices,
        "utilisation": lambda history, view: panels.device_lines(history, view, lambda one: one.load),
        "memory": lambda history, view: panels.device_lines(history, view, lambda one: one.memory),
        "temperature": lambda history, view: panels.device_lines(history, view, lambda one: one.temperature),
        "power": lambda history, view: panels.device_lines(history, view, lambda one: one.power),
        "owners": panels.owners,
    },
    "queue": {
        "lanes": tables.lanes,
        "tenants": tables.tenants,
        "waiting": lambda history, view: panels.process_lines(history, view, panels.waiting),
        "batches": lambda history, view: panels.process_lines(history, view, panels.tasks_per_launch),
    },
    "predictions": {"fits": tables.fits, "steps": tables.steps, "predictions": panels.predictions},
    "problems": {"advice": tables.advice},
}


def columns(history: History, view: View, tab: str) -> dict[str, Any]:
    """The data of all panels of a tab, by name."""
    return {name: panel(history, view) for each in ("page", tab) for name, panel in TABS[each].items()}


class PortTaken(AnyGPUError):
    """The dashboard cannot listen on the port."""


class Source(Protocol):
    """Asks processes what they are doing."""

    def snapshots(self, since: Mapping[int, int]) -> Mapping[int, Snapshot | None]:
        """The answers by process id; `None` for a process that has not answered.

        `since` has the number of the newest call that is known of each.
        """
        ...


class ObservedProcesses:
    """Asks all processes of this user. For one thread at a time."""

    def __init__(self, find: Callable[[], Sequence[ObservedProcess]] = observed_processes) -> None:
        self._find = find
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="anygpu dashboard")
        self._asked: dict[int, Future[Snapshot]] = {}

    def snapshots(self, since: Mapping[int, int]) -> dict[int, Snapshot | None]:
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
    """A server that follows what a source tells. For one thread, that of its event loop."""

    def __init__(
        self, source: Source, *, port: int = 0, interval: float = INTERVAL, now: Callable[[], float] = time.time
    ) -> None:
        self._source, self._now, self._interval = source, now, interval
        self._token = secrets.token_urlsafe(24)
        self.history = History()
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

    def _check(self, request: Request) -> None:
        if request.hosts not in [[host] for host in self._hosts]:
            raise Refused(403, "This address is not the dashboard's.")
        if any(origin.removeprefix("http://") not in self._hosts for origin in request.origins):
            raise Refused(403, "Another page asked for the dashboard.")
        token = request.path.split("/")[1] if request.path.startswith("/") else ""
        if not hmac.compare_digest(token.encode(errors="replace"), self._token.encode()):
            raise Refused(403, "Open the dashboard with the whole address that it printed: it has a secret in it.")

    def _respond(self, request: Request) -> Answer:
        name = request.path.removeprefix(f"/{self._token}").removeprefix("/")
        if name in _FILES:
            path, kind = _FILES[name]
            return Answer(path.read_bytes(), kind)
        if name == "figures.json":
            return Answer(figures(), _JSON)
        if name == "columns.json":
            return Answer(self._columns(request.query), _JSON)
        raise Refused(404, "There is no such page.")

    def _columns(self, chosen: Mapping[str, str]) -> bytes:
        """The columns of a tab. A browser may send anything: what is unknown counts as not chosen."""
        self._asked = asyncio.get_running_loop().time()
        tab, process = chosen.get("tab", ""), chosen.get("process", "")
        seconds = WINDOWS.get(chosen.get("window", ""), WINDOWS["30 s"])
        pid = int(process) if process.isdecimal() and len(process) < 20 else None
        found = columns(
            self.history, View(self._now(), seconds, pid), tab if tab in TABS and tab != "page" else "overview"
        )
        return msgspec.json.encode({"interval": self._interval, **found}, enc_hook=lambda array: array.tolist())
