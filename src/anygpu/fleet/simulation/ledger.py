"""The outcome of every task: none may be lost, and none may have two.

`SimulatedFuture` stands in for a future and reports its end to the `Ledger`; `DecisionMeter` measures what our own code
takes for a decision.
"""

from __future__ import annotations

import time
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from anygpu.errors import InvalidTransition


class InvariantBroken(AssertionError):
    """A task was lost, or had two ends: a bug in anygpu, or in its simulation."""

    def __init__(self, problems: Sequence[str], seed: int) -> None:
        super().__init__(
            f"{'; '.join(problems)}. This is a bug in anygpu; please report it with the scenario and its seed, {seed}."
        )


class Ledger:
    """Counts of a run, over all drivers."""

    def __init__(self, expected: int, when_all_ended: Callable[[], None]) -> None:
        """Expects so many tasks; `when_all_ended` is called when the last of them has ended."""
        #: Tasks that have not ended yet, or not even come.
        self._left = expected
        self._when_all_ended = when_all_ended
        self.submitted = 0
        self.refused = 0
        self.delivered = 0
        self.failed: Counter[str] = Counter()
        #: Ends of tasks that had ended before, and transitions that the state machine forbids.
        self.twice = 0
        self.forbidden = 0
        self.launches = 0
        self.launched_tasks = 0
        #: Devices that failed.
        self.faults = 0
        #: Launches that were lost with a device or a link, and tasks that ran more than once.
        self.lost_launches = 0
        self.repeated = 0
        #: Seconds from submission until a task began on a device, and until its caller had the result.
        self.waits = array("d")
        self.latencies = array("d")

    def end(self) -> None:
        """A task has come to its end."""
        self._left -= 1
        if not self._left:
            self._when_all_ended()

    @property
    def lost(self) -> int:
        """Tasks that were submitted and have no end, which must be none when a run is over."""
        return self.submitted - self.delivered - self.refused - sum(self.failed.values())


class SimulatedFuture:
    """The end of one task as its caller sees it."""

    __slots__ = ("_began", "_done", "_ledger", "_receipt", "attempts", "on_end")

    #: No lane thread waits for it, and no event loop.
    _is_awaited = False
    is_of_a_loop = False

    def __init__(self, ledger: Ledger, on_end: Any) -> None:
        """Begins without an end; `on_end` is called once, at the task's end."""
        self._ledger = ledger
        self._began = self._done = False
        self._receipt: Any = None
        self.attempts = 0
        self.on_end = on_end

    def done(self) -> bool:
        return self._done

    def running(self) -> bool:
        return self._began and not self._done

    def cancelled(self) -> bool:
        return False

    def set_running_or_notify_cancel(self) -> bool:
        self._began = True
        return True

    def set_result(self, value: Any) -> None:
        if self._end():
            self._ledger.delivered += 1
            self._ledger.end()

    def set_exception(self, error: BaseException) -> None:
        """Counts the failure by its class; a forbidden transition is counted too."""
        if isinstance(error, InvalidTransition):
            self._ledger.forbidden += 1
        if self._end():
            self._ledger.failed[type(error).__name__] += 1
            self._ledger.end()

    def _end(self) -> bool:
        """Marks the end; returns `False` for a second one, which is counted as a bug."""
        if self._done:
            self._ledger.twice += 1
            return False
        self._done = True
        if self.attempts > 1:
            self._ledger.repeated += 1
        on_end, self.on_end = self.on_end, None
        if on_end is not None:
            on_end()
        return True


# -- what our own code takes for a decision, as it is: this is measured, not simulated


#: One of so many decisions is measured: asking for the processor's time takes a microsecond, and decisions take few.
#: A prime number, so that every kind of decision has its turn.
EVERY = 17


class DecisionMeter:
    """Adds up the processor seconds of decisions, from a sample of them."""

    __slots__ = ("_count", "_seconds")

    def __init__(self) -> None:
        self._count = 0
        self._seconds = 0.0

    def begin(self) -> float:
        """Before a decision; 0 if it is not measured."""
        self._count += 1
        return 0.0 if self._count % EVERY else time.thread_time()

    def end(self, begun: float) -> None:
        if begun:
            self._seconds += time.thread_time() - begun

    @property
    def seconds(self) -> float:
        """Seconds of all decisions, extrapolated from the sample."""
        return self._seconds * EVERY
