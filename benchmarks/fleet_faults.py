"""Faults of a fleet under load: actors, machines and heads that are killed, and ways that are cut.

The cluster is a head and two nodes on this machine; ways are cut in network namespaces, which only root can make. What
is counted, of all tasks:

- lost: without a result at the end, or with an error;
- wrong: with another value than NumPy's;
- delivered twice: whose future was completed more than once;
- executed twice in an actor's life: actors count what they execute again, and answers are compared with executions.

A task whose actor died before it answered is executed again elsewhere. Receipts tell of these, and they are counted.
Times in which this process was stopped, as by another measurement, do not count as gaps.
"""

from __future__ import annotations

import os
import signal
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import psutil

import anygpu as ag
from anygpu.fleet import Fleet
from anygpu.fleet.machines import ActorWorker
from anygpu.runtime.future import Future
from benchmarks.report import Figure, options_parser, publish, say
from tests.support.far_node import FarNode
from tests.support.ray_processes import RayProcesses

Floats = npt.NDArray[np.float32]

ENGINES = "numpy,opencl"
ELEMENTS = 2048
NEAR = ("opencl:0@node-1", "opencl:0@node-2")
FAR = "opencl:0@far"
#: How often each fault happens, and how long tasks come around it.
COUNTS = {"actors": 20, "nodes": 20, "cuts": 10, "heads": 3}
SECONDS = {"actors": 2.0, "nodes": 2.0, "cuts": 0.0, "heads": 9.0}
#: Tasks come in groups of so many.
GROUP = 4
#: A device that was lost is open again within this time, or the run has failed.
PATIENCE = 120.0
#: A ticker that is so late was stopped.
STOPPED_SECONDS = 2.0


def wave(x: Floats) -> Floats:
    return np.tanh(x) * 2 + 1


class Ticker:
    """Notes when this process was stopped."""

    def __init__(self) -> None:
        self.stops: list[tuple[float, float]] = []
        threading.Thread(target=self._tick, daemon=True).start()

    def _tick(self) -> None:
        last = time.monotonic()
        while True:
            time.sleep(0.05)
            now = time.monotonic()
            if now - last > STOPPED_SECONDS:
                self.stops.append((last, now))
            last = now

    def between(self, begin: float, end: float) -> float:
        """The seconds from one time to another, without those in which it was stopped."""
        stopped = sum(max(0.0, min(end, until) - max(begin, since)) for since, until in self.stops)
        return end - begin - stopped


TICKER = Ticker()


class Load:
    """Tasks that come for a while, and what became of them."""

    def __init__(self, fleet: Fleet, count: int, seconds: float, victim: str) -> None:
        """Every other one is for the device that will fail, and the others for any of the fleet."""
        self._fleet = fleet
        self._victim = victim
        self._every = seconds / max(1, count // GROUP)
        self._given = [np.full(ELEMENTS, number % 97 / 97, np.float32) for number in range(count)]
        self._futures: list[Future] = []
        #: When each was completed.
        self.done: list[tuple[float, int]] = []

    def submit(self, begin: int, end: int) -> None:
        """Those from one number to another, spread over their share of the time."""
        for number in range(begin, end):
            if number % GROUP == 0 and number > begin:
                time.sleep(self._every)
            on = self._victim if number % 2 else "fleet"
            future = self._fleet.submit(wave, self._given[number], on=on, fallback="allow", deadline=240, check="off")
            future.add_done_callback(partial(self._completed, number))
            self._futures.append(future)

    def _completed(self, number: int, future: object) -> None:
        self.done.append((time.monotonic(), number))

    def around(self, fault: Callable[[], None]) -> float:
        """All of them, with a fault after the first third; when that was."""
        third = len(self._given) // 3
        self.submit(0, third)
        when = time.monotonic()
        fault()
        self.submit(third, len(self._given))
        return when

    def settle(self, totals: Counter[str]) -> None:
        """Wait for all of them, and count."""
        for future, given in zip(self._futures, self._given, strict=True):
            totals["tasks"] += 1
            try:
                value = future.result(300)
            except Exception as error:  # noqa: BLE001 - whatever it is, the task is lost
                totals["lost"] += 1
                say(f"lost: {error!r}")
                continue
            totals["wrong"] += not np.allclose(value, wave(given), rtol=1e-5)
            receipt = future.receipt
            assert receipt is not None
            totals["executed again elsewhere"] += any(each.error == "DeviceLost" for each in receipt.failures)
            totals["tasks with failures in the receipt"] += bool(receipt.failures)
        times = Counter(number for _, number in self.done)
        totals["delivered twice"] += sum(each > 1 for each in times.values())

    def gap(self, since: float) -> float:
        """The longest time after the fault in which none was completed of the tasks that may run anywhere."""
        times = sorted([since, *(when for when, number in self.done if when > since and number % 2 == 0)])
        return max((TICKER.between(*pair) for pair in pairwise(times)), default=0.0)

    def tell_gap(self, since: float) -> None:
        """Say what the task has been through that ended the longest gap."""
        done = sorted((when, number) for when, number in self.done if when > since and number % 2 == 0)
        times = [since, *(when for when, _ in done)]
        _, number = max(zip((TICKER.between(*pair) for pair in pairwise(times)), [n for _, n in done], strict=True))
        receipt = self._futures[number].receipt
        assert receipt is not None
        tries = [(each.device, each.error, str(each.phases)) for each in receipt.attempts]
        say(f"  the task after the gap: {tries}, {receipt.reason}")

    def slowest(self, since: float) -> float:
        """When the last task was completed that had come for the victim before the fault, or together with it."""
        third = len(self._given) // 3
        times = [when for when, number in self.done if number % 2 and number < third + GROUP]
        return max(0.0, TICKER.between(since, max(times, default=since)))


def actor(fleet: Fleet, device: str) -> int:
    """The process of a device's actor, which is on this machine in truth."""
    worker = fleet._places.worker(device)
    assert isinstance(worker, ActorWorker)
    return worker.process_id_there


def is_left(process: int) -> bool:
    """Whether it runs. One that has ended and that nobody has waited for does not."""
    try:
        return psutil.Process(process).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def await_(condition: Callable[[], bool], what: str, seconds: float = PATIENCE) -> float:
    """Wait for it; when it was so."""
    begin = time.monotonic()
    while not condition():
        if TICKER.between(begin, time.monotonic()) > seconds:
            raise TimeoutError(f"not within {seconds:g} s: {what}")
        time.sleep(0.02)
    return time.monotonic()


def is_offered(fleet: Fleet, device: str) -> bool:
    return device in [each.id for each in fleet.devices()]


def works(fleet: Fleet, device: str) -> bool:
    """Whether a call runs there."""
    try:
        result = fleet.run(wave, np.zeros(ELEMENTS, np.float32), on=device, fallback="raise", deadline=30)
    except ag.AnyGPUError:
        return False
    return result.receipt.device == device


def opened(fleet: Fleet, *devices: str) -> None:
    for device in devices:
        await_(lambda device=device: works(fleet, device), f"{device} is open")  # type: ignore[misc]
    # Once through the queue, so that the first gap is none of the compiler's.
    fleet.map(wave, [np.zeros(ELEMENTS, np.float32)] * 8, on="fleet")


@contextmanager
def connected(cluster: RayProcesses, *devices: str) -> Iterator[Fleet]:
    with ag.fleet.connect(cluster.address, devices=list(devices), insecure=True) as fleet:
        yield fleet


@contextmanager
def cluster_with(*names: str) -> Iterator[RayProcesses]:
    with RayProcesses(environment={"ANYGPU_ENGINES": ENGINES}) as cluster:
        for name in names:
            cluster.add(name)
        yield cluster


def count_executions(fleet: Fleet, totals: Counter[str]) -> None:
    found = fleet._cluster.executions()
    totals["executed by actors"] += found.executed
    totals["executed twice in an actor's life"] += found.twice + abs(found.executed - found.answered)


def gap_figures(what: str, gaps: list[float], bound: float) -> list[Figure]:
    return [
        Figure(name=f"{len(gaps)} {what}: gap, median", value=statistics.median(gaps), unit="s"),
        Figure(name=f"{len(gaps)} {what}: longest gap", value=max(gaps), unit="s", bound=bound),
    ]


def kill_actors(count: int, tasks: int, totals: Counter[str]) -> list[Figure]:
    gaps: list[float] = []
    again: list[float] = []
    with cluster_with("node-1", "node-2") as cluster, connected(cluster, "opencl") as fleet:
        for number in range(count):
            opened(fleet, *NEAR)
            victim = actor(fleet, NEAR[number % 2])
            load = Load(fleet, tasks // count, SECONDS["actors"], NEAR[number % 2])
            when = load.around(lambda victim=victim: os.kill(victim, signal.SIGKILL))  # type: ignore[misc]
            load.settle(totals)
            gaps.append(load.gap(when))
            again.append(load.slowest(when))
            if gaps[-1] > 1.0:
                load.tell_gap(when)
            say(f"actor {number + 1} of {count}: gap {gaps[-1]:.2f} s, for the lost device {again[-1]:.2f} s")
        totals["losses told"] += len(fleet.health().losses)
        count_executions(fleet, totals)
    return [
        *gap_figures("actors killed", gaps, 3.0),
        Figure(name="tasks for the lost device itself, median", value=statistics.median(again), unit="s"),
        Figure(name="tasks for the lost device itself, longest", value=max(again), unit="s"),
    ]


def kill_nodes(count: int, tasks: int, totals: Counter[str]) -> list[Figure]:
    gaps: list[float] = []
    with cluster_with("node-1", "node-2") as cluster, connected(cluster, "opencl") as fleet:
        opened(fleet, *NEAR)
        for number in range(count):
            name = f"victim-{number}"
            device = f"opencl:0@{name}"
            raylet = cluster.add(name)
            await_(lambda device=device: is_offered(fleet, device), f"{device} is offered")  # type: ignore[misc]
            opened(fleet, device)
            there = actor(fleet, device)
            processes = psutil.Process(raylet).children(recursive=True)
            load = Load(fleet, tasks // count, SECONDS["nodes"], device)
            when = load.around(lambda raylet=raylet: os.kill(raylet, signal.SIGKILL))  # type: ignore[misc]
            load.settle(totals)
            gaps.append(load.gap(when))
            await_(lambda when=when: time.monotonic() > when + 1, "a second later")  # type: ignore[misc]
            totals["actors left a second later"] += is_left(there)
            totals["Ray's own processes left a second later"] += sum(
                is_left(each.pid) and each.pid != there for each in processes
            )
            say(f"node {number + 1} of {count}: gap {gaps[-1]:.2f} s")
        totals["losses told"] += len(fleet.health().losses)
        count_executions(fleet, totals)
    return gap_figures("nodes killed", gaps, 7.0)


def cut_ways(count: int, tasks: int, totals: Counter[str], seconds: float) -> list[Figure]:
    gaps: list[float] = []
    settled: list[float] = []
    with (
        cluster_with("node-1") as cluster,
        FarNode(cluster, "far") as far,
        connected(cluster, "opencl@far", "opencl@node-1") as fleet,
    ):
        await_(lambda: is_offered(fleet, FAR), f"{FAR} is offered")
        for number in range(count):
            opened(fleet, FAR, NEAR[0])
            load = Load(fleet, tasks // count, 1.5 * seconds, FAR)
            mended: list[float] = []

            def mend(mended: list[float] = mended) -> None:
                far.mend()
                mended.append(time.monotonic())

            timer = threading.Timer(seconds, mend)

            def cut(timer: threading.Timer = timer) -> None:
                far.cut()
                timer.start()

            when = load.around(cut)
            timer.join()
            back = await_(lambda: works(fleet, FAR), f"{FAR} is back")
            load.settle(totals)
            last = max(done for done, _ in load.done)
            # Every task that was open when it ended, and the device.
            settled.append(TICKER.between(mended[0], back))
            gaps.append(load.gap(when))
            say(
                f"cut {number + 1} of {count}: gap {gaps[-1]:.2f} s, back {settled[-1]:.2f} s after its end, "
                f"last task {last - mended[0]:.1f} s after it"
            )
        totals["losses told"] += len(fleet.health().losses)
        count_executions(fleet, totals)
    return [
        *gap_figures(f"cuts of {seconds:g} s", gaps, 10.0)[:1],
        Figure(name=f"{count} cuts of {seconds:g} s: longest gap", value=max(gaps), unit="s"),
        Figure(name="settled after the end, median", value=statistics.median(settled), unit="s"),
        Figure(name="settled after the end, longest", value=max(settled), unit="s", bound=5.0),
    ]


def kill_heads(count: int, tasks: int, totals: Counter[str]) -> list[Figure]:
    told: list[float] = []
    for number in range(count):
        with cluster_with("node-1") as cluster, connected(cluster, "opencl") as fleet:
            opened(fleet, NEAR[0])
            gcs = cluster.gcs()
            left = {"actors": actor(fleet, NEAR[0]), "drivers": fleet._cluster.process_id}
            heard: list[float] = []
            looked = threading.Event()
            tell = fleet._cluster.when_lost

            def look(left: dict[str, int] = left, looked: threading.Event = looked) -> None:
                for what, process in left.items():
                    totals[f"{what} left a second later"] += is_left(process)
                looked.set()

            def hear(
                why: str,
                heard: list[float] = heard,
                tell: Callable[[str], None] = tell,
                look: Callable[[], None] = look,
            ) -> None:
                heard.append(time.monotonic())
                threading.Timer(1.0, look).start()
                tell(why)

            fleet._cluster.when_lost = hear
            load = Load(fleet, tasks // count, SECONDS["heads"], NEAR[0])
            when = load.around(lambda gcs=gcs: os.kill(gcs, signal.SIGKILL))  # type: ignore[misc]
            await_(looked.is_set, "the head's death is told")
            load.settle(totals)
            told.append(TICKER.between(when, heard[0]))
            why = fleet._cluster.ended or ""
            totals["heads' deaths not told as such"] += "head of the cluster is gone" not in why
            say(f"head {number + 1} of {count}: told after {told[-1]:.1f} s: {why}")
    return [Figure(name=f"{count} heads killed: told after, longest", value=max(told), unit="s", bound=10.0)]


def task_figures(totals: Counter[str]) -> list[Figure]:
    must_be_none = [
        *("lost", "wrong", "delivered twice", "executed twice in an actor's life"),
        *("actors left a second later", "drivers left a second later", "heads' deaths not told as such"),
    ]
    figures = [Figure(name="tasks", value=totals["tasks"], unit="")]
    # Less than one is none.
    figures += [Figure(name=name, value=totals[name], unit="", bound=0.5) for name in must_be_none]
    others = [name for name in totals if name not in (*must_be_none, "tasks")]
    figures += [Figure(name=name, value=totals[name], unit="") for name in others]
    figures.append(
        Figure(name="seconds in which this was stopped", value=sum(b - a for a, b in TICKER.stops), unit="s")
    )
    return figures


def campaign(what: str, count: int, tasks: int, seconds: float, totals: Counter[str]) -> list[Figure]:
    match what:
        case "actors":
            return kill_actors(count, tasks, totals)
        case "nodes":
            return kill_nodes(count, tasks, totals)
        case "cuts":
            return cut_ways(count, tasks, totals, seconds)
        case _:
            return kill_heads(count, tasks, totals)


def main() -> None:
    parser = options_parser(__doc__)
    parser.add_argument("--what", choices=(*COUNTS, "all"), default="all", help="which faults")
    parser.add_argument("--count", type=int, help=f"how many of them; by default {COUNTS}")
    parser.add_argument("--tasks", type=int, default=5000, help="how many tasks run meanwhile, in all")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long a cut lasts")
    options = parser.parse_args()
    os.environ["ANYGPU_ENGINES"] = ENGINES
    wanted = COUNTS if options.what == "all" else {options.what: options.count or COUNTS[options.what]}
    each = -(-options.tasks // sum(wanted.values()))
    totals: Counter[str] = Counter()
    figures: list[Figure] = []
    for what, count in wanted.items():
        figures += campaign(what, count, each * count, options.seconds, totals)
    publish([*figures, *task_figures(totals)], options)


if __name__ == "__main__":
    main()
