"""The methods of NumPy's ufuncs: `np.add.reduce(x)` and its like.

What a primitive does is recorded as that. Other functions whose operands can be grouped at will are combined by halves,
in as many steps as the logarithm of the length; the rest, such as `np.subtract.reduce`, element after element.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np

from anygpu.array.core.arguments import slice_axis, to_array
from anygpu.array.core.array import Array, device_of
from anygpu.array.core.device import ArrayDevice, to_numpy_dtype
from anygpu.array.core.expression import Value
from anygpu.array.core.recording import (
    _fitted,
    apply,
    broadcast,
    broadcast_shapes,
    cast,
    dtype_name,
    literal,
    normal_axes,
    normal_axis,
    permute,
    reshape,
    unary,
)
from anygpu.array.core.recording import where as select
from anygpu.array.core.views import write
from anygpu.array.functions.elementwise import RULES, array_of, kind_of, operand_of, resolve
from anygpu.program.dtypes import DType, is_integer
from anygpu.program.functions import ReduceFunction, ScanFunction, ScatterFunction
from anygpu.program.primitives import (
    Broadcast,
    Concatenate,
    Iota,
    Reduce,
    Reshape,
    Scan,
    Scatter,
    Shape,
    product,
)

#: A longer chain of dependent steps makes a program that no device runs well.
MAX_STEPS = 1000

_REDUCTIONS: dict[np.ufunc, ReduceFunction] = {
    np.add: "sum",
    np.multiply: "prod",
    np.maximum: "max",
    np.minimum: "min",
    np.logical_or: "any",
    np.logical_and: "all",
}
_SCANS: dict[np.ufunc, ScanFunction] = {np.add: "sum", np.multiply: "prod", np.maximum: "max", np.minimum: "min"}
#: What these are for truth values.
_SCANS_OF_BOOL: dict[np.ufunc, ScanFunction] = {
    np.add: "max",
    np.maximum: "max",
    np.logical_or: "max",
    np.multiply: "min",
    np.minimum: "min",
    np.logical_and: "min",
}
_SCATTERS: dict[np.ufunc, ScatterFunction] = {
    np.add: "add",
    np.subtract: "add",
    np.multiply: "multiply",
    np.maximum: "maximum",
    np.minimum: "minimum",
}
#: Their operands can be grouped at will.
_ASSOCIATIVE = frozenset(
    {
        np.bitwise_and,
        np.bitwise_or,
        np.bitwise_xor,
        np.logical_xor,
        np.fmax,
        np.fmin,
        np.gcd,
        np.hypot,
        np.logaddexp,
        np.logaddexp2,
    }
)


def reduce(
    ufunc: np.ufunc,
    array: Any,
    *,
    axis: Any = 0,
    dtype: Any = None,
    out: Array | None = None,
    keepdims: bool = False,
    initial: Any = np._NoValue,
    where: Any = True,
) -> Array:
    """One result for each line along the axes."""
    _check_is_binary(ufunc, "reduce")
    device = device_of(array, out, where, initial)
    x = to_array(array, device)._value
    shape = x.spec.shape
    axes = () if not shape and axis in (0, -1) else normal_axes(axis, len(shape))
    inner = _inner_dtype(ufunc, x, out, dtype)
    if len(axes) > 1 and ufunc not in _REDUCTIONS and ufunc not in _ASSOCIATIVE:
        raise ValueError(f"the order matters to np.{ufunc.__name__}, so it reduces one axis at a time.")
    start = None if initial is None or initial is np._NoValue else _scalar(initial, device, inner)
    neutral = None if initial is None else _neutral(ufunc, inner)
    mask = mask_of(where, device)
    if mask is not None:
        mask = broadcast(mask, shape)
    result = _reduced(ufunc, cast(x, inner), axes, start, neutral, mask)
    if keepdims:
        result = reshape(result, tuple(1 if position in axes else n for position, n in enumerate(shape)))
    return _delivered(result, x, out)


def accumulate(ufunc: np.ufunc, array: Any, *, axis: Any = 0, dtype: Any = None, out: Array | None = None) -> Array:
    """The result up to each element, along one axis."""
    _check_is_binary(ufunc, "accumulate")
    x = to_array(array, device_of(array, out))._value
    axis = _only_axis(x, axis, "accumulate")
    inner = _inner_dtype(ufunc, x, out, dtype)
    elements = cast(x, inner)
    if inner == "bool" and ufunc in _SCANS_OF_BOOL:
        result = cast(apply(Scan(_SCANS_OF_BOOL[ufunc], axis), cast(elements, "uint8")), "bool")
    elif ufunc in _SCANS:
        result = apply(Scan(_SCANS[ufunc], axis), elements)
    else:
        line = _line(elements, (axis,))
        steps = _running(ufunc, line) if ufunc in _ASSOCIATIVE else _running_in_order(ufunc, line)
        result = permute(steps, (*range(1, axis + 1), 0, *range(axis + 1, len(x.spec.shape))))
    return _delivered(result, x, out)


def reduceat(
    ufunc: np.ufunc, array: Any, indices: Any, *, axis: Any = 0, dtype: Any = None, out: Array | None = None
) -> Array:
    """A reduction from each position to the next; where the next is not larger, the element itself."""
    _check_is_binary(ufunc, "reduceat")
    x = to_array(array, device_of(array, out))._value
    axis = _only_axis(x, axis, "reduceat")
    length = x.spec.shape[axis]
    positions = [int(each) for each in np.asarray(indices).astype(np.int64, casting="same_kind")]
    for position in positions:
        if not 0 <= position < length:
            raise IndexError(
                f"index {position} is out of bounds for np.{ufunc.__name__}.reduceat over {length} elements."
            )
    _check_steps(ufunc, "reduceat", len(positions))
    inner = _inner_dtype(ufunc, x, out, dtype)
    line = _line(cast(x, inner), (axis,))
    ends = [*positions[1:], length]
    parts = [slice_axis(line, 0, first, max(first + 1, end)) for first, end in zip(positions, ends, strict=True)]
    results = [_first_axis(_along(ufunc, part, (0,))) for part in parts] or [slice_axis(line, 0, 0, 0)]
    order = (*range(1, axis + 1), 0, *range(axis + 1, len(x.spec.shape)))
    return _delivered(permute(apply(Concatenate(0), *results), order), x, out)


def at(ufunc: np.ufunc, array: Any, indices: Any, *operands: Any) -> None:
    """`array[indices] op= operand`, where a position that is named twice counts twice."""
    if not isinstance(array, Array):
        raise TypeError(
            f"np.{ufunc.__name__}.at changes a NumPy array in place; pass it np.asarray(x) of anygpu arrays."
        )
    dtype = array._stored.spec.dtype
    fn = _SCATTERS.get(ufunc)
    if fn is None or len(operands) != 1:
        raise TypeError(
            f"np.{ufunc.__name__}.at is not possible here; those of add, subtract, multiply, maximum and minimum are. "
            f"If no position is named twice, write x[i] = np.{ufunc.__name__}(x[i]{', y' if ufunc.nin == 2 else ''})."
        )
    operand = operand_of(operands[0], array._device)
    loop = resolve(ufunc, (dtype, kind_of(operand)), (dtype,))
    if loop[0] != dtype and (is_integer(dtype) and ufunc in (np.maximum, np.minimum)):
        raise TypeError(f"np.{ufunc.__name__}.at of {dtype} with {loop[0]}: convert the operand with astype first.")
    count = apply(Iota(array.size, "int64"))
    count.device = array._device  # it is indexed beside the array, not on the default device
    positions = Array(reshape(count, array.shape))[indices]._value
    updates = _fitted(operand, loop[1], positions.spec.shape)
    target = cast(array._value, loop[0])
    if ufunc is np.subtract:
        updates = unary("negative", updates)
    if loop[0] == "bool":
        fn = "maximum" if fn in ("add", "maximum") else "minimum"
        target, updates = cast(target, "uint8"), cast(updates, "uint8")
    flat = (product(positions.spec.shape),)
    changed = apply(Scatter(fn, 0), reshape(target, (array.size,)), reshape(positions, flat), reshape(updates, flat))
    write(array, cast(reshape(changed, array.shape), dtype))


def into(out: Array, value: Value, mask: Value | None = None) -> Array:
    """Write a result into the array given as `out`."""
    shapes = [out.shape, value.spec.shape] + ([] if mask is None else [mask.spec.shape])
    if broadcast_shapes(*shapes) != out.shape:
        raise ValueError(f"a result of shape {broadcast_shapes(*shapes[1:])} does not fit into out= of {out.shape}.")
    new = broadcast(cast(value, out._stored.spec.dtype), out.shape)
    if mask is not None:
        new = select(mask, new, out._value)
    write(out, apply(Reshape(out.shape), new, spec=new.spec))
    return out


def mask_of(where: Any, device: ArrayDevice) -> Value | None:
    """The mask behind where=; `None` for everything."""
    if where is True:
        return None
    mask = to_array(where, device)
    if mask.dtype != np.bool_:
        raise TypeError(f"where= takes truth values, not {mask.dtype}; write where=mask != 0.")
    return mask._value


# One line


def _reduced(
    ufunc: np.ufunc,
    x: Value,
    axes: tuple[int, ...],
    start: Value | None,
    neutral: Value | None,
    mask: Value | None,
) -> Value:
    """The reduction of a value along axes by a ufunc.

    `start` is the user's initial value, `neutral` the ufunc's identity. Where the ufunc is one of our reductions, or
    associative, it is done as a tree; otherwise element by element. Raises `ValueError` where a number to start from is
    needed and missing.
    """
    is_empty = any(x.spec.shape[axis] == 0 for axis in axes)
    first = neutral if start is None else start
    if first is None and (is_empty or mask is not None):
        cause = "for nothing at all" if is_empty else "with where="
        raise ValueError(f"np.{ufunc.__name__} has no identity, the number to start from {cause}: give initial=.")
    if first is not None and is_empty:
        return _spread(first, tuple(n for axis, n in enumerate(x.spec.shape) if axis not in axes), x)
    if ufunc not in _REDUCTIONS and ufunc not in _ASSOCIATIVE:
        return _folded(ufunc, x, axes, start, mask)
    if first is not None and mask is not None:
        # Without a neutral element the start is as good: all functions that lack one give a for a and a.
        x = select(mask, x, first if neutral is None else neutral)
    result = _along(ufunc, x, axes)
    # NumPy starts from the neutral element, and it can count: the greatest common divisor of -4 alone is 4.
    if first is not None and (start is not None or ufunc in _ASSOCIATIVE or not axes):
        result = _step(ufunc, _spread(first, result.spec.shape, x), result)
    return result


def _along(ufunc: np.ufunc, x: Value, axes: tuple[int, ...]) -> Value:
    """The reduction of at least one element."""
    if not axes:
        return x
    if x.spec.dtype == "bool" and ufunc in (np.add, np.multiply):
        return apply(Reduce("any" if ufunc is np.add else "all", axes), x)
    if ufunc in _REDUCTIONS:
        return apply(Reduce(_REDUCTIONS[ufunc], axes), x)
    return _halved(ufunc, _line(x, axes)) if ufunc in _ASSOCIATIVE else _folded(ufunc, x, axes)


def _halved(ufunc: np.ufunc, line: Value) -> Value:
    """The first half with the second, and so on; what is left over joins the next round."""
    while (length := line.spec.shape[0]) > 1:
        half = length // 2
        joined = _step(ufunc, slice_axis(line, 0, 0, half), slice_axis(line, 0, half, 2 * half))
        line = joined if length % 2 == 0 else apply(Concatenate(0), joined, slice_axis(line, 0, length - 1, length))
    return reshape(line, line.spec.shape[1:])


def _running(ufunc: np.ufunc, line: Value) -> Value:
    """Each element with the one 1, 2, 4, … before it: after each round it stands for twice as many."""
    length, reach = line.spec.shape[0], 1
    while reach < length:
        joined = _step(ufunc, slice_axis(line, 0, 0, length - reach), slice_axis(line, 0, reach, length))
        line = apply(Concatenate(0), slice_axis(line, 0, 0, reach), joined)
        reach *= 2
    return line


def _folded(
    ufunc: np.ufunc,
    x: Value,
    axes: tuple[int, ...],
    start: Value | None = None,
    mask: Value | None = None,
) -> Value:
    """The reduction element by element, in order: for ufuncs that are not associative.

    Elements that the mask leaves out change nothing. Raises where there are too many steps for one program.
    """
    line = _line(x, axes)
    chosen = None if mask is None else _line(mask, axes)
    _check_steps(ufunc, "reduce", line.spec.shape[0])
    state = None if start is None else _spread(start, line.spec.shape[1:], x)
    for position, element in enumerate(_elements(line)):
        if state is None:
            state = element
            continue
        after = _step(ufunc, state, element)
        state = after if chosen is None else select(_element(chosen, position), after, state)
    return x if state is None else state


def _running_in_order(ufunc: np.ufunc, line: Value) -> Value:
    """All states of a fold along the first axis, element by element."""
    _check_steps(ufunc, "accumulate", line.spec.shape[0])
    states: list[Value] = []
    for element in _elements(line):
        states.append(_step(ufunc, states[-1], element) if states else element)
    return apply(Concatenate(0), *map(_first_axis, states)) if states else line


def _step(ufunc: np.ufunc, state: Value, element: Value) -> Value:
    result = RULES[ufunc].body(state, element)
    return result[0] if isinstance(result, tuple) else result


def _line(x: Value, axes: tuple[int, ...]) -> Value:
    """All elements along the axes, in C order, along one axis that comes first."""
    others = tuple(axis for axis in range(len(x.spec.shape)) if axis not in axes)
    rest = tuple(x.spec.shape[axis] for axis in others)
    return reshape(permute(x, axes + others), (product(tuple(x.spec.shape[axis] for axis in axes)), *rest))


def _element(line: Value, position: int) -> Value:
    return reshape(slice_axis(line, 0, position, position + 1), line.spec.shape[1:])


def _elements(line: Value) -> Iterator[Value]:
    return (_element(line, position) for position in range(line.spec.shape[0]))


def _first_axis(x: Value) -> Value:
    return reshape(x, (1, *x.spec.shape))


def _spread(scalar: Value, shape: Shape, beside: Value) -> Value:
    """One number in that shape, on the device of the other value."""
    value = apply(Broadcast(shape), scalar)
    value.device = value.device or beside.device
    return value


# Types, starts and checks


def _inner_dtype(ufunc: np.ufunc, x: Value, out: Array | None, wanted: Any) -> DType:
    """The dtype of the computation and its result; sums and products of small integers are int64."""
    return _resolved(
        ufunc,
        x.spec.dtype,
        None if out is None else out._stored.spec.dtype,
        None if wanted is None else dtype_name(wanted),
    )


@cache
def _resolved(ufunc: np.ufunc, dtype: DType, out: DType | None, wanted: DType | None) -> DType:
    """The type that a ufunc reduces in, by NumPy's own resolution. Raises `TypeError` where it has none."""
    fixed: dict[str, Any] = {} if wanted is None else {"signature": (to_numpy_dtype(wanted), None, None)}
    asked = (None if out is None else to_numpy_dtype(out), to_numpy_dtype(dtype), None)
    try:
        found = ufunc.resolve_dtypes(asked, casting="unsafe", reduction=True, **fixed)
    except TypeError as error:
        raise TypeError(
            f"np.{ufunc.__name__} cannot reduce {dtype}; convert with astype first. NumPy says: {error}"
        ) from None
    state, element, result = (dtype_name(each) for each in found)
    if not state == element == result:
        raise TypeError(f"np.{ufunc.__name__} makes {result} of {state} and {element}, and cannot go on with that.")
    return result


def _neutral(ufunc: np.ufunc, dtype: DType) -> Value | None:
    """The identity of the ufunc: 0 for add, 1 for multiply, all bits for bitwise_and."""
    return None if ufunc.identity is None else literal(np.asarray(ufunc.identity).astype(dtype))


def _scalar(initial: Any, device: ArrayDevice, dtype: DType) -> Value:
    """The initial value in a type. Raises `ValueError` for an array."""
    value = to_array(initial, device)._value
    if value.spec.shape:
        raise ValueError(f"initial= is one number, not an array of shape {value.spec.shape}.")
    return cast(value, dtype)


def _only_axis(x: Value, axis: Any, method: str) -> int:
    """The one axis of `accumulate` and its kind. Raises `TypeError` or `ValueError` where that is not clear."""
    dimensions = len(x.spec.shape)
    if not dimensions:
        raise TypeError(f"{method} needs an axis, and an array without axes has none.")
    if isinstance(axis, tuple) and len(axis) == 1:
        (axis,) = axis
    if axis is None and dimensions == 1:
        axis = 0
    if axis is None or isinstance(axis, tuple):
        raise ValueError(f"{method} goes along one axis; name it with axis=.")
    return normal_axis(axis, dimensions)


def _check_is_binary(ufunc: np.ufunc, method: str) -> None:
    """Raise `ValueError` unless a ufunc takes two operands and has one result."""
    if ufunc.nin != 2 or ufunc.nout != 1:
        raise ValueError(
            f"{method} takes a function of two operands with one result, which np.{ufunc.__name__} is not."
        )


def _check_steps(ufunc: np.ufunc, method: str, steps: int) -> None:
    """Raise `TypeError` where a fold would be too many operations for one program."""
    if steps > MAX_STEPS:
        raise TypeError(
            f"np.{ufunc.__name__}.{method} takes {steps} steps here, one by one, and {MAX_STEPS} are the most. "
            f"Compute it on the host: np.{ufunc.__name__}.{method}(np.asarray(x))."
        )


def _delivered(result: Value, x: Value, out: Array | None) -> Array:
    """The result as an array, or in `out`. Raises `ValueError` where the shapes differ."""
    if out is None:
        return array_of(result, (x,))
    if result.spec.shape != out.shape:
        raise ValueError(f"a result of shape {result.spec.shape} does not fit into out= of {out.shape}.")
    return into(out, result)
