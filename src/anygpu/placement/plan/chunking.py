"""Calls cut into chunks that fit into memory, and waiting calls of one program joined into one launch.

`chunks_for` finds how a call is cut when its program does not fit into a device's memory. `weigh` and `BatchTimes`
decide how many waiting calls are joined: a launch of several is shared by all of them, but each waits for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from anygpu.base.units import readable_bytes
from anygpu.engines.memory.pool import bucket_size
from anygpu.placement.plan.candidate_history import RecentTimes
from anygpu.placement.plan.predicting import most_at_once, structure_of, tables_of, temporaries_of
from anygpu.program.graph import Program
from anygpu.program.independence import Cut, cut, independent_cuts

#: Ways to cut that are looked at. The first one cuts the most bytes, and nearly always is the best.
_MOST_WAYS = 6
#: Steps on the way to the longest piece that fits.
_MOST_STEPS = 12

#: A measured peak may be a little higher the next time.
_MARGIN = 1.05
#: Fusing engines need a part of what is predicted, but never a part of the inputs and results.
_LEAST, _MOST = 0.4, 8.0
#: Another piece length is another program to compile: for less than this nothing changes.
_STILL_THE_SAME = 0.85


class Chunks(msgspec.Struct, frozen=True):
    """Pieces of a program that are run one after the other: `count` of them, all of length `piece` but the last."""

    cut: Cut
    piece: int
    count: int
    #: Predicted for the longest.
    peak_bytes: int

    @property
    def how(self) -> str:
        """The number and length of chunks, for receipts."""
        axes = [axis for axis in self.cut.outputs if axis is not None]
        axis = f" along axis {axes[0]} of the result" if axes else ""
        return f"in {self.count} chunks of at most {self.piece}{axis}"


class ChunkRefused(msgspec.Struct, frozen=True):
    """Why a program cannot be cut so that it fits."""

    #: One sentence.
    reason: str


def chunks_for(program: Program, budget_bytes: int, *, correction: float = 1.0) -> Chunks | ChunkRefused:
    """The fewest pieces of which each needs no more than the budget, times `correction` as `corrected` gives it.

    Pieces of which one program computes all are preferred: others have to be compiled one by one.
    """
    ways = independent_cuts(program)
    if not ways:
        return ChunkRefused("no axis of its results is independent: every chunk would need all the inputs at once.")
    found: list[tuple[bool, int, int, Chunks]] = []
    least: int | None = None
    for way in ways[:_MOST_WAYS]:
        one = _peak_of(program, way, 1, correction)
        least = one if least is None else min(least, one)
        if one <= budget_bytes:
            piece = _longest(program, way, budget_bytes, correction)
            count = -(-way.length // piece)
            # As equal as possible: the last one is shorter by less than the number of pieces.
            piece = -(-way.length // count)
            peak = _peak_of(program, way, piece, correction)
            chunks = Chunks(way, piece, -(-way.length // piece), peak)
            found.append((not _is_one_program(program, chunks), chunks.count, peak, chunks))
    if not found:
        return ChunkRefused(
            f"even the smallest chunk would need {readable_bytes(least or 0)}, "
            f"and there is room for {readable_bytes(max(budget_bytes, 0))}."
        )
    return min(found, key=lambda each: each[:3])[3]


def corrected(old: float, predicted: int, measured: int) -> float:
    """The correction for the next pieces, when those predicted to need `predicted` bytes with `old` needed `measured`.

    What needs more than was predicted counts at once, with a margin. What needs less counts if it is much less.
    """
    if predicted <= 0 or measured < 0:
        return old
    right = old * measured / predicted
    if measured > predicted:
        return min(right * _MARGIN, _MOST)
    lower = max(right * _MARGIN, _LEAST)
    return lower if lower < old * _STILL_THE_SAME else old


def memory_needed(program: Program) -> int:
    """Bytes that a device holds at once to run it, in blocks as pools make them: no less than fused kernels need, and
    no less than single operations do.

    Inputs, results and tables of constants are there from the beginning to the end.
    """
    ends = sum(bucket_size(spec.nbytes) for spec in (*program.inputs, *program.results, *tables_of(program)))
    between = 0
    for fuses in (False, True):
        temporaries = temporaries_of(program, structure_of(program, fuses=fuses).kernels)
        blocks = [(bucket_size(each.nbytes), each.first, each.last) for each in temporaries]
        between = max(between, most_at_once(blocks))
    return ends + between


def _peak_of(program: Program, way: Cut, piece: int, correction: float) -> int:
    # Not rounded down: a byte too many is too many.
    return int(memory_needed(cut(program, way, 0, piece)) * correction) + 1


def _longest(program: Program, way: Cut, budget: int, correction: float) -> int:
    """The longest piece that fits, when one of length 1 does; or one that is nearly as long.

    What a piece needs is very nearly the larger of straight lines, so the line between a length that fits and one that
    does not gives another that fits.
    """
    low, high = 1, way.length
    below, above = _peak_of(program, way, low, correction), _peak_of(program, way, high, correction)
    if above <= budget:
        return high
    for step in range(_MOST_STEPS):
        if high - low <= max(1, low // 16):
            break
        guess = low + int((high - low) * (budget - below) / (above - below)) if step % 3 < 2 else (low + high) // 2
        middle = min(max(guess, low + 1), high - 1)
        peak = _peak_of(program, way, middle, correction)
        if peak <= budget:
            low, below = middle, peak
        else:
            high, above = middle, peak
    return low


def _is_one_program(program: Program, chunks: Chunks) -> bool:
    """Whether two pieces of the same length are the same program; they are not if their place in the whole matters."""
    piece = chunks.piece
    if 2 * piece > chunks.cut.length:
        return True
    return cut(program, chunks.cut, 0, piece).key == cut(program, chunks.cut, piece, 2 * piece).key


# -- the number of waiting calls of one program to run as one launch
#
# From predictions, measurements and lost time.
#
# Programs are made for a few sizes only, so that little is compiled; a launch that is not full is padded. Compiling
# is weighed against what it gains for the calls that wait now, and what it would have gained for those that went the
# slower way before. So a program is compiled at once for many calls, soon for few that keep coming, and never for a
# few alone.


#: The sizes for which programs are made.
SIZES = (4, 16, 64, 256, 1024)
#: A launch is padded to its size when at least so much of it is filled; to one that is compiled already also when it
#: is filled less, if that is the fastest.
FILLED, LEAST_FILLED = 0.6, 0.125
#: A batch must be better than one by one by this much: less is noise.
MARGIN = 0.9

#: Recent launches whose median is what the next is expected to take.
WINDOW = RecentTimes.WINDOW
#: The weight of the newest error of a prediction.
_NEW = 0.3
#: No correction is larger: beyond that something else is wrong than the model.
_MOST_CALLS = math.log(50.0)
#: How often a size that turned out slower is passed over before it may show again what it takes; doubled each time.
FIRST_INTERVAL, LONGEST_INTERVAL = 256, 1 << 16
#: Compiling beside other work takes at most about so many times as long, as far as that is remembered.
_CONTENTION = 2.0


class BatchPlan(NamedTuple):
    """One launch for several calls."""

    #: The number of calls that the program is made for.
    size: int
    #: The calls that it is for; the rest is padding.
    taken: int
    #: The predicted seconds, without compiling.
    seconds: float


class Weighed(NamedTuple):
    """The size to run now, and the size that would be better if it were compiled."""

    #: `None` when calls should run one by one.
    plan: BatchPlan | None
    #: The size that would be fastest, if that is another one.
    wanted: int | None
    #: Seconds that each call takes longer for want of it.
    missed: float


def weigh(
    waiting: int,
    *,
    single: float,
    together: Callable[[int], float],
    compiling: Callable[[int], float],
    bytes_of: Callable[[int], int],
    room: int | None,
    latency: float,
) -> Weighed:
    """The launch to make now, when so many calls wait, if it is predicted to be better than one by one.

    A size is taken when calls fill it, or most of it; one that is compiled already also for fewer, as its padding is in
    what it takes. `together` is what a launch of a size takes, `compiling` what making its program still costs (0 when
    it is there), `bytes_of` the memory that it needs. A launch that needs more than `room`, or would take longer than
    `latency`, is not made. Compiling counts as a cost and not as latency: it comes once, and calls that never wait for
    it wait for each other ever after.
    """
    one_by_one = single * waiting
    best = fastest = None
    best_total, fastest_total = one_by_one * MARGIN, one_by_one * MARGIN
    for size in SIZES:
        taken = min(waiting, size)
        if taken < 2 or taken < LEAST_FILLED * size or (room is not None and bytes_of(size) > room):
            break  # what is larger is filled less, and needs more
        once = compiling(size)
        if taken < FILLED * size and once > 0:
            continue
        seconds = together(size)
        if not seconds <= latency:
            continue
        # As if all that wait would go in such launches, of which this is the first.
        running = seconds * waiting / taken
        plan = BatchPlan(size, taken, seconds)
        if running <= fastest_total:
            fastest, fastest_total = plan, running
        if running + once <= best_total:
            best, best_total = plan, running + once
    if fastest is None or fastest == best:
        return Weighed(best, None, 0.0)
    now = one_by_one if best is None else best.seconds * waiting / best.taken
    return Weighed(best, fastest.size, (now - fastest_total) / waiting)


class Missed:
    """The time that calls have lost because a program for many was not compiled, by its size."""

    __slots__ = ("by_size",)

    def __init__(self) -> None:
        self.by_size: dict[int, float] = {}

    def add(self, size: int, seconds: float) -> None:
        self.by_size[size] = self.by_size.get(size, 0.0) + seconds

    def of(self, size: int) -> float:
        return self.by_size.get(size, 0.0)

    def left(self, size: int, cost: float) -> float:
        """The part of the cost of compiling that calls have not lost yet."""
        return max(0.0, cost - self.of(size))

    def paid(self, size: int) -> None:
        self.by_size.pop(size, None)


class _Error:
    """What something took by what was predicted, as a logarithm. A calm one is not changed by disturbed ones."""

    __slots__ = ("disturbed", "logarithm")

    def __init__(self) -> None:
        self.logarithm: float | None = None
        self.disturbed = False

    def learn(self, seconds: float, predicted: float, *, disturbed: bool) -> None:
        """Move the correction towards the ratio of a measured time to its prediction.

        The error is a logarithm, bounded by `_MOST_CALLS` in either direction. Times of a disturbed machine count only
        until an undisturbed one is known, which then replaces them.
        """
        if not (seconds > 0 and predicted > 0) or (disturbed and self.logarithm is not None and not self.disturbed):
            return
        error = max(-_MOST_CALLS, min(_MOST_CALLS, math.log(seconds) - math.log(predicted)))
        old = self.logarithm if disturbed == self.disturbed else None
        self.logarithm = error if old is None else old + _NEW * (error - old)
        self.disturbed = disturbed


class BatchTimes:
    """The seconds of launches, by size; and the likely error of predictions for sizes without a launch."""

    __slots__ = ("_compiling", "_correction", "_given_up", "_recent")

    def __init__(self) -> None:
        """No times yet, for any number of calls in a batch."""
        self._recent: dict[int, RecentTimes] = {}
        self._correction = _Error()
        self._compiling = _Error()
        #: By size: times that it was passed over, and after how many it may show again what it takes.
        self._given_up: dict[int, tuple[int, int]] = {}

    def measured(self, size: int, seconds: float, predicted: float, *, disturbed: bool = False) -> None:
        """A launch took so long, beside compiling. `predicted` is what was said without any launch."""
        self._recent.setdefault(size, RecentTimes()).add(seconds, disturbed=disturbed)
        self._correction.learn(seconds, predicted, disturbed=disturbed)

    def estimate(self, size: int, predicted: float, factor: float = 1.0) -> float:
        """The seconds of a launch: those of the last ones, or the prediction, corrected by its earlier errors.

        Before the first launch that is `factor`, which may be known from calls alone. Of launches that were disturbed
        the best one counts.
        """
        recent = self._recent.get(size)
        known = recent.least if recent is not None else None
        if known is not None:
            return known
        if size in self._given_up:
            return predicted  # it is owed another look, and what made it slow once is no reason against that
        error = self._correction.logarithm
        return predicted * (factor if error is None else math.exp(error))

    def known(self, size: int) -> bool:
        return size in self._recent

    @property
    def is_doubtful(self) -> bool:
        """Whether launches of some size were only seen while something else had the processors."""
        return any(each.disturbed for each in self._recent.values())

    def passed_over(self, size: int, *, calm: bool = False) -> None:
        """It could have been used, and was not because of what it took. Nothing is for ever: in the end it is tried.

        If it was disturbed when it took so long, it is tried as soon as the machine is `calm`.
        """
        recent = self._recent.get(size)
        if recent is None:
            return
        times, interval = self._given_up.get(size, (0, FIRST_INTERVAL))
        if recent.disturbed and calm:
            del self._recent[size]
            self._given_up[size] = (0, interval)
        elif times + 1 >= interval:
            del self._recent[size]
            self._given_up[size] = (0, min(2 * interval, LONGEST_INTERVAL))
        else:
            self._given_up[size] = (times + 1, interval)

    def compiled(self, seconds: float, predicted: float, *, disturbed: bool = False) -> None:
        most = predicted * _CONTENTION if disturbed else math.inf
        self._compiling.learn(min(seconds, most), predicted, disturbed=disturbed)

    def compiling(self, predicted: float) -> float:
        """The likely seconds of compiling another size."""
        error = self._compiling.logarithm
        return predicted * (math.exp(error) if error is not None else 1.0)
