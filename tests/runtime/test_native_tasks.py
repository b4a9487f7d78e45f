"""Tasks on the processor become native code, as calls of decorated functions do."""

from __future__ import annotations

import contextvars
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import anygpu as ag
from anygpu.base import events
from anygpu.calls.offload import Offloaded
from anygpu.calls.options import options
from anygpu.native import calls as native_calls
from anygpu.placement.host_tasks import native_site, run_on_host
from anygpu.receipts.notes import Failure, made
from anygpu.receipts.receipt import Receipt
from tests.support.native_placement import tried_at_once

X = np.linspace(1, 3, 20_000)


@pytest.fixture(autouse=True)
def on_native(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every task counts: the first one is enough to try native code, which is used whatever it takes."""
    monkeypatch.setenv("ANYGPU_SOFTWARE_DEVICES", "off")
    with tried_at_once(), warnings.catch_warnings():
        warnings.simplefilter("default")
        yield


@pytest.fixture
def seen() -> Iterator[list[Any]]:
    """Everything that observers of the process are told of calls."""
    told: list[Any] = []

    def tell(note: Any, origin: Any) -> None:
        told.append((note, origin))

    events.calls.append(tell)
    yield told
    events.calls.remove(tell)


def ran(function: Callable[..., Any], *arguments: Any, **options: Any) -> Receipt:
    future = ag.submit(function, *arguments, **options)
    np.testing.assert_allclose(future.result(60), function(*arguments), rtol=1e-13)
    assert native_calls.background.settle(60)
    receipt = future.receipt
    assert receipt is not None
    return receipt


def wave(x: Any) -> Any:
    return np.sin(x) * 2 + x


def fails(x: Any) -> Any:
    raise ValueError("of the user")


def test_tasks_become_native_code() -> None:
    receipts = [ran(wave, X) for _ in range(8)]
    devices = [each.device for each in receipts]
    assert devices[0] == "numpy", "the first one is planned"
    # On a busy machine one of them may be a plain one, which native code is measured against.
    native = [each for each in receipts if each.device == "cpu"]
    assert len(native) >= 3, [each.reason for each in receipts]
    assert "native code is" in native[-1].reason
    assert native[-1].phases.queue > 0


def test_a_map_is_native_code() -> None:
    for _ in range(4):
        ran(wave, X)
    with ag.collect_receipts() as receipts:
        outcomes = ag.map(wave, [X + number for number in range(20)])
    assert len(receipts) == 20
    # On a busy machine a few may be plain ones, which native code is measured against.
    assert [each.device for each in receipts].count("cpu") >= 10, [each.reason for each in receipts]
    for number, outcome in enumerate(outcomes):
        np.testing.assert_allclose(outcome.value, wave(X + number), rtol=1e-13)


def test_each_task_is_told_of_once(seen: list[Any]) -> None:
    for _ in range(12):
        ran(wave, X)
    assert len(seen) == 12
    assert all(origin is not None for _, origin in seen)
    assert made(seen[-1][0]).device == "cpu"


def test_each_error_is_told_of_once(seen: list[Any]) -> None:
    for _ in range(6):
        with pytest.raises(ValueError, match="of the user"):
            ag.submit(fails, X).result(60)
    assert [(type(note), note.error) for note, _ in seen] == [(Failure, "ValueError")] * 6


def test_a_task_that_calls_an_offloaded_function_is_told_of_once(seen: list[Any]) -> None:
    inner = ag.offload(wave)

    def outer(x: Any) -> Any:
        return inner(x) * float(x[0])

    for _ in range(6):
        ag.submit(outer, X).result(60)
        native_calls.background.settle(60)
    tasks = [made(note).task.rpartition(".")[2] for note, _ in seen]
    assert tasks.count("outer") == 6


def test_a_task_runs_once_whatever_is_left_of_it() -> None:
    def counted(x: Any) -> Any:
        calls.append(x)
        return x + 1

    calls: list[Any] = []
    ran_by = Offloaded(counted, options())
    call = ran_by.call((X,), {})
    site = native_site(call)
    assert site is not None
    site.run_by(lambda function, arguments, keywords, begin: function(*arguments))
    value, note = contextvars.Context().run(run_on_host, call)
    assert np.array_equal(value, X + 1)
    assert len(calls) == 1
    assert made(note).task.endswith("counted")
