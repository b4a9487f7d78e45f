"""Idle connections to the servers of a cluster: when one of these dies, its kernel says so at once.

Ray asks its machines every few seconds and is patient with them: it takes a quarter of a minute to say that one is gone
that was killed, and a minute for one that is out of reach. A connection that nothing is sent through is closed within
milliseconds when the server's process ends, and within seconds when no packet passes any more. Nothing is said or read
through it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Collection

#: When nothing passes: the first question of the kernel, the time between the next ones, and how many may be lost.
KEEPALIVE_IDLE, KEEPALIVE_EVERY, KEEPALIVE_LOST = 2, 1, 4
#: What connecting may take, and when it is tried again.
CONNECT_SECONDS, AGAIN_SECONDS = 1.0, 0.25
#: When connecting to a server is tried again that has never answered.
UNSEEN_SECONDS = 5.0


class _Line:
    def __init__(self, name: str, host: str, port: int) -> None:
        self.name = name
        self.host, self.port = host, port
        self.socket: socket.socket | None = None
        self.is_connected = False
        #: Whether the server counts as being there: also while a connection that it has closed is made anew, and as
        #: long as there never was one, as where a firewall does not want it.
        self.is_up = True
        self.was_up = False
        #: When connecting is given up, or tried again.
        self.until = 0.0


class Lifelines:
    """A thread with one connection to each server that is watched. Thread-safe."""

    def __init__(self, when_changed: Callable[[str, str | None], None]) -> None:
        """`when_changed` is called on the thread: with a name, and with why that server is gone, or `None`: it is back.

        It must not wait for anything.
        """
        self._tell = when_changed
        self._lock = threading.Lock()
        self._lines: dict[str, _Line] = {}
        self._selector = selectors.DefaultSelector()
        self._woken, self._wake = socket.socketpair()
        self._woken.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ)
        threading.Thread(target=self._watch, name="anygpu-lifelines", daemon=True).start()

    def watch(self, name: str, host: str, port: int) -> None:
        """From now on, if it is not watched already. A server counts as being there until the opposite is known."""
        with self._lock:
            if name not in self._lines:
                self._lines[name] = _Line(name, host, port)
                self._wake.send(b"\0")

    def forget(self, name: str) -> None:
        """Watch it no more."""
        with self._lock:
            line = self._lines.pop(name, None)
            if line is not None:
                self._close(line)

    def keep(self, names: Collection[str]) -> None:
        """Watch no others any more."""
        for name in list(self._lines):
            if name not in names:
                self.forget(name)

    def is_gone(self, name: str) -> bool:
        """Whether a server that is watched is not there."""
        line = self._lines.get(name)
        return line is not None and not line.is_up

    # -- on the thread

    def _watch(self) -> None:
        while True:
            with self._lock:
                now = time.monotonic()
                news = [self._connect(line, now) for line in self._lines.values() if self._is_due(line, now)]
                until = min((each.until for each in self._lines.values() if not each.is_connected), default=now + 60)
            self._say(news)
            ready = self._selector.select(max(0.0, until - time.monotonic()))
            with self._lock:
                news = [self._look(key.data) for key, _ in ready if key.data is not None]
                with contextlib.suppress(BlockingIOError):
                    self._woken.recv(4096)
            self._say(news)

    def _is_due(self, line: _Line, now: float) -> bool:
        return not line.is_connected and now >= line.until

    def _connect(self, line: _Line, now: float) -> tuple[str, str | None] | None:
        """Begin to connect. The news, if the time of an earlier attempt is over."""
        if line.socket is not None:
            self._close(line)
            line.until = now + AGAIN_SECONDS
            return self._down(line, "its machine does not answer")
        line.until = now + CONNECT_SECONDS
        try:
            line.socket = made = _keeping_alive(socket.socket(_family(line.host), socket.SOCK_STREAM))
            made.setblocking(False)
            code = made.connect_ex((line.host, line.port))
        except OSError as error:
            code = error.errno or errno.EIO
        if code in (0, errno.EINPROGRESS) and line.socket is not None:
            self._selector.register(line.socket, selectors.EVENT_WRITE, line)
            return None
        return self._failed(line, code)

    def _look(self, line: _Line) -> tuple[str, str | None] | None:
        """Something happened to the connection."""
        if line.socket is None:
            return None
        code = line.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if not line.is_connected:
            if code:
                return self._failed(line, code)
            line.is_connected = True
            self._selector.modify(line.socket, selectors.EVENT_READ, line)
            return self._up(line)
        if not code:
            try:
                if line.socket.recv(4096):
                    return None  # a greeting, which nobody answers
            except BlockingIOError:
                return None
            except OSError as error:
                code = error.errno or errno.EIO
        self._close(line)
        if code in (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH):
            return self._failed(line, code)
        # Closed by a server that waits for a greeting no longer, or that is gone: whether one answers will tell.
        line.until = 0.0
        return None

    def _failed(self, line: _Line, code: int) -> tuple[str, str | None] | None:
        self._close(line)
        line.until = time.monotonic() + AGAIN_SECONDS
        return self._down(line, f"its machine does not answer ({os.strerror(code)})")

    def _down(self, line: _Line, why: str) -> tuple[str, str | None] | None:
        if not line.was_up:
            line.until = time.monotonic() + UNSEEN_SECONDS
            return None
        was_up, line.is_up = line.is_up, False
        return (line.name, why) if was_up else None

    def _up(self, line: _Line) -> tuple[str, str | None] | None:
        was_up, line.is_up, line.was_up = line.is_up, True, True
        return None if was_up else (line.name, None)

    def _close(self, line: _Line) -> None:
        if line.socket is not None:
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(line.socket)
            line.socket.close()
        line.socket, line.is_connected = None, False

    def _say(self, news: list[tuple[str, str | None] | None]) -> None:
        """Without the lock: who is told may ask."""
        for each in news:
            if each is not None:
                self._tell(*each)


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _keeping_alive(made: socket.socket) -> socket.socket:
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # macOS has another name for the first of them.
    for names, value in (
        (("TCP_KEEPIDLE", "TCP_KEEPALIVE"), KEEPALIVE_IDLE),
        (("TCP_KEEPINTVL",), KEEPALIVE_EVERY),
        (("TCP_KEEPCNT",), KEEPALIVE_LOST),
    ):
        option = next((getattr(socket, name) for name in names if hasattr(socket, name)), None)
        if option is not None:
            made.setsockopt(socket.IPPROTO_TCP, option, value)
    return made
