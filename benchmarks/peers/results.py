"""What a run has measured, and how it is judged: pure values, so a saved run can be read again."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from benchmarks.calls import MICROSECONDS
from benchmarks.cells import NUMPY_BOUND, SHORT, Timing
from benchmarks.peers.tolerances import SHARE_THAT_MAY_DIFFER
from benchmarks.report import Figure, Machine
from benchmarks.short_script_cells import NUMPY_FACTOR, NUMPY_SECONDS


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
    #: Seconds that anygpu is called in a process before it is timed, and in how many processes before that one.
    settling: float
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


def figures_of(run: Run, ours: Iterable[str]) -> list[Figure]:
    """Our own cells beside NumPy's, with the bounds that are published for them. Peers have none."""
    figures = []
    for tool in ours:
        cells = [each for each in run.cells if each.tool == tool]
        for cell in cells:
            base = run.cell(cell.workload, "NumPy")
            if base is None or base.timing is None or base.first is None:
                continue
            where = f"{tool}, {cell.workload}"
            if cell.timing is None or cell.first is None:
                figures.append(Figure(name=f"{where}: not measured", value=1, unit="cells", bound=0.5))
                continue
            if base.timing.seconds < SHORT:
                beyond = 1e6 * (cell.timing.seconds - base.timing.seconds)
                figures.append(Figure(name=f"{where}: beyond NumPy", value=beyond, unit="µs", bound=MICROSECONDS))
            else:
                ratio = cell.timing.seconds / base.timing.seconds
                figures.append(Figure(name=f"{where}: by NumPy", value=ratio, unit="×", bound=NUMPY_BOUND))
            bound = NUMPY_FACTOR * base.first + NUMPY_SECONDS
            figures.append(Figure(name=f"{where}: first result", value=cell.first, unit="s", bound=bound))
        if not cells:
            continue
        wrong = sum(each.wrong for each in cells)
        figures.append(Figure(name=f"{tool}: wrong results", value=wrong, unit="cells", bound=0.5))
    return figures
