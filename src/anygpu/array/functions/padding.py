"""Arrays with a border. One axis after the other is widened, so that corners come out as in NumPy."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from anygpu.array.core import recording
from anygpu.array.core.arguments import arrays, bound_to, ndim, slice_axis, to_array
from anygpu.array.core.array import Array
from anygpu.array.core.expression import Value
from anygpu.array.core.overrides import implements
from anygpu.array.core.recording import apply, binary, broadcast, cast, reshape
from anygpu.array.functions import reductions, statistics
from anygpu.array.functions.ranges import linspace
from anygpu.program.dtypes import is_integer
from anygpu.program.primitives import Concatenate, Constant, Flip, Pad

Widths = tuple[int, int]

#: The further options of each mode.
_OPTIONS: dict[str, tuple[str, ...]] = {
    "constant": ("constant_values",),
    "edge": (),
    "empty": (),
    "linear_ramp": ("end_values",),
    "maximum": ("stat_length",),
    "mean": ("stat_length",),
    "median": ("stat_length",),
    "minimum": ("stat_length",),
    "reflect": ("reflect_type",),
    "symmetric": ("reflect_type",),
    "wrap": (),
}


@implements(np.pad)
def pad(array: Any, pad_width: Any, mode: Any = "constant", **kwargs: Any) -> Array:
    """Widened on both sides of each axis, with values that the mode says."""
    (given,) = arrays(array)
    if callable(mode):
        raise NotImplementedError(f"pad: a function cannot be a mode here; use one of {', '.join(_OPTIONS)}.")
    if mode not in _OPTIONS:
        raise ValueError(f"pad: mode is one of {', '.join(_OPTIONS)}, not {mode!r}.")
    unknown = set(kwargs) - set(_OPTIONS[mode])
    if unknown:
        raise ValueError(f"pad: mode {mode!r} takes no {', '.join(sorted(unknown))}.")
    widths = [_widths(each) for each in _pairs(_as_list(pad_width, given.ndim), given.ndim)]
    value = given._value
    match mode:
        case "empty":
            value = _constant(given, widths, [(0, 0)] * given.ndim)
        case "constant":
            value = _constant(given, widths, _pairs(kwargs.get("constant_values", 0), given.ndim))
        case "linear_ramp":
            ends = _pairs(kwargs.get("end_values", 0), given.ndim)
            for axis, both in _to_widen(given, widths):
                value = _ramp(value, axis, both, ends[axis], given)
        case "maximum" | "mean" | "median" | "minimum":
            reach = _pairs(kwargs.get("stat_length"), given.ndim)
            for axis, both in _to_widen(given, widths):
                value = _statistic(value, axis, both, mode, reach[axis])
        case _:
            for axis, both in _to_widen(given, widths):
                value = _from_inside(value, axis, both, mode, kwargs.get("reflect_type", "even"))
    return Array(bound_to(value, given._device))


def _as_list(pad_width: Any, dimensions: int) -> Any:
    """NumPy's newer form: a dictionary from axes to widths."""
    if not isinstance(pad_width, dict):
        return pad_width
    pairs: list[Any] = [(0, 0)] * dimensions
    for axis, width in pad_width.items():
        pairs[axis] = (width, width) if ndim(width) == 0 else tuple(width)
    return pairs


def _pairs(x: Any, dimensions: int) -> list[tuple[Any, Any]]:
    """One thing for all, one for each side, or a pair for each axis. Arrays may be among them."""
    if _is_single(x):
        return [(x, x)] * dimensions
    rows = [row if _is_single(row) else list(row) for row in x]
    if all(_is_single(row) for row in rows):
        if len(rows) == 1:
            return [(rows[0], rows[0])] * dimensions
        if len(rows) == 2:
            return [(rows[0], rows[1])] * dimensions
        raise ValueError(f"pad: {x} is neither one value, nor a pair, nor a pair for each of {dimensions} axes.")
    rows = [row if len(row) == 2 else row * 2 for row in rows]
    if any(len(row) != 2 for row in rows) or len(rows) not in (1, dimensions):
        raise ValueError(f"pad: {x} does not give a pair for each of {dimensions} axes.")
    return [(row[0], row[1]) for row in (rows * dimensions if len(rows) == 1 else rows)]


def _is_single(x: Any) -> bool:
    return x is None or (not isinstance(x, tuple | list) and ndim(x) == 0)


def _widths(pair: tuple[Any, Any]) -> Widths:
    """How much is added before and after an axis. Raises `TypeError` for floats and `ValueError` below 0."""
    try:
        low, high = (operator.index(each) for each in pair)
    except TypeError:
        raise TypeError(f"pad: widths are integers, not {pair}.") from None
    if low < 0 or high < 0:
        raise ValueError(f"pad: widths are 0 or more, not {pair}.")
    return low, high


def _to_widen(given: Array, widths: list[Widths]) -> list[tuple[int, Widths]]:
    """The axes that get wider by what is in them."""
    for axis, both in enumerate(widths):
        if given.shape[axis] == 0 and any(both):
            raise ValueError(f'pad: axis {axis} is empty and can only be widened with mode "constant" or "empty".')
    return [(axis, both) for axis, both in enumerate(widths) if any(both)]


def _constant(given: Array, widths: list[Widths], values: list[tuple[Any, Any]]) -> Value:
    """The array within borders of constant numbers, two for each axis.

    One number for all borders is a single `Pad`; otherwise each axis in turn is extended, so that corners have the
    numbers of the last axis, as in NumPy.
    """
    value = given._value
    kind = value.spec.dtype
    numbers = [_number(each, given) for pair in values for each in pair]
    if not widths:
        return value
    if all(_same(each, numbers[0]) for each in numbers):
        return apply(Pad(tuple(low for low, _ in widths), tuple(high for _, high in widths)), value, numbers[0])
    for axis, (low, high) in enumerate(widths):
        before, after = numbers[2 * axis : 2 * axis + 2]
        shape = list(value.spec.shape)
        for width, number, at_start in ((low, before, True), (high, after, False)):
            if width:
                shape[axis] = width
                border = broadcast(cast(number, kind), tuple(shape))
                value = apply(Concatenate(axis), *((border, value) if at_start else (value, border)))
    return value


def _same(one: Value, other: Value) -> bool:
    return one is other or (isinstance(one.op, Constant) and one.op == other.op)


def _number(x: Any, given: Array) -> Value:
    """A number for the border as a value in the array's type."""
    kind = given._value.spec.dtype
    if isinstance(x, Array):
        return cast(reshape(x._value, ()), kind)
    return recording.literal(_converted(x, kind))


def _converted(x: Any, dtype: str) -> npt.NDArray[Any]:
    return np.asarray(x).astype(dtype) if hasattr(x, "dtype") else np.full((), x, dtype)


def _border(value: Value, axis: int, width: int) -> Value:
    """One layer repeated."""
    shape = list(value.spec.shape)
    shape[axis] = width
    return broadcast(value, tuple(shape))


def _joined(axis: int, before: Value | None, value: Value, after: Value | None) -> Value:
    parts = [part for part in (before, value, after) if part is not None]
    return apply(Concatenate(axis), *parts) if len(parts) > 1 else value


def _from_inside(value: Value, axis: int, both: Widths, mode: str, kind: str) -> Value:
    """Modes that only show again what is there. When the border is wider than the array, in several rounds."""
    low, high = both
    period = value.spec.shape[axis]
    if mode == "edge" or (mode in ("reflect", "symmetric") and period == 1):
        first, last = slice_axis(value, axis, 0, 1), slice_axis(value, axis, period - 1, period)
        return _joined(
            axis, _border(first, axis, low) if low else None, value, _border(last, axis, high) if high else None
        )
    if kind not in ("even", "odd"):
        raise ValueError(f'pad: reflect_type is "even" or "odd", not {kind!r}.')
    while low or high:
        round_ = _wrap_round if mode == "wrap" else _mirror_round
        before, after = round_(value, axis, (low, high), period, mode == "symmetric", kind == "odd")
        value = _joined(axis, before, value, after)
        low -= 0 if before is None else before.spec.shape[axis]
        high -= 0 if after is None else after.spec.shape[axis]
    return value


def _wrap_round(
    value: Value, axis: int, both: Widths, period: int, with_edge: bool, odd: bool
) -> tuple[Value | None, Value | None]:
    """The elements to put before and behind along an axis for "wrap": the other end's.

    No more than whole periods of the original length at once; the caller goes on until the widths are reached.
    """
    length = value.spec.shape[axis]
    whole = length // period * period  # only whole periods are shown again
    low, high = (min(whole, each) for each in both)
    return (
        slice_axis(value, axis, whole - low, whole) if low else None,
        slice_axis(value, axis, length - whole, length - whole + high) if high else None,
    )


def _mirror_round(
    value: Value, axis: int, both: Widths, period: int, with_edge: bool, odd: bool
) -> tuple[Value | None, Value | None]:
    """The elements to put before and behind along an axis for "reflect" and "symmetric".

    With `with_edge` the edge is shown again, as "symmetric" has it. With `odd` they are mirrored at the edge's value as
    well.
    """
    length = value.spec.shape[axis]
    skip = 0 if with_edge else 1
    unit = period - skip
    whole = (length - skip) // unit * unit
    low, high = (min(whole, each) for each in both)
    before = after = None
    if low:
        before = apply(Flip((axis,)), slice_axis(value, axis, skip, skip + low))
        if odd:
            before = _mirrored(before, slice_axis(value, axis, 0, 1))
    if high:
        after = apply(Flip((axis,)), slice_axis(value, axis, length - skip - high, length - skip))
        if odd:
            after = _mirrored(after, slice_axis(value, axis, length - 1, length))
    return before, after


def _mirrored(value: Value, edge: Value) -> Value:
    """Reflected about the value at the edge."""
    return binary("subtract", binary("multiply", edge, 2), value)


def _ramp(value: Value, axis: int, both: Widths, ends: tuple[Any, Any], given: Array) -> Value:
    """From a value at the outside to the edge."""
    length = value.spec.shape[axis]
    kind = given.dtype
    layers: list[Value | None] = []
    for width, end, at_start in zip(both, ends, (True, False), strict=True):
        if not width:
            layers.append(None)
            continue
        start = 0 if at_start else length - 1
        edge = slice_axis(value, axis, start, start + 1)
        flat = Array(reshape(edge, tuple(n for each, n in enumerate(edge.spec.shape) if each != axis)))
        # NumPy forgets the type of a plain number here too: the ramp is computed in its own, and then converted.
        ramp = linspace(to_array(end, given._device), flat, width, endpoint=False, dtype=kind, axis=axis)._value
        layers.append(ramp if at_start else apply(Flip((axis,)), ramp))
    return _joined(axis, layers[0], value, layers[1])


_STATISTICS: dict[str, Callable[..., Any]] = {
    "maximum": reductions.max,
    "minimum": reductions.min,
    "mean": reductions.mean,
    "median": statistics.median,
}


def _statistic(value: Value, axis: int, both: Widths, mode: str, reach: tuple[Any, Any]) -> Value:
    """A mean, median or extreme of the elements near each edge."""
    length = value.spec.shape[axis]
    choose = _STATISTICS[mode]
    layers = []
    for width, count, at_start in zip(both, reach, (True, False), strict=True):
        near = length if count is None else min(operator.index(count), length)
        if near == 0 and mode in ("maximum", "minimum"):
            raise ValueError("pad: stat_length of 0 yields no value for padding.")
        start, stop = (0, near) if at_start else (length - near, length)
        result = choose(Array(slice_axis(value, axis, start, stop)), axis, keepdims=True)._value
        if is_integer(value.spec.dtype) and not is_integer(result.spec.dtype):
            result = recording.unary("rint", result)
        layers.append(_border(cast(result, value.spec.dtype), axis, width) if width else None)
    return _joined(axis, layers[0], value, layers[1])
