"""What anygpu costs beside the same kernels written by hand, straight on wgpu or pyopencl.

    python -m benchmarks.bare --engine opencl
    python -m benchmarks.bare --engine webgpu --only matmul --seconds 10
    python -m benchmarks.bare --engine opencl --busy 2
    python -m benchmarks.bare --engine opencl --against tinygrad

Both sides run by turns in one process; what counts of each is its best round. By hand, everything that can be kept is
kept: pipelines, bind groups, buffers, arguments. A side's runs by the device's clock follow its resident call, on the
same memory: both sides find in the caches what they left there themselves.

Device time has a bound where the hand-written kernel takes 5 ms or more: below, clocks are too coarse. A resident call
may take 100 µs more than the bare one. That is judged by the processor time of the calling thread, which does not count
what the kernels themselves differ by; by the wall clock only where the kernel takes less than a millisecond. Where the
device is this processor, its time on a run is compared too: of all figures, other work disturbs it least.

With --busy so many processes compute beside the measurement. Clocks then measure those as well: the bounds on device
time and on round trips are on the processor's, and the others are only printed.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import psutil

from anygpu.base.typing import HostArray
from anygpu.errors import AnyGPUError
from benchmarks.handwritten.against_tinygrad import against_tinygrad
from benchmarks.handwritten.ours import NotOnTheDevice, Ours
from benchmarks.handwritten.side import Prepared, Side
from benchmarks.handwritten.workloads import WORKLOADS, Workload
from benchmarks.load import busy_processes
from benchmarks.report import Figure, options_parser, publish, say

#: Seconds by hand from which on device times are compared.
COMPARABLE = 5e-3
#: Seconds of all processors together from which on their times are.
COMPARABLE_PROCESSOR = 10e-3
#: By hand, seconds of a kernel below which a resident call shows what surrounds it.
SHORT = 1e-3
DEVICE_BOUND, RESIDENT_MICROSECONDS, ROUND_TRIP_BOUND = 1.05, 100.0, 1.10

FEWEST_ROUNDS, MOST_ROUNDS = 5, 100
#: Runs by the device's clock after each other: the first finds what the other side left in the caches.
RUNS_IN_A_TURN = 3
#: NumPy takes many times as long as both sides: the time is better spent on them.
NUMPY_ROUNDS = 3


class Disagreement(Exception):
    """A result is wrong: its time says nothing."""


def by_hand(engine: str) -> Side:
    if engine == "opencl":
        from benchmarks.handwritten import opencl

        return opencl.ByHand()
    from benchmarks.handwritten import webgpu

    return webgpu.ByHand()


def measure(
    workload: Workload, bare: Side, ours: Ours, *, seconds: float, with_numpy: bool, busy: bool
) -> list[Figure]:
    arguments = workload.make()
    expected = np.asarray(workload.function(*arguments))
    our_side = ours.prepared(workload, arguments, expected)
    sides: dict[str, Prepared] = {"by hand": bare.prepared(workload, arguments, expected), "anygpu": our_side}
    for name, side in sides.items():
        require_agreement(side.round_trip(), expected, workload, name)
    best = best_of_turns(workload, sides, arguments if with_numpy else None, seconds)
    return figures(workload, best, kernels=our_side.kernels, software=bare.is_software, busy=busy)


def require_agreement(result: HostArray, expected: HostArray, workload: Workload, side: str) -> None:
    if result.shape != expected.shape:
        raise Disagreement(f"{workload}, {side}: the shape is {result.shape}, and NumPy's {expected.shape}.")
    furthest = float(np.max(np.abs(result - expected))) / float(np.max(np.abs(expected)))
    # Written so that NaN disagrees.
    if not furthest <= workload.tolerance:
        raise Disagreement(f"{workload}, {side}: {furthest:.1e} of the greatest number away from NumPy.")


def best_of_turns(
    workload: Workload, sides: dict[str, Prepared], arguments: tuple[HostArray, ...] | None, seconds: float
) -> dict[str, float]:
    taken: dict[str, list[float]] = defaultdict(list)
    clocks: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for order in in_turns(sides, seconds, FEWEST_ROUNDS, MOST_ROUNDS):
        for name, side in order:
            thread = time.thread_time()
            taken[f"{name}, resident"].append(side.resident())
            taken[f"{name}, thread"].append(time.thread_time() - thread)
            for _ in range(RUNS_IN_A_TURN):
                processor = time.process_time()
                clocks[f"{name}, device"].append(side.device_seconds())
                taken[f"{name}, processor"].append(time.process_time() - processor)
            begin, processor = time.perf_counter(), time.process_time()
            side.round_trip()
            taken[f"{name}, round trip"].append(time.perf_counter() - begin)
            taken[f"{name}, round trip, processor"].append(time.process_time() - processor)
        if arguments is not None and len(taken["NumPy"]) < NUMPY_ROUNDS:
            begin = time.perf_counter()
            workload.function(*arguments)
            taken["NumPy"].append(time.perf_counter() - begin)
    best = {name: min(each) for name, each in taken.items()}
    return best | {name: min(credible(each)) for name, each in clocks.items()}


def in_turns(
    sides: dict[str, Prepared], seconds: float, fewest: int, most: int
) -> Iterator[list[tuple[str, Prepared]]]:
    """Round by round the order of the sides, until the time is over.

    Who comes second finds the caches warm, or the processor hot: each is second in turn.
    """
    end = time.perf_counter() + seconds
    order = list(sides.items())
    for turn in range(most):
        if turn >= fewest and time.perf_counter() > end:
            return
        yield order if turn % 2 else order[::-1]


def credible(samples: list[tuple[float, float]]) -> list[float]:
    """Device times that the wall clock confirms.

    On a busy machine lavapipe reads its clock too late at the beginning of a pass, and then a kernel of 50 ms has
    taken 15 of them.
    """
    confirmed = [device for device, elapsed in samples if elapsed - device <= max(1e-3, 0.15 * elapsed)]
    return confirmed or [elapsed for _, elapsed in samples]


def figures(
    workload: Workload, best: dict[str, float], *, kernels: int, software: bool, busy: bool = False
) -> list[Figure]:
    bare_device, device = best["by hand, device"], best["anygpu, device"]
    quiet = not (busy and software)
    comparable = bare_device >= COMPARABLE if quiet else best["by hand, processor"] >= COMPARABLE_PROCESSOR
    beyond = (best["anygpu, resident"] - best["by hand, resident"]) * 1e6
    beyond_of_thread = (best["anygpu, thread"] - best["by hand, thread"]) * 1e6
    there_and_back = "round trip" if quiet else "round trip, processor"
    found = [
        Figure(name=f"{workload}: by hand, device", value=bare_device * 1e3, unit="ms"),
        Figure(
            name=f"{workload}: device, anygpu / by hand",
            value=device / bare_device,
            unit="×",
            bound=DEVICE_BOUND if comparable and quiet else None,
        ),
        Figure(
            name=f"{workload}: resident call beyond bare",
            value=beyond,
            unit="µs",
            bound=RESIDENT_MICROSECONDS if quiet and bare_device < SHORT else None,
        ),
        Figure(
            name=f"{workload}: resident call beyond bare, thread",
            value=beyond_of_thread,
            unit="µs",
            bound=RESIDENT_MICROSECONDS,
        ),
        Figure(
            name=f"{workload}: {there_and_back} / bare",
            value=best[f"anygpu, {there_and_back}"] / best[f"by hand, {there_and_back}"],
            unit="×",
            bound=ROUND_TRIP_BOUND,
        ),
        Figure(
            name=f"{workload}: round trip beyond bare, without kernels",
            value=(best["anygpu, round trip"] - device - best["by hand, round trip"] + bare_device) * 1e6,
            unit="µs",
        ),
    ]
    if software:
        ratio = best["anygpu, processor"] / best["by hand, processor"]
        bound = DEVICE_BOUND if comparable and not quiet else None
        found.append(Figure(name=f"{workload}: processor time, anygpu / by hand", value=ratio, unit="×", bound=bound))
    found.append(Figure(name=f"{workload}: anygpu's kernels", value=kernels, unit=""))
    if "NumPy" in best and workload.numpy_factor:
        found += [
            Figure(
                name=f"{workload}: {side}, resident / NumPy",
                value=best[f"{side}, resident"] / best["NumPy"],
                unit="×",
                bound=1 / workload.numpy_factor if quiet else None,
            )
            for side in ("by hand", "anygpu")
        ]
    return found


def run(options: argparse.Namespace) -> list[Figure]:
    bare, ours = by_hand(options.engine), Ours(options.engine)
    say(f"by hand on {bare.name}; anygpu on {ours.name}")
    load, cores = psutil.getloadavg()[0], os.cpu_count() or 1
    if load > cores / 4 and not options.busy:
        say(f"The machine is busy (load {load:.1f} on {cores} cores): of these figures trust the processor's time.")
    found = []
    for workload in WORKLOADS:
        if options.only and options.only.lower() not in workload.name.lower():
            continue
        if workload.large and options.engine == "webgpu":
            continue
        say(f"{workload} ...")
        with_numpy = options.engine == "opencl" and workload.numpy_factor is not None
        try:
            measured = measure(
                workload, bare, ours, seconds=options.seconds, with_numpy=with_numpy, busy=bool(options.busy)
            )
        except (AnyGPUError, NotOnTheDevice, Disagreement, NotImplementedError) as error:
            say(f"{workload}: {type(error).__name__}: {error}")
            measured = [Figure(name=f"{workload}: not measured", value=1, unit="", bound=0.5)]
        found += measured
    return found


def main() -> None:
    parser = options_parser(__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--engine", choices=["webgpu", "opencl"], required=True)
    parser.add_argument("--only", metavar="NAME", help="workloads whose name contains this")
    parser.add_argument("--seconds", type=float, default=4.0, help="how long each workload is repeated (default: 4)")
    parser.add_argument("--busy", type=int, default=0, metavar="COUNT", help="so many processes compute beside it")
    parser.add_argument("--against", choices=["tinygrad"], help="compare matmuls with another library instead")
    parser.add_argument(
        "--python", default=sys.executable, metavar="PATH", help="for --against: a Python that has that library"
    )
    parser.add_argument(
        "--beam",
        type=int,
        nargs="+",
        default=[0, 2],
        help="for --against tinygrad: widths of its search; the first search takes minutes (default: 0 2)",
    )
    options = parser.parse_args()
    if options.against:
        if options.engine != "opencl":
            parser.error("--against tinygrad is measured through OpenCL: add --engine opencl.")
        matmuls = [each for each in WORKLOADS if each.kind == "matmul" and not each.large]
        chosen = [each for each in matmuls if not options.only or options.only.lower() in each.name.lower()]
        bare = by_hand(options.engine)
        publish(against_tinygrad(chosen, bare, Ours(options.engine), options), options)
    else:
        with busy_processes(options.busy):
            found = run(options)
        publish(found, options)


if __name__ == "__main__":
    main()
