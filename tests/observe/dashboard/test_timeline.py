"""Calls as blocks: what is drawn is as much as the calls took."""

from __future__ import annotations

import numpy as np
import pytest

from anygpu.observe.dashboard.history import (
    BEGIN,
    CALLS,
    DEVICE,
    END,
    ERRORS,
    FUNCTION,
    MOVE,
    RUN,
    SLOTS,
    WAIT,
    blocks_of,
    merged,
    placed,
    stacked,
)
from tests.observe.dashboard.invented import call


def blocks(*spans: tuple[float, float, int]) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Of (begin, end, function)."""
    calls = [call(number, end, end - begin) for number, (begin, end, _) in enumerate(spans, 1)]
    return blocks_of(calls, [function for *_, function in spans], [0] * len(spans))


def test_a_block_begins_when_its_call_stops_waiting() -> None:
    (block,) = blocks_of([call(1, 10.0, 0.5, queue=2.0, move=0.25, error="DeviceLost")], [3], [4])

    assert block[[BEGIN, END, WAIT, MOVE, RUN]].tolist() == [9.25, 10.0, 2.0, 0.25, 0.5]
    assert block[[CALLS, ERRORS, FUNCTION, DEVICE]].tolist() == [1, 1, 3, 4]


def test_calls_that_cannot_be_told_apart_become_one_block() -> None:
    found = merged(blocks((0.0, 1.0, 0), (1.005, 2.0, 0), (1.2, 1.3, 0), (3.0, 4.0, 0)), gap=0.01)

    assert found[:, (BEGIN, END)].tolist() == [[0.0, 2.0], [3.0, 4.0]]
    assert found[:, CALLS].tolist() == [3, 1]
    assert found[:, RUN] == pytest.approx([1.0 + 0.995 + 0.1, 1.0])


def test_calls_of_different_functions_stay_apart() -> None:
    found = merged(blocks((0.0, 1.0, 0), (1.0, 2.0, 1), (2.0, 3.0, 0)), gap=0.5)

    assert len(found) == 3


def test_nothing_is_lost_when_blocks_are_merged_again() -> None:
    generator = np.random.default_rng(18)
    begins = np.sort(generator.uniform(1e9, 1e9 + 60, 5000))
    many = blocks(*((begin, begin + 0.004, number % 5) for number, begin in enumerate(begins)))

    once = merged(many, 0.02)
    twice = merged(once, 0.2)

    for found in (once, twice):
        assert found[:, CALLS].sum() == 5000
        assert found[:, RUN].sum() == pytest.approx(
            20.0, rel=1e-4
        )  # times since 1970 have seven digits after the point
    assert len(twice) < len(once) < len(many)


def test_blocks_that_overlap_do_not_cover_one_another() -> None:
    found = placed(blocks((0.0, 2.0, 0), (1.0, 3.0, 1), (2.0, 4.0, 2)))

    assert found.low.tolist() == [0.0, 0.5, 0.0]
    assert found.high.tolist() == [0.5, 1.0, 0.5]


def test_a_row_has_room_for_a_few_at_once() -> None:
    found = placed(blocks(*((0.0, 1.0, number) for number in range(10))))

    assert found.low.min() == 0
    assert found.high.max() == pytest.approx(1.0)
    assert len(set(found.low.tolist())) == SLOTS


def test_the_area_of_what_is_stacked_is_what_calls_took() -> None:
    generator = np.random.default_rng(18)
    begins = generator.uniform(0.0, 29.0, 2000)
    many = blocks(*((begin, begin + 0.002, number % 3) for number, begin in enumerate(begins)))

    found = stacked(many, 0.0, 30.0, 150)

    assert found.blocks[:, RUN].sum() == pytest.approx(4.0)
    assert found.blocks[:, CALLS].sum() == pytest.approx(2000)
    heights = (found.blocks[:, RUN] / 0.2).clip(0.03)
    assert (found.high - found.low) == pytest.approx(heights)


def test_a_long_call_fills_all_parts_that_it_was_in() -> None:
    found = stacked(blocks((1.0, 4.0, 0)), 0.0, 5.0, 5)

    assert found.blocks[:, BEGIN].tolist() == [1.0, 2.0, 3.0]
    assert found.high.tolist() == [1.0, 1.0, 1.0]
    assert found.blocks[:, CALLS].sum() == pytest.approx(1.0)


def test_what_was_before_and_what_comes_after_is_not_drawn() -> None:
    found = stacked(blocks((-5.0, -4.0, 0), (-1.0, 1.0, 0), (9.0, 11.0, 0), (20.0, 21.0, 0)), 0.0, 10.0, 10)

    assert found.blocks[:, BEGIN].tolist() == [0.0, 9.0]
    assert found.blocks[:, RUN].sum() == pytest.approx(2.0)


def test_calls_at_once_are_one_upon_the_other_within_the_row() -> None:
    found = stacked(blocks(*((0.0, 1.0, number) for number in range(4))), 0.0, 1.0, 1)

    assert found.low.tolist() == pytest.approx([0, 0.25, 0.5, 0.75])
    assert found.high.max() == pytest.approx(1.0)
