"""Programs of the table: one primitive with its operands as arrays, scalars and constants, and several together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from anygpu.array.trace.tracing import record
from anygpu.base.typing import HostArray
from anygpu.program.dtypes import KIND, DType
from anygpu.program.graph import Program, Recorder
from anygpu.program.primitives import Broadcast, Constant, Primitive, Spec
from anygpu.testing.verify.special_values import pairs
from tests.support.special_values.comparison import Check, Rule, pair_values

#: Outputs of one program; more would be one kernel of more buffers than some devices bind.
OUTPUTS = 12


class TableCase(NamedTuple):
    """A program, what it is run on, and a check for each of its outputs."""

    form: str
    program: Program
    inputs: tuple[HostArray, ...]
    checks: tuple[Check, ...]


class TableFunction(NamedTuple):
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
        """The check of this function on these operands."""
        return Check(
            self.what, self.dtype, self.rule, self.reference, operands, self.any_zero, self.moves, self.unspecified
        )


class ProgramWriter:
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

    def want(self, function: TableFunction, positions: Sequence[int], operands: Sequence[HostArray]) -> None:
        """Adds an output: the function of these values of the program, checked by its NumPy meaning of `operands`."""
        self._outputs.append(self._recorder.add(function.op, *positions))
        self._checks.append(function.check(*operands))

    def case(self, form: str) -> TableCase:
        """The program so far with its inputs and checks."""
        return TableCase(form, self._recorder.program(self._outputs), self._inputs, tuple(self._checks))

    @property
    def count(self) -> int:
        return len(self._outputs)


def as_arrays(functions: Sequence[TableFunction], *operands: HostArray) -> Iterator[TableCase]:
    """Programs of all functions of the same operands, which are inputs; `OUTPUTS` functions in each."""
    for begin in range(0, len(functions), OUTPUTS):
        writer = ProgramWriter(*operands)
        for function in functions[begin : begin + OUTPUTS]:
            writer.want(function, writer.arguments, operands)
        yield writer.case("arrays")


def as_constant_arrays(functions: Sequence[TableFunction], *operands: HostArray) -> Iterator[TableCase]:
    """The same, with operands that are parts of the program. They are too large to be folded."""
    for begin in range(0, len(functions), OUTPUTS):
        writer = ProgramWriter()
        positions = [writer.constant(values) for values in operands]
        for function in functions[begin : begin + OUTPUTS]:
            writer.want(function, positions, operands)
        yield writer.case("constant arrays")


def one_scalar(functions: Sequence[TableFunction], x: HostArray, scalars: HostArray) -> Iterator[TableCase]:
    """Both operands of each function in turn, and both at once: one program for all scalars."""
    for begin in range(0, len(functions), OUTPUTS // 3):
        for scalar in (scalars[index : index + 1].reshape(()) for index in range(len(scalars))):
            writer = ProgramWriter(x, scalar)
            spread = np.broadcast_to(scalar, x.shape)
            array, number = writer.arguments
            for function in functions[begin : begin + OUTPUTS // 3]:
                repeated = writer.repeated(number, x.shape)
                writer.want(function, (array, repeated), (x, spread))
                writer.want(function, (repeated, array), (spread, x))
                writer.want(function, (number, number), (scalar, scalar))
            yield writer.case("scalars")


def one_constant(functions: Sequence[TableFunction], x: HostArray, constants: HostArray) -> Iterator[TableCase]:
    """Each constant as either operand of each function."""
    writer = ProgramWriter(x)
    for function in functions:
        for index in range(len(constants)):
            number = constants[index : index + 1].reshape(())
            spread = np.broadcast_to(number, x.shape)
            position = writer.repeated(writer.constant(number), x.shape)
            writer.want(function, (writer.arguments[0], position), (x, spread))
            writer.want(function, (position, writer.arguments[0]), (spread, x))
            if writer.count >= OUTPUTS:
                yield writer.case("constants")
                writer = ProgramWriter(x)
    if writer.count:
        yield writer.case("constants")


def only_constants(functions: Sequence[TableFunction], *operands: HostArray) -> Iterator[TableCase]:
    """Single numbers, which are folded before anything runs, by us or by the library."""
    writer = ProgramWriter()
    for function in functions:
        for index in range(len(operands[0])):
            numbers = [values[index : index + 1].reshape(()) for values in operands]
            writer.want(function, [writer.constant(number) for number in numbers], numbers)
            if writer.count >= 8 * OUTPUTS:
                yield writer.case("only constants")
                writer = ProgramWriter()
    if writer.count:
        yield writer.case("only constants")


def as_scalars(functions: Sequence[TableFunction], values: HostArray) -> Iterator[TableCase]:
    """Functions of one scalar: one program for all of them."""
    for begin in range(0, len(functions), OUTPUTS):
        for index in range(len(values)):
            number = values[index : index + 1].reshape(())
            writer = ProgramWriter(number)
            for function in functions[begin : begin + OUTPUTS]:
                writer.want(function, writer.arguments, (number,))
            yield writer.case("scalars")


def _spec(values: HostArray) -> Spec:
    return Spec(values.shape, values.dtype.name)  # type: ignore[arg-type]


# -- several primitives together
#
# As compilers like to simplify them: right for numbers, wrong for those of a machine.


Expressions = dict[str, Callable[[Any, Any], Any]]

_EXACT_FLOAT: Expressions = {
    "x - x": lambda x, y: x - x,
    "x * 0": lambda x, y: x * 0.0,
    "x * -0": lambda x, y: x * -0.0,
    "x + 0": lambda x, y: x + 0.0,
    "x - 0": lambda x, y: x - 0.0,
    "0 - x": lambda x, y: 0.0 - x,
    "0 / x": lambda x, y: 0.0 / x,
    "x / 0": lambda x, y: x / 0.0,
    "x / -0": lambda x, y: x / -0.0,
    "x // 0": lambda x, y: x // 0.0,
    "x % 0": lambda x, y: x % 0.0,
    "x / x": lambda x, y: x / x,
    "x / inf": lambda x, y: x / np.inf,
    "x * nan": lambda x, y: x * np.nan,
    "floor(x * nan)": lambda x, y: np.floor(x * np.nan),
    "rint(x * nan)": lambda x, y: np.rint(x * np.nan),
    "x // nan": lambda x, y: x // np.nan,
    "x != x": lambda x, y: x != x,
    "not x < y": lambda x, y: ~(x < y),
    "x < y or x > y or x == y": lambda x, y: (x < y) | (x > y) | (x == y),
    "x * 2 / 2": lambda x, y: x * 2 / 2,
    "-(x - y)": lambda x, y: -(x - y),
    "-(-x)": lambda x, y: np.negative(-x),
    "abs(-x)": lambda x, y: abs(-x),
    "0 - (0 - x)": lambda x, y: 0.0 - (0.0 - x),
    "where(x > y, x, y)": lambda x, y: np.where(x > y, x, y),
    "where(isnan(x), 0, x)": lambda x, y: np.where(np.isnan(x), 0, x),
    "where(x == 0, y, x)": lambda x, y: np.where(x == 0, y, x),
    "clip": lambda x, y: np.clip(x, -1, 1),
    "nan_to_num": lambda x, y: np.nan_to_num(x),
    "isfinite(x * y)": lambda x, y: np.isfinite(x * y),
    "signbit(x * -1)": lambda x, y: np.signbit(np.where(np.isnan(x), 1, x) * -1),
    "copysign(1, x) * x": lambda x, y: np.copysign(x.dtype.type(1), x) * x,
    "x ** 0": lambda x, y: x**0,
    "x ** 1": lambda x, y: x**1,
    "1 ** x": lambda x, y: 1.0**x,
    "max(x, y) == max(y, x)": lambda x, y: np.maximum(x, y) == np.maximum(y, x),
    "x > inf": lambda x, y: x > np.inf,
    "x <= inf": lambda x, y: x <= np.inf,
    "fmax": lambda x, y: np.fmax(x, y) + 0.0,
    "heaviside": lambda x, y: np.heaviside(x, x.dtype.type(0.5)),
}
_ROUNDED_FLOAT: Expressions = {
    "1 / (1 / x)": lambda x, y: 1 / (1 / x),
    "sqrt(x * x)": lambda x, y: np.sqrt(x * x),
    "sqrt(x) ** 2": lambda x, y: np.sqrt(x) ** 2,
    "x ** 2": lambda x, y: x**2,
    "x ** 3": lambda x, y: x**3,
    "x ** 0.5": lambda x, y: (x * x) ** 0.5,
    "x ** -1": lambda x, y: x**-1.0,
    "x ** -2": lambda x, y: x**-2.0,
    "x ** inf": lambda x, y: x**np.inf,
    "2 ** x": lambda x, y: 2.0**x,
    "x / 3": lambda x, y: x / 3,
    "x / y * 0": lambda x, y: x / y * 0,
    "exp(-abs(x))": lambda x, y: np.exp(-abs(x)),
    "log(x * 0)": lambda x, y: np.log(x * 0),
    "log1p(exp(-abs(x)))": lambda x, y: np.log1p(np.exp(-abs(x))),
    "logaddexp": lambda x, y: np.logaddexp(x, y),
    "sinc": lambda x, y: np.sinc(x * (abs(x) < 100)),
    "arctanh(x * 0 + 1)": lambda x, y: np.arctanh(x * 0 + 1),
    "tanh(x) + 0": lambda x, y: np.tanh(x) + 0.0,
    "1 / (1 + exp(-x))": lambda x, y: 1 / (1 + np.exp(-x)),
    "sin": lambda x, y: np.sin(x),
}
_WHOLE: Expressions = {
    "(x * 3) // 3": lambda x, y: (x * 3) // 3,
    "x + 1 > x": lambda x, y: (x + 1) > x,
    "x - 1 < x": lambda x, y: (x - 1) < x,
    "max(x + 5, x)": lambda x, y: np.maximum(x + 5, x),
    "min(x - 5, x)": lambda x, y: np.minimum(x - 5, x),
    "x - min(x) >= 0": lambda x, y: (x - x.min()) >= 0,
    "x * x >= 0": lambda x, y: (x * x) >= 0,
    "x * y >= 0": lambda x, y: (x * y) >= 0,
    "(x + y) - y == x": lambda x, y: ((x + y) - y) == x,
    "x + y > x": lambda x, y: (x + y) > x,
    "x - y > 0": lambda x, y: (x - y) > 0,
    "x * y // y": lambda x, y: x * y // y,
    "(x << 1) >> 1": lambda x, y: (x << 1) >> 1,
    "(x << y) >> y": lambda x, y: (x << y) >> y,
    "x * 2 // 2": lambda x, y: x * 2 // 2,
    "x * 4 % 4": lambda x, y: x * 4 % 4,
    "x // y * y + x % y": lambda x, y: x // y * y + x % y,
    "x // 0": lambda x, y: x // 0,
    "x % 0": lambda x, y: x % 0,
    "0 // x": lambda x, y: 0 // x,
    "x // x": lambda x, y: x // x,
    "x % x": lambda x, y: x % x,
    "(x + y) // 2": lambda x, y: (x + y) // 2,
    "~x + 1": lambda x, y: ~x + 1,
    "x * x * x": lambda x, y: x * x * x,
    "x ** 2": lambda x, y: x**2,
    "x ** 7": lambda x, y: x**7,
    "abs(x) >= 0": lambda x, y: abs(x) >= 0,
    "x // 7": lambda x, y: x // 7,
    "x % 7": lambda x, y: x % 7,
    "x // 8": lambda x, y: x // 8,
    "x % 8": lambda x, y: x % 8,
    "x << width": lambda x, y: x << 8 * x.dtype.itemsize,
    "x >> width": lambda x, y: x >> 8 * x.dtype.itemsize,
    "x / y": lambda x, y: (x / y) > 0,
    "isin": lambda x, y: np.isin(x, y[:9]),
}
_SIGNED: Expressions = {
    "-x >= 0": lambda x, y: -x >= 0,
    "-(-x)": lambda x, y: np.negative(-x),
    "abs(x) * abs(y) >= 0": lambda x, y: abs(x) * abs(y) >= 0,
    "x // -1": lambda x, y: x // -1,
    "x % -1": lambda x, y: x % -1,
    "x // -7": lambda x, y: x // -7,
    "x % -5": lambda x, y: x % -5,
    "x << -1": lambda x, y: x << -1,
    "x >> -1": lambda x, y: x >> -1,
    "x * -1 < 0": lambda x, y: x * -1 < 0,
    "0 - x > 0": lambda x, y: 0 - x > 0,
    "sign(x) * x >= 0": lambda x, y: np.sign(x) * x >= 0,
}
_COMPLEX: Expressions = {
    "sqrt(conj(x))": lambda x, y: np.sqrt(np.conj(x)),
    "log(conj(x))": lambda x, y: np.log(np.conj(x)),
    "conj(conj(x))": lambda x, y: np.conj(np.conj(x)),
    "x * conj(x)": lambda x, y: x * np.conj(x),
    "abs(x)": lambda x, y: np.abs(x),
    "angle(x)": lambda x, y: np.angle(x),
    "-x": lambda x, y: -x,
    "x == y": lambda x, y: x == y,
    "x - x": lambda x, y: x - x,
    "x + 0": lambda x, y: x + 0,
    "x * 1": lambda x, y: x * 1,
}


def expressions(dtype: DType, every: bool) -> Iterator[TableCase]:
    """Expressions that compilers like to simplify, several in one program; with `every` also each alone."""
    kind = KIND[dtype]
    exact: Expressions = {}
    rounded: Expressions = {}
    if kind == "float":
        exact, rounded = _EXACT_FLOAT, _ROUNDED_FLOAT
    elif kind == "signed":
        exact = {**_WHOLE, **_SIGNED}
    elif kind == "unsigned":
        exact = _WHOLE
    elif kind == "complex":
        rounded = _COMPLEX
    if not exact and not rounded:
        return
    x, y = pairs(pair_values(dtype), pair_values(dtype))
    for found, rule in ((exact, "exact"), (rounded, "several")):
        wanted = [list(found.items())[begin : begin + 8] for begin in range(0, len(found), 8)]
        wanted += [[each] for each in found.items()] if every else []
        for some in wanted:
            functions = [function for _, function in some]

            def together(x: Any, y: Any, functions: Any = functions) -> list[Any]:
                return [function(x, y) for function in functions]

            spec = Spec(x.shape, dtype)
            checks = tuple(
                Check(name, dtype, rule, function, (x, y), any_zero=name in ("fmax", "clip"))  # type: ignore[arg-type]
                for name, function in some
            )
            yield TableCase("expressions", record(together, spec, spec), (x, y), checks)
