"""The primitives of array programs, with their shape and type rules; `vocabulary` has these and the few others.

Each primitive is a frozen record of its attributes. `infer` takes the specs of its inputs and gives the spec of its
one result, or raises `InvalidProgram`: so a graph that has been built or decoded is right in shape and type by
construction.

Elementwise primitives take inputs of equal shape; broadcasting and casting are primitives of their own. That keeps
every rule in here, in transforms and in engines short, and engines fuse both away again.
"""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

import msgspec

from anygpu.errors import InvalidProgram
from anygpu.program.dtypes import COMPLEX_OF, ITEMSIZE, KIND, REAL_PART, DType, is_inexact, is_integer
from anygpu.program.functions import (
    BinaryFunction,
    FourierFunction,
    LinearFunction,
    ReduceFunction,
    ScanFunction,
    ScatterFunction,
    UnaryFunction,
    binary_dtype,
    unary_dtype,
)

#: As many as NumPy has.
MAX_DIMENSIONS = 64
#: So few that every number of elements, of bytes, and every position fits into 64 bits with a sign.
MAX_ELEMENTS = 1 << 58

#: One number for each axis, or for some of them; bytes that have more are refused before they are read.
PerAxis = Annotated[tuple[int, ...], msgspec.Meta(max_length=MAX_DIMENSIONS)]
Shape = PerAxis


class Spec(NamedTuple):
    """Shape and type of one value."""

    shape: Shape
    dtype: DType

    @property
    def size(self) -> int:
        return product(self.shape)

    @property
    def nbytes(self) -> int:
        return product(self.shape) * ITEMSIZE[self.dtype]

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


def same_bits(one: msgspec.Struct, other: object) -> bool:
    """Whether two records have one byte form. Of those that hold floats, == would take 0.0 for -0.0, and 1 for 1.0."""
    return type(one) is type(other) and msgspec.msgpack.encode(one) == msgspec.msgpack.encode(other)


def hash_of_bits(one: msgspec.Struct) -> int:
    return hash(msgspec.msgpack.encode(one))


class Primitive(msgspec.Struct, frozen=True, array_like=True, tag=str.lower, forbid_unknown_fields=True):
    """The root of all primitives. `class Reduce` is tagged "reduce" in the byte form."""

    def infer(self, *inputs: Spec) -> Spec:
        raise NotImplementedError

    @property
    def name(self) -> str:
        """What a person calls it: the function for families such as `Unary`."""
        return getattr(self, "fn", None) or type(self).__name__.lower()


class Input(Primitive, frozen=True):
    """A value that the caller brings."""

    shape: Shape
    dtype: DType

    def infer(self, *inputs: Spec) -> Spec:
        _arity(self, inputs, 0)
        return checked(Spec(self.shape, self.dtype))


class Constant(Primitive, frozen=True):
    """A value that is a part of the program: its bytes in C order, little-endian."""

    shape: Shape
    dtype: DType
    data: bytes

    def infer(self, *inputs: Spec) -> Spec:
        _arity(self, inputs, 0)
        spec = checked(Spec(self.shape, self.dtype))
        if spec.nbytes != len(self.data):
            raise InvalidProgram(f"constant: {spec} has {spec.nbytes} bytes, and {len(self.data)} are given.")
        if self.dtype == "bool" and self.data.translate(None, b"\x00\x01"):
            raise InvalidProgram("constant: a byte of bool is 0 or 1.")
        return spec


class Iota(Primitive, frozen=True):
    """0, 1, 2, … as a vector."""

    length: int
    dtype: DType

    def infer(self, *inputs: Spec) -> Spec:
        _arity(self, inputs, 0)
        if self.dtype == "bool":
            raise InvalidProgram("iota counts, and bool cannot.")
        return checked(Spec((self.length,), self.dtype))


class Unary(Primitive, frozen=True):
    """A function of one value, element by element."""

    fn: UnaryFunction

    def infer(self, *inputs: Spec) -> Spec:
        _arity(self, inputs, 1)
        (x,) = inputs
        return Spec(x.shape, unary_dtype(self.fn, x.dtype))


class Binary(Primitive, frozen=True):
    """A function of two values of one shape and type, element by element."""

    fn: BinaryFunction

    def infer(self, *inputs: Spec) -> Spec:
        _arity(self, inputs, 2)
        x, y = inputs
        if x.shape != y.shape:
            raise InvalidProgram(f"{self.fn}: the shapes {x.shape} and {y.shape} differ; broadcast one of them first.")
        return Spec(x.shape, binary_dtype(self.fn, x.dtype, y.dtype))


class Select(Primitive, frozen=True):
    """`a` where the condition holds, `b` elsewhere."""

    def infer(self, *inputs: Spec) -> Spec:
        _arity(self, inputs, 3)
        condition, a, b = inputs
        if condition.dtype != "bool" or a.dtype != b.dtype:
            raise InvalidProgram(f"select: needs bool and two equal types, not {condition}, {a}, {b}.")
        if not condition.shape == a.shape == b.shape:
            raise InvalidProgram(f"select: the shapes of {condition}, {a}, {b} differ; broadcast them first.")
        return a


class Cast(Primitive, frozen=True):
    """The same numbers in another type, as NumPy's `astype`."""

    dtype: DType

    def infer(self, *inputs: Spec) -> Spec:
        _arity(self, inputs, 1)
        return Spec(inputs[0].shape, self.dtype)


class Reduce(Primitive, frozen=True):
    """One value for each line along the axes, which are gone from the result."""

    fn: ReduceFunction
    axes: PerAxis

    def infer(self, *inputs: Spec) -> Spec:
        _arity(self, inputs, 1)
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
        dtype: DType = "int64" if self.fn in ("argmax", "argmin") else x.dtype
        return Spec(tuple(n for axis, n in enumerate(x.shape) if axis not in axes), dtype)


class Scan(Primitive, frozen=True):
    """The reduction of everything up to each element, along one axis."""

    fn: ScanFunction
    axis: int

    def infer(self, *inputs: Spec) -> Spec:
        _arity(self, inputs, 1)
        (x,) = inputs
        distinct_axes(self, (self.axis,), x)
        if x.dtype == "bool":
            raise InvalidProgram("scan: bool has no running total; cast it first.")
        return x


class Reshape(Primitive, frozen=True):
    """The same elements in C order, in another shape."""

    shape: Shape

    def infer(self, *inputs: Spec) -> Spec:
        _arity(self, inputs, 1)
        result = checked(Spec(self.shape, inputs[0].dtype))
        if result.size != inputs[0].size:
            raise InvalidProgram(f"reshape: {inputs[0]} does not have as many elements as {result}.")
        return result


class Permute(Primitive, frozen=True):
    """The axes in another order: axis `i` of the result is axis `axes[i]` of the input."""

    axes: PerAxis

    def infer(self, *inputs: Spec) -> Spec:
        _arity(self, inputs, 1)
        (x,) = inputs
        if sorted(self.axes) != list(range(len(x.shape))):
            raise InvalidProgram(f"permute: {self.axes} is no order of the axes of {x}.")
        return Spec(tuple(x.shape[axis] for axis in self.axes), x.dtype)


class Broadcast(Primitive, frozen=True):
    """Repeated along new leading axes and along axes of length 1, as NumPy broadcasts."""

    shape: Shape

    def infer(self, *inputs: Spec) -> Spec:
        _arity(self, inputs, 1)
        (x,) = inputs
        result = checked(Spec(self.shape, x.dtype))
        tail = self.shape[len(self.shape) - len(x.shape) :]
        if len(x.shape) > len(self.shape) or any(n not in (1, m) for n, m in zip(x.shape, tail, strict=True)):
            raise InvalidProgram(f"broadcast: {x} cannot be repeated to {self.shape}.")
        return result


class Slice(Primitive, frozen=True):
    """From each axis the elements start, start + step, … before stop; steps are positive."""

    starts: PerAxis
    stops: PerAxis
    steps: PerAxis

    def infer(self, *inputs: Spec) -> Spec:
        _arity(self, inputs, 1)
        (x,) = inputs
        if not len(x.shape) == len(self.starts) == len(self.stops) == len(self.steps):
            raise InvalidProgram(f"slice: needs start, stop and step for each of the {len(x.shape)} axes of {x}.")
        shape = []
        for start, stop, step, length in zip(self.starts, self.stops, self.steps, x.shape, strict=True):
            if not (0 <= start <= stop <= length and 0 < step <= MAX_ELEMENTS):
                raise InvalidProgram(f"slice: {start}:{stop}:{step} is outside an axis of length {length}.")
            shape.append(-(-(stop - start) // step))
        return Spec(tuple(shape), x.dtype)


class Update(Primitive, frozen=True):
    """The first input with the region start, start + step, … replaced by the second input."""

    starts: PerAxis
    steps: PerAxis

    def infer(self, *inputs: Spec) -> Spec:
        _arity(self, inputs, 2)
        x, new = inputs
        if not len(x.shape) == len(new.shape) == len(self.starts) == len(self.steps) or x.dtype != new.dtype:
            raise InvalidProgram(f"update: {new} with {self.starts}, {self.steps} does not fit into {x}.")
        for start, step, count, length in zip(self.starts, self.steps, new.shape, x.shape, strict=True):
            fits = start + (count - 1) * step < length if count else start <= length
            if start < 0 or not 0 < step <= MAX_ELEMENTS or not fits:
                raise InvalidProgram(f"update: {count} elements from {start} by {step} do not fit into {length}.")
        return x


class Flip(Primitive, frozen=True):
    """Backwards along the axes."""

    axes: PerAxis

    def infer(self, *inputs: Spec) -> Spec:
        _arity(self, inputs, 1)
        distinct_axes(self, self.axes, inputs[0])
        return inputs[0]


class Pad(Primitive, frozen=True):
    """The first input, surrounded by the value of the second, which has no axes."""

    low: PerAxis
    high: PerAxis

    def infer(self, *inputs: Spec) -> Spec:
        _arity(self, inputs, 2)
        x, value = inputs
        if value.shape != () or value.dtype != x.dtype:
            raise InvalidProgram(f"pad: the value must be one {x.dtype}, not {value}.")
        if not len(x.shape) == len(self.low) == len(self.high) or min((*self.low, *self.high), default=0) < 0:
            raise InvalidProgram(f"pad: needs two widths of 0 or more for each axis of {x}.")
        widths = zip(self.low, x.shape, self.high, strict=True)
        return checked(Spec(tuple(low + n + high for low, n, high in widths), x.dtype))


class Concatenate(Primitive, frozen=True):
    """One input after the other along an axis."""

    axis: int

    def infer(self, *inputs: Spec) -> Spec:
        if not inputs:
            raise InvalidProgram("concatenate: needs at least one input.")
        first = inputs[0]
        distinct_axes(self, (self.axis,), first)
        for other in inputs[1:]:
            if other.dtype != first.dtype or _without(other.shape, self.axis) != _without(first.shape, self.axis):
                raise InvalidProgram(f"concatenate: {other} does not fit to {first} along axis {self.axis}.")
        length = sum(each.shape[self.axis] for each in inputs)
        return checked(Spec((*first.shape[: self.axis], length, *first.shape[self.axis + 1 :]), first.dtype))


class Windows(Primitive, frozen=True):
    """All stretches of `size` neighbours along an axis, every `step`; each stretch lies along a new last axis."""

    axis: int
    size: int
    step: int

    def infer(self, *inputs: Spec) -> Spec:
        _arity(self, inputs, 1)
        (x,) = inputs
        distinct_axes(self, (self.axis,), x)
        length = x.shape[self.axis]
        if not 1 <= self.size <= length or not 0 < self.step <= MAX_ELEMENTS:
            raise InvalidProgram(f"windows: no stretch of {self.size} by {self.step} in an axis of length {length}.")
        count = (length - self.size) // self.step + 1
        return checked(Spec((*x.shape[: self.axis], count, *x.shape[self.axis + 1 :], self.size), x.dtype))


class Contract(Primitive, frozen=True):
    """Products summed over pairs of axes. The result has the batch axes, then what is left of each side."""

    left: PerAxis
    right: PerAxis
    left_batch: PerAxis = ()
    right_batch: PerAxis = ()

    def infer(self, *inputs: Spec) -> Spec:
        _arity(self, inputs, 2)
        x, y = inputs
        if x.dtype != y.dtype:
            raise InvalidProgram(f"contract: {x.dtype} and {y.dtype} differ; cast one of them first.")
        distinct_axes(self, (*self.left, *self.left_batch), x)
        distinct_axes(self, (*self.right, *self.right_batch), y)
        if len(self.left) != len(self.right) or len(self.left_batch) != len(self.right_batch):
            raise InvalidProgram("contract: axes come in pairs, one of each side.")
        pairs = zip((*self.left, *self.left_batch), (*self.right, *self.right_batch), strict=True)
        for one, other in pairs:
            if x.shape[one] != y.shape[other]:
                raise InvalidProgram(f"contract: axis {one} of {x} and axis {other} of {y} differ in length.")
        batch = tuple(x.shape[axis] for axis in self.left_batch)
        rows = tuple(x.shape[axis] for axis in free_axes(x.shape, self.left, self.left_batch))
        columns = tuple(y.shape[axis] for axis in free_axes(y.shape, self.right, self.right_batch))
        return checked(Spec(batch + rows + columns, x.dtype))


class Gather(Primitive, frozen=True):
    """Elements picked along an axis by integer positions; an index outside the axis is an IndexError when it runs.

    The first `batch` axes of both inputs go together; the other axes of the indices take the place of `axis`.
    """

    axis: int
    batch: int = 0

    def infer(self, *inputs: Spec) -> Spec:
        _arity(self, inputs, 2)
        x, indices = inputs
        _check_indices(self, x, indices, self.axis, self.batch)
        return checked(Spec((*x.shape[: self.axis], *indices.shape[self.batch :], *x.shape[self.axis + 1 :]), x.dtype))


class Scatter(Primitive, frozen=True):
    """The first input with the third put into it at the positions of the second: the inverse of `Gather`.

    With "set", of several updates of one element the last counts.
    """

    fn: ScatterFunction
    axis: int
    batch: int = 0

    def infer(self, *inputs: Spec) -> Spec:
        _arity(self, inputs, 3)
        x, indices, updates = inputs
        _check_indices(self, x, indices, self.axis, self.batch)
        shape = (*x.shape[: self.axis], *indices.shape[self.batch :], *x.shape[self.axis + 1 :])
        if updates.shape != shape or updates.dtype != x.dtype:
            raise InvalidProgram(f"scatter: the updates must be {Spec(shape, x.dtype)}, not {updates}.")
        return x


class Sort(Primitive, frozen=True):
    """In ascending order along an axis, NaN last; equal elements keep their order."""

    axis: int

    def infer(self, *inputs: Spec) -> Spec:
        _arity(self, inputs, 1)
        distinct_axes(self, (self.axis,), inputs[0])
        return inputs[0]


class Argsort(Primitive, frozen=True):
    """The positions that sort, as `Sort` does."""

    axis: int

    def infer(self, *inputs: Spec) -> Spec:
        _arity(self, inputs, 1)
        distinct_axes(self, (self.axis,), inputs[0])
        return Spec(inputs[0].shape, "int64")


class Search(Primitive, frozen=True):
    """For each value of the second input, where it belongs in the first, a sorted vector."""

    side: Literal["left", "right"]

    def infer(self, *inputs: Spec) -> Spec:
        _arity(self, inputs, 2)
        line, values = inputs
        if len(line.shape) != 1 or line.dtype != values.dtype:
            raise InvalidProgram(f"search: needs a vector and values of its type, not {line} and {values}.")
        return Spec(values.shape, "int64")


class Fourier(Primitive, frozen=True):
    """The discrete Fourier transform along an axis. Forward is unscaled, inverse is divided by the length.

    `length` is that of the result for "irfft", where the input does not tell, and of the input otherwise.
    """

    fn: FourierFunction
    axis: int
    length: int

    def infer(self, *inputs: Spec) -> Spec:
        _arity(self, inputs, 1)
        (x,) = inputs
        distinct_axes(self, (self.axis,), x)
        given = x.shape[self.axis]
        wanted = self.length // 2 + 1 if self.fn == "irfft" else self.length
        if self.length < 1 or given != wanted:
            raise InvalidProgram(f"{self.fn}: a transform of length {self.length} does not fit {x}.")
        if (KIND[x.dtype] == "complex") == (self.fn == "rfft") or not is_inexact(x.dtype):
            raise InvalidProgram(f"{self.fn}: is not defined for {x.dtype}; cast it first.")
        shape = list(x.shape)
        shape[self.axis] = self.length // 2 + 1 if self.fn == "rfft" else self.length
        dtype = x.dtype
        if self.fn == "rfft":
            dtype = COMPLEX_OF.get(x.dtype, "complex128")
        elif self.fn == "irfft":
            dtype = REAL_PART[x.dtype]
        return checked(Spec(tuple(shape), dtype))


#: How many results each decomposition has; `part` picks one.
LINEAR_PARTS: dict[LinearFunction, int] = {"slogdet": 2, "qr": 2, "svd": 3, "eigh": 2, "eig": 2}


class Linear(Primitive, frozen=True):
    """Linear algebra on matrices in the last two axes. Of several results, `part` picks one."""

    fn: LinearFunction
    part: int = 0
    #: Full square factors of `qr` and `svd`.
    full: bool = False

    def infer(self, *inputs: Spec) -> Spec:
        _arity(self, inputs, 2 if self.fn == "solve" else 1)
        a = inputs[0]
        if len(a.shape) < 2 or a.dtype not in ("float32", "float64", "complex64", "complex128"):
            raise InvalidProgram(f"{self.fn}: needs matrices of float32, float64 or complex numbers, not {a}.")
        *stack, rows, columns = a.shape
        if self.fn not in ("qr", "svd", "svdvals") and rows != columns:
            raise InvalidProgram(f"{self.fn}: needs square matrices, not {a}.")
        if not 0 <= self.part < LINEAR_PARTS.get(self.fn, 1):
            raise InvalidProgram(f"{self.fn}: has no part {self.part}.")
        if self.fn == "solve":
            b = inputs[1]
            if b.dtype != a.dtype or b.shape[:-1] != a.shape[:-1] or len(b.shape) != len(a.shape):
                raise InvalidProgram(f"solve: {b} does not fit to {a}.")
            return b
        return checked(Spec((*stack, *_linear_shape(self, rows, columns)), _linear_dtype(self, a.dtype)))


def _linear_shape(op: Linear, rows: int, columns: int) -> Shape:
    least = min(rows, columns)
    match op.fn:
        case "cholesky" | "inv":
            return (rows, rows)
        case "det" | "slogdet":
            return ()
        case "svdvals":
            return (least,)
        case "eigvalsh":
            return (rows,)
        case "eigh" | "eig":
            return (rows,) if op.part == 0 else (rows, rows)
        case "qr":
            inner = rows if op.full else least
            return (rows, inner) if op.part == 0 else (inner, columns)
        case "svd":
            sides = ((rows, rows if op.full else least), (least,), (columns if op.full else least, columns))
            return sides[op.part]
    raise InvalidProgram(f"{op.fn}: is not known.")


def _linear_dtype(op: Linear, dtype: DType) -> DType:
    if op.fn == "eig":
        return COMPLEX_OF.get(dtype, "complex128") if dtype not in REAL_PART else dtype
    real = {("svd", 1), ("svdvals", 0), ("eigh", 0), ("eigvalsh", 0), ("slogdet", 1)}
    return REAL_PART.get(dtype, dtype) if (op.fn, op.part) in real else dtype


def product(numbers: Shape) -> int:
    result = 1
    for number in numbers:
        result *= number
    return result


def checked(spec: Spec) -> Spec:
    """The spec itself, when no machine could object to its size."""
    if len(spec.shape) > MAX_DIMENSIONS:
        raise InvalidProgram(f"an array has at most {MAX_DIMENSIONS} axes, not {len(spec.shape)}.")
    if any(length < 0 for length in spec.shape) or product(tuple(n or 1 for n in spec.shape)) > MAX_ELEMENTS:
        raise InvalidProgram(f"{spec.shape} is no possible shape.")
    return spec


def distinct_axes(op: Primitive, axes: tuple[int, ...], x: Spec) -> tuple[int, ...]:
    if len(set(axes)) != len(axes) or any(not 0 <= axis < len(x.shape) for axis in axes):
        raise InvalidProgram(f"{op.name}: {axes} are not different axes of {x}.")
    return axes


def free_axes(shape: Shape, *used: tuple[int, ...]) -> tuple[int, ...]:
    taken = {axis for axes in used for axis in axes}
    return tuple(axis for axis in range(len(shape)) if axis not in taken)


def _without(shape: Shape, axis: int) -> Shape:
    return (*shape[:axis], *shape[axis + 1 :]) if axis < len(shape) else (-1,)


def _arity(op: Primitive, inputs: tuple[Spec, ...], count: int) -> None:
    if len(inputs) != count:
        raise InvalidProgram(f"{op.name}: takes {count} inputs, not {len(inputs)}.")


def _check_indices(op: Primitive, x: Spec, indices: Spec, axis: int, batch: int) -> None:
    distinct_axes(op, (axis,), x)
    if not is_integer(indices.dtype):
        raise InvalidProgram(f"{op.name}: positions are integers, not {indices.dtype}.")
    if not 0 <= batch <= min(axis, len(indices.shape)) or x.shape[:batch] != indices.shape[:batch]:
        raise InvalidProgram(f"{op.name}: the first {batch} axes of {x} and {indices} do not go together.")
