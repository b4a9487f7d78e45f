"""A second way to a child, for uploads and downloads while the first one is busy with a run.

In the child another thread serves it (`anygpu.workers.child_server.SideServer`). It has segments of its own, because
the child learns of a new segment from the link that it is used on. What breaks it never breaks the first way: whoever
cannot use the side does the same there, or learns there why the child is gone.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import deque

import msgspec
import numpy as np

from anygpu.base.interrupts import TryAcquire
from anygpu.base.typing import HostArray
from anygpu.memory.resource import Block
from anygpu.program.primitives import Spec
from anygpu.workers import task_messages
from anygpu.workers.error_transport import read
from anygpu.workers.link import MOST_DESCRIPTORS, Link, LinkClosed
from anygpu.workers.shared_memory import Segment, SegmentKind, SharedMemory
from anygpu.workers.task_messages import Attached, ChildTask, Envelope, InSegment


class Side:
    """Our end. One thread talks at a time; copies into and out of shared memory are made beside that."""

    def __init__(self, sock: socket.socket, device: str, memory_kind: SegmentKind | None) -> None:
        self._link = Link(sock)
        self._device = device
        self._lock = threading.RLock()
        self._number = 0
        self.shared = SharedMemory(device, kind=memory_kind)
        self.closed = False

    def upload(self, handle: int, values: HostArray, spec: Spec, until: float | None) -> None:
        """Make it the array `handle` of the child. Raises what the device does, `LinkClosed` and `TimeoutError`."""
        block = self._place(spec, until)
        try:
            segment: Segment = block.handle
            np.copyto(segment.array(spec), values)
            self._request(
                task_messages.Upload(InSegment(segment.number, spec.nbytes), spec.shape, spec.dtype, handle), until
            )
        finally:
            self.shared.release(block)

    def download(self, handle: int, spec: Spec, until: float | None) -> HostArray:
        """The values of an array of the child, which lets go of it. Raises as `upload` does."""
        block = self._place(spec, until)
        try:
            self._request(task_messages.Download(handle, block.handle.number, last_use=True), until)
        except BaseException:
            self.shared.release(block)
            raise
        return self.shared.result(block, spec)

    def close(self) -> None:
        """For good. A thread that waits for an answer gets `LinkClosed`; segments that are in use go when they can."""
        self.closed = True
        self._link.shut_down()
        self.shared.close()
        # A thread that waits there closes it, when it has noticed.
        if self._lock.acquire(blocking=False):
            self._link.close()
            self._lock.release()

    def forked(self) -> None:
        """In a process that was forked from ours."""
        self.closed = True
        self._link.close()

    def _place(self, spec: Spec, until: float | None) -> Block:
        with TryAcquire(self._lock, _left(until)) as acquired:
            self._require(acquired)
            return self.shared.allocate(spec.nbytes)

    def _request(self, task: ChildTask, until: float | None) -> None:
        with TryAcquire(self._lock, _left(until)) as acquired:
            self._require(acquired)
            self._number += 1
            try:
                self._send(task)
                answer = task_messages.decode_answer(self._link.receive(_left(until)))
            except BaseException as error:
                # Its answer may still come, and the child may still use the segment: neither is looked at again.
                self.close()
                if isinstance(error, msgspec.DecodeError):
                    raise LinkClosed("it sent an unreadable response") from None
                raise
        if isinstance(answer.outcome, task_messages.TaskFailed):
            raise read(answer.outcome, self._device)

    def _send(self, task: ChildTask) -> None:
        shared, fresh = self.shared, deque[Segment]()
        while shared.unannounced:
            segment = shared.unannounced.popleft()
            if not segment.closed:
                fresh.append(segment)
        while len(fresh) > MOST_DESCRIPTORS:
            self._post(Envelope(0, None, attached=()), [fresh.popleft() for _ in range(MOST_DESCRIPTORS)])
        forgotten = tuple([shared.forgotten.popleft() for _ in range(len(shared.forgotten))])
        self._post(Envelope(self._number, task, forgotten=forgotten), list(fresh))

    def _post(self, envelope: Envelope, fresh: list[Segment]) -> None:
        attached = tuple([Attached(each.number, each.nbytes, each.name) for each in fresh])
        descriptors = [each.descriptor for each in fresh if each.descriptor >= 0]
        self._link.send(task_messages.encode(msgspec.structs.replace(envelope, attached=attached)), descriptors)
        for each in fresh:
            each.sent()

    def _require(self, acquired: bool) -> None:
        if self.closed:
            raise LinkClosed("the side was closed")
        if not acquired:
            raise TimeoutError

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):
            self._link.close()


def _left(until: float | None) -> float | None:
    return None if until is None else max(1e-3, until - time.monotonic())
