"""Whether results are as accurate as NumPy's, judged by the same program in double precision.

The error bounds of `analysis` hold for every input, so that for a softmax behind a product of matrices they allow
anything, and they take tens of times as long as the program. Where floats have 32 bits or fewer there is another way:
in 64 bits NumPy gives what is exact by comparison, and both results can be held against that. A result that is as near
to it as NumPy's is as right as NumPy's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from anygpu.base.float_errors import float_errors_ignored
from anygpu.base.typing import HostArray
from anygpu.engines.numpy import lowering
from anygpu.program.dtypes import is_inexact
from anygpu.program.graph import Program
from anygpu.program.precision import WIDER, in_double_precision

#: How many times NumPy's error another result may have, and units in the last place that it may have in any case.
_TIMES, _UNITS = 4.0, 4.0
#: Where NumPy itself is this far from exact, relative to the result, being as near says nothing.
_MOST_ERROR = 1e-2
#: Whole numbers that may differ, by 1: as many as twice those that NumPy rounds to the other side, and this share.
_MOST_DIFFERENT = 0.01
_FEW = 8


def is_as_accurate(
    program: Program, inputs: Sequence[HostArray], expected: Sequence[HostArray], results: Sequence[HostArray]
) -> bool:
    """Whether every result of a device is as near to exact as NumPy's; `False` also where that cannot be told.

    `expected` and `results` are those of the program, in its order.
    """
    narrow = [spec.dtype for spec in program.specs if spec.dtype in WIDER]
    if not narrow or any(is_inexact(spec.dtype) and spec.dtype not in WIDER for spec in program.specs):
        return False
    double = in_double_precision(program)
    if double is None:
        return False
    wide = [np.asarray(each, spec.dtype) for each, spec in zip(inputs, double.inputs, strict=True)]
    exact = lowering.run(double, wide)
    return all(map(_is_as_near, exact, expected, results))


@float_errors_ignored
def _is_as_near(exact: HostArray, one: HostArray, other: HostArray) -> bool:
    """Whether `other` is as near to `exact` as `one` is."""
    if one.dtype.kind not in "fc":
        return _are_as_whole(exact, one, other)
    if not one.size:
        return True
    if not (np.isfinite(one).all() and np.isfinite(other).all() and np.isfinite(exact).all()):
        return False
    size = np.abs(exact)
    unit = np.finfo(one.dtype).eps * size + np.finfo(one.dtype).tiny
    ours, theirs = _errors(one, exact) / unit, _errors(other, exact) / unit
    most = float(ours.max())
    if most * np.finfo(one.dtype).eps > _MOST_ERROR:
        return False
    if theirs.max() > _TIMES * most + _UNITS:
        return False
    # The largest error may be that of one element: most are to be as near as most of NumPy's are.
    usual = [float(np.quantile(each, 0.99)) for each in (ours, theirs)]
    return usual[1] <= _TIMES * usual[0] + _UNITS


def _errors(values: HostArray, exact: HostArray) -> npt.NDArray[Any]:
    found: npt.NDArray[Any] = np.abs(values.astype(exact.dtype) - exact)
    return found


def _are_as_whole(exact: HostArray, one: HostArray, other: HostArray) -> bool:
    """The same of whole numbers: each is NumPy's, or its neighbour where rounding decided."""
    different = one != other
    count = int(np.count_nonzero(different))
    if not count:
        return True
    if one.dtype.kind == "b" or count > _MOST_DIFFERENT * one.size:
        return False
    apart = np.abs(one[different].astype(np.float64) - other[different].astype(np.float64))
    other_side = int(np.count_nonzero(one != exact))
    return bool(apart.max() <= 1) and int(np.count_nonzero(other != exact)) <= 2 * other_side + _FEW
