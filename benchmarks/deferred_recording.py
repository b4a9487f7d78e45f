"""What recording an operation takes, and which share of a function's time NumPy's operations take."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

import anygpu as ag
from anygpu.array.deferred import calls, recorder, script
from anygpu.array.deferred.recorder import Recorder
from anygpu.array.deferred.script import Script, Structures
from anygpu.placement.deferred import DeferredRun

#: Operations in a row, and how often that is measured.
_OPERATIONS, _TIMES = 200, 200

_clock = time.perf_counter


def _adds(x: Any, y: Any) -> None:
    for _ in range(_OPERATIONS // 2):
        y = x + y
        y = y * 2.0


def _ufuncs(x: Any, y: Any) -> None:
    for _ in range(_OPERATIONS // 2):
        y = np.sqrt(x)
        y = np.maximum(x, y)


def _methods(x: Any, y: Any) -> None:
    for _ in range(_OPERATIONS // 2):
        x.sum()
        x.max(axis=0)


def _indices(x: Any, y: Any) -> None:
    for _ in range(_OPERATIONS // 2):
        x[1:-1]
        x[..., ::2]


def _functions(x: Any, y: Any) -> None:
    for _ in range(_OPERATIONS // 2):
        y = np.where(y, x, 0.0)
        np.sum(x, axis=0)


_LOOPS = {"binary": _adds, "ufunc": _ufuncs, "method": _methods, "index": _indices, "function": _functions}


def recording_seconds() -> dict[str, float]:
    """Seconds that recording one operation takes, and finding the code of what was recorded, at best."""

    def nothing(script: Script) -> list[Any]:
        return [None for _ in script.form.outputs]

    found = {}
    for name, loop in _LOOPS.items():
        best = np.inf
        structures = Structures()
        for number in range(_TIMES):
            recorded = Recorder(nothing if number else Script.run, trusts_arguments=True, structures=structures)
            argument: Any = recorded.stand_in(np.ones(20_000), is_argument=True)
            waiting = argument + 1
            begin = _clock()
            loop(waiting, waiting)
            recorded.compute("it ends", 1)
            if number > 1:  # the first learns what NumPy gives
                best = min(best, _clock() - begin)
        found[name] = best / _OPERATIONS
    return found


def _twenty_operations(x: Any) -> Any:
    y = x
    for _ in range(9):
        y = y * 0.5 + x
    return y if y.sum() > 0 else -y


def small_function_ratio() -> float:
    """What a function of twenty operations on 1,000 elements takes with the option, in units of a plain call."""
    ours: Any = ag.offload(deferred=True)(_twenty_operations)
    x = np.random.default_rng(0).random(1000)
    begin = _clock()
    while _clock() - begin < 1.0:
        ours(x)
    times: dict[Any, list[float]] = {ours: [], _twenty_operations: []}
    for _ in range(5000):
        for call, taken in times.items():
            since = _clock()
            call(x)
            taken.append(_clock() - since)
    return min(times[ours]) / min(times[_twenty_operations])


def share(
    function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any], plain: float
) -> float | None:
    """Which part of a plain call's seconds NumPy's calls take that a deferred one sees; `None` where it raises."""
    best: float | None = None
    for _ in range(4):
        timed = _Timed()
        run = DeferredRun(timed, function, trusts=True)  # type: ignore[arg-type]
        modules: tuple[Any, ...] = (recorder, calls)
        before = script.called_from
        for each in modules:
            each.called_from = timed.called_from
        try:
            run(arguments, keywords)
        except Exception:  # noqa: BLE001 - C code that wants NumPy's own arrays
            return None
        finally:
            for each in modules:
                each.called_from = before
        best = timed.seconds if best is None else min(best, timed.seconds)
    return None if best is None else min(best / plain, 1.0)


class _Timed:
    """Runs segments on NumPy, and knows how long its calls took."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.structures = Structures()

    def run(self, script: Script) -> tuple[list[Any], bool]:
        begin = _clock()
        try:
            return script.run(), False
        finally:
            self.seconds += _clock() - begin

    def called_from(self, place: Any) -> Callable[..., Any]:
        """In the place of what calls NumPy at once."""

        def called(function: Callable[..., Any], given: tuple[Any, ...]) -> Any:
            begin = _clock()
            try:
                return function(*given)
            finally:
                self.seconds += _clock() - begin

        return called
