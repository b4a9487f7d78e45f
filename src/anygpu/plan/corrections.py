"""The errors of predictions, learnt from calls and trials, so that the next program's prediction is better.

Each program has one error on each device: what it took there, by what the calibration alone had predicted. A program
that is new there is corrected by those that were predicted to take about as long: what short programs have in common
is what every call costs, and what long ones have in common is the speed of the device. Which operations they consist
of says less. While there are no such programs, all others count, if they were far off. A device whose predictions are
doubted says so in `ag.explain`.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Collection
from typing import NamedTuple

from anygpu.base.disturbance import median

#: The weights of a program's newest error, where it took less than before and where it took more: what else the machine
#: does only ever adds, so a faster call is believed sooner.
_FASTER, _SLOWER = 0.7, 0.15
#: Below this, a call takes what starting it takes, which says nothing of programs with more work.
_SHORT = 1e-3
#: No correction is larger: beyond that something else is wrong than the model.
MOST = 20.0
#: Programs whose predictions are within this factor of one another are about as long.
ALIKE = 10.0
#: So many programs are needed for a correction; one may have reasons of its own.
ENOUGH = 2
#: Errors of programs of other lengths count when they are larger than this.
FAR_OFF = 3.0
#: The programs that are remembered for each device: the latest ones.
MOST_PROGRAMS = 64


class Error(NamedTuple):
    """What one program took on one device, by what was predicted for it."""

    #: Seconds, by the calibration alone.
    predicted: float
    #: Its logarithm: 0 for a prediction that was right, more than 0 for one that was too low.
    logarithm: float
    #: Whether it was measured while something else kept the machine busy.
    is_rough: bool


def factor_from(errors: Collection[Error], predicted: float) -> float:
    """What a prediction of so many seconds is multiplied by, given the errors of other programs there."""
    alike = [each.logarithm for each in errors if 1 / ALIKE <= each.predicted / predicted <= ALIKE]
    if len(alike) >= ENOUGH:
        return math.exp(median(alike))
    others = [each.logarithm for each in errors if (each.predicted < _SHORT) == (predicted < _SHORT)]
    middle = median(others) if len(others) >= ENOUGH else 0.0
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

    def factor(self, device: str, predicted: float, program: str = "") -> float:
        """The factor for a program, by its own error if it has run there; else by those of others of about its length.

        `predicted` is what the calibration alone says.
        """
        errors = self._errors.get(device)
        if not errors or not predicted > 0:
            return 1.0
        own = errors.get(program)
        if own is not None:
            return math.exp(own.logarithm)
        return factor_from(errors.values(), predicted)

    def learn(self, device: str, predicted: float, actual: float, *, program: str = "", is_rough: bool = False) -> None:
        """`predicted` is what the calibration alone says. A rough time counts until there is a better one."""
        if not (0 < predicted < math.inf and 0 < actual < math.inf):
            return
        errors = self._errors.setdefault(device, OrderedDict())
        old = errors.get(program)
        if old is not None and is_rough and not old.is_rough:
            return
        error = max(-math.log(MOST), min(math.log(MOST), math.log(actual) - math.log(predicted)))
        if old is not None and old.is_rough == is_rough:
            weight = _FASTER if error < old.logarithm else _SLOWER
            error = old.logarithm + weight * (error - old.logarithm)
        elif abs(error) > math.log(FAR_OFF):
            self.version += 1
        errors[program] = Error(predicted, error, is_rough)
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
