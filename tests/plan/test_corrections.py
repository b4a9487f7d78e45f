"""What predictions were wrong by makes the next ones better."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anygpu.array.functions.creation import asarray
from anygpu.plan.corrections import Corrections, kind_of

SECONDS = st.floats(1e-6, 1e3)


def test_nothing_is_corrected_before_anything_was_learnt() -> None:
    assert Corrections().factor("gpu", "contraction") == 1.0


@given(predicted=SECONDS, factor=st.floats(0.06, 15.0))
def test_a_steady_error_is_corrected_at_once(predicted: float, factor: float) -> None:
    corrections = Corrections()
    for _ in range(3):
        corrections.learn("gpu", "contraction", predicted, predicted * factor)
    assert corrections.factor("gpu", "contraction") == pytest.approx(factor)
    assert corrections.factor("gpu", "sort") == 1.0
    assert corrections.factor("other", "contraction") == 1.0


@given(st.lists(st.tuples(SECONDS, SECONDS), max_size=20))
def test_corrections_stay_within_reason(calls: list[tuple[float, float]]) -> None:
    corrections = Corrections()
    for predicted, actual in calls:
        corrections.learn("gpu", "sort", predicted, actual)
    assert 1 / 20.01 <= corrections.factor("gpu", "sort") <= 20.01


def test_a_new_speed_is_believed_after_some_calls() -> None:
    corrections = Corrections()
    corrections.learn("gpu", "scan", 1.0, 1.0)
    for _ in range(12):
        corrections.learn("gpu", "scan", 1.0, 5.0)
    assert corrections.factor("gpu", "scan") == pytest.approx(5.0, rel=0.05)


def test_times_that_cannot_be_are_ignored() -> None:
    corrections = Corrections()
    corrections.learn("gpu", "scan", 0.0, 1.0)
    corrections.learn("gpu", "scan", 1.0, 0.0)
    assert corrections.factor("gpu", "scan") == 1.0


def test_the_kind_of_a_program_is_that_of_most_of_its_work() -> None:
    x = asarray([[1.0, 2.0], [3.0, 4.0]])
    assert kind_of((x + 1).program) == "elementwise"
    import numpy as np

    big = asarray(np.ones((50, 50)))
    assert kind_of((big @ big + 1).program) == "contraction"
