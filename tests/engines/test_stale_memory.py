"""Results never show what was in their memory before, whatever a kernel does or leaves undone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest

from anygpu.array.trace.tracing import record
from anygpu.engines.codegen.kernel import Kernel
from anygpu.engines.driver import Clear, Command
from anygpu.program.graph import Program
from tests.engines.compiled import NAMES, Running, spec_of
from tests.engines.compiled import running as opened

SECRET = np.full(1000, 1234.5, np.float32)
X = np.linspace(0.1, 1, 1000, dtype=np.float32)


@pytest.fixture(params=NAMES)
def running(request: pytest.FixtureRequest) -> Iterator[Running]:
    with opened(request.param) as running:
        yield running


def leave_secrets(running: Running) -> None:
    """In memory that is free for the next one."""
    for factor in range(2, 6):
        running.values(lambda x, factor=factor: x * factor, SECRET)


class Idle:
    """Builds kernels that do nothing at all."""

    def __init__(self, driver: Any) -> None:
        self._build = driver.build

    def __call__(self, kernel: Kernel) -> Any:
        return self._build(msgspec.structs.replace(kernel, groups=0))


PROGRAMS: dict[str, Any] = {
    "one kernel": lambda x: x * 3 + 1,
    "several": lambda x: np.sort(np.cumsum(x) - x.mean()),
    "of bytes": lambda x: x > 0.5,
}


@pytest.mark.sampled(gate=2)
@pytest.mark.parametrize("name", PROGRAMS)
def test_kernels_that_store_nothing_show_nothing(running: Running, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    leave_secrets(running)
    monkeypatch.setattr(running.session.driver, "build", Idle(running.session.driver))
    for _ in range(3):
        # Of another length than elsewhere: what a text was found to store is remembered.
        for result in running.values(PROGRAMS[name], X[:990]):
            assert not result.view(np.uint8).any()


def commands_of(running: Running, program: Program, monkeypatch: pytest.MonkeyPatch) -> list[Command]:
    """What the driver is given for a run."""
    executable = running.engine.compile(program, running.device)
    seen: list[Command] = []
    submit = running.session.driver.submit

    def watched(commands: Sequence[Command], *, timed: bool = False) -> None:
        seen.extend(commands)
        submit(commands, timed=timed)

    with monkeypatch.context() as patch:
        patch.setattr(running.session.driver, "submit", watched)
        running.engine.execute(executable, [running.up(X)])
    return seen


@pytest.mark.sampled(gate=2)
@pytest.mark.parametrize("name", PROGRAMS)
def test_kernels_that_store_everything_cost_nothing_more(
    running: Running, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    program = record(PROGRAMS[name], spec_of(X))
    assert running.engine.compile(program, running.device).overwrites
    assert not [each for each in commands_of(running, program, monkeypatch) if isinstance(each, Clear)]


def test_what_was_found_out_is_remembered(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    session = running.session
    program = record(lambda x: x * 7.5 - 2, spec_of(X))
    assert session.compiled(program).overwrites
    session._executables.clear()

    def fail(*_: object) -> None:
        raise AssertionError("it was found out before")

    monkeypatch.setattr(session._trials, "overwrites", fail)
    assert session.compiled(program).overwrites


def test_where_there_is_no_room_to_find_out_memory_is_cleared(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running.session._trials, "overwrites", lambda *_: None)
    program = record(lambda x: x * 8.5 - 2, spec_of(X))
    assert [each for each in commands_of(running, program, monkeypatch) if isinstance(each, Clear)]
    (result,) = running.execute(program, [running.up(X)])
    np.testing.assert_array_equal(running.down(result), X * np.float32(8.5) - 2)
