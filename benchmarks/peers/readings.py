"""What a run says, in sentences: who was fastest at what, and why. No sentence claims what its figures do not show."""

from __future__ import annotations

import math
from collections.abc import Sequence

from anygpu.base.units import readable_bytes
from benchmarks.peers.results import Cell, Run, middle, speeds
from benchmarks.peers.tools import TOOLS
from benchmarks.peers.workloads import WORKLOADS

#: Why a tool is fast at something, where it was: by workload, or in general.
REASONS = {
    "NumPy": {
        "": "it has the least to do before and after the work",
        "perceptron": "nearly all of it is one call of BLAS",
    },
    "numexpr": {"": "it works in blocks that fit into the caches, on both cores"},
    "Numba": {
        "": "it is one compiled loop on both cores, without arrays in between",
        "mandelbrot": "its loop stops for each point that has escaped, which whole-array code cannot",
        "small": "one compiled function has neither temporary arrays nor a dispatch for each operation",
    },
    "JAX": {"": "XLA fuses the function into few loops on both cores"},
    "torch": {
        "": "its own operations are vectorised and run on both cores",
        "distances": "`cdist` is a matrix product",
        "softmax": "softmax is one of its operations",
        "perceptron": "its products (MKL) and its tanh run on both cores",
    },
    "torch.compile": {"": "its compiler fuses the function into few vectorised loops on both cores"},
    "anygpu": {"": "it calls NumPy, or native code where that measured faster"},
    'anygpu on="cpu"': {
        "": "LLVM compiles the function into few vectorised loops on both cores, on NumPy's own arrays"
    },
}
OURS = tuple(tool.name for tool in TOOLS if tool.ours)
PEERS = tuple(tool.name for tool in TOOLS if not tool.ours and tool.name != "NumPy")
CHOOSING = tuple(tool.name for tool in TOOLS if tool.chooses)


def readings_of(run: Run) -> list[str]:
    """Paragraphs and lists."""
    ours = [text for tool in CHOOSING if (text := _ours(run, tool))]
    return ["Fastest when warm:", _winners(run), _totals(run), _starts(run), *ours]


def _winners(run: Run) -> str:
    titles = {each.name: each.title for each in WORKLOADS}
    lines = []
    for workload in run.workloads:
        cells = [each for each in run.cells if each.workload == workload and each.timing and not each.wrong]
        if not cells:
            continue
        best = min(cells, key=lambda cell: cell.timing.seconds if cell.timing else math.inf)
        reasons = REASONS.get(best.tool, REASONS["anygpu"])
        fast = speeds(run, best.tool).get(workload)
        times = f", {fast:.2g} times as fast as NumPy" if fast is not None and best.tool != "NumPy" else ""
        beside = "; ".join(_beside(run, workload, tool) for tool in OURS if tool != best.tool and tool in run.tools)
        why = reasons.get(workload, reasons[""])
        lines.append(f"- **{titles[workload]}**: {best.tool}{times}, because {why}{f' ({beside})' if beside else ''}.")
    return "\n".join(lines)


def _beside(run: Run, workload: str, tool: str) -> str:
    fast = speeds(run, tool).get(workload)
    return f"{tool} {fast:.2g}×" if fast is not None else f"{tool} not measured"


def _totals(run: Run) -> str:
    found = {tool: list(speeds(run, tool).values()) for tool in run.tools if tool != "NumPy"}
    ordered = sorted(((middle(values), tool) for tool, values in found.items() if values), reverse=True)
    listed = ", ".join(f"{tool} {value:.2g}×" for value, tool in ordered)
    return f"As fast as NumPy, in the geometric mean of the workloads that each has: {listed}."


def _starts(run: Run) -> str:
    """What is paid before the first result."""
    means = {}
    for tool in run.tools:
        firsts = [each.first for each in run.cells if each.tool == tool and each.first is not None]
        if firsts:
            means[tool] = sum(firsts) / len(firsts)
    listed = ", ".join(f"{tool} {value:.1f} s" for tool, value in sorted(means.items(), key=lambda each: each[1]))
    sizes = ", ".join(f"{each.tool} {readable_bytes(each.bytes)}" for each in run.installed if each.bytes)
    on_disk = f" On the disk: {sizes}." if sizes else ""
    return (
        f"The first result takes, on average: {listed}. A tool that compiles pays that back only where it is called "
        f"often enough.{on_disk}"
    )


def _ours(run: Run, tool: str) -> str:
    found = speeds(run, tool)
    if not found:
        return ""
    cells = [each for each in run.cells if each.tool == tool and each.timing]
    stayed = [each for each in cells if each.device == "numpy"]
    behind = [workload for workload in found if found[workload] < _best_peer(run, workload) / 2]
    titles = {each.name: each.title for each in WORKLOADS}
    text = f"**{tool}** stayed on NumPy in {len(stayed)} of {len(cells)} workloads{_moved(cells)}."
    if behind:
        listed = ", ".join(titles[each] for each in behind)
        text += (
            f" A peer was more than twice as fast at {listed}: if one of these is your program, "
            "and you can write it for that tool, do."
        )
    return text


def _moved(cells: Sequence[Cell]) -> str:
    moved = sorted({each.device for each in cells} - {"numpy"})
    return f" and moved the others to {' and '.join(f'`{each}`' for each in moved)}" if moved else ""


def _best_peer(run: Run, workload: str) -> float:
    return max((speeds(run, tool).get(workload, 0.0) for tool in run.tools if tool not in OURS), default=0.0)
