"""What predictions were wrong by makes the next ones better."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anygpu.placement.plan.predicting import (
    ALIKE,
    ENOUGH,
    FAR_OFF,
    MOST,
    MOST_PROGRAMS,
    Corrections,
    Error,
    doubt_about,
    factor_from,
)

SECONDS = st.floats(1e-6, 1e3)
ERRORS = st.lists(st.builds(Error, SECONDS, st.floats(-math.log(MOST), math.log(MOST)), st.booleans()), max_size=20)
CALLS = st.lists(st.tuples(st.sampled_from("abc"), st.text("xyz", max_size=3), SECONDS, SECONDS, st.booleans()))


def learnt(errors: list[float], predicted: float = 0.01) -> Corrections:
    """The corrections after as many programs, each of which took so many times what was predicted."""
    corrections = Corrections()
    for number, error in enumerate(errors):
        corrections.learn("gpu", predicted, predicted * error, program=str(number))
    return corrections


def test_nothing_is_corrected_before_anything_was_learnt() -> None:
    assert Corrections().factor("gpu", 0.01) == 1.0


@given(predicted=SECONDS, factor=st.floats(0.06, 15.0), longer=st.floats(0.2, 5.0))
def test_a_steady_error_is_corrected_at_once(predicted: float, factor: float, longer: float) -> None:
    corrections = learnt([factor, factor], predicted)
    assert corrections.factor("gpu", predicted * longer, "new") == pytest.approx(factor)
    assert corrections.factor("other", predicted * longer, "new") == 1.0


def test_a_device_that_was_far_off_is_doubted_for_longer_programs_too() -> None:
    corrections = learnt([7.0, 8.0, 9.0])
    assert corrections.factor("gpu", 100.0, "new") == pytest.approx(8.0)
    assert corrections.factor("other", 100.0, "new") == 1.0
    assert learnt([0.1, 0.125, 0.2]).factor("gpu", 100.0, "new") == pytest.approx(0.125)


def test_smaller_errors_say_nothing_about_programs_of_another_length() -> None:
    corrections = learnt([2.0, 2.5, 2.9])
    assert corrections.factor("gpu", 0.02, "new") == pytest.approx(2.5)
    assert corrections.factor("gpu", 1.0, "new") == 1.0


def test_short_programs_say_nothing_of_long_ones() -> None:
    corrections = learnt([15.0, 15.0], predicted=1e-5)
    assert corrections.factor("gpu", 5e-4, "new") == pytest.approx(15.0)
    assert corrections.factor("gpu", 5e-3, "new") == 1.0


def test_one_program_is_no_reason_for_doubt() -> None:
    assert learnt([15.0]).factor("gpu", 0.01, "new") == 1.0
    assert learnt([1.1, 0.9, 1.0, 15.0]).factor("gpu", 100.0, "new") == 1.0


def test_a_program_is_corrected_by_its_own_error_first_and_by_those_of_its_length_next() -> None:
    corrections = learnt([8.0, 8.0, 8.0])
    for name in ("own", "another"):
        corrections.learn("gpu", 1.0, 2.0, program=name)
    corrections.learn("gpu", 1.0, 3.0, program="third")
    assert corrections.factor("gpu", 1.0, "third") == pytest.approx(3.0)
    assert corrections.factor("gpu", 1.0, "new") == pytest.approx(2.0)
    assert corrections.factor("gpu", 0.01, "new") == pytest.approx(8.0)


def test_a_program_that_is_called_often_counts_once() -> None:
    corrections = learnt([8.0, 8.0])
    for _ in range(1000):
        corrections.learn("gpu", 0.01, 0.01, program="often")
    assert corrections.factor("gpu", 0.01, "new") == pytest.approx(8.0)


def test_a_trial_counts_until_there_is_a_call() -> None:
    corrections = Corrections()
    corrections.learn("gpu", 1.0, 10.0, program="a", is_rough=True)
    assert corrections.factor("gpu", 1.0, "a") == pytest.approx(10.0)
    corrections.learn("gpu", 1.0, 5.0, program="a")
    corrections.learn("gpu", 1.0, 20.0, program="a", is_rough=True)
    assert corrections.factor("gpu", 1.0, "a") == pytest.approx(5.0)


def test_a_calibration_begins_anew() -> None:
    corrections = learnt([8.0, 8.0, 8.0])
    version = corrections.version
    corrections.forget("gpu")
    assert corrections.factor("gpu", 0.01, "new") == 1.0
    assert corrections.version > version, "predictions that were corrected are made again"


def test_the_version_rises_with_news_only() -> None:
    assert learnt([1.0, 1.2, 2.9]).version == 0
    corrections = learnt([1.0, 8.0])
    assert corrections.version == 1
    corrections.learn("gpu", 0.01, 0.08, program="1")
    assert corrections.version == 1


@given(ERRORS, SECONDS)
def test_a_correction_lies_between_the_errors(errors: list[Error], predicted: float) -> None:
    factor = factor_from(errors, predicted)
    assert factor == factor_from(errors[::-1], predicted), "the order does not matter"
    assert 1 / MOST / 1.001 <= factor <= MOST * 1.001
    if factor != 1.0:
        assert len(errors) >= ENOUGH
        logarithms = [each.logarithm for each in errors]
        assert min(logarithms) - 1e-9 <= math.log(factor) <= max(logarithms) + 1e-9
    if not any(1 / ALIKE <= each.predicted / predicted <= ALIKE for each in errors):
        assert factor == 1.0 or max(factor, 1 / factor) > FAR_OFF


@given(CALLS)
def test_what_is_remembered_is_bounded_and_depends_on_the_calls_alone(
    calls: list[tuple[str, str, float, float, bool]],
) -> None:
    one, other = Corrections(), Corrections()
    for corrections in (one, other):
        for device, program, predicted, actual, is_rough in calls:
            corrections.learn(device, predicted, actual, program=program, is_rough=is_rough)
    for device in "abc":
        assert one.programs(device) <= MOST_PROGRAMS
        for seconds in (1e-4, 1.0):
            factor = one.factor(device, seconds, "new")
            assert factor == other.factor(device, seconds, "new")
            assert 1 / MOST / 1.001 <= factor <= MOST * 1.001


def test_only_the_latest_programs_are_remembered() -> None:
    corrections = learnt([8.0] * 1000)
    assert corrections.programs("gpu") == MOST_PROGRAMS
    for number in range(MOST_PROGRAMS):
        corrections.learn("gpu", 0.01, 0.01, program=f"later {number}")
    assert corrections.factor("gpu", 0.01, "new") == 1.0


def test_a_new_speed_is_believed_after_some_calls() -> None:
    corrections = Corrections()
    corrections.learn("gpu", 1.0, 1.0, program="a")
    for _ in range(25):
        corrections.learn("gpu", 1.0, 5.0, program="a")
    assert corrections.factor("gpu", 1.0, "a") == pytest.approx(5.0, rel=0.05)
    for _ in range(4):
        corrections.learn("gpu", 1.0, 1.0, program="a")
    assert corrections.factor("gpu", 1.0, "a") == pytest.approx(1.0, rel=0.05), "a faster call is believed sooner"


def test_times_that_cannot_be_are_ignored() -> None:
    corrections = Corrections()
    for predicted, actual in ((0.0, 1.0), (1.0, 0.0), (1.0, math.inf), (1.0, math.nan), (math.nan, 1.0)):
        corrections.learn("gpu", predicted, actual)
    assert corrections.programs("gpu") == 0
    assert learnt([8.0, 8.0]).factor("gpu", 0.0) == 1.0


def test_doubt_is_put_into_words() -> None:
    assert doubt_about("webgpu:0", 8.2) == "predictions for webgpu:0 were 8× too low so far"
    assert doubt_about("webgpu:0", 0.1) == "predictions for webgpu:0 were 10× too high so far"
    assert doubt_about("webgpu:0", 2.9) is None
    assert doubt_about("webgpu:0", 0.5) is None
