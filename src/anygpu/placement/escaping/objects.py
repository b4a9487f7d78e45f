"""What is asked of objects that were there before a call, and lists of what is known of them."""

from __future__ import annotations

import collections
import contextlib
import functools
import types
from collections.abc import Callable
from typing import Any

import numpy as np

from anygpu.placement.escaping.guards import MISSING
from anygpu.placement.escaping.values import (
    CLOSED,
    Known,
    NotProvedError,
    RaisesError,
    Value,
    alternatives,
    join,
)

#: Elements of containers from outside that are looked at.
MOST_ELEMENTS = 200
ITERATORS = (types.GeneratorType, zip, enumerate, map, reversed, filter)
#: Methods of containers and iterators of the call that put nothing into them.
MADE_METHODS = frozenset(("index", "count", "sort", "reverse", "clear", "remove", "discard", "popitem", "close"))
#: What makes objects of a class do more than to hold what is put into them.
OF_ODD_CLASSES = ("__del__", "__getattr__")
CONTEXT_CODE = contextlib.contextmanager(lambda: iter(())).__code__
READING_METHODS = frozenset(["get", "keys", "values", "items", "copy", "index", "count"])
WRITES_OUTSIDE = "it writes to memory, or to an object, that outlives the call"


def for_each(function: Callable[[Value], Value], value: Value) -> Value:
    """What a function gives for all that a value may be, but for what raises an error."""
    found = []
    for each in alternatives(value):
        with contextlib.suppress(RaisesError):
            found.append(function(each))
    if not found:
        raise RaisesError
    return join(*found)


def element_at(items: Any, place: int) -> Any:
    if not -len(items) <= place < len(items):
        raise RaisesError
    return items[place]


#: Attributes of data that are methods.
METHODS = frozenset(name for kind in CLOSED for name in dir(kind) if callable(getattr(kind, name, None)))
OF_WARNINGS = 64
CACHED: Any = type(functools.lru_cache(lambda: None))
TEXT_METHODS = frozenset(("lower", "upper", "startswith", "endswith", "removesuffix", "removeprefix", "strip"))
PLAIN = frozenset((str, bytes, tuple, list, dict, set, frozenset, range))
OF_C = frozenset(("builtins", "itertools"))
#: What classes of `typing.NamedTuple` and `collections.namedtuple` have.
OF_NAMED_TUPLES = frozenset(
    (
        "__new__", "_make", "_replace", "_asdict", "__repr__", "__getnewargs__", "__slots__", "__doc__", "__module__",
        "__match_args__", "__annotations__", "__orig_bases__", "_fields", "_field_defaults", "__replace__",
        "__firstlineno__", "__static_attributes__", "__annotate__", "__annotate_func__", "__annotations_cache__",
    )
)  # fmt: skip
BY_IDENTITY = (types.FunctionType, types.BuiltinFunctionType, types.ModuleType, np.ufunc)


def is_plain_error(kind: type) -> bool:
    """Whether nothing but code in C, or of NumPy, runs where such an error is made, shown or used."""
    return all(
        each.__module__ == "builtins"
        or each.__module__.startswith("numpy")
        or not any(hasattr(type(one), "__get__") and name not in OF_ANY_CLASS for name, one in vars(each).items())
        for each in kind.__mro__
    )


def is_named_tuple(kind: type, names: tuple[str, ...]) -> bool:
    """Whether it is a class of `collections.namedtuple` or `typing.NamedTuple`, and nobody has changed it."""
    own: dict[str, Any] = dict(vars(kind))
    if kind.__bases__ != (tuple,) or not own.keys() <= {*OF_NAMED_TUPLES, *names}:
        return False
    same: Any = collections.namedtuple("same", names)  # type: ignore[misc]
    made = getattr(own.get("__new__"), "__code__", None)
    return (
        made is not None
        and made.co_code == same.__new__.__code__.co_code
        and made.co_names == same.__new__.__code__.co_names
        and own["__new__"].__globals__.get("_tuple_new") is tuple.__new__
        and getattr(own.get("__repr__"), "__code__", None) is same.__repr__.__code__
        and all(type(own.get(name)) is type(vars(same)[name]) for name in names)
    )


OF_ANY_CLASS = frozenset(("__weakref__", "__dict__", "__doc__", "__module__"))
#: Modules of Python's that look at callers, keep what they get, or start something.
NOT_FOLLOWED = frozenset(
    [
        "inspect",
        "gc",
        "weakref",
        "threading",
        "logging",
        "multiprocessing",
        "concurrent.futures",
        "asyncio",
        "pickle",
        "copyreg",
        "atexit",
        "signal",
        "traceback",
        "pdb",
        "tempfile",
        "subprocess",
        "os",
        "shutil",
        "socket",
        "contextvars",
    ]
)


def static(kind: type, name: str) -> Any:
    """What the classes of a class have under a name, without asking descriptors."""
    for each in kind.__mro__:
        if name in vars(each):
            return vars(each)[name]
    return MISSING


def getter(found: property) -> types.FunctionType:
    if not isinstance(found.fget, types.FunctionType):
        raise NotProvedError("a property is not written in Python")
    return found.fget


def cell_of(function: types.FunctionType, name: str) -> types.CellType:
    return (function.__closure__ or ())[function.__code__.co_freevars.index(name)]


def is_hashable(value: Any) -> bool:
    return isinstance(value, type | types.BuiltinFunctionType | types.FunctionType)


def shown(value: Any) -> str:
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    if name is None:
        return f"an object of {type(value).__module__}.{type(value).__qualname__}"
    return f"{getattr(value, '__module__', None) or ''}.{name}".lstrip(".")


def shown_value(value: Value) -> str:
    return shown(value.value) if isinstance(value, Known) else f"a value of the call ({type(value).__name__})"
