"""The time is divided, what was not reached is said, and Ctrl-C loses nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from anygpu.errors import DeviceHung, DeviceLost, OutOfMemory, Unsupported
from anygpu.testing import ManualClock
from anygpu.testing.verify import ActCase, Subject, Tried, VerifyCase, VerifyCheck
from anygpu.testing.verify.running import MOST_DEATHS, MOST_FINDINGS, DeviceTrial, TrialOutcome
from anygpu.workers.device_arrays.registry import registry
from tests.verify.watching import Silent

NUMPY = registry.find("numpy").facts


def check_of(name: str, *acts: Any, share: float = 1.0) -> VerifyCheck:
    def cases(subject: Subject) -> Iterator[VerifyCase]:
        for number, act in enumerate(acts):
            yield ActCase(f"{name} {number}", number, act)

    return VerifyCheck(name, "It works.", share, lambda subject: len(acts), cases)


def tried(*checks: VerifyCheck, seconds: float = 100.0, number: int | None = None, clock: Any = None) -> TrialOutcome:
    trial = DeviceTrial(Subject(NUMPY), Silent(), seconds=seconds, clock=clock or ManualClock())
    return trial.run(checks, number=number)


def right(subject: Subject) -> Tried:
    return Tried()


def wrong(subject: Subject) -> Tried:
    return Tried("one is two.")


def raising(error: BaseException) -> Any:
    def act(subject: Subject) -> Tried:
        raise error

    return act


def test_every_case_is_counted() -> None:
    short = raising(OutOfMemory("numpy", requested=1))
    lacking = raising(Unsupported("sort", "numpy"))
    (record,) = tried(check_of("one", right, wrong, short, lacking)).checks
    assert (record.tried, record.wrong, record.hosted, record.skipped) == (4, 1, 1, 1)
    assert record.reasons == {"it has too little memory (OutOfMemory)": 1}
    assert record.ended == "complete"


def test_a_check_gets_its_share_and_what_others_leave() -> None:
    clock = ManualClock()

    def slow(subject: Subject) -> Tried:
        clock.advance(10)
        return Tried()

    first, second, third = tried(
        check_of("first", *[slow] * 20), check_of("second", right), check_of("third", *[slow] * 20), clock=clock
    ).checks
    # A third of 100 s; the second needs none of its part.
    assert (first.tried, first.ended) == (4, "time")
    assert (second.tried, second.ended) == (1, "complete")
    assert (third.tried, third.ended) == (6, "time")


def test_a_check_that_did_not_end_gets_what_is_left_at_last() -> None:
    clock = ManualClock()

    def slow(subject: Subject) -> Tried:
        clock.advance(10)
        return Tried()

    first, second = tried(check_of("first", *[slow] * 8), check_of("second", right), clock=clock).checks
    assert (first.tried, first.ended, first.seconds) == (8, "complete", 80)
    assert (second.tried, second.ended) == (1, "complete")


def test_one_case_alone() -> None:
    outcome = tried(check_of("one", wrong, right, wrong), number=2)
    assert (outcome.checks[0].tried, outcome.checks[0].cases) == (1, 1)
    assert outcome.findings[0].command == "anygpu verify numpy --only one --seed 2"


def test_an_interruption_keeps_what_there_is() -> None:
    outcome = tried(
        check_of("one", right), check_of("two", wrong, raising(KeyboardInterrupt())), check_of("three", right)
    )
    assert [(each.name, each.tried, each.ended) for each in outcome.checks] == [
        ("one", 1, "complete"),
        ("two", 1, "interrupted"),
        ("three", 0, "interrupted"),
    ]
    assert len(outcome.findings) == 1


def test_errors_become_findings_of_their_kind() -> None:
    acts = (raising(DeviceLost("numpy")), raising(DeviceHung("numpy", 1)), raising(ZeroDivisionError("why")))
    kinds = [(each.kind, each.sentence.partition(":")[0]) for each in tried(check_of("one", *acts)).findings]
    assert kinds == [
        ("crashes", "it raised DeviceLost"),
        ("hangs", "it raised DeviceHung"),
        ("raises", "it raised ZeroDivisionError"),
    ]


def test_a_device_that_dies_again_and_again_is_left_alone() -> None:
    outcome = tried(check_of("one", *[raising(DeviceLost("numpy"))] * 20), check_of("two", right))
    assert [(each.name, each.tried, each.ended) for each in outcome.checks] == [
        ("one", MOST_DEATHS, "given up"),
        ("two", 0, "given up"),
    ]


def test_all_are_counted_and_a_few_are_kept() -> None:
    outcome = tried(check_of("one", *[wrong] * 30))
    assert (outcome.checks[0].wrong, len(outcome.findings)) == (30, MOST_FINDINGS)
