"""How a step is run: what fits is predicted, what is fastest of that is measured on real steps, and both are kept.

Every way that is tried is a right step in itself, so trying costs no training. The clock, the memory and the module
stay outside: a planner is told what steps took, and says how to run the next one.

`FormPlanner` decides, in three parts: what the step is told, what fits, what is fastest. After it come the records that
are kept across runs, and `planner_for`, which puts a planner together.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import Protocol

import msgspec
import torch

from anygpu.base.cache_folder import decoded
from anygpu.base.disturbance import DisturbanceWatch, Reading
from anygpu.base.units import readable_bytes
from anygpu.engines.torch.engine import meter_for
from anygpu.pytorch.batches import tensors_of
from anygpu.pytorch.checkpointing import candidates, select
from anygpu.pytorch.footprint import CannotPredict, predict, predict_outputs
from anygpu.pytorch.forms import PlanningWork, StepPlanner, halving_for
from anygpu.pytorch.step_plans import (
    MOST_TRIALS,
    RUNS,
    SLOW,
    SLOW_CHECKPOINTED,
    Drift,
    Fitting,
    Footprint,
    PlanFit,
    Room,
    StepPlan,
    StepPrecision,
    StepWay,
    balanced,
    cost_of_each,
    fastest,
    next_of,
    next_on,
    read_step,
    sentence,
    took,
    write_step,
)
from anygpu.pytorch.undoing import without_gradients

#: Another precision changes what is computed, so it has to gain this much.
_WORTH_PRECISION = 0.9
#: Bounds of what predictions are multiplied by, and how many steps it is taken from.
_LEAST, _MOST, _RECENT = 0.8, 8.0, 5
#: Bytes by which a measured peak may be off: a host knows what is resident, and not what is allocated.
_NOISE = 16 << 20
#: Steps of a search that do not count because something else had the processors; after so many, that is usual.
_MOST_PASSED_OVER = 20
#: Layers are checkpointed on trial if that is predicted to take less than this, of the present time.
_SURPRISE = 1.15
#: A budget that changed by less leaves what was measured under the other one valid.
_LESS, _MORE = 0.95, 1.25


class BusyWatch(Protocol):
    """As `anygpu.base.disturbance.DisturbanceWatch`."""

    def begin(self, now: float) -> Reading: ...

    def end(self, begun: Reading, now: float) -> bool: ...


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """The record of a step that is kept across runs."""

    rows: int
    budget: int
    precision: StepPrecision
    micro_batch: int
    checkpoint: tuple[str, ...] = ()
    #: The factor of predictions.
    correction: float
    predicted_bytes: int | None
    seconds_per_row: float


class FormPlanner:
    """Plans the steps of one module, for batches of one form.

    `precisions` are those to choose from, the first the one to prefer. `whole` says why batches may not be cut, and is
    empty if they may. `micro_batch` and `checkpoint` are the user's, if the user has named some. `keep` is called with
    what was found out, whenever that has changed. `watch` says which steps something else has disturbed: while ways
    are compared, those do not count.
    """

    def __init__(
        self,
        fitting: Fitting,
        rows: int,
        *,
        precisions: Sequence[StepPrecision] = ("float32",),
        whole: str = "",
        micro_batch: int | None = None,
        checkpoint: tuple[str, ...] | None = None,
        kept: Kept | None = None,
        keep: Callable[[Kept], None] = lambda kept: None,
        watch: BusyWatch | None = None,
    ) -> None:
        self._fitting = fitting
        self._rows = rows
        self._precisions = tuple(precisions)
        self._whole = whole
        self._micro_batch = micro_batch
        self._checkpoint = checkpoint
        self._keep = keep
        self._watch = watch
        self._begun: Reading | None = None
        self._seconds: dict[StepWay, list[float]] = {}
        self._failed: set[StepWay] = set()
        self._ratios: deque[float] = deque(maxlen=_RECENT)
        self._exploring: Generator[StepWay, None, StepWay] | None = None
        #: Steps of the present search, those of it that did not count, and what has been seen since it ended.
        self._trials = self._passed_over = 0
        self._drift = Drift()
        #: Whether a step has run.
        self._is_warm = False
        #: Whether nothing more is to be found out.
        self._is_kept = False
        self._reason = ""
        if kept is not None and self._holds(kept):
            fitting.correction = kept.correction
            self._way = StepWay(kept.precision, kept.micro_batch, kept.checkpoint)
            self._predicted = kept.predicted_bytes
            self._is_kept = True
            self._reason = "it was the fastest that fitted in an earlier run" + self._not_cut()
            self._drift.settled(0, kept.seconds_per_row)
        else:
            if kept is not None:
                fitting.correction = kept.correction
            self._way = StepWay(self._precisions[0], rows)
            self._predicted = None
            self._begin()

    @property
    def settled(self) -> bool:
        """Whether nothing is tried any more."""
        return self._exploring is None

    def next(self, rows: int) -> StepPlan:
        """The plan for a batch of that many rows, which may be fewer than usual, as at the end of an epoch.

        Micro-batches are balanced: as many as the way needs, of about equal size.
        """
        if self._watch is not None and self._exploring is not None:
            self._begun = self._watch.begin(time.perf_counter())
        micro_batch = min(self._way.micro_batch, rows)
        if self._whole and self._micro_batch is None:
            micro_batch = rows
        elif micro_batch < rows:
            micro_batch = balanced(rows, micro_batch)
        return StepPlan(
            precision=self._way.precision,
            micro_batch=micro_batch,
            checkpoint=self._way.checkpoint,
            predicted_bytes=self._predicted,
            reason=self._reason,
        )

    def ran(self, plan: StepPlan, rows: int, seconds: float, peak_bytes: int | None) -> None:
        """Takes in that a step has run: its seconds and its measured peak, `None` if nobody measured.

        A peak above the budget begins a new search. Steps of other batch sizes, and disturbed ones, do not count for
        times. A settled planner searches again if steps have become slower for good.
        """
        way = StepWay(plan.precision, plan.micro_batch, plan.checkpoint)
        if peak_bytes is not None and self._correct(way, peak_bytes):
            self._did_not_fit(way)
            self._begin()
            return
        if rows != self._rows or way != self._way:
            return
        if self._exploring is None:
            if self._is_kept and self._drift.seen(seconds / rows):
                self._seconds = {}
                self._begin()
            return
        if self._was_disturbed() and self._passed_over < _MOST_PASSED_OVER:
            self._passed_over += 1
            return
        self._trials += 1
        self._seconds.setdefault(way, []).append(seconds / rows)
        self._advance()

    def failed(self, plan: StepPlan, rows: int) -> StepPlan | None:
        """The next plan after one that ran out of memory; `None` when nothing smaller is left.

        The correction of predictions is raised, so that what was predicted to fit by as much is not tried again.
        """
        way = StepWay(plan.precision, plan.micro_batch, plan.checkpoint)
        self._did_not_fit(way)
        peak = self._fitting.peak(way)
        fixed = self._fitting.footprint(way).fixed_bytes
        if peak < self._fitting.budget:
            # It took more than it was allowed to, whatever was predicted.
            through = max(1, peak - fixed)
            self._fitting.correction *= min(2.0, 1.1 * max(1.0, (self._fitting.budget - fixed) / through))
        self._fitting.correction = min(self._fitting.correction, _MOST)
        self._begin()
        smaller = self.next(rows)
        if StepWay(smaller.precision, smaller.micro_batch, smaller.checkpoint) in self._failed:
            return self._half(way, rows)
        return smaller

    def room(self, rows: int) -> Room:
        """The most that fits at once by prediction: with layers checkpointed, unless the user has named some."""
        fitting = self._fitting
        precision: StepPrecision = "float32"
        if self._checkpoint is not None:
            fit = fitting.largest(rows, precision, self._checkpoint)
        else:
            fit = fitting.checkpointed(rows, precision)
            if fit is None:
                fit = fitting.largest(rows, precision, fitting.smallest(precision).checkpoint)
        fixed = fitting.footprint(StepWay(precision, 1)).fixed_bytes
        if fit is None:
            return Room(rows=0, most_rows=0, outputs=fitting.most_outputs(rows, 0, fixed))
        way = fit.way
        outputs = fitting.most_outputs(rows, way.micro_batch, fixed)
        return Room(rows=way.micro_batch, most_rows=way.micro_batch, checkpoint=way.checkpoint, outputs=outputs)

    def _was_disturbed(self) -> bool:
        """Whether something else had the processors during the step that `next` has begun."""
        begun, self._begun = self._begun, None
        return self._watch is not None and begun is not None and self._watch.end(begun, time.perf_counter())

    def _did_not_fit(self, way: StepWay) -> None:
        """Never takes this way again in this process."""
        self._failed.add(way)
        self._seconds[way] = [math.inf]

    # -- what fits

    def _begin(self) -> None:
        """Take the way that is predicted to be the fastest of those that fit, and try others from there."""
        fit = self._best_fit(self._precisions[0])
        self._take(fit)
        self._exploring = self._explore(fit)
        self._is_kept = False
        self._advance()

    def _best_fit(self, precision: StepPrecision) -> PlanFit:
        """The fastest way of this precision that fits into the memory, within what the user has fixed."""
        fitting, rows = self._fitting, self._rows
        if self._micro_batch is not None or self._whole:
            size = rows if self._micro_batch is None else min(self._micro_batch, rows)
            fit = self._at(size, precision)
        elif self._checkpoint is not None:
            fit = fitting.largest(rows, precision, self._checkpoint)
        else:
            fit = fitting.largest(rows, precision)
            if fit is None:
                # Not even one row fits as it is.
                fit = fitting.checkpointed(1, precision)
        if fit is not None:
            size = fit.way.micro_batch
            if size < rows and self._micro_batch is None:
                fit = fit._replace(way=fit.way._replace(micro_batch=balanced(rows, size)))
            if fit.way not in self._failed:
                return fit
        return self._least(precision)

    def _at(self, size: int, precision: StepPrecision) -> PlanFit | None:
        """The fit for so many rows at once; `None` if nothing fits.

        With the user's checkpoints, or with as few as it takes.
        """
        if self._checkpoint is not None:
            way = StepWay(precision, size, self._checkpoint)
            return PlanFit(way, self._fitting.peak(way))
        return self._fitting.checkpointed(size, precision)

    def _least(self, precision: StepPrecision) -> PlanFit:
        """The smallest way there is, for the case that nothing fits by prediction.

        It is run all the same: predictions may be wrong.
        """
        way = self._fitting.smallest(precision)
        if self._micro_batch is not None or self._whole:
            way = way._replace(micro_batch=self._rows if self._micro_batch is None else self._micro_batch)
        if self._checkpoint is not None:
            way = way._replace(checkpoint=self._checkpoint)
        return PlanFit(way, self._fitting.peak(way))

    def _half(self, way: StepWay, rows: int) -> StepPlan | None:
        """The plan after one that failed: half the rows at once; then every layer checkpointed."""
        size = way.micro_batch
        while size > 1 and self._micro_batch is None and not self._whole:
            size = math.ceil(size / 2)
            fit = self._fit_of(way._replace(micro_batch=size))
            if fit.way not in self._failed:
                break
        else:
            fit = self._least(way.precision)
            if fit.way in self._failed:
                return None
        self._take(fit)
        self._exploring = None
        return self.next(rows)

    def _correct(self, way: StepWay, peak_bytes: int) -> bool:
        """Compares a prediction with the measured peak, and returns whether the step was over the budget.

        The correction is the highest ratio of the last steps, within bounds. The first step and steps of a few rows say
        little, and count only if they are over the budget.
        """
        found = self._fitting.footprint(way)
        through = found.peak_bytes - found.fixed_bytes
        if through <= 0:
            return False
        if not self._is_warm and peak_bytes <= self._fitting.budget + _NOISE:
            # The first step also has libraries load what they keep for good.
            self._is_warm = True
            return False
        beyond = peak_bytes - found.peak_bytes
        off = 0 if abs(beyond) <= _NOISE else beyond
        # A step of a few rows says nothing of larger ones: what it is off by is noise, and many times what it needs.
        if not off or through >= _NOISE:
            self._ratios.append(min(max(1.0 + off / through, _LEAST), _MOST))
            highest = max(self._ratios)
            if highest > self._fitting.correction or len(self._ratios) == _RECENT:
                self._fitting.correction = highest
        return peak_bytes > self._fitting.budget + _NOISE and way not in self._failed and way == self._way

    # -- what is fastest

    def _explore(self, fit: PlanFit) -> Generator[StepWay, None, StepWay]:
        """A generator of the ways to measure; it yields the way of the next step, and returns the best in the end.

        Precisions come first, then smaller parts of the batch, then larger ones with layers checkpointed, then sizes
        between the best and its neighbours. `MOST_TRIALS` bounds all of it.
        """
        best = fit.way
        if len(self._precisions) > 1:
            yield from self._measure(best)
        for precision in self._precisions[1:]:
            other = self._best_fit(precision).way
            yield from self._measure(other)
            if self._took(other) < _WORTH_PRECISION * self._took(best):
                best = other
        if self._whole or self._micro_batch is not None or best.micro_batch >= self._rows:
            yield from self._measure(best)
            return best
        smaller = [best, *self._smaller(best)]
        yield from self._walk(smaller[:1])
        for _ in range(_RECENT):
            # Until it is known how far predictions are off, where somebody measures that.
            if not 0 < len(self._ratios) < _RECENT:
                break
            yield best
        # More rows at once may fit than were thought to, now that steps were measured.
        first = best
        while (larger := self._best_fit(best.precision).way).micro_batch > first.micro_batch:
            first = larger
            smaller.insert(0, first)
            yield from self._walk(smaller[:1])
        yield from self._walk(smaller)
        larger_ones = self._checkpointed(first, smaller) if self._checkpoint is None else []
        yield from self._walk(larger_ones, SLOW_CHECKPOINTED)
        ladder = [*reversed(larger_ones), *smaller]
        between = self._beside(fastest(ladder, self._seconds), ladder)
        yield from self._walk(between)
        # Where it makes no difference, as many rows at once as possible, and nothing computed twice.
        ways = [*smaller, *between, *larger_ones]
        while (way := next_of(ways, self._seconds)) is not None and self._trials < MOST_TRIALS:
            yield way
        return fastest(ways, self._seconds)

    def _smaller(self, way: StepWay) -> list[StepWay]:
        """A half of the batch, a quarter, and so on to single rows: what is below its size."""
        halves = [math.ceil(self._rows / 2**power) for power in range(1, self._rows.bit_length() + 1)]
        return [way._replace(micro_batch=size) for size in dict.fromkeys(halves) if size < way.micro_batch]

    def _checkpointed(self, way: StepWay, measured: list[StepWay]) -> list[StepWay]:
        """More rows at once, with as few layers checkpointed as that takes, where that fits and may be faster."""
        count = math.ceil(self._rows / way.micro_batch)
        now = self._took(way) * self._rows
        each_costs = cost_of_each([(math.ceil(self._rows / one.micro_batch), self._took(one)) for one in measured])
        # Caches may make up for some of it. But nothing is risked for that where nobody measures how much fits.
        most = now * (_SURPRISE if self._ratios else 1.0)
        ways: list[StepWay] = []
        # Halves as well, as long as they fit; then between the least that fits and the most that does not.
        fits, too_few = count, 0
        while fits - too_few > 1:
            fewer = 2 ** ((fits - 1).bit_length() - 1) if too_few == 0 else (fits + too_few) // 2
            fit = self._fitting.checkpointed(math.ceil(self._rows / fewer), way.precision)
            if fit is None:
                too_few = fewer
                continue
            fits = fewer
            # A forward pass is a third of a step.
            predicted = now - (count - fewer) * each_costs * self._rows + fit.repeated * now / 3
            if predicted < most:
                ways.append(fit.way)
        return [each for each in ways if each not in self._failed]

    def _beside(self, way: StepWay, ladder: list[StepWay]) -> list[StepWay]:
        """Sizes between that of the fastest way and its neighbours on the ladder, the largest first."""
        place = ladder.index(way)
        count = math.ceil(self._rows / way.micro_batch)
        found: list[StepWay] = []
        for other in (*ladder[max(0, place - 1) : place], *ladder[place + 1 : place + 2]):
            middle = (count + math.ceil(self._rows / other.micro_batch)) // 2
            fit = self._at(math.ceil(self._rows / max(1, middle)), way.precision)
            if fit is not None:
                found.append(fit.way._replace(micro_batch=balanced(self._rows, fit.way.micro_batch)))
        return [each for each in dict.fromkeys(found) if each not in ladder and each not in self._failed]

    def _walk(self, ladder: list[StepWay], slow: float = SLOW) -> Generator[StepWay, None, None]:
        """Yields ways of a ladder until each has been measured or is too slow beside its neighbours."""
        while (way := next_on(ladder, self._seconds, slow)) is not None and self._trials < MOST_TRIALS:
            yield way

    def _measure(self, way: StepWay) -> Generator[StepWay, None, None]:
        """Yields a way until it was measured `RUNS` times, or has failed."""
        while way not in self._failed and len(self._seconds.get(way, ())) < RUNS:
            yield way

    def _took(self, way: StepWay) -> float:
        """Seconds a row; without end for what did not fit."""
        return math.inf if way in self._failed else took(way, self._seconds)

    def _advance(self) -> None:
        """Goes on to the next way of the search; at its end the best is taken and kept."""
        if self._exploring is None:
            return
        try:
            self._take(self._fit_of(next(self._exploring)))
        except StopIteration as end:
            self._exploring = None
            self._take(self._fit_of(end.value))
            tried = sum(math.isfinite(min(each)) for each in self._seconds.values())
            if tried > 1:
                self._reason += f"; the fastest of {tried} ways that were measured"
            if end.value not in self._failed:
                self._keep_it()

    def _fit_of(self, way: StepWay) -> PlanFit:
        return PlanFit(way, self._fitting.peak(way))

    def _take(self, fit: PlanFit) -> None:
        """Takes a way for the next steps, with the sentence that says why."""
        self._way, self._predicted = fit.way, fit.peak_bytes
        budget = self._fitting.budget
        whole = self._fitting.known_peak(StepWay(fit.way.precision, self._rows))
        if fit.peak_bytes > budget:
            self._reason = (
                f"nothing smaller is left: {readable_bytes(fit.peak_bytes)} are predicted, of {readable_bytes(budget)}"
            )
        else:
            self._reason = sentence(fit, self._rows, whole, budget)
        self._reason += self._not_cut()

    def _not_cut(self) -> str:
        """The end of a reason that says why the batch is not cut."""
        return f"; the batch is not cut: {self._whole}" if self._whole and self._micro_batch is None else ""

    def _keep_it(self) -> None:
        """Settle on the current way, and store it for later processes."""
        way = self._way
        self._is_kept = True
        self._drift.settled(self._trials)
        self._trials = self._passed_over = 0
        self._keep(
            Kept(
                rows=self._rows,
                budget=self._fitting.budget,
                precision=way.precision,
                micro_batch=way.micro_batch,
                checkpoint=way.checkpoint,
                correction=self._fitting.correction,
                predicted_bytes=self._predicted,
                seconds_per_row=self._took(way),
            )
        )

    def _holds(self, kept: Kept) -> bool:
        """Whether a record of an earlier run is still right: the same rows, an allowed precision, a similar budget."""
        budget = self._fitting.budget
        return (
            kept.rows == self._rows
            and kept.precision in self._precisions
            and _LESS * kept.budget <= budget
            and (budget <= _MORE * kept.budget or kept.micro_batch >= kept.rows)
            and (not self._whole or kept.micro_batch >= kept.rows)
        )


# -- what was found out about steps, kept across runs, without any name of the user's


class _Kept(msgspec.Struct, frozen=True, kw_only=True):
    """As it is written. Layers are numbers, because their names are the user's."""

    kept: Kept
    layers: tuple[int, ...]


def step_key(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: Sequence[torch.Tensor], *options: object
) -> str:
    """A hash of what a step's memory and time depend on: structure, shapes, types, device, library, and the options."""
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    parts: list[object] = [torch.__version__, name, torch.get_num_threads(), type(optimizer).__qualname__, *options]
    for module in model.modules():
        is_leaf = next(module.children(), None) is None
        parts.append((type(module).__qualname__, module.training, module.extra_repr() if is_leaf else ""))
    parts += [(tuple(each.shape), str(each.dtype), each.requires_grad) for each in model.parameters()]
    parts += [(tuple(each.shape), str(each.dtype)) for each in batch]
    for group in optimizer.param_groups:
        parts.append(sorted((name, value) for name, value in group.items() if isinstance(value, bool | None)))
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()


def recall(key: str, layers: Sequence[str]) -> Kept | None:
    """Return the record of a step; `layers` are those that may be checkpointed, in their order."""
    found = decoded(msgspec.json.decode, read_step(key), _Kept)
    if found is None or any(not 0 <= number < len(layers) for number in found.layers):
        return None
    return msgspec.structs.replace(found.kept, checkpoint=tuple(layers[number] for number in found.layers))


def remember(key: str, kept: Kept, layers: Sequence[str]) -> None:
    """Writes the record of a step for later processes.

    Nothing is written if it checkpoints layers that are not among `layers`: the user has named those.
    """
    numbers = {name: number for number, name in enumerate(layers)}
    if not set(kept.checkpoint) <= set(numbers):
        return  # the user has named others
    record = _Kept(
        kept=msgspec.structs.replace(kept, checkpoint=()), layers=tuple(numbers[name] for name in kept.checkpoint)
    )
    write_step(key, msgspec.json.encode(record))


# -- the planner of a step: predictions on fake tensors, the budget of its device, and what earlier runs found out


#: The budget where nobody knows how much memory there is: the first lack of it tells.
_UNKNOWN = 1 << 50


def planner_for(work: PlanningWork) -> StepPlanner:
    """A planner for batches of one form: by predictions, or by halving for a module that cannot run without data.

    Predictions run the module on fake tensors. What an earlier run found out under the same key is used again.
    """
    layers = candidates(work.model)
    options = (work.rows, work.precisions, bool(work.whole), work.micro_batch, work.checkpoint)
    key = step_key(work.model, work.optimizer, list(tensors_of(work.batch)), *options)

    def predicted(rows: int, checkpoint: tuple[str, ...], precision: StepPrecision) -> Footprint:
        # A loss with parameters of its own, or of the module, is not copied: fakes must not stay in their gradients.
        with without_gradients(work.parameters):
            return predict(
                work.model,
                work.loss_of,
                work.batch,
                rows=rows,
                checkpoint=checkpoint,
                precision=precision,
                optimizer=work.optimizer,
                accumulate=rows < work.rows,
            )

    def outputs(rows: int) -> int:
        return predict_outputs(work.model, work.outputs_of, work.batch, rows)

    def keep(kept: Kept) -> None:
        remember(key, kept, layers)

    try:
        return FormPlanner(
            Fitting(predicted, select, budget_of(work), predict_outputs=outputs),
            work.rows,
            precisions=work.precisions,
            whole=work.whole,
            micro_batch=work.micro_batch,
            checkpoint=work.checkpoint,
            kept=recall(key, layers),
            keep=keep,
            watch=DisturbanceWatch(),
        )
    except CannotPredict as error:
        return halving_for(work, error.reason)


def budget_of(work: PlanningWork) -> int:
    """Bytes for the whole of a training step, parameters included: the user's, or what there is and what it has."""
    if work.memory is not None:
        return work.memory
    free = meter_for(work.device).free()
    return _UNKNOWN if free is None else free + bytes_of(work.model, work.optimizer)


def bytes_of(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Bytes of parameters, buffers, gradients and the optimiser's state, each storage once."""
    found: dict[int, int] = {}
    for tensor in (*model.parameters(), *model.buffers()):
        _count(tensor, found)
        if tensor.grad is not None:
            _count(tensor.grad, found)
    for state in optimizer.state.values():
        for value in state.values():
            if isinstance(value, torch.Tensor):
                _count(value, found)
    return sum(found.values())


def _count(tensor: torch.Tensor, found: dict[int, int]) -> None:
    """Adds the bytes of a tensor's storage; one that several tensors share is counted once."""
    storage = tensor.untyped_storage()
    found[storage.data_ptr()] = storage.nbytes()
