"""The page of the documentation: tables and a reading of one run, both from its figures alone."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence

from anygpu.base.units import readable_bytes, readable_seconds
from benchmarks.cells import NUMPY_BOUND
from benchmarks.peers.readings import CHOOSING, PEERS, readings_of
from benchmarks.peers.results import FIRST_SECONDS, SMALL_SECONDS, TIMES_AS_FAST, Cell, Run, figures_of
from benchmarks.peers.tolerances import SHARE_THAT_MAY_DIFFER, TOLERANCES
from benchmarks.peers.tools import TOOLS
from benchmarks.peers.workloads import WORKLOADS

#: What is within this of the best time counts as best: two runs differ by more.
AS_GOOD = 1.03
#: Above this the machine had other work when the run began.
QUIET_LOAD = 0.6

HOW = """\
Each cell is a process of its own. NumPy's functions are those of `examples/` and `benchmarks/peers/in_numpy.py`; anygpu
runs the same functions with `@ag.offload` above them, and nothing else. numexpr evaluates each chain as one expression,
with NumPy around it. Numba compiles loops with `njit(parallel=True)` and without `fastmath`. JAX compiles the whole
function, with 64 bits enabled. torch runs operation by operation, and once more compiled. Arguments are in each tool's
own arrays before the first call; anygpu takes and returns NumPy's. Each tool has as many threads as it likes."""

COMPILED = """\
`anygpu on="cpu"` is the same with `@ag.offload(on="cpu")`: nothing is chosen, and LLVM compiles for the processor."""

EXACT = """\
`anygpu exact=True` is the same with `@ag.offload(exact=True)`: every bit is NumPy's, and what takes NumPy for that
stays there."""

CUPY = """\
**CuPy** is left out: it needs an NVIDIA or AMD card, and this machine has no GPU. So this page shows what each tool
makes of the processor. It cannot show what a GPU would gain, nor which of these tools would use it."""

COMMAND = """\
<!-- docs-test: not run: it takes ten minutes, and needs a checkout -->
```console
$ pip install --group test --group peers '.[torch,jax,opencl]'
$ python -m benchmarks.peers --json benchmarks/results/peers.json --write docs/benchmarks-peers.md --check
```"""

FIRST = """\
Seconds from the start of Python until the first result is there: importing, compiling and calling. Nothing was compiled
or learnt in an earlier process: Numba's `cache=True`, the caches of torch and JAX, and anygpu's history make later
processes faster."""

MEMORY = """\
MiB at most, of the process and of those it started that were there at the end. anygpu has a process for each device
that it uses, and torch has some for its compiler."""

DISK = """\
What pip puts into an empty folder, NumPy and all other dependencies included, without compiled Python files. The
compiler of torch also needs a C++ compiler, which is not counted."""


def page_of(run: Run) -> str:
    footnotes = Footnotes()
    steady = _table(run, lambda cell: _steady(run, cell), footnotes)
    first = _table(run, lambda cell: _first(run, cell), footnotes)
    memory = _table(run, lambda cell: f"{cell.peak_bytes / 2**20:,.0f}" if cell.peak_bytes else None, footnotes)
    parts = [
        "# Comparison with other libraries",
        "<!-- Written by `python -m benchmarks.peers --write`: change benchmarks/peers/page.py instead. -->",
        _what(run),
        _machine(run),
        COMMAND,
        HOW,
        *([COMPILED] if 'anygpu on="cpu"' in run.tools else []),
        *([EXACT] if "anygpu exact=True" in run.tools else []),
        _tolerances(),
        CUPY,
        "## A call when it is warm",
        _warm(run),
        steady,
        "## The first result",
        FIRST,
        first,
        "## Memory",
        MEMORY,
        memory,
        "## On the disk",
        DISK,
        _sizes(run),
        *footnotes.parts(),
        "## How to read it",
        *readings_of(run),
        "## What anygpu promises here",
        *_promises(run),
    ]
    return "\n\n".join(map(_wrapped, parts)) + "\n"


def _wrapped(part: str) -> str:
    """Paragraphs at the width of other pages; tables, lists, code and comments as they are."""
    as_it_is = part.startswith(("|", "<!--", "#", "- ", "1. "))
    return part if as_it_is else textwrap.fill(part, 120, break_on_hyphens=False)


def _what(run: Run) -> str:
    return (
        f"{_count(len(run.workloads))} workloads, each written idiomatically for each tool, on one "
        f"machine, a row at a time, in {run.seconds / 60:.0f} minutes."
    )


def _tolerances() -> str:
    tolerances = " and ".join(f"{value:g} ({name})" for name, value in TOLERANCES.items())
    return (
        f"Results are compared with NumPy's first: of each, at most one element in {1 / SHARE_THAT_MAY_DIFFER:,.0f} "
        f"may be further away than {tolerances} of the greatest one. A tool that fails this is shown as **wrong**."
    )


def _warm(run: Run) -> str:
    learnt = ", and as long in a process before" if run.earlier else ""
    settled = f", anygpu for {run.settling:g} seconds{learnt}" if run.settling else ""
    return (
        f"The mean of the faster half of the samples, taken in {run.rounds} rounds in which all tools of a row take "
        f"turns. All tools were called for 0.3 seconds before{settled}. The device that anygpu chose is beside its "
        "time. The best of a row is in bold."
    )


class Footnotes:
    """Reasons for cells without a figure; equal ones have one number."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def mark(self, reason: str) -> str:
        if reason not in self.reasons:
            self.reasons.append(reason)
        return f"— ({self.reasons.index(reason) + 1})"

    def parts(self) -> list[str]:
        if not self.reasons:
            return []
        lines = [f"{number}. {reason}" for number, reason in enumerate(self.reasons, 1)]
        return ["Cells without a figure:", "\n".join(lines)]


def table_of(run: Run) -> str:
    """For a terminal: a call when it is warm, and the first result."""
    rows = [["", *run.tools]]
    for workload in run.workloads:
        cells = [run.cell(workload, tool) for tool in run.tools]
        rows.append([workload, *(_plain(cell) for cell in cells)])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True)) for row in rows)


def _plain(cell: Cell | None) -> str:
    if cell is None or cell.timing is None or cell.first is None:
        return "—"
    wrong = " WRONG" if cell.wrong else ""
    return f"{readable_seconds(cell.timing.seconds)} ({cell.first:.1f} s){wrong}"


def _table(run: Run, text: Callable[[Cell], str | None], footnotes: Footnotes) -> str:
    titles = {each.name: f"{each.title} <br>{each.size}" for each in WORKLOADS}
    lines = [_row(["", *run.tools]), _row(["---", *["---:"] * len(run.tools)])]
    for workload in run.workloads:
        texts = [titles.get(workload, workload)]
        for tool in run.tools:
            cell = run.cell(workload, tool)
            shown = text(cell) if cell is not None else None
            reason = (cell.reason if cell is not None else "") or "It was left out of this run."
            texts.append(shown if shown is not None else footnotes.mark(reason))
        lines.append(_row(texts))
    return "\n".join(lines)


def _row(texts: Sequence[str]) -> str:
    return f"| {' | '.join(texts)} |"


def _steady(run: Run, cell: Cell) -> str | None:
    if cell.timing is None:
        return None
    if cell.wrong:
        return f"**wrong** ({cell.differing:.1%} differ)"
    right = [each for each in run.cells if each.workload == cell.workload and not each.wrong]
    times = [each.timing.seconds for each in right if each.timing]
    shown = readable_seconds(cell.timing.seconds)
    shown = f"**{shown}**" if cell.timing.seconds <= AS_GOOD * min(times) else shown
    return f"{shown} <br>{cell.device}" if cell.device else shown


def _first(run: Run, cell: Cell) -> str | None:
    if cell.first is None:
        return None
    times = [each.first for each in run.cells if each.workload == cell.workload and each.first is not None]
    return f"**{cell.first:.2f}**" if cell.first <= AS_GOOD * min(times) else f"{cell.first:.2f}"


def _sizes(run: Run) -> str:
    asked = {each.name: " ".join(each.pip) for each in TOOLS}
    lines = [_row(["pip install …", "on the disk", "packages"]), _row(["---", "---:", "---:"])]
    for each in run.installed:
        size = readable_bytes(each.bytes) if each.bytes else f"— ({each.reason})"
        # A saved run may have tools that are no longer measured.
        lines.append(_row([f"`{asked.get(each.tool, each.tool)}`", size, str(len(each.packages) or "—")]))
    if not run.installed:
        lines.append(_row(["not measured in this run", "—", "—"]))
    return "\n".join(lines)


def _machine(run: Run) -> str:
    machine, versions = run.machine, ", ".join(f"{name} {version}" for name, version in run.versions.items())
    quiet = "quiet" if run.load <= QUIET_LOAD else "**busy with other jobs**, so the figures are rough"
    return (
        f"The machine: {machine.cores} cores of {machine.processor}, {readable_bytes(machine.memory)} of memory, "
        f"{machine.system}, no GPU; `webgpu` is Mesa's lavapipe and `opencl` is PoCL, both on the processor. "
        f"On {run.date} it was {quiet} (load {run.load:g}). Versions: {versions}."
    )


def _promises(run: Run) -> list[str]:
    figures = figures_of(run, CHOOSING, PEERS)
    missed = [each for each in figures if each.share > 1]
    text = (
        f"Warm calls are {TIMES_AS_FAST:g} times as fast as NumPy's in the geometric mean, and faster than every other "
        f"tool's over the workloads that both have. None takes more than {NUMPY_BOUND:g} times as long as NumPy's; 100 "
        f"numbers are standardised in at most {SMALL_SECONDS * 1e6:g} µs. The first result comes at most "
        f"{FIRST_SECONDS * 1e3:.0f} ms after NumPy's. No result is wrong. "
        f"`--check` fails otherwise. Of {len(figures)} figures of this run, {len(missed) or 'none'} missed"
    )
    if not missed:
        return [f"{text}."]
    lines = [f"- {each.name}: {each.value:.3g} {each.unit}, bound {each.bound:.3g}" for each in missed]
    return [f"{text}:", "\n".join(lines)]


def _count(number: int) -> str:
    return {3: "Three", 10: "Ten", 11: "Eleven"}.get(number, str(number))
