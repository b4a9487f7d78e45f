"""The table of special values: what every engine must make of zeros, infinities, NaN, limits, ties and overflow.

`cases` makes programs of every elementwise primitive, cast, comparison, reduction and scan with their inputs and what
plain NumPy makes of them; `tally` runs them on a device and counts the differences beyond the published tolerances.
`programs` has the forms of a program, and `comparison` the values and what a result is checked against.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, Protocol

import msgspec
import numpy as np

from anygpu.base.typing import HostArray
from anygpu.engines.protocol import Lack
from anygpu.program.dtypes import ITEMSIZE, KIND, DType, is_inexact
from anygpu.program.functions import BINARY, TRANSCENDENTAL, UNARY, BinaryFunction, UnaryFunction, is_defined
from anygpu.program.graph import Program
from anygpu.program.primitives import Argsort, Binary, Cast, Primitive, Reduce, Scan, Select, Sort, Unary
from anygpu.program.transforms import without_dead_code
from anygpu.testing.cases import REFERENCE_DTYPES
from anygpu.testing.verify.special_values import pairs, special_values
from tests.support.special_values import programs
from tests.support.special_values.comparison import (
    Check,
    Rule,
    binary_reference,
    cast_reference,
    few_values,
    pair_values,
    scan_reference,
    summands,
    unary_reference,
    wrong,
)
from tests.support.special_values.programs import ProgramWriter, TableCase, TableFunction, expressions

__all__ = ["Amount", "Difference", "Tally", "cases", "tally"]


#: all: the whole table; some: what fits into every run of the tests.
Amount = Literal["all", "some"]

_ROUNDED_UNARY: dict[UnaryFunction, Rule] = {"reciprocal": "arithmetic"}
_EXACT_UNARY = tuple(fn for fn in UNARY if fn not in TRANSCENDENTAL and fn not in ("abs", "sign", "reciprocal"))
_ROUNDED_BINARY: dict[BinaryFunction, Rule] = {
    **dict.fromkeys(("add", "subtract", "multiply", "divide", "floor_divide", "remainder"), "arithmetic"),
    **dict.fromkeys(("power", "atan2", "hypot"), "function"),
}


def cases(amount: Amount = "all") -> Iterator[TableCase]:
    """All programs of the table, type by type; "some" leaves out forms that cost a kernel for each value."""
    for dtype in REFERENCE_DTYPES:
        yield from _unary(dtype, amount)
        yield from _binary(dtype, amount)
        yield from _casts(dtype, amount)
        yield from _selections(dtype)
        yield from _lines(dtype)
        yield from expressions(dtype, amount == "all")


def _unary_function(fn: UnaryFunction, dtype: DType) -> TableFunction:
    """A function of one operand with its rule: exact, or within the published tolerance."""
    plain = fn in _EXACT_UNARY or (fn in ("abs", "sign") and KIND[dtype] != "complex")
    rule: Rule = "exact" if plain else _ROUNDED_UNARY.get(fn, "function")
    of_zero = fn == "reciprocal" and KIND[dtype] in ("signed", "unsigned")
    reference = unary_reference(fn)
    return TableFunction(Unary(fn), fn, dtype, rule, reference, unspecified=(lambda x: x == 0) if of_zero else None)


def _unary(dtype: DType, amount: Amount) -> Iterator[TableCase]:
    """Every function of one operand that the type has, of all special values, in several forms."""
    functions = [_unary_function(fn, dtype) for fn in UNARY if is_defined(fn, dtype)]
    values = special_values(dtype)
    yield from programs.as_arrays(functions, values)
    if _is_looked_at(dtype, amount):
        yield from programs.as_constant_arrays(functions, np.tile(values, -(-300 // len(values))))
        yield from programs.only_constants(functions, values if amount == "all" else few_values(dtype)[:4])
        yield from programs.as_scalars(functions, values if amount == "all" else few_values(dtype))


def _binary_function(fn: BinaryFunction, dtype: DType) -> TableFunction:
    rule: Rule = _ROUNDED_BINARY.get(fn, "exact") if KIND[dtype] in ("float", "complex") else "exact"
    any_zero = fn in ("minimum", "maximum")
    either = _root_or_power if fn == "power" and KIND[dtype] == "float" else None
    return TableFunction(Binary(fn), fn, dtype, rule, binary_reference(fn), any_zero=any_zero, unspecified=either)


def _root_or_power(x: HostArray, y: HostArray) -> HostArray:
    """NumPy takes the square root for one exponent for all, and the power for one for each; here they differ."""
    return np.asarray((y == 0.5) & ((np.abs(x) < np.finfo(x.dtype).tiny) | np.isinf(x)))


def _binary(dtype: DType, amount: Amount) -> Iterator[TableCase]:
    """Every function of two operands that the type has, of all pairs of values, in several forms."""
    functions = [_binary_function(fn, dtype) for fn in BINARY if is_defined(fn, dtype)]
    negative_powers = KIND[dtype] == "signed"
    if negative_powers:
        functions = [each for each in functions if each.what != "power"]
    values, few = pair_values(dtype), few_values(dtype)
    x, y = pairs(values, values)
    yield from programs.as_arrays(functions, x, y)
    if _is_looked_at(dtype, amount):
        every = amount == "all"
        yield from programs.one_scalar(functions, values, values if every else few)
        yield from programs.one_constant(
            functions, values, (few if KIND[dtype] == "complex" else values) if every else few[:4]
        )
        yield from programs.only_constants(functions, *pairs(*2 * (few[: 8 if every else 3],)))
        yield from programs.as_constant_arrays(functions, x, y)
    if negative_powers:
        # NumPy raises for a negative exponent.
        power = [_binary_function("power", dtype)]
        yield from programs.as_arrays(power, *pairs(values, values[values >= 0]))
        for exponent in few[few >= 0]:
            yield _with_constant(power[0], values, exponent)
    if KIND[dtype] == "complex":
        # NumPy multiplies out what is whole.
        for exponent in np.array([0, 1, 2, 3, 5, -1, -2], dtype):
            yield _with_constant(_binary_function("power", dtype), values, exponent)
    if KIND[dtype] == "float":
        exponents = np.array([0, 1, -1, 3, -10, 24, -24, 100, -130, 127, 128, 1023, 2000, -2100, 2**31 - 1, -(2**31)])
        scale = TableFunction(Binary("ldexp"), "ldexp", dtype, "exact", np.ldexp)
        yield from programs.as_arrays([scale], *pairs(values, exponents.astype(np.int32)))


def _with_constant(function: TableFunction, x: HostArray, number: HostArray) -> TableCase:
    """A function of an array and one number that is part of the program."""
    writer = ProgramWriter(x)
    position = writer.repeated(writer.constant(np.asarray(number)), x.shape)
    writer.want(function, (writer.arguments[0], position), (x, np.broadcast_to(number, x.shape)))
    return writer.case("constants")


def _is_looked_at(dtype: DType, amount: Amount) -> bool:
    """Whether a type is looked at in every form, which costs most of the time."""
    return amount == "all" or dtype in ("int32", "float32")


def _casts(dtype: DType, amount: Amount) -> Iterator[TableCase]:
    """Casts to every other type; what C leaves undefined is not compared."""
    functions = [
        TableFunction(Cast(target), f"cast to {target}", dtype, "exact", cast_reference(target),
                 unspecified=_beyond(dtype, target), moves=KIND[target] == "bool" and KIND[dtype] == "bool")
        for target in REFERENCE_DTYPES if target != dtype
    ]  # fmt: skip
    values = special_values(dtype)
    yield from programs.as_arrays(functions, values)
    if _is_looked_at(dtype, amount):
        yield from programs.only_constants(functions, few_values(dtype))
        yield from programs.as_scalars(functions, values if amount == "all" else few_values(dtype))
        yield from programs.as_constant_arrays(functions, np.tile(values, -(-300 // len(values))))


def _beyond(source: DType, target: DType) -> Any:
    """Where a float has no number of the target; `None` if there is no such float.

    C leaves that undefined, and NumPy's loops differ among themselves.
    """
    if KIND[source] not in ("float", "complex") or KIND[target] not in ("signed", "unsigned"):
        return None
    low, high = (-(2.0**31), 2.0**31) if ITEMSIZE[target] < 8 else (-(2.0**63), 2.0**63)
    if KIND[target] == "unsigned" and ITEMSIZE[target] >= 4:
        high *= 2

    def beyond(x: HostArray) -> HostArray:
        whole = np.trunc((x.real if x.dtype.kind == "c" else x).astype(np.float64))
        return np.asarray(~((whole >= low) & (whole < high)))

    return beyond


def _selections(dtype: DType) -> Iterator[TableCase]:
    a, b = pairs(few_values(dtype), special_values(dtype))
    choose = TableFunction(Select(), "select", dtype, "exact", np.where, moves=True)
    for offset in (0, 1):
        condition = np.arange(len(a)) % 2 == offset
        writer = ProgramWriter(condition, a, b)
        writer.want(choose, writer.arguments, (condition, a, b))
        for number in few_values(dtype)[: programs.OUTPUTS - 1]:
            position = writer.repeated(writer.constant(np.asarray(number)), a.shape)
            spread = np.broadcast_to(number, a.shape)
            writer.want(choose, (writer.arguments[0], writer.arguments[1], position), (condition, a, spread))
        yield writer.case("arrays and constants")


def _lines(dtype: DType) -> Iterator[TableCase]:
    """Reductions and scans along short lines of every pair, and along long ones that are equal but for one element."""
    for kind in ("sum", "prod", "max"):
        values = pair_values(dtype) if kind == "max" else summands(dtype)
        fill, odd = pairs(*2 * (_many(values, kind),))
        long = np.repeat(fill[:, None], 300, axis=1)
        long[:, 137] = odd
        for lines in (np.stack(pairs(values, values), axis=1), long):
            yield from programs.as_arrays([*_reductions(dtype, kind), *_scans(dtype, kind)], lines)
    rows = np.stack(pairs(pair_values(dtype), few_values(dtype)), axis=1)
    yield from programs.as_arrays(
        [
            TableFunction(Sort(1), "sort", dtype, "exact", lambda x: np.sort(x, axis=1, kind="stable")),
            TableFunction(Argsort(1), "argsort", dtype, "exact", lambda x: np.argsort(x, axis=1, kind="stable")),
        ],
        rows,
    )


def _many(values: HostArray, kind: str) -> HostArray:
    """Those values of which many give the same in every order.

    Products of other numbers may overflow or underflow in part, depending on the order.
    """
    some = values[:: -(-len(values) // 10)]
    if kind != "prod" or values.dtype.kind not in "fc":
        return some
    steady = [1, -1] if values.dtype.kind == "c" else [0, 1, -1, np.inf, -np.inf]
    return values[np.isin(values, steady) | (np.isnan(values) & (values.dtype.kind == "f"))]


def _reductions(dtype: DType, kind: str) -> list[TableFunction]:
    names = {"sum": ("any",), "prod": ("all",)} if dtype == "bool" else {"sum": ("sum",), "prod": ("prod",)}
    return [
        _line(Reduce(fn, (1,)), f"reduce {fn}", fn, dtype, _reduced(fn))  # type: ignore[arg-type]
        for fn in names.get(kind, ("max", "min", "argmax", "argmin"))
    ]


def _reduced(fn: str) -> Any:
    """NumPy's reduction along the last axis, in the type of its operand."""

    def reduced(x: HostArray) -> Any:
        options = {"dtype": x.dtype} if fn in ("sum", "prod") else {}
        return getattr(np, fn)(x, axis=-1, **options)

    return reduced


def _scans(dtype: DType, kind: str) -> list[TableFunction]:
    if dtype == "bool":
        return []
    names = ("max", "min") if kind == "max" else (kind,)
    return [_line(Scan(fn, 1), f"scan {fn}", fn, dtype, scan_reference(fn)) for fn in names]  # type: ignore[arg-type]


def _line(op: Primitive, what: str, fn: str, dtype: DType, reference: Any) -> TableFunction:
    """A reduction or scan with its rule: sums and products are rounded, everything else is exact."""
    rule: Rule = "sum" if fn in ("sum", "prod") and is_inexact(dtype) else "exact"
    return TableFunction(op, what, dtype, rule, reference, any_zero=fn in ("max", "min"))


# -- the table on a device: how much was compared, and what differs


#: Elements of one output that are named.
_NAMED = 3


class Computer(Protocol):
    """Something that runs programs of the table; a worker is one."""

    def supports(self, program: Program) -> list[Lack]: ...

    def run(self, program: Program, arguments: Any) -> Any: ...


class Difference(msgspec.Struct, frozen=True):
    """One output of a program with elements that differ from NumPy's, and some of them as examples."""

    form: str
    what: str
    dtype: str
    #: Of one output: elements that differ, and how many it has.
    differ: int
    elements: int
    examples: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.what} of {self.dtype}, {self.form}: {self.differ} of {self.elements} differ: " + "; ".join(
            self.examples
        )


class Tally(msgspec.Struct):
    """Counts of what was compared on a device, and all differences."""

    programs: int = 0
    comparisons: int = 0
    #: Elements whose primitive the device lacks, so that NumPy computed them.
    hosted: int = 0
    hosted_functions: dict[str, int] = {}
    by_form: dict[str, int] = {}
    differences: list[Difference] = []

    @property
    def differing(self) -> int:
        """The elements that differ, in all."""
        return sum(each.differ for each in self.differences)


def tally(cases: Iterable[TableCase], computer: Callable[[], Computer]) -> Tally:
    """Runs all cases on whatever `computer()` gives then, and counts: a worker that has died is replaced."""
    found = Tally()
    for case in cases:
        found.programs += 1
        _compare(case, computer, found)
    return found


def _compare(case: TableCase, computer: Callable[[], Computer], found: Tally) -> None:
    """Runs one case and counts its results.

    A program that raises is run again output by output, to find the one that does.
    """
    try:
        worker = computer()
        lacking = {lack.node for lack in worker.supports(case.program)}
        results = worker.run(case.program, case.inputs).results
    except Exception as error:  # noqa: BLE001 - whatever an engine raises is a finding
        if len(case.checks) > 1:
            for output, check in zip(case.program.outputs, case.checks, strict=True):
                program = without_dead_code(
                    Program.trusted(case.program.nodes, (output,), case.program.specs, case.program.lines)
                )
                _compare(TableCase(case.form, program, case.inputs, (check,)), computer, found)
            return
        sentence = f"raised {type(error).__name__}: {str(error)[:200]}"
        _note(found, case, case.checks[0], 1, case.program.results[0].size, (sentence,))
        return
    count(case, lacking, results, found)


def count(case: TableCase, lacking: set[int], results: Sequence[HostArray], found: Tally) -> None:
    """Add the results of one case. What the device lacks, and what takes a value from there, is not compared."""
    lacking = _depending(case.program, lacking)
    for output, check, got in zip(case.program.outputs, case.checks, results, strict=True):
        if output in lacking:
            found.hosted += got.size
            counts = Counter(found.hosted_functions)
            counts[f"{check.what} of {check.dtype}"] += got.size
            found.hosted_functions = dict(counts)
            continue
        try:
            differs, expected, compared = wrong(check, np.asarray(got))
        except TypeError as error:
            _note(found, case, check, got.size, got.size, (str(error),))
            continue
        found.comparisons += compared
        found.by_form[case.form] = found.by_form.get(case.form, 0) + compared
        if differs.any():
            examples = tuple(
                _example(check, expected, got, index)
                for index in list(zip(*np.nonzero(np.atleast_1d(differs)), strict=True))[:_NAMED]
            )
            _note(found, case, check, int(np.count_nonzero(differs)), got.size, examples)


def _depending(program: Program, lacking: set[int]) -> set[int]:
    """What the device lacks, and what takes a value from there."""
    found = set(lacking)
    for position, node in enumerate(program.nodes):
        if any(source in found for source in node.inputs):
            found.add(position)
    return found


def _example(check: Check, expected: HostArray, got: HostArray, index: tuple[Any, ...]) -> str:
    """An element that differs: its operands, what was expected, and what came."""
    place = tuple(int(each) for each in index)[: expected.ndim]
    operands = [
        values[place] if values.shape == expected.shape else values[place[:1]] if values.ndim else values
        for values in check.operands
    ]
    shown = ", ".join(_shown(each) for each in operands)
    return f"({shown}) is {_shown(expected[place])}, came {_shown(got[place])}"


def _shown(value: Any) -> str:
    if isinstance(value, np.ndarray) and value.ndim:
        return f"[{', '.join(_shown(each) for each in value[:3])}{', …' if len(value) > 3 else ''}]"
    return repr(value.item()) if isinstance(value, np.ndarray | np.generic) else repr(value)


def _note(found: Tally, case: TableCase, check: Check, differ: int, size: int, examples: tuple[str, ...]) -> None:
    """Records a difference."""
    found.differences.append(Difference(case.form, check.what, check.dtype, differ, size, examples))
