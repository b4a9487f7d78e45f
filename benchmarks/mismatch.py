"""How well devices that are wrong are told from those that are right.

`python -m benchmarks.mismatch --count 1000` makes random programs with inputs as measurements are, spoils one element
of one result of each, and counts those that the comparison finds; what lies within the bound is no error and is
counted apart. `--what right --engines torch,jax,opencl,webgpu` runs each program on real devices, and counts false
alarms. With `--check` it exits with 1 when a wrong element was missed, or a right result was called wrong.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter

import numpy as np

from anygpu.agreement.analysis import analyse
from anygpu.agreement.comparing import SIDES, judge
from anygpu.agreement.elementwise import filled
from anygpu.engines.numpy import lowering
from anygpu.hardware.verification import Values
from anygpu.notices import host_operations
from anygpu.program.graph import Program
from anygpu.runtime.places import Places
from anygpu.testing.programs import random_program
from anygpu.testing.wrong import real_values, spoil
from benchmarks.report import this_machine


def case(seed: int) -> tuple[Program, list[Values]]:
    """A program, and inputs that are ordinary for most seeds and ill-conditioned for some."""
    rng = random.Random(seed)
    program = random_program(rng, dtypes=("float32", "int32", "bool") if seed % 2 else ("float64", "int64", "bool"))
    generator = np.random.default_rng(seed)
    spread = (0.0, 0.5, 3.0, 8.0)[seed % 4]
    return program, [real_values(spec, generator, spread=spread) for spec in program.inputs]


def expected_of(program: Program, inputs: list[Values]) -> list[Values] | None:
    try:
        return [np.array(each) for each in lowering.run(program, inputs)]
    except (ValueError, IndexError, np.linalg.LinAlgError):
        return None


def wrong(seed: int, expected: list[Values], program: Program, inputs: list[Values]) -> str:
    """What becomes of one spoilt element."""
    spoilt = spoil(expected, random.Random(seed))
    if all(np.array_equal(a, b, equal_nan=a.dtype.kind in "fc") for a, b in zip(expected, spoilt, strict=True)):
        return "nothing to spoil"
    found = judge(program, inputs, tuple(expected), spoilt, tuple)
    if found.verdict != "agree":
        return "found"
    bounds = analyse(program, inputs).bounds
    for a, b, bound in zip(expected, spoilt, bounds, strict=True):
        place = ~((a == b) | ((a != a) & (b != b)))
        if place.any():
            allowed = filled(bound, a.shape)[place]
            with np.errstate(all="ignore"):
                apart = np.abs(a[place].astype(np.complex128) - b[place].astype(np.complex128))
            return (
                "undecided there"
                if np.isinf(allowed).any()
                else ("within the bound" if (apart <= SIDES * allowed).all() else "MISSED")
            )
    return "MISSED"


def right(
    seed: int, engine: str, places: Places, expected: list[Values], program: Program, inputs: list[Values]
) -> str:
    with host_operations():
        try:
            results = places.find(engine).worker.run(program, inputs).results
        except (ValueError, IndexError):
            return "raised"
    found = judge(program, inputs, tuple(expected), [np.asarray(each) for each in results], tuple)
    if found.verdict == "differ":
        assert found.difference is not None
        return f"FALSE ALARM: seed {seed} on {engine}: {found.difference.sentence}"
    return found.verdict


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--what", choices=("wrong", "right"), default="wrong")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--engines", default="torch,jax,opencl,webgpu")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    tally: Counter[str] = Counter()
    complaints: list[str] = []
    places = Places()
    begin = time.perf_counter()
    seed = arguments.first
    done = 0
    while done < arguments.count:
        program, inputs = case(seed)
        expected = expected_of(program, inputs)
        if expected is None or not any(each.size for each in expected):
            seed += 1
            continue
        if arguments.what == "wrong":
            outcome = wrong(seed, expected, program, inputs)
            tally[outcome] += 1
            done += outcome in ("found", "MISSED")
            if outcome == "MISSED":
                complaints.append(f"MISSED: seed {seed}")
        else:
            for engine in arguments.engines.split(","):
                outcome = right(seed, engine, places, expected, program, inputs)
                if outcome.startswith("FALSE"):
                    complaints.append(outcome)
                    outcome = "FALSE ALARM"
                tally[f"{engine}: {outcome}"] += 1
            done += 1
        seed += 1
    places.close()
    sys.stdout.write(f"{this_machine()}\n")
    for name, number in sorted(tally.items()):
        sys.stdout.write(f"{number:8} {name}\n")
    for each in complaints[:40]:
        sys.stdout.write(f"{each}\n")
    sys.stdout.write(f"{time.perf_counter() - begin:.1f} s\n")
    if arguments.check and complaints:
        sys.exit(1)


if __name__ == "__main__":
    main()
