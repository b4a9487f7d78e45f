"""`anygpu advise` recommends no device on figures that were assumed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from anygpu.observe.advising import judging
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
