"""A pipeline of three stages: one thread reads, the caller computes, one thread writes, with short queues between.

A stage that fails stops the others before their next piece, and its error is what the caller gets, unchanged.
"""

from __future__ import annotations

import contextvars
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

Piece = TypeVar("Piece")
Done = TypeVar("Done")
Item = TypeVar("Item")


class Stopped(Exception):
    """Ends a stage after another one has failed, or the stream is over. Not visible outside."""


class Stages:
    """The shared state of the stages: whether they go on, and the first error."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.over = False
        self.error: BaseException | None = None

    def stop(self, error: BaseException | None = None) -> None:
        with self.changed:
            if self.error is None and not self.over:
                self.error = error
            self.over = True
            self.changed.notify_all()


class Channel(Generic[Item]):
    """A bounded queue between two stages."""

    def __init__(self, stages: Stages, most: int, first: Iterable[Item] = ()) -> None:
        self._stages = stages
        self._most = most
        self._items = deque(first)
        self._closed = False

    def put(self, item: Item) -> None:
        with self._stages.changed:
            self._stages.changed.wait_for(lambda: self._stages.over or len(self._items) < self._most)
            if self._stages.over:
                raise Stopped
            self._items.append(item)
            self._stages.changed.notify_all()

    def take(self) -> Item:
        """The next item; raises `Stopped` if there will be none."""
        with self._stages.changed:
            self._stages.changed.wait_for(lambda: self._stages.over or self._items or self._closed)
            if self._stages.over or not self._items:
                raise Stopped
            item = self._items.popleft()
            self._stages.changed.notify_all()
            return item

    def close(self) -> None:
        """Nothing more will come."""
        with self._stages.changed:
            self._closed = True
            self._stages.changed.notify_all()


def overlap(
    stages: Stages,
    read: Callable[[], Piece | None],
    compute: Callable[[Piece], Iterable[Done]],
    write: Callable[[Done], None],
    between: int = 1,
) -> None:
    """Run until `read` returns `None`, with at most `between` pieces queued between two stages.

    When this returns or raises, the two threads have ended.
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

    threads = [_started(stages, "reads", reading), _started(stages, "writes", writing)]
    try:
        while True:
            try:
                piece = pieces.take()
            except Stopped:
                break
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
