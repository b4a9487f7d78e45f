"""Compiled programs of an engine, and what its compiler refused."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from anygpu.base.lru import LRUCache
from anygpu.errors import CannotCompile
from anygpu.hardware.device import Device

Compiled = TypeVar("Compiled")


class ProgramCache(Generic[Compiled]):
    """By key. A refusal is cached like a program, so that a compiler is not asked twice."""

    def __init__(self) -> None:
        self._known: LRUCache[Compiled | CannotCompile] = LRUCache()

    def get(self, key: Hashable, compile_program: Callable[[], Compiled | CannotCompile]) -> Compiled:
        """The compiled program; raises `CannotCompile` where the compiler refused it, now or earlier."""
        found = self._known.get(key, compile_program)
        if isinstance(found, CannotCompile):
            raise found.with_traceback(None)
        return found

    def clear(self) -> None:
        self._known.clear()


def refused(device: Device, error: Exception) -> CannotCompile:
    """The error by which a library says that it cannot compile or run a program."""
    return CannotCompile(device.id, f"{type(error).__name__}: {error}")
