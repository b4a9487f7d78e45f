"""Real children, real faults: what hangs, aborts, segfaults or prints garbage takes down nothing."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from anygpu.engines.catalogue import EngineEntry
from anygpu.hardware.device import Device, Unavailable
from anygpu.testing import FakeEngine, Fault, fake_device
from anygpu.workers.priority import seconds_without_processor
from anygpu.workers.probe_messages import ProbeItem
from anygpu.workers.probe_runner import run_probes
from anygpu.workers.probe_state import MOST_EXTENSION, ProbeDeadlines

GOOD = FakeEngine("good").entry()

#: Long enough for a child to start on a busy machine, short enough for a test.
DEADLINES = ProbeDeadlines(total=6.0, step=1.5)
#: On a machine so busy that children only wait for the processor.
LONGEST = DEADLINES.total * (1 + MOST_EXTENSION) + 1


def faulty(fault: Fault, where: str = "bad:1") -> EngineEntry:
    return FakeEngine("bad", [fake_device(f"bad:{n}") for n in range(3)], {where: fault}).entry()


def by_id(items: list[ProbeItem]) -> dict[str, Device | Unavailable]:
    return {item.id: item for item in items if isinstance(item, Device | Unavailable)}


def timed_survey(*entries: EngineEntry) -> tuple[dict[str, Device | Unavailable], float]:
    began = time.monotonic()
    results = run_probes(entries, with_cards=False, deadlines=DEADLINES)
    seconds = time.monotonic() - began
    return by_id([item for items in results.values() for item in items]), seconds


#: Workers of other tests in this process.
before: set[psutil.Process] = set()


@pytest.fixture(autouse=True)
def _who_was_there() -> None:
    before.clear()
    before.update(psutil.Process().children(recursive=True))


def children() -> list[psutil.Process]:
    """Those that this test has started and that are still there."""
    found = psutil.Process().children(recursive=True)
    return [child for child in found if child not in before and child.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize(
    ("fault", "state", "cause", "words"),
    [
        ("hang", "hung", "hung", r"did not respond within [\d.]+ s while it was verified"),
        ("abort", "present", "crashed", "SIGABRT"),
        ("segfault", "present", "crashed", "SIGSEGV"),
        ("exit", "present", "crashed", "exit with code 3"),
        ("garbage", "present", "garbage", "unreadable response"),
        ("raise", "present", "failed", "raised RuntimeError"),
        ("wrong_result", "present", "wrong_result", "computes wrong results"),
    ],
)
def test_one_bad_device_takes_down_nothing(fault: Fault, state: str, cause: str, words: str) -> None:
    found, seconds = timed_survey(faulty(fault), GOOD)
    bad = found.pop("bad:1")
    assert isinstance(bad, Unavailable)
    assert (bad.state, bad.cause) == (state, cause)
    assert re.search(words, bad.reason)
    assert {name: item.state for name, item in found.items()} == {
        "bad:0": "verified",
        "bad:2": "verified",
        "good:0": "verified",
    }
    assert seconds < LONGEST
    assert children() == []


@pytest.mark.parametrize("fault", ["hang", "abort", "segfault", "garbage"])
def test_an_engine_that_fails_while_listing_takes_down_nothing(fault: Fault) -> None:
    found, seconds = timed_survey(faulty(fault, "discover"), GOOD)
    assert found["bad"].state in ("hung", "present")
    assert found["good:0"].state == "verified"
    assert seconds < LONGEST
    assert children() == []


def test_a_library_that_prints_does_no_harm() -> None:
    found, _ = timed_survey(faulty("print"))
    assert {item.state for item in found.values()} == {"verified"}


def test_the_last_words_of_a_child_are_kept() -> None:
    found, _ = timed_survey(EngineEntry(name="broken", target="no_such_module:Engine"))
    broken = found["broken"]
    assert isinstance(broken, Unavailable)
    assert broken.cause == "import_failed"
    assert "no_such_module" in (broken.detail or "")


def test_a_missing_library_is_known_without_starting_anything() -> None:
    entry = EngineEntry(name="other", target="nothing:here", requires="no-such-distribution", extra="other")
    (item,) = run_probes([entry], with_cards=False, deadlines=DEADLINES)["other"]
    assert isinstance(item, Unavailable)
    assert (item.cause, item.fix) == ("not_installed", "pip install 'anygpu[other]'")


def test_nothing_of_the_callers_folder_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("numpy", "json", "fake"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the caller’s own file was imported')")
    monkeypatch.chdir(tmp_path)
    found, _ = timed_survey(GOOD)
    assert found["good:0"].state == "verified"


def test_in_a_frozen_application_no_child_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    found, _ = timed_survey(GOOD)
    item = found["good"]
    assert isinstance(item, Unavailable)
    assert "does not know how to run a child" in (item.detail or "")


def test_a_hanging_child_does_not_outlive_a_parent_that_is_killed() -> None:
    script = """
from anygpu.testing import FakeEngine
from anygpu.workers.probe_state import MOST_EXTENSION, ProbeDeadlines
from anygpu.workers.probe_runner import run_probes
entry = FakeEngine("bad", faults={"bad:0": "hang"}).entry()
run_probes([entry], with_cards=False, deadlines=ProbeDeadlines(total=2, step=2))
"""
    parent = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.DEVNULL)
    process = psutil.Process(parent.pid)
    deadline = time.monotonic() + 10
    orphans: list[psutil.Process] = []
    while not orphans and time.monotonic() < deadline:
        orphans = process.children()
    assert orphans, "the parent never started its child"
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    # The child ends itself by an alarm one second after the deadline that its parent would have kept.
    _, alive = psutil.wait_procs(orphans, timeout=6)
    assert alive == []


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
def test_a_process_that_does_not_get_the_processor_is_known_to_wait() -> None:
    """Two processes that share one processor wait for half of the time."""
    allowed = os.sched_getaffinity(0)
    code = f"import os, time\nos.sched_setaffinity(0, {{{min(allowed)}}})\nprint(flush=True)\nwhile True: pass"
    both = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(2)]
    try:
        for each in both:
            assert each.stdout is not None
            each.stdout.readline()
        until = time.monotonic() + 60
        while min(seconds_without_processor(each.pid) for each in both) < 0.05:
            assert time.monotonic() < until
    finally:
        for each in both:
            each.kill()
            each.communicate()
    assert seconds_without_processor(both[0].pid) == 0.0, "it has ended"


def test_what_is_known_of_an_engine_is_told_at_once() -> None:
    told: list[str] = []

    def hear(name: str, items: list[ProbeItem]) -> None:
        told.append(name)
        assert [item.state for item in items if isinstance(item, Device)] or name == "bad"

    run_probes([faulty("hang", "discover"), GOOD], with_cards=False, deadlines=DEADLINES, when_done=hear)
    assert told == ["good", "bad"], "it does not wait for the one that hangs"
