"""Batches of one form: how they are planned, whether they may be cut, and how the losses of their parts combine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from anygpu.engines.torch.out_of_memory import is_out_of_memory
from anygpu.errors import InvalidOption, OutOfMemory
from anygpu.pytorch.batches import all_have_rows, bounds, count_rows, joined, leaves, moved, part_of
from anygpu.pytorch.checkpointing import candidates
from anygpu.pytorch.footprint import CannotPredict
from anygpu.pytorch.halving import Halving
from anygpu.pytorch.losses import Combining, found_by_values, known
from anygpu.pytorch.records import Precision, StepPlan
from anygpu.pytorch.rows import ROWS, Shown, look_at_rows, same, undisturbed
from anygpu.pytorch.undoing import forget, release


class StepPlanner(Protocol):
    """Says how to run the next step, and is told how steps went."""

    def next(self, rows: int) -> StepPlan: ...

    def ran(self, plan: StepPlan, rows: int, seconds: float, peak_bytes: int | None) -> None: ...

    def failed(self, plan: StepPlan, rows: int) -> StepPlan | None:
        """How to try again after there was not enough memory; `None` when nothing smaller is left."""
        ...


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a planner is made from: a module with its optimiser, and a batch that it is to be trained with."""

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    #: The loss of a batch or of a part of one, by that module or a copy of it, ready for its backward pass.
    loss_of: Callable[[torch.nn.Module, Any], torch.Tensor]
    #: Every parameter that a backward pass may reach: the module's, the optimiser's, and the loss's.
    parameters: Sequence[torch.nn.Parameter]
    #: On the module's device.
    batch: Any
    rows: int
    device: torch.device
    #: Those to choose from, the one to prefer first.
    precisions: tuple[Precision, ...]
    #: Why the batch may not be cut; empty if it may, or if nobody has looked yet.
    whole: str
    #: What the user has set; `None` where it is left to the planner.
    micro_batch: int | None
    checkpoint: tuple[str, ...] | None
    memory: int | None


MakePlanner = Callable[[Work], StepPlanner]


def halving_for(work: Work, why: str = "nothing is predicted") -> StepPlanner:
    """The planner that needs no predictions."""
    return Halving(
        work.precisions[0],
        whole=work.whole,
        micro_batch=work.micro_batch,
        checkpoint=work.checkpoint,
        layers=candidates(work.model),
        why=f"its memory cannot be predicted, so a step that does not fit is halved ({why})",
    )


class Calling:
    """What is called with what: `model` with a batch's inputs, `loss` with outputs and targets.

    ========================  =====================  ==========================
    batch                     outputs                loss
    ========================  =====================  ==========================
    a pair, inputs a tensor   `model(inputs)`        `loss(outputs, targets)`
    a pair, inputs a tuple    `model(*inputs)`       `loss(outputs, targets)`
    a pair, inputs a mapping  `model(**inputs)`      `loss(outputs, targets)`
    a mapping                 `model(**batch)`       `loss(outputs, batch)`
    anything, with forward=   `forward(model, ...)`  `loss(outputs, batch)`
    ========================  =====================  ==========================
    """

    def __init__(
        self,
        model: torch.nn.Module,
        loss: Callable[[Any, Any], torch.Tensor],
        forward: Callable[[Any, Any], Any] | None = None,
    ) -> None:
        self.model = model
        self.loss = loss
        self._forward = forward

    def forward(self, batch: Any) -> Any:
        if self._forward is not None:
            return self._forward(self.model, batch)
        if isinstance(batch, Mapping):
            return self.model(**batch)
        inputs = batch[0]
        if isinstance(inputs, Mapping):
            return self.model(**inputs)
        if isinstance(inputs, tuple | list) and not hasattr(inputs, "_fields"):
            return self.model(*inputs)
        return self.model(inputs)

    def loss_by(self, model: torch.nn.Module, batch: Any) -> torch.Tensor:
        """The loss of that module instead, which may be a copy on fake tensors."""
        other = Calling(model, self.loss, self._forward)
        return other.loss(other.forward(batch), other.targets(batch))

    def targets(self, batch: Any) -> Any:
        return batch if self._forward is not None or isinstance(batch, Mapping) else batch[1]

    def check(self, batch: Any) -> None:
        if self._forward is not None or isinstance(batch, Mapping):
            return
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            raise InvalidOption(
                f"a batch of a Step is a pair of inputs and targets, or a mapping, and this is {_described(batch)}. "
                "For any other, pass forward=, a function of the model and the batch that returns the outputs."
            )


def _described(batch: Any) -> str:
    if isinstance(batch, tuple | list):
        return f"a {type(batch).__name__} of {len(batch)}"
    return f"a {type(batch).__name__}"


class Form:
    """What is known of batches of one form."""

    def __init__(self, calling: Calling, work: Work, make_planner: MakePlanner) -> None:
        self._calling = calling
        self._work = work
        self._make_planner = make_planner
        self.planner = make_planner(work)
        self._looked = False
        #: Why a batch may not be cut; empty if it may, or if nobody has looked.
        self.whole = ""
        self.combining = Combining("unknown", "nobody has looked")

    @property
    def rows(self) -> int:
        return self._work.rows

    def next(self, batch: Any, rows: int) -> StepPlan:
        return self._allowed(self._next(rows), batch, rows)

    def ran(self, plan: StepPlan, rows: int, seconds: float, peak_bytes: int | None) -> None:
        try:
            self.planner.ran(plan, rows, seconds, peak_bytes)
        except CannotPredict as error:
            self._halve(error)

    def failed(self, plan: StepPlan, batch: Any, rows: int) -> StepPlan | None:
        try:
            smaller = self.planner.failed(plan, rows)
        except CannotPredict as error:
            smaller = self._halve(error).failed(plan, rows)
        return None if smaller is None else self._allowed(smaller, batch, rows)

    def _next(self, rows: int) -> StepPlan:
        try:
            return self.planner.next(rows)
        except CannotPredict as error:
            return self._halve(error).next(rows)

    def _halve(self, error: CannotPredict) -> StepPlanner:
        """A planner asks for predictions when it needs them, and some cannot be had."""
        self.planner = halving_for(self._work, error.reason)
        return self.planner

    def _allowed(self, plan: StepPlan, batch: Any, rows: int) -> StepPlan:
        """The plan, if the batch may be cut as it says; whether it may is looked at when it matters first."""
        if plan.micro_batch >= rows or self._looked:
            return plan
        self.whole, self.combining = self._look(batch, rows)
        self._looked = True
        if self.whole:
            self._work = replace(self._work, whole=self.whole)
            self.planner = self._make_planner(self._work)
            plan = self._next(rows)
        return plan

    def _look(self, batch: Any, rows: int) -> tuple[str, Combining]:
        """Where there is no memory for some rows, fewer are looked at; where there is none for two, a later step looks.

        That memory has run out says nothing of whether a batch may be cut, so nothing is concluded from it.
        """
        for most in (ROWS, 2):
            try:
                return self._look_at(batch, rows, most)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                forget(error)
            # Here the error is gone, and with it what its frames have kept alive.
            release(self._work.device)
        device = self._work.device
        raise OutOfMemory(
            str(device),
            message=f"{device} has not enough memory for two rows of the batch, even without gradients, so it is not "
            "known whether the batch may be cut. Nothing was changed. Free memory and give the batch again, or use "
            "smaller inputs or a smaller model.",
        )

    def _look_at(self, batch: Any, rows: int, most: int) -> tuple[str, Combining]:
        calling, work = self._calling, self._work
        shown = look_at_rows(work.model, calling.forward, batch, rows, work.device, most=most)
        try:
            combining = self._combining(shown)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            combining = Combining("unknown", f"the loss of a few rows cannot be computed ({type(error).__name__})")
        if shown.whole:
            return shown.whole, combining
        if combining.kind == "unknown" and not shown.have_rows:
            return f"the module's outputs have no rows to compute the loss from, and {combining.reason}", combining
        if shown.have_rows and not self._outputs_are_enough(shown):
            return "the loss depends on more than the module's outputs and the targets", combining
        return "", combining

    def _combining(self, shown: Shown) -> Combining:
        calling, work = self._calling, self._work
        if shown.batch is None or shown.outputs is None:
            return Combining("unknown", shown.whole)
        few, rows = shown.batch, _rows_of(shown)
        targets = calling.targets(few)
        if shown.have_rows or all_have_rows(shown.outputs, rows):
            found = known(calling.loss, shown.outputs, targets)
            if found is not None:
                return found
            # On the host, also for a card: it does not forgive an index that it lacks, and some are tried.
            outputs, targets = moved((shown.outputs, targets), torch.device("cpu"))[0]
            with undisturbed(work.model, work.device, steady=False):
                return found_by_values(
                    lambda tree: calling.loss(tree[0], tree[1]), (outputs, targets), rows, changed=targets
                )
        if work.device.type != "cpu":
            return Combining("unknown", "how its loss combines is only looked at on the CPU")
        with undisturbed(work.model, work.device) as buffers:

            def loss_of(part: Any) -> torch.Tensor:
                buffers.restore()
                return calling.loss(calling.forward(part), calling.targets(part))

            return found_by_values(loss_of, few, rows, changed=few)

    def _outputs_are_enough(self, shown: Shown) -> bool:
        """Whether the loss is the same when it is computed after parts as after the whole: it sees nothing else."""
        calling, work, few = self._calling, self._work, shown.batch
        rows = _rows_of(shown)
        with undisturbed(work.model, work.device) as buffers:
            whole = calling.loss(calling.forward(few), calling.targets(few))
            parts = []
            for begin, end in bounds(rows, 1):
                buffers.restore()
                parts.append(calling.forward(part_of(few, rows, begin, end)))
            buffers.restore()
            after = calling.loss(joined(parts), calling.targets(few))
        return same(after, whole)


def _rows_of(shown: Shown) -> int:
    return count_rows(leaves(shown.batch)) or 0
