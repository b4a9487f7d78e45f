"""Guards: conditions on the objects that a traced function depends on, the steps that lead to them, and their reader.

A guard compares the value that was read with the expected one. `STEPS` are the ways from one object to another.
`compiled_reader` writes both as one Python function for the captures of a program.
"""

from __future__ import annotations

import operator
import sys
import types
from abc import get_cache_token
from collections.abc import Callable, Sequence
from struct import pack
from types import FunctionType
from typing import TYPE_CHECKING, Any, cast
from weakref import ref

import numpy as np

from anygpu.array.core.array import Array
from anygpu.array.core.layouts import is_in_order as is_layout_in_order
from anygpu.base.own_files import blake2b

if TYPE_CHECKING:
    from anygpu.array.trace.captures import Capture


# -- guards and steps
# A guard is a test of the value that was read with what was expected of it. It is made when a function is traced, and
# is asked before every call on a device; so each is short.


#: Numbers and texts: compared by type and bits.
PLAIN = frozenset((bool, int, float, complex, str, bytes, type(None)))


def is_in_order(array: Any) -> bool:
    """Return whether its axes lie in memory as in C order, so that what NumPy computes from it does too."""
    return isinstance(array, Array) or is_layout_in_order(array)


def bits(value: Any) -> Any:
    """Return a key that tells a value from all others of its type: 0.0 from -0.0 too, and NaN from -NaN."""
    kind = type(value)
    if kind in (int, str, bytes, bool, type(None)):
        return value
    if kind is float:
        return pack("d", value)
    if kind is complex:
        return pack("dd", value.real, value.imag)
    if isinstance(value, np.generic):
        return value.dtype.str, value.tobytes()
    if kind is tuple or kind is frozenset:
        return kind((type(each), bits(each)) for each in value)
    return repr(value)


def weak(value: Any) -> Callable[[], Any]:
    """Return a reference that does not keep the object alive; an object without weak references is kept."""
    try:
        return ref(value)
    except TypeError:
        return lambda: value


def always(value: Any, expected: Any) -> bool:
    """Return True: another test decides."""
    return True


def is_of(value: Any, kind: Any) -> bool:
    """Return whether a value is of exactly this type."""
    return type(value) is kind


def is_of_ref(value: Any, kind: Any) -> bool:
    """Return whether a value is of exactly the type that is referred to."""
    return type(value) is kind()


def is_ref(value: Any, known: Any) -> bool:
    """Return whether a value is the object that is referred to."""
    return value is known()


def same_class(value: Any, expected: Any) -> bool:
    """Return whether an object is the same class, with members of the same names and as many bases."""
    kind, names, bases = expected
    return value is kind() and [*vars(value)] == names and len(value.__mro__) == bases


def same_module(value: Any, known: Any) -> bool:
    """Return whether an object is the same module, and its own class has not changed."""
    return value is known() and type(value) is types.ModuleType


def same_partial(value: Any, expected: Any) -> bool:
    """Return whether an object is a partial function without attributes."""
    return type(value) is expected and not value.__dict__


def same_value(value: Any, expected: Any) -> bool:
    """Return whether a value has the same type and bits."""
    kind, known = expected
    return type(value) is kind and bits(value) == known


def same_array(value: Any, expected: Any) -> bool:
    """Return whether an array has the same class, shape and dtype, and is in C order if the traced one was.

    The order of the axes decides the memory layout of results, and so what the program returns.
    """
    kind, shape, dtype, ordered = expected
    if type(value) is not kind or value.shape != shape or (value.dtype is not dtype and value.dtype != dtype):
        return False
    return not shape or bool(is_in_order(value) is ordered)


def same_code(value: Any, code: Any) -> bool:
    """Return whether a function has the same code."""
    return type(value) is types.FunctionType and value.__code__ is code


class _Itself:
    """Stands in a key for an object that is recognised by its identity."""

    __slots__ = ("ref",)

    def __init__(self, key: Any) -> None:
        self.ref = weak(key)


def _is_plain(key: Any) -> bool:
    """Return whether a key is a number, a text, or a tuple of such."""
    return type(key) in PLAIN or (type(key) is tuple and all(map(_is_plain, key)))


def _same_key(key: Any, known: Any) -> bool:
    """Return whether a dictionary key is the same object as before, or has the same type and bits."""
    if type(known) is _Itself:
        return key is known.ref()
    return type(key) is type(known) and bool(bits(key) == bits(known))


def container_facts(value: Any) -> Any:
    """Return the type and the length of a container, and the keys of a dictionary in their order."""
    keys = [key if _is_plain(key) else _Itself(key) for key in value] if isinstance(value, dict) else None
    return type(value), len(value), keys


def same_container(value: Any, expected: Any) -> bool:
    """Return whether a container has the same type, length and keys."""
    kind, length, keys = expected
    if type(value) is not kind or len(value) != length:
        return False
    # Strings are mostly the same objects, and comparing identities takes a tenth of the time.
    return not keys or all(map(operator.is_, value, keys)) or all(map(_same_key, value, keys))


def attribute_keys(value: Any) -> tuple[str, ...]:
    """Return the names of an object's attributes."""
    return tuple(vars(value)) if hasattr(value, "__dict__") else ()


def same_object(value: Any, expected: Any) -> bool:
    """Return whether an object has the same class and attributes."""
    kind, keys = expected
    return type(value) is kind() and attribute_keys(value) == keys


def lacks(thing: Any, name: Any) -> bool:
    """Return whether an object has no attribute of this name."""
    return not hasattr(thing, name)


def lacks_all(thing: Any, names: Any) -> bool:
    """Return whether an object's dictionary has none of these names."""
    return cast(bool, thing.__dict__.keys().isdisjoint(names))


def is_empty(cell: Any, expected: Any) -> bool:
    """Return whether a closure cell is empty."""
    try:
        cell.cell_contents  # noqa: B018 - an empty cell raises
    except ValueError:
        return True
    return False


def same_options(value: Any, expected: Any) -> bool:
    """Return whether the print options of NumPy are the same object, or equal."""
    return bool(value is expected or value == expected)


def same_registrations(thing: Any, token: Any) -> bool:
    """Return whether no class was registered with an abstract base class since the trace."""
    return bool(get_cache_token() == token)


def are_absent(around: Any, names: Any) -> bool:
    """Return whether none of these names is defined."""
    return cast(bool, around.keys().isdisjoint(names))


def defaults_facts(function: Any) -> tuple[int, tuple[str, ...]]:
    """Return the number of a function's defaults, and the names of its keyword defaults."""
    return len(function.__defaults__ or ()), tuple(function.__kwdefaults__ or ())


def same_defaults(function: Any, expected: Any) -> bool:
    """Return whether a function has as many defaults, and keyword defaults of the same names."""
    return bool(defaults_facts(function) == expected)


def digest(array: Any) -> bytes:
    """Return the hash of an array's values, which have become constants of a program.

    It is 16 bytes of BLAKE2b. Of an `Array` it is the identity of its value, which is replaced and not changed by a
    write.
    """
    if isinstance(array, Array):  # it is replaced, not changed, when something is written to it
        return id(array._value).to_bytes(8, "little")
    return blake2b(np.ascontiguousarray(array).data.cast("B"), digest_size=16).digest()


def print_options() -> Callable[[], Any]:
    """Return a function that reads NumPy's print options; they are a new object or a new value after each change."""
    # NumPy's public function makes a copy, which takes ten times as long.
    kept = getattr(sys.modules.get("numpy._core.printoptions"), "format_options", None)
    return np.get_printoptions if kept is None else cast(Callable[[], Any], kept.get)


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
    "wrapped": lambda thing, _: thing.function,
    "empty cell": lambda function, number: function.__closure__[number],
    "imported": lambda function, name: sys.modules[name],
    "member": lambda kind, name: kind._member_map_[name],
    "print options": lambda function, options: options(),
}

#: Errors of a step whose target does not exist any more.
GONE = (KeyError, IndexError, AttributeError, ValueError, TypeError)


# -- reading all that a traced function depends on, by a function of Python written for its captures
# Small functions are called hundreds of thousands of times, and a step of a loop over captures takes half a
# microsecond. Written out, with the usual tests in place of calls, it takes a tenth of that.


#: The values of all captures for a call with these arguments, keywords and function; `None` when a test fails.
Reader = Callable[[tuple[Any, ...], dict[str, Any], Any], list[Any] | None]

_ROOTS = ("arguments", "keywords", "function")

#: Steps as expressions of what they begin at, {v}, and their key, {k}; others are called.
_EXPRESSIONS = {
    STEPS["item"]: "{v}[{k}]",
    STEPS["global"]: "{v}.__globals__[{k}]",
    STEPS["globals"]: "{v}.__globals__",
    STEPS["cell"]: "{v}.__closure__[{k}].cell_contents",
    STEPS["default"]: "{v}.__defaults__[{k}]",
    STEPS["defaults"]: "{v}",
    STEPS["attribute"]: "{v}.__dict__[{k}]",
    STEPS["builtin"]: "{v}.__builtins__[{k}]",
    STEPS["itself"]: "{v}",
    STEPS["self"]: "{v}.__self__",
    STEPS["func"]: "{v}.__func__",
    STEPS["type"]: "type({v})",
    STEPS["mro"]: "{v}.__mro__[{k}]",
    STEPS["wrapped"]: "{v}.function",
    STEPS["member"]: "{v}._member_map_[{k}]",
    STEPS["print options"]: "{k}()",
}

#: For each test, the condition under which it fails for a value {v} and an expectation {e}; other tests are called.
_FAILURES: dict[Callable[[Any, Any], bool], str] = {
    is_of: "type({v}) is not {e}",
    is_of_ref: "type({v}) is not {e}()",
    is_ref: "{v} is not {e}()",
    same_code: "type({v}) is not FunctionType or {v}.__code__ is not {e}",
    same_module: "{v} is not {e}() or type({v}) is not ModuleType",
    same_options: "{v} is not {e} and {v} != {e}",
}


def compiled_reader(
    captures: Sequence[Capture], wanted: Sequence[int] | None = None, distinct: Sequence[int] = ()
) -> Reader:
    """Compile the reader of these captures: it takes the arguments, the keywords and the function of a call.

    It returns the values that are `wanted`, by position, all of them if that is left out; `None` when a guard fails or
    a step leads nowhere. Two captures that must be `distinct` may not be one object.
    """
    names: dict[str, Any] = {"GONE": GONE, "FunctionType": FunctionType, "ModuleType": types.ModuleType}
    names["in_order"] = is_in_order
    lines = ["def read(arguments, keywords, function):", "  try:"]
    for number, each in enumerate(captures):
        lines.append(f"    v{number} = {_expression(number, each, names)}")
        failure = _failure(number, each, names)
        if failure is not None:
            lines.append(f"    if {failure}: return None")
    lines.append("  except GONE:\n    return None")
    if len(distinct) == 2:
        lines.append(f"  if v{distinct[0]} is v{distinct[1]}: return None")
    returned = range(len(captures)) if wanted is None else wanted
    lines.append(f"  return [{', '.join(f'v{number}' for number in returned)}]")
    exec("\n".join(lines), names)
    reader: Reader = names["read"]
    return reader


def _expression(number: int, capture: Capture, names: dict[str, Any]) -> str:
    """Return the Python expression that reads a capture, and add what it needs to `names`."""
    if capture.parent < 0 and capture.read is STEPS["root"]:
        return _ROOTS[capture.key]
    value, key = f"v{capture.parent}" if capture.parent >= 0 else f"({', '.join(_ROOTS)})", f"k{number}"
    names[key] = capture.key
    known = _EXPRESSIONS.get(capture.read)
    if known is not None:
        return known.format(v=value, k=key)
    names[f"r{number}"] = capture.read
    return f"r{number}({value}, {key})"


def _failure(number: int, capture: Capture, names: dict[str, Any]) -> str | None:
    """Return the condition under which a value is not what was expected; `None` where it always is."""
    v, e = f"v{number}", f"e{number}"
    test, names[e] = capture.test, capture.expected
    if capture.kind == "same":
        return f"{v} is not v{capture.expected}"
    if test is always:
        return None
    known = _FAILURES.get(test)
    if known is not None:
        return known.format(v=v, e=e)
    if test is same_class:
        kind, members, bases = capture.expected
        names[e], names[f"m{number}"] = kind, members
        return f"{v} is not {e}() or [*{v}.__dict__] != m{number} or len({v}.__mro__) != {bases}"
    if test is same_object and capture.expected[1]:
        names[e], names[f"m{number}"] = capture.expected[0], list(capture.expected[1])
        return f"type({v}) is not {e}() or [*{v}.__dict__] != m{number}"
    if test is same_container and not capture.expected[2]:
        kind, length, _ = capture.expected
        names[e] = kind
        differs = f"len({v}) != {length}" if length else v
        # The arguments of a call are a tuple, and its keywords a dict.
        return differs if capture.parent < 0 else f"type({v}) is not {e} or {differs}"
    if test is same_defaults and capture.expected == (0, ()):
        return f"{v}.__defaults__ or {v}.__kwdefaults__"
    if test is same_array and capture.expected[0] is np.ndarray:
        _, shape, dtype, ordered = capture.expected
        names[e], names[f"s{number}"], names[f"d{number}"] = np.ndarray, shape, dtype
        d = f"d{number}"
        same = f"type({v}) is not {e} or {v}.shape != s{number} or ({v}.dtype is not {d} and {v}.dtype != {d})"
        if not shape:
            return same
        return f"{same} or not ({v}.flags.c_contiguous or in_order({v}))" if ordered else f"{same} or in_order({v})"
    names[f"t{number}"] = test
    return f"not t{number}({v}, {e})"
