"""Kernels of ours that a device's compiler refuses: remembered for the program, and told as one typed error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from anygpu.array.trace.tracing import record
from anygpu.engines import compiling_session
from anygpu.engines.codegen.kernel import Kernel
from anygpu.errors import CannotCompile, InvalidProgram, OutOfMemory
from anygpu.program.primitives import Spec
from anygpu.workers.task_lifecycle import fault_of
from tests.engines.compiled import NAMES, Running
from tests.engines.compiled import running as opened

PROGRAM = record(lambda x: np.exp(x) * 3.25 + 1, Spec((70,), "float32"))


class Building:
    """Counts what a driver is asked to build, and puts something else in its place."""

    def __init__(self, build: Callable[[Kernel], Any], change: Callable[[Kernel], Kernel]) -> None:
        self._build = build
        self._change = change
        self.count = 0

    def __call__(self, kernel: Kernel) -> Any:
        self.count += 1
        return self._build(self._change(kernel))


@pytest.fixture(params=NAMES)
def running(request: pytest.FixtureRequest) -> Any:
    with opened(request.param) as running:
        yield running


def spoilt(kernel: Kernel) -> Kernel:
    return Kernel(
        name=kernel.name,
        source="this is not a kernel\n" + kernel.source,
        bindings=kernel.bindings,
        groups=kernel.groups,
        group_size=kernel.group_size,
        numbers=kernel.numbers,
    )


def test_a_refusal_is_typed_and_remembered(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = running.session.driver
    building = Building(driver.build, spoilt)
    monkeypatch.setattr(driver, "build", building)
    for _ in range(3):
        with pytest.raises(CannotCompile, match="cannot compile the program") as caught:
            running.engine.compile(PROGRAM, running.device)
        assert caught.value.device == running.device.id
        assert fault_of(caught.value) == "unsupported"
    assert building.count == 1


@pytest.mark.parametrize("error", [KeyError("add"), NotImplementedError("no kernels"), InvalidProgram("add: no")])
def test_what_code_generation_trips_over_is_a_refusal(
    running: Running, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(compiling_session, "schedule", fail)
    with pytest.raises(CannotCompile):
        running.engine.compile(PROGRAM, running.device)


def test_a_lack_of_memory_is_no_refusal(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OutOfMemory(running.device.id, 4096)

    with monkeypatch.context() as patch:
        patch.setattr(compiling_session, "schedule", fail)
        with pytest.raises(OutOfMemory):
            running.engine.compile(PROGRAM, running.device)
    running.engine.compile(PROGRAM, running.device)
