"""Notes of which call of NumPy's made which array while a function is traced, for questions about memory layout.

A result's layout is worked out (`layouts`) only if something depends on it; a note has all that this takes. An array
without axes stays one where NumPy returns one, rather than a number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from anygpu.array.core import recording
from anygpu.array.core.abstract_device import AbstractDevice, owner_of
from anygpu.array.core.array import Array
from anygpu.array.core.expression import active_tracer
from anygpu.array.core.layouts import Note, is_in_order
from anygpu.array.core.numpy_results import Order, Returns, returns_of
from anygpu.array.core.views import attach
from anygpu.program.primitives import Reshape

#: For functions that are not in the table: NumPy is asked for each call.
_UNKNOWN = Returns("new", "odd", "number")


def note_result(function: Any, arguments: tuple[Any, ...], options: dict[str, Any], result: Any) -> Any:
    """Note the call that made a result, and return the result: as an array without axes where NumPy returns one."""
    tracer = active_tracer.get()
    if not isinstance(tracer, AbstractDevice):
        return result
    return note(tracer, returns_of(function) or _UNKNOWN, function, arguments, options, result)


def note_new(made: Array, order: Order, function: Callable[..., Any], operand: Array) -> None:
    """Note that NumPy's function makes this array anew for the operand, in this memory order."""
    tracer = active_tracer.get()
    if isinstance(tracer, AbstractDevice):
        note(tracer, Returns("new", order, "number"), function, (operand,), {}, made)


def note(
    tracer: AbstractDevice,
    returns: Returns,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    options: dict[str, Any],
    result: Any,
) -> Any:
    """Note the call for every array in `result`; `returns` is the function's row in the table of `numpy_results`.

    Views and arguments that are returned have no note: their layout is that of what they show. Nested results are
    rebuilt, as scalars in them may become arrays without axes.
    """
    operands = tuple([(each, _seen(each, tracer)) for each in _arrays_in((arguments, options))])
    position = 0

    def one(made: Any) -> Any:
        nonlocal position
        if type(made) is Array:
            position += 1
            if made._is_number and _stays_array(returns, operands):
                return without_axes(made)
            if any(made is each for each, _ in operands):
                return made
            if made._view is None:
                stored = made._stored
                entry = Note(returns.order, function, arguments, options, operands, position - 1)
                tracer.notes[id(stored)] = (stored, entry)
                for known in tracer.known_layouts.values():
                    known.pop(id(stored), None)
        elif type(made) in (tuple, list):
            return type(made)([one(each) for each in made])
        elif isinstance(made, tuple) and hasattr(made, "_fields"):
            return type(made)(*map(one, made))
        return made

    return one(result)


def _seen(array: Any, tracer: AbstractDevice) -> Any:
    """The value or array that an operand's layout is later asked of; `None` where the layout may be another at the next
    call.

    Guards check values and C order of arrays from outside, and nothing more of their strides.
    """
    if type(array) is Array:
        return array._value
    return array if is_in_order(array) or id(owner_of(array)) not in tracer.known else None


def _stays_array(returns: Returns, operands: tuple[tuple[Any, Any], ...]) -> bool:
    """Whether NumPy returns an array without axes here, rather than a number."""
    if returns.without_axes == "as operand":
        first = operands[0][0] if operands else None
        return type(first) is not Array or not first._is_number
    return returns.without_axes == "array"


def without_axes(number: Array) -> Array:
    """A NumPy scalar as an array without axes: a view of an array with one element."""
    line = Array(recording.reshape(number._value, (1,)))
    return attach(Array(recording.reshape(line._value, ())), line, (Reshape(()),))


def _arrays_in(given: Any) -> Iterator[Any]:
    """All arrays in nested lists and tuples."""
    if type(given) in (Array, np.ndarray):
        yield given
    elif isinstance(given, tuple | list):
        for each in given:
            yield from _arrays_in(each)
    elif type(given) is dict:
        yield from _arrays_in(tuple(given.values()))


def note_ufunc(ufunc: np.ufunc, method: str, inputs: tuple[Any, ...], options: dict[str, Any], result: Any) -> Any:
    """As `note_result` for a ufunc or one of its methods; the layout of "outer" and "reduceat" is asked of NumPy."""
    tracer = active_tracer.get()
    if not isinstance(tracer, AbstractDevice) or result is NotImplemented:
        return result
    function = ufunc if method == "__call__" else getattr(ufunc, method)
    order: Order = "reduced" if method == "reduce" else "operands"
    returns = returns_of(ufunc) if method == "__call__" else None
    if returns is None:
        returns = Returns("new", order if method in ("__call__", "reduce", "accumulate") else "ask", "number")
    return note(tracer, returns, function, inputs, options, result)
