"""How long kernels may be tuned, set by the caller that has a program compiled.

Apart from `anygpu.engines.tuner`, because a process that has others compile for it needs no compiler to say so.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_LIMIT: ContextVar[float | None] = ContextVar("tuning seconds", default=None)


@contextmanager
def tuning_limited_to(seconds: float | None) -> Iterator[None]:
    """Programs that this thread has compiled in this block spend no more than that; `None` is no limit."""
    before = _LIMIT.set(seconds)
    try:
        yield
    finally:
        _LIMIT.reset(before)


def tuning_limit() -> float | None:
    """The limit that holds here; `None` when there is none."""
    return _LIMIT.get()
