"""anygpu beside what users might pick instead: `python -m benchmarks.peers [--json FILE] [--check] [--write PAGE]`.

Eleven workloads, each written idiomatically for each tool, with NumPy, numexpr, Numba, JAX, torch, its
compiler, and anygpu as it is, with `on="cpu"` and with `exact=True`. Each cell is a process of its own: its time to a
first result, a call when it is warm, and the memory it took. Beside them is what each tool takes on the disk. All of it
takes about ten minutes.

With --json the file is written after each workload, and --resume goes on where such a file ends. --from reads one
instead of measuring, so that a page can be written again.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import TypeVar

import msgspec

from benchmarks.peers.install_sizes import install
from benchmarks.peers.measuring import load_once, measure
from benchmarks.peers.page import page_of, table_of
from benchmarks.peers.readings import CHOOSING, PEERS
from benchmarks.peers.results import Run, figures_of
from benchmarks.peers.tools import TOOLS, Tool
from benchmarks.peers.workloads import WORKLOADS, Workload
from benchmarks.report import say, this_machine

ROUNDS, QUICK_ROUNDS = 5, 2
#: Of --quick: an expression, a library call and overhead.
QUICK = ("black_scholes", "perceptron", "small")
Named = TypeVar("Named", Workload, Tool)
PACKAGES = ("numpy", "llvmlite", "numexpr", "numba", "jax", "torch", "wgpu", "pyopencl")


def new_run(options: argparse.Namespace) -> Run:
    return Run(
        machine=this_machine(),
        date=datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        load=round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else 0.0,
        versions={name: version for name in PACKAGES if (version := installed_version(name))}
        | {"Python": platform.python_version()},
        rounds=options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS),
    )


def installed_version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def measured(run: Run, workloads: list[Workload], tools: list[Tool], sizes: bool, save: Callable[[Run], None]) -> Run:
    """The run with all that it lacks; saved after each step, so that it can go on from there."""
    begin = time.perf_counter()
    before = run.seconds
    known = {each.tool for each in run.installed if not each.reason}
    done = {(each.workload, each.tool) for each in run.cells}
    if any((workload.name, tool.name) not in done for workload in workloads for tool in tools):
        load_once(tools)
    for workload in workloads:
        lacking = [tool for tool in tools if (workload.name, tool.name) not in done]
        if not lacking:
            continue
        say(f"{workload.title}, {workload.size}")
        # Ratios are of one run: what was measured before is measured again beside what was not.
        run = msgspec.structs.replace(run, cells=tuple(each for each in run.cells if each.workload != workload.name))
        run = run.with_cells(measure(workload, tools, rounds=run.rounds))
        run = msgspec.structs.replace(run, seconds=before + time.perf_counter() - begin)
        save(run)
    for tool in tools if sizes else ():
        # The compiler of torch comes with it.
        if tool.name in known or tool.factory != "function":
            continue
        say(f"pip install {' '.join(tool.pip)}, into an empty folder")
        others = tuple(each for each in run.installed if each.tool != tool.name)
        run = msgspec.structs.replace(run, installed=(*others, install(tool)))
        run = msgspec.structs.replace(run, seconds=before + time.perf_counter() - begin)
        save(run)
    return run


def chosen(everything: tuple[Named, ...], wanted: str | None) -> list[Named]:
    names = [name.strip() for name in (wanted or "").split(",") if name.strip()]
    known = {each.name for each in everything}
    if unknown := [name for name in names if name not in known]:
        raise SystemExit(f"{unknown[0]!r} is none of {', '.join(each.name for each in everything)}.")
    return [each for each in everything if not names or each.name in names]


def main(given: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--json", metavar="FILE", type=Path, help="save the run there, after each workload")
    parser.add_argument("--resume", action="store_true", help="go on with the run in the file of --json")
    parser.add_argument("--from", dest="read", metavar="FILE", type=Path, help="read a run instead of measuring")
    parser.add_argument("--write", metavar="PAGE", type=Path, help="write the page of the documentation")
    parser.add_argument("--check", action="store_true", help="exit 1 when one of anygpu's own bounds is missed")
    parser.add_argument("--quick", action="store_true", help="three workloads, two rounds, no installs")
    parser.add_argument("--workloads", metavar="NAMES", help="with commas between: " + ", ".join(_names(WORKLOADS)))
    parser.add_argument("--tools", metavar="NAMES", help="with commas between: " + ", ".join(_names(TOOLS)))
    parser.add_argument("--rounds", type=int, help=f"turns of each tool; {ROUNDS} unless told otherwise")
    parser.add_argument("--no-installs", action="store_true", help="leave out what each tool takes on the disk")
    options = parser.parse_args(given)
    if options.resume and options.json is None:
        parser.error("--resume goes on with the run in a file: name it with --json FILE")

    if options.read is not None:
        run = msgspec.json.decode(options.read.read_bytes(), type=Run)
    else:
        workloads = chosen(WORKLOADS, options.workloads or (",".join(QUICK) if options.quick else None))
        tools = chosen(TOOLS, options.tools)
        kept = options.resume and options.json.exists()
        run = msgspec.json.decode(options.json.read_bytes(), type=Run) if kept else new_run(options)
        sizes = not (options.quick or options.no_installs)
        try:
            run = measured(run, workloads, tools, sizes, lambda each: save(each, options.json))
        except KeyboardInterrupt:
            kept_in = f"--json {options.json} --resume goes on from there" if options.json else "nothing is kept"
            raise SystemExit(f"Stopped: {kept_in}.") from None
    sys.stdout.write(table_of(run) + "\n")
    if options.write is not None:
        options.write.write_text(page_of(run), encoding="utf-8")
    judge(run, options.check)


def save(run: Run, file: Path | None) -> None:
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        # Nobody who stops the run finds half a file.
        part = file.with_suffix(".part")
        part.write_bytes(msgspec.json.format(msgspec.json.encode(run)) + b"\n")
        part.replace(file)


def judge(run: Run, check: bool) -> None:
    figures = figures_of(run, CHOOSING, PEERS)
    sys.stdout.write("\n".join(map(str, figures)) + "\n")
    if check and figures:
        worst = max(figures, key=lambda figure: figure.share)
        sys.stdout.write(f"worst: {worst}\n")
        sys.exit(1 if worst.share > 1 else 0)


def _names(everything: tuple[Workload, ...] | tuple[Tool, ...]) -> list[str]:
    return [each.name for each in everything]


if __name__ == "__main__":
    main()
