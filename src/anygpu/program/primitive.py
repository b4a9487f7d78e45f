"""The root of all primitives: what every one of them tells about itself, and the terms that their rules share.

The families in `anygpu.program.ops` define the primitives, each with all of its rules; `anygpu.program.primitives`
has every one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, NamedTuple, TypeVar

import msgspec

from anygpu.errors import InvalidProgram
from anygpu.program.dtypes import ITEMSIZE, KIND, DType

if TYPE_CHECKING:
    from anygpu.program.graph import Recorder
    from anygpu.program.transforms import Batched, Stack

__all__ = [
    "MAX_DIMENSIONS",
    "MAX_ELEMENTS",
    "OperationClass",
    "PerAxis",
    "Primitive",
    "Shape",
    "Spec",
    "checked",
    "distinct_axes",
    "free_axes",
    "product",
]


#: The limit of NumPy.
MAX_DIMENSIONS = 64
#: Below this every number of elements, of bytes, and every position fits into a signed 64-bit integer.
MAX_ELEMENTS = 1 << 58

#: One number for each axis, or for some of them; bytes that have more are refused before they are read.
PerAxis = Annotated[tuple[int, ...], msgspec.Meta(max_length=MAX_DIMENSIONS)]
Shape = PerAxis

#: Operations that run at about the same speed: a cost model learns one rate for each class.
OperationClass = Literal[
    "input",
    "creation",
    "elementwise",
    "transcendental",
    "reduce",
    "scan",
    "movement",
    "contraction",
    "indexing",
    "sort",
    "fourier",
    "linear",
]

#: Where an axis of a result comes from. kept: it goes on from an input. new: it is made here, and all that is along it
#: is the same, so it can have any length. from whole: a stretch of it can be taken without the rest, if the inputs are
#: there as a whole.
Origin = Literal["kept", "new", "from whole"]
KEPT: Final = "kept"
NEW: Final = "new"
FROM_WHOLE: Final = "from whole"

#: For each input and each of its axes, the axis of the result as which it goes on, or `None` if it is mixed.
PassedAxes = Sequence[Sequence[int | None]]


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


class Primitive(msgspec.Struct, frozen=True, array_like=True, tag=str.lower, forbid_unknown_fields=True):
    """The root of all primitives. `class Reduce` is tagged "reduce" in the byte form.

    A primitive is a frozen record of its attributes. The first five rules below every primitive or its family must
    define (a test sees to it); the others have a default that holds for most.
    """

    #: The class whose rate a cost model applies; see also `operation_class`.
    family: ClassVar[OperationClass]

    # -- how it is fused

    #: It has no inputs in the program.
    is_source: ClassVar[bool] = False
    #: Each element of the result depends on the elements at the same position.
    is_elementwise: ClassVar[bool] = False
    #: Nothing is computed: the elements of the result are elements of the inputs.
    is_movement: ClassVar[bool] = False
    #: A movement whose result can be read through other positions of its one input, without a copy.
    is_view: ClassVar[bool] = False
    #: Neighbours in the result are not neighbours in the input, or not at the same distance from others.
    is_shifting: ClassVar[bool] = False
    #: The result has some elements of its input several times.
    is_repeating: ClassVar[bool] = False
    #: No other operation is ever fused into its kernels.
    has_own_kernels: ClassVar[bool] = False
    #: How many copies of its largest value it needs as temporary memory.
    scratch_copies: ClassVar[int] = 0

    #: Where an axis of the result comes from that no input passes on; `None` if every element along it depends on
    #: others.
    other_axes: ClassVar[Origin | None] = None

    # -- rules that every primitive has

    def infer(self, *inputs: Spec) -> Spec:
        """The spec of the result for inputs of these specs; raises `InvalidProgram` if they do not fit.

        So a graph that has been built or decoded is right in shape and type by construction.
        """
        raise NotImplementedError

    def passed_axes(self, result: Shape, inputs: Sequence[Shape]) -> PassedAxes:
        """For each axis of each input the axis of the result along which the same position stays the same.

        That is a strong statement: a piece of the result along that axis is the primitive, applied to the same piece
        of every input that has an axis going there and to the whole of all others.
        """
        raise NotImplementedError

    def batched(self, stack: Stack, *given: Batched) -> int:
        """The position of the result for many calls at once, with the new axis in front.

        At least one of the inputs has the new axis, in front as well.
        """
        raise NotImplementedError

    def flops(self, inputs: Sequence[Spec], result: Spec) -> int:
        """Operations on numbers. A transcendental function of a number counts as one."""
        raise NotImplementedError

    def details(self, inputs: Sequence[Spec]) -> str:
        """The attributes as a person reads them, after the operands, whose specs are given."""
        raise NotImplementedError

    # -- rules with a default

    @property
    def name(self) -> str:
        """The name that a person uses: the function for families such as `Unary`."""
        return getattr(self, "fn", None) or type(self).__name__.lower()

    @property
    def label(self) -> str:
        """The name in a program's text, with the family where the function alone would mislead."""
        return self.name

    @property
    def operation_class(self) -> OperationClass:
        return self.family

    @property
    def row_axis(self) -> int | None:
        """The axis of the input along which rows lie that are sorted, scanned or transformed, each by itself."""
        return None

    @property
    def gives_positions(self) -> bool:
        """Whether the result is positions in int64, whatever the type of the inputs."""
        return False

    @property
    def may_raise_flags(self) -> bool:
        """Whether IEEE 754 flags other than underflow and inexact can be raised, for results of floating point."""
        return False

    @property
    def first_result(self) -> Primitive | None:
        """For one result of a computation that has several, the same computation's first; `None` for all others."""
        return None

    def most_read(self, result: int, inputs: Sequence[int]) -> int:
        """The most bytes that are read, when result and inputs have so many."""
        return sum(inputs)

    def weight(self, dtype: DType) -> float:
        """How many times as long an operation takes as most of its class do, when the result is of this type."""
        return 1.0

    def in_single_precision(self) -> Primitive:
        """The same on 32-bit numbers: a type that is an attribute is narrowed."""
        return self

    def shortened(self, axis: int, length: int) -> Primitive:
        """The primitive when an axis of the result has another length: attributes that name the length change."""
        return self

    def stretch(
        self, recorder: Recorder, inputs: Sequence[int], axis: int, start: int, stop: int, length: int
    ) -> int | None:
        """From whole inputs the stretch of the result along an axis of that length, without computing all of it.

        `None` if it is simplest to take the stretch from the whole result.
        """
        return None

    def simpler(self, inputs: Sequence[int], recorder: Recorder, made: Made) -> Simpler:
        """Something simpler with exactly the same result, if there is."""
        return None

    def miniature(self, inputs: Sequence[Spec]) -> Miniature | None:
        """The same function of the same types on next to nothing; `None` for what works on every type."""
        return None


class RowWise(Primitive, frozen=True):
    """The rules of what treats the rows along its `axis` each by itself: the other axes go on as they are."""

    has_own_kernels = True

    if TYPE_CHECKING:

        @property
        def axis(self) -> int: ...

    @property
    def row_axis(self) -> int:
        return self.axis

    def passed_axes(self, result: Shape, inputs: Sequence[Shape]) -> PassedAxes:
        return all_but(self.axis, inputs)

    def batched(self, stack: Stack, *given: Batched) -> int:
        return stack.add(msgspec.structs.replace(self, axis=self.axis + 1), given[0].position)

    def details(self, inputs: Sequence[Spec]) -> str:
        return f"along axis {self.axis}"


#: The nodes that a transform has written: their primitives and inputs.
Made = dict[int, tuple[Primitive, tuple[int, ...]]]
#: The position of an equal value, or a simpler primitive on other inputs, or `None`: it is as simple as it gets.
Simpler = int | tuple[Primitive, list[int]] | None
Miniature = tuple[Primitive, tuple[Spec, ...]]


def same_bits(one: msgspec.Struct, other: object) -> bool:
    """Whether two records have one byte form. Of those that hold floats, == would take 0.0 for -0.0, and 1 for 1.0."""
    return type(one) is type(other) and msgspec.msgpack.encode(one) == msgspec.msgpack.encode(other)


def hash_of_bits(one: msgspec.Struct) -> int:
    return hash(msgspec.msgpack.encode(one))


# -- terms of rules


def product(numbers: Shape) -> int:
    """The product of the numbers, 1 where there are none: the elements of a shape, as an integer of any size."""
    result = 1
    for number in numbers:
        result *= number
    return result


def checked(spec: Spec) -> Spec:
    """The spec itself, when no machine could object to its size."""
    if len(spec.shape) > MAX_DIMENSIONS:
        raise InvalidProgram(f"an array has at most {MAX_DIMENSIONS} axes, not {len(spec.shape)}.")
    if any(length < 0 for length in spec.shape) or product(tuple(n or 1 for n in spec.shape)) > MAX_ELEMENTS:
        raise InvalidProgram(f"{spec.shape} is not a possible shape.")
    return spec


def require_inputs(op: Primitive, inputs: tuple[Spec, ...], count: int) -> None:
    if len(inputs) != count:
        raise InvalidProgram(f"{op.name}: takes {count} inputs, not {len(inputs)}.")


def distinct_axes(op: Primitive, axes: tuple[int, ...], x: Spec) -> tuple[int, ...]:
    if len(set(axes)) != len(axes) or any(not 0 <= axis < len(x.shape) for axis in axes):
        raise InvalidProgram(f"{op.name}: {axes} are not different axes of {x}.")
    return axes


def free_axes(shape: Shape, *used: tuple[int, ...]) -> tuple[int, ...]:
    taken = {axis for axes in used for axis in axes}
    return tuple(axis for axis in range(len(shape)) if axis not in taken)


def with_length(shape: Shape, axis: int, length: int) -> Shape:
    """The shape with another length of one axis."""
    return (*shape[:axis], length, *shape[axis + 1 :])


def all_but(axis: int, inputs: Sequence[Shape]) -> PassedAxes:
    """The axes that go on through an operation along one axis, which keeps the others where they are."""
    return [[each if each != axis else None for each in range(len(shape))] for shape in inputs]


def next_axes(axes: Sequence[int]) -> tuple[int, ...]:
    """Axes, after one more was put in front."""
    return tuple(axis + 1 for axis in axes)


def complex_weight(spec: Spec) -> int:
    """A multiplication and addition of complex numbers takes four of real ones."""
    return 4 if KIND[spec.dtype] == "complex" else 1


def ceil_log2(length: int) -> int:
    return max(length - 1, 1).bit_length()


def listed(numbers: Sequence[int]) -> str:
    return f"[{', '.join(map(str, numbers))}]"


def on_lines(inputs: Sequence[Spec]) -> tuple[Spec, ...]:
    """Vectors of two elements of the same types, for miniatures."""
    return tuple(Spec((2,), spec.dtype) for spec in inputs)


def on_squares(inputs: Sequence[Spec]) -> tuple[Spec, ...]:
    """Matrices of two rows and columns of the same types, for miniatures."""
    return tuple(Spec((2, 2), spec.dtype) for spec in inputs)


# -- rules of primitives that live outside of programs
#
# Such as an engine's, registered where they are defined.


_Rule = TypeVar("_Rule", bound=Callable[..., Any])


class RuleTable(dict[type[Primitive], _Rule]):
    """A function for each primitive: `@LOWER.rule(Sort)` stands above the one for `Sort`, and holds for its kinds."""

    def __missing__(self, primitive: type[Primitive]) -> _Rule:
        """Return the rule of the primitive that this one is a kind of."""
        for other in primitive.__mro__[1:]:
            if other in self:
                return self[other]
        raise KeyError(primitive)

    def find(self, primitive: type[Primitive]) -> _Rule | None:
        """Return the rule of a primitive, if there is one."""
        try:
            return self[primitive]
        except KeyError:
            return None

    def rule(self, primitive: type[Primitive]) -> Callable[[_Rule], _Rule]:
        """Decorate the rule of a primitive. Raises `ValueError` where the table has one already."""

        def register(function: _Rule) -> _Rule:
            if primitive in self:
                raise ValueError(f"{primitive.__name__} has a rule already")
            self[primitive] = function
            return function

        return register
