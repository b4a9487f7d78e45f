"""Several names for one place, in order of preference, as the variable of the default device has them."""

from __future__ import annotations

import numpy as np
import pytest

import anygpu as ag
from anygpu.errors import DeviceUnavailable
from anygpu.workers.device_arrays.registry import DeviceRegistry


@pytest.mark.parametrize(
    ("names", "wanted"),
    [("numpy,opencl", "numpy"), (" torch:cuda:7 , numpy", "numpy"), ("nothing-like-it,torch,numpy", "torch:cpu")],
)
def test_the_first_that_is_there(names: str, wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYGPU_DEVICE", names)
    places = DeviceRegistry()
    assert places.find().device == places.find(names).device == wanted
    assert places.find() is places.find(wanted)
    places.close()


def test_arrays_are_made_on_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYGPU_DEVICE", "opencl,numpy")
    assert ag.asarray(np.ones(10, np.float32)).device == "opencl:0"


def test_when_none_is_there_every_reason_is_told() -> None:
    with pytest.raises(DeviceUnavailable) as caught:
        DeviceRegistry().find("torch:cuda:7,torch:cuda:8")
    assert 'on="torch:cuda:7, torch:cuda:8"' in str(caught.value)
    assert "built without CUDA" in str(caught.value)
