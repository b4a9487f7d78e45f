"""Opening a device: as much as the adapter gives, and less where it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from anygpu.engines.webgpu.device import GUARANTEED_LIMITS, USEFUL_FEATURES, ladder, open_device, target_of
from anygpu.engines.webgpu.engine import WebGPUEngine
from anygpu.errors import DeviceUnavailable
from tests.engines.webgpu_kernels import first_device, opened

BIG = dict.fromkeys(GUARANTEED_LIMITS, 1 << 30) | {"min-storage-buffer-offset-alignment": 256}


class Opened:
    def __init__(self, features: list[str], limits: dict[str, int]) -> None:
        self.features = set(features)
        self.limits = limits


class Adapter:
    """Says that it has everything, and refuses what it is told to refuse."""

    info: dict[str, Any] = {"device": "a card"}  # noqa: RUF012
    features = frozenset({*USEFUL_FEATURES, "texture-compression-bc"})
    limits = BIG

    def __init__(self, *refused: str) -> None:
        self._refused = set(refused)
        self.asked = 0

    def request_device_sync(self, *, required_features: list[str], required_limits: dict[str, int]) -> Opened:
        self.asked += 1
        if self._refused & set(required_features):
            raise RuntimeError("Request device failed: a feature")
        if "limits" in self._refused and required_limits == BIG:
            raise RuntimeError("Request device failed: a limit")
        if "everything" in self._refused:
            raise RuntimeError("Request device failed")
        return Opened(required_features, required_limits)


def test_the_ladder_goes_from_everything_to_what_every_device_has() -> None:
    steps = ladder(Adapter.features, BIG)
    assert steps[0] == (USEFUL_FEATURES, BIG)
    assert steps[-1].features == ()
    assert GUARANTEED_LIMITS.items() <= steps[-1].limits.items()
    assert [len(step.features) for step in steps] == sorted((len(step.features) for step in steps), reverse=True)


def test_an_adapter_with_less_than_is_guaranteed_is_asked_for_no_more_than_it_has() -> None:
    small = BIG | {"max-storage-buffers-per-shader-stage": 4}
    assert all(step.limits["max-storage-buffers-per-shader-stage"] == 4 for step in ladder((), small))


@pytest.mark.parametrize(
    ("refused", "features"),
    [
        ((), set(USEFUL_FEATURES)),
        (("shader-f64",), {"timestamp-query", "shader-f16"}),
        (("shader-f16",), set()),
        (("limits",), set()),
    ],
)
def test_a_refusal_costs_as_little_as_possible(refused: tuple[str, ...], features: set[str]) -> None:
    assert open_device(Adapter(*refused), "webgpu:0").features == features


def test_an_adapter_that_refuses_everything_is_unavailable_with_every_reason() -> None:
    adapter = Adapter("everything")
    with pytest.raises(DeviceUnavailable) as caught:
        open_device(adapter, "webgpu:0")
    assert len(caught.value.refusals) == adapter.asked == 4


def test_a_target_is_made_of_what_was_opened() -> None:
    target = target_of(Opened(["shader-f16"], BIG | {"max-storage-buffer-binding-size": 1001}), software=True)
    assert target.features == ("f16",)
    assert target.subgroup_size == 0
    assert target.binding_bytes == 768
    assert target.loop_limit == 32768
    assert target_of(Opened([], BIG), software=False).loop_limit > target.loop_limit


def test_the_real_adapter_opens_with_all_it_has() -> None:
    engine = WebGPUEngine()
    device = first_device(engine)
    driver = engine.open(device)
    assert set(driver.target.features) == set(device.features) & {"f16", "f64", "i64", "subgroups"}
    assert driver.target.binding_bytes == device.limits["max-storage-buffer-binding-size"]
    assert driver.target.bindings == device.limits["max-storage-buffers-per-shader-stage"]
    assert driver.alignment == device.limits["min-storage-buffer-offset-alignment"]
    engine.close()


def test_a_device_known_from_elsewhere_can_be_opened() -> None:
    device = first_device(WebGPUEngine())
    fresh = WebGPUEngine()
    fresh.open(device).synchronize()
    fresh.close()
    with opened() as driver:
        driver.synchronize()
