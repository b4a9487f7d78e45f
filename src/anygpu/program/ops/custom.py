"""A user's own kernel as a node of a program: its text, what it takes, and what it means.

The text is data like everything else in a program: who runs it (an engine of its language) checks it, and every other
engine computes the reference instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from anygpu.base.own_files import blake2b
from anygpu.base.printable import printable
from anygpu.errors import InvalidProgram
from anygpu.program.dtypes import DType
from anygpu.program.graph import Program, Recorder, program_cost
from anygpu.program.ops.source import Input
from anygpu.program.primitive import (
    PassedAxes,
    Primitive,
    Shape,
    Spec,
    checked,
    hash_of_bits,
    listed,
    product,
    same_bits,
)

if TYPE_CHECKING:
    from anygpu.program.transforms import Batched, Stack

__all__ = ["Custom"]

Language = Literal["wgsl", "opencl"]
#: Their names in messages.
SPOKEN: dict[Language, str] = {"wgsl": "WGSL", "opencl": "OpenCL C"}
#: input: read only. output: made by the kernel, and all zeros before it. update: a copy of an argument, which the
#: kernel changes.
Role = Literal["input", "output", "update"]

MAX_SOURCE = 1 << 20
MAX_PARAMETERS = 64

#: Groups in three dimensions, and invocations of one group.
Three = tuple[int, int, int]

_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]


class Parameter(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A buffer that the kernel takes."""

    name: _Name
    dtype: DType
    role: Role


class Scalar(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A number that the kernel takes, with its value in this call."""

    name: _Name
    dtype: Literal["int32", "uint32", "int64", "uint64", "float16", "float32", "float64"]
    value: int | float

    __eq__ = same_bits
    __hash__ = hash_of_bits


class Custom(Primitive, frozen=True):
    """One result of a kernel that a user wrote. Nodes that differ only in `result` are one launch.

    Its inputs are the arguments for the parameters that are an "input" or an "update", in their order.
    """

    language: Language
    #: Its name in messages.
    title: _Name
    #: With the values of its constants in it.
    source: Annotated[str, msgspec.Meta(max_length=MAX_SOURCE)]
    #: The function in the source.
    entry: _Name
    parameters: Annotated[tuple[Parameter, ...], msgspec.Meta(max_length=MAX_PARAMETERS)]
    scalars: Annotated[tuple[Scalar, ...], msgspec.Meta(max_length=MAX_PARAMETERS)]
    group: Three
    groups: Three
    #: The shapes of the parameters that are an "output" or an "update", in their order.
    shapes: Annotated[tuple[Shape, ...], msgspec.Meta(max_length=MAX_PARAMETERS)]
    #: Which of the results this node is.
    result: int = 0
    #: The byte form of a program that has the same inputs and results; empty when there is none.
    reference: bytes = b""
    #: Bytes that the invocations of a group share, as they were read from the text.
    group_memory: int = 0

    family = "elementwise"
    has_own_kernels = True

    @property
    def name(self) -> str:
        return self.title

    @property
    def written(self) -> tuple[Parameter, ...]:
        return tuple(each for each in self.parameters if each.role != "input")

    @property
    def read(self) -> tuple[Parameter, ...]:
        return tuple(each for each in self.parameters if each.role != "output")

    def infer(self, *inputs: Spec) -> Spec:
        """The spec of the result that this node stands for.

        Raises `InvalidProgram` where inputs, shapes, grid or reference do not fit the kernel.
        """
        if len(inputs) != len(self.read):
            raise InvalidProgram(f"{self.title}: takes {len(self.read)} arrays, not {len(inputs)}.")
        for parameter, spec in zip(self.read, inputs, strict=True):
            if spec.dtype != parameter.dtype:
                raise InvalidProgram(f"{self.title}: {parameter.name} is {parameter.dtype}, not {spec.dtype}.")
        if len(self.shapes) != len(self.written) or not 0 <= self.result < len(self.shapes):
            raise InvalidProgram(f"{self.title}: {len(self.shapes)} shapes for {len(self.written)} results.")
        if min((*self.group, *self.groups)) < 0 or max((*self.group, *self.groups)) >= 1 << 31:
            raise InvalidProgram(f"{self.title}: {self.groups} groups of {self.group} are no possible grid.")
        self._check_updates(inputs)
        found = checked(Spec(self.shapes[self.result], self.written[self.result].dtype))
        if self.reference:
            self._check_reference(inputs)
        return found

    @property
    def label(self) -> str:
        return printable(self.title)

    @property
    def first_result(self) -> Primitive | None:
        return msgspec.structs.replace(self, result=0)

    def passed_axes(self, result: Shape, inputs: Sequence[Shape]) -> PassedAxes:
        return [[None] * len(each) for each in inputs]

    def batched(self, stack: Stack, *given: Batched) -> int:
        raise InvalidProgram(
            f"the kernel {self.title} has no reference that can be traced, so calls of it cannot be batched."
        )

    def flops(self, inputs: Sequence[Spec], result: Spec) -> int:
        if self.reference:
            return program_cost(reference_of(self)).flops
        # It is not known: one operation is assumed for each element of each result.
        return sum(product(shape) for shape in self.shapes)

    def details(self, inputs: Sequence[Spec]) -> str:
        """A hash of the user's text, and how it is launched."""
        numbers = "".join(f", {each.name} = {each.value}" for each in self.scalars)
        which = f", result {printable(self.written[self.result].name)}" if len(self.shapes) > 1 else ""
        digest = blake2b(self.source.encode(), digest_size=4).hexdigest()
        launch = f"{listed(self.groups)} groups of {listed(self.group)}"
        return f"{self.language} {digest}, {launch}{printable(numbers)}{which}"

    def _check_updates(self, inputs: tuple[Spec, ...]) -> None:
        given = {each.name: spec for each, spec in zip(self.read, inputs, strict=True)}
        for parameter, shape in zip(self.written, self.shapes, strict=True):
            if parameter.role == "update" and given[parameter.name].shape != shape:
                raise InvalidProgram(f"{self.title}: {parameter.name} changes its shape.")

    def _check_reference(self, inputs: tuple[Spec, ...]) -> None:
        """Raise `InvalidProgram` unless the reference takes and returns what the kernel does."""
        program = reference_of(self)
        results = tuple(Spec(shape, each.dtype) for each, shape in zip(self.written, self.shapes, strict=True))
        if program.inputs != inputs or program.results != results:
            raise InvalidProgram(
                f"{self.title}: its reference maps {_list(program.inputs)} to {_list(program.results)}, and the kernel "
                f"{_list(inputs)} to {_list(results)}."
            )


@lru_cache(maxsize=256)
def _decoded(data: bytes) -> Program:
    """The reference as a program. Raises `InvalidProgram` where it has a kernel of its own."""
    from anygpu.program.wire import from_bytes  # which knows every primitive, this one too

    program = from_bytes(data)
    if any(isinstance(node.op, Custom) for node in program.nodes):
        raise InvalidProgram("the reference of a kernel has a kernel of its own.")
    return program


def reference_of(op: Custom) -> Program:
    """The program that means the same."""
    return _decoded(op.reference)


def with_references(program: Program, language: Language | None) -> Program:
    """The program with what kernels mean in their place, except for kernels in that language.

    Kernels without a reference stay.
    """
    if not any(_is_replaced(node.op, language) for node in program.nodes):
        return program
    recorder = Recorder()
    moved: list[int] = []
    for position, (op, inputs) in enumerate(program.nodes):
        spec, line = program.specs[position], program.lines[position]
        sources = [moved[each] for each in inputs]
        if isinstance(op, Input):
            moved.append(recorder.input(spec))
        elif isinstance(op, Custom) and _is_replaced(op, language):
            moved.append(_inlined(recorder, reference_of(op), sources, line)[op.result])
        else:
            moved.append(recorder.add(op, *sources, spec=spec, line=line))
    return recorder.program([moved[output] for output in program.outputs])


def _is_replaced(op: Primitive, language: Language | None) -> bool:
    return isinstance(op, Custom) and bool(op.reference) and op.language != language


def _inlined(recorder: Recorder, program: Program, inputs: list[int], line: tuple[str, int] | None) -> list[int]:
    """Record a program's nodes on given inputs; returns the positions of its results."""
    moved: list[int] = []
    for position, (op, sources) in enumerate(program.nodes):
        if isinstance(op, Input):
            moved.append(inputs[position])
        else:
            moved.append(recorder.add(op, *(moved[each] for each in sources), spec=program.specs[position], line=line))
    return [moved[output] for output in program.outputs]


def _list(specs: tuple[Spec, ...]) -> str:
    return ", ".join(map(str, specs)) or "nothing"
