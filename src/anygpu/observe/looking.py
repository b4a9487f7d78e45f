"""Looks at the observed processes of this user: finds them, and asks each what it is doing.

Processes end whenever they like. What one that has ended leaves in the folder is removed; one that does not answer in
time may be busy, and is asked again. `ObservedProcess` asks one of them once; `Following` asks all again and again, and
keeps their last two answers, from which `rates` and `processor_share` come.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from anygpu.base.own_files import read_file
from anygpu.errors import AnyGPUError
from anygpu.observe.servers import LoopbackListener, listener_of
from anygpu.observe.snapshot import Snapshot
from anygpu.observe.sockets import (
    HEAD,
    MOST_ANSWER,
    PORT,
    SOCKET,
    NoMessage,
    Question,
    SocketFolderRefused,
    answer_of,
    checked,
    framed,
    length_of,
    peer_is_this_user,
    process_of,
    remove_refused,
    socket_folders,
)

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
        """A snapshot, with the single calls after number `since`; `None` for no single calls.

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
        except NoMessage as error:
            raise NoAnswer(f"process {self.pid} has answered with {error}") from None
        if not hmac.compare_digest(answer.token.encode(), secret.answer_token.encode()):
            raise NoAnswer(f"process {self.pid} has ended, and another one listens in its place", ended=True)
        return answer.snapshot

    @contextlib.contextmanager
    def _connected(self, latest: float) -> Iterator[tuple[socket.socket, LoopbackListener]]:
        """A connection to the process, on its socket or loopback port, with the tokens of its file.

        Raises `NoMessage` if another user listens there, `OSError` if nothing does. `latest` is a time of
        `time.monotonic`.
        """
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
                    raise NoMessage("the voice of another user")
            yield connection, secret


def observed_processes(*, own: bool = False) -> list[ObservedProcess]:
    """The observed processes of this user, by number; without this process unless `own`.

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
    """The folders that exist and are private. Raises the first refusal if none is left because of it."""
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
    """Connects to a Unix socket, trying again while its backlog is full. Raises `TimeoutError` after `latest`.

    A process with too many pending connections is alive, so that this is no reason to call it ended.
    """
    while True:
        try:
            connection.connect(os.fspath(path))
            return
        except BlockingIOError:
            time.sleep(min(0.01, _left(latest)))


def _left(latest: float) -> float:
    """Seconds until a time of `time.monotonic`. Raises `TimeoutError` if it has passed."""
    left = latest - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _received(connection: socket.socket, count: int, latest: float) -> bytearray:
    """Exactly `count` bytes.

    Raises `ConnectionResetError` if the process closes earlier, `TimeoutError` after `latest`.
    """
    parts = bytearray()
    while len(parts) < count:
        connection.settimeout(_left(latest))
        part = connection.recv(min(count - len(parts), 1 << 18))
        if not part:
            raise ConnectionResetError("it ended in the middle")
        parts += part
    return parts


#: Processes that are asked at once, so that a silent one does not delay the others.
_AT_ONCE = 8
#: How long one that has ended is still shown.
FAREWELL = 10.0


class Look(NamedTuple):
    """One process, as it has last answered."""

    process: ObservedProcess
    #: The last answer, and the one before that; `None` if there was none.
    snapshot: Snapshot | None = None
    before: Snapshot | None = None
    #: Why there was no answer this time.
    trouble: str | None = None
    #: When it was found to have ended, by `time.monotonic`.
    ended: float | None = None
    #: Seconds that the answer took.
    seconds: float | None = None


class Rate(NamedTuple):
    """Calls of one function on one device between two answers, for each second."""

    calls: float
    #: Seconds that they took; more than 1 when several run at once.
    busy: float


class Following:
    """Looks at all processes whenever it is asked to. For one thread at a time.

    It asks several processes at once in threads of a pool, which `close` ends.
    """

    def __init__(
        self,
        *,
        deadline: float = DEADLINE,
        find: Callable[[], Sequence[ObservedProcess]] = observed_processes,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._deadline = deadline
        self._find = find
        self._clock = clock
        self._looks: dict[ObservedProcess, Look] = {}
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="anygpu-looking")

    def look(self) -> list[Look]:
        """Asks all processes, and returns their looks by process number.

        Those that have ended stay for `FAREWELL` seconds. Takes as long as the slowest answer, and `deadline` at most
        for each round of eight processes. A process that does not answer keeps its last snapshot, with the trouble
        beside it.
        """
        now = self._clock()
        known = self._looks
        alive = [each for each in self._find() if each not in known or known[each].ended is None]
        looks = list(self._pool.map(self._ask, [known.get(each, Look(each)) for each in alive]))
        # Those that were there and are not any more have said goodbye, and removed their own files.
        gone = [
            look if look.ended is not None else look._replace(ended=now, trouble=f"process {each.pid} has ended")
            for each, look in known.items()
            if each not in set(alive)
        ]
        kept = [
            look
            for look in (*looks, *gone)
            if look.ended is None or (look.snapshot is not None and now - look.ended < FAREWELL)
        ]
        self._looks = {look.process: look for look in kept}
        return sorted(kept, key=lambda look: look.process.pid)

    def close(self) -> None:
        """Ends the threads that ask, without waiting for answers."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _ask(self, look: Look) -> Look:
        """The look after one more question; on a pool's thread. Single calls are not asked for."""
        begin = self._clock()
        try:
            answer = look.process.ask(None, deadline=self._deadline)
        except NoAnswer as error:
            return look._replace(trouble=str(error), ended=self._clock() if error.ended else None, seconds=None)
        return Look(look.process, answer, look.snapshot, seconds=self._clock() - begin)


def rates(look: Look) -> dict[tuple[str, str], Rate]:
    """By function and device, calls and busy seconds a second between the last two answers.

    Empty after the first answer, and while the process does not answer. Never negative: a process that was observed
    anew counts from 0.
    """
    if look.snapshot is None or look.before is None or look.trouble is not None:
        return {}
    seconds = look.snapshot.time - look.before.time
    if seconds <= 0:
        return {}
    earlier = {(each.function, each.device): each for each in look.before.statistics.calls}
    found = {}
    for each in look.snapshot.statistics.calls:
        then = earlier.get((each.function, each.device))
        calls = each.calls - (then.calls if then is not None else 0)
        busy = each.seconds.total - (then.seconds.total if then is not None else 0.0)
        found[each.function, each.device] = Rate(max(0.0, calls / seconds), max(0.0, busy / seconds))
    return found


def processor_share(look: Look) -> float | None:
    """The share of one core that the process took between the last two answers; more than 1 for several threads."""
    if look.snapshot is None or look.before is None or look.trouble is not None:
        return None
    seconds = look.snapshot.time - look.before.time
    used = look.snapshot.process.processor_seconds - look.before.process.processor_seconds
    return max(0.0, used / seconds) if seconds > 0 else None
