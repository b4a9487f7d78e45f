"""What calls on a cluster take, beside an actor that is written by hand, and what faults there cost.

The cluster is a head and two nodes on this machine. Both sides are measured in turns, in processes of their own.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import psutil

import anygpu as ag
from anygpu.fleet import Fleet
from anygpu.fleet.actor_worker import ActorWorker
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


def home(fleet: Fleet, device: str) -> int:
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
    return [Figure(name="1 MB there and back", value=1e3 * statistics.median(medium), unit="ms", bound=30.0)]


def large_figures(fleet: Fleet, theirs: ByHand) -> list[Figure]:
    large, put = in_turns(fleet, theirs, LARGE, "put", 5, 3)
    ratio = statistics.median(large) / statistics.median(put)
    return [
        Figure(name="32 MB there and back", value=1e3 * statistics.median(large), unit="ms"),
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
    homes = [psutil.Process(home(fleet, device.id)) for device in fleet.devices() if device.node]

    def used() -> float:
        their_driver, their_actor = map(_seconds, theirs.processes)
        ours = _seconds(psutil.Process()) + _seconds(driver) + sum(map(_seconds, homes))
        return ours - their_driver - len(homes) * their_actor

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


# -- faults


def under_load(fleet: Fleet, count: int, fault: Callable[[], None], every: float) -> tuple[int, int, int, float]:
    """Tasks that were lost, wrong or failed, and the longest time in which none was done; a fault is among them."""
    given = [np.full(SMALL // 4, number % 97 / 97, np.float32) for number in range(count)]
    done: list[float] = []
    futures = []
    for number, each in enumerate(given):
        future = fleet.submit(wave, each, on="fleet", fallback="allow", deadline=120, check="off")
        future.add_done_callback(lambda _: done.append(time.monotonic()))
        futures.append(future)
        if number == count // 3:
            fault()
        time.sleep(every)
    wrong = failed = 0
    for future, each in zip(futures, given, strict=True):
        try:
            wrong += not np.allclose(future.result(180), wave(each), rtol=1e-5)
        except ag.AnyGPUError:
            failed += 1
    times = sorted(done)
    gap = max((later - earlier for earlier, later in pairwise(times)), default=0.0)
    return count - len(done), wrong, failed, gap


def fault_figures(cluster: RayProcesses, kills: int, node_kills: int, tasks: int) -> list[Figure]:
    figures: list[Figure] = []
    names = ["opencl:0@node-1", "opencl:0@node-2"]
    each = max(50, tasks // max(1, kills + node_kills))
    totals = {"lost": 0, "wrong": 0, "failed": 0}

    def add(outcome: tuple[int, int, int, float], gaps: list[float]) -> None:
        totals["lost"] += outcome[0]
        totals["wrong"] += outcome[1]
        totals["failed"] += outcome[2]
        gaps.append(outcome[3])

    with ag.fleet.connect(cluster.address, devices="opencl", insecure=True) as fleet:
        for name in names:
            fleet.run(wave, np.zeros(SMALL // 4, np.float32), on=name)
        gaps: list[float] = []
        for number in range(kills):
            victim = home(fleet, names[number % 2])
            add(under_load(fleet, each, lambda pid=victim: os.kill(pid, signal.SIGKILL), 0.004), gaps)  # type: ignore[misc]
            say(f"actor {number + 1} of {kills}: gap {gaps[-1]:.2f} s")
        if gaps:
            figures.append(Figure(name=f"{kills} actors killed: longest gap", value=max(gaps), unit="s", bound=3.0))
        gaps = []
        for number in range(node_kills):
            name = f"victim-{number}"
            raylet = cluster.add(name)
            device = f"opencl:0@{name}"
            while device not in [found.id for found in fleet.devices()]:
                time.sleep(0.1)
            fleet.run(wave, np.zeros(SMALL // 4, np.float32), on=device)
            orphan = home(fleet, device)
            add(under_load(fleet, each, lambda pid=raylet: os.kill(pid, signal.SIGKILL), 0.004), gaps)  # type: ignore[misc]
            time.sleep(1.0)
            totals["orphans"] = totals.get("orphans", 0) + psutil.pid_exists(orphan)
            say(f"node {number + 1} of {node_kills}: gap {gaps[-1]:.2f} s")
        if gaps:
            figures.append(Figure(name=f"{node_kills} nodes killed: longest gap", value=max(gaps), unit="s", bound=7.0))
        for what, value in totals.items():
            figures.append(
                Figure(name=f"of {each * (kills + node_kills)} tasks: {what}", value=value, unit="", bound=0.5)
            )
    return figures


def head_figures(count: int) -> list[Figure]:
    """Heads that are killed: when this process is told, and what is left."""
    told: list[float] = []
    orphans = 0
    for number in range(count):
        with RayProcesses(environment={"ANYGPU_ENGINES": ENGINES}) as cluster:
            cluster.add("node-1")
            with ag.fleet.connect(cluster.address, devices="opencl", insecure=True) as fleet:
                fleet.run(wave, np.zeros(SMALL // 4, np.float32), on="@node-1")
                there = home(fleet, "opencl:0@node-1")
                gcs = cluster.gcs()
                begin = time.monotonic()
                os.kill(gcs, signal.SIGKILL)
                while fleet._cluster.ended is None and time.monotonic() < begin + 120:
                    time.sleep(0.02)
                told.append(time.monotonic() - begin)
                time.sleep(1.0)
                orphans += psutil.pid_exists(there)
                say(f"head {number + 1} of {count}: told after {told[-1]:.1f} s, orphans {orphans}")
    return [
        Figure(name=f"{count} heads killed: told after", value=max(told), unit="s", bound=10.0),
        Figure(name="orphans a second later", value=orphans, unit="", bound=0.5),
    ]


def main() -> None:
    parser = options_parser(__doc__)
    parser.add_argument("--what", choices=("calls", "faults", "heads"), default="calls")
    parser.add_argument("--parts", default=",".join(PARTS), help="of what calls take, with commas")
    parser.add_argument("--actors", type=int, default=20, help="how many actors are killed")
    parser.add_argument("--nodes", type=int, default=20, help="how many nodes are killed")
    parser.add_argument("--heads", type=int, default=3, help="how many heads are killed")
    parser.add_argument("--tasks", type=int, default=5000, help="how many tasks run meanwhile")
    options = parser.parse_args()
    os.environ["ANYGPU_ENGINES"] = ENGINES
    if options.what == "heads":
        publish(head_figures(options.heads), options)
        return
    with RayProcesses(environment={"ANYGPU_ENGINES": ENGINES}) as cluster:
        for name in ("node-1", "node-2"):
            cluster.add(name)
        if options.what == "calls":
            figures = call_figures(cluster, options.parts.split(","))
        else:
            figures = fault_figures(cluster, options.actors, options.nodes, options.tasks)
    publish(figures, options)


if __name__ == "__main__":
    main()
