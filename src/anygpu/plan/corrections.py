"""The errors of predictions, learnt from calls and trials, so that the next program's prediction is better.

Each program has one error on each device: what it took there, by what the calibration alone had predicted. A program
that is new there is corrected by those of its kind, or, while there are none, by all that have run there if these were
far off. A device whose predictions are doubted says so in `ag.explain`.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Collection
from functools import lru_cache
from typing import NamedTuple

from anygpu.program.costs import OperationClass, program_cost
from anygpu.program.graph import Program

#: The weight of a program's newest error: four or five calls replace what was believed before.
_NEW = 0.3
#: Below this, a call takes what starting it takes, which says nothing of programs with more work.
_SHORT = 1e-3
#: No correction is larger: beyond that something else is wrong than the model.
MOST = 20.0
#: Errors of other kinds of programs count when they are larger than this, and there are so many of them.
FAR_OFF, ENOUGH = 3.0, 2
#: The programs that are remembered for each device: the latest ones.
MOST_PROGRAMS = 64


class Error(NamedTuple):
    """What one program took on one device, by what was predicted for it."""

    kind: OperationClass
    #: Its logarithm: 0 for a prediction that was right, more than 0 for one that was too low.
    logarithm: float
    #: Whether it was measured while something else kept the machine busy.
    is_rough: bool
    #: Whether so little was predicted for it that it says nothing of programs with more work.
    is_short: bool = False


def factor_from(errors: Collection[Error], kind: OperationClass) -> float:
    """What a prediction for a program of that kind is multiplied by, given the errors of other programs there."""
    alike = [each.logarithm for each in errors if each.kind == kind]
    if alike:
        return math.exp(_median(alike))
    middle = _median([each.logarithm for each in errors]) if len(errors) >= ENOUGH else 0.0
    return math.exp(middle) if abs(middle) > math.log(FAR_OFF) else 1.0


def doubt_about(device: str, factor: float) -> str | None:
    """The words for a correction by that factor; `None` for one that is not worth mentioning."""
    if 1 / FAR_OFF <= factor <= FAR_OFF:
        return None
    times, way = (factor, "low") if factor > 1 else (1 / factor, "high")
    return f"predictions for {device} were {times:.0f}× too {way} so far"


class Corrections:
    """The errors of the latest programs on each device."""

    def __init__(self) -> None:
        self._errors: dict[str, OrderedDict[str, Error]] = {}
        #: Rises when something was learnt that changes other predictions by much.
        self.version = 0

    def factor(self, device: str, kind: OperationClass, program: str = "", *, predicted: float = math.inf) -> float:
        """The factor for a program, by its own error if it has run there; else by those of others of about its length.

        `predicted` is what the calibration alone says.
        """
        errors = self._errors.get(device)
        if not errors:
            return 1.0
        own = errors.get(program)
        if own is not None:
            return math.exp(own.logarithm)
        return factor_from([each for each in errors.values() if each.is_short == (predicted < _SHORT)], kind)

    def learn(
        self,
        device: str,
        kind: OperationClass,
        predicted: float,
        actual: float,
        *,
        program: str = "",
        is_rough: bool = False,
    ) -> None:
        """`predicted` is what the calibration alone says. A rough time counts until there is a better one."""
        if not (predicted > 0 and 0 < actual < math.inf):
            return
        errors = self._errors.setdefault(device, OrderedDict())
        old = errors.get(program)
        if old is not None and is_rough and not old.is_rough:
            return
        error = max(-math.log(MOST), min(math.log(MOST), math.log(actual) - math.log(predicted)))
        if old is not None and old.is_rough == is_rough:
            error = old.logarithm + _NEW * (error - old.logarithm)
        elif abs(error) > math.log(FAR_OFF):
            self.version += 1
        errors[program] = Error(kind, error, is_rough, predicted < _SHORT)
        errors.move_to_end(program)
        if len(errors) > MOST_PROGRAMS:
            errors.popitem(last=False)

    def forget(self, device: str) -> None:
        """The device was calibrated: earlier predictions say nothing about the next ones."""
        if self._errors.pop(device, None):
            self.version += 1

    def programs(self, device: str) -> int:
        """How many programs are remembered."""
        return len(self._errors.get(device, ()))


def _median(numbers: list[float]) -> float:
    ordered, half = sorted(numbers), len(numbers) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


@lru_cache(maxsize=1024)
def kind_of(program: Program) -> OperationClass:
    """The class of operations that most of the program's work is of."""
    by_kind = program_cost(program).by_kind
    work = {kind: cost.flops + (cost.bytes_read + cost.bytes_written) / 4 for kind, cost in by_kind.items()}
    return max(work, key=lambda kind: work[kind], default="elementwise")
