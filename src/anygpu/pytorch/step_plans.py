"""Plans of a training step: what a step takes, which plans fit into the memory, and which is tried next. Pure.

First the plain values, then `Fitting`, which compares predictions with a budget, then the search for the fastest way
from measured times, then `Halving` for modules without predictions, and the files in which plans are kept.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import re
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, Protocol, get_args

import msgspec

from anygpu.base.cache_folder import cache_folder, sealed, sweep, unsealed, write_file
from anygpu.base.own_files import read_file
from anygpu.base.units import readable_bytes
from anygpu.placement.history.history import setting

# -- what is known of a training step, as plain values: how it is run, and what it takes


StepPrecision = Literal["float32", "bfloat16", "float16"]
PRECISIONS: tuple[StepPrecision, ...] = get_args(StepPrecision)


class StepPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How a step runs."""

    precision: StepPrecision
    #: Rows of a batch that go through the module at once.
    micro_batch: int
    #: Submodules, by name, whose activations are computed again in the backward pass instead of being kept.
    checkpoint: tuple[str, ...] = ()
    #: The peak of memory that is predicted for it, parameters and optimiser included; `None` if nobody predicted it.
    predicted_bytes: int | None = None
    #: One sentence: why so.
    reason: str


class Room(msgspec.Struct, frozen=True, kw_only=True):
    """How many rows of a batch may go through a module at once, to be compared with their parts."""

    #: With gradients: how many to begin with, and the most that may fit if that does; equal where they are predicted.
    rows: int
    most_rows: int
    #: To be checkpointed for that.
    checkpoint: tuple[str, ...] = ()
    #: Without gradients, the most that may fit.
    outputs: int


class LayerCost(msgspec.Struct, frozen=True, kw_only=True):
    """The bytes that a submodule keeps for its backward pass, and the cost of computing them again."""

    #: As in `named_modules`.
    name: str
    #: Bytes that are freed for the time between its forward and its backward pass when it is checkpointed.
    freed_bytes: int
    #: Bytes that are back while its backward pass runs.
    again_bytes: int
    #: Seconds of one forward pass; an estimate from its operations until it was measured.
    seconds: float


class Footprint(msgspec.Struct, frozen=True, kw_only=True):
    """The memory of one forward and backward pass over `rows` rows, and of the optimiser's step."""

    rows: int
    #: The most that is allocated at once, `fixed_bytes` included.
    peak_bytes: int
    #: Parameters, buffers, gradients and the optimiser's state.
    fixed_bytes: int
    #: Submodules that can be checkpointed; none contains another.
    layers: tuple[LayerCost, ...] = ()
    #: Floating-point operations of the forward pass.
    flops: int = 0
    #: Operations that torch was asked for in forward and backward.
    operations: int = 0


# -- which ways to run a step fit into a budget of memory: pure, from predictions


#: The share of the budget that predictions may fill: they miss by some, and allocators round.
SHARE = 0.95
#: Predictions that are asked for to find one size; each takes as long as some hundred operations take to be looked at.
_MOST_GUESSES = 6


class StepWay(NamedTuple):
    """One way to run a step."""

    precision: StepPrecision
    micro_batch: int
    checkpoint: tuple[str, ...] = ()


class Predict(Protocol):
    """Predicts the memory of a micro-batch without running it."""

    def __call__(self, rows: int, checkpoint: tuple[str, ...], precision: StepPrecision) -> Footprint: ...


SelectLayers = Callable[[Iterable[LayerCost], int], tuple[str, ...] | None]


class PlanFit(NamedTuple):
    """A way, and the peak that is predicted for it."""

    way: StepWay
    peak_bytes: int
    #: The share of the forward pass that is computed twice.
    repeated: float = 0.0


def balanced(rows: int, most: int) -> int:
    """The size of micro-batches that are as few as `most` rows at once allow, and as equal as can be."""
    return math.ceil(rows / math.ceil(rows / most))


class Fitting:
    """Asks for predictions and compares them with a budget. Predictions are multiplied by `correction` before.

    A prediction is asked for once and remembered: it takes as long as some hundred operations. All sizes are in bytes.
    """

    def __init__(
        self,
        predict: Predict,
        select: SelectLayers,
        budget: int,
        correction: float = 1.0,
        *,
        predict_outputs: Callable[[int], int] | None = None,
    ) -> None:
        self._predict = predict
        self._predict_outputs = predict_outputs
        self._select = select
        self._known: dict[StepWay, Footprint] = {}
        self.budget = budget
        self.correction = correction

    @property
    def allowed(self) -> int:
        """The bytes that predictions may fill: a share of the budget."""
        return int(self.budget * SHARE)

    def footprint(self, way: StepWay) -> Footprint:
        """The prediction for a way; what the predictor raises is raised."""
        if way not in self._known:
            self._known[way] = self._predict(way.micro_batch, way.checkpoint, way.precision)
        return self._known[way]

    def peak(self, way: StepWay) -> int:
        """The corrected peak of a way.

        Parameters and the like are known exactly; what goes through them is corrected.
        """
        found = self.footprint(way)
        return found.fixed_bytes + int(self.correction * (found.peak_bytes - found.fixed_bytes))

    def known_peak(self, way: StepWay) -> int | None:
        """The predicted peak of a plan that was asked for before."""
        return self.peak(way) if way in self._known else None

    def fits(self, way: StepWay) -> bool:
        return self.peak(way) <= self.allowed

    def largest(self, rows: int, precision: StepPrecision, checkpoint: tuple[str, ...] = ()) -> PlanFit | None:
        """The most rows at once that fit, at most `rows`; `None` if not even one does.

        The answer may be a sixteenth too small: `_MOST_GUESSES` predictions bound the search.
        """
        fits, too_many = 0, rows + 1
        for _ in range(_MOST_GUESSES):
            guess = self._guess(fits, too_many, rows, StepWay(precision, rows, checkpoint))
            if guess is None:
                break
            if self.fits(StepWay(precision, guess, checkpoint)):
                fits = guess
            else:
                too_many = guess
        if not fits and too_many > 1 and self.fits(StepWay(precision, 1, checkpoint)):
            fits = 1
        if not fits:
            return None
        way = StepWay(precision, fits, checkpoint)
        return PlanFit(way, self.peak(way), self._repeated(way))

    def _guess(self, fits: int, too_many: int, rows: int, whole: StepWay) -> int | None:
        """The next size to ask for: all, then an eighth, then where a line through the two nearest meets the budget."""
        if too_many - fits <= max(1, fits // 16):
            return None
        if too_many > rows:
            return rows
        if fits == 0:
            return max(1, too_many // 8)
        below = self.peak(whole._replace(micro_batch=fits))
        above = self.peak(whole._replace(micro_batch=too_many))
        slope = (above - below) / (too_many - fits)
        meets = fits + int((self.allowed - below) / slope) if slope > 0 else (fits + too_many) // 2
        return min(max(meets, fits + 1), too_many - 1)

    def checkpointed(self, micro_batch: int, precision: StepPrecision) -> PlanFit | None:
        """The fit with those layers checkpointed that free enough for the least time; `None` if all of them do not.

        The choice is checked by a prediction, and more is freed until it fits.
        """
        plain = StepWay(precision, micro_batch)
        layers = self.footprint(plain).layers
        excess = self.peak(plain) - self.allowed
        for _ in range(_MOST_GUESSES):
            if excess <= 0:
                return PlanFit(plain, self.peak(plain))
            names = self._select(layers, int(excess / self.correction) + 1)
            if names is None:
                break
            way = plain._replace(checkpoint=names)
            short = self.peak(way) - self.allowed
            if short <= 0:
                return PlanFit(way, self.peak(way), self._repeated(way))
            excess += short
        everything = plain._replace(checkpoint=tuple(layer.name for layer in layers))
        if layers and self.fits(everything):
            return PlanFit(everything, self.peak(everything), self._repeated(everything))
        return None

    def most_outputs(self, rows: int, known: int, fixed_bytes: int) -> int:
        """The most rows whose outputs can be computed at once without gradients; `known` rows can be."""
        size = rows
        while size > known and self._predict_outputs is not None:
            if fixed_bytes + self.correction * self._predict_outputs(size) <= self.allowed:
                return size
            size //= 2
        return known

    def smallest(self, precision: StepPrecision) -> StepWay:
        """One row at a time, and every layer checkpointed: if anything fits, this does."""
        layers = self.footprint(StepWay(precision, 1)).layers
        return StepWay(precision, 1, tuple(layer.name for layer in layers))

    def _repeated(self, way: StepWay) -> float:
        """The share of the forward pass that checkpointed layers compute again, by their estimated seconds."""
        layers = self.footprint(way._replace(checkpoint=())).layers
        whole = sum(layer.seconds for layer in layers)
        return sum(layer.seconds for layer in layers if layer.name in way.checkpoint) / whole if whole else 0.0


def sentence(fit: PlanFit, rows: int, whole_bytes: int | None, budget: int) -> str:
    """The reason of a plan: what it needs of the budget, and what the whole batch would need."""
    way, allowed = fit.way, readable_bytes(budget)
    if way.micro_batch >= rows and not way.checkpoint:
        return f"the whole batch of {rows} rows fits: {readable_bytes(fit.peak_bytes)} of {allowed}"
    needs = "" if whole_bytes is None else f", where the whole batch needs {readable_bytes(whole_bytes)}"
    return f"{readable_bytes(fit.peak_bytes)} fit into {allowed}{needs}"


# -- which way to run a step is measured next, and which is the fastest: pure, from what steps took
#
# Along the sizes of micro-batches, time is no valley: caches and kernels for certain shapes make bumps, and a search
# that stops at the first size that is not faster ends before the best. So the whole ladder of sizes is looked at, and
# left only where ways are so slow that nothing behind them can win. Whatever disturbs a measurement makes it longer, so
# the least counts. A ladder is walked twice rather than each way measured twice in a row, because a disturbance lasts.


#: Seconds a row of steps, by plan; infinite for a plan that did not fit.
WayTimes = Mapping[StepWay, Sequence[float]]

#: Steps of each way on a ladder, and of those that may still be the fastest.
GLANCES, RUNS = 2, 3
#: Steps that one search takes at most.
MOST_TRIALS = 40
#: After two ways in a row that take so many times the least, a ladder is left.
SLOW = 1.5
#: Recomputing grows along a ladder of layers checkpointed, and what larger micro-batches save shrinks.
SLOW_CHECKPOINTED = 1.1
#: A plan that takes so many times the least is not measured again.
_HOPELESS = 2.5
#: A way within this of the least may be the fastest.
_CONTENDS = 1.2
#: Another size has to gain this much.
_WORTH = 0.97


def took(way: StepWay, times: WayTimes) -> float:
    """The least seconds a row of a way; infinite if it was not measured or did not fit."""
    return min(times.get(way, ()), default=math.inf)


def least(times: WayTimes) -> float:
    """The least seconds a row of all ways."""
    return min((min(each) for each in times.values() if each), default=math.inf)


def next_on(ladder: Sequence[StepWay], times: WayTimes, slow: float = SLOW) -> StepWay | None:
    """The way on a ladder to be measured next; `None` once all of them are that may be the fastest.

    Two ways in a row that take `slow` times the least before them end the ladder.
    """
    best = least(times)
    elsewhere = least({way: taken for way, taken in times.items() if way not in ladder})
    for glances in range(1, GLANCES + 1):
        slow_ones, so_far = 0, elsewhere
        for way in ladder:
            taken = times.get(way, ())
            if not taken:
                return way
            if len(taken) < glances and min(taken) <= _HOPELESS * best:
                return way
            # Of those before it: what is faster and comes later shows that the ladder leads somewhere.
            so_far = min(so_far, min(taken))
            slow_ones = slow_ones + 1 if min(taken) > slow * so_far else 0
            if slow_ones == 2:
                break
    return None


def next_of(contenders: Sequence[StepWay], times: WayTimes) -> StepWay | None:
    """The one to be measured next among those that may be the fastest; `None` once each was often enough."""
    best = min((took(way, times) for way in contenders), default=math.inf)
    near = [way for way in contenders if took(way, times) <= _CONTENDS * best < math.inf]
    if len(near) < 2:
        return None
    fewest = min(near, key=lambda way: len(times[way]))
    return fewest if len(times[fewest]) < RUNS else None


def fastest(ways: Sequence[StepWay], times: WayTimes) -> StepWay:
    """The fastest of them; an earlier one where it is as good as that."""
    best = min(took(way, times) for way in ways)
    return next((way for way in ways if took(way, times) * _WORTH <= best), ways[0])


def cost_of_each(measured: Sequence[tuple[int, float]]) -> float:
    """The most that one more micro-batch costs, from numbers of them and their times."""
    known = sorted({count: seconds for count, seconds in measured if seconds < math.inf}.items())
    if len(known) == 1:
        return known[0][1] / known[0][0]
    pairs = itertools.pairwise(known)
    return max((max(0.0, (more - less) / (many - few)) for (few, less), (many, more) in pairs), default=0.0)


class Drift:
    """Whether steps of a way that was settled on take another time by now.

    After a search that took so many steps, the next begins no earlier than ten times as many later, then twice that,
    and so on: searching must not take more than it can gain.
    """

    #: Steps whose middle value counts, and how far it has to be from what it was.
    _WINDOW, _SLOWER, _FASTER = 16, 1.3, 0.7
    #: An earlier run's time is another machine's, in part.
    _OTHER_RUN = 1.6

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=self._WINDOW)
        self._first: float | None = None
        self._earlier: float | None = None
        self._steps = 0
        self._holds = 0
        self._times_held = 0

    def settled(self, trials: int, earlier: float | None = None) -> None:
        """A search has ended, or an earlier run's with that time for a row."""
        self._recent.clear()
        self._first, self._earlier, self._steps = None, earlier, 0
        self._holds = 10 * max(trials, self._WINDOW) * 2**self._times_held
        self._times_held = min(self._times_held + 1, 6)

    def seen(self, seconds: float) -> bool:
        """Takes in the seconds a row of a step, and returns whether it is time to search again.

        The median of the last steps has to be a third slower or faster than after the search.
        """
        self._steps += 1
        self._recent.append(seconds)
        if len(self._recent) < self._WINDOW:
            return False
        if self._first is None:
            self._first = statistics.median(self._recent)
            if self._earlier is not None:
                self._first = min(self._first, self._OTHER_RUN * self._earlier)
        if self._steps < self._holds:
            return False
        now = statistics.median(self._recent)
        return not self._FASTER * self._first <= now <= self._SLOWER * self._first


# -- A planner for modules of which nothing can be predicted: the whole batch, and half of it where that does not fit


class Halving:
    """A planner without predictions: the whole batch, and half of it after each time that it does not fit.

    `layers` are those that may be checkpointed, once single rows do not fit either. `why` is the reason of its plans.
    """

    def __init__(
        self,
        precision: StepPrecision = "float32",
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
        """The plan: as many rows as have not failed, with the checkpoints so far."""
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
        """Half the rows; then all layers checkpointed; then `None`."""
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


# -- plans of training steps on disk: one small file for each. `anygpu history clear` removes them, also without torch
#
# With `ANYGPU_HISTORY=off` nothing is read or written.


#: Files that are kept; the oldest are removed.
MOST_FILES = 256
_MOST_BYTES = 1 << 20
#: Another meaning of the file gets another number.
_PURPOSE = b"anygpu.pytorch.step/1"


def read_step(key: str) -> bytes | None:
    """The content that was written for a step; `None` if there is none."""
    return None if setting() == "off" else unsealed(read_file(_folder() / key, _MOST_BYTES), _PURPOSE)


def write_step(key: str, content: bytes) -> None:
    """Write the content for a step, if the cache folder is writable."""
    if setting() != "off" and write_file(_folder() / key, sealed(content, _PURPOSE)):
        _remove_oldest(MOST_FILES)


def forget_steps() -> None:
    """Remove all files."""
    _remove_oldest(0)


def _folder() -> Path:
    return cache_folder() / "history" / "steps"


def _remove_oldest(most_files: int) -> None:
    with contextlib.suppress(OSError):
        sweep(_folder(), _is_key, now=time.time(), most_files=most_files)


def _is_key(name: str) -> bool:
    """Whether a file's name is a key of `step_key`: 32 hex digits."""
    return re.fullmatch("[0-9a-f]{32}", name) is not None
