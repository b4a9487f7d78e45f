"""What the placement grid records of each cell, and how it is judged: pure values, so a saved run can be read again."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec

from anygpu.base.units import readable_seconds
from benchmarks.report import Figure, Machine

#: Automatic over the best fixed choice of every cell, in total.
REGRET_BOUND = 1.05
#: Automatic over NumPy called directly, in any cell, once a function has been called five times.
NUMPY_BOUND = 1.10
#: The first five calls together over five calls of NumPy, in any cell.
FIRST_FIVE_BOUND = 2.0
#: Of the predictions for native code, the percentage that may be off by more than this factor.
PREDICTION_FACTOR, MOST_BEYOND = 2.0, 5.0

#: Below this a ratio says little of what a caller notices: the difference in seconds is reported beside it.
SHORT = 20e-6


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of a call. Others use the machine too, which only ever adds time: so the faster half is what counts."""

    #: The mean of the faster half of the samples.
    seconds: float
    best: float
    median: float
    samples: int

    @classmethod
    def of(cls, samples: Sequence[float]) -> Timing:
        ordered = sorted(samples)
        return cls(
            seconds=statistics.fmean(ordered[: (len(ordered) + 1) // 2]),
            best=ordered[0],
            median=statistics.median(ordered),
            samples=len(ordered),
        )


class Fixed(msgspec.Struct, frozen=True, kw_only=True):
    """A device that every call was forced to use."""

    device: str
    timing: Timing | None = None
    #: The first call, with everything that is compiled in it.
    first: float | None = None
    #: What was predicted before the first call; `None` where nothing was.
    predicted: float | None = None
    #: Why there is no timing, or only a rough one.
    note: str = ""


class Prediction(msgspec.Struct, frozen=True):
    device: str
    predicted: float
    actual: float

    @property
    def error(self) -> float:
        return abs(self.predicted / self.actual - 1)


class Automatic(msgspec.Struct, frozen=True, kw_only=True):
    """The same function, offloaded without a hint."""

    timing: Timing
    #: How often receipts named each device, after the fifth call.
    devices: dict[str, int]
    first_five: tuple[float, ...]
    #: The calls after those, until it no longer changed its mind.
    settling: tuple[float, ...] = ()
    predictions: tuple[Prediction, ...] = ()

    @property
    def device(self) -> str:
        return max(self.devices, key=lambda name: self.devices[name]) if self.devices else "?"

    @property
    def prediction(self) -> Prediction | None:
        """The one in the middle: as good as half of the others."""
        ordered = sorted(self.predictions, key=lambda each: each.error)
        return ordered[len(ordered) // 2] if ordered else None


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement of a cell: all sides interleaved in one run."""

    numpy: Timing
    #: Five calls of NumPy itself, one by one, just before the first five of automatic.
    numpy_five: float
    fixed: tuple[Fixed, ...]
    automatic: Automatic | None

    @property
    def best_fixed(self) -> tuple[str, float]:
        choices = [("numpy", self.numpy.seconds)]
        choices += [(each.device, each.timing.seconds) for each in self.fixed if each.timing is not None]
        return min(choices, key=lambda choice: choice[1])

    @property
    def to_best(self) -> float:
        return self.automatic.timing.seconds / self.best_fixed[1] if self.automatic else math.nan

    @property
    def to_numpy(self) -> float:
        return self.automatic.timing.seconds / self.numpy.seconds if self.automatic else math.nan

    @property
    def first_five(self) -> float:
        return sum(self.automatic.first_five) / self.numpy_five if self.automatic else math.nan

    @property
    def settling(self) -> float:
        """The calls after the first five, until it no longer changed its mind, over as many of NumPy."""
        taken = self.automatic.settling if self.automatic else ()
        return sum(taken) / (len(taken) * self.numpy.seconds) if taken else math.nan

    @property
    def beyond_numpy(self) -> float:
        """Seconds that an automatic call takes more than NumPy called directly."""
        return self.automatic.timing.seconds - self.numpy.seconds if self.automatic else math.nan

    @property
    def exceeds(self) -> list[str]:
        """The bounds that this measurement misses; a total has no bound of its own in a cell, but its share weighs."""
        if self.automatic is None:
            return []
        missed = []
        if self.to_numpy > NUMPY_BOUND:
            missed.append(f"{self.to_numpy:.2f}× NumPy")
        if self.first_five > FIRST_FIVE_BOUND:
            missed.append(f"first five {self.first_five:.2f}×")
        if self.to_best > REGRET_BOUND and self.automatic.timing.seconds - self.best_fixed[1] > 1e-3:
            missed.append(f"{self.to_best:.2f}× the best fixed")
        return missed

    @property
    def doubtful(self) -> bool:
        """Whether automatic was faster on a device than the same device alone: only noise does that."""
        if self.automatic is None:
            return False
        return self.to_best < 1 / NUMPY_BOUND and self.best_fixed[1] - self.automatic.timing.seconds > 1e-3


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One workload at one size."""

    workload: str
    size: int
    #: Of all arguments together.
    elements: int = 0
    #: One, or more when that one missed a bound.
    measurements: tuple[Measured, ...] = ()
    #: Why it was not measured at all.
    left_out: str = ""
    #: What went wrong while it was measured.
    failed: str = ""

    @property
    def measured(self) -> Measured | None:
        """The measurement that counts: the middle one when there were several."""
        return middle(self.measurements) if self.measurements else None


class Grid(msgspec.Struct, frozen=True, kw_only=True):
    """A whole run, as `--json` writes it and `--from` reads it."""

    machine: Machine
    devices: tuple[str, ...]
    cells: tuple[Cell, ...]
    figures: tuple[Figure, ...] = ()
    #: Seconds that the whole run took.
    seconds: float = 0.0


def middle(measurements: Sequence[Measured]) -> Measured:
    """Of several measurements of one cell, the one that lies in the middle by how far it exceeds any bound."""

    def badness(measured: Measured) -> float:
        return max(
            measured.to_numpy / NUMPY_BOUND, measured.first_five / FIRST_FIVE_BOUND, measured.to_best / REGRET_BOUND
        )

    ordered = sorted(measurements, key=badness)
    # Of two, the worse one: a bound is not met by luck.
    return ordered[len(ordered) // 2]


def figures_of(cells: Sequence[Cell]) -> list[Figure]:
    """The grid's totals beside their bounds; nothing of automatic when it was not measured."""
    judged = [(cell, cell.measured) for cell in cells if cell.measured is not None and cell.measured.automatic]
    failed = Figure(name="cells that failed", value=sum(bool(cell.failed) for cell in cells), unit="", bound=0.5)
    if not judged:
        return [failed]
    automatic = sum(each.automatic.timing.seconds for _, each in judged if each.automatic)
    best = sum(each.best_fixed[1] for _, each in judged)
    numpy = sum(each.numpy.seconds for _, each in judged)
    slowest = max(judged, key=lambda pair: pair[1].to_numpy)
    hesitant = max(judged, key=lambda pair: pair[1].first_five)
    short = [pair for pair in judged if pair[1].numpy.seconds < SHORT]
    found = [
        Figure(name="cells", value=len(judged), unit=""),
        failed,
        Figure(name="regret: automatic / best fixed, total", value=automatic / best, unit="×", bound=REGRET_BOUND),
        Figure(name="NumPy / automatic, total", value=numpy / automatic, unit="×"),
        Figure(
            name=f"worst against NumPy: {named(slowest[0])}",
            value=slowest[1].to_numpy,
            unit="×",
            bound=NUMPY_BOUND,
        ),
        Figure(
            name=f"worst first five calls: {named(hesitant[0])}",
            value=hesitant[1].first_five,
            unit="×",
            bound=FIRST_FIVE_BOUND,
        ),
        Figure(
            name="worst against NumPy of 20 µs or more",
            value=max((each.to_numpy for _, each in judged if each.numpy.seconds >= SHORT), default=math.nan),
            unit="×",
        ),
        Figure(name="cells slower than 1.10× NumPy", value=_count(judged, "to_numpy", NUMPY_BOUND), unit=""),
        Figure(name="cells whose first five exceed 2×", value=_count(judged, "first_five", FIRST_FIVE_BOUND), unit=""),
    ]
    if short:
        most = max(short, key=lambda pair: pair[1].beyond_numpy)
        found.append(
            Figure(name=f"most beyond NumPy below 20 µs: {named(most[0])}", value=most[1].beyond_numpy * 1e6, unit="µs")
        )
    errors = [
        each.automatic.prediction.error
        for _, each in judged
        if each.automatic and each.automatic.prediction is not None
    ]
    if errors:
        found.append(Figure(name="median error of predictions", value=statistics.median(errors), unit=""))
    native = [
        each.timing.seconds / each.predicted
        for _, measured in judged
        for each in measured.fixed
        if each.device == "cpu" and each.timing and each.predicted
    ]
    if native:
        beyond = sum(not 1 / PREDICTION_FACTOR <= error <= PREDICTION_FACTOR for error in native)
        name = f"cpu: predictions beyond {PREDICTION_FACTOR:g}×, of {len(native)}"
        found.append(Figure(name=name, value=100 * beyond / len(native), unit="%", bound=MOST_BEYOND))
    return found


def _count(judged: Sequence[tuple[Cell, Measured]], name: str, bound: float) -> int:
    return sum(getattr(measured, name) > bound for _, measured in judged)


def brief(seconds: float) -> str:
    """As people read it, with a digit more where a microsecond matters."""
    return f"{seconds * 1e6:.1f} µs" if seconds < 100e-6 else readable_seconds(seconds)


def named(cell: Cell) -> str:
    return f"{cell.workload}, {power_of_ten(cell.size)}"


def power_of_ten(size: int) -> str:
    """10⁴ for 10000, and plain digits for what is no power of ten."""
    exponent = round(math.log10(size))
    if 10**exponent != size:
        return f"{size}"
    return "10" + str(exponent).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))


class Crossover(NamedTuple):
    """Where a device becomes faster than NumPy."""

    device: str
    size: float
    seconds: float
    #: Whether it is faster at the smallest size already.
    from_the_start: bool


def crossover(
    device: str, numpy: Sequence[tuple[float, float]], other: Sequence[tuple[float, float]]
) -> Crossover | None:
    """The size from which on a device is faster, up to the largest measured; lines are straight in logarithms."""
    reference = dict(numpy)
    points = [(size, reference[size], seconds) for size, seconds in sorted(other) if size in reference]
    if not points or points[-1][2] >= points[-1][1]:
        return None
    for (low, low_numpy, low_other), (high, high_numpy, high_other) in reversed(list(pairwise(points))):
        if low_other >= low_numpy:
            before, after = math.log(low_other / low_numpy), math.log(high_other / high_numpy)
            share = before / (before - after)
            return Crossover(
                device, low * (high / low) ** share, low_numpy * (high_numpy / low_numpy) ** share, from_the_start=False
            )
    return Crossover(device, points[0][0], points[0][2], from_the_start=True)


def line_of(cell: Cell) -> str:
    """One cell in a line of the report."""
    begin = f"{cell.workload:<24} {power_of_ten(cell.size):>5}"
    measured = cell.measured
    if measured is None:
        return f"{begin}  FAILED: {cell.failed}" if cell.failed else f"{begin}  left out: {cell.left_out}"
    device, seconds = measured.best_fixed
    line = f"{begin}  {brief(measured.numpy.seconds):>9}  {device:<9} {brief(seconds):>9}"
    automatic = measured.automatic
    if automatic is not None:
        line += (
            f"  {automatic.device:<9} {brief(automatic.timing.seconds):>9}"
            f" {measured.to_best:>6.2f} {measured.to_numpy:>6.2f} {measured.first_five:>6.2f}"
        )
        prediction = automatic.prediction
        line += f"  {brief(prediction.predicted):>9} {100 * prediction.error:>4.0f} %" if prediction else ""
        if measured.numpy.seconds < SHORT:
            line += f"  {1e6 * measured.beyond_numpy:+.1f} µs"
    missed = measured.exceeds
    line += f"   MISSED: {'; '.join(missed)}" if missed else ""
    if len(cell.measurements) > 1:
        taken = " | ".join(", ".join(each.exceeds) or "all bounds met" for each in cell.measurements)
        line += f"   (measured {len(cell.measurements)} times: {taken})"
    return f"{line}   FAILED: {cell.failed}" if cell.failed else line


HEADER = (
    f"{'workload':<24} {'size':>5}  {'NumPy':>9}  {'best fixed':<19}  {'automatic':<19}"
    f" {'/best':>6} {'/NumPy':>6} {'first5':>6}  {'predicted':>9}  off"
)
