"""Calls before the first on a device that is open: `python -m benchmarks.first_calls [--json] [--check]`.

Every workload of the short scripts at which devices are good is called on each device: another function has opened it,
and the device is calibrated. It counts where NumPy takes 20 ms or more, and at most half of that is predicted for the
device. Each workload and device has a process of its own, without a history.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import msgspec

from anygpu.plan.renting import CALLS_BESIDE, CLEAR_GAIN, CLEAR_SECONDS
from anygpu.units import readable_seconds
from benchmarks.report import Figure, options_parser, publish, say
from benchmarks.short_script_workloads import WORKLOADS

ENGINES = ("opencl", "webgpu", "torch", "jax")
#: Calls that are made when none moves.
MOST_CALLS = 20


class Moved(msgspec.Struct, frozen=True):
    """One workload on one device."""

    workload: str
    device: str
    #: Of one call: measured on NumPy, and predicted for the device.
    numpy: float
    predicted: float
    #: Calls before the first one there; `MOST_CALLS` when there was none.
    passed: int
    #: Of all calls, until it had moved.
    slowest: float

    @property
    def is_clear(self) -> bool:
        return self.numpy >= CLEAR_SECONDS and self.predicted * CLEAR_GAIN <= self.numpy


def measure(name: str, engine: str) -> Moved:
    """In this process: open the device with another function, and call the workload until it has moved."""
    import time

    import numpy as np

    import anygpu as ag
    from anygpu.placement.planner import default

    ag.run(lambda x: x * 2 + 1, np.ones(1000, np.float32), on=engine)
    planner = default()
    (device,) = [each for each in planner.machine().devices if each.engine == engine][:1]
    if planner.calibration(device).source != "measured":
        planner.calibrate(device)
    planner.settle(60)
    found = next(each for each in WORKLOADS if each.name == name)
    arguments: tuple[Any, ...] = found.make_args(0)
    offloaded = ag.offload(found.function)
    seconds: list[float] = []
    passed = MOST_CALLS
    for number in range(MOST_CALLS):
        begin = time.perf_counter()
        offloaded(*arguments)
        seconds.append(time.perf_counter() - begin)
        receipt = ag.last_receipt()
        if receipt is not None and receipt.device == device.id:
            passed = number
            break
    (site,) = offloaded._known.sites.values()
    facts = site.predictions.get(device.id)
    predicted = facts.seconds if facts is not None else float("inf")
    return Moved(name, device.id, min(seconds[:3]), predicted, passed, max(seconds))


def in_process(name: str, engine: str) -> Moved:
    command = [sys.executable, "-m", "benchmarks.first_calls", "--one", name, engine]
    environment = {**os.environ, "ANYGPU_HISTORY": "off", "ANYGPU_ENGINES": f"numpy,{engine}"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=Moved)


def main() -> None:
    parser = options_parser(__doc__)
    parser.add_argument("--one", nargs=2, metavar=("WORKLOAD", "ENGINE"), help="one of them, in this process")
    parser.add_argument("--engines", default=",".join(ENGINES), help="comma-separated")
    options = parser.parse_args()
    if options.one:
        sys.stdout.write(msgspec.json.encode(measure(*options.one)).decode() + "\n")
        return
    every = [
        in_process(workload.name, engine)
        for engine in options.engines.split(",")
        for workload in WORKLOADS
        if "device" in workload.tags
    ]
    if not options.json:
        say(f"{'workload':<24} {'device':<12} {'NumPy':>9} {'predicted':>9}  calls before the first   slowest call")
        for each in every:
            count = str(each.passed) if each.passed < MOST_CALLS else "none moved"
            say(
                f"{each.workload:<24} {each.device:<12} {readable_seconds(each.numpy):>9} "
                f"{readable_seconds(each.predicted):>9}  {count:>10} {'' if each.is_clear else '(not clear)':<12}"
                f" {readable_seconds(each.slowest):>9}"
            )
    clear = [each for each in every if each.is_clear]
    figures = [
        Figure(name="clear cells", value=len(clear), unit=""),
        Figure(
            name="calls before the first one there, most",
            value=max((each.passed for each in clear), default=0),
            unit="calls",
            bound=CALLS_BESIDE,
        ),
    ]
    publish(figures, options)


if __name__ == "__main__":
    main()
