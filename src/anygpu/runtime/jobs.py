"""A task in the queue: a call, the future that its caller holds, and what was asked of both."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

from anygpu.array.core.array import Array
from anygpu.array.core.structure import flatten
from anygpu.errors import NotANumber
from anygpu.placement.call import Call
from anygpu.placement.floating_point import Modes
from anygpu.placement.options import NaNs
from anygpu.placement.retry import LockedTask
from anygpu.plan.choosing import Choice
from anygpu.receipts import Attempt, Receipt
from anygpu.runtime.future import Future


class Job:
    """One submitted call."""

    __slots__ = (
        "attempts",
        "begun",
        "call",
        "choice",
        "forced",
        "future",
        "held_bytes",
        "idempotent",
        "kind",
        "lane",
        "life",
        "line",
        "modes",
        "nan",
        "nbytes",
        "number",
        "planning",
        "priority",
        "receipt_sinks",
        "seconds",
        "started",
        "submitted",
        "taken",
        "tenant",
        "until",
        "witness",
    )

    def __init__(
        self,
        number: int,
        call: Call,
        future: Future,
        life: LockedTask,
        *,
        priority: int,
        tenant: str,
        submitted: float,
        until: float | None,
        nan: NaNs,
        idempotent: bool,
        nbytes: int,
        receipt_sinks: tuple[list[Receipt], ...],
        line: tuple[str, int],
        modes: Modes | None = None,
    ) -> None:
        self.number = number
        self.call = call
        self.future = future
        self.life = life
        #: Jobs of one kind can become one launch. One that nobody will see again, or that must be alone, is its own.
        self.kind: Hashable = call.state if call.cacheable and modes is None else self
        self.priority = priority
        self.tenant = tenant
        self.submitted = submitted
        #: When its time is over.
        self.until = until
        self.nan = nan
        self.idempotent = idempotent
        #: Of its arguments, and of its results where they are known.
        self.nbytes = nbytes
        #: Who collects receipts where it was submitted.
        self.receipt_sinks = receipt_sinks
        #: The user's own line where it was submitted.
        self.line = line
        #: NumPy's floating-point modes where it was submitted, if they were not as usual.
        self.modes = modes
        #: Told what it returned, before its caller is, and whether it succeeded.
        self.witness: Callable[[Any, bool], None] | None = None
        #: Seconds that were spent on recording it and looking at devices before it waited for one.
        self.planning = 0.0
        #: The lane that it waits for, and the seconds that it is expected to take there.
        self.lane = ""
        self.seconds = 0.0
        self.started = 0.0
        #: Whether a lane has taken it out of the queue, and has not come to it yet.
        self.taken = False
        #: Whether it has begun anywhere.
        self.begun = False
        #: What it counts for in the lane's memory while it runs.
        self.held_bytes = 0
        #: Where it runs, or would if it ran now.
        self.choice: Choice | None = None
        #: Where it has to run, after a failure.
        self.forced: Choice | None = None
        self.attempts: tuple[Attempt, ...] = ()

    @property
    def name(self) -> str:
        return self.call.state.task

    def alone(self) -> None:
        """From now on it is in no batch."""
        self.kind = self

    def check(self, value: Any) -> None:
        """Raises `NotANumber` for a result that its caller does not want."""
        if self.nan == "allow":
            return
        for leaf in flatten(value)[0]:
            if isinstance(leaf, np.ndarray | np.generic | Array | float | complex):
                values = np.asarray(leaf)
                if values.dtype.kind not in "fc":
                    continue
                found = np.isnan(values)
                if found.any():
                    position = np.unravel_index(int(np.argmax(found)), found.shape)
                    raise NotANumber(self.name, tuple(int(each) for each in position))
