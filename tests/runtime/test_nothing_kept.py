"""What tasks leave behind when they are over, and runtimes when they are closed: nothing of their users'."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anygpu as ag
from anygpu.runtime.runtime import Runtime
from anygpu.workers.device_arrays.registry import DeviceRegistry
from tests.runtime.holding import PATIENCE, Held


class Model:
    """What a function has captured, or was given."""

    def __init__(self) -> None:
        self.weight = 2.0


def _submitted(runtime: Runtime, model: Model) -> None:
    runtime.submit(lambda x: x * model.weight, np.ones(3)).result(PATIENCE)


def _as_an_argument(runtime: Runtime, model: Model) -> None:
    runtime.submit(lambda each, x: x * each.weight, model, np.ones(3)).result(PATIENCE)


def _mapped(runtime: Runtime, model: Model) -> None:
    assert all(each.ok for each in runtime.map(lambda x: x * model.weight, [np.ones(3)] * 20))


def _failed(runtime: Runtime, model: Model) -> None:
    def fail(x: Any) -> Any:
        raise ValueError(model.weight)

    with contextlib.suppress(ValueError):
        runtime.submit(fail, np.ones(3)).result(PATIENCE)


def _cancelled(runtime: Runtime, model: Model) -> None:
    with Held(runtime):
        assert runtime.submit(lambda x: x * model.weight, np.ones(3)).cancel()


def _late(runtime: Runtime, model: Model) -> None:
    with Held(runtime):
        future = runtime.submit(lambda x: x * model.weight, np.ones(3), deadline=0.01)
        assert isinstance(future.exception(PATIENCE), ag.DeadlineExceeded)


def _nested(runtime: Runtime, model: Model) -> None:
    def outer(x: Any) -> Any:
        return runtime.submit(lambda y: y * model.weight, x).result()

    runtime.submit(outer, np.ones(3)).result(PATIENCE)


def _on_a_device(runtime: Runtime, model: Model) -> None:
    runtime.map(lambda x: x * model.weight, [np.ones(64, np.float32)] * 40, on="opencl")


WAYS = [_submitted, _as_an_argument, _mapped, _failed, _cancelled, _late, _nested, _on_a_device]


@pytest.mark.sampled(gate=2)
@pytest.mark.parametrize("way", WAYS)
def test_tasks_that_are_over(runtime: Runtime, way: Callable[[Runtime, Model], None]) -> None:
    gone: list[Any] = []
    for _ in range(3):
        model = Model()
        gone.append(weakref.ref(model))
        way(runtime, model)
        del model
    runtime.drain(PATIENCE)
    gc.collect()
    assert [each() for each in gone] == [None] * 3


def test_runtimes_that_are_closed(known: DeviceRegistry) -> None:
    gone: list[Any] = []
    for _ in range(5):
        with Runtime(known=known) as runtime:
            model = Model()
            _nested(runtime, model)
            _mapped(runtime, model)
        gone += [weakref.ref(model), weakref.ref(runtime), weakref.ref(runtime._scheduler)]
        del model, runtime
    gc.collect()
    assert [each() for each in gone] == [None] * 15
