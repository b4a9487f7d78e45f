"""How many random programs agree: with themselves batched, cut or simplified, and on one engine with NumPy.

`python -m benchmarks.agreement --what vmap|cut|fold --count 5000`, or
`python -m benchmarks.agreement --what engines --engines numpy,torch,jax --count 20000`.
Every program has its seed, by which it can be made again. Exits with 1 when anything disagrees.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Literal

import msgspec

from anygpu.engines.numpy import lowering
from anygpu.program.graph import Program
from anygpu.program.independence import independent_cuts
from anygpu.program.primitives import Linear, Primitive
from anygpu.program.transforms import simplified
from anygpu.receipts.receipt import host_operations
from anygpu.workers.device_arrays import registry
from benchmarks.report import this_machine
from tests.support.laws import broken_by_cutting, broken_by_simplifying, broken_by_vmap
from tests.support.random_programs import WEIGHTS, random_inputs, random_program
from tests.support.random_programs.error_bounds import disagreement

What = Literal["vmap", "cut", "fold", "engines"]

#: Linear algebra has one implementation on each engine, so with itself it must agree.
WITH_LINEAR: dict[type[Primitive], float] = {**WEIGHTS, Linear: 5.0}

#: After so many programs a new process takes over: engines keep what they have compiled.
PROGRAMS_A_PROCESS = 1000

#: Seconds in which an engine's devices have to be found.
LOOK_SECONDS = 300.0


class Disagreement(msgspec.Struct, frozen=True):
    seed: int
    #: The engine, or the transform.
    where: str
    sentence: str


class Tally(msgspec.Struct, kw_only=True):
    """What was found; can be added up."""

    programs: int = 0
    nodes: int = 0
    seconds: float = 0.0
    #: Of `cut`: how many cuts were tried, and in how many programs there was one.
    cuts: int = 0
    programs_with_cuts: int = 0
    #: Of `fold`: how many nodes were left.
    nodes_left: int = 0
    #: Of `engines`: by engine, programs of which a part ran on the host, and seconds.
    hosted: dict[str, int] = {}
    engine_seconds: dict[str, float] = {}
    disagreements: list[Disagreement] = []

    def add(self, other: Tally) -> None:
        for name in ("programs", "nodes", "seconds", "cuts", "programs_with_cuts", "nodes_left"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name, number in other.hosted.items():
            self.hosted[name] = self.hosted.get(name, 0) + number
        for name, seconds in other.engine_seconds.items():
            self.engine_seconds[name] = self.engine_seconds.get(name, 0.0) + seconds
        self.disagreements = sorted([*self.disagreements, *other.disagreements], key=lambda each: each.seed)


def try_transform(what: What, seeds: range) -> Tally:
    tally = Tally()
    for seed in seeds:
        rng = random.Random(seed)
        program = random_program(rng, primitives=WITH_LINEAR)
        begin = time.perf_counter()
        _count(tally, program)
        match what:
            case "vmap":
                wrong = broken_by_vmap(program, rng, lowering.run)
            case "cut":
                wrong = broken_by_cutting(program, rng, lowering.run)
                tally.cuts += len(independent_cuts(program))
                tally.programs_with_cuts += bool(independent_cuts(program))
            case _:
                wrong = broken_by_simplifying(program, rng, lowering.run, lowering.evaluate_constant)
                tally.nodes_left += len(simplified(program, lowering.evaluate_constant))
        tally.seconds += time.perf_counter() - begin
        if wrong is not None:
            tally.disagreements.append(Disagreement(seed, what, wrong))
    return tally


def try_engines(names: tuple[str, ...], linear: bool, seeds: range) -> Tally:
    """Each program on every engine, and what it lacks on the host, as a user would have it."""
    tally = Tally()
    # A suite can wait for a device on a busy machine. One that is not there is no disagreement: it ends the suite.
    registry.LOOK_SECONDS = LOOK_SECONDS
    places = registry.DeviceRegistry()
    for name in names:
        places.find(name)
    for seed in seeds:
        rng = random.Random(seed)
        program = random_program(rng, primitives=WITH_LINEAR if linear else WEIGHTS)
        inputs = random_inputs(program, rng)
        _count(tally, program)
        expected = lowering.run(program, inputs)
        for name in names:
            begin = time.perf_counter()
            try:
                place = places.find(name)
                with host_operations() as hosted:
                    buffers = place.run(program, [place.upload(values) for values in inputs])
                    wrong = disagreement(expected, [place.download(buffer) for buffer in buffers], program)
                if hosted:
                    tally.hosted[name] = tally.hosted.get(name, 0) + 1
            except Exception as error:  # noqa: BLE001 - whatever an engine raises is a finding
                wrong = f"raised {type(error).__name__}: {str(error)[:300]}"
            taken = time.perf_counter() - begin
            tally.engine_seconds[name] = tally.engine_seconds.get(name, 0.0) + taken
            tally.seconds += taken
            if wrong is not None:
                tally.disagreements.append(Disagreement(seed, name, wrong))
    return tally


def _count(tally: Tally, program: Program) -> None:
    tally.programs += 1
    tally.nodes += len(program)


def in_processes(work: Callable[[range], Tally], seeds: range, jobs: int) -> Iterator[Tally]:
    parts = [seeds[begin : begin + PROGRAMS_A_PROCESS] for begin in range(0, len(seeds), PROGRAMS_A_PROCESS)]
    if len(parts) == 1:
        yield work(parts[0])
        return
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=spawn, max_tasks_per_child=1) as pool:
        yield from pool.map(work, parts)


def report(what: What, tally: Tally) -> str:
    lines = [
        f"{what}: {tally.programs} programs of {tally.nodes / max(tally.programs, 1):.1f} nodes on average, "
        f"{tally.seconds:.1f} s, {len(tally.disagreements)} disagreements"
    ]
    if what == "cut":
        lines.append(f"  {tally.cuts} cuts in {tally.programs_with_cuts} programs")
    if what == "fold":
        lines.append(f"  {tally.nodes} nodes became {tally.nodes_left}")
    for name, seconds in tally.engine_seconds.items():
        wrong = sum(each.where == name for each in tally.disagreements)
        lines.append(
            f"  {name}: {wrong} disagreements, {tally.hosted.get(name, 0)} partly on the host, {seconds:.1f} s"
        )
    lines += [f"  seed {each.seed}, {each.where}: {each.sentence}" for each in tally.disagreements[:10]]
    machine = this_machine()
    lines.append(f"on {machine.processor}, {machine.cores} cores, {machine.system}, Python {machine.python}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--what", choices=("vmap", "cut", "fold", "engines"), required=True)
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--engines", default="numpy,torch,jax")
    parser.add_argument("--linear", action="store_true", help="with linear algebra on the engines, too")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    if options.what == "engines":
        work = partial(try_engines, tuple(options.engines.split(",")), options.linear)
    else:
        work = partial(try_transform, options.what)
    tally = Tally()
    for part in in_processes(work, range(options.seed, options.seed + options.count), options.jobs):
        tally.add(part)
        if not options.json:
            sys.stderr.write(f"\r{tally.programs} programs, {len(tally.disagreements)} disagreements")
    sys.stderr.write("\n")
    text = msgspec.json.format(msgspec.json.encode(tally)).decode() if options.json else report(options.what, tally)
    sys.stdout.write(text + "\n")
    sys.exit(1 if tally.disagreements else 0)


if __name__ == "__main__":
    main()
