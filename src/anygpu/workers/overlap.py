"""Transfers that overlap computing: the arguments of one call go over while the program of another one runs.

A worker runs one program at a time. But when a large call finds another large one running, it does not wait with its
arguments in hand: it uploads them through the child's side (`anygpu.workers.overlap`), waits for its turn with nothing
left to do but run, and downloads its results through the side as well, while the next call runs. Each call does that
on the thread of its own caller. So an error, a deadline or a lack of memory is always that of one call, and its phases
follow one another as ever.

At most one call waits with its arguments on the device. Whatever goes wrong on the way there is no error: the call then
waits for its turn, and goes the ordinary way.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from anygpu.base.forks import lock, rlock
from anygpu.base.interrupts import TryAcquire
from anygpu.base.typing import HostArray
from anygpu.engines.memory.resource import Block
from anygpu.errors import AllocationError, DeviceHung
from anygpu.program.primitives import Spec
from anygpu.workers import child_messages
from anygpu.workers.child_connection import ChildConnection
from anygpu.workers.child_messages import Attached, ChildTask, Envelope, InSegment, WireOperand, error_from_message
from anygpu.workers.link import MOST_DESCRIPTORS, Link, LinkClosed
from anygpu.workers.shared_memory import SegmentKind, SharedMemory, SharedSegment
from anygpu.workers.worker import Argument, Handle

# -- A second way to a child, for uploads and downloads while the first one is busy with a run
#
# In the child another thread serves it (`anygpu.workers.child_server.SideServer`). It has segments of its own, because
# the child learns of a new segment from the link that it is used on. What breaks it never breaks the first way: whoever
# cannot use the side does the same there, or learns there why the child is gone.


class SideChannel:
    """The worker's end. One thread talks at a time; copies into and out of shared memory are made beside that."""

    def __init__(self, sock: socket.socket, device: str, memory_kind: SegmentKind | None) -> None:
        """Takes over one end of a second link to the child, with a pool of shared memory of its own."""
        self._link = Link(sock)
        self._device = device
        self._lock = rlock()
        self._number = 0
        self.shared = SharedMemory(device, kind=memory_kind)
        self.closed = False

    def upload(self, handle: int, values: HostArray, spec: Spec, until: float | None) -> None:
        """Make it the array `handle` of the child. Raises what the device does, `LinkClosed` and `TimeoutError`."""
        block = self._place(spec, until)
        try:
            segment: SharedSegment = block.handle
            np.copyto(segment.array(spec), values)
            self._request(
                child_messages.Upload(InSegment(segment.number, spec.nbytes), spec.shape, spec.dtype, handle), until
            )
        finally:
            self.shared.release(block)

    def download(self, handle: int, spec: Spec, until: float | None) -> HostArray:
        """The values of an array of the child, which lets go of it. Raises as `upload` does."""
        block = self._place(spec, until)
        try:
            self._request(child_messages.Download(handle, block.handle.number, last_use=True), until)
        except BaseException:
            self.shared.release(block)
            raise
        return self.shared.result(block, spec)

    def close(self) -> None:
        """Closes the side for good. A waiting thread gets `LinkClosed`; segments that are in use go when they can."""
        self.closed = True
        self._link.shut_down()
        self.shared.close()
        # A thread that waits there closes it, when it has noticed.
        if self._lock.acquire(blocking=False):
            self._link.close()
            self._lock.release()

    def forked(self) -> None:
        """Closes our end in a process that was forked from ours."""
        self.closed = True
        self._link.close()

    def _place(self, spec: Spec, until: float | None) -> Block:
        with TryAcquire(self._lock, seconds_left(until)) as acquired:
            self._require(acquired)
            return self.shared.allocate(spec.nbytes)

    def _request(self, task: ChildTask, until: float | None) -> None:
        """Send one transfer and wait for its answer.

        After an error the channel is closed: late answers cannot be matched.
        """
        with TryAcquire(self._lock, seconds_left(until)) as acquired:
            self._require(acquired)
            self._number += 1
            try:
                self._send(task)
                answer = child_messages.decode_answer(self._link.receive(seconds_left(until)))
            except BaseException as error:
                # Its answer may still come, and the child may still use the segment: neither is looked at again.
                self.close()
                if isinstance(error, msgspec.DecodeError):
                    raise LinkClosed("it sent an unreadable response") from None
                raise
        if isinstance(answer.outcome, child_messages.TaskFailed):
            raise error_from_message(answer.outcome, self._device)

    def _send(self, task: ChildTask) -> None:
        """Send a task with new and forgotten segments, in as many messages as their descriptors need."""
        shared, fresh = self.shared, deque[SharedSegment]()
        while shared.unannounced:
            segment = shared.unannounced.popleft()
            if not segment.closed:
                fresh.append(segment)
        while len(fresh) > MOST_DESCRIPTORS:
            self._post(Envelope(0, None, attached=()), [fresh.popleft() for _ in range(MOST_DESCRIPTORS)])
        forgotten = tuple([shared.forgotten.popleft() for _ in range(len(shared.forgotten))])
        self._post(Envelope(self._number, task, forgotten=forgotten), list(fresh))

    def _post(self, envelope: Envelope, fresh: list[SharedSegment]) -> None:
        """Sends a message with the descriptors of new segments, which need not be sent again."""
        attached = tuple([Attached(each.number, each.nbytes, each.name) for each in fresh])
        descriptors = [each.descriptor for each in fresh if each.descriptor >= 0]
        self._link.send(child_messages.encode(msgspec.structs.replace(envelope, attached=attached)), descriptors)
        for each in fresh:
            each.sent()

    def _require(self, acquired: bool) -> None:
        """Raises `LinkClosed` if the side was closed, and `TimeoutError` if the lock was not acquired in time."""
        if self.closed:
            raise LinkClosed("the side was closed")
        if not acquired:
            raise TimeoutError

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):
            self._link.close()


#: Arguments and results of so many bytes in all: below, two more round trips cost as much as copying beside the run
#: saves.
WORTH_OVERLAPPING = 4 << 20
#: Results of fewer bytes in all come with the answer of the run.
WORTH_FETCHING = 1 << 20

_OPEN_SECONDS = 30.0


class Staged(NamedTuple):
    """A call whose arguments are on the device, and which waits for its turn."""

    operands: tuple[WireOperand, ...]
    #: Those that were uploaded for this call alone.
    own: tuple[int, ...]
    #: The right of one call to have its arguments on the device while it waits: released when it starts, or fails.
    seat: TryAcquire


class Entered:
    """A large call, from its arguments to its results."""

    __slots__ = ("_first", "_nbytes", "_overlap")

    def __init__(self, overlap: Overlap, nbytes: int, first: bool) -> None:
        self._overlap = overlap
        self._nbytes = nbytes
        self._first = first

    def __enter__(self) -> None:
        overlap = self._overlap
        with overlap._counting:
            overlap._inside += 1
            overlap._inside_bytes += self._nbytes
        if self._first:
            overlap._compiles = True

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """Leave the count of large calls; after a failed allocation, overlap less from now on."""
        overlap = self._overlap
        if isinstance(error, AllocationError):
            overlap.crowded()
        if self._first:
            overlap._compiles = False
        with overlap._counting:
            overlap._inside -= 1
            overlap._inside_bytes -= self._nbytes


class Overlap:
    """The side of one worker, and what is on the device now."""

    def __init__(self, connection: ChildConnection, device: str, memory_kind: SegmentKind | None) -> None:
        """Starts without a side, which is opened when a call has had to wait for another one.

        Handles of staged arguments have negative numbers, so that they never meet those of the worker.
        """
        self._connection = connection
        self._device = device
        self._memory_kind = memory_kind
        #: Whether the device and the way to the child allow it.
        self.possible = False
        self.allowed = True
        self._wanted = False
        #: One for uploads, one for downloads: neither waits for the other.
        self._there: SideChannel | None = None
        self._back: SideChannel | None = None
        #: Large calls now, and their bytes.
        self._inside = self._inside_bytes = 0
        self._counting = lock()
        #: Whether a program runs for the first time: it is compiled and measured, and nothing may disturb that.
        self._compiles = False
        #: Held by the one call that has its arguments on the device and waits.
        self._seat = rlock()
        #: Bytes of two calls that were too many for the device's memory.
        self._too_many: int | None = None
        # Below those of the worker's handles, which count from 1.
        self._numbers = itertools.count(-1, -1)

    @property
    def may_transfer(self) -> bool:
        """Whether the side may be used while the next program runs."""
        return self._inside > 0 and self._back is not None

    @property
    def shared_bytes(self) -> int:
        return sum([side.shared.live_bytes for side in self._connection.sides])

    def allow(self, overlaps: bool) -> None:
        """Once the device is open: `overlaps` says whether it can transfer while it computes."""
        self.possible = overlaps and self._connection.link.passes_descriptors

    # -- with the connection's lock held

    def open_if_wanted(self) -> None:
        """Open the side, once a call has had to wait for another one."""
        if self._wanted and self.possible and self._back is None:
            self._there, self._back = self._new_side(), self._new_side()

    def _new_side(self) -> SideChannel | None:
        """Open the second link of a child; `None` if its device cannot transfer while it computes."""
        ours, theirs = socket.socketpair()
        with theirs:
            answer = self._connection.request(
                child_messages.OpenSide(),
                timeout=_OPEN_SECONDS,
                doing="it opened a side",
                descriptors=(theirs.fileno(),),
            )
        if not isinstance(answer, child_messages.SideOpened) or not answer.overlaps:
            self.possible = False
            ours.close()
            return None
        side = SideChannel(ours, self._device, self._memory_kind)
        self._connection.sides.append(side)
        return side

    # -- without it

    def enter(self, nbytes: int, *, first: bool) -> Entered:
        """Returns the block around a large call; `first` if its program is new to the child."""
        return Entered(self, nbytes, first)

    def stage(
        self,
        given: Sequence[Argument],
        specs: Sequence[Spec],
        until: float | None,
        number_of: Callable[[Handle], int],
    ) -> Staged | None:
        """Upload the arguments if another large call runs meanwhile; `None` to go the ordinary way.

        The caller releases the seat of what is returned when its call has started or ended.
        """
        side, others = self._there, self._inside - 1
        if not (self.possible and self.allowed):
            return None
        if side is None:
            self._wanted = self._wanted or others > 0
            return None
        if side.closed or self._back is None or self._back.closed:
            self.possible = False
        if not self.possible or others < 1:
            return None
        # Behind the call that is staged now, and beside its run.
        seat = TryAcquire(self._seat, seconds_left(until))
        own: list[int] = []
        operands: list[WireOperand] = []
        try:
            if not seat.acquire():
                return None
            if self._compiles or (self._too_many is not None and self._inside_bytes >= self._too_many):
                seat.release()
                return None
            for argument, spec in zip(given, specs, strict=True):
                if not isinstance(argument, np.ndarray):
                    operands.append(number_of(argument))
                    continue
                own.append(next(self._numbers))
                side.upload(own[-1], argument, spec, until)
                operands.append(own[-1])
            return Staged(tuple(operands), tuple(own), seat)
        except BaseException as error:
            self.drop(own)
            seat.release()
            if isinstance(error, AllocationError):
                self.crowded()
            if not isinstance(error, Exception):
                raise
            # The ordinary way says what is wrong, if it still is.
            return None

    def drop(self, uploaded: Sequence[int]) -> None:
        """Free the arguments that were uploaded for one call, if they are still there."""
        for number in uploaded:
            self._connection.drop(number, 0)

    def fetch(
        self, numbers: Sequence[int], specs: Sequence[Spec], timeout: float | None, until: float | None
    ) -> list[HostArray] | None:
        """The results of a staged call; `None` if there is no side any more, and they are still in the child."""
        side = self._back
        results: list[Any] = []
        try:
            for number, spec in zip(numbers, specs, strict=True):
                if side is None:
                    raise LinkClosed("there is no side")
                results.append(side.download(number, spec, until))
        except LinkClosed:
            if side is not None and side.closed and self._connection.alive and not results:
                return None
            raise self._connection.lost() from None
        except TimeoutError:
            self._connection.child.process.kill()
            raise DeviceHung(self._device, timeout or 0.0, doing="it sent its results") from None
        return results

    def crowded(self) -> None:
        """There was no room for as much as is there now."""
        if self._inside > 1:
            self._too_many = min(self._inside_bytes, self._too_many or self._inside_bytes)


def seconds_left(until: float | None) -> float | None:
    return None if until is None else max(1e-3, until - time.monotonic())
