"""What one process has learnt is used by the next: here a planner each, with one history."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anygpu as ag
from anygpu.calls.offload import Offloaded
from anygpu.calls.options import options
from anygpu.placement import planner as planning
from anygpu.placement import recall
from anygpu.placement.history.history import History
from anygpu.placement.planner import Planner
from anygpu.testing import FakeProcessors
from tests.history.memory_storage import MemoryStorage
from tests.support.slowed import ProcessorTime, Slowed, SlowedRegistry

pytestmark = pytest.mark.software_devices("calls move by themselves to a device that stands in for a GPU")

X = np.random.default_rng(0).normal(size=900_000).astype(np.float32)


def chain(x: Any) -> Any:
    """Sixty passes over memory in NumPy, one in a fused kernel."""
    for _ in range(20):
        x = np.maximum(x * 1.01 + 0.5, -2.0)
    return x


Begin = Callable[[], tuple[Planner, Offloaded[..., Any]]]


@pytest.fixture
def storage() -> MemoryStorage:
    return MemoryStorage()


@pytest.fixture
def begin(monkeypatch: pytest.MonkeyPatch, storage: MemoryStorage) -> Begin:
    """Begins a process: a planner that knows nothing but what is in the history."""
    # On a fast machine the few calls of a test would not pay for it.
    monkeypatch.setattr(recall, "_OPENING", 0.0)

    clock = ProcessorTime()
    on_numpy = clock.seconds(chain, X)

    def new() -> tuple[Planner, Offloaded[..., Any]]:
        places = SlowedRegistry("opencl:0", clock, on_numpy / 10)
        processors = FakeProcessors(clock)
        planner = Planner(known=places, clock=clock, history=lambda: History(storage), read_processors=processors)
        return planner, Offloaded(chain, options(), lambda: planner)

    return new


def went(planner: Planner, function: Offloaded[..., Any], calls: int) -> list[ag.Receipt]:
    receipts = []
    for _ in range(calls):
        receipts.append(function.run(X).receipt)
        assert planner.settle(120)
    return receipts


def learn(begin: Begin) -> None:
    """A process in which calls take long enough to find out."""
    planner, function = begin()
    planner.add_seconds(100.0)
    planner.wake()
    assert planner.settle(120)
    receipts = went(planner, function, 40)
    assert receipts[-1].device == "opencl:0"
    planner.recall.save(5.0)


def test_the_next_process_moves_at_once_and_says_where_it_knows_that_from(begin: Begin) -> None:
    learn(begin)
    planner, function = begin()
    receipts = went(planner, function, 20)  # how many of the first are NumPy's depends on when the worker is open
    moved = [receipt for receipt in receipts if receipt.device == "opencl:0"]
    assert len(moved) >= 6
    assert "in earlier processes (measured just now, " in moved[0].reason
    assert planner.pace.spent < 1.0, "only the worker was opened and compared"


@pytest.mark.full
def test_a_memory_that_is_wrong_costs_one_call(begin: Begin) -> None:
    learn(begin)
    planner, function = begin()
    slowed: Slowed = planner.places.slowed  # type: ignore[attr-defined]
    slowed.factor = 40.0
    receipts = went(planner, function, 16)
    assert [receipt.device for receipt in receipts].count("opencl:0") <= 1, "a trial may find out before it"
    assert receipts[-1].device == "numpy"


def test_without_a_history_nothing_is_foreseen(begin: Begin) -> None:
    planner, function = begin()
    receipts = went(planner, function, 4)
    assert {receipt.device for receipt in receipts} == {"numpy"}
    assert not planner.awake


def test_what_disagreed_is_not_remembered(begin: Begin, storage: MemoryStorage) -> None:
    learn(begin)
    assert "opencl:0" in {key.device for key in storage.rows}
    planner, function = begin()
    function.run(X)
    (site,) = function._table.sites.values()
    planner.wake(pays=True)
    assert planner.settle(120)
    while site.programs.current is None:
        function.run(X)
        assert planner.settle(120)
    planner.recall.begin(site, chain, next(iter(function._table.sites)))
    planner.recall.disagreed(site, "opencl:0")
    planner.recall.save(5.0)
    planner, function = begin()
    receipts = went(planner, function, 6)
    assert {receipt.device for receipt in receipts} == {"numpy"}


def test_what_was_only_remembered_is_not_kept_as_measured_now(begin: Begin, storage: MemoryStorage) -> None:
    learn(begin)
    before = {key.device: row for key, row in storage.rows.items()}
    planner, function = begin()
    while not planner.awake:
        function.run(X)
        assert planner.settle(120)
    site = next(iter(function._table.sites.values()))
    while not site.chooser.tracks.get("opencl:0", site.chooser.tracks["numpy"]).agreed:
        function.run(X)
        assert planner.settle(120)
    planner.recall.save(5.0)
    after = {key.device: row for key, row in storage.rows.items()}
    assert (after["opencl:0"].recent, after["opencl:0"].calls) == (before["opencl:0"].recent, before["opencl:0"].calls)
    assert after["numpy"].calls > before["numpy"].calls
    planner.recall.save(5.0)
    assert {key.device: row for key, row in storage.rows.items()} == after


def test_numpys_times_are_kept_although_a_plan_was_asked_for_first(begin: Begin, storage: MemoryStorage) -> None:
    planner, function = begin()
    function.explain(X)
    went(planner, function, 3)
    planner.recall.save(5.0)
    assert "numpy" in {key.device for key in storage.rows}
    (habit,) = storage.habits.values()
    assert [calls for _, _, calls, _ in habit.recent] == [3]


def test_a_wrong_setting_does_not_fail_a_call(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("ANYGPU_HISTORY", "maybe")
    planner = Planner(known=SlowedRegistry("opencl:0"), history=planning._users_history)
    function: Offloaded[..., Any] = Offloaded(chain, options(), lambda: planner)
    planner.add_seconds(100.0)
    planner.wake()
    went(planner, function, 20)
    planner.recall.save()
    assert [record.message for record in caplog.records if record.name == "anygpu.history"] == [
        'nothing is kept: ANYGPU_HISTORY is one of "on", "anonymous", "off"; got \'maybe\'.'
    ]
