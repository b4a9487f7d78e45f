"""The errors of predictions, learnt from every call, so that the next program's prediction is better."""

from __future__ import annotations

import math

from anygpu.program.costs import OperationClass, program_cost
from anygpu.program.graph import Program

#: The weight of the newest error: four or five calls replace what was believed before.
_NEW = 0.3
#: No correction is larger: beyond that something else is wrong than the model.
_MOST = math.log(20.0)


class Corrections:
    """A factor for each device and kind of program: what calls took, by what was predicted for them."""

    def __init__(self) -> None:
        self._logarithms: dict[tuple[str, OperationClass], float] = {}

    def factor(self, device: str, kind: OperationClass) -> float:
        return math.exp(self._logarithms.get((device, kind), 0.0))

    def learn(self, device: str, kind: OperationClass, predicted: float, actual: float) -> None:
        """`predicted` is what the calibration alone says."""
        if not (predicted > 0 and actual > 0):
            return
        error = max(-_MOST, min(_MOST, math.log(actual / predicted)))
        old = self._logarithms.get((device, kind))
        self._logarithms[device, kind] = error if old is None else old + _NEW * (error - old)


def kind_of(program: Program) -> OperationClass:
    """The class of operations that most of the program's work is of."""
    by_kind = program_cost(program).by_kind
    work = {kind: cost.flops + (cost.bytes_read + cost.bytes_written) / 4 for kind, cost in by_kind.items()}
    return max(work, key=lambda kind: work[kind], default="elementwise")
