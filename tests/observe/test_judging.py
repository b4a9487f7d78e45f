"""`anygpu advise` recommends no device on figures that were assumed, and predicts deferred calls."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from anygpu.observe.advising import judging
from anygpu.observe.advising.deferral import estimated, sentence_of
from anygpu.observe.advising.judging import DeviceEstimate, _confirmed


@dataclass
class Sample:
    arguments: tuple[Any, ...] = ()
    keywords: dict[str, Any] = field(default_factory=dict)
    kept: str | None = None
    seconds: float = 0.010
    count: int = 1


def estimate(device: str, seconds: float | None, basis: str) -> DeviceEstimate:
    return DeviceEstimate(device=device, seconds=seconds, basis=basis)


@pytest.fixture
def measurements(monkeypatch: pytest.MonkeyPatch) -> dict[str, float | None]:
    """What devices take when they are measured; those that were are removed."""
    found: dict[str, float | None] = {}

    def measured(function: Any, sample: Any, predicted: list[DeviceEstimate]) -> tuple[list[DeviceEstimate], float]:
        return [estimate(each.device, found.pop(each.device), "measured") for each in predicted], 0.009

    monkeypatch.setattr(judging, "_measured", measured)
    return found


def test_an_assumed_gain_is_measured(measurements: dict[str, float | None]) -> None:
    measurements |= {"webgpu:0": 0.030, "opencl:0": None}
    given = [estimate("webgpu:0", 0.002, "assumed"), estimate("opencl:0", 0.003, "assumed")]
    found, numpy_seconds = _confirmed(print, Sample(), given)
    assert [(each.seconds, each.basis) for each in found] == [(0.030, "measured"), (None, "measured")]
    assert numpy_seconds == 0.009
    assert not measurements


@pytest.mark.parametrize(
    "given",
    [
        [estimate("webgpu:0", 0.002, "predicted"), estimate("opencl:0", 0.003, "assumed")],
        [estimate("webgpu:0", 0.009, "assumed")],
        [estimate("webgpu:0", None, "measured")],
        [],
    ],
    ids=["calibrated", "no gain", "cannot", "none"],
)
def test_nothing_else_is_measured(given: list[DeviceEstimate], measurements: dict[str, float | None]) -> None:
    assert _confirmed(print, Sample(), given) == (given, 0.010)


def relaxed(x: Any, tolerance: Any) -> Any:
    before = 0.0
    for _ in range(5):
        x = 0.5 * (np.roll(x, 1) + np.roll(x, -1)) + np.tanh(x) * 0.01
        error = float(np.abs(x).sum())
        if abs(error - before) < tolerance:
            break
        before = error
    return x


def test_what_deferred_calls_would_give_is_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(0).random(200_000)
    before = x.copy()
    monkeypatch.setattr(warnings, "filters", [])  # where one makes errors of warnings, as pytest's do, nothing waits
    found = estimated(relaxed, (x, 1e-6), {})
    assert found is not None
    assert (found.segments, found.native) == (5, 5)
    assert "5 × 9 operations until a float is needed at " in found.how
    assert 0 < found.seconds < 0.1
    assert np.array_equal(x, before), "it was called with copies"
    assert "deferred=True) it can run as it is, expected to take " in sentence_of(relaxed, (x, 1e-6), {})


_KEPT: list[Any] = []


def test_functions_that_may_do_more_than_compute_are_not_called() -> None:
    def keeps(x: Any) -> Any:
        _KEPT.append(x)
        return x

    assert "whether an array outlives a call: " in sentence_of(keeps, (np.ones(9),), {})
    assert not _KEPT
