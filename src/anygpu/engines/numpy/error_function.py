"""The error function of NumPy's arrays, which NumPy itself does not have."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from anygpu.base.typing import HostArray

#: x · P(x²) / Q(x²) is erf(x) for |x| <= 4 within 2.1e-9 of its value; both from the highest power. Fitted by least
#: squares on Chebyshev nodes, weighted anew until the largest relative error stopped falling.
_ABOVE = (
    -1.3202290191287716e-08,
    4.684790306346598e-06,
    0.00037960923456966777,
    0.0038496084590021406,
    0.054316908482114776,
    0.18520311005212492,
    1.1283791693792438,
)
_BELOW = (6.311069851714495e-05, 0.0013075697257066878, 0.015462085081161595, 0.11395838051470077, 0.49746539667094497)
#: Elements at a time: what is needed for them stays in the processor's cache.
_STRETCH = 1 << 14


def erf(x: HostArray) -> HostArray:
    """The error function of floats. In single precision and less it is at most 0.54 of a last digit away."""
    if x.dtype.itemsize > 4:
        return np.fromiter(map(math.erf, x.ravel().tolist()), np.float64, x.size).reshape(x.shape)
    result = np.empty(x.shape, x.dtype)
    given, made = x.reshape(-1), result.reshape(-1)
    for start in range(0, x.size, _STRETCH):
        made[start : start + _STRETCH] = _quotient(given[start : start + _STRETCH].astype(np.float64))
    return result


def _quotient(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    np.clip(x, -4, 4, out=x)
    square = x * x
    above, below = np.full_like(x, _ABOVE[0]), np.full_like(x, _BELOW[0])
    for coefficient in _ABOVE[1:]:
        above *= square
        above += coefficient
    for coefficient in (*_BELOW[1:], 1.0):
        below *= square
        below += coefficient
    above *= x
    above /= below
    return above
