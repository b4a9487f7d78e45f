"""What has to be true of the things that a traced function depends on, and the steps that lead to them at each call.

A guard is a test of the value that was read with what was expected of it. It is made when a function is traced, and is
asked before every call on a device; so each is short.
"""

from __future__ import annotations

import operator
import types
from collections.abc import Callable
from typing import Any, cast
from weakref import ref

import numpy as np

from anygpu.array.core.array import Array
from anygpu.array.core.layouts import is_in_order as is_layout_in_order
from anygpu.base.digest import blake2b

#: Numbers and texts: compared by type and bits.
PLAIN = frozenset((bool, int, float, complex, str, bytes, type(None)))


def is_in_order(array: Any) -> bool:
    """Whether its axes lie in memory as in C order, so that what NumPy computes from it does too."""
    return isinstance(array, Array) or is_layout_in_order(array)


def bits(value: Any) -> Any:
    """What tells a value from all others of its type, also 0.0 from -0.0 and NaN from nothing else."""
    kind = type(value)
    if kind in (int, str, bytes, bool, type(None)):
        return value
    if isinstance(value, np.generic):
        return value.dtype.str, value.tobytes()
    if kind is tuple or kind is frozenset:
        return kind((type(each), bits(each)) for each in value)
    return repr(value)


def weak(value: Any) -> Callable[[], Any]:
    """A reference that does not keep the object alive; an object without weak references is kept."""
    try:
        return ref(value)
    except TypeError:
        return lambda: value


def always(value: Any, expected: Any) -> bool:
    return True


def is_of(value: Any, kind: Any) -> bool:
    return type(value) is kind


def is_of_ref(value: Any, kind: Any) -> bool:
    return type(value) is kind()


def is_ref(value: Any, known: Any) -> bool:
    return value is known()


def same_class(value: Any, expected: Any) -> bool:
    kind, count = expected
    return value is kind() and len(vars(value)) == count


def same_value(value: Any, expected: Any) -> bool:
    kind, known = expected
    return type(value) is kind and bits(value) == known


def same_array(value: Any, expected: Any) -> bool:
    kind, shape, dtype, ordered = expected
    if type(value) is not kind or value.shape != shape or (value.dtype is not dtype and value.dtype != dtype):
        return False
    return not shape or bool(is_in_order(value) is ordered)


def same_code(value: Any, code: Any) -> bool:
    return type(value) is types.FunctionType and value.__code__ is code


def container_facts(value: Any) -> Any:
    kind = type(value)
    if isinstance(value, dict):
        return kind, len(value), [(type(key), bits(key) if type(key) in PLAIN else id(key)) for key in value]
    return kind, len(value), None


def same_container(value: Any, expected: Any) -> bool:
    kind, length, keys = expected
    if type(value) is not kind or len(value) != length:
        return False
    return keys is None or container_facts(value)[2] == keys


def attribute_keys(value: Any) -> tuple[str, ...]:
    return tuple(vars(value)) if hasattr(value, "__dict__") else ()


def same_object(value: Any, expected: Any) -> bool:
    kind, keys = expected
    return type(value) is kind() and attribute_keys(value) == keys


def lacks(thing: Any, name: Any) -> bool:
    return not hasattr(thing, name)


def are_absent(around: Any, names: Any) -> bool:
    return cast(bool, around.keys().isdisjoint(names))


def defaults_facts(function: Any) -> tuple[int, tuple[str, ...]]:
    return len(function.__defaults__ or ()), tuple(function.__kwdefaults__ or ())


def same_defaults(function: Any, expected: Any) -> bool:
    return bool(defaults_facts(function) == expected)


def digest(array: Any) -> bytes:
    """The hash of an array's values, which have become constants of a program."""
    if isinstance(array, Array):  # it is replaced, not changed, when something is written to it
        return id(array._value).to_bytes(8, "little")
    return blake2b(np.ascontiguousarray(array).data.cast("B"), digest_size=16).digest()


STEPS: dict[str, Callable[[Any, Any], Any]] = {
    "root": lambda parent, key: parent[key],
    "item": operator.getitem,
    "global": lambda function, name: function.__globals__[name],
    "globals": lambda function, _: function.__globals__,
    "cell": lambda function, number: function.__closure__[number].cell_contents,
    "default": lambda function, number: function.__defaults__[number],
    "defaults": lambda function, _: function,
    "keyword default": lambda function, name: function.__kwdefaults__[name],
    "attribute": lambda thing, name: thing.__dict__[name],
    "slot": getattr,
    "builtin": lambda function, name: function.__builtins__[name],
    "itself": lambda thing, _: thing,
    "type": lambda thing, _: type(thing),
    "mro": lambda kind, number: kind.__mro__[number],
    "self": lambda method, _: method.__self__,
    "func": lambda method, _: method.__func__,
    "fget": lambda member, _: member.fget,
    "fset": lambda member, _: member.fset,
    "func attribute": lambda member, _: member.func,
    "partial func": lambda made, _: made.func,
    "args": lambda made, _: made.args,
    "keywords": lambda made, _: made.keywords,
    "factory": lambda made, _: made.default_factory,
    "wrapped": lambda thing, _: thing.__wrapped__,
}

#: What taking a step raises when the thing is not there any more.
GONE = (KeyError, IndexError, AttributeError, ValueError, TypeError)
