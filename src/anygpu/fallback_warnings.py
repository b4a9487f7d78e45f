"""What ran elsewhere than it was meant to: told to whoever listens, never kept silent."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator
from contextvars import ContextVar

from anygpu.receipts import HostOperation


class HostFallback(UserWarning):
    """An operation ran on the host because the device, or anygpu, lacks it."""


class DeviceFallback(UserWarning):
    """A call ran on another device than the one that was asked for, or chosen first."""


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
    listeners = _listeners.get()
    for collected in listeners:
        collected.append(operation)
    if not listeners:
        at = f" ({operation.line})" if operation.line else ""
        message = (
            f"{operation.operation}{at} ran on the host, and {operation.bytes_moved:,} bytes were moved for it: "
            f"{operation.reason}."
        )
        # Blamed on the user's own line, so that it is shown once for each of those and not once for ours.
        file, _, number = (operation.line or "").rpartition(":")
        warnings.warn_explicit(message, HostFallback, file or "anygpu", int(number) if number.isdigit() else 0)


#: Causes that have been told, with the lines that they were told about: nobody needs to hear it twice.
_said: set[tuple[tuple[str, ...], str, int]] = set()


def warn_fallback(sentence: str, *, cause: tuple[str, ...]) -> None:
    """Warn with the user's own line, once for each cause and line; the sentence may differ from time to time."""
    file, number = users_line()
    if (cause, file, number) not in _said:
        _said.add((cause, file, number))
        warnings.warn_explicit(sentence, DeviceFallback, file, number)


def forget_what_was_said() -> None:
    """For tests, and for whoever wants to hear it all again."""
    _said.clear()


_blamed: ContextVar[tuple[str, int] | None] = ContextVar("the line that a task was submitted on", default=None)


def attribute_to_line(line: tuple[str, int]) -> None:
    """On a thread that runs tasks of others: what is told from now on is about the one that was submitted there."""
    _blamed.set(line)


def users_line() -> tuple[str, int]:
    """The nearest line outside of this package and of NumPy's dispatching, or the one that is blamed."""
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
