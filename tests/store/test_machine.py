"""Random steps on real stores, with everything that has to be true after each; and faults that must be found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from anygpu.store.contents import Content
from anygpu.store.names import Names
from anygpu.store.tiers import Tiers
from anygpu.workers.device_arrays.lineage import TrackedBuffer
from tests.store.checking import Wrong
from tests.store.machine import numbers_of, run
from tests.store.steps import Machine

NUMBERS = st.integers(0, 2**48 - 1)


def machine_on(device: str) -> type[RuleBasedStateMachine]:
    class OnDevice(RuleBasedStateMachine):
        machine: Machine

        @initialize(setting=NUMBERS)
        def make(self, setting: int) -> None:
            self.machine = Machine(device, setting)

        @rule(number=NUMBERS)
        def step(self, number: int) -> None:
            self.machine.step(number)

        def teardown(self) -> None:
            if hasattr(self, "machine"):
                self.machine.close()

    return OnDevice


@pytest.mark.parametrize(("device", "examples"), [("numpy", 40), ("opencl", 5)])
def test_whatever_is_done_with_a_store(device: str, examples: int) -> None:
    run_state_machine_as_test(
        machine_on(device),
        settings=settings(
            max_examples=examples, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


@pytest.mark.parametrize(("device", "count"), [("torch:cpu", 8), ("webgpu", 1)])
def test_a_few_sequences_on_other_devices(device: str, count: int) -> None:
    for seed in range(count):
        run(device, numbers_of(seed, 50))


def test_processes_that_die() -> None:
    run("opencl", numbers_of(11, 40), deadly=True)
    run("numpy", numbers_of(12, 25), deadly=True)


# -- the test of the test


def release_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A release that frees a content which other tensors still have."""
    unlink = Tiers.unlink

    def too_much(self: Tiers, content: Content, entry: Any) -> None:
        unlink(self, content, entry)
        for other in list(content.tensors):
            unlink(self, content, other)

    monkeypatch.setattr(Tiers, "unlink", too_much)


def evict_what_is_leased(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tiers, "is_fixed", lambda self, content: content.moving)


def write_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """All tensors of a content get what is written to one of them."""
    replace = Names.replace

    def for_all(self: Names, entry: Any, content: Content) -> None:
        for other in list(entry.content.tensors):
            replace(self, other, content)

    monkeypatch.setattr(Names, "replace", for_all)


def leak_on_close(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Any] = []
    close = Content.close

    def remembering(self: Content) -> None:
        kept.append(self.value.buffer if not isinstance(self.value.buffer, TrackedBuffer) else self.value.buffer.handle)
        close(self)

    monkeypatch.setattr(Content, "close", remembering)


def forget_to_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A holder that dies keeps its reference."""
    monkeypatch.setattr("anygpu.store.names.Names.holder_is_gone", lambda *arguments: None)


@pytest.mark.sampled(gate=2)
@pytest.mark.parametrize("fault", [release_twice, evict_what_is_leased, write_in_place, leak_on_close, forget_to_count])
def test_faults_are_found(monkeypatch: pytest.MonkeyPatch, fault: Callable[[pytest.MonkeyPatch], None]) -> None:
    fault(monkeypatch)
    with pytest.raises(Wrong):
        several(60)


@pytest.mark.full
def test_without_a_fault_the_same_sequences_pass() -> None:
    several(15)


def several(count: int) -> None:
    for seed in range(count):
        run("numpy", numbers_of(seed, 50))
