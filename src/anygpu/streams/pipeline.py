"""A pipeline of three stages: one thread reads, the caller computes, one thread writes, with short queues between.

A stage that fails stops the others before their next piece, and its error is what the caller gets, unchanged.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterable
from functools import partial
from queue import SimpleQueue
from typing import Any, Generic, Protocol, TypeVar

from anygpu.base.interrupts import completed

Piece = TypeVar("Piece")
Done = TypeVar("Done")
Item = TypeVar("Item")
Begun = TypeVar("Begun", contravariant=True)


class Stopped(Exception):
    """Ends a stage after another one has failed, or the stream is over. Not visible outside."""


class Stages:
    """The shared state of the stages: whether they go on, and the first error.

    No thread waits for a lock here: the caller may be interrupted at any moment, and the other threads have to go on.
    """

    def __init__(self) -> None:
        self.over = False
        self._errors: list[BaseException] = []
        #: Signals that a queue has changed.
        self.queues: list[SimpleQueue[Any]] = []

    @property
    def error(self) -> BaseException | None:
        return self._errors[0] if self._errors else None

    def stop(self, error: BaseException | None = None) -> None:
        if error is not None and not self.over:
            self._errors.append(error)
        self.over = True
        for queue in self.queues:
            queue.put(None)  # whoever waits there looks whether it is over


#: Behind the last item, and no item at all.
_END, _NUDGE = object(), object()


class Channel(Generic[Item]):
    """A bounded queue from one stage to another."""

    def __init__(self, stages: Stages, most: int, first: Iterable[Item] = ()) -> None:
        self._stages = stages
        self._items: SimpleQueue[Any] = SimpleQueue()
        self._room: SimpleQueue[None] = SimpleQueue()
        for item in first:
            self._items.put(item)
        for _ in range(most - self._items.qsize()):
            self._room.put(None)
        stages.queues += (self._items, self._room)

    def put(self, item: Item) -> None:
        self._next(self._room)
        self._items.put(item)

    def take(self) -> Item:
        """The next item; raises `Stopped` if there will be none."""
        item = self.take_unless(lambda: False)
        if item is None:
            raise Stopped
        return item

    def take_unless(self, ready: Callable[[], bool]) -> Item | None:
        """The next item; `None` if something else is ready first, of which `nudge` tells, or if there will be none."""
        while not ready():
            item = self._next(self._items)
            if item is _NUDGE:
                continue
            if item is _END:
                self._items.put(_END)
                return None
            self._room.put(None)
            found: Item = item
            return found
        return None

    def nudge(self) -> None:
        """Wake threads in `take_unless`, which check their condition again."""
        self._items.put(_NUDGE)

    def close(self) -> None:
        """Nothing more will come."""
        self._items.put(_END)

    def _next(self, queue: SimpleQueue[Any]) -> Any:
        if self._stages.over:
            raise Stopped
        found = queue.get()
        if self._stages.over:
            raise Stopped
        return found


class Ahead(Protocol[Begun]):
    """How the next piece begins while one is computed."""

    def begin(self, piece: Begun, ended: Callable[[], None]) -> None:
        """Begin with it, unless that was done or cannot be; `ended` is called when it is ready to be computed."""

    def is_ready(self, piece: Begun) -> bool:
        """Whether nothing has to be waited for to compute it."""


def overlap(
    stages: Stages,
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
        following: Piece | None = None
        while True:
            try:
                piece = following if following is not None else pieces.take()
            except Stopped:
                break
            following = None
            if ahead is not None:
                ahead.begin(piece, pieces.nudge)
                following = pieces.take_unless(partial(ahead.is_ready, piece))
                if following is not None:
                    ahead.begin(following, pieces.nudge)
            for done in compute(piece):
                results.put(done)
            del piece
        results.close()
        threads[1].join()
    except Stopped:
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


def _started(stages: Stages, name: str, stage: Callable[[], None]) -> threading.Thread:
    def run() -> None:
        try:
            stage()
        except Stopped:
            pass
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is the caller's
            stages.stop(error)

    # The caller's context variables, such as its receipt lists, apply in the threads too.
    thread = threading.Thread(target=contextvars.copy_context().run, args=(run,), name=f"anygpu-stream-{name}")
    thread.start()
    return thread
