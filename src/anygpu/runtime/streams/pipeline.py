"""A pipeline of three stages, which read, compute and write at once, and the report of its stream.

`overlap` runs the stages: reading and writing on threads of their own, computing on the caller's. `Channel` bounds what
is between two stages, and `StageState` ends all of them with the first error. `Streamed` and `Clock` are the report.
"""

from __future__ import annotations

import contextlib
import contextvars
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from queue import SimpleQueue
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar

import msgspec

from anygpu.base.events import drawn
from anygpu.base.interrupts import completed
from anygpu.base.units import readable_bytes, readable_seconds
from anygpu.receipts.receipt import Receipt
from anygpu.runtime.streams.sources import StreamSource, shortened

# -- the report of a stream: its result, the time of each stage, and its progress


StageName = Literal["reading", "computing", "writing"]
#: Larger chunks are not faster.
CHUNK_BYTES = 16 << 20
#: Chunks on their way at once, of arguments and of results: one is worked on by each of two stages, one is between. If
#: memory allows it there are more, so that a stage which is held up for a moment does not hold up the others.
IN_FLIGHT, MOST_IN_FLIGHT = 3, 6
#: The usable share of the memory limit: the rest is for allocator overhead and Python.
USABLE = 0.8
#: Chunks are not made smaller than this because of other memory of the process.
LEAST_BYTES = 1 << 20
#: Receipts say why.
NOT_PREDICTED = "a stream as a whole is not predicted"


class StageSeconds(msgspec.Struct, frozen=True, kw_only=True):
    """The busy time of each stage. Stages overlap, so their sum exceeds the total."""

    read: float
    #: Transfers to and from the device.
    transfer: float
    compute: float
    write: float
    total: float
    #: Seconds of transfers that overlapped with the computation of another chunk.
    overlapped: float = 0.0


class Streamed(NamedTuple):
    """The result of a stream, with its receipt and timings."""

    #: The array, the path or whatever the results went into; several if the function returns several.
    value: Any
    receipt: Receipt
    chunks: int
    seconds: StageSeconds
    #: Peak memory: the chunks in flight, and the memory for computing one of them.
    peak_bytes: int

    @property
    def slowest(self) -> StageName:
        """The stage that the others waited for. Computing includes transfers that it waited for."""
        return max(self._stages, key=lambda stage: self._stages[stage])

    @property
    def overlap(self) -> float:
        """The total by the slowest stage: 1 if all others are hidden behind it."""
        slowest = self._stages[self.slowest]
        return self.seconds.total / slowest if slowest > 0 else 1.0

    @property
    def _stages(self) -> dict[StageName, float]:
        seconds = self.seconds
        computing = seconds.transfer + seconds.compute - seconds.overlapped
        return {"reading": seconds.read, "computing": computing, "writing": seconds.write}

    def __str__(self) -> str:
        stages = ", ".join(f"{name} {readable_seconds(value)}" for name, value in self._stages.items())
        return (
            f"{self.receipt.task}: {self.chunks} chunks on {self.receipt.device} in "
            f"{readable_seconds(self.seconds.total)} ({stages}); {self.slowest} was the slowest stage, and the total "
            f"is {self.overlap:.2f} times that; at most {readable_bytes(self.peak_bytes)} at once."
        )

    def _repr_html_(self) -> str | None:
        return drawn(self)


class Clock:
    """Adds up the times of the stages."""

    def __init__(self) -> None:
        self.begin = time.perf_counter()
        self.read = 0.0
        self.write = 0.0

    @contextlib.contextmanager
    def adding_to(self, stage: Literal["read", "write"]) -> Iterator[None]:
        """Adds the time of the block to that of reading or of writing."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            setattr(self, stage, getattr(self, stage) + time.perf_counter() - begin)

    @property
    def total(self) -> float:
        return time.perf_counter() - self.begin


def bytes_of_a_step(source: StreamSource, axis: int) -> int:
    """The bytes of one step along the axis."""
    return math.prod(shortened(source.shape, axis, 1)) * source.dtype.itemsize


# -- A pipeline of three stages: one thread reads, the caller computes, one thread writes, with short queues between
#
# A stage that fails stops the others before their next piece, and its error is what the caller gets, unchanged.


Piece = TypeVar("Piece")
Done = TypeVar("Done")
Element = TypeVar("Element")
Begun = TypeVar("Begun", contravariant=True)


class StageStopped(Exception):
    """Ends a stage after another one has failed, or the stream is over. Not visible outside."""


class StageState:
    """The shared state of the stages: whether they go on, and the first error.

    No thread waits for a lock here: the caller may be interrupted at any moment, and the other threads have to go on.
    """

    def __init__(self) -> None:
        """Starts with all stages going on; `queues` are those that a stage may be waiting at."""
        self.over = False
        self._errors: list[BaseException] = []
        #: Signals that a queue has changed.
        self.queues: list[SimpleQueue[Any]] = []

    @property
    def error(self) -> BaseException | None:
        return self._errors[0] if self._errors else None

    def stop(self, error: BaseException | None = None) -> None:
        """Ends all stages; the first error is kept, and those that follow from it are dropped.

        Any thread may call it.
        """
        if error is not None and not self.over:
            self._errors.append(error)
        self.over = True
        for queue in self.queues:
            queue.put(None)  # whoever waits there looks whether it is over


#: Behind the last item, and no item at all.
_END, _NUDGE = object(), object()


class Channel(Generic[Element]):
    """A bounded queue from one stage to another."""

    def __init__(self, stages: StageState, most: int, first: Iterable[Element] = ()) -> None:
        """Makes a channel for `most` items, which has the items of `first` already.

        A token in `_room` is a free place.
        """
        self._stages = stages
        self._items: SimpleQueue[Any] = SimpleQueue()
        self._room: SimpleQueue[None] = SimpleQueue()
        for item in first:
            self._items.put(item)
        for _ in range(most - self._items.qsize()):
            self._room.put(None)
        stages.queues += (self._items, self._room)

    def put(self, item: Element) -> None:
        self._next(self._room)
        self._items.put(item)

    def take(self) -> Element:
        """The next item; raises `Stopped` if there will be none."""
        item = self.take_unless(lambda: False)
        if item is None:
            raise StageStopped
        return item

    def take_unless(self, ready: Callable[[], bool]) -> Element | None:
        """The next item; `None` if something else is ready first, of which `nudge` tells, or if there will be none."""
        while not ready():
            item = self._next(self._items)
            if item is _NUDGE:
                continue
            if item is _END:
                self._items.put(_END)
                return None
            self._room.put(None)
            found: Element = item
            return found
        return None

    def nudge(self) -> None:
        """Wake threads in `take_unless`, which check their condition again."""
        self._items.put(_NUDGE)

    def close(self) -> None:
        """Nothing more will come."""
        self._items.put(_END)

    def _next(self, queue: SimpleQueue[Any]) -> Any:
        """Returns the next of a queue, waiting for it.

        It raises `StageStopped` if the stages are over, also while it waits.
        """
        if self._stages.over:
            raise StageStopped
        found = queue.get()
        if self._stages.over:
            raise StageStopped
        return found


class Ahead(Protocol[Begun]):
    """How the next piece begins while one is computed."""

    def begin(self, piece: Begun, ended: Callable[[], None]) -> None:
        """Begin with it, unless that was done or cannot be; `ended` is called when it is ready to be computed."""

    def is_ready(self, piece: Begun) -> bool:
        """Whether nothing has to be waited for to compute it."""


def overlap(
    stages: StageState,
    read: Callable[[], Piece | None],
    compute: Callable[[Piece], Iterable[Done]],
    write: Callable[[Done], None],
    between: int = 1,
    ahead: Ahead[Piece] | None = None,
) -> None:
    """Run until `read` returns `None`, with at most `between` pieces queued between two stages.

    With `ahead`, a piece may begin while the one before it is computed. When this returns or raises, the two threads
    have ended.
    """
    pieces: Channel[Piece] = Channel(stages, between)
    results: Channel[Done] = Channel(stages, between)

    def reading() -> None:
        while (piece := read()) is not None:
            pieces.put(piece)
        pieces.close()

    def writing() -> None:
        while True:
            write(results.take())

    threads: list[threading.Thread] = []

    def start() -> None:
        threads.append(_started(stages, "reads", reading))
        threads.append(_started(stages, "writes", writing))

    try:
        completed(start)
        _compute_all(pieces, compute, results, ahead)
        results.close()
        threads[1].join()
    except StageStopped:
        pass  # the stage that failed has recorded its error
    except BaseException as error:
        stages.stop(error)
        raise
    finally:
        stages.stop()
        for thread in threads:
            thread.join()
    if stages.error is not None:
        raise stages.error


def _compute_all(
    pieces: Channel[Piece],
    compute: Callable[[Piece], Iterable[Done]],
    results: Channel[Done],
    ahead: Ahead[Piece] | None,
) -> None:
    """Computes the pieces on the caller's thread, until there are no more.

    With `ahead`, both the piece and the one that follows begin before the first is waited for, if it has come by then.
    """
    following: Piece | None = None
    while True:
        try:
            piece = following if following is not None else pieces.take()
        except StageStopped:
            return
        following = None
        if ahead is not None:
            ahead.begin(piece, pieces.nudge)
            following = pieces.take_unless(partial(ahead.is_ready, piece))
            if following is not None:
                ahead.begin(following, pieces.nudge)
        for done in compute(piece):
            results.put(done)
        del piece


def _started(stages: StageState, name: str, stage: Callable[[], None]) -> threading.Thread:
    """Starts a stage on a thread with the caller's context variables; whatever it raises stops the others."""

    def run() -> None:
        try:
            stage()
        except StageStopped:
            pass
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is the caller's
            stages.stop(error)

    # The caller's context variables, such as its receipt lists, apply in the threads too.
    thread = threading.Thread(target=contextvars.copy_context().run, args=(run,), name=f"anygpu-stream-{name}")
    thread.start()
    return thread
