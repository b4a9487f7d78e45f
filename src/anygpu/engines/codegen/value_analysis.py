"""Values of a program that are known before it runs: intervals of indices, and numbers that are the same everywhere.

`IndexFacts` follows integers through a program, so that indices which are surely in range need no checks, and scatters
whose indices are surely distinct no order. `uniform_numbers` finds operands that are one number everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from anygpu.program.dtypes import FORMATS, ITEMSIZE, KIND, DType, is_integer, number_from
from anygpu.program.graph import Node, Program
from anygpu.program.primitives import (
    Argsort,
    Binary,
    Broadcast,
    Cast,
    Concatenate,
    Constant,
    Gather,
    Iota,
    Reduce,
    Reshape,
    Scatter,
    Search,
    Select,
    Spec,
)

# -- indices, so that engines check only those that might be wrong


class Interval(NamedTuple):
    """All integers from `low` to `high`."""

    low: int
    high: int

    def fits(self, other: Interval) -> bool:
        return other.low <= self.low and self.high <= other.high


class IndexFacts:
    """For every node the range of its values, and whether none of them comes twice. Found in one pass, in order."""

    def __init__(self, program: Program, ranks: Sequence[int] = ()) -> None:
        """Analyse the values of a program, unless it has no indices at all.

        Nodes come in the order of their ranks; without these in that of their numbers.
        """
        self._specs = program.specs
        self._intervals = [_everything(spec.dtype) for spec in program.specs]
        self._distinct = [False] * len(program.nodes)
        if any(isinstance(node.op, Gather | Scatter) for node in program.nodes):
            positions = range(len(program.nodes))
            for position in sorted(positions, key=ranks.__getitem__) if ranks else positions:
                node = program.nodes[position]
                self._intervals[position] = self._interval(node, program.specs[position])
                self._distinct[position] = self._is_distinct(node, program.specs[position])

    def surely_in_range(self, position: int, length: int) -> bool:
        """Whether no run can give this node a value outside of 0 … length - 1."""
        return self._specs[position].size == 0 or self._intervals[position].fits(Interval(0, length - 1))

    def surely_distinct(self, position: int) -> bool:
        """Whether no run can give this node the same value twice."""
        return self._distinct[position]

    def _interval(self, node: Node, spec: Spec) -> Interval:
        """The interval of a node's values; all of its type where they might wrap around."""
        possible = _everything(spec.dtype)
        found = _judge(node, spec, [self._intervals[source] for source in node.inputs], self._specs)
        return found if found is not None and found.fits(possible) else possible

    def _is_distinct(self, node: Node, spec: Spec) -> bool:
        """Whether no value of a node occurs twice, for sure."""
        op, sources = node
        if spec.size <= 1:
            return True
        if not is_integer(spec.dtype):
            return False
        if isinstance(op, Iota):
            return op.length - 1 <= _everything(spec.dtype).high
        if isinstance(op, Constant):
            return len(set(_values(op))) == spec.size
        if isinstance(op, Argsort):
            return len(spec.shape) == 1
        if isinstance(op, Cast):
            source = self._specs[sources[0]].dtype
            return is_integer(source) and ITEMSIZE[op.dtype] >= ITEMSIZE[source] and self._distinct[sources[0]]
        return op.is_view and not op.is_repeating and self._distinct[sources[0]]


def _values(op: Constant) -> memoryview[int]:
    return memoryview(op.data).cast(FORMATS[op.dtype])  # type: ignore[call-overload, no-any-return]


def _everything(dtype: DType) -> Interval:
    """All values that a type can have, as integers."""
    if not is_integer(dtype):
        return Interval(0, 1) if dtype == "bool" else Interval(-(1 << 64), 1 << 64)
    bits = 8 * ITEMSIZE[dtype]
    return Interval(-(1 << bits - 1), (1 << bits - 1) - 1) if KIND[dtype] == "signed" else Interval(0, (1 << bits) - 1)


def _judge(node: Node, spec: Spec, of: Sequence[Interval], specs: Sequence[Spec]) -> Interval | None:
    """The interval of a node's values, from those of its inputs; `None` where nothing is known."""
    op, sources = node
    match op:
        case Constant() if is_integer(spec.dtype):
            values = _values(op)
            return Interval(min(values), max(values)) if spec.size else Interval(0, 0)
        case Iota():
            return Interval(0, max(0, op.length - 1))
        case Reduce(fn="argmax" | "argmin"):
            return Interval(0, specs[sources[0]].shape[op.axes[0]] - 1)
        case Argsort():
            return Interval(0, max(0, spec.shape[op.axis] - 1))
        case Search():
            return Interval(0, specs[sources[0]].shape[0])
        case Reduce(fn="max" | "min") | Cast():
            return of[0] if is_integer(specs[sources[0]].dtype) or specs[sources[0]].dtype == "bool" else None
        case Select():
            return Interval(min(of[1].low, of[2].low), max(of[1].high, of[2].high))
        case Concatenate():
            return Interval(min(part.low for part in of), max(part.high for part in of))
        case Binary() if is_integer(spec.dtype):
            return _arithmetic(op, of[0], of[1])
    # The elements of these are all elements of their first input.
    return of[0] if op.is_view or isinstance(op, Gather) else None


def _arithmetic(op: Binary, x: Interval, y: Interval) -> Interval | None:
    """The interval of a function of two intervals, without regard to overflow; `None` where nothing is known."""
    match op.fn:
        case "add":
            return Interval(x.low + y.low, x.high + y.high)
        case "subtract":
            return Interval(x.low - y.high, x.high - y.low)
        case "multiply":
            corners = [x.low * y.low, x.low * y.high, x.high * y.low, x.high * y.high]
            return Interval(min(corners), max(corners))
        case "minimum":
            return Interval(min(x.low, y.low), min(x.high, y.high))
        case "maximum":
            return Interval(max(x.low, y.low), max(x.high, y.high))
        case "remainder" if y.low > 0:
            return Interval(0, y.high - 1)
        case "floor_divide" if y.low > 0 and x.low >= 0:
            return Interval(x.low // y.high, x.high // y.low)
    return None


# -- values that are one number everywhere, for which engines choose a shorter way


def uniform_numbers(program: Program) -> dict[int, Any]:
    """By node: the Python number that it is everywhere, where that is a part of the program."""
    found: dict[int, Any] = {}
    for position, (op, inputs) in enumerate(program.nodes):
        spec = program.specs[position]
        number = None
        if isinstance(op, Constant) and spec.size == 1 and spec.dtype != "bfloat16":
            number = number_from(op.data, spec.dtype)
        elif isinstance(op, Broadcast | Reshape | Cast) and inputs[0] in found:
            number = _as(found[inputs[0]], spec)
        if number is not None:
            found[position] = number
    return found


def whole_exponent(exponent: Any) -> int | None:
    """The exponent of a complex power that NumPy multiplies out; `None` for other exponents and non-constants."""
    if exponent is None or exponent != exponent or exponent.imag or exponent.real != exponent.real // 1:
        return None
    return int(exponent.real) if abs(exponent.real) < 100 else None


def _as(number: Any, spec: Spec) -> Any:
    """The same number after a cast; `None` when Python has none like it."""
    import numpy as np  # here: the child that compiles native code loads this module, and no NumPy

    from anygpu.base.interrupts import float_errors_ignored

    if spec.dtype == "bfloat16":
        return None
    real = number.real if KIND[spec.dtype] not in ("complex", "bool") else number
    return float_errors_ignored(lambda: np.asarray(real).astype(spec.dtype).item())()
