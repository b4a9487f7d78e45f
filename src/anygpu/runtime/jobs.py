"""A task in the queue: a call, the future that its caller holds, and what was asked of both."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

from anygpu.array.core.array import Array
from anygpu.array.core.structure import flatten
from anygpu.base import events
from anygpu.errors import NotANumber
from anygpu.notes import Failure, Origin
from anygpu.placement.call import Call
from anygpu.placement.options import NaNs
from anygpu.placement.retry import LockedTask
from anygpu.placement.trust import Modes
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
        "origin",
        "planning",
        "priority",
        "receipt_sinks",
        "seconds",
        "started",
        "submitted",
        "taken",
        "tenant",
        "until",
        "withdrawals",
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
        origin: Origin | None = None,
    ) -> None:
        self.number = number
        self.call = call
        self.future = future
        self.life = life
        #: Jobs of one kind can become one launch. A job that must run alone has a kind of its own, which is
        #: not the job itself: that would keep its arguments until the garbage collector comes.
        self.kind: Hashable = _kind(call) if call.cacheable and modes is None else object()
        self.priority = priority
        self.tenant = tenant
        self.submitted = submitted
        #: Its deadline on the monotonic clock.
        self.until = until
        self.nan = nan
        self.idempotent = idempotent
        #: Bytes of its arguments, and of its results where they are known.
        self.nbytes = nbytes
        #: The receipt lists that were active where it was submitted.
        self.receipt_sinks = receipt_sinks
        #: The user's own line where it was submitted.
        self.line = line
        #: NumPy's floating-point modes where it was submitted, unless they were the defaults.
        self.modes = modes
        #: Where it was submitted, for those who observe it.
        self.origin = origin
        #: Called with its return value and whether it succeeded, before its caller gets it.
        self.witness: Callable[[Any, bool], None] | None = None
        #: Seconds spent on tracing it and evaluating devices before it was queued.
        self.planning = 0.0
        #: The lane that it waits for, and the predicted seconds there.
        self.lane = ""
        self.seconds = 0.0
        self.started = 0.0
        #: Whether a lane has taken it from the queue and not started it yet.
        self.taken = False
        #: Whether it has ever started.
        self.begun = False
        #: How often a worker was lost before the task had begun there.
        self.withdrawals = 0
        #: The bytes charged to its lane while it runs.
        self.held_bytes = 0
        #: Where it runs, or would run now.
        self.choice: Choice | None = None
        #: Where it must run after a failure.
        self.forced: Choice | None = None
        self.attempts: tuple[Attempt, ...] = ()

    @property
    def name(self) -> str:
        return self.call.site.task

    def fail(self, error: BaseException) -> None:
        """Raise the error where the result is awaited."""
        if events.calls:
            now = time.perf_counter()
            began = self.origin.time if self.origin is not None else now
            device = self.choice.candidate if self.choice is not None else "numpy"
            events.calls.tell(Failure(self.name, device, type(error).__name__, began, now), self.origin)
        self.future.set_exception(error)

    def alone(self) -> None:
        """Keep it out of batches from now on."""
        self.kind = object()

    def check(self, value: Any) -> None:
        """Raises `NotANumber` for a NaN in the result, if the caller asked for that."""
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


def _kind(call: Call) -> Hashable:
    """Calls of opaque tasks may differ in their rows."""
    return call.site if call.site.options.engine is None else call.form.form
