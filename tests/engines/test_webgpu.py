"""Which adapters are one device, what wgpu's errors mean, and what adapters do on the quiet. See also tests/faults."""

from __future__ import annotations

from typing import Any

import pytest
import wgpu
from hypothesis import given
from hypothesis import strategies as st
from wgpu.backends.wgpu_native import lib

from anygpu.engines.driver import Dispatch
from anygpu.engines.webgpu.device import BACKENDS, one_per_card
from anygpu.engines.webgpu.engine import WebGPUEngine
from anygpu.errors import DeviceLost
from tests.engines.webgpu_kernels import first_device, get, opened, room, spin_kernel


def test_the_real_words_of_a_lost_device_are_recognised() -> None:
    engine = WebGPUEngine()
    device = first_device(engine)
    native = engine._views[device.id][0].request_device_sync()
    lib.wgpuDeviceDestroy(native._internal)
    with pytest.raises(wgpu.GPUValidationError) as caught:
        native.create_buffer(size=64, usage=wgpu.BufferUsage.STORAGE)
    assert isinstance(engine.classify(caught.value, device), DeviceLost)


def test_a_bad_shader_is_not_taken_for_a_bad_device() -> None:
    engine = WebGPUEngine()
    device = first_device(engine)
    native = engine._views[device.id][0].request_device_sync()
    with pytest.raises(wgpu.GPUValidationError) as caught:
        native.create_shader_module(code="this is not a shader")
    assert engine.classify(caught.value, device) is None


def test_lavapipe_stops_loops_and_our_limit_is_below() -> None:
    with opened() as driver:
        x = room(driver, 64)
        reached = []
        for turns in (driver.target.loop_limit, 200_000):
            driver.submit([Dispatch(driver.build(spin_kernel(1, turns)), (x,), (0,))])
            reached.append(int(get(driver, x)[0]))
    assert reached[0] == driver.target.loop_limit
    # When this fails, the cap is gone, and Target.loop_limit may grow.
    assert reached[1] == 65535


class Adapter:
    def __init__(self, name: str, backend: str) -> None:
        self.info: dict[str, Any] = {"device": name, "backend_type": backend}


def grouped(*adapters: tuple[str, str]) -> list[list[tuple[str, str]]]:
    cards = one_per_card(Adapter(*each) for each in adapters)
    return [[(view.info["device"], view.info["backend_type"]) for view in views] for views in cards]


def test_two_equal_cards_with_two_interfaces_are_two_devices() -> None:
    twins = [("NVIDIA GeForce RTX 3090", "Vulkan")] * 2 + [("NVIDIA GeForce RTX 3090/PCIe/SSE2", "OpenGL")]
    cards = grouped(*twins)
    assert [[backend for _, backend in views] for views in cards] == [["Vulkan", "OpenGL"], ["Vulkan"]]


@pytest.mark.parametrize("backends", [("OpenGL", "Vulkan"), ("Vulkan", "OpenGL")])
def test_the_better_interface_comes_first_whatever_the_order(backends: tuple[str, ...]) -> None:
    ((first, *_),) = grouped(*(("llvmpipe (LLVM 15)", backend) for backend in backends))
    assert first[1] == "Vulkan"


@given(st.lists(st.tuples(st.sampled_from(["RTX 3090", "llvmpipe", "UHD 770"]), st.sampled_from(BACKENDS))))
def test_no_adapter_is_lost_or_counted_twice(adapters: list[tuple[str, str]]) -> None:
    cards = grouped(*adapters)
    assert sorted(view for views in cards for view in views) == sorted(adapters)
    for views in cards:
        assert len({name for name, _ in views}) == 1
        assert len({backend for _, backend in views}) == len(views)
