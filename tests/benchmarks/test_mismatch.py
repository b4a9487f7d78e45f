"""Of functions for which a device is wrong in one element, none returns what the device gave."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from anygpu.placement.planner import Planner
from benchmarks.mismatch import DEVICE, called
from tests.support.wrong_results import WrongRegistry


@pytest.mark.software_devices("calls move by themselves to a device that is wrong")
def test_no_wrong_result_is_returned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = WrongRegistry(DEVICE, lambda program, run: True)
    planner = Planner(known=places)
    planner._look()
    assert planner.machine().device(DEVICE) is not None
    monkeypatch.setenv("ANYGPU_CACHE_DIR", str(tmp_path))
    # A third of the functions decide something by a last bit, and stay on NumPy.
    tally = Counter(called(seed, planner, places.wrong) for seed in range(100))
    assert not tally["MISSED"]
    assert tally["found"] >= 50, tally
