"""Serves the page to the browser of this user, and to nobody else.

It listens on the loopback address. All it has is under a secret in the path, which only who has started it knows;
whoever comes with the name of another host, or from the page of another, is refused before anything is looked up.
Everything the page needs comes from here: it works without a network.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import secrets
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bokeh.application import Application
from bokeh.application.handlers.function import FunctionHandler
from bokeh.server.server import BaseServer
from bokeh.server.tornado import BokehTornado
from bokeh.server.views.session_handler import SessionHandler
from tornado.httpserver import HTTPServer
from tornado.httputil import HTTPHeaders, HTTPServerRequest
from tornado.ioloop import IOLoop
from tornado.web import OutputTransform, RequestHandler

from anygpu.errors import AnyGPUError
from anygpu.observe.dashboard.figures import figures
from anygpu.observe.dashboard.history import History
from anygpu.observe.dashboard.page import Page
from anygpu.observe.dashboard.source import Source

ADDRESS = "127.0.0.1"
#: How often processes are asked, in seconds, while somebody looks and while nobody does.
INTERVAL, IDLE_INTERVAL = 0.5, 2.0
#: What a browser may send at most: it has nothing to say but what was chosen.
_MOST_MESSAGE, _MOST_HEADERS, _MOST_BODY = 1 << 18, 1 << 14, 1 << 14
#: A connection that says nothing is closed after so many seconds.
_PATIENCE = 30.0

_HERE = Path(__file__).parent
#: What the page is made of, beside Bokeh's own script.
_FILES = {"page.css": "text/css", "page.js": "text/javascript"}

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class PortTaken(AnyGPUError):
    """The dashboard cannot listen on the port."""


class Dashboard:
    """A server that follows what a source tells. For one thread, that of its event loop."""

    def __init__(
        self, source: Source, *, port: int = 0, interval: float = INTERVAL, now: Callable[[], float] = time.time
    ) -> None:
        self._source, self._now, self._interval = source, now, interval
        self._token = secrets.token_urlsafe(24)
        self.history = History()
        #: Those that are open.
        self.pages: set[Page] = set()
        # It takes a while: not when a browser asks for it.
        figures()
        try:
            self._socket = socket.create_server((ADDRESS, port), backlog=64)
        except OSError as error:
            why = error.strerror or str(error)
            raise PortTaken(
                f"the dashboard cannot listen on port {port}: {why}. Leave out --port for a free one."
            ) from None
        self._socket.setblocking(False)
        self.port: int = self._socket.getsockname()[1]
        self.url = f"http://{ADDRESS}:{self.port}/{self._token}/"

    async def run(self, ready: Callable[[], None] = lambda: None) -> None:
        """Until it is cancelled."""
        # It warns of every browser that is closed.
        logging.getLogger("bokeh").setLevel(logging.ERROR)
        application = _Gate(
            {"/app": Application(FunctionHandler(self._open))},
            hosts=frozenset(f"{host}:{self.port}" for host in (ADDRESS, "localhost")),
            token=self._token,
        )
        http = HTTPServer(
            application,
            idle_connection_timeout=_PATIENCE,
            body_timeout=_PATIENCE,
            max_header_size=_MOST_HEADERS,
            max_body_size=_MOST_BODY,
        )
        http.add_socket(self._socket)
        server = BaseServer(IOLoop.current(), application, http)
        server.start()
        try:
            ready()
            await self._follow()
        finally:
            server.stop()
            await http.close_all_connections()

    def _open(self, document: Any) -> None:
        page = Page(self.history, self._now)
        page.open(document, self.pages.discard)
        self.pages.add(page)

    async def _follow(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            begin = loop.time()
            # Asking waits for processes: not on the thread that answers browsers.
            snapshots = await loop.run_in_executor(None, self._source.snapshots, self.history.since())
            self.history.add(snapshots, self._now())
            for page in list(self.pages):
                page.ask_for_update()
            pause = self._interval if self.pages else max(self._interval, IDLE_INTERVAL)
            while (left := begin + pause - loop.time()) > 0:
                await asyncio.sleep(min(left, self._interval))
                if self.pages:
                    pause = self._interval


class _Gate(BokehTornado):  # type: ignore[misc]
    """Looks at every request before anything else does, those for files and web sockets included."""

    def __init__(self, applications: dict[str, Application], *, hosts: frozenset[str], token: str) -> None:
        self._hosts, self._token = hosts, token
        super().__init__(
            applications,
            prefix=f"/{token}",
            extra_patterns=[
                ("/", _PageHandler, {"application_context": None, "bokeh_websocket_path": f"/{token}/app/ws"}),
                *((f"/{name}", _FileHandler, {"name": name}) for name in _FILES),
                ("/figures.json", _FiguresHandler),
            ],
            extra_websocket_origins=sorted(hosts),
            secret_key=secrets.token_bytes(32),
            sign_sessions=True,
            use_index=False,
            include_headers=[],
            include_cookies=[],
            websocket_max_message_size_bytes=_MOST_MESSAGE,
            ico_path="none",
            transforms=[_Headers],
            # Paths have the secret in them.
            log_function=lambda handler: None,
        )

    def find_handler(self, request: HTTPServerRequest, **options: Any) -> Any:
        why = self._refusal(request)
        if why is not None:
            return self.get_handler_delegate(request, _Refusal, {"why": why})
        return super().find_handler(request, **options)

    def new_connection(self, protocol: Any, socket: Any, application_context: Any, session: Any) -> Any:
        # A change is several small pieces, of which each would wait until the browser has confirmed the last.
        socket.set_nodelay(True)
        return super().new_connection(protocol, socket, application_context, session)

    def _refusal(self, request: HTTPServerRequest) -> str | None:
        if request.headers.get_list("Host") not in [[host] for host in self._hosts]:
            return "This address is not the dashboard's."
        origins = request.headers.get_list("Origin") + request.headers.get_list("Sec-Websocket-Origin")
        if any(origin.removeprefix("http://") not in self._hosts for origin in origins):
            return "Another page asked for the dashboard."
        token = request.path.split("/")[1] if request.path.startswith("/") else ""
        if not hmac.compare_digest(token.encode(errors="replace"), self._token.encode()):
            return "Open the dashboard with the whole address that it printed: it has a secret in it."
        return None


class _Refusal(RequestHandler):  # type: ignore[misc]
    def initialize(self, why: str) -> None:
        self._why = why

    def prepare(self) -> None:
        self.set_status(403)
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.finish(self._why + "\n")


class _Headers(OutputTransform):  # type: ignore[misc]
    """Of every answer."""

    def __init__(self, request: HTTPServerRequest) -> None:
        super().__init__(request)

    def transform_first_chunk(
        self, status_code: int, headers: HTTPHeaders, chunk: bytes, finishing: bool
    ) -> tuple[int, HTTPHeaders, bytes]:
        for name, value in _HEADERS.items():
            headers[name] = value
        del headers["Server"]
        return status_code, headers, chunk


class _PageHandler(SessionHandler):  # type: ignore[misc]
    """The page, with a session of its own. It has no script within: what the script needs is data."""

    def prepare(self) -> None:
        self.application_context = self.application._applications["/app"]

    async def get(self) -> None:
        session = await self.get_session()
        roots = {root.id: root.name for root in session.document.roots}
        item = {"token": session.token, "roots": roots, "root_ids": list(roots), "use_for_title": False}
        data = json.dumps({"item": item, "path": f"{self.application.prefix}/app"})
        page = (_HERE / "page.html").read_text()
        self.set_header("Content-Type", "text/html; charset=utf-8")
        # Nothing of a user's is in it; whatever it is, it cannot end the element that it is in.
        self.write(page.replace("{{session}}", data.replace("<", "\\u003c")))


class _FileHandler(RequestHandler):  # type: ignore[misc]
    def initialize(self, name: str) -> None:
        self._name = name

    def get(self) -> None:
        self.set_header("Content-Type", f"{_FILES[self._name]}; charset=utf-8")
        self.write((_HERE / self._name).read_bytes())


class _FiguresHandler(RequestHandler):  # type: ignore[misc]
    def get(self) -> None:
        self.set_header("Content-Type", "application/json; charset=utf-8")
        self.write(figures())
