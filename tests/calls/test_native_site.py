"""Call sites for NumPy or native code: what runs the next call in each state, also on other threads and in children."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import Any, get_args

import pytest

from anygpu.calls import native_site, telling
from anygpu.calls.call_table import CallTable
from anygpu.calls.lifecycle import RUNS_AS_IS, TRANSITIONS, Event, Life, State
from anygpu.calls.native_site import NativeSite
from anygpu.calls.options import options
from anygpu.receipts.notes import HostNote
from tests.calls.test_lifecycle import WAYS


def _site() -> NativeSite:
    return NativeSite(CallTable(options()), ("float64", (3,)), HostNote("f", "it is new", None))


def _code(function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any], begin: float) -> Any:
    return "by what the state has"


def _brought_to(state: State) -> NativeSite:
    site = _site()
    for event in WAYS[state]:
        site.tell(event, code=_code)
    assert site.life.state == state
    return site


@pytest.mark.parametrize("state", get_args(State))
def test_what_runs_the_next_call(state: State) -> None:
    site = _brought_to(state)
    assert site.runs_as_is == (state in RUNS_AS_IS)
    assert site.run(lambda x: x, ("as it is",), {}, 0.0) == ("as it is" if site.runs_as_is else "by what the state has")
    telling._under_way.discard(site)


def test_an_event_that_comes_too_late_changes_neither_reason_nor_code() -> None:
    site = _brought_to("numpy")
    assert not site.tell("agreed", code=_code, reason="too late")
    assert site.runs_as_is
    assert site.note.reason == "it is new"


def test_the_reason_is_in_the_note() -> None:
    site = _brought_to("tracing")
    site.retry_after(2.0, reason="tracing took too long")
    assert site.note.reason == site.life.reason == "tracing took too long"


def test_calls_are_retried_after_a_multiple_of_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[float] = []
    monkeypatch.setattr(NativeSite, "_maybe_start_trial", lambda site: looks.append(site.seconds))
    monkeypatch.setattr(native_site, "BEFORE_NATIVE", 1e9)
    site = _site()
    for event in WAYS["tracing"]:
        site.tell(event, code=_code)
    for _ in range(4):
        site.ran(0.5)
    site.retry_after(1.5)
    assert site.life.look_at == 3.0
    site.ran(0.5)
    assert looks == []
    site.ran(0.5)
    assert looks == [3.0]


def test_threads_that_tell_at_once_make_one_life() -> None:
    """Each event of many threads is a step of the machine, and none is lost between reading a life and replacing it."""
    for _ in range(30):
        site = _brought_to("compiling")
        events: list[Event] = ["agreed", "slower", "mismatch", "refused"]
        changed: list[Event] = []
        gate = threading.Barrier(len(events))

        def tell(event: Event) -> None:
            gate.wait()  # noqa: B023 - the threads end within the round
            if site.tell(event, code=_code):  # noqa: B023
                changed.append(event)  # noqa: B023

        threads = [threading.Thread(target=tell, args=(event,)) for event in events]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        life = Life("compiling")
        state = life.state
        for event in changed:
            assert event in TRANSITIONS[state], changed
            state = TRANSITIONS[state][event]
        assert site.life.state == state
        assert site.runs_as_is == (state in RUNS_AS_IS)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize("state", ["tracing", "compiling"])
def test_what_another_thread_was_doing_at_a_fork_is_begun_again_in_the_child(state: State) -> None:
    script = f"""
import os
from anygpu.calls import telling
from tests.calls.test_native_site import _brought_to, _code

site = _brought_to({state!r})
telling._telling.acquire()  # as another thread of the parent may hold it
child = os.fork()
if not child:
    waits = site.life.state == "waiting"
    os._exit(0 if waits and site.tell("ready", code=_code) and not site.runs_as_is else 1)
telling._telling.release()
print(os.waitpid(child, 0)[1], site.life.state)
"""
    # In a process of its own: JAX, which other tests have loaded, warns of forks.
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", state], "the parent goes on"
