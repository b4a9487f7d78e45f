"""The memory of opaque tasks: measured, remembered, predicted for other rows, and kept to."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from anygpu.calls.call_table import CallTable
from anygpu.calls.offload import Calls
from anygpu.calls.options import options
from anygpu.engines.torch.engine import TorchEngine
from anygpu.errors import OutOfMemory
from anygpu.placement.history.history import History
from anygpu.placement.opaque_form import OpaqueForm, predicted_peak, without_memory
from anygpu.placement.planner import Planner
from anygpu.workers.device_arrays.registry import DeviceRegistry

if TYPE_CHECKING:
    from anygpu.placement.call import Call

MIB = 1 << 20


# -- predictions


def test_what_was_seen_is_believed() -> None:
    assert predicted_peak({}, 10) is None
    assert predicted_peak({10: 100}, 10) == 100
    assert predicted_peak({10: 100}, 30) == 300
    assert predicted_peak({0: 100}, 0) == 100


@given(constant=st.integers(0, 1 << 30), slope=st.integers(0, 1 << 20), rows=st.integers(1, 5000))
def test_a_line_through_what_was_seen_predicts_other_rows(constant: int, slope: int, rows: int) -> None:
    seen = {count: constant + slope * count for count in (8, 64, 100)}
    found = predicted_peak(seen, rows)
    assert found is not None
    assert found == pytest.approx(constant + slope * rows, rel=1e-6, abs=2)


@given(
    seen=st.dictionaries(st.integers(1, 1000), st.integers(0, 1 << 40), min_size=2, max_size=6),
    rows=st.integers(1, 2000),
)
def test_more_rows_never_take_less(seen: dict[int, int], rows: int) -> None:
    found = predicted_peak(seen, rows)
    assert found is not None
    if rows not in seen:
        assert found >= max((peak for count, peak in seen.items() if count < rows), default=0)


def test_devices_without_the_memory_are_named() -> None:
    short = without_memory(
        {"torch:cuda:0": 3100 * MIB, "torch:cpu": 10 * MIB, "torch:xpu:0": None},
        {"torch:cuda:0": 2048 * MIB, "torch:cpu": None, "torch:xpu:0": 1},
    )
    assert [each.sentence for each in short] == ["torch:cuda:0 needs about 3.0 GiB for it, and 2.0 GiB are free."]


# -- calls


@pytest.fixture(scope="module")
def places() -> Iterator[DeviceRegistry]:
    known = DeviceRegistry()
    yield known
    known.close()


def network() -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(500, 4000), nn.ReLU(), nn.Linear(4000, 2)).eval()

    def wide(x: Any) -> Any:
        with torch.no_grad():
            return model(x)

    return wide


def calls_of(places: DeviceRegistry, history: History, **given: Any) -> tuple[Calls, Planner]:
    planner = Planner(known=places, history=lambda: history)
    return Calls(network(), CallTable(options(engine="torch", **given)), lambda: planner), planner


def rows(count: int) -> Any:
    return np.ones((count, 500), np.float32)


def learn(folder: str) -> None:
    places = DeviceRegistry()
    path = Path(folder) / "history" / "calls.1"
    first, planner = calls_of(places, History(path))
    receipts = [first.run(rows(count)).receipt for count in (500, 500, 500, 500, 1000, 1000, 1000)]
    assert receipts[0].predicted_bytes is None
    assert receipts[0].peak_bytes is not None
    assert receipts[3].peak_bytes is None
    assert "first 3 calls" in receipts[3].unknown["peak_bytes"]
    planner.recall.save(10.0)
    planner.close()

    second, planner = calls_of(places, History(path))
    (learnt,) = {receipt.predicted_bytes for receipt in [second.run(rows(500)).receipt]}
    assert learnt is not None
    # The hidden layer, before and after the activation, and a copy of the argument.
    assert learnt == pytest.approx(500 * (2 * 4000 + 500) * 4, rel=0.25)
    predicted = second.run(rows(3000)).receipt.predicted_bytes
    assert predicted == pytest.approx(3000 * (2 * 4000 + 500) * 4, rel=0.25)
    planner.close()
    places.close()


def test_memory_is_learnt_and_outlives_the_process(tmp_path: Path) -> None:
    """In a process of its own: one that has run other tests has free memory at hand, and such a call takes less."""
    script = "import sys; from tests.placement.test_opaque_form import learn; learn(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("measured", "learnt"),
    [
        ([900], 900),
        ([900, 100], 100),  # the first call of a process takes more
        ([900, 100, 101], 101),
        ([900, 100, 3], 100),  # another thread freed memory meanwhile
        ([100, 101, 102, 5], 101),
        ([100, 101, 102, 900], 102),
    ],
)
def test_one_measurement_that_others_disturbed_is_not_believed(measured: list[int], learnt: int) -> None:
    form = OpaqueForm("form")
    for peak in measured:
        form.is_to_be_measured("torch:cpu", 8)
        form.measured(cast("Call", None), "torch:cpu", 8, peak)
    assert form.predicted("torch:cpu", 8) == learnt


class StandInMeter:
    """Stands in for the memory of a card, of which 100 MiB are free."""

    def __init__(self, before: int = 0, peak: int = 3100 * MIB, after: int = 64 * MIB) -> None:
        self._now = before
        self._peak = peak
        self._after = after

    def begin(self) -> None:
        pass

    def now(self) -> int:
        return self._now

    def peak(self) -> int:
        self._now = self._after
        return self._peak

    def free(self) -> int:
        return 100 * MIB


def test_a_device_without_the_memory_is_refused(places: DeviceRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TorchEngine, "meter", lambda self, device: StandInMeter())
    given, planner = calls_of(places, History(None), fallback="raise")
    given.run(rows(10))
    with pytest.raises(
        OutOfMemory, match=r"about 3\.0 GiB for it, and 100\.0 MiB are free.*anygpu history clear"
    ) as raised:
        given.run(rows(10))
    assert raised.value.requested == 3100 * MIB
    plan = given.explain(rows(10))
    assert any("100.0 MiB are free" in each.sentence for each in plan.refused)
    planner.close()

    allowed, planner = calls_of(places, History(None), fallback="allow")
    allowed.run(rows(10))
    receipt = allowed.run(rows(10)).receipt
    assert "100.0 MiB are free. No other device has more, so it is tried." in receipt.reason
    assert receipt.predicted_bytes == 3100 * MIB
    planner.close()


@pytest.mark.parametrize(("after", "peak"), [(100, 30), (120, 30), (40, 90)])
def test_what_others_free_meanwhile_does_not_make_a_peak_smaller(
    places: DeviceRegistry, monkeypatch: pytest.MonkeyPatch, after: int, peak: int
) -> None:
    """100 MiB were taken before the call, and 130 at most. When 60 of them were freed, the call took 90."""
    meter = StandInMeter(100 * MIB, 130 * MIB, after * MIB)
    monkeypatch.setattr(TorchEngine, "meter", lambda self, device: meter)
    given, planner = calls_of(places, History(None))
    assert given.run(rows(10)).receipt.peak_bytes == pytest.approx(peak * MIB, abs=MIB)
    planner.close()


def test_closures_of_one_code_are_told_apart(places: DeviceRegistry) -> None:
    planner = Planner(known=places)
    table = CallTable(options(engine="torch"))
    one, other = network(), network()
    forms = {Calls(each, table, lambda: planner).call((rows(2),), {}).form.form for each in (one, one, other)}
    assert len(forms) == 2
    planner.close()


def test_arguments_that_differ_in_rows_have_one_form(places: DeviceRegistry) -> None:
    planner = Planner(known=places)
    calls = Calls(network(), CallTable(options(engine="torch")), lambda: planner)
    assert calls.call((rows(2),), {}).form.form is calls.call((rows(7),), {}).form.form
    assert calls.call((rows(7),), {}).form.rows == 7
    assert calls.call((rows(7), rows(8)), {}).form.rows is None
    assert calls.call((np.ones((2, 3)),), {}).form.form is not calls.call((np.ones((2, 4)),), {}).form.form
    planner.close()
