"""What a run has measured, and how it is judged: pure values, so a saved run can be read again."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable

import msgspec

from benchmarks.cells import NUMPY_BOUND, Timing
from benchmarks.peers.tolerances import SHARE_THAT_MAY_DIFFER
from benchmarks.report import Figure, Machine

#: A warm call is so many times as fast as NumPy's, in the geometric mean of all workloads.
TIMES_AS_FAST = 10.0
#: Seconds that the first result may come after NumPy's.
FIRST_SECONDS = 0.050
#: The workload that is all overhead, and what a call of it may take.
SMALL, SMALL_SECONDS = "small", 4e-6


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One workload with one tool."""

    workload: str
    tool: str
    #: Why there is nothing: the tool cannot express it, is not here, or failed.
    reason: str = ""
    #: From the start of the process until the first result, without the time to read the arguments from files.
    first: float | None = None
    timing: Timing | None = None
    #: Of the process, and of those it started that still lived at the end.
    peak_bytes: int = 0
    #: Calls in the process before the first that was timed.
    calls: int = 0
    #: Where anygpu ran the calls that were timed.
    device: str = ""
    #: The share of elements that are further from NumPy's than the tolerance.
    differing: float = 0.0

    @property
    def wrong(self) -> bool:
        return self.differing > SHARE_THAT_MAY_DIFFER


class Installed(msgspec.Struct, frozen=True, kw_only=True):
    """What pip put into an empty folder, without compiled Python files."""

    tool: str
    bytes: int = 0
    packages: tuple[str, ...] = ()
    reason: str = ""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    machine: Machine
    date: str
    #: What else ran on the machine when the run began: the load of the last minute.
    load: float
    versions: dict[str, str]
    rounds: int
    #: Of runs before 2026-11-18: seconds that anygpu was called before it was timed, and in how many earlier processes.
    settling: float = 0.0
    earlier: int = 0
    cells: tuple[Cell, ...] = ()
    installed: tuple[Installed, ...] = ()
    seconds: float = 0.0

    def cell(self, workload: str, tool: str) -> Cell | None:
        return next((each for each in self.cells if (each.workload, each.tool) == (workload, tool)), None)

    def with_cells(self, cells: Iterable[Cell]) -> Run:
        return msgspec.structs.replace(self, cells=(*self.cells, *cells))

    @property
    def workloads(self) -> list[str]:
        return list(dict.fromkeys(each.workload for each in self.cells))

    @property
    def tools(self) -> list[str]:
        return list(dict.fromkeys(each.tool for each in self.cells))


def speeds(run: Run, tool: str) -> dict[str, float]:
    """By workload, how many times as fast as NumPy a warm call was."""
    found = {}
    for workload in run.workloads:
        base, cell = run.cell(workload, "NumPy"), run.cell(workload, tool)
        if base and cell and base.timing and cell.timing and not cell.wrong:
            found[workload] = base.timing.seconds / cell.timing.seconds
    return found


def middle(values: Collection[float]) -> float:
    """The geometric mean: half and double cancel out."""
    return math.exp(sum(map(math.log, values)) / len(values))


def figures_of(run: Run, ours: Iterable[str], peers: Iterable[str] = ()) -> list[Figure]:
    """Our own cells beside NumPy's and the peers', with the bounds that are published for them. Peers have none."""
    figures = []
    for tool in ours:
        cells = [each for each in run.cells if each.tool == tool]
        for cell in cells:
            figures += _of_cell(cell, run.cell(cell.workload, "NumPy"))
        if not cells:
            continue
        wrong = sum(each.wrong for each in cells)
        figures.append(Figure(name=f"{tool}: wrong results", value=wrong, unit="cells", bound=0.5))
        fast = speeds(run, tool)
        if fast:
            mean = 1 / middle(fast.values())
            figures.append(Figure(name=f"{tool}: by NumPy, mean", value=mean, unit="×", bound=1 / TIMES_AS_FAST))
        for peer in peers:
            both = {name: theirs / fast[name] for name, theirs in speeds(run, peer).items() if name in fast}
            if both:
                figures.append(
                    Figure(
                        name=f"{tool}: by {peer}, mean of {len(both)}", value=middle(both.values()), unit="×", bound=1
                    )
                )
    return figures


def _of_cell(cell: Cell, base: Cell | None) -> list[Figure]:
    if base is None or base.timing is None or base.first is None:
        return []
    where = f"{cell.tool}, {cell.workload}"
    if cell.timing is None or cell.first is None:
        return [Figure(name=f"{where}: not measured", value=1, unit="cells", bound=0.5)]
    if cell.workload == SMALL:
        seconds = cell.timing.seconds
        warm = Figure(name=f"{where}: a call", value=1e6 * seconds, unit="µs", bound=1e6 * SMALL_SECONDS)
    else:
        ratio = cell.timing.seconds / base.timing.seconds
        warm = Figure(name=f"{where}: by NumPy", value=ratio, unit="×", bound=NUMPY_BOUND)
    later = max(0.0, cell.first - base.first)
    return [warm, Figure(name=f"{where}: first result after NumPy's", value=later, unit="s", bound=FIRST_SECONDS)]
