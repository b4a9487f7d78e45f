"""A call site whose calls will be planned, before that is known to pay."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING

from anygpu.notes import HostNote
from anygpu.placement import loading
from anygpu.placement.known import NEW
from anygpu.units import readable_seconds

if TYPE_CHECKING:
    from anygpu.plan.choosing import DeviceChooser

#: Planning a call takes some 50 µs. Calls that take less than the first are left alone for long; of those that
#: take less than the second, the first five are.
_SHORT, _MIDDLING = 2e-5, 2e-4
#: Calls of one kind run for so long without planning while what plans them is loaded, on a thread beside them.
_LOADING = 0.2


class NewCallSite:
    """A call site of which only the time of its calls is known. They run on the host, as they are."""

    __slots__ = (
        "_before_loading",
        "_granted",
        "_seconds",
        "_until_loading",
        "note",
        "skip_planning",
        "unreported_seconds",
    )

    runs_as_is = True
    looks_first = False
    direct = None

    def __init__(self, note: HostNote, *, before_loading: float | None = None) -> None:
        """`before_loading` are seconds that calls take until what plans them is loaded; `None` if it is already.

        If these are infinite, calls are never planned.
        """
        self.note = note
        self.skip_planning = self._granted = 1
        self.unreported_seconds = 0.0
        #: Of the first call, once that has run.
        self._seconds: float | None = None
        self._before_loading = before_loading
        self._until_loading = math.inf

    def ran_on_host(self, seconds: float) -> None:
        """A call was run without planning, and took so long."""
        if self._seconds is None:
            self._grant_calls(seconds)
            return
        if self.skip_planning == self._granted:
            self._say_how_many()
        self.skip_planning -= 1
        self.unreported_seconds += seconds
        if self.unreported_seconds > self._until_loading:
            self._load()
        if self.skip_planning <= 0:
            self._await_loading()

    def _grant_calls(self, seconds: float) -> None:
        """The first call took so long: how many more run before one is planned."""
        before = self._before_loading
        calls = 1024 if seconds < _SHORT else 4 if seconds < _MIDDLING else 0
        if before == math.inf:
            calls = sys.maxsize
        elif before is not None:
            calls = max(calls, min(1024, int((before + _LOADING) / seconds))) if seconds else 1024
        self.skip_planning = self._granted = calls
        self._seconds = seconds
        self._until_loading = math.inf if before is None else before - seconds
        if self._until_loading <= 0:
            self._load()
        if before is not None and not calls:
            self._await_loading()

    def _say_how_many(self) -> None:
        """Not before its second call: arguments that are new with every call have none."""
        if self._granted < sys.maxsize and self.note.reason == NEW:
            # Receipts are made later, so that the sentence has to be right for the last of these calls too.
            took = readable_seconds(self._seconds or 0.0)
            reason = f"it took {took} at first: {self._granted:,} calls run on numpy before it is planned."
            self.note = self.note._replace(reason=reason)

    def _await_loading(self) -> None:
        """Let calls run as they are until what plans them is loaded: no call waits for hundreds of imports."""
        if loading.is_loaded():
            return
        loading.begin()
        if loading.is_under_way():
            each = ((self._seconds or 0.0) + self.unreported_seconds) / (1 + self._granted)
            more = max(1, min(64, int(_LOADING / each))) if each else 64
            self.skip_planning += more
            self._granted += more

    def _load(self) -> None:
        self._until_loading = math.inf
        if loading.costs_little():
            loading.begin()

    def report_to(self, chooser: DeviceChooser) -> float:
        """Report all calls; what they took together."""
        if self._seconds is None:
            return 0.0
        chooser.baseline_ran(1, self._seconds)
        chooser.baseline_ran(self._granted - self.skip_planning, self.unreported_seconds)
        return self._seconds + self.unreported_seconds
