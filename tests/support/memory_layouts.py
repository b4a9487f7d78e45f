"""Arrays in many memory layouts, and calls of NumPy's functions on them: what shares memory, and what is a copy.

`scripts/views-and-copies` asks NumPy what each call returns for each layout, and a test asks recorded functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from anygpu.array.functions.elementwise import RULES
from anygpu.base.typing import HostArray


def _numbers(*shape: int) -> HostArray:
    """Numbers between 0 and 1 without a pattern, so that matrices have an inverse."""
    return np.random.default_rng(5).random(shape)


def _foreign(array: HostArray) -> HostArray:
    return array.astype(array.dtype.newbyteorder())


def _locked(array: HostArray) -> HostArray:
    array.flags.writeable = False
    return array


def _fortran(array: HostArray) -> HostArray:
    return np.asfortranarray(array)


#: How an array of the layout is made of numbers in C order, and their shape.
LAYOUTS: dict[str, tuple[tuple[int, ...], Callable[[HostArray], HostArray]]] = {
    "a number": ((), lambda a: a[()]),
    "no axes": ((), lambda a: a),
    "1-d": ((8,), lambda a: a),
    "1-d reversed": ((8,), lambda a: a[::-1]),
    "1-d strided": ((16,), lambda a: a[::2]),
    "1-d part": ((12,), lambda a: a[2:10]),
    "1-d stride 0": ((1,), lambda a: np.broadcast_to(a, (8,))),
    "1-d empty": ((0,), lambda a: a),
    "1-d one element": ((1,), lambda a: a),
    "2-d": ((4, 4), lambda a: a),
    "2-d Fortran": ((4, 4), _fortran),
    "2-d wide": ((2, 6), lambda a: a),
    "2-d transposed": ((6, 2), lambda a: a.T),
    "2-d rows reversed": ((4, 4), lambda a: a[::-1]),
    "2-d reversed": ((4, 4), lambda a: a[::-1, ::-1]),
    "2-d reversed, transposed": ((4, 4), lambda a: a[::-1, ::-1].T),
    "2-d every second row": ((8, 4), lambda a: a[::2]),
    "2-d every second column": ((4, 8), lambda a: a[:, ::2]),
    "2-d part": ((6, 6), lambda a: a[1:5, 1:5]),
    "2-d row stride 0": ((4,), lambda a: np.broadcast_to(a, (4, 4))),
    "2-d column stride 0": ((4, 1), lambda a: np.broadcast_to(a, (4, 4))),
    "2-d empty": ((0, 4), lambda a: a),
    "2-d one row": ((1, 4), lambda a: a),
    "2-d one column, Fortran": ((4, 1), _fortran),
    "2-d of another byte order": ((4, 4), _foreign),
    "2-d read-only": ((4, 4), _locked),
    "3-d": ((2, 4, 4), lambda a: a),
    "3-d Fortran": ((2, 4, 4), _fortran),
    "3-d axes 1 0 2": ((4, 2, 4), lambda a: a.transpose(1, 0, 2)),
    "3-d axes 0 2 1": ((2, 4, 4), lambda a: a.transpose(0, 2, 1)),
    "3-d two axes reversed": ((2, 4, 4), lambda a: a[::-1, :, ::-1]),
    "3-d axes of length 1": ((1, 4, 1), lambda a: a),
    "4-d": ((2, 2, 4, 4), lambda a: a),
    "4-d axes 3 1 0 2": ((4, 2, 2, 4), lambda a: a.transpose(2, 1, 0, 3)[::-1]),
}


class NumpyCall(NamedTuple):
    """One way to call a function of NumPy's."""

    #: As it is written, of `x` and perhaps `i`, its whole numbers.
    text: str
    #: The function's own name, with `ndarray.` for methods.
    function: str
    dtype: str = "float32"


def layout(name: str, dtype: str = "float32") -> HostArray:
    """An array of that layout, or the number among them."""
    shape, make = LAYOUTS[name]
    numbers = _numbers(*shape)
    scaled = numbers * 7 if np.dtype(dtype).kind in "iu" else numbers > 0.5 if dtype == "bool" else numbers
    return make(np.asarray(scaled).astype(dtype))


_BITS = "bitwise_and bitwise_or bitwise_xor gcd lcm left_shift right_shift"
#: Ufuncs that take no floats, or not two of one type.
_OTHER_UFUNCS = f"{_BITS} bitwise_count invert ldexp"
_REDUCTIONS = """
    all any argmax argmin count_nonzero max mean median min nanargmax nanargmin nanmax nanmean nanmedian nanmin nanprod
    nanstd nansum nanvar prod ptp std sum var average amax amin
"""
_SCANS = "cumprod cumsum nancumprod nancumsum"
_METHODS = "all any argmax argmin max mean min prod std sum var cumprod cumsum"
_FOURIER = "fft ifft rfft irfft hfft ihfft"
_FOURIER_OF_PLANES = "fft2 ifft2 rfft2 irfft2 fftn ifftn rfftn irfftn fftshift ifftshift"

#: Other calls, one a line.
_CALLS = """
    np.allclose(x, x)
    np.angle(x)
    np.append(x, x)
    np.append(x, x, axis=0)
    np.apply_along_axis(np.sum, 0, x)
    np.apply_over_axes(np.sum, x, 0)
    np.argpartition(x, 0)
    np.argsort(x)
    np.argsort(x, axis=0)
    np.around(x, 1)
    np.array(x)
    np.array(x, copy=None)
    np.array(x, order="C")
    np.array(x, ndmin=3)
    np.array([x, x])
    np.array_split(x, 2)
    np.asanyarray(x)
    np.asarray(x)
    np.asarray(x, order="C")
    np.asarray(x, dtype=np.float64)
    np.ascontiguousarray(x)
    np.astype(x, np.float64)
    np.astype(x, np.float32)
    np.astype(x, np.float32, copy=False)
    np.atleast_1d(x)
    np.atleast_2d(x)
    np.atleast_3d(x)
    np.block([x, x])
    np.broadcast_arrays(x, x)
    np.broadcast_arrays(x, np.ones((2, 1, 1, 1, 1), np.float32))
    np.broadcast_to(x, x.shape)
    np.broadcast_to(x, (2, *x.shape))
    np.clip(x, 0.2, 0.7)
    np.column_stack([x, x])
    np.concatenate([x, x])
    np.concatenate([x, x], axis=-1)
    np.concatenate([x, x], axis=None)
    np.concatenate([x, x.T])
    np.stack([x, x.T])
    np.hstack([x, x.T])
    np.where(x > 0.5, x, x.T)
    np.clip(x, x.T, 0.7)
    np.clip(x, 0.2, x.T)
    np.isclose(x, x.T)
    np.select([x > 0.5], [x.T], x)
    np.interp(x.T, [0.0, 1.0], [1.0, 2.0])
    np.einsum("...ij,...ij->...ij", x, x.T)
    np.piecewise(x, [x.T > 0.5], [1.0, 2.0])
    np.linalg.solve(x, x.T)
    np.average(x, weights=x.T)
    np.average(x, axis=0, weights=x.T)
    np.full_like(x, x.T)
    np.zeros_like(x, order="F")
    np.zeros_like(x, order="C")
    np.zeros_like(x, order="A")
    np.zeros_like(x, shape=(2, 3))
    np.add(x, 1, order="F")
    np.add(x, 1, order="C")
    x.astype(np.float64, order="C")
    x.astype(np.float64, order="F")
    x.copy(order="K")
    x.copy(order="F")
    x.copy(order="A")
    np.convolve(x, x)
    np.copy(x)
    np.copy(x, order="C")
    np.copy(x, order="F")
    np.corrcoef(x)
    np.correlate(x, x)
    np.cov(x)
    np.cross(x[..., :3], x[..., :3])
    np.cumulative_prod(x)
    np.cumulative_prod(x, axis=0)
    np.cumulative_sum(x)
    np.cumulative_sum(x, axis=0)
    np.delete(x, 0)
    np.delete(x, 0, axis=0)
    np.diag(x)
    np.diagflat(x)
    np.diagonal(x)
    np.diff(x)
    np.diff(x, axis=0)
    np.diff(x, n=2)
    np.digitize(x, [0.2, 0.5])
    np.dot(x, x)
    np.dot(x, x.T)
    np.dsplit(x, 2)
    np.dstack([x, x])
    np.ediff1d(x)
    np.einsum("...i->...", x)
    np.einsum("...ij->...ji", x)
    np.einsum("...ij,...jk->...ik", x, x)
    np.einsum("...i,...i", x, x)
    np.empty_like(x) * 0
    np.expand_dims(x, 0)
    np.expand_dims(x, -1)
    np.fft.fftfreq(8) * x
    np.fft.rfftfreq(14) * x
    np.fix(x)
    np.flip(x)
    np.flip(x, 0)
    np.fliplr(x)
    np.flipud(x)
    np.full_like(x, 3)
    np.gradient(x)
    np.gradient(x, axis=0)
    np.histogram(x, 4, (0, 1))
    np.histogram2d(x, x, 4, ((0, 1), (0, 1)))
    np.histogramdd((x, x), 4, ((0, 1), (0, 1)))
    np.hsplit(x, 2)
    np.hstack([x, x])
    np.imag(x)
    np.inner(x, x)
    np.insert(x, 0, 1.0)
    np.insert(x, 0, 1.0, axis=0)
    np.interp(x, [0.0, 1.0], [1.0, 2.0])
    np.isclose(x, x)
    np.iscomplex(x)
    np.isin(x, [1.0])
    np.isneginf(x)
    np.isposinf(x)
    np.isreal(x)
    np.ix_(x, x)
    np.kron(x, x)
    np.ldexp(x, 2)
    np.lexsort((x, x))
    np.lib.stride_tricks.sliding_window_view(x, 1, axis=0)
    np.linalg.cholesky((x * 0).__iadd__(np.eye(x.shape[-1], dtype=np.float32)))
    np.linalg.cond(x)
    np.linalg.cross(x[..., :3], x[..., :3])
    np.linalg.det(x)
    np.linalg.diagonal(x)
    np.linalg.eigh(x)
    np.linalg.eigvalsh(x)
    np.linalg.inv(x)
    np.linalg.lstsq(x, x)
    np.linalg.matmul(x, x)
    np.linalg.matrix_norm(x)
    np.linalg.matrix_power(x, 2)
    np.linalg.matrix_power(x, 1)
    np.linalg.matrix_power(x, 0)
    np.linalg.matrix_rank(x)
    np.linalg.matrix_transpose(x)
    np.linalg.multi_dot([x, x])
    np.linalg.norm(x)
    np.linalg.norm(x, axis=0)
    np.linalg.norm(x, axis=-1, keepdims=True)
    np.linalg.outer(x, x)
    np.linalg.pinv(x)
    np.linalg.qr(x)
    np.linalg.slogdet(x)
    np.linalg.solve(x, x)
    np.linalg.svd(x)
    np.linalg.svdvals(x)
    np.linalg.tensordot(x, x)
    np.linalg.tensorinv(x, 1)
    np.linalg.tensorsolve(x, x[0])
    np.linalg.trace(x)
    np.linalg.vecdot(x, x)
    np.linalg.vector_norm(x)
    np.linalg.vector_norm(x, axis=0)
    np.linspace(x, x + 1, 3)
    np.geomspace(x + 1, x + 2, 3)
    np.logspace(x, x + 1, 3)
    np.matmul(x, x)
    np.matmul(x, x.mT)
    np.matrix_transpose(x)
    np.matvec(x, x[..., 0])
    np.vecmat(x[..., 0], x)
    np.vecdot(x, x)
    np.meshgrid(x, x)
    np.meshgrid(x, x, copy=False)
    np.meshgrid(x, x, indexing="ij", sparse=True)
    np.moveaxis(x, 0, -1)
    np.nan_to_num(x)
    np.nan_to_num(x, copy=False)
    np.nanpercentile(x, 30)
    np.nanpercentile(x, 30, axis=0)
    np.nanquantile(x, 0.3)
    np.ones_like(x)
    np.outer(x, x)
    np.pad(x, 1)
    np.pad(x, 1, mode="edge")
    np.pad(x, 1, mode="reflect")
    np.pad(x, 0)
    np.partition(x, 0)
    np.percentile(x, 30)
    np.percentile(x, 30, axis=0)
    np.percentile(x, [30, 40], axis=0)
    np.piecewise(x, [x > 0.5], [1.0, 2.0])
    np.polyadd(x, x)
    np.polyder(x)
    np.polyfit(x, x, 1)
    np.polyint(x)
    np.polymul(x, x)
    np.polysub(x, x)
    np.polyval([1.0, 2.0], x)
    np.quantile(x, 0.3)
    np.ravel(x)
    np.ravel(x, order="F")
    np.real(x)
    np.real_if_close(x)
    np.repeat(x, 2)
    np.repeat(x, 2, axis=0)
    np.repeat(x, 1, axis=0)
    np.reshape(x, -1)
    np.reshape(x, x.shape)
    np.reshape(x, (2, -1))
    np.reshape(x, x.shape[::-1])
    np.reshape(x, (-1, 1))
    np.reshape(x, -1, order="F")
    np.reshape(x, x.shape, copy=True)
    np.resize(x, (2, 3))
    np.resize(x, x.shape)
    np.roll(x, 1)
    np.roll(x, 0)
    np.roll(x, 1, axis=0)
    np.rollaxis(x, -1)
    np.rot90(x)
    np.rot90(x, 2)
    np.rot90(x, 0)
    np.round(x)
    np.round(x, 2)
    np.searchsorted([0.2, 0.5], x)
    np.select([x > 0.5], [x])
    np.select([x > 0.5], [x], 1.0)
    np.sinc(x)
    np.sort(x)
    np.sort(x, axis=0)
    np.sort(x, axis=None)
    np.sort_complex(x)
    np.split(x, 1)
    np.squeeze(x)
    np.stack([x, x])
    np.stack([x, x], axis=-1)
    np.swapaxes(x, 0, -1)
    np.take(x, [0, 0])
    np.take(x, [0, 0], axis=0)
    np.take(x, [0, 0], axis=-1)
    np.take(x, 0)
    np.take(x, 0, axis=0)
    np.take_along_axis(x, np.argsort(x, axis=0), 0)
    np.tensordot(x, x)
    np.tensordot(x, x, axes=0)
    np.tile(x, 2)
    np.tile(x, 1)
    np.tile(x, (2, 1))
    np.trace(x)
    np.transpose(x)
    np.transpose(x, tuple(range(x.ndim)))
    np.trapezoid(x)
    np.tril(x)
    np.triu(x)
    np.unstack(x)
    np.unwrap(x)
    np.vander(x, 3)
    np.vdot(x, x)
    np.vsplit(x, 2)
    np.vstack([x, x])
    np.where(x > 0.5, x, 0)
    np.where(x > 0.5, 1.0, 0.0)
    np.zeros_like(x)
    np.add.reduce(x)
    np.add.accumulate(x)
    np.add.outer(x, x)
    np.add.reduceat(x, [0, 1])
    np.add(x, x.T)
    np.add(x, np.ones(x.shape, np.float32))
    np.add(x, x[..., :1])
    np.add(x[:1], x)
    x + 1
    1 - x
    -x
    +x
    abs(x)
    x @ x
    x > 0.5
    x ** 2
    x + x.T
    x[...]
    x[()]
    x[None]
    x[:1]
    x[0]
    x[::-1]
    x[:, 0]
    x[:, None]
    x[..., 0]
    x[..., ::2]
    x[[0, 0]]
    x[:, [0, 1]]
    x[[0], :1]
    x[..., [0]]
    x.T
    x.mT
    x.argpartition(0)
    x.argsort()
    x.astype(np.float64)
    x.astype(np.float32)
    x.astype(np.float32, copy=False)
    x.clip(0.2, 0.7)
    x.conj()
    x.conjugate()
    x.copy()
    x.diagonal()
    x.dot(x)
    x.flatten()
    x.flatten("F")
    x.imag
    x.ravel()
    x.ravel("F")
    x.real
    x.repeat(2)
    x.reshape(-1)
    x.reshape(x.shape)
    x.reshape(2, -1)
    x.reshape(x.shape[::-1])
    x.reshape(-1, order="F")
    x.round(1)
    x.searchsorted(0.5)
    x.squeeze()
    x.swapaxes(0, -1)
    x.take([0, 0])
    x.trace()
    x.transpose()
    x.transpose(*range(x.ndim))
"""
_OF_INTEGERS = """
    np.bincount(x, minlength=9)
    np.choose(x % 2, [x, x])
    np.invert(x)
    np.bitwise_count(x)
    np.ravel_multi_index((x, x), (9, 9))
    np.unravel_index(x, (3, 3))
    np.compress([True, False], x)
    x.choose([x] * 8)
"""
_OF_BITS = """
    np.packbits(x)
    np.unpackbits(x)
    np.unpackbits(x, axis=0)
"""
_OF_COMPLEX = """
    np.conjugate(x)
    np.imag(x)
    np.real(x)
    np.real_if_close(x + 1j)
    np.absolute(x)
    np.angle(x)
    np.sort_complex(x)
    x.conj()
    x.imag
    x.real
    x.real.ravel()
    x + 1
"""


def _listed() -> list[NumpyCall]:
    ufuncs = [ufunc for ufunc in RULES if ufunc.__name__ not in _OTHER_UFUNCS.split()]
    texts = [f"np.{ufunc.__name__}({', '.join(['x'] * ufunc.nin)})" for ufunc in ufuncs]
    texts += [f"np.{name}(x)" for name in (*_REDUCTIONS.split(), *_SCANS.split())]
    texts += [f"np.{name}(x, axis=0)" for name in (*_REDUCTIONS.split(), *_SCANS.split())]
    texts += [f"np.{name}(x, axis=-1, keepdims=True)" for name in ("sum", "mean", "max", "any", "argmax", "median")]
    texts += [f"x.{name}()" for name in _METHODS.split()] + [f"x.{name}(0)" for name in _METHODS.split()]
    texts += [f"np.fft.{name}(x)" for name in (*_FOURIER.split(), *_FOURIER_OF_PLANES.split())]
    texts += [f"np.fft.{name}(x, axis=0)" for name in _FOURIER.split()]
    texts += [line.strip() for line in _CALLS.splitlines() if line.strip()]
    found = [_call(text) for text in texts]
    found += [_call(f"np.{name}(x, x)", "int32") for name in _BITS.split()]
    found += [_call(line.strip(), "int32") for line in _OF_INTEGERS.splitlines() if line.strip()]
    found += [_call(line.strip(), "uint8") for line in _OF_BITS.splitlines() if line.strip()]
    return found + [_call(line.strip(), "complex64") for line in _OF_COMPLEX.splitlines() if line.strip()]


def _call(text: str, dtype: str = "float32") -> NumpyCall:
    """The function that a text calls: its first name, `ndarray.` before a method, `operator` for the others."""
    name = text.split("(")[0].strip()
    if name.startswith("np."):
        return NumpyCall(text, name, dtype)
    if text.startswith("x["):
        return NumpyCall(text, "ndarray.__getitem__", dtype)
    if name.startswith("x.") and name[2:].isidentifier():
        return NumpyCall(text, f"ndarray.{name[2:]}", dtype)
    return NumpyCall(text, "operators", dtype)


#: Calls that are made with an array of each layout; NumPy raises an error for some.
CALLS: tuple[NumpyCall, ...] = tuple(_listed())
