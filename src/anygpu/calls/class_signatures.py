"""The parts of a call's key for objects of classes other than Python's and NumPy's own.

`signature` loads it for the first such object. Each class is examined once: `way_for` makes the function that describes
its objects.
"""

from __future__ import annotations

import dataclasses
import enum
import sys
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from anygpu.calls.signature import (
    BUILTIN,
    MOST_PARTS,
    ByType,
    Describe,
    OwnArray,
    Parts,
    by_dtype,
    describe,
    dtype_of,
    elements,
    items,
    shape_of,
    token_of,
    way_of,
)


def way_for(kind: type, token: int) -> Describe:
    """Return how objects of a class are described; containers are taken apart as programs take them apart."""
    # Where it is not loaded, there are none.
    if (arrays := sys.modules.get("anygpu.array.core.array")) is not None and issubclass(kind, arrays.Array):
        return of_array if kind is arrays.Array else _kind_of_array
    if issubclass(kind, np.dtype):
        return by_dtype
    if issubclass(kind, np.ndarray):
        return lambda value, parts, input_number_types: parts.extend((token, shape_of(value), dtype_of(value).num))
    if issubclass(kind, type | ModuleType):
        return lambda value, parts, input_number_types: parts.extend((token, token_of(value)))
    if issubclass(kind, enum.Enum):
        return lambda value, parts, input_number_types: _member(token, value, parts, input_number_types)
    whole = _whole(token)
    if dataclasses.is_dataclass(kind) and not issubclass(kind, tuple | list | dict):
        return _dataclass(kind, token, whole)
    take = _parts_of(kind)
    if take is None:
        return whole

    def describe_container(value: Any, parts: Parts, input_number_types: frozenset[type]) -> None:
        taken = take(value)
        if taken is None:
            whole(value, parts, input_number_types)
        elif isinstance(taken, dict):
            items(taken, parts, input_number_types, token)
        else:
            elements(taken, parts, input_number_types, token)

    return describe_container


def _kind_of_array(value: Any, parts: Parts, input_number_types: frozenset[type]) -> None:
    """Describe an array of anygpu's own by its device, shape and dtype."""
    parts += (OwnArray, value.device, value.shape, value.dtype.char)


def of_array(value: Any, parts: Parts, input_number_types: frozenset[type]) -> None:
    """Describe an `Array` itself by its device, shape and dtype, which it gives in one call."""
    device, shape, dtype = value._facts()
    parts += (OwnArray, device, shape, _CHARACTERS[dtype])


#: By the name of a type.
_CHARACTERS = {name: np.dtype(name).char for name in (np.dtype(code).name for code in "?bBhHiIlLqQefdFD")}


def _member(token: int, value: enum.Enum, parts: Parts, input_number_types: frozenset[type]) -> None:
    """Describe a member of an enumeration by its class and name."""
    name: str | None = value._name_  # that of no flag at all has none
    parts.append(token)
    describe(value._value_ if name is None else name, parts, frozenset())


def _whole(token: int) -> Describe:
    """Make the function that describes an object by its class alone: programs read what they depend on anew."""
    return lambda value, parts, input_number_types: parts.append(token)


def _dataclass(kind: type, token: int, whole: Describe) -> Describe:
    """Make the function that describes instances of a dataclass by their fields, and attributes beside them.

    An instance whose attributes cannot be read is described by its class.
    """
    fields = tuple(field.name for field in dataclasses.fields(kind))
    count = len(fields)

    def describe_dataclass(value: Any, parts: Parts, input_number_types: frozenset[type]) -> None:
        attributes = getattr(value, "__dict__", fields)
        begin = len(parts)
        parts += (token, len(attributes))
        if begin > MOST_PARTS:
            parts.append(ByType)
            return
        try:
            for name in fields if len(attributes) <= count else (*fields, *attributes):
                each = getattr(value, name)
                kind = type(each)
                if kind is np.ndarray:
                    dtype = each.dtype
                    parts.append(each.shape)
                    parts.append(dtype.num if dtype.isnative else -dtype.num)
                elif kind in input_number_types:
                    parts.append(kind)
                else:
                    (BUILTIN.get(kind) or way_of(kind))(each, parts, input_number_types)
        except Exception:  # noqa: BLE001 - an attribute that was never set, or that raises
            del parts[begin:]
            whole(value, parts, input_number_types)

    return describe_dataclass


def _parts_of(kind: type) -> Callable[[Any], Any] | None:
    """Return the function that takes a container apart, to a sequence or a dict; `None` for classes that stay whole.

    It uses the methods of the built-in class, so that none of the user's code runs; it returns `None` for a container
    that has attributes of its own.
    """
    if issubclass(kind, np.generic):
        return None
    if issubclass(kind, tuple):
        return lambda value: None if getattr(value, "__dict__", None) else tuple.__getitem__(value, slice(None))
    if issubclass(kind, list):
        return lambda value: None if getattr(value, "__dict__", None) else list.copy(value)
    if issubclass(kind, defaultdict):
        return lambda value: None if getattr(value, "__dict__", None) else {"": value.default_factory, **value}
    if issubclass(kind, OrderedDict):
        return lambda value: None if getattr(value, "__dict__", None) else dict(OrderedDict.items(value))
    if issubclass(kind, dict):
        return lambda value: None if getattr(value, "__dict__", None) else dict.copy(value)
    return None
