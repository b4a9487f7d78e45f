"""Programs of one primitive with its operands as arrays, as scalars and as constants."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from anygpu.base.typing import HostArray
from anygpu.program.dtypes import DType
from anygpu.program.graph import Program, Recorder
from anygpu.program.primitives import Broadcast, Constant, Primitive, Spec
from anygpu.testing.special_values.comparison import Check, Rule

#: Outputs of one program; more would be one kernel of more buffers than some devices bind.
OUTPUTS = 12


class Case(NamedTuple):
    """A program, what it is run on, and a check for each of its outputs."""

    form: str
    program: Program
    inputs: tuple[HostArray, ...]
    checks: tuple[Check, ...]


class Function(NamedTuple):
    """A primitive, and what it means in plain NumPy."""

    op: Primitive
    what: str
    dtype: DType
    rule: Rule
    reference: Callable[..., Any]
    any_zero: bool = False
    moves: bool = False
    unspecified: Callable[..., HostArray] | None = None

    def check(self, *operands: HostArray) -> Check:
        return Check(
            self.what, self.dtype, self.rule, self.reference, operands, self.any_zero, self.moves, self.unspecified
        )


class Writer:
    """A program in the making, with the checks of its outputs."""

    def __init__(self, *inputs: HostArray) -> None:
        self._recorder = Recorder()
        self._inputs = inputs
        self.arguments = [self._recorder.input(_spec(values)) for values in inputs]
        self._outputs: list[int] = []
        self._checks: list[Check] = []

    def constant(self, values: HostArray) -> int:
        return self._recorder.add(Constant(*_spec(values), np.ascontiguousarray(values).tobytes()))

    def repeated(self, position: int, shape: tuple[int, ...]) -> int:
        same = self._recorder.spec(position).shape == shape
        return position if same else self._recorder.add(Broadcast(shape), position)

    def want(self, function: Function, positions: Sequence[int], operands: Sequence[HostArray]) -> None:
        self._outputs.append(self._recorder.add(function.op, *positions))
        self._checks.append(function.check(*operands))

    def case(self, form: str) -> Case:
        return Case(form, self._recorder.program(self._outputs), self._inputs, tuple(self._checks))

    @property
    def count(self) -> int:
        return len(self._outputs)


def as_arrays(functions: Sequence[Function], *operands: HostArray) -> Iterator[Case]:
    """All functions of the same operands."""
    for begin in range(0, len(functions), OUTPUTS):
        writer = Writer(*operands)
        for function in functions[begin : begin + OUTPUTS]:
            writer.want(function, writer.arguments, operands)
        yield writer.case("arrays")


def as_constant_arrays(functions: Sequence[Function], *operands: HostArray) -> Iterator[Case]:
    """The same, with operands that are parts of the program. They are too large to be folded."""
    for begin in range(0, len(functions), OUTPUTS):
        writer = Writer()
        positions = [writer.constant(values) for values in operands]
        for function in functions[begin : begin + OUTPUTS]:
            writer.want(function, positions, operands)
        yield writer.case("constant arrays")


def one_scalar(functions: Sequence[Function], x: HostArray, scalars: HostArray) -> Iterator[Case]:
    """Both operands of each function in turn, and both at once: one program for all scalars."""
    for begin in range(0, len(functions), OUTPUTS // 3):
        for scalar in (scalars[index : index + 1].reshape(()) for index in range(len(scalars))):
            writer = Writer(x, scalar)
            spread = np.broadcast_to(scalar, x.shape)
            array, number = writer.arguments
            for function in functions[begin : begin + OUTPUTS // 3]:
                repeated = writer.repeated(number, x.shape)
                writer.want(function, (array, repeated), (x, spread))
                writer.want(function, (repeated, array), (spread, x))
                writer.want(function, (number, number), (scalar, scalar))
            yield writer.case("scalars")


def one_constant(functions: Sequence[Function], x: HostArray, constants: HostArray) -> Iterator[Case]:
    """Each constant as either operand of each function."""
    writer = Writer(x)
    for function in functions:
        for index in range(len(constants)):
            number = constants[index : index + 1].reshape(())
            spread = np.broadcast_to(number, x.shape)
            position = writer.repeated(writer.constant(number), x.shape)
            writer.want(function, (writer.arguments[0], position), (x, spread))
            writer.want(function, (position, writer.arguments[0]), (spread, x))
            if writer.count >= OUTPUTS:
                yield writer.case("constants")
                writer = Writer(x)
    if writer.count:
        yield writer.case("constants")


def only_constants(functions: Sequence[Function], *operands: HostArray) -> Iterator[Case]:
    """Single numbers, which are folded before anything runs, by us or by the library."""
    writer = Writer()
    for function in functions:
        for index in range(len(operands[0])):
            numbers = [values[index : index + 1].reshape(()) for values in operands]
            writer.want(function, [writer.constant(number) for number in numbers], numbers)
            if writer.count >= 8 * OUTPUTS:
                yield writer.case("only constants")
                writer = Writer()
    if writer.count:
        yield writer.case("only constants")


def as_scalars(functions: Sequence[Function], values: HostArray) -> Iterator[Case]:
    """Functions of one scalar: one program for all of them."""
    for begin in range(0, len(functions), OUTPUTS):
        for index in range(len(values)):
            number = values[index : index + 1].reshape(())
            writer = Writer(number)
            for function in functions[begin : begin + OUTPUTS]:
                writer.want(function, writer.arguments, (number,))
            yield writer.case("scalars")


def _spec(values: HostArray) -> Spec:
    return Spec(values.shape, values.dtype.name)  # type: ignore[arg-type]
