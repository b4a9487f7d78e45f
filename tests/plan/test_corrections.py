"""What predictions were wrong by makes the next ones better."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anygpu.array.functions.creation import asarray
from anygpu.plan.corrections import (
    ENOUGH,
    FAR_OFF,
    MOST,
    MOST_PROGRAMS,
    Corrections,
    Error,
    doubt_about,
    factor_from,
    kind_of,
)
from anygpu.program.costs import OperationClass

SECONDS = st.floats(1e-6, 1e3)
KINDS: st.SearchStrategy[OperationClass] = st.sampled_from(["elementwise", "contraction", "sort", "scan"])
ERRORS = st.lists(st.builds(Error, KINDS, st.floats(-math.log(MOST), math.log(MOST)), st.booleans()), max_size=20)
CALLS = st.lists(st.tuples(st.sampled_from("abc"), KINDS, st.text("xyz", max_size=3), SECONDS, SECONDS, st.booleans()))


def learnt(errors: list[float], kind: OperationClass = "elementwise", device: str = "gpu") -> Corrections:
    """The corrections after as many programs, each of which took so many times what was predicted."""
    corrections = Corrections()
    for number, error in enumerate(errors):
        corrections.learn(device, kind, 0.01, 0.01 * error, program=str(number))
    return corrections


def test_nothing_is_corrected_before_anything_was_learnt() -> None:
    assert Corrections().factor("gpu", "contraction") == 1.0


@given(predicted=SECONDS, factor=st.floats(0.06, 15.0))
def test_a_steady_error_is_corrected_at_once(predicted: float, factor: float) -> None:
    corrections = Corrections()
    for _ in range(3):
        corrections.learn("gpu", "contraction", predicted, predicted * factor)
    assert corrections.factor("gpu", "contraction") == pytest.approx(factor)
    assert corrections.factor("gpu", "sort", "another") == 1.0
    assert corrections.factor("other", "contraction") == 1.0


def test_a_device_that_was_far_off_is_doubted_for_every_kind_of_program() -> None:
    corrections = learnt([7.0, 8.0, 9.0])
    assert corrections.factor("gpu", "sort", "new") == pytest.approx(8.0)
    assert corrections.factor("other", "sort", "new") == 1.0
    assert learnt([0.1, 0.125, 0.2]).factor("gpu", "sort", "new") == pytest.approx(0.125)


def test_one_program_of_another_kind_is_no_reason_for_doubt() -> None:
    assert learnt([15.0]).factor("gpu", "sort", "new") == 1.0
    assert learnt([1.1, 0.9, 1.2, 15.0]).factor("gpu", "sort", "new") == 1.0
    assert learnt([2.0, 2.5, 2.9]).factor("gpu", "sort", "new") == 1.0


def test_a_program_is_corrected_by_its_own_error_first_and_by_its_kind_next() -> None:
    corrections = learnt([8.0, 8.0, 8.0])
    corrections.learn("gpu", "sort", 1.0, 2.0, program="own")
    assert corrections.factor("gpu", "sort", "own") == pytest.approx(2.0)
    assert corrections.factor("gpu", "sort", "new") == pytest.approx(2.0)
    assert corrections.factor("gpu", "elementwise", "new") == pytest.approx(8.0)


def test_a_program_that_is_called_often_counts_once() -> None:
    corrections = learnt([8.0, 8.0])
    for _ in range(1000):
        corrections.learn("gpu", "elementwise", 1.0, 1.0, program="often")
    assert corrections.factor("gpu", "elementwise", "new") == pytest.approx(8.0)


def test_a_trial_counts_until_there_is_a_call() -> None:
    corrections = Corrections()
    corrections.learn("gpu", "sort", 1.0, 10.0, program="a", is_rough=True)
    assert corrections.factor("gpu", "sort", "new") == pytest.approx(10.0)
    corrections.learn("gpu", "sort", 1.0, 5.0, program="a")
    corrections.learn("gpu", "sort", 1.0, 20.0, program="a", is_rough=True)
    assert corrections.factor("gpu", "sort", "new") == pytest.approx(5.0)


def test_a_calibration_begins_anew() -> None:
    corrections = learnt([8.0, 8.0, 8.0])
    version = corrections.version
    corrections.forget("gpu")
    assert corrections.factor("gpu", "elementwise", "new") == 1.0
    assert corrections.version > version, "predictions that were corrected are made again"


def test_the_version_rises_with_news_only() -> None:
    assert learnt([1.0, 1.2, 2.9]).version == 0
    corrections = learnt([1.0, 8.0])
    assert corrections.version == 1
    corrections.learn("gpu", "elementwise", 0.01, 0.08, program="1")
    assert corrections.version == 1


@given(ERRORS, KINDS)
def test_a_correction_lies_between_the_errors(errors: list[Error], kind: OperationClass) -> None:
    factor = factor_from(errors, kind)
    assert factor == factor_from(errors[::-1], kind), "the order does not matter"
    assert 1 / MOST / 1.001 <= factor <= MOST * 1.001
    if factor != 1.0:
        logarithms = [each.logarithm for each in errors]
        assert min(logarithms) - 1e-9 <= math.log(factor) <= max(logarithms) + 1e-9
    if not any(each.kind == kind for each in errors):
        assert factor == 1.0 or (max(factor, 1 / factor) > FAR_OFF and len(errors) >= ENOUGH)


@given(CALLS)
def test_what_is_remembered_is_bounded_and_depends_on_the_calls_alone(
    calls: list[tuple[str, OperationClass, str, float, float, bool]],
) -> None:
    one, other = Corrections(), Corrections()
    for corrections in (one, other):
        for device, kind, program, predicted, actual, is_rough in calls:
            corrections.learn(device, kind, predicted, actual, program=program, is_rough=is_rough)
    for device in "abc":
        for kind in ("elementwise", "sort"):
            factor = one.factor(device, kind, "new")
            assert factor == other.factor(device, kind, "new")
            assert 1 / MOST / 1.001 <= factor <= MOST * 1.001


def test_only_the_latest_programs_are_remembered() -> None:
    corrections = learnt([8.0] * 1000)
    assert corrections.programs("gpu") == MOST_PROGRAMS
    for number in range(MOST_PROGRAMS):
        corrections.learn("gpu", "elementwise", 1.0, 1.0, program=f"later {number}")
    assert corrections.factor("gpu", "elementwise", "new") == 1.0


def test_short_programs_say_nothing_of_long_ones() -> None:
    corrections = Corrections()
    corrections.learn("gpu", "scan", 1e-4, 1e-2, program="short")
    assert corrections.factor("gpu", "scan", "new", predicted=5e-4) > 10
    assert corrections.factor("gpu", "scan", "new", predicted=1e-3) == 1.0


def test_a_new_speed_is_believed_after_some_calls() -> None:
    corrections = Corrections()
    corrections.learn("gpu", "scan", 1.0, 1.0)
    for _ in range(12):
        corrections.learn("gpu", "scan", 1.0, 5.0)
    assert corrections.factor("gpu", "scan") == pytest.approx(5.0, rel=0.05)


def test_times_that_cannot_be_are_ignored() -> None:
    corrections = Corrections()
    for predicted, actual in ((0.0, 1.0), (1.0, 0.0), (1.0, math.inf), (1.0, math.nan), (math.nan, 1.0)):
        corrections.learn("gpu", "scan", predicted, actual)
    assert corrections.factor("gpu", "scan") == 1.0


def test_doubt_is_put_into_words() -> None:
    assert doubt_about("webgpu:0", 8.2) == "predictions for webgpu:0 were 8× too low so far"
    assert doubt_about("webgpu:0", 0.1) == "predictions for webgpu:0 were 10× too high so far"
    assert doubt_about("webgpu:0", 2.9) is None
    assert doubt_about("webgpu:0", 0.5) is None


def test_the_kind_of_a_program_is_that_of_most_of_its_work() -> None:
    x = asarray([[1.0, 2.0], [3.0, 4.0]])
    assert kind_of((x + 1).program) == "elementwise"
    big = asarray(np.ones((50, 50)))
    assert kind_of((big @ big + 1).program) == "contraction"
