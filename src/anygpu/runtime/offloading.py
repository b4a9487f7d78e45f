"""`offload`: a function that runs where it is fastest, with the same arguments and results as before."""

from __future__ import annotations

import functools
import threading
import time
import types
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar

import numpy as np

from anygpu.errors import InvalidOption
from anygpu.hardware.selection import matches_name
from anygpu.plan.plan import Plan
from anygpu.receipts import Receipt
from anygpu.runtime.call import Call
from anygpu.runtime.collecting import last, listeners, publish
from anygpu.runtime.opaque import explain_opaque, place_opaque
from anygpu.runtime.options import CallOptions, Options, options
from anygpu.runtime.placing import explain, place
from anygpu.runtime.planner import Planner, allows_numpy, default
from anygpu.runtime.signature import signature
from anygpu.runtime.state import LARGE, Early, State
from anygpu.runtime.values import home_of_ours

P = ParamSpec("P")
R = TypeVar("R")

#: Kinds of arguments that one function remembers.
_MOST_STATES = 1024

_clock = time.perf_counter
_ndarray = np.ndarray
_set_last = last.set
_listening = listeners.get


class Result(NamedTuple):
    """A value, and what happened."""

    value: Any
    receipt: Receipt


class Offloaded(Generic[P, R]):
    """A function whose calls are placed. Made by `offload`."""

    def __init__(self, function: Callable[P, R], options: Options, planner: Callable[[], Planner]) -> None:
        if not callable(function):
            raise InvalidOption(f"anygpu takes a function to run; got {function!r}.")
        functools.update_wrapper(self, function)
        self._function = function
        self._options = options
        self._find_planner = planner
        self._task = getattr(function, "__qualname__", None) or repr(function)
        self._states: OrderedDict[Hashable, State | Early] = OrderedDict()
        self._may_begin_at_home = allows_numpy(options) and options.precision is None
        #: Whether the values of floats decide what the function does, so that each value is a case of its own.
        self._floats = False

    # -- calls

    def __call__(self, *arguments: P.args, **keywords: P.kwargs) -> R:
        # What is done here is done for every call, also of functions that take a microsecond: so it is written out.
        begin = _clock()
        parts: list[Any] | None = None
        each: Any
        if not keywords:
            parts = []
            for each in arguments:
                kind = type(each)
                if kind is _ndarray:
                    parts += (each.shape, each.dtype.num)
                elif kind is float and not self._floats:
                    parts.append(float)
                else:
                    parts = None
                    break
        key: Hashable = tuple(parts) if parts is not None else signature(arguments, keywords, floats=self._floats)
        state = self._states.get(key)
        if state is not None and state.quiet > 0:
            ready = _clock()
            value: R = state.at_home(*arguments, **keywords)
            end = _clock()
            state.quiet -= 1
            state.unheard += end - ready
            _set_last((state, begin, ready, end))
            if _listening():
                publish((state, begin, ready, end))
            return value
        if state is None and parts is not None and self._may_begin_at_home:
            return self._first(key, arguments, begin)
        placed: R = self._place(key, arguments, keywords)[0]
        return placed

    def _first(self, key: Hashable, arguments: Any, begin: float) -> R:
        """The first call with such arrays: it runs as it is, and nothing is thought about before it is known to pay."""
        if any(type(each) is _ndarray and each.size >= LARGE for each in arguments):
            placed: R = self._place(key, arguments, {})[0]
            return placed
        ready = _clock()
        function: Callable[..., R] = self._function
        value = function(*arguments)
        end = _clock()
        early = Early(self._task, function, end - ready)
        self._remember(key, early)
        publish((early, begin, ready, end))
        return value

    def run(self, *arguments: P.args, **keywords: P.kwargs) -> Result:
        """As a call, with the receipt."""
        key = signature(arguments, keywords, floats=self._floats)
        return Result(*self._place(key, arguments, keywords))

    def explain(self, *arguments: P.args, **keywords: P.kwargs) -> Plan:
        """Where the next call with such arguments would run, and why. Nothing is computed."""
        call = self.call(signature(arguments, keywords, floats=self._floats), arguments, keywords)
        return explain(call) if self._options.engine is None else explain_opaque(call)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    @property
    def function(self) -> Callable[P, R]:
        """The function itself."""
        return self._function

    @property
    def options(self) -> Options:
        return self._options

    @property
    def floats(self) -> bool:
        """Whether each value of a float is a case of its own."""
        return self._floats

    def __repr__(self) -> str:
        return f"<offloaded {self._task}>"

    # -- placing

    def _place(self, key: Hashable | None, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[Any, Receipt]:
        call = self.call(key, arguments, keywords)
        if self._options.engine is not None:
            return place_opaque(call)
        return place(call)

    def call(self, key: Hashable | None, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Call:
        planner = self._find_planner()
        state = self._states.get(key) if key is not None else None
        if not isinstance(state, State):
            early = state
            ours = home_of_ours(arguments, keywords)
            state = State(self._task, self._function, self._options, self._home(planner, ours), ours=ours is not None)
            if early is not None:
                planner.seconds += early.tell(state.cell)
            if key is not None:
                self._remember(key, state)
        return Call(planner, self._function, state, arguments, keywords, key=key, floats_decide=self._tell_floats_apart)

    def _tell_floats_apart(self) -> None:
        self._floats = True

    def _home(self, planner: Planner, ours: str | None) -> str | None:
        """Where the arguments are, if calls may run there."""
        if ours is None or ours == "numpy":
            return "numpy" if allows_numpy(self._options) else None
        on = self._options.preference.on
        device = planner.machine().device(ours) if on else None
        allowed = not on or (device is not None and any(matches_name(device, name) for name in on))
        return ours if allowed else None

    def _remember(self, key: Hashable, state: State | Early) -> None:
        self._states[key] = state
        if len(self._states) > _MOST_STATES:
            self._states.popitem(last=False)


def offloaded(function: Callable[P, R], given: CallOptions) -> Offloaded[P, R]:
    """The function with these options, as a caller has written them."""
    if isinstance(function, Offloaded):
        function = function.function
    return Offloaded(function, options(**given), default)


#: Functions that `run` and `explain` remember although nobody has decorated them, the latest last.
_MOST_FUNCTIONS = 256
_known: OrderedDict[tuple[Callable[..., Any], Options], Offloaded[..., Any]] = OrderedDict()
_knowing = threading.Lock()


def remembered(function: Callable[..., Any], given: CallOptions) -> Offloaded[..., Any]:
    """The same as for the last call of this function with these options."""
    if isinstance(function, Offloaded):
        if all(value is None for value in given.values()):
            return function
        function = function.function
    wanted = options(**given)
    try:
        hash(function)
    except TypeError:  # something callable that cannot be found again: nothing is remembered
        return Offloaded(function, wanted, default)
    with _knowing:
        found = _known.get((function, wanted))
        if found is None:
            found = _known[function, wanted] = Offloaded(function, wanted, default)
            if len(_known) > _MOST_FUNCTIONS:
                _known.popitem(last=False)
        else:
            _known.move_to_end((function, wanted))
    return found
