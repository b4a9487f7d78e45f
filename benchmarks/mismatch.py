"""How well devices that are wrong are told from those that are right.

`python -m benchmarks.mismatch --count 1000` makes random functions of NumPy, each with an argument of its own, and a
device that spoils one element of one result. It counts the functions of which a wrong result was returned (0), and
those that were pinned to NumPy before. `--what results` does the same with random programs and without the runtime;
what lies within the bound is no error there and is counted apart. `--what right --engines torch,jax,opencl,webgpu` runs
random programs on real devices, and counts false alarms. Inputs are as measurements are: nothing is exact in binary,
and for some programs magnitudes span sixteen powers of ten. With `--check` it exits with 1 when a wrong element was
missed, or a right result was called wrong.

`right` compiles every program for every engine, which takes some seconds a program: it does 70 unless told otherwise,
and says how far it is and where its time goes.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np

from anygpu.agreement.analysis import analyse
from anygpu.agreement.comparison import judge
from anygpu.agreement.elementwise import filled
from anygpu.base.typing import HostArray
from anygpu.calls.offload import Offloaded
from anygpu.calls.options import options
from anygpu.engines.numpy import lowering
from anygpu.errors import ResultMismatch
from anygpu.placement import explore
from anygpu.placement.device_call import is_ordinary, sample_now
from anygpu.placement.planner import Planner
from anygpu.program.dtypes import DType
from anygpu.program.graph import Program
from anygpu.program.primitives import Spec
from anygpu.receipts.receipt import host_operations
from anygpu.workers.device_arrays.registry import DeviceRegistry
from benchmarks.report import say, this_machine
from tests.support.random_programs import random_program
from tests.support.wrong_results import Wrong, WrongRegistry, real_values, spoil

#: In this process and without a compiler, so that a thousand functions take little time.
DEVICE = "torch:cpu"

#: How many of each, when nobody says.
COUNTS = {"calls": 1000, "results": 1000, "right": 70}

DTYPES: tuple[tuple[DType, ...], ...] = (
    ("float32", "int32", "bool"),
    ("float64", "int64", "bool"),
    ("float32", "uint8", "int16"),
    ("complex64", "float32"),
    ("float16", "float32"),
)


def case(seed: int) -> tuple[Program, list[HostArray]]:
    """A program, and inputs that are ordinary for most seeds and ill-conditioned for some."""
    rng = random.Random(seed)
    program = random_program(rng, dtypes=DTYPES[seed % len(DTYPES)])
    generator = np.random.default_rng(seed)
    spread = (0.0, 0.5, 3.0, 8.0)[seed // len(DTYPES) % 4]
    return program, [real_values(spec, generator, spread=spread) for spec in program.inputs]


def expected_of(program: Program, inputs: list[HostArray]) -> list[HostArray] | None:
    try:
        return [np.array(each) for each in lowering.run(program, inputs)]
    except (ValueError, IndexError, np.linalg.LinAlgError):
        return None


def wrong(seed: int, expected: list[HostArray], program: Program, inputs: list[HostArray]) -> str:
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
                else ("within the bound" if (apart <= allowed).all() else "MISSED")
            )
    return "MISSED"


def right(
    seed: int, engine: str, places: DeviceRegistry, expected: list[HostArray], program: Program, inputs: list[HostArray]
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


#: What functions are made of; each takes and gives arrays of one shape.
STEPS: tuple[Callable[[Any], Any], ...] = (
    lambda x: x * 3,
    lambda x: x + x,
    lambda x: x - 1,
    lambda x: np.maximum(x, 2),
    lambda x: np.abs(x),
    lambda x: -x,
    lambda x: x[::-1] + 1,
    lambda x: np.where(x > 1, x, 0),
    lambda x: x.cumsum(axis=0),
    lambda x: np.sort(x, axis=0),
    lambda x: np.sqrt(np.abs(x)),
    lambda x: np.sin(x) + x,
    lambda x: np.exp(-np.abs(x)),
    lambda x: x / 3,
    lambda x: x - x.mean(axis=0),
    lambda x: np.floor(x),
)


def function_of(seed: int) -> tuple[Callable[[Any], Any], Any]:
    """A function of one array, and an argument for it."""
    rng = random.Random(seed)
    steps = [rng.choice(STEPS) for _ in range(rng.randrange(1, 7))]
    dtypes: tuple[DType, ...] = ("float32", "float64", "int32", "int64", "uint8")
    dtype = rng.choice(dtypes)

    def function(x: Any) -> Any:
        for step in steps:
            x = step(x)
        return x.sum(axis=0) if seed % 5 == 0 else x * 1

    shape = tuple(rng.randrange(2, 12) for _ in range(rng.randrange(1, 3)))
    return function, real_values(Spec(shape, dtype), np.random.default_rng(seed), spread=0.5)


def called(seed: int, planner: Planner, wrong: Wrong) -> str:
    """What becomes of calls of a function for which the device is wrong in one element."""
    function, x = function_of(seed)
    with warnings.catch_warnings(record=True) as caught, np.errstate(all="ignore"):
        warnings.simplefilter("always")
        expected = function(x)
        offloaded: Offloaded[..., Any] = Offloaded(function, options(), lambda: planner)
        call = offloaded.call((x,), {})
        call.record()
        if call.site.programs.current is None:
            return "not recorded"
        call.consider()
        state = call.site
        state.chooser.measured("numpy", 1.0)
        state.candidates.end_calibrating()
        if not is_ordinary(call, expected):
            return "not recorded"
        wrong.rng = random.Random(seed)
        before = wrong.spoilt
        sample = sample_now(call, expected)
        assert sample is not None
        explore._try_out(planner, state, function, DEVICE, sample)
        if wrong.spoilt == before:
            return "not run there"
        if state.chooser.may_run(DEVICE):
            # By the published tolerances the spoilt element is a right answer.
            return "within the bound"
        for _ in range(3):
            value = offloaded(x)
            planner.settle(30)
            if type(value) is not type(expected) or np.asarray(value).tobytes() != np.asarray(expected).tobytes():
                return "MISSED"
        told = any(isinstance(each.message, ResultMismatch) for each in caught)
    planner.pinned.clear()  # the next function has the same code
    return "found" if told and state.chooser.pinned else "not trusted"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--what", choices=("calls", "results", "right"), default="calls")
    parser.add_argument("--count", type=int, help="1000; 70 for right")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--engines", default="torch,jax,opencl,webgpu")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    count = COUNTS[arguments.what] if arguments.count is None else arguments.count
    tally: Counter[str] = Counter()
    taken: defaultdict[str, float] = defaultdict(float)
    complaints: list[str] = []
    places = DeviceRegistry()
    begin = time.perf_counter()
    seed = arguments.first
    done = 0
    wrong_places = WrongRegistry(DEVICE, lambda program, run: True) if arguments.what == "calls" else None
    planner = Planner(known=wrong_places) if wrong_places is not None else None
    if planner is not None:
        planner._look()
        if planner.machine().device(DEVICE) is None:
            sys.exit(f"{DEVICE} cannot be used now: run `anygpu doctor`.")
    while done < count:
        if planner is not None and wrong_places is not None:
            outcome = called(seed, planner, wrong_places.wrong)
            tally[outcome] += 1
            done += outcome in ("found", "not trusted", "MISSED")
            if outcome == "MISSED":
                complaints.append(f"MISSED: seed {seed}")
            seed += 1
            continue
        program, inputs = case(seed)
        expected = expected_of(program, inputs)
        if expected is None or not any(each.size for each in expected):
            seed += 1
            continue
        if arguments.what == "results":
            outcome = wrong(seed, expected, program, inputs)
            tally[outcome] += 1
            done += outcome in ("found", "MISSED")
            if outcome == "MISSED":
                complaints.append(f"MISSED: seed {seed}")
        else:
            for engine in arguments.engines.split(","):
                start = time.perf_counter()
                outcome = right(seed, engine, places, expected, program, inputs)
                taken[engine] += time.perf_counter() - start
                if outcome.startswith("FALSE"):
                    complaints.append(outcome)
                    outcome = "FALSE ALARM"
                tally[f"{engine}: {outcome}"] += 1
            done += 1
            if done % 10 == 0:
                say(f"{done} of {count} programs, {time.perf_counter() - begin:.0f} s, {len(complaints)} false alarms")
        seed += 1
    places.close()
    sys.stdout.write(f"{this_machine()}\n")
    for name, number in sorted(tally.items()):
        sys.stdout.write(f"{number:8} {name}\n")
    for engine, seconds in taken.items():
        sys.stdout.write(f"{seconds:8.1f} s on {engine}\n")
    for each in complaints[:40]:
        sys.stdout.write(f"{each}\n")
    sys.stdout.write(f"{time.perf_counter() - begin:.1f} s\n")
    if arguments.check and complaints:
        sys.exit(1)


if __name__ == "__main__":
    main()
