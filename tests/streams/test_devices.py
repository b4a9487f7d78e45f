"""Which device gets the next chunk, with a planner that prepares devices at once and runs nothing."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from anygpu.calls.options import Fallback, options
from anygpu.errors import DeviceLost
from anygpu.placement.planner import NO_GPU
from anygpu.runtime.streams.devices import StreamDevices, _Offer

LENGTH = 1000


def devices(fallback: Fallback = "allow") -> StreamDevices:
    planner: Any = SimpleNamespace(awake=False)
    stream: Any = SimpleNamespace(options=options(fallback=fallback), length=LENGTH, task="score")
    check: Any = SimpleNamespace(pinned=False)
    return StreamDevices(stream, planner, check, lambda: True)


def offer(found: StreamDevices, predicted: float) -> _Offer:
    made = _Offer("gpu:0", predicted, 0.0, threading.Event())
    found._prepared.append(made)
    return made


def compute(found: StreamDevices, seconds: dict[str, float], chunks: int = 1) -> list[str]:
    """The devices of so many chunks of ten steps, each of which takes so long there."""
    used = []
    for _ in range(chunks):
        used.append(found.choose(10))
        found.measured(used[-1], 10, 10 * seconds[used[-1]])
    return used


@pytest.mark.full
def test_numpy_is_first_and_a_faster_device_takes_over() -> None:
    found = devices()
    seconds = {"numpy": 1e-4, "gpu:0": 1e-5}
    assert compute(found, seconds, 2) == ["numpy", "numpy"]
    made = offer(found, 1e-5)
    assert compute(found, seconds, 6) == ["gpu:0"] * 6
    assert made.judged.is_set()
    assert found.done == {"numpy": 20, "gpu:0": 60}
    assert "on numpy" in found.reason(10)


def test_the_first_chunk_on_a_device_may_be_slow() -> None:
    found = devices()
    compute(found, {"numpy": 1e-4})
    offer(found, 1e-5)
    assert compute(found, {"gpu:0": 5e-4}) == ["gpu:0"]
    assert compute(found, {"numpy": 1e-4, "gpu:0": 1e-5}, 4) == ["gpu:0"] * 4


def test_a_device_that_is_hopeless_gets_no_second_chunk() -> None:
    found = devices()
    compute(found, {"numpy": 1e-4})
    offer(found, 1e-5)
    assert compute(found, {"numpy": 1e-4, "gpu:0": 1e-2}, 5) == ["gpu:0", *["numpy"] * 4]


def test_a_device_that_is_excluded_gets_no_more_chunks() -> None:
    found = devices()
    seconds = {"numpy": 1e-4, "gpu:0": 1e-5}
    compute(found, seconds)
    offer(found, 1e-5)
    compute(found, seconds, 4)
    found.exclude("gpu:0", DeviceLost("gpu:0"))
    assert compute(found, seconds, 50) == ["numpy"] * 50
    with pytest.raises(DeviceLost):
        found.exclude("numpy", DeviceLost("numpy"))


def test_without_a_fallback_the_failure_is_raised() -> None:
    found = devices("raise")
    seconds = {"numpy": 1e-4, "gpu:0": 1e-5}
    compute(found, seconds)
    offer(found, 1e-5)
    compute(found, seconds, 4)
    with pytest.raises(DeviceLost):
        found.exclude("gpu:0", DeviceLost("gpu:0"))


def test_without_stand_ins_a_stream_waits_until_devices_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANYGPU_SOFTWARE_DEVICES", raising=False)
    found = devices()
    planner: Any = found._planner
    woken: list[None] = []
    submitted: list[Any] = []
    planner.wake = lambda: woken.append(None)
    planner.background = SimpleNamespace(submit=submitted.append)
    planner.has_nowhere_to_look = False
    compute(found, {"numpy": 1.0}, 3)
    assert woken
    assert not submitted
    assert found.reason(10) == "the stream was too short to look for other devices."
    planner.awake = True
    compute(found, {"numpy": 1.0}, 3)
    assert len(submitted) == 1


def test_without_a_gpu_the_reason_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANYGPU_SOFTWARE_DEVICES", raising=False)
    found = devices()
    planner: Any = found._planner
    planner.wake, planner.has_nowhere_to_look = (lambda: None), True
    compute(found, {"numpy": 1.0}, 3)
    assert found.reason(10) == NO_GPU
