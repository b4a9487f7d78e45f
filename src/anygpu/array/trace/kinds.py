"""Kinds of objects that a function may depend on: which are followed, compared as a whole, or taken as they are."""

from __future__ import annotations

import datetime
import enum
import sys
import types
from collections import OrderedDict, defaultdict, namedtuple
from collections.abc import Iterable, Iterator
from typing import Any, cast
from weakref import WeakKeyDictionary

import numpy as np

from anygpu.array.core.array import Array
from anygpu.array.trace.code import APPROVED_MODULES
from anygpu.array.trace.guards import PLAIN
from anygpu.program.dtypes import DTYPES

_VALUE_KINDS = frozenset((range, datetime.date, datetime.timedelta, datetime.timezone))


def is_plain_value(value: Any) -> bool:
    """Return whether an object is compared as a whole: its class is known, and its parts are plain values.

    `Fraction` counts only where its module was imported.
    """
    kind, fractions = type(value), sys.modules.get("fractions")
    if kind is slice:
        return all(type(each) in PLAIN for each in (value.start, value.stop, value.step))
    if kind is datetime.datetime:
        return value.tzinfo is None or type(value.tzinfo) is datetime.timezone
    return kind in _VALUE_KINDS or (fractions is not None and kind is fractions.Fraction)


def has_plain_keys(value: Any) -> bool:
    """Return whether looking up the keys of a dictionary runs none of the user's code; True for other containers."""
    return not isinstance(value, dict) or all(map(_is_plain_key, value))


def _is_plain_key(key: Any) -> bool:
    """Return whether `__hash__` and `__eq__` of a key are not written by the user."""
    kind = type(key)
    for container in (tuple, frozenset):
        if issubclass(kind, container) and not all(map(_is_plain_key, container.__iter__(key))):
            return False
    methods = (cast(Any, kind).__hash__, cast(Any, kind).__eq__)
    return kind in PLAIN or all(type(each) is not types.FunctionType or each is _HASH_OF_MEMBER for each in methods)


_HASH_OF_MEMBER = enum.Enum.__hash__


CONTAINERS: tuple[type[Any], ...] = (list, tuple, dict, OrderedDict, defaultdict)

PLAIN_METACLASSES: tuple[type[Any], ...] = (type, type(Iterable))


#: The descriptor of a named tuple's field.
_FIELD = type(vars(namedtuple("_Pair", "one"))["one"])


def is_named_tuple(kind: type[Any]) -> bool:
    """Return whether a class was made by `namedtuple` or `NamedTuple`"""
    return issubclass(kind, tuple) and hasattr(kind, "_fields") and kind.__bases__ == (tuple,)


def is_immutable(value: Any) -> bool:
    """Return whether an object is guarded by its identity alone, such as a dtype or a bare sentinel."""
    kind = type(value)
    if kind in (object, types.GenericAlias, types.MemberDescriptorType, types.GetSetDescriptorType, _FIELD):
        return True
    if issubclass(kind, np.dtype):
        return value.kind != "V" and not value.metadata  # names of fields may be set
    if issubclass(kind, type):
        return value.__module__ in ("builtins", "numpy", "collections", "datetime", "fractions")
    if isinstance(value, Array) or is_offloaded(value) or hasattr(kind, "__dataclass_fields__"):
        return False
    return kind.__module__.startswith("anygpu.")


def is_never_copied(thing: Any) -> bool:
    """Return whether traced code gets the object itself: an error, a member of an enumeration, or their class."""
    return issubclass(thing if isinstance(thing, type) else type(thing), enum.Enum | BaseException)


def hooks_of(kind: type[Any]) -> list[str]:
    """Return the names of the methods by which a class runs code for `isinstance` or when an instance is deleted."""
    written = [vars(cls) for cls in kind.__mro__[:-1] if cls.__module__ not in APPROVED_MODULES]
    return [name for name in ("__subclasshook__", "__del__") if any(name in members for members in written)]


def _look_for_tricks(kind: type[Any]) -> bool:
    """Return whether a class has the attribute access and `__new__` of `object`."""
    if type(kind) not in PLAIN_METACLASSES or hooks_of(kind):
        return False
    for cls in kind.__mro__[:-1]:
        for name in ("__getattr__", "__getattribute__", "__delattr__", "__setattr__", "__init_subclass__"):
            member = vars(cls).get(name)
            # A frozen dataclass has made its own, which only refuse.
            generated = isinstance(member, types.FunctionType) and name in ("__setattr__", "__delattr__")
            if member is not None and not (generated and hasattr(cls, "__dataclass_fields__")):
                return False
    try:
        object.__new__(kind)
    except TypeError:
        return False
    return True


def hides_its_class(kind: type[Any]) -> bool:
    """Return whether even `isinstance` runs the user's code: the class defines `__getattribute__` or `__class__`."""
    return any(
        (type(vars(cls).get("__getattribute__")) is types.FunctionType or "__class__" in vars(cls))
        and not cls.__module__.startswith("anygpu.")
        for cls in kind.__mro__[:-1]
    )


def is_ours(kind: type[Any]) -> bool:
    """Return whether a class is one of anygpu's that only holds arrays, such as quantised weights."""
    return kind.__module__.startswith("anygpu.") and hasattr(kind, "__dataclass_fields__")


def is_followable(kind: type[Any]) -> bool:
    """Return whether objects of the class consist of their attributes.

    It must be written in Python, without tricks, and not by a library that keeps state elsewhere. The answer is kept
    for each class.
    """
    if kind is types.SimpleNamespace:
        return True
    known = _FOLLOWABLE.get(kind)
    if known is None:
        library = kind.__module__.partition(".")[0]
        is_known = is_ours(kind) or library not in _NOT_FOLLOWED
        known = not issubclass(kind, type) and is_known and _look_for_tricks(kind)
        _FOLLOWABLE[kind] = known
    return known


_FOLLOWABLE: WeakKeyDictionary[type[Any], bool] = WeakKeyDictionary()


#: Libraries whose objects keep what they are in ways of their own.
_NOT_FOLLOWED = frozenset(
    ("anygpu", "numpy", "torch", "jax", "jaxlib", "pandas", "logging", "threading", "random", "os")
)


def is_array(value: Any) -> bool:
    """Return whether an object can be an array input of a program."""
    if type(value) is np.ndarray or type(value) is np.memmap:
        return value.dtype.isnative and value.dtype.name in DTYPES
    return isinstance(value, Array)


def is_offloaded(thing: Any) -> bool:
    """Return whether an object is a decorated function, which traced code sees as the plain function."""
    kind = type(thing)
    is_ours = kind.__module__.startswith("anygpu.") and hasattr(kind, "function")
    return is_ours and "__wrapped__" in getattr(thing, "__dict__", ())


def is_special(name: str) -> bool:
    """Return whether a name has two underscores on both sides."""
    return name.startswith("__") and name.endswith("__")


def slots_of(kind: type[Any]) -> Iterator[str]:
    """Return the attributes that a class keeps outside of `__dict__`, under the names that reach them."""
    for cls in kind.__mro__[:-1]:
        yield from (name for name, member in vars(cls).items() if type(member) is types.MemberDescriptorType)
