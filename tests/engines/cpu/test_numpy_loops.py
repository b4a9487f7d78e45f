"""NumPy's own loops: the same bits for parts of an array as for all of it, and in native code."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from anygpu.engines.cpu import numpy_loops
from anygpu.engines.cpu.engine import executable
from anygpu.engines.cpu.numpy_loops import loop_symbols, mark_of_numpy, rounding, with_steps
from anygpu.errors import CannotCompile
from anygpu.program.exactness import NEAR, has_loop, judged
from anygpu.program.functions import BINARY, FUNCTIONS, UNARY
from anygpu.program.graph import Node, Program
from anygpu.program.ops.elementwise import BitwiseBinary, BitwiseUnary
from anygpu.program.primitives import Binary, Input, Unary
from tests.native.random_functions import same_bits

LOOPED = sorted(fn for fn in NEAR if has_loop(fn))
DTYPES = ("float32", "float64")
SIZES = (1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 64, 100, 255, 1000)


def numbers(fn: str, dtype: str, count: int, seed: int = 0) -> list[Any]:
    """Operands of all magnitudes, with zeros, infinities and NaN."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(2 if fn in BINARY else 1):
        x = rng.normal(size=count) * 10.0 ** rng.integers(-6, 3, count)
        x[:: max(1, count // 11)] = rng.choice([0.0, -0.0, 1.0, np.inf, -np.inf, np.nan, 1e-310, 700.0])
        found.append(x.astype(dtype))
    return found


@pytest.fixture(autouse=True)
def silent() -> Any:
    with np.errstate(all="ignore"):
        yield


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fn", LOOPED)
def test_parts_have_the_bits_of_the_whole(fn: str, dtype: str) -> None:
    ufunc = getattr(np, FUNCTIONS[fn].numpy_name)
    given = numbers(fn, dtype, 3001)
    whole = ufunc(*given)
    for size in SIZES:
        for first in (0, 1, 5):
            parts = [
                ufunc(*(x[at : at + size] for x in given)) for at in range(first, min(3001, first + 20 * size), size)
            ]
            part = np.concatenate(parts)
            assert same_bits(part, whole[first : first + len(part)])
    for step in (2, 3):
        spread = [np.repeat(x, step)[::step] for x in given]
        assert same_bits(ufunc(*spread), whole)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fn", LOOPED)
def test_native_code_has_the_bits_of_numpys_loops(fn: str, dtype: Any) -> None:
    ufunc = getattr(np, FUNCTIONS[fn].numpy_name)
    for count in (3, 10_007):
        given = numbers(fn, dtype, count, seed=count)
        inputs = [Node(Input((count,), dtype)) for _ in given]
        op = BitwiseBinary(fn) if fn in BINARY else BitwiseUnary(fn)  # type: ignore[arg-type]
        program = Program([*inputs, Node(op, tuple(range(len(given))))], [len(given)])
        (result,) = executable(program)(given)
        assert same_bits(result, ufunc(*given))


def lengths(dtype: Any, count: int) -> Program:
    inputs = [Node(Input((count,), dtype)), Node(Input((count,), dtype))]
    return Program([*inputs, Node(BitwiseBinary("hypot"), (0, 1))], [2])


def test_lengths_take_the_steps_of_the_c_library_where_these_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numpy_loops, "_is_rooted_as_double", lambda: True)
    assert [with_steps(lengths(dtype, 3)).nodes[2].op.loop for dtype in DTYPES] == ["steps", "numpy"]  # type: ignore[attr-defined]
    monkeypatch.setattr(numpy_loops, "_is_rooted_as_double", lambda: False)
    assert with_steps(lengths("float32", 3)).nodes[2].op == BitwiseBinary("hypot")


def test_lengths_near_the_middle_of_two_floats_are_rounded_twice() -> None:
    """As glibc does: an infinity beside a NaN, and each sign of NaN, too."""
    nan = np.float32(np.nan)
    special = np.array([nan, -nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, -3e38, 1.0], np.float32)
    pairs = [np.tile(each.ravel(), 7) for each in np.meshgrid(special, special)]
    x = 1 + np.random.default_rng(3).random(50_000, np.float32)
    # So that the sum is next to the square of a number between x and the next float.
    y = np.sqrt((x + 2.0**-24) ** 2 - x.astype(np.float64) ** 2).astype(np.float32)
    for one, other in (pairs, (x, y), (-y, x)):
        (result,) = executable(lengths("float32", len(one)))([one, other])
        assert same_bits(result, np.hypot(one, other))


def test_a_libc_that_rounds_once_is_not_taken_for_glibc(monkeypatch: pytest.MonkeyPatch) -> None:
    def rounded_once(x: Any, y: Any) -> Any:
        exact = np.sqrt(x.astype(np.longdouble) ** 2 + y.astype(np.longdouble) ** 2)
        return np.where(np.isinf(x) | np.isinf(y), np.inf, exact).astype(np.float32)

    if np.finfo(np.longdouble).nmant <= 52:
        pytest.skip("long double has no more digits here")
    monkeypatch.setattr(np, "hypot", rounded_once)
    assert not numpy_loops._is_rooted_as_double.__wrapped__()


@pytest.mark.skipif(rounding() != "complex", reason="this NumPy multiplies complex numbers in another way")
@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("fn", ["multiply", "abs"])
def test_complex_numbers(fn: str, dtype: Any) -> None:
    rng = np.random.default_rng(1)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-300, 1e300, 2.0, 3e-320]
    for count in (1, 2, 17, 5003):
        parts = rng.normal(size=(4, count)) * 10.0 ** rng.integers(-20, 20, (4, count))
        parts[rng.random(parts.shape) < 0.2] = rng.choice(special)
        given = [(re + 1j * im).astype(dtype) for re, im in (parts[:2], parts[2:])]
        given = given if fn == "multiply" else given[:1]
        op = BitwiseBinary("multiply") if fn == "multiply" else BitwiseUnary("abs")
        inputs = [Node(Input((count,), dtype)) for _ in given]
        program = Program([*inputs, Node(op, tuple(range(len(given))))], [len(given)])
        (result,) = executable(program)(given)
        assert same_bits(result, getattr(np, FUNCTIONS[fn].numpy_name)(*given))


def magnitude_below(limit: Any, dtype: Any, count: int, fn: Any) -> Program:
    """Whether magnitudes are below a number, as one nest."""
    from anygpu.program.primitives import Broadcast, Constant

    real: Any = "float32" if dtype == "complex64" else "float64"
    nodes = [
        Node(Input((count,), dtype)),
        Node(Unary("abs"), (0,)),
        Node(Constant((), real, np.asarray(limit, real).tobytes())),
        Node(Broadcast((count,)), (2,)),
        Node(Binary(fn), (1, 3)),
    ]
    return Program(nodes, [4])


@pytest.mark.skipif(rounding() != "complex", reason="this NumPy multiplies complex numbers in another way")
@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("fn", ["less", "less_equal"])
def test_magnitudes_near_a_limit(fn: str, dtype: Any) -> None:
    angles = np.random.default_rng(2).uniform(0, 7, 20_000)
    for limit in (2.0, 0.3):
        z = (limit * np.exp(1j * angles)).astype(dtype)
        z[:6] = [np.nan, np.inf, complex(np.nan, np.inf), 0, limit, 1j * limit]
        program = magnitude_below(limit, dtype, len(z), fn)
        assert judged(program, rounding()).loops == {1}
        (result,) = executable(program)([z])
        expected = getattr(np, fn)(np.abs(z), np.abs(z).dtype.type(limit))
        assert result.tobytes() == expected.tobytes()
        assert 0.01 < expected.mean() < 0.99


def test_the_mark_names_numpy_and_the_processors_features() -> None:
    version, features = mark_of_numpy()
    assert version == np.__version__
    assert list(features) == sorted(features)
    assert all(isinstance(each, str) for each in features)


def test_a_loop_that_is_not_there_is_refused() -> None:
    assert loop_symbols(["numpy.exp.float64"])["numpy.exp.float64"]
    with pytest.raises(CannotCompile, match=r"np\.exp has no loop of its own for int8"):
        loop_symbols(["numpy.exp.int8"])


def test_every_function_that_rounds_by_itself_is_known() -> None:
    assert set(NEAR) <= {*UNARY, *BINARY}
    assert "erf" in NEAR
    assert not has_loop("erf")
    assert not has_loop("add")
