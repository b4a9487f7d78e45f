"""Whole short scripts, from start to exit: `python -m benchmarks.short_scripts [--quick] [--load] [--json] [--check]`.

Each script calls one function some times, once as it is on plain NumPy and once offloaded, in turns. The first process
begins with an empty cache, drivers' own included; the second and third find what those before them have left. "plain"
is a virtual environment with what `pip install anygpu` brings; "every" is this one, with all engines that are installed
in it. Each is measured with the bytecode of its modules and without. A row that misses a bound is measured twice again,
and its middle round counts. All of it takes hours; --quick takes about three minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from anygpu.base.units import readable_seconds
from benchmarks.load import busy_processes
from benchmarks.report import options_parser, publish, say
from benchmarks.short_script import EVERY, OFFLOAD, PLAIN
from benchmarks.short_script_cells import HEADER, Cell, figures_of, rows_of
from benchmarks.short_script_processes import Measured, compile_sources, plain_python, run_script
from benchmarks.short_script_program import CALLS, Program

PROCESSES = (1, 2, 3)
#: Of a row that misses a bound.
ROUNDS = 3
NO_BYTECODE = "no bytecode"
INSTALLS = ("plain", "every", f"plain, {NO_BYTECODE}", f"every, {NO_BYTECODE}")

#: Of `--quick`: one program that gains much and one that gains little, one that is short, and one that stays on NumPy.
QUICK = ("haversine", "heat_step", "dot", "core_points")
QUICK_CALLS, QUICK_INSTALLS = (3, 30, 300), ("plain", f"every, {NO_BYTECODE}")


class Bench:
    """Measures rows of cells, in folders of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.plain = plain_python(folder / "plain")
        self.failures: list[str] = []
        self._rows = 0

    def row(self, program: Program, calls: int, install: str) -> list[Cell]:
        """A cell for each process; again where one of them misses a bound."""
        cells = self._round(program, calls, install)
        for _ in range(ROUNDS - 1):
            if not any(cell.missed for cell in cells):
                break
            again = self._round(program, calls, install)
            cells = [cell.with_round(other) for cell, other in zip(cells, again, strict=False)]
        return cells

    def _round(self, program: Program, calls: int, install: str) -> list[Cell]:
        self._rows += 1
        folder = self.folder / f"row-{self._rows}"
        cells = []
        for process in PROCESSES:
            numpy = self._script(program, calls, PLAIN, install, folder / "numpy")
            ours = self._script(program, calls, OFFLOAD, install, folder / "ours")
            if numpy.failed or ours.failed:
                return []
            cells.append(
                Cell(
                    program=program.name,
                    calls=calls,
                    install=install,
                    process=process,
                    recorded=program.recorded,
                    bytecode=NO_BYTECODE not in install,
                    numpy_rounds=(numpy.seconds,),
                    offload_rounds=(ours.seconds,),
                    numpy_processor_rounds=(numpy.processor,),
                    processor_rounds=(ours.processor,),
                    device=ours.device,
                )
            )
        return cells

    def _script(self, program: Program, calls: int, side: str, install: str, folder: Path) -> Measured:
        python = self.plain if install.startswith("plain") else sys.executable
        taken = run_script(program, calls, side, folder=folder, python=python, bytecode=NO_BYTECODE not in install)
        if taken.failed:
            self.failures.append(f"{program.name} × {calls}, {side}, {install}: {taken.failed}")
            say(f"FAILED: {self.failures[-1]}")
        return taken


def run(
    programs: Sequence[Program], calls: Sequence[int], installs: Sequence[str], *, load: bool = False
) -> tuple[list[Cell], list[str]]:
    """All cells, and the scripts that failed."""
    begin = time.perf_counter()
    compile_sources()
    cells: list[Cell] = []
    say(HEADER)
    with (
        tempfile.TemporaryDirectory(prefix="anygpu-short-scripts-", ignore_cleanup_errors=True) as folder,
        busy_processes(2) if load else contextlib.nullcontext(),
    ):
        bench = Bench(Path(folder))
        try:
            for number, program in enumerate(programs, 1):
                for install in installs:
                    for each in program.calls(tuple(calls)):
                        found = bench.row(program, each, install)
                        cells += found
                        for line in rows_of(found):
                            say(line)
                say(f"[{number}/{len(programs)}, {readable_seconds(time.perf_counter() - begin)}]")
        except KeyboardInterrupt:
            say("Stopped: what has been measured is reported.")
    return cells, bench.failures


def parser() -> argparse.ArgumentParser:
    found = options_parser(__doc__)
    found.add_argument("--quick", action="store_true", help=f"{', '.join(QUICK)}; {QUICK_CALLS} calls; two installs")
    found.add_argument("--load", action="store_true", help="beside two busy processes")
    found.add_argument("--only", metavar="NAME", help="programs with this name or tag")
    found.add_argument("--calls", type=int, nargs="+", metavar="N", help=f"instead of {CALLS}")
    found.add_argument("--installs", nargs="+", choices=INSTALLS)
    found.add_argument("--cells", type=Path, metavar="FILE.json", help="write all cells there")
    return found


def chosen(options: argparse.Namespace) -> tuple[list[Program], Sequence[int], Sequence[str]]:
    """What is measured. Ends the command, with what there is, for a name that there is not."""
    if options.only:
        programs = [each for each in EVERY if options.only == each.name or options.only in each.tags]
    else:
        programs = [each for each in EVERY if not options.quick or each.name in QUICK]
    if not programs:
        raise SystemExit(f"There is no program {options.only}; there are {', '.join(each.name for each in EVERY)}.")
    calls = options.calls or (QUICK_CALLS if options.quick else CALLS)
    return programs, calls, options.installs or (QUICK_INSTALLS if options.quick else INSTALLS)


def main() -> None:
    options = parser().parse_args()
    cells, failures = run(*chosen(options), load=options.load)
    if options.cells:
        options.cells.write_bytes(msgspec.json.format(msgspec.json.encode(cells)))
    if not options.json:
        sys.stdout.write("\n".join([HEADER, *rows_of(cells), *(f"FAILED: {each}" for each in failures), "", ""]))
    publish(figures_of(cells, failures), options)


if __name__ == "__main__":
    main()
