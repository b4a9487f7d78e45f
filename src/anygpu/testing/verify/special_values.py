"""Zeros of both signs, infinities, NaN, limits, ties and overflow, and programs that every operation has them in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from anygpu.array.trace.tracing import record
from anygpu.base.typing import HostArray
from anygpu.program.dtypes import ITEMSIZE, KIND, REAL_PART, DType
from anygpu.program.functions import BINARY, TRANSCENDENTAL, UNARY, is_defined
from anygpu.program.graph import Program, Recorder
from anygpu.program.primitives import Argsort, Binary, Cast, Primitive, Reduce, Scan, Sort, Spec, Unary
from anygpu.testing.cases import REFERENCE_DTYPES

#: Outputs of one program; more would be one kernel of more buffers than some devices bind.
_OUTPUTS = 12


class SpecialProgram(NamedTuple):
    """Operations on special values, with what they are applied to."""

    name: str
    program: Program
    inputs: tuple[HostArray, ...]


def special_programs() -> Iterator[SpecialProgram]:
    """Return all programs by type: functions of every value and pair, casts, reductions and expressions."""
    for dtype in REFERENCE_DTYPES:
        values = special_values(dtype)
        x, y = pairs(values, values)
        # The signs of zeros and infinities beside a NaN are left open in functions of complex numbers.
        slow = TRANSCENDENTAL if KIND[dtype] == "complex" else ()
        unary = [Unary(fn) for fn in UNARY if is_defined(fn, dtype) and fn not in slow]
        binary = [Binary(fn) for fn in BINARY if is_defined(fn, dtype) and fn not in (*slow, "divide", "power")]
        yield from _programs(f"functions of {dtype}", unary, values)
        yield from _programs(f"functions of two numbers of {dtype}", binary, x, y)
        if KIND[dtype] != "complex":
            if KIND[dtype] != "bool":
                # NumPy raises for negative powers of integers.
                kept = (y >= 0) | (KIND[dtype] == "float")
                yield from _programs(f"powers of {dtype}", [Binary("power")], x[kept], y[kept])
                yield from _programs(f"quotients of {dtype}", [Binary("divide")] * (KIND[dtype] == "float"), x, y)
            yield from _casts(dtype, values)
            yield from _programs(f"reductions of {dtype}", _reductions(dtype), np.stack([x, y], axis=1))
        if KIND[dtype] in ("signed", "unsigned", "float"):
            recorded = record(_floats_simplified if KIND[dtype] == "float" else _whole_simplified, x, y)
            # A finding shows the program's text, which must not name lines of anygpu.
            yield SpecialProgram(f"expressions of {dtype}", Program(recorded.nodes, recorded.outputs), (x, y))


def _programs(name: str, ops: Sequence[Primitive], *inputs: HostArray) -> Iterator[SpecialProgram]:
    """Return the operations on these inputs, some in each program."""
    for begin in range(0, len(ops), _OUTPUTS):
        recorder = Recorder()
        given = [recorder.input(Spec(each.shape, each.dtype.name)) for each in inputs]  # type: ignore[arg-type]
        program = recorder.program([recorder.add(op, *given) for op in ops[begin : begin + _OUTPUTS]])
        yield SpecialProgram(f"{name}, {begin // _OUTPUTS + 1}", program, inputs)


def _casts(dtype: DType, values: HostArray) -> Iterator[SpecialProgram]:
    """Return casts to all other types. C leaves it to the processor what a number that does not fit becomes."""
    for target in REFERENCE_DTYPES:
        kept = values
        if KIND[dtype] == "float" and KIND[target] in ("signed", "unsigned"):
            limits, whole = np.iinfo(target), np.trunc(values.astype(np.float64))
            kept = values[(whole >= float(limits.min)) & (whole < float(limits.max) + 1)]
        if target != dtype:
            yield from _programs(f"{dtype} to {target}", [Cast(target)], kept)


def _reductions(dtype: DType) -> list[Primitive]:
    """Return reductions along rows: sums and extremes, or `any` and `all` for bool."""
    if dtype == "bool":
        return [Reduce("any", (1,)), Reduce("all", (1,)), Sort(1), Argsort(1)]
    extremes = [Reduce("max", (1,)), Reduce("min", (1,)), Reduce("argmax", (1,)), Reduce("argmin", (1,))]
    return [Reduce("sum", (1,)), *extremes, Scan("sum", 1), Scan("max", 1), Scan("min", 1), Sort(1), Argsort(1)]


def _floats_simplified(x: Any, y: Any) -> Any:
    """Return expressions that a compiler simplifies if it takes floats for real numbers."""
    return x - x, x * 0, x + 0.0, 0.0 - x, x / x, x != x, ~(x < y), np.where(np.isnan(x), 0, x), x * 2 / 2, -(x - y)


def _whole_simplified(x: Any, y: Any) -> Any:
    """Return expressions that a compiler simplifies if it takes integers for unlimited."""
    return (x * 3) // 3, x + 1 > x, x * x >= 0, (x + y) - y == x, x * y // y, (x << 1) >> 1, x // 0, x % 0, x // x


# -- the values, by type


def special_values(dtype: DType) -> HostArray:
    """Zeros, ones, limits, what is not finite, subnormals, ties of rounding, large arguments of periodic functions."""
    match KIND[dtype]:
        case "bool":
            return np.array([False, True])
        case "signed" | "unsigned":
            return _whole(dtype)
        case "float":
            return _floats(dtype)
    parts = np.array([0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan, -0.5, 2.5, 1.5, -3, 30.25], REAL_PART[dtype])
    return complex_values(dtype, parts)


def _whole(dtype: DType) -> HostArray:
    """Whole numbers around 0, the width of the type and its limits."""
    limits, bits = np.iinfo(dtype), 8 * ITEMSIZE[dtype]
    numbers = [0, 1, 2, 3, 7, 10, 42, bits - 1, bits, bits + 1, 100, 1 << bits // 2 - 1, 1 << bits // 2]
    numbers += [limits.max // 3 + 1, limits.max - 1, limits.max]
    if KIND[dtype] == "signed":
        numbers += [-1, -2, -3, -7, -bits, -100, -(1 << bits // 2 - 1), limits.min // 3 - 1, limits.min + 1, limits.min]
    else:
        numbers += [limits.max // 2, limits.max // 2 + 1]
    return np.array(sorted(set(numbers)), dtype)


def _floats(dtype: DType) -> HostArray:
    """Floats around 0, 1, the limits of the type, ties of rounding, and where whole numbers end."""
    facts = np.finfo(dtype)
    parts: list[Any] = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan]
    parts += [0.5, -0.5, 1.5, -1.5, 2.5, -2.5, 2.0, 3.0, -3.0, 0.25, 10.0]
    parts += [np.pi, -np.pi / 2, 0.1, 7.25, -100.0, 1e-3, 2048.5, -30000.0]
    parts += [facts.max, -facts.max, facts.tiny, -facts.tiny, facts.smallest_subnormal, -facts.tiny / 2]
    parts += [facts.eps, 1 + facts.eps, 1 - facts.eps / 2]
    if dtype != "float16":
        parts += [1e8, -1e9, 3e9, 2.0**24 - 1, 8388607.5, 2.0**31, 2.0**63, 1e30]
    if dtype == "float64":
        parts += [1e17, 2.0**53 - 1, 4503599627370495.5, 1e300]
    return np.array(parts, dtype)


def complex_values(dtype: DType, parts: HostArray) -> HostArray:
    """Return every pair of parts, made without arithmetic: an infinity times 0 would be NaN."""
    result = np.empty((len(parts), len(parts)), dtype)
    result.real, result.imag = parts[:, None], parts[None, :]
    return result.ravel()


def pairs(x: HostArray, y: HostArray) -> tuple[HostArray, HostArray]:
    """Every pair as two vectors."""
    return np.repeat(x, len(y)), np.tile(y, len(x))
