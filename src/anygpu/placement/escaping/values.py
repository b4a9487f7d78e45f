"""What is known of a value in a call that is not made: which object it is, or of which kind.

`Data` is of a closed set of types: arrays, numbers, texts, and tuples, lists and dicts of such. None of them runs code
of Python when it is used, and none of their methods keeps what it is given anywhere but in itself.
"""

from __future__ import annotations

import datetime
import enum
import types
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

#: It may be an array of the call, or hold one.
ARRAY = 1
#: Its memory may be from outside of the call.
OUTER = 2
#: It may be of a type that is not in the closed set, such as an iterator, which holds what nobody can take out.
HOLDER = 4
#: It certainly is an array; or one of Python's numbers; or `np.finfo` or `np.iinfo`.
IS_ARRAY, IS_NUMBER, IS_INFO = 8, 16, 32
#: It may be `type` itself, or another class that tells what an array of the call is.
IS_TYPE = 128
CERTAIN = IS_ARRAY | IS_NUMBER | IS_INFO

NUMBERS = (bool, int, float, complex)
#: What `Data` can be, without `HOLDER`.
CLOSED = (
    *NUMBERS, str, bytes, type(None), tuple, list, dict, slice, range, type(Ellipsis), type, np.dtype, np.ndarray,
    np.float64, np.float32, np.float16, np.int64, np.int32, np.int16, np.int8, np.uint64, np.uint32, np.uint16,
    np.uint8, np.bool_, np.complex128, np.complex64, np.longdouble, np.clongdouble, np.str_, np.bytes_, np.void,
    np.datetime64, np.timedelta64, datetime.date, datetime.datetime, datetime.timedelta,
)  # fmt: skip


class NotProvedError(Exception):
    """Something that may keep an array, write to memory outside, or ask for a type; or that is not understood."""

    #: Where that is: file and line.
    place: str | None = None


class TypeAskedError(NotProvedError):
    """The type of an array is asked for."""


class NoTimeError(NotProvedError):
    """It would take longer than is left."""


class RaisesError(Exception):
    """What is evaluated raises an error, so that nothing comes of it."""


class Value:
    """What is known of a value."""

    __slots__ = ()


class Known(Value):
    """An object that was there before the call."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Known):
            return NotImplemented
        mine, theirs = self.value, other.value
        return mine is theirs or (type(mine) is type(theirs) and type(mine) in _BY_VALUE and repr(mine) == repr(theirs))

    def __hash__(self) -> int:
        return hash(repr(self.value)) if type(self.value) in _BY_VALUE else id(self.value)

    def __repr__(self) -> str:
        return f"Known({self.value!r})"


_BY_VALUE = frozenset((*NUMBERS, str, bytes, type(None)))


@dataclass(frozen=True)
class Data(Value):
    """A value of the closed set of types, with flags."""

    flags: int = 0


@dataclass(frozen=True)
class Tuple(Value):
    """A tuple whose elements are known; of a class of named tuples if it has names."""

    items: tuple[Value, ...]
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Keywords(Value):
    """A dict of which the keys are known, and that nobody changes: `**options`."""

    items: tuple[tuple[str, Value], ...]


@dataclass(frozen=True)
class Made(Value):
    """A list, dict, set or instance of a class of Python's that is made in the call, at some place of the code."""

    site: Any


@dataclass(frozen=True, eq=False)
class Function(Value):
    """A function that is defined in the call."""

    node: Any
    scope: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Function) and self.node is other.node and self.scope is other.scope

    def __hash__(self) -> int:
        return hash((id(self.node), id(self.scope)))


@dataclass(frozen=True)
class Method(Value):
    """A function with its first argument."""

    function: Value
    instance: Value


@dataclass(frozen=True)
class Attribute(Value):
    """A method, or another attribute, of `Data`."""

    of: Value
    name: str


@dataclass(frozen=True)
class Context(Value):
    """What a function made by `contextlib.contextmanager` returns."""

    function: Value
    arguments: tuple[Value, ...]
    keywords: tuple[tuple[str, Value], ...]


@dataclass(frozen=True)
class OneOf(Value):
    """One of these."""

    values: frozenset[Value]


class Record:
    """All that a made object may have in it, wherever in the call it was put there."""

    def __init__(self, kind: type) -> None:
        self.kind = kind
        self._items: Value | None = None
        self._fields: dict[str, Value] = {}
        #: Whether somebody has looked: what is put into it afterwards was not seen then.
        self.is_read = False
        #: It was handed on as `Data`: nothing else may be put into it.
        self.is_data = False

    @property
    def items(self) -> Value | None:
        self.is_read = True
        return self._items

    @property
    def fields(self) -> dict[str, Value]:
        self.is_read = True
        return self._fields

    def add(self, value: Value) -> bool:
        """Put an element into it; whether that is new to somebody."""
        merged = join(self._items, value)
        is_new = merged != self._items
        self._items = merged
        return is_new and self.is_read

    def set_field(self, name: str, value: Value) -> bool:
        """Set an attribute of it; whether that is new to somebody."""
        merged = join(self._fields.get(name), value)
        is_new = merged != self._fields.get(name)
        self._fields[name] = merged
        return is_new and self.is_read


def is_atom(value: Any) -> bool:
    """Whether an object never changes, and leads to no other."""
    # Classes derived from these may do anything where they are used.
    if type(value) in _ATOMS or isinstance(value, np.dtype):
        return True
    if isinstance(value, type):
        return value is not type and (value in CLOSED or (issubclass(value, np.generic) and _is_numpys(value)))
    if isinstance(value, np.generic):
        return _is_numpys(type(value)) and not isinstance(value, np.void | np.object_)
    if type(value) in (tuple, frozenset):
        return all(map(is_atom, value))
    if isinstance(value, enum.Enum):
        return _is_numpys(type(value))
    return type(value) in (np.finfo, np.iinfo, types.UnionType, types.GenericAlias)


_ATOMS = frozenset((*NUMBERS, str, bytes, type(None), type(Ellipsis), slice, range))


def _is_numpys(kind: type) -> bool:
    return kind.__module__ == "numpy"


def is_outer_array(value: Any) -> bool:
    """Whether it is one of NumPy's arrays, of numbers."""
    return type(value) is np.ndarray and not value.dtype.hasobject


def alternatives(value: Value) -> Iterable[Value]:
    return value.values if isinstance(value, OneOf) else (value,)


#: Different known plain values that are kept apart, and alternatives in all.
_MOST_APART, _MOST_ALTERNATIVES = 4, 64


def join(*values: Value | None) -> Value:
    """What is known of a value that is one of these; `None` is none."""
    flags: list[int] = []
    others: set[Value] = set()
    for value in values:
        if value is None:
            continue
        for each in alternatives(value):
            if isinstance(each, Data):
                flags.append(each.flags)
            else:
                others.add(each)
    atoms = [each for each in others if isinstance(each, Known) and is_atom(each.value)]
    if len(atoms) > _MOST_APART:
        others.difference_update(atoms)
        flags.append(0)
    if flags:
        merged = 0
        for each_flags in flags:
            merged |= each_flags
        certain = CERTAIN
        for each_flags in flags:
            certain &= each_flags
        others.add(Data((merged & ~CERTAIN) | certain))
    if len(others) == 1:
        return others.pop()
    if not others:
        return Data()
    if len(others) > _MOST_ALTERNATIVES:
        raise NotProvedError("there are too many different values for one name")
    return OneOf(frozenset(others))
