"""Answers those of this user who ask what the process is doing, on one thread that sleeps until somebody does.

Nothing can be changed from outside: there is one question, and the answer is a `Snapshot`. A connection has one
question and a few seconds. Who sends anything else, too much or too slowly is cut off, and nobody else notices.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
import os
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from anygpu.observe.peers import peer_is_this_user
from anygpu.observe.snapshot import Snapshot
from anygpu.observe.socket_folder import (
    HAS_UNIX_SOCKETS,
    NEW,
    PORT,
    SOCKET,
    listening_folder,
    new_name,
    remove_leftovers,
)
from anygpu.observe.wire import HEAD, MOST_QUESTION, Answer, Question, Refused, framed, length_of, question_of

#: Who asks may take so long for a question and for reading the answer, in all.
DEADLINE = 5.0
#: Connections that are open at once. One more ends the oldest of them, so that those who do nothing keep nobody out.
MOST_CLIENTS = 16
#: After the system had no descriptor left for a connection.
_PAUSE = 1.0

_log = logging.getLogger(__name__)


class LoopbackListener(msgspec.Struct, frozen=True):
    """Where a process listens that has no Unix socket, as its file in the folder says."""

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
        self._most_clients = most_clients
        self._unix = unix
        self._secrets = LoopbackListener(0, "", "")
        self._process = os.getpid()
        self._clients: dict[socket.socket, _Client] = {}
        self._listening_again_at: float | None = None
        self._ending = False
        with contextlib.ExitStack() as opened:
            #: What it is found by.
            self.path, self._listener = self._listen(opened)
            self._selector = opened.enter_context(selectors.DefaultSelector())
            self._wake, self._woken = (opened.enter_context(each) for each in socket.socketpair())
            self._selector.register(self._listener, selectors.EVENT_READ)
            self._selector.register(self._woken, selectors.EVENT_READ)
            self._thread = threading.Thread(target=self._serve, name="anygpu-observed", daemon=True)
            self._thread.start()
            opened.pop_all()

    def close(self) -> None:
        """May be called twice, and in a forked child, where it only lets go of what is the parent's."""
        if self._process == os.getpid():
            self._ending = True
            self.path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                self._wake.send(b"x")
            if self._thread is not threading.current_thread():
                self._thread.join(self._deadline)
            if self._thread.is_alive():  # in the middle of an answer: it ends after that
                return
        for each in (*self._clients, self._listener, self._wake, self._woken):
            each.close()
        self._clients.clear()
        self._selector.close()

    def _listen(self, opened: contextlib.ExitStack) -> tuple[Path, socket.socket]:
        place = listening_folder()
        remove_leftovers(place)
        temporary = place / (NEW + new_name(""))
        opened.callback(temporary.unlink, missing_ok=True)
        if self._unix:
            listener = opened.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            # Under another name until it listens: who finds a socket that does not listen takes its process for dead.
            listener.bind(os.fspath(temporary))
            temporary.chmod(0o600)
            listener.listen(self._most_clients)
        else:
            listener = opened.enter_context(socket.create_server(("127.0.0.1", 0), backlog=self._most_clients))
            self._secrets = LoopbackListener(
                listener.getsockname()[1], secrets.token_urlsafe(32), secrets.token_urlsafe(32)
            )
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(msgspec.json.encode(self._secrets))
        listener.setblocking(False)
        path = place / new_name(SOCKET if self._unix else PORT)
        temporary.rename(path)
        opened.callback(path.unlink, missing_ok=True)
        return path, listener

    # -- on the thread

    def _serve(self) -> None:
        while not self._ending:
            for key, _ in self._selector.select(self._seconds_to_next()):
                if key.fileobj is self._listener:
                    self._accept()
                elif isinstance(key.data, _Client):
                    self._go_on(key.data)
            self._end_overdue()

    def _seconds_to_next(self) -> float | None:
        moments = [client.latest for client in self._clients.values()]
        if self._listening_again_at is not None:
            moments.append(self._listening_again_at)
        return max(0.0, min(moments) - time.monotonic()) if moments else None

    def _end_overdue(self) -> None:
        now = time.monotonic()
        for client in [each for each in self._clients.values() if each.latest <= now]:
            self._drop(client)
        if self._listening_again_at is not None and self._listening_again_at <= now:
            self._listening_again_at = None
            self._selector.register(self._listener, selectors.EVENT_READ)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionError):
            return
        except OSError as error:  # no descriptor is left: the listener would be ready again and again
            _log.warning("this process cannot be observed for a moment: %s", error)
            self._selector.unregister(self._listener)
            self._listening_again_at = time.monotonic() + _PAUSE
            return
        if self._unix and not peer_is_this_user(connection):
            connection.close()
            return
        connection.setblocking(False)
        if len(self._clients) >= self._most_clients:
            self._drop(min(self._clients.values(), key=lambda each: each.latest))
        client = _Client(connection, time.monotonic() + self._deadline)
        self._clients[connection] = client
        self._selector.register(connection, selectors.EVENT_READ, client)

    def _go_on(self, client: _Client) -> None:
        try:
            if client.answer is None:
                question = client.read()
                if question is None:
                    return
                client.answer = memoryview(self._answer(question))
                self._selector.modify(client.connection, selectors.EVENT_WRITE, client)
            if client.write():
                self._drop(client)
        except (BlockingIOError, InterruptedError):
            return
        except (Refused, OSError):
            self._drop(client)
        except Exception:  # noqa: BLE001 - whatever is wrong with one answer, the next may be asked for
            _log.exception("this process could not say what it is doing")
            self._drop(client)

    def _answer(self, question: Question) -> bytes:
        if not hmac.compare_digest(question.token.encode(), self._secrets.question_token.encode()):
            raise Refused("wrong token")
        return framed(Answer(snapshot=self._take(question.since), token=self._secrets.answer_token))

    def _drop(self, client: _Client) -> None:
        if self._clients.pop(client.connection, None) is not None:
            self._selector.unregister(client.connection)
            client.connection.close()


class _Client:
    """One connection: a question is read, then an answer is written."""

    def __init__(self, connection: socket.socket, latest: float) -> None:
        self.connection = connection
        self.latest = latest
        self.answer: memoryview | None = None
        self._received = bytearray()

    def read(self) -> Question | None:
        """The question, once it is complete. Raises `Refused`, and OSError."""
        got = self._received
        wanted = HEAD if len(got) < HEAD else HEAD + length_of(got, MOST_QUESTION)
        part = self.connection.recv(wanted - len(got))
        if not part:
            raise Refused("it ended in the middle")
        got += part
        if len(got) < HEAD or len(got) < HEAD + length_of(got, MOST_QUESTION):
            return None
        return question_of(got[HEAD:])

    def write(self) -> bool:
        """Whether all of the answer is written."""
        assert self.answer is not None, "there is an answer to write"
        sent = self.connection.send(self.answer)
        self.answer = self.answer[sent:]
        return not self.answer


def listener_of(content: bytes) -> LoopbackListener | None:
    """What a file in the folder says; `None` for anything else."""
    fields: Any = None
    with contextlib.suppress(msgspec.MsgspecError, ValueError):
        fields = msgspec.json.decode(content, type=LoopbackListener)
    return fields if isinstance(fields, LoopbackListener) and 0 < fields.port < 1 << 16 else None
