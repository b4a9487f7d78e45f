"""The peak of a step's memory, as predictions mean it: what the training has, and what the step took beyond."""

from __future__ import annotations

from collections.abc import Callable

import torch

from anygpu.engines.torch.memory import Meter, meter_for
from anygpu.pytorch.records import StepPlan

#: Measuring takes up to some milliseconds on a host, so only the first steps of a plan are measured, and then one of
#: this many.
_FIRST, _EVERY = 4, 128

_NOW_AND_THEN = f"memory is measured in the first {_FIRST} steps of a plan, and then in one of {_EVERY}"


class StepMeter:
    """Of one `Step`. `has_now` counts the bytes of its parameters, gradients and optimiser state."""

    def __init__(self, device: torch.device, has_now: Callable[[], int], meter: Meter | None = None) -> None:
        self._meter = meter_for(device) if meter is None else meter
        self._has_now = has_now
        self._device = device
        self._plan: StepPlan | None = None
        self._steps = 0
        self._begun: tuple[int, int] | None = None
        #: Why the last step has no peak.
        self.why = ""

    def begin(self, plan: StepPlan) -> None:
        if plan != self._plan:
            self._plan, self._steps = plan, 0
        self._steps += 1
        self._begun = None
        self.why = _NOW_AND_THEN
        if self._steps <= _FIRST or self._steps % _EVERY == 0:
            self._meter.begin()
            now = self._meter.now()
            self._begun = None if now is None else (now, self._has_now())
            self.why = f"nothing counts memory on {self._device}"

    def peak_bytes(self) -> int | None:
        peak = None if self._begun is None else self._meter.peak()
        if peak is None or self._begun is None:
            return None
        before, had = self._begun
        return max(0, peak - before) + had
