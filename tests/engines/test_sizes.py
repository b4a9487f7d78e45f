"""Every size is right: none, one, around powers of two, more groups than a dimension has, more than a binding."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import anygpu as ag
from anygpu.base.typing import HostArray
from anygpu.program.graph import Recorder
from anygpu.program.primitives import Gather, Pad
from tests.engines.compiled import NAMES, Running, running, spec_of

SIZES = (0, 1, 2, 63, 64, 65, 255, 256, 257, 1023, 1024, 1025)
#: One more than a dimension of groups of 256 has.
MANY = 65_535 * 256 + 1


@pytest.fixture(scope="module", params=NAMES)
def opened(request: pytest.FixtureRequest) -> Iterator[Running]:
    with running(request.param) as found:
        yield found


def values(size: int, dtype: str, seed: int = 0) -> HostArray:
    whole = np.random.default_rng(seed).integers(0, 100, size)
    return (whole > 50) if dtype == "bool" else whole.astype(dtype)


def check(opened: Running, function: Any, *arrays: HostArray, close: bool = False) -> None:
    for got, wanted in zip(opened.values(function, *arrays), _as_tuple(function(*arrays)), strict=True):
        assert got.shape == wanted.shape
        assert got.dtype == wanted.dtype
        if close:
            np.testing.assert_allclose(got, wanted, rtol=1e-5)
        else:
            np.testing.assert_array_equal(got, wanted)


def _as_tuple(found: Any) -> tuple[Any, ...]:
    return found if isinstance(found, tuple) else (found,)


@pytest.mark.sampled(gate=3)
@pytest.mark.parametrize("size", SIZES)
def test_functions_of_lines(opened: Running, size: int) -> None:
    # Whole numbers, small enough for sums of them to be exact in any order.
    def line(x: Any, y: Any) -> Any:
        return x * 2 + y, (x * y).sum(), np.cumsum(x), np.sort(x)

    check(opened, line, values(size, "float32"), values(size, "float32", seed=1))


@pytest.mark.parametrize("size", [0, 1, 65, 1025])
def test_moving_about(opened: Running, size: int) -> None:
    def line(x: Any, y: Any) -> Any:
        return np.concatenate([x, y, x[: size // 2]]), np.pad(x, (3, 1)), x > y, (x - y).max(initial=0)

    check(opened, line, values(size, "float32"), values(size, "float32", seed=1))


@pytest.mark.sampled(gate=3)
@pytest.mark.parametrize("size", [1, 65, 1025])
@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "float16"])
def test_narrow_types(opened: Running, size: int, dtype: str) -> None:
    def line(x: Any, y: Any) -> Any:
        return np.flip(x, 0), np.concatenate([x, y[: size // 2], y])

    check(opened, line, values(size, dtype), values(size, dtype, seed=1))
    if dtype in ("int8", "uint8"):
        check(opened, lambda x: (x + x, x.sum(dtype=dtype), np.sort(x)), values(size, dtype))


@pytest.mark.parametrize("size", SIZES)
def test_positions(opened: Running, size: int) -> None:
    recorder = Recorder()
    x, index = (
        values(max(size, 1), "float32"),
        np.random.default_rng(1).integers(0, max(size, 1), size).astype(np.int32),
    )
    source, places = recorder.input(spec_of(x)), recorder.input(spec_of(index))
    one = recorder.add(Gather(0), source, places)
    program = recorder.program([one])
    (picked,) = opened.execute(program, [opened.up(x), opened.up(index)])
    np.testing.assert_array_equal(opened.down(picked), x[index])


@pytest.mark.parametrize(
    "shape",
    [(1, 1, 1), (2, 3, 1), (1, 65, 63), (63, 1, 65), (65, 63, 2), (64, 64, 64), (257, 65, 127), (5, 0, 3), (0, 4, 3)],
)
def test_products(opened: Running, shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    x, y = values(m * k, "float32").reshape(m, k), values(k * n, "float32", seed=1).reshape(k, n)
    check(opened, lambda x, y: x @ y, x, y)


@pytest.mark.sampled(gate=5)
@pytest.mark.parametrize("shape", [(63, 65), (1, 1025), (1025, 1), (257, 3), (2, 2)])
def test_rows_and_columns(opened: Running, shape: tuple[int, int]) -> None:
    x = values(shape[0] * shape[1], "float32").reshape(shape)

    def both(x: Any) -> Any:
        orders = np.cumsum(x, axis=0), np.cumsum(x, axis=1), np.sort(x, axis=0), np.sort(x, axis=1)
        return x.sum(axis=0), x.sum(axis=1), x.max(axis=0), x.T, *orders

    check(opened, both, x)


def test_seven_dimensions(opened: Running) -> None:
    one = values(2 * 3 * 2 * 5, "float32").reshape(2, 1, 3, 1, 2, 1, 5)
    other = values(4 * 2 * 3, "float32", seed=1).reshape(1, 4, 1, 2, 1, 3, 1)
    check(opened, lambda x, y: (x * y + y, (x - y).sum(axis=(1, 4, 6)), np.moveaxis(x + y, 2, 5)), one, other)


@pytest.mark.sampled(gate=10)
@pytest.mark.parametrize("dtype", ["float32", "int8", "uint8", "bool", "float16"])
def test_more_groups_than_one_dimension_has(opened: Running, dtype: str) -> None:
    x = opened.up(given := np.resize(values(1009, dtype), MANY))
    if dtype == "bool":
        turned, total = opened.run(lambda x: (~x, x.all()), x)
        np.testing.assert_array_equal(opened.down(turned), ~given)
        assert not opened.down(total)
    else:
        doubled, total = opened.run(lambda x: (x + x, x.astype(np.int32).sum(dtype=np.int32)), x)
        np.testing.assert_array_equal(opened.down(doubled), given + given)
        assert opened.down(total) == given.sum(dtype=np.int64)


@pytest.mark.full
def test_long_lines(opened: Running) -> None:
    given = np.resize(values(1009, "int32"), MANY)
    x = opened.up(given)
    running_sum, moved = opened.run(lambda x: (np.cumsum(x, dtype=np.int32), np.concatenate([x[5:], x[:3]])), x)
    np.testing.assert_array_equal(opened.down(running_sum), np.cumsum(given, dtype=np.int32))
    np.testing.assert_array_equal(opened.down(moved), np.concatenate([given[5:], given[:3]]))


@pytest.mark.full
def test_a_long_order(opened: Running) -> None:
    given = np.random.default_rng(0).integers(0, 1 << 30, (1 << 17) + 1).astype(np.int32)
    check(opened, lambda x: np.sort(x), given)


@pytest.mark.full
def test_an_array_of_600_megabytes() -> None:
    size = 150_000_000
    with running("webgpu") as opened:
        assert opened.session.target.binding_bytes < 4 * size, "this adapter shows all of it at once"
        given = np.resize(values(1009, "float32"), size)
        # Both sides of every border between windows.
        borders = [border + step for border in range(0, size, 1 << 25) for step in (-2, -1, 0, 1, 2)]
        given[[each % size for each in borders]] = -3
        x = opened.up(given)
        changed, total = opened.run(lambda x: (x * 2 + 1, x.astype(np.int32).sum(dtype=np.int32)), x)
        wanted_total = int(given.astype(np.int32).sum(dtype=np.int64)) & 0xFFFFFFFF
        assert int(opened.down(total)) & 0xFFFFFFFF == wanted_total
        given *= 2
        given += 1
        np.testing.assert_array_equal(opened.down(changed), given)


# -- windows that are small, so that everything else about them can be tried quickly


@pytest.fixture(scope="module")
def narrowed() -> Iterator[Running]:
    with running("webgpu") as found:
        found.narrow_target(binding_bytes=4096)
        yield found


@pytest.mark.sampled(gate=3)
@pytest.mark.parametrize("dtype", ["float32", "uint8", "bool", "float16", "int16", "complex64", "int64"])
def test_small_windows(narrowed: Running, dtype: str) -> None:
    for nbytes in (4095, 4097, 10_007):
        given = values(-(-nbytes // np.dtype(dtype).itemsize), dtype)
        check(narrowed, lambda x: np.flip(x, 0), given)


@pytest.mark.full
def test_small_windows_in_every_kind_of_kernel(narrowed: Running) -> None:
    given = values(45 * 67, "float32").reshape(45, 67)
    check(narrowed, lambda x: (x.sum(axis=0), x.sum(axis=1), np.sort(x, axis=1), np.cumsum(x, axis=0)), given)
    check(narrowed, lambda x: x @ x.T, given)
    check(narrowed, lambda x: np.concatenate([x, x[3:]]), given)


@pytest.mark.sampled(gate=3)
@pytest.mark.parametrize("dtype", ["float32", "uint8", "float16"])
@pytest.mark.parametrize("start", [1, 9])
def test_small_windows_on_views_that_begin_anywhere(narrowed: Running, dtype: str, start: int) -> None:
    itemsize = np.dtype(dtype).itemsize
    for nbytes in (4096, 8192, 10_007):
        given = values(-(-nbytes // itemsize) + start, dtype)
        (part,) = narrowed.run(lambda x: x[start:], narrowed.up(given))
        (flipped,) = narrowed.run(lambda x: np.flip(x, 0), part)
        np.testing.assert_array_equal(narrowed.down(flipped), given[start:][::-1])


def test_padding_with_small_windows(narrowed: Running) -> None:
    recorder = Recorder()
    given, fill = values(3001, "float32"), np.array(7, np.float32)
    program = recorder.program(
        [recorder.add(Pad((5,), (6,)), recorder.input(spec_of(given)), recorder.input(spec_of(fill)))]
    )
    (padded,) = narrowed.execute(program, [narrowed.up(given), narrowed.up(fill)])
    np.testing.assert_array_equal(narrowed.down(padded), np.pad(given, (5, 6), constant_values=7))


@pytest.mark.parametrize("engine", ["webgpu", "opencl"])
def test_an_array_that_no_buffer_holds_is_refused_with_what_to_do(engine: str) -> None:
    (device, *_) = ag.devices(engine)
    too_many = device.limits["max-buffer-size"] // 8 + 1
    with pytest.raises(ag.errors.TooBig, match=r"can never fit on .*, whose limit is .* Split the data into chunks"):
        np.asarray(ag.zeros(too_many, dtype="float64", device=engine) + 1)
