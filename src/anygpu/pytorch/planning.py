"""How a step is run: what fits is predicted, what is fastest of that is measured on real steps, and both are kept.

Every way that is tried is a right step in itself, so trying costs no training. The clock, the memory and the module
stay outside: a planner is told what steps took, and says how to run the next one.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Generator, Sequence

import msgspec

from anygpu.pytorch.fitting import Fit, Fitting, Way, balanced, sentence
from anygpu.pytorch.records import Precision, StepPlan
from anygpu.units import readable_bytes

#: Steps of one way until it counts as measured. The first is left out: it allocates, and warms caches up.
RUNS = 3
#: Another precision changes what is computed, so it has to gain this much; another size of micro-batches only this.
_WORTH_PRECISION, _WORTH_SIZE = 0.9, 0.97
#: Ways with layers checkpointed that are measured.
_MOST_CHECKPOINTED = 2
#: Bounds of what predictions are multiplied by, and how many steps it is taken from.
_LEAST, _MOST, _RECENT = 0.8, 8.0, 5
#: Bytes by which a measured peak may be off: a host knows what is resident, and not what is allocated.
_NOISE = 16 << 20
#: A budget that changed by less leaves what was measured under the other one valid.
_LESS, _MORE = 0.95, 1.25


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of a step across runs."""

    rows: int
    budget: int
    precision: Precision
    micro_batch: int
    checkpoint: tuple[str, ...] = ()
    #: What predictions are multiplied by.
    correction: float
    predicted_bytes: int | None
    seconds_per_row: float


class Planner:
    """Plans the steps of one module, for batches of one form.

    `precisions` are those to choose from, the first the one to prefer. `whole` says why batches may not be cut, and is
    empty if they may. `micro_batch` and `checkpoint` are the user's, if the user has named some. `keep` is called with
    what was found out, whenever that has changed.
    """

    def __init__(
        self,
        fitting: Fitting,
        rows: int,
        *,
        precisions: Sequence[Precision] = ("float32",),
        whole: str = "",
        micro_batch: int | None = None,
        checkpoint: tuple[str, ...] | None = None,
        kept: Kept | None = None,
        keep: Callable[[Kept], None] = lambda kept: None,
    ) -> None:
        self._fitting = fitting
        self._rows = rows
        self._precisions = tuple(precisions)
        self._whole = whole
        self._micro_batch = micro_batch
        self._checkpoint = checkpoint
        self._keep = keep
        self._seconds: dict[Way, list[float]] = {}
        self._failed: set[Way] = set()
        self._ratios: deque[float] = deque(maxlen=_RECENT)
        self._exploring: Generator[Way, None, Way] | None = None
        #: Whether a step has run.
        self._is_warm = False
        #: Whether nothing more is to be found out.
        self._is_kept = False
        self._reason = ""
        if kept is not None and self._holds(kept):
            fitting.correction = kept.correction
            self._way = Way(kept.precision, kept.micro_batch, kept.checkpoint)
            self._predicted = kept.predicted_bytes
            self._is_kept = True
            self._reason = "it was the fastest that fitted in an earlier run"
        else:
            if kept is not None:
                fitting.correction = kept.correction
            self._way = Way(self._precisions[0], rows)
            self._predicted = None
            self._begin()

    @property
    def settled(self) -> bool:
        """Whether nothing is tried any more."""
        return self._exploring is None

    def next(self, rows: int) -> StepPlan:
        """How to run a batch of that many rows."""
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
        """A step has run so."""
        way = Way(plan.precision, plan.micro_batch, plan.checkpoint)
        if peak_bytes is not None and self._correct(way, peak_bytes):
            self._failed.add(way)
            self._begin()
            return
        if self._is_kept or rows != self._rows or way != self._way:
            return
        taken = self._seconds.setdefault(way, [])
        taken.append(seconds / rows)
        if len(taken) >= RUNS:
            self._advance()

    def failed(self, plan: StepPlan, rows: int) -> StepPlan | None:
        """There was not enough memory for it: how to try again, or `None` when nothing smaller is left."""
        way = Way(plan.precision, plan.micro_batch, plan.checkpoint)
        self._failed.add(way)
        peak = self._fitting.peak(way)
        fixed = self._fitting.footprint(way).fixed_bytes
        if peak < self._fitting.budget:
            # It took more than it was allowed to, whatever was predicted.
            through = max(1, peak - fixed)
            self._fitting.correction *= min(2.0, 1.1 * max(1.0, (self._fitting.budget - fixed) / through))
        self._fitting.correction = min(self._fitting.correction, _MOST)
        self._begin()
        smaller = self.next(rows)
        if Way(smaller.precision, smaller.micro_batch, smaller.checkpoint) in self._failed:
            return self._half(way, rows)
        return smaller

    # -- what fits

    def _begin(self) -> None:
        """Take the way that is predicted to be the fastest of those that fit, and try others from there."""
        fit = self._best_fit(self._precisions[0])
        self._take(fit)
        self._exploring = self._explore(fit)
        self._is_kept = False
        self._advance()

    def _best_fit(self, precision: Precision) -> Fit:
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

    def _at(self, size: int, precision: Precision) -> Fit | None:
        if self._checkpoint is not None:
            way = Way(precision, size, self._checkpoint)
            return Fit(way, self._fitting.peak(way))
        return self._fitting.checkpointed(size, precision)

    def _least(self, precision: Precision) -> Fit:
        """Nothing fits by prediction. Predictions may be wrong, so the least there is is run."""
        way = self._fitting.smallest(precision)
        if self._micro_batch is not None or self._whole:
            way = way._replace(micro_batch=self._rows if self._micro_batch is None else self._micro_batch)
        if self._checkpoint is not None:
            way = way._replace(checkpoint=self._checkpoint)
        return Fit(way, self._fitting.peak(way))

    def _half(self, way: Way, rows: int) -> StepPlan | None:
        """What failed, with half the rows at once; then with every layer checkpointed."""
        size = way.micro_batch
        while size > 1 and self._micro_batch is None and not self._whole:
            size = math.ceil(size / 2)
            smaller = way._replace(micro_batch=size)
            if smaller not in self._failed:
                self._take(Fit(smaller, self._fitting.peak(smaller)))
                self._exploring = None
                return self.next(rows)
        least = self._least(way.precision)
        if least.way in self._failed:
            return None
        self._take(least)
        self._exploring = None
        return self.next(rows)

    def _correct(self, way: Way, peak_bytes: int) -> bool:
        """Compare a prediction with what was measured. Whether the step was over the budget and has to change."""
        found = self._fitting.footprint(way)
        through = found.peak_bytes - found.fixed_bytes
        if through <= 0:
            return False
        if not self._is_warm and peak_bytes <= self._fitting.budget + _NOISE:
            # The first step also has libraries load what they keep for good.
            self._is_warm = True
            return False
        beyond = peak_bytes - found.peak_bytes
        ratio = 1.0 if abs(beyond) <= _NOISE else 1.0 + beyond / through
        self._ratios.append(min(max(ratio, _LEAST), _MOST))
        highest = max(self._ratios)
        if highest > self._fitting.correction or len(self._ratios) == _RECENT:
            self._fitting.correction = highest
        return peak_bytes > self._fitting.budget + _NOISE and way not in self._failed and way == self._way

    # -- what is fastest

    def _explore(self, fit: Fit) -> Generator[Way, None, Way]:
        """Yields ways to measure, and returns the best."""
        best = fit.way
        yield from self._measure(best)
        for precision in self._precisions[1:]:
            other = self._best_fit(precision).way
            yield from self._measure(other)
            if self._took(other) < _WORTH_PRECISION * self._took(best):
                best = other
        if self._whole or self._micro_batch is not None or best.micro_batch >= self._rows:
            return best
        # More rows at once may fit than were thought to, now that steps were measured.
        larger = self._best_fit(best.precision).way
        if larger.micro_batch > best.micro_batch:
            yield from self._measure(larger)
            best = self._faster(best, larger)
        count = math.ceil(self._rows / best.micro_batch)
        first, smaller = best, best
        while smaller.micro_batch > 1:
            count *= 2
            smaller = best._replace(micro_batch=balanced(self._rows, max(1, self._rows // count)))
            yield from self._measure(smaller)
            if self._faster(best, smaller) == best:
                break
            best = smaller
        if self._checkpoint is None:
            for way in self._checkpointed_ways(first, smaller):
                yield from self._measure(way)
                best = self._faster(best, way)
        return best

    def _checkpointed_ways(self, way: Way, smaller: Way) -> list[Way]:
        """More rows at once and layers checkpointed, where that should be faster by what sizes were seen to cost."""
        counts = [math.ceil(self._rows / each.micro_batch) for each in (way, smaller)]
        times = [self._took(each) * self._rows for each in (way, smaller)]
        # What one more micro-batch costs; with single rows nothing smaller was measured, and it may be everything.
        each_costs = (times[1] - times[0]) / (counts[1] - counts[0]) if counts[1] > counts[0] else times[0] / counts[0]
        ways: list[tuple[float, Way]] = []
        # Half as many as long as they fit, and then between the least that fits and the most that does not.
        fits, too_few = counts[0], 0
        while fits - too_few > 1:
            count = math.ceil(fits / 2) if too_few == 0 else (fits + too_few) // 2
            fit = self._fitting.checkpointed(math.ceil(self._rows / count), way.precision)
            if fit is None:
                too_few = count
                continue
            fits = count
            # A forward pass is a third of a step.
            predicted = times[0] - (counts[0] - count) * each_costs + fit.repeated * times[0] / 3
            if predicted < times[0] and fit.way not in self._failed:
                ways.append((predicted, fit.way))
        return [each for _, each in sorted(ways)[:_MOST_CHECKPOINTED]]

    def _measure(self, way: Way) -> Generator[Way, None, None]:
        while way not in self._failed and len(self._seconds.get(way, ())) < RUNS:
            yield way

    def _took(self, way: Way) -> float:
        """Seconds a row; without end for what did not fit."""
        return math.inf if way in self._failed else min(self._seconds[way][1:])

    def _faster(self, way: Way, other: Way) -> Way:
        return other if self._took(other) < _WORTH_SIZE * self._took(way) else way

    def _advance(self) -> None:
        if self._exploring is None:
            return
        try:
            self._take(self._fit_of(next(self._exploring)))
        except StopIteration as end:
            self._exploring = None
            self._take(self._fit_of(end.value))
            tried = len(self._seconds)
            if tried > 1:
                self._reason += f"; the fastest of {tried} ways that were measured"
            if end.value not in self._failed:
                self._keep_it()

    def _fit_of(self, way: Way) -> Fit:
        return Fit(way, self._fitting.peak(way))

    def _take(self, fit: Fit) -> None:
        self._way, self._predicted = fit.way, fit.peak_bytes
        budget = self._fitting.budget
        whole = self._fitting.known_peak(Way(fit.way.precision, self._rows))
        if fit.peak_bytes > budget:
            self._reason = (
                f"nothing smaller is left: {readable_bytes(fit.peak_bytes)} are predicted, of {readable_bytes(budget)}"
            )
        else:
            self._reason = sentence(fit, self._rows, whole, budget)
        if self._whole and self._micro_batch is None:
            self._reason += f"; the batch is not cut: {self._whole}"

    def _keep_it(self) -> None:
        way = self._way
        self._is_kept = True
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
        budget = self._fitting.budget
        return (
            kept.rows == self._rows
            and kept.precision in self._precisions
            and _LESS * kept.budget <= budget
            and (budget <= _MORE * kept.budget or kept.micro_batch >= kept.rows)
            and (not self._whole or kept.micro_batch >= kept.rows)
        )
