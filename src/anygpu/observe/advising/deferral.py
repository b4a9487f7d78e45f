"""What deferred calls of a function would give that cannot be traced: their segments, and what a call would take.

A function whose code can reach nothing but its arguments does nothing but compute. So it is called here, deferred, with
copies of what the script gave it: what it does between the moments at which it needs a value is known then, and what
native code would take for that is predicted.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any

import msgspec

from anygpu.array.deferred.script import Form, Script, Structures
from anygpu.base.units import readable_seconds
from anygpu.placement.closed_code import ClosedCode
from anygpu.placement.deferred import DeferredRun
from anygpu.placement.segments import written
from anygpu.placement.undecorated import remembered

#: Calls of the function: the first ones learn what NumPy's calls give.
_CALLS = 4
#: None of them begins when those before it have taken so many seconds.
_MOST_SECONDS = 2.0

_clock = time.perf_counter


class DeferralEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """What a deferred call would do, and take."""

    #: How many segments it has, and how many of them are predicted to be faster as native code.
    segments: int
    native: int
    #: Why each ends, with the user's line.
    how: str
    seconds: float


def sentence_of(function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> str:
    """Whether its calls can be deferred, and what that is expected to give where it can be found out."""
    why_not = ClosedCode(function).why_not
    can = "With offload(deferred=True) it can run as it is"
    if why_not is not None:
        return f"{can}; whether an array outlives a call: {why_not.rstrip('.')}."
    try:
        found = estimated(function, arguments, keywords)
    except Exception:  # noqa: BLE001 - advice is never a reason to fail
        found = None
    if found is None:
        return f"{can}: no array of a call outlives it."
    parts = f"{found.segments} segment{'s' * (found.segments != 1)}, {found.native} of them faster as native code"
    return f"{can}, expected to take {readable_seconds(found.seconds)} a call: {parts} ({found.how})."


def estimated(
    function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> DeferralEstimate | None:
    """What deferred calls of a function do that does nothing but compute; `None` where no operation waits."""
    runs = _SegmentsOnNumPy()
    run = None
    beside = float("inf")
    until = _clock() + _MOST_SECONDS
    for _ in range(_CALLS):
        if _clock() > until:
            break
        given, named = copy.deepcopy((arguments, keywords))
        runs.seen.clear()
        run = DeferredRun(runs, function, trusts=True)  # type: ignore[arg-type]
        run(given, named)
        beside = min(beside, run.whole - run.computing)
    if run is None or not runs.seen:
        return None
    seconds, native = beside, 0
    predicted: dict[Form, float] = {}
    for script, on_numpy in runs.seen:
        if script.form not in predicted:
            predicted[script.form] = _native_seconds(script)
        expected = predicted[script.form]
        native += expected < on_numpy
        seconds += min(expected, on_numpy)
    return DeferralEstimate(segments=len(runs.seen), native=native, how=run.how() or "", seconds=seconds)


def _native_seconds(script: Script) -> float:
    """What native code is predicted to take for a segment; infinite where there is none."""
    form = script.form
    if not form.outputs:
        return float("inf")
    plan = remembered(written(form, form.inputs, {}), {}).explain(*script.values)
    return min((each.seconds for each in plan.candidates if each.device == "cpu"), default=float("inf"))


class _SegmentsOnNumPy:
    """Runs segments on NumPy, and knows what each took."""

    def __init__(self) -> None:
        self.structures = Structures()
        self.seen: list[tuple[Script, float]] = []

    def run(self, script: Script) -> tuple[list[Any], bool]:
        begin = _clock()
        results = script.run()
        self.seen.append((script, _clock() - begin))
        return results, False
