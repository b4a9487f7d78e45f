"""What was measured of short scripts, beside the bounds: pure functions of the cells."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from benchmarks.report import Figure

#: A whole process takes at most so many times NumPy's, and so many seconds more: wall time, and processor time.
WALL = 1.05, 0.030
PROCESSOR = 1.25, 0.6
#: Recorded programs together, over NumPy, by the seconds that NumPy's process takes and by the number of the process.
#: Cells without bytecode are left out: most of their seconds compile the sources of NumPy.
TOTALS = {"2 s and more": (2.0, float("inf"), {1: 0.5, 2: 0.3}), "0.5 to 2 s": (0.5, 2.0, {1: 0.85, 2: 0.5})}

ORDINALS = {1: "first", 2: "second", 3: "third"}


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One program, called so many times in one process. Each list has a number for each round, in seconds."""

    program: str
    calls: int
    install: str
    #: 1 begins with an empty cache; 2 and 3 find what those before have left.
    process: int
    #: Whether anygpu can record the program.
    recorded: bool
    bytecode: bool = True
    numpy_rounds: tuple[float, ...]
    offload_rounds: tuple[float, ...]
    numpy_processor_rounds: tuple[float, ...]
    processor_rounds: tuple[float, ...]
    #: Of the last call.
    device: str = ""

    def __str__(self) -> str:
        return f"{self.program} × {self.calls:,}, {self.install}, {ORDINALS[self.process]} process"

    @property
    def numpy(self) -> float:
        return statistics.median(self.numpy_rounds)

    @property
    def offload(self) -> float:
        return statistics.median(self.offload_rounds)

    @property
    def limits(self) -> list[Limit]:
        """The bounds that it has by itself, missed or not."""
        numpy_processor = statistics.median(self.numpy_processor_rounds)
        processor = statistics.median(self.processor_rounds)
        return [
            Limit("wall time", str(self), self.offload, WALL[0] * self.numpy + WALL[1]),
            Limit("processor time", str(self), processor, PROCESSOR[0] * numpy_processor + PROCESSOR[1]),
        ]

    @property
    def missed(self) -> list[Limit]:
        return [each for each in self.limits if each.value > each.most]

    def with_round(self, other: Cell) -> Cell:
        """This cell with the rounds of both."""
        both = {name: getattr(self, name) + getattr(other, name) for name in self.__struct_fields__ if "round" in name}
        return msgspec.structs.replace(other, **both)


class Limit(NamedTuple):
    """What one cell took beside what it may take, in seconds."""

    bound: str
    where: str
    value: float
    most: float

    def __str__(self) -> str:
        return f"{self.bound}: {self.where}: {self.value:.3f} s, at most {self.most:.3f} s"


def figures_of(cells: Sequence[Cell], failures: Sequence[str] = ()) -> list[Figure]:
    """How many cells miss each bound, the worst of each, and the totals of what can be recorded."""
    found = [
        Figure(name="cells", value=len(cells), unit=""),
        Figure(name="scripts that failed", value=len(failures), unit="", bound=0.5),
    ]
    for bound in ("wall time", "processor time"):
        limits = [limit for cell in cells for limit in cell.limits if limit.bound == bound]
        if limits:
            missed = sum(each.value > each.most for each in limits)
            worst = max(limits, key=lambda each: each.value / each.most)
            found.append(Figure(name=f"{bound}: cells that miss it", value=missed, unit=""))
            found.append(Figure(name=f"{bound}, worst: {worst.where}", value=worst.value, unit="s", bound=worst.most))
    for name, (least, most, bounds) in TOTALS.items():
        for process, ordinal in ORDINALS.items():
            some = [
                each
                for each in cells
                if each.recorded and each.bytecode and each.process == process and least <= each.numpy < most
            ]
            if some:
                share = sum(each.offload for each in some) / sum(each.numpy for each in some)
                title = f"NumPy takes {name}: {ordinal} process / NumPy, total of {len(some)}"
                found.append(Figure(name=title, value=share, unit="×", bound=bounds.get(process)))
    return found


HEADER = (
    f"{'program':<22} {'calls':>5} {'install':<19} {'NumPy':>7} {'first':>7} {'second':>7} {'third':>7}  last call on"
)


def rows_of(cells: Sequence[Cell]) -> list[str]:
    """A program, its calls and an install in each line, the processes beside each other."""
    lines = []
    for place in dict.fromkeys((cell.program, cell.calls, cell.install) for cell in cells):
        row = {cell.process: cell for cell in cells if (cell.program, cell.calls, cell.install) == place}
        numpy = statistics.median(cell.numpy for cell in row.values())
        times = " ".join(f"{row[number].offload:7.2f}" if number in row else " " * 7 for number in ORDINALS)
        devices = ", ".join(row[number].device for number in sorted(row))
        missed = "; ".join(
            f"{ORDINALS[number]} {limit.bound} ({limit.value:.2f} > {limit.most:.2f})"
            for number, cell in sorted(row.items())
            for limit in cell.missed
        )
        missed = f"   MISSED: {missed}" if missed else ""
        lines.append(f"{place[0]:<22} {place[1]:>5} {place[2]:<19} {numpy:7.2f} {times}  {devices}{missed}")
    return lines
