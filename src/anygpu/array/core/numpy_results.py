"""The memory of what NumPy's functions return: new, a view or the argument itself; its order; and results without axes.

The rows are written by `scripts/views-and-copies`, which asks NumPy with arrays of many memory layouts. Results of
traced functions are made accordingly.
"""

from __future__ import annotations

import operator
from functools import cache
from typing import Any, Literal, NamedTuple

import numpy as np

#: How the axes of a new array lie in memory:
#: "C": in C order;
#: "operands": as the axes of all operands lie, by the rule of NumPy's ufuncs;
#: "like": as the axes of the first operand lie, as `np.empty_like` has it;
#: "contiguous": in Fortran order if the first operand is contiguous in that order alone, otherwise in C order;
#: "reduced": as the axes of the operand that are left lie;
#: "ask": as in none of these; NumPy is asked with small arrays, unless all operands lie in C order;
#: "odd": as "ask", also where all operands lie in C order.
Order = Literal["C", "operands", "like", "contiguous", "reduced", "ask", "odd"]

#: What a new result without axes is: "as operand" is an array for an array, and a number for a number.
WithoutAxes = Literal["array", "number", "as operand"]


class Returns(NamedTuple):
    """One function's results: whose memory they have, in which order, and whether they are numbers without axes."""

    #: For arguments with axes, all that was seen: "itself", "view", "new" and "number", joined by "or".
    memory: str
    order: Order
    without_axes: WithoutAxes


# -- written by scripts/views-and-copies (NumPy 2.4)

# fmt: off
#: Where the memory of a result is, the rule for the order of its axes, what it is without axes; for whom.
_ROWS: tuple[tuple[str, Order, WithoutAxes, str], ...] = (
    ("", "C", "number", """
        np.allclose
    """),
    ("itself", "C", "array", """
        np.asanyarray
    """),
    ("itself", "C", "number", """
        ndarray.conjugate np.atleast_1d
    """),
    ("itself or new", "C", "number", """
        np.ascontiguousarray
    """),
    ("itself or new", "ask", "array", """
        np.array
    """),
    ("itself or new", "ask", "number", """
        np.linalg.matrix_power
    """),
    ("itself or new", "like", "array", """
        np.asarray
    """),
    ("itself or new", "like", "as operand", """
        ndarray.astype np.astype
    """),
    ("itself or new", "like", "number", """
        np.nan_to_num
    """),
    ("itself or new", "operands", "array", """
        np.real_if_close
    """),
    ("itself or new", "operands", "number", """
        ndarray.conj
    """),
    ("itself or view", "C", "number", """
        ndarray.real ndarray.squeeze np.atleast_2d np.atleast_3d np.real np.squeeze
    """),
    ("itself or view or new", "odd", "array", """
        np.broadcast_arrays
    """),
    ("new", "C", "array", """
        np.apply_along_axis np.cov np.isin np.linalg.tensordot np.resize np.select np.tensordot
    """),
    ("new", "C", "number", """
        ndarray.argpartition ndarray.argsort ndarray.choose ndarray.flatten ndarray.repeat ndarray.take
        np.argpartition np.argsort np.bincount np.choose np.compress np.convolve np.correlate np.cross
        np.diagflat np.digitize np.ediff1d np.fft.fftfreq np.fft.rfftfreq np.histogram np.interp np.iscomplex
        np.kron np.lexsort np.linalg.cross np.linalg.outer np.linalg.tensorinv np.linalg.tensorsolve np.outer
        np.packbits np.polyder np.polyfit np.polyint np.polymul np.repeat np.searchsorted np.take_along_axis
        np.vander
    """),
    ("new", "ask", "array", """
        np.roll
    """),
    ("new", "ask", "number", """
        ndarray.cumprod ndarray.cumsum np.add.outer np.add.reduceat np.append np.column_stack np.concatenate
        np.cumprod np.cumsum np.dstack np.geomspace np.hstack np.linalg.cholesky np.linalg.eigh
        np.linalg.eigvalsh np.linalg.inv np.linalg.pinv np.linalg.qr np.linalg.solve np.linalg.svd
        np.linalg.svdvals np.linspace np.logspace np.matvec np.nancumprod np.nancumsum np.round np.sort np.stack
        np.tril np.triu np.vecmat np.vstack
    """),
    ("new", "contiguous", "array", """
        np.pad
    """),
    ("new", "contiguous", "number", """
        ndarray.round np.around np.delete np.insert np.isreal np.unpackbits
    """),
    ("new", "like", "array", """
        np.copy np.fft.fftn np.fft.ifftn np.full_like np.ones_like np.piecewise
    """),
    ("new", "like", "as operand", """
        ndarray.copy
    """),
    ("new", "like", "number", """
        np.block np.empty_like np.fft.fft np.fft.fft2 np.fft.fftshift np.fft.ifft np.fft.ifft2 np.fft.ifftshift
        np.fft.ihfft np.fft.irfft np.fft.irfft2 np.fft.irfftn np.fft.rfft np.fft.rfft2 np.fft.rfftn np.gradient
        np.partition np.polyval np.sort_complex np.unwrap
    """),
    ("new", "odd", "array", """
        np.zeros_like
    """),
    ("new", "odd", "number", """
        np.histogram2d np.histogramdd np.unravel_index
    """),
    ("new", "operands", "array", """
        np.where
    """),
    ("new", "operands", "number", """
        ndarray.clip np.absolute np.add np.add.accumulate np.angle np.apply_over_axes np.arccos np.arccosh
        np.arcsin np.arcsinh np.arctan np.arctan2 np.arctanh np.bitwise_and np.bitwise_count np.bitwise_or
        np.bitwise_xor np.cbrt np.ceil np.clip np.conjugate np.copysign np.cos np.cosh np.cumulative_prod
        np.cumulative_sum np.deg2rad np.degrees np.diff np.divide np.divmod np.equal np.exp np.exp2 np.expm1
        np.fabs np.fft.hfft np.fix np.float_power np.floor np.floor_divide np.fmax np.fmin np.fmod np.frexp
        np.gcd np.greater np.greater_equal np.heaviside np.hypot np.invert np.isclose np.isfinite np.isinf
        np.isnan np.isneginf np.isposinf np.lcm np.ldexp np.left_shift np.less np.less_equal np.log np.log10
        np.log1p np.log2 np.logaddexp np.logaddexp2 np.logical_and np.logical_not np.logical_or np.logical_xor
        np.maximum np.minimum np.modf np.multiply np.negative np.nextafter np.not_equal np.polyadd np.polysub
        np.positive np.power np.rad2deg np.radians np.ravel_multi_index np.reciprocal np.remainder
        np.right_shift np.rint np.sign np.signbit np.sin np.sinc np.sinh np.spacing np.sqrt np.square
        np.subtract np.tan np.tanh np.trunc
    """),
    ("new or number", "C", "number", """
        ndarray.argmax ndarray.argmin ndarray.dot ndarray.trace np.argmax np.argmin np.corrcoef np.dot np.inner
        np.linalg.lstsq np.linalg.multi_dot np.nanargmax np.nanargmin np.nanpercentile np.percentile np.take
        np.trace
    """),
    ("new or number", "ask", "number", """
        np.linalg.cond np.linalg.det np.linalg.matmul np.linalg.matrix_norm np.linalg.matrix_rank
        np.linalg.slogdet np.linalg.trace np.linalg.vecdot np.matmul np.trapezoid np.vecdot
    """),
    ("new or number", "reduced", "number", """
        ndarray.all ndarray.any ndarray.max ndarray.mean ndarray.min ndarray.prod ndarray.std ndarray.sum
        ndarray.var np.add.reduce np.all np.amax np.amin np.any np.average np.count_nonzero np.linalg.norm
        np.linalg.vector_norm np.max np.mean np.median np.min np.nanmax np.nanmean np.nanmedian np.nanmin
        np.nanprod np.nanstd np.nansum np.nanvar np.prod np.ptp np.std np.sum np.var
    """),
    ("number", "C", "number", """
        ndarray.searchsorted np.nanquantile np.quantile np.vdot
    """),
    ("view", "C", "number", """
        ndarray.T ndarray.diagonal ndarray.mT ndarray.swapaxes ndarray.transpose np.array_split np.diagonal
        np.dsplit np.expand_dims np.flip np.fliplr np.flipud np.hsplit np.ix_
        np.lib.stride_tricks.sliding_window_view np.linalg.diagonal np.linalg.matrix_transpose
        np.matrix_transpose np.moveaxis np.rollaxis np.rot90 np.split np.swapaxes np.transpose np.vsplit
    """),
    ("view", "odd", "array", """
        np.broadcast_to
    """),
    ("view or new", "C", "as operand", """
        np.reshape
    """),
    ("view or new", "C", "number", """
        ndarray.ravel ndarray.reshape np.diag np.ravel
    """),
    ("view or new", "ask", "number", """
        np.tile
    """),
    ("view or new", "odd", "as operand", """
        ndarray.imag np.imag
    """),
    ("view or new", "odd", "number", """
        np.meshgrid
    """),
    ("view or new or number", "ask", "number", """
        np.einsum operators
    """),
    ("view or new or number", "odd", "number", """
        ndarray.__getitem__
    """),
    ("view or number", "C", "number", """
        np.unstack
    """),
)
# fmt: on

# -- end of what is written

#: By name, as in `np.linalg.inv` and `ndarray.copy`.
RETURNS: dict[str, Returns] = {name: Returns(*row[:3]) for row in _ROWS for name in row[3].split()}


@cache
def _by_function(*, of_fft: bool) -> dict[Any, Returns]:
    """The rows of the table by function, for those of `np.fft` or for all others."""
    found = {}
    for name, returns in RETURNS.items():
        path = name.removeprefix("np.")
        if path.startswith("fft.") != of_fft:  # NumPy loads that package when it is first named
            continue
        try:
            found[operator.attrgetter(path)(np)] = returns
        except AttributeError:  # not every NumPy from 2.0 on has it, and "operators" is none
            continue
    return found


def returns_of(function: Any) -> Returns | None:
    """The row of a function of NumPy's; `None` where there is none."""
    return _by_function(of_fft=getattr(function, "__module__", None) == "numpy.fft").get(function)
