"""Many calls of one program as one: the program with a new leading axis, for its inputs and its results.

Each primitive has one rule. A rule sees which inputs carry the new axis, always in front, and gives a result that has
it in front; what does not depend on the new axis stays as it is until something needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from anygpu.errors import InvalidOption, InvalidProgram
from anygpu.program import primitives as p
from anygpu.program.attention import Attend
from anygpu.program.custom import Custom, with_references
from anygpu.program.dtypes import ITEMSIZE, KIND, DType, is_inexact
from anygpu.program.functions import BinaryFunction, UnaryFunction
from anygpu.program.graph import Line, Program, Recorder
from anygpu.program.primitives import Primitive, Shape, Spec, free_axes


def vmap(program: Program, batched: Sequence[bool], size: int) -> Program:
    """The program for `size` calls at once.

    Inputs marked True have a new leading axis of length `size`, the others are the same for all calls. Every result
    has the new axis, also one that is the same for all.
    """
    if len(batched) != program.input_count:
        raise InvalidOption(f"vmap: {len(batched)} marks for a program of {program.input_count} inputs.")
    if size < 0:
        raise InvalidOption(f"vmap: {size} is no number of calls.")
    # What a user's kernel does with one more axis is known only of its reference.
    program = with_references(program, None)
    stack = _Stack(size)
    values: list[_Value] = []
    for position, (op, inputs) in enumerate(program.nodes):
        if isinstance(op, p.Input):
            shape = (size, *op.shape) if batched[position] else op.shape
            values.append(_Value(stack.recorder.input(Spec(shape, op.dtype)), bool(batched[position])))
            continue
        stack.line = program.lines[position]
        given = [values[each] for each in inputs]
        if any(each.stacked for each in given):
            values.append(_Value(_RULES[type(op)](stack, op, *given), True))
        else:
            values.append(_Value(stack.add(op, *(each.position for each in given)), False))
    return stack.recorder.program([stack.lifted(values[output]) for output in program.outputs])


class _Value(NamedTuple):
    position: int
    #: Whether it has the new axis.
    stacked: bool


class _Stack:
    """Records the new program; what rules need again and again."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.recorder = Recorder()
        self.line: Line | None = None

    def add(self, op: Primitive, *inputs: int) -> int:
        return self.recorder.add(op, *inputs, line=self.line)

    def shape(self, value: _Value) -> Shape:
        """The shape without the new axis."""
        shape = self.recorder.spec(value.position).shape
        return shape[1:] if value.stacked else shape

    def dtype(self, value: _Value) -> DType:
        return self.recorder.spec(value.position).dtype

    def lifted(self, value: _Value) -> int:
        """With the new axis, repeated along it if need be."""
        if value.stacked:
            return value.position
        return self.add(p.Broadcast((self.size, *self.shape(value))), value.position)

    def unary(self, fn: UnaryFunction, x: int) -> int:
        return self.add(p.Unary(fn), x)

    def binary(self, fn: BinaryFunction, x: int, y: int) -> int:
        return self.add(p.Binary(fn), x, y)

    def full(self, shape: Shape, dtype: DType, data: bytes) -> int:
        """One number, repeated to a shape."""
        number = self.add(p.Constant((), dtype, data))
        return self.add(p.Broadcast(shape), number) if shape else number

    def to_front(self, position: int, axis: int) -> int:
        if axis == 0:
            return position
        others = [each for each in range(len(self.recorder.spec(position).shape)) if each != axis]
        return self.add(p.Permute((axis, *others)), position)


def _later(axes: Sequence[int]) -> tuple[int, ...]:
    """Axes, after one more was put in front."""
    return tuple(axis + 1 for axis in axes)


def _elementwise(stack: _Stack, op: Primitive, *given: _Value) -> int:
    """Also for what works on the last axes, and leaves all axes in front of them alone."""
    return stack.add(op, *(stack.lifted(each) for each in given))


def _reduce(stack: _Stack, op: p.Reduce, x: _Value) -> int:
    return stack.add(p.Reduce(op.fn, _later(op.axes)), x.position)


def _scan(stack: _Stack, op: p.Scan, x: _Value) -> int:
    return stack.add(p.Scan(op.fn, op.axis + 1), x.position)


def _reshape(stack: _Stack, op: p.Reshape, x: _Value) -> int:
    return stack.add(p.Reshape((stack.size, *op.shape)), x.position)


def _permute(stack: _Stack, op: p.Permute, x: _Value) -> int:
    return stack.add(p.Permute((0, *_later(op.axes))), x.position)


def _broadcast(stack: _Stack, op: p.Broadcast, x: _Value) -> int:
    shape = stack.shape(x)
    position = x.position
    if len(shape) < len(op.shape):  # the new axis stays in front, so the others that come need room behind it
        missing = (1,) * (len(op.shape) - len(shape))
        position = stack.add(p.Reshape((stack.size, *missing, *shape)), position)
    return stack.add(p.Broadcast((stack.size, *op.shape)), position)


def _slice(stack: _Stack, op: p.Slice, x: _Value) -> int:
    return stack.add(p.Slice((0, *op.starts), (stack.size, *op.stops), (1, *op.steps)), x.position)


def _update(stack: _Stack, op: p.Update, x: _Value, new: _Value) -> int:
    return stack.add(p.Update((0, *op.starts), (1, *op.steps)), stack.lifted(x), stack.lifted(new))


def _flip(stack: _Stack, op: p.Flip, x: _Value) -> int:
    return stack.add(p.Flip(_later(op.axes)), x.position)


def _pad(stack: _Stack, op: p.Pad, x: _Value, value: _Value) -> int:
    low, high = (0, *op.low), (0, *op.high)
    if not value.stacked:
        return stack.add(p.Pad(low, high), x.position, value.position)
    # Each call has its own value: pad with anything, and put the values where a padded mask says.
    shape, dtype = stack.shape(x), stack.dtype(x)
    anything = stack.add(p.Constant((), dtype, bytes(ITEMSIZE[dtype])))
    padded = stack.add(p.Pad(low, high), stack.lifted(x), anything)
    inside = stack.add(p.Pad(op.low, op.high), stack.full(shape, "bool", b"\1"), stack.full((), "bool", b"\0"))
    result = stack.recorder.spec(padded).shape
    spread = stack.add(p.Reshape((stack.size,) + (1,) * len(shape)), value.position)
    return stack.add(p.Select(), stack.add(p.Broadcast(result), inside), padded, stack.add(p.Broadcast(result), spread))


def _concatenate(stack: _Stack, op: p.Concatenate, *parts: _Value) -> int:
    return stack.add(p.Concatenate(op.axis + 1), *(stack.lifted(each) for each in parts))


def _windows(stack: _Stack, op: p.Windows, x: _Value) -> int:
    return stack.add(p.Windows(op.axis + 1, op.size, op.step), x.position)


def _contract(stack: _Stack, op: p.Contract, x: _Value, y: _Value) -> int:
    if x.stacked and y.stacked:
        whole = p.Contract(_later(op.left), _later(op.right), (0, *_later(op.left_batch)), (0, *_later(op.right_batch)))
        return stack.add(whole, x.position, y.position)
    if x.stacked:  # the new axis is one more free axis of that side, and the first of them
        one = p.Contract(_later(op.left), op.right, _later(op.left_batch), op.right_batch)
        return stack.to_front(stack.add(one, x.position, y.position), len(op.left_batch))
    rows = len(free_axes(stack.shape(x), op.left, op.left_batch))
    other = p.Contract(op.left, _later(op.right), op.left_batch, _later(op.right_batch))
    return stack.to_front(stack.add(other, x.position, y.position), len(op.left_batch) + rows)


def _gather(stack: _Stack, op: p.Gather, x: _Value, indices: _Value) -> int:
    if op.batch or (x.stacked and indices.stacked):
        return stack.add(p.Gather(op.axis + 1, op.batch + 1), stack.lifted(x), stack.lifted(indices))
    if x.stacked:
        return stack.add(p.Gather(op.axis + 1), x.position, indices.position)
    return stack.to_front(stack.add(p.Gather(op.axis), x.position, indices.position), op.axis)


def _scatter(stack: _Stack, op: p.Scatter, x: _Value, indices: _Value, updates: _Value) -> int:
    if op.batch or indices.stacked:
        all_of_them = (stack.lifted(each) for each in (x, indices, updates))
        return stack.add(p.Scatter(op.fn, op.axis + 1, op.batch + 1), *all_of_them)
    return stack.add(p.Scatter(op.fn, op.axis + 1), stack.lifted(x), indices.position, stack.lifted(updates))


def _sort(stack: _Stack, op: p.Sort, x: _Value) -> int:
    return stack.add(p.Sort(op.axis + 1), x.position)


def _argsort(stack: _Stack, op: p.Argsort, x: _Value) -> int:
    return stack.add(p.Argsort(op.axis + 1), x.position)


def _fourier(stack: _Stack, op: p.Fourier, x: _Value) -> int:
    return stack.add(p.Fourier(op.fn, op.axis + 1, op.length), x.position)


def _custom(stack: _Stack, op: Custom, *given: _Value) -> int:
    raise InvalidProgram(
        f"the kernel {op.title} has no reference that can be recorded, so calls of it cannot be batched."
    )


def _search(stack: _Stack, op: p.Search, line: _Value, values: _Value) -> int:
    """With a line for each call: a binary search for all values at once, written out, as lengths are known.

    `found` counts the elements of its line that are known to come before a value. It grows by a power of two where the
    element there also comes before it.
    """
    if not line.stacked:
        return stack.add(op, line.position, values.position)
    (length,) = stack.shape(line)
    wanted = stack.lifted(values)
    shape = stack.recorder.spec(wanted).shape
    found = _whole(stack, shape, 0)
    last, one = _whole(stack, shape, length), _whole(stack, shape, 1)
    for power in range(length.bit_length() - 1, -1, -1):
        further = stack.binary("add", found, _whole(stack, shape, 1 << power))
        at = stack.binary("subtract", stack.binary("minimum", further, last), one)
        element = stack.add(p.Gather(1, 1), line.position, at)
        if op.side == "left":
            before = _sorts_before(stack, element, wanted)
        else:
            before = stack.unary("invert", _sorts_before(stack, wanted, element))
        inside = stack.binary("less_equal", further, last)
        found = stack.add(p.Select(), stack.binary("bitwise_and", before, inside), further, found)
    return found


def _whole(stack: _Stack, shape: Shape, number: int) -> int:
    return stack.full(shape, "int64", number.to_bytes(8, "little"))


def _sorts_before(stack: _Stack, x: int, y: int) -> int:
    """Whether x stands before y in sorted order, where NaN is last."""
    dtype = stack.recorder.spec(x).dtype
    if KIND[dtype] == "complex":
        return _complex_sorts_before(stack, x, y)
    less = stack.binary("less", x, y)
    return stack.binary("bitwise_or", less, _only_second_is_nan(stack, x, y)) if is_inexact(dtype) else less


def _only_second_is_nan(stack: _Stack, x: int, y: int) -> int:
    return stack.binary("bitwise_and", stack.unary("invert", stack.unary("isnan", x)), stack.unary("isnan", y))


def _complex_sorts_before(stack: _Stack, x: int, y: int) -> int:
    """By real part, then by imaginary part; numbers with NaN in them after all others, with it in both parts last.

    That is NumPy's order: first comes what has no NaN, then what has one in the imaginary part, in the real part, in
    both; within each of these by the parts that are numbers.
    """
    (x_real, x_imag), (y_real, y_imag) = ((stack.unary("real", each), stack.unary("imag", each)) for each in (x, y))

    def both(one: int, other: int) -> int:
        return stack.binary("bitwise_and", one, other)

    def either(one: int, other: int) -> int:
        return stack.binary("bitwise_or", one, other)

    def holds(number: int) -> int:
        return stack.unary("invert", stack.unary("isnan", number))

    only_y_imag_is_nan = _only_second_is_nan(stack, x_imag, y_imag)
    smaller = both(stack.binary("less", x_real, y_real), either(holds(x_imag), stack.unary("isnan", y_imag)))
    larger = both(stack.binary("greater", x_real, y_real), only_y_imag_is_nan)
    same = either(
        stack.binary("equal", x_real, y_real), both(stack.unary("isnan", x_real), stack.unary("isnan", y_real))
    )
    tie = both(same, either(stack.binary("less", x_imag, y_imag), only_y_imag_is_nan))
    return either(either(smaller, larger), either(tie, _only_second_is_nan(stack, x_real, y_real)))


_RULES: dict[type[Primitive], Callable[..., int]] = {
    p.Unary: _elementwise,
    p.Binary: _elementwise,
    p.Select: _elementwise,
    p.Cast: _elementwise,
    p.Reduce: _reduce,
    p.Scan: _scan,
    p.Reshape: _reshape,
    p.Permute: _permute,
    p.Broadcast: _broadcast,
    p.Slice: _slice,
    p.Update: _update,
    p.Flip: _flip,
    p.Pad: _pad,
    p.Concatenate: _concatenate,
    p.Windows: _windows,
    p.Contract: _contract,
    p.Gather: _gather,
    p.Scatter: _scatter,
    p.Sort: _sort,
    p.Argsort: _argsort,
    p.Search: _search,
    p.Fourier: _fourier,
    p.Linear: _elementwise,
    Attend: _elementwise,
    Custom: _custom,
}
