"""Products with weights of few bits: one kernel each, which reads the bits, and never a copy of the weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from anygpu import nn
from anygpu.array.trace.tracing import record
from anygpu.base.typing import HostArray
from anygpu.program.graph import Recorder
from anygpu.program.primitives import Binary, Broadcast, Cast, Constant, Contract, Iota, Reshape
from tests.engines.compiled import NAMES, Running, running, spec_of

ROWS = [1, 2, 7, 12, 130]


@pytest.fixture(scope="module", params=NAMES)
def opened(request: pytest.FixtureRequest) -> Iterator[Running]:
    with running(request.param) as found:
        yield found


def normal(*shape: int) -> HostArray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def check(opened: Running, function: Any, *arrays: HostArray, largest: int) -> None:
    """`largest` is the most that anything may take which the kernels leave to each other."""
    (found,) = opened.values(function, *arrays)
    wanted = function(*arrays)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())
    plan = opened.engine.compile(record(function, *map(spec_of, arrays)), opened.device).schedule
    used = {binding.slot for kernel in plan.kernels for binding in kernel.bindings}
    between = [plan.slots[slot].nbytes for slot in used if plan.slots[slot].role == "temporary"]
    assert max(between, default=0) <= largest, [kernel.name for kernel in plan.kernels]


@pytest.mark.sampled(gate=7)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("bits", [8, 4])
def test_weights_are_read_as_they_are(opened: Running, rows: int, bits: int) -> None:
    inner, columns = 96, 320
    small = nn.quantise(normal(inner, columns), bits=bits, axis=1)

    def product(x: Any, data: Any, scale: Any) -> Any:
        return nn.quantised_matmul(x, nn.Quantised(data, scale, None, bits, (inner, columns), 1))

    check(opened, product, normal(rows, inner), small.data, small.scale, largest=0)


@pytest.mark.sampled(gate=3)
@pytest.mark.parametrize("rows", [1, 9])
@pytest.mark.parametrize("columns", [33, 66, 300])
def test_odd_columns(opened: Running, rows: int, columns: int) -> None:
    small = nn.quantise(normal(40, columns), bits=4, axis=1)

    def product(x: Any, data: Any, scale: Any) -> Any:
        return nn.quantised_matmul(x, nn.Quantised(data, scale, None, 4, (40, columns), 1))

    check(opened, product, normal(rows, 40), small.data, small.scale, largest=rows * columns * 16)


@pytest.mark.full
def test_weights_that_lie_the_other_way_round(opened: Running) -> None:
    for bits in (8, 4):
        small = nn.quantise(normal(272, 64), bits=bits, axis=0)

        def product(x: Any, data: Any, scale: Any, bits: int = bits) -> Any:
            weights = nn.Quantised(data, scale, None, bits, (272, 64), 0)
            return nn.quantised_matmul(x, weights, transposed=True)

        for rows in (1, 40):
            check(opened, product, normal(rows, 64), small.data, small.scale, largest=0)


def test_as_numpy_writes_it(opened: Running) -> None:
    """The scale is a part of the weights here. A long sum may be cut into parts of 64 terms or more."""
    small = nn.quantise(normal(300, 700), axis=1)

    def product(x: Any, data: Any, scale: Any) -> Any:
        return np.maximum(x @ (data.astype(np.float32) * scale), 0)

    for rows in (1, 200):
        parts = 300 // 64 * 700 * 4 if rows == 1 else 0
        check(opened, product, normal(rows, 300), small.data, small.scale, largest=parts)


def test_a_zero_point_is_taken_off_on_the_way(opened: Running) -> None:
    small = nn.quantise(normal(64, 256) + 1, axis=1, symmetric=False)

    def product(x: Any, data: Any, scale: Any, zero: Any) -> Any:
        return nn.quantised_matmul(x, nn.Quantised(data, scale, zero, 8, (64, 256), 1))

    check(opened, product, normal(20, 64), small.data, small.scale, small.zero, largest=0)


def test_a_long_row_of_few(opened: Running) -> None:
    """So long that it may be cut into parts, which are added up by another kernel."""
    small = nn.quantise(normal(5000, 512), axis=1)

    def product(x: Any, data: Any, scale: Any) -> Any:
        return nn.quantised_matmul(x, nn.Quantised(data, scale, None, 8, (5000, 512), 1))

    for rows in (1, 3):
        check(opened, product, normal(rows, 5000), small.data, small.scale, largest=5000 // 64 * rows * 512 * 4)


@pytest.mark.parametrize("rows", [1, 40])
def test_halves_of_bytes_by_their_number(opened: Running, rows: int) -> None:
    """Shifts are counted here, where nn.quantised_matmul looks them up."""
    packed = np.random.default_rng(0).integers(0, 256, (64, 160)).astype(np.uint8)
    x, shape = normal(rows, 64), (64, 160, 2)
    recorder = Recorder()
    a, data = recorder.input(spec_of(x)), recorder.input(spec_of(packed))

    def all_of(value: int) -> int:
        return recorder.add(Broadcast(shape), recorder.add(Constant((), "uint8", bytes([value]))))

    shifts = recorder.add(Binary("multiply"), recorder.add(Broadcast(shape), recorder.add(Iota(2, "uint8"))), all_of(4))
    pairs = recorder.add(Broadcast(shape), recorder.add(Reshape((64, 160, 1)), data))
    halves = recorder.add(Binary("bitwise_and"), recorder.add(Binary("right_shift"), pairs, shifts), all_of(15))
    weights = recorder.add(Cast("float32"), recorder.add(Reshape((64, 320)), halves))
    program = recorder.program([recorder.add(Contract((1,), (0,)), a, weights)])
    (found,) = opened.execute(program, [opened.up(x), opened.up(packed)])
    numbers = np.stack([packed & 15, packed >> 4], axis=-1).reshape(64, 320).astype(np.float32)
    np.testing.assert_allclose(opened.down(found), x @ numbers, rtol=1e-4, atol=1e-3)
    (kernel,) = opened.engine.compile(program, opened.device).schedule.kernels
    together = "load_b_vector(" in kernel.source or "vload2(" in kernel.source
    assert together, "bytes are read side by side"
