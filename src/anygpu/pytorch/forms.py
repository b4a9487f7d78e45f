"""Batches of one form: how they are planned, whether they may be cut, and how the losses of their parts combine.

`PlanningWork` is all that a planner gets to know, and `BatchForm` keeps what was found out for batches of one form. It
looks at a few rows when a plan first cuts a batch, and compares the gradients of the whole with those of parts now and
then.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import torch

from anygpu.engines.torch.engine import TorchMeter, is_out_of_memory, meter_for
from anygpu.errors import OutOfMemory
from anygpu.pytorch.accumulation import Combining, StepCalling, found_by_values, known
from anygpu.pytorch.batches import all_have_rows, bounds, count_rows, joined, leaves, moved, part_of
from anygpu.pytorch.checkpointing import candidates
from anygpu.pytorch.footprint import CannotPredict
from anygpu.pytorch.gradient_comparison import (
    BackwardHooks,
    Compared,
    Comparer,
    Comparisons,
    GradientAgreement,
    GradientsDiffer,
)
from anygpu.pytorch.rows import ROWS, Shown, look_at_rows, same, undisturbed
from anygpu.pytorch.step_plans import Halving, Room, StepPlan, StepPrecision
from anygpu.pytorch.undoing import forget, release
from anygpu.receipts.receipt import users_line

#: Bytes by which a measured peak may be off on a host.
_NOISE = 16 << 20


class StepPlanner(Protocol):
    """Says how to run the next step, and is told how steps went."""

    def next(self, rows: int) -> StepPlan: ...

    def ran(self, plan: StepPlan, rows: int, seconds: float, peak_bytes: int | None) -> None: ...

    def failed(self, plan: StepPlan, rows: int) -> StepPlan | None:
        """How to try again after there was not enough memory; `None` when nothing smaller is left."""
        ...

    def room(self, rows: int) -> Room:
        """How many rows of a batch that is cut may all the same be computed at once, to be compared with parts."""
        ...


@dataclass(frozen=True, kw_only=True)
class PlanningWork:
    """The input of a planner: a module with its optimiser, and a batch to train it with."""

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    #: The loss of a batch or of a part of one, by that module or a copy of it, ready for its backward pass.
    loss_of: Callable[[torch.nn.Module, Any], torch.Tensor]
    #: The outputs for a batch or for a part of one, by that module or a copy of it.
    outputs_of: Callable[[torch.nn.Module, Any], Any]
    #: Every parameter that a backward pass may reach: the module's, the optimiser's, and the loss's.
    parameters: Sequence[torch.nn.Parameter]
    #: On the module's device.
    batch: Any
    rows: int
    device: torch.device
    #: Those to choose from, the one to prefer first.
    precisions: tuple[StepPrecision, ...]
    #: Why the batch may not be cut; empty if it may, or if nobody has looked yet.
    whole: str
    #: The user's settings; `None` where one is left to the planner.
    micro_batch: int | None
    checkpoint: tuple[str, ...] | None
    memory: int | None


MakePlanner = Callable[[PlanningWork], StepPlanner]
_Replied = TypeVar("_Replied")


def halving_for(work: PlanningWork, why: str = "nothing is predicted") -> StepPlanner:
    """The planner that needs no predictions: a step that does not fit is halved. `why` becomes part of its reason."""
    return Halving(
        work.precisions[0],
        whole=work.whole,
        micro_batch=work.micro_batch,
        checkpoint=work.checkpoint,
        layers=candidates(work.model),
        why=f"its memory cannot be predicted, so a step that does not fit is halved ({why})",
    )


class BatchForm:
    """The plan, the comparisons and the loss of batches of one form.

    A form is a structure of tensors with their types and shapes but for the number of rows. The planner is replaced by
    one that halves as soon as a prediction cannot be had, and made anew when batches turn out not to be divisible.
    """

    def __init__(
        self, calling: StepCalling, work: PlanningWork, make_planner: MakePlanner, comparisons: Comparisons
    ) -> None:
        self._calling = calling
        self._work = work
        self._make_planner = make_planner
        self.planner = make_planner(work)
        self._looked = self._have_rows = False
        #: Why a batch may not be cut; empty if it may, or if that is not known.
        self.whole = ""
        self.combining = Combining("unknown", "its values were not looked at")
        #: What a receipt says of the comparison that allows the present step to be cut, or forbids it.
        self.note = ""
        self._comparisons = comparisons
        self._comparer = Comparer(calling.uncompiled(), work.parameters, work.device)
        self._hooks = BackwardHooks(calling.named_modules(), work.parameters)
        #: The hook for which a batch is not cut; empty if there is none.
        self._hook = ""
        #: What was compared and when, by the numbers of rows of a batch and of its parts.
        self._compared: dict[tuple[int, int], GradientAgreement] = {}
        #: The most rows at once that have fitted, with gradients and without, and that may fit where memory ran out.
        self._fitted: dict[str, int] = {}
        self._limits: dict[str, int] = {}

    @property
    def rows(self) -> int:
        return self._work.rows

    def next(self, batch: Any, rows: int) -> StepPlan:
        """The plan for a batch, and checks first that it may be cut if the plan does so; that may run the module."""
        self.note = ""
        if self._hook and not self._hooks.first():
            self._hook = ""
            self._set_whole("")
        return self._allowed(self._next(rows), batch, rows)

    def ran(self, plan: StepPlan, rows: int, seconds: float, peak_bytes: int | None) -> None:
        """Tells the planner how a step went."""
        if plan.micro_batch < rows:
            self._comparisons.ran_cut()
        self._asked(lambda planner: planner.ran(plan, rows, seconds, peak_bytes))

    def failed(self, plan: StepPlan, batch: Any, rows: int) -> StepPlan | None:
        """The next plan after one that ran out of memory; `None` when nothing smaller is left."""
        smaller = self._asked(lambda planner: planner.failed(plan, rows))
        return None if smaller is None else self._allowed(smaller, batch, rows)

    def _next(self, rows: int) -> StepPlan:
        return self._asked(lambda planner: planner.next(rows))

    def _asked(self, ask: Callable[[StepPlanner], _Replied]) -> _Replied:
        """The planner's answer; one whose predictions fail is replaced by one that needs none, and asked again."""
        try:
            return ask(self.planner)
        except CannotPredict as error:
            self.planner = halving_for(self._work, error.reason)
            return ask(self.planner)

    def _allowed(self, plan: StepPlan, batch: Any, rows: int) -> StepPlan:
        """The plan, if the batch may be cut as it says; whether it may is looked at when it matters."""
        if plan.micro_batch >= rows or self.whole:
            return plan
        why = self._why_whole(batch, rows, plan.micro_batch)
        if not why:
            self.note = self._comparisons.sentence(self._compared[rows, plan.micro_batch])
            return plan
        self._set_whole(why)
        return self._next(rows)

    def _set_whole(self, why: str) -> None:
        """Cuts no batch from now on, or cuts again if `why` is empty; the planner is made anew."""
        self.whole = why
        self._work = replace(self._work, whole=why)
        self.planner = self._make_planner(self._work)

    def _why_whole(self, batch: Any, rows: int, size: int) -> str:
        """Why the batch may not be cut into parts of `size` rows; empty if it may."""
        if not self._looked:
            why, self.combining = self._look(batch, rows)
            self._looked = True
            if why:
                return why
        self._hook = self._hooks.first()
        if self._hook:
            return f"{self._hook}, which would run for each micro-batch"
        if self._comparisons.failed:
            return self._comparisons.failed
        if (rows, size) in self._compared and not self._comparisons.is_due:
            return ""
        return self._compare(batch, rows, size)

    def loss_differs(self, reason: str) -> None:
        """The loss of a batch is not what its values had shown, so that parts are computed otherwise from now on."""
        self.combining = Combining("unknown", reason, by_values=True)
        self._compared.clear()

    # -- gradients of the whole beside those of its parts

    def _compare(self, batch: Any, rows: int, size: int) -> str:
        """Compare as many rows at once as fit with their parts, and return why a batch may not be cut, if so."""
        room = self._asked(lambda planner: planner.room(rows))
        unclear = ""

        def gradients(count: int) -> str:
            nonlocal unclear
            found = self._compare_gradients(batch, rows, count, size, room.checkpoint)
            if found.raised and self._comparisons.cut:
                # Parts did well before, so it is this batch, and its own step will raise what it has to.
                found = Compared(unclear=found.differs)
            unclear = found.unclear
            return found.differs

        def outputs(count: int) -> str:
            part = part_of(batch, rows, 0, count)
            return self._comparer.outputs(part, count, _part_size(count, size), self.combining).differs

        shown, why = self._most_that_fit("gradients", room.rows, room.most_rows, gradients)
        seen = shown
        if not why and shown < rows and room.outputs > shown:
            begin = room.outputs if room.rows == room.most_rows else max(2, shown)
            seen, why = self._most_that_fit("outputs", begin, room.outputs, outputs)
        if why:
            self._comparisons.differed(why)
            self._tell(why)
            return why
        self._compared[rows, size] = self._comparisons.agreed(_sentence(rows, size, shown, seen, unclear))
        return ""

    def _compare_gradients(self, batch: Any, rows: int, count: int, size: int, checkpoint: tuple[str, ...]) -> Compared:
        """Compares the gradients of the first `count` rows at once with those of their parts.

        Where they differ, the loss is computed on the outputs of all rows instead, which is right for any loss; if that
        agrees, it is done so from now on.
        """
        part, size = part_of(batch, rows, 0, count), _part_size(count, size)
        found = self._comparer.gradients(part, count, size, self.combining, checkpoint)
        if not found.differs or self.combining.kind == "unknown" or not self._have_rows:
            return found
        # It may be the loss, and any loss of outputs is right if it is computed on those of all rows.
        other = Combining("unknown", "its gradient is not made of those of parts", by_values=True)
        again = self._comparer.gradients(part, count, size, other, checkpoint)
        if again.differs:
            return found
        self.combining = other
        return again

    def _most_that_fit(self, what: str, begin: int, most: int, run: Callable[[int], str]) -> tuple[int, str]:
        """Run for `begin` rows, and for twice as many while memory is left; for half of them where it ran out.

        Returns for how many rows it was run, 0 if not even for two, and what it returned.
        """
        most = min(most, self._limits.get(what, most))
        count, done, why = min(max(begin, self._fitted.get(what, 0)), most), 0, ""
        meter = meter_for(self._work.device)
        while count > max(done, 1) and not why:
            grows = count < most
            if grows:
                meter.begin()
            before = meter.now() if grows else None
            try:
                why = run(count)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                forget(error)
                most = self._limits[what] = count // 2
            # Here the error is gone, and with it what its frames have kept alive.
            if count > most:
                release(self._work.device)
                count = most
                continue
            done = count
            self._fitted[what] = max(done, self._fitted.get(what, 0))
            if grows and _is_room_for_more(before, meter, self._work.device):
                count = min(2 * count, most)
        return done, why

    def _tell(self, why: str) -> None:
        """Warn that earlier steps were cut, although it now shows that they must not be."""
        if not self._comparisons.cut:
            return
        doubt = self._comparisons.not_compared()
        now = "batches are not cut from now on" if self._work.micro_batch is None else "micro_batch= is obeyed"
        warnings.warn_explicit(f"{why}; {now}. {doubt}.", GradientsDiffer, *users_line())
        self.note = doubt[0].lower() + doubt[1:]

    # -- a few rows

    def _look(self, batch: Any, rows: int) -> tuple[str, Combining]:
        """Looks at a few rows: why a batch may not be cut (empty if it may), and how losses combine.

        Where there is no memory for some rows, fewer are looked at. That memory has run out says nothing of whether a
        batch may be cut, so nothing is concluded from it: `OutOfMemory` is raised if there is none for two rows, and a
        later step looks.
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
        """Whether outputs have one row for each row of the batch, and how the losses of parts are combined."""
        calling, work = self._calling, self._work
        shown = look_at_rows(work.model, calling.forward, batch, rows, work.device, most=most)
        self._have_rows = shown.have_rows
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
        """How the losses of parts are combined, by the loss function or by trying it on a few rows."""
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
                return calling.loss_of(calling.forward(part), part)

            return found_by_values(loss_of, few, rows, changed=few)

    def _outputs_are_enough(self, shown: Shown) -> bool:
        """Whether the loss is the same when it is computed after parts as after the whole: it sees nothing else."""
        calling, work, few = self._calling, self._work, shown.batch
        rows = _rows_of(shown)
        with undisturbed(work.model, work.device) as buffers:
            whole = calling.loss_of(calling.forward(few), few)
            parts = []
            for begin, end in bounds(rows, 1):
                buffers.restore()
                parts.append(calling.forward(part_of(few, rows, begin, end)))
            buffers.restore()
            after = calling.loss_of(joined(parts), few)
        return same(after, whole)


def _part_size(count: int, size: int) -> int:
    """Rows of the parts that `count` rows at once are compared with."""
    return size if size < count else math.ceil(count / 2)


def _is_room_for_more(before: int | None, meter: TorchMeter, device: torch.device) -> bool:
    """Whether twice the rows fit beyond doubt, also where memory grows with the square of their number."""
    free, peak = meter.free(), meter.peak()
    if free is None or before is None or peak is None:
        # A card raises an error when memory runs out; a host may end the process.
        return bool(device.type != "cpu")
    return 4 * (max(0, peak - before) + _NOISE) <= free


def _sentence(rows: int, size: int, shown: int, seen: int, unclear: str) -> str:
    """A sentence about a comparison that found no difference."""
    if unclear:
        return f"nothing was shown of gradients ({unclear})"
    if shown >= rows:
        return f"the gradients of all {rows} rows at once were those of parts of {size}"
    outputs = f"the outputs of {'all' if seen >= rows else seen} rows at once were those of parts"
    if shown < 2:
        return f"gradients could not be compared, as two rows at once do not fit{'; ' + outputs if seen > 1 else ''}"
    more = f" and {outputs}" if seen > shown else ""
    return f"the gradients of {shown} of {rows} rows, as many as fit at once, were those of their parts{more}"


def _rows_of(shown: Shown) -> int:
    """The number of rows that were looked at."""
    return count_rows(leaves(shown.batch)) or 0
