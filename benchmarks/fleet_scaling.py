"""How long machines take to come when work waits, and to go when it is done; and who gets the devices' time.

The cluster is Ray's own, with its autoscaler and machines that are processes here, in namespaces of its own. They share
two cores, so that this says nothing about the speed of the work.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import anygpu as ag
from anygpu.fleet import Fleet, Scaling
from benchmarks.report import Figure, options_parser, publish
from benchmarks.report import say as tell
from tests.support.autoscaled_cluster import ADDRESS, LABEL, MOST, VALUE, run_in_namespaces, say, start_head
from tests.support.ray_processes import RayProcesses

#: Far more than a machine takes to start here.
PATIENCE = 120.0
ENOUGH = 250
TENANT_SECONDS = 10.0
#: Between the tasks that come while machines leave.
PAUSE = 0.3


def work(x: Any) -> Any:
    for _ in range(12):
        x = np.tanh(x) * 1.5 + 0.1
    return x


def until(fleet: Fleet, condition: Callable[[], bool], seconds: float = PATIENCE) -> float:
    """The seconds until it holds. Raises `TimeoutError`."""
    begin = time.monotonic()
    while not condition():
        if time.monotonic() - begin > seconds:
            missing = [each.reason for each in fleet.unavailable()]
            raise TimeoutError(f"{fleet.health()}\n{fleet.nodes()}\n{fleet.devices()}\n{missing}")
        time.sleep(0.05)
    return time.monotonic() - begin


def machines(fleet: Fleet) -> set[str]:
    return {device.node for device in fleet.devices() if device.node is not None}


class Stream:
    """Tasks without an end, some of which always wait: as many as are needed for the queue to be long."""

    def __init__(self, fleet: Fleet, waiting: int, size: int) -> None:
        self._fleet = fleet
        self._waiting = waiting
        self._given = [np.full(size, number / 7, np.float32) for number in range(7)]
        self._expected = [work(each) for each in self._given]
        self._futures: list[tuple[int, Any]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        number = 0
        while not self._ended.is_set():
            if self._fleet.waiting < self._waiting or not self._waiting:
                which = number % 7
                future = self._fleet.submit(work, self._given[which], on="opencl", fallback="allow", check="off")
                self._futures.append((which, future))
                number += 1
            if self._fleet.waiting >= self._waiting:
                self._ended.wait(0.01 if self._waiting else PAUSE)

    def slow_down(self) -> None:
        """One now and then, for which no machine is needed."""
        self._waiting = 0

    def end(self) -> dict[str, int]:
        """Wait for all of them."""
        self._ended.set()
        self._thread.join()
        lost = wrong = away = 0
        for which, future in self._futures:
            try:
                value = future.result(PATIENCE)
            except Exception:  # noqa: BLE001 - a task that failed is one that was lost
                lost += 1
                continue
            wrong += not np.allclose(value, self._expected[which], rtol=1e-4)
            away += future.receipt.node is not None
        return {"tasks": len(self._futures), "lost": lost, "wrong": wrong, "away": away}


def inside() -> None:
    """In the namespaces."""
    start_head()
    # On other machines the work here would not keep them from starting.
    os.nice(5)
    say(name="head")
    scaling = Scaling(most=MOST, gpu=1, labels={LABEL: VALUE}, target=2.0, idle=4.0)
    with ag.fleet.connect(ADDRESS, devices="opencl", scaling=scaling, insecure=True, batching=False) as fleet:
        x = np.ones(1 << 20, np.float32)
        each = min(fleet.run(work, x, on="opencl", check="off").receipt.phases.total for _ in range(5))
        say(name="connected", each=each)
        begin = time.monotonic()
        stream = Stream(fleet, ENOUGH, x.size)
        until(fleet, lambda: fleet.health().asked > 0)
        decided = time.monotonic() - begin
        say(name="asked", seconds=decided)
        until(fleet, lambda: len(fleet.nodes()) == MOST + 1)
        say(name="started", seconds=time.monotonic() - begin)
        until(fleet, lambda: len(machines(fleet)) == MOST)
        say(name="up", seconds=time.monotonic() - begin)
        # Each of them has an actor, which has to go before its machine can.
        there = [device.id for device in fleet.devices() if device.node is not None]
        for future in [fleet.submit(work, x, on=name, fallback="allow", check="off", priority=10) for name in there]:
            future.result(PATIENCE)
        say(name="busy", lanes=[[lane.device, lane.done] for lane in fleet.health().lanes])
        # A little goes on, as it would: while machines leave, tasks come.
        stream.slow_down()
        until(fleet, lambda: fleet.waiting <= 1)
        say(name="done")
        say(name="down", seconds=until(fleet, lambda: len(fleet.nodes()) == 1), machines=len(machines(fleet)))
        say(name="tasks", **stream.end())


def tenant_figures() -> list[Figure]:
    """Two tenants with equal shares, of which one floods the queue; the other has a few tasks waiting at any time."""
    with RayProcesses(environment={"ANYGPU_ENGINES": "numpy,opencl"}) as cluster:
        cluster.add("node-1")
        return _tenant_figures(cluster)


def _tenant_figures(cluster: RayProcesses) -> list[Figure]:
    with (
        ag.fleet.connect(
            cluster.address,
            devices="opencl@node-1",
            local=False,
            insecure=True,
            batching=False,
            tenants=[ag.types.Tenant(name="quiet"), ag.types.Tenant(name="flood")],
        ) as fleet,
    ):
        x = np.ones(1 << 16, np.float32)

        def submit(tenant: str) -> ag.Future:
            return fleet.submit(work, x, on="opencl:0@node-1", check="off", tenant=tenant)

        def used() -> dict[str, float]:
            return {each.tenant: each.seconds for each in fleet.health().tenants}

        def waiting(tenant: str) -> int:
            return next((each.waiting for each in fleet.health().tenants if each.tenant == tenant), 0)

        for _ in range(20):
            submit("quiet").result()
        for _ in range(300):
            submit("flood")
        before, end = used(), time.monotonic() + TENANT_SECONDS
        while time.monotonic() < end:
            for tenant, most in (("quiet", 8), ("flood", 300)):
                for _ in range(most - waiting(tenant)):
                    submit(tenant)
        after = used()
    quiet, flood = (after[name] - before.get(name, 0.0) for name in ("quiet", "flood"))
    share = 100 * quiet / (quiet + flood)
    return [
        Figure(name="the quiet tenant's share of device time", value=share, unit="%"),
        Figure(name="its distance from 50 %", value=abs(share - 50), unit="%", bound=5.0),
    ]


def figures() -> list[Figure]:
    facts: dict[str, dict[str, Any]] = {}
    for each in run_in_namespaces("benchmarks.fleet_scaling", "inside", timeout=400):
        tell(str(each))
        facts[each.pop("name")] = each
    tasks = facts["tasks"]
    return [
        Figure(name="demand was noticed after", value=facts["asked"]["seconds"], unit="s"),
        Figure(name=f"{MOST} machines after demand", value=facts["started"]["seconds"], unit="s", bound=20.0),
        Figure(name="their devices could be used after", value=facts["up"]["seconds"], unit="s"),
        Figure(name="gone after it ended", value=facts["down"]["seconds"], unit="s", bound=30.0),
        Figure(name=f"lost of {tasks['tasks']} tasks", value=float(tasks["lost"]), unit="", bound=0.5),
        Figure(name="wrong", value=float(tasks["wrong"]), unit="", bound=0.5),
    ]


def main() -> None:
    if sys.argv[1:2] == ["inside"]:
        inside()
        return
    parser = options_parser(__doc__)
    parser.add_argument("--what", choices=("machines", "tenants"), default="machines")
    options = parser.parse_args()
    if options.what == "tenants":
        os.environ["ANYGPU_ENGINES"] = "numpy,opencl"
        publish(tenant_figures(), options)
    else:
        publish(figures(), options)


if __name__ == "__main__":
    main()
