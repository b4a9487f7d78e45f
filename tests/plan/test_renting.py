"""Renting or buying: what a history may cost, however wrong it is."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from anygpu.placement.plan.candidate_history import Remembered, is_worth_opening, is_wrong, remaining_calls
from anygpu.placement.plan.choosing import DeviceChooser
from tests.plan.lies import KINDS, play, run

seconds = st.floats(1e-4, 10.0)


def test_a_device_is_opened_when_the_expected_calls_pay_for_it() -> None:
    memory = Remembered(0.03, 0.1, 100, "measured just now, 41 calls")
    assert is_worth_opening(memory, 0.06, 0.5, made=2)
    assert not is_worth_opening(memory, 0.06, 0.5, made=90), "ten calls do not"
    assert not is_worth_opening(memory, 0.031, 0.0, made=1), "that is noise"
    assert is_worth_opening(memory, 0.06, 0.5, made=200), "who has called it so often goes on"


def test_without_a_usual_number_as_many_calls_again_are_expected() -> None:
    assert remaining_calls(0, 7) == 7
    assert remaining_calls(10, 7) == 3
    assert remaining_calls(10, 10) == 10


def test_what_took_twice_as_long_was_remembered_wrongly_if_numpy_is_faster() -> None:
    assert is_wrong(1.0, 2.1, baseline=2.0)
    assert not is_wrong(1.0, 2.1, baseline=3.0)
    assert not is_wrong(1.0, 1.9, baseline=0.5)


def test_two_thousand_five_hundred_lies_of_every_kind() -> None:
    """The full number is run by hand: `python -m tests.plan.lies`."""
    report = run(2500, seed=1)
    assert report.broken == []
    assert len(report.lies) == len(KINDS)
    assert report.believed > 1000, "lies that nobody believes prove nothing"


@settings(max_examples=10_000 // 4)
@given(
    numpy=seconds,
    devices=st.dictionaries(st.sampled_from("abcd"), st.tuples(seconds, seconds, seconds), min_size=1),
    usual=st.integers(0, 1000),
    calls=st.integers(1, 60),
)
def test_lies_cost_one_opening_and_one_call_each(
    numpy: float, devices: dict[str, tuple[float, float, float]], usual: int, calls: int
) -> None:
    true = {"numpy": numpy, **{name: real for name, (_, real, _) in devices.items()}}
    chooser = DeviceChooser("numpy")
    chooser.consider(true, {name: opening for name, (_, _, opening) in devices.items()})
    chooser.recall({name: Remembered(said, 0.0, usual, "") for name, (said, _, _) in devices.items()})
    total, opened, _, openings = play(chooser, true, calls)
    assert openings == len(opened), "no device is opened twice"
    # Two calls measure a device that is not far off what was said: less than twice, or faster than NumPy.
    bound = calls * numpy
    for name in opened:
        said, real, _ = devices[name]
        bound += max(0.0, real - numpy) * (2 if real <= 2 * said else 1)
    # Later, one that was nearly as good may be measured again, within the share that exploring may cost.
    assert total <= bound + 0.5 * calls * numpy + 1e-9


def test_a_wrong_memory_sends_the_next_call_back_even_if_it_is_not_far_off() -> None:
    true = {"numpy": 1.0, "gpu": 1.5}
    chooser = DeviceChooser("numpy")
    chooser.consider(true, {"gpu": 0.0})
    chooser.recall({"gpu": Remembered(0.5, 0.0, 100, "")})
    _, opened, losing, _ = play(chooser, true, 10)
    assert (opened, losing) == ({"gpu"}, 1)
    assert chooser.choose().candidate == "numpy"


@settings(max_examples=500)
@given(numpy=seconds, gain=st.floats(2.0, 10.0), calls=st.integers(20, 100))
def test_a_history_that_is_right_wins(numpy: float, gain: float, calls: int) -> None:
    true = {"numpy": numpy, "gpu": numpy / gain}
    chooser = DeviceChooser("numpy")
    chooser.consider(true, {"gpu": 0.0})
    chooser.recall({"gpu": Remembered(numpy / gain, 0.0, calls, "")})
    total, opened, losing, _ = play(chooser, true, calls)
    assert opened == {"gpu"}
    assert losing == 0
    # The first call is on NumPy, and later ones that are samples.
    assert total < calls * numpy
