"""Another thread gives up tracing a function while a call of it is on a device: that call returns its result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from anygpu.calls.offload import Offloaded
from anygpu.placement import explore
from anygpu.placement.call_site import CallSite
from anygpu.placement.device_call import sample_now
from anygpu.placement.planner import Planner
from anygpu.program.graph import Program
from anygpu.receipts.notes import last_receipt
from tests.placement.moved import moved
from tests.support.wrong_results import WrongRegistry

pytestmark = pytest.mark.software_devices("calls move by themselves while another thread gives up tracing")

DEVICE = "torch:cpu"
X = np.arange(8.0)


def halves(x: Any) -> Any:
    return np.sin(x) / (x + 1) + 2


class Interrupted:
    """A function whose calls go to a device, where something happens while the next one runs."""

    def __init__(self) -> None:
        self.then: Callable[[], None] | None = None
        self.planner = Planner(known=WrongRegistry(DEVICE, self._run))
        self.function: Offloaded[..., Any]
        self.site: CallSite
        self.function, self.site = moved(self.planner, halves, X, device=DEVICE)

    def _run(self, program: Program, run: int) -> bool:
        then, self.then = self.then, None
        if then is not None:
            then()
        return False

    def give_up(self) -> None:
        with self.planner.lock:
            self.site.refuse("its global K changes from call to call")


@pytest.fixture
def interrupted(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Interrupted:
    monkeypatch.setenv("ANYGPU_CACHE_DIR", str(tmp_path))
    return Interrupted()


def test_while_a_call_runs(interrupted: Interrupted) -> None:
    interrupted.then = interrupted.give_up
    assert np.allclose(interrupted.function(X), halves(X))
    receipt = last_receipt()
    assert receipt is not None
    assert receipt.device == DEVICE
    assert np.allclose(interrupted.function(X), halves(X))


def test_before_a_call_begins_to_run(interrupted: Interrupted, monkeypatch: pytest.MonkeyPatch) -> None:
    choose = vars(interrupted.site.chooser)["choose"]

    def chosen(waiting: Any = None) -> Any:
        interrupted.site.refuse("its global K changes from call to call")
        return choose(waiting)

    monkeypatch.setitem(vars(interrupted.site.chooser), "choose", chosen)
    assert np.allclose(interrupted.function(X), halves(X))
    receipt = last_receipt()
    assert receipt is not None
    assert receipt.device == "numpy"


def test_before_what_was_measured_is_used(interrupted: Interrupted) -> None:
    call = interrupted.function.call((X,), {})
    assert call.given() is not None
    interrupted.give_up()
    assert sample_now(call, halves(X)) is None
    explore._start_trial(call, DEVICE, halves(X))
    interrupted.site.candidates.consider(interrupted.planner)
    assert interrupted.site.candidates.considering == 0.0
    assert not interrupted.site.candidates.predictions
