"""Functions as deferred calls, and what these do beside what plain calls do.

Steps of a case are repeated at first: the first call of a kind is a plain one, the next ones learn what NumPy gives,
and then all that can wait does. Meanwhile NumPy's modes and the warning filters change.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import anygpu as ag
from tests.semantics.cases import Case
from tests.semantics.moving import Run
from tests.semantics.natively import outcomes
from tests.semantics.outcomes import difference
from tests.support.native_placement import wrong_functions

#: The step of each call: as many times the same as it takes until segments are native code.
STEPS = (*(step for step in range(3) for _ in range(7)), *range(3, 20))


def run_deferred(case: Case, steps: tuple[int, ...] = STEPS, *, changes_modes: bool = True) -> Run:
    """Every call as a deferred one, compared with what it does as it is. `reasons` are those of the plain ones."""
    begin = time.perf_counter()
    found = Run(case.name)
    expected = outcomes(case, steps, lambda function: function, found, changes_modes=changes_modes)
    found.calls.clear()
    found.reasons.clear()
    functions: list[Any] = []

    def deferred(function: Callable[..., Any]) -> Any:
        functions.append(ag.offload(deferred=True)(function))
        return _Called(functions[0])

    got = outcomes(case, steps, deferred, found, changes_modes=changes_modes)
    for number, (one, (other, where)) in enumerate(zip(expected, got, strict=True)):
        differs = difference(one[0], other, case.within)
        if differs:
            found.differences.append(f"call {number} on {where}: {differs}")
    found.failed += wrong_functions()
    found.seconds = time.perf_counter() - begin
    found.calls = Counter()
    for reason, count in found.reasons.items():
        how = "plain"
        if reason.startswith("deferred: "):
            how = "numpy" if " 0 of them native" in reason else "cpu"
        found.calls[how] += count
    found.calls["raised"] = len(steps) - sum(found.calls.values())
    why = functions[0].why_plain
    found.reasons = Counter({why: 1} if why else {})
    return found


class _Called:
    """A function without `prepare`, which is a plain call."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, /, *arguments: Any, **keywords: Any) -> Any:
        return self._function(*arguments, **keywords)


def complaint(case: Case, found: Run) -> str | None:
    """What is wrong with a case, in a few lines; `None` when nothing is."""
    lines = []
    if found.differences:
        lines.append(f"{len(found.differences)} of {sum(found.calls.values())} calls differ:")
        lines += found.differences[:4]
    lines += found.failed
    return "\n  ".join(lines) or None
