"""What calls of functions have taught: for each key of arguments a state, bounded in number. No function is held."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Hashable

from anygpu.placement.call_site import CallSite, NewCallSite
from anygpu.placement.options import Options
from anygpu.placement.signature import LIFTED, without

#: Kinds of arguments that are remembered for one function, and such that are new.
_MOST_STATES, _MOST_NEW = 1024, 256
#: Functions that are remembered although nobody has decorated them.
_MOST_FUNCTIONS = 256


class Known:
    """What is known of the calls of one function with some options."""

    __slots__ = ("lifted", "new", "options", "states")

    def __init__(self, options: Options) -> None:
        self.options = options
        #: Types of numbers whose values are no part of a key.
        self.lifted = LIFTED
        #: By key, the latest last. Those of which only the time of a call is known are apart: arguments that are new
        #: with every call do not drive out what was learnt of others.
        self.states: OrderedDict[Hashable, CallSite] = OrderedDict()
        self.new: dict[Hashable, NewCallSite] = {}

    def on_value_dependence(self, types: frozenset[type]) -> None:
        """What the function computes depends on the values of such numbers: they are part of a key from now on."""
        self.lifted = without(self.lifted, types)

    def remember(self, key: Hashable, state: CallSite) -> None:
        self.new.pop(key, None)
        self.states[key] = state
        if len(self.states) > _MOST_STATES:
            self.states.popitem(last=False)

    def used(self, key: Hashable) -> None:
        """Not the next to be forgotten."""
        with contextlib.suppress(KeyError):  # forgotten since, by another thread
            self.states.move_to_end(key)

    def remember_new(self, key: Hashable, early: NewCallSite) -> None:
        if len(self.new) >= _MOST_NEW:
            self.new.clear()  # which costs less than to look for the oldest one
        self.new[key] = early


class KnownFunctions:
    """What is known of functions that were passed without being decorated, by their key and by what was asked for.

    There is no lock: each step is one operation of a dict, and a process may be forked at any moment.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[Hashable, Known] = OrderedDict()

    def find(self, key: Hashable) -> Known | None:
        found = self._known.get(key)
        if found is not None:
            with contextlib.suppress(KeyError):  # forgotten since, by another thread
                self._known.move_to_end(key)
        return found

    def remember(self, key: Hashable, known: Known) -> Known:
        """The same, or what another thread has remembered since."""
        known = self._known.setdefault(key, known)
        if len(self._known) > _MOST_FUNCTIONS:
            self._known.popitem(last=False)
        return known

    def forget(self) -> None:
        self._known.clear()
