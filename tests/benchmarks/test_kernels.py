"""The benchmark of built-in kernels: what is written by hand is right, and figures say what they should."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import pytest

from benchmarks import bare, kernels
from benchmarks.handwritten.workloads import Workload

SMALL = [
    kernels.attention(2, 64, 32),
    kernels.attention(2, 64, 32, causal=True),
    kernels.int8_matmul(1, 256, 512),
    kernels.int8_matmul(128, 256, 512),
    kernels.layer_norm(32, 768),
]


def side(engine: str) -> Any:
    pytest.importorskip({"opencl": "pyopencl", "webgpu": "wgpu"}[engine])
    return import_module(f"benchmarks.handwritten.{engine}").ByHand()


@pytest.mark.full
@pytest.mark.parametrize("engine", ["opencl", "webgpu"])
def test_by_hand_agrees_with_numpy(engine: str) -> None:
    by_hand = side(engine)
    for workload in SMALL:
        arguments = workload.make()
        expected = np.asarray(workload.function(*arguments))
        prepared = by_hand.prepared(workload, arguments, expected)
        bare.require_agreement(prepared.round_trip(), expected, workload, "by hand")
        assert prepared.device_seconds()[0] > 0


@pytest.mark.sampled(gate=2)
@pytest.mark.parametrize("workload", SMALL, ids=str)
def test_peers_agree_with_numpy(workload: Workload) -> None:
    arguments = workload.make()
    expected = np.asarray(workload.function(*arguments))
    for name, peer in kernels.peers_of(workload, arguments).items():
        bare.require_agreement(kernels.as_numpy(workload, name, peer()), expected, workload, name)


def test_every_workload_has_kernels_on_both_engines() -> None:
    webgpu = pytest.importorskip("benchmarks.handwritten.webgpu", exc_type=ImportError)
    opencl = pytest.importorskip("benchmarks.handwritten.opencl", exc_type=ImportError)
    for workload in kernels.WORKLOADS:
        for step in webgpu.plan_of(workload).steps:
            text = webgpu.text_of(step.file, {"LANES": webgpu.LANES, **step.numbers})
            assert f"fn {step.file}(" in text
            assert "$" not in text
        for step in opencl.plan_of(workload).steps:
            assert step.items % step.group == 0


def test_bounds_follow_the_size() -> None:
    best = {
        "anygpu": 0.012,
        "torch": 0.006,
        "jax": 0.024,
        "by hand": 0.011,
        "anygpu, device": 0.011,
        "by hand, device": 0.010,
        "anygpu, processor": 0.021,
        "by hand, processor": 0.020,
    }
    found = {each.name.split(": ")[1]: each for each in kernels.figures(SMALL[0], best, kernels=1, software=True)}
    assert found["anygpu / by hand, device"].bound == kernels.DEVICE_BOUND
    assert found["anygpu / by hand, device"].share > 1
    assert found["anygpu / by hand, processor time"].value == pytest.approx(1.05)
    assert found["anygpu / torch, call"].value == pytest.approx(2.0)
    assert found["anygpu / jax, call"].value == pytest.approx(0.5)
    busy = kernels.figures(SMALL[0], best, kernels=1, software=True, busy=True)
    assert {each.name.split(": ")[1] for each in busy if each.bound == kernels.DEVICE_BOUND} == {
        "anygpu / by hand, processor time"
    }
    best["by hand, device"] = 0.00005
    short = {each.name.split(": ")[1]: each for each in kernels.figures(SMALL[0], best, kernels=2, software=False)}
    assert short["anygpu / by hand, device"].bound is None
    assert short["anygpu's kernels"].share > 1
    assert "anygpu / by hand, processor time" not in short


def test_weights_take_a_quarter_and_say_their_error() -> None:
    found = {each.name: each for each in kernels.weights_figures(256)}
    name = "int8 weights 256×256, a scale for each row"
    assert found[f"{name}: bytes / float32"].value < kernels.WEIGHTS_BOUND
    assert 0 < found[f"{name}: error of a product, rms"].value < 1
    assert all(each.share <= 1 for each in found.values() if each.bound is not None)
