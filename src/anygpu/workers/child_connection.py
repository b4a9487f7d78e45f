"""The worker's side of a child that serves a device: tasks and their answers, one after the other, and its end.

The thread that holds the lock sends a task and waits for its answer. A watching thread learns of the child's death at
once, and every later request is answered with why it died.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from anygpu.base.forks import rlock
from anygpu.base.interrupts import TryAcquire
from anygpu.base.typing import HostArray
from anygpu.engines.memory.resource import Block
from anygpu.errors import DeadlineExceeded, DeviceHung, DeviceLost, DevicePoisoned, InvalidOption
from anygpu.program import wire
from anygpu.program.graph import Program
from anygpu.program.primitives import Spec
from anygpu.workers import child_messages
from anygpu.workers.child_messages import Attached, ChildTask, Envelope, TaskOutcome, error_from_message
from anygpu.workers.child_process import Child
from anygpu.workers.link import MOST_DESCRIPTORS, Link, LinkClosed
from anygpu.workers.shared_memory import MOST_OUT, SegmentKind, SharedMemory, SharedSegment

if TYPE_CHECKING:
    from anygpu.workers.overlap import SideChannel

#: Programs that the child is taken to have. It keeps more, and says so when one is gone.
PROGRAMS_SENT = 512

#: When so many bytes on the device wait to be free, the child is told at once.
DROPPED_BYTES = 64 << 20

CLOSE_SECONDS = 5.0
#: How often unused shared memory is looked for.
_TIDY_SECONDS = 15.0

_Expected = TypeVar("_Expected", bound=TaskOutcome)


class _Use(TryAcquire):
    """No other thread talks to the child in this block."""

    def __init__(self, connection: ChildConnection, seconds: float | None) -> None:
        super().__init__(connection._lock, seconds)
        self._connection = connection

    def __enter__(self) -> bool:
        """Takes the lock; raises if the child is busy for too long or gone. An interrupt leaves the lock released."""
        try:
            if not self.acquire():
                raise self._connection._busy(self._seconds)
            if not self._connection.alive:
                raise self._connection._gone(started=False)
        except BaseException:  # also an interrupt
            self.release()
            raise
        return True

    def __exit__(self, *_: object) -> None:
        self.release()


class _Abandoned(NamedTuple):
    """A call whose caller left before its answer came: what the child may still use, and what it may still make."""

    blocks: list[Block]
    handles: range


class ChildConnection:
    """The connection to one child. In a block of `use`, no other thread talks to the child."""

    def __init__(self, child: Child, device: str, generation: int, memory_kind: SegmentKind | None) -> None:
        """Takes the child over."""
        if child.link is None:
            raise InvalidOption("this child was not asked to serve.")
        self.child = child
        self.link: Link = child.link
        #: None where descriptors cannot be passed.
        self.shared = SharedMemory(device, kind=memory_kind) if self.link.passes_descriptors else None
        #: The number of the last task.
        self.number = 0
        #: Handles without a reference, of which the child has not been told.
        self.dropped: deque[int] = deque()
        self._dropped_bytes = 0
        #: By the number of their task.
        self.abandoned: dict[int, _Abandoned] = {}
        #: The keys of programs, those that were used last at the end.
        self.sent: dict[str, None] = {}
        #: Other ways to the child, for transfers while it runs something.
        self.sides: list[SideChannel] = []
        self._device = device
        self._generation = generation
        self._lock = rlock()
        #: Why it is over.
        self._end: str | None = None
        _connections.add(self)
        # Also when it is collected without having been closed, and when the interpreter ends.
        self._finalizer = weakref.finalize(self, _let_go, child, os.getpid())
        watcher = threading.Thread(
            target=_watch, args=(weakref.ref(self), self.link), name=f"anygpu-watch-{device}", daemon=True
        )
        watcher.start()

    @property
    def alive(self) -> bool:
        return self._end is None

    @property
    def ended(self) -> str | None:
        """Why it is over."""
        return self._end

    # -- tasks and answers. From here on the caller has the lock

    def send_program(
        self,
        program: Program,
        task: Callable[[str, bytes | None], ChildTask],
        *,
        timeout: float | None = None,
        blocks: list[Block] | None = None,
        handles: range = range(0),
    ) -> TaskOutcome:
        """A task that concerns a program, which is sent along if the child does not have it."""
        key = program.key
        text = None if key in self.sent else _text_of(program)
        outcome = self.request(task(key, text), timeout=timeout, blocks=blocks, handles=handles)
        if isinstance(outcome, child_messages.UnknownProgram):
            outcome = self.request(task(key, _text_of(program)), timeout=timeout, blocks=blocks, handles=handles)
        self.sent.pop(key, None)
        self.sent[key] = None
        if len(self.sent) > PROGRAMS_SENT:
            del self.sent[next(iter(self.sent))]
        return outcome

    def request(
        self,
        task: ChildTask,
        *,
        timeout: float | None = None,
        blocks: list[Block] | None = None,
        handles: range = range(0),
        doing: str = "it ran a program",
        descriptors: Sequence[int] = (),
    ) -> TaskOutcome:
        """Send a task, and wait for what comes of it.

        A caller who is interrupted leaves `blocks` and `handles` behind until the answer comes; the list is empty then.
        """
        self.number += 1
        number = self.number
        try:
            if descriptors:
                self.link.send(child_messages.encode(Envelope(number, task)), descriptors)
            else:
                self._send(number, task)
        except LinkClosed:
            # The child was gone before it had all of it.
            raise self._lost(started=False) from None
        except BaseException:
            # It is unknown how much of it was sent.
            self.finish("it was interrupted")
            raise
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            try:
                left = None if deadline is None else max(1e-3, deadline - time.monotonic())
                answer = child_messages.decode_answer(self.link.receive(left))
            except LinkClosed:
                raise self._lost() from None
            except msgspec.DecodeError:
                self.finish("it sent an unreadable response")
                raise self._gone() from None
            except TimeoutError:
                self.finish(f"it did not respond within {timeout:g} s")
                raise DeviceHung(self._device, timeout or 0.0, doing=doing) from None
            except BaseException:
                # Ctrl-C: the child goes on, and its answer is thrown away when it comes.
                self.abandoned[number] = _Abandoned(list(blocks or ()), handles)
                if blocks is not None:
                    blocks.clear()
                raise
            if answer.number == number:
                return answer.outcome
            self._forget(answer.number)

    def unwrap(self, outcome: TaskOutcome, kind: type[_Expected]) -> _Expected:
        """The outcome if it is of that kind. An error of the child is raised here."""
        if isinstance(outcome, kind):
            return outcome
        if not isinstance(outcome, child_messages.TaskFailed):
            self.finish("it responded to another request")
            raise self._gone()
        error = error_from_message(outcome, self._device)
        if isinstance(error, DeviceLost):
            error.generation = self._generation
        if isinstance(error, DeviceLost | DevicePoisoned):
            # Only a new process can use it again.
            self.finish("it was lost earlier")
        try:
            raise error
        finally:
            # Its traceback holds this frame: without this, both would keep the child's descriptors until the next
            # garbage collection.
            del error

    def _send(self, number: int, task: ChildTask) -> None:
        """Sends a task with the news of shared memory: new segments, forgotten ones, and handles that were dropped.

        A message carries a bounded number of descriptors, so that many new segments take several messages. Most tasks
        have no news, and take the short way.
        """
        shared = self.shared
        if not self.dropped and (shared is None or not (shared.unannounced or shared.forgotten)):
            self.post(Envelope(number, task), ())
            return
        attached: list[SharedSegment] = []
        waiting = shared.unannounced if shared is not None else deque[SharedSegment]()
        while waiting:
            segment = waiting.popleft()
            if segment.closed:  # given back before it was used
                continue
            attached.append(segment)
            if len(attached) == MOST_DESCRIPTORS and waiting:
                self.post(Envelope(0, None, attached=_announced(attached)), attached)
                attached = []
        dropped = tuple(self.dropped)
        self.post(Envelope(number, task, dropped, self._forgotten(), _announced(attached)), attached)
        if dropped:
            self._told(dropped)

    def post(self, envelope: Envelope, attached: Sequence[SharedSegment]) -> None:
        """Send it as it is."""
        descriptors = [segment.descriptor for segment in attached if segment.descriptor >= 0]
        self.link.send(child_messages.encode(envelope), descriptors)
        for segment in attached:
            segment.sent()

    def _forget(self, number: int) -> None:
        """The answer of an abandoned call has come: its memory is free now, and its results are dropped."""
        abandoned = self.abandoned.pop(number, None)
        if abandoned is not None:
            for block in abandoned.blocks:
                self.release(block)
            self.dropped.extend(abandoned.handles)

    # -- memory

    def place(self, nbytes: int, blocks: list[Block]) -> Block | None:
        """Shared memory for an array, which is added to `blocks`, or none where there is none."""
        if self.shared is None:
            return None
        block = self.shared.allocate(nbytes)
        blocks.append(block)
        return block

    def release(self, block: Block) -> None:
        if self.shared is not None:
            self.shared.release(block)

    def result(self, block: Block, spec: Spec) -> HostArray:
        """The values in a block, which goes back with the last view of them."""
        if self.shared is None:
            raise InvalidOption("there is no shared memory.")
        return self.shared.result(block, spec)

    @property
    def can_lend(self) -> bool:
        """Whether there are segments to spare, beside those that results are in."""
        return self.shared is not None and self.shared.out < MOST_OUT // 2

    def drop(self, handle: int, nbytes: int) -> None:
        """The handle has no reference left. Called by a finaliser: on any thread, at any moment, without the lock."""
        if self._end is not None:
            return
        self.dropped.append(handle)
        self._dropped_bytes += nbytes
        if self._dropped_bytes >= DROPPED_BYTES:
            self.tidy()

    def tidy(self) -> None:
        """Tell the child what can be freed. If another thread has the lock, its next task says so instead."""
        with TryAcquire(self._lock) as acquired:
            if not acquired:
                return
            dropped, forgotten = tuple(self.dropped), self._forgotten()
            if self._end is None and (dropped or forgotten):
                if self.link.send_if_free(child_messages.encode(Envelope(0, None, dropped, forgotten))):
                    self._told(dropped)
                elif self.shared is not None:
                    self.shared.forgotten.extend(forgotten)

    def _told(self, dropped: Sequence[int]) -> None:
        for _ in dropped:
            self.dropped.popleft()
        self._dropped_bytes = 0

    def _forgotten(self) -> tuple[int, ...]:
        """Takes the numbers of segments that the child may unmap."""
        taken = []
        while self.shared is not None and self.shared.forgotten:
            taken.append(self.shared.forgotten.popleft())
        return tuple(taken)

    # -- life and death

    def use(self, timeout: float | None = None) -> _Use:
        """Returns the block around everything that is said to the child: it takes the lock, and lets go of it."""
        return _Use(self, timeout)

    def _busy(self, seconds: float) -> DeadlineExceeded:
        return DeadlineExceeded(f"a task for {self._device}", seconds, still_running=True)

    def close(self) -> None:
        """Let the child end by itself, for a while. May be called twice; takes the lock."""
        with self._lock:
            if self._end is not None:
                return
            with contextlib.suppress(DeviceLost, DeviceHung):
                self.request(child_messages.Close(), timeout=CLOSE_SECONDS, doing="it was closed")
            self.finish("it was closed")

    def finish(self, why: str) -> None:
        """Kills the child if it is there, and gives back its memory. The lock is held."""
        if self._end is None:
            self._end = why
        self._finalizer()
        for abandoned in self.abandoned.values():
            for block in abandoned.blocks:
                self.release(block)
        self.abandoned.clear()
        self.dropped.clear()
        if self.shared is not None:
            self.shared.close()
        for side in self.sides:
            side.close()

    def _gone(self, *, started: bool = True) -> DeviceLost:
        gone = DeviceLost(self._device, detail=self._end or "", generation=self._generation)
        gone.started = started
        return gone

    def _lost(self, *, started: bool = True) -> DeviceLost:
        """The child is gone. Its exit code and its last words say why."""
        if self._end is None:
            self.finish(self.child.how_it_ended())
        return self._gone(started=started)

    def lost(self) -> DeviceLost:
        """Returns the error for a child whose end was learnt of in another way; takes the lock."""
        with self._lock:
            return self._lost()

    def died(self) -> None:
        """Called by the watcher. A thread that waits for an answer sees it too, and reports it first."""
        with self._lock:
            if self._end is None:
                self._lost()

    def look_after(self) -> None:
        """Gives back shared memory that was idle for long, and tells the child what to free. Called by the watcher."""
        if self.shared is not None:
            self.shared.expire()
        for side in self.sides:
            side.shared.expire()
        self.tidy()

    def forked(self) -> None:
        """Closes our ends in a process that was forked from the worker's: the child is not ours."""
        self._end = "it belongs to the process that this one was forked from"
        self.child.close()
        for side in self.sides:
            side.forked()


def _let_go(child: Child, process_id: int) -> None:
    """End the child, unless this process has only inherited it."""
    if os.getpid() != process_id:
        return
    if child.link is not None:
        child.link.shut_down()
    child.kill(5.0)
    child.close()


def _watch(reference: weakref.ref[ChildConnection], link: Link) -> None:
    """Wait until the child closes its end, which it does when it dies; meanwhile free unused memory now and then."""
    if not hasattr(select, "poll"):
        return
    poll = select.poll()
    # Nothing is asked for: the end of the other side is always told.
    poll.register(link.fileno(), 0)
    while True:
        ended = poll.poll(_TIDY_SECONDS * 1000)
        connection = reference()
        if connection is None or not connection.alive:
            return
        if ended:
            connection.died()
            return
        connection.look_after()
        del connection


def _announced(segments: Sequence[SharedSegment]) -> tuple[Attached, ...]:
    return tuple([Attached(each.number, each.nbytes, each.name) for each in segments])


def _text_of(program: Program) -> bytes:
    # Without lines: two programs of one key may have different ones, so they are filled in on the worker's side.
    return wire.to_bytes(program, lines=False)


_connections: weakref.WeakSet[ChildConnection] = weakref.WeakSet()


def _after_fork() -> None:
    for connection in list(_connections):
        connection.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
