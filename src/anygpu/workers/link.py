"""The way between a worker and its child: whole messages, and with them descriptors of shared memory.

A message is its length in eight bytes, and then its bytes. The calling thread sends and waits; there is no other.
Where the system has socket pairs, both ends exist before the child does, and no other process can get in between.
Windows has none that a child can inherit: there the child connects to a port of this machine and shows a secret.
"""

from __future__ import annotations

import array
import hmac
import secrets
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Sequence

from anygpu.base.forks import fork_allowed

_HEAD = struct.Struct("<Q")
_ROOM = 64 << 10

#: Descriptors that fit into one message; Linux allows 253.
MOST_DESCRIPTORS = 64

HAS_SOCKET_PAIRS = sys.platform != "win32"
_DESCRIPTOR_SPACE = socket.CMSG_SPACE(4 * MOST_DESCRIPTORS) if HAS_SOCKET_PAIRS else 0


class LinkClosed(Exception):
    """The other end is gone."""


class Link:
    """One end. Not to be used by two threads at once."""

    def __init__(self, sock: socket.socket, *, takes_descriptors: bool = False) -> None:
        """Takes over a connected socket.

        With `takes_descriptors` the other end may send descriptors, which are kept in order. The buffer is reused for
        every message; `_filled` bytes of it have come, of which `_used` were handed out.
        """
        self._socket = sock
        self._takes_descriptors = takes_descriptors
        self._room = bytearray(_ROOM)
        #: How much of `_room` is there: a wait that is interrupted goes on where it was.
        self._filled = 0
        #: How much of that was given out as the last message.
        self._used = 0
        #: How many bytes were read, and are not counted in `_filled` yet.
        self._arrived: deque[int] = deque()
        self._descriptors: deque[int] = deque()
        self.passes_descriptors = HAS_SOCKET_PAIRS and sock.family == socket.AF_UNIX

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, data: bytes, descriptors: Sequence[int] = ()) -> None:
        """Raises `LinkClosed` when the other end is gone."""
        parts = [_HEAD.pack(len(data)), data]
        try:
            if descriptors:
                rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
                sent = self._socket.sendmsg(parts, [rights])
            elif hasattr(self._socket, "sendmsg"):
                sent = self._socket.sendmsg(parts)
            else:
                sent = 0
            whole = _HEAD.size + len(data)
            if sent < whole:
                self._socket.sendall(memoryview(b"".join(parts))[sent:])
        except OSError as error:
            raise LinkClosed(str(error)) from error

    def send_if_free(self, data: bytes) -> bool:
        """Send something small, unless that would have to wait; whether it was sent."""
        try:
            self._socket.send(_HEAD.pack(len(data)) + data, getattr(socket, "MSG_DONTWAIT", 0))
        except OSError:
            return False
        return True

    def receive(self, timeout: float | None = None) -> memoryview:
        """The next message, valid until the next call. Raises `TimeoutError`, or `LinkClosed` at the end."""
        if timeout is None:
            return self._receive(None)
        try:
            return self._receive(time.monotonic() + timeout)
        finally:
            self._socket.settimeout(None)

    def _receive(self, deadline: float | None) -> memoryview:
        """Returns the next whole message, as a view that is valid until the next call.

        Raises `LinkClosed` when the other end is gone, and `TimeoutError` at the deadline; a message that came in part
        stays.
        """
        if self._used:
            # What came with the message before last's end is the beginning of this one.
            rest = self._room[self._used : self._filled]
            left = len(rest)
            # Nothing is called from here on, so no interrupt comes in between.
            self._room[:left] = rest
            self._filled, self._used = left, 0
        self._absorb()
        wanted = self._wanted()
        while self._filled < wanted:
            if wanted > len(self._room):
                grown = bytearray(wanted)
                grown[: self._filled] = self._room[: self._filled]
                self._room = grown
            if deadline is not None:
                self._socket.settimeout(max(1e-3, deadline - time.monotonic()))
            with fork_allowed():
                self._fill()
            wanted = self._wanted()
        self._used = wanted
        return memoryview(self._room)[_HEAD.size : wanted]

    def _wanted(self) -> int:
        """How many bytes there must be before anything more can be said."""
        if self._filled < _HEAD.size:
            return _HEAD.size
        return _HEAD.size + int(_HEAD.unpack_from(self._room)[0])

    def _fill(self) -> None:
        """Read what the socket has into the buffer, and descriptors that come with it into their queue."""
        if len(self._room) > _ROOM and self._filled == 0:
            self._room = bytearray(_ROOM)
        free = memoryview(self._room)[self._filled :]
        try:
            if self._takes_descriptors:
                count, ancillary, _, _ = self._socket.recvmsg_into([free], _DESCRIPTOR_SPACE)
                for level, kind, data in ancillary:
                    if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                        received = array.array("i")
                        received.frombytes(data[: len(data) // received.itemsize * received.itemsize])
                        self._descriptors.extend(received)
            else:
                # In one step of C: an interrupt must not come between what was read, and how much that is.
                self._arrived.extend(map(self._socket.recv_into, (free,)))
                count = self._arrived[-1]
        except TimeoutError:
            raise
        except OSError as error:
            raise LinkClosed(str(error)) from error
        if not count:
            raise LinkClosed("the other end is closed")
        if self._arrived:
            self._absorb()
        else:
            self._filled += count

    def _absorb(self) -> None:
        """Count what has arrived; also what came for a caller who was interrupted then."""
        while self._arrived:
            self._filled += self._arrived[0]
            del self._arrived[0]

    def next_descriptor(self) -> int:
        """The first that has come and was not taken yet; it is the caller's to close."""
        if not self._descriptors:
            raise LinkClosed("a descriptor was announced and did not come")
        return self._descriptors.popleft()

    def shut_down(self) -> None:
        """Close it for both ends, also for a thread that is waiting there."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return

    def close(self) -> None:
        """Close this end only. The other end does not notice while another process holds this one too."""
        self._socket.close()


class Invitation:
    """How a child is to reach its worker: told in its request, and taken up once."""

    def __init__(self, *, by_port: bool = not HAS_SOCKET_PAIRS) -> None:
        """Makes a way for one child: a pair of sockets that it inherits, or a port of this machine and a secret."""
        self._theirs: socket.socket | None = None
        self._listening: socket.socket | None = None
        if by_port:
            self._secret = secrets.token_hex(16)
            self._listening = socket.create_server(("127.0.0.1", 0), backlog=1)
            self.address = f"port {self._listening.getsockname()[1]} {self._secret}"
            self._ours: socket.socket | None = None
        else:
            self._ours, self._theirs = socket.socketpair()
            self.address = f"descriptor {self._theirs.fileno()}"

    @property
    def inherited(self) -> tuple[int, ...]:
        """The descriptors that the child must inherit."""
        return (self._theirs.fileno(),) if self._theirs is not None else ()

    def accepted(self, timeout: float = 30.0) -> Link:
        """Our end, once the child has been started."""
        if self._theirs is not None:
            self._theirs.close()
        if self._listening is not None:
            self._ours = _let_in(self._listening, self._secret, timeout)
        if self._ours is None:
            raise LinkClosed("the invitation was taken back")
        return Link(self._ours)

    def take_back(self) -> None:
        for each in (self._ours, self._theirs, self._listening):
            if each is not None:
                each.close()


def taken_up(address: str) -> Link:
    """The child's end."""
    kind, place, *secret = address.split()
    if kind == "descriptor":
        return Link(socket.socket(fileno=int(place)), takes_descriptors=True)
    sock = socket.create_connection(("127.0.0.1", int(place)), timeout=30.0)
    sock.settimeout(None)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.sendall(secret[0].encode())
    return Link(sock)


def _let_in(listening: socket.socket, secret: str, timeout: float) -> socket.socket:
    """Accept the peer that sends the secret; any local process can connect."""
    deadline = time.monotonic() + timeout
    with listening:
        while True:
            listening.settimeout(max(1e-3, deadline - time.monotonic()))
            sock, _ = listening.accept()
            sock.settimeout(max(1e-3, deadline - time.monotonic()))
            shown = sock.recv(len(secret), socket.MSG_WAITALL)
            if hmac.compare_digest(shown, secret.encode()):
                sock.settimeout(None)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return sock
            sock.close()
