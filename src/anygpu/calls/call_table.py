"""The call sites of functions whose calls are placed, as far as the first calls need them.

This module and the modules that it imports are all that a process loads whose calls are few and short.
"""

from __future__ import annotations

import contextlib
import functools
from collections import OrderedDict
from collections.abc import Hashable
from types import CodeType
from typing import TYPE_CHECKING, Any

from anygpu.calls.options import Options
from anygpu.calls.signature import INPUT_NUMBER_TYPES, OwnArray, without
from anygpu.receipts.notes import HostNote

if TYPE_CHECKING:
    from anygpu.calls.native_site import NativeSite
    from anygpu.calls.site import NumpySite, Site
    from anygpu.native.calls import NativeCalls
    from anygpu.placement.call_site import CallSite
    from anygpu.placement.opaque_form import OpaqueForm

#: Kinds of arguments that are remembered for one function, and such that are new.
_MOST_SITES, _MOST_NEW = 1024, 256
NEW = "it is new, and its first calls are measured on numpy."


class CallTable:
    """The call sites of one function with some options, by the key of the call.

    There is no lock: each step is one operation of a dict, and what two threads learn at once is kept once.
    """

    __slots__ = (
        "code",
        "forms",
        "hosts",
        "input_number_types",
        "native",
        "native_marks",
        "new",
        "numpy_marks",
        "options",
        "planned",
        "quick",
        "sites",
    )

    def __init__(self, options: Options, code: CodeType | None = None) -> None:
        self.options = options
        self.code = code
        #: Types of numbers whose values are no part of a key.
        self.input_number_types = INPUT_NUMBER_TYPES
        #: Sites by key, the latest last. Sites with only a measured time are kept apart, so that arguments that are new
        #: in every call do not drive out what was learnt about others.
        self.sites: OrderedDict[Hashable, CallSite] = OrderedDict()
        self.new: dict[Hashable, NumpySite] = {}
        #: Sites that run on NumPy until native code is ready, and then as native code.
        self.native: dict[Hashable, NativeSite] = {}
        #: The site, of all these, that runs the next call or plans it: every call looks here first.
        self.hosts: dict[Hashable, Site] = {}
        #: Keys of calls that were native code and are planned now, because another device is faster still.
        self.planned: set[Hashable] = set()
        #: The native code of the last call; it can tell without a key whether it is also that of the next.
        self.quick: NativeCalls | None = None
        #: Marks of calls for which earlier processes have found native code to be faster, or have tried it in vain.
        self.native_marks: frozenset[bytes] = frozenset()
        self.numpy_marks: frozenset[bytes] = frozenset()
        #: The forms of an opaque task, by everything but the number of rows of its arguments.
        self.forms: dict[Hashable, OpaqueForm] = {}

    def on_value_dependence(self, types: frozenset[type]) -> None:
        """Make the values of these numbers part of keys from now on: the program depends on them."""
        self.input_number_types = without(self.input_number_types, types)

    def remember(self, key: Hashable, site: CallSite) -> None:
        """Keep the site of calls that are planned, and drop the least recently used one."""
        self.new.pop(key, None)
        self.hosts.pop(key, None)
        self.sites[key] = site
        if len(self.sites) > _MOST_SITES:
            self.hosts.pop(self.sites.popitem(last=False)[0], None)

    def used(self, key: Hashable) -> None:
        """Mark a site as recently used."""
        with contextlib.suppress(KeyError):  # forgotten since, by another thread
            self.sites.move_to_end(key)

    def remember_new(self, key: Hashable, early: NumpySite) -> None:
        """Keep the site of calls of a new kind; drop all of these when there are too many."""
        if len(self.new) >= _MOST_NEW:
            self.new.clear()  # which costs less than to look for the oldest one
            self.hosts.clear()
        self.new[key] = self.hosts[key] = early

    def plan_from_now_on(self, key: Hashable) -> None:
        """Plan such calls from now on, and run none of them as native code."""
        if len(self.planned) >= _MOST_SITES:
            self.planned.clear()
        self.planned.add(key)
        self.forget_native(key)
        self.quick = None

    def forget_native(self, key: Hashable) -> None:
        """Drop the site of calls that are for NumPy or native code."""
        self.native.pop(key, None)
        self.hosts.pop(key, None)

    def remember_native(self, key: Hashable, site: NativeSite) -> None:
        """Keep the site of calls that are for NumPy or native code."""
        if len(self.native) >= _MOST_NEW:
            self.hosts.clear()
            # Arguments that are new with every call do not drive out what was compiled for others.
            self.native = {old: each for old, each in self.native.items() if not each.runs_as_is}
            if len(self.native) >= _MOST_SITES:
                self.native.clear()
        self.native[key] = self.hosts[key] = site


def has_own_array(key: tuple[Hashable, ...]) -> bool:
    """Return whether such calls have an `anygpu.Array` among their arguments."""
    return any(part is OwnArray for part in key)


def note_of_new(task: str, options: Options) -> HostNote:
    """Return the note of a new call site, or the reason why it always stays on NumPy."""
    if options.cpu_is_numpy is not None:
        return HostNote(task, options.cpu_is_numpy, None)
    if options.needs_no_planning:
        return HostNote(task, "numpy is the only device allowed.", None)
    return HostNote(task, NEW, None)


def name_of(function: Any) -> str:
    """Return the name of a function in receipts and messages."""
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    return str(name)
