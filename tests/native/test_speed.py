"""The speed of native code: measured in this process, and assumed where nothing can be compiled."""

from __future__ import annotations

import itertools

import pytest

from anygpu.engines.cpu.engine import CpuEngine
from anygpu.engines.numpy.lowering import NumpyEngine
from anygpu.errors import MissingExtra
from anygpu.hardware.device import Device
from anygpu.native import speed as native_speed
from anygpu.native.speed import measured_speed, with_native_speed
from anygpu.placement.plan.calibration import assumed, assumed_speed


def ticking(step: float) -> itertools.count[float]:
    return itertools.count(0.0, step)


def test_a_slower_clock_is_a_slower_machine() -> None:
    fast, slow = (measured_speed(ticking(step).__next__) for step in (1e-3, 2e-3))
    assert slow.instruction == pytest.approx(2 * fast.instruction)
    assert slow.bytes_per_second == pytest.approx(fast.bytes_per_second / 2)


def test_threads_are_between_half_and_all() -> None:
    found, most = measured_speed(ticking(1e-3).__next__), assumed_speed().threads
    assert (1 + most) / 2 <= found.threads <= most


def test_without_a_compiler_it_is_assumed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(program: object) -> object:
        raise MissingExtra("llvmlite", "cpu")

    monkeypatch.setattr(native_speed, "executable", missing)
    assert measured_speed() == assumed_speed()


def test_what_is_no_loop_is_numpys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_speed, "measured_speed", lambda clock: assumed_speed())
    (device,) = NumpyEngine().discover()
    assert isinstance(device, Device)
    numpy, before = assumed(device), assumed(CpuEngine.processor())
    found = with_native_speed(numpy, before)
    assert found.rates == numpy.rates
    assert (found.device, found.compile, found.write) == ("cpu", before.compile, before.write)
    assert found.launch > numpy.launch
    assert found.is_plausible
