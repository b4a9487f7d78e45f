"""Functions of numbers that NumPy has beside its ufuncs."""

from __future__ import annotations

import builtins
import math
from typing import Any

import numpy as np

from anygpu.array.core.array import Array, as_array
from anygpu.array.core.overrides import implements
from anygpu.array.core.recording import normal_axis
from anygpu.array.functions import elementwise as ew
from anygpu.array.functions import selection
from anygpu.array.functions.concatenation import concat
from anygpu.array.functions.differences import diff
from anygpu.array.functions.manipulation import ravel
from anygpu.array.functions.products import vecdot
from anygpu.array.functions.reductions import cumsum


@implements(np.angle)
def angle(z: Any, deg: bool = False) -> Array:
    """The angle of complex numbers, from -π to π."""
    x = as_array(z)
    if x.dtype.kind == "b":
        x = x.astype(np.int64)
    result = ew.atan2(ew.imag(x), ew.real(x))
    return ew.rad2deg(result) if deg else result


@implements("fix")
def fix(x: Any) -> Array:
    """The next whole number towards zero."""
    return ew.trunc(x)


#: Before NumPy 2.3, the sinc of a zero of 16 bits is no number.
with np.errstate(invalid="ignore"):
    _SINC_KNOWS_HALVES = bool(np.sinc(np.float16(0)) == 1)


@implements(np.sinc)
def sinc(x: Any) -> Array:
    """sin(πx) / (πx), and 1 at zero."""
    scaled: Array = math.pi * as_array(x)
    # NumPy's own way: small enough that the quotient is 1, and large enough to be a number of the type.
    knows = scaled.dtype.kind == "f" and (scaled.dtype.itemsize > 2 or _SINC_KNOWS_HALVES)
    small = float(np.finfo(scaled.dtype).eps) if knows else 1e-20
    scaled = selection.where(scaled != 0, scaled, small)
    return ew.sin(scaled) / scaled


@implements(np.nan_to_num)
def nan_to_num(
    x: Any, copy: bool = True, nan: Any = 0.0, posinf: float | None = None, neginf: float | None = None
) -> Array:
    """NaN as zero and infinities as the largest numbers there are, or as what is given."""
    y = as_array(x)
    if y.dtype.kind == "c":
        parts = [nan_to_num(part, True, nan, posinf, neginf) for part in (ew.real(y), ew.imag(y))]
        return parts[0] + parts[1] * 1j
    if y.dtype.kind != "f":
        return Array(y._value) if copy or y._is_number else y
    limits = np.finfo(y.dtype)
    highest = float(limits.max) if posinf is None else posinf
    lowest = float(limits.min) if neginf is None else neginf
    result = selection.where(ew.isnan(y), nan, y)
    result = selection.where(isposinf(y), highest, result)
    result = selection.where(isneginf(y), lowest, result).astype(y.dtype)
    if not copy and not y._is_number:
        y._assign(result)
    # NumPy gives a number for an array without axes, whether it was changed or not.
    return result if copy or not y.shape else y


@implements(np.isposinf)
def isposinf(x: Any, out: Array | None = None) -> Array:
    y = as_array(x)
    _refuse_complex(y, "isposinf")
    return ew.logical_and(ew.isinf(y), y > 0)


@implements(np.isneginf)
def isneginf(x: Any, out: Array | None = None) -> Array:
    y = as_array(x)
    _refuse_complex(y, "isneginf")
    return ew.logical_and(ew.isinf(y), y < 0)


def _refuse_complex(x: Array, name: str) -> None:
    if x.dtype.kind == "c":
        raise TypeError(f"{name} is not defined for complex numbers: ask for x.real and x.imag.")


@implements(np.isreal)
def isreal(x: Any) -> Array:
    """Whether the imaginary part is zero."""
    return ew.imag(as_array(x)) == 0


@implements(np.iscomplex)
def iscomplex(x: Any) -> Array:
    """Whether the imaginary part is not zero."""
    return ew.imag(as_array(x)) != 0


@implements(np.isrealobj)
def isrealobj(x: Any) -> bool:
    return as_array(x).dtype.kind != "c"


@implements(np.iscomplexobj)
def iscomplexobj(x: Any) -> bool:
    return as_array(x).dtype.kind == "c"


@implements(np.real_if_close)
def real_if_close(a: Any, tol: float = 100) -> Array:
    """Without the imaginary parts, when all of them are tiny. That depends on the values, so it computes."""
    x = as_array(a)
    if x.dtype.kind != "c":
        return x
    small = tol * float(np.finfo(x.dtype).eps) if tol > 1 else tol
    return ew.real(x) if builtins.bool(np.all(np.abs(np.asarray(ew.imag(x))) < small)) else x


@implements(np.unwrap)
def unwrap(p: Any, discont: float | None = None, axis: int = -1, *, period: float = 2 * math.pi) -> Array:
    """Angles without jumps: each is moved by whole periods to lie near the one before."""
    x = as_array(p)
    axis = normal_axis(axis, x.ndim)
    steps = diff(x, axis=axis)
    dtype = np.result_type(x.dtype, period)
    limit = period / 2 if discont is None else discont
    whole = dtype.kind in "iu"
    high = period // 2 if whole else period / 2
    boundary = (period % 2 == 0) if whole else True
    moved = ew.remainder(steps + high, period) - high
    if boundary:
        moved = selection.where(ew.logical_and(moved == -high, steps > 0), high, moved)
    correction = selection.where(ew.abs(steps) < limit, 0, moved - steps)
    first = tuple(slice(0, 1) if each == axis else slice(None) for each in range(x.ndim))
    rest = tuple(slice(1, None) if each == axis else slice(None) for each in range(x.ndim))
    moved_rest: Array = x[rest] + cumsum(correction, axis=axis)
    result: Array = concat([x[first].astype(dtype), moved_rest.astype(dtype)], axis=axis)
    return result


@implements(np.vdot)
def vdot(a: Any, b: Any) -> Array:
    """The sum of products of all elements, the first side conjugated."""
    return vecdot(ravel(as_array(a)), ravel(as_array(b)))
