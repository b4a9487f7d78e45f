"""A compiled program whose sizes were found on a busy machine gets better ones, if they give the same values."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

import msgspec
import numpy as np
import pytest

from anygpu.array.trace.tracing import record
from anygpu.codegen.kernel import Schedule
from anygpu.engines import compiling_session
from anygpu.program.graph import Program
from anygpu.testing import FakeProcessors
from tests.engines.compiled import Running, running

X = np.random.default_rng(0).integers(-8, 9, (512, 2048)).astype(np.float32)


class TwoMinds:
    """Stands in for the tuner: one size on a busy machine, another on a calm one."""

    def __init__(self) -> None:
        self.looks = 0

    def is_doubtful(self, plan: Schedule) -> bool:
        return not self.looks

    def choose(
        self,
        plan: Schedule,
        again: Callable[[Mapping[str, msgspec.Struct]], Schedule],
        seconds: float,
        *,
        settle: bool = False,
    ) -> dict[str, msgspec.Struct]:
        self.looks += settle
        return {} if settle else {each.name: each.candidates[-1] for each in plan.choices}


class Doubtful:
    """A program on a device, compiled on a busy machine that is calm now."""

    def __init__(self, device: Running) -> None:
        self.device, self.session = device, device.session
        self.session.read_processors = FakeProcessors(time.perf_counter)
        self.tuner = TwoMinds()
        vars(self.session)["_tuner"] = self.tuner
        self.array = device.up(X)
        self.program: Program = record(lambda x: (x * 2).sum(axis=0), self.array.spec)

    def kernels(self) -> list[str]:
        return [step.source for step in self.session.compiled(self.program).schedule.steps]

    def run(self, times: int) -> None:
        for _ in range(times):
            (result,) = self.device.execute(self.program, [self.array])
            np.testing.assert_array_equal(self.device.down(result), 2 * X.sum(axis=0))


@pytest.fixture(params=["opencl", "webgpu"])
def doubtful(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Doubtful]:
    monkeypatch.setenv("ANYGPU_TUNING_SECONDS", "20")
    with running(request.param) as device:
        yield Doubtful(device)


def test_within_fifty_runs_of_a_calm_machine(doubtful: Doubtful) -> None:
    first = doubtful.kernels()
    doubtful.run(48)
    assert doubtful.tuner.looks == 1
    assert doubtful.kernels() != first


def test_sizes_that_give_other_values_are_not_used(doubtful: Doubtful, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling_session, "_is_same", lambda one, other: False)
    first = doubtful.kernels()
    doubtful.run(48)
    assert doubtful.kernels() == first


def test_nothing_changes_while_the_machine_is_busy(doubtful: Doubtful) -> None:
    doubtful.session.read_processors = FakeProcessors(time.perf_counter, 0.6)
    first = doubtful.kernels()
    doubtful.run(48)
    assert doubtful.kernels() == first
    assert doubtful.tuner.looks == 0


def test_results_are_the_same_but_for_rounding() -> None:
    same = compiling_session._is_same
    one = np.array([1.0, -1e-9, np.nan, np.inf], np.float32)
    assert same(one, one.copy())
    assert same(one, one + np.float32(1e-7))
    assert not same(one, one + np.float32(1e-4))
    assert not same(one, np.array([1.0, 0.0, np.nan, -np.inf], np.float32))
    assert not same(one, np.array([1.0, 0.0, 0.0, np.inf], np.float32))
    assert not same(np.array([1, 2]), np.array([1, 3]))
    assert same(np.array([], np.float32), np.array([], np.float32))
