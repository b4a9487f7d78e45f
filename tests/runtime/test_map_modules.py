"""Calls of modules that wait together: one launch if rows are proved to be independent, and never a wrong value."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import anygpu as ag
from anygpu.calls.call_table import CallTable
from anygpu.calls.options import options
from anygpu.errors import OutOfMemory
from anygpu.placement.call import Call
from anygpu.runtime import stacking
from anygpu.runtime.future import Future
from anygpu.runtime.runtime import Runtime
from anygpu.runtime.stacking import OpaqueBatches, cut, same
from anygpu.workers.device_arrays.registry import DeviceRegistry
from tests.runtime.holding import PATIENCE, Gate

Function = Callable[..., Any]


@pytest.fixture
def runtime(known: DeviceRegistry) -> Iterator[Runtime]:
    with Runtime(known=known, max_latency=60.0) as runtime:
        yield runtime


def perceptron() -> Function:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).eval()

    def classify(x: Any) -> Any:
        with torch.no_grad():
            return model(x)

    return classify


def items(*rows: int) -> list[Any]:
    rng = np.random.default_rng(0)
    return [rng.normal(size=(count, 6)).astype(np.float32) for count in rows]


def expected(function: Function, values: Sequence[Any]) -> list[Any]:
    return [function(torch.from_numpy(each)).numpy() for each in values]


def together(runtime: Runtime, function: Function, values: Sequence[Any]) -> list[Future]:
    """Submit them while the lane is held, so that all of them wait."""
    gate = Gate()
    held = runtime.submit(gate, 0, engine="torch")
    gate.wait()
    futures = [runtime.submit(function, each, engine="torch") for each in values]
    gate.open()
    held.result(PATIENCE)
    concurrent.futures.wait(futures, PATIENCE)
    return futures


def prepared(runtime: Runtime, function: Function) -> None:
    """Let it be proved and compared."""
    together(runtime, function, items(2, 2, 2))
    assert runtime._planner.settle(PATIENCE)
    together(runtime, function, items(*[2] * 5))


def ways(futures: Sequence[Future]) -> set[str | None]:
    return {future.receipt.how for future in futures if future.receipt is not None}


def test_calls_that_wait_become_one_launch(runtime: Runtime) -> None:
    classify = perceptron()
    prepared(runtime, classify)
    values = items(*[2] * 16)
    futures = together(runtime, classify, values)
    assert ways(futures) == {"in one launch of 16 calls"}
    for future, wanted in zip(futures, expected(classify, values), strict=True):
        found = future.result()
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
        assert found.base is None, "a view would keep the memory of all"
        assert future.receipt is not None
        assert future.receipt.bytes_to_device == values[0].nbytes
        assert future.receipt.predicted_bytes is not None


def test_items_may_differ_in_their_rows(runtime: Runtime) -> None:
    classify = perceptron()
    prepared(runtime, classify)
    values = items(1, 5, 2, 3, 1, 4, 2, 2)
    futures = together(runtime, classify, values)
    assert any(way is not None and "one launch" in way for way in ways(futures))
    for future, wanted in zip(futures, expected(classify, values), strict=True):
        np.testing.assert_allclose(future.result(), wanted, rtol=1e-5, atol=1e-6)


def test_dependent_rows_run_one_by_one_and_say_why(runtime: Runtime) -> None:
    def centred(x: Any) -> Any:
        return x - x.mean(0)

    prepared(runtime, centred)
    values = items(*[2] * 6)
    futures = together(runtime, centred, values)
    assert ways(futures) == {None}
    for future, value in zip(futures, values, strict=True):
        np.testing.assert_allclose(future.result(), value - value.mean(0), atol=1e-6)
        assert future.receipt is not None
        assert "not put into one launch: mean takes all rows together." in future.receipt.reason


def test_an_error_of_one_item_is_its_own(runtime: Runtime) -> None:
    table = nn.Embedding(10, 4).requires_grad_(False)

    def embed(index: Any) -> Any:
        return table(index)

    good = [np.array([[1, 2]]), np.array([[3, 4]])]
    for values in (good, [*good, *good]):
        together(runtime, embed, values)
        assert runtime._planner.settle(PATIENCE)
    futures = together(runtime, embed, [*good, np.array([[3, 40]]), *good])
    assert [type(future.exception()) for future in futures] == [type(None)] * 2 + [IndexError] + [type(None)] * 2


def test_a_module_that_begins_to_train_is_looked_at_again(runtime: Runtime) -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6)).eval().requires_grad_(False)

    def normalise(x: Any) -> Any:
        return model(x)

    prepared(runtime, normalise)
    assert ways(together(runtime, normalise, items(*[2] * 8))) == {"in one launch of 8 calls"}
    model.train()
    values = items(*[2] * 8)
    futures = together(runtime, normalise, values)
    assert ways(futures) == {None}
    found = futures[0].result()
    np.testing.assert_allclose(found.mean(0), 0, atol=1e-5)


def test_what_differs_in_one_launch_is_never_stacked_again(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    classify = perceptron()
    together(runtime, classify, items(2, 2, 2))
    assert runtime._planner.settle(PATIENCE)

    def wrong(value: Any, rows: Any, axes: Any) -> list[Any]:
        return [part + 1 for part in cut(value, rows, axes)]

    monkeypatch.setattr("anygpu.runtime.stacking.cut", wrong)  # no operator is known that would be
    values = items(*[2] * 4)
    with pytest.warns(ag.errors.DeviceFallback, match="runs item by item"):
        futures = [*together(runtime, classify, values), *together(runtime, classify, values)]
    for future, wanted in zip(futures, expected(classify, [*values, *values]), strict=True):
        np.testing.assert_allclose(future.result(), wanted, atol=1e-6)
    assert ways(futures) == {None}
    assert futures[-1].receipt is not None
    assert "other results in one launch" in futures[-1].receipt.reason


def test_a_launch_without_memory_is_made_of_single_calls(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    classify = perceptron()
    prepared(runtime, classify)

    def too_large(calls: Any) -> Any:
        raise OutOfMemory("torch:cpu")  # no card here could be full

    monkeypatch.setattr("anygpu.runtime.stacking.stacked", too_large)
    values = items(*[2] * 8)
    futures = together(runtime, classify, values)
    assert ways(futures) == {None}
    for future, wanted in zip(futures, expected(classify, values), strict=True):
        np.testing.assert_allclose(future.result(), wanted, atol=1e-6)


def test_cancelled_items_are_left_out(runtime: Runtime) -> None:
    classify = perceptron()
    prepared(runtime, classify)
    gate = Gate()
    held = runtime.submit(gate, 0, engine="torch")
    gate.wait()
    futures = [runtime.submit(classify, each, engine="torch") for each in items(*[2] * 8)]
    assert futures[3].cancel()
    gate.open()
    held.result(PATIENCE)
    concurrent.futures.wait(futures, PATIENCE)
    assert [future.cancelled() for future in futures] == [number == 3 for number in range(8)]
    assert ways([*futures[:3], *futures[4:]]) == {"in one launch of 7 calls"}


def test_map_of_a_module_gives_every_outcome(runtime: Runtime) -> None:
    function = ag.offload(engine="torch")(perceptron())
    values = items(*[3] * 40)
    for _ in range(3):
        outcomes = runtime.map(function, values)
        assert runtime._planner.settle(PATIENCE)
        for outcome, wanted in zip(outcomes, expected(function.function, values), strict=True):
            np.testing.assert_allclose(outcome.unwrap(), wanted, rtol=1e-5, atol=1e-6)


# -- decisions


@pytest.fixture
def call(runtime: Runtime) -> Call:
    from anygpu.calls.signature import signature
    from anygpu.placement.call import call_of

    (x,) = items(2)
    made = call_of(perceptron(), CallTable(options(engine="torch")), runtime._planner, signature((x,), {}), (x,), {})
    made.site.chooser.consider({"torch:cpu": 1e-3})
    made.site.chooser.measured("torch:cpu", 1e-3)
    return made


def test_a_launch_that_gains_nothing_is_given_up(call: Call) -> None:
    batches = OpaqueBatches()
    batches.proof = type("Proof", (), {"is_proved": True, "reason": None})()
    batches.compared = {"torch:cpu"}
    assert batches.how_many(call, 64, 60.0) == 64
    for size in (4, 16, 64):
        for _ in range(5):
            batches.launched(call, "torch:cpu", size, 1e-3 * size, disturbed=False)
    assert batches.how_many(call, 64, 60.0) == 1
    assert [batches.how_many(call, 64, 60.0) for _ in range(3)] == [1, 1, 1]


def test_a_launch_keeps_to_the_free_memory(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = OpaqueBatches()
    batches.proof = type("Proof", (), {"is_proved": True, "reason": None})()
    batches.compared = {"torch:cpu"}
    form = call.form.form
    form._peaks["torch:cpu"] = {2: 20 << 20, 4: 40 << 20}
    # Stands in for a card with little memory.
    monkeypatch.setattr(stacking, "free_bytes", lambda *_: 500 << 20)
    assert batches.how_many(call, 256, 60.0) == 16
    monkeypatch.setattr(stacking, "free_bytes", lambda *_: 50 << 30)
    assert batches.how_many(call, 256, 60.0) == 256


def test_parts_are_copied_unless_they_are_most_of_it() -> None:
    value = {"a": np.arange(24.0).reshape(12, 2), "b": np.arange(36.0).reshape(3, 12)}
    parts = cut(value, (1, 3, 2), (0, 1))
    np.testing.assert_array_equal(np.concatenate([part["a"] for part in parts]), value["a"])
    np.testing.assert_array_equal(np.concatenate([part["b"] for part in parts], axis=1), value["b"])
    assert parts[0]["a"].base is None
    with pytest.raises(ValueError, match="rows of the arguments"):
        cut(np.ones(7), (1, 2), (0,))
    with pytest.raises(ValueError, match="others than those"):
        cut((np.ones(3), np.ones(3)), (1, 2), (0,))


def test_results_are_the_same_within_rounding() -> None:
    x = np.linspace(0, 1, 10, dtype=np.float32)
    assert same(x, x + np.float32(1e-6))
    assert not same(x, x + np.float32(1e-2))
    assert not same(x, x.astype(np.float64))
    assert not same((x,), [x])
    assert same(np.array([np.nan, 1.0]), np.array([np.nan, 1.0]))
