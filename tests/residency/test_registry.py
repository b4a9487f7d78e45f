from __future__ import annotations

import numpy as np
import pytest

import anygpu as ag
from anygpu.residency.registry import DeviceRegistry


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
