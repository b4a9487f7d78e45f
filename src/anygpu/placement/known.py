"""What is known of functions whose calls are placed, as far as the first calls need it.

This module and what it imports are all that a process loads whose calls are few and short.
"""

from __future__ import annotations

import contextlib
import functools
import math
import sys
from collections import OrderedDict
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

from anygpu.notes import HostNote
from anygpu.placement import loading
from anygpu.placement.options import Options
from anygpu.placement.signature import LIFTED, without
from anygpu.units import readable_seconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from anygpu.placement.call_site import CallSite
    from anygpu.placement.native import NativeTrial
    from anygpu.placement.native_calls import NativeCalls
    from anygpu.placement.opaque_form import OpaqueForm
    from anygpu.plan.choosing import DeviceChooser

#: A first call with arguments this large is recorded before it runs: then it need not run on NumPy if that is hopeless.
LARGE = 1 << 20
#: `LARGE` while the machine has not been looked at, and recording may have to load its modules first.
VERY_LARGE = 1 << 24

#: Planning a call takes some 50 µs. Calls that take less than the first are left alone for long; of those that
#: take less than the second, the first five are.
_SHORT, _MIDDLING = 2e-5, 2e-4
#: Loading what plans calls takes some 0.1 s. Before that is begun, calls of one kind run for so long without planning;
#: and for so long while it is loaded, on a thread beside them.
BEFORE_LOADING, _LOADING = 0.3, 0.2

#: Native code is prepared for calls that take so long each, and have taken so long together. Preparing takes some 50 ms
#: of Python's lock, and a fifth of a second of another processor.
LEAST_FOR_NATIVE, BEFORE_NATIVE = 5e-6, 0.02
#: What calls have to take before it is tried again in a process, where an earlier one has tried it in vain.
BEFORE_ANOTHER_TRY = 2.0

#: Kinds of arguments that are remembered for one function, and such that are new.
_MOST_SITES, _MOST_NEW = 1024, 256
#: In place of the value of a call that must be planned after all.
PLAN: Any = object()
_NEW = "it is new, and its first calls are measured on numpy."


class Known:
    """The call sites of one function with some options."""

    __slots__ = ("forms", "is_marked", "lifted", "native", "new", "options", "planned", "quick", "sites", "was_in_vain")

    def __init__(self, options: Options) -> None:
        self.options = options
        #: Types of numbers whose values are no part of a key.
        self.lifted = LIFTED
        #: By key, the latest last. Those of which only the time of a call is known are apart: arguments that are new
        #: with every call do not drive out what was learnt of others.
        self.sites: OrderedDict[Hashable, CallSite] = OrderedDict()
        self.new: dict[Hashable, NewCallSite] = {}
        #: Those that run on NumPy until native code is ready for them, and on that from then on.
        self.native: dict[Hashable, NativeSite] = {}
        #: Keys of calls that were native code and are planned now, because another device is faster still.
        self.planned: set[Hashable] = set()
        #: The native code of the last call: whether it is that of the next one too, it can tell without a key.
        self.quick: NativeCalls | None = None
        #: Whether an earlier process has found native code to be faster, or has tried it in vain.
        self.is_marked = self.was_in_vain = False
        #: Of an opaque task, by what arguments have in common beside their rows.
        self.forms: dict[Hashable, OpaqueForm] = {}

    def on_value_dependence(self, types: frozenset[type]) -> None:
        """What the function computes depends on the values of such numbers: they are part of a key from now on."""
        self.lifted = without(self.lifted, types)

    def remember(self, key: Hashable, site: CallSite) -> None:
        self.new.pop(key, None)
        self.sites[key] = site
        if len(self.sites) > _MOST_SITES:
            self.sites.popitem(last=False)

    def used(self, key: Hashable) -> None:
        """Not the next to be forgotten."""
        with contextlib.suppress(KeyError):  # forgotten since, by another thread
            self.sites.move_to_end(key)

    def remember_new(self, key: Hashable, early: NewCallSite) -> None:
        if len(self.new) >= _MOST_NEW:
            self.new.clear()  # which costs less than to look for the oldest one
        self.new[key] = early

    def plan_from_now_on(self, key: Hashable) -> None:
        """Calls are planned, and native code gets none of them."""
        if len(self.planned) >= _MOST_SITES:
            self.planned.clear()
        self.planned.add(key)
        self.native.pop(key, None)
        self.quick = None

    def remember_native(self, key: Hashable, site: NativeSite) -> None:
        if len(self.native) >= _MOST_NEW:
            # Arguments that are new with every call do not drive out what was compiled for others.
            self.native = {old: each for old, each in self.native.items() if each.direct is not None}
            if len(self.native) >= _MOST_SITES:
                self.native.clear()
        self.native[key] = site


def note_of_new(task: str, options: Options) -> HostNote:
    """The note of a call site that is new, or the reason why it stays on NumPy in any case."""
    if options.cpu_is_numpy is not None:
        return HostNote(task, options.cpu_is_numpy, None)
    if options.needs_no_planning:
        return HostNote(task, "numpy is the only device allowed.", None)
    return HostNote(task, _NEW, None)


class NativeSite:
    """A call site that is for NumPy or native code: its calls run as they are until there is reason to compile them."""

    __slots__ = (
        "_next_look",
        "calls",
        "changes",
        "direct",
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

    def __init__(self, known: Known, key: Hashable, note: HostNote) -> None:
        """Where an earlier process has found native code to be faster, the first call tries it."""
        self.known = known
        self.key = key
        self.note = note
        #: What runs the next call in place of NumPy: native code, or a trial of it.
        self.direct: NativeCalls | NativeTrial | Callable[..., Any] | None = None
        self.skip_planning = sys.maxsize
        #: Of calls on NumPy: how many, what they took together, and the quickest of them.
        self.calls, self.seconds, self.least = 0, 0.0, math.inf
        #: How often native code was tried, and how often something has changed that a program depends on.
        self.tries = self.changes = 0
        #: Seconds of calls that trials were allowed for.
        self.paid = 0.0
        self._next_look = 0.0 if known.is_marked else BEFORE_ANOTHER_TRY if known.was_in_vain else BEFORE_NATIVE
        if known.is_marked:
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

    def use(self, native: NativeCalls | Callable[..., Any]) -> None:
        """Calls run as native code from now on. Any thread may say so."""
        self.direct, self.skip_planning = native, 0

    def _look(self) -> None:
        """Load what native code needs, and have the next call try it."""
        if self.seconds < LEAST_FOR_NATIVE * self.calls and not self.known.is_marked:
            self._next_look *= 4
        elif not loading.native.is_ready:
            loading.begin_native(compiles=not self.known.is_marked)
        elif self.direct is None:
            from anygpu.placement.native import NativeTrial

            self.direct, self.skip_planning = NativeTrial(self), 0

    def look_again(self, after: float) -> None:
        """Calls run on NumPy, until they have taken so many times as long as so far."""
        self._next_look = after * self.seconds
        self.direct, self.skip_planning = None, sys.maxsize

    @property
    def is_settled(self) -> bool:
        """Whether it is known that calls stay on NumPy."""
        return self._next_look == math.inf and self.tries > 0 and self.direct is None

    def stay(self, reason: str) -> None:
        """Calls run on NumPy from now on."""
        self.look_again(math.inf)
        self.note = self.note._replace(reason=reason)

    def report_to(self, chooser: DeviceChooser) -> float:
        """Report all calls; what they took together."""
        chooser.baseline_ran(self.calls, self.seconds)
        return self.seconds


class NewCallSite:
    """A call site of which only the time of its calls is known. They run on the host, as they are."""

    __slots__ = ("_granted", "_seconds", "_until_loading", "note", "skip_planning", "unreported_seconds")

    runs_as_is = True
    looks_first = False
    direct = None

    def __init__(self, note: HostNote, seconds: float, *, before_loading: float | None = None) -> None:
        """`before_loading` are seconds that calls take until what plans them is loaded; `None` if it is already.

        If these are infinite, calls are never planned.
        """
        calls = 1024 if seconds < _SHORT else 4 if seconds < _MIDDLING else 0
        if before_loading == math.inf:
            calls = sys.maxsize
        elif before_loading is not None:
            calls = max(calls, min(1024, int((before_loading + _LOADING) / seconds))) if seconds else 1024
        self.note = note
        self.skip_planning = self._granted = calls
        self.unreported_seconds = 0.0
        self._seconds = seconds
        self._until_loading = math.inf if before_loading is None else before_loading - seconds
        if self._until_loading <= 0:
            self._load()
        if before_loading is not None and not calls:
            self._await_loading()

    def ran_on_host(self, seconds: float) -> None:
        """A call was run without planning, and took so long."""
        if self.skip_planning == self._granted:
            self._say_how_many()
        self.skip_planning -= 1
        self.unreported_seconds += seconds
        if self.unreported_seconds > self._until_loading:
            self._load()
        if self.skip_planning <= 0:
            self._await_loading()

    def _say_how_many(self) -> None:
        """Not before its second call: arguments that are new with every call have none."""
        if self._granted < sys.maxsize and self.note.reason == _NEW:
            # Receipts are made later, so that the sentence has to be right for the last of these calls too.
            took = readable_seconds(self._seconds)
            reason = f"it took {took} at first: {self._granted:,} calls run on numpy before it is planned."
            self.note = self.note._replace(reason=reason)

    def _await_loading(self) -> None:
        """Let calls run as they are until what plans them is loaded: no call waits for hundreds of imports."""
        if loading.is_loaded():
            return
        loading.begin()
        if loading.is_under_way():
            each = (self._seconds + self.unreported_seconds) / (1 + self._granted)
            more = max(1, min(64, int(_LOADING / each))) if each else 64
            self.skip_planning += more
            self._granted += more

    def _load(self) -> None:
        self._until_loading = math.inf
        if loading.costs_little():
            loading.begin()

    def report_to(self, chooser: DeviceChooser) -> float:
        """Report all calls; what they took together."""
        chooser.baseline_ran(1, self._seconds)
        chooser.baseline_ran(self._granted - self.skip_planning, self.unreported_seconds)
        return self._seconds + self.unreported_seconds


def name_of(function: Any) -> str:
    """The name of a function in receipts and messages."""
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    return str(name)
