"""Looks at the observed processes of this user: finds them, and asks each what it is doing.

Processes end whenever they like. What one that has ended leaves in the folder is removed; one that does not answer in
time may be busy, and is asked again.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from anygpu.base.own_files import read_file
from anygpu.errors import AnyGPUError
from anygpu.observe.answering import LoopbackListener, listener_of
from anygpu.observe.peers import peer_is_this_user
from anygpu.observe.snapshot import Snapshot
from anygpu.observe.socket_folder import (
    PORT,
    SOCKET,
    SocketFolderRefused,
    checked,
    process_of,
    remove_refused,
    socket_folders,
)
from anygpu.observe.wire import HEAD, MOST_ANSWER, Question, Refused, answer_of, framed, length_of

#: How long a process may take to answer.
DEADLINE = 1.0
_MOST_FILE = 4096


class NoAnswer(AnyGPUError):
    """An observed process has not answered."""

    #: Whether it has ended, so that asking again is of no use.
    ended: bool

    def __init__(self, message: str, *, ended: bool = False) -> None:
        self.ended = ended
        super().__init__(message)


class ObservedProcess:
    """A process of this user that answers."""

    def __init__(self, path: Path) -> None:
        #: Its socket, or the file that says where it listens.
        self.path = path
        #: As its file is named; within a container, the number there.
        self.pid = process_of(path.name) or 0

    def __repr__(self) -> str:
        return f"<observed process {self.pid}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObservedProcess) and other.path == self.path

    def __hash__(self) -> int:
        return hash(self.path)

    def ask(self, since: int | None = 0, *, deadline: float = DEADLINE) -> Snapshot:
        """What it is doing, with the single calls after that number; `None` for no single calls.

        Raises `NoAnswer` when it has ended, when it takes longer than `deadline` seconds, and when it answers nonsense.
        """
        latest = time.monotonic() + deadline
        try:
            with self._connected(latest) as (connection, secret):
                connection.sendall(framed(Question(since, secret.question_token)))
                length = length_of(_received(connection, HEAD, latest), MOST_ANSWER)
                answer = answer_of(_received(connection, length, latest))
        except TimeoutError:
            raise NoAnswer(
                f"process {self.pid} has not answered within {deadline:g} s: it is busy or stopped"
            ) from None
        except ConnectionRefusedError:
            ended = remove_refused(self.path)
            raise NoAnswer(f"process {self.pid} {'has ended' if ended else 'takes no question'}", ended=ended) from None
        except (FileNotFoundError, ConnectionError):
            raise NoAnswer(f"process {self.pid} has ended", ended=True) from None
        except OSError as error:
            raise NoAnswer(f"process {self.pid} cannot be asked: {error}") from None
        except Refused as error:
            raise NoAnswer(f"process {self.pid} has answered with {error}") from None
        if not hmac.compare_digest(answer.token.encode(), secret.answer_token.encode()):
            raise NoAnswer(f"process {self.pid} has ended, and another one listens in its place", ended=True)
        return answer.snapshot

    @contextlib.contextmanager
    def _connected(self, latest: float) -> Iterator[tuple[socket.socket, LoopbackListener]]:
        with contextlib.ExitStack() as opened:
            if self.path.suffix == PORT:
                secret = listener_of(read_file(self.path, _MOST_FILE) or b"")
                if secret is None:
                    raise FileNotFoundError(self.path)
                address = ("127.0.0.1", secret.port)
                connection = opened.enter_context(socket.create_connection(address, _left(latest)))
            else:
                secret = LoopbackListener(0, "", "")
                connection = opened.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
                connection.settimeout(_left(latest))
                _connect(connection, self.path, latest)
                if not peer_is_this_user(connection):
                    raise Refused("the voice of another user")
            yield connection, secret


def observed_processes(*, own: bool = False) -> list[ObservedProcess]:
    """Those of this user, by their numbers; without this one itself unless it is wanted.

    A process that was killed is among them until it is asked.

    Raises `SocketFolderRefused` if the only folder where they could meet is not this user's alone.
    """
    found: list[ObservedProcess] = []
    for place in _usable_places():
        try:
            names = os.listdir(place)  # noqa: PTH208 - names are enough
        except OSError:
            continue
        for name in names:
            path = place / name
            if process_of(name) is None or path.suffix not in (SOCKET, PORT):
                continue
            if own or process_of(name) != os.getpid():
                found.append(ObservedProcess(path))
    return sorted(found, key=lambda each: each.pid)


def _usable_places() -> list[Path]:
    usable, refusal = [], None
    for place in socket_folders():
        try:
            if checked(place) is not None:
                usable.append(place)
        except SocketFolderRefused as error:
            refusal = refusal or error
    if not usable and refusal is not None:
        raise refusal
    return usable


def _connect(connection: socket.socket, path: Path, latest: float) -> None:
    """A process with too many connections has none to give at the moment: that is no end, and worth another try."""
    while True:
        try:
            connection.connect(os.fspath(path))
            return
        except BlockingIOError:
            time.sleep(min(0.01, _left(latest)))


def _left(latest: float) -> float:
    left = latest - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _received(connection: socket.socket, count: int, latest: float) -> bytearray:
    """Exactly so many bytes."""
    parts = bytearray()
    while len(parts) < count:
        connection.settimeout(_left(latest))
        part = connection.recv(min(count - len(parts), 1 << 18))
        if not part:
            raise ConnectionResetError("it ended in the middle")
        parts += part
    return parts
