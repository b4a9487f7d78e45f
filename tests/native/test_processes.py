"""Native code in processes that fork, end or are interrupted in the middle."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anygpu as ag
from tests.native.cases import device, natively
from tests.support.interrupting import AtMoment, places_of
from tests.support.native_placement import native_at_once, settle

X = np.linspace(-2, 2, 12, dtype=np.float32)

HEAD = """
import os, signal, sys, threading
import numpy as np
import anygpu as ag
from anygpu.calls import loading
from anygpu.native.loading import begin_native

@ag.offload
def smooth(x):
    return np.tanh(x) * 2 + np.exp(-x * x)

x = np.linspace(0, 1, 20_000)
expected = smooth.function(x)
signal.alarm(120)  # what waits for ever ends with it
"""


def _run(script: str, cache: Path, **more: str) -> str:
    environment = os.environ | {"ANYGPU_NATIVE": "on", "ANYGPU_HISTORY": "on", "ANYGPU_CACHE_DIR": str(cache), **more}
    script = HEAD + script
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_waits_for_what_is_being_loaded(tmp_path: Path) -> None:
    """And what is being loaded waits for no lock that forks take."""
    script = """
begin_native(compiles=True)
child = os.fork()
if not child:
    assert np.allclose(smooth.prepare(x), expected)
    assert np.allclose(smooth(x), expected)
    os._exit(0)
print(loading.native.thread.is_alive(), os.waitpid(child, 0)[1])
"""
    assert _run(script, tmp_path).split() == ["False", "0"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_goes_on_with_native_code_and_makes_more(tmp_path: Path) -> None:
    script = """
from anygpu.native import calls as native_calls
from anygpu.native import trial
trial.WORTH_TRYING, trial.OVERHEAD, native_calls.OVERHEAD = 1e9, 0, -1e9
smooth.prepare(x)

@ag.offload
def other(x):
    return smooth(x) + np.sin(x)

child = os.fork()
smooth(x)
said = [ag.last_receipt().device]
other.prepare(x)
assert np.allclose(other(x), expected + np.sin(x))
said.append(ag.last_receipt().device)
native_calls.background.submit(lambda: said.append("done"))
assert native_calls.background.settle(60)
if child:
    said.append(str(os.waitpid(child, 0)[1]))
os.write(1, (" ".join(said) + chr(10)).encode())
"""
    assert _run(script, tmp_path).splitlines() == ["cpu cpu done", "cpu cpu done 0"]


@pytest.mark.parametrize("moment", ["loading", "compiling", "using"])
def test_a_process_may_end_in_the_middle(moment: str, tmp_path: Path) -> None:
    until = {
        "loading": "loading.native.thread is not None",
        "compiling": '"being compiled" in ag.last_receipt().reason',
        "using": "True",
    }[moment]
    begin = "smooth.prepare(x)" if moment == "using" else ""
    script = f"""
{begin}
for _ in range(100_000):
    smooth(x)
    if {until} or ag.last_receipt().device == "cpu":
        break
print(ag.last_receipt().device)
"""
    assert _run(script, tmp_path)


def test_the_next_process_begins_with_what_was_compared(tmp_path: Path) -> None:
    script = """
from anygpu.native import calls as native_calls
from anygpu.native import trial
trial.WORTH_TRYING, trial.OVERHEAD, native_calls.OVERHEAD = 1e9, 0, -1e9
loading.native.is_ready = True
with ag.collect_receipts() as receipts:
    for value in (smooth(x), smooth.prepare(x), smooth(x), smooth(np.zeros(20_000)), smooth(x[::-1].copy()[::-1])):
        pass
assert np.allclose(value, expected)
print(*(each.device for each in receipts))
"""
    assert _run(script, tmp_path).split()[0] == "numpy"
    assert _run(script, tmp_path).split()[0] == "cpu"


def test_the_next_process_traces_no_first_call_with_other_shapes(tmp_path: Path) -> None:
    prepare = """
from anygpu.native import calls as native_calls
from anygpu.native import trial
trial.WORTH_TRYING, trial.OVERHEAD, native_calls.OVERHEAD = 1e9, 0, -1e9
smooth.prepare(x)
"""
    script = """
smooth(x[:100])
loading.native.thread.join()
smooth(x[:50])
(other, another) = smooth._table.native.values()
print(other.known_faster, other.life.tries, another.life.tries)
"""
    _run(prepare, tmp_path)
    assert _run(script, tmp_path).split() == ["False", "0", "0"]


def test_a_process_that_ends_early_is_the_last_to_try_so_early(tmp_path: Path) -> None:
    began = """
from anygpu.native import loading as native_loading
native_loading._has_bytecode = lambda: True
native_loading._has_spare_processor = lambda site: True  # whatever the machine does
smooth(x)
(site,) = smooth._table.native.values()
site._maybe_start_trial()
loading.native.thread.join()
"""
    script = """
from anygpu.calls.native_site import BEFORE_ANOTHER_TRY, BEFORE_NATIVE
smooth(x), smooth(x[:10])
same, other = smooth._table.native.values()
print(same.life.look_at == BEFORE_ANOTHER_TRY, other.life.look_at == BEFORE_NATIVE)
"""
    assert _run(script, tmp_path).split() == ["False", "True"]
    _run(began, tmp_path)
    assert _run(script, tmp_path).split() == ["True", "True"]


def test_without_bytecode_calls_have_to_take_a_second(tmp_path: Path) -> None:
    script = """
from anygpu.native import loading as native_loading
smooth(x)
(site,) = smooth._table.native.values()
print(native_loading._has_bytecode())
site.seconds = 0.5
site._maybe_start_trial()
print(loading.native.thread is None)
site.seconds = 1.0
site._maybe_start_trial()
print(loading.native.thread is None)
"""
    without = {"PYTHONPYCACHEPREFIX": str(tmp_path / "empty"), "PYTHONDONTWRITEBYTECODE": "1"}
    assert _run(script, tmp_path, **without).split() == ["False", "True", "False"]


@pytest.mark.parametrize("keywords", [{}, {"by": 2.0}], ids=["quick", "closer"])
def test_a_call_may_be_interrupted_at_any_moment(keywords: dict[str, Any]) -> None:
    def shifted(x: Any, by: Any = 2.0) -> Any:
        return np.tanh(x) + by

    with native_at_once():
        function = natively(shifted, X, **keywords)
        expected = shifted(X)

        def call() -> None:
            np.testing.assert_allclose(function(X, **keywords), expected, rtol=1e-6)

        interrupted = 0
        for place in places_of(lambda: function(X, **keywords)):
            for _ in range(2):
                interrupted += AtMoment(place).run(lambda: function(X, **keywords))
                call()
            settle()
        assert interrupted > 10
        where = set()
        for _ in range(5):
            call()
            where.add(device())
            settle()
        assert "cpu" in where
        assert ag.last_receipt() is not None
