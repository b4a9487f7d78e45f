"""Whole short scripts, from start to exit: `python -m benchmarks.short_scripts [--quick] [--json] [--check]`.

Each script calls one function some times. It is measured as it is on plain NumPy, offloaded, and with the device forced
that a survey beforehand found fastest, in turns. The first process begins with an empty cache, drivers' own included;
the second and third find what those before them have left. An install is a set of engines that the script can see. A
last script of each program stays for three seconds after its calls, to see what goes on behind its back. Times are
medians of the rounds; those of NumPy and of the forced device, for which all processes are alike, of all of them.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from anygpu.units import readable_bytes, readable_seconds
from benchmarks.report import options_parser, say, this_machine
from benchmarks.short_script import OFFLOAD, PLAIN
from benchmarks.short_script_cells import (
    Cell,
    Failure,
    Idle,
    Run,
    figures_of,
    idle_rows,
    misses,
    rows_of,
)
from benchmarks.short_script_processes import INSTALLS, Measured, compile_sources, run_script, used_by_others
from benchmarks.short_script_program import CALLS, Program
from benchmarks.short_script_programs import PROGRAMS
from benchmarks.short_script_workloads import WORKLOADS

EVERY = (*PROGRAMS, *WORKLOADS)
PROCESSES = (1, 2, 3)
ROUNDS = 3
#: Calls of a forced device in the survey; the last ones count.
SURVEYED, COUNTED = 6, 3
#: Calls of the script that then stays, and the seconds after the last of them between which it is watched.
IDLE_CALLS = 10
IDLE = (1.0, 3.0)

#: Of `--quick`.
QUICK = ("logistic_regression", "gamma_correction", "pairwise_distances", "small_network")
QUICK_CALLS = (3, 30)
QUICK_INSTALLS = ("core", "opencl")


class Survey(NamedTuple):
    """Seconds of a call, when everything is compiled: of NumPy, and of each engine that runs the program at all."""

    numpy: float
    engines: dict[str, float]

    def best_of(self, engines: Sequence[str]) -> str | None:
        """The fastest of these, if it is faster than NumPy."""
        known = [engine for engine in engines if engine in self.engines]
        best = min(known, key=lambda engine: self.engines[engine], default=None)
        return best if best is not None and self.engines[best] < self.numpy else None


class Bench:
    """Measures programs, in folders of its own."""

    def __init__(self, folder: Path, installs: Sequence[str], *, rounds: int, idle: tuple[float, float] = IDLE) -> None:
        self.folder = folder
        self.installs = tuple(installs)
        self.rounds = rounds
        self.idle_time = idle
        self.failures: list[Failure] = []

    def survey(self, program: Program) -> Survey:
        """What is compiled for a forced device stays in its folder: its later processes are not first ones."""
        plain = self._script(program, SURVEYED, PLAIN)
        found = {}
        for engine in dict.fromkeys(engine for install in self.installs for engine in INSTALLS[install]):
            taken = run_script(program, SURVEYED, engine, folder=self._forced(program, engine), engines=(engine,))
            if taken.failed:
                # Not every engine runs every program.
                say(f"    {engine} does not run {program.name}: {taken.failed}")
            else:
                found[engine] = steady(taken)
        survey = Survey(steady(plain), found)
        times = ", ".join(f"{name} {readable_seconds(seconds)}" for name, seconds in survey.engines.items())
        say(f"{program.name}: a call takes {readable_seconds(survey.numpy)} on numpy, {times}")
        return survey

    def cells(self, program: Program, calls: int, survey: Survey) -> list[Cell]:
        """One for each install and process."""
        best = {install: survey.best_of(INSTALLS[install]) for install in self.installs}
        plain: list[Measured] = []
        forced: dict[str, list[Measured]] = {engine: [] for engine in best.values() if engine}
        offloaded: dict[tuple[str, int], list[Measured]] = {}
        for number in range(self.rounds):
            for process in PROCESSES:
                plain.append(self._script(program, calls, PLAIN))
                for install in self.installs:
                    folder = self.folder / program.name / f"{install}-{calls}-{number}"
                    taken = self._script(program, calls, OFFLOAD, install, folder)
                    offloaded.setdefault((install, process), []).append(taken)
                for engine, samples in forced.items():
                    samples.append(self._script(program, calls, engine, engine, self._forced(program, engine)))
        cells = []
        for (install, process), samples in offloaded.items():
            good, device = [each for each in samples if not each.failed], best[install]
            references = [each for each in forced.get(device or "", []) if not each.failed]
            if not good or not any(not each.failed for each in plain):
                continue
            cells.append(
                Cell(
                    program=program.name,
                    calls=calls,
                    install=install,
                    process=process,
                    numpy=statistics.median(each.seconds for each in plain),
                    numpy_processor=statistics.median(each.processor for each in plain),
                    offload=statistics.median(each.seconds for each in good),
                    processor=statistics.median(each.processor for each in good),
                    device=device,
                    forced=statistics.median(each.seconds for each in references) if references else None,
                    numpy_call=min(survey.numpy, steady(*plain)),
                    device_call=min(survey.engines[device], steady(*references)) if device else None,
                    devices=good[-1].devices,
                    moved_at=good[-1].moved_at,
                    rounds=tuple(each.seconds for each in good),
                )
            )
        return cells

    def idle(self, program: Program, install: str) -> Idle | None:
        """A first process that stays after its calls."""
        folder = self.folder / program.name / f"{install}-idle"
        taken = self._script(program, IDLE_CALLS, OFFLOAD, install, folder, self.idle_time)
        if taken.later is None:
            return None
        return Idle(program=program.name, calls=IDLE_CALLS, install=install, seconds=taken.later)

    def _script(
        self,
        program: Program,
        calls: int,
        side: str,
        install: str = "",
        folder: Path | None = None,
        idle: tuple[float, float] | None = None,
    ) -> Measured:
        """A script that has to end well; `install` may also be one engine, and nothing for plain NumPy."""
        engines = INSTALLS.get(install, (install or "numpy",))
        folder = folder or self.folder / program.name / "plain"
        taken = run_script(program, calls, side, folder=folder, engines=engines, idle=idle)
        name = f"{program.name} × {calls}, {side} {install}".rstrip()
        if taken.failed:
            self._failed(name, taken.failed)
        if taken.left_behind:
            self._failed(name, f"{taken.left_behind} processes were alive long after it had ended")
        return taken

    def _failed(self, script: str, reason: str) -> None:
        say(f"    FAILED: {script}: {reason}")
        self.failures.append(Failure(script=script, reason=reason))

    def _forced(self, program: Program, engine: str) -> Path:
        return self.folder / program.name / f"forced-{engine}"


def steady(*taken: Measured) -> float:
    """The fastest of the last calls: others use the machine too, which only ever adds time."""
    return min((seconds for each in taken for seconds in each.calls[-COUNTED:]), default=math.inf)


def run(
    programs: Sequence[Program],
    calls: Sequence[int],
    installs: Sequence[str],
    *,
    rounds: int,
    idle: tuple[float, float] = IDLE,
) -> Run:
    begin, others = time.perf_counter(), used_by_others()
    compile_sources()
    cells: list[Cell] = []
    stayed: list[Idle] = []
    with tempfile.TemporaryDirectory(prefix="anygpu-short-scripts-", ignore_cleanup_errors=True) as folder:
        bench = Bench(Path(folder), installs, rounds=rounds, idle=idle)
        try:
            for number, program in enumerate(programs, 1):
                say(f"[{number}/{len(programs)}, {readable_seconds(time.perf_counter() - begin)}] {program.name}")
                survey = bench.survey(program)
                for each in program.calls(tuple(calls)):
                    found = bench.cells(program, each, survey)
                    cells += found
                    for line in rows_of(found)[1:]:
                        say(f"  {line}")
                stayed += [idled for install in installs if (idled := bench.idle(program, install))]
        except KeyboardInterrupt:
            say("Stopped: what has been measured is reported.")
    seconds, others_now = time.perf_counter() - begin, used_by_others()
    return Run(
        machine=this_machine(),
        cells=tuple(cells),
        idle=tuple(stayed),
        failures=tuple(bench.failures),
        figures=tuple(figures_of(cells, stayed, bench.failures)),
        seconds=seconds,
        others=(others_now - others) / (seconds * (os.cpu_count() or 1))
        if others is not None and others_now is not None
        else None,
    )


def report(found: Run) -> str:
    """The table, the machine, every miss, and the summary of bounds last."""
    machine = found.machine
    missed = misses(found.cells, found.idle)
    others = "" if found.others is None else f"; others used {100 * found.others:.0f} % of the machine"
    lines = [*rows_of(found.cells), "", *idle_rows(found.idle), ""]
    lines += [f"FAILED: {each.script}: {each.reason}" for each in found.failures]
    lines += [f"MISSED: {each}" for each in missed]
    lines += [
        f"on {machine.processor}, {machine.cores} cores, {readable_bytes(machine.memory)}, {machine.system}, "
        f"Python {machine.python}; {readable_seconds(found.seconds)} in all{others}",
        "",
        *map(str, found.figures),
    ]
    return "\n".join(lines)


def parser() -> argparse.ArgumentParser:
    found = options_parser(__doc__)
    found.formatter_class = argparse.RawDescriptionHelpFormatter
    found.add_argument("--quick", action="store_true", help="a few programs and cells, in less than five minutes")
    found.add_argument("--programs", metavar="A,B", help="their names, or tags such as small, loop, device and numpy")
    found.add_argument("--calls", metavar="1,3", help=f"how often a script calls, of {', '.join(map(str, CALLS))}")
    found.add_argument("--installs", metavar="A,B", help=f"of {', '.join(INSTALLS)}")
    found.add_argument("--rounds", type=int, help=f"how often each cell is measured: {ROUNDS}, quick 1")
    return found


def chosen(options: argparse.Namespace) -> tuple[list[Program], list[int], list[str], int]:
    """What is measured. Ends the command, with what there is, for a name that there is not."""
    names = _listed(options.programs) or list(QUICK if options.quick else [each.name for each in EVERY])
    known = {each.name for each in EVERY}.union(*(each.tags for each in EVERY))
    installs = _listed(options.installs) or list(QUICK_INSTALLS if options.quick else INSTALLS)
    for what, wanted, there in (("program", names, known), ("install", installs, set(INSTALLS))):
        if unknown := sorted(set(wanted) - there):
            raise SystemExit(f"There is no {what} {', '.join(unknown)}; there are {', '.join(sorted(there))}.")
    try:
        calls = [int(each) for each in _listed(options.calls)] or list(QUICK_CALLS if options.quick else CALLS)
    except ValueError:
        raise SystemExit(f"--calls takes numbers separated by commas, such as 1,10; got {options.calls!r}.") from None
    programs = [each for each in EVERY if each.name in names or each.tags.intersection(names)]
    return programs, calls, installs, options.rounds or (1 if options.quick else ROUNDS)


def _listed(given: str | None) -> list[str]:
    return [each.strip() for each in (given or "").split(",") if each.strip()]


def main() -> None:
    options = parser().parse_args()
    programs, calls, installs, rounds = chosen(options)
    found = run(programs, calls, installs, rounds=rounds)
    if options.json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(found)).decode() + "\n")
    else:
        sys.stdout.write(report(found) + "\n")
    if options.check:
        worst = max(found.figures, key=lambda figure: figure.share)
        sys.stdout.write(f"worst: {worst}\n")
        sys.exit(1 if worst.share > 1 else 0)


if __name__ == "__main__":
    main()
