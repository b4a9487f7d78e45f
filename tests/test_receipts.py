from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import anygpu as ag
from anygpu.receipts.receipt import PHASES, Attempt, HostOperation, Phase, Phases, PhaseTimer, Receipt
from anygpu.testing import ManualClock, fake_device

NOT_MEASURED = {
    "device_seconds": "the device has no clock",
    "peak_bytes": "not measured",
    "kernels": "not counted",
    "predicted_seconds": "no prediction was made",
}


def receipt() -> Receipt:
    return Receipt(
        task="score",
        device="webgpu:0",
        kind="gpu",
        reason="predicted 3.1× faster than numpy",
        phases=Phases(write=0.25, run=0.5, read=0.125, other=0.125),
        attempts=(
            Attempt(device="torch:cuda:0", phases=Phases(write=0.1), error="OutOfMemory", message="no room"),
            Attempt(device="webgpu:0", phases=Phases(write=0.15, run=0.5, read=0.125)),
        ),
        bytes_to_device=4096,
        host_operations=(HostOperation(operation="sort", reason="no kernel for it", line="a.py:3", bytes_moved=64),),
        unknown=NOT_MEASURED,
    )


def test_a_receipt_survives_json() -> None:
    assert Receipt.from_json(receipt().to_json()) == receipt()


def test_the_text_has_the_device_the_reason_the_failure_and_the_host_operation() -> None:
    text = str(receipt())
    for part in ("score ran on webgpu:0 in 1 s", "3.1× faster", "first tried torch:cuda:0: OutOfMemory", "a.py:3"):
        assert part in text
    assert "\n" not in text


def test_unknown_needs_a_reason_and_known_must_not_have_one() -> None:
    with pytest.raises(ValueError, match="device_seconds is None: say why"):
        Receipt(task="t", device="d", kind="cpu", reason="r", phases=Phases())
    with pytest.raises(ValueError, match="kernels is known"):
        Receipt(task="t", device="d", kind="cpu", reason="r", phases=Phases(), kernels=0, unknown=NOT_MEASURED)


def test_nested_phases_subtract_their_children() -> None:
    clock = ManualClock()
    timer = PhaseTimer(clock)
    clock.advance(1)
    with timer.phase("run"):
        clock.advance(2)
        with timer.phase("compile"):
            clock.advance(4)
        clock.advance(8)
    clock.advance(16)
    phases = timer.finish()
    assert phases == Phases(run=10, compile=4, other=17)
    assert phases.total == 31


def test_a_phase_that_raises_is_counted() -> None:
    clock = ManualClock()
    timer = PhaseTimer(clock)

    def fail() -> None:
        with timer.phase("write"):
            clock.advance(3)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert timer.finish() == Phases(write=3)


def test_planning_before_the_call_is_told_from_waiting() -> None:
    timer = PhaseTimer(ManualClock())
    timer.waited(5, planned=2)
    assert timer.finish() == Phases(plan=2, queue=3)
    timer = PhaseTimer(ManualClock())
    timer.waited(1, planned=2)
    assert timer.finish() == Phases(plan=1), "never more than there was"


Step = tuple[Phase, int, list["Step"]]
steps: st.SearchStrategy[Any] = st.recursive(
    st.tuples(st.sampled_from(PHASES), st.integers(0, 100), st.just([])),
    lambda inner: st.tuples(st.sampled_from(PHASES), st.integers(0, 100), st.lists(inner, max_size=3)),
    max_leaves=20,
)


@given(st.lists(steps, max_size=5), st.integers(0, 100))
def test_phases_always_add_up_to_the_total(script: list[Step], idle: int) -> None:
    clock = ManualClock()
    timer = PhaseTimer(clock)

    def play(step: Step) -> None:
        name, ticks, inner = step
        with timer.phase(name):
            clock.advance(ticks)
            for child in inner:
                play(child)

    for step in script:
        play(step)
    clock.advance(idle)
    phases = timer.finish()
    assert phases.total == pytest.approx(clock())
    assert phases.other == pytest.approx(idle)


def test_records_are_short_in_an_interactive_session() -> None:
    """What Python shows of a value that is not printed; all of it is in its fields, and in its JSON."""
    result = ag.run(np.tanh, np.ones(3))
    assert repr(result.receipt) == f"<Receipt: {result.receipt}>"
    assert len(repr(result.receipt)) < 200
    assert len(repr(ag.explain(np.tanh, np.ones(3), on="numpy"))) < 200
    assert repr(fake_device()) == "<Device fake:0 (Fake GPU), gpu, usable>"
