"""What is wgpu's own, provoked for real in a child, since a lost device may abort the process."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anygpu.engines.webgpu import BACKENDS, _one_per_card

_PRELUDE = """
import resource, sys
import wgpu
from anygpu.engines.webgpu import WebGPUEngine
engine = WebGPUEngine()
device = engine.discover()[0]
opened = engine._open(engine._views[device.id][0], deep=False)
def error_of(action):
    try:
        action()
    except Exception as error:
        return error
    return None
"""


def in_a_child(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", _PRELUDE + script], capture_output=True, text=True, check=False, timeout=60
    )


def test_the_real_words_of_a_lost_device_are_recognised() -> None:
    done = in_a_child("""
opened.destroy()
error = error_of(lambda: opened.create_buffer(size=64, usage=wgpu.BufferUsage.STORAGE))
print(type(error).__name__, type(engine.classify(error, device)).__name__)
""")
    assert done.stdout.split() == ["GPUValidationError", "DeviceLost"], done.stderr


def test_the_real_words_of_exhausted_memory_are_recognised() -> None:
    done = in_a_child("""
import psutil
room = psutil.Process().memory_info().vms + (1 << 30)
resource.setrlimit(resource.RLIMIT_AS, (room, room))
kept = []
def fill():
    for _ in range(40):
        kept.append(opened.create_buffer(size=128 << 20, usage=wgpu.BufferUsage.STORAGE))
error = error_of(fill)
print(type(engine.classify(error, device)).__name__)
""")
    assert done.stdout.split() == ["OutOfMemory"], (done.stdout, done.stderr)


def test_a_bad_shader_is_not_taken_for_anything_else() -> None:
    done = in_a_child("""
error = error_of(lambda: opened.create_shader_module(code="this is no shader"))
print(type(error).__name__, engine.classify(error, device))
""")
    assert done.stdout.split()[-1] == "None", (done.stdout, done.stderr)


class Adapter:
    def __init__(self, name: str, backend: str) -> None:
        self.info: dict[str, Any] = {"device": name, "backend_type": backend}


def grouped(*adapters: tuple[str, str]) -> list[list[tuple[str, str]]]:
    cards = _one_per_card(Adapter(*each) for each in adapters)
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
