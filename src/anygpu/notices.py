"""Operations that ran on the host although they were meant for a device: told to whoever listens, never kept silent."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from contextvars import ContextVar

from anygpu.receipts import HostOperation


class HostFallback(UserWarning):
    """An operation ran on the host because the device, or anygpu, lacks it."""


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
