from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterator

import numpy as np
import pytest

import anygpu as ag
from anygpu.workers.device_arrays.registry import REPLACE_SECONDS, DeviceRegistry


def test_the_default_device_is_numpy_or_what_the_variable_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANYGPU_DEVICE", raising=False)
    assert DeviceRegistry().find().device == "numpy"
    monkeypatch.setenv("ANYGPU_DEVICE", "torch")
    assert DeviceRegistry().find().device == "torch:cpu"
    monkeypatch.setenv("ANYGPU_DEVICE", "jax:cpu:0")
    assert DeviceRegistry().find().device == "jax:cpu:0"


def test_one_device_is_one_place_under_all_its_names() -> None:
    places = DeviceRegistry()
    assert places.find("torch") is places.find("torch:cpu") is places.find("torch:cpu")
    assert places.find("numpy") is not places.find("torch")


def test_a_device_that_is_not_there_is_refused_with_reasons() -> None:
    with pytest.raises(ag.DeviceUnavailable) as caught:
        DeviceRegistry().find("torch:cuda:7")
    assert "built without CUDA" in str(caught.value)


def test_devices_that_arrays_can_be_on() -> None:
    x = ag.asarray(np.zeros(3), device="torch")
    info = ag.__array_namespace_info__()
    assert info.default_device() in info.devices()
    assert x.device in info.devices()


def test_a_lost_device_counts_as_busy_until_it_is_open_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls that may run elsewhere do not wait for it."""
    places = DeviceRegistry()
    opened, told = threading.Event(), queue.SimpleQueue[float | None]()
    monkeypatch.setattr(places, "worker", lambda *_, **__: opened.wait(60))

    @contextlib.contextmanager
    def meanwhile(seconds: float) -> Iterator[None]:
        told.put(seconds)
        yield
        told.put(None)

    places.replace("webgpu:0", isolation="process", meanwhile=meanwhile)
    assert not told.empty(), "it counts as busy before replace returns"
    assert told.get() == REPLACE_SECONDS
    assert told.empty(), "replace returns while the device is still being opened"
    opened.set()
    assert told.get(timeout=60) is None
