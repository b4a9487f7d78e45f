"""Events of the workers of devices: opened, lost, replaced."""

from __future__ import annotations

from typing import Literal, NamedTuple


class WorkerEvent(NamedTuple):
    """A worker was opened, found dead, or opened in place of a dead one."""

    what: Literal["opened", "lost", "replaced"]
    device: str
    generation: int
    #: How long opening took; 0 for a loss.
    seconds: float
    #: Why it was lost; empty for all others.
    why: str = ""
