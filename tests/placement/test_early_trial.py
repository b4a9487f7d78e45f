"""A device that is open and promises much is tried at once, and the fourth call is there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import anygpu as ag
from anygpu.placement import call_site, explore
from anygpu.placement.offload import Offloaded
from anygpu.placement.options import options
from anygpu.placement.pacing import LOOKING
from anygpu.placement.planner import Planner
from anygpu.plan import choosing
from anygpu.plan.renting import CALLS_WAITED
from anygpu.residency.registry import DeviceRegistry

X = np.random.default_rng(0).normal(size=900_000).astype(np.float32)


def chain(x: Any) -> Any:
    """Sixty passes over memory in NumPy, one in a fused kernel."""
    for _ in range(20):
        x = np.maximum(x * 1.01 + 0.5, -2.0)
    return x


@pytest.fixture
def planner(monkeypatch: pytest.MonkeyPatch) -> Planner:
    """With an open device. What is clear, and what calls can pay for, depends on how fast the machine is: not here."""
    monkeypatch.setattr(choosing, "is_clear", lambda expected, baseline: True)
    monkeypatch.setattr(choosing, "EARLY_SHARE", 1000.0)
    planner = Planner(known=DeviceRegistry())
    planner.machine()
    assert planner.worker("opencl:0").alive
    return planner


def receipts(planner: Planner, calls: int) -> list[ag.Receipt]:
    function: Offloaded[..., Any] = Offloaded(chain, options(), lambda: planner)
    return [function.run(X).receipt for _ in range(calls)]


@pytest.mark.full
def test_at_most_three_calls_pass(planner: Planner, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (explore, call_site):
        monkeypatch.setattr(module, "CALLS_WAITED", 10_000 if module is explore else 1)  # a busy machine is slow
    made = receipts(planner, 4)
    assert "opencl:0" in [receipt.device for receipt in made]
    (there, *_) = [receipt for receipt in made if receipt.device == "opencl:0"]
    assert "opencl:0 took" in there.reason
    assert not planner.places.explorers._workers, "the open worker itself was tried"


class Noted:
    """An event that notes for how long it was waited for, and comes or does not."""

    def __init__(self, comes: bool) -> None:
        self.comes = comes
        self.waited: list[float] = []

    def set(self) -> None: ...

    def wait(self, seconds: float) -> bool:
        self.waited.append(seconds)
        return self.comes


@pytest.mark.parametrize("is_compiled", [True, False])
def test_a_call_waits_only_so_long(planner: Planner, monkeypatch: pytest.MonkeyPatch, is_compiled: bool) -> None:
    compiled, ended = Noted(is_compiled), Noted(False)
    monkeypatch.setattr(call_site, "EarlyTrial", lambda: SimpleNamespace(compiled=compiled, ended=ended))
    monkeypatch.setattr(explore, "_try_out", lambda *arguments: None)  # it never ends
    made = receipts(planner, 8)
    assert {receipt.device for receipt in made} == {"numpy"}
    assert len(compiled.waited) == 1, "one call waits, and no other"
    assert len(ended.waited) == is_compiled, "none waits for what is not compiled"
    slowest = max(receipt.phases.run for receipt in made)
    assert 0 < compiled.waited[0] <= slowest, "for a compiler as long as a call takes"
    assert all(waited <= CALLS_WAITED * slowest for waited in ended.waited)


def test_a_device_that_is_not_open_is_not_tried_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "is_clear", lambda expected, baseline: True)
    planner = Planner(known=DeviceRegistry())
    planner.seconds = LOOKING
    planner.wake()
    assert planner.settle(60)
    assert {receipt.device for receipt in receipts(planner, 4)} == {"numpy"}
    assert not planner.is_open("opencl:0")
