"""Calls simulated one by one: where they go, what they cost in all, and who gets work back when."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anygpu.placement.plan.candidate_history import DeviceChoice, calls_between_samples
from anygpu.placement.plan.choosing import EARLY_SHARE, DeviceChooser

Times = Callable[[int], dict[str, float]]


class Story(NamedTuple):
    went: list[str]
    took: list[float]
    choices: list[DeviceChoice]

    @property
    def total(self) -> float:
        return sum(self.took)


def simulate(
    times: Times,
    expected: dict[str, float],
    calls: int,
    *,
    home: str | None = "numpy",
    noise: float = 0.05,
    contention: float = 1.5,
    trial_lasts: int = 2,
    seed: int = 0,
    fails: Callable[[str, int], bool] = lambda name, call: False,
) -> Story:
    """Calls that take what `times` says for their number; trials in the background are done some calls later."""
    draw = random.Random(seed)
    cell = DeviceChooser(home)
    story = Story([], [], [])
    trial: tuple[str, int] | None = None
    for number in range(calls):
        if number == 1 or home is None:
            cell.consider(expected)
        if trial is not None and number >= trial[1]:
            name = trial[0]
            trial = None
            if fails(name, number):
                cell.failed(name, "it failed in a trial")
            else:
                cell.tried(name, times(number)[name] * draw.uniform(1.0, contention))
        choice = cell.choose()
        assert choice == cell.choose(), "asking changes nothing"
        name = choice.candidate
        if choice.checks is not None:
            cell.begin_sample(choice.checks)
        if fails(name, number):
            cell.failed(name, "it failed")
            name = cell.choose().candidate
            assert not fails(name, number)
        seconds = times(number)[name] * draw.uniform(1.0, 1.0 + noise)
        cell.measured(name, seconds)
        story.went.append(name)
        story.took.append(seconds)
        story.choices.append(choice)
        wanted = cell.to_try()
        if wanted is not None:
            assert trial is None, "one trial at a time"
            cell.begin_trial(wanted)
            trial = (wanted, number + trial_lasts)
    return story


EVENTS = ["measured", "tried", "failed", "begin", "spend"]
TIMES = st.floats(1e-6, 10.0)


def always(**seconds: float) -> Times:
    return lambda call: seconds


def test_the_first_call_stays_at_home_and_nobody_waits_for_a_compiler() -> None:
    story = simulate(always(numpy=1.0, fast=0.1), {"numpy": 1.0, "fast": 0.1}, 50)
    assert story.went[0] == "numpy"
    assert story.went[-1] == "fast"
    assert story.went.index("fast") >= 3, "only after its trial in the background"


def test_what_is_slower_is_tried_and_left() -> None:
    story = simulate(always(numpy=1.0, slow=1.6), {"numpy": 1.0, "slow": 1.2}, 400)
    assert story.went[-1] == "numpy"
    assert story.went.count("slow") < 20
    assert story.total < 1.1 * 400


def test_what_is_predicted_to_be_hopeless_is_never_tried() -> None:
    story = simulate(always(numpy=1.0, slow=10.0), {"numpy": 1.0, "slow": 8.0}, 200)
    assert set(story.went) == {"numpy"}


def test_a_first_call_runs_at_home_however_hopeless_that_is() -> None:
    cell = DeviceChooser("numpy")
    cell.consider({"numpy": 10.0, "gpu": 0.1})
    assert cell.choose().candidate == "numpy"


def trusted() -> DeviceChooser:
    cell = DeviceChooser("numpy")
    cell.consider({"numpy": 1.0, "gpu": 0.1})
    cell.measured("numpy", 1.0)
    cell.begin_trial("gpu")
    cell.tried("gpu", 0.1)
    for _ in range(3):
        cell.measured("gpu", 0.1)
    return cell


def test_a_device_whose_results_were_not_compared_gets_no_call() -> None:
    cell = DeviceChooser("numpy")
    cell.consider({"numpy": 1.0, "gpu": 0.1})
    cell.measured("numpy", 1.0)
    for _ in range(5):  # as if somebody had sent calls there all the same
        cell.measured("gpu", 0.1)
    assert cell.choose().candidate == "numpy"
    assert cell.choose({"numpy": 9.0}).candidate == "numpy"
    assert not cell.may_run("gpu")
    assert DeviceChooser(None).checked is False, "who rules NumPy out has asked for the device"


def test_a_device_that_was_opened_again_is_compared_again() -> None:
    cell = trusted()
    assert cell.choose().candidate == "gpu"
    cell.distrust("gpu")
    assert cell.choose().candidate == "numpy"
    cell.measured("numpy", 1.0)
    assert cell.to_try() == "gpu"
    cell.begin_trial("gpu")
    cell.tried("gpu", 0.1)
    assert cell.choose().candidate == "gpu"


def test_a_device_that_was_wrong_pins_the_function_to_its_home() -> None:
    cell = trusted()
    cell.pin("gpu was wrong.")
    assert cell.choose() == DeviceChoice("numpy", "pinned", "gpu was wrong.")
    assert cell.to_try() is None


def test_samples_come_within_the_stated_bound_and_cost_at_most_a_hundredth() -> None:
    cell = trusted()
    cell.copying = 0.01
    samples: list[int] = []
    for number in range(20_000):
        choice = cell.choose()
        if choice.checks is not None:
            assert choice.candidate == "numpy"
            assert choice.checks == "gpu"
            cell.begin_sample(choice.checks)
            samples.append(number)
        cell.measured(choice.candidate, {"numpy": 1.0, "gpu": 0.1}[choice.candidate])
    bound = calls_between_samples(1.0, 0.1, 0.01)
    assert samples[0] <= bound == 1010
    assert max(b - a for a, b in itertools.pairwise(samples)) <= calls_between_samples(1.0, 0.1, 0.01, samples=99) + 1
    extra = len(samples) * (1.0 - 0.1 + 0.01 + 0.1)
    assert extra <= 0.0101 * 20_000 * 0.1
    assert calls_between_samples(0.1, 0.1, 0.0) == 100, "never more often, however cheap"


def test_a_short_call_runs_at_home_first_whatever_is_predicted() -> None:
    cell = DeviceChooser("numpy")
    cell.consider({"numpy": 0.01, "gpu": 0.0001})
    assert cell.choose().candidate == "numpy"


def test_a_device_that_becomes_five_times_slower_loses_its_work_and_gets_it_back() -> None:
    def times(call: int) -> dict[str, float]:
        return {"numpy": 1.0, "gpu": 0.4 * (5 if 100 <= call < 300 else 1)}

    for seed in range(20):
        story = simulate(times, {"numpy": 1.0, "gpu": 0.4}, 500, seed=seed)
        assert story.went[99] == "gpu"
        lost = story.went.index("numpy", 100) - 100
        assert lost <= 10
        assert story.went[200:300].count("gpu") <= 15, "in bounded doses"
        back = next(n for n in range(300, 500) if story.went[n : n + 5] == ["gpu"] * 5) - 300
        assert back <= 50


def test_a_device_that_fails_is_left_alone_and_tried_again() -> None:
    story = simulate(
        always(numpy=1.0, gpu=0.2),
        {"numpy": 1.0, "gpu": 0.2},
        300,
        fails=lambda name, call: name == "gpu" and call < 100,
    )
    assert set(story.went[:100]) == {"numpy"}
    assert story.went[-1] == "gpu"


def test_of_several_the_best_gets_the_work() -> None:
    story = simulate(
        always(numpy=1.0, a=0.5, b=0.3, c=0.7), {"numpy": 1.0, "a": 0.3, "b": 0.5, "c": 0.9}, 300, noise=0.1
    )
    assert story.went[-100:].count("b") >= 90


def test_without_a_home_the_best_prediction_comes_first() -> None:
    story = simulate(always(a=0.5, b=0.2), {"a": 0.3, "b": 0.4}, 100, home=None)
    assert story.went[0] == "a"
    assert story.went[-1] == "b"


def test_a_busy_device_is_not_waited_for_when_another_is_done_sooner() -> None:
    cell = DeviceChooser("numpy")
    cell.consider({"numpy": 1.0, "gpu": 0.2})
    cell.measured("numpy", 1.0)
    cell.begin_trial("gpu")
    cell.tried("gpu", 0.2)
    for _ in range(3):
        cell.measured("gpu", 0.2)
    assert cell.choose().candidate == "gpu"
    assert cell.choose({"gpu": 0.5}).candidate == "gpu"
    busy = cell.choose({"gpu": 5.0})
    assert busy.candidate == "numpy"
    assert busy.sentence == "gpu is busy for another 5 s, so numpy finishes sooner."


@settings(max_examples=60, deadline=None)
@given(
    home=st.floats(1e-5, 1.0),
    others=st.lists(st.tuples(st.floats(0.05, 20.0), st.floats(0.2, 5.0)), min_size=1, max_size=4),
    seed=st.integers(0, 1000),
)
def test_regret_is_bounded_whatever_is_predicted(home: float, others: list[tuple[float, float]], seed: int) -> None:
    """Devices of any speed with predictions wrong by up to five: no harm in the first calls, little later."""
    times = {"numpy": home} | {f"d{n}": home * factor for n, (factor, _) in enumerate(others)}
    expected = {"numpy": home} | {f"d{n}": times[f"d{n}"] * wrong for n, (_, wrong) in enumerate(others)}
    story = simulate(lambda call: times, expected, 600, seed=seed)
    assert sum(story.took[:5]) <= 2.0 * 5 * home
    assert sum(story.took) <= 1.1 * 600 * home, "never much worse than home"
    late = sum(story.took[200:])
    assert late <= 1.10 * 400 * home


@settings(max_examples=60, deadline=None)
@given(
    others=st.lists(st.floats(0.05, 3.0), min_size=1, max_size=4),
    wrong=st.lists(st.floats(0.7, 1.5), min_size=4, max_size=4),
    seed=st.integers(0, 1000),
)
def test_with_fair_predictions_the_best_is_found(others: list[float], wrong: list[float], seed: int) -> None:
    times = {"numpy": 1.0} | {f"d{n}": factor for n, factor in enumerate(others)}
    expected = {"numpy": 1.0} | {f"d{n}": times[f"d{n}"] * wrong[n] for n in range(len(others))}
    story = simulate(lambda call: times, expected, 600, seed=seed)
    best = min(times.values())
    assert sum(story.took[300:]) <= 1.15 * 300 * best


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(EVENTS), st.sampled_from(["numpy", "a", "b"]), TIMES), max_size=60))
def test_any_order_of_events_leaves_a_choice_with_a_sentence(events: list[tuple[str, str, float]]) -> None:
    cell = DeviceChooser("numpy")
    cell.consider({"numpy": 1.0, "a": 0.5, "b": 2.0})
    for event, name, seconds in events:
        match event:
            case "measured":
                cell.measured(name, seconds)
            case "tried":
                cell.tried(name, seconds)
            case "failed":
                if name != "numpy":
                    cell.failed(name, "it failed")
            case "begin":
                cell.begin_trial(name)
            case "spend":
                cell.spend(seconds)
        choice = cell.choose()
        assert choice.candidate in cell.tracks
        assert choice.sentence.endswith(".")
        wanted = cell.to_try()
        assert wanted is None or wanted in ("a", "b")
        assert cell.next_look > cell.calls
        assert not cell.affords(cell.seconds * EARLY_SHARE + 1e-9)


@pytest.mark.parametrize("name", ["gone", "a"])
def test_candidates_that_are_gone_are_forgotten(name: str) -> None:
    cell = DeviceChooser("numpy")
    cell.consider({"numpy": 1.0, name: 0.5})
    cell.measured("numpy", 1.0)
    cell.begin_trial(name)
    cell.consider({"numpy": 1.0, "other": 0.5})
    cell.tried(name, 0.1)
    assert cell.choose().candidate == "numpy"
    assert cell.estimate(name) is None


def test_a_stream_offers_candidates_while_it_runs() -> None:
    """Units are seconds for each step; nothing runs in the background, and one that fails is out for good."""
    chooser = DeviceChooser("numpy")
    assert chooser.choose().candidate == "numpy"
    chooser.measured("numpy", 1e-6)
    chooser.offer("gpu", 4e-7)
    chooser.offer("slow", 2.1e-6)
    went = []
    for _ in range(40):
        name = chooser.choose().candidate
        went.append(name)
        chooser.measured(name, 3e-7)
    assert went == ["gpu"] * 40
    chooser.failed("gpu", "it was lost.")
    for _ in range(2000):
        assert chooser.choose().candidate == "numpy"
        chooser.measured("numpy", 1e-6)


def test_an_offered_candidate_takes_over_only_by_the_margin() -> None:
    chooser = DeviceChooser("numpy")
    chooser.measured("numpy", 1.0)
    chooser.offer("gpu", 0.9)
    for _ in range(2):
        assert chooser.choose().candidate == "gpu"
        chooser.measured("gpu", 0.97)
    assert chooser.choose().candidate == "numpy"


def test_one_that_is_nearly_as_good_and_loses_again_waits_for_its_next_turn() -> None:
    """It was measured again at each call from then on, which cost a sixth of the time for good."""
    gpu = 1.1567405384985716
    story = simulate(always(numpy=1.0, gpu=gpu), {"numpy": 1.0, "gpu": gpu * 1.7940414109915896}, 600, seed=765)
    assert story.went.count("gpu") < 60
    assert story.total < 1.05 * 600


def test_the_reason_says_what_is_tried_meanwhile() -> None:
    cell = DeviceChooser("numpy")
    cell.measured("numpy", 0.3)
    assert cell.choose().sentence == "numpy takes 300 ms per call; other devices not tried yet."
    cell.consider({"numpy": 0.3, "gpu": 0.01})
    cell.begin_trial("gpu")
    told = cell.choose().sentence
    assert told == "numpy takes 300 ms per call, 10 ms predicted for gpu; gpu being tried in the background."
