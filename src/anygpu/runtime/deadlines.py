"""Deadlines: one thread that expires items in time."""

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


class Deadlines(Generic[T]):
    """Calls `expire(item)` for each item at its deadline, unless it was forgotten. The thread starts with the first."""

    def __init__(self, expire: Callable[[T], None], clock: Callable[[], float], name: str) -> None:
        self._expire = expire
        self._clock = clock
        self._name = name
        self._changed = threading.Condition()
        self._heap: list[tuple[float, int]] = []
        self._live: dict[int, T] = {}
        self._thread: threading.Thread | None = None
        self._closed = False

    def add(self, number: int, item: T, at: float) -> None:
        with self._changed:
            if self._closed:
                return
            first = self._heap[0][0] if self._heap else None
            heapq.heappush(self._heap, (at, number))
            self._live[number] = item
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name=self._name, daemon=True)
                self._thread.start()
            elif first is None or at < first:
                self._changed.notify()

    def forget(self, number: int) -> None:
        """The item has finished. Its heap entry stays until there are many such."""
        self._live.pop(number, None)
        if len(self._heap) > 2 * len(self._live) + _SLACK:
            with self._changed:
                self._heap = [entry for entry in self._heap if entry[1] in self._live]
                heapq.heapify(self._heap)

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
                    left = self._heap[0][0] - self._clock() if self._heap else None
                    if left is not None and left <= 0:
                        break
                    self._changed.wait(left)
                if self._closed:
                    return
                _, number = heapq.heappop(self._heap)
            item = self._live.pop(number, None)
            if item is not None:
                try:
                    self._expire(item)
                except BaseException:  # noqa: BLE001 - a callback of one caller must not cost the others their deadlines
                    _log.exception("a task could not be told that its deadline has passed")
                del item
