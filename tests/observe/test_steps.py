"""What is shown of training steps: their parts, their memory, and the attempts that failed before."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from anygpu.cli.scripts import show_profile
from anygpu.observe import trace
from anygpu.observe.dashboard.history import DashboardHistory
from anygpu.observe.dashboard.panels import Columns, HistoryView, notes, problems, steps
from anygpu.observe.metrics import BUCKETS, call_families
from anygpu.observe.profile import Profile, to_html
from anygpu.observe.profiler import Profiler
from anygpu.observe.snapshot import fallback_of
from anygpu.observe.statistics import LONGEST_PART, MOST_PARTS, CallStatistics, RunningStatistics, batches, breakdown
from anygpu.receipts.notes import Failure
from anygpu.receipts.receipt import Attempt, Phases, Receipt
from tests.observe.snapshots import snapshot, training
from tests.observe.trace_checks import Trace
from tests.support.observing import tell

HOSTILE = "<script>alert(1)</script>\"'>\x1b[2J\ud800&\n"
UNKNOWN = dict.fromkeys(("device_seconds", "kernels", "predicted_seconds"), "it is a test")
FULL = Attempt(device="torch:cpu", phases=Phases(run=0.01), error="OutOfMemory", message="1 GiB was refused")
DONE = Attempt(device="torch:cpu", phases=Phases(run=0.08))


def step(parts: dict[str, float] | None = None, peak: int | None = 1000, **more: Any) -> Receipt:
    """One of 100 ms, of which 80 are of known parts."""
    fields: dict[str, Any] = {
        "task": "train",
        "device": "torch:cpu",
        "phases": Phases(queue=0.005, write=0.01, run=0.08, other=0.005),
        "attempts": (DONE,),
        "predicted_bytes": 900,
        "unknown": UNKNOWN | ({"peak_bytes": "it is a test"} if peak is None else {}),
    } | more
    named = {"forward": 0.025, "backward": 0.05, "optimizer": 0.005} if parts is None else parts
    return Receipt(kind="cpu", reason="it is a test", peak_bytes=peak, parts=named, **fields)


def summed(*receipts: Receipt | Failure) -> CallStatistics:
    statistics = RunningStatistics(0.0)
    statistics.add(batches([], [(one, 1.0) for one in receipts]))
    (found,) = statistics.summary(1.0).calls
    return found


# -- sums


def test_parts_are_summed_and_the_highest_peak_stands_beside_its_own_prediction() -> None:
    found = summed(
        step(), step(peak=5000, predicted_bytes=4000), step(peak=2000, predicted_bytes=9000), step(peak=None)
    )
    assert found.parts == pytest.approx({"forward": 0.1, "backward": 0.2, "optimizer": 0.02})
    assert (found.peak_bytes, found.predicted_bytes) == (5000, 4000)


def test_a_prediction_without_a_peak_is_shown_until_there_is_a_peak() -> None:
    assert (summed(step(peak=None)).peak_bytes, summed(step(peak=None)).predicted_bytes) == (None, 900)
    found = summed(step(peak=None, predicted_bytes=9000), step(peak=7, predicted_bytes=None))
    assert (found.peak_bytes, found.predicted_bytes) == (7, None)


def test_a_repeated_step_is_no_fallback_and_one_that_raised_is_an_error() -> None:
    lost = Attempt(device="torch:cuda:0", phases=Phases(), error="DeviceLost", message="gone")
    found = summed(
        step(attempts=(FULL, FULL, DONE)),
        step(attempts=(FULL, FULL)),
        step(attempts=(lost, DONE)),
        Failure("train", "torch:cpu", "ValueError", 0.5, 0.6),
    )
    assert (found.calls, found.repeats, found.fallbacks) == (4, 3, 1)
    assert found.errors == {"OutOfMemory": 1, "ValueError": 1}


def test_a_repeat_is_told_apart_from_a_fallback() -> None:
    again = fallback_of(step(attempts=(FULL, DONE)), 1.0)
    assert again is not None
    assert (again.repeated, again.reason) == (True, "torch:cpu: OutOfMemory: 1 GiB was refused")
    lost = Attempt(device="torch:cuda:0", phases=Phases(), error="DeviceLost", message="gone")
    moved = fallback_of(step(attempts=(lost, DONE)), 1.0)
    assert moved is not None
    assert not moved.repeated
    assert fallback_of(step(), 1.0) is None


def test_names_of_parts_are_few_and_short_and_seconds_are_numbers() -> None:
    found = summed(*(step({f"{number} {'x' * 1000}": 0.001}) for number in range(1000)))
    assert len(found.parts) == MOST_PARTS + 1
    assert max(map(len, found.parts)) == LONGEST_PART
    assert sum(found.parts.values()) == pytest.approx(1.0)
    assert summed(step({"a": math.nan, "b": math.inf, "c": -1.0, "d": 0.0})).parts == {}


def test_where_the_time_of_a_step_goes() -> None:
    found = summed(step())
    assert breakdown(found.phases, found.parts) == [
        ("wait", 0.005),
        ("transfer", 0.01),
        ("forward", 0.025),
        ("backward", 0.05),
        ("optimizer", 0.005),
        ("rest", pytest.approx(0.005)),
    ]
    assert breakdown({"run": 1.0}, {"more than there is": 2.0}) == [("more than there is", 2.0)]
    assert breakdown({}, {}) == []


# -- profiles


def profile_of(*seen: Receipt | Failure) -> Profile:
    profiler = Profiler(__file__)
    for one in seen:
        profiler(one, None)
    return profiler.finish((), 0)


def shown(profile: Profile) -> str:
    out = io.StringIO()
    show_profile(Console(width=160, file=out, force_terminal=False), profile)
    return out.getvalue()


def test_a_profile_has_the_parts_of_steps() -> None:
    profile = profile_of(step(), step(attempts=(FULL, DONE), peak=96 << 20, predicted_bytes=88 << 20),
                         step(attempts=(FULL,)), Failure("train", "torch:cpu", "ValueError", 0.5, 0.6))  # fmt: skip
    (each,) = profile.functions
    assert each.parts == pytest.approx({"forward": 0.075, "backward": 0.15, "optimizer": 0.015})
    assert (each.calls, each.errors, each.repeats, each.fallbacks) == (4, 2, 1, 0)
    assert (each.peak_bytes, each.predicted_bytes) == (96 << 20, 88 << 20)
    text = shown(profile)
    assert "where its time goes" in text
    assert "backward" in text
    assert "96.0 MiB" in text
    page = to_html(profile)
    assert "Steps of train on torch:cpu" in page
    assert "At most 96.0 MiB of memory at once (88.0 MiB predicted). 1 attempt failed and was made again." in page
    assert "2 steps raised." in page


def test_calls_without_parts_have_no_section() -> None:
    profile = profile_of(step({}))
    assert "where its time goes" not in shown(profile)
    assert "Steps of" not in to_html(profile)


def test_names_of_parts_do_nothing_to_a_page_or_a_terminal() -> None:
    profile = profile_of(step({HOSTILE: 0.01, "[red]x[/]": 0.02}))
    page = to_html(profile)
    page.encode("utf-8")
    assert "<script" not in page
    assert "\x1b" not in page
    assert "&lt;script&gt;" in page
    text = shown(profile)
    assert "\x1b" not in text
    assert "[red]x[/]" in text


# -- traces, metrics, dashboard


def test_parts_are_drawn_inside_of_the_run(tmp_path: Path) -> None:
    with trace(tmp_path / "run.json"):
        tell(step(attempts=(FULL, DONE)))
    found = Trace(tmp_path / "run.json")
    found.check()
    (track,) = (events for name, events in found.tracks().items() if not name.startswith("torch"))
    named = {each["name"]: each for each in track}
    run = next(each for each in track if each["name"] == "run")
    assert [named[name]["dur"] for name in ("forward", "backward", "optimizer")] == [25_000, 50_000, 5_000]
    assert named["forward"]["ts"] == run["ts"]
    assert named["train"]["args"]["predicted_bytes"] == 900
    assert any("OutOfMemory" in each["name"] for each in found.of_kind("i"))


def test_parts_that_do_not_fit_are_cut_and_their_names_do_no_harm(tmp_path: Path) -> None:
    with trace(tmp_path / "run.json"):
        tell(step({HOSTILE: 0.01, "longer than the run": 5.0, "after it": 1.0}))
    found = Trace(tmp_path / "run.json")
    found.check()
    lengths = {each["name"]: each["dur"] for events in found.tracks().values() for each in events}
    assert lengths["longer than the run"] == 70_000
    assert "after it" not in lengths


def test_metrics_of_steps() -> None:
    statistics = RunningStatistics(0.0)
    statistics.add(
        batches(
            [], [(step(attempts=(FULL, DONE)), 1.0), (step({}, peak=None, task="other", predicted_bytes=None), 1.0)]
        )
    )
    families = {each.name: each for each in call_families(statistics.summary(1.0), statistics.histograms(BUCKETS))}
    parts = {each.labels["part"]: each.value for each in families["anygpu_call_part_seconds_total"].samples}
    assert parts == {"forward": 0.025, "backward": 0.05, "optimizer": 0.005}
    assert {each.labels["function"]: each.value for each in families["anygpu_repeats_total"].samples} == {
        "train": 1,
        "other": 0,
    }
    for name, value in (("anygpu_call_peak_bytes", 1000), ("anygpu_call_predicted_bytes", 900)):
        assert [(each.labels["function"], each.value) for each in families[name].samples] == [("train", value)]


def test_the_dashboard_has_them_beside_predictions() -> None:
    history, view = DashboardHistory(), HistoryView(now=100.0, window=30.0)
    again = fallback_of(step(attempts=(FULL, DONE)), 70.0)
    assert again is not None
    history.add({7: snapshot(training(), fallbacks=(again,))}, 100.0)
    (row,) = tabulated(steps(history, view))
    assert row["parts"] == "wait 5%, transfer 10%, forward 25%, backward 50%, optimizer 5%, rest 5%"
    assert (row["peak"], row["predicted"], row["again"]) == ("96.0 MiB", "88.0 MiB", "2")
    assert [row["what"] for row in tabulated(problems(history, view))] == ["repeat"]
    assert "steps" not in notes(history, view)
    assert "steps" in notes(DashboardHistory(), view)


def tabulated(table: Columns) -> list[dict[str, str]]:
    return [dict(zip(table["heads"], row, strict=True)) for row in table["rows"]]
