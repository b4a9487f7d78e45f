"""What a device lacks runs on the host, that operation alone, and everybody is told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import anygpu as ag
from anygpu.array.core.array import Array, as_array
from anygpu.engines.numpy.lowering import NumpyEngine
from anygpu.engines.protocol import Lack
from anygpu.hardware.device import Device
from anygpu.program.graph import Node, Program
from anygpu.program.primitives import Cast, Input
from anygpu.workers.device_arrays.handle import DeviceHandle
from anygpu.workers.device_arrays.registry import DeviceRegistry
from anygpu.workers.thread import ThreadWorker


class WithoutSort(NumpyEngine):
    """NumPy, but it claims that it cannot sort, and it counts what it runs."""

    def __init__(self) -> None:
        self.programs: list[Program] = []

    def supports(self, program: Program, device: Device) -> list[Lack]:
        return [Lack(n, "this device cannot sort") for n, node in enumerate(program.nodes) if node.op.name == "sort"]

    def execute(self, executable: Program, buffers: Sequence[Any]) -> list[Any]:
        assert all(node.op.name != "sort" for node in executable.nodes)
        self.programs.append(executable)
        return super().execute(executable, buffers)


def on(engine: NumpyEngine, values: Any) -> Array:
    (device,) = engine.discover()
    assert isinstance(device, Device)
    worker = ThreadWorker(engine, device)
    return as_array(values, DeviceHandle(device, lambda: worker))


def test_one_operation_goes_to_the_host_and_the_rest_stays() -> None:
    engine = WithoutSort()
    values = np.random.default_rng(0).normal(size=(5, 7))
    x = on(engine, values)
    with ag.observe.host_operations() as told:
        result = np.asarray(np.sort(np.exp(x) - 1, axis=0) * 2 + np.sort(x, axis=1))
    assert np.allclose(result, np.sort(np.exp(values) - 1, axis=0) * 2 + np.sort(values, axis=1))
    assert [operation.operation for operation in told] == ["sort", "sort"]
    assert told[0].reason == "this device cannot sort"
    assert told[0].bytes_moved == 2 * values.nbytes
    assert told[0].line is not None
    assert told[0].line.startswith(__file__)
    assert len(engine.programs) >= 2, "what lies before and behind runs on the device"


def test_without_a_listener_it_is_a_warning_that_names_the_line() -> None:
    x = on(WithoutSort(), np.arange(3.0)[::-1])
    with pytest.warns(
        ag.errors.HostFallback, match=r"sort \(.*test_host_fallback\.py:\d+\) ran on the host, and 48 bytes"
    ):
        np.asarray(np.sort(x))


def test_a_function_of_numpys_that_we_lack_runs_on_the_host_with_a_notice() -> None:
    x = as_array(np.array([1.0, -3.0, 2.0]))
    with ag.observe.host_operations() as told:
        roots: Any = np.roots(x)
    assert isinstance(roots, Array)
    assert np.allclose(np.sort(np.asarray(roots)), [1.0, 2.0])
    assert told[0].operation == "np.roots"
    assert told[0].bytes_moved == 24 + 16


def test_what_the_host_lacks_too_is_refused_before_anything_runs() -> None:
    place = DeviceRegistry().find("numpy")
    program = Program([Node(Input((3,), "float32")), Node(Cast("bfloat16"), (0,))], [1])
    with pytest.raises(ag.Unsupported, match="cast to float32"):
        place.run(program, [np.zeros(3, np.float32)])


def test_what_has_no_meaning_is_refused_with_what_to_write() -> None:
    x = as_array(np.zeros(3))
    with pytest.raises(TypeError, match=r"x\.base tells"):
        np.shares_memory(x, x)


def test_the_warning_does_not_advise_what_is_set() -> None:
    with pytest.warns(ag.errors.DeviceFallback, match="cannot be traced") as said:
        ag.run(lambda x: x if x.sum() > 0 else -x, np.ones(10), on="opencl", fallback="warn")
    assert "fallback=" not in str(said[0].message)
    with pytest.raises(ag.errors.NotRecordable, match='set fallback="warn"'):
        ag.run(lambda x: x if x.sum() > 0 else -x, np.ones(10), on="opencl", fallback="raise")
