"""What calls on a cluster take, beside an actor that is written by hand; `benchmarks.fleet_faults` has its faults.

The cluster is a head and two nodes on this machine. Both sides are measured in turns, in processes of their own.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import psutil

import anygpu as ag
from anygpu.fleet import Fleet
from anygpu.fleet.machines import ActorWorker
from benchmarks.report import Figure, options_parser, publish, say
from tests.support.ray_processes import RayProcesses

Floats = npt.NDArray[np.float32]

ROOT = Path(__file__).parents[1]
ENGINES = "numpy,opencl"
SMALL, MEDIUM, LARGE = 8 << 10, 1 << 20, 32 << 20
ROUNDS, CALLS = 12, 30
MANY = 2000
IDLE_SECONDS = 10.0


def wave(x: Floats) -> Floats:
    return np.tanh(x) * 2 + 1


def double(x: Floats) -> Floats:
    return x * 2


class ByHand:
    """The driver with an actor that is written by hand: asked for bytes, a way and a count, it says the seconds."""

    def __init__(self, address: str, node: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.handwritten.ray_actor", address, node],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=ROOT,
        )
        #: Those of the driver and the actor.
        self.processes = [psutil.Process(int(pid)) for pid in self._answer()]

    def measure(self, nbytes: int, way: str, count: int) -> list[float]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([nbytes, way, count]) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> list[float]:
        assert self._process.stdout is not None
        found: list[float] = json.loads(self._process.stdout.readline())
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)


def timed(call: Callable[[], Any], count: int) -> list[float]:
    seconds = []
    for _ in range(count):
        begin = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - begin)
    return seconds


def actor(fleet: Fleet, device: str) -> int:
    worker = fleet._places.worker(device)
    assert isinstance(worker, ActorWorker)
    return worker.process_id_there


def in_turns(
    fleet: Fleet, theirs: ByHand, nbytes: int, way: str, rounds: int, count: int
) -> tuple[list[float], list[float]]:
    """Seconds of calls, ours and those by hand."""
    x = np.random.default_rng(0).random(nbytes // 4, np.float32)
    function = wave if way == "value" else double
    call = lambda: fleet.run(function, x, on="numpy@node-1", check="off")  # noqa: E731
    timed(call, 5)
    theirs.measure(nbytes, way, 5)
    ours: list[float] = []
    others: list[float] = []
    for _ in range(rounds):
        ours += timed(call, count)
        others += theirs.measure(nbytes, way, count)
    return ours, others


def call_figures(cluster: RayProcesses, parts: list[str]) -> list[Figure]:
    with (
        ag.fleet.connect(cluster.address, devices=["numpy", "numpy@node-1", "opencl"], insecure=True) as fleet,
        ByHand(cluster.address, "node-1") as theirs,
    ):
        figures: list[Figure] = []
        for part in parts:
            found = PARTS[part](fleet, theirs)
            for figure in found:
                say(f"{figure.name}: {figure.value:.3f} {figure.unit}")
            figures += found
        return figures


def small_figures(fleet: Fleet, theirs: ByHand) -> list[Figure]:
    small, hand = in_turns(fleet, theirs, SMALL, "value", ROUNDS, CALLS)
    ratio = statistics.median(small) / statistics.median(hand)
    return [
        Figure(name="run of 8 kB, median", value=1e3 * statistics.median(small), unit="ms", bound=5.0),
        Figure(name="an actor by hand", value=1e3 * statistics.median(hand), unit="ms"),
        Figure(name="ours by the actor", value=ratio, unit="×", bound=1.3),
    ]


def medium_figures(fleet: Fleet, theirs: ByHand) -> list[Figure]:
    medium, _ = in_turns(fleet, theirs, MEDIUM, "value", 4, 5)
    return [Figure(name="1 MB round trip", value=1e3 * statistics.median(medium), unit="ms", bound=30.0)]


def large_figures(fleet: Fleet, theirs: ByHand) -> list[Figure]:
    large, put = in_turns(fleet, theirs, LARGE, "put", 5, 3)
    ratio = statistics.median(large) / statistics.median(put)
    return [
        Figure(name="32 MB round trip", value=1e3 * statistics.median(large), unit="ms"),
        Figure(name="Ray's own best way", value=1e3 * statistics.median(put), unit="ms"),
        Figure(name="ours by Ray's own", value=ratio, unit="×", bound=1.1),
    ]


def map_figures(fleet: Fleet, theirs: ByHand) -> list[Figure]:
    given = [np.random.default_rng(i).random(SMALL // 4, np.float32) for i in range(MANY)]
    for _ in range(2):  # launches are compiled, and their sizes found
        fleet.map(wave, given, on="fleet")
    seconds = min(timed(lambda: fleet.map(wave, given, on="fleet"), 3))
    return [Figure(name=f"map of {MANY}, each", value=1e6 * seconds / MANY, unit="µs", bound=1e6 / 3000)]


def idle_figures(fleet: Fleet, theirs: ByHand) -> list[Figure]:
    """The processor time of a fleet that does nothing, beyond that of as many processes of Ray that do nothing."""
    fleet._planner.settle(30)
    driver = psutil.Process(fleet._cluster.process_id)
    actors = [psutil.Process(actor(fleet, device.id)) for device in fleet.devices() if device.node]

    def used() -> float:
        their_driver, their_actor = map(_seconds, theirs.processes)
        ours = _seconds(psutil.Process()) + _seconds(driver) + sum(map(_seconds, actors))
        return ours - their_driver - len(actors) * their_actor

    before = used()
    time.sleep(IDLE_SECONDS)
    share = max(0.0, (used() - before) / IDLE_SECONDS)
    return [Figure(name="idle fleet, beyond Ray's own", value=100 * share, unit="% of a core", bound=2.0)]


PARTS: dict[str, Callable[[Fleet, ByHand], list[Figure]]] = {
    "small": small_figures,
    "medium": medium_figures,
    "large": large_figures,
    "map": map_figures,
    "idle": idle_figures,
}


def _seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def main() -> None:
    parser = options_parser(__doc__)
    parser.add_argument("--parts", default=",".join(PARTS), help="of what calls take, with commas")
    options = parser.parse_args()
    os.environ["ANYGPU_ENGINES"] = ENGINES
    with RayProcesses(environment={"ANYGPU_ENGINES": ENGINES}) as cluster:
        for name in ("node-1", "node-2"):
            cluster.add(name)
        figures = call_figures(cluster, options.parts.split(","))
    publish(figures, options)


if __name__ == "__main__":
    main()
