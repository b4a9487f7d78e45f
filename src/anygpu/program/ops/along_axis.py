"""Primitives along an axis: reductions, running reductions, indexing, sorting, and searching in what is sorted.

Each primitive has all of its rules here: the result's spec, which axes pass through, how it is batched, its cost and
its text. Indices out of range are errors when a program runs, not when it is made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

from anygpu.errors import InvalidProgram
from anygpu.program.dtypes import KIND, DType, is_inexact, is_integer
from anygpu.program.functions import ReduceFunction, ScanFunction, ScatterFunction
from anygpu.program.ops.elementwise import Cast, Select
from anygpu.program.primitive import (
    Miniature,
    PassedAxes,
    PerAxis,
    Primitive,
    RowWise,
    Shape,
    Spec,
    ceil_log2,
    checked,
    complex_weight,
    distinct_axes,
    free_axes,
    next_axes,
    on_lines,
    on_squares,
    require_inputs,
)

if TYPE_CHECKING:
    from anygpu.program.transforms import Batched, Stack, Writer

__all__ = ["Argsort", "Gather", "Reduce", "Scan", "Scatter", "Search", "Sort"]

# -- reductions along axes, and running ones


class Reduce(Primitive, frozen=True):
    """One value for each line along the axes, which are gone from the result."""

    fn: ReduceFunction
    axes: PerAxis

    family = "reduce"

    def infer(self, *inputs: Spec) -> Spec:
        """The spec without the axes; int64 for positions.

        Raises `InvalidProgram` for extremes of nothing, and for sums of bool or truths of numbers.
        """
        require_inputs(self, inputs, 1)
        (x,) = inputs
        axes = distinct_axes(self, self.axes, x)
        if list(axes) != sorted(axes):
            raise InvalidProgram(f"{self.fn}: the axes {axes} must be in order.")
        if self.fn in ("argmax", "argmin") and len(axes) != 1:
            raise InvalidProgram(f"{self.fn}: takes one axis, not {axes}.")
        if self.fn not in ("sum", "prod", "any", "all") and any(x.shape[axis] == 0 for axis in axes):
            raise InvalidProgram(f"{self.fn}: nothing to choose from along an axis of length 0.")
        if (self.fn in ("any", "all")) != (x.dtype == "bool") and self.fn not in ("max", "min", "argmax", "argmin"):
            raise InvalidProgram(f"{self.fn}: is not defined for {x.dtype}; cast it first.")
        dtype: DType = "int64" if self.gives_positions else x.dtype
        return Spec(tuple(n for axis, n in enumerate(x.shape) if axis not in axes), dtype)

    @property
    def gives_positions(self) -> bool:
        return self.fn in ("argmax", "argmin")

    def passed_axes(self, result: Shape, inputs: Sequence[Shape]) -> PassedAxes:
        left = free_axes(inputs[0], self.axes)
        return [[left.index(axis) if axis in left else None for axis in range(len(inputs[0]))]]

    def batched(self, stack: Stack, *given: Batched) -> int:
        return stack.add(type(self)(self.fn, next_axes(self.axes)), given[0].position)

    def flops(self, inputs: Sequence[Spec], result: Spec) -> int:
        return inputs[0].size * complex_weight(inputs[0])

    def details(self, inputs: Sequence[Spec]) -> str:
        if not self.axes:
            return "over no axis"
        return f"over {'axis' if len(self.axes) == 1 else 'axes'} {', '.join(map(str, self.axes))}"

    @property
    def may_raise_flags(self) -> bool:
        return self.fn in ("sum", "prod")

    def miniature(self, inputs: Sequence[Spec]) -> Miniature | None:
        return Reduce(self.fn, (0,)), on_lines(inputs)


class UnorderedReduce(Reduce, frozen=True):
    """A reduction in an unknown order of NumPy; all rules treat it as the plain reduction."""


class Scan(RowWise, frozen=True):
    """The reduction of everything up to each element, along one axis."""

    fn: ScanFunction
    axis: int

    family = "scan"
    scratch_copies = 1

    def infer(self, *inputs: Spec) -> Spec:
        """The input's spec. Raises `InvalidProgram` for bool."""
        require_inputs(self, inputs, 1)
        (x,) = inputs
        distinct_axes(self, (self.axis,), x)
        if x.dtype == "bool":
            raise InvalidProgram("scan: bool has no running total; cast it first.")
        return x

    @property
    def label(self) -> str:
        return f"running {self.fn}"

    def flops(self, inputs: Sequence[Spec], result: Spec) -> int:
        return inputs[0].size * complex_weight(inputs[0])

    @property
    def may_raise_flags(self) -> bool:
        return self.fn in ("sum", "prod")

    def miniature(self, inputs: Sequence[Spec]) -> Miniature | None:
        return Scan(self.fn, 0), on_lines(inputs)


# -- elements picked, and put, by integer positions


class Gather(Primitive, frozen=True):
    """Elements picked along an axis by integer positions; an index outside the axis is an IndexError when it runs.

    The first `batch` axes of both inputs go together; the other axes of the indices take the place of `axis`.
    """

    axis: int
    batch: int = 0

    family = "indexing"
    is_shifting = True

    def infer(self, *inputs: Spec) -> Spec:
        require_inputs(self, inputs, 2)
        x, indices = inputs
        _check_indices(self, x, indices)
        return checked(Spec((*x.shape[: self.axis], *indices.shape[self.batch :], *x.shape[self.axis + 1 :]), x.dtype))

    def passed_axes(self, result: Shape, inputs: Sequence[Shape]) -> PassedAxes:
        x, indices = inputs
        axis, grown = self.axis, len(indices) - self.batch - 1
        of_x = [*range(axis), None, *range(axis + 1 + grown, len(x) + grown)]
        return [of_x, [*range(self.batch), *range(axis, axis + grown + 1)]]

    def batched(self, stack: Stack, *given: Batched) -> int:
        """Gathered for all calls at once: the new axis is a batch axis where both inputs have it."""
        x, indices = given
        if self.batch or (x.stacked and indices.stacked):
            return stack.add(Gather(self.axis + 1, self.batch + 1), stack.lifted(x), stack.lifted(indices))
        if x.stacked:
            return stack.add(Gather(self.axis + 1), x.position, indices.position)
        return stack.to_front(stack.add(self, x.position, indices.position), self.axis)

    def flops(self, inputs: Sequence[Spec], result: Spec) -> int:
        return 0

    def most_read(self, result: int, inputs: Sequence[int]) -> int:
        return result + inputs[1]

    def details(self, inputs: Sequence[Spec]) -> str:
        return f"along axis {self.axis}" + (f", batch axes {self.batch}" if self.batch else "")

    def miniature(self, inputs: Sequence[Spec]) -> Miniature | None:
        return (Gather(1, 1), on_squares(inputs)) if self.batch else (Gather(0), on_lines(inputs))


class Scatter(Primitive, frozen=True):
    """The first input with the third put into it at the positions of the second: the inverse of `Gather`.

    With "set", of several updates of one element the last counts.
    """

    fn: ScatterFunction
    axis: int
    batch: int = 0

    family = "indexing"
    has_own_kernels = True
    scratch_copies = 3

    def infer(self, *inputs: Spec) -> Spec:
        """The first input's spec.

        Raises `InvalidProgram` where the updates do not have the shape that the indices ask for.
        """
        require_inputs(self, inputs, 3)
        x, indices, updates = inputs
        _check_indices(self, x, indices)
        shape = (*x.shape[: self.axis], *indices.shape[self.batch :], *x.shape[self.axis + 1 :])
        if updates.shape != shape or updates.dtype != x.dtype:
            raise InvalidProgram(f"scatter: the updates must be {Spec(shape, x.dtype)}, not {updates}.")
        return x

    @property
    def label(self) -> str:
        return f"scatter {self.fn}"

    def passed_axes(self, result: Shape, inputs: Sequence[Shape]) -> PassedAxes:
        x, indices, _updates = inputs
        grown = len(indices) - self.batch - 1
        kept = [axis if axis != self.axis else None for axis in range(len(x))]
        added = [None] * (grown + 1)
        return [kept, [*range(self.batch), *added], [*range(self.axis), *added, *range(self.axis + 1, len(x))]]

    def batched(self, stack: Stack, *given: Batched) -> int:
        x, indices, updates = given
        if self.batch or indices.stacked:
            all_of_them = (stack.lifted(each) for each in given)
            return stack.add(Scatter(self.fn, self.axis + 1, self.batch + 1), *all_of_them)
        return stack.add(Scatter(self.fn, self.axis + 1), stack.lifted(x), indices.position, stack.lifted(updates))

    def flops(self, inputs: Sequence[Spec], result: Spec) -> int:
        return inputs[2].size * complex_weight(inputs[2]) if self.fn != "set" else 0

    def details(self, inputs: Sequence[Spec]) -> str:
        return f"along axis {self.axis}" + (f", batch axes {self.batch}" if self.batch else "")

    @property
    def may_raise_flags(self) -> bool:
        return self.fn in ("add", "multiply")

    def miniature(self, inputs: Sequence[Spec]) -> Miniature | None:
        if self.batch:
            return Scatter(self.fn, 1, 1), on_squares(inputs)
        return Scatter(self.fn, 0), on_lines(inputs)


def _check_indices(op: Gather | Scatter, x: Spec, indices: Spec) -> None:
    distinct_axes(op, (op.axis,), x)
    if not is_integer(indices.dtype):
        raise InvalidProgram(f"{op.name}: positions are integers, not {indices.dtype}.")
    if not 0 <= op.batch <= min(op.axis, len(indices.shape)) or x.shape[: op.batch] != indices.shape[: op.batch]:
        raise InvalidProgram(f"{op.name}: the first {op.batch} axes of {x} and {indices} do not go together.")


# -- sorting, and searching in what is sorted


class _Sorting(RowWise, frozen=True):
    """In ascending order along an axis, NaN last.

    Equal elements, such as 0.0 and -0.0, keep their order. Where it need not be `stable`, NumPy's default sort decides
    on the processor, and other devices are stable all the same.
    """

    axis: int
    stable: bool = True

    family = "sort"
    scratch_copies = 2

    def flops(self, inputs: Sequence[Spec], result: Spec) -> int:
        return inputs[0].size * ceil_log2(inputs[0].shape[self.axis])

    def miniature(self, inputs: Sequence[Spec]) -> Miniature | None:
        return type(self)(0, self.stable), on_lines(inputs)


class Sort(_Sorting, frozen=True):
    """The elements in order."""

    def infer(self, *inputs: Spec) -> Spec:
        require_inputs(self, inputs, 1)
        distinct_axes(self, (self.axis,), inputs[0])
        return inputs[0]


class Argsort(_Sorting, frozen=True):
    """The positions of the elements in order."""

    def infer(self, *inputs: Spec) -> Spec:
        require_inputs(self, inputs, 1)
        distinct_axes(self, (self.axis,), inputs[0])
        return Spec(inputs[0].shape, "int64")

    @property
    def gives_positions(self) -> bool:
        return True


class Search(Primitive, frozen=True):
    """For each value of the second input, where it belongs in the first, a sorted vector."""

    side: Literal["left", "right"]

    family = "sort"

    def infer(self, *inputs: Spec) -> Spec:
        require_inputs(self, inputs, 2)
        line, values = inputs
        if len(line.shape) != 1 or line.dtype != values.dtype:
            raise InvalidProgram(f"search: needs a vector and values of its type, not {line} and {values}.")
        return Spec(values.shape, "int64")

    @property
    def gives_positions(self) -> bool:
        return True

    def passed_axes(self, result: Shape, inputs: Sequence[Shape]) -> PassedAxes:
        return [[None], range(len(result))]

    def batched(self, stack: Stack, *given: Batched) -> int:
        """With a line for each call: a binary search for all values at once, written out, as lengths are known."""
        line, values = given
        if not line.stacked:
            return stack.add(self, line.position, values.position)
        wanted = stack.lifted(values)
        (length,) = stack.shape(line)
        found = search_by_gathers(self, stack, length, wanted, lambda at: stack.add(Gather(1, 1), line.position, at))
        return stack.add(Cast("int64"), found)

    def flops(self, inputs: Sequence[Spec], result: Spec) -> int:
        return inputs[1].size * ceil_log2(inputs[0].shape[0])

    def details(self, inputs: Sequence[Spec]) -> str:
        return f"side {self.side}"

    def miniature(self, inputs: Sequence[Spec]) -> Miniature | None:
        return self, on_lines(inputs)


def search_by_gathers(
    op: Search, program: Writer, length: int, wanted: int, element_at: Callable[[int], int], origin: int | None = None
) -> int:
    """A binary search for each value of `wanted`, as nodes; the positions are int32 where these suffice.

    `element_at` adds the elements of the line at some positions, which are inside: as many elements as `found` are
    known to come before the value, and of the `left` ones behind these it is not known. The first positions are counted
    from the `origin`, where there is one.
    """
    shape = program.spec(wanted).shape
    dtype: DType = "int32" if length < 1 << 31 else "int64"
    found, left = program.full(shape, dtype, 0), length
    while left:
        half = (left + 1) // 2
        further = program.binary("add", found, program.full(shape, dtype, half))
        begin = found if origin is None or left < length else origin
        element = element_at(program.binary("add", begin, program.full(shape, dtype, half - 1)))
        if op.side == "left":
            before = sorts_before(program, element, wanted)
        else:
            before = program.unary("invert", sorts_before(program, wanted, element))
        found = program.add(Select(), before, further, found)
        left //= 2
    return found


def sorts_before(stack: Writer, x: int, y: int) -> int:
    """Whether x stands before y in sorted order, where NaN is last."""
    dtype = stack.spec(x).dtype
    if KIND[dtype] == "complex":
        return _complex_sorts_before(stack, x, y)
    less = stack.binary("less", x, y)
    return stack.binary("bitwise_or", less, _only_second_is_nan(stack, x, y)) if is_inexact(dtype) else less


def _only_second_is_nan(stack: Writer, x: int, y: int) -> int:
    return stack.binary("bitwise_and", stack.unary("invert", stack.unary("isnan", x)), stack.unary("isnan", y))


def _complex_sorts_before(stack: Writer, x: int, y: int) -> int:
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
