"""Native code in place of NumPy as soon as there is any, for tests of its answers.

A call's own way is kept: signatures, tracing, guards, compiling, comparing, modes, filters, the order of memory. Only
these answers are other ones: every call pays and every trial is afforded; code counts as faster, however long it takes;
what usually comes after many calls comes after a few; and no call is planned.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections import Counter
from collections.abc import Iterator
from typing import Any
from unittest import mock

from anygpu.calls import lifecycle, loading, looking, native_site
from anygpu.native import calls as native_calls
from anygpu.native import trial

#: Calls as native code until these may skip their keys, and then between two that are compared.
CALLS_UNTIL_QUICK, CALLS_BETWEEN_SAMPLES = 1, 4


@contextlib.contextmanager
def native_at_once(*, history: str = "off") -> Iterator[None]:
    """Within the block functions that are decorated run as native code from their third call on, once it has settled.

    With `history="on"` what was compared is kept on disk, as between processes.
    """
    with (
        mock.patch.dict(os.environ, {"ANYGPU_NATIVE": "on", "ANYGPU_HISTORY": history}),
        mock.patch.object(loading.native, "is_ready", True),
        mock.patch.object(looking, "LEAST_FOR_NATIVE", 0.0),
        mock.patch.multiple(native_site, BEFORE_NATIVE=0.0, BEFORE_ANOTHER_TRY=0.0),
        mock.patch.multiple(trial, WORTH_TRYING=math.inf, OVERHEAD=-math.inf, _trace_seconds=lambda called: math.inf),
        mock.patch.multiple(
            native_calls,
            OVERHEAD=-math.inf,
            _TRIAL_CALLS=CALLS_UNTIL_QUICK,
            _MOST_CHANGES=math.inf,
            probes_by_itself=lambda: False,
            calls_between_samples=lambda *_, **__: CALLS_BETWEEN_SAMPLES,
        ),
        mock.patch.object(native_calls.Allowance, "affords_one", return_value=True),
        mock.patch.object(native_site.NativeSite, "retry_after", _at_once),
    ):
        yield


@contextlib.contextmanager
def lives_recorded() -> Iterator[Counter[str]]:
    """Count within the block how often call sites come into each state."""
    states: Counter[str] = Counter()
    step = lifecycle.step

    def counted(life: lifecycle.Life, event: lifecycle.Event, **more: Any) -> lifecycle.Life:
        after = step(life, event, **more)
        if after is not life:
            states[after.state] += 1
        return after

    with mock.patch.object(lifecycle, "step", counted):
        yield states


@contextlib.contextmanager
def tried_at_once() -> Iterator[None]:
    """Within the block one call is enough to try native code, which is used whatever it takes; then it is settled."""
    pinned: dict[Any, str] = {}
    with mock.patch.object(native_calls.Allowance, "AT_FIRST", math.inf):
        allowance = native_calls.Allowance()
    with (
        mock.patch.dict(os.environ, {"ANYGPU_NATIVE": "on"}),
        mock.patch.object(looking, "LEAST_FOR_NATIVE", 0.0),
        mock.patch.object(native_site, "BEFORE_NATIVE", 0.0),
        mock.patch.object(native_calls.Allowance, "AT_FIRST", math.inf),
        mock.patch.multiple(native_calls, OVERHEAD=-math.inf, allowance=allowance, pinned=pinned),
        mock.patch.multiple(
            trial, WORTH_TRYING=math.inf, _trace_seconds=lambda called: 60.0, allowance=allowance, pinned=pinned
        ),
        mock.patch.object(loading.native, "is_ready", True),
    ):
        yield
        settle()


def _at_once(
    of: native_site.NativeSite, factor: float, event: Any = "refused for now", reason: str | None = None
) -> None:
    """As `NativeSite.retry_after`; what would be tried later is tried with the next call but one."""
    later(of, 0.0, event, reason)


later = native_site.NativeSite.retry_after


def settle() -> None:
    """Wait for what is compiled and compared in the background."""
    assert native_calls.background.settle(120)


def wrong_functions() -> list[str]:
    """Why functions stay on NumPy that gave another result as native code; they are forgotten."""
    found = list(native_calls.pinned.values())
    native_calls.pinned.clear()
    return found
