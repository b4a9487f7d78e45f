"""Reads all that a traced function depends on, by a function of Python that is written for its captures.

Small functions are called hundreds of thousands of times, and a step of a loop over captures takes half a microsecond.
Written out, with the usual tests in place of calls, it takes a tenth of that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any

import numpy as np

from anygpu.array.trace.guards import (
    GONE,
    STEPS,
    always,
    is_in_order,
    is_of,
    is_of_ref,
    is_ref,
    same_array,
    same_code,
    same_container,
    same_defaults,
)

if TYPE_CHECKING:
    from anygpu.array.trace.captures import Capture

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
}


def compiled_reader(
    captures: Sequence[Capture], wanted: Sequence[int] | None = None, distinct: Sequence[int] = ()
) -> Reader:
    """The reader of these captures, which does what `Traced.read` does step by step.

    It returns the values that are `wanted`, by position; all of them if that is left out. Two that must be `distinct`
    may not be one object.
    """
    names: dict[str, Any] = {"GONE": GONE, "FunctionType": FunctionType, "in_order": is_in_order}
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
    """The condition under which a value is not what was expected; `None` where it always is."""
    v, e = f"v{number}", f"e{number}"
    test, names[e] = capture.test, capture.expected
    if capture.kind == "same":
        return f"{v} is not v{capture.expected}"
    if test is always:
        return None
    if test is is_of:
        return f"type({v}) is not {e}"
    if test is is_of_ref:
        return f"type({v}) is not {e}()"
    if test is is_ref:
        return f"{v} is not {e}()"
    if test is same_code:
        return f"type({v}) is not FunctionType or {v}.__code__ is not {e}"
    if test is same_container and not capture.expected[2]:
        kind, length, _ = capture.expected
        names[e] = kind
        return f"type({v}) is not {e} or len({v}) != {length}"
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
