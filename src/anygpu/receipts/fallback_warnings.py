"""Warnings about work that ran elsewhere than asked for: no fallback is silent."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator
from contextvars import ContextVar

from anygpu.base import events
from anygpu.errors import DeviceFallback, HostFallback
from anygpu.receipts.receipt import HostOperation

_listeners: ContextVar[tuple[list[HostOperation], ...]] = ContextVar("host operations", default=())


@contextlib.contextmanager
def host_operations() -> Iterator[list[HostOperation]]:
    """Collects what runs on the host inside the block, instead of warning about it."""
    collected: list[HostOperation] = []
    token = _listeners.set((*_listeners.get(), collected))
    try:
        yield collected
    finally:
        _listeners.reset(token)


def ran_on_host(operation: HostOperation) -> None:
    events.host_operations.tell(operation)
    listeners = _listeners.get()
    for collected in listeners:
        collected.append(operation)
    if not listeners:
        at = f" ({operation.line})" if operation.line else ""
        message = (
            f"{operation.operation}{at} ran on the host, and {operation.bytes_moved:,} bytes were copied for it: "
            f"{operation.reason}."
        )
        # Attributed to the user's own line, so that Python shows it once for each such line.
        file, _, number = (operation.line or "").rpartition(":")
        warnings.warn_explicit(message, HostFallback, file or "anygpu", int(number) if number.isdigit() else 0)


#: Causes that were already warned about, with the user's line.
_said: set[tuple[tuple[str, ...], str, int]] = set()


def warn_fallback(sentence: str, *, cause: tuple[str, ...]) -> None:
    """Warn at the user's own line, once for each cause and line, however the sentence varies."""
    file, number = users_line()
    if (cause, file, number) not in _said:
        _said.add((cause, file, number))
        warnings.warn_explicit(sentence, DeviceFallback, file, number)


def forget_what_was_said() -> None:
    """Show every warning again, for tests and interactive sessions."""
    _said.clear()


_blamed: ContextVar[tuple[str, int] | None] = ContextVar("the line that a task was submitted on", default=None)


def attribute_to_line(line: tuple[str, int]) -> None:
    """On a thread that runs submitted tasks: attribute the warnings that follow to the line that submitted this one."""
    _blamed.set(line)


def users_line() -> tuple[str, int]:
    """The nearest line outside this package and NumPy's dispatch, or the line set by `attribute_to_line`."""
    blamed = _blamed.get()
    if blamed is not None:
        return blamed
    frame = sys._getframe(1)
    while frame is not None:
        if not frame.f_globals.get("__name__", "").startswith(("anygpu.", "numpy.")):
            return frame.f_code.co_filename, frame.f_lineno
        if frame.f_back is None:
            break
        frame = frame.f_back
    return "anygpu", 0
