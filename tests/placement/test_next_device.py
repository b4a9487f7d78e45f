"""Where a task goes that has failed on a device."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from anygpu.placement.plan.choosing import DeviceChooser
from anygpu.placement.retry import _next_best
from anygpu.workers.task_lifecycle import Task

#: What a call takes on the devices that the caller has asked for, in the order of the predictions.
SECONDS = {"webgpu:1": 1.0, "webgpu:0": 2.0}


def next_best(*, waiting: dict[str, float], excluded: tuple[str, ...] = (), failed: tuple[str, ...] = ()) -> str:
    chooser = DeviceChooser(None)  # with `on="gpu"`, NumPy is no baseline
    chooser.consider(SECONDS)
    for name, seconds in SECONDS.items():
        chooser.measured(name, seconds)
    for name in failed:
        chooser.failed(name, "")
    predictions = {name: SimpleNamespace(chunks=None) for name in SECONDS}
    site: Any = SimpleNamespace(candidates=SimpleNamespace(predictions=predictions), chooser=chooser)
    planner: Any = SimpleNamespace(waiting=lambda: waiting)
    task = Task(name="f", devices=frozenset((*SECONDS, "numpy")), device="webgpu:1", excluded=excluded)
    return _next_best(site, task, planner)


@pytest.mark.parametrize(
    ("waiting", "expected"),
    [
        ({}, "webgpu:1"),
        ({"webgpu:1": 5.0}, "webgpu:0"),
        ({"webgpu:1": 0.5}, "webgpu:1"),
        # NumPy is always free, but the caller has asked for another device.
        ({"webgpu:1": 5.0, "webgpu:0": 50.0}, "webgpu:1"),
    ],
)
def test_a_lost_task_goes_to_the_first_free_of_the_devices_asked_for(waiting: dict[str, float], expected: str) -> None:
    assert next_best(waiting=waiting) == expected


def test_another_device_that_was_asked_for_comes_before_numpy_though_it_failed_before() -> None:
    assert next_best(waiting={}, excluded=("webgpu:1",), failed=("webgpu:0",)) == "webgpu:0"
    assert next_best(waiting={}, excluded=("webgpu:1", "webgpu:0")) == "numpy"
