"""The reason in a receipt is the reason of that call, also of quiet ones whose receipts are made later."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anygpu as ag
from anygpu.calls.background import LOOKING
from anygpu.calls.offload import Offloaded
from anygpu.calls.options import options
from anygpu.placement.planner import Planner
from anygpu.receipts.receipt import Receipt
from anygpu.runtime.runtime import Runtime
from tests.support.slowed import SlowedRegistry

pytestmark = [
    pytest.mark.software_devices("reasons are those of calls that are planned and may move"),
    pytest.mark.native_off("native code has reasons of its own"),
]


@pytest.fixture
def planner() -> Planner:
    planner = Planner(known=SlowedRegistry("opencl:0"))
    planner.seconds = LOOKING
    planner.wake()
    assert planner.settle(120)
    return planner


def positive_total(x: Any) -> Any:
    return np.sin(x[x > 0]).sum()


def chain(x: Any) -> Any:
    for _ in range(20):
        x = np.maximum(x * 1.01 + 0.5, -2.0)
    return x


def receipts_of(planner: Planner, function: Any, *arguments: Any, calls: int) -> list[Receipt]:
    offloaded: Offloaded[..., Any] = Offloaded(function, options(), lambda: planner)
    found: list[Receipt] = []
    for _ in range(calls):
        offloaded(*arguments)
        receipt = ag.last_receipt()
        assert receipt is not None
        found.append(receipt)
        assert planner.settle(120)
    return found


def test_a_function_that_cannot_be_recorded_says_so_in_every_receipt_once_that_is_known(planner: Planner) -> None:
    x = np.random.default_rng(0).normal(size=300_000)
    found = receipts_of(planner, positive_total, x, calls=40)
    known = [number for number, receipt in enumerate(found) if "cannot be traced" in receipt.reason]
    assert known, found[-1].reason
    assert known == list(range(known[0], 40)), "from then on, quiet calls too"
    for receipt in found[: known[0]]:
        assert any(part in receipt.reason for part in ("new", "at first", "per call", "first call")), receipt.reason
    assert all(receipt.device == "numpy" for receipt in found)


def test_every_receipt_is_about_the_device_that_it_ran_on(planner: Planner) -> None:
    x = np.random.default_rng(0).normal(size=900_000).astype(np.float32)
    found = receipts_of(planner, chain, x, calls=60)
    assert {"numpy", "opencl:0"} == {receipt.device for receipt in found}
    for receipt in found:
        if "this call measures it" in receipt.reason:
            assert receipt.device == "opencl:0"
        if "first call" in receipt.reason or "it is new" in receipt.reason:
            assert receipt.device == "numpy"
        if "predicted for opencl:0" in receipt.reason:
            assert receipt.device == "numpy"
        assert receipt.reason.endswith(".")


def test_a_function_shorter_than_any_device_says_so(planner: Planner) -> None:
    def tiny(x: Any) -> Any:
        return np.sort(x, axis=0)

    x = np.ones(3)
    found = receipts_of(planner, tiny, x, calls=5)
    assert {receipt.device for receipt in found} == {"numpy"}
    for each in found:
        assert "new" in each.reason or "at first" in each.reason or "no device responds" in each.reason, each.reason


def test_a_reason_is_kept_as_it_was_while_later_calls_have_others(planner: Planner) -> None:
    offloaded: Offloaded[..., Any] = Offloaded(positive_total, options(), lambda: planner)
    x = np.random.default_rng(0).normal(size=300_000)
    with ag.collect_receipts() as collected:
        for _ in range(20):
            offloaded(x)
            assert planner.settle(120)
    assert [each.reason for each in collected] == [each.reason for each in list(collected)]
    assert collected[0].reason != collected[-1].reason


def test_receipts_of_tasks_have_reasons_of_their_own(planner: Planner) -> None:
    x = np.random.default_rng(0).normal(size=300_000)
    with Runtime(known=planner.places) as runtime:
        runtime._planner.add_seconds(LOOKING)  # as if calls had taken long enough for a look at the machine
        for _ in range(30):
            future = runtime.submit(positive_total, x)
            future.result(60)
            assert future.receipt is not None
            assert future.receipt.reason.endswith("."), repr(future.receipt.reason)
        assert future.receipt is not None
        assert "cannot be traced" in future.receipt.reason
