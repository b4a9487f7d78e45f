"""Servers of an observed process: a socket for `anygpu top`, and HTTP on the loopback address.

`AnswerServer` gives every connection one answer and closes it; `ServerThread` runs one in a thread that sleeps until a
client comes. `Answering` is the one for `anygpu top`: there is one question, and the answer is a `Snapshot`. A client
that sends anything else, too much or too slowly is cut off, without an effect on others.

`LocalServer` speaks HTTP for metrics and the dashboard: it answers GET and nothing else, and a request has to be whole
within seconds and a few kilobytes. Pages of other sites, which a browser could be made to ask for us, are refused by
the headers `Host` and `Origin` before anything is looked up. Nothing can be changed from outside by any of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import os
import secrets
import socket
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import parse_qsl

import msgspec

from anygpu.errors import InvalidOption
from anygpu.observe.snapshot import Snapshot
from anygpu.observe.sockets import (
    HAS_UNIX_SOCKETS,
    HEAD,
    MOST_QUESTION,
    NEW,
    PORT,
    SOCKET,
    NoMessage,
    Question,
    SnapshotAnswer,
    framed,
    length_of,
    listening_folder,
    new_name,
    peer_is_this_user,
    question_of,
    remove_leftovers,
)
from anygpu.runtime.serving.limits import refusal_of_page

#: Seconds for a question to arrive, and for its answer to be read.
DEADLINE = 5.0
#: Connections that are open at once. One more ends the oldest of them, so that idle clients keep no other out.
MOST_CLIENTS = 16

_log = logging.getLogger("anygpu.observe")
_open: weakref.WeakSet[AnswerServer] = weakref.WeakSet()


class AnswerServer:
    """Gives each connection of a listener the bytes that `answer` returns, and closes it.

    `answer` may raise `NoMessage`, and has to give up itself on requests that do not arrive. `most_bytes` bounds what
    is buffered of a request; a connection beyond `most_connections` ends the oldest; a client that does not read its
    answer within `answer_seconds` is cut off. All of it runs on the event loop of the caller of `serving`.
    """

    def __init__(
        self,
        listener: socket.socket,
        answer: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[bytes]],
        *,
        most_bytes: int,
        most_connections: int,
        answer_seconds: float,
    ) -> None:
        listener.setblocking(False)
        self.listener = listener
        self._answer = answer
        self._most_bytes, self._most_connections = most_bytes, most_connections
        self._answer_seconds = answer_seconds
        #: Open connections, the oldest first.
        self.connections: dict[asyncio.StreamWriter, None] = {}
        _open.add(self)

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Accepts connections within the block, on the running event loop; at its end all of them are aborted."""
        server = await asyncio.start_server(self._connected, sock=self.listener, limit=self._most_bytes)
        try:
            yield
        finally:
            _open.discard(self)
            # A connection that was just accepted takes a few turns of the loop until it can be closed, and before
            # the server is: asyncio would lose it otherwise.
            with contextlib.suppress(NotImplementedError):  # Windows
                asyncio.get_running_loop().remove_reader(self.listener)
            for _ in range(5):
                for writer in list(self.connections):
                    writer.transport.abort()
                await asyncio.sleep(0)
            server.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers one connection. Errors of the client end it silently; ours are logged, and the server goes on."""
        try:
            if len(self.connections) >= self._most_connections:
                oldest = next(iter(self.connections))
                del self.connections[oldest]
                oldest.transport.abort()
            self.connections[writer] = None
            answer = await self._answer(reader, writer)
            async with asyncio.timeout(self._answer_seconds):
                writer.write(answer)
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (NoMessage, OSError, asyncio.IncompleteReadError, TimeoutError):
            pass  # it is no request, or the other side is gone or does not read
        except Exception:  # noqa: BLE001 - whatever is wrong with one answer, the next may be asked for
            _log.exception("this process could not say what it is doing")
        finally:
            self.connections.pop(writer, None)
            writer.transport.abort()


class ServerThread:
    """Runs a server in a daemon thread of its own until it is closed.

    Raises `RuntimeError` where the system has no more threads; the event loop is closed then.
    """

    def __init__(self, server: AnswerServer, name: str) -> None:
        self._server = server
        self._loop = asyncio.new_event_loop()
        self._over = asyncio.Event()
        self.thread = threading.Thread(target=self._work, name=name, daemon=True)
        try:
            self.thread.start()
        except RuntimeError:  # the system has no more threads
            self._loop.close()
            raise

    def close(self, seconds: float | None = None) -> None:
        """Answer no more, and wait for the end of the thread, `seconds` at most. May be called twice.

        It may also be called on the server's own thread, which then only is told to end.
        """
        with contextlib.suppress(RuntimeError):  # it is closed
            self._loop.call_soon_threadsafe(self._over.set)
        if threading.current_thread() is not self.thread:
            self.thread.join(seconds)

    def _work(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        async with self._server.serving():
            await self._over.wait()


def _forked() -> None:
    """A forked child has the sockets of its parent, and no thread that answers: they are not its own."""
    for server in list(_open):
        server.listener.close()
    _open.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class LoopbackListener(msgspec.Struct, frozen=True):
    """The address and secrets of a process without a Unix socket, as its file in the folder has them."""

    port: int
    #: Whoever asks shows the first, and is shown the second: so neither side takes a stranger for the other.
    question_token: str
    answer_token: str


class Answering:
    """Answers `anygpu top` and the dashboard, in a thread, until it is closed.

    It listens on a Unix socket in the private folder of this user; where there are none, on a port of the loopback
    address whose number and tokens are in a file there. Raises `SocketFolderRefused` or `OSError` where it cannot
    listen.
    """

    def __init__(
        self,
        take: Callable[[int | None], Snapshot],
        *,
        unix: bool = HAS_UNIX_SOCKETS,
        deadline: float = DEADLINE,
        most_clients: int = MOST_CLIENTS,
    ) -> None:
        """`take` makes the snapshot with the calls after a number, and is called on the server's thread.

        `deadline` is in seconds, for a question to arrive and for its answer to be read. On an error nothing is left in
        the folder.
        """
        self._take = take
        self._deadline = deadline
        self._unix = unix
        self._secrets = LoopbackListener(0, "", "")
        self._process = os.getpid()
        with contextlib.ExitStack() as opened:
            #: Its file in the folder.
            self.path, listener = self._listen(opened, most_clients)
            self.server = AnswerServer(
                listener,
                self._answer,
                most_bytes=MOST_QUESTION,
                most_connections=most_clients,
                answer_seconds=deadline,
            )
            self._running = ServerThread(self.server, "anygpu-observed")
            opened.pop_all()

    def close(self) -> None:
        """Removes the file and ends the thread, waiting `deadline` seconds at most.

        May be called twice, and in a forked child, where it only closes the child's copy of the socket.
        """
        if self._process != os.getpid():
            self.server.listener.close()
            return
        self.path.unlink(missing_ok=True)
        self._running.close(self._deadline)

    def _listen(self, opened: contextlib.ExitStack, backlog: int) -> tuple[Path, socket.socket]:
        """Opens the listener, and returns its file in the folder with its socket; `opened` undoes both.

        The file gets its final name by a rename once the listener accepts, and has mode 600.
        """
        place = listening_folder()
        remove_leftovers(place)
        temporary = place / (NEW + new_name(""))
        opened.callback(temporary.unlink, missing_ok=True)
        if self._unix:
            listener = opened.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            # Under another name until it listens: who finds a socket that does not listen takes its process for dead.
            listener.bind(os.fspath(temporary))
            temporary.chmod(0o600)
            listener.listen(backlog)
        else:
            listener = opened.enter_context(socket.create_server(("127.0.0.1", 0), backlog=backlog))
            self._secrets = LoopbackListener(
                listener.getsockname()[1], secrets.token_urlsafe(32), secrets.token_urlsafe(32)
            )
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(msgspec.json.encode(self._secrets))
        path = place / new_name(SOCKET if self._unix else PORT)
        temporary.rename(path)
        opened.callback(path.unlink, missing_ok=True)
        return path, listener

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        """Reads one question from a connection, and returns the framed answer. Raises `NoMessage` to other users."""
        if self._unix and not peer_is_this_user(writer.get_extra_info("socket")):
            raise NoMessage("another user")
        async with asyncio.timeout(self._deadline):
            length = length_of(await reader.readexactly(HEAD), MOST_QUESTION)
            question = question_of(await reader.readexactly(length))
        return self._answer_to(question)

    def _answer_to(self, question: Question) -> bytes:
        """The framed snapshot for a question. Raises `NoMessage` if its token is not the one in the file."""
        if not hmac.compare_digest(question.token.encode(), self._secrets.question_token.encode()):
            raise NoMessage("wrong token")
        return framed(SnapshotAnswer(snapshot=self._take(question.since), token=self._secrets.answer_token))


def listener_of(content: bytes) -> LoopbackListener | None:
    """Parses the file of a listener on the loopback address; `None` if it is anything else."""
    fields: Any = None
    with contextlib.suppress(msgspec.MsgspecError, ValueError):
        fields = msgspec.json.decode(content, type=LoopbackListener)
    return fields if isinstance(fields, LoopbackListener) and 0 < fields.port < 1 << 16 else None


#: Bytes of a request, and the seconds that it may take to arrive and its answer to leave.
MOST_BYTES, REQUEST_SECONDS, ANSWER_SECONDS = 8192, 5.0, 30.0
#: Connections that are open at once. For a new one, the oldest is closed.
MOST_CONNECTIONS = 32

HOST = "127.0.0.1"
TEXT = "text/plain; version=0.0.4; charset=utf-8"


class HttpRequest(NamedTuple):
    """A GET request: its path, its query, and the values of all its `Host` and `Origin` headers."""

    path: str
    query: dict[str, str]
    hosts: list[str]
    origins: list[str]


class HttpAnswer(NamedTuple):
    """The body, content type and status of an answer."""

    body: bytes
    type: str = TEXT
    status: int = 200


class HttpRefused(Exception):
    """A request that gets a status and a sentence instead of a page; `answer` is ready to be sent."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.answer = HttpAnswer(f"{message}\n".encode(), status=status)


class LocalServer(AnswerServer):
    """An HTTP/1.1 server on 127.0.0.1: `respond` returns the answer to a GET request, or raises `HttpRefused`.

    `check` comes before it, and raises `HttpRefused` for requests that must not learn anything, not even which pages
    there are. `headers` are added to every answer. Every connection is closed after one answer.
    """

    def __init__(
        self,
        respond: Callable[[HttpRequest], HttpAnswer],
        check: Callable[[HttpRequest], None],
        port: int,
        *,
        headers: dict[str, str] | None = None,
        request_seconds: float = REQUEST_SECONDS,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        """Binds the port; 0 is any that is free. Raises `OSError` or `ValueError` if it cannot be had."""
        self._respond, self._check = respond, check
        self._headers = {"Connection": "close", "X-Content-Type-Options": "nosniff", **(headers or {})}
        self._request_seconds = request_seconds
        if type(port) is not int or not 0 <= port <= 65535:
            raise ValueError("a port is a number from 0 to 65535")
        listener = socket.create_server((HOST, port))
        self.port: int = listener.getsockname()[1]
        super().__init__(
            listener,
            self._answer_request,
            most_bytes=MOST_BYTES,
            most_connections=MOST_CONNECTIONS,
            answer_seconds=answer_seconds,
        )

    async def _answer_request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        """Reads the head of a request, and returns the whole answer as bytes.

        A head that is late gets 408, one that is too long 431.
        """
        try:
            async with asyncio.timeout(self._request_seconds):
                answer = self._answer_to(await reader.readuntil(b"\r\n\r\n"))
        except TimeoutError:
            answer = HttpRefused(408, f"the request did not arrive within {self._request_seconds:g} s.").answer
        except asyncio.LimitOverrunError:
            answer = HttpRefused(431, f"a request has at most {MOST_BYTES} bytes.").answer
        return self._written(answer)

    def _answer_to(self, head: bytes) -> HttpAnswer:
        """The answer to the head of a request; errors become a status and a sentence.

        An unexpected exception is logged with its traceback, and the client gets 500 without it.
        """
        path = ""
        try:
            method, request = parse(head)
            self._check(request)
            path = request.path
            if method != "GET":
                raise HttpRefused(405, "only GET is allowed.")
            return self._respond(request)
        except HttpRefused as refused:
            return refused.answer
        except Exception:  # noqa: BLE001 - the next request is answered as well
            _log.exception("%s could not be answered", path)
            return HttpRefused(500, f"{path} could not be answered; the log has the reason.").answer

    def _written(self, answer: HttpAnswer) -> bytes:
        """The answer in the bytes of HTTP/1.1, with its length and the headers of every answer."""
        headers = {"Content-Type": answer.type, "Content-Length": len(answer.body), **self._headers}
        if answer.status == 405:
            headers["Allow"] = "GET"
        lines = [f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return "\r\n".join([*lines, "", ""]).encode() + answer.body


def parse(head: bytes) -> tuple[str, HttpRequest]:
    """The method and the request, from the bytes up to the empty line. Raises `HttpRefused` (400) for what is no HTTP.

    A body is never read: no method that has one is allowed.
    """
    try:
        first, *lines = head.decode("ascii").removesuffix("\r\n\r\n").split("\r\n")
        method, target, version = first.split(" ")
        headers = [(name.lower(), value.strip()) for name, value in (line.split(":", 1) for line in lines)]
    except ValueError:  # also what is not ASCII
        version = ""
    if version not in ("HTTP/1.0", "HTTP/1.1"):
        raise HttpRefused(400, "this is not a request of HTTP/1.1.")
    path, _, query = target.partition("?")
    hosts, origins = ([value for name, value in headers if name == wanted] for wanted in ("host", "origin"))
    return method, HttpRequest(path, dict(parse_qsl(query)), hosts, origins)


class MetricsServer:
    """Answers `GET /metrics` with the text, to programs of this machine, in a thread of its own until it is closed.

    It is a context manager. Raises `InvalidOption` if the port cannot be had; with port 0, `port` says which it became.
    """

    def __init__(
        self,
        text: Callable[[], str],
        port: int,
        *,
        request_seconds: float = REQUEST_SECONDS,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        self._text = text
        try:
            self._server = LocalServer(
                self._page, _check_program, port, request_seconds=request_seconds, answer_seconds=answer_seconds
            )
        except (OSError, ValueError) as error:
            raise InvalidOption(
                f"cannot serve metrics on port {port!r} of {HOST}: {error}. Pass another port=, or port=0 for any that "
                "is free."
            ) from None
        self.port = self._server.port
        self._running = ServerThread(self._server, "anygpu metrics")

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}/metrics"

    def close(self) -> None:
        """Answer no more. May be called twice."""
        self._running.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<MetricsServer at {self.url}>"

    def _page(self, request: HttpRequest) -> HttpAnswer:
        """The text of the metrics, made anew for each request; 404 for every other path."""
        if request.path != "/metrics":
            raise HttpRefused(404, "there is only /metrics.")
        return HttpAnswer(self._text().encode())


def _check_program(request: HttpRequest) -> None:
    """Refuses requests whose `Host` is not this machine, or that come from a page of another site."""
    reason = refusal_of_page(request.hosts, request.origins)
    if reason is not None:
        raise HttpRefused(403, reason)
