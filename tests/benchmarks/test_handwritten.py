"""The hand-written kernels are right, and the rules by which they are compared do what they say."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import bare
from benchmarks.handwritten.workloads import WORKLOADS, Workload

SMALL = [each for each in WORKLOADS if not each.large]


def side(engine: str) -> Any:
    pytest.importorskip({"opencl": "pyopencl", "webgpu": "wgpu"}[engine])
    return import_module(f"benchmarks.handwritten.{engine}").ByHand()


@pytest.mark.full
@pytest.mark.parametrize("engine", ["opencl", "webgpu"])
def test_by_hand_agrees_with_numpy(engine: str) -> None:
    by_hand = side(engine)
    for name in ("matmul 128", "matmul 65536×64×32", "softmax of 4096×1024", "gather of 65536 rows of 64"):
        workload = next(each for each in WORKLOADS if each.name == name)
        arguments = workload.make()
        expected = workload.function(*arguments)
        prepared = by_hand.prepared(workload, arguments, expected)
        for _ in range(2):
            np.testing.assert_allclose(prepared.round_trip(), expected, rtol=1e-4, atol=1e-5)
        assert prepared.resident() > 0
        device, elapsed = prepared.device_seconds()
        assert 0 < device <= elapsed * 1.5


@pytest.mark.parametrize("workload", SMALL, ids=str)
def test_every_workload_has_kernels_on_both_engines(workload: Workload) -> None:
    from benchmarks.handwritten import webgpu

    for step in webgpu.plan_of(workload).steps:
        text = webgpu.text_of(step.file, {"LANES": webgpu.LANES, **step.numbers})
        assert f"fn {step.file}(" in text
        assert "$" not in text
        assert step.groups <= 65_535
    opencl = pytest.importorskip("benchmarks.handwritten.opencl", exc_type=ImportError)
    for step in opencl.plan_of(workload).steps:
        assert step.items % step.group == 0


def test_lines_are_repeated_and_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.handwritten import webgpu

    text = "$for row in ROWS\n$for i in 2\nsum_$row_$i = x[$rowu];\n$end\n$end\n$if EXTRA\nextra();\n$end\nend();"
    (tmp_path / "few.wgsl").write_text(text)
    monkeypatch.setattr(webgpu, "_KERNELS", tmp_path)
    lines = webgpu.text_of("few", {"ROWS": 2}).splitlines()
    assert lines == [
        "const ROWS = 2u;",
        "sum_0_0 = x[0u];",
        "sum_0_1 = x[0u];",
        "sum_1_0 = x[1u];",
        "sum_1_1 = x[1u];",
        "end();",
    ]
    assert "extra();" in webgpu.text_of("few", {"ROWS": 1, "EXTRA": 1})


def test_a_device_time_that_the_wall_clock_denies_does_not_count() -> None:
    assert bare.credible([(0.050, 0.051), (0.015, 0.051)]) == [0.050]
    assert bare.credible([(0.015, 0.051)]) == [0.051]


def test_bounds_follow_the_size() -> None:
    workload = WORKLOADS[0]
    best = {
        "by hand, device": 0.010,
        "anygpu, device": 0.011,
        "by hand, resident": 0.0101,
        "anygpu, resident": 0.0103,
        "by hand, thread": 0.00001,
        "anygpu, thread": 0.00009,
        "by hand, processor": 0.02,
        "anygpu, processor": 0.021,
        "by hand, round trip": 0.02,
        "anygpu, round trip": 0.021,
        "by hand, round trip, processor": 0.03,
        "anygpu, round trip, processor": 0.06,
    }
    long = {figure.name.split(": ")[1]: figure for figure in bare.figures(workload, best, kernels=1, software=True)}
    assert long["device, anygpu / by hand"].bound == pytest.approx(1.05)
    assert long["device, anygpu / by hand"].share > 1
    # What the kernels differ by is in it.
    assert long["resident call beyond bare"].bound is None
    assert long["resident call beyond bare"].value == pytest.approx(200)
    assert long["resident call beyond bare, thread"].value == pytest.approx(80)
    assert long["round trip / bare"].share < 1
    best["by hand, device"] = 0.0004
    short = {figure.name.split(": ")[1]: figure for figure in bare.figures(workload, best, kernels=1, software=False)}
    assert short["device, anygpu / by hand"].bound is None
    assert short["resident call beyond bare"].share > 1
    assert "processor time, anygpu / by hand" not in short


def test_beside_a_load_only_processor_time_has_a_bound() -> None:
    figures = ("device", "resident", "thread", "round trip", "round trip, processor")
    best = {f"{side}, {what}": 0.03 for side in ("by hand", "anygpu") for what in figures}
    best |= {"by hand, processor": 0.02, "anygpu, processor": 0.03, "NumPy": 0.01}
    found = bare.figures(WORKLOADS[0], best, kernels=1, software=True, busy=True)
    bounds = {figure.name.split(": ")[1]: figure.bound for figure in found if figure.bound is not None}
    assert bounds == {
        "resident call beyond bare, thread": 100,
        "round trip, processor / bare": pytest.approx(1.1),
        "processor time, anygpu / by hand": pytest.approx(1.05),
    }
    assert bare.figures(WORKLOADS[0], best, kernels=1, software=False, busy=True)[1].bound == pytest.approx(1.05)


def test_a_wrong_result_is_not_timed() -> None:
    workload, expected = WORKLOADS[0], np.ones(3, np.float32)
    bare.require_agreement(expected, expected, workload, "anygpu")
    for wrong in (expected + 1, expected * np.nan, np.ones(4, np.float32)):
        with pytest.raises(bare.Disagreement):
            bare.require_agreement(wrong, expected, workload, "anygpu")
