"""A planner for modules of which nothing can be predicted: the whole batch, and half of it where that does not fit."""

from __future__ import annotations

import math

from anygpu.pytorch.records import Precision, Room, StepPlan


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
        #: The fewest rows at once that did not fit.
        self._too_many: int | None = None

    def next(self, rows: int) -> StepPlan:
        most = rows if self._most is None else min(rows, self._most)
        reason = self._why
        if self._whole and most == rows:
            reason += f"; the batch is not cut: {self._whole}"
        return StepPlan(precision=self._precision, micro_batch=most, checkpoint=self._checkpoint, reason=reason)

    def ran(self, plan: StepPlan, rows: int, seconds: float, peak_bytes: int | None) -> None:
        """There is nothing to learn from what fits."""

    def room(self, rows: int) -> Room:
        """Nothing is predicted: from the rows of a micro-batch on, more are tried while memory is left."""
        most = rows if self._too_many is None else min(rows, self._too_many - 1)
        begin = rows if self._most is None else max(2, self._most)
        return Room(rows=min(begin, most), most_rows=most, checkpoint=self._checkpoint, outputs=rows)

    def failed(self, plan: StepPlan, rows: int) -> StepPlan | None:
        self._too_many = min(plan.micro_batch, self._too_many or plan.micro_batch)
        if plan.micro_batch > 1 and not self._whole:
            self._most = math.ceil(plan.micro_batch / 2)
            self._why = f"{plan.micro_batch} rows at once did not fit"
        elif self._layers and not self._fixed and plan.checkpoint != self._layers:
            self._checkpoint = self._layers
            self._why = f"{plan.micro_batch} rows at once did not fit with every activation kept"
        else:
            return None
        return self.next(rows)
