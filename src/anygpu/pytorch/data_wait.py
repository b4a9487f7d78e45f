"""How long this thread, or asynchronous task, waited for the batches of its next training step.

Whoever hands out batches adds to it, and the step takes it. Each adds under a token of its own: what a loop over other
batches left behind, such as one that only evaluates, is forgotten when that loop ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar

#: Never changed in place: copies of a context share the object.
_waits: ContextVar[Mapping[object, float]] = ContextVar("waits for batches", default={})  # noqa: B039


def add(source: object, seconds: float) -> None:
    waits = _waits.get()
    _waits.set({**waits, source: waits.get(source, 0.0) + seconds})


def forget(source: object) -> None:
    """What `source` has added and nobody has taken."""
    waits = _waits.get()
    if source in waits:
        _waits.set({other: seconds for other, seconds in waits.items() if other is not source})


def take() -> float | None:
    """Seconds since the last `take`; `None` if nobody has measured any."""
    waits = _waits.get()
    if not waits:
        return None
    _waits.set({})
    return sum(waits.values())
