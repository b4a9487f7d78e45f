"""Complex functions as expressions of real ones, evaluated with NumPy and compared with NumPy's own."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anygpu.base.typing import HostArray
from anygpu.engines.codegen import complexes
from anygpu.engines.codegen.kernel_ir import Apply, Expr, Literal, Name
from anygpu.engines.codegen.target import ComputeType
from anygpu.errors import InvalidProgram
from anygpu.program.functions import BINARY, COMPARISONS, UNARY, BinaryFunction, UnaryFunction, is_defined
from tests.codegen.evaluating import Lets, subexpressions

COMPUTE: dict[str, ComputeType] = {"complex64": "f32", "complex128": "f64"}
TYPES = tuple(COMPUTE)
ALL_UNARY = tuple(fn for fn in UNARY if is_defined(fn, "complex128"))
ALL_BINARY = tuple(fn for fn in BINARY if is_defined(fn, "complex128"))
#: Those that round, and have an accuracy to speak of.
ROUNDING = tuple(
    fn for fn in ALL_UNARY if fn not in ("negative", "rint", "real", "imag", "conj", "isnan", "isinf", "isfinite")
)
#: What NumPy does for these is not what is wanted: it is inexact near 0, or does not follow the array API.
BETTER_THAN_NUMPY: tuple[UnaryFunction, ...] = ("log1p", "expm1")
RENAMED = {name: f"arc{name[1:]}" for name in ("asin", "acos", "atan", "asinh", "acosh", "atanh")}

INF, NAN, PI = np.inf, np.nan, np.pi
SPECIAL = (0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 2.0, -2.0, 100.0, -100.0, INF, -INF, NAN)


def numpys(fn: str, *operands: HostArray) -> HostArray:
    with np.errstate(all="ignore"):
        if fn in ("real", "imag"):
            return np.asarray(getattr(operands[0], fn))
        return np.asarray(getattr(np, RENAMED.get(fn, fn))(*operands))


def operands_of(*dtypes: str) -> list[complexes.Pair]:
    return [(Name(f"re_{k}", COMPUTE[each]), Name(f"im_{k}", COMPUTE[each])) for k, each in enumerate(dtypes)]


def ours(fn: str, *operands: HostArray) -> HostArray:
    """What the expressions for a function evaluate to."""
    pairs = operands_of(*(each.dtype.name for each in operands))
    lets = Lets()
    given = {}
    for (re, im), values in zip(pairs, operands, strict=True):
        assert isinstance(re, Name)
        assert isinstance(im, Name)
        given[re.name], given[im.name] = values.real.copy(), values.imag.copy()
    return joined(lets.evaluate(written(fn, pairs, lets), given), operands[0])


def written(fn: Any, pairs: list[complexes.Pair], lets: Lets) -> tuple[Expr, ...]:
    if len(pairs) == 1:
        return complexes.unary(fn, pairs[0], lets)
    return complexes.binary(fn, pairs[0], pairs[1], lets)


def joined(parts: list[HostArray], like: HostArray) -> HostArray:
    """The components as one array; a constant component has no shape of its own."""
    if len(parts) == 1:
        return np.broadcast_to(parts[0], like.shape)
    result = np.empty_like(like)
    result.real, result.imag = parts
    return result


def wider(values: HostArray) -> HostArray:
    """In a type with more digits, where NumPy's own rounding does not matter."""
    return values.astype(np.complex128 if values.dtype == np.complex64 else np.clongdouble)


def errors(got: HostArray, want: HostArray, dtype: str) -> HostArray:
    """In epsilons of the magnitude of the result, where that is a normal number."""
    info = np.finfo(dtype)
    with np.errstate(all="ignore"):
        size = np.abs(want)
        normal = (size > info.tiny / info.eps) & (size < info.max) & np.isfinite(size)
        return np.asarray(np.abs(got.astype(want.dtype) - want)[normal] / size[normal] / info.eps)


def ordinary(dtype: str, seed: int = 0) -> HostArray:
    """What programs are made of: small multiples of an eighth, and any numbers up to 100 or so."""
    rng = np.random.default_rng(seed)
    steps = np.arange(-20, 21) / 8
    grid = (steps[:, None] + 1j * steps).ravel()
    noise = rng.normal(size=1500) + 1j * rng.normal(size=1500)
    circle = np.exp(1j * rng.uniform(-PI, PI, 300))
    return np.concatenate([grid, noise, 4 * noise, 40 * noise, noise / 100, circle, 1 + noise / 1000]).astype(dtype)


def cross(parts: tuple[float, ...] = SPECIAL, dtype: str = "complex128") -> HostArray:
    return np.array([complex(re, im) for re, im in itertools.product(parts, repeat=2)], dtype)


def same(got: HostArray, want: HostArray, *, signs: HostArray | bool = True) -> HostArray:
    """Equal to a few digits less than all, with NaN and, where `signs` say so, the sign of zeros and infinities."""
    if want.dtype == np.bool_:
        return np.asarray(got == want)
    with np.errstate(all="ignore"):
        close = np.isclose(got, want, rtol=1e-13, atol=1e-15, equal_nan=True)
        exact = np.isnan(want) | (np.isfinite(want) & (want != 0)) | (np.signbit(got) == np.signbit(want))
        opposite = np.isinf(want) & (got == -want)
    return np.asarray(np.where(signs, close & exact, close | opposite))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("fn", ROUNDING)
def test_unary_functions_are_accurate(fn: UnaryFunction, dtype: str) -> None:
    x = ordinary(dtype)
    x = x[x != 0]
    if fn == "log1p":
        x = x[np.abs(x) > 0.01]
    # NumPy, too, multiplies by a rounded logarithm of 2, which the exponential makes visible.
    limit = 100 if fn == "exp2" else 4
    assert errors(ours(fn, x), numpys(fn, wider(x)), dtype).max() < limit


@pytest.mark.parametrize("fn", [fn for fn in ROUNDING if fn != "exp2"])
def test_no_result_in_range_is_lost_on_the_way(fn: UnaryFunction) -> None:
    """Numbers of all sizes that a complex64 has: what overflows in between is not seen in the wider type."""
    rng = np.random.default_rng(1)
    sizes = 10.0 ** rng.uniform(-36, 38, (2, 4000)) * rng.choice([-1, 1], (2, 4000))
    exponents = rng.uniform(-130, 130, 2000) + 1j * 10.0 ** rng.uniform(-30, 1, 2000)
    x = np.concatenate([sizes[0] + 1j * sizes[1], exponents, 1j * exponents, 1 + exponents * 1e-6]).astype("complex64")
    if fn == "log1p":
        x = x[np.abs(x) > 1e-6]
    assert errors(ours(fn, x), numpys(fn, wider(x)), "complex64").max() < 8


@pytest.mark.parametrize("dtype", TYPES)
def test_log1p_and_expm1_of_tiny_numbers_are_not_zero(dtype: str) -> None:
    x = (ordinary(dtype) * 1e-12).astype(dtype)
    assert errors(ours("log1p", x), wider(x) - wider(x) ** 2 / 2, dtype).max() < 4
    assert errors(ours("expm1", x), wider(x) + wider(x) ** 2 / 2, dtype).max() < 4


def test_sqrt_of_subnormal_numbers() -> None:
    least = np.finfo(np.float64).smallest_subnormal
    parts = [0.0, least, 3 * least, -7 * least, 1e-310]
    x = cross(tuple(parts))
    x = x[x != 0]
    assert errors(ours("sqrt", x), numpys("sqrt", wider(x)), "complex128").max() < 4


@pytest.mark.parametrize("fn", [fn for fn in ALL_UNARY if fn not in BETTER_THAN_NUMPY])
def test_special_values_are_numpys(fn: UnaryFunction) -> None:
    """Signs are compared where C99 says what they are: not beside a NaN, nor of numbers infinite in two directions."""
    x = cross()
    got, want = ours(fn, x), numpys(fn, x)
    signs = ~(np.isnan(want) | np.isnan(x) | (np.isinf(x.real) & np.isinf(x.imag)))
    assert got.dtype == want.dtype
    wrong = ~same(got.real, want.real, signs=signs) | ~same(got.imag, want.imag, signs=signs)
    assert not wrong.any(), list(zip(x[wrong], got[wrong], want[wrong], strict=True))


@pytest.mark.parametrize("fn", [fn for fn in ALL_UNARY if fn not in BETTER_THAN_NUMPY])
def test_both_sides_of_axes_are_numpys(fn: UnaryFunction) -> None:
    """On a branch cut the sign of a zero says which side is meant."""
    along = np.concatenate([np.arange(-40, 41) / 8, [1e-9, 1 + 1e-9, 1e9, -1e9]])
    parts = [along + 0j, along + 0j, 1j * along, 1j * along]
    parts[0].imag, parts[1].imag, parts[2].real, parts[3].real = 0.0, -0.0, 0.0, -0.0
    x = np.concatenate(parts)
    got, want = ours(fn, x), numpys(fn, x)
    wrong = ~same(got.real, want.real) | ~same(got.imag, want.imag)
    assert not wrong.any(), list(zip(x[wrong], got[wrong], want[wrong], strict=True))


#: What the array API says of functions where NumPy says something else.
STANDARD: dict[UnaryFunction, list[tuple[complex, complex]]] = {
    "log1p": [
        (complex(0, 0), complex(0, 0)),
        (complex(-1, 0), complex(-INF, 0)),
        (complex(-1, -0.0), complex(-INF, -0.0)),
        (complex(-2, 0), complex(0, PI)),
        (complex(-2, -0.0), complex(0, -PI)),
        (complex(1, INF), complex(INF, PI / 2)),
        (complex(1, NAN), complex(NAN, NAN)),
        (complex(-INF, 1), complex(INF, PI)),
        (complex(INF, 1), complex(INF, 0)),
        (complex(-INF, INF), complex(INF, 3 * PI / 4)),
        (complex(INF, INF), complex(INF, PI / 4)),
        (complex(INF, NAN), complex(INF, NAN)),
        (complex(-INF, NAN), complex(INF, NAN)),
        (complex(NAN, 1), complex(NAN, NAN)),
        (complex(NAN, INF), complex(INF, NAN)),
        (complex(NAN, NAN), complex(NAN, NAN)),
    ],
    # Old C libraries, and NumPy built on them, have NaN in both components of these.
    "tanh": [(complex(0, INF), complex(0, NAN)), (complex(-0.0, NAN), complex(-0.0, NAN))],
}


@pytest.mark.parametrize("dtype", TYPES)
def test_expm1_of_special_values_is_numpys_and_not_the_standards(dtype: str) -> None:
    parts = (0.0, -0.0, 1.0, INF, -INF, NAN)
    x = np.array([complex(a, b) for a in parts for b in parts], dtype)
    with np.errstate(all="ignore"):
        want = np.expm1(x)
    got = ours("expm1", x)
    np.testing.assert_allclose(got.real, want.real, rtol=1e-5)
    np.testing.assert_allclose(got.imag, want.imag, rtol=1e-5)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("fn", STANDARD)
def test_special_values_are_the_standards(fn: UnaryFunction, dtype: str) -> None:
    x, want = (np.array(each, dtype) for each in zip(*STANDARD[fn], strict=True))
    got = ours(fn, x)
    np.testing.assert_array_equal(got.real, want.real)
    np.testing.assert_array_equal(got.imag, want.imag)
    known = ~np.isnan(want.imag)
    np.testing.assert_array_equal(np.signbit(got.imag)[known], np.signbit(want.imag)[known])


@pytest.mark.parametrize("fn", ROUNDING)
def test_conjugates_have_conjugate_results(fn: UnaryFunction) -> None:
    """To the last bit, with infinities and NaN: the upper half of the plane is the mirror image of the lower."""
    x = np.concatenate([cross(dtype="complex64"), ordinary("complex64")])
    if fn == "sin":
        # Where there is no angle, NumPy's infinity is positive on both sides.
        x = x[~np.isinf(x.imag) | np.isfinite(x.real)]
    got, mirrored = ours(fn, x), ours(fn, np.conj(x))
    np.testing.assert_array_equal(got.real, mirrored.real)
    if fn != "abs":
        np.testing.assert_array_equal(got.imag, -mirrored.imag)


floats = st.floats(-100, 100, width=32)


@settings(max_examples=200, deadline=None)
@given(x=st.builds(complex, floats, floats))
def test_inverse_functions_return(x: complex) -> None:
    """A function of its inverse is what it began with; the other way only where there is one branch."""
    given = np.array([x], "complex128")
    for inverse, fn in (("log", "exp"), ("asin", "sin"), ("acos", "cos"), ("asinh", "sinh"), ("acosh", "cosh")):
        if x == 0 and inverse == "log":
            continue
        back = ours(fn, ours(inverse, given))
        assert abs(back - given)[0] <= 1e-13 * max(1.0, abs(x)), (inverse, x)
    root = ours("sqrt", given)
    assert root.real[0] >= 0
    assert abs(root * root - given)[0] <= 1e-15 * abs(x)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("fn", ["add", "subtract", "multiply", "divide"])
def test_arithmetic_is_accurate(fn: BinaryFunction, dtype: str) -> None:
    x, y = ordinary(dtype), np.random.default_rng(2).permutation(ordinary(dtype))
    x, y = x[y != 0], y[y != 0]
    if fn in ("add", "subtract"):
        np.testing.assert_array_equal(ours(fn, x, y), numpys(fn, x, y))
    else:
        assert errors(ours(fn, x, y), numpys(fn, wider(x), wider(y)), dtype).max() < 2


def test_division_of_large_and_small_numbers() -> None:
    rng = np.random.default_rng(3)
    x, y = 10.0 ** rng.uniform(-18, 18, (2, 3000)) * np.exp(1j * rng.uniform(-PI, PI, (2, 3000)))
    x, y = (x * 1e18).astype("complex64"), (y * 1e18).astype("complex64")
    assert errors(ours("divide", x, y), numpys("divide", wider(x), wider(y)), "complex64").max() < 2


def pairs_of_special_values() -> tuple[HostArray, HostArray]:
    parts = (0.0, -0.0, 0.5, -1.0, 2.0, INF, -INF, NAN)
    x, y = np.meshgrid(cross(parts), cross(parts))
    return x.ravel(), y.ravel()


@pytest.mark.parametrize("fn", [fn for fn in ALL_BINARY if fn != "power"])
def test_binary_functions_of_special_values_are_numpys(fn: BinaryFunction) -> None:
    x, y = pairs_of_special_values()
    got, want = ours(fn, x, y), numpys(fn, x, y)
    assert got.dtype == want.dtype
    wrong = ~same(got.real, want.real) | ~same(got.imag, want.imag)
    assert not wrong.any(), list(zip(x[wrong], y[wrong], got[wrong], want[wrong], strict=True))[:9]


@settings(max_examples=200, deadline=None)
@given(
    x=st.lists(st.complex_numbers(allow_infinity=True, allow_nan=True), min_size=1, max_size=5),
    y=st.complex_numbers(allow_infinity=True, allow_nan=True),
)
def test_order_is_numpys(x: list[complex], y: complex) -> None:
    one, other = np.array([*x, y]), np.array([y] * len(x) + [x[0]])
    for fn in (*COMPARISONS, "minimum", "maximum"):
        np.testing.assert_array_equal(ours(fn, one, other), numpys(fn, one, other), fn)


@pytest.mark.parametrize("dtype", TYPES)
def test_power_is_accurate(dtype: str) -> None:
    """The rounding of y log x becomes a relative error, so that large exponents cost digits, as in NumPy."""
    rng = np.random.default_rng(4)
    x, y = (rng.normal(size=(2, 4000)) + 1j * rng.normal(size=(2, 4000))) * 2
    y[:1000] = np.round(y[:1000].real)
    y[1000:2000] = np.round(2 * y[1000:2000]) / 2
    x, y = x.astype(dtype), y.astype(dtype)
    assert errors(ours("power", x, y), numpys("power", wider(x), wider(y)), dtype).max() < 64


def test_power_of_zero_and_to_zero_is_numpys() -> None:
    bases = np.concatenate([cross((0.0, -0.0)), np.array([1 + 1j, complex(INF, 0), complex(NAN, 0)])])
    exponents = np.array([0, 1, 2, -1, 0.5, -0.5, 1j, 1 + 1j, -1 + 1j])
    x, y = (each.ravel() for each in np.meshgrid(bases, exponents))
    chosen = (x == 0) | (y == 0)
    np.testing.assert_array_equal(ours("power", x[chosen], y[chosen]), numpys("power", x[chosen], y[chosen]))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("exponent", [-32, -17, -3, -2, -1, 0, 1, 2, 3, 4, 7, 8, 15, 31, 32])
def test_power_with_a_known_whole_exponent(exponent: int, dtype: str) -> None:
    """By products alone: small ones are as exact as NumPy's."""
    x = ordinary(dtype)
    x = x[np.abs(x) > 0.1]
    type = COMPUTE[dtype]
    lets = Lets()
    operand: complexes.Pair = Name("re", type), Name("im", type)
    results = complexes.binary("power", operand, (Literal(float(exponent), type), Literal(0.0, type)), lets)
    used = {each.fn for tree in trees(results, lets) for each in subexpressions(tree) if isinstance(each, Apply)}
    assert not used & {"exp", "log", "log1p", "atan2", "cos", "sin"}
    got = joined(lets.evaluate(results, {"re": x.real.copy(), "im": x.imag.copy()}), x)
    want = numpys("power", wider(x), np.full_like(wider(x), exponent))
    assert errors(got, want, dtype).max() < max(2, 2 * abs(exponent))


@pytest.mark.parametrize("exponent", [-3, -2, -1, 1, 2, 3, 4])
def test_a_known_whole_power_of_the_four_zeros_is_numpys(exponent: int) -> None:
    x, lets = cross((0.0, -0.0)), Lets()
    results = complexes.binary(
        "power", (Name("re", "f64"), Name("im", "f64")), (Literal(float(exponent), "f64"), Literal(0.0, "f64")), lets
    )
    got = joined(lets.evaluate(results, {"re": x.real.copy(), "im": x.imag.copy()}), x)
    want = numpys("power", x, np.full_like(x, exponent))
    np.testing.assert_array_equal(got, want)
    assert (np.signbit(got.real) == np.signbit(want.real)).all()


@pytest.mark.parametrize(("fn", "step"), [("sum", "add"), ("prod", "multiply"), ("max", "maximum"), ("min", "minimum")])
def test_combine_is_one_step_of_a_reduction(fn: Any, step: BinaryFunction) -> None:
    x, y = operands_of("complex64", "complex64")
    assert complexes.combine(fn, x, y, Lets()) == complexes.binary(step, x, y, Lets())


def trees(results: tuple[Expr, ...], lets: Lets) -> list[Expr]:
    return [*(statement.value for statement in lets.statements), *results]


@pytest.mark.parametrize("fn", [*ALL_UNARY, *ALL_BINARY])
def test_nothing_is_computed_twice(fn: str) -> None:
    """Also when the operands are computed values: a kernel is printed from trees, in which everything costs."""
    pairs: list[complexes.Pair] = [
        (Apply("exp", (re,), "f32"), Apply("sin", (im,), "f32")) for re, im in operands_of("complex64", "complex64")
    ]
    lets = Lets()
    results = written(fn, pairs[: 1 if fn in ALL_UNARY else 2], lets)
    found = Counter(each for tree in trees(results, lets) for each in subexpressions(tree))
    assert [each for each, times in found.items() if times > 1 and not isinstance(each, Name | Literal)] == []
    assert {statement.name for statement in lets.statements} <= {each.name for each in found if isinstance(each, Name)}
    expected = {"isnan", "isinf", "isfinite", "real", "imag", "abs", *COMPARISONS}
    assert len(results) == (1 if fn in expected else 2)


def test_what_complex_numbers_do_not_have_is_refused() -> None:
    x, y = operands_of("complex64", "complex64")
    with pytest.raises(InvalidProgram, match="floor"):
        complexes.unary("floor", x, Lets())
    with pytest.raises(InvalidProgram, match="atan2"):
        complexes.binary("atan2", x, y, Lets())
