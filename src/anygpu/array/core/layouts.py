"""How the arrays of a traced function would lie in memory if NumPy computed them.

Whether a reshape is a view, and in which order the axes of a result lie, depends on that. A layout is a NumPy array
with the shape, the dtype and the strides, and with no memory behind them: it is never read. Views of it are made by
NumPy itself. Results that are new follow the table in `numpy_results`, which was made by asking NumPy; where the table
has no rule, NumPy is asked at once, with small arrays of the same order.
"""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided, sliding_window_view

from anygpu.array.core.abstract_device import AbstractDevice, ArrayInput, CapturedConstant, ScalarInput
from anygpu.array.core.device import to_numpy_dtype
from anygpu.array.core.expression import Value
from anygpu.array.core.numpy_results import Order
from anygpu.array.core.recording import normal_axes
from anygpu.base.typing import HostArray
from anygpu.program.primitives import (
    Binary,
    Broadcast,
    Cast,
    Constant,
    Flip,
    Iota,
    Permute,
    Primitive,
    Reshape,
    Select,
    Slice,
    Unary,
    Windows,
)

#: Primitives whose result NumPy makes without copying, if it can.
MOVEMENTS = (Slice, Flip, Permute, Reshape, Broadcast, Windows)
_ELEMENTWISE = (Unary, Binary, Select, Cast)


class Note(NamedTuple):
    """One call of a function of NumPy's that made new arrays while a function was traced."""

    order: Order
    #: The function, to ask NumPy itself.
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    #: The arrays among the arguments, as they were: for each the object, and its value, or its layout if it is known.
    operands: tuple[tuple[Any, Value | HostArray | None], ...]
    #: Which of the arrays that it returned this one is.
    position: int


@lru_cache(maxsize=1024)
def in_c_order(shape: tuple[int, ...], dtype: np.dtype[Any]) -> HostArray:
    """The layout of an array in C order."""
    strides, step = [], dtype.itemsize
    for length in reversed(shape):
        strides.append(step)
        step *= max(length, 1)
    return _without_memory(shape, dtype, strides[::-1])


def in_axis_order(shape: Sequence[int], dtype: np.dtype[Any], axes: Sequence[int]) -> HostArray:
    """The layout of an array whose axes lie in memory in this order, the slowest first."""
    return in_c_order(tuple([shape[axis] for axis in axes]), dtype).transpose(np.argsort(axes))


def _without_memory(shape: Sequence[int], dtype: np.dtype[Any], strides: Sequence[int]) -> HostArray:
    """An array with these strides, behind which there is no memory."""
    return as_strided(np.empty(1, dtype), tuple(shape), tuple(strides))


def copy_in_order(array: HostArray, axes: tuple[int, ...]) -> HostArray:
    """A copy with its axes in that order of memory, the slowest first; as NumPy's own results, it is no view."""
    made = np.empty_like(in_axis_order(array.shape, array.dtype, axes), order="K")
    made[...] = array
    return made


def axis_order(layout: HostArray) -> tuple[int, ...]:
    """The axes in the order of memory, the slowest first."""
    return tuple(sorted(range(layout.ndim), key=lambda axis: -abs(layout.strides[axis])))


def is_in_order(layout: HostArray) -> bool:
    """Whether its axes lie in memory as in C order, so that what NumPy computes from it does too.

    An axis of stride 0 has no place in that order: it lies wherever those of other operands do.
    """
    if layout.flags.c_contiguous:
        return True
    steps = [abs(step) for step, length in zip(layout.strides, layout.shape, strict=True) if length > 1]
    return 0 not in steps and all(one >= other for one, other in pairwise(steps))


def follow(op: Primitive, x: HostArray) -> HostArray:
    """The view of a NumPy array that a movement gives. Raises a `ValueError` for a reshape that needs a copy."""
    match op:
        case Slice(starts=starts, stops=stops, steps=steps):
            return x[tuple(slice(*each) for each in zip(starts, stops, steps, strict=True))]
        case Flip(axes=axes):
            return np.flip(x, axes)
        case Permute(axes=axes):
            return x.transpose(axes)
        case Reshape(shape=shape):
            return np.reshape(x, shape, copy=False)
        case Broadcast(shape=shape):
            return np.broadcast_to(x, shape)
        case Windows(axis=axis, size=size, step=step):
            seen = sliding_window_view(x, size, axis)
            return seen[(slice(None),) * axis + (slice(None, None, step),)]
        case Unary(fn=fn):
            return x.real if fn == "real" else x.imag
    return x


def is_movement(op: Primitive | None) -> bool:
    """Whether NumPy gives a view where this primitive is recorded; a copy if it is a reshape that needs one."""
    return isinstance(op, MOVEMENTS) or (isinstance(op, Unary) and op.fn in ("real", "imag"))


class Layouts:
    """The layouts of what one traced function computes. A layout that is not known is `None`.

    `exact` ones depend on the strides of the function's arguments. Others only depend on what every call is compared
    with anyway, which is whether an argument lies in C order.
    """

    def __init__(self, tracer: AbstractDevice, *, exact: bool) -> None:
        self._tracer = tracer
        self._exact = exact
        self._known = tracer.known_layouts[exact]

    def of(self, value: Value) -> HostArray | None:
        """The layout of a value. Iterative, because a loop may have made a very deep graph."""
        stack = [value]
        while stack:
            top = stack[-1]
            if id(top) in self._known:
                stack.pop()
                continue
            missing = [each for each in self._needed(top) if id(each) not in self._known]
            if missing:
                stack += missing
                continue
            self._known[id(top)] = (top, self._judge(top))
            stack.pop()
        return self._known[id(value)][1]

    def _needed(self, value: Value) -> Sequence[Value]:
        """The values whose layouts decide that of a value."""
        note = self._tracer.notes.get(id(value))
        if note is not None:
            found = [] if note[1].order == "C" else [each for _, each in note[1].operands]
            return [each for each in found if isinstance(each, Value)]
        replaced = self._tracer.replaced.get(id(value))
        return value.inputs if replaced is None else (replaced[1],)

    def _judge(self, value: Value) -> HostArray | None:
        """The layout of a value, from those that it needs; `None` if it is not known."""
        dtype, shape = to_numpy_dtype(value.spec.dtype), value.spec.shape
        note = self._tracer.notes.get(id(value))
        if note is not None:
            return self._of_call(note[1], shape, dtype)
        replaced = self._tracer.replaced.get(id(value))
        if replaced is not None:
            return self._known[id(replaced[1])][1]
        if value.op is None:
            return self._of_leaf(value, dtype)
        if isinstance(value.op, Constant | Iota):
            return None if id(value) in self._tracer.unordered else in_c_order(shape, dtype)
        sources = [self._known[id(each)][1] for each in value.inputs]
        if any(each is None for each in sources):
            return None
        layouts: list[HostArray] = sources  # type: ignore[assignment]
        if is_movement(value.op):
            try:
                return follow(value.op, layouts[0])
            except ValueError:
                return in_c_order(shape, dtype)
        if all(map(is_in_order, layouts)):
            return in_c_order(shape, dtype)
        if isinstance(value.op, _ELEMENTWISE):
            # A conversion of an operand happens inside of NumPy's loop, and does not change what the loop sees.
            seen = [self.of(each.inputs[0] if isinstance(each.op, Cast) else each) for each in value.inputs]
            return of_operands([each for each in seen if each is not None], shape, dtype)
        return None

    def _of_leaf(self, value: Value, dtype: np.dtype[Any]) -> HostArray | None:
        """The layout of an input or a constant."""
        buffer = value.buffer
        if isinstance(buffer, ArrayInput):
            if value.ordered and not self._exact:
                return in_c_order(value.spec.shape, dtype)
            example = self._tracer.strides_of(buffer.position)
            if example is not None:
                return _without_memory(example.shape, dtype, example.strides)
            # Arrays of anygpu's own are in C order.
            return in_c_order(value.spec.shape, dtype) if value.ordered else None
        if isinstance(buffer, ScalarInput) or (isinstance(buffer, CapturedConstant) and value.ordered):
            return in_c_order(value.spec.shape, dtype)
        return None

    def _of_call(self, note: Note, shape: tuple[int, ...], dtype: np.dtype[Any]) -> HostArray | None:
        """The layout of what a function of NumPy's returned."""
        if note.order == "C" or (len(shape) < 2 and note.order != "odd"):
            return in_c_order(shape, dtype)
        operands = [self._known[id(each)][1] if isinstance(each, Value) else each for _, each in note.operands]
        if any(each is None for each in operands):
            return None
        if not self._exact and note.order in _BY_CONTIGUITY and not all(map(is_in_order, operands)):  # type: ignore[arg-type]
            exact = Layouts(self._tracer, exact=True)
            operands = [exact.of(each) if isinstance(each, Value) else each for _, each in note.operands]
            if any(each is None for each in operands):
                return None
        return result_layout(note, operands, shape, dtype)  # type: ignore[arg-type]


#: Rules by which a result depends on gaps and reversed axes of its operands, not only on the order of their axes.
_BY_CONTIGUITY = ("contiguous", "ask", "odd")


def result_layout(
    note: Note, operands: Sequence[HostArray], shape: tuple[int, ...], dtype: np.dtype[Any]
) -> HostArray | None:
    """The layout of a new array that a function of NumPy's returns for operands of these layouts; `None` if it is
    unknown.
    """
    order = _order_wanted(note)
    if order == "F":
        return in_axis_order(shape, dtype, range(len(shape))[::-1])
    if order == "C" or (order != "odd" and all(map(is_in_order, operands))):
        return in_c_order(shape, dtype)
    match order:
        case "operands":
            return of_operands(operands, shape, dtype)
        case "like" if operands[0].ndim == len(shape):
            return in_axis_order(shape, dtype, axis_order(np.empty_like(_smaller(operands)[0])))
        case "contiguous":
            flags = operands[0].flags
            is_fortran = flags.f_contiguous and not flags.c_contiguous
            return in_axis_order(shape, dtype, range(len(shape))[:: -1 if is_fortran else 1])
        case "reduced":
            return _reduced(note, operands[0], shape, dtype)
        case "ask" | "odd":
            return _asked(note, operands, shape, dtype)
    return None


def _order_wanted(note: Note) -> str:
    """The order that the caller named, or else the function's own."""
    if note.order not in ("operands", "like", "contiguous"):
        return note.order
    named = _argument(note, "order")
    if named in (None, "K"):
        return note.order
    return "contiguous" if named == "A" else str(named)


def _argument(note: Note, name: str) -> Any:
    """An argument by its name, whether it was passed by that or by its position; `None` if it was not passed."""
    where = _places(note.function).get(name, len(note.arguments))
    return note.options.get(name, note.arguments[where] if where < len(note.arguments) else None)


@lru_cache(maxsize=256)
def _places(function: Callable[..., Any]) -> dict[str, int]:
    """The position of each argument of a function; none where NumPy does not say."""
    if isinstance(function, np.ufunc):
        return {}
    try:
        return {name: place for place, name in enumerate(inspect.signature(function).parameters)}
    except (TypeError, ValueError):
        return {}


def of_operands(operands: Sequence[HostArray], shape: tuple[int, ...], dtype: np.dtype[Any]) -> HostArray | None:
    """The layout of what one of NumPy's ufuncs gives: its iterator allocates it, here without computing anything."""
    seen = [each for each in operands if each.ndim]
    if not seen or math.prod(shape) == 0:
        return in_c_order(shape, dtype)
    try:
        flags = [["readonly"]] * len(seen) + [["writeonly", "allocate"]]
        made = np.nditer([*_smaller(seen), None], ["zerosize_ok", "multi_index"], flags).operands[-1]  # type: ignore[arg-type]
    except ValueError:
        return None
    return in_axis_order(shape, dtype, axis_order(made)) if made.ndim == len(shape) else None


def _smaller(layouts: Sequence[HostArray]) -> list[HostArray]:
    """The layouts with at most two elements along each axis, so that nothing large is allocated."""
    return [each[tuple([slice(0, 2)] * each.ndim)] for each in layouts]


def _reduced(note: Note, operand: HostArray, shape: tuple[int, ...], dtype: np.dtype[Any]) -> HostArray | None:
    """The layout of a reduction: what is left of the operand's order."""
    if len(shape) == operand.ndim:
        return of_operands([operand], shape, dtype)
    try:
        gone = normal_axes(_axis(note), operand.ndim)
    except (TypeError, ValueError):
        return None
    left = [each for each in range(operand.ndim) if each not in gone]
    whole = of_operands([operand], operand.shape, dtype)
    if len(left) != len(shape) or whole is None:
        return None
    return in_axis_order(shape, dtype, [left.index(each) for each in axis_order(whole) if each in left])


def _axis(note: Note) -> Any:
    """The axis that a reduction was called with; a ufunc's method reduces the first, others all of them."""
    if getattr(note.function, "__name__", "") != "reduce":
        return _argument(note, "axis")
    return note.options.get("axis", note.arguments[1] if len(note.arguments) > 1 else 0)


#: Elements along an axis of the small arrays that NumPy is asked with.
_SMALL = 3


def _asked(note: Note, operands: Sequence[HostArray], shape: tuple[int, ...], dtype: np.dtype[Any]) -> HostArray | None:
    """The layout that NumPy gives its result for small arrays of the same order; `None` if it raises an error.

    A result that is a part of a larger array, or read-only, gets gaps: no program can return it.
    """
    small = {id(array): _stand_in(layout) for (array, _), layout in zip(note.operands, operands, strict=True)}
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            returned = note.function(*_replaced(note.arguments, small), **_replaced(note.options, small))
    except Exception:  # noqa: BLE001 - whatever NumPy makes of smaller arrays, the layout is not known then
        return None
    leaves = [each for each in leaves_of(returned) if isinstance(each, np.ndarray | np.generic)]
    made = np.asarray(leaves[note.position]) if note.position < len(leaves) else None
    if made is None or made.ndim != len(shape):
        return None
    layout = in_axis_order(shape, dtype, axis_order(made))
    if made.flags.writeable and has_no_gaps(made):
        return layout
    return _without_memory(shape, dtype, [2 * step for step in layout.strides])


def has_no_gaps(layout: HostArray) -> bool:
    """Whether the elements fill their memory, in whatever order of the axes."""
    return bool(layout.transpose(axis_order(layout)).flags.c_contiguous)


class _CannotAsk(Exception):
    """The arguments have something in them that small arrays cannot stand in for."""


def _replaced(given: Any, made: dict[int, HostArray]) -> Any:
    """Arguments of a call with the arrays replaced by layouts."""
    if id(given) in made:
        return made[id(given)]
    if isinstance(given, list | tuple) and type(given) in (list, tuple):
        return type(given)([_replaced(each, made) for each in given])
    if type(given) is dict:
        return {name: _replaced(each, made) for name, each in given.items()}
    if type(given) is np.ndarray:
        return _stand_in(given)
    if not isinstance(given, np.dtype | type | np.generic) and type(given) not in _PLAIN:
        raise _CannotAsk
    return given


_PLAIN = frozenset((bool, int, float, complex, str, type(None), type(Ellipsis), slice))


def _stand_in(layout: HostArray) -> HostArray:
    """Return a small array with the same order of axes in memory, and gaps and zero strides in the same places."""
    shape = [min(length, _SMALL) for length in layout.shape]
    steps = [step if length > 1 else 1 for step, length in zip(layout.strides, layout.shape, strict=True)]
    whole = [length if step else 1 for length, step in zip(shape, steps, strict=True)]
    axes = axis_order(layout)
    size = math.prod(whole)
    # Not a pattern, so that matrices have an inverse; whole numbers may be positions, and truth values a mask.
    numbers = np.sin(np.arange(1.0, size + 1)) if layout.dtype.kind in "fc" else np.full(size, layout.dtype.kind == "b")
    turn = tuple(slice(None, None, -1 if step < 0 else None) for step in steps)
    dense = numbers.astype(layout.dtype).reshape([whole[axis] for axis in axes])
    if 0 not in steps and not has_no_gaps(layout[turn]):
        dense = np.stack([dense, dense], axis=-1)[..., 0]
    turned = dense.transpose(np.argsort(axes))[turn]
    return np.broadcast_to(turned, shape) if whole != shape else turned


def leaves_of(returned: Any) -> Iterator[Any]:
    """The arrays that a function of NumPy's returns, also in tuples and lists."""
    if isinstance(returned, tuple | list):
        for each in returned:
            yield from leaves_of(each)
    else:
        yield returned
