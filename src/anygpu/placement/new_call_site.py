"""A call site whose calls will be planned, before that is known to pay."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

import numpy as np

from anygpu.history.hints import is_marked
from anygpu.notes import HostNote
from anygpu.placement import loading
from anygpu.placement.known import NEW, Known, has_own_array
from anygpu.units import readable_seconds

if TYPE_CHECKING:
    from anygpu.placement.planner import Planner
    from anygpu.plan.choosing import DeviceChooser

#: A first call with arguments this large is recorded before it runs: then it need not run on NumPy if that is hopeless.
LARGE = 1 << 20
#: `LARGE` while the machine has not been looked at, and recording may have to load its modules first.
VERY_LARGE = 1 << 24
#: Loading what plans calls takes some 0.1 s. Before that is begun, calls of one kind run for so long without planning.
_BEFORE_LOADING = 0.3

#: Planning a call takes some 50 µs. Calls that take less than the first are left alone for long; of those that
#: take less than the second, the first five are.
_SHORT, _MIDDLING = 2e-5, 2e-4
#: Calls of one kind run for so long without planning while what plans them is loaded, on a thread beside them.
_LOADING = 0.2


def new_call_site(
    function: Callable[..., Any],
    known: Known,
    note: HostNote,
    key: tuple[Hashable, ...],
    arguments: tuple[Any, ...],
    keywords: dict[str, Any],
    find_planner: Callable[[], Planner],
) -> NewCallSite | None:
    """For a first call that is to run at once: without anygpu's own arrays, and without large ones; else `None`."""
    if has_own_array(key) or not _are_small(arguments, keywords):
        return None
    if loading.is_loaded():
        return NewCallSite(note)
    if known.options.names_only_numpy or not is_marked(function):
        return NewCallSite(note, before_loading=_BEFORE_LOADING)
    # Earlier processes say that it pays.
    loading.begin(lambda: find_planner().wake(pays=True))
    return NewCallSite(note, before_loading=0.0)


def _are_small(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> bool:
    if not loading.is_loaded():
        # Arrays inside of other objects are not looked for: that alone would load most of anygpu.
        return not _has_larger((arguments, keywords), VERY_LARGE)
    from anygpu.placement.values import largest_of

    return largest_of(arguments, keywords) < LARGE


def _has_larger(value: Any, size: int, depth: int = 4) -> bool:
    """Whether there is an array of at least that size in tuples, lists and dicts."""
    kind = type(value)
    if kind is np.ndarray:
        found: bool = value.size >= size
        return found
    if not depth or kind not in (tuple, list, dict):
        return False
    return any(_has_larger(each, size, depth - 1) for each in (value.values() if kind is dict else value))


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
        """`before_loading` are seconds that calls take until what plans them is loaded; `None` if it is already."""
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
        if before is not None:
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
        if self.note.reason == NEW:
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
        loading.begin()

    def report_to(self, chooser: DeviceChooser) -> float:
        """Report all calls; what they took together."""
        if self._seconds is None:
            return 0.0
        chooser.baseline_ran(1, self._seconds)
        chooser.baseline_ran(self._granted - self.skip_planning, self.unreported_seconds)
        return self._seconds + self.unreported_seconds
