"""A bounded memory of what was made, by key: what was not asked for the longest time goes first."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Made = TypeVar("Made")

#: Compiled programs that an engine keeps.
KEPT_PROGRAMS = 512


class LRUCache(Generic[Made]):
    """Safe to use from several threads; two that ask for the same new thing at once may both make it."""

    def __init__(self, most: int = KEPT_PROGRAMS) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._made: dict[Hashable, Made] = {}

    def get(self, key: Hashable, make: Callable[[], Made]) -> Made:
        with self._lock:
            if key in self._made:
                made = self._made[key] = self._made.pop(key)
                return made
        made = make()
        with self._lock:
            self._made[key] = made
            while len(self._made) > self._most:
                del self._made[next(iter(self._made))]
        return made

    def __len__(self) -> int:
        return len(self._made)

    def clear(self) -> None:
        with self._lock:
            self._made.clear()
