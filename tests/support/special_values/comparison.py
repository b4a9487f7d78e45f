"""The values of the table, by type, and what a result of them is checked against: plain NumPy.

First the values, then what each primitive means in plain NumPy, then `Check` and how a result is compared with it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np

from anygpu.agreement.elementwise import tolerance_of
from anygpu.base.typing import HostArray
from anygpu.program.dtypes import ITEMSIZE, KIND, REAL_PART, DType, is_inexact
from anygpu.program.functions import FUNCTIONS
from anygpu.testing.verify.special_values import complex_values, special_values

# -- the values of the table, by type


def few_values(dtype: DType) -> HostArray:
    """Those that compilers fold most eagerly, the first ones most: for what costs a kernel each, or for each pair."""
    match KIND[dtype]:
        case "signed" | "unsigned":
            limits = np.iinfo(dtype)
            signed = KIND[dtype] == "signed"
            numbers = [0, -1 if signed else limits.max, 8 * ITEMSIZE[dtype], limits.min if signed else 1]
            numbers += [-2, limits.max, 1] if signed else []
            return np.array([*numbers, 2, 3, 8 * ITEMSIZE[dtype] - 1], dtype)
        case "float":
            facts = np.finfo(dtype)
            return np.array([0.0, -0.0, np.inf, np.nan, -1, 1, -np.inf, 0.5, 2, -3, facts.max, facts.tiny], dtype)
        case "complex":
            return complex_values(dtype, np.array([0.0, -0.0, 1, np.inf, np.nan], REAL_PART[dtype]))
    return special_values(dtype)


def pair_values(dtype: DType) -> HostArray:
    """Those that are taken in every pair."""
    if KIND[dtype] == "complex":
        return complex_values(dtype, np.array([0.0, -0.0, 1, -2.5, np.inf, -np.inf, np.nan], REAL_PART[dtype]))
    return special_values(dtype)


def summands(dtype: DType) -> HostArray:
    """Those whose sums and products are the same in every order, apart from rounding."""
    if KIND[dtype] not in ("float", "complex"):
        return special_values(dtype)
    parts = np.array([0.0, -0.0, 1, -1, 0.5, np.inf, -np.inf, np.nan], REAL_PART.get(dtype, dtype))
    return parts if KIND[dtype] == "float" else complex_values(dtype, parts[[0, 1, 2, 4, 5, 7]])


# -- what each primitive means in plain NumPy
#
# Written without the engine that interprets programs with it.


_UNARY: dict[str, Callable[[HostArray], Any]] = {
    "erf": lambda x: np.array([math.erf(each) for each in x.ravel().tolist()]).reshape(x.shape).astype(x.dtype),
    "real": lambda x: x.real,
    "imag": lambda x: x.imag,
    "mantissa": lambda x: np.frexp(x)[0],
    "exponent": lambda x: np.frexp(x)[1],
}


def unary_reference(fn: str) -> Callable[[HostArray], Any]:
    """The function of one operand in plain NumPy."""
    found = _UNARY.get(fn)
    return found if found is not None else getattr(np, FUNCTIONS[fn].numpy_name)


def binary_reference(fn: str) -> Callable[[HostArray, HostArray], Any]:
    """The function of two operands in plain NumPy."""
    if fn == "complex":
        return _complex_reference
    return getattr(np, FUNCTIONS[fn].numpy_name)  # type: ignore[no-any-return]


def _complex_reference(x: HostArray, y: HostArray) -> HostArray:
    """A complex number of two parts, made without arithmetic."""
    result = np.empty(x.shape, np.complex128 if x.dtype == np.float64 else np.complex64)
    result.real, result.imag = x, y
    return result


def cast_reference(target: DType) -> Callable[[HostArray], Any]:
    """The cast in plain NumPy; of complex numbers the real part, as the primitive has it."""

    def cast(x: HostArray) -> HostArray:
        real = x.dtype.kind == "c" and KIND[target] not in ("complex", "bool")
        return np.asarray(x.real if real else x).astype(target)

    return cast


def scan_reference(fn: str) -> Callable[[HostArray], Any]:
    """The running reduction along axis 1 in plain NumPy."""
    ufunc = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}[fn]
    return lambda x: ufunc.accumulate(x, axis=1, dtype=x.dtype)


# -- what a result is checked against
#
# Plain NumPy's, exactly or within the published tolerance of one operation.


#: exact: no rounding happens, or it is part of what is asked. The others are classes of the published table;
#: `several` is a few functions one after the other.
Rule = Literal["exact", "arithmetic", "function", "sum", "several"]


class Check(NamedTuple):
    """One output of a program: what it is, and what plain NumPy makes of the same operands."""

    what: str
    dtype: DType
    rule: Rule
    reference: Callable[..., Any]
    operands: tuple[HostArray, ...]
    #: Two zeros of unequal sign: NumPy gives either, depending on the processor and the length of the array.
    any_zero: bool = False
    #: Bits are only moved, so that numbers below the smallest normal one stay.
    moves: bool = False
    #: Where NumPy leaves it to C, and C to the processor.
    unspecified: Callable[..., HostArray] | None = None

    def expected(self, operands: tuple[HostArray, ...] | None = None) -> HostArray:
        """The result of plain NumPy, without its warnings; of other operands if some are given."""
        with np.errstate(all="ignore"):
            return np.asarray(self.reference(*(self.operands if operands is None else operands)))


def wrong(check: Check, got: HostArray) -> tuple[HostArray, HostArray, int]:
    """Where a result differs beyond the tolerance, what was expected, and how many elements were compared.

    Elements that C leaves open are not compared, and operands below the smallest normal number may count as 0. Raises
    `TypeError` for another dtype or shape.
    """
    expected = check.expected()
    if got.dtype != expected.dtype or got.shape != expected.shape:
        raise TypeError(f"{expected.dtype.name}{list(expected.shape)} expected, {got.dtype.name}{list(got.shape)} came")
    differs = ~_agree(check, expected, got)
    compared = expected.size
    if check.unspecified is not None:
        free = check.unspecified(*check.operands)
        differs &= ~free
        compared -= int(np.count_nonzero(free))
    if differs.any() and not check.moves:
        for operands in _flushed(check.operands):
            differs &= ~_agree(check, check.expected(operands), got)
    return differs, expected, compared


def _agree(check: Check, expected: HostArray, got: HostArray) -> HostArray:
    """Where a result is as near as the rule of its check allows; complex numbers part by part."""
    dtype: DType = expected.dtype.name  # type: ignore[assignment]
    if not is_inexact(dtype):
        return np.asarray(expected == got)
    rule = "function" if check.rule == "several" else check.rule
    relative = 0.0 if rule == "exact" else tolerance_of(rule, dtype) * (8 if check.rule == "several" else 1)
    absolute = 0.0 if check.rule in ("exact", "arithmetic") else relative
    if expected.dtype.kind != "c":
        return _real_agree(check, expected, got, relative, absolute, None)
    if check.rule not in ("exact", "arithmetic"):
        expected, got = _without_free_signs(expected, got)
    # A part is as exact as the number that it is a part of; beside what is not finite, as exact as itself.
    with np.errstate(all="ignore"):
        size = np.abs(expected.astype(np.complex128))
    both = _real_agree(check, expected.real, got.real, relative, absolute, size) & _real_agree(
        check, expected.imag, got.imag, relative, absolute, size
    )
    # Beside NaN, C leaves the sign of a zero or infinity open, and NumPy's differs between one number and many.
    beside = _beside_nan(expected.real, got.real, expected.imag, got.imag) | _beside_nan(
        expected.imag, got.imag, expected.real, got.real
    )
    return np.asarray(both | (beside & (check.rule != "exact")))


def _beside_nan(expected: HostArray, got: HostArray, other_expected: HostArray, other_got: HostArray) -> HostArray:
    """Where one part is NaN in both, and the other a zero or infinity that may have either sign."""
    extreme = (other_expected == 0) | np.isinf(other_expected)
    return np.asarray(np.isnan(expected) & np.isnan(got) & extreme & (np.abs(other_expected) == np.abs(other_got)))


def _without_free_signs(expected: HostArray, got: HostArray) -> tuple[HostArray, HostArray]:
    """Both values with positive zeros and infinities beside a part that is NaN: C leaves their sign open."""
    both = []
    for values in (expected.copy(), got.copy()):
        for part, other in ((values.real, values.imag), (values.imag, values.real)):
            np.copyto(part, np.abs(part), where=np.isnan(other) & ((part == 0) | np.isinf(part)))
        both.append(values)
    return both[0], both[1]


def _real_agree(
    check: Check, expected: HostArray, got: HostArray, relative: float, absolute: float, size: HostArray | None
) -> HostArray:
    """Where real numbers agree: equal with the sign of zero, both NaN, both tiny, or within the tolerance.

    `size` is the size of the complex number that they are parts of.
    """
    facts = np.finfo(expected.dtype)
    agree = np.isnan(expected) & np.isnan(got)
    same_sign = np.signbit(expected) == np.signbit(got)
    agree |= (expected == got) & (same_sign | (expected != 0) | check.any_zero)
    if not check.moves:
        # Below the smallest normal number some devices have only 0, of the same sign; or all are equal to 0 and stay.
        agree |= (np.abs(expected) < facts.tiny) & (np.abs(got) < facts.tiny) & (same_sign | (got != 0))
    if relative:
        with np.errstate(all="ignore"):
            one, other = expected.astype(np.float64), got.astype(np.float64)
            scale = np.abs(one) if size is None else np.where(np.isfinite(size), size, np.abs(one))
            allowed = absolute + relative * scale + float(facts.tiny)
            both_zero = (expected == 0) & (got == 0)
            near = (np.abs(one - other) <= allowed) & np.isfinite(one) & np.isfinite(other)
            agree |= near & ~both_zero
            # Beyond the largest number is infinity, and which side of that limit a rounding takes is within it, too.
            limit = float(facts.max) * (1 - relative)
            agree |= same_sign & (np.abs(one) >= limit) & (np.abs(other) >= limit)
    return np.asarray(agree)


def _flushed(operands: tuple[HostArray, ...]) -> list[tuple[HostArray, ...]]:
    """The operands as devices see them that have only 0 below the smallest normal number: some of them, or all."""
    choices = []
    for values in operands:
        small = _without_subnormals(values)
        choices.append([values] if small is values else [values, small])
    return list(itertools.product(*choices))[1:]


def _without_subnormals(values: HostArray) -> HostArray:
    """The values with zeros of the same sign for subnormal numbers; the same object if there are none."""
    dtype: DType = values.dtype.name  # type: ignore[assignment]
    if not is_inexact(dtype):
        return values
    result = values.copy()
    tiny = np.finfo(REAL_PART.get(dtype, dtype)).tiny
    for part in (result.real, result.imag) if result.dtype.kind == "c" else (result,):
        with np.errstate(all="ignore"):
            np.copyto(part, np.copysign(np.zeros_like(part), part), where=(np.abs(part) < tiny))
    return values if result.tobytes() == values.tobytes() else result
