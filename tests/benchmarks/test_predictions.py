"""The figures of predictions, from numbers that are known."""

from __future__ import annotations

import pytest

from benchmarks.predictions import Prediction, cases, figures_of, share_within, worst_of


def prediction(error: float, device: str = "opencl:0") -> Prediction:
    return Prediction(program=f"{error:g}", device=device, plain=0.5, predicted=1.0, measured=error)


def test_errors_count_either_way() -> None:
    errors = [0.3, 0.5, 1.0, 2.0, 2.9, 4.0]
    assert share_within(2, errors) == pytest.approx(50)
    assert share_within(3, errors) == pytest.approx(100 * 4 / 6)
    assert share_within(2, []) == 0


def test_the_bound_is_on_each_device_and_on_all() -> None:
    found = [*[prediction(1.0)] * 9, prediction(3.0), *[prediction(5.0, "webgpu:0")] * 10]
    figures = {figure.name: figure for figure in figures_of(found)}
    assert figures["opencl:0: beyond 2×"].share == pytest.approx(1.0)
    assert figures["webgpu:0: beyond 2×"].value == 100
    assert figures["all devices: within 2×"].value == 45
    assert figures["opencl:0: within 2× by calibration alone"].value == pytest.approx(90)


def test_the_worst_come_first() -> None:
    found = [prediction(error) for error in (1.0, 0.05, 8.0, 2.0)]
    assert [each.measured for each in worst_of(found)] == [0.05, 8.0, 2.0, 1.0]


def test_every_program_has_its_own_name_and_the_order_is_always_the_same() -> None:
    names = [case.name for case in cases((100,))]
    assert len(set(names)) == len(names) > 40
    assert names == [case.name for case in cases((100,))]
