"""Call sites for NumPy or native code: most stay on NumPy for good.

A site keeps the numbers that decisions need, and passes events to its life (`anygpu.calls.lifecycle`), which says what
comes next.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

from anygpu.calls.hints import mark_of_code
from anygpu.calls.site import NumpySite
from anygpu.receipts.notes import HostNote

if TYPE_CHECKING:
    from anygpu.calls.call_table import CallTable
    from anygpu.calls.lifecycle import Event, Life

#: Seconds of calls before native code is tried; and where an earlier process has tried it in vain.
BEFORE_NATIVE, BEFORE_ANOTHER_TRY = 0.05, 2.0

#: Runs a call, given the function, its arguments and keywords, and the time when the call began.
Runner = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any], float], Any]


class NativeSite(NumpySite):
    """Calls that name no device: they run unchanged until there is reason to compile them."""

    __slots__ = ("_life", "began", "code", "key", "known_faster", "least", "look_at", "paid", "table")

    def __init__(self, table: CallTable, key: tuple[Hashable, ...], note: HostNote) -> None:
        super().__init__(note)
        self.table = table
        self.key = key
        #: The code that runs the next call in place of the user's function, in states that have it.
        self.code: Runner | None = None
        #: Seconds of the quickest call on NumPy.
        self.least = math.inf
        #: The seconds of calls that have been credited to the allowance for trials.
        self.paid = 0.0
        #: The clock and the processor time when the site was made.
        self.began = time.perf_counter(), time.process_time()
        #: Whether an earlier process has found native code to be faster: then the first call tries it.
        self.known_faster = was_in_vain = False
        if table.code is not None and (table.native_marks or table.numpy_marks):
            mark = mark_of_code(table.code, key)
            self.known_faster, was_in_vain = mark in table.native_marks, mark in table.numpy_marks
        self.look_at = 0.0 if self.known_faster else BEFORE_ANOTHER_TRY if was_in_vain else BEFORE_NATIVE
        self._life: Life | None = None
        if self.known_faster:
            self._maybe_start_trial()

    def run(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any], begin: float
    ) -> Any:
        """Run a call with the code of the current state."""
        code = self.code  # read once: another thread may take it away
        if code is not None:
            return code(function, arguments, keywords, begin)
        from anygpu.native.calls import CallArgs, on_numpy  # few calls lose that race

        return on_numpy(self, CallArgs(function, arguments, keywords, begin))

    def add(self, seconds: float) -> None:
        """Count a call on NumPy without deciding anything."""
        self.calls += 1
        self.seconds += seconds
        self.least = min(self.least, seconds)

    def ran(self, seconds: float) -> None:
        """Count a call on NumPy, and decide what comes next when that is due."""
        self.add(seconds)
        if self.seconds >= self.look_at:
            self._maybe_start_trial()

    @property
    def life(self) -> Life:
        """The state, and the numbers that decide about the next one. The machine is imported with the first event."""
        if self._life is None:
            from anygpu.calls.lifecycle import Life

            self._life = Life(reason=self.note.reason, look_at=self.look_at)
        return self._life

    @life.setter
    def life(self, life: Life) -> None:
        self._life, self.look_at, self.note = life, life.look_at, self.note._replace(reason=life.reason)

    def tell(
        self, event: Event, *, code: Runner | None = None, reason: str | None = None, look_at: float = math.inf
    ) -> bool:
        """Pass on an event, from any thread, with the code for the next calls; return whether it changed anything."""
        from anygpu.calls.telling import tell  # with the first event

        return tell(self, event, code, reason, look_at)

    def run_by(self, code: Runner | None) -> None:
        """Let `code` run the next calls, or the user's function if it is `None`."""
        if code is None:
            self.runs_as_is, self.code = True, None  # in this order: calls of other threads read the first one first
        else:
            self.code, self.runs_as_is = code, False

    def retry_after(self, factor: float, event: Event = "refused for now", reason: str | None = None) -> None:
        """Run calls on NumPy until they have taken `factor` times as long as so far."""
        self.tell(event, reason=reason, look_at=factor * self.seconds)

    def _maybe_start_trial(self) -> None:
        """Decide what comes next, and begin it."""
        from anygpu.calls.looking import look  # most sites never get there

        look(self)
