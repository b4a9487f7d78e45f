"""What a function uses without getting it as an argument: arrays, numbers and other functions that surround it.

A recorded program is true for as long as these are the same. They are found from the function itself: its closure, the
globals that its code names, its defaults, the object that it is a method of, and the same again for the functions of
the user's own that it calls. Only what the code names is looked at, so an object may hold a great deal besides.
"""

from __future__ import annotations

import contextlib
import hashlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from types import BuiltinMethodType, CellType, CodeType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any, NamedTuple

import numpy as np

from anygpu.array.array import Array
from anygpu.array.paper import owner_of

#: How far the search goes: from the function to those it calls, and into containers and objects.
MAX_DEPTH = 8
#: A container with more elements than this is only watched for its length.
MAX_ELEMENTS = 256
#: After so many things the search ends.
MAX_THINGS = 4000

#: Libraries whose own functions and objects are taken as they are.
_NOT_THE_USERS = frozenset(
    (*sys.stdlib_module_names, "numpy", "scipy", "torch", "jax", "numba", "pandas", "pytest", "msgspec")
) - {"__main__"}

#: Names in code that reach attributes which the code does not name.
_DYNAMIC = frozenset(("getattr", "vars", "__dict__", "attrgetter", "__getattribute__", "asdict", "replace"))

_NUMBERS = frozenset((bool, int, float, complex, str, bytes, type(None)))

#: Methods that run without being named in code, and say nothing about what a function computes.
_BESIDES = frozenset(
    ("__init__", "__new__", "__del__", "__repr__", "__str__", "__init_subclass__", "__reduce__", "__post_init__")
)


class Named(NamedTuple):
    """An array from outside, and what the user calls it."""

    array: Any
    name: str


class Outside:
    """What was found around a function."""

    def __init__(self) -> None:
        #: Each array once, in the order in which they were found.
        self.arrays: list[Named] = []
        #: Sources of random numbers, whose state recording must not disturb.
        self.generators: list[Any] = []
        #: Whether something was left out because there was too much of it.
        self.complete = True
        #: Whether a function that remembers its results is used, which may hold arrays that nobody can look at.
        self.remembers = False
        #: Everything that was seen, by identity, and what each was found in.
        self.things: dict[int, Any] = {}
        self.holders: dict[int, list[Any]] = {}
        self._values: list[tuple[Any, bytes]] = []
        self._entries: list[tuple[Any, Any, Any]] = []
        self._cells: list[tuple[CellType, Any]] = []
        self._attributes: list[tuple[Any, str, Any]] = []
        self._lengths: list[tuple[Any, int]] = []

    def unchanged(self) -> bool:
        """Whether every name still means the same: arrays and functions by identity, numbers by their value."""
        for container, key, known in self._entries:
            try:
                now = container[key]
            except (KeyError, IndexError):
                return False
            if now is not known and not _equal(now, known):
                return False
        for cell, known in self._cells:
            try:
                now = cell.cell_contents
            except ValueError:
                return False
            if now is not known and not _equal(now, known):
                return False
        for thing, name, known in self._attributes:
            now = getattr(thing, name, _GONE)
            if now is not known and not _equal(now, known):
                return False
        for container, length in self._lengths:
            if len(container) != length:
                return False
        for array, digest in self._values:  # noqa: SIM110 - a generator costs more than the rest
            if _digest(array) != digest:
                return False
        return True

    def watch_values(self, arrays: Iterable[Any]) -> None:
        """From now on changes inside of these arrays count too: their values have become a part of something."""
        watched = {id(array) for array, _ in self._values}
        self._values += [(array, _digest(array)) for array in arrays if id(array) not in watched]

    @property
    def owners(self) -> frozenset[int]:
        """The identities of what owns the memory of the NumPy arrays among these."""
        return frozenset(id(owner_of(each.array)) for each in self.arrays if isinstance(each.array, np.ndarray))

    def forget_ways(self) -> None:
        """Drop what only recording needs."""
        self.things, self.holders = {}, {}


_GONE = object()


def _digest(array: Any) -> bytes:
    if isinstance(array, Array):  # it is replaced, not changed, when something is written to it
        return id(array._value).to_bytes(8, "little")
    return hashlib.blake2b(np.ascontiguousarray(array).data.cast("B"), digest_size=16).digest()


def _equal(now: Any, known: Any) -> bool:
    """Numbers by value, where 0.0 differs from -0.0 and NaN is NaN."""
    if type(now) is not type(known) or not (type(known) in _NUMBERS or isinstance(known, np.generic)):
        # A bound method is made anew each time that it is asked for.
        return type(now) is MethodType and type(known) is MethodType and now == known
    return repr(now) == repr(known) if isinstance(known, float | complex | np.generic) else bool(now == known)


def outside_of(function: Callable[..., Any], others: Iterable[Any] = ()) -> Outside:
    """What the function uses beside its arguments. `others` are arguments that are objects of the user's own."""
    search = _Search()
    search.see(function, _called(function), 0)
    for number, each in enumerate(others):
        search.see(each, f"argument {number + 1}", 0)
    search.finish()
    return search.found


def is_array(value: Any) -> bool:
    """Whether it can be an input of a program."""
    if type(value) is np.ndarray or type(value) is np.memmap:
        return value.dtype.isnative and value.dtype.name in _DTYPES
    return isinstance(value, Array)


_DTYPES = frozenset(
    f"{kind}{bits}"
    for kind, widths in (("int", (8, 16, 32, 64)), ("uint", (8, 16, 32, 64)), ("float", (16, 32, 64)))
    for bits in widths
) | {"bool", "complex64", "complex128"}


class _Search:
    """One walk over what surrounds a function."""

    def __init__(self) -> None:
        self.found = Outside()
        #: Every name in the code that was reached: of globals, and of attributes.
        self.names: set[str] = set()
        #: Objects, classes and modules, whose attributes are looked at once their names are known.
        self._named: list[tuple[Any, str, int]] = []
        self._watched: set[tuple[int, Any]] = set()

    def finish(self) -> None:
        """Attributes are followed by name, and following them finds more code with more names: until there are none."""
        done = -1
        while done != (done := len(self.names) + len(self._named)):
            for thing, name, depth in list(self._named):
                self._look_into(thing, name, depth)

    def see(self, value: Any, name: str, depth: int, holder: Any = None) -> None:
        kind = type(value)
        if kind in _NUMBERS:
            return
        things = self.found.things
        self.found.holders.setdefault(id(value), []).append(holder)
        if id(value) in things:
            return
        if depth > MAX_DEPTH or len(things) > MAX_THINGS:
            self.found.complete = False
            return
        things[id(value)] = value
        if is_array(value):
            self.found.arrays.append(Named(value, name))
        elif kind is FunctionType:
            self._see_function(value, name, depth)
        elif kind is MethodType:
            self.see(value.__self__, f"{name}.__self__", depth, value)
            self.see(value.__func__, name, depth, value)
        elif kind is partial:
            self.see(value.func, name, depth + 1, value)
            self.see(value.args, f"{name}.args", depth + 1, value)
            self.see(value.keywords, f"{name}.keywords", depth + 1, value)
        elif isinstance(value, dict):
            self._see_elements(value, value.items(), name, depth)
        elif isinstance(value, list | tuple):
            self._see_elements(value, enumerate(value), name, depth)
        elif _is_generator(kind):
            self.found.generators.append(value)
        elif kind is BuiltinMethodType:
            if _is_generator(type(value.__self__)):  # `from random import gauss`
                self.see(value.__self__, name, depth, value)
        elif "__wrapped__" in getattr(value, "__dict__", ()):
            self.found.remembers |= "cache_info" in dir(kind)
            self.see(value.__wrapped__, name, depth, value)
        elif isinstance(value, ModuleType):
            self._see_module(value, name, depth)
        elif is_users(value.__module__ if isinstance(value, type) else kind.__module__):
            self._named.append((value, name, depth))

    def _see_module(self, module: ModuleType, name: str, depth: int) -> None:
        if module.__name__ == "random":
            self.see(vars(module).get("_inst"), name, depth, module)
        elif module.__name__ == "numpy.random":
            self.see(vars(module)["mtrand"]._rand, name, depth, module)
        elif module is np or is_users(module.__name__):
            self._named.append((module, name, depth))

    def _watch(self, container: Any, key: Any, value: Any, name: str, depth: int, holder: Any) -> None:
        if (id(container), key) not in self._watched:
            self._watched.add((id(container), key))
            self.found._entries.append((container, key, value))
        self.see(value, name, depth, holder)

    def _see_function(self, function: FunctionType, name: str, depth: int) -> None:
        if not is_users(function.__module__):
            return
        code = function.__code__
        for cell_name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            try:
                value = cell.cell_contents
            except ValueError:  # it is not bound yet
                continue
            self.found._cells.append((cell, value))
            self.see(value, cell_name, depth + 1, function)
        names = set(_names_in(code))
        self.names |= names
        around = function.__globals__
        for each in names:
            if each in around:
                self._watch(around, each, around[each], each, depth + 1, function)
        for default in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self.see(default, f"a default of {name}", depth, function)

    def _see_elements(self, container: Any, items: Iterable[tuple[Any, Any]], name: str, depth: int) -> None:
        if not isinstance(container, tuple):
            self.found._lengths.append((container, len(container)))
        if len(container) > MAX_ELEMENTS:
            self.found.complete = False
            return
        for key, value in list(items):
            label = f"{name}[{key!r}]"
            if isinstance(container, tuple):
                self.see(value, label, depth + 1, container)
            else:
                self._watch(container, key, value, label, depth + 1, container)

    def _look_into(self, thing: Any, name: str, depth: int) -> None:
        if thing is np:
            if "random" in self.names and "numpy.random" in sys.modules:
                self.see(sys.modules["numpy.random"], "np.random", depth, thing)
            return
        if isinstance(thing, type):
            self._look_into_class(thing, thing, name, depth)
            return
        attributes = getattr(thing, "__dict__", None)
        is_module = isinstance(thing, ModuleType)
        if isinstance(attributes, dict):
            everything = not is_module and self.names & _DYNAMIC
            for each in list(attributes if everything else self.names):
                if each not in attributes:
                    continue
                self._watch(attributes, each, attributes[each], f"{name}.{each}", depth + 1, thing)
        if is_module:
            return
        for slot in slots_of(type(thing)):
            if slot in self.names and (id(thing), slot) not in self._watched and hasattr(thing, slot):
                self._watched.add((id(thing), slot))
                value = getattr(thing, slot)
                self.found._attributes.append((thing, slot, value))
                self.see(value, f"{name}.{slot}", depth + 1, thing)
        self._look_into_class(type(thing), thing, name, depth)

    def _look_into_class(self, kind: type[Any], holder: Any, name: str, depth: int) -> None:
        for cls in kind.__mro__:
            if not is_users(cls.__module__):
                continue
            for each, member in list(vars(cls).items()):
                is_special = each.startswith("__") and each.endswith("__")
                if each in _BESIDES or not (each in self.names or (is_special and type(member) is FunctionType)):
                    continue
                if (id(cls), each) not in self._watched:
                    self._watched.add((id(cls), each))
                    self.found._entries.append((vars(cls), each, member))
                self.see(_behind(member), f"{name}.{each}", depth + 1, holder)


def _behind(member: Any) -> Any:
    """What a class keeps under a name: for properties and the like the function in them."""
    if isinstance(member, property):
        return member.fget
    if isinstance(member, staticmethod | classmethod):
        return member.__func__
    function = getattr(member, "func", None)
    return function if isinstance(function, FunctionType) else member


#: Classes whose objects give random numbers.
_GENERATORS = frozenset(
    (("numpy.random._generator", "Generator"), ("numpy.random.mtrand", "RandomState"), ("random", "Random"))
)


def _is_generator(kind: type[Any]) -> bool:
    return any((cls.__module__, cls.__qualname__) in _GENERATORS for cls in kind.__mro__)


@contextlib.contextmanager
def undisturbed(generators: Sequence[Any]) -> Iterator[None]:
    """Sources of random numbers are afterwards as they were before: recording does not move a user's sequence."""
    states = [_state_of(each) for each in generators]
    try:
        yield
    finally:
        for each, state in zip(generators, states, strict=True):
            if hasattr(each, "bit_generator"):
                each.bit_generator.state = state
            elif hasattr(each, "set_state"):
                each.set_state(state)
            else:
                each.setstate(state)


def _state_of(generator: Any) -> Any:
    if hasattr(generator, "bit_generator"):
        return generator.bit_generator.state
    return generator.get_state(legacy=False) if hasattr(generator, "get_state") else generator.getstate()


def slots_of(kind: type[Any]) -> Iterator[str]:
    """The attributes that a class of the user's own keeps outside of `__dict__`, under the names that reach them."""
    for cls in kind.__mro__:
        if is_users(cls.__module__):
            yield from (name for name, member in vars(cls).items() if isinstance(member, MemberDescriptorType))


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


def is_users(module: str | None) -> bool:
    """Whether functions and objects of that module are looked into."""
    top = (module or "").partition(".")[0]
    return top not in _NOT_THE_USERS and top != "anygpu"


def _called(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", type(function).__name__)
