"""When calls become native: what is in time, and what is said of it."""

from __future__ import annotations

from types import SimpleNamespace

import msgspec
import pytest

import anygpu as ag
from benchmarks import first_calls
from benchmarks.first_calls import CELLS, FIRST, SECOND, Became, figures_of, line_of
from benchmarks.workloads import WORKLOADS


def test_there_are_sixteen_cells_of_the_grid() -> None:
    assert sum(map(len, CELLS.values())) == 16
    assert set(CELLS) <= {each.name for each in WORKLOADS if len(each.stages) == 1}


def test_a_cell_is_in_time_when_later_calls_are_native() -> None:
    early = Became(numpy=0.1, call=6, begins=0.55, before=0.45)
    assert early.in_time(FIRST)
    assert not early.in_time(SECOND)
    assert Became(numpy=1.0, call=4, begins=3.0, before=2.0).in_time(FIRST)
    assert Became(numpy=1.0, call=2, begins=1.0, before=0.0).in_time(SECOND)
    assert not Became(numpy=0.1, call=9, begins=0.8, before=0.7).in_time(FIRST)
    assert not Became(numpy=0.1).in_time(FIRST)


def test_one_cell_may_be_late() -> None:
    good, never = Became(numpy=0.1, call=1, begins=0.0), Became(numpy=0.1)
    assert [each.share <= 1 for each in figures_of([good, never], [good, good])] == [True, True, True]
    assert [each.share <= 1 for each in figures_of([good, never], [never, never])] == [True, True, False]


def test_what_is_not_told_is_a_dash() -> None:
    told = Became(numpy=0.1, call=3, begins=0.3, timings={"tracing": 0.002})
    line = line_of("softmax", 1000, told, Became(numpy=0.1))
    assert "2 ms" in line
    assert "never" in line
    assert line.count(" -") == 7


def test_a_process_says_when_it_became_native(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = iter(["numpy", "numpy", "cpu", "cpu"])
    monkeypatch.setattr(first_calls, "SHORTEST", 0.0)
    monkeypatch.setattr(ag, "last_receipt", lambda: SimpleNamespace(device=next(devices)))
    found = first_calls.measure("chain of 4", 100)
    assert found.call == 3
    assert found.begins is not None
    assert found.numpy is not None
    assert 0 < found.before < found.begins


def test_a_first_call_may_be_native_and_a_process_may_give_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_calls, "SHORTEST", 0.0)
    monkeypatch.setattr(ag, "last_receipt", lambda: SimpleNamespace(device="cpu"))
    found = first_calls.measure("chain of 4", 100)
    assert (found.call, found.numpy) == (1, None)
    assert msgspec.json.decode(msgspec.json.encode(found), type=Became) == found
    monkeypatch.setattr(first_calls, "LONGEST", 0.0)
    assert first_calls.measure("chain of 4", 100).call is None
