"""Find the floating-point errors that NumPy would meet in a program, by native code that looks at the values.

IEEE 754 defines them by operands and results: a NaN from operands without one is an invalid operation, an infinity from
finite operands is an overflow or a division by zero. `error_program` computes these conditions beside a program, and
`FloatErrors` runs it. A NaN or an infinity that was among the arguments and is only carried on is no error.

The errors found are never fewer than those NumPy warns about. There may be more: a sum of large numbers counts as an
overflow in case NumPy adds them in an order in which they do not cancel, and every result of a matrix product, a
transform or complex arithmetic that is not finite counts, whatever its cause.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from anygpu.agreement.analysis import Flag, spoken
from anygpu.engines.cpu.engine import executable
from anygpu.program.dtypes import KIND, is_inexact
from anygpu.program.functions import FUNCTIONS, UnaryFunction
from anygpu.program.graph import Line, Node, Program
from anygpu.program.primitives import Binary, Broadcast, Cast, Constant, Primitive, Reduce, Scan, Select, Unary

Kind = Literal["divide by zero", "overflow", "invalid value"]
#: NumPy's possible names for an error, and the node that is true where it occurs.
Condition = tuple[tuple[Kind, ...], int]
_ANY: tuple[Kind, ...] = ("divide by zero", "overflow", "invalid value")

#: Programs with more nodes are not analysed: each node takes several more.
_MOST_NODES = 400
#: Functions of finite numbers that give infinity only by a division by zero, and those that may also overflow.
_POLES = frozenset(("log", "log2", "log10", "log1p", "atanh"))
_QUOTIENTS = frozenset(("divide", "floor_divide", "reciprocal"))


class FloatErrors:
    """Native code that finds the floating-point errors of one program."""

    def __init__(self, program: Program, quiet: frozenset[Line]) -> None:
        """Compile the program that finds the errors, without the lines on which the function has silenced NumPy.

        Raises `CannotCompile` where there is no code for it, and `MissingExtra` where nothing compiles.
        """
        found = error_program(program, quiet)
        self._flags = () if found is None else found[1]
        self._native = None if found is None else executable(found[0])

    def met(self, inputs: Sequence[Any]) -> frozenset[Flag]:
        """Return all errors that NumPy meets with these inputs."""
        if self._native is None:
            return frozenset()
        results = self._native(inputs)
        found = [flags for flags, result in zip(self._flags, results, strict=True) if result.any()]
        return frozenset(flag for flags in found for flag in flags)


def error_program(program: Program, quiet: frozenset[Line]) -> tuple[Program, list[tuple[Flag, ...]]] | None:
    """Return a program with one truth value for each condition, and the errors that each condition stands for.

    Return `None` if no operation of the program can meet an error. Raises `OverflowError` for a program that is too
    large.
    """
    if len(program.nodes) > _MOST_NODES:
        raise OverflowError
    writer = _Writer(program)
    found: dict[tuple[Flag, ...], list[int]] = {}
    for position, (op, _) in enumerate(program.nodes):
        line = program.lines[position]
        if not op.may_raise_flags or not is_inexact(program.specs[position].dtype) or line in quiet:
            continue
        for kinds, condition in writer.conditions(position):
            flags = tuple(Flag(kind, spoken(op), line) for kind in kinds)
            found.setdefault(flags, []).append(writer.holds_anywhere(condition))
    if not found:
        return None
    outputs = [writer.any_of(conditions) for conditions in found.values()]
    return Program(writer.nodes, outputs), list(found)


class _Writer:
    """Adds nodes to those of a program, each once."""

    def __init__(self, program: Program) -> None:
        self.nodes = list(program.nodes)
        self._specs = list(program.specs)
        self._known: dict[tuple[Primitive, tuple[int, ...]], int] = {}

    def conditions(self, position: int) -> list[Condition]:
        """Return the conditions under which an operation meets errors."""
        op, inputs = self.nodes[position]
        if KIND[self._specs[position].dtype] == "float" and isinstance(op, Unary | Binary | Cast):
            operands = [each for each in inputs if KIND[self._specs[each].dtype] == "float"]
            if len(operands) == len(inputs) or isinstance(op, Cast) or op.fn == "ldexp":
                return self._of_real(op, position, operands)
        if KIND[self._specs[position].dtype] == "float" and isinstance(op, Reduce | Scan) and op.fn == "sum":
            return self._of_sum(inputs[0], op.axes if isinstance(op, Reduce) else (op.axis,))
        return [(_ANY, self._not(self._test("isfinite", position)))]

    def _of_sum(self, source: int, axes: tuple[int, ...]) -> list[Condition]:
        """Return the conditions of sums along axes: an overflow in some order, or infinities of both signs."""
        is_finite = self._test("isfinite", source)
        sizes = self._add(Select(), is_finite, self._add(Unary("abs"), source), self._filled(source, 0.0))
        total = self._add(Reduce("sum", axes), sizes)
        fits = self._add(Binary("less"), total, self._filled(total, float(np.finfo(self._specs[total].dtype).max) / 2))
        both = [
            self._add(Reduce("any", axes), self._add(Binary("equal"), source, self._filled(source, infinity)))
            for infinity in (np.inf, -np.inf)
        ]
        return [(("overflow",), self._not(fits)), (("invalid value",), self._both(*both))]

    def _of_real(self, op: Unary | Binary | Cast, position: int, operands: Sequence[int]) -> list[Condition]:
        """Return the conditions of a function of real numbers."""
        becomes_nan = self._test("isnan", position)
        becomes_infinite = self._test("isinf", position)
        for each in operands:
            becomes_nan = self._both(becomes_nan, self._not(self._test("isnan", each)))
            becomes_infinite = self._both(becomes_infinite, self._test("isfinite", each))
        if isinstance(op, Cast):
            return [(("overflow",), becomes_infinite)]
        found: list[Condition] = []
        made = FUNCTIONS[op.fn].makes
        if "nan" in made:
            found.append((("invalid value",), becomes_nan))
        if op.fn in _QUOTIENTS:
            by_zero = self._add(Binary("equal"), operands[-1], self._filled(operands[-1], 0.0))
            found.append((("divide by zero",), self._both(becomes_infinite, by_zero)))
            found.append((("overflow",), self._both(becomes_infinite, self._not(by_zero))))
        elif "inf" in made:
            kinds: tuple[Kind, ...] = ("overflow",)
            if op.fn in _POLES:
                kinds = ("divide by zero",)
            elif op.fn == "power":
                kinds = ("divide by zero", "overflow")
            found.append((kinds, becomes_infinite))
        return found

    def holds_anywhere(self, condition: int) -> int:
        """Return the node that tells whether a condition holds for any element."""
        axes = tuple(range(len(self._specs[condition].shape)))
        return self._add(Reduce("any", axes), condition) if axes else condition

    def any_of(self, conditions: Sequence[int]) -> int:
        """Return the node that tells whether any of these truth values is true."""
        first, *others = conditions
        for each in others:
            first = self._add(Binary("bitwise_or"), first, each)
        return first

    def _test(self, fn: UnaryFunction, of: int) -> int:
        return self._add(Unary(fn), of)

    def _not(self, condition: int) -> int:
        return self._add(Unary("invert"), condition)

    def _both(self, one: int, other: int) -> int:
        return self._add(Binary("bitwise_and"), one, other)

    def _filled(self, like: int, number: float) -> int:
        """Return the node of an array filled with `number`, in the shape and dtype of `like`."""
        spec = self._specs[like]
        filled = self._add(Constant((), spec.dtype, np.asarray(number, spec.dtype).tobytes()))
        return self._add(Broadcast(spec.shape), filled) if spec.shape else filled

    def _add(self, op: Primitive, *inputs: int) -> int:
        """Return the node of this operation; add it unless the program has it already."""
        key = (op, inputs)
        if key not in self._known:
            self._known[key] = len(self.nodes)
            self.nodes.append(Node(op, inputs))
            self._specs.append(op.infer(*(self._specs[each] for each in inputs)))
        return self._known[key]
