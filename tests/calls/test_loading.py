"""What plans calls is loaded beside the first calls, and not in their time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from anygpu.calls import loading
from anygpu.calls.call_table import note_of_new
from anygpu.calls.hints import NATIVE, change_marks
from anygpu.calls.new_call_site import NewCallSite
from anygpu.calls.options import options
from anygpu.placement.call_site import CallSite

#: Lines of anygpu, without docstrings, that a process may load to call NumPy. Where images keep no bytecode, each
#: process compiles them.
MOST_LINES = 2650


@pytest.mark.parametrize(
    ("device", "seconds", "elements"),
    [("", 1e-4, 10), ("numpy", 1e-4, 10), ("numpy", 10.0, 1 << 24)],
    ids=["short calls", "short calls of numpy", "long calls of numpy"],
)
def test_a_process_that_needs_no_planning_loads_few_lines(
    device: str, seconds: float, elements: int, tmp_path: Path
) -> None:
    # Earlier processes have marked another function.
    change_marks(str(tmp_path / "history" / NATIVE), [b"0" * 32], [])
    script = f"""
import ast, itertools, os, sys
import numpy as np
import anygpu as ag
from anygpu.calls import loading, offload

# Each of the two readings that are taken around a call is later by its time.
offload._clock = itertools.count(0.0, {seconds}).__next__

@ag.offload
def double(x, *, by=2):
    return x * by

x = np.ones({elements}, np.float32)
for _ in range(20):
    double(x)
double(x[:10], by=3)
files = {{each.__file__ for name, each in sys.modules.items() if name.partition(".")[0] == "anygpu"}}
print("anygpu.base.own_files" in sys.modules, loading.is_under_way())
def lines(text):
    parts = [p for p in ast.walk(ast.parse(text)) if isinstance(p, (ast.Module, ast.ClassDef, ast.FunctionDef))]
    documented = [each.body[0] for each in parts if ast.get_docstring(each, clean=False) is not None]
    return len(text.splitlines()) - sum(each.end_lineno - each.lineno + 1 for each in documented)
print(sum(lines(open(file).read()) for file in files))
print(ag.last_receipt().reason)
"""
    environment = {**os.environ, "ANYGPU_DEVICE": device, "ANYGPU_CACHE_DIR": str(tmp_path), "ANYGPU_NATIVE": "on"}
    environment.pop("ANYGPU_HISTORY", None)
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    loaded, lines, reason = done.stdout.splitlines()
    assert loaded == f"{device != 'numpy'} False", "hints are read if a device may be chosen, and nothing is planned"
    assert int(lines) <= MOST_LINES
    assert (reason == "numpy is the only device allowed.") == (device == "numpy")


@pytest.mark.software_devices("calls are planned where there may be a GPU")
@pytest.mark.native_off("calls are planned, and no native code is tried")
def test_it_is_loaded_on_a_thread_when_calls_have_taken_long_enough() -> None:
    script = """
import numpy as np
import anygpu as ag
from anygpu.calls import loading, offload
from anygpu.testing.fakes import ManualClock

# On a busy machine calls may take any time.
offload._clock = clock = ManualClock()
seconds = 0.001

@ag.offload
def wait(x):
    clock.advance(seconds)
    return x + 1

x = np.ones(10)
for _ in range(8):
    wait(x)
print(loading.planning.thread is None, loading.is_loaded())
seconds = 0.02
for _ in range(100):
    wait(x)
    if loading.planning.thread is not None:
        break
loading.planning.thread.join(120)
print(loading.is_loaded())
wait(x)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False", "True"], done.stderr
    assert not done.stderr


def test_a_child_that_is_forked_meanwhile_can_plan_calls() -> None:
    script = """
import os, signal
import numpy as np
import anygpu as ag
from anygpu.calls import loading

loading.begin()
child = os.fork()
if not child:
    signal.alarm(120)  # an import that waits for ever ends with it
    plan = ag.offload(lambda x: x + 1).explain(np.ones(3))
    os._exit(0 if plan.chosen == "numpy" else 1)
print(os.waitpid(child, 0)[1])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0"], done.stderr


def test_python_may_end_meanwhile() -> None:
    script = "from anygpu.calls import loading; loading.begin()"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not done.stderr


@pytest.mark.software_devices("calls are planned where there may be a GPU")
@pytest.mark.native_off("calls are planned, and no native code is tried")
def test_no_call_imports_it() -> None:
    """They go on as they are until it is loaded."""
    script = """
import sys, threading
import numpy as np
import anygpu as ag
from anygpu.calls import loading

imported = []

def hear(event, arguments):
    if event == "import" and threading.current_thread() is threading.main_thread():
        imported.append(arguments[0])

@ag.offload
def double(x):
    return x * 2

x = np.ones(100_000)
double(x)
sys.addaudithook(hear)
while not loading.is_loaded():
    double(x)
print(loading.PLANNING in imported)
double(x)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"], done.stderr


def _after_a_call(seconds: float) -> NewCallSite:
    site = NewCallSite(note_of_new("f", options()))
    site.ran(seconds)
    return site


def test_what_cannot_be_loaded_is_raised_where_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "is_loaded", lambda: False)
    monkeypatch.setattr(loading, "begin", lambda: None)
    monkeypatch.setattr(loading, "is_under_way", lambda: False)
    assert _after_a_call(0.1).runs_as_is
    assert not _after_a_call(0.4).runs_as_is, "the next call is planned, and imports it"
    monkeypatch.setattr(loading, "is_under_way", lambda: True)
    assert _after_a_call(10.0).runs_as_is, "the next call runs as it is, however long it takes"


def test_short_calls_are_planned_after_more_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "is_loaded", lambda: True)
    assert not _after_a_call(2e-3).runs_as_is
    site = _after_a_call(1e-5)
    while site.runs_as_is:
        site.ran(1e-5)
    assert site.calls == pytest.approx(100, abs=1)


def test_the_reason_of_calls_without_planning_holds_for_the_last_of_them() -> None:
    planned = CallSite("f", options(), "numpy", has_anygpu_arrays=False)
    planned.host.skip_planning_for(1000, "numpy takes 10 µs per call.")
    assert planned.host.note.reason == "numpy takes 10 µs per call (decided at call 0 for the next 1,000 calls)."
    planned.host.skip_planning_for(2, "numpy takes 10 µs per call.")
    assert planned.host.note.reason == "numpy takes 10 µs per call."
