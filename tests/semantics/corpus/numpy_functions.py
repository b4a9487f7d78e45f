"""NumPy's own functions, with the keywords that people use."""

import numpy as np

from tests.semantics.cases import case, matrix, positive, turn, vector


@case(lambda n: (matrix(n),))
def sums(x):
    return (
        x.sum(),
        x.sum(0),
        x.sum(axis=1, keepdims=True),
        np.sum(x, dtype=np.float64),
        x.sum(initial=5),
        np.add.reduce(x),
    )


@case(lambda n: (matrix(n), vector(n, 12).reshape(3, 4) > 0))
def sums_under_a_mask(x, mask):
    return x.sum(where=mask), np.mean(x, axis=0, where=mask | True), np.max(x, initial=-9, where=mask)


@case(lambda n: (matrix(n),))
def means_and_variances(x):
    return x.mean(), x.mean(0), x.var(), x.std(axis=1), np.var(x, axis=0, ddof=1), np.std(x, keepdims=True)


@case(lambda n: (matrix(n),))
def extremes(x):
    return x.max(), x.min(axis=0), np.amax(x, 1), np.ptp(x), np.ptp(x, axis=0), x.argmax(), x.argmin(axis=1)


@case(lambda n: (matrix(n),))
def medians_and_percentiles(x):
    return np.median(x), np.median(x, axis=0), np.percentile(x, 30), np.quantile(x, [0.1, 0.5], axis=1)


@case(lambda n: (matrix(n),))
def cumulative(x):
    return (
        np.cumsum(x),
        x.cumsum(axis=1),
        np.cumprod(x[0] / 4),
        np.maximum.accumulate(x, axis=1),
        np.diff(x),
        np.diff(x, 2, 0),
    )


@case(lambda n: (matrix(n),))
def sorting(x):
    return np.sort(x), np.sort(x, axis=0), np.argsort(x[0], kind="stable"), np.sort(x, axis=None)


@case(lambda n: (vector(n, 9),))
def sorting_in_place(x):
    y = x.copy()
    y.sort()
    return y, np.sort(x)[3]


@case(lambda n: (vector(n, 9),), stays_on_numpy="only NumPy has the order beside the k-th element")
def partitions(x):
    return np.partition(x, 3)[3], np.partition(x, 1), np.argpartition(x, 4)


@case(lambda n: (matrix(n),))
def shapes(x):
    return x.reshape(4, 3) * 1, x.reshape(2, -1) * 1, np.expand_dims(x, 1) * 1, x.T.copy(), np.moveaxis(x, 0, -1) * 1


@case(lambda n: (matrix(n),))
def joining(x):
    return (
        np.concatenate([x, x], axis=1), np.stack([x, x], axis=-1), np.vstack([x, x]), np.hstack([x, x]),
        np.column_stack([x[0], x[1]]), np.append(x, 1), np.dstack([x, x]),
    )  # fmt: skip


@case(lambda n: (vector(n), vector(n + 1)))
def columns(x, y):
    return np.array([x, y]), np.vstack([x, y]).T * 1, np.stack([x, y]).sum(axis=0)


@case(lambda n: (matrix(n, 4, 6),))
def splitting(x):
    return (
        [each * 1 for each in np.split(x, 2)],
        [each * 2 for each in np.array_split(x, 4, axis=1)],
        np.hsplit(x + 1, 3)[1] * 1,
    )


@case(lambda n: (matrix(n),))
def repeating(x):
    return (
        np.tile(x, 2),
        np.tile(x[0], (2, 2)),
        np.repeat(x, 2, axis=0),
        np.repeat(x[0], 3),
        np.roll(x, 1, axis=1),
        np.roll(x, 2),
    )


@case(lambda n: (matrix(n),))
def padding(x):
    return (
        np.pad(x, 1),
        np.pad(x, ((1, 0), (0, 2)), mode="edge"),
        np.pad(x, 1, mode="reflect"),
        np.pad(x, 2, constant_values=7),
    )


@case(lambda n: (vector(n, 8),))
def padding_by_wrapping(x):
    return np.pad(x, 3, mode="wrap"), np.pad(x, 2, mode="symmetric"), np.pad(x, (1, 2), mode="linear_ramp")


@case(lambda n: (matrix(n),))
def flipping(x):
    return np.flip(x) + 1, np.fliplr(x) + 1, np.flipud(x) + 1, np.rot90(x) + 1


@case(lambda n: (vector(n), vector(n + 1)))
def choosing(x, y):
    return (
        np.where(x > y, x, y),
        np.where(x > 0, 1, -1),
        np.where(x > 0, x, 0.5),
        np.clip(x, -1, 2),
        np.clip(x, y, None),
    )


@case(lambda n: (vector(n),))
def elementwise(x):
    return (
        np.sin(x),
        np.cos(x),
        np.tanh(x),
        np.exp(-x * x),
        np.abs(x),
        np.sign(x),
        np.square(x),
        np.floor(x),
        np.arctan(x),
    )


@case(lambda n: (positive(n),))
def elementwise_of_positive_numbers(x):
    return np.sqrt(x), np.log(x), np.log2(x), np.log10(x), np.log1p(x), np.cbrt(x), np.reciprocal(x), np.expm1(x)


@case(lambda n: (vector(n), positive(n)))
def elementwise_of_two(x, y):
    return np.maximum(x, y), np.arctan2(x, y), np.hypot(x, y), np.power(y, x), np.fmod(x, y), np.copysign(y, x)


@case(lambda n: (vector(n, dtype=bool), vector(n + 1, dtype=bool)))
def logic(x, y):
    return np.logical_and(x, y), np.logical_or(x, y), np.logical_not(x), np.logical_xor(x, y), x.any(), np.all(x | ~x)


@case(lambda n: (matrix(n), vector(n, 4)))
def products(x, v):
    return (
        np.dot(x, v),
        np.inner(v, v),
        np.outer(v, v),
        np.vdot(v, v),
        np.matmul(x, v),
        np.tensordot(x, x, axes=([0], [0])),
        np.kron(v[:2], v[:2]),
    )


@case(lambda n: (matrix(n),), either=True)
def products_without_axes(x):
    return np.tensordot(x, x), np.squeeze(x[:1, :1] * 2), x.sum().reshape(()), np.array(x.sum())


@case(lambda n: (matrix(n), matrix(n + 1)))
def einsums(x, y):
    return np.einsum("ij,ij->i", x, y), np.einsum("ij->j", x), np.einsum("ij,kj->ik", x, y), np.einsum("ij->ji", x) * 1


@case(lambda n: (vector(n, 3), vector(n + 1, 3)))
def cross_products(x, y):
    return np.cross(x, y), np.linalg.norm(x), np.dot(x, y)


@case(lambda n: (matrix(n, 4, 4),))
def parts_of_matrices(x):
    return np.trace(x), np.diag(x) * 1, np.tril(x), np.triu(x, 1), np.diag(x[0])


@case(lambda n: (matrix(n, 3, 3),), within=64)
def linear_algebra(x):
    y = x @ x.T + 8 * np.eye(3, dtype=np.float32)
    return np.linalg.solve(y, x[0]), np.linalg.inv(y), np.linalg.det(y / 8), np.linalg.cholesky(y)


@case(lambda n: (matrix(n, 4, 3, np.float64),), within=64)
def decompositions(x):
    return np.abs(np.linalg.qr(x)[1]), np.linalg.svd(x, compute_uv=False), np.linalg.eigvalsh(x.T @ x)


@case(lambda n: (matrix(n),))
def norms(x):
    return (
        np.linalg.norm(x),
        np.linalg.norm(x, axis=1),
        np.linalg.norm(x, ord=1, axis=0),
        np.linalg.norm(x, axis=1, keepdims=True),
    )


@case(lambda n: (vector(n, 8),), within=8)
def fourier(x):
    return (
        np.fft.fft(x),
        np.fft.rfft(x),
        np.abs(np.fft.rfft(x)) ** 2,
        np.fft.ifft(np.fft.fft(x)).real * 1,
        np.fft.fftfreq(8),
    )


@case(lambda n: (matrix(n, 4, 4),), within=8)
def fourier_of_two_axes(x):
    return np.fft.fft2(x), np.fft.fftshift(x), np.fft.irfft(np.fft.rfft(x, axis=0), axis=0)


@case(lambda n: (vector(n, 8), vector(n, 3)))
def signals(x, k):
    return np.convolve(x, k), np.convolve(x, k, "same"), np.convolve(x, k, mode="valid"), np.correlate(x, k)


@case(lambda n: (vector(n), np.linspace(-4, 4, 9, dtype=np.float32)))
def interpolation(x, grid):
    return np.interp(x, grid, grid * 2), np.searchsorted(grid, x), np.digitize(x, [-1, 0, 1])


@case(lambda n: (vector(n, 30),))
def histograms(x):
    return np.histogram(x, bins=5, range=(-4, 4))


@case(lambda n: (vector(n, 30, np.uint8),))
def counting_bytes(x):
    return np.bincount(x, minlength=256), np.bincount((x > 9), minlength=2)


@case(lambda n: (np.arange(n % 5, n % 5 + 6, dtype=np.int32), vector(n)), either=True)
def counting(x, weights):
    return np.bincount(x), np.bincount(x, weights=weights)


@case(lambda n: (vector(n, dtype=np.int32),), either=True)
def sets(x):
    return np.unique(x), np.isin(x, [1, 2, 3]), np.unique(x, return_counts=True)[1]


@case(lambda n: (vector(n),), either=True)
def positions(x):
    return np.nonzero(x > 0), np.argwhere(x > 0), np.flatnonzero(x > 0), np.where(x > 0), np.count_nonzero(x > 0)


@case(lambda n: (vector(n),))
def counting_true(x):
    return np.count_nonzero(x > 0), (x > 0).sum(), np.count_nonzero((x > 0).reshape(2, 3), axis=1)


@case(lambda n: (vector(n),))
def gradients(x):
    return np.gradient(x), np.trapezoid(x), np.ediff1d(x), np.unwrap(x)


@case(lambda n: (vector(n),))
def polynomials(x):
    return np.polyval([1, 2, 3], x), np.vander(x[:3], 3)


@case(lambda n: (matrix(n),))
def statistics(x):
    return np.cov(x), np.corrcoef(x), np.average(x, axis=0, weights=[1, 2, 3]), np.average(x)


@case(lambda n: (vector(n), vector(n + 1)))
def grids(x, y):
    return np.meshgrid(x, y[:2]), np.meshgrid(x[:2], y[:3], indexing="ij")


@case(lambda n: (vector(n),))
def creation(x):
    return (
        np.zeros_like(x) + x, np.ones_like(x) * x, np.full_like(x, 3) + x, np.linspace(0, 1, 6) + x,
        np.arange(6) * x, np.eye(6, dtype=np.float32) @ x, np.full(6, 2.5) * x, np.ones(6, bool) * x,
    )  # fmt: skip


@case(lambda n: (vector(n), turn(n, 0.5, 2.0)))
def creation_from_a_number(x, k):
    return np.full(6, k) + x, np.full_like(x, k) * x, np.array([k, k * 2]) * x[:2]


@case(lambda n: (vector(n), turn(n, 3, 4)))
def creation_by_an_integer(x, k):
    return np.zeros(k) + x[:k], np.arange(k) * x[:k], np.linspace(0, 1, k) * 2, np.eye(k)


@case(lambda n: (vector(n),))
def conversions(x):
    return (
        x.astype(np.float64),
        x.astype(np.int32),
        x.astype("f2"),
        x.astype(bool),
        x.astype(np.complex64),
        x.astype(float),
    )


@case(lambda n: (vector(n, dtype=np.complex64),))
def complex_functions(z):
    return np.angle(z), np.real(z) + 1, np.imag(z) + 1, np.conj(z), np.abs(z), np.exp(z / 8)


@case(lambda n: (vector(n),), either=True)
def outputs(x):
    y = np.empty_like(x)
    np.multiply(x, 2, out=y)
    np.add(y, 1, y)
    z = np.zeros(6, np.float32)
    np.sqrt(np.abs(x), out=z, where=x > 0)
    return y, z


@case(lambda n: (matrix(n),), either=True)
def outputs_of_reductions(x):
    total = np.zeros(4, np.float32)
    x.sum(axis=0, out=total)
    return total, np.mean(x, axis=0, out=np.empty(4, np.float32))


@case(lambda n: (vector(n), vector(n + 1)))
def methods_of_ufuncs(x, y):
    return np.add.outer(x, y), np.multiply.accumulate(x / 4), np.maximum.reduce(x), np.add.reduceat(x, [0, 2, 4])


@case(lambda n: (vector(n), np.array([0, 0, 1, 1, 2, 2])), either=True)
def sums_of_groups(x, groups):
    totals = np.zeros(3, np.float32)
    np.add.at(totals, groups, x)
    return totals


@case(lambda n: (vector(n),))
def comparing(x):
    return np.isclose(x, x + 1e-9), np.equal(x, x), np.greater(x, 0), np.array([True]) & (x > 0)


@case(lambda n: (vector(n), vector(n)), either=True)
def deciding(x, y):
    return np.allclose(x, y), np.array_equal(x, y), x * 2


@case(lambda n: (vector(n),), either=True)
def vectorised_python(x):
    return np.vectorize(lambda v: v + 1 if v > 0 else v)(x), np.apply_along_axis(np.sum, 0, x)


@case(lambda n: (vector(n),), either=True)
def piecewise(x):
    return np.piecewise(x, [x < 0, x >= 0], [lambda v: -v, lambda v: v * 2])


@case(lambda n: (matrix(n),))
def windows(x):
    return np.lib.stride_tricks.sliding_window_view(x, (2, 2)).mean(
        axis=(2, 3)
    ), np.lib.stride_tricks.sliding_window_view(x[0], 2).max(axis=1)


@case(lambda n: (vector(n, dtype=np.int32), vector(n + 1, dtype=np.int32)))
def whole_number_functions(x, y):
    return np.gcd(x, y), np.bitwise_count(x), np.left_shift(x, 2), np.abs(x), np.sign(x), np.divmod(x, 7)


@case(lambda n: (vector(n),))
def rounding(x):
    return np.round(x), np.round(x, 1), x.round(2), np.around(x), np.rint(x), np.fix(x), np.trunc(x), np.ceil(x)


@case(lambda n: (vector(n),))
def methods(x):
    return x.clip(-1, 1), x.repeat(2), x.take([0, 2]), x.dot(x), x.prod(), x.ptp() if hasattr(x, "ptp") else 0


@case(lambda n: (vector(n), vector(n + 1)))
def deleting_and_inserting(x, y):
    return np.delete(x, 1), np.insert(x, 2, 9), np.resize(x, 8)


@case(lambda n: (vector(n), vector(n + 1)), either=True)
def tricks_with_indices(x, y):
    return np.r_[x, 1, 2], np.c_[x, y], np.trim_zeros(x), np.i0(x), x.conj(), np.fft.fft(x).real


@case(lambda n: (vector(n),))
def special_functions(x):
    return np.sinc(x), np.heaviside(x, 0.5), np.hanning(6) * x, np.deg2rad(x), np.exp2(x)


@case(lambda n: (vector(n, 40, np.float64).round(),))
def positions_of_equal_elements(x):
    return np.argsort(x), x.argsort(kind="stable"), np.argsort(x)[:3] * 2


@case(lambda n: (vector(n), turn(n, 0.5, 2.0)), stays_on_numpy="it writes to a NumPy scalar")
def writes_to_numbers(x, a):
    total, first, largest, added = x.sum(), x[0] * 2, x.max(), x.mean()
    refused = []
    for write in (
        lambda: total.fill(a),
        lambda: np.put(first, [0], a),
        lambda: largest.__setitem__(..., a),
        lambda: np.add(added, a, out=added),
        lambda: np.copyto(total, a),
        lambda: np.putmask(total, total > a, a),
    ):
        try:
            write()
        except (TypeError, AttributeError) as error:
            refused.append(type(error).__name__)
    return total, first, largest, added, x * a, refused
