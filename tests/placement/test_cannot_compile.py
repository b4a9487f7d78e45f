"""A program that a device's compiler refuses runs elsewhere: the next device, NumPy, or the host for arrays there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import anygpu as ag
from anygpu.array.core.array import as_array
from anygpu.calls.offload import Offloaded
from anygpu.calls.options import options
from anygpu.engines.numpy.lowering import NumpyEngine
from anygpu.errors import CannotCompile
from anygpu.hardware.device import Device
from anygpu.placement.planner import Planner
from anygpu.program.graph import Program
from anygpu.workers.device_arrays.handle import DeviceHandle
from anygpu.workers.thread import ThreadWorker
from anygpu.workers.worker import Argument, Ran
from tests.support.slowed import SlowedRegistry

X = np.linspace(0.1, 1.0, 70, dtype=np.float32)


def score(x: Any) -> Any:
    return np.exp(x) * 2


class Refusing:
    """A worker whose compiler refuses every program."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker

    def __getattr__(self, name: str) -> Any:
        return getattr(self._worker, name)

    def run(self, program: Program, arguments: Sequence[Argument], **options: Any) -> Ran:
        raise CannotCompile("opencl:0", "the kernel multiply_0 does not compile")


@pytest.fixture
def places() -> SlowedRegistry:
    places = SlowedRegistry("opencl:0")
    places.slowed = Refusing(places.slowed)  # type: ignore[assignment]
    return places


def offloaded(places: SlowedRegistry, **chosen: Any) -> Offloaded[..., Any]:
    planner = Planner(known=places)
    return Offloaded(score, options(**chosen), lambda: planner)


def test_with_a_warning_it_runs_on_numpy(places: SlowedRegistry) -> None:
    function = offloaded(places, on="opencl")
    with pytest.warns(ag.errors.DeviceFallback, match=r"cannot compile the program"):
        result = function.run(X)
    np.testing.assert_array_equal(result.value, score(X))
    assert result.receipt.device == "numpy"
    assert [each.error for each in result.receipt.attempts] == ["CannotCompile", None]


def test_when_asked_to_it_raises(places: SlowedRegistry) -> None:
    function = offloaded(places, on="opencl", fallback="raise")
    for _ in range(2):
        with pytest.raises(CannotCompile, match="multiply_0 does not compile"):
            function.run(X)


class RefusingEngine(NumpyEngine):
    """NumPy, whose "compiler" takes no exponentials."""

    def compile(self, program: Program, device: Device) -> Program:
        if any(node.op.name == "exp" for node in program.nodes):
            raise CannotCompile(device.id, "no exponentials")
        return super().compile(program, device)


def test_arrays_on_the_device_are_computed_on_the_host_which_is_told() -> None:
    engine = RefusingEngine()
    (device,) = engine.discover()
    assert isinstance(device, Device)
    worker = ThreadWorker(engine, device)
    x = as_array(X, DeviceHandle(device, lambda: worker))
    with ag.observe.host_operations() as told:
        result = np.asarray(score(x))
    np.testing.assert_array_equal(result, score(X))
    assert len(told) == 1
    assert "cannot compile" in told[0].reason
    assert told[0].line is not None
    assert told[0].line.startswith(__file__)
