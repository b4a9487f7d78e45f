"""Deadlines: a heap of them, and one thread that expires items in time."""

from __future__ import annotations

import heapq
import logging
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

_log = logging.getLogger(__name__)

#: Finished entries that may accumulate beyond the live ones before the heap is rebuilt.
_SLACK = 1024


class DeadlineHeap(Generic[T]):
    """Items by their deadlines, without a clock or a lock. Forgetting one needs no lock of the caller's either."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int]] = []
        self._live: dict[int, T] = {}

    @property
    def first(self) -> float | None:
        """The next deadline, of an item that may have been forgotten; `None` if there is none."""
        return self._heap[0][0] if self._heap else None

    def add(self, number: int, item: T, at: float) -> None:
        heapq.heappush(self._heap, (at, number))
        self._live[number] = item

    def forget(self, number: int) -> bool:
        """The item has finished. Its heap entry stays until there are many such: whether that is so."""
        self._live.pop(number, None)
        return len(self._heap) > 2 * len(self._live) + _SLACK

    def sweep(self) -> None:
        """Drop the entries of items that were forgotten."""
        self._heap = [entry for entry in self._heap if entry[1] in self._live]
        heapq.heapify(self._heap)

    def pop(self) -> T | None:
        """The item with the first deadline; `None` if it was forgotten."""
        _, number = heapq.heappop(self._heap)
        return self._live.pop(number, None)

    def __len__(self) -> int:
        """Items that were not forgotten."""
        return len(self._live)

    @property
    def entries(self) -> int:
        """All entries, also those of items that were forgotten."""
        return len(self._heap)


class Deadlines(Generic[T]):
    """Calls `expire(item)` for each item at its deadline, unless it was forgotten. The thread starts with the first."""

    def __init__(self, expire: Callable[[T], None], clock: Callable[[], float], name: str) -> None:
        self._expire = expire
        self._clock = clock
        self._name = name
        self._changed = threading.Condition()
        self.items: DeadlineHeap[T] = DeadlineHeap()
        self._thread: threading.Thread | None = None
        self._closed = False

    def add(self, number: int, item: T, at: float) -> None:
        with self._changed:
            if self._closed:
                return
            first = self.items.first
            self.items.add(number, item, at)
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name=self._name, daemon=True)
                self._thread.start()
            elif first is None or at < first:
                self._changed.notify()

    def forget(self, number: int) -> None:
        """The item has finished."""
        if self.items.forget(number):
            with self._changed:
                self.items.sweep()

    def end(self) -> None:
        """Let the thread end, without waiting for it."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def close(self) -> None:
        self.end()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(5)

    def _watch(self) -> None:
        while True:
            with self._changed:
                while not self._closed:
                    first = self.items.first
                    left = first - self._clock() if first is not None else None
                    if left is not None and left <= 0:
                        break
                    self._changed.wait(left)
                if self._closed:
                    return
                item = self.items.pop()
            if item is not None:
                try:
                    self._expire(item)
                except BaseException:  # noqa: BLE001 - a callback of one caller must not cost the others their deadlines
                    _log.exception("a task could not be told that its deadline has passed")
                del item
