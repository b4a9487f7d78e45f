"""`offload`: a function that runs where it is fastest, with the same arguments and results as before.

`Offloaded.__call__` is on the way of every call: it makes the key of the call, finds its site, and runs the call on
NumPy, as native code or on one device; a call that none of these may run is planned by `place_call`, which is loaded
then.
"""

from __future__ import annotations

import functools
import inspect
import sys
import time
import types
from collections.abc import Callable, Hashable
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, ParamSpec, Self, TypeVar

import numpy as np

from anygpu.base import events
from anygpu.base.events import drawn
from anygpu.calls import executing, loading
from anygpu.calls.call_table import CallTable, has_own_array, name_of, note_of_new
from anygpu.calls.hints import NATIVE, NUMPY, code_of, is_marked, marks_on
from anygpu.calls.options import CallOptions, Options, options
from anygpu.calls.signature import BUILTIN, OwnArray, describe_keywords, signature, way_of
from anygpu.calls.site import NEEDS_PLANNING, NumpySite
from anygpu.errors import InvalidOption
from anygpu.receipts.notes import last, listeners, made, publish, publish_failure

if TYPE_CHECKING:
    from anygpu.calls.native_site import NativeSite
    from anygpu.calls.site import Site
    from anygpu.placement.call import Call
    from anygpu.placement.plan.plan import Plan
    from anygpu.placement.planner import Planner
    from anygpu.receipts.receipt import Receipt

P = ParamSpec("P")
R = TypeVar("R")

_clock = time.perf_counter
_ndarray = np.ndarray
_way_of_builtin = BUILTIN.get
_set_last = last.set
_listening = listeners.get


class Result(NamedTuple):
    """The value of a call, and its receipt."""

    value: Any
    receipt: Receipt

    def _repr_html_(self) -> str | None:
        return drawn(self)


class Calls:
    """Calls of a function, with what is known about them.

    The table may be shared with other functions of the same code, and outlives them.
    """

    __slots__ = ("_find_planner", "_function", "_table")

    def __init__(
        self, function: Callable[..., Any], table: CallTable, planner: Callable[[], Planner] | None = None
    ) -> None:
        self._function = function
        self._table = table
        #: `None` for the planner of the module's functions.
        self._find_planner = planner

    def run(self, /, *arguments: Any, **keywords: Any) -> Result:
        """Call the function, and return the value with its receipt."""
        return Result(*self._place(signature(arguments, keywords, self._table.input_number_types), arguments, keywords))

    def explain(self, /, *arguments: Any, **keywords: Any) -> Plan:
        """Return where the next call with such arguments would run, and why, without computing anything."""
        from anygpu.placement.explaining import explain
        from anygpu.placement.opaque import explain_opaque

        call = self.call(arguments, keywords)
        if self._table.options.engine is not None:
            return explain_opaque(call)
        return explain(call, self._table.native.get(call.key))

    def call(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Call:
        """Return the call with its call site, to be placed."""
        from anygpu.placement.call import call_of
        from anygpu.placement.planner import default

        key = signature(arguments, keywords, self._table.input_number_types)
        return call_of(self._function, self._table, (self._find_planner or default)(), key, arguments, keywords)

    def _place(self, key: Hashable, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[Any, Receipt]:
        """Plan and run the call; return its value and receipt."""
        # Late: a process whose calls are few and short never needs it. On a busy machine loading takes long, and the
        # receipt has to say so.
        begun = None if loading.is_loaded() else _clock()
        from anygpu.placement.place_call import place

        return place(self._function, self._table, self._find_planner, key, arguments, keywords, begun)


class _HasAttributes:
    __slots__ = ("__dict__",)


class Offloaded(Calls, _HasAttributes, Generic[P, R]):
    """A function whose calls are placed, made by `offload`.

    To all other code it is the function: it binds to instances, pickles by name and has the same signature.
    """

    # A decorator that wraps it copies its `__dict__`, so nothing of ours is in there.
    __slots__ = (
        "__weakref__",
        "_binds",
        "_may_be_native",
        "_may_begin_on_host",
        "_needs_no_planning",
        "_note_of_new",
        "_task",
    )

    __name__: str
    __qualname__: str
    __wrapped__: Callable[P, R]

    def __init__(
        self,
        function: Callable[P, R],
        options: Options,
        planner: Callable[[], Planner] | None = None,
        table: CallTable | None = None,
    ) -> None:
        check_function(function)
        super().__init__(function, table or CallTable(options, code_of(function)), planner)
        self._task = name_of(function)
        self._note_of_new = note_of_new(self._task, options)
        functools.update_wrapper(self, function)
        if "IPython.extensions.autoreload" in sys.modules:
            from anygpu.calls.redefining import follow_reloads  # which only notebooks need

            follow_reloads()
        #: Whether the function becomes a method when it is an attribute of a class.
        self._binds = hasattr(type(function), "__get__") and not isinstance(function, types.MethodType)
        self._may_begin_on_host = _allows_numpy(options) and options.precision is None
        self._needs_no_planning = options.needs_no_planning
        # Another planner has other machines to choose from.
        self._may_be_native = options.allows_native and planner is None
        if self._may_be_native and table is None:
            self._table.numpy_marks = marks_on(NUMPY)
            if is_marked(function, NATIVE):
                self._table.native_marks = marks_on(NATIVE)
                from anygpu.native.loading import begin_native

                begin_native(compiles=False)

    # -- calls

    def __call__(self, /, *arguments: P.args, **keywords: P.kwargs) -> R:
        """Call the function where its calls belong, and return its value. `signature` is inlined: short calls pay for
        it.
        """
        table = self._table
        function: Callable[..., R] = self._function
        quick = table.quick
        if quick is not None and not keywords:
            value: R = quick.quick(function, arguments)
            if value is not NEEDS_PLANNING:
                return value
        begin = _clock()
        input_number_types = table.input_number_types
        parts: list[Any] = []
        each: Any
        for each in arguments:
            kind = type(each)
            if kind is _ndarray:
                dtype = each.dtype
                parts.append(each.shape)
                parts.append(dtype.num if dtype.isnative else -dtype.num)
            elif kind in input_number_types:
                parts.append(kind)
            else:
                (_way_of_builtin(kind) or way_of(kind))(each, parts, input_number_types)
        if keywords:
            describe_keywords(keywords, parts, input_number_types)
        key = tuple(parts)
        site = table.hosts.get(key) or self._find_site(key)
        if site is not None:
            if site.runs_as_is:
                ready = _clock()
                token = executing.enter(True) if executing.asked else None
                try:
                    value = function(*arguments, **keywords) if keywords else function(*arguments)
                except BaseException as error:
                    publish_failure(self._task, error, begin, function)
                    raise
                finally:
                    if token is not None:
                        executing.leave(token)
                end = _clock()
                site.ran(end - ready)
                left = (site.note, begin, ready, end)
                if events.calls or _listening():
                    publish(left, (function, arguments, keywords, value))
                else:
                    _set_last(left)
                return value
            value = site.run(function, arguments, keywords, begin)
            if value is not NEEDS_PLANNING:
                return value
        if _is_recorded(key):
            return function(*arguments, **keywords)
        return self._place(key, arguments, keywords)[0]  # type: ignore[no-any-return]

    def _find_site(self, key: tuple[Hashable, ...]) -> Site | None:
        """Return the site that runs such calls, a new one for the first; `None` where the first call has to be planned.

        It is entered in `hosts`, where the next call finds it.
        """
        table = self._table
        found: Site | None
        if self._may_be_native and key not in table.planned and not has_own_array(key):
            found = table.native.get(key)
            if found is None:
                return self._native_site(key)
        else:
            planned = table.sites.get(key)
            found = table.new.get(key) if planned is None else planned.host
            if found is None:
                return self._new_site(key) if self._may_begin_on_host and not has_own_array(key) else None
        table.hosts[key] = found
        return found

    def _new_site(self, key: tuple[Hashable, ...]) -> NumpySite:
        """Return a site for calls of a new kind, which run on NumPy."""
        if self._needs_no_planning:
            site = NumpySite(self._note_of_new)
        else:
            from anygpu.calls.new_call_site import NewCallSite  # few functions have one

            site = NewCallSite(self._note_of_new)
        self._table.remember_new(key, site)
        return site

    def run(self, /, *arguments: Any, **keywords: Any) -> Result:
        """Call the function, and return the value with its receipt."""
        if not self._may_be_native or has_own_array(signature(arguments, keywords, self._table.input_number_types)):
            return super().run(*arguments, **keywords)
        return Result(self(*arguments, **keywords), made(last.get()))  # type: ignore[arg-type]

    def prepare(self, /, *arguments: P.args, **keywords: P.kwargs) -> R:
        """Call the function, and compile it for such arguments before returning its value.

        Later calls with arrays of these shapes and types run as native code, if that is faster. The native code is
        compared with what NumPy returns here. `explain` tells the outcome.
        """
        if not self._may_be_native:
            why = "its options, ANYGPU_NATIVE or ANYGPU_ENGINES rule that out"
            raise InvalidOption(f"{self._task} is not compiled unless a device is named: {why}.")
        value: R = self._prepared(signature(arguments, keywords, self._table.input_number_types), arguments, keywords)
        return value

    def _prepared(self, key: tuple[Hashable, ...], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Compile native code for such a call now, run the call, and return its value."""
        from anygpu.native.trial import prepare  # the caller has asked to wait

        site = self._table.native.get(key) or self._native_site(key)
        return prepare(site, self._function, arguments, keywords)

    def _native_site(self, key: tuple[Hashable, ...]) -> NativeSite:
        """Return a new site for calls that run on NumPy or as native code."""
        from anygpu.calls.native_site import NativeSite  # calls that name a device need none

        table = self._table
        site = NativeSite(table, key, self._note_of_new)
        table.remember_native(key, site)
        if table.options.warm:
            site.tell("ready", code=lambda _, arguments, keywords, begin: self._prepared(key, arguments, keywords))
        return site

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return types.MethodType(self, instance) if instance is not None and self._binds else self

    @property
    def function(self) -> Callable[P, R]:
        """The function itself."""
        return self._function

    @property
    def options(self) -> Options:
        return self._table.options

    def __repr__(self) -> str:
        return f"<offloaded {self._task}>"

    # -- as a function is

    if not TYPE_CHECKING:  # for a type checker it is a variable

        @property
        def __dict__(self) -> dict[str, Any]:
            return vars(_HasAttributes)["__dict__"].__get__(self)

        @__dict__.setter
        def __dict__(self, attributes: dict[str, Any]) -> None:
            from anygpu.calls.redefining import set_attributes  # which only notebooks need

            self._function = set_attributes(vars(_HasAttributes)["__dict__"], self, attributes)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce_ex__(self, protocol: Any) -> str | tuple[Any, ...]:
        """Pickle by name, if the name leads to this object, and not for cloudpickle; else by the function and its
        options.
        """
        name: str = getattr(self, "__qualname__", self._task)
        pickler = sys._getframe(1).f_globals.get("__name__", "").split(".")
        if "cloudpickle" not in pickler and _found(getattr(self, "__module__", None), name) is self:
            return name
        return _restored, (self._function, self.options)


def _of_function(name: str) -> property:
    """Return a property for an attribute of the function itself, which may be set where Python allows that."""

    def set_to(self: Offloaded[..., Any], value: Any) -> None:
        setattr(self._function, name, value)
        self._table = Offloaded(self._function, self.options, self._find_planner)._table

    return property(lambda self: getattr(self._function, name), set_to)


for _name in ("__code__", "__defaults__", "__kwdefaults__", "__globals__", "__closure__", "__builtins__"):
    setattr(Offloaded, _name, _of_function(_name))


def _found(module: str | None, name: str) -> Any:
    """Return the object with this qualified name in a module; `None` if there is none."""
    found: Any = sys.modules.get(module or "")
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _restored(function: Callable[..., Any], options: Options) -> Any:
    """Return the offloaded form of a function with some options."""
    return Offloaded(function, options)


def _allows_numpy(options: Options) -> bool:
    """Return whether NumPy is among the devices that were asked for."""
    if options.names_only_numpy or (options.engine is None and not options.preference.on):
        return True
    from anygpu.placement.planner import allows_numpy

    return allows_numpy(options)


def _is_recorded(key: tuple[Hashable, ...]) -> bool:
    """Return whether the call comes from a function that is being traced, with abstract arrays."""
    return any(part is OwnArray and device == "abstract" for part, device in pairwise(key))


def check_callable(function: Any) -> None:
    """Raise `InvalidOption` for an object that cannot be called."""
    if not callable(function):
        hint = " Put @property above @offload." if isinstance(function, property | functools.cached_property) else ""
        raise InvalidOption(f"anygpu takes a function to run; got {function!r}.{hint}")


def check_function(function: Any) -> None:
    """Raise `InvalidOption` for objects that cannot be offloaded, coroutines and generators among them, with advice."""
    check_callable(function)
    called = function
    while isinstance(called, functools.partial | types.MethodType | staticmethod):
        called = called.func if isinstance(called, functools.partial) else called.__func__
    if not isinstance(called, types.FunctionType):
        called = type(called).__call__
    if inspect.iscoroutinefunction(called):
        raise InvalidOption(
            f"{name_of(function)} is an async function, which anygpu cannot run: offload the function that computes, "
            "and call it there, or `await anygpu.submit(function, …)` to let it run beside the event loop."
        )
    if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
        raise InvalidOption(
            f"{name_of(function)} is a generator function, which anygpu cannot run: offload the function that computes "
            "one item, and call it in the generator."
        )


def offloaded(function: Callable[P, R], given: CallOptions) -> Offloaded[P, R]:
    """Return the function with these options, as a caller has written them."""
    if isinstance(function, Offloaded):
        function = function.function
    return _restored(function, options(**given))  # type: ignore[no-any-return]


def decorated(function: Any, given: CallOptions) -> Any:
    """Return the offloaded form of a function, static method or class method."""
    if isinstance(function, staticmethod | classmethod):
        return type(function)(decorated(function.__func__, given))
    if isinstance(function, type):
        raise InvalidOption(
            f"offload takes a function, and {function.__qualname__} is a class: offload those of its methods that "
            "compute."
        )
    return offloaded(function, given)
