"""Functions as native code in turn with NumPy, and what calls do beside what they do on NumPy.

Steps of a case are repeated at first: a step changes what a program may depend on, and the repeated calls run on NumPy,
are traced, and run as native code. Then each call is another step. Meanwhile NumPy's modes and the warning filters
change, and some calls are prepared.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

import anygpu as ag
from anygpu.receipts.receipt import Receipt
from tests.semantics.cases import Case
from tests.semantics.moving import Run, begin_with_randomness, called, engine_of
from tests.semantics.outcomes import Outcome, difference
from tests.support.native_placement import settle, wrong_functions

#: The step of each call.
STEPS = (*(step for step in range(6) for _ in range(4)), *range(6, 26))
#: Each so many calls one is prepared.
_PREPARED = 9
#: Of the calls that follow each other, the usual ones more often.
_FILTERS = ("always", "always", "always", "error", "always", "always", "default")
_MODES: tuple[dict[str, Any], ...] = (
    {},
    {},
    {"all": "raise"},
    {},
    {},
    {},
    {"all": "ignore"},
    {},
    {"all": "warn"},
    {},
    {},
)


def run_natively(case: Case, steps: tuple[int, ...] = STEPS, *, changes_modes: bool = True) -> Run:
    """Every call under native placement, compared with what it does on NumPy."""
    begin = time.perf_counter()
    found = Run(case.name)
    expected = outcomes(case, steps, lambda function: function, found, changes_modes=changes_modes)
    found.calls.clear()
    got = outcomes(case, steps, ag.offload, found, changes_modes=changes_modes)
    for number, (one, (other, where)) in enumerate(zip(expected, got, strict=True)):
        differs = difference(one[0], other, case.within)
        if differs:
            found.differences.append(f"call {number} on {where}: {differs}")
    found.failed += wrong_functions()
    found.seconds = time.perf_counter() - begin
    return found


def outcomes(
    case: Case, steps: tuple[int, ...], made: Callable[[Any], Any], found: Run, *, changes_modes: bool
) -> list[tuple[Outcome, str]]:
    """What every call did, and where."""
    world = case.make()
    function = made(world.function)
    outcomes = []
    try:
        begin_with_randomness()
        for number, step in enumerate(steps):
            receipts: list[Receipt] = []
            prepares = number % _PREPARED == _PREPARED - 1 and hasattr(function, "prepare")
            wanted = function.prepare if prepares else function

            def one(*arguments: Any, **keywords: Any) -> Any:
                if changes_modes:
                    warnings.simplefilter(_FILTERS[number % len(_FILTERS)])  # type: ignore[arg-type] # noqa: B023
                modes = _MODES[number % len(_MODES) if changes_modes else 0]  # noqa: B023
                with np.errstate(**modes), ag.collect_receipts() as collected:
                    try:
                        return wanted(*arguments, **keywords)  # noqa: B023
                    finally:
                        receipts.extend(collected)  # noqa: B023

            got = called(world, step, one, again=number > 0 and steps[number - 1] == step)
            settle()
            where = engine_of(receipts[-1].device) if receipts else "raised"
            found.calls[where] += 1
            if receipts:
                found.reasons[receipts[-1].reason] += 1
            outcomes.append((got, where))
    finally:
        world.undo()
    return outcomes


def complaint(case: Case, found: Run) -> str | None:
    """What is wrong with a case, in a few lines; `None` when nothing is."""
    lines = []
    if found.differences:
        lines.append(f"{len(found.differences)} of {sum(found.calls.values())} calls differ:")
        lines += found.differences[:4]
    lines += found.failed
    natively = found.calls["cpu"]
    if case.stays_on_numpy is not None and natively:
        lines.append(f"it should stay on NumPy, and {natively} calls ran as native code")
    elif any("the last bit of" in reason for reason in found.reasons):
        pass  # it decides something, and so the function is NumPy's
    elif not natively and not (case.stays_on_numpy or case.raises or case.either):
        reasons = "; ".join(reason for reason, _ in found.reasons.most_common(3))
        lines.append(f"it never ran as native code: {reasons}")
    return "\n  ".join(lines) or None
