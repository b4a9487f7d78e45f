"""Curves, transfers, and what is assumed of a device before it is measured."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anygpu.placement.plan.calibration import Calibration, Curve, Transfer, amount_of, assumed
from anygpu.program.graph import Cost
from tests.plan.sampling import ALL, CLASSES, GPU, NUMPY, OPENCL, curves, device

AMOUNTS = st.floats(0.0, 1e15)


@given(curves(), AMOUNTS, AMOUNTS)
def test_more_work_never_takes_less_time(curve: Curve, one: float, other: float) -> None:
    less, more = sorted((one, other))
    assert 0 < curve.seconds(less) <= curve.seconds(more) * (1 + 1e-9)


@given(curves())
def test_a_curve_goes_through_its_points(curve: Curve) -> None:
    for amount, seconds in curve.points:
        assert curve.seconds(amount) == pytest.approx(seconds)


def test_between_and_beyond_the_points() -> None:
    curve = Curve(((100.0, 1e-6), (10_000.0, 1e-4)))
    assert curve.seconds(0) == curve.seconds(1) == 1e-6
    assert curve.seconds(1_000) == pytest.approx(1e-5)
    assert curve.seconds(1e6) == pytest.approx(1e-2)


def test_points_of_no_time_at_all_do_no_harm() -> None:
    curve = Curve(((1.0, 0.0), (10.0, 0.0), (100.0, 1.0)))
    assert curve.seconds(5) == 0
    assert 0 <= curve.seconds(50) <= 1


def test_nothing_moves_in_no_time() -> None:
    assert Transfer(1e-3, 1e9).seconds(0) == 0
    assert Transfer(1e-3, 1e9).seconds(1e6) == pytest.approx(2e-3)


@pytest.mark.parametrize(
    ("kind", "amount"), [("contraction", 7), ("transcendental", 7), ("elementwise", 30), ("reduce", 30), ("sort", 7)]
)
def test_amounts_are_operations_or_bytes(kind: str, amount: float) -> None:
    assert amount_of(Cost(7, 10, 20, kind)) == amount  # type: ignore[arg-type]


@pytest.mark.parametrize("calibration", ALL, ids=lambda each: each.device)
def test_assumptions_are_complete(calibration: Calibration) -> None:
    assert calibration.source == "assumed"
    assert set(calibration.rates) == set(CLASSES)
    assert calibration.launch > 0
    assert calibration.wide >= 1
    again = msgspec.json.decode(msgspec.json.encode(calibration), type=Calibration)
    assert again == calibration


def test_assumptions_are_in_the_expected_order() -> None:
    """A card computes faster than a processor, and takes longer to start."""
    for kind in CLASSES:
        times = [each.rates[kind].seconds(1e9) for each in (GPU, NUMPY)]
        assert times == sorted(times), kind
    assert NUMPY.launch < OPENCL.launch
    assert NUMPY.fuses is False
    assert OPENCL.fuses is GPU.fuses is True


def test_every_kind_and_engine_has_assumptions() -> None:
    kinds, forms = ("gpu", "cpu", "npu"), ("discrete", "integrated", "virtual", "software", "host")
    engines = ("numpy", "cpu", "torch", "jax", "opencl", "webgpu", "somebody's own")
    for engine, kind, form in itertools.product(engines, kinds, forms):
        found = assumed(device(engine, kind, form))  # type: ignore[arg-type]
        assert found.device == engine
        assert found.fuses is (engine not in ("numpy", "torch"))
