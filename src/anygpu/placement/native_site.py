"""A call site for NumPy or native code, before there is reason to compile it: most are never more than this."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

from anygpu.placement import loading
from anygpu.placement.history.hints import mark_of_code
from anygpu.placement.known import Known
from anygpu.receipts.notes import HostNote

if TYPE_CHECKING:
    from anygpu.placement.plan.choosing import DeviceChooser

#: Native code is prepared for calls that take so long each and together: it takes 0.1 s of Python beside them.
LEAST_FOR_NATIVE, BEFORE_NATIVE = 5e-6, 0.05
#: Calls of less than this wait for all that is loaded.
_SHORT = 0.1
#: What calls have to take where an earlier process has tried it in vain, or has ended before it was ready.
BEFORE_ANOTHER_TRY = 2.0


class NativeSite:
    """A call site that is for NumPy or native code: its calls run as they are until there is reason to compile them."""

    __slots__ = (
        "_next_look",
        "began",
        "calls",
        "changes",
        "direct",
        "is_marked",
        "is_tried",
        "key",
        "known",
        "least",
        "note",
        "paid",
        "seconds",
        "skip_planning",
        "tries",
    )

    runs_as_is = True
    looks_first = False

    def __init__(self, known: Known, key: tuple[Hashable, ...], note: HostNote) -> None:
        """Where an earlier process has found native code to be faster, the first call tries it."""
        self.known = known
        self.key = key
        self.note = note
        #: What runs the next call in place of NumPy: native code, or a trial of it.
        self.direct: Callable[..., Any] | None = None
        self.skip_planning = sys.maxsize
        #: Of calls on NumPy: how many, what they took together, and the quickest of them.
        self.calls, self.seconds, self.least = 0, 0.0, math.inf
        #: How often native code was tried, and how often something has changed that a program depends on.
        self.tries = self.changes = 0
        #: Whether a trial has begun and not ended yet.
        self.is_tried = False
        #: Seconds of calls that trials were allowed for.
        self.paid = 0.0
        #: What the clock and the processor's said then.
        self.began = time.perf_counter(), time.process_time()
        self.is_marked = was_in_vain = False
        if known.code is not None and (known.native_marks or known.numpy_marks):
            mark = mark_of_code(known.code, key)
            self.is_marked, was_in_vain = mark in known.native_marks, mark in known.numpy_marks
        self._next_look = 0.0 if self.is_marked else BEFORE_ANOTHER_TRY if was_in_vain else BEFORE_NATIVE
        if self.is_marked:
            self._look()

    def add(self, seconds: float) -> None:
        """A call ran on NumPy, and took so long."""
        self.calls += 1
        self.seconds += seconds
        self.least = min(self.least, seconds)

    def ran_on_host(self, seconds: float) -> None:
        """A call ran on NumPy because there was nothing else, and took so long."""
        self.add(seconds)
        if self.seconds >= self._next_look:
            self._look()

    def use(self, native: Callable[..., Any]) -> None:
        """This runs the calls from now on. Any thread may say so."""
        self.direct, self.skip_planning, self.is_tried = native, 0, False

    def _look(self) -> None:
        """Load what native code needs, and have the next call try it."""
        if self.seconds < LEAST_FOR_NATIVE * self.calls and not self.is_marked:
            self._next_look *= 4
        elif not loading.native.is_ready:
            from anygpu.placement.native_loading import begin_for

            begin_for(self)
        elif self.least < _SHORT and loading.native.is_under_way() and not self.is_marked:
            pass  # tracing beside that would take twice as long, and the next calls will come soon
        elif self.direct is None:
            self.direct, self.skip_planning = self.begin_trial(), 0

    def begin_trial(self) -> Callable[..., Any]:
        """What runs the next call: it tries native code."""
        from anygpu.placement.native import NativeTrial

        return NativeTrial(self)

    def look_again(self, after: float) -> None:
        """Calls run on NumPy, until they have taken so many times as long as so far."""
        self._next_look, self.is_tried = after * self.seconds, False
        # In this order: a call on another thread that finds nothing to run it is not planned instead.
        self.skip_planning, self.direct = sys.maxsize, None

    def wait(self) -> None:
        """Until a trial has ended, calls run as they are."""
        self.look_again(math.inf)
        self.is_tried = True

    @property
    def is_settled(self) -> bool:
        """Whether it is known that calls stay on NumPy."""
        return self._next_look == math.inf and self.tries > 0 and self.direct is None and not self.is_tried

    def stay(self, reason: str) -> None:
        """Calls run on NumPy from now on."""
        self.look_again(math.inf)
        self.say(reason)

    def say(self, reason: str) -> None:
        """What receipts of calls on NumPy say from now on."""
        self.note = self.note._replace(reason=reason)

    def report_to(self, chooser: DeviceChooser) -> float:
        """Report all calls; what they took together."""
        chooser.baseline_ran(self.calls, self.seconds)
        return self.seconds
