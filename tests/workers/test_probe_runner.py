"""Real children, real faults: what hangs, aborts, segfaults or prints garbage takes down nothing."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from anygpu.engines.catalogue import EngineEntry
from anygpu.hardware.device import Device, Unavailable
from anygpu.testing import FakeEngine, Fault, fake_device
from anygpu.workers.child_messages import ProbeItem
from anygpu.workers.child_start import seconds_without_processor, thread_seconds_without_processor
from anygpu.workers.probe_runner import ProbeDeadlines, run_probes
from tests.support.isolation import children_with

GOOD = FakeEngine("good").entry()
#: It is in the command of each child of these tests, and not in those of devices that others look for.
FAKE = GOOD.target

#: No child needs that long, on whatever machine: only one that never ends meets it.
DEADLINES = ProbeDeadlines(total=120.0, step=60.0)
#: Where a device is meant to be silent: long enough for those that are not, which share the machine with it.
SHORT_STEP = ProbeDeadlines(total=120.0, step=6.0)
#: Where an engine is meant to be silent while it lists its devices, for which there is no other deadline.
SHORT_TOTAL = ProbeDeadlines(total=12.0, step=12.0)
#: How long a process may take to end.
PATIENCE = 120.0


def faulty(fault: Fault, where: str = "bad:1") -> EngineEntry:
    return FakeEngine("bad", [fake_device(f"bad:{n}") for n in range(3)], {where: fault}).entry()


def by_id(items: list[ProbeItem]) -> dict[str, Device | Unavailable]:
    return {item.id: item for item in items if isinstance(item, Device | Unavailable)}


def survey(*entries: EngineEntry, deadlines: ProbeDeadlines = DEADLINES) -> dict[str, Device | Unavailable]:
    results = run_probes(entries, with_cards=False, deadlines=deadlines)
    return by_id([item for items in results.values() for item in items])


#: Children of other tests in this process.
before: set[psutil.Process] = set()


@pytest.fixture(autouse=True)
def _who_was_there() -> None:
    before.clear()
    before.update(children_with(FAKE))


def children() -> set[psutil.Process]:
    """Those that this test has started and that are still there."""
    return children_with(FAKE) - before


def is_over(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.sampled(gate=4)
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
    found = survey(faulty(fault), GOOD, deadlines=SHORT_STEP if fault == "hang" else DEADLINES)
    bad = found.pop("bad:1")
    assert isinstance(bad, Unavailable)
    assert (bad.state, bad.cause) == (state, cause)
    assert re.search(words, bad.reason)
    assert {name: item.state for name, item in found.items()} == {
        "bad:0": "verified",
        "bad:2": "verified",
        "good:0": "verified",
    }
    assert children() == set()


@pytest.mark.sampled(gate=4)
@pytest.mark.parametrize("fault", ["hang", "abort", "segfault", "garbage"])
def test_an_engine_that_fails_while_listing_takes_down_nothing(fault: Fault) -> None:
    found = survey(faulty(fault, "discover"), GOOD, deadlines=SHORT_TOTAL if fault == "hang" else DEADLINES)
    assert found["bad"].state == ("hung" if fault == "hang" else "present")
    assert found["good:0"].state == "verified"
    assert children() == set()


def test_a_library_that_prints_does_no_harm() -> None:
    found = survey(faulty("print"))
    assert {item.state for item in found.values()} == {"verified"}


def test_the_last_words_of_a_child_are_kept() -> None:
    found = survey(EngineEntry(name="broken", target="no_such_module:Engine"))
    broken = found["broken"]
    assert isinstance(broken, Unavailable)
    assert broken.cause == "import_failed"
    assert "no_such_module" in (broken.detail or "")


def test_a_missing_library_is_known_without_starting_anything() -> None:
    entry = EngineEntry(name="other", target="nothing:here", requires="no-such-distribution", extra="other")
    (item,) = run_probes([entry], with_cards=False, deadlines=DEADLINES)["other"]
    assert isinstance(item, Unavailable)
    assert (item.cause, item.fix) == ("not_installed", "pip install no-such-distribution")


def test_nothing_of_the_callers_folder_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("numpy", "json", "fake"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the caller’s own file was imported')")
    monkeypatch.chdir(tmp_path)
    found = survey(GOOD)
    assert found["good:0"].state == "verified"


def test_in_a_frozen_application_no_child_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    found = survey(GOOD)
    item = found["good"]
    assert isinstance(item, Unavailable)
    assert "does not know how to run a child" in (item.detail or "")


def test_a_hanging_child_does_not_outlive_a_parent_that_is_killed() -> None:
    script = """
import sys
from anygpu.testing import FakeEngine
from anygpu.workers import probe_runner
from anygpu.workers.probe_runner import ProbeDeadlines
from tests.support.isolation import children_with
def wait_to_be_killed(children, unfinished):
    print(children._running["bad"].child.process.pid, flush=True)
    sys.stdin.read()
probe_runner._Children._expire = wait_to_be_killed
entry = FakeEngine("bad", faults={"bad:0": "hang"}).entry()
probe_runner.run_probes([entry], with_cards=False, deadlines=ProbeDeadlines(total=2, step=2))
"""
    parent = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert parent.stdout is not None
    orphan = psutil.Process(int(parent.stdout.readline()))
    os.kill(parent.pid, signal.SIGKILL)
    parent.communicate()
    # The child ends itself by an alarm one second after the last deadline that its parent would have kept.
    until = time.monotonic() + PATIENCE
    while not is_over(orphan):
        assert time.monotonic() < until, "the child has outlived its parent"


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
        until = time.monotonic() + PATIENCE
        while min(seconds_without_processor(each.pid) for each in both) < 0.05:
            assert time.monotonic() < until
    finally:
        for each in both:
            each.kill()
            each.communicate()
    assert seconds_without_processor(both[0].pid) == 0.0, "it has ended"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
def test_a_thread_that_does_not_get_the_processor_is_known_to_wait() -> None:
    with ThreadPoolExecutor(1) as other:
        assert other.submit(_wait_behind_another_process).result() >= 0.05
    assert thread_seconds_without_processor(0) == 0.0, "there is none"


def _wait_behind_another_process() -> float:
    """How long this thread has waited for a processor that it shares."""
    processor, this = min(os.sched_getaffinity(0)), threading.get_native_id()
    code = f"import os\nos.sched_setaffinity(0, {{{processor}}})\nprint(flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as busy:
        try:
            assert busy.stdout is not None
            busy.stdout.readline()
            os.sched_setaffinity(this, {processor})
            until = time.monotonic() + PATIENCE
            while (waited := thread_seconds_without_processor(this)) < 0.05 and time.monotonic() < until:
                pass
        finally:
            busy.kill()
    return waited


@pytest.mark.full
def test_what_is_known_of_an_engine_is_told_at_once() -> None:
    told: list[str] = []

    def hear(name: str, items: list[ProbeItem]) -> None:
        told.append(name)
        assert [item.state for item in items if isinstance(item, Device)] or name == "bad"
        # It would hang for two minutes.
        for child in children() if name == "good" else ():
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()

    run_probes([faulty("hang", "discover"), GOOD], with_cards=False, deadlines=DEADLINES, when_done=hear)
    assert told == ["good", "bad"], "it does not wait for the one that hangs"
