"""Linear algebra against NumPy's; factors whose signs are free are judged by what they multiply to."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import anygpu.linalg
from anygpu.array.core.array import Array, as_array
from anygpu.array.functions import linalg
from anygpu.base.typing import HostArray

reference: Any = np.linalg
TYPES = ["float32", "float64", "complex64", "complex128", "int32", "bool"]
TOLERANCE = {"float16": 5e-3, "float32": 1e-4, "complex64": 1e-4}
STACKS: list[tuple[int, ...]] = [(), (3,), (2, 1), (0,)]


def make(shape: tuple[int, ...], dtype: str = "float64", seed: int = 0) -> HostArray:
    rng = np.random.default_rng(seed + sum(shape))
    values = rng.normal(size=shape) * 3
    if np.dtype(dtype).kind == "c":
        values = values + 1j * rng.normal(size=shape)
    return np.asarray(values > 0) if dtype == "bool" else values.astype(dtype)


def square(stack: tuple[int, ...], n: int, dtype: str = "float64", seed: int = 0) -> HostArray:
    """Matrices that are far from singular."""
    if dtype == "bool":
        return np.broadcast_to(np.eye(n, dtype=bool), (*stack, n, n))
    return (make((*stack, n, n), dtype, seed) + 10 * np.eye(n)).astype(dtype)


def hermitian(stack: tuple[int, ...], n: int, dtype: str = "float64") -> HostArray:
    x = make((*stack, n, n), dtype)
    if dtype == "bool":
        return np.asarray(x | np.swapaxes(x, -1, -2))
    return np.asarray(x + np.swapaxes(x, -1, -2).conj())


def close(ours: Any, theirs: Any, scale: float = 1) -> None:
    expected = np.asarray(theirs)
    values = np.asarray(ours)
    assert values.shape == expected.shape
    assert values.dtype == expected.dtype
    tolerance = TOLERANCE.get(expected.dtype.name, 1e-9) * scale
    np.testing.assert_allclose(values, expected, rtol=tolerance, atol=tolerance * 10)


def alike(ours: Array, theirs: HostArray) -> None:
    """In shape and type."""
    assert isinstance(ours, Array)
    assert ours.shape == theirs.shape
    assert ours.dtype == theirs.dtype


def turned(x: Any) -> HostArray:
    return np.asarray(np.swapaxes(np.asarray(x), -1, -2).conj())


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("stack", STACKS)
def test_inverse_and_determinants(dtype: str, stack: tuple[int, ...]) -> None:
    for n in (1, 4):
        x = square(stack, n, dtype)
        close(linalg.inv(as_array(x)), reference.inv(x))
        close(linalg.det(as_array(x)), reference.det(x), scale=10)
        ours, theirs = linalg.slogdet(as_array(x)), reference.slogdet(x)
        close(ours.sign, theirs.sign)
        close(ours.logabsdet, theirs.logabsdet)


def test_empty_matrices() -> None:
    x = np.zeros((0, 0))
    for name in ("inv", "det", "cholesky", "eigvalsh", "svdvals"):
        close(getattr(linalg, name)(as_array(x)), getattr(reference, name)(x))
    assert linalg.qr(as_array(np.zeros((0, 3)))).R.shape == (0, 3)


@pytest.mark.parametrize(
    "call",
    [
        linalg.inv,
        linalg.det,
        linalg.slogdet,
        linalg.cholesky,
        linalg.eigh,
        linalg.eigvalsh,
        linalg.eig,
        linalg.eigvals,
        lambda x: linalg.solve(x, x),
        lambda x: linalg.matrix_power(x, 2),
        lambda x: linalg.cond(x, 1),
    ],
)
def test_matrices_must_be_square(call: Any) -> None:
    for shape in ((3,), (2, 3)):
        with pytest.raises(np.linalg.LinAlgError, match=r"square|two axes"):
            call(as_array(make(shape)))


@pytest.mark.parametrize("name", ["inv", "det", "cholesky", "qr", "svd", "eigh", "eig", "pinv", "cond", "matrix_rank"])
def test_half_precision_is_refused(name: str) -> None:
    with pytest.raises(TypeError, match="float16 is unsupported in linalg"):
        getattr(linalg, name)(as_array(make((3, 3), "float16")))


def test_a_singular_matrix_is_an_error_when_it_is_computed() -> None:
    inverse = linalg.inv(as_array(np.ones((2, 2))))
    with pytest.raises(np.linalg.LinAlgError):
        np.asarray(inverse)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((3, 3), (3,)),
        ((3, 3), (3, 2)),
        ((3, 3), (4, 3, 2)),
        ((1, 3, 3), (4, 3, 2)),
        ((1, 1, 3, 3), (4, 3, 2)),
        ((4, 3, 3), (3, 2)),
        ((4, 3, 3), (3,)),
        ((4, 3, 3), (4, 3, 2)),
        ((5, 1, 3, 3), (4, 3, 2)),
        ((3, 3), (0, 3, 2)),
        ((3, 3), (3, 0)),
        ((0, 0), (0, 2)),
        ((0, 0), (4, 0, 2)),
    ],
)
def test_solve(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    for dtype in ("float64", "complex64"):
        a, b = square(left[:-2], left[-1], dtype), make(right, dtype)
        close(linalg.solve(as_array(a), as_array(b)), reference.solve(a, b))


def test_solve_mixes_types_and_refuses_what_does_not_fit() -> None:
    a, b = square((), 3, "float32"), make((3,), "int8")
    close(linalg.solve(as_array(a), b), reference.solve(a, b))
    close(linalg.solve(as_array(a), make((3,), "complex64")), reference.solve(a, make((3,), "complex64")))
    with pytest.raises(ValueError, match="rows"):
        linalg.solve(as_array(a), as_array(make((4,))))
    with pytest.raises(ValueError, match="axis"):
        linalg.solve(as_array(a), 1.0)


def test_one_matrix_with_many_right_sides_is_not_repeated() -> None:
    result = linalg.solve(as_array(square((), 3)), as_array(make((100, 3, 1))))
    assert max(spec.size for spec in result.program.specs) == 300


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("n", [-3, -1, 0, 1, 2, 3, 5, 10])
def test_matrix_power(dtype: str, n: int) -> None:
    for stack in STACKS:
        x = square(stack, 3, dtype)
        if np.dtype(dtype).kind in "fc":
            x = x / np.asarray(10, dtype)
        close(linalg.matrix_power(as_array(x), n), reference.matrix_power(x, n), scale=10)


def test_matrix_power_takes_integers_only() -> None:
    with pytest.raises(TypeError, match="integer"):
        linalg.matrix_power(as_array(np.eye(2)), 1.5)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128", "int64"])
@pytest.mark.parametrize("upper", [False, True])
def test_cholesky(dtype: str, upper: bool) -> None:
    for stack in STACKS:
        x = square(stack, 4, dtype)
        x = (x @ turned(x)).astype(dtype)
        close(linalg.cholesky(as_array(x), upper=upper), reference.cholesky(x, upper=upper))
    lopsided = np.tril(x) if not upper else np.triu(x)  # the other triangle does not count
    close(linalg.cholesky(as_array(lopsided), upper=upper), reference.cholesky(lopsided, upper=upper))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(4, 4), (5, 3), (3, 5), (2, 4, 3), (0, 3, 3), (1, 1)])
def test_qr(dtype: str, shape: tuple[int, ...]) -> None:
    x = make(shape, dtype)
    for mode in ("reduced", "complete"):
        ours: Any = linalg.qr(as_array(x), mode)
        theirs = reference.qr(x, mode)
        alike(ours.Q, theirs.Q)
        alike(ours.R, theirs.R)
        q, r = np.asarray(ours.Q), np.asarray(ours.R)
        close(q @ r, x.astype(q.dtype))
        close(turned(q) @ q, np.broadcast_to(np.eye(q.shape[-1], dtype=q.dtype), (*shape[:-2], *(q.shape[-1],) * 2)))
        close(r, np.triu(r))
    close(np.abs(linalg.qr(as_array(x), "r")), np.abs(reference.qr(x, "r")))


def test_qr_modes() -> None:
    x = as_array(make((3, 3)))
    with pytest.raises(NotImplementedError, match="reduced"):
        linalg.qr(x, "raw")  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="mode is"):
        linalg.qr(x, "other")  # type: ignore[call-overload]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(4, 4), (5, 3), (3, 5), (2, 4, 3), (0, 3, 3), (1, 1)])
def test_svd(dtype: str, shape: tuple[int, ...]) -> None:
    x = make(shape, dtype)
    for full in (True, False):
        ours, theirs = linalg.svd(as_array(x), full_matrices=full), reference.svd(x, full_matrices=full)
        for name in ("U", "S", "Vh"):
            alike(getattr(ours, name), getattr(theirs, name))
        u, s, vh = map(np.asarray, ours)
        k = s.shape[-1]
        close((u[..., :k] * s[..., None, :]) @ vh[..., :k, :], x.astype(u.dtype))
    close(linalg.svdvals(as_array(x)), reference.svdvals(x))
    close(linalg.svd(as_array(x), compute_uv=False), reference.svd(x, compute_uv=False))


@pytest.mark.parametrize("dtype", TYPES)
def test_svd_of_hermitian_matrices(dtype: str) -> None:
    for stack in STACKS:
        x = hermitian(stack, 4, dtype)
        ours, theirs = linalg.svd(as_array(x), hermitian=True), reference.svd(x, hermitian=True)
        for name in ("U", "S", "Vh"):
            alike(getattr(ours, name), getattr(theirs, name))
        u, s, vh = map(np.asarray, ours)
        close(s, theirs.S)
        close((u * s[..., None, :]) @ vh, x.astype(u.dtype))
        alone = linalg.svd(as_array(x), compute_uv=False, hermitian=True)
        close(alone, reference.svd(x, compute_uv=False, hermitian=True))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("triangle", ["L", "U", "l"])
def test_eigh(dtype: str, triangle: Any) -> None:
    for stack in STACKS:
        x = hermitian(stack, 4, dtype)
        ours, theirs = linalg.eigh(as_array(x), triangle), reference.eigh(x, triangle)
        close(ours.eigenvalues, theirs.eigenvalues)
        alike(ours.eigenvectors, theirs.eigenvectors)
        v = np.asarray(ours.eigenvectors)
        close(v @ (np.asarray(ours.eigenvalues)[..., None] * turned(v)), x.astype(v.dtype))
        close(linalg.eigvalsh(as_array(x), triangle), reference.eigvalsh(x, triangle))


def test_eigh_looks_at_one_triangle() -> None:
    x = make((4, 4), "complex128")
    for triangle in ("L", "U"):
        close(linalg.eigh(as_array(x), triangle).eigenvalues, reference.eigh(x, triangle).eigenvalues)
    with pytest.raises(ValueError, match="UPLO"):
        linalg.eigh(as_array(x), "X")


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128", "int32"])
def test_eig(dtype: str) -> None:
    symmetric = hermitian((), 3, dtype)
    rotation = np.array([[0, -1], [1, 0]], dtype)
    for x in (symmetric, rotation, make((2, 3, 3), dtype), np.zeros((0, 3, 3), dtype)):
        ours, theirs = linalg.eig(as_array(x)), reference.eig(x)
        alike(ours.eigenvalues, theirs.eigenvalues)
        alike(ours.eigenvectors, theirs.eigenvectors)
        w, v = map(np.asarray, ours)
        close(x.astype(v.dtype) @ v, v * w[..., None, :])
        close(np.sort(np.asarray(linalg.eigvals(as_array(x)))), np.sort(reference.eigvals(x)))
        alike(linalg.eigvals(as_array(x)), reference.eigvals(x))


DEFICIENT = np.array([[1.0, 2, 3], [2, 4, 6], [1, 0, 1], [3, 6, 9]])


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(3, 3), (4, 2), (2, 4), (2, 3, 4), (0, 3), (2, 3, 0)])
def test_pinv(dtype: str, shape: tuple[int, ...]) -> None:
    x = make(shape, dtype)
    close(linalg.pinv(as_array(x)), reference.pinv(x), scale=10)
    close(linalg.pinv(as_array(x), 0.1), reference.pinv(x, 0.1), scale=10)


def test_pinv_limits() -> None:
    stack = np.stack([DEFICIENT, make((4, 3))])
    for options in ({"rtol": None}, {"rtol": 1e-3}, {"rcond": 1e-3}, {"rtol": np.array([1e-3, 0.5])}):
        close(linalg.pinv(as_array(stack), **options), reference.pinv(stack, **options))
    x = hermitian((), 4)
    close(linalg.pinv(as_array(x), hermitian=True), reference.pinv(x, hermitian=True))
    with pytest.raises(ValueError, match="one of them"):
        linalg.pinv(as_array(x), 1e-3, rtol=1e-3)
    with pytest.raises(np.linalg.LinAlgError):
        linalg.pinv(as_array(make((3,))))


def test_matrix_rank() -> None:
    stack = np.stack([DEFICIENT, make((4, 3)), np.zeros((4, 3))])
    for dtype in ("float32", "float64", "complex64"):
        close(linalg.matrix_rank(as_array(stack.astype(dtype))), reference.matrix_rank(stack.astype(dtype)))
    for options in ({"tol": 1.0}, {"rtol": 0.5}, {"tol": [0.1, 3.0, 1.0]}, {"rtol": np.array([0.1, 0.9, 1.0])}):
        close(linalg.matrix_rank(as_array(stack), **options), reference.matrix_rank(stack, **options))
    x = hermitian((2,), 4)
    close(linalg.matrix_rank(as_array(x), hermitian=True), reference.matrix_rank(x, hermitian=True))
    for small in (np.zeros(3), np.ones(3), np.array(0.0), np.array(2), np.zeros((0, 3)), np.zeros((2, 0, 3))):
        close(linalg.matrix_rank(as_array(small)), reference.matrix_rank(small))
    with pytest.raises(ValueError, match="both"):
        linalg.matrix_rank(as_array(stack), tol=1, rtol=1)


@pytest.mark.parametrize("p", [None, 1, -1, 2, -2, math.inf, -math.inf, "fro", "nuc"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "int32"])
def test_cond(p: Any, dtype: str) -> None:
    x = np.stack(
        [square((), 2, dtype), np.array([[1, 2], [2, 4]], dtype), np.eye(2, dtype=dtype), np.zeros((2, 2), dtype)]
    )
    ours = linalg.cond(as_array(x), p)
    close(ours[::2], reference.cond(x[::2], p))
    assert p == -2 or (np.asarray(ours)[1::2] > 1e6).all()
    if p not in (None, 2, -2, "nuc"):  # rounding decides in the 2-norm, and NumPy's own SVD stumbles over "nuc"
        close(ours, reference.cond(x, p))
    close(linalg.cond(as_array(x[0]), p), reference.cond(x[0], p))


def test_cond_of_nothing_and_of_nan() -> None:
    with pytest.raises(np.linalg.LinAlgError, match="empty"):
        linalg.cond(as_array(np.zeros((0, 0))))
    broken = np.array([[np.nan, 1], [1, 2]])
    assert np.isnan(np.asarray(linalg.cond(as_array(broken), 1)))
    wide = make((3, 2))
    close(linalg.cond(as_array(wide)), reference.cond(wide))


VECTOR_ORDERS = [None, 0, 1, -1, 2, -2, 3, 0.5, -3.5, math.inf, -math.inf]


@pytest.mark.parametrize("order", VECTOR_ORDERS)
@pytest.mark.parametrize(
    "dtype", ["float16", "float32", "float64", "complex64", "complex128", "int32", "uint8", "bool"]
)
def test_vector_norms(order: Any, dtype: str) -> None:
    x = make((3, 4, 5), dtype if dtype != "uint8" else "int32").astype(dtype)
    with np.errstate(all="ignore"):
        along: list[dict[str, Any]] = [{"axis": 0}, {"axis": -1}, {"axis": 1, "keepdims": True}]
        for options in along:
            close(linalg.norm(as_array(x), order, **options), reference.norm(x, order, **options))
        line = x.reshape(-1)[:7]
        close(linalg.norm(as_array(line), order), reference.norm(line, order))
        if order is None:
            close(linalg.norm(as_array(x), keepdims=True), reference.norm(x, keepdims=True))
            return
        for axis in (None, 0, -1, (0, 2), (2, 0, 1)):
            for keepdims in (False, True):
                same: dict[str, Any] = {"axis": axis, "keepdims": keepdims, "ord": order}
                close(linalg.vector_norm(as_array(x), **same), reference.vector_norm(x, **same))
        number = np.asarray(x[0, 0, 0])
        close(linalg.vector_norm(as_array(number), ord=order), reference.vector_norm(number, ord=order))


@pytest.mark.parametrize("order", [None, "fro", "f", "nuc", 1, -1, 2, -2, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128", "int32"])
def test_matrix_norms(order: Any, dtype: str) -> None:
    x = make((3, 4, 5), dtype)
    for options in ({"axis": (0, 1)}, {"axis": (-1, 0)}, {"axis": (2, 1), "keepdims": True}):
        close(linalg.norm(as_array(x), order, **options), reference.norm(x, order, **options))
    close(linalg.norm(as_array(x[0]), order), reference.norm(x[0], order))
    if order is not None:
        for keepdims in (False, True):
            close(
                linalg.matrix_norm(as_array(x), ord=order, keepdims=keepdims),
                reference.matrix_norm(x, ord=order, keepdims=keepdims),
            )


def test_norms_of_nothing() -> None:
    for shape in ((0,), (0, 3), (3, 0), (2, 0, 3)):
        x = np.zeros(shape)
        close(linalg.norm(as_array(x)), reference.norm(x))
        for order in (0, 1, 2, 3, math.inf):
            close(linalg.vector_norm(as_array(x), ord=order), reference.vector_norm(x, ord=order))
        if len(shape) > 1:
            for kind in ("fro", "nuc", 1, 2, math.inf):
                close(linalg.matrix_norm(as_array(x), ord=kind), reference.matrix_norm(x, ord=kind))
    with pytest.raises(ValueError, match="nothing to choose from"):
        linalg.norm(as_array(np.zeros(0)), -math.inf)


def test_norms_that_are_refused() -> None:
    x = as_array(make((3, 4, 5)))
    with pytest.raises(ValueError, match="for vectors"):
        linalg.norm(x, "fro", axis=0)
    with pytest.raises(ValueError, match="for matrices"):
        linalg.norm(x, 3, axis=(0, 1))
    with pytest.raises(ValueError, match="for matrices"):
        linalg.matrix_norm(x, ord="other")
    with pytest.raises(ValueError, match="Improper number"):
        linalg.norm(x, 2)
    with pytest.raises(ValueError, match="Duplicate"):
        linalg.norm(x, axis=(1, -2))
    with pytest.raises(np.exceptions.AxisError):
        linalg.norm(x, axis=3)
    with pytest.raises(TypeError, match="axis is an integer"):
        linalg.norm(x, axis=[0, 1])
    with pytest.raises(TypeError, match="float16"):
        linalg.norm(as_array(make((3, 3), "float16")), 2)
    half = make((3, 3), "float16")
    close(linalg.norm(as_array(half), "fro"), reference.norm(half, "fro"))


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "int32"])
@pytest.mark.parametrize(
    ("shape", "right"), [((5, 3), (5,)), ((5, 3), (5, 2)), ((3, 3), (3,)), ((2, 4), (2, 3)), ((4, 3), (4, 0))]
)
def test_lstsq(dtype: str, shape: tuple[int, int], right: tuple[int, ...]) -> None:
    a, b = make(shape, dtype), make(right, dtype)
    ours, theirs = linalg.lstsq(as_array(a), as_array(b)), reference.lstsq(a, b)
    close(ours[0], theirs[0])
    close(ours[1], theirs[1])
    assert ours[2] == theirs[2]
    close(ours[3], theirs[3])


def test_lstsq_of_deficient_and_empty_matrices() -> None:
    b = make((4,))
    for a in (DEFICIENT, DEFICIENT.astype("float32"), np.zeros((4, 3)), np.zeros((4, 0))):
        ours, theirs = linalg.lstsq(as_array(a), as_array(b)), reference.lstsq(a, b)
        assert ours[2] == theirs[2]
        close(ours[0], theirs[0])
        close(ours[1], theirs[1])
    for rcond in (-1, 0.5, 1e-3):
        ours, theirs = linalg.lstsq(as_array(DEFICIENT), as_array(b), rcond), reference.lstsq(DEFICIENT, b, rcond)
        assert ours[2] == theirs[2]
    with pytest.raises(np.linalg.LinAlgError, match="rows"):
        linalg.lstsq(as_array(DEFICIENT), as_array(make((3,))))
    with pytest.raises(np.linalg.LinAlgError, match="matrix"):
        linalg.lstsq(as_array(make((2, 3, 3))), as_array(b))


@pytest.mark.parametrize(
    "shapes",
    [
        [(2, 3), (3, 4)],
        [(2, 3), (3, 4), (4, 5)],
        [(10, 100), (100, 5), (5, 50), (50, 1)],
        [(3,), (3, 4), (4, 5)],
        [(2, 3), (3, 4), (4,)],
        [(3,), (3, 4), (4,)],
        [(3,), (3, 4), (4, 4), (4,)],
    ],
)
def test_multi_dot(shapes: list[tuple[int, ...]]) -> None:
    values = [make(shape, seed=number) for number, shape in enumerate(shapes)]
    close(linalg.multi_dot([as_array(each) for each in values]), reference.multi_dot(values))


def test_multi_dot_refuses() -> None:
    with pytest.raises(ValueError, match="two arrays"):
        linalg.multi_dot([as_array(np.eye(2))])
    with pytest.raises(np.linalg.LinAlgError, match="matrices"):
        linalg.multi_dot([as_array(make(shape)) for shape in ((2, 2), (2,), (2, 2))])


def test_tensor_equations() -> None:
    a = np.eye(24).reshape(6, 4, 2, 3, 4) + make((6, 4, 2, 3, 4)) / 20
    b = make((6, 4))
    close(linalg.tensorsolve(as_array(a), as_array(b)), reference.tensorsolve(a, b))
    moved = np.moveaxis(a, 2, 0)
    close(linalg.tensorsolve(as_array(moved), as_array(b), (0, 3, 4)), reference.tensorsolve(moved, b, (0, 3, 4)))
    close(linalg.tensorinv(as_array(a)), reference.tensorinv(a))
    flat = a.reshape(24, 2, 12)
    close(linalg.tensorinv(as_array(flat), ind=1), reference.tensorinv(flat, ind=1))
    with pytest.raises(ValueError, match="ind"):
        linalg.tensorinv(as_array(a), ind=0)
    with pytest.raises(np.linalg.LinAlgError, match="elements"):
        linalg.tensorsolve(as_array(make((2, 3, 4))), as_array(make((2,))))


@pytest.mark.parametrize("offset", [-7, -1, 0, 2, 9])
def test_diagonal_and_trace(offset: int) -> None:
    for shape in ((3, 4), (2, 4, 3), (0, 3), (2, 0, 0)):
        x = make(shape)
        close(linalg.diagonal(as_array(x), offset=offset), reference.diagonal(x, offset=offset))
        close(linalg.trace(as_array(x), offset=offset), reference.trace(x, offset=offset))
    small = make((2, 3, 3), "int8")
    close(linalg.trace(as_array(small)), reference.trace(small))
    close(linalg.trace(as_array(small), dtype="float32"), reference.trace(small, dtype="float32"))


def test_diagonal_and_transpose_are_views() -> None:
    x = as_array(make((3, 3)))
    diagonal, transpose = linalg.diagonal(x), linalg.matrix_transpose(x)
    x[1, 1] = 100
    assert float(diagonal[1]) == 100
    with pytest.raises(ValueError, match="read-only"):
        diagonal[0] = 1
    transpose[0, 1] = 50
    assert float(x[1, 0]) == 50
    for call in (linalg.diagonal, linalg.matrix_transpose):
        with pytest.raises(ValueError, match="two axes"):
            call(as_array(make((3,))))


def test_products_have_the_standards_signatures() -> None:
    x, y = make((3, 3)), make((3, 3), seed=1)
    a, b = as_array(x), as_array(y)
    close(linalg.matmul(a, b), x @ y)
    close(linalg.vecdot(a, b, axis=-2), reference.vecdot(x, y, axis=-2))
    close(linalg.tensordot(a, b, axes=1), reference.tensordot(x, y, axes=1))
    close(linalg.cross(a, b), reference.cross(x, y))
    close(linalg.cross(a, b, axis=0), reference.cross(x, y, axis=0))
    close(linalg.outer(a[0], b[0]), reference.outer(x[0], y[0]))
    with pytest.raises(ValueError, match="vectors"):
        linalg.outer(a, b)
    with pytest.raises(ValueError, match="3 components"):
        linalg.cross(a[:, :2], b)


def test_nothing_is_computed_before_it_must_be() -> None:
    x = as_array(square((), 3))
    results = [linalg.inv(x), *linalg.svd(x), *linalg.eigh(x), linalg.pinv(x), linalg.cond(x, 1), linalg.matrix_rank(x)]
    assert not any(result._value.computed for result in results)


def test_numpy_values_go_to_the_default_device() -> None:
    x = square((), 3)
    close(linalg.inv(x), reference.inv(x))
    close(linalg.solve(x, [1, 2, 3]), reference.solve(x, [1, 2, 3]))


def test_public_names_are_numpys() -> None:
    missing = set(np.linalg.__all__) - set(anygpu.linalg.__all__)
    assert not missing
    for name in anygpu.linalg.__all__:
        assert getattr(anygpu.linalg, name) is getattr(linalg, name)
