"""A planner for modules of which nothing can be predicted: the whole batch, and half of it where that does not fit."""

from __future__ import annotations

import math

from anygpu.pytorch.records import Precision, StepPlan


class Halving:
    """`layers` are those that may be checkpointed, once single rows do not fit either."""

    def __init__(
        self,
        precision: Precision = "float32",
        *,
        whole: str = "",
        micro_batch: int | None = None,
        checkpoint: tuple[str, ...] | None = None,
        layers: tuple[str, ...] = (),
        why: str = "nothing is predicted",
    ) -> None:
        self._precision = precision
        self._whole = whole
        self._micro_batch = micro_batch
        self._fixed = checkpoint is not None
        self._checkpoint = checkpoint or ()
        self._layers = layers
        self._why = why
        self._most: int | None = micro_batch

    def next(self, rows: int) -> StepPlan:
        most = rows if self._most is None else min(rows, self._most)
        reason = self._why
        if self._whole and most == rows:
            reason += f"; the batch is not cut: {self._whole}"
        return StepPlan(precision=self._precision, micro_batch=most, checkpoint=self._checkpoint, reason=reason)

    def ran(self, plan: StepPlan, rows: int, seconds: float, peak_bytes: int | None) -> None:
        """There is nothing to learn from what fits."""

    def failed(self, plan: StepPlan, rows: int) -> StepPlan | None:
        if plan.micro_batch > 1 and not self._whole:
            self._most = math.ceil(plan.micro_batch / 2)
            self._why = f"{plan.micro_batch} rows at once did not fit"
        elif self._layers and not self._fixed and plan.checkpoint != self._layers:
            self._checkpoint = self._layers
            self._why = f"{plan.micro_batch} rows at once did not fit with every activation kept"
        else:
            return None
        return self.next(rows)
