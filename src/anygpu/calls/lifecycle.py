"""The life of a call site as a pure state machine: a state and an event in, the next state out.

Nothing here runs, compiles, waits or reads a clock. A call site passes events to `step`, and its state says how the
next call runs. `TRANSITIONS` is the whole machine; `scripts/call-sites` writes it into the documentation. The states,
in their usual order, and the events::

    state       the next call                                        until
    ─────       ─────────────                                        ─────
    new         runs on NumPy                                        calls have taken long enough to try more
    loading     runs on NumPy                                        the modules for that are imported
    due         is traced, and runs on NumPy                         that call begins
    tracing     runs on NumPy; the traced call is not over           the trace has ended
    compiling   runs on NumPy                                        native code was compared and timed, on a thread
    trial       runs as native code                                  real calls have shown whether it is faster
    native      runs as native code                                  it is slow, wrong, refused, or must be traced anew
    waiting     runs on NumPy, with the reason                       calls have taken a multiple of the time so far
    planned     is planned: a device may be faster                   the process ends
    numpy       runs on NumPy, with the reason                       the caller asks for native code

    event             what has happened
    ─────             ─────────────────
    postponed         calls are too short or too few, or a trial would cost too much now
    load              calls have taken long enough for an import
    ready             the modules are imported, and calls have taken long enough for a trial
    begun             a call that traces the function has begun
    prepare           the caller has asked for native code before the call returns
    traced            the call was traced, and ran on NumPy
    kept              an earlier process has compiled and compared this program
    agreed            native code gave NumPy's result, in a time worth a trial
    proved            real calls have shown that native code is faster
    slower            native code takes longer than NumPy
    slower for now    native code takes a little longer than NumPy: the machine may have been busy
    changed           something that the program depends on has changed
    interrupted       the traced call raised the user's error or was interrupted, or this process was forked
    refused           the function, its results or its values do not allow native code
    refused for now   the modes, the time or the values of these calls do not allow native code
    mismatch          native code gave another result than NumPy
    plan              a device may be faster than NumPy and native code
"""

from __future__ import annotations

from typing import Literal, NamedTuple

State = Literal["new", "waiting", "loading", "due", "tracing", "compiling", "trial", "native", "planned", "numpy"]

# fmt: off
Event = Literal["postponed", "load", "ready", "begun", "prepare", "traced", "kept", "agreed", "proved", "slower",
                "slower for now", "changed", "interrupted", "refused", "refused for now", "mismatch", "plan"]
# fmt: on

_ENDS_NATIVE: dict[Event, State] = {
    "slower": "numpy",
    "slower for now": "waiting",
    "refused": "numpy",
    "refused for now": "waiting",
    "mismatch": "numpy",
    "plan": "planned",
    "prepare": "tracing",
}

#: The state after each event. An event that a state does not list changes nothing: it comes from a thread that has not
#: yet seen a change by another.
TRANSITIONS: dict[State, dict[Event, State]] = {
    "new": {"postponed": "new", "load": "loading", "ready": "due", "plan": "planned", "prepare": "tracing"},
    "loading": {"load": "loading", "ready": "due", "plan": "planned", "prepare": "tracing"},
    "due": {"begun": "tracing", "postponed": "waiting", "prepare": "tracing"},
    "tracing": {
        "traced": "compiling",
        "kept": "trial",
        "interrupted": "waiting",
        "refused": "numpy",
        "refused for now": "waiting",
        "prepare": "tracing",
    },
    "compiling": {"agreed": "trial", "interrupted": "waiting", **_ENDS_NATIVE},
    "trial": {"proved": "native", "changed": "waiting", **_ENDS_NATIVE},
    "native": {"changed": "waiting", **_ENDS_NATIVE},
    "waiting": {"postponed": "waiting", "load": "loading", "ready": "due", "mismatch": "numpy", "prepare": "tracing"},
    "planned": {},
    "numpy": {"prepare": "tracing"},
}

#: The states in which the next call is the user's function, unchanged.
RUNS_AS_IS: frozenset[State] = frozenset({"new", "loading", "tracing", "compiling", "waiting", "numpy"})

NEVER = float("inf")


class Life(NamedTuple):
    """The state of a call site, and the numbers that decide about its next one."""

    state: State = "new"
    #: Why calls run on NumPy, for receipts.
    reason: str = ""
    #: The seconds of calls on NumPy after which the next decision is due.
    look_at: float = NEVER
    #: The number of traced calls, and of changes of things that a program depends on.
    tries: int = 0
    changes: int = 0


def step(life: Life, event: Event, *, reason: str | None = None, look_at: float = NEVER) -> Life:
    """Return the life after an event, or the same object if the event changes nothing."""
    state = TRANSITIONS[life.state].get(event)
    if state is None:
        return life
    return Life(
        state,
        life.reason if reason is None else reason,
        look_at,
        life.tries + (event in ("begun", "prepare")),
        life.changes + (event == "changed"),
    )
