"""What a result is checked against: plain NumPy's, exactly or within the published tolerance of one operation."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np

from anygpu.agreement.tolerances import tolerance_of
from anygpu.base.typing import HostArray
from anygpu.program.dtypes import REAL_PART, DType, is_inexact

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
        with np.errstate(all="ignore"):
            return np.asarray(self.reference(*(self.operands if operands is None else operands)))


def wrong(check: Check, got: HostArray) -> tuple[HostArray, HostArray, int]:
    """Where a result differs beyond the tolerance, what was expected, and how many elements were compared."""
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
    extreme = (other_expected == 0) | np.isinf(other_expected)
    return np.asarray(np.isnan(expected) & np.isnan(got) & extreme & (np.abs(other_expected) == np.abs(other_got)))


def _without_free_signs(expected: HostArray, got: HostArray) -> tuple[HostArray, HostArray]:
    """Beside a part that is NaN, C leaves the sign of a zero or an infinity open."""
    both = []
    for values in (expected.copy(), got.copy()):
        for part, other in ((values.real, values.imag), (values.imag, values.real)):
            np.copyto(part, np.abs(part), where=np.isnan(other) & ((part == 0) | np.isinf(part)))
        both.append(values)
    return both[0], both[1]


def _real_agree(
    check: Check, expected: HostArray, got: HostArray, relative: float, absolute: float, size: HostArray | None
) -> HostArray:
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
    dtype: DType = values.dtype.name  # type: ignore[assignment]
    if not is_inexact(dtype):
        return values
    result = values.copy()
    tiny = np.finfo(REAL_PART.get(dtype, dtype)).tiny
    for part in (result.real, result.imag) if result.dtype.kind == "c" else (result,):
        with np.errstate(all="ignore"):
            np.copyto(part, np.copysign(np.zeros_like(part), part), where=(np.abs(part) < tiny))
    return values if result.tobytes() == values.tobytes() else result
