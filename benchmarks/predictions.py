"""How good predictions are: `python -m benchmarks.predictions [--json] [--check]`.

Every workload of the placement grid and every program of the short scripts, on every device but NumPy's own, after a
calibration by `devices --calibrate`. What is predicted before the first call there is compared with the best of
several later calls. Two predictions are judged: that of the calibration alone, and that with the errors of the programs
before it in the list, which is what `ag.explain` says and calls are placed by. The machine should be quiet.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np

from anygpu.base.units import readable_seconds
from anygpu.engines.tuner import VARIABLE as TUNING
from anygpu.errors import AnyGPUError
from anygpu.placement.calibrate import SECONDS as CALIBRATION
from benchmarks.report import Figure, options_parser, publish, say
from benchmarks.short_script_programs import PROGRAMS
from benchmarks.workloads import WORKLOADS, Workload

#: Elements of the workloads.
SIZES = (10_000, 1_000_000)
#: Of warm calls the best counts: at most so many, and no more once they have taken so long together.
CALLS, SECONDS = 12, 0.25
#: A program that takes NumPy longer is left out: it would take the time of ten others.
LONGEST_CALL = 0.5
#: Of the predictions, how many may be off by more than a factor of two.
MOST_BEYOND = 10.0
WORST = 10


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """A function with its arguments."""

    name: str
    function: Callable[..., Any]
    make: Callable[[], Sequence[Any]]


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """One program on one device, in seconds."""

    program: str
    device: str
    #: By the calibration alone.
    plain: float
    #: With what was learnt from other programs.
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """How much longer it took than predicted, as a factor."""
        return self.measured / self.predicted

    @property
    def plain_error(self) -> float:
        return self.measured / self.plain

    def __str__(self) -> str:
        return (
            f"  {self.program:<32} {self.device:<10} predicted {readable_seconds(self.predicted):>9} "
            f"(calibration alone {readable_seconds(self.plain):>9}), took {readable_seconds(self.measured):>9}: "
            f"{self.error:.2g}×"
        )


def cases(sizes: Iterable[int], only: str = "") -> list[Case]:
    """In an order that has nothing to do with what the programs are like, the same each time."""
    found = [
        Case(name=f"{each.name}, {size:,}", function=one_function(each), make=partial(made, each, size))
        for each in WORKLOADS
        for size in sizes
        # A program that grows with its arguments is another one at each size, and takes minutes to compile.
        if each.left_out(size) is None and not each.grows
    ]
    found += [Case(name=each.name, function=each.function, make=partial(each.make_args, 0)) for each in PROGRAMS]
    random.Random(0).shuffle(found)
    return [each for each in found if only.lower() in each.name.lower()]


def one_function(workload: Workload) -> Callable[..., Any]:
    """All stages of a workload as one program."""
    if len(workload.stages) == 1:
        return workload.stages[0]
    first, *others = workload.stages

    def stages(*arguments: Any) -> Any:
        value = first(*arguments)
        for stage in others:
            value = stage(value)
        return value

    return stages


def made(workload: Workload, size: int) -> Sequence[Any]:
    return workload.make(size, np.random.default_rng(0))


def measure(case: Case, devices: Sequence[str]) -> list[Prediction]:
    """Predict, then run it everywhere; a device that cannot run it is left out."""
    arguments = case.make()
    begin = time.perf_counter()
    case.function(*arguments)
    if time.perf_counter() - begin > LONGEST_CALL:
        say(f"  {case.name}: left out, NumPy takes too long")
        return []
    found = []
    for device in devices:
        try:
            prediction = on_device(case, arguments, device)
        except AnyGPUError as error:
            say(f"  {case.name}: not on {device}: {str(error).splitlines()[0]}")
            continue
        if prediction is not None:
            say(str(prediction))
            found.append(prediction)
    return found


def on_device(case: Case, arguments: Sequence[Any], device: str) -> Prediction | None:
    import anygpu as ag

    offloaded = ag.offload(on=device, fallback="raise")(case.function)
    candidate = offloaded.explain(*arguments).candidate(device)
    if candidate is None or candidate.phases is None or candidate.basis != "predicted":
        return None
    offloaded(*arguments)
    taken: list[float] = []
    while len(taken) < 2 or (len(taken) < CALLS and sum(taken) < SECONDS):
        offloaded(*arguments)
        receipt = ag.last_receipt()
        if receipt is None or receipt.device != device or receipt.how is not None:
            return None
        phases = receipt.phases
        # These are no part of a prediction.
        taken.append(phases.total - phases.trace - phases.plan - phases.compile)
    return Prediction(
        program=case.name,
        device=device,
        plain=candidate.phases.total,
        predicted=candidate.seconds,
        measured=min(taken),
    )


def share_within(factor: float, errors: Sequence[float]) -> float:
    """Of so many errors, the percentage that is no larger, either way."""
    return 100 * sum(1 / factor <= error <= factor for error in errors) / len(errors) if errors else 0.0


def figures_of(found: Sequence[Prediction]) -> list[Figure]:
    """By device, and all together. The bound is on what is beyond a factor of two, which is to be little."""
    figures = []
    names = sorted({each.device for each in found})
    for name in [*names, "all devices"]:
        some = [each for each in found if name in (each.device, "all devices")]
        errors, plain = [each.error for each in some], [each.plain_error for each in some]
        middle = statistics.median(errors) if errors else 0.0
        figures += [
            Figure(name=f"{name}: programs", value=len(some), unit=""),
            Figure(name=f"{name}: took, by the prediction (median)", value=middle, unit="×"),
            Figure(name=f"{name}: within 2× by calibration alone", value=share_within(2, plain), unit="%"),
            Figure(name=f"{name}: within 2×", value=share_within(2, errors), unit="%"),
            Figure(name=f"{name}: within 3×", value=share_within(3, errors), unit="%"),
            Figure(name=f"{name}: beyond 2×", value=100 - share_within(2, errors), unit="%", bound=MOST_BEYOND),
        ]
    return figures


def worst_of(found: Sequence[Prediction]) -> list[Prediction]:
    return sorted(found, key=lambda each: -max(each.error, 1 / each.error))[:WORST]


def calibrated(seconds: float, only: Sequence[str]) -> list[str]:
    """The devices but NumPy's, each calibrated in so many seconds."""
    import anygpu as ag
    from anygpu.placement.calibrate import calibrate, remember
    from anygpu.placement.planner import default

    found = [each for each in ag.devices() if each.engine != "numpy" and (not only or each.id in only)]
    for device in found:
        remember(calibrate(default().worker(device.id), seconds=seconds), device)
        say(f"{device.id} calibrated")
    return [device.id for device in found]


def run(options: argparse.Namespace) -> list[Prediction]:
    devices = calibrated(options.calibrate, options.on or ())
    found: list[Prediction] = []
    begin = time.perf_counter()
    for case in cases(options.sizes or SIZES, options.only):
        if time.perf_counter() - begin > 60 * options.minutes:
            say("The time is over: not every program was measured.")
            break
        found += measure(case, devices)
    return found


def main() -> None:
    parser = options_parser(__doc__)
    parser.add_argument("--only", metavar="NAME", default="", help="programs whose name contains this")
    parser.add_argument("--on", metavar="DEVICE", nargs="+", help="only these devices")
    parser.add_argument("--sizes", type=int, nargs="+", metavar="N", help="elements of the workloads")
    parser.add_argument("--minutes", type=float, default=3.0, help="after so long no further program is measured")
    parser.add_argument("--calibrate", type=float, default=CALIBRATION, help="seconds of each device's calibration")
    parser.add_argument("--tuning", type=float, default=0.0, help="seconds for sizes of kernels, of each program")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="anygpu-predictions-", ignore_cleanup_errors=True) as folder:
        # Nothing that earlier processes have measured; and tuning would take longer than all the rest.
        os.environ |= {"ANYGPU_CACHE_DIR": folder, "ANYGPU_HISTORY": "off", TUNING: f"{options.tuning:g}"}
        found = run(options)
    if options.json:
        sys.stderr.write("".join(f"{each}\n" for each in worst_of(found)))
    else:
        sys.stdout.write("\n".join(["the worst:", *map(str, worst_of(found)), ""]))
    publish(figures_of(found), options)


if __name__ == "__main__":
    main()
