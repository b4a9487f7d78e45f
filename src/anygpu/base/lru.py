"""A bounded cache of values by key; the least recently used are dropped.

It is the one for values that are made when they are missing, and used by several threads.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from anygpu.base.forks import lock

Value = TypeVar("Value")


class LRUCache(Generic[Value]):
    """Safe to use from several threads; two that ask for the same new key at once may both make its value."""

    def __init__(self, most: int = 512) -> None:
        self._most = most
        self._lock = lock()
        self._values: dict[Hashable, Value] = {}

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """The value of a key, made if there is none."""
        with self._lock:
            if key in self._values:
                value = self._values[key] = self._values.pop(key)
                return value
        value = make()
        with self._lock:
            self._values[key] = value
            while len(self._values) > self._most:
                del self._values[next(iter(self._values))]
        return value

    def __len__(self) -> int:
        return len(self._values)

    def clear(self) -> None:
        with self._lock:
            self._values.clear()
