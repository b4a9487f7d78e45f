"""How work is cut and put together, as pure functions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anygpu.engines.webgpu.encoder import batches
from anygpu.engines.webgpu.pipelines import grid_of
from anygpu.engines.webgpu.submission import MEASUREMENTS, GridPart, KernelPace, SubmittedWork, cut, plan

FOLD = 65535

works = st.lists(
    st.builds(
        SubmittedWork,
        seconds=st.one_of(st.just(0.0), st.floats(0.0, 3.0)),
        groups=st.integers(0, 300_000),
        divisible=st.booleans(),
    ),
    max_size=20,
)


@given(groups=st.integers(0, 5_000_000), seconds=st.floats(0.0, 20.0), fold=st.sampled_from([7, 64, FOLD]))
def test_parts_cover_the_groups_once_and_are_short_enough(groups: int, seconds: float, fold: int) -> None:
    parts = cut(groups, seconds, limit=0.2, fold=fold)
    position = 0
    for first, count in parts:
        assert first == position
        position += count
    assert position == groups
    for first, count in parts:
        columns, rows = grid_of(count, fold)
        # A dispatch of whole rows must not run into the next part's groups; past the end, the kernel returns.
        assert columns * rows == count or first + count == groups
        assert count <= 1 or seconds * count / groups <= 0.2 * 1.0001


@given(works)
def test_a_plan_has_every_command_in_order(commands: list[SubmittedWork]) -> None:
    submissions = plan(commands, fold=FOLD)
    flat = [part for submission in submissions for part in submission]
    assert [part.command for part in flat] == sorted(part.command for part in flat)
    for number, work in enumerate(commands):
        mine = [part for part in flat if part.command == number]
        assert sum(part.groups for part in mine) == work.groups
        assert mine, "a command was lost"
        assert len(mine) == 1 or work.divisible
    assert all(submissions)


@given(works)
def test_what_goes_together_is_short(commands: list[SubmittedWork]) -> None:
    for submission in plan(commands, fold=FOLD):
        seconds = [commands[part.command].seconds for part in submission]
        if len(submission) > 1:
            assert max(seconds) <= 0.2
            assert sum(seconds) <= 1.0 + 1e-9


def test_short_work_is_one_submission() -> None:
    assert plan([SubmittedWork(0.001, 10, True)] * 50, fold=FOLD) == [[GridPart(number, 0, 10) for number in range(50)]]
    assert plan([], fold=FOLD) == []


def test_a_long_kernel_that_cannot_be_cut_goes_alone() -> None:
    assert plan([SubmittedWork(0.01, 5), SubmittedWork(3.0, 7), SubmittedWork(0.01, 5)], fold=FOLD) == [
        [GridPart(0, 0, 5)],
        [GridPart(1, 0, 7)],
        [GridPart(2, 0, 5)],
    ]


def test_a_pace_begins_careful_and_learns() -> None:
    pace = KernelPace()
    assert pace.seconds("a", 1.0) == 1.0
    pace.learn(["a"], 0.01)
    assert pace.seconds("a", 1.0) == pytest.approx(0.02)
    # Of others, less is known.
    assert pace.seconds("b", 1.0) == pytest.approx(0.08)
    # A slow kernel makes it careful about all that are unknown, and not about those that are known.
    pace.learn(["c"], 0.5)
    assert pace.seconds("b", 1.0) == 1.0
    assert pace.seconds("a", 1.0) == pytest.approx(0.02)
    pace.learn(["d"], 5.0)
    assert pace.seconds("b", 1.0) == 5.0


def test_a_kernel_is_measured_a_few_times_and_the_least_counts() -> None:
    pace = KernelPace()
    for multiple in (1.0, 0.1, 0.2):
        assert pace.wants("a")
        pace.learn(["a"], multiple)
    assert MEASUREMENTS == 3
    assert not pace.wants("a")
    assert pace.seconds("a", 1.0) == pytest.approx(0.2)


spans = st.lists(st.tuples(st.integers(0, 1000).map(lambda n: 4 * n), st.integers(0, 100).map(lambda n: 4 * n)))


@given(spans, st.sampled_from([8, 64, 128, 4096]))
def test_batches_hold_every_byte_once(wanted: list[tuple[int, int]], most: int) -> None:
    packed = batches(wanted, most)
    seen: dict[int, int] = dict.fromkeys(range(len(wanted)), 0)
    for batch in packed:
        end = 0
        for piece in batch:
            assert piece.mapped_offset % 8 == 0
            assert piece.mapped_offset >= end
            end = piece.mapped_offset + piece.nbytes
            assert piece.source_offset == wanted[piece.source][0] + seen[piece.source]
            assert piece.result_offset == seen[piece.source]
            seen[piece.source] += piece.nbytes
        assert 0 < end <= most
    assert seen == {number: nbytes for number, (_, nbytes) in enumerate(wanted)}
