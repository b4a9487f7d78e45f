"""What was measured of short scripts, beside the bounds: pure functions of the cells."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from anygpu.units import readable_seconds
from benchmarks.report import Figure, Machine

#: A whole process takes at most so many times NumPy's, and so many seconds more; the first process too.
NUMPY_FACTOR, NUMPY_SECONDS = 1.10, 0.050
#: All second and third processes of an install together, over the better of NumPy and the best device in each cell.
BEST_FACTOR = 1.15
#: With so many calls a program that has a faster device is faster than NumPy, from the second process on.
ENOUGH_CALLS = 30
#: A device counts as faster when its calls, forced and after the first ones, take at most this share of NumPy's.
FASTER = 0.5
#: The processor time of a first process, over NumPy's.
PROCESSOR_FACTOR, PROCESSOR_SECONDS = 1.5, 2.0
#: No processor time is used later than a second after the last call: less than two ticks cannot be told from none.
LATER_SECONDS = 0.02

ORDINALS = {1: "first", 2: "second", 3: "third"}


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One program, called so many times in one process, with one install. Times are medians, in seconds."""

    program: str
    calls: int
    install: str
    #: 1 begins with an empty cache; 2 and 3 find what those before have left.
    process: int
    numpy: float
    numpy_processor: float
    offload: float
    processor: float
    #: The device that is fastest when forced, if it is faster than NumPy, and the whole process with it.
    device: str | None = None
    forced: float | None = None
    #: Seconds of a call: of NumPy, and of the device.
    numpy_call: float = math.nan
    device_call: float | None = None
    #: How many calls ran on each device, and the first that was not NumPy's, in the last round.
    devices: dict[str, int] = {}
    moved_at: int | None = None
    #: Every round of the offloaded script.
    rounds: tuple[float, ...] = ()

    def __str__(self) -> str:
        return f"{self.program} × {self.calls:,}, {self.install}, {ORDINALS[self.process]} process"

    @property
    def best(self) -> float:
        return self.numpy if self.forced is None else min(self.numpy, self.forced)

    @property
    def has_faster_device(self) -> bool:
        return self.device_call is not None and self.device_call <= FASTER * self.numpy_call

    @property
    def must_be_faster(self) -> bool:
        return self.has_faster_device and self.calls >= ENOUGH_CALLS and self.process > 1


class Idle(msgspec.Struct, frozen=True, kw_only=True):
    """Processor time that a first process used from one second after its last call on."""

    program: str
    calls: int
    install: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.program} × {self.calls:,}, {self.install}"


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """A script that did not end well, or that left processes behind."""

    script: str
    reason: str


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A whole run, as `--json` writes it."""

    machine: Machine
    cells: tuple[Cell, ...]
    idle: tuple[Idle, ...]
    failures: tuple[Failure, ...]
    figures: tuple[Figure, ...] = ()
    #: Seconds that all of it took.
    seconds: float = 0.0
    #: The share of the machine that others used meanwhile; `None` where the system does not tell.
    others: float | None = None


class Miss(NamedTuple):
    """One bound that one cell misses."""

    bound: str
    where: str
    value: float
    limit: float

    def __str__(self) -> str:
        return f"{self.bound}: {self.where}: {self.value:.3f} s, at most {self.limit:.3f} s"


AGAINST_NUMPY, NOT_FASTER, PROCESSOR, LATER = "against NumPy", "not faster than NumPy", "processor time", "later work"


def limits(cell: Cell) -> list[Miss]:
    """Every bound that the cell has by itself, missed or not."""
    found = [Miss(AGAINST_NUMPY, str(cell), cell.offload, NUMPY_FACTOR * cell.numpy + NUMPY_SECONDS)]
    if cell.must_be_faster:
        found.append(Miss(NOT_FASTER, str(cell), cell.offload, cell.numpy))
    if cell.process == 1:
        limit = PROCESSOR_FACTOR * cell.numpy_processor + PROCESSOR_SECONDS
        found.append(Miss(PROCESSOR, str(cell), cell.processor, limit))
    return found


def misses(cells: Sequence[Cell], idle: Sequence[Idle] = ()) -> list[Miss]:
    """The bounds that are missed by a cell alone, the worst of each kind first."""
    checked = [limit for cell in cells for limit in limits(cell)]
    checked += [Miss(LATER, str(each), each.seconds, LATER_SECONDS) for each in idle]
    missed = [each for each in checked if each.value > each.limit]
    return sorted(missed, key=lambda miss: (miss.bound, -miss.value / miss.limit))


def figures_of(cells: Sequence[Cell], idle: Sequence[Idle], failures: Sequence[Failure]) -> list[Figure]:
    """The worst of each bound, how many cells miss it, and the totals."""
    found = [
        Figure(name="cells", value=len(cells), unit=""),
        Figure(name="scripts that failed", value=len(failures), unit="", bound=0.5),
    ]
    checked = [limit for cell in cells for limit in limits(cell)]
    checked += [Miss(LATER, str(each), each.seconds, LATER_SECONDS) for each in idle]
    for bound in (AGAINST_NUMPY, NOT_FASTER, PROCESSOR, LATER):
        of_this = [each for each in checked if each.bound == bound]
        if of_this:
            worst = max(of_this, key=lambda each: each.value / each.limit)
            missed = sum(each.value > each.limit for each in of_this)
            found.append(Figure(name=f"{bound}: cells that miss it, of {len(of_this)}", value=missed, unit=""))
            found.append(Figure(name=f"{bound}, worst: {worst.where}", value=worst.value, unit="s", bound=worst.limit))
    for install in dict.fromkeys(cell.install for cell in cells):
        later = [cell for cell in cells if cell.install == install and cell.process > 1]
        if later:
            share = sum(cell.offload for cell in later) / sum(cell.best for cell in later)
            name = f"{install}: later processes / the best of each cell, total"
            found.append(Figure(name=name, value=share, unit="×", bound=BEST_FACTOR))
    return found


def rows_of(cells: Sequence[Cell]) -> list[str]:
    """The table: a program, its calls and an install in each line, the processes beside each other."""
    lines = [
        f"{'program':<22} {'calls':>5} {'install':<7} {'NumPy':>7} {'best device':<16} {'first':>7} {'second':>7}"
        f" {'third':>7}  {'processor':<14} {'moved at':<16} misses"
    ]
    places = dict.fromkeys((cell.program, cell.calls, cell.install) for cell in cells)
    for place in places:
        row = {cell.process: cell for cell in cells if (cell.program, cell.calls, cell.install) == place}
        any_cell = next(iter(row.values()))
        forced = "-" if any_cell.forced is None else f"{any_cell.device} {any_cell.forced:.2f}"
        times = " ".join(f"{row[number].offload:7.2f}" if number in row else " " * 7 for number in ORDINALS)
        first = row.get(1)
        processor = f"{first.numpy_processor:.1f} → {first.processor:.1f}" if first else ""
        moved = " ".join(str(row[number].moved_at or "-") for number in ORDINALS if number in row)
        missed = [
            f"{ORDINALS[number]} {limit.bound} ({limit.value:.2f} > {limit.limit:.2f})"
            for number, cell in sorted(row.items())
            for limit in limits(cell)
            if limit.value > limit.limit
        ]
        lines.append(
            f"{place[0]:<22} {place[1]:>5} {place[2]:<7} {any_cell.numpy:7.2f} {forced:<16} {times}"
            f"  {processor:<14} {moved:<16} {'; '.join(missed)}".rstrip()
        )
    return lines


def idle_rows(idle: Sequence[Idle]) -> list[str]:
    worst = sorted(idle, key=lambda each: -each.seconds)
    return [f"later than a second after the last call: {each}: {readable_seconds(each.seconds)}" for each in worst]
