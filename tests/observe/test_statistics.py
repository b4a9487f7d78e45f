"""What is known of calls after many of them."""

from __future__ import annotations

from collections.abc import Sequence

from anygpu.observe.statistics import (
    MOST_ERRORS,
    MOST_FUNCTIONS,
    OTHER,
    CallStatistics,
    RunningStatistics,
    Summary,
    batches,
)
from anygpu.receipts.notes import Failure, HostNote, Note, Seen
from anygpu.receipts.receipt import Attempt, DriverWork, HostOperation, Phases, Receipt

UNKNOWN = dict.fromkeys(("device_seconds", "peak_bytes", "kernels"), "it is a test")


def receipt(
    task: str = "score", device: str = "opencl:0", run: float = 0.01, attempts: tuple[Attempt, ...] = ()
) -> Receipt:
    return Receipt(
        task=task,
        device=device,
        kind="gpu",
        reason="it is a test",
        phases=Phases(queue=0.001, run=run),
        attempts=attempts,
        predicted_seconds=0.02,
        bytes_to_device=100,
        bytes_to_host=10,
        bytes_skipped=1,
        driver=DriverWork(allocations=0, compilations=2, submits=1, dispatches=1),
        unknown=UNKNOWN,
    )


def note(task: str = "score", seconds: float = 0.003) -> Note:
    return HostNote(task, "it is a test", None), 10.0, 10.001, 10.0 + seconds


def add(statistics: RunningStatistics, seen: Sequence[Seen], end: float) -> None:
    """They all end at that time."""
    notes: list[Note] = []
    for one in seen:
        if not isinstance(one, Receipt | Failure):
            said, begin, ready, ended = one
            notes.append((said, begin + end - ended, ready + end - ended, end))
    statistics.add(batches(notes, [(one, end) for one in seen if isinstance(one, Receipt | Failure)]))


def only(statistics: RunningStatistics, now: float = 1.0) -> CallStatistics:
    (found,) = statistics.summary(now).calls
    return found


def test_receipts_are_summed() -> None:
    statistics = RunningStatistics(0.0)
    add(statistics, [receipt(run=0.01), receipt(run=0.03)], 1.0)
    found = only(statistics)
    assert (found.function, found.device, found.calls, found.errors) == ("score", "opencl:0", 2, {})
    assert (found.bytes_to_device, found.bytes_to_host, found.bytes_skipped, found.compilations) == (200, 20, 2, 4)
    assert found.phases["run"] == 0.04
    assert found.phases["queue"] == 0.002
    assert abs(sum(found.phases.values()) - found.seconds.total) < 1e-12
    assert (found.predicted_seconds, round(found.seconds_of_predicted, 9)) == (0.04, 0.04)
    assert found.seconds.most == 0.031


def test_calls_that_stayed_on_the_host_need_no_receipts() -> None:
    statistics = RunningStatistics(0.0)
    add(statistics, [note(), note(), receipt(device="numpy")], 1.0)
    found = only(statistics)
    assert (found.device, found.calls) == ("numpy", 3)
    assert abs(found.phases["plan"] - 0.002) < 1e-9
    assert abs(sum(found.phases.values()) - found.seconds.total) < 1e-9


def test_errors_and_fallbacks() -> None:
    statistics = RunningStatistics(0.0)
    phases = Phases()
    lost = Attempt(device="webgpu:0", phases=phases, error="DeviceLost", message="gone")
    host = HostOperation(operation="sort", reason="it has none", line=None, bytes_moved=8)
    fallback = receipt(attempts=(lost, Attempt(device="opencl:0", phases=phases)))
    failed = receipt(attempts=(Attempt(device="opencl:0", phases=phases, error="OutOfMemory", message="full"),))
    add(statistics, [fallback, failed, Failure("score", "opencl:0", "ValueError", 0.5, 1.0)], 1.0)
    found = only(statistics)
    assert (found.calls, found.fallbacks, found.errors) == (3, 1, {"OutOfMemory": 1, "ValueError": 1})
    assert host.operation == "sort"


def test_lately_is_the_last_five_minutes() -> None:
    statistics = RunningStatistics(0.0)
    add(statistics, [note(seconds=1.0)], 10.0)
    add(statistics, [note(seconds=0.002)], 400.0)
    found = only(statistics, 400.0)
    assert (found.seconds.count, found.lately.count) == (2, 1)
    assert abs(found.lately.most - 0.002) < 1e-9
    assert only(statistics, 2000.0).lately.p50 is None


def test_a_program_with_many_functions_has_the_rest_as_one() -> None:
    statistics = RunningStatistics(0.0)
    add(statistics, [note(f"function_{number}") for number in range(MOST_FUNCTIONS + 100)], 1.0)
    found = {each.function: each.calls for each in statistics.summary(1.0).calls}
    assert len(found) == MOST_FUNCTIONS + 1
    assert found[OTHER] == 100


def test_names_of_errors_are_bounded() -> None:
    statistics = RunningStatistics(0.0)
    add(statistics, [Failure("score", "numpy", f"Error{number}", 0.1, 0.2) for number in range(100)], 1.0)
    found = only(statistics).errors
    assert len(found) == MOST_ERRORS + 1
    assert sum(found.values()) == 100


def test_what_took_longest_comes_first() -> None:
    statistics = RunningStatistics(0.0)
    add(statistics, [note("short"), receipt("long", run=3.0), note("short")], 1.0)
    assert [each.function for each in statistics.summary(1.0).calls] == ["long", "short"]


def test_a_table_for_people() -> None:
    statistics = RunningStatistics(0.0)
    assert str(statistics.summary(2.0)) == "No calls in 2 s."
    add(statistics, [note("short"), receipt("a\x1b[31m\nname" + "e" * 100, run=3.0)], 1.0)
    table = str(statistics.summary(1.0))
    assert "\x1b" not in table
    header, first, second = table.splitlines()
    assert header.split()[:6] == ["function", "device", "calls", "errors", "fallbacks", "total"]
    assert first.startswith("a?[31m?nameeee")
    assert second.split() == ["short", "numpy", "1", "0", "0", "3", "ms", "3", "ms", "3", "ms", "3", "ms", "0", "bytes"]
    assert max(map(len, table.splitlines())) < 140


def test_the_table_says_how_to_begin() -> None:
    assert "anygpu.observe.start()" in str(Summary(seconds=0.0, calls=(), observed=False))
