"""Servers that give every connection one answer; and the one that tells this user what the process is doing.

Nothing can be changed from outside: there is one question, and the answer is a `Snapshot`. A client that sends anything
else, too much or too slowly is cut off, without an effect on others. The thread sleeps until a question comes.
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
from pathlib import Path
from typing import Any

import msgspec

from anygpu.observe.snapshot import Snapshot
from anygpu.observe.sockets import (
    HAS_UNIX_SOCKETS,
    HEAD,
    MOST_QUESTION,
    NEW,
    PORT,
    SOCKET,
    Answer,
    Question,
    Refused,
    framed,
    length_of,
    listening_folder,
    new_name,
    peer_is_this_user,
    question_of,
    remove_leftovers,
)

#: Seconds for a question to arrive, and for its answer to be read.
DEADLINE = 5.0
#: Connections that are open at once. One more ends the oldest of them, so that idle clients keep no other out.
MOST_CLIENTS = 16

_log = logging.getLogger(__name__)
_open: weakref.WeakSet[AnswerServer] = weakref.WeakSet()


class AnswerServer:
    """Gives each connection of a listener the bytes that `answer` returns, and closes it.

    `answer` may raise `Refused`, and has to give up itself on requests that do not arrive.
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
        """Answer within the block."""
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
        except (Refused, OSError, asyncio.IncompleteReadError, TimeoutError):
            pass  # it is no request, or the other side is gone or does not read
        except Exception:  # noqa: BLE001 - whatever is wrong with one answer, the next may be asked for
            _log.exception("this process could not say what it is doing")
        finally:
            self.connections.pop(writer, None)
            writer.transport.abort()


class ServerThread:
    """Runs a server in a thread of its own until it is closed."""

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
        """Answer no more, and wait for the end of the thread. May be called twice."""
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
    """Answers until it is closed. Raises `SocketFolderRefused` or OSError where it cannot listen."""

    def __init__(
        self,
        take: Callable[[int | None], Snapshot],
        *,
        unix: bool = HAS_UNIX_SOCKETS,
        deadline: float = DEADLINE,
        most_clients: int = MOST_CLIENTS,
    ) -> None:
        """`take` makes the snapshot with the calls after a number."""
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
        """May be called twice, and in a forked child, where it only lets go of what is the parent's."""
        if self._process != os.getpid():
            self.server.listener.close()
            return
        self.path.unlink(missing_ok=True)
        self._running.close(self._deadline)

    def _listen(self, opened: contextlib.ExitStack, backlog: int) -> tuple[Path, socket.socket]:
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
        if self._unix and not peer_is_this_user(writer.get_extra_info("socket")):
            raise Refused("another user")
        async with asyncio.timeout(self._deadline):
            length = length_of(await reader.readexactly(HEAD), MOST_QUESTION)
            question = question_of(await reader.readexactly(length))
        return self._answer_to(question)

    def _answer_to(self, question: Question) -> bytes:
        if not hmac.compare_digest(question.token.encode(), self._secrets.question_token.encode()):
            raise Refused("wrong token")
        return framed(Answer(snapshot=self._take(question.since), token=self._secrets.answer_token))


def listener_of(content: bytes) -> LoopbackListener | None:
    """Parse a file of the folder; `None` if it is anything else."""
    fields: Any = None
    with contextlib.suppress(msgspec.MsgspecError, ValueError):
        fields = msgspec.json.decode(content, type=LoopbackListener)
    return fields if isinstance(fields, LoopbackListener) and 0 < fields.port < 1 << 16 else None
