"""Programs that do not fit into a device's budget run in pieces, and the receipt says how they were cut."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from anygpu.calls.offload import Offloaded, Result
from anygpu.calls.options import options
from anygpu.errors import AnyGPUError
from anygpu.placement.planner import Planner
from anygpu.receipts.receipt import Receipt
from anygpu.workers.device_arrays.registry import DeviceRegistry

BUDGET = 8 << 20

Run = Callable[..., Result]


@pytest.fixture(params=["webgpu", "opencl"])
def run(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Calls functions on a device that may use 8 MiB."""
    monkeypatch.setenv("ANYGPU_MEMORY", str(BUDGET))
    places = DeviceRegistry()
    planner = Planner(known=places)
    known: dict[Any, Offloaded[..., Any]] = {}

    def call(function: Callable[..., Any], *arguments: Any) -> Result:
        wanted = options(on=request.param, fallback="raise")
        return known.setdefault(function, Offloaded(function, wanted, lambda: planner)).run(*arguments)

    yield call
    planner.close()
    places.close()


def check(receipt: Receipt) -> None:
    assert receipt.how is not None
    assert receipt.how.startswith("in ")
    assert "chunks" in receipt.how
    assert receipt.peak_bytes is not None
    assert receipt.peak_bytes <= BUDGET


@pytest.mark.full
def test_ten_times_the_budget_along_the_only_axis(run: Run) -> None:
    x = np.random.default_rng(0).normal(size=10 * BUDGET // 4).astype(np.float32)

    def function(x: Any) -> Any:
        return np.tanh(x) * 2 + x

    for _ in range(2):
        result = run(function, x)
        check(result.receipt)
        np.testing.assert_allclose(result.value, function(x), rtol=1e-5, atol=1e-6)


def test_rows_of_a_matrix_with_a_whole_operand_and_two_results(run: Run) -> None:
    draw = np.random.default_rng(1)
    x, w = draw.normal(size=(40_001, 128)).astype(np.float32), draw.normal(size=(128, 64)).astype(np.float32)

    def function(x: Any, w: Any) -> Any:
        y = x @ w
        e = np.exp(y - y.max(axis=1, keepdims=True))
        return e / e.sum(axis=1, keepdims=True), x.mean(axis=1)

    result = run(function, x, w)
    check(result.receipt)
    expected = function(x, w)
    np.testing.assert_allclose(result.value[0], expected[0], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(result.value[1], expected[1], rtol=1e-4, atol=1e-6)


@pytest.mark.full
def test_columns_are_cut_when_rows_depend_on_each_other(run: Run) -> None:
    x = np.random.default_rng(2).normal(size=(300, 40_000)).astype(np.float32)

    def function(x: Any) -> Any:
        return np.cumsum(x, axis=0)

    result = run(function, x)
    check(result.receipt)
    np.testing.assert_allclose(result.value, function(x), rtol=1e-3, atol=1e-3)


def test_what_cannot_be_cut_is_refused_with_the_reason(run: Run) -> None:
    x = np.random.default_rng(3).normal(size=4 * BUDGET // 4).astype(np.float32)
    with pytest.raises(AnyGPUError, match=r"would need .* cannot be split into chunks: no axis"):
        run(np.sort, x)
